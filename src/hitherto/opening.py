"""Opening a store: which place is meant, and what stands behind it.

Without an argument the store is looked for in `HITHERTO_STORE`, then in a `.hitherto` folder in this directory or one
above it, then in the user's data directory. There is no other fallback: a place that cannot be used is an error,
never a reason to write somewhere else.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .backend import Backend
from .errors import CannotOpen, InvalidArgument, KeyUnavailable
from .model import encodable
from .store import MAX_ATTACHMENT, MAX_WRITE_BYTES, Store, as_key

if TYPE_CHECKING:
    from .keys import Key

FILE_NAME = "hitherto.db"
FOLDER_NAME = ".hitherto"


def open(
    location: str | os.PathLike[str] | None = None,
    *,
    key: "Key | bytes | None" = None,
    workspace: str = "default",
    timeout_seconds: float = 30.0,
    max_write_bytes: int = MAX_WRITE_BYTES,
    max_attachment: int = MAX_ATTACHMENT,
    maintenance: bool = True,
    quarantine_days: float | None = None,
    read_only: bool = False,
    vfs: str | None = None,
    clock: Callable[[], int] | None = None,
) -> Store:
    """Open a store, making it if it is not there.

    `location` is a path, `sqlite:///absolute/path`, or `memory:`. `key` opens a sealed store, and seals one that is
    made now; a sealed store without its key, or with another one, is `KeyUnavailable`. `workspace` names the tenant.
    `timeout_seconds` is how long a write waits for other processes. `max_write_bytes` limits the text and JSON of one
    write, `max_attachment` the bytes of one binary block. With `maintenance=False` nothing happens in the background,
    and `maintain` is the caller's to call. With `quarantine_days`, what has been in quarantine for so long is purged by
    maintenance; without, by command only. With `read_only` a store that is there is read without leaving a trace: no
    file is made, no byte is written, nothing happens in the background, and what would write is `ReadOnly`. `vfs` names
    an SQLite VFS; `clock` gives microseconds since 1970; both are for tests.
    """
    if not isinstance(workspace, str) or not workspace or not encodable(workspace):
        raise InvalidArgument("the workspace is a name, and not empty")
    if not isinstance(timeout_seconds, (int, float)) or not 0 <= timeout_seconds < float("inf"):
        raise InvalidArgument("timeout_seconds is a number from 0 up")
    for name, limit in (("max_write_bytes", max_write_bytes), ("max_attachment", max_attachment)):
        if type(limit) is not int or limit < 1:
            raise InvalidArgument(f"{name} is a number from 1 up")
    if quarantine_days is not None and not (
        isinstance(quarantine_days, (int, float)) and 0 <= quarantine_days < 1e6  # also refuses NaN
    ):
        raise InvalidArgument("quarantine_days is a number from 0 up")
    checked = None if key is None else as_key(key)
    backend = _backend(find() if location is None else location, workspace, timeout_seconds, vfs, read_only)
    try:
        store = Store(
            backend,
            key=checked,
            clock=clock,
            max_write_bytes=max_write_bytes,
            max_attachment=max_attachment,
            maintenance=maintenance and not read_only,
            quarantine_days=quarantine_days,
        )
    except KeyUnavailable:
        backend.close(untouched=True)
        raise
    except BaseException:
        backend.close()
        raise
    if read_only:
        store._pen.refuse("it was opened to be read only", "open it without read_only to write")
    return store


def find(environment: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None) -> str:
    """The location that `open()` uses without an argument."""
    environment = os.environ if environment is None else environment
    named = environment.get("HITHERTO_STORE")
    if named:
        return named
    found = near(directory)
    if found is not None:
        return found
    import platformdirs  # noqa: PLC0415  # only this last resort needs it

    return os.path.join(platformdirs.user_data_dir("hitherto", appauthor=False), FILE_NAME)


def near(directory: str | os.PathLike[str] | None = None) -> str | None:
    """The store of the `.hitherto` folder in this directory or one above it, if there is such a folder."""
    here, below = os.path.abspath(directory or os.curdir), None
    while here != below:
        if os.path.isdir(os.path.join(here, FOLDER_NAME)):
            return os.path.join(here, FOLDER_NAME, FILE_NAME)
        here, below = os.path.dirname(here), here
    return None


def _backend(
    location: str | os.PathLike[str], workspace: str, timeout_seconds: float, vfs: str | None, read_only: bool
) -> Backend:
    path = path_of(location)
    if path is None:
        if read_only:
            raise CannotOpen("a store in memory has nothing to read when it is opened")
        from .backends.memory import MemoryBackend  # noqa: PLC0415  # each backend is loaded when it is used

        return MemoryBackend()
    from .backends.sqlite import SqliteBackend  # noqa: PLC0415  # see above

    return SqliteBackend(path, workspace=workspace, vfs=vfs, timeout_seconds=timeout_seconds, read_only=bool(read_only))


def path_of(location: str | os.PathLike[str]) -> str | None:
    """The file that a location means; None if it means none, but memory."""
    if isinstance(location, str):
        if location in ("memory:", "memory://"):
            return None
        if "://" in location:
            location = _path_of(location)
        elif location.startswith((":memory:", "sqlite:", "file:", "memory:")):
            raise InvalidArgument(
                f"not a location: {location!r:.60}", hint="a path, sqlite:///absolute/path, or memory:"
            )
    path = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(path, str) or not path:
        raise InvalidArgument("a location is a path or a URL", hint="give nothing to use the usual place")
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise InvalidArgument(f"there is no such user: {path!r:.60}", hint="./~name is a folder of that name")
    return expanded


def _path_of(url: str) -> str:
    """The path in a sqlite:// URL."""
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415  # paths need no URL parser

    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidArgument("not a URL", hint="a path, sqlite:///absolute/path, or memory:") from None
    if parts.scheme != "sqlite":
        raise InvalidArgument(f"no backend for {parts.scheme}://", hint="a path, sqlite:///absolute/path, or memory:")
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise InvalidArgument("a SQLite URL has an absolute path and nothing else", hint="sqlite:///absolute/path")
    return unquote(parts.path)
