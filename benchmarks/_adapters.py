"""Adapters beside the SQLite stores of their frameworks: what a turn costs, bytes on disk, a cold read.

Each side is a process in the environment of its framework, below `.tools/adapters`; `benchmarks.frameworks` says what
it does there. All sides of a framework keep the same turns, in turns, to the same disk. A framework that is not
installed is left out, and a line says so.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from subprocess import PIPE, Popen
from types import ModuleType

from . import frameworks
from ._corpus import Passages, turns
from ._table import Bench, Row, at_most, both, ms, ratios
from .frameworks import Turn

_ROOT = Path(__file__).resolve().parents[1]
_SHORT = 10
_TOGETHER = 10  # turns of a side before another side has its turn


def adapters(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    names = sorted(one.name for one in iter_modules(frameworks.__path__) if not one.name.startswith("_"))
    for name in (name.replace("_", "-") for name in names):
        if _python(name).exists():
            rows += _rows(bench, name, import_module(f"benchmarks.frameworks.{name.replace('-', '_')}"))
        else:
            print(f"adapters: {name} is left out: make .tools/adapters/{name}/.stamp", file=sys.stderr)
    return rows


def _python(name: str) -> Path:
    return _ROOT / ".tools/adapters" / name / "bin/python"


class _Side:
    """A process with one side of a framework."""

    def __init__(self, name: str, which: str, folder: str) -> None:
        order = [str(_python(name)), "-m", "benchmarks.frameworks", name, which, folder]
        places = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
        quiet = {"LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1", "PYTHONPATH": places}
        self._process = Popen(order, stdin=PIPE, stdout=PIPE, text=True, cwd=_ROOT, env={**os.environ, **quiet})

    def __call__(self, what: str, *arguments: object) -> list[float]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the side has no pipes")
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("a side died; what it said is above")
        found: list[float] = json.loads(answer)
        return found

    def close(self) -> None:
        self._process.communicate()


def _rows(bench: Bench, name: str, module: ModuleType) -> list[Row]:
    sides, long = list(module.SIDES), bench.pick(100, 1_000)
    most = {side: min(long, module.MOST_TURNS.get(side, long)) for side in sides}
    rounds = bench.pick(3, 7)
    told = _chat(*module.CHAT) if hasattr(module, "CHAT") else _turn
    said = [told(number) for number in range(long + rounds * _TOGETHER)]

    folders = {side: bench.place(name, "short", number) for number, side in enumerate(sides)}
    short = _measure(bench, name, folders, rounds, lambda one, _, number: _new_turns(one, number, said))

    folders = {side: bench.place(name, "long", number) for number, side in enumerate(sides)}
    for side in sides:
        one = _Side(name, side, folders[side])
        for start in range(0, most[side], 100):
            one("keep", "long", said[start : min(start + 100, most[side])])
        one.close()
    size = {side: _size(folders[side]) for side in sides}
    tidy = {side: found for side in sides if (found := _size_maintained(name, side, folders[side])) is not None}
    cold: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in bench.shuffled(sides):
            cold[side].append(
                _cold_read(name, side, bench.place("warm", name, sides.index(side)), folders[side], most[side])
            )

    def keep_on(one: _Side, side: str, number: int) -> list[float]:
        start = most[side] + number * _TOGETHER
        return one("keep", "long", said[start : start + _TOGETHER])

    grown = _measure(bench, name, folders, rounds, keep_on)

    own, rows = sides[0], []
    for side in sides[1:]:
        goal = module.GOALS.get(side)
        against = f"{side} / {own}" + ("" if most[own] == most[side] else f" at {most[own]:,}")
        for count, found, beside in ((_SHORT, short, f"{side} / {own}"), (most[side], grown, against)):
            for what, at, limit in (("CPU", 1, goal), ("wall", 0, None)):
                note = both(_column(found[side], at), _column(found[own], at), side, own)
                line = f"{name}: turn at {count:,}, {what}: {beside}"
                rows.append(at_most(line, ratios(_column(found[side], at), _column(found[own], at)), limit, note))
        line = f"{name}: bytes on disk at {most[side]:,} turns: {against}"
        rows.append(at_most(line, [size[side] / size[own]], None, _megabytes(size, side, own)))
        if side in tidy:
            note = f"{tidy[side] / 1e6:.2f} MB"
            rows.append(at_most(f"{line}, after maintenance", [tidy[side] / size[own]], None, note))
        line = f"{name}: cold read of {most[side]:,} turns: {against}"
        rows.append(at_most(line, ratios(cold[side], cold[own]), None, both(cold[side], cold[own], side, own)))
    for side, limit in getattr(module, "MOST_MEGABYTES", {}).items():
        line = f"{name}: MB on disk at {most[side]:,} turns: {side}"
        goal = None if bench.quick else limit  # for 1,000 turns
        rows.append(at_most(line, [size[side] / 1e6], goal, _megabytes(size, side, own)))
    for side, limit in getattr(module, "MOST_READ_MS", {}).items():
        line = f"{name}: ms of a cold read of {most[side]:,} turns: {side}"
        goal = None if bench.quick else limit
        rows.append(at_most(line, [1e3 * seconds for seconds in cold[side]], goal, ms(own, cold[own])))
    return rows


def _chat(least: int, most: int) -> Callable[[int], Turn]:
    """Return a function that gives turns of a plain chat with texts of about this many characters."""
    passages = Passages()

    def turn(number: int) -> Turn:
        question, answer = (passages.text(2 * number + which, least, most) for which in (0, 1))
        return Turn(number, question, "", "", answer)

    return turn


def _turn(number: int) -> Turn:
    """A turn of texts as agents have them: a question, a call, its result of some kilobytes, and an answer."""
    (asked, answered), (back, _) = turns(2, 2 * number)
    texts = [str(one["content"]) for one in (asked, answered, back)]
    return Turn(number, texts[0] or "Why?", f"query {number}", texts[2], texts[1] or "Done.")


def _measure(
    bench: Bench, name: str, folders: dict[str, str], rounds: int, run: Callable[["_Side", str, int], list[float]]
) -> dict[str, list[list[float]]]:
    """Return for each side what it took in each round: seconds, and CPU seconds, of a turn."""
    sides = {side: _Side(name, side, folder) for side, folder in folders.items()}
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in bench.shuffled(sides):
            found[side].append(run(sides[side], side, number))
    for one in sides.values():
        one.close()
    return found


def _new_turns(one: _Side, number: int, said: list[Turn]) -> list[float]:
    """Measure turns of a new conversation, behind the first ones."""
    one("keep", f"short {number}", said[:_SHORT])
    return one("keep", f"short {number}", said[_SHORT : _SHORT + _TOGETHER])


def _cold_read(name: str, side: str, warm: str, folder: str, count: int) -> float:
    """Read the long conversation in a new process, from opening the store on. Its imports are done before."""
    one = _Side(name, side, folder)
    one("load", warm)
    seconds, found = one("read", "long")
    one.close()
    if found != count:
        raise RuntimeError(f"{name}, {side}: {found} of {count} turns came back")
    return seconds


def _size_maintained(name: str, side: str, folder: str) -> int | None:
    """Return the bytes of a side after its maintenance; None if it has none."""
    one = _Side(name, side, folder)
    one("read", "long")
    (has_one,) = one("maintain")
    one.close()
    return _size(folder) if has_one else None


def _column(figures: list[list[float]], at: int) -> list[float]:
    return [figure[at] for figure in figures]


def _megabytes(size: dict[str, int], side: str, own: str) -> str:
    return f"{side} {size[side] / 1e6:.2f} MB, {own} {size[own] / 1e6:.2f} MB"


def _size(folder: str) -> int:
    """Of everything but the ballast, which holds nothing."""
    files = (file for file in Path(folder).rglob("*") if file.is_file() and not file.name.endswith("-ballast"))
    return sum(file.stat().st_size for file in files)
