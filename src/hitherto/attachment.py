"""Large content that stays where it is until somebody reads it: a video in a store, a file about to be kept.

A block's content may be an `Attachment` instead of bytes. Going in, it is read in pieces, so a file of any size passes
through little memory; coming out, `thread(attachments="lazy")` gives attachments instead of bytes.
"""

import os
from collections.abc import Callable, Iterator

from .errors import AlreadyExists, InvalidArgument

LARGE = 64 * 1024  # bytes of binary content, or of a string in raw JSON, from which on it leaves the message
CHUNK = 256 * 1024  # bytes read at a time


class Attachment:
    """Content that is read in pieces.

        Block.video(Attachment.from_file("talk.mp4"), "video/mp4")

    `size` is in bytes; `text` is true for what was text before it was kept (a long string in `raw`).
    """

    __slots__ = ("_base64", "_name", "_pieces", "in_memory", "size", "text")

    def __init__(
        self, size: int, pieces: Callable[[], Iterator[bytes]], *, text: bool = False, in_memory: bool = False
    ) -> None:
        """`pieces` begins to read from the beginning, every time it is called. `in_memory`: it is all there already."""
        if type(size) is not int or size < 0:
            raise InvalidArgument("the size of an attachment is a number of bytes")
        self.in_memory = in_memory
        self.size = size
        self.text = text
        self._pieces = pieces
        self._name: bytes | None = None  # its fingerprint, if it is in a store
        self._base64: tuple[Attachment, int, str] | None = None  # the bytes that this text says, and how it says them

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
        return f"<Attachment, {self.size} bytes{' of text' if self.text else ''}>"

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces()

    def read(self) -> bytes:
        """All of it."""
        return b"".join(self)

    def load(self) -> str | bytes:
        """All of it, as what it was: text or bytes."""
        return self.read().decode() if self.text else self.read()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a new file, which appears when it is complete."""
        name = _path(path)
        unfinished = f"{name}.unfinished-{os.urandom(4).hex()}"
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.writelines(self)
                file.flush()
                os.fsync(file.fileno())
            os.link(unfinished, name)  # unlike a rename, it never overwrites
        except FileExistsError:
            raise AlreadyExists("a file", name, hint="choose another name") from None
        except OSError as error:
            raise InvalidArgument(f"an attachment cannot be saved there: {error.strerror}") from error
        finally:
            if os.path.exists(unfinished):
                os.unlink(unfinished)


def _path(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str) or not name or "\0" in name or any("\ud800" <= c <= "\udbff" for c in name):
        raise InvalidArgument("a file is given by its path")
    return os.path.abspath(os.path.expanduser(name))
