"""Ballast: space that is set aside beside a store, so that something can be purged on a disk that is full.

SQLite writes into the WAL before it frees anything, so on a full disk not even deleting works. A file of zeros beside
the store, `<path>-ballast`, holds some space: whoever removes something and finds no room gives it up, removes, makes
the files smaller, and lays it down again (`disk_space`).

Meanwhile free pages may hold what was purged. So the ballast is a mark, too: it is given up, and that is on the disk,
before anything is removed that way, and it is laid down only when there is no free page, both under the lock of
writers. **No ballast: the free pages may hold text**, and `scrub` gives them all back first. Whoever is killed in
between leaves that mark to the next.

While a store is written to, the ballast is as large as it may be, if the disk has plenty: how much may gather in the
WAL goes by it (`disk_space`), and a checkpoint costs two syncs. Beside a store that nobody has open it is an eighth of
the store's file.

Something else may lie under that name. A ballast is a regular file of at most 4 MiB with nothing but zeros in it: what
is different counts as no ballast, and is neither changed nor removed. A file of zeros that is not ours is no loss.
"""

import os
from contextlib import suppress

import apsw

from ... import _own_files
from ...errors import CannotOpen, StorageError
from .connections import transaction
from .files import free_bytes, sync

LEAST, MOST = 256 << 10, 4 << 20  # bytes
_PART = 8  # of the store's file, one is set aside
_FREE_PART = 4  # of what is free, one is set aside while the store is open
_SMALL, _LITTLE = 512 << 10, 4 << 10  # bytes: beside a store of less that nobody has open, so much stands for it
_FOR_OPENING = 64 << 10  # bytes that SQLite needs to open a database: the index of the WAL


class Ballast:
    """The file beside the store of this path. Nothing here but `give_for_opening` may be called by whoever has not the
    lock of writers."""

    def __init__(self, store: str) -> None:
        self._store = store
        self.path = f"{store}-ballast"
        self._proven: tuple[int, ...] = ()  # the state of the file when all its bytes were read

    @property
    def size(self) -> int:
        """0 if there is none: given up, never laid down, or something that is not ours."""
        try:
            return os.lstat(self.path).st_size if self.is_own else 0
        except OSError:  # another process gave it up this moment
            return 0

    def _is_proven(self, found: os.stat_result) -> bool:
        """Read all of it, once for as long as it does not change."""
        if _state(found) != self._proven:
            if found.st_size > MOST:
                return False
            if _own_files.read_start(self.path, found.st_size) != bytes(found.st_size):
                return False
            self._proven = _state(found)
        return True

    def _truncate(self, size: int) -> None:
        """By a descriptor, so that it is the file that was examined, or none."""
        with _own_files.open_descriptor(self.path, _own_files.TO_CHANGE) as descriptor:
            if _own_files.find_problem(os.fstat(descriptor), None) is None:
                os.ftruncate(descriptor, size)

    @property
    def _folded_size(self) -> int:
        """The size beside a store that nobody has open."""
        size = os.path.getsize(self._store)
        return _LITTLE if size < _SMALL else min(MOST, max(LEAST, size // _PART))

    @property
    def wanted_size(self) -> int:
        """The size beside a store that is written to. Where little is free, most of it is left to those who write."""
        try:
            return max(LEAST, self._folded_size, min(MOST, free_bytes(self._store) // _FREE_PART))
        except OSError:
            return LEAST

    def is_enough(self, least: int) -> bool:
        """It is not made larger with every page that the store grows by."""
        return 4 * self.size >= 3 * max(least, self.wanted_size)

    @property
    def is_own(self) -> bool:
        """There is a file of ours, which is empty if all of it was given for opening."""
        try:
            found = _own_files.examine(self.path, _own_files.trusted_owners(self._store))
            return found is not None and self._is_proven(found)
        except (CannotOpen, OSError):
            return False

    def give_up(self) -> None:
        """All of it. That it is gone is durable afterwards."""
        if self.size:
            try:
                os.unlink(self.path)
                sync(os.path.dirname(self.path))
            except FileNotFoundError:  # another process did
                return
            except OSError as error:
                hint = "check the permissions of its directory"
                raise StorageError(f"{self.path} cannot be given up: {error.strerror}", hint=hint) from error

    def give_for_opening(self) -> bool:
        """A little of it. False if there is none to give."""
        left = self.size - _FOR_OPENING
        if left < 0:
            return False
        try:
            self._truncate(left)  # 0 is none: then the free pages are looked at, for nothing
        except OSError:
            return False
        return True

    def fold(self) -> None:
        """Nobody has the store open any more: give back what is more than an eighth of it, until somebody writes again.
        Beside a small store only a little stays, which says that the free pages hold nothing."""
        with suppress(OSError):
            if self.size > self._folded_size:
                self._truncate(self._folded_size)

    def lay(self, least: int = LEAST) -> bool:
        """Set aside what is wanted, or what there is. False if there is nothing to set aside, or not here."""
        size = min(max(least, self.wanted_size), self.size + free_bytes(self._store))
        if size <= self.size:
            return self.size > 0
        try:  # what is there and counts as none is foreign, and is left alone
            descriptor = os.open(self.path, _own_files.TO_CHANGE) if self.is_own else _own_files.create(self.path)
        except OSError:
            return False
        try:
            _fill(descriptor, size)
            self._proven = _state(os.fstat(descriptor))  # what was there is proven, and what came is zeros
        except OSError:  # it was taken by others meanwhile
            with suppress(OSError):
                os.unlink(self.path)
        finally:
            os.close(descriptor)
        return self.size > 0


def _state(found: os.stat_result) -> tuple[int, ...]:
    """What changes when the file is another, or is written to."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _fill(descriptor: int, size: int) -> None:
    """Real blocks, no hole."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)


def lay_if_clean(connection: apsw.Connection, ballast: Ballast, least: int = LEAST) -> bool:
    """Lay the ballast down, if no free page may hold text. True if there is one afterwards."""
    if ballast.is_enough(least):
        return True
    with transaction(connection):
        if ballast.size == 0 and connection.pragma("freelist_count"):
            return False
        return ballast.lay(least)
