"""Commits on PostgreSQL, where other writers have connections of their own.

**The short way: one statement.** Most batches only add messages to one conversation. The statement updates the row if
its token still stands, and inserts the messages if it did: one round trip, and no explicit transaction. Several such
batches share one transaction and one round trip. All other batches take the long way, and so does a batch that violates
a unique index. Copies (`bulk_rows`) and contested rows (`queueing`) have ways of their own.

**The long way: READ COMMITTED, locks first.** The rows of all named conversations are locked in the order of their ids,
so their tokens are known for certain. Names that do not exist yet (an id, a key, a run of numbers) cannot be locked,
and are guarded by unique indexes: the loser of such a race gets an error, rolls back *everything* and starts over, and
then the checks see the winner. So there are no savepoints, and one retry loop that also serves deadlocks and lost
connections.

**A number is checked again after the insert.** Between a check and its insert, another writer may have used and purged
the run: neither the check nor the unique index would notice.

**On a full disk, a removal writes nothing that needs more space**: the feed does not record the removed conversations,
but tells its readers to look at everything.

**A commit is unknown** if the connection is lost during the COMMIT, and also if the server reports success with a
warning: then its wait for a replica was cancelled.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import errors

from ...backend import (
    DONE,
    WORKSPACE,
    Batch,
    Change,
    ConversationRow,
    KeyShape,
    Missing,
    Outcome,
    Rebase,
    Stale,
    Taken,
    removes,
)
from ...errors import CommitUnknown, Unavailable
from ...ids import RUN
from .bulk_rows import only_arrive, put_all, put_messages
from .connection import Connection, roll_back
from .connections import Bound
from .error_mapping import LostRaceError, with_its_code
from .feed import FORGET
from .queueing import Contested, QueuedCommit
from .rows import (
    CONVERSATION,
    MARK,
    MARKED,
    MESSAGE,
    MUTABLE,
    conversation,
    conversation_values,
    may_prepare,
    message_values,
    mutable,
    shelf,
)

_OWNED = ("tag", "item", "pack", "reference", "attachment", "chunk", "message")  # an attachment's row locks its chunks
_MOST = 16  # messages in one statement of the short way
_FEW = 4  # messages that are inserted one by one
_WARNING = "01000"
_GOING = ("57P01", "57P02", "57P03")  # a server that shuts down, crashes, or starts
_FATAL = ("FATAL", "PANIC")

_SET = ", ".join(f"{name} = %s" for name in MUTABLE) + ", shelf = %s, moved = 0"
_INSERT_CONVERSATION = (
    f"INSERT INTO hitherto.conversation (workspace_id, moved, shelf, {CONVERSATION}) "
    f"VALUES (%s, 0, %s, {', '.join(['%s'] * 19)})"
)
_UPDATE_CONVERSATION = f"UPDATE hitherto.conversation SET {_SET} WHERE workspace_id = %s AND id = %s"
_MESSAGE = f"{MESSAGE}, loose"
_TYPES = {
    "conversation": "bytea",
    "main": "boolean",
    "role": "bytea",
    "body": "bytea",
    "key": "bytea",
    "token": "bytea",
}
_TYPED = "(" + ", ".join(f"%s::{_TYPES.get(name, 'bigint')}" for name in _MESSAGE.split(", ")) + ")"
_INSERT_MESSAGE = f"INSERT INTO hitherto.message (workspace_id, {_MESSAGE}) VALUES (%s, {', '.join(['%s'] * 14)})"
_UPDATE_MESSAGE = (
    f"UPDATE hitherto.message SET {', '.join(f'{name} = %s' for name in _MESSAGE.split(', '))} "
    "WHERE workspace_id = %s AND number = %s"
)
_NULL_BODIES = (
    "UPDATE hitherto.message SET body = NULL, loose = NULL "
    "WHERE workspace_id = %s AND number BETWEEN %s AND %s AND body IS NOT NULL"
)
_PUT_PACK = (
    "INSERT INTO hitherto.pack VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (workspace_id, first) DO UPDATE "
    "SET parent = excluded.parent, count = excluded.count, body = excluded.body"
)
_PUT_ITEM = (
    "INSERT INTO hitherto.item VALUES (%s, %s, %s, %s, %s) ON CONFLICT (workspace_id, conversation, key) "
    "DO UPDATE SET revision = excluded.revision, body = excluded.body"
)


@lru_cache(maxsize=_MOST + 1)
def _append(count: int) -> str:
    """Return the statement of the short way, for so many messages."""
    changed = f"{_UPDATE_CONVERSATION} AND token = %s RETURNING 1"
    if not count:
        return changed
    return (
        f"WITH c AS ({changed}), m AS (INSERT INTO hitherto.message (workspace_id, {_MESSAGE}) "
        f"SELECT %s::uuid, v.* FROM c CROSS JOIN (VALUES {', '.join([_TYPED] * count)}) v) SELECT 1 FROM c"
    )


@lru_cache(maxsize=_MOST + 1)
def _insert_after(count: int) -> str:
    """Return the second half of the same in a cluster: it passes two simple statements on to a node, but not one that
    changes two tables. The row has the new token if the first half has changed it."""
    return (
        f"INSERT INTO hitherto.message (workspace_id, {_MESSAGE}) SELECT c.workspace_id, v.* "
        "FROM hitherto.conversation c "
        f"CROSS JOIN (VALUES {', '.join([_TYPED] * count)}) v WHERE c.workspace_id = %s AND c.id = %s AND c.token = %s"
    )


class Writer:
    """Applies batches for one workspace."""

    short_way = True

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.contested = Contested()
        self._w = bound.workspace_id

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        short = self.short_way and all(map(self.is_short, batches))
        arrive = self.short_way and only_arrive(batches)

        def work(connection: Connection) -> list[Outcome]:
            nonlocal short, arrive
            if short and batches:
                try:
                    return self._short(connection, batches)
                except (errors.UniqueViolation, LostRaceError):
                    short = False  # a name is taken: the long way finds out which
            if arrive:
                try:
                    return self._arrive(connection, batches)
                except errors.UniqueViolation:
                    arrive = False  # as above
            try:
                return self._long(connection, batches)
            except errors.DiskFull:
                if not all(map(removes, batches)):
                    raise
                return self._long(connection, batches, frugal=True)

        return self.bound.do(work, bound=True)

    def commit_queued(self, batches: Sequence[Batch], rebase: Rebase) -> list[Outcome]:
        return QueuedCommit(self, batches, rebase).run()

    @staticmethod
    def is_short(batch: Batch) -> bool:
        """Tell whether a batch only updates one row and adds messages to a run that has begun."""
        if batch.require or batch.is_copy or batch.every_key is not None or len(batch.changes) != 1:
            return False
        change = batch.changes[0]
        if change.expect is None or change.row is None or change.rekey or len(change.add) > _MOST:
            return False
        if any(m.number % RUN == 0 for m in change.add):
            return False
        others = (change.amend, change.drop, change.pack, change.unpack, change.attach, change.detach, change.put)
        return not (any(others) or change.unput or change.tag or change.untag)

    def settle(self) -> None:
        """Wait until every visible commit is durable, also on replicas.

        A transaction that writes waits for all transactions before it. In a cluster it has to write on the node with
        the workspace. Elsewhere it names no table, because that would be locked as long as a replica is waited for."""
        query = "SELECT pg_logical_emit_message(true, 'hitherto', '')"
        values: Sequence[object] = ()
        if self.bound.shared.is_distributed:
            query, values = f"{query} FROM hitherto.workspace WHERE workspace_id = %s", (self._w,)

        def work(connection: Connection) -> None:
            with self.committing(connection), self._alone(connection):
                connection.execute(query, values)

        self.bound.do(work, bound=True)

    # -- the short way

    def _short(self, connection: Connection, batches: Sequence[Batch]) -> list[Outcome]:
        changed = self.append_all(connection, batches)
        stale = {batches[n].changes[0].conversation for n, count in enumerate(changed) if not count}
        if not stale:
            return [DONE] * len(batches)
        try:
            rows = self._rows(connection, stale)
        except psycopg.Error as error:
            if any(changed):  # a committed batch must not be repeated: it would conflict with itself
                raise CommitUnknown("the connection was lost after the commit") from error
            raise
        return [
            DONE if count else Stale(batch.changes[0].conversation, rows.get(batch.changes[0].conversation))
            for batch, count in zip(batches, changed, strict=True)
        ]

    def append_all(self, connection: Connection, batches: Sequence[Batch]) -> list[int]:
        """Commit these batches in the order of ids, so that two commits never deadlock. 0 marks a stale batch."""
        order = sorted(range(len(batches)), key=lambda n: batches[n].changes[0].conversation)
        together = len(batches) > 1 or self.bound.shared.by_transaction
        try:
            with self.committing(connection):
                if not together:
                    return [len(self.append(connection, batches[0]).fetchall())]
                with connection.pipeline():
                    self.bound.begin(connection)
                    cursors = {n: self.append(connection, batches[n]) for n in order}
                    connection.execute("COMMIT")
                return [len(cursors[n].fetchall()) for n in range(len(batches))]
        except psycopg.Error:
            roll_back(connection)
            raise

    def append(self, connection: Connection, batch: Batch) -> "psycopg.Cursor[tuple[Any, ...]]":
        """Send the short way of this batch. The cursor has a row if the batch was not stale."""
        (change,) = batch.changes
        row, added = change.row, len(change.add)
        assert row is not None
        values = [*mutable(row), shelf(row.active_at), self._w, change.conversation, change.expect]
        messages = [value for m in change.add for value in message_values(m)]
        if not added:
            return connection.execute(_append(0), values)
        if not self.bound.shared.is_distributed:
            return connection.execute(_append(added), [*values, self._w, *messages])
        changed = connection.execute(_append(0), values)
        connection.execute(_insert_after(added), [*messages, self._w, change.conversation, row.token])
        return changed

    def _rows(self, connection: Connection, ids: Iterable[bytes]) -> dict[bytes, ConversationRow]:
        query = f"SELECT {CONVERSATION} FROM hitherto.conversation WHERE workspace_id = %s AND id = ANY(%s::bytea[])"
        with self._alone(connection):
            found = connection.execute(query, (self._w, list(ids)), prepare=False, binary=True).fetchall()
        return {row[0]: conversation(row) for row in found}

    @contextmanager
    def _alone(self, connection: Connection) -> Iterator[None]:
        """Run a single statement. Behind a transaction pooler that takes a bound transaction."""
        if not self.bound.shared.by_transaction:
            yield
            return
        with connection.transaction():
            self.bound.bind(connection)
            yield

    @contextmanager
    def committing(self, connection: Connection) -> Iterator[None]:
        """Map errors of a COMMIT: a lost connection, or success with a warning, is `CommitUnknown`."""
        warnings: list[str | None] = []

        def listen(notice: psycopg.errors.Diagnostic) -> None:
            warnings.append(notice.sqlstate)

        connection.add_notice_handler(listen)
        try:
            with self.bound.shared.watch.over(connection, self.bound.timeout_seconds):
                yield
        except psycopg.Error as raised:
            error = with_its_code(raised)
            if connection.closed or _hangs_up(error):
                reason = self._timeout_reason(connection)
                raise CommitUnknown("the connection was lost during the commit", reason=reason) from raised
            if error is not raised:
                raise error from raised
            raise
        finally:
            connection.remove_notice_handler(listen)
        if _WARNING in warnings:
            connection.close()
            raise CommitUnknown("the commit may not have reached the replicas", reason=self._timeout_reason(connection))

    def _timeout_reason(self, connection: Connection) -> Unavailable | CommitUnknown | None:
        """Return the reason if the watch ended the wait after the timeout: then the commit is not retried.

        If the server did not report the outcome, the commit may still be in progress and not yet visible."""
        if not getattr(connection, "gave_up", False):
            return None
        self.bound.shared.doubt()
        what = "the server has not acknowledged the commit in time"
        if getattr(connection, "hung_up", False):
            return CommitUnknown(what)
        hint = "look at the standbys that the server waits for (synchronous_standby_names)"
        return Unavailable(what, hint=hint)

    # -- what a copy brings

    def _arrive(self, connection: Connection, batches: Sequence[Batch]) -> list[Outcome]:
        try:
            with connection.pipeline():
                self.bound.begin(connection)
                rows = self._lock(connection, batches)
            outcomes = [_check_tokens(batch, rows) for batch in batches]
            changes = [
                change
                for batch, outcome in zip(batches, outcomes, strict=True)
                if outcome is DONE
                for change in batch.changes
            ]
            with connection.pipeline():
                for change in changes:
                    if change.expect is not None and change.row is not None:
                        self._put_row(connection, change, change.row)
                put_all(connection, self._w, changes)
        except psycopg.Error:
            roll_back(connection)
            raise
        self._end(connection, outcomes)
        return outcomes

    # -- the long way

    def _long(self, connection: Connection, batches: Sequence[Batch], *, frugal: bool = False) -> list[Outcome]:
        try:
            with connection.pipeline():
                self.bound.begin(connection)
                rows = self._lock(connection, batches)
            outcomes = [self.commit_one(connection, batch, rows, frugal=frugal) for batch in batches]
        except (psycopg.Error, LostRaceError):
            roll_back(connection)
            raise
        self._end(connection, outcomes)
        return outcomes

    def _end(self, connection: Connection, outcomes: Sequence[Outcome]) -> None:
        if DONE in outcomes:
            self.finish(connection)
        else:
            connection.execute("ROLLBACK")

    def finish(self, connection: Connection) -> None:
        with self.committing(connection):
            connection.execute("COMMIT")

    def _lock(self, connection: Connection, batches: Sequence[Batch]) -> dict[bytes, ConversationRow]:
        locked = self.lock_rows(connection, batches)
        return {row[0]: conversation(row) for cursor in locked for row in cursor.fetchall()}

    def lock_rows(self, connection: Connection, batches: Sequence[Batch]) -> "list[psycopg.Cursor[tuple[Any, ...]]]":
        """Lock every conversation that the batches change or require. Required rows get a shared lock: they must only
        stay as they are."""
        changed = {change.conversation for batch in batches for change in batch.changes}
        required = {id for batch in batches for id, _ in batch.require} - changed
        locked = [self._lock_ids(connection, list(changed), "FOR NO KEY UPDATE")]
        if required:
            locked.append(self._lock_ids(connection, list(required), "FOR SHARE"))
        return locked

    def _lock_ids(self, connection: Connection, ids: list[bytes], how: str) -> "psycopg.Cursor[tuple[Any, ...]]":
        which, value = ("id = %s", ids[0]) if len(ids) == 1 else ("id = ANY(%s::bytea[])", ids)
        query = (
            f"SELECT {CONVERSATION} FROM hitherto.conversation WHERE workspace_id = %s AND {which} ORDER BY id {how}"
        )
        return connection.execute(query, (self._w, value), prepare=may_prepare(query), binary=True)

    def commit_one(
        self, connection: Connection, batch: Batch, rows: dict[bytes, ConversationRow], *, frugal: bool = False
    ) -> Outcome:
        for id, token in batch.require:
            row = rows.get(id)
            if row is None or row.token != token:
                return Stale(id, row)
        other = None if batch.every_key is None else self._find_other_key(connection, batch.every_key)
        if other is not None:
            return Stale(other.id, other)
        for change in batch.changes:
            problem = self._problem(connection, change, rows.get(change.conversation), is_copy=batch.is_copy)
            if problem is not None:
                return problem
        for change in batch.changes:
            if change.row is None:
                self._remove(connection, change.conversation, frugal=frugal)
            else:
                self._apply(connection, change, change.row)
                if _replaces(change, rows.get(change.conversation)):
                    connection.execute(MARK, (self._w,))
            if not batch.is_copy:
                self._check_numbers(connection, change)
            if change.row is None:
                del rows[change.conversation]
            else:
                rows[change.conversation] = change.row
        return DONE

    def _problem(
        self, connection: Connection, change: Change, row: ConversationRow | None, *, is_copy: bool
    ) -> Outcome | None:
        id = change.conversation
        if change.expect is None:
            if row is not None:
                return Taken("id", id)
        elif row is None or row.token != change.expect:
            return Stale(id, row)
        if (change.expect is None or change.rekey) and change.row is not None and change.row.key is not None:
            query = "SELECT id FROM hitherto.conversation WHERE workspace_id = %s AND kind = %s AND key = %s"
            values = (self._w, change.row.kind.encode(), change.row.key)
            for (other,) in connection.execute(query, values, binary=True):
                if other != id:
                    return Taken("key", other)
        for message in change.add:
            if message.number % RUN == 0 and self._is_run_taken(connection, message.number, is_copy=is_copy):
                return Taken("number", id)
            if message.key is not None:
                query = "SELECT 1 FROM hitherto.message WHERE workspace_id = %s AND conversation = %s AND key = %s"
                if connection.execute(query, (self._w, id, message.key)).fetchone():
                    return Taken("message key", id)
        return self._missing(connection, change)

    def _find_other_key(self, connection: Connection, shape: KeyShape) -> ConversationRow | None:
        """Return a conversation whose data key does not fit the shape.

        It is a statement of its own, after the locks: it sees everything that was committed before they were taken."""
        fits = ["length(data_key) = %s", *("substr(data_key, %s::int, %s::int) = %s" for _ in shape.parts)]
        values: list[object] = [self._w, WORKSPACE.encode(), shape.length]
        for offset, part in shape.parts:
            values += (offset + 1, len(part), part)
        query = (
            f"SELECT {CONVERSATION} FROM hitherto.conversation "
            f"WHERE workspace_id = %s AND kind <> %s AND NOT ({' AND '.join(fits)}) LIMIT 1"
        )
        found = connection.execute(query, values, prepare=False, binary=True).fetchone()
        return None if found is None else conversation(found)

    def _missing(self, connection: Connection, change: Change) -> Missing | None:
        """Lock the attachments and return a missing one. Otherwise `collect` could remove one before the commit."""
        query = (
            "SELECT 1 FROM hitherto.attachment WHERE workspace_id = %s AND conversation = %s AND name = %s "
            "AND chunks > 0 FOR SHARE"
        )
        for _, name in change.attach:
            if not connection.execute(query, (self._w, change.conversation, name)).fetchone():
                return Missing(change.conversation, name)
        return None

    def _is_run_taken(self, connection: Connection, first: int, *, is_copy: bool) -> bool:
        """Check both places in one statement: between two, a purge could move the run from one to the other."""
        query = (
            "SELECT 1 FROM hitherto.message WHERE workspace_id = %s AND number BETWEEN %s AND %s UNION ALL "
            "SELECT 1 FROM hitherto.workspace WHERE workspace_id = %s AND retired >= %s AND NOT %s LIMIT 1"
        )
        values = (self._w, first, first + RUN - 1, self._w, first, is_copy)
        return connection.execute(query, values).fetchone() is not None

    def _apply(self, connection: Connection, change: Change, row: ConversationRow) -> None:
        with connection.pipeline():
            self._put_row(connection, change, row)
            let_go = self._drop(connection, change)
            self._put_messages(connection, change)
            self._put_items(connection, change)
        self._release_attachments(connection, change.conversation, let_go)

    def _put_row(self, connection: Connection, change: Change, row: ConversationRow) -> None:
        if change.expect is None:
            values = (self._w, shelf(row.active_at), *conversation_values(row))
            connection.execute(_INSERT_CONVERSATION, values)
            return
        connection.execute(_UPDATE_CONVERSATION, (*mutable(row), shelf(row.active_at), self._w, row.id))
        if change.rekey:
            query = "UPDATE hitherto.conversation SET key = %s WHERE workspace_id = %s AND id = %s"
            connection.execute(query, (row.key, self._w, row.id))

    def _drop(self, connection: Connection, change: Change) -> list[bytes]:
        """Delete dropped messages and references, and return attachments that may have lost their last reference."""
        id, w, execute = change.conversation, self._w, connection.execute
        let_go: list[bytes] = []
        if change.drop:
            dropped = list(change.drop)
            execute("DELETE FROM hitherto.message WHERE workspace_id = %s AND number = ANY(%s::bigint[])", (w, dropped))
            owned = "WHERE workspace_id = %s AND conversation = %s AND message = ANY(%s::bigint[])"
            execute(f"DELETE FROM hitherto.tag {owned}", (w, id, dropped))
            gone = execute(f"DELETE FROM hitherto.reference {owned} RETURNING name", (w, id, dropped), binary=True)
            self._retire(connection, max(dropped))
            let_go = [name for (name,) in gone.fetchall()]
        one = "workspace_id = %s AND conversation = %s AND message = %s AND name = %s"
        for number, name in change.detach:
            let_go.append(name)
            execute(f"DELETE FROM hitherto.reference WHERE {one}", (w, id, number, name))
        return let_go

    def _put_messages(self, connection: Connection, change: Change) -> None:
        id, w, execute = change.conversation, self._w, connection.execute
        if len(change.add) > _FEW:
            put_messages(connection, w, change.add)
        else:
            for m in change.add:
                execute(_INSERT_MESSAGE, (w, *message_values(m)))
        for m in change.amend:
            execute(_UPDATE_MESSAGE, (*message_values(m), w, m.number))
        for first in change.unpack:
            execute("DELETE FROM hitherto.pack WHERE workspace_id = %s AND first = %s", (w, first))
        for p in change.pack:
            execute(_PUT_PACK, (w, p.first, id, p.parent, p.count, p.body))
            execute(_NULL_BODIES, (w, p.first, p.first + p.count - 1))
        for number, name in change.attach:
            query = "INSERT INTO hitherto.reference VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
            execute(query, (w, id, name, number))

    def _put_items(self, connection: Connection, change: Change) -> None:
        id, w, execute = change.conversation, self._w, connection.execute
        for item in change.put:
            execute(_PUT_ITEM, (w, id, item.key, item.revision, item.body))
        for key in change.unput:
            execute(
                "DELETE FROM hitherto.item WHERE workspace_id = %s AND conversation = %s AND key = %s", (w, id, key)
            )
        place = "workspace_id = %s AND value = %s AND conversation = %s AND message = %s"
        for tag in change.untag:
            execute(f"DELETE FROM hitherto.tag WHERE {place}", (w, tag.value, id, _message_number(tag.message)))
        for tag in change.tag:
            query = "INSERT INTO hitherto.tag VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
            execute(query, (w, tag.value, id, _message_number(tag.message)))

    def _check_numbers(self, connection: Connection, change: Change) -> None:
        """Raise `LostRaceError` if another writer has used and purged one of these runs since the check."""
        runs = [message.number for message in change.add if message.number % RUN == 0]
        if runs:
            query = "SELECT 1 FROM hitherto.workspace WHERE workspace_id = %s AND retired >= %s"
            if connection.execute(query, (self._w, min(runs))).fetchone():
                raise LostRaceError("number")

    def _remove(self, connection: Connection, id: bytes, *, frugal: bool) -> None:
        """Delete a conversation and all it owns. Its id stays, for the feed.

        With `frugal`, on a full disk, not even the id stays: then all positions of the feed are invalidated."""
        query = "SELECT max(m.number) FROM hitherto.message m WHERE m.workspace_id = %s AND m.conversation = %s"
        [(highest,)] = connection.execute(query, (self._w, id)).fetchall()
        with connection.pipeline():
            self._retire(connection, -1 if highest is None else highest)
            for table in _OWNED:
                query = f"DELETE FROM hitherto.{table} WHERE workspace_id = %s AND conversation = %s"
                connection.execute(query, (self._w, id))
            connection.execute("DELETE FROM hitherto.conversation WHERE workspace_id = %s AND id = %s", (self._w, id))
            if frugal:
                connection.execute(FORGET, (self._w,))
                return
            query = (
                "INSERT INTO hitherto.gone VALUES (%s, %s, '0') "
                "ON CONFLICT (workspace_id, conversation) DO UPDATE SET moved = excluded.moved"
            )
            connection.execute(query, (self._w, id))

    def _retire(self, connection: Connection, number: int) -> None:
        query = f"UPDATE hitherto.workspace SET retired = greatest(retired, %s), {MARKED} WHERE workspace_id = %s"
        connection.execute(query, (number, self._w))

    def _release_attachments(self, connection: Connection, conversation: bytes, names: list[bytes]) -> None:
        """Delete those of these attachments that have no reference left. Their conversation is locked."""
        for name in names:
            values = (self._w, conversation, name)
            same = "WHERE workspace_id = %s AND conversation = %s AND name = %s"
            if not connection.execute(f"SELECT 1 FROM hitherto.reference {same} LIMIT 1", values).fetchone():
                connection.execute(f"DELETE FROM hitherto.attachment {same}", values)
                connection.execute(f"DELETE FROM hitherto.chunk {same}", values)


def _check_tokens(batch: Batch, rows: dict[bytes, ConversationRow]) -> Outcome:
    """Compare the tokens of all rows that the batch names; `DONE` if all of them stand."""
    for id, token in (*batch.require, *((change.conversation, change.expect) for change in batch.changes)):
        row = rows.get(id)
        if token is None and row is not None:
            return Taken("id", id)
        if token is not None and (row is None or row.token != token):
            return Stale(id, row)
    return DONE


def _replaces(change: Change, row: ConversationRow | None) -> bool:
    """Tell whether the change leaves old bytes in the files. (A dropped message sets the mark when it is retired.)"""
    rewrapped = row is not None and change.row is not None and row.data_key != change.row.data_key
    return bool(change.amend or change.unpack or change.detach) or rewrapped


def _message_number(message: int | None) -> int:
    return -1 if message is None else message


def _hangs_up(error: psycopg.Error) -> bool:
    """Tell whether the server closes the connection with this error, as at a shutdown.

    It may do so between the commit and the answer, before the connection counts as closed. A coordinator of a cluster
    keeps it open, and passes on that a node has gone."""
    state = error.sqlstate
    return state is None or state[:2] == "08" or state in _GOING or error.diag.severity_nonlocalized in _FATAL
