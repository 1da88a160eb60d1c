"""The feed on PostgreSQL: the conversations that moved since a position.

A position is a snapshot. A conversation has moved if that snapshot does not see its last write, whatever the order in
which transactions became visible. A position holds for one history of transaction ids, and so it names its history:

- **the database system and its timeline**: on another one, the same ids mean something else;
- **the start of the server's statistics**, in a position that is stored outside of the database. After a crash a server
  may assign transaction ids again that it had assigned before and had not written down. A position stored *in* the
  database cannot be newer than the database, so it is stored `without_server_start`.

A standby does not list the transactions under way in its snapshots. There, everything from the oldest of them on counts
as not seen: the feed repeats some, and misses none.
"""

from uuid import UUID

from ...backend import Changes
from .connection import Connection

_NOW = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_snapshot_xmin(s)::text || ':' || pg_snapshot_xmin(s)::text || ':' "
    "ELSE s::text END, (SELECT coalesce(extract(epoch FROM stats_reset), 0)::text FROM pg_stat_bgwriter) "
    "FROM pg_current_snapshot() s"
)
_SINCE = "{0} >= pg_snapshot_xmin(%s::pg_snapshot) AND NOT pg_visible_in_snapshot({0}, %s::pg_snapshot)"
_MOVED = (
    "SELECT id FROM hitherto.conversation WHERE workspace_id = %s AND "
    f"moved >= pg_snapshot_xmin(%s::pg_snapshot)::text::bigint >> 16 AND {_SINCE.format('stamp')} ORDER BY stamp"
)
_GONE = (
    f"SELECT conversation FROM hitherto.gone g WHERE workspace_id = %s AND {_SINCE.format('moved')} AND NOT EXISTS "
    "(SELECT 1 FROM hitherto.conversation c WHERE c.workspace_id = %s AND c.id = g.conversation)"
)
_REMEMBERED = "SELECT forgotten < pg_snapshot_xmin(%s::pg_snapshot) FROM hitherto.workspace WHERE workspace_id = %s"


def read_changes(
    connection: Connection,
    w: UUID,
    since: bytes | None,
    *,
    system: int | None,
    timeline: int,
    in_transaction: bool,
) -> Changes:
    """Return what moved since the position `since`, and the position of now.

    `timeline` is used where the connection does not know its own. With `in_transaction` the caller has begun one."""
    execute = connection.execute
    with connection.transaction():
        if not in_transaction:  # a statement has run in the caller's transaction: it is too late to change its level
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        [(now, counts)] = execute(_NOW).fetchall()
        timeline = getattr(connection, "timeline", None) or timeline
        here = f"{system}/{timeline}/{w.hex}/"
        position = f"{here}{now}/{counts}".encode()
        if since is None or not since.startswith(here.encode()):
            return Changes(position, True, [], [])
        then, _, counted = since.decode().removeprefix(here).partition("/")
        if counted not in ("", counts):
            return Changes(position, True, [], [])
        moved = [id for (id,) in execute(_MOVED, (w, then, then, then), binary=True)]
        gone = [id for (id,) in execute(_GONE, (w, then, then, w), binary=True)]
        # Last: a purge that is forgotten meanwhile is missing from `gone`, but this query notices it.
        if execute(_REMEMBERED, (then, w)).fetchall() != [(True,)]:
            return Changes(position, True, [], [])
        return Changes(position, False, moved, gone)


def without_server_start(position: bytes) -> bytes:
    """Return the same position without the start of the server's count, to be stored in the database itself."""
    return b"/".join(position.split(b"/")[:4])
