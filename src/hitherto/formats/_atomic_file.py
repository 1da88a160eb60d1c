"""Creates a new file or directory that appears when it is complete, and never replaces another one.

The file is written under a temporary name in the same directory, readable only by its owner, and is renamed when all of
it is synced. After an error nothing is left.

A new directory may replace an empty one, because people create it beforehand.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EBUSY, EDQUOT, ENOSPC, ENOTDIR, ENOTEMPTY
from pathlib import Path
from typing import IO

from .._system import own_files
from ..errors import AlreadyExists, CannotOpen, Denied, Hint, HithertoError, InvalidArgument, StorageError, StorageFull
from ..keys import Key
from ..snapshots import Unreadable
from ._types import PortableConversation, Source

WriteTo = Callable[[Iterable[PortableConversation], IO[bytes]], int]


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield the path of the unfinished file, which exists and is empty, for writers that open files by name."""
    _check(path)
    unfinished = _beside(path)
    try:
        if os.path.lexists(path):
            raise FileExistsError
        os.close(own_files.create(str(unfinished)))
        try:
            yield unfinished
            own_files.sync(str(unfinished))
            own_files.publish(str(unfinished), str(path))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(unfinished)
    except FileExistsError:
        raise AlreadyExists("a file", str(path), hint=_ANOTHER) from None
    except OSError as error:
        raise of_files(error, path) from None


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield the unfinished file, open for writing."""
    flags = os.O_WRONLY | own_files.CAREFUL
    with new_path(path) as unfinished, open(os.open(unfinished, flags), "wb") as file:
        yield file


class OnlyWritten:
    """A format that can only be written, in clear, by a function that writes to an open file."""

    writes, reads = True, False

    def __init__(self, name: str, suffixes: tuple[str, ...], write_to: WriteTo) -> None:
        self.name, self.suffixes, self.write_to = name, suffixes, write_to

    def recognises(self, source: Source) -> str | None:  # noqa: ARG002  # the shape of a format
        return None

    def read(self, path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:  # noqa: ARG002  # as above
        what = f"the format {self.name} is written, not read"
        raise InvalidArgument(what, hint="jsonl is both, and has everything")

    def write(self, talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
        if key is not None:
            raise InvalidArgument("this format is written in clear", hint="leave the key out; seal the file yourself")
        with new_file(path) as file:
            return self.write_to(talks, file)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield the unfinished directory, which exists and is empty. The caller syncs the files that it puts there."""
    place = path
    try:
        _check(path)
        if os.path.lexists(path):
            if not path.is_dir() or any(path.iterdir()):
                raise FileExistsError
            place = path.resolve()  # the path may be a link
            if place == Path.cwd():  # processes that work in it would lose it
                raise OSError(EBUSY, os.strerror(EBUSY))
        unfinished = _beside(place)
        os.mkdir(unfinished, 0o700)
        try:
            os.chmod(unfinished, 0o700)  # independent of the umask
            yield unfinished
            os.rename(unfinished, place)  # which replaces what is empty, and nothing else
            own_files.sync_names(str(place.parent))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)  # gone after success; an error was raised already
    except OSError as error:
        raise _in_the_way(error, place) or of_files(error, path) from None


def _in_the_way(error: OSError, place: Path) -> HithertoError | None:
    """Return an error if something that cannot be replaced exists at the directory's path, else None."""
    if not os.path.lexists(place):
        return None
    if isinstance(error, FileExistsError) or error.errno in (ENOTEMPTY, ENOTDIR):
        return AlreadyExists("something", str(place), hint=_ANOTHER)
    if error.errno == EBUSY:
        return CannotOpen(f"{str(place)!r:.200} is in use, and cannot be replaced", hint="give the name of a new one")
    return None


def _beside(path: Path) -> Path:
    """Return a temporary name in the same directory."""
    return Path(own_files.name_unfinished(str(path)))


def _check(path: Path) -> None:
    """Raise `CannotOpen` for a path that no file system accepts."""
    try:
        os.fsencode(path)
    except ValueError:
        raise CannotOpen("a path that is not text names no file", hint=_A_PATH) from None
    if "\0" in str(path):
        raise CannotOpen("a path with a NUL in it names no file", hint=_A_PATH)


_A_PATH = "give the path of a file"
_ANOTHER = "choose another name, or move it away"


def of_files(error: OSError, path: Path) -> StorageError:
    """Turn an OSError into one of our errors."""
    what = f"{str(path)!r:.200}: {error.strerror or type(error).__name__}"
    if error.errno in (ENOSPC, EDQUOT):
        return StorageFull(what)
    if isinstance(error, PermissionError):
        return Denied(what)
    hint = Hint("path-not-writable", "look at the path; a file is written into a directory that exists")
    return CannotOpen(what, hint=hint)
