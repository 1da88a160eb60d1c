"""The feed of changes, which costs an append nothing.

Each row of a conversation has the epoch of its last write (`moved`). A new epoch begins only when an index asks for
changes, so a conversation enters the index over `moved` once between two such calls.
"""

import os

import apsw

from ...backend import Changes
from .connections import transaction
from .rows import fetch_all, fetch_first, read_epoch

_MARKS = 64  # positions in the feed that are remembered


def read_changes(connection: apsw.Connection, workspace: int, since: bytes | None) -> Changes:
    """Begin a new epoch if this one has a write, and return what moved since the epoch of `since`."""
    with transaction(connection):
        query = "SELECT epoch FROM mark WHERE workspace = ? AND position = ?"
        found = None if since is None else fetch_first(connection, query, (workspace, since))
        now = read_epoch(connection, workspace)
        query = (
            "SELECT position FROM mark WHERE workspace = ?1 AND epoch = ?2 "
            "AND NOT EXISTS (SELECT 1 FROM conversation WHERE workspace = ?1 AND moved = ?2) "
            "AND NOT EXISTS (SELECT 1 FROM gone WHERE workspace = ?1 AND epoch = ?2)"
        )
        newest = fetch_first(connection, query, (workspace, now))
        if newest is not None:  # nothing was written since it was made
            position = newest[0]
        else:
            position = os.urandom(16)
            connection.execute("UPDATE workspace SET epoch = epoch + 1 WHERE place = ?", (workspace,))
            connection.execute("INSERT INTO mark VALUES (?, ?, ?)", (workspace, now + 1, position))
            for table in ("mark", "gone"):
                query = f"DELETE FROM {table} WHERE workspace = ? AND epoch <= ?"
                connection.execute(query, (workspace, now + 1 - _MARKS))
        if found is None:
            return Changes(position, True, [], [])
        query = "SELECT id FROM conversation WHERE workspace = ? AND moved >= ? ORDER BY moved"
        moved = [id for (id,) in fetch_all(connection, query, (workspace, found[0]))]
        query = "SELECT DISTINCT conversation FROM gone WHERE workspace = ? AND epoch >= ?"
        gone = [id for (id,) in fetch_all(connection, query, (workspace, found[0])) if id not in set(moved)]
        return Changes(position, False, moved, gone)
