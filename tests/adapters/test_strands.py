"""The repository and the storage for Strands. Their own suites are run by `make test-frameworks`."""

import asyncio
import base64
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hitherto
from hitherto import Message, Store
from hitherto.errors import HithertoError, InvalidArgument, MissingExtra

from .standins import strands as standin

IMAGE = {
    "format": "png",
    "source": {"bytes": {"__bytes_encoded__": True, "data": base64.b64encode(b"\xff" * 9).decode()}},
}


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    standin.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "hitherto.adapters.strands", raising=False)
    yield
    sys.modules.pop("hitherto.adapters.strands", None)


def adapter() -> Any:
    return import_module("hitherto.adapters.strands")


def types() -> Any:
    return import_module("strands.types.session")


def failure() -> Any:
    return import_module("strands.types.exceptions").SessionException


def repository_on(store: Any, session: str = "s", agent: str = "a") -> Any:
    repository = adapter().Repository(store)
    repository.create_session(types().Session(session, "AGENT"))
    repository.create_agent(session, types().SessionAgent(agent, {"mood": "calm"}, {}))
    return repository


def message(number: int, *parts: dict[str, Any], role: str = "user", **more: Any) -> Any:
    return types().SessionMessage({"role": role, "content": list(parts), **more}, number)


def turn() -> list[Any]:
    call = {"toolUse": {"toolUseId": "t1", "name": "read", "input": {"path": "setup.py"}}}
    back = {"toolUseId": "t1", "status": "error", "content": [{"text": "no such file"}, {"json": {"code": 2}}]}
    thought = {"reasoningContent": {"reasoningText": {"text": "I read it.", "signature": "s"}}}
    usage = {"usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}}
    return [
        message(0, {"text": "What is in it?"}, {"image": IMAGE}),
        message(1, thought, call, role="assistant", metadata=usage),
        message(2, {"toolResult": back}),
        message(3, {"text": "It is not there."}, {"cachePoint": {"type": "default"}}, role="assistant"),
    ]


def keep(repository: Any, *messages: Any, session: str = "s", agent: str = "a") -> None:
    for one in messages:
        repository.create_message(session, agent, one)


def dicts(messages: list[Any]) -> list[dict[str, Any]]:
    return [one.to_dict() for one in messages]


def test_messages_come_back_equal_and_read_as_a_conversation(any_store: Store) -> None:
    """E1"""
    repository = repository_on(any_store)
    given = turn()
    keep(repository, *given)
    again = adapter().Repository(any_store)
    assert dicts(again.list_messages("s", "a")) == dicts(given)
    assert dicts(again.list_messages("s", "a", limit=2, offset=1)) == dicts(given[1:3])
    assert again.read_message("s", "a", 2).to_dict() == given[2].to_dict()
    assert again.read_message("s", "a", 9) is None
    assert again.list_messages("s", "another") == []
    talk = any_store.latest()
    assert talk is not None
    said = talk.thread()
    assert [(str(m.role), m.text) for m in said] == [
        ("user", "What is in it?"),
        ("assistant", ""),
        ("tool_result", 'no such file{"code":2}'),
        ("assistant", "It is not there."),
    ]
    assert said[0].blocks[1].content == b"\xff" * 9
    assert [block.type for block in said[1].blocks] == ["thinking", "tool_call"]
    assert said[2].tool_result_error
    assert {block.id for block in said[2].blocks} == {"t1"}
    assert talk.title == "What is in it?"
    assert talk.usage().output_tokens == 3
    assert len(any_store.conversations().items) == 1, "the session itself is not listed"


def test_agents_have_their_state_and_their_messages(any_store: Store) -> None:
    repository = repository_on(any_store)
    repository.create_agent("s", types().SessionAgent("b", {"n": 2**80, "half": "\ud83d"}, {}))
    keep(repository, *turn())
    keep(repository, message(0, {"text": "other"}), agent="b")
    changed = types().SessionAgent("a", {"mood": "glad"}, {"removed": 3}, created_at="later")
    repository.update_agent("s", changed)
    found = repository.read_agent("s", "a")
    assert (found.state, found.conversation_manager_state) == ({"mood": "glad"}, {"removed": 3})
    assert found.created_at != "later"
    assert repository.read_agent("s", "b").state == {"n": 2**80, "half": "\ud83d"}
    assert [one.message["content"] for one in repository.list_messages("s", "b")] == [[{"text": "other"}]]
    calls: list[Callable[[], Any]] = [
        lambda: repository.create_session(types().Session("s", "AGENT")),
        lambda: repository.create_agent("s", types().SessionAgent("a", {}, {})),
        lambda: repository.create_agent("none", types().SessionAgent("a", {}, {})),
        lambda: repository.update_agent("s", types().SessionAgent("none", {}, {})),
        lambda: repository.create_message("s", "none", message(0, {"text": "x"})),
        lambda: repository.update_message("s", "a", message(99, {"text": "x"})),
        lambda: repository.create_message("s", "a", message(2, {"text": "taken"})),
        lambda: repository.delete_session("none"),
    ]
    for call in calls:
        with pytest.raises(failure()):
            call()
    assert repository.read_session("none") is None
    assert repository.read_agent("s", "none") is None
    repository.delete_session("s")
    assert repository.read_session("s") is None
    assert repository.read_agent("s", "a") is None
    assert repository.list_messages("s", "a") == []
    repository_on(any_store)  # it can be made again


def test_what_is_redacted_is_shown_nowhere(any_store: Store) -> None:
    repository = repository_on(any_store)
    keep(repository, *turn())
    redacted = message(0, {"text": "What is in it?"})
    redacted.redact_message = {"role": "user", "content": [{"text": "[REDACTED]"}]}
    redacted.created_at = "later"
    repository.update_message("s", "a", redacted)
    found = repository.read_message("s", "a", 0)
    assert found.redact_message == redacted.redact_message
    assert found.created_at != "later"
    talk = any_store.latest()
    assert talk is not None
    assert next(m.text for m in talk.thread()) == "[REDACTED]"
    assert len(repository.list_messages("s", "a")) == 4


def test_two_processes_that_count_the_same_number_overwrite_nothing(tmp_path: Path) -> None:
    """E2"""
    path = tmp_path / "c.db"
    with hitherto.open(path) as one, hitherto.open(path) as two:
        stores = [repository_on(one), adapter().Repository(two)]
        outcomes: list[str] = []

        def write(which: int) -> None:
            for number in range(15):
                try:
                    keep(stores[which], message(number, {"text": f"{which} {number}"}))
                except failure():
                    outcomes.append("refused")
                else:
                    outcomes.append("kept")

        threads = [threading.Thread(target=write, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [m.message_id for m in stores[0].list_messages("s", "a")]
        assert sorted(outcomes) == ["kept"] * 15 + ["refused"] * 15
        assert found == list(range(15))


def test_a_turn_that_was_undone_in_hitherto_is_out_of_the_session(any_store: Store) -> None:
    repository = repository_on(any_store)
    keep(repository, *turn(), message(4, {"text": "Again"}), message(5, {"text": "No."}, role="assistant"))
    talk = any_store.latest()
    assert talk is not None
    talk.append(Message.assistant("from elsewhere"))  # is none of Strands' messages, and is passed over
    talk.undo()
    assert [m.message_id for m in repository.list_messages("s", "a")] == [0, 1, 2, 3]
    keep(repository, message(4, {"text": "Another"}))
    assert repository.read_message("s", "a", 4).message["content"] == [{"text": "Another"}]


def test_graphs_have_their_state(any_store: Store) -> None:
    repository = repository_on(any_store)
    graph = SimpleNamespace(id="g/1", serialize_state=lambda: {"node": "first"})
    assert repository.read_multi_agent("s", "g/1") is None
    with pytest.raises(failure()):
        repository.update_multi_agent("s", graph)
    repository.create_multi_agent("s", graph)
    graph.serialize_state = lambda: {"node": "second"}
    repository.update_multi_agent("s", graph)
    assert repository.read_multi_agent("s", "g/1") == {"node": "second"}
    with pytest.raises(failure()):
        repository.create_multi_agent("none", graph)


def test_odd_ids_and_odd_blocks_are_kept(any_store: Store) -> None:
    names = [("a/b", "c"), ("a", "b/c"), ("nul\0", "\udc80"), ("x" * 3000, "y" * 3000)]
    odd: list[dict[str, Any]] = [
        {"text": 5},
        {"toolUse": "none"},
        {"toolUse": {"input": [1]}},
        {"image": {"format": None, "source": {"bytes": {"data": "?"}}}},
        {"reasoningContent": {"redactedContent": "x"}},
        {"new kind " * 20: {"deep": [None, 1.5]}},
        {"text": "half \ud83d"},
    ]
    for session, agent in names:
        keep(repository_on(any_store, session, agent), message(0, *odd), message(1), session=session, agent=agent)
    for session, agent in names:
        found = adapter().Repository(any_store).list_messages(session, agent)
        assert [one.message["content"] for one in found] == [odd, []]
    with pytest.raises(InvalidArgument, match="JSON"):
        keep(adapter().Repository(any_store), message(2, {"text": object()}), session="a/b", agent="c")
    with pytest.raises(InvalidArgument, match="JSON"):
        repository_on(any_store).create_agent("s", types().SessionAgent("z", {"x": object()}, {}))


def test_a_store_that_cannot_write_says_so(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as store:
        repository = repository_on(store)
        keep(repository, *turn())
        store.set_quota(1)
        with pytest.raises(HithertoError) as refused:
            keep(repository, message(4, {"text": "more"}))
        assert refused.value.hint
        with pytest.raises(import_module("strands.types.exceptions").StorageError, match=r"may hold.*\("):
            asyncio.run(adapter().Storage(store).write("k", b"v" * 100))
        assert len(repository.list_messages("s", "a")) == 4


def test_a_storage_holds_bytes_by_path(any_store: Store) -> None:
    storage = adapter().Storage(any_store)
    other = adapter().Storage(any_store, name="other")
    scoped = storage.namespace("tenant")
    error = import_module("strands.types.exceptions").StorageError

    async def use() -> None:
        assert await storage.read("a") is None
        await storage.delete("a")
        await storage.write("/a//b", bytes(range(256)))
        await storage.write("a/c", b"words")
        await scoped.write("a", b"mine")
        assert await storage.read("a/b") == bytes(range(256))
        assert await storage.list() == ["a/b", "a/c", "tenant/a"]
        assert await storage.list("a/") == ["a/b", "a/c"]
        assert (await scoped.list(), await scoped.read("a"), await other.list()) == (["a"], b"mine", [])
        assert [getattr(hit, "key", hit) for hit in await storage.search("words")] == ["a/c"]
        await storage.delete("a/b")
        assert await storage.list("a") == ["a/c"]
        for bad in ("", "/", "a/../b", "a\\b", "x" * 2000, "half \udc80"):
            with pytest.raises(error):
                await storage.write(bad, b"")

    asyncio.run(use())
    assert not any_store.conversations().items


def test_a_missing_framework_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "strands.session.session_repository", None)
    with pytest.raises(MissingExtra, match="strands"):
        adapter()
