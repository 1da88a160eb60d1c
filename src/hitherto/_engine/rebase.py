"""A write that lost a race, made anew from the row that the backend has locked for it (`QueueingBackend`).

The thread that commits makes it anew, for the owner that waits. Where the owner has to decide (an error to raise,
another key, attachments to stage again), nothing is made: the owner is told that its batch is stale, and prepares it
again by itself.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..backend import Batch, Change, ConversationRow
from ..errors import HithertoError
from .committer import PendingCommit
from .signals import KeyChanged, RowChanged

if TYPE_CHECKING:
    import threading

T = TypeVar("T")


class RowOwner(Protocol):
    """A conversation in use (`state`), as far as a rebase goes."""

    lock: "threading.RLock"
    row: ConversationRow
    epoch: int

    def adopt_locked(self, row: ConversationRow) -> AbstractContextManager[bool]: ...


class WriteRebaser(Generic[T]):
    """Makes one write of a conversation anew, and holds the result."""

    __slots__ = ("_enqueued", "_prepare", "_state", "made")

    def __init__(
        self,
        state: RowOwner,
        prepare: Callable[[ConversationRow], tuple[Change | None, T]],
        enqueued: Callable[[PendingCommit, Change], None],
    ) -> None:
        self._state, self._prepare, self._enqueued = state, prepare, enqueued
        self.made: tuple[ConversationRow, int, T] | None = None  # from which row, in which epoch, with which result

    @property
    def lock(self) -> "threading.RLock":
        return self._state.lock

    def __call__(self, entry: PendingCommit, row: ConversationRow) -> Batch | None:
        state = self._state
        with state.lock, state.adopt_locked(row) as is_ours:
            if not is_ours:
                return None
            try:
                change, result = self._prepare(row)
            except (HithertoError, KeyChanged, RowChanged):  # the owner prepares it as well, and it is raised there
                return None
            if change is None or change.row is None or change.expect != row.token:
                return None
            self.made = row, state.epoch, result
            self._enqueued(entry, change)
            state.row = change.row
            return Batch((change,))
