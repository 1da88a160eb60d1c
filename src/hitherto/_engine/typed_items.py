"""Items that hold one value: how the value is closed, and how it is read back.

A setup, a partial answer, the mark of a recorder, the details of a record, a note in quarantine: each is a value that
lies in one item of a conversation or of the workspace, encoded as MessagePack and closed by the codec in its place. An
`ItemType` does it for one type of value. The items of users are bytes, and are in `items`.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from .._sealing.codec import Envelope
from ..backend import ItemRow
from ..errors import Damaged

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


def item_place(conversation: bytes, key: bytes, revision: int = 0) -> tuple[object, ...]:
    """Return the place of an item. Items of users have revisions, and open as their own revision only."""
    return ("item", conversation, key + revision.to_bytes(8, "big", signed=True) if revision else key)


def close_item(envelope: Envelope, conversation: bytes, key: bytes, data: bytes, revision: int = 0) -> ItemRow:
    """Return bytes as an item that is stored."""
    return ItemRow(conversation, key, revision, envelope.close(item_place(conversation, key, revision), data))


def open_item(envelope: Envelope, item: ItemRow, revision: int = 0) -> bytes:
    """Return the bytes of an item; `Damaged` if it is not as it was written."""
    return envelope.open(item_place(item.conversation, item.key, revision), item.body)


class ItemType(Generic[T]):
    """One type of value that items hold. `name` is what an error calls it."""

    def __init__(self, kind: type[T], name: str, encode: Callable[[T], bytes] = _encode) -> None:
        self.name = name
        self.encode = encode
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def close(self, envelope: Envelope, conversation: bytes, key: bytes, value: T) -> ItemRow:
        """Return a value as an item that is stored."""
        return close_item(envelope, conversation, key, self.encode(value))

    def open(self, envelope: Envelope, item: ItemRow) -> T:
        """Return the value of an item; `Damaged` if it cannot be read."""
        data = open_item(envelope, item)
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Damaged(f"{self.name} cannot be read: {error}") from None
