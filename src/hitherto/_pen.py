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
from .errors import CommitUnknown, HithertoError

_MOST = 512  # batches in one transaction
_TRIES = 8  # how often a commit of unknown outcome is written again


class Entry:
    """One batch on its way to the disk."""

    __slots__ = ("_wake", "batch", "leads", "result", "unsure")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.result: Outcome | Exception | None = None
        self.leads = False  # the pen was handed to its owner
        self.unsure = False  # a writer was interrupted while committing it: it may be kept already
        self._wake: threading.Lock | None = None

    def prepare_to_sleep(self) -> threading.Lock:
        self._wake = threading.Lock()
        self._wake.acquire()
        return self._wake

    def wake(self) -> None:
        if self._wake is not None:
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
        self._held = False

    def enqueue(self, batch: Batch) -> Entry:
        """Put a batch in line. Batches are applied in the order of these calls."""
        entry = Entry(batch)
        with self._mutex:
            self._queue.append(entry)
        return entry

    def outcome(self, entry: Entry) -> Outcome:
        """Wait for the outcome of an enqueued batch, writing if the pen is free or handed over."""
        while entry.result is None:
            with self._mutex:
                wake = self._turn(entry)
            if wake is None:
                self._write(entry)
            else:
                self._sleep(entry, wake)
        if isinstance(entry.result, Exception):
            raise entry.result
        return entry.result

    def _turn(self, entry: Entry) -> "threading.Lock | None":
        """None if the owner of this entry has the pen now, else what it sleeps on until it is woken."""
        if entry.leads or not self._held:
            self._held, entry.leads = True, False
            return None
        wake = entry.prepare_to_sleep()
        if entry.result is not None:
            entry.wake()
        return wake

    def write(self, batch: Batch) -> Outcome:
        """Commit one batch and wait for its outcome."""
        return self.outcome(self.enqueue(batch))

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until nobody writes or waits. False if the time ran out."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            with self._mutex:
                if not self._held and not self._queue:
                    return True
            time.sleep(0.001)
        return False

    def _sleep(self, entry: Entry, wake: threading.Lock) -> None:
        try:
            wake.acquire()
        except BaseException:
            # Ctrl+C while waiting: withdraw the batch if nobody writes it yet, and do not keep the pen.
            with self._mutex:
                if entry in self._queue:
                    self._queue.remove(entry)
                    entry.result = CommitUnknown("the write was interrupted before it began")
                if entry.leads:
                    self._pass_on()
            raise

    def _write(self, mine: Entry) -> None:
        with self._mutex:
            entries, self._queue = self._queue[:_MOST], self._queue[_MOST:]
        try:
            self._commit(entries)
        except BaseException:
            # Ctrl+C while writing: the others must not suffer, so the next writer finds out what was kept.
            with self._mutex:
                mine.result = mine.result or CommitUnknown("the write was interrupted")
                others = [entry for entry in entries if entry.result is None]
                for entry in others:
                    entry.unsure = True
                self._queue[:0] = others
            raise
        finally:
            self._finish(entries)

    def _finish(self, entries: list[Entry]) -> None:
        """Wake those whose batches are done, and pass the pen on. An owner looks at its result and decides to sleep
        under the same lock, so no wake-up is missed."""
        with self._mutex:
            for entry in entries:
                if entry.result is not None:
                    entry.wake()
            self._pass_on()

    def _pass_on(self) -> None:
        """Hand the pen to the first who waits, or put it down. Called under the lock."""
        for entry in self._queue:
            if entry.waits:
                entry.leads = True
                entry.wake()
                return
        self._held = False

    def _commit(self, entries: list[Entry]) -> None:
        open_ = [entry for entry in entries if not (entry.unsure and self._settled(entry))]
        for _ in range(_TRIES):
            if not open_:
                return
            try:
                for entry, outcome in zip(open_, self._backend.commit([entry.batch for entry in open_]), strict=True):
                    entry.result = outcome
                return
            except CommitUnknown as error:
                open_ = self._still_open(open_, error)
            except HithertoError as error:
                for entry in open_:
                    entry.result = error
                return
            except Exception as error:  # noqa: BLE001  # whose batch is it that the backend cannot take? Each for itself
                if len(open_) == 1:
                    open_[0].result = error
                    return
                for entry in open_:
                    self._commit([entry])
                return
        for entry in open_:
            entry.result = CommitUnknown(f"the commit was interrupted {_TRIES} times")

    def _settled(self, entry: Entry) -> bool:
        if kept(self._backend, entry.batch.changes):
            entry.result = DONE
        return entry.result is not None

    def _still_open(self, entries: Sequence[Entry], unknown: CommitUnknown) -> list[Entry]:
        """Of the entries of a commit whose outcome is unknown, those that have to be written again."""
        try:
            again = [entry for entry in entries if not self._settled(entry)]
        except HithertoError:
            for entry in entries:
                entry.result = entry.result or unknown
            return []
        if isinstance(unknown.__cause__, HithertoError):  # it certainly was not kept, and this is why
            for entry in again:
                entry.result = unknown.__cause__
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
