"""Who takes part in a contest on one PostgreSQL server, each as its own documentation says that it is used.

A turn is two texts: what was said and what was answered. A conversation is known by the workspace it belongs to and by
its name; who knows no workspaces has longer names. Nothing is imported before a contestant is made, because peers live
in an environment of their own, in which hitherto is not installed, and hitherto in one without them.

Everybody may keep as many connections as it has threads or tasks.
"""

import asyncio
import threading
import time
from collections import Counter
from typing import Any, Protocol

_KEY = bytes(range(32))


class Contestant(Protocol):
    """What threads share. Those of tasks have the same methods, with `async` before them."""

    facts: Counter[str]  # what it wants to tell about the run

    def prepare(self) -> None:
        """Make the tables, once for all processes."""

    def enter(self, workspaces: list[str]) -> None:
        """Be ready to write to these, before the clock starts."""

    def append(self, workspace: str, name: str, said: str, answered: str) -> None:
        """Keep a turn, durably."""

    def load(self, workspace: str, name: str) -> list[str]:
        """The texts of a conversation, in order."""

    def close(self) -> None: ...


# -- the limit

_TABLE = """CREATE TABLE IF NOT EXISTS raw_message (workspace text, name text, at bigint, place int, body text,
    PRIMARY KEY (workspace, name, at, place))"""
_INSERT = "INSERT INTO raw_message VALUES (%s, %s, %s, 0, %s), (%s, %s, %s, 1, %s)"
_SELECT = "SELECT body FROM raw_message WHERE workspace = %s AND name = %s ORDER BY at, place"


def _values(workspace: str, name: str, said: str, answered: str) -> tuple[object, ...]:
    now = time.time_ns()
    return workspace, name, now, said, workspace, name, now, answered


class Raw:
    """psycopg and nothing else: one INSERT that commits by itself, a connection for each thread."""

    def __init__(self, url: str, crowd: int) -> None:
        import psycopg

        self.facts: Counter[str] = Counter()
        self._idle = [psycopg.connect(url, autocommit=True) for _ in range(crowd)]

    def _all(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[str, ...]]:
        connection = self._idle.pop()
        try:
            found = connection.execute(query, values)
            return [] if found.description is None else found.fetchall()
        finally:
            self._idle.append(connection)

    def prepare(self) -> None:
        self._all(_TABLE)

    def enter(self, workspaces: list[str]) -> None:
        pass

    def append(self, workspace: str, name: str, said: str, answered: str) -> None:
        self._all(_INSERT, _values(workspace, name, said, answered))

    def load(self, workspace: str, name: str) -> list[str]:
        return [body for (body,) in self._all(_SELECT, (workspace, name))]

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


class RawTasks:
    """The same with connections of psycopg that are asynchronous, a pool of them."""

    def __init__(self, url: str, crowd: int) -> None:
        self.facts: Counter[str] = Counter()
        self._url, self._crowd = url, crowd

    async def prepare(self) -> None:
        await self.enter([])
        async with self._pool.connection() as connection:
            await connection.execute(_TABLE)

    async def enter(self, workspaces: list[str]) -> None:  # noqa: ARG002  # all are one
        from psycopg_pool import AsyncConnectionPool

        self._pool = AsyncConnectionPool(
            self._url, min_size=self._crowd, max_size=self._crowd, kwargs={"autocommit": True}, open=False
        )
        await self._pool.open(wait=True)

    async def append(self, workspace: str, name: str, said: str, answered: str) -> None:
        async with self._pool.connection() as connection:
            await connection.execute(_INSERT, _values(workspace, name, said, answered))

    async def load(self, workspace: str, name: str) -> list[str]:
        async with self._pool.connection() as connection:
            found = await connection.execute(_SELECT, (workspace, name))
            return [body for (body,) in await found.fetchall()]

    async def close(self) -> None:
        await self._pool.close()


# -- hitherto


class Ours:
    """A store for each workspace, kept open; a conversation is looked up for every turn, as a service does whose
    requests come to any of its processes."""

    key: bytes | None = None

    def __init__(self, url: str, crowd: int) -> None:
        import hitherto

        self.facts: Counter[str] = Counter()
        self._hitherto = hitherto
        self._url = f"{url}&pool_size={crowd}"
        self._stores: dict[str, Any] = {}

    def _store(self, workspace: str):
        found = self._stores.get(workspace)
        if found is None:
            found = self._stores[workspace] = self._hitherto.open(self._url, workspace=workspace, key=self.key)
            _counted(found.backend, self.facts)
        return found

    def prepare(self) -> None:
        self._store("prepared")

    def enter(self, workspaces: list[str]) -> None:
        for workspace in workspaces:
            self._store(workspace)

    def append(self, workspace: str, name: str, said: str, answered: str) -> None:
        message = self._hitherto.Message
        talk = self._store(workspace).ensure(name)
        talk.extend([message.user(said), message.assistant(answered)], on_conflict="follow")

    def load(self, workspace: str, name: str) -> list[str]:
        return [message.text for message in self._store(workspace).ensure(name).thread()]

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


class Sealed(Ours):
    """The same, sealed."""

    key = _KEY


class OurTasks:
    """The same through the asynchronous facade."""

    def __init__(self, url: str, crowd: int) -> None:
        import hitherto

        self.facts: Counter[str] = Counter()
        self._hitherto = hitherto
        self._url = f"{url}&pool_size={crowd}"
        self._stores: dict[str, Any] = {}

    async def _store(self, workspace: str):
        found = self._stores.get(workspace)
        if found is None:
            found = self._stores[workspace] = await self._hitherto.open_async(self._url, workspace=workspace)
            _counted(found.sync.backend, self.facts)
        return found

    async def prepare(self) -> None:
        await self._store("prepared")

    async def enter(self, workspaces: list[str]) -> None:
        for workspace in workspaces:
            await self._store(workspace)

    async def append(self, workspace: str, name: str, said: str, answered: str) -> None:
        message = self._hitherto.Message
        talk = await (await self._store(workspace)).ensure(name)
        await talk.extend([message.user(said), message.assistant(answered)], on_conflict="follow")

    async def load(self, workspace: str, name: str) -> list[str]:
        talk = await (await self._store(workspace)).ensure(name)
        return [message.text for message in await talk.thread()]

    async def close(self) -> None:
        for store in self._stores.values():
            await store.close()


def _counted(backend, facts: Counter[str]) -> None:
    """Count commits, batches that were made anew while their row was locked, and outcomes that are not `Done`: races
    that are run again."""

    def counting(commit):
        def run(batches, *rebase):
            outcomes = commit(batches, *(_counted_rebase(one, facts) for one in rebase))
            facts["commits"] += 1
            facts["batches"] += len(batches)
            for outcome in outcomes:
                facts[type(outcome).__name__] += 1
            return outcomes

        return run

    for verb in ("commit", "commit_queued"):
        if hasattr(backend, verb):
            setattr(backend, verb, counting(getattr(backend, verb)))


def _counted_rebase(rebase, facts: Counter[str]):
    def run(row, places):
        made = rebase(row, places)
        facts["rebased"] += sum(batch is not None for batch in made)
        return made

    return run


# -- peers


class LangGraph:
    """A graph of one node that answers, compiled with PostgresSaver. A saver works behind a lock of its own, so each
    thread has one, and a graph; the pool is shared."""

    def __init__(self, url: str, crowd: int) -> None:
        import langgraph.checkpoint.postgres  # loaded before the clock starts
        import langgraph.graph  # noqa: F401  # the same
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        self.facts: Counter[str] = Counter()
        kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}  # as its documentation asks
        self._pool = ConnectionPool(url, min_size=crowd, max_size=crowd, kwargs=kwargs, open=True)
        self._own = threading.local()

    def _graph(self):
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.graph import END, START, MessagesState, StateGraph

        if not hasattr(self._own, "graph"):
            made = StateGraph(MessagesState)
            made.add_node("model", lambda _: {"messages": [("ai", self._own.answer)]})
            made.add_edge(START, "model")
            made.add_edge("model", END)
            self._own.graph = made.compile(checkpointer=PostgresSaver(self._pool))
        return self._own.graph

    def prepare(self) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver

        PostgresSaver(self._pool).setup()

    def enter(self, workspaces: list[str]) -> None:  # noqa: ARG002  # all are one
        self._pool.wait()

    @staticmethod
    def _thread(workspace: str, name: str) -> dict[str, object]:
        return {"configurable": {"thread_id": f"{workspace}/{name}"}}

    def append(self, workspace: str, name: str, said: str, answered: str) -> None:
        graph = self._graph()
        self._own.answer = answered
        graph.invoke({"messages": [("human", said)]}, self._thread(workspace, name))

    def load(self, workspace: str, name: str) -> list[str]:
        state = self._graph().get_state(self._thread(workspace, name))
        return [message.content for message in state.values.get("messages", ())]

    def close(self) -> None:
        self._pool.close()


class Agents:
    """openai-agents' SQLAlchemySession on asyncpg, one engine for all sessions. These are kept: a new one for every
    turn would have its statements compiled anew."""

    def __init__(self, url: str, crowd: int) -> None:
        import agents.extensions.memory.sqlalchemy_session  # noqa: F401  # loaded before the clock starts
        from sqlalchemy.ext.asyncio import create_async_engine

        self.facts: Counter[str] = Counter()
        place = url.replace("postgresql://", "postgresql+asyncpg://")
        self._engine = create_async_engine(place, pool_size=crowd, max_overflow=0)
        self._crowd = crowd
        self._sessions: dict[str, object] = {}

    def _session(self, workspace: str, name: str, **options: object):
        from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession

        key = f"{workspace}/{name}"
        if key not in self._sessions:
            self._sessions[key] = SQLAlchemySession(key, engine=self._engine, **options)
        return self._sessions[key]

    async def prepare(self) -> None:
        await self._session("prepared", "", create_tables=True).get_items()

    async def enter(self, workspaces: list[str]) -> None:  # noqa: ARG002  # all are one
        await asyncio.gather(*(self.load("prepared", "") for _ in range(self._crowd)))

    async def append(self, workspace: str, name: str, said: str, answered: str) -> None:
        turn = [{"role": "user", "content": said}, {"role": "assistant", "content": answered}]
        await self._session(workspace, name).add_items(turn)

    async def load(self, workspace: str, name: str) -> list[str]:
        return [item["content"] for item in await self._session(workspace, name).get_items()]

    async def close(self) -> None:
        await self._engine.dispose()


CONTESTANTS = {
    "raw": Raw,
    "raw tasks": RawTasks,
    "ours": Ours,
    "sealed": Sealed,
    "our tasks": OurTasks,
    "langgraph": LangGraph,
    "agents": Agents,
}
PEERS = ("langgraph", "agents")


def works_in_tasks(contestant: Any) -> bool:
    return asyncio.iscoroutinefunction(contestant.append)
