"""The same contract on tables that are split by the hash of their workspace: growing past one table, or past one
server, takes no other schema and no other statement.

Day by day the rows are tried, and of the store what follows; with `HITHERTO_THOROUGH=1` all of the store's contract.
"""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

import hitherto
from hitherto import Message
from hitherto.backend import Backend
from hitherto.backends.postgres import PostgresBackend
from hitherto.backends.postgres.schema import TABLES
from hitherto.ids import new_conversation_id
from hitherto.keys import Key
from hitherto.store import Store
from hitherto.testing.conformance import BackendContract, QueueContract, StoreContract
from hitherto.testing.toys import Contrary

from ..support.databases import Database, new_database
from ..support.statements import explained, scans
from ..support.thorough import THOROUGH

PARTITIONS = 4


@pytest.fixture(scope="module")
def database() -> Database:
    return new_database()


@pytest.fixture
def url(database: Database) -> str:
    return database.url(partitions=PARTITIONS)


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    backend = PostgresBackend(url, workspace=new_conversation_id().hex(), timeout_seconds=10.0)
    yield backend
    backend.close()


class TestRows(QueueContract, BackendContract):
    @pytest.fixture
    def backend(self, backend: Backend) -> Backend:
        return backend


class TestStore(StoreContract):
    __test__ = THOROUGH

    @pytest.fixture
    def backend(self, backend: Backend) -> Backend:
        return backend

    @pytest.fixture(params=["plain", "sealed-contrary"])
    def open_store(self, backend: Backend, request: pytest.FixtureRequest) -> Callable[[], Store]:
        ticks = count(1_700_000_000_000_000, 1000)
        if request.param == "plain":
            return lambda: Store(backend, clock=lambda: next(ticks))
        contrary, key = Contrary(backend, seed=7), Key.generate()
        return lambda: Store(contrary, key=key, clock=lambda: next(ticks))


@pytest.mark.parametrize("key", [None, Key.generate()], ids=["plain", "sealed"])
def test_a_store_lies_in_one_partition_of_each_table(database: Database, url: str, key: Key | None) -> None:
    """And its statements go to no other, once there are values to tell which."""
    workspace = new_conversation_id().hex()
    with database.admin() as aside, explained(aside) as statements:
        with hitherto.open(url, workspace=workspace, key=key, maintenance=False) as store:
            talk = store.start(title="Split")
            for number in range(20):
                talk.extend([Message.user(f"apples {number}"), Message.assistant("yes")])
            store.maintain()
            assert [message.text for message in talk.thread()][:2] == ["apples 0", "yes"]
            assert len(store.search("apples", limit=50)) == 20
            assert [found.title for found in store.conversations().items] == ["Split"]
            assert store.verify().ok
        with hitherto.open(url, workspace=new_conversation_id().hex(), key=key) as other:
            assert other.conversations().items == []
    met = {
        scan["Relation Name"]
        for found in statements.values()
        for scan, _ in scans(found.plan)
        if "Relation Name" in scan
    }
    for table in TABLES:
        parts = {name for name in met if name.startswith(f"{table}_") and name.removeprefix(f"{table}_").isdigit()}
        assert len(parts) <= 2, parts  # of the two workspaces


def test_every_table_is_split(database: Database, backend: Backend) -> None:
    query = (
        "SELECT c.relname, (SELECT count(*) FROM pg_inherits i WHERE i.inhparent = c.oid) FROM pg_class c "
        "WHERE c.relnamespace = 'hitherto'::regnamespace AND c.relkind = 'p'"
    )
    with database.admin() as connection:
        assert dict(connection.execute(query).fetchall()) == dict.fromkeys(TABLES, PARTITIONS)
