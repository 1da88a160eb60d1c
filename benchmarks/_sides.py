"""The sides of every comparison: hitherto, and the least that SQLite can do with the same promise."""

import asyncio
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import apsw
import orjson
import zstandard  # noqa: F401  # loaded here, as the backend below

from hitherto import Conversation, Key, Message, open_async
from hitherto import open as open_store
from hitherto._engine.bodies import Meta
from hitherto._engine.state import close_meta
from hitherto._engine.workspace import add_description, new_row
from hitherto.aio import AsyncConversation, AsyncStore
from hitherto.backend import CHAT, DONE, Batch, Change
from hitherto.backends.sqlite import SqliteBackend  # noqa: F401  # loaded here, so that `open` is timed without imports
from hitherto.errors import Closed
from hitherto.ids import new_conversation_id

from ._messages import Plain, to_dict, to_message

_CHUNK = 1_000  # messages in one write, below the limit of 10 MB
SEALED_KEY = bytes(range(32))  # of sealed stores, unless a file beside them has another one
_TOUCH = "INSERT INTO conversation VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET active_at = excluded.active_at"


class Side(Protocol):
    """What is measured. A conversation is known by a name."""

    def append(self, name: str, given: list[Plain]) -> None:
        """Keep these messages, durably, in one transaction."""

    def load(self, name: str) -> list[object]:
        """A conversation as a caller gets it."""

    def plain(self, name: str) -> list[Plain]:
        """The same as plain dicts, to compare."""

    def recent(self, limit: int) -> list[str]:
        """Conversations, the most recently active first."""

    def titles(self, limit: int) -> list[str]:
        """What they are called."""

    def fill(self, conversations: int) -> None:
        """Add so many empty conversations."""

    def leave(self) -> None:
        """As a process does that is killed: without the maintenance that closing does."""

    def maintain(self) -> None:
        """Do now what is done behind the writers' backs."""

    def bytes_on_disk(self) -> int:
        """Of the file, with everything in it and nothing beside it."""

    def close(self) -> None: ...


class Raw:
    """One table of (conversation, sequence, JSON), one of conversations by last activity. WAL, synchronous=FULL."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "raw.db")
        self._db = apsw.Connection(self._path)
        self._execute = self._db.execute
        self._turn = threading.Lock()
        self._db.set_busy_timeout(30_000)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            """CREATE TABLE IF NOT EXISTS message (conversation TEXT, seq INTEGER, body BLOB,
                PRIMARY KEY (conversation, seq)) WITHOUT ROWID""",
            "CREATE TABLE IF NOT EXISTS conversation (name TEXT PRIMARY KEY, active_at REAL NOT NULL) WITHOUT ROWID",
            "CREATE INDEX IF NOT EXISTS by_activity ON conversation (active_at)",
        ):
            self._execute(statement).fetchall()

    def append(self, name: str, given: list[Plain]) -> None:
        execute = self._execute
        with self._turn:
            execute("BEGIN IMMEDIATE")
            try:
                found = execute("SELECT max(seq) FROM message WHERE conversation = ?", (name,)).fetchone()[0]
                for seq, message in enumerate(given, 0 if found is None else found + 1):
                    execute("INSERT INTO message VALUES (?, ?, ?)", (name, seq, orjson.dumps(message)))
                execute(_TOUCH, (name, time.time()))
            except BaseException:
                execute("ROLLBACK")
                raise
            execute("COMMIT")

    def load(self, name: str) -> list[Plain]:
        query = "SELECT body FROM message WHERE conversation = ? ORDER BY seq"
        return [orjson.loads(body) for (body,) in self._execute(query, (name,))]

    plain = load

    def recent(self, limit: int) -> list[str]:
        query = "SELECT name FROM conversation ORDER BY active_at DESC LIMIT ?"
        return [name for (name,) in self._execute(query, (limit,))]

    titles = recent  # they have no other

    def fill(self, conversations: int) -> None:
        now = time.time() - conversations
        with self._db:
            rows = ((f"conversation {n:06d}", now + n) for n in range(conversations))
            self._db.executemany("INSERT INTO conversation VALUES (?, ?)", rows)

    def leave(self) -> None:
        self._db.close()

    def maintain(self) -> None:
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def bytes_on_disk(self) -> int:
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return Path(self._path).stat().st_size

    def close(self) -> None:
        self._db.close()


class Ours:
    """hitherto, as its users have it: one `extend` a turn, handles kept."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "hitherto.db")
        self.store = open_store(self._path, key=self._key(folder))
        self._handles: dict[str, Conversation] = {}
        self._fork_points: list[str] = []

    @staticmethod
    def _key(folder: str) -> Key | None:  # noqa: ARG004  # a plain store has none
        return None

    def _handle(self, name: str) -> Conversation:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self.store.ensure(name)
        return handle

    def append(self, name: str, given: list[Plain]) -> None:
        handle = self._handle(name)
        if len(given) <= _CHUNK:
            handle.extend([to_message(message) for message in given], on_conflict="follow")
            return
        for start in range(0, len(given), _CHUNK):
            handle.extend([to_message(message) for message in given[start : start + _CHUNK]], on_conflict="follow")

    def load(self, name: str) -> list[object]:
        return list(self.store.ensure(name).thread())

    def plain(self, name: str) -> list[Plain]:
        return [to_dict(message) for message in self.store.ensure(name).thread()]

    def recent(self, limit: int) -> list[str]:
        return [found.id for found in self.store.conversations(limit=limit).items]

    def titles(self, limit: int) -> list[str]:
        """The same, with what people see of them."""
        return [found.title for found in self.store.conversations(limit=limit).items]

    def fill(self, conversations: int) -> None:
        """Rows as `start` makes them, straight into the backend, many in a commit."""
        now = time.time_ns() // 1_000
        for start in range(0, conversations, 5_000):
            numbers = range(start, min(start + 5_000, conversations))
            batches = [self._filling(f"Conversation {n:06d}", now - (conversations - n) * 1_000_000) for n in numbers]
            if any(outcome != DONE for outcome in self.store.backend.commit(batches)):
                raise RuntimeError("the store could not be filled")

    def _filling(self, title: str, at: int) -> Batch:
        codec = self.store.engine.codec
        row = new_row(codec, new_conversation_id(), CHAT, None, at)
        envelope = codec.first_envelope(row)
        row = add_description(envelope, row, close_meta(envelope, row.id, Meta(title), 1_000))
        return Batch((Change(row.id, None, row),))

    def fork(self, name: str, index: int, given: list[Plain]) -> None:
        """Say something below an earlier message, off the main flow."""
        if not self._fork_points:
            self._fork_points = [message.id for message in self._handle(name).thread()]
        fork = self._handle(name).fork(self._fork_points[index], main=False)
        fork.extend([to_message(message) for message in given])

    def forked(self, name: str, index: int) -> None:
        """The smallest thing a fork can be."""
        self._handle(name).fork(self._fork_points[index], main=False).append(Message.user("?"))

    def names(self) -> list[str]:
        """Of the conversations that were written here."""
        return list(self._handles)

    def find(self, query: str, limit: int, *, ranked: bool) -> int:
        return len(self.store.search(query, limit=limit, order="best" if ranked else "newest"))

    def leave(self) -> None:
        self.store.backend.close()

    def maintain(self) -> None:
        self.store.maintain()

    def bytes_on_disk(self) -> int:
        self.maintain()
        for _ in range(10):
            if self.store.scrub():
                break
            time.sleep(0.05)
        return Path(self._path).stat().st_size

    def close(self) -> None:
        with suppress(Closed):
            self.store.close()


class Sealed(Ours):
    """The same, sealed."""

    @staticmethod
    def _key(folder: str) -> Key | None:
        file = key_file(folder)
        return Key.from_file(file) if file.exists() else Key(SEALED_KEY)


def key_file(folder: str) -> Path:
    """Where the key of a sealed store is kept that is to be changed while others have the store open."""
    return Path(f"{folder}.key")


class Tasks:
    """hitherto through its async facade: tasks of one event loop, handles kept."""

    _key: Key | None = None

    def __init__(self, folder: str) -> None:
        self._loop = asyncio.Runner()
        self._handles: dict[str, AsyncConversation] = {}
        self._store = self._loop.run(self._open(os.path.join(folder, "hitherto.db")))

    async def _open(self, path: str) -> AsyncStore:
        return await open_async(path, key=self._key)

    def write(self, todo: dict[str, list[list[Plain]]]) -> float:
        """Append turns, a task for each conversation: how many a second."""
        return self._loop.run(self._write(todo))

    async def _write(self, todo: dict[str, list[list[Plain]]]) -> float:
        for name in todo:
            if name not in self._handles:
                self._handles[name] = await self._store.ensure(name)
        began = time.perf_counter()
        await asyncio.gather(*(self._append(name, given) for name, given in todo.items()))
        return sum(map(len, todo.values())) / (time.perf_counter() - began)

    async def _append(self, name: str, given: list[list[Plain]]) -> None:
        for turn in given:
            await self._handles[name].extend([to_message(message) for message in turn], on_conflict="follow")

    def plain(self, name: str) -> list[Plain]:
        return [to_dict(message) for message in self._store.sync.ensure(name).thread()]

    def close(self) -> None:
        self._loop.run(self._store.close())
        self._loop.close()


class SealedTasks(Tasks):
    """The same, sealed."""

    _key = Key(SEALED_KEY)


class Words:
    """A bare FTS5 table without content, as the index of ours is: it finds the numbers of messages, no more."""

    def __init__(self, folder: str) -> None:
        self._db = apsw.Connection(os.path.join(folder, "words.db"))
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = NORMAL",
            """CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
                text, content = '', tokenize = "unicode61 remove_diacritics 2")""",
        ):
            self._db.execute(statement).fetchall()

    def put(self, texts: Iterable[str]) -> None:
        """In one transaction."""
        with self._db:
            self._db.executemany("INSERT INTO words (text) VALUES (?)", ((text,) for text in texts))

    def find(self, expression: str, limit: int, *, ranked: bool) -> int:
        by = "rank" if ranked else "rowid DESC"
        query = f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY {by} LIMIT ?"
        return len(self._db.execute(query, (expression, limit)).fetchall())

    def close(self) -> None:
        self._db.close()


SIDES: dict[str, type[Raw] | type[Ours]] = {"raw": Raw, "ours": Ours}
SEALED_SIDES = {**SIDES, "sealed": Sealed}
ALL_SIDES: dict[str, type[Raw] | type[Ours] | type[Tasks] | type[Words]] = {
    **SEALED_SIDES,
    "tasks": Tasks,
    "sealed tasks": SealedTasks,
    "words": Words,
}
