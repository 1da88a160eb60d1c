"""Put a new database file in the place of another. At every moment the old one or the new one is there.

The new file is complete and on the disk, under a name of its own beside the place, before anything happens to the old
one. The old one then gets a second name, and the new one takes its place in one step, which file systems do whole or
not at all. So a process that is killed at any point leaves a store that opens.

No process may have the old file open meanwhile. SQLite finds the WAL by the name of the file: a process that went on
writing to the old file would write into the WAL of the new one, and ruin it. So the old file gets an exclusive lock,
its WAL is put into it and removed, and it leaves WAL mode: a process that waits for the lock, and gets it
after the swap, gets an error from SQLite as soon as it writes: its file was moved.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC

import apsw

from ..._system import own_files
from ...errors import AlreadyExists, Busy, StorageError, StorageFull
from .files import map_error, sync
from .fts_file import is_own_index

_PATIENCE_MS = 500  # how long to wait for processes that are closing the file


def put_in_place(new: str, path: str, *, replace: bool) -> str | None:
    """Rename a complete database file in the same directory to `path`.

    An existing file is kept under the name that is returned. Raises `AlreadyExists` for it without `replace`, `Busy` if
    a process has it open, and `CannotOpen` if a file beside it is not SQLite's."""
    path = os.path.realpath(path)
    own_files.check_sidecars(path)
    try:
        if not os.path.lexists(path):
            _put_aside(path, _free_name(path))  # SQLite would take a WAL without its database for that of the new file
            own_files.publish(new, path)
            return None
        if not replace:
            raise FileExistsError
        with _alone(path) as locked:
            return _replace(new, path, locked=locked)
    except FileExistsError:
        raise AlreadyExists("a store", path, hint="--replace puts it aside, under another name") from None
    except OSError as error:
        kind = StorageFull if error.errno in (ENOSPC, EDQUOT) else StorageError
        raise kind(f"{path} cannot be replaced: {error.strerror or type(error).__name__}") from None


def _replace(new: str, path: str, *, locked: bool) -> str:
    kept = _free_name(path)
    os.link(path, kept)
    if locked:  # its sidecar files are empty
        _remove(path, own_files.SIDECARS)
    else:
        _put_aside(path, kept)
    os.replace(new, path)
    sync(os.path.dirname(path))
    _remove_index(f"{path}-search")
    return kept


@contextmanager
def _alone(path: str) -> Iterator[bool]:
    """Hold the exclusive lock of the database, so that no other process has it open. Raises `Busy`.

    False if the file is damaged and cannot be locked: then it is replaced as it is."""
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
    except apsw.Error as error:
        raise map_error(error, path) from None
    try:
        connection.set_busy_timeout(_PATIENCE_MS)
        yield _lock(connection, path)
    finally:
        connection.close()


def _lock(connection: apsw.Connection, path: str) -> bool:
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        connection.execute("BEGIN EXCLUSIVE; COMMIT")  # in this mode the lock lasts until the connection is closed
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()  # with a journal, in case of a kill
        connection.execute("PRAGMA journal_mode = MEMORY").fetchall()  # closing then removes no file of the new store
    except (apsw.BusyError, apsw.LockedError):
        raise Busy(f"another process has {path} open", hint="end it, then try again") from None
    except (apsw.NotADBError, apsw.CorruptError):
        return False
    except apsw.Error as error:
        raise map_error(error, path) from None
    return True


def _free_name(path: str) -> str:
    name = f"{path}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    is_free = not any(os.path.lexists(name + suffix) for suffix in ("", *own_files.SIDECARS))
    return name if is_free else f"{name}-{os.urandom(4).hex()}"


def _put_aside(path: str, kept: str) -> None:
    """Rename the WAL and journal of a missing or unreadable database: they may still be of use."""
    for suffix in ("-wal", "-journal"):
        with suppress(FileNotFoundError):
            own_files.put_aside(path + suffix, kept + suffix)
    _remove(path, ("-shm",))


def _remove(path: str, suffixes: tuple[str, ...]) -> None:
    for suffix in suffixes:
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _remove_index(path: str) -> None:
    """Remove the search index of the old store; the next search rebuilds it. A file that is no index stays."""
    if not own_files.remove_own(path, is_own_index):
        return
    owners = own_files.trusted_owners(path)
    for suffix in own_files.SIDECARS:
        own_files.remove_own(path + suffix, lambda name: own_files.check_sidecar(name, owners))
