"""Sweeps that happen by themselves: when, by whom, and by which clock. Requirement: D10.

Where a test does not wait for the thread of a store, it does in its own thread what that one does, so that nothing
happens beside it.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Block, Conversation, Message, RetentionPolicy, Store
from hitherto._engine import lease, quota
from hitherto._engine.bodies import Meta
from hitherto._engine.creating import More, create
from hitherto._engine.recovery import keep, keep_snapshot, new_key
from hitherto._engine.state import build_row_change
from hitherto._erasure import maintenance
from hitherto._erasure import schedule as _schedule
from hitherto._erasure import sweep as _sweeping
from hitherto.attachment import CHUNK, LARGE
from hitherto.backend import ConversationRow
from hitherto.errors import Busy, StorageFull, Suspended
from hitherto.events import Event, SweepFinished
from hitherto.model import Setup, from_datetime
from hitherto.retention import DATED
from tests.support.parts import background_of, schedule_of

from ..support.waiting import until

KEY = b"k" * 32
NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
POLICY = RetentionPolicy()


class Machine:
    """Two clocks: one that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall, self.boot, self.counted = NOW - 100 * DAY, "a boot", HOUR

    def clock(self) -> int:
        return from_datetime(self.wall, "wall")

    def now(self) -> int:
        return self.counted // timedelta(microseconds=1)

    def passes(self, time: timedelta) -> None:
        self.wall += time
        self.counted += time


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(_schedule, "ticks_beside", lambda *, machine: made)  # noqa: ARG005  # whatever the clock is
    return made


Opened = Callable[..., Store]


@pytest.fixture(params=["plain", "sealed"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, machine: Machine) -> Iterator[Opened]:
    key = KEY if request.param == "sealed" else None
    with contextlib.ExitStack() as stack:

        def open_it(**how: Any) -> Store:
            return stack.enter_context(hitherto.open(tmp_path / "a.db", key=key, clock=machine.clock, **how))

        yield open_it


def said(store: Store, *, title: str = "") -> Conversation:
    talk = store.start(title=title)
    talk.append(Message.user("something"))
    return talk


def many(store: Store, count: int) -> set[str]:
    return {said(store).id for _ in range(count)}


def left(store: Store) -> set[str]:
    return {info.id for info in store.conversations(limit=10_000, include_expired=True)}


def quietly(store: Store, policy: RetentionPolicy | None = POLICY) -> Store:
    """A policy, and no thread that goes by it."""
    store.engine.workspace.on_rules_changed = lambda: None
    _sweeping.set_policy(store.engine, policy)
    return store


def swept(store: Store) -> None:
    """What the thread does when it is time."""
    store.engine.schedule.sweep(lambda: True)


def has_thread(store: Store) -> bool:
    return background_of(store)._thread is not None


def expiring(talk: Conversation, at: datetime) -> None:
    stamp = from_datetime(at, "at")
    talk.engine.change(talk.state.id, lambda row: build_row_change(talk.state, row, expires_at=stamp))


# -- when


def test_a_store_purges_what_is_due_as_it_is_opened(opened: Opened, machine: Machine) -> None:
    first = quietly(opened())
    old = said(first)
    machine.passes(20 * DAY)
    new = said(first)
    first.close()
    machine.passes(11 * DAY)
    store = opened()
    until(lambda: left(store) == {new.id})
    assert old.id not in left(store)
    assert store.verify().ok


def test_whoever_says_so_has_a_store_that_purges_nothing_by_itself(opened: Opened, machine: Machine) -> None:
    first = quietly(opened(maintenance=False))
    old = said(first)
    first.close()
    machine.passes(99 * DAY)
    for how in ({"maintenance": False}, {"read_only": True}):
        store = opened(**how)
        assert not has_thread(store)
        assert not store.engine.schedule.is_due()
        store.close()
    store = opened(maintenance=False)
    assert store.set_retention(RetentionPolicy(7)) is None
    assert left(store) == {old.id}
    assert store.sweep().swept == (old.id,)  # the control: it was due


def test_without_a_policy_there_is_nothing_to_do_and_no_thread(opened: Opened) -> None:
    store = opened()
    many(store, 3)
    assert not has_thread(store)


def test_every_six_hours_it_is_time_again(opened: Opened, machine: Machine) -> None:
    store = quietly(opened())
    old = said(store)
    assert store.engine.schedule.is_due()
    machine.passes(30 * DAY - HOUR)
    swept(store)
    assert left(store) == {old.id}
    machine.passes(6 * HOUR - MINUTE)
    assert not store.engine.schedule.is_due()
    machine.passes(MINUTE)
    assert store.engine.schedule.is_due()
    swept(store)
    assert left(store) == set()


def test_what_is_heard_while_a_sweep_is_at_it_is_not_forgotten_at_its_end(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = quietly(opened())
    schedule, sweep = store.engine.schedule, _schedule.Schedule._sweep
    said(store)
    store.set_retention(POLICY)

    def meanwhile(self: _schedule.Schedule, go_on: Callable[[], bool]) -> bool:
        outdated = sweep(self, go_on)
        self.check_soon()  # another process has tightened the policy
        return outdated

    with monkeypatch.context() as patch:
        patch.setattr(_schedule.Schedule, "_sweep", meanwhile)
        schedule.sweep(lambda: True)
    assert schedule.is_due()
    schedule.sweep(lambda: True)
    assert not schedule.is_due()  # the control: without news it is not, for six hours


def test_the_thread_notices_that_it_is_time(opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_LOOK_SECONDS", 0.01)
    store = opened()
    assert store.set_retention(POLICY) is not None
    said(store)
    machine.passes(30 * DAY)
    until(lambda: left(store) == set())


def test_a_tightened_policy_is_carried_out_before_the_call_returns(opened: Opened, machine: Machine) -> None:
    store = opened()
    ages = [said(store)]
    for _ in range(3):
        machine.passes(10 * DAY)
        ages.append(said(store))
    ages[1].hold()
    report = store.set_retention(RetentionPolicy(days=25))
    assert report is not None
    assert report.swept == (ages[0].id,)
    assert store.set_retention(RetentionPolicy(days=99)) is None  # more days
    assert store.set_retention(RetentionPolicy(days=99)) is None  # the same
    assert store.set_retention(None) is None
    assert left(store) == {talk.id for talk in ages[1:]}
    report = store.set_retention(RetentionPolicy(days=7))  # from none to some
    assert report is not None
    assert (set(report.swept), report.skipped) == ({ages[2].id}, ((ages[1].id, "held"),))
    assert left(store) == {ages[1].id, ages[3].id}


def test_a_policy_that_others_set_is_noticed_by_whoever_begins_a_conversation(opened: Opened) -> None:
    store, other = opened(), opened()
    other.set_retention(POLICY)
    assert not has_thread(store)
    store.start()
    assert has_thread(store)


def test_a_policy_that_others_set_is_noticed_by_whoever_says_something(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within two seconds, which are none here."""
    monkeypatch.setattr(quota, "_LOOK_SECONDS", 0.0)
    store, other = opened(), opened(maintenance=False)
    old = said(store)
    machine.passes(30 * DAY)
    talk = said(store)
    other.set_retention(RetentionPolicy(99))
    assert not has_thread(store)
    talk.append(Message.user("and on"))
    until(lambda: schedule_of(store)._next > 0)
    assert left(store) == {old.id, talk.id}
    other.set_retention(POLICY)  # it has looked already, and would not for six hours
    talk.append(Message.user("and on"))
    until(lambda: left(store) == {talk.id})


def test_where_there_is_a_thread_a_policy_of_others_is_looked_for_every_six_hours(
    opened: Opened, machine: Machine
) -> None:
    store, other = opened(), opened(maintenance=False)
    store.engine.workspace.on_rules_changed = lambda: None  # so that all of it happens here
    said(store)
    swept(store)
    other.set_retention(POLICY)
    machine.passes(30 * DAY)
    assert not store.engine.schedule.is_wanted  # as far as it knows
    assert store.engine.schedule.is_due()
    swept(store)
    assert left(store) == set()


def test_an_expiry_of_its_own_is_looked_for_without_a_policy(opened: Opened, machine: Machine) -> None:
    first = opened()
    talk, other = said(first), said(first)
    expiring(talk, machine.wall + DAY)
    first.close()
    store = opened()
    until(lambda: schedule_of(store)._next > 0)
    assert left(store) == {talk.id, other.id}
    store.close()
    machine.passes(DAY)
    store = opened()
    until(lambda: left(store) == {other.id})


def test_one_that_begins_with_an_expiry_is_looked_for_as_well(opened: Opened, machine: Machine) -> None:
    store = opened()
    more = More(expires_at=machine.clock() + 1)
    assert create(store.engine, b"i" * 16, Meta(), [Setup()], more=more) is not None
    assert store.engine.workspace.meta.expiring
    assert store.verify().ok


def test_a_store_in_memory_sweeps_like_the_others(machine: Machine) -> None:
    with hitherto.open("memory:", clock=machine.clock) as store:
        talk, own = said(store), said(store)
        expiring(own, machine.wall + DAY)
        machine.passes(DAY)
        swept(store)
        assert left(store) == {talk.id}
        machine.passes(30 * DAY)
        store.set_retention(POLICY)
        assert left(store) == set()  # whether this call swept it or the thread, which may be faster


# -- what it costs


def test_where_nothing_is_due_nothing_is_read_but_the_question_and_nothing_is_written(
    opened: Opened, machine: Machine, tmp_path: Path
) -> None:
    first = quietly(opened())
    many(first, 20)
    swept(first)  # the first of a boot writes how the clocks stand
    first.close()
    machine.passes(DAY)
    before = (tmp_path / "a.db").read_bytes()
    store = opened()
    rows: list[int] = []
    inner = store.backend.lookup

    def lookup(**how: Any) -> list[ConversationRow]:
        rows.append(len(found := inner(**how)))
        return found

    store.backend.lookup = lookup  # type: ignore[method-assign]  # counting is all it does
    until(lambda: schedule_of(store)._next > 0)
    swept(store)
    store.close()
    assert sum(rows) <= 6  # of the workspace itself
    assert (tmp_path / "a.db").read_bytes() == before


def test_what_is_due_and_on_hold_is_no_reason_to_write_or_tell(
    opened: Opened, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    store = quietly(opened())
    said(store).hold()
    swept(store)
    machine.passes(99 * DAY)
    token = store.engine.workspace.row.token
    told: list[Event] = []
    store.subscribe(told.append)
    with caplog.at_level(logging.INFO, logger="hitherto"):
        swept(store)
    assert store.engine.listeners.wait(10)
    assert store.engine.workspace.row.token == token
    assert (told, caplog.records) == ([], [])


def test_one_event_and_one_line_tell_of_a_sweep_and_name_no_conversation(
    opened: Opened, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    store = quietly(opened())
    for _ in range(3):
        said(store, title="unmentionable")
    said(store).hold()
    machine.passes(30 * DAY)
    told: list[Event] = []
    store.subscribe(told.append)
    with caplog.at_level(logging.INFO, logger="hitherto"):
        swept(store)
    assert store.engine.listeners.wait(10)
    (event,) = [one for one in told if isinstance(one, SweepFinished)]
    assert (event.days, event.purged_count, event.skipped, event.failures) == (30, 3, 1, 0)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == "retention (30 days): 3 purged, 1 due and left alone, 0 failed"


def test_closing_does_not_wait_for_a_long_sweep_and_the_next_goes_on(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweeping, "_AT_ONCE", 1)
    monkeypatch.setattr(maintenance, "_SWEEP_SECONDS", 0.0)
    first = quietly(opened())
    all_of_them = many(first, 30)
    first.close()
    machine.passes(30 * DAY)
    began, go = threading.Event(), threading.Event()
    inner = _sweeping.Sweep._together

    def together(self: _sweeping.Sweep, rows: list[ConversationRow]) -> None:
        inner(self, rows)
        if len(self.swept) == 3:
            began.set()
            assert go.wait(30)

    monkeypatch.setattr(_sweeping.Sweep, "_together", together)
    store = opened()
    assert began.wait(30)
    background_of(store)._stopped = True  # which is what closing does first, and then waits
    go.set()
    assert store.close().complete
    monkeypatch.setattr(_sweeping.Sweep, "_together", inner)
    with opened(maintenance=False) as look:
        assert len(left(look)) == 27
        assert left(look) < all_of_them
        assert look.engine.workspace.meta.sweeper is None  # and others need not wait
    store = opened()
    until(lambda: left(store) == set())
    assert store.verify().ok


def test_even_a_program_that_ends_at_once_gets_to_it(opened: Opened, machine: Machine) -> None:
    first = quietly(opened())
    many(first, 5)
    first.close()
    machine.passes(30 * DAY)
    opened().close()
    assert left(opened(maintenance=False)) == set()


def test_closing_gets_to_it_where_the_thread_did_not(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quietly(opened())
    many(first, 5)
    first.close()
    machine.passes(30 * DAY)
    monkeypatch.setattr(maintenance.MaintenanceThread, "_run", lambda _: None)
    opened().close()
    assert left(opened(maintenance=False)) == set()


def test_nothing_more_is_looked_at_when_the_store_is_being_closed(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing can be purged, because it is all on hold."""
    monkeypatch.setattr(_sweeping, "_AT_ONCE", 1)
    store = quietly(opened())
    for _ in range(5):
        said(store).hold()
    machine.passes(30 * DAY)
    looks: list[int] = []
    inner = _sweeping.Sweep.take

    def take(self: _sweeping.Sweep, ids: list[bytes]) -> None:
        looks.append(len(ids))
        inner(self, ids)

    monkeypatch.setattr(_sweeping.Sweep, "take", take)
    store.engine.schedule.sweep(lambda: len(looks) < 2)
    assert len(looks) == 2
    swept(store)
    assert len(looks) == 7  # the control


def test_large_conversations_do_not_go_together(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes waits for a commit, so none of them is large."""
    monkeypatch.setattr(_sweeping, "_MESSAGES", 10)
    store = quietly(opened())
    for count in (1, 4, 5, 12, 3, 3):
        store.start().extend([Message.user(str(n)) for n in range(count)])
        machine.passes(MINUTE)
    machine.passes(30 * DAY)
    sizes: list[int] = []
    inner = _sweeping.Sweep._purge

    def purge(self: _sweeping.Sweep, rows: list[ConversationRow]) -> Any:
        sizes.append(sum(row.count for row in rows))
        return inner(self, rows)

    monkeypatch.setattr(_sweeping.Sweep, "_purge", purge)
    swept(store)
    assert sizes == [6, 12, 10]
    assert left(store) == set()


def test_a_sweep_that_fails_is_said_disturbs_nobody_and_is_tried_again(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise hitherto.Busy("the disk is elsewhere")

    store = quietly(opened())
    said(store)
    machine.passes(30 * DAY)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="hitherto"):
        patch.setattr(_sweeping, "_quiet", fails)
        background_of(store)._sweep()
    assert "a sweep was interrupted and will be tried again: the disk is elsewhere" in caplog.text
    assert not store.engine.schedule.is_due()
    machine.passes(5 * MINUTE)
    assert store.engine.schedule.is_due()
    background_of(store)._sweep()
    assert left(store) == set()


def test_on_a_full_disk_nobody_can_say_that_they_are_at_it_and_it_is_swept_all_the_same(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageFull("no space is left")

    store = quietly(opened())
    many(store, 3)
    machine.passes(30 * DAY)
    monkeypatch.setattr(store.engine.workspace, "describe", full)
    swept(store)
    assert left(store) == set()


def test_a_process_forks_while_a_store_sweeps_and_the_child_opens_the_store(
    opened: Opened, machine: Machine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    key = KEY if "sealed" in request.node.name else None
    store = quietly(opened())
    many(store, 60)
    machine.passes(30 * DAY)
    sweeper = threading.Thread(target=lambda: swept(store))
    sweeper.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            try:
                with hitherto.open(tmp_path / "a.db", key=key, maintenance=False) as mine:
                    said(mine)
                os._exit(0)
            except BaseException:  # noqa: BLE001  # whatever it is, the parent hears of it
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    sweeper.join()
    assert len(left(store)) == 5


def test_a_sweep_by_itself_goes_on_while_other_writes_are_suspended(opened: Opened, machine: Machine) -> None:
    """The breaker is for those who add. Here even the lease has to be written."""
    store = quietly(opened())
    many(store, 3)
    machine.passes(30 * DAY)
    for _ in range(20):
        store.engine.committer.breaker.record_failure()
    with pytest.raises(Suspended):  # the control
        said(store)
    swept(store)
    assert left(store) == set()
    assert store.engine.workspace.meta.sweeper is None


def test_attachments_count_as_well(opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is purged is overwritten, and whoever writes waits for that."""
    store = quietly(opened())
    monkeypatch.setattr(_sweeping, "_BYTES", 2 * CHUNK)
    for size in (0, LARGE + 1, LARGE + 1, 3 * CHUNK, 0, 0):
        blocks = [Block.image(os.urandom(size), "image/png")] if size else [Block.text("no picture")]
        store.start().append(Message.user(blocks))
        machine.passes(MINUTE)
    machine.passes(30 * DAY)
    many_at_once: list[int] = []
    inner = _sweeping.Sweep._purge

    def purge(self: _sweeping.Sweep, rows: list[ConversationRow]) -> None:
        many_at_once.append(len(rows))
        inner(self, rows)

    monkeypatch.setattr(_sweeping.Sweep, "_purge", purge)
    swept(store)
    assert many_at_once == [2, 1, 1, 2]  # the newest first; two pictures are a little more than two chunks
    assert left(store) == set()


@pytest.mark.parametrize("together", [True, False])
def test_a_process_may_fork_between_any_two_commits(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Also where conversations go one by one, because together they did not."""
    store = quietly(opened())
    many(store, 6)
    machine.passes(30 * DAY)
    turns: list[int] = []  # those that were begun, and those that are open
    open_turns: list[int] = []
    commits: list[int] = []
    inner = _sweeping.Sweep._written

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        turns.append(len(turns))
        open_turns.append(turns[-1])
        try:
            yield
        finally:
            open_turns.pop()

    def written(self: _sweeping.Sweep, doomed: list[ConversationRow], *rest: Any) -> bool:
        if len(doomed) > 1 and not together:
            raise StorageFull("no space is left")
        commits.append(open_turns[0])
        return inner(self, doomed, *rest)

    monkeypatch.setattr(_sweeping.Sweep, "_written", written)
    report = _sweeping.Sweep(store.engine, POLICY, machine.wall, turn=turn).sweep()
    assert len(report.swept) == 6
    assert len(commits) == len(set(commits)) == (1 if together else 6)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program writes, and does not come to an end."""
    with contextlib.closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def test_a_sweep_waits_once_for_a_lock_that_meets_all(
    opened: Opened, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweeping, "_AT_ONCE", 4)
    store = quietly(opened(timeout_seconds=0.01))
    talks = many(store, 10)
    swept(store)  # the clocks are known from now on
    machine.passes(30 * DAY)
    tries: list[int] = []
    inner = store.backend.commit

    def commit(batches: list[Any]) -> Any:
        tries.append(len(batches))
        return inner(batches)

    store.backend.commit = commit  # type: ignore[method-assign,assignment]  # counting is all it does
    with locked(tmp_path / "a.db"):
        report = store.sweep()
        assert (report.swept, {id for id, _ in report.failures}) == ((), talks)
        assert {why for _, why in report.failures} == {report.failures[0][1]}
        assert "lock" in report.failures[0][1]
        assert len(tries) == 1
        with pytest.raises(Busy):
            swept(store)
        assert len(tries) == 2
    assert not store.engine.schedule.is_due()
    machine.passes(5 * MINUTE)
    assert store.engine.schedule.is_due()
    swept(store)
    assert left(store) == set()


def test_a_lock_that_comes_in_the_middle_leaves_what_is_gone_to_upkeep(
    opened: Opened, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweeping, "_AT_ONCE", 4)
    store = quietly(opened(timeout_seconds=0.01, maintenance=False))
    talks = many(store, 10)
    machine.passes(30 * DAY)
    with contextlib.ExitStack() as stack:

        def lock(done: int, _: int) -> None:
            if done == 4:
                stack.enter_context(locked(tmp_path / "a.db"))

        monkeypatch.setattr(store.backend, "scrub", lambda: pytest.fail("nobody waits for the lock again"))
        report = store.sweep(progress=lock)
        monkeypatch.undo()
    assert (len(report.swept), len(report.failures), report.scrub_pending) == (4, 6, True)
    assert {*report.swept, *(id for id, _ in report.failures)} == talks
    assert store.scrub()
    assert store.engine.purges.pending == 0


# -- another policy, in the middle of it


@pytest.mark.parametrize("policy", [None, RetentionPolicy(99)])
def test_a_policy_that_is_loosened_ends_a_sweep_that_is_running(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, policy: RetentionPolicy | None
) -> None:
    monkeypatch.setattr(_sweeping, "_AT_ONCE", 2)
    store, other = quietly(opened()), opened(maintenance=False)
    store.engine.background.stop(10)  # or it might be the first to look again
    many(store, 8)
    machine.passes(30 * DAY)
    inner = _sweeping.Sweep._together

    def together(self: _sweeping.Sweep, rows: list[ConversationRow]) -> None:
        inner(self, rows)
        other.set_retention(policy)

    monkeypatch.setattr(_sweeping.Sweep, "_together", together)
    swept(store)
    assert len(left(store)) == 6
    assert store.engine.schedule.is_due()  # by the policy as it now is
    swept(store)
    assert len(left(store)) == 6


@pytest.mark.parametrize("protected", [True, False])
def test_a_policy_that_is_taken_back_in_the_very_moment_of_the_commit_keeps_a_conversation(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """After the last look, before the commit: the token of the workspace tells. The control does not require it."""
    store, other = quietly(opened()), opened(maintenance=False)
    talk = said(store)
    machine.passes(30 * DAY)
    inner = _sweeping.Sweep._written

    def written(self: _sweeping.Sweep, doomed: list[ConversationRow], copies: Any, require: Any) -> bool:
        other.set_retention(None)
        return inner(self, doomed, copies, require if protected else ())

    monkeypatch.setattr(_sweeping.Sweep, "_written", written)
    swept(store)
    assert left(store) == ({talk.id} if protected else set())


def test_another_description_of_the_workspace_does_not_end_a_sweep(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = quietly(opened()), opened(maintenance=False)
    said(store)
    machine.passes(30 * DAY)
    inner, limits = _sweeping.Sweep._written, iter((10**6, 10**7))

    def written(self: _sweeping.Sweep, *given: Any) -> bool:
        for limit in limits:
            other.set_quota(limit)
            break
        return inner(self, *given)

    monkeypatch.setattr(_sweeping.Sweep, "_written", written)
    swept(store)
    assert left(store) == set()


@pytest.mark.parametrize("given", [True, False])
def test_whoever_sweeps_by_hand_goes_by_the_policy_of_the_store_or_by_one_of_their_own(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    monkeypatch.setattr(_sweeping, "_AT_ONCE", 2)
    store, other = opened(maintenance=False), opened(maintenance=False)
    store.set_retention(POLICY)
    talks = many(store, 6)
    machine.passes(30 * DAY)

    def off(done: int, _: int) -> None:
        if done:
            other.set_retention(None)

    report = store.sweep(POLICY if given else None, progress=off)
    assert len(report.swept) == (6 if given else 2)
    assert dict(report.skipped) == dict.fromkeys(talks - set(report.swept), "policy-changed")
    assert report.failures == ()


# -- one at a time


_HALF = """
import sys
import hitherto
from hitherto._engine import process
from hitherto._erasure import sweep
sweep._AT_ONCE = 4
if sys.argv[3] == "elsewhere":
    process._machine = lambda: b"another"
inner = sweep.Sweep._together
def together(self, rows):
    inner(self, rows)
    print(len(self.swept), flush=True)
    sys.stdin.readline()
sweep.Sweep._together = together
now = int(sys.argv[2])
store = hitherto.open(sys.argv[1], clock=lambda: now, maintenance=False)
store.engine.schedule._never = False
store.engine.schedule.sweep(lambda: True)
"""


@contextlib.contextmanager
def half_way(path: Path, machine: Machine, where: str = "here") -> Iterator[subprocess.Popen[str]]:
    """A process that has swept four conversations, and waits; on this machine, or as if on another one."""
    command = [sys.executable, "-c", _HALF, str(path), str(machine.clock()), where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "4\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("protected", [True, False])
def test_while_one_process_sweeps_another_leaves_it_alone_and_finishes_what_a_kill_left(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, protected: bool, where: str
) -> None:
    """At once, if it can be known that it was killed; otherwise when its time is over. The control: without the lease
    both sweep."""
    path = tmp_path / "a.db"
    with hitherto.open(path, clock=machine.clock) as store:
        many(quietly(store), 12)
        machine.passes(30 * DAY)
        if not protected:
            monkeypatch.setattr(lease.Lease, "_others", lambda *_: None)
        with half_way(path, machine, where) as process:
            swept(store)
            if not protected:
                assert left(store) == set()
                return
            assert len(left(store)) == 8
            process.send_signal(signal.SIGKILL)
            process.wait()
        swept(store)
        if where == "elsewhere":
            assert len(left(store)) == 8  # nobody can know that it was killed
            machine.passes(2 * MINUTE)
            assert store.engine.schedule.is_due()  # it looks again when the other's time is over, not after six hours
            swept(store)
        assert left(store) == set()
        assert store.engine.workspace.meta.sweeper is None
        assert store.verify().ok


def test_whoever_is_at_it_for_long_says_so_again(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweeping, "_AT_ONCE", 1)
    store, other = quietly(opened()), opened(maintenance=False)
    many(store, 9)
    machine.passes(30 * DAY)
    ends: list[int] = []
    inner = store.engine.committer.write

    def write(*given: Any, **how: Any) -> Any:
        done = inner(*given, **how)
        if how.get("tell"):  # a purge
            other.engine.workspace.refresh()
            sweeper = other.engine.workspace.meta.sweeper
            assert sweeper is not None
            ends.append(sweeper[1] - machine.clock())
            machine.passes(timedelta(seconds=15))
        return done

    monkeypatch.setattr(store.engine.committer, "write", write)
    swept(store)
    assert len(ends) == 9
    assert min(ends) > 0
    assert left(store) == set()


def test_a_lease_of_another_clock_stops_nobody(opened: Opened, machine: Machine) -> None:
    store, other = quietly(opened()), opened(maintenance=False)
    said(store)
    machine.passes(30 * DAY)
    schedule_of(other)._never = False
    machine.wall += 999 * DAY  # the other believes that it is later
    assert schedule_of(other)._lease.take()
    machine.wall -= 999 * DAY
    swept(store)
    assert left(store) == set()


# -- the clock


@pytest.mark.parametrize("protected", [True, False])
def test_a_clock_that_jumps_ahead_while_the_store_is_open_purges_nothing_early(
    opened: Opened, machine: Machine, protected: bool
) -> None:
    """The control: a clock that is believed."""
    store = quietly(opened())
    talk = said(store)
    machine.passes(DAY)
    machine.wall += 40 * DAY
    if not protected:
        schedule_of(store)._ticks = None
    swept(store)
    assert left(store) == ({talk.id} if protected else set())
    machine.passes(29 * DAY)
    swept(store)
    assert left(store) == set()  # when thirty days have passed


def test_a_tightened_policy_does_not_believe_such_a_clock_either(opened: Opened, machine: Machine) -> None:
    store = opened()
    talk = said(store)
    machine.wall += 40 * DAY
    report = store.set_retention(POLICY)
    assert report is not None
    assert report.swept == ()
    assert left(store) == {talk.id}


@pytest.mark.parametrize("boot", ["a boot", "another boot", ""])
def test_within_one_boot_a_clock_that_jumped_ahead_between_two_processes_is_not_believed(
    opened: Opened, machine: Machine, boot: str
) -> None:
    """The control: after a boot nobody can tell for how long the machine was switched off. The same where there is no
    telling one boot from another."""
    first = quietly(opened())
    talk = said(first)
    swept(first)
    first.close()
    machine.passes(MINUTE)
    machine.wall += 40 * DAY
    machine.boot = boot
    store = opened()
    store.engine.background.stop(10)
    swept(store)
    assert left(store) == ({talk.id} if boot == "a boot" else set())


def test_a_clock_that_was_ahead_and_is_set_right_is_compared_from_then_on(opened: Opened, machine: Machine) -> None:
    machine.wall += 40 * DAY
    first = quietly(opened())
    swept(first)
    first.close()
    machine.wall -= 40 * DAY
    first = opened()
    talk = said(first)
    swept(first)
    first.close()
    machine.wall += 35 * DAY  # within what it was before
    store = opened()
    store.engine.background.stop(10)
    swept(store)
    assert left(store) == {talk.id}


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("policy", [True, False], ids=["policy", "expiry"])
def test_the_clocks_are_compared_from_the_moment_on_in_which_something_can_be_due(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, policy: bool, protected: bool
) -> None:
    """Not from the first sweep, six hours later; nor only by stores that sweep. The control does not compare."""
    if not protected:
        monkeypatch.setattr(_schedule.Schedule, "add_clocks", lambda _, meta: meta)
    first = opened(maintenance=False)
    talk = said(first)
    if policy:
        assert first.set_retention(POLICY) is None
    else:
        expiring(talk, machine.wall + 30 * DAY)
    machine.wall += 40 * DAY
    store = opened()
    store.engine.background.stop(10)
    swept(store)
    assert left(store) == ({talk.id} if protected else set())


@pytest.mark.parametrize("protected", [True, False])
def test_a_clock_that_was_behind_what_was_said_last_is_compared_with_when_it_was_put_right(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """A machine whose battery is empty comes up in 2024. The control compares at once, and then sweeps never catch up,
    but say so."""
    if not protected:
        monkeypatch.setattr(_schedule.Schedule, "_look", lambda _: None)
    first = quietly(opened())
    said(first)
    first.close()
    machine.boot = "another boot"
    machine.passes(30 * DAY)
    machine.wall -= 600 * DAY
    store = opened()
    store.engine.background.stop(10)
    swept(store)
    machine.wall += 600 * DAY
    assert store.engine.schedule.behind_seconds == (0.0 if protected else 600 * 86_400)
    swept(store)
    assert len(left(store)) == (0 if protected else 1)
    machine.wall += 40 * DAY  # from here on it is one that jumps ahead
    said(store)
    machine.wall += 40 * DAY
    swept(store)
    assert len(left(store)) == (1 if protected else 2)


def test_a_word_of_a_clock_that_jumped_ahead_does_not_make_the_right_one_look_behind(
    opened: Opened, machine: Machine
) -> None:
    store = opened()
    old = said(store)
    machine.passes(2 * MINUTE)
    machine.wall += 40 * DAY
    new = said(store)
    assert store.set_retention(POLICY) is not None
    assert left(store) == {old.id, new.id}


def test_a_clock_that_is_not_believed_is_said_once_and_stands_in_the_report(
    opened: Opened, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    store = quietly(opened(), RetentionPolicy(99))
    said(store)
    swept(store)
    machine.passes(DAY)
    assert (store.engine.schedule.behind_seconds, caplog.records) == (0.0, [])
    machine.wall += 40 * DAY
    with caplog.at_level(logging.WARNING, logger="hitherto"):
        swept(store)
        swept(store)
    (record,) = caplog.records
    assert "put forward by 960.0 hours" in record.getMessage()
    report = store.set_retention(POLICY)
    assert report is not None
    assert (report.swept, report.behind_seconds) == ((), 40 * 86_400)
    assert store.sweep().behind_seconds == 0.0  # by hand it goes by the clock as it is


def test_a_clock_that_was_set_back_only_keeps_things_longer(opened: Opened, machine: Machine) -> None:
    store = quietly(opened())
    talk = said(store)
    machine.passes(29 * DAY)
    machine.wall -= 5 * DAY
    machine.passes(5 * DAY)
    swept(store)
    assert left(store) == {talk.id}
    machine.passes(DAY)
    swept(store)
    assert left(store) == set()


def test_what_was_said_while_the_clock_had_lost_its_time_is_counted_from_when_it_was_seen(
    opened: Opened, machine: Machine
) -> None:
    right = machine.wall
    store = quietly(opened())
    store.close()
    machine.wall = datetime(1970, 1, 1, 0, 5, tzinfo=UTC)
    store = opened()
    store.engine.background.stop(10)
    talk = said(store)
    swept(store)
    machine.wall = right
    machine.passes(DAY)
    swept(store)
    assert left(store) == {talk.id}
    (item,) = store.plan_sweep().items
    assert (item.reason, item.expires_at) == ("undated", machine.wall + 30 * DAY)
    machine.passes(29 * DAY)
    swept(store)
    assert left(store) == {talk.id}
    machine.passes(DAY)
    swept(store)
    assert left(store) == set()
    later = said(store)
    swept(store)
    assert left(store) == {later.id}


def test_what_is_remembered_of_conversations_without_a_time_goes_with_them(opened: Opened, machine: Machine) -> None:
    right = machine.wall
    store = quietly(opened(maintenance=False))
    machine.wall = datetime(1970, 1, 1, 0, 5, tzinfo=UTC)
    talks = [said(store) for _ in range(2)]
    machine.wall = right
    store.sweep()
    assert set(store.engine.workspace.meta.undated) == {talk.state.id for talk in talks}
    store.purge(talks[0], reason="user-requested")
    machine.wall = datetime(1970, 1, 1, 0, 5, tzinfo=UTC)
    talks.append(said(store))
    machine.wall = right + DAY
    store.sweep()
    times = [from_datetime(time, "time") for time in (right, right + DAY)]
    assert store.engine.workspace.meta.undated == dict(zip((talk.state.id for talk in talks[1:]), times, strict=True))


def test_of_very_many_without_a_time_some_are_counted_first_and_then_the_others(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them go, in the end."""
    monkeypatch.setattr(_sweeping, "_UNDATED", 2)
    right = machine.wall
    store = quietly(opened(), RetentionPolicy(7))
    machine.wall = datetime(1970, 1, 1, 0, 5, tzinfo=UTC)
    many(store, 5)
    machine.wall = right
    found = []
    for _ in range(24):
        swept(store)
        found.append(len(left(store)))
        machine.passes(DAY)
    assert found == [5] * 7 + [3] * 7 + [1] * 7 + [0] * 3


def test_whoever_saw_it_first_is_believed(opened: Opened) -> None:
    store = opened(maintenance=False)
    talk = said(store).state.id
    for now in (5, 9):
        _sweeping.remember(store.engine, [talk], now)
    assert store.engine.workspace.meta.undated == {talk: 5}


def test_the_machine_has_such_a_clock() -> None:
    assert from_datetime(DATED, "dated") == _schedule._DATED
    ticks = _schedule.ticks_beside(machine=True)
    assert ticks is not None
    before = ticks.now()
    assert 0 < before <= ticks.now()
    if sys.platform == "linux":
        assert len(ticks.boot) == 36
        assert _schedule.Ticks().boot == ticks.boot
    assert _schedule.ticks_beside(machine=False) is None


# -- being recorded


def test_a_conversation_that_is_being_recorded_here_is_left_alone(opened: Opened, machine: Machine) -> None:
    store = quietly(opened())
    talk = said(store)
    machine.passes(30 * DAY)
    store.engine.recorded[talk.state.id] = 1
    (item,) = store.plan_sweep().items
    assert (item.action, item.reason) == ("keep", "being-recorded")
    assert "1 due, but being recorded" in store.plan_sweep().explain()
    swept(store)
    assert store.sweep().skipped == ((talk.id, "being-recorded"),)
    assert left(store) == {talk.id}
    del store.engine.recorded[talk.state.id]
    swept(store)
    assert left(store) == set()


@pytest.mark.parametrize("protected", [True, False])
def test_an_answer_that_another_process_keeps_as_it_comes_protects_its_conversation(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """The control does not look for it. Nor does it help for ever: whoever kept it may have been killed."""
    store, other = quietly(opened()), opened(maintenance=False)
    talk = other.conversation(said(store).id)
    machine.passes(30 * DAY)
    keep(talk.state, new_key(talk.state.row.head or 0), [Message.assistant("It is")])
    if not protected:
        monkeypatch.setattr(_sweeping, "_being_recorded", lambda *_: False)
    machine.passes(4 * MINUTE)
    swept(store)
    assert left(store) == ({talk.id} if protected else set())
    machine.passes(2 * MINUTE)
    swept(store)
    assert left(store) == set()


@pytest.mark.parametrize("protected", [True, False])
def test_a_question_that_a_model_thinks_about_protects_its_conversation_for_an_hour(
    opened: Opened, machine: Machine, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """In another process, before the first piece has come: whoever records it has left a mark. The control does not
    look for it."""
    store, other = opened(), opened(maintenance=False)
    store.engine.workspace.on_rules_changed = lambda: None
    talk = other.conversation(said(store).id)
    expiring(talk, machine.wall + 10 * MINUTE)
    keep_snapshot(other.engine, talk.id, {"asked": True})
    if not protected:
        monkeypatch.setattr(_sweeping, "MARK_KEY", b"nothing of the kind")
    machine.passes(50 * MINUTE)
    swept(store)
    assert left(store) == ({talk.id} if protected else set())
    machine.passes(20 * MINUTE)
    swept(store)
    assert left(store) == set()


def test_an_answer_that_begins_to_come_between_the_plan_and_the_purge_keeps_a_conversation(
    opened: Opened, machine: Machine
) -> None:
    store, other = opened(maintenance=False), opened(maintenance=False)
    talk = other.conversation(said(store).id)
    machine.passes(30 * DAY)

    def answer(done: int, total: int) -> None:
        if (done, total) == (0, 1):
            keep(talk.state, new_key(talk.state.row.head or 0), [Message.assistant("It is")])

    report = store.sweep(POLICY, progress=answer)
    assert (report.swept, report.skipped) == ((), ((talk.id, "being-recorded"),))
