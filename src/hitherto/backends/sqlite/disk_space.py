"""Writing and purging on a disk that is full, or nearly full.

Before a write is refused, the WAL is checkpointed: it holds the same page many times. A batch that only removes may
also use the space of the ballast. Two rules make that small space enough:

- Removals run with `secure_delete = FAST`, which overwrites only pages that are written anyway. A page that becomes
  free needs no room in the WAL, so a gigabyte can be removed with a few megabytes. The vacuum then truncates the file.
- The part of the WAL that makes the database larger (`growth`) is checkpointed early, and may not exceed half of the
  ballast. So the last checkpoint always fits.

Every method takes a connection that is not in a transaction. The lease maps SQLite's errors.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import apsw

from ...errors import CommitUnknown, StorageFull
from .ballast import LEAST, Ballast, lay_if_clean
from .connections import empty_wal, transaction
from .files import free_bytes, full_error, lacks_room

OFTEN = LEAST // 8  # bytes: a smaller write is not checked beforehand; the least between two looks at the WAL
_WORTHWHILE = 8 << 10  # bytes: with fewer in the WAL, a checkpoint frees too little
_PATIENCE_SECONDS = 0.25  # how long to wait for readers before a step is postponed
_STEP, _TRIES = 256, 6  # pages returned in one transaction, and attempts with fewer pages

_T = TypeVar("_T")
_Work = Callable[[Callable[[], None]], _T]  # it calls its argument when it holds the write lock


class Room:
    """The disk space of one store."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self._path, self._timeout_seconds = path, timeout_seconds
        self.ballast = Ballast(path)
        self.is_outgrown = False  # the WAL is large, and a checkpoint would not fit
        self._unmoved = OFTEN + 1  # bytes written since the last look at the WAL: the first write looks
        self._look_after = OFTEN

    def set_aside(self, connection: apsw.Connection, least: int = LEAST) -> bool:
        return lay_if_clean(connection, self.ballast, least)

    def is_about(self, error: apsw.Error | CommitUnknown, connection: apsw.Connection) -> bool:
        """Tell whether the error says that the disk is full."""
        if isinstance(error, CommitUnknown):
            return isinstance(error.reason, StorageFull)
        return lacks_room(error, connection)

    def expect(self, connection: apsw.Connection, weight: int) -> None:
        """Raise `StorageFull` for a write that does not fit, before the WAL takes the last free bytes.

        A write needs its size twice: in the WAL, and in the database at the checkpoint. The part of the WAL that cannot
        be checkpointed may not exceed the ballast."""
        fits = self._fits(connection, weight) or (self.gain_room(connection) and self._fits(connection, weight))
        if not fits and weight:
            raise full_error(self._path, f"{weight:,} more would take twice that, for a while")

    def _fits(self, connection: apsw.Connection, weight: int) -> bool:
        free = free_bytes(self._path)
        self.is_outgrown = growth(connection, self._path) > max(free, self._wal_limit // 2)
        return not self.is_outgrown and weight <= free and 2 * weight <= free + size_of(f"{self._path}-wal")

    @property
    def _wal_limit(self) -> int:
        """The most bytes in the WAL that make the database larger: a purge still fits beside them."""
        return max(LEAST, self.ballast.size)

    def note_write(self, connection: apsw.Connection, weight: int) -> None:
        """Count a write, and checkpoint before the WAL needs more space than the ballast has."""
        self._unmoved += weight
        if self._unmoved <= self._look_after:
            return
        try:
            self.set_aside(connection)
            allowed = self._wal_limit
            if growth(connection, self._path) > allowed // 4:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._unmoved, self._look_after = 0, max(OFTEN, allowed // 32)
        except apsw.Error:  # the write is committed, so this must not raise: the next write looks again
            self.is_outgrown = True

    def run_removal(self, connection: apsw.Connection, work: _Work[_T]) -> _T:
        """Run work that only removes, also on a full disk."""
        try:
            return work(lambda: None)
        except apsw.Error as error:
            if not self.is_about(error, connection):
                raise
        return self.run_with_ballast(connection, work)

    def run_with_ballast(self, connection: apsw.Connection, work: _Work[_T]) -> _T:
        """Free space (checkpoint the WAL, delete the ballast file), then run `work`."""
        self.gain_room(connection)
        with sparing_writes(connection):
            try:
                return work(self.ballast.give_up)
            finally:
                self.shrink(connection)

    def gain_room(self, connection: apsw.Connection) -> bool:
        """Checkpoint the WAL to gain space, since it holds the same page many times. False if that gained nothing."""
        try:
            return size_of(f"{self._path}-wal") > _WORTHWHILE and self.scrub(connection)
        except apsw.Error:  # the disk is as full as the error said
            return False

    def scrub(self, connection: apsw.Connection) -> bool:
        """Remove deleted text from free pages and from the WAL. False if that has to wait."""
        if self.ballast.size == 0:  # a removal used the ballast: free pages may hold text
            return self.shrink(connection)
        try:
            emptied = empty_wal(connection, self._timeout_seconds)
            self.set_aside(connection)
            return emptied
        except apsw.Error as error:
            if not lacks_room(error, connection):
                raise
        size = self.ballast.size  # this removes nothing, so the ballast must be restored in full
        with transaction(connection):  # the database has to grow before the WAL can be emptied
            self.ballast.give_up()
        return self.shrink(connection, size)

    def shrink(self, connection: apsw.Connection, least: int = LEAST) -> bool:
        """Shrink the files as far as possible, with no free space, and create the ballast again.

        The ballast has at least the size `least` if there is space. False if that has to wait."""
        try:
            shrunk = shrink_files(connection, self._path, self._timeout_seconds)
            return shrunk and self.set_aside(connection, least)
        except apsw.Error:  # the removal is committed; without a ballast, `scrub` tries again
            return False


def size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


@contextmanager
def sparing_writes(connection: apsw.Connection) -> Iterator[None]:
    """Keep freed pages, and dirty pages before the commit, out of the WAL. Freed pages keep their content meanwhile."""
    try:
        for pragma in ("secure_delete = FAST", "cache_spill = OFF"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        yield
    finally:
        for pragma in ("secure_delete = ON", "cache_spill = ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()


def growth(connection: apsw.Connection, path: str) -> int:
    """Return by how many bytes the database file grows when the whole WAL is checkpointed."""
    return int(connection.pragma("page_count") * connection.pragma("page_size")) - os.path.getsize(path)


def shrink_files(connection: apsw.Connection, path: str, timeout_seconds: float) -> bool:
    """Return all free pages to the disk, a few at a time, with almost no free space.

    The WAL is checkpointed first, if that fits. If not, the vacuum comes first: pages that it cuts off need no
    checkpoint. False if a reader is in the way, or if even that needs too much space."""
    step, tries = _STEP, 0
    fits = growth(connection, path) <= free_bytes(path)
    if fits and not _empty(connection, timeout_seconds):
        return False
    while free := connection.pragma("freelist_count"):
        try:
            with transaction(connection):
                connection.execute(f"PRAGMA incremental_vacuum({step})").fetchall()
        except apsw.FullError:
            step, tries = max(1, step // 4), tries + 1
            if tries > _TRIES:
                return False
            continue
        if connection.pragma("freelist_count") >= free:  # another program rewrote the file without auto_vacuum
            return True
        if growth(connection, path) <= free_bytes(path) and not _empty(connection, timeout_seconds):
            return False
    return _empty(connection, timeout_seconds)


def _empty(connection: apsw.Connection, timeout_seconds: float) -> bool:
    """Empty the WAL, and wait a moment for readers. False if they hold it for longer, or the disk is full."""
    deadline = time.monotonic() + min(_PATIENCE_SECONDS, timeout_seconds)
    try:
        while not empty_wal(connection, timeout_seconds):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
    except apsw.FullError:
        return False
    return True
