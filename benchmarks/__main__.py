"""Measure hitherto against what SQLite can do: `python -m benchmarks [--quick] [--only append] [--write] [--json]`.

Every number is a ratio to a raw apsw table at synchronous=FULL, measured in the same run, unless its line says
otherwise: the median over rounds [and the least and the most]. Stores are made in a temporary folder below the current
directory, which is removed at the end: a disk in memory would make syncs free and the numbers worthless.

A whole run, and one of some measurements with `--write`, puts its figures into docs/benchmarks.md.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import apsw

from . import _report
from ._corpus import turns
from ._report import number
from ._rows import MEASUREMENTS
from ._table import Bench, Row

_LONG = (
    "recall",
    "million",
    "overview",
    "erasing_10gb",
    "load",
    "tasks_postgres",
    "growth",
    "adapters",
    "viewer",
    "gateway",
    "rescue",
)  # each takes minutes; load, tasks_postgres and growth run on PostgreSQL, adapters in the frameworks' environments,
# the viewer in a browser
_USUAL = [name for name in MEASUREMENTS if name not in _LONG]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="How fast hitherto is, as ratios.")
    parser.add_argument("--only", metavar="NAME,…", help=f"some of {','.join(_USUAL)}; or {', '.join(_LONG)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller stores: a minute or two")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/benchmarks.md, as a whole run does"
    )
    given = parser.parse_args()
    if given.write and given.quick:
        parser.error("--quick measures too little to be written down")
    given.write = given.write or (given.only is None and not given.quick)
    given.only = _USUAL if given.only is None else given.only.split(",")
    for name in given.only:
        if name not in MEASUREMENTS:
            parser.error(f"no measurement is called {name!r}: there are {', '.join(MEASUREMENTS)}")
    return given


def _in_memory(folder: Path) -> bool:
    """Is this folder on a disk in memory? As far as Linux tells."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    kinds = [line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == wanted]
    return any(kind in ("tmpfs", "ramfs") for kind in kinds)


def _line(row: Row) -> str:
    span = "" if row.low == row.high else f"[{number(row.low)}-{number(row.high)}]"
    verdict = {True: "met", False: "NOT MET", None: ""}[row.met]
    return f"{row.name:<60} {number(row.value):>8} {span:<14} {row.goal:<8} {verdict:<8} {row.note}".rstrip()


def _machine() -> dict[str, object]:
    return {
        "Python": platform.python_version(),
        "SQLite": apsw.sqlite_lib_version(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    """Its model, as far as Linux tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    given = _arguments()
    began = time.monotonic()
    turns(1)  # makes them all, once for all processes
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    signal.signal(signal.SIGTERM, _stop)
    rows: list[Row] = []
    left = [*given.only]
    machine = _machine()
    try:
        if _in_memory(folder):
            print(
                "this folder is on a disk in memory: syncs cost nothing here, so do not trust these numbers",
                file=sys.stderr,
            )
        if not given.json:
            print(", ".join(f"{name} {value}" for name, value in machine.items()))
            print(f"{'':<60} {'ratio':>8} {'[range]':<14} goal")
        for name in given.only:
            bench = Bench(folder / name, given.quick, random.Random(name))
            bench.folder.mkdir(exist_ok=True)
            started = time.monotonic()
            found = MEASUREMENTS[name](bench)
            took = round(time.monotonic() - started)
            rows += found
            left.remove(name)
            if not given.json:
                print("\n".join(map(_line, found)))
                print(f"{name} took {took} s", flush=True)
            if given.write:
                _report.keep(name, f"{datetime.now(UTC):%Y-%m-%d}", machine | {"seconds": took}, found)
                _report.publish([*MEASUREMENTS])
            shutil.rmtree(bench.folder)
    except KeyboardInterrupt:
        write = " --write" if given.write else ""
        print(f"interrupted; this goes on: python -m benchmarks --only {','.join(left)}{write}", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    if given.json:
        print(json.dumps({"machine": machine, "seconds": seconds, "rows": [row._asdict() for row in rows]}, indent=1))
    else:
        met = [row.met for row in rows if row.met is not None]
        print(f"{sum(met)} of {len(met)} goals met, in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
