"""Errors of psycopg, mapped to errors of the store: what happened, and what to do about it.

They contain no written values and no password. For errors while connecting, libpq has no code, only the server's text.
"""

import re
from typing import TypeVar

import psycopg
from psycopg import errors

from ...errors import (
    Busy,
    CannotOpen,
    Damaged,
    Denied,
    Hint,
    HithertoError,
    InvalidArgument,
    NotAStore,
    ReadOnly,
    StorageError,
    StorageFull,
    Unavailable,
)

T = TypeVar("T", bound=Exception)


class LostRaceError(Exception):
    """Another writer was faster in a way that no lock or index shows: start over."""


# A statement that changes rows in its WITH, and fails on a node of a Citus cluster, has lost its code on the way.
_LOST_CODES: dict[str, type[psycopg.Error]] = {
    "duplicate key value violates unique constraint": errors.UniqueViolation,
    "canceling statement due to lock timeout": errors.LockNotAvailable,
    "deadlock detected": errors.DeadlockDetected,
    "No space left on device": errors.DiskFull,
    "terminating connection due to": errors.AdminShutdown,
    "the database system is": errors.CannotConnectNow,
    "server closed the connection unexpectedly": errors.ConnectionFailure,
    "connection to the remote node": errors.ConnectionFailure,
    "could not commit transaction for shard": errors.ConnectionFailure,  # the node went during the commit
}


def with_its_code(error: T) -> T | psycopg.Error:
    """Return the error as the node that raised it meant it."""
    if not isinstance(error, errors.InternalError_):
        return error
    for words, kind in _LOST_CODES.items():
        if words in str(error):
            return kind(str(error))
    return error


def may_pass(error: Exception) -> bool:
    """Tell whether a retry may succeed: after races, deadlocks, lost connections, restarts and failovers."""
    if isinstance(error, errors.UniqueViolation | LostRaceError):
        return True
    if isinstance(error, ReadOnly | Unavailable):  # the server is no longer the primary, or not yet
        return True
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return True
    if isinstance(error, psycopg.Error) and error.sqlstate in _LIMITS:
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate
    if state is None:
        return not _is_refusal(error)
    return state[:2] in ("08", "40", "57") or state == "53300"


# Limits that an administrator has set: on waiting for locks, and on transactions in which nothing happens.
_LIMITS = ("55P03", "25P03", "25P04")
_CHECKED = "sslrootcert names the certificate of the authority that has signed it, or says system"
_TLS = {  # libpq's text, its meaning, and the hint
    "does not support SSL": (
        "the server does not encrypt",
        "set up TLS on the server; sslmode=disable in the address does without, in clear",
    ),
    "certificate verify failed": ("the server's certificate is not signed by anybody we trust", _CHECKED),
    "root certificate file": ("there is no certificate to check the server's with", _CHECKED),
    "server certificate for": (
        "the server's certificate is for another name",
        "name the server as its certificate does; somebody else may have answered",
    ),
    "invalid sslmode value": ("sslmode is not one that there is", "require, or better verify-full with sslrootcert"),
}
_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "Name or service not known",
    "no pg_hba.conf entry",
    "permission denied for database",
    "is not permitted to log in",
    "definition of service",
    *_TLS,
)
TOO_MANY = ("too many clients already", "too many connections for", "remaining connection slots are reserved")


def _is_refusal(error: psycopg.OperationalError) -> bool:
    """Tell whether the server refused the connection. libpq has no code for that, only the server's text."""
    said = str(error)
    return any(words in said for words in _REFUSALS)


_POOLED = "a pooler that hands out transactions stands in between: pooler=transaction in the address"
_KINDS: dict[str, tuple[type[HithertoError], str, str]] = {
    "28": (
        CannotOpen,
        "the server refuses the user or the password",
        "check both; PGPASSWORD or ~/.pgpass may hold one",
    ),
    "3D": (CannotOpen, "there is no such database", "create it first: createdb NAME"),
    "42501": (Denied, "this role may not do it", "hitherto postgres role prints the statements that give the rights"),
    "25006": (ReadOnly, "the server is read-only", "it is a standby, or an administrator has made it read-only"),
    "53100": (StorageFull, "the server's disk is full", "free space on the server; purging goes on working"),
    "53300": (Busy, "the server has too many connections", "lower pool_size, or raise max_connections"),
    "53": (Unavailable, "the server is out of resources", "look at its log"),
    "26000": (Unavailable, "what was prepared is gone", _POOLED),
    "42P05": (Unavailable, "what is to be prepared is there already", _POOLED),
    "57014": (
        Busy,
        "something took too long, or had to wait for others for too long",
        Hint(
            "statement-timeout",
            "try again; a larger timeout_seconds waits longer, unless the server's statement_timeout is in the way",
        ),
    ),
    "54": (
        InvalidArgument,
        "something is too long for the server",
        "a label, a key or a project has to fit into an index: 2,000 bytes always do",
    ),
    "55P03": (Busy, "others held a lock for too long", "try again; a larger timeout_seconds waits longer"),
    "25P0": (Busy, "the server ended a transaction that took too long", "try again; its limits may be too narrow"),
    "40": (Busy, "others were in the way, again and again", "try again"),
    "23505": (Busy, "others were in the way, again and again", "try again"),
    "3F": (NotAStore, "the tables of the store are gone", "was the schema dropped while the store was open?"),
    "42P01": (NotAStore, "the tables of the store are gone", "was the schema dropped while the store was open?"),
    "42703": (NotAStore, "the tables are not as this hitherto knows them", "was the schema changed by hand?"),
    "XX001": (Damaged, "the server says that its data is damaged", "look at its log; restore from a backup"),
    "XX002": (Damaged, "the server says that an index is damaged", "look at its log; REINDEX may help"),
}


def map_error(error: Exception, where: str) -> HithertoError:
    """Return the error of the store for an error of psycopg. It contains no written values."""
    if isinstance(error, HithertoError):
        return error
    if isinstance(error, LostRaceError):
        return Busy("others were in the way, again and again")
    state = getattr(error, "sqlstate", None) or ""
    if state == "42501" and "row-level security" in str(error):
        hint = (
            "it may be for another one; or a pooler stands in between that is not set to sessions: pooler=transaction"
        )
        return Denied(f"{where}: this role may not do it in this workspace", hint=hint)
    for code in (state, state[:4], state[:2]):
        if code in _KINDS:
            kind, what, hint = _KINDS[code]
            return kind(f"{where}: {what}", hint=hint)
    if isinstance(error, psycopg.OperationalError) and (not state or state[:2] in ("08", "57")):
        return _unreachable(error, where)
    return StorageError(f"{where}: the database does not do it: {type(error).__name__} {state}".rstrip())


def _unreachable(error: psycopg.OperationalError, where: str) -> HithertoError:
    said = " ".join(str(error).split())[:300]  # about the connection; it contains no rows
    if "authentication failed" in said or "no password supplied" in said:
        return CannotOpen(f"{where}: the server refuses the user or the password", hint=_KINDS["28"][2])
    for words, (what, hint) in _TLS.items():
        if words in said:
            return CannotOpen(f"{where}: {what}", hint=hint)
    if "too many connections for" in said:
        hint = "lower pool_size, or raise the CONNECTION LIMIT of the role or the database"
        return Busy(f"{where}: this role, or the database, has too many connections", hint=hint)
    if any(words in said for words in TOO_MANY):
        return Busy(f"{where}: {_KINDS['53300'][1]}", hint=_KINDS["53300"][2])
    if found := re.search('database "(.*)" does not exist', said):
        return CannotOpen(f"{where}: there is no such database", hint=f"create it first: createdb {found[1]}")
    if re.search('role ".*" does not exist', said):
        return CannotOpen(f"{where}: there is no such user", hint="create it, or name another one in the address")
    if "no pg_hba.conf entry" in said or "is not permitted to log in" in said:
        hint = "the server's pg_hba.conf says who may come from where; a role needs LOGIN"
        return CannotOpen(f"{where}: the server does not let this user in from here", hint=hint)
    if "definition of service" in said:
        return CannotOpen(f"{where}: there is no such service", hint="PGSERVICEFILE or ~/.pg_service.conf defines them")
    if "permission denied for database" in said:
        return Denied(f"{where}: this role may not connect to the database", hint="it needs CONNECT on it")
    return Unavailable(f"{where}: {said or 'the server does not answer'}")


def clear_text_error(where: str) -> CannotOpen:
    """Return the error for an unencrypted connection where encryption is required."""
    what, hint = _TLS["does not support SSL"]
    return CannotOpen(f"{where}: {what}", hint=hint)


def map_connect_error(error: Exception, where: str) -> HithertoError:
    """Return the error of the store for an error while connecting, before anything was written."""
    raised = map_error(error, where)
    if raised.hint == Unavailable.hint:
        raised.replace_hint("check the address, and whether the server is running")
    return raised
