"""Writers who meet on one conversation queue for it: who loses a race has its write made anew, and loses no second one.

On a backend in memory that has the verb of a server (`Queueing`); the last tests are on PostgreSQL. Two stores over one
backend are two processes.
"""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Conversation, Message, Store
from hitherto._engine.committer import Committer, PendingCommit
from hitherto._engine.deleting import delete
from hitherto._engine.verify import verify
from hitherto._erasure.shutdown import close
from hitherto.backend import DONE, Batch, ConversationRow, Outcome, Rebase
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.postgres import PostgresBackend
from hitherto.errors import Busy, CommitUnknown, Conflict, ConversationFull, Damaged, NotFound
from hitherto.ids import RUN
from hitherto.keys import Key
from hitherto.testing.conformance import (
    A,
    B,
    BackendContract,
    QueueContract,
    StoreContract,
    create,
    rebase_from,
    texts,
    update,
)
from hitherto.testing.toys import Queueing

from ..support.databases import PATIENCE, Database, new_database

KEY = Key.generate()


class TestQueueing(QueueContract, BackendContract, StoreContract):
    @pytest.fixture
    def backend(self) -> Queueing:
        return Queueing()


class Counting(Queueing):
    """Counts commits, and batches that were made anew. `races`: it does not queue, for the controls."""

    def __init__(self, *, races: bool = False) -> None:
        super().__init__()
        self.info = replace(self.info, can_queue=not races)
        self.commits = self.made = 0
        self.before: list[Callable[[], object]] = []
        self.cut: list[str] = []

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.commits += bool(batches)
        return super().commit(batches)

    def commit_queued(self, batches: Sequence[Batch], rebase: Rebase) -> list[Outcome]:
        def counted(row: ConversationRow, places: Sequence[int]) -> Sequence[Batch | None]:
            found = rebase(row, places)
            self.made += sum(batch is not None for batch in found)
            return found

        while self.before:
            self.before.pop()()
        cut = self.cut.pop() if self.cut else None
        if cut == "before":
            raise CommitUnknown("the line was cut")
        outcomes = super().commit_queued(batches, counted)
        if cut == "after":
            raise CommitUnknown("the line was cut")
        return outcomes


def two(backend: MemoryBackend, **how: Any) -> tuple[Conversation, Conversation]:
    """One conversation in two processes, both of which have seen its first message."""
    ours, theirs = Store(backend, **how), Store(backend, **how)
    talk = ours.start()
    talk.append(Message.user("first"))
    return talk, theirs.conversation(talk.id)


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("races", [False, True], ids=["queues", "control"])
def test_who_is_late_commits_once(key: Key | None, races: bool) -> None:
    backend = Counting(races=races)
    talk, other = two(backend, key=key)
    talk.append(Message.user("faster"))
    backend.commits = 0
    saved = other.append(Message.user("late"), on_conflict="follow")
    assert backend.commits == (2 if races else 1)
    assert backend.made == (0 if races else 1)
    assert texts(other.thread()) == ["first", "faster", "late"]
    assert (saved.id, saved.parent) == (other.at, talk.at)
    assert verify(talk.engine).problems == ()


def test_a_write_that_is_made_anew_is_what_was_asked_for() -> None:
    backend = Counting()
    talk, other = two(backend)
    first = other.at
    talk.append(Message.user("faster"))
    branched = other.append(Message.user("below where it stands"))
    assert branched.parent == first
    talk.append(Message.user("faster again"), on_conflict="follow")
    backend.made = 0
    with pytest.raises(Conflict):
        other.append(Message.user("nobody may be faster"), on_conflict="raise")
    with pytest.raises(Conflict):
        other.append(Message.user("not the head"), expect_head=first)
    assert backend.made == 0
    head = talk.refresh().head
    talk.rename("the row moves, and the head does not")
    assert other.append(Message.user("expected"), expect_head=head).parent == head
    assert verify(talk.engine).problems == ()


def test_a_handle_whose_message_was_deleted_is_told() -> None:
    talk, other = two(Counting())
    first = other.at
    assert first is not None
    delete(talk.engine, [first], recursive=False, missing_ok=False)
    with pytest.raises(NotFound):
        other.append(Message.user("below nothing"))


def test_a_key_that_comes_to_be_there_is_found_by_who_is_late() -> None:
    backend = Counting()
    talk, other = two(backend)
    saved: list[str] = []
    backend.before.append(lambda: saved.append(talk.append(Message.user("once", key="k")).id))
    assert other.append(Message.user("once", key="k")).id == saved[0]
    assert backend.made == 0
    talk.append(Message.user("faster"))
    assert other.append(Message.user("another", key="l")).key == "l"
    assert backend.made == 1
    assert verify(talk.engine).problems == ()


def test_a_conversation_that_is_full_by_now_takes_no_more() -> None:
    backend = Counting()
    talk, other = two(backend, max_conversation_bytes=500)
    talk.append(Message.user("x" * 300))
    with pytest.raises(ConversationFull):
        other.append(Message.user("y" * 300), on_conflict="follow")
    assert texts(talk.thread()) == ["first", "x" * 300]


def test_a_row_that_was_tampered_with_is_not_believed_because_it_is_locked() -> None:
    backend = Counting()
    talk, other = two(backend, key=KEY)
    talk.append(Message.user("faster"))
    row = backend.lookup(ids=[talk.state.id])[0]
    backend._conversations[row.id] = replace(row, next_seq=row.next_seq + 1)
    with pytest.raises(Damaged):
        other.append(Message.user("late"))


@pytest.mark.parametrize("at", range(0, 2 * RUN, 7))
def test_a_run_that_ends_is_followed_by_another(at: int) -> None:
    backend = Counting()
    talk, other = two(backend)
    for n in range(at):
        talk.append(Message.user(str(n)))
    for n in range(3):
        talk.append(Message.user(f"ours {n}"), on_conflict="follow")
        other.append(Message.user(f"theirs {n}"), on_conflict="follow")
    said = [f"{who} {n}" for n in range(3) for who in ("ours", "theirs")]
    assert texts(other.thread()) == ["first", *map(str, range(at)), *said]
    assert verify(talk.engine).problems == ()


def until(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(int(PATIENCE * 100)):
        if condition():
            return
        deadline.wait(0.01)
    raise AssertionError("it never came to be")


def test_those_who_gathered_on_one_handle_stay_one_chain_in_their_order() -> None:
    """All of them were prepared from a row that has moved, each below the one before."""
    backend = Counting()
    talk, other = two(backend)
    release = threading.Event()
    reached = threading.Event()

    def hold() -> None:
        reached.set()
        assert release.wait(PATIENCE)

    backend.before.append(hold)
    threads = [threading.Thread(target=talk.append, args=(Message.user(f"t{n}"),)) for n in range(5)]
    for n, thread in enumerate(threads):
        thread.start()
        assert reached.wait(PATIENCE)
        until(lambda n=n: len(talk.engine.committer._queue) == n)  # type: ignore[misc]
    faster = threading.Thread(target=other.append, args=(Message.user("faster"),))
    faster.start()
    faster.join()
    release.set()
    for thread in threads:
        thread.join()
    assert backend.made == 5
    assert texts(talk.thread()) == ["first", *(f"t{n}" for n in range(5))]
    assert verify(talk.engine).problems == ()


# -- was it kept?


class Forgetful(Committer):
    """Does not note what a batch was made anew to."""

    def _rebase(
        self, entries: Sequence[PendingCommit], row: ConversationRow, places: Sequence[int]
    ) -> list[Batch | None]:
        before = [entry.batch for entry in entries]
        made = super()._rebase(entries, row, places)
        for entry, batch in zip(entries, before, strict=True):
            entry.batch = batch
        return made


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("kind", [Committer, Forgetful], ids=["looks", "control"])
def test_what_was_made_anew_and_cut_off_is_kept_once(cut: str, kind: type[Committer]) -> None:
    backend = Counting()
    talk, other = two(backend)
    other.engine.committer.__class__ = kind
    talk.append(Message.user("faster"))
    backend.cut.append(cut)
    other.append(Message.user("late"), on_conflict="follow")
    said = texts(talk.follow().thread())
    wrong = kind is Forgetful and cut == "after"
    assert said == ["first", "faster", *["late"] * (2 if wrong else 1)]


def test_what_may_have_been_kept_is_not_made_anew_before_that_is_known() -> None:
    """The line is cut, and nothing is seen of the commit yet; then it arrives, and is what stands in the way."""
    backend = Counting()
    talk, _ = two(backend)
    late: list[Batch] = []

    def commit_queued(batches: Sequence[Batch], rebase: Rebase) -> list[Outcome]:
        if not late:
            late.extend(batches)
            raise CommitUnknown("the line was cut")
        MemoryBackend.commit(backend, late)
        return Counting.commit_queued(backend, batches, rebase)

    backend.commit_queued = commit_queued  # type: ignore[method-assign]
    talk.append(Message.user("once"))
    assert texts(talk.thread()) == ["first", "once"]
    assert talk.refresh().count == 2


# -- nothing is left behind


def test_a_write_that_was_made_anew_leaves_no_circle() -> None:
    talk, other = two(Counting())
    gone = weakref.ref(other), weakref.ref(other.engine)
    talk.append(Message.user("faster"))
    gc.collect()
    gc.disable()
    try:
        other.append(Message.user("late"))
        close(other.engine, 10.0)
        del other
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_who_makes_a_batch_anew_cannot_wait_for_another() -> None:
    """It would be waiting for itself."""
    backend = Counting()
    talk, other = two(backend)
    talk.append(Message.user("faster"))
    prepare = other.state.prepare

    def writes(*given: Any, **named: Any) -> Any:
        if other.state.is_row_locked:
            other.rename("a write of its own")
        return prepare(*given, **named)

    other.state.prepare = writes  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="cannot wait"):
        other.append(Message.user("late"))


# -- on PostgreSQL


@pytest.fixture(scope="module")
def database() -> Database:
    made = new_database()
    hitherto.open(made.url()).close()
    return made


@pytest.fixture
def opened(database: Database) -> Iterator[Callable[..., Store]]:
    made: list[Store] = []
    workspace = os.urandom(4).hex()

    def make(key: Key | None = None, seconds: float = PATIENCE, **given: object) -> Store:
        url = database.url("postgres", **given)
        made.append(hitherto.open(url, workspace=workspace, key=key, timeout_seconds=seconds))
        return made[-1]

    yield make
    for store in made:
        store.close()


class Watch:
    """What became of the batches of a store."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[str] = []
        for verb in ("commit", "commit_queued"):
            monkeypatch.setattr(store.backend, verb, self._watched(getattr(store.backend, verb)))

    def _watched(self, commit: Callable[..., list[Outcome]]) -> Callable[..., list[Outcome]]:
        def run(*given: Any) -> list[Outcome]:
            outcomes = commit(*given)
            self.outcomes += [type(outcome).__name__ for outcome in outcomes]
            return outcomes

        return run


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("queues", [True, False], ids=["queues", "control"])
def test_who_is_late_on_a_server_loses_no_race(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, key: Key | None, queues: bool
) -> None:
    """With one connection for each process: what is read to make a batch anew, as where a run ends, comes through the
    one that holds the row."""
    stores = [opened(key, pool_size=1, application_name=f"q{n}") for n in range(2)]
    watches = [Watch(store, monkeypatch) for store in stores]
    for store in stores:
        store.engine.committer.can_queue = queues
    stores[0].ensure("k")
    talks = [store.ensure("k") for store in stores]
    for n in range(RUN + 2):
        talks[n % 2].append(Message.user(str(n)), on_conflict="follow")
    assert texts(talks[1].thread()) == [str(n) for n in range(RUN + 2)]
    stale = [name for watch in watches for name in watch.outcomes].count("Stale")
    assert stale == (0 if queues else RUN + 1)
    assert stores[0].verify().problems == ()


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("size", [1, 4], ids=lambda size: f"pool_size={size}")
def test_many_writers_of_one_conversation_lose_no_message_and_keep_their_order(
    opened: Callable[..., Store], key: Key | None, size: int
) -> None:
    """J2. Nobody's message is lost, doubled or kept waiting until he gives up."""
    stores = [opened(key, pool_size=size, application_name=f"q{n}") for n in range(2)]
    stores[0].ensure("k").append(Message.user("first"))

    def write(who: int) -> list[str]:
        said = []
        for n in range(25):
            talk = stores[who % 2].ensure("k")
            said.append(talk.append(Message.user(f"{who} {n}"), on_conflict="follow").id)
        return said

    with ThreadPoolExecutor(6) as pool:
        said = [id for ids in pool.map(write, range(6)) for id in ids]
    path = stores[0].ensure("k").thread()
    assert len(path) == 1 + 6 * 25
    assert {message.id for message in path} >= set(said)
    for who in range(6):  # each in its order
        assert [m.text for m in path if m.text.startswith(f"{who} ")] == [f"{who} {n}" for n in range(25)]
    assert stores[0].verify().problems == ()


def test_who_queues_for_a_row_that_is_never_let_go_gives_up_in_time(
    database: Database, opened: Callable[..., Store]
) -> None:
    ours, theirs = opened(seconds=1.0), opened(application_name="other")
    talk = ours.start()
    talk.append(Message.user("first"))
    theirs.conversation(talk.id).append(Message.user("faster"))
    talk.append(Message.user("late"))  # from now on, the row is locked first
    assert talk.state.id in _backend(ours)._writer.contested
    with database.admin() as admin:
        admin.autocommit = False
        admin.execute("SELECT 1 FROM hitherto.conversation WHERE id = %s FOR UPDATE", (talk.state.id,))
        with pytest.raises(Busy):
            talk.append(Message.user("never"))
        admin.rollback()
    assert texts(talk.thread()) == ["first", "late"]
    talk.append(Message.user("after all"))


def _backend(store: Store) -> PostgresBackend:
    assert isinstance(store.backend, PostgresBackend)
    return store.backend


def test_a_conversation_that_nobody_else_writes_to_is_not_locked_first_for_ever(opened: Callable[..., Store]) -> None:
    ours, theirs = opened(), opened(application_name="other")
    talk = ours.start()
    talk.append(Message.user("first"))
    theirs.conversation(talk.id).append(Message.user("faster"))
    contested = _backend(ours)._writer.contested
    talk.append(Message.user("late"))
    assert talk.state.id in contested
    for n in range(4):
        talk.append(Message.user(str(n)))
    assert talk.state.id not in contested


@pytest.fixture
def rows(opened: Callable[..., Store]) -> PostgresBackend:
    """Two conversations, of which the second was written to by another process."""
    backend = _backend(opened(seconds=1.0))
    backend.commit([create(id=A), create(id=B)])
    _backend(opened(application_name="other")).commit([update(1, B)])
    return backend


def test_what_was_kept_before_the_line_was_cut_is_not_written_again(
    database: Database, rows: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is kept at once, the other has to queue."""
    lock_rows, cuts = rows._writer.lock_rows, [True]

    def cut(connection: Any, batches: Sequence[Batch]) -> Any:
        if cuts:
            cuts.pop()
            with database.admin() as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        return lock_rows(connection, batches)

    monkeypatch.setattr(rows._writer, "lock_rows", cut)
    assert rows.commit_queued([update(1, A), update(1, B)], rebase_from(3, B)) == [DONE, DONE]
    assert not cuts
    assert [row.version for row in rows.lookup(ids=[A, B])] == [2, 3]


def test_if_a_part_was_kept_and_the_rest_failed_the_store_has_to_look(rows: PostgresBackend) -> None:
    def hold(_: ConversationRow, __: Sequence[int]) -> Sequence[Batch | None]:
        raise Busy("the rest")

    with pytest.raises(CommitUnknown) as caught:
        rows.commit_queued([update(1, A), update(1, B)], hold)
    assert isinstance(caught.value.reason, Busy)
    assert [row.version for row in rows.lookup(ids=[A, B])] == [2, 2]
    with pytest.raises(Busy):  # nothing of it was kept
        rows.commit_queued([update(1, B)], hold)
