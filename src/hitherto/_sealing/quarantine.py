"""Quarantine: registers records that cannot be read back as they were written.

The key is checked first, so a failing record fails under the right key. It is read once more from a consistent row; if
it fails again, it was damaged or tampered with. Then a sealed note is written into the workspace, and listeners get a
`Quarantined` event. The record is never returned to callers. Its bytes stay in place, for comparison with a backup,
until the quarantine is purged. All other records stay usable.

Many such records in a short time point to a systematic fault. Then the store becomes read-only, to protect the rest.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, msgpack
from msgspec.structs import replace

from .._engine.attachments import fill_holes
from .._engine.bodies import item_place, open_pack_raw
from .._engine.committer import READS_ONLY, report_deletion
from .._engine.packs import run_of
from .._engine.signals import RowChanged
from .._engine.state import ConversationState
from ..backend import Change, ConversationRow, PackRow
from ..errors import Closed, Damaged, HithertoError, NotFound
from ..events import Quarantined, TurnedReadOnly, warn
from ..ids import show_conversation_id
from ..model import to_datetime

if TYPE_CHECKING:
    from .._engine.engine import Engine

_MANY, _SHORT_SECONDS = 20, 60.0  # so many in so short a time turn the store read-only
_PREFIX = b"quarantine/"

_Record = tuple[bytes, int | None]  # conversation and message; None: the conversation itself


class _Note(Struct, frozen=True, array_like=True):
    """The note about a quarantined record."""

    at: int
    problem: str


_decode = msgpack.Decoder(_Note).decode


class Quarantine:
    """The records of one store that cannot be trusted."""

    def __init__(self, engine: "Engine") -> None:
        self._ref = weakref.ref(engine)  # weak, or the store would be freed late, and anywhere
        self._notes: dict[_Record, _Note] | None = None
        self._recent: deque[float] = deque(maxlen=_MANY)

    @property
    def _engine(self) -> "Engine":
        engine = self._ref()
        if engine is None:
            raise Closed("the store is gone")
        return engine

    def _read_once(self) -> dict[_Record, _Note]:
        if self._notes is None:
            self._notes = self._read()
        return self._notes

    def _read(self) -> dict[_Record, _Note]:
        space = self._engine.workspace
        found = {}
        for item in self._engine.backend.items(space.row.id, _PREFIX):
            record = _record(item.key)
            if record is None:
                continue  # not a note
            try:
                found[record] = _decode(space.envelope.open(item_place(space.row.id, item.key), item.body))
            except (Damaged, ValueError):
                found[record] = _Note(0, "it was in quarantine, and what was noted of it cannot be read")
        return found

    def has(self, conversation: bytes) -> bool:
        """Return True if the conversation itself is in quarantine."""
        return (conversation, None) in self._read_once()

    def conversations(self) -> set[bytes]:
        """The conversations that are themselves in quarantine."""
        return {conversation for conversation, message in self._read_once() if message is None}

    def list(self) -> list[Quarantined]:
        self._notes = None  # other processes may have added notes
        names = self._engine.message_ids
        return [
            Quarantined(to_datetime(note.at), show_conversation_id(record[0]), _name(names.id, record[1]), note.problem)
            for record, note in sorted(self._read_once().items(), key=lambda pair: pair[1].at)
        ]

    def older_than(self, before: int) -> bool:
        """Return True if a record was quarantined at or before this time."""
        return any(note.at <= before for note in self._read_once().values())

    # -- coming

    def add(self, conversation: bytes, message: int | None, problem: str) -> None:
        """Quarantine a record. Does nothing if it is already."""
        engine = self._engine
        if message is not None and not 0 <= message < 1 << 47:
            message = None  # a number that cannot be
        record = (conversation, message)
        if record in self._read_once():
            return
        note = _Note(engine.clock(), problem)
        self._read_once()[record] = note
        if engine.read_only != READS_ONLY:
            self._keep(record, note)
        shown = show_conversation_id(conversation)
        name = _name(engine.message_ids.id, message)
        warn(f"quarantined: {shown if name is None else name}: {problem}")
        engine.listeners.emit(Quarantined(to_datetime(note.at), shown, name, problem))
        self._count()

    def _keep(self, record: _Record, note: _Note) -> None:
        try:
            self._engine.workspace.note(put={_key(record): msgpack.encode(note)})
        except HithertoError as error:  # a full disk, for example: the note stays in this process
            warn(f"a record could not be put into quarantine: {error}")

    def _count(self) -> None:
        now = time.monotonic()
        self._recent.append(now)
        if len(self._recent) == _MANY and now - self._recent[0] < _SHORT_SECONDS and not self._engine.read_only:
            reason = f"{_MANY} records were quarantined within {_SHORT_SECONDS:.0f} seconds"
            hint = "look at store.quarantine(); store.resume_writing() when it is understood"
            self._engine.committer.refuse(reason, hint)
            warn(f"the store takes no more writes: {reason}")
            self._engine.listeners.emit(TurnedReadOnly(to_datetime(self._engine.clock()), reason))

    def release(self, conversation: bytes) -> None:
        """Remove the notes of a conversation that is gone, or can be read again."""
        notes = [record for record in self._read_once() if record[0] == conversation]
        if notes:
            self._engine.workspace.note(unput=[_key(record) for record in notes])
            for record in notes:
                self._read_once().pop(record, None)

    def forgive(self) -> None:
        """Start counting recent records from zero: the user resumed writing."""
        self._recent.clear()

    # -- going

    def purge(self, before: int) -> tuple[Sequence[str], dict[str, str]]:
        """Destroy the records quarantined at or before this time that still cannot be read. Records that can be read
        again, because they were restored, are released. Returns the destroyed ids, and the errors of the others."""
        self._notes = None
        purged: list[str] = []
        failures: dict[str, str] = {}
        for record, note in sorted(self._read_once().items(), key=lambda pair: (pair[0][1] is not None, pair[1].at)):
            if note.at > before:
                continue
            try:
                if self._destroy(record, failures):
                    purged.append(self._show_id(record))
                self._engine.workspace.note(unput=[_key(record)])
                self._read_once().pop(record, None)
            except HithertoError as error:
                failures[self._show_id(record)] = str(error)
        return purged, failures

    def _show_id(self, record: _Record) -> str:
        """Return the id of the message, or of the conversation."""
        return _name(self._engine.message_ids.id, record[1]) or show_conversation_id(record[0])

    def _destroy(self, record: _Record, failures: dict[str, str]) -> bool:
        """Destroy a record, unless it can be read: it is checked in the state in which it is destroyed. Returns True if
        it could not be read. Checkpoint copies that cannot be deleted are added to `failures`."""
        from .._engine.deleting import check_not_held  # noqa: PLC0415  # rare
        from .._erasure import checkpoint_copies  # noqa: PLC0415  # rare

        conversation, message = record
        readable = True
        copies: dict[bytes, tuple[str, ...]] = {}

        def make(row: ConversationRow) -> Change | None:
            nonlocal readable
            readable = self._readable(row, message)
            if readable:
                return None
            check_not_held(row)
            if message is not None:
                return without(self._engine, row, message)
            copies.update(checkpoint_copies.note(self._engine, [row]))
            self._engine.workspace.forget(row)
            return Change(row.id, row.token, None)

        with suppress(NotFound):  # it is gone already
            self._engine.change(conversation, make, always=True, tell=report_deletion("corruption-detected"))
        failures.update(checkpoint_copies.reach(self._engine, copies))
        return not readable

    def _readable(self, row: ConversationRow, message: int | None) -> bool:
        engine = self._engine
        try:
            engine.check_row(row)
            state = ConversationState(engine, row, own=True)
            if message is None:
                state.meta  # noqa: B018  # to see whether it can be read
            for m in [] if message is None else engine.backend.messages(numbers=[message]):
                _, body = engine.read_body_now(m, state)
                fill_holes(state, body)
                engine.read_path_now(m.number, state, lazy=True)
        except Damaged:
            return False
        except NotFound:
            return True
        return True


def without(engine: "Engine", row: ConversationRow, message: int) -> Change:
    """Return the change that removes a message that cannot be read, and all messages below it. The proof is computed
    anew from the remaining messages, because the weight of the unreadable one is unknown."""
    from .._engine.deleting import deletion  # noqa: PLC0415  # rare

    envelope = engine.codec.envelope(row)
    headers = {m.number: m for m in engine.read_headers(row.id)}
    if len(headers) != row.count:  # to prove what is left would be to call it complete
        raise Damaged("messages are missing as well", hint='purge the conversation, reason="corruption-detected"')
    bad = {message} & set(headers)
    for pack in engine.backend.packs([run_of(message)]):
        if message < pack.first + pack.count and not _opens(engine, row, pack):  # a pack is lost as a whole
            bad |= {number for number in headers if pack.first <= number < pack.first + pack.count}
    change = deletion(engine, row.id, bad, recursive=True)
    if change.row is None or change.expect != row.token:
        raise RowChanged
    left = {m.number: m for m in engine.backend.messages(numbers=sorted(set(headers) - set(change.drop)))}
    left.update({m.number: m for m in change.amend})
    packs = {pack.first: pack for pack in engine.backend.packs(sorted({run_of(number) for number in left}))}
    packs.update({pack.first: pack for pack in change.pack})
    kept = [pack for pack in packs.values() if pack.first not in change.unpack]
    after = replace(change.row, count=len(left), size=sum(m.size for m in left.values()), proof=b"")
    total = envelope.weigh(left.values()) + envelope.weigh(kept)
    return replace(change, row=replace(after, proof=envelope.prove(after, total)))


def _opens(engine: "Engine", row: ConversationRow, pack: PackRow) -> bool:
    try:
        open_pack_raw(engine.codec.envelope(row), pack)
    except Damaged:
        return False
    return True


def _key(record: _Record) -> bytes:
    conversation, message = record
    return _PREFIX + conversation + (b"" if message is None else message.to_bytes(8, "big"))


def _record(key: bytes) -> _Record | None:
    """Return the record that the key of a note names, or None if it is not the key of a note."""
    rest = key[len(_PREFIX) :]
    number = int.from_bytes(rest[16:], "big")
    if len(rest) not in (16, 24) or number >= 1 << 47:
        return None
    return rest[:16], number if len(rest) == 24 else None


def _name(id: Callable[[int], str], number: int | None) -> str | None:
    return None if number is None else id(number)
