"""Stores for the frameworks' own tests: of the kind that HITHERTO_ADAPTER_STORE names, each one empty."""

import atexit
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path

import hitherto
from hitherto import Key, Store

_numbers = count()
_folder = Path(tempfile.mkdtemp(prefix="hitherto-adapters-"))
_open: list[Store] = []


def new_store() -> Store:
    """Open an empty store."""
    kind, number = os.environ.get("HITHERTO_ADAPTER_STORE", "sqlite"), next(_numbers)
    if kind == "postgres":
        workspace = f"adapter-{os.getpid()}-{number}"
        store = hitherto.open(os.environ["HITHERTO_POSTGRES_URL"], workspace=workspace, maintenance=False)
    else:
        key = Key(bytes(range(32))) if kind == "sealed" else None
        store = hitherto.open(_folder / f"{number}.db", key=key, maintenance=False)
    _open.append(store)
    while len(_open) > 20:  # the tests close none
        _open.pop(0).close()
    return store


def _clean() -> None:
    for store in _open:
        store.close()
    shutil.rmtree(_folder, ignore_errors=True)


atexit.register(_clean)
