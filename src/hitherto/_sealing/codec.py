"""The codec: turns content into the opaque bytes that backends store, and back. No other module does.

Each piece of content is closed at a **place** (its field, and the clear columns of its row), and opens only with the
same place: the place is authenticated data. The plain codec detects damage with a checksum. Sealing (`sealed`) replaces
the codec and nothing else. A codec makes one `Envelope` per conversation, because each conversation has its own keys.

A conversation's row carries a **proof** of itself and of all its messages, packs and items of users, as a sum over
their weights. The plain codec proves nothing.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from ..backend import ConversationRow, ItemRow, MessageRow, PackRow
from ..errors import Damaged, InvalidArgument, KeyUnavailable
from ..ids import new_token

Place = tuple[object, ...]
StoredRow = MessageRow | PackRow | ItemRow  # a row that has a weight; of items, those of users
MODULUS = 1 << 128  # of the sums in proofs


class Fingerprint(Protocol):
    """Computes the name of content from its bytes."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Envelope(Protocol):
    """Closes and opens the content of one conversation."""

    generation: int  # of the key that closes
    proves: bool  # its proofs are cryptographic
    settled: bool  # it is not being re-encrypted

    def close(self, place: Place, data: bytes) -> bytes:
        """Return the bytes to store."""

    def open(self, place: Place, data: bytes) -> bytes:
        """Return the content that was closed at this place. Raises `Damaged`."""

    def close_message(self, row: MessageRow, data: bytes) -> bytes:
        """Return the body to store in this row. The other columns (but `key`, `token`, `size`) are its place."""

    def open_messages(self, rows: Sequence[MessageRow]) -> list[bytes]:
        """Return the contents of these rows. Raises `Damaged`."""

    def fingerprint(self, name: bytes | None = None) -> Fingerprint:
        """Return a new fingerprint for an attachment of this conversation. With `name`, one that computes that name
        again."""

    def is_current_name(self, name: bytes) -> bool:
        """Return True if an attachment of this name was named with the key that closes now."""

    def tags(self, field: str, value: str) -> list[bytes]:
        """Return the tags of this value in this conversation. Write the first; search for all of them."""

    def weigh(self, rows: Iterable[StoredRow]) -> int:
        """Return the sum of the weights of these messages, packs and items, as they are stored."""

    def total(self, row: ConversationRow) -> int:
        """Return the sum in the proof of this row. Raises `Damaged` if the row does not match its proof."""

    def prove(self, row: ConversationRow, total: int) -> bytes:
        """Return the proof of this row with this sum. The other columns must be final."""


class Codec(Protocol):
    """Makes envelopes."""

    name: str
    in_clear: bool  # content can be read from the files without a key

    def new_data_key(self, conversation: bytes) -> bytes:
        """Return the wrapped data key for a new conversation."""

    def envelope(self, row: ConversationRow) -> Envelope:
        """Return the envelope of a conversation."""

    def first_envelope(self, row: ConversationRow) -> Envelope:
        """Return the envelope of a conversation that is being created, and has no proof yet."""

    def tag(self, field: str, value: str) -> bytes:
        """Return the tag to write for this value into an equality index."""

    def tags(self, field: str, value: str) -> list[bytes]:
        """Return all tags to search for: that of `tag`, and older ones while the store is re-encrypted."""


def next_row(
    envelope: Envelope,
    row: ConversationRow,
    came: Iterable[StoredRow] = (),
    went: Iterable[StoredRow] = (),
    **fields: object,
) -> ConversationRow:
    """Return the row after one more write, with its proof, after adding `came` and removing `went`. A write that
    readers cannot notice keeps the version (`version=row.version`)."""
    total = envelope.total(row) + envelope.weigh(came) - envelope.weigh(went)
    after = replace(row, **{"version": row.version + 1, "token": new_token(), **fields, "proof": b""})
    return replace(after, proof=envelope.prove(after, total))


class Plain:
    """No sealing: the content with a checksum, so that a flipped bit is detected when it is read."""

    name = "plain"
    in_clear = True
    generation = 0
    proves = False
    settled = True

    def new_data_key(self, conversation: bytes) -> bytes:  # noqa: ARG002  # plain conversations have no key
        return b""

    def envelope(self, row: ConversationRow) -> Envelope:
        if row.data_key:
            hint = "if it was sealed meanwhile, open it again with its key"
            raise KeyUnavailable("a conversation is sealed, and the store was opened without a key", hint=hint)
        return self  # all plain conversations share one

    def first_envelope(self, row: ConversationRow) -> Envelope:
        return self.envelope(row)

    def tag(self, field: str, value: str) -> bytes:
        try:
            return f"{field}={value}".encode()
        except UnicodeEncodeError:
            raise InvalidArgument("the text holds half of a surrogate pair, which is not a character") from None

    def tags(self, field: str, value: str) -> list[bytes]:
        return [self.tag(field, value)]

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

    def fingerprint(self, name: bytes | None = None) -> Fingerprint:  # noqa: ARG002  # there is one kind
        import hashlib  # noqa: PLC0415  # most messages have no attachment

        return hashlib.sha256()

    def is_current_name(self, name: bytes) -> bool:
        return len(name) == 32

    def weigh(self, rows: Iterable[StoredRow]) -> int:  # noqa: ARG002  # plain conversations prove nothing
        return 0

    def total(self, row: ConversationRow) -> int:  # noqa: ARG002
        return 0

    def prove(self, row: ConversationRow, total: int) -> bytes:  # noqa: ARG002
        return b""
