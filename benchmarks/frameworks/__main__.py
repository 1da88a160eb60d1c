"""One side of a contestant, in the environment of its framework: `python -m benchmarks.frameworks NAME SIDE FOLDER`.

It takes orders as lines of JSON from standard input, and answers each with a line of JSON.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from . import Turn


async def _keep(side: Any, name: str, turns: Iterable[list[Any]]) -> tuple[float, float]:
    """Keep these turns. Return the median of seconds and of CPU seconds of all threads, of one turn."""
    wall, cpu = [], []
    for turn in turns:
        began, used = time.perf_counter(), time.process_time()
        await side.keep(name, Turn(*turn))
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return statistics.median(wall), statistics.median(cpu)


async def _serve(name: str, which: str, folder: str) -> None:
    kind = import_module(f"{__package__}.{name.replace('-', '_')}").SIDES[which]
    began = time.perf_counter()
    side: Any = None
    for line in sys.stdin:
        what, *given = json.loads(line)
        if what == "load":  # the process has imported all that it needs, and has no store open
            warm = kind(given[0])
            await warm.read("nobody")
            await warm.close()
            print("[]", flush=True)
            continue
        if side is None:
            began = time.perf_counter()
            side = kind(folder)
        if what == "maintain":
            tidy = getattr(side, "maintain", None)
            if tidy is not None:
                tidy()
            print(json.dumps([tidy is not None]), flush=True)
        elif what == "keep":
            print(json.dumps(await _keep(side, *given)), flush=True)
        else:
            count = await side.read(*given)
            print(json.dumps([time.perf_counter() - began, count]), flush=True)
    if side is not None:
        await side.close()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
