"""Resuming: opening a store and reading a thread, in a process that has everything imported, and as a whole process.

A whole process is what a command or a request in a new worker waits for: the interpreter, the imports, the file and the
thread. The raw side is the shortest program that gives the same messages back.
"""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Final

from ._children import once
from ._sides import SEALED_SIDES, SIDES, Ours, Raw
from ._table import Bench, Row, at_most, both, ratios
from ._written import populate

Side = Raw | Ours

_WARM: Final = ((1_000, False), (10_000, False), (1_000, True), (10_000, True))  # messages, packed
_MOST_PACKED: Final = {1_000: 1.2, 10_000: 1.05}
_MOST_WHOLE: Final = {100: 1.3, 10_000: 1.15}
_PROGRAMS: Final = {
    "ours": """
import sys, hitherto
with hitherto.open(sys.argv[1] + "/hitherto.db") as store:
    count = len(store.ensure("long").thread())
""",
    "raw": """
import sys, apsw, orjson
db = apsw.Connection(sys.argv[1] + "/raw.db")
query = "SELECT body FROM message WHERE conversation = ? ORDER BY seq"
count = len([orjson.loads(body) for (body,) in db.execute(query, ("long",))])
db.close()
""",
}


def resume(bench: Bench) -> list[Row]:
    rows = []
    for size, packed in _WARM:
        wall, cpu = _resuming(bench, SIDES, size, packed=packed)
        rows += _resume_rows("resume", wall, cpu, "ours", size, _MOST_PACKED[size] if packed else 1.4, packed=packed)
    for size, limit in _MOST_WHOLE.items():
        found = _whole(bench, size)
        name = f"resume {size:,} messages, a whole process"
        rows.append(at_most(name, ratios(found["ours"], found["raw"]), limit, both(found["ours"], found["raw"])))
    return rows


def resume_sealed(bench: Bench) -> list[Row]:
    rows = []
    for size, packed in _WARM:
        wall, cpu = _resuming(bench, SEALED_SIDES, size, packed=packed)
        rows += _resume_rows("resume sealed", wall, cpu, "sealed", size, 1.2 if packed else 1.4, packed=packed)
        name = f"resume sealed {size:,} messages{'' if packed else ', before packing'} / plain"
        note = both(wall["sealed"], wall["ours"], "sealed", "plain")
        rows.append(at_most(name, ratios(wall["sealed"], wall["ours"]), None, note))
    return rows


def _populate_only(side: Side, size: int) -> None:
    """And leave it as it is: closing would pack it."""
    populate(side, size)
    side.leave()


def _pack(side: Side, _: int) -> None:
    side.maintain()


def _resume(folder: str, side: str, name: str) -> tuple[float, float, int]:
    began, cpu = time.perf_counter(), time.process_time()
    opened = SEALED_SIDES[side](folder)
    found = opened.load(name)
    took = time.perf_counter() - began, time.process_time() - cpu
    count = len(found)
    opened.close()
    return *took, count


def _resuming(
    bench: Bench, sides: Iterable[str], size: int, *, packed: bool
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds, and CPU seconds, of opening and reading for each side."""
    for side in sides:
        once(side, bench.place("resume", size, side), _pack if packed else _populate_only, size)
    wall: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(bench.pick(7, 15) + 1):
        for side in bench.shuffled(sides):
            seconds, busy, count = once(None, bench.place("resume", size, side), _resume, side, "long")
            if count != size:
                raise RuntimeError(f"{side} gave {count} of {size} messages back")
            if number:  # the first brings the file into memory
                wall[side].append(seconds)
                cpu[side].append(busy)
    return wall, cpu


def _resume_rows(
    what: str,
    wall: dict[str, list[float]],
    cpu: dict[str, list[float]],
    side: str,
    size: int,
    limit: float,
    *,
    packed: bool,
) -> list[Row]:
    name = f"{what} {size:,} messages{'' if packed else ', before packing'}"
    return [
        at_most(name, ratios(wall[side], wall["raw"]), limit, both(wall[side], wall["raw"])),
        at_most(f"{name}: CPU", ratios(cpu[side], cpu["raw"]), limit, both(cpu[side], cpu["raw"])),
    ]


def _whole(bench: Bench, size: int) -> dict[str, list[float]]:
    """Seconds of whole processes that read a packed thread."""
    for side in SIDES:
        folder = bench.place("whole", size, side)
        once(side, folder, _populate_only, size)
        once(side, folder, _pack, size)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bench.place("pycache")
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(bench.pick(7, 15) + 1):
        for side in bench.shuffled(SIDES):
            seconds = _run(_PROGRAMS[side], bench.place("whole", size, side), size, environment)
            if number:  # the first compiles, and brings the file into memory
                found[side].append(seconds)
    return found


def _run(program: str, folder: str, size: int, environment: Mapping[str, str]) -> float:
    checked = f"{program}sys.exit(count != {size})\n"
    began = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", checked, folder], environment)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - began
    if status:
        raise RuntimeError(f"a process did not read {size} messages: {program}")
    return took
