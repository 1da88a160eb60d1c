"""The store on a Citus cluster: the contract, with row-level security, and what an administrator gets wrong.

`HITHERTO_CITUS_URL` names a coordinator; without it all of this is skipped.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import psycopg
import pytest

import hitherto
from hitherto.backend import Backend
from hitherto.backends.postgres import PostgresBackend, distribution, error_mapping, workspace_id, writing
from hitherto.backends.postgres.schema import TABLES, rights
from hitherto.cli import _server_checks
from hitherto.cli._doctor_checks import OK, PROBLEM
from hitherto.errors import CannotOpen, InvalidArgument
from hitherto.keys import Key
from hitherto.model import Message
from hitherto.opening import distribute, server_of
from hitherto.store import Store
from hitherto.testing.conformance import A, BackendContract, QueueContract, StoreContract, create, message_row, update
from hitherto.testing.toys import Contrary

from ..support.citus import CitusDatabase, new_citus_database
from ..support.command import World
from ..support.databases import PATIENCE

Opener = Callable[..., PostgresBackend]


@pytest.fixture(scope="module")
def database() -> Iterator[CitusDatabase]:
    with new_citus_database() as made:
        yield made


@pytest.fixture
def opened(database: CitusDatabase) -> Iterator[Opener]:
    """Backends on one new workspace, as a role that row-level security binds."""
    made: list[PostgresBackend] = []
    workspace = os.urandom(4).hex()

    def make(kind: type[PostgresBackend] = PostgresBackend, *, seconds: float = 10.0) -> PostgresBackend:
        made.append(kind(database.url(), workspace=workspace, timeout_seconds=seconds))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


# -- the contract


class TestCitus(QueueContract, BackendContract, StoreContract):
    """J1. The whole contract, plain and sealed."""

    @pytest.fixture
    def backend(self, opened: Opener) -> Backend:
        return opened()

    @pytest.fixture(params=["plain", "sealed-contrary"])
    def open_store(self, backend: Backend, request: pytest.FixtureRequest) -> Callable[[], Store]:
        ticks = count(1_700_000_000_000_000, 1000)
        if request.param == "plain":
            return lambda: Store(backend, clock=lambda: next(ticks))
        contrary, key = Contrary(backend, seed=7), Key.generate()
        return lambda: Store(contrary, key=key, clock=lambda: next(ticks))


# -- the administrator


@pytest.fixture
def local() -> Iterator[CitusDatabase]:
    """A store on the coordinator alone."""
    with new_citus_database(distributed=False) as made:
        yield made


def distribution_of(database: CitusDatabase) -> tuple[str, str]:
    """What doctor finds."""
    [found] = _server_checks._distribution(server_of(database.url()))
    return found.level, found.what


def test_a_store_is_distributed_by_the_command_and_keeps_what_it_has(local: CitusDatabase, world: World) -> None:
    """J1. The command prints the statements, then runs them; a second time nothing is left."""
    url = local.url()
    with hitherto.open(url, workspace="w") as store:
        talk = store.start(title="Fruit")
        talk.append(Message.user("Where do apples grow?"))
        assert "coordinator alone" in distribution_of(local)[1]
    done = world.command("postgres", "distribute", HITHERTO_STORE=url)
    assert done.stdout.count("create_distributed_table") == len(TABLES)
    assert distribute(url) == distribution.statements()
    refused = world.command("postgres", "distribute", "--run", HITHERTO_STORE=url)
    assert (refused.returncode, "superuser" in refused.stderr, len(distribute(url))) == (1, True, len(TABLES))
    done = world.command("postgres", "distribute", "--run", HITHERTO_STORE=local.url("postgres"))
    assert (done.returncode, distribute(url)) == (0, [])
    assert distribution_of(local) == (
        OK,
        f"Citus {server_of(url).citus}: all tables by workspace, each workspace on one node",
    )
    with hitherto.open(url, workspace="w") as store:
        again = store.conversation(talk.id)
        again.append(Message.assistant("In an orchard."))
        assert [message.text for message in again.thread()] == ["Where do apples grow?", "In an orchard."]
        assert len(store.search("apples")) == 1
        assert store.verify().ok
        store.purge(again, reason="user-requested")
        deadline = time.monotonic() + PATIENCE
        while not store.backend.scrub():  # the command's connections may still be ending
            assert time.monotonic() < deadline
            time.sleep(0.05)


WRONG = {
    "not distributed: tag, item": (
        "SELECT undistribute_table('hitherto.tag')",
        "SELECT undistribute_table('hitherto.item')",
    ),
    "not distributed by workspace_id: item": (
        "SELECT undistribute_table('hitherto.item')",
        "ALTER TABLE hitherto.item DROP CONSTRAINT item_pkey",
        "SELECT create_distributed_table('hitherto.item', 'key', colocate_with => 'none')",
    ),
    "not colocated with hitherto.workspace: item": (
        "SELECT undistribute_table('hitherto.item')",
        "SELECT create_distributed_table('hitherto.item', 'workspace_id', colocate_with => 'none')",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_tables_that_are_distributed_otherwise_are_refused(what: str) -> None:
    """Before anything is written. Doctor says the same, and who only reads is let in."""
    with new_citus_database() as database:
        hitherto.open(database.url()).close()
        with database.admin() as admin:
            for statement in WRONG[what]:
                admin.execute(statement)
        with pytest.raises(CannotOpen) as refused:
            hitherto.open(database.url())
        names = what.partition(": ")[2].split(", ")
        assert what.partition(": ")[0] in str(refused.value)
        assert all(name in str(refused.value) for name in names)
        assert "hitherto postgres distribute" in str(refused.value.hint)
        assert distribution_of(database)[0] == PROBLEM
        hitherto.open(database.url(), read_only=True).close()
        if what.startswith("not distributed: "):
            distribute(database.url("postgres"), run=True)
            hitherto.open(database.url()).close()
        else:
            with pytest.raises(InvalidArgument, match="cannot be completed"):
                distribute(database.url())


def test_a_citus_that_is_too_old_is_refused(database: CitusDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one version here, so the oldest that will do is a newer one."""
    monkeypatch.setattr(distribution, "OLDEST", (99, 0))
    with pytest.raises(CannotOpen, match=r"older than 99\.0"):
        hitherto.open(database.url(application_name="old"), timeout_seconds=5)


def test_shards_without_row_level_security_are_reported() -> None:
    with new_citus_database() as database:
        hitherto.open(database.url()).close()
        with database.on_worker() as worker, database.admin() as admin:
            query = (
                "SELECT shardid FROM pg_dist_placement JOIN pg_dist_node n USING (groupid) JOIN pg_dist_shard USING "
            )
            query += "(shardid) WHERE logicalrelid = 'hitherto.message'::regclass AND n.nodeport = %s LIMIT 1"
            [(shard,)] = admin.execute(query, (worker.info.port,)).fetchall()
            worker.execute("SET citus.enable_manual_changes_to_shards = on")
            worker.execute(f"ALTER TABLE hitherto.message_{shard} DISABLE ROW LEVEL SECURITY")
        assert "no row-level security on shards of message" in distribution_of(database)[1]


def test_doctor_says_that_a_role_for_one_workspace_is_not_held_to_it() -> None:
    """Citus hands a restrictive policy on as a permissive one. The control is the same store without such a role."""
    with new_citus_database() as database:
        hitherto.open(database.url()).close()
        assert distribution_of(database)[0] == OK
        role = f"only_{database.name}"
        with database.admin() as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN")
            try:
                for statement in rights(role, str(workspace_id("mine"))):
                    admin.execute(statement)
                level, what = distribution_of(database)
            finally:
                admin.execute(f"DROP OWNED BY {role}")
                admin.execute(f"DROP ROLE {role}")
        assert level == PROBLEM
        assert "not held to their workspace" in what


def test_a_service_sees_the_workspace_that_it_is_bound_to_and_no_other(database: CitusDatabase) -> None:
    """Row-level security binds the nodes, too: the setting reaches them with each transaction."""
    for workspace in ("mine", "theirs"):
        with hitherto.open(database.url(), workspace=workspace) as store:
            store.start(title=workspace).append(Message.user(workspace))
    one, two = (PostgresBackend(database.url(), workspace=workspace) for workspace in ("mine", "theirs"))
    try:
        query = "SELECT count(*) FROM hitherto.message WHERE workspace_id = %s"
        assert one._all(query, (workspace_id("mine"),)) == [(1,)]
        assert one._all(query, (workspace_id("theirs"),)) == [(0,)]
        assert two._all(query, (workspace_id("theirs"),)) == [(1,)]
    finally:
        one.close()
        two.close()


def test_a_violated_key_is_the_error_that_it_is_on_one_server(opened: Opener) -> None:
    """A message key that is taken is a value, and not an error of the server."""
    one, two = opened(), opened()
    one.commit([create(message_row(0, key=b"k"), message_row(1), id=A)])
    outcome = two.commit([update(1, add=(message_row(2, key=b"k"),))])
    assert [getattr(one, "what", None) for one in outcome] == ["message key"]


# -- nodes that go


@pytest.mark.parametrize("is_mapped", [True, False], ids=["as it is", "control"])
def test_a_node_that_goes_during_a_commit_loses_and_doubles_nothing(
    is_mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1. The coordinator says that it could not commit, which nobody knows. The control takes its word."""
    if not is_mapped:
        codes = {words: kind for words, kind in error_mapping._LOST_CODES.items() if "commit" not in words}
        monkeypatch.setattr(error_mapping, "_LOST_CODES", codes)
    seen: list[str] = []
    real = error_mapping.with_its_code

    def listen(error: psycopg.Error) -> psycopg.Error:
        seen.append(str(error))
        return real(error)

    monkeypatch.setattr(writing, "with_its_code", listen)
    with new_citus_database() as database:
        found = _write_while_nodes_go(database, seen)
    assert found == ([], False) if is_mapped else found[1]


def _write_while_nodes_go(database: CitusDatabase, seen: list[str]) -> tuple[list[str], bool]:
    """Return the texts that were lost or are there twice, and whether a writer got an error."""
    stop, wrong, failed = threading.Event(), list[str](), threading.Event()

    def write(name: str) -> None:
        try:
            until_stopped(name)
        except hitherto.errors.StorageError:
            failed.set()

    def until_stopped(name: str) -> None:
        with hitherto.open(database.url(), workspace=name, maintenance=False) as store:
            talk, kept = store.start(), list[str]()
            while not stop.is_set():
                text = f"{name} {len(kept)}"
                talk.append(Message.user(text))
                kept.append(text)
            wrong.extend(set(kept).symmetric_difference(there := [message.text for message in store.messages()]))
            wrong.extend(text for text in there if there.count(text) > 1)

    goes = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
    goes += "AND datname = current_database() AND backend_type = 'client backend'"
    with ThreadPoolExecutor(6) as threads, database.on_worker(0) as one, database.on_worker(1) as two:
        writing_all = [threads.submit(write, f"w{number}") for number in range(6)]
        deadline = time.monotonic() + PATIENCE
        while not (failed.is_set() or any("could not commit" in text for text in seen)):
            assert time.monotonic() < deadline, "no node went during a commit"
            for worker in (one, two):
                worker.execute(goes)
            time.sleep(0.02)
        stop.set()
        for each in writing_all:
            each.result(PATIENCE)
    return wrong, failed.is_set()
