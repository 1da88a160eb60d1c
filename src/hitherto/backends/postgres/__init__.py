"""The backend on PostgreSQL, through psycopg: for a service with many users on many machines.

It has the same rows as SQLite, in one database for all workspaces. A workspace is the first column of every table. Its
id is a hash of its name, so no lookup is needed. The differences, and their reasons:

- **Writing** (`writing`): a turn is one statement and one round trip. Other writers have connections of their own, so a
  commit locks the rows that it changes, and starts over if a unique index shows that it lost a race. A batch whose
  conversation has moved queues for the row, and is prepared again from it (`queueing`).
- **Reading a path** takes one statement for many runs: a round trip costs more than finding a row.
- **The feed** (`feed`) costs a write nothing: readers number the changes that they find.
- **A condition for a removal is read after the locks** that keep it true, in a statement of its own: a statement that
  had to wait for a lock still sees the other tables as they were before.
- **Erasure ends at the server's door** (`erasure`). Removed rows are vacuumed away. Free space, the log and backups are
  the administrator's (`docs/postgres.md` lists the copies that remain, and for how long).

No sequences, triggers, LISTEN or advisory locks.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from ...backend import (
    AttachmentRow,
    Batch,
    Changes,
    ConversationRow,
    DayCount,
    Disk,
    Info,
    ItemRow,
    Lifetime,
    MessageRow,
    Outcome,
    PackRow,
    Position,
    Rebase,
    Tag,
    Totals,
    UnpackedRun,
    Where,
    after_prefix,
)
from ...errors import Hint, InvalidArgument, NotFound
from ...ids import RUN, new_conversation_id
from ...textindex import TextIndex
from .address import Address
from .connection import Connection
from .connections import Bound, Shared
from .erasure import Eraser
from .feed import ADOPT, FIRST, number_changes, read_changes
from .rows import CONVERSATION, MARK, columns, conversation, may_prepare, message, shelf, unbroken
from .writing import Writer

_GRAVES = 1000  # purged conversations that the feed remembers after maintenance
_LISTED = 4096  # numbers in one list
_RUNS = 32  # of a path, in one statement

_BACKUP = (
    "pg_dump --schema=hitherto, as a role that row-level security does not bind; hitherto copy makes a file of a "
    "workspace"
)

_SAME = "workspace_id = %s AND conversation = %s AND name = %s"

# The runs on the path up from a message, each with the message at which the path enters it; then their rows.
_PATH = """
WITH RECURSIVE run (step, first, last) AS (
    SELECT 0, %s::bigint - %s::bigint %% 32, %s::bigint
    UNION ALL
    SELECT run.step + 1, m.parent - m.parent %% 32, m.parent FROM run JOIN hitherto.message m
        ON m.workspace_id = %s AND m.number = run.first WHERE m.parent IS NOT NULL AND run.step < %s)
SELECT run.step, run.first, run.last, x.* FROM run CROSS JOIN LATERAL (
    SELECT p.first AS number, p.conversation, p.count AS seq, p.parent, NULL::bigint AS link, NULL::boolean AS main,
        NULL::bytea AS role, NULL::bigint AS revision, NULL::bigint AS created_at, p.body, TRUE AS packed
        FROM hitherto.pack p WHERE p.workspace_id = %s AND p.first = run.first
    UNION ALL
    SELECT m.number, m.conversation, m.seq, m.parent, m.link, m.main, m.role, m.revision, m.created_at, m.body, FALSE
        FROM hitherto.message m WHERE m.workspace_id = %s AND m.number BETWEEN run.first AND run.last) x
ORDER BY run.step, x.packed DESC, x.number
"""

# From run to run, as above; UNION ends a circle.
_ROOT = """
WITH RECURSIVE run (first) AS (
    SELECT m.number - m.number %% 32 FROM hitherto.message m WHERE m.workspace_id = %s AND m.number = %s
    UNION
    SELECT m.parent - m.parent %% 32 FROM run JOIN hitherto.message m
        ON m.workspace_id = %s AND m.number = run.first WHERE m.parent IS NOT NULL)
SELECT run.first FROM run JOIN hitherto.message m ON m.workspace_id = %s AND m.number = run.first
    WHERE m.parent IS NULL
"""


def workspace_id(name: str) -> UUID:
    """Return the id of the workspace of this name: the same in every database."""
    return UUID(bytes=hashlib.sha256(b"hitherto workspace\0" + name.encode()).digest()[:16])


class PostgresBackend:
    """One workspace of a PostgreSQL database."""

    writer: type[Writer] = Writer

    def __init__(
        self,
        url: str,
        *,
        workspace: str = "default",
        timeout_seconds: float = 30.0,
        read_only: bool = False,
        create: bool = True,
        identity: bytes | None = None,
    ) -> None:
        """Connect, migrate the tables, and find or create the workspace.

        With `read_only` nothing is created and no row is written: a missing workspace is an error. Without `create` it
        is an error too. A new workspace gets this `identity`, which sealing binds to."""
        address = Address(url, read_only=read_only)
        self._w = workspace_id(workspace)
        shared = Shared.of(address)
        self._bound = Bound(shared, self._w, timeout_seconds)
        try:
            shared.open(timeout_seconds, create=create)
            enter = partial(self._enter, name=workspace, create=create, identity=identity)
            found = self._bound.do(enter, writes=not read_only)
        except BaseException:
            self._bound.close()
            raise
        self._writer, self._eraser = self.writer(self._bound), Eraser(self._bound)
        self.info = Info(
            name="postgres",
            workspace=found,
            location=address.shown,
            durable=shared.durable,
            workspace_name=workspace,
            distant=True,
            can_queue=True,
        )

    def _enter(self, connection: Connection, name: str, create: bool, identity: bytes | None) -> bytes:
        """Find or create the workspace, and return its identity, which sealing binds to."""
        query = f"SELECT identity, forgotten < '{FIRST}'::xid8 FROM hitherto.workspace WHERE workspace_id = %s"
        found = connection.execute(query, (self._w,)).fetchall()
        if not found:
            if self._bound.shared.address.read_only or not create:
                hint = Hint("no-workspace", "the store has no workspace of that name{only}", only="")
                raise NotFound("workspace", [name], hint=hint)
            insert = (
                "INSERT INTO hitherto.workspace (workspace_id, name, identity, retired, forgotten) "
                f"VALUES (%s, %s, %s, -1, '{FIRST}') ON CONFLICT DO NOTHING"
            )
            connection.execute(insert, (self._w, name.encode(), identity or new_conversation_id()))
            found = connection.execute(query, (self._w,)).fetchall()
        [(identity, is_older)] = found
        if is_older and not self._bound.shared.address.read_only:
            connection.execute(ADOPT, (self._w,))
        return bytes(identity)

    @property
    def retries(self) -> int:
        """How often a transaction was started over."""
        return self._bound.retries

    def close(self, *, untouched: bool = False) -> None:  # noqa: ARG002  # there is no file to be touched
        self._bound.close()

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._bound.do(
            lambda connection: connection.execute(query, values, prepare=may_prepare(query), binary=True).fetchall()
        )

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        if not batches:
            self._writer.settle()
            return []
        return self._writer.commit(batches)

    def commit_queued(self, batches: Sequence[Batch], rebase: Rebase) -> list[Outcome]:
        return self._writer.commit_queued(batches, rebase) if batches else self.commit(())

    # -- reading

    def lookup(
        self,
        *,
        ids: Sequence[bytes] = (),
        prefix: str | None = None,
        key: tuple[str, bytes] | None = None,
        limit: int = 10,
    ) -> list[ConversationRow]:
        query = f"SELECT {CONVERSATION} FROM hitherto.conversation WHERE workspace_id = %s AND "
        if key is not None:
            found = self._all(query + "kind = %s AND key = %s", (self._w, key[0].encode(), key[1]))
        elif prefix is not None:
            between = bytes.fromhex(prefix.ljust(32, "0")), bytes.fromhex(prefix.ljust(32, "f"))
            found = self._all(query + "id BETWEEN %s AND %s ORDER BY id LIMIT %s", (self._w, *between, limit))
        elif len(ids) == 1:
            found = self._all(query + "id = %s", (self._w, ids[0]))
        else:
            rows = {row[0]: row for row in self._all(query + "id = ANY(%s::bytea[])", (self._w, list(ids)))}
            found = [rows[id] for id in ids if id in rows]
        return [conversation(row) for row in found]

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        """Sort by shelf before the time: the time implies the shelf, but the index is over the shelf."""
        column, way, beyond = ("created_at", "ASC", ">") if oldest_first else ("active_at", "DESC", "<")
        condition, values = self._condition(where)
        if after is not None:
            if not oldest_first:
                condition += " AND c.shelf <= %s"
                values = (*values, shelf(after.at))
            condition += f" AND (c.{column}, c.id) {beyond} (%s, %s)"
            values = (*values, after.at, after.id)
        order = f"c.{column} {way}, c.id {way}" if oldest_first else f"c.shelf DESC, c.{column} DESC, c.id DESC"
        query = f"SELECT c.{column}, c.id FROM hitherto.conversation c WHERE {condition} ORDER BY {order} LIMIT %s"
        return [Position(*found) for found in self._all(query, (*values, limit))]

    def count(self, where: Where) -> int:
        condition, values = self._condition(where)
        return int(self._all(f"SELECT count(*) FROM hitherto.conversation c WHERE {condition}", values)[0][0])

    def totals(self, kind: str) -> Totals:
        query = (
            "SELECT count(*), coalesce(sum(count), 0)::bigint, coalesce(sum(size), 0)::bigint, min(created_at), "
            "max(active_at) FROM hitherto.conversation WHERE workspace_id = %s AND kind = %s"
        )
        return Totals(*self._all(query, (self._w, kind.encode()))[0])

    def lifetimes(self, kind: str) -> Iterator[list[Lifetime]]:
        query = (
            "SELECT id, active_at, expires_at, held FROM hitherto.conversation "
            "WHERE workspace_id = %s AND kind = %s AND id > %s ORDER BY id LIMIT %s"
        )
        last = b""
        while found := self._all(query, (self._w, kind.encode(), last, _LISTED)):
            last = found[-1][0]
            yield [Lifetime(*row) for row in found]

    def said(self, kind: str, since: int, day: int) -> list[DayCount]:
        query = (
            "SELECT m.created_at / %s AS day, m.role, count(*) FROM hitherto.conversation c "
            "JOIN hitherto.message m ON m.workspace_id = c.workspace_id AND m.conversation = c.id "
            "WHERE c.workspace_id = %s AND c.kind = %s AND c.active_at >= %s AND m.created_at >= %s "
            "GROUP BY day, m.role"
        )
        found = self._all(query, (day, self._w, kind.encode(), since, since))
        return [DayCount(day, bytes(role).decode(), count) for day, role, count in found]

    def _condition(self, where: Where) -> tuple[str, tuple[object, ...]]:
        condition = "c.workspace_id = %s AND c.kind = %s"
        values: tuple[object, ...] = (self._w, where.kind.encode())
        for tag in where.tags:
            condition += (
                " AND EXISTS (SELECT 1 FROM hitherto.tag t WHERE t.workspace_id = %s AND t.value = %s "
                "AND t.conversation = c.id AND t.message = -1)"
            )
            values = (*values, self._w, tag)
        if where.key_prefix is not None:
            end = after_prefix(where.key_prefix)
            condition += " AND c.key >= %s" + ("" if end is None else " AND c.key < %s")
            values = (*values, where.key_prefix, *(() if end is None else (end,)))
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
        query = f"SELECT {columns(bodies)} FROM hitherto.message WHERE workspace_id = %s AND "
        if keys is not None:
            found = self._all(query + "conversation = %s AND key = ANY(%s::bytea[])", (self._w, keys[0], list(keys[1])))
        else:
            found = self._all(query + "number = ANY(%s::bigint[])", (self._w, list(numbers)))
        return [message(row) for row in found]

    def packs(self, runs: Sequence[int]) -> list[PackRow]:
        query = (
            "SELECT first, conversation, parent, count, body FROM hitherto.pack "
            "WHERE workspace_id = %s AND first = ANY(%s::bigint[])"
        )
        return [PackRow(*found) for found in self._all(query, (self._w, list(runs)))]

    def loose(self, *, full: bool, after: int = -1, limit: int) -> list[UnpackedRun]:
        wanted = RUN - 1 if full else 0
        query = (
            "SELECT number, conversation FROM hitherto.message WHERE workspace_id = %s AND loose = %s AND number > %s "
            "ORDER BY number LIMIT %s"
        )
        found = self._all(query, (self._w, int(full), after + wanted, limit))
        return [UnpackedRun(number - wanted, id) for number, id in found]

    def path(self, number: int) -> Iterator[list[MessageRow] | PackRow]:
        """Read each run in one statement, hence in one snapshot: a body that is packed meanwhile is never seen
        in two places or in none. Runs that were read ahead are used as long as the path leads to them."""
        next: int | None = number
        while next is not None:
            runs = self._runs(next)
            if not runs:
                return
            for first, last, found in runs:
                if next is None or last != next:
                    break
                start = first
                if found[0][10]:
                    _, owner, count, parent, *_, body, _ = found.pop(0)
                    start = first + count
                    if last < start:
                        yield PackRow(first, owner, parent, count, body)
                        next = parent
                        continue
                rows = unbroken([message(row[:10]) for row in found if row[0] >= start], last)
                if rows:
                    yield rows
                next = rows[0].parent if rows and rows[0].number == start else None

    def _runs(self, number: int) -> list[tuple[int, int, list[tuple[Any, ...]]]]:
        """Return the next runs on the path: the first number of each, where the path enters it, and its rows."""
        w = self._w
        found = self._all(_PATH, (number, number, number, w, _RUNS - 1, w, w))
        runs: list[tuple[int, int, list[tuple[Any, ...]]]] = []
        for step, first, last, *row in found:
            if step >= len(runs):
                if step > len(runs):  # a run in between is missing
                    break
                runs.append((first, last, []))
            runs[step][2].append(tuple(row))
        return runs

    def root(self, number: int) -> int | None:
        found = self._all(_ROOT, (self._w, number, self._w, self._w))
        return int(found[0][0]) if found else None

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
            f"SELECT {columns(bodies)} FROM hitherto.message WHERE workspace_id = %s AND conversation = %s "
            f"{'' if after is None else f'AND seq {beyond} %s'} ORDER BY seq {way} LIMIT %s"
        )
        bounds = (limit,) if after is None else (after, limit)
        return [message(row) for row in self._all(query, (self._w, conversation, *bounds))]

    def kinds(self) -> list[str]:
        """Take one step in the index per kind, instead of reading every conversation."""
        first = "SELECT kind FROM hitherto.conversation WHERE workspace_id = %s"
        query = (
            f"WITH RECURSIVE k (kind) AS (({first} ORDER BY kind LIMIT 1) UNION ALL SELECT "
            f"({first} AND kind > k.kind ORDER BY kind LIMIT 1) FROM k WHERE k.kind IS NOT NULL) "
            "SELECT kind FROM k WHERE kind IS NOT NULL"
        )
        return sorted(kind.decode() for (kind,) in self._all(query, (self._w, self._w)))

    def edge(self) -> int:
        query = (
            "SELECT greatest(retired, (SELECT max(number) FROM hitherto.message WHERE workspace_id = %s)) "
            "FROM hitherto.workspace WHERE workspace_id = %s"
        )
        return int(self._all(query, (self._w, self._w))[0][0] // RUN + 1) * RUN

    def numbers(self) -> Iterator[list[int]]:
        query = "SELECT number FROM hitherto.message WHERE workspace_id = %s AND number > %s ORDER BY number LIMIT %s"
        last = -1
        while found := self._all(query, (self._w, last, _LISTED)):
            last = found[-1][0]
            yield [number for (number,) in found]

    def tagged(self, value: bytes) -> list[tuple[bytes, int | None]]:
        query = (
            "SELECT conversation, message FROM hitherto.tag WHERE workspace_id = %s AND value = %s "
            "ORDER BY conversation, message"
        )
        return [(id, None if message < 0 else message) for id, message in self._all(query, (self._w, value))]

    def tags(self, conversation: bytes, *, after: Tag | None = None, limit: int) -> list[Tag]:
        query = (
            "SELECT value, message FROM hitherto.tag WHERE workspace_id = %s AND conversation = %s "
            "AND (message, value) > (%s, %s) ORDER BY message, value LIMIT %s"
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
        way, beyond = ("DESC", "<") if reverse else ("ASC", ">")
        end = after_prefix(prefix)
        query = (
            "SELECT conversation, key, revision, body FROM hitherto.item WHERE workspace_id = %s AND conversation = %s "
            f"AND key >= %s {'' if end is None else 'AND key < %s'} "
            f"{'' if after is None else f'AND key {beyond} %s'} ORDER BY key {way} LIMIT %s"
        )
        bounds = [*(bound for bound in (prefix, end, after) if bound is not None), limit]
        return [ItemRow(*found) for found in self._all(query, (self._w, conversation, *bounds))]

    # -- attachments

    def stage(
        self, conversation: bytes, attachment: bytes, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        key = (self._w, conversation, attachment)

        def work(connection: Connection) -> None:
            """Write the row first: it is the lock for the chunks. May be repeated."""
            with connection.transaction():
                query = (
                    "INSERT INTO hitherto.attachment VALUES (%s, %s, %s, 0, %s) "
                    "ON CONFLICT (workspace_id, conversation, name) "
                    "DO UPDATE SET staged_at = excluded.staged_at RETURNING chunks"
                )
                if connection.execute(query, (*key, at)).fetchall()[0][0]:  # complete and verified
                    return
                query = (
                    "INSERT INTO hitherto.chunk VALUES (%s, %s, %s, %s, %s) "
                    "ON CONFLICT (workspace_id, conversation, name, number) DO UPDATE SET body = excluded.body"
                )
                for number, chunk in enumerate(chunks, start):
                    connection.execute(query, (*key, number, chunk))
                if last:
                    end = start + len(chunks)
                    query = f"UPDATE hitherto.attachment SET chunks = %s WHERE {_SAME} AND %s = "
                    query += f"(SELECT count(*) FROM hitherto.chunk WHERE {_SAME} AND number < %s)"
                    connection.execute(query, (end, *key, end, *key, end))

        self._bound.do(work, writes=True)

    def chunks(self, conversation: bytes, attachment: bytes, start: int = 0) -> Iterator[bytes]:
        query = f"SELECT body FROM hitherto.chunk WHERE {_SAME} AND number = %s"
        while found := self._all(query, (self._w, conversation, attachment, start)):
            yield found[0][0]
            start += 1

    def attachments(self, conversation: bytes, names: Sequence[bytes] | None = None) -> list[AttachmentRow]:
        query = (
            "SELECT name, chunks, staged_at, ARRAY(SELECT message FROM hitherto.reference r WHERE r.workspace_id = %s "
            "AND r.conversation = a.conversation AND r.name = a.name ORDER BY message) "
            "FROM hitherto.attachment a WHERE workspace_id = %s AND conversation = %s "
            f"{'' if names is None else 'AND name = ANY(%s::bytea[])'} ORDER BY name"
        )
        only = () if names is None else (list(names),)
        found = self._all(query, (self._w, self._w, conversation, *only))
        return [AttachmentRow(name, count, at, tuple(messages)) for name, count, at, messages in found]

    def attached(self, conversation: bytes) -> int:
        query = (
            "SELECT sum(octet_length(body))::bigint FROM hitherto.chunk WHERE workspace_id = %s AND conversation = %s"
        )
        return int(self._all(query, (self._w, conversation))[0][0] or 0)

    def unstage(self, conversation: bytes, names: Sequence[bytes]) -> None:
        self._bound.do(lambda connection: self._unstage(connection, conversation, names), writes=True)

    def _unstage(self, connection: Connection, conversation: bytes, names: Sequence[bytes]) -> None:
        """Lock first, as `collect` does: a commit that adopts an attachment locks it until it is done."""
        with connection.transaction():
            for name in sorted(names):
                key = (self._w, conversation, name)
                connection.execute(f"SELECT 1 FROM hitherto.attachment WHERE {_SAME} FOR UPDATE", key)
                if not connection.execute(f"SELECT 1 FROM hitherto.reference WHERE {_SAME}", key).fetchall():
                    connection.execute(f"DELETE FROM hitherto.chunk WHERE {_SAME}", key)
                    if connection.execute(f"DELETE FROM hitherto.attachment WHERE {_SAME}", key).rowcount:
                        connection.execute(MARK, (self._w,))

    def collect(self, before: int) -> int:
        return self._bound.do(lambda connection: self._collect(connection, before), writes=True)

    def _collect(self, connection: Connection, before: int) -> int:
        """Lock abandoned attachments, then check again: a commit may have adopted one meanwhile."""
        unused = (
            "NOT EXISTS (SELECT 1 FROM hitherto.reference r WHERE r.workspace_id = %s "
            "AND r.conversation = a.conversation AND r.name = a.name)"
        )
        with connection.transaction():
            query = (
                "SELECT conversation, name FROM hitherto.attachment a WHERE workspace_id = %s AND staged_at < %s "
                f"AND {unused} ORDER BY conversation, name FOR UPDATE SKIP LOCKED"
            )
            locked = connection.execute(query, (self._w, before, self._w), binary=True).fetchall()
            removed = 0
            for conversation, name in locked:
                values = (self._w, conversation, name)
                query = f"DELETE FROM hitherto.attachment a WHERE {_SAME} AND {unused}"
                if connection.execute(query, (*values, self._w)).rowcount:
                    connection.execute(f"DELETE FROM hitherto.chunk WHERE {_SAME}", values)
                    removed += 1
            if removed:
                connection.execute(MARK, (self._w,))
        return removed

    # -- care

    def changes(self, since: bytes | None) -> Changes:
        if not self._bound.shared.address.read_only:
            self._number_changes()
        return self._bound.do(lambda connection: self._changes(connection, since))

    def _number_changes(self) -> None:
        while self._bound.do(lambda connection: number_changes(connection, self._w), writes=True):
            pass

    def _changes(self, connection: Connection, since: bytes | None) -> Changes:
        return read_changes(connection, self._w, since, timeline=self._bound.shared.timeline)

    def text_index(self, *, create: bool) -> TextIndex | None:
        if self._bound.shared.address.read_only:  # the index could not take in new messages
            return None
        from .text_index import PostgresIndex  # noqa: PLC0415  # only those who search need it

        spread = self._bound.shared.is_distributed
        index = PostgresIndex(self._bound, self._w, create=create, is_distributed=spread)
        return index if create or index.is_there else None

    def maintain(self, seconds: float) -> bool:  # noqa: ARG002  # it takes little time
        """Delete old records of purged conversations from the feed; older positions become unknown. The server does the
        rest by itself."""
        self._number_changes()
        oldest = "SELECT moved FROM hitherto.gone WHERE workspace_id = %s ORDER BY moved DESC"
        query = (
            f"WITH old AS (DELETE FROM hitherto.gone WHERE workspace_id = %s AND moved >= '{FIRST}'::xid8 AND moved < "
            f"({oldest} OFFSET {_GRAVES} LIMIT 1) RETURNING moved) "
            "UPDATE hitherto.workspace SET forgotten = greatest(forgotten, (SELECT max(moved) FROM old)) "
            "WHERE workspace_id = %s AND EXISTS (SELECT 1 FROM old) RETURNING 1"
        )
        self._all(query, (self._w, self._w, self._w))
        return True

    def backup(self, path: str) -> None:  # noqa: ARG002  # `info` says that it cannot
        raise InvalidArgument("a database server is backed up by its own tools", hint=_BACKUP)

    def check(self) -> list[str]:
        problems = []
        for table in ("message", "pack", "item", "tag", "reference", "chunk"):
            owner = "conversation" if table not in ("reference", "chunk") else "name"
            there = "conversation c WHERE c.workspace_id = %s AND c.id = r.conversation"
            if owner == "name":
                there = "attachment a WHERE a.workspace_id = %s AND a.conversation = r.conversation AND a.name = r.name"
            query = (
                f"SELECT count(*) FROM hitherto.{table} r WHERE r.workspace_id = %s "
                f"AND NOT EXISTS (SELECT 1 FROM hitherto.{there})"
            )
            lost = self._all(query, (self._w, self._w))[0][0]
            what = "conversations" if owner == "conversation" else "attachments"
            if lost:
                problems.append(f"{lost} rows of {table} belong to {what} that are missing")
        return problems

    def scrub(self) -> bool:
        return self._eraser.scrub()

    def is_scrubbed(self) -> bool:
        return self._eraser.is_scrubbed()

    def size(self) -> int:
        """Return the bytes of this workspace before compression. All workspaces share the files, so their size says
        nothing."""
        query = " UNION ALL ".join(
            f"SELECT sum(octet_length(body))::bigint FROM hitherto.{table} WHERE workspace_id = %s"
            for table in ("message", "pack", "chunk")
        )
        return sum(int(found or 0) for (found,) in self._all(query, (self._w,) * 3))

    def used(self) -> int:
        query = (
            "SELECT sum(size)::bigint FROM hitherto.conversation WHERE workspace_id = %s UNION ALL "
            "SELECT sum(octet_length(body))::bigint FROM hitherto.chunk WHERE workspace_id = %s"
        )
        return sum(int(found or 0) for (found,) in self._all(query, (self._w,) * 2))

    def disk(self) -> Disk | None:
        """Return None: the server does not report its disk."""
        return None
