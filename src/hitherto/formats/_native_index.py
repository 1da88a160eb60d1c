"""The index of an imported conversation: which records of its files are stored, and as which messages.

Each import adds one item to the conversation: a list of pairs, the hash of a record's id and the number of the message
that it became. The hashes are keyed. The index is larger than the tree: it also names messages that were deleted here
since, which is how they stay away, and records that became no message. It takes 16 bytes of memory for each record.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

from .._engine.typed_items import close_item, open_item
from .._sealing.codec import Envelope
from ..backend import ItemRow
from ..errors import Damaged

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from .._engine.state import ConversationState

PREFIX = b"native/"
RECORD = (1 << 64) - 1  # in place of a number: a record that is no message
_MERGED_FROM = 1 << 14  # new entries that are merged into the sorted ones


def hasher(seed: bytes) -> "blake2b":
    """Return the hash that `number_of` continues."""
    return blake2b(digest_size=8, key=seed[:64], person=b"import id")


class NativeIndex:
    """The records of one conversation, by the hashes of their ids."""

    def __init__(self, seed: bytes) -> None:
        self._hasher = hasher(seed)
        self._hashes, self._numbers = array("Q"), array("Q")  # sorted by hash
        self._new: dict[int, int] = {}

    def hash(self, id: str) -> int:
        """Return the hash of a record's id."""
        own = self._hasher.copy()
        own.update(id.encode("utf-8", "surrogatepass"))
        return int.from_bytes(own.digest())

    def get(self, hash: int) -> int | None:
        """Return the number of the message that a record became, `RECORD`, or None if it is not stored."""
        found = self._new.get(hash)
        if found is not None:
            return found
        at = bisect_left(self._hashes, hash)
        return self._numbers[at] if at < len(self._hashes) and self._hashes[at] == hash else None

    def add(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Add records, which are stored now."""
        self._new.update(pairs)
        if len(self._new) >= _MERGED_FROM:
            self._merge()

    def renumbered(self, numbers: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the records of messages that have another number now, with that number."""
        for hash, number in (*zip(self._hashes, self._numbers, strict=True), *self._new.items()):
            if number in numbers and self.get(hash) == number:
                yield hash, numbers[number]

    def _merge(self) -> None:
        hashes, numbers = array("Q"), array("Q")
        for hash, number in _merged(zip(self._hashes, self._numbers, strict=True), sorted(self._new.items())):
            hashes.append(hash)
            numbers.append(number)
        self._hashes, self._numbers, self._new = hashes, numbers, {}

    def __len__(self) -> int:
        return len(self._hashes) + len(self._new)


def _merged(old: Iterator[tuple[int, int]], new: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield both in order; of equal hashes, the new one."""
    at = 0
    for pair in old:
        while at < len(new) and new[at][0] < pair[0]:
            yield new[at]
            at += 1
        if at < len(new) and new[at][0] == pair[0]:
            continue
        yield pair
    yield from new[at:]


def read_index(engine: "Engine", state: "ConversationState") -> NativeIndex | None:
    """Return the index of a conversation, or None if it has none: it came by another way."""
    found = NativeIndex(engine.workspace.meta.seed)
    items = engine.backend.items(state.id, PREFIX)
    for item in items:
        data = open_item(state.envelope, item)
        if len(data) % 16:
            raise Damaged("the index of an imported conversation has an odd length")
        pairs = _words(data)
        found.add(zip(pairs[::2], pairs[1::2], strict=True))
    return found if items else None


def index_item(envelope: Envelope, conversation: bytes, version: int, pairs: Iterable[tuple[int, int]]) -> ItemRow:
    """Return the item that adds these records to the index. `version` is that of the row after the commit."""
    flat = array("Q", (word for pair in pairs for word in pair))
    key = PREFIX + version.to_bytes(8, "big")
    return close_item(envelope, conversation, key, _words(flat.tobytes()).tobytes())


def _words(data: bytes) -> "array[int]":
    """Return bytes as numbers. Stored numbers are little-endian on every machine, so this is its own inverse."""
    found = array("Q", data)
    if sys.byteorder == "big":
        found.byteswap()
    return found
