"""Erasure on a PostgreSQL server: have the bytes of removed rows left its tables?

A row that is removed or replaced stays in its file, dead, until a vacuum removes it. A vacuum keeps it while any
transaction may still see it. Each removal sets a mark (`rows.MARKED`), and `scrub` finds out whether everything before
the mark is gone:

- **It is invisible**: no transaction, prepared or not, no standby and no slot is as old as the mark.
- **A vacuum has been over it since.** While the tables are small and belong to us, we do that. Otherwise the server
  does, in its own time, and the evidence is its count of vacuums: of every table and of every TOAST table, because
  these are vacuumed by themselves. One that was running at the first look does not count, because it
  may have been past the row. (The number of dead rows is an estimate, and no evidence.) A table in which nothing was
  ever changed or removed needs no vacuum.

Free space, the log and backups are the administrator's: `docs/postgres.md`.
"""

import msgspec
import psycopg

from . import schema
from .connection import Connection
from .connections import Bound

_SMALL = 64 << 20  # bytes of all tables: up to that, a purge runs a vacuum of its own
_LATE_SECONDS = 60  # until a server has counted everything

_SEEN = (
    "EXISTS (SELECT 1 FROM pg_stat_activity s WHERE s.pid <> pg_backend_pid() "
    "AND coalesce(s.datname, current_database()) = current_database() "  # of no database: a standby
    "AND greatest(age(s.backend_xmin), age(s.backend_xid)) >= age(w.untidy::xid)) OR "  # xid: it has written
    "EXISTS (SELECT 1 FROM pg_prepared_xacts s WHERE s.database = current_database() "
    "AND age(s.transaction) >= age(w.untidy::xid)) OR "
    "EXISTS (SELECT 1 FROM pg_replication_slots s WHERE age(s.xmin) >= age(w.untidy::xid))"
)
# Of the tables, or the partitions that this workspace is in: how often each was vacuumed, and whether it needs to be.
_COUNTS = f"""
SELECT s.relid::bigint::text, s.vacuum_count + s.autovacuum_count, s.n_tup_upd + s.n_tup_del = 0
    AND w.untidy_at < clock_timestamp() - interval '{_LATE_SECONDS} s'
    AND w.untidy_at > (SELECT stats_reset FROM pg_stat_bgwriter)
FROM hitherto.workspace w JOIN pg_class t ON t.oid = w.tableoid
    JOIN pg_class c ON c.relnamespace = t.relnamespace AND c.relkind = 'r' AND c.relname <> 'migration'
        AND substring(c.relname FROM '_[0-9]+$') IS NOT DISTINCT FROM substring(t.relname FROM '_[0-9]+$')
    JOIN pg_stat_all_tables s ON s.relid IN (c.oid, c.reltoastrelid)
WHERE w.workspace_id = %s
"""
_UNDER_WAY = "SELECT count(*) FROM pg_stat_progress_vacuum WHERE datname = current_database()"
_IS_SMALL = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) <= %s "
    "AND coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), false) FROM pg_class c "
    "WHERE c.relnamespace = 'hitherto'::regnamespace AND c.relkind = 'r'"
)


class Eraser:
    """The erasure of one workspace."""

    def __init__(self, bound: Bound) -> None:
        self._bound, self._w = bound, bound.workspace_id

    def scrub(self) -> bool:
        """Is it done? It is, once nobody may see it, and it was vacuumed away: by us if that is quickly done."""
        return self._bound.do(self._scrub, bound=True)

    def is_scrubbed(self) -> bool:
        query = "SELECT untidy IS NULL FROM hitherto.workspace WHERE workspace_id = %s"
        found = self._bound.do(lambda connection: connection.execute(query, (self._w,)).fetchall())
        return not found or bool(found[0][0])

    def _scrub(self, connection: Connection) -> bool:
        query = f"SELECT untidy::text, awaited, {_SEEN} FROM hitherto.workspace w WHERE workspace_id = %s"
        found = self._rows(connection, query, (self._w,))
        if not found or found[0][0] is None:
            return True
        [(untidy, awaited, seen)] = found
        # Who still sees it while it is vacuumed keeps it there, and may be gone by the time that we look again.
        if seen or not (self._vacuum(connection) or self._was_vacuumed(connection, untidy, awaited)):
            return False
        query = (
            "UPDATE hitherto.workspace w SET untidy = NULL, untidy_at = NULL, awaited = NULL WHERE workspace_id = %s "
            f"AND untidy = %s::xid8 AND NOT ({_SEEN}) RETURNING 1"
        )
        return bool(self._rows(connection, query, (self._w, untidy)))

    def _rows(self, connection: Connection, query: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        """A statement by itself, bound: a vacuum is part of no transaction, so that nothing around it is."""
        if not self._bound.shared.address.by_transaction:
            return connection.execute(query, values).fetchall()
        with connection.transaction():
            self._bound.bind(connection)
            return connection.execute(query, values).fetchall()

    def _vacuum(self, connection: Connection) -> bool:
        if self._bound.shared.address.by_transaction:
            return False
        if connection.execute(_IS_SMALL, (_SMALL,)).fetchall() != [(True,)]:
            return False
        done = True
        for table in schema.TABLES:
            try:
                connection.execute(f"VACUUM hitherto.{table}")
            except (psycopg.errors.DiskFull, psycopg.errors.LockNotAvailable):
                done = False  # VACUUM itself needs a little space; another table may return some
        return done

    def _was_vacuumed(self, connection: Connection, untidy: object, awaited: object) -> bool:
        """Tell whether the server has vacuumed all tables since the mark. The first look notes the awaited counts."""
        counts: dict[str, tuple[int, bool]] = {
            str(table): (int(str(count)), bool(untouched))
            for table, count, untouched in self._rows(connection, _COUNTS, (self._w,))
        }
        wanted = msgspec.json.decode(awaited, type=dict[str, int]) if isinstance(awaited, bytes) else {}
        known = all(table in wanted and count >= wanted[table] - 2 for table, (count, _) in counts.items())
        if not known:  # the first look, or the server's counts restarted after a crash
            under_way = bool(self._rows(connection, _UNDER_WAY, ())[0][0])
            wanted = {table: count + 1 + under_way for table, (count, _) in counts.items()}
            query = (
                "UPDATE hitherto.workspace SET awaited = %s WHERE workspace_id = %s AND untidy = %s::xid8 RETURNING 1"
            )
            self._rows(connection, query, (msgspec.json.encode(wanted), self._w, untidy))
        return all(untouched or count >= wanted[table] for table, (count, untouched) in counts.items())
