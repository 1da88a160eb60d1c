"""Quarantine: registers records that cannot be read back as they were written.

The key is checked first, so a failing record fails under the right key. It is read once more from a consistent row; if
it fails again, it was damaged or tampered with. Then a sealed note is written into the workspace, and listeners get a
`Quarantined` event. The record is never returned to callers. Its bytes stay in place, for comparison with a backup,
until the quarantine is purged. All other records stay usable.

Many such records in a short time point to a systematic fault. Then the store becomes read-only, to protect the rest.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from .._engine.committer import READS_ONLY
from .._engine.typed_items import ItemType
from ..errors import Damaged, HithertoError
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


_NOTE: Final = ItemType(_Note, "a note about quarantine")


class Quarantine:
    """The records of one store that cannot be trusted."""

    def __init__(self, engine: "Engine") -> None:
        self._backend, self._workspace, self._committer = engine.backend, engine.workspace, engine.committer
        self._clock, self._listeners, self._message_id = engine.clock, engine.listeners, engine.message_ids.id
        self._notes: dict[_Record, _Note] | None = None
        self._recent: deque[float] = deque(maxlen=_MANY)

    def _read_once(self) -> dict[_Record, _Note]:
        if self._notes is None:
            self._notes = self._read()
        return self._notes

    def _read(self) -> dict[_Record, _Note]:
        space = self._workspace
        found = {}
        for item in self._backend.items(space.row.id, _PREFIX):
            record = _record(item.key)
            if record is None:
                continue  # not a note
            try:
                found[record] = _NOTE.open(space.envelope, item)
            except Damaged:
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
        return [
            Quarantined(to_datetime(note.at), show_conversation_id(id), _name(self._message_id, message), note.problem)
            for (id, message), note in sorted(self._read_once().items(), key=lambda pair: pair[1].at)
        ]

    def older_than(self, before: int) -> bool:
        """Return True if a record was quarantined at or before this time."""
        return any(note.at <= before for note in self._read_once().values())

    # -- coming

    def add(self, conversation: bytes, message: int | None, problem: str) -> None:
        """Quarantine a record. Does nothing if it is already."""
        if message is not None and not 0 <= message < 1 << 47:
            message = None  # a number that cannot be
        record = (conversation, message)
        if record in self._read_once():
            return
        note = _Note(self._clock(), problem)
        self._read_once()[record] = note
        if self._committer.refused != READS_ONLY:
            self._keep(record, note)
        shown = show_conversation_id(conversation)
        name = _name(self._message_id, message)
        warn(f"quarantined: {shown if name is None else name}: {problem}")
        self._listeners.emit(Quarantined(to_datetime(note.at), shown, name, problem))
        self._count()

    def _keep(self, record: _Record, note: _Note) -> None:
        try:
            self._workspace.note(put={_key(record): _NOTE.encode(note)})
        except HithertoError as error:  # a full disk, for example: the note stays in this process
            warn(f"a record could not be put into quarantine: {error}")

    def _count(self) -> None:
        now = time.monotonic()
        self._recent.append(now)
        if len(self._recent) == _MANY and now - self._recent[0] < _SHORT_SECONDS and not self._committer.refused:
            reason = f"{_MANY} records were quarantined within {_SHORT_SECONDS:.0f} seconds"
            hint = "look at store.quarantine(); store.resume_writing() when it is understood"
            self._committer.refuse(reason, hint)
            warn(f"the store takes no more writes: {reason}")
            self._listeners.emit(TurnedReadOnly(to_datetime(self._clock()), reason))

    def release(self, conversation: bytes) -> None:
        """Remove the notes of a conversation that is gone, or can be read again."""
        notes = [record for record in self._read_once() if record[0] == conversation]
        if notes:
            self._workspace.note(unput=[_key(record) for record in notes])
            for record in notes:
                self._read_once().pop(record, None)

    def forgive(self) -> None:
        """Start counting recent records from zero: the user resumed writing."""
        self._recent.clear()

    # -- going

    def due(self, before: int) -> Sequence[_Record]:
        """Return the records that were quarantined at or before this time: conversations first, then messages."""
        self._notes = None
        notes = sorted(self._read_once().items(), key=lambda pair: (pair[0][1] is not None, pair[1].at))
        return [record for record, note in notes if note.at <= before]

    def settle(self, record: _Record) -> None:
        """Remove the note of a record that was destroyed, or that can be read again."""
        self._workspace.note(unput=[_key(record)])
        self._read_once().pop(record, None)


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
