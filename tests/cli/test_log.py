"""`hitherto log`, `branches` and `compare`, at a terminal and in pipes.

The drawing of each shape of tree is tested with the pure functions, in test_tree; here it is drawn for real.
"""

import json
import re
from typing import Any, NamedTuple

import pytest

from hitherto import Block, Conversation, Message, Saved, Store
from hitherto.cli._graph import Row
from hitherto.cli._log import _graph_line
from hitherto.cli._terminal import columns

from ..support.command import COMMAND, Open, World
from .test_tree import make_forked


class Sample(NamedTuple):
    """A conversation with two branches, one of which was summed up, and a sub-agent's trace."""

    id: str
    first: str
    fork: str
    old: str  # the end of the branch that was left
    summed: str
    summary: str
    trace: str
    head: str


@pytest.fixture
def sample(world: World) -> Sample:
    with world.store() as store:
        talk = store.start(title="The build", project=world.here)
        first = talk.append(Message.user("Why does the build fail?"))
        fork = talk.append(Message.assistant("A rule is missing."))
        left = talk.fork()
        left.append(Message.user("Which one?"))
        old = left.append(Message.assistant("The last one."))
        left.label("dead end")
        talk.append(Message.user("Add it."))
        summed = talk.append(Message.assistant("Done."))
        trace = talk.subagent("review", "r1").append(Message.user("Review it."))
        summary = talk.compact("The build was mended.")
        head = talk.append(Message.user([Block.text("And now?"), Block.image(b"x" * 100_000, "image/png")]))
    return Sample(talk.id, *(m.id for m in (first, fork, old, summed, summary, trace, head)))


def lines(world: World, *given: str, **env: str) -> list[str]:
    done = world.command(*given, **env)
    assert done.returncode == 0, done.stderr
    return [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "T", line) for line in done.stdout.splitlines()]


def objects(world: World, *given: str) -> list[Any]:
    return [json.loads(line) for line in lines(world, *given)]


# -- log


def test_the_thread_is_logged_newest_first_across_compactions(world: World, sample: Sample) -> None:
    shown = lines(world, "log")
    assert shown[0] == f"{sample.head} (HEAD) (T) [USER] And now?"
    assert shown[1] == f"{sample.summary} (compaction) (T) [USER] The build was mended."
    assert shown[2] == f"{sample.summed} (T) [ASSISTANT] Done."
    assert shown[-1] == f"{sample.first} (T) [USER] Why does the build fail?"
    assert len(shown) == 6
    assert lines(world, "log", sample.id[:8]) == shown


def test_the_log_of_a_message_ends_there_and_begins_where_it_is_told(world: World, sample: Sample) -> None:
    shown = lines(world, "log", sample.old)
    assert shown[0] == f"{sample.old} (dead end) (T) [ASSISTANT] The last one."
    assert len(shown) == 4
    assert lines(world, "log", sample.old, "-n", "2") == shown[:2]
    assert len(lines(world, "log", "--all")) == 9
    assert world.command("log", "-n", "0").returncode == 2
    assert world.command("log", "nobody").returncode == 4


def test_the_log_as_json_has_an_object_for_each_message(world: World, sample: Sample) -> None:
    found = objects(world, "log", "--json")
    assert [m["id"] for m in found[:3]] == [sample.head, sample.summary, sample.summed]
    fields = "id parent conversation seq role created_at label text blocks error model usage link main extra"
    assert " ".join(found[0]) == f"{fields} head problem"
    assert [m["head"] for m in found] == [True, *[False] * 5]
    assert (found[1]["link"], found[1]["label"]) == (sample.summed, "compaction")
    assert len(objects(world, "log", "--json", "--all")) == len(objects(world, "log", "--json", "--graph")) == 9
    assert len(objects(world, "log", "--json", "-n", "2")) == 2


def test_the_graph_shows_every_branch_with_what_links_them(world: World, sample: Sample) -> None:
    shown = lines(world, "log", "--graph")
    assert shown == [
        f"● {sample.head} (HEAD) (T) [USER] And now?",
        f"● {sample.summary} (compaction, sums up {sample.summed}) (T) [USER] The build was mended.",
        "",
        f"● {sample.summed} (started {sample.trace}, summed up by {sample.summary}) (T) [ASSISTANT] Done.",
        shown[4],
        f"│ ○ {sample.old} (dead end) (T) [ASSISTANT] The last one.",
        shown[6],
        f"●─┘ {sample.fork} (T) [ASSISTANT] A rule is missing.",
        f"● {sample.first} (T) [USER] Why does the build fail?",
        "",
        f"○ {sample.trace} (subagent:review:r1, started by {sample.summed}) (T) [USER] Review it.",
    ]
    assert shown[4].endswith("[USER] Add it.")
    assert re.fullmatch(r"│ ○ \w{6} \(T\) \[USER\] Which one\?", shown[6])
    assert lines(world, "log", "--graph", "-n", "2") == shown[:2]


def test_where_the_encoding_has_no_rails_they_are_of_ascii(world: World, sample: Sample) -> None:
    done = world.plain(*COMMAND, "log", "--graph", PYTHONIOENCODING="latin-1")
    assert done.stdout.isascii()
    assert f"| o {sample.old}" in done.stdout
    assert f"*-' {sample.fork}" in done.stdout


def make_example(store: Store, size: int, forks: int) -> Conversation:
    """A conversation in the shape of the example, in a real store."""
    talk = store.start()
    ids: dict[str, Saved] = {}
    for message in make_forked(size, forks, seed=1):
        if message.parent is not None and talk.at != ids[message.parent].id:
            talk = talk.fork(ids[message.parent])
        said = Message.user if len(ids) % 2 == 0 else Message.assistant
        ids[message.id] = talk.append(said(f"What was said as number {len(ids)}, 漢字 and more"))
    return talk


def test_a_graph_of_500_messages_and_30_forks_fits_80_columns_and_150_lines(world: World) -> None:
    with world.store() as store:
        talk = make_example(store, 500, 30)
        ends = {branch.id for branch in talk.branches()}
    for width in ("20", "80"):
        done = world.command("log", "--graph", COLUMNS=width)
        shown = done.stdout.splitlines()
        assert max(map(columns, shown)) <= int(width)
        assert len(shown) <= 150
        drawn = re.findall(r"^[│├●○┊─┘ ]*[●○](?:─┘)? (\w{6}) ", done.stdout, re.MULTILINE)
        assert len(drawn) == len(set(drawn))
        assert ends <= set(drawn)
    assert sum(int(n) for n in re.findall(r"┊ (\d+) messages", done.stdout)) + len(drawn) == 500


def test_where_rails_leave_no_room_the_id_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    message = make_forked(21, 0, seed=1)[0]
    for rails in ("│ " * 20 + "○", "│ " * 20 + "○─┘"):
        shown = _graph_line(Row(rails, message))
        assert message.id in shown
        assert shown.startswith("…")
        assert columns(shown) <= 20


def test_a_terminal_gets_the_graph_in_colours(world: World, sample: Sample, terminal: Open) -> None:
    shown = terminal(command=[*COMMAND, "log", "--graph"], size=(60, 50))
    assert shown.end() == 0
    assert f"\x1b[32m●\x1b[0m \x1b[36m{sample.head}\x1b[0m (HEAD)" in shown.shown
    assert max(map(len, re.sub("\x1b\\[\\d+m", "", shown.shown).splitlines())) <= 60
    plain = terminal(command=[*COMMAND, "log", "--graph"], size=(60, 50), NO_COLOR="1")
    assert plain.end() == 0
    assert "\x1b" not in plain.shown


# -- branches


def test_every_end_is_listed_the_newest_first(world: World, sample: Sample) -> None:
    assert lines(world, "branches") == [
        f"{sample.head} 2 T (HEAD) And now?",
        f"{sample.trace} 1 T (aside, subagent:review:r1) Review it.",
        f"{sample.summed} 4 T Done.",
        f"{sample.old} 4 T (dead end) The last one.",
    ]
    assert all(len(line) <= 20 for line in world.command("branches", COLUMNS="20").stdout.splitlines())


def test_branches_as_json(world: World, sample: Sample) -> None:
    found = objects(world, "branches", sample.old, "--json")
    assert [end["id"] for end in found] == [sample.head, sample.trace, sample.summed, sample.old]
    active = found[3].pop("active_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", active)
    assert found[3] == {
        "id": sample.old, "depth": 4, "label": "dead end", "main": True, "head": False, "text": "The last one.",
        "problem": None,
    }  # fmt: skip


# -- compare


def test_two_threads_are_compared_from_where_they_part(world: World, sample: Sample) -> None:
    shown = lines(world, "compare", sample.old, sample.summed, COLUMNS="60")
    assert shown[:3] == [
        "2 messages shared, the last of them:",
        f"{sample.fork} (T) [ASSISTANT] A rule is missing.",
        "",
    ]
    assert shown[3] == f"{sample.old}: 2 messages more"
    assert shown[5] == f"{sample.old} (T) [ASSISTANT] The last one."
    assert shown[7] == f"{sample.summed}: 2 messages more"
    assert shown[9] == f"{sample.summed} (T) [ASSISTANT] Done."
    assert len(shown) == 10


def test_where_there_is_room_threads_stand_beside_each_other(world: World, sample: Sample) -> None:
    with world.store() as store:
        longer = store.conversation(sample.old).append(Message.user("漢字" * 40)).id
    shown = world.command("compare", longer, sample.summed, COLUMNS="101").stdout.splitlines()[3:]
    assert len(shown) == 4
    assert {columns(line.split("│")[0]) for line in shown} == {50}
    assert max(map(columns, shown)) <= 101
    assert re.search(rf"^{sample.old} .* │ {sample.summed} ", shown[2])


def test_full_gives_the_texts(world: World, sample: Sample) -> None:
    shown = lines(world, "compare", sample.old, sample.head, "--full", COLUMNS="120")
    assert shown[0] == "they share nothing"
    assert "Which one?" in shown
    assert "[image/png, 100,000 bytes]" in shown


def test_a_comparison_as_json_is_one_object(world: World, sample: Sample) -> None:
    (found,) = objects(world, "compare", sample.old, sample.summed, "--json")
    assert (found["shared"], found["fork"]) == (2, sample.fork)
    assert (found["left"]["conversation"], found["left"]["at"]) == (sample.id, sample.old)
    assert [m["text"] for m in found["left"]["messages"]] == ["Which one?", "The last one."]
    assert [m["text"] for m in found["right"]["messages"]] == ["Add it.", "Done."]


def test_a_thread_and_its_copy_share_what_was_copied(world: World, sample: Sample) -> None:
    with world.store() as store:
        copy = store.conversation(sample.old).detach()
        copy.append(Message.user("elsewhere"))
    shown = lines(world, "compare", sample.old, copy.id)
    assert shown[0] == "4 messages shared, the last of them:"
    assert f"{sample.old}: 0 messages more" in shown[3]
    assert world.command("compare", sample.old).returncode == 2
    assert world.command("compare", sample.old, "nobody").returncode == 4
