"""The circuit breaker, and the pace of commits (D13, D18): as values with a clock of their own, and around a real store
on a disk that fails."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hitherto
from hitherto import Message, Store, events
from hitherto._engine.breaker import FAILURES, PROBE_SECONDS, SLOW_SECONDS, Breaker, Pace
from hitherto._engine.committer import Committer
from hitherto.backend import Batch, Outcome
from hitherto.backends.memory import MemoryBackend
from hitherto.errors import (
    Busy,
    Closed,
    CommitUnknown,
    HithertoError,
    InvalidArgument,
    ReadOnly,
    StorageError,
    StorageFull,
    Suspended,
    Unavailable,
)
from hitherto.events import Event
from hitherto.testing.conformance import create, update
from hitherto.testing.faultdisk import FaultDisk


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tripped(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        assert breaker.refusal() is None
        breaker.record_failure()
    return breaker


# -- the value


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(Clock())
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.record_failure()
        breaker.record_success()  # in a row: this begins again
        assert (breaker.state, breaker.refusal()) == ("closed", None)
    for _ in range(FAILURES):
        breaker.record_failure()
    assert (breaker.state, breaker.refusal()) == ("open", 1.0)


def test_after_a_while_one_write_is_tried_and_each_failure_doubles_the_while() -> None:
    clock = Clock()
    breaker = tripped(clock)
    pauses = []
    for _ in range(9):
        left = breaker.refusal()
        assert left is not None
        pauses.append(left)
        clock.now += left - 0.01
        assert breaker.refusal() == pytest.approx(0.01)
        clock.now += 0.02
        assert breaker.refusal(look=True) is None  # who only looks is not the probe
        assert breaker.refusal() is None
        assert breaker.state == "half-open"
        assert breaker.refusal() is not None  # the others wait for what becomes of it
        breaker.record_failure()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    clock.now += 60
    assert breaker.refusal() is None
    breaker.record_success()
    assert (breaker.state, breaker.failures, breaker.refusal()) == ("closed", 0, None)
    for _ in range(FAILURES):
        breaker.record_failure()
    assert breaker.refusal() == 1.0  # from the beginning


def test_of_many_threads_one_is_the_probe() -> None:
    clock = Clock()
    breaker = tripped(clock)
    clock.now += 1
    ready = threading.Barrier(16)
    let_through: list[bool] = []

    def attempt() -> None:
        ready.wait(10)
        let_through.append(breaker.refusal() is None)

    threads = [threading.Thread(target=attempt) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(let_through) == [False] * 15 + [True]


def test_a_probe_that_is_taken_back_or_never_heard_of_lets_another_try() -> None:
    clock = Clock()
    breaker = tripped(clock)
    clock.now += 1
    assert breaker.refusal() is None
    breaker.withdraw_probe()
    assert breaker.refusal() is None
    assert breaker.state == "half-open"
    clock.now += PROBE_SECONDS
    assert breaker.refusal() is None


def test_every_other_state_is_told_in_order() -> None:
    clock = Clock()
    told: list[tuple[str, int]] = []
    breaker = Breaker(clock, lambda state, failures: told.append((state, failures)))
    for _ in range(FAILURES + 3):
        breaker.record_failure()
    clock.now += 1
    breaker.refusal()
    breaker.record_failure()
    clock.now += 2
    breaker.refusal()
    breaker.record_success()
    breaker.record_success()
    assert told == [("open", 5), ("half-open", 5), ("open", 6), ("half-open", 6), ("closed", 0)]


def test_the_pace_is_too_slow_when_more_than_one_in_twenty_is() -> None:
    clock = Clock()
    pace = Pace(clock)
    slow = SLOW_SECONDS + 0.05
    assert [pace.record_duration(0.001) for _ in range(95)] == [None] * 95
    assert [pace.record_duration(slow) for _ in range(5)] == [None] * 5  # five of a hundred: the p95 is still short
    assert pace.record_duration(slow) == slow
    assert pace.record_duration(slow) is None  # once a minute
    clock.now += 60
    assert pace.record_duration(slow) == slow
    clock.now += 60
    assert [pace.record_duration(0.001) for _ in range(95)][-1] is None
    clock.now += 60
    assert pace.record_duration(0.001) is None  # the slow ones are out of the window


def test_a_few_slow_commits_say_nothing() -> None:
    pace, slow = Pace(Clock()), SLOW_SECONDS + 1.0
    assert [pace.record_duration(slow) for _ in range(19)] == [None] * 19
    assert pace.record_duration(slow) == slow


# -- around the pen


class Failing(MemoryBackend):
    """Raises what it is told to instead of committing."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Callable[[], BaseException] | None = None
        self.tried = 0

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.tried += 1
        if self.error is not None and batches:
            raise self.error()
        return super().commit(batches)


INFRASTRUCTURE: list[Callable[[], HithertoError]] = [
    lambda: StorageError("disk I/O error"),
    lambda: Unavailable("no answer"),
    lambda: CommitUnknown("the line was cut", reason=StorageError("disk I/O error")),
]
ANSWERS: list[Callable[[], HithertoError]] = [
    lambda: Busy("locked"),
    lambda: StorageFull("no space"),
    lambda: ReadOnly("a read-only file system"),
    lambda: Closed("closed"),
    lambda: InvalidArgument("no"),
    lambda: CommitUnknown("cut", reason=StorageFull("no space")),
]


@pytest.mark.parametrize("error", INFRASTRUCTURE)
def test_failures_of_the_infrastructure_suspend_writing(error: Callable[[], HithertoError]) -> None:
    backend = Failing()
    pen = Committer(backend)
    backend.error = error
    for _ in range(FAILURES):
        with pytest.raises(StorageError) as caught:
            pen.write(create())
        assert not isinstance(caught.value, Suspended)
    tried = backend.tried
    with pytest.raises(Suspended) as suspended:
        pen.write(create())
    assert 0 < suspended.value.retry_seconds <= 1
    assert suspended.value.hint
    assert backend.tried == tried  # it was not even asked
    with pytest.raises(StorageError) as caught:
        pen.write(create(), always=True)  # a purge, say, is tried all the same
    assert not isinstance(caught.value, Suspended)


@pytest.mark.parametrize("error", ANSWERS)
def test_answers_do_not(error: Callable[[], HithertoError]) -> None:
    backend = Failing()
    pen = Committer(backend)
    backend.error = error
    for _ in range(3 * FAILURES):
        with pytest.raises(HithertoError) as caught:
            pen.write(create())
        assert not isinstance(caught.value, Suspended)
    assert pen.breaker.state == "closed"


def test_conflicts_do_not() -> None:
    pen = Committer(Failing())
    pen.write(create())
    for _ in range(3 * FAILURES):
        pen.write(update(7))
    assert pen.breaker.state == "closed"


def test_one_transaction_that_fails_counts_once_however_many_ride_in_it() -> None:
    backend = Failing()
    pen = Committer(backend)
    backend.error = lambda: StorageError("disk I/O error")
    entries = [pen.enqueue(create(id=bytes([n]) * 16)) for n in range(20)]
    for entry in entries:
        with pytest.raises(StorageError):
            pen.wait(entry)
    assert (pen.breaker.state, pen.breaker.failures) == ("closed", 1)


def test_a_probe_that_is_interrupted_lets_another_try() -> None:
    backend, clock = Failing(), Clock()
    pen = Committer(backend)
    pen.breaker._clock = clock
    backend.error = lambda: StorageError("disk I/O error")
    for _ in range(FAILURES):
        with pytest.raises(StorageError):
            pen.write(create())
    clock.now += 1
    backend.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        pen.write(create())
    backend.error = None
    pen.write(create())
    assert pen.breaker.state == "closed"


# -- around a store


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultDisk]:
    with FaultDisk(tmp_path) as found:
        yield found


@pytest.fixture
def store(disk: FaultDisk) -> Iterator[Store]:
    with hitherto.open(disk.directory / "store.db", vfs=disk.name, maintenance=False) as opened:
        yield opened
        disk.heal()


def break_disk(disk: FaultDisk, write: Callable[[], object]) -> None:
    """The disk fails from now on, as often as it takes."""
    disk.fail(disk.operations + 1, lasting=True)
    for _ in range(FAILURES):
        with pytest.raises(StorageError) as caught:
            write()
        assert not isinstance(caught.value, Suspended)


def test_a_disk_that_fails_is_left_alone_while_reading_goes_on_and_writing_resumes_by_itself(
    disk: FaultDisk, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """D18, with real I/O errors."""
    clock, events = Clock(), list[Event]()
    store.engine.committer.breaker._clock = clock
    store.subscribe(events.append)
    doomed, talk = store.start(title="Doomed"), store.start()
    kept = talk.append(Message.user("kept"))
    break_disk(disk, lambda: talk.append(Message.user("lost")))
    before = disk.operations
    for write in (lambda: talk.append(Message.user("x")), store.start, lambda: talk.rename("x")):
        with pytest.raises(Suspended):
            write()
    assert disk.operations == before  # nobody touched it
    assert [m.id for m in talk.thread()] == [kept.id]
    assert len(store.conversations()) == 2
    with pytest.raises(StorageError) as caught:  # a purge is tried, and gets the disk's own error
        store.purge(doomed, reason="user-requested")
    assert not isinstance(caught.value, Suspended)
    clock.now += 1
    with pytest.raises(StorageError) as caught:  # the probe
        talk.append(Message.user("x"))
    assert not isinstance(caught.value, Suspended)
    with pytest.raises(Suspended):
        talk.append(Message.user("x"))
    disk.heal()
    clock.now += 2
    talk.append(Message.user("again"))
    assert [m.text for m in talk.thread()] == ["kept", "again"]
    assert store.verify().ok
    assert store.wait_for_listeners()
    states = [event.state for event in events if isinstance(event, hitherto.events.BreakerChanged)]
    assert states == ["open", "half-open", "open", "half-open", "closed"]
    assert caplog.text.count("writing is suspended") == 2
    assert caplog.text.count("writing goes on") == 1


def test_a_purge_that_succeeds_while_writing_is_suspended_ends_that(disk: FaultDisk, store: Store) -> None:
    doomed, talk = store.start(), store.start()
    break_disk(disk, lambda: talk.append(Message.user("lost")))
    disk.heal()
    with pytest.raises(Suspended):
        talk.append(Message.user("x"))
    assert store.purge(doomed, reason="user-requested").purged_count == 1
    talk.append(Message.user("x"))


def test_control_without_the_breaker_every_write_goes_to_the_disk(
    disk: FaultDisk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Breaker, "record_failure", lambda _: None)
    talk = store.start()
    break_disk(disk, lambda: talk.append(Message.user("lost")))
    before = disk.operations
    with pytest.raises(StorageError) as caught:
        talk.append(Message.user("x"))
    assert not isinstance(caught.value, Suspended)
    assert disk.operations > before


def test_large_content_is_not_staged_while_writing_is_suspended(disk: FaultDisk, store: Store) -> None:
    talk = store.start()
    break_disk(disk, lambda: talk.append(Message.user("lost")))
    before = disk.operations
    with pytest.raises(Suspended):
        talk.append(Message.user([hitherto.Block.image(b"x" * 500_000, "image/png")]))
    assert disk.operations == before


def test_reading_by_words_goes_on_too_though_the_index_cannot_be_written(
    disk: FaultDisk, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """D18, D14: there is no index yet, and it cannot be made; then there is one, and it takes nothing in."""
    talk = store.start()
    first = talk.append(Message.user("the words of the first"))
    disk.fail(disk.operations + 1, lasting=True)
    assert [hit.message_id for hit in store.search("words")] == [first.id]
    assert [hit.message_id for hit in store.search("first")] == [first.id]
    assert caplog.text.count("each search makes its own") == 1
    disk.heal()
    assert [hit.message_id for hit in store.search("words")] == [first.id]
    second = talk.append(Message.user("the words of the second"))
    disk.fail(disk.operations + 1, lasting=True)
    assert [hit.message_id for hit in store.search("words")] == [second.id, first.id]


def test_an_index_that_others_hold_is_waited_for_and_not_made_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.start().append(Message.user("words"))

    def locked(_: object, **__: object) -> None:
        raise Busy("locked")

    monkeypatch.setattr(type(store.backend), "text_index", locked)
    with pytest.raises(Busy):
        store.search("words")


def test_every_error_of_the_disk_says_what_to_do(disk: FaultDisk, store: Store) -> None:
    talk = store.start()
    disk.fail(disk.operations + 1, lasting=True)
    for work in (lambda: talk.append(Message.user("x")), lambda: store.purge(talk, reason="user-requested")):
        with pytest.raises(StorageError) as caught:
            work()
        assert caught.value.hint


# -- the log


class Keeping(logging.Handler):
    """Keeps what is logged in the store that logs it."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._talk = store.start(title="log")
        self.tried = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.tried += 1
        with suppress(HithertoError):
            self._talk.append(Message.user(record.getMessage()))


@contextmanager
def kept_log(store: Store) -> Iterator[Keeping]:
    handler = Keeping(store)
    logging.getLogger("hitherto").addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger("hitherto").removeHandler(handler)


def ends(work: Callable[[], object], seconds: float) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def fail_often(talk: hitherto.Conversation) -> None:
    for _ in range(FAILURES + 1):
        with suppress(StorageError):
            talk.append(Message.user("x"))


def test_what_handles_the_log_may_write_to_the_same_store(disk: FaultDisk, store: Store) -> None:
    """When writing is suspended, and when it goes on: whoever says so holds nothing that such a write waits for."""
    talk = store.start()
    with kept_log(store) as log:
        disk.fail(disk.operations + 1, lasting=True)
        assert ends(lambda: fail_often(talk), 10)
        disk.heal()
        assert ends(lambda: store.purge(talk, reason="user-requested"), 10)
    assert log.tried == 2
    assert [m.text for m in log._talk.thread()] == ["writing goes on"]


def slow_down(store: Store, talk: hitherto.Conversation) -> None:
    store.engine.committer._pace._said = None
    store.engine.committer._pace._last.extend([1.0] * 100)
    store.engine.committer._pace._slow = 100
    talk.append(Message.user("slow"))


def test_so_it_may_when_commits_are_slow_or_a_listener_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MAX_QUEUE", 1)
    go_on = threading.Event()
    talk = store.start()
    with kept_log(store) as log:
        store.subscribe(lambda _: go_on.wait(30))
        assert ends(lambda: [talk.append(Message.user("x")) for _ in range(3)], 10)
        assert ends(lambda: slow_down(store, talk), 10)
    go_on.set()
    said = [m.text for m in log._talk.thread()]
    assert ["a listener is too slow" in one or "commits are slow" in one for one in said] == [True, True]


def test_control_who_warns_with_the_pen_in_hand_waits_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitherto._engine.committer.defer_warnings", lambda: None)
    store = Store(MemoryBackend(), maintenance=False)
    talk = store.start()
    thread = threading.Thread(target=slow_down, args=(store, talk), daemon=True)
    with kept_log(store):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    for entry in store.engine.committer._queue:  # nobody is left behind
        entry.result = Busy("given up")
        entry.wake()
    thread.join(10)
    assert not thread.is_alive()
