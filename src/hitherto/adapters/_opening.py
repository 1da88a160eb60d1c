"""Taking a store in any form, and importing a framework.

Every adapter begins with these two. A framework that is missing, too old or too new is an error that says what to
install.
"""

import os
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from ..aio import AsyncStore
from ..errors import HithertoError, InvalidArgument, MissingExtra
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
