"""A directory of snapshots, one file each: as programs written in Go lay them out, plain or sealed.

Unreadable files do not hide the others: each is reported. A directory is written whole or not at all.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import HithertoError
from ...keys import Key
from ...snapshots import FileStore, Unreadable, validate_snapshot_id
from .._atomic_file import new_directory
from .._types import PortableConversation, Source
from .snapshot import portable_of, taken_of

name = "gtb"
suffixes = ("",)
writes = True


def recognises(source: Source) -> str | None:
    if not source.is_directory:
        return None
    try:
        found = next((path.name for path in source.path.iterdir() if _is_snapshot(path.name)), None)
    except OSError:
        return None
    return None if found is None else f"it is a directory with snapshots, such as {found}"


def _is_snapshot(file: str) -> bool:
    if file.endswith(".sealed"):
        return True
    try:
        validate_snapshot_id(file.removesuffix(".json"))
    except HithertoError:
        return False
    return file.endswith(".json")


def read(path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
    store = FileStore(path, key)
    store.catalog.is_frozen = True  # the folder belongs to another program, and stays as it is
    listing = store.list()
    for summary in reversed(listing):  # the oldest first
        try:
            yield portable_of(store.load(summary.id))
        except HithertoError as error:
            yield Unreadable(summary.id, str(error))
    for one in listing.unreadable:
        yield Unreadable(one.name, one.reason)


def write(talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
    count = 0
    with new_directory(path) as unfinished:
        store = FileStore(unfinished, key, layout="gtb")
        for talk in talks:
            store.save(taken_of(talk))
            count += 1
    return count
