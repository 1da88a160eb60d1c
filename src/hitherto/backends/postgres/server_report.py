"""A report about a server, for people who ask whether it is set up correctly.

It uses a connection of its own, without a workspace. So it works before there is a store, without the key, and while
the server takes no writes. A value that the role may not see is unknown, and never guessed.
"""

from contextlib import suppress

import psycopg
from msgspec import Struct

from ...errors import Denied, HithertoError
from .address import Address
from .connection import Connection
from .connections import OLDEST, Shared
from .distribution import missing_statements, read_distribution, unprotected_shards
from .error_mapping import map_connect_error
from .schema import MIGRATIONS, version

_SETTINGS = (
    "server_version",
    "server_encoding",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "autovacuum",
    "max_connections",
    "data_checksums",
    "default_transaction_read_only",
)
_ROLE = "SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
_STANDBYS = "SELECT application_name, state, sync_state FROM pg_stat_replication ORDER BY 1"
_SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE NOT active"
_CLIENTS = "SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL"
_SIZES = (
    "SELECT coalesce(sum(pg_table_size(c.oid)), 0)::bigint, coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'hitherto' AND c.relkind = 'r'"
)
_SIZES_EVERYWHERE = (
    "SELECT coalesce(sum(citus_table_size(c.oid)), 0)::bigint, "
    "coalesce(sum(citus_total_relation_size(c.oid) - citus_table_size(c.oid)), 0)::bigint "
    "FROM pg_class c JOIN pg_dist_partition p ON p.logicalrelid = c.oid WHERE c.relnamespace = 'hitherto'::regnamespace"
)
_PLACE = (
    "SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN timeline_id "
    "ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END FROM pg_control_checkpoint()"
)


class Standby(Struct, frozen=True):
    """A server that follows this one. `state` and `sync` are None where the role may not see them."""

    name: str
    state: str | None
    sync: str | None  # sync, quorum, potential or async


class Server(Struct, frozen=True):
    """The settings of a server, and the properties of the connection to it."""

    version: str
    too_old: bool
    encoding: str
    pooled: bool  # a pooler stands between this process and the server
    names_pooler: bool  # the address names the pooler
    local: bool  # a socket, or this machine
    tls: str | None  # the protocol of this connection, if it is encrypted
    verified: bool  # is it checked whose server it is?
    role: str
    superuser: bool
    bypasses_rls: bool
    standby: bool  # it follows another, and takes no writes
    takes_writes: bool  # or an administrator has said otherwise
    timeline: int
    format: int  # of our tables; 0 if there are none
    known_format: int  # the newest that this hitherto knows
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    synchronous_standby_names: str
    standbys: tuple[Standby, ...]
    idle_slots: int  # replication slots that nobody reads: they keep the log, and old rows
    autovacuum: bool
    checksums: bool
    connections: int
    max_connections: int
    table_bytes: int
    index_bytes: int
    citus: str | None = None  # the version of the extension, if it is there
    distributed: bool = False  # Citus spreads our tables over its nodes
    distribution_problems: tuple[str, ...] = ()  # reasons for which nothing can be written to them
    unprotected: tuple[str, ...] = ()  # where row-level security has not reached the nodes


def look(url: str) -> Server:
    """Look at the server at this address; what keeps us from it is an error."""
    address = Address(url, read_only=True)
    try:
        with _connection(url, address) as connection:
            return _read_server(connection, address)
    except psycopg.Error as error:
        raise map_connect_error(error, address.shown) from error


def distribute(url: str, *, run: bool) -> list[str]:
    """Return the statements that spread the tables over a cluster, as far as they are left to run, and run them."""
    address = Address(url)
    try:
        with _connection(url, address) as connection:
            left = missing_statements(connection)
            [(_, superuser, bypasses)] = connection.execute(_ROLE).fetchall()
            if run and not (superuser or bypasses):
                hint = "name a superuser in the address, or let one run the statements that are printed without --run"
                raise Denied(
                    "rows are copied to the nodes, and row-level security hides them from this role", hint=hint
                )
            for statement in left if run else ():
                connection.execute(statement)
            return left
    except psycopg.Error as error:
        raise map_connect_error(error, address.shown) from error


def _connection(url: str, address: Address) -> Connection:
    """Of several servers, the one that a store would use; if there is none, whichever answers."""
    if len(address.hosts) > 1:
        with suppress(psycopg.Error, HithertoError):
            return Shared(Address(url)).enter()
    return psycopg.connect(address.conninfo, autocommit=True)


def _read_server(connection: Connection, address: Address) -> Server:
    def all_of(query: str) -> list[tuple[object, ...]]:
        return list(connection.execute(query).fetchall())

    [settings] = all_of("SELECT " + ", ".join(f"current_setting('{name}')" for name in _SETTINGS))
    said = dict(zip(_SETTINGS, map(str, settings), strict=True))
    [(role, superuser, bypasses)] = all_of(_ROLE)
    [(standby, timeline)] = connection.execute(_PLACE).fetchall()
    distribution = read_distribution(connection)
    spread = distribution is not None and distribution.is_used
    [(tables, indexes)] = connection.execute(_SIZES_EVERYWHERE if spread else _SIZES).fetchall()
    return Server(
        version=said["server_version"],
        too_old=connection.info.server_version < OLDEST,
        encoding=said["server_encoding"],
        pooled=connection.execute("SELECT pg_backend_pid()").fetchall() != [(connection.info.backend_pid,)],
        names_pooler=address.names_pooler,
        local=address.local,
        tls=_tls(connection),
        verified=address.verified,
        role=str(role),
        superuser=bool(superuser),
        bypasses_rls=bool(bypasses),
        standby=bool(standby),
        takes_writes=said["default_transaction_read_only"] == "off",
        timeline=int(timeline),
        format=version(connection),
        known_format=len(MIGRATIONS),
        fsync=said["fsync"] == "on",
        full_page_writes=said["full_page_writes"] == "on",
        synchronous_commit=said["synchronous_commit"],
        synchronous_standby_names=said["synchronous_standby_names"],
        standbys=tuple(Standby(*found) for found in connection.execute(_STANDBYS).fetchall()),
        idle_slots=connection.execute(_SLOTS).fetchall()[0][0],
        autovacuum=said["autovacuum"] == "on",
        checksums=said["data_checksums"] == "on",
        connections=connection.execute(_CLIENTS).fetchall()[0][0],
        max_connections=int(said["max_connections"]),
        table_bytes=tables,
        index_bytes=indexes,
        citus=None if distribution is None else distribution.version,
        distributed=spread,
        distribution_problems=() if distribution is None else tuple(distribution.problems()),
        unprotected=() if distribution is None else tuple(unprotected_shards(connection, distribution)),
    )


def _tls(connection: Connection) -> str | None:
    """Return the TLS protocol of this end of the connection; the end beyond a pooler is unknown."""
    if not connection.pgconn.ssl_in_use:
        return None
    found = connection.execute("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchall()
    return str(found[0][0]) if found and found[0][0] else "TLS"
