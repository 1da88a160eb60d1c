"""Every backend of ours passes the contract: memory and SQLite, plain and with a codec that checks places, calm and
contrary. This is also all it takes for a new backend to join.

The suite shows C1, C2, C3, C4, C5, C6, C7, C8, C9, C12, C18, D2, D16, D17 and D19, and of A11 branching and token
counts.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hitherto.backend import Backend
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.sqlite import SqliteBackend
from hitherto.testing.conformance import BackendContract, StoreContract


class TestMemory(BackendContract, StoreContract):
    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        backend = MemoryBackend()
        yield backend
        backend.close()


class TestSqlite(BackendContract, StoreContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        backend = SqliteBackend(tmp_path / "store.db")
        yield backend
        backend.close()
