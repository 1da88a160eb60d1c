"""When is what was removed gone from the tables of a server? Not before nobody can see it, and a vacuum has been there.

The rows are looked for where PostgreSQL counts what a vacuum removes: another one has to find nothing.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import hitherto
from hitherto import Key, Message
from hitherto.backend import Batch, Change
from hitherto.backends.postgres import PostgresBackend, erasure, workspace_id
from hitherto.backends.postgres.connection import Connection
from hitherto.backends.postgres.schema import TABLES, rights
from hitherto.testing.conformance import A, create, message_row, noise, token

from ..support.databases import PATIENCE, Database, new_database

ROLE = f"service_{os.getpid()}"


@pytest.fixture
def database() -> Iterator[Database]:
    made = new_database()
    hitherto.open(made.url()).close()
    with made.admin() as admin:
        if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchall():
            admin.execute(f"CREATE ROLE {ROLE} LOGIN")
        for statement in rights(ROLE):
            admin.execute(statement)
    yield made
    with made.admin() as admin:
        admin.execute(f"DROP OWNED BY {ROLE}")


@pytest.fixture
def service(database: Database) -> Iterator[PostgresBackend]:
    """A role that may not vacuum: it waits for the server."""
    backend = PostgresBackend(database.url(ROLE), workspace="w")
    yield backend
    backend.close()


def removed(notices: list[str]) -> int:
    """How many rows a vacuum has removed."""
    counts = [line.split()[1] for text in notices for line in text.splitlines() if line.startswith("tuples: ")]
    return sum(map(int, counts))


def vacuum(admin: Connection, *tables: str, options: str = "VERBOSE") -> int:
    notices: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        notices.append(notice.message_primary or "")

    admin.execute("SET client_min_messages = info")
    admin.add_notice_handler(hear)
    for table in tables or TABLES:
        admin.execute(f"VACUUM ({options}) hitherto.{table}")
    admin.remove_notice_handler(hear)
    return removed(notices)


def purge(backend: PostgresBackend) -> None:
    backend.commit([Batch((Change(A, token(1), None),))])


def test_what_the_server_has_to_vacuum_is_gone_when_it_has(database: Database, service: PostgresBackend) -> None:
    service.commit([create(message_row(0, body=b"erased"))])
    purge(service)
    for _ in range(3):
        assert (service.scrub(), service.is_scrubbed()) == (False, False)
    with database.admin() as admin:
        vacuum(admin, *TABLES[1:])
        assert not service.scrub()  # one table is left
        vacuum(admin)
        assert (service.scrub(), service.is_scrubbed()) == (True, True)
        assert vacuum(admin, "message") == 0


@pytest.mark.parametrize("apart", [True, False], ids=["vacuumed apart", "with its table"])
def test_long_bodies_are_vacuumed_as_well(database: Database, service: PostgresBackend, apart: bool) -> None:
    """They lie in tables of their own, which the server vacuums when it is their turn."""
    service.commit([create(message_row(0, body=noise(20_000)))])
    purge(service)
    assert not service.scrub()
    with database.admin() as admin:
        vacuum(admin, options="VERBOSE, PROCESS_TOAST FALSE" if apart else "VERBOSE")
        assert service.scrub() is not apart
        assert (vacuum(admin, "message") > 0) is apart
        vacuum(admin)
        assert service.scrub()


def test_a_vacuum_that_was_past_the_place_does_not_count(database: Database, service: PostgresBackend) -> None:
    service.commit([create(message_row(0, body=b"erased"))])
    with database.admin() as admin, database.admin() as slow:
        query = (
            "INSERT INTO hitherto.message SELECT %s, 32 * g, 'x', g, NULL, NULL, true, 'user', 0, 0, "
            "repeat('y', 1500)::bytea, NULL, 't', 1, NULL FROM generate_series(1, 2000) g"
        )
        admin.execute(query, (workspace_id("w"),))
        slow.execute("SET vacuum_cost_delay = 10")
        slow.execute("SET vacuum_cost_limit = 20")
        thread = threading.Thread(target=slow.execute, args=("VACUUM hitherto.message",))
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while not admin.execute("SELECT 1 FROM pg_stat_progress_vacuum WHERE heap_blks_scanned > 40").fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        purge(service)
        assert not service.scrub()
        assert thread.is_alive()  # or it proves nothing
        thread.join()
        for _ in range(2):
            vacuum(admin, *(table for table in TABLES if table != "message"))
            assert not service.scrub()
        assert vacuum(admin, "message") == 1
        assert service.scrub()


@pytest.mark.parametrize("seconds", [0, 60])
def test_where_nothing_was_ever_changed_there_is_nothing_to_vacuum(
    database: Database, service: PostgresBackend, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the server has counted everything, which it takes its time for."""
    monkeypatch.setattr(erasure, "_LATE_SECONDS", seconds)
    service.commit([create(message_row(0, body=b"erased"))])
    purge(service)
    service.scrub()
    with database.admin() as admin:
        vacuum(admin, "workspace", "conversation", "gone", "message")
    assert service.scrub() is (seconds == 0)


LOST: dict[str, dict[str, object]] = {
    "after a crash the server counts anew": {"wanted": {"%": 90}},
    "the evidence is from another server": {"place": "1/2"},
    "it is from another table, as after a restore": {"place": "%/2"},
}


@pytest.mark.parametrize("what", LOST)
def test_what_a_server_counted_that_is_not_this_one_any_more_proves_nothing(
    database: Database, service: PostgresBackend, what: str
) -> None:
    """J1. The look begins again. The control is the same without the change."""
    service.commit([create(message_row(0, body=b"erased"))])
    purge(service)
    with database.admin() as admin:
        for _ in range(5):
            vacuum(admin)
        assert not service.scrub()
        query = "SELECT convert_from(evidence, 'UTF8')::jsonb FROM hitherto.workspace WHERE workspace_id = %s"
        [(evidence,)] = admin.execute(query, (workspace_id("w"),)).fetchall()
        if "wanted" in LOST[what]:
            evidence["wanted"] = {table: count + 90 for table, count in evidence["wanted"].items()}
        else:
            evidence["place"] = str(LOST[what]["place"]).replace("%", evidence["place"].partition("/")[0])
        change = "UPDATE hitherto.workspace SET evidence = convert_to(%s, 'UTF8') WHERE workspace_id = %s"
        admin.execute(change, (json.dumps(evidence), workspace_id("w")))
        vacuum(admin)
        assert not service.scrub()
        vacuum(admin)
        assert service.scrub()


def test_without_such_a_change_one_vacuum_is_enough(database: Database, service: PostgresBackend) -> None:
    """The control."""
    service.commit([create(message_row(0, body=b"erased"))])
    purge(service)
    assert not service.scrub()
    with database.admin() as admin:
        vacuum(admin)
    assert service.scrub()


def test_what_is_removed_after_the_look_needs_a_look_of_its_own(database: Database, service: PostgresBackend) -> None:
    service.commit([create(message_row(0, body=b"erased"))])
    purge(service)
    assert not service.scrub()
    service.commit([create(message_row(32, body=b"another"), version=9)])
    with database.admin() as admin:
        vacuum(admin)
        service.commit([Batch((Change(A, token(9), None),))])
        assert not service.scrub()
        assert not service.is_scrubbed()
        assert vacuum(admin, "message") == 1
        assert not service.scrub()
        vacuum(admin)
        assert (service.scrub(), service.is_scrubbed()) == (True, True)


def test_what_a_process_of_the_first_format_removed_is_looked_for(database: Database, service: PostgresBackend) -> None:
    service.commit([create(message_row(0, body=b"erased"))])
    with database.admin() as admin:
        admin.execute(
            "UPDATE hitherto.workspace SET untidy = pg_current_xact_id(), untidy_at = clock_timestamp(), awaited = NULL"
        )
        assert not service.is_scrubbed()
        assert not service.scrub()
        vacuum(admin)
        assert (service.scrub(), service.is_scrubbed()) == (True, True)


REPLACED: dict[str, Callable[[hitherto.Store], object]] = {
    "a message": lambda store: store.delete([store.latest().head]),  # type: ignore[union-attr, list-item]  # it is there
    "a label": lambda store: store.latest().label("other"),  # type: ignore[union-attr]  # the same
    "all data keys": lambda store: store.rotate(Key.generate()),
    "everything": lambda store: store.rotate(Key.generate(), reencrypt=True),
}


@pytest.mark.parametrize("what", REPLACED)
def test_what_is_replaced_has_to_be_vacuumed_too(database: Database, what: str) -> None:
    with hitherto.open(database.url(ROLE), workspace="s", key=Key.generate(), maintenance=False) as store:
        talk = store.start(title="T")
        talk.append(Message.user("x"))
        talk.append(Message.user("y"))
        assert store.backend.is_scrubbed()
        found = REPLACED[what](store)
        assert not store.backend.is_scrubbed()
        if isinstance(found, hitherto.reports.RotationReport):
            assert found.scrub_pending


def test_what_the_owner_purges_in_a_small_store_is_vacuumed_at_once(database: Database, tmp_path: Path) -> None:
    with hitherto.open(database.url(), workspace="o") as store:
        talk = store.start(title="T")
        talk.append(Message.user("Where do apples grow?"))
        assert list(store.search("apples"))
        assert not store.purge(talk, reason="user-requested").scrub_pending
    with database.admin() as admin:
        assert vacuum(admin, "message", "word", "pack") == 0


def test_words_that_are_forgotten_leave_a_mark(database: Database) -> None:
    with hitherto.open(database.url(ROLE), workspace="v", maintenance=False) as store:
        talk = store.start(title="T")
        talk.append(Message.user("Where do apples grow?"))
        assert list(store.search("apples"))
        index = store.backend.text_index(create=False)
        assert index is not None
        index.clear()
        assert not store.backend.is_scrubbed()


def test_of_a_partitioned_store_the_part_counts_that_a_workspace_is_in() -> None:
    database = new_database()
    hitherto.open(database.url("postgres", partitions=2)).close()
    with database.admin() as admin:
        for statement in rights(ROLE):
            admin.execute(statement)
    backend = PostgresBackend(database.url(ROLE), workspace="w")
    try:
        backend.commit([create(message_row(0, body=b"erased"))])
        purge(backend)
        assert not backend.scrub()
        with database.admin() as admin:
            query = "SELECT tableoid::regclass::text FROM hitherto.workspace WHERE workspace_id = %s"
            [(part,)] = admin.execute(query, (workspace_id("w"),)).fetchall()
            number = int(part.rpartition("_")[2])
            vacuum(admin, *(f"{table}_{1 - number}" for table in TABLES))
            assert not backend.scrub()
            vacuum(admin, *(f"{table}_{number}" for table in TABLES))
            assert backend.scrub()
    finally:
        backend.close()
        with database.admin() as admin:
            admin.execute(f"DROP OWNED BY {ROLE}")
