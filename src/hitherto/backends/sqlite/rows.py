"""The rows of a SQLite store: column lists, conversions, and the ways to run a query.

`reading` and `writing` build on it. Every function takes an open connection and, where it needs one, the workspace: the
integer that stands in the first column of each table.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from ...backend import ConversationRow, MessageRow
from ...errors import Damaged
from .connections import view
from .rebuild import index_name

WORKSPACE_BITS = 47  # numbers stay below 2**47; the workspace's own integer lies above
CHUNK_BITS = 24  # chunks of one attachment are numbered below 2**24; its place lies above
FRONT = 1 << 62  # the shelf of the newest conversation of its kind

# The fields of ConversationRow and MessageRow, in their order. The first two parameters of a message's columns are the
# base of the workspace, which is subtracted from the number, and the id of the conversation.
CONVERSATION = (
    "id, kind, key, version, token, generation, head, tips, next_seq, count, size, rewrites, "
    "created_at, active_at, expires_at, held, data_key, meta, proof"
)
PATH = "number - ?, ?, seq, parent, link, main, role, revision, created_at, body"
MESSAGE = f"{PATH}, key, token, size"
JOINED = (
    "m.number - ?, c.id, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, "
    "m.body, m.key, m.token, m.size"
)
AMENDED = "seq, parent, link, main, role, revision, created_at, body, key, token, size"
# The bytes of attachments. SQLite knows the length of a value without reading it.
ATTACHED = (
    "SELECT coalesce(sum(length(c.body)), 0) FROM attachment a CROSS JOIN chunk c "
    f"ON c.number >= a.place << {CHUNK_BITS} AND c.number < (a.place + 1) << {CHUNK_BITS}"
)

Values = Sequence[str | bytes | int | None]
_T = TypeVar("_T")

_pack = msgspec.msgpack.Encoder().encode
_unpack_tips = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def fetch_all(connection: apsw.Connection, query: str, values: Values = ()) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def fetch_by_index(connection: apsw.Connection, index: str, query: str, values: Values) -> list[tuple[Any, ...]]:
    """Run a query with this index in place of `{}`. A rebuild of the tables may change the name of the index."""
    with view(connection):
        return fetch_all(connection, query.format(index_name(connection, index)), values)


def fetch_first(connection: apsw.Connection, query: str, values: Values = ()) -> tuple[Any, ...] | None:
    return connection.execute(query, values).fetchone()


def fetch_one(connection: apsw.Connection, query: str, values: Values = ()) -> tuple[Any, ...]:
    return connection.execute(query, values).fetchall()[0]


def conversation_values(row: ConversationRow) -> tuple[str | bytes | int | None, ...]:
    return (
        row.id, row.kind, row.key, row.version, row.token, row.generation, row.head, _pack(row.tips), row.next_seq,
        row.count, row.size, row.rewrites, row.created_at, row.active_at, row.expires_at, row.held, row.data_key,
        row.meta, row.proof,
    )  # fmt: skip


def conversation(found: tuple[Any, ...]) -> ConversationRow:
    values = list(found)
    try:
        values[7] = _unpack_tips(values[7])  # tips
    except (msgspec.MsgspecError, TypeError):  # no run continues then, and a sealed row fails its proof
        values[7] = (-1,)
    values[15] = values[15] == 1  # held
    return ConversationRow(*values)


def message_values(m: MessageRow) -> tuple[str | bytes | int | None, ...]:
    return (
        m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, m.body, m.key, m.token, m.size
    )  # fmt: skip


def fetch_messages(connection: apsw.Connection, query: str, values: Values) -> list[MessageRow]:
    return [MessageRow(*found) for found in connection.execute(query, values)]


def check_headers(rows: list[MessageRow]) -> list[MessageRow]:
    """Return the rows, or raise `Damaged` if a value that rows are sorted or compared by has the wrong type.

    One flipped bit can turn a number into bytes."""
    for m in rows:
        if not (type(m.number) is type(m.seq) is type(m.created_at) is type(m.revision) is int and type(m.role) is str):
            raise Damaged("the header of a message holds something that cannot be")
    return rows


def without_body(columns: str) -> str:
    return columns.replace("m.body", "NULL").replace("body", "NULL")


def trim_to_unbroken(rows: list[MessageRow], start: int, last: int) -> list[MessageRow]:
    """Return the rows that lead up to the number `last` without a gap: a run with a missing message is broken there."""
    if len(rows) == last - start + 1:
        return rows
    first = len(rows)
    while first and rows[first - 1].number == last:
        first, last = first - 1, last - 1
    return rows[first:]


def slices(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def find_row(connection: apsw.Connection, workspace: int, id: bytes) -> ConversationRow | None:
    query = f"SELECT {CONVERSATION} FROM conversation WHERE id = ? AND workspace = ?"
    found = fetch_first(connection, query, (id, workspace))
    return None if found is None else conversation(found)


def find_by_key(connection: apsw.Connection, workspace: int, kind: str, key: bytes) -> list[ConversationRow]:
    query = f"SELECT {CONVERSATION} FROM conversation WHERE workspace = ? AND kind = ? AND key = ?"
    return [conversation(found) for found in fetch_all(connection, query, (workspace, kind, key))]


def read_epoch(connection: apsw.Connection, workspace: int) -> int:
    return int(fetch_one(connection, "SELECT epoch FROM workspace WHERE place = ?", (workspace,))[0])


def find_attachment(connection: apsw.Connection, workspace: int, conversation: bytes, name: bytes) -> tuple[int, int]:
    """Return the place of an attachment and its number of chunks: 0 if it is incomplete. (0, 0) if it is missing."""
    query = "SELECT place, chunks FROM attachment WHERE workspace = ? AND conversation = ? AND name = ?"
    found = fetch_first(connection, query, (workspace, conversation, name))
    return (0, 0) if found is None else (found[0], found[1])
