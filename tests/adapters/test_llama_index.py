"""The chat store of LlamaIndex, over a stand-in. `tests/adapters/real` has the framework itself."""

import asyncio
import copy
import sys
from collections.abc import Coroutine, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto.errors import InvalidArgument, MissingExtra

from .standins import llama_index as standin
from .standins.llama_index import ChatMessage, MessageStatus


@pytest.fixture
def adapter() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        standin.install(patch)
        yield import_module("hitherto.adapters.llama_index")
        sys.modules.pop("hitherto.adapters.llama_index", None)


@pytest.fixture(params=["plain", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    key = Key(bytes(range(32))) if request.param == "sealed" else None
    with hitherto.open(tmp_path / "chats.db", key=key, maintenance=False) as store:
        yield store


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def said(text: str, role: str = "user") -> ChatMessage:
    return ChatMessage(role=role, blocks=[{"block_type": "text", "text": text}])


def texts(side: Any, status: MessageStatus | None = MessageStatus.ACTIVE, **how: int) -> list[str]:
    return [message.content for message in run(side.get_messages("k", status, **how))]


def test_messages_come_back_equal_and_read_as_a_conversation(adapter: Any, store: Store) -> None:
    call = {"block_type": "tool_call", "tool_call_id": "c1", "tool_name": "read", "tool_kwargs": {"path": "a"}}
    messages = [
        said("Why does the build fail?"),
        ChatMessage(role="assistant", blocks=[call]),
        ChatMessage(role="tool", blocks=said("an import").blocks, additional_kwargs={"tool_call_id": "c1"}),
        said("An unused import.", "assistant"),
    ]
    side = adapter.ChatStore(store)
    assert run(side.get_messages("k")) == []
    assert store.find("k") is None, "reading makes nothing"
    run(side.add_messages("k", messages[:3]))
    run(side.add_message("k", messages[3]))
    assert run(adapter.ChatStore(store).get_messages("k")) == messages
    talk = store.find("k")
    assert talk is not None
    assert [m.role for m in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
    assert [entry["role"] for entry in hitherto.history(talk)] == ["user", "assistant", "tool", "assistant"]
    assert [hit.conversation for hit in store.search("unused")] == [talk.id]
    assert texts(side, limit=2, offset=1)[1:] == ["an import"]
    assert texts(copy.deepcopy(side)) == texts(side)


def test_the_oldest_are_archived_and_deleted_in_the_middle_of_a_tree(adapter: Any, store: Store) -> None:
    side = adapter.ChatStore(store)
    run(side.add_messages("k", [said(f"number {n}") for n in range(100)]))
    assert [m.content for m in run(side.archive_oldest_messages("k", 90))] == [f"number {n}" for n in range(90)]
    assert [m.content for m in run(side.delete_oldest_messages("k", 2))] == ["number 90", "number 91"]
    ids = run(side.ids("k"))
    assert run(side.delete_message("k", ids[-1])).content == "number 99"
    assert run(side.delete_message("k", ids[-1])) is None
    run(side.add_message("k", said("archived at once"), MessageStatus.ARCHIVED))
    assert texts(side) == [f"number {n}" for n in range(92, 99)]
    assert texts(side, MessageStatus.ARCHIVED) == [*(f"number {n}" for n in range(90)), "archived at once"]
    assert run(side.count_messages("k", None)) == 98
    assert not list(store.search("99")), "what is deleted is erased"
    assert [m.role for m in store.messages() if not m.extra] == ["event"] * 3


def test_other_messages_take_the_place_of_all(adapter: Any, store: Store) -> None:
    side = adapter.ChatStore(store)
    run(side.add_messages("k", [said("old"), said("older")]))
    run(side.archive_oldest_messages("k", 1))
    run(side.set_messages("k", [said("new")]))
    assert texts(side, None) == ["new"]
    assert sum(1 for _ in store.messages()) == 1
    run(side.set_messages("k", []))
    assert texts(side, None) == []
    run(side.set_messages("k", [said("again")]))
    assert texts(side) == ["again"]


def test_keys_are_those_with_messages(adapter: Any, store: Store) -> None:
    side = adapter.ChatStore(store)
    store.ensure("another program's").append(Message.user("Hello"))
    for key in ("a", "b\0/ü", "x" * 2000):
        run(side.add_message(key, said("hi")))
    assert set(run(side.get_keys())) == {"a", "b\0/ü", "x" * 2000}
    run(side.delete_messages("a"))
    run(side.delete_oldest_messages("b\0/ü", 1))
    assert run(side.get_keys()) == ["x" * 2000]


def test_an_interrupted_deletion_is_finished_by_the_next_one(adapter: Any, store: Store) -> None:
    side = adapter.ChatStore(store)
    run(side.add_messages("k", [said("first secret"), said("second"), said("third")]))

    def fails(*_: object) -> None:
        raise SystemError("the process dies here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hitherto.conversation.Conversation.amend", fails)
        with pytest.raises(SystemError):
            run(side.delete_oldest_messages("k", 1))
    assert texts(side) == ["second", "third"], "it is deleted"
    assert list(store.search("secret")), "its words are still there"
    run(side.delete_oldest_messages("k", 1))
    assert not list(store.search("secret"))


def test_arguments_that_are_wrong(adapter: Any, store: Store) -> None:
    with pytest.raises(InvalidArgument):
        adapter.ChatStore(None)
    with pytest.raises(InvalidArgument):
        run(adapter.ChatStore(store).add_message("", said("hi")))


def test_a_missing_framework_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_index.core.storage.chat_store.base_db", None)
    monkeypatch.setitem(sys.modules, "llama_index", None)
    monkeypatch.delitem(sys.modules, "hitherto.adapters.llama_index", raising=False)
    with pytest.raises(MissingExtra) as caught:
        import_module("hitherto.adapters.llama_index")
    assert "hitherto[llama-index]" in str(caught.value.hint)
