"""Group commit and the answer to "was it kept?" (C4, C15), with a backend that can be stopped and interrupted."""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest

from hitherto._engine.committer import Committer, PendingCommit, is_committed
from hitherto.backend import DONE, Batch, Change, ConversationRow, Done, Outcome, Stale
from hitherto.backends.memory import MemoryBackend
from hitherto.errors import CommitUnknown, HithertoError, ReadOnly, StorageError, StorageFull, Unavailable
from hitherto.events import Listeners
from hitherto.testing.conformance import A, B, C, conversation_row, create, message_row, token, update

from ..support.waiting import PATIENCE, until


class Scripted(MemoryBackend):
    """Runs a step of a script before it applies a commit, and another after it has."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []
        self.sizes: list[int] = []
        self.blind = False

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        if not batches:
            return []
        self.sizes.append(len(batches))
        if self.before:
            self.before.pop(0)()
        outcomes = super().commit(batches)
        if self.after:
            self.after.pop(0)()
        return outcomes

    def lookup(self, **query: object) -> list[ConversationRow]:
        if self.blind:
            raise StorageError("nothing can be read")
        return super().lookup(**query)  # type: ignore[arg-type]  # as above


def raising(error: BaseException) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step


def stopping(writing: threading.Event, go_on: threading.Event) -> Callable[[], None]:
    def step() -> None:
        writing.set()
        assert go_on.wait(PATIENCE)

    return step


def unknown(reason: HithertoError | None = None) -> CommitUnknown:
    return CommitUnknown("the line was cut", reason=reason)


def in_thread(pen: Committer, batch: Batch, results: dict[bytes, object]) -> threading.Thread:
    def work() -> None:
        try:
            results[batch.changes[0].conversation] = pen.write(batch)
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            results[batch.changes[0].conversation] = error

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_those_who_wait_are_committed_together() -> None:
    backend = Scripted()
    pen = Committer(backend)
    writing, go_on = threading.Event(), threading.Event()
    backend.before = [stopping(writing, go_on)]
    results: dict[bytes, object] = {}
    threads = [in_thread(pen, create(id=A), results)]
    assert writing.wait(PATIENCE)
    others = [bytes([n]) * 16 for n in range(1, 20)]
    threads += [in_thread(pen, create(id=id), results) for id in others]
    until(lambda: sum(entry.waits for entry in pen._queue) == len(others))
    assert results == {}  # nobody is told before the sync
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert backend.sizes == [1, len(others)]
    assert set(results.values()) == {DONE}


def test_a_lone_writer_writes_in_its_own_thread() -> None:
    backend = Scripted()
    seen: list[threading.Thread] = []
    backend.before = [lambda: seen.append(threading.current_thread())]
    assert Committer(backend).write(create()) == DONE
    assert seen == [threading.current_thread()]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_unknown_outcome_is_found_out(moment: str) -> None:
    backend = Scripted()
    setattr(backend, moment, [raising(unknown())] * 3)
    pen = Committer(backend)
    assert pen.write(create(message_row(0))) == DONE
    assert pen.write(update(1, add=(message_row(1),))) == DONE
    assert [m.number for m in backend.scan(A, limit=9)] == [0, 1]


def test_an_outcome_is_found_out_even_if_others_wrote_since() -> None:
    backend = Scripted()
    pen = Committer(backend)
    pen.write(create(message_row(0)))

    def others_come_first() -> None:
        MemoryBackend.commit(backend, [update(2)])
        raise unknown()

    backend.after = [others_come_first]
    assert pen.write(update(1, add=(message_row(1),))) == DONE
    assert len(backend.scan(A, limit=9)) == 2


def test_what_was_not_kept_fails_with_its_reason() -> None:
    backend = Scripted()
    full = StorageFull("no space")
    backend.before = [raising(unknown(full))]
    pen = Committer(backend)
    with pytest.raises(StorageFull):
        pen.write(create())
    backend.after = [raising(unknown(full))]
    assert pen.write(create()) == DONE  # it was kept after all


def test_if_nothing_can_be_read_the_caller_is_told_that_it_is_unknown() -> None:
    backend = Scripted()
    backend.after = [raising(unknown())]
    backend.blind = True
    with pytest.raises(CommitUnknown):
        Committer(backend).write(create())


class Replaced(Scripted):
    """While somebody waits until all is durable, another server takes its place, which has nothing of it."""

    waits = 0

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        if not batches:
            self.waits += 1
            if self.waits == 1:
                assert MemoryBackend.commit(self, [Batch((Change(A, token(1), None),))]) == [DONE]
            if self.after:
                self.after.pop(0)()
        return super().commit(batches)


@pytest.mark.parametrize("interrupted", [False, True], ids=["it says nothing", "it is cut"])
def test_what_was_seen_before_the_wait_has_to_be_there_after_it(interrupted: bool) -> None:
    backend = Replaced()
    backend.after = [raising(unknown())] * (2 if interrupted else 1)
    assert Committer(backend).write(create()) == DONE
    assert backend.lookup(ids=[A])
    assert backend.sizes == [1, 1]


def test_a_wait_that_ended_with_the_patience_is_not_begun_again() -> None:
    waits = []

    class Waiting(Scripted):
        def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
            if not batches:
                waits.append(1)
                raise unknown(Unavailable("no standby has answered"))
            return super().commit(batches)

    backend = Waiting()
    backend.after = [raising(unknown())]
    with pytest.raises(CommitUnknown):
        Committer(backend).write(create())
    assert waits == [1]


def test_a_line_that_is_always_cut_ends_in_an_error() -> None:
    backend = Scripted()
    backend.before = [raising(unknown())] * 100
    with pytest.raises(CommitUnknown):
        Committer(backend).write(create())
    assert len(backend.sizes) < 20


def test_an_error_reaches_everybody_in_the_group_and_the_pen_goes_on() -> None:
    backend = Scripted()
    pen = Committer(backend)
    backend.before = [raising(StorageError("broken"))]
    with pytest.raises(StorageError):
        pen.write(create())
    assert pen.write(create()) == DONE
    assert pen.write(update(7)) == Stale(A, conversation_row())


@pytest.mark.parametrize("kind", [Unavailable, ReadOnly])
def test_who_waits_together_for_a_place_that_is_gone_waits_once(kind: type[StorageError]) -> None:
    """Or each of them would have the whole patience of the backend tried once more, one after the other."""
    backend = Scripted()
    pen = Committer(backend)
    entries = [pen.enqueue(create(id=id)) for id in (A, B, C)]
    backend.before = [raising(kind("no answer"))] * 3
    for entry in entries:
        with pytest.raises(kind):
            pen.wait(entry)
    assert backend.sizes == [3]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_in_the_writer_harms_nobody_else(moment: str) -> None:
    """The interrupted one hears of it; those in the same group get their true outcome from the next writer."""
    backend = Scripted()
    pen = Committer(backend)
    others = [pen.enqueue(create(id=id)) for id in (B, C)]
    setattr(backend, moment, [raising(KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        pen.write(create())
    assert [pen.wait(entry) for entry in others] == [DONE, DONE]
    assert len(backend.lookup(ids=[B, C])) == 2
    assert pen.write(create(id=b"d" * 16)) == DONE
    assert pen.flush(1)


def test_ctrl_c_while_waiting_withdraws_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Scripted()
    pen = Committer(backend)
    writing, go_on = threading.Event(), threading.Event()
    backend.before = [stopping(writing, go_on)]
    results: dict[bytes, object] = {}
    thread = in_thread(pen, create(id=A), results)
    assert writing.wait(PATIENCE)

    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

        def release(self) -> None:
            pass

    monkeypatch.setattr(PendingCommit, "prepare_to_sleep", lambda _: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        pen.write(create(id=B))
    monkeypatch.undo()
    go_on.set()
    thread.join(PATIENCE)
    assert pen.write(create(id=C)) == DONE
    assert [row.id for row in backend.lookup(ids=[A, B, C])] == [A, C]


def test_one_sleeper_is_woken_and_wakes_the_next() -> None:
    pen = Committer(Scripted())
    entries = [pen.enqueue(create(id=id)) for id in (A, B, C)]
    locks = [entry.prepare_to_sleep() for entry in entries]
    assert pen.flush(PATIENCE)
    assert [lock.locked() for lock in locks] == [False, True, True]
    assert pen.wait(entries[0]) == DONE
    assert [lock.locked() for lock in locks] == [False, False, True]


@pytest.mark.parametrize("how", ["interrupted", "after a nap"])
def test_wake_ups_go_past_who_left_before_the_pen_was_put_down(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    backend = Scripted()
    pen = Committer(backend)
    first, second = pen.enqueue(create(id=A)), pen.enqueue(create(id=B))
    lock = second.prepare_to_sleep()

    class Restless:
        def acquire(self, timeout: float) -> bool:
            if how == "interrupted":
                raise KeyboardInterrupt
            first.result = DONE
            return False

        def release(self) -> None:
            pass

    def prepare_to_sleep(entry: PendingCommit) -> Restless:
        entry._wake = wake = Restless()  # type: ignore[assignment]
        return wake

    def leave() -> None:
        with pytest.raises(KeyboardInterrupt) if how == "interrupted" else nullcontext():
            pen.wait(first)

    monkeypatch.setattr(PendingCommit, "prepare_to_sleep", prepare_to_sleep)
    backend.before = [leave]
    assert pen.flush(PATIENCE)
    assert (first.result, second.result) == (DONE, DONE)
    assert not lock.locked()


def test_two_may_wake_one_at_once() -> None:
    entry = PendingCommit(create())
    lock = entry.prepare_to_sleep()
    lock.release()  # by the other one
    entry.wake()
    assert not entry.waits


def wakes_behind_an_interrupted_thread(monkeypatch: pytest.MonkeyPatch, seconds: float) -> bool:
    """Does a thread wake up if the one that should wake it is interrupted before it can?"""
    pen = Committer(Scripted())
    first, second = pen.enqueue(create(id=A)), pen.enqueue(create(id=B))
    sleeper = threading.Thread(target=lambda: pen.wait(second), daemon=True)
    pen._writer = PendingCommit(Batch(()))  # somebody writes
    first.prepare_to_sleep()
    sleeper.start()
    until(lambda: second.waits)
    pen._writer = None
    monkeypatch.setattr(PendingCommit, "wake_next", lambda _: None)  # the interrupt comes before it
    assert pen.flush(PATIENCE)
    sleeper.join(seconds)
    woke = not sleeper.is_alive()
    second.wake()  # nobody is left behind by a test that fails
    return woke


def test_a_sleeper_that_nobody_wakes_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitherto._engine.committer._NAP_SECONDS", 0.01)
    assert wakes_behind_an_interrupted_thread(monkeypatch, PATIENCE)


def test_control_a_sleeper_that_waits_for_others_alone_sleeps_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitherto._engine.committer._NAP_SECONDS", 1_000)
    assert not wakes_behind_an_interrupted_thread(monkeypatch, 0.2)


def test_kept_reads_the_evidence() -> None:
    backend = MemoryBackend()
    made = create(message_row(0), message_row(1))
    assert not is_committed(backend, made.changes)
    backend.commit([made])
    assert is_committed(backend, made.changes)
    dropped = update(1, drop=(1,))
    assert not is_committed(backend, dropped.changes)
    backend.commit([dropped])
    backend.commit([update(2)])
    assert is_committed(backend, dropped.changes)
    removed = Change(A, token(3), None)
    assert not is_committed(backend, (removed,))
    backend.commit([Batch((removed,))])
    assert is_committed(backend, (removed,))
    assert isinstance(DONE, Done)


def test_closing_waits_but_not_for_ever() -> None:
    backend = Scripted()
    pen = Committer(backend)
    writing, go_on = threading.Event(), threading.Event()
    backend.before = [stopping(writing, go_on)]
    thread = in_thread(pen, create(), {})
    assert writing.wait(PATIENCE)
    assert not pen.flush(0.05)
    go_on.set()
    assert pen.flush(PATIENCE)
    thread.join(PATIENCE)


# -- who has the pen


def all_come_home(drain: Callable[[Committer], object], seconds: float) -> bool:
    """Somebody drains, and meets one whose owner is about to come and one whose owner sleeps. Do both come home?"""
    backend = Scripted()
    pen = Committer(backend)
    writing, go_on = threading.Event(), threading.Event()
    backend.before = [stopping(writing, go_on)]
    late, asleep = pen.enqueue(create(id=A)), pen.enqueue(create(id=B))
    works = [lambda: drain(pen), lambda: pen.wait(asleep), lambda: pen.wait(late)]
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    threads[0].start()
    assert writing.wait(PATIENCE)
    threads[1].start()
    until(lambda: asleep.waits)
    threads[2].start()
    until(lambda: late.waits or not pen._taken)
    go_on.set()
    until(lambda: asleep.result is not None)
    for thread in threads:
        thread.join(seconds)
    home = not any(thread.is_alive() for thread in threads)
    asleep.wake()  # nobody is left behind by a test that fails
    return home and backend.sizes == [2]


def test_who_drains_has_the_pen_in_its_own_name() -> None:
    assert all_come_home(lambda pen: pen.flush(PATIENCE), PATIENCE)


def test_control_whoever_answers_for_the_entry_of_another_leaves_a_third_asleep() -> None:
    assert not all_come_home(lambda pen: pen.wait(pen._queue[0]), 0.2)


def test_there_is_one_writer_at_a_time_however_often_somebody_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    pen, commit = Committer(backend), backend.commit
    inside: set[int] = set()
    most, over = [0], threading.Event()

    def counted(batches: Sequence[Batch]) -> list[Outcome]:
        inside.add(threading.get_ident())
        most[0] = max(most[0], len(inside))
        try:
            return commit(batches)
        finally:
            inside.discard(threading.get_ident())

    def drain() -> None:
        while not over.is_set():
            pen.flush(0.01)

    monkeypatch.setattr(backend, "commit", counted)
    drainers = [threading.Thread(target=drain) for _ in range(2)]
    results: list[dict[bytes, object]] = [{} for _ in range(300)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in drainers:
            thread.start()
        writers = [in_thread(pen, create(id=n.to_bytes(16)), result) for n, result in enumerate(results)]
        for thread in writers:
            thread.join(PATIENCE)
    finally:
        sys.setswitchinterval(interval)
        over.set()
    for thread in drainers:  # one of them may have the pen when the last writer has its outcome
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in (*writers, *drainers))
    assert most == [1]
    assert [next(iter(result.values())) for result in results] == [DONE] * 300
    assert (pen._writer, pen._queue, pen.pending_count) == (None, [], 0)


def test_who_drains_and_is_interrupted_leaves_the_pen_to_others() -> None:
    backend = Scripted()
    pen = Committer(backend)
    forgotten = pen.enqueue(create(id=A))
    backend.after = [raising(KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        pen.flush(PATIENCE)
    assert pen.write(create(id=B)) == DONE
    assert forgotten.result == DONE
    assert pen.flush(0)


# -- what was kept


def test_removals_were_kept_only_if_all_of_them_are_gone() -> None:
    """Others may have removed some of them: a sweep must not say that the rest went, too."""
    backend = Scripted()
    pen = Committer(backend)
    for id in (A, B):
        pen.write(create(id=id))
    removal = Batch((Change(A, token(1), None), Change(B, token(1), None)))

    def others_remove_one() -> None:
        MemoryBackend.commit(backend, [Batch((Change(A, token(1), None),))])
        raise unknown()

    backend.before = [others_remove_one]
    told: list[Batch] = []
    outcome = pen.write(removal, tell=lambda batch, _: told.append(batch) or [])  # type: ignore[func-returns-value]
    assert isinstance(outcome, Stale)
    assert told == []
    assert len(backend.lookup(ids=[A, B])) == 1
    assert not is_committed(backend, removal.changes)
    MemoryBackend.commit(backend, [Batch((Change(B, token(1), None),))])
    assert is_committed(backend, removal.changes)
    assert not is_committed(backend, ())


def test_one_change_that_bears_our_token_proves_the_others() -> None:
    backend = MemoryBackend()
    backend.commit([create(id=A), create(id=B)])
    both = Batch((*update(1, id=A).changes, Change(B, token(1), None)))
    assert not is_committed(backend, both.changes)
    backend.commit([Batch((Change(B, token(1), None),))])
    assert not is_committed(backend, both.changes)  # somebody else removed it: ours was not kept


def test_what_was_kept_is_told_before_its_owner_can_know_it() -> None:
    """Whoever waits for listeners after its own write waits for its own event, too."""
    listeners = Listeners()
    listeners.subscribe(lambda _: None)
    pen = Committer(MemoryBackend(), listeners)
    seen: list[object] = []
    entry = pen.enqueue(create(), tell=lambda _, __: seen.append(entry.result) or [])  # type: ignore[func-returns-value]
    assert pen.wait(entry) == DONE
    assert seen == [None]
    listeners.close(1)
