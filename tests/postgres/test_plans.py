"""PostgreSQL goes straight to the rows it is asked for, on every path that people wait for.

The statements are those that a store really sends; each is explained where it runs (`support.statements`), in a
database of thousands of workspaces, of which one is large: there PostgreSQL would rather read all of a table, if it had
to.
"""

from contextlib import suppress
from itertools import islice
from pathlib import Path

import psycopg
import pytest

import hitherto
from hitherto import Block, Message, Store
from hitherto.backend import Where
from hitherto.backends.postgres import workspace_id
from hitherto.backends.postgres.schema import rights
from hitherto.reports import VerifyReport

from ..support.bulk import multiply, span, spread
from ..support.databases import Connection, Database, new_database
from ..support.statements import Statement, explained, offences, without_values

WORKSPACES = 2_000
COPIES = 200  # of what is in the large workspace
ROLE = "bound_by_security"  # an ordinary one; for superusers there is no row-level security


_GONE = (  # in each workspace as many as a feed remembers
    "INSERT INTO hitherto.gone SELECT workspace_id, sha256(int8send(n)), (n % 100)::text::xid8 "
    "FROM hitherto.workspace, generate_series(1, 20) AS n"
)


def model(store: Store, conversations: int, messages: int) -> None:
    """Something of everything."""
    for number in range(conversations):
        talk = store.ensure(f"talk {number}", title=f"About {number}", system_prompt="You know all about apples.")
        talk.extend([Message.user(f"What about the {number}.{n}th of all apples?") for n in range(messages)])
        talk.label("marked")
        if number:
            talk.append(Message.user([Block.image(bytes([n]) * 70_000, "image/png") for n in range(2)]))
    store.purge(store.start(title="Gone"), reason="user-requested")
    store.maintain()
    store.search("apples")


@pytest.fixture(scope="module")
def database() -> Database:
    database = new_database()
    with hitherto.open(database.url(), workspace="model") as store:
        model(store, 2, 8)
    with hitherto.open(database.url(), workspace="large") as store:
        model(store, 2, 24)
    with database.admin() as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN")
        for statement in rights(ROLE):
            connection.execute(statement)
        connection.execute("UPDATE hitherto.chunk SET body = ''")  # nobody reads them, and there will be thousands
        spread(connection, "model", [f"w{number}" for number in range(WORKSPACES)])
        multiply(connection, "large", range(1, COPIES), span(connection, "large"))
        connection.execute(_GONE)
        connection.execute("VACUUM ANALYZE")
    return database


def test_what_is_multiplied_is_as_a_store_wrote_it() -> None:
    """Or plans, and figures, would be of something else."""
    database = new_database()
    with hitherto.open(database.url(), workspace="model") as store:
        model(store, 2, 40)
    with database.admin() as connection:
        spread(connection, "model", ["one", "two"])
        multiply(connection, "one", range(1, 4), span(connection, "one"))
        multiply(connection, "two", range(5, 7), span(connection, "model"), model="model")
    for workspace, copies in (("one", 4), ("two", 3)):
        with hitherto.open(database.url(), workspace=workspace) as store:
            assert store.verify() == VerifyReport((), 2 * copies, 81 * copies)
            assert len(store.search("apples", limit=1000)) == 80 * copies
            for found in store.conversations(limit=100).items:
                store.conversation(found).append(Message.user("more apples"))
            assert store.verify().ok
            assert len(store.search("apples", limit=1000)) == 82 * copies


def a_day(store: Store) -> None:
    """The operations that people wait for, and those that run in the background all the time."""
    talk = store.ensure("talk 0")
    talk.append(Message.user("one more"))
    talk.extend([Message.user(f"and {number}") for number in range(40)])  # past the end of a run
    list(talk.thread())
    again = store.conversation(talk.id)
    store.conversation(talk.id[:8])
    store.conversation(again.head or "").fork(next(iter(talk.thread()))).append(Message.assistant("or so"))
    again.append(Message.user("below the head"), on_conflict="follow")
    store.message(again.head or "")
    list(again.branches())
    made = store.start(title="New", project=Path("/somewhere"), metadata={"owner": "ada"})
    made.append(Message.user([Block.text("look"), Block.image(b"\x01" * 70_000, "image/png")], key="a name"))
    made.append(Message.user("again", key="another"), on_conflict="follow")
    made.label("marked")
    made.label(None)
    list(islice(store.messages(label="marked"), 5))
    list(made.thread())
    page = store.conversations(limit=20)
    store.conversations(limit=20, cursor=page.next_cursor)
    store.conversations(project=Path("/somewhere"))
    store.conversations(metadata={"owner": "ada", "team": "red"}, total=True)
    store.latest()
    store.search("apples", limit=5)
    store.search("nowhere", limit=5)
    store.search("apples", limit=5, order="best")
    store.backend.changes(store.backend.changes(None).position)
    store.backend.page(Where(expired_at=1), None, 20, oldest_first=True)
    store.backend.page(Where(), None, 20, oldest_first=True)
    store.backend.loose(full=True, limit=10)
    store.backend.tags(bytes.fromhex(made.id.replace("-", "")), limit=10)
    store.backend.attached(bytes.fromhex(made.id.replace("-", "")))
    store.backend.collect(0)
    store.backend.maintain(1.0)
    store.backend.kinds()
    store.maintain(0.2)
    store.delete([made.head or ""])
    store.purge(made, reason="user-requested")


def statements_of(database: Database, role: str, workspace: str) -> list[Statement]:
    url = database.url(role)
    with psycopg.connect(url, autocommit=True) as aside, explained(aside) as statements:
        aside.execute("SELECT set_config('hitherto.workspace_id', %s, false)", (str(workspace_id(workspace)),))
        with hitherto.open(url, workspace=workspace, maintenance=False) as store:
            a_day(store)
    return list(statements.values())


@pytest.mark.parametrize(("role", "workspace"), [(ROLE, "large"), (ROLE, "w7"), ("postgres", "large")])
def test_nothing_that_people_wait_for_reads_more_than_it_has_to(database: Database, role: str, workspace: str) -> None:
    statements = statements_of(database, role, workspace)
    assert len(statements) > 60
    problems = [(offences(statement.plan, small=workspace != "large"), statement.text) for statement in statements]
    assert [problem for problem in problems if problem[0]] == []


def test_nor_does_what_was_prepared_for_all_workspaces_alike(database: Database) -> None:
    """A connection serves many workspaces, and a plan that is made once and for all is made for one of the usual size:
    if it goes through all of that, it goes through all of the large ones, too."""
    problems = [
        (offences(statement.prepared), statement.text)
        for statement in statements_of(database, ROLE, "w9")
        if statement.prepared
    ]
    assert [problem for problem in problems if problem[0]] == []


@pytest.mark.parametrize("index", ["message_pkey", "message_by_seq", "pack_pkey", "gone_by_move"])
def test_without_an_index_the_check_finds_what_needed_it(database: Database, index: str) -> None:
    texts = [statement.text for statement in statements_of(database, ROLE, "w8") if statement.prepared]
    table, _, kind = index.partition("_")
    drop = f"ALTER TABLE hitherto.{table} DROP CONSTRAINT {index}" if kind == "pkey" else f"DROP INDEX hitherto.{index}"
    with database.admin() as connection, connection.transaction(force_rollback=True):
        before = _found_in(connection, texts)
        connection.execute(drop)
        assert len(_found_in(connection, texts)) > len(before)


def _found_in(connection: Connection, texts: list[str]) -> list[str]:
    """Return the problems of these plans, except for statements that cannot be planned any more."""
    found = []
    for text in texts:
        with suppress(psycopg.errors.InvalidColumnReference), connection.transaction():  # of ON CONFLICT
            found += offences(without_values(connection, text))
    return found
