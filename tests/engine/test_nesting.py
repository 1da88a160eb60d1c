"""JSON that is nested deeper than a message may be ends in an error of ours, and only for its own conversation.

Requirements: C16, D1, D3.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Block, HithertoError, Message, formats
from hitherto.dialects import dialect
from hitherto.errors import PartialImport
from hitherto.formats import PortableConversation, PortableMessage
from hitherto.formats.own import _jsonl_reading
from hitherto.model import DEEPEST, Setup, is_nested_deeper
from hitherto.records import Records
from hitherto.snapshots import Snapshot

DEPTHS = (DEEPEST + 50, 500, 5000, 100_000)
MARK = '"@@"'


def text(depth: int, kind: str) -> str:
    return "[" * depth + "]" * depth if kind == "list" else '{"k":' * depth + "1" + "}" * depth


def value(depth: int, kind: str) -> Any:
    found: Any = "x"
    for _ in range(depth):
        found = [found] if kind == "list" else {"k": found}
    return found


@pytest.fixture(params=["list", "dict"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def three(path: Path, format: str) -> None:
    """A file with three conversations; the one in the middle has a mark in its JSON."""
    with hitherto.open("memory:") as store:
        for title, raw in (("first", None), ("deep", {"role": "user", "content": "x", "n": "@@"}), ("last", None)):
            store.start(title=title).append(
                Message.user(f"words of {title}", raw=raw, extra=None if raw is None else {"n": "@@"})
            )
        formats.save(store, path, format=format)


def lines(path: Path, nested: str) -> None:
    three(path, "jsonl")
    *some, end = path.read_text().replace(MARK, nested).splitlines(keepends=True)
    last = json.loads(end)
    last["end"]["sha256"] = hashlib.sha256("".join(some).encode()).hexdigest()
    path.write_text("".join(some) + json.dumps(last, separators=(",", ":")) + "\n")


def loaded(path: Path, format: str | None = None) -> tuple[list[str], list[str]]:
    """The titles that came in, and what could not be read."""
    with hitherto.open("memory:") as store:
        unreadable: list[str] = []
        try:
            formats.load(path, store, format=format)
        except PartialImport as error:
            unreadable = [f"{one.name}: {one.reason}" for one in error.report.unreadable]  # type: ignore[attr-defined]
        return sorted(info.title for info in store.conversations()), unreadable


@pytest.mark.parametrize("depth", DEPTHS)
def test_one_conversation_of_a_file_of_lines_that_is_too_deep_takes_no_other_with_it(
    tmp_path: Path, depth: int, kind: str
) -> None:
    path = tmp_path / "all.jsonl"
    lines(path, text(depth, kind))
    titles, unreadable = loaded(path)
    assert titles == ["first", "last"]
    assert len(unreadable) == 1
    assert unreadable[0].startswith("conversation ")


def test_control_without_the_check_the_rest_is_lost(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "all.jsonl"
    lines(path, text(500, kind))
    monkeypatch.setattr(_jsonl_reading, "is_nested_deeper", lambda *_: False)
    with pytest.raises(RecursionError):
        loaded(path)


def test_what_is_as_deep_as_it_may_be_comes_and_goes(tmp_path: Path, kind: str) -> None:
    deepest = value(DEEPEST - 1, kind)
    dollar: Any = 1
    for _ in range(DEEPEST - 1):
        dollar = {"$bytes": dollar}  # each level is wrapped in `$object`
    for raw in (deepest, dollar):
        path = tmp_path / f"{len(str(raw))}.jsonl"
        with hitherto.open("memory:") as store, hitherto.open("memory:") as other:
            store.start().append(Message.user("x", raw={"n": raw}))
            formats.save(store, path)
            (talk,) = formats.load(path, other)
            assert talk.thread()[0].raw == {"n": raw}


@pytest.mark.parametrize("depth", DEPTHS)
def test_no_importer_ends_in_an_error_that_is_not_ours(tmp_path: Path, depth: int, kind: str) -> None:
    nested = text(depth, kind)
    lines_, base, rows = tmp_path / "o.openai.jsonl", tmp_path / "base", tmp_path / "c.cpeconvo"
    three(base, "openai")
    first, _, last = base.read_text().splitlines()
    lines_.write_text("\n".join([first, f'{{"messages":[{{"role":"user","content":"x","n":{nested}}}]}}', last]) + "\n")
    titles, unreadable = loaded(lines_)
    assert (len(titles), len(unreadable)) == ((3, 0) if depth < 200 else (2, 1))  # what can be decoded is kept as bytes
    three(rows, "cpeconvo")
    with sqlite3.connect(rows) as connection:
        for table in ("messages", "blocks"):
            for column in [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]:
                connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (MARK, nested))
    connection.close()
    titles, _ = loaded(rows)
    assert {"first", "last"} <= set(titles)
    fields = {"id": "11111111-1111-4111-8111-111111111111", "provider": "openai", "model": "m", "system_prompt": ""}
    snapshot = {**fields, "messages": [{"role": "user", "content": "x", "n": "@@"}], "tools": [], "metadata": {}}
    frame = {"role": "user", "content": "x", "frameId": "1", "n": "@@"}
    record = {"schemaVersion": 1, "conversationId": "c", "messages": [frame]}
    for format, one in (("snapshot", snapshot), ("vpconv", record)):
        file = tmp_path / f"{fields['id']}.json"
        file.write_text(json.dumps(one).replace(MARK, nested))
        with pytest.raises(HithertoError, match="nested"):
            loaded(file, format)


@pytest.mark.parametrize("depth", [DEEPEST + 50, 500, 3000])
@pytest.mark.parametrize("format", ["jsonl", "markdown", "html", "openai", "cpeconvo"])
def test_a_conversation_of_the_callers_that_is_too_deep_is_not_written(
    tmp_path: Path, depth: int, format: str, kind: str
) -> None:
    deep = value(depth, kind)
    for message, setup in (
        (Message.user("x", raw={"n": deep}), Setup()),
        (Message.user("x", extra={"n": deep}), Setup()),
        (Message.user([Block.text("x", n=deep)]), Setup()),
        (Message.user("x"), Setup(tools=({"name": "t", "parameters": deep},))),
        (Message.user("x"), Setup(raw=deep)),
    ):
        talk = PortableConversation(
            id="a", messages=(PortableMessage(id="m", message=message),), setups=(setup,), setup=1
        )
        with pytest.raises(HithertoError, match="nested"):
            formats.save([talk], tmp_path / "out", format=format)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("depth", [DEEPEST + 150, 500, 3000])
def test_no_call_with_deep_json_ends_in_an_error_that_is_not_ours(depth: int, kind: str) -> None:
    deep = value(depth, kind)
    said = {"role": "user", "content": "x"}
    with hitherto.open("memory:") as store:
        talk, records = store.start(), Records(store)
        calls: list[Callable[[], object]] = [
            lambda: talk.append(Message.user("x", raw=deep)),
            lambda: talk.append(Message.user("x", extra={"n": deep})),
            lambda: talk.append(Message.user([Block.text("x", n=deep)])),
            lambda: talk.configure(tools=[{"name": "a", "description": "b", "parameters": {"n": deep}}]),
            lambda: store.start(metadata={"n": deep}),
            lambda: records.create(messages=[{**said, "n": deep}]),
            lambda: records.create(messages=[{**said, "content": deep}]),
            lambda: records.create(participants=[{"id": "a", "role": deep}]),
            lambda: records.create(metrics={"a": deep}),
            lambda: records.commit_snapshot(talk.id, {"n": deep}),
            lambda: Snapshot.new("openai", "m", "", [{**said, "n": deep}], [], {}),
        ]
        for name in ("anthropic", "openai-chat", "openai-responses", "gemini"):
            spoken = dialect(name)
            message = Message.user("x", raw={**said, "content": deep}, extra={"dialect": name})
            calls.append(lambda spoken=spoken, message=message: spoken.history([message]))  # type: ignore[misc]
        for number, call in enumerate(calls):
            with pytest.raises(HithertoError):
                assert call() is None, number
        assert talk.count == 0


def test_depth_is_measured_without_recursion() -> None:
    for kind in ("list", "dict"):
        assert is_nested_deeper(value(100_000, kind), DEEPEST)
        assert not is_nested_deeper(value(DEEPEST, kind), DEEPEST)
        assert is_nested_deeper(value(DEEPEST + 1, kind), DEEPEST)
    assert not is_nested_deeper([[1, "x"] * 1000] * 1000, 2)
