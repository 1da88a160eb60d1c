"""A cache of summaries, stored as one object beside the snapshots, so that a listing need not read them all.

The catalog is a cache. Each entry holds the tag that the snapshot had when it was read, and is used only while the
snapshot has that tag. A catalog that is missing, damaged, of another key or another version is ignored and replaced.
With a key, the catalog is sealed, and a plain one is ignored.

**Erasing.** A summary holds metadata, which must not outlive its snapshot. So a delete removes the entry from the
catalog after the snapshot is gone; and a writer of a catalog checks after the write that all its snapshots still exist.
Of the two, one always sees the other.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec import Struct

from ..errors import Conflict, Damaged, HithertoError, PayloadTooLarge
from ._bucket import Bucket, Content
from ._file_layouts import CATALOG, Envelope, Lock, compress_body, decompress_body, seal
from ._summaries import Summary

NAME = ".summaries"
_PLAIN = b"hitherto summaries 1\n"
_MOST, _MOST_PLAIN = 1 << 28, 1 << 25  # bytes; anybody can make a plain one, and what it becomes is many times as much
_TRIES = 5
_FEW, _SHARE = 32, 20  # so many may be stale, or one in so many, before it is written anew

_log = logging.getLogger("hitherto")


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """The summary of an object, with its tag."""

    name: str
    tag: str
    at: int  # when it was made, in nanoseconds
    summary: Summary


class Catalog:
    """The thing beside the snapshots of a bucket."""

    def __init__(self, bucket: Bucket, lock: Lock | None) -> None:
        self._bucket = bucket
        self._lock = lock
        self._most = _MOST_PLAIN if lock is None else _MOST
        self.is_frozen = False  # listings do not write it

    def read(self) -> tuple[dict[str, Entry], str | None]:
        """Return the entries by name, and the tag of the catalog, or None if there is no catalog."""
        try:
            content = self._bucket.get(NAME, self._most)
        except HithertoError as error:  # it is a cache: the snapshots themselves say what is there, or fail as this did
            self._say("cannot be read", error)
            return {}, None
        return (self._entries(content), content.tag) if content is not None else ({}, None)

    def _entries(self, content: Content) -> dict[str, Entry]:
        """Decode the entries. Returns an empty dict if the catalog cannot be used for any reason."""
        try:
            opened = _verify_plain(content.data) if self._lock is None else _open_sealed(self._lock, content)
            entries = _ENTRIES.decode(decompress_body(opened, self._most, NAME))
        except (HithertoError, msgspec.MsgspecError) as error:
            self._say("is not used", error)
            return {}
        return {entry.name: entry for entry in entries}

    def _say(self, what: str, error: Exception) -> None:
        _log.debug("the catalog of %s %s: %s", self._bucket.where, what, type(error).__name__)

    def renew(self, before: Mapping[str, Entry], now: Mapping[str, Entry], tag: str | None) -> None:
        """Write the result of a listing, if enough of it is new. Does nothing if the bucket cannot be written to."""
        if self.is_frozen:
            return
        changed = len(before.keys() - now.keys()) + sum(before.get(name) is not entry for name, entry in now.items())
        # One that could not be read may be plain, from before its snapshots were sealed: it does not stay.
        useless = tag is not None and not before
        if changed <= max(_FEW, len(now) // _SHARE) and not useless:
            return
        try:
            if useless and not now:
                self._bucket.remove(NAME)
                return
            self._write(now.values(), tag)
            gone = now.keys() - {thing.name for thing in self._bucket.things()}
            if gone:
                self.forget(gone)
        except HithertoError as error:  # it is a cache, and others may write it at the same time
            self._say("is not written", error)

    def forget(self, names: Collection[str]) -> None:
        """Remove the entries of deleted snapshots. An unreadable catalog may contain them, so it is deleted. Raises an
        error if that fails."""
        for _ in range(_TRIES):
            try:
                content = self._bucket.get(NAME, self._most)
            except (PayloadTooLarge, Damaged):  # none of ours
                break
            entries = {} if content is None else self._entries(content)
            if content is None or (entries and not any(name in entries for name in names)):
                return
            left = [entry for entry in entries.values() if entry.name not in names]
            if not left:
                break
            try:
                self._write(left, content.tag)
            except Conflict:  # another process wrote a catalog, which may contain the entry again
                continue
            return
        self._bucket.remove(NAME)

    def _write(self, entries: Iterable[Entry], tag: str | None) -> None:
        text = msgspec.msgpack.encode(list(entries))
        if len(text) > self._most:
            raise PayloadTooLarge(len(text), self._most, what="summaries")
        data = compress_body(text)
        if self._lock is None:
            self._bucket.put(NAME, _PLAIN + hashlib.sha256(data).digest() + data, tag)
        else:
            self._bucket.put(NAME, seal(self._lock, CATALOG, b"", b"", data), tag)


def _open_sealed(lock: Lock, content: Content) -> bytes:
    return Envelope(lock, CATALOG, b"", content, NAME).open_second()


def _verify_plain(data: bytes) -> bytes:
    """Return the content of a plain catalog. Raises `Damaged` if its checksum does not match."""
    digest, rest = data[len(_PLAIN) : len(_PLAIN) + 32], data[len(_PLAIN) + 32 :]
    if not data.startswith(_PLAIN) or hashlib.sha256(rest).digest() != digest:
        raise Damaged("the catalog was changed")
    return rest


_ENTRIES = msgspec.msgpack.Decoder(list[Entry])
