"""Room: what a store does on a disk that is nearly full, or full.

Before a write is refused, what lies in the WAL is moved into the database: the WAL holds the same page many times. What
only removes gets the ballast on top. Two things make that little enough. Removing with `secure_delete = FAST`
overwrites what goes only on pages that are written anyway: a page that becomes free needs no room in the WAL, so that a
gigabyte goes with a few megabytes; the vacuum then takes these pages off the file. And what lies in the WAL and makes
the database larger (`growth`) is moved there early, and may not outgrow a half of the ballast: moving the rest always
fits.

Every method takes a connection that is not in a transaction; SQLite's errors are translated by who lent it.
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

OFTEN = LEAST // 8  # bytes of a write that is expected to fit; the least after which it is looked what the WAL holds
_WORTHWHILE = 8 << 10  # bytes in the WAL that are moved when there is no more room
_PATIENCE_SECONDS = 0.25  # for readers, before a step is left to another time
_STEP, _TRIES = 256, 6  # pages given back in one transaction, and how often it is tried with fewer

_T = TypeVar("_T")
_Work = Callable[[Callable[[], None]], _T]  # it calls what it is given when it has the lock of writers


class Room:
    """The room for one store."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self._path, self._timeout_seconds = path, timeout_seconds
        self.ballast = Ballast(path)
        self.is_outgrown = False  # there is much in the WAL, and no room to move it
        self._unmoved = OFTEN + 1  # bytes that were written since we looked how much it is: the first write looks
        self._look_after = OFTEN

    def set_aside(self, connection: apsw.Connection, least: int = LEAST) -> bool:
        return lay_if_clean(connection, self.ballast, least)

    def is_about(self, error: apsw.Error | CommitUnknown, connection: apsw.Connection) -> bool:
        """Is that what the error is about?"""
        if isinstance(error, CommitUnknown):
            return isinstance(error.reason, StorageFull)
        return lacks_room(error, connection)

    def expect(self, connection: apsw.Connection, weight: int) -> None:
        """Refuse what does not fit before the WAL has taken the last that is free: it is written there, and once more
        when it is moved into the database. What cannot be moved there may not outgrow the ballast."""
        fits = self._fits(connection, weight) or (self.gain_room(connection) and self._fits(connection, weight))
        if not fits and weight:
            raise full_error(self._path, f"{weight:,} more would take twice that, for a while")

    def _fits(self, connection: apsw.Connection, weight: int) -> bool:
        free = free_bytes(self._path)
        self.is_outgrown = growth(connection, self._path) > max(free, self._wal_limit // 2)
        return not self.is_outgrown and weight <= free and 2 * weight <= free + size_of(f"{self._path}-wal")

    @property
    def _wal_limit(self) -> int:
        """How much may be in the WAL that makes the database larger: so that there is room for a purge beside it."""
        return max(LEAST, self.ballast.size)

    def note_write(self, connection: apsw.Connection, weight: int) -> None:
        """Move what is in the WAL into the database before that would take more room than the ballast can give."""
        self._unmoved += weight
        if self._unmoved <= self._look_after:
            return
        try:
            self.set_aside(connection)
            allowed = self._wal_limit
            if growth(connection, self._path) > allowed // 4:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._unmoved, self._look_after = 0, max(OFTEN, allowed // 32)
        except apsw.Error:  # what was written is kept, and must not be said not to be: the next one looks again
            self.is_outgrown = True

    def run_removal(self, connection: apsw.Connection, work: _Work[_T]) -> _T:
        """Do work that only removes, on a full disk too."""
        try:
            return work(lambda: None)
        except apsw.Error as error:
            if not self.is_about(error, connection):
                raise
        return self.run_with_ballast(connection, work)

    def run_with_ballast(self, connection: apsw.Connection, work: _Work[_T]) -> _T:
        """Do it with the ballast, and with what the WAL has taken."""
        self.gain_room(connection)
        with sparing_writes(connection):
            try:
                return work(self.ballast.give_up)
            finally:
                self.shrink(connection)

    def gain_room(self, connection: apsw.Connection) -> bool:
        """Was there something in the WAL that could be moved into the database? It holds the same page many times."""
        try:
            return size_of(f"{self._path}-wal") > _WORTHWHILE and self.scrub(connection)
        except apsw.Error:  # then it is as full as it was said to be
            return False

    def scrub(self, connection: apsw.Connection) -> bool:
        if self.ballast.size == 0:  # something was removed by force: what is free may hold text
            return self.shrink(connection)
        try:
            emptied = empty_wal(connection, self._timeout_seconds)
            self.set_aside(connection)
            return emptied
        except apsw.Error as error:
            if not lacks_room(error, connection):
                raise
        size = self.ballast.size  # who does not remove may borrow it, and has to give all of it back
        with transaction(connection):  # the database has to become larger before the WAL can be emptied
            self.ballast.give_up()
        return self.shrink(connection, size)

    def shrink(self, connection: apsw.Connection, least: int = LEAST) -> bool:
        """Make the files as small as they can be, without room to do it in, and lay the ballast down again, of at
        `least` this size if there is room. False if that has to wait."""
        try:
            shrunk = shrink_files(connection, self._path, self._timeout_seconds)
            return shrunk and self.set_aside(connection, least)
        except apsw.Error:  # what was removed is removed; there is no ballast, so `scrub` tries again
            return False


def size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


@contextmanager
def sparing_writes(connection: apsw.Connection) -> Iterator[None]:
    """Pages that become free take no room in the WAL, and neither does what only waits for the end of the transaction.
    They keep what was on them."""
    try:
        for pragma in ("secure_delete = FAST", "cache_spill = OFF"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        yield
    finally:
        for pragma in ("secure_delete = ON", "cache_spill = ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()


def growth(connection: apsw.Connection, path: str) -> int:
    """By how much the database becomes larger when all that is in the WAL is moved into it."""
    return int(connection.pragma("page_count") * connection.pragma("page_size")) - os.path.getsize(path)


def shrink_files(connection: apsw.Connection, path: str, timeout_seconds: float) -> bool:
    """Give all free pages back to the disk, a few at a time, with next to no room to do it in. False if a reader is in
    the way, or there is not even that much room.

    What lies in the WAL is moved into the database first, if it fits. If not, the vacuum comes first: what it takes off
    the end need not be moved."""
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
        if connection.pragma("freelist_count") >= free:  # a file that another program has written anew: as it is
            return True
        if growth(connection, path) <= free_bytes(path) and not _empty(connection, timeout_seconds):
            return False
    return _empty(connection, timeout_seconds)


def _empty(connection: apsw.Connection, timeout_seconds: float) -> bool:
    """Those who read for a moment are waited for."""
    deadline = time.monotonic() + min(_PATIENCE_SECONDS, timeout_seconds)
    try:
        while not empty_wal(connection, timeout_seconds):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
    except apsw.FullError:
        return False
    return True
