"""The codec: the only place where what the store knows becomes the opaque bytes that backends keep.

Each piece of content is closed at a **place** (field, and the clear columns of the row it lies in) and opens only
there. The plain codec guards against damage with a checksum; sealing replaces the codec and nothing else. A codec
hands out one `Envelope` per conversation, because the conversation is the unit of keys.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from .backend import ConversationRow, MessageRow, PackRow
from .errors import Damaged, InvalidArgument

Place = tuple[object, ...]


class Fingerprint(Protocol):
    """Names content by what it is."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Envelope(Protocol):
    """Closes and opens the content of one conversation."""

    def close(self, place: Place, data: bytes) -> bytes:
        """The bytes to store."""

    def open(self, place: Place, data: bytes) -> bytes:
        """What was closed at this place, or `Damaged`."""

    def close_message(self, row: MessageRow, data: bytes) -> bytes:
        """The body to store in this row, whose other columns are its place (but `key`, `token` and `size`)."""

    def open_messages(self, rows: Sequence[MessageRow]) -> list[bytes]:
        """What was closed in these rows, or `Damaged`."""

    def fingerprint(self) -> Fingerprint:
        """A new one, for an attachment of this conversation."""

    def prove(
        self, proof: bytes, added: Iterable[MessageRow | PackRow], dropped: Iterable[MessageRow | PackRow]
    ) -> bytes:
        """The proof over all messages and packs, as they are stored, after these came and those went. Additive, so
        order does not matter."""


class Codec(Protocol):
    """Makes envelopes."""

    name: str
    in_clear: bool  # whoever has the files can read what it closes

    def new_data_key(self, conversation: bytes) -> bytes:
        """The wrapped key of a new conversation."""

    def envelope(self, row: ConversationRow) -> Envelope:
        """The envelope of a conversation."""

    def tag(self, field: str, value: str) -> bytes:
        """What stands for this value in an equality index."""


class Plain:
    """No sealing: the content behind a checksum, so that a flipped bit is noticed when it is read, not believed."""

    name = "plain"
    in_clear = True

    def new_data_key(self, conversation: bytes) -> bytes:  # noqa: ARG002  # plain conversations have no key
        return b""

    def envelope(self, row: ConversationRow) -> Envelope:  # noqa: ARG002  # all plain conversations share one
        return self

    def tag(self, field: str, value: str) -> bytes:
        try:
            return f"{field}={value}".encode()
        except UnicodeEncodeError:
            raise InvalidArgument("the text holds half of a surrogate pair, which is not a character") from None

    def close(self, place: Place, data: bytes) -> bytes:  # noqa: ARG002  # a checksum binds no place
        return zlib.crc32(data).to_bytes(4, "big") + data

    def open(self, place: Place, data: bytes) -> bytes:
        if type(data) is not bytes:  # a damaged file may give anything
            raise Damaged(f"a stored {place[0]} is no bytes")
        content = data[4:]
        if zlib.crc32(content) != int.from_bytes(data[:4], "big"):
            raise Damaged(f"the checksum of a stored {place[0]} does not match")
        return content

    def close_message(self, row: MessageRow, data: bytes) -> bytes:  # noqa: ARG002  # see `close`
        return zlib.crc32(data).to_bytes(4, "big") + data

    def open_messages(self, rows: Sequence[MessageRow]) -> list[bytes]:
        crc32, number = zlib.crc32, int.from_bytes
        contents = []
        for row in rows:
            data = row.body or b""
            if type(data) is not bytes:
                raise Damaged("a stored message is no bytes")
            content = data[4:]
            if len(data) < 4 or crc32(content) != number(data[:4], "big"):
                raise Damaged("the checksum of a stored message does not match")
            contents.append(content)
        return contents

    def fingerprint(self) -> Fingerprint:
        import hashlib  # noqa: PLC0415  # most messages have no attachment

        return hashlib.sha256()

    def prove(
        self,
        proof: bytes,
        added: Iterable[MessageRow | PackRow],  # noqa: ARG002  # plain conversations prove nothing
        dropped: Iterable[MessageRow | PackRow],  # noqa: ARG002
    ) -> bytes:
        return proof
