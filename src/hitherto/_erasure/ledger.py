"""The erasure ledger: which conversations were purged, as keyed hashes.

Each purge writes an entry, in the commit that removes the conversation: so there is no purge without an entry, and no
entry without a purge. An import asks the ledger, and leaves out what was erased. `replay` purges what is in the ledger
and came back all the same, with a backup for example.

An entry is a row of the kind `erased`, beside those of conversations. It is copied, sealed, rotated and verified as
they are. Its id is a keyed hash of the id of the conversation. Its description has a **mark** for each time that the
conversation was purged: a keyed hash of its id and of the time when it was made. That time never changes, and no two
conversations of one id have the same. So a conversation that was purged and is back from a backup is told from one that
was brought back on purpose, whatever the clocks said.

The key of the hashes is derived from the seed of the workspace, which its backups and its copies by row share, and no
rotation changes. An entry alone tells when something was purged, and for which reason. In a sealed store
the seed and the entries are sealed.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.bodies import Erasure, Meta, encode, meta_place, open_meta
from .._engine.workspace import add_description, new_row
from ..accountability import current
from ..backend import ERASED, Change, ConversationRow
from ..errors import Damaged
from ..events import warn

if TYPE_CHECKING:
    from .._engine.engine import Engine

_MARK = 8  # bytes: it is compared with the mark of one row alone


def entry_id(engine: "Engine", conversation: bytes) -> bytes:
    """Return the id of the entry of a conversation, whether there is one or not."""
    return _hash(engine, b"erased id", conversation, 16)


def mark_of(engine: "Engine", row: ConversationRow) -> bytes:
    """Return the mark of this conversation: one that is made later under the same id has another."""
    return _hash(engine, b"erased row", row.id + row.created_at.to_bytes(8, "big", signed=True), _MARK)


def ledger_key(engine: "Engine") -> bytes:
    """Return the key of all hashes of this ledger, and of those that are kept elsewhere."""
    return blake2b(b"", digest_size=32, key=engine.workspace.meta.seed[:64], person=b"erasure ledger").digest()


def _hash(engine: "Engine", use: bytes, data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size, key=ledger_key(engine), person=use).digest()


def find(engine: "Engine", conversations: Iterable[bytes]) -> dict[bytes, Erasure]:
    """Return the entries of those of these conversations that were ever purged, by the id of the conversation.
    `Damaged` if one cannot be read."""
    ids = {entry_id(engine, id): id for id in conversations}
    return {ids[row.id]: read(engine, row) for row in engine.backend.lookup(ids=list(ids)) if row.kind == ERASED}


def read(engine: "Engine", row: ConversationRow) -> Erasure:
    """Return the content of an entry; `Damaged` if it cannot be read."""
    erasure = engine.read_consistently(row, lambda row: open_meta(engine.check_row(row), row).erased)
    if erasure is None:
        raise Damaged("an entry of the erasure ledger is none")
    return erasure


def changes(engine: "Engine", doomed: Sequence[ConversationRow], reason: str) -> tuple[Change, ...]:
    """Return the changes that enter these conversations, for the commit that removes them. That commit must require the
    workspace's row as it was before this call: each entry gets a key of its own."""
    now = engine.clock()
    entered = {entry_id(engine, row.id): Erasure((mark_of(engine, row),), now, reason, current()) for row in doomed}
    return put(engine, entered)


def entering(engine: "Engine", reason: str) -> Callable[[ConversationRow, Change], Sequence[Change]]:
    """Return what enters a conversation, beside the change that removes it."""

    def beside(row: ConversationRow, change: Change) -> Sequence[Change]:
        return () if change.row is not None or row.kind == ERASED else changes(engine, [row], reason)

    return beside


def put(engine: "Engine", entered: dict[bytes, Erasure]) -> tuple[Change, ...]:
    """Return the changes that write these entries, as far as their marks are new. Those that are there are kept."""
    there = {row.id: row for row in engine.backend.lookup(ids=list(entered))}
    found = (_entry(engine, id, erasure, there.get(id)) for id, erasure in entered.items())
    return tuple(change for change in found if change is not None)


def _entry(engine: "Engine", id: bytes, erasure: Erasure, there: ConversationRow | None) -> Change | None:
    row = new_row(engine.codec, id, ERASED, None, erasure.at)
    if there is not None:
        known = _marks(engine, there)
        if set(erasure.marks) <= set(known):
            return None
        erasure = replace(erasure, marks=tuple(dict.fromkeys((*known, *erasure.marks))))
        row = replace(row, version=there.version + 1, created_at=there.created_at)
    envelope = engine.codec.first_envelope(row)
    row = add_description(envelope, row, envelope.close(meta_place(id), encode(Meta(erased=erasure))))
    return Change(id, None if there is None else there.token, row)


def _marks(engine: "Engine", there: ConversationRow) -> tuple[bytes, ...]:
    try:
        return read(engine, there).marks
    except Damaged:  # a damaged entry must not keep a conversation from being purged again
        warn("an entry of the erasure ledger cannot be read: earlier purges of a conversation are forgotten")
        return ()
