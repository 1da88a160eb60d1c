"""One snapshot in a file of its own: plain JSON, as `Snapshot.to_json` writes it.

A snapshot is one thread. Of a conversation with branches, the thread that ends at the head is written; `jsonl` has all
of them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from ...errors import CannotOpen, Damaged, Hint, HithertoError, InvalidArgument, NotSealed, PayloadTooLarge
from ...keys import Key
from ...model import from_datetime
from ...snapshots import FileStore, Snapshot, Unreadable, validate_snapshot_id
from ...snapshots._media import references
from ...snapshots._thread import about, snapshot_of, thread_of
from .._atomic_file import new_file, of_files
from .._importing import conversation_id
from .._types import PortableConversation, PortableMessage, Source
from ..exports._sections import setup_of, thread

name = "snapshot"
suffixes = (".json",)
writes = True

_MOST = 1 << 28  # bytes


def recognises(source: Source) -> str | None:
    start = source.head.lstrip()
    if start and not start.startswith(b"{") and _id_in(source.path) and not source.head.isascii():
        return "it is named as a snapshot, and sealed"
    if start.startswith(b"{") and b'"provider"' in start and b'"id"' in start and b'"model"' in start:
        return "it is JSON with the fields of a snapshot: id, provider, model"
    return None


def read(path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
    id = _id_in(path)
    if id is not None:  # the folder checks for keys, and holds the media that the snapshot may refer to
        yield portable_of(FileStore(path.parent, key).load(id))
        return
    if key is not None:
        raise NotSealed("a key was given, and one snapshot in a file is plain", hint="leave the key out")
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except OSError as error:
        raise of_files(error, path) from None
    except ValueError:
        raise CannotOpen("a path that is not text names no file", hint="give the path of a file") from None
    if len(data) > _MOST:
        raise PayloadTooLarge(len(data), _MOST, what="text in one snapshot")
    found = Snapshot.from_json(data)
    if any(references(found.messages_json)):
        hint = "load the directory that it is from; store.restore(Snapshot.from_json(…)) takes it for text"
        raise Damaged("the snapshot refers to media, and lies alone", hint=hint)
    yield portable_of(found)


def _id_in(path: Path) -> str | None:
    """Return the id in the name of a file in a folder of snapshots, or None."""
    try:
        validate_snapshot_id(path.name.removesuffix(".json"))
    except HithertoError:
        return None
    return path.name.removesuffix(".json") if path.name.endswith(".json") else None


def write(talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
    if key is not None:
        raise InvalidArgument("one snapshot in a file is plain", hint="hitherto.snapshots.FileStore(path, key=…) seals")
    given = _one(talks)
    with new_file(path) as file:
        file.write(given)
    return 1


def write_to(talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
    file.write(_one(talks))
    return 1


def _one(talks: Iterable[PortableConversation]) -> bytes:
    given = list(talks)
    if len(given) != 1:
        hint = Hint("one-conversation-per-file", 'one file each, or format="gtb" for a directory of them')
        raise InvalidArgument(f"{len(given)} conversations, and a snapshot is of one", hint=hint)
    return taken_of(given[0]).to_json()


def portable_of(snapshot: Snapshot) -> PortableConversation:
    """Return the snapshot as a conversation: one thread, with the snapshot's time for every message."""
    messages, setup = thread_of(snapshot)
    title, metadata = about(snapshot)
    at = from_datetime(snapshot.created, "created_at")
    said = []
    for number, message in enumerate(messages, 1):
        parent = str(number - 1) if number > 1 else None
        said.append(PortableMessage(id=str(number), message=message, parent=parent, created_us=at, setup=1))
    return PortableConversation(
        id=_conversation(snapshot),
        messages=tuple(said),
        title=title,
        metadata=metadata,
        setups=(setup,),
        setup=1,
        created_us=at,
        upto=snapshot.metadata.get("head") or None,
    )


def _conversation(snapshot: Snapshot) -> str:
    """Return the conversation's id, which is the same for all snapshots of one conversation."""
    id = snapshot.metadata.get("conversation", "")
    return id if conversation_id(id, name) == id else snapshot.id


def taken_of(talk: PortableConversation) -> Snapshot:
    """Return a snapshot of the thread that ends at the head. Its id is the conversation's, so that a second export
    gives the same snapshot."""
    path = thread(talk)
    setup = setup_of(talk)
    try:
        made = snapshot_of(
            [said.message for said in path],
            setup,
            conversation=talk.id,
            head=path[-1].id if path else "",
            title=talk.title,
            own=talk.metadata,
        )
    except HithertoError as error:
        raise InvalidArgument(f"conversation {talk.id:.40} cannot be told in its provider's words: {error}") from None
    return replace(made, id=conversation_id(talk.id, name))
