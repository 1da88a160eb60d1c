"""Rebuild all tables of a store in short steps, while other processes read and write.

VACUUM would do, but it holds the write lock all the time: seconds for a gigabyte. Here each step is one short
transaction. Each step finds the next one from the schema and the tables, in its own transaction. So any process can
continue after a kill, and several processes may take turns.

1. `conversation` and `attachment` are copied to tables whose names end in `_next`.
2. When both are complete, the other large tables are copied.
3. Conversations that changed meanwhile are copied again. Every commit gives a conversation another token, so they are
   the conversations whose two rows differ. No commit has to know of the rebuild. Nothing else is compared, so no row
   may be among the copies whose conversation, or attachment, is not: if that one were removed, the row would stay.
   Rows of conversations that are newer than step 1 wait for this step.
4. As soon as a single step can do the rest, that step does it, copies the small tables, and gives the tables of each
   set the names of the other: `message` becomes `message_old`, and `message_next` becomes `message`.
5. The old tables are emptied and dropped. `secure_delete` overwrites the pages that become free.

The copies hold nothing that was removed before the first step, and no page of the old tables is left after the last.
Without enough space on the disk no rebuild begins, and one that has begun is abandoned.
"""

import re
import time
from collections.abc import Sequence
from typing import Any

import apsw

from .connections import Pool, patience, transaction
from .files import free_bytes, lacks_room

NEXT, OLD = "_next", "_old"

# The tables that are copied in steps, by their primary keys. The first two are copied before the others, whose rows
# belong to one of them.
_FIRST = {"conversation": ("place",), "attachment": ("place",)}
_THEN = {
    "message": ("number",),
    "pack": ("first",),
    "item": ("conversation", "key"),
    "tag": ("workspace", "value", "conversation", "message"),
    "reference": ("conversation", "message", "attachment"),
    "chunk": ("number",),
}
_CHUNK_BITS = 24  # as in `sqlite`: the chunks of an attachment are numbered from its place, shifted by these
# Which rows of these belong to one that is copied. The plus sign: in the order of the primary key, by no other index.
_OWNED = dict.fromkeys(_THEN, f"+conversation IN (SELECT place FROM conversation{NEXT})") | {
    "chunk": f"number >> {_CHUNK_BITS} IN (SELECT place FROM attachment{NEXT})"
}
# No two rows of a table are the same in these columns, besides its primary key.
_UNIQUE = {
    "conversation": (("id", "workspace"), ("workspace", "kind", "key")),
    "attachment": (("workspace", "conversation", "name"),),
}
_LONG, _BRIEF = 0.2, 0.05  # seconds: a step that takes longer than one does less next time; less than the other, more
_FEW, _MANY = 8, 1 << 14  # rows of one step
_CHANGED = 64  # conversations, or attachments, that one step copies again
_PATIENCE_SECONDS = 2.0  # for other writers
_SPARE = 16 << 20  # bytes that are left free on the disk


class Rebuild:
    """The rebuild of one file. Its only state in memory is the number of rows per step."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rows: dict[str, int] = {}

    def go_on(self, deadline: float) -> bool:
        """Take steps until the deadline, at least one. True if the rebuild is complete.

        False at the deadline, if other processes write without a pause, or if the disk is full."""
        with self._pool.mapping_errors():
            connection = self._pool.connect()
            try:
                connection.set_busy_handler(patience(min(_PATIENCE_SECONDS, self._pool.timeout_seconds)))
                connection.execute("PRAGMA foreign_keys = OFF").fetchall()  # the sets of tables refer to each other
                while (done := self._step(connection)) is None:
                    if time.monotonic() >= deadline:
                        return False
                return done
            except apsw.BusyError:
                return False
            except apsw.Error as error:
                if not lacks_room(error, connection):
                    raise
                return False
            finally:
                self._pool.drop(connection)

    def _step(self, connection: apsw.Connection) -> bool | None:
        """Run one transaction. True if it was the last; False if the disk is full; None if there is more to do."""
        has_room = free_bytes(self._pool.path) > _SPARE
        with transaction(connection):
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # ALTER would use an outdated one
            found = tables(connection)
            if any(name.endswith(OLD) for name in found):
                if not self._empty(connection, OLD):
                    return None
                connection.execute("UPDATE workspace SET rebuilt = max(rebuilt, begun)")
                return True
            if not any(name.endswith(NEXT) for name in found):
                return None if self._begin(connection) else False
            if not has_room:
                connection.execute("UPDATE workspace SET begun = -1")  # abandon the rebuild
            if connection.execute("SELECT 1 FROM workspace WHERE begun = -1").fetchone():
                return False if self._empty(connection, NEXT) and not has_room else None
            if "message" + NEXT not in found:
                if all(self._is_copied(connection, *one) for one in _FIRST.items()):
                    _make(connection, [name for name in live_tables(connection) if name not in _FIRST])
            elif all(self._is_copied(connection, *one) for one in _THEN.items()) and self._has_caught_up(connection):
                self._swap(connection)
            return None

    def _begin(self, connection: apsw.Connection) -> bool:
        """Create the first copies. False if a copy and the free pages of the old tables would not fit."""
        (pages, free, size) = (connection.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        if free_bytes(self._pool.path) + free * size < (pages - free) * size * 5 // 4 + 2 * _SPARE:
            return False
        _make(connection, list(_FIRST))
        connection.execute("UPDATE workspace SET begun = removals")
        return True

    def _is_copied(self, connection: apsw.Connection, table: str, key: Sequence[str]) -> bool:
        """Copy the next rows of a table whose owners are copied. True if they were the last."""
        columns, way = ", ".join(key), ", ".join(f"{name} DESC" for name in key)
        last = connection.execute(f"SELECT {columns} FROM {table}{NEXT} ORDER BY {way} LIMIT 1").fetchone()
        beyond = "TRUE" if last is None else f"({columns}) > ({', '.join('?' * len(key))})"
        rows = f"SELECT * FROM {table} WHERE {beyond} AND {_OWNED.get(table, 'TRUE')} ORDER BY {columns} LIMIT ?"
        began = time.monotonic()
        limit = self._rows.get(table, _FEW)
        connection.execute(f"INSERT OR REPLACE INTO {table}{NEXT} {rows}", (*(last or ()), limit))
        self._pace(table, limit, time.monotonic() - began)
        return connection.changes() < limit

    def _pace(self, table: str, rows: int, seconds: float) -> None:
        if seconds > _LONG:
            self._rows[table] = max(_FEW, rows // 2)
        elif seconds < _BRIEF:
            self._rows[table] = min(_MANY, rows * 2)

    # -- what was written meanwhile

    def _has_caught_up(self, connection: apsw.Connection) -> bool:
        """Copy the changed conversations and attachments again. False if there were too many for one step."""
        places = _find_changed(connection, "conversation")
        names = _find_changed(connection, "attachment")
        _copy_conversations(connection, places[:_CHANGED])
        _copy_attachments(connection, names[:_CHANGED])
        if len(places) > _CHANGED or len(names) > _CHANGED:
            return False
        staged: list[Any] = connection.execute("SELECT place FROM attachment WHERE chunks = 0").fetchall()
        _copy_attachments(connection, [int(place) for (place,) in staged])  # any of their chunks may have been replaced
        return True

    def _swap(self, connection: apsw.Connection) -> None:
        live = live_tables(connection)
        for table in live:
            if table not in _FIRST and table not in _THEN:
                connection.execute(f"INSERT INTO {table}{NEXT} SELECT * FROM {table}")
        gone = f"NOT EXISTS (SELECT 1 FROM pack p WHERE p.first = pack{NEXT}.first)"
        connection.execute(f"DELETE FROM pack{NEXT} WHERE {gone}")  # no index tells which packs a conversation has
        for before, after in (("", OLD), (NEXT, "")):  # references to a table follow its new name
            for table in live:
                connection.execute(f"ALTER TABLE {table}{before} RENAME TO {table}{after}")

    # -- getting rid of tables

    def _empty(self, connection: apsw.Connection, ending: str) -> bool:
        """Remove rows, an index or an empty table among the tables with this suffix. True if no table is left."""
        left = [name for name in tables(connection) if name.endswith(ending)]
        for name in left:
            query = "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL LIMIT 1"
            for (index,) in connection.execute(query, (name,)).fetchall():
                connection.execute(f"DROP INDEX {index}")
                return False
        for name in left[:1]:
            table = name.removesuffix(ending)
            key = (_FIRST | _THEN).get(table)
            if key is None or not self._remove_some(connection, name, ", ".join(key)):
                connection.execute(f"DROP TABLE {name}")
                left.remove(name)
        return not left

    def _remove_some(self, connection: apsw.Connection, name: str, columns: str) -> bool:
        limit, began = self._rows.get(name, _FEW), time.monotonic()
        some = f"SELECT {columns} FROM {name} ORDER BY {columns} LIMIT ?"
        connection.execute(f"DELETE FROM {name} WHERE ({columns}) IN ({some})", (limit,))
        self._pace(name, limit, time.monotonic() - began)
        return connection.changes() > 0


def tables(connection: apsw.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY name"
    return [name for (name,) in connection.execute(query)]


def live_tables(connection: apsw.Connection) -> list[str]:
    """Return all tables except the copies of a rebuild."""
    return [name for name in tables(connection) if not name.endswith((NEXT, OLD))]


def is_under_way(connection: apsw.Connection) -> bool:
    return any(name.endswith((NEXT, OLD)) for name in tables(connection))


def drop_copies(connection: apsw.Connection) -> None:
    """Drop the tables that a rebuild left, in a file that no other process uses."""
    for name in tables(connection):
        if name.endswith((NEXT, OLD)):
            connection.execute(f"DROP TABLE {name}")


def index_name(connection: apsw.Connection, name: str) -> str:
    """Return the current name of an index: two sets of tables cannot have indexes of the same names."""
    query = "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'index' AND name IN (?, ?)"
    found: list[Any] = connection.execute(query, (name, _other(name))).fetchall()
    return next((str(one) for one, table in found if not table.endswith((NEXT, OLD))), name)


_NAMES = re.compile(r'\b(CREATE TABLE|REFERENCES)\s+"?(\w+)"?')
_INDEX = re.compile(r'\bINDEX\s+"?(\w+)"?\s+ON\s+"?(\w+)"?')


def _make(connection: apsw.Connection, names: Sequence[str]) -> None:
    """Create empty copies of these tables, with all their indexes. A foreign trigger goes with the old table."""
    marks = ", ".join("?" * len(names))
    query = f"SELECT type, sql FROM sqlite_schema WHERE tbl_name IN ({marks}) AND sql IS NOT NULL"
    ours = f"{query} AND type IN ('table', 'index') ORDER BY type = 'index'"
    found: list[Any] = connection.execute(ours, tuple(names)).fetchall()
    for kind, sql in found:
        if kind == "table":
            connection.execute(_NAMES.sub(rf"\1 \2{NEXT}", sql))
        else:
            connection.execute(_INDEX.sub(lambda found: f"INDEX {_other(found[1])} ON {found[2]}{NEXT}", sql))


def _other(index: str) -> str:
    return index.removesuffix("_2") if index.endswith("_2") else f"{index}_2"


def _find_changed(connection: apsw.Connection, table: str) -> list[int]:
    """Return the places of rows that differ between a table and its copy, or exist in only one of them."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()]
    same = " AND ".join(f"a.{name} IS b.{name}" for name in columns)
    query = (
        f"SELECT a.place FROM {table} a LEFT JOIN {table}{NEXT} b ON b.place = a.place WHERE NOT ({same}) UNION ALL "
        f"SELECT b.place FROM {table}{NEXT} b LEFT JOIN {table} a ON a.place = b.place WHERE a.place IS NULL"
    )
    return [place for (place,) in connection.execute(query)]


def _copy_conversations(connection: apsw.Connection, places: Sequence[int]) -> None:
    """Copy all rows of these conversations as they are now."""
    execute = connection.execute
    for place in (*places, *_in_the_way(connection, "conversation", places)):
        mine = f"SELECT number FROM message{NEXT} WHERE conversation = ?"
        execute(f"DELETE FROM pack{NEXT} WHERE first IN ({mine})", (place,))
        for table in ("tag", "item", "reference", "message"):
            execute(f"DELETE FROM {table}{NEXT} WHERE conversation = ?", (place,))
        execute(f"DELETE FROM conversation{NEXT} WHERE place = ?", (place,))
    for place in places:
        execute(f"INSERT INTO conversation{NEXT} SELECT * FROM conversation WHERE place = ?", (place,))
        for table in ("tag", "item", "reference", "message"):
            execute(f"INSERT OR REPLACE INTO {table}{NEXT} SELECT * FROM {table} WHERE conversation = ?", (place,))
        mine = "SELECT number FROM message WHERE conversation = ? AND body IS NULL"
        execute(f"INSERT OR REPLACE INTO pack{NEXT} SELECT * FROM pack WHERE first IN ({mine})", (place,))


def _copy_attachments(connection: apsw.Connection, places: Sequence[int]) -> None:
    """Copy these attachments and all of their chunks as they are now."""
    execute = connection.execute
    for place in (*places, *_in_the_way(connection, "attachment", places)):
        execute(f"DELETE FROM chunk{NEXT} WHERE number BETWEEN ? AND ?", _chunks_of(place))
        execute(f"DELETE FROM attachment{NEXT} WHERE place = ?", (place,))
    for place in places:
        execute(f"INSERT INTO attachment{NEXT} SELECT * FROM attachment WHERE place = ?", (place,))
        execute(f"INSERT INTO chunk{NEXT} SELECT * FROM chunk WHERE number BETWEEN ? AND ?", _chunks_of(place))


def _chunks_of(place: int) -> tuple[int, int]:
    return place << _CHUNK_BITS, ((place + 1) << _CHUNK_BITS) - 1


def _in_the_way(connection: apsw.Connection, table: str, places: Sequence[int]) -> list[int]:
    """The places of copies that bear a name which one of these has by now. They go with all that belongs to them, and
    are copied again if they are still there: if only their row were replaced, the rest would belong to nothing."""
    found: list[int] = []
    for columns in _UNIQUE[table]:
        same = " AND ".join(f"b.{name} = a.{name}" for name in columns)
        query = f"SELECT b.place FROM {table} a JOIN {table}{NEXT} b ON {same} WHERE a.place = ? AND b.place <> a.place"
        for place in places:
            found += [other for (other,) in connection.execute(query, (place,))]
    return found
