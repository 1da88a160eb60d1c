"""Closing a store, and completing purges.

**Closing** waits for pending work: answers held by recorders, writes, maintenance, purges that a reader delays, and
undelivered events. It waits only until its timeout, even if the disk hangs: all work that may touch the disk runs in a
thread that can be abandoned. Unfinished work is listed in the report and in the log.

**A purge** is complete when its last byte has left the files. If a reader delays that, `Purges` remembers the purge,
and emits `PurgeCompleted` only when maintenance, another purge, `scrub` or closing has finished it. The same applies to
a purge that was interrupted after its commit, by Ctrl+C for example.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from .._system import forks
from ..errors import CommitUnknown, HithertoError, InvalidArgument, StorageError
from ..events import PurgeCompleted, warn
from ..model import to_datetime
from ..reports import CloseReport
from .purge import Purge

if TYPE_CHECKING:
    from .._engine.engine import Engine

_LET_GO_SECONDS = 2.0  # to let go of the files, even if no time is left
_MAINTENANCE_SECONDS = 1.0  # for the last maintenance: a server may be gone, and many stores may be closing
_RESERVED_SECONDS = 1.0  # for the steps after the checkpoints
_LONGEST_SECONDS = 1e6  # the longest timeout: platforms have limits
_HEAR_SECONDS = 0.25  # for listeners, even then


def patience(timeout_seconds: float) -> float:
    """Check a timeout, and limit it to what the platform supports."""
    if not isinstance(timeout_seconds, (int, float)) or not timeout_seconds >= 0:
        raise InvalidArgument("timeout_seconds is a number from 0 up")
    return float(min(timeout_seconds, _LONGEST_SECONDS))


def close(engine: "Engine", timeout_seconds: float) -> CloseReport:
    """Finish the pending work that can be finished in this time, and close everything. Returns the report."""
    if engine.forks != forks.count():  # a child's inherited locks may never open; it owns none of the work
        _let_go(engine)
        return CloseReport()
    deadline = time.monotonic() + timeout_seconds
    held: dict[str, None] = {}
    unfinished: list[str] = []
    if not _in_time(partial(_finish, engine, held, unfinished, deadline), timeout_seconds):
        unfinished.append("writing")
    engine.opened.is_closed = True
    if engine.at_close:
        held[f"no time was left to try {len(engine.at_close)} of them"] = None
    writes = engine.committer.pending_count
    left = max(0.0, deadline - time.monotonic())
    if not _in_time(partial(_leave, engine, unfinished, left), left + _LET_GO_SECONDS):
        unfinished.append("letting go of the files")
    events = engine.listeners.close(max(_HEAR_SECONDS, deadline - time.monotonic()))
    purges = engine.purges.pending
    complete = not (writes or held or events or purges or unfinished)
    report = CloseReport(complete, writes, tuple(held), events, purges, tuple(unfinished))
    if not complete:
        warn(f"the store was closed before all was done: {report}")
    return report


def _finish(engine: "Engine", held: dict[str, None], unfinished: list[str], deadline: float) -> None:
    """Do the work that writes: recorders, checkpoints, pending commits, maintenance, scrubbing."""
    engine.committer.ignore_breaker = True  # try held messages now, however often writing has failed
    _write_last(engine, held, deadline)
    for wait in list(engine.waits_at_close.values()):
        left = max(0.0, deadline - time.monotonic())
        _attempt("checkpoints", partial(wait, max(left / 2, left - _RESERVED_SECONDS)), unfinished)
    _write_last(engine, held, deadline)
    engine.opened.is_closed = True
    if engine.committer.flush(deadline - time.monotonic()) and engine.background.stop(deadline - time.monotonic()):
        if _in_time(engine.background.do_last, min(_MAINTENANCE_SECONDS, deadline - time.monotonic())):
            # The report counts pending purges anyway.
            _attempt("scrubbing", lambda: engine.purges.retry(engine.scrub) or True, unfinished)
        else:
            unfinished.append("maintenance")
    _write_last(engine, held, deadline)  # later messages are refused, and listed in the report
    engine.committer.flush(deadline - time.monotonic())  # a thread that was about to enqueue has done so by now


def _write_last(engine: "Engine", held: dict[str, None], deadline: float) -> None:
    """Write the messages that recorders hold, including ones that arrive in the meantime. An error of one recorder does
    not stop the others."""
    while True:
        for who in list(engine.at_close):
            write = engine.at_close.pop(who, None)  # another thread may have been faster
            try:
                if write is not None:
                    write()
            except Exception as error:  # noqa: BLE001  # it is in the report
                kind = type(error).__name__
                # The message of a third-party error may contain secrets.
                held[f"{kind}: {error}" if isinstance(error, HithertoError) else kind] = None
                warn(f"the store is closed, and what was held is lost: {kind}")
        if not engine.at_close or time.monotonic() >= deadline:
            return


def _attempt(what: str, work: Callable[[], bool], unfinished: list[str]) -> None:
    """Do some work. If it fails or times out, add it to the report, and go on."""
    try:
        if not work():
            unfinished.append(what)
    except Exception as error:  # noqa: BLE001  # it is in the report
        unfinished.append(f"{what}: {type(error).__name__}")


def _leave(engine: "Engine", unfinished: list[str], seconds: float) -> None:
    """Stop maintenance and close the files. If the disk fails, acknowledged messages are in the files all the same."""
    if not engine.background.stop(seconds):
        unfinished.append("maintenance")
    _attempt("letting go of the files", partial(_let_go, engine), unfinished)


def _let_go(engine: "Engine") -> bool:
    engine.opened.is_closed = True
    with ExitStack() as all_of_it:  # each of them, even if another one fails
        all_of_it.callback(engine.telemetry.close)
        all_of_it.callback(engine.verified_rows.clear)
        all_of_it.callback(engine.workspace.close)
        all_of_it.callback(engine.backend.close)
        engine.search.close()
    return True


def _in_time(work: Callable[[], None], seconds: float) -> bool:
    """Run `work` in a thread, and wait for up to `seconds`. Returns False if it is not done then. Its exception is
    raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # it is raised in the waiting thread
            raised.append(error)

    thread = threading.Thread(target=run, name="hitherto closing", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads, or the interpreter is exiting: run it here
        work()
        return True
    thread.join(max(0.0, seconds))
    if raised:
        raise raised[0]
    return not thread.is_alive()


class Purges:
    """The purges of one store whose bytes are still in the files."""

    def __init__(self, engine: "Engine") -> None:
        self._clock, self._listeners, self._background = engine.clock, engine.listeners, engine.background
        self._lock = threading.Lock()
        self._all: list[Purge] = []

    @property
    def pending(self) -> int:
        return len(self._all)

    @contextmanager
    def under_way(self, purge: Purge) -> Iterator[None]:
        """Complete the purge later if the block is interrupted after a commit, or if the commit's outcome is
        unknown."""
        try:
            yield
        except BaseException as error:
            if purge.count or not isinstance(error, HithertoError) or isinstance(error, CommitUnknown):
                self.later(purge)
            raise

    def finish(self, purge: Purge, scrub: Callable[[], bool]) -> bool:
        """Remove the purged bytes from the files with `scrub`, now or later. Returns True if they are gone."""
        if not purge.count:
            return True
        self._await(purge)
        try:
            if self._try(scrub):
                return True
        except StorageError as error:  # the rows are gone; the bytes go when the disk allows it
            warn(f"what was purged is in the files until maintenance succeeds: {type(error).__name__}")
        self.later(purge)
        return False

    def later(self, purge: Purge) -> None:
        """Leave it to maintenance or closing to remove the purged bytes from the files."""
        self._await(purge)
        self._background.ask()

    def _await(self, purge: Purge) -> None:
        with self._lock:
            if not purge.completed and purge not in self._all:
                self._all.append(purge)

    def retry(self, scrub: Callable[[], bool]) -> bool:
        """Scrub again for delayed purges. Returns True if none is left."""
        return not self._all or self._try(scrub)

    def _try(self, scrub: Callable[[], bool]) -> bool:
        """Scrub, and complete the purges that were pending before the scrub began. Returns False if it failed."""
        with self._lock:
            before = list(self._all)
        if not scrub():
            return False
        with self._lock:
            done = [purge for purge in self._all if purge in before]
            self._all = [purge for purge in self._all if purge not in done]
            for purge in done:
                purge.completed = True
        for purge in done:
            if purge.count:
                self._tell(purge)
        return True

    def _tell(self, purge: Purge) -> None:
        now = self._clock()
        seconds = max(0.0, (now - purge.began) / 1_000_000)
        done = purge.count, purge.failures, seconds, purge.actor
        self._listeners.emit(PurgeCompleted(to_datetime(now), purge.reason, *done))
