"""The interface of a bucket, which stores bytes under names. Snapshots are stored in one.

A folder of files and a bucket in the cloud share these few operations. The meaning of the bytes, their sealing, and the
name of each snapshot are decided in the layers above, once for all buckets. A name is a short text with at most one
slash, as in `media/abc`; the caller has checked it.

Every object has a **tag**, which changes whenever its bytes are replaced. So a reader can detect a change, and a write
can depend on the tag. Tags are only compared, never parsed.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from ..errors import InvalidArgument

_LONGEST_SECONDS: Final = 1e9  # thirty years; more cannot be told to every clock


class Whatever:
    """The type of `WHATEVER`: a save without an expectation."""

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
    """The metadata of one object in a bucket."""

    name: str
    size: int  # bytes
    tag: str


class Content(Struct, frozen=True, gc=False):
    """The bytes of an object, or their beginning."""

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
        """Return the object of that name, or None. If it has more than `most` bytes, raise `PayloadTooLarge`, or return
        its beginning if not `whole`."""
        ...

    def put(self, name: str, data: bytes, expect: str | Whatever | None = WHATEVER) -> str:
        """Store the bytes durably and atomically, in place of the present object. Returns the tag. `expect` is the tag
        that the present object must have, or None if there must be none; otherwise raises `Conflict` and changes
        nothing."""
        ...

    def remove(self, name: str) -> bool:
        """Delete the object durably. Returns False if there was none."""
        ...

    def tidy(self) -> None:
        """Delete the remains of interrupted puts."""
        ...

    def things(self, prefix: str = "") -> Iterator[Thing]:
        """Yield all objects with this prefix, in no order. Names below another slash are left out."""
        ...

    def stray(self) -> Iterator[tuple[str, str]]:
        """Yield the names of entries that cannot be objects (a link, a directory), each with the reason."""
        ...
