"""Where snapshots lie: a bucket, which keeps bytes under names.

A folder of files and a bucket in the cloud can do the same few things, and nothing more is asked of them. What the
bytes mean, whether they are sealed, and which name belongs to which snapshot is decided above, so that it is decided
once. A name is a short text without a slash, or with one, as in `media/abc`; it was checked by whoever asks.

Every thing that is kept has a **tag**, which changes whenever its bytes are replaced: what a reader has seen can be
told from what is there now, and a write can be made to depend on it. Tags are compared, never understood.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from ..errors import InvalidArgument

_LONGEST_SECONDS: Final = 1e9  # thirty years; more cannot be told to every clock


class Whatever:
    """The expectation of whoever has none."""

    def __repr__(self) -> str:
        return "WHATEVER"


WHATEVER: Final = Whatever()


def checked_seconds(seconds: object, *, none: bool = False) -> float:
    """A time to wait, which may be `none` at all only where that makes sense; else `InvalidArgument`."""
    number = seconds if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) else -1
    if 0 < number <= _LONGEST_SECONDS or (none and number == 0):
        return float(number)
    least = "from 0 up" if none else "that is more than 0"
    raise InvalidArgument(f"timeout_seconds is a number {least}, and at most a thousand million")


class Thing(Struct, frozen=True, gc=False):
    """What a bucket says of one thing without giving it out."""

    name: str
    size: int  # bytes
    tag: str


class Content(Struct, frozen=True, gc=False):
    """A thing, or the beginning of one."""

    data: bytes
    size: int  # of the whole
    tag: str


class Bucket(Protocol):
    """Bytes under names. Used by many threads and processes at once.

    Errors are ours: `Denied`, `Unavailable`, `StorageFull`, `CannotOpen`, or `StorageError` for what is none of these,
    and never with a credential in them. A bucket that does not exist yet is empty; the first `put` makes it, where
    making one is ours to do.
    """

    @property
    def where(self) -> str:
        """The place in words, for messages to people. Without credentials."""
        ...

    def get(self, name: str, most: int, *, whole: bool = True) -> Content | None:
        """What is kept under the name; None if there is nothing. More than `most` bytes are `PayloadTooLarge`, or cut
        there if not `whole`."""
        ...

    def put(self, name: str, data: bytes, expect: str | Whatever | None = WHATEVER) -> str:
        """Keep it, durably, in place of what is there, all of it or nothing. Returns the tag. `expect` is the tag of
        what must be there, None if there must be nothing; otherwise `Conflict`, and nothing is changed."""
        ...

    def remove(self, name: str) -> bool:
        """Take it away, durably. False if there was nothing."""
        ...

    def tidy(self) -> None:
        """Take away what puts have left that never came to their end."""
        ...

    def things(self, prefix: str = "") -> Iterator[Thing]:
        """Everything whose name begins so, in no order. Names below another slash are left out."""
        ...

    def stray(self) -> Iterator[tuple[str, str]]:
        """Names that are taken by what can never be a thing here, each with the reason: a link, a directory."""
        ...
