"""Wait for what others are about to do: other threads, other processes, the machine."""

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds; on a busy machine everything takes longer


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.001)
