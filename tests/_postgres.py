"""A throw-away backend on PostgreSQL, and a real server to try it on.

It exists to teach us what is wrong with the backend protocol while that is cheap to change: it is as short as it can
be, not as fast. What it shows is how each promise is kept when others write at the same moment through connections of
their own:

- **READ COMMITTED, locks first.** A commit locks the rows of all conversations that it names, in the order of their
  ids, and so knows their tokens for certain. What cannot be locked because it is not there yet (an id, a key, a run of
  numbers) is guarded by unique indexes: who loses such a race gets an error, rolls back *everything* and begins again;
  then the checks see the winner. So no savepoints, and one retry loop that also serves deadlocks and lost connections.
- **A number is checked after it was inserted**, too. Between a check and its insert, others may have used the run and
  purged it: neither the check nor the unique index would notice.
- **The feed** stamps each row with the id of its transaction. A position is a snapshot: what moved since is what that
  snapshot does not see, whatever the order in which transactions became visible.
- **What decides whether something may be removed is read after the locks** that keep it true, in a statement of its
  own: a statement that had to wait for a lock still sees the other tables as they were before.

No sequences, triggers, LISTEN or advisory locks; the workspace leads every key.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from hitherto.backend import (
    DONE,
    AttachmentRow,
    Batch,
    Change,
    Changes,
    ConversationRow,
    Disk,
    Info,
    ItemRow,
    Loose,
    MessageRow,
    Missing,
    Outcome,
    PackRow,
    Position,
    Stale,
    Tag,
    Taken,
    Where,
)
from hitherto.errors import Closed, CommitUnknown, InvalidArgument, StorageError
from hitherto.ids import RUN
from hitherto.textindex import TextIndex

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

# Kinds and roles are bytes: PostgreSQL's text cannot hold U+0000, which both may.
SCHEMA = """
CREATE TABLE workspace (workspace bytea PRIMARY KEY, retired bigint NOT NULL, forgotten xid8 NOT NULL);
CREATE TABLE conversation (
    workspace bytea, id bytea, kind bytea NOT NULL, key bytea, version bigint NOT NULL, token bytea NOT NULL,
    generation bigint NOT NULL, head bigint, tips bytea NOT NULL, next_seq bigint NOT NULL, count bigint NOT NULL,
    size bigint NOT NULL, rewrites bigint NOT NULL, created_at bigint NOT NULL, active_at bigint NOT NULL,
    expires_at bigint, held boolean NOT NULL, data_key bytea NOT NULL, meta bytea NOT NULL, proof bytea NOT NULL,
    moved xid8 NOT NULL,
    PRIMARY KEY (workspace, id));
CREATE UNIQUE INDEX ON conversation (workspace, kind, key) WHERE key IS NOT NULL;
CREATE INDEX ON conversation (workspace, kind, active_at, id);
CREATE INDEX ON conversation (workspace, kind, created_at, id);
CREATE INDEX ON conversation (workspace, moved);
CREATE TABLE gone (workspace bytea, conversation bytea, moved xid8 NOT NULL, PRIMARY KEY (workspace, conversation));
CREATE TABLE message (
    workspace bytea, number bigint, conversation bytea NOT NULL, seq bigint NOT NULL, parent bigint, link bigint,
    main boolean NOT NULL, role bytea NOT NULL, revision bigint NOT NULL, created_at bigint NOT NULL, body bytea,
    key bytea, token bytea NOT NULL, size bigint NOT NULL,
    PRIMARY KEY (workspace, number));
CREATE UNIQUE INDEX ON message (workspace, conversation, seq);
CREATE UNIQUE INDEX ON message (workspace, conversation, key) WHERE key IS NOT NULL;
CREATE INDEX ON message (workspace, (number & 31), number) WHERE body IS NOT NULL AND (number & 31) IN (0, 31);
CREATE TABLE pack (
    workspace bytea, first bigint, conversation bytea NOT NULL, parent bigint, count bigint NOT NULL,
    body bytea NOT NULL, PRIMARY KEY (workspace, first));
CREATE INDEX ON pack (workspace, conversation);
CREATE TABLE attachment (
    workspace bytea, conversation bytea, name bytea, chunks bigint NOT NULL, staged_at bigint NOT NULL,
    PRIMARY KEY (workspace, conversation, name));
CREATE TABLE chunk (
    workspace bytea, conversation bytea, name bytea, number bigint, body bytea NOT NULL,
    PRIMARY KEY (workspace, conversation, name, number));
CREATE TABLE reference (
    workspace bytea, conversation bytea, name bytea, message bigint,
    PRIMARY KEY (workspace, conversation, name, message));
CREATE TABLE item (
    workspace bytea, conversation bytea, key bytea, revision bigint NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (workspace, conversation, key));
CREATE TABLE tag (
    workspace bytea, value bytea, conversation bytea, message bigint,
    PRIMARY KEY (workspace, value, conversation, message));
CREATE INDEX ON tag (workspace, conversation, message);
"""
_OWNED = ("tag", "item", "pack", "reference", "chunk", "attachment", "message")

_CONVERSATION = (
    "id, kind, key, version, token, generation, head, tips, next_seq, count, size, rewrites, "
    "created_at, active_at, expires_at, held, data_key, meta, proof"
)
_MESSAGE = (
    "number, conversation, seq, parent, link, main, role, revision, created_at, body, key, token, size"  # in order
)
_INSERT_CONVERSATION = (
    f"INSERT INTO conversation (workspace, moved, {_CONVERSATION}) "
    f"VALUES (%s, pg_current_xact_id(), {', '.join(['%s'] * 19)})"
)
_UPDATE_CONVERSATION = (
    f"UPDATE conversation SET moved = pg_current_xact_id(), ({_CONVERSATION}) = ROW({', '.join(['%s'] * 19)}) "
    "WHERE workspace = %s AND id = %s"
)
_INSERT_MESSAGE = f"INSERT INTO message (workspace, {_MESSAGE}) VALUES (%s, {', '.join(['%s'] * 13)})"
_UPDATE_MESSAGE = (
    f"UPDATE message SET ({_MESSAGE}) = ROW({', '.join(['%s'] * 13)}) WHERE workspace = %s AND number = %s"
)

_GRAVES = 1000  # purged conversations that the feed remembers after maintenance
_LISTED = 4096  # numbers in one list
_RACES = 30  # lost in a row, before we think that a batch contradicts itself

_pack_tips = msgspec.msgpack.Encoder().encode
_unpack_tips = msgspec.msgpack.Decoder(tuple[int, ...]).decode


class _LostRaceError(Exception):
    """Somebody was faster in a way that no lock or index shows: begin again."""


class PostgresBackend:
    """One workspace of a PostgreSQL database that has the tables above."""

    def __init__(self, conninfo: str, workspace: bytes, *, timeout_seconds: float = 10.0) -> None:
        self._conninfo = conninfo
        self._timeout_seconds = timeout_seconds
        self._idle: list[Connection] = []
        self._closed = False
        self._process = os.getpid()
        self._w = workspace
        known = conninfo_to_dict(conninfo)
        location = f"postgresql://{known.get('host')}/{known.get('dbname')}"  # no user, no password
        self.info = Info(name="postgres", workspace=workspace, location=location, durable=True)
        self.retries = 0
        self._do(self._ensure_workspace)

    def _ensure_workspace(self, connection: Connection) -> None:
        connection.execute("INSERT INTO workspace VALUES (%s, -1, '0') ON CONFLICT DO NOTHING", (self._w,))

    # -- connections

    @contextmanager
    def _lease(self) -> Iterator[Connection]:
        """A connection of our own for a moment. One that is left inside a transaction is not used again."""
        if self._closed or self._process != os.getpid():
            raise Closed("the store is closed")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            yield connection
        finally:
            if self._closed or connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
                connection.close()
            else:
                self._idle.append(connection)

    def _do(self, work: Callable[[Connection], T]) -> T:
        """The one retry loop: what lost a race, a deadlock or its connection begins again on another connection, and a
        server that restarts is waited for. Only what may be repeated comes here: a lost COMMIT is no `psycopg.Error`
        any more."""
        deadline = time.monotonic() + self._timeout_seconds
        races = 0
        while True:
            try:
                with self._lease() as connection:
                    return work(connection)
            except (psycopg.Error, _LostRaceError) as error:
                races += isinstance(error, errors.UniqueViolation | _LostRaceError)
                if races > _RACES or time.monotonic() > deadline or not _passes(error):
                    raise StorageError(f"the database does not do it: {type(error).__name__}") from error
                self.retries += 1
            time.sleep(random.random() * 0.01)

    def close(self, *, untouched: bool = False) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._do(lambda connection: connection.execute(query, values).fetchall())

    # -- writing

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        return self._do(lambda connection: self._commit(connection, batches))

    def _commit(self, connection: Connection, batches: Sequence[Batch]) -> list[Outcome]:
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        rows = self._lock(connection, batches)
        outcomes = [self._commit_one(connection, batch, rows) for batch in batches]
        if DONE in outcomes:
            self._finish(connection)
        else:
            connection.execute("ROLLBACK")
        return outcomes

    def _finish(self, connection: Connection) -> None:
        """From here on, a lost connection says nothing about the outcome, and neither does a success with a warning:
        the commit waited for a replica until somebody cancelled that."""
        warnings: list[str | None] = []

        def listen(notice: psycopg.errors.Diagnostic) -> None:
            warnings.append(notice.sqlstate)

        connection.add_notice_handler(listen)
        try:
            connection.execute("COMMIT")
        except (errors.SerializationFailure, errors.DeadlockDetected):
            raise
        except psycopg.Error as error:
            raise CommitUnknown("the connection was lost during the commit") from error
        finally:
            connection.remove_notice_handler(listen)
        if "01000" in warnings:
            connection.close()
            raise CommitUnknown("the commit may not have reached the replica")

    def _lock(self, connection: Connection, batches: Sequence[Batch]) -> dict[bytes, ConversationRow]:
        """Every conversation that the batches change or require, held until the end. Always in the order of ids, so
        that two who want the same ones never wait for each other. Requirements are shared: they only have to stand."""
        changed = {change.conversation for batch in batches for change in batch.changes}
        required = {id for batch in batches for id, _ in batch.require} - changed
        query = f"SELECT {_CONVERSATION} FROM conversation WHERE workspace = %s AND id = ANY(%s) ORDER BY id "
        found = connection.execute(query + "FOR NO KEY UPDATE", (self._w, list(changed))).fetchall()
        if required:
            found += connection.execute(query + "FOR SHARE", (self._w, list(required))).fetchall()
        return {row[0]: _conversation(row) for row in found}

    def _commit_one(self, connection: Connection, batch: Batch, rows: dict[bytes, ConversationRow]) -> Outcome:
        for id, token in batch.require:
            row = rows.get(id)
            if row is None or row.token != token:
                return Stale(id, row)
        for change in batch.changes:
            problem = self._problem(connection, change, rows.get(change.conversation), arriving=batch.arriving)
            if problem is not None:
                return problem
        for change in batch.changes:
            self._apply(connection, change, **({"arriving": True} if batch.arriving else {}))
            if change.row is None:
                del rows[change.conversation]
            else:
                rows[change.conversation] = change.row
        return DONE

    def _problem(
        self, connection: Connection, change: Change, row: ConversationRow | None, *, arriving: bool
    ) -> Outcome | None:
        id = change.conversation
        if change.expect is None:
            if row is not None:
                return Taken("id", id)
            if change.row is not None and change.row.key is not None:
                query = "SELECT id FROM conversation WHERE workspace = %s AND kind = %s AND key = %s"
                values = (self._w, change.row.kind.encode(), change.row.key)
                for (other,) in connection.execute(query, values):
                    return Taken("key", other)
        elif row is None or row.token != change.expect:
            return Stale(id, row)
        for message in change.add:
            if message.number % RUN == 0 and self._run_taken(connection, message.number, arriving=arriving):
                return Taken("number", id)
            if message.key is not None:
                query = "SELECT 1 FROM message WHERE workspace = %s AND conversation = %s AND key = %s"
                if connection.execute(query, (self._w, id, message.key)).fetchone():
                    return Taken("message key", id)
        for _, name in change.attach:  # locked, or `collect` could remove it before we are done
            query = (
                "SELECT 1 FROM attachment WHERE workspace = %s AND conversation = %s AND name = %s AND chunks > 0 "
                "FOR SHARE"
            )
            if not connection.execute(query, (self._w, id, name)).fetchone():
                return Missing(id, name)
        return None

    def _run_taken(self, connection: Connection, first: int, *, arriving: bool) -> bool:
        """In one statement: between two, a purge could move the run from the one place to the other, unseen."""
        query = (
            "SELECT 1 FROM message WHERE workspace = %s AND number BETWEEN %s AND %s UNION ALL "
            "SELECT 1 FROM workspace WHERE workspace = %s AND retired >= %s AND NOT %s LIMIT 1"
        )
        values = (self._w, first, first + RUN - 1, self._w, first, arriving)
        return connection.execute(query, values).fetchone() is not None

    def _apply(self, connection: Connection, change: Change, *, arriving: bool = False) -> None:
        execute, id, w = connection.execute, change.conversation, self._w
        many = connection.cursor().executemany
        if change.row is None:
            self._remove(connection, id)
            return
        values = _conversation_values(change.row)
        if change.expect is None:
            execute(_INSERT_CONVERSATION, (w, *values))
        else:
            execute(_UPDATE_CONVERSATION, (*values, w, id))
        let_go: list[bytes] = []
        if change.drop:
            dropped = list(change.drop)
            execute("DELETE FROM message WHERE workspace = %s AND number = ANY(%s)", (w, dropped))
            owned = "WHERE workspace = %s AND conversation = %s AND message = ANY(%s)"
            execute(f"DELETE FROM tag {owned}", (w, id, dropped))
            gone = execute(f"DELETE FROM reference {owned} RETURNING name", (w, id, dropped)).fetchall()
            let_go = [name for (name,) in gone]
            self._retire(connection, max(dropped))
        for number, name in change.detach:
            let_go.append(name)
            query = "DELETE FROM reference WHERE workspace = %s AND conversation = %s AND message = %s AND name = %s"
            execute(query, (w, id, number, name))
        many(_INSERT_MESSAGE, [(w, *_message_values(m)) for m in change.add])
        if not arriving:
            self._check_numbers(connection, change)
        many(_UPDATE_MESSAGE, [(*_message_values(m), w, m.number) for m in change.amend])
        many("DELETE FROM pack WHERE workspace = %s AND first = %s", [(w, first) for first in change.unpack])
        query = (
            "INSERT INTO pack VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (workspace, first) DO UPDATE "
            "SET parent = excluded.parent, count = excluded.count, body = excluded.body"
        )
        many(query, [(w, p.first, id, p.parent, p.count, p.body) for p in change.pack])
        query = "UPDATE message SET body = NULL WHERE workspace = %s AND number BETWEEN %s AND %s AND body IS NOT NULL"
        many(query, [(w, p.first, p.first + p.count - 1) for p in change.pack])
        query = "INSERT INTO reference VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
        many(query, [(w, id, name, number) for number, name in change.attach])
        self._let_go(connection, id, let_go)
        query = (
            "INSERT INTO item VALUES (%s, %s, %s, %s, %s) ON CONFLICT (workspace, conversation, key) "
            "DO UPDATE SET revision = excluded.revision, body = excluded.body"
        )
        many(query, [(w, id, item.key, item.revision, item.body) for item in change.put])
        query = "DELETE FROM item WHERE workspace = %s AND conversation = %s AND key = %s"
        many(query, [(w, id, key) for key in change.unput])
        query = "DELETE FROM tag WHERE workspace = %s AND value = %s AND conversation = %s AND message = %s"
        many(query, [(w, tag.value, id, -1 if tag.message is None else tag.message) for tag in change.untag])
        query = "INSERT INTO tag VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
        many(query, [(w, tag.value, id, -1 if tag.message is None else tag.message) for tag in change.tag])

    def _check_numbers(self, connection: Connection, change: Change) -> None:
        """The runs are ours now; but since we looked, somebody may have used one and purged it."""
        runs = [message.number for message in change.add if message.number % RUN == 0]
        if runs:
            query = "SELECT 1 FROM workspace WHERE workspace = %s AND retired >= %s"
            if connection.execute(query, (self._w, min(runs))).fetchone():
                raise _LostRaceError("number")

    def _remove(self, connection: Connection, id: bytes) -> None:
        """A conversation and all it owns. What is left is its id, for the feed."""
        query = "SELECT max(number) FROM message WHERE workspace = %s AND conversation = %s"
        (highest,) = connection.execute(query, (self._w, id)).fetchone() or (None,)
        if highest is not None:
            self._retire(connection, highest)
        for table in _OWNED:
            connection.execute(f"DELETE FROM {table} WHERE workspace = %s AND conversation = %s", (self._w, id))
        connection.execute("DELETE FROM conversation WHERE workspace = %s AND id = %s", (self._w, id))
        query = (
            "INSERT INTO gone VALUES (%s, %s, pg_current_xact_id()) "
            "ON CONFLICT (workspace, conversation) DO UPDATE SET moved = excluded.moved"
        )
        connection.execute(query, (self._w, id))

    def _retire(self, connection: Connection, number: int) -> None:
        query = "UPDATE workspace SET retired = greatest(retired, %s) WHERE workspace = %s"
        connection.execute(query, (number, self._w))

    def _let_go(self, connection: Connection, conversation: bytes, names: list[bytes]) -> None:
        """Of these attachments, those that no message refers to any more go. Their conversation is locked."""
        for name in names:
            values = (self._w, conversation, name)
            same = "WHERE workspace = %s AND conversation = %s AND name = %s"
            if not connection.execute(f"SELECT 1 FROM reference {same} LIMIT 1", values).fetchone():
                connection.execute(f"DELETE FROM attachment {same}", values)
                connection.execute(f"DELETE FROM chunk {same}", values)

    # -- reading

    def lookup(
        self,
        *,
        ids: Sequence[bytes] = (),
        prefix: str | None = None,
        key: tuple[str, bytes] | None = None,
        limit: int = 10,
    ) -> list[ConversationRow]:
        query = f"SELECT {_CONVERSATION} FROM conversation WHERE workspace = %s AND "
        if key is not None:
            found = self._all(query + "kind = %s AND key = %s", (self._w, key[0].encode(), key[1]))
        elif prefix is not None:
            between = bytes.fromhex(prefix.ljust(32, "0")), bytes.fromhex(prefix.ljust(32, "f"))
            found = self._all(query + "id BETWEEN %s AND %s ORDER BY id LIMIT %s", (self._w, *between, limit))
        else:
            rows = {row[0]: row for row in self._all(query + "id = ANY(%s)", (self._w, list(ids)))}
            found = [rows[id] for id in ids if id in rows]
        return [_conversation(row) for row in found]

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        column, way, beyond = ("created_at", "ASC", ">") if oldest_first else ("active_at", "DESC", "<")
        condition, values = self._condition(where)
        if after is not None:
            condition += f" AND (c.{column}, c.id) {beyond} (%s, %s)"
            values = (*values, after.at, after.id)
        query = f"SELECT c.{column}, c.id FROM conversation c WHERE {condition} ORDER BY 1 {way}, 2 {way} LIMIT %s"
        return [Position(*found) for found in self._all(query, (*values, limit))]

    def count(self, where: Where) -> int:
        condition, values = self._condition(where)
        return int(self._all(f"SELECT count(*) FROM conversation c WHERE {condition}", values)[0][0])

    def _condition(self, where: Where) -> tuple[str, tuple[object, ...]]:
        condition = "c.workspace = %s AND c.kind = %s"
        values: tuple[object, ...] = (self._w, where.kind.encode())
        if where.tag is not None:
            condition += (
                " AND EXISTS (SELECT 1 FROM tag t WHERE t.workspace = c.workspace AND t.value = %s "
                "AND t.conversation = c.id AND t.message = -1)"
            )
            values = (*values, where.tag)
        if where.alive_at is not None:
            condition += " AND (c.expires_at IS NULL OR c.expires_at > %s OR c.held)"
            values = (*values, where.alive_at)
        if where.expired_at is not None:
            condition += " AND c.expires_at <= %s"
            values = (*values, where.expired_at)
        return condition, values

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        query = f"SELECT {_columns(bodies)} FROM message WHERE workspace = %s AND "
        if keys is not None:
            found = self._all(query + "conversation = %s AND key = ANY(%s)", (self._w, keys[0], list(keys[1])))
        else:
            found = self._all(query + "number = ANY(%s::bigint[])", (self._w, list(numbers)))
        return [_message(row) for row in found]

    def packs(self, runs: Sequence[int]) -> list[PackRow]:
        query = "SELECT first, conversation, parent, count, body FROM pack WHERE workspace = %s AND first = ANY(%s)"
        return [PackRow(*found) for found in self._all(query, (self._w, list(runs)))]

    def loose(self, *, full: bool, after: int = -1, limit: int) -> list[Loose]:
        wanted = RUN - 1 if full else 0
        query = (
            "SELECT number, conversation FROM message WHERE workspace = %s AND body IS NOT NULL "
            f"AND (number & 31) IN (0, 31) AND (number & 31) = {wanted} AND number > %s ORDER BY number LIMIT %s"
        )
        return [Loose(number - wanted, id) for number, id in self._all(query, (self._w, after + wanted, limit))]

    def path(self, number: int) -> Iterator[list[MessageRow] | PackRow]:
        """One statement for each run, hence one view of it: while it is packed, a body is never in two places, or in
        none."""
        query = (
            "SELECT first AS number, conversation, count AS seq, parent, NULL::bigint, NULL::boolean, NULL::bytea, "
            "NULL::bigint, NULL::bigint, body, TRUE AS packed FROM pack WHERE workspace = %s AND first = %s "
            "UNION ALL SELECT number, conversation, seq, parent, link, main, role, revision, created_at, body, FALSE "
            "FROM message WHERE workspace = %s AND number BETWEEN %s AND %s ORDER BY packed DESC, number"
        )
        next: int | None = number
        while next is not None:
            first = start = next - next % RUN
            found = self._all(query, (self._w, first, self._w, first, next))
            if found and found[0][10]:
                _, conversation, count, parent, *_, body, _ = found.pop(0)
                start = first + count
                if next < start:
                    yield PackRow(first, conversation, parent, count, body)
                    next = parent
                    continue
            rows = _unbroken([_message(row[:10]) for row in found if row[0] >= start], next)
            if rows:
                yield rows
            next = rows[0].parent if rows and rows[0].number == start else None

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
            f"SELECT {_columns(bodies)} FROM message WHERE workspace = %s AND conversation = %s "
            f"{'' if after is None else f'AND seq {beyond} %s'} ORDER BY seq {way} LIMIT %s"
        )
        bounds = (limit,) if after is None else (after, limit)
        return [_message(row) for row in self._all(query, (self._w, conversation, *bounds))]

    def kinds(self) -> list[str]:
        query = "SELECT DISTINCT kind FROM conversation WHERE workspace = %s"
        return sorted(kind.decode() for (kind,) in self._all(query, (self._w,)))

    def edge(self) -> int:
        query = (
            "SELECT greatest(retired, (SELECT max(number) FROM message m WHERE m.workspace = w.workspace)) "
            "FROM workspace w WHERE workspace = %s"
        )
        return int(self._all(query, (self._w,))[0][0] // RUN + 1) * RUN

    def numbers(self) -> Iterator[list[int]]:
        query = "SELECT number FROM message WHERE workspace = %s AND number > %s ORDER BY number LIMIT %s"
        last = -1
        while found := self._all(query, (self._w, last, _LISTED)):
            last = found[-1][0]
            yield [number for (number,) in found]

    def tagged(self, value: bytes) -> list[tuple[bytes, int | None]]:
        query = "SELECT conversation, message FROM tag WHERE workspace = %s AND value = %s ORDER BY 1, 2"
        return [(id, None if message < 0 else message) for id, message in self._all(query, (self._w, value))]

    def tags(self, conversation: bytes, *, after: Tag | None = None, limit: int) -> list[Tag]:
        query = (
            "SELECT value, message FROM tag WHERE workspace = %s AND conversation = %s AND (message, value) > (%s, %s) "
            "ORDER BY message, value LIMIT %s"
        )
        beyond = (-2, b"") if after is None else (-1 if after.message is None else after.message, after.value)
        found = self._all(query, (self._w, conversation, *beyond, limit))
        return [Tag(value, None if message < 0 else message) for value, message in found]

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
        stem = prefix.rstrip(b"\xff")
        end = stem[:-1] + bytes([stem[-1] + 1]) if stem else None
        query = (
            "SELECT conversation, key, revision, body FROM item WHERE workspace = %s AND conversation = %s "
            f"AND key >= %s {'' if end is None else 'AND key < %s'} "
            f"{'' if after is None else f'AND key {beyond_it} %s'} ORDER BY key {way} LIMIT %s"
        )
        bounds = [bound for bound in (prefix, end, after) if bound is not None] + [limit]
        return [ItemRow(*found) for found in self._all(query, (self._w, conversation, *bounds))]

    # -- attachments

    def stage(
        self, conversation: bytes, attachment: bytes, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        key = (self._w, conversation, attachment)
        same = "workspace = %s AND conversation = %s AND name = %s"

        def work(connection: Connection) -> None:
            """The row comes first: it is the lock under which chunks come and go. May be repeated at will."""
            with connection.transaction():
                query = (
                    "INSERT INTO attachment VALUES (%s, %s, %s, 0, %s) ON CONFLICT (workspace, conversation, name) "
                    "DO UPDATE SET staged_at = excluded.staged_at RETURNING chunks"
                )
                if connection.execute(query, (*key, at)).fetchall()[0][0]:  # complete, and checked
                    return
                query = (
                    "INSERT INTO chunk VALUES (%s, %s, %s, %s, %s) ON CONFLICT (workspace, conversation, name, number) "
                    "DO UPDATE SET body = excluded.body"
                )
                many = [(*key, number, chunk) for number, chunk in enumerate(chunks, start)]
                connection.cursor().executemany(query, many)
                if last:
                    end = start + len(chunks)
                    query = f"UPDATE attachment SET chunks = %s WHERE {same} AND %s = "
                    query += f"(SELECT count(*) FROM chunk WHERE {same} AND number < %s)"
                    connection.execute(query, (end, *key, end, *key, end))

        self._do(work)

    def chunks(self, conversation: bytes, attachment: bytes, start: int = 0) -> Iterator[bytes]:
        query = "SELECT body FROM chunk WHERE workspace = %s AND conversation = %s AND name = %s AND number = %s"
        while found := self._all(query, (self._w, conversation, attachment, start)):
            yield found[0][0]
            start += 1

    def attachments(self, conversation: bytes, names: Sequence[bytes] | None = None) -> list[AttachmentRow]:
        query = (
            "SELECT name, chunks, staged_at, ARRAY(SELECT message FROM reference r WHERE r.workspace = a.workspace "
            "AND r.conversation = a.conversation AND r.name = a.name ORDER BY 1) "
            "FROM attachment a WHERE workspace = %s AND conversation = %s ORDER BY name"
        )
        found = self._all(query, (self._w, conversation))
        rows = [AttachmentRow(name, count, at, tuple(messages)) for name, count, at, messages in found]
        return [row for row in rows if names is None or row.name in names]

    def unstage(self, conversation: bytes, names: Sequence[bytes]) -> None:
        self._do(lambda connection: self._unstage(connection, conversation, names))

    def _unstage(self, connection: Connection, conversation: bytes, names: Sequence[bytes]) -> None:
        """Lock first, as the collector does: who adopts one holds it until the commit is done."""
        mine = "workspace = %s AND conversation = %s AND name = %s"
        with connection.transaction():
            for name in sorted(names):
                key = (self._w, conversation, name)
                connection.execute(f"SELECT 1 FROM attachment WHERE {mine} FOR UPDATE", key)
                if not connection.execute(f"SELECT 1 FROM reference WHERE {mine}", key).fetchall():
                    connection.execute(f"DELETE FROM chunk WHERE {mine}", key)
                    connection.execute(f"DELETE FROM attachment WHERE {mine}", key)

    def collect(self, before: int) -> int:
        return self._do(lambda connection: self._collect(connection, before))

    def _collect(self, connection: Connection, before: int) -> int:
        """Lock what looks abandoned, then look again: a commit that adopted one may have held it just now."""
        unused = (
            "NOT EXISTS (SELECT 1 FROM reference r WHERE r.workspace = a.workspace "
            "AND r.conversation = a.conversation AND r.name = a.name)"
        )
        same = "workspace = %s AND conversation = %s AND name = %s"
        old = f"FROM attachment a WHERE workspace = %s AND staged_at < %s AND {unused}"
        with connection.transaction():
            query = f"SELECT conversation, name {old} ORDER BY conversation, name FOR UPDATE SKIP LOCKED"
            locked = connection.execute(query, (self._w, before)).fetchall()
            removed = 0
            for conversation, name in locked:
                values = (self._w, conversation, name)
                query = f"DELETE FROM attachment a WHERE {same} AND {unused}"
                if connection.execute(query, values).rowcount:
                    connection.execute(f"DELETE FROM chunk WHERE {same}", values)
                    removed += 1
        return removed

    # -- care

    def changes(self, since: bytes | None) -> Changes:
        """A position is a snapshot of this server, on this timeline: of another one, the same ids of transactions mean
        something else."""
        return self._do(lambda connection: self._changes(connection, since))

    _SINCE = "moved >= pg_snapshot_xmin(%s::pg_snapshot) AND NOT pg_visible_in_snapshot(moved, %s::pg_snapshot)"

    def _changes(self, connection: Connection, since: bytes | None) -> Changes:
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            query = (
                "SELECT pg_current_snapshot()::text, system_identifier, "
                "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()"
            )
            [(now, system, timeline)] = connection.execute(query).fetchall()
            here = f"{system}/{timeline}/{self._w.hex()}/"
            position = f"{here}{now}".encode()
            if since is None or not since.startswith(here.encode()):
                return Changes(position, True, [], [])
            then = since.decode().removeprefix(here)
            query = "SELECT forgotten >= pg_snapshot_xmin(%s::pg_snapshot) FROM workspace WHERE workspace = %s"
            if connection.execute(query, (then, self._w)).fetchall() != [(False,)]:
                return Changes(position, True, [], [])
            query = f"SELECT id FROM conversation WHERE workspace = %s AND {self._SINCE} ORDER BY moved"
            moved = [id for (id,) in connection.execute(query, (self._w, then, then))]
            query = (
                f"SELECT conversation FROM gone g WHERE workspace = %s AND {self._SINCE} AND NOT EXISTS "
                "(SELECT 1 FROM conversation c WHERE c.workspace = g.workspace AND c.id = g.conversation)"
            )
            gone = [id for (id,) in connection.execute(query, (self._w, then, then))]
            return Changes(position, False, moved, gone)

    def text_index(self, *, create: bool) -> TextIndex | None:  # not here
        return None

    def maintain(self, seconds: float) -> bool:  # it is little
        """Forget who is long gone. Positions from before are unknown from then on."""
        query = (
            "WITH old AS (DELETE FROM gone WHERE workspace = %s AND moved <= (SELECT moved FROM gone "
            f"WHERE workspace = %s ORDER BY moved DESC OFFSET {_GRAVES} LIMIT 1) RETURNING moved) "
            "UPDATE workspace SET forgotten = greatest(forgotten, (SELECT max(moved) FROM old)) "
            "WHERE workspace = %s AND EXISTS (SELECT 1 FROM old) RETURNING 1"
        )
        self._all(query, (self._w, self._w, self._w))
        return True

    def backup(self, path: str) -> None:  # declared in `info`
        raise InvalidArgument("a database server is backed up by its own tools")

    def check(self) -> list[str]:
        query = (
            "SELECT count(*) FROM reference r WHERE workspace = %s AND NOT EXISTS (SELECT 1 FROM attachment a WHERE "
            "a.workspace = r.workspace AND a.conversation = r.conversation AND a.name = r.name)"
        )
        lost = self._all(query, (self._w,))[0][0]
        return [f"{lost} attachments that messages refer to are missing"] if lost else []

    def scrub(self) -> bool:
        """What can be done, which is less than was asked for: the space may be used again, but the bytes stay in it
        until it is, and in the log."""
        self._do(lambda connection: connection.execute(f"VACUUM conversation, {', '.join(_OWNED)}"))
        return True

    def is_scrubbed(self) -> bool:
        return True

    def size(self) -> int:
        """The bytes of this workspace, before PostgreSQL compresses them: the files belong to all workspaces, and grow
        and shrink with what others do."""
        query = " UNION ALL ".join(
            f"SELECT sum(octet_length(body)) FROM {table} WHERE workspace = %s"
            for table in ("message", "pack", "chunk")
        )
        return sum(int(found or 0) for (found,) in self._all(query, (self._w,) * 3))

    def used(self) -> int:
        query = (
            "SELECT sum(size) FROM conversation WHERE workspace = %s UNION ALL "
            "SELECT sum(octet_length(body)) FROM chunk WHERE workspace = %s"
        )
        return sum(int(found or 0) for (found,) in self._all(query, (self._w,) * 2))

    def disk(self) -> Disk | None:
        return None


def _passes(error: Exception) -> bool:
    """Is it worth trying again? Races, deadlocks, lost connections, and servers that stop or start."""
    if isinstance(error, errors.UniqueViolation | _LostRaceError):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "40", "57")


def _conversation_values(row: ConversationRow) -> list[object]:
    values = list(msgspec.structs.astuple(row))
    values[1], values[7] = row.kind.encode(), _pack_tips(row.tips)
    return values


def _conversation(found: tuple[Any, ...]) -> ConversationRow:
    values = list(found)
    values[1], values[7] = values[1].decode(), _unpack_tips(values[7])
    return ConversationRow(*values)


def _message_values(m: MessageRow) -> list[object]:
    values = list(msgspec.structs.astuple(m))
    values[6] = m.role.encode()
    return values


def _message(found: tuple[Any, ...]) -> MessageRow:
    values = list(found)
    values[6] = values[6].decode()
    return MessageRow(*values)


def _columns(bodies: bool) -> str:
    return _MESSAGE if bodies else _MESSAGE.replace("body", "NULL::bytea")


def _unbroken(rows: list[MessageRow], last: int) -> list[MessageRow]:
    """The rows that lead up to the number `last` without a gap."""
    first = len(rows)
    while first and rows[first - 1].number == last:
        first, last = first - 1, last - 1
    return rows[first:]
