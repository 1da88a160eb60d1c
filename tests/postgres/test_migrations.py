"""Many processes may start at once, on an empty database and on one of an older version, while others write.

The processes are real, and so is what ends them. Beside a protection stands the same check without it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Message, Store
from hitherto.backends.postgres import PostgresBackend, schema
from hitherto.backends.postgres.schema import MIGRATIONS, Step, rights
from hitherto.errors import (
    Busy,
    CannotOpen,
    Denied,
    HithertoError,
    NewerFormat,
    NotAStore,
    NotFound,
    ReadOnly,
    StorageError,
)

from ..support.databases import PATIENCE, Connection, Database, new_database
from ..support.forked import Forked, Forker
from ..support.migration_race import COLUMN, INDEX

AT_ONCE = 8
WAITS_FOR_A_LOCK = "wait_event_type = 'Lock'"
TAKEN = "SELECT array_agg(name ORDER BY version) FROM hitherto.migration"
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'hitherto.by_extra'::regclass"


@pytest.fixture
def database() -> Database:
    return new_database()


class Migrants:
    """A process that becomes several."""

    def __init__(self, forker: Forker, url: str, how: str, count: int = AT_ONCE) -> None:
        given, go = os.pipe()
        told, said = os.pipe()
        self._go, self._said = os.fdopen(go, "wb", buffering=0), os.fdopen(told)
        root = Path(__file__).parents[2]
        self.process: Forked = forker.start(
            [url, str(count), how],
            module="tests.support.migration_race",
            cwd=root,
            env=os.environ,
            streams=[given, said, 2],
        )
        os.close(given)
        os.close(said)

    def go(self) -> None:
        assert self._said.readline() == "ready\n"
        self._go.write(b"\n")

    def failed(self) -> tuple[int, str]:
        """How many, and what they said."""
        return self.process.wait(PATIENCE * 2), self._said.read()

    def kill(self) -> None:
        """All of them."""
        if self.process.poll() is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for one in (self.process.pid, *map(int, children)):
                os.kill(one, signal.SIGKILL)
            self.process.wait(PATIENCE)

    def close(self) -> None:
        self.kill()
        self._go.close()
        self._said.close()


@pytest.fixture
def migrants(forker: Forker, database: Database) -> Iterator[Callable[..., Migrants]]:
    made: list[Migrants] = []

    def make(how: str, count: int = AT_ONCE) -> Migrants:
        made.append(Migrants(forker, database.url(), how, count))
        return made[-1]

    yield make
    for several in made:
        several.close()


HOW: tuple[dict[str, Any], ...] = ({}, {"read_only": True}, {"create": False})


def names(*steps: Step) -> list[str]:
    return [step.name for step in (*MIGRATIONS, *steps)]


def texts(store: Store) -> list[str]:
    return sorted(message.text for message in store.messages())


# -- an empty database


def test_processes_that_start_at_once_make_the_tables_once(
    database: Database, migrants: Callable[..., Migrants]
) -> None:
    """C15."""
    several = migrants("")
    several.go()
    assert several.failed() == (0, "")
    assert database.ask(TAKEN) == names()
    with hitherto.open(database.url(), workspace="migrants") as store:
        assert texts(store) == [f"migrant {number}" for number in range(AT_ONCE)]
        assert store.verify().ok


def test_without_patience_some_of_them_fail(database: Database, migrants: Callable[..., Migrants]) -> None:
    """The control. They may happen not to meet, but not every time."""
    for _ in range(10):
        several = migrants("hasty")
        several.go()
        if several.failed()[0] > 0:
            return
        with database.admin() as admin:
            admin.execute("DROP SCHEMA hitherto CASCADE")
    pytest.fail("they never met")


@pytest.mark.parametrize("how", [{"create": False}, {"read_only": True}], ids=["create", "read only"])
def test_who_may_not_make_anything_makes_nothing(database: Database, how: dict[str, Any]) -> None:
    with pytest.raises(CannotOpen, match="no store") as raised:
        hitherto.open(database.url(), **how)
    assert raised.value.hint
    assert database.ask("SELECT count(*) FROM pg_namespace WHERE nspname = 'hitherto'") == 0
    hitherto.open(database.url(), workspace="another").close()
    with pytest.raises(NotFound, match="workspace"):
        hitherto.open(database.url(), **how)
    assert database.ask("SELECT count(*) FROM hitherto.workspace") == 1


# -- a later version


@contextmanager
def newer(*steps: Step) -> Iterator[None]:
    """As a later version of hitherto would do it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, *steps))
        yield


def test_processes_of_a_later_version_race_while_the_older_one_writes(
    database: Database, migrants: Callable[..., Migrants]
) -> None:
    """A column and an index come; nobody who writes fails or waits for long; the steps are taken once."""
    several = migrants("later")
    stalls: list[float] = []
    with hitherto.open(database.url(pool_size=3), workspace="old") as store, ThreadPoolExecutor(2) as threads:
        store.start().append(Message.user("early"))
        done = threading.Event()
        both = threading.Barrier(3)

        def write(number: int) -> int:
            talk = store.start()
            both.wait(PATIENCE)
            count = 0
            while not done.is_set():
                begun = time.monotonic()
                talk.append(Message.user(f"{number}"))
                stalls.append(time.monotonic() - begun)
                count += 1
            return count

        writing = [threads.submit(write, number) for number in range(2)]
        both.wait(PATIENCE)
        several.go()
        failed = several.failed()
        done.set()
        written = sum(one.result(PATIENCE) for one in writing)
        assert failed == (0, "")
        assert database.ask(TAKEN) == names(COLUMN, INDEX)
        assert database.ask(VALID) is True
        assert len(texts(store)) == written + 1
        assert store.verify().ok
    print(f"{written} messages, longest stall {max(stalls):.2f} s")
    assert max(stalls) < PATIENCE


@pytest.mark.parametrize("patient", [True, False], ids=["for a moment", "control"])
def test_a_step_that_has_to_wait_for_a_lock_does_not_make_writers_wait(
    database: Database, patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long read holds up the step, and writers would wait behind the step."""
    if not patient:
        monkeypatch.setattr(schema, "_LOCK_SECONDS", 0)  # as long as it takes
    with hitherto.open(database.url(), workspace="old") as store, database.admin() as reader:
        talk = store.start()
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM hitherto.conversation")
        with ThreadPoolExecutor(2) as threads:
            with newer(COLUMN):
                migrating = threads.submit(hitherto.open, database.url(application_name="new"), workspace="new")
                database.until(WAITS_FOR_A_LOCK)
                begun = time.monotonic()
                writing = threads.submit(talk.append, Message.user("meanwhile"))
                if patient:
                    writing.result(PATIENCE)
                    print(f"stalled for {time.monotonic() - begun:.2f} s")
                else:
                    database.until(WAITS_FOR_A_LOCK, 2)
                assert writing.done() is patient
                assert not migrating.done()
                reader.execute("COMMIT")
                migrating.result(PATIENCE).close()
            writing.result(PATIENCE)
        assert texts(store) == ["meanwhile"]


def test_a_step_that_never_gets_its_lock_ends_in_a_clear_error(database: Database) -> None:
    with hitherto.open(database.url(), workspace="old"), database.admin() as reader, newer(COLUMN):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM hitherto.conversation")
        with pytest.raises(Busy, match="others are in the way") as raised:
            hitherto.open(database.url(application_name="new"), timeout_seconds=0.5)
        assert raised.value.hint
    assert database.ask(TAKEN) == names()


@contextmanager
def held_up(database: Database) -> Iterator[Connection]:
    """An index that is being made waits for whoever has written to the table, and is not done yet."""
    with database.admin() as writer:
        writer.execute("BEGIN")
        writer.execute("LOCK TABLE hitherto.conversation IN ROW EXCLUSIVE MODE")
        yield writer


@pytest.mark.parametrize("clear", [True, False], ids=["cleared", "control"])
def test_an_index_that_a_killed_process_left_is_made_anew(
    database: Database, migrants: Callable[..., Migrants], clear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL keeps what there is of it, and says that it is there; it is never used. Writers go on all the time."""
    with hitherto.open(database.url(), workspace="old") as store:
        talk = store.start()
        one = migrants("index", 1)
        with held_up(database):
            one.go()
            (pid,) = database.until(f"query LIKE 'CREATE INDEX%' AND {WAITS_FOR_A_LOCK}")
            talk.append(Message.user("meanwhile"))
            one.kill()
            assert database.ask("SELECT pg_terminate_backend(%s, %s)", (pid, PATIENCE * 1000))
    assert database.ask(VALID) is False
    if not clear:
        monkeypatch.setattr(schema, "_clear", lambda *_: None)
    with newer(INDEX):
        hitherto.open(database.url(), workspace="new").close()
    assert database.ask(TAKEN) == names(INDEX)
    assert database.ask(VALID) is clear


def test_an_index_that_another_process_is_making_is_left_alone(
    database: Database, migrants: Callable[..., Migrants]
) -> None:
    """During its creation the index looks like an abandoned one. The second process waits for the first."""
    hitherto.open(database.url(), workspace="old").close()
    first = migrants("index", 1)
    with held_up(database) as writer, ThreadPoolExecutor(1) as threads, newer(INDEX):
        first.go()
        (pid,) = database.until(f"query LIKE 'CREATE INDEX%' AND {WAITS_FOR_A_LOCK}")
        second = threads.submit(hitherto.open, database.url(), workspace="new")
        database.until(f"query LIKE 'LOCK TABLE hitherto.migration%' AND {WAITS_FOR_A_LOCK}")
        assert database.until("query LIKE '%by_extra%'") == [pid]
        oid = database.ask("SELECT 'hitherto.by_extra'::regclass::oid")
        writer.execute("COMMIT")
        assert first.failed() == (0, "")
        second.result(PATIENCE).close()
    assert database.ask(VALID) is True
    assert database.ask("SELECT 'hitherto.by_extra'::regclass::oid") == oid


# -- two versions at once


def test_an_old_process_goes_on_and_its_new_connections_are_refused(database: Database) -> None:
    """Its existing statements keep working, because a step must not break them. New connections are refused."""
    with hitherto.open(database.url(), workspace="one") as store:
        talk = store.start()
        with newer(COLUMN):
            hitherto.open(database.url(application_name="new"), workspace="two").close()
        talk.append(Message.user("still here"))
        assert texts(store) == ["still here"]
        backend = store.backend
        assert isinstance(backend, PostgresBackend)
        with backend._bound.lease(), pytest.raises(NewerFormat) as raised:
            store.latest()
        assert raised.value.hint
        with pytest.raises(NewerFormat, match=f"format {len(MIGRATIONS) + 1}"):
            hitherto.open(database.url(application_name="late"), workspace="one")
        talk.append(Message.user("and still"))
        assert len(talk.thread()) == 2


def test_a_newer_format_is_not_touched(database: Database) -> None:
    with newer(COLUMN):
        hitherto.open(database.url()).close()
    before = catalogue(database)
    for how in HOW:
        with pytest.raises(NewerFormat):
            hitherto.open(database.url(), **how)
    assert catalogue(database) == before


def test_an_older_format_is_not_brought_up_to_date_by_who_only_reads(database: Database) -> None:
    hitherto.open(database.url()).close()
    with newer(COLUMN), pytest.raises(ReadOnly, match="older") as raised:
        hitherto.open(database.url(), read_only=True)
    assert raised.value.hint
    assert database.ask(TAKEN) == names()


# -- trouble on the way


def test_a_step_that_fails_leaves_nothing(database: Database) -> None:
    broken = Step("broken", ("CREATE TABLE hitherto.half (workspace_id uuid)", "SELECT 1 / 0"))
    with hitherto.open(database.url(), workspace="old") as store:
        with newer(broken), pytest.raises(StorageError):
            hitherto.open(database.url(application_name="new"))
        assert database.ask("SELECT to_regclass('hitherto.half') IS NULL")
        store.start().append(Message.user("unharmed"))
    with newer(COLUMN):
        hitherto.open(database.url()).close()
    assert database.ask(TAKEN) == names(COLUMN)


@pytest.mark.parametrize("who", ["process", "connection"])
def test_a_step_that_is_interrupted_is_taken_again(
    database: Database, migrants: Callable[..., Migrants], who: str
) -> None:
    """A process that is killed leaves nothing; one that loses its connection takes the step in the next one."""
    hitherto.open(database.url(), workspace="migrants").close()
    one = migrants("halt", 1)
    with database.admin() as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM hitherto.workspace")
        one.go()
        (pid,) = database.until(WAITS_FOR_A_LOCK)
        if who == "process":
            one.kill()
        else:
            assert database.ask("SELECT pg_terminate_backend(%s, %s)", (pid, PATIENCE * 1000))
            assert database.until(WAITS_FOR_A_LOCK) != [pid]
        assert database.ask(TAKEN) == names()
        reader.execute("COMMIT")
    if who == "connection":
        assert one.failed() == (0, "")
        assert database.ask(TAKEN) == [*names(), "halting"]
        return
    with newer(Step("halting", ("CREATE TABLE hitherto.half (workspace_id uuid)",))):
        hitherto.open(database.url(), workspace="migrants").close()
    assert database.ask(TAKEN) == [*names(), "halting"]


# -- rights


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = "r" + os.urandom(4).hex()
    with database.admin() as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")


def refused(database: Database, role: str) -> str:
    with pytest.raises(Denied) as raised:
        hitherto.open(database.url(role))
    assert raised.value.hint
    return str(raised.value)


def test_a_role_without_rights_is_told_what_it_needs(database: Database, role: str) -> None:
    assert "make the tables" in refused(database, role)
    assert database.ask("SELECT to_regnamespace('hitherto') IS NULL")
    hitherto.open(database.url()).close()
    refused(database, role)
    with database.admin() as admin:
        admin.execute(f"GRANT USAGE ON SCHEMA hitherto TO {role}")
        assert "no rights" in refused(database, role)
        for statement in rights(role):
            admin.execute(statement)
    hitherto.open(database.url(role)).close()
    with newer(COLUMN):
        assert "change them" in refused(database, role)


def test_a_schema_that_was_made_for_a_role_is_enough(database: Database, role: str) -> None:
    """It may make nothing else in this database."""
    with database.admin() as admin:
        admin.execute(f"CREATE SCHEMA hitherto AUTHORIZATION {role}")
    with hitherto.open(database.url(role)) as store:
        store.start().append(Message.user("mine"))
        assert texts(store) == ["mine"]


# -- what is not ours

FOREIGN = {
    "a table": "CREATE TABLE hitherto.other (a integer)",
    "a function": "CREATE FUNCTION hitherto.f() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "a type": "CREATE TYPE hitherto.mood AS ENUM ('good')",
    "another record": "CREATE TABLE hitherto.migration (version text, at date)",
    "an empty record": "CREATE TABLE hitherto.migration (version integer, name text)",
    "a record of other steps": (
        "CREATE TABLE hitherto.migration (version integer, name text); "
        "INSERT INTO hitherto.migration VALUES (1, 'users'), (2, 'orders')"
    ),
    "a view": "CREATE VIEW hitherto.migration AS SELECT 1 AS version",
    "a sequence": "CREATE SEQUENCE hitherto.migration",
}


def catalogue(database: Database) -> list[tuple[Any, ...]]:
    """Everything that there is in our schema."""
    query = (
        "SELECT 'class', relname::text, pg_relation_filenode(oid)::text FROM pg_class WHERE relnamespace = n.oid "
        "UNION ALL SELECT 'function', proname::text, '' FROM pg_proc WHERE pronamespace = n.oid "
        "UNION ALL SELECT 'type', typname::text, '' FROM pg_type WHERE typnamespace = n.oid"
    )
    with database.admin() as admin:
        every = (
            f"SELECT x.* FROM pg_namespace n CROSS JOIN LATERAL ({query}) x WHERE nspname = 'hitherto' ORDER BY 1, 2"
        )
        return sorted(admin.execute(every).fetchall())


@pytest.mark.parametrize("what", FOREIGN)
def test_a_schema_of_others_is_refused_and_not_touched(database: Database, what: str) -> None:
    with database.admin() as admin:
        admin.execute("CREATE SCHEMA hitherto")
        admin.execute(FOREIGN[what])
    before = catalogue(database)
    for how in HOW:
        with pytest.raises(NotAStore) as raised:
            hitherto.open(database.url(), **how)
        assert raised.value.hint
    assert catalogue(database) == before


def test_tables_that_go_while_a_store_is_open_are_an_error_of_ours(database: Database) -> None:
    with hitherto.open(database.url()) as store:
        talk = store.start()
        with database.admin() as admin:
            admin.execute("DROP SCHEMA hitherto CASCADE")
        for work in (lambda: talk.append(Message.user("lost")), store.latest, lambda: list(store.messages())):
            with pytest.raises(HithertoError) as raised:
                work()
            assert "lost" not in str(raised.value)
