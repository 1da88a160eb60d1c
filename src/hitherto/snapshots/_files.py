"""A bucket in a folder of files, on a disk, or in memory for tests.

**A put is all or nothing.** It holds the folder's lock from before the comparison with what is expected until the new
file has its name and the directory is on the disk. It writes to one fixed name, `.unfinished`, and renames. Since the
lock is held, whatever lies under that name was left by a process that died: it is overwritten, so that crashes leave at
most one such file, and what had the name before stays whole until it is replaced. Readers take no lock: they open
either the old file or the new one.

**Foreign files are not touched.** A process that may write into the folder could plant a link in it, so that we read or
overwrite its target. So everything is opened relative to a descriptor of the folder and without following links, and
only regular files are things. The folder itself may be reached through links: people have linked home directories.
Opening never waits, or a planted pipe would stop us.

**Tags** say which file it is (its number on the disk), how large, and when it was written and changed. The time of
writing is set by us, because the kernel's own clock stands still for milliseconds: long enough for a file to be
replaced twice and get the same number again.

Where descriptors of folders are not supported, on Windows, paths are joined and looked at before they are opened. That
leaves a moment between looking and opening, and it is untried.
"""

import errno
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Final, Protocol, Self

from .._system.own_files import NO_LINKS, TO_CHANGE, TO_CREATE, TO_READ, describe_kind
from ..errors import (
    Busy,
    CannotOpen,
    Conflict,
    Damaged,
    Denied,
    HithertoError,
    InvalidArgument,
    PayloadTooLarge,
    ReadOnly,
    StorageError,
    StorageFull,
)
from ._bucket import WHATEVER, Bucket, Content, Thing, Whatever, checked_seconds

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOCK: Final = ".lock"
_UNFINISHED: Final = ".unfinished"
_OURS: Final = frozenset({_LOCK, _UNFINISHED})

_BY_DESCRIPTOR: Final = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
_TIMES_BY_DESCRIPTOR: Final = os.utime in os.supports_fd
_TO_LIST: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

_CHUNK: Final = 1 << 20  # bytes read or written at once
_TRIES: Final = 5  # for a folder that others remove while we write into it
_NEVER: Final = re.compile(r"[\x00\\]" if os.name != "nt" else r"[\x00\\:]")
_LINK_HINT: Final = "look at who put it there, and remove it"


class FileSystem(Protocol):
    """Where folders of snapshots are: a disk, or the memory of a test."""

    def folder(self, path: str) -> Bucket:
        """The folder of that path, which need not be there yet. Two of the same path are the same."""
        ...


# -- names


def checked_name(name: str) -> tuple[str, str]:
    """Split a name into the folder inside the bucket and the name in it. The caller has checked the name; this is the
    last check before it becomes a path."""
    above, slash, last = name.rpartition("/")
    parts = (above, last) if slash else (last,)
    if any(part in ("", ".", "..") or part in _OURS or "/" in part or _NEVER.search(part) for part in parts):
        raise InvalidArgument("not a name that a bucket keeps anything under")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("not a name that a bucket keeps anything under: it is not text") from None
    return above, last


def too_large(where: str, size: int, most: int) -> PayloadTooLarge:
    hint = "look at what it is: nothing that was saved here is as large"
    return PayloadTooLarge(size, most, what=f"one file in {where}", hint=hint)


def in_the_way(name: str, expect: str | None, found: str | None) -> Conflict:
    hint = "load it again and decide, or save without expecting anything"
    return Conflict(expected=expect, head=found, what=f"the tag of {name}", hint=hint)


# -- a disk


class DiskFiles:
    """The file system of this machine. `timeout_seconds` bounds how long a write waits for other writers."""

    def __init__(self, *, timeout_seconds: float = 10.0) -> None:
        self._timeout_seconds = checked_seconds(timeout_seconds, none=True)

    def folder(self, path: str) -> Bucket:
        return _DiskFolder(_full_path(path), self._timeout_seconds)


def _full_path(path: str) -> str:
    """`~` is expanded, and the path made independent of the working directory."""
    if not isinstance(path, str):
        raise InvalidArgument(f"the path of a folder is text, not a {type(path).__name__}")
    expanded = os.path.expanduser(path)
    if not path or "\0" in path:
        raise InvalidArgument("not the path of a folder", hint="give the path of a folder")
    if expanded.startswith("~"):
        raise InvalidArgument("nobody's home directory is known under that name", hint="give the whole path")
    try:
        os.fsencode(expanded)
        return os.path.abspath(expanded)
    except ValueError:
        raise InvalidArgument("not the path of a folder: it is not text") from None
    except OSError as error:
        raise _translate_error(error, "the working directory") from error


class _Directory:
    """An open directory: what is done in it goes through its descriptor, so that nobody can exchange it meanwhile."""

    def __init__(self, path: str, above: "_Directory | None" = None) -> None:
        self.path = path
        self._descriptor: int | None = None
        if not _BY_DESCRIPTOR:
            _look(path, follow=above is None)
        elif above is None:
            self._descriptor = os.open(path, _TO_LIST)
        else:
            self._descriptor = os.open(os.path.basename(path), _TO_LIST | NO_LINKS, dir_fd=above._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _at(self, name: str) -> str:
        return name if _BY_DESCRIPTOR else os.path.join(self.path, name)

    def below(self, name: str) -> "_Directory":
        return _Directory(os.path.join(self.path, name), self)

    def open(self, name: str, flags: int) -> int:
        if not NO_LINKS and not flags & os.O_EXCL and stat.S_ISLNK(self.stat(name).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return os.open(self._at(name), flags, 0o600, dir_fd=self._descriptor)

    def stat(self, name: str) -> os.stat_result:
        return os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)

    def state(self, name: str) -> os.stat_result | None:
        try:
            return self.stat(name)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def rename(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def make(self, name: str) -> None:
        with suppress(FileExistsError):  # another process was faster
            os.mkdir(self._at(name), 0o700, dir_fd=self._descriptor)
            os.chmod(self._at(name), 0o700, dir_fd=self._descriptor)  # whatever the umask says
            self.sync()

    def sync(self) -> None:
        if self._descriptor is not None:  # Windows cannot sync a directory
            os.fsync(self._descriptor)

    def entries(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.path if self._descriptor is None else self._descriptor) as found:
            return list(found)


def _look(path: str, *, follow: bool) -> None:
    """Check a path before it is used, on systems without directory descriptors. Raises the errors that opening a
    descriptor would raise."""
    found = os.stat(path) if follow else os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


class _DiskFolder:
    """The bucket."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds

    def __repr__(self) -> str:
        return f"<folder {self._path}>"

    @property
    def where(self) -> str:
        return self._path

    # -- reading

    def get(self, name: str, most: int, *, whole: bool = True) -> Content | None:
        above, last = checked_name(name)
        with self._errors(name), self._open_folder(above) as directory:
            if directory is None:
                return None
            try:
                descriptor = directory.open(last, TO_READ)
            except FileNotFoundError:
                return None
            try:
                return self._read(descriptor, name, most, whole)
            finally:
                os.close(descriptor)

    def _read(self, descriptor: int, name: str, most: int, whole: bool) -> Content:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{self._path_of(name)} is {describe_kind(found.st_mode)}, not a file", hint=_LINK_HINT)
        if whole and found.st_size > most:
            raise too_large(self._path, found.st_size, most)
        data = _read_up_to(descriptor, most + 1)
        if whole and len(data) > most:
            raise too_large(self._path, len(data), most)
        if len(data) != min(found.st_size, most + 1):
            hint = "another program writes into it: what is saved here is replaced, never changed"
            raise Damaged(f"{self._path_of(name)} changed while it was read", hint=hint)
        return Content(data[:most], found.st_size, _tag(found))

    def things(self, prefix: str = "") -> Iterator[Thing]:
        above, slash, begin = prefix.rpartition("/")
        if slash:
            checked_name(above)
        found: list[Thing] = []
        with self._errors(above or prefix), self._open_folder(above) as directory:
            for entry in directory.entries() if directory is not None else ():
                if entry.name.startswith(begin) and entry.name not in _OURS and _is_text(entry.name):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        state = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(state.st_mode):
                            found.append(Thing(above + slash + entry.name, state.st_size, _tag(state)))
        return iter(found)

    def stray(self) -> Iterator[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        with self._errors("its names"), self._open_folder("") as directory:
            for entry in directory.entries() if directory is not None else ():
                if not _is_text(entry.name):
                    found.append((os.fsencode(entry.name).decode("utf-8", "backslashreplace"), "its name is not text"))
                elif not entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        found.append((entry.name, describe_kind(entry.stat(follow_symlinks=False).st_mode)))
        return iter(found)

    # -- writing

    def put(self, name: str, data: bytes, expect: str | Whatever | None = WHATEVER) -> str:
        above, last = checked_name(name)
        for _ in range(_TRIES):
            with self._errors(name):
                if isinstance(expect, str) and not os.path.isdir(self._path):
                    raise in_the_way(name, expect, None)  # and no folder is made
                try:
                    _make_folder(self._path)
                    with _Directory(self._path) as folder, self._hold_lock(folder):
                        return self._put(folder, above, last, data, expect)
                except FileNotFoundError:  # the folder was removed since the check
                    continue
        hint = "it may be a link that leads nowhere, or be removed again and again"
        raise CannotOpen(f"{self._path} is not there, though it was made", hint=hint)

    def _put(self, folder: _Directory, above: str, last: str, data: bytes, expect: str | Whatever | None) -> str:
        if above:
            folder.make(above)
        with folder.below(above) if above else nullcontext(folder) as directory:
            if not isinstance(expect, Whatever):
                state = directory.state(last)
                found = None if state is None else _tag(state)
                if found != expect:
                    raise in_the_way(last, expect, found)
            _write(directory, last, data)
            return _tag(directory.stat(last))

    def remove(self, name: str) -> bool:
        above, last = checked_name(name)
        with self._errors(name), self._open_folder(above) as directory:
            if directory is None or directory.state(last) is None:
                return False
            with _Directory(self._path) as folder, self._hold_lock(folder):
                try:
                    directory.remove(last)
                except FileNotFoundError:
                    return False
                directory.sync()
                return True

    def tidy(self) -> None:
        """Delete the unfinished file. It belongs to a process that died, because the lock is held here."""
        inner = sorted({thing.name for thing in self._folders()})
        for above in ("", *inner):
            with self._errors(_UNFINISHED), self._open_folder(above) as directory:
                if directory is None or directory.state(_UNFINISHED) is None:
                    continue
                with _Directory(self._path) as folder, self._hold_lock(folder), suppress(FileNotFoundError):
                    directory.remove(_UNFINISHED)
                    directory.sync()

    def _folders(self) -> list[os.DirEntry[str]]:
        with self._errors("its folders"), self._open_folder("") as directory:
            entries = [] if directory is None else directory.entries()
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]

    # -- the folder and its lock

    @contextmanager
    def _open_folder(self, above: str) -> Iterator[_Directory | None]:
        """Yield the folder, or the one in it, or None if it does not exist."""
        try:
            folder = _Directory(self._path)
        except FileNotFoundError:
            yield None
            return
        with folder:
            if not above:
                yield folder
                return
            try:
                below = folder.below(above)
            except FileNotFoundError:
                yield None
                return
            with below:
                yield below

    @contextmanager
    def _hold_lock(self, folder: _Directory) -> Iterator[None]:
        """Hold the write lock of the folder, against other threads and processes. Raises `Busy` after the timeout."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            descriptor = _open_lock(folder)
            try:
                if not _take(descriptor, deadline):
                    raise Busy(f"other writers held the lock of {self._path} for too long")
                if _is_at(descriptor, folder):
                    yield
                    return
            finally:
                _release(descriptor)

    def _path_of(self, name: str) -> str:
        return os.path.join(self._path, name)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except HithertoError:
            raise
        except OSError as error:
            raise _translate_error(error, self._path_of(name)) from error


def _make_folder(path: str) -> None:
    """The folder and those above it, private, each durable in the one above. Of a path that is too long, nothing is
    made."""
    missing: list[str] = []
    while not _is_there(path) and os.path.dirname(path) != path:
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with _Directory(os.path.dirname(folder)) as above:
            above.make(os.path.basename(folder))


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _write(directory: _Directory, name: str, data: bytes) -> None:
    """Write a new file and sync it, then rename it and sync the directory."""
    before = directory.state(name)
    with suppress(FileNotFoundError):
        directory.remove(_UNFINISHED)
    descriptor = directory.open(_UNFINISHED, TO_CREATE)
    try:
        try:
            _fill(descriptor, data, before)
        finally:
            os.close(descriptor)
        directory.rename(_UNFINISHED, name)
    except BaseException:
        with suppress(OSError):  # it is overwritten by the next put anyway
            directory.remove(_UNFINISHED)
        raise
    directory.sync()


def _fill(descriptor: int, data: bytes, before: os.stat_result | None) -> None:
    if sys.platform != "win32":
        os.fchmod(descriptor, 0o600)  # whatever the umask says
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest[:_CHUNK]) :]
    now = max(time.time_ns(), 0 if before is None else before.st_mtime_ns + 1)
    if _TIMES_BY_DESCRIPTOR:
        os.utime(descriptor, ns=(now, now))
    os.fsync(descriptor)


def _read_up_to(descriptor: int, most: int) -> bytes:
    parts: list[bytes] = []
    while most > 0:
        part = os.read(descriptor, min(most, _CHUNK))
        if not part:
            break
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _tag(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}-{found.st_ctime_ns:x}"


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the lock

_held: set[int] = set()  # descriptors of locks


def _let_go() -> None:
    """Close inherited descriptors of locks after a fork. A child that was forked while a thread held a lock has a copy
    of its descriptor, and would keep the lock if the parent died. That thread does not exist in the child, so this
    function must close it."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _open_lock(folder: _Directory) -> int:
    try:
        descriptor = folder.open(_LOCK, TO_CREATE)
        if sys.platform != "win32":
            os.fchmod(descriptor, 0o600)
    except FileExistsError:
        descriptor = folder.open(_LOCK, TO_CHANGE)
    _held.add(descriptor)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        _release(descriptor)
        raise StorageError(f"{folder.path}/{_LOCK} is {describe_kind(mode)}, not a file", hint=_LINK_HINT)
    return descriptor


def _take(descriptor: int, deadline: float) -> bool:
    """Take a lock before the deadline. The kernel cannot wait for a bounded time, so this polls with growing pauses."""
    pause = 0.0005
    while not _try(descriptor):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.02)
    return True


if sys.platform == "win32":

    def _try(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _try(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _release(descriptor: int) -> None:
    """Unlock and close a descriptor. Closing alone would leave the lock to a child that was forked meanwhile."""
    _held.discard(descriptor)
    with suppress(OSError):  # it was not locked
        _unlock(descriptor)
    os.close(descriptor)


def _is_at(descriptor: int, folder: _Directory) -> bool:
    """Return True if the held lock is still the folder's: it may have been removed while we waited."""
    state = folder.state(_LOCK)
    return state is not None and os.path.samestat(state, os.fstat(descriptor))


# -- errors

_REFUSED = {errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def _translate_error(error: OSError, what: str) -> HithertoError:
    """Turn an OSError into one of our errors."""
    said = error.strerror or type(error).__name__
    match error.errno:
        case number if number in _REFUSED:
            return Denied(f"{what}: {said}")
        case number if number in _FULL:
            return StorageFull(f"{what}: {said}", hint="free some space, then try again")
        case errno.EROFS:
            return ReadOnly(f"{what}: {said}")
        case errno.ENOTDIR:
            return CannotOpen(f"{what}: {said}", hint="give the path of a folder; a file or a link is in the way")
        case errno.ENAMETOOLONG:
            return InvalidArgument(f"a path that is too long: {said}")
        case errno.ELOOP:
            return Damaged(f"{what} is, or leads over, a link, which is not followed", hint=_LINK_HINT)
        case errno.EISDIR:
            return StorageError(f"{what} is a directory", hint="look at what it is, and move it away")
    return StorageError(f"{what}: {said}", hint="check the disk and the path")


# -- memory


class MemoryFiles:
    """A file system in memory, for tests of what saves snapshots. Nothing of it outlives the process."""

    def __init__(self) -> None:
        self._folders: dict[str, _MemoryFolder] = {}
        self._lock = threading.Lock()

    def folder(self, path: str) -> Bucket:
        full = _full_path(path)
        with self._lock:
            return self._folders.setdefault(full, _MemoryFolder(full))


class _MemoryFolder:
    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: dict[str, Content] = {}
        self._puts = 0
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        return f"{self._path} in memory"

    def get(self, name: str, most: int, *, whole: bool = True) -> Content | None:
        checked_name(name)
        found = self._kept.get(name)
        if found is None or found.size <= most:
            return found
        if whole:
            raise too_large(self.where, found.size, most)
        return Content(found.data[:most], found.size, found.tag)

    def put(self, name: str, data: bytes, expect: str | Whatever | None = WHATEVER) -> str:
        checked_name(name)
        with self._lock:
            found = self._kept.get(name)
            tag = None if found is None else found.tag
            if not isinstance(expect, Whatever) and tag != expect:
                raise in_the_way(name, expect, tag)
            self._puts += 1
            self._kept[name] = Content(bytes(data), len(data), str(self._puts))
            return str(self._puts)

    def remove(self, name: str) -> bool:
        checked_name(name)
        with self._lock:
            return self._kept.pop(name, None) is not None

    def things(self, prefix: str = "") -> Iterator[Thing]:
        with self._lock:
            kept = list(self._kept.items())
        slashes = prefix.count("/")
        return iter([Thing(n, c.size, c.tag) for n, c in kept if n.startswith(prefix) and n.count("/") == slashes])

    def tidy(self) -> None:
        """Do nothing: there are no unfinished files in memory."""

    def stray(self) -> Iterator[tuple[str, str]]:
        return iter(())
