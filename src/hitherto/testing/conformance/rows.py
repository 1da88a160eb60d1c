"""Rows and batches for tests of a backend.

Each row has something in every column, so that a test which compares rows notices a column that a backend forgets.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ...backend import (
    Backend,
    Batch,
    Change,
    ConversationRow,
    MessageRow,
    PackRow,
)
from ...ids import RUN

A, B, C = (bytes([n]) * 16 for n in (0xA0, 0xB0, 0xC0))


def token(version: int) -> bytes:
    return version.to_bytes(16, "big")


def flip_bit(body: bytes) -> bytes:
    """With one bit of it another."""
    return body[:-1] + bytes([body[-1] ^ 1])


def conversation_row(id: bytes = A, version: int = 1, **fields: object) -> ConversationRow:
    """A row with something in every column."""
    row = ConversationRow(
        id=id,
        kind="chat",
        key=None,
        version=version,
        token=token(version),
        generation=1,
        head=None,
        tips=(),
        next_seq=0,
        count=0,
        size=0,
        rewrites=0,
        created_at=1000,
        active_at=1000,
        expires_at=None,
        held=False,
        data_key=b"\x00key",
        meta=b"meta\xff",
        proof=b"",
    )
    return replace(row, **fields)


def message_row(number: int, conversation: bytes = A, **fields: object) -> MessageRow:
    """A message whose parent is the number before it, unless it begins a run."""
    row = MessageRow(
        number=number,
        conversation=conversation,
        seq=number,
        parent=None if number % RUN == 0 else number - 1,
        link=None,
        main=True,
        role="user",
        revision=0,
        created_at=2000 + number,
        key=None,
        token=b"m" * 16,
        size=4,
        body=b"body%d\x00" % number,
    )
    return replace(row, **fields)


def pack_row(first: int, count: int, conversation: bytes = A, **fields: object) -> PackRow:
    """A pack of the first so many messages of a run, which is a root's unless a parent is given."""
    return replace(PackRow(first, conversation, None, count, b"pack%d" % first), **fields)


def create(*messages: MessageRow, id: bytes = A, version: int = 1, **fields: object) -> Batch:
    return Batch((Change(id, None, conversation_row(id, version, **fields), add=messages),))


def update(version: int, id: bytes = A, **change: object) -> Batch:
    row = conversation_row(id, version + 1)
    return Batch((replace(Change(id, token(version), row), **change),))


def way(backend: Backend, number: int) -> list[list[MessageRow]]:
    """The pieces of a path none of which is packed."""
    return [piece for piece in backend.path(number) if not isinstance(piece, PackRow)]


def rebase_from(version: int, id: bytes = A) -> Callable[[ConversationRow, Sequence[int]], list[Batch | None]]:
    """Makes batches anew, one after the other: their versions begin with this one."""

    def rebase(row: ConversationRow, places: Sequence[int]) -> list[Batch | None]:
        made: list[Batch | None] = []
        for n, _ in enumerate(places):
            after = conversation_row(id, version + n)
            made.append(Batch((Change(id, row.token, after),)))
            row = after
        return made

    return rebase


def never(row: ConversationRow, places: Sequence[int]) -> list[Batch | None]:
    raise AssertionError(f"{len(places)} batches are not late, but were to be made anew from version {row.version}")
