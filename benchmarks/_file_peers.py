"""Peers that keep conversations in a file, each as its own documentation says that it is used.

`python -m benchmarks._file_peers NAME FOLDER` is one of them, in the environment of the peers (`make peers`). It takes
orders as lines of JSON from standard input, and answers each with the seconds that it took. Nothing but the standard
library is imported here, because hitherto is not installed there.
"""

import asyncio
import heapq
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from subprocess import PIPE, Popen

_ROOT = Path(__file__).resolve().parents[1]
_PYTHON = _ROOT / ".tools/peers/bin/python"


class Agents:
    """openai-agents' SQLiteSession, one for each conversation, kept. It has no list: this asks its tables."""

    largest = most_listed = 100_000

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

    def fill_list(self, count: int) -> None:
        import sqlite3

        self.append("first", [])
        rows = ((f"conversation {n:06d}", f"2024-01-01 00:00:{n:09d}") for n in range(count))
        with sqlite3.connect(self._path) as connection:
            connection.executemany("INSERT INTO agent_sessions (session_id, updated_at) VALUES (?, ?)", rows)
        connection.close()
        self._bare = sqlite3.connect(self._path)

    def list(self, limit: int) -> int:
        query = "SELECT session_id FROM agent_sessions ORDER BY updated_at DESC LIMIT ?"
        return len(self._bare.execute(query, (limit,)).fetchall())


class LangGraph:
    """A graph of one node that answers, compiled with SqliteSaver. It keeps every state of the graph whole."""

    largest = most_listed = 10_000

    def __init__(self, folder: str) -> None:
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import END, START, MessagesState, StateGraph

        self._answer = ""
        made = StateGraph(MessagesState)
        made.add_node("model", lambda _: {"messages": [("ai", self._answer)]})
        made.add_edge(START, "model")
        made.add_edge("model", END)
        self._connection = sqlite3.connect(os.path.join(folder, "langgraph.db"), check_same_thread=False)
        self._saver = SqliteSaver(self._connection)
        self._graph = made.compile(checkpointer=self._saver)

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

    def fill_list(self, count: int) -> None:
        """Threads of one checkpoint, the same in all, in the order of their ids."""
        self.fill("first", [{"role": "user", "content": "Hello."}])
        copied = "checkpoint_ns, checkpoint_id || ?2, NULL, type, checkpoint, metadata FROM checkpoints"
        with self._connection:
            self._connection.executemany(
                f"INSERT INTO checkpoints SELECT ?1, {copied} WHERE thread_id = 'first' LIMIT 1",
                ((f"conversation {n:06d}", f"{n:06d}") for n in range(count)),
            )

    def list(self, limit: int) -> int:
        return len({one.config["configurable"]["thread_id"] for one in self._saver.list(None, limit=limit)})


class JsonLines:
    """A file for each conversation, a line for each message, synced at every turn. Nothing beside that."""

    largest, most_listed = 1_000_000, 10_000

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}

    def append(self, name: str, said: list[dict[str, str]]) -> None:
        if name not in self._files:
            path = os.path.join(self._folder, f"{name}.jsonl")
            self._files[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._files[name], "".join(f"{json.dumps(one)}\n" for one in said).encode())
        os.fsync(self._files[name])

    fill = append

    def load(self, name: str) -> int:
        with open(os.path.join(self._folder, f"{name}.jsonl"), encoding="utf-8") as lines:
            return len([json.loads(line) for line in lines])

    def fill_list(self, count: int) -> None:
        for n in range(count):
            path = os.path.join(self._folder, f"conversation {n:06d}.jsonl")
            Path(path).touch()
            os.utime(path, (n, n))

    def list(self, limit: int) -> int:
        """The names of the files that changed last."""
        with os.scandir(self._folder) as files:
            newest = heapq.nlargest(limit, ((file.stat().st_mtime_ns, file.name) for file in files))
        return len(newest)


def _thread(name: str) -> dict[str, object]:
    return {"configurable": {"thread_id": name}}


PEERS: dict[str, type[Agents] | type[LangGraph] | type[JsonLines]] = {
    "openai-agents": Agents,
    "LangGraph": LangGraph,
    "JSONL and fsync": JsonLines,
}


class Peer:
    """A process with one peer, that takes orders."""

    def __init__(self, name: str, folder: str) -> None:
        order = [str(_PYTHON), "-m", "benchmarks._file_peers", name, folder]
        environment = {**os.environ, "LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        self._process = Popen(order, stdin=PIPE, stdout=PIPE, text=True, cwd=_ROOT, env=environment)

    def __call__(self, what: str, *arguments: object) -> float:
        """Seconds that it took, or a number that was asked for."""
        self.send(what, *arguments)
        return self.receive()

    def send(self, what: str, *arguments: object) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the peer has no pipes")
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> float:
        if self._process.stdout is None:
            raise RuntimeError("the peer has no pipes")
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


def _write(peer, name: str, pairs: Iterable[list[dict[str, str]]]) -> float:
    """Append these turns: how many were acknowledged. Others may write to the same store."""
    acknowledged = 0
    for said in pairs:
        try:
            peer.append(name, said)
            acknowledged += 1
        except Exception as error:  # noqa: BLE001  # any failure counts
            print(f"a turn failed: {error!r:.200}", file=sys.stderr)
    return acknowledged


def _count(peer, name: str) -> float:
    return peer.load(name)


def _fill_list(peer, count: int) -> float:
    peer.fill_list(count)
    return 0.0


def _list(peer, count: int) -> float:
    """The median of so many listings of 20."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        found = peer.list(20)
        times.append(time.perf_counter() - began)
        if found != 20:
            raise RuntimeError(f"a listing gave {found} of 20")
    return statistics.median(times)


def _serve(name: str, folder: str) -> None:
    peer = PEERS[name](folder)
    orders = {
        "fill": _fill,
        "append": _append,
        "load": _load,
        "write": _write,
        "count": _count,
        "fill_list": _fill_list,
        "list": _list,
    }
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(orders[what](peer, *arguments), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
