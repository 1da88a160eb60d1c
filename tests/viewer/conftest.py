"""The viewer over a store of its own, asked in this process; and the command, as a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Key, Store

pytest.importorskip("uvicorn", reason="hitherto[viewer] is not installed")

from ..support import scenes
from ..support.databases import new_database
from .asking import Client

KEY = Key(b"k" * 32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def client(store: Store) -> Client:
    return Client(store)


@pytest.fixture(params=["sqlite", "sealed", "read-only", "sealed postgres", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """The store that a program writes to, and the one that the viewer has opened."""
    key = KEY if "sealed" in request.param else None
    place = new_database().url() if "postgres" in request.param else str(tmp_path / "chats.db")
    with hitherto.open(place, key=key) as writer:
        if request.param == "read-only":
            scenes.coding(writer)
        with hitherto.open(place, key=key, maintenance=False, read_only=request.param == "read-only") as reader:
            yield writer, reader
