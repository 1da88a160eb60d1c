"""Many rows in few statements: for copies and large writes.

A statement that adds one row costs about as much as one that adds hundreds. So rows are sent as columns: an array for
each, which `unnest` turns into rows again. (COPY would be faster still, but row-level security forbids it.)

A copy usually brings whole new conversations, in which nothing is dropped or changed. For those a commit takes three
round trips, whatever their number. Only the rows whose tokens are named are looked up beforehand. If a name is taken, a
unique index raises, and the long way finds out which.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from ...backend import Batch, Change, ConversationRow, MessageRow
from .connection import Connection
from .rows import CONVERSATION, MESSAGE, conversation_values, message_values, shelf

_TYPES = {
    **dict.fromkeys(("id", "kind", "key", "token", "tips", "data_key", "meta", "proof"), "bytea"),
    **dict.fromkeys(("conversation", "role", "body", "value"), "bytea"),
    **dict.fromkeys(("held", "main"), "boolean"),
}
_MESSAGES = f"{MESSAGE}, loose"
_CONVERSATIONS = f"{CONVERSATION}, shelf"
_PACKS = "first, conversation, parent, count, body"
_ITEMS = "conversation, key, revision, body"
_TAGS = "value, conversation, message"
# Without it, a cluster would send the rows to their node by COPY, which row-level security forbids.
_ONE_BY_ONE = "RETURNING 1"
_OVER_PACK = (
    "ON CONFLICT (workspace_id, first) DO UPDATE "
    "SET parent = excluded.parent, count = excluded.count, body = excluded.body"
)
_OVER_ITEM = (
    "ON CONFLICT (workspace_id, conversation, key) DO UPDATE SET revision = excluded.revision, body = excluded.body"
)
_NULL_BODIES = (
    "UPDATE hitherto.message m SET body = NULL, loose = NULL FROM unnest(%s::bigint[], %s::bigint[]) p (first, last) "
    "WHERE m.workspace_id = %s AND m.number BETWEEN p.first AND p.last AND m.body IS NOT NULL"
)


@lru_cache(maxsize=16)
def _insert(table: str, columns: str, conflict: str) -> str:
    names, values = (", moved", ", 0") if table == "conversation" else ("", "")
    arrays = ", ".join(f"%b::{_TYPES.get(name, 'bigint')}[]" for name in columns.split(", "))
    return (
        f"INSERT INTO hitherto.{table} (workspace_id, {columns}{names}) "
        f"SELECT %s::uuid, v.*{values} FROM unnest({arrays}) v {conflict} {_ONE_BY_ONE}"
    )


def _put(
    connection: Connection, w: UUID, table: str, columns: str, rows: Iterable[Sequence[Any]], conflict: str = ""
) -> None:
    if arrays := [list(column) for column in zip(*rows, strict=True)]:
        connection.execute(_insert(table, columns, conflict), (w, *arrays))


def put_messages(connection: Connection, w: UUID, messages: Iterable[MessageRow]) -> None:
    """Insert these messages."""
    _put(connection, w, "message", _MESSAGES, map(message_values, messages))


def put_all(connection: Connection, w: UUID, changes: Sequence[Change]) -> None:
    """Insert everything that these changes add. Rows of existing conversations are not changed."""
    new = [change.row for change in changes if change.row is not None and change.expect is None]
    _put(connection, w, "conversation", _CONVERSATIONS, map(_conversation, new))
    put_messages(connection, w, [m for change in changes for m in change.add])
    packs = [(p.first, p.conversation, p.parent, p.count, p.body) for change in changes for p in change.pack]
    _put(connection, w, "pack", _PACKS, packs, _OVER_PACK)
    if packs:
        spans = [p[0] for p in packs], [p[0] + p[3] - 1 for p in packs]
        connection.execute(_NULL_BODIES, (*spans, w))
    items = [(change.conversation, i.key, i.revision, i.body) for change in changes for i in change.put]
    _put(connection, w, "item", _ITEMS, items, _OVER_ITEM)
    tags = [
        (tag.value, change.conversation, -1 if tag.message is None else tag.message)
        for change in changes
        for tag in change.tag
    ]
    _put(connection, w, "tag", _TAGS, tags, "ON CONFLICT DO NOTHING")


def _conversation(row: ConversationRow) -> list[object]:
    return [*conversation_values(row), shelf(row.active_at)]


def only_arrive(batches: Sequence[Batch]) -> bool:
    """Tell whether all batches come from a copy, and each change only adds, to a conversation of its own."""
    changes = [change for batch in batches for change in batch.changes]
    named = [change.conversation for change in changes]
    return (
        all(batch.is_copy for batch in batches)
        and len(set(named)) == len(named)
        and not any(id in named for batch in batches for id, _ in batch.require)
        and all(batch.every_key is None for batch in batches)
        and all(map(_adds, changes))
    )


def _adds(change: Change) -> bool:
    taken = (change.amend, change.drop, change.unpack, change.attach, change.detach, change.unput, change.untag)
    return change.row is not None and not any(taken) and not change.rekey
