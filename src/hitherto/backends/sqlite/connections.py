"""The connection pool of one SQLite file, which keeps connections out of forked children.

A thread leases a connection for one piece of work. A single thread always gets the same connection, and two threads
never share one. A child of os.fork must neither use nor close a connection of its parent, nor open the same file: the
child would believe that it holds the parent's locks. So the pool closes its idle connections before a fork. A file with
a connection in use at that moment, in another thread, is closed to the child.

A read-only pool leaves no trace, not even the files that SQLite needs to share a database. If the WAL has content, the
pool reads it through the existing shared-memory index, without writing to that. If the WAL is empty, the file is opened
as immutable. If another process changes an immutable file, the read raises `Busy`, and the next read opens it again.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from ..._system import forks
from ..._system.own_files import check_sidecars
from ...errors import Busy, CannotOpen, Closed, Damaged, Hint, NotAStore, StorageError
from .files import lacks_room, make_private, map_error, sync

_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()
_inherited: list[object] = []  # never freed, so that the child closes none of them
_out_of_bounds: set[str] = set()
_in_use: set[str] = set()


def _before_fork() -> None:
    forks.still.acquire()
    for pool in list(_pools):
        pool.close_idle()
        if pool.made:
            _in_use.add(pool.path)


def _after_fork_in_parent() -> None:
    _in_use.clear()
    forks.still.release()


def _after_fork_in_child() -> None:
    forks.still = threading.RLock()
    _out_of_bounds.update(_in_use)
    _inherited.extend(list(_pools))


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class Still(apsw.Connection):
    """A connection to a file that is opened as immutable."""

    before: tuple[int, ...] = ()  # the state of the file when it was opened


class Lease:
    """The use of a connection, as a context manager that maps SQLite's errors.

    It is a class because a generator costs more than a short statement."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool

    def __enter__(self) -> apsw.Connection:
        self._connection = self._pool.take()
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if type(self._connection) is Still and self._connection.before[:3] != _state(self._pool.path)[:3]:
            self._pool.drop(self._connection)
            raise Busy(f"{self._pool.path} was changed while it was read", hint="try again") from error
        if error is None:
            self._pool.give_back(self._connection)
            return
        ours = map_error(error, self._pool.path, self._connection) if isinstance(error, apsw.Error) else None
        if self._pool.read_only and ours is not None:  # a writer got in the way: a new connection may succeed
            self._pool.drop(self._connection)
        else:
            self._pool.give_back(self._connection)
        if ours is not None:
            raise ours from error
        if isinstance(error, UnicodeDecodeError):  # damage: a text value holds invalid UTF-8
            raise Damaged(f"{self._pool.path} is damaged: text that is none") from error
        if isinstance(error, OverflowError):
            raise Damaged(f"{self._pool.path} is damaged: a number that cannot be") from error


class Pool:
    """The connections to one file. A missing file is created with private permissions, unless the pool is read-only."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        prepare: Callable[[apsw.Connection], None],
        *,
        vfs: str | None = None,
        timeout_seconds: float = 30.0,
        read_only: bool = False,
        create: bool = True,
    ) -> None:
        """`prepare` runs on every new connection before its first use, and may refuse the file."""
        self.path = os.path.abspath(path)
        self.timeout_seconds = timeout_seconds
        self.idle: list[apsw.Connection] = []
        self.made = 0  # connections, idle or in use
        self._prepare = prepare
        self.make_room: Callable[[], bool] = lambda: False  # called on a full disk; True if it freed space
        self.vfs = vfs
        self.read_only = read_only
        self._forks = forks.count()
        self._closed = False
        self._lock = threading.Lock()
        if read_only or not create:
            _look_at(self.path)
        if not read_only:
            make_private(self.path)
        self.path = os.path.realpath(path)  # like SQLite: the WAL lies beside the file, not beside a link
        if self.path in _out_of_bounds:
            raise CannotOpen(
                f"{self.path} was in use by another thread when this process was forked",
                hint="fork while no thread uses the store, or start processes by spawn",
            )
        self._pending = _size(f"{self.path}-wal") > 0  # a process was killed: the WAL has content
        _pools.add(self)

    def pending(self) -> int:
        """Return the size of the WAL in bytes."""
        return _size(f"{self.path}-wal")

    def lease(self) -> Lease:
        """Lease a connection for exclusive use."""
        return Lease(self)

    def connect(self) -> apsw.Connection:
        """Open one more connection; make room on a full disk if possible."""
        while True:
            try:
                return self._connect()
            except apsw.Error as error:
                if self.read_only or not lacks_room(error) or not self.make_room():
                    raise

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOFOLLOW
        check_sidecars(self.path)
        left = os.path.exists(f"{self.path}-wal")  # closing must not checkpoint a foreign WAL
        if self.read_only:
            connection = self._reader()
        else:
            connection = apsw.Connection(self.path, flags=flags, vfs=self.vfs)
        self.made += 1
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(left))
            for foreign in (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_VIEW):
                connection.config(foreign, 0)  # the schema has none: a planted trigger could keep deleted rows
            connection.set_busy_handler(patience(self.timeout_seconds, self.path))
            self._prepare(connection)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def _reader(self) -> apsw.Connection:
        """Open a connection that writes nothing, not even the shared-memory file."""
        from urllib.parse import quote  # noqa: PLC0415  # it takes as long to load as apsw, and only readers need it

        before = _state(self.path)
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOFOLLOW
        place = f"file:{quote(self.path)}"
        if not before[3:] or before[3] == 0:
            connection = Still(f"{place}?immutable=1", flags=flags, vfs=self.vfs)
            connection.before = before
            return connection
        if not os.path.exists(f"{self.path}-shm"):
            hint = Hint("wal-not-merged", "open it once for writing, which puts the two together")
            raise CannotOpen(f"{self.path}-wal holds changes that cannot be read without writing", hint=hint)
        return apsw.Connection(f"{place}?mode=ro&readonly_shm=1", flags=flags, vfs=self.vfs)

    def drop(self, connection: apsw.Connection) -> None:
        connection.close()
        self.made -= 1

    def take(self) -> apsw.Connection:
        if self._closed or self._forks != forks.count():
            raise self._closed_error()
        try:
            found = self.idle.pop()
        except IndexError:
            with self.mapping_errors():
                return self.connect()
        if type(found) is Still and found.before != _state(self.path):
            self.drop(found)
            return self.take()
        return found

    def give_back(self, connection: apsw.Connection) -> None:
        if connection.in_transaction:  # COMMIT or ROLLBACK failed or was interrupted: the transaction must not go on
            self.drop(connection)
            return
        self.idle.append(connection)
        if self._closed:  # the pool was closed while the connection was in use
            self.close_idle()

    def _closed_error(self) -> Closed:
        if self._forks == forks.count():
            return Closed("the store is closed")
        return Closed("the store was opened before os.fork, in another process")

    @contextmanager
    def mapping_errors(self) -> Iterator[None]:
        """Map SQLite's errors to errors of the store."""
        try:
            yield
        except apsw.Error as error:
            raise map_error(error, self.path) from error

    def close(self, *, untouched: bool = False) -> None:
        """Close all connections. With `untouched` the WAL is not checkpointed."""
        self._closed = True
        for connection in self.idle if untouched and self._pending and self._forks == forks.count() else ():
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.close_idle()

    def close_idle(self) -> None:
        if self._forks == forks.count():
            with self._lock, self.mapping_errors():
                while self.idle:
                    self.drop(self.idle.pop())


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _look_at(path: str) -> None:
    """Refuse a path whose metadata shows that it is no store. Nothing is created."""
    hint = "give the path of a store that is there"
    if "\0" in path or not os.path.isfile(path):
        what = "is not a file" if "\0" not in path and os.path.exists(path) else "is not there"
        raise CannotOpen(f"{ascii(path)[1:-1]} {what}", hint=hint)
    if not os.access(path, os.R_OK):
        raise CannotOpen(f"{path} may not be read", hint="check the permissions of the file")
    if os.path.getsize(path) < 512:  # SQLite would take a file of one byte for an empty one
        raise NotAStore(f"{path} is not a database")


def _state(path: str) -> tuple[int, ...]:
    """Return the metadata that every write to the database changes."""
    try:
        found = os.stat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns, _size(f"{path}-wal")
    except OSError:
        return ()


def ensure_wal(connection: apsw.Connection, timeout_seconds: float) -> None:
    """Switch the file to WAL mode.

    If two processes switch at the same time, SQLite returns "busy" at once, without calling the busy handler. So this
    retries by itself."""
    wait = patience(timeout_seconds)
    attempt = 0
    while connection.pragma("journal_mode") != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if not wait(attempt):
                raise
            attempt += 1


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Run a write transaction: all of it is committed, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def view(connection: apsw.Connection) -> Iterator[None]:
    """Run statements in one snapshot of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def empty_wal(connection: apsw.Connection, timeout_seconds: float) -> bool:
    """Checkpoint the WAL completely and truncate it. False if a reader is in the way.

    SQLite does not sync the truncation, so a power cut could bring deleted text back. So this syncs the file."""
    connection.set_busy_handler(None)  # a checkpoint that waits for readers would make writers wait, too
    try:
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
    except apsw.BusyError:
        busy = True
    finally:
        connection.set_busy_handler(patience(timeout_seconds))
    if busy:
        return False
    wal = f"{connection.filename}-wal"
    try:
        sync(wal)
    except FileNotFoundError:
        pass
    except OSError as error:
        hint = Hint("wal-not-synced", "call scrub() again")
        raise StorageError(f"{wal} cannot be synced: {error.strerror}", hint=hint) from error
    return True


on_wait: list[Callable[[str], None]] = []  # called once when a lock has been held by others for a second
_NOTICED_SECONDS = 1.0


def patience(timeout_seconds: float, path: str | None = None) -> Callable[[int], bool]:
    """Return a busy handler that sleeps for random moments until the timeout: processes must not wake in step.

    With the database's path, the functions in `on_wait` learn of a wait that takes long. They are called in the middle
    of a transaction, and must not use a store."""
    started, is_told = 0.0, False

    def wait(attempt: int) -> bool:
        nonlocal started, is_told
        now = time.monotonic()
        if attempt == 0:
            started, is_told = now, False
        if path is not None and not is_told and now - started > _NOTICED_SECONDS:
            is_told = True
            for tell in on_wait:
                tell(path)
        if now - started > timeout_seconds:
            return False
        time.sleep(0.0002 + 0.0018 * os.urandom(1)[0] / 255)
        return True

    return wait
