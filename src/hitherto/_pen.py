"""Group commit: whoever holds the pen commits for those who wait.

Many threads may have something to write; the disk syncs one thing at a time. A thread that finds the pen free writes
at once, on its own, with no hop to another thread. Those that come meanwhile leave their batch in the queue and
sleep; when the writer is done, the first of them gets the pen and commits everything that has gathered, in one
transaction with one sync. Nobody is told "done" before that sync.

It is also the one place that answers "was it kept?": if a commit's outcome is unknown, the pen reads back what it
meant to write and compares tokens. What was kept is done; what was not is written again, or fails with the error that
caused it.
"""

import threading
import time
from collections.abc import Sequence

from .backend import DONE, Backend, Batch, Change, Outcome
from .errors import Busy, Closed, CommitUnknown, HithertoError, ReadOnly, StorageFull

_MOST = 512  # batches in one transaction
_TRIES = 8  # how often a commit of unknown outcome is written again


class Entry:
    """One batch on its way to the disk."""

    __slots__ = ("_wake", "batch", "result", "unsure")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.result: Outcome | Exception | None = None
        self.unsure = False  # it was in a commit of unknown outcome: it may be kept already, or still be under way
        self._wake: threading.Lock | None = None

    def prepare_to_sleep(self) -> threading.Lock:
        wake = threading.Lock()
        wake.acquire()
        self._wake = wake
        return wake

    def wake(self) -> None:
        """Idempotent, even if it is interrupted half-way: every sleep has a lock of its own."""
        if self._wake is not None:
            if self._wake.locked():
                self._wake.release()
            self._wake = None

    @property
    def waits(self) -> bool:
        return self._wake is not None


class Pen:
    """Commits batches through a backend, together where they meet."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._mutex = threading.Lock()
        self._queue: list[Entry] = []
        self._writer: Entry | None = None  # whose owner has the pen
        self._taken: list[Entry] = []  # what the writer took from the queue
        self.refused: str | None = None  # why nothing is written any more
        self._hint = ""

    @property
    def _held(self) -> bool:
        return self._writer is not None

    def refuse(self, reason: str | None, hint: str = "") -> None:
        """Take no more batches, but those that are `always` taken; None: take them again."""
        self.refused, self._hint = reason, hint

    def enqueue(self, batch: Batch, *, always: bool = False) -> Entry:
        """Put a batch in line. Batches are applied in the order of these calls."""
        if self.refused is not None and not always:
            raise ReadOnly(f"the store takes no writes: {self.refused}", hint=self._hint)
        entry = Entry(batch)
        with self._mutex:
            self._queue.append(entry)
        return entry

    def outcome(self, entry: Entry) -> Outcome:
        """Wait for the outcome of an enqueued batch, writing if the pen is free or handed over."""
        try:
            while entry.result is None:
                with self._mutex:
                    wake = self._turn(entry)
                if wake is None:
                    self._write()
                else:
                    wake.acquire()
        except BaseException:  # Ctrl+C, anywhere: the others must not suffer
            self._abandon(entry)
            raise
        if isinstance(entry.result, Exception):
            raise entry.result
        return entry.result

    def _turn(self, entry: Entry) -> "threading.Lock | None":
        """None if the owner of this entry has the pen now, else what it sleeps on until it is woken."""
        if self._writer is None or self._writer is entry:
            self._writer = entry
            return None
        wake = entry.prepare_to_sleep()
        if entry.result is not None:
            entry.wake()
        return wake

    def write(self, batch: Batch, *, always: bool = False) -> Outcome:
        """Commit one batch and wait for its outcome."""
        return self.outcome(self.enqueue(batch, always=always))

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until nobody writes or waits. False if the time ran out."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            with self._mutex:
                if not self._held and not self._queue:
                    return True
            time.sleep(0.001)
        return False

    def _write(self) -> None:
        with self._mutex:
            self._taken, self._queue = self._queue[:_MOST], self._queue[_MOST:]
        self._commit(self._taken)
        with self._mutex:
            self._put_down()

    def _put_down(self) -> None:
        """Wake whose batches are settled, and hand the pen to the first who waits. Called under the mutex, under which
        owners decide to sleep, so no wake-up is missed; if interrupted, it can be called again."""
        for entry in self._taken:
            if entry.result is not None:
                entry.wake()
        self._taken = []
        for entry in self._queue:
            if entry.waits:
                entry.wake()
                self._writer = entry
                return
        self._writer = None

    def _abandon(self, entry: Entry) -> None:
        """The owner of this entry was interrupted: withdraw the batch if nobody writes it yet, and do not keep the
        pen. What was being written is looked at by the next writer, who finds out what was kept."""
        with self._mutex:
            if entry in self._queue:
                self._queue.remove(entry)
                entry.result = CommitUnknown("the write was interrupted before it began")
            if self._writer is entry:
                entry.result = entry.result or CommitUnknown("the write was interrupted")
                others = [other for other in self._taken if other.result is None]
                for other in others:
                    other.unsure = True
                self._queue[:0] = others
                self._put_down()

    def _commit(self, entries: list[Entry]) -> None:
        open_ = [entry for entry in entries if not (entry.unsure and self._settled(entry))]
        for _ in range(_TRIES):
            if not open_:
                return
            try:
                for entry, outcome in zip(open_, self._backend.commit([entry.batch for entry in open_]), strict=True):
                    self._tell(entry, outcome)
                return
            except CommitUnknown as error:
                open_ = self._still_open(open_, error)
            except Exception as error:  # noqa: BLE001  # whose batch is it that the backend cannot take? Each for itself
                if len(open_) == 1 or isinstance(error, (Busy, Closed, StorageFull)):  # or it is nobody's
                    for entry in open_:
                        entry.result = error
                    return
                for entry in open_:
                    self._commit([entry])
                return
        for entry in open_:
            entry.result = CommitUnknown(f"the commit was interrupted {_TRIES} times")

    def _tell(self, entry: Entry, outcome: Outcome) -> None:
        """What becomes of an entry. If an earlier attempt was still under way when we looked, what is in the way now
        may be that attempt itself."""
        if entry.unsure and outcome != DONE and self._settled(entry):
            return
        entry.result = outcome

    def _settled(self, entry: Entry) -> bool:
        if kept(self._backend, entry.batch.changes):
            self._backend.commit([])  # what can be seen is not always durable yet: wait for that
            entry.result = DONE
        return entry.result is not None

    def _still_open(self, entries: Sequence[Entry], unknown: CommitUnknown) -> list[Entry]:
        """Of the entries of a commit whose outcome is unknown, those that have to be written again."""
        for entry in entries:
            entry.unsure = True
        try:
            again = [entry for entry in entries if not self._settled(entry)]
        except HithertoError:
            for entry in entries:
                entry.result = entry.result or unknown
            return []
        if unknown.reason is not None:  # what was not kept would not be kept the next time either
            for entry in again:
                entry.result = unknown.reason
            return []
        return again


def kept(backend: Backend, changes: Sequence[Change]) -> bool:
    """Were these changes, which happen together or not at all, kept? The tokens of the rows tell."""
    for change in changes:
        rows = backend.lookup(ids=[change.conversation])
        if change.row is None:
            return not rows
        if rows and rows[0].token == change.row.token:
            return True
        if change.add:  # others may have written to the conversation since
            found = backend.messages(numbers=[change.add[0].number], bodies=False)
            return bool(found) and found[0].token == change.add[0].token
        if change.drop:
            return not backend.messages(numbers=change.drop, bodies=False)
    return False
