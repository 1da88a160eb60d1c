"""Cost against size: a turn appended to a conversation, a conversation read, the newest conversations listed. Sizes go
from 10 to 1,000,000. Beside hitherto stand the raw table and peers that keep conversations in a file."""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

from ._children import Child
from ._file_peers import PEERS, Peer, are_installed
from ._messages import Plain
from ._sides import SEALED_SIDES, Ours, Raw
from ._table import Bench, Point, Row, at_most, both, ratios

APPEND, RESUME, LIST = "append", "resume", "list"
TITLES = {
    APPEND: "A turn appended to a conversation of so many messages",
    RESUME: "A conversation of so many messages read, the store open",
    LIST: "The 20 newest of so many conversations listed",
}
_NAMES = {"raw": "raw SQLite", "ours": "hitherto", "sealed": "hitherto, sealed"}
_SAID: list[Plain] = [
    {"role": "user", "content": "Why does the build fail since this morning?"},
    {"role": "assistant", "content": "An unused import breaks the lint step. Remove it, and it is green again."},
]
_CHUNK = 1_000  # messages in one write while a store is filled
_TURNS = 20
_FEW = 100  # conversations, the least that a listing of 20 is tried with

_Ask = Callable[[str], float]


def sizes(bench: Bench) -> list[Row]:
    steps = (10, 100, 1_000) if bench.quick else (10, 100, 1_000, 10_000, 100_000, 1_000_000)
    if not are_installed():
        print("sizes: the peers are not installed and are left out: make peers", file=sys.stderr)
    rows = []
    for size in steps:
        rows += _talking(bench, size)
    for size in steps:
        if size >= _FEW:
            rows += _listing(bench, size)
    return rows


def _talking(bench: Bench, size: int) -> list[Row]:
    rounds = 3 if size >= 100_000 else bench.pick(5, 9)
    ours = {side: Child(side, bench.place("sizes", size, side)) for side in SEALED_SIDES}
    peers = {name: Peer(name, bench.place("sizes", size, name)) for name in _peers(size)}
    _at_once(ours, peers, (_fill, size), ("fill", "long", size, _SAID))
    sides = [*ours, *peers]

    def append(side: str) -> float:
        return peers[side]("append", "long", _TURNS, _SAID) if side in peers else ours[side](_append)

    def load(side: str) -> float:
        return peers[side]("load", "long", size) if side in peers else ours[side](_load, size)

    rows = _rows(APPEND, f"append at {size:,}", size, _measured(bench, sides, rounds, append))
    rows += _rows(RESUME, f"resume {size:,}", size, _measured(bench, sides, rounds, load))
    for child in ours.values():
        child.close()
    for peer in peers.values():
        peer.close()
    return rows


def _listing(bench: Bench, size: int) -> list[Row]:
    """The list of openai-agents is a query of its tables, and that of the files asks for their times."""
    children = {side: Child(side, bench.place("listed", size, side)) for side in SEALED_SIDES}
    named = [name for name, peer in PEERS.items() if size <= peer.most_listed and are_installed()]
    peers = {name: Peer(name, bench.place("listed", size, name)) for name in named}
    _at_once(children, peers, (_fill_list, size), ("fill_list", size))

    def ask(side: str) -> float:
        return peers[side]("list", _TURNS) if side in peers else children[side](_list)

    times = _measured(bench, [*children, *peers], bench.pick(5, 9), ask)
    for child in children.values():
        child.close()
    for peer in peers.values():
        peer.close()
    return _rows(LIST, f"list 20 of {size:,}", size, times)


def _at_once(
    children: dict[str, Child],
    peers: dict[str, Peer],
    ours: tuple[Callable[[Raw | Ours, int], None], int],
    theirs: tuple[object, ...],
) -> None:
    """Let all sides do something that is not timed, at the same time."""
    for child in children.values():
        child.send(*ours)
    for peer in peers.values():
        peer.send(str(theirs[0]), *theirs[1:])
    for child in children.values():
        child.receive()
    for peer in peers.values():
        peer.receive()


def _peers(size: int) -> list[str]:
    return [name for name, peer in PEERS.items() if size <= peer.largest and are_installed()]


def _measured(bench: Bench, sides: Sequence[str], rounds: int, ask: _Ask) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in bench.shuffled(sides):
            took = ask(str(side))
            if number:  # the first brings the file into memory
                times[str(side)].append(took)
    return times


def _rows(plot: str, what: str, size: int, times: dict[str, list[float]]) -> list[Row]:
    rows = []
    for side, seconds in times.items():
        name = _NAMES.get(side, side)
        row = at_most(f"{what}: {name}", ratios(seconds, times["raw"]), None, both(seconds, times["raw"], name))
        point = Point(plot, name, size, statistics.median(seconds) * 1e3)
        rows.append(row._replace(point=point))
    return rows


def _fill(side: Raw | Ours, size: int) -> None:
    for start in range(0, size, _CHUNK):
        side.append("long", _SAID * (min(_CHUNK, size - start) // 2))


def _append(side: Raw | Ours) -> float:
    times = []
    for _ in range(_TURNS):
        began = time.perf_counter()
        side.append("long", _SAID)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _load(side: Raw | Ours, least: int) -> float:
    began = time.perf_counter()
    found = side.load("long")
    took = time.perf_counter() - began
    if len(found) < least:
        raise RuntimeError(f"{len(found)} of {least} messages came back")
    return took


def _fill_list(side: Raw | Ours, size: int) -> None:
    side.fill(size)


def _list(side: Raw | Ours) -> float:
    times = []
    for _ in range(_TURNS):
        began = time.perf_counter()
        found = side.recent(20)
        times.append(time.perf_counter() - began)
        if len(found) != 20:
            raise RuntimeError(f"a listing gave {len(found)} of 20")
    return statistics.median(times)
