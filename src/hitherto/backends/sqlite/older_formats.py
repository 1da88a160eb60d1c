"""Reading a file of an older format as if it had this one, without writing to it.

Who opens a store to write brings its file up to date first (`schema`). Who only reads may not write, and gets the
difference for each connection instead: a temporary view over each table that lacks columns, which gives the default of
each of them, and an empty temporary table for each that is missing. SQLite looks for a name among what is temporary
first, so every query works as it is written.

This is right as long as steps only add tables, indexes and columns with a default; a column that is renamed counts as
added. `READABLE_FROM` is the format from which on they do.
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
    """Give a connection to a file of this version what the later steps would have added."""
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
    """The tables that these steps lead to."""
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
