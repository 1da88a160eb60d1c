"""The pages that `hitherto serve` shows now, so that other commands can print links that lead into them.

Each page has a small file in a folder of the user's for what runs, and takes it away when it ends. A process that was
killed leaves its file; the next look finds that the process is gone, and removes it. The file holds no token: a link
opens in the browser that was let in.
"""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..errors import CannotOpen
from . import own_files

__all__ = ["Page", "announce", "find"]

_LONGEST = 8_192


class Page(NamedTuple):
    """A page that runs, and the store that it shows."""

    address: str  # without a slash at its end, and without a token
    store: str  # its path, or its address without credentials
    workspace: str
    process: int


@contextmanager
def announce(address: str, store: str, workspace: str) -> Iterator[None]:
    """Let other commands find the page until the end of the block. A page whose file cannot be written is not found by
    them, and otherwise as good."""
    path = None
    with suppress(OSError):
        path = os.path.join(_folder(make=True), f"serve-{os.getpid()}.json")
        page = Page(address, store, workspace, os.getpid())
        own_files.replace_with(path, json.dumps(page._asdict()).encode())
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                os.unlink(path)
                os.rmdir(os.path.dirname(path))  # unless other pages run


def find(store: str, workspace: str) -> str | None:
    """Return the address of a page that shows this workspace of the store; None if none does."""
    try:
        folder = _folder()
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    for name in names:
        path = os.path.join(folder, name)
        page = _read(path) if name.startswith("serve-") and name.endswith(".json") else None
        if page is None:
            continue
        if not _is_running(page.process):
            with suppress(OSError):
                os.unlink(path)
        elif (page.store, page.workspace) == (store, workspace):
            return page.address
    return None


def _folder(*, make: bool = False) -> str:
    """Return the user's folder for what runs. `PermissionError` if others can write to it: a file of theirs could send
    a link anywhere."""
    user = getattr(os, "getuid", int)()
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = os.path.join(base, f"hitherto-{user}")
    if make:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    is_ours = (
        stat.S_ISDIR(found.st_mode) and found.st_uid == user and not (os.name == "posix" and found.st_mode & 0o022)
    )
    if not is_ours:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _read(path: str) -> Page | None:
    """Return what a file says; None if it is not, or no longer, such a file."""
    try:
        found = json.loads(own_files.read_start(path, _LONGEST))
        return Page(**found)
    except (OSError, CannotOpen, ValueError, TypeError):
        return None


def _is_running(process: int) -> bool:
    if os.name == "posix":  # elsewhere a signal of 0 is no question
        with suppress(PermissionError):
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                return False
    return True
