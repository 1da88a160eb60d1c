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
- `secure_delete` overwrites what is deleted; `auto_vacuum=INCREMENTAL` lets maintenance give pages back (it can only be
  chosen when the file is made).

apsw runs statements lazily: `execute("PRAGMA a; PRAGMA b")` stops at the first row. So it is one statement per
call, and a test reads every pragma back.
"""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from ..backend import (
    DONE,
    Batch,
    Change,
    ConversationRow,
    Info,
    ItemRow,
    MessageRow,
    Outcome,
    Position,
    Stale,
    Tag,
    Taken,
    Where,
)
from ..errors import CommitUnknown, Damaged, NewerFormat, NotAStore, StorageError
from ..ids import RUN, new_conversation_id
from ._connections import Pool, ensure_wal, patience
from ._files import sync, translated
from ._schema import APPLICATION_ID, MIGRATIONS

PER_CONNECTION = ("synchronous = FULL", "foreign_keys = ON", "secure_delete = ON", "journal_size_limit = 4194304")

_WORKSPACE_BITS = 47  # numbers stay below 2**47; the workspace's own integer lies above
_MOST_WORKSPACES = 1 << 16
_CHUNK = 400  # numbers in one IN (…), well below SQLite's limit
_ROWS = 16  # messages in one INSERT

# The fields of ConversationRow and MessageRow, in their order. The first two parameters of a message's columns are the
# workspace's base, which is taken off its number, and the id of its conversation.
_CONVERSATION = (
    "id, kind, key, version, token, generation, head, tips, next_seq, count, size, removals, "
    "created_at, active_at, expires_at, held, data_key, meta, proof"
)
_PATH = "number - ?, ?, seq, parent, link, main, role, revision, created_at, body"
_MESSAGE = f"{_PATH}, key, token, size"
_JOINED = (
    "m.number - ?, c.id, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, "
    "m.body, m.key, m.token, m.size"
)
_AMENDED = "seq, parent, link, main, role, revision, created_at, body, key, token, size"

_INSERT_CONVERSATION = f"INSERT INTO conversation (workspace, shelf, {_CONVERSATION}) VALUES ({', '.join('?' * 21)})"
_MUTABLE = [name for name in _CONVERSATION.split(", ")[3:] if name != "created_at"]  # or its index is rewritten
_UPDATE_CONVERSATION = f"UPDATE conversation SET {', '.join(f'{name} = ?' for name in _MUTABLE)} WHERE place = ?"
_UPDATE_AND_MOVE = _UPDATE_CONVERSATION.replace(" SET ", " SET shelf = ?, ")
_FRONT = 1 << 62  # the shelf of the newest conversation of its kind
_INSERT_MESSAGES = [
    f"INSERT INTO message (number, conversation, {_AMENDED}) VALUES " + ", ".join([f"({', '.join('?' * 13)})"] * count)
    for count in range(_ROWS + 1)
]
_UPDATE_MESSAGE = f"UPDATE message SET {', '.join(f'{name} = ?' for name in _AMENDED.split(', '))} WHERE number = ?"

_T = TypeVar("_T")
_Place = tuple[int, int, int]  # of a conversation: its row, its shelf, when it was active
_NOWHERE: _Place = (0, 0, 0)
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
    ) -> None:
        self._pool = Pool(path, self._prepare, vfs=vfs, timeout_seconds=timeout_seconds)
        self._path = self._pool.path
        self._connection = self._pool.lease
        with self._pool.mapped():
            first = self._pool.connect()
            try:
                self._migrate(first)
                self._workspace, workspace_id = _ensure_workspace(first, workspace)
                if self._workspace > _MOST_WORKSPACES:
                    hint = "put workspaces into files of their own"
                    raise StorageError(f"{self._path} has too many workspaces", hint=hint)
            except BaseException:
                self._pool.drop(first)
                raise
            self._pool.give_back(first)
        self._base = (self._workspace - 1) << _WORKSPACE_BITS  # the first workspace has the small, short integers
        self.info = Info(name="sqlite", workspace=workspace_id, location=self._path, durable=True)

    def _prepare(self, connection: apsw.Connection) -> None:
        self._check_ours(connection)
        for pragma in PER_CONNECTION:
            connection.execute(f"PRAGMA {pragma}").fetchall()

    def close(self) -> None:
        self._pool.close()

    # -- schema

    def _migrate(self, connection: apsw.Connection) -> None:
        """Bring the file to the newest version, each step in one transaction with its record."""
        if self._check_ours(connection) == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()  # only an empty file can choose it
        ensure_wal(connection, self._pool.timeout_seconds)
        while connection.pragma("user_version") < len(MIGRATIONS):
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = self._check_ours(connection)  # another process may have been faster
                if version < len(MIGRATIONS):
                    name, statements = MIGRATIONS[version]
                    for statement in statements:
                        connection.execute(statement)
                    record = (version + 1, name, time.time_ns() // 1000)
                    connection.execute("INSERT INTO migration VALUES (?, ?, ?)", record)
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", version + 1)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _check_ours(self, connection: apsw.Connection) -> int:
        """The schema version of a file that is ours; 0 for an empty one."""
        if connection.in_transaction:
            return self._format(connection)
        connection.execute("BEGIN")  # one view of it: another process may be making the store right now
        try:
            return self._format(connection)
        finally:
            connection.execute("ROLLBACK")

    def _format(self, connection: apsw.Connection) -> int:
        application, version = connection.pragma("application_id"), connection.pragma("user_version")
        if application != APPLICATION_ID:
            tables = _one(connection, "SELECT count(*) FROM sqlite_schema")[0]
            if application or version or tables:
                raise NotAStore(f"{self._path} is a SQLite database of another program")
        elif version < 0:
            raise Damaged(f"{self._path} has no format that could be")
        elif version > len(MIGRATIONS):
            raise NewerFormat(f"{self._path} has format {version}; this hitherto knows up to {len(MIGRATIONS)}")
        return int(version)

    # -- writing

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        with self._connection() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                outcomes = [self._commit_one(connection, batch) for batch in batches]
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            try:
                connection.execute("COMMIT" if DONE in outcomes else "ROLLBACK")
            except apsw.Error as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                reason = translated(error, self._path)
                raise CommitUnknown(f"the commit was interrupted: {reason}") from reason
            return outcomes

    def _commit_one(self, connection: apsw.Connection, batch: Batch) -> Outcome:
        for id, version in batch.require:
            row = self._row(connection, id)
            if row is None or row.version != version:
                return Stale(id, row)
        places: list[_Place] = []
        for change in batch.changes:
            place = self._place(connection, change)
            if not isinstance(place, tuple):
                return place
            places.append(place)
        for n, change in enumerate(batch.changes):
            self._apply(connection, change, places[n])
        return DONE

    def _place(self, connection: apsw.Connection, change: Change) -> _Place | Outcome:
        """Where the conversation lies (_NOWHERE if it is new) if the change may be applied, else what is in the way."""
        query = "SELECT place, token, shelf, active_at FROM conversation WHERE id = ? AND workspace = ?"
        found = _maybe(connection, query, (change.conversation, self._workspace))
        if change.expect is None:
            if found is not None:
                return Taken("id", change.conversation)
            if change.row is not None and change.row.key is not None:
                for other in self._by_key(connection, change.row.kind, change.row.key):
                    return Taken("key", other.id)
        elif found is None or found[1] != change.expect:
            return Stale(change.conversation, self._row(connection, change.conversation))
        place: _Place = (found[0], found[2], found[3]) if found else _NOWHERE
        for message in change.add:
            if message.number % RUN == 0 and self._run_taken(connection, message.number):
                return Taken("number", change.conversation)
            if message.key is not None and self._key_taken(connection, place[0], message.key):
                return Taken("message key", change.conversation)
        return place

    def _run_taken(self, connection: apsw.Connection, number: int) -> bool:
        """Is a number of this run in use, or was one?"""
        first = self._base + number
        query = (
            "SELECT 1 FROM message WHERE number BETWEEN ? AND ? UNION ALL "
            "SELECT 1 FROM workspace WHERE place = ? AND retired >= ? LIMIT 1"
        )
        return _maybe(connection, query, (first, first + RUN - 1, self._workspace, number)) is not None

    def _key_taken(self, connection: apsw.Connection, place: int, key: bytes) -> bool:
        query = "SELECT 1 FROM message WHERE conversation = ? AND key = ?"
        return _maybe(connection, query, (place, key)) is not None

    def _apply(self, connection: apsw.Connection, change: Change, found: _Place) -> None:
        execute = connection.execute
        place = found[0]
        if change.row is None or change.drop:
            self._retire(connection, change, place)
        if change.row is None:
            for table in ("tag", "item", "message"):
                execute(f"DELETE FROM {table} WHERE conversation = ?", (place,))
            execute("DELETE FROM conversation WHERE place = ?", (place,))
            return
        place = self._write_row(connection, change.row, found)
        for number in change.drop:
            execute("DELETE FROM message WHERE number = ?", (self._base + number,))
            execute("DELETE FROM tag WHERE conversation = ? AND message = ?", (place, number))
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

    def _write_row(self, connection: apsw.Connection, row: ConversationRow, found: _Place) -> int:
        """Write the conversation's row, where it lies or at a new place, and keep the shelf in order."""
        place, shelf, active_at = found
        values = _conversation_values(row)
        if shelf == _FRONT and row.active_at >= active_at:  # the newest, and newer still
            connection.execute(_UPDATE_CONVERSATION, (*values[3:12], *values[13:], place))
            return place
        shelf = self._shelf(connection, row, place)
        if place:
            connection.execute(_UPDATE_AND_MOVE, (shelf, *values[3:12], *values[13:], place))
            return place
        connection.execute(_INSERT_CONVERSATION, (self._workspace, shelf, *values))
        return connection.last_insert_rowid()

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
            rows = [self._row(connection, id) for id in ids]
            return [row for row in rows if row is not None]

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        column, way, beyond = ("created_at", "ASC", ">") if oldest_first else ("shelf", "DESC", "<")
        condition, values = self._condition(where)
        # The row itself is read only for the one in front, whose shelf does not tell its time.
        at = "c.created_at" if oldest_first else f"CASE WHEN c.shelf = {_FRONT} THEN c.active_at ELSE c.shelf END"
        query = f"SELECT {at}, c.id FROM conversation c WHERE {condition}"
        ending = f" ORDER BY c.{column} {way}, c.id {way} LIMIT ?"
        front: list[Position] = []
        with self._connection() as connection:
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
        condition, values = self._condition(where)
        with self._connection() as connection:
            return int(_one(connection, f"SELECT count(*) FROM conversation c WHERE {condition}", values)[0])

    def _condition(self, where: Where) -> tuple[str, tuple[int | str | bytes, ...]]:
        condition = "c.workspace = ? AND c.kind = ?"
        values: tuple[int | str | bytes, ...] = (self._workspace, where.kind)
        if where.tag is not None:
            condition += (
                " AND EXISTS (SELECT 1 FROM tag t WHERE t.workspace = c.workspace AND t.value = ? "
                "AND t.conversation = c.place AND t.message = -1)"
            )
            values += (where.tag,)
        if where.alive_at is not None:
            condition += " AND (c.expires_at IS NULL OR c.expires_at > ?)"
            values += (where.alive_at,)
        return condition, values

    def kinds(self) -> list[str]:
        query = "SELECT DISTINCT kind FROM conversation WHERE workspace = ? ORDER BY kind"
        with self._connection() as connection:
            return [found[0] for found in _all(connection, query, (self._workspace,))]

    # -- reading messages

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        columns = _JOINED if bodies else _without_body(_JOINED)
        query = f"SELECT {columns} FROM message m JOIN conversation c ON c.place = m.conversation WHERE c.workspace = ?"
        rows: list[MessageRow] = []
        with self._connection() as connection:
            if keys is not None:
                conversation, wanted = keys
                for key in dict.fromkeys(wanted):
                    values = (self._base, self._workspace, conversation, key)
                    rows += _messages(connection, f"{query} AND c.id = ? AND m.key = ?", values)
            for some in _chunks(tuple(dict.fromkeys(numbers)), _CHUNK):
                chosen = (self._base, self._workspace, *(self._base + number for number in some))
                rows += _messages(connection, f"{query} AND m.number IN ({', '.join('?' * len(some))})", chosen)
        return rows

    def path(self, number: int, *, bodies: bool = True) -> Iterator[list[MessageRow]]:
        base = self._base
        columns = _PATH if bodies else _without_body(_PATH)
        query = f"SELECT {columns} FROM message WHERE number BETWEEN ? AND ? ORDER BY number"
        owner = "SELECT c.id FROM message m JOIN conversation c ON c.place = m.conversation WHERE m.number = ?"
        conversation: bytes | None = None
        next: int | None = number
        while next is not None:
            with self._connection() as connection:
                if conversation is None:
                    found = _maybe(connection, owner, (base + next,))
                    if found is None:
                        return
                    conversation = found[0]
                values = (base, conversation, base + next - next % RUN, base + next)
                rows = _unbroken(_messages(connection, query, values), next)
            if rows:
                yield rows
            next = rows[0].parent if rows and rows[0].number % RUN == 0 else None

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
            return _messages(connection, query, (self._base, conversation, conversation, self._workspace, *bounds))

    def edge(self) -> int:
        query = "SELECT max(number) FROM message WHERE number BETWEEN ? AND ?"
        with self._connection() as connection:
            highest = _one(connection, query, (self._base, self._base + (1 << _WORKSPACE_BITS) - 1))[0]
            retired = _one(connection, "SELECT retired FROM workspace WHERE place = ?", (self._workspace,))[0]
        last = max(retired, -1 if highest is None else highest - self._base)
        return int(last // RUN + 1) * RUN

    def numbers(self) -> Iterator[list[int]]:
        """Through the index, which is a hundredth of the table."""
        query = (
            "SELECT conversation, seq, number FROM message INDEXED BY message_by_seq "
            "WHERE (conversation, seq) > (?, ?) ORDER BY conversation, seq LIMIT 4096"
        )
        low, high = self._base, self._base + (1 << _WORKSPACE_BITS)
        place, seq = -1, -1
        while True:
            with self._connection() as connection:
                found = _all(connection, query, (place, seq))
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
        return [(id, None if message < 0 else message) for id, message in found]

    def items(
        self, conversation: bytes, prefix: bytes = b"", *, reverse: bool = False, limit: int | None = None
    ) -> list[ItemRow]:
        query = (
            "SELECT i.key, i.revision, i.body FROM item i JOIN conversation c ON c.place = i.conversation "
            "WHERE c.id = ? AND c.workspace = ? AND i.key >= ? AND (? IS NULL OR i.key < ?) "
            f"ORDER BY i.key {'DESC' if reverse else 'ASC'} LIMIT ?"
        )
        end = _after_prefix(prefix)
        values = (conversation, self._workspace, prefix, end, end, -1 if limit is None else limit)
        with self._connection() as connection:
            return [ItemRow(conversation, *found) for found in _all(connection, query, values)]

    # -- care

    def check(self) -> list[str]:
        """What SQLite finds, and whether every conversation stands on the shelf where its activity puts it."""
        behind = f"SELECT hex(id) FROM conversation WHERE shelf NOT IN (active_at, {_FRONT})"
        overtaken = (
            "SELECT hex(f.id) FROM conversation f JOIN conversation c ON c.workspace = f.workspace AND c.kind = f.kind "
            f"WHERE f.shelf = {_FRONT} AND c.place <> f.place AND (c.active_at, c.id) > (f.active_at, f.id)"
        )
        try:
            with self._connection() as connection:
                found = [str(line) for (line,) in _all(connection, "PRAGMA integrity_check(100)")]
                missing = _all(connection, "PRAGMA foreign_key_check")
                misplaced = {id for query in (behind, overtaken) for (id,) in _all(connection, query)}
        except Damaged as error:
            return [str(error)]
        problems = [line for line in found if line != "ok"]
        problems += [f"a row of {row[0]} refers to no {row[2]}" for row in missing]
        return problems + [f"conversation {id.lower()} is listed out of order" for id in sorted(misplaced)]

    def scrub(self) -> bool:
        """Move everything from the WAL into the database, and truncate the WAL. SQLite does not sync the truncation, so
        a power cut could bring deleted text back: we sync it ourselves."""
        with self._connection() as connection:
            connection.set_busy_handler(None)  # a checkpoint that waits for readers would make writers wait, too
            try:
                busy, _, _ = _one(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
            except apsw.BusyError:
                busy = True
            finally:
                connection.set_busy_handler(patience(self._pool.timeout_seconds))
        if busy:
            return False
        wal = f"{self._path}-wal"
        try:
            sync(wal)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(f"{wal} cannot be synced: {error.strerror}", hint="call scrub() again") from error
        return True

    def size(self) -> int:
        files = (f"{self._path}{suffix}" for suffix in ("", "-wal"))
        return sum(os.path.getsize(file) for file in files if os.path.exists(file))

    def pragmas(self, names: Sequence[str]) -> dict[str, object]:
        """What SQLite says these settings are."""
        with self._connection() as connection:
            return {name: connection.pragma(name) for name in names}


def _all(connection: apsw.Connection, query: str, values: _Values = ()) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def _maybe(connection: apsw.Connection, query: str, values: _Values = ()) -> tuple[Any, ...] | None:
    return connection.execute(query, values).fetchone()


def _one(connection: apsw.Connection, query: str, values: _Values = ()) -> tuple[Any, ...]:
    return connection.execute(query, values).fetchall()[0]


def _conversation_values(row: ConversationRow) -> tuple[str | bytes | int | None, ...]:
    return (
        row.id, row.kind, row.key, row.version, row.token, row.generation, row.head, _pack(row.tips), row.next_seq,
        row.count, row.size, row.removals, row.created_at, row.active_at, row.expires_at, row.held, row.data_key,
        row.meta, row.proof,
    )  # fmt: skip


def _conversation(found: tuple[Any, ...]) -> ConversationRow:
    values = list(found)
    values[7] = _unpack_tips(values[7])  # tips
    values[15] = values[15] == 1  # held
    return ConversationRow(*values)


def _message_values(m: MessageRow) -> tuple[str | bytes | int | None, ...]:
    return (
        m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, m.body, m.key, m.token, m.size
    )  # fmt: skip


def _messages(connection: apsw.Connection, query: str, values: _Values) -> list[MessageRow]:
    return [MessageRow(*found) for found in connection.execute(query, values)]


def _without_body(columns: str) -> str:
    return columns.replace("m.body", "NULL").replace("body", "NULL")


def _unbroken(rows: list[MessageRow], last: int) -> list[MessageRow]:
    """The rows that lead up to the number `last` without a gap: a run that misses a message is broken there."""
    if len(rows) == last % RUN + 1:
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


def _ensure_workspace(connection: apsw.Connection, name: str) -> tuple[int, bytes]:
    query = "SELECT place, id FROM workspace WHERE name = ?"
    found = _maybe(connection, query, (name,))
    if found is None:
        insert = "INSERT OR IGNORE INTO workspace (name, id, retired) VALUES (?, ?, -1)"
        connection.execute(insert, (name, new_conversation_id()))
        found = _one(connection, query, (name,))
    return found[0], found[1]
