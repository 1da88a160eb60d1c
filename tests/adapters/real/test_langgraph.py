"""Graphs of the real LangGraph: processes that are killed, two on one thread, and files of SqliteSaver."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.graph", reason="LangGraph lives in .tools/adapters/langgraph")

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

import hitherto
from hitherto import formats
from hitherto.adapters.langgraph import Saver
from tests.adapters.plugins.stores import new_store

CONFIG: Any = {"configurable": {"thread_id": "user-42"}}
ROOT = Path(__file__).resolve().parents[3]

WORKER = """
import json, os, signal, sys
sys.path[:0] = {places!r}
from tests.adapters.real.test_langgraph import CONFIG, HumanMessage, Saver, agent
import hitherto
thread, count, kill_at = json.loads(sys.argv[2])
saver = Saver(hitherto.open(sys.argv[1], maintenance=False))
put, calls = saver.put, iter(range(10**9))
def counted(*given):
    found = put(*given)
    if next(calls) == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)  # between a checkpoint and the writes of its tasks
    return found
saver.put = counted
graph = agent(saver)
for number in range(count):
    asked = {{"messages": [HumanMessage(f"question {{number}}")]}}
    graph.invoke(asked, {{"configurable": {{"thread_id": thread}}}}, durability="sync")
    print(number, flush=True)
saver.store.close()
"""


def agent(saver: Any, answer: Any = None) -> Any:
    """A graph of one node that answers."""

    def model(state: Any) -> dict[str, Any]:
        asked = state["messages"][-1].content
        return {"messages": [AIMessage(f"answer to {asked}")]} if answer is None else answer(state)

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


def start(path: Path, thread: str, count: int, kill_at: int = -1) -> "subprocess.Popen[str]":
    places = [str(ROOT), str(ROOT / "src")]
    order = [sys.executable, "-c", WORKER.format(places=places), str(path), json.dumps([thread, count, kill_at])]
    return subprocess.Popen(order, stdout=subprocess.PIPE, text=True, env={**os.environ, "LANGSMITH_TRACING": "false"})


@pytest.mark.parametrize("kill_at", [0, 1, 2, 3, 7])
def test_a_killed_process_leaves_a_thread_that_goes_on(tmp_path: Path, kill_at: int) -> None:
    path = tmp_path / "c.db"
    worker = start(path, "user-42", 5, kill_at)
    done = worker.communicate()[0].split()
    assert worker.returncode == -signal.SIGKILL
    with Saver(hitherto.open(path)) as saver:
        graph = agent(saver)
        for found in saver.list(CONFIG):
            assert found.checkpoint["channel_versions"]
        graph.invoke(None, CONFIG)
        said = [message.content for message in graph.get_state(CONFIG).values["messages"]]
        asked = [text for text in said if text.startswith("question")]
        assert len(asked) >= len(done)
        assert said == [text for question in asked for text in (question, f"answer to {question}")]
        assert saver.store.verify().ok


def test_two_processes_on_one_thread_and_two_on_their_own_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    hitherto.open(path).close()
    workers = [start(path, thread, 8) for thread in ("shared", "shared", "a", "b")]
    assert [len(worker.communicate()[0].split()) for worker in workers] == [8] * 4
    with Saver(hitherto.open(path)) as saver:
        for thread, count in (("a", 16), ("b", 16)):
            found = saver.get_tuple({"configurable": {"thread_id": thread}})
            assert len(found.checkpoint["channel_values"]["messages"]) == count
        shared = list(saver.list({"configurable": {"thread_id": "shared"}}))
        assert len(shared) == 2 * 8 * 3
        ids = {one.config["configurable"]["checkpoint_id"] for one in shared}
        parents = {one.parent_config["configurable"]["checkpoint_id"] for one in shared if one.parent_config}
        assert parents < ids
        assert saver.store.verify().ok


def test_a_thousand_answers_are_kept_in_little_room(tmp_path: Path) -> None:
    with Saver(hitherto.open(tmp_path / "c.db")) as saver:
        graph = agent(saver)
        sizes = []
        for number in range(120):
            graph.invoke({"messages": [HumanMessage(f"question {number} " * 10)]}, CONFIG)
            sizes.append(saver.store.conversations(kind="langgraph").items[0].size)
        assert sizes[119] - sizes[89] < 1.3 * (sizes[59] - sizes[29])
        assert saver.store.conversations(kind="langgraph").items[0].count == 240


def test_time_travel_edits_and_removals_read_as_they_were() -> None:
    saver = Saver(new_store())
    graph = agent(saver)
    graph.invoke({"messages": [SystemMessage("Be terse."), HumanMessage("one", id="1")]}, CONFIG)
    graph.invoke({"messages": [HumanMessage("two", id="2")]}, CONFIG)
    before = graph.get_state(CONFIG)
    graph.update_state(CONFIG, {"messages": [HumanMessage("one, edited", id="1"), RemoveMessage(id="2")]})
    texts = [message.content for message in graph.get_state(CONFIG).values["messages"]]
    assert texts == ["Be terse.", "one, edited", "answer to one", "answer to two"]
    assert graph.get_state(before.config).values == before.values
    graph.invoke({"messages": [HumanMessage("three")]}, before.config)
    talk = saver.store.find("user-42", kind="langgraph")
    assert talk is not None
    assert [message.text for message in talk.thread()][-2:] == ["three", "answer to three"]


def test_an_interrupt_outlives_its_process(tmp_path: Path) -> None:
    from langgraph.types import Command

    def ask(_: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"you said {interrupt('sure?')}")]}

    with Saver(tmp_path / "c.db") as saver:
        agent(saver, ask).invoke({"messages": [HumanMessage("delete it")]}, CONFIG)
    with Saver(tmp_path / "c.db") as saver:
        graph = agent(saver, ask)
        assert graph.get_state(CONFIG).tasks[0].interrupts[0].value == "sure?"
        graph.invoke(Command(resume="yes"), CONFIG)
        assert graph.get_state(CONFIG).values["messages"][-1].content == "you said yes"


def test_a_store_that_is_busy_stops_the_run_with_a_hint_and_the_thread_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    hold = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('BEGIN IMMEDIATE'); print(flush=True); input()"
    others: list[subprocess.Popen[str]] = []

    def busy(state: Any) -> dict[str, Any]:
        if not others:  # another process takes the lock while the node runs
            order = [sys.executable, "-c", hold, str(path)]
            others.append(subprocess.Popen(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert others[0].stdout is not None
            others[0].stdout.readline()
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].content}")]}

    with Saver(hitherto.open(path, maintenance=False, timeout_seconds=0.2)) as saver:
        graph = agent(saver, busy)
        with pytest.raises(hitherto.Busy) as caught:
            graph.invoke({"messages": [HumanMessage("question")]}, CONFIG, durability="sync")
        assert any("hint:" in note and "timeout_seconds" in note for note in caught.value.__notes__)
        assert [message.content for message in graph.get_state(CONFIG).values["messages"]] == ["question"]
        others[0].communicate("\n")
        graph.invoke(None, CONFIG)
        said = [message.content for message in graph.get_state(CONFIG).values["messages"]]
        assert said == ["question", "answer to question"]
        assert saver.store.verify().ok


def test_a_file_of_sqlite_saver_is_brought_in_whole_and_goes_on(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db", check_same_thread=False)) as connection:
        own = SqliteSaver(connection)
        graph = agent(own)
        for number in range(3):
            graph.invoke({"messages": [HumanMessage(f"question {number}")]}, CONFIG)
        graph.invoke({"messages": [HumanMessage("a branch")]}, list(graph.get_state_history(CONFIG))[3].config)
        expected = list(own.list(None))
        with connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store = new_store()
        report = formats.load(tmp_path / "own.db", store)
        assert (report.format, report.new, report.messages) == ("langgraph", 1, 8)
        assert formats.load(tmp_path / "own.db", store).messages == 0
        saver = Saver(store)
        found = {one.config["configurable"]["checkpoint_id"]: one for one in saver.list(None)}
        assert len(found) == len(expected)
        for one in expected:
            assert found[one.config["configurable"]["checkpoint_id"]] == one
    graph = agent(saver)
    graph.invoke({"messages": [HumanMessage("and now?")]}, CONFIG)
    talk = store.find("user-42", kind="langgraph")
    assert talk is not None
    assert [message.text for message in talk.thread()][-2:] == ["and now?", "answer to and now?"]
    assert talk.count == 10
