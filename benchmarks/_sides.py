"""The two sides of every comparison: hitherto, and the least that SQLite can do with the same promise."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import apsw
import orjson
import zstandard  # noqa: F401  # the same

from hitherto import Closed, Conversation, Message
from hitherto import open as open_store
from hitherto.backend import DONE, Batch, Change
from hitherto.backends.sqlite import SqliteBackend  # noqa: F401  # loaded here, so that `open` is timed without imports
from hitherto.ids import new_conversation_id

from ._messages import Plain, to_dict, to_message

_CHUNK = 1_000  # messages in one write, below the limit of 10 MB
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

    def fill(self, conversations: int) -> None:
        """Add so many empty conversations."""

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

    def fill(self, conversations: int) -> None:
        now = time.time() - conversations
        with self._db:
            rows = ((f"conversation {n:06d}", now + n) for n in range(conversations))
            self._db.executemany("INSERT INTO conversation VALUES (?, ?)", rows)

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
        self._store = open_store(self._path)
        self._handles: dict[str, Conversation] = {}
        self._fork_points: list[str] = []

    def _handle(self, name: str) -> Conversation:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self._store.ensure(name)
        return handle

    def append(self, name: str, given: list[Plain]) -> None:
        handle = self._handle(name)
        if len(given) <= _CHUNK:
            handle.extend([to_message(message) for message in given], on_conflict="follow")
            return
        for start in range(0, len(given), _CHUNK):
            handle.extend([to_message(message) for message in given[start : start + _CHUNK]], on_conflict="follow")

    def load(self, name: str) -> list[object]:
        return list(self._store.ensure(name).thread())

    def plain(self, name: str) -> list[Plain]:
        return [to_dict(message) for message in self._store.ensure(name).thread()]

    def recent(self, limit: int) -> list[str]:
        return [found.id for found in self._store.conversations(limit=limit).items]

    def fill(self, conversations: int) -> None:
        """Rows like that of a conversation made in the usual way, straight into the backend, many in a commit."""
        from msgspec.structs import replace

        pattern = self._store.backend.lookup(ids=[self._store.start(title="A conversation")._desk.id])[0]
        for start in range(0, conversations, 5_000):
            batches = []
            for n in range(start, min(start + 5_000, conversations)):
                at = pattern.active_at - (conversations - n) * 1_000_000
                row = replace(pattern, id=new_conversation_id(), created_at=at, active_at=at)
                batches.append(Batch((Change(row.id, None, row),)))
            if any(outcome != DONE for outcome in self._store.backend.commit(batches)):
                raise RuntimeError("the store could not be filled")

    def fork(self, name: str, index: int, given: list[Plain]) -> None:
        """Say something below an earlier message, off the main flow."""
        if not self._fork_points:
            self._fork_points = [message.id for message in self._handle(name).thread()]
        fork = self._handle(name).fork(self._fork_points[index], main=False)
        fork.extend([to_message(message) for message in given])

    def forked(self, name: str, index: int) -> None:
        """The smallest thing a fork can be."""
        self._handle(name).fork(self._fork_points[index], main=False).append(Message.user("?"))

    def maintain(self) -> None:
        self._store.maintain()

    def bytes_on_disk(self) -> int:
        self.maintain()
        for _ in range(10):
            if self._store.scrub():
                break
            time.sleep(0.05)
        return Path(self._path).stat().st_size

    def close(self) -> None:
        with suppress(Closed):
            self._store.close()


SIDES: dict[str, type[Raw] | type[Ours]] = {"raw": Raw, "ours": Ours}
