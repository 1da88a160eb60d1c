"""`hitherto conversation` and `hitherto show`, at a terminal and in pipes.

Requirements: C13, C14, C16, and STYLE on the command line.
"""

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import apsw
import pytest

import hitherto
from hitherto import Block, Message
from hitherto._engine.recovery import keep, new_key
from hitherto.cli import _conversation
from hitherto.model import Usage

from ..support.command import COMMAND, Open, World

HOSTILE = "red \x1b[31m\x1b]52;c;eA==\x07 turned \u202e nul \0 wide 漢字"
HARMLESS = "red ␛[31m␛]52;c;eA==␇ turned <U+202E> nul ␀ wide 漢字"
BEGUN = 1_705_314_600_000_000  # 2024-01-15 10:30


class Sample(NamedTuple):
    """The store of these tests: a conversation with a fork, a tool, a sub-agent and an image."""

    id: str
    question: str
    answer: str
    result: str
    end: str
    picture: str
    trace: str


@pytest.fixture
def sample(world: World) -> Sample:
    minutes = itertools.count()
    with world.store(clock=lambda: BEGUN + 60_000_000 * next(minutes) // 10) as store:
        talk = store.start(title="The build", project=world.here, model="some-model", system_prompt="Be kind.")
        question = talk.append(Message.user("Why does the build fail?"))
        call = Block.tool_call("c1", "read", {"path": "Makefile", "lines": [1, 2]})
        blocks = [Block.thinking("Let me see."), Block.text("I will look."), call]
        answer = talk.append(Message.assistant(blocks, usage=Usage(1200, 34)))
        result = talk.append(Message.tool_result("c1", "all: build\n" * 200))
        aside = talk.fork()
        end = talk.append(Message.assistant("A rule is missing."))
        trace = talk.subagent("review", "r1").append(Message.user("Review it."))
        blocks = [Block.text("Look at this:"), Block.image(b"x" * 100_000, "image/png")]
        extra: dict[str, object] = {"thumbnails": [b"y" * 70_000, b"z"]}
        picture = aside.append(Message.user(blocks, label="screenshot", extra=extra))
    return Sample(talk.id, question.id, answer.id, result.id, end.id, picture.id, trace.id)


def lines(world: World, *given: str, **env: str) -> list[str]:
    done = world.command(*given, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def objects(world: World, *given: str) -> list[Any]:
    return [json.loads(line) for line in lines(world, *given)]


def remaining_ids(world: World) -> set[str]:
    with world.store() as store:
        return {message.id for message in store.messages()}


# -- list


def test_a_list_begins_before_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with hitherto.open("memory:") as store:
        talks = [store.start() for _ in range(5)]
        for talk in talks:
            talk.append(Message.user("a word"))
        read: list[object] = []
        messages = store.messages

        def count_reads(**how: Any) -> Any:
            read.append(how)
            return messages(**how)

        monkeypatch.setattr(store, "messages", count_reads)
        lines = _conversation.Listing(store).lines(None, {}, None, 80)
        assert str(talks[0].at) in next(lines)
        assert len(read) == 1
        assert len(list(lines)) == 4
        assert len(read) == 5


@pytest.mark.parametrize("secret", [None, bytes(range(32))], ids=["plain", "sealed"])
def test_a_list_begins_before_all_conversations_are_opened(
    secret: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hitherto.open("memory:", key=secret) as store:
        ids = [store.save([Message.user(f"number {n}")])[0] for n in range(500)]
        opened: list[bytes] = []
        lookup = store.backend.lookup

        def count_rows(*, ids: Sequence[bytes] = (), **how: Any) -> Any:
            opened.extend(ids)
            return lookup(ids=ids, **how)

        monkeypatch.setattr(store.backend, "lookup", count_rows)
        lines = _conversation.Listing(store).lines(None, {}, None, 80)
        assert next(lines).startswith(ids[0])
        assert len(set(opened)) <= 200
        assert [line.split()[0] for line in lines] == ids[1:]


def test_everything_is_listed_as_a_tree(world: World, sample: Sample) -> None:
    shown = [re.sub(r"\(\d{4}-\d\d-\d\d \d\d:\d\d\)", "(T)", line) for line in lines(world, "conversation", "list")]
    assert shown == [
        f"{sample.trace} (T) [USER] Review it.",
        f"{sample.question} (T) [USER] Why does the build fail?",
        f"{sample.answer} (T) [ASSISTANT] I will look.",
        f"{sample.result} (T) [TOOL RESULT] {'all: build ' * 7}al…",
        f"    {sample.end} (T) [ASSISTANT] A rule is missing.",
        "    ------",
        f"    {sample.picture} (T) [USER] Look at this:",
        "    ------",
    ]


def test_times_are_utc_whatever_the_zone_is(world: World, sample: Sample) -> None:
    assert "(2024-01-15 10:3" in lines(world, "conversation", "list", TZ="Asia/Tokyo")[1]


def test_the_list_has_all_its_names(world: World, sample: Sample) -> None:
    for names in (["conversation", "ls"], ["convo", "list"], ["conv", "ls"]):
        assert len(lines(world, *names)) == 8


def test_only_so_many_conversations_or_those_of_a_folder_are_listed(world: World, sample: Sample) -> None:
    with world.store() as store:
        for text in ("one", "two"):
            store.start(project=world.home).append(Message.user(text))
    assert [line[-3:] for line in lines(world, "convo", "ls", "--limit", "2")] == ["one", "two"]
    assert len(lines(world, "convo", "ls", "--here")) == 8
    assert len(lines(world, "convo", "ls", "--project", str(world.home))) == 2
    assert len(lines(world, "convo", "ls")) == 10
    assert world.command("convo", "ls", "--here", "--project", "x").returncode == 2
    assert world.command("convo", "ls", "--limit", "0").returncode == 2


def test_more_conversations_than_are_read_at_a_time_are_all_listed_once(world: World) -> None:
    with world.store() as store:
        for number in range(230):
            store.start().append(Message.user(f"number {number}"))
    shown = lines(world, "convo", "ls")
    assert [line.split()[-1] for line in shown] == [str(number) for number in range(230)]
    limited = lines(world, "convo", "ls", "--limit", "210")
    assert limited == shown[-210:]


def test_conversations_are_listed_as_json_the_newest_first(world: World, sample: Sample) -> None:
    with world.store() as store:
        store.start(title="second").append(Message.user(HOSTILE))
    second, first = objects(world, "convo", "ls", "--json")
    fields = [
        "id",
        "title",
        "project",
        "metadata",
        "created_at",
        "active_at",
        "expires_at",
        "count",
        "head",
        "held",
        "problem",
    ]
    assert list(first) == [*fields, "messages"]
    assert (first["id"], first["title"], first["project"]) == (sample.id, "The build", str(world.here))
    assert (first["count"], first["head"], first["held"], first["expires_at"]) == (6, sample.picture, False, None)
    assert first["created_at"].startswith("2024-01-15T10:30:")
    assert list(first["messages"][0]) == [
        "id",
        "parent",
        "seq",
        "role",
        "created_at",
        "label",
        "main",
        "text",
        "problem",
    ]
    found = {m["id"]: (m["parent"], m["role"], m["label"], m["main"]) for m in first["messages"]}
    assert found[sample.picture] == (sample.result, "user", "screenshot", True)
    assert found[sample.trace] == (None, "user", "subagent:review:r1", False)
    assert second["messages"][0]["text"] == HOSTILE
    assert "\x1b" not in world.command("convo", "ls", "--json").stdout


def test_where_nothing_is_kept_nothing_is_listed_and_a_word_is_said(world: World) -> None:
    world.store().close()
    done = world.command("convo", "ls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "there are no conversations here yet\n")
    assert lines(world, "convo", "ls", "--json") == []


def test_without_a_store_the_reason_is_said(world: World) -> None:
    done = world.command("convo", "ls")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no store" in done.stderr
    assert not world.place.exists()


def test_looking_leaves_no_trace(world: World, sample: Sample) -> None:
    before = world.traces()
    for command in (["convo", "ls"], ["show"], ["convo", "ls", "--json"]):
        assert world.command(*command).returncode == 0
    assert world.traces() == before


def test_stored_text_does_nothing_to_whoever_lists_or_prints_it(world: World) -> None:
    with world.store() as store:
        talk = store.start(title=HOSTILE, model=HOSTILE)
        talk.append(Message.user(HOSTILE, label=f"a\nlabel {HOSTILE}"))
        talk.append(Message.assistant([Block.text("a\r\nb\rc"), Block.tool_call("1", HOSTILE, {HOSTILE: HOSTILE})]))
        talk.append(Message("tool_result", (Block("content", b"x", "image", f"image/{HOSTILE}\nx", "1"),)))
    for command in (["convo", "ls"], ["show"], ["show", "--full"], ["log"], ["log", "--graph"], ["branches"]):
        done = world.command(*command)
        assert done.returncode == 0
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.stdout), command
    shown = lines(world, "show")
    assert HARMLESS in shown
    assert shown[0].endswith(f"[USER] label a label {HARMLESS}")


@pytest.mark.parametrize("size", [20, 33, 80])
def test_on_a_terminal_lines_are_cut_to_its_width(world: World, sample: Sample, terminal: Open, size: int) -> None:
    shown = terminal(command=[*COMMAND, "convo", "ls"], size=(size, 50), NO_COLOR="1")
    assert shown.end() == 0
    found = shown.shown.replace("\r\n", "\n").splitlines()
    assert len(found) == 8
    assert max(map(len, found)) <= size
    assert all(any(id in line for line in found) for id in sample[1:])


def test_in_a_pipe_columns_decides_and_otherwise_there_is_room(world: World, sample: Sample) -> None:
    assert max(map(len, lines(world, "convo", "ls"))) == 120
    assert max(map(len, lines(world, "convo", "ls", COLUMNS="40"))) == 40


def test_what_cannot_be_read_is_listed_as_such_and_the_exit_code_tells(world: World, sample: Sample) -> None:
    connection = apsw.Connection(str(world.place))
    connection.execute("UPDATE message SET body = zeroblob(length(body)) WHERE seq = 3")
    connection.close()
    done = world.command("convo", "ls")
    assert done.returncode == 7
    assert f"    {sample.end} (2024-01-15 10:30) [ASSISTANT] (cannot be read:" in done.stdout
    assert f"warning: message {sample.end}: " in done.stderr
    assert len(done.stdout.splitlines()) == 8
    done = world.command("convo", "ls", "--json")
    assert done.returncode == 7
    assert [m["id"] for m in json.loads(done.stdout)["messages"] if m["problem"]] == [sample.end]
    for command in (["log", "--graph"], ["log", "--all"], ["branches"]):
        assert world.command(*command, sample.id).returncode == 7, command
    assert world.command("show", sample.end).returncode == 7
    assert world.command("show", sample.picture).returncode == 0  # another branch


def test_a_sealed_store_is_listed_with_its_key_only(world: World) -> None:
    key = hitherto.Key.generate()
    path = world.root / "key"
    key.to_file(path)
    with world.store(key=key) as store:
        store.start().append(Message.user("secret"))
    assert world.command("convo", "ls").returncode == 6
    assert "secret" in lines(world, "convo", "ls", "--key", f"file:{path}")[0]


def test_a_conversation_that_was_tampered_with_is_missing_and_the_exit_code_tells(world: World) -> None:
    key = hitherto.Key.generate()
    key.to_file(world.root / "key")
    with world.store(key=key) as store:
        talk = store.start(title="one")
        talk.append(Message.user("first"))
        store.start(title="two").append(Message.user("second"))
    connection = apsw.Connection(str(world.place))
    connection.execute("UPDATE conversation SET held = 1 WHERE id = ?", (UUID(talk.id).bytes,))
    connection.close()
    done = world.command("convo", "ls", "--key", f"file:{world.root / 'key'}")
    assert (done.returncode, "second" in done.stdout, "first" in done.stdout) == (7, True, False)
    assert "hitherto quarantine" in done.stderr


def test_in_a_folder_that_is_gone_here_is_nowhere(world: World, sample: Sample) -> None:
    gone = world.here / "gone"
    gone.mkdir()
    done = world.plain("sh", "-c", f"cd {gone}; rmdir {gone}; exec {shlex.join(COMMAND)} convo ls --here")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is gone" in done.stderr


def test_whoever_has_read_enough_may_close_the_pipe(world: World) -> None:
    with world.store() as store:
        talk = store.start()
        talk.extend([Message.user("a long text " * 20)] * 3_000)
    for command in ("convo ls", "show", "log --graph --all --json"):
        piped = f"{shlex.join(COMMAND)} {command} | head -n 1; echo ${{PIPESTATUS[0]}}"
        done = world.plain("bash", "-c", piped)
        assert (done.stdout.splitlines()[1:], done.stderr) == (["0"], "")


def test_listing_loads_neither_an_sdk_nor_what_makes_text_pretty(world: World, sample: Sample) -> None:
    code = (
        "import sys, hitherto.cli._main as m; m.run(['conversation', 'list']); "
        "print({'rich', 'openai', 'anthropic', 'httpx', 'prompt_toolkit', 'cryptography'} & set(sys.modules))"
    )
    assert world.plain(sys.executable, "-c", code).stdout.splitlines()[-1] == "set()"


# -- print


def test_a_thread_is_printed_as_it_was_said_with_tools_folded(world: World, sample: Sample) -> None:
    shown = [re.sub(r"\(\d{4}.*?\)", "(T)", line) for line in lines(world, "conversation", "print", sample.picture)]
    assert shown == [
        f"{sample.question} (T) [USER]",
        "Why does the build fail?",
        "",
        f"{sample.answer} (T) [ASSISTANT] some-model, 1,200 tokens in, 34 out",
        "I will look.",
        '→ read(path="Makefile", lines=[1,2])',
        "",
        f"{sample.result} (T) [TOOL RESULT] ← 2,200 bytes: {'all: build ' * 5}all: buil…",
        "",
        f"{sample.picture} (T) [USER] label screenshot",
        "Look at this:",
        "[image/png, 100,000 bytes]",
    ]


def test_what_no_person_wrote_and_a_thought_alone_are_folded(world: World) -> None:
    mark = {"injected": "context"}
    with world.store() as store:
        talk = store.start()
        talk.append(Message.user("<environment_context>\n  <cwd>/srv</cwd>", extra={**mark}))
        talk.append(Message.user([Block("content", "<system-reminder>\nhush", extra={**mark}), Block.text("Why?")]))
        end = talk.append(Message.assistant([Block.thinking("Let me\nsee.")]))
    shown = [re.sub(r"^\S{6} \(.*?\) ", "", line) for line in lines(world, "show", end.id)]
    assert shown == [
        "[USER] (context) <environment_context> <cwd>/srv</cwd>",
        "",
        "[USER]",
        "(context) <system-reminder> hush",
        "Why?",
        "",
        "[ASSISTANT] (thinking) Let me see.",
    ]
    assert "hush" in lines(world, "show", "--full", end.id)
    newest = [line.partition("] ")[2] for line in lines(world, "log", end.id)]
    assert newest == ["Let me see.", "Why?", "(context) <environment_context> <cwd>/srv</cwd>"]


def test_full_unfolds_tools_thoughts_and_the_system_prompt(world: World, sample: Sample) -> None:
    shown = lines(world, "show", "--full", sample.end)
    assert shown[:2] == ["[SYSTEM PROMPT]", "Be kind."]
    assert "(thinking) Let me see." in shown
    call = shown.index("→ read(")
    assert shown[call : call + 4] == ["→ read(", '    path="Makefile",', "    lines=[1,2],", ")"]
    assert shown.count("all: build") == 200


def test_printing_has_all_its_names(world: World, sample: Sample) -> None:
    for names in (["convo", "print"], ["convo", "show"], ["conv", "view"], ["show"]):
        assert "A rule is missing." in lines(world, *names, sample.end)


def test_a_conversation_is_printed_to_its_head_by_any_of_its_names(world: World, sample: Sample) -> None:
    whole = lines(world, "show", sample.id)
    assert "Look at this:" in whole
    for id in (sample.id[:8], "@", sample.picture[:5]):
        assert lines(world, "show", id) == whole
    assert lines(world, "show") == whole
    done = world.command("show", "@~1")
    assert (done.returncode, done.stdout) == (4, "")


def test_messages_are_printed_as_json_without_reading_attachments(world: World, sample: Sample) -> None:
    connection = apsw.Connection(str(world.place))  # what is not there cannot be read
    assert connection.execute("SELECT count(*) FROM chunk").fetchone() != (0,)
    connection.execute("UPDATE chunk SET body = zeroblob(length(body))")
    connection.close()
    found = objects(world, "show", "--json", sample.picture)
    fields = "id parent conversation seq role created_at label text blocks error model usage link main extra"
    assert " ".join(found[0]) == fields
    assert [m["id"] for m in found] == [sample.question, sample.answer, sample.result, sample.picture]
    assert found[1]["usage"]["input_tokens"] == 1200
    assert [m["model"] for m in found] == [None, "some-model", None, None]
    assert [b["type"] for b in found[1]["blocks"]] == ["thinking", "content", "tool_call"]
    image = {"type": "content", "modality": "image", "mime_type": "image/png", "id": None, "text": None}
    assert found[3]["blocks"][1] == image | {"size": 100_000}
    assert found[3]["extra"] == {"thumbnails": [{"size": 70_000}, "eg=="]}
    assert "[image/png, 100,000 bytes]" in lines(world, "show", sample.picture)


def test_arguments_that_are_no_object_and_results_that_failed_are_shown(world: World) -> None:
    with world.store() as store:
        talk = store.start()
        calls = [Block.tool_call("1", "run", '{"as": "text"}'), Block.tool_call("2", "sum", [1, 2]),
                 Block("tool_call", "not JSON", id="3")]  # fmt: skip
        talk.append(Message.assistant(calls))
        talk.append(Message.tool_result("1", "boom", error=True))
    shown = lines(world, "show")
    assert shown[1:4] == ['→ run({"as": "text"})', "→ sum([1,2])", "→ a tool(not JSON)"]
    assert shown[5].endswith("[TOOL RESULT] an error ← 4 bytes: boom")


def test_what_a_thread_sums_up_and_interrupted_answers_are_mentioned_on_standard_error(world: World) -> None:
    with world.store() as store:
        talk = store.start(project=world.here)
        first = talk.append(Message.user("one"))
        talk.compact("We said one.")
        question = talk.append(Message.user("two"))
        keep(talk.state, new_key(store.engine.message_ids.number(question.id)), [Message.assistant("Half an")])
    done = world.command("show")
    assert f"sums up what was said up to {first.id}: hitherto show {first.id}" in done.stderr
    assert f"an answer to {question.id} was interrupted: hitherto chat -c {question.id} offers" in done.stderr
    assert "Half" not in done.stdout
    assert "interrupted" not in world.command("show", first.id).stderr


def test_an_empty_conversation_prints_nothing_and_says_so(world: World) -> None:
    with world.store() as store:
        id = store.start().id
    for command in (["show"], ["log"], ["log", "--graph"], ["convo", "rm", "--yes"]):
        done = world.command(*command, id)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "the conversation has no messages yet\n"), command


def test_unknown_and_ambiguous_ids_are_exit_code_4(world: World, sample: Sample) -> None:
    assert world.command("show", "zzzzzz").returncode == 4
    assert world.command("show", "no such thing").returncode == 4
    assert world.command("show", "").returncode == 4


def test_a_terminal_gets_colours_and_a_pager_and_nobody_else_does(world: World, terminal: Open) -> None:
    with world.store() as store:
        store.start().append(Message.user("line\n" * 100))
    pager = world.root / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {world.root}/paged; echo paged\n")
    pager.chmod(0o755)
    shown = terminal(command=[*COMMAND, "show"], size=(80, 20), PAGER=str(pager))
    assert shown.end() == 0
    assert "paged" in shown.shown
    paged = (world.root / "paged").read_text()
    assert paged.count("line") == 100
    assert paged.startswith("\x1b[36m")
    os.remove(world.root / "paged")
    plain = terminal(command=[*COMMAND, "show"], size=(80, 200), PAGER=str(pager), NO_COLOR="1")
    assert plain.end() == 0
    assert "\x1b" not in plain.shown
    assert "line\r\nline" in plain.shown  # it fits
    assert "\x1b" not in world.command("show", PAGER=str(pager)).stdout
    assert not (world.root / "paged").exists()


def test_what_the_encoding_cannot_say_is_spelled_in_ascii(world: World, sample: Sample) -> None:
    shown = world.plain(*COMMAND, "show", sample.end, PYTHONIOENCODING="ascii").stdout.splitlines()
    assert '-> read(path="Makefile", lines=[1,2])' in shown
    assert any(line.endswith("buil~") and "<- 2,200 bytes" in line for line in shown)


# -- delete


def test_a_message_is_deleted_by_its_id_or_the_beginning_of_it(world: World, sample: Sample) -> None:
    done = world.command("conversation", "delete", sample.trace, "--yes")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "to be deleted: 1 message\ndeleted: 1 message\n"
    assert world.command("convo", "rm", sample.picture[:5], "-y").returncode == 0
    assert remaining_ids(world) == {sample.question, sample.answer, sample.result, sample.end}


def test_the_trace_of_a_sub_agent_stands_below_the_message_that_started_it(world: World, sample: Sample) -> None:
    assert world.command("convo", "rm", sample.end, "--yes").returncode == 1
    assert world.command("convo", "rm", sample.end, "--yes", "--cascade").returncode == 0
    assert {sample.end, sample.trace}.isdisjoint(remaining_ids(world))


def test_a_message_with_others_below_goes_only_with_cascade_whatever_yes_says(world: World, sample: Sample) -> None:
    before = remaining_ids(world)
    for given in ([], ["--yes"]):
        done = world.command("convo", "remove", sample.picture, sample.answer, *given)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"other messages stand below: {sample.answer}\n" in done.stderr
        assert "--cascade" in done.stderr
    assert remaining_ids(world) == before
    done = world.command("convo", "rm", sample.answer, "--cascade", "--yes")
    assert done.stderr.splitlines()[0] == "to be deleted: 5 messages"
    assert remaining_ids(world) == {sample.question}


def test_several_messages_go_together_or_not_at_all(world: World, sample: Sample) -> None:
    before = remaining_ids(world)
    done = world.command("convo", "rm", sample.picture, "zzzzzz", "--yes")
    assert done.returncode == 4
    assert remaining_ids(world) == before
    assert world.command("convo", "rm", sample.picture, sample.trace, "--yes").returncode == 0
    assert remaining_ids(world) == before - {sample.picture, sample.trace}


def test_the_id_of_a_conversation_means_all_of_it_and_never_its_head_alone(world: World, sample: Sample) -> None:
    before = remaining_ids(world)
    for id in (sample.id, sample.id[:8], "@"):
        done = world.command("convo", "rm", id, "--yes")
        assert done.returncode == 1
        assert sample.question in done.stderr
    assert remaining_ids(world) == before
    assert world.command("convo", "rm", "@", "--yes", "--cascade").stderr.startswith("to be deleted: 6 messages\n")
    assert remaining_ids(world) == set()


def test_what_is_on_hold_stays(world: World, sample: Sample) -> None:
    with world.store() as store:
        store.conversation(sample.id).hold()
    done = world.command("convo", "rm", sample.end, "--yes")
    assert done.returncode == 5
    assert sample.end in remaining_ids(world)


def test_without_a_terminal_nothing_is_deleted_without_yes(world: World, sample: Sample) -> None:
    done = world.command("convo", "rm", sample.picture)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert sample.picture in remaining_ids(world)
    assert world.command("convo", "rm").returncode == 2


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 130), ("", 130)])
def test_on_a_terminal_somebody_is_asked(world: World, sample: Sample, terminal: Open, answer: str, code: int) -> None:
    shown = terminal(command=[*COMMAND, "convo", "rm", sample.picture])
    shown.read("[y/N]")
    shown.press(f"{answer}\n")
    assert shown.end() == code
    assert (sample.picture in remaining_ids(world)) == (code != 0)


def test_help_names_every_alias(world: World) -> None:
    shown = world.command("convo", "--help").stdout
    names = ("list", "ls", "print", "show", "view", "delete", "rm", "remove")
    assert all(re.search(rf"\b{name}\b", shown) for name in names)
    assert world.command("convo", "nonsense").returncode == 2
