"""The table: what a row is, what a run is, and how figures become rows."""

import random
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Point(NamedTuple):
    """One point of a plot of cost against size."""

    plot: str
    series: str
    size: int
    ms: float


class Row(NamedTuple):
    """One line of the table."""

    name: str
    value: float
    low: float
    high: float
    goal: str  # in words; empty: no goal
    met: bool | None
    note: str = ""
    point: Point | None = None  # what a plot has of it


class Bench(NamedTuple):
    """One run."""

    folder: Path
    quick: bool
    random: random.Random

    def place(self, *parts: object) -> str:
        folder = self.folder / "-".join(map(str, parts))
        folder.mkdir(exist_ok=True)
        return str(folder)

    def pick(self, quick: int, full: int) -> int:
        return quick if self.quick else full

    def shuffled(self, things: Iterable[T]) -> list[T]:
        return self.random.sample(found := list(things), len(found))


def at_most(name: str, values: Sequence[float], limit: float | None, note: str = "") -> Row:
    value = statistics.median(values)
    goal = "" if limit is None else f"≤ {limit:g}"
    return Row(name, value, min(values), max(values), goal, None if limit is None else value <= limit, note)


def at_least(name: str, values: Sequence[float], limit: float, note: str = "") -> Row:
    value = statistics.median(values)
    return Row(name, value, min(values), max(values), f"≥ {limit:g}", value >= limit, note)


def none(name: str, count: int, note: str = "") -> Row:
    return Row(name, count, count, count, "0", count == 0, note)


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def ms(side: str, seconds: Sequence[float]) -> str:
    return f"{side} {statistics.median(seconds) * 1e3:.3g} ms"


def both(one: Sequence[float], other: Sequence[float], first: str = "ours", second: str = "raw") -> str:
    return f"{ms(first, one)}, {ms(second, other)}"


def percentile(values: Sequence[float], percent: int) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, len(found) * percent // 100)]
