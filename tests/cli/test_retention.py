"""`hitherto retention`: the policy of a store, the due conversations, and their destruction.

Requirements: C13, C16, D10 as far as a command does it.
"""

import json
import time
from typing import Any

import pytest

import hitherto
from hitherto import Message, RetentionPolicy
from hitherto.cli import _retention

from ..support.command import COMMAND, Open, World

DAY = 86_400 * 1_000_000
KEY = b"k" * 32


def start(world: World, age: int, title: str = "", *, held: bool = False, **how: Any) -> str:
    """Make a conversation whose last message is so many days old; its id."""
    now = time.time_ns() // 1000
    with world.store(clock=lambda: now - age * DAY, **how) as store:
        talk = store.start(title=title)
        talk.append(Message.user("hi"))
        if held:
            talk.hold()
        return talk.id


def remaining(world: World, **how: Any) -> set[str]:
    with world.store(**how, maintenance=False) as store:  # looking is no reason to purge
        return {info.id for info in store.conversations(limit=1000)}


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


@pytest.fixture
def due(world: World) -> tuple[str, str, str]:
    """Two conversations that are due after 30 days, the first of them on hold, and a new one."""
    return (
        start(world, 40, "kept", held=True),
        start(world, 35, "Failing build"),
        start(world, 3, "new"),
    )


# -- show and set


def test_without_a_policy_everything_is_kept(world: World, due: tuple[str, ...]) -> None:
    done = world.command("retention", "show")
    assert (done.returncode, done.stdout, done.stderr) == (0, "off: everything is kept\n", "")
    (row,) = rows(world.command("retention", "show", "--json").stdout)
    assert row == {"days": None, "conversations": 3, "due": 0, "held": 0, "floor_days": None}


def policy(world: World, days: int) -> None:
    """Set a policy as if it had been set before the present conversations were due."""
    with world.store(maintenance=False) as store:
        store.set_retention(RetentionPolicy(days))


def test_a_policy_is_shown_with_how_many_would_go(world: World, due: tuple[str, ...]) -> None:
    policy(world, 30)
    shown = world.command("retention", "show").stdout.splitlines()
    assert shown == [
        "30 days after the last word",
        "1 of 3 conversations are due now; 1 more due, but on hold",
    ]
    (row,) = rows(world.command("retention", "show", "--json").stdout)
    assert row == {"days": 30, "conversations": 3, "due": 1, "held": 1, "floor_days": None}
    assert remaining(world) == set(due)


def test_a_policy_that_lets_something_go_shows_it_and_asks(world: World, due: tuple[str, ...]) -> None:
    held, old, new = due
    done = world.command("retention", "set", "30", said="y\n")
    assert done.returncode == 2
    assert "Failing build" in done.stderr
    assert "--yes" in done.stderr
    assert remaining(world) == set(due)
    assert world.command("retention", "show").stdout == "off: everything is kept\n"
    done = world.plain(*COMMAND, "retention", "set", "30", "--yes")
    assert (done.returncode, done.stdout) == (0, "")
    shown = done.stderr.splitlines()
    assert shown[0].startswith("1 of 3 conversations to purge: 30 days without a word")
    assert shown[1].startswith(f"purge {old}: last active ")
    assert shown[2:] == [f"left alone: {held}: on hold", "destroyed: 1"]
    assert remaining(world) == {held, new}
    assert world.command("retention", "set", "7").stderr == ""  # nothing more goes: nobody is asked


def test_a_command_that_writes_lets_go_of_what_is_due_by_itself(world: World, due: tuple[str, ...]) -> None:
    """A command gives a sweep a tenth of a second. If that is too little on a busy machine, the next one goes on."""
    held, _, new = due
    policy(world, 30)
    for n in range(20):
        assert world.command("rename", new, f"title {n}").returncode == 0
        if remaining(world) == {held, new}:
            break
    assert remaining(world) == {held, new}


def test_a_policy_without_a_number_is_30_days_and_one_that_lets_nothing_go_is_set_quietly(world: World) -> None:
    start(world, 3)
    for given, days in (([], 30), (["7"], 7), (["180"], 180), (["off"], None)):
        done = world.command("retention", "set", *given)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        with world.store() as store:
            assert store.retention == (None if days is None else RetentionPolicy(days))


@pytest.mark.parametrize("days", ["0", "3651", "30.5", ""])
def test_what_is_no_number_of_days_is_misuse(world: World, days: str) -> None:
    start(world, 3)
    for command in (["set", "--", days], ["run", "--days", days]):
        done = world.command("retention", *command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "error:" in done.stderr
        assert "hint:" in done.stderr
    with world.store() as store:
        assert store.retention is None


@pytest.mark.parametrize("days", ["3", "365"])
def test_days_that_are_not_recommended_are_taken_with_one_warning(world: World, days: str) -> None:
    start(world, 1)
    done = world.command("retention", "set", days)
    assert done.returncode == 0
    assert done.stderr.count("7 to 180 days are recommended") == 1
    with world.store() as store:
        assert store.retention == RetentionPolicy(int(days))
    assert "recommended" in world.command("retention", "run", "--days", days, "--dry-run").stderr


def test_the_numbers_that_the_command_takes_are_those_of_the_library() -> None:
    for days in (_retention._DAYS.min, _retention._DAYS.max):
        assert days is not None
        RetentionPolicy(int(days))
        for beyond in (int(days) - 1, int(days) + 1):
            if not _retention._DAYS.min <= beyond <= _retention._DAYS.max:  # type: ignore[operator]  # both are numbers
                with pytest.raises(hitherto.InvalidArgument):
                    RetentionPolicy(beyond)


def test_looking_leaves_no_trace(world: World, due: tuple[str, ...]) -> None:
    before = world.traces()
    for given in (["show"], ["show", "--json"], ["run", "--days", "30", "--dry-run"]):
        assert world.command("retention", *given).returncode == 0
    assert world.traces() == before


# -- run


def test_without_a_policy_a_run_is_misuse_and_says_what_to_do(world: World, due: tuple[str, ...]) -> None:
    for given in ([], ["--yes"], ["--dry-run"]):
        done = world.command("retention", "run", *given)
        assert (done.returncode, done.stdout) == (2, "")
        assert "no policy is set" in done.stderr
        assert "hint: hitherto retention set DAYS" in done.stderr
    assert remaining(world) == set(due)


def test_a_dry_run_prints_the_plan_and_destroys_nothing(world: World, due: tuple[str, ...]) -> None:
    held, old, new = due
    done = world.command("retention", "run", "--days", "30", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first.startswith("1 of 3 conversations to purge: 30 days without a word; 1 due, but on hold.")
    assert [row[: row.index(":")] for row in lines] == [f"purge {old}", f"keep {held}", f"keep {new}"]
    assert [row.endswith(title) for row, title in zip(lines, (": Failing build", ": kept"), strict=False)] == [True] * 2
    items = rows(world.command("retention", "run", "--days", "30", "--dry-run", "--json").stdout)
    assert [(i["conversation"], i["action"], i["reason"]) for i in items] == [
        (old, "purge", "expired"),
        (held, "keep", "held"),
        (new, "keep", "recent"),
    ]
    assert set(items[0]) == {"conversation", "active_at", "expires_at", "action", "reason"}
    assert items[0]["active_at"].endswith("Z")
    assert remaining(world) == set(due)


def test_a_run_shows_what_goes_and_destroys_it_and_names_what_is_on_hold(world: World, due: tuple[str, ...]) -> None:
    held, old, new = due
    policy(world, 30)
    done = world.plain(*COMMAND, "retention", "run", "--yes")
    assert (done.returncode, done.stdout) == (0, "")
    shown = done.stderr.splitlines()
    assert shown[1].startswith(f"purge {old}: last active ")
    assert shown[1].endswith(": Failing build")
    assert shown[2:] == [f"left alone: {held}: on hold", "destroyed: 1"]
    assert remaining(world) == {held, new}
    again = world.command("retention", "run")  # nothing to do: nobody is asked
    assert (again.returncode, again.stderr.splitlines()) == (
        0,
        [f"left alone: {held}: on hold", "nothing to destroy"],
    )


def test_a_run_reports_as_one_object(world: World, due: tuple[str, ...]) -> None:
    held, old, _ = due
    (row,) = rows(world.command("retention", "run", "--days", "30", "--yes", "--json").stdout)
    assert row.pop("started_at") <= row.pop("completed_at")
    skipped = [{"id": held, "reason": "held"}]
    rest = {
        "policy": {"days": 30},
        "failures": [],
        "scrub_pending": False,
        "reason": "retention-expired",
        "actor": None,
    }
    assert row == {"swept": [old], "skipped": skipped, **rest}
    (row,) = rows(world.command("retention", "run", "--days", "30", "--json").stdout)
    assert (row["swept"], row["skipped"]) == ([], skipped)


def test_where_nobody_can_be_asked_it_takes_yes(world: World, due: tuple[str, ...]) -> None:
    done = world.command("retention", "run", "--days", "30", said="y\n")
    assert done.returncode == 2
    assert "Failing build" in done.stderr  # what it is about
    assert "--yes" in done.stderr
    assert remaining(world) == set(due)


@pytest.mark.parametrize(("answer", "code"), [("y\r", 0), ("n\r", 130), ("\r", 130)])
def test_on_a_terminal_it_asks(world: World, terminal: Open, due: tuple[str, ...], answer: str, code: int) -> None:
    held, old, new = due
    shown = terminal(command=[*COMMAND, "retention", "run", "--days", "30"], size=(20, 10))
    shown.read("Destroy it for good? [y/N]")
    shown.press(answer)
    assert shown.end() == code
    assert remaining(world) == ({held, new} if code == 0 else {held, old, new})


def test_of_many_the_first_are_named(world: World) -> None:
    now = time.time_ns() // 1000
    with world.store(clock=lambda: now - 40 * DAY) as store:
        for n in range(40):
            store.start(title=f"number {n}")
    done = world.command("retention", "run", "--days", "30", "--yes")
    assert done.stderr.count("purge ") == _retention._FIRST
    assert "and 30 more; --dry-run prints them all" in done.stderr
    assert done.stderr.endswith("destroyed: 40\n")
    assert remaining(world) == set()


def test_titles_are_shown_harmless_and_cut(world: World) -> None:
    start(world, 40, "evil \x1b]0;x\x07\u202e\n" + "long " * 50)
    for given in (["--dry-run"], ["--yes"]):
        done = world.command("retention", "run", "--days", "30", *given)
        assert done.returncode == 0
        assert "evil \u241b]0;x\u2407<U+202E>" in done.stdout + done.stderr
        assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout + done.stderr)


def test_a_sealed_store_has_its_policy_under_its_key(world: World) -> None:
    file = world.root / "secret.key"
    file.write_bytes(KEY)
    file.chmod(0o600)
    old = start(world, 40, "old", key=KEY)
    locked = world.command("retention", "show")
    assert locked.returncode == 6
    key = ["--key", f"file:{file}"]
    assert world.command("retention", "set", "60", *key).returncode == 0
    assert b"retention_days" not in world.place.read_bytes()
    assert world.command("retention", "show", *key).stdout.startswith("60 days")
    assert old in world.command("retention", "run", "--days", "30", "--yes", *key).stderr
    assert remaining(world, key=KEY) == set()


def test_each_workspace_is_swept_for_itself(world: World) -> None:
    ours, theirs = start(world, 40), start(world, 40, workspace="theirs")
    world.command("retention", "run", "--days", "30", "--yes", "--workspace", "theirs")
    assert (remaining(world), remaining(world, workspace="theirs")) == ({ours}, set())
    assert theirs != ours


def test_a_store_that_is_not_there_is_not_made(world: World) -> None:
    for given in (["show"], ["set", "30"], ["run", "--days", "30", "--yes"]):
        done = world.command("retention", *given)
        assert done.returncode == 1
        assert "there is no store" in done.stderr
    assert not world.place.exists()


def test_what_fails_is_named_and_is_exit_code_1(
    world: World, due: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The damage shows only when a conversation is read again, after the plan."""

    def broken(*_: object) -> None:
        raise hitherto.Damaged("it is damaged")

    with world.store() as store:
        plan = store.plan_sweep(RetentionPolicy())
        with monkeypatch.context() as patch:
            patch.setattr(store.engine, "read_consistently", broken)
            assert _retention._confirm_and_sweep(store, plan, yes=True, as_json=True) == 1
    out, err = capsys.readouterr()
    assert f"left alone: {due[1]}: it is damaged" in err
    assert rows(out)[0]["failures"] == [{"id": due[1], "error": "it is damaged"}]
    assert remaining(world) == set(due)
