"""Large content that is read on demand: a video in a store, a file that is about to be stored.

A block's content may be an `Attachment` instead of bytes. A write reads it in pieces, so a file of any size needs
little memory. A read with `thread(attachments="lazy")` returns attachments instead of bytes.

If a store has lost the bytes of an attachment, its message comes back with a **hole**: an `Attachment` in the place of
the content, also where bytes were asked for, whose `is_missing` is true. Reading a hole raises `MissingAttachment`. A
message with a hole can be copied and exported; the hole stays a hole.
"""

import os
from collections.abc import Callable, Iterator

from ._system import own_files
from .errors import AlreadyExists, InvalidArgument, MissingAttachment

__all__ = ["Attachment"]

LARGE = 64 * 1024  # bytes of binary content, or of a string in raw JSON, from which on it leaves the message
CHUNK = 256 * 1024  # bytes read at a time


class Attachment:
    """Content that is read in pieces.

        Block.video(Attachment.from_file("talk.mp4"), "video/mp4")

    `size` is in bytes; `text` is true for content that was text before it was stored (a long string in `raw`).
    """

    def __init__(
        self, size: int, pieces: Callable[[], Iterator[bytes]], *, text: bool = False, in_memory: bool = False
    ) -> None:
        """Each call of `pieces` reads from the beginning. `in_memory`: the content is in memory already."""
        if type(size) is not int or size < 0:
            raise InvalidArgument("the size of an attachment is a number of bytes")
        self.in_memory = in_memory
        self.size = size
        self.text = text
        self._pieces = pieces
        # Set by this library: its fingerprint in a store; the bytes that this text encodes, with the form of the
        # encoding; whether it stands for content that is lost.
        self.stored_name: bytes | None = None
        self.encodes: tuple[Attachment, int, str] | None = None
        self.is_hole = False

    @property
    def is_missing(self) -> bool:
        """True if the bytes are lost: reading them raises `MissingAttachment`."""
        return self.is_hole if self.encodes is None else self.encodes[0].is_missing

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Attachment":
        """A file, read when the message is saved. If it changes meanwhile, the message is refused."""
        name = _path(path)
        if not os.path.isfile(name):
            raise InvalidArgument(f"not a file that can be attached: {name!r:.100}")

        def pieces() -> Iterator[bytes]:
            try:
                with open(name, "rb") as file:
                    while piece := file.read(CHUNK):
                        yield piece
            except OSError as error:
                raise InvalidArgument(f"a file to attach cannot be read: {error.strerror}") from error

        return cls(os.path.getsize(name), pieces)

    def __repr__(self) -> str:
        missing = ", missing" if self.is_missing else ""
        return f"<Attachment, {self.size} bytes{' of text' if self.text else ''}{missing}>"

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces()

    def read(self) -> bytes:
        """Read the whole content."""
        return b"".join(self)

    def load(self) -> str | bytes:
        """Read the whole content as text or bytes, as it was stored."""
        return self.read().decode() if self.text else self.read()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the content to a new file, which appears when it is complete."""
        name = _path(path)
        unfinished = own_files.name_unfinished(name)
        try:
            with open(own_files.create(unfinished), "wb") as file:
                file.writelines(self)
                file.flush()
                os.fsync(file.fileno())
            own_files.publish(unfinished, name)
        except FileExistsError:
            raise AlreadyExists("a file", name, hint="choose another name") from None
        except OSError as error:
            raise InvalidArgument(f"an attachment cannot be saved there: {error.strerror}") from error
        finally:
            if os.path.exists(unfinished):
                os.unlink(unfinished)


def hole_of(size: int, *, text: bool, name: bytes) -> Attachment:
    """Return the hole for content that is lost. `name` tells two holes of one message apart."""

    def pieces() -> Iterator[bytes]:
        raise MissingAttachment(size)

    hole = Attachment(size, pieces, text=text)
    hole.stored_name, hole.is_hole = name, True
    return hole


def _path(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str) or not name or "\0" in name or any("\ud800" <= c <= "\udbff" for c in name):
        raise InvalidArgument("a file is given by its path")
    return os.path.abspath(os.path.expanduser(name))
