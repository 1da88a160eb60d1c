"""Packs: reading through them, and changing what they hold. `packing` makes them.

Behind the append path the messages of a run are packed: one body in the place of 32, compressed together. Nothing else
changes. Headers stay per message, so trees, listings and deletes work as before; content is read through the
pack. A commit that changes a packed message also writes its pack anew.

Rows and packs are read one after the other, and others write meanwhile: a row that says "packed" may find its pack
gone on, or gone. Then both are read again. Only a disagreement that stands still is damage.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._sealing.codec import Envelope, next_row
from ..backend import Change, ConversationRow, ItemRow, MessageRow, PackRow
from ..errors import Damaged, NotFound
from ..ids import RUN
from . import revisions
from .bodies import PackedRaw, close_pack, open_pack_raw, pack_message
from .retry import MAX_LONG_ATTEMPTS
from .signals import RowChanged

if TYPE_CHECKING:
    from .context import StoreContext

_KEPT = 8  # opened packs that a reader remembers


def run_of(number: int) -> int:
    """The first number of the run that a message is in."""
    return number - number % RUN


class Reader:
    """Reads the content of messages, packed or not. Remembers the packs it opened last: make one for each call."""

    def __init__(self, engine: "StoreContext") -> None:
        self._backend = engine.backend
        self._names = engine.message_ids
        self._opened: dict[int, tuple[PackRow, tuple[PackedRaw, ...]]] = {}
        self.state: object = None  # of the conversation that was read last, so that it stays

    def content(self, envelope: Envelope, row: MessageRow) -> tuple[MessageRow, bytes]:
        """The content of a message; and its row, read again if it had changed."""
        for _ in range(MAX_LONG_ATTEMPTS):
            if row.body is not None:
                return row, envelope.open_messages((row,))[0]
            found = self._find_in_pack(envelope, row)
            if found is not None:
                return row, bytes(found.body)
            self._opened.pop(run_of(row.number), None)
            again = self._backend.messages(numbers=[row.number])
            if not again:
                raise NotFound("message", [self._names.id(row.number)])
            if again[0].seq != row.seq:  # an index led to another one
                break
            row = again[0]
        raise Damaged(f"message {self._names.id(row.number)} and the pack that holds it do not agree")

    def _find_in_pack(self, envelope: Envelope, row: MessageRow) -> PackedRaw | None:
        """The message in its pack, if row and pack agree."""
        first = run_of(row.number)
        if first not in self._opened:
            packs = self._backend.packs([first])
            if not packs:
                return None
            if len(self._opened) >= _KEPT:
                del self._opened[next(iter(self._opened))]
            self._opened[first] = packs[0], open_pack_raw(envelope, packs[0])
        pack, messages = self._opened[first]
        place = row.number - first
        if pack.conversation != row.conversation or place >= len(messages):
            return None
        parent = pack.parent if place == 0 else row.number - 1
        found = messages[place]
        same = _has_header(found, row) and row.parent == parent and row.main in (0, 1)
        return found if same else None


def _has_header(found: PackedRaw, row: MessageRow) -> bool:
    stored = (row.seq, row.link, bool(row.main), row.role, row.revision, row.created_at)
    return stored == (found.seq, found.link, found.main, found.role, found.revision, found.created_at)


# -- changing what is packed


class Rewrite:
    """Collects the changes of messages in one commit, and writes their packs anew."""

    def __init__(self, engine: "StoreContext", row: ConversationRow) -> None:
        self._engine = engine
        self._row = row
        self._envelope = engine.codec.envelope(row)
        self._dropped: list[MessageRow] = []
        self._amended: dict[int, tuple[MessageRow, MessageRow, bytes]] = {}

    def drop(self, rows: Iterable[MessageRow]) -> None:
        self._dropped += rows

    def amend(self, old: MessageRow, data: bytes, **fields: object) -> None:
        """Replace a message: `data` is its content now, and these fields of its row are set."""
        new = replace(old, revision=old.revision + 1, size=len(data), body=None, **fields)
        if old.body is not None:
            new = replace(new, body=self._envelope.close_message(new, data))
        self._amended[old.number] = (old, new, data)

    def change(self, **fields: object) -> Change:
        """The change. `fields` of the conversation's row are set along with its proof."""
        came: list[MessageRow | PackRow] = [new for _, new, _ in self._amended.values()]
        went: list[MessageRow | PackRow] = [*self._dropped, *(old for old, _, _ in self._amended.values())]
        packs, gone = [], []
        for run in self._runs():
            old = self._pack(run)
            went.append(old)
            new = self._rewrite_pack(old)
            if new is None:
                gone.append(run)
            else:
                packs.append(new)
        came += packs
        row = self._row
        amended = [new for _, new, _ in self._amended.values()]
        rewrites = row.rewrites + 1
        put: tuple[ItemRow, ...] = ()
        ledger = revisions.read(self._engine, self._envelope, row)
        if ledger is not None:
            put = (ledger.after(amended, self._dropped).item(self._envelope, row.id, rewrites),)
        grown = sum(m.size for m in came if isinstance(m, MessageRow))
        shrunk = sum(m.size for m in went if isinstance(m, MessageRow))
        fields = {"rewrites": rewrites, "size": row.size + grown - shrunk, **fields}
        after = next_row(self._envelope, row, came, went, **fields)
        return Change(
            row.id,
            row.token,
            after,
            amend=tuple(amended),
            drop=tuple(m.number for m in self._dropped),
            pack=tuple(packs),
            unpack=tuple(gone),
            put=put,
        )

    def _runs(self) -> list[int]:
        """The runs whose packs are touched."""
        touched = [*self._dropped, *(old for old, _, _ in self._amended.values())]
        return sorted({run_of(m.number) for m in touched if m.body is None})

    def _pack(self, run: int) -> PackRow:
        packs = self._engine.backend.packs([run])
        if not packs:
            if self._engine.read_row(self._row.id).token != self._row.token:
                raise RowChanged
            raise Damaged(f"the pack that holds message {self._engine.message_ids.id(run)} is missing")
        return packs[0]

    def _rewrite_pack(self, old: PackRow) -> PackRow | None:
        """Return the pack without the messages from the first dropped one on; None if none is left. A pack always
        begins with the first message of its run."""
        dropped = {m.number for m in self._dropped}
        if old.first in dropped:
            return None
        messages = []
        for number, message in enumerate(open_pack_raw(self._envelope, old), old.first):
            if number in dropped:
                break
            amended = self._amended.get(number)
            messages.append(message if amended is None else pack_message(amended[1], amended[2]))
        return close_pack(self._envelope, old, messages)
