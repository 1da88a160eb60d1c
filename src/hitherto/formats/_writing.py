"""A new file that appears when it is complete, and never in the place of another.

It is written under a name of its own beside the place, readable by its owner alone, and gets its name when all of it is
on the disk. Whatever goes wrong before, there is nothing afterwards.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import IO

from ..errors import AlreadyExists, CannotOpen, Denied, StorageError, StorageFull


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """The unfinished file, which is there and empty: for what opens files by their names."""
    if "\0" in str(path):
        raise CannotOpen("a path with a NUL in it names no file", hint="give the path of a file")
    unfinished = Path(f"{path}.unfinished-{os.urandom(4).hex()}")
    try:
        if path.exists() or path.is_symlink():
            raise FileExistsError
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield unfinished
        _sync(unfinished, os.O_RDWR)
        os.link(unfinished, path)  # unlike a rename, it never overwrites
        if os.name == "posix":  # Windows does not open directories
            _sync(path.parent, os.O_RDONLY)
    except FileExistsError:
        raise AlreadyExists("a file", str(path), hint="choose another name, or move it away") from None
    except OSError as error:
        raise of_files(error, path) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """The unfinished file, open to be written."""
    with new_path(path) as unfinished, open(unfinished, "wb") as file:
        yield file


def _sync(path: Path, flags: int) -> None:
    """Make a file's content, or a directory's names, durable."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def of_files(error: OSError, path: Path) -> StorageError:
    """An error of the file system as one of ours."""
    what = f"{str(path)!r:.200}: {error.strerror or type(error).__name__}"
    if error.errno in (ENOSPC, EDQUOT):
        return StorageFull(what)
    if isinstance(error, PermissionError):
        return Denied(what)
    return CannotOpen(what, hint="look at the path; a file is written into a directory that exists")
