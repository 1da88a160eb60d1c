"""Taking a store in any form, and importing a framework.

Every adapter begins with these two. A framework that is missing, too old or too new is an error that says what to
install.
"""

import os
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from types import ModuleType

from ..aio import AsyncStore
from ..errors import HithertoError, InvalidArgument, MissingExtra
from ..opening import open as open_store
from ..store import Store

Location = str | os.PathLike[str]


class _Opened:
    """The stores that adapters of this process have opened, by location."""

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {}
        self.lock = Lock()


_opened = _Opened()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_opened.__init__)  # type: ignore[misc]  # a child opens stores of its own


def open_any(store: Store | AsyncStore | Location) -> Store:
    """Return a store for an adapter: the one that is given, sync or async, or the one at a location. Adapters of one
    location share a store, because programs make them for each request. It is closed when the process ends, or by
    `adapter.store.close()`; then the next adapter opens it again."""
    if isinstance(store, Store):
        return store
    if isinstance(store, AsyncStore):
        return store.sync
    location: object = store
    if not isinstance(location, str | os.PathLike):
        hint = "hitherto.open(…), await hitherto.open_async(…), or a path or URL"
        raise InvalidArgument(f"a {type(location).__name__} where a store is wanted", hint=hint)
    name = os.fspath(location)
    if name == "memory:":
        return open_store(name)
    if "://" not in name:
        name = os.path.abspath(os.path.expanduser(name))
    with _opened.lock:
        found = _opened.stores.get(name)
        if found is None or found.is_closed:
            found = _opened.stores[name] = open_store(location)
        return found


def describe(error: HithertoError) -> str:
    """Return an error with its hint, for a framework that passes on texts alone."""
    return f"{error} ({error.hint})" if error.hint else str(error)


def import_framework(module: str, package: str, extra: str, tried: str, *names: str) -> ModuleType:
    """Import a module of a framework that has these names. `MissingExtra` says how to install it; if it is too
    old or too new, it says which versions were `tried`."""
    try:
        found = import_module(module)
    except ImportError as error:
        raise _missing(error.name or module, package, extra, tried) from error
    for name in names:
        if not hasattr(found, name):
            raise _missing(f"{module}.{name}", package, extra, tried)
    return found


def _missing(what: str, package: str, extra: str, tried: str) -> MissingExtra:
    error = MissingExtra(package, extra)
    with suppress(PackageNotFoundError):
        here = version(package)
        error.replace_hint(f"{package} {here} has no {what}; tried with {tried}: pip install '{package}{tried}'")
    return error
