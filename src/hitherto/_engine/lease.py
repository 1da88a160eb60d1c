"""A lease: one process at a time does a piece of work that others could do as well.

The lease is a field of the workspace's description: the owner, and the time when it runs out. The owner
renews it while it works (the heartbeat). It ends in one of three ways: the owner gives it back; it runs out; or the
owner is a process of this machine that is gone, so that no process waits for one that was killed.

A lease saves work, and nothing depends on it. A clock that jumps, or an owner that slept for too long, can give the
same work to two processes at once. So work under a lease must be right with two owners as well: each commit
says by itself what it requires.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec import MsgspecError, msgpack
from msgspec.structs import replace

from ..errors import StorageFull
from .bodies import WorkspaceMeta
from .process import Who, is_gone, this

if TYPE_CHECKING:
    from .context import StoreContext

LEASE = 60 * 1_000_000  # microseconds: for so long others leave it to an owner that does not renew it
Field = Literal["sweeper", "rotator"]

_who = msgpack.Decoder(Who).decode


class Lease:
    """One kind of work, as one opened store sees it."""

    def __init__(self, engine: "StoreContext", field: Field) -> None:
        self.clock = engine.clock
        self._workspace, self._opened = engine.workspace, engine.opened
        self._field = field
        self._until = 0  # by our clock; 0: it is not ours, as far as we know

    def take(self) -> bool:
        """Take the lease if it is free, and renew it when a third of its time is over. Return True if it is ours."""
        now = self.clock()
        if now + LEASE * 2 // 3 < self._until <= now + LEASE:
            return True

        def make(meta: WorkspaceMeta) -> WorkspaceMeta:
            return meta if self._others(meta, now) is not None else self.with_lease(meta)

        with suppress(StorageFull):  # then no process can note that it works, and each of them may
            self._workspace.describe(make, always=True)
        if self._others(self._workspace.meta, now) is not None:
            self._until = 0
            return False
        self._until = now + LEASE
        return True

    def is_free(self, meta: WorkspaceMeta) -> bool:
        """Return True if no other owner has it, by this description."""
        return self._others(meta, self.clock()) is None

    def with_lease(self, meta: WorkspaceMeta) -> WorkspaceMeta:
        """Return the description with the lease as ours, for a commit that changes something else as well."""
        return replace(meta, **{self._field: (self._me(), self.clock() + LEASE)})

    def note_taken(self, meta: WorkspaceMeta) -> None:
        """Note that this description, with the lease as ours, is committed."""
        held = getattr(meta, self._field)
        self._until = 0 if held is None else held[1]

    def without_lease(self, meta: WorkspaceMeta) -> WorkspaceMeta:
        """Return the description without the lease, if it is ours."""
        held = getattr(meta, self._field)
        return replace(meta, **{self._field: None}) if held is not None and held[0] == self._me() else meta

    def release(self) -> None:
        """Give it back, so that no process waits for us. On a full disk it runs out by itself."""
        self._until = 0
        if self.without_lease(self._workspace.meta) is not self._workspace.meta:
            with suppress(StorageFull):
                self._workspace.describe(self.without_lease, always=True)

    def others(self) -> int | None:
        """Return the time until which another owner has it, as far as we know; None if there is none."""
        return self._others(self._workspace.meta, self.clock())

    def _others(self, meta: WorkspaceMeta, now: int) -> int | None:
        held: tuple[bytes, int] | None = getattr(meta, self._field)
        if held is None or held[0] == self._me() or _is_gone(held[0]):
            return None
        # An end that is further away than any can be was written by another clock, and says nothing.
        return held[1] if now < held[1] <= now + LEASE else None

    def _me(self) -> bytes:
        return msgpack.encode(this(self._opened))


def _is_gone(owner: bytes) -> bool:
    """Return True if the owner is a process that is known to be gone. An unreadable owner counts as there, until the
    lease runs out."""
    try:
        return is_gone(_who(owner))
    except MsgspecError:
        return False
