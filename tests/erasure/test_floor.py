"""The retention floor: nothing is destroyed before it, but by name and for a reason.

Requirements: K2, D10.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import hitherto
from hitherto import Key, Message, RetentionPolicy, Store, acting, erasures, formats
from hitherto._erasure import schedule
from hitherto.errors import BelowFloor, InvalidArgument
from hitherto.events import Event, FloorChanged
from hitherto.records import Records

from ..support.command import World

DAY = 86_400 * 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_780_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["plain", "sealed"])
def store(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Iterator[Store]:
    key = Key.generate() if request.param == "sealed" else None
    with hitherto.open(tmp_path / "c.db", key=key, clock=clock, maintenance=False) as store:
        yield store


def said(store: Store) -> str:
    talk = store.start(metadata={"owner": "ada"})
    talk.append(Message.user("hi"))
    return talk.id


def in_days(clock: Clock, days: float) -> datetime:
    return datetime.fromtimestamp(clock.now / 1e6, UTC) + timedelta(days=days)


WAYS: dict[str, Callable[[Store, str], object]] = {
    "purge": lambda store, id: store.purge(id, reason="user-requested"),
    "corrupt": lambda store, id: store.purge(id, reason="corruption-detected"),
    "record": lambda store, id: Records(store).delete(id, reason="user-requested"),
    "messages": lambda store, id: store.delete([store.conversation(id).thread()[0].id], recursive=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_younger_than_the_floor_is_not_destroyed(store: Store, clock: Clock, way: str) -> None:
    """K2."""
    store.set_retention_floor(10)
    id = said(store)
    with pytest.raises(BelowFloor, match="younger than the floor of 10 days"):
        WAYS[way](store, id)
    assert store.conversation(id).count == 1
    clock.now += 11 * DAY
    WAYS[way](store, id)


def test_a_sweep_keeps_it_and_says_so_whatever_the_policy_or_an_expiry_says(store: Store, clock: Clock) -> None:
    store.set_retention_floor(10)
    young, own = said(store), said(store)
    Records(store).update(own, retention={"expires_at": in_days(clock, 1)})
    plan = store.plan_sweep(RetentionPolicy(7), now=in_days(clock, 8))
    assert {(item.conversation, item.reason) for item in plan.items} == {(young, "floor"), (own, "floor")}
    assert "2 due, but younger than the retention floor" in plan.explain()
    report = store.sweep(RetentionPolicy(7), now=in_days(clock, 8000))  # a caller's time is no way around it
    assert (report.swept, dict(report.skipped)) == ((), {young: "floor", own: "floor"})
    clock.now += 11 * DAY
    assert set(store.sweep(RetentionPolicy(7)).swept) == {young, own}


def test_purges_of_many_leave_it_and_name_it(store: Store) -> None:
    id = said(store)
    store.set_retention_floor(10)
    assert [target.stays for target in store.plan_purge(metadata={"owner": "ada"}).targets] == ["floor"]
    report = store.purge_matching(metadata={"owner": "ada"}, reason="user-requested")
    assert (report.purged, [failure.id for failure in report.failures]) == ((), [id])
    assert [failure.id for failure in Records(store).purge_all(reason="workspace-reset").failures] == [id]


def test_the_override_takes_a_name_and_a_reason_and_is_in_report_and_ledger(store: Store) -> None:
    ids = [said(store), said(store)]
    store.set_retention_floor(10)
    with pytest.raises(InvalidArgument, match="for a reason"):
        acting("dpo", override_floor=True).__enter__()
    with acting("dpo", why="court order 12"), pytest.raises(BelowFloor):
        store.purge(ids[0], reason="user-requested")
    with acting("dpo", why="court order 12", override_floor=True):
        assert len(store.plan_purge(metadata={"owner": "ada"}).purges) == 2
        report = store.purge(ids[0], reason="user-requested")
        assert store.purge_matching(metadata={"owner": "ada"}, reason="user-requested").purged == (ids[1],)
    assert report.actor is not None
    assert (report.actor.why, report.actor.override_floor) == ("court order 12", True)
    assert all(entry.actor == report.actor for entry in erasures.entries(store))


def test_what_was_imported_counts_from_its_import(store: Store, clock: Clock, tmp_path: Path) -> None:
    lines = {"type": "user", "uuid": "u1", "sessionId": "s1", "parentUuid": None, "timestamp": "2025-01-01T00:00:00Z",
             "cwd": "/x", "version": "1", "message": {"role": "user", "content": "hi"}}  # fmt: skip
    (tmp_path / "s1.jsonl").write_text(json.dumps(lines) + "\n")
    formats.load(tmp_path / "s1.jsonl", store, format="claude-code")
    store.set_retention_floor(10)
    (info,) = store.conversations(include_expired=True)
    assert info.active_at.year == 2025
    with pytest.raises(BelowFloor):
        store.purge(info.id, reason="user-requested")
    clock.now += 11 * DAY
    store.purge(info.id, reason="user-requested")


def test_only_raising_it_needs_no_reason_and_each_change_is_told(store: Store) -> None:
    heard: list[Event] = []
    store.subscribe(heard.append)
    store.set_retention_floor(10)
    store.set_retention_floor(10)
    store.set_retention_floor(20)
    for days in (10, None):
        with pytest.raises(InvalidArgument, match="lowered by name, and with a reason"):
            store.set_retention_floor(days)
        with acting("dpo"), pytest.raises(InvalidArgument, match="reason"):
            store.set_retention_floor(days)
    assert (store.retention_floor,) == (20,)
    with acting("dpo", why="the law has changed"):
        store.set_retention_floor(None)
    assert store.retention_floor is None
    assert store.wait_for_listeners()
    told = [event for event in heard if isinstance(event, FloorChanged)]
    assert [(event.days, event.before) for event in told] == [(10, None), (20, 10), (None, 20)]
    assert [None if event.actor is None else event.actor.why for event in told] == [None, None, "the law has changed"]


def test_policy_and_floor_do_not_contradict_each_other(store: Store) -> None:
    store.set_retention(RetentionPolicy(30))
    with pytest.raises(InvalidArgument, match="destroys what a floor of 31 days keeps"):
        store.set_retention_floor(31)
    store.set_retention_floor(30)
    with pytest.raises(InvalidArgument, match="a policy of 29 days"):
        store.set_retention(RetentionPolicy(29))
    assert (store.retention, store.retention_floor) == (RetentionPolicy(30), 30)
    for days in (0, -1, 40_000, 1.5, True):
        with pytest.raises(InvalidArgument, match="a retention floor is 1 to"):
            store.set_retention_floor(days)  # type: ignore[arg-type]  # that is the test


def test_other_processes_go_by_it_too(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as one, hitherto.open(tmp_path / "c.db") as other:
        id = said(one)
        other.set_retention_floor(10)
        with pytest.raises(BelowFloor):
            one.purge(id, reason="user-requested")
        assert one.retention_floor == 10


def test_a_clock_that_jumps_ahead_frees_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of the machine is put forward by a year, while the store is open."""
    from hitherto._engine import context

    with hitherto.open(tmp_path / "c.db", maintenance=False) as store:
        store.set_retention_floor(10)
        id = said(store)
        real = store.engine.clock
        monkeypatch.setattr(store.engine, "clock", lambda: real() + 365 * DAY)
        assert store.engine.schedule.behind_seconds > 300 * 86_400
        with pytest.raises(BelowFloor):
            store.purge(id, reason="user-requested")
        monkeypatch.setattr(schedule.Schedule, "now", lambda _: context.system_clock() + 365 * DAY)
        store.purge(id, reason="user-requested")  # the control: by that clock it is old enough


def test_the_command_line_sets_shows_and_overrides_it(world: World) -> None:
    with world.store(maintenance=False) as store:
        id = said(store)
    assert world.command("retention", "floor", "10").returncode == 0
    assert "nothing is destroyed in the first 10 days after the last word" in world.command("retention", "show").stdout
    assert json.loads(world.command("retention", "show", "--json").stdout)["floor_days"] == 10
    done = world.command("purge", id, "--yes")
    assert (done.returncode, "younger than the floor of 10 days" in done.stderr) == (5, True)
    assert "--override-floor" in done.stderr
    assert world.command("purge", id, "--yes", "--override-floor").returncode == 2
    assert world.command("retention", "floor", "off").returncode == 2
    who = ("--actor", "dpo", "--why", "court order 12")
    assert world.command("purge", id, "--yes", "--override-floor", *who).returncode == 0
    assert world.command("retention", "floor", "off", *who).returncode == 0
    assert "nothing is destroyed" not in world.command("retention", "show").stdout
