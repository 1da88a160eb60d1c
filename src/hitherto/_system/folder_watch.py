"""Waiting until something changes below folders: inotify on Linux, a look every two seconds elsewhere.

    with FolderWatch() as watch:
        changed = None  # look everywhere
        while True:
            watch.cover(folders)
            ...  # look at those that `changed` names
            changed = watch.wait()

inotify watches one folder, and not those below it. So `cover` walks them, and has to be called before each look: it
watches a folder before it lists what is in it, and nothing falls between two looks. A file is watched by the folder
that it is in, because programs replace files, and a path that is not there by the nearest folder above it.

An event is only a hint where to look. If the kernel has dropped some, and once a minute anyhow (of changes on a network
mount it knows nothing), the hint is to look everywhere.
"""

import errno
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

_POLL_SECONDS = 2.0  # without inotify
_ANYHOW_SECONDS = 60.0  # with it
_GATHER_SECONDS = 0.2  # a program writes several lines at once

# From <sys/inotify.h>
_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x4000, 0x8000
_ONLY_FOLDERS, _ADD_TO_MASK = 0x1000000, 0x20000000
_CHANGES = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_ARRIVALS = _MOVED_TO | _CREATE | _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("iIII")  # the watch, what happened, a cookie, the length of the name that follows
_READ_BYTES = 1 << 16

_AddWatch = Callable[[int, bytes, int], int]


class FolderWatch:
    """Waits for changes below folders and of files."""

    def __init__(self) -> None:
        self._queue, self._add_watch = _inotify()
        self._roots: dict[int, set[Path]] = {}  # by the number of the watch

    @property
    def is_polling(self) -> bool:
        """Return True if there is no inotify here, or more folders than it watches for one user."""
        return self._queue is None

    def cover(self, roots: Iterable[Path]) -> None:
        """Watch these files, and these folders with all below them. They need not be there yet."""
        for root in roots:
            if root.is_dir():
                self._add(root, root, _CHANGES)
                for folder, folders, _ in os.walk(root):
                    for name in folders:
                        self._add(Path(folder, name), root, _CHANGES)
            else:
                above = next((parent for parent in root.parents if parent.is_dir()), None)
                if above is not None:
                    self._add(above, root, _CHANGES if above == root.parent else _ARRIVALS)

    def wait(self) -> set[Path] | None:
        """Return the roots at which something has changed, as soon as there are some; None: look at all of them."""
        if self._queue is None:
            time.sleep(_POLL_SECONDS)
            return None
        poll = select.poll()
        poll.register(self._queue, select.POLLIN)
        if not poll.poll(_ANYHOW_SECONDS * 1000):
            return None
        time.sleep(_GATHER_SECONDS)
        return self._take(self._queue)

    def _add(self, folder: Path, root: Path, changes: int) -> None:
        if self._queue is None:
            return
        number = self._add_watch(self._queue, os.fsencode(folder), changes | _ONLY_FOLDERS | _ADD_TO_MASK)
        if number >= 0:
            self._roots.setdefault(number, set()).add(root)
        elif number in (-errno.ENOSPC, -errno.ENOMEM):  # the user's limit; other folders have gone, or are not ours
            self.close()

    def _take(self, queue: int) -> set[Path] | None:
        """Read all events that have come."""
        found: set[Path] = set()
        is_whole = True
        while data := _read(queue):
            at = 0
            while at < len(data):
                number, changes, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                is_whole = is_whole and not changes & _OVERFLOW
                found |= self._roots.get(number, set())
                if changes & _IGNORED:  # the folder has gone, and its watch with it
                    self._roots.pop(number, None)
        return found if is_whole else None

    def close(self) -> None:
        """Let go of the kernel's queue. Waiting then polls."""
        queue, self._queue = self._queue, None
        if queue is not None:
            os.close(queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(queue: int) -> bytes:
    try:
        return os.read(queue, _READ_BYTES)
    except BlockingIOError:
        return b""


def _inotify() -> tuple[int | None, _AddWatch]:
    """Return a new queue of events, and the function that adds a watch to it: the watch's number, or an error's below
    0. Without inotify the queue is None."""
    if sys.platform != "linux":
        return None, lambda _queue, _folder, _changes: -errno.ENOSYS
    import ctypes  # noqa: PLC0415  # only for those who watch

    libc = ctypes.CDLL(None, use_errno=True)

    def add_watch(queue: int, folder: bytes, changes: int) -> int:
        number = int(libc.inotify_add_watch(queue, folder, ctypes.c_uint32(changes)))
        return number if number >= 0 else -ctypes.get_errno()

    queue = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return (queue if queue >= 0 else None), add_watch
