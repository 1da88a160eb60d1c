"""The files of an SQLite database: created private, synced with their names, refused if they cannot serve.

Nothing here opens an existing database file. Closing it would drop the locks that another connection of this process
holds on it, because POSIX locks belong to the process, not to the descriptor.
"""

import os
from errno import EDQUOT, EFBIG, ENOSPC

import apsw

from ..._system import own_files
from ...errors import (
    Busy,
    CannotOpen,
    Damaged,
    HithertoError,
    NotAStore,
    ReadOnly,
    StorageError,
    StorageFull,
)


def make_private(path: str) -> None:
    """Create the directory (0700) and an empty file (0600) and sync their names. SQLite would create it with 0644."""
    try:
        path.encode()
        if not os.path.exists(path):
            folder = os.path.dirname(path)
            _make_folder(folder)
            try:
                os.close(own_files.create(path))
                sync(folder)
            except FileExistsError:  # another process was faster
                pass
        _look_at(path)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "check the path and the permissions of its directory"
        raise CannotOpen(f"cannot create {path}: {reason}", hint=hint) from error
    except ValueError as error:  # a NUL in the path, or bytes that are not UTF-8
        raise CannotOpen(f"not a path that SQLite can open: {error}") from None


def _make_folder(folder: str) -> None:
    missing: list[str] = []
    while not _is_there(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for new in reversed(missing):
        try:
            os.mkdir(new, 0o700)
        except FileExistsError:  # another process was faster
            continue
        sync(os.path.dirname(new))


def _is_there(path: str) -> bool:
    """Like `os.path.exists`, but an impossible path (too long, say) raises the error of the file system."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _look_at(path: str) -> None:
    """Refuse a file whose metadata shows that it cannot be used."""
    if not os.path.isfile(path):
        raise CannotOpen(f"{path} is not a file", hint="give the path of a file; a folder cannot be a store")
    size = os.path.getsize(path)
    if 0 < size < 512:  # SQLite would take a file of one byte for an empty one
        raise NotAStore(f"{path} is not a database")
    if not os.access(path, os.R_OK):
        raise CannotOpen(f"{path} may not be read", hint="check the permissions of the file")
    if not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)):
        raise ReadOnly(f"{path} or its directory may not be written")
    if size == 0:
        os.chmod(path, 0o600)


def sync(path: str) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    own_files.sync(path)


def free_bytes(path: str) -> int:
    """Return the free bytes on the disk of this file. Blocks reserved for root count only for root."""
    found = os.statvfs(os.path.dirname(path))
    blocks = found.f_bavail if os.geteuid() else found.f_bfree
    return blocks * (found.f_frsize or found.f_bsize)


def lacks_room(error: apsw.Error, connection: apsw.Connection | None = None) -> bool:
    """Tell whether the error says that the disk is full.

    SQLite has its own code for shared memory, and none for a quota of the file system. The connection has the errno."""
    if isinstance(error, apsw.IOError):
        shared = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE
        return shared or (connection is not None and connection.system_errno in (ENOSPC, EDQUOT, EFBIG))
    return isinstance(error, apsw.FullError)


def full_error(path: str, reason: object) -> StorageFull:
    """Return the error for a write that the disk has no space for."""
    try:
        room = f"{free_bytes(path):,} bytes are free on the disk of {os.path.dirname(path)}"
    except OSError:
        room = "how much is free cannot be found out"
    return StorageFull(f"no space is left for {path}: {room} ({reason})", hint=_MAKE_ROOM)


_MAKE_ROOM = (
    "nothing that was acknowledged is lost, and reading goes on; make room on the disk, or purge conversations, "
    "which needs none: then writing goes on by itself"
)

_CLASSES: tuple[tuple[type[apsw.Error], type[HithertoError], str], ...] = (
    (apsw.BusyError, Busy, "other writers held the lock of {path} for too long"),
    (apsw.LockedError, Busy, "{path} is locked"),
    (apsw.NotADBError, NotAStore, "{path} is not a database"),
    (apsw.CorruptError, Damaged, "{path} is damaged"),
    (apsw.ReadOnlyError, ReadOnly, "{path} may not be written"),
    (apsw.CantOpenError, CannotOpen, "{path} cannot be opened"),
)


def map_error(error: apsw.Error, path: str, connection: apsw.Connection | None = None) -> HithertoError:
    """Return the error of the store for an error of SQLite."""
    if lacks_room(error, connection):
        return full_error(path, error)
    for theirs, ours, text in _CLASSES:
        if isinstance(error, theirs):
            return ours(f"{text.format(path=path)} ({error})")
    return StorageError(f"SQLite reports for {path}: {error}")
