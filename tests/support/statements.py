"""The statements sent to a PostgreSQL server, and its plans for them.

Every statement on our tables that goes through psycopg meanwhile is explained just before it runs: on the same
connection, in the same transaction, with the same values, hence under the same settings and rights. A statement that
may be prepared is explained a second time without values, because a server plans it so after some executions.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import psycopg
import pytest

Plan = dict[str, Any]


class Statement(NamedTuple):
    text: str
    plan: Plan
    prepared: Plan | None  # without values, if it may be prepared


@contextmanager
def explained(aside: psycopg.Connection[Any]) -> Iterator[dict[str, Statement]]:
    """Statements on our tables by their text, in the order in which they came first. `aside` is a connection with the
    same rights: in a pipeline, nothing can be planned without values."""
    found: dict[str, Statement] = {}
    execute: Any = psycopg.Cursor.execute

    def explaining(cursor: psycopg.Cursor[Any], query: Any, values: Any = None, **named: Any) -> Any:
        if isinstance(query, str) and _is_ours(query) and query not in found:
            plan = execute(cursor, f"EXPLAIN (FORMAT JSON) {query}", values).fetchone()[0][0]["Plan"]
            prepared = None if named.get("prepare") is False else without_values(aside, query)
            found[query] = Statement(query, plan, prepared)
        return execute(cursor, query, values, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", explaining)
        yield found


def without_values(connection: psycopg.Connection[Any], query: str) -> Plan:
    """The plan of a statement that is prepared."""
    [(answer,)] = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {_numbered(query)}").fetchall()
    plan: Plan = answer[0]["Plan"]
    return plan


def _is_ours(query: str) -> bool:
    return "hitherto." in query and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", query) is not None


def _numbered(query: str) -> str:
    """With $1, $2 … instead of what psycopg puts values in."""
    numbers, names = count(1), dict[str, str]()

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return f"${next(numbers)}" if match[1] is None else names.setdefault(match[1], f"${len(names) + 1}")

    return re.sub(r"%%|%(?:\((\w+)\))?[sbt]", number, query)


def scans(plan: Plan, picked: str = "") -> Iterator[tuple[Plan, str]]:
    """Yield the nodes that read a table or an index, with the filter on the rows that they read."""
    picked = plan.get("Filter", "") or (picked if plan["Node Type"].startswith("Bitmap") else "")
    if plan["Node Type"].endswith("Scan") and not plan["Node Type"].startswith("Bitmap Heap"):
        yield plan, picked
    for below in plan.get("Plans", ()):
        yield from scans(below, picked if plan["Node Type"].startswith("Bitmap") else "")


_APART = ("pg_", "migration")  # of the server, and of no workspace
_ALONE = ("workspace_pkey", "word_state_pkey")  # of tables with one row for each workspace
_ALL_WORDS = re.compile(r"|\(workspace_words @@ \(COALESCE\(NULLIF\(current_setting\(.*'!x'::text\)\)::tsquery\)")
_COMPARED = re.compile(r"\((?:\w+\.)?(\w+)(?: =| <| >| @@| IS|, )")


def offences(plan: Plan, *, small: bool = False) -> list[str]:
    """Return the nodes that read more rows than needed, or rows of other workspaces. In a workspace that is known to be
    small, reading all of it is the quickest way; a plan without values cannot know that."""
    found = (_offence(scan, picked, small=small) for scan, picked in scans(plan))
    return [problem for problem in found if problem]


def _offence(scan: Plan, picked: str, *, small: bool) -> str | None:
    table, index = scan.get("Relation Name", ""), scan.get("Index Name", "")
    if (table or index).startswith(_APART):
        return None
    if scan["Node Type"] == "Seq Scan":
        return f"reads all of {table}"
    if not index:  # what others have read
        return None
    compared = _COMPARED.findall(f"({scan.get('Index Cond', '')}")
    if not compared or compared[0] not in ("workspace_id", "workspace_words"):  # words begin with their workspace
        return f"goes through all of {index}"
    if set(compared) == {"workspace_id"} and not small and index not in _ALONE and not _ALL_WORDS.fullmatch(picked):
        return f"goes through all of the workspace in {index}, for {picked}"
    return None
