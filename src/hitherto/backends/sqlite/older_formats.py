"""Reading a file of an older format as if it had this one, without writing to it.

Opening a store for writing migrates its file first (`schema`). A read-only connection may not write, and gets the
difference as temporary objects instead: a view over each table that lacks columns, which has the default of each of
them, and an empty table for each missing one. SQLite resolves a name among temporary objects first, so every query
works as it is written.

This is correct as long as steps only add tables, indexes and columns with a default; a renamed column counts as added.
`READABLE_FROM` is the first format whose later steps all do.
"""

from functools import cache
from typing import NamedTuple

import apsw

READABLE_FROM = 3

Steps = tuple[tuple[str, tuple[str, ...]], ...]


class _Table(NamedTuple):
    statement: str  # that makes it
    defaults: dict[str, str]  # of each column, as SQL


def complete(connection: apsw.Connection, version: int, steps: Steps) -> None:
    """Add temporary objects to a connection for everything that later steps would have added to its file."""
    if not READABLE_FROM <= version < len(steps):
        return
    connection.execute("PRAGMA temp_store = MEMORY").fetchall()
    for name, table in _tables(steps).items():
        there = [column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?, 'main')", (name,))]
        missing = [column for column in table.defaults if column not in there]
        if not there:
            connection.execute(table.statement.replace("CREATE TABLE", "CREATE TEMP TABLE", 1))
        elif missing:
            given = [*there, *(f"{table.defaults[column]} AS {column}" for column in missing)]
            connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {', '.join(given)} FROM main.{name}")


@cache
def _tables(steps: Steps) -> dict[str, _Table]:
    """Return the tables that these steps create, by name."""
    made = apsw.Connection(":memory:")
    try:
        for _, statements in steps:
            for statement in statements:
                made.execute(statement)
        found = made.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
        columns = "SELECT name, coalesce(dflt_value, 'NULL') FROM pragma_table_info(?)"
        return {str(name): _Table(str(sql), dict(made.execute(columns, (name,)))) for name, sql in found}
    finally:
        made.close()
