"""Messages are values that come back equal or are refused (C2, C3)."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto import Block, HithertoError, Message, Saved, formats
from hitherto._engine import recovery
from hitherto._engine.bodies import body_of, encode
from hitherto._engine.packs import run_of
from hitherto.errors import InvalidMessage
from hitherto.ids import RUN
from hitherto.model import BlockType, Modality, Role, Usage, check
from hitherto.opening import open as open_store

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAF = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
EXTRA = st.none() | st.dictionaries(TEXT, JSON, min_size=1, max_size=3)
BLOCK = st.builds(Block, TEXT, TEXT | st.binary(), TEXT, TEXT, st.none() | TEXT, EXTRA)
MESSAGE = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool_result", "event", "narrator"]),
    blocks=st.lists(BLOCK, max_size=3).map(tuple),
    label=st.none() | TEXT.filter(lambda t: ":" not in t),
    tool_result_error=st.booleans(),
    extra=EXTRA,
    raw=JSON,
    usage=st.none() | st.builds(Usage, *[st.integers(0, 2**40)] * 5),
    privacy=EXTRA,
)


EACH_FIELD: dict[str, Any] = {
    "role": "assistant",
    "blocks": (Block("content", "said", "text", "text/markdown", "call_1", {"a": 1}),),
    "label": "labelled",
    "key": "named",
    "tool_result_error": True,
    "extra": {"b": 2},
    "raw": {"c": 3},
    "usage": Usage(1, 2, 3, 4, 5),
    "privacy": {"d": 4},
}


def test_every_field_of_a_message_is_stored_packed_and_exported(tmp_path: Path) -> None:
    """A new field is built by position in several places, for speed. It is added here, and lost in none of them."""
    assert EACH_FIELD.keys() == set(Message.__struct_fields__) - {"parent"}  # of which `save` takes care
    assert Message(**EACH_FIELD) != Message(**{**EACH_FIELD, "privacy": None})

    def is_whole(message: Message, but: tuple[str, ...] = ()) -> bool:
        return all(getattr(message, name) == value for name, value in EACH_FIELD.items() if name not in but)

    with open_store(tmp_path / "a.db") as store, open_store(tmp_path / "b.db") as other:
        talk = store.start()
        assert is_whole(talk.append(Message(**EACH_FIELD)))
        assert is_whole(talk.thread()[0])
        assert is_whole(store.messages().__next__())
        recovery.keep(talk.state, recovery.new_key(talk.position.at or 0), [Message(**EACH_FIELD)])
        assert is_whole(talk.partials()[0].messages[0])
        for _ in range(2 * RUN):
            talk.append(Message.user("so that the first run is full"))
        store.maintain()
        assert store.backend.packs([run_of(store.engine.message_ids.number(talk.thread()[0].id))])
        assert is_whole(store.conversation(talk.id).thread()[0])
        assert is_whole(talk.detach().thread()[0])
        formats.save(store, tmp_path / "all.jsonl")
        formats.load(tmp_path / "all.jsonl", other)
        came = [other.conversation(info.id).thread()[0] for info in other.conversations()]
        assert all(is_whole(message, but=("extra",)) for message in came)  # it says where the message came from
        assert all((message.extra or {}).get("b") == 2 for message in came)
        assert is_whole(other.conversation(talk.id).partials()[0].messages[0])


@given(st.lists(MESSAGE, min_size=1, max_size=4))
@settings(deadline=None)
def test_whatever_is_accepted_comes_back_equal(messages: list[Message]) -> None:
    with open_store("memory:") as store:
        talk = store.start()
        saved = talk.extend(messages)
        read = store.get([m.id for m in saved])
        assert read == saved
        for message, back in zip(messages, read, strict=True):
            assert all(getattr(message, f) == getattr(back, f) for f in message.__struct_fields__ if f != "parent")


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        {1, 2},
        datetime.datetime.now(datetime.UTC),
        object(),
        {1: 2},
        [[{None: 1}]],
        2**64,
        -(2**63) - 1,
        1j,
        Role,
    ],
)
def test_what_would_not_come_back_equal_is_refused(value: object) -> None:
    for message in (
        Message("user", extra={"x": value}),
        Message("user", raw=[value]),
        Message("user", privacy={"x": [value]}),
        Message("user", blocks=(Block("content", "", extra={"x": value}),)),
    ):
        with pytest.raises(InvalidMessage) as caught:
            check(message)
        assert caught.value.hint


def test_lone_surrogates_are_refused_with_a_hint_that_works() -> None:
    split = "\ud83d\ude00 half: \ud800"
    for message in (Message.user(split), Message("user", extra={split: 1}), Message("user", label=split)):
        with pytest.raises(InvalidMessage) as caught:
            encode(body_of(message, 0))
        assert "surrogatepass" in (caught.value.hint or "")
    mended = split.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert mended.startswith("😀 half:")
    encode(body_of(Message.user(mended), 0))


def test_values_of_the_wrong_kind_are_refused() -> None:
    wrong: list[object] = [
        "text",
        None,
        Message("", ()),
        Message("x" * 65, ()),
        Message("user", ("text",)),  # type: ignore[arg-type]  # on purpose
        Message("user", (Block("content", 5),)),  # type: ignore[arg-type]  # on purpose
        Message("user", extra=[1]),  # type: ignore[arg-type]  # on purpose
    ]
    for value in wrong:
        with pytest.raises(InvalidMessage):
            check(value)  # type: ignore[arg-type]  # on purpose


def test_recursion_without_end_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["self"] = loop
    deep: list[object] = []
    for _ in range(99):
        deep = [deep]
    with open_store("memory:") as store:
        talk = store.start()
        nested: dict[str, object] = {"deep": [deep]}
        for value in (loop, nested):
            with pytest.raises(HithertoError):
                talk.append(Message("user", extra=value))
        talk.append(Message("user", raw=deep))
        assert talk.thread()[0].raw == deep


def test_roles_types_and_modalities_equal_their_strings() -> None:
    assert [Role.TOOL_RESULT] == ["tool_result"]
    assert Block.tool_call("1", "n", {}).type == BlockType.TOOL_CALL
    assert Block.image(b"", "image/png").modality == Modality.IMAGE
    with open_store("memory:") as store:
        saved = store.start().append(Message(Role.ASSISTANT, (Block(BlockType.CONTENT, "x", Modality.TEXT),)))
        assert store.message(saved.id) == saved
        assert store.message(saved.id).role == "assistant"


def test_text_is_what_was_said_and_nothing_else() -> None:
    message = Message.assistant(
        [Block.thinking("hm"), Block.text("a"), Block.tool_call("1", "n", "{}"), Block.text("b")]
    )
    assert message.text == "ab"
    assert message.blocks[2].arguments == "{}"
    assert message.blocks[1].arguments is None
    assert Message.tool_result("call", "out", error=True).blocks[0].id == "call"
    assert Message.user(Block.image(b"x", "image/png")).text == ""


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Message.user("x").role = "assistant"  # type: ignore[misc]  # on purpose


def test_usage_adds() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(1, 1, 1, 1, 1) == Usage(2, 3, 4, 5, 6)
    assert Usage(1, 2).total_tokens == 3


def test_a_saved_message_is_a_message_with_a_time() -> None:
    saved = Saved("user", id="abcdef", created_us=1_700_000_000_123_456)
    assert isinstance(saved, Message)
    assert saved.created_at.isoformat() == "2023-11-14T22:13:20.123456+00:00"
