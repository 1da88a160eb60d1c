"""Between us and the server may stand a pooler, which gives each session, or each transaction, to another connection.

It is a real PgBouncer, with fewer connections than there are threads; the role is an ordinary one, which sees no row
unless the transaction is bound to its workspace. Where PgBouncer is not installed these tests are skipped.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext

import psycopg
import pytest

import hitherto
from hitherto import Key, Message
from hitherto.backend import DONE
from hitherto.backends.postgres import PostgresBackend
from hitherto.backends.postgres.address import Address
from hitherto.backends.postgres.connections import Shared
from hitherto.errors import CannotOpen, Denied
from hitherto.opening import rights_of, server_of
from hitherto.testing.conformance import A, create, message_row

from ..support.pooler import Pooler, find_pooler
from ..support.server import Server, find_binaries

THREADS, TURNS = 6, 8


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None or find_pooler() is None:
        pytest.skip("PostgreSQL and PgBouncer are not both here")
    server = Server(binaries, ["synchronous_standby_names="])
    try:
        hitherto.open(server.url).close()
        with psycopg.connect(server.conninfo, autocommit=True) as admin:
            admin.execute("CREATE ROLE app LOGIN; " + "; ".join(rights_of("app")))
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["session", "transaction"])
def pooler(server: Server, request: pytest.FixtureRequest) -> Iterator[Pooler]:
    program = find_pooler()
    assert program is not None
    pooler = Pooler(program, server, request.param, size=3, user="app")
    yield pooler
    pooler.stop()


def mode_of(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["pooler"])


def a_life(url: str, workspace: str, key: Key | None) -> None:
    with hitherto.open(url, workspace=workspace, key=key) as store:
        talk = store.start(title="Fruit")
        for number in range(TURNS):
            talk.append(Message.user(f"the {number}th pear of {workspace}"))
        talk.append(Message.user([hitherto.Block.image(b"\x01" * 70_000, "image/png")]))
        position = store.backend.changes(None).position
        gone = store.start(title="Gone")
        store.purge(gone, reason="user-requested")
        talk.append(Message.assistant("enough"))
        assert bytes.fromhex(talk.id.replace("-", "")) in store.backend.changes(position).moved
        assert len(list(talk.thread())) == TURNS + 2
        assert len(store.search("pear", limit=50)) == TURNS
        assert store.conversations(limit=5, total=True).total == 1
        store.maintain()
        assert store.verify().ok


@pytest.mark.parametrize("key", [None, Key(bytes(range(32)))], ids=["plain", "sealed"])
def test_many_workspaces_share_a_few_connections(
    pooler: Pooler, key: Key | None, request: pytest.FixtureRequest
) -> None:
    mode = mode_of(request)
    # A session keeps its connection until it ends: there are three.
    url = f"{pooler.url}&pooler={mode}&pool_size={1 if mode == 'session' else 4}"
    names = [f"{mode} {'plain' if key is None else 'sealed'} {number}" for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda name: a_life(url, name, key), names))


def test_an_address_that_does_not_name_the_pooler_is_refused(pooler: Pooler, server: Server) -> None:
    """A client that takes the session for its own would be bound to another workspace, and see few rows or none."""
    with pytest.raises(CannotOpen, match="a pooler stands between") as refused:
        hitherto.open(pooler.url)
    assert "pooler=transaction" in (refused.value.hint or "")
    assert server_of(pooler.url).pooled
    hitherto.open(server.url).close()  # the control: nobody stands here
    assert not server_of(server.url).pooled


@pytest.mark.parametrize("size", [1, 3])
def test_a_pooler_that_is_named_wrongly_is_refused_and_others_get_nothing_of_it(server: Server, size: int) -> None:
    """The next client of the connection would see the session's settings."""
    program = find_pooler()
    assert program is not None
    pooler = Pooler(program, server, "transaction", size=size, user="app")
    try:
        for read_only in (False, True):
            with pytest.raises(CannotOpen, match="hands out transactions") as refused:
                PostgresBackend(f"{pooler.url}&pooler=session", workspace="wrong", read_only=read_only)
            assert "pooler=transaction" in (refused.value.hint or "")
        with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as connection:
            names = ("default_transaction_read_only", "client_min_messages", "lock_timeout")
            query = "SELECT coalesce(current_setting('hitherto.workspace_id', true), ''), "
            query += ", ".join(f"current_setting('{name}')" for name in names)
            assert connection.execute(query).fetchall() == [("", "off", "notice", "0")]
        with closing(PostgresBackend(f"{pooler.url}&pooler=transaction", workspace=f"right {size}")) as backend:
            assert backend.commit([create(message_row(0), id=A)]) == [DONE]
    finally:
        pooler.stop()


@pytest.mark.parametrize("rightly", [True, False], ids=["rightly", "control"])
def test_a_workspace_stays_bound_only_if_the_pooler_is_named_rightly(
    server: Server, rightly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one connection to the server for all. The wrong name, believed, is the control: what is set for a session is
    found by another one, so that rows are refused, or not seen."""
    monkeypatch.setattr(Shared, "_look_through", lambda *_: None)
    claimed = "transaction" if rightly else "session"
    program = find_pooler()
    assert program is not None
    pooler = Pooler(program, server, "transaction", size=1, user="app")
    try:
        names = [f"{claimed} {number}" for number in range(2)]
        with ExitStack() as stack:
            # Another name, another pool: as in two processes.
            urls = [f"{pooler.url}&pooler={claimed}&application_name={number}" for number in range(2)]
            made = [PostgresBackend(url, workspace=name) for url, name in zip(urls, names, strict=True)]
            backends = [stack.enter_context(closing(backend)) for backend in made]
            with pytest.raises(Denied) if claimed == "session" else nullcontext():
                for backend in backends:
                    backend.commit([create(message_row(0), id=A)])
            found = [len(backend.lookup(ids=[A])) for backend in backends]
        assert found == ([1, 1] if claimed == "transaction" else [0, 0])
    finally:
        pooler.stop()


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_nothing_is_left_bound_between_transactions(pooler: Pooler) -> None:
    url = f"{pooler.url}&pooler=transaction"
    assert Address(url).by_transaction
    with closing(PostgresBackend(url, workspace="bound")) as backend:
        assert backend.kinds() == []
        with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as connection:
            query = "SELECT coalesce(current_setting('hitherto.workspace_id', true), '')"
            assert connection.execute(query).fetchall() == [("",)]
