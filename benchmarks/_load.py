"""Many writers on one PostgreSQL server: hitherto beside the peers, and beside an INSERT and nothing else.

Everybody writes the same turns to conversations drawn by the same law, for the same time, on the same server, one after
the other in shuffled order. The limit is psycopg alone: one INSERT of two rows for each turn, which commits by itself
and promises nothing about what others write at the same moment.
"""

import json
import statistics
from collections import Counter
from pathlib import Path

from ._contest import Result, Spell, contest, present
from ._corpus import turns
from ._postgres import postgres
from ._table import Bench, Row, at_least, at_most, none, percentile, ratios

_PROCESSES, _THREADS = 8, 8
_LOAD = ("raw", "ours", "sealed", "langgraph", "agents")
_CROWD = ("raw", "raw tasks", "ours", "our tasks")
_GOALS = {"ours": 0.5, "sealed": 0.4}  # of an INSERT alone, under `load`
_RACES = 0.1  # lost for each turn
_NAMES = {
    "raw": "an INSERT alone",
    "raw tasks": "an INSERT alone, in tasks",
    "ours": "ours",
    "sealed": "ours, sealed",
    "our tasks": "ours, in tasks",
    "langgraph": "LangGraph's PostgresSaver",
    "agents": "openai-agents' SQLAlchemySession",
}


def load(bench: Bench) -> list[Row]:
    """8 processes with 8 threads each, 1,000 workspaces."""
    return _contests(bench, "load", _LOAD, bench.pick(100, 1_000), _PROCESSES, _THREADS)


def tasks_on_postgres(bench: Bench) -> list[Row]:
    """64 threads, or 64 tasks, of one process."""
    return _contests(bench, "64 at once", _CROWD, bench.pick(20, 100), 1, _PROCESSES * _THREADS)


def _texts(folder: Path) -> str:
    """The turns as pairs of texts, in a file: peers have nothing of ours that could make them."""
    file = folder / "turns.json"
    pairs = [[_text(said), _text(answered)] for said, answered in turns(1_000)]
    file.write_text(json.dumps(pairs))
    return str(file)


def _text(message: dict[str, object]) -> str:
    calls = message.get("tool_calls")
    return str(message["content"] or (calls[0]["arguments"] if calls else ""))


def _contests(
    bench: Bench, what: str, names: tuple[str, ...], workspaces: int, processes: int, crowd: int
) -> list[Row]:
    rounds, seconds = bench.pick(1, 2), bench.pick(4, 12)
    there = [name for name in names if present(name)]
    found: dict[str, list[Result]] = {name: [] for name in there}
    turns_file = _texts(bench.folder)
    for number in range(rounds):
        for name in bench.shuffled(there):
            with postgres() as server:  # each has it to itself, and empty
                spell = Spell(number, seconds, workspaces, turns_file)
                found[str(name)].append(contest(str(name), server.url, spell, processes, crowd))
    rows = [row for name in there for row in _rows(what, name, found[name], found["raw"], workspaces)]
    missing = ", ".join(_NAMES[name] for name in names if name not in there)
    if missing:
        rows.append(Row(f"{what}: not here (`make peers` installs them)", 0, 0, 0, "", None, missing))
    return rows


def _latencies(result: Result) -> list[float]:
    return [seconds for thread in result.appends for *_, seconds in thread]


def _rate(result: Result) -> float:
    return len(_latencies(result)) / result.seconds


def _rows(what: str, name: str, found: list[Result], raw: list[Result], workspaces: int) -> list[Row]:
    title = f"{what}, {_NAMES[name]}"
    rates = [_rate(result) for result in found]
    note = f"{statistics.median(rates):.0f} turns/s, CPU {_median(found, _cpu) * 1e3:.2f} ms a turn"
    against = ratios(rates, [_rate(each) for each in raw])
    goal = _GOALS.get(name) if what == "load" else None
    named = f"{title}: turns/s / an INSERT alone"
    rows = [at_most(named, against, None, note) if goal is None else at_least(named, against, goal, note)]
    for percent in (50, 99):
        own, limit = ([percentile(_latencies(each), percent) for each in side] for side in (found, raw))
        note = f"{statistics.median(own) * 1e3:.1f} ms"
        rows.append(at_most(f"{title}: p{percent} of a turn / an INSERT alone", ratios(own, limit), None, note))
    own, limit = ([statistics.median(each.loads or [0.0]) for each in side] for side in (found, raw))
    rows.append(at_most(f"{title}: p50 of a resume / a SELECT alone", ratios(own, limit), None, _ms(own)))
    rows.append(
        at_most(f"{title}: fairness of threads (Jain)", [_fairness(each) for each in found], None, _ends(found))
    )
    ours = name not in ("langgraph", "agents")
    rows.append(_wrong(title, found, goal=ours))
    if "batches" in found[0].facts:
        rows += _own_rows(title, found, workspaces)
    return rows


def _cpu(result: Result) -> float:
    return result.cpu / max(1, len(_latencies(result)))


def _median(found: list[Result], figure) -> float:
    return statistics.median(figure(result) for result in found)


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f} ms"


def _fairness(result: Result) -> float:
    """1 if all threads got the same done, 1/n if one got all."""
    counts = [len(thread) for thread in result.appends]
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts) or 1)


def _ends(found: list[Result]) -> str:
    """The slowest workspace of those with some turns, against the median of all."""
    slowest = []
    for result in found:
        of: dict[str, list[float]] = {}
        for thread in result.appends:
            for workspace, _, _, seconds in thread:
                of.setdefault(workspace, []).append(seconds)
        medians = [statistics.median(times) for times in of.values() if len(times) >= 10]
        if medians:
            slowest.append(max(medians) / statistics.median(_latencies(result)))
    return f"slowest workspace {statistics.median(slowest):.1f} times the median turn" if slowest else ""


def _wrong(title: str, found: list[Result], *, goal: bool) -> Row:
    errors = [error for result in found for error in result.errors]
    lost, doubled = sum(result.lost for result in found), sum(result.doubled for result in found)
    total = sum(len(_latencies(result)) for result in found)
    note = f"{len(errors)}, {lost}, {doubled} of {total:,} {errors[:1] or ''}"
    row = none(f"{title}: errors, turns lost, turns twice", len(errors) + lost + doubled, note)
    return row if goal else row._replace(goal="", met=None)


def _own_rows(title: str, found: list[Result], workspaces: int) -> list[Row]:
    facts = sum((result.facts for result in found), Counter())
    turns_done = sum(len(_latencies(result)) for result in found)
    stale = (facts["Stale"] + facts["Taken"]) / turns_done
    anew = f"{facts['rebased'] / turns_done:.2f} made anew in the queue"
    note = f"{anew}, {facts['batches'] / max(1, facts['commits']):.2f} batches a commit"
    first = [result.entering[0] / workspaces * 1e3 for result in found]
    later = [seconds / workspaces * 1e3 for result in found for seconds in result.entering[1:]] or first
    largest = max(found, key=lambda result: result.peak)
    note_open = f"{statistics.median(later):.2f} ms where it is there"
    note_peak = f"{largest.threads} threads at the end, {workspaces:,} stores open in each process"
    return [
        at_most(f"{title}: races lost and run again, for each turn", [stale], _RACES, note),
        at_most(f"{title}: ms of opening a workspace, made", first, None, note_open),
        at_most(f"{title}: MB of memory of a process", [largest.peak / 1e6], None, note_peak),
    ]
