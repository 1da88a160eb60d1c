"""Leaving a store and coming back: snapshots in files, and everything as lines of JSON.

A snapshot stands beside the least that keeps a file safe: the same JSON written under another name, synced, renamed,
and the folder synced. A listing stands beside the names and sizes of the files alone.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import hitherto
from hitherto import formats
from hitherto.snapshots import FileStore, Snapshot

from ._corpus import messages
from ._messages import to_message
from ._table import Bench, Row, at_most, both, ratios

_KEY = bytes(range(32))
_WAYS = ("plain", "sealed")


def leaving(bench: Bench) -> list[Row]:
    return [*_files(bench), *_listings(bench), *_lines(bench)]


def _snapshot(size: int, start: int) -> Snapshot:
    return Snapshot.new("openai", "a-model", "Be brief.", messages(size, start), (), {"number": str(start)})


def _seconds(act: Callable[[int], object], count: int) -> float:
    """Median seconds of one."""
    times = []
    for n in range(count):
        began = time.perf_counter()
        act(n)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _by_hand(folder: Path, snapshot: Snapshot) -> None:
    data = json.dumps({"id": snapshot.id, "messages": snapshot.messages}).encode()
    with open(folder / "unfinished", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "unfinished", folder / f"{snapshot.id}.json")
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _saved_and_loaded(folder: Path, way: str, some: list[Snapshot]) -> tuple[float, float]:
    if way == "by hand":
        saved = _seconds(lambda n: _by_hand(folder, some[n]), len(some))
        return saved, _seconds(lambda n: json.loads((folder / f"{some[n].id}.json").read_bytes()), len(some))
    store = FileStore(folder, _KEY if way == "sealed" else None)
    saved = _seconds(lambda n: store.save(some[n]), len(some))
    return saved, _seconds(lambda n: store.load(some[n].id).messages, len(some))


def _files(bench: Bench) -> list[Row]:
    saves: dict[str, list[float]] = {}
    loads: dict[str, list[float]] = {}
    some = [_snapshot(100, n * 50) for n in range(bench.pick(20, 60))]
    for number in range(bench.pick(3, 7)):
        for way in map(str, bench.shuffled(["by hand", *_WAYS])):
            saved, loaded = _saved_and_loaded(Path(bench.place("leaving", number, way)), way, some)
            saves.setdefault(way, []).append(saved)
            loads.setdefault(way, []).append(loaded)
    size = statistics.median(len(one.to_json()) for one in some) / 1e3
    return [
        at_most(
            f"{act} a {way} snapshot of 100 messages",
            ratios(found[way], found["by hand"]),
            None,
            both(found[way], found["by hand"], "ours", "by hand") + f", {size:.0f} KB",
        )
        for act, found in (("save", saves), ("load", loads))
        for way in _WAYS
    ]


def _listings(bench: Bench) -> list[Row]:
    rows = []
    count = bench.pick(1_000, 10_000)
    for way in _WAYS:
        folder = Path(bench.place("leaving", "listing", way))
        store = FileStore(folder, _KEY if way == "sealed" else None)
        for n in range(count):
            store.save(_snapshot(10, n))
        first = _seconds(lambda _, store=store: store.list(), 1)
        again = [_seconds(lambda _, store=store: store.list(), 1) for _ in range(5)]
        names = [_seconds(lambda _, folder=folder: [e.stat() for e in os.scandir(folder)], 1) for _ in range(5)]
        rows.append(at_most(f"first listing of {count:,} {way} snapshots, ms", [first * 1e3], None))
        note = both(again, names, "ours", "names and sizes")
        rows.append(at_most(f"listing of {count:,} {way} snapshots again", ratios(again, names), None, note))
    return rows


def _lines(bench: Bench) -> list[Row]:
    """Messages a second, out and in."""
    folder = Path(bench.place("leaving", "lines"))
    conversations, size = bench.pick(100, 1_000), 100
    with hitherto.open(folder / "from.db") as store, hitherto.open(folder / "to.db") as other:
        for n in range(conversations):
            store.start().extend([to_message(message) for message in messages(size, n * 50)])
        began = time.perf_counter()
        formats.save(store, folder / "all.jsonl")
        middle = time.perf_counter()
        formats.load(folder / "all.jsonl", other)
        loaded = time.perf_counter()
        formats.load(folder / "all.jsonl", other)
        again = time.perf_counter()
    count = conversations * size
    note = f"{os.path.getsize(folder / 'all.jsonl') / 1e6:.0f} MB"
    return [
        at_most(f"lines of {count:,} messages written, messages/s", [count / (middle - began)], None, note),
        at_most(f"lines of {count:,} messages loaded, messages/s", [count / (loaded - middle)], None, note),
        at_most("the same loaded again, messages/s", [count / (again - loaded)], None, "nothing is added"),
    ]
