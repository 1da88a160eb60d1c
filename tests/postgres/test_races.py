"""Races between two statements, two connections or two processes, made to happen.

Beside a protection stands the same check without it.
"""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

import hitherto
from hitherto import Message
from hitherto.backend import DONE, Batch, Change, ConversationRow, Outcome, Stale
from hitherto.backends.postgres import PostgresBackend, connections, workspace_id
from hitherto.backends.postgres import connection as _link
from hitherto.backends.postgres.connection import Connection, Link, Watch
from hitherto.backends.postgres.connections import Shared
from hitherto.backends.postgres.erasure import Eraser
from hitherto.backends.postgres.schema import TABLES, rights
from hitherto.backends.postgres.writing import Writer
from hitherto.errors import Busy, CommitUnknown, Unavailable
from hitherto.testing.conformance import A, B, conversation_row, create, message_row, token, update

from ..support.databases import PATIENCE, Database, new_database
from ..support.forked import Forker
from ..support.thorough import THOROUGH

ROOT = Path(__file__).parents[2]
WAITS_FOR_A_LOCK = "wait_event_type = 'Lock'"


@pytest.fixture(scope="module")
def database() -> Database:
    made = new_database()
    hitherto.open(made.url()).close()
    return made


@pytest.fixture
def workspace() -> str:
    return os.urandom(4).hex()


@pytest.fixture
def opened(database: Database, workspace: str) -> Iterator[Callable[..., PostgresBackend]]:
    """Backends on one new workspace; the connections of one can be told from those of another."""
    made: list[PostgresBackend] = []

    def make(kind: type[PostgresBackend] = PostgresBackend, seconds: float = 10.0, **given: object) -> PostgresBackend:
        url = database.url("postgres", **{"application_name": f"{workspace}-{len(made)}", **given})
        made.append(kind(url, workspace=workspace, timeout_seconds=seconds))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def writing(kind: type[Writer]) -> type[PostgresBackend]:
    return type(kind.__name__, (PostgresBackend,), {"writer": kind})


# -- commits whose outcome is known, and what comes after


class CutOff(Writer):
    """Loses its connection after the commit, before it can read how the rows of others are now."""

    armed = True
    careless = False

    def _rows(self, connection: Connection, ids: Iterable[bytes]) -> dict[bytes, ConversationRow]:
        if self.armed:
            self.armed = False
            with psycopg.connect(connection.info.dsn, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        return super()._rows(connection, ids)


class Careless(CutOff):
    """Does not say that something is done already."""

    def _short(self, connection: Connection, batches: Any) -> list[Outcome]:
        try:
            return super()._short(connection, batches)
        except CommitUnknown as error:
            raise error.__cause__ or error from None


@pytest.mark.parametrize("kind", [CutOff, Careless], ids=["told", "control"])
def test_what_is_done_is_not_done_again_because_others_were_faster(
    opened: Callable[..., PostgresBackend], kind: type[CutOff]
) -> None:
    """Of two batches one is committed, the other is stale, and then the connection is lost. A retry would find the
    first one stale as well, because of its own commit, and would blame another writer."""
    backend, other = opened(writing(kind)), opened()
    other.commit([create(id=A), create(id=B)])
    other.commit([update(1, B)])
    both = [update(1, A), update(1, B)]
    if kind is CutOff:
        with pytest.raises(CommitUnknown):
            backend.commit(both)
    else:
        assert backend.commit(both) == [Stale(id, conversation_row(id, 2)) for id in (A, B)]
    assert [row.version for row in other.lookup(ids=[A, B])] == [2, 2]


def test_nothing_that_is_late_alone_is_in_doubt(opened: Callable[..., PostgresBackend]) -> None:
    backend = opened(writing(CutOff))
    backend.commit([create()])
    backend.commit([update(1)])
    assert backend.commit([update(1)]) == [Stale(A, conversation_row(A, 2))]


def all_at_once(connection: Connection, *statements: str) -> None:
    with connection.pipeline():
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("forgets", [True, False], ids=["forgets", "control"])
def test_what_was_never_prepared_because_of_an_error_is_not_used(
    opened: Callable[..., PostgresBackend], forgets: bool
) -> None:
    """In a pipeline, psycopg counts a statement as prepared when it is sent. After an error it is not prepared."""
    backend = opened(pool_size=1)
    with backend._bound.lease() as connection:
        for _ in range(5):
            connection.execute("SELECT 42")
        connection.execute("ROLLBACK")  # so that it is not the first one, which psycopg looks at
        with pytest.raises(psycopg.errors.DivisionByZero):
            all_at_once(connection, "BEGIN", "SELECT 1/0", "SELECT 42")
        if forgets:
            _link.roll_back(connection)
            assert connection.execute("SELECT 42").fetchall() == [(42,)]
        else:
            connection.execute("ROLLBACK")
            with pytest.raises(psycopg.errors.InvalidSqlStatementName):
                connection.execute("SELECT 42")


# -- those who wait for too long


def held_row(database: Database, workspace: str, connection: Connection) -> None:
    connection.execute("BEGIN")
    query = "SELECT 1 FROM hitherto.conversation WHERE workspace_id = %s FOR UPDATE"
    connection.execute(query, (workspace_id(workspace),))


@pytest.mark.parametrize("long", [False, True], ids=["short way", "long way"])
def test_a_row_that_is_never_let_go_is_not_waited_for_for_ever(
    database: Database, workspace: str, opened: Callable[..., PostgresBackend], long: bool
) -> None:
    backend = opened(seconds=0.5)
    backend.commit([create()])
    batch = update(1, tag=(hitherto.backend.Tag(b"t"),)) if long else update(1)
    with database.admin() as other, ThreadPoolExecutor(1) as threads:
        held_row(database, workspace, other)
        commit = threads.submit(backend.commit, [batch])
        try:
            assert isinstance(commit.exception(PATIENCE), Busy)
        finally:
            other.execute("ROLLBACK")
    assert backend.commit([batch]) == [DONE]


@pytest.mark.parametrize("guarded", [True, False], ids=["waited for", "control"])
def test_who_ends_a_commit_does_not_end_what_comes_after_it(
    database: Database,
    workspace: str,
    opened: Callable[..., PostgresBackend],
    guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit is late, somebody is about to end it, and it is done after all: the next one has the connection."""
    if not guarded:
        monkeypatch.setattr(_link._Watched, "leave", lambda _: None)
    backend = opened(seconds=0.3, pool_size=1)
    backend._bound._binding = workspace_id(workspace), 0  # locks are waited for
    backend.commit([create()])
    arrived, go, ended = threading.Event(), threading.Event(), threading.Event()
    cancel = psycopg.Connection.cancel_safe

    def slowly(connection: Connection, *, timeout: float) -> None:
        if not go.is_set():
            arrived.set()
            assert go.wait(PATIENCE)
            cancel(connection, timeout=timeout)
            ended.set()

    monkeypatch.setattr(Link, "cancel_safe", slowly)
    with database.admin() as other, ThreadPoolExecutor(2) as threads:
        held_row(database, workspace, other)
        commit = threads.submit(backend.commit, [update(1)])
        assert arrived.wait(PATIENCE)
        other.execute("COMMIT")
        if not guarded:
            assert commit.result(PATIENCE) == [DONE]
            with backend._bound.lease() as connection:
                sleeping = threads.submit(connection.execute, "SELECT pg_sleep(20)")
                database.until("query LIKE '%pg_sleep(20)' AND state = 'active'")
                go.set()
                assert isinstance(sleeping.exception(PATIENCE), psycopg.errors.QueryCanceled)
            return
        with pytest.raises(TimeoutError):
            commit.result(0.2)
        go.set()
        assert commit.result(PATIENCE) == [DONE]
        assert ended.is_set()
        with backend._bound.lease() as connection:
            connection.execute("SELECT pg_sleep(0.05)")


def test_a_way_that_is_stuck_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[..., PostgresBackend]
) -> None:
    """The server cannot be asked to cancel it. The waiting thread gets a lost connection, not a closed one."""
    backend = opened(seconds=0.3)

    def fail(_: Connection, *, timeout: float) -> None:
        raise psycopg.OperationalError(f"nobody answers within {timeout}")

    monkeypatch.setattr(Link, "cancel_safe", fail)
    with backend._bound.lease() as connection:
        with pytest.raises(psycopg.OperationalError), Watch().over(connection, 0.1):
            connection.execute("SELECT pg_sleep(5)")
        assert connection.closed


# -- isolation


class Held(Writer):
    """Stops before COMMIT until it is let go."""

    short_way = False

    def __init__(self, bound: connections.Bound) -> None:
        super().__init__(bound)
        self.arrived, self.go = threading.Event(), threading.Event()

    def finish(self, connection: Connection) -> None:
        self.arrived.set()
        assert self.go.wait(PATIENCE)
        super().finish(connection)


@pytest.mark.parametrize("chosen", [True, False], ids=["read committed", "control"])
def test_an_administrators_isolation_level_loses_no_attachment(
    database: Database, opened: Callable[..., PostgresBackend], chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After waiting for a lock, REPEATABLE READ still sees the old rows, and would remove an attachment in use."""
    if not chosen:
        monkeypatch.setattr(Link, "isolation_level", property(lambda _: None, lambda *_: None))
    held = opened(writing(Held))
    writer = cast("Held", held._writer)
    other = opened(options="-c%20default_transaction_isolation%3Drepeatable%5C%20read")
    writer.go.set()
    held.commit([create(message_row(0))])
    writer.go.clear()
    writer.arrived.clear()
    other.stage(A, b"name", 0, [b"x"], last=True, at=1)
    with ThreadPoolExecutor(2) as threads:
        adopting = threads.submit(held.commit, [update(1, attach=((0, b"name"),))])
        assert writer.arrived.wait(PATIENCE)
        removing = threads.submit(other.unstage, A, [b"name"])
        database.until(WAITS_FOR_A_LOCK)
        writer.go.set()
        assert adopting.result(PATIENCE) == [DONE]
        removing.result(PATIENCE)
    assert bool(other.check()) is not chosen


# -- the feed


class Spy:
    """A connection on which something happens before certain statements, or to them."""

    def __init__(self, connection: Connection, look: Callable[[str], str]) -> None:
        self._connection, self._look = connection, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, query: str, *given: Any, **how: Any) -> Any:
        return self._connection.execute(self._look(query), *given, **how)


@pytest.mark.parametrize("pooler", ["session", "transaction"])
def test_who_is_forgotten_while_the_feed_is_read_is_not_missed(
    opened: Callable[..., PostgresBackend], pooler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a pooler each statement sees things as they are at that moment."""
    monkeypatch.setattr("hitherto.backends.postgres._GRAVES", 0)
    other = opened()

    class Overtaken(PostgresBackend):
        def _changes(self, connection: Connection, since: bytes | None) -> Any:
            def look(query: str) -> str:
                if "hitherto.gone" in query:
                    other.maintain(1.0)
                return query

            return super()._changes(cast("Connection", Spy(connection, look)), since)

    reader = opened(Overtaken, pooler=pooler)
    ids = [bytes([number]) * 16 for number in range(3)]
    other.commit([create(id=id) for id in ids])
    position = reader.changes(None).position
    for id in ids:
        other.commit([Batch((Change(id, token(1), None),))])
    found = reader.changes(position)
    assert found.everything or set(found.gone) == set(ids)


def test_a_row_that_a_writer_holds_is_told_of_until_it_has_a_number(opened: Callable[..., PostgresBackend]) -> None:
    """Nobody waits for it, and what its writer is about to commit is not missed."""
    held, reader = opened(writing(Held)), opened(seconds=1.0)
    writer = cast("Held", held._writer)
    start = reader.changes(None).position
    reader.commit([create(id=A), create(id=B)])
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(held.commit, [update(1, id=A)])
        assert writer.arrived.wait(PATIENCE)
        found = reader.changes(start)
        assert set(found.moved) == {A, B}
        assert reader.changes(found.position).moved == [A]
        writer.go.set()
        assert late.result(PATIENCE) == [DONE]
    last = reader.changes(found.position)
    assert last.moved == [A]
    assert reader.changes(last.position).moved == []


# -- connections


def test_a_connection_to_a_primary_that_was_replaced_is_not_used_any_more(
    opened: Callable[..., PostgresBackend],
) -> None:
    """It was made before the next timeline was seen. The server may not know that it was replaced."""
    backend = opened(seconds=0.5)
    backend.commit([create()])
    shared = backend._bound.shared
    shared.timeline += 1  # as another connection would find it
    with pytest.raises(Unavailable, match="old primary") as raised:
        backend.lookup(ids=[A])
    assert raised.value.__cause__ is not raised.value
    shared.timeline -= 1
    assert backend.lookup(ids=[A])


def test_trouble_that_goes_while_it_is_told_is_no_trouble(
    opened: Callable[..., PostgresBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread has got through, just when we are about to say why nobody does."""
    backend = opened(seconds=0.3, pool_size=1)
    looks = itertools.cycle([None, Unavailable("gone in a moment")])
    monkeypatch.setattr(Shared, "trouble", property(lambda _: next(looks), lambda *_: None), raising=False)
    with backend._bound.lease(), pytest.raises((Busy, Unavailable)):
        backend.edge()
    assert backend.edge() == 0


def test_pools_of_different_sizes_are_different(database: Database, opened: Callable[..., PostgresBackend]) -> None:
    small, large = opened(application_name="same", pool_size=1), opened(application_name="same", pool_size=3)
    again = opened(application_name="same", pool_size=1)
    assert small._bound.shared is again._bound.shared
    assert small._bound.shared is not large._bound.shared


FORKED = """
import os, sys, threading, hitherto
from hitherto.backends.postgres.connections import Shared

store = hitherto.open(sys.argv[1])
held, go = threading.Event(), threading.Event()

def hold():
    with Shared._lock:
        held.set()
        go.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    hitherto.open(sys.argv[1]).close()
    os._exit(0)
ended = os.waitpid(child, 0)[1]
go.set()
thread.join()
store.close()
sys.exit(ended)
"""


def test_a_process_that_is_forked_while_a_store_is_opened_may_open_one(database: Database) -> None:
    command = [sys.executable, "-W", "ignore:This process", "-c", FORKED, database.url()]  # that threads are forked
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")


# -- who sees what


def test_a_connection_sees_and_touches_the_rows_of_its_workspace_alone(database: Database, workspace: str) -> None:
    """With statements of one's own, in every table; and sees them all when a policy is gone."""
    names = [f"{workspace} {number}" for number in range(2)]
    for name in names:
        with hitherto.open(database.url(), workspace=name) as store:
            talk = store.start(title="T")
            talk.append(Message.user([hitherto.Block.text("apples"), hitherto.Block.image(b"1" * 70_000, "image/png")]))
            talk.extend([Message.user("more")] * 40)
            talk.label("marked")
            store.search("apples")
            store.maintain()
            store.purge(store.start(), reason="user-requested")
    mine, theirs = map(workspace_id, names)
    role = f"r{workspace}"
    with database.admin() as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
        for statement in rights(role):
            admin.execute(statement)
        filled = [table for table in TABLES if _count(admin, table, [mine]) and _count(admin, table, [theirs])]
        assert set(TABLES) - set(filled) <= {"pack", "item", "attachment", "chunk", "reference", "tag", "gone"}
        with database.admin(role) as app:
            for table in TABLES:
                assert _count(app, table, [mine, theirs]) == 0  # bound to nobody
            app.execute("SELECT set_config('hitherto.workspace_id', %s, false)", (str(mine),))
            for table in filled:
                _is_fenced(app, table, mine, theirs)
            for table in filled:
                admin.execute(f"ALTER TABLE hitherto.{table} DISABLE ROW LEVEL SECURITY")
                assert _count(app, table, [theirs]) > 0
                admin.execute(f"ALTER TABLE hitherto.{table} ENABLE ROW LEVEL SECURITY")
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")
    print(filled)


def _count(connection: Connection, table: str, workspaces: list[Any]) -> int:
    query = f"SELECT count(*) FROM hitherto.{table} WHERE workspace_id = ANY(%s)"
    return int(connection.execute(query, (workspaces,)).fetchall()[0][0])


def _is_fenced(app: Connection, table: str, mine: Any, theirs: Any) -> None:
    assert _count(app, table, [mine]) > 0
    assert _count(app, table, [theirs]) == 0
    assert app.execute(f"SELECT count(*) FROM hitherto.{table}").fetchall() == [(_count(app, table, [mine]),)]
    assert app.execute(f"DELETE FROM hitherto.{table} WHERE workspace_id = %s", (theirs,)).rowcount == 0
    change = f"UPDATE hitherto.{table} SET workspace_id = %s WHERE workspace_id = %s"
    assert app.execute(change, (mine, theirs)).rowcount == 0
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute(change, (theirs, mine))
    columns = app.execute(
        "SELECT string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position) FROM information_schema.columns "
        "WHERE table_schema = 'hitherto' AND table_name = %s AND column_name <> 'workspace_id'",
        (table,),
    ).fetchall()[0][0]
    copy = f"INSERT INTO hitherto.{table} (workspace_id, {columns}) SELECT %s, {columns} FROM hitherto.{table} LIMIT 1"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute(copy, (theirs,))


# -- everything at once


def test_processes_that_do_everything_to_the_same_conversations_do_no_harm(
    database: Database, workspace: str, forker: Forker
) -> None:
    """C15: the short way, the long way, purges, packs and attachments, by four processes."""
    seconds = 20 if THOROUGH else 2
    reader, writer = os.pipe()
    processes = []
    for seed in range(4):
        given = [database.url(), workspace, str(seed), str(seconds)]
        processes.append(
            forker.start(
                given, module="tests.support.stress_worker", cwd=ROOT, env=os.environ, streams=[reader, writer, 2]
            )
        )
    os.close(reader)
    os.close(writer)
    assert [process.wait(seconds + 40) for process in processes] == [0] * 4
    with hitherto.open(database.url(), workspace=workspace) as store:
        assert store.verify().problems == ()
        assert store.backend.check() == []


# -- erasure


def test_what_somebody_saw_while_it_was_vacuumed_is_not_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that still sees the rows keeps them in the files, and ends before the check for it."""
    database, vacuum = new_database(), Eraser._vacuum
    with database.admin() as reader, monkeypatch.context() as patched:

        def overtaken(eraser: Eraser, connection: Connection) -> bool:
            done = vacuum(eraser, connection)
            reader.execute("COMMIT")
            return done

        patched.setattr(Eraser, "_vacuum", overtaken)
        backend = PostgresBackend(database.url())
        backend.commit([create(message_row(0, body=b"erased " * 9))])
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        backend.commit([Batch((Change(A, token(1), None),))])
        assert not backend.scrub()
        assert not backend.is_scrubbed()
        reader.execute("COMMIT")
    with database.admin() as reader, new_database().admin() as elsewhere:
        elsewhere.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        elsewhere.execute("SELECT 1")  # which sees nothing of this one
        backend.commit([create()])
        backend.commit([Batch((Change(A, token(1), None),))])
        assert backend.scrub()
        assert backend.is_scrubbed()
    backend.close()
