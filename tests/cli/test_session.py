"""Slash commands, files, editing, positions to continue from, and the defaults of options.

Requirements: C10, C11, C13 (what `chat` needs of it), and STYLE on the command line.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto.cli import _question, _slash_commands

from ..support.command import COMMAND, PATIENCE, Open, Terminal, World

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
SOURCE = Path(hitherto.__file__).parent


def sent_texts(world: World) -> list[str]:
    """The texts of the last request."""
    return [text for _, text in world.service.asked()]


def first(world: World, index: int = 0) -> str:
    """The id of a message of the newest conversation."""
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        return talk.thread()[index].id


def title(world: World) -> str:
    """The title of the newest conversation."""
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        return talk.title


class Talk:
    """A conversation in a terminal: lines to type, and the output to expect."""

    def __init__(self, shell: Terminal) -> None:
        self.shell = shell
        self.at = shell.read("> ")

    def say(self, keys: str, until: str = "Good morning.") -> None:
        self.shell.press(f"{keys}\r")
        self.at = self.shell.read("> ", self.shell.read(until, self.at))

    def leave(self) -> None:
        self.shell.press("\x04")
        assert self.shell.end() == 0


# -- where it goes on


def test_a_conversation_is_named_by_how_recent_it_is(world: World) -> None:
    for word in ("one", "two"):
        world.run("-n", word)
    world.run("-c", "@~1", "three")
    assert sent_texts(world) == ["one", "Good morning.", "three"]
    done = world.run("-c", "@~7", "x")
    assert (done.returncode, done.stdout) == (4, "")
    assert "of this folder, 2 are kept" in done.stderr


def test_a_fork_goes_on_from_a_message_on_a_branch_and_says_so(world: World) -> None:
    world.run("one")
    world.run("two")
    middle = first(world, 1)
    done = world.run("--fork", middle, "instead")
    assert re.search(rf"forking \w{{8}} at message {middle}: one", done.stderr)
    assert sent_texts(world) == ["one", "Good morning.", "instead"]
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        assert len(talk.branches()) == 2
        assert talk.count == 6
    done = world.run("--fork", talk.id, "then")
    assert "forking" in done.stderr
    assert len(sent_texts(world)) == 5


@pytest.mark.parametrize("other", [["-n"], ["-c", "@"]], ids=str)
def test_a_fork_excludes_the_other_ways_to_go_on(world: World, other: list[str]) -> None:
    done = world.run("--fork", "@", *other, "x")
    assert (done.returncode, world.service.requests) == (2, [])
    assert not world.place.exists()


def test_what_is_named_in_a_store_that_is_not_there_makes_none(world: World) -> None:
    for option in ("-c", "--fork"):
        assert world.run(option, "@", "x").returncode == 1
    assert not world.place.exists()


# -- what no option says


def configure(world: World, text: str) -> dict[str, str]:
    path = world.root / "config.toml"
    path.write_text(text)
    return {"HITHERTO_CONFIG": str(path)}


def test_the_configuration_says_whom_to_talk_to_and_how(world: World) -> None:
    env = configure(
        world,
        f'provider = "openai-compatible"\nmodel = "usual"\nsystem = "Be kind."\nbase_url = "{world.service.url}"\n',
    )
    done = world.plain(*COMMAND, "chat", "x", forked=True, **env)
    assert done.returncode == 0, done.stderr
    assert (world.service.requests[-1]["model"], sent_texts(world)) == ("usual", ["Be kind.", "x"])
    world.plain(*COMMAND, "chat", "-n", "x", forked=True, HITHERTO_MODEL="varied", **env)
    assert world.service.requests[-1]["model"] == "varied"
    world.plain(*COMMAND, "chat", "--model", "given", "x", forked=True, **env)
    assert world.service.requests[-1]["model"] == "given"


def test_a_conversation_goes_on_as_it_was_whatever_the_configuration_says(world: World) -> None:
    world.run("--model", "own", "--system", "Be terse.", "one")
    env = configure(world, 'provider = "claude"\nmodel = "usual"\nsystem = "Be kind."\nbase_url = "https://a.test"\n')
    chat = [*COMMAND, "chat", "--base-url", world.service.url]
    done = world.plain(*chat, "two", forked=True, **env)
    assert done.returncode == 0, done.stderr
    assert world.service.requests[-1]["model"] == "own"
    assert sent_texts(world)[0] == "Be terse."


def test_an_address_in_the_configuration_is_for_the_provider_it_names_only(world: World) -> None:
    """Otherwise the key of one service would be sent to another."""
    env = configure(world, f'provider = "openai"\nmodel = "m"\nbase_url = "{world.service.url}"\n')
    key = {"OPENAI_API_KEY": "sk-test-12345678"}
    done = world.plain(*COMMAND, "chat", "x", forked=True, **env, **key)
    assert done.returncode == 0, done.stderr
    chat = [*COMMAND, "chat", "-n", "--provider", "openai-compatible", "x"]
    done = world.plain(*chat, forked=True, **env, **key)
    assert (done.returncode, len(world.service.requests)) == (2, 1)
    assert "no default address" in done.stderr


def test_a_provider_that_there_is_not_is_named_where_the_configuration_says_it(world: World) -> None:
    done = world.plain(*COMMAND, "chat", "x", forked=True, **configure(world, 'provider = "nobody"\n'))
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert not world.place.exists()


def test_a_sealed_store_is_used_with_its_key(world: World) -> None:
    key = hitherto.Key.generate()
    key.to_file(world.root / "key")
    world.store(key=key).close()
    assert world.run("x").returncode == 6
    done = world.run("--key", f"file:{world.root / 'key'}", "x")
    assert done.returncode == 0, done.stderr
    assert world.run("y", HITHERTO_KEY=f"file:{world.root / 'key'}").returncode == 0
    assert sent_texts(world) == ["x", "Good morning.", "y"]


# -- files


def test_text_files_go_before_the_question_each_under_its_name(world: World) -> None:
    (world.here / "a.txt").write_text("one\n")
    (world.here / "b c.md").write_text("```\ncode\n```` x")
    done = world.run("-f", "a.txt", "-f", "b c.md", "What is this?")
    assert done.returncode == 0, done.stderr
    expected = "a.txt:\n```\none\n```\n\nb c.md:\n`````\n```\ncode\n```` x\n`````\n\nWhat is this?"
    assert world.service.asked() == [("user", expected)]
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        assert talk.title == "What is this?"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0 jpeg", "image/jpeg"),
        (b"GIF89a\x01\x00\x01\x00 gif", "image/gif"),
        (b"RIFF\x00\x01\x02\x03WEBPVP8 ", "image/webp"),
        (b"RIFF\x00\x01\x02\x03WAVEfmt ", "wav"),
        (b"ID3\x04\x00", "mp3"),
        (b"\xff\xfb\x90\x00", "mp3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_images_and_sounds_are_known_by_what_they_hold(world: World, data: bytes, kind: str) -> None:
    (world.here / "file.txt").write_bytes(data)
    done = world.run("-f", "file.txt", "What?")
    assert done.returncode == 0, done.stderr
    part, asked = world.service.requests[-1]["messages"][-1]["content"]
    assert asked == {"type": "text", "text": "What?"}
    assert kind in (part["input_audio"]["format"] if "input_audio" in part else part["image_url"]["url"])
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        assert talk.thread()[0].blocks[0].content == data
        assert talk.title == "What?"


def test_standard_input_can_be_one_of_the_files(world: World) -> None:
    done = world.run("-f", "-", "What?", said="data\n")
    assert done.returncode == 0, done.stderr
    assert sent_texts(world) == ["standard input:\n```\ndata\n```\n\nWhat?"]
    assert world.run("-n", "-f", "-", "What?", said=PNG).returncode == 0
    assert world.service.requests[-1]["messages"][-1]["content"][0]["type"] == "image_url"


_WHY = {
    "folder": "is a folder",
    "pipe": "is a pipe",
    "empty": "is empty",
    "latin": "iconv",
    "missing": "look at the path",
}


def test_what_cannot_be_sent_is_misuse_that_names_it_and_nothing_is_kept(world: World) -> None:
    (world.here / "folder").mkdir()
    os.mkfifo(world.here / "pipe")
    (world.here / "latin").write_bytes(b"caf\xe9")
    (world.here / "zero").write_bytes(b"a\0b")
    (world.here / "empty").touch()
    (world.here / "long").write_bytes(b"x" * (_question.LONGEST_TEXT + 1))
    (world.here / "large").write_bytes(PNG + bytes(_question.LARGEST))
    names = ["folder", "pipe", "latin", "zero", "empty", "long", "large", "missing", "/dev/zero", "bad\x1bname"]
    for name in names:
        done = world.run("-f", name, "What?")
        assert (done.returncode, done.stdout) == (2, ""), name
        assert name.replace("\x1b", "\u241b") in done.stderr
        assert "--help" not in done.stderr  # but what to do about this file
        assert _WHY.get(name, "-f ") in done.stderr
        assert "\x1b" not in done.stderr
    for given in (["-f", "-", "-f", "-", "x"], ["-f", "-"], ["-f", "zero"]):
        assert world.run(*given).returncode == 2
    assert world.service.requests == []
    assert not world.place.exists()


def test_files_without_a_question_go_before_the_first_that_is_typed(world: World, terminal: Open) -> None:
    (world.here / "a.txt").write_text("one")
    talk = Talk(terminal("-f", "a.txt"))
    world.service.status = 400
    talk.say("What?", "error:")
    world.service.status = 200
    talk.say("/undo", "taken back")
    talk.say("Why?")
    talk.leave()
    assert world.service.requests[0]["messages"][-1]["content"] == "a.txt:\n```\none\n```\n\nWhat?"
    assert sent_texts(world) == ["Why?"]  # it was said once, and taken back with the question


@pytest.mark.parametrize(
    ("given", "data", "why"),
    [
        (["--provider", "claude", "--model", "m"], b"RIFF\x00\x01\x02\x03WAVEfmt ", "cannot be sent to claude"),
        (["--provider", "local"], PNG, "the local model takes only text"),
    ],
    ids=["claude", "local"],
)
def test_a_file_that_the_provider_does_not_take_is_refused_before_anything_is_kept(
    world: World, given: list[str], data: bytes, why: str
) -> None:
    (world.here / "a.bin").write_bytes(data)
    done = world.command("chat", *given, "-f", "a.bin", "What?")
    assert done.returncode == 2
    assert why in done.stderr
    assert not world.place.exists()


def test_text_that_begins_as_an_image_or_a_sound_does_is_text(world: World) -> None:
    for text in ("ID3 tags are old", "GIF89a is a format"):
        (world.here / "a.txt").write_text(text)
        world.run("-n", "-f", "a.txt", "What?")
        assert sent_texts(world) == [f"a.txt:\n```\n{text}\n```\n\nWhat?"]


def test_a_conversation_is_named_by_its_question_and_not_by_what_is_piped(world: World) -> None:
    done = world.run("What is this?", said="diff --git a b\n")
    assert done.returncode == 0
    assert sent_texts(world) == ["diff --git a b\n\nWhat is this?"]
    assert title(world) == "What is this?"
    world.run("-n", said="diff --git a b\n")
    assert title(world) == "diff --git a b"


def test_what_somebody_should_know_is_said_once_before_the_first_question(world: World, terminal: Open) -> None:
    (world.here / "a.txt").write_text("one")
    talk = Talk(terminal("-f", "a.txt"))
    assert f"a new store: {world.place}" in talk.shell.plain
    assert "/help shows the commands, Ctrl+D leaves\r\n" in talk.shell.plain
    assert "with your first question: a.txt" in talk.shell.plain
    talk.say("What?")
    talk.leave()
    assert talk.shell.plain.count("/help") == 1
    talk = Talk(terminal("-G"))
    assert "Ctrl+D leaves; nothing is kept\r\n" in talk.shell.plain
    assert "a new store" not in talk.shell.plain
    talk.leave()
    assert "a new store" not in world.run("x").stderr


def test_an_answer_that_came_to_its_limit_is_said_to_be_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cut off" not in world.run("x").stderr
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda value: dumps(value).replace('"stop"', '"length"'))
    assert "the answer was cut off at its limit of tokens" in world.run("x").stderr


def test_a_zero_character_on_standard_input_is_text(world: World) -> None:
    assert world.run(said="a\0b").returncode == 0
    assert sent_texts(world) == ["a\0b"]
    assert world.thread()[0] == ("user", "a\0b")


# -- editing


def test_a_message_can_have_several_lines(world: World, terminal: Open) -> None:
    """By a paste, by Ctrl+J and Alt+Enter, by a backslash."""
    talk = Talk(terminal())
    for keys in ("\x1b[200~one\r\ntwo\x1b[201~", "one\ntwo", "one\x1b\rtwo", "one\\\rtwo"):
        talk.say(keys)
        assert sent_texts(world)[-1] == "one\ntwo"
    talk.leave()


def test_a_hostile_paste_does_nothing(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    before = len(talk.shell.shown)
    talk.say("\x1b[200~a\x1b]52;c;aGk=\x07\u202eb\x9b2J\x1b[201~")
    assert sent_texts(world) == ["a\x1b]52;c;aGk=\x07\u202eb\x9b2J"]
    assert not {"\u202e", "\x9b", "\x07"} & set(talk.shell.shown[before:])
    assert "\x1b]52" not in talk.shell.shown
    talk.shell.press("\x1b[A")  # nor when it comes back
    talk.at = talk.shell.read("aGk=", talk.at)
    talk.shell.press("\x03")
    talk.leave()
    assert not {"\u202e", "\x9b", "\x07"} & set(talk.shell.shown[before:])


def test_the_arrow_keys_bring_back_what_was_asked_and_no_file_has_it(world: World, terminal: Open) -> None:
    world.run("asked before")
    before = world.traces()
    talk = Talk(terminal("-n"))  # of this folder's last conversation
    talk.shell.press("\x1b[A")
    talk.at = talk.shell.read("asked before", talk.at)
    talk.say("")
    assert sent_texts(world) == ["asked before"]
    talk.leave()
    assert {Path(path).parent for path in set(world.traces()) - set(before)} <= {world.place.parent}
    assert not [path for path in world.home.rglob("*") if path.is_file()]


def test_tab_completes_commands(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.shell.press("/acc\t")
    talk.at = talk.shell.read("ept", talk.at)
    talk.say("", "there is no interrupted answer")
    talk.leave()


def test_control_c_clears_what_is_typed_and_then_leaves(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.shell.press("half a question")
    talk.at = talk.shell.read("half a question", talk.at)
    talk.shell.press("\x03")
    talk.say("whole")
    assert sent_texts(world) == ["whole"]
    assert talk.shell.interrupt() == 130


def test_control_c_stops_an_answer_and_a_second_one_leaves(world: World, terminal: Open) -> None:
    world.service.pieces = ["The beginning", None]
    shell = terminal()
    at = shell.read("> ")
    shell.press("story\r")
    shell.stop(shell.read("The beginning", at))
    assert shell.interrupt() == 130
    assert world.thread() == [("user", "story")]
    assert world.partials() == ["The beginning"]


@pytest.mark.parametrize("size", [(20, 10), (80, 24)], ids=str)
def test_what_is_typed_while_an_answer_comes_is_not_lost(world: World, terminal: Open, size: tuple[int, int]) -> None:
    world.service.pieces = ["The beginning", None, " and end."]
    shell = terminal(size=size)
    at = shell.read("> ")
    shell.press("one\r")
    at = shell.read("The beginning", at)
    assert world.service.waiting.wait(PATIENCE)
    shell.press("two\r")  # it is not shown before the answer has ended
    world.service.go.set()
    at = shell.read("end.", at)
    at = shell.read("two", at)
    at = shell.read("end.", at)
    shell.read("> ", at)
    shell.press("\x04")
    assert shell.end() == 0
    assert sent_texts(world) == ["one", "The beginning and end.", "two"]


def test_a_simple_terminal_has_a_simple_prompt(world: World, terminal: Open) -> None:
    talk = Talk(terminal(TERM="dumb"))
    talk.say("one\\\rtwo")
    talk.leave()
    assert sent_texts(world) == ["one\ntwo"]
    assert "\x1b" not in re.sub(r"\x1b\[\?2004[hl]", "", talk.shell.shown)  # which is readline's own


def test_the_editor_is_loaded_for_somebody_at_a_terminal_only(world: World) -> None:
    command = world.chatting("x")
    done = world.plain(command[0], "-X", "importtime", *command[1:])
    assert done.returncode == 0
    assert "hitherto.cli._prompt" in done.stderr  # the control: what is loaded is seen
    assert "prompt_toolkit" not in done.stderr


# -- commands


def test_another_model_is_used_from_then_on_and_kept(world: World, terminal: Open) -> None:
    talk = Talk(terminal("--model", "small"))
    talk.say("/model", "openai-compatible: small")
    talk.say("one")
    talk.say("/model large one", "from here on: large one")
    talk.say("two")
    talk.say("/model third", "from here on: third")
    talk.leave()
    assert [request["model"] for request in world.service.requests] == ["small", "large one"]
    with world.store() as store:
        kept = store.latest()
        assert kept is not None
        assert [change.setup.model for change in kept.setups()] == ["small", "large one"]
        assert kept.model == "third"


def test_another_system_prompt_is_used_from_then_on_and_survives_an_undo(world: World, terminal: Open) -> None:
    talk = Talk(terminal("--system", "Be terse."))
    talk.say("/system", "Be terse.")
    talk.say("one")
    talk.say("/system Be very kind.", "with this system prompt")
    talk.say("two")
    assert sent_texts(world)[0] == "Be very kind."
    talk.say("/undo", "taken back: two")
    talk.say("three")
    assert sent_texts(world) == ["Be very kind.", "one", "Good morning.", "three"]
    talk.say('/system ""', "without a system prompt")
    talk.say("four")
    assert sent_texts(world)[0] == "one"
    talk.leave()


def test_a_fork_is_chosen_from_what_was_said(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.say("one")
    talk.say("two")
    start = talk.at
    talk.say("/fork", "goes on from there")
    ids = re.findall(r"(\w{6}) (?:user|assistant): ", talk.shell.plain)
    assert ids, talk.shell.shown[start:]
    talk.say(f"/fork {ids[1]}", f"from message {ids[1]}")
    talk.say("three")
    assert sent_texts(world) == ["one", "Good morning.", "three"]
    talk.say("/fork zzzzzz", "error:")
    talk.say("/undo", "taken back: three")
    talk.leave()
    with world.store() as store:
        kept = store.latest()
        assert kept is not None
        assert (len(kept.branches()), kept.count) == (2, 6)


def test_titles_saving_and_new_conversations(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.say("/save early.jsonl", "nothing to save yet")
    talk.say("/title My first  talk", "titled: My first talk")
    talk.say("one")
    talk.say("/title", "My first  talk")
    talk.say('/save "a b.jsonl"', "saved: a b.jsonl")
    talk.say("/save a b.jsonl", "already exists")
    talk.say("/save a.unknown", "error:")
    talk.say("/save", "to which file?")
    talk.say("/new", "new conversation begins")
    talk.say("two")
    talk.say("/title another", "titled: another")
    talk.leave()
    assert sent_texts(world) == ["two"]
    with world.store() as store:
        assert [info.title for info in store.conversations()] == ["another", "My first  talk"]
    with hitherto.open("memory:") as store:
        assert hitherto.formats.load(world.here / "a b.jsonl", store).messages == 2
    assert "format=" not in talk.shell.shown


def test_another_conversation_is_gone_on_with_as_it_was(world: World, terminal: Open) -> None:
    world.run("--model", "other", "--system", "Be other.", "there")
    with world.store() as store:
        other = store.latest()
        assert other is not None
        tools = [{"name": "read", "parameters": {"type": "object", "properties": {}}}]
        store.start(provider="openai-compatible", model="mine", tools=tools, project=str(world.here), title="own")
    talk = Talk(terminal())
    talk.say("/system Be mine.", "with this system prompt")
    talk.say("here")
    assert "tools" in world.service.requests[-1]
    talk.say(f"/fork {other.id[:8]}", "with its model: other")
    talk.say("more")
    talk.leave()
    assert sent_texts(world) == ["Be other.", "there", "Good morning.", "more"]
    assert (world.service.requests[-1]["model"], "tools" in world.service.requests[-1]) == ("other", False)
    with world.store() as store:
        assert [change.setup.model for change in store.conversation(other.id).setups()] == ["other"]


def test_a_fork_is_possible_before_anything_is_said(world: World, terminal: Open) -> None:
    world.run("one")
    talk = Talk(terminal("-n"))
    talk.say("/fork", "nothing was said yet")
    talk.say("/fork @", "from here on")
    talk.say("/fork zzzzzz", "/fork shows what can be gone on from")
    talk.say("two")
    talk.leave()
    assert sent_texts(world) == ["one", "Good morning.", "two"]


def test_a_title_that_was_given_is_not_taken_away(world: World, terminal: Open) -> None:
    world.run("theirs")
    with world.store() as store:
        other = store.latest()
        assert other is not None
    talk = Talk(terminal("-n"))
    talk.say("one")
    talk.say("/undo", "taken back")
    talk.say("two")
    assert title(world) == "two"  # the control: the first question is gone, and so is its title
    talk.say("/undo", "taken back")
    talk.say("/title My own", "titled")
    talk.say("three")
    assert title(world) == "My own"
    talk.say("/new", "new conversation")
    talk.say("four")
    talk.say("/undo", "taken back")
    talk.say(f"/fork {other.id}", "from here on")
    talk.say("five")
    assert title(world) == "theirs"
    talk.leave()


def test_where_it_goes_on_is_said_when_leaving(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.say("one")
    talk.say("two")
    talk.say("/undo", "taken back: two")
    talk.leave()
    with world.store() as store:
        kept = store.latest()
        assert kept is not None
        assert kept.at == first(world, 1)
    assert f"kept: hitherto chat -c {kept.id[:8]} goes on from here" in talk.shell.plain
    talk = Talk(terminal())
    talk.say("three")
    talk.say(f"/fork {first(world, 1)}", "from here on")
    talk.leave()
    assert f"kept: hitherto chat -c {first(world, 1)} goes on from here" in talk.shell.plain


def test_a_conversation_that_was_purged_meanwhile_can_be_left_for_a_new_one(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.say("one")
    with world.store() as store:
        kept = store.latest()
        assert kept is not None
        store.purge(kept, reason="user-requested")
    talk.say("two", "/new begins a new conversation")
    talk.leave()


def test_a_command_that_fails_changes_nothing(world: World, terminal: Open) -> None:
    talk = Talk(terminal("--model", "small"))
    talk.say("one")
    talk.say('/model ""', "a model has a name")
    talk.say("/retry", "/undo takes it back")
    with world.store() as store:
        kept = store.latest()
        assert kept is not None
        store.purge(kept, reason="user-requested")
    talk.say("/model large", "error:")
    talk.say("/model", "openai-compatible: small")
    talk.say("/system Be kind.", "error:")
    talk.say("/system", "there is no system prompt")
    talk.leave()


def test_what_begins_with_a_space_is_no_command(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.say(" /help")
    talk.say("/etc/hosts is what?")
    assert sent_texts(world)[::2] == [" /help", "/etc/hosts is what?"]
    talk.leave()


def test_every_command_is_done_or_says_why_not_while_nothing_is_kept(world: World, terminal: Open) -> None:
    before = world.traces()
    talk = Talk(terminal("-G"))
    talk.say("one")
    for command, shown in (
        ("/model", "openai-compatible"),
        ("/model other", "from here on: other"),
        ("/system Be kind.", "with this system prompt"),
        ("/title x", "nothing is kept"),
        ("/fork", "nothing is kept"),
        ("/save x.jsonl", "no file is written"),
        ("/accept", "no interrupted answer"),
        ("/retry", "nothing to ask again"),
        ("/undo", "taken back: one"),
        ("/undo", "no turn to undo"),
        ("/new", "new conversation"),
    ):
        talk.say(command, shown)
    talk.say("two")
    assert (world.service.requests[-1]["model"], sent_texts(world)) == ("other", ["two"])
    talk.leave()
    assert world.traces() == before


def test_every_command_is_explained(world: World, terminal: Open) -> None:
    talk = Talk(terminal())
    talk.say("/help", "/quit")
    for name in _slash_commands.COMMANDS:
        assert name in talk.shell.plain
    talk.leave()


# -- nothing kept


def test_incognito_writes_nothing_anywhere(world: World) -> None:
    """Neither at home, nor here, nor where temporary files are; the control is the same question without -G."""
    (world.root / "tmp").mkdir()
    (world.here / "a.txt").write_text("one")
    env: dict[str, Any] = {"TMPDIR": str(world.root / "tmp"), "XDG_CACHE_HOME": str(world.home)}
    before = world.traces()
    done = world.run("-G", "-f", "a.txt", "secret", **env)
    assert (done.returncode, done.stdout) == (0, "Good morning.\n"), done.stderr
    assert world.traces() == before
    assert world.run("-f", "a.txt", "secret", **env).returncode == 0
    assert world.traces() != before


def test_incognito_leaves_no_compiled_modules_either(world: World) -> None:
    """This covers the modules that the chat loads. The control is the same without -G."""
    compiled = world.root / "compiled"
    env = {"PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""}
    for given, there in (["-G"], False), ([], True):
        assert world.run(*given, "-f", "missing", "x", forked=False, **env).returncode == 2
        names = {path.name.split(".")[0] for path in compiled.rglob("*.pyc")}
        assert ({"_session", "_question", "_hints"} <= names) is there, names


def test_incognito_does_not_mend_a_store_that_somebody_was_killed_in(world: World) -> None:
    """The control is the same without -G."""
    killed_in = world.here / "chats.db"
    with world.store(maintenance=False) as store:
        store.start(project=str(world.here)).append(hitherto.Message.user("left"))
        for end in ("", "-wal"):
            shutil.copy(f"{world.place}{end}", f"{killed_in}{end}")
    before = world.traces()
    for option in ("-c", "--fork"):
        done = world.run("-G", "--store", str(killed_in), option, "@", "x")
        assert done.returncode in (0, 1), done.stderr
        assert world.traces() == before
    assert world.run("--store", str(killed_in), "-c", "@", "x").returncode == 0
    assert world.traces() != before
