"""Which store a command works on: what the options, the environment and the configuration say, put together.

Every command that needs a store takes `--store`, `--workspace` and `--key`, before its name or after it. A key itself
is never given on the command line, where others on the machine could read it: what is given is where it comes from.

Whoever only looks opens the store to be read, so that looking leaves no trace and works where nothing may be written.

A store may be on a server, and its address may hold a password: what is shown of a place is `shown`, never `location`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import TYPE_CHECKING, TypeVar

import click

from ._options import SOURCES, options

if TYPE_CHECKING:
    from ..keys import Key
    from ..sanitiser import Sanitiser
    from ..store import Store

_Command = TypeVar("_Command", bound=Callable[..., object])
SANITISED = ("secrets", "personal", "everything", "off")


@dataclass(frozen=True)
class Place:
    """A store, a workspace in it, and where its key comes from."""

    location: str = field(repr=False)
    named_by: str  # what named the location: in words
    workspace: str
    key: str | None  # where it comes from
    sanitise: str | None = None  # what is taken out of all that is written

    def open(self, *, create: bool = False, timeout_seconds: float = 30.0, maintenance: bool = True) -> "Store":
        """To read and write. What is not there is an error, unless it is to be made. Without `maintenance` nothing is
        purged but by command."""
        from ..opening import open as open_store  # noqa: PLC0415  # help needs none

        if not create:
            self.require()
        return open_store(
            self.location,
            key=self.secret(),
            workspace=self.workspace,
            timeout_seconds=timeout_seconds,
            create=create,
            maintenance=maintenance,
            sanitiser=self.sanitiser(),
        )

    def read(self) -> "Store":
        """To read only. A store that cannot be read without mending it first, because somebody was killed while
        writing, or because it is of an older version, is opened as usual."""
        from .. import errors  # noqa: PLC0415  # as above
        from ..opening import open as open_store  # noqa: PLC0415  # as above

        self.require()
        try:
            return open_store(self.location, key=self.secret(), workspace=self.workspace, read_only=True)
        except (errors.CannotOpen, errors.ReadOnly) as error:
            if self.is_server and not isinstance(error, errors.ReadOnly):  # a server mends itself
                raise
            return self.open(maintenance=False)

    def require(self) -> None:
        """An error, if there is no such store."""
        from .. import errors  # noqa: PLC0415  # as above

        path = self.path
        try:
            if path is not None:
                os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            hint = "hitherto chat begins one, hitherto init makes one for this folder; hitherto where says who named it"
            raise errors.CannotOpen(f"there is no store at {path}", hint=hint) from None
        except (OSError, ValueError):
            pass  # whoever opens it says why it cannot be

    @property
    def path(self) -> str | None:
        """The file, if it is one."""
        from .._locations import path_of  # noqa: PLC0415  # as above

        return path_of(self.location)

    @property
    def is_server(self) -> bool:
        """Is it a database on a server?"""
        from .._locations import is_server  # noqa: PLC0415  # as above

        return is_server(self.location)

    @property
    def display_name(self) -> str:
        """What people may see of it: no user, no password."""
        from .._locations import shown  # noqa: PLC0415  # as above

        return self.path or shown(self.location)

    def sanitiser(self) -> "Sanitiser | None":
        """What takes out what is not to be kept."""
        if self.sanitise is None:
            return None
        from ..sanitiser import Sanitiser  # noqa: PLC0415  # as above

        made: Sanitiser = getattr(Sanitiser, self.sanitise)()
        return made

    def secret(self) -> "Key | None":
        """The key, fetched from where it is."""
        return None if self.key is None else key_from(self.key)


def key_from(source: str) -> "Key":
    """The key that a source names."""
    from ..keys import Key  # noqa: PLC0415  # as above

    kind, rest = _source(source)
    if kind == "file":
        return Key.from_file(os.path.expanduser(rest))
    if kind == "command":
        return Key.from_command(rest)
    return Key.from_keyring(rest) if kind == "keyring" else Key.from_credential(rest)


def _source(source: str) -> tuple[str, str]:
    """The kind of source, and which one of that kind."""
    kind, _, rest = source.partition(":")
    if not rest or kind not in ("file", "command", "keyring", "credential"):
        raise click.UsageError(f"a key is named by where it comes from: {SOURCES}")  # and not repeated: it may be one
    return kind, rest


def place_of(store: str | None, workspace: str | None, key: str | None, said: dict[str, str] | None = None) -> Place:
    """What is meant, by options that may be missing. `said` stands in for the configuration file."""
    if said is None:
        from ._config import load  # noqa: PLC0415  # help needs none

        said = load()
    location, named_by = _location(store, said)
    key = key or os.environ.get("HITHERTO_KEY") or said.get("key") or None
    if key is not None:
        try:
            _source(key)
        except click.UsageError as error:
            if key != said.get("key"):
                raise
            from ._config import BadConfig, path  # noqa: PLC0415  # as above

            raise BadConfig(f"{path()}: {error.message}", hint='key = "file:…"') from None
    return Place(
        location=location,
        named_by=named_by,
        workspace=workspace or os.environ.get("HITHERTO_WORKSPACE") or said.get("workspace") or "default",
        key=key,
        sanitise=_sanitise(said),
    )


def _sanitise(said: dict[str, str]) -> str | None:
    """What is to be taken out, by the environment or the configuration; what is misspelt must not mean nothing."""
    named = os.environ.get("HITHERTO_SANITISE") or said.get("sanitise") or "off"
    if named not in SANITISED:
        from ._config import BadConfig  # noqa: PLC0415  # as above

        hint = f"HITHERTO_SANITISE, and sanitise in the configuration file, are one of {', '.join(SANITISED)}"
        raise BadConfig(f"not something to be taken out: {named!r:.40}", hint=hint)
    return None if named == "off" else named


def _location(store: str | None, said: dict[str, str]) -> tuple[str, str]:
    from .._locations import find, near  # noqa: PLC0415  # help needs none

    if store:
        warn_of_password(store)
        return store, "--store"
    named = os.environ.get("HITHERTO_STORE")
    if named:
        return named, "HITHERTO_STORE"
    here = near()
    if here is not None:
        return here, "a .hitherto folder"
    if said.get("store"):
        return os.path.expanduser(said["store"]), "the configuration file"
    return find(), "the user's data directory"


def warn_of_password(location: str) -> None:
    """That it is on the command line."""
    if has_password(location):
        from ._terminal import say  # noqa: PLC0415  # most have none

        say("others on this machine can read a password on the command line: PGPASSWORD or ~/.pgpass keeps it")


def has_password(location: str) -> bool:
    """Does it name a server, with a password?"""
    from .._locations import is_server  # noqa: PLC0415  # as above

    authority = location.partition("://")[2].rpartition("@")[0]
    return is_server(location) and (":" in authority or "password=" in location)


def with_place(command: _Command) -> _Command:
    """A command that works on a store: it gets the three options, and `place`."""

    def run(*, store: str | None, workspace: str | None, key: str | None, **given: object) -> object:
        above = click.get_current_context().find_root().params
        if "" in (store, workspace, key):
            raise click.UsageError("what --store, --workspace and --key are given is not empty")
        place = place_of(store or above["store"], workspace or above["workspace"], key or above["key"])
        return command(place=place, **given)

    return options(update_wrapper(run, command))  # type: ignore[return-value]  # the same to click
