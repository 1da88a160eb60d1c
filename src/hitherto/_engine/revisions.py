"""The ledger: which messages of a sealed conversation were changed or deleted since they were said.

A body opens in its own row only, but an older row of the same message, or one that was deleted, is a row of its own: an
attacker with the file could put it back, whole. So every commit that changes or deletes messages also writes the ledger
of the conversation: the revision of each message that has another than its first, and where runs end that were cut off.
It is bound to the count of such commits in the conversation's row, which is proven. Every message that is read is
compared with it. A conversation in which nothing was ever changed has none.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct, msgpack

from .._sealing.codec import Envelope, Place
from ..backend import ConversationRow, ItemRow, MessageRow
from ..errors import Damaged
from ..ids import RUN

if TYPE_CHECKING:
    from .context import StoreContext

KEY = b"ledger"


class Ledger(Struct, frozen=True, array_like=True):
    """The revisions of changed messages, and the ends of shortened runs."""

    revisions: dict[int, int] = {}  # number -> revision, where it is not the first
    ends: dict[int, int] = {}  # run -> the first number in it that was deleted; so were those after it

    def check(self, number: int, revision: int) -> None:
        """`Damaged` if this is not the message as it is now."""
        if revision != self.revisions.get(number, 0):
            raise Damaged("a stored message is not the newest of its revisions: an older one was put back")
        end = self.ends.get(number - number % RUN)
        if end is not None and number >= end:
            raise Damaged("a stored message was deleted, and put back")

    def after(self, amended: Iterable[MessageRow], dropped: Iterable[MessageRow]) -> "Ledger":
        """The ledger after these messages were changed, and those deleted."""
        revisions, ends = dict(self.revisions), dict(self.ends)
        revisions.update({m.number: m.revision for m in amended})
        for m in dropped:
            run = m.number - m.number % RUN
            ends[run] = min(m.number, ends.get(run, m.number))
            revisions.pop(m.number, None)
        return Ledger(revisions, ends)

    def item(self, envelope: Envelope, conversation: bytes, rewrites: int) -> ItemRow:
        """The ledger as it is stored, bound to the count of commits that changed something."""
        return ItemRow(conversation, KEY, 0, envelope.close(place(conversation, rewrites), _encode(self)))


NOTHING = Ledger()
_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(Ledger).decode


def place(conversation: bytes, rewrites: int) -> Place:
    return ("item", conversation, KEY + rewrites.to_bytes(8, "big"))


def read(engine: "StoreContext", envelope: Envelope, row: ConversationRow) -> Ledger | None:
    """The ledger of a conversation as its row says it is; `Damaged` if there is another one, or none. None for
    plain conversations."""
    if not envelope.proves:
        return None
    items = engine.backend.items(row.id, KEY)
    if not row.rewrites and not items:
        return NOTHING
    if not items:
        raise Damaged("the ledger of a conversation is missing")
    try:
        return _decode(envelope.open(place(row.id, row.rewrites), items[0].body))
    except (ValueError, TypeError):
        raise Damaged("the ledger of a conversation cannot be read") from None
