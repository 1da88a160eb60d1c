"""The saved segments of a sealed store's text index: sealed items of their conversation.

They are under the conversation's own key, and a purge removes them. Beside the segments lies a list with their names
and the messages that they cover (`Known`). The list is written in the same commit as the segments.

The items are never the truth. An item that cannot be opened or decoded, is not on the list, or belongs to another
conversation with the same id is ignored, and its words are read again from the messages. Segments that cover fewer
messages than there are now are extended. Segments that were saved before messages were deleted or changed, or that were
put back from an old copy, are compared with the messages one by one before a search uses them. Then they are saved
again, so that words do not outlive their message.

Saving is a commit that no reader notices. It is prepared from the current row. If another writer is faster, it is left
for another time: unsaved words are only read again. It never happens during an append.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError, Struct

from .._engine.typed_items import ItemType, close_item, open_item
from .._sealing.codec import next_row
from ..backend import INTERNAL_KINDS, Batch, Change, ConversationRow, Done, ItemRow
from ..errors import CommitUnknown, Damaged, HithertoError
from ..textindex import Known
from .segments import Segment

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from .sealed_index import WordIndex

FORMAT = 1
PREFIX = b"words/"
_LIST = b"words/list"  # the names of segments are longer
_LEAST = 64  # words: with fewer, reading the messages is as fast as reading segments
_TOGETHER = 64  # conversations saved in one commit
_TRIES = 8
_EVER = float("inf")


class _List(Struct, frozen=True, array_like=True):
    """The names of the segments, in order, and the messages that they cover."""

    format: int
    created_at: int
    rewrites: int
    next_seq: int
    names: list[bytes]

    def coverage_of(self, conversation: bytes) -> Known:
        return Known(conversation, self.created_at, self.rewrites, self.next_seq)


_SEGMENTS: Final = ItemType(_List, "the list of segments")


# -- reading


def load(engine: "Engine", index: "WordIndex", row: ConversationRow) -> None:
    """Load the saved segments of a conversation into the index, if it has none of it yet."""
    if index.parts(row.id) == (None, ()):
        items = engine.backend.items(row.id, PREFIX)
        kept = _open_saved(engine, row, items)
        if kept is not None:
            known, segments = kept
            index.adopt(known, segments, saved=len(items) == len(segments) + 1)


def _open_saved(
    engine: "Engine", row: ConversationRow, items: Sequence[ItemRow]
) -> tuple[Known, tuple[Segment, ...]] | None:
    """Return the saved segments of a conversation, or None if any item is unreadable or of another conversation."""
    found = {item.key: item for item in items}
    if _LIST not in found:
        return None
    try:
        envelope = engine.codec.envelope(row)
        listed = _SEGMENTS.open(envelope, found[_LIST])
        if listed.format != FORMAT or listed.created_at != row.created_at or listed.next_seq > row.next_seq:
            return None
        keys = {name: _key(name) for name in listed.names}
        opened = [(name, open_item(envelope, found[key])) for name, key in keys.items()]
        return listed.coverage_of(row.id), tuple(Segment.load(name, data) for name, data in opened)
    except (HithertoError, MsgspecError, KeyError):  # whatever the problem is, the messages are there
        return None


def _key(name: bytes) -> bytes:
    return PREFIX + name.hex().encode()


# -- saving


def save(engine: "Engine", index: "WordIndex", ids: Sequence[bytes], deadline: float = _EVER) -> bool:
    """Save the segments of these conversations.

    False if the time was not enough, if other writers were faster, or if the store takes no writes."""
    if engine.committer.refused is not None:
        return False
    complete = True
    for start in range(0, len(ids), _TOGETHER):
        if start and time.monotonic() > deadline:
            return False
        complete = _save(engine, index, ids[start : start + _TOGETHER]) and complete
    return complete


def _save(engine: "Engine", index: "WordIndex", ids: Sequence[bytes]) -> bool:
    complete = True
    rows = {row.id: row for row in engine.backend.lookup(ids=ids) if row.kind not in INTERNAL_KINDS}
    changes: list[Change] = []
    parts = {id: index.parts(id) for id in ids}
    for id, (known, segments) in parts.items():
        row = rows.get(id)
        if row is None:  # purged
            index.mark_saved(id, known, segments)
        elif known is None or (known.created_at, known.rewrites) != (row.created_at, row.rewrites):
            complete = False  # messages were removed or changed at this moment: their words must not be saved
        else:
            change = None
            with suppress(Damaged):  # a row that was tampered with cannot be saved
                change = _change(engine, row, known, segments)
            if change is None:
                index.mark_saved(id, known, segments)
            else:
                changes.append(change)
    done = _commit_all(engine, changes)
    for change in done:
        index.mark_saved(change.conversation, *parts[change.conversation])
    return complete and len(done) == len(changes)


def _change(engine: "Engine", row: ConversationRow, known: Known, segments: tuple[Segment, ...]) -> Change | None:
    """Return the change that saves these segments, or None if there is nothing to do."""
    items = engine.backend.items(row.id, PREFIX)
    there = {item.key for item in items}
    envelope = engine.codec.envelope(row)
    if not envelope.proves or sum(segment.length for segment in segments) < _LEAST:  # or is becoming plain
        return _clear_items(engine, row, there)
    names = [segment.name for segment in segments]
    wanted = {_key(segment.name): segment for segment in segments}
    if there and not there & wanted.keys() and _saved_by_others(engine, row, items, known):
        return None
    put = {key: segment.dump() for key, segment in wanted.items() if key not in there}
    put[_LIST] = _SEGMENTS.encode(_List(FORMAT, known.created_at, known.rewrites, known.next_seq, names))
    return Change(
        row.id,
        row.token,
        _new_version(engine, row),
        put=tuple(close_item(envelope, row.id, key, data) for key, data in put.items()),
        unput=tuple(sorted(there - wanted.keys() - {_LIST})),
    )


def _saved_by_others(engine: "Engine", row: ConversationRow, items: Sequence[ItemRow], known: Known) -> bool:
    """Tell whether the segments that another process saved cover as many messages, and no removed ones."""
    kept = _open_saved(engine, row, items)
    if kept is None or len(items) != len(kept[1]) + 1:
        return False
    return kept[0].rewrites == known.rewrites and kept[0].next_seq >= known.next_seq


def _clear_items(engine: "Engine", row: ConversationRow, there: Collection[bytes]) -> Change | None:
    return Change(row.id, row.token, _new_version(engine, row), unput=tuple(sorted(there))) if there else None


def _new_version(engine: "Engine", row: ConversationRow) -> ConversationRow:
    """Return the row after a write that no reader notices: the version stays."""
    return next_row(engine.codec.envelope(row), row, version=row.version)


def _commit_all(engine: "Engine", changes: Sequence[Change]) -> list[Change]:
    """Commit these as separate batches in one transaction, and return those that were certainly committed."""
    if not changes:
        return []
    try:
        outcomes = engine.backend.commit([Batch((change,)) for change in changes])
    except CommitUnknown:  # the next attempt sees which ones were committed
        return []
    done = [change for change, outcome in zip(changes, outcomes, strict=True) if isinstance(outcome, Done)]
    for change in done:
        _tell_desk(engine, change)
    return done


def _tell_desk(engine: "Engine", change: Change) -> None:
    """Update the cached row, so that the next writer does not have to prepare its write twice."""
    state = engine.states.get(change.conversation)
    if state is not None and change.row is not None:
        with state.lock:
            if state.row.token == change.expect:
                state.row = change.row


# -- forgetting


def drop_outdated(engine: "Engine", ids: Sequence[bytes]) -> bool:
    """Remove the saved segments of these conversations if messages were removed or changed since.

    This is for a process without an index in memory. False if other processes write without a pause."""
    for _ in range(_TRIES):
        rows = [row for row in engine.backend.lookup(ids=ids) if row.kind not in INTERNAL_KINDS]
        found = [change for row in rows if (change := _without_outdated(engine, row)) is not None]
        if len(_commit_all(engine, found)) == len(found):
            return True
    return False


def _without_outdated(engine: "Engine", row: ConversationRow) -> Change | None:
    items = engine.backend.items(row.id, PREFIX)
    if not items:
        return None
    kept = _open_saved(engine, row, items)
    fits = kept is not None and kept[0].rewrites == row.rewrites and len(items) == len(kept[1]) + 1
    return None if fits else _clear_items(engine, row, [item.key for item in items])
