"""The files that an import reads: a folder, a zip, or one file and what lies beside it.

Importers name files by their paths in the folder or zip. These names come from somebody else, so nothing is ever
written to a path that was made from one: the contents of a zip are streamed, and what a library must open by its path
(SQLite) is copied under a name of ours into a private temporary folder.

A zip may claim little and hold much. The bytes that are read of it, all together, are bounded by its own size.
"""

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..errors import Damaged, InvalidArgument
from ._atomic_file import of_files
from ._sqlite_file import MAGIC, tables_in
from ._types import HEAD, Source

STREAM = "stdin"
_MOST_FILES = 500_000  # in one folder or zip
_ALWAYS = 1 << 26  # bytes that may be read of any zip
_MOST_TIMES = 300  # and so many times its own size
_BESIDE = ("-wal", "-shm")  # what SQLite keeps next to a file
_MEDIA = (".gif", ".jpeg", ".jpg", ".m4a", ".mp3", ".mp4", ".pdf", ".png", ".wav", ".webm", ".webp")


class Files:
    """Files by their names, which are relative and have `/` between their parts. This class is a folder; with `only`,
    one file in it, from which importers may reach what lies beside it."""

    def __init__(self, root: Path, only: str | None = None) -> None:
        self.root = root
        self._only = only

    @property
    def is_one(self) -> bool:
        """Return True if this is one file, and not a folder or a zip."""
        return self._only is not None

    @property
    def path(self) -> Path:
        """Return the path of all of it: of the folder, the zip or the file."""
        return self.root if self._only is None else self.root / self._only

    def names(self, under: str = "") -> Iterator[str]:
        """Yield the names of all files below a folder, in order. Links to folders are not followed."""
        if self._only is not None and not under:
            yield self._only
            return
        count = 0
        for folder, folders, files in os.walk(self.root / under if under else self.root, onerror=self._refuse):
            folders.sort()
            for file in sorted(files):
                path = Path(folder, file)
                if path.is_file():
                    count += 1
                    if count > _MOST_FILES:
                        raise InvalidArgument(
                            f"more than {_MOST_FILES:,} files lie in this folder", hint="import parts"
                        )
                    yield path.relative_to(self.root).as_posix()

    def _refuse(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # under a file, there is nothing
            raise of_files(error, Path(error.filename or self.root))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self.root / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        try:
            return open(self.root / name, "rb")
        except OSError as error:
            raise of_files(error, self.root / name) from None

    def size(self, name: str) -> int:
        """Return how many bytes a file has."""
        try:
            return (self.root / name).stat().st_size
        except OSError as error:
            raise of_files(error, self.root / name) from None

    def modified_us(self, name: str) -> int:
        """Return when a file was last changed, in microseconds; 0 if that is unknown."""
        try:
            return (self.root / name).stat().st_mtime_ns // 1000
        except OSError:
            return 0

    def label(self, name: str) -> str:
        """Return what to call a file in reports."""
        return name

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Yield the path of a file, for libraries that open files by their paths."""
        yield self.root / name

    def source(self, name: str) -> Source:
        """Return a file as formats recognise it. Media are not looked into."""
        if name.lower().endswith(_MEDIA):
            return Source(Path(name), False, b"")
        with self.open(name) as file:
            head = file.read(HEAD)
        if not head.startswith(MAGIC):
            return Source(Path(name), False, head)
        with self.local(name) as path:
            return Source(Path(name), False, head, tables_in(path))

    def close(self) -> None:
        """Let go of temporary files."""


class ZipFiles(Files):
    """The files of a zip."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise of_files(error, path) from None
        except (zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
            raise Damaged(f"the zip {path.name!r:.100} cannot be read: {error}", hint="fetch the file again") from None
        self._infos = {info.filename: info for info in self._zip.infolist() if not info.is_dir()}
        if len(self._infos) > _MOST_FILES:
            raise InvalidArgument(f"the zip has more than {_MOST_FILES:,} files", hint="unpack it, and import parts")
        self._left = _ALWAYS + _MOST_TIMES * path.stat().st_size

    def names(self, under: str = "") -> Iterator[str]:
        """Yield the names of all files below a folder, in order."""
        start = f"{under}/" if under else ""
        yield from sorted(name for name in self._infos if name.startswith(start))

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading from its beginning to its end."""
        info = self._infos[name]
        if info.flag_bits & 1:
            raise Damaged(f"{name!r:.100} in the zip is encrypted", hint="unpack the zip, and import the folder")
        try:
            return io.BufferedReader(_Bounded(self, self._zip.open(info), name))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise Damaged(f"{name!r:.100} in the zip cannot be read: {error}") from None

    def size(self, name: str) -> int:
        """Return how many bytes a file has, as the zip says."""
        return self._infos[name].file_size

    def modified_us(self, name: str) -> int:  # noqa: ARG002  # as a folder has it
        """Return 0: a zip has local times of unknown zones."""
        return 0

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Yield the path of a private copy."""
        with tempfile.TemporaryDirectory(prefix="hitherto-") as folder:
            path = Path(folder, "file")
            for end in ("", *_BESIDE):
                if name + end in self._infos:
                    with self.open(name + end) as file, open(f"{path}{end}", "xb") as copy:
                        shutil.copyfileobj(file, copy)
            yield path

    def take(self, size: int, name: str) -> None:
        """Count bytes that were read; `Damaged` if they are too many for this zip."""
        self._left -= size
        if self._left < 0:
            hint = "unpack it where there is room, and import the folder"
            raise Damaged(f"{name!r:.100}: the zip holds far more than its size allows for", hint=hint)

    def close(self) -> None:
        """Close the zip."""
        self._zip.close()


class _Bounded(io.RawIOBase):
    """A file in a zip, whose bytes are counted as they are read."""

    def __init__(self, owner: ZipFiles, file: IO[bytes], name: str) -> None:
        self._owner, self._file, self._name = owner, file, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]  # a buffer is one of these
        try:
            data = self._file.read(len(buffer))
        except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError) as error:
            raise Damaged(f"{self._name!r:.100} in the zip cannot be read: {error}") from None
        except Exception as error:  # noqa: BLE001  # zlib.error and lzma.LZMAError have no root in common
            raise Damaged(f"{self._name!r:.100} in the zip is damaged: {error}") from None
        self._owner.take(len(data), self._name)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class StreamFiles(Files):
    """A stream as one file: a private copy, because formats look at the beginning first."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hitherto-")
        super().__init__(Path(self._folder.name), STREAM)
        with open(self.path, "xb") as copy:
            shutil.copyfileobj(stream, copy)

    def close(self) -> None:
        """Remove the copy."""
        with suppress(OSError):
            self._folder.cleanup()


def is_zip(path: Path) -> bool:
    """Return True if a file begins as a zip does and ends as one."""
    if not path.is_file():  # a pipe would keep us waiting
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06") and zipfile.is_zipfile(path)
    except OSError:
        return False


def open_files(path: Path) -> Files:
    """Return the files at a path: of a folder, of a zip, or the one file."""
    try:
        if path.is_dir():
            return Files(path)
        return ZipFiles(path) if is_zip(path) else Files(path.parent, path.name)
    except OSError as error:  # a name that is too long, say
        raise of_files(error, path) from None
