"""Connections to a PostgreSQL server: shared by the workspaces of a process, bound to one at a time, and patient.

There is one pool for each process and address, whatever number of workspaces is open. A connection that is lent out is
bound to the workspace that it works for (`hitherto.workspace_id`, which row-level security compares with).

Patience has one home, `Bound.do`: what lost a race, a deadlock or its connection begins again, and a server that
restarts or fails over is waited for until the time is up. Only what may be repeated comes there. The pool does not
try again by itself: it would wait ever longer between attempts, and a server that is back would stay unused.

Before a connection is used it is looked at: is it the server that we know, or one that we should not believe? A primary
that was replaced and comes back would serve rows as they were then, and take writes that are lost. It is told by its
timeline, which every promotion raises: one that is lower than the highest seen is refused. Who opens a store looks at
all servers that the address names, so that a new process knows as much as an old one.
"""

import ipaddress
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ... import _forks
from ...errors import (
    Busy,
    CannotOpen,
    Closed,
    Damaged,
    Denied,
    HithertoError,
    InvalidArgument,
    NotAStore,
    ReadOnly,
    StorageError,
    StorageFull,
    Unavailable,
)
from . import _schema
from ._schema import Connection

T = TypeVar("T")

OLDEST = 140000  # PostgreSQL 14: the first that says what a standby is
POOL_SIZE = 16
_OURS = ("pool_size", "partitions", "pooler")  # parameters of the URL that libpq does not know
_RACES = 30  # lost in a row, before we think that a batch contradicts itself
_LOOK_SECONDS = 0.25  # between two attempts to reach a server that does not answer
_IDLE_SECONDS = 300.0
_WATCH_SECONDS = 0.25
_LEAST_SECONDS = 1.0  # that a commit is given, however little patience there is: it may only be large
_LONGEST = (1 << 31) - 1  # milliseconds, that PostgreSQL can wait for a lock
_ANSWER_SECONDS = 2.0  # for a server to answer when a store is opened

# What makes a connection that leads nowhere fail, instead of waiting for hours.
_KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}

# What a standby says is only what it is at least on: it may follow a new primary for minutes before it is written down.
_IDENTITY = (
    "SELECT system_identifier, pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN greatest(timeline_id, "
    "min_recovery_end_timeline, (SELECT max(received_tli) FROM pg_stat_wal_receiver)) "
    "ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END, "
    "current_setting('synchronous_commit'), current_setting('fsync'), pg_backend_pid() "
    "FROM pg_control_system(), pg_control_checkpoint(), pg_control_recovery()"
)


# A pool tells of every connection that it loses. Without anybody who listens, Python would write that to stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class LostRaceError(Exception):
    """Somebody was faster in a way that no lock or index shows: begin again."""


class Address:
    """Where the server is, and how we talk to it: a URL or a libpq string, with our own parameters taken off."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.read_only = read_only
        plain, ours = _without_ours(url)
        try:
            known = {name: str(value) for name, value in conninfo_to_dict(plain).items() if value is not None}
        except psycopg.ProgrammingError:
            hint = (
                "postgresql://user@host:5432/database?name=value, with special characters written as %XX; the names "
                f"are those of libpq, {', '.join(_OURS)}"
            )
            raise InvalidArgument("not the address of a PostgreSQL database", hint=hint) from None
        if _is_doubtful(plain, known):
            hint = "in a user, a password or a name, / is written as %2F, @ as %40, : as %3A, ? as %3F, % as %25"
            raise InvalidArgument("the address of the server cannot be understood", hint=hint)
        self.pool_size = _number(ours, "pool_size", POOL_SIZE, 1, 1000)
        self.partitions = _number(ours, "partitions", 0, 0, 1024)
        if ours.get("pooler", "session") not in ("session", "transaction"):
            raise InvalidArgument("pooler is session or transaction")
        self.by_transaction = ours.get("pooler") == "transaction"
        self.names_pooler = "pooler" in ours  # or what we set for a session may be another's, who sees no rows then
        hosts = known.get("host", os.environ.get("PGHOST", "")).split(",")
        addresses = known.get("hostaddr", os.environ.get("PGHOSTADDR", "")).split(",")
        self.hosts = hosts if len(hosts) >= len(addresses) else [""] * len(addresses)  # who has no name has a number
        settings = {**known, **{name: value for name, value in _KEEPALIVE.items() if name not in known}}
        settings.setdefault("application_name", "hitherto")
        settings.setdefault("connect_timeout", "10")
        settings["client_encoding"] = "UTF8"  # whatever PGCLIENTENCODING says
        self.local = all(map(_is_local, [*hosts, *addresses]))
        self.decided = "sslmode" in known or "PGSSLMODE" in os.environ  # whether to encrypt
        if not self.decided and not self.local:
            settings["sslmode"] = "require"
        self.verified = settings.get("sslmode", os.environ.get("PGSSLMODE")) == "verify-full"
        if not read_only and len(self.hosts) > 1:
            settings.setdefault("target_session_attrs", "read-write")
        self.conninfo = make_conninfo("", **settings)
        where = known.get("host", "") or "local"
        port = f":{known['port']}" if "port" in known else ""
        database = known.get("dbname") or known.get("user") or ""
        self.shown = f"postgresql://{where}{port}/{database}"  # no user, no password

    def each(self) -> Iterator[str]:
        """Every server that is named, apart."""
        known = {name: str(value) for name, value in conninfo_to_dict(self.conninfo).items() if value is not None}
        ports = known.get("port", os.environ.get("PGPORT", "")).split(",")
        addresses = known.get("hostaddr", os.environ.get("PGHOSTADDR", "")).split(",")
        for n, host in enumerate(self.hosts):
            one = {**known, "host": host, "target_session_attrs": "any"}
            if len(ports) > 1:
                one["port"] = ports[n % len(ports)]
            if len(addresses) > 1:
                one["hostaddr"] = addresses[n % len(addresses)]
            yield make_conninfo("", **{name: value for name, value in one.items() if value})


def _without_ours(url: str) -> tuple[str, dict[str, str]]:
    if "\0" in url:
        raise InvalidArgument("an address has no U+0000 in it")
    if not url.startswith(("postgresql://", "postgres://")):
        return url, {}
    base, mark, query = url.partition("?")
    parts = [part.partition("=") for part in query.split("&") if part]
    ours = {name: value for name, _, value in parts if name in _OURS}
    if not ours:
        return url, {}
    rest = "&".join("".join(part) for part in parts if part[0] not in _OURS)
    return base + (mark + rest if rest else ""), ours


def _is_doubtful(url: str, known: dict[str, str]) -> bool:
    """May a part of a password be taken for something else, which would then be shown?"""
    if not all(port.isascii() and port.isdigit() for port in known.get("port", "0").split(",") if port):
        return True
    if not url.startswith(("postgresql://", "postgres://")):
        return False
    authority, _, rest = url.partition("://")[2].partition("/")
    return authority.count("@") > 1 or "@" in rest.partition("?")[0]


def _number(ours: dict[str, str], name: str, otherwise: int, least: int, most: int) -> int:
    value = ours.get(name)
    if value is None:
        return otherwise
    if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
        raise InvalidArgument(f"{name} is a number from {least} to {most}")
    return int(value)


def _is_local(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, whoever it may belong to
        return False


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection that knows whom it is bound to. `makes` makes it instead: so the pool gets those it may use."""

    bound: tuple[UUID, int] | None = None  # to a workspace, with so much patience for locks
    made = 0.0
    gave_up = False  # what was under way took too long, and was ended by us
    hung_up = False  # and the server did not say how that ended
    timeline: int | None = None  # None: a standby, whose timeline is not known for certain

    @classmethod
    def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, makes: "Callable[[], Link] | None" = None, **given: Any
    ) -> "Link":
        if makes is not None:
            return makes()
        connection = super().connect(conninfo, **given)
        connection.made = time.monotonic()
        return connection


class _ReplacedError(Unavailable):
    """A primary that was replaced, and is back."""


class Shared:
    """The pool of one address in this process, and what is known of the server."""

    _all: ClassVar["dict[tuple[str, int, int, bool, bool], Shared]"] = {}
    _lock = threading.Lock()

    def __init__(self, address: Address) -> None:
        self.address = address
        self.users = 0
        self.system: int | None = None  # the identifier of the database system
        self.timeline = 0  # the highest that was seen
        self.durable = True
        self.trouble: Exception | None = None  # why the last attempt to connect failed
        self._forks = _forks.count()
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
            kwargs={"makes": self._made},
            min_size=0,
            max_size=address.pool_size,
            open=False,
            configure=self._configure,
            max_idle=_IDLE_SECONDS,
            reconnect_timeout=0.0,
            num_workers=2,
            name="hitherto",
        )

    @classmethod
    def of(cls, address: Address) -> "Shared":
        """The one of this address, made if need be. `release` it."""
        how = (address.pool_size, address.read_only, address.by_transaction)
        place = (address.conninfo, _forks.count(), *how)
        with cls._lock:
            shared = cls._all.get(place)
            if shared is None:
                shared = cls._all[place] = cls(address)
            shared.users += 1
            return shared

    def release(self) -> None:
        if self._forks != _forks.count():  # it belongs to the process before; here are only copies of its locks
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
        """Another thread may have held it when this process was forked."""
        cls._lock = threading.Lock()

    # -- the server

    def open(self, timeout_seconds: float, *, create: bool) -> None:
        """Whoever is the first to open a store here looks at the server, through a connection apart from the pool, so
        that what is wrong is said at once; and brings the tables up to date."""
        with self._opening:
            if not self._pool.closed:
                return
            try:
                _patiently(lambda: self._enter(create, timeout_seconds), timeout_seconds)
            except psycopg.Error as error:
                raised = translated(error, self.address.shown)
                if raised.hint == Unavailable.hint:
                    raised.hint = "check the address, and whether the server is running"  # nothing was written yet
                raise raised from error
            self._pool.open()

    def _enter(self, create: bool, seconds: float) -> None:
        self._look_around()
        with self._connect() as connection:
            if self.address.read_only:
                _schema.check_current(connection)
            else:
                parts = self.address.partitions
                _schema.migrate(connection, self._connect, create=create, partitions=parts, seconds=seconds)

    def _connect(self) -> Link:
        """libpq takes the first server that takes writes. If it was replaced, and is back, the others are tried."""
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
        """Which timelines do the servers know that the address names? Those that do not answer know none."""
        if len(self.address.hosts) < 2:  # there is nobody else to ask
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

    def doubt(self) -> None:
        """A server has kept somebody waiting: has another one taken its place, and it does not know?"""
        self._look_around()

    def _made(self) -> Link:
        """For the pool. What is wrong is kept: the pool does not say."""
        try:
            connection = self._connect()
        except (HithertoError, psycopg.Error) as error:
            self.trouble = error
            raise psycopg.OperationalError("not a server that we use") from error
        return connection

    def _configure(self, connection: Connection) -> None:
        try:
            _schema.check_current(connection)
        except (HithertoError, psycopg.Error) as error:
            self.trouble = error
            connection.close()
            raise psycopg.OperationalError("not a server that we use") from error
        self.trouble = None

    def _look_at(self, connection: Connection) -> None:
        connection.adapters.register_dumper(int, Int8BinaryDumper)  # one type, so that a statement is prepared once
        connection.isolation_level = IsolationLevel.READ_COMMITTED  # who looks after a lock sees what it waited for
        if not (self.address.decided or connection.pgconn.ssl_in_use or _is_local(connection.info.host)):
            raise _in_clear(self.address.shown)  # a service file has named the host
        status = connection.info.parameter_status
        if connection.info.server_version < OLDEST:
            version = connection.info.server_version // 10000
            hint = f"{OLDEST // 10000} is the oldest that will do"
            raise CannotOpen(f"the server is PostgreSQL {version}", hint=hint)
        if status("server_encoding") not in ("UTF8", None):
            hint = "make one with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            raise CannotOpen(f"the database is {status('server_encoding')}, and not UTF8", hint=hint)
        if not self.address.read_only and "on" in (status("in_hot_standby"), status("default_transaction_read_only")):
            hint = "name the primary, or all servers: the one that takes writes is found; read_only=True reads here"
            raise ReadOnly("the server is read-only", hint=hint)
        [(system, standby, timeline, synchronous, fsync, process)] = connection.execute(_IDENTITY).fetchall()
        if process != connection.info.backend_pid and not self.address.names_pooler:
            hint = "pooler=transaction in the address works with any; pooler=session with one that is set to sessions"
            raise CannotOpen("a pooler stands between us and the server, and the address does not say so", hint=hint)
        self._believe(system, timeline, standby=standby)
        if isinstance(connection, Link):
            connection.timeline = None if standby else timeline
        self.durable = fsync == "on"
        if self.address.by_transaction:  # each transaction is set up by itself: see `Bound.bind`
            return
        connection.execute("SET client_min_messages = warning")  # a commit that no replica has is told by a warning
        if synchronous == "off":
            connection.execute("SET synchronous_commit = on")  # or what is acknowledged may be lost
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
        if self._forks != _forks.count():
            raise Closed("the store is closed")
        while True:
            patience = max(0.01, deadline - time.monotonic())
            known = self.trouble
            try:
                connection = self._pool.getconn(min(_LOOK_SECONDS, patience) if known else min(1.0, patience))
                if connection.timeline is None or connection.timeline >= self.timeline:
                    self._lent.add(connection)
                    return connection
                connection.close()  # it leads to a primary that was replaced, and may not know it
                self._pool.putconn(connection)
            except PoolClosed:
                raise Closed("the store is closed") from None
            except PoolTimeout:
                trouble = self.trouble  # once: other threads change it
                over = time.monotonic() >= deadline
                if trouble is not None and (over or not _may_pass(trouble)):
                    raise trouble.with_traceback(None) from None  # or it would hold on to all who ever raised it
                if over:
                    self._make_good()
                    hint = "raise pool_size in the address, or timeout_seconds"
                    raise Busy("all connections are in use", hint=hint) from None

    def _make_good(self) -> None:
        """Who is interrupted just when a connection changes hands may leave it in none. The pool counts it still."""
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
            self._pool.putconn(connection)  # or the pool would be one short, for good
        if lost and connection.made > self._renewed:
            with self._renewing:
                self._renewed = time.monotonic()
            self._pool.drain()  # the others may have been lost with it


class Watch:
    """Ends the wait of a commit for replicas that do not answer: the server then says that it may be kept here alone.
    Nobody else would: the server's own limits end with the statement, and not with the commit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[_Watched] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, connection: Connection, seconds: float) -> Iterator[None]:
        watched = _Watched(connection, time.monotonic() + max(seconds, _LEAST_SECONDS))
        with self._lock:
            self._under_way.add(watched)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, daemon=True, name="hitherto-watch")
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(watched)
            watched.leave()

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_WATCH_SECONDS)
            with self._lock:
                now = time.monotonic()
                late = [watched for watched in self._under_way if watched.until < now]
                idle = 0 if self._under_way else idle + 1
                if idle > 20:  # nobody writes: the next who does begins another
                    self._thread = None
                    return
            for watched in late:
                watched.end()


class _Watched:
    """What is under way on a connection. Whoever ends it is waited for before the connection goes to somebody else, or
    it would be theirs that is ended."""

    def __init__(self, connection: Connection, until: float) -> None:
        self.connection, self.until = connection, until
        self._lock, self._left, self._asked = threading.Lock(), False, False
        if isinstance(connection, Link):
            connection.gave_up = connection.hung_up = False

    def leave(self) -> None:
        with self._lock:
            self._left = True

    def end(self) -> None:
        """Ask the server to put an end to it; who does not hear that, or does not do it, is hung up on."""
        with self._lock:
            if self._left:
                return
            if isinstance(self.connection, Link):
                self.connection.gave_up = True
            if not self._asked:
                self._asked, self.until = True, time.monotonic() + _ANSWER_SECONDS
                try:
                    self.connection.cancel_safe(timeout=5.0)
                except psycopg.Error:  # it is not the commit that hangs, but the way there
                    pass
                else:
                    return
            if isinstance(self.connection, Link):
                self.connection.hung_up = True
            _hang_up(self.connection)


def _hang_up(connection: Connection) -> None:
    """Another thread waits on it, so that it is not closed but cut off: then that thread hears the end of it."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
    except (psycopg.Error, OSError):  # it is lost already
        return


class Bound:
    """The connections of one workspace."""

    def __init__(self, shared: Shared, workspace_id: UUID, timeout_seconds: float) -> None:
        self.shared, self.workspace_id, self.timeout_seconds = shared, workspace_id, timeout_seconds
        self._binding = workspace_id, int(min(max(1, timeout_seconds * 1000), _LONGEST))
        self.retries = 0
        self._closed = False
        self._process = _forks.count()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.shared.release()

    @contextmanager
    def lease(self, deadline: float | None = None) -> Iterator[Connection]:
        """A bound connection for a moment. Across transactions it is bound only where nobody stands between us and the
        server who hands each transaction to another one."""
        if self._closed or self._process != _forks.count():
            raise Closed("the store is closed")
        connection: Link | None = None
        try:
            connection = self.shared.take(time.monotonic() + self.timeout_seconds if deadline is None else deadline)
            if not self.shared.address.by_transaction and connection.bound != self._binding:
                connection.bound = None  # if we are interrupted, nobody knows
                query = "SELECT set_config('hitherto.workspace_id', %s, false), set_config('lock_timeout', %s, false)"
                connection.execute(query, (str(self.workspace_id), str(self._binding[1])))
                connection.bound = self._binding
            yield connection
        finally:
            if connection is not None:
                self.shared.give_back(connection)

    def begin(self, connection: Connection) -> None:
        """Begin a transaction, bound."""
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        self.bind(connection)

    def bind(self, connection: Connection) -> None:
        """This transaction, where connections do not stay bound."""
        if self.shared.address.by_transaction:
            query = (
                "SELECT set_config('hitherto.workspace_id', %s, true), set_config('lock_timeout', %s, true), "
                "set_config('client_min_messages', 'warning', true), "
                "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
                "WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
            )
            connection.execute(query, (str(self.workspace_id), str(self._binding[1])))

    def do(self, work: Callable[[Connection], T], *, bound: bool = False, writes: bool = False) -> T:
        """The one retry loop. Only what may be repeated comes here: a lost COMMIT is no `psycopg.Error` any more.
        `bound`: it binds its transactions itself. `writes`: it may have to wait for replicas, though nobody is told
        that they have it; so nobody waits for longer than the time there is."""
        deadline = time.monotonic() + self.timeout_seconds
        races = 0
        while True:
            try:
                with self.lease(deadline) as connection, self._watched(connection, writes=writes):
                    if bound or not self.shared.address.by_transaction:
                        return work(connection)
                    with connection.transaction():
                        self.bind(connection)
                        return work(connection)
            except (psycopg.Error, LostRaceError, Unavailable, ReadOnly) as error:
                races += isinstance(error, errors.UniqueViolation | LostRaceError)
                if races > _RACES or time.monotonic() > deadline or not _may_pass(error):
                    if isinstance(error, HithertoError):
                        raise
                    raise translated(error, self.shared.address.shown) from error
                self.retries += 1
                waited = isinstance(error, psycopg.OperationalError | Unavailable | ReadOnly)
            time.sleep(random.random() * (0.05 if waited else 0.005))

    def _watched(self, connection: Connection, *, writes: bool) -> AbstractContextManager[None]:
        return self.shared.watch.over(connection, self.timeout_seconds) if writes else nullcontext()


def _may_pass(error: Exception) -> bool:
    """Is it worth trying again? Races, deadlocks, lost connections, servers that stop, start or change places."""
    if isinstance(error, errors.UniqueViolation | LostRaceError):
        return True
    if isinstance(error, ReadOnly | Unavailable):  # a server that is not the primary any more, or not yet
        return True
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return True
    if isinstance(error, psycopg.Error) and error.sqlstate in _LIMITS:
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate
    if state is None:
        return not _refused(error)
    return state[:2] in ("08", "40", "57") or state == "53300"


# Limits that an administrator has set: on waiting for locks, and on transactions in which nothing happens.
_LIMITS = ("55P03", "25P03", "25P04")
_NO_TLS = (
    "does not support SSL",
    "certificate verify failed",
    "root certificate file",
    "server certificate for",
    "invalid sslmode value",
)
_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "Name or service not known",
    "no pg_hba.conf entry",
    "permission denied for database",
    "is not permitted to log in",
    "definition of service",
    *_NO_TLS,
)
_TOO_MANY = ("too many clients already", "too many connections for", "remaining connection slots are reserved")


def _refused(error: psycopg.OperationalError) -> bool:
    """Of what goes wrong when one connects, libpq has no code, but only the words of the server."""
    said = str(error)
    return any(words in said for words in _REFUSALS)


_POOLED = "a pooler that hands out transactions stands in between: pooler=transaction in the address"
_KINDS: dict[str, tuple[type[HithertoError], str, str]] = {
    "28": (
        CannotOpen,
        "the server refuses the user or the password",
        "check both; PGPASSWORD or ~/.pgpass may hold one",
    ),
    "3D": (CannotOpen, "there is no such database", "create it first: createdb NAME"),
    "42501": (Denied, "this role may not do it", "hitherto postgres role prints the statements that give the rights"),
    "25006": (ReadOnly, "the server is read-only", "it is a standby, or an administrator has made it read-only"),
    "53100": (StorageFull, "the server's disk is full", "free space on the server; purging goes on working"),
    "53300": (Busy, "the server has too many connections", "lower pool_size, or raise max_connections"),
    "53": (Unavailable, "the server is out of resources", "look at its log"),
    "26000": (StorageError, "what was prepared is gone", _POOLED),
    "42P05": (StorageError, "what is to be prepared is there already", _POOLED),
    "57014": (
        Busy,
        "something took too long, or had to wait for others for too long",
        "try again; a larger timeout_seconds waits longer, unless the server's statement_timeout is in the way",
    ),
    "54": (
        InvalidArgument,
        "something is too long for the server",
        "a label, a key or a project has to fit into an index: 2,000 bytes always do",
    ),
    "55P03": (Busy, "others held a lock for too long", "try again; a larger timeout_seconds waits longer"),
    "25P0": (Busy, "the server ended a transaction that took too long", "try again; its limits may be too narrow"),
    "40": (Busy, "others were in the way, again and again", "try again"),
    "23505": (Busy, "others were in the way, again and again", "try again"),
    "3F": (NotAStore, "the tables of the store are gone", "was the schema dropped while the store was open?"),
    "42P01": (NotAStore, "the tables of the store are gone", "was the schema dropped while the store was open?"),
    "42703": (NotAStore, "the tables are not as this hitherto knows them", "was the schema changed by hand?"),
    "XX001": (Damaged, "the server says that its data is damaged", "look at its log; restore from a backup"),
    "XX002": (Damaged, "the server says that an index is damaged", "look at its log; REINDEX may help"),
}


def translated(error: Exception, where: str) -> HithertoError:
    """What went wrong, as ours. Nothing of what was being written is in it."""
    if isinstance(error, HithertoError):
        return error
    if isinstance(error, LostRaceError):
        return Busy("others were in the way, again and again")
    state = getattr(error, "sqlstate", None) or ""
    if state == "42501" and "row-level security" in str(error):
        hint = (
            "it may be for another one; or a pooler stands in between that is not set to sessions: pooler=transaction"
        )
        return Denied(f"{where}: this role may not do it in this workspace", hint=hint)
    for code in (state, state[:4], state[:2]):
        if code in _KINDS:
            kind, what, hint = _KINDS[code]
            return kind(f"{where}: {what}", hint=hint)
    if isinstance(error, psycopg.OperationalError) and (not state or state[:2] in ("08", "57")):
        return _unreachable(error, where)
    return StorageError(f"{where}: the database does not do it: {type(error).__name__} {state}".rstrip())


def _unreachable(error: psycopg.OperationalError, where: str) -> HithertoError:
    said = " ".join(str(error).split())[:300]  # of the way to the server; there are no rows in it
    if "authentication failed" in said or "no password supplied" in said:
        return CannotOpen(f"{where}: the server refuses the user or the password", hint=_KINDS["28"][2])
    if any(words in said for words in _NO_TLS):
        return _in_clear(where)
    if any(words in said for words in _TOO_MANY):
        return Busy(f"{where}: {_KINDS['53300'][1]}", hint=_KINDS["53300"][2])
    if re.search('database ".*" does not exist', said):
        return CannotOpen(f"{where}: there is no such database", hint=_KINDS["3D"][2])
    if re.search('role ".*" does not exist', said):
        return CannotOpen(f"{where}: there is no such user", hint="create it, or name another one in the address")
    if "no pg_hba.conf entry" in said or "is not permitted to log in" in said:
        hint = "the server's pg_hba.conf says who may come from where; a role needs LOGIN"
        return CannotOpen(f"{where}: the server does not let this user in from here", hint=hint)
    if "definition of service" in said:
        return CannotOpen(f"{where}: there is no such service", hint="PGSERVICEFILE or ~/.pg_service.conf defines them")
    if "permission denied for database" in said:
        return Denied(f"{where}: this role may not connect to the database", hint="it needs CONNECT on it")
    return Unavailable(f"{where}: {said or 'the server does not answer'}")


def _in_clear(where: str) -> CannotOpen:
    hint = "set up TLS on the server, and sslrootcert; sslmode=disable in the address does without, in clear"
    return CannotOpen(f"{where}: the server does not do TLS as it is asked to", hint=hint)


os.register_at_fork(after_in_child=Shared.renew_lock)


def _patiently(work: Callable[[], T], timeout_seconds: float) -> T:
    """Enter a store: a server that starts, stops or changes places is waited for; one that does not answer at all, for
    a moment only, because then the address may be wrong."""
    began = time.monotonic()
    while True:
        try:
            return work()
        except psycopg.OperationalError as error:
            said = str(error)
            words = ("starting up", "shutting down", "in recovery mode", *_TOO_MANY)
            starting = (error.sqlstate or "")[:2] == "57" or any(some in said for some in words)
            limit = timeout_seconds if starting else min(timeout_seconds, _ANSWER_SECONDS)
            if not _may_pass(error) or time.monotonic() - began > limit:
                raise
        time.sleep(0.1)
