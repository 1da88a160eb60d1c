"""Search: how long people wait for what they look for, and how fast the index takes messages in.

No raw table does the same. So these rows are milliseconds, and beside them stands what a bare FTS5 table with the same
texts takes: it finds the numbers of messages, and neither looks them up, nor makes snippets, nor asks whether anything
is new.

Cold is a fresh process that opens the store and searches once. The files are put out of the page cache first, where the
system lets us; what the disk itself remembers we cannot change.
"""

import os
import statistics
import time
from itertools import count as numbers
from pathlib import Path
from typing import NamedTuple

from ._children import Child, once
from ._corpus import Passages
from ._messages import Plain
from ._sides import SEALED_SIDES, Ours, Words
from ._table import Bench, Row, at_most, percentile

_LIMIT = 20
_VARIANTS = 8  # different words of each kind
_RARE = [f"quokka{chr(ord('a') + n)}" for n in range(_VARIANTS)]
_PLANTED = 5  # messages that have one rare word
_SAMPLES = 40  # of one kind in one round, if there is time
_BATCH = 512  # texts that the bare table takes in at a time
_NEW = 1_000

_passages: list[Passages] = []  # filled before the first process is forked


class _Shape(NamedTuple):
    """What a store holds."""

    messages: int
    each: int  # messages in one conversation
    low: int  # characters of a message
    high: int

    def text(self, number: int) -> str:
        text = _passages[0].text(number, self.low, self.high)
        every = self.messages // (_PLANTED * _VARIANTS)
        return f"{text} {_RARE[number // every % _VARIANTS]}" if number % every == 0 else text

    def plain(self, number: int) -> Plain:
        return {"role": "assistant" if number % 2 else "user", "content": self.text(number)}


class _Kind(NamedTuple):
    """Questions of one kind, as people write them and as FTS5 wants them."""

    name: str
    ranked: bool
    asked: tuple[str, ...]
    expressions: tuple[str, ...]


def _kinds() -> list[_Kind]:
    words = _passages[0].words
    common = tuple(words[:_VARIANTS])
    phrases = tuple(f'"{words[n]} {words[n + 3]}"' for n in range(_VARIANTS))
    prefixes = tuple(word[:3] for word in words[_VARIANTS:] if len(word) > 4)[:_VARIANTS]
    quoted = tuple(f'"{word}"' for word in common)
    return [
        _Kind("a rare word", False, tuple(_RARE), tuple(_RARE)),
        _Kind("a common word", False, common, quoted),
        _Kind("a phrase", False, phrases, phrases),
        _Kind("a prefix", False, tuple(f"{p}*" for p in prefixes), tuple(f'"{p}" *' for p in prefixes)),
        _Kind("a common word, ranked", True, common, quoted),
        _Kind("a phrase, ranked", True, phrases, phrases),
    ]


# -- in processes of their own


def _build(side: Ours, shape: _Shape) -> int:
    """Fill the store and pack it; bytes of content."""
    size = 0
    for start in range(0, shape.messages, shape.each):
        given = [shape.plain(number) for number in range(start, start + shape.each)]
        size += sum(len(str(message["content"]).encode()) for message in given)
        side.append(f"talk {start // shape.each}", given)
    side.maintain()
    return size


def _first(side: Ours) -> float:
    """The search that makes the index."""
    began = time.perf_counter()
    if side.find(_RARE[0], _LIMIT, ranked=False) != _PLANTED:
        raise RuntimeError("a search did not find what is there")
    return time.perf_counter() - began


def _put_all(side: Words, shape: _Shape) -> float:
    seconds = 0.0
    for start in range(0, shape.messages, _BATCH):
        texts = [shape.text(number) for number in range(start, min(start + _BATCH, shape.messages))]
        began = time.perf_counter()
        side.put(texts)
        seconds += time.perf_counter() - began
    return seconds


def _after_new(side: Ours, shape: _Shape, start: int) -> float:
    """A search after messages have come, in ten conversations."""
    step = _NEW // 10
    for place in range(0, _NEW, step):
        given = [shape.plain(start + place + n) for n in range(step)]
        side.append(f"talk {place // step}", given)
    return _first_word(side)


def _first_word(side: Ours) -> float:
    began = time.perf_counter()
    side.find(_RARE[0], _LIMIT, ranked=False)
    return time.perf_counter() - began


def _ask(side: Ours | Words, questions: tuple[str, ...], ranked: bool, seconds: float) -> tuple[list[float], list[int]]:
    """Ask each question, again and again for about so long; seconds, and how many each found."""
    times, found = [], []
    end = time.perf_counter() + seconds
    for n in numbers():
        began = time.perf_counter()
        hits = side.find(questions[n % _VARIANTS], _LIMIT, ranked=ranked)
        now = time.perf_counter()
        times.append(now - began)
        found.append(hits)
        if n + 1 >= _VARIANTS and (now > end or n + 1 >= _SAMPLES):
            return times, found[:_VARIANTS]
    raise AssertionError


def _cold(folder: str, question: str, ranked: bool) -> float:
    began = time.perf_counter()
    side = Ours(folder)
    side.find(question, _LIMIT, ranked=ranked)
    took = time.perf_counter() - began
    side.close()
    return took


def _evict(folder: str) -> bool:
    """Put the files of a store out of the page cache. Nobody may have them open in this process."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in Path(folder).iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return True


# -- rows


def search(bench: Bench) -> list[Row]:
    small, large = _Shape(1_000, 100, 60, 3_060), _Shape(bench.pick(10_000, 100_000), 100, 60, 3_060)
    warm, cold = bench.pick(3, 5), bench.pick(1, 3)
    return [row for shape in (small, large) for row in _measured(bench, shape, warm, cold)]


def million(bench: Bench) -> list[Row]:
    """The same with a million short messages, in fewer rounds."""
    return _measured(bench, _Shape(bench.pick(20_000, 1_000_000), bench.pick(20, 1_000), 80, 240), 2, 1)


def search_sealed(bench: Bench) -> list[Row]:
    """In a sealed store, whose index is no file: in a fresh process, and again in the same."""
    if not _passages:
        _passages.append(Passages())
    shape = _Shape(bench.pick(10_000, 100_000), 100, 60, 3_060)
    name, folder = f"search {shape.messages:,} sealed", bench.place("search", "sealed")
    content = once("sealed", folder, _build, shape)
    kinds, rounds, state = _kinds(), bench.pick(2, 5), "page cache warm"
    first: dict[int, list[float]] = {n: [] for n in range(len(kinds))}
    again: dict[int, list[float]] = {n: [] for n in first}
    made = once("sealed", folder, _first_and_keep)
    for number in range(rounds):
        for n in bench.shuffled(first):
            kind = kinds[n]
            state = "page cache dropped" if _evict(folder) else state
            seconds = once(None, folder, _cold_and_again, kind.asked[number % _VARIANTS], kind.ranked)
            first[n].append(seconds[0])
            again[n].append(seconds[1])
    note = f"{content / 1e6:.0f} MB of text; {made:.1f} s, then maintenance"
    rows = [at_most(f"{name}: the very first search, messages/s", [shape.messages / made], None, note)]
    for what, times, note in (("cold", first, state), ("again", again, "in the same process")):
        for n, kind in enumerate(kinds):
            found = [1e3 * seconds for seconds in times[n]]
            rows.append(at_most(f"{name}, {what}: {kind.name}, ms", found, None, note))
    return rows


def _first_and_keep(side: Ours) -> float:
    """The search that makes the index, which maintenance then keeps."""
    took = _first(side)
    side.maintain()
    return took


def _cold_and_again(folder: str, question: str, ranked: bool) -> tuple[float, float]:
    began = time.perf_counter()
    side = SEALED_SIDES["sealed"](folder)
    side.find(question, _LIMIT, ranked=ranked)
    between = time.perf_counter()
    side.find(question, _LIMIT, ranked=ranked)
    took = between - began, time.perf_counter() - between
    side.close()
    return took


def _measured(bench: Bench, shape: _Shape, warm_rounds: int, cold_rounds: int) -> list[Row]:
    if not _passages:
        _passages.append(Passages())
    name = f"search {shape.messages:,}"
    ours, bare = bench.place("search", shape.messages), bench.place("words", shape.messages)
    content = once("ours", ours, _build, shape)
    children = {"ours": Child("ours", ours), "words": Child("words", bare)}
    rates = {"ours": shape.messages / children["ours"](_first), "words": 0.0}
    rates["words"] = shape.messages / children["words"](_put_all, shape)
    warm = _warm(bench, name, children, warm_rounds)
    for child in children.values():
        child.close()
    index = Path(ours, "hitherto.db-search").stat().st_size
    bare_index = Path(bare, "words.db").stat().st_size
    rows = [*warm, *_cold_rows(bench, name, ours, cold_rounds)]
    note = f"{content / 1e6:.0f} MB of text; bare FTS5 {rates['words']:,.0f}"
    rows.append(at_most(f"{name}: first search, messages/s", [rates["ours"]], None, note))
    rows.append(_new_row(bench, name, shape, ours))
    note = f"bare FTS5 {bare_index / content:.2f}"
    rows.append(at_most(f"{name}: bytes of the index / of the text", [index / content], None, note))
    return rows


def _warm(bench: Bench, name: str, children: dict[str, Child], rounds: int) -> list[Row]:
    kinds = _kinds()
    times: dict[tuple[int, str], list[list[float]]] = {(n, side): [] for n in range(len(kinds)) for side in children}
    for _ in range(rounds):
        found: dict[tuple[int, str], list[int]] = {}
        for n, side in bench.shuffled(times):
            kind = kinds[n]
            questions = kind.asked if side == "ours" else kind.expressions
            some, found[n, side] = children[side](_ask, questions, kind.ranked, bench.pick(1, 5) / 5)
            times[n, side].append(some)
        for n, kind in enumerate(kinds):
            if found[n, "ours"] != found[n, "words"]:
                raise RuntimeError(f"{kind.name}: {found[n, 'ours']} hits instead of {found[n, 'words']}")
    return [_warm_row(f"{name}: {kind.name}, ms", times[n, "ours"], times[n, "words"]) for n, kind in enumerate(kinds)]


def _warm_row(name: str, ours: list[list[float]], bare: list[list[float]]) -> Row:
    row = _milliseconds(name, ours)
    ratio = statistics.median(statistics.median(a) / statistics.median(b) for a, b in zip(ours, bare, strict=True))
    usual = statistics.median(seconds for some in bare for seconds in some)
    return row._replace(note=f"{row.note}, bare FTS5 {usual * 1e3:.3g}, ratio {ratio:.1f}")


def _milliseconds(name: str, rounds: list[list[float]]) -> Row:
    every = [seconds * 1e3 for some in rounds for seconds in some]
    usual = [statistics.median(some) * 1e3 for some in rounds]
    return Row(name, percentile(every, 50), min(usual), max(usual), "", None, f"p95 {percentile(every, 95):.3g}")


def _cold_rows(bench: Bench, name: str, folder: str, rounds: int) -> list[Row]:
    kinds = _kinds()
    times: dict[int, list[list[float]]] = {n: [] for n in range(len(kinds))}
    evicted = True
    for _ in range(rounds):
        some: dict[int, list[float]] = {n: [] for n in times}
        for n, variant in bench.shuffled((n, variant) for n in times for variant in range(bench.pick(3, _VARIANTS))):
            evicted = _evict(folder) and evicted
            some[n].append(once(None, folder, _cold, kinds[n].asked[variant], kinds[n].ranked))
        for n, so_far in times.items():
            so_far.append(some[n])
    state = "page cache dropped" if evicted else "page cache warm"
    rows = [_milliseconds(f"{name}, cold: {kind.name}, ms", times[n]) for n, kind in enumerate(kinds)]
    return [row._replace(note=f"{row.note}, {state}") for row in rows]


def _new_row(bench: Bench, name: str, shape: _Shape, folder: str) -> Row:
    """How fast the index catches up with what is new."""
    with Child("ours", folder) as child:
        child(_first_word)
        rounds = range(bench.pick(3, 5))
        seconds = [child(_after_new, shape, shape.messages + n * _NEW) for n in rounds]
    note = f"the search takes {statistics.median(seconds) * 1e3:.0f} ms"
    return at_most(f"{name}: after {_NEW:,} new ones, messages/s", [_NEW / s for s in seconds], None, note)
