"""The reading verbs of the SQLite backend.

No verb holds a transaction between the lists that it yields. SQLite keeps no statistics here, so the queries fix the
order in which tables are visited: by CROSS JOIN, by INDEXED BY, or by a plus sign that hides a column from an index.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile

import apsw
import msgspec

from ...backend import (
    AttachmentRow,
    ConversationRow,
    DayCount,
    ItemRow,
    Lifetime,
    MessageRow,
    PackRow,
    Position,
    Tag,
    Totals,
    UnpackedRun,
    Where,
    after_prefix,
)
from ...ids import RUN
from .connections import Lease, Pool
from .rows import (
    ATTACHED,
    CHUNK_BITS,
    CONVERSATION,
    FRONT,
    JOINED,
    MESSAGE,
    PATH,
    WORKSPACE_BITS,
    check_headers,
    conversation,
    fetch_all,
    fetch_by_index,
    fetch_first,
    fetch_messages,
    fetch_one,
    find_attachment,
    find_by_key,
    find_row,
    slices,
    trim_to_unbroken,
    without_body,
)

_COMMON = 1000  # conversations with a tag; with more, a page is found faster among the newest conversations
_LISTED = 4096  # rows that an iterator reads at a time
_CHUNK = 400  # numbers in one IN (…), well below SQLite's limit


# From a pack to the one that its first message answers, and so on. UNION ends a cycle.
_PACKS = (
    "WITH RECURSIVE way (first, parent) AS (SELECT first, parent FROM pack WHERE first = ?1 AND conversation = ?2 "
    "UNION SELECT p.first, p.parent FROM way JOIN pack p ON p.first = ?3 + (way.parent & ~31) AND p.conversation = ?2) "
    "SELECT p.first, p.parent, p.count, p.body FROM way CROSS JOIN pack p ON p.first = way.first LIMIT ?4"
)
_PACKS_PER_QUERY = 16  # each holds a MiB of content at most, unless one message has more


class Reader:
    """The reading verbs of one workspace."""

    def __init__(self, pool: Pool, workspace: int) -> None:
        self._pool = pool
        self._connection = partial(Lease, pool)
        self._workspace = workspace
        self._base = (workspace - 1) << WORKSPACE_BITS  # the first workspace has the small, short integers

    # -- conversations

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
                return find_by_key(connection, self._workspace, *key)
            if prefix is not None:
                between = bytes.fromhex(prefix.ljust(32, "0")), bytes.fromhex(prefix.ljust(32, "f"))
                query = (
                    f"SELECT {CONVERSATION} FROM conversation WHERE id BETWEEN ? AND ? AND workspace = ? "
                    "ORDER BY id LIMIT ?"
                )
                return [
                    conversation(found) for found in fetch_all(connection, query, (*between, self._workspace, limit))
                ]
            if len(ids) == 1:
                row = find_row(connection, self._workspace, ids[0])
                return [] if row is None else [row]
            query = f"SELECT {CONVERSATION} FROM conversation WHERE id = ? AND workspace = ?"
            values = [(id, self._workspace) for id in ids]
            return [conversation(found) for found in connection.executemany(query, values)]

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        column, way, beyond = ("created_at", "ASC", ">") if oldest_first else ("shelf", "DESC", "<")
        # SQLite reads the row itself only for the newest conversation, whose shelf is no time.
        at = "c.created_at" if oldest_first else f"CASE WHEN c.shelf = {FRONT} THEN c.active_at ELSE c.shelf END"
        ending = f" ORDER BY c.{column} {way}, c.id {way} LIMIT ?"
        front: list[Position] = []
        with self._connection() as connection:
            rarest, conversations = self._rarest(connection, where.tags)
            source, values = self._source(where, rarest if conversations < _COMMON else None)
            query = f"SELECT {at}, c.id {source}"
            if after is None:
                found = fetch_all(connection, query + ending, (*values, limit))
            else:
                beyond_it = f" AND (c.{column}, c.id) {beyond} (?, ?)"
                found = fetch_all(connection, query + beyond_it + ending, (*values, after.at, after.id, limit))
                if not oldest_first:
                    front = [Position(*one) for one in fetch_all(connection, f"{query} AND c.shelf = {FRONT}", values)]
        if after is not None:
            front = [place for place in front if (place.at, place.id) < (after.at, after.id)]
        return (front + [Position(*place) for place in found])[:limit]

    def count(self, where: Where) -> int:
        with self._connection() as connection:
            source, values = self._source(where, self._rarest(connection, where.tags)[0])
            return int(fetch_one(connection, f"SELECT count(*) {source}", values)[0])

    def totals(self, kind: str) -> Totals:
        query = (
            "SELECT count(*), ifnull(sum(count), 0), ifnull(sum(size), 0), min(created_at), max(active_at) "
            "FROM conversation WHERE workspace = ? AND kind = ?"
        )
        with self._connection() as connection:
            return Totals(*fetch_one(connection, query, (self._workspace, kind)))

    def lifetimes(self, kind: str) -> Iterator[list[Lifetime]]:
        """In order of their places: the plus sign keeps SQLite from sorting the result of an index."""
        query = (
            "SELECT place, id, active_at, expires_at, held FROM conversation "
            f"WHERE place > ? AND +workspace = ? AND kind = ? ORDER BY place LIMIT {_LISTED}"
        )
        place = -1
        while True:
            with self._connection() as connection:
                found = fetch_all(connection, query, (place, self._workspace, kind))
            yield [Lifetime(id, active_at, expires_at, held == 1) for _, id, active_at, expires_at, held in found]
            if len(found) < _LISTED:
                return
            place = found[-1][0]

    def said(self, kind: str, since: int, day: int) -> list[DayCount]:
        """Read conversations that began before `since` from their ends, and stop at `since`. The others are counted one
        by one, because one GROUP BY over all of them would sort every message."""
        began_since = (
            "SELECT (SELECT json_group_array(json_array(day, role, said)) FROM "
            "(SELECT m.created_at / ? AS day, m.role, count(*) AS said FROM message m WHERE m.conversation = c.place "
            "GROUP BY day, m.role)) FROM conversation c WHERE c.workspace = ? AND c.kind = ? AND c.created_at >= ?"
        )
        older = "SELECT place FROM conversation WHERE workspace = ? AND kind = ? AND created_at < ? AND active_at >= ?"
        backwards = "SELECT created_at, role FROM message WHERE conversation = ? ORDER BY seq DESC"
        counts: Counter[tuple[int, str]] = Counter()
        with self._connection() as connection:
            for (counted,) in fetch_all(connection, began_since, (day, self._workspace, kind, since)):
                for at, role, count in msgspec.json.decode(counted, type=list[tuple[int, str, int]]):
                    counts[at, role] += count
            for (place,) in fetch_all(connection, older, (self._workspace, kind, since, since)):
                rows = takewhile(lambda row: row[0] >= since, connection.execute(backwards, (place,)))
                counts.update((at // day, role) for at, role in rows)
        return [DayCount(*what, count) for what, count in counts.items()]

    def _rarest(self, connection: apsw.Connection, tags: Sequence[bytes]) -> tuple[bytes | None, int]:
        """Return the tag that the fewest conversations have, and their number. The count stops at `_COMMON`."""
        query = "SELECT count(*) FROM (SELECT 1 FROM tag WHERE workspace = ? AND value = ? AND message = -1 LIMIT ?)"
        counts = {tag: int(fetch_one(connection, query, (self._workspace, tag, _COMMON))[0]) for tag in tags}
        rarest = min(counts, key=counts.__getitem__, default=None)
        return rarest, 0 if rarest is None else counts[rarest]

    def _source(self, where: Where, first: bytes | None) -> tuple[str, tuple[int | str | bytes, ...]]:
        """Return the FROM and WHERE clauses for a listing, and their values.

        SQLite visits the conversations that have the tag `first` or, if that is None, all of them in the order of an
        index. The statement fixes this, because SQLite has no statistics to choose by."""
        source, condition = "FROM conversation c", "c.workspace = ? AND c.kind = ?"
        values: tuple[int | str | bytes, ...] = (self._workspace, where.kind)
        if where.key_prefix is not None:
            end = after_prefix(where.key_prefix)
            condition += " AND c.key >= ?" + ("" if end is None else " AND c.key < ?")
            values += (where.key_prefix,) if end is None else (where.key_prefix, end)
            if first is None:
                source += " INDEXED BY conversation_by_key"
        if first is not None:
            source = "FROM tag f CROSS JOIN conversation c ON c.place = f.conversation"  # CROSS JOIN fixes the order
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
            return [found[0] for found in fetch_all(connection, query, (self._workspace,))]

    # -- messages

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        columns = JOINED if bodies else without_body(JOINED)
        # The plus sign keeps SQLite from visiting all conversations of the workspace, and their messages.
        query = (
            f"SELECT {columns} FROM message m JOIN conversation c ON c.place = m.conversation WHERE +c.workspace = ?"
        )
        rows: list[MessageRow] = []
        with self._connection() as connection:
            if keys is not None:
                conversation, wanted = keys
                for key in dict.fromkeys(wanted):
                    values = (self._base, self._workspace, conversation, key)
                    rows += check_headers(fetch_messages(connection, f"{query} AND c.id = ? AND m.key = ?", values))
            for some in slices(tuple(dict.fromkeys(numbers)), _CHUNK):
                chosen = (self._base, self._workspace, *(self._base + number for number in some))
                rows += check_headers(
                    fetch_messages(connection, f"{query} AND m.number IN ({', '.join('?' * len(some))})", chosen)
                )
        return rows

    def packs(self, runs: Sequence[int]) -> list[PackRow]:
        query = (
            "SELECT p.first - ?, c.id, p.parent, p.count, p.body FROM pack p "
            "JOIN conversation c ON c.place = p.conversation WHERE +c.workspace = ? AND p.first IN "  # as in `messages`
        )
        rows: list[PackRow] = []
        with self._connection() as connection:
            for some in slices(tuple(dict.fromkeys(runs)), _CHUNK):
                values = (self._base, self._workspace, *(self._base + first for first in some))
                rows += [
                    PackRow(*found) for found in fetch_all(connection, f"{query}({', '.join('?' * len(some))})", values)
                ]
        return rows

    def loose(self, *, full: bool, after: int = -1, limit: int) -> list[UnpackedRun]:
        wanted = RUN - 1 if full else 0
        query = (
            "SELECT m.number, c.id FROM message m INDEXED BY {} "
            "JOIN conversation c ON c.place = m.conversation "
            f"WHERE m.body IS NOT NULL AND (m.number & 31) IN (0, 31) AND (m.number & 31) = {wanted} "
            "AND m.number > ? AND m.number < ? ORDER BY m.number LIMIT ?"
        )
        bounds = (self._base + after + wanted, self._base + (1 << WORKSPACE_BITS), limit)
        with self._connection() as connection:
            found = fetch_by_index(connection, "message_loose", query, bounds)
        return [UnpackedRun(number - self._base - wanted, id) for number, id in found]

    def path(self, number: int) -> Iterator[list[MessageRow] | PackRow]:
        base = self._base
        # The plus sign, as in `messages`: by the few numbers, not by the index of the conversation.
        query = f"SELECT {PATH} FROM message WHERE number BETWEEN ? AND ? AND +conversation = ? ORDER BY number"
        owner = "SELECT c.id, c.place FROM message m JOIN conversation c ON c.place = m.conversation WHERE m.number = ?"
        conversation: bytes | None = None
        place = 0
        next: int | None = number
        looked = -1
        while next is not None:
            first = next - next % RUN
            rows: list[MessageRow] = []
            with self._connection() as connection:
                if conversation is None:
                    found = fetch_first(connection, owner, (base + next,))
                    if found is None:
                        return
                    conversation, place = found
                packs = fetch_all(connection, _PACKS, (base + first, place, base, _PACKS_PER_QUERY))
                start = first if not packs else first + packs[0][2]
                if next >= start:
                    rows = fetch_messages(connection, query, (base, conversation, base + start, base + next, place))
                    if rows and rows[0].body is None and looked != next:  # packed since the pack was looked up
                        looked = next
                        continue
                    rows = trim_to_unbroken(rows, start, next)
            if next >= start:
                if rows:
                    yield rows
                next = rows[0].parent if rows and rows[0].number == start else None
                continue
            for there, parent, count, body in packs:
                first = there - base
                if next is None or next - next % RUN != first or next >= first + count:
                    break  # the path leads out of the packs that were read
                yield PackRow(first, conversation, parent, count, body)
                next = parent

    def root(self, number: int) -> int | None:
        """Follow the path from run to run, by the parent of the first message of each. UNION ends a cycle."""
        query = (
            "WITH RECURSIVE run (first) AS (SELECT number & ~31 FROM message WHERE number = ?1 UNION "
            "SELECT ?2 + (m.parent & ~31) FROM run JOIN message m ON m.number = run.first WHERE m.parent IS NOT NULL) "
            "SELECT first - ?2 FROM run JOIN message m ON m.number = run.first WHERE m.parent IS NULL"
        )
        with self._connection() as connection:
            found = fetch_first(connection, query, (self._base + number, self._base))
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
            f"SELECT {MESSAGE if bodies else without_body(MESSAGE)} FROM message "
            "WHERE conversation = (SELECT place FROM conversation WHERE id = ? AND workspace = ?) "
            f"{'' if after is None else f'AND seq {beyond} ?'} ORDER BY seq {way} LIMIT ?"
        )
        bounds = (limit,) if after is None else (after, limit)
        with self._connection() as connection:
            values = (self._base, conversation, conversation, self._workspace, *bounds)
            return check_headers(fetch_messages(connection, query, values))

    def edge(self) -> int:
        query = "SELECT max(number) FROM message WHERE number BETWEEN ? AND ?"
        with self._connection() as connection:  # messages first: a number that is dropped in between is retired by then
            highest = fetch_one(connection, query, (self._base, self._base + (1 << WORKSPACE_BITS) - 1))[0]
            retired = fetch_one(connection, "SELECT retired FROM workspace WHERE place = ?", (self._workspace,))[0]
        last = max(retired, -1 if highest is None else highest - self._base)
        return int(last // RUN + 1) * RUN

    def numbers(self) -> Iterator[list[int]]:
        """Read the index only, which is a hundredth of the table."""
        query = (
            "SELECT conversation, seq, number FROM message INDEXED BY {} "
            "WHERE (conversation, seq) > (?, ?) ORDER BY conversation, seq LIMIT 4096"
        )
        low, high = self._base, self._base + (1 << WORKSPACE_BITS)
        place, seq = -1, -1
        while True:
            with self._connection() as connection:
                found = fetch_by_index(connection, "message_by_seq", query, (place, seq))
            if not found:
                return
            place, seq, _ = found[-1]
            yield [number - low for _, _, number in found if low <= number < high]

    # -- tags and items

    def tagged(self, value: bytes) -> list[tuple[bytes, int | None]]:
        query = (
            "SELECT c.id, t.message FROM tag t JOIN conversation c ON c.place = t.conversation "
            "WHERE t.workspace = ? AND t.value = ? ORDER BY c.id, t.message"
        )
        with self._connection() as connection:
            found = fetch_all(connection, query, (self._workspace, value))
        return [(id, None if message == -1 else message) for id, message in found]

    def tags(self, conversation: bytes, *, after: Tag | None = None, limit: int) -> list[Tag]:
        query = (
            "SELECT t.value, t.message FROM tag t JOIN conversation c ON c.place = t.conversation "
            "WHERE c.id = ? AND c.workspace = ? AND (t.message, t.value) > (?, ?) "
            "ORDER BY t.message, t.value LIMIT ?"
        )
        beyond = (-2, b"") if after is None else (-1 if after.message is None else after.message, after.value)
        with self._connection() as connection:
            found = fetch_all(connection, query, (conversation, self._workspace, *beyond, limit))
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
        end = after_prefix(prefix)
        beyond = () if after is None else (after,)
        values = (conversation, self._workspace, prefix, end, end, *beyond, -1 if limit is None else limit)
        with self._connection() as connection:
            return [ItemRow(conversation, *found) for found in fetch_all(connection, query, values)]

    # -- attachments and sizes

    def chunks(self, conversation: bytes, attachment: bytes, start: int = 0) -> Iterator[bytes]:
        while True:
            with self._connection() as connection:
                place = find_attachment(connection, self._workspace, conversation, attachment)[0] << CHUNK_BITS
                found = fetch_first(connection, "SELECT body FROM chunk WHERE number = ?", (place | start,))
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
            found = fetch_all(connection, query, values)
        return [
            AttachmentRow(name, count, at, tuple(sorted(msgspec.json.decode(messages, type=list[int]))))
            for name, count, at, messages in found
        ]

    def attached(self, conversation: bytes) -> int:
        with self._connection() as connection:
            query = f"{ATTACHED} WHERE a.workspace = ? AND a.conversation = ?"
            return int(fetch_one(connection, query, (self._workspace, conversation))[0])

    def used(self) -> int:
        messages = "SELECT coalesce(sum(size), 0) FROM conversation WHERE workspace = ?"
        chunks = f"{ATTACHED} WHERE a.workspace = ?"
        with self._connection() as connection:
            return sum(int(fetch_one(connection, query, (self._workspace,))[0]) for query in (messages, chunks))
