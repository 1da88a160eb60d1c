"""The conversations of pydantic-ai, over a stand-in. `tests/adapters/real` has the framework itself."""

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hitherto
from hitherto import Key, Store
from hitherto.errors import Held, MissingExtra

from .standins import pydantic_ai as standin
from .standins.pydantic_ai import ConversationEntry, ConversationRecord, Part

ASKED = Part(kind="request", run_id="r1", parts=[Part(part_kind="user-prompt", content="Why does the build fail?")])
CALLS = Part(
    kind="response",
    run_id="r1",
    parts=[Part(part_kind="tool-call", tool_name="read", args={"path": "a"}, tool_call_id="c1")],
    usage={"input_tokens": 7, "output_tokens": 2},
    model_name="large",
)
RESULT = Part(kind="request", run_id="r1", parts=[standin.ToolReturnPart("read", "pyflakes: an import", "c1")])
ANSWER = Part(kind="response", run_id="r1", parts=[Part(part_kind="text", content="An unused import breaks lint.")])


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        standin.install(patch)
        yield import_module("hitherto.adapters.pydantic_ai")
        for name in [name for name in sys.modules if name.startswith("hitherto.adapters.")]:
            if "pydantic" in name:
                del sys.modules[name]


@pytest.fixture(params=["plain", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    key = Key(bytes(range(32))) if request.param == "sealed" else None
    with hitherto.open(tmp_path / "chats.db", key=key, maintenance=False) as store:
        yield store


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def chain(*messages: Part, below: str | None = None) -> list[ConversationEntry]:
    found: list[ConversationEntry] = []
    for message in messages:
        found.append(ConversationEntry(parent_id=below, message=message))
        below = found[-1].id
    return found


def save(side: Any, name: str, *messages: Part, record: ConversationRecord | None = None) -> ConversationRecord:
    """Save a conversation, or go on with it."""
    entries = chain(*messages, below=None if record is None else record.head_id)
    new = (record or ConversationRecord(conversation_id=name, head_id=None)).next(head_id=entries[-1].id)
    run(side.write_record(new, new_entries=entries, expected_revision=None if record is None else record.revision))
    return new


def fork(side: Any, record: ConversationRecord, name: str, at: str | None) -> ConversationRecord:
    new = ConversationRecord(conversation_id=name, head_id=at, forked_from=record.conversation_id)
    run(side.write_record(new, expected_revision=None))
    return new


def history(side: Any, record: ConversationRecord) -> list[Part]:
    return [entry.message for entry in run(side.read_history(record.head_id))]


def test_messages_come_back_equal_and_read_as_a_conversation(adapter: Any, store: Store) -> None:
    side = adapter.Conversations(store)
    record = save(side, "c", ASKED, CALLS, RESULT)
    record = save(side, "c", ANSWER, record=record)
    other = adapter.Conversations(store)
    assert run(other.read_record("c")) == record
    assert history(other, record) == [ASKED, CALLS, RESULT, ANSWER]
    assert [e.message for e in run(other.read_history(record.head_id, limit=2))] == [RESULT, ANSWER]
    assert run(other.read_history(None)) == []
    last = run(adapter.Conversations(store).read_entry(record.head_id))
    assert (last.id, last.message) == (record.head_id, ANSWER)
    talk = store.find("c")
    assert talk is not None
    assert [(m.role, m.text) for m in talk.thread()] == [
        ("user", "Why does the build fail?"),
        ("assistant", ""),
        ("tool_result", "pyflakes: an import"),
        ("assistant", "An unused import breaks lint."),
    ]
    assert talk.usage().input_tokens == 7
    assert talk.model == "large"
    assert hitherto.history(talk)[-1] == {"role": "assistant", "content": "An unused import breaks lint."}


def test_a_writer_who_was_slower_gets_a_conflict_and_writes_nothing(adapter: Any, store: Store) -> None:
    side = adapter.Conversations(store)
    first = save(side, "c", ASKED)
    save(side, "c", ANSWER, record=first)
    with pytest.raises(standin.ConversationConflict):
        save(side, "c", CALLS, record=first)
    with pytest.raises(standin.ConversationConflict):
        save(side, "c", CALLS)
    assert sum(1 for _ in store.messages()) == 2


def test_forks_share_entries_and_a_deletion_takes_what_nobody_uses(adapter: Any, store: Store) -> None:
    side = adapter.Conversations(store)
    record = save(side, "c", ASKED, CALLS, RESULT)
    before = run(side.read_history(record.head_id))
    forked = fork(side, record, "f", before[1].id)
    forked = save(side, "f", ANSWER, record=forked)
    assert sum(1 for _ in store.messages()) == 4, "shared, not copied"
    assert [one.conversation_id for one in run(side.read_records())] == ["f", "c"]
    run(side.delete_record("c", expected_revision=record.revision))
    assert history(adapter.Conversations(store), forked) == [ASKED, CALLS, ANSWER]
    assert sum(1 for _ in store.messages()) == 3
    assert not list(store.search("pyflakes"))
    with pytest.raises(standin.ConversationConflict):
        fork(side, record, "g", before[2].id)
    run(side.delete_record("f", expected_revision=forked.revision))
    assert not list(store.conversations(include_expired=True))
    assert not list(store.items.scan())


def test_a_conversation_on_hold_is_not_deleted(adapter: Any, store: Store) -> None:
    side = adapter.Conversations(store)
    record = save(side, "c", ASKED)
    talk = store.find("c")
    assert talk is not None
    talk.hold()
    with pytest.raises(Held):
        run(side.delete_record("c", expected_revision=record.revision))
    assert run(side.read_record("c")) == record


def test_an_interrupted_run_is_kept_until_it_is_saved(adapter: Any, store: Store) -> None:
    """E3. The run is never saved; a new process loads the conversation."""
    side = adapter.Conversations(store)
    record = save(side, "c", ASKED)
    context = SimpleNamespace(conversation_id="c", run_id="r1", messages=[ASKED])
    call = SimpleNamespace(tool_name="read", tool_call_id="c1")
    assert run(adapter.Conversations(store).load("c")).messages == [ASKED]
    run(side.keeping.after_model_request(context, request_context=None, response=CALLS))
    run(side.keeping.after_tool_execute(context, call=call, tool_def=None, args=None, result="an unused import"))
    resumed = run(adapter.Conversations(store).resume("c")).messages
    assert resumed[:3] == [ASKED, ASKED, CALLS]
    assert resumed[3].parts[0].content == "an unused import"
    assert len(run(adapter.Conversations(store).load("c")).messages) == 5, "its calls are closed"
    save(side, "c", CALLS, RESULT, record=record)
    assert run(adapter.Conversations(store).resume("c")).messages == [ASKED, CALLS, RESULT]


def test_an_entry_or_a_conversation_that_is_not_there(adapter: Any, store: Store) -> None:
    side = adapter.Conversations(store)
    assert run(side.read_record("c")) is None
    assert run(side.load("c")) is None
    with pytest.raises(LookupError):
        run(side.read_entry("nothing"))


@pytest.mark.parametrize("name", ["a\0b", "../x", "x" * 3000, "ключ"])
def test_any_text_is_the_id_of_a_conversation(adapter: Any, store: Store, name: str) -> None:
    side = adapter.Conversations(store)
    record = save(side, name, ASKED)
    fork(side, record, f"{name} fork", record.head_id)
    assert run(side.read_record(name)) == record
    assert run(side.read_record(f"{name} fork")) is not None


def test_a_missing_framework_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pydantic_ai", "pydantic_ai.conversation_store"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if "adapters.pydantic" in name or "adapters._pydantic" in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra) as caught:
        import_module("hitherto.adapters.pydantic_ai")
    assert "hitherto[pydantic-ai]" in str(caught.value.hint)
