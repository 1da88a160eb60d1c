"""The feed on PostgreSQL: the conversations that changed since a position.

A position is a number of the workspace's own count, `feed` in its row. **Readers count, writers do not**: a write sets
`moved` of its row to 0, in the update that it makes anyway, so no two appends meet on anything. A reader first numbers
the changes that it sees (`number_changes`): it locks the workspace's row, raises the count, and gives the new number to
each row without one. A conversation has changed since a position if its number is higher, or if it has none.

So no order of commits matters: a change that becomes visible late has no number yet, and gets a higher one than any
position that was handed out before. A row that a writer holds is left for the next reader. A reader that cannot write,
as on a standby, numbers nothing and reports those rows each time. Nothing here is a count of one server's transactions,
so a dump goes on wherever it is restored, and so does a shard that moves.

A position outside the database could outlive what it counts: a failover or a restored backup takes the newest changes
back, and then the same numbers mean others. So it names its place, which is the table, and the system and timeline of
the server that has it. A position *in* the database is taken back together with the rest. It is stored `without_place`.

The first format kept transaction ids in the columns that have numbers now. They are lower than any number, and count as
none; so processes of that format may go on writing for a while. Their own feed then repeats everything: see `ADOPT`.
"""

from typing import Final
from uuid import UUID

from psycopg import errors

from ...backend import Changes
from .connection import Connection

FIRST: Final = 1 << 48  # what the count begins with; no transaction id is as high
_BATCH = 1000  # conversations that are numbered in one transaction, which holds their rows

# `forgotten` is the highest number of a removal that the feed does not remember. A transaction id there was set by a
# process of the first format, which forgot something, or made the workspace.
ADOPT = (
    f"UPDATE hitherto.workspace SET feed = feed + 1, forgotten = (feed + 1)::text::xid8 "
    f"WHERE workspace_id = %s AND forgotten < '{FIRST}'::xid8"
)
FORGET = "UPDATE hitherto.workspace SET feed = feed + 1, forgotten = (feed + 1)::text::xid8 WHERE workspace_id = %s"

_UNNUMBERED = (
    f"SELECT EXISTS (SELECT 1 FROM hitherto.conversation WHERE workspace_id = %s AND moved < {FIRST}) "
    f"OR EXISTS (SELECT 1 FROM hitherto.gone WHERE workspace_id = %s AND moved < '{FIRST}'::xid8)"
)
_LOCK = "SELECT feed + 1 FROM hitherto.workspace WHERE workspace_id = %s FOR NO KEY UPDATE SKIP LOCKED"
_TAKE = (
    f"SELECT id FROM hitherto.conversation WHERE workspace_id = %s AND moved < {FIRST} "
    f"LIMIT {_BATCH} FOR NO KEY UPDATE SKIP LOCKED"
)
_NUMBER = "UPDATE hitherto.conversation SET moved = %s WHERE workspace_id = %s AND id = ANY(%s::bytea[])"
_NUMBER_GONE = f"UPDATE hitherto.gone SET moved = %s::text::xid8 WHERE workspace_id = %s AND moved < '{FIRST}'::xid8"
_COUNT = "UPDATE hitherto.workspace SET feed = %s WHERE workspace_id = %s"

# Evaluated by the server that has the row, which in a cluster is not the one that answers.
_HERE = (
    "SELECT feed, encode(identity, 'hex'), tableoid::bigint, (SELECT system_identifier FROM pg_control_system()), "
    "CASE WHEN pg_is_in_recovery() THEN NULL "
    "ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END "
    "FROM hitherto.workspace WHERE workspace_id = %s"
)
_GONE = " UNION ALL ".join(
    f"SELECT conversation FROM hitherto.gone WHERE workspace_id = %s AND moved {which}"
    for which in (f"< '{FIRST}'::xid8", "> %s::text::xid8")
)
_MOVED = " UNION ALL ".join(
    f"SELECT id FROM hitherto.conversation WHERE workspace_id = %s AND moved {which}"
    for which in (f"< {FIRST}", "> %s")
)
_REMEMBERED = (
    f"SELECT forgotten BETWEEN '{FIRST}'::xid8 AND %s::text::xid8 FROM hitherto.workspace WHERE workspace_id = %s"
)


def number_changes(connection: Connection, w: UUID) -> bool:
    """Give a number to changes that have none. True if there may be more of them.

    Nobody is waited for: if the row of the workspace is locked, by another reader or a purge, nothing is numbered."""
    if connection.execute(_UNNUMBERED, (w, w)).fetchall() != [(True,)]:
        return False
    try:
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = local")  # positions outside name their server
            return _number(connection, w)
    except errors.DiskFull:  # reading goes on; the changes are reported again until there is space
        return False


def _number(connection: Connection, w: UUID) -> bool:
    locked = connection.execute(_LOCK, (w,)).fetchall()
    if not locked:
        return False
    [(number,)] = locked
    ids = [id for (id,) in connection.execute(_TAKE, (w,), binary=True)]
    with connection.pipeline():
        connection.execute(_NUMBER, (number, w, ids), prepare=False)
        connection.execute(_NUMBER_GONE, (number, w))
        connection.execute(_COUNT, (number, w))
        connection.execute(ADOPT, (w,))
    return len(ids) == _BATCH


def read_changes(connection: Connection, w: UUID, since: bytes | None, *, timeline: int) -> Changes:
    """Return what changed since the position `since`, and the position of now.

    The position is read first: what becomes visible between two statements is reported again. Removals come before
    conversations, so that an id that is used again in between is reported as it is now. `timeline` is used where the
    server follows another one, and does not know its own."""
    found = connection.execute(_HERE, (w,)).fetchall()
    if not found:  # the workspace was removed
        return Changes(b"", True, [], [])
    [(now, identity, table, system, own_timeline)] = found
    origin, place = f"{w.hex}.{identity}", f"{table}.{system}.{own_timeline or timeline}"
    position = f"{now}/{origin}/{place}".encode()
    then = _known(since, now, origin, place)
    if then is None:
        return Changes(position, True, [], [])
    gone = [id for (id,) in connection.execute(_GONE, (w, w, then), binary=True)]
    moved = [id for (id,) in connection.execute(_MOVED, (w, w, then), binary=True)]
    # Last: a removal that is forgotten meanwhile is missing from `gone`, but this query notices it.
    if connection.execute(_REMEMBERED, (then, w)).fetchall() != [(True,)]:
        return Changes(position, True, [], [])
    there = set(moved)
    return Changes(position, False, moved, [id for id in gone if id not in there])


def _known(since: bytes | None, now: int, origin: str, place: str) -> int | None:
    """Return the number of a position, or None if it is unknown here."""
    number, _, rest = (since or b"").decode(errors="replace").partition("/")
    if rest not in (origin, f"{origin}/{place}") or not (number.isascii() and number.isdigit()):
        return None
    return int(number) if FIRST <= int(number) <= now else None


def without_place(position: bytes) -> bytes:
    """Return the same position without its place, to be stored in the database itself."""
    return b"/".join(position.split(b"/")[:2])
