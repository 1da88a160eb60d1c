"""No call waits beyond its timeout, and an interrupted call leaves nothing behind: with locks of other transactions,
replicas that do not answer, lost cancellations, and Ctrl+C at the worst moment.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Message
from hitherto.backend import DONE, Batch, Change
from hitherto.backends.postgres import PostgresBackend, workspace_id
from hitherto.backends.postgres.connection import Link
from hitherto.backends.postgres.connections import Shared
from hitherto.backends.postgres.schema import rights
from hitherto.errors import Busy, CommitUnknown, HithertoError, InvalidArgument
from hitherto.testing.conformance import A, create, noise, token, update

from ..support.databases import PATIENCE, Database, new_database

ROLE = f"waiting_{os.getpid()}"
CANCEL = 80877102  # what a request to cancel begins with


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """On a server that waits for a standby that is not there, if it is asked to (`REMOTE`)."""
    made = new_database()
    hitherto.open(made.url()).close()
    with made.admin() as admin:
        admin.execute(f"CREATE ROLE {ROLE} LOGIN")
        for statement in rights(ROLE):
            admin.execute(statement)
    yield made
    with made.admin() as admin:
        admin.execute(f"DROP OWNED BY {ROLE}")
        admin.execute(f"DROP ROLE {ROLE}")


REMOTE = "-c%20synchronous_commit%3Don"
QUIET = "-c%20synchronous_commit%3Don%20-c%20client_min_messages%3Derror"


@pytest.fixture
def workspace() -> str:
    return os.urandom(4).hex()


@pytest.fixture
def opened(database: Database, workspace: str) -> Iterator[Callable[..., PostgresBackend]]:
    made: list[PostgresBackend] = []

    def make(seconds: float = 10.0, user: str = ROLE, name: str = workspace, **given: object) -> PostgresBackend:
        made.append(PostgresBackend(database.url(user, **given), workspace=name, timeout_seconds=seconds))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def soon(work: Callable[[], object], seconds: float = 8.0) -> object:
    """Return the result or the error, which has to come soon."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(work)
        try:
            return future.exception(seconds) or future.result()
        except TimeoutError:
            os._exit(70)  # nothing would end it


# -- replicas


@pytest.mark.parametrize("pooler", ["session", "transaction"])
@pytest.mark.parametrize("options", [REMOTE, QUIET], ids=["warned", "quiet"])
def test_what_no_replica_has_is_not_done_whatever_a_role_wants_to_hear(
    database: Database, opened: Callable[..., PostgresBackend], pooler: str, options: str
) -> None:
    """Only a warning tells that a wait was cancelled. A role may be set not to get any."""
    opened().commit([create()])
    backend = opened(seconds=0.5, options=options, pooler=pooler)
    assert isinstance(soon(lambda: backend.commit([update(1)])), CommitUnknown)
    assert isinstance(soon(lambda: backend.commit([])), CommitUnknown)


def test_to_wait_for_all_there_is_means_replicas_even_where_a_role_does_not(
    opened: Callable[..., PostgresBackend],
) -> None:
    opened()
    asynchronous = opened(seconds=0.5, options="-c%20synchronous_commit%3Doff", pooler="transaction")
    assert isinstance(soon(lambda: asynchronous.commit([])), CommitUnknown)


def test_what_is_prepared_ends_in_time_although_no_replica_answers(
    workspace: str, opened: Callable[..., PostgresBackend]
) -> None:
    """It is not acknowledged to anybody: the commit that refers to it waits."""
    opened().commit([create()])
    backend = opened(seconds=0.5, options=REMOTE)
    assert soon(lambda: backend.stage(A, b"name", 0, [b"x"], last=True, at=1)) is None
    assert soon(lambda: backend.unstage(A, [b"name"])) is None
    assert soon(lambda: backend.text_index(create=True)) is not None
    other = soon(lambda: opened(seconds=0.5, name=f"{workspace}-new", options=REMOTE))
    assert isinstance(other, PostgresBackend)


# -- a way to the server on which requests to cancel get lost


class Way:
    """Leads to a server. A cancel request is passed to `cancelled`, and not forwarded."""

    def __init__(self, folder: Path, target: str, cancelled: Callable[["Way", socket.socket], None]) -> None:
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self._target, self.cancelled = f"{target}/.s.PGSQL.5432", cancelled
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for pair in self.pairs:
            for end in pair:
                _shut(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        first = client.recv(8, socket.MSG_PEEK)
        if len(first) == 8 and struct.unpack(">ii", first)[1] == CANCEL:
            self.cancelled(self, client)
            client.close()
            return
        with socket.socket(socket.AF_UNIX) as server, client:
            server.connect(self._target)
            self.pairs.append((client, server))
            back = threading.Thread(target=_lead, args=(server, client), daemon=True)
            back.start()
            _lead(client, server)
            back.join()


def _lead(here: socket.socket, there: socket.socket) -> None:
    try:
        while some := here.recv(1 << 16):
            there.sendall(some)
    except OSError:
        pass
    _shut(here)
    _shut(there)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is
        return


def forget(_: Way, client: socket.socket) -> None:
    client.recv(100)


def reset(_: Way, __: socket.socket) -> None:
    """Unread bytes are lost, and the other side gets an error."""


def die(way: Way, _: socket.socket) -> None:
    way.cut()
    time.sleep(0.3)


@pytest.fixture
def way(database: Database, tmp_path: Path) -> Iterator[Way]:
    made = Way(tmp_path, database.folder, forget)
    yield made
    made.close()


def through(tmp_path: Path, database: Database, **given: object) -> str:
    return database._replace(folder=str(tmp_path)).url(ROLE, **given)


@pytest.mark.parametrize("cancelled", [forget, reset])
def test_a_commit_that_cannot_be_cancelled_is_unknown_and_not_refused(
    database: Database, tmp_path: Path, way: Way, workspace: str, cancelled: Callable[..., None]
) -> None:
    """The server is still at it, and will keep it when a replica answers."""
    way.cancelled = cancelled
    with hitherto.open(database.url(ROLE), workspace=workspace) as store:
        talk = store.start(title="T")
        url = through(tmp_path, database, options=REMOTE)
        with hitherto.open(url, workspace=workspace, timeout_seconds=0.5, maintenance=False) as late:
            handle = late.conversation(talk.id)
            assert isinstance(soon(lambda: handle.append(Message.user("late"))), CommitUnknown)
        with database.admin() as admin:
            [pid] = database.until("wait_event = 'SyncRep'")
            admin.execute("SELECT pg_cancel_backend(%s)", (pid,))  # as if one had
        deadline = time.monotonic() + PATIENCE
        while [message.text for message in store.conversation(talk.id).thread()] != ["late"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_who_watches_survives_a_server_that_dies_at_that_moment(
    database: Database, tmp_path: Path, way: Way, workspace: str
) -> None:
    way.cancelled = die
    PostgresBackend(database.url(ROLE), workspace=workspace).close()
    backend = PostgresBackend(through(tmp_path, database, options=REMOTE), workspace=workspace, timeout_seconds=0.5)
    try:
        for cancelled in (die, forget):
            way.cancelled = cancelled
            assert isinstance(soon(lambda: backend.commit([])), CommitUnknown)
    finally:
        backend.close()


# -- locks


def test_whoever_waits_for_a_lock_gives_up_in_time(
    database: Database, workspace: str, opened: Callable[..., PostgresBackend]
) -> None:
    backend = opened(seconds=0.5)
    backend.commit([create()])
    backend.stage(A, b"name", 0, [b"x"], last=False, at=1)
    works: list[Callable[[], Any]] = [
        lambda: backend.attachments(A),
        lambda: backend.stage(A, b"name", 1, [b"x"], last=True, at=1),
        lambda: backend.lookup(ids=[A]),
        backend.scrub,
    ]
    with database.admin() as admin:
        admin.execute("BEGIN")
        admin.execute("LOCK TABLE hitherto.attachment, hitherto.conversation, hitherto.workspace")
        for work in works:
            assert isinstance(soon(work), Busy)
        admin.execute("ROLLBACK")
    assert len(backend.attachments(A)) == 1


def test_any_patience_is_a_number_to_the_server(opened: Callable[..., PostgresBackend]) -> None:
    for seconds in (float("inf"), 1e12, 0.0001):
        assert opened(seconds=seconds).edge() == 0


# -- what is purged while more of it comes


def test_a_piece_that_is_staged_while_its_conversation_is_purged_goes_with_it(
    database: Database, workspace: str, opened: Callable[..., PostgresBackend]
) -> None:
    backend, w = opened(), workspace_id(workspace)
    backend.commit([create()])
    backend.stage(A, b"name", 0, [b"first"], last=False, at=1)
    with database.admin() as other, ThreadPoolExecutor(1) as threads:
        other.execute("BEGIN")
        query = "UPDATE hitherto.attachment SET staged_at = 2 WHERE workspace_id = %s AND conversation = %s"
        other.execute(query, (w, A))
        other.execute("INSERT INTO hitherto.chunk VALUES (%s, %s, %s, 1, 'second')", (w, A, b"name"))
        purging = threads.submit(backend.commit, [Batch((Change(A, token(1), None),))])
        database.until("wait_event_type = 'Lock'")
        other.execute("COMMIT")
        assert purging.result(PATIENCE) == [DONE]
        assert other.execute("SELECT 1 FROM hitherto.chunk WHERE workspace_id = %s", (w,)).fetchall() == []
        other.execute("INSERT INTO hitherto.chunk VALUES (%s, %s, %s, 1, 'third')", (w, A, b"name"))
        assert backend.check() == ["1 rows of chunk belong to attachments that are missing"]
        other.execute("DELETE FROM hitherto.chunk WHERE workspace_id = %s", (w,))


# -- Ctrl+C


def test_who_is_interrupted_while_a_connection_is_bound_leaves_it_bound_to_nobody(
    opened: Callable[..., PostgresBackend], workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = opened(pool_size=1), opened(pool_size=1, name=f"{workspace}-other")
    one.commit([create()])
    execute: Any = Link.execute

    def interrupted(link: Link, query: str, *given: Any, **named: Any) -> object:
        done = execute(link, query, *given, **named)
        if "hitherto.workspace_id" in query:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Link, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            other.lookup(ids=[A])
    assert len(one.lookup(ids=[A])) == 1
    assert one.commit([update(1)]) == [DONE]


def test_a_connection_that_was_lost_on_its_way_back_is_made_good(
    opened: Callable[..., PostgresBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(pool_size=1, seconds=0.5, application_name="way-back")

    def interrupted(shared: Shared, link: Link) -> None:
        shared._lent.discard(link)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Shared, "give_back", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.edge()
    with pytest.raises(Busy):
        backend.edge()
    assert backend.edge() == 0


# -- names


def test_a_name_that_does_not_fit_is_refused_and_harms_nobody_else(
    database: Database, workspace: str, tmp_path: Path
) -> None:
    """In a file it does. On a server, names are in indexes, which have an end."""
    long = noise(3000).hex()
    with hitherto.open(database.url(ROLE), workspace=workspace) as store:
        talk = store.start(title="T")
        for message in (Message.user("x", label=long), Message.user("x", key=long)) * 4:
            with pytest.raises(InvalidArgument) as raised:
                talk.append(message)
            assert "2,000 bytes" in (raised.value.hint or "")
        store.start(title="somebody else").append(Message.user("harmless"))
        talk.append(Message.user("x", label="l" * 2000, key=noise(1000).hex()))
        assert store.verify().ok
    with hitherto.open(tmp_path / "a.db") as store:
        store.start(title="T").append(Message.user("x", label=long))
    with pytest.raises(HithertoError, match="too long"):
        hitherto.copying.copy_store(tmp_path / "a.db", database.url(ROLE), to_workspace=f"{workspace}-copy")
