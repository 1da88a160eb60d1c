"""What is measured. Each function gives rows of the table: ratios inside a round, then the median over rounds.

A round runs everything that is compared once, in shuffled order, so that a busy neighbour disturbs both sides alike.
"""

import os
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from . import _churn
from ._adapters import adapters
from ._attachments import attachments
from ._children import Child, once
from ._commands import commands
from ._corpus import content_bytes, turns
from ._erasing import erasing, erasing_10gb
from ._gateway import gateway
from ._growth import growth
from ._leaving import leaving
from ._load import load, tasks_on_postgres
from ._messages import Plain
from ._overview import overview
from ._peers import peers
from ._recall import recall
from ._recording import recording
from ._records import records
from ._rescuing import rescuing
from ._resuming import resume, resume_sealed
from ._sanitising import sanitising
from ._sealing import purging, rotating
from ._search import million, search, search_sealed
from ._sides import SEALED_SIDES, SIDES, Ours, Raw, Tasks
from ._sizes import sizes
from ._sweeping import sweep
from ._table import Bench, Row, at_least, at_most, both, ms, none, percentile, ratios
from ._viewer import viewer
from ._written import SIZES, names, populate, written

Side = Raw | Ours


# -- append


def _append(side: Side, among: list[str], start: int, count: int) -> tuple[list[float], float]:
    """Append turns to these conversations in turn: seconds of each, and mean CPU seconds of one."""
    times = []
    todo = [(among[(start + n) % len(among)], list(turn)) for n, turn in enumerate(turns(count, start))]
    cpu = time.process_time()
    for name, turn in todo:
        began = time.perf_counter()
        side.append(name, turn)
        times.append(time.perf_counter() - began)
    return times, (time.process_time() - cpu) / count


def append(bench: Bench) -> list[Row]:
    wall, cpu, each = _appending(bench, SIDES)
    rows = _append_rows("append a turn", wall, cpu, "ours", (1.1, 1.25))
    rows += _slowest_rows("append a turn", each, "ours")
    for side in SIDES:
        limit = 1.2 if side == "ours" else None
        rows.append(_growth(wall, side, limit))
    return rows + written(bench, "append a turn", "ours")


def append_sealed(bench: Bench) -> list[Row]:
    wall, cpu, each = _appending(bench, SEALED_SIDES)
    rows = _append_rows("append sealed", wall, cpu, "sealed", (1.25, 1.45))
    rows += _slowest_rows("append sealed", each, "sealed")
    rows.append(_growth(wall, "sealed", 1.2))
    for size in SIZES:
        sealed, plain = (size, "sealed"), (size, "ours")
        name = f"append sealed at {size:,} messages / plain"
        rows.append(at_most(name, ratios(wall[sealed], wall[plain]), None))
        note = both(cpu[sealed], cpu[plain], "sealed", "plain")
        rows.append(at_most(f"{name}: CPU", ratios(cpu[sealed], cpu[plain]), None, note))
    return rows + written(bench, "append sealed", "sealed")


_Times = dict[tuple[int, str], list[float]]


def _appending(bench: Bench, sides: Iterable[str]) -> tuple[_Times, _Times, _Times]:
    """Seconds and CPU seconds of a turn, by rounds, and seconds of every turn, for each size and side.

    The sides of one size follow each other at once: a busy neighbour, who comes and goes within seconds, then meets
    both sides of a ratio, or one ratio of many."""
    rounds, count = bench.pick(15, 41), 12
    children = {}
    for size in SIZES:
        for side in sides:
            child = children[size, side] = Child(side, bench.place("append", size, side))
            child(populate, size)
            child(_append, names(size), 0, max(len(names(size)), 20))  # every conversation is live
    wall: _Times = {key: [] for key in children}
    cpu: _Times = {key: [] for key in children}
    each: _Times = {key: [] for key in children}
    for number in range(rounds):
        for size in bench.shuffled(SIZES):
            for side in bench.shuffled(sides):
                key = size, side
                times, mean = children[key](_append, names(size), 200 + number * count, count)
                wall[key].append(statistics.median(times))
                cpu[key].append(mean)
                each[key] += times
    for child in children.values():
        child.close()
    return wall, cpu, each


def _append_rows(what: str, wall: _Times, cpu: _Times, side: str, limits: tuple[float, float]) -> list[Row]:
    rows = []
    for size in SIZES:
        ours, raw = (size, side), (size, "raw")
        name = f"{what} at {size:,} messages"
        rows.append(at_most(name, ratios(wall[ours], wall[raw]), limits[0], both(wall[ours], wall[raw])))
        rows.append(at_most(f"{name}: CPU", ratios(cpu[ours], cpu[raw]), limits[1], both(cpu[ours], cpu[raw])))
    return rows


def _slowest_rows(what: str, each: _Times, side: str) -> list[Row]:
    """The slowest of all turns, where checkpoints show."""
    rows = []
    for size in SIZES:
        for percent in (95, 99):
            ours, raw = ([percentile(each[size, one], percent)] for one in (side, "raw"))
            rows.append(at_most(f"{what} at {size:,} messages: p{percent}", ratios(ours, raw), None, both(ours, raw)))
    return rows


def _growth(wall: _Times, side: str, limit: float | None) -> Row:
    return at_most(f"append at 10,000 / at 10, {side}", ratios(wall[SIZES[-1], side], wall[SIZES[0], side]), limit)


# -- import

_PROGRAMS = {
    "nothing": "pass",
    "apsw": "import apsw",
    "hitherto": "import hitherto",
    "in use": "import hitherto; hitherto.open, hitherto.Message",
    "bare": "import sys; sys.modules['typing_extensions'] = None; import hitherto; hitherto.open, hitherto.Message",
    "opened": "import hitherto, hitherto.backends.sqlite; hitherto.open, hitherto.Message, hitherto.Conversation",
    "sealed": "import hitherto.backends.sqlite as b, hitherto as h, hitherto._sealing.sealed; h.open, h.Message, h.Key",
    "cryptography": "from cryptography.hazmat.primitives.ciphers import aead; "
    "from cryptography.hazmat.primitives.kdf import hkdf",
}


def _start(program: str, environment: dict[str, str]) -> float:
    began = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], environment)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - began
    if status:
        raise RuntimeError(f"this failed in a fresh interpreter: {program}")
    return took


def imports(bench: Bench) -> list[Row]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bench.place("pycache")
    for program in _PROGRAMS.values():
        _start(program, environment)  # compiles
    times: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    for _ in range(bench.pick(7, 15)):
        found: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
        for name in bench.shuffled([*_PROGRAMS] * 4):
            found[name].append(_start(_PROGRAMS[name], environment))
        for name, values in found.items():
            times[name].append(min(values))
    net = {
        name: [max(t - n, 1e-5) for t, n in zip(values, times["nothing"], strict=True)]
        for name, values in times.items()
    }
    rows = []
    for name, what, limit in (
        ("hitherto", "import hitherto", 12),
        ("in use", "import, open and Message named", 12),
        ("bare", "import, both named, where no SDK is", 10),  # SDKs bring typing_extensions, which msgspec then loads
        ("opened", "import, with the SQLite backend", None),
    ):
        note = f"{ms('ours', net[name])}, {ms('apsw', net['apsw'])}"
        rows.append(at_most(f"{what} / import apsw", ratios(net[name], net["apsw"]), limit, note))
    for name, what in (("sealed", "import, with a sealed store"), ("cryptography", "import cryptography")):
        note = f"{ms(name, net[name])}; sealed stores alone load it"
        rows.append(at_most(f"{what} / import apsw", ratios(net[name], net["apsw"]), None, note))
    return rows


# -- listing


def _fill(side: Side, conversations: int) -> None:
    side.fill(conversations)


def _recent(side: Side, count: int) -> float:
    return statistics.median(_listed(side.recent) for _ in range(count))


def _titles(side: Side, count: int) -> float:
    return statistics.median(_listed(side.titles) for _ in range(count))


def _listed(read: Callable[[int], list[str]]) -> float:
    began = time.perf_counter()
    found = read(20)
    took = time.perf_counter() - began
    if len(set(found)) != 20:
        raise RuntimeError(f"a listing gave {len(set(found))} of 20")
    return took


def _first_titles(folder: str, side: str) -> float:
    """The first listing of a process, the store opened."""
    opened = SEALED_SIDES[side](folder)
    took = _listed(opened.titles)
    opened.close()
    return took


def listing(bench: Bench) -> list[Row]:
    rows, ours = [], {}
    for size in (10_000,) if bench.quick else (10_000, 100_000):
        children = {side: Child(side, bench.place("list", size, side)) for side in SIDES}
        for child in children.values():
            child(_fill, size)
            child(_recent, 3)
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(bench.pick(7, 15)):
            for side in bench.shuffled(SIDES):
                times[side].append(children[side](_recent, 20))
        for child in children.values():
            child.close()
        found = ratios(times["ours"], times["raw"])
        rows.append(at_most(f"list 20 of {size:,} conversations", found, 3, both(times["ours"], times["raw"])))
        ours[size] = times["ours"]
    if len(ours) > 1:
        grown = ratios(ours[100_000], ours[10_000])
        rows.append(at_most("list 20 of 100,000 conversations / of 10,000", grown, 1.3))
    return rows


def list_sealed(bench: Bench) -> list[Row]:
    rows = []
    for size in (10_000,) if bench.quick else (10_000, 100_000):
        folders = {side: bench.place("list", size, side) for side in SEALED_SIDES}
        for side, folder in folders.items():
            once(side, folder, _fill, size)
        children = {side: Child(side, folder) for side, folder in folders.items()}
        first: dict[str, list[float]] = {side: [] for side in SEALED_SIDES}
        again: dict[str, list[float]] = {side: [] for side in SEALED_SIDES}
        for number in range(bench.pick(7, 15) + 1):
            for side in bench.shuffled(SEALED_SIDES):
                times = once(None, folders[side], _first_titles, side), children[side](_titles, 20)
                if number:  # the first brings the file into memory
                    first[side].append(times[0])
                    again[side].append(times[1])
        for child in children.values():
            child.close()
        name = f"list 20 of {size:,} sealed titles"
        for what, seconds in (("first of a process", first), ("again", again)):
            note = f"{both(seconds['sealed'], seconds['raw'])}, {ms('plain', seconds['ours'])}"
            rows.append(at_most(f"{name}, {what}", ratios(seconds["sealed"], seconds["raw"]), 30, note))
    return rows


# -- fork


def _append_and_fork(side: Ours, start: int, count: int) -> tuple[float, float]:
    """Median seconds of an append and of an append below a fork, of the same turns."""
    appended, forked = [], []
    for n, turn in enumerate(turns(count, start)):
        for what in random.sample((0, 1), 2):
            began = time.perf_counter()
            if what:
                side.fork("long", 300 + (37 * (start + n)) % 400, list(turn))
            else:
                side.append("long", list(turn))
            (forked if what else appended).append(time.perf_counter() - began)
    return statistics.median(appended), statistics.median(forked)


def _bytes_per_fork(side: Ours, count: int) -> float:
    before = side.bytes_on_disk()
    for n in range(count):
        side.forked("long", 300 + n)
    return (side.bytes_on_disk() - before) / count


def fork(bench: Bench) -> list[Row]:
    with Child("ours", bench.place("fork")) as child:
        child(populate, 1_000)
        child(_append_and_fork, 0, 3)
        rounds, count = bench.pick(7, 15), 15
        found = [child(_append_and_fork, 3 + n * count, count) for n in range(rounds)]
        size = child(_bytes_per_fork, 256)
    appended, forked = zip(*found, strict=True)
    note = f"{ms('append', appended)}, {ms('with a fork', forked)}"
    return [
        at_most("append below a fork at 1,000 / append", ratios(forked, appended), 1.5, note),
        Row("bytes of a fork with a message of one byte", size, size, size, "< 4096", size < 4096),
    ]


# -- several processes


def _tagged(who: int, start: int, count: int) -> list[list[Plain]]:
    """Turns of which both messages say whose they are."""
    found = []
    for n, turn in enumerate(turns(count, who * 100 + start), start):
        found.append([{**message, "content": f"[{who}.{n}] {message['content']}"} for message in turn])
    return found


def _tag(message: Plain) -> str:
    return str(message["content"]).partition(" ")[0]


def _write(side: Side, name: str, who: int, start: int, count: int) -> tuple[float, float, list[str], list[str]]:
    """Append turns: when it began and ended, what was acknowledged, what failed."""
    acknowledged, errors = [], []
    todo = _tagged(who, start, count)
    began = time.monotonic()
    for turn in todo:
        try:
            side.append(name, turn)
            acknowledged.append(_tag(turn[0]))
        except Exception as error:  # noqa: BLE001  # any failure counts
            errors.append(repr(error)[:200])
    return began, time.monotonic(), acknowledged, errors


def _tags(side: Side, name: str) -> list[str]:
    return [_tag(message) for message in side.plain(name)]


def _missing(found: list[str], acknowledged: Iterable[str]) -> tuple[int, int]:
    """Acknowledged turns of which something is missing, and turns (acknowledged or not) that are torn apart."""
    at = {tag: place for place, tag in reversed(list(enumerate(found)))}
    lost = sum(found.count(tag) != 2 for tag in acknowledged)
    torn = sum(found[place : place + 2] != [tag, tag] for tag, place in at.items())
    return lost, torn


_WRITERS = 4


def _race(bench: Bench, side: str, shared: bool, round_number: int, count: int) -> tuple[float, list[str], int, int]:
    """Turns a second, errors, lost and torn turns of four processes on one store."""
    folder = bench.place("processes", side)
    names = [f"{'one' if shared else 'own'} {round_number} {0 if shared else who}" for who in range(_WRITERS)]
    once(side, folder, _tags, "nothing")  # makes the store: a raw one cannot be made by four at a time
    children = [Child(side, folder) for _ in range(_WRITERS)]
    acknowledged: list[list[str]] = []
    for who, child in enumerate(children):
        acknowledged.append(child(_write, names[who], who, 0, 1)[2])  # the conversation is there
    for who, child in enumerate(children):
        child.send(_write, names[who], who, 1, count)
    found = [child.receive() for child in children]
    for who, child in enumerate(children):
        acknowledged[who] += found[who][2]
        child.close()
    seconds = max(end for _, end, _, _ in found) - min(began for began, _, _, _ in found)
    lost = torn = 0
    for name in dict.fromkeys(names):
        mine = [tag for who in range(_WRITERS) if names[who] == name for tag in acknowledged[who]]
        losses = _missing(once(side, folder, _tags, name), mine)
        lost, torn = lost + losses[0], torn + losses[1]
    return sum(len(ok) for _, _, ok, _ in found) / seconds, [e for *_, errors in found for e in errors], lost, torn


def processes(bench: Bench) -> list[Row]:
    rows = []
    for shared in (False, True):
        speed: dict[str, list[float]] = {side: [] for side in SIDES}
        errors: list[str] = []
        lost = torn = 0
        for number in range(bench.pick(5, 9)):
            for side in bench.shuffled(SIDES):
                rate, failed, gone, broken = _race(bench, side, shared, number, bench.pick(40, 100))
                speed[side].append(rate)
                if side == "ours":
                    errors, lost, torn = errors + failed, lost + gone, torn + broken
        name = f"4 processes, {'one conversation' if shared else 'own conversations'}"
        note = ", ".join(f"{side} {statistics.median(speed[side]):.0f} turns/s" for side in ("ours", "raw"))
        goal = 1.0 if shared else 0.95
        rows.append(at_least(f"{name}: turns/s", ratios(speed["ours"], speed["raw"]), goal, note))
        rows.append(
            none(
                f"{name}: errors, lost, torn",
                len(errors) + lost + torn,
                f"{len(errors)}, {lost}, {torn} {errors[:1] or ''}",
            )
        )
    return rows


# -- several threads


def _threads(side: Side, threads: int, start: int, count: int) -> float:
    """Turns a second of so many threads, each with its own conversation."""
    ready = threading.Barrier(threads + 1)
    errors: list[BaseException] = []

    def write(who: int) -> None:
        todo = _tagged(who, start, count)
        ready.wait()
        try:
            for turn in todo:
                side.append(f"thread {who}", turn)
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    workers = [threading.Thread(target=write, args=(who,)) for who in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return threads * count / (time.perf_counter() - began)


def _tasks(side: Tasks, tasks: int, start: int, count: int) -> float:
    """The same of so many tasks."""
    return side.write({f"thread {who}": _tagged(who, start, count) for who in range(tasks)})


def _crowd(bench: Bench, what: str, ours: str, write: Callable[..., float], goal: float) -> list[Row]:
    """64 at once, each with its own conversation, against as many threads that take turns at the raw table."""
    number, count = 64, bench.pick(5, 10)
    work = {ours: write, "raw": _threads}
    rates: dict[str, list[float]] = {side: [] for side in work}
    children = {side: Child(side, bench.place(what, side)) for side in work}
    rounds = bench.pick(5, 11)
    for side, child in children.items():
        child(work[side], number, 0, 1)
    for round_number in range(rounds):
        for side in bench.shuffled(work):
            rates[side].append(children[side](work[side], number, 1 + round_number * count, count))
    lost = 0
    for who in range(number):
        wanted = [tag for turn in _tagged(who, 0, 1 + rounds * count) for tag in map(_tag, turn)]
        lost += children[ours](_tags, f"thread {who}") != wanted
    for child in children.values():
        child.close()
    note = f"ours {statistics.median(rates[ours]):.0f} turns/s, raw {statistics.median(rates['raw']):.0f} turns/s"
    return [
        at_least(f"{number} {what}: turns/s / raw behind a lock", ratios(rates[ours], rates["raw"]), goal, note),
        none(f"{number} {what}: conversations not as written", lost),
    ]


def threads(bench: Bench) -> list[Row]:
    return _crowd(bench, "threads", "ours", _threads, 2.5)


def threads_sealed(bench: Bench) -> list[Row]:
    return _crowd(bench, "threads, sealed", "sealed", _threads, 1.8)


def tasks(bench: Bench) -> list[Row]:
    return _crowd(bench, "tasks", "tasks", _tasks, 3.5)


def tasks_sealed(bench: Bench) -> list[Row]:
    return _crowd(bench, "tasks, sealed", "sealed tasks", _tasks, 1.8)


# -- kill -9


def _write_for_ever(side: Side, log: str, who: int) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    start = 0
    while True:
        for turn in _tagged(who, start, 50):
            side.append("killed", turn)
            os.write(descriptor, _tag(turn[0]).encode() + b"\n")
        start += 50


def kill(bench: Bench) -> list[Row]:
    kills, folder = 20, bench.place("kill")
    log = Path(folder, "acknowledged")
    for who in range(kills):
        before = log.stat().st_size if log.exists() else 0
        child = Child("ours", folder)
        child.send(_write_for_ever, str(log), who)
        deadline = time.monotonic() + 30
        while not (log.exists() and log.stat().st_size > before):
            if time.monotonic() > deadline:
                child.kill()
                raise RuntimeError("a writer acknowledged nothing after a kill")
            time.sleep(0.001)
        time.sleep(bench.random.uniform(0.005, bench.pick(100, 250) / 1e3))
        child.kill()
    acknowledged = log.read_text().split()
    lost, torn = _missing(once("ours", folder, _tags, "killed"), acknowledged)
    note = f"{len(acknowledged):,} turns acknowledged"
    return [
        none(f"kill -9, {kills} times: acknowledged turns lost", lost, note),
        none(f"kill -9, {kills} times: half turns", torn),
    ]


# -- bytes

_GROWN = 500  # turns


def _grow(side: Side) -> None:
    for turn in turns(_GROWN):
        side.append("grown", list(turn))


def _bytes_on_disk(side: Side) -> int:
    return side.bytes_on_disk()


def disk(bench: Bench) -> list[Row]:
    content = content_bytes([message for turn in turns(_GROWN) for message in turn])
    closed, found = {}, {}
    for side in SEALED_SIDES:
        folder = bench.place("disk", side)
        once(side, folder, _grow)
        closed[side] = sum(file.stat().st_size for file in Path(folder).iterdir()) / content
        found[side] = once(side, folder, _bytes_on_disk) / content
    name = f"bytes on disk / content at {2 * _GROWN:,} messages"
    return [
        at_most(name, [found["ours"]], 0.6, "after maintenance"),
        at_most(f"{name}, closed", [closed["ours"]], None, "after no more than closing the store"),
        at_most(f"{name}, sealed", [found["sealed"]], 0.65, f"{found['sealed'] / found['ours']:.3f} of plain"),
        at_most(
            f"{name}, sealed, closed", [closed["sealed"]], None, f"{closed['sealed'] / closed['ours']:.3f} of plain"
        ),
        at_most(f"{name}, raw", [found["raw"]], None, "after a checkpoint"),
    ]


# -- maintenance


def maintenance(bench: Bench) -> list[Row]:
    changes, conversations = bench.pick(1_000, 10_000), bench.pick(40, 200)
    runs = []
    for number in range(bench.pick(1, 3)):
        folder = bench.place("maintenance", number)
        with Child("ours", folder) as writer:
            writer(_churn.populate, conversations)
            writer(_churn.change, changes, number)
            with Child("ours", folder) as reader:
                runs.append(_churn.maintained(writer, reader, folder))
        shutil.rmtree(folder)
    name = f"after {changes:,} updates and deletes"
    sizes = [run.file / run.copy for run in runs]
    whole = [(run.file + run.wal) / run.copy for run in runs]
    before = statistics.median(run.before / run.copy for run in runs)
    took = [run.seconds for run in runs]
    waits = [run.longest_during for run in runs]
    calm = [run.longest_without for run in runs]
    usual = f"usually {ms('during', [r.usual_during for r in runs])}, {ms('without', [r.usual_without for r in runs])}"
    return [
        at_most(f"{name}: file / fresh copy", sizes, 1.3, f"before maintenance {before:.2f}"),
        at_most(f"{name}: file and WAL / fresh copy", whole, None, f"copy of {runs[0].copy / 1e6:.1f} MB"),
        at_most(f"{name}: seconds of maintain", took, None, f"packed {runs[0].packed} runs"),
        at_most(
            "longest wait of a reader, during / without it",
            ratios(waits, calm),
            None,
            both(waits, calm, "during", "without") + "; " + usual,
        ),
    ]


# -- sealing


def purge(bench: Bench) -> list[Row]:
    return purging(bench, 500)


def rotation(bench: Bench) -> list[Row]:
    return rotating(bench)


MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "append": append,
    "append_sealed": append_sealed,
    "resume": resume,
    "resume_sealed": resume_sealed,
    "import": imports,
    "commands": commands,
    "list": listing,
    "list_sealed": list_sealed,
    "fork": fork,
    "processes": processes,
    "threads": threads,
    "threads_sealed": threads_sealed,
    "tasks": tasks,
    "tasks_sealed": tasks_sealed,
    "kill": kill,
    "disk": disk,
    "maintenance": maintenance,
    "attachments": attachments,
    "purge": purge,
    "erasing": erasing,
    "erasing_10gb": erasing_10gb,
    "sweep": sweep,
    "rotation": rotation,
    "recording": recording,
    "records": records,
    "leaving": leaving,
    "search": search,
    "search_sealed": search_sealed,
    "sanitiser": sanitising,
    "sizes": sizes,
    "peers": peers,
    "adapters": adapters,
    "recall": recall,
    "million": million,
    "overview": overview,
    "load": load,
    "tasks_postgres": tasks_on_postgres,
    "growth": growth,
    "viewer": viewer,
    "gateway": gateway,
    "rescue": rescuing,
}
