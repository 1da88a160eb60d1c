"""The pages that a stranger reads first: their commands are typed as they stand there, in an empty folder.

Only addresses and keys are replaced: those of servers become that of a service on loopback.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hitherto
from hitherto import Message

from ..support.command import World
from ..support.provider import chat_answer, provider

ROOT = Path(__file__).resolve().parents[2]
README, SERVERS, TOOLS = ROOT / "README.md", ROOT / "docs" / "local-servers.md", ROOT / "docs" / "other-tools.md"
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/v1")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path, word: str = "hitherto") -> list[str]:
    """The command lines of a page."""
    fenced = (text for kind, text in _FENCE.findall(page.read_text()) if kind in ("", "sh"))
    lines = [line for text in fenced for line in text.splitlines()]
    return [line for line in lines if re.match(rf"{word} |.* \| {word} ", line)]


def programs(page: Path) -> list[str]:
    return [text for kind, text in _FENCE.findall(page.read_text()) if kind == "python"]


def run(world: World, line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of a page. What is piped into it is a line of text."""
    piped, _, typed = line.rpartition(" | ")
    words = shlex.split(_ADDRESS.sub(world.service.url, typed), comments=True)
    done = world.command(*words[1:], said="what is piped" if piped else "", **env)
    assert done.returncode == 0, (line, done.stderr)
    return done


@pytest.fixture
def stranger(world: World) -> World:
    """A world in which nothing says where the store is."""
    del world.env["HITHERTO_STORE"]
    return world


def test_the_python_and_the_commands_of_the_readme_use_one_store(stranger: World) -> None:
    with provider(lambda _: chat_answer("An unused import breaks the lint step.")) as server:
        stranger.env |= {"OPENAI_API_KEY": "sk-of-a-stranger", "OPENAI_BASE_URL": f"{server.url}/v1"}
        for _ in range(2):  # today, and tomorrow
            done = stranger.plain(sys.executable, "-c", programs(README)[0])
            assert done.returncode == 0, done.stderr
    assert [len(asked.body["messages"]) for asked in server.asked] == [1, 3]
    lines = {line.split()[1]: line for line in commands(README)}
    assert {"chat", "list", "log", "search", "serve"} <= set(lines)
    assert "4 messages" in run(stranger, lines["list"]).stdout
    assert "An unused import" in run(stranger, lines["log"]).stdout
    assert "Why is the build failing?" in run(stranger, lines["search"]).stdout


@pytest.mark.parametrize("way", ["a key", "a server"])
def test_each_way_of_the_readme_leads_to_a_kept_answer(stranger: World, way: str) -> None:
    env = {"OPENAI_API_KEY": "sk-of-a-stranger", "OPENAI_BASE_URL": stranger.service.url} if way == "a key" else {}
    found = [line for line in commands(README) if " chat " in line and _is_for_server(line) == (way == "a server")]
    assert found
    for line in found:
        assert run(stranger, line, **env).stdout == "Good morning.\n"
    listed = stranger.command("list").stdout.splitlines()
    assert len(listed) == 1
    assert f"{2 * len(found)} messages" in listed[0]


def test_the_ways_of_the_readme_follow_each_other_in_one_folder(stranger: World) -> None:
    """A key, and then a server without it: the conversation goes on, whoever answers."""
    with_key, with_server = sorted((line for line in commands(README) if " chat " in line), key=_is_for_server)
    run(stranger, with_key, OPENAI_API_KEY="sk-of-a-stranger", OPENAI_BASE_URL=stranger.service.url)
    run(stranger, with_server)
    assert len(stranger.service.asked()) == 3


def _is_for_server(line: str) -> bool:
    return "--base-url" in line


def test_the_commands_of_the_page_on_local_servers_work(stranger: World) -> None:
    lines = commands(SERVERS)
    assert len(lines) >= 6
    for line in lines:
        run(stranger, line)
    models = [request["model"] for request in stranger.service.requests]
    assert models == ["smollm2", "llama3.2", "qwen3-4b", "llama3.2"]
    with hitherto.open(stranger.command("where").stdout.strip(), read_only=True) as store:
        assert [info.count for info in store.conversations()] == [2, 6]


def test_the_program_of_the_page_on_local_servers_works(stranger: World) -> None:
    (program,) = programs(SERVERS)
    with provider(lambda _: chat_answer("Hello.")) as server:
        done = stranger.plain(sys.executable, "-c", _ADDRESS.sub(f"{server.url}/v1", program))
    assert done.stdout == "Hello.\n", done.stderr
    assert [asked.body["messages"][0]["content"] for asked in server.asked] == ["Be terse."]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the program sqlite3 is not installed")
def test_the_commands_of_the_page_on_other_tools_work(stranger: World) -> None:
    with hitherto.open(stranger.command("init").stdout.strip()) as store:
        talk = store.start(title="Failing build", provider="openai", model="gpt-5")
        talk.append(Message.user("Why is the build failing?"))
        answer = talk.append(Message.assistant("An unused import breaks the lint step."))
    for line in commands(TOOLS):
        run(stranger, line)
    titles, found, models = [
        stranger.plain(*shlex.split(line)).stdout.splitlines() for line in commands(TOOLS, "sqlite3")
    ]
    assert titles[0].startswith("Failing build|")
    assert found == [f"{answer.id}|An unused import breaks the lint step."]
    assert [line.split("|")[:2] for line in models] == [["gpt-5", "1"]]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("named", "provider"), [({}, "local"), ({"HITHERTO_PROVIDER": "openai"}, "openai")], ids=str)
def test_make_chat_spends_nobodys_money(tmp_path: Path, named: dict[str, str], provider: str) -> None:
    """Whatever keys there are, it names the local model, unless a provider is given."""
    command = tmp_path / "hitherto"
    command.write_text('#!/bin/sh\necho "$HITHERTO_PROVIDER: $*"\n')
    command.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-x", "ANTHROPIC_API_KEY": "sk-x"} | named
    typed = ["make", "--dry-run", "--no-print-directory", "chat", f"BIN={tmp_path}", "ARGS=-n hello"]
    recipe = subprocess.run(typed, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    done = subprocess.run(["sh", "-c", recipe.splitlines()[-1]], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{provider}: chat -n hello\n"
