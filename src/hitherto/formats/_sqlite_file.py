"""Opens SQLite files of other programs without trusting them, and without changing them.

A file is read in place, and no `-wal` or `-shm` appears beside it. Executable parts of a file are switched off or
refused: triggers, views, virtual tables, computed columns. Cells are bounded. SQLite's errors become ours on the way
out, with the name of the program.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw

from ..errors import Busy, CannotOpen, Damaged, HithertoError, InvalidArgument, StorageError, StorageFull
from ._atomic_file import of_files

MAGIC = b"SQLite format 3\0"
LARGEST_CELL = 256 * 1024 * 1024  # bytes
BROKEN = "sqlite3's .recover may save more of it; or take a copy from before"
_TIMEOUT_SECONDS = 10.0  # for another program's lock


@contextmanager
def open_foreign(path: Path, program: str) -> Iterator[apsw.Connection]:
    """Open a file of another program for reading."""
    if "\0" in str(path) or not path.is_file():
        raise CannotOpen(f"{ascii(str(path))[1:-1]:.200} is not a file that is there", hint=_hint(program))
    with translate_errors(path, program):
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(f"{uri_of(path)}?{_way(path, program)}", flags=flags)
        try:
            _harden(connection)
            yield connection
        finally:
            connection.close(True)


def tables_in(path: Path) -> frozenset[str]:
    """Return the names of the tables in a file; none if it cannot be read. Used to recognise it."""
    try:
        with open_foreign(path, "a program") as connection:
            found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            return frozenset(name for (name,) in found if isinstance(name, str))
    except HithertoError:
        return frozenset()


def columns_of(connection: apsw.Connection, table: str) -> list[str]:
    """Return the columns of a table, or none if the table is missing or has computed columns: no program that is read
    here makes such tables."""
    ordinary = "SELECT 1 FROM sqlite_schema WHERE lower(name) = ? AND type = 'table' AND rootpage > 0"
    if not connection.execute(ordinary, (table,)).fetchall():
        return []
    found = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    columns = [str(column[1]) for column in found]
    return [] if any(column[-1] for column in found) or "_rowid_" in columns else columns


def _hint(program: str) -> str:
    return (
        "give a file that CPE made, usually named .cpeconvo" if program == "CPE" else f"give a file that {program} made"
    )


def _way(path: Path, program: str) -> str:
    """Return the URI parameters that open the file without writing. SQLite would create a WAL for a file in WAL
    mode."""
    with open(path, "rb") as file:
        head = file.read(20)
    if not head.startswith(MAGIC):  # SQLite would take an empty file for a new database
        raise InvalidArgument(f"{path} is not a SQLite file", hint=_hint(program))
    wal, shm = Path(f"{path}-wal"), Path(f"{path}-shm")
    if wal.exists() and shm.exists():
        return "mode=ro&readonly_shm=1"
    if wal.exists() and wal.stat().st_size:
        hint = f"open it once with {program}, which puts the two together"
        raise CannotOpen(f"{wal} holds changes that cannot be read without writing", hint=hint)
    return "immutable=1" if 2 in head[18:20] else "mode=ro"


def _harden(connection: apsw.Connection) -> None:
    """Switch executable parts of the file off, and bound the size of its cells."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    for brought in ("TRUSTED_SCHEMA", "ENABLE_TRIGGER", "ENABLE_VIEW", "DQS_DML", "DQS_DDL"):
        connection.config(getattr(apsw, f"SQLITE_DBCONFIG_{brought}"), 0)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, LARGEST_CELL)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_busy_timeout(round(_TIMEOUT_SECONDS * 1000))
    for pragma in ("query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def uri_of(path: Path) -> str:
    """Return a path as a SQLite URI. A file's name need not be valid text."""
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}"


@contextmanager
def translate_errors(path: Path, program: str) -> Iterator[None]:
    """Turn SQLite's errors into ours. Its own words are not repeated: some hold text of the file."""
    try:
        yield
    except OSError as error:
        raise of_files(error, path) from None
    except (apsw.Error, UnicodeError, OverflowError) as error:
        known = _errors(program)
        kind, what, hint = next((ours, what, hint) for theirs, ours, what, hint in known if isinstance(error, theirs))
        raise kind(f"{path} {what}", hint=hint) from error


_Known = tuple[type[Exception] | tuple[type[Exception], ...], type[HithertoError], str, str]


def _errors(program: str) -> tuple[_Known, ...]:
    pending = f"open it once with {program}, which puts the two together"
    return (
        ((apsw.NotADBError, apsw.SQLError), InvalidArgument, f"is not a file of {program}", _hint(program)),
        ((apsw.CorruptError, apsw.FormatError, UnicodeDecodeError), Damaged, "is damaged, or was cut off", BROKEN),
        (apsw.TooBigError, InvalidArgument, f"cannot hold more than {LARGEST_CELL:,} bytes in one place", "use jsonl"),
        (UnicodeEncodeError, InvalidArgument, "cannot hold half a surrogate pair", "it stands for no character"),
        (OverflowError, InvalidArgument, "cannot hold a number of more than 64 bits", "pass it as text"),
        ((apsw.BusyError, apsw.LockedError), Busy, "is locked by another program", "try again"),
        (apsw.FullError, StorageFull, "does not fit on the disk", "make room, then try again"),
        ((apsw.CantOpenError, apsw.ReadOnlyError), CannotOpen, "cannot be read without writing", pending),
        (apsw.Error, StorageError, "cannot be read or written", "check the disk and the permissions, then try again"),
    )
