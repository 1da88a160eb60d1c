"""Putting a new database file in the place of another, so that there is always one: the old one, or the new one.

The new file is complete and on the disk, under a name of its own beside the place, before anything happens to the old
one. The old one then gets a second name, and the new one takes its place in one step, which file systems do whole or
not at all. So whoever is killed anywhere in between leaves a store that opens.

Nobody may have the old one open meanwhile. SQLite finds its WAL by the name of the file: whoever went on writing to the
old one would write into the new one's WAL, and ruin it. So the old one is locked as nobody can lock it beside another,
its WAL is put into it and removed, and it leaves WAL mode: a process that waits for the lock all the while, and gets it
when we are gone, is told by SQLite that its file was moved as soon as it wants to write.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC

import apsw

from ... import _own_files
from ...errors import AlreadyExists, Busy, StorageError, StorageFull
from .files import map_error, sync
from .fts import is_own_index

_PATIENCE_MS = 500  # for those who are about to leave


def put_in_place(new: str, path: str, *, replace: bool) -> str | None:
    """Give a complete database file, which lies in the same directory, its name. What stood there is kept under the
    name that is returned. Without `replace` it is `AlreadyExists`; if anybody uses it, `Busy`; if a file beside it is
    not SQLite's, `CannotOpen`."""
    path = os.path.realpath(path)
    _own_files.check_sidecars(path)
    try:
        if not os.path.lexists(path):
            _put_aside(path, _free_name(path))  # a WAL without its database would be taken for one of the new file
            _own_files.publish(new, path)
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
    if locked:  # what lies beside it is empty
        _remove(path, _own_files.SIDECARS)
    else:
        _put_aside(path, kept)
    os.replace(new, path)
    sync(os.path.dirname(path))
    _remove_index(f"{path}-search")
    return kept


@contextmanager
def _alone(path: str) -> Iterator[bool]:
    """Nobody else has the database open, and nobody can open it. False: it is damaged, and cannot be locked; then it is
    replaced as it is."""
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
        connection.execute("BEGIN EXCLUSIVE; COMMIT")  # in this mode, the lock stays until the connection is closed
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()  # with a journal on the disk, should we be killed
        connection.execute("PRAGMA journal_mode = MEMORY").fetchall()  # closing it removes no file of the new one's
    except (apsw.BusyError, apsw.LockedError):
        raise Busy(f"another process has {path} open", hint="end it, then try again") from None
    except (apsw.NotADBError, apsw.CorruptError):
        return False
    except apsw.Error as error:
        raise map_error(error, path) from None
    return True


def _free_name(path: str) -> str:
    name = f"{path}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    is_free = not any(os.path.lexists(name + suffix) for suffix in ("", *_own_files.SIDECARS))
    return name if is_free else f"{name}-{os.urandom(4).hex()}"


def _put_aside(path: str, kept: str) -> None:
    """What lies beside a database that is gone, or cannot be read, and may still be worth something."""
    for suffix in ("-wal", "-journal"):
        with suppress(FileNotFoundError):
            _own_files.put_aside(path + suffix, kept + suffix)
    _remove(path, ("-shm",))


def _remove(path: str, suffixes: tuple[str, ...]) -> None:
    for suffix in suffixes:
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _remove_index(path: str) -> None:
    """Remove the index of what the old store said; the next search makes it again. Leave what is not an index."""
    if not _own_files.remove_own(path, is_own_index):
        return
    owners = _own_files.trusted_owners(path)
    for suffix in _own_files.SIDECARS:
        _own_files.remove_own(path + suffix, lambda name: _own_files.check_sidecar(name, owners))
