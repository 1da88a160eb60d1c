"""`hitherto stats`, and `store.activity` below it: activity over time, counted from headers alone.

Requirements: STYLE on pipes.
"""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Key, Message
from hitherto.cli._stats import size

from ..support.command import COMMAND, Open, World

NOW = datetime.now(UTC)
TODAY = NOW.date()


def at(days_ago: float) -> Callable[[], int]:
    """A clock."""
    return lambda: int((NOW - timedelta(days=days_ago)).timestamp() * 1_000_000)


def fill(place: Path, **how: Any) -> None:
    """Three days: 40 and 3 days ago, and today."""
    for days_ago, pairs in ((40, 1), (3, 5), (0, 2)):
        with hitherto.open(place, clock=at(days_ago), **how) as store:
            talk = store.ensure("work", title="Work \x1b[31mred")
            talk.refresh()
            talk.follow()
            for n in range(pairs):
                talk.append(Message.user(f"question {n}"))
                talk.append(Message.assistant("answer " * 50))
    with hitherto.open(place, clock=at(3), **how) as store:
        store.start(title="Small").append(Message.user("x"))


def days(first: int, last: int, said: dict[date, dict[str, int]]) -> dict[date, dict[str, int]]:
    """Every day of a period, with the messages of each."""
    return {day: said.get(day, {}) for day in (TODAY - timedelta(days=n) for n in range(first, last - 1, -1))}


@pytest.mark.parametrize("secret", [None, b"k" * 32])
def test_activity_counts_messages_by_day_and_role(tmp_path: Path, secret: bytes | None) -> None:
    how: dict[str, Any] = {} if secret is None else {"key": Key(secret)}
    place = tmp_path / "store.db"
    fill(place, **how)
    three, forty = TODAY - timedelta(days=3), TODAY - timedelta(days=40)
    said = {TODAY: {"user": 2, "assistant": 2}, three: {"user": 6, "assistant": 5}}
    with hitherto.open(place, clock=at(0), **how) as store:
        assert store.activity() == days(29, 0, said)
        assert store.activity(days=1) == {TODAY: {"user": 2, "assistant": 2}}
        assert store.activity(days=41) == days(40, 0, said | {forty: {"user": 1, "assistant": 1}})
    with hitherto.open(place, clock=at(35), **how) as store:  # what comes later, by its clock, is not counted
        assert store.activity(days=10) == days(44, 35, {forty: {"user": 1, "assistant": 1}})


@pytest.mark.parametrize("secret", [None, b"k" * 32])
def test_activity_goes_over_all_pages(secret: bytes | None) -> None:
    """More conversations than a page holds, and one with more messages."""
    key = None if secret is None else Key(secret)
    with hitherto.open("memory:", clock=at(0), key=key) as store:
        long = store.start()
        store.save([Message.user("x")] * 2100, conversation=long)
        for _ in range(410):
            store.save([Message.assistant("y")])
        assert store.activity(days=1) == {TODAY: {"user": 2100, "assistant": 410}}


def test_a_plain_store_has_its_backend_sum_up_and_reads_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "store.db"
    fill(place)
    with hitherto.open(place) as store:
        stats, activity = store.stats(), store.activity()
        for verb in ("page", "lookup", "scan", "messages"):
            monkeypatch.setattr(store.backend, verb, lambda *_, **__: pytest.fail("it reads rows"))
        assert (store.stats(), store.activity()) == (stats, activity)


def test_activity_reads_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, key = tmp_path / "store.db", Key(b"k" * 32)
    fill(place, key=key)
    with hitherto.open(place, key=key) as store:
        scanned = store.backend.scan
        asked: list[bool] = []

        def watch(*given: Any, **how: Any) -> object:
            asked.append(how["bodies"])
            return scanned(*given, **how)

        monkeypatch.setattr(store.backend, "scan", watch)
        store.activity()
    assert asked
    assert not any(asked)


@pytest.mark.parametrize("wrong", [0, -1, 10_001, True, 1.5, "7"])
def test_days_are_a_number(wrong: Any) -> None:
    with hitherto.open("memory:") as store, pytest.raises(hitherto.InvalidArgument):
        store.activity(days=wrong)


def test_stats_as_one_object(world: World) -> None:
    fill(world.place)
    done = world.command("stats", "--json", "--days", "4")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    with world.store() as store:
        found = store.stats()
        largest = [info.id for info in store.conversations()]
    assert list(said) == [
        "conversations", "messages", "content_bytes", "stored_bytes", "approximate_tokens", "oldest", "newest", "days",
        "largest",
    ]  # fmt: skip
    assert (said["conversations"], said["messages"]) == (2, 17)
    assert said["content_bytes"] == found.content_bytes
    assert datetime.fromisoformat(said["newest"]) == found.newest
    assert [day["messages"] for day in said["days"]][-4:] == [11, 0, 0, 4]
    assert said["days"][-1] == {"date": str(TODAY), "messages": 4, "roles": {"user": 2, "assistant": 2}}
    assert [one["id"] for one in said["largest"]] == largest
    assert said["largest"][0]["title"] == "Work \x1b[31mred"
    assert "\x1b" not in done.stdout


def test_stats_in_words_and_small_charts(world: World) -> None:
    fill(world.place)
    done = world.command("stats", "--days", "4", COLUMNS="70")
    lines = done.stdout.splitlines()
    assert lines[0] == "2 conversations, 17 messages"
    assert f"15 messages from {TODAY - timedelta(days=3)} to {TODAY}, at most 11 in a day" in lines
    assert "█  ▃" in lines
    assert any(text.startswith("user      8 █") for text in lines)
    assert any(text.startswith("assistant 7 █") for text in lines)
    assert "Work ␛[31mred" in lines[-2]
    assert lines[-1].endswith("Small")
    assert max(map(len, lines)) <= 70


def test_charts_have_a_form_in_ascii(world: World) -> None:
    fill(world.place)
    done = world.plain(*COMMAND, "stats", "--days", "4", PYTHONIOENCODING="ascii")
    assert "@  -" in done.stdout.splitlines()
    assert done.stdout.isascii()


def test_a_narrow_terminal_is_respected(world: World, terminal: Open) -> None:
    fill(world.place)
    shown = terminal(command=[*COMMAND, "stats", "--days", "90"], size=(20, 100))
    assert shown.end() == 0
    lines = [text.replace("\x1b[36m", "").replace("\x1b[0m", "") for text in shown.shown.splitlines()]
    assert max(map(len, lines)) <= 20
    assert "2 conversations, 17 messages" in " ".join(lines)  # a number is never cut


def test_an_empty_store_and_one_of_long_ago_have_stats(world: World) -> None:
    world.store().close()
    done = world.command("stats")
    assert done.returncode == 0
    assert done.stdout.startswith("0 conversations, 0 messages\n")
    with world.store(clock=at(400)) as store:
        store.start(title="old").append(Message.user("x"))
    done = world.command("stats")
    assert done.returncode == 0
    assert "1 conversation, 1 message\n" in done.stdout
    assert "0 messages from" in done.stdout


def test_a_missing_store_has_none(world: World) -> None:
    done = world.command("stats")
    assert done.returncode == 1
    assert "there is no store" in done.stderr
    assert world.command("stats", "--days", "0").returncode == 2


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (10**13, "10000.0 GB")]
)
def test_sizes_are_shown_as_people_read_them(count: int, shown: str) -> None:
    assert size(count) == shown
