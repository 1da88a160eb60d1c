"""Recall: how often a question in plain words finds what answers it.

LoCoMo has ten long conversations in sessions, and questions with the turns that answer them. Each conversation is a
store of its own, each session a conversation in it, each turn a message ("Speaker: text"), and each question is asked
as it stands. A question counts if its evidence names a turn, the adversarial ones too.

A hit at 1 of sessions: the first hit lies in a session with evidence. For a hit at 5, the sessions are taken in the
order of their hits, each once. Of turns: the first hit, or one of the first five, is a turn of the evidence.

The constants of the ranking were chosen on the first, third, fifth, … conversation. The other half has had no say.
The file is not ours and not kept here: HITHERTO_LOCOMO names the folder with locomo10.json, which is in the public
repository snap-research/LoCoMo.
"""

import json
import os
import re
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ._table import Bench, Row, at_least, at_most

VARIABLE = "HITHERTO_LOCOMO"
_FILE = "locomo10.json"
_GOAL = 69.6  # percent of sessions at 1 that a lexical peer tells of all questions
_SESSION = re.compile(r"session_(\d+)")
_EVIDENCE = re.compile(r"D(\d+):(\d+)")
_HITS = 50


class _Asked(NamedTuple):
    """A question: of which tier its hits were, and whether these were right."""

    tier: str
    session_1: bool
    session_5: bool
    turn_1: bool
    turn_5: bool
    seconds: float


def recall(bench: Bench) -> list[Row]:
    folder = os.environ.get(VARIABLE)
    if folder is None:
        raise SystemExit(f"recall needs {VARIABLE}: the folder with {_FILE} of snap-research/LoCoMo")
    samples = json.loads((Path(folder) / _FILE).read_text("utf-8"))
    rows: list[Row] = []
    both: dict[str, list[_Asked]] = {"auto": [], "match": []}
    for half, name in ((samples[::2], "tuned on"), (samples[1::2], "held out")):
        for mode in both:
            asked = [one for sample in half for one in _ask(bench, sample, mode)]
            both[mode] += asked
            if mode == "auto":
                rows += _rows(f"{name}, {mode}", asked, goal=name == "held out")
    rows += _rows("all, auto", both["auto"], goal=True)
    rows += _rows("all, match alone", both["match"], goal=False)
    times = [one.seconds * 1e3 for one in both["auto"]]
    rows.append(at_most("recall: a question, ms", [statistics.median(times)], None, f"{len(times):,} questions"))
    return rows


def _rows(name: str, asked: list[_Asked], *, goal: bool) -> list[Row]:
    tiers = ", ".join(f"{count:,} {tier}" for tier, count in Counter(one.tier for one in asked).most_common())
    rows = []
    for field, what in (("session_1", "sessions, hit@1"), ("session_5", "sessions, hit@5"),
                        ("turn_1", "turns, hit@1"), ("turn_5", "turns, hit@5")):  # fmt: skip
        percent = 100 * sum(getattr(one, field) for one in asked) / len(asked)
        line = f"recall, {name}: {what}, %"
        if goal and field == "session_1":
            rows.append(at_least(line, [percent], _GOAL, tiers))
        else:
            rows.append(at_most(line, [percent], None, tiers if field == "session_1" else ""))
    return rows


def _ask(bench: Bench, sample: dict, mode: str) -> list[_Asked]:
    """Ask all questions of one conversation."""
    import hitherto
    from hitherto import Message

    path = Path(bench.place(sample["sample_id"], mode)) / "store.db"
    asked = []
    with hitherto.open(path) as store:
        where = {}
        for key, turns in sample["conversation"].items():
            if session := _SESSION.fullmatch(key):
                said = [Message.user(f"{turn['speaker']}: {turn['text']}") for turn in turns]
                for turn, message in zip(turns, store.start().extend(said), strict=True):
                    where[message.id] = (int(session[1]), turn["dia_id"])
        store.search("anything")  # makes the index
        for question in sample["qa"]:
            evidence = [(int(a), int(b)) for a, b in _EVIDENCE.findall(str(question["evidence"]))]
            if evidence:
                asked.append(_check(store, question["question"], mode, where, evidence))
    return asked


def _check(store, question: str, mode: str, where: dict, evidence: list[tuple[int, int]]) -> _Asked:
    sessions = {session for session, _ in evidence}
    turns = {f"D{session}:{turn}" for session, turn in evidence}
    from hitherto.errors import InvalidQuery

    began = time.perf_counter()
    try:
        hits = store.search(question, mode=mode, order="best", limit=_HITS)
    except InvalidQuery:  # to match, a question has to be a query
        hits = []
    seconds = time.perf_counter() - began
    found = [where[hit.message_id] for hit in hits]
    found_sessions = list(dict.fromkeys(session for session, _ in found))
    found_turns = [turn for _, turn in found]
    return _Asked(
        hits[0].tier if hits else "nothing found",
        not sessions.isdisjoint(found_sessions[:1]),
        not sessions.isdisjoint(found_sessions[:5]),
        not turns.isdisjoint(found_turns[:1]),
        not turns.isdisjoint(found_turns[:5]),
        seconds,
    )
