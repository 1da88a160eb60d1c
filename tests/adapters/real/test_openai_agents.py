"""Sessions in runs of real agents: streamed or not, killed in a tool, waiting for an approval, compacted."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents.testing", reason="openai-agents is in .tools/adapters alone")

from agents import Agent, RunConfig, Runner, RunState, SQLiteSession, function_tool, set_tracing_disabled
from agents.exceptions import OutputGuardrailTripwireTriggered
from agents.guardrail import GuardrailFunctionOutput, OutputGuardrail
from agents.memory import OpenAIResponsesCompactionSession
from agents.memory import Session as SessionProtocol
from agents.testing import ScriptedModel
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

import hitherto
from hitherto import Key, Store
from hitherto.adapters.openai_agents import Session
from hitherto.errors import StorageFull
from tests.adapters.plugins.stores import new_store

set_tracing_disabled(True)


@pytest.fixture
def store() -> Store:
    return new_store()


def run(work: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await work

    return asyncio.run(wait())


def call(name: str, id: str = "c1") -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(id=f"fc_{id}", call_id=id, type="function_call", name=name, arguments="{}")


def said(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", content=[content], status="completed")


def thought() -> ResponseReasoningItem:
    return ResponseReasoningItem(id="rs_1", type="reasoning", summary=[])


@function_tool  # type: ignore[untyped-decorator]  # the framework is not here
async def slow() -> str:
    await asyncio.sleep(0.02)
    return "slow"


@function_tool  # type: ignore[untyped-decorator]  # the framework is not here
async def fast() -> str:
    return "fast"


@function_tool  # type: ignore[untyped-decorator]  # the framework is not here
async def kill() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@function_tool(needs_approval=True)  # type: ignore[untyped-decorator]  # the framework is not here
async def guarded() -> str:
    return "approved"


def agent(*answers: Any, tools: list[Any] | None = None, **how: Any) -> Agent[Any]:
    return Agent(name="a", model=ScriptedModel(list(answers)), tools=tools or [slow, fast, kill, guarded], **how)


async def talk(one: Agent[Any], question: str, session: Any, *, streamed: bool, **how: Any) -> Any:
    if not streamed:
        return (await Runner.run(one, question, session=session, **how)).final_output
    result = Runner.run_streamed(one, question, session=session, **how)
    async for _ in result.stream_events():
        pass
    return result.final_output


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("hooks", [False, True])
def test_a_run_leaves_what_the_frameworks_own_session_leaves(store: Store, streamed: bool, hooks: bool) -> None:
    def one() -> Agent[Any]:
        return agent(
            [thought(), said("Let me look."), call("slow", "c1"), call("fast", "c2")], [said("Done.")], [said("Bye.")]
        )

    async def both() -> tuple[Any, Any]:
        ours, theirs = Session("s", store), SQLiteSession("s")
        for session in (ours, theirs):
            how = {"hooks": ours.hooks} if hooks and session is ours else {}
            shared = one()
            await talk(shared, "Hi", session, streamed=streamed, **how)
            await talk(shared, "And?", session, streamed=streamed, **how)
        return await ours.get_items(), await theirs.get_items()

    ours, theirs = run(both())
    assert ours == theirs
    assert isinstance(Session("s", store), SessionProtocol)
    kept = store.find("s")
    assert kept is not None
    assert not list(kept.items.scan())
    assert store.verify().ok


@pytest.mark.parametrize("policy", ["omit", "preserve"])
def test_the_ids_of_thoughts_may_be_left_out(store: Store, policy: str) -> None:
    session = Session("s", store)
    config = RunConfig(reasoning_item_id_policy=policy)
    run(
        talk(
            agent([thought(), call("fast")], [said("Done.")]),
            "Hi",
            session,
            streamed=False,
            hooks=session.hooks,
            run_config=config,
        )
    )
    items = run(session.get_items())
    assert [item.get("type") for item in items] == [
        None,
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert ("id" in items[1]) == (policy == "preserve")


_DIES = """
import asyncio, sys
sys.path[:0] = sys.argv[4:]
from hitherto.adapters.openai_agents import Session
from tests.adapters.real.test_openai_agents import agent, call, said, talk, thought
session = Session("s", sys.argv[1])
how = {"hooks": session.hooks} if sys.argv[2] == "hooks" else {}
one = agent([thought(), call("fast", "c1"), call("kill", "c2")], [said("never")])
asyncio.run(talk(one, "Hi", session, streamed=sys.argv[3] == "streamed", **how))
"""


@pytest.mark.parametrize("streamed", ["streamed", "whole"])
@pytest.mark.parametrize("hooks", ["hooks", "none"])
def test_a_kill_inside_a_tool_keeps_the_paid_answer(tmp_path: Path, hooks: str, streamed: str) -> None:
    """E3. Without the hooks, as the control, the answer is lost."""
    path = str(tmp_path / "chats.db")
    places = [place for place in sys.path if place]
    done = subprocess.run([sys.executable, "-c", _DIES, path, hooks, streamed, *places], check=False)
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(path) as store:
        session = Session("s", store)
        types = [item.get("type") for item in run(session.get_items())]
        assert types[:4] == ([None, "reasoning", "function_call", "function_call"] if hooks == "hooks" else [None])
        assert (
            run(talk(agent([said("Still here.")]), "And?", session, streamed=False, hooks=session.hooks))
            == "Still here."
        )
        assert run(session.get_items())[-1]["content"][0]["text"] == "Still here."


def test_an_approval_that_comes_in_another_process_doubles_nothing(store: Store) -> None:
    async def work() -> list[Any]:
        one = agent([call("guarded")], [said("Done.")])
        session = Session("s", store)
        result = await Runner.run(one, "Hi", session=session, hooks=session.hooks)
        assert result.interruptions
        kept = result.to_state().to_json()
        other = Session("s", store)  # tomorrow
        state = await RunState.from_json(one, kept)
        state.approve(state.get_interruptions()[0])
        await Runner.run(one, state, session=other, hooks=other.hooks)
        return await other.get_items()

    types = [item.get("type") for item in run(work())]
    assert types == [None, "function_call", "function_call_output", "message"]


def test_an_answer_that_a_guardrail_refuses_is_not_kept(store: Store) -> None:
    async def refuse(*_: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    session = Session("s", store)
    one = agent([said("forbidden words")], output_guardrails=[OutputGuardrail(refuse)])
    with pytest.raises(OutputGuardrailTripwireTriggered):
        run(talk(one, "Hi", session, streamed=False, hooks=session.hooks))
    assert "forbidden" not in str(run(session.get_items()))


def test_event_loops_and_threads_come_and_go(store: Store) -> None:
    session = Session("s", store)

    def one(number: int) -> None:
        asyncio.run(session.add_items([{"role": "user", "content": str(number)}]))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(item["content"]) for item in run(session.get_items())) == list(range(16))


_WRITES = """
import asyncio, os, sys
sys.path[:0] = sys.argv[4:]
import hitherto
from hitherto import Key
from hitherto.adapters.openai_agents import Session
key = Key(bytes(range(32))) if sys.argv[3] == "sealed" else None
async def work():
    with hitherto.open(sys.argv[1], key=key) as store:
        session = Session("s", store)
        for number in range(50):
            said = {"role": "user", "content": f"{sys.argv[2]} {number}"}
            await session.add_items([said, {"role": "assistant", "content": "yes"}])
asyncio.run(work())
"""


@pytest.mark.parametrize("kind", ["plain", "sealed"])
def test_processes_on_one_session_lose_and_split_nothing(tmp_path: Path, kind: str) -> None:
    path, places = str(tmp_path / "chats.db"), [place for place in sys.path if place]
    order = [sys.executable, "-c", _WRITES, path]
    writers = [subprocess.Popen([*order, str(number), kind, *places]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    with hitherto.open(path, key=Key(bytes(range(32))) if kind == "sealed" else None) as store:
        items = run(Session("s", store).get_items())
    assert [item["role"] for item in items] == ["user", "assistant"] * 150
    for number in range(3):
        mine = [item["content"] for item in items if item["content"].startswith(f"{number} ")]
        assert mine == [f"{number} {place}" for place in range(50)]


def test_a_full_store_stops_the_run_before_its_tool_with_a_hint(store: Store) -> None:
    ran: list[str] = []

    @function_tool  # type: ignore[untyped-decorator]  # the framework is not here
    def tool(text: str) -> str:
        ran.append(text)
        return "ran"

    session = Session("s", store)
    run(session.add_items([{"role": "user", "content": "before"}]))
    store.set_quota(store.used_bytes + 50_000)
    large = call("tool").model_copy(update={"arguments": f'{{"text": "{os.urandom(100_000).hex()}"}}'})
    with pytest.raises(StorageFull) as caught:
        run(talk(agent([large], [said("x")], tools=[tool]), "Hi", session, streamed=False, hooks=session.hooks))
    assert caught.value.hint
    assert not ran, "its call was not kept"
    assert [item.get("content") for item in run(session.get_items())] == ["before", "Hi"]


def test_compaction_takes_the_place_of_what_it_sums_up(store: Store) -> None:
    class Client:
        """The endpoint that sums up."""

        def __init__(self) -> None:
            self.responses = self

        async def compact(self, **_: Any) -> Any:
            return type("Compacted", (), {"output": [{"type": "compaction", "id": "cmp", "encrypted_content": "…"}]})()

    session = Session("s", store)
    compacting = OpenAIResponsesCompactionSession(
        "s", session, client=Client(), should_trigger_compaction=lambda _: True, compaction_mode="input"
    )
    run(compacting.add_items([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]))
    run(compacting.run_compaction({"force": True}))
    assert [item.get("type") for item in run(session.get_items())] == ["compaction"]


def test_files_of_the_frameworks_own_sessions_are_imported(store: Store, tmp_path: Path) -> None:
    """E4. Items are equal, a branch shares its beginning, and a second import adds nothing."""
    advanced = pytest.importorskip("agents.extensions.memory").AdvancedSQLiteSession

    async def write() -> dict[str, list[Any]]:
        plain = SQLiteSession("plain", tmp_path / "plain.db", sessions_table="users", messages_table="items")
        await talk(agent([thought(), call("fast")], [said("Done.")]), "Hi", plain, streamed=False)
        branched = advanced(session_id="branched", db_path=tmp_path / "branched.db", create_tables=True)
        for number in range(3):
            await talk(agent([said(f"answer {number}")]), f"question {number}", branched, streamed=False)
        before = await branched.get_items()
        await branched.create_branch_from_turn(2, "other")
        await talk(agent([said("another answer")]), "another question", branched, streamed=False)
        return {"plain": await plain.get_items(), "main": before, "other": await branched.get_items()}

    items = run(write())
    paths = [tmp_path / "plain.db", tmp_path / "branched.db"]
    assert [hitherto.formats.load(path, store).messages for path in paths] == [5, 8]
    assert [hitherto.formats.load(path, store).messages for path in paths] == [0, 0]
    assert run(Session("plain", store).get_items()) == items["plain"]
    assert run(Session("branched", store).get_items()) == items["other"]
    kept = store.find("branched")
    assert kept is not None
    threads = [[m.raw for m in kept.fork(at=branch.id).thread()] for branch in kept.branches()]
    assert sorted(threads, key=len) == [items["other"], items["main"]]
