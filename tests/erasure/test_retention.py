"""Retention: the plan as a pure function, the policy in the store, and sweeps that others run into.

What happens by itself is in `test_schedule`; here stores do nothing by themselves. Requirements: D10, D9 where a sweep
purges, D21 on retention.
"""

import asyncio
import contextlib
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import hitherto
from hitherto import Conversation, Message, RetentionPolicy, Store
from hitherto._engine.retry import retry
from hitherto._engine.state import build_row_change
from hitherto._erasure import checkpoint_copies, sweep
from hitherto._erasure.shutdown import Purges
from hitherto.backend import Batch, ConversationRow, Outcome
from hitherto.errors import (
    Busy,
    CommitUnknown,
    Damaged,
    Held,
    InvalidArgument,
    KeyUnavailable,
    NotFound,
    ReadOnly,
    StorageFull,
)
from hitherto.events import PurgeCompleted
from hitherto.ids import parse_conversation_id
from hitherto.model import from_datetime
from hitherto.records import Records, _purging
from hitherto.retention import Candidate, SweepItem, SweepPlan, decide, plan
from hitherto.snapshots import FileStore

from ..support.patience import AGES, SOON
from ..support.waiting import until

KEY, OTHER = b"k" * 32, b"o" * 32
NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
POLICY = RetentionPolicy()


# -- the policy, as a value


def test_a_policy_is_30_days_unless_another_number_is_given() -> None:
    assert RetentionPolicy().days == 30
    assert [RetentionPolicy(days=days).days for days in (1, 7, 180, 3650)] == [1, 7, 180, 3650]
    assert hitherto.RetentionPolicy(7) == RetentionPolicy(days=7) != RetentionPolicy()


@pytest.mark.parametrize("days", [3651, 0, -30, 30.0, "30", None, True])
def test_a_policy_of_another_length_is_refused(days: Any) -> None:
    with pytest.raises(InvalidArgument, match="1 to 3,650 days"):
        RetentionPolicy(days=days)


def test_days_that_are_not_recommended_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert [RetentionPolicy(days).warning for days in (7, 30, 180)] == [None] * 3
    assert "1 day " in str(RetentionPolicy(1).warning)
    for days in (1, 6, 181, 3650):
        assert "7 to 180 days are recommended" in str(RetentionPolicy(days).warning)
    with hitherto.open("memory:") as store, caplog.at_level(logging.WARNING, logger="hitherto"):
        for days in (7, 30, 180):
            store.set_retention(RetentionPolicy(days))
        assert caplog.records == []  # the control
        store.set_retention(RetentionPolicy(3))
        assert store.retention == RetentionPolicy(3)
        store.set_retention(RetentionPolicy(3650))
        assert store.retention == RetentionPolicy(3650)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "conversations go after 3 days without a word",
        "conversations stay for 3,650 days after the last word",
    ]


# -- the plan, as a function

times = st.datetimes(datetime(1971, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001  # hypothesis adds it
near = st.integers(-200 * 86400, 200 * 86400).map(lambda seconds: NOW + timedelta(seconds=seconds))
policies = st.none() | st.integers(7, 180).map(RetentionPolicy)
candidates = st.lists(
    st.builds(
        Candidate,
        st.uuids().map(str),
        st.none() | near | times,
        st.none() | near | times,
        st.booleans(),
        st.booleans(),
        st.none() | near,
    ),
    max_size=20,
    unique_by=lambda one: one.conversation,
)


def due_by_hand(one: Candidate, policy: RetentionPolicy | None) -> bool:
    """The rule, said another way: in seconds, and without a sum that could overflow."""
    assert one.active_at is not None
    if one.expires_at is not None:
        return one.expires_at <= NOW
    if policy is None:
        return False
    since = one.active_at if one.active_at.year >= 2020 else one.seen_at or NOW
    return (NOW - since).total_seconds() >= policy.days * 86400


@given(candidates, policies)
def test_a_plan_says_something_of_every_conversation_and_purges_only_what_is_due_and_free(
    given_: list[Candidate], policy: RetentionPolicy | None
) -> None:
    found = plan(given_, policy, NOW)
    ones = {one.conversation: one for one in given_}
    assert sorted(ones) == sorted(item.conversation for item in found.items)
    for item in found.items:
        one = ones[item.conversation]
        assert item.active_at == one.active_at
        wanted = one.active_at is not None and due_by_hand(one, policy)
        assert (item.action == "purge") == (wanted and not one.held and not one.recorded)
        assert (item.reason == "held") == (wanted and one.held)
        assert (item.reason == "being-recorded") == (wanted and one.recorded and not one.held)
        assert (item.reason == "damaged") == (one.active_at is None)
        if one.expires_at is not None:
            assert item.expires_at == one.expires_at
    assert {item.conversation for item in found.purges} == {i.conversation for i in found.items if i.action == "purge"}


@given(candidates, policies, st.randoms())
def test_a_plan_does_not_depend_on_the_order_and_what_goes_comes_first(
    given_: list[Candidate], policy: RetentionPolicy | None, random: Any
) -> None:
    found = plan(given_, policy, NOW)
    random.shuffle(given_)
    assert plan(given_, policy, NOW) == found
    actions = [item.action for item in found.items]
    assert actions == sorted(actions, reverse=True)  # purge, then keep
    due = [item.expires_at for item in found.purges if item.expires_at]
    assert due == sorted(due)


@given(candidates, st.integers(7, 179), st.integers(0, 400))
def test_more_days_and_earlier_moments_never_purge_more(given_: list[Candidate], days: int, back: int) -> None:
    def ids(found: SweepPlan) -> set[str]:
        return {item.conversation for item in found.purges}

    now = plan(given_, RetentionPolicy(days), NOW)
    assert ids(plan(given_, RetentionPolicy(days + 1), NOW)) <= ids(now)
    assert ids(plan(given_, RetentionPolicy(days), NOW - back * DAY)) <= ids(now)


@given(candidates, policies)
def test_a_plan_explains_itself_a_line_for_each(given_: list[Candidate], policy: RetentionPolicy | None) -> None:
    found = plan(given_, policy, NOW)
    first, *lines = found.explain().split("\n")
    if policy is None and all(item.reason in ("off", "damaged") for item in found.items):
        assert "Retention is off" in first
        assert not lines
        return
    assert first.startswith(f"{len(found.purges)} of {len(given_)} conversation")
    assert lines == [str(item) for item in found.items]
    assert all(text.startswith(f"{i.action} {i.conversation}: ") for i, text in zip(found.items, lines, strict=True))


def test_what_a_plan_says() -> None:
    ones = [
        Candidate("a", NOW - 31 * DAY),
        Candidate("b", NOW - 29 * DAY),
        Candidate("c", NOW - 31 * DAY, held=True),
        Candidate("d", NOW - 1 * DAY, expires_at=NOW),
        Candidate("e", NOW - 99 * DAY, expires_at=NOW + DAY, held=True),
        Candidate("f", None),
        Candidate("g", NOW + 5 * DAY),
        Candidate("h", NOW - 31 * DAY, recorded=True),
        Candidate("i", datetime(1970, 1, 1, tzinfo=UTC)),
        Candidate("j", datetime(1970, 1, 1, tzinfo=UTC), seen_at=NOW - 30 * DAY),
    ]
    assert plan(ones, POLICY, NOW).explain().splitlines() == [
        (
            "3 of 10 conversations to purge: 30 days without a word; 1 due, but on hold; 1 due, but being recorded;"
            " 1 damaged, and kept. It is 2026-05-01 12:00 UTC."
        ),
        "purge a: last active 2026-03-31 12:00, due since 2026-04-30 12:00",
        "purge d: an expiry of its own, since 2026-05-01 12:00",
        "purge j: last active 1970-01-01 00:00, due since 2026-05-01 12:00",
        "keep c: on hold, due since 2026-04-30 12:00",
        "keep h: an answer is being recorded, due since 2026-04-30 12:00",
        "keep b: last active 2026-04-02 12:00, due 2026-05-02 12:00",
        "keep e: an expiry of its own, not before 2026-05-02 12:00",
        (
            "keep i: last active 1970-01-01 00:00, which cannot be; counted from when a sweep saw it first,"
            " due 2026-05-31 12:00"
        ),
        "keep g: last active 2026-05-06 12:00, due 2026-06-05 12:00",
        "keep f: damaged, nobody knows how old it is",
    ]
    assert plan([ones[0]], None, NOW).explain() == (
        "Retention is off: no policy is set, and everything is kept (1 conversation)."
    )
    assert str(decide(ones[0], None, NOW)) == "keep a: retention is off"
    assert plan([ones[0], ones[3]], None, NOW).explain().splitlines() == [
        "1 of 2 conversations to purge: an expiry of their own, no policy is set. It is 2026-05-01 12:00 UTC.",
        "purge d: an expiry of its own, since 2026-05-01 12:00",
        "keep a: retention is off",
    ]


def test_a_conversation_is_due_to_the_microsecond() -> None:
    almost = Candidate("a", NOW - 30 * DAY + timedelta(microseconds=1))
    assert decide(almost, POLICY, NOW).reason == "recent"
    assert decide(almost, POLICY, NOW + timedelta(microseconds=1)).reason == "expired"


def test_the_end_of_time_is_no_error() -> None:
    late = datetime.max.replace(tzinfo=UTC)
    assert decide(Candidate("a", late - DAY), POLICY, NOW).expires_at == late


def test_a_plan_needs_a_time_with_a_zone() -> None:
    for now in (datetime(2026, 5, 1), "2026-05-01"):  # noqa: DTZ001  # that is what is tested
        with pytest.raises(InvalidArgument, match="time zone"):
            plan([], POLICY, now)  # type: ignore[arg-type]


# -- the policy, in a store


class Clock:
    """The time that a store believes."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return from_datetime(self.now, "now")


@pytest.fixture
def clock() -> Clock:
    return Clock()


Opened = Callable[..., Store]


@pytest.fixture(params=["plain", "sealed", "memory"])
def again(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Opened]:
    """Opens the store; a second time, the same one, as another process would. (In memory there is one.)"""
    opened: list[Store] = []

    def open_it(**how: Any) -> Store:
        if request.param == "memory" and opened:
            return opened[0]
        key = KEY if request.param == "sealed" else None
        place = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
        opened.append(hitherto.open(place, **({"key": key, "clock": clock, "maintenance": False} | how)))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(again: Opened) -> Store:
    return again()


def started(store: Store, clock: Clock, age: timedelta, title: str = "", **how: Any) -> Conversation:
    """A conversation whose last word is so old."""
    clock.now = NOW - age
    talk = store.start(title=title, **how)
    talk.append(Message.user(f"said {title}"))
    clock.now = NOW
    return talk


def expiring(talk: Conversation, at: datetime) -> None:
    """Give a conversation an expiry of its own."""
    stamp = from_datetime(at, "at")
    talk.engine.change(talk.state.id, lambda row: build_row_change(talk.state, row, expires_at=stamp))


def left(store: Store) -> set[str]:
    return {info.id for info in store.conversations(limit=10_000, include_expired=True)}


def test_a_policy_is_kept_and_others_see_it_at_once(again: Opened) -> None:
    store, other = again(), again()
    assert [store.retention, other.retention] == [None, None]
    for writer, reader, policy in (
        (store, other, RetentionPolicy(days=14)),
        (other, store, POLICY),
        (other, store, None),
    ):
        writer.set_retention(policy)
        assert [writer.retention, reader.retention] == [policy, policy]
    assert store.verify().ok


def test_a_policy_survives_reopening_and_is_one_commit(again: Opened) -> None:
    store = again()
    commits: list[int] = []
    inner = store.backend.commit

    def commit(batches: list[Batch]) -> list[Outcome]:
        commits.append(len(batches))
        return inner(batches)

    store.backend.commit = commit  # type: ignore[method-assign,assignment]  # counting is all it does
    store.set_retention(RetentionPolicy(days=14))
    assert commits == [1]
    store.set_retention(RetentionPolicy(days=14))
    assert commits == [1]  # the same again writes nothing
    store.start()  # and who has the workspace open goes on
    if store.backend.info.durable:
        store.close()
        assert again().retention == RetentionPolicy(days=14)


def test_each_workspace_has_its_own_policy(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "a.db") as one, hitherto.open(tmp_path / "a.db", workspace="two") as two:
        one.set_retention(RetentionPolicy(days=7))
        assert (one.retention, two.retention) == (RetentionPolicy(days=7), None)


def test_a_policy_outlives_every_change_of_keys(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "a.db") as store:
        store.set_retention(RetentionPolicy(days=99))
        store.start()
        store.seal(KEY)
        assert store.retention == RetentionPolicy(days=99)
        store.rotate(OTHER, reencrypt=True)
        assert store.retention == RetentionPolicy(days=99)
        store.unseal()
        assert store.retention == RetentionPolicy(days=99)
        assert store.verify().ok


def test_a_sealed_policy_lies_nowhere_in_clear_and_cannot_be_changed_without_the_key(tmp_path: Path) -> None:
    for name, key, seen in (("plain.db", None, True), ("sealed.db", KEY, False)):
        path = tmp_path / name
        with hitherto.open(path, key=key) as store:
            store.set_retention(RetentionPolicy(days=99))
        assert (b"retention_days\x63" in path.read_bytes()) == seen  # the plain one is the control


def test_a_stored_policy_that_was_never_set_is_damage(tmp_path: Path) -> None:
    """In a plain store anybody can write anything."""
    with hitherto.open(tmp_path / "a.db") as store:
        store.engine.workspace.describe(lambda meta: replace(meta, retention_days=4000))
        for use in (lambda: store.retention, store.plan_sweep, store.sweep):
            with pytest.raises(Damaged, match="4000 days"):
                use()
        store.set_retention(RetentionPolicy())  # sets it right
        assert store.retention == RetentionPolicy()


@pytest.mark.parametrize("wrong", [30, "30", {"days": 30}, RetentionPolicy])
def test_what_is_no_policy_is_refused_everywhere(wrong: Any) -> None:
    with hitherto.open("memory:") as store:
        for use in (store.set_retention, store.plan_sweep, store.sweep):
            with pytest.raises(InvalidArgument, match="RetentionPolicy"):
                use(wrong)
        assert store.retention is None


def test_who_only_reads_sees_the_policy_and_the_plan_and_changes_neither(tmp_path: Path, clock: Clock) -> None:
    with hitherto.open(tmp_path / "a.db", clock=clock, maintenance=False) as store:
        store.set_retention(POLICY)
        talk = started(store, clock, 31 * DAY)
    with hitherto.open(tmp_path / "a.db", clock=clock, read_only=True, timeout_seconds=AGES) as reader:
        assert reader.retention == POLICY
        assert [item.conversation for item in reader.plan_sweep().purges] == [talk.id]
        began = time.monotonic()
        for write in (
            lambda: reader.set_retention(None),
            reader.sweep,
            lambda: reader.purge(talk, reason="user-requested"),
            lambda: Records(reader).purge_all(reason="user-requested"),
        ):
            with pytest.raises(ReadOnly, match="it was opened to be read only"):
                write()
        assert time.monotonic() - began < SOON  # nobody waits for what cannot be
        assert reader.sweep(RetentionPolicy(days=99)).swept == ()  # nothing to do, and nothing done


# -- planning and sweeping a store


def test_a_sweep_purges_what_is_due_and_leaves_the_rest(store: Store, clock: Clock) -> None:
    old, new = started(store, clock, 31 * DAY, "old"), started(store, clock, 29 * DAY, "new")
    store.search("said")
    store.set_retention(POLICY)
    found = store.plan_sweep()
    assert found.purges == (SweepItem(old.id, NOW - 31 * DAY, NOW - DAY, "purge", "expired"),)
    assert left(store) == {old.id, new.id}  # a plan is a plan
    report = store.sweep()
    assert (report.swept, report.skipped, report.failures) == ((old.id,), (), ())
    assert (report.purged_count, report.reason, report.scrub_pending) == (1, "retention-expired", False)
    assert report.policy == POLICY
    assert report.started_at <= report.completed_at
    assert left(store) == {new.id}
    assert [hit.conversation for hit in store.search("said")] == [new.id]
    with pytest.raises(NotFound):
        old.append(Message.user("too late"))
    assert store.verify().ok
    assert store.sweep().swept == ()


def test_without_a_policy_everything_is_kept_and_said_to_be(store: Store, clock: Clock) -> None:
    talk = started(store, clock, 1000 * DAY)
    found = store.plan_sweep()
    assert found.policy is None
    assert not found.purges
    assert "everything is kept (1 conversation)" in found.explain()
    assert store.sweep().swept == ()
    assert left(store) == {talk.id}


def test_an_expiry_of_its_own_is_a_promise_that_needs_no_policy(store: Store, clock: Clock) -> None:
    gone, kept, held, _ = (started(store, clock, age * DAY) for age in (1, 1, 1, 1000))
    expiring(gone, NOW)
    expiring(kept, NOW + DAY)
    expiring(held, NOW)
    held.hold()
    assert store.plan_sweep().explain().startswith("1 of 4 conversations to purge: an expiry of their own")
    report = store.sweep()
    assert (report.policy, report.swept, report.skipped) == (None, (gone.id,), ((held.id, "held"),))


def test_a_policy_that_is_given_outranks_that_of_the_store(store: Store, clock: Clock) -> None:
    talk = started(store, clock, 10 * DAY)
    store.set_retention(POLICY)
    assert store.sweep(RetentionPolicy(days=11)).swept == ()
    assert store.sweep(RetentionPolicy(days=10)).swept == (talk.id,)
    assert store.retention == POLICY


def test_a_plan_looks_up_the_rows_of_what_may_go_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hitherto.open("memory:", clock=clock, maintenance=False)
    old, _ = started(store, clock, 31 * DAY), [started(store, clock, DAY) for _ in range(5)]
    looked: list[bytes] = []
    lookup = store.backend.lookup

    def counting(*, ids: Sequence[bytes] = (), **how: Any) -> list[ConversationRow]:
        looked.extend(ids)
        return lookup(ids=ids, **how)

    monkeypatch.setattr(store.backend, "lookup", counting)
    assert len(store.plan_sweep(POLICY).items) == 6
    assert looked == [parse_conversation_id(old.id)]


def test_the_clock_starts_anew_with_every_message(store: Store, clock: Clock) -> None:
    talk = started(store, clock, 31 * DAY)
    talk.rename("no interaction")
    assert len(store.plan_sweep(POLICY).purges) == 1
    talk.append(Message.user("still here"))
    assert store.sweep(POLICY).swept == ()
    assert store.sweep(POLICY, now=NOW + 30 * DAY).swept == (talk.id,)


def test_an_expiry_of_its_own_outranks_the_policy_both_ways(store: Store, clock: Clock) -> None:
    early, late = started(store, clock, DAY, "early"), started(store, clock, 99 * DAY, "late")
    expiring(early, NOW)
    expiring(late, NOW + DAY)
    assert {(i.conversation, i.action, i.reason, i.expires_at) for i in store.plan_sweep(POLICY).items} == {
        (early.id, "purge", "own-expiry", NOW),
        (late.id, "keep", "own-expiry", NOW + DAY),
    }
    assert store.sweep(POLICY).swept == (early.id,)
    assert left(store) == {late.id}


def test_a_hold_outranks_everything_and_is_reported(store: Store, clock: Clock) -> None:
    held, own, young = (started(store, clock, age * DAY) for age in (31, 31, 1))
    expiring(own, NOW - DAY)
    for talk in (held, own, young):
        talk.hold()
    assert {item.conversation for item in store.plan_sweep(POLICY).held} == {held.id, own.id}
    report = store.sweep(POLICY)
    assert report.swept == ()
    assert set(report.skipped) == {(held.id, "held"), (own.id, "held")}  # the young one is not due anyway
    with pytest.raises(Held):
        store.purge(held, reason="retention-expired")
    held.release()
    assert store.sweep(POLICY).swept == (held.id,)


def test_clocks_that_are_wrong_delete_nothing_early(store: Store, clock: Clock) -> None:
    future, today = started(store, clock, -999 * DAY, "from the future"), started(store, clock, 0 * DAY)
    assert store.sweep(RetentionPolicy(days=7)).swept == ()
    for now in (NOW - 9999 * DAY, NOW - DAY, NOW + 6.9 * DAY):
        assert store.sweep(RetentionPolicy(days=7), now=now).swept == ()
    assert left(store) == {future.id, today.id}
    assert store.sweep(RetentionPolicy(days=7), now=NOW + 7 * DAY).swept == (today.id,)  # the control
    with pytest.raises(InvalidArgument, match="time zone"):
        store.sweep(now=datetime(2026, 5, 1))  # noqa: DTZ001  # that is what is tested


def test_a_damaged_conversation_is_kept_and_named(tmp_path: Path, clock: Clock) -> None:
    """Somebody without the key makes it look old, and takes a hold off."""
    with hitherto.open(tmp_path / "a.db", key=KEY, clock=clock) as store:
        aged, held, sound = (started(store, clock, age * DAY) for age in (0, 40, 40))
        held.hold()
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as raw:
        raw.execute("UPDATE conversation SET active_at = active_at / 2 WHERE id = ?", [aged.state.id])
        raw.execute("UPDATE conversation SET held = 0 WHERE id = ?", [held.state.id])
    with hitherto.open(tmp_path / "a.db", key=KEY, clock=clock) as store:
        found = store.plan_sweep(POLICY)
        assert {item.conversation for item in found.items if item.reason == "damaged"} == {aged.id, held.id}
        assert "2 damaged, and kept" in found.explain()
        assert store.sweep(POLICY).swept == (sound.id,)
        assert {record.conversation for record in store.quarantine()} == {aged.id, held.id}


def test_a_plain_conversation_in_quarantine_is_kept_too(tmp_path: Path, clock: Clock) -> None:
    with hitherto.open(tmp_path / "a.db", clock=clock) as store:
        talk, strange = started(store, clock, 40 * DAY), started(store, clock, 40 * DAY)
        store.engine.quarantine.add(talk.state.id, None, "a test says so")
        store.engine.change(strange.state.id, lambda row: build_row_change(strange.state, row, expires_at=1 << 62))
        assert {(item.reason, item.active_at) for item in store.plan_sweep(POLICY).items} == {("damaged", None)}
        assert store.sweep(POLICY).swept == ()


# -- others at the same time


def spoke(talk: Conversation) -> None:
    talk.append(Message.user("not so fast"))


def held(talk: Conversation) -> None:
    talk.hold()


@pytest.mark.parametrize(("act", "reason"), [(spoke, "recent"), (held, "held")])
def test_what_others_do_between_the_plan_and_the_purge_keeps_a_conversation(
    store: Store, clock: Clock, act: Callable[[Conversation], None], reason: str
) -> None:
    talk, other = started(store, clock, 40 * DAY), started(store, clock, 40 * DAY)
    report = store.sweep(POLICY, progress=lambda done, _: act(talk) if done == 0 else None)
    assert report.swept == (other.id,)
    assert report.skipped == ((talk.id, reason),)
    assert left(store) == {talk.id}
    assert store.verify().ok


def test_without_the_second_look_what_was_said_meanwhile_would_be_lost(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(sweep.Sweep, "_still_due", lambda *_: True)
    talk = started(store, clock, 40 * DAY)
    report = store.sweep(POLICY, progress=lambda done, _: spoke(talk) if done == 0 else None)
    assert report.swept == (talk.id,)
    assert left(store) == set()


@pytest.mark.parametrize("protected", [True, False])
def test_a_word_said_in_the_very_moment_of_the_commit_keeps_a_conversation(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """After the second look, before the commit: the token of the row tells. The control goes by the newest token."""
    talk = started(store, clock, 40 * DAY)
    handle, look = store.conversation(talk.id), sweep.Sweep._still_due
    said: list[bool] = []

    def late(self: sweep.Sweep, row: ConversationRow) -> bool:
        due = look(self, row)
        if not said:
            said.append(True)
            spoke(handle)
            return due
        return due or not protected

    monkeypatch.setattr(sweep.Sweep, "_still_due", late)
    report = store.sweep(POLICY)
    assert left(store) == ({talk.id} if protected else set())
    assert report.skipped == (((talk.id, "recent"),) if protected else ())


def test_whoever_was_told_that_a_word_was_kept_finds_it_after_any_race(store: Store, clock: Clock) -> None:
    """A real race: one thread says something everywhere, from the last to go to the first, while another sweeps."""
    talks = [started(store, clock, (400 - n) * DAY) for n in range(60)]
    go = threading.Barrier(2)
    kept: list[Conversation] = []

    def speak() -> None:
        go.wait()
        for talk in reversed(talks):
            with contextlib.suppress(NotFound):
                spoke(talk)
                kept.append(talk)

    speaker = threading.Thread(target=speak)
    speaker.start()
    go.wait()
    report = store.sweep(POLICY)
    speaker.join()
    assert {talk.id for talk in kept} == left(store)
    assert {*report.swept, *(talk.id for talk in kept)} == {talk.id for talk in talks}
    assert not set(report.swept) & {talk.id for talk in kept}
    assert all(store.conversation(talk.id).thread()[-1].text == "not so fast" for talk in kept)
    assert store.verify().ok


def test_what_others_purged_meanwhile_is_no_failure(store: Store, clock: Clock) -> None:
    talk = started(store, clock, 40 * DAY)

    def faster(done: int, total: int) -> None:
        if (done, total) == (0, 1):
            store.purge(talk, reason="user-requested")

    report = store.sweep(POLICY, progress=faster)
    assert (report.swept, report.skipped, report.failures) == ((), ((talk.id, "gone"),), ())


def test_a_sweep_that_was_interrupted_is_finished_by_the_next(
    again: Opened, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = again()
    monkeypatch.setattr(sweep, "_AT_ONCE", 16)
    talks = {started(store, clock, 40 * DAY).id for _ in range(40)}

    def stop(done: int, _: int) -> None:
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.sweep(POLICY, progress=stop)
    rest = left(store)
    assert 0 < len(rest) < 40
    report = again().sweep(POLICY)
    assert set(report.swept) == rest <= talks
    assert left(store) == set()
    assert store.verify().ok


_KILLED = """
import os, signal, sys
import hitherto, hitherto._erasure.sweep
def die(done, total):
    if done >= 16:
        os.kill(os.getpid(), signal.SIGKILL)
hitherto._erasure.sweep._AT_ONCE = 16
hitherto.open(sys.argv[1]).sweep(hitherto.RetentionPolicy(), progress=die)
"""


def test_a_sweep_that_was_killed_is_finished_by_the_next(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "a.db"
    with hitherto.open(path, clock=clock) as store:
        talks = {started(store, clock, 999 * DAY, f"secret{n}").id for n in range(40)}
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(path, clock=clock) as store:
        rest = left(store)
        assert rest < talks
        assert len(rest) == 24
        report = store.sweep(POLICY)
        assert set(report.swept) == rest
        assert not report.scrub_pending
        assert store.verify().ok
        assert b"secret" not in files(tmp_path)


def test_what_cannot_be_purged_is_named_and_the_others_go(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = [started(store, clock, 40 * DAY) for _ in range(5)]
    bad = talks[2].state.id
    inner = store.engine.read_consistently

    def broken(row: ConversationRow, read: Callable[[ConversationRow], Any]) -> Any:
        if row.id == bad and read == store.engine.check_row:
            raise Busy("the disk has a hole here")
        return inner(row, read)

    monkeypatch.setattr(store.engine, "read_consistently", broken)
    report = store.sweep(POLICY)
    assert report.failures == ((talks[2].id, "the disk has a hole here"),)
    assert set(report.swept) == {talk.id for talk in talks if talk is not talks[2]}


def test_a_key_that_is_gone_is_asked_for_once(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lie far away, and each would wait for it."""
    talks = {started(store, clock, 40 * DAY).id for _ in range(5)}
    asked: list[bytes] = []

    def nobody(row: ConversationRow, _: object) -> None:
        asked.append(row.id)
        raise KeyUnavailable("nobody answers")

    found = store.plan_sweep(POLICY)
    monkeypatch.setattr(store.engine, "read_consistently", nobody)
    report = sweep.carry_out(store.engine, found, None)
    assert dict(report.failures) == dict.fromkeys(talks, "nobody answers")
    assert len(asked) == 1


def test_a_purge_of_which_nobody_knows_whether_it_was_kept_leaves_the_files(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = started(store, clock, 40 * DAY)
    inner = store.engine.committer.write

    def write(*given: Any, **how: Any) -> None:
        inner(*given, **how)
        raise CommitUnknown("the disk does not say")

    with monkeypatch.context() as patch:
        patch.setattr(store.engine.committer, "write", write)
        report = store.sweep(POLICY)
    assert (report.swept, report.failures) == ((), ((talk.id, "the disk does not say"),))
    assert report.scrub_pending
    assert left(store) == set()
    assert store.engine.purges.pending == 1
    assert store.scrub()
    assert store.engine.purges.pending == 0


def test_a_conversation_that_never_stands_still_is_busy_and_not_destroyed(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, look = started(store, clock, 40 * DAY), sweep.Sweep._still_due
    monkeypatch.setattr(sweep, "retry", partial(retry, most=3))
    titles = iter(range(100))

    def restless(self: sweep.Sweep, row: ConversationRow) -> bool:
        due = look(self, row)
        talk.rename(str(next(titles)))
        return due

    monkeypatch.setattr(sweep.Sweep, "_still_due", restless)
    ((id, why),) = store.sweep(POLICY).failures
    assert id == talk.id
    assert "faster" in why
    assert left(store) == {talk.id}


# -- much of it, and nothing left of it


def test_a_thousand_conversations_go_at_once_and_progress_is_told(tmp_path: Path, clock: Clock) -> None:
    told: list[tuple[int, int]] = []
    with hitherto.open(tmp_path / "a.db", clock=clock) as store:
        clock.now = NOW - 40 * DAY
        for n in range(1000):
            store.save([Message.user(f"number {n}")])
        clock.now = NOW
        young = store.start()
        report = store.sweep(POLICY, progress=lambda done, total: told.append((done, total)))
        assert (report.purged_count, len(report.failures)) == (1000, 0)
        assert left(store) == {young.id}
    assert told[0] == (0, 1000)
    assert told[-1] == (1000, 1000)
    assert told == sorted(told)


def files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_a_sweep_leaves_no_trace_in_any_file(tmp_path: Path, clock: Clock, key: bytes | None) -> None:
    with hitherto.open(tmp_path / "a.db", key=key, clock=clock) as store:
        gone = started(store, clock, 40 * DAY, "unmentionable")
        started(store, clock, DAY, "harmless")
        store.search("unmentionable")
        secret = gone.state.row.data_key if key else b"unmentionable"
        assert secret in files(tmp_path)  # the control
        assert not store.sweep(POLICY).scrub_pending
        assert secret not in files(tmp_path)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def by_sweep(store: Store, _: str) -> None:
    store.sweep(POLICY, progress=lambda done, _: interrupted() if done else None)


def by_purging_all(store: Store, _: str) -> None:
    Records(store).purge_all(reason="user-requested", progress=lambda done, _: interrupted() if done else None)


def by_purge(store: Store, id: str) -> None:
    store.engine.search.forget = interrupted  # type: ignore[method-assign,assignment]  # it comes at a bad time
    try:
        store.purge(id, reason="user-requested")
    finally:
        del store.engine.search.forget


@pytest.mark.parametrize("act", [by_sweep, by_purging_all, by_purge])
@pytest.mark.parametrize("how", ["upkeep", "closing", "unprotected"])
def test_what_was_gone_when_somebody_pressed_ctrl_c_leaves_the_files_all_the_same(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, act: Callable[[Store, str], None], how: str
) -> None:
    """While the store is open, or where nothing happens by itself, as it is closed. The control forgets it."""
    monkeypatch.setattr(sweep, "_AT_ONCE", 1)
    monkeypatch.setattr(_purging, "_BATCH_SIZE", 1)
    if how == "unprotected":
        monkeypatch.setattr(Purges, "later", lambda *_: None)
    told: list[object] = []
    with hitherto.open(tmp_path / "a.db", clock=clock, maintenance=how == "upkeep") as store:
        gone = started(store, clock, 50 * DAY, "unmentionable")
        rest = started(store, clock, 40 * DAY, "harmless")
        store.scrub()
        store.subscribe(told.append)
        with pytest.raises(KeyboardInterrupt):
            act(store, gone.id)
        assert left(store) == {rest.id}
        if how == "upkeep":
            until(lambda: b"unmentionable" not in files(tmp_path))
            until(lambda: not store.engine.purges.pending)
        elif how == "unprotected":
            assert b"unmentionable" in files(tmp_path)
            assert store.engine.purges.pending == 0
            return
    assert b"unmentionable" not in files(tmp_path)
    assert [event.purged_count for event in told if isinstance(event, PurgeCompleted)] == [1]


def test_what_cannot_be_noted_of_checkpoints_does_not_stop_a_purge(tmp_path: Path, clock: Clock) -> None:
    with hitherto.open(tmp_path / "a.db", clock=clock, maintenance=False) as store:
        talks = [started(store, clock, 40 * DAY, "unmentionable") for _ in range(2)]
        place = FileStore(tmp_path / "elsewhere")
        store.register_checkpoint_store(place)
        for talk in talks:
            checkpoint_copies.remember(talk.state, checkpoint_copies.location_of(place))
        inner = store.engine.workspace.note

        def full(put: Any = None, unput: Any = ()) -> None:
            if unput:
                raise StorageFull("no space is left")
            inner(put, unput)

        store.engine.workspace.note = full  # type: ignore[method-assign]  # a disk is hard to fill at the right moment
        one = store.purge(talks[0], reason="user-requested")
        two = store.sweep(POLICY)
        assert (one.purged_count, two.purged_count) == (1, 1)
        assert not one.scrub_pending
        assert not two.scrub_pending
        for talk, ((id, why),) in zip(talks, (one.failures, two.failures), strict=True):
            assert id == talk.id
            assert "no space is left" in why
        assert b"unmentionable" not in (tmp_path / "a.db").read_bytes() + (tmp_path / "a.db-wal").read_bytes()


def test_async_code_has_the_same(tmp_path: Path, clock: Clock) -> None:
    async def main() -> None:
        async with hitherto.open_async(tmp_path / "a.db", clock=clock, maintenance=False) as store:
            talk = started(store.sync, clock, 40 * DAY)
            assert await store.set_retention(POLICY) is None
            assert await store.retention() == POLICY
            assert len((await store.plan_sweep(now=NOW)).purges) == 1
            assert (await store.sweep(progress=lambda *_: None)).swept == (talk.id,)

    asyncio.run(main())
