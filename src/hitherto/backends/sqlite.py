"""The backend in one SQLite file, through apsw.

Why it is laid out as it is, each by measurement (`make bench`):

- A message's rowid is its number (with the workspace in the high bits). Numbers come in runs along a branch, so reading a path is
  one range read per run, and finding a message by its id needs no index. The only index on messages is (conversation, seq).
- WAL with `synchronous=FULL`: a commit returns after its frames are on the disk. `NORMAL` loses acknowledged messages in a power
  cut; the tests show it on a simulated disk.
- `BEGIN IMMEDIATE` and a busy handler that sleeps a random fraction of a millisecond or two: writers of several processes take
  turns fairly instead of starving each other.
- `secure_delete` overwrites what is deleted; `auto_vacuum=INCREMENTAL` lets maintenance give pages back (it can only be chosen
  when the file is made). The file and its directory are private from the first byte on.

apsw runs statements lazily: `execute("PRAGMA a; PRAGMA b")` stops at the first row. So it is one statement per call, and a test
reads every pragma back.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from ..backend import (
    DONE,
    Batch,
    Change,
    ConversationRow,
    Info,
    ItemRow,
    MessageRow,
    Outcome,
    Position,
    Stale,
    Tag,
    Taken,
    Where,
)
from ..errors import (
    Busy,
    CannotOpen,
    Closed,
    CommitUnknown,
    Damaged,
    HithertoError,
    NewerFormat,
    NotAStore,
    ReadOnly,
    StorageError,
    StorageFull,
)
from ..ids import RUN, new_conversation_id
from ._schema import APPLICATION_ID, MIGRATIONS

_WORKSPACE_BITS = 47  # numbers stay below 2**47; the workspace's own integer lies above
_CHUNK = 400  # parameters in one IN (…), well below SQLite's limit

_CONVERSATION = (
    "id, kind, key, version, token, generation, head, tips, next_seq, count, size, removals, created_at, active_at, expires_at, "
    "held, data_key, meta, proof"
)
# The fields of MessageRow in their order; the first two parameters are the workspace's base and the conversation's id.
_MESSAGE = "number - ?, ?, seq, parent, link, main, role, revision, created_at, key, token, size, body"
_HEADER = _MESSAGE.replace("body", "NULL")
_JOINED = "m.number - ?, c.id, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, m.key, m.token, m.size, m.body"
_JOINED_HEADER = _JOINED.replace("m.body", "NULL")

_pack = msgspec.msgpack.Encoder().encode
_unpack_tips = msgspec.msgpack.Decoder(tuple[int, ...]).decode

_T = TypeVar("_T")

# Connections that os.fork copied into a child. SQLite must neither use nor close them there, so the child keeps them for ever.
_inherited: list[object] = []
_process = [0]


def _after_fork() -> None:
    _process[0] += 1


os.register_at_fork(after_in_child=_after_fork)


class SqliteBackend:
    """One workspace of one SQLite file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        workspace: str = "default",
        vfs: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._path = Path(path).absolute()
        self._vfs = vfs
        self._timeout = timeout_seconds
        self._process = _process[0]
        self._idle: list[apsw.Connection] = []
        self._closed = False
        self._lock = threading.Lock()
        _make_private(self._path)
        with self._mapped():
            first = self._connect()
            try:
                self._migrate(first)
                self._workspace, workspace_id = _ensure_workspace(first, workspace)
            except BaseException:
                first.close()
                raise
        self._base = self._workspace << _WORKSPACE_BITS
        self._idle.append(first)
        self.info = Info(name="sqlite", workspace=workspace_id, location=str(self._path), durable=True)

    # -- connections

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(str(self._path), flags=flags, vfs=self._vfs)
        try:
            connection.set_busy_handler(_patience(self._timeout))
            for pragma in PER_CONNECTION:
                connection.execute(f"PRAGMA {pragma}").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _connection(self) -> Iterator[apsw.Connection]:
        """A connection that nobody else uses meanwhile. One thread alone keeps using the same one."""
        if self._closed or self._process != _process[0]:
            raise self._gone()
        try:
            connection = self._idle.pop()
        except IndexError:
            with self._mapped():
                connection = self._connect()
        try:
            yield connection
        except apsw.Error as error:
            raise _translated(error, self._path) from error
        finally:
            self._idle.append(connection)
            if self._closed:
                self._close_idle()

    def _gone(self) -> Closed:
        if self._closed:
            return Closed("the store is closed")
        _inherited.append(self._idle)
        return Closed("the store was opened before os.fork, in another process")

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise _translated(error, self._path) from error

    def close(self) -> None:
        self._closed = True
        if self._process == _process[0]:
            self._close_idle()
        else:
            _inherited.append(self._idle)

    def _close_idle(self) -> None:
        with self._lock, self._mapped():
            while self._idle:
                self._idle.pop().close()

    # -- schema

    def _migrate(self, connection: apsw.Connection) -> None:
        """Bring the file to the newest version, each step in one transaction with its record."""
        if self._check_ours(connection) == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()  # only an empty file can choose it
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        while connection.pragma("user_version") < len(MIGRATIONS):
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = self._check_ours(connection)  # another process may have been faster
                if version < len(MIGRATIONS):
                    name, statements = MIGRATIONS[version]
                    for statement in statements:
                        connection.execute(statement)
                    connection.execute(
                        "INSERT INTO migration VALUES (?, ?, ?)", (version + 1, name, time.time_ns() // 1000)
                    )
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", version + 1)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _check_ours(self, connection: apsw.Connection) -> int:
        """The schema version of a file that is ours; 0 for an empty one."""
        application, version = connection.pragma("application_id"), connection.pragma("user_version")
        if application != APPLICATION_ID:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if application or version or tables:
                raise NotAStore(f"{self._path} is a SQLite database of another program")
        elif version > len(MIGRATIONS):
            raise NewerFormat(
                f"{self._path} has format {version}; this version of hitherto knows up to {len(MIGRATIONS)}"
            )
        return int(version)

    # -- writing

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        with self._connection() as connection:
            execute = connection.execute
            execute("BEGIN IMMEDIATE")
            try:
                outcomes = [self._commit_one(connection, batch) for batch in batches]
            except BaseException:
                if connection.in_transaction:
                    execute("ROLLBACK")
                raise
            try:
                execute("COMMIT" if DONE in outcomes else "ROLLBACK")
            except apsw.Error as error:
                if connection.in_transaction:
                    execute("ROLLBACK")
                raise CommitUnknown(f"the commit was interrupted ({error})") from _translated(error, self._path)
            return outcomes

    def _commit_one(self, connection: apsw.Connection, batch: Batch) -> Outcome:
        for id, version in batch.require:
            row = self._row(connection, id)
            if row is None or row.version != version:
                return Stale(id, row)
        places = []
        for change in batch.changes:
            place = self._problem(connection, change)
            if not isinstance(place, int):
                return place
            places.append(place)
        for place, change in zip(places, batch.changes, strict=True):
            self._apply(connection, change, place)
        return DONE

    def _problem(self, connection: apsw.Connection, change: Change) -> int | Outcome:
        """The conversation's place if the change may be applied (0 if it is new), else what is in the way."""
        execute = connection.execute
        found = execute(
            "SELECT place, version FROM conversation WHERE id = ? AND workspace = ?",
            (change.conversation, self._workspace),
        ).fetchone()
        if change.expect == 0:
            if found is not None:
                return Taken("id", change.conversation)
            if change.row is not None and change.row.key is not None:
                for other in self._by_key(connection, change.row.kind, change.row.key):
                    return Taken("key", other.id)
        elif found is None or found[1] != change.expect:
            return Stale(change.conversation, self._row(connection, change.conversation))
        place: int = found[0] if found else 0
        for message in change.add:
            number = self._base + message.number
            if (
                message.number % RUN == 0
                and execute(
                    "SELECT 1 FROM message WHERE number BETWEEN ? AND ? LIMIT 1", (number, number + RUN - 1)
                ).fetchone()
            ):
                return Taken("number", change.conversation)
            if (
                message.key is not None
                and execute("SELECT 1 FROM message WHERE conversation = ? AND key = ?", (place, message.key)).fetchone()
            ):
                return Taken("message key", change.conversation)
        return place

    def _apply(self, connection: apsw.Connection, change: Change, place: int) -> None:
        execute = connection.execute
        row = change.row
        if row is None:
            for table in ("tag", "item", "message"):
                execute(f"DELETE FROM {table} WHERE conversation = ?", (place,))
            execute("DELETE FROM conversation WHERE place = ?", (place,))
            return
        if change.expect == 0:
            execute(_INSERT_CONVERSATION, (self._workspace, *_conversation_values(row)))
            place = connection.last_insert_rowid()
        else:
            execute(_UPDATE_CONVERSATION, (*_conversation_values(row)[3:], place))
        if change.drop:
            for number in change.drop:
                execute("DELETE FROM message WHERE number = ?", (self._base + number,))
                execute("DELETE FROM tag WHERE conversation = ? AND message = ?", (place, number))
        base = self._base
        for some in _chunks(change.add, 16):
            values: list[object] = []
            for m in some:
                values += (
                    base + m.number, place, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, m.key, m.token, m.size, m.body,
                )  # fmt: skip
            execute(_INSERT_MESSAGES[len(some)], values)  # type: ignore[arg-type]  # a list of SQLite values
        for m in change.amend:
            execute(
                "UPDATE message SET seq = ?, parent = ?, link = ?, main = ?, role = ?, revision = ?, created_at = ?, key = ?, token = ?, size = ?, body = ? "
                "WHERE number = ? AND conversation = ?",
                (
                    m.seq,
                    m.parent,
                    m.link,
                    m.main,
                    m.role,
                    m.revision,
                    m.created_at,
                    m.key,
                    m.token,
                    m.size,
                    m.body,
                    base + m.number,
                    place,
                ),
            )
        for item in change.put:
            execute(
                "INSERT OR REPLACE INTO item (conversation, key, revision, body) VALUES (?, ?, ?, ?)",
                (place, item.key, item.revision, item.body),
            )
        for key in change.unput:
            execute("DELETE FROM item WHERE conversation = ? AND key = ?", (place, key))
        for tag in change.untag:
            execute(
                "DELETE FROM tag WHERE workspace = ? AND value = ? AND conversation = ? AND message = ?",
                self._tag_values(tag, place),
            )
        for tag in change.tag:
            execute(
                "INSERT OR IGNORE INTO tag (workspace, value, conversation, message) VALUES (?, ?, ?, ?)",
                self._tag_values(tag, place),
            )

    def _tag_values(self, tag: Tag, place: int) -> tuple[int, bytes, int, int]:
        return self._workspace, tag.value, place, -1 if tag.message is None else tag.message

    # -- reading

    def _row(self, connection: apsw.Connection, id: bytes) -> ConversationRow | None:
        found = connection.execute(
            f"SELECT {_CONVERSATION} FROM conversation WHERE id = ? AND workspace = ?", (id, self._workspace)
        ).fetchone()
        return None if found is None else _conversation(found)

    def _by_key(self, connection: apsw.Connection, kind: str, key: bytes) -> list[ConversationRow]:
        query = f"SELECT {_CONVERSATION} FROM conversation WHERE workspace = ? AND kind = ? AND key = ?"
        return [_conversation(found) for found in connection.execute(query, (self._workspace, kind, key)).fetchall()]

    def lookup(
        self,
        *,
        ids: Sequence[bytes] = (),
        prefix: str | None = None,
        key: tuple[str, bytes] | None = None,
        limit: int = 10,
    ) -> list[ConversationRow]:
        with self._connection() as connection:
            if key is not None:
                return self._by_key(connection, *key)
            if prefix is not None:
                low, high = bytes.fromhex(prefix.ljust(32, "0")), bytes.fromhex(prefix.ljust(32, "f"))
                query = f"SELECT {_CONVERSATION} FROM conversation WHERE id BETWEEN ? AND ? AND workspace = ? ORDER BY id LIMIT ?"
                return [
                    _conversation(found)
                    for found in connection.execute(query, (low, high, self._workspace, limit)).fetchall()
                ]
            rows = [self._row(connection, id) for id in ids]
            return [row for row in rows if row is not None]

    def page(
        self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False
    ) -> list[ConversationRow]:
        column, order, beyond = ("created_at", "ASC", ">") if oldest_first else ("active_at", "DESC", "<")
        condition, values = self._condition(where)
        if after is not None:
            condition += f" AND (c.{column}, c.id) {beyond} (?, ?)"
            values += (after.at, after.id)
        query = f"SELECT {_CONVERSATION} FROM conversation c WHERE {condition} ORDER BY c.{column} {order}, c.id {order} LIMIT ?"
        with self._connection() as connection:
            return [_conversation(found) for found in connection.execute(query, (*values, limit)).fetchall()]

    def count(self, where: Where) -> int:
        condition, values = self._condition(where)
        with self._connection() as connection:
            (number,) = connection.execute(f"SELECT count(*) FROM conversation c WHERE {condition}", values).fetchone()
            return int(number)

    def _condition(self, where: Where) -> tuple[str, tuple[int | str | bytes, ...]]:
        condition = "c.workspace = ? AND c.kind = ?"
        values: tuple[int | str | bytes, ...] = (self._workspace, where.kind)
        if where.tag is not None:
            condition += " AND EXISTS (SELECT 1 FROM tag t WHERE t.workspace = c.workspace AND t.value = ? AND t.conversation = c.place AND t.message = -1)"
            values += (where.tag,)
        if where.alive_at is not None:
            condition += " AND (c.expires_at IS NULL OR c.expires_at > ?)"
            values += (where.alive_at,)
        return condition, values

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        columns = _JOINED if bodies else _JOINED_HEADER
        query = f"SELECT {columns} FROM message m JOIN conversation c ON c.place = m.conversation WHERE c.workspace = ?"
        found: list[MessageRow] = []
        with self._connection() as connection:
            if keys is not None:
                conversation, wanted = keys
                for key in dict.fromkeys(wanted):
                    values = (self._base, self._workspace, conversation, key)
                    found += _rows(connection.execute(f"{query} AND c.id = ? AND m.key = ?", values))
            for some in _chunks(tuple(dict.fromkeys(numbers)), _CHUNK):
                marks = ", ".join("?" * len(some))
                chosen = (self._base, self._workspace, *(self._base + n for n in some))
                found += _rows(connection.execute(f"{query} AND m.number IN ({marks})", chosen))
        return found

    def path(self, number: int, *, bodies: bool = True) -> Iterator[list[MessageRow]]:
        base = self._base
        query = f"SELECT {_MESSAGE if bodies else _HEADER} FROM message WHERE number BETWEEN ? AND ? ORDER BY number"
        conversation: bytes | None = None
        next: int | None = number
        while next is not None:
            with self._connection() as connection:
                if conversation is None:
                    owner = (
                        "SELECT c.id FROM message m JOIN conversation c ON c.place = m.conversation WHERE m.number = ?"
                    )
                    found = connection.execute(owner, (base + next,)).fetchone()
                    if found is None:
                        return
                    conversation = found[0]
                rows = _rows(connection.execute(query, (base, conversation, base + next - next % RUN, base + next)))
            rows = _unbroken(rows, next)
            if rows:
                yield rows
            next = rows[0].parent if rows and rows[0].number % RUN == 0 else None

    def scan(
        self,
        conversation: bytes,
        *,
        after: int | None = None,
        newest_first: bool = False,
        limit: int,
        bodies: bool = True,
    ) -> list[MessageRow]:
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        query = (
            f"SELECT {_MESSAGE if bodies else _HEADER} FROM message "
            f"WHERE conversation = (SELECT place FROM conversation WHERE id = ? AND workspace = ?) {'' if after is None else f'AND seq {beyond} ?'} "
            f"ORDER BY seq {order} LIMIT ?"
        )
        bounds = (limit,) if after is None else (after, limit)
        with self._connection() as connection:
            return _rows(connection.execute(query, (self._base, conversation, conversation, self._workspace, *bounds)))

    def kinds(self) -> list[str]:
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT DISTINCT kind FROM conversation WHERE workspace = ? ORDER BY kind", (self._workspace,)
            ).fetchall()
            return [row[0] for row in rows]

    def numbers(self) -> Iterator[list[int]]:
        """Through the index, which is a hundredth of the table."""
        query = (
            "SELECT conversation, seq, number FROM message INDEXED BY message_by_seq "
            "WHERE (conversation, seq) > (?, ?) ORDER BY conversation, seq LIMIT 4096"
        )
        place, seq = -1, -1
        while True:
            with self._connection() as connection:
                rows = connection.execute(query, (place, seq)).fetchall()
            if not rows:
                return
            place, seq, _ = rows[-1]
            low, high = self._base, self._base + (1 << _WORKSPACE_BITS)
            yield [row[2] - low for row in rows if low <= row[2] < high]

    def tagged(self, value: bytes, limit: int) -> list[tuple[bytes, int | None]]:
        query = (
            "SELECT c.id, t.message FROM tag t JOIN conversation c ON c.place = t.conversation "
            "WHERE t.workspace = ? AND t.value = ? ORDER BY c.id, t.message LIMIT ?"
        )
        with self._connection() as connection:
            found = connection.execute(query, (self._workspace, value, limit)).fetchall()
            return [(id, None if message < 0 else message) for id, message in found]

    def items(
        self, conversation: bytes, prefix: bytes = b"", *, reverse: bool = False, limit: int | None = None
    ) -> list[ItemRow]:
        query = (
            "SELECT i.key, i.revision, i.body FROM item i JOIN conversation c ON c.place = i.conversation "
            "WHERE c.id = ? AND c.workspace = ? AND substr(i.key, 1, ?) = ? "
            f"ORDER BY i.key {'DESC' if reverse else 'ASC'} LIMIT ?"
        )
        values = (conversation, self._workspace, len(prefix), prefix, -1 if limit is None else limit)
        with self._connection() as connection:
            return [ItemRow(conversation, *row) for row in connection.execute(query, values).fetchall()]

    # -- care

    def check(self) -> list[str]:
        try:
            with self._connection() as connection:
                found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(100)").fetchall()]
                found += [
                    f"a row of {table} refers to a missing {parent}"
                    for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall()
                ]
        except Damaged as error:
            return [str(error)]
        return [line for line in found if line != "ok"]

    def scrub(self) -> bool:
        """Move everything from the WAL into the database and truncate it. SQLite does not sync the truncation, so a power cut could
        bring deleted text back from the WAL: we sync it ourselves."""
        with self._connection() as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                return False
        wal = Path(f"{self._path}-wal")
        if wal.exists():
            _sync(wal)
        return True

    def size(self) -> int:
        files = (Path(f"{self._path}{suffix}") for suffix in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def pragmas(self) -> dict[str, object]:
        """What SQLite says our settings are, for `doctor` and for the test that reads them back."""
        names = (
            "application_id",
            "user_version",
            "journal_mode",
            "synchronous",
            "foreign_keys",
            "secure_delete",
            "auto_vacuum",
            "page_size",
            "journal_size_limit",
        )
        with self._connection() as connection:
            return {name: connection.pragma(name) for name in names}


PER_CONNECTION = ("synchronous = FULL", "foreign_keys = ON", "secure_delete = ON", "journal_size_limit = 4194304")

_INSERT_CONVERSATION = f"INSERT INTO conversation (workspace, {_CONVERSATION}) VALUES ({', '.join('?' * 20)})"
_UPDATE_CONVERSATION = (
    f"UPDATE conversation SET {', '.join(f'{name} = ?' for name in _CONVERSATION.split(', ')[3:])} WHERE place = ?"
)
_INSERT_MESSAGES = [
    "INSERT INTO message (number, conversation, seq, parent, link, main, role, revision, created_at, key, token, size, body) VALUES "
    + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * count)
    for count in range(17)
]


def _conversation_values(row: ConversationRow) -> tuple[str | bytes | int | None, ...]:
    return (
        row.id, row.kind, row.key, row.version, row.token, row.generation, row.head, _pack(row.tips), row.next_seq, row.count, row.size, row.removals,
        row.created_at, row.active_at, row.expires_at, row.held, row.data_key, row.meta, row.proof,
    )  # fmt: skip


def _conversation(found: tuple[object, ...]) -> ConversationRow:
    values = list(found)
    values[7] = _unpack_tips(values[7])  # type: ignore[arg-type]  # the column `tips`
    values[15] = bool(values[15])  # the column `held`
    return ConversationRow(*values)  # type: ignore[arg-type]  # the columns in the order of the fields


def _rows(cursor: apsw.Cursor) -> list[MessageRow]:
    return [MessageRow(*found) for found in cursor]


def _unbroken(rows: list[MessageRow], last: int) -> list[MessageRow]:
    """The rows that lead up to the number `last` without a gap: a run that misses a message is broken there."""
    if len(rows) == last % RUN + 1:
        return rows
    first = len(rows)
    while first and rows[first - 1].number == last:
        first, last = first - 1, last - 1
    return rows[first:]


def _chunks(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _ensure_workspace(connection: apsw.Connection, name: str) -> tuple[int, bytes]:
    find = "SELECT place, id FROM workspace WHERE name = ?"
    found = connection.execute(find, (name,)).fetchone()
    if found is None:
        connection.execute("INSERT OR IGNORE INTO workspace (name, id) VALUES (?, ?)", (name, new_conversation_id()))
        found = connection.execute(find, (name,)).fetchone()
    return found[0], found[1]


def _patience(timeout_seconds: float) -> Callable[[int], bool]:
    """A busy handler: sleep a little, never in step with the others, until the time is up."""
    started = 0.0

    def wait(attempt: int) -> bool:
        nonlocal started
        now = time.monotonic()
        if attempt == 0:
            started = now
        if now - started > timeout_seconds:
            return False
        time.sleep(random.uniform(0.0002, 0.002))
        return True

    return wait


# -- files and errors


def _make_private(path: Path) -> None:
    """Make the directory (0700) and an empty file (0600), and make their names durable, before SQLite opens the file as 0644."""
    try:
        missing = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync(folder.parent)
        if not path.parent.is_dir():
            raise CannotOpen(f"{path.parent} is not a directory", hint="give the path of a file in a directory")
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            _sync(path.parent)
        except FileExistsError:
            _look_at(path)
    except HithertoError:
        raise
    except OSError as error:
        raise CannotOpen(
            f"cannot create {path}: {error.strerror or error}",
            hint="check the path and the permissions of its directory",
        ) from error
    except ValueError as error:  # a NUL in the path
        raise CannotOpen(f"not a path: {error}") from error


def _look_at(path: Path) -> None:
    """Refuse what cannot be opened, by its metadata alone: opening and closing the file here would drop the locks that another
    connection of this process holds on it (POSIX locks belong to the process)."""
    if not path.is_file():
        raise CannotOpen(f"{path} is not a file", hint="give the path of a file; a folder cannot be a store")
    if not os.access(path, os.R_OK):
        raise CannotOpen(f"{path} may not be read", hint="check the permissions of the file")
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise ReadOnly(f"{path} or its directory may not be written")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_CLASSES: tuple[tuple[type[apsw.Error], type[HithertoError], str], ...] = (
    (apsw.BusyError, Busy, "other writers held the lock of {path} for too long"),
    (apsw.LockedError, Busy, "{path} is locked"),
    (apsw.FullError, StorageFull, "no space is left for {path}"),
    (apsw.NotADBError, NotAStore, "{path} is not a database"),
    (apsw.CorruptError, Damaged, "{path} is damaged"),
    (apsw.ReadOnlyError, ReadOnly, "{path} may not be written"),
    (apsw.CantOpenError, CannotOpen, "{path} cannot be opened"),
)


def _translated(error: apsw.Error, path: Path) -> HithertoError:
    """The error of ours for one of SQLite's."""
    for theirs, ours, text in _CLASSES:
        if isinstance(error, theirs):
            return ours(f"{text.format(path=path)} ({error})")
    return StorageError(f"SQLite reports for {path}: {error}")
