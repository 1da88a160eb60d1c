"""Marks: what was imported into a store, by the ids that it has in its files.

A mark is an item of the workspace. Its name is a keyed hash of the program and of an id in a file; its value leads to
the conversation here, and only for those who know the id in the file. A mark is written before the conversation, so
that two processes that import two files of one tree agree about it, and outlives it: if the erasure ledger has the
conversation (`_erasure.ledger`), the next import leaves it out under all of its ids. A mark of a conversation that was
never made is the trace of a process that was killed in between, and says nothing.

A file may name another one that was never here. The id of that leads to the conversation, too, as a reference: when
the file comes, it goes into the same conversation. If that was purged before, the reference says nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec import Struct

from .._engine.bodies import Meta
from .._engine.finding import find_or_create
from .._engine.items import ItemWrite, write
from ..backend import ITEMS
from ..errors import Conflict

if TYPE_CHECKING:
    from ..store import Store

_PREFIX = "imported/"
_ID = 16  # bytes of the id of a conversation
_REFERENCE = b"\2"  # stands before it


class Mark(Struct, frozen=True):
    """The trace of an import under one id."""

    conversation: bytes
    revision: int
    is_reference: bool = False  # to a file that was not here


class Marks:
    """The marks of one program in a store."""

    def __init__(self, store: "Store", format: str) -> None:
        self._store, self._format = store, format

    def find(self, ids: Sequence[str]) -> dict[str, Mark]:
        """Return the marks under these ids."""
        found: dict[str, Mark] = {}
        for id in ids:
            item = self._store.items.get(self._name(id))
            if item is not None and len(item.value) >= _ID:  # another byte stood before it once
                is_reference = item.value[:-_ID] == _REFERENCE
                found[id] = Mark(self._masked(id, item.value[-_ID:]), item.revision, is_reference)
        return found

    def claim(
        self, ids: Iterable[str], conversation: bytes, known: dict[str, Mark], absent: Collection[str] = ()
    ) -> bool:
        """Mark these ids as those of a conversation that is about to be made, and those of `absent` files as
        references. Returns False if another process was faster with one of them. `known` are the marks as they were
        found."""
        writes = [
            ItemWrite(
                self._name(id),
                (_REFERENCE if id in absent else b"") + self._masked(id, conversation),
                known[id].revision if id in known else None,
            )
            for id in ids
            if id not in known
            or known[id].conversation != conversation
            or (known[id].is_reference and id not in absent)
        ]
        try:
            self._write(writes)
        except Conflict:
            return False
        return True

    def _write(self, writes: list[ItemWrite]) -> None:
        if writes:
            state = find_or_create(self._store.engine, ITEMS, ITEMS, lambda: (Meta(key=ITEMS), []))[0]
            write(state, writes)

    def _name(self, id: str) -> str:
        return _PREFIX + self._hash("name", id).hex()

    def _masked(self, id: str, conversation: bytes) -> bytes:
        """Return the id of a conversation masked by a hash of the id in the file, or the other way round."""
        mask = self._hash("mask", id)
        return bytes(a ^ b for a, b in zip(conversation, mask, strict=True))

    def _hash(self, use: str, id: str) -> bytes:
        seed = self._store.engine.workspace.meta.seed
        text = f"{self._format}\0{id}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=16, key=seed[:64], person=f"import {use}".encode()).digest()
