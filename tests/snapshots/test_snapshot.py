"""A snapshot: what is in it, its form in a file to the byte, and what is refused.

Requirements: A3, A4, A8.
"""

import contextlib
import copy
import json
import pickle
import re
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hitherto.errors import HithertoError, InvalidArgument, InvalidMessage, InvalidSnapshotID, NewerFormat
from hitherto.snapshots import Snapshot, _snapshot, validate_snapshot_id

from ..support.foreign_files import write_gtb

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello"}]

WHOLE = """{
  "id": "0f8fad5b-d9cb-469f-a165-70867728950e",
  "provider": "claude",
  "model": "a-model",
  "system_prompt": "Be \\u003cbrief\\u003e \\u0026 kind. é 🌻 \\b\\f\\u0001 \\"q\\" \\\\ / \\t\\u2028\\u2029\x7f",
  "messages": [
    {
      "role": "user",
      "content": "\\u00e9 é \\u003ci\\u003e \\/ \\ud83c\\udf3b",
      "numbers": [
        1.0,
        1E5,
        1e-7,
        -0,
        -0.0,
        123456789012345678901234567890,
        0.1000
      ],
      "nothing": [],
      "none": {},
      "null": null,
      "yes": true
    }
  ],
  "tools": [
    {
      "name": "weather",
      "description": "",
      "parameters": {
        "type": "object",
        "properties": {},
        "maximum": 1.50
      }
    },
    {
      "name": "clock",
      "description": "What time is it?"
    }
  ],
  "metadata": {
    "B": "2",
    "a": "1",
    "é": "\\u003e"
  },
  "created_at": "2026-02-03T04:05:06.789012345+02:00",
  "version": 1
}""".encode()

BARE = f"""{{
  "id": "{ID}",
  "provider": "gemini",
  "model": "",
  "messages": null,
  "created_at": "2026-02-03T04:05:06Z",
  "version": 1
}}""".encode()


def some(**changes: object) -> bytes:
    """A small snapshot as a file, with fields changed, or left out where the change is `...`."""
    fields: dict[str, object] = {"id": ID, "provider": "claude", "model": "m", "messages": HELLO}
    fields |= {"created_at": "2026-02-03T04:05:06Z", "version": 1} | changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


# -- the form in a file


@pytest.mark.parametrize("data", [WHOLE, BARE])
def test_a_file_is_written_again_to_the_same_bytes(data: bytes) -> None:
    assert Snapshot.from_json(data).to_json() == data
    assert Snapshot.from_json(data.decode()).to_json() == data


def test_the_space_in_a_file_does_not_matter() -> None:
    squeezed = re.sub(rb"\n *", b"", WHOLE)
    spread = WHOLE.replace(b"\n", b"\r\n\t ").replace(b'":', b'" :')
    assert squeezed != WHOLE != spread
    assert Snapshot.from_json(squeezed) == Snapshot.from_json(spread) == Snapshot.from_json(WHOLE)
    assert Snapshot.from_json(squeezed).to_json() == Snapshot.from_json(spread).to_json() == WHOLE


def test_the_files_of_other_programs_are_written_again_to_the_same_bytes(tmp_path: Path) -> None:
    files = sorted(write_gtb(tmp_path / "gtb").glob("plain*/*.json"))
    assert len(files) == 4
    for file in files:
        snapshot = Snapshot.from_json(file.read_bytes())
        assert snapshot.id == file.stem
        assert snapshot.to_json() == file.read_bytes()


def test_the_fields_are_read() -> None:
    found = Snapshot.from_json(WHOLE)
    assert (found.id, found.provider, found.model, found.version) == (ID, "claude", "a-model", 1)
    assert found.system_prompt == 'Be <brief> & kind. é 🌻 \b\f\x01 "q" \\ / \t\u2028\u2029\x7f'
    assert found.messages[0]["content"] == "é é <i> / 🌻"
    assert found.messages[0]["numbers"] == [1.0, 1e5, 1e-7, 0, 0.0, 123456789012345678901234567890, 0.1]
    assert found.tools[0]["parameters"] == {"type": "object", "properties": {}, "maximum": 1.5}
    assert found.tools[1] == {"name": "clock", "description": "What time is it?"}
    assert found.metadata == {"a": "1", "B": "2", "é": ">"}


def test_names_in_metadata_are_written_in_their_order() -> None:
    first = Snapshot.from_json(some(metadata={"b": "1", "a": "2"}))
    assert first == Snapshot.from_json(some(metadata={"a": "2", "b": "1"}))
    assert first.to_json().index(b'"a"') < first.to_json().index(b'"b"')


def test_null_and_absent_are_the_same_where_go_writes_neither() -> None:
    bare = Snapshot.from_json(some(messages=..., model=...))
    assert bare.messages == []
    nulls = Snapshot.from_json(some(messages=None, model=None, system_prompt=None, tools=None, metadata=None))
    assert bare == nulls
    assert b'"messages": null' in bare.to_json()
    none = Snapshot.from_json(some(tools=[{"name": "a", "parameters": None}], messages=[]))
    assert none.tools == [{"name": "a", "description": ""}]
    assert b'"messages": [],' in none.to_json()
    assert b"parameters" not in none.to_json()


def test_fields_of_others_are_not_kept() -> None:
    assert b"sesame" not in Snapshot.from_json(some(api_key="sesame", tools=[{"name": "a", "key": "sesame"}])).to_json()


# -- times


def test_a_time_keeps_its_nanoseconds_as_text() -> None:
    found = Snapshot.from_json(WHOLE)
    assert found.created_at == "2026-02-03T04:05:06.789012345+02:00"
    assert found.created == datetime(2026, 2, 3, 2, 5, 6, 789012, UTC)
    assert Snapshot.from_json(BARE).created == datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert Snapshot.from_json(some(created_at="2026-02-03T04:05:06.12Z")).created.microsecond == 120000


@pytest.mark.parametrize(
    "time",
    [
        "",
        "yesterday",
        "2026-02-03",
        "2026-02-03T04:05:06",
        "2026-02-30T04:05:06Z",
        "0000-01-01T00:00:00Z",
        7,
        None,
        ...,
        "2026-02-03T04:05:60Z",
        "2026-02-03T04:05:06.Z",
        "2026-02-03T04:05:06.1234567890Z",
        "0001-01-01T00:00:00+23:59",
        "2026-02-03T04:05:06+99:00",
        "２026-02-03T04:05:06Z",
        "2026-02-03T04:05:06Z\n",
        "9999-12-31T23:59:59-01:00",
    ],
)
def test_what_is_not_a_time_is_refused(time: object) -> None:
    with pytest.raises(InvalidArgument, match="created_at"):
        Snapshot.from_json(some(created_at=time))


# -- making one


def test_a_new_snapshot_has_a_fresh_id_and_the_time() -> None:
    one, two = (Snapshot.new("openai", "m", "S", HELLO, []) for _ in range(2))
    assert one.id != two.id
    assert uuid.UUID(one.id).version == 4
    assert one.created_at.endswith("Z")
    assert abs(one.created - datetime.now(UTC)) < timedelta(minutes=1)
    assert one.version == 1


def test_a_time_is_written_with_as_many_digits_as_say_something(monkeypatch: pytest.MonkeyPatch) -> None:
    for nanoseconds, end in ((0, "40Z"), (120000000, "40.12Z"), (1, "40.000000001Z")):
        monkeypatch.setattr(time, "time_ns", lambda n=nanoseconds: 1_000_000_000 * 10**9 + n)
        assert Snapshot.new("claude", "", "", [], []).created_at == "2001-09-09T01:46:" + end


def test_a_new_snapshot_comes_back_from_its_file() -> None:
    tools: list[dict[str, object]] = [{"name": "t", "description": "d", "parameters": {"type": "object"}}]
    tools.append({"name": "u", "description": ""})
    made = Snapshot.new("claude", "m", "S", HELLO, tools, {"conversation": ID})
    back = Snapshot.from_json(made.to_json())
    assert back == made
    assert hash(back) == hash(made)
    assert (back.messages, back.tools, back.metadata) == (HELLO, tools, {"conversation": ID})
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made


def test_a_handler_is_not_kept() -> None:
    made = Snapshot.new("claude", "m", "", [], [{"name": "t", "description": "d", "handler": print}])
    assert made.tools == [{"name": "t", "description": "d"}]
    assert b"handler" not in made.to_json()


def test_there_is_no_field_for_a_key() -> None:
    names = {field.name for field in msgspec.structs.fields(Snapshot)}
    assert not [name for name in names if re.search("key|token|secret|credential", name)]
    assert set(json.loads(WHOLE)) == {
        *("id", "provider", "model", "system_prompt", "messages", "tools", "metadata", "created_at", "version")
    }


def test_a_snapshot_does_not_change_with_what_it_was_made_of_or_what_it_gives() -> None:
    messages = copy.deepcopy(HELLO)
    tools = [{"name": "t", "description": "", "parameters": {"type": "object"}}]
    made = Snapshot.new("claude", "m", "", messages, tools, {"a": "1"})
    before = made.to_json()
    messages.append({})
    tools[0]["name"] = "other"
    for own in (made.messages, made.tools, made.metadata):
        own.clear()
    made.messages[0].clear()
    assert made.to_json() == before
    with pytest.raises(AttributeError):
        made.model = "other"  # type: ignore[misc]


def test_what_was_said_is_not_in_the_repr() -> None:
    shown = repr(Snapshot.new("claude", "m", "sesame", [{"content": "sesame"}], [], {"a": "sesame"}))
    assert "claude" in shown
    assert "sesame" not in shown


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4), st.text(), st.dictionaries(st.text(), st.text())
)
def test_whatever_a_provider_says_comes_back(
    messages: list[dict[str, object]], prompt: str, metadata: dict[str, str]
) -> None:
    made = Snapshot.new("claude", prompt, prompt, messages, [{"name": "t", "parameters": {"x": messages}}], metadata)
    data = made.to_json()
    back = Snapshot.from_json(data)
    assert (back, back.to_json()) == (made, data)
    assert (back.messages, back.system_prompt, back.metadata) == (messages, prompt, metadata)
    assert back.tools[0]["parameters"] == {"x": messages}
    plain = json.loads(data)
    assert plain["messages"] == messages
    assert not set(data.decode()) & set("<>&\u2028\u2029")


@given(JSON)
@example({"version": 1, "id": ID})
@example({"version": 1, "id": ID, "provider": "x", "messages": [[]], "created_at": "2026-02-03T04:05:06Z"})
def test_whatever_is_read_is_a_snapshot_or_one_of_our_errors(value: object) -> None:
    for data in (json.dumps(value), some(messages=value), some(tools=[value]), some(metadata=value), some(id=value)):
        with contextlib.suppress(HithertoError):
            assert Snapshot.from_json(data).messages is not None


@given(st.binary() | st.integers(0, len(WHOLE) - 1).map(lambda n: WHOLE[:n]))
def test_no_bytes_but_a_whole_snapshot_are_taken_for_one(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Snapshot.from_json(data)


# -- what is refused


@pytest.mark.parametrize("version", [None, -1, "1", 1.0, True, [], {}])
def test_a_version_that_is_none_is_refused(version: object) -> None:
    with pytest.raises(InvalidArgument, match="version"):
        Snapshot.from_json(some(version=version))


@pytest.mark.parametrize("version", [..., 0])
def test_a_snapshot_of_before_there_were_versions_is_brought_up_to_date(version: object) -> None:
    old = Snapshot.from_json(some(version=version))
    assert old == Snapshot.from_json(some(version=1))
    assert old.version == 1
    assert b'"version": 1' in old.to_json()


def test_an_older_version_goes_through_every_migration_with_its_messages_untouched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renamed(texts: dict[str, str]) -> dict[str, str]:
        return {("provider" if name == "vendor" else name): text for name, text in texts.items()}

    steps: list[int] = []

    def second(texts: dict[str, str]) -> dict[str, str]:
        steps.append(2)
        return texts

    monkeypatch.setattr(_snapshot, "VERSION", 3)
    monkeypatch.setattr(_snapshot, "_MIGRATIONS", {**_snapshot._MIGRATIONS, 1: renamed, 2: second})
    text = some(version=1).decode().replace('"provider"', '"vendor"')
    messages = '[{"role": "user", "n": 1E5, "big": 12345678901234567890}]'
    data = json.loads(text)
    body = ",".join(f'"{k}":{messages if k == "messages" else json.dumps(v)}' for k, v in data.items())
    migrated = Snapshot.from_json("{" + body + "}")
    assert (migrated.provider, steps) == ("claude", [2])
    assert "1E5" in migrated.messages_json
    assert "12345678901234567890" in migrated.messages_json


def test_a_newer_version_is_refused_with_both_named() -> None:
    with pytest.raises(NewerFormat, match=r"\b7\b.*\b1\b") as caught:
        Snapshot.from_json('{"version": 7, "messages": "of another shape"}')
    assert caught.value.hint
    with pytest.raises(NewerFormat) as caught:
        Snapshot.from_json('{"version": ' + "9" * 4000 + "}")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "[]",
        "null",
        "7",
        '"x"',
        "{",
        "{}x",
        "{'a': 1}",
        "\ufeff{}",
        '{"version": 1,}',
        "\ud800",
        "[" * 200000,
        '{"a":' * 200000,
        '{"a": ' + "[" * 200 + "]" * 200 + "}",
        '"' + '\\"' * 100000,
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e400}',
        '{"a": -1e999999}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": 01}',
    ],
)
def test_what_is_no_strict_json_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Snapshot.from_json(text)
    assert len(str(caught.value)) < 200
    with pytest.raises(InvalidArgument):
        Snapshot.from_json(some(metadata=...)[:-1] + b', "x": ' + text.encode("utf-8", "surrogatepass") + b" x}")


def test_bytes_that_are_no_text_are_refused() -> None:
    for data in (b"\xff\xfe{\x00}\x00", some().replace(b"Hello", b"\xc3")):
        with pytest.raises(InvalidArgument, match="UTF-8"):
            Snapshot.from_json(data)
    with pytest.raises(InvalidArgument):
        Snapshot.from_json(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", ['{"a": 1, "a": 2}', '{"b": [{"a": 1, "\\u0061": 2}]}'])
def test_the_same_name_twice_is_refused_wherever_it_stands(inside: str) -> None:
    whole = some(messages=["here"]).decode()
    with pytest.raises(InvalidMessage, match="twice"):
        Snapshot.from_json(whole.replace('"here"', inside))
    with pytest.raises(InvalidMessage, match="twice"):
        Snapshot.from_json(whole.replace('["here"]', '[], "id": "x"'))


@pytest.mark.parametrize("messages", [{}, "text", 7, True, [7], [None], [HELLO[0], "x"], [[HELLO[0]]]])
def test_messages_are_a_list_of_objects(messages: object) -> None:
    with pytest.raises(InvalidMessage, match="messages"):
        Snapshot.from_json(some(messages=messages))
    with pytest.raises(InvalidMessage, match="messages"):
        Snapshot.new("claude", "m", "", messages, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [{"a": ["\ud800"]}]},
        {"messages": [{"\ud800": 1}]},
        {"system_prompt": "\ud800"},
        {"metadata": {"a": "\ud800"}},
        {"metadata": {"\ud800": "a"}},
        {"provider": "\ud800"},
        {"tools": [{"name": "a", "parameters": {"a": "\ud800"}}]},
        {"tools": [{"name": "\ud800"}]},
    ],
)
def test_half_a_surrogate_pair_is_refused_although_json_can_write_it(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Snapshot.from_json(some(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": ["a"]},
        {"metadata": {"a": 1}},
        {"metadata": "x"},
        {"tools": {}},
        {"tools": [7]},
        {"tools": ["t"]},
        {"tools": [{}]},
        {"tools": [{"name": 7}]},
        {"tools": [{"name": "a", "description": []}]},
        {"tools": [{"name": "a", "parameters": [1]}]},
        {"provider": ...},
        {"provider": ""},
        {"provider": 7},
        {"model": 7},
        {"system_prompt": ["S"]},
        {"system_prompt": {"text": "S"}},
    ],
)
def test_a_field_of_another_kind_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Snapshot.from_json(some(**changes))


@pytest.mark.parametrize(
    "entry",
    [
        {"a": (1, 2)},
        {1: "a"},
        {"a": {None: 1}},
        {"a": b"x"},
        {"a": {1, 2}},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": datetime(2026, 1, 1, tzinfo=UTC)},
        {"a": "\ud800"},
        {"a": object()},
        {"\ud800": 1},
    ],
)
def test_what_would_not_come_back_equal_is_refused(entry: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage):
        Snapshot.new("claude", "m", "", [entry], [])
    with pytest.raises(InvalidMessage):
        Snapshot.new("claude", "m", "", [], [{"name": "t", "parameters": entry}])


def test_a_message_without_end_is_refused() -> None:
    circle: dict[str, object] = {}
    circle["again"] = circle
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"again": deep}
    for entry in (circle, deep):
        with pytest.raises(InvalidMessage):
            Snapshot.new("claude", "m", "", [entry], [])


@pytest.mark.parametrize(
    "id",
    [
        "",
        "x",
        ID.upper(),
        ID + "\n",
        ID[:-1],
        "{" + ID + "}",
        ID.replace("-", ""),
        "../" + ID,
        ID[:-1] + "\x00",
        None,
        7,
        b"x",
        "а" * 36,
        "x" * 10000000,
    ],
)
def test_an_id_is_a_uuid_in_small_letters(id: object) -> None:
    with pytest.raises(InvalidSnapshotID) as caught:
        validate_snapshot_id(id)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300
    assert isinstance(caught.value, InvalidArgument)
    if not isinstance(id, bytes):
        with pytest.raises(InvalidSnapshotID):
            Snapshot.from_json(some(id=id))
    validate_snapshot_id(ID)
