"""The store that a command works on: the options, the environment and the configuration file, put together.

Every command that needs a store takes `--store`, `--workspace` and `--key`, before its name or after it. A key itself
is never on the command line, where other users could read it; the option names the key's source.

A command that only reads opens the store read-only, so that it leaves no trace and works without write permission.

A store may be on a server, and its address may hold a password: print `display_name`, never `location`.
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
    """A store, a workspace in it, and the source of its key."""

    location: str = field(repr=False)
    named_by: str  # the setting that named the location, in words
    workspace: str
    key: str | None  # its source
    sanitise: str | None = None  # the sanitiser's name

    def open(self, *, create: bool = False, timeout_seconds: float = 30.0, maintenance: bool = True) -> "Store":
        """Open the store to read and write. A missing store is an error without `create`. Without `maintenance` nothing
        is purged in the background."""
        from ..opening import open as open_store  # noqa: PLC0415  # help needs none

        if not create:
            self.require()
        self.watch_locks()
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
        """Open the store read-only.

        A store that must be repaired first, because a writer was killed or its format is older, is opened for writing.
        """
        from .. import errors  # noqa: PLC0415  # as above
        from ..opening import open as open_store  # noqa: PLC0415  # as above

        self.require()
        self.watch_locks()
        try:
            return open_store(self.location, key=self.secret(), workspace=self.workspace, read_only=True)
        except (errors.CannotOpen, errors.ReadOnly) as error:
            if self.is_server and not isinstance(error, errors.ReadOnly):  # a server needs no repair
                raise
            return self.open(maintenance=False)

    def watch_locks(self) -> None:
        """Say so if another process holds the store's lock for more than a second."""
        if self.path is not None:
            from ._lock_notice import watch_locks  # noqa: PLC0415  # as above

            watch_locks()

    def require(self) -> None:
        """Raise CannotOpen if the store's file does not exist."""
        from .. import errors  # noqa: PLC0415  # as above

        path = self.path
        try:
            if path is not None:
                os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            hint = "hitherto chat begins one, hitherto init makes one for this folder; hitherto where says who named it"
            raise errors.CannotOpen(f"there is no store at {path}", hint=hint) from None
        except (OSError, ValueError):
            pass  # opening it reports the reason

    @property
    def path(self) -> str | None:
        """The path of the store's file; None if it is not a file."""
        from .._system.locations import path_of  # noqa: PLC0415  # as above

        return path_of(self.location)

    @property
    def is_server(self) -> bool:
        """True if the store is a database on a server."""
        from .._system.locations import is_server  # noqa: PLC0415  # as above

        return is_server(self.location)

    @property
    def display_name(self) -> str:
        """The location without user and password, for output."""
        from .._system.locations import hide_credentials  # noqa: PLC0415  # as above

        return self.path or hide_credentials(self.location)

    def sanitiser(self) -> "Sanitiser | None":
        """Return the sanitiser for everything that is written; None if it is off."""
        if self.sanitise is None:
            return None
        from ..sanitiser import Sanitiser  # noqa: PLC0415  # as above

        made: Sanitiser = getattr(Sanitiser, self.sanitise)()
        return made

    def secret(self) -> "Key | None":
        """Fetch the key from its source."""
        return None if self.key is None else key_from(self.key)


def key_from(source: str) -> "Key":
    """Fetch the key from a source."""
    from ..keys import Key  # noqa: PLC0415  # as above

    kind, rest = check_key_source(source)
    if kind == "file":
        return Key.from_file(os.path.expanduser(rest))
    if kind == "command":
        return Key.from_command(rest)
    return Key.from_keyring(rest) if kind == "keyring" else Key.from_credential(rest)


def check_key_source(source: str) -> tuple[str, str]:
    """Split a key source into its kind and the rest."""
    kind, _, rest = source.partition(":")
    if not rest or kind not in ("file", "command", "keyring", "credential"):
        # The source is not repeated here: it may be a key.
        raise click.UsageError(f"a key is named by where it comes from: {SOURCES}")
    return kind, rest


def place_of(
    store: str | None, workspace: str | None, key: str | None, settings: dict[str, str] | None = None
) -> Place:
    """Return the place that these options name. `settings` replaces the configuration file."""
    if settings is None:
        from .._system.config_file import load  # noqa: PLC0415  # help needs none

        settings = load()
    location, named_by = _location(store, settings)
    key = key or os.environ.get("HITHERTO_KEY") or settings.get("key") or None
    if key is not None:
        try:
            check_key_source(key)
        except click.UsageError as error:
            if key != settings.get("key"):
                raise
            from .._system.config_file import BadConfig, path  # noqa: PLC0415  # as above

            raise BadConfig(f"{path()}: {error.message}", hint='key = "file:…"') from None
    return Place(
        location=location,
        named_by=named_by,
        workspace=workspace or os.environ.get("HITHERTO_WORKSPACE") or settings.get("workspace") or "default",
        key=key,
        sanitise=_sanitise(settings),
    )


def _sanitise(settings: dict[str, str]) -> str | None:
    """Return the sanitiser's name from the environment or the configuration file. A misspelt name is an error."""
    named = os.environ.get("HITHERTO_SANITISE") or settings.get("sanitise") or "off"
    if named not in SANITISED:
        from .._system.config_file import BadConfig  # noqa: PLC0415  # as above

        hint = f"HITHERTO_SANITISE, and sanitise in the configuration file, are one of {', '.join(SANITISED)}"
        raise BadConfig(f"not a sanitiser: {named!r:.40}", hint=hint)
    return None if named == "off" else named


def _location(store: str | None, settings: dict[str, str]) -> tuple[str, str]:
    from .._system.locations import find, near  # noqa: PLC0415  # help needs none

    if store:
        warn_of_password(store)
        return store, "--store"
    named = os.environ.get("HITHERTO_STORE")
    if named:
        return named, "HITHERTO_STORE"
    here = near()
    if here is not None:
        return here, "a .hitherto folder"
    if settings.get("store"):
        return os.path.expanduser(settings["store"]), "the configuration file"
    return find(), "the user's data directory"


def warn_of_password(location: str) -> None:
    """Print a warning if the location holds a password: other users can read the command line."""
    if has_password(location):
        from ._terminal import say  # noqa: PLC0415  # most locations have none

        say("other users can read a password on the command line: keep it in PGPASSWORD or ~/.pgpass")


def has_password(location: str) -> bool:
    """Return True if the location is a server's address with a password."""
    from .._system.locations import is_server  # noqa: PLC0415  # as above

    authority = location.partition("://")[2].rpartition("@")[0]
    return is_server(location) and (":" in authority or "password=" in location)


def with_place(command: _Command) -> _Command:
    """Give a command the three options, and pass them to it as `place`."""

    def run(*, store: str | None, workspace: str | None, key: str | None, **given: object) -> object:
        above = click.get_current_context().find_root().params
        if "" in (store, workspace, key):
            raise click.UsageError("--store, --workspace and --key need a value")
        place = place_of(store or above["store"], workspace or above["workspace"], key or above["key"])
        return command(place=place, **given)

    return options(update_wrapper(run, command))  # type: ignore[return-value]  # the same to click
