"""A contest: many processes with many threads (or tasks) each write turns to one server, until the time is up.

Which conversation a turn goes to is drawn by Zipf's law: a few are written to by everybody at once, most by hardly
anybody. All of them are begun before the clock starts. Every `RESUME`th time a conversation is read instead. Each text
begins with a mark, so that afterwards it can be told of every acknowledged turn whether it is there, whole, and once.

`python -m benchmarks._contest NAME URL CROWD` is one of the processes. It takes orders as lines of JSON from standard
input and answers as lines of JSON, and it runs in the environment of whoever it is: nothing but the standard library
is imported here.
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from bisect import bisect
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ._contestants import CONTESTANTS, PEERS, works_in_tasks

RESUME = 10
_NAMES = 3  # conversations of a workspace
_EXPONENT = 1.0
_ROOT = Path(__file__).resolve().parents[1]
_PEERS = _ROOT / ".tools/peers/bin/python"


class Spell(NamedTuple):
    """What each process is asked to do."""

    who: int
    seconds: float
    workspaces: int
    turns: str  # a file of pairs of texts


class Draw:
    """Conversations by Zipf's law, the same ones for everybody."""

    def __init__(self, workspaces: int, seed: str) -> None:
        self._random, self._workspaces = random.Random(seed), workspaces
        self._weights = list(accumulate(1 / rank**_EXPONENT for rank in range(1, workspaces * _NAMES + 1)))

    def __call__(self) -> tuple[str, str]:
        return place(bisect(self._weights, self._random.random() * self._weights[-1]), self._workspaces)


def place(rank: int, workspaces: int) -> tuple[str, str]:
    """The conversation of this rank: its workspace and its name. Neighbours are of different workspaces."""
    return f"w{rank * 7919 % workspaces}", f"c{rank // workspaces}"


class Log:
    """What one thread did."""

    def __init__(self) -> None:
        self.appends: list[tuple[str, str, str, float]] = []  # workspace, name, mark, seconds
        self.loads: list[float] = []
        self.errors: list[str] = []


class _Work:
    """What one thread is to do next. The same whether it waits or awaits."""

    def __init__(self, spell: Spell, number: int, turns: list[list[str]]) -> None:
        self._turns, self._label, self._count = turns, f"{spell.who}.{number}", 0
        self._draw = Draw(spell.workspaces, self._label)
        self._start = random.Random(self._label).randrange(len(turns))

    def next(self) -> tuple[str, str, str | None, str, str]:
        """Workspace, name, a mark if it is a turn, and the turn."""
        workspace, name = self._draw()
        self._count += 1
        if self._count % RESUME == 0:
            return workspace, name, None, "", ""
        said, answered = self._turns[(self._start + self._count) % len(self._turns)]
        mark = f"[{self._label}.{self._count}]"
        return workspace, name, mark, f"{mark} {said}", f"{mark} {answered}"


def _in_thread(contestant, work: _Work, log: Log, until: float) -> None:
    while (began := time.monotonic()) < until:
        workspace, name, mark, said, answered = work.next()
        try:
            if mark is None:
                contestant.load(workspace, name)
                log.loads.append(time.monotonic() - began)
            else:
                contestant.append(workspace, name, said, answered)
                log.appends.append((workspace, name, mark, time.monotonic() - began))
        except Exception as error:  # noqa: BLE001  # any failure counts
            log.errors.append(repr(error)[:300])


async def _in_task(contestant, work: _Work, log: Log, until: float) -> None:
    while (began := time.monotonic()) < until:
        workspace, name, mark, said, answered = work.next()
        try:
            if mark is None:
                await contestant.load(workspace, name)
                log.loads.append(time.monotonic() - began)
            else:
                await contestant.append(workspace, name, said, answered)
                log.appends.append((workspace, name, mark, time.monotonic() - began))
        except Exception as error:  # noqa: BLE001  # any failure counts
            log.errors.append(repr(error)[:300])


class _Process:
    """One process of a contest, seen from inside."""

    def __init__(self, name: str, url: str, crowd: int) -> None:
        self._runner = asyncio.Runner()
        self._crowd = crowd
        self._contestant = self._runner.run(self._made(name, url))

    async def _made(self, name: str, url: str):
        return CONTESTANTS[name](url, self._crowd)

    def _call(self, method: str, *arguments: object):
        found = getattr(self._contestant, method)(*arguments)
        return self._runner.run(_awaited(found)) if asyncio.iscoroutine(found) else found

    def prepare(self) -> None:
        self._call("prepare")

    def enter(self, workspaces: int) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        self._call("enter", [f"w{number}" for number in range(workspaces)])
        return time.monotonic() - began

    def begin(self, workspaces: int, who: int, processes: int) -> None:
        """Write the first turn of this process's share of all conversations."""
        for rank in range(who, workspaces * _NAMES, processes):
            self._call("append", *place(rank, workspaces), "Hello.", "Hello! What can I do for you?")

    def run(self, *given) -> dict[str, object]:
        spell = Spell(*given)
        turns = json.loads(Path(spell.turns).read_text())
        work = [_Work(spell, number, turns) for number in range(self._crowd)]
        logs = [Log() for _ in work]
        self._contestant.facts.clear()
        busy, began = time.process_time(), time.monotonic()
        until = began + spell.seconds
        if works_in_tasks(self._contestant):
            self._runner.run(self._tasks(work, logs, until))
        else:
            self._threads(work, logs, until)
        return {
            "seconds": time.monotonic() - began,
            "cpu": time.process_time() - busy,
            "logs": [vars(log) for log in logs],
            "facts": dict(self._contestant.facts),
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "threads": threading.active_count(),
        }

    def _threads(self, work: list[_Work], logs: list[Log], until: float) -> None:
        workers = [
            threading.Thread(target=_in_thread, args=(self._contestant, *each, until))
            for each in zip(work, logs, strict=True)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    async def _tasks(self, work: list[_Work], logs: list[Log], until: float) -> None:
        todo = zip(work, logs, strict=True)
        await asyncio.gather(*(_in_task(self._contestant, *each, until) for each in todo))

    def read(self, *conversations: list[str]) -> list[list[str]]:
        """The marks in these."""
        found = [self._call("load", *conversation) for conversation in conversations]
        return [[text.partition(" ")[0] for text in texts] for texts in found]

    def close(self) -> None:
        self._call("close")
        self._runner.close()


async def _awaited(coroutine):
    return await coroutine


def _serve(name: str, url: str, crowd: str) -> None:
    process = _Process(name, url, int(crowd))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(process, method)(*arguments)), flush=True)
    process.close()


# -- from outside


class Outsider:
    """One process of a contest, seen from outside."""

    def __init__(self, name: str, url: str, crowd: int) -> None:
        python = str(_PEERS) if name in PEERS else sys.executable
        environment = {**os.environ, "LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks._contest", name, url, str(crowd)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment,
        )  # fmt: skip
        self._is_ready = False

    def __call__(self, method: str, *arguments: object):
        self.send(method, *arguments)
        return self.receive()

    def send(self, method: str, *arguments: object) -> None:
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self):
        if not self._is_ready:
            self._is_ready = True
            self.receive()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the contest died; what it said is above")
        return json.loads(line)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Result(NamedTuple):
    """What a spell came to."""

    seconds: float
    entering: list[float]  # seconds that each process took to be ready for all workspaces, one after the other
    appends: list[list[tuple[str, str, str, float]]]  # of each thread
    loads: list[float]
    errors: list[str]
    lost: int  # acknowledged turns that are not there, or not whole
    doubled: int
    facts: Counter[str]
    cpu: float
    peak: int  # bytes of the largest process
    threads: int  # of the largest, when the work was done


def present(name: str) -> bool:
    return name not in PEERS or _PEERS.exists()


def contest(name: str, url: str, spell: Spell, processes: int, crowd: int) -> Result:
    """Let so many processes with so many threads each at it, then read everything back."""
    first = Outsider(name, url, 1)
    try:
        first("prepare")
    finally:
        first.close()
    outsiders = [Outsider(name, url, crowd) for _ in range(processes)]
    try:
        entering = [outsider("enter", spell.workspaces) for outsider in outsiders]
        for who, outsider in enumerate(outsiders):
            outsider.send("begin", spell.workspaces, who, processes)
        for outsider in outsiders:
            outsider.receive()
        for who, outsider in enumerate(outsiders):
            outsider.send("run", *spell._replace(who=spell.who * processes + who))
        found = [outsider.receive() for outsider in outsiders]
    finally:
        for outsider in outsiders:
            outsider.close()
    logs = [log for each in found for log in each["logs"]]
    reader = Outsider(name, url, 1)
    try:
        reader("enter", 0)
        lost, doubled = _missing(reader, [append for log in logs for append in log["appends"]])
    finally:
        reader.close()
    return Result(
        max(each["seconds"] for each in found),
        entering,
        [log["appends"] for log in logs],
        [seconds for log in logs for seconds in log["loads"]],
        [error for log in logs for error in log["errors"]],
        lost,
        doubled,
        sum((Counter(each["facts"]) for each in found), Counter()),
        sum(each["cpu"] for each in found),
        max(each["peak"] for each in found),
        max(each["threads"] for each in found),
    )


def _missing(reader: Outsider, appends: list[tuple[str, str, str, float]]) -> tuple[int, int]:
    """Acknowledged turns of which something is missing, and of which something is there more than once."""
    places = sorted({(workspace, name) for workspace, name, _, _ in appends})
    marks: Counter[tuple[str, str, str]] = Counter()
    for start in range(0, len(places), 500):
        some = places[start : start + 500]
        for place, found in zip(some, reader("read", *some), strict=True):
            marks.update((*place, mark) for mark in found)
    counts = [marks[workspace, name, mark] for workspace, name, mark, _ in appends]
    return sum(count < 2 for count in counts), sum(count > 2 for count in counts)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
