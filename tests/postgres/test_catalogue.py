"""The schema can be spread over machines by its workspaces, and so can what is said to it.

Each rule of `support.catalogue` has an offender beside it that is found.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto.backends.postgres.schema import TABLES
from hitherto.backends.postgres.schema import statements as ddl

from ..support.catalogue import offences, spoken
from ..support.databases import Connection, Database, new_database
from ..support.statements import explained
from .test_plans import a_day, model

SOURCE = Path(hitherto.__file__).parent / "backends" / "postgres"


@pytest.fixture(scope="module")
def database() -> Database:
    database = new_database()
    hitherto.open(database.url()).close()
    return database


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """Changes through this connection are rolled back."""
    with database.admin() as connection, connection.transaction(force_rollback=True):
        yield connection


def test_the_workspace_comes_first_everywhere_and_nothing_is_for_all(connection: Connection) -> None:
    assert offences(connection) == []


def test_the_same_holds_of_the_partitioned_schema(connection: Connection) -> None:
    connection.execute("DROP SCHEMA hitherto CASCADE; CREATE SCHEMA hitherto")
    for statement in ddl(partitions=3):
        connection.execute(statement)
    assert offences(connection) == []
    query = "SELECT count(*) FROM pg_class WHERE relkind = 'p' AND relnamespace = 'hitherto'::regnamespace"
    assert connection.execute(query).fetchall() == [(len(TABLES),)]


OFFENDERS = {
    "the primary key": "ALTER TABLE hitherto.item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (key, workspace_id)",
    "the unique index": "CREATE UNIQUE INDEX wrong ON hitherto.message (number, workspace_id)",
    "the index": "CREATE INDEX wrong ON hitherto.message (conversation)",
    "begins with an expression": "CREATE INDEX wrong ON hitherto.message ((number % 32))",
    "has no primary key": "CREATE TABLE hitherto.wrong (workspace_id uuid NOT NULL)",
    "does not begin with both workspaces": (
        "CREATE UNIQUE INDEX wrong ON hitherto.conversation (id); "
        "ALTER TABLE hitherto.item ADD CONSTRAINT wrong FOREIGN KEY (conversation) "
        "REFERENCES hitherto.conversation (id)"
    ),
    "there is a sequence": "CREATE SEQUENCE hitherto.wrong",
    "is an identity": "ALTER TABLE hitherto.item ADD wrong bigint GENERATED ALWAYS AS IDENTITY",
    "there is a trigger": (
        "CREATE TRIGGER wrong BEFORE UPDATE ON hitherto.item FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    ),
    "there is a rule": "CREATE RULE wrong AS ON DELETE TO hitherto.item DO INSTEAD NOTHING",
    "there is a view": "CREATE VIEW hitherto.wrong AS SELECT id FROM hitherto.conversation",
    "runs with the rights of its owner": (
        "CREATE FUNCTION hitherto.wrong() RETURNS bigint LANGUAGE sql SECURITY DEFINER "
        "AS 'SELECT count(*) FROM hitherto.message'"
    ),
    "has no column": "CREATE TABLE hitherto.wrong (id uuid PRIMARY KEY)",
    "has no row-level security": "ALTER TABLE hitherto.item NO FORCE ROW LEVEL SECURITY",
    "no policy binds": "DROP POLICY bound ON hitherto.item",
    "lets everything be seen": "CREATE POLICY wrong ON hitherto.item USING (true)",
}


@pytest.mark.parametrize(("rule", "offender"), OFFENDERS.items(), ids=[rule.replace(" ", "-") for rule in OFFENDERS])
def test_an_offender_is_found(connection: Connection, rule: str, offender: str) -> None:
    for statement in offender.split("; "):
        connection.execute(statement)
    assert any(rule in problem for problem in offences(connection)), offences(connection)


def test_what_is_said_names_the_workspace_and_locks_nothing_for_all(database: Database) -> None:
    with (
        database.admin() as aside,
        explained(aside) as statements,
        hitherto.open(database.url(), workspace="said", maintenance=False) as store,
    ):
        model(store, 2, 3)
        a_day(store)
        store.verify()
        store.stats()
        store.scrub()
    assert len(statements) > 70
    assert spoken(statements, TABLES) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "SELECT body FROM hitherto.message WHERE number = %s",
        "SELECT m.body FROM hitherto.message m, hitherto.pack p WHERE p.workspace_id = %s AND m.number = p.first",
        "UPDATE hitherto.conversation SET held = true WHERE id = %s",
        "SELECT body FROM message WHERE workspace_id = %s",
        "SELECT pg_advisory_xact_lock(%s) FROM hitherto.workspace WHERE workspace_id = %s",
        "LISTEN changes",
        "SELECT pg_notify('changes', 'x')",
        "SELECT nextval('numbers')",
        "LOCK TABLE hitherto.message",
    ],
)
def test_a_wrong_word_is_heard(wrong: str) -> None:
    assert len(spoken([wrong], TABLES)) == 1


def test_no_source_speaks_of_what_would_lock_or_count_for_all() -> None:
    texts = [path.read_text("utf-8") for path in SOURCE.glob("*.py")]
    code = "\n".join(line for text in texts for line in text.splitlines() if '"' in line and "%s" in line)
    assert len(code) > 5_000
    assert spoken(code.splitlines(), ()) == []
