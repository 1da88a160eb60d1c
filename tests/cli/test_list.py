"""`hitherto list`, times, and ids that were mistyped."""

import json
import os
import re
import time

import pytest

import hitherto
from hitherto import Message
from hitherto.cli import _list
from hitherto.listing import ConversationInfo

from ..support.command import COMMAND, Open, World


def fill(world: World, count: int) -> list[str]:
    with world.store() as store:
        talks = [store.start(title=f"talk {n}", project=str(world.here)) for n in range(count)]
        for talk in talks:
            talk.extend([Message.user("q"), Message.assistant("a")])
        return [talk.id for talk in talks]


def test_a_conversation_is_a_line_and_the_newest_comes_first(world: World) -> None:
    ids = fill(world, 3)
    with world.store() as store:
        talk = store.conversation(ids[2])
        talk.fork(at=talk.thread()[0].id).append(Message.assistant("other"))
    lines = world.command("list").stdout.splitlines()
    assert [re.sub(r"\S+ \S+ +0m", "TIME", line[9:]) for line in lines] == [
        "TIME  3 messages, 2 branches  talk 2",
        "TIME  2 messages    talk 1",
        "TIME  2 messages    talk 0",
    ]
    assert [line[:8] for line in lines] == [id[:8] for id in reversed(ids)]
    assert world.command("ls", "--limit", "1").stdout.splitlines() == lines[:1]
    rows = [json.loads(line) for line in world.command("list", "--json").stdout.splitlines()]
    assert (rows[0]["id"], rows[0]["count"], rows[0]["branches"]) == (ids[2], 3, 2)
    assert "messages" not in rows[0]


def test_a_store_without_conversations_says_how_to_begin(world: World) -> None:
    world.store().close()
    done = world.command("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "hitherto chat begins one" in done.stderr


def test_an_empty_list_says_where_the_conversations_are(world: World) -> None:
    with world.store() as store:
        store.ensure("thread-7", kind="langgraph").append(Message.user("from a graph"))
    assert "1 conversation of another kind: --kind langgraph?" in world.command("list").stderr
    fill(world, 1)
    done = world.command("list", "--metadata", "owner=nobody")
    assert (done.stdout, done.stderr) == ("", "no conversation fits; hitherto list without a filter shows all\n")


def test_another_kind_is_listed_when_it_is_asked_for(world: World) -> None:
    fill(world, 1)
    with world.store() as store:
        store.ensure("thread-7", kind="langgraph").append(Message.user("from a graph"))
    assert "thread-7" not in world.command("list").stdout
    assert world.command("list", "--kind", "langgraph").stdout.endswith("1 message     thread-7\n")
    assert "from a graph" not in world.command("conversation", "list").stdout
    for more in ((), ("--limit", "1"), ("--json",)):
        assert "from a graph" in world.command("conversation", "list", "--kind", "langgraph", *more).stdout
    assert "of the kind other" in world.command("list", "--kind", "other").stderr
    wrong = world.command("list", "--kind", "No Kind")
    assert (wrong.returncode, "a kind is a lowercase word" in wrong.stderr) == (2, True)


def test_the_first_line_is_printed_before_the_last_conversation_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 3)
    read: list[object] = []
    count = _list._count_branches

    def note(store: hitherto.Store, info: ConversationInfo) -> int:
        read.append(info)
        return count(store, info)

    monkeypatch.setattr(_list, "_count_branches", note)
    with world.store() as store:
        lines = _list._lines(store, iter(store.conversations()))
        assert "talk 2" in next(lines)
        assert len(read) == 1


def test_times_are_local_and_utc_when_asked(world: World) -> None:
    """The zone is 5 hours and a half from UTC, so that neither can be taken for the other."""
    ids = fill(world, 1)
    world.env["TZ"] = "XXX-05:30"
    with world.store() as store:
        at = store.conversation(ids[0]).thread()[-1].created_at
    there = time.strftime("%Y-%m-%d %H:%M", time.gmtime(int(at.timestamp()) + 19_800))
    for command in (["list"], ["log"], ["show"], ["conversation", "list"], ["branches"]):
        shown = world.plain(*COMMAND, *command).stdout
        assert there in shown, command
    for given in (["--utc", "list"], ["list", "--utc"]):
        assert f"{at:%Y-%m-%d %H:%M}" in world.plain(*COMMAND, *given).stdout


def test_a_terminal_of_20_columns_shows_the_beginning(world: World, terminal: Open) -> None:
    fill(world, 1)
    one = terminal(command=[*COMMAND, "list"], size=(20, 24))
    assert one.end() == 0
    assert len(one.plain.strip()) == 20


@pytest.mark.parametrize("wrong", ["case", "letter", "conversation"])
def test_a_mistyped_id_is_answered_with_the_one_that_was_meant(world: World, wrong: str) -> None:
    ids = fill(world, 2)
    with world.store() as store:
        right = store.conversation(ids[0]).thread()[0].id if wrong != "conversation" else ids[0][:8]
    other = next(c for c in "0123456789" if c != right[2])
    given = right.swapcase() if wrong == "case" else f"{right[:2]}{other}{right[3:]}"
    if given == right:
        pytest.skip("an id of digits only has no other case")
    done = world.command("show", given)
    assert done.returncode == 4
    assert f"did you mean {right}?" in done.stderr


def test_a_program_that_names_no_folder_is_found_in_a_store_of_this_folder(world: World) -> None:
    del world.env["HITHERTO_STORE"]
    place = world.command("init").stdout.strip()
    with hitherto.open(place) as store:
        talk = store.start(title="by a program")
        talk.append(Message.user("hi"))
    assert world.command("show", "@").stdout.count("hi") == 1
    assert talk.id[:8] in world.command("list").stdout


def test_what_a_program_recorded_without_a_folder_gives_way_to_what_was_said_here(world: World) -> None:
    with world.store() as store:
        store.start(title="anywhere").append(Message.user("anywhere"))
    assert "anywhere" in world.command("show", "@").stdout
    with world.store() as store:
        store.start(title="here", project=os.fspath(world.here)).append(Message.user("said here"))
        store.start(title="later").append(Message.user("anywhere"))
        store.start(title="far", project="/far").append(Message.user("far away"))
    assert "said here" in world.command("show", "@").stdout
