"""Copying a whole store: the checks, the two ends, and the result.

    copy_store("chats.db", "postgresql:///chats", to_workspace="acme")

`_copying` copies the rows. This module opens the source as far as its key allows, creates the target with the
identity of the source, and verifies the finished copy with the key.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct

from ._copying.row_pages import pages
from ._copying.workspace_copy import WorkspaceCopier, find_workspace_row, holds_others, is_kept_in, workspace_row
from ._system.locations import is_server, path_of
from .backend import Backend, ConversationRow, conversation_kinds
from .errors import CannotOpen, InvalidArgument, NotExportable, ReadOnly
from .ids import show_conversation_id
from .opening import _backend
from .store import Store, as_key

if TYPE_CHECKING:
    from .aio import AsyncStore
    from .keys import Key

__all__ = ["StoreCopy", "copy_store"]

Location = str | os.PathLike[str]
_SECONDS = 30.0  # how long to wait for other processes


class StoreCopy(Struct, frozen=True):
    """The result of copying a store."""

    conversations: int  # that were copied now
    messages: int  # the same
    unchanged: int  # conversations that an earlier run had copied
    compared: int  # conversations that were read again on both sides, and are equal
    different: tuple[str, ...] = ()  # conversations that are not equal, and were removed again: copy once more
    finished: bool = False  # the target is a store now; before, it cannot be opened
    opened: bool = False  # the content was verified too, with the key, or because it is plain
    problems: tuple[str, ...] = ()  # what `verify` found in the target

    @property
    def ok(self) -> bool:
        """Tell whether the copy has no differences and no problems."""
        return not self.different and not self.problems


def copy_store(
    source: "Store | AsyncStore | Location",
    target: Location | Backend,
    *,
    key: "Key | bytes | None" = None,
    workspace: str = "default",
    to_workspace: str | None = None,
    more: bool = False,
    progress: Callable[[int], None] | None = None,
) -> StoreCopy:
    """Copy one workspace of a store into a new or empty workspace of another, as it is, and compare the two.

    A sealed one is not opened, and needs no key. With `key` the content is verified in the end as well, conversations
    that must not leave their store are `NotExportable`, and the workspace may get another name, which is sealed, too.
    A copy that was stopped goes on where it was: until it is finished, nobody can open the target. With `more` it is
    left so: another run brings what has changed since, and finishes. `progress` hears how many messages were copied.
    Where rows cannot be copied as they are, `InvalidArgument` says why; `formats.copy` may still copy messages.
    """
    with ExitStack() as stack:
        ours, store = _source(source, workspace, key, stack)
        name = to_workspace or (workspace if isinstance(source, (str, os.PathLike)) else ours.info.workspace_name)
        theirs = _target(target, name or workspace, ours, store, stack)
        return copy_rows(ours, theirs, store, more=more, progress=progress)


def copy_rows(
    source: Backend,
    target: Backend,
    store: Store | None,
    *,
    more: bool = False,
    progress: Callable[[int], None] | None = None,
) -> StoreCopy:
    """Copy all rows of one backend into another. `store` is the opened source, or None if it cannot be opened."""
    why = obstacle(source, target, opened=store is not None)
    if why is not None:
        raise InvalidArgument(f"the rows cannot be copied as they are: {why}", hint=_HINT)
    done = WorkspaceCopier(source, target, None if store is None else store.engine, progress or (lambda _: None)).run(
        more=more
    )
    counts = (done.conversations, done.messages, done.unchanged, done.compared)
    opened = done.finished and store is not None
    problems = _problems(target, store) if done.finished else ()
    return StoreCopy(*counts, done.different, done.finished, opened, problems)


_HINT = "copy into a new workspace, and give the key, if there is one; formats.copy copies messages"


def obstacle(source: Backend, target: Backend, *, opened: bool) -> str | None:
    """Return the reason why the rows cannot be copied as they are, or None."""
    ours, theirs = workspace_row(source), find_workspace_row(target)
    going_on = theirs is not None and theirs.id == ours.id
    if theirs is None or theirs.meta:
        if going_on:
            return "the target is a copy of the source already, or the source itself"
        if holds_others(target):
            return "there are conversations in the target"
    elif not going_on and holds_others(target):
        return "a copy of another store is on its way into the target"
    if theirs is not None and not going_on and _key_of(theirs) != _key_of(ours):
        return "the target is sealed with another key" if theirs.data_key else "the target is plain"
    if ours.data_key and source.info.workspace != target.info.workspace:
        return "what is sealed is bound to its workspace, and the target is another one"
    return _nameless(ours, source.info.workspace_name, target.info.workspace_name, opened=opened)


def _nameless(row: ConversationRow, ours: str, theirs: str, *, opened: bool) -> str | None:
    if row.data_key and ours != theirs and not opened:
        return "the name of the workspace is sealed, and it cannot get another one without the key"
    return None


# -- the two ends


def _source(
    source: "Store | AsyncStore | Location", workspace: str, key: "Key | bytes | None", stack: ExitStack
) -> tuple[Backend, Store | None]:
    """Return the backend to copy from, and the store, unless it is sealed and there is no key."""
    found = getattr(source, "sync", source)
    if isinstance(found, Store):
        found.engine.ensure_open()
        return found.backend, found
    if not isinstance(found, (str, os.PathLike)):
        hint = "a location, or hitherto.open(…)"
        raise InvalidArgument(f"a {type(source).__name__} where a store is wanted", hint=hint)
    return open_source(found, workspace, None if key is None else as_key(key), stack)


def open_source(
    location: Location, workspace: str, key: "Key | None", stack: ExitStack
) -> tuple[Backend, Store | None]:
    """Open an existing store as the source of a copy, with or without its key."""
    try:
        backend = _backend(location, workspace, _SECONDS, create=False)
    except (ReadOnly, CannotOpen):
        backend = _backend(location, workspace, _SECONDS, read_only=True)
    stack.callback(backend.close, untouched=True)
    if key is None and workspace_row(backend).data_key:
        return backend, None
    store = Store(backend, key=key, maintenance=False)
    stack.callback(store.close)
    return backend, store


def _target(
    target: Location | Backend, workspace: str, source: Backend, store: Store | None, stack: ExitStack
) -> Backend:
    """Return the backend to copy into. All checks come before it is created."""
    if isinstance(target, (str, os.PathLike)):
        return open_target(target, workspace, source, store, stack)
    if not hasattr(target, "commit"):
        hint = "its location, or a backend: it is no store before it is finished"
        raise InvalidArgument(f"a {type(target).__name__} where the target is wanted", hint=hint)
    if store is not None:
        check_exportable(store)
    return target


def open_target(location: Location, workspace: str, source: Backend, store: Store | None, stack: ExitStack) -> Backend:
    """Open or create the workspace for a copy of this source."""
    if path_of(location) is None and not is_server(location):
        hint = "give a MemoryBackend, which is still there when the copy is done"
        raise InvalidArgument("a copy in memory would be gone at once", hint=hint)
    why = _nameless(workspace_row(source), source.info.workspace_name, workspace, opened=store is not None)
    if why is not None:
        raise InvalidArgument(f"the rows cannot be copied as they are: {why}", hint=_HINT)
    if store is not None:
        check_exportable(store)
    backend = _backend(location, workspace, _SECONDS, identity=source.info.workspace)
    stack.callback(backend.close)
    return backend


def check_exportable(store: Store) -> None:
    """Raise `NotExportable` if a conversation must not leave its store."""
    inside = [
        show_conversation_id(row.id)
        for kind in conversation_kinds(store.backend)
        for rows in pages(store.backend, kind)
        for row in rows
        if is_kept_in(store.engine, row)
    ]
    if inside:
        raise NotExportable(*inside)


def _problems(target: Backend, store: Store | None) -> tuple[str, ...]:
    """Return the problems of the copy, verified with the key of the source. Without it only the rows are checked."""
    if store is None:
        return tuple(target.check())
    sealed = store.engine.workspace.sealed_codec
    copy = Store(target, key=None if sealed is None else sealed.key, maintenance=False)  # closed with its backend
    report = copy.verify()
    return tuple(str(problem) for problem in (*report.problems, *report.unread))


def key_id(backend: Backend) -> str | None:
    """Return the id of the key that an existing store needs; None if it is plain."""
    return _key_of(workspace_row(backend))


def _key_of(row: ConversationRow) -> str | None:
    if not row.data_key:
        return None
    from ._sealing.sealed import key_of  # noqa: PLC0415  # only sealed stores load cryptography

    return key_of(row)
