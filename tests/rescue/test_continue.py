"""Going on in another program, and coming back as a branch.

The lines were tried with Claude Code 2.1.197 and Codex 0.169.0: `claude --resume` and `codex exec resume` send the
turns that they hold.

Requirements: F4.
"""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Store, formats
from hitherto.errors import InvalidArgument
from hitherto.rescue import Rescue, continue_in

from ..formats.test_claude_code import PROGRAM, Session
from ..support.command import World


@pytest.fixture(params=[None, Key(b"k" * 32)], ids=["plain", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "a.db", key=request.param) as store:
        yield store


def own(store: Store) -> Conversation:
    talk = store.start(title="ours", provider="openai", model="gpt-5", system_prompt="be brief")
    talk.append(Message.user("What is in a.txt?"))
    call = Block.tool_call("c1", "read", {"path": "a.txt"})
    talk.append(Message.assistant([Block.thinking("hm"), Block.text("I look."), call]))
    talk.append(Message.tool_result("c1", "forty-two"))
    talk.append(Message.assistant("It says forty-two."))
    return talk


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rescued(store: Store, home: Path) -> int:
    work = Rescue(store, env={}, home=home)
    reports = [work.bring_in(place) for place in work.places()]
    assert not any(report.unreadable or report.notes for report in reports)
    return sum(report.messages for report in reports)


def test_what_claude_code_adds_comes_back_as_a_branch(store: Store, tmp_path: Path) -> None:
    talk = own(store)
    made = continue_in(store, talk, "claude", env={}, home=tmp_path, folder=tmp_path)
    assert made.command == ("claude", "--resume", made.session)
    assert made.path.parent.parent == tmp_path / ".claude" / "projects"
    assert made.path.stat().st_mode & 0o777 == 0o600
    assert made.losses == ("the system prompt: the program has its own", "a thought is left out")
    said = lines(made.path)
    assert [line["type"] for line in said] == ["user", "assistant", "user", "assistant"]
    assert [line["parentUuid"] for line in said] == [None, *(line["uuid"] for line in said[:-1])]
    assert {line["sessionId"] for line in said} == {made.session}
    talk.append(Message.user("meanwhile here"))
    added = Session(made.session)
    added.user(1, None, "and then?", parentUuid=said[-1]["uuid"]).answer(2, 1, "that")
    with made.path.open("a") as file:
        file.write("\n".join(added.lines) + "\n")
    assert rescued(store, tmp_path) == 2
    assert store.stats().conversations == 1
    talk = store.conversation(talk.id)
    ends = {tuple(m.text for m in talk.fork(at=leaf.id).thread())[-2:] for leaf in talk.branches()}
    assert ends == {("and then?", "that"), ("It says forty-two.", "meanwhile here")}
    assert rescued(store, tmp_path) == 0
    assert store.verify().ok


def test_lines_of_the_program_go_back_as_they_were(store: Store, tmp_path: Path) -> None:
    formats.load(PROGRAM, store)
    end = next(m for m in store.messages() if m.text == "done after tool 3")
    talk = store.conversation(end.conversation).fork(at=end.id)
    made = continue_in(store, talk, "claude", env={}, home=tmp_path, folder=tmp_path)
    assert made.losses == ()
    before = {line.get("uuid"): line for path in PROGRAM.rglob("*.jsonl") for line in lines(path)}
    for line in lines(made.path):
        assert line["message"] == before[line["uuid"]]["message"]
    shutil.copytree(PROGRAM, tmp_path / ".claude" / "projects", dirs_exist_ok=True)
    assert rescued(store, tmp_path) == 0
    assert store.stats().conversations == 1


def test_a_copy_goes_on_by_itself_and_the_original_keeps_its_files(store: Store, tmp_path: Path) -> None:
    formats.load(PROGRAM, store)
    end = next(m for m in store.messages() if m.text == "done after tool 3")
    copy = store.conversation(end.conversation).fork(at=end.id).detach(title="copy")
    made = continue_in(store, copy, "claude", env={}, home=tmp_path, folder=tmp_path)
    added = Session(made.session).user(1, None, "only in the copy", parentUuid=lines(made.path)[-1]["uuid"])
    with made.path.open("a") as file:
        file.write(added.lines[0] + "\n")
    assert rescued(store, tmp_path) == 1
    assert store.conversation(copy.id).thread()[-1].text == "only in the copy"
    assert formats.load(PROGRAM, store).messages == 0


def test_what_codex_adds_comes_back_as_a_branch(store: Store, tmp_path: Path) -> None:
    talk = own(store)
    made = continue_in(store, talk, "codex", env={}, home=tmp_path, folder=tmp_path)
    assert made.command == ("codex", "resume", made.session)
    found = lines(made.path)
    assert (found[0]["type"], found[0]["payload"]["id"]) == ("session_meta", made.session)
    items = [line["payload"]["type"] for line in found if line["type"] == "response_item"]
    assert items == ["message", "message", "function_call", "function_call_output", "message"]
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and then?"}]}
    with made.path.open("a") as file:
        file.write(
            json.dumps({"timestamp": "2030-01-01T00:00:00.000Z", "type": "response_item", "payload": item}) + "\n"
        )
    assert rescued(store, tmp_path) == 1
    assert store.stats().conversations == 1
    assert [m.text for m in store.conversation(talk.id).thread()][-2:] == ["It says forty-two.", "and then?"]


def test_a_summary_is_gone_on_from_and_what_it_sums_up_is_named(store: Store, tmp_path: Path) -> None:
    talk = own(store)
    talk.compact("the sum of it")
    made = continue_in(store, talk, "claude", env={}, home=tmp_path, folder=tmp_path)
    assert any("before the summary" in loss for loss in made.losses)
    assert len(lines(made.path)) == made.messages


def test_nothing_to_go_on_from_and_no_such_program(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nothing to go on from"):
        continue_in(store, store.start(), "claude", env={}, home=tmp_path)
    with pytest.raises(InvalidArgument, match="no such program"):
        continue_in(store, own(store), "emacs", env={}, home=tmp_path)
    assert not (tmp_path / ".claude").exists()


def test_the_command_prints_how_to_go_on(world: World) -> None:
    with world.store() as store:
        talk = own(store)
        first = talk.thread()[0].id
    config = world.here / "claude"
    done = world.command("continue", talk.id, "--in", "claude", "--folder", ".", CLAUDE_CONFIG_DIR=str(config))
    assert done.returncode == 0, done.stderr
    assert "left out: the system prompt" in done.stderr
    words = shlex.split(done.stdout)
    assert words[:2] == ["cd", str(world.here.resolve())]
    assert words[3:5] == ["claude", "--resume"]
    (path,) = config.rglob("*.jsonl")
    assert path.stem == words[5]
    done = world.command("continue", first, "--in", "claude", "--json", CLAUDE_CONFIG_DIR=str(config))
    found = json.loads(done.stdout)
    assert found["messages"] == 1
    assert len(lines(Path(found["file"]))) == 1
