"""The tables spread over the nodes of a Citus cluster, by their workspaces.

All of a workspace is in one group of shards, on one node. Every statement names its workspace, so the coordinator
passes it to that node as it is, and a transaction commits there alone. The record of migrations is not spread: whoever
opens a store asks the coordinator for it, and no statement joins it with rows.

A store in which only some tables are spread, or by another column, would answer, and wrongly at the first commit that
writes to two nodes. So it is refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from ...errors import InvalidArgument, Unavailable
from .connection import Connection
from .schema import TABLES, check_current

OLDEST: Final = (11, 0)  # the first with row-level security, roles and online moves of shards for everybody
COLUMN: Final = "workspace_id"
_FIRST: Final = "workspace"  # the table that the others are placed with

_MISSING = "not distributed: "

_VERSION = "SELECT extversion FROM pg_extension WHERE extname = 'citus'"
_SHARDS = (
    "SELECT t.name || '_' || get_shard_id_for_distribution_column('hitherto.' || t.name, %s::uuid) "
    "FROM unnest(%s::text[]) AS t (name)"
)
_ASK = (
    "SELECT r.success, r.result FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid) CROSS JOIN LATERAL "
    "master_run_on_worker(ARRAY[n.nodename], ARRAY[n.nodeport], ARRAY[%s::text], false) r "
    "WHERE p.shardid = %s AND n.noderole = 'primary'"
)
_ASK_ALL = "SELECT result FROM run_command_on_placements(%s::text::regclass, %s)"
_PROTECTED = (  # the restrictive policies of a shard; -1 if it has no row-level security
    "SELECT CASE WHEN c.relrowsecurity AND c.relforcerowsecurity AND EXISTS (SELECT 1 FROM pg_policy p "
    "WHERE p.polrelid = c.oid) "
    "THEN (SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid AND NOT p.polpermissive) "
    "ELSE -1 END FROM pg_class c WHERE c.oid = '%s'::regclass"
)
_RESTRICTIVE = "SELECT count(*) FROM pg_policy p WHERE polrelid = %s::text::regclass AND NOT polpermissive"
_PLACED = (
    "SELECT c.relname, CASE WHEN p.partkey IS NOT NULL THEN column_to_column_name(p.logicalrelid, p.partkey) END, "
    "p.colocationid FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid "
    "WHERE c.relnamespace = to_regnamespace('hitherto')"
)


class Placement(Struct, frozen=True):
    """The column that a table is spread by, None for none, and the group of tables that it is placed with."""

    column: str | None
    group: int


class Distribution(Struct, frozen=True):
    """Which of our tables Citus spreads, and how."""

    version: str
    tables: Mapping[str, Placement]

    @property
    def is_used(self) -> bool:
        return bool(self.tables)

    def problems(self) -> list[str]:
        """Return the reasons for which nothing can be written here; none if all tables are spread, or none."""
        if not self.tables:
            return []
        found = (
            [] if _parse(self.version) >= OLDEST else [f"Citus {self.version} is older than {OLDEST[0]}.{OLDEST[1]}"]
        )
        missing = [table for table in TABLES if table not in self.tables]
        if missing:
            found.append(f"{_MISSING}{', '.join(missing)}")
        there = {table: self.tables[table] for table in TABLES if table in self.tables}
        wrong = [table for table, placement in there.items() if placement.column != COLUMN]
        if wrong:
            found.append(f"not distributed by {COLUMN}: {', '.join(wrong)}")
        home = there.get(_FIRST)
        apart = [table for table, one in there.items() if home is not None and one.group != home.group]
        if apart:
            found.append(f"not colocated with hitherto.{_FIRST}: {', '.join(apart)}")
        return found


def shard_names(connection: Connection, workspace_id: UUID, tables: Sequence[str]) -> list[str]:
    """Return the names that these tables have on the node of the workspace."""
    return [name for (name,) in connection.execute(_SHARDS, (workspace_id, list(tables)))]


def ask_node(connection: Connection, shard: str, query: str) -> str:
    """Return the one value of a query about the catalogue of the node that has this shard.

    The coordinator has a catalogue of its own, and answers for it."""
    found = connection.execute(_ASK, (query, int(shard.rpartition("_")[2]))).fetchall()
    if [done for done, _ in found] != [True]:
        raise Unavailable("the node of this workspace does not answer")
    return str(found[0][1])


def read_distribution(connection: Connection) -> Distribution | None:
    """Return what Citus does with our tables; None where there is no Citus."""
    version = connection.execute(_VERSION).fetchall()
    if not version:
        return None
    placed = connection.execute(_PLACED).fetchall()
    return Distribution(str(version[0][0]), {table: Placement(column, group) for table, column, group in placed})


def statements(distribution: Distribution | None = None) -> list[str]:
    """Return the statements that spread the tables, except for those that are spread already."""
    there = () if distribution is None else distribution.tables
    return [
        f"SELECT create_distributed_table('hitherto.{table}', '{COLUMN}', "
        f"colocate_with => '{'none' if table == _FIRST else f'hitherto.{_FIRST}'}')"
        for table in TABLES
        if table not in there
    ]


def missing_statements(connection: Connection) -> list[str]:
    """Return the statements that are left to run in this database. Refuse one that they cannot put right."""
    found = read_distribution(connection)
    if found is None:
        hint = "CREATE EXTENSION citus on each node, then citus_set_coordinator_host and citus_add_node: see its manual"
        raise InvalidArgument("the database has no Citus", hint=hint)
    check_current(connection)
    wrong = [problem for problem in found.problems() if not problem.startswith(_MISSING)]
    if wrong:
        hint = "SELECT undistribute_table('hitherto.…') for these, and run this again"
        raise InvalidArgument(f"what is there cannot be completed: {'; '.join(wrong)}", hint=hint)
    return statements(found)


def unprotected_shards(connection: Connection, distribution: Distribution) -> list[str]:
    """Return in words where row-level security has not reached the nodes.

    Citus hands a restrictive policy on as a permissive one, which restricts nobody."""
    bare, lax = [], []
    for table in distribution.tables:
        name = f"hitherto.{table}"
        [(restrictive,)] = connection.execute(_RESTRICTIVE, (name,)).fetchall()
        found = {result for (result,) in connection.execute(_ASK_ALL, (name, _PROTECTED))}
        if "-1" in found:
            bare.append(table)
        elif found != {str(restrictive)}:
            lax.append(table)
    problems = [f"no row-level security on shards of {', '.join(bare)}"] if bare else []
    if lax:
        problems.append(f"roles with --only are not held to their workspace on the nodes, in {', '.join(lax)}")
    return problems


def _parse(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
