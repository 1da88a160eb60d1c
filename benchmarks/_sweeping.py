"""Retention: planning a sweep of very many conversations, purging them, and looking when nothing is due.

Nothing in SQLite alone does the same, so the lines name seconds and conversations a second. All conversations are two
messages long. They are made in memory and committed many at a time, because how they came is not what is measured.
"""

import time
from itertools import count
from pathlib import Path

import hitherto
from hitherto import Message, RetentionPolicy, Store
from hitherto.backend import DONE, Batch, Outcome

from ._table import Bench, Row, at_least, at_most

_KEY = bytes(range(32))
_DAY = 86_400 * 1_000_000
_AT_ONCE = 1000  # conversations in one commit
_SAID = (Message.user("Why does the build fail?"), Message.assistant("An unused import breaks the lint step."))


class _Many:
    """In the place of a store's pen: takes batches that nobody else can contradict, and commits many at once."""

    def __init__(self, store: Store) -> None:
        self._pen, self._backend = store.engine.committer, store.backend
        self._batches: list[Batch] = []

    def write(self, batch: Batch, **_: object) -> Outcome:
        self._batches.append(batch)
        if len(self._batches) >= _AT_ONCE:
            self.flush()
        return DONE

    def flush(self) -> None:
        self._backend.commit(self._batches)
        self._batches.clear()

    def __getattr__(self, name: str) -> object:
        return getattr(self._pen, name)


def _filled(path: Path, key: bytes | None, many: int) -> None:
    """A store of conversations that are forty days old, one after the other, and one of today."""
    times = count(time.time_ns() // 1000 - 40 * _DAY, 1000)
    with hitherto.open(path, key=key, clock=lambda: next(times), maintenance=False) as store:
        pen, gathered = store.engine.committer, _Many(store)
        store.engine.committer = gathered  # it has what is used here of a pen
        for _ in range(many):
            store.save(_SAID)
        gathered.flush()
        store.engine.committer = pen
    with hitherto.open(path, key=key, maintenance=False) as store:
        store.save(_SAID)


def sweep(bench: Bench) -> list[Row]:
    rows = []
    many = bench.pick(5_000, 100_000)
    for way, key, goal in (("plain", None, 2_000), ("sealed", _KEY, 1_000)):
        path = Path(bench.place("sweep", way)) / "store.db"
        _filled(path, key, many)
        with hitherto.open(path, key=key, maintenance=False) as store:
            began = time.perf_counter()
            plan = store.plan_sweep(RetentionPolicy())
            planned = time.perf_counter() - began
            if len(plan.purges) != many:
                raise AssertionError("the plan is not what it should be")
            idle = [_looked(store) for _ in range(5)]
            began = time.perf_counter()
            report = store.sweep(RetentionPolicy())
            swept = time.perf_counter() - began
            if report.purged_count != many:
                raise AssertionError("not all of it was purged")
        name = f"of {many:,} {way} conversations"
        both = f"in {swept:.3g} s; a plan alone in {planned:.2g} s"
        rows += [
            at_least(f"sweep {name}, conversations a second", [many / swept], goal, both),
            at_most(f"look {name} when nothing is due, ms", [seconds * 1e3 for seconds in idle], 5),
        ]
    return rows


def _looked(store: Store) -> float:
    """What a store that sweeps by itself does as it is opened, if nothing is due yet."""
    from hitherto._erasure.sweep import sweep_due

    began = time.perf_counter()
    if sweep_due(store.engine, RetentionPolicy(180), store.engine.clock()).swept:
        raise AssertionError("something was due")
    return time.perf_counter() - began
