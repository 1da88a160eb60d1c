"""Checkpoint copies outside the store, and deleting them in a purge.

Checkpoints are copies of a conversation in snapshot stores. The conversation's description lists their locations, and a
location is added before the first copy is written to it, so that every copy is registered. The workspace lists all such
locations, because a conversation that cannot be read may have copies in any of them. A purge deletes the copies in
every snapshot store that this process knows: the stores that its recorders write to, and the ones registered with
`register_checkpoint_store`. It deletes only automatic checkpoints of that conversation, never snapshots that users
made.

The purge deletes the conversation first, because its copies may be remote and slow to delete. Before that, it writes a
note with their locations into the workspace, and removes the note when the copies are deleted. A note remains if the
process was killed or if no known store had the location; registering that store finishes the work. Writing a copy
leaves such a note too until the copy is complete, because the conversation may be purged in the meantime.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from .._engine.bodies import meta_place, open_meta
from .._engine.services import Prunes
from .._engine.state import ConversationState, close_meta
from .._engine.typed_items import ItemType
from .._sealing.codec import next_row
from ..backend import Change, ConversationRow
from ..errors import Damaged, HithertoError, InvalidArgument, StorageError
from ..events import warn
from ..ids import new_token, show_conversation_id

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from ..snapshots import SnapshotStore, Summary

AUTOMATIC = {"checkpoint": "automatic"}  # in the metadata of each checkpoint
_PREFIX = b"copies/"
_ADDRESSES = ("/", "s3://", "gs://", "az://")  # URLs and absolute paths: equal ones are the same place

_FUNCTION, _CANNOT = "a function", " that cannot delete"  # names of places that cannot delete

Locations = tuple[str, ...]


class _Note(Struct, frozen=True, array_like=True):
    """Copies that are to be deleted if their conversation is gone."""

    created_at: int  # of the conversation: a new one may have the same id by now
    locations: Locations


_NOTE: Final = ItemType(_Note, "a note about copies")


# -- locations


def _is_ours(place: object) -> "TypeGuard[SnapshotStore]":
    from ..snapshots import SnapshotStore  # noqa: PLC0415  # most purges have no checkpoints

    return isinstance(place, SnapshotStore)


def location_of(place: object) -> str:
    """Return the name of a place, without secrets."""
    if _is_ours(place):
        return place._bucket.where
    if isinstance(place, Prunes):
        return f"a {type(place).__name__}"
    return f"a {type(place).__name__}{_CANNOT}" if hasattr(place, "save") else _FUNCTION


def register(engine: "Engine", place: object) -> None:
    """Register a snapshot store that may hold checkpoints of this store."""
    if not isinstance(place, Prunes):
        hint = "hitherto.snapshots.FileStore(path), or ObjectStore(url)"
        raise InvalidArgument(f"a {type(place).__name__} where a snapshot store is wanted", hint=hint)
    engine.checkpoint_stores[_identity(place)] = place


def _identity(place: Prunes) -> object:
    """Return a value that is equal for two snapshot stores with the same location and the same key."""
    where = location_of(place)
    if not _is_ours(place):
        return where, id(place)
    named = where.startswith(_ADDRESSES) and not where.endswith(" in memory")
    return where, None if place._lock is None else place._lock.id, None if named else id(place._bucket)


def remember(state: ConversationState, location: str) -> None:
    """Add a location to the conversation's description, before its first copy is written there."""
    if location in state.meta.checkpoints:
        return
    state.engine.workspace.describe(lambda meta: replace(meta, checkpoints=_with(meta.checkpoints, location)))

    def make(row: ConversationRow) -> Change | None:
        envelope = state.check(row)
        meta = open_meta(envelope, row)
        if location in meta.checkpoints:
            return None
        meta = replace(meta, checkpoints=_with(meta.checkpoints, location))
        data = close_meta(envelope, row.id, meta, state.engine.max_write_bytes)
        return Change(
            row.id, row.token, next_row(envelope, row, meta=data)
        )  # invisible to readers, so the version stays

    state.engine.change(state.id, make, tell=None)


def _with(locations: Locations, location: str) -> Locations:
    return locations if location in locations else (*locations, location)


@contextmanager
def copying(state: ConversationState, location: str) -> Iterator[None]:
    """Keep a note while the block writes a copy. The note stays if the conversation was purged in the meantime."""
    engine, key = state.engine, _PREFIX + state.id + new_token()
    engine.workspace.note(put={key: _NOTE.encode(_Note(state.row.created_at, (location,)))})
    try:
        yield
    finally:
        if is_there(state):
            engine.workspace.note(unput=[key])


def is_there(state: ConversationState) -> bool:
    """Return True if the conversation still exists, and its id does not belong to a new one."""
    rows = state.engine.backend.lookup(ids=[state.id])
    return bool(rows) and state.is_same_conversation(rows[0])


# -- purging the copies


def note(engine: "Engine", rows: Sequence[ConversationRow]) -> dict[bytes, Locations]:
    """Return the locations of copies of conversations that are about to be purged, and note them in the workspace until
    the copies are deleted."""
    found = {row.id: locations for row in rows if (locations := _locations(engine, row))}
    if found:
        left = {
            one.id: one.note.locations for one in _read_notes(engine) if one.id in found
        }  # of an earlier one with this id
        found = {id: tuple(dict.fromkeys((*left.get(id, ()), *locations))) for id, locations in found.items()}
        notes = {
            _PREFIX + row.id: _NOTE.encode(_Note(row.created_at, found[row.id])) for row in rows if row.id in found
        }
        try:
            engine.workspace.note(put=notes)
        except StorageError as error:  # the purge goes on: it may free the space that is missing
            warn(f"what a purge has to reach elsewhere could not be noted: {type(error).__name__}")
    return found


def _locations(engine: "Engine", row: ConversationRow) -> Locations:
    """Return the locations of a conversation's copies: all locations if its description cannot be read."""
    try:
        envelope = engine.codec.envelope(row)
        if engine.codec.in_clear and b"checkpoints" not in envelope.open(meta_place(row.id), row.meta):
            return ()  # fast path for purges of many conversations
        return open_meta(envelope, row).checkpoints
    except Damaged:
        return _everywhere(engine)


def _everywhere(engine: "Engine") -> Locations:
    engine.workspace.refresh()  # another process may have used a new location
    return engine.workspace.meta.checkpoints


def reach(engine: "Engine", found: Mapping[bytes, Locations]) -> dict[str, str]:
    """Delete the copies of these conversations, which are already purged. Returns the problems by conversation. Notes
    of copies that cannot be deleted at all are removed too: the report names them, and retrying would not help."""
    failures: dict[bytes, list[str]] = {}
    pending: set[bytes] = set()
    for location in dict.fromkeys(location for locations in found.values() for location in locations):
        ids = [id for id, locations in found.items() if location in locations]
        problem = _delete_copies(engine, location, {show_conversation_id(id) for id in ids})
        for id in ids if problem is not None else ():
            failures.setdefault(id, []).append(f"checkpoints in {location} were not reached: {problem}")
            if not _is_beyond(location):
                pending.add(id)
    done = [_PREFIX + id for id in found if id not in pending]
    if done:
        engine.workspace.note(unput=done)
    return {show_conversation_id(id): "; ".join(said) for id, said in failures.items()}


def _is_beyond(location: str) -> bool:
    return location == _FUNCTION or location.endswith(_CANNOT)


def _delete_copies(engine: "Engine", location: str, conversations: set[str]) -> str | None:
    """Delete the copies of these conversations in one location. Returns the problem, or None."""
    if _is_beyond(location):
        return "it cannot be asked to delete; whoever has them has to"
    problem = "this store does not know the place; store.register_checkpoint_store(…) does"
    unread: set[str] | None = None
    for place in [place for place in engine.checkpoint_stores.values() if location_of(place) == location]:
        try:
            left = _delete_in(place, conversations)
            unread = left if unread is None else unread & left
        except HithertoError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  # third-party code: its message may contain secrets
            problem = type(error).__name__
    if unread is None:
        return problem
    return f"{len(unread)} files there cannot be read, and may be some" if unread else None


def _delete_in(place: Prunes, conversations: set[str]) -> set[str]:
    """Delete the copies in one snapshot store. Returns the names of files there that cannot be read."""
    if _is_ours(place):
        return place._forget(_is_copy_of(conversations))
    for conversation in conversations:
        place.prune(keep=0, metadata={**AUTOMATIC, "conversation": conversation})
    return set()


def _is_copy_of(conversations: set[str]) -> "Callable[[Summary], bool]":
    def is_copy(summary: "Summary") -> bool:
        said = dict(summary.metadata_items)
        return AUTOMATIC.items() <= said.items() and said.get("conversation") in conversations

    return is_copy


def finish(engine: "Engine") -> dict[str, str]:
    """Finish the notes that earlier purges left. Returns the problems that remain."""
    left = _read_notes(engine)
    born = {row.id: row.created_at for row in engine.backend.lookup(ids=[one.id for one in left])} if left else {}
    idle = {
        one.key for one in left if born.get(one.id) == one.note.created_at
    }  # the process was killed before the purge
    gone = [one for one in left if one.key not in idle]
    found: dict[bytes, Locations] = {}
    for one in gone:
        found[one.id] = tuple(dict.fromkeys((*found.get(one.id, ()), *one.note.locations)))
    failures = reach(engine, found)
    done = [one.key for one in gone if show_conversation_id(one.id) not in failures]
    if idle or done:
        engine.workspace.note(unput=[*idle, *done])
    return failures


class _Left(Struct, frozen=True):
    key: bytes
    note: _Note

    @property
    def id(self) -> bytes:
        return self.key[len(_PREFIX) : len(_PREFIX) + 16]


def _read_notes(engine: "Engine") -> list[_Left]:
    space = engine.workspace
    found = []
    for item in engine.backend.items(space.row.id, _PREFIX):
        try:
            note = _NOTE.open(space.envelope, item)
        except Damaged:  # then the copies may be in any location
            note = _Note(0, _everywhere(engine))
        found.append(_Left(item.key, note))
    return found
