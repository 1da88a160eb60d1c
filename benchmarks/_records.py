"""Records: what a commit takes with everything on, and what coming back after a crash takes.

A commit here is cleaned by all rules, sealed, and on the disk. The goal is the one that a store warns of by itself.
"""

import time
from pathlib import Path

import hitherto
from hitherto import Message, Sanitiser
from hitherto.records import Records

from ._corpus import turns
from ._messages import to_message
from ._table import Bench, Row, at_most, percentile

_KEY = bytes(range(32))
_LIMIT_MS = 150


def records(bench: Bench) -> list[Row]:
    return [*_commits(bench), *_recovered(bench)]


def _commits(bench: Bench) -> list[Row]:
    """Appending through a store, making a record, and updating one, one message a commit."""
    said = [str(plain["content"]) or "…" for turn in turns(bench.pick(200, 1_000)) for plain in turn]
    appended, created, updated = [], [], []
    place = Path(bench.place("commits")) / "store.db"
    with hitherto.open(place, key=_KEY, sanitiser=Sanitiser.everything()) as store:
        talk, kept = store.start(), Records(store)
        record = kept.create(title="Build", participants=[{"id": "u", "role": "user"}], messages=[])
        for text in said:
            began = time.perf_counter()
            talk.append(Message.user(text))
            appended.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            kept.create(title="Build", messages=[{"role": "user", "content": text}])
            created.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            kept.update(record.conversation_id, append_messages=[{"role": "user", "content": text}])
            updated.append((time.perf_counter() - began) * 1e3)
    rows = []
    measured = (("append", appended), ("new record", created), ("update of a record", updated))
    for what, times in measured:
        name = f"{what}, sealed and cleaned of everything"
        rows.append(at_most(f"{name}, p50 ms", [percentile(times, 50)], None))
        rows.append(at_most(f"{name}, p95 ms", [percentile(times, 95)], _LIMIT_MS, f"{len(times):,} commits"))
    return rows


def _recovered(bench: Bench) -> list[Row]:
    """What is offered of a conversation of 10,000 messages that nobody closed."""
    many = bench.pick(2_000, 10_000)
    place = Path(bench.place("recovered")) / "store.db"
    with hitherto.open(place, key=_KEY) as store:
        talk = store.start()
        said = [to_message(plain) for turn in turns(many // 2) for plain in turn]
        for start in range(0, len(said), 500):
            talk.extend(said[start : start + 500])
        Records(store).commit_snapshot(talk.id, {"draft": "and then"})
        id = talk.id
    times = []
    for _ in range(3):
        began = time.perf_counter()
        with hitherto.open(place, key=_KEY, maintenance=False) as store:
            found = Records(store).get_snapshot(id)
            if found is None or len(found.messages) != len(said):
                raise AssertionError("the conversation did not come back")
            times.append(time.perf_counter() - began)
    return [at_most(f"open and recover {len(said):,} sealed messages, s", times, 2)]
