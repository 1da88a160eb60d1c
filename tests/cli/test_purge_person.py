"""`hitherto purge --participant`, `--metadata` and `--key-prefix`, in real processes.

Requirements: K1, C16 as far as a command does it.
"""

import json

import pytest

from hitherto import Message
from hitherto.records import Participant, Records

from ..support.command import COMMAND, Open, World


def start(world: World, owner: str, *, key: str | None = None, kind: str = "chat", title: str = "") -> str:
    """Make a conversation; its id."""
    with world.store(maintenance=False) as store:
        talk = store.ensure(key or f"{owner}/1", kind=kind, metadata={"owner": owner, "app": "a"}, title=title)
        talk.append(Message.user(f"zanzibarquux said {owner}"))
        Records(store).update(talk.id, participants=[Participant(owner, "user")])
        return talk.id


def remaining(world: World) -> set[str]:
    with world.store(maintenance=False) as store:
        return {info.id for kind in ("chat", "adk") for info in store.conversations(limit=1000, kind=kind)}


@pytest.fixture
def ids(world: World) -> tuple[str, str, str]:
    """Two conversations of ada, one of them of another kind, and one of bob."""
    return (
        start(world, "ada", title="Failing build"),
        start(world, "ada", kind="adk"),
        start(world, "bob"),
    )


@pytest.mark.parametrize(
    "selectors",
    [("--participant", "ada"), ("--metadata", "owner=ada", "--metadata", "app=a"), ("--key-prefix", "ada/")],
    ids=["participant", "metadata", "key prefix"],
)
def test_everything_of_one_person_goes_after_its_plan(
    world: World, ids: tuple[str, ...], selectors: tuple[str, ...]
) -> None:
    done = world.command("purge", *selectors)
    assert done.returncode == 2  # nobody can be asked
    assert f"{ids[0]} Failing build: 1 message, last active" in done.stderr
    assert f"{ids[1]}: adk, 1 message, last active" in done.stderr
    assert ids[2] not in done.stderr
    assert remaining(world) == set(ids)
    assert any(b"said ada" in path.read_bytes() for path in world.place.parent.iterdir())  # the control
    done = world.command("purge", *selectors, "--yes")
    assert (done.returncode, set(done.stdout.split())) == (0, set(ids[:2]))
    assert done.stderr.endswith("destroyed: 2 conversations\n")
    assert remaining(world) == {ids[2]}
    assert not any(b"said ada" in path.read_bytes() for path in world.place.parent.iterdir())


def test_the_report_as_json_has_the_ids(world: World, ids: tuple[str, ...]) -> None:
    done = world.command("purge", "--metadata", "owner=ada", "--yes", "--json", "--reason", "privacy-policy-change")
    report = json.loads(done.stdout)
    assert (report["conversation"], report["purged"], report["reason"]) == (None, 2, "privacy-policy-change")
    assert set(report["ids"]) == set(ids[:2])
    assert list(report) == [
        "conversation", "reason", "started_at", "completed_at", "purged", "ids", "actor", "failures",
        "scrub_pending",
    ]  # fmt: skip


def test_a_dry_run_prints_the_plan_and_destroys_nothing(world: World, ids: tuple[str, ...]) -> None:
    done = world.command("purge", "--participant", "ada", "--dry-run")
    assert done.returncode == 0
    assert [row[:36] for row in done.stdout.splitlines()] == [ids[1], ids[0]]
    assert done.stderr == "would be destroyed: 2 conversations\n"
    plan = json.loads(world.command("purge", "--participant", "ada", "--dry-run", "--json").stdout)
    assert plan["would_purge"] == 2
    assert plan["conversations"][1].items() >= {
        "conversation": ids[0], "kind": "chat", "title": "Failing build", "messages": 1, "stays": None
    }.items()  # fmt: skip
    assert remaining(world) == set(ids)


def test_selectors_given_together_must_all_fit(world: World, ids: tuple[str, ...]) -> None:
    done = world.command("purge", "--participant", "ada", "--key-prefix", "bob/", "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["purged"]) == (0, 0)
    assert remaining(world) == set(ids)


def test_if_nothing_matches_that_is_said(world: World, ids: tuple[str, ...]) -> None:
    done = world.command("purge", "--participant", "eve")  # no question, so no --yes
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "nothing matches\ndestroyed: 0 conversations\n"
    done = world.command("purge", "--participant", "eve", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["purged"], report["ids"], report["failures"]) == (0, 0, [], [])
    done = world.command("purge", "--participant", "eve", "--dry-run", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"would_purge": 0, "conversations": []})
    assert remaining(world) == set(ids)


def test_a_conversation_on_hold_stays_and_the_others_go(world: World, ids: tuple[str, ...]) -> None:
    assert world.command("hold", ids[0]).returncode == 0
    done = world.command("purge", "--participant", "ada", "--yes", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["ids"]) == (1, [ids[1]])
    assert report["failures"] == [{"id": ids[0], "error": f"conversation {ids[0]} is on hold"}]
    assert f"stays: {ids[0]}: it is on hold" in done.stderr
    assert remaining(world) == {ids[0], ids[2]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("@", "--participant", "ada"), "ids name conversations"),
        ((), "give an ID"),
        (("--participant", "", "--yes"), "not empty"),
        (("--key-prefix", "", "--yes"), "not empty"),
        (("--metadata", "ada", "--yes"), "KEY=VALUE"),
        (("--metadata", "owner=ada", "--metadata", "owner=bob", "--yes"), "two values for one key"),
    ],
)
def test_what_does_not_say_whose_is_refused(
    world: World, ids: tuple[str, ...], given: tuple[str, ...], said: str
) -> None:
    done = world.command("purge", *given)
    assert done.returncode == 2
    assert said in done.stderr
    assert remaining(world) == set(ids)


def test_if_asked_only_listed_conversations_go_and_new_ones_are_named(
    world: World, ids: tuple[str, ...], terminal: Open
) -> None:
    shown = terminal(command=[*COMMAND, "purge", "--metadata", "owner=ada"])
    shown.read("[y/N]")
    new = start(world, "ada", key="ada/2")
    shown.press("y\n")
    shown.read("run the command again")
    assert f"stays: {new}: " in shown.plain
    assert shown.end() == 1
    assert remaining(world) == {new, ids[2]}


def test_on_a_no_nothing_goes(world: World, ids: tuple[str, ...], terminal: Open) -> None:
    shown = terminal(command=[*COMMAND, "purge", "--key-prefix", "ada/"])
    shown.read("[y/N]")
    shown.press("n\n")
    assert shown.end() == 130
    assert remaining(world) == set(ids)


def test_titles_are_harmless_and_long_plans_are_short(world: World) -> None:
    for n in range(12):
        start(world, "ada", key=f"ada/{n}", title="\x1b[2Jboo")
    done = world.command("purge", "--key-prefix", "ada/")
    assert "\x1b" not in done.stderr
    assert done.stderr.count(" boo") + done.stderr.count("[2Jboo") >= 10
    assert "and 2 more; --dry-run prints them all" in done.stderr
    assert len(world.command("purge", "--key-prefix", "ada/", "--dry-run").stdout.splitlines()) == 12
