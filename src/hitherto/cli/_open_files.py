"""Facts from the operating system about the files of a store: lock holders, owners, file systems.

SQLite locks certain bytes of the `-shm` file: one while it writes, one for as long as a connection is open. `F_GETLK`
asks for such a lock without taking it and returns the process that holds it, so it blocks no process. A process that
has the store open must not ask: closing the file again would release its own locks.
"""

import os
import struct
import sys
from contextlib import suppress

from .._system import own_files

WRITING, OPEN = 120, 128  # the bytes that SQLite locks


def holder(path: str, byte: int) -> str | None:
    """Return the process that locks a byte of a store's -shm file; "" if none does, None if it is not known."""
    if not sys.platform.startswith(("linux", "darwin")) or struct.calcsize("P") != 8:
        return None
    try:
        with own_files.open_descriptor(f"{path}-shm") as file:
            pid = _lock_holder(file, byte)
    except FileNotFoundError:
        return ""
    except OSError:  # a link, for example, which is not followed; the check `files_beside` reports it
        return None
    return "" if pid is None else _process(pid)


def _lock_holder(file: int, byte: int) -> int | None:
    """Return the id of the process that locks a byte of a file. The argument has the layout of C's `struct flock`."""
    import fcntl  # noqa: PLC0415  # not on every system

    if sys.platform == "darwin":
        asked = struct.pack("qqihh", byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        _, _, pid, kind, _ = struct.unpack("qqihh", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    else:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _process(pid: int) -> str:
    if pid <= 0:
        return "a process elsewhere"
    with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return f"process {pid} ({file.read().strip()})"
    return f"process {pid}"


def file_system(path: str, mounts: str = "/proc/mounts") -> str:
    """Return the kind of file system that a path is on; "" if the system does not tell."""
    longest, kind = "", ""
    with suppress(OSError), open(mounts, encoding="utf-8", errors="replace") as lines:
        for words in (text.split() for text in lines):
            where = words[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
            inside = path == where or path.startswith(where.rstrip("/") + "/")
            if inside and len(where) >= len(longest):  # of two mounts on the same path the later one counts
                longest, kind = where, words[2]
    return kind


def user(number: int) -> str:
    """Return the name of a user."""
    import pwd  # noqa: PLC0415  # not on every system

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
