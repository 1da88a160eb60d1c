"""What sealed stores do beside reading and writing: purging, another key, sealing and unsealing.

No raw table does the same, so these rows are milliseconds, seconds, and megabytes of content a second. While everything
is encrypted anew somebody goes on writing: a thread beside the one that does it, or another process, which has to find
the new key by itself. Its appends are compared with those of the moments before. Sealing and unsealing are for one
process: the others are told to open the store again.
"""

import os
import random
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hitherto import Block, HithertoError, Key, Message

from ._children import Child, once
from ._corpus import messages, turns
from ._sides import Ours, key_file
from ._table import Bench, Row, at_most, both, none, percentile, ratios

_MEGABYTE = 1_000_000

# -- purge

_SAID = 199  # messages of a conversation that is purged, beside the one with the attachment
_AT_ONCE = 5  # purges in one round


def _people(side: Ours, others: int, doomed: int, searched: bool) -> None:
    """A store with so many conversations, some of which will go. It is packed; once searched, it has an index."""
    side.fill(others)
    for n in range(doomed):
        name = f"doomed {n}"
        side.append(name, messages(_SAID, start=n * 7))
        image = Block.image(random.Random(n).randbytes(_MEGABYTE), "image/png")
        side.store.ensure(name).append(Message.user([image]))
    if searched:
        side.find("anything", 20, ranked=False)
    side.maintain()


def _purge(side: Ours, first: int, count: int) -> tuple[list[float], int]:
    """Seconds of each, and how many left bytes in the files because of a reader."""
    times, pending = [], 0
    for n in range(first, first + count):
        talk = side.store.ensure(f"doomed {n}")
        began = time.perf_counter()
        report = side.store.purge(talk, reason="user-requested")
        times.append(time.perf_counter() - began)
        pending += report.scrub_pending
    return times, pending


def purging(bench: Bench, limit_ms: float) -> list[Row]:
    others, rounds = bench.pick(10_000, 100_000), bench.pick(4, 20)
    cases = [(side, searched) for side in ("ours", "sealed") for searched in (False, True)]
    children = {case: Child(case[0], bench.place("purge", *case)) for case in cases}
    for case, child in children.items():
        child(_people, others, rounds * _AT_ONCE, case[1])
    times: dict[tuple[str, bool], list[float]] = {case: [] for case in cases}
    pending = dict.fromkeys(cases, 0)
    for number in range(rounds):
        for case in bench.shuffled(cases):
            some, left = children[case](_purge, number * _AT_ONCE, _AT_ONCE)
            times[case] += [1e3 * seconds for seconds in some]
            pending[case] += left
    for child in children.values():
        child.close()
    rows = []
    for (side, searched), found in times.items():
        value = percentile(found, 95)
        note = f"p50 {percentile(found, 50):.3g}, {len(found)} purges, {pending[side, searched]} with scrub_pending"
        what = f"{'plain' if side == 'ours' else 'sealed'}{', searched before' if searched else ''}"
        name = f"purge one of {others:,}, {what}: p95 ms"
        rows.append(Row(name, value, min(found), max(found), f"< {limit_ms:g}", value < limit_ms, note))
    return rows


# -- rotation

_EACH = 100  # messages in a conversation
_PAUSE_SECONDS = 0.01  # of a writer between two turns
_BEFORE_SECONDS = 2.0  # that it writes in peace
_PATIENCE_SECONDS = 20.0  # after which it gives way: what changes all the time might never be done with


class _Written(NamedTuple):
    """What a writer saw: seconds of its appends, what failed, and whether it had to give way."""

    times: list[float]
    errors: list[str]
    gave_way: bool = False


class _Job(NamedTuple):
    """One pass over everything."""

    seconds: float
    messages: int
    content: int  # bytes
    before: _Written | None
    during: _Written | None


def _write_until(side: Ours, name: str, over: Callable[[], bool]) -> _Written:
    """Append turns to one conversation."""
    done = _Written([], [])
    given = [list(turn) for turn in turns(200)]
    end = time.perf_counter() + _PATIENCE_SECONDS
    while not over():
        began = time.perf_counter()
        if began > end:
            return done._replace(gave_way=True)
        try:
            side.append(name, given[len(done.times) % len(given)])
        except HithertoError as error:
            done.errors.append(repr(error)[:200])
        done.times.append(time.perf_counter() - began)
        time.sleep(_PAUSE_SECONDS)
    return done


def _write_for(side: Ours, name: str, seconds: float) -> _Written:
    end = time.perf_counter() + seconds
    return _write_until(side, name, lambda: time.perf_counter() > end)


def _write_until_flag(side: Ours, name: str, flag: str) -> _Written:
    return _write_until(side, name, Path(flag).exists)


def _new_key(folder: str) -> Key:
    """A new key, kept where other processes look for it."""
    key, fresh = Key.generate(), f"{folder}.fresh"
    key.to_file(fresh)
    os.replace(fresh, key_file(folder))
    return key


def _build(side: Ours, count: int) -> None:
    for start in range(0, count, _EACH):
        side.append(f"talk {start // _EACH}", messages(_EACH, start=start // 2))
    side.maintain()


def _do(side: Ours, what: str, folder: str, writer: str | None = None) -> _Job:
    """Encrypt everything anew, or unseal or seal it. With the name of a conversation, a thread writes to it meanwhile,
    and did so before."""
    stats = side.store.stats()
    before = _write_for(side, writer, _BEFORE_SECONDS) if writer else None
    stop = threading.Event()
    during: list[_Written] = []
    thread = threading.Thread(target=lambda: during.append(_write_until(side, str(writer), stop.is_set)))
    if writer:
        thread.start()
    try:
        began = time.perf_counter()
        if what == "re-encrypt":
            done = side.store.rotate(_new_key(folder), reencrypt=True)
        elif what == "unseal":
            done = side.store.unseal()
        else:
            done = side.store.seal(_new_key(folder))
        took = time.perf_counter() - began
    finally:
        stop.set()
        if writer:
            thread.join()
    if not done.complete:
        raise RuntimeError(f"{what} left something to do: {done.failures[:1]}")
    return _Job(took, stats.messages, stats.content_bytes, before, during[0] if during else None)


def _with_another_process(bench: Bench, rotator: Child, folder: str, number: int) -> tuple[_Written, _Written]:
    flag = bench.folder / f"rotated {number}"
    with Child("sealed", folder) as writer:
        name = f"another process {number}"
        before = writer(_write_for, name, _BEFORE_SECONDS)
        writer.send(_write_until_flag, name, str(flag))
        try:
            rotator(_do, "re-encrypt", folder)
        finally:
            flag.touch()
        return before, writer.receive()


def _check(side: Ours, conversations: int) -> None:
    for n in range(conversations):
        if len(side.load(f"talk {n}")) != _EACH:
            raise RuntimeError("a conversation is not as it was before its key was changed")


def rotating(bench: Bench) -> list[Row]:
    return [_rewrap_row(bench), *_reencrypt_rows(bench)]


def _rewrap(side: Ours, count: int) -> float:
    began = time.perf_counter()
    done = side.store.rotate(Key.generate())
    took = time.perf_counter() - began
    if not done.complete or done.conversations != count:
        raise RuntimeError(f"{done.conversations} of {count} conversations have the new key")
    return took


def _fill(side: Ours, count: int) -> None:
    side.fill(count)


def _rewrap_row(bench: Bench) -> Row:
    count = bench.pick(2_000, 10_000)
    with Child("sealed", bench.place("rewrap")) as child:
        child(_fill, count)
        times = [child(_rewrap, count) for _ in range(bench.pick(3, 5))]
    note = f"{count / statistics.median(times):,.0f} conversations/s"
    return at_most(f"rotate the key of {count:,} conversations: seconds", times, None, note)


def _reencrypt_rows(bench: Bench) -> list[Row]:
    count, rounds = bench.pick(2_000, 20_000), bench.pick(2, 5)
    folder = bench.place("rotation")
    _new_key(folder)
    once("sealed", folder, _build, count)
    jobs: dict[tuple[str, bool], list[_Job]] = {}
    processes: list[tuple[_Written, _Written]] = []
    with Child("sealed", folder) as child:
        for number in range(rounds):
            for what in ("re-encrypt", "unseal", "seal"):  # a round leads back to where it began
                for writing in bench.shuffled((False, True)) if what == "re-encrypt" else (number % 2 == 0,):
                    done = child(_do, what, folder, f"a thread {what} {number}" if writing else None)
                    jobs.setdefault((what, bool(writing)), []).append(done)
            processes.append(_with_another_process(bench, child, folder, number))
        child(_check, count // _EACH)
    rows = [row for what in ("re-encrypt", "seal", "unseal") for row in _rate_rows(what, jobs)]
    written = {
        f"a thread, {what}": [(job.before, job.during) for job in jobs[what, True]]
        for what in ("re-encrypt", "seal", "unseal")
    }
    written["another process, re-encrypt"] = processes
    for who, pairs in written.items():
        rows += _wait_rows(who, pairs)
    every = [one for pairs in written.values() for pair in pairs for one in pair]
    errors = [error for one in every for error in one.errors]
    rows.append(none("errors of writers meanwhile", len(errors), str(errors[:1] or "")))
    note = f"of {len(every) // 2}: the job was not done with a conversation as long as somebody wrote to it"
    rows.append(none("writers that had to give way", sum(one.gave_way for one in every), note))
    return rows


def _rate_rows(what: str, jobs: dict[tuple[str, bool], list[_Job]]) -> list[Row]:
    rows = []
    for writing in (False, True):
        found = jobs.get((what, writing), [])
        if found:
            rates = [job.content / job.seconds / 1e6 for job in found]
            speed = statistics.median(job.messages / job.seconds for job in found)
            note = f"{speed:,.0f} messages/s, {found[0].messages:,} messages, {found[0].content / 1e6:.0f} MB"
            name = f"{what} everything{', a thread writing' if writing else ''}: MB/s"
            rows.append(at_most(name, rates, None, note))
    return rows


def _wait_rows(who: str, pairs: list[tuple[_Written, _Written]]) -> list[Row]:
    rows = []
    for percent in (50, 99):
        before = [percentile(one.times, percent) for one, _ in pairs]
        during = [percentile(one.times, percent) for _, one in pairs]
        note = f"{both(during, before, 'during', 'before')}, {sum(len(one.times) for _, one in pairs)} turns"
        rows.append(at_most(f"{who}: p{percent} of an append / before", ratios(during, before), None, note))
    return rows
