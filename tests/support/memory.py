"""Where the tests keep their files: in memory, if they can.

No test cuts the real power; where that matters, the disk is simulated. Thousands of stores that wait
for a real one to sync would take minutes.
"""

import os
import shutil
from pathlib import Path


def in_memory() -> Path | None:
    """A folder that is kept in memory, if the machine has one with room in it (in a container it is often tiny).
    `HITHERTO_TESTS_ON_DISK=1` has the tests use the disk all the same."""
    memory = Path("/dev/shm")
    if os.environ.get("HITHERTO_TESTS_ON_DISK") or not os.access(memory, os.W_OK):
        return None
    return memory if shutil.disk_usage(memory).free > 1 << 30 else None
