"""The text index in SQLite's FTS5, in a file of its own beside the store, or in memory.

Why it is laid out as it is:

- The words are a contentless table: FTS5 keeps which word stands where in which entry, and no text. An entry's docid is
  its place in time, so newest first is the order in which FTS5 goes through its lists anyway, up to the limit.
- Each workspace has tables of its own, named by its id. A process that missed a reset of the file then finds no table;
  it can never find the table of another workspace.
- `synchronous=NORMAL`: the words and the position are in one transaction, so a power cut takes both back, and the store
  feeds them again.
- Dropping an entry only sets a tombstone; its words stay in the segments of FTS5 until these are merged. `scrub` merges
  until no segment has a tombstone. SQLite has no function for that, so `fts` reads FTS5's own list of its segments.
- The index is never the truth. An unreadable index raises `IndexDamaged`, and `clear` resets the file in place, because
  other processes may have it open. Only our own file is reset (`_check_own`): it has our application id, or nothing in
  it. Another file under that name may be the only copy of its content.

Settings, by measurement: batches of 256 to 1,024 entries, `automerge=8` (faster than 4 when filling, and no
slower to search), pages of FTS5's usual size, no index of prefixes (it would make the whole much larger; without it
only prefixes of one or two letters are slow).
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import apsw

from ..._search.query import Query, words
from ..._system import forks, own_files
from ...errors import Closed, Damaged, HithertoError, InvalidQuery, NotAStore, StorageError, StorageFull
from ...textindex import Entry, Found, IndexDamaged, Known
from .connections import Pool, empty_wal, ensure_wal, transaction, view
from .disk_space import shrink_files, sparing_writes
from .erasure import vacuum
from .files import map_error
from .fts_file import APPLICATION_ID, FOREIGN, FORMAT, HINT, is_own, look_at, open_raw, prepare, remove_index, wipe

_SMALLEST_DATABASE = 512  # bytes; SQLite would take a shorter file for an empty one
_SLICE = 256  # pages of FTS5 that one step of a merge may write: about 10 ms
_FEW = 32  # conversations: with so few, it pays to look up where they begin and end
_FREED = 512  # pages that one step returns
_RATE = 64 << 20  # bytes that VACUUM rewrites in a second, at least
_BY_FORCE = 1 << 40  # counted as dropped when free pages were not overwritten

# The file has wrong content, or lacks some. Our statements are always the same, so an error in one of them is the
# fault of the file.
_BROKEN = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.SQLError,
    apsw.MismatchError,
    apsw.ConstraintError,
    apsw.TooBigError,
    apsw.FormatError,
)

_T = TypeVar("_T")
_Work = Callable[[apsw.Connection], _T]


class FtsIndex:
    """The words of one workspace. `was_reset` says that an unusable index was reset, or that the index was cleared: the
    store has to feed it from the beginning."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        workspace: bytes,
        *,
        vfs: str | None = None,
        timeout_seconds: float = 30.0,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`make_room` is called on a full disk, before all words are removed from the file."""
        self.was_reset = False
        self._make_room = make_room
        self._workspace = workspace
        self._timeout_seconds = timeout_seconds
        self._vfs = vfs
        name = workspace.hex()
        self._words, self._entry, self._conversation = f"words_{name}", f"entry_{name}", f"conversation_{name}"
        self._chosen = (
            f"SELECT place FROM {self._conversation} WHERE id IN (SELECT unhex(value) FROM json_each(:conversations))"
        )
        self._path: str | None = None
        self._known_file: tuple[int, int] | None = None  # the file that was verified to be ours
        self._scrubbing = threading.Lock()
        self._pool: Pool | _Memory
        if path is None:
            self._pool = _Memory()
            self._run(self._ensure)
        else:
            self._path = os.path.abspath(path)
            self._open(self._path)

    # -- opening, and beginning again

    def _open(self, path: str) -> None:
        self._pool = self._new_pool(path, prepare)
        try:
            self._run(self._ensure)
        except IndexDamaged:
            self._begin_again(path)
        except BaseException:
            self._pool.close()
            raise

    def _new_pool(
        self, path: str, prepare: Callable[[apsw.Connection], None], timeout_seconds: float | None = None
    ) -> Pool:
        self._check_own(path)
        patience = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        pool = Pool(path, prepare, vfs=self._vfs, timeout_seconds=patience)
        if self._known_file is None:  # the pool has created it
            self._known_file = own_files.identify(os.lstat(path))
        return pool

    def _check_own(self, path: str) -> None:
        """Raise for a foreign file. A missing file, or one of ours, damaged or not, passes.

        A file that is too short for SQLite to notice the damage is emptied."""
        found = own_files.examine(path, own_files.trusted_owners(path.removesuffix("-search")))
        if found is None:
            self._known_file = None
            return
        with open_raw(path, found.st_size, self._vfs) as file:
            if own_files.identify(found) != self._known_file and not is_own(file):
                raise NotAStore(f"{path} is not a search index", hint=FOREIGN)
            self._known_file = own_files.identify(found)
            if 0 < file.size < _SMALLEST_DATABASE:
                file.truncate()
                self.was_reset = True

    def _ensure(self, connection: apsw.Connection) -> None:
        """Create missing tables."""
        if self._path is not None:
            with view(connection):
                is_ours = look_at(connection)
            if not is_ours:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()  # only an empty file can choose it
            ensure_wal(connection, self._timeout_seconds)
        made = f"SELECT count(*) FROM sqlite_schema WHERE name IN ('{self._words}', 'hitherto_search')"
        if _value(connection, made) == 2 and self._has_row(connection):
            return
        with transaction(connection):
            self._make(connection)

    def _has_row(self, connection: apsw.Connection) -> bool:
        query = "SELECT count(*) FROM hitherto_search WHERE workspace = ?"
        return bool(_value(connection, query, (self._workspace,)))

    def _make(self, connection: apsw.Connection) -> None:
        statements = (
            """CREATE TABLE IF NOT EXISTS hitherto_search (
                workspace BLOB PRIMARY KEY,
                stamp INTEGER NOT NULL,
                position BLOB,
                dropped INTEGER NOT NULL,
                scrubbed INTEGER NOT NULL
            ) STRICT""",
            f"""CREATE TABLE IF NOT EXISTS {self._conversation} (
                place INTEGER PRIMARY KEY,
                id BLOB NOT NULL UNIQUE,
                created_at INTEGER,
                rewrites INTEGER,
                next_seq INTEGER
            ) STRICT""",
            f"""CREATE TABLE IF NOT EXISTS {self._entry} (
                docid INTEGER PRIMARY KEY,
                number INTEGER NOT NULL UNIQUE,
                conversation INTEGER NOT NULL,
                revision INTEGER NOT NULL,
                role TEXT NOT NULL,
                created_at INTEGER NOT NULL
            ) STRICT""",
            f"CREATE INDEX IF NOT EXISTS {self._entry}_by_conversation ON {self._entry} (conversation)",
            f"""CREATE VIRTUAL TABLE IF NOT EXISTS {self._words} USING fts5(
                text, content = '', contentless_delete = 1,
                tokenize = "unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
            )""",
        )
        for statement in statements:
            connection.execute(statement)
        for name, value in (("automerge", 8), ("usermerge", 2)):
            connection.execute(f"INSERT INTO {self._words} ({self._words}, rank) VALUES (?, ?)", (name, value))
        query = "INSERT OR IGNORE INTO hitherto_search VALUES (?, ?, NULL, 0, 0)"
        # It starts at a random number, so it never has a value from before the index was cleared.
        connection.execute(query, (self._workspace, int.from_bytes(os.urandom(7), "big")))
        if self._path is not None:
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", FORMAT)

    def clear(self) -> None:
        """Delete all entries. A damaged file is reset as a whole."""
        self.was_reset = True
        try:
            if self._run(self._drop_tables):
                return
        except StorageFull:
            if self._path is None:
                raise
            self._run(self._drop_by_force)
            return
        except IndexDamaged:
            if self._path is None:
                raise
        assert self._path is not None
        self._begin_again(self._path)

    def _drop_by_force(self, connection: apsw.Connection) -> None:
        """Delete all entries on a full disk.

        The words stay on free pages until the last of these is returned to the disk; `scrub` continues that."""
        self._make_room()
        with sparing_writes(connection):
            self._drop_tables(connection, _BY_FORCE)
            shrink_files(connection, str(self._path), self._timeout_seconds)

    def _drop_tables(self, connection: apsw.Connection, count: int = 1) -> bool:
        """Drop and create our tables. False if that did not help."""
        with transaction(connection):
            for table in (self._words, self._entry, self._conversation):
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            connection.execute("DELETE FROM hitherto_search WHERE workspace = ?", (self._workspace,))
            self._make(connection)
            self._note_dropped(connection, count)
        return bool(_value(connection, "PRAGMA quick_check(1)") == "ok")

    def _note_dropped(self, connection: apsw.Connection, count: int = 1) -> None:
        """Record that removed words are still in the WAL, so that the next scrub empties it."""
        query = "UPDATE hitherto_search SET dropped = dropped + ? WHERE workspace = ?"
        connection.execute(query, (count, self._workspace))

    def keep_only(self, workspaces: Collection[bytes]) -> None:
        """Drop the tables of all other workspaces: an earlier store may have had the same path."""

        def strangers(connection: apsw.Connection) -> list[bytes]:
            found = _all(connection, "SELECT workspace FROM hitherto_search")
            return [_bytes(id) for (id,) in found if id not in workspaces]

        def work(connection: apsw.Connection) -> None:
            with transaction(connection):
                for id in strangers(connection):
                    for table in ("words", "entry", "conversation"):
                        connection.execute(f"DROP TABLE IF EXISTS {table}_{id.hex()}")
                    connection.execute("DELETE FROM hitherto_search WHERE workspace = ?", (id,))
                self._note_dropped(connection)

        if self._run(strangers):
            self._run(work)
            self.scrub(seconds=0.5)

    def _begin_again(self, path: str) -> None:
        """Replace the file by an empty database: in place if no other process has it open, else under the same name.

        A file that SQLite cannot open at all is also replaced under the same name."""
        self.was_reset = True
        pool = self._pool
        assert isinstance(pool, Pool)
        with contextlib.suppress(HithertoError):  # closing tries to checkpoint the WAL into a file that may be damaged
            pool.close_idle()
        try:
            self._reset(path)
            self._run(self._ensure)
        except (Damaged, StorageError) as error:
            if not isinstance(error.__cause__, (*_BROKEN, apsw.BusyError)):
                raise
            with contextlib.suppress(HithertoError):
                pool.close()
            remove_index(path, known=self._known_file)
            self._pool = self._new_pool(path, prepare)
            self._run(self._ensure)

    def _reset(self, path: str) -> None:
        """Reset the file through a connection that runs no checks."""
        resetting = self._new_pool(path, wipe, timeout_seconds=min(1.0, self._timeout_seconds))
        try:
            with resetting.lease():
                pass
        finally:
            with contextlib.suppress(HithertoError):
                resetting.close()

    def close(self) -> None:
        self._pool.close()

    def _run(self, work: _Work[_T]) -> _T:
        """Run work on a connection; errors that show damage become `IndexDamaged`."""
        try:
            with self._pool.lease() as connection:
                try:
                    try:
                        return work(connection)
                    except apsw.SQLError:  # another process may be resetting the file: then the tables are missing
                        self._ensure(connection)
                        return work(connection)
                except _BROKEN as error:
                    raise IndexDamaged(f"{self._path} is damaged ({type(error).__name__})", hint=HINT) from error
        except (Damaged, StorageError) as error:
            cause = error.__cause__
            if isinstance(cause, _BROKEN) and not isinstance(error, IndexDamaged):  # from opening the connection
                raise IndexDamaged(f"{self._path} is damaged ({type(cause).__name__})", hint=HINT) from cause
            raise

    # -- writing

    def update(
        self,
        stamp: int,
        *,
        put: Sequence[Entry] = (),
        drop: Sequence[int] = (),
        known: Sequence[Known] = (),
        forget: Sequence[bytes] = (),
        position: bytes | None = None,
    ) -> int | None:
        """Apply the whole update in one transaction, or nothing if the stamp has moved."""
        ready = {entry.number: (entry, words(entry.text)) for entry in put}  # before the lock is taken
        change = (
            "UPDATE hitherto_search SET stamp = stamp + 1, position = coalesce(?, position) "
            "WHERE workspace = ? AND stamp = ? RETURNING stamp"
        )

        def work(connection: apsw.Connection) -> int | None:
            with transaction(connection):
                found = _integers(_all(connection, change, (position, self._workspace, stamp)))
                if not found:
                    return None
                dropped = sum(self._forget(connection, conversation) for conversation in forget)
                dropped += self._drop(connection, drop)
                dropped += self._put(connection, ready)
                for one in known:
                    self._note(connection, one)
                if dropped:
                    query = "UPDATE hitherto_search SET dropped = dropped + ? WHERE workspace = ?"
                    connection.execute(query, (dropped, self._workspace))
                return int(found[0][0])

        return self._run(work)

    def _forget(self, connection: apsw.Connection, conversation: bytes) -> int:
        for (place,) in _all(connection, f"SELECT place FROM {self._conversation} WHERE id = ?", (conversation,)):
            inside = f"SELECT docid FROM {self._entry} WHERE conversation = ?"
            connection.execute(f"DELETE FROM {self._words} WHERE rowid IN ({inside})", (place,))
            connection.execute(f"DELETE FROM {self._entry} WHERE conversation = ?", (place,))
            dropped = connection.changes()
            connection.execute(f"DELETE FROM {self._conversation} WHERE place = ?", (place,))
            return dropped
        return 0

    def _drop(self, connection: apsw.Connection, numbers: Sequence[int]) -> int:
        docids = self._docids(connection, numbers).values()
        connection.executemany(f"DELETE FROM {self._words} WHERE rowid = ?", [(docid,) for docid in docids])
        connection.executemany(f"DELETE FROM {self._entry} WHERE docid = ?", [(docid,) for docid in docids])
        return len(docids)

    def _put(self, connection: apsw.Connection, entries: dict[int, tuple[Entry, str]]) -> int:
        """Write these entries, and return how many existed already."""
        if not entries:
            return 0
        there = self._docids(connection, list(entries))
        places = self._places(connection, {entry.conversation for entry, _ in entries.values()})
        connection.executemany(f"DELETE FROM {self._words} WHERE rowid = ?", [(docid,) for docid in there.values()])
        next = _value(connection, f"SELECT coalesce(max(docid), 0) + 1 FROM {self._entry}")
        texts: list[tuple[int, str]] = []
        rows: list[tuple[int, int, int, int, str, int]] = []
        for number, (entry, text) in entries.items():
            docid = there.get(number, next)
            next += docid == next
            texts.append((docid, text))
            place = places[entry.conversation]
            rows.append((docid, number, place, entry.revision, entry.role, entry.created_at))
        texts.sort()  # FTS5 inserts fastest in the order of docids
        connection.executemany(f"INSERT OR REPLACE INTO {self._entry} VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.executemany(f"INSERT INTO {self._words} (rowid, text) VALUES (?, ?)", texts)
        return len(there)

    def _docids(self, connection: apsw.Connection, numbers: Sequence[int]) -> dict[int, int]:
        if not numbers:
            return {}
        query = f"SELECT number, docid FROM {self._entry} WHERE number IN (SELECT value FROM json_each(?))"
        return dict(_integers(_all(connection, query, (json.dumps(list(numbers)),))))

    def _places(self, connection: apsw.Connection, conversations: set[bytes]) -> dict[bytes, int]:
        places: dict[bytes, int] = {}
        for id in conversations:
            connection.execute(f"INSERT OR IGNORE INTO {self._conversation} (id) VALUES (?)", (id,))
            places[id] = _value(connection, f"SELECT place FROM {self._conversation} WHERE id = ?", (id,))
        return places

    def _note(self, connection: apsw.Connection, known: Known) -> None:
        query = (
            f"INSERT INTO {self._conversation} (id, created_at, rewrites, next_seq) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET "
            "created_at = excluded.created_at, rewrites = excluded.rewrites, next_seq = excluded.next_seq"
        )
        connection.execute(query, (known.conversation, known.created_at, known.rewrites, known.next_seq))

    # -- reading

    def state(self) -> tuple[int, bytes | None]:
        query = "SELECT stamp, position FROM hitherto_search WHERE workspace = ?"
        found = self._run(lambda connection: _all(connection, query, (self._workspace,)) or self._no_row())
        stamp, position = _integers(found, only_first=True)[0]
        return stamp, None if position is None else _bytes(position)

    def _no_row(self) -> list[tuple[Any, ...]]:
        raise apsw.SQLError("no row")  # the caller creates the tables and asks again

    def known(self, conversation: bytes) -> Known | None:
        query = f"SELECT created_at, rewrites, next_seq FROM {self._conversation} WHERE id = ? AND next_seq IS NOT NULL"
        for found in _integers(self._run(lambda connection: _all(connection, query, (conversation,)))):
            return Known(conversation, *found)
        return None

    def conversations(self) -> list[bytes]:
        query = f"SELECT id FROM {self._conversation}"
        return [_bytes(id) for (id,) in self._run(lambda connection: _all(connection, query))]

    def holds(self, conversation: bytes) -> dict[int, int]:
        query = (
            f"SELECT number, revision FROM {self._entry} "
            f"WHERE conversation = (SELECT place FROM {self._conversation} WHERE id = ?)"
        )
        return dict(_integers(self._run(lambda connection: _all(connection, query, (conversation,)))))

    def find(
        self,
        query: Query,
        *,
        limit: int,
        ranked: bool = False,
        role: str | None = None,
        conversations: Sequence[bytes] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[Found]:
        """Return the messages that match: newest first, or best first."""
        conditions = {
            "role": "e.role = :role",
            "since": "e.created_at >= :since",
            "until": "e.created_at < :until",
            "conversations": f"e.conversation IN ({self._chosen})",
        }
        ids = None if conversations is None else json.dumps([id.hex() for id in conversations])
        given: dict[str, str | int | None] = {"role": role, "since": since, "until": until, "conversations": ids}
        where = [condition for name, condition in conditions.items() if given[name] is not None]
        if conversations is not None and len(conversations) <= _FEW:
            inside = f"FROM {self._entry} WHERE conversation IN ({self._chosen})"
            where.append(f"w.rowid BETWEEN (SELECT min(docid) {inside}) AND (SELECT max(docid) {inside})")
        # CROSS keeps the order of the tables: FTS5 leads, in its own order, and stops when the limit is reached.
        statement = (
            f"SELECT e.number, c.id, {'-w.rank' if ranked else '0.0'} FROM {self._words} (:expression) w "
            f"CROSS JOIN {self._entry} e ON e.docid = w.rowid "
            f"CROSS JOIN {self._conversation} c ON c.place = e.conversation "
            f"{'WHERE ' + ' AND '.join(where) if where else ''} "
            f"ORDER BY {'w.rank' if ranked else 'w.rowid DESC'} LIMIT :limit"
        )
        values = {**given, "expression": query.expression, "limit": limit}
        found = self._run(lambda connection: _matching(connection, statement, values))
        return [Found(number, _bytes(id), float(score)) for number, id, score in found]

    # -- care

    def scrub(self, seconds: float | None = None, *, rebuild: bool = True) -> bool:
        """Merge until no segment has words of what is gone, let SQLite write the file anew, and empty the WAL. Without
        `rebuild`, a file for which there is not enough time is left to another call. Two threads that scrub at once
        would make each other fail, so the second one waits and finds the work done."""
        if not self._scrubbing.acquire(timeout=-1 if seconds is None else seconds):
            return False
        try:
            return self._scrub(seconds, rebuild)
        finally:
            self._scrubbing.release()

    def _scrub(self, seconds: float | None, rebuild: bool) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        query = "SELECT dropped, scrubbed FROM hitherto_search WHERE workspace = ?"
        ((dropped, scrubbed),) = self._run(lambda connection: _all(connection, query, (self._workspace,))) or [(0, 0)]
        if dropped == scrubbed:
            return True
        give_back = self._give_back_some if dropped - scrubbed < _BY_FORCE else self._give_back_all
        for step in (self._merge_some, give_back):
            while not self._run(step):
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        if isinstance(self._pool, Pool):
            if not rebuild and self.size() > _RATE * (seconds or 0.0):
                return False
            if not self._is_rebuilt(self._pool):
                return False

        def done(connection: apsw.Connection) -> None:
            query = "UPDATE hitherto_search SET scrubbed = max(scrubbed, ?1) WHERE workspace = ?2 AND dropped >= ?1"
            connection.execute(query, (dropped, self._workspace)).fetchall()  # not what was dropped meanwhile

        self._run(done)
        return True

    def _is_rebuilt(self, pool: Pool) -> bool:
        """Remove the copies that SQLite left on pages in use, as `erasure` does in the store."""
        emptied = self._run(lambda connection: empty_wal(connection, self._timeout_seconds))  # frees space
        if not emptied or not self._run(lambda _: vacuum(pool)):
            return False
        return self._run(lambda connection: empty_wal(connection, self._timeout_seconds))

    def _merge_some(self, connection: apsw.Connection) -> bool:
        """Run one step of a merge. True if nothing is left to merge.

        A negative number begins a merge of everything with everything; a positive one goes on with what was begun, and
        does not start over when other processes add to the index meanwhile."""
        with transaction(connection):
            merging, marked = self._segments(connection)
            if not merging and not marked:
                return True
            if not merging or not self._merge(connection, _SLICE):
                self._merge(connection, -_SLICE)
            return not any(self._segments(connection))

    def _merge(self, connection: apsw.Connection, pages: int) -> bool:
        """Run one merge command. True if it had work to do."""
        before = connection.total_changes()
        connection.execute(f"INSERT INTO {self._words} ({self._words}, rank) VALUES ('merge', ?)", (pages,))
        return connection.total_changes() - before >= 2

    def _segments(self, connection: apsw.Connection) -> tuple[bool, bool]:
        """Tell whether a merge is in progress, and whether any segment has tombstones."""
        record = _value(connection, f"SELECT block FROM {self._words}_data WHERE id = 10")
        return _structure(_bytes(record))

    def _give_back_some(self, connection: apsw.Connection) -> bool:
        """Return some free pages to the file system. A tenth of the file stays free for new entries."""
        free, pages = connection.pragma("freelist_count"), connection.pragma("page_count")
        if self._path is None or free <= pages // 10:
            return True
        connection.execute(f"PRAGMA incremental_vacuum({min(_FREED, free - pages // 10)})").fetchall()
        return bool(connection.pragma("freelist_count") >= free)

    def _give_back_all(self, connection: apsw.Connection) -> bool:
        """Return some free pages to the file system, until none is left: they hold words."""
        free = connection.pragma("freelist_count")
        connection.execute(f"PRAGMA incremental_vacuum({_FREED})").fetchall()
        return bool(connection.pragma("freelist_count") in (0, free))

    def size(self) -> int:
        if self._path is None:
            return self._run(lambda connection: int(connection.pragma("page_count") * connection.pragma("page_size")))
        files = (f"{self._path}{suffix}" for suffix in ("", "-wal"))
        return sum(os.path.getsize(file) for file in files if os.path.exists(file))


class _Memory:
    """The only connection to a database in memory, leased to one thread at a time."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._lock = threading.Lock()
        self._forks = forks.count()
        self._closed = False

    def lease(self) -> AbstractContextManager[apsw.Connection]:
        return self._lease()

    @contextmanager
    def _lease(self) -> Iterator[apsw.Connection]:
        if self._forks != forks.count():
            raise Closed("the index was opened before os.fork, in another process")
        with self._lock:
            if self._closed:
                raise Closed("the index is closed")
            try:
                yield self._connection
            except apsw.Error as error:
                raise map_error(error, ":memory:") from error

    def close(self) -> None:
        if self._forks == forks.count():
            with self._lock:
                self._closed = True
                self._connection.close()


def _all(connection: apsw.Connection, query: str, values: Sequence[str | bytes | int | None] = ()) -> list[Any]:
    return connection.execute(query, values).fetchall()


def _value(connection: apsw.Connection, query: str, values: Sequence[str | bytes | int | None] = ()) -> Any:
    for row in connection.execute(query, values).fetchall():
        return row[0]
    raise apsw.SQLError("a row is missing")


def _matching(connection: apsw.Connection, statement: str, values: dict[str, str | int | None]) -> list[Any]:
    try:
        return _integers(connection.execute(statement, values).fetchall(), only_first=True)
    except apsw.SQLError as error:
        if str(error).startswith(
            ("fts5", "unterminated string", "unknown special query")
        ):  # messages about an expression, never about a file
            raise InvalidQuery("this is not a query that FTS5 understands") from None
        raise


def _integers(rows: list[Any], *, only_first: bool = False) -> list[Any]:
    """Return the rows if all values are integers, else raise: one flipped bit can change a type."""
    for row in rows:
        for value in row[:1] if only_first else row:
            if type(value) is not int:
                raise IndexDamaged("the index holds something that is no number", hint=HINT)
    return rows


def _bytes(value: object) -> bytes:
    if type(value) is not bytes:
        raise IndexDamaged("the index holds something that is no bytes", hint=HINT)
    return value


def _structure(record: bytes) -> tuple[bool, bool]:
    """Parse the list of segments of FTS5: is a merge in progress, and has any segment tombstones?

    A cookie, the mark of the second version (the one with tombstones), and variable-length integers: levels, segments,
    a counter; then for every level how many of its segments are being merged and how many there are; for each of these
    its id, first and last page, first and last origin, and its tombstones: pages of them, entries, and all entries."""
    if record[4:8] != b"\xff\x00\x00\x01":
        raise IndexDamaged("FTS5's list of segments has another format", hint=HINT)
    numbers = _varints(record[8:])
    merging = marked = False
    try:
        levels, _, _ = next(numbers), next(numbers), next(numbers)
        for _ in range(levels):
            merging |= next(numbers) > 0
            for _ in range(next(numbers)):
                segment = [next(numbers) for _ in range(8)]
                marked |= segment[5] > 0 or segment[6] > 0
    except StopIteration:
        raise IndexDamaged("FTS5's list of segments is cut off", hint=HINT) from None
    return merging, marked


def _varints(data: bytes) -> Iterator[int]:
    """Decode SQLite's integers of one to nine bytes: seven bits in each, and the high bit means that more follow."""
    value = length = 0
    for byte in data:
        length += 1
        if length == 9:
            yield value << 8 | byte
        elif byte & 0x80:
            value = value << 7 | byte & 0x7F
            continue
        else:
            yield value << 7 | byte
        value = length = 0
