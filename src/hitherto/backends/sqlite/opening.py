"""Opening a SQLite file: settings of a connection, the format check, migrations, workspaces.

`prepare_writer` and `prepare_reader` run on every new connection of a pool. They are functions, no methods of the
backend: a pool that referred to its backend would be freed late.
"""

import os
import time

import apsw

from ...errors import Damaged, Hint, NewerFormat, NotAStore, NotFound, ReadOnly
from ...ids import new_conversation_id
from .connections import Pool, ensure_wal, transaction
from .older_formats import READABLE_FROM, complete
from .rebuild import drop_copies
from .rows import fetch_all, fetch_first, fetch_one
from .schema import APPLICATION_ID, MIGRATIONS

PER_CONNECTION = (
    "synchronous = FULL",
    "foreign_keys = ON",
    "secure_delete = ON",
    "wal_autocheckpoint = 2000",  # pages: a checkpoint costs two syncs, and writes a page that changed often once
    "journal_size_limit = 8388608",  # bytes, as many: a WAL that has to grow again is slower to sync
)


def prepare_writer(connection: apsw.Connection) -> None:
    """Check the file and set the pragmas of a connection, before its first use."""
    _check_ours(connection)
    for pragma in PER_CONNECTION:
        connection.execute(f"PRAGMA {pragma}").fetchall()


def prepare_reader(connection: apsw.Connection) -> None:
    """Prepare a connection that does not write: a file of an older format looks like one of this format."""
    prepare_writer(connection)
    complete(connection, _check_ours(connection), MIGRATIONS)


def _check_ours(connection: apsw.Connection) -> int:
    """Return the schema version of a store, 0 for an empty file. Raises `NotAStore`, `NewerFormat` or `Damaged`."""
    if connection.in_transaction:
        return _read_format(connection)
    connection.execute("BEGIN")  # one snapshot: another process may be creating the store at this moment
    try:
        return _read_format(connection)
    finally:
        _end_transaction(connection)


def _end_transaction(connection: apsw.Connection) -> None:
    """Roll the transaction back, unless an error has ended it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _read_format(connection: apsw.Connection) -> int:
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application != APPLICATION_ID:
        tables = fetch_one(connection, "SELECT count(*) FROM sqlite_schema")[0]
        if application or version or tables:
            raise NotAStore(f"{connection.filename} is a SQLite database of another program")
    elif version < 0:
        raise Damaged(f"{connection.filename} has no format that could be")
    elif version > len(MIGRATIONS):
        raise NewerFormat(f"{connection.filename} has format {version}; this hitherto knows up to {len(MIGRATIONS)}")
    return int(version)


def check_current(connection: apsw.Connection) -> None:
    """Refuse a file that cannot be read before a migration writes to it."""
    version = _check_ours(connection)
    if version == 0:
        raise NotAStore(f"{connection.filename} is empty")
    if version < READABLE_FROM:
        hint = "open it once for writing, which brings it up to date"
        raise ReadOnly(f"{connection.filename} has format {version}, which is an older one", hint=hint)


def migrate(connection: apsw.Connection, timeout_seconds: float) -> None:
    """Bring the file to the newest version, each step in one transaction with its record."""
    if _check_ours(connection) == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()  # only an empty file can choose it
    ensure_wal(connection, timeout_seconds)
    # With foreign keys on, a table that another one refers to cannot be dropped. The pragma does nothing inside a
    # transaction.
    connection.execute("PRAGMA foreign_keys = OFF").fetchall()
    while connection.pragma("user_version") < len(MIGRATIONS):
        with transaction(connection):
            version = _check_ours(connection)  # another process may have been faster
            if version < len(MIGRATIONS):
                name, statements = MIGRATIONS[version]
                fetch_all(connection, "SELECT 1 FROM sqlite_schema LIMIT 1")  # ALTER would use an old schema
                drop_copies(connection)  # the copies lack what this step adds: the rebuild starts over
                for statement in statements:
                    connection.execute(statement)
                record = (version + 1, name, time.time_ns() // 1000)
                connection.execute("INSERT INTO migration VALUES (?, ?, ?)", record)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", version + 1)
    connection.execute("PRAGMA foreign_keys = ON").fetchall()


def find_workspace(connection: apsw.Connection, name: str) -> tuple[int, bytes]:
    found = fetch_first(connection, "SELECT place, id FROM workspace WHERE name = ?", (name,))
    if found is None:
        names = [other for (other,) in fetch_all(connection, "SELECT name FROM workspace LIMIT 2")]
        only = f"; its only one is {names[0]!r:.60}" if len(names) == 1 else ""  # a copy often has a single one
        hint = Hint("no-workspace", "the store has no workspace of that name{only}", only=only)
        raise NotFound("workspace", [name], hint=hint)
    return found[0], found[1]


def ensure_workspace(connection: apsw.Connection, name: str, identity: bytes | None) -> tuple[int, bytes]:
    query = "SELECT place, id FROM workspace WHERE name = ?"
    found = fetch_first(connection, query, (name,))
    if found is None:
        insert = (  # identities are unique: the search file tells workspaces apart by them
            "INSERT OR IGNORE INTO workspace (name, id, retired) "
            "SELECT ?1, iif(EXISTS (SELECT 1 FROM workspace WHERE id = ?2), ?3, ?2), -1"
        )
        new = new_conversation_id()
        connection.execute(insert, (name, identity or new, new))
        found = fetch_one(connection, query, (name,))
    return found[0], found[1]


def workspaces(path: str | os.PathLike[str], *, timeout_seconds: float = 30.0) -> list[str]:
    """Return the names of the workspaces in an existing file."""
    pool = Pool(path, prepare_writer, vfs=None, timeout_seconds=timeout_seconds, read_only=True, create=False)
    try:
        with pool.lease() as connection:
            check_current(connection)
            return [name for (name,) in fetch_all(connection, "SELECT name FROM workspace ORDER BY name")]
    finally:
        pool.close(untouched=True)
