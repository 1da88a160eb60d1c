"""`hitherto chat` from the outside: real processes, a pseudo-terminal where one matters, and a service on loopback that
answers like OpenAI's, a piece at a time. Most processes are forked from one that has done the imports; some of each
kind are started by the command itself.

Requirements: C10, C11, C13 (what `chat` needs of it), C16, A9 (the flag), and STYLE on the command line.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from anthropic.resources.messages.messages import DEPRECATED_MODELS

import hitherto
from hitherto import Message
from hitherto._system import terminal_text
from hitherto.chat import PROVIDERS
from hitherto.chat._urls import is_loopback
from hitherto.cli import _chat, _exit_codes, _main, _providers, _slash_commands, _terminal

from ..support.command import COMMAND, PATIENCE, Open, Terminal, World

# -- one question


def test_a_question_is_answered_on_standard_output_and_kept(world: World) -> None:
    done = world.run("How", "are you?", forked=False)
    assert (done.returncode, done.stdout) == (0, "Good morning.\n")
    assert world.service.asked() == [("user", "How are you?")]
    assert world.thread() == [("user", "How are you?"), ("assistant", "Good morning.")]
    with world.store() as store:
        talk = store.latest(project=world.here)
        assert talk is not None
        assert (talk.title, talk.project) == ("How are you?", str(world.here))


def test_the_next_question_here_goes_on_and_says_so_on_standard_error(world: World) -> None:
    world.run("one")
    done = world.run("two")
    assert done.stdout == "Good morning.\n"
    assert "continuing" in done.stderr
    assert [text for _, text in world.service.asked()] == ["one", "Good morning.", "two"]


def test_another_folder_has_conversations_of_its_own(world: World) -> None:
    world.run("one")
    world.here = world.home
    done = world.run("two")
    assert "continuing" not in done.stderr
    assert [text for _, text in world.service.asked()] == ["two"]


def test_new_begins_a_new_conversation(world: World) -> None:
    world.run("one")
    world.run("-n", "two")
    assert [text for _, text in world.service.asked()] == ["two"]
    with world.store() as store:
        assert store.stats().conversations == 2


def test_a_conversation_is_continued_by_its_id_a_beginning_of_it_or_a_message(world: World) -> None:
    world.run("one")
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        first = talk.thread()[0].id
    world.run("-n", "other")
    world.run("-c", talk.id, "two")
    assert [text for _, text in world.service.asked()] == ["one", "Good morning.", "two"]
    world.run("-c", talk.id[:8], "three")
    assert len(world.service.asked()) == 5
    done = world.run("--continue", first, "instead")
    assert [text for _, text in world.service.asked()] == ["one", "instead"]
    assert first in done.stderr


def test_an_id_that_is_unknown_or_fits_several_is_exit_code_4(world: World) -> None:
    with world.store() as store:
        for last in "01":
            store.start(id=f"11111111-1111-4111-8111-11111111111{last}")
    for id in ("zzzzzz", "1111", "not an id"):
        done = world.run("-c", id, "x")
        assert (done.returncode, done.stdout) == (4, "")
        assert re.match(r"error: .*\nhint: .*\n\Z", done.stderr)
    assert world.service.requests == []


@pytest.mark.parametrize(
    ("said", "given", "asked"),
    [
        ("Say hello.\n", [], "Say hello."),
        ("one\n\ntwo\n", [], "one\n\ntwo"),
        ("a file\n", ["What", "is this?"], "a file\n\nWhat is this?"),
        ("", ["What?"], "What?"),
        (" \n", ["What?"], "What?"),
    ],
)
def test_standard_input_is_the_question_or_comes_before_it(
    world: World, said: str, given: list[str], asked: str
) -> None:
    assert world.run(*given, said=said).returncode == 0
    assert world.service.asked() == [("user", asked)]


def test_nothing_asked_and_what_is_no_text_is_misuse(world: World) -> None:
    for said in ("", "\n \n", b"\xff\xfe"):
        done = world.run(said=said)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
    assert world.service.requests == []


def test_in_a_pipe_the_answer_is_as_it_is(world: World) -> None:
    world.service.pieces = ["\x1b[31mred\x1b[0m ", "\u202eback", "\r", "\nend\n"]
    done = world.run("x")
    assert done.stdout == "\x1b[31mred\x1b[0m \u202eback\r\nend\n"


def test_a_reader_that_goes_away_is_no_error_and_what_came_is_kept(world: World) -> None:
    world.service.pieces = ["first\n", None, *["more\n"] * 2000]
    with subprocess.Popen(
        world.chatting("x"), cwd=world.here, env=world.env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"first\n"
        process.stdout.close()
        world.service.go.set()
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b"a new store: %s\n" % os.fsencode(world.place)
    assert world.thread() == [("user", "x")]
    assert world.partials()[0].startswith("first\n")


def test_a_question_that_failed_and_is_asked_again_is_sent_once(world: World) -> None:
    """Each retry is another process, which continues the conversation of this folder."""
    world.run("before")
    world.service.status = 401
    for _ in range(2):
        assert world.run("How are you?").returncode != 0
    world.service.status = 200
    world.run("How are you?")
    assert [text for _, text in world.service.asked()] == ["before", "Good morning.", "How are you?"]
    assert [text for _, text in world.thread()] == ["before", "Good morning.", "How are you?", "Good morning."]
    world.run("How are you?")  # the control: this one was answered, so it is said once more
    assert [text for _, text in world.service.asked()][2::2] == ["How are you?", "How are you?"]


def test_one_question_that_is_interrupted_is_kept_with_what_came_and_says_130(world: World) -> None:
    world.service.pieces = ["first\n", None]
    with subprocess.Popen(
        world.chatting("x"), cwd=world.here, env=world.env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"first\n"
        while process.poll() is None:  # again, for the same reason as in a terminal
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE / 4)
        assert process.returncode == 130
        said = process.stderr.read().decode()
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        assert f"\nstopped; hitherto chat -c {talk.at} shows what is kept" in said
    assert world.thread() == [("user", "x")]
    assert world.partials() == ["first\n"]


def test_the_system_prompt_is_kept_and_can_be_another_later(world: World) -> None:
    world.run("--system", "Be terse.", "one")
    assert world.service.asked()[0] == ("system", "Be terse.")
    world.run("two")
    assert world.service.asked()[0] == ("system", "Be terse.")
    world.run("--system", "Be kind.", "three")
    assert world.service.asked()[0] == ("system", "Be kind.")
    world.run("four")
    assert world.service.asked()[0] == ("system", "Be kind.")


def test_provider_and_model_come_from_the_environment_and_the_model_from_the_conversation(world: World) -> None:
    address = ["--base-url", world.service.url]
    chat = [*COMMAND, "chat", *address]
    done = world.plain(*chat, "x", forked=True, HITHERTO_PROVIDER="openai-compatible", HITHERTO_MODEL="small")
    assert done.returncode == 0, done.stderr
    assert world.service.requests[-1]["model"] == "small"
    world.run("y")
    assert world.service.requests[-1]["model"] == "small"
    world.run("--model", "large", "z")
    assert world.service.requests[-1]["model"] == "large"


def test_no_usual_model_of_claude_is_one_that_its_sdk_warns_of() -> None:
    assert "claude-sonnet-4-5" in DEPRECATED_MODELS  # the control
    assert set(_providers.PROVIDERS["claude"].models) & set(DEPRECATED_MODELS) == set()


def test_the_providers_are_those_of_the_library() -> None:
    assert tuple(_providers.PROVIDERS) == PROVIDERS


# -- what goes wrong


def test_an_error_of_the_service_is_said_and_the_question_stays(world: World) -> None:
    world.store().close()
    world.service.status = 400
    done = world.run("x")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(r"error: .*400.*\nhint: .*the question is kept.*/undo.*\n\Z", done.stderr), done.stderr
    assert world.thread() == [("user", "x")]
    world.service.status = 200
    done = world.run("y")
    assert done.returncode == 0
    assert "not answered" in done.stderr
    assert [text for _, text in world.service.asked()] == ["x", "y"]


def test_a_store_that_cannot_be_opened_is_said_and_nothing_is_asked(world: World) -> None:
    """C16: no other store is used instead."""
    for place, code in ((world.here, 1), (world.root / "sealed.db", 6)):
        if code == 6:
            hitherto.open(place, key=bytes(range(32))).close()
        before = world.traces()
        done = world.run("--store", str(place), "x")
        assert (done.returncode, done.stdout) == (code, "")
        assert str(place) in done.stderr or code == 6
        assert done.stderr.startswith("error: ")
        assert world.traces() == before
    assert world.service.requests == []


@pytest.mark.parametrize(
    "given",
    [
        ["chat", "-n", "-c", "x", "y"],
        ["chat", "--provider", "nobody", "x"],
        ["chat", "--no-such-option"],
        ["chat", "--provider", "openai-compatible", "x"],
        ["chat", "--provider", "openai-compatible", "--base-url", "http://10.0.0.1:9/", "x"],
        ["frobnicate"],
        ["chat", "--workspace", "", "x"],
        ["chat", "--provider", "local", "--model", "m", "x"],
    ],
    ids=" ".join,
)
def test_misuse_is_exit_code_2_with_a_hint_and_makes_nothing(world: World, given: list[str]) -> None:
    before = world.traces()
    done = world.plain(*COMMAND, *given, forked=True)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert re.match(r"error: .*\nhint: .*\n\Z", done.stderr), done.stderr
    assert world.traces() == before


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://127.8.9.10:1/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://localhost:1/v1", True),
        ("https://[::1]/v1", True),
        ("https://api.openai.com/v1", False),
        ("http://api.openai.com/v1", False),
        ("http://192.168.0.1/v1", False),
        ("http://127.0.0.1.example.net/v1", False),
        ("http://localhost.example.net/v1", False),
        ("http://user@10.0.0.1/v1", False),
        ("http://0.0.0.0/v1", False),
        ("http://127.1/v1", False),
        ("http://", False),
        ("", False),
        ("http://[::1", False),
    ],
)
def test_insecure_addresses_are_taken_on_this_machine_only(url: str, fine: bool) -> None:
    """A9."""
    assert is_loopback(url) == fine


def test_http_to_another_machine_is_refused_with_a_hint_and_the_address_is_not_shown(world: World) -> None:
    chat = [*COMMAND, "chat", "--provider", "openai-compatible"]
    for how in (["--base-url", "http://10.0.0.1/secret"], []):
        done = world.plain(*chat, *how, "x", forked=True, OPENAI_BASE_URL="http://10.0.0.1/secret")
        assert done.returncode == 2
        assert "hint: use https: http is for a server on this machine only" in done.stderr
        assert "secret" not in done.stderr


def test_the_key_that_is_there_chooses_the_provider(world: World) -> None:
    env = {"OPENAI_API_KEY": "sk-test-12345678", "OPENAI_BASE_URL": world.service.url}
    done = world.command("chat", "x", **env)
    assert done.returncode == 0, done.stderr
    assert "talking to openai, gpt-5" in done.stderr
    assert world.service.requests[-1]["model"] == "gpt-5"
    assert "sk-test" not in done.stderr


def test_keys_of_several_providers_are_a_choice_that_the_user_makes(world: World) -> None:
    env = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2", "OPENAI_BASE_URL": world.service.url}
    done = world.command("chat", "x", **env)
    assert done.returncode == 2
    assert "claude (ANTHROPIC_API_KEY), openai (OPENAI_API_KEY)" in done.stderr
    assert "hint: --provider claude, or for good: hitherto config set provider claude" in done.stderr
    assert world.service.requests == []
    assert not world.place.exists()
    for way in ({"HITHERTO_PROVIDER": "openai"}, {"HITHERTO_CONFIG": str(world.root / "config.toml")}):
        (world.root / "config.toml").write_text('provider = "openai"\n')
        assert world.command("chat", "x", **env, **way).returncode == 0


@pytest.mark.parametrize("name", ["opnai", "Claude", "gemni"])
def test_a_misspelt_provider_is_answered_with_the_one_that_was_meant(world: World, name: str) -> None:
    done = world.command("chat", "--provider", name, "x")
    assert done.returncode == 2
    assert "did you mean" in done.stderr


def test_a_conversation_of_another_provider_is_explained_and_can_be_converted(world: World) -> None:
    with world.store() as store:
        talk = store.start(provider="claude", model="m", project=str(world.here))
        raw: dict[str, object] = {"role": "user", "content": [{"type": "text", "text": "Guten Tag"}]}
        talk.append(Message.user("Guten Tag", raw=raw, extra={"dialect": "anthropic"}))
        raw = {"role": "assistant", "content": [{"type": "text", "text": "Ja?"}]}
        talk.append(Message.assistant("Ja?", raw=raw, extra={"dialect": "anthropic"}))
    done = world.run("x")
    assert done.returncode == 1
    assert "hint: --provider claude goes on as it is; --convert tells openai-compatible" in done.stderr
    assert world.service.requests == []
    done = world.run("--convert", "x")
    assert done.returncode == 0, done.stderr
    assert [text for _, text in world.service.asked()] == ["Guten Tag", "Ja?", "x"]


def test_a_conversation_in_another_dialect_of_its_provider_can_only_be_converted(world: World) -> None:
    with world.store() as store:
        talk = store.start(provider="openai-compatible", model="m", project=str(world.here))
        for make in (Message.user, Message.assistant):
            talk.append(make("Hm", raw={"type": "message"}, extra={"dialect": "openai-responses"}))
    done = world.run("x")
    assert done.returncode == 1
    assert "hint: --convert tells openai-compatible what it can be told; -n" in done.stderr
    assert world.run("-G", "-c", "@", "--convert", "x").returncode == 0


def test_a_conversation_that_nobody_answered_goes_on_with_anybody(world: World) -> None:
    with world.store() as store:
        talk = store.start(provider="claude", model="m", project=str(world.here))
        raw: dict[str, object] = {"role": "user", "content": [{"type": "text", "text": "Guten Tag"}]}
        talk.append(Message.user("Guten Tag", raw=raw, extra={"dialect": "anthropic"}))
    done = world.run("x")
    assert done.returncode == 0, done.stderr
    assert [text for _, text in world.service.asked()] == ["Guten Tag", "x"]


def test_what_is_lost_in_a_conversion_is_said_also_if_nothing_is_kept(world: World) -> None:
    with world.store() as store:
        talk = store.start(provider="claude", model="m", project=str(world.here), tools=[{"name": "read"}])
        call = hitherto.Block.tool_call("call_1", "read", {})
        talk.extend([Message.user("read it"), Message.assistant([call])])
    done = world.run("-G", "-c", "@", "--convert", "go on")
    assert done.returncode == 0, done.stderr
    assert "repaired: a call had no result" in done.stderr
    assert "tools without a handler here: read" in done.stderr


CLAUDE = r"""#!{python}
import json, sys
for line in sys.stdin:
    text = "I heard " + json.loads(line)["message"]["content"][0]["text"]
    message = {{"id": "m", "model": "claude-x", "role": "assistant", "content": [{{"type": "text", "text": text}}]}}
    print(json.dumps({{"type": "assistant", "message": message}}), flush=True)
    print(json.dumps({{"type": "result", "subtype": "success", "result": text, "is_error": False}}), flush=True)
"""


def test_what_is_said_to_the_claude_program_is_kept_in_a_conversation_of_its_own(world: World) -> None:
    world.run("one")
    program = world.root / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE.format(python=sys.executable))
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{world.env['PATH']}"
    done = world.plain(*COMMAND, "chat", "--provider", "claude-local", "two", forked=True, PATH=path)
    assert (done.returncode, done.stdout) == (0, "I heard two\n"), done.stderr
    assert world.thread() == [("user", "two"), ("assistant", "I heard two")]
    with world.store() as store:
        kept = store.latest()
        assert kept is not None
        assert len(store.conversations().items) == 2
    done = world.plain(*COMMAND, "chat", "--provider", "claude-local", "-c", kept.id, "x", forked=True, PATH=path)
    assert done.returncode == 1
    assert "cannot continue" in done.stderr


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["--provider", "claude-local"], "npm install"),
        (
            ["--provider", "claude", "--model", "m"],
            "error: claude cannot be asked: there is no key\nhint: set ANTHROPIC_",
        ),
        (
            ["--provider", "openai", "--model", "m"],
            "error: openai cannot be asked: there is no key\nhint: set OPENAI_API",
        ),
    ],
    ids=["claude-local", "claude", "openai"],
)
def test_a_provider_that_cannot_be_asked_is_found_out_before_anything_is_kept(
    world: World, given: list[str], hint: str
) -> None:
    done = world.plain(*COMMAND, "chat", *given, "x", forked=True, PATH=str(world.here))
    assert done.returncode == 1
    assert hint in done.stderr
    assert not world.place.exists()


# -- nothing kept


def test_incognito_leaves_no_trace(world: World) -> None:
    """C13: with an existing store, and without one."""
    for _ in range(2):
        before = world.traces()
        done = world.run("-G", "secret")
        assert (done.returncode, done.stdout) == (0, "Good morning.\n"), done.stderr
        assert world.service.asked() == [("user", "secret")]
        assert world.traces() == before
        world.run("x")  # the control: this does leave one
        assert world.traces() != before


@pytest.mark.parametrize("writer", [False, True], ids=["closed", "open elsewhere"])
def test_incognito_reads_a_conversation_without_a_trace(world: World, writer: bool) -> None:
    world.run("one")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(world.store(maintenance=False))
        talk = store.latest()
        assert talk is not None
        if writer:
            talk.append(Message.user("and"))
        else:
            stack.close()
        before = world.traces()
        done = world.run("-G", "-c", talk.id[:8], "two")
        assert done.returncode == 0, done.stderr
        assert world.traces() == before
    expected = ["one", "Good morning.", *(["and"] if writer else []), "two"]
    assert [text for _, text in world.service.asked()] == expected


def test_incognito_makes_no_store_to_look_for_a_conversation_in(world: World) -> None:
    before = world.traces()
    done = world.run("-G", "-c", "abcdef", "x")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert world.traces() == before


# -- in a terminal


def test_a_conversation_in_the_terminal(world: World, terminal: Open) -> None:
    shell = terminal(forked=False)
    shell.read("> ")
    shell.press("first question\r")
    at = shell.read("Good morning.")
    at = shell.read("> ", at)
    shell.press("\r")  # nothing said: the prompt again
    at = shell.read("> ", at)
    shell.press("second\r")
    at = shell.read("> ", shell.read("Good morning.", at))
    shell.press("/help\r")
    at = shell.read("> ", shell.read("/accept", at))
    shell.press("/quit\r")
    assert shell.end() == 0
    assert "goes on from here" in shell.shown
    assert [text for _, text in world.thread()] == ["first question", "Good morning.", "second", "Good morning."]


def test_the_end_of_input_leaves_and_the_next_start_continues(world: World, terminal: Open) -> None:
    shell = terminal()
    at = shell.read("> ")
    shell.press("one\r")
    shell.read("> ", shell.read("Good morning.", at))
    shell.press("\x04")
    assert shell.end() == 0
    shell = terminal()
    at = shell.read("continuing")
    at = shell.read("> ", at)
    shell.press("two\r")
    shell.read("> ", shell.read("Good morning.", at))
    shell.press("\x04")
    assert shell.end() == 0
    assert [text for _, text in world.service.asked()] == ["one", "Good morning.", "two"]


def test_control_c_at_the_prompt_leaves_with_130(world: World, terminal: Open) -> None:
    shell = terminal()
    shell.read("> ")
    assert shell.interrupt() == 130
    assert world.service.requests == []


def test_control_c_stops_an_answer_and_keeps_the_question_and_what_came(world: World, terminal: Open) -> None:
    """C10."""
    world.service.pieces = ["The beginning", None, " and the end"]
    shell = terminal(forked=False)
    at = shell.read("> ")
    shell.press("long story\r")
    at = shell.read("The beginning", at)
    at = shell.stop(at)
    assert world.thread() == [("user", "long story")]
    assert world.partials() == ["The beginning"]
    world.service.pieces = ["Yes."]
    shell.press("go on\r")
    shell.read("> ", shell.read("Yes.", at))
    shell.press("\x04")
    assert shell.end() == 0
    assert [text for _, text in world.thread()] == ["long story", "go on", "Yes."]


@pytest.mark.parametrize("command", ["/accept", "/retry", "/discard"])
def test_what_was_stopped_can_be_settled_at_once(world: World, terminal: Open, command: str) -> None:
    world.service.pieces = ["The beginning", None]
    shell = terminal()
    at = shell.read("> ")
    shell.press("story\r")
    at = shell.read("The beginning", at)
    at = shell.stop(at)
    world.service.pieces = ["Whole."]
    shell.press(f"{command}\r")
    sign = {"/accept": "accepted", "/retry": "Whole.", "/discard": "discarded"}[command]
    at = shell.read("> ", shell.read(sign, at))
    assert world.partials() == []
    shell.press("then?\r")
    shell.read("> ", shell.read("Whole.", at))
    shell.press("\x04")
    assert shell.end() == 0
    answered = {"/accept": ["The beginning"], "/retry": ["Whole."], "/discard": []}[command]
    assert [text for _, text in world.service.asked()] == ["story", *answered, "then?"]
    assert [text for _, text in world.thread()] == ["story", *answered, "then?", "Whole."]


def ask_and_kill(world: World, *pieces: str | None) -> None:
    """Ask, and kill the process in the middle of the answer, after the partial answer was written."""
    world.service.pieces = list(pieces)
    arguments = world.chatting("story")[len(COMMAND) :]
    with (
        open(os.devnull, "r+b") as null,
        world.forker.start(arguments, cwd=world.here, env=world.env, streams=[null.fileno()] * 3) as process,
    ):
        assert world.service.waiting.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while pieces[0] is not None and not world.partials():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    world.service.pieces = ["Whole."]


@pytest.mark.parametrize("choice", ["a", "r", "d"])
def test_after_a_kill_in_the_middle_of_an_answer_it_is_offered(world: World, terminal: Open, choice: str) -> None:
    """C10, C11."""
    ask_and_kill(world, "The \x1b[31mbeginning", None)
    shell = terminal()
    at = shell.read("not answered: story")
    at = shell.read("The \u241b[31mbeginning", at)
    at = shell.read("[a]ccept", at)
    shell.press(f"what\r{choice}\r")  # what is none of the choices is asked again
    sign = {"a": "accepted", "r": "Whole.", "d": "discarded"}[choice]
    shell.read("> ", shell.read(sign, at))
    shell.press("\x04")
    assert shell.end() == 0
    answered = {"a": ["The \x1b[31mbeginning"], "r": ["Whole."], "d": []}[choice]
    assert [text for _, text in world.thread()] == ["story", *answered]
    assert world.partials() == []


@pytest.mark.parametrize("choice", ["y", "n"])
def test_a_question_without_an_answer_is_offered_again(world: World, terminal: Open, choice: str) -> None:
    """C11."""
    ask_and_kill(world, None)
    shell = terminal()
    at = shell.read("ask again?", shell.read("not answered: story"))
    shell.press(f"{choice}\r")
    if choice == "y":
        at = shell.read("Whole.", at)
    shell.read("> ", at)
    shell.press("\x04")
    assert shell.end() == 0
    assert [text for _, text in world.thread()] == ["story", *(["Whole."] if choice == "y" else [])]


def test_one_question_after_a_kill_mentions_it_and_goes_on(world: World) -> None:
    ask_and_kill(world, "The beginning", None)
    done = world.run("next")
    assert (done.returncode, done.stdout) == (0, "Whole.\n")
    assert re.search(r"not answered; 13 characters of an answer had come at \d{4}-\d\d-\d\d \d\d:\d\d", done.stderr)
    assert [text for _, text in world.thread()] == ["story", "next", "Whole."]
    assert world.partials() == ["The beginning"]


def test_a_tool_call_that_was_interrupted_is_mended_and_said(world: World) -> None:
    with world.store() as store:
        talk = store.start(provider="openai-compatible", project=str(world.here))
        call = hitherto.Block.tool_call("call_1", "read", {})
        talk.extend([Message.user("read it"), Message.assistant([call])])
    done = world.run("go on")
    assert done.returncode == 0, done.stderr
    assert "repaired: a call had no result" in done.stderr


def test_an_error_in_the_terminal_gives_the_prompt_back(world: World, terminal: Open) -> None:
    world.service.status = 400
    shell = terminal()
    at = shell.read("> ")
    shell.press("x\r")
    at = shell.read("error:", at)
    at = shell.read("/undo", at)
    at = shell.read("> ", at)
    world.service.status = 200
    shell.press("/retry\r")
    shell.read("> ", shell.read("Good morning.", at))
    shell.press("\x04")
    assert shell.end() == 0
    assert [text for _, text in world.thread()] == ["x", "Good morning."]


def test_what_an_answer_holds_does_nothing_to_the_terminal(world: World, terminal: Open) -> None:
    """STYLE: escape sequences, whole or cut in two, and characters that reorder the line."""
    world.service.pieces = ["\x1b", "]52;c;aGk=\x07", "\x9b2J", "\u202eabc", "\r", "\nnext ", "\x08\x08\r", "end"]
    for given, env in ((["x"], {}), ([], {"NO_COLOR": "1"})):
        shell = terminal("-n", *given, **env)
        if not given:
            shell.read("> ")
            shell.press("x\r")
        shell.read("end")
        if not given:
            shell.read("> ", shell.read("end"))
            shell.press("\x04")
        assert shell.end() == 0
        shown = shell.shown
        assert "\u241b]52;c;aGk=\u2407<U+009B>2J<U+202E>abc\r\nnext \u2408\u2408\u240dend" in shown
        assert not {"\x9b", "\u202e", "\x07", "\x08"} & set(shown.split("aGk=")[1].split("end")[0])
        assert "\x1b]52" not in shown
        if env:
            assert set(re.findall(r"\x1b\[([0-9;]*)m", shown)) == {"0"}  # which is the editor's own


def test_the_answer_can_go_into_a_file_while_somebody_types(world: World, terminal: Open) -> None:
    """The prompt is not part of the file."""
    target = world.here / "answer.txt"
    command = ["/bin/sh", "-c", 'exec "$@" > answer.txt', "sh", *world.chatting()]
    shell = terminal(command=command)
    at = shell.read("> ")
    shell.press("x\r")
    at = shell.read("\n", at)
    shell.read("> ", at)
    shell.press("\x04")
    assert shell.end() == 0
    assert target.read_text() == "Good morning.\n"


def test_incognito_in_the_terminal_leaves_no_trace_either(world: World, terminal: Open) -> None:
    before = world.traces()
    world.service.pieces = ["The beginning", None]
    shell = terminal("-G")
    at = shell.read("> ")
    shell.press("x\r")
    at = shell.read("The beginning", at)
    at = shell.stop(at)
    world.service.pieces = ["Whole."]
    shell.press("/retry\r")
    shell.read("> ", shell.read("Whole.", at))
    shell.press("\x04")
    assert shell.end() == 0
    assert world.traces() == before


# -- the screen


def test_text_is_made_harmless_and_cut_to_columns() -> None:
    assert terminal_text.escape_control_characters("a\tb\nc\r\nd\re\x7f\x85\u2066\ud800é😀") == (
        "a\tb\nc\nd\u240de\u2421<U+0085><U+2066>\ufffdé😀"
    )
    assert _terminal.line("漢字漢字", 6) == "漢字…"
    assert _terminal.line("short", 6) == "short"
    assert "\x1b" not in _terminal.line("\x1b[2J" * 9, 20)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (hitherto.NotFound("message", ["x"]), 4),
        (hitherto.Ambiguous("x", ["xa", "xb"]), 4),
        (hitherto.InvalidID("x"), 4),
        (hitherto.KeyUnavailable("x"), 6),
        (hitherto.Busy("x"), 9),
        (hitherto.InvalidArgument("x"), 2),
        (hitherto.InvalidMessage("x"), 1),
        (hitherto.CannotOpen("x"), 1),
        (hitherto.ChatError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_has_its_exit_code(error: hitherto.HithertoError, code: int) -> None:
    assert _exit_codes.exit_code_of(error) == code


# -- starting up


@pytest.mark.parametrize("given", [["--help"], ["chat", "--help"], ["--version"]], ids=" ".join)
def test_asking_for_help_loads_nothing_heavy(given: list[str]) -> None:
    heavy = {
        *("openai", "anthropic", "google", "xllamacpp", "httpx", "httpx2", "pydantic", "cryptography"),
        *(
            "apsw",
            "msgspec",
            "asyncio",
            "logging",
            "prompt_toolkit",
            "hitherto.store",
            "hitherto.chat",
            "hitherto.recorder",
        ),
    }
    script = f"import sys, hitherto.cli\ntry: hitherto.cli.main({given!r})\nexcept SystemExit as e: print(e.code)\n"
    script += "print(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{script}"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout.splitlines()
    loaded = set(shown[-1].split())
    assert shown[-2] == "0"
    assert "click" in loaded  # the control: what is needed is seen
    assert loaded.isdisjoint(heavy)


def test_every_command_is_listed_as_it_says_itself() -> None:
    import click

    for name, entry in _main.COMMANDS.items():
        command = _main.hitherto.get_command(click.Context(_main.hitherto), name)
        assert command is not None
        assert command.get_short_help_str(100) == entry.summary


def test_every_option_and_exit_code_is_in_the_documentation() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    options = [option for parameter in _chat.chat.params for option in parameter.opts if option.startswith("-")]
    assert len(options) > 10
    assert [option for option in options if f"`{option}" not in page] == []
    assert [c for c in (0, 1, 2, 4, 6, 9, 130) if not re.search(rf"^\| {c} \|", page, re.MULTILINE)] == []
    assert [word for word in _slash_commands.COMMANDS if f"`{word}`" not in page] == []


# -- the real thing


def test_a_real_local_model_answers_and_incognito_leaves_no_trace(world: World) -> None:
    pytest.importorskip("xllamacpp")
    before = world.traces()
    done = world.plain(*COMMAND, "chat", "-G", "Say hello.")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "starting the local model" in done.stderr
    assert world.traces() == before


def test_a_conversation_is_gone_on_with_at_its_own_provider(world: World) -> None:
    """It never moves to the local model silently. The address of a server on this machine is kept with it."""
    world.run("one")
    done = world.plain(*COMMAND, "chat", "two")
    assert done.returncode == 0, done.stderr
    assert "starting the local model" not in done.stderr
    assert world.thread() == [
        ("user", "one"),
        ("assistant", "Good morning."),
        ("user", "two"),
        ("assistant", "Good morning."),
    ]


def test_an_output_that_is_full_or_closed_is_no_traceback(world: World) -> None:
    for redirection, code in ((">/dev/full", 1), (">&-", 0), ("2>&-", 0)):
        command = " ".join(shlex.quote(part) for part in world.chatting("-n", "one"))
        done = world.plain("sh", "-c", f"{command} {redirection}")
        assert done.returncode == code, (redirection, done.stderr)


def test_a_command_that_there_is_not_is_no_question(world: World, terminal: Callable[..., Terminal]) -> None:
    shell = terminal("-n")
    at = shell.read("> ")
    shell.press("/frobnicate the model\r")
    at = shell.read("no command /frobnicate", at)
    shell.press("/undo it\r")
    at = shell.read("takes nothing more", at)
    shell.press("one\r")
    at = shell.read("> ", shell.read("Good morning.", at))
    shell.press("/undo\r")
    at = shell.read("taken back: one", at)
    shell.press("two\r")
    at = shell.read("> ", shell.read("Good morning.", at))
    shell.press("/exit\r")
    assert shell.end() == 0
    assert world.thread() == [("user", "two"), ("assistant", "Good morning.")]
    with world.store() as store:
        assert [info.title for info in store.conversations()] == ["two"]
