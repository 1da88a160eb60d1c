"""The gateway between a program and a provider of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Store

pytest.importorskip("uvicorn", reason="hitherto[gateway] is not installed")
pytest.importorskip("httptools", reason="hitherto[gateway] is not installed")

from .scripted import Scripted


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def upstream() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()
