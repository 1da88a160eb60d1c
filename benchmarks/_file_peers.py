"""Peers that keep conversations in a file, each as its own documentation says that it is used.

`python -m benchmarks._file_peers NAME FOLDER` is one of them, in the environment of the peers (`make peers`). It takes
orders as lines of JSON from standard input, and answers each with the seconds that it took. Nothing but the standard
library is imported here, because hitherto is not installed there.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen

_ROOT = Path(__file__).resolve().parents[1]
_PYTHON = _ROOT / ".tools/peers/bin/python"


class Agents:
    """openai-agents' SQLiteSession, one for each conversation, kept."""

    largest = 100_000

    def __init__(self, folder: str) -> None:
        import agents  # noqa: F401  # loaded before the clock starts

        self._path = os.path.join(folder, "agents.db")
        self._loop = asyncio.Runner()
        self._sessions: dict[str, object] = {}

    def _session(self, name: str):
        from agents import SQLiteSession

        if name not in self._sessions:
            self._sessions[name] = SQLiteSession(name, self._path)
        return self._sessions[name]

    def append(self, name: str, said: list[dict[str, str]]) -> None:
        self._loop.run(self._session(name).add_items(said))

    def load(self, name: str) -> int:
        return len(self._loop.run(self._session(name).get_items()))

    fill = append


class LangGraph:
    """A graph of one node that answers, compiled with SqliteSaver. It keeps every state of the graph whole."""

    largest = 10_000

    def __init__(self, folder: str) -> None:
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import END, START, MessagesState, StateGraph

        self._answer = ""
        made = StateGraph(MessagesState)
        made.add_node("model", lambda _: {"messages": [("ai", self._answer)]})
        made.add_edge(START, "model")
        made.add_edge("model", END)
        connection = sqlite3.connect(os.path.join(folder, "langgraph.db"), check_same_thread=False)
        self._graph = made.compile(checkpointer=SqliteSaver(connection))

    def append(self, name: str, said: list[dict[str, str]]) -> None:
        question, self._answer = said[0]["content"], said[1]["content"]
        self._graph.invoke({"messages": [("human", question)]}, _thread(name))

    def fill(self, name: str, said: list[dict[str, str]]) -> None:
        """All of it in one step, which favours it: by turns it would keep as many states."""
        roles = {"user": "human", "assistant": "ai"}
        messages = [(roles[one["role"]], one["content"]) for one in said]
        self._graph.update_state(_thread(name), {"messages": messages}, as_node="model")

    def load(self, name: str) -> int:
        return len(self._graph.get_state(_thread(name)).values.get("messages", ()))


def _thread(name: str) -> dict[str, object]:
    return {"configurable": {"thread_id": name}}


PEERS: dict[str, type[Agents] | type[LangGraph]] = {"openai-agents": Agents, "LangGraph": LangGraph}


class Peer:
    """A process with one peer, that takes orders."""

    def __init__(self, name: str, folder: str) -> None:
        order = [str(_PYTHON), "-m", "benchmarks._file_peers", name, folder]
        self._process = Popen(order, stdin=PIPE, stdout=PIPE, text=True, cwd=_ROOT)

    def __call__(self, what: str, *arguments: object) -> float:
        """Seconds that it took."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the peer has no pipes")
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("a peer died; what it said is above")
        return float(answer)

    def close(self) -> None:
        self._process.communicate()


def are_installed() -> bool:
    return _PYTHON.exists()


def _fill(peer, name: str, size: int, said: list[dict[str, str]]) -> float:
    peer.fill(name, said * (size // len(said)))
    return 0.0


def _append(peer, name: str, count: int, said: list[dict[str, str]]) -> float:
    """The median of so many turns."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        peer.append(name, said)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _load(peer, name: str, least: int) -> float:
    began = time.perf_counter()
    count = peer.load(name)
    took = time.perf_counter() - began
    if count < least:
        raise RuntimeError(f"{count} of {least} messages came back")
    return took


def _serve(name: str, folder: str) -> None:
    peer = PEERS[name](folder)
    orders = {"fill": _fill, "append": _append, "load": _load}
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(orders[what](peer, *arguments), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
