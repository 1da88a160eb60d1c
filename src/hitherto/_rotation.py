"""Rotation: another key, for the workspace or for everything in it, while readers and writers go on.

A job begins with one commit to the workspace's own row, which says what shall be: from then on everything new is made
by the new rules, in every process, because whoever makes something requires that row to stand as it was read. The old
wrapping key stays in that row, sealed, as long as anything needs it; so the new key alone opens the store, and the old
one does not any more. Then one conversation after the other is brought up to date, and at last the row forgets the old
key.

**Rewrapping** wraps the data key of each conversation anew: one small write each. **Re-encrypting** gives it a second
data key. From that commit on everything is sealed with the new one; then messages, packs, items and attachments follow
in small steps, and a last commit drops the old key. Names (of keys, labels, projects) are made with keys, too, and are
made anew. **Sealing** a plain store and **unsealing** one are the same, with "none" for one of the two keys.

Each step is a commit of its own that leaves everything readable, and what is left to do is seen from the rows alone. So
a job that was killed anywhere is finished by whoever comes next: `maintain`, or the same call again.

Loading this module loads `cryptography`: it is for who seals.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ._content import encode, item_place, meta_place
from ._packs import Moved
from ._pen import Entry
from ._reencryption import Begin, Steps
from .backend import WORKSPACE, Batch, Change, ConversationRow, Done, ItemRow, Stale, Where
from .errors import Busy, Damaged, InvalidArgument, NotFound
from .events import KeyRotated, warn
from .ids import show_conversation_id
from .listing import conversations
from .model import to_datetime
from .sealed import NO_KEY, Sealed, Slot, read_box, write_box
from .vault import Envelope, Plain, next_row

if TYPE_CHECKING:
    from .keys import Key
    from .store import Store

_TRIES = 1000
_AT_ONCE = 256  # conversations rewrapped in one commit
_TELL_SECONDS = 0.25  # how often progress is told
_EVER = float("inf")


class Progress(Struct, frozen=True):
    """How far it is."""

    done: int
    total: int  # conversations

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} conversations"


class Rotation(Struct, frozen=True):
    """What a rotation did."""

    conversations: int  # that were brought up to date
    complete: bool  # nothing needs the old key any more
    failures: tuple[tuple[str, str], ...] = ()  # id and error: these still need it
    scrub_pending: bool = False  # a reader delays the removal of the old bytes from the files; `scrub` finishes it


# -- beginning


def rotate(store: "Store", key: "Key", *, reencrypt: bool, progress: Callable[[Progress], None] | None) -> Rotation:
    """Give a sealed workspace another key."""

    def begin(row: ConversationRow, old: Sealed | None) -> bool:
        if old is None:
            raise InvalidArgument("the store is not sealed", hint="store.seal(key) seals it")
        codec = store._workspace.new_codec(key, like=old)
        same = codec.key_id == old.key_id
        if same and not reencrypt:
            return False
        retired = {**store._workspace.meta.retired, old.key_id: old.wrapping_key()}
        retired.pop(codec.key_id, None)
        codec.retire(retired)
        slots = codec.rewrapped(row.id, old.slots)
        if reencrypt:
            generation = slots[0].generation + 1
            slots = (codec.new_slot(row.id, generation, generation), *slots)
        _set(store, row, codec, slots, retired)
        return True

    return _job(store, begin, progress)


def seal(store: "Store", key: "Key", *, progress: Callable[[Progress], None] | None) -> Rotation:
    """Seal a plain workspace."""

    def begin(row: ConversationRow, old: Sealed | None) -> bool:
        if old is not None:
            if bytes.fromhex(key.id) == old.key_id:
                return False
            raise InvalidArgument("the store is sealed already", hint="store.rotate(key) gives it another key")
        codec = store._workspace.new_codec(key)
        first = codec.new_slot(row.id, row.generation + 1, row.generation + 1)
        _set(store, row, codec, (first, Slot(NO_KEY, row.generation, row.generation)), {})
        return True

    return _job(store, begin, progress)


def unseal(store: "Store", *, progress: Callable[[Progress], None] | None) -> Rotation:
    """Make a sealed workspace plain."""

    def begin(row: ConversationRow, old: Sealed | None) -> bool:
        if old is None:
            return False
        slots = (Slot(NO_KEY, old.epoch + 1, old.epoch + 1), *old.slots)
        _set(store, row, old, slots, store._workspace.meta.retired)
        return True

    return _job(store, begin, progress)


def _job(
    store: "Store",
    begin: Callable[[ConversationRow, Sealed | None], bool],
    progress: Callable[[Progress], None] | None,
) -> Rotation:
    """Begin a job, and do it. One that others left half done is finished first, as far as it can be."""
    for _ in range(_TRIES):
        store._workspace.refresh()
        resumed = go_on(store, progress) if pending(store) else Rotation(0, True)
        row = store._workspace.row  # before anything else that we go by: see `_set`
        try:
            return go_on(store, progress) if begin(row, store._workspace.sealed) else resumed
        except Moved:
            continue
    raise Busy("the workspace changes all the time")


def _set(
    store: "Store", row: ConversationRow, codec: Sealed, slots: Sequence[Slot], retired: dict[bytes, bytes]
) -> None:
    """Commit a state of the workspace. `Moved` if somebody was faster than we were since the workspace was `row`.
    That row has to be older than all that this state was made from: other threads look at the workspace as well, and
    what they find counts at once; what we know of it may be newer at the end than at the beginning."""
    space = store._workspace
    box = write_box(slots)
    envelope = codec.draft(row.id, slots)
    name = store.backend.info.workspace_name
    meta = envelope.close(meta_place(row.id), encode(replace(space.meta, retired=retired, name=name)))
    put, lost = _notes_anew(store, envelope)
    after = replace(next_row(Plain(), row, data_key=box, generation=slots[0].generation, meta=meta), proof=b"")
    after = replace(after, proof=envelope.prove(after, 0))
    space.expect(codec.key)
    change = Change(after.id, row.token, after, put=put, unput=lost)
    if not isinstance(store._pen.write(Batch((change,))), Done):
        raise Moved
    space.become(codec, after)


def _notes_anew(store: "Store", new: Envelope) -> tuple[tuple[ItemRow, ...], tuple[bytes, ...]]:
    """What lies at the workspace's row, under the new key; and the keys of what does not open: no damage there may keep
    anybody from changing a key."""
    space, put, lost = store._workspace, [], []
    for item in store.backend.items(space.row.id):
        place = item_place(space.row.id, item.key)
        try:
            put.append(replace(item, body=new.close(place, space.envelope.open(place, item.body))))
        except Damaged:
            warn("a note of the workspace cannot be read, and is dropped")
            lost.append(item.key)
    return tuple(put), tuple(lost)


# -- going on


def pending(store: "Store") -> bool:
    """Is there a job that was begun and not finished?"""
    codec = store._workspace.sealed
    return codec is not None and (len(codec.slots) > 1 or bool(store._workspace.meta.retired))


def go_on(store: "Store", progress: Callable[[Progress], None] | None = None, *, deadline: float = _EVER) -> Rotation:
    """Bring all conversations up to date, then forget the old key."""
    store._stuck = False
    changed = 0
    while True:
        job = _Job(store, progress, deadline)
        try:
            job.run()
        except Moved:  # others have begun another job
            store._workspace.refresh()
            if not pending(store):
                break
            continue
        changed += job.changed
        if job.failures or job.late:
            return Rotation(changed, False, tuple(job.failures.items()))
        if job.changed == 0:
            try:
                _finish(store, job.row)
                break
            except Moved:
                store._workspace.refresh()
                if not pending(store):
                    break
    store._search.restart()
    scrubbed = store.backend.scrub()
    store._listeners.tell(KeyRotated(to_datetime(store._clock()), store.key_id, changed))
    return Rotation(changed, True, (), not scrubbed)


def _finish(store: "Store", row: ConversationRow) -> None:
    """Everything is up to date, by the workspace as it was when we began to look: it forgets the old keys. `Moved` if
    somebody has begun another job since."""
    space = store._workspace
    codec = space.sealed
    if codec is None:
        return
    store.backend.collect(store._clock() + 1)  # what nobody refers to is under the old key, or in clear
    store._search.restart()  # so are words in an index of a store that was plain
    if codec.slots[0].kind:  # not "none"
        _set(store, row, codec, codec.slots[:1], {})
        return
    plain = Plain()
    meta = plain.close(meta_place(row.id), encode(replace(space.meta, retired={}, name="")))
    put, lost = _notes_anew(store, plain)
    after = next_row(plain, row, data_key=b"", generation=codec.epoch, meta=meta)
    space.expect(None)
    change = Change(after.id, row.token, after, put=put, unput=lost)
    if not isinstance(store._pen.write(Batch((change,))), Done):
        raise Moved
    space.become(plain, after)


class _Job:
    """One pass over all conversations."""

    def __init__(self, store: "Store", progress: Callable[[Progress], None] | None, deadline: float) -> None:
        self.row = store._workspace.row  # before anything else that we go by
        codec = store._workspace.sealed
        if codec is None:
            raise InvalidArgument("the store is not sealed any more")
        self._store, self._codec, self._deadline = store, codec, deadline
        self._require = ((self.row.id, self.row.token),)  # nobody has begun another job
        self._progress = progress
        self._kinds = [kind for kind in store.backend.kinds() if kind != WORKSPACE]
        self.changed = 0
        self.late = False
        self.failures: dict[str, str] = {}

    def run(self) -> None:
        total = 0
        if self._progress is not None:
            total = sum(self._store.backend.count(Where(kind)) for kind in self._kinds)
        done, told = 0, time.monotonic()
        for rows in self._pages():
            self._rewrap([row for row in rows if self._attempt(row, self._needs_rewrapping)])
            for row in rows:
                if time.monotonic() > self._deadline:
                    self.late = True
                    return
                if self._attempt(row, self._needs_reencrypting):
                    self._attempt(row, self._reencrypt)
                done += 1
                if self._progress is not None and time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    self._progress(Progress(done, max(done, total)))
        if self._progress is not None:
            self._progress(Progress(done, done))

    def _pages(self) -> Iterator[list[ConversationRow]]:
        for kind in self._kinds:
            page: list[ConversationRow] = []
            for row in conversations(self._store.backend, Where(kind), oldest_first=True):
                page.append(row)
                if len(page) == _AT_ONCE:
                    yield page
                    page = []
            yield page

    def _attempt(self, row: ConversationRow, what: Callable[[ConversationRow], bool]) -> bool:
        """Damage in one conversation does not keep the others from being brought up to date."""
        try:
            return what(row)
        except NotFound:
            return False
        except (Damaged, Busy) as error:
            self.failures[show_conversation_id(row.id)] = str(error)
            return False

    # -- rewrapping

    def _needs_rewrapping(self, row: ConversationRow) -> bool:
        return self._codec.need(row) == "rewrap"

    def _needs_reencrypting(self, row: ConversationRow) -> bool:
        return self._codec.need(row) == "reencrypt"

    def _rewrap(self, rows: Sequence[ConversationRow]) -> None:
        """Those who were changed by others meanwhile come again in the next pass."""
        store, entries = self._store, list[tuple[Entry, Change]]()
        try:
            for row in rows:
                change = None if show_conversation_id(row.id) in self.failures else self._rewrapping(row)
                if change is not None:
                    entries.append((store._pen.enqueue(Batch((change,), self._require)), change))
            outcomes = [(store._pen.outcome(entry), change) for entry, change in entries]
        except BaseException:  # Ctrl+C, say: nobody waits for the others any more
            for entry, _ in entries:
                store._pen.withdraw(entry)
            raise
        for outcome, change in outcomes:
            self.changed += 1
            if isinstance(outcome, Done):
                store._tell_desk(change.conversation, change.row)
            elif isinstance(outcome, Stale) and outcome.conversation == self._require[0][0]:
                raise Moved

    def _rewrapping(self, row: ConversationRow) -> Change | None:
        try:
            envelope = self._codec.envelope(row)
            box = write_box(self._codec.rewrapped(row.id, read_box(row.data_key)))
            return Change(row.id, row.token, next_row(envelope, row, data_key=box))
        except Damaged as error:
            self.failures[show_conversation_id(row.id)] = str(error)
            return None

    # -- re-encrypting

    def _reencrypt(self, row: ConversationRow) -> bool:
        row = self._store._fresh_row(row.id)
        if not self._needs_reencrypting(row):
            return False
        Begin(self._store, self._codec, row.id, self._require).run()
        if not Steps(self._store, self._codec, row.id, self._deadline).run():
            self.late = True
            return False
        self.changed += 1
        return True
