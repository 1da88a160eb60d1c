"""Ballast: space that is set aside beside a store, so that something can be purged on a disk that is full.

SQLite writes into the WAL before it frees anything, so on a full disk not even deleting works. A file of zeros beside
the store, `<path>-ballast`, holds some space: whoever removes something and finds no room gives it up, removes, makes
the files smaller, and lays it down again (`_room`).

Meanwhile free pages may hold what was purged. So the ballast is a mark, too: it is given up, and that is on the disk,
before anything is removed that way, and it is laid down only when there is no free page, both under the lock of
writers. **No ballast: the free pages may hold text**, and `scrub` gives them all back first. Whoever is killed in
between leaves that mark to the next.
"""

import os
import stat
from contextlib import suppress

import apsw

from ..errors import StorageError
from ._connections import transaction
from ._files import free_bytes, sync

LEAST, MOST = 256 << 10, 4 << 20  # bytes
_PART = 8  # of the store's file, one is set aside
_SMALL, _LITTLE = 512 << 10, 4 << 10  # bytes: beside a store of less that nobody has open, so much stands for it
_FOR_OPENING = 64 << 10  # bytes that SQLite needs to open a database: the index of the WAL


class Ballast:
    """The file beside the store of this path. Nothing here but `give_for_opening` may be called by whoever has not the
    lock of writers."""

    def __init__(self, store: str) -> None:
        self._store = store
        self.path = f"{store}-ballast"

    @property
    def size(self) -> int:
        """0 if there is none: given up, never laid down, or something that is no file."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    @property
    def wanted(self) -> int:
        try:
            return min(MOST, max(LEAST, os.path.getsize(self._store) // _PART))
        except OSError:
            return LEAST

    @property
    def is_enough(self) -> bool:
        """It is not made larger with every page that the store grows by."""
        return 4 * self.size >= 3 * self.wanted

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
            os.truncate(self.path, left)  # 0 is none: then the free pages are looked at, for nothing
        except OSError:
            return False
        return True

    def fold(self) -> None:
        """Nobody has the store open any more: beside a small one the ballast would be half of all there is, so most of
        it is given back until somebody writes again. The little that stays says that the free pages hold nothing."""
        with suppress(OSError):
            if self.size > _LITTLE and os.path.getsize(self._store) < _SMALL:
                os.truncate(self.path, _LITTLE)

    def lay(self) -> bool:
        """Set aside what is wanted, or what there is. False if there is nothing to set aside, or not here."""
        size = min(self.wanted, self.size + free_bytes(self._store))
        if size <= self.size:
            return self.size > 0
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            _fill(descriptor, size)
        except OSError:  # it was taken by others meanwhile
            with suppress(OSError):
                os.unlink(self.path)
        finally:
            os.close(descriptor)
        return self.size > 0


def _fill(descriptor: int, size: int) -> None:
    """Real blocks, no hole."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)


def lay_if_clean(connection: apsw.Connection, ballast: Ballast) -> bool:
    """Lay the ballast down, if no free page may hold text. True if there is one afterwards."""
    if ballast.is_enough:
        return True
    with transaction(connection):
        if ballast.size == 0 and connection.pragma("freelist_count"):
            return False
        return ballast.lay()
