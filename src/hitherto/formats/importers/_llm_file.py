"""Reads the tables of llm's `logs.db`.

Every version has its own tables and columns. Those that a file does not have are empty.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import apsw

from ...dialects._json import encode
from ...errors import InvalidMessage
from ...model import Block
from .._importer import clean_text, decode_json
from .._sqlite_file import columns_of, open_foreign
from ._fields import text
from ._media import mime_type_of, modality_of

_MAX_FILE_BYTES = 1 << 26  # of an attachment that lies elsewhere on this machine
_TABLES = ("attachments", "conversations", "fragments", "messages", "part_attachments", "parts", "prompt_attachments",
           "prompt_fragments", "responses", "system_fragments", "threads", "tool_calls", "tool_results",
           "tool_results_attachments", "turns")  # fmt: skip

Row = dict[str, object]


class LlmFile:
    """A file with llm's tables, read in one transaction."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        connection.execute("BEGIN")
        self._columns = {table: columns_of(connection, table) for table in _TABLES}

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> "Iterator[LlmFile]":
        """Open a file for reading."""
        with open_foreign(path, "llm") as connection:
            yield cls(connection)

    def rows(self, table: str, where: str = "", value: object = None, order: str = "") -> Iterator[Row]:
        """Yield the rows of a table, or those with this value in a column, in the order of a column."""
        columns = self._columns[table]
        if (where and where not in columns) or not columns:
            return
        query = f"SELECT {', '.join(map(_quoted, columns))} FROM {table}"
        query += f" WHERE {_quoted(where)} = ?" if where else ""
        query += f" ORDER BY {_quoted(order)}" if order in columns else ""
        for cells in self._connection.execute(query, (value,) if where else ()):
            yield dict(zip(columns, cells, strict=True))

    def row(self, table: str, where: str, value: object) -> Row:
        """Return the first row with this value in a column; an empty one if there is none."""
        return next(self.rows(table, where, value), {})

    def columns(self, table: str, *wanted: str) -> Iterator[tuple[object, ...]]:
        """Yield these columns of all rows. A missing column is None."""
        there = self._columns[table]
        if there:
            listed = ", ".join(_quoted(name) if name in there else "NULL" for name in wanted)
            yield from self._connection.execute(f"SELECT {listed} FROM {table} ORDER BY _rowid_")

    def fragments(self, table: str, response: object) -> list[str]:
        """Return the texts of the fragments that a response refers to."""
        return [self.fragment(row.get("fragment_id")) for row in self.rows(table, "response_id", response, "order")]

    def fragment(self, id: object) -> str:
        return text(self.row("fragments", "id", id).get("content"))

    def attachments(self, table: str, column: str, value: object) -> Iterator[Block]:
        """Yield the attachments of a response, a part or a result."""
        for row in self.rows(table, column, value, "order"):
            yield self.attachment(row.get("attachment_id"))

    def attachment(self, id: object) -> Block:
        """Return an attachment: its bytes, where they are in the file or where the file says they are, else what is
        known of it."""
        row = self.row("attachments", "id", id)
        content = row.get("content")
        data = content if isinstance(content, bytes) else _read_elsewhere(text(row.get("path")), text(id))
        kind = clean_text(row.get("type")) or mime_type_of("", (data or b"")[:16])
        if data:
            return Block("content", data, modality_of(kind), kind)
        about = {name: value for name, value in {**row, "id": id}.items() if isinstance(value, str)}
        return Block("metadata", clean_text(encode(about)), mime_type="application/json")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _read_elsewhere(path: str, id: str) -> bytes | None:
    """Return a file on this machine whose hash is the id of the attachment. Any other file is none of our business: a
    foreign database may name whatever it likes."""
    try:
        if not path or not Path(path).is_file() or Path(path).stat().st_size > _MAX_FILE_BYTES:
            return None
        data = Path(path).read_bytes()
    except (OSError, ValueError):
        return None
    return data if sha256(data).hexdigest() == id else None


def decoded(value: object) -> object:
    """Return the value of a column that holds JSON; the text itself if it is none."""
    if not isinstance(value, str) or not value:
        return None
    try:
        return decode_json(value)
    except InvalidMessage:
        return clean_text(value)
