"""Erasure on a PostgreSQL server: have the bytes of removed rows left its tables?

A row that is removed or replaced stays in its file, dead, until a vacuum removes it. A vacuum keeps it while any
transaction may still see it. The workspace's row counts removals (`rows.MARKED`), and up to which of them the bytes are
gone. `scrub` finds that out by evidence, which begins with a look at the server that has the rows. It holds for all
removals that were visible at that moment:

- **They are invisible**: no transaction, prepared or not, no standby and no slot is older than the look.
- **A vacuum has been over them since.** While the tables are small and belong to us, we do that. Otherwise the server
  does, in its own time, and the evidence is its count of vacuums: of every table and of every TOAST table, because
  these are vacuumed by themselves. One that was running at the look does not count, because it may have been past the
  row. (The number of dead rows is an estimate, and no evidence.) A table in which nothing was ever changed or removed
  needs no vacuum.

What a server counts, its transactions and vacuums, is compared on that server alone: evidence from another one, or from
before its counts began anew, is dropped, and so begins again. Only the workspace's own count is part of the data.

Free space, the log and backups are the administrator's: `docs/postgres.md`.
"""

from typing import Any

import msgspec
import psycopg

from . import schema
from .connection import Connection
from .connections import Bound
from .distribution import ask_node, shard_names

_SMALL = 64 << 20  # bytes of all tables: up to that, a purge runs a vacuum of its own
_TABLES = list(schema.TABLES)
_LATE_SECONDS = 60  # until a server has counted everything

_DATABASE = "(SELECT d.datid FROM pg_stat_get_activity(pg_backend_pid()) d)"  # this one
_STATE = "SELECT removals, scrubbed, untidy::text, evidence FROM hitherto.workspace WHERE workspace_id = %s"
# These are evaluated by the server that has the workspace's row. They call functions where a view would be shorter: a
# coordinator reads its own catalogue, and passes on only what names no table of it.
_NOW = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || tableoid::bigint, "
    "pg_snapshot_xmax(pg_current_snapshot())::text, extract(epoch FROM clock_timestamp())::bigint, "
    "extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())::bigint, "
    f"(SELECT count(*) FROM pg_stat_get_progress_info('VACUUM') s WHERE s.datid = {_DATABASE}) "
    "FROM hitherto.workspace WHERE workspace_id = %s"
)
_OLDER = "age((%s::text::xid8)::xid)"
IS_SEEN = (
    "SELECT EXISTS (SELECT 1 FROM pg_stat_get_activity(NULL) s WHERE s.pid <> pg_backend_pid() "
    f"AND coalesce(nullif(s.datid, 0), {_DATABASE}) = {_DATABASE} "  # of no database: a standby
    f"AND greatest(age(s.backend_xmin), age(s.backend_xid)) > {_OLDER}) OR "  # xid: it has written
    f"EXISTS (SELECT 1 FROM pg_prepared_xact() s WHERE s.dbid = {_DATABASE} AND age(s.transaction) > {_OLDER}) OR "
    f"EXISTS (SELECT 1 FROM pg_get_replication_slots() s WHERE age(s.xmin) > {_OLDER}) "
    "FROM hitherto.workspace WHERE workspace_id = %s"
)
_COUNTS = (
    "SELECT json_object_agg(t.id::bigint, json_build_array(pg_stat_get_vacuum_count(t.id) "
    "+ pg_stat_get_autovacuum_count(t.id), pg_stat_get_tuples_updated(t.id) + pg_stat_get_tuples_deleted(t.id)))::text "
    "FROM pg_class c CROSS JOIN LATERAL unnest(ARRAY[c.oid, nullif(c.reltoastrelid, 0)]) AS t (id) "
    "WHERE t.id IS NOT NULL AND c.relnamespace = 'hitherto'::regnamespace AND c.relname = ANY('{{{names}}}')"
)
# The tables, or the partitions that this workspace is in.
_PART = (
    "SELECT coalesce(substring(c.relname FROM '_[0-9]+$'), '') FROM hitherto.workspace w "
    "JOIN pg_class c ON c.oid = w.tableoid WHERE w.workspace_id = %s"
)
_KEEP = "UPDATE hitherto.workspace SET evidence = %s WHERE workspace_id = %s RETURNING 1"
_SETTLE = (
    "UPDATE hitherto.workspace SET scrubbed = %s, evidence = NULL, "
    "untidy = CASE WHEN untidy::text = %s THEN NULL ELSE untidy END "
    "WHERE workspace_id = %s AND evidence = %s RETURNING 1"
)
_IS_SMALL = (
    "SELECT coalesce(sum({size}(c.oid)), 0) <= %s AND coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), false) "
    "FROM pg_class c WHERE c.relnamespace = 'hitherto'::regnamespace AND {which}"
)
_IS_SMALL_HERE = _IS_SMALL.format(size="pg_total_relation_size", which="c.relkind = 'r'")
_IS_SMALL_EVERYWHERE = _IS_SMALL.format(size="citus_total_relation_size", which="c.relname = ANY(%s::text[])")


class Evidence(msgspec.Struct, frozen=True):
    """A look at the server, for the removals up to that moment."""

    removals: int
    untidy: str | None  # the last removal by a process of the first format, which writes its transaction
    place: str  # the server and the table
    horizon: str  # the first transaction after the look
    at: int  # when, in seconds
    wanted: dict[str, int]  # the count of vacuums that each table has to reach


class Eraser:
    """The erasure of one workspace."""

    def __init__(self, bound: Bound) -> None:
        self._bound, self._w = bound, bound.workspace_id

    def scrub(self) -> bool:
        """Is it done? It is, once nobody may see it, and it was vacuumed away: by us if that is quickly done."""
        return self._bound.do(self._scrub, bound=True)

    def is_scrubbed(self) -> bool:
        query = "SELECT removals = scrubbed AND untidy IS NULL FROM hitherto.workspace WHERE workspace_id = %s"
        found = self._bound.do(lambda connection: connection.execute(query, (self._w,)).fetchall())
        return not found or bool(found[0][0])

    def _scrub(self, connection: Connection) -> bool:
        state = self._rows(connection, _STATE, (self._w,))
        for _ in range(2):  # the evidence may be about earlier removals alone
            if state and not _is_settled(state[0]):
                if not self._settle(connection, state[0]):
                    return False
                state = self._rows(connection, _STATE, (self._w,))
        return not state or _is_settled(state[0])

    def _settle(self, connection: Connection, state: tuple[Any, ...]) -> bool:
        """Find out whether the removals of the last look are gone, and note it. Without evidence this is the look."""
        removals, _, untidy, kept = state
        [(place, horizon, now, counting_since, under_way)] = self._rows(connection, _NOW, (self._w,))
        counts = self._counts(connection)
        evidence = None if kept is None else msgspec.json.decode(bytes(kept), type=Evidence)
        if evidence is None or not _holds(evidence, place, counts):
            wanted = {table: vacuums + 1 + under_way for table, (vacuums, _) in counts.items()}
            evidence = Evidence(removals, untidy, place, horizon, now, wanted)
            self._rows(connection, _KEEP, (msgspec.json.encode(evidence), self._w))
        # Who still sees it while it is vacuumed keeps it there, and may be gone by the time that we look again.
        if self._is_seen(connection, evidence.horizon):
            return False
        is_counted = (counting_since or 0) < evidence.at <= now - _LATE_SECONDS
        if not (self._vacuum(connection) or _was_vacuumed(evidence, counts, is_counted=is_counted)):
            return False
        if self._is_seen(connection, evidence.horizon):
            return False
        values = (evidence.removals, evidence.untidy, self._w, msgspec.json.encode(evidence))
        return bool(self._rows(connection, _SETTLE, values))

    def _rows(self, connection: Connection, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """A statement by itself, bound: a vacuum is part of no transaction, so that nothing around it is."""
        if not self._bound.shared.by_transaction:
            return connection.execute(query, values).fetchall()
        with connection.transaction():
            self._bound.bind(connection)
            return connection.execute(query, values).fetchall()

    def _is_seen(self, connection: Connection, horizon: str) -> bool:
        """Tell whether a transaction from before the look may see removed rows."""
        return bool(self._rows(connection, IS_SEEN, (horizon, horizon, horizon, self._w))[0][0])

    def _counts(self, connection: Connection) -> dict[str, tuple[int, int]]:
        """Return for each table how often it was vacuumed, and how many of its rows were ever changed or removed."""
        if self._bound.shared.is_distributed:
            names = shard_names(connection, self._w, schema.TABLES)
            found = ask_node(connection, names[0], _COUNTS.format(names=",".join(names)))
        else:
            [(part,)] = self._rows(connection, _PART, (self._w,))
            names = [f"{table}{part}" for table in schema.TABLES]
            [(found,)] = connection.execute(_COUNTS.format(names=",".join(names))).fetchall()
        return msgspec.json.decode(found, type=dict[str, tuple[int, int]])

    def _vacuum(self, connection: Connection) -> bool:
        shared = self._bound.shared
        if shared.address.by_transaction:
            return False
        query, which = (_IS_SMALL_HERE, ()) if not shared.is_distributed else (_IS_SMALL_EVERYWHERE, (_TABLES,))
        if connection.execute(query, (_SMALL, *which)).fetchall() != [(True,)]:
            return False
        done = True
        for table in schema.TABLES:
            try:
                connection.execute(f"VACUUM hitherto.{table}")
            except (psycopg.errors.DiskFull, psycopg.errors.LockNotAvailable):
                done = False  # VACUUM itself needs a little space; another table may return some
        return done


def _is_settled(state: tuple[Any, ...]) -> bool:
    removals, scrubbed, untidy, _ = state
    return bool(removals == scrubbed and untidy is None)


def _holds(evidence: Evidence, place: str, counts: dict[str, tuple[int, int]]) -> bool:
    """Tell whether the evidence is about this server, and its counts have only grown since."""
    wanted = evidence.wanted
    return evidence.place == place and all(
        table in wanted and vacuums >= wanted[table] - 2 for table, (vacuums, _) in counts.items()
    )


def _was_vacuumed(evidence: Evidence, counts: dict[str, tuple[int, int]], *, is_counted: bool) -> bool:
    """Tell whether the server has vacuumed all tables since the look. `is_counted`: what was changed before it is in
    its counts."""
    return all(
        vacuums >= evidence.wanted[table] or (is_counted and not changed)
        for table, (vacuums, changed) in counts.items()
    )
