"""Large databases in little time: the rows of one real workspace, multiplied on the server.

A plain body is bound to no place, so what a store wrote once is as true under other numbers, in another conversation or
in another workspace. Nothing is made up: what is copied was written by a store, and stores read and verify the copies.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg

from hitherto.backends.postgres import workspace_id
from hitherto.backends.postgres.lexemes import Spelling
from hitherto.backends.postgres.schema import TABLES
from hitherto.ids import RUN

Connection = psycopg.Connection[tuple[Any, ...]]

# What numbers a message, by table; -1 stands for the conversation as a whole.
_NUMBERS = {
    "conversation": ("head",),
    "message": ("number", "parent", "link"),
    "pack": ("first", "parent"),
    "reference": ("message",),
    "tag": ("message",),
    "word": ("number",),
}
_IN_A_CONVERSATION = ("message", "pack", "item", "tag", "attachment", "chunk", "reference", "word", "word_known")
_ORIGINAL = "s.head < %(span)s AND s.kind = 'chat'"
# A conversation without forks has one run that may go on, at its head, unless that is full.
_TIPS = (
    "CASE WHEN (s.head + 1) %% 32 = 0 THEN '\\x90'::bytea ELSE '\\x91cf'::bytea || int8send(s.head + k * %(span)s) END"
)


def _moved_id(id: str) -> str:
    """The id of a copy: spread as at random, and a UUID of the same version."""
    made = f"substr(sha256({id} || int8send(k)), 1, 16)"
    for place in (7, 9):
        made = f"overlay({made} PLACING substr({id}, {place}, 1) FROM {place})"
    return made


def _moved_numbers(table: str) -> dict[str, str]:
    return {
        name: f"CASE WHEN s.{name} < 0 THEN s.{name} ELSE s.{name} + k * %(span)s END"
        for name in _NUMBERS.get(table, ())
    }


def _below(table: str) -> str:
    """Which rows are of conversations that are copied."""
    if table in ("message", "pack", "reference", "word"):
        return f"s.{_NUMBERS[table][0]} < %(span)s"
    return f"s.conversation IN (SELECT s.id FROM hitherto.conversation s WHERE s.workspace_id = %(w)s AND {_ORIGINAL})"


def _columns(connection: Connection, table: str) -> list[tuple[str, str]]:
    query = (
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    return connection.execute(query, (f"hitherto.{table}",)).fetchall()


def _copy(connection: Connection, table: str, chosen: dict[str, str], source: str, values: dict[str, object]) -> None:
    columns = [name for name, _ in _columns(connection, table)]
    picked = ", ".join(chosen.get(name, f"s.{name}") for name in columns)
    query = f"INSERT INTO hitherto.{table} ({', '.join(columns)}) SELECT {picked} FROM hitherto.{table} s {source}"
    connection.execute(query, values)


def spread(connection: Connection, model: str, names: Sequence[str], *, words: bool = True) -> None:
    """Make workspaces of these names that have in them what the model has. The connection is a superuser's."""
    ids = [workspace_id(name) for name in names]
    values: dict[str, object] = {
        "model": workspace_id(model),
        "ids": ids,
        "names": [name.encode() for name in names],
        "starts": [f"'{_start(id)}" for id in ids],
        "start": f"'{_start(workspace_id(model))}",
        "hex": workspace_id(model).hex,
    }
    source = (
        "CROSS JOIN unnest(%(ids)s::uuid[], %(names)s::bytea[], %(starts)s::text[]) AS t (id, name, start) "
        "WHERE s.workspace_id = %(model)s"
    )
    for table in TABLES:
        if table.startswith("word") and not words:
            continue
        chosen = {"workspace_id": "t.id"}
        if table == "workspace":
            chosen["name"] = "t.name"
        if table == "word_state":  # which names the workspace, too
            chosen["position"] = (
                "convert_to(replace(convert_from(s.position, 'UTF8'), %(hex)s, replace(t.id::text, '-', '')), 'UTF8')"
            )
        if table == "word":
            chosen["workspace_words"] = "replace(s.workspace_words::text, %(start)s, t.start)::tsvector"
        _copy(connection, table, chosen, source, values)


def _start(workspace: UUID) -> str:
    return Spelling(workspace)._start


def span(connection: Connection, workspace: str) -> int:
    """The first number of a run above all that are used there."""
    query = "SELECT (max(number) / %s + 1) * %s FROM hitherto.message WHERE workspace_id = %s"
    return int(connection.execute(query, (RUN, RUN, workspace_id(workspace))).fetchall()[0][0])


def multiply(
    connection: Connection, workspace: str, copies: range, step: int, *, model: str | None = None, words: bool = True
) -> None:
    """Put copies of the conversations of the model (or of the workspace itself) into a workspace, each with numbers
    `step` further on than the one before. The connection is a superuser's."""
    assert step % RUN == 0
    source, target = workspace_id(model or workspace), workspace_id(workspace)
    values: dict[str, object] = {"w": source, "target": target, "span": step}
    values |= {"from": copies.start, "to": copies.stop - 1}
    values |= {"old": f"'{_start(source)}", "new": f"'{_start(target)}"}
    for table in _IN_A_CONVERSATION:
        if table.startswith("word") and not words:
            continue
        chosen = {"conversation": _moved_id("s.conversation"), **_moved_numbers(table)}
        if table == "word":
            values["places"] = _places(connection, values)
            chosen["place"] = "s.place + k * %(places)s"
            chosen["workspace_words"] = "replace(s.workspace_words::text, %(old)s, %(new)s)::tsvector"
        _copies(connection, table, chosen, _below(table), values)
    chosen = {
        "id": _moved_id("s.id"),
        "key": "s.key || convert_to('/' || k, 'UTF8')",
        "tips": f"({_TIPS})",
        "active_at": "s.active_at + k * 1000000",  # in packs, too, stands when messages came: that stays
        "shelf": "(s.active_at + k * 1000000) / 60000000",
        **_moved_numbers("conversation"),
    }
    _copies(connection, "conversation", chosen, _ORIGINAL, values)
    if words:
        query = (
            "UPDATE hitherto.word_state SET next_place = (SELECT max(place) + 1 FROM hitherto.word "
            "WHERE workspace_id = %(target)s) WHERE workspace_id = %(target)s"
        )
        connection.execute(query, values)


def _copies(
    connection: Connection, table: str, chosen: dict[str, str], condition: str, values: dict[str, object]
) -> None:
    source = f"CROSS JOIN generate_series(%(from)s::bigint, %(to)s) AS k WHERE s.workspace_id = %(w)s AND {condition}"
    _copy(connection, table, {"workspace_id": "%(target)s::uuid", **chosen}, source, values)


def _places(connection: Connection, values: dict[str, object]) -> int:
    query = "SELECT max(place) + 1 FROM hitherto.word WHERE workspace_id = %(w)s AND number < %(span)s"
    [(found,)] = connection.execute(query, values).fetchall()
    return int(found or 0)
