"""Reads CPE's SQLite files, and creates new ones with CPE's own schema.

A file is read in one transaction. Rows are bounded. A file cannot hold more text than its length: one that claims to is
damaged. A new file has the tables of one of CPE's two generations, to the letter.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw

from ...errors import Damaged, InvalidArgument, InvalidMessage
from .. import _sqlite_file
from .._atomic_file import new_path
from .._sqlite_file import BROKEN, columns_of, open_foreign, translate_errors, uri_of

_MOST_ROWS = {"messages": 2_000_000, "blocks": 8_000_000, "acp_sessions": 2_000_000}
_READINGS = 3  # a cell is read up to three times: with its table, with its root, with its conversation
_NO_FILE = "give a file that CPE made, usually named .cpeconvo"

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
        self.columns = {table: columns_of(connection, table) for table in _MOST_ROWS}
        for table, needed in _ESSENTIAL.items():
            if not needed <= set(self.columns[table]):
                raise InvalidArgument(f"{path} is not a file of CPE: no {table} as CPE has them", hint=_NO_FILE)

    def all(self, table: str, *columns: str) -> Iterator[tuple[object, ...]]:
        """Yield the rowid and the given columns of every row, in the order of the file. A missing column is None."""
        wanted = ", ".join(["_rowid_", *(c if c in self.columns[table] else "NULL" for c in columns)])
        query, most = f"SELECT {wanted} FROM {table} ORDER BY _rowid_ LIMIT ?", _MOST_ROWS[table]
        for count, cells in enumerate(self._connection.execute(query, (most + 1,)) if self.columns[table] else ()):
            if count == most:
                raise Damaged(f"{self.path} has more than {most:,} {table}", hint=BROKEN)
            yield self._charge(cells)

    def row(self, table: str, number: object) -> dict[str, object]:
        """Return the cells of a row that are not null. Raises `InvalidMessage` if they cannot be read."""
        try:
            cells = self._connection.execute(f"SELECT * FROM {table} WHERE _rowid_ = ?", (number,)).fetchone()
        except (UnicodeDecodeError, apsw.TooBigError, apsw.CorruptError):
            cells = None
        if cells is None:  # the row was there when the table was scanned
            raise InvalidMessage(f"damaged, or larger than {_sqlite_file.LARGEST_CELL:,} bytes")
        found = zip(self.columns[table], self._charge(cells), strict=True)
        return {column: cell for column, cell in found if cell is not None}

    def _charge(self, cells: tuple[object, ...]) -> tuple[object, ...]:
        self._left -= sum([len(cell) for cell in cells if isinstance(cell, str | bytes)])
        if self._left < 0:
            raise Damaged(f"{self.path} claims to hold more than its own length", hint=BROKEN)
        return cells


class Writer:
    """Writes a new file with the tables of one generation."""

    def __init__(self, connection: apsw.Connection, schema: str) -> None:
        self._connection = connection
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, _sqlite_file.LARGEST_CELL)  # or it could not be read back
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute(f"BEGIN; {schema}")
        self.columns = {table: columns_of(connection, table) for table in _MOST_ROWS}

    def add(self, table: str, row: Mapping[str, object]) -> None:
        """Write the cells that the table has columns for."""
        cells = {column: row[column] for column in self.columns[table] if column in row}
        places = ", ".join("?" * len(cells))
        self._connection.execute(f"INSERT INTO {table}({', '.join(cells)}) VALUES({places})", tuple(cells.values()))


@contextmanager
def open_reader(path: Path) -> Iterator[Reader]:
    """Open a file for reading. Raises `InvalidArgument` if it is not a file of CPE."""
    with open_foreign(path, "CPE") as connection:
        yield Reader(path, connection)


@contextmanager
def create_writer(path: Path, schema: str) -> Iterator[Writer]:
    """Create a new file, which appears when it is complete. It is synced as a whole, so SQLite need not sync."""
    with translate_errors(path, "CPE"), new_path(path) as unfinished:
        connection = apsw.Connection(uri_of(unfinished), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
        try:
            yield Writer(connection, schema)
            connection.execute("COMMIT")
        finally:
            connection.close(True)
