"""The backend in one SQLite file, through apsw.

Why it is laid out as it is, each by measurement (`make bench`):

- A message's rowid is its number (with the workspace in the high bits). Numbers come in runs along a branch, so
  reading a path is one range read per run, and finding a message by its id needs no index. The only index that
  every message enters is (conversation, seq).
- Listings are by last activity, but an index that every append rewrites costs a page a turn. So it is over `shelf`,
  which is `active_at` for all conversations of a kind but one: the newest stands in front of them all, and its appends
  leave the index alone until another one overtakes it.
- WAL with `synchronous=FULL`: a commit returns after its frames are on the disk. `NORMAL` loses acknowledged
  messages in a power cut; the tests show it on a simulated disk.
- `BEGIN IMMEDIATE` and a busy handler that sleeps a random fraction of a millisecond or two: writers of several
  processes take turns instead of starving each other.
- A pack is a row of its own, found by the first number of its run. Packing deletes the messages and inserts them
  again without bodies, because SQLite joins pages that deleting has emptied, and not those that updating has.
- The feed of changes costs an append nothing: `moved` is the epoch of the last write, and a new epoch begins only when
  somebody asks for changes. So a conversation enters the index over it once between two such calls.
- `secure_delete` overwrites what is deleted; `auto_vacuum=INCREMENTAL` lets maintenance give pages back (it can only be
  chosen when the file is made).

apsw runs statements lazily: `execute("PRAGMA a; PRAGMA b")` stops at the first row. So it is one statement per
call, and a test reads every pragma back.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, TypeVar

import apsw
import msgspec

from ... import _own_files
from ...backend import (
    DONE,
    WORKSPACE,
    AttachmentRow,
    Batch,
    Change,
    Changes,
    ConversationRow,
    Disk,
    Info,
    ItemRow,
    KeyShape,
    Lifetime,
    Loose,
    MessageRow,
    Missing,
    Outcome,
    PackRow,
    Position,
    Said,
    Stale,
    Tag,
    Taken,
    Totals,
    Where,
    removes,
)
from ...errors import (
    AlreadyExists,
    Busy,
    CannotOpen,
    CommitUnknown,
    Damaged,
    HithertoError,
    InvalidArgument,
    NewerFormat,
    NotAStore,
    NotFound,
    ReadOnly,
    StorageError,
)
from ...ids import RUN, new_conversation_id
from ...textindex import TextIndex
from .connections import Pool, ensure_wal, transaction, view
from .disk_space import OFTEN, Room, size_of
from .erasure import Erasure
from .files import free_bytes, make_private, sync, translated
from .older_formats import READABLE_FROM, complete
from .rebuild import drop_copies, index_name, is_under_way, live_tables
from .schema import APPLICATION_ID, MIGRATIONS

PER_CONNECTION = (
    "synchronous = FULL",
    "foreign_keys = ON",
    "secure_delete = ON",
    "wal_autocheckpoint = 2000",  # pages: a checkpoint costs two syncs, and writes a page that changed often once
    "journal_size_limit = 8388608",  # bytes, as many: a WAL that has to grow again is slower to sync
)

_WORKSPACE_BITS = 47  # numbers stay below 2**47; the workspace's own integer lies above
_MOST_WORKSPACES = 1 << 16
_COMMON = 1000  # conversations with a tag, above which a page is found faster by looking at the newest ones
_LISTED = 4096  # rows that an iterator reads at a time
_CHUNK = 400  # numbers in one IN (…), well below SQLite's limit
_ROWS = 16  # messages in one INSERT
_CHUNK_BITS = 24  # chunks of one attachment are numbered below 2**24; its place lies above
_VACUUM = 256  # pages given back in one transaction
_REBUILD_SECONDS = 0.5  # maintenance writes a large store anew for at least so long, then others may fork
_MARKS = 64  # positions in the feed that are remembered

# The fields of ConversationRow and MessageRow, in their order. The first two parameters of a message's columns are the
# workspace's base, which is taken off its number, and the id of its conversation.
_CONVERSATION = (
    "id, kind, key, version, token, generation, head, tips, next_seq, count, size, rewrites, "
    "created_at, active_at, expires_at, held, data_key, meta, proof"
)
_PATH = "number - ?, ?, seq, parent, link, main, role, revision, created_at, body"
_MESSAGE = f"{_PATH}, key, token, size"
_JOINED = (
    "m.number - ?, c.id, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, "
    "m.body, m.key, m.token, m.size"
)
_AMENDED = "seq, parent, link, main, role, revision, created_at, body, key, token, size"

_INSERT_CONVERSATION = (
    f"INSERT INTO conversation (workspace, shelf, moved, {_CONVERSATION}) VALUES ({', '.join('?' * 22)})"
)
# SQLite rewrites an index entry if one of its columns stands in SET, even with the same value. So a column that is in
# an index is set only if it changes.
_INDEXED = ("shelf", "moved", "expires_at")
_MUTABLE = [name for name in _CONVERSATION.split(", ")[3:] if name not in ("created_at", "expires_at")]
_UPDATE_CONVERSATION = f"UPDATE conversation SET {', '.join(f'{name} = ?' for name in _MUTABLE)} WHERE place = ?"
_FRONT = 1 << 62  # the shelf of the newest conversation of its kind
# SQLite knows how long a value is without reading it.
_ATTACHED = (
    "SELECT coalesce(sum(length(c.body)), 0) FROM attachment a CROSS JOIN chunk c "
    f"ON c.number >= a.place << {_CHUNK_BITS} AND c.number < (a.place + 1) << {_CHUNK_BITS}"
)
_INSERT_MESSAGES = [
    f"INSERT INTO message (number, conversation, {_AMENDED}) VALUES " + ", ".join([f"({', '.join('?' * 13)})"] * count)
    for count in range(_ROWS + 1)
]
_UPDATE_MESSAGE = f"UPDATE message SET {', '.join(f'{name} = ?' for name in _AMENDED.split(', '))} WHERE number = ?"

_T = TypeVar("_T")
_Indexed = tuple[int, int, int | None]  # shelf, moved, expires_at
_Place = tuple[int, int, int, _Indexed]  # of a conversation: row, when active, the epoch now, and its indexed columns
_Values = Sequence[str | bytes | int | None]

_pack = msgspec.msgpack.Encoder().encode
_unpack_tips = msgspec.msgpack.Decoder(tuple[int, ...]).decode


class SqliteBackend:
    """One workspace of one SQLite file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        workspace: str = "default",
        vfs: str | None = None,
        timeout_seconds: float = 30.0,
        read_only: bool = False,
        create: bool = True,
        identity: bytes | None = None,
    ) -> None:
        """With `read_only` nothing is made and no byte is written: what is not there is an error. Without `create` it
        is, too. A workspace that is made now gets this `identity`, unless another one in the file has it."""
        prepare = _prepare_reader if read_only else _prepare
        self._pool = Pool(path, prepare, vfs=vfs, timeout_seconds=timeout_seconds, read_only=read_only, create=create)
        self._path = self._pool.path
        self._room = Room(self._path, timeout_seconds)
        self._pool.make_room = self._room.ballast.give_for_opening
        self._connection = self._pool.lease
        self._erasure = Erasure(self._pool)
        self._scrubbing = threading.Lock()  # two at once would be in each other's way
        with self._pool.mapped():
            first = self._pool.connect()
            try:
                if read_only:
                    _check_current(first)
                else:
                    self._migrate(first)
                known = read_only or not create
                place = _find_workspace(first, workspace) if known else _ensure_workspace(first, workspace, identity)
                self._workspace, workspace_id = place
                if self._workspace > _MOST_WORKSPACES:
                    hint = "put workspaces into files of their own"
                    raise StorageError(f"{self._path} has too many workspaces", hint=hint)
            except BaseException:
                self._pool.drop(first)
                raise
            self._pool.give_back(first)
        self._base = (self._workspace - 1) << _WORKSPACE_BITS  # the first workspace has the small, short integers
        self.info = Info(
            name="sqlite",
            workspace=workspace_id,
            location=self._path,
            durable=True,
            can_backup=True,
            workspace_name=workspace,
        )

    def close(self, *, untouched: bool = False) -> None:
        self._pool.close(untouched=untouched)
        last = not os.path.exists(f"{self._path}-wal")  # which SQLite removes when nobody has the file open any more
        if last and not untouched and not self._pool.read_only:
            self._room.ballast.fold()

    # -- schema

    def _migrate(self, connection: apsw.Connection) -> None:
        """Bring the file to the newest version, each step in one transaction with its record."""
        if _check_ours(connection) == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()  # only an empty file can choose it
        ensure_wal(connection, self._pool.timeout_seconds)
        # Or no table can be dropped that another one refers to; and it cannot be chosen within a transaction.
        connection.execute("PRAGMA foreign_keys = OFF").fetchall()
        while connection.pragma("user_version") < len(MIGRATIONS):
            with transaction(connection):
                version = _check_ours(connection)  # another process may have been faster
                if version < len(MIGRATIONS):
                    name, statements = MIGRATIONS[version]
                    _all(connection, "SELECT 1 FROM sqlite_schema LIMIT 1")  # ALTER would believe an outdated schema
                    drop_copies(connection)  # which lack what this step adds: the rebuild begins again
                    for statement in statements:
                        connection.execute(statement)
                    record = (version + 1, name, time.time_ns() // 1000)
                    connection.execute("INSERT INTO migration VALUES (?, ?, ?)", record)
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", version + 1)
        connection.execute("PRAGMA foreign_keys = ON").fetchall()

    # -- writing

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        if not batches:
            return []  # what can be read was synced
        with self._connection() as connection:
            weight = sum(len(m.body or b"") for batch in batches for change in batch.changes for m in change.add)
            if weight > OFTEN or self._room.is_outgrown:
                self._room.expect(connection, weight)
            try:
                outcomes = self._transact(connection, batches)
            except (apsw.Error, CommitUnknown) as error:
                if not self._room.was_missing(error, connection):
                    raise
                if all(map(removes, batches)):
                    return self._room.by_force(connection, lambda begun: self._transact(connection, batches, begun))
                if not self._room.gained(connection):
                    raise
                outcomes = self._transact(connection, batches)
            self._room.wrote(connection, weight)
            return outcomes

    def _transact(
        self, connection: apsw.Connection, batches: Sequence[Batch], begun: Callable[[], None] = lambda: None
    ) -> list[Outcome]:
        try:
            connection.execute("BEGIN IMMEDIATE")
            begun()
            outcomes = [self._commit_one(connection, batch) for batch in batches]
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        try:
            connection.execute("COMMIT" if DONE in outcomes else "ROLLBACK")
        except apsw.Error as error:
            reason = translated(error, self._path, connection)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise CommitUnknown(f"the commit was interrupted: {reason}", reason=reason) from error
        return outcomes

    def _commit_one(self, connection: apsw.Connection, batch: Batch) -> Outcome:
        for id, token in batch.require:
            row = self._row(connection, id)
            if row is None or row.token != token:
                return Stale(id, row)
        other = None if batch.every_key is None else self._with_another_key(connection, batch.every_key)
        if other is not None:
            return Stale(other.id, other)
        places: list[_Place] = []
        for change in batch.changes:
            place = self._place(connection, change, arriving=batch.arriving)
            if not isinstance(place, tuple):
                return place
            places.append(place)
        for n, change in enumerate(batch.changes):
            self._apply(connection, change, places[n])
        return DONE

    def _with_another_key(self, connection: apsw.Connection, shape: KeyShape) -> ConversationRow | None:
        """A conversation whose data key does not look like this."""
        fits = ["length(data_key) = ?", *("substr(data_key, ?, ?) = ?" for _ in shape.parts)]
        values: list[str | bytes | int | None] = [self._workspace, WORKSPACE, shape.length]
        for offset, part in shape.parts:
            values += (offset + 1, len(part), part)
        query = f"SELECT id FROM conversation WHERE workspace = ? AND kind <> ? AND NOT ({' AND '.join(fits)}) LIMIT 1"
        found = _maybe(connection, query, values)
        return None if found is None else self._row(connection, found[0])

    def _place(self, connection: apsw.Connection, change: Change, *, arriving: bool) -> _Place | Outcome:
        """Where the conversation lies (place 0 if it is new) if the change may be applied, else what is in the way."""
        query = (
            "SELECT place, token, active_at, "
            "(SELECT w.epoch FROM workspace w WHERE w.place = c.workspace), "  # a join would cost several times as much
            "shelf, moved, expires_at FROM conversation c WHERE id = ? AND workspace = ?"
        )
        found = _maybe(connection, query, (change.conversation, self._workspace))
        if change.expect is None:
            if found is not None:
                return Taken("id", change.conversation)
            if change.row is not None and change.row.key is not None:
                for other in self._by_key(connection, change.row.kind, change.row.key):
                    return Taken("key", other.id)
        elif found is None or found[1] != change.expect:
            return Stale(change.conversation, self._row(connection, change.conversation))
        elif change.rekey and change.row is not None and change.row.key is not None:
            for other in self._by_key(connection, change.row.kind, change.row.key):
                if other.id != change.conversation:
                    return Taken("key", other.id)
        if found is None:
            place: _Place = (0, 0, self._epoch(connection), (0, -1, None))
        else:
            place = (found[0], found[2], found[3], found[4:])
        for message in change.add:
            if message.number % RUN == 0 and self._run_taken(connection, message.number, arriving=arriving):
                return Taken("number", change.conversation)
            if message.key is not None and self._key_taken(connection, place[0], message.key):
                return Taken("message key", change.conversation)
        for _, name in change.attach:
            if not self._attachment(connection, change.conversation, name)[1]:
                return Missing(change.conversation, name)
        return place

    def _epoch(self, connection: apsw.Connection) -> int:
        return int(_one(connection, "SELECT epoch FROM workspace WHERE place = ?", (self._workspace,))[0])

    def _attachment(self, connection: apsw.Connection, conversation: bytes, name: bytes) -> tuple[int, int]:
        """Where an attachment lies, and how many chunks it has; zeroes if it is not there, or not complete."""
        query = "SELECT place, chunks FROM attachment WHERE workspace = ? AND conversation = ? AND name = ?"
        found = _maybe(connection, query, (self._workspace, conversation, name))
        return (0, 0) if found is None else (found[0], found[1])

    def _run_taken(self, connection: apsw.Connection, number: int, *, arriving: bool) -> bool:
        """Is a number of this run in use, or was one?"""
        first = self._base + number
        query = (
            "SELECT 1 FROM message WHERE number BETWEEN ? AND ? UNION ALL "
            "SELECT 1 FROM workspace WHERE place = ? AND retired >= ? AND NOT ? LIMIT 1"
        )
        return _maybe(connection, query, (first, first + RUN - 1, self._workspace, number, arriving)) is not None

    def _key_taken(self, connection: apsw.Connection, place: int, key: bytes) -> bool:
        query = "SELECT 1 FROM message WHERE conversation = ? AND key = ?"
        return _maybe(connection, query, (place, key)) is not None

    def _apply(self, connection: apsw.Connection, change: Change, found: _Place) -> None:
        execute = connection.execute
        place = found[0]
        if change.row is None or change.drop:
            self._retire(connection, change, place)
        if _removes_for_good(change):
            self._count_removal(connection)
        if change.row is None:
            packs = "SELECT number FROM message WHERE conversation = ? AND body IS NULL"
            execute(f"DELETE FROM pack WHERE first IN ({packs})", (place,))
            for table in ("tag", "item", "reference", "message"):
                execute(f"DELETE FROM {table} WHERE conversation = ?", (place,))
            mine = "SELECT place FROM attachment WHERE workspace = ? AND conversation = ?"
            self._remove_attachments(connection, mine, (self._workspace, change.conversation))
            execute("DELETE FROM conversation WHERE place = ?", (place,))
            if _maybe(
                connection, "SELECT 1 FROM mark WHERE workspace = ? LIMIT 1", (self._workspace,)
            ):  # somebody asks
                execute("INSERT OR IGNORE INTO gone VALUES (?, ?, ?)", (self._workspace, found[2], change.conversation))
            return
        place = self._write_row(connection, change.row, found)
        if change.rekey:
            execute("UPDATE conversation SET key = ? WHERE place = ?", (change.row.key, place))
        for number, name in change.attach:  # before others let go of it
            attachment = self._attachment(connection, change.conversation, name)[0]
            execute("INSERT OR IGNORE INTO reference VALUES (?, ?, ?)", (place, number, attachment))
        for number in change.drop:
            execute("DELETE FROM message WHERE number = ?", (self._base + number,))
            execute("DELETE FROM tag WHERE conversation = ? AND message = ?", (place, number))
            query = "SELECT attachment FROM reference WHERE conversation = ? AND message = ?"
            for (attachment,) in _all(connection, query, (place, number)):
                self._let_go(connection, place, number, attachment)
        for number, name in change.detach:
            self._let_go(connection, place, number, self._attachment(connection, change.conversation, name)[0])
        for start in range(0, len(change.add), _ROWS):
            rows: list[str | bytes | int | None] = []
            for m in change.add[start : start + _ROWS]:
                rows += (
                    self._base + m.number, place, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at,
                    m.body, m.key, m.token, m.size,
                )  # fmt: skip
            execute(_INSERT_MESSAGES[len(rows) // 13], rows)
        for m in change.amend:
            execute(_UPDATE_MESSAGE, (*_message_values(m), self._base + m.number))
        for first in change.unpack:
            execute("DELETE FROM pack WHERE first = ?", (self._base + first,))
        for pack in change.pack:
            self._pack(connection, pack, place)
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

    def _pack(self, connection: apsw.Connection, pack: PackRow, place: int) -> None:
        """Put a pack, and take the bodies out of the messages it holds."""
        first = self._base + pack.first
        query = "INSERT OR REPLACE INTO pack (first, conversation, parent, count, body) VALUES (?, ?, ?, ?, ?)"
        connection.execute(query, (first, place, pack.parent, pack.count, pack.body))
        between = (first, first + pack.count - 1)
        query = f"SELECT {_without_body('number, conversation, ' + _AMENDED)} FROM message WHERE number BETWEEN ? AND ?"
        loose = _maybe(connection, f"{query} AND body IS NOT NULL LIMIT 1", between)
        if loose is not None:
            rows = _all(connection, query, between)
            connection.execute("DELETE FROM message WHERE number BETWEEN ? AND ?", between)
            for some in _chunks(rows, _ROWS):
                connection.execute(_INSERT_MESSAGES[len(some)], [value for row in some for value in row])

    def _let_go(self, connection: apsw.Connection, place: int, number: int, attachment: int) -> None:
        """A message does not refer to this attachment any more; if only it did, the attachment goes."""
        query = "DELETE FROM reference WHERE conversation = ? AND message = ? AND attachment = ?"
        connection.execute(query, (place, number, attachment))
        query = "SELECT ? WHERE NOT EXISTS (SELECT 1 FROM reference WHERE attachment = ?)"
        self._remove_attachments(connection, query, (attachment, attachment))

    def _remove_attachments(self, connection: apsw.Connection, query: str, values: _Values) -> int:
        """Remove the attachments whose places the query finds; how many."""
        places = [found[0] for found in _all(connection, query, values)]
        for place in places:
            between = (place << _CHUNK_BITS, ((place + 1) << _CHUNK_BITS) - 1)
            connection.execute("DELETE FROM chunk WHERE number BETWEEN ? AND ?", between)
            connection.execute("DELETE FROM attachment WHERE place = ?", (place,))
        return len(places)

    def _write_row(self, connection: apsw.Connection, row: ConversationRow, found: _Place) -> int:
        """Write the conversation's row, where it lies or at a new place, and keep the shelf in order."""
        place, active_at, epoch, before = found
        values = _conversation_values(row)
        stays = before[0] == _FRONT and row.active_at >= active_at  # it was the newest, and is newer still
        after = (_FRONT if stays else self._shelf(connection, row, place), epoch, row.expires_at)
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

    def _shelf(self, connection: apsw.Connection, row: ConversationRow, place: int) -> int:
        """Where this conversation belongs: in front if it is now the newest of its kind, whose place it then takes."""
        query = "SELECT place, active_at, id FROM conversation WHERE workspace = ? AND kind = ?"
        in_front = _maybe(connection, f"{query} AND shelf = {_FRONT}", (self._workspace, row.kind))
        newest = in_front
        if in_front is None or in_front[0] == place:  # the one in front is gone, or has become older
            beside = f"{query} AND place <> ? ORDER BY shelf DESC, id DESC LIMIT 1"
            newest = _maybe(connection, beside, (self._workspace, row.kind, place))
        if newest is not None and (row.active_at, row.id) < (newest[1], newest[2]):
            return row.active_at
        if newest is not None:
            query = "UPDATE conversation SET shelf = active_at WHERE place = ? AND shelf <> active_at"
            connection.execute(query, (newest[0],))
        return _FRONT

    def _retire(self, connection: apsw.Connection, change: Change, place: int) -> None:
        """Remember the highest number that goes, so that no number is used again."""
        highest = max(change.drop, default=-1)
        if change.row is None:
            found = _one(connection, "SELECT max(number) FROM message WHERE conversation = ?", (place,))[0]
            highest = -1 if found is None else found - self._base
        query = "UPDATE workspace SET retired = max(retired, ?) WHERE place = ?"
        connection.execute(query, (highest, self._workspace))

    def _count_removal(self, connection: apsw.Connection) -> None:
        """SQLite may have left copies of what is removed or replaced on other pages: `_erasure` has work to do."""
        connection.execute("UPDATE workspace SET removals = removals + 1 WHERE place = ?", (self._workspace,))

    def _tag_values(self, tag: Tag, place: int) -> tuple[int, bytes, int, int]:
        return self._workspace, tag.value, place, -1 if tag.message is None else tag.message

    # -- reading conversations

    def _row(self, connection: apsw.Connection, id: bytes) -> ConversationRow | None:
        query = f"SELECT {_CONVERSATION} FROM conversation WHERE id = ? AND workspace = ?"
        found = _maybe(connection, query, (id, self._workspace))
        return None if found is None else _conversation(found)

    def _by_key(self, connection: apsw.Connection, kind: str, key: bytes) -> list[ConversationRow]:
        query = f"SELECT {_CONVERSATION} FROM conversation WHERE workspace = ? AND kind = ? AND key = ?"
        return [_conversation(found) for found in _all(connection, query, (self._workspace, kind, key))]

    def lookup(
        self,
        *,
        ids: Sequence[bytes] = (),
        prefix: str | None = None,
        key: tuple[str, bytes] | None = None,
        limit: int = 10,
    ) -> list[ConversationRow]:
        with self._connection() as connection:
            if key is not None:
                return self._by_key(connection, *key)
            if prefix is not None:
                between = bytes.fromhex(prefix.ljust(32, "0")), bytes.fromhex(prefix.ljust(32, "f"))
                query = (
                    f"SELECT {_CONVERSATION} FROM conversation WHERE id BETWEEN ? AND ? AND workspace = ? "
                    "ORDER BY id LIMIT ?"
                )
                return [_conversation(found) for found in _all(connection, query, (*between, self._workspace, limit))]
            if len(ids) == 1:
                row = self._row(connection, ids[0])
                return [] if row is None else [row]
            query = f"SELECT {_CONVERSATION} FROM conversation WHERE id = ? AND workspace = ?"
            values = [(id, self._workspace) for id in ids]
            return [_conversation(found) for found in connection.executemany(query, values)]

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        column, way, beyond = ("created_at", "ASC", ">") if oldest_first else ("shelf", "DESC", "<")
        # The row itself is read only for the one in front, whose shelf does not tell its time.
        at = "c.created_at" if oldest_first else f"CASE WHEN c.shelf = {_FRONT} THEN c.active_at ELSE c.shelf END"
        ending = f" ORDER BY c.{column} {way}, c.id {way} LIMIT ?"
        front: list[Position] = []
        with self._connection() as connection:
            rarest, conversations = self._rarest(connection, where.tags)
            source, values = self._source(where, rarest if conversations < _COMMON else None)
            query = f"SELECT {at}, c.id {source}"
            if after is None:
                found = _all(connection, query + ending, (*values, limit))
            else:
                beyond_it = f" AND (c.{column}, c.id) {beyond} (?, ?)"
                found = _all(connection, query + beyond_it + ending, (*values, after.at, after.id, limit))
                if not oldest_first:
                    front = [Position(*one) for one in _all(connection, f"{query} AND c.shelf = {_FRONT}", values)]
        if after is not None:
            front = [place for place in front if (place.at, place.id) < (after.at, after.id)]
        return (front + [Position(*place) for place in found])[:limit]

    def count(self, where: Where) -> int:
        with self._connection() as connection:
            source, values = self._source(where, self._rarest(connection, where.tags)[0])
            return int(_one(connection, f"SELECT count(*) {source}", values)[0])

    def totals(self, kind: str) -> Totals:
        query = (
            "SELECT count(*), ifnull(sum(count), 0), ifnull(sum(size), 0), min(created_at), max(active_at) "
            "FROM conversation WHERE workspace = ? AND kind = ?"
        )
        with self._connection() as connection:
            return Totals(*_one(connection, query, (self._workspace, kind)))

    def lifetimes(self, kind: str) -> Iterator[list[Lifetime]]:
        """By place: the plus sign keeps SQLite from sorting what an index finds."""
        query = (
            "SELECT place, id, active_at, expires_at, held FROM conversation "
            f"WHERE place > ? AND +workspace = ? AND kind = ? ORDER BY place LIMIT {_LISTED}"
        )
        place = -1
        while True:
            with self._connection() as connection:
                found = _all(connection, query, (place, self._workspace, kind))
            yield [Lifetime(id, active_at, expires_at, held == 1) for _, id, active_at, expires_at, held in found]
            if len(found) < _LISTED:
                return
            place = found[-1][0]

    def said(self, kind: str, since: int, day: int) -> list[Said]:
        """Conversations that began before are read from their ends, and no further than to `since`."""
        began_since = (
            "SELECT m.created_at / ? AS day, m.role, count(*) FROM conversation c "
            "CROSS JOIN message m ON m.conversation = c.place "
            "WHERE c.workspace = ? AND c.kind = ? AND c.created_at >= ? GROUP BY day, m.role"
        )
        older = "SELECT place FROM conversation WHERE workspace = ? AND kind = ? AND created_at < ? AND active_at >= ?"
        backwards = "SELECT created_at, role FROM message WHERE conversation = ? ORDER BY seq DESC"
        counts: Counter[tuple[int, str]] = Counter()
        with self._connection() as connection:
            for at, role, count in _all(connection, began_since, (day, self._workspace, kind, since)):
                counts[at, role] += count
            for (place,) in _all(connection, older, (self._workspace, kind, since, since)):
                rows = takewhile(lambda row: row[0] >= since, connection.execute(backwards, (place,)))
                counts.update((at // day, role) for at, role in rows)
        return [Said(*what, count) for what, count in counts.items()]

    def _rarest(self, connection: apsw.Connection, tags: Sequence[bytes]) -> tuple[bytes | None, int]:
        """The tag that the fewest conversations have, and how many have it. No more than `_COMMON` are counted."""
        query = "SELECT count(*) FROM (SELECT 1 FROM tag WHERE workspace = ? AND value = ? AND message = -1 LIMIT ?)"
        counts = {tag: int(_one(connection, query, (self._workspace, tag, _COMMON))[0]) for tag in tags}
        rarest = min(counts, key=counts.__getitem__, default=None)
        return rarest, 0 if rarest is None else counts[rarest]

    def _source(self, where: Where, first: bytes | None) -> tuple[str, tuple[int | str | bytes, ...]]:
        """The conversations that are meant. SQLite goes through those that have the tag `first` or, if that is None,
        through all of them in the order of an index: it has no statistics by which it could choose."""
        source, condition = "FROM conversation c", "c.workspace = ? AND c.kind = ?"
        values: tuple[int | str | bytes, ...] = (self._workspace, where.kind)
        if first is not None:
            source = "FROM tag f CROSS JOIN conversation c ON c.place = f.conversation"  # which fixes the order
            condition = f"f.workspace = ? AND f.value = ? AND f.message = -1 AND {condition}"
            values = (self._workspace, first, *values)
        for tag in where.tags:
            if tag != first:
                condition += (
                    " AND EXISTS (SELECT 1 FROM tag t WHERE t.workspace = ? AND t.value = ? "
                    "AND t.conversation = c.place AND t.message = -1)"
                )
                values += (self._workspace, tag)
        if where.alive_at is not None:
            condition += " AND (c.expires_at IS NULL OR c.expires_at > ? OR c.held)"
            values += (where.alive_at,)
        if where.expired_at is not None:
            condition += " AND c.expires_at <= ?"
            values += (where.expired_at,)
        return f"{source} WHERE {condition}", values

    def kinds(self) -> list[str]:
        query = "SELECT DISTINCT kind FROM conversation WHERE workspace = ? ORDER BY kind"
        with self._connection() as connection:
            return [found[0] for found in _all(connection, query, (self._workspace,))]

    # -- reading messages

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        columns = _JOINED if bodies else _without_body(_JOINED)
        # The plus sign keeps SQLite from going through all conversations of the workspace, and their messages.
        query = (
            f"SELECT {columns} FROM message m JOIN conversation c ON c.place = m.conversation WHERE +c.workspace = ?"
        )
        rows: list[MessageRow] = []
        with self._connection() as connection:
            if keys is not None:
                conversation, wanted = keys
                for key in dict.fromkeys(wanted):
                    values = (self._base, self._workspace, conversation, key)
                    rows += _headed(_messages(connection, f"{query} AND c.id = ? AND m.key = ?", values))
            for some in _chunks(tuple(dict.fromkeys(numbers)), _CHUNK):
                chosen = (self._base, self._workspace, *(self._base + number for number in some))
                rows += _headed(
                    _messages(connection, f"{query} AND m.number IN ({', '.join('?' * len(some))})", chosen)
                )
        return rows

    def packs(self, runs: Sequence[int]) -> list[PackRow]:
        query = (
            "SELECT p.first - ?, c.id, p.parent, p.count, p.body FROM pack p "
            "JOIN conversation c ON c.place = p.conversation WHERE +c.workspace = ? AND p.first IN "  # as in `messages`
        )
        rows: list[PackRow] = []
        with self._connection() as connection:
            for some in _chunks(tuple(dict.fromkeys(runs)), _CHUNK):
                values = (self._base, self._workspace, *(self._base + first for first in some))
                rows += [
                    PackRow(*found) for found in _all(connection, f"{query}({', '.join('?' * len(some))})", values)
                ]
        return rows

    def loose(self, *, full: bool, after: int = -1, limit: int) -> list[Loose]:
        wanted = RUN - 1 if full else 0
        query = (
            "SELECT m.number, c.id FROM message m INDEXED BY {} "
            "JOIN conversation c ON c.place = m.conversation "
            f"WHERE m.body IS NOT NULL AND (m.number & 31) IN (0, 31) AND (m.number & 31) = {wanted} "
            "AND m.number > ? AND m.number < ? ORDER BY m.number LIMIT ?"
        )
        bounds = (self._base + after + wanted, self._base + (1 << _WORKSPACE_BITS), limit)
        with self._connection() as connection:
            found = _by_index(connection, "message_loose", query, bounds)
        return [Loose(number - self._base - wanted, id) for number, id in found]

    def path(self, number: int) -> Iterator[list[MessageRow] | PackRow]:
        base = self._base
        # As in `messages`, the plus sign: not by the conversation's index, but by the few numbers.
        query = f"SELECT {_PATH} FROM message WHERE number BETWEEN ? AND ? AND +conversation = ? ORDER BY number"
        owner = "SELECT c.id, c.place FROM message m JOIN conversation c ON c.place = m.conversation WHERE m.number = ?"
        packed = "SELECT parent, count, body FROM pack WHERE first = ? AND conversation = ?"
        conversation: bytes | None = None
        place = 0
        next: int | None = number
        looked = -1
        while next is not None:
            first = next - next % RUN
            with self._connection() as connection:
                if conversation is None:
                    found = _maybe(connection, owner, (base + next,))
                    if found is None:
                        return
                    conversation, place = found
                pack = _maybe(connection, packed, (base + first, place))
                if pack is not None and next < first + pack[1]:
                    rows = []
                else:
                    start = first if pack is None else first + pack[1]
                    rows = _messages(connection, query, (base, conversation, base + start, base + next, place))
                    if rows and rows[0].body is None and looked != next:  # packed since we looked
                        looked = next
                        continue
                    rows = _unbroken(rows, start, next)
            if pack is not None and not rows and next < first + pack[1]:
                yield PackRow(first, conversation, *pack)
                next = pack[0]
            else:
                if rows:
                    yield rows
                next = rows[0].parent if rows and rows[0].number == start else None

    def root(self, number: int) -> int | None:
        """From run to run: the first message of a run has the way on. UNION ends a circle."""
        query = (
            "WITH RECURSIVE run (first) AS (SELECT number & ~31 FROM message WHERE number = ?1 UNION "
            "SELECT ?2 + (m.parent & ~31) FROM run JOIN message m ON m.number = run.first WHERE m.parent IS NOT NULL) "
            "SELECT first - ?2 FROM run JOIN message m ON m.number = run.first WHERE m.parent IS NULL"
        )
        with self._connection() as connection:
            found = _maybe(connection, query, (self._base + number, self._base))
        return None if found is None else int(found[0])

    def scan(
        self,
        conversation: bytes,
        *,
        after: int | None = None,
        newest_first: bool = False,
        limit: int,
        bodies: bool = True,
    ) -> list[MessageRow]:
        way, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        query = (
            f"SELECT {_MESSAGE if bodies else _without_body(_MESSAGE)} FROM message "
            "WHERE conversation = (SELECT place FROM conversation WHERE id = ? AND workspace = ?) "
            f"{'' if after is None else f'AND seq {beyond} ?'} ORDER BY seq {way} LIMIT ?"
        )
        bounds = (limit,) if after is None else (after, limit)
        with self._connection() as connection:
            values = (self._base, conversation, conversation, self._workspace, *bounds)
            return _headed(_messages(connection, query, values))

    def edge(self) -> int:
        query = "SELECT max(number) FROM message WHERE number BETWEEN ? AND ?"
        with self._connection() as connection:  # messages first: what is dropped in between is retired by then
            highest = _one(connection, query, (self._base, self._base + (1 << _WORKSPACE_BITS) - 1))[0]
            retired = _one(connection, "SELECT retired FROM workspace WHERE place = ?", (self._workspace,))[0]
        last = max(retired, -1 if highest is None else highest - self._base)
        return int(last // RUN + 1) * RUN

    def numbers(self) -> Iterator[list[int]]:
        """Through the index, which is a hundredth of the table."""
        query = (
            "SELECT conversation, seq, number FROM message INDEXED BY {} "
            "WHERE (conversation, seq) > (?, ?) ORDER BY conversation, seq LIMIT 4096"
        )
        low, high = self._base, self._base + (1 << _WORKSPACE_BITS)
        place, seq = -1, -1
        while True:
            with self._connection() as connection:
                found = _by_index(connection, "message_by_seq", query, (place, seq))
            if not found:
                return
            place, seq, _ = found[-1]
            yield [number - low for _, _, number in found if low <= number < high]

    # -- reading tags and items

    def tagged(self, value: bytes) -> list[tuple[bytes, int | None]]:
        query = (
            "SELECT c.id, t.message FROM tag t JOIN conversation c ON c.place = t.conversation "
            "WHERE t.workspace = ? AND t.value = ? ORDER BY c.id, t.message"
        )
        with self._connection() as connection:
            found = _all(connection, query, (self._workspace, value))
        return [(id, None if message == -1 else message) for id, message in found]

    def tags(self, conversation: bytes, *, after: Tag | None = None, limit: int) -> list[Tag]:
        query = (
            "SELECT t.value, t.message FROM tag t JOIN conversation c ON c.place = t.conversation "
            "WHERE c.id = ? AND c.workspace = ? AND (t.message, t.value) > (?, ?) "
            "ORDER BY t.message, t.value LIMIT ?"
        )
        beyond = (-2, b"") if after is None else (-1 if after.message is None else after.message, after.value)
        with self._connection() as connection:
            found = _all(connection, query, (conversation, self._workspace, *beyond, limit))
        return [Tag(value, None if message == -1 else message) for value, message in found]

    def items(
        self,
        conversation: bytes,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[ItemRow]:
        way, beyond_it = ("DESC", "<") if reverse else ("ASC", ">")
        query = (
            "SELECT i.key, i.revision, i.body FROM item i JOIN conversation c ON c.place = i.conversation "
            "WHERE c.id = ? AND c.workspace = ? AND i.key >= ? AND (? IS NULL OR i.key < ?) "
            f"{'' if after is None else f'AND i.key {beyond_it} ? '}ORDER BY i.key {way} LIMIT ?"
        )
        end = _after_prefix(prefix)
        beyond = () if after is None else (after,)
        values = (conversation, self._workspace, prefix, end, end, *beyond, -1 if limit is None else limit)
        with self._connection() as connection:
            return [ItemRow(conversation, *found) for found in _all(connection, query, values)]

    # -- attachments

    def stage(
        self, conversation: bytes, attachment: bytes, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        key = (self._workspace, conversation, attachment)
        weight = sum(map(len, chunks))
        with self._connection() as connection:
            self._room.expect(connection, weight)
            try:
                self._stage(connection, key, start, chunks, last=last, at=at)
            except apsw.Error as error:
                if not self._room.was_missing(error, connection) or not self._room.gained(connection):
                    raise
                self._stage(connection, key, start, chunks, last=last, at=at)
            self._room.wrote(connection, weight)

    def _stage(
        self, connection: apsw.Connection, key: _Values, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        with transaction(connection):
            query = (
                "INSERT INTO attachment (workspace, conversation, name, chunks, staged_at) VALUES (?, ?, ?, 0, ?) "
                "ON CONFLICT DO UPDATE SET staged_at = excluded.staged_at RETURNING place, chunks"
            )
            place, complete = _one(connection, query, (*key, at))
            if complete:  # and checked: whatever comes now can only be the same, or worse
                return
            place <<= _CHUNK_BITS
            for index, chunk in enumerate(chunks, start):
                connection.execute("INSERT OR REPLACE INTO chunk (number, body) VALUES (?, ?)", (place | index, chunk))
            if last:
                end = start + len(chunks)
                query = "SELECT count(*) FROM chunk WHERE number >= ? AND number < ?"
                if _one(connection, query, (place, place + end))[0] == end:
                    query = "UPDATE attachment SET chunks = ? WHERE place = ?"
                    connection.execute(query, (end, place >> _CHUNK_BITS))

    def chunks(self, conversation: bytes, attachment: bytes, start: int = 0) -> Iterator[bytes]:
        while True:
            with self._connection() as connection:
                place = self._attachment(connection, conversation, attachment)[0] << _CHUNK_BITS
                found = _maybe(connection, "SELECT body FROM chunk WHERE number = ?", (place | start,))
            if found is None:
                return
            yield found[0]
            start += 1

    def attachments(self, conversation: bytes, names: Sequence[bytes] | None = None) -> list[AttachmentRow]:
        if names is not None:
            return [row for name in sorted(set(names)) for row in self._attachments(conversation, name)]
        return self._attachments(conversation, None)

    def _attachments(self, conversation: bytes, name: bytes | None) -> list[AttachmentRow]:
        query = (
            "SELECT a.name, a.chunks, a.staged_at, json_group_array(r.message) FILTER (WHERE r.message IS NOT NULL) "
            "FROM attachment a LEFT JOIN reference r ON r.attachment = a.place "
            "WHERE a.workspace = ? AND a.conversation = ? "
            f"{'' if name is None else 'AND a.name = ?'} GROUP BY a.place ORDER BY a.name"
        )
        values = (self._workspace, conversation) if name is None else (self._workspace, conversation, name)
        with self._connection() as connection:
            found = _all(connection, query, values)
        return [
            AttachmentRow(name, count, at, tuple(sorted(msgspec.json.decode(messages, type=list[int]))))
            for name, count, at, messages in found
        ]

    def attached(self, conversation: bytes) -> int:
        with self._connection() as connection:
            query = f"{_ATTACHED} WHERE a.workspace = ? AND a.conversation = ?"
            return int(_one(connection, query, (self._workspace, conversation))[0])

    def unstage(self, conversation: bytes, names: Sequence[bytes]) -> None:
        query = (
            "SELECT place FROM attachment a WHERE workspace = ? AND conversation = ? AND name = ? "
            "AND NOT EXISTS (SELECT 1 FROM reference r WHERE r.attachment = a.place)"
        )
        with self._connection() as connection:

            def work(begun: Callable[[], None]) -> int:
                with transaction(connection):
                    begun()
                    mine = (self._workspace, conversation)
                    return sum(self._remove_attachments(connection, query, (*mine, name)) for name in names)

            self._room.removing(connection, work)

    def collect(self, before: int) -> int:
        query = (
            "SELECT place FROM attachment a WHERE workspace = ? AND staged_at < ? "
            "AND NOT EXISTS (SELECT 1 FROM reference r WHERE r.attachment = a.place)"
        )
        values = (self._workspace, before)
        with self._connection() as connection:
            if not _all(connection, query, values):
                return 0

            def work(begun: Callable[[], None]) -> int:
                with transaction(connection):
                    begun()
                    return self._remove_attachments(connection, query, values)

            return self._room.removing(connection, work)

    # -- care

    def changes(self, since: bytes | None) -> Changes:
        """Begin a new epoch, if anything was written in this one, and tell what moved since the one of `since`."""
        workspace = (self._workspace,)
        if self._pool.read_only:  # no epoch can be begun: whoever asks looks at everything
            return Changes(os.urandom(16), True, [], [])
        with self._connection() as connection, transaction(connection):
            query = "SELECT epoch FROM mark WHERE workspace = ? AND position = ?"
            found = None if since is None else _maybe(connection, query, (self._workspace, since))
            now = self._epoch(connection)
            query = (
                "SELECT position FROM mark WHERE workspace = ?1 AND epoch = ?2 "
                "AND NOT EXISTS (SELECT 1 FROM conversation WHERE workspace = ?1 AND moved = ?2) "
                "AND NOT EXISTS (SELECT 1 FROM gone WHERE workspace = ?1 AND epoch = ?2)"
            )
            newest = _maybe(connection, query, (self._workspace, now))
            if newest is not None:  # nothing was written since it was made
                position = newest[0]
            else:
                position = os.urandom(16)
                connection.execute("UPDATE workspace SET epoch = epoch + 1 WHERE place = ?", workspace)
                connection.execute("INSERT INTO mark VALUES (?, ?, ?)", (self._workspace, now + 1, position))
                for table in ("mark", "gone"):
                    query = f"DELETE FROM {table} WHERE workspace = ? AND epoch <= ?"
                    connection.execute(query, (self._workspace, now + 1 - _MARKS))
            if found is None:
                return Changes(position, True, [], [])
            query = "SELECT id FROM conversation WHERE workspace = ? AND moved >= ? ORDER BY moved"
            moved = [id for (id,) in _all(connection, query, (self._workspace, found[0]))]
            query = "SELECT DISTINCT conversation FROM gone WHERE workspace = ? AND epoch >= ?"
            gone = [id for (id,) in _all(connection, query, (self._workspace, found[0])) if id not in set(moved)]
            return Changes(position, False, moved, gone)

    def text_index(self, *, create: bool) -> TextIndex | None:
        """In a file of its own: it is large, it can be made again, and feeding it makes no writer wait."""
        path = f"{self._path}-search"
        if self._pool.read_only or (not create and not os.path.lexists(path)):
            return None
        from .fts import FtsIndex  # noqa: PLC0415  # only those who search need it

        timeout = self._pool.timeout_seconds
        room = self._room.ballast.give_up
        index = FtsIndex(path, self.info.workspace, vfs=self._pool.vfs, timeout_seconds=timeout, make_room=room)
        with self._connection() as connection:
            mine = {id for (id,) in _all(connection, "SELECT id FROM workspace")}
        index.keep_only(mine)
        return index

    def maintain(self, seconds: float) -> bool:
        """Give free pages back a few at a time, so that nobody waits long for the lock; in the end move the WAL into
        the database, if readers allow."""
        deadline = time.monotonic() + seconds
        with self._connection() as connection:
            free = connection.pragma("freelist_count")
            while free > 0:
                try:
                    with transaction(connection):
                        _all(connection, f"PRAGMA incremental_vacuum({_VACUUM})")
                except apsw.FullError:
                    return self._room.shrink(connection)
                before, free = free, connection.pragma("freelist_count")
                if free >= before:  # a file that another program has written anew may not know how
                    break
                if free > 0 and time.monotonic() > deadline:
                    return False
        with self._scrubbing:
            with self._connection() as connection:
                self._room.scrub(connection)  # which truncates the WAL, if nobody reads
            return self._erasure.advance(max(deadline, time.monotonic() + _REBUILD_SECONDS))

    def _copy_into(self, connection: apsw.Connection, path: str) -> None:
        try:
            connection.execute("VACUUM INTO ?", (path,))
        except apsw.FullError as error:  # it is the copy that has no room
            raise translated(error, path) from error

    def backup(self, path: str) -> None:
        """SQLite writes a copy from one snapshot, without the free space; it gets its name when it is complete and on
        the disk. Its feed of changes begins anew, so that an index of this store is not taken for one of the copy."""
        expanded = os.path.expanduser(path)
        if expanded.startswith("~") or "\0" in path:
            raise InvalidArgument(f"not a path that a backup could go to: {path!r:.60}")
        target = os.path.abspath(expanded)
        if os.path.lexists(target):
            raise AlreadyExists("a file", target, hint="choose another name; a backup never overwrites")
        unfinished = _own_files.name_unfinished(target)
        make_private(unfinished)
        unfinished = os.path.realpath(unfinished)  # SQLite follows no link, not even in the path to the folder
        try:
            with self._connection() as connection:
                self._copy_into(connection, unfinished)
            copy = apsw.Connection(unfinished)
            try:
                for table in ("mark", "gone"):
                    copy.execute(f"DELETE FROM {table}")
                if is_under_way(copy):  # the old tables hold what was purged since
                    drop_copies(copy)
                    copy.execute("VACUUM")
                copy.execute("UPDATE workspace SET begun = 0, rebuilt = 0, erased = removals")  # it was written anew
            finally:
                copy.close()
            sync(unfinished)
            _own_files.publish(unfinished, target)
        except FileExistsError:
            raise AlreadyExists("a file", target, hint="choose another name; a backup never overwrites") from None
        except apsw.Error as error:
            raise translated(error, unfinished) from error
        except OSError as error:
            raise StorageError(f"the backup cannot be written to {target}: {error.strerror}") from error
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                if os.path.exists(unfinished + suffix):
                    os.unlink(unfinished + suffix)

    def check(self) -> list[str]:
        """What SQLite finds, and whether every conversation stands on the shelf where its activity puts it."""
        behind = f"SELECT hex(id) FROM conversation WHERE shelf NOT IN (active_at, {_FRONT})"
        overtaken = (
            "SELECT hex(f.id) FROM conversation f JOIN conversation c ON c.workspace = f.workspace AND c.kind = f.kind "
            f"WHERE f.shelf = {_FRONT} AND c.place <> f.place AND (c.active_at, c.id) > (f.active_at, f.id)"
        )
        foreign = (
            "SELECT 'reference' FROM reference r LEFT JOIN attachment a ON a.place = r.attachment "
            "LEFT JOIN conversation c ON c.place = r.conversation "
            "WHERE a.conversation IS NOT c.id OR a.workspace IS NOT c.workspace UNION ALL "
            "SELECT 'chunk' FROM chunk k LEFT JOIN attachment a ON a.place = k.number >> 24 WHERE a.place IS NULL "
            "UNION ALL SELECT 'attachment' FROM attachment a WHERE chunks > 0 AND chunks <> "
            "(SELECT count(*) FROM chunk WHERE number BETWEEN a.place << 24 AND (a.place + 1 << 24) - 1) UNION ALL "
            "SELECT 'tag' FROM tag t LEFT JOIN conversation c ON c.place = t.conversation "
            "WHERE c.workspace IS NOT t.workspace"
        )
        orphans = "SELECT first FROM pack p WHERE NOT EXISTS (SELECT 1 FROM message m WHERE m.number = p.first)"
        try:
            with self._connection() as connection:
                found = [str(line) for (line,) in _all(connection, "PRAGMA integrity_check(100)")]
                live = live_tables(connection)
                missing = [row for name in live for row in _all(connection, f"PRAGMA main.foreign_key_check({name})")]
                stray = _all(connection, orphans)
                strange = {what for (what,) in _all(connection, foreign)}
                misplaced = {id for query in (behind, overtaken) for (id,) in _all(connection, query)}
        except (Busy, CannotOpen, ReadOnly):  # it could not be looked at, which says nothing about it
            raise
        except HithertoError as error:
            return [str(error)]
        problems = [line for line in found if line != "ok"]
        problems += [f"a row of {row[0]} refers to no {row[2]}" for row in missing]
        problems += [f"the pack of run {first} holds messages that are not there" for (first,) in stray]
        problems += [f"a row of {what} belongs to nothing, or to something else" for what in sorted(strange)]
        return problems + [f"conversation {id.lower()} is listed out of order" for id in sorted(misplaced)]

    def scrub(self) -> bool:
        with self._scrubbing:
            with self._connection() as connection:
                scrubbed = self._room.scrub(connection)
            return scrubbed and self._erasure.advance()

    def is_scrubbed(self) -> bool:
        return self._erasure.is_done()

    def disk(self) -> Disk | None:
        found = os.statvfs(os.path.dirname(self._path))
        return Disk(free_bytes(self._path), found.f_blocks * found.f_frsize, self._room.ballast.size > 0)

    def used(self) -> int:
        messages = "SELECT coalesce(sum(size), 0) FROM conversation WHERE workspace = ?"
        chunks = f"{_ATTACHED} WHERE a.workspace = ?"
        with self._connection() as connection:
            return sum(int(_one(connection, query, (self._workspace,))[0]) for query in (messages, chunks))

    def size(self) -> int:
        return sum(size_of(f"{self._path}{suffix}") for suffix in ("", "-wal"))

    def pragmas(self, names: Sequence[str]) -> dict[str, object]:
        """What SQLite says these settings are."""
        with self._connection() as connection:
            return {name: connection.pragma(name) for name in names}


def _removes_for_good(change: Change) -> bool:
    """Does text go that nothing takes the place of? An item that makes way for messages or for other items is a part
    of what comes: a recorder does that with every answer, and it is erased with the next removal."""
    if change.row is None or change.drop or change.amend or change.detach:
        return True
    return bool(change.unput) and not (change.add or change.put)


def _prepare(connection: apsw.Connection) -> None:
    """Every connection, before it is used. No method: a pool that knew its backend would be freed late, anywhere."""
    _check_ours(connection)
    for pragma in PER_CONNECTION:
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _prepare_reader(connection: apsw.Connection) -> None:
    """Every connection that does not write: it sees a file of an older format as one of this format."""
    _prepare(connection)
    complete(connection, _check_ours(connection), MIGRATIONS)


def _check_ours(connection: apsw.Connection) -> int:
    """The schema version of a file that is ours; 0 for an empty one."""
    if connection.in_transaction:
        return _format(connection)
    connection.execute("BEGIN")  # one view of it: another process may be making the store right now
    try:
        return _format(connection)
    finally:
        _end(connection)


def _end(connection: apsw.Connection) -> None:
    """Of a transaction, unless what went wrong has ended it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _format(connection: apsw.Connection) -> int:
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application != APPLICATION_ID:
        tables = _one(connection, "SELECT count(*) FROM sqlite_schema")[0]
        if application or version or tables:
            raise NotAStore(f"{connection.filename} is a SQLite database of another program")
    elif version < 0:
        raise Damaged(f"{connection.filename} has no format that could be")
    elif version > len(MIGRATIONS):
        raise NewerFormat(f"{connection.filename} has format {version}; this hitherto knows up to {len(MIGRATIONS)}")
    return int(version)


def _check_current(connection: apsw.Connection) -> None:
    """Refuse a file that would have to be written to before it can be read."""
    version = _check_ours(connection)
    if version == 0:
        raise NotAStore(f"{connection.filename} is empty")
    if version < READABLE_FROM:
        hint = "open it once for writing, which brings it up to date"
        raise ReadOnly(f"{connection.filename} has format {version}, which is an older one", hint=hint)


def _all(connection: apsw.Connection, query: str, values: _Values = ()) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def _by_index(connection: apsw.Connection, index: str, query: str, values: _Values) -> list[tuple[Any, ...]]:
    """What a query finds with this index. Its name may change when the tables are written anew."""
    with view(connection):
        return _all(connection, query.format(index_name(connection, index)), values)


def _maybe(connection: apsw.Connection, query: str, values: _Values = ()) -> tuple[Any, ...] | None:
    return connection.execute(query, values).fetchone()


def _one(connection: apsw.Connection, query: str, values: _Values = ()) -> tuple[Any, ...]:
    return connection.execute(query, values).fetchall()[0]


@cache
def _update_with(indexed: tuple[int, ...]) -> str:
    """The statement that sets these indexed columns as well."""
    more = "".join(f"{_INDEXED[n]} = ?, " for n in indexed)
    return _UPDATE_CONVERSATION.replace(" SET ", f" SET {more}")


def _conversation_values(row: ConversationRow) -> tuple[str | bytes | int | None, ...]:
    return (
        row.id, row.kind, row.key, row.version, row.token, row.generation, row.head, _pack(row.tips), row.next_seq,
        row.count, row.size, row.rewrites, row.created_at, row.active_at, row.expires_at, row.held, row.data_key,
        row.meta, row.proof,
    )  # fmt: skip


def _conversation(found: tuple[Any, ...]) -> ConversationRow:
    values = list(found)
    try:
        values[7] = _unpack_tips(values[7])  # tips
    except (msgspec.MsgspecError, TypeError):  # then no run goes on; and the proof of a sealed one does not fit
        values[7] = (-1,)
    values[15] = values[15] == 1  # held
    return ConversationRow(*values)


def _message_values(m: MessageRow) -> tuple[str | bytes | int | None, ...]:
    return (
        m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, m.body, m.key, m.token, m.size
    )  # fmt: skip


def _messages(connection: apsw.Connection, query: str, values: _Values) -> list[MessageRow]:
    return [MessageRow(*found) for found in connection.execute(query, values)]


def _headed(rows: list[MessageRow]) -> list[MessageRow]:
    """The rows, if what they are sorted and compared by is of its kind: one flipped bit makes a number into bytes."""
    for m in rows:
        if not (type(m.number) is type(m.seq) is type(m.created_at) is type(m.revision) is int and type(m.role) is str):
            raise Damaged("the header of a message holds something that cannot be")
    return rows


def _without_body(columns: str) -> str:
    return columns.replace("m.body", "NULL").replace("body", "NULL")


def _unbroken(rows: list[MessageRow], start: int, last: int) -> list[MessageRow]:
    """The rows that lead up to the number `last` without a gap: a run that misses a message is broken there."""
    if len(rows) == last - start + 1:
        return rows
    first = len(rows)
    while first and rows[first - 1].number == last:
        first, last = first - 1, last - 1
    return rows[first:]


def _chunks(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _after_prefix(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _find_workspace(connection: apsw.Connection, name: str) -> tuple[int, bytes]:
    found = _maybe(connection, "SELECT place, id FROM workspace WHERE name = ?", (name,))
    if found is None:
        names = [other for (other,) in _all(connection, "SELECT name FROM workspace LIMIT 2")]
        only = f"; its only one is {names[0]!r:.60}" if len(names) == 1 else ""  # a copy has a single one, often
        raise NotFound("workspace", [name], hint=f"the store has no workspace of that name{only}")
    return found[0], found[1]


def _ensure_workspace(connection: apsw.Connection, name: str, identity: bytes | None) -> tuple[int, bytes]:
    query = "SELECT place, id FROM workspace WHERE name = ?"
    found = _maybe(connection, query, (name,))
    if found is None:
        insert = (  # the search file tells workspaces apart by their identities
            "INSERT OR IGNORE INTO workspace (name, id, retired) "
            "SELECT ?1, iif(EXISTS (SELECT 1 FROM workspace WHERE id = ?2), ?3, ?2), -1"
        )
        new = new_conversation_id()
        connection.execute(insert, (name, identity or new, new))
        found = _one(connection, query, (name,))
    return found[0], found[1]


def workspaces(path: str | os.PathLike[str], *, timeout_seconds: float = 30.0) -> list[str]:
    """The names of the workspaces in a file that is there."""
    pool = Pool(path, _prepare, vfs=None, timeout_seconds=timeout_seconds, read_only=True, create=False)
    try:
        with pool.lease() as connection:
            _check_current(connection)
            return [name for (name,) in _all(connection, "SELECT name FROM workspace ORDER BY name")]
    finally:
        pool.close(untouched=True)
