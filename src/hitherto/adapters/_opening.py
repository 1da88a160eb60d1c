"""Taking a store in any form, and importing a framework.

Every adapter begins with these two. A framework that is missing, too old or too new is an error that says what to
install.
"""

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from ..aio import AsyncStore
from ..errors import InvalidArgument, MissingExtra
from ..opening import open as open_store
from ..store import Store

Location = str | os.PathLike[str]


def open_any(store: Store | AsyncStore | Location) -> Store:
    """Return a store for an adapter: the one that is given, sync or async, or the one at a location. A store that was
    opened here is closed when the process ends, or by `adapter.store.close()`."""
    if isinstance(store, Store):
        return store
    if isinstance(store, AsyncStore):
        return store.sync
    location: object = store
    if not isinstance(location, str | os.PathLike):
        hint = "hitherto.open(…), await hitherto.open_async(…), or a path or URL"
        raise InvalidArgument(f"a {type(location).__name__} where a store is wanted", hint=hint)
    return open_store(location)


def import_framework(module: str, package: str, extra: str, tried: str) -> ModuleType:
    """Import a module of a framework. `MissingExtra` says how to install it; if it is there and too old or too new, the
    error says which versions were `tried`."""
    try:
        return import_module(module)
    except ImportError as error:
        try:
            here = version(package)
        except PackageNotFoundError:
            raise MissingExtra(package, extra) from None
        found = MissingExtra(package, extra)
        found.replace_hint(
            f"{package} {here} has no {error.name or module}; tried with {tried}: pip install '{package}{tried}'"
        )
        raise found from error
