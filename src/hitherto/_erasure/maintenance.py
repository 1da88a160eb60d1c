"""Maintenance: keeps a store small and fast, outside the append path.

It packs full runs and the runs of conversations that have been inactive for a while, brings the text index up to date,
removes staged attachments that no message adopted within a day, and lets the backend release free space. The work is
done in small steps. Each step is a commit of its own, so it may be interrupted anywhere, by a crash too; the next
maintenance, in any process, finds the rest from the rows.

Maintenance runs in a thread after many writes: as soon as writing pauses, or at the latest after `_BACKLOG` writes. A
delete whose words cannot leave the index at once requests it. Closing a store that has written does a little of it, and
`store.maintain()` does all of it. The same thread sweeps when `schedule` says that a sweep is due.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.bodies import open_meta
from .._engine.filters import description_tags
from .._engine.packing import pack
from .._sealing.codec import next_row
from .._system import forks
from ..backend import CHAT, Batch, Change, ConversationRow, Done, UnpackedRun, Where
from ..errors import Closed, Damaged, NotFound, StorageFull
from ..events import warn
from ..reports import Maintenance
from .purging import purge_quarantine

if TYPE_CHECKING:
    from .._engine.engine import Engine

_WRITES = 512  # writes after which the thread checks for work
_BACKLOG = 8192  # writes after which it works even while writing goes on
_PAUSE_SECONDS = 0.25  # without a write: a pause
_SLICE_SECONDS = 0.05  # of work between two moments when the process may fork
_LOOK_SECONDS = 5.0  # how often the thread checks whether its store still exists
_AT_CLOSE_SECONDS = 0.25
_SWEEP_SECONDS = 0.1  # at least, for a sweep: short-lived programs would never finish one otherwise
_QUIET = 600 * 1_000_000  # microseconds after which a conversation's last run is packed although it is not full
_ABANDONED = 24 * 3600 * 1_000_000  # microseconds after which staged chunks that no message adopted are removed
_RUNS = 16  # packed in one commit
_EVER = 1e9  # seconds
_SCRUB_PATIENCE_SECONDS, _SCRUB_PAUSE_SECONDS = 1.0, 0.01  # for readers that are done in a moment
_DESCRIBED = 200  # conversations whose metadata is tagged in one commit
_LISTED = 256  # runs looked at at a time

_Progress = Callable[[str, int], None]  # the name of the work, and how much is done


def maintain(
    engine: "Engine", seconds: float | None = None, *, quiet_only: bool = False, progress: _Progress | None = None
) -> Maintenance:
    """Do the maintenance that is due, for about `seconds`. `quiet_only` does not pack the last runs of active
    conversations, because they would have to be packed again."""
    tell = progress or (lambda _, __: None)
    deadline = time.monotonic() + (_EVER if seconds is None else min(seconds, _EVER))
    before = engine.clock() - _QUIET if quiet_only else None
    engine.quota.look_at_disk()
    rotated = _rotate_on(engine, deadline)
    _purge_old_quarantine(engine)
    _replay_on(engine)
    try:
        packed, all_packed = _pack_all(engine, deadline, before, tell)
    except StorageFull:  # packing needs space before it frees some; the steps below free some
        packed, all_packed = 0, False
    described, all_described = _tag_metadata(engine, deadline)
    indexed, all_indexed = 0, True
    if not engine.search.is_tight:
        indexed, all_indexed = engine.search.keep_up(
            max(0.0, deadline - time.monotonic()), progress=partial(tell, "indexing")
        )
    collected = engine.backend.collect(engine.clock() - _ABANDONED)
    tidy = engine.backend.maintain(max(0.0, deadline - time.monotonic())) and engine.purges.retry(engine.scrub)
    complete = rotated and all_packed and all_described and all_indexed and tidy
    return Maintenance(packed, indexed, collected, complete, described)


def _rotate_on(engine: "Engine", deadline: float) -> bool:
    """Continue an interrupted key rotation. Returns True if no work is left that can be done."""
    if engine.workspace.sealed_codec is None or engine.rotation_lock.locked():
        return True
    from .._sealing.rotation import Elsewhere, go_on, pending  # noqa: PLC0415  # only sealed stores need it

    if not pending(engine) or engine.is_rotation_stuck:
        return True
    if not engine.rotation_lock.acquire(blocking=False):  # another thread rotates; forks wait while this one waits
        return True
    try:
        did = go_on(engine, deadline=deadline)
    except Elsewhere:  # another process has the lease; try again the next time
        return False
    finally:
        engine.rotation_lock.release()
    if did.failures:
        engine.is_rotation_stuck = True  # until the store is opened again, or `rotate` is called
        warn(f"{len(did.failures)} conversations cannot be brought under the new key; verify() tells more")
    return did.complete or bool(did.failures)


def _replay_on(engine: "Engine") -> None:
    """Finish a replay of the erasure ledger whose process was killed."""
    if engine.workspace.meta.replaying:
        from .replaying import go_on  # noqa: PLC0415  # rare

        for failure in go_on(engine).failures:
            warn(f"what was erased is back, and cannot be purged: conversation {failure.id}: {failure.error}")


def _purge_old_quarantine(engine: "Engine") -> None:
    seconds = engine.quarantine_seconds
    if seconds is not None and engine.quarantine.older_than(engine.clock() - int(seconds * 1_000_000)):
        purge_quarantine(engine, seconds)


def _pack_all(
    engine: "Engine", deadline: float, before: int | None, tell: _Progress = lambda _, __: None
) -> tuple[int, bool]:
    """Pack every full run, then the other runs of conversations not active since `before`. Returns the number of packed
    runs, and whether all were packed."""
    packed = 0
    for full in (True, False):
        after = -1
        while runs := engine.backend.loose(full=full, after=after, limit=_LISTED):
            after = runs[-1].first
            runs = [run for run in runs if run.first not in engine.settled_runs]
            if not full and before is not None:
                quiet = {row.id for row in engine.backend.lookup(ids=_owners(runs)) if row.active_at < before}
                runs = [run for run in runs if run.conversation in quiet]
            for conversation, some in groupby(sorted(runs, key=lambda run: run.conversation), lambda r: r.conversation):
                firsts = [run.first for run in some]
                _renew(engine, conversation)
                for start in range(0, len(firsts), _RUNS):
                    if time.monotonic() > deadline:
                        return packed, False
                    packed += pack(engine, conversation, firsts[start : start + _RUNS])
                    tell("packing", packed)
    return packed, True


def _tag_metadata(engine: "Engine", deadline: float) -> tuple[int, bool]:
    """Go on with the tags that find conversations by their metadata, in a store that is older than these; how many
    conversations were looked at, and whether that was all. A store is marked when all have them."""
    if engine.workspace.meta.has_metadata_tags:
        return 0, True
    looked = 0
    while places := engine.backend.page(Where(CHAT), engine.described_to, _DESCRIBED, oldest_first=True):
        _tag_some(engine, engine.backend.lookup(ids=[place.id for place in places]))
        engine.described_to = places[-1]
        looked += len(places)
        if len(places) < _DESCRIBED:
            break
        if time.monotonic() > deadline:
            return looked, False
    engine.workspace.describe(lambda meta: replace(meta, has_metadata_tags=True))
    return looked, True


def _tag_some(engine: "Engine", rows: Sequence[ConversationRow]) -> None:
    """Tag these conversations by their metadata: all in one commit or, if others change one of them meanwhile, one by
    one."""
    require, changes = engine.workspace.require, []
    for row in rows:
        with suppress(Damaged):  # nobody can read what it would be found by
            change = _tagging(engine, row)
            if change is not None:
                changes.append(change)
    if not changes or isinstance(engine.committer.write(Batch(tuple(changes), require)), Done):
        return
    engine.workspace.refresh()
    for change in changes:
        with suppress(NotFound, Damaged):  # purged meanwhile, or as above
            engine.change(change.conversation, lambda row: _tagging(engine, row), tell=None)


def _tagging(engine: "Engine", row: ConversationRow) -> Change | None:
    envelope = engine.codec.envelope(row)
    meta = open_meta(envelope, row)
    if not meta.metadata:
        return None
    return Change(
        row.id, row.token, next_row(envelope, row, version=row.version), tag=description_tags(engine.codec, meta)
    )


def _renew(engine: "Engine", conversation: bytes) -> None:
    """Give a conversation another data key if it has sealed very much with this one."""
    sealed = engine.workspace.sealed_codec
    for row in engine.backend.lookup(ids=[conversation]) if sealed is not None else ():
        if sealed is not None and sealed.worn(row):
            from .._sealing.reencryption import renew  # noqa: PLC0415  # after hundreds of millions of messages

            renew(engine, row.id)


def _owners(runs: list[UnpackedRun]) -> list[bytes]:
    return list({run.conversation: None for run in runs})


class MaintenanceThread:
    """The thread that runs maintenance and sweeps, and its triggers. It does not keep the store alive."""

    def __init__(self, engine: "Engine", *, stopped: bool = False) -> None:
        self._engine = weakref.ref(engine)
        self._never = stopped
        self.writes = 0
        self._done = 0  # the number of writes at the last maintenance
        self._asked = False
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._stopped = stopped
        self._thread: threading.Thread | None = None

    def wrote(self) -> None:
        """Count a commit. Called after every commit, so it does almost nothing."""
        self.writes += 1
        if self.writes % _WRITES == 0:
            self._begin()

    def ask(self) -> None:
        """Request maintenance soon, however little was written."""
        self._asked = True
        self._begin()

    def watch(self) -> None:
        """Start the thread if conversations may be due by retention, now or later."""
        if not self._stopped and self._sweeps():
            self._begin()

    def rules_changed(self) -> None:
        """Look soon for what is due: what sweeps go by has changed in the workspace."""
        engine = self._engine()
        if engine is not None:
            engine.schedule.check_soon()

    def _sweeps(self) -> bool:
        engine = self._engine()
        return engine is not None and engine.schedule.is_wanted

    def _begin(self) -> None:
        with self._starting:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="hitherto maintenance", daemon=True)
                with suppress(RuntimeError):  # no more threads, or the interpreter is exiting: try later
                    thread.start()
                    self._thread = thread
        self._wake.set()

    def _run(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stopped and self._engine() is not None:
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()
            self._sweep()
            while not self._stopped and (self._asked or self.writes - self._done >= _WRITES):
                seen = self.writes
                if seen - self._done < _BACKLOG and not self._asked:
                    time.sleep(_PAUSE_SECONDS)
                    if self.writes != seen:
                        continue
                did = self._attempt(_SLICE_SECONDS)
                if did is None or did.complete:
                    self._done, self._asked, pause = max(seen, self._done), False, _PAUSE_SECONDS
                elif did.packed or did.indexed or did.collected or did.described:
                    pause = _PAUSE_SECONDS
                else:  # blocked, by a reader for example: back off
                    self._wake.wait(pause)
                    self._wake.clear()
                    pause = min(2 * pause, _LOOK_SECONDS)

    def _attempt(self, seconds: float) -> Maintenance | None:
        """Do some maintenance and return its result, or None if it failed. Errors become warnings, because they must
        not disturb the threads that write."""
        engine = self._engine()
        if engine is None or engine.read_only:
            return None
        try:
            with forks.still:
                return maintain(engine, seconds, quiet_only=True)
        except Exception as error:  # noqa: BLE001  # the warning names it
            self._warn("maintenance", error)
            return None

    def _sweep(self) -> None:
        """Sweep if a sweep is due. Errors become warnings here too."""
        engine = self._engine()
        if engine is None or engine.read_only or not engine.schedule.is_due():
            return
        least = time.monotonic() + _SWEEP_SECONDS
        try:
            engine.schedule.sweep(lambda: not (self._stopped or engine.is_closed) or time.monotonic() < least)
        except Exception as error:  # noqa: BLE001  # as above
            self._warn("a sweep", error)

    def _warn(self, work: str, error: Exception) -> None:
        """Warn that this work was interrupted, unless closing did it: the report of `close` names what it left."""
        if not (self._stopped and isinstance(error, Closed)):
            warn(f"{work} was interrupted and will be tried again: {error}")

    def stop(self, timeout_seconds: float) -> bool:
        """End the thread. Returns False if it still runs after the timeout."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(0.0, timeout_seconds))
        return self._thread is None or not self._thread.is_alive()

    def do_last(self) -> None:
        """Do a little maintenance after the thread has ended, so that short-lived programs do some, too."""
        if not self._never and self._sweeps():
            self._sweep()
        if not self._never and (self.writes != self._done or self._asked):
            self._attempt(_AT_CLOSE_SECONDS)


def scrub_patiently(engine: "Engine") -> bool:
    """Take deleted bytes out of the files now. Return False if a reader delays it for more than about a second, or if
    the disk has no room for it."""
    if not engine.backend.is_scrubbed():
        engine.backend.maintain(_EVER)
    deadline = time.monotonic() + _SCRUB_PATIENCE_SECONDS
    while not (engine.purges.retry(engine.scrub) if engine.purges.pending else engine.scrub()):
        if time.monotonic() > deadline:
            return False
        time.sleep(_SCRUB_PAUSE_SECONDS)
    return True
