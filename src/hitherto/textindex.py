"""The text index: the words of each message.

Bodies are opaque to backends, so they cannot search. The store feeds a text index outside the append path. The index
stores its position in the backend's feed, and a summary of each conversation; it catches up before a search and when
the store is idle. It is never the source of truth: every hit is read from the store before it is returned, and a
damaged index is deleted and rebuilt.

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
    """A message that is put into the index."""

    number: int
    conversation: bytes
    revision: int
    role: str
    created_at: int  # microseconds
    text: str


class Known(Struct, frozen=True, gc=False):
    """The state of a conversation in the index: all messages before `next_seq`, as of `rewrites`. `created_at`
    distinguishes it from an earlier conversation with the same id."""

    conversation: bytes
    created_at: int
    rewrites: int
    next_seq: int


class Found(Struct, frozen=True, gc=False):
    """A message that matches."""

    number: int
    conversation: bytes
    score: float  # higher matches better; 0 without a ranking


class IndexDamaged(Damaged):
    """The index cannot be read: `clear` it, and feed it again."""


class TextIndex(Protocol):
    """Words of one workspace. May be used from any thread; several processes may share one."""

    was_reset: bool  # an index could not be read, and was started anew

    def state(self) -> tuple[int, bytes | None]:
        """A stamp that every update changes, and the position in the feed; None if the index is new or was cleared."""

    def known(self, conversation: bytes) -> Known | None:
        """The state of a conversation in the index."""

    def conversations(self) -> list[bytes]:
        """The conversations with messages in the index."""

    def holds(self, conversation: bytes) -> dict[int, int]:
        """The messages of a conversation in the index: number and revision."""

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
        """Apply all of these changes, or none: forget whole conversations, drop messages, put messages (an existing
        number is replaced and keeps its place in time), and note the state of conversations. Returns the new stamp. If
        the stamp has changed meanwhile, nothing is done and the result is None."""

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
        """The matching messages: newest first, or the best first. `since` <= created_at < `until`."""

    def scrub(self, seconds: float | None = None, *, rebuild: bool = True) -> bool:
        """Remove the words of dropped messages from the files. False if there was not enough time, or a reader delays
        it: call again later. With `rebuild`, a last step that cannot be divided may take longer than `seconds`."""

    def clear(self) -> None:
        """Forget everything."""

    def size(self) -> int:
        """Bytes used."""

    def close(self) -> None:
        """Release all resources. Idempotent."""
