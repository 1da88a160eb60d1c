"""What the tests of several adapters need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Key, Store
from tests.support.databases import new_database


@pytest.fixture(params=["sqlite", "sealed", "memory", "postgres"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "postgres":
        opened = hitherto.open(new_database().url())
    elif request.param == "memory":
        opened = hitherto.open("memory:")
    else:
        opened = hitherto.open(tmp_path / "any.db", key=Key.generate() if request.param == "sealed" else None)
    with opened:
        yield opened
