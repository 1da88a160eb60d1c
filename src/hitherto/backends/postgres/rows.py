"""The rows on PostgreSQL: the columns in order, and conversions in both directions.

Kinds and roles are stored as bytes: PostgreSQL's text cannot hold U+0000, which both may contain.
"""

from typing import Any

import msgspec

from ...backend import ConversationRow, MessageRow
from ...ids import RUN

# The fields of ConversationRow and MessageRow, in their order.
CONVERSATION = (
    "id, kind, key, version, token, generation, head, tips, next_seq, count, size, rewrites, "
    "created_at, active_at, expires_at, held, data_key, meta, proof"
)
MESSAGE = "number, conversation, seq, parent, link, main, role, revision, created_at, body, key, token, size"
_FIXED = ("id", "kind", "key", "created_at")  # of a conversation, unless a change sets `rekey`
MUTABLE = tuple(name for name in CONVERSATION.split(", ") if name not in _FIXED)

# The mark of a workspace in which a row was removed or replaced: see `erasure`.
MARKED = "removals = removals + 1"
MARK = f"UPDATE hitherto.workspace SET {MARKED} WHERE workspace_id = %s"

_MINUTE = 60_000_000  # microseconds

_pack_tips = msgspec.msgpack.Encoder().encode
_unpack_tips = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def shelf(active_at: int) -> int:
    """Return the minute of the activity: it changes rarely, so an index over it costs little."""
    return active_at // _MINUTE


def mutable(row: ConversationRow) -> tuple[object, ...]:
    """Return the values that a write changes, in the order of `MUTABLE`."""
    return (
        row.version, row.token, row.generation, row.head, _pack_tips(row.tips), row.next_seq, row.count, row.size,
        row.rewrites, row.active_at, row.expires_at, row.held, row.data_key, row.meta, row.proof,
    )  # fmt: skip


def conversation_values(row: ConversationRow) -> list[object]:
    values = list(msgspec.structs.astuple(row))
    values[1], values[7] = row.kind.encode(), _pack_tips(row.tips)
    return values


def conversation(found: tuple[Any, ...]) -> ConversationRow:
    values = list(found)
    try:
        values[1], values[7] = values[1].decode(), _unpack_tips(values[7])
    except (msgspec.MsgspecError, UnicodeDecodeError):  # no run continues then, and a sealed row fails its proof
        values[1], values[7] = values[1].decode(errors="replace"), (-1,)
    return ConversationRow(*values)


def message_values(m: MessageRow) -> tuple[object, ...]:
    return (
        m.number, m.conversation, m.seq, m.parent, m.link, m.main, m.role.encode(), m.revision, m.created_at, m.body,
        m.key, m.token, m.size, loose(m),
    )  # fmt: skip


def loose(m: MessageRow) -> int | None:
    """Return 0 for the first message of a run and 1 for the last, while it has a body of its own."""
    place = m.number % RUN
    if m.body is None or place not in (0, RUN - 1):
        return None
    return int(place > 0)


def message(found: tuple[Any, ...]) -> MessageRow:
    values = list(found)
    values[6] = values[6].decode(errors="replace")
    return MessageRow(*values)


def columns(bodies: bool) -> str:
    return MESSAGE if bodies else MESSAGE.replace("body", "NULL::bytea")


def unbroken(rows: list[MessageRow], last: int) -> list[MessageRow]:
    """Return the rows that lead up to the number `last` without a gap."""
    first = len(rows)
    while first and rows[first - 1].number == last:
        first, last = first - 1, last - 1
    return rows[first:]


def may_prepare(query: str) -> bool | None:
    """Return False for a statement that must not be prepared, else None.

    A prepared plan for a list of names ignores their number. For small workspaces it reads the whole workspace, and
    then does the same in large ones."""
    return False if "= ANY(" in query else None
