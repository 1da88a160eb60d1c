"""The history provider for Microsoft's Agent Framework. Its own suite is run by `make test-frameworks`."""

import asyncio
import copy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Message, Store
from hitherto.errors import HithertoError, InvalidArgument, MissingExtra

from .standins import agent_framework as standin


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    standin.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "hitherto.adapters.agent_framework", raising=False)
    yield
    sys.modules.pop("hitherto.adapters.agent_framework", None)


def history_on(store: Any, **options: Any) -> Any:
    return import_module("hitherto.adapters.agent_framework").History(store, **options)


def message(role: str, *contents: Any, **more: Any) -> Any:
    made: dict[str, Any] = {"type": "message", "role": role, "additional_properties": {}, **more}
    made["contents"] = [
        {"type": "text", "text": one, "additional_properties": {}} if isinstance(one, str) else one for one in contents
    ]
    return import_module("agent_framework").Message.from_dict(made)


def save(history: Any, *messages: Any, session: str | None = "s") -> None:
    asyncio.run(history.save_messages(session, messages, state={}))


def load(history: Any, session: str | None = "s") -> list[Any]:
    found: list[Any] = asyncio.run(history.get_messages(session, state={}))
    return found


def dicts(messages: Any) -> list[dict[str, Any]]:
    return [one.to_dict() for one in messages]


def turn() -> list[Any]:
    about: dict[str, Any] = {"additional_properties": {}}
    call = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"a"}', **about}
    usage = {"type": "usage", "usage_details": {"input_token_count": 7, "output_token_count": 3}, **about}
    back = {"type": "function_result", "call_id": "c1", "result": "no such file", "exception": "OSError", **about}
    image = {"type": "data", "uri": "data:image/png;base64,/wAB", "media_type": "image/png", **about}
    thought = {"type": "text_reasoning", "text": "Let me see.", **about}
    return [
        message("system", "Be terse."),
        message("user", "What is in it?", image),
        message("assistant", thought, call, usage, message_id="m1", author_name="reader"),
        message("tool", back),
        message("assistant", "It is not there.", message_id="m2"),
    ]


def test_messages_come_back_equal_and_read_as_a_conversation(any_store: Store) -> None:
    """E1"""
    history, given = history_on(any_store), turn()
    save(history, *given[:2])
    save(history, *given[2:])
    assert dicts(load(history_on(any_store))) == dicts(given)
    talk = any_store.latest()
    assert talk is not None
    said = talk.thread()
    assert [(str(m.role), m.text) for m in said] == [
        ("user", "What is in it?"),
        ("assistant", ""),
        ("tool_result", "no such file"),
        ("assistant", "It is not there."),
    ]
    assert said[0].blocks[1].content == b"\xff\x00\x01"
    assert [block.type for block in said[1].blocks] == ["thinking", "tool_call"]
    assert said[2].tool_result_error
    assert talk.title == "What is in it?"
    assert (talk.usage().input_tokens, talk.usage().output_tokens) == (7, 3)
    assert talk.metadata == {"framework": "agent-framework", "source_id": "hitherto", "session_id": "s"}


def test_sessions_and_providers_are_apart(any_store: Store) -> None:
    history, audit = history_on(any_store), history_on(any_store, source_id="audit")
    sessions = ["s", "a/b", "nul\0 \udc80", "x" * 4000, None]
    for number, session in enumerate(sessions):
        save(history, message("user", f"question {number}"), session=session)
    save(audit, message("user", "kept for the audit"))
    assert [load(history, session)[0].text for session in sessions] == [f"question {n}" for n in range(5)]
    assert [one.text for one in load(audit)] == ["kept for the audit"]
    assert load(history, "none") == []


def test_what_repeats_the_history_is_passed_over(any_store: Store) -> None:
    history = history_on(any_store)
    first, second = turn(), [message("user", "And now?"), message("assistant", "Still not.", message_id="m3")]
    save(history, *first)
    save(history, *first, second[0])  # the framework was given the whole transcript
    save(history, second[0], second[1])  # a single question without an id is asked again
    save(history, second[1])
    assert [one.text for one in load(history)][-3:] == ["And now?", "And now?", "Still not."]
    assert len(load(history)) == len(first) + 3
    save(history)
    assert len(load(history)) == len(first) + 3


def test_excluded_messages_are_left_out_when_asked_for(any_store: Store) -> None:
    save(
        history_on(any_store), message("user", "keep"), message("user", "skip", additional_properties={"_excluded": 1})
    )
    assert [one.text for one in load(history_on(any_store, skip_excluded=True))] == ["keep"]
    assert len(load(history_on(any_store))) == 2


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with hitherto.open(path) as one, hitherto.open(path) as two:
        histories = history_on(one), copy.deepcopy(history_on(two))

        async def write() -> None:
            for number in range(10):
                calls = (h.save_messages("s", [message("user", f"{n} {number}")]) for n, h in enumerate(histories))
                await asyncio.gather(*calls)

        asyncio.run(write())
        assert len(load(histories[0])) == 20
        (info,) = one.conversations().items
        assert len(one.conversation(info).branches()) == 1


def test_a_turn_that_was_undone_in_hitherto_is_out_of_the_history(any_store: Store) -> None:
    history = history_on(any_store)
    save(history, *turn(), message("user", "And now?"))
    talk = any_store.latest()
    assert talk is not None
    talk.append(Message.assistant("from elsewhere"))  # is none of the framework's messages, and is passed over
    talk.undo()
    assert [one.text for one in load(history)][-1] == "It is not there."


def test_what_cannot_be_kept_is_refused_whole(any_store: Store) -> None:
    history = history_on(any_store)
    odd = {"type": "text", "text": "half \ud83d", "additional_properties": {"n": 2**70}}
    unknown = {"type": "mystery", "deep": [None, 1.5], "additional_properties": {}}
    with pytest.raises(InvalidArgument, match="JSON"):
        save(history, message("user", "first"), message("user", "x", additional_properties={"o": object()}))
    assert load(history) == []
    assert not any_store.conversations().items
    save(history, message("user", odd), message("assistant", "x" * 2_000_000))
    assert [one.text for one in load(history)] == ["half \ud83d", "x" * 2_000_000]
    if standin.Message.__module__ == type(message("user")).__module__:  # the framework itself refuses it
        save(history, message("user", unknown))
        assert load(history)[-1].contents == [unknown]


def test_a_store_that_cannot_write_says_so(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as store:
        history = history_on(store)
        save(history, *turn())
        store.set_quota(1)
        with pytest.raises(HithertoError) as refused:
            save(history, message("user", "more"), message("assistant", "more"))
        assert refused.value.hint
        assert len(load(history)) == 5
        store.close()
        with pytest.raises(HithertoError):
            load(history)


def test_a_missing_framework_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agent_framework", None)
    with pytest.raises(MissingExtra, match="agent-framework"):
        history_on("memory:")
