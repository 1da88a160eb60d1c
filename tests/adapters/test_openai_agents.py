"""A session for openai-agents. Its own suite is run by `make test-frameworks`."""

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto.adapters.openai_agents import Session, SessionClosed, _hooks_class
from hitherto.errors import Busy, Closed, InvalidArgument, InvalidMessage, MissingExtra, ReadOnly, StorageFull

from .standins import openai_agents as standin

Item = dict[str, Any]

ASKED: Item = {"role": "user", "content": "Why does the build fail?"}
THOUGHT: Item = {"type": "reasoning", "id": "rs_1", "summary": []}
CALL: Item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read", "arguments": "{}"}
OTHER: Item = {**CALL, "id": "fc_2", "call_id": "call_2"}
OUTPUT: Item = {"type": "function_call_output", "call_id": "call_1", "output": "an unused import"}
SECOND: Item = {**OUTPUT, "call_id": "call_2"}
ANSWER: Item = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "An unused import breaks lint.", "annotations": []}],
}


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _hooks_class.cache_clear()
    standin.install(monkeypatch)
    yield
    _hooks_class.cache_clear()


@pytest.fixture(params=["plain", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    key = Key(bytes(range(32))) if request.param == "sealed" else None
    with hitherto.open(tmp_path / "chats.db", key=key, maintenance=False) as store:
        yield store


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def answer(session: Session, *items: Item) -> None:
    run(session.hooks.on_llm_end(None, SimpleNamespace(model="large"), standin.ModelResponse(list(items))))


def tool_ended(session: Session, call: Item, output: object) -> None:
    made = SimpleNamespace(type="function_call", call_id=call["call_id"])
    run(session.hooks.on_tool_end(SimpleNamespace(tool_call=made), None, None, output))


def test_items_come_back_equal_and_read_as_a_conversation(store: Store) -> None:
    session = Session("user-42", store, title="Build", metadata={"owner": "ada"})
    assert run(session.get_items()) == []
    assert store.find("user-42") is None, "reading makes nothing"
    items: list[Any] = [ASKED, THOUGHT, CALL, OUTPUT, ANSWER, {"type": "odd", "half": "\ud800", "big": 2**70}, {}]
    run(session.add_items(items[:1]))
    run(session.add_items(items[1:]))
    assert run(Session("user-42", store).get_items()) == items
    talk = session.talk
    assert talk is not None
    assert [m.role for m in talk.thread()][:5] == ["user", "assistant", "assistant", "tool_result", "assistant"]
    assert talk.thread()[0].text == "Why does the build fail?"
    assert (talk.title, talk.metadata) == ("Build", {"owner": "ada"})
    assert [hit.conversation for hit in store.search("unused")], "people find what was said"


def test_a_limit_takes_the_last_items(store: Store) -> None:
    session = Session("s", store, session_settings={"limit": 2})
    run(session.add_items([ASKED, CALL, OUTPUT, ANSWER]))
    assert run(session.get_items()) == [OUTPUT, ANSWER]
    assert run(session.get_items(1)) == [ANSWER]
    assert run(session.get_items(0)) == []
    assert len(run(session.get_items(100))) == 4


def test_popping_and_clearing(store: Store) -> None:
    session = Session("s", store)
    assert run(session.pop_item()) is None
    run(session.add_items([ASKED, ANSWER]))
    assert run(session.pop_item()) == ANSWER
    assert run(session.get_items()) == [ASKED]
    run(session.clear_session())
    assert run(session.get_items()) == []
    run(session.add_items([ASKED]))
    assert run(session.get_items()) == [ASKED]


def test_an_answer_is_kept_before_its_tool_runs_and_not_twice(store: Store) -> None:
    session = Session("s", store)
    run(session.add_items([ASKED]))
    answer(session, THOUGHT, CALL, OTHER)
    assert run(Session("s", store).get_items()) == [ASKED, THOUGHT, CALL, OTHER], "while the tools run"
    tool_ended(session, OTHER, SECOND["output"])
    tool_ended(session, CALL, OUTPUT["output"])
    assert run(Session("s", store).get_items()) == [ASKED, THOUGHT, CALL, OTHER, OUTPUT, SECOND]
    assert run(Session("s", store).get_items(1)) == [SECOND]
    run(session.add_items([THOUGHT, CALL, OTHER, SECOND, OUTPUT]))
    assert run(session.get_items()) == [ASKED, THOUGHT, CALL, OTHER, SECOND, OUTPUT], "in the framework's order"
    talk = session.talk
    assert talk is not None
    assert list(talk.items.scan()) == [], "the journal is gone"
    assert sum((m.usage.input_tokens for m in talk.thread() if m.usage), 0) == 12, "each answer is counted once"


def test_without_the_hooks_an_answer_is_lost_with_its_process(store: Store) -> None:
    session = Session("s", store)
    run(session.add_items([ASKED]))
    assert run(Session("s", store).get_items()) == [ASKED]


def test_the_framework_may_change_what_the_hooks_kept(store: Store) -> None:
    session = Session("s", store)
    answer(session, THOUGHT, CALL)
    nameless = {"type": "reasoning", "summary": []}  # as its policy for the ids of thoughts may ask
    run(session.add_items([nameless, CALL, OUTPUT]))
    assert run(session.get_items()) == [nameless, CALL, OUTPUT]


def test_an_answer_without_calls_waits_for_the_guardrails(store: Store) -> None:
    session = Session("s", store)
    run(session.add_items([ASKED]))
    answer(session, ANSWER)
    assert run(session.get_items()) == [ASKED], "a guardrail may refuse it"
    run(session.add_items([ANSWER]))
    talk = session.talk
    assert talk is not None
    assert talk.model == "large"
    usage = talk.thread()[-1].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (12, 3)


def test_another_run_adds_behind_an_answer_that_was_interrupted(store: Store) -> None:
    first = Session("s", store)
    answer(first, CALL)
    tool_ended(first, CALL, OUTPUT["output"])
    second = Session("s", store)
    run(second.add_items([ASKED, ANSWER]))
    assert run(second.get_items()) == [CALL, OUTPUT, ASKED, ANSWER]
    run(second.pop_item())
    run(second.pop_item())
    assert run(second.pop_item()) == OUTPUT
    assert run(second.pop_item()) == CALL
    assert run(second.get_items()) == []


_DIES = """
import asyncio, os, signal, sys
from types import SimpleNamespace
import pytest
from hitherto.adapters.openai_agents import Session
from tests.adapters.standins import openai_agents as standin
from tests.adapters.test_openai_agents import ASKED, CALL, OTHER, SECOND, answer, run, tool_ended
standin.install(pytest.MonkeyPatch())
session = Session("s", sys.argv[1])
run(session.add_items([ASKED]))
if sys.argv[2] == "hooks":
    answer(session, CALL, OTHER)
    tool_ended(session, OTHER, SECOND["output"])
os.kill(os.getpid(), signal.SIGKILL)  # inside the tool
"""


@pytest.mark.parametrize("hooks", ["hooks", "none"])
def test_a_kill_inside_a_tool_keeps_the_paid_answer(tmp_path: Path, hooks: str) -> None:
    """E3. Without the hooks, as the control, the answer is lost."""
    path = tmp_path / "chats.db"
    done = subprocess.run([sys.executable, "-c", _DIES, str(path), hooks], check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(path, maintenance=False) as store:
        wanted = [ASKED, CALL, OTHER, SECOND] if hooks == "hooks" else [ASKED]
        assert run(Session("s", store).get_items()) == wanted


def test_two_sessions_on_one_conversation_lose_nothing(store: Store) -> None:
    async def talk() -> None:
        await asyncio.gather(*(Session("s", store).add_items([{"role": "user", "content": str(n)}]) for n in range(20)))

    run(talk())
    assert sorted(int(item["content"]) for item in run(Session("s", store).get_items())) == list(range(20))


def test_a_message_of_another_program_is_told_in_words(store: Store) -> None:
    store.ensure("s").extend([Message.user("Hello."), Message.assistant("Hi.")])
    assert run(Session("s", store).get_items()) == [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi."},
    ]


def test_bad_items_are_refused_and_nothing_is_written(store: Store) -> None:
    session = Session("s", store)
    for bad in ({"role": "user", "content": object()}, {"role": "user", "content": [b"\0", {1: 2}]}, "text"):
        with pytest.raises(InvalidMessage) as caught:
            run(session.add_items([ASKED, bad]))
        assert caught.value.hint
    assert run(session.get_items()) == []


@pytest.mark.parametrize("name", ["a\0b", "../../etc/passwd", "x" * 100_000, "ключ"])
def test_any_text_is_the_id_of_a_session(store: Store, name: str) -> None:
    run(Session(name, store).add_items([ASKED]))
    assert run(Session(name, store).get_items()) == [ASKED]
    assert run(Session(name[:-1], store).get_items()) == []


def test_a_conversation_of_another_kind_has_its_own_names(store: Store) -> None:
    store.ensure("s", kind="langgraph").append(Message.user("of a graph"))
    assert run(Session("s", store).get_items()) == []


def test_a_session_is_used_after_its_end(store: Store) -> None:
    session = Session("s", store)
    session.close()
    with pytest.raises(SessionClosed, match="closed"):
        run(session.add_items([]))
    other = Session("s", store)
    store.close()
    with pytest.raises(Closed):
        run(other.get_items())


def test_a_store_that_takes_no_writes_is_an_error_with_a_hint_and_nothing_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with hitherto.open(path, maintenance=False) as store:
        run(Session("s", store).add_items([ASKED]))
        store.set_quota(store.used_bytes + 1000)
        with pytest.raises(StorageFull) as full:
            answer(Session("s", store), {**CALL, "arguments": os.urandom(50_000).hex()})
        store.set_quota(None)
    with hitherto.open(path, read_only=True) as store:
        with pytest.raises(ReadOnly) as refused:
            answer(Session("s", store), CALL)
        assert run(Session("s", store).get_items()) == [ASKED], "reading goes on"
    with (
        hitherto.open(path, maintenance=False, timeout_seconds=0.1) as store,
        closing(apsw.Connection(os.fspath(path))) as other,
    ):
        run(Session("s", store).add_items([ANSWER]))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Busy) as busy:
            answer(Session("s", store), CALL)
        other.execute("ROLLBACK")
        assert run(Session("s", store).get_items()) == [ASKED, ANSWER]
        talk = store.find("s")
        assert talk is not None
        assert not list(talk.items.scan())
    assert all(caught.value.hint for caught in (full, refused, busy))


def test_arguments_that_are_wrong(store: Store) -> None:
    with pytest.raises(InvalidArgument):
        Session("", store)
    with pytest.raises(InvalidArgument) as caught:
        Session("s", 7)  # type: ignore[arg-type]  # that is what is wrong
    assert "open" in str(caught.value.hint)


def test_a_missing_framework_says_how_to_install_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("agents", "agents.memory", "agents.memory.session_settings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra) as caught:
        Session("s", store)
    assert "hitherto[openai-agents]" in str(caught.value.hint)


def test_copies_and_pickles_of_a_session(tmp_path: Path, store: Store) -> None:
    session = Session("s", store)
    run(session.add_items([ASKED]))
    assert run(copy.deepcopy(session).get_items()) == [ASKED], "a copy uses the same store"
    with pytest.raises(TypeError, match="location"):
        pickle.dumps(session)
    located = Session("s", os.fspath(tmp_path / "other.db"))
    run(located.add_items([ASKED]))
    assert run(pickle.loads(pickle.dumps(located)).get_items()) == [ASKED]
    assert Session("t", tmp_path / "other.db").store is located.store, "sessions of one location share a store"
    located.store.close()
    assert run(Session("s", tmp_path / "other.db").get_items()) == [ASKED], "it is opened again"
