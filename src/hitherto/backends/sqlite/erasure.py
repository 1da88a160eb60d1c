"""Erasure: the bytes of what was removed leave the files.

`secure_delete` overwrites rows and pages that are deleted. It does not reach copies: when SQLite balances a b-tree it
moves rows to other pages and leaves their bytes where they were, in the unused part of a page that stays in use. No
statement overwrites those bytes. But a table that is written anew holds nothing that was removed before. So after
something was removed, SQLite writes the tables anew: a small store with VACUUM, a larger one in steps (`_rebuild`).
Nothing here writes into the file past SQLite.

Three numbers in the row of each workspace say how far that is. They only grow:

- `removals`: how many commits have removed something;
- `rebuilt`: the `removals` that were counted before the last complete rebuild began;
- `erased`: the `rebuilt` that was read before the WAL was truncated. The old pages have left the file and the WAL.

Each is set to a value that was read before the work began. So a process never vouches for what another one removed
while it worked, and one that is killed leaves its work to the next. All is erased when `erased` equals `removals`.
"""

import os
import time
from typing import Any

import apsw

from .connections import Pool, empty_wal, patience, transaction, view
from .files import free_bytes, lacks_room
from .rebuild import Rebuild, is_under_way

SMALL = 16 << 20  # bytes: VACUUM writes a store of this size anew within the time that a purge has
_PATIENCE_SECONDS = 0.5  # for other writers, before a step is left to another time
_MARGIN = 64 << 10  # bytes that are left free on the disk

_Counts = dict[int, int]  # by the place of the workspace


class Erasure:
    """What has to leave one file."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._steps = Rebuild(pool)

    def is_done(self) -> bool:
        with self._pool.lease() as connection:
            return not _ahead(connection, "removals", "erased")

    def advance(self, deadline: float | None = None) -> bool:
        """Erase what was removed before this call. False if something of it is left: a reader holds old pages, other
        writers were busy, the disk has no room, or the store is large. For a large one steps are taken until the
        deadline; without a deadline none."""
        with self._pool.lease() as connection:
            wanted = _ahead(connection, "removals", "erased")
        if not wanted:
            return True
        if not self._rebuild(wanted, deadline) or not self._settle():
            return False
        with self._pool.lease() as connection:
            return _has_reached(connection, "erased", wanted)

    def _rebuild(self, wanted: _Counts, deadline: float | None) -> bool:
        """Write all tables anew, unless that was done since these removals. False if that has to wait."""
        patient_until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with self._pool.lease() as connection:
                with view(connection):  # no rebuild in steps has begun when the removals are counted
                    if _has_reached(connection, "rebuilt", wanted):  # perhaps by another process
                        return True
                    counts = _ahead(connection, "removals", "rebuilt")
                    in_steps = is_under_way(connection)
                size = connection.pragma("page_count") * connection.pragma("page_size")
            if in_steps or size > SMALL:
                if deadline is None:
                    return False
                if not self._steps.go_on(deadline):
                    return False
            elif vacuum(self._pool):
                return self._note("rebuilt", counts)
            elif time.monotonic() > patient_until or not _has_room(self._pool.path, size):
                return False

    def _settle(self) -> bool:
        """Truncate the WAL, which moves the new pages into the file and gives the old ones up.

        Return False if a reader is in the way, or if the disk has no room for the pages: another writer may have taken
        the room that was there before the rebuild."""
        with self._pool.lease() as connection:
            counts = _ahead(connection, "rebuilt", "erased")
            try:
                if counts and not empty_wal(connection, self._pool.timeout_seconds):
                    return False
            except apsw.Error as error:
                if not lacks_room(error, connection):
                    raise
                return False
        return self._note("erased", counts)

    def _note(self, column: str, counts: _Counts) -> bool:
        """Set a number in the row of each workspace. False if the disk has no room for that."""
        with self._pool.lease() as connection:
            try:
                with transaction(connection):
                    for place, count in counts.items():
                        query = f"UPDATE workspace SET {column} = max({column}, ?) WHERE place = ?"
                        connection.execute(query, (count, place))
            except apsw.Error as error:
                if not lacks_room(error, connection):
                    raise
                return False
        return True


def vacuum(pool: Pool) -> bool:
    """Let SQLite write the whole file anew. False if others write, or the disk has no room for a second copy in the
    WAL. On a connection of its own: VACUUM wants no other statement beside it."""
    with pool.mapping_errors():
        connection = pool.connect()
        try:
            size = connection.pragma("page_count") * connection.pragma("page_size")
            if not _has_room(pool.path, size):
                return False
            connection.set_busy_handler(patience(_PATIENCE_SECONDS / 4))
            in_memory = size <= SMALL  # then there is no copy in another file, even for a moment
            connection.execute(f"PRAGMA temp_store = {'MEMORY' if in_memory else 'FILE'}").fetchall()
            connection.execute("VACUUM").fetchall()
            return True
        except apsw.BusyError:
            return False
        except apsw.Error as error:
            if not lacks_room(error, connection):
                raise
            return False
        finally:
            pool.drop(connection)


def _has_room(path: str, size: int) -> bool:
    """For a second copy of a database of this size in the WAL, where each page has a header, and for moving that into
    the file, which may be smaller still."""
    return free_bytes(path) >= size + size // 64 + max(0, size - os.path.getsize(path)) + _MARGIN


def _ahead(connection: apsw.Connection, one: str, other: str) -> _Counts:
    """The first number of every workspace in which it is greater than the other."""
    query = f"SELECT place, {one} FROM workspace WHERE {one} > {other}"
    found: list[Any] = connection.execute(query).fetchall()
    return dict(found)


def _has_reached(connection: apsw.Connection, column: str, wanted: _Counts) -> bool:
    found: list[Any] = connection.execute(f"SELECT place, {column} FROM workspace").fetchall()
    return all(dict(found).get(place, count) >= count for place, count in wanted.items())
