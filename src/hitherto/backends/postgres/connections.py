"""The connection pool of a PostgreSQL server: shared by the workspaces of a process, with one retry loop.

There is one pool for each process and address, whatever the number of open workspaces. A leased connection is bound to
the workspace that it works for (`hitherto.workspace_id`, which row-level security compares with).

Retries have one home, `Bound.do`. Work that lost a race, a deadlock or its connection starts over, and a server that
restarts or fails over is waited for until the timeout. Only repeatable work goes there. The pool does not retry by
itself: it would wait ever longer between attempts, and a server that is back would stay unused.

Every new connection is verified: is it the known server, and still the primary? An old primary that comes back would
serve outdated rows, and take writes that are lost. It is recognised by its timeline, which every promotion raises: a
timeline lower than the highest seen is refused. Opening a store asks all servers that the address names, so that a new
process knows as much as an old one.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ..._system import forks
from ...errors import Busy, CannotOpen, Closed, Hint, HithertoError, ReadOnly, Unavailable
from . import schema
from .address import Address, is_local
from .connection import Connection, Link, Watch
from .distribution import read_distribution
from .error_mapping import (
    TOO_MANY,
    LostRaceError,
    clear_text_error,
    map_connect_error,
    map_error,
    may_pass,
    with_its_code,
)

T = TypeVar("T")

OLDEST = 140000  # PostgreSQL 14: the first that reports whether a server is a standby
_RACES = 30  # lost in a row, before a batch counts as contradicting itself
_LOOK_SECONDS = 0.25  # between two attempts to reach a server that does not answer
_IDLE_SECONDS = 300.0
_LONGEST = (1 << 31) - 1  # milliseconds: PostgreSQL's longest lock timeout
_ANSWER_SECONDS = 2.0  # for a server to answer when a store is opened

# A standby reports a lower bound of its timeline: it may follow a new primary for minutes before it records that.
_IDENTITY = (
    "SELECT system_identifier, pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN greatest(timeline_id, "
    "min_recovery_end_timeline, (SELECT max(received_tli) FROM pg_stat_wal_receiver)) "
    "ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END, "
    "current_setting('fsync'), pg_backend_pid() "
    "FROM pg_control_system(), pg_control_checkpoint(), pg_control_recovery()"
)


# A pool logs every lost connection. Without a handler, Python would write that to stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class _ReplacedError(Unavailable):
    """A former primary that was replaced, and is back."""


class Shared:
    """The pool of one address in this process, and the known facts about its server."""

    _all: ClassVar["dict[tuple[str, int, int, bool, bool], Shared]"] = {}
    _lock = threading.Lock()

    def __init__(self, address: Address) -> None:
        self.address = address
        self.users = 0
        self.system: int | None = None  # the identifier of the database system
        self.timeline = 0  # the highest seen
        self.durable = True
        self.is_distributed = False  # over the nodes of a cluster
        self.trouble: Exception | None = None  # why the last attempt to connect failed
        self._forks = forks.count()
        self._renewed = 0.0
        self._renewing, self._opening, self._knowing = threading.Lock(), threading.Lock(), threading.Lock()
        self._lent: set[Link] = set()
        self.watch = Watch()
        self._settings: dict[str, Any] = {"autocommit": True}
        if address.by_transaction:
            self._settings["prepare_threshold"] = None
        self._pool: ConnectionPool[Link] = ConnectionPool(
            address.conninfo,
            connection_class=Link,
            kwargs={"makes": self._make_for_pool},
            min_size=0,
            max_size=address.pool_size,
            open=False,
            configure=self._configure,
            max_idle=_IDLE_SECONDS,
            reconnect_timeout=0.0,
            num_workers=2,
            name="hitherto",
        )

    @property
    def by_transaction(self) -> bool:
        """Tell whether each transaction says for which workspace it is, instead of each connection.

        A pooler may hand out transactions. A cluster passes to its nodes what is set for a transaction, and no more."""
        return self.address.by_transaction or self.is_distributed

    @classmethod
    def of(cls, address: Address) -> "Shared":
        """Return the shared pool of this address, created if needed. The caller has to `release` it."""
        how = (address.pool_size, address.read_only, address.by_transaction)
        place = (address.conninfo, forks.count(), *how)
        with cls._lock:
            shared = cls._all.get(place)
            if shared is None:
                shared = cls._all[place] = cls(address)
            shared.users += 1
            return shared

    def release(self) -> None:
        if self._forks != forks.count():  # it belongs to the parent process; this one has only copies of its locks
            return
        with self._lock:
            self.users -= 1
            if self.users:
                return
            for place, other in list(self._all.items()):
                if other is self:
                    del self._all[place]
        self._pool.close(timeout=2.0)

    @classmethod
    def renew_lock(cls) -> None:
        """Replace the lock after a fork: another thread may have held it."""
        cls._lock = threading.Lock()

    # -- the server

    def open(self, timeout_seconds: float, *, create: bool) -> None:
        """Verify the server and migrate the tables when the first store of this address is opened.

        This uses a connection apart from the pool, so that a problem is raised at once."""
        with self._opening:
            if not self._pool.closed:
                return
            try:
                _patiently(lambda: self._enter(create, timeout_seconds), timeout_seconds)
            except psycopg.Error as error:
                raise map_connect_error(error, self.address.shown) from error
            self._pool.open()

    def enter(self) -> Link:
        """Connect to the server that a store would use, apart from the pool."""
        self._look_around()
        return self._connect()

    def _enter(self, create: bool, seconds: float) -> None:
        with self.enter() as connection:
            if self.address.names_pooler and not self.address.by_transaction:
                self._look_through(connection)
            self._set_up(connection)
            if self.address.read_only:
                schema.check_current(connection)
            else:
                parts = self.address.partitions
                schema.migrate(connection, self._connect, create=create, partitions=parts, seconds=seconds)
            self._find_distribution(connection)

    def _find_distribution(self, connection: Connection) -> None:
        found = read_distribution(connection)
        self.is_distributed = found is not None and found.is_used
        if found is not None and not self.address.read_only and (problems := found.problems()):
            hint = "hitherto postgres distribute prints what is missing; hitherto doctor says what is wrong"
            raise CannotOpen(f"the tables are not distributed as they have to be: {'; '.join(problems)}", hint=hint)

    def _connect(self) -> Link:
        """Connect to the first server that takes writes. If that is a replaced primary, try the other servers."""
        try:
            return self._try(self.address.conninfo)
        except _ReplacedError as error:
            for one in self.address.each():
                with suppress(psycopg.Error, _ReplacedError, ReadOnly):
                    return self._try(one)
            raise Unavailable(str(error), hint=error.hint) from None

    def _try(self, conninfo: str) -> Link:
        connection = Link.connect(conninfo, **self._settings)
        try:
            self._look_at(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _look_around(self) -> None:
        """Ask all servers of the address for their timeline, and keep the highest. A server may be unreachable."""
        if len(self.address.hosts) < 2:  # there is no other server to ask
            return
        for one in self.address.each():
            try:
                with psycopg.connect(one, autocommit=True, connect_timeout=2) as connection:
                    system, _, timeline, *_ = connection.execute(_IDENTITY).fetchall()[0]
            except psycopg.Error:
                continue
            with self._knowing:
                if self.system in (None, system):
                    self.system, self.timeline = system, max(self.timeline, timeline)

    def _look_through(self, connection: Link) -> None:
        """Check that the pooler hands out sessions, as the address says.

        A pooler that hands out transactions gives our server connection to another client between two of them, together
        with our session settings."""
        query = "SELECT pg_backend_pid()"
        before = connection.execute(query).fetchall()
        try:
            other = Link.connect(self.address.conninfo, autocommit=True, connect_timeout=int(_ANSWER_SECONDS))
        except psycopg.OperationalError:  # the pooler has one connection, and this process has it
            return
        with other:
            other.execute("BEGIN")
            other.execute(query)
            try:
                with self.watch.over(connection, _ANSWER_SECONDS):
                    same = connection.execute(query).fetchall() == before
            except psycopg.OperationalError:  # the pooler has one connection, and gave it away
                same = False
            other.execute("ROLLBACK")
        if not same:
            hint = "pooler=transaction in the address works with any"
            raise CannotOpen("the pooler hands out transactions, and the address says sessions", hint=hint)

    def doubt(self) -> None:
        """Look for a new primary after a server did not answer in time: it may not know that it was replaced."""
        self._look_around()

    def _make_for_pool(self) -> Link:
        """Connect for the pool, and remember the error, because the pool does not report it."""
        try:
            return self._connect()
        except (HithertoError, psycopg.Error) as error:
            self.trouble = error
            raise psycopg.OperationalError("not a server that we use") from error

    def _configure(self, connection: Connection) -> None:
        try:
            self._set_up(connection)
            schema.check_current(connection)
        except (HithertoError, psycopg.Error) as error:
            self.trouble = error
            connection.close()
            raise psycopg.OperationalError("not a server that we use") from error
        self.trouble = None

    def _look_at(self, connection: Connection) -> None:
        connection.adapters.register_dumper(int, Int8BinaryDumper)  # one type: one prepared statement
        connection.isolation_level = IsolationLevel.READ_COMMITTED  # a read after a lock sees the commits it waited for
        if not (self.address.decided or connection.pgconn.ssl_in_use or is_local(connection.info.host)):
            raise clear_text_error(self.address.shown)  # a service file named the host
        status = connection.info.parameter_status
        if connection.info.server_version < OLDEST:
            version = connection.info.server_version // 10000
            hint = f"{OLDEST // 10000} is the oldest that will do"
            raise CannotOpen(f"the server is PostgreSQL {version}", hint=hint)
        if status("server_encoding") not in ("UTF8", None):
            hint = "make one with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            raise CannotOpen(f"the database is {status('server_encoding')}, and not UTF8", hint=hint)
        if not self.address.read_only and "on" in (status("in_hot_standby"), status("default_transaction_read_only")):
            standby = status("in_hot_standby") == "on"
            which = "a standby" if standby else "default_transaction_read_only is on"
            if standby:
                text = "name the primary, or all servers: the one that takes writes is found; read_only=True reads here"
                hint = Hint("connected-to-standby", text)
            else:
                hint = Hint("read-only-by-default", "switch it off; read_only=True reads here")
            raise ReadOnly(f"the server is read-only ({which})", hint=hint)
        [(system, standby, timeline, fsync, process)] = connection.execute(_IDENTITY).fetchall()
        if process != connection.info.backend_pid and not self.address.names_pooler:
            hint = "pooler=transaction in the address works with any; pooler=session with one that is set to sessions"
            raise CannotOpen("a pooler stands between us and the server, and the address does not say so", hint=hint)
        self._believe(system, timeline, standby=standby)
        if isinstance(connection, Link):
            connection.timeline = None if standby else timeline
        self.durable = fsync == "on"

    def _set_up(self, connection: Connection) -> None:
        """Set the session up. Behind a transaction pooler each transaction is set up by itself: see `Bound.bind`."""
        if self.address.by_transaction:
            return
        connection.execute("SET client_min_messages = warning")  # the server warns about a commit that no replica has
        if connection.execute("SHOW synchronous_commit").fetchall() == [("off",)]:
            connection.execute("SET synchronous_commit = on")  # otherwise an acknowledged commit may be lost
        if self.address.read_only:
            connection.execute("SET default_transaction_read_only = on")

    def _believe(self, system: int, timeline: int, *, standby: bool) -> None:
        with self._knowing:
            if self.system not in (None, system):
                hint = "it is not the one from before, nor a replica of it: check the address, and open the store again"
                raise Unavailable("another database system answers at this address", hint=hint)
            if timeline < self.timeline and not standby:
                hint = "it was replaced, and has missed what came after; take it away, or make a standby of it"
                raise _ReplacedError(
                    f"the server is of timeline {timeline}, and {self.timeline} has been seen: it is an old primary",
                    hint=hint,
                )
            self.system, self.timeline = system, max(self.timeline, timeline)

    # -- lending

    def take(self, deadline: float) -> Link:
        if self._forks != forks.count():
            raise Closed("the store is closed")
        while True:
            patience = max(0.01, deadline - time.monotonic())
            known = self.trouble
            try:
                connection = self._pool.getconn(min(_LOOK_SECONDS, patience) if known else min(1.0, patience))
                if connection.timeline is None or connection.timeline >= self.timeline:
                    self._lent.add(connection)
                    return connection
                connection.close()  # its server was replaced as the primary, and may not know it
                self._pool.putconn(connection)
            except PoolClosed:
                raise Closed("the store is closed") from None
            except PoolTimeout:
                trouble = self.trouble  # once: other threads change it
                over = time.monotonic() >= deadline
                if trouble is not None and (over or not may_pass(trouble)):
                    raise trouble.with_traceback(None) from None  # the shared error would keep every traceback alive
                if over:
                    self._make_good()
                    hint = Hint("pool-exhausted", "raise pool_size in the address, or timeout_seconds")
                    raise Busy("all connections are in use", hint=hint) from None

    def _make_good(self) -> None:
        """Enlarge the pool by connections that were lost when a thread was interrupted between take and lease."""
        missing = self._pool.get_stats().get("pool_size", 0) - len(self._lent)
        if missing > 0:
            self._pool.resize(0, self.address.pool_size + missing)

    def give_back(self, connection: Link) -> None:
        self._lent.discard(connection)
        try:
            if connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
                connection.close()  # interrupted inside a transaction, or a statement
            lost = connection.closed
        finally:
            self._pool.putconn(connection)  # otherwise the pool would be one connection short for ever
        if lost and connection.made > self._renewed:
            with self._renewing:
                self._renewed = time.monotonic()
            self._pool.drain()  # the other connections may be lost as well


class Bound:
    """The connections of one workspace."""

    def __init__(self, shared: Shared, workspace_id: UUID, timeout_seconds: float) -> None:
        self.shared, self.workspace_id, self.timeout_seconds = shared, workspace_id, timeout_seconds
        self._binding = workspace_id, int(min(max(1, timeout_seconds * 1000), _LONGEST))
        self.retries = 0
        self._inner = threading.local()  # the connection of a thread that reads through its commit's connection
        self._closed = False
        self._process = forks.count()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.shared.release()

    @contextmanager
    def lease(self, deadline: float | None = None) -> Iterator[Connection]:
        """Lease a bound connection. Behind a transaction pooler it is not bound: each transaction binds itself."""
        if self._closed or self._process != forks.count():
            raise Closed("the store is closed")
        connection: Link | None = None
        try:
            connection = self.shared.take(time.monotonic() + self.timeout_seconds if deadline is None else deadline)
            if not self.shared.by_transaction and connection.bound != self._binding:
                connection.bound = None  # unknown, if the next statement is interrupted
                query = "SELECT set_config('hitherto.workspace_id', %s, false), set_config('lock_timeout', %s, false)"
                connection.execute(query, (str(self.workspace_id), str(self._binding[1])))
                connection.bound = self._binding
            yield connection
        finally:
            if connection is not None:
                self.shared.give_back(connection)

    def begin(self, connection: Connection) -> None:
        """Begin a transaction that is bound to the workspace."""
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        self.bind(connection)

    def bind(self, connection: Connection) -> None:
        """Bind this transaction, behind a transaction pooler or in a cluster."""
        if self.shared.is_distributed:
            with connection.pipeline():
                for name, value in (
                    ("citus.propagate_set_commands", "local"),  # the nodes get what follows
                    ("hitherto.workspace_id", str(self.workspace_id)),
                    ("lock_timeout", str(self._binding[1])),
                ):
                    connection.execute(f"SET LOCAL {name} = '{value}'")
        if self.shared.address.by_transaction:
            query = (
                "SELECT set_config('hitherto.workspace_id', %s, true), set_config('lock_timeout', %s, true), "
                "set_config('client_min_messages', 'warning', true), "
                "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
                "WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
            )
            connection.execute(query, (str(self.workspace_id), str(self._binding[1])))

    def shorten(self, connection: Connection, seconds: float) -> None:
        """Set a shorter lock timeout for this transaction."""
        connection.execute(f"SET LOCAL lock_timeout = {int(max(1, seconds * 1000))}")

    @contextmanager
    def through(self, connection: Connection) -> Iterator[None]:
        """Let this thread read through this connection, inside its transaction.

        A second connection might not be free before this one is."""
        self._inner.connection = connection
        try:
            yield
        finally:
            self._inner.connection = None

    def do(self, work: Callable[[Connection], T], *, bound: bool = False, writes: bool = False) -> T:
        """Run work with retries: the only retry loop. Only repeatable work belongs here.

        A lost COMMIT is no `psycopg.Error` any more. With `bound` the work binds its transactions itself. With `writes`
        it may wait for replicas although no caller depends on them; the watch ends that wait after the timeout."""
        inner: Connection | None = getattr(self._inner, "connection", None)
        if inner is not None:
            if bound or writes:
                raise AssertionError("a thread that holds rows for a commit only reads")
            return work(inner)  # the caller that began the transaction handles its errors
        deadline = time.monotonic() + self.timeout_seconds
        races = 0
        while True:
            try:
                with self.lease(deadline) as connection, self._watch(connection, writes=writes):
                    if bound or not self.shared.by_transaction:
                        return work(connection)
                    with connection.transaction():
                        self.bind(connection)
                        return work(connection)
            except (psycopg.Error, LostRaceError, Unavailable, ReadOnly) as raised:
                error = with_its_code(raised)
                races += isinstance(error, errors.UniqueViolation | LostRaceError)
                if races > _RACES or time.monotonic() > deadline or not may_pass(error):
                    if isinstance(raised, HithertoError):
                        raise
                    raise map_error(error, self.shared.address.shown) from raised
                self.retries += 1
                waited = isinstance(error, psycopg.OperationalError | Unavailable | ReadOnly)
            time.sleep(random.random() * (0.05 if waited else 0.005))

    def _watch(self, connection: Connection, *, writes: bool) -> AbstractContextManager[None]:
        return self.shared.watch.over(connection, self.timeout_seconds) if writes else nullcontext()


os.register_at_fork(after_in_child=Shared.renew_lock)


def _patiently(work: Callable[[], T], timeout_seconds: float) -> T:
    """Open a store with retries. A server that starts, stops or fails over is waited for until the timeout.

    One that does not answer at all is waited for a moment only, because the address may be wrong."""
    began = time.monotonic()
    while True:
        try:
            return work()
        except psycopg.OperationalError as error:
            said = str(error)
            words = ("starting up", "shutting down", "in recovery mode", *TOO_MANY)
            starting = (error.sqlstate or "")[:2] == "57" or any(some in said for some in words)
            limit = timeout_seconds if starting else min(timeout_seconds, _ANSWER_SECONDS)
            if not may_pass(error) or time.monotonic() - began > limit:
                raise
        time.sleep(0.1)
