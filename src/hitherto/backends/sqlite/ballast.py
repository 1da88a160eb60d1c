"""Ballast: a file of zeros beside a store, whose space makes a purge possible on a full disk.

SQLite writes into the WAL before it frees anything, so on a full disk not even deleting works. The file
`<path>-ballast` reserves some space. A removal that finds no free space deletes the ballast, removes rows, shrinks the
files, and creates the ballast again (`disk_space`).

In between, free pages may hold purged text. So the ballast is also a mark. It is deleted durably before such a removal,
and created only when there is no free page; both happen under the write lock. **No ballast: the free pages may hold
text**, and `scrub` returns all of them to the disk first. If a process is killed in between, the mark remains for the
next one.

While a store is written to, the ballast has its largest size, if the disk has plenty: the limit of the WAL depends on
it (`disk_space`), and a checkpoint costs two syncs. Beside a closed store it is an eighth of the store's file.

Another program's file may have that name. A ballast is a regular file of at most 4 MiB that contains only zeros. Any
other file counts as no ballast, and is neither changed nor removed. A foreign file of zeros is no loss.
"""

import os
from contextlib import suppress

import apsw

from ..._system import own_files
from ...errors import CannotOpen, StorageError
from .connections import transaction
from .files import free_bytes, sync

LEAST, MOST = 256 << 10, 4 << 20  # bytes
_PART = 8  # the ballast is one part in eight of the store's file
_FREE_PART = 4  # and up to one part in four of the free space while the store is open
_SMALL, _LITTLE = 512 << 10, 4 << 10  # bytes: a closed store smaller than the first keeps a ballast of the second size
_FOR_OPENING = 64 << 10  # bytes that SQLite needs to open a database: the index of the WAL


class Ballast:
    """The file beside the store of this path. Methods that change it need the write lock, except `give_for_opening`."""

    def __init__(self, store: str) -> None:
        self._store = store
        self.path = f"{store}-ballast"
        self._proven: tuple[int, ...] = ()  # the state of the file when all its bytes were verified

    @property
    def size(self) -> int:
        """The size in bytes; 0 without a ballast, or if the file is not a ballast."""
        try:
            return os.lstat(self.path).st_size if self.is_own else 0
        except OSError:  # another process deleted it at this moment
            return 0

    def _is_proven(self, found: os.stat_result) -> bool:
        """Read the whole file once, and again only after it has changed."""
        if _state(found) != self._proven:
            if found.st_size > MOST:
                return False
            if own_files.read_start(self.path, found.st_size) != bytes(found.st_size):
                return False
            self._proven = _state(found)
        return True

    def _truncate(self, size: int) -> None:
        """Truncate by a descriptor, so that it is the examined file or none."""
        with own_files.open_descriptor(self.path, own_files.TO_CHANGE) as descriptor:
            if own_files.find_problem(os.fstat(descriptor), None) is None:
                os.ftruncate(descriptor, size)

    @property
    def _folded_size(self) -> int:
        """The size beside a closed store."""
        size = os.path.getsize(self._store)
        return _LITTLE if size < _SMALL else min(MOST, max(LEAST, size // _PART))

    @property
    def wanted_size(self) -> int:
        """The size beside an open store. On a nearly full disk, most of the free space is left to writers."""
        try:
            return max(LEAST, self._folded_size, min(MOST, free_bytes(self._store) // _FREE_PART))
        except OSError:
            return LEAST

    def is_enough(self, least: int) -> bool:
        """Tell whether the size is near enough: the ballast does not grow with every page of the store."""
        return 4 * self.size >= 3 * max(least, self.wanted_size)

    @property
    def is_own(self) -> bool:
        """Tell whether the file is a ballast. It is empty if `give_for_opening` took all of it."""
        try:
            found = own_files.examine(self.path, own_files.trusted_owners(self._store))
            return found is not None and self._is_proven(found)
        except (CannotOpen, OSError):
            return False

    def give_up(self) -> None:
        """Delete the file, durably."""
        if self.size:
            try:
                os.unlink(self.path)
                sync(os.path.dirname(self.path))
            except FileNotFoundError:  # another process deleted it
                return
            except OSError as error:
                hint = "check the permissions of its directory"
                raise StorageError(f"{self.path} cannot be given up: {error.strerror}", hint=hint) from error

    def give_for_opening(self) -> bool:
        """Free the few bytes that opening a database needs. False if the ballast has too few."""
        left = self.size - _FOR_OPENING
        if left < 0:
            return False
        try:
            self._truncate(left)  # size 0 counts as none: then `scrub` checks the free pages needlessly
        except OSError:
            return False
        return True

    def fold(self) -> None:
        """Shrink the ballast when the store is closed, to an eighth of the store, until the next write.

        A small store keeps a tiny ballast, which marks that its free pages hold nothing."""
        with suppress(OSError):
            if self.size > self._folded_size:
                self._truncate(self._folded_size)

    def lay(self, least: int = LEAST) -> bool:
        """Create or enlarge the ballast as far as the free space allows. False if there is none afterwards."""
        size = min(max(least, self.wanted_size), self.size + free_bytes(self._store))
        if size <= self.size:
            return self.size > 0
        try:  # an existing file that counts as none is foreign, and is left alone
            descriptor = os.open(self.path, own_files.TO_CHANGE) if self.is_own else own_files.create(self.path)
        except OSError:
            return False
        try:
            _fill(descriptor, size)
            self._proven = _state(os.fstat(descriptor))  # the old part was verified, and the new part is zeros
        except OSError:  # another process took the free space meanwhile
            with suppress(OSError):
                os.unlink(self.path)
        finally:
            os.close(descriptor)
        return self.size > 0


def _state(found: os.stat_result) -> tuple[int, ...]:
    """Return the metadata that changes when the file is replaced or written to."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _fill(descriptor: int, size: int) -> None:
    """Allocate real blocks, not a sparse file."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)


def lay_if_clean(connection: apsw.Connection, ballast: Ballast, least: int = LEAST) -> bool:
    """Create the ballast, unless a free page may hold text. True if there is a ballast afterwards."""
    if ballast.is_enough(least):
        return True
    with transaction(connection):
        if ballast.size == 0 and connection.pragma("freelist_count"):
            return False
        return ballast.lay(least)
