"""Problems of a server, or of the way to it, and their effect on writers.

The servers are real. Answers that these servers cannot give (too old, or starting) come from a fake one
(`support.fake_postgres`). No error is a foreign one, and none has a password or a word of a message in it.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import hitherto
from hitherto import Block, Conversation, Message, Store
from hitherto.backends.postgres import PostgresBackend, workspace_id
from hitherto.backends.postgres.address import Address
from hitherto.backends.postgres.connections import Shared
from hitherto.backends.postgres.schema import rights
from hitherto.errors import (
    Busy,
    CannotOpen,
    Closed,
    Denied,
    HithertoError,
    InvalidArgument,
    ReadOnly,
    StorageFull,
    Unavailable,
)

from ..support.certificates import certify
from ..support.cluster import Node
from ..support.databases import PATIENCE, Connection, Database, new_database, started_server
from ..support.fake_postgres import Doorman, fatal, greeting
from ..support.memory import in_memory
from ..support.server import find_binaries, unprivileged
from ..support.thorough import THOROUGH

SECRET = "correct horse"
ROOT = Path(__file__).parents[2]
WAITS_FOR_A_LOCK = "wait_event_type = 'Lock'"


@pytest.fixture(scope="module")
def common() -> Database:
    """One for all who do no harm to it."""
    database = new_database()
    hitherto.open(database.url()).close()
    return database


@pytest.fixture
def workspace() -> str:
    return os.urandom(4).hex()


def texts(store: Store) -> list[str]:
    return [message.text for message in store.messages(newest_first=False)]


def refused(kind: type[HithertoError], url: str, **how: Any) -> str:
    """Opening it fails at once, with a hint and without a secret."""
    begun = time.monotonic()
    with pytest.raises(kind) as raised:
        hitherto.open(url, **how)
    assert type(raised.value) is kind
    assert raised.value.hint
    assert time.monotonic() - begun < 20  # a third of what one would wait for a server
    shown = f"{raised.value} {raised.value.hint}"
    assert SECRET not in shown
    return shown


# -- a server with a door


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class House(Node):
    """A server of the oldest version that is at hand, which listens on this machine's network too, asks for passwords,
    and may be restarted."""

    def __init__(self, binaries: Path, parent: Path) -> None:
        super().__init__(binaries, "h", parent)
        self.port = free_port()
        self.conninfo += f" port={self.port}"
        self.initialise()
        rules = ("local all postgres trust", "local all nobody trust", "host all app 127.0.0.1/32 scram-sha-256")
        (self.data / "pg_hba.conf").write_text("".join(f"{rule}\n" for rule in rules))
        self.begin()
        self.tell(f"CREATE ROLE app LOGIN PASSWORD '{SECRET}'")
        hitherto.open(self.url()).close()
        self.tell(*rights("app"))

    def tell(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def begin(self) -> None:
        self.start("synchronous_standby_names=", "listen_addresses=127.0.0.1", f"port={self.port}")

    def url(self, user: str = "postgres") -> str:
        """By its socket."""
        return f"postgresql:///postgres?host={self.folder}&port={self.port}&user={user}"

    def tcp(self, user: str = "app", password: str = SECRET, name: str = "postgres") -> str:
        return f"postgresql://{user}:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{name}"


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    started_server()  # skips where there is none
    binaries = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), find_binaries())
    assert binaries is not None
    parent = Path(in_memory() or "/tmp") / f"hitherto-pg-{os.urandom(4).hex()}"
    parent.mkdir()
    parent.chmod(0o711)
    if (user := unprivileged()) is not None:
        shutil.chown(parent, user)
    made = House(binaries, parent)
    yield made
    made.remove()
    shutil.rmtree(parent, ignore_errors=True)
    assert made.leftovers() == []


def test_who_is_not_let_in_is_told_why(house: House) -> None:
    assert "password" in refused(CannotOpen, house.tcp(password="wrong"))
    assert "let this user in" in refused(CannotOpen, house.tcp(user="stranger"))
    assert "no such database" in refused(CannotOpen, house.tcp(name="nowhere"))
    assert "no such user" in refused(CannotOpen, house.url("nobody"))
    house.tell("CREATE DATABASE closed", "REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    assert "connect" in refused(Denied, house.tcp(name="closed"))
    house.tell("ALTER ROLE app NOLOGIN")
    assert "let this user in" in refused(CannotOpen, house.tcp())
    house.tell("ALTER ROLE app LOGIN")
    with hitherto.open(house.tcp(), workspace="in") as store:
        assert SECRET not in store.backend.info.location


def test_the_oldest_version_at_hand_will_do(house: House, workspace: str) -> None:
    with hitherto.open(house.url(), workspace=workspace) as store:
        talk = store.start(title="Old")
        talk.append(Message.user([Block.text("look"), Block.image(b"\x01" * 70_000, "image/png")]))
        talk.extend([Message.user(f"{n}") for n in range(40)])
        position = store.backend.changes(None).position
        assert len(store.search("look")) == 1
        store.purge(store.start(), reason="user-requested")
        store.maintain()
        assert len(store.backend.changes(position).gone) == 1
        assert store.verify().ok
    print(house.ask("SHOW server_version"))


def test_nobody_answers_is_told_soon() -> None:
    assert refused(Unavailable, f"postgresql://127.0.0.1:{free_port()}/postgres")
    refused(Unavailable, "postgresql:///postgres?host=/nowhere/at/all", timeout_seconds=0.1)
    refused(Unavailable, "postgresql://no-such-host.invalid/postgres")


# -- TLS


@pytest.fixture
def door(common: Database, tmp_path: Path) -> Iterator[Doorman]:
    """Of a server that encrypts."""
    with Doorman(server=Path(common.folder), certificate=certify(tmp_path)) as door:
        yield door


def test_tls_is_used_and_checked(common: Database, door: Doorman, tmp_path: Path) -> None:
    def encrypted(mode: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{door.port}/{common.name}?sslmode={mode}"

    good, other = tmp_path / "server.crt", certify(tmp_path, "other")
    for mode in ("require", f"verify-ca&sslrootcert={good}", f"verify-full&sslrootcert={good}"):
        with hitherto.open(encrypted(mode), workspace="tls") as store, leased(store) as connection:
            assert connection.pgconn.ssl_in_use
    assert "not signed by anybody we trust" in refused(CannotOpen, encrypted(f"verify-ca&sslrootcert={other}"))
    assert "no certificate to check" in refused(CannotOpen, encrypted(f"verify-ca&sslrootcert={tmp_path}/missing.crt"))
    assert "sslmode is not one" in refused(CannotOpen, encrypted("nonsense"))
    elsewhere = encrypted(f"verify-full&sslrootcert={good}").replace("127.0.0.1", "localhost.example")
    assert "for another name" in refused(CannotOpen, f"{elsewhere}&hostaddr=127.0.0.1")


@contextmanager
def leased(store: Store) -> Iterator[Connection]:
    """One of its connections."""
    assert isinstance(store.backend, PostgresBackend)
    with store.backend._bound.lease() as connection:
        yield connection


@pytest.mark.parametrize("mode", ["require", "disable"])
def test_a_lost_connection_is_replaced_encrypted_or_not(
    common: Database, door: Doorman, workspace: str, mode: str
) -> None:
    """With TLS, the loss is told in other words."""
    url = f"postgresql://postgres@127.0.0.1:{door.port}/{common.name}?sslmode={mode}"
    with hitherto.open(url, workspace=workspace) as store:
        talk = store.start()
        for number in range(3):
            assert door.cut()
            assert store.conversation(talk.id).head == talk.head
            assert door.cut()
            talk.append(Message.user(f"{number}"))
        assert texts(store) == ["0", "1", "2"]


# -- addresses


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        ("db.example.com", "require"),
        ("10.0.0.1", "require"),
        ("127.0.0.1.example.com", "require"),
        ("127.0.0.1", None),
        ("127.1.2.3", None),
        ("[::1]", None),
        ("[2001:db8::1]", "require"),
        ("localhost", None),
        ("", None),
        ("%2Ftmp", None),
        ("localhost,db.example.com", "require"),
        ("localhost:5433,127.0.0.1:5434", None),
        ("a.example.com,b.example.com", "require"),
    ],
)
def test_whoever_is_not_on_this_machine_has_to_encrypt(
    place: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    monkeypatch.delenv("PGHOST", raising=False)

    def chosen(url: str) -> object:
        return psycopg.conninfo.conninfo_to_dict(Address(url).conninfo).get("sslmode")

    assert chosen(f"postgresql://{place}/db") == mode
    assert chosen(f"postgresql://{place}/db?sslmode=verify-full") == "verify-full"
    assert chosen(f"postgresql://{place}/db?hostaddr=10.0.0.1") == "require"
    monkeypatch.setenv("PGHOST", "db.example.com")
    assert chosen("postgresql:///db") == "require"


def test_a_server_that_does_not_encrypt_gets_no_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Named in the address, in the environment, or in a service file; by a name that this machine does not have."""
    with Doorman([greeting("18.0")]) as clear:
        where = f"hostaddr=127.0.0.1&port={clear.port}"
        assert "TLS" in refused(CannotOpen, f"postgresql://app:secret@db.example.com/db?{where}")
        assert clear.came == 0
        (tmp_path / "services").write_text(
            f"[far]\nhost=db.example.com\nhostaddr=127.0.0.1\nport={clear.port}\ndbname=db\nuser=app\n"
        )
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        assert "TLS" in refused(CannotOpen, "postgresql:///?service=far")
        monkeypatch.setenv("PGSERVICE", "far")
        assert "TLS" in refused(CannotOpen, "postgresql://")
        assert (clear.came, clear.heard) == (0, b"")


def test_a_service_file_names_the_server(
    common: Database, workspace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "services").write_text(f"[near]\nhost={common.folder}\ndbname={common.name}\nuser=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    with hitherto.open("postgresql:///?service=near", workspace=workspace) as store:
        store.start().append(Message.user("there"))
    with hitherto.open(common.url(), workspace=workspace) as store:
        assert texts(store) == ["there"]
    refused(CannotOpen, "postgresql:///?service=nowhere")
    text = "# all of them\n[ha]\nhost = a.example.com,b.example.com\nport=1,2\nsslmode=verify-full\n[other]\nhost=c\n"
    (tmp_path / "services").write_text(text)
    address = Address("postgresql:///db?service=ha")
    assert (address.hosts, address.verified, address.local) == (["a.example.com", "b.example.com"], True, False)
    assert address.shown == "postgresql://a.example.com,b.example.com:1,2/db"
    assert [psycopg.conninfo.conninfo_to_dict(one)["port"] for one in address.each()] == ["1", "2"]
    assert Address("postgresql://mine/db?service=ha").hosts == ["mine"]  # what the address says counts
    (tmp_path / "services").write_text("[ha]\nhots=a.example.com\n")
    with pytest.raises(InvalidArgument):
        Address("postgresql:///db?service=ha")


BAD_ADDRESSES = (
    "postgresql://h/db?pool_size=0",
    "postgresql://h/db?pool_size=-1",
    "postgresql://h/db?pool_size=many",
    "postgresql://h/db?pool_size=1e3",
    "postgresql://h/db?pool_size=9999999999999999999999",
    "postgresql://h/db?pool_size=",
    "postgresql://h/db?pooler=sometimes",
    "postgresql://h/db?nonsense=1",
    "postgresql://h/d%00b",
    "postgresql://h/d\0b",
    "postgresql://user:%zz@h/db",
    "postgresql://[::1/db",
    "postgresql://h:port/db",
    "postgresql://user:pass/word@h/db",
)


@pytest.mark.parametrize("url", BAD_ADDRESSES)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        hitherto.open(url)
    assert "pass" not in str(raised.value)


def test_odd_names_are_names(common: Database, workspace: str) -> None:
    """Of users, databases, workspaces; whatever the client's encoding is set to."""
    with common.admin() as admin:
        name = 'dätä "bäse" %/?&=🎉'
        admin.execute(psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(psycopg.sql.Identifier(name)))
    quoted = "".join(f"%{byte:02X}" for byte in name.encode())
    url = f"postgresql:///{quoted}?host={common.folder}&user=postgres&client_encoding=latin1"
    for odd in ("wörk\0space", "🎉", " ", "x" * 10_000, "'; DROP SCHEMA hitherto; --"):
        with hitherto.open(url, workspace=odd) as store:
            talk = store.start(title="t\0🎉", metadata={"k\0": "v\0🎉"})
            talk.append(Message.user("nul\0 🎉 ψάρι"))
            assert len(store.search("ψάρι")) == 1
        with hitherto.open(url.replace("latin1", "utf8"), workspace=odd, create=False) as store:
            assert len(store.search("ψάρι")) == 1
            assert texts(store) == ["nul\0 🎉 ψάρι"]
            assert store.verify().ok


# -- servers that will not do


@pytest.mark.parametrize("version", ["9.6.24", "12.22", "13.16"])
def test_a_server_that_is_too_old_is_refused(version: str, tmp_path: Path) -> None:
    with Doorman([greeting(version)], folder=tmp_path) as old:
        shown = refused(CannotOpen, f"postgresql:///db?host={tmp_path}&user=app")
    assert f"PostgreSQL {version.split('.', maxsplit=1)[0]}" in shown
    assert "14" in shown
    assert b"CREATE" not in old.heard


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_utf8_is_refused(encoding: str) -> None:
    database = new_database(f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
    assert encoding in refused(CannotOpen, database.url())
    assert database.ask("SELECT to_regnamespace('hitherto') IS NULL")


def test_a_server_that_takes_no_writes_is_only_read(workspace: str) -> None:
    database = new_database()
    with hitherto.open(database.url(), workspace=workspace) as store:
        talk = store.start()
        talk.append(Message.user("early"))
        with database.admin() as admin:
            admin.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
        talk.append(Message.user("on the old connection"))
    refused(ReadOnly, database.url(), workspace=workspace, timeout_seconds=1.0)
    with hitherto.open(database.url(), workspace=workspace, read_only=True) as store:
        assert texts(store) == ["early", "on the old connection"]
        with pytest.raises(ReadOnly):
            store.start()


# -- servers that will do in a moment


def test_a_server_that_starts_is_waited_for(common: Database, workspace: str, tmp_path: Path) -> None:
    starting = [fatal("57P03", "the database system is starting up")] * 3
    with Doorman(starting, Path(common.folder), tmp_path) as door:
        url = f"postgresql:///{common.name}?host={tmp_path}&user=postgres"
        with hitherto.open(url, workspace=workspace) as store:
            store.start().append(Message.user("after all"))
            assert texts(store) == ["after all"]
        assert door.came > 3
        shown = refused(Unavailable, f"postgresql:///{common.name}?host=/nowhere&user=postgres", timeout_seconds=0.2)
        assert "nowhere" in shown


def test_too_many_connections_are_waited_for_and_then_an_error() -> None:
    database = new_database()
    hitherto.open(database.url()).close()
    role = "r" + os.urandom(4).hex()
    with database.admin() as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
        for statement in rights(role):
            admin.execute(statement)
        with ThreadPoolExecutor(1) as threads:
            with database.admin(role):
                assert "too many connections" in refused(Busy, database.url(role), timeout_seconds=0.3)
                opening = threads.submit(hitherto.open, database.url(role))
                with pytest.raises(TimeoutError):
                    opening.result(0.3)
            with opening.result(PATIENCE) as store:
                assert isinstance(store.backend, PostgresBackend)
                store.backend._bound.timeout_seconds = 0.5
                with store.backend._bound.lease(), pytest.raises(Busy, match="too many connections"):
                    store.latest()
                store.start().append(Message.user("alone"))  # the one there is
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    "limit", ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"]
)
def test_the_limits_of_an_administrator_are_lived_with(common: Database, workspace: str, limit: str) -> None:
    """Another transaction holds a row for longer than the server's timeout, or the server ends idle connections."""
    options = f"-c%20{limit}%3D60"
    with hitherto.open(common.url(options=options), workspace=workspace) as store, common.admin() as other:
        talk = store.start()
        other.execute("BEGIN")
        query = "SELECT 1 FROM hitherto.conversation WHERE workspace_id = %s FOR UPDATE"
        other.execute(query, (workspace_id(workspace),))
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(talk.append, Message.user("patient"))
            if limit.endswith("idle_session_timeout"):
                common.until(f"{WAITS_FOR_A_LOCK} AND query LIKE '%hitherto.conversation%'")
            with pytest.raises(TimeoutError):
                writing.result(0.3)
            other.execute("COMMIT")
            writing.result(PATIENCE)
        time.sleep(0.15)  # for what is idle to be ended
        assert texts(store) == ["patient"]
        assert len(talk.thread()) == 1


# -- a full disk


@pytest.fixture
def tiny() -> Iterator[Database]:
    """A database with our tables on a disk of their own, of some megabytes. (Where PostgreSQL's own tables are on a
    full disk, too, it may not even let anybody in.)"""
    server = started_server()
    place = server.folder / f"tiny-{os.urandom(4).hex()}"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        place.rmdir()
        pytest.skip("nothing may be mounted here")
    if (user := unprivileged()) is not None:
        shutil.chown(place, user)
    name = "t" + os.urandom(4).hex()
    try:
        with psycopg.connect(server.conninfo, autocommit=True) as admin:
            admin.execute(f"CREATE TABLESPACE {name} LOCATION '{place}'")
            database = new_database()
            admin.execute(f"ALTER DATABASE {database.name} SET default_tablespace = {name}")
            yield database
            subprocess.run(["mount", "-o", "remount,size=1g", place], check=True)
            admin.execute(f"DROP DATABASE {database.name} WITH (FORCE)")
            admin.execute(f"DROP TABLESPACE {name}")
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


def fill(store: Store, kept: dict[str, list[str]]) -> None:
    """Until it is refused."""
    for _ in range(1000):
        talk = store.start()
        kept[talk.id] = []
        for _ in range(8):
            text = os.urandom(40_000).hex()
            talk.append(Message.user(text))
            kept[talk.id].append(text)


def test_a_full_disk_keeps_what_it_has_and_takes_writes_again_after_a_purge(tiny: Database) -> None:
    """D14: reads go on, purging works, space comes back, and nothing that was acknowledged is lost. PostgreSQL has
    looked after the tables before, as it does by itself (here it is told not to): a vacuum makes a file of notes for
    each, for which there must be room the first time."""
    kept: dict[str, list[str]] = {}
    with hitherto.open(tiny.url()) as store, tiny.admin() as admin:
        store.start().append(Message.user(os.urandom(40_000).hex()))
        position = store.backend.changes(None).position
        admin.execute("VACUUM")
        with pytest.raises(StorageFull) as raised:
            fill(store, kept)
        assert raised.value.hint
        assert len(str(raised.value)) < 200
        assert sum(map(len, kept.values())) > 20
        for _ in range(3):  # it stays so, and harms nobody
            with pytest.raises(StorageFull):
                store.start().append(Message.user(os.urandom(400_000).hex()))
        for id, said in kept.items():
            assert [message.text for message in store.conversation(id).thread()] == said
        for id in list(kept)[::-2]:  # the last one too: files are cut off at their end, and used again inside
            store.purge(id, reason="user-requested")
            del kept[id]
        assert store.backend.changes(position).everything  # there was no room to say who has gone
        wait_for(store.backend.scrub)
        again = store.start()
        for _ in range(8):
            again.append(Message.user(os.urandom(40_000).hex()))
        for id, said in kept.items():
            assert [message.text for message in store.conversation(id).thread()] == said
        assert store.verify().ok


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- connections that go


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_a_server_that_restarts_is_waited_for_by_those_who_write(
    house: House, workspace: str, how: signal.Signals
) -> None:
    """Eight threads have something on its way; all of it is there afterwards, once."""
    with hitherto.open(house.tcp(), workspace=workspace) as store:
        talks = [store.start() for _ in range(8)]
        begun, restarted = threading.Barrier(9), threading.Event()

        def write(number: int) -> list[str]:
            written = [talks[number].append(Message.user("0")).id]
            begun.wait(PATIENCE)
            while not restarted.is_set() or len(written) < 5:
                written.append(talks[number].append(Message.user(str(len(written)))).id)
            return [*written, talks[number].append(Message.user("last")).id]

        with ThreadPoolExecutor(8) as threads:
            writing = [threads.submit(write, number) for number in range(8)]
            begun.wait(PATIENCE)
            house.halt(how)
            house.begin()
            restarted.set()
            acknowledged = [one.result(PATIENCE) for one in writing]
        for talk, ids in zip(talks, acknowledged, strict=True):
            assert [message.id for message in store.conversation(talk.id).thread()] == ids
        assert store.verify().ok


def test_more_threads_than_connections_are_all_served(common: Database, workspace: str) -> None:
    with hitherto.open(common.url(pool_size=2, application_name=workspace), workspace=workspace) as store:
        talks = [store.start() for _ in range(24)]

        def work(talk: Conversation) -> int:
            for _ in range(3):
                talk.append(Message.user("x"))
                store.conversation(talk.id)
            return len(talk.thread())

        with ThreadPoolExecutor(24) as threads:
            assert list(threads.map(work, talks)) == [3] * 24
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        assert common.ask(query, (workspace,)) <= 2


def test_who_gets_no_connection_in_time_is_told(common: Database, workspace: str) -> None:
    with hitherto.open(common.url(pool_size=1), workspace=workspace, timeout_seconds=0.2) as store:
        with leased(store), pytest.raises(Busy, match="in use") as raised:
            store.latest()
        assert "pool_size" in str(raised.value.hint)
        assert store.latest() is None


def test_stores_share_connections_and_may_be_closed_in_any_order(common: Database, workspace: str) -> None:
    url = common.url(application_name=workspace)
    stores = [hitherto.open(url, workspace=f"{workspace} {n}") for n in range(4)]
    shared = [store.backend._bound.shared for store in stores if isinstance(store.backend, PostgresBackend)]
    assert len(set(map(id, shared))) == 1
    for number in (2, 0, 3):
        stores[number].close()
        stores[number].close()
        with pytest.raises(Closed):
            stores[number].latest()
        stores[1].start()
    stores[1].close()
    assert shared[0] not in Shared._all.values()
    wait_for(lambda: common.ask("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = %s", (workspace,)))


def test_a_store_may_be_closed_while_others_write_through_it(common: Database, workspace: str) -> None:
    """Acknowledged messages are there; a later writer gets an error."""
    url = common.url(pool_size=2, application_name=workspace)
    store = hitherto.open(url, workspace=workspace)
    talks = [store.start() for _ in range(6)]
    begun = threading.Barrier(7)

    def write(talk: Conversation) -> list[str]:
        written = [talk.append(Message.user("first")).id]
        begun.wait(PATIENCE)
        try:
            while True:
                written.append(talk.append(Message.user("more")).id)
        except Closed:
            return written

    with ThreadPoolExecutor(6) as threads:
        writing = [threads.submit(write, talk) for talk in talks]
        begun.wait(PATIENCE)
        store.close()
        acknowledged = [one.result(PATIENCE) for one in writing]
    with hitherto.open(url, workspace=workspace) as store:
        for talk, ids in zip(talks, acknowledged, strict=True):
            there = [message.id for message in store.conversation(talk.id).thread()]
            assert there[: len(ids)] == ids
            assert len(there) <= len(ids) + 1
        assert store.verify().ok


PARENT = """
import os, sys, hitherto
from hitherto import Message

store = hitherto.open(sys.argv[1], workspace="forks")
talk = store.start()
child = os.fork()
if not child:
    try:
        talk.append(Message.user("through the parent's"))
    except hitherto.Closed:
        with hitherto.open(sys.argv[1], workspace="forks") as own:
            own.conversation(talk.id).append(Message.user("child"))
        store.close()
        sys.exit(0)
    sys.exit(1)
assert os.waitpid(child, 0)[1] == 0
talk.append(Message.user("parent"), on_conflict="follow")
assert [message.text for message in talk.thread()] == ["child", "parent"]
print(len(store.backend._bound.shared._all))
"""
LEFT = """
import sys, hitherto, psycopg

store = hitherto.open(sys.argv[1], workspace="left")
talk = store.start()
with psycopg.connect(sys.argv[2], autocommit=True) as admin:
    admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'left'")
talk.append(hitherto.Message.user("x"))
print(len(talk.thread()))
"""


def run(program: str, *given: str) -> tuple[str, str]:
    """A program that is not told to close anything: what it says, and what is said about it."""
    begun = time.monotonic()
    made = [sys.executable, "-X", "dev", "-W", "error", "-c", program, *given]
    done = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    print(f"{time.monotonic() - begun:.2f} s")
    return done.stdout, done.stderr


def test_a_forked_process_has_to_open_its_own(common: Database) -> None:
    assert run(PARENT, common.url()) == ("1\n", "")


def test_a_program_ends_when_it_ends_and_says_nothing(common: Database) -> None:
    """Neither open stores nor lost connections keep it, or make it write to stderr."""
    conninfo = f"host={common.folder} user=postgres dbname={common.name}"
    assert run(LEFT, common.url(application_name="left"), conninfo) == ("1\n", "")


def test_ctrl_c_during_a_commit_leaves_no_transaction_and_no_doubt(common: Database, workspace: str) -> None:
    """The commit waits for a standby that there is not. Whether it was kept is told by looking, and once is once."""
    name = f"{workspace}-c"
    with hitherto.open(common.url(), workspace=workspace) as store:
        id = store.start().id
    url = common.url(application_name=name, options="-c%20synchronous_commit%3Don")
    with hitherto.open(url, workspace=workspace, maintenance=False) as store, ThreadPoolExecutor(1) as threads:
        talk = store.conversation(id)

        def interrupt() -> None:
            common.until(f"wait_event = 'SyncRep' AND application_name = '{name}'")
            os.kill(os.getpid(), signal.SIGINT)

        threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            talk.append(Message.user("once"))
        assert texts(store) == ["once"]
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'"
        assert common.ask(query, (name,)) == 0
    with hitherto.open(common.url(), workspace=workspace) as store:
        store.conversation(id).append(Message.user("on"), on_conflict="follow")
        assert texts(store) == ["once", "on"]
        assert store.verify().ok


# -- much


def test_large_content_comes_back(common: Database, workspace: str) -> None:
    """50 MB attached, and a text as large as one write may be."""
    size = 50_000_000 if THOROUGH else 8_000_000
    image, text = os.urandom(size), "schön\0" * (2_000_000 if THOROUGH else 500_000)
    with hitherto.open(common.url(), workspace=workspace, max_write_bytes=20_000_000) as store:
        talk = store.start()
        talk.append(Message.user([Block.image(image, "image/png")]))
        talk.append(Message.user(text))
        first, second = talk.thread()
        assert first.blocks[0].content == image
        assert second.text == text
        assert store.verify().ok


def test_a_thousand_workspaces_share_a_few_connections(common: Database, workspace: str) -> None:
    count = 1000 if THOROUGH else 120
    url = common.url(pool_size=4, application_name=workspace)
    stores, seconds = [], []
    for number in range(count):
        begun = time.thread_time()
        stores.append(hitherto.open(url, workspace=f"{workspace} {number}", maintenance=False))
        seconds.append(time.thread_time() - begun)
    for number in range(0, count, count // 10):
        stores[number].start().append(Message.user("x"))
    assert common.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (workspace,)) <= 4
    early, late = sorted(seconds[:50])[25], sorted(seconds[-50:])[25]
    print(f"{early * 1000:.1f} ms for one of the first, {late * 1000:.1f} ms for one of the last")
    assert late < early * 3 + 0.002
    for store in stores:
        store.close()
    wait_for(lambda: common.ask("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = %s", (workspace,)))
