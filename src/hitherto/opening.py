"""Open a store: choose and load the backend of a location.

The location decides the backend, which is loaded only then. All arguments are checked before a file is touched, and the
backend is closed again if the key does not fit.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from ._engine.committer import READS_ONLY
from ._engine.context import MAX_ATTACHMENT, MAX_WRITE_BYTES
from ._system.locations import find, is_server, path_of
from .backend import WORKSPACE, Backend
from .errors import CannotOpen, InvalidArgument, KeyUnavailable, MissingExtra
from .model import encodable
from .store import Store, as_key

if TYPE_CHECKING:
    from .backends.postgres.server_report import Server
    from .keys import Key
    from .sanitiser import Sanitiser

__all__ = ["open"]


_ANSWER_SECONDS = 5.0  # that a server may take to answer


def open(
    location: str | os.PathLike[str] | None = None,
    *,
    key: "Key | bytes | None" = None,
    workspace: str = "default",
    timeout_seconds: float = 30.0,
    max_write_bytes: int = MAX_WRITE_BYTES,
    max_attachment: int = MAX_ATTACHMENT,
    max_conversation_bytes: int | None = None,
    maintenance: bool = True,
    quarantine_days: float | None = None,
    read_only: bool = False,
    create: bool = True,
    sanitiser: "Sanitiser | None" = None,
    vfs: str | None = None,
    clock: Callable[[], int] | None = None,
) -> Store:
    """Open a store. It is created if it does not exist, and so is the workspace in it, unless `create` is False.

    `location` is a path, `sqlite:///absolute/path`, `postgresql://…`, or `memory:`. `key` opens a sealed store, and
    seals one that is created now; a sealed store without its key, or with another one, is `KeyUnavailable`. `workspace`
    names the tenant. `timeout_seconds` is how long a write waits for other processes. `max_write_bytes` limits the text
    and JSON of one write, `max_attachment` the bytes of one binary block, `max_conversation_bytes` those of a
    conversation, attachments included: a write that would exceed it is `ConversationFull`. With `maintenance=False`
    nothing runs in the background, and the caller calls `maintain`. With `quarantine_days`, maintenance purges records
    that have been in quarantine for so long; without, only a command does. With `read_only` an existing store is read
    without a trace: no file is created, no byte is written, nothing runs in the background, and a write raises
    `ReadOnly`. A `sanitiser` removes secrets from all messages before this store writes them. `vfs` names an SQLite
    VFS; `clock` returns microseconds since 1970; both are for tests.
    """
    if not isinstance(workspace, str) or not workspace or not encodable(workspace):
        raise InvalidArgument("the workspace is a name, and not empty")
    if not isinstance(timeout_seconds, (int, float)) or not 0 <= timeout_seconds < float("inf"):
        raise InvalidArgument("timeout_seconds is a number from 0 up")
    for name, limit in (("max_write_bytes", max_write_bytes), ("max_attachment", max_attachment)):
        if type(limit) is not int or limit < 1:
            raise InvalidArgument(f"{name} is a number from 1 up")
    if max_conversation_bytes is not None and (type(max_conversation_bytes) is not int or max_conversation_bytes < 1):
        raise InvalidArgument("max_conversation_bytes is a number from 1 up, or None")
    if quarantine_days is not None and not (
        isinstance(quarantine_days, (int, float)) and 0 <= quarantine_days < 1e6  # also refuses NaN
    ):
        raise InvalidArgument("quarantine_days is a number from 0 up")
    checked = None if key is None else as_key(key)
    place = find() if location is None else location
    backend = _backend(place, workspace, timeout_seconds, vfs, read_only=read_only, create=create)
    try:
        store = Store(
            backend,
            key=checked,
            clock=clock,
            max_write_bytes=max_write_bytes,
            max_attachment=max_attachment,
            max_conversation_bytes=max_conversation_bytes,
            maintenance=maintenance and not read_only,
            quarantine_days=quarantine_days,
            sanitiser=sanitiser,
        )
    except KeyUnavailable:
        backend.close(untouched=True)
        raise
    except BaseException:
        backend.close()
        raise
    if read_only:
        store.engine.committer.refuse(READS_ONLY, "open it without read_only to write")
    else:
        store.engine.quota.look_at_disk()
    return store


def _backend(
    location: str | os.PathLike[str],
    workspace: str,
    timeout_seconds: float,
    vfs: str | None = None,
    *,
    read_only: bool = False,
    create: bool = True,
    identity: bytes | None = None,
) -> Backend:
    """The backend of a location. A workspace that is created as a copy gets this `identity`."""
    if is_server(location):
        found_only = bool(read_only), bool(create)
        return _on_server(str(location), workspace, timeout_seconds, identity, *found_only)
    path = path_of(location)
    if path is None:
        if read_only or not create:
            raise CannotOpen("a store in memory has nothing to read when it is opened")
        from .backends.memory import MemoryBackend  # noqa: PLC0415  # each backend is loaded when it is used

        return MemoryBackend(identity=identity)
    from .backends.sqlite import SqliteBackend  # noqa: PLC0415  # see above

    def make() -> SqliteBackend:
        return SqliteBackend(
            path,
            workspace=workspace,
            vfs=vfs,
            timeout_seconds=timeout_seconds,
            read_only=bool(read_only),
            create=bool(create),
            identity=identity,
        )

    if not read_only:
        return make()
    from .backends.sqlite.retrying_reader import Patient  # noqa: PLC0415  # see above

    return cast("Backend", Patient(make, path, timeout_seconds))


@contextmanager
def _needs_psycopg() -> Iterator[None]:
    """Turn a missing psycopg into `MissingExtra`."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        raise MissingExtra("psycopg", "postgres") from None


def _on_server(
    url: str, workspace: str, timeout_seconds: float, identity: bytes | None, read_only: bool, create: bool
) -> Backend:
    with _needs_psycopg():
        from .backends.postgres import PostgresBackend  # noqa: PLC0415  # each backend is loaded when it is used
    return PostgresBackend(
        url,
        workspace=workspace,
        timeout_seconds=timeout_seconds,
        read_only=read_only,
        create=create,
        identity=identity,
    )


def workspaces_of(location: str | os.PathLike[str]) -> list[str] | None:
    """The workspaces of a store; None where they are hidden: on a server a role cannot see foreign workspaces."""
    path = path_of(location)
    if path is None:
        return None
    from .backends.sqlite import workspaces  # noqa: PLC0415  # see above

    return workspaces(path)


def server_of(location: str) -> "Server":
    """The report of a server about itself. Needs no store there, and no key."""
    with _needs_psycopg():
        from .backends.postgres.server_report import look  # noqa: PLC0415  # see above
    return look(location)


def rights_of(role: str, workspace: str | None = None, *, read_only: bool = False) -> list[str]:
    """The SQL statements that grant a role of a server its rights; with a workspace, only on its rows."""
    with _needs_psycopg():
        from .backends.postgres import workspace_id  # noqa: PLC0415  # see above
        from .backends.postgres.schema import rights  # noqa: PLC0415  # see above
    return rights(role, None if workspace is None else str(workspace_id(workspace)), read_only=read_only)


def distribute(location: str, *, run: bool = False) -> list[str]:
    """The SQL statements that spread the tables of this database over the nodes of its Citus cluster, without those
    that were run before. `run` runs them, with the rights of the user in the address."""
    with _needs_psycopg():
        from .backends.postgres.server_report import distribute  # noqa: PLC0415  # see above
    return distribute(location, run=run)


def key_id_of(location: str | os.PathLike[str], workspace: str) -> str | None:
    """The id of the key of a workspace; None if it is plain. Needs no key, and changes nothing."""
    backend = _backend(location, workspace, _ANSWER_SECONDS if is_server(location) else 0.0, read_only=True)
    try:
        rows = backend.lookup(key=(WORKSPACE, b"workspace"))
    finally:
        backend.close(untouched=True)
    if not rows or not rows[0].data_key:
        return None
    from ._sealing.sealed import key_of  # noqa: PLC0415  # only sealed stores load cryptography

    return key_of(rows[0])
