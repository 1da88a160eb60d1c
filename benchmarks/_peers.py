"""Beside peers that keep conversations in a file: bytes on disk, and several processes on one store.

What an append, a resume and a list of theirs take stands in `_sizes`. All sides get the same texts, and are measured in
the same rounds.
"""

import statistics
import sys
import time
from pathlib import Path

from ._children import Child, once
from ._corpus import content_bytes, turns
from ._file_peers import PEERS, Peer, are_installed
from ._messages import Plain
from ._sides import SEALED_SIDES, Ours, Raw
from ._table import Bench, Row, at_most, none, ratios

Turn = list[Plain]

_PROCESSES = 4


def peers(bench: Bench) -> list[Row]:
    if not are_installed():
        print("peers: they are not installed and are left out: make peers", file=sys.stderr)
    return _bytes_rows(bench) + _processes_rows(bench)


def _sides() -> list[str]:
    return [*SEALED_SIDES, *(PEERS if are_installed() else ())]


class _Any:
    """A process with one side, whichever it is."""

    def __init__(self, side: str, folder: str) -> None:
        self._peer = Peer(side, folder) if side in PEERS else None
        self._child = None if side in PEERS else Child(side, folder)

    def begin(self, name: str, texts: list[Turn]) -> None:
        """Begin to append these turns."""
        if self._peer is not None:
            self._peer.send("write", name, texts)
        elif self._child is not None:
            self._child.send(_write, name, texts)

    def end(self) -> int:
        """Wait for that: how many turns were acknowledged."""
        waiting = self._peer or self._child
        return int(waiting.receive()) if waiting is not None else 0

    def count(self, name: str) -> int:
        """The messages of a conversation."""
        if self._peer is not None:
            return int(self._peer("count", name))
        return int(self._child(_count, name)) if self._child is not None else 0

    def close(self) -> None:
        for one in (self._peer, self._child):
            if one is not None:
                one.close()


def _write(side: Raw | Ours, name: str, texts: list[Turn]) -> int:
    for said in texts:
        side.append(name, said)
    return len(texts)


def _count(side: Raw | Ours, name: str) -> int:
    return len(side.load(name))


def _texts(count: int, start: int = 0) -> list[Turn]:
    """Turns of a question and an answer in words: peers are given no calls of tools."""
    return [
        [{"role": "user", "content": _text(said)}, {"role": "assistant", "content": _text(answered)}]
        for said, answered in turns(count, start)
    ]


def _text(message: Plain) -> str:
    calls = message.get("tool_calls")
    return str(message["content"] or (calls[0]["arguments"] if calls else ""))


# -- bytes


def _bytes_rows(bench: Bench) -> list[Row]:
    """Turn by turn. The conversation is short because LangGraph keeps every state of it."""
    count = bench.pick(50, 200)
    texts = _texts(count)
    content = content_bytes([message for said in texts for message in said])
    rows = []
    for side in _sides():
        folder = bench.place("bytes", side)
        one = _Any(side, folder)
        one.begin("long", texts)
        if one.end() != count:
            raise RuntimeError(f"{side} did not take all turns")
        one.close()
        name = f"bytes on disk / content at {2 * count} messages: {side}"
        rows.append(at_most(f"{name}, closed", [_size(folder) / content], None))
        if side in SEALED_SIDES and side != "raw":
            once(side, folder, _maintain)
            rows.append(at_most(f"{name}, after maintenance", [_size(folder) / content], None))
    return rows


def _maintain(side: Ours) -> int:
    return side.bytes_on_disk()


def _size(folder: str) -> int:
    """Of everything but the ballast, which holds nothing."""
    files = (file for file in Path(folder).rglob("*") if file.is_file() and not file.name.endswith("-ballast"))
    return sum(file.stat().st_size for file in files)


# -- processes


def _processes_rows(bench: Bench) -> list[Row]:
    """The processes stay for all rounds, because peers take seconds to be loaded."""
    processes: dict[str, list[_Any]] = {}
    for side in _sides():
        processes[side] = []
        for who in range(_PROCESSES):  # one after the other: not all can make a store at the same time
            processes[side].append(one := _Any(side, bench.place("peers", side)))
            one.begin(f"first {who}", _texts(1, who))
            one.end()
    rows = [row for shared in (False, True) for row in _race_rows(bench, processes, shared=shared)]
    for one in (one for some in processes.values() for one in some):
        one.close()
    return rows


def _race_rows(bench: Bench, processes: dict[str, list[_Any]], *, shared: bool) -> list[Row]:
    speed: dict[str, list[float]] = {side: [] for side in processes}
    lost = dict.fromkeys(speed, 0)
    for number in range(bench.pick(3, 5)):
        for side in bench.shuffled(speed):
            names = [f"{'one' if shared else 'own'} {number} {0 if shared else who}" for who in range(_PROCESSES)]
            rate, missing = _race(processes[side], names, bench.pick(20, 50))
            speed[side].append(rate)
            lost[side] += missing
    what = f"4 processes, {'one conversation' if shared else 'own conversations'}"
    rows = []
    for side, found in speed.items():
        note = f"{statistics.median(found):.0f} turns/s"
        rows.append(at_most(f"{what}: {side}, turns/s / raw", ratios(found, speed["raw"]), None, note))
        row = none(f"{what}: {side}, turns not as acknowledged", lost[side])
        rows.append(row if side in SEALED_SIDES else row._replace(goal="", met=None))
    return rows


def _race(processes: list[_Any], names: list[str], count: int) -> tuple[float, int]:
    """Acknowledged turns a second of all processes, and how many turns are missing or too many afterwards."""
    acknowledged = 0
    for who, one in enumerate(processes):
        one.begin(names[who], _texts(1, 1_000 * who))  # the conversation is there
        acknowledged += one.end()
    todo = [_texts(count, 1_000 * who + 1) for who in range(_PROCESSES)]
    began = time.perf_counter()
    for one, name, texts in zip(processes, names, todo, strict=True):
        one.begin(name, texts)
    done = sum(one.end() for one in processes)
    seconds = time.perf_counter() - began
    messages = sum(processes[0].count(name) for name in dict.fromkeys(names))
    return done / seconds, abs(messages - 2 * (acknowledged + done)) // 2
