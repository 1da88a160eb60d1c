"""The viewer over a store of its own, asked in this process; and the command, as a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Store

pytest.importorskip("uvicorn", reason="hitherto[viewer] is not installed")

from .asking import Client


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def client(store: Store) -> Client:
    return Client(store)
