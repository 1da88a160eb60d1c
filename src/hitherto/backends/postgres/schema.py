"""The tables on PostgreSQL, as the numbered steps that lead to them, and how a database is brought up to date.

Everything lies in a schema of its own, and every table but the record of the steps begins with `workspace_id`: each
key, each index, each condition. Nothing crosses workspaces: no foreign key, no sequence, no trigger. So the same
tables may be partitioned, or spread over machines, by that one column.

Each table has row-level security, forced on its owner too: a connection sees the rows of the workspace that it is bound
to, and none if it is bound to none, whatever SQL it runs. (A superuser is above that.)

Steps are taken one at a time under a lock on their record, so many processes may start at once. A step waits for other
locks for a moment only, and tries again, because later transactions would wait behind it. A released step is never
changed, and must not break the version before it, which may still be running. An index is created `online`, while other
processes write. If a process is killed meanwhile, the next one removes the invalid index.
"""

import hashlib
import random
import re
import time
from collections.abc import Callable

import psycopg
from msgspec import Struct
from psycopg import errors

from ...errors import Busy, CannotOpen, Denied, Hint, NewerFormat, NotAStore, ReadOnly
from . import feed, word_tables
from .connection import Connection

SCHEMA = "hitherto"
BOUND = "workspace_id = nullif(current_setting('hitherto.workspace_id', true), '')::uuid"

_LOCK_SECONDS = 0.2  # that a step waits for a lock, while other transactions wait behind it
_PAUSE_SECONDS = 0.5  # at most, until it tries again, so that they can proceed

# A row of a conversation is written with every message. Three things keep the indexes from being written with it: space
# on its page (the fill factor), `shelf`, which is the minute of `active_at`, and `moved`, which is 0 until a reader of
# the feed numbers the change. All three indexes over changing columns are over these two.
_TABLES = {
    "workspace": (
        "workspace_id uuid PRIMARY KEY, name bytea NOT NULL, identity bytea NOT NULL, retired bigint NOT NULL, "
        "forgotten xid8 NOT NULL, untidy xid8, untidy_at timestamptz, awaited bytea"
    ),
    "conversation": (
        "workspace_id uuid, id bytea, kind bytea NOT NULL, key bytea, version bigint NOT NULL, token bytea NOT NULL, "
        "generation bigint NOT NULL, head bigint, tips bytea NOT NULL, next_seq bigint NOT NULL, "
        "count bigint NOT NULL, size bigint NOT NULL, rewrites bigint NOT NULL, created_at bigint NOT NULL, "
        "active_at bigint NOT NULL, expires_at bigint, held boolean NOT NULL, data_key bytea NOT NULL, "
        "meta bytea NOT NULL, proof bytea NOT NULL, shelf bigint NOT NULL, moved bigint NOT NULL, stamp xid8 NOT NULL, "
        "PRIMARY KEY (workspace_id, id)"
    ),
    "gone": ("workspace_id uuid, conversation bytea, moved xid8 NOT NULL, PRIMARY KEY (workspace_id, conversation)"),
    "message": (
        "workspace_id uuid, number bigint, conversation bytea NOT NULL, seq bigint NOT NULL, parent bigint, "
        "link bigint, main boolean NOT NULL, role bytea NOT NULL, revision bigint NOT NULL, "
        "created_at bigint NOT NULL, body bytea, key bytea, token bytea NOT NULL, size bigint NOT NULL, "
        "loose smallint, PRIMARY KEY (workspace_id, number)"
    ),
    "pack": (
        "workspace_id uuid, first bigint, conversation bytea NOT NULL, parent bigint, count bigint NOT NULL, "
        "body bytea NOT NULL, PRIMARY KEY (workspace_id, first)"
    ),
    "attachment": (
        "workspace_id uuid, conversation bytea, name bytea, chunks bigint NOT NULL, staged_at bigint NOT NULL, "
        "PRIMARY KEY (workspace_id, conversation, name)"
    ),
    "chunk": (
        "workspace_id uuid, conversation bytea, name bytea, number bigint, body bytea NOT NULL, "
        "PRIMARY KEY (workspace_id, conversation, name, number)"
    ),
    "reference": (
        "workspace_id uuid, conversation bytea, name bytea, message bigint, "
        "PRIMARY KEY (workspace_id, conversation, name, message)"
    ),
    "item": (
        "workspace_id uuid, conversation bytea, key bytea, revision bigint NOT NULL, body bytea NOT NULL, "
        "PRIMARY KEY (workspace_id, conversation, key)"
    ),
    "tag": (
        "workspace_id uuid, value bytea, conversation bytea, message bigint, "
        "PRIMARY KEY (workspace_id, value, conversation, message)"
    ),
}
_INDEXES = (
    "CREATE UNIQUE INDEX conversation_by_key ON hitherto.conversation (workspace_id, kind, key) WHERE key IS NOT NULL",
    "CREATE INDEX conversation_by_activity ON hitherto.conversation (workspace_id, kind, shelf)",
    "CREATE INDEX conversation_by_creation ON hitherto.conversation (workspace_id, kind, created_at, id)",
    (
        "CREATE INDEX conversation_by_expiry ON hitherto.conversation (workspace_id, kind, expires_at) "
        "WHERE expires_at IS NOT NULL"
    ),
    "CREATE INDEX conversation_by_move ON hitherto.conversation (workspace_id, moved)",
    "CREATE INDEX gone_by_move ON hitherto.gone (workspace_id, moved)",
    "CREATE UNIQUE INDEX message_by_seq ON hitherto.message (workspace_id, conversation, seq)",
    "CREATE UNIQUE INDEX message_by_key ON hitherto.message (workspace_id, conversation, key) WHERE key IS NOT NULL",
    "CREATE INDEX message_loose ON hitherto.message (workspace_id, loose, number) WHERE loose IS NOT NULL",
    "CREATE INDEX pack_by_conversation ON hitherto.pack (workspace_id, conversation)",
    "CREATE INDEX reference_by_message ON hitherto.reference (workspace_id, conversation, message)",
    "CREATE INDEX attachment_by_age ON hitherto.attachment (workspace_id, staged_at)",
    "CREATE INDEX tag_by_conversation ON hitherto.tag (workspace_id, conversation, message, value)",
)
_OPAQUE = ("message", "pack", "chunk")  # their bodies are compressed or sealed already
_SETTINGS = {
    "conversation": "fillfactor = 70",
    "workspace": "fillfactor = 50",  # a purge updates its row, which then needs no new page on a full disk
}


class Step(Struct, frozen=True):
    """One step, in a transaction of its own.

    An `online` step runs its statements outside of a transaction, and each may be repeated: CREATE INDEX CONCURRENTLY
    IF NOT EXISTS creates an index while other processes write."""

    name: str
    statements: tuple[str, ...]
    online: bool = False


def statements(partitions: int = 0) -> tuple[str, ...]:
    """Return the statements of the first step: all tables. With `partitions`, each is partitioned by workspace."""
    made: list[str] = []
    for name, columns in {**_TABLES, **word_tables.TABLES}.items():
        made += [*_table(name, columns, partitions), *_security(name)]
    made += [f"ALTER TABLE hitherto.{name} ALTER COLUMN body SET STORAGE EXTERNAL" for name in _OPAQUE]
    return (*made, *_INDEXES, *word_tables.INDEXES)


def _table(name: str, columns: str, partitions: int) -> list[str]:
    settings = f" WITH ({_SETTINGS[name]})" if name in _SETTINGS else ""
    if not partitions:
        return [f"CREATE TABLE hitherto.{name} ({columns}){settings}"]
    made = [f"CREATE TABLE hitherto.{name} ({columns}) PARTITION BY HASH (workspace_id)"]
    for n in range(partitions):
        part = f"hitherto.{name}_{n}"
        split = f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {n})"
        made.append(f"CREATE TABLE {part} PARTITION OF hitherto.{name} {split}{settings}")
        made.append(f"ALTER TABLE {part} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")  # no role reads it
    return made


def _security(name: str) -> list[str]:
    return [
        f"ALTER TABLE hitherto.{name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY bound ON hitherto.{name} USING ({word_tables.visible(name, BOUND)}) WITH CHECK ({BOUND})",
    ]


# Nothing that a server counts by itself. What the first format compared with ids of transactions, `stamp`, `forgotten`,
# `untidy` and `awaited`, stays for its processes: `feed` and `erasure` say how.
_OWN_COUNTS = (
    f"ALTER TABLE hitherto.workspace ADD feed bigint NOT NULL DEFAULT {feed.FIRST}",
    "ALTER TABLE hitherto.workspace ADD removals bigint NOT NULL DEFAULT 0",
    "ALTER TABLE hitherto.workspace ADD scrubbed bigint NOT NULL DEFAULT 0",
    "ALTER TABLE hitherto.workspace ADD evidence bytea",
    "ALTER TABLE hitherto.conversation ALTER stamp SET DEFAULT '0'",
)

MIGRATIONS: tuple[Step, ...] = (
    Step("the tree of messages", statements()),
    Step("counts of the workspace's own", _OWN_COUNTS),
)

TABLES = (*_TABLES, *word_tables.TABLES)  # the tables whose rows belong to workspaces

_RECORD = (
    "CREATE TABLE hitherto.migration (version integer PRIMARY KEY, name text NOT NULL, "
    "applied_at timestamptz NOT NULL DEFAULT now())"
)


def version(connection: Connection) -> int:
    """Return how many steps were taken in this database; 0 without a store. Refuses a foreign or newer schema."""
    [(recorded, used)] = connection.execute(_THERE).fetchall()
    if not recorded:
        if used:
            raise _foreign()
        return 0
    try:
        taken = connection.execute("SELECT version, name FROM hitherto.migration ORDER BY version").fetchall()
    except (errors.UndefinedColumn, errors.WrongObjectType):
        raise _foreign() from None
    except errors.InsufficientPrivilege:
        raise _no_rights() from None
    # The record is created with the first step, so it is never empty.
    known = [(n, step.name) for n, step in enumerate(MIGRATIONS, 1)]
    if not taken or taken[: len(known)] != known[: len(taken)]:
        raise _foreign()
    if len(taken) > len(known):
        raise NewerFormat(f"the database has format {len(taken)}; this hitherto knows up to {len(known)}")
    return len(taken)


_THERE = (
    "SELECT t.migration IS NOT NULL, t.migration IS NULL AND ("
    + " OR ".join(
        f"EXISTS (SELECT 1 FROM {catalogue} WHERE {of} = to_regnamespace('hitherto'))"
        for catalogue, of in (("pg_class", "relnamespace"), ("pg_proc", "pronamespace"), ("pg_type", "typnamespace"))
    )
    + ") FROM (SELECT to_regclass('hitherto.migration')) AS t (migration)"
)


def _foreign() -> NotAStore:
    what = "the database has a schema called hitherto that is not ours"
    return NotAStore(what, hint="it was not touched; use another database, or rename that schema")


def _no_rights() -> Denied:
    hint = "grant it: hitherto postgres role prints the statements"
    return Denied("this role has no rights on the schema hitherto", hint=hint)


def _nothing(hint: str) -> CannotOpen:
    error = CannotOpen("there is no store in this database", hint=hint)
    error.missing = True
    return error


def check_current(connection: Connection) -> None:
    """Refuse a database that needs a migration before it can be used."""
    found = version(connection)
    if found == 0:
        raise _nothing(Hint("no-store", "open it once for writing, which makes one"))
    if found < len(MIGRATIONS):
        hint = "open it once for writing, which brings it up to date"
        raise ReadOnly(f"the database has format {found}, which is an older one", hint=hint)


def migrate(
    connection: Connection,
    another: Callable[[], Connection],
    *,
    create: bool,
    partitions: int = 0,
    seconds: float = 30.0,
) -> None:
    """Bring the database to the newest version. Any number of processes may run this at once.

    `another` opens one more connection, for steps that need two."""
    deadline = time.monotonic() + seconds
    while (now := version(connection)) < len(MIGRATIONS):
        if now == 0 and not create:
            raise _nothing(Hint("no-store", "open it with create=True, which makes one"))
        step = MIGRATIONS[now]
        if now == 0 and partitions:
            step = Step(step.name, statements(partitions))
        try:
            if step.online:
                with another() as recorder:
                    _take(recorder, step, now, by=connection)
            else:
                _take(connection, step, now, by=connection)
        except errors.InsufficientPrivilege as error:
            text = "let a role that may do it open the store once: it needs CREATE on the database"
            hint = Hint("no-right-to-make-tables", text)
            raise Denied("this role may not make the tables, or change them", hint=hint) from error
        except _IN_THE_WAY as error:
            if time.monotonic() > deadline:
                text = "another process may be at it, or holds a lock for long; try again, or raise timeout_seconds"
                hint = Hint("tables-are-locked", text)
                raise Busy("the database could not be brought up to date: others are in the way", hint=hint) from error
            time.sleep(random.random() * _PAUSE_SECONDS)


_IN_THE_WAY: tuple[type[psycopg.Error], ...] = (
    errors.LockNotAvailable,
    errors.UniqueViolation,  # two processes created the schema, or a table, at once
    errors.DuplicateSchema,
    errors.DuplicateTable,
    errors.DuplicateObject,
    errors.DeadlockDetected,
    errors.InternalError_,  # "tuple concurrently updated"
)


def _take(recorder: Connection, step: Step, now: int, *, by: Connection) -> None:
    """Take one step, unless another process has taken it meanwhile.

    The record of steps is locked until the step is done. So only one process takes it, and it is recorded only if the
    lock was held all the time."""
    with recorder.transaction():
        recorder.execute(f"SET LOCAL lock_timeout = {_LOCK_SECONDS * 1000:.0f}")
        recorder.execute("SET LOCAL statement_timeout = 0")
        recorder.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        if now == 0:
            _make_record(recorder)
        recorder.execute("LOCK TABLE hitherto.migration IN SHARE ROW EXCLUSIVE MODE")
        if now and version(recorder) != now:
            return
        for statement in step.statements:
            if step.online:
                _clear(by, statement)
            by.execute(statement)
        recorder.execute("INSERT INTO hitherto.migration (version, name) VALUES (%s, %s)", (now + 1, step.name))


def _make_record(connection: Connection) -> None:
    """Create the record of steps. If two processes do so at once, one of them gets an error.

    An existing schema, which an administrator created, is used: then this role needs no right to create one."""
    if connection.execute("SELECT to_regnamespace('hitherto') IS NULL").fetchall() == [(True,)]:
        connection.execute("CREATE SCHEMA hitherto")
    connection.execute(_RECORD)


_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS (\w+)")


def _clear(connection: Connection, statement: str) -> None:
    """Drop an invalid index that a killed process left: IF NOT EXISTS would take it for the finished one."""
    named = _INDEX.match(statement)
    if named is None:
        return
    query = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(%s) AND NOT indisvalid"
    if connection.execute(query, (f"hitherto.{named[1]}",)).fetchall():
        connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS hitherto.{named[1]}")


def rights(role: str, workspace_id: str | None = None, *, read_only: bool = False) -> list[str]:
    """Return the statements that give a role exactly its rights on our tables, whatever it had before.

    With a workspace the rights cover the rows of that one alone, and no setting undoes this."""
    name = '"' + role.replace('"', '""') + '"'
    verbs = "SELECT" if read_only else "SELECT, INSERT, UPDATE, DELETE"
    tables = ", ".join(f"hitherto.{table}" for table in TABLES)
    made = [f"GRANT USAGE ON SCHEMA hitherto TO {name}", f"GRANT SELECT ON hitherto.migration TO {name}"]
    made += [f"REVOKE ALL ON {tables} FROM {name}", f"GRANT {verbs} ON {tables} TO {name}"]
    policy = f'"only {hashlib.sha256(role.encode()).hexdigest()[:24]}"'  # a role's name may be too long
    made += [f"DROP POLICY IF EXISTS {policy} ON hitherto.{table}" for table in TABLES]
    for table in TABLES if workspace_id is not None else ():
        own = f"workspace_id = '{workspace_id}'::uuid"
        only = f"USING ({word_tables.visible(table, own)}) WITH CHECK ({own})"
        made.append(f"CREATE POLICY {policy} ON hitherto.{table} AS RESTRICTIVE TO {name} {only}")
    return made
