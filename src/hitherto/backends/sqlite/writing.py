"""Applying batches to a SQLite store, inside a transaction that the backend began.

SQLite rewrites an index entry if one of its columns stands in SET, even with the same value. So a column that is in an
index is set only if it changes, and the statement is chosen by the columns that do.
"""

from functools import cache

import apsw

from ...backend import (
    DONE,
    WORKSPACE,
    Batch,
    Change,
    ConversationRow,
    KeyShape,
    Missing,
    Outcome,
    PackRow,
    Stale,
    Tag,
    Taken,
)
from ...ids import RUN
from .attachments import remove_attachments
from .rows import (
    AMENDED,
    CONVERSATION,
    FRONT,
    conversation_values,
    fetch_all,
    fetch_first,
    fetch_one,
    find_attachment,
    find_by_key,
    find_row,
    message_values,
    read_epoch,
    slices,
    without_body,
)

_ROWS = 16  # messages in one INSERT

_INSERT_CONVERSATION = (
    f"INSERT INTO conversation (workspace, shelf, moved, {CONVERSATION}) VALUES ({', '.join('?' * 22)})"
)
_INDEXED = ("shelf", "moved", "expires_at")
_MUTABLE = [name for name in CONVERSATION.split(", ")[3:] if name not in ("created_at", "expires_at")]
_UPDATE_CONVERSATION = f"UPDATE conversation SET {', '.join(f'{name} = ?' for name in _MUTABLE)} WHERE place = ?"
_INSERT_MESSAGES = [
    f"INSERT INTO message (number, conversation, {AMENDED}) VALUES " + ", ".join([f"({', '.join('?' * 13)})"] * count)
    for count in range(_ROWS + 1)
]
_UPDATE_MESSAGE = f"UPDATE message SET {', '.join(f'{name} = ?' for name in AMENDED.split(', '))} WHERE number = ?"

_Indexed = tuple[int, int, int | None]  # shelf, moved, expires_at
Place = tuple[int, int, int, _Indexed]  # of a conversation: rowid, active_at, the current epoch, its indexed columns


class Writer:
    """Applies batches for one workspace."""

    def __init__(self, workspace: int, base: int) -> None:
        self._workspace, self._base = workspace, base

    def commit_one(self, connection: apsw.Connection, batch: Batch) -> Outcome:
        """Check a batch and apply it; an outcome other than `DONE` leaves the rows as they were."""
        for id, token in batch.require:
            row = find_row(connection, self._workspace, id)
            if row is None or row.token != token:
                return Stale(id, row)
        other = None if batch.every_key is None else self._find_other_key(connection, batch.every_key)
        if other is not None:
            return Stale(other.id, other)
        places: list[Place] = []
        for change in batch.changes:
            place = self._find_place(connection, change, is_copy=batch.is_copy)
            if not isinstance(place, tuple):
                return place
            places.append(place)
        for n, change in enumerate(batch.changes):
            self.apply(connection, change, places[n])
        return DONE

    def _find_other_key(self, connection: apsw.Connection, shape: KeyShape) -> ConversationRow | None:
        """Return a conversation whose data key does not fit the shape."""
        fits = ["length(data_key) = ?", *("substr(data_key, ?, ?) = ?" for _ in shape.parts)]
        values: list[str | bytes | int | None] = [self._workspace, WORKSPACE, shape.length]
        for offset, part in shape.parts:
            values += (offset + 1, len(part), part)
        query = f"SELECT id FROM conversation WHERE workspace = ? AND kind <> ? AND NOT ({' AND '.join(fits)}) LIMIT 1"
        found = fetch_first(connection, query, values)
        return None if found is None else find_row(connection, self._workspace, found[0])

    def _find_place(self, connection: apsw.Connection, change: Change, *, is_copy: bool) -> Place | Outcome:
        """Return the place of the conversation (0 for a new one), or the outcome if the change cannot be applied."""
        query = (
            "SELECT place, token, active_at, "
            "(SELECT w.epoch FROM workspace w WHERE w.place = c.workspace), "  # a join costs several times as much
            "shelf, moved, expires_at FROM conversation c WHERE id = ? AND workspace = ?"
        )
        found = fetch_first(connection, query, (change.conversation, self._workspace))
        if change.expect is None:
            if found is not None:
                return Taken("id", change.conversation)
            if change.row is not None and change.row.key is not None:
                for other in find_by_key(connection, self._workspace, change.row.kind, change.row.key):
                    return Taken("key", other.id)
        elif found is None or found[1] != change.expect:
            return Stale(change.conversation, find_row(connection, self._workspace, change.conversation))
        elif change.rekey and change.row is not None and change.row.key is not None:
            for other in find_by_key(connection, self._workspace, change.row.kind, change.row.key):
                if other.id != change.conversation:
                    return Taken("key", other.id)
        if found is None:
            place: Place = (0, 0, read_epoch(connection, self._workspace), (0, -1, None))
        else:
            place = (found[0], found[2], found[3], found[4:])
        for message in change.add:
            if message.number % RUN == 0 and self._is_run_taken(connection, message.number, is_copy=is_copy):
                return Taken("number", change.conversation)
            if message.key is not None and self._is_key_taken(connection, place[0], message.key):
                return Taken("message key", change.conversation)
        for _, name in change.attach:
            if not find_attachment(connection, self._workspace, change.conversation, name)[1]:
                return Missing(change.conversation, name)
        return place

    def _is_run_taken(self, connection: apsw.Connection, number: int, *, is_copy: bool) -> bool:
        """Tell whether a number of this run is, or ever was, in use."""
        first = self._base + number
        query = (
            "SELECT 1 FROM message WHERE number BETWEEN ? AND ? UNION ALL "
            "SELECT 1 FROM workspace WHERE place = ? AND retired >= ? AND NOT ? LIMIT 1"
        )
        return fetch_first(connection, query, (first, first + RUN - 1, self._workspace, number, is_copy)) is not None

    def _is_key_taken(self, connection: apsw.Connection, place: int, key: bytes) -> bool:
        query = "SELECT 1 FROM message WHERE conversation = ? AND key = ?"
        return fetch_first(connection, query, (place, key)) is not None

    def apply(self, connection: apsw.Connection, change: Change, found: Place) -> None:
        execute = connection.execute
        place = found[0]
        if change.row is None or change.drop:
            self._retire_numbers(connection, change, place)
        if _removes_for_good(change):
            self._count_removal(connection)
        if change.row is None:
            packs = "SELECT number FROM message WHERE conversation = ? AND body IS NULL"
            execute(f"DELETE FROM pack WHERE first IN ({packs})", (place,))
            for table in ("tag", "item", "reference", "message"):
                execute(f"DELETE FROM {table} WHERE conversation = ?", (place,))
            mine = "SELECT place FROM attachment WHERE workspace = ? AND conversation = ?"
            remove_attachments(connection, mine, (self._workspace, change.conversation))
            execute("DELETE FROM conversation WHERE place = ?", (place,))
            asked = fetch_first(connection, "SELECT 1 FROM mark WHERE workspace = ? LIMIT 1", (self._workspace,))
            if asked:  # an index follows the feed
                execute("INSERT OR IGNORE INTO gone VALUES (?, ?, ?)", (self._workspace, found[2], change.conversation))
            return
        place = self._write_row(connection, change.row, found)
        if change.rekey:
            execute("UPDATE conversation SET key = ? WHERE place = ?", (change.row.key, place))
        if change.attach or change.drop or change.detach:
            self._apply_references(connection, change, place)
        for start in range(0, len(change.add), _ROWS):
            rows: list[str | bytes | int | None] = []
            for m in change.add[start : start + _ROWS]:
                rows += (
                    self._base + m.number, place, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at,
                    m.body, m.key, m.token, m.size,
                )  # fmt: skip
            execute(_INSERT_MESSAGES[len(rows) // 13], rows)
        if change.amend or change.unpack or change.pack:
            self._apply_bodies(connection, change, place)
        if change.put or change.unput or change.untag or change.tag:
            self._apply_items(connection, change, place)

    def _apply_references(self, connection: apsw.Connection, change: Change, place: int) -> None:
        """Attach, remove messages, and detach, in this order: what one message releases, another may refer to."""
        execute = connection.execute
        for number, name in change.attach:
            attachment = find_attachment(connection, self._workspace, change.conversation, name)[0]
            execute("INSERT OR IGNORE INTO reference VALUES (?, ?, ?)", (place, number, attachment))
        for number in change.drop:
            execute("DELETE FROM message WHERE number = ?", (self._base + number,))
            execute("DELETE FROM tag WHERE conversation = ? AND message = ?", (place, number))
            query = "SELECT attachment FROM reference WHERE conversation = ? AND message = ?"
            for (attachment,) in fetch_all(connection, query, (place, number)):
                self._release_attachment(connection, place, number, attachment)
        for number, name in change.detach:
            self._release_attachment(
                connection, place, number, find_attachment(connection, self._workspace, change.conversation, name)[0]
            )

    def _apply_bodies(self, connection: apsw.Connection, change: Change, place: int) -> None:
        """Replace rows of messages, and packs."""
        execute = connection.execute
        for m in change.amend:
            execute(_UPDATE_MESSAGE, (*message_values(m), self._base + m.number))
        for first in change.unpack:
            execute("DELETE FROM pack WHERE first = ?", (self._base + first,))
        for pack in change.pack:
            self._put_pack(connection, pack, place)

    def _apply_items(self, connection: apsw.Connection, change: Change, place: int) -> None:
        """Write the items and the tags."""
        execute = connection.execute
        for item in change.put:
            query = "INSERT OR REPLACE INTO item (conversation, key, revision, body) VALUES (?, ?, ?, ?)"
            execute(query, (place, item.key, item.revision, item.body))
        for key in change.unput:
            execute("DELETE FROM item WHERE conversation = ? AND key = ?", (place, key))
        for tag in change.untag:
            query = "DELETE FROM tag WHERE workspace = ? AND value = ? AND conversation = ? AND message = ?"
            execute(query, self._tag_values(tag, place))
        for tag in change.tag:
            query = "INSERT OR IGNORE INTO tag (workspace, value, conversation, message) VALUES (?, ?, ?, ?)"
            execute(query, self._tag_values(tag, place))

    def _put_pack(self, connection: apsw.Connection, pack: PackRow, place: int) -> None:
        """Write a pack, and remove the bodies of the messages that it holds."""
        first = self._base + pack.first
        query = "INSERT OR REPLACE INTO pack (first, conversation, parent, count, body) VALUES (?, ?, ?, ?, ?)"
        connection.execute(query, (first, place, pack.parent, pack.count, pack.body))
        between = (first, first + pack.count - 1)
        query = f"SELECT {without_body('number, conversation, ' + AMENDED)} FROM message WHERE number BETWEEN ? AND ?"
        loose = fetch_first(connection, f"{query} AND body IS NOT NULL LIMIT 1", between)
        if loose is not None:
            rows = fetch_all(connection, query, between)
            connection.execute("DELETE FROM message WHERE number BETWEEN ? AND ?", between)
            for some in slices(rows, _ROWS):
                connection.execute(_INSERT_MESSAGES[len(some)], [value for row in some for value in row])

    def _release_attachment(self, connection: apsw.Connection, place: int, number: int, attachment: int) -> None:
        """Remove a message's reference to an attachment, and the attachment with its last reference."""
        query = "DELETE FROM reference WHERE conversation = ? AND message = ? AND attachment = ?"
        connection.execute(query, (place, number, attachment))
        query = "SELECT ? WHERE NOT EXISTS (SELECT 1 FROM reference WHERE attachment = ?)"
        remove_attachments(connection, query, (attachment, attachment))

    def _write_row(self, connection: apsw.Connection, row: ConversationRow, found: Place) -> int:
        """Insert or update the conversation's row, keep the shelf in order, and return the row's place."""
        place, active_at, epoch, before = found
        values = conversation_values(row)
        stays = before[0] == FRONT and row.active_at >= active_at  # it was the newest one, and still is
        after = (FRONT if stays else self._choose_shelf(connection, row, place), epoch, row.expires_at)
        if place == 0:
            connection.execute(_INSERT_CONVERSATION, (self._workspace, *after[:2], *values))
            return connection.last_insert_rowid()
        rest = (*values[3:12], values[13], *values[15:], place)
        if after == before:
            connection.execute(_UPDATE_CONVERSATION, rest)
        else:
            changed = tuple(n for n in range(3) if before[n] != after[n])
            connection.execute(_update_with(changed), (*(after[n] for n in changed), *rest))
        return place

    def _choose_shelf(self, connection: apsw.Connection, row: ConversationRow, place: int) -> int:
        """Return the shelf of this conversation: the front, if it is now the newest of its kind.

        Then the conversation that was in front moves to the shelf of its own activity."""
        query = "SELECT place, active_at, id FROM conversation WHERE workspace = ? AND kind = ?"
        in_front = fetch_first(connection, f"{query} AND shelf = {FRONT}", (self._workspace, row.kind))
        newest = in_front
        if in_front is None or in_front[0] == place:  # the newest one was removed, or is this one and has become older
            beside = f"{query} AND place <> ? ORDER BY shelf DESC, id DESC LIMIT 1"
            newest = fetch_first(connection, beside, (self._workspace, row.kind, place))
        if newest is not None and (row.active_at, row.id) < (newest[1], newest[2]):
            return row.active_at
        if newest is not None:
            query = "UPDATE conversation SET shelf = active_at WHERE place = ? AND shelf <> active_at"
            connection.execute(query, (newest[0],))
        return FRONT

    def _retire_numbers(self, connection: apsw.Connection, change: Change, place: int) -> None:
        """Record the highest removed number, so that no number is used again."""
        highest = max(change.drop, default=-1)
        if change.row is None:
            found = fetch_one(connection, "SELECT max(number) FROM message WHERE conversation = ?", (place,))[0]
            highest = -1 if found is None else found - self._base
        query = "UPDATE workspace SET retired = max(retired, ?) WHERE place = ?"
        connection.execute(query, (highest, self._workspace))

    def _count_removal(self, connection: apsw.Connection) -> None:
        """Count a removal: SQLite may have left copies of the removed bytes on other pages, which `erasure` removes."""
        connection.execute("UPDATE workspace SET removals = removals + 1 WHERE place = ?", (self._workspace,))

    def _tag_values(self, tag: Tag, place: int) -> tuple[int, bytes, int, int]:
        return self._workspace, tag.value, place, -1 if tag.message is None else tag.message


def _removes_for_good(change: Change) -> bool:
    """Tell whether a change removes text without replacing it.

    An item that is replaced by messages or by other items does not count: a recorder does that with every answer, and
    the item is erased with the next removal."""
    if change.row is None or change.drop or change.amend or change.detach:
        return True
    return bool(change.unput) and not (change.add or change.put)


@cache
def _update_with(indexed: tuple[int, ...]) -> str:
    """Return the UPDATE statement that sets these indexed columns as well."""
    more = "".join(f"{_INDEXED[n]} = ?, " for n in indexed)
    return _UPDATE_CONVERSATION.replace(" SET ", f" SET {more}")
