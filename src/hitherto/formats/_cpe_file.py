"""Opens CPE's SQLite files without trusting them, and creates new ones with CPE's own schema.

A foreign file is neither trusted nor changed. It is read in one transaction, and no `-wal` or `-shm` appears beside it.
Executable parts of a file are switched off or refused: triggers, views, virtual tables, computed columns. Rows and
cells are bounded. A file cannot hold more text than its length: one that claims to is damaged.

A new file has the tables of one of CPE's two generations, to the letter. SQLite's errors become ours on the way out.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw

from ..errors import Busy, CannotOpen, Damaged, InvalidArgument, InvalidMessage, StorageError, StorageFull
from ._atomic_file import new_path, of_files

_LARGEST_CELL = 256 * 1024 * 1024  # bytes
_MOST_ROWS = {"messages": 2_000_000, "blocks": 8_000_000, "acp_sessions": 2_000_000}
_READINGS = 3  # a cell is read up to three times: with its table, with its root, with its conversation
_TIMEOUT_SECONDS = 10.0  # for another program's lock

_NO_FILE = "give a file that CPE made, usually named .cpeconvo"
_BROKEN = "sqlite3's .recover may save more of it; or take a copy from before"
_PENDING = "open it once with CPE, which puts the two together"

_ESSENTIAL = {
    "messages": {"id", "parent_id", "role"},
    "blocks": {"message_id", "block_type", "content", "sequence_order"},
}

_BLOCKS = """CREATE TABLE blocks(id TEXT, message_id TEXT NOT NULL, block_type TEXT NOT NULL, modality_type INTEGER NOT NULL, mime_type TEXT NOT NULL,
 content TEXT NOT NULL, extra_fields TEXT, sequence_order INTEGER NOT NULL, created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
 PRIMARY KEY(message_id, sequence_order), FOREIGN KEY(message_id) REFERENCES messages(id) ON DELETE CASCADE)"""  # noqa: E501
_INDEXES = """CREATE INDEX idx_messages_created_at ON messages(created_at);
CREATE INDEX idx_messages_parent_id ON messages(parent_id)"""

FIRST = f"""CREATE TABLE messages(id TEXT PRIMARY KEY, parent_id TEXT, title TEXT, role TEXT NOT NULL, tool_result_error BOOLEAN NOT NULL DEFAULT 0,
 created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, FOREIGN KEY(parent_id) REFERENCES messages(id) ON DELETE RESTRICT);
{_INDEXES};
{_BLOCKS}"""  # noqa: E501

LATER = f"""CREATE TABLE messages(id TEXT PRIMARY KEY, parent_id TEXT, compaction_parent_id TEXT, role TEXT NOT NULL,
 tool_result_error BOOLEAN NOT NULL DEFAULT 0, message_extra_fields TEXT, model_ref TEXT, model_id TEXT, model_type TEXT,
 model_display_name TEXT, input_tokens INTEGER, output_tokens INTEGER, cache_read_tokens INTEGER, cache_write_tokens INTEGER,
 created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, FOREIGN KEY(parent_id) REFERENCES messages(id) ON DELETE RESTRICT);
{_BLOCKS};
CREATE TABLE acp_sessions(id TEXT PRIMARY KEY, last_message_id TEXT, cwd TEXT NOT NULL, title TEXT NOT NULL, model_ref TEXT NOT NULL,
 thinking_level TEXT NOT NULL DEFAULT '', cost_usd REAL NOT NULL DEFAULT 0, created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
 FOREIGN KEY(last_message_id) REFERENCES messages(id) ON DELETE CASCADE);
{_INDEXES};
CREATE INDEX idx_messages_compaction_parent_id ON messages(compaction_parent_id)"""  # noqa: E501


class Reader:
    """Reads a file with CPE's tables in one transaction."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self.path = path
        self._connection = connection
        self._left = _READINGS * sum(os.path.getsize(p) for p in (path, f"{path}-wal") if os.path.exists(p))
        connection.execute("BEGIN")
        self.columns = {table: _columns(connection, table) for table in _MOST_ROWS}
        for table, needed in _ESSENTIAL.items():
            if not needed <= set(self.columns[table]):
                raise InvalidArgument(f"{path} is not a file of CPE: no {table} as CPE has them", hint=_NO_FILE)

    def all(self, table: str, *columns: str) -> Iterator[tuple[object, ...]]:
        """Yield the rowid and the given columns of every row, in the order of the file. A missing column is None."""
        wanted = ", ".join(["_rowid_", *(c if c in self.columns[table] else "NULL" for c in columns)])
        query, most = f"SELECT {wanted} FROM {table} ORDER BY _rowid_ LIMIT ?", _MOST_ROWS[table]
        for count, cells in enumerate(self._connection.execute(query, (most + 1,)) if self.columns[table] else ()):
            if count == most:
                raise Damaged(f"{self.path} has more than {most:,} {table}", hint=_BROKEN)
            yield self._charge(cells)

    def row(self, table: str, number: object) -> dict[str, object]:
        """Return the cells of a row that are not null. Raises `InvalidMessage` if they cannot be read."""
        try:
            cells = self._connection.execute(f"SELECT * FROM {table} WHERE _rowid_ = ?", (number,)).fetchone()
        except (UnicodeDecodeError, apsw.TooBigError, apsw.CorruptError):
            cells = None
        if cells is None:  # the row was there when the table was scanned
            raise InvalidMessage(f"damaged, or larger than {_LARGEST_CELL:,} bytes")
        found = zip(self.columns[table], self._charge(cells), strict=True)
        return {column: cell for column, cell in found if cell is not None}

    def _charge(self, cells: tuple[object, ...]) -> tuple[object, ...]:
        self._left -= sum([len(cell) for cell in cells if isinstance(cell, str | bytes)])
        if self._left < 0:
            raise Damaged(f"{self.path} claims to hold more than its own length", hint=_BROKEN)
        return cells


class Writer:
    """Writes a new file with the tables of one generation."""

    def __init__(self, connection: apsw.Connection, schema: str) -> None:
        self._connection = connection
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, _LARGEST_CELL)  # or it could not be read back
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute(f"BEGIN; {schema}")
        self.columns = {table: _columns(connection, table) for table in _MOST_ROWS}

    def add(self, table: str, row: Mapping[str, object]) -> None:
        """Write the cells that the table has columns for."""
        cells = {column: row[column] for column in self.columns[table] if column in row}
        places = ", ".join("?" * len(cells))
        self._connection.execute(f"INSERT INTO {table}({', '.join(cells)}) VALUES({places})", tuple(cells.values()))


@contextmanager
def open_reader(path: Path) -> Iterator[Reader]:
    """Open a file for reading. Raises `InvalidArgument` if it is not a file of CPE."""
    if "\0" in str(path) or not path.is_file():
        raise CannotOpen(f"{ascii(str(path))[1:-1]:.200} is not a file that is there", hint=_NO_FILE)
    with _translate_errors(path):
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(f"{_uri(path)}?{_way(path)}", flags=flags)
        try:
            _harden(connection)
            yield Reader(path, connection)
        finally:
            connection.close(True)


@contextmanager
def create_writer(path: Path, schema: str) -> Iterator[Writer]:
    """Create a new file, which appears when it is complete. It is synced as a whole, so SQLite need not sync."""
    with _translate_errors(path), new_path(path) as unfinished:
        connection = apsw.Connection(_uri(unfinished), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
        try:
            yield Writer(connection, schema)
            connection.execute("COMMIT")
        finally:
            connection.close(True)


def _way(path: Path) -> str:
    """Return the URI parameters that open the file without writing. SQLite would create a WAL for a file in WAL
    mode."""
    with open(path, "rb") as file:
        head = file.read(20)
    if not head.startswith(b"SQLite format 3\0"):  # SQLite would take an empty file for a new database
        raise InvalidArgument(f"{path} is not a SQLite file", hint=_NO_FILE)
    wal, shm = Path(f"{path}-wal"), Path(f"{path}-shm")
    if wal.exists() and shm.exists():
        return "mode=ro&readonly_shm=1"
    if wal.exists() and wal.stat().st_size:
        raise CannotOpen(f"{wal} holds changes that cannot be read without writing", hint=_PENDING)
    return "immutable=1" if 2 in head[18:20] else "mode=ro"


def _harden(connection: apsw.Connection) -> None:
    """Switch executable parts of the file off, and bound the size of its cells."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    for brought in ("TRUSTED_SCHEMA", "ENABLE_TRIGGER", "ENABLE_VIEW", "DQS_DML", "DQS_DDL"):
        connection.config(getattr(apsw, f"SQLITE_DBCONFIG_{brought}"), 0)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, _LARGEST_CELL)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_busy_timeout(round(_TIMEOUT_SECONDS * 1000))
    for pragma in ("query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _columns(connection: apsw.Connection, table: str) -> list[str]:
    """Return the columns of a table, or none if the table is missing or has computed columns: CPE makes no such
    tables."""
    ordinary = "SELECT 1 FROM sqlite_schema WHERE lower(name) = ? AND type = 'table' AND rootpage > 0"
    if not connection.execute(ordinary, (table,)).fetchall():
        return []
    found = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    columns = [str(column[1]) for column in found]
    return [] if any(column[-1] for column in found) or "_rowid_" in columns else columns


def _uri(path: Path) -> str:
    """Return a path as a SQLite URI. A file's name need not be valid text."""
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}"


_ERRORS = (  # SQLite's own words are not repeated: some hold text of the file
    ((apsw.NotADBError, apsw.SQLError), InvalidArgument, "is not a file of CPE", _NO_FILE),
    ((apsw.CorruptError, apsw.FormatError, UnicodeDecodeError), Damaged, "is damaged, or was cut off", _BROKEN),
    (apsw.TooBigError, InvalidArgument, f"cannot hold more than {_LARGEST_CELL:,} bytes in one place", "use jsonl"),
    (UnicodeEncodeError, InvalidArgument, "cannot hold half a surrogate pair", "it stands for no character"),
    (OverflowError, InvalidArgument, "cannot hold a number of more than 64 bits", "pass it as text"),
    ((apsw.BusyError, apsw.LockedError), Busy, "is locked by another program", "try again"),
    (apsw.FullError, StorageFull, "does not fit on the disk", "make room, then try again"),
    ((apsw.CantOpenError, apsw.ReadOnlyError), CannotOpen, "cannot be read without writing", _PENDING),
    (apsw.Error, StorageError, "cannot be read or written", "check the disk and the permissions, then try again"),
)


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise of_files(error, path) from None
    except (apsw.Error, UnicodeError, OverflowError) as error:
        kind, what, hint = next((ours, what, hint) for theirs, ours, what, hint in _ERRORS if isinstance(error, theirs))
        raise kind(f"{path} {what}", hint=hint) from error
