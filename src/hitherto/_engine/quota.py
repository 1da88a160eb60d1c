"""Quota: how much a workspace may hold, and the disk that has no more.

The quota is a part of the workspace's description, so every process that has the store open goes by the same one: each
looks at it again every few seconds. The content of messages counts, and attachments as they are stored. The bytes are
counted from the rows now and then; in between, the writes of this process are added. So the quota is a soft one: writes
of other processes, and writes under way, may come on top of it.

A write that makes a store smaller is never refused, and neither are small ones: titles, labels, holds, and an answer
on its way, which would be lost.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ..errors import HithertoError, InvalidArgument, StorageFull
from ..events import CapacityWarning, warn
from ..model import to_datetime

if TYPE_CHECKING:
    from .context import StoreContext

_LOOK_SECONDS: Final = 2.0  # after which the quota is looked at again
_COUNT_SECONDS: Final = 5.0  # after which what is used is counted again
_PATIENCE: Final = 20  # a count is not repeated before so many times as long as it took
_NEARLY: Final = 0.9  # of the quota
_HINT: Final = "purge conversations, which always works, or allow more: store.set_quota"


class Quota:
    """How much the workspace of a store may hold."""

    def __init__(self, engine: "StoreContext") -> None:
        self._backend, self._workspace, self._clock = engine.backend, engine.workspace, engine.clock
        self._listeners, self._background = engine.listeners, engine.background
        self.limit = engine.workspace.meta.quota_bytes  # 0: none
        self._look_again = time.monotonic() + _LOOK_SECONDS
        self._lock = threading.Lock()
        self._used = 0  # when it was counted, and what came since
        self._count_again = self._may_count = 0.0
        self._told = 0  # 1: that it is nearly used up, 2: that it is
        self._full_since = -1  # the number of writes that had been made when the disk was found full
        self._reserve = True

    def set(self, limit: int | None) -> None:
        """Keep this quota in the store."""
        if limit is not None and (type(limit) is not int or not 0 < limit < 1 << 63):
            raise InvalidArgument("a quota is a number of bytes from 1 up, or None")
        self._workspace.describe(lambda meta: replace(meta, quota_bytes=limit or 0))
        self.look()

    def look(self) -> int:
        """Return the quota as it stands in the store now; 0: none."""
        self._workspace.refresh()
        limit = self._workspace.meta.quota_bytes
        if limit != self.limit:
            self.limit, self._told = limit, 0
        return limit

    # -- before a write

    def admit(self, count: Callable[[], int]) -> None:
        """Raise `StorageFull` if so many bytes do not fit. Called before every write, so without a quota it does next
        to nothing, and does not count."""
        now = time.monotonic()
        if now > self._look_again:
            self._look_again = now + _LOOK_SECONDS
            try:
                self.look()
            except HithertoError as error:  # a missing key, say: the call that needs it raises
                warn(f"the quota cannot be looked at: {type(error).__name__}")
        if self.limit:
            self._admit(count(), now)

    def _admit(self, size: int, now: float) -> None:
        with self._lock:
            if now >= self._count_again or (self._used + size > self.limit and now >= self._may_count):
                self._count()
            limit = self.limit
            fits = self._used + size <= limit
            if fits:
                self._used += size
            used = self._used
            level = (1 if used >= _NEARLY * limit else 0) if fits else 2
            is_news = level > self._told
            self._told = max(level, self._told)
        if is_news:  # not under the lock: a log handler that is called because of it may write to the store
            self._warn("quota", used, limit)
        if not fits:
            what = f"the workspace holds {used:,} of {limit:,} bytes that it may hold"
            raise StorageFull(f"{what}; {size:,} more do not fit", hint=_HINT)

    def _count(self) -> None:
        began = time.monotonic()
        self._used = self._backend.used()
        now = time.monotonic()
        self._may_count = now + _PATIENCE * (now - began)
        self._count_again = max(self._may_count, now + _COUNT_SECONDS)
        if self._used < _NEARLY * self.limit:
            self._told = 0

    def count_again(self) -> None:
        """Count the used bytes before the next write: something was removed."""
        self._count_again = self._may_count = 0.0

    # -- and what the disk says

    def report_full(self, error: StorageFull) -> None:
        """Note that a write was refused. Emits that the disk is full, once, until another write has been committed."""
        written = self._background.writes
        if error.hint != _HINT and self._full_since != written:
            self._full_since = written
            disk = self._backend.disk()
            if disk is not None:
                self._warn("disk", disk.total - disk.free, disk.total)

    def look_at_disk(self) -> None:
        """Check that the ballast for purges is there, and restore it if it is not. Warns once if that fails."""
        disk = self._backend.disk()
        if disk is not None and not disk.reserve and self._backend.scrub():
            disk = self._backend.disk()
        had, self._reserve = self._reserve, disk is None or disk.reserve
        if disk is not None and had and not self._reserve:
            warn(f"{self._backend.info.location}: no room is left to be set aside, so a purge may fail")
            self._warn("disk", disk.total - disk.free, disk.total)

    def _warn(self, what: str, used: int, limit: int) -> None:
        self._listeners.emit(CapacityWarning(to_datetime(self._clock()), what, used, limit))
