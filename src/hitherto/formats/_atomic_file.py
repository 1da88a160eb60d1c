"""A new file that appears when it is complete, and never in the place of another; and a directory of them.

It is written under a name of its own beside the place, readable by its owner alone, and gets its name when all of it is
on the disk. Whatever goes wrong before, there is nothing afterwards.

An empty directory may stand where a new one is to be, because people make them beforehand.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EBUSY, EDQUOT, ENOSPC, ENOTDIR, ENOTEMPTY
from pathlib import Path
from typing import IO

from .. import _own_files
from ..errors import AlreadyExists, CannotOpen, Denied, Hint, HithertoError, InvalidArgument, StorageError, StorageFull
from ..keys import Key
from ..snapshots import Unreadable
from ._types import PortableConversation, Source

WriteTo = Callable[[Iterable[PortableConversation], IO[bytes]], int]


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """The unfinished file, which is there and empty: for what opens files by their names."""
    _check(path)
    unfinished = _beside(path)
    try:
        if os.path.lexists(path):
            raise FileExistsError
        os.close(_own_files.create(str(unfinished)))
        try:
            yield unfinished
            _own_files.sync(str(unfinished))
            _own_files.publish(str(unfinished), str(path))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(unfinished)
    except FileExistsError:
        raise AlreadyExists("a file", str(path), hint=_ANOTHER) from None
    except OSError as error:
        raise of_files(error, path) from None


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """The unfinished file, open to be written."""
    flags = os.O_WRONLY | _own_files.CAREFUL
    with new_path(path) as unfinished, open(os.open(unfinished, flags), "wb") as file:
        yield file


class OnlyWritten:
    """A format for people or other programs: made of what writes to an open file, in clear, and never read back."""

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
    """The unfinished directory, which is there and empty. What is put into it is on the disk already."""
    place = path
    try:
        _check(path)
        if os.path.lexists(path):
            if not path.is_dir() or any(path.iterdir()):
                raise FileExistsError
            place = path.resolve()  # people have linked folders
            if place == Path.cwd():  # it would be replaced under everybody who is in it
                raise OSError(EBUSY, os.strerror(EBUSY))
        unfinished = _beside(place)
        os.mkdir(unfinished, 0o700)
        try:
            os.chmod(unfinished, 0o700)  # whatever the umask says
            yield unfinished
            os.rename(unfinished, place)  # which replaces what is empty, and nothing else
            _own_files.sync_names(str(place.parent))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)  # as a rule it is not there; what went wrong is said already
    except OSError as error:
        raise _in_the_way(error, place) or of_files(error, path) from None


def _in_the_way(error: OSError, place: Path) -> HithertoError | None:
    """What stands where the directory is to be, and cannot be replaced."""
    if not os.path.lexists(place):
        return None
    if isinstance(error, FileExistsError) or error.errno in (ENOTEMPTY, ENOTDIR):
        return AlreadyExists("something", str(place), hint=_ANOTHER)
    if error.errno == EBUSY:
        return CannotOpen(f"{str(place)!r:.200} is in use, and cannot be replaced", hint="give the name of a new one")
    return None


def _beside(path: Path) -> Path:
    """A name for what is not finished yet, in the same directory."""
    return Path(_own_files.name_unfinished(str(path)))


def _check(path: Path) -> None:
    """Refuse what no file system is asked about."""
    try:
        os.fsencode(path)
    except ValueError:
        raise CannotOpen("a path that is not text names no file", hint=_A_PATH) from None
    if "\0" in str(path):
        raise CannotOpen("a path with a NUL in it names no file", hint=_A_PATH)


_A_PATH = "give the path of a file"
_ANOTHER = "choose another name, or move it away"


def of_files(error: OSError, path: Path) -> StorageError:
    """An error of the file system as one of ours."""
    what = f"{str(path)!r:.200}: {error.strerror or type(error).__name__}"
    if error.errno in (ENOSPC, EDQUOT):
        return StorageFull(what)
    if isinstance(error, PermissionError):
        return Denied(what)
    hint = Hint("path-not-writable", "look at the path; a file is written into a directory that exists")
    return CannotOpen(what, hint=hint)
