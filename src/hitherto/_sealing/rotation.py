"""Rotation: a new key for the workspace, or for everything in it, while readers and writers continue.

A job begins with one commit to the workspace's row, which sets the new rules. From then on all processes create
conversations by the new rules, because every creation requires the row as it was read. The old wrapping key stays in
that row, sealed, as long as a conversation needs it; so the new key alone opens the store, and the old one does not any
more. Then the job updates one conversation after the other, and finally removes the old key from the row.

**Rewrapping** wraps the data key of each conversation with the new key: one small write each. **Re-encrypting** gives
it a second data key. From that commit on all writes are sealed with the new one. Then messages, packs, items and
attachments follow in small steps, and a last commit drops the old key. Names (of keys, labels, projects) are made with
keys, too, and are replaced. **Sealing** a plain store and **unsealing** one work the same, with "none" for one of the
two keys.

Each step is a commit that leaves everything readable, and the rows alone show the remaining work. So a job that was
killed anywhere is finished by `maintain`, or by the same call again.

**No key is dropped that is still needed.** The commit that drops the old key of the workspace requires that every
conversation is sealed by the new rules, and the backend checks that in the same transaction (`Batch.every_key`). The
commit that drops the old data key of one conversation has read all of its rows (`reencryption`). Conversations that
cannot be updated are listed in `failures`, and the job stays pending.

**One process at a time works on it**, by a lease (`_engine.lease`). Other processes wait for a while, and continue the
job if that process is gone. The lease only saves work: the requirements of each commit protect the data even with two
owners.

Loading this module loads `cryptography`, so only sealed stores load it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.bodies import encode, meta_place
from .._engine.committer import PendingCommit
from .._engine.retry import retry
from .._engine.signals import KeyChanged, RowChanged
from .._engine.typed_items import item_place
from .._engine.workspace import KeyState
from ..accountability import current
from ..backend import WORKSPACE, Batch, Change, ConversationRow, Done, ItemRow, KeyShape, Stale, Where
from ..errors import Busy, Damaged, Hint, HithertoError, InvalidArgument, NotFound
from ..events import KeyRotated, warn
from ..ids import show_conversation_id
from ..listing import conversations
from ..model import to_datetime
from ..reports import RotationProgress, RotationReport
from .codec import Envelope, Plain, next_row
from .reencryption import Begin, Steps, codec_of
from .sealed import NO_KEY, Sealed, Slot, read_box, write_box

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from ..keys import Key

_AT_ONCE = 256  # conversations rewrapped in one commit
_TELL_SECONDS = 0.25  # between two calls of `progress`
_PATIENCE_SECONDS = 30.0  # how long a call waits for another process that rotates
_LOOK_SECONDS = 0.05  # between two checks whether that process is done, or gone
_BUSY = "the workspace changes all the time"
_PASSES = 8  # passes over all conversations that find no work and yet cannot finish
_EVER = float("inf")


class Elsewhere(Busy):
    """Another process rotates the keys of this workspace now."""

    hint = "wait until it is done, and call again; if that process is gone, the next call goes on with its work"


class _Overtaken(Exception):
    """Another process has taken the lease, because we did not renew it in time."""


# -- beginning

_Begin = Callable[[KeyState, ConversationRow], bool]  # False: nothing to do


def rotate(
    engine: "Engine", key: "Key", *, reencrypt: bool, progress: Callable[[RotationProgress], None] | None
) -> RotationReport:
    """Give a sealed workspace another key."""

    def begin(state: KeyState, row: ConversationRow) -> bool:
        old = state.codec
        if old is None:
            hint = Hint("store-is-plain", "store.seal(key) seals it")
            raise InvalidArgument("the store is not sealed", hint=hint)
        codec = engine.workspace.new_codec(key, like=old)
        same = codec.key_id == old.key_id
        if same and not reencrypt:
            return False
        retired = {**state.now()[1].retired, old.key_id: old.wrapping_key()}
        retired.pop(codec.key_id, None)
        codec.retire(retired)
        slots = codec.rewrap(row.id, old.slots)
        if reencrypt:
            generation = slots[0].generation + 1
            slots = (codec.new_slot(row.id, generation, generation), *slots)
        _set(engine, state, codec, slots, retired)
        return True

    return _job(engine, begin, progress)


def seal(engine: "Engine", key: "Key", *, progress: Callable[[RotationProgress], None] | None) -> RotationReport:
    """Seal a plain workspace."""

    def begin(state: KeyState, row: ConversationRow) -> bool:
        old = state.codec
        if old is not None:
            if bytes.fromhex(key.id) == old.key_id:
                return False
            hint = Hint("store-is-sealed", "store.rotate(key) gives it another key")
            raise InvalidArgument("the store is sealed already", hint=hint)
        codec = engine.workspace.new_codec(key)
        first = codec.new_slot(row.id, row.generation + 1, row.generation + 1)
        _set(engine, state, codec, (first, Slot(NO_KEY, row.generation, row.generation)), {})
        return True

    return _job(engine, begin, progress)


def unseal(engine: "Engine", *, progress: Callable[[RotationProgress], None] | None) -> RotationReport:
    """Make a sealed workspace plain."""

    def begin(state: KeyState, row: ConversationRow) -> bool:  # noqa: ARG001  # as the others
        old = state.codec
        if old is None:
            return False
        slots = (Slot(NO_KEY, old.epoch + 1, old.epoch + 1), *old.slots)
        _set(engine, state, old, slots, state.now()[1].retired)
        return True

    return _job(engine, begin, progress)


def _job(engine: "Engine", begin: _Begin, progress: Callable[[RotationProgress], None] | None) -> RotationReport:
    """Begin a job, and do it. One that others left half done is finished first, as far as it can be."""
    space, give_up = engine.workspace, time.monotonic() + _PATIENCE_SECONDS

    def attempt() -> RotationReport:
        space.refresh()
        resumed = go_on(engine, progress, give_up=give_up) if pending(engine) else RotationReport(0, True)
        while not engine.rotation_lease.is_free(space.meta):
            _wait(engine, progress, give_up)
        state = KeyState(space)
        try:
            if not begin(state, state.now()[0]):
                return resumed
        except KeyChanged:
            raise RowChanged from None
        return go_on(engine, progress, give_up=give_up)

    return retry(attempt, _BUSY)


def _set(
    engine: "Engine",
    state: KeyState,
    codec: Sealed | None,
    slots: Sequence[Slot],
    retired: dict[bytes, bytes],
    every_key: KeyShape | None = None,
) -> ConversationRow | None:
    """Commit other keys of the workspace, in the place of those in `state`; with a codec, or as a plain one.
    `KeyChanged` if another process was faster. To begin a job takes the lease, to end it (`every_key`) gives it back.

    With `every_key`, nothing is committed unless the keys of all conversations look so: otherwise one of those that do
    not is the answer."""
    space, lease = engine.workspace, engine.rotation_lease

    def attempt() -> ConversationRow | None:
        row, meta, old = state.now()
        if every_key is None and not lease.is_free(meta):
            raise KeyChanged
        name = "" if codec is None else engine.backend.info.workspace_name
        meta = replace(meta, retired=retired, name=name)
        meta = lease.with_lease(replace(meta, rotated_by=current())) if every_key is None else lease.without_lease(meta)
        envelope: Envelope = Plain() if codec is None else codec.draft(row.id, slots)
        put, lost = _notes_anew(engine, row.id, old, envelope)
        after = next_row(
            Plain(),
            row,
            data_key=b"" if codec is None else write_box(slots),
            generation=slots[0].generation,
            meta=envelope.close(meta_place(row.id), encode(meta)),
        )
        after = replace(after, proof=envelope.prove(after, 0))
        key = None if codec is None else codec.key
        space.expect(*((key,) if slots[0].kind else (key, None)))
        change = Change(after.id, row.token, after, put=put, unput=lost)
        outcome = engine.committer.write(Batch((change,), every_key=every_key))
        if isinstance(outcome, Done):
            space.become(Plain() if codec is None else codec, after)
            lease.note_taken(meta)
            return None
        if isinstance(outcome, Stale) and outcome.conversation != row.id:
            return outcome.row
        state.confirm()
        raise RowChanged

    return retry(attempt, _BUSY)


def _notes_anew(
    engine: "Engine", id: bytes, old: Envelope, new: Envelope
) -> tuple[tuple[ItemRow, ...], tuple[bytes, ...]]:
    """Return the items of the workspace's row under the new key, and the keys of items that cannot be read. These are
    dropped: damaged items must not prevent a change of keys."""
    put, lost = [], []
    for item in engine.backend.items(id):
        place = item_place(id, item.key)
        try:
            put.append(replace(item, body=new.close(place, old.open(place, item.body))))
        except Damaged:
            warn("a note of the workspace cannot be read, and is dropped")
            lost.append(item.key)
    return tuple(put), tuple(lost)


# -- going on


def pending(engine: "Engine") -> bool:
    """Is there a job that was begun and not finished?"""
    codec = engine.workspace.sealed_codec
    return codec is not None and (len(codec.slots) > 1 or bool(engine.workspace.meta.retired))


def go_on(
    engine: "Engine",
    progress: Callable[[RotationProgress], None] | None = None,
    *,
    deadline: float = _EVER,
    give_up: float = 0.0,
) -> RotationReport:
    """Bring all conversations up to date, then forget the old key. While another process is at it, wait for that one
    until `give_up`; then it is `Elsewhere`."""
    engine.is_rotation_stuck = False
    changed = in_vain = 0
    lease = engine.rotation_lease
    try:
        while pending(engine):
            if not lease.take():
                _wait(engine, progress, give_up)
                continue
            try:
                job = _Job(engine, progress, deadline)
                job.run()
                changed += job.changed
                if job.failures or job.late:
                    lease.release()
                    return RotationReport(changed, False, tuple(job.failures.items()))
                left = job.finish()
            except KeyChanged:  # others have begun another job, or finished this one
                engine.workspace.refresh()
                continue
            except _Overtaken:
                continue
            in_vain += left is not None and not job.found
            if left is not None and in_vain >= _PASSES:
                lease.release()
                what = "it does not have the key that it should have, and nothing can be done about it"
                return RotationReport(changed, False, ((show_conversation_id(left.id), what),))
    except BaseException:
        with suppress(HithertoError):  # nobody can be told then, and the lease runs out by itself
            lease.release()
        raise
    engine.search.restart()
    scrubbed = engine.backend.scrub()
    actor = engine.workspace.meta.rotated_by
    engine.listeners.emit(KeyRotated(to_datetime(engine.clock()), engine.key_id, changed, actor))
    return RotationReport(changed, True, (), not scrubbed, actor)


def _wait(engine: "Engine", progress: Callable[[RotationProgress], None] | None, give_up: float) -> None:
    """Another process is at it: wait a moment, look at the workspace again, and tell how far that process is."""
    if time.monotonic() >= give_up:
        raise Elsewhere("another process rotates the keys of this workspace")
    time.sleep(_LOOK_SECONDS)
    engine.workspace.refresh()
    if progress is not None and pending(engine):
        with suppress(KeyChanged):  # it is done by now
            progress(_how_far(engine))


def _how_far(engine: "Engine") -> RotationProgress:
    """How many conversations are up to date, by their keys alone."""
    shape = codec_of(KeyState(engine.workspace)).shape
    rows = [row for rows in _pages(engine, _kinds(engine)) for row in rows]
    return RotationProgress(sum(shape.fits(row.data_key) for row in rows), len(rows))


def _kinds(engine: "Engine") -> list[str]:
    return [kind for kind in engine.backend.kinds() if kind != WORKSPACE]


def _pages(engine: "Engine", kinds: Sequence[str]) -> Iterator[list[ConversationRow]]:
    for kind in kinds:
        page: list[ConversationRow] = []
        for row in conversations(engine.backend, Where(kind), oldest_first=True):
            page.append(row)
            if len(page) == _AT_ONCE:
                yield page
                page = []
        yield page


class _Job:
    """One pass over all conversations, and the end of the job."""

    def __init__(self, engine: "Engine", progress: Callable[[RotationProgress], None] | None, deadline: float) -> None:
        self._engine, self._progress, self._deadline = engine, progress, deadline
        self._state = KeyState(engine.workspace)
        self._codec = codec_of(self._state)
        if not self._codec.slots[0].kind:
            engine.workspace.expect(self._codec.key, None)  # others may finish it before we do
        self._kinds = _kinds(engine)
        self.found = 0  # conversations that were not up to date
        self.changed = 0  # those that we have brought up to date
        self.late = False
        self.failures: dict[str, str] = {}

    def run(self) -> None:
        total = 0
        if self._progress is not None:
            total = sum(self._engine.backend.count(Where(kind)) for kind in self._kinds)
        done, told = 0, time.monotonic()
        for rows in _pages(self._engine, self._kinds):
            self._rewrap([row for row in rows if self._attempt(row, self._needs_rewrapping)])
            for row in rows:
                if not self._goes_on():
                    return
                if self._attempt(row, self._needs_reencrypting):
                    self._attempt(row, self._reencrypt)
                done += 1
                if self._progress is not None and time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    self._progress(RotationProgress(done, max(done, total)))
        if self._progress is not None:
            self._progress(RotationProgress(done, done))

    def finish(self) -> ConversationRow | None:
        """Forget the old keys, if every conversation is up to date: otherwise one that is not is the answer, and
        nothing has happened. `KeyChanged` if somebody has begun another job since."""
        engine, codec = self._engine, self._codec
        engine.backend.collect(engine.clock() + 1)  # what nobody refers to is under the old key, or in clear
        engine.search.restart()  # so are words in an index of a store that was plain
        after = codec if codec.slots[0].kind else None
        return _set(engine, self._state, after, codec.slots[:1], {}, codec.shape)

    def _goes_on(self) -> bool:
        """Is there time, and is it still ours to do?"""
        if time.monotonic() > self._deadline:
            self.late = True
            return False
        if not self._engine.rotation_lease.take():
            raise _Overtaken
        return True

    def _attempt(self, row: ConversationRow, what: Callable[[ConversationRow], bool]) -> bool:
        """Damage in one conversation does not keep the others from being brought up to date."""
        try:
            return what(row)
        except (Damaged, Busy, NotFound) as error:
            if not self._engine.backend.lookup(ids=[row.id]):
                return False  # it was purged meanwhile
            self.failures[show_conversation_id(row.id)] = str(error)
            return False

    # -- rewrapping

    def _needs_rewrapping(self, row: ConversationRow) -> bool:
        return self._codec.need(row) == "rewrap"

    def _needs_reencrypting(self, row: ConversationRow) -> bool:
        return self._codec.need(row) == "reencrypt"

    def _rewrap(self, rows: Sequence[ConversationRow]) -> None:
        """Rewrap the keys of these conversations. The next pass repeats the ones that changed in the meantime."""
        engine, entries = self._engine, list[tuple[PendingCommit, Change]]()
        self.found += len(rows)
        try:
            for row in rows:
                change = None if show_conversation_id(row.id) in self.failures else self._rewrapping(row)
                if change is not None:
                    entries.append((engine.committer.enqueue(Batch((change,), self._state.require)), change))
            outcomes = [(engine.committer.wait(entry), change) for entry, change in entries]
        except BaseException:  # Ctrl+C, for example: withdraw the commits that wait
            for entry, _ in entries:
                engine.committer.withdraw(entry)
            raise
        for outcome, change in outcomes:
            if isinstance(outcome, Done):
                self.changed += 1
                engine.adopt_row(change.conversation, change.row)
        if not all(isinstance(outcome, Done) for outcome, _ in outcomes):
            self._state.confirm()

    def _rewrapping(self, row: ConversationRow) -> Change | None:
        try:
            envelope = self._codec.envelope(row)
            box = write_box(self._codec.rewrap(row.id, read_box(row.data_key)))
            return Change(row.id, row.token, next_row(envelope, row, data_key=box))
        except Damaged as error:
            self.failures[show_conversation_id(row.id)] = str(error)
            return None

    # -- re-encrypting

    def _reencrypt(self, row: ConversationRow) -> bool:
        row = self._engine.read_row(row.id)
        if not self._needs_reencrypting(row):
            return False
        self.found += 1
        Begin(self._engine, self._state, row.id).run()
        if not Steps(self._engine, self._state, row.id, self._goes_on).run():
            return False
        self.changed += 1
        return True
