"""Erasure: remove the bytes of deleted rows from the files.

`secure_delete` overwrites deleted rows and pages. It does not reach copies: when SQLite balances a b-tree it moves rows
to other pages and leaves their bytes in the unused part of a page that stays in use. No statement overwrites those
bytes. But a rebuilt table holds nothing that was removed before. So after a removal the tables are rebuilt: a small
store with VACUUM, a larger one in steps (`rebuild`). Nothing here writes into the file past SQLite.

Three numbers in the row of each workspace record the progress. They only grow:

- `removals`: the number of commits that removed something;
- `rebuilt`: the value of `removals` before the last complete rebuild began;
- `erased`: the value of `rebuilt` before the WAL was truncated. The old pages have left the file and the WAL.

Each is set to a value that was read before the work began. So a process never vouches for a removal that another one
committed during the work, and a killed process leaves its work to the next. All is erased when `erased` equals
`removals`.
"""

import os
import time
from typing import Any

import apsw

from .connections import Pool, empty_wal, patience, transaction, view
from .files import free_bytes, lacks_room
from .rebuild import Rebuild, is_under_way

SMALL = 16 << 20  # bytes: VACUUM rebuilds a store of this size within the time that a purge has
_PATIENCE_SECONDS = 0.5  # how long to wait for other writers before a step is postponed
_MARGIN = 64 << 10  # bytes that stay free on the disk

_Counts = dict[int, int]  # by the place of the workspace


class Erasure:
    """The erasure of one file."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._steps = Rebuild(pool)

    def is_done(self) -> bool:
        with self._pool.lease() as connection:
            return not _ahead(connection, "removals", "erased")

    def advance(self, deadline: float | None = None) -> bool:
        """Erase everything that was removed before this call. False if something is left.

        That happens if a reader holds old pages, other writers are busy, the disk is full, or the store is large. A
        large store is rebuilt in steps until the deadline; without a deadline no step is taken."""
        with self._pool.lease() as connection:
            wanted = _ahead(connection, "removals", "erased")
        if not wanted:
            return True
        if not self._rebuild(wanted, deadline) or not self._settle():
            return False
        with self._pool.lease() as connection:
            return _has_reached(connection, "erased", wanted)

    def _rebuild(self, wanted: _Counts, deadline: float | None) -> bool:
        """Rebuild all tables, unless that was done since these removals. False if that has to wait."""
        patient_until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with self._pool.lease() as connection:
                with view(connection):  # one snapshot: no rebuild in steps begins between the two reads
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
        """Checkpoint and truncate the WAL, which removes the old pages.

        Return False if a reader is in the way, or if the disk has no space for the checkpoint: another writer may have
        taken the space that was free before the rebuild."""
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
        """Set a number in the row of each workspace. False if the disk is full."""
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
    """Run VACUUM. False if another process writes, or if the disk has no space for a second copy in the WAL.

    It uses its own connection, because VACUUM allows no other statement beside it."""
    with pool.mapping_errors():
        connection = pool.connect()
        try:
            size = connection.pragma("page_count") * connection.pragma("page_size")
            if not _has_room(pool.path, size):
                return False
            connection.set_busy_handler(patience(_PATIENCE_SECONDS / 4))
            in_memory = size <= SMALL  # no temporary file gets a copy, even for a moment
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
    """Tell whether a second copy of the database fits into the WAL, and then into the file, which may be smaller.

    Each page in the WAL has a header."""
    return free_bytes(path) >= size + size // 64 + max(0, size - os.path.getsize(path)) + _MARGIN


def _ahead(connection: apsw.Connection, one: str, other: str) -> _Counts:
    """Return the first number of each workspace where it is greater than the other number."""
    query = f"SELECT place, {one} FROM workspace WHERE {one} > {other}"
    found: list[Any] = connection.execute(query).fetchall()
    return dict(found)


def _has_reached(connection: apsw.Connection, column: str, wanted: _Counts) -> bool:
    found: list[Any] = connection.execute(f"SELECT place, {column} FROM workspace").fetchall()
    return all(dict(found).get(place, count) >= count for place, count in wanted.items())
