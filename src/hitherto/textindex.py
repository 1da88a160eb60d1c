"""The text index: which messages have which words.

Bodies are opaque to backends, so search is not theirs. A text index is fed by the store, behind the append path: it
remembers how far it got (the `position`, which means something to the backend's feed alone) and what it holds of each
conversation, and it catches up when a search asks or when the store is idle. It is never the truth: every hit is looked
up in the store before anybody sees it, and a damaged index is thrown away and made again.

The index keeps words and where they occur, never the text itself. Entries are put in the order of time, so that newest
first is its natural order.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from .errors import Damaged

if TYPE_CHECKING:
    from ._search.query import Query


class Entry(Struct, frozen=True, gc=False):
    """A message, as the index takes it in."""

    number: int
    conversation: bytes
    revision: int
    role: str
    created_at: int  # microseconds
    text: str


class Known(Struct, frozen=True, gc=False):
    """What the index holds of a conversation: everything before `next_seq`, as it was when `rewrites` stood there.
    `created_at` tells it from another one that had the same id."""

    conversation: bytes
    created_at: int
    rewrites: int
    next_seq: int


class Found(Struct, frozen=True, gc=False):
    """A message that fits."""

    number: int
    conversation: bytes
    score: float  # higher fits better; 0 where nobody asked for a ranking


class IndexDamaged(Damaged):
    """The index cannot be read: `clear` it, and feed it again."""


class TextIndex(Protocol):
    """Words of one workspace. May be used from any thread; several processes may share one."""

    was_reset: bool  # there was one that could not be read, and it was begun again

    def state(self) -> tuple[int, bytes | None]:
        """A stamp that every update changes; and how far it got, None if it is new or was cleared."""

    def known(self, conversation: bytes) -> Known | None:
        """What it holds of a conversation."""

    def conversations(self) -> list[bytes]:
        """The conversations of which it holds anything."""

    def holds(self, conversation: bytes) -> dict[int, int]:
        """The messages of a conversation that it has: number and revision."""

    def update(
        self,
        stamp: int,
        *,
        put: Sequence[Entry] = (),
        drop: Sequence[int] = (),
        known: Sequence[Known] = (),
        forget: Sequence[bytes] = (),
        position: bytes | None = None,
    ) -> int | None:
        """All of this, or none of it: forget whole conversations, drop messages, put others (a number that is there
        already is replaced and keeps its place in time), and note what is known now. The stamp afterwards; None, and
        nothing is done, if the stamp is not this one any more."""

    def find(
        self,
        query: "Query",
        *,
        limit: int,
        ranked: bool = False,
        role: str | None = None,
        conversations: Sequence[bytes] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[Found]:
        """Messages that fit: newest first, or the best first. `since` <= created_at < `until`."""

    def scrub(self, seconds: float | None = None, *, rebuild: bool = True) -> bool:
        """Take the words of dropped messages out of the files. False if there was not enough time, or a reader delays
        it: call again later. With `rebuild`, a last step that cannot be divided may take longer than that."""

    def clear(self) -> None:
        """Forget everything."""

    def size(self) -> int:
        """Bytes used."""

    def close(self) -> None:
        """Let go of everything. Idempotent."""
