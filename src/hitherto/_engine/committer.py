"""Group commit: one thread commits for all threads that are waiting.

Many threads may have something to write; the disk syncs one thing at a time. A thread that finds no writer becomes the
**writer** and commits at once, with no hop to another thread. Threads that come meanwhile leave their batch in the
queue and sleep. When the writer is done, the first of them becomes the writer and commits the whole queue, in one
transaction with one sync. No thread is told "done" before that sync.

The committer alone answers "was it committed?". If a commit's outcome is unknown, it reads back the rows that it meant
to write and compares tokens. Batches that were committed are done. The others are written again, or fail with the error
that caused the doubt.

The writer is also the first to know that a batch was committed, and in which order: so it emits the events. And it
sees how commits go. After too many failures of the disk in a row, no commit is tried for a while; commits that are too
slow are reported, after the writer has handed over.

There is one writer at a time: the owner of an entry, from the moment in which it found no writer or was handed the
role; or a thread that flushes the queue, with an entry of its own. Only the owner waits for an entry, and only the
owner raises its error.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Protocol, cast

from ..accountability import current
from ..backend import (
    DONE,
    INTERNAL_KINDS,
    Backend,
    Batch,
    Change,
    ConversationRow,
    Done,
    Outcome,
    QueueingBackend,
    Stale,
    Taken,
    removes,
)
from ..errors import (
    Busy,
    Closed,
    CommitUnknown,
    HithertoError,
    ReadOnly,
    StorageError,
    StorageFull,
    Suspended,
    Unavailable,
)
from ..events import (
    BreakerChanged,
    ConversationDeleted,
    ConversationStored,
    Event,
    Listeners,
    SlowCommit,
    defer_warnings,
    resume_warnings,
    warn,
)
from ..ids import show_conversation_id
from ..model import to_datetime
from ..telemetry import Telemetry
from .breaker import CLOSED, HALF_OPEN, OPEN, SLOW_SECONDS, Breaker, Pace

READS_ONLY = "it was opened to be read only"

BATCH_SIZE = 512  # batches in one transaction
MAX_UNKNOWN_ATTEMPTS = 8  # how often a commit of unknown outcome is written again
_LOCK_SECONDS = 0.05  # that a batch waits to be made anew: the holder of its lock may wait for our connection
_NAP_SECONDS = 1.0  # after which a sleeper looks by itself: the thread that wakes it may have been interrupted
MAX_DURABILITY_WAITS = 3  # attempts to wait until rows that were read are durable

Tell = Callable[[Batch, datetime], Iterable[Event]]  # makes the events of a batch that was committed


def report_stored(batch: Batch, at: datetime) -> list[Event]:
    """Return the events of conversations that were begun, added to or changed."""
    return [ConversationStored(at, show_conversation_id(c.conversation), len(c.add)) for c in batch.changes]


def report_deletion(reason: str) -> Tell:
    """Return what makes the events of deleting, with this reason: a conversation is deleted, or changed if a part of it
    is left."""
    actor = current()

    def tell(batch: Batch, at: datetime) -> list[Event]:
        meant = [change for change in batch.changes if change.row is None or change.row.kind not in INTERNAL_KINDS]
        names = [(show_conversation_id(change.conversation), change.row is None) for change in meant]
        gone: list[Event] = [ConversationDeleted(at, name, reason, actor) for name, is_gone in names if is_gone]
        return [*gone, *(ConversationStored(at, name, 0) for name, is_gone in names if not is_gone)]

    return tell


class Rebaser(Protocol):
    """Makes the batch of an entry anew from the row that the backend has locked."""

    @property
    def lock(self) -> "threading.RLock":
        """Held while batches of one conversation are made anew, so that nothing comes between them."""

    def __call__(self, entry: "PendingCommit", row: ConversationRow) -> Batch | None:
        """Return the batch, or None if it cannot be made here: then its owner gets `Stale`."""


class PendingCommit:
    """One batch on its way to the disk."""

    __slots__ = ("_wake", "batch", "next", "probe", "rebaser", "result", "tell", "unsure")

    def __init__(self, batch: Batch, tell: Tell | None = None, rebaser: Rebaser | None = None) -> None:
        self.batch = batch  # as it was made last: `is_committed` looks for its token
        self.rebaser = rebaser  # which must not know the entry: no circles
        self.tell = tell  # called once, if the batch is committed
        self.probe = False  # it alone is tried, to see whether writing works again
        self.result: Outcome | Exception | None = None
        self.unsure = False  # it was in a commit of unknown outcome: it may be kept already, or still be under way
        self._wake: threading.Lock | None = None
        self.next: PendingCommit | None = None  # its owner is woken by the owner of this one

    def prepare_to_sleep(self) -> threading.Lock:
        wake = threading.Lock()
        wake.acquire()
        self._wake = wake
        return wake

    def wake(self) -> None:
        """Idempotent, even if it is interrupted half-way: every sleep has a lock of its own. Two threads may call it at
        once: the owner of the entry before in the chain, and a writer that was interrupted while it handed over."""
        wake = self._wake
        if wake is not None:
            with suppress(RuntimeError):  # the other thread has released it
                wake.release()
            self._wake = None

    def wake_next(self) -> None:
        """Pass a wake-up on. Threads that wake all at once fight for the interpreter."""
        following, self.next = self.next, None
        if following is not None:
            following.wake()

    @property
    def waits(self) -> bool:
        return self._wake is not None


class Committer:
    """Commits batches through a backend, together where they meet."""

    def __init__(
        self,
        backend: Backend,
        listeners: Listeners | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`clock` gives microseconds since 1970, for the events."""
        self._backend = backend
        self._listeners = listeners or Listeners()
        self._clock = clock
        self._telemetry = telemetry or Telemetry(backend.info.name)
        self.breaker = Breaker(
            changed=partial(_report_breaker, self._listeners, clock)
        )  # which must not know us: no circles
        self._pace = Pace()
        self._mutex = threading.RLock()  # a signal may find us in it, and its handler may close the store
        self._queue: list[PendingCommit] = []
        self._writer: PendingCommit | None = None  # the entry whose owner commits now
        self._taken: list[PendingCommit] = []  # what the writer took from the queue
        self.can_queue = backend.info.can_queue  # late batches are made anew while the backend holds their rows
        self._rebasing: int | None = None  # the thread that makes batches anew
        self.refused: str | None = None  # why nothing is written any more
        self.ignore_breaker = False  # the store is closing: there is no later
        self._hint = ""

    @property
    def _is_writing(self) -> bool:
        return self._writer is not None

    def refuse(self, reason: str | None, hint: str = "") -> None:
        """Refuse batches from now on, except those with `always`; None: accept them again."""
        self.refused, self._hint = reason, hint

    def check(self) -> None:
        """Raise the error that a write would be refused with now."""
        self._admit(look=True)

    def _admit(self, *, look: bool = False) -> None:
        if self.refused is not None:
            raise ReadOnly(f"the store takes no writes: {self.refused}", hint=self._hint)
        seconds = None if self.ignore_breaker else self.breaker.refusal(look=look)
        if seconds is not None:
            failures = self.breaker.failures
            what = f"writing failed {failures} times in a row, and is not tried for {seconds:.1f} seconds"
            raise Suspended(what, retry_seconds=seconds)

    def enqueue(
        self, batch: Batch, *, always: bool = False, tell: Tell | None = None, rebaser: Rebaser | None = None
    ) -> PendingCommit:
        """Put a batch in the queue. Batches are applied in the order of these calls. `tell` makes the events to
        emit if it is committed, `rebaser` makes the batch anew where `can_queue`."""
        entry = PendingCommit(batch, tell, rebaser)
        if not always and (self.refused is not None or self.breaker.state != CLOSED):
            try:
                defer_warnings()
                self._admit()
            finally:
                resume_warnings()
            entry.probe = self.breaker.state == HALF_OPEN
        with self._mutex:
            self._queue.append(entry)
        return entry

    def withdraw(self, entry: PendingCommit) -> None:
        """Take a batch that no thread waits for out of the queue. It is committed all the same if a writer has it
        already."""
        try:
            defer_warnings()
            self._abandon(entry)
        finally:
            resume_warnings()

    def wait(self, entry: PendingCommit) -> Outcome:
        """Return the outcome of a batch that this thread has enqueued. Commits the queue if there is no writer, or if
        this thread is made the writer."""
        if entry.result is None:
            self._wait_for_result(entry)
        else:  # another thread has committed it, before this one had to sleep
            entry.wake_next()
            entry.rebaser = None  # or it would be a circle of references
        if isinstance(entry.result, Exception):
            raise entry.result
        return cast("Outcome", entry.result)

    def _wait_for_result(self, entry: PendingCommit) -> None:
        try:
            defer_warnings()
            while entry.result is None:
                with self._mutex:
                    wake = self._begin_turn(entry)
                if wake is None:
                    self._write()
                elif wake.acquire(timeout=_NAP_SECONDS):
                    entry.wake_next()
                else:
                    self._leave_chain(entry)
        except BaseException:  # Ctrl+C, anywhere: the others must not suffer
            self._abandon(entry)
            raise
        finally:
            entry.wake_next()
            entry.rebaser = None  # or it would be a circle of references
            resume_warnings()

    def _begin_turn(self, entry: PendingCommit) -> "threading.Lock | None":
        """Make the owner of this entry the writer and return None; or return the lock that it sleeps on."""
        if self._rebasing is not None and self._rebasing == threading.get_ident():
            raise AssertionError("a batch that is made anew cannot wait for another: its thread is the writer")
        if self._writer is None or self._writer is entry:
            self._take_queue(entry)
            return None
        wake = entry.prepare_to_sleep()
        if entry.result is not None:
            entry.wake()
        return wake

    def _leave_chain(self, entry: PendingCommit) -> None:
        """Take an entry out of the chain of wake-ups, and pass on a wake-up that has reached it already."""
        with self._mutex:
            entry.wake()
        entry.wake_next()

    def write(self, batch: Batch, *, always: bool = False, tell: Tell | None = None) -> Outcome:
        """Commit one batch and wait for its outcome."""
        return self.wait(self.enqueue(batch, always=always, tell=tell))

    @property
    def pending_count(self) -> int:
        """The number of batches without an outcome."""
        with self._mutex:
            return sum(entry.result is None for entry in (*self._taken, *self._queue))

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until the queue is empty and there is no writer. Return False if the time ran out. If there is no
        writer, this thread commits the queue: the owner of a batch may have been interrupted before it could wait."""
        deadline = time.monotonic() + timeout_seconds
        ours = PendingCommit(Batch(()))  # in no queue: this thread is the writer, with no batch of its own
        try:
            defer_warnings()
            while True:
                with self._mutex:
                    if not self._is_writing and not self._queue:
                        return True
                    if time.monotonic() >= deadline:
                        return False
                    if not self._is_writing:
                        self._take_queue(ours)
                if self._writer is ours:
                    self._write()
                else:
                    time.sleep(0.001)
        except BaseException:  # as in `wait`
            self._abandon(ours)
            raise
        finally:
            resume_warnings()

    def _take_queue(self, entry: PendingCommit) -> None:
        """Make the owner of this entry the writer, and take a transaction's worth of the queue. Called under the
        mutex."""
        self._writer = entry
        self._taken, self._queue = self._queue[:BATCH_SIZE], self._queue[BATCH_SIZE:]

    def _write(self) -> None:
        """Commit the batches taken from the queue, and hand over."""
        started = time.perf_counter()
        self._commit(self._taken)
        self._look_back(self._taken, time.perf_counter() - started)
        with self._mutex:
            self._hand_over()

    # -- how it went

    def _look_back(self, entries: Sequence[PendingCommit], seconds: float) -> None:
        """Count one success or one failure for the whole transaction, and its duration."""
        failure: Exception | None = None
        for entry in entries:
            if not isinstance(entry.result, Exception):
                failure = None
                break
            failure = entry.result if failure is None or _is_infrastructure_failure(entry.result) else failure
        if failure is not None and _is_infrastructure_failure(failure):
            self.breaker.record_failure()
        elif self.breaker.failures:
            self.breaker.record_success()
        if failure is None and (p95 := self._pace.record_duration(seconds)) is not None:
            self._report_slowness(p95)
        if self._telemetry.is_on:
            self._measure(entries, seconds, failure)

    def _measure(self, entries: Sequence[PendingCommit], seconds: float, failure: Exception | None) -> None:
        size = sum(_size(entry.batch) for entry in entries)
        self._telemetry.record_commit(size, len(entries), seconds, "" if failure is None else type(failure).__name__)
        for entry in entries:
            if isinstance(entry.result, (Stale, Taken)):
                self._telemetry.conflict(type(entry.result).__name__.lower())

    def _report_slowness(self, p95: float) -> None:
        warn(f"commits are slow: one in twenty takes {p95 * 1000:.0f} ms or more")
        self._listeners.emit(SlowCommit(to_datetime(self._clock()), p95, SLOW_SECONDS))

    def _hand_over(self) -> None:
        """Wake the owners of the batches with an outcome, one after the other, and make the first sleeper in the queue
        the writer. Called under the mutex, under which owners decide to sleep, so no wake-up is missed. If it was
        interrupted, it can be called again."""
        first: PendingCommit | None = None
        for entry in reversed(self._taken):
            if entry.result is not None and entry.waits:
                entry.next, first = first, entry
        if first is not None:
            first.wake()
        self._taken = []
        for entry in self._queue:
            if entry.waits:
                entry.wake()
                self._writer = entry
                return
        self._writer = None

    def _abandon(self, entry: PendingCommit) -> None:
        """Clean up after the interrupted owner of this entry: take the batch out of the queue if no writer has it yet,
        and hand over if the owner was the writer. The next writer finds out which of its batches were committed."""
        with self._mutex:
            entry.wake()  # no wake-up waits for it any more
            if entry in self._queue:
                self._queue.remove(entry)
                entry.result = CommitUnknown("the write was interrupted before it began")
            if entry.probe and (self._writer is entry or entry not in self._taken):
                self.breaker.withdraw_probe()  # unless another writes it
            if self._writer is entry:
                entry.result = entry.result or CommitUnknown("the write was interrupted")
                others = [other for other in self._taken if other.result is None]
                for other in others:
                    other.unsure = True
                self._queue[:0] = others
                self._hand_over()

    def _commit(self, entries: list[PendingCommit]) -> None:
        open_ = [entry for entry in entries if not (entry.unsure and self._settle_if_kept(entry))]
        for _ in range(MAX_UNKNOWN_ATTEMPTS):
            if not open_:
                return
            try:
                for entry, outcome in zip(open_, self._apply(open_), strict=True):
                    if not (entry.unsure and outcome != DONE and self._settle_if_kept(entry)):
                        self._settle(entry, outcome)  # if not with an earlier attempt, which may have been under way
                return
            except CommitUnknown as error:
                open_ = self._find_unkept(open_, error)
            except Exception as error:  # noqa: BLE001  # which batch does the backend refuse? Try each alone
                open_ = [entry for entry in open_ if entry.result is None]  # a committed batch is not written again
                if len(open_) == 1 or _concerns_all(error, open_):
                    for entry in open_:
                        entry.result = error
                    return
                for entry in open_:
                    self._commit([entry])
                return
        for entry in open_:
            entry.result = CommitUnknown(f"the commit was interrupted {MAX_UNKNOWN_ATTEMPTS} times")

    def _apply(self, entries: Sequence[PendingCommit]) -> list[Outcome]:
        batches = [entry.batch for entry in entries]
        if self.can_queue and any(entry.rebaser is not None for entry in entries):
            return cast("QueueingBackend", self._backend).commit_queued(batches, partial(self._rebase, entries))
        return self._backend.commit(batches)

    def _rebase(
        self, entries: Sequence[PendingCommit], row: ConversationRow, places: Sequence[int]
    ) -> list[Batch | None]:
        """Make the batches at these places anew. If a batch that is not stale comes before them, none is made: they
        would have to build on it before it is committed."""
        first = next(n for n, entry in enumerate(entries) if _changes(entry.batch, row.id))
        rebaser = entries[first].rebaser
        if first != places[0] or rebaser is None or not rebaser.lock.acquire(timeout=_LOCK_SECONDS):
            return [None] * len(places)
        self._rebasing = threading.get_ident()
        try:
            made: list[Batch | None] = []
            for place in places:
                batch = _rebase_one(entries[place], row)
                made.append(batch)
                row = row if batch is None else _after(batch, row)
            return made
        finally:
            self._rebasing = None
            rebaser.lock.release()

    def _settle(self, entry: PendingCommit, outcome: Outcome) -> None:
        tell, entry.tell = entry.tell, None  # at most once, even if this thread is interrupted
        if tell is not None and self._listeners.some and isinstance(outcome, Done):
            try:
                for event in tell(entry.batch, to_datetime(self._clock())):
                    self._listeners.emit(event)
            except Exception as error:  # noqa: BLE001  # it is committed all the same, and must not be written again
                warn(f"what was kept could not be told: {type(error).__name__}")
        entry.result = outcome  # last: its owner may see it at once, and its events are emitted by then

    def _settle_if_kept(self, entry: PendingCommit) -> bool:
        if self._is_durable(entry.batch.changes):
            self._settle(entry, DONE)
        return entry.result is not None

    def _is_durable(self, changes: Sequence[Change]) -> bool:
        """Return True if these changes are committed and durable. Rows that can be read are not always durable yet, so
        wait until they are. Then read them again: after a failover the new server had nothing to wait for, and may not
        have the rows."""
        for _ in range(MAX_DURABILITY_WAITS):
            if not is_committed(self._backend, changes):
                return False
            try:
                self._backend.commit([])
            except CommitUnknown as error:
                if error.reason is not None:
                    raise
                continue  # the wait was interrupted, and says nothing
            return is_committed(self._backend, changes)
        raise CommitUnknown(f"the wait for the commit was interrupted {MAX_DURABILITY_WAITS} times")

    def _find_unkept(self, entries: Sequence[PendingCommit], unknown: CommitUnknown) -> list[PendingCommit]:
        """Return the entries of a commit of unknown outcome that have to be written again."""
        for entry in entries:
            entry.unsure = True
        try:
            again = [entry for entry in entries if not self._settle_if_kept(entry)]
        except HithertoError:
            for entry in entries:
                entry.result = entry.result or unknown
            return []
        if unknown.reason is not None:  # the next attempt would fail for the same reason
            if len(again) > 1 and not _concerns_all(unknown.reason, again):
                for entry in again:
                    self._commit([entry])
                return []
            for entry in again:
                entry.result = unknown.reason
            return []
        return again


def _changes(batch: Batch, conversation: bytes) -> bool:
    return any(change.conversation == conversation for change in batch.changes)


def _rebase_one(entry: PendingCommit, row: ConversationRow) -> Batch | None:
    """Return the batch of this entry, made anew; None if it may have been committed: it would be there twice."""
    rebaser = entry.rebaser
    if rebaser is None or entry.unsure:
        return None
    batch = rebaser(entry, row)
    if batch is not None:
        entry.batch = batch
    return batch


def _after(batch: Batch, row: ConversationRow) -> ConversationRow:
    """The row of the conversation as the batch leaves it."""
    return next((change.row for change in batch.changes if change.conversation == row.id and change.row), row)


def _report_breaker(listeners: Listeners, clock: Callable[[], int], state: str, failures: int) -> None:
    """Log and emit that the breaker is in another state."""
    if state == OPEN:
        warn(f"writing is suspended for a while: it failed {failures} times in a row")
    elif state != HALF_OPEN:
        warn("writing goes on")
    listeners.emit(BreakerChanged(to_datetime(clock()), state, failures))


def _size(batch: Batch) -> int:
    """The bytes of content in a batch."""
    bodies = (row.body for c in batch.changes for rows in (c.add, c.amend, c.pack, c.put) for row in rows)
    return sum(len(body) for body in bodies if body is not None)


def _is_infrastructure_failure(error: Exception) -> bool:
    """Return True if the infrastructure failed. A refusal for good reason has an error of its own."""
    return type(error) is StorageError or isinstance(error, (Unavailable, CommitUnknown))


def _concerns_all(error: Exception, entries: Sequence[PendingCommit]) -> bool:
    """Return True if the error is not about one batch. On a full disk, a batch that only removes is tried alone."""
    if isinstance(error, StorageFull):
        return not any(removes(entry.batch) for entry in entries)
    return isinstance(error, (Busy, Closed, CommitUnknown, ReadOnly, Unavailable))


def is_committed(backend: Backend, changes: Sequence[Change]) -> bool:
    """Return True if these changes, which happen together or not at all, were committed. One row with our token proves
    it for all. A change that only removes leaves no token: it was committed if all its rows are gone."""
    traces = [_trace(backend, change) for change in changes]
    return True in traces or (bool(traces) and False not in traces)


def _trace(backend: Backend, change: Change) -> bool | None:
    """Return True if the change left a row with our token, False if it did not. None if the rows that it removes are
    gone, by us or by another process."""
    rows = backend.lookup(ids=[change.conversation])
    if change.row is None:
        return False if rows else None
    if rows and rows[0].token == change.row.token:
        return True
    if change.add:  # others may have written to the conversation since
        found = backend.messages(numbers=[change.add[0].number], bodies=False)
        return bool(found) and found[0].token == change.add[0].token
    return None if change.drop and not backend.messages(numbers=change.drop, bodies=False) else False
