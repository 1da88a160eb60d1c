"""The feed on PostgreSQL: what moved since a position.

A position is a snapshot: what moved since is what that snapshot does not see, whatever the order in which transactions
became visible. It holds for one history of transaction ids, and so it names the history it is of:

- **the database system and its timeline**: on another one, the same ids mean something else;
- **since when the server counts**, in a position that is kept outside of the database. After a crash a server counts
  anew, and may give out ids again that it had given out before and had no reason to write down. What is kept *in* the
  database cannot know more than the database does: it is `lasting` without.

A standby does not list the transactions under way in its snapshots. There, everything from the oldest of them on counts
as not seen: it repeats, and misses nothing.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from ...backend import Changes

if TYPE_CHECKING:
    from .connections import Shared
    from .schema import Connection

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


def changes(connection: "Connection", shared: "Shared", w: UUID, since: bytes | None) -> Changes:
    """What moved since then, and where we are now."""
    execute = connection.execute
    with connection.transaction():
        if not shared.address.by_transaction:  # where it is one of ours, something was done in it
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        [(now, counts)] = execute(_NOW).fetchall()
        timeline = getattr(connection, "timeline", None) or shared.timeline
        here = f"{shared.system}/{timeline}/{w.hex}/"
        position = f"{here}{now}/{counts}".encode()
        if since is None or not since.startswith(here.encode()):
            return Changes(position, True, [], [])
        then, _, counted = since.decode().removeprefix(here).partition("/")
        if counted not in ("", counts):
            return Changes(position, True, [], [])
        moved = [id for (id,) in execute(_MOVED, (w, then, then, then), binary=True)]
        gone = [id for (id,) in execute(_GONE, (w, then, then, w), binary=True)]
        # Last: what is forgotten while we look is not among what we found, but is known to be forgotten.
        if execute(_REMEMBERED, (then, w)).fetchall() != [(True,)]:
            return Changes(position, True, [], [])
        return Changes(position, False, moved, gone)


def lasting(position: bytes) -> bytes:
    """The same position, to be kept in the database that it is of."""
    return b"/".join(position.split(b"/")[:4])
