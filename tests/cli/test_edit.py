"""`hitherto search`, `fork`, `rename`, `label`, `hold`, `release`, `purge` and `quarantine`, in real processes."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest

from hitherto import Key, Message
from hitherto._erasure.purging import PURGE_REASONS
from hitherto.cli import _search

from ..support.command import COMMAND, Open, World


@pytest.fixture
def ids(world: World) -> list[str]:
    """A conversation in this folder: the ids of its four messages, then its own."""
    with world.store() as store:
        talk = store.start(title="Failing build", project=str(world.here))
        said = [
            Message.user("Why does the build fail?"),
            Message.assistant("An unused import."),
            Message.user("And the tests?"),
            Message.assistant("They pass, but for one \x1b[31mred\u202e import."),
        ]
        return [*(message.id for message in talk.extend(said)), talk.id]


# -- search


def test_a_search_shows_where_and_what_newest_first(world: World, ids: list[str]) -> None:
    done = world.command("search", "import")
    lines = done.stdout.splitlines()
    assert [line[:6] for line in lines[::2]] == [ids[3], ids[1]]
    assert lines[0].endswith("[ASSISTANT] Failing build")
    assert lines[3] == "    An unused import."
    assert lines[1] == "    They pass, but for one ␛[31mred<U+202E> import."
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_found_is_marked_on_a_terminal(world: World, ids: list[str], terminal: Open) -> None:
    shown = terminal(command=[*COMMAND, "search", "unused"], size=(80, 40))
    assert shown.end() == 0
    assert "An \x1b[1;33munused\x1b[0m import." in shown.shown


def test_nothing_found_is_an_exit_code_of_its_own(world: World, ids: list[str]) -> None:
    done = world.command("search", "elephant")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "nothing was found\n")
    assert world.command("search", "elephant", "--json").returncode == 3


def test_filters_choose_among_what_is_found(world: World, ids: list[str]) -> None:
    with world.store() as store:
        other = store.start(title="Elsewhere", project="/elsewhere").append(Message.user("Another import"))

    def find(*given: str) -> list[str]:
        done = world.command("search", "import", "--json", *given)
        return [json.loads(line)["message_id"] for line in done.stdout.splitlines()]

    assert find() == [other.id, ids[3], ids[1]]
    assert find("--role", "user") == [other.id]
    assert find("--here") == [ids[3], ids[1]]
    assert find("--project", "/elsewhere") == [other.id]
    assert find("--conversation", ids[4][:8]) == [ids[3], ids[1]]
    assert find("--conversation", "@") == [ids[3], ids[1]]
    assert find("--limit", "1") == [other.id]
    assert find("--since", "1h") == find()
    assert find("--until", "yesterday") == []
    assert find("--since", "2999-01-01") == []
    assert find("--order", "best")[0] in find()


def test_fields_of_a_hit_are_those_that_are_documented(world: World, ids: list[str]) -> None:
    hit = json.loads(world.command("search", "unused", "--json").stdout)
    assert list(hit) == ["message_id", "conversation", "role", "created_at", "snippet", "spans", "score", "tier"]
    start, end = hit["spans"][0]
    assert hit["snippet"][start:end] == "unused"


@pytest.mark.parametrize(
    "given",
    [
        ("x", "--since", "soon"),
        ("x", "--here", "--project", "/x"),
        ('"x', "--mode", "match"),
        (),
        ("x", "--limit", "0"),
    ],
)
def test_a_search_that_cannot_be_understood_is_a_usage_error(world: World, ids: list[str], given: tuple[str]) -> None:
    done = world.command("search", *given)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_times_are_read_as_people_write_them() -> None:
    now = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
    assert _search._moment("2w", now) == now - timedelta(weeks=2)
    assert _search._moment("2026-01-02", now) == datetime(2026, 1, 2, tzinfo=UTC)
    assert _search._moment("2026-01-02t03:04+01:00", now) == datetime(2026, 1, 2, 2, 4, tzinfo=UTC)
    for nonsense in ("", "d", "-1d", "²d", "1y", "9999999999w"):
        with pytest.raises((ValueError, OverflowError)):
            _search._moment(nonsense, now)


def test_a_sealed_store_is_searched_with_its_key(world: World) -> None:
    key = Key.generate()
    key.to_file(world.root / "key")
    with world.store(key=key) as store:
        store.start().append(Message.user("a hidden treasure"))
    assert "treasure" in world.command("search", "hidden", "--key", f"file:{world.root}/key").stdout
    assert world.command("search", "hidden").returncode == 6


# -- fork


def test_the_next_chat_goes_on_from_a_fork(world: World, ids: list[str]) -> None:
    done = world.command("fork", ids[1], "--label", "try")
    assert done.returncode == 0
    begun = done.stdout.strip()
    world.service.pieces = ["On a branch."]
    assert world.run("Another way?").returncode == 0
    assert world.service.asked()[-3:] == [
        ("user", "Why does the build fail?"), ("assistant", "An unused import."), ("user", "Another way?")
    ]  # fmt: skip
    with world.store() as store:
        talk = store.conversation(ids[4])
        assert talk.count == 7  # one event, a question, an answer: nothing is copied
        assert store.message(begun).label == "try"
        assert {branch.id for branch in talk.branches()} == {ids[3], talk.head}


def test_a_fork_can_be_given_a_life_of_its_own(world: World, ids: list[str]) -> None:
    done = world.command("fork", ids[1], "--detach", "--title", "Alone")
    with world.store() as store:
        alone = store.conversation(done.stdout.strip())
        assert (alone.title, alone.count) == ("Alone", 2)
    made = json.loads(world.command("fork", ids[1], "--json").stdout)
    assert (made["conversation"], made["from"]) == (ids[4], ids[1])
    assert world.command("fork", ids[1], "--title", "x").returncode == 2
    assert world.command("fork", ids[1], "--detach", "--label", "x").returncode == 2


def test_nothing_can_be_forked_where_nothing_was_said(world: World) -> None:
    with world.store() as store:
        store.start(project=str(world.here))
    assert world.command("fork", "@").returncode == 2


# -- names


def test_a_conversation_is_renamed_and_a_message_labelled(world: World, ids: list[str]) -> None:
    done = world.command("rename", ids[1], "New \x1b[31mtitle")
    assert done.stderr == f"renamed {ids[4][:8]}, which was called Failing build\n"
    assert world.command("label", ids[1][:5], "good").returncode == 0
    with world.store(read_only=True) as store:
        assert store.conversation(ids[4]).title == "New \x1b[31mtitle"
        assert store.message(ids[1]).label == "good"
    assert world.command("label", ids[1], "--remove").returncode == 0
    with world.store(read_only=True) as store:
        assert store.message(ids[1]).label is None
    assert world.command("label", ids[1]).returncode == 2
    assert world.command("label", ids[1], "x", "--remove").returncode == 2


# -- hold, purge, quarantine


def test_a_hold_keeps_a_conversation_until_it_is_released(world: World, ids: list[str]) -> None:
    assert world.command("hold", "@").returncode == 0
    done = world.command("purge", ids[4], "--yes")
    assert done.returncode == 5
    assert done.stderr.endswith(
        f"error: conversation {ids[4]} is on hold\nhint: hitherto release takes the hold away\n"
    )
    assert world.command("release", "@").returncode == 0
    assert world.command("purge", ids[4], "--yes").returncode == 0


def test_a_purge_says_its_plan_and_needs_a_yes(world: World, ids: list[str]) -> None:
    done = world.command("purge", "@")
    assert done.returncode == 2
    assert f"{ids[4][:8]} Failing build: 4 messages, 1 branch, last active" in done.stderr
    assert "--yes" in done.stderr
    assert world.command("purge", "@", "--dry-run").returncode == 0
    done = world.command("purge", "@", ids[1], "--yes")
    assert done.returncode == 2
    assert f"{ids[1]} is a message" in done.stderr  # whoever names one may mean that alone
    done = world.command("purge", "@", ids[4][:8], "--yes", "--json", "--reason", "privacy-policy-change")
    report = json.loads(done.stdout)  # two names of one conversation are one
    assert (report["conversation"], report["purged"], report["reason"]) == (ids[4], 1, "privacy-policy-change")
    assert report["ids"] == [ids[4]]
    assert list(report) == [
        "conversation", "reason", "started_at", "completed_at", "purged", "ids", "actor", "failures", "scrub_pending"
    ]  # fmt: skip
    assert world.command("purge", ids[4], "--yes").returncode == 4


def test_nothing_of_what_was_purged_is_left_in_any_file(world: World, ids: list[str]) -> None:
    assert world.command("search", "unused").returncode == 0
    assert any(b"unused" in path.read_bytes() for path in world.place.parent.iterdir())  # the control
    assert world.command("purge", "@", "--yes").returncode == 0
    assert not any(b"unused" in path.read_bytes() for path in world.place.parent.iterdir())


def test_every_reason_for_a_purge_can_be_given() -> None:
    from hitherto.cli._purge_verify import _REASONS

    assert _REASONS == PURGE_REASONS


def test_quarantine_is_listed_and_purged(world: World, ids: list[str]) -> None:
    assert world.command("quarantine", "list").stderr == "nothing is in quarantine\n"
    connection = apsw.Connection(str(world.place))
    connection.execute("UPDATE message SET body = zeroblob(length(body)) WHERE seq = (SELECT max(seq) FROM message)")
    connection.close()
    with world.store() as store:
        assert any(message.problem for message in store.messages())
    found = json.loads(world.command("quarantine", "list", "--json").stdout)
    assert (found["conversation"], found["message"]) == (ids[4], ids[3])
    assert list(found) == ["at", "conversation", "message", "problem"]
    assert f"{ids[4]}/{ids[3]}" in world.command("quarantine", "list", COLUMNS="120").stdout
    assert world.command("quarantine", "purge").returncode == 2
    assert world.command("quarantine", "purge", "--yes", "--older-than", "1").returncode == 0
    assert world.command("quarantine", "list").stdout
    assert world.command("quarantine", "purge", "--yes").returncode == 0
    assert world.command("quarantine", "list").stdout == ""
    assert world.command("verify").returncode == 0


def test_reference_to_home_is_not_needed(world: World, ids: list[str]) -> None:
    """In a folder that is gone, commands that need no folder still work."""
    gone = world.here / "gone"
    gone.mkdir()
    done = world.plain("sh", "-c", f"cd {gone}; rmdir {gone}; exec {' '.join(COMMAND)} search import")
    assert done.returncode == 0
    assert Path(world.place).exists()
