"""The file of the text index: is it ours, and how it is reset or removed.

The index lies in a file beside the store, and can be made again from it. So a damaged file is reset; but only a file of
ours is, because another one under that name may be the only copy of its content. An index is recognised by its
application id or by its tables, even if the rest is damaged. The bytes are read through SQLite: closing a descriptor of
our own would drop the locks of this process on the file.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import apsw

from ..._system import own_files
from ...errors import CannotOpen, NotAStore
from ...textindex import IndexDamaged
from .connections import view
from .files import map_error

APPLICATION_ID: Final = 0x48544853  # "HTHS"
FORMAT: Final = 1
PER_CONNECTION: Final = (
    "synchronous = NORMAL",
    "secure_delete = ON",
    "journal_size_limit = 4194304",
    "temp_store = MEMORY",
)

_CHUNK = 1 << 20  # bytes read at once
_LARGEST_PAGE = 1 << 16  # bytes

HINT = "nothing is lost: the index is made again from the store"
FOREIGN = (
    "it was not changed; look at what it is and move it away, or delete it if it is what is left of an index: the next "
    "search makes a new one"
)


class RawFile:
    """The bytes of a database file, read through SQLite: closing a descriptor of our own would drop this process's
    locks on the file."""

    def __init__(self, path: str, size: int, vfs: str | None) -> None:
        flags = [apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_MAIN_DB, 0]
        self._file = apsw.VFSFile(vfs or "", path, flags)
        self.size = size

    def read(self, start: int, size: int) -> bytes:
        size = min(size, self.size - start)
        return self._file.xRead(size, start) if size > 0 else b""

    def truncate(self) -> None:
        self._file.xTruncate(0)
        self.size = 0

    def close(self) -> None:
        self._file.xClose()


@contextmanager
def open_raw(path: str, size: int, vfs: str | None) -> Iterator[RawFile]:
    try:
        with contextlib.closing(RawFile(path, size, vfs)) as file:
            yield file
    except apsw.Error as error:
        raise map_error(error, path) from error


def is_own(file: RawFile) -> bool:
    """Recognise an index by the application id in its header, even if the rest is damaged.

    A file of zeros, which a power cut can leave, and a database without tables also pass: nothing is lost with them."""
    start = file.read(0, 108)
    if start[68:72] == APPLICATION_ID.to_bytes(4, "big"):
        return True
    if start.startswith(b"SQLite format 3\0"):
        is_empty_leaf = start[100:101] == b"\x0d" and start[103:105] == b"\0\0"
        return is_empty_leaf or _has_own_table(file)
    return not any(any(file.read(at, _CHUNK)) for at in range(0, file.size, _CHUNK))


def _has_own_table(file: RawFile) -> bool:
    """Recognise an index whose application id was changed: the names of our tables are on its first page."""
    return b"CREATE TABLE hitherto_search" in file.read(0, _LARGEST_PAGE)


def is_own_index(path: str) -> bool:
    """Tell whether a search index is at this path; raise for another file."""
    found = own_files.examine(path, own_files.trusted_owners(path.removesuffix("-search")))
    if found is None:
        return False
    with open_raw(path, found.st_size, None) as file:
        if not is_own(file):
            raise CannotOpen(f"{path} is not a search index", hint=FOREIGN)
    return True


def remove_index(path: str, known: tuple[int, int] | None) -> None:
    """Remove a damaged index that SQLite cannot reset, with its WAL and journal."""
    found = own_files.examine(path, own_files.trusted_owners(path.removesuffix("-search")))
    if found is not None and own_files.identify(found) != known:
        raise NotAStore(f"{path} is not a search index", hint=FOREIGN)
    own_files.check_sidecars(path)
    for suffix in ("", *own_files.SIDECARS):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def wipe(connection: apsw.Connection) -> None:
    """Reset a database that other processes may have open, whatever its content: SQLite's own way."""
    connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
        connection.execute("VACUUM").fetchall()
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)


def prepare(connection: apsw.Connection) -> None:
    with view(connection):
        look_at(connection)
    for pragma in PER_CONNECTION:
        connection.execute(f"PRAGMA {pragma}").fetchall()


def look_at(connection: apsw.Connection) -> bool:
    """Refuse the file of another program. True for an index, False for an empty file."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application == APPLICATION_ID and version == FORMAT:
        if connection.readonly("main"):  # the permissions allow writing: so a byte in the header is damaged
            raise IndexDamaged(f"{connection.filename} says that it may not be written", hint=HINT)
        return True
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not (application or version or tables):
        return False
    if application == APPLICATION_ID or "hitherto_search" in tables:
        raise IndexDamaged(f"{connection.filename} has another format", hint=HINT)
    raise NotAStore(f"{connection.filename} is a SQLite database of another program")
