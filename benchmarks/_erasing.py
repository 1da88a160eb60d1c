"""What it costs until the bytes of a purged conversation have left the files: all tables are written anew.

A thread appends all the time. Its longest append is what a writer waits at most. How large the files are at most beside
what they were tells how much room it takes.
"""

import os
import threading
import time
from pathlib import Path

import hitherto
from hitherto import Message, Store

from ._table import Bench, Row, at_most

_PAUSE_SECONDS = 0.02  # of the writer between two appends
_PATIENCE_SECONDS = 3600.0


def erasing(bench: Bench) -> list[Row]:
    return [row for size in (10 << 20, bench.pick(64, 1024) << 20) for row in _rows(bench, size)]


def erasing_10gb(bench: Bench) -> list[Row]:
    return _rows(bench, 10 << 30)


def _rows(bench: Bench, size: int) -> list[Row]:
    path = Path(bench.place("erasing", size)) / "store.db"
    with hitherto.open(path, maintenance=False) as store:
        goes = store.start()
        goes.extend([Message.user(os.urandom(500).hex()) for _ in range(100)])
        while path.stat().st_size < size:
            talk = store.start()
            for _ in range(32):
                talk.extend([Message.user(os.urandom(200 * n).hex()) for n in range(1, 9)])
        purged, erased, waits, most = _measured(store, path, goes.id)
    path.unlink()
    name = f"of {size >> 20:,} MB"
    return [
        at_most(f"purge one {name}, ms", [1e3 * purged], 500),
        at_most(
            f"until it is erased {name}, seconds", [erased], None, f"the file has {most:.2g} times its size meanwhile"
        ),
        at_most(f"longest append meanwhile {name}, seconds", [max(waits)], 5, f"of {len(waits)} appends"),
    ]


def _measured(store: Store, path: Path, goes: str) -> tuple[float, float, list[float], float]:
    done, waits, before = threading.Event(), [0.0], path.stat().st_size

    def write() -> None:
        talk = store.start()
        while not done.wait(_PAUSE_SECONDS):
            began = time.perf_counter()
            talk.append(Message.user("meanwhile"))
            waits.append(time.perf_counter() - began)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        began, most = time.perf_counter(), before
        store.purge(goes, reason="user-requested")
        purged = time.perf_counter() - began
        while not store.backend.is_scrubbed() and time.perf_counter() - began < _PATIENCE_SECONDS:
            store.backend.maintain(0.05)
            most = max(most, path.stat().st_size)
        erased = time.perf_counter() - began
    finally:
        done.set()
        writer.join()
    return purged, erased, waits, most / before
