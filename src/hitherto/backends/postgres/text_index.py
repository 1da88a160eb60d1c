"""The text index on PostgreSQL: full text search over words that this library splits.

PostgreSQL splits no text here and stems no word. It gets the words of `query.split`, each with its positions, as a
`tsvector`, so that every backend finds the same. The reasons for the rest:

- **Each word begins with its workspace**, as eight characters. A GIN index cannot begin with another column (short of
  an extension), but so it does all the same: each workspace has its own list of rows for each word. (Two workspaces
  that share these characters share lists, and nothing else: the workspace of each row is compared, too.)
- **Row-level security would keep the index from being used**: PostgreSQL checks the policy before any operator that
  might leak a row, and does not know that `@@` leaks nothing. So the policy itself contains `@@`, with the query in the
  setting `hitherto.words`: a condition of the policy may use the index. With an empty setting, every row of the
  workspace matches, as in any other table. No role needs rights beyond those on the tables, and their owner is bound as
  well.
- **Newest first.** The index would find all of a common word before the newest can be told from the rest. So the
  newest messages are looked through first, in ranges that grow while that promises enough hits; only then the index.
- **A text that is too large for one `tsvector`** (16,383 positions, 255 of each word, a megabyte) is stored in parts,
  which overlap by 31 words: a phrase of 32 words is whole in one of them. Parts have lists of their own, by the eighth
  character; which terms occur in which part is put together for the message before the query is answered. In such
  a message, and there alone, a phrase of more than 32 words is found if each 32 words of it stand there. A word of
  more than 2,000 bytes is kept as its beginning and a hash: `begin*` beyond that many bytes finds all that begin alike.
- **Places** (the order of time) are dealt under the lock of the workspace's row in `word_state`, which every update
  takes and whose stamp it compares. No sequence. No update waits for the disk, or for replicas: the words and the
  position are in one transaction, so a server that loses one loses both, and the store feeds them again.
- New words wait in a list beside the index, which is merged into it in one go: that is much faster than one by one.
  The list is kept short (512 kB), because every search reads through it.
- **Words that were dropped** stay in the files: in rows that VACUUM has not reached, and as keys of the GIN index, of
  which VACUUM never removes one. `scrub` writes small tables anew, which leaves nothing. Large tables are for the
  administrator (`REINDEX INDEX CONCURRENTLY hitherto.word_by_words`); until then `scrub` returns False.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from psycopg.sql import SQL, Literal

from ..._search.query import Query, split
from ...errors import Closed
from ...textindex import Entry, Found, Known
from .connection import Connection
from .distribution import shard_names
from .erasure import IS_SEEN
from .feed import without_place
from .lexemes import Spelling, Vector, VectorDumper
from .rows import MARK

T = TypeVar("T")

_NEWEST = 8  # newest messages that are searched first, per requested hit
_AT_LEAST, _AT_MOST = 256, 16_384  # bounds of that number
_SMALL = 64 << 20  # bytes: up to this size, a table is rebuilt to remove words
_LOOKS, _LOOK_SECONDS = 20, 0.01  # attempts to wait for running writers, and their interval

_FOUND = """
WITH hit AS MATERIALIZED (
    SELECT w.place, w.part, w.number, w.conversation, {score} AS score, CASE w.part WHEN 0 THEN NULL ELSE (
        SELECT string_agg(t.name, ' ') FROM unnest(%(stretches)s::tsquery[], %(names)s::text[]) AS t (query, name)
        WHERE w.workspace_words @@ t.query) END AS names
    FROM {source} w
    WHERE w.workspace_id = %(workspace)s AND w.workspace_words @@ %(query)s::tsquery {filters}
)
SELECT place, number, conversation, score FROM hit WHERE part = 0
UNION ALL
SELECT place, number, conversation, max(score) FROM hit WHERE part > 0
GROUP BY place, number, conversation HAVING string_agg(names, ' ')::tsvector @@ %(combined)s::tsquery
ORDER BY {order} LIMIT %(limit)s"""
_NEWEST_ONES = (  # OFFSET keeps the condition on the words outside, so that their index is not used
    "(SELECT * FROM hitherto.word WHERE workspace_id = %(workspace)s AND place >= %(floor)s OFFSET 0)"
)
_FILTERS = {
    "role": "AND w.role = %(role)s",
    "since": "AND w.created_at >= %(since)s",
    "until": "AND w.created_at < %(until)s",
    "conversations": "AND w.conversation = ANY(%(conversations)s)",
}
_CHANGE = (
    "UPDATE hitherto.word_state SET stamp = %s, position = coalesce(%s, position), next_place = next_place + %s "
    "WHERE workspace_id = %s AND stamp = %s RETURNING next_place"
)
_INSERT = (
    "INSERT INTO hitherto.word (workspace_id, place, part, number, conversation, revision, role, created_at, "
    "workspace_words) SELECT %s, u.place, u.part, u.number, u.conversation, u.revision, u.role, u.created_at, "
    "u.words FROM unnest(%b::int8[], %b::int8[], %b::int8[], %b::bytea[], %b::int8[], %b::bytea[], "
    "%b::int8[], %b::tsvector[]) AS u (place, part, number, conversation, revision, role, created_at, words) "
    "RETURNING 1"  # as in `bulk_rows`
)
_NOTE = (
    "INSERT INTO hitherto.word_known (workspace_id, conversation, created_at, rewrites, next_seq) "
    "SELECT %s, * FROM unnest(%s::bytea[], %s::int8[], %s::int8[], %s::int8[]) "
    "ON CONFLICT (workspace_id, conversation) DO UPDATE SET created_at = excluded.created_at, "
    "rewrites = excluded.rewrites, next_seq = excluded.next_seq"
)
_MET = (
    "INSERT INTO hitherto.word_known (workspace_id, conversation) SELECT %s, * FROM unnest(%s::bytea[]) "
    "ON CONFLICT (workspace_id, conversation) DO NOTHING"
)
_INDEX = (  # the index over the words; with partitions, those of each partition
    "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam "
    "WHERE a.amname = 'gin' AND c.relkind = 'i' AND c.relnamespace = 'hitherto'::regnamespace"
)
_FILES = (
    f"SELECT (SELECT array_agg(pg_relation_filenode(i.indexrelid)::int8) {_INDEX}), "
    f"(SELECT sum(pg_total_relation_size(i.indrelid)) {_INDEX}), pg_snapshot_xmax(pg_current_snapshot())::text "
    "FROM hitherto.word_state WHERE workspace_id = %s"
)
_FILES_OF_SHARD = (
    "SELECT ARRAY[pg_relation_filenode(to_regclass('hitherto.word_by_words_{shard}'))::int8], "
    "pg_total_relation_size(to_regclass('hitherto.word_{shard}')), pg_snapshot_xmax(pg_current_snapshot())::text "
    "FROM hitherto.word_state WHERE workspace_id = %s"
)
# VACUUM (FREEZE) removes invisible rows, and records in the table up to which transaction id. If this is not older than
# a given id, nothing is left of rows that were removed before it. (The number of dead rows is an estimate, which the
# server may learn late.)
_UNSEEN = (
    "SELECT (SELECT bool_and(age(t.relfrozenxid) <= age((%s::text::xid8)::xid)) FROM pg_class t "
    f"WHERE t.oid IN (SELECT i.indrelid {_INDEX})) FROM hitherto.word_state WHERE workspace_id = %s"
)
_HAVE_ENDED = (
    "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::xid8 >= %s::text::xid8 FROM hitherto.word_state "
    "WHERE workspace_id = %s"
)
_FORGOTTEN = "UPDATE hitherto.word_state SET residue = %s::int8[] WHERE workspace_id = %s"


class Connections(Protocol):
    """The source of connections: bound to the workspace, with retries and mapped errors."""

    def do(self, work: Callable[[Connection], T], *, bound: bool = False, writes: bool = False) -> T: ...


class PostgresIndex:
    """The words of one workspace."""

    def __init__(
        self, connections: Connections, workspace_id: UUID, *, create: bool, is_distributed: bool = False
    ) -> None:
        self.was_reset = False
        self._is_distributed = is_distributed
        self._connections, self._id = connections, workspace_id
        self._spelling = Spelling(workspace_id)
        self._closed = threading.Event()
        self._edge: int | None = None  # above all places at the last look: the newest messages are below it
        if create:
            self._do(self._ensure, writes=True)

    def _do(self, work: Callable[[Connection], T], *, writes: bool = False) -> T:
        if self._closed.is_set():
            raise Closed("the index is closed")
        return self._connections.do(work, writes=writes)

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._do(lambda connection: connection.execute(query, (self._id, *values)).fetchall())

    def _ensure(self, connection: Connection) -> None:
        query = (
            "INSERT INTO hitherto.word_state (workspace_id, stamp, next_place) VALUES (%s, %s, 0) "
            "ON CONFLICT (workspace_id) DO NOTHING"
        )
        connection.execute(query, (self._id, _new_stamp()))

    @property
    def is_there(self) -> bool:
        """Tell whether the index of this workspace was created."""
        return bool(self._all("SELECT 1 FROM hitherto.word_state WHERE workspace_id = %s"))

    # -- writing

    def update(
        self,
        stamp: int,
        *,
        put: Sequence[Entry] = (),
        drop: Sequence[int] = (),
        known: Sequence[Known] = (),
        forget: Sequence[bytes] = (),
        position: bytes | None = None,
    ) -> int | None:
        """Apply the whole update, or nothing if the stamp has moved. May be repeated: then the stamp has moved."""
        # Before the lock, because this is most of the work.
        ready = {entry.number: (entry, self._spelling.vectors(split(entry.text))) for entry in put}

        def work(connection: Connection) -> int | None:
            with connection.pipeline(), connection.transaction():
                after = _new_stamp()
                place = None if position is None else without_place(position)
                connection.execute("SET LOCAL synchronous_commit = off")
                found = connection.execute(_CHANGE, (after, place, len(ready), self._id, stamp)).fetchall()
                if not found:
                    return None
                next_place = found[0][0]
                dropped = self._forget(connection, forget) if forget else 0
                dropped += len(self._drop(connection, drop)) if drop else 0
                if ready:
                    dropped += self._put(connection, ready, next_place - len(ready))
                if known:
                    self._note(connection, known)
                if dropped:
                    self._mark_residue(connection)
                return after

        return self._do(work, writes=True)

    def _mark_residue(self, connection: Connection) -> None:
        """Record that removed words are left in the files of the index and of the table."""
        [(files, _, _)] = self._look_at_files(connection)
        connection.execute(_FORGOTTEN, (files, self._id))
        connection.execute(MARK, (self._id,))

    def _forget(self, connection: Connection, conversations: Sequence[bytes]) -> int:
        where = "WHERE workspace_id = %s AND conversation = ANY(%s)"
        for table in ("word_known", "word"):
            gone = connection.execute(f"DELETE FROM hitherto.{table} {where}", (self._id, list(conversations)))
        return gone.rowcount

    def _drop(self, connection: Connection, numbers: Sequence[int]) -> dict[int, int]:
        """Drop the messages that exist, and return their places by number."""
        query = "DELETE FROM hitherto.word WHERE workspace_id = %s AND number = ANY(%s::int8[]) RETURNING number, place"
        return dict(connection.execute(query, (self._id, list(numbers))).fetchall())

    def _put(self, connection: Connection, ready: dict[int, tuple[Entry, list[Vector]]], place: int) -> int:
        """Write entries, new ones from this place on, and return how many existed already."""
        there = self._drop(connection, list(ready))
        rows: list[tuple[object, ...]] = []
        for number, (entry, vectors) in ready.items():
            at = there.get(number)
            if at is None:
                at, place = place, place + 1
            rest = (number, entry.conversation, entry.revision, _role(entry.role), entry.created_at)
            rows += [(at, n if len(vectors) > 1 else 0, *rest, vector) for n, vector in enumerate(vectors, 1)]
        cursor = connection.cursor()
        cursor.adapters.register_dumper(Vector, VectorDumper)
        cursor.execute(_INSERT, (self._id, *map(list, zip(*rows, strict=True))))
        connection.execute(_MET, (self._id, list({entry.conversation for entry, _ in ready.values()})))
        return len(there)

    def _note(self, connection: Connection, known: Sequence[Known]) -> None:
        last = {one.conversation: one for one in known}.values()
        columns = [[getattr(one, name) for one in last] for name in Known.__struct_fields__]
        connection.execute(_NOTE, (self._id, *columns))

    def clear(self) -> None:
        """Delete all entries."""
        self.was_reset = True
        query = "UPDATE hitherto.word_state SET stamp = %s, position = NULL WHERE workspace_id = %s"

        def work(connection: Connection) -> None:
            with connection.transaction():
                self._ensure(connection)
                connection.execute(query, (_new_stamp(), self._id))  # takes the lock first
                for table in ("word_known", "word"):
                    gone = connection.execute(f"DELETE FROM hitherto.{table} WHERE workspace_id = %s", (self._id,))
                if gone.rowcount:
                    self._mark_residue(connection)

        self._do(work)

    # -- reading

    def state(self) -> tuple[int, bytes | None]:
        query = "SELECT stamp, position, next_place FROM hitherto.word_state WHERE workspace_id = %s"
        found = self._all(query)
        if not found:  # the workspace was removed and created again
            self._do(self._ensure)
            found = self._all(query)
        [(stamp, position, self._edge)] = found
        return stamp, position

    def known(self, conversation: bytes) -> Known | None:
        query = (
            "SELECT created_at, rewrites, next_seq FROM hitherto.word_known "
            "WHERE workspace_id = %s AND conversation = %s AND next_seq IS NOT NULL"
        )
        for found in self._all(query, conversation):
            return Known(conversation, *found)
        return None

    def conversations(self) -> list[bytes]:
        query = "SELECT conversation FROM hitherto.word_known WHERE workspace_id = %s"
        return [id for (id,) in self._all(query)]

    def holds(self, conversation: bytes) -> dict[int, int]:
        query = "SELECT number, revision FROM hitherto.word WHERE workspace_id = %s AND conversation = %s"
        return dict(self._all(query, conversation))

    def size(self) -> int:
        """Return the bytes of this workspace's words, without the indexes: all workspaces share their files."""
        query = "SELECT coalesce(sum(pg_column_size(workspace_words)), 0) FROM hitherto.word WHERE workspace_id = %s"
        return int(self._all(query)[0][0])

    def find(
        self,
        query: Query,
        *,
        limit: int,
        ranked: bool = False,
        role: str | None = None,
        conversations: Sequence[bytes] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[Found]:
        """Return the messages that match: newest first, or best first."""
        names = self._spelling.stretches(query.tree)
        if not names:
            return []
        given: dict[str, Any] = {
            "workspace": self._id,
            "query": " | ".join([self._spelling.whole(query.tree), *names]),
            "stretches": list(names),
            "names": list(names.values()),
            "combined": self._spelling.combine(query.tree, names),
            "wanted": self._spelling.rank(query),
            "role": None if role is None else _role(role),
            "since": since,
            "until": until,
            "conversations": None if conversations is None else list(conversations),
            "limit": limit,
        }
        if not ranked and conversations is None:
            found = self._among_the_newest(given, limit)
            if found is not None:
                return found
        return self._do(lambda connection: _ask_index(connection, given, ranked=ranked))

    def _among_the_newest(self, given: dict[str, Any], limit: int) -> list[Found] | None:
        """Return the hits if the newest messages have enough of them, or are all. None: ask the index."""
        statement = _statement(given, _NEWEST_ONES, ranked=False)
        span = max(_AT_LEAST, min(limit * _NEWEST, _AT_MOST))
        if self._edge is None:
            self.state()
        while span <= _AT_MOST:
            floor = (self._edge or 0) - span
            values = {**given, "floor": floor}
            found = self._do(lambda connection: _find(connection, statement, values))  # noqa: B023  # called at once
            if len(found) >= limit or floor <= 0:
                return found
            promised = span * limit // len(found) if found else _AT_MOST
            span = max(promised + promised // 2, span * 2)
        return None

    # -- care

    def scrub(self, seconds: float | None = None, *, rebuild: bool = True) -> bool:  # noqa: ARG002  # small tables take a moment
        """Rebuild the table if removed words are left in its files and it is small.

        False if a reader delays it, if this role may not, or if the table is large: then it is the administrator's
        task."""
        found = self._all("SELECT residue FROM hitherto.word_state WHERE workspace_id = %s AND residue IS NOT NULL")
        if not found:
            return True
        [(residue,)] = found
        if not set(residue).isdisjoint(self._files()):
            self._rewrite_table()
        done = (
            "UPDATE hitherto.word_state SET residue = NULL WHERE workspace_id = %s AND residue = %s::int8[] RETURNING 1"
        )
        return set(residue).isdisjoint(self._files()) and bool(self._all(done, residue))

    def _files(self) -> list[int]:
        return list(self._do(self._look_at_files)[0][0])

    def _look_at_files(self, connection: Connection) -> list[tuple[Any, ...]]:
        """Return the files of the index, the size of its tables, and the next transaction, where this workspace is."""
        query = _FILES
        if self._is_distributed:
            [shard] = shard_names(connection, self._id, ["word"])
            query = _FILES_OF_SHARD.format(shard=shard.rpartition("_")[2])
        return connection.execute(query, (self._id,)).fetchall()

    def _rewrite_table(self) -> None:
        """Rebuild the table if it is small."""
        [(_, size, now)] = self._do(self._look_at_files)
        if size <= _SMALL:
            self._wait_for_writers(now)
            self._vacuum("FREEZE")
            if self._is_unseen(now):  # otherwise the removed rows would be rewritten as well
                self._vacuum("FULL, SKIP_LOCKED")

    def _vacuum(self, options: str) -> None:
        query = f"VACUUM ({options}) hitherto.word"
        self._connections.do(lambda connection: connection.execute(query), bound=True)  # it runs in no transaction

    def _is_unseen(self, before: str) -> bool:
        """Tell whether rows removed before this transaction id are invisible to all. Call it after VACUUM (FREEZE)."""
        if self._is_distributed:  # a coordinator has no catalogue of its nodes
            values = (before, before, before, self._id)
            return self._do(lambda connection: connection.execute(IS_SEEN, values).fetchall()) == [(False,)]
        return self._do(lambda connection: connection.execute(_UNSEEN, (before, self._id)).fetchall()) == [(True,)]

    def _wait_for_writers(self, before: str) -> None:
        """Wait a moment for transactions from before this id: they usually finish soon."""
        for _ in range(_LOOKS):
            if self._do(lambda connection: connection.execute(_HAVE_ENDED, (before, self._id)).fetchall()) == [(True,)]:
                return
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Close the index. The connections belong to the backend."""
        self._closed.set()


def _statement(given: dict[str, Any], source: str, *, ranked: bool) -> str:
    filters = " ".join(text for name, text in _FILTERS.items() if given[name] is not None)
    # Longer messages have more of every word, so the score is divided by the logarithm of the length.
    score = "ts_rank(w.workspace_words, %(wanted)s::tsquery, 1)::float8" if ranked else "0::float8"
    order = "score DESC, place DESC" if ranked else "place DESC"
    return _FOUND.format(score=score, source=source, filters=filters, order=order)


def _find(connection: Connection, statement: str, given: dict[str, Any], *, may_prepare: bool = True) -> list[Found]:
    rows = connection.execute(statement, given, prepare=None if may_prepare else False).fetchall()
    return [Found(number, conversation, score) for _, number, conversation, score in rows]


def _ask_index(connection: Connection, given: dict[str, Any], *, ranked: bool) -> list[Found]:
    """Search with the query in the setting that the policy reads.

    The statement is not prepared, because its plan depends on the setting. Sequential scans are off, however common the
    server believes a word to be: the table holds all workspaces."""
    statement = _statement(given, "hitherto.word", ranked=ranked)
    words = SQL("SET LOCAL hitherto.words = {}").format(Literal(given["query"]))  # a node gets it as well
    with connection.pipeline(), connection.transaction():  # one round trip
        connection.execute(words)
        connection.execute("SET LOCAL enable_seqscan = off")
        return _find(connection, statement, given, may_prepare=False)


def _role(role: str) -> bytes:
    return role.encode(errors="surrogatepass")  # PostgreSQL's text cannot hold U+0000, which a role may


def _new_stamp() -> int:
    """Return a random stamp. A counter might repeat one after a server lost the last updates."""
    return int.from_bytes(os.urandom(7), "big")
