"""A notice when another process holds the lock of the store. It comes after a second, with the process if it is known.

SQLite does not know who holds a lock. On Linux the kernel lists the locks of files with their processes; elsewhere the
notice names no process. The files are not opened for that: closing them would drop the locks of this process.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from ._terminal import line, say

_WRITING = 120  # the byte of the -shm file that a writer locks, by SQLite's format of the WAL
_LONGEST = 60  # columns of a command


def watch_locks() -> None:
    """Say from now on when a lock is held by others for more than a second, once."""
    from ..backends.sqlite.connections import on_wait  # noqa: PLC0415  # only a file has such locks

    if _say_waiting not in on_wait:
        on_wait.append(_say_waiting)


def _say_waiting(path: str) -> None:
    holders = ", ".join(dict.fromkeys(_describe(pid) for pid in find_holders(path)))
    say(f"waiting: {holders or 'another process'} is writing to the store; Ctrl+C gives up")


def find_holders(path: str) -> Iterator[int]:
    """Yield the processes that hold the lock for writing, as far as the kernel tells."""
    with suppress(OSError):
        with open("/proc/locks", encoding="ascii") as file:
            entries = [entry.split() for entry in file]
        files = {}
        for name in (path, f"{path}-shm"):
            found = os.stat(name)
            files[f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"] = name
            for words in entries:
                if len(words) < 8 or words[1] == "->" or words[3] != "WRITE" or words[5] not in files:
                    continue
                end = int(words[7]) if words[7].isdecimal() else 1 << 62
                is_write = files[words[5]] == path or int(words[6]) <= _WRITING <= end
                if is_write and files[words[5]] == name and int(words[4]) not in (0, -1, os.getpid()):
                    yield int(words[4])


def _describe(pid: int) -> str:
    """Return a process with its command."""
    command = ""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read(4096).replace(b"\0", b" ").decode(errors="replace")
    return f"process {pid}" + (f" ({line(command, _LONGEST)})" if command.strip() else "")
