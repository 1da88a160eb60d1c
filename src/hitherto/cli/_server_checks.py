"""The checks of `hitherto doctor` for a store on a server: does the server's setup support the store's guarantees?

The server is asked once, through `opening.server_of`; these functions judge its report. They use no SQL, and make and
change nothing.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ._doctor_checks import OK, PROBLEM, WARNING, Case, Finding
from ._stats import size

if TYPE_CHECKING:
    from ..backends.postgres.server_report import Server

_CROWDED = 0.8  # share of the connections that the server allows
_MANY_STANDBYS = 5  # standbys to name


def server(case: Case) -> Iterator[Finding]:
    """Check the server that the store is on, if it is on one."""
    if not case.place.is_server:
        return
    from ..opening import server_of  # noqa: PLC0415  # help needs none

    seen = server_of(case.place.location)
    for judge in _JUDGES:
        yield from judge(seen)


def _version(seen: "Server") -> Iterator[Finding]:
    what = f"PostgreSQL {seen.version}, {seen.encoding}, timeline {seen.timeline}"
    what += ", through a pooler" if seen.pooled else ""
    if seen.too_old:
        yield Finding("server", PROBLEM, f"{what}: too old", "PostgreSQL 14 is the oldest that will do")
    elif seen.encoding != "UTF8":
        hint = "make a database with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        yield Finding("server", PROBLEM, f"{what}: the database is not in UTF8", hint)
    elif seen.standby:
        hint = "name the primary, or all servers: the one that takes writes is found"
        yield Finding("server", WARNING, f"{what}: it follows another server, and can only be read", hint)
    elif not seen.takes_writes:
        hint = "ALTER DATABASE … RESET default_transaction_read_only, or wherever it was set"
        yield Finding("server", PROBLEM, f"{what}: it takes no writes, default_transaction_read_only is on", hint)
    elif seen.pooled and not seen.names_pooler:
        hint = "pooler=transaction in the address works with any; pooler=session with one that is set to sessions"
        yield Finding("server", PROBLEM, f"{what}, which the address does not name", hint)
    else:
        yield Finding("server", OK, what)


def _format(seen: "Server") -> Iterator[Finding]:
    what = f"format {seen.format}"
    if not seen.format:
        hint = "hitherto chat begins one, hitherto init makes one"
        yield Finding("tables", PROBLEM, "there is no store in this database", hint)
    elif seen.format < seen.known_format:
        what += f", and this hitherto makes it {seen.known_format}"
        yield Finding("tables", WARNING, what, "the next command that writes brings it up to date, if the role may")
    else:
        taken = f"tables take {size(seen.table_bytes)}, indexes {size(seen.index_bytes)}, of all workspaces"
        yield Finding("tables", OK, f"{what}; {taken}")


def _distribution(seen: "Server") -> Iterator[Finding]:
    if seen.distribution_problems:
        what = f"Citus {seen.citus}: {'; '.join(seen.distribution_problems)}"
        hint = "hitherto postgres distribute prints the statements that are missing; nothing is written until then"
        yield Finding("distribution", PROBLEM, what, hint)
    elif seen.unprotected:
        what = f"Citus {seen.citus}: {'; '.join(seen.unprotected)}"
        hint = "give such a role a workspace on a server of its own; a service says for itself whom a connection is for"
        yield Finding("distribution", PROBLEM, what, hint)
    elif seen.distributed:
        yield Finding("distribution", OK, f"Citus {seen.citus}: all tables by workspace, each workspace on one node")
    elif seen.citus is not None:
        what = f"Citus {seen.citus}, and the tables are on its coordinator alone"
        yield Finding("distribution", OK, f"{what}; hitherto postgres distribute spreads them")


def _tls(seen: "Server") -> Iterator[Finding]:
    hint = "sslmode=verify-full&sslrootcert=system in the address, or the path of the authority's certificate"
    if seen.tls is not None and seen.verified:
        yield Finding("encryption", OK, f"{seen.tls}, and the server's certificate is checked")
    elif seen.local:
        yield Finding("encryption", OK, seen.tls or "none, on this machine")
    elif seen.tls is not None:
        what = f"{seen.tls}, but the server's certificate is not checked: another machine could pass for it"
        yield Finding("encryption", WARNING, what, hint)
    else:
        what = "none: messages and the password can be read on the way"
        yield Finding("encryption", PROBLEM, what, hint)


def _role(seen: "Server") -> Iterator[Finding]:
    if seen.superuser or seen.bypasses_rls:
        why = "is a superuser" if seen.superuser else "has BYPASSRLS"
        what = f"{seen.role} {why}: row-level security does not bind it, so only hitherto keeps workspaces apart"
        yield Finding("role", WARNING, what, "use an ordinary one: hitherto postgres role NAME prints its rights")
    else:
        yield Finding("role", OK, f"{seen.role}, which row-level security binds to one workspace at a time")


def _durability(seen: "Server") -> Iterator[Finding]:
    off = [name for name, on in (("fsync", seen.fsync), ("full_page_writes", seen.full_page_writes)) if not on]
    if off:
        what = f"{' and '.join(off)} off: after a power cut acknowledged writes may be lost, or all data damaged"
        yield Finding("durability", PROBLEM, what, "set to on in postgresql.conf, and reload")
        return
    if seen.synchronous_commit == "off":
        yield Finding("durability", OK, "synchronous_commit is off on the server, and on for hitherto")
    waited, connected = seen.synchronous_standby_names, len(seen.standbys)
    if not waited and not connected:
        yield Finding("durability", OK, "on the server's disk; no standby follows it")
    elif not waited:
        what = f"commits wait for the server's own disk only; {_standbys(seen)}"
        hint = "after a failover the newest messages may be missing; synchronous_standby_names makes commits wait"
        yield Finding("durability", WARNING, what, hint)
    elif not connected:
        what = f"commits wait for standbys ({waited}), and none is connected"
        yield Finding("durability", PROBLEM, what, "start a standby, or change synchronous_standby_names")
    elif seen.synchronous_commit == "local":
        what = f"standbys are named ({waited}), but synchronous_commit is local: commits do not wait for them"
        yield Finding("durability", WARNING, what, "set synchronous_commit to on")
    else:
        yield Finding("durability", OK, f"commits wait for {waited}; {_standbys(seen)}")


def _standbys(seen: "Server") -> str:
    named = [
        one.name + (f" ({one.sync}, {one.state})" if one.state and one.sync else "")
        for one in seen.standbys[:_MANY_STANDBYS]
    ]
    more = len(seen.standbys) - len(named)
    return "followed by " + ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _upkeep(seen: "Server") -> Iterator[Finding]:
    if not seen.autovacuum:
        what = "autovacuum is off: deleted rows stay in the files, and tables grow"
        yield Finding("upkeep", WARNING, what, "set autovacuum to on in postgresql.conf, and reload")
    if seen.idle_slots:
        what = f"replication slots without a reader: {seen.idle_slots}; they keep the log, and deleted rows with it"
        yield Finding("upkeep", WARNING, what, "start their readers, or drop them: pg_drop_replication_slot")
    if not seen.checksums:
        what = "the server keeps no checksums of its pages: damage on its disk may go unnoticed"
        yield Finding("upkeep", OK, f"{what}; hitherto verify finds damage to the store")


def _connections(seen: "Server") -> Iterator[Finding]:
    what = f"{seen.connections} of {seen.max_connections} in use, by all clients"
    if seen.connections > _CROWDED * seen.max_connections:
        hint = "lower pool_size in the addresses, use a pooler, or raise max_connections"
        yield Finding("connections", WARNING, what, hint)
    else:
        yield Finding("connections", OK, what)


_JUDGES: tuple[Callable[["Server"], Iterator[Finding]], ...] = (
    _version, _format, _distribution, _tls, _role, _durability, _upkeep, _connections,
)  # fmt: skip
