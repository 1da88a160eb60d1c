"""Resolve the location of a store.

Without an argument the store is searched in `HITHERTO_STORE`, then in a `.hitherto` folder in this directory or one
above it, then in the configuration file, then in the user's data directory; programs and commands do the same. There is
no other fallback: a location that cannot be used is an error, and never a reason to write to another one.
"""

import os
from collections.abc import Mapping

from ..errors import InvalidArgument

FILE_NAME = "hitherto.db"
FOLDER_NAME = ".hitherto"
_ADDRESS = "an address is a URL, in small letters: postgresql://user@host:5432/database"
_SERVER_LIKE = (
    "postgres:",
    "postgresql:",
    "postgres//",
    "postgresql//",
    "host=",
    "hostaddr=",
    "dbname=",
    "user=",
    "password=",
    "service=",
)


def find(environment: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None) -> str:
    """The location that `open()` uses without an argument."""
    environment = os.environ if environment is None else environment
    named = environment.get("HITHERTO_STORE")
    if named:
        return named
    found = near(directory)
    if found is not None:
        return found
    from .config_file import load  # noqa: PLC0415  # only these last two need it

    return own_location(load(environment))


def own_location(settings: Mapping[str, str]) -> str:
    """The user's own store, whatever folder this is: that of the configuration file, or that in the data directory."""
    configured = settings.get("store")
    if configured:
        return os.path.expanduser(configured)
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


def is_server(location: str | os.PathLike[str]) -> bool:
    """Is this the location of a database server?"""
    return isinstance(location, str) and location.startswith(("postgresql://", "postgres://"))


def hide_credentials(location: str | os.PathLike[str]) -> str:
    """The location without the user and the password of a server, for output."""
    if not is_server(location):
        return os.fspath(location)
    from re import fullmatch  # noqa: PLC0415  # paths need none of these
    from urllib.parse import parse_qs  # noqa: PLC0415

    base, _, query = str(location).partition("://")[2].partition("?")
    place, slash, database = base.rpartition("@")[2].partition("/")
    if "@" in query or not fullmatch(r"(?:[\w.%-]*|\[[\da-fA-F:.%]*\])(?::\d*)?(?:,(?:[\w.%-]*)(?::\d*)?)*", place):
        return "postgresql://…"  # it is unclear which part is the password
    place = place or parse_qs(query).get("host", [""])[0]
    return f"postgresql://{place}{slash}{database.partition('#')[0]}"


def path_of(location: str | os.PathLike[str]) -> str | None:
    """The file of a location; None for memory or a server."""
    if isinstance(location, str):
        if location in ("memory:", "memory://"):
            return None
        if is_server(location):
            return None
        if "://" in location:
            location = _path_of(location)
        elif location.lower().startswith(_SERVER_LIKE) or _has_user(location):
            # Not repeated: it may hold a password.
            raise InvalidArgument("not the address of a server", hint=f"{_ADDRESS}; a file of that name begins with ./")
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


def _has_user(location: str) -> bool:
    """Does this look like the address of a server without its scheme, user:password@host/…? It must not become the name
    of a folder, which would show the password."""
    first, slash, _ = location.partition("/")
    user, at, host = first.rpartition("@")
    return bool(slash and at and host and ":" in user)


def _path_of(url: str) -> str:
    """The path in a sqlite:// URL."""
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415  # paths need no URL parser

    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidArgument("not a URL", hint="a path, sqlite:///absolute/path, or memory:") from None
    if parts.scheme.startswith("postgres"):
        raise InvalidArgument("not the address of a server", hint=_ADDRESS)
    if parts.scheme != "sqlite":
        raise InvalidArgument(
            f"no backend for {parts.scheme}://", hint="a path, sqlite:///absolute/path, postgresql://…, or memory:"
        )
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise InvalidArgument("a SQLite URL has an absolute path and nothing else", hint="sqlite:///absolute/path")
    return unquote(parts.path)
