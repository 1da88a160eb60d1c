"""The rules for a schema that can grow beyond one server, and a check of them.

Systems that spread rows over machines (Citus, CockroachDB, YugabyteDB, Aurora Limitless) do it by one column, and have
the same rules: that column comes first in every key and index, nothing crosses it, and nothing is counted or
locked for the database as a whole. `offences` reads PostgreSQL's own catalogue, and `spoken` the statements.
"""

import re
from collections.abc import Iterable
from typing import Any

import psycopg

COLUMN = "workspace_id"
_APART = "migration"  # the record of what was done to the database; it belongs to no workspace
_WORDS = "workspace_words"  # a GIN index has no order: here, each word begins with its workspace

_OURS = f"n.nspname = 'hitherto' AND t.relname <> '{_APART}'"
_FIRST = f"""
SELECT '%s ' || i.relname || ' of ' || t.relname || ' begins with ' || coalesce(a.attname, 'an expression')
FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = x.indkey[0] AND a.attnum > 0
WHERE {_OURS} AND a.attname IS DISTINCT FROM '{COLUMN}' AND
"""
_LOOKS = (
    _FIRST % "the primary key" + "x.indisprimary",
    _FIRST % "the unique index" + "x.indisunique AND NOT x.indisprimary",
    _FIRST % "the index" + f"NOT x.indisunique AND a.attname IS DISTINCT FROM '{_WORDS}'",
    f"""SELECT 'the table ' || t.relname || ' has no primary key' FROM pg_class t
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE {_OURS} AND t.relkind IN ('r', 'p')
    AND NOT EXISTS (SELECT 1 FROM pg_index x WHERE x.indrelid = t.oid AND x.indisprimary)""",
    f"""SELECT 'the foreign key ' || k.conname || ' of ' || t.relname || ' does not begin with both workspaces'
    FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace
    JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
    JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = k.confkey[1]
    WHERE {_OURS} AND k.contype = 'f' AND (a.attname <> '{COLUMN}' OR b.attname <> '{COLUMN}')""",
    """SELECT 'there is a sequence: ' || t.relname FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
    WHERE n.nspname = 'hitherto' AND t.relkind = 'S'""",
    """SELECT 'the column ' || t.relname || '.' || a.attname || ' is an identity' FROM pg_attribute a
    JOIN pg_class t ON t.oid = a.attrelid JOIN pg_namespace n ON n.oid = t.relnamespace
    WHERE n.nspname = 'hitherto' AND a.attidentity <> ''""",
    """SELECT 'there is a trigger: ' || g.tgname FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE n.nspname = 'hitherto' AND NOT g.tgisinternal""",
    """SELECT 'there is a rule: ' || r.rulename FROM pg_rewrite r JOIN pg_class t ON t.oid = r.ev_class
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE n.nspname = 'hitherto' AND t.relkind <> 'v'""",
    """SELECT 'there is a view: ' || t.relname FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
    WHERE n.nspname = 'hitherto' AND t.relkind IN ('v', 'm', 'f')""",
    """SELECT 'the function ' || p.proname || ' runs with the rights of its owner' FROM pg_proc p
    JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'hitherto' AND p.prosecdef""",
    f"""SELECT 'the table ' || t.relname || ' has no column ' || '{COLUMN} of the type uuid, not null' FROM pg_class t
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE {_OURS} AND t.relkind IN ('r', 'p')
    AND NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = '{COLUMN}'
    AND a.atttypid = 'uuid'::regtype AND a.attnotnull)""",
    f"""SELECT 'the table ' || t.relname || ' has no row-level security, forced on its owner' FROM pg_class t
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE {_OURS} AND t.relkind IN ('r', 'p')
    AND NOT (t.relrowsecurity AND t.relforcerowsecurity)""",
    f"""SELECT 'no policy binds ' || t.relname FROM pg_class t
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE {_OURS} AND t.relkind IN ('r', 'p') AND NOT t.relispartition
    AND NOT EXISTS (SELECT 1 FROM pg_policy p WHERE p.polrelid = t.oid AND p.polcmd = '*'
    AND pg_get_expr(p.polqual, p.polrelid) LIKE '%{COLUMN} = %current_setting(''hitherto.{COLUMN}''%'
    AND pg_get_expr(p.polwithcheck, p.polrelid) LIKE '%{COLUMN} = %current_setting(''hitherto.{COLUMN}''%')""",
    f"""SELECT 'the policy ' || p.polname || ' of ' || t.relname || ' lets everything be seen' FROM pg_policy p
    JOIN pg_class t ON t.oid = p.polrelid JOIN pg_namespace n ON n.oid = t.relnamespace WHERE {_OURS}
    AND p.polpermissive AND coalesce(pg_get_expr(p.polqual, p.polrelid), '') NOT LIKE '%{COLUMN} = %'""",
)


def offences(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the violations in the schema `hitherto`, in words."""
    return sorted(problem for look in _LOOKS for (problem,) in connection.execute(look).fetchall())


_FORBIDDEN = {
    "LISTEN or NOTIFY": re.compile(r"\b(UN)?LISTEN\s+\w|\bNOTIFY\s+\w|\bpg_notify\b", re.IGNORECASE),
    "an advisory lock": re.compile(r"\bpg_(try_)?advisory_", re.IGNORECASE),
    "a sequence": re.compile(r"\bnextval\b|\bsetval\b|\bCREATE\s+SEQUENCE\b|\bBIGSERIAL\b|\bSERIAL\b", re.IGNORECASE),
    "a lock on a table of rows": re.compile(r"\bLOCK\s+TABLE\s+hitherto\.(?!migration\b)", re.IGNORECASE),
}
_TABLE = re.compile(
    r"\b(?:FROM|JOIN|UPDATE|INTO)\s+(?:ONLY\s+)?(hitherto\.)?\"?([a-z_]+)\"?(?:\s+(?:AS\s+)?([a-z]\w*))?"
)
_NO_NAMES = {"where", "set", "values", "select", "on", "as", "join", "cross", "order", "using", "group", "limit"}


def spoken(statements: Iterable[str], tables: Iterable[str]) -> list[str]:
    """Return the violations in these statements: counters or locks for the whole database, a table that is found by
    `search_path`, and a table that is read or changed without naming its workspace."""
    names, found = set(tables), []
    for statement in statements:
        found += [f"{what}: {statement}" for what, pattern in _FORBIDDEN.items() if pattern.search(statement)]
        for schema, table, alias in _TABLE.findall(statement):
            if table in names and not schema:
                found.append(f"{table} is found by search_path: {statement}")
            elif schema and table in names and not _is_bound(statement, table, alias):
                found.append(f"{table} without its workspace: {statement}")
    return found


def _is_bound(statement: str, table: str, alias: str) -> bool:
    """Is the workspace of this table compared with a value that was given, or put with one?"""
    if re.search(rf"INSERT INTO hitherto\.{table}\b", statement):
        return True  # which the security of rows checks
    names = "|".join({table, alias} if alias and alias.lower() not in _NO_NAMES else {table})
    return re.search(rf"(?<![\w.])(?:(?:{names})\.)?{COLUMN} = (?:%s|%\(\w+\)s)", statement) is not None
