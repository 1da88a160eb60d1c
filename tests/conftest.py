"""What several test files need."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if the machine has one: for tests that simulate the disk, or do not need a real one."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        with tempfile.TemporaryDirectory(prefix="hitherto-", dir=memory) as directory:
            yield Path(directory)
    else:
        yield tmp_path
