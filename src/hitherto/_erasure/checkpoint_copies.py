"""Copies elsewhere: what a purge has to reach outside the store.

Checkpoints are copies of a conversation that lie in snapshot stores. From the first one on the conversation's
description names where, before the copy is made, so that no copy is without a name. The workspace names all such
places: a conversation that cannot be read may have copies in any of them. A purge deletes them in every snapshot store
that this process knows: those that recorders of the store write to, and those that somebody has told the store of. Only
what was made by itself is deleted, and only that of the same conversation: snapshots that people made are theirs.

The conversation goes first, and at once; its copies may be far away, and take their time. So that nothing is forgotten
in between, what is to be reached is noted in the workspace before, and the note goes when it is done. A note that is
left, because the process was killed, or because nobody knew the place, is worked off when somebody tells of the place.
Whoever makes a copy leaves a note as well for as long as that takes: the conversation may be purged meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

from msgspec import DecodeError, Struct, ValidationError, msgpack
from msgspec.structs import replace

from .._engine.bodies import item_place, meta_place, open_meta
from .._engine.services import Prunes
from .._engine.state import ConversationState, close_meta
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
_TRIES = 1000
_ADDRESSES = ("/", "s3://", "gs://", "az://")  # places that are the same wherever they are named so

_FUNCTION, _CANNOT = "a function", " that cannot delete"  # how places are called that nobody can ask to

Locations = tuple[str, ...]


class _Note(Struct, frozen=True, array_like=True):
    """Copies that are to be deleted if their conversation is gone."""

    created_at: int  # of the conversation: another may have its id by now
    locations: Locations


_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(_Note).decode


# -- which places there are


def _is_ours(place: object) -> "TypeGuard[SnapshotStore]":
    from ..snapshots import SnapshotStore  # noqa: PLC0415  # most who purge have no checkpoints

    return isinstance(place, SnapshotStore)


def location_of(place: object) -> str:
    """A place in words, without secrets."""
    if _is_ours(place):
        return place._bucket.where
    if isinstance(place, Prunes):
        return f"a {type(place).__name__}"
    return f"a {type(place).__name__}{_CANNOT}" if hasattr(place, "save") else _FUNCTION


def know(engine: "Engine", place: object) -> None:
    """Checkpoints of this store may lie there."""
    if not isinstance(place, Prunes):
        hint = "hitherto.snapshots.FileStore(path), or ObjectStore(url)"
        raise InvalidArgument(f"a {type(place).__name__} where a snapshot store is wanted", hint=hint)
    engine.checkpoint_stores[_identity(place)] = place


def _identity(place: Prunes) -> object:
    """What two of the same place, with the same key, have in common."""
    where = location_of(place)
    if not _is_ours(place):
        return where, id(place)
    named = where.startswith(_ADDRESSES) and not where.endswith(" in memory")
    return where, None if place._lock is None else place._lock.id, None if named else id(place._bucket)


def remember(desk: ConversationState, location: str) -> None:
    """The next copy of this conversation goes there: known before it is made."""
    if location in desk.meta.checkpoints:
        return
    desk.engine.workspace.describe(lambda meta: replace(meta, checkpoints=_with(meta.checkpoints, location)))

    def make(row: ConversationRow) -> Change | None:
        envelope = desk.check(row)
        meta = open_meta(envelope, row)
        if location in meta.checkpoints:
            return None
        meta = replace(meta, checkpoints=_with(meta.checkpoints, location))
        data = close_meta(envelope, row.id, meta, desk.engine.max_write_bytes)
        return Change(row.id, row.token, next_row(envelope, row, meta=data))  # nobody who reads the record can tell

    desk.engine.change(desk.id, make, tell=None)


def _with(locations: Locations, location: str) -> Locations:
    return locations if location in locations else (*locations, location)


@contextmanager
def copying(desk: ConversationState, location: str) -> Iterator[None]:
    """A copy is made in this block. If the conversation is purged before it is there, it stays noted."""
    engine, key = desk.engine, _PREFIX + desk.id + new_token()
    engine.workspace.note(put={key: _encode(_Note(desk.row.created_at, (location,)))})
    try:
        yield
    finally:
        if is_there(desk):
            engine.workspace.note(unput=[key])


def is_there(desk: ConversationState) -> bool:
    """Is the conversation there still, and not another with its id?"""
    rows = desk.engine.backend.lookup(ids=[desk.id])
    return bool(rows) and desk.is_same_conversation(rows[0])


# -- purging them


def note(engine: "Engine", rows: Sequence[ConversationRow]) -> dict[bytes, Locations]:
    """Where copies of these conversations lie, which are about to be purged; it is noted until they are gone."""
    found = {row.id: locations for row in rows if (locations := _locations(engine, row))}
    if found:
        left = {one.id: one.note.locations for one in _noted(engine) if one.id in found}  # of another with this id
        found = {id: tuple(dict.fromkeys((*left.get(id, ()), *locations))) for id, locations in found.items()}
        notes = {_PREFIX + row.id: _encode(_Note(row.created_at, found[row.id])) for row in rows if row.id in found}
        try:
            engine.workspace.note(put=notes)
        except StorageError as error:  # the purge goes on: it may be what makes room again
            warn(f"what a purge has to reach elsewhere could not be noted: {type(error).__name__}")
    return found


def _locations(engine: "Engine", row: ConversationRow) -> Locations:
    """If its description cannot be read, it may have copies anywhere."""
    try:
        envelope = engine.codec.envelope(row)
        if engine.codec.in_clear and b"checkpoints" not in envelope.open(meta_place(row.id), row.meta):
            return ()  # for those who purge many
        return open_meta(envelope, row).checkpoints
    except Damaged:
        return _everywhere(engine)


def _everywhere(engine: "Engine") -> Locations:
    engine.workspace.refresh()  # others may have made the first copy in another place
    return engine.workspace.meta.checkpoints


def reach(engine: "Engine", found: Mapping[bytes, Locations]) -> dict[str, str]:
    """Delete the copies of these conversations, which are gone. What could not be reached, by conversation. The notes
    of what nobody can delete go as well: it was said, and no more can be done."""
    failures: dict[bytes, list[str]] = {}
    pending: set[bytes] = set()
    for location in dict.fromkeys(location for locations in found.values() for location in locations):
        ids = [id for id, locations in found.items() if location in locations]
        problem = _emptied(engine, location, {show_conversation_id(id) for id in ids})
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


def _emptied(engine: "Engine", location: str, conversations: set[str]) -> str | None:
    """Delete what is there of these conversations; why not, if that cannot be done."""
    if _is_beyond(location):
        return "it cannot be asked to delete; whoever has them has to"
    problem = "nobody has told this store of the place; store.know_checkpoints(…) does"
    unread: set[str] | None = None
    for place in [place for place in engine.checkpoint_stores.values() if location_of(place) == location]:
        try:
            left = _deleted(place, conversations)
            unread = left if unread is None else unread & left
        except HithertoError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  # a place of somebody else's; its words may be anything
            problem = type(error).__name__
    if unread is None:
        return problem
    return f"{len(unread)} files there cannot be read, and may be some" if unread else None


def _deleted(place: Prunes, conversations: set[str]) -> set[str]:
    """Delete them in one place; the names of what cannot be read there."""
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
    """Work off what purges of before have left; what still cannot be reached."""
    left = _noted(engine)
    born = {row.id: row.created_at for row in engine.backend.lookup(ids=[one.id for one in left])} if left else {}
    idle = {one.key for one in left if born.get(one.id) == one.note.created_at}  # killed before the purge itself
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


def _noted(engine: "Engine") -> list[_Left]:
    space = engine.workspace
    found = []
    for item in engine.backend.items(space.row.id, _PREFIX):
        try:
            note = _decode(space.envelope.open(item_place(space.row.id, item.key), item.body))
        except (Damaged, DecodeError, ValidationError):  # then they may be anywhere
            note = _Note(0, _everywhere(engine))
        found.append(_Left(item.key, note))
    return found
