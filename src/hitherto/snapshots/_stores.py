"""Stores of snapshots: in a folder, or in a bucket of a cloud.

One class implements them over a bucket. It chooses the layout for each operation. With a key, a snapshot may be sealed
in our own envelope or as other programs seal it, and both are found; a plain one is refused, because it could be
forged. Saving in one layout deletes the same snapshot's file of the other, once the new one is safe.

Nothing is hidden. A wrong key is never an empty list, and what should be a snapshot and cannot be read is counted.

Nothing is kept open, and every call stands for itself, so that threads and processes can share a place.
"""

import builtins
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ..errors import (
    Conflict,
    Damaged,
    HithertoError,
    InvalidArgument,
    InvalidSnapshotID,
    KeyUnavailable,
    NotFound,
    Unavailable,
)
from ..keys import Key
from ..model import check_strings
from ._bucket import WHATEVER, Bucket, Thing, Whatever
from ._catalog import NAME, Catalog, Entry
from ._file_layouts import GtbFiles, Layout, Lock, PlainFiles, SealedFiles, key_in_name
from ._files import DiskFiles, FileSystem
from ._prompts import without_prompt
from ._snapshot import Snapshot, validate_snapshot_id
from ._summaries import Listing, Summary, Unreadable, moment

if TYPE_CHECKING:
    from uuid import UUID

    from obstore.store import ObjectStore as Obstore

MAX_BYTES = 1 << 28  # of one snapshot, as JSON

_log = logging.getLogger("hitherto")


class SnapshotStore:
    """Snapshots in a bucket. `FileStore` and `ObjectStore` make the bucket.

    With a key, everything is sealed; `layout` says how what is saved is sealed, reading finds both ways.
    """

    _readers = 1  # threads that read summaries

    def __init__(
        self,
        bucket: Bucket,
        key: bytes | Key | None = None,
        *,
        layout: Literal["hitherto", "gtb"] = "hitherto",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if layout not in ("hitherto", "gtb"):
            raise InvalidArgument("there is no such layout", hint="'hitherto' or 'gtb'")
        if type(max_bytes) is not int or max_bytes < 1:
            raise InvalidArgument("max_bytes is a number from 1 up")
        self._bucket = bucket
        self._lock = None if key is None else Lock(key)
        self._layouts = _layouts(bucket, max_bytes, self._lock, layout)
        self.catalog = Catalog(bucket, self._lock)

    def __repr__(self) -> str:
        how = "plain" if self._lock is None else "sealed"
        return f"<{type(self).__name__} {self._bucket.where}, {how}>"

    # -- one snapshot

    def save(self, snapshot: Snapshot, *, expect: Snapshot | str | Whatever | None = WHATEVER) -> str:
        """Keep it, durably, in place of what has the same id. Returns its revision.

        `expect` is what must be there now: a snapshot, its revision, or None for nothing. If something else is there,
        it is `Conflict`, and nothing is changed; of several who expect the same, one wins.
        """
        if not isinstance(snapshot, Snapshot):
            raise InvalidArgument(
                f"a {type(snapshot).__name__} where a snapshot is wanted",
                hint="talk.snapshot() and client.save() give one",
            )
        validate_snapshot_id(snapshot.id)
        snapshot = without_prompt(snapshot)  # as it will be read
        wanted = _expected_revision(expect)
        own, *others = self._layouts
        before = {name: self._tag(name) for name in (other.name_of(snapshot.id) for other in others)}
        try:
            own.write(snapshot, self._expected_tag(snapshot.id, wanted))
        except Conflict:
            if isinstance(wanted, Whatever):
                raise
            raise _conflict(snapshot.id, wanted, self._revision_now(snapshot.id)) from None
        for name, tag in before.items():
            # What came meanwhile was saved after ours, and whoever saved it may be about to take ours away.
            if tag is not None and self._tag(name) == tag:
                self._bucket.remove(name)
        return snapshot.revision

    def _tag(self, name: str) -> str | None:
        try:
            found = self._bucket.get(name, 0, whole=False)
        except Damaged:  # a link, or a directory: no snapshot, and not ours to take away
            return None
        return None if found is None else found.tag

    def _expected_tag(self, id: str, wanted: str | Whatever | None) -> str | Whatever | None:
        """Return the tag that a put must expect for an expected revision. Raises `Conflict` if another revision is
        there."""
        if isinstance(wanted, Whatever):
            return WHATEVER
        for layout in self._layouts:
            if wanted is None:
                if self._tag(layout.name_of(id)) is not None:
                    raise _conflict(id, None, self._revision_now(id))
                continue
            found = layout.skim(layout.name_of(id))
            if found is not None:
                if found[0].revision != wanted:
                    raise _conflict(id, wanted, found[0].revision)
                return found[1] if layout is self._layouts[0] else None
        if wanted is not None:
            raise _conflict(id, wanted, None)
        return None

    def _revision_now(self, id: str) -> str | None:
        """For an error only."""
        for layout in self._layouts:
            try:
                found = layout.skim(layout.name_of(id))
            except HithertoError:  # something is there, whatever it is
                return "something that cannot be read"
            if found is not None:
                return found[0].revision
        return None

    def load(self, id: "str | Summary | Snapshot | UUID") -> Snapshot:
        """The snapshot with that id. `NotFound`; `KeyUnavailable`; `NotSealed` for a plain one where there is a key;
        `Damaged` for one that does not read back as what was saved."""
        id = _id(id)
        for layout in self._layouts:
            found = layout.read(layout.name_of(id))
            if found is not None:
                return found
        raise self._missing(id)

    def delete(self, id: "str | Summary | Snapshot | UUID") -> None:
        """Take it away, durably, and its summary from the catalog. `NotFound` if there is none."""
        id = _id(id)
        if not self._delete([id]):
            raise self._missing(id)

    def _delete(self, ids: Iterable[str]) -> builtins.list[str]:
        """Returns those that were there."""
        found: builtins.list[str] = []
        names: set[str] = set()
        try:
            for id in ids:
                # Our own goes last: until then the snapshot is there, and no older one comes to light.
                own = [layout.name_of(id) for layout in reversed(self._layouts)]
                names.update(own)
                if sum([self._bucket.remove(name) for name in own]):
                    found.append(id)
        finally:
            if names:  # also those of whoever deleted one and was killed
                self.catalog.forget(names)
        return found

    def _missing(self, id: str) -> HithertoError:
        """Nothing has this id, or what has it is sealed with another key."""
        others = {key for thing in self._bucket.things() if (key := key_in_name(thing.name)) is not None}
        if self._lock is None:
            hint = "sealed snapshots lie here: open the store with their key" if others else "list() says what is there"
            return NotFound("snapshot", [id], hint=hint)
        if others := others - {self._lock.id.hex()}:
            said = f"no snapshot {id} is sealed with key {self._lock.id.hex()}; others here are, with {min(others)}"
            return KeyUnavailable(said, hint="open the store with the key that the snapshot was sealed with")
        return NotFound("snapshot", [id], hint="list() says what is there")

    # -- many

    def list(self) -> Listing:
        """Summaries of all snapshots, newest first. Files of others are skipped; what should be a snapshot and cannot
        be read is in `unreadable`. `KeyUnavailable` if the key opens nothing at all."""
        if self._lock is not None:
            self._lock.check_known()
        known, tag = self.catalog.read()
        found: dict[str, Entry] = {}
        failed: dict[str, HithertoError] = {}
        for name, result in self._skim_new(known):
            if isinstance(result, Entry):
                found[name] = result
            else:
                failed[name] = result
        if not found:
            self._check_key(failed)
        self.catalog.renew(known, found, tag)
        unreadable = [Unreadable(name, str(error)) for name, error in failed.items()]
        unreadable += [Unreadable(name, reason) for name, reason in self._bucket.stray() if self._is_ours(name)]
        return Listing(self._in_order(found), sorted(unreadable, key=lambda one: one.name))

    def _skim_new(self, known: Mapping[str, Entry]) -> Iterator[tuple[str, Entry | HithertoError]]:
        unread: builtins.list[Thing] = []
        for thing in self._bucket.things():
            entry = known.get(thing.name)
            if entry is not None and entry.tag == thing.tag and self._layout(thing.name) is not None:
                yield thing.name, entry
            elif self._is_ours(thing.name):
                unread.append(thing)
            elif thing.name != NAME:
                _log.debug("a file of others is skipped in %s: %.80r", self._bucket.where, thing.name)
        for thing, result in zip(unread, self._skim_all(unread), strict=True):
            if result is not None:
                yield thing.name, result

    def _skim_all(self, things: Sequence[Thing]) -> Iterable[Entry | HithertoError | None]:
        if self._readers == 1 or len(things) < 2 * self._readers:
            return map(self._skim, things)
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # loaded where it is used

        with ThreadPoolExecutor(self._readers) as threads:
            try:
                return [*threads.map(self._skim, things)]
            finally:
                threads.shutdown(cancel_futures=True)  # if one failed, the others need not be asked

    def _skim(self, thing: Thing) -> Entry | HithertoError | None:
        """None if it was deleted meanwhile."""
        layout = self._layout(thing.name)
        if layout is None:
            return KeyUnavailable("sealed with another key" if self._lock else "sealed, and there is no key")
        try:
            found = layout.skim(thing.name)
            return found and Entry(thing.name, found[1], moment(found[0].created_at), found[0])
        except Unavailable:
            raise  # which says nothing about the snapshot
        except HithertoError as error:
            return error

    def _check_key(self, failed: Mapping[str, HithertoError]) -> None:
        """Where nothing opened: was it for the key? It is the right one if something has a name made with it."""
        locked = [name for name, error in failed.items() if isinstance(error, KeyUnavailable)]
        right = len(locked) < len(failed) if self._lock is None else any(map(self._is_own, failed))
        if locked and not right:
            said = "with this key" if self._lock else "without a key"
            what = f"none of {len(locked):,} sealed snapshots opens {said}"
            raise KeyUnavailable(what, hint="open the store with the key that they were sealed with")

    def _is_own(self, name: str) -> bool:
        return self._lock is not None and key_in_name(name) == self._lock.id.hex()

    def _layout(self, name: str) -> Layout | None:
        return next((layout for layout in self._layouts if layout.has(name)), None)

    def _is_ours(self, name: str) -> bool:
        return self._layout(name) is not None or key_in_name(name) is not None

    def _in_order(self, found: Mapping[str, Entry]) -> Sequence[Summary]:
        own = self._layouts[0]
        once: dict[str, Entry] = {}
        for name, entry in found.items():
            if once.setdefault(entry.summary.id, entry) is not entry and own.has(name):
                once[entry.summary.id] = entry
        return [entry.summary for entry in sorted(once.values(), key=lambda e: (-e.at, e.summary.id))]

    def prune(self, *, keep: int, metadata: Mapping[str, str]) -> builtins.list[str]:
        """Delete all but the newest `keep` of the snapshots whose metadata has these pairs. Returns the ids of those
        that were deleted; if others delete them at the same time, that is no error."""
        if type(keep) is not int or keep < 0:
            raise InvalidArgument("keep is a number from 0 up")
        if metadata is None:
            raise InvalidArgument(
                "metadata is None", hint="pairs that a snapshot must have to go; {} for all snapshots"
            )
        pairs = set(check_strings(metadata, "metadata").items())
        matching = [summary.id for summary in self.list() if pairs <= set(summary.metadata_items)]
        return self._delete(matching[keep:])

    def _forget(self, unwanted: Callable[[Summary], bool]) -> set[str]:
        """Delete the unwanted snapshots, and the remains of interrupted saves, which may be of one. Returns the names
        of unreadable objects, which may be unwanted too."""
        self._bucket.tidy()
        found = self.list()
        self._delete([summary.id for summary in found if unwanted(summary)])
        return {one.name for one in found.unreadable}


class FileStore(SnapshotStore):
    """Snapshots in a folder, which the first save makes. Files are 0600, the folder is 0700.

    >>> from hitherto.snapshots import MemoryFiles
    >>> files = FileStore("snapshots", fs=MemoryFiles())
    >>> snapshot = Snapshot.new("claude", "claude-sonnet-4-5", "", [{"role": "user", "content": "Hello"}])
    >>> files.save(snapshot) == snapshot.revision
    True
    >>> files.load(snapshot.id) == snapshot
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: bytes | Key | None = None,
        *,
        layout: Literal["hitherto", "gtb"] = "hitherto",
        fs: FileSystem | None = None,
        max_bytes: int = MAX_BYTES,
        timeout_seconds: float = 10.0,
    ) -> None:
        try:
            where = os.fspath(path)
        except TypeError:
            where = None
        if not isinstance(where, str):
            raise InvalidArgument(f"the path of a folder is text, not a {type(path).__name__}")
        if "://" in where:
            raise InvalidArgument("this is an address, not the path of a folder", hint="ObjectStore takes addresses")
        files = DiskFiles(timeout_seconds=timeout_seconds) if fs is None else fs
        super().__init__(files.folder(where), key, layout=layout, max_bytes=max_bytes)


class ObjectStore(SnapshotStore):
    """Snapshots in a bucket: `s3://bucket/prefix`, `gs://`, `az://`, `file://`, `memory://`, or an obstore store."""

    _readers = 16  # what is far away answers slowly

    def __init__(
        self,
        url: "str | Obstore",
        key: bytes | Key | None = None,
        *,
        layout: Literal["hitherto", "gtb"] = "hitherto",
        max_bytes: int = MAX_BYTES,
        timeout_seconds: float = 30.0,
        retries: int = 4,
    ) -> None:
        from ._objects import bucket_at, bucket_on  # noqa: PLC0415  # obstore is loaded when it is used

        if isinstance(url, str):
            bucket = bucket_at(url, timeout_seconds=timeout_seconds, retries=retries)
        else:
            bucket = bucket_on(url, "")
        super().__init__(bucket, key, layout=layout, max_bytes=max_bytes)


def _layouts(bucket: Bucket, most: int, lock: Lock | None, layout: str) -> tuple[Layout, ...]:
    """Return the layouts that may be in the bucket; the first one is used for writing."""
    if lock is None:
        return (PlainFiles(bucket, most),)
    own, shared = SealedFiles(bucket, most, lock), GtbFiles(bucket, most, lock)
    return (own, shared) if layout == "hitherto" else (shared, own)


def _id(given: "str | Summary | Snapshot | UUID") -> str:
    """Return the id of a snapshot, given as an id, a summary or a snapshot."""
    id = given.id if isinstance(given, (Summary, Snapshot)) else given
    id = str(id) if type(id).__name__ == "UUID" else id
    if not isinstance(id, str):
        raise InvalidSnapshotID(id)
    validate_snapshot_id(id)
    return id


def _expected_revision(expect: object) -> str | Whatever | None:
    if expect is None or isinstance(expect, (str, Whatever)):
        return expect
    if isinstance(expect, Snapshot):
        return without_prompt(expect).revision
    raise InvalidArgument(f"expect is a {type(expect).__name__}", hint="a snapshot, a revision, or None for nothing")


def _conflict(id: str, wanted: str | None, found: str | None) -> Conflict:
    hint = "load it again and decide, or save without expect"
    return Conflict(
        expected=wanted and wanted[:40], head=found, what=f"the revision of snapshot {id}", nothing="none", hint=hint
    )
