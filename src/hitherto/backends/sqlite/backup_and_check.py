"""Backing up and checking a SQLite file.

Both read the whole file from one snapshot, and neither changes it.
"""

import os

import apsw

from ..._system import own_files
from ...errors import (
    AlreadyExists,
    Busy,
    CannotOpen,
    HithertoError,
    InvalidArgument,
    ReadOnly,
    StorageError,
)
from .connections import Pool
from .files import make_private, map_error, sync
from .rebuild import drop_copies, is_under_way, live_tables
from .rows import FRONT, fetch_all


def write_backup(pool: Pool, path: str) -> None:
    """Write a copy of the file to `path`, from one snapshot and without the free space.

    The copy gets its name when it is complete and on the disk. Its feed of changes begins anew, so that an index of
    this store is not mistaken for an index of the copy. Raises `AlreadyExists` or `StorageError`."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~") or "\0" in path:
        raise InvalidArgument(f"not a path that a backup could go to: {path!r:.60}")
    target = os.path.abspath(expanded)
    if os.path.lexists(target):
        raise AlreadyExists("a file", target, hint="choose another name; a backup never overwrites")
    unfinished = own_files.name_unfinished(target)
    make_private(unfinished)
    unfinished = os.path.realpath(unfinished)  # SQLite follows no link, not even in the path to the folder
    try:
        with pool.lease() as connection:
            _copy_into(connection, unfinished)
        copy = apsw.Connection(unfinished)
        try:
            for table in ("mark", "gone"):
                copy.execute(f"DELETE FROM {table}")
            if is_under_way(copy):  # the old tables hold rows that were purged since
                drop_copies(copy)
                copy.execute("VACUUM")
            copy.execute(
                "UPDATE workspace SET begun = 0, rebuilt = 0, erased = removals"
            )  # VACUUM INTO wrote all pages anew
        finally:
            copy.close()
        sync(unfinished)
        own_files.publish(unfinished, target)
    except FileExistsError:
        raise AlreadyExists("a file", target, hint="choose another name; a backup never overwrites") from None
    except apsw.Error as error:
        raise map_error(error, unfinished) from error
    except OSError as error:
        raise StorageError(f"the backup cannot be written to {target}: {error.strerror}") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            if os.path.exists(unfinished + suffix):
                os.unlink(unfinished + suffix)


def _copy_into(connection: apsw.Connection, path: str) -> None:
    try:
        connection.execute("VACUUM INTO ?", (path,))
    except apsw.FullError as error:  # the disk of the copy is full, not that of the store
        raise map_error(error, path) from error


def find_problems(pool: Pool) -> list[str]:
    """Return the problems that SQLite reports, rows that refer to nothing, and conversations on the wrong shelf."""
    behind = f"SELECT hex(id) FROM conversation WHERE shelf NOT IN (active_at, {FRONT})"
    overtaken = (
        "SELECT hex(f.id) FROM conversation f JOIN conversation c ON c.workspace = f.workspace AND c.kind = f.kind "
        f"WHERE f.shelf = {FRONT} AND c.place <> f.place AND (c.active_at, c.id) > (f.active_at, f.id)"
    )
    foreign = (
        "SELECT 'reference' FROM reference r LEFT JOIN attachment a ON a.place = r.attachment "
        "LEFT JOIN conversation c ON c.place = r.conversation "
        "WHERE a.conversation IS NOT c.id OR a.workspace IS NOT c.workspace UNION ALL "
        "SELECT 'chunk' FROM chunk k LEFT JOIN attachment a ON a.place = k.number >> 24 WHERE a.place IS NULL "
        "UNION ALL SELECT 'attachment' FROM attachment a WHERE chunks > 0 AND chunks <> "
        "(SELECT count(*) FROM chunk WHERE number BETWEEN a.place << 24 AND (a.place + 1 << 24) - 1) UNION ALL "
        "SELECT 'tag' FROM tag t LEFT JOIN conversation c ON c.place = t.conversation "
        "WHERE c.workspace IS NOT t.workspace"
    )
    orphans = "SELECT first FROM pack p WHERE NOT EXISTS (SELECT 1 FROM message m WHERE m.number = p.first)"
    try:
        with pool.lease() as connection:
            found = [str(line) for (line,) in fetch_all(connection, "PRAGMA integrity_check(100)")]
            live = live_tables(connection)
            missing = [row for name in live for row in fetch_all(connection, f"PRAGMA main.foreign_key_check({name})")]
            stray = fetch_all(connection, orphans)
            strange = {what for (what,) in fetch_all(connection, foreign)}
            misplaced = {id for query in (behind, overtaken) for (id,) in fetch_all(connection, query)}
    except (Busy, CannotOpen, ReadOnly):  # the file could not be read: that says nothing about its content
        raise
    except HithertoError as error:
        return [str(error)]
    problems = [line for line in found if line != "ok"]
    problems += [f"a row of {row[0]} refers to no {row[2]}" for row in missing]
    problems += [f"the pack of run {first} holds messages that are not there" for (first,) in stray]
    problems += [f"a row of {what} belongs to nothing, or to something else" for what in sorted(strange)]
    return problems + [f"conversation {id.lower()} is listed out of order" for id in sorted(misplaced)]
