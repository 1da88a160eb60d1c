"""Create, check and publish our files in folders where other users may put files, too.

A store has files beside it: SQLite's `-wal`, `-shm` and `-journal`, the search index, the ballast. Their names are
known, so an attacker who can put a file there once (a cloned project brings a folder along) can plant a link, a pipe or
any file under such a name. Three rules make that harmless:

- **A new file is created with `O_EXCL`** and private. Nothing that is there is opened, followed or truncated by it. A
  file that has to appear complete is written under a random name and then linked to its own (`publish`): a link never
  replaces anything.
- **A file that is there is examined before it is used**: by `lstat`, which follows nothing. It has to be a regular file
  with one name (a hard link could be a foreign file under another name), owned by a user whom we trust.
- **A file that is read is checked by its descriptor**, and opening never waits: a pipe without a writer would block for
  ever.

The caller knows the format, and checks the content. The folder and the store's own file may be reached through links:
home directories may be links, and a link may move a store to another disk.

There is a moment between examining a name and using it. An attacker who can write to the folder at that moment, and not
only earlier, can use it; `hitherto doctor` reports folders that other users can write to.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ..errors import CannotOpen

NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0)
CAREFUL: Final = NO_LINKS | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
WITHOUT_WAITING: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
TO_READ: Final = os.O_RDONLY | CAREFUL | WITHOUT_WAITING
TO_READ_THROUGH_LINKS: Final = TO_READ & ~NO_LINKS  # for a file that its owner names, and may have linked
TO_CHANGE: Final = os.O_RDWR | CAREFUL | WITHOUT_WAITING
TO_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | CAREFUL

MOVE_IT: Final = "nothing of it was read or changed; look at who put it there, and move it away"

_KINDS: Final = (
    (stat.S_ISLNK, "a link, which is not followed"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def describe_kind(mode: int) -> str:
    """Return a phrase for what is there in place of a regular file."""
    return next((phrase for is_one, phrase in _KINDS if is_one(mode)), "something else than a file")


# -- files that are there


def trusted_owners(store: str) -> frozenset[int] | None:
    """Return the users who may own a file beside this one: the caller, and the owner of the store.

    None means anybody: users who may write to the store itself may also create the files beside it.
    """
    if os.name != "posix":  # there the owner is made up
        return None
    try:
        found = os.stat(store)
    except OSError:
        return frozenset({os.geteuid()})
    if found.st_mode & 0o022:
        return None
    return frozenset({os.geteuid(), found.st_uid})


def examine(path: str, owners: frozenset[int] | None) -> os.stat_result | None:
    """Return the state of a file that should be ours, or None if nothing is there.

    Raises `CannotOpen` if it is not a regular file, has a second name, or belongs to another user. Opens nothing.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CannotOpen(f"{path} cannot be examined: {error.strerror}") from error
    problem = find_problem(found, owners)
    if problem is not None:
        raise CannotOpen(f"{path} is {problem}", hint=MOVE_IT)
    return found


def find_problem(found: os.stat_result, owners: frozenset[int] | None) -> str | None:
    """Return why a file with this state is not one of ours, or None."""
    if not stat.S_ISREG(found.st_mode):
        return describe_kind(found.st_mode)
    if found.st_nlink > 1:
        return "a file with a second name (a hard link): what is written to it would change the other one, too"
    if owners is not None and found.st_uid not in owners:
        return f"a file of another user (uid {found.st_uid})"
    return None


@contextmanager
def open_descriptor(path: str, flags: int = TO_READ) -> Iterator[int]:
    """Open a file without following a link or waiting, and yield its descriptor. Raises OSError.

    Not for a file that SQLite locks: closing the descriptor would drop the locks of this process.
    """
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_start(path: str, size: int, flags: int = TO_READ) -> bytes:
    """Return up to `size` bytes from the start of a regular file. Raises OSError, and `CannotOpen` if it is none."""
    with open_descriptor(path, flags) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CannotOpen(f"{path} is {describe_kind(os.fstat(descriptor).st_mode)}", hint=MOVE_IT)
        return os.read(descriptor, size)


def identify(found: os.stat_result) -> tuple[int, int]:
    """Return the identity of a file: its device and inode."""
    return found.st_dev, found.st_ino


# -- new files


def create(path: str) -> int:
    """Create a private file where nothing is, and return its descriptor. Raises OSError, `FileExistsError` for a link
    that leads nowhere, too."""
    descriptor = os.open(path, TO_CREATE, 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)  # a umask can only take rights away, and the owner needs both
    return descriptor


def name_unfinished(path: str) -> str:
    """Return a random name beside the path, which an attacker cannot have guessed."""
    return f"{path}.unfinished-{os.urandom(8).hex()}"


def replace_with(path: str, data: bytes) -> None:
    """Write a private file as a whole: under another name, which becomes its own in one step. Raises OSError."""
    unfinished = name_unfinished(path)
    try:
        with open(create(unfinished), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
    sync_names(os.path.dirname(path))


def publish(unfinished: str, path: str) -> None:
    """Give a complete, synced file its name. Raises `FileExistsError` if anything has that name, and replaces nothing.
    The new name is durable afterwards."""
    os.link(unfinished, path)  # unlike a rename, it never overwrites
    os.unlink(unfinished)
    sync_names(os.path.dirname(path))


def put_aside(path: str, new: str) -> None:
    """Give a file another name. Raises `FileExistsError` if anything has that name."""
    os.link(path, new)
    os.unlink(path)


def sync(path: str) -> None:
    """Make the content of a file, or the names in a folder, durable. Raises OSError.

    It follows links: syncing changes nothing, and folders are reached through links.
    """
    descriptor = os.open(path or ".", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | WITHOUT_WAITING)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(folder: str) -> None:
    """Make the names in a folder durable. Windows has no way to do it. Raises OSError."""
    if os.name == "posix":
        sync(folder)


# -- what SQLite puts beside a database

SIDECARS: Final = ("-wal", "-shm", "-journal")

_WAL_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_WAL_HEADER: Final = 32  # bytes
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_JOURNAL_HEADER: Final = 28  # bytes
_SHM_PAGE: Final = 4096  # bytes; the file grows by so much
_SHM_TRUNCATED: Final = 3  # bytes; the first process that uses the file makes it so long


def check_sidecars(database: str) -> None:
    """Raise `CannotOpen` if SQLite would open, overwrite or remove something beside a database that is not its own.

    SQLite follows no link there, but waits for a pipe, takes a file with any content for an empty log, overwrites it,
    and removes it in the end. `database` is the real path, without a link at its end.
    """
    owners = trusted_owners(database)
    for suffix in SIDECARS:
        check_sidecar(f"{database}{suffix}", owners)


def check_sidecar(path: str, owners: frozenset[int] | None) -> bool:
    """Check one of them, and return whether there is one."""
    found = examine(path, owners)
    if found is None:
        return False
    is_own = _is_shm(found.st_size) if path.endswith("-shm") else _starts_as_own(path)
    if not is_own:
        hint = f"{MOVE_IT}; SQLite writes this file itself"
        raise CannotOpen(f"{path} is not a file that SQLite has written", hint=hint)
    return True


def _is_shm(size: int) -> bool:
    """Recognise it by its size: it must not be opened, because closing it would drop SQLite's locks."""
    return size == _SHM_TRUNCATED or size % _SHM_PAGE == 0


def _starts_as_own(path: str) -> bool:
    """A power cut can leave zeros in place of a header."""
    try:
        start = read_start(path, _WAL_HEADER)
    except FileNotFoundError:  # the last connection was closed meanwhile
        return True
    except OSError as error:
        raise CannotOpen(f"{path} cannot be read: {error.strerror}") from error
    if not any(start):
        return True
    if path.endswith("-wal"):
        return start[:4] in _WAL_MAGIC
    return start[:8] == _JOURNAL_MAGIC or _is_unsynced_journal(start)


def _is_unsynced_journal(start: bytes) -> bool:
    """A journal has zeros in place of its magic until it is synced; the sizes of a sector and of a page are there."""
    if len(start) < _JOURNAL_HEADER or any(start[:8]):
        return False
    sizes = (int.from_bytes(start[20:24], "big"), int.from_bytes(start[24:28], "big"))
    return all(32 <= size <= 65536 and size & (size - 1) == 0 for size in sizes)


def remove_own(path: str, is_own: Callable[[str], bool]) -> bool:
    """Remove a file if it is ours. Return False if something foreign was left where it is."""
    try:
        if is_own(path):
            with suppress(FileNotFoundError):
                os.unlink(path)
    except CannotOpen:
        return False
    return True
