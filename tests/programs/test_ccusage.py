"""ccusage, which adds up the files of Claude Code: what it counts, and why `hitherto usage` counts something else.

The differences are explained in docs/rescue.md. Requirements: F3.
"""

import itertools
import json
from pathlib import Path

import pytest

import hitherto
from hitherto.usage import count_usage

from ..support.imports import put_lines
from ..support.provider import Asked, Json, Provider, Reply, provider
from . import test_claude_code
from .running import Home, needs
from .scripted import answer

pytestmark = [needs("claude"), needs("ccusage")]
SESSION = "5d2c2fd0-0000-4000-8000-000000000001"
OF_ONE = {"input": 11, "output": 9}  # tokens that the scripted provider counts for each answer


def sessions(server: Provider, home: Home) -> None:
    """Write a session with a tool, a fork that copies its three answers, and one more turn."""
    test_claude_code.ask(home, "use a tool please")
    (file,) = (home.path / ".claude" / "projects").rglob("*.jsonl")
    test_claude_code.ask(home, "second", "--resume", file.stem)
    test_claude_code.ask(home, "a fork", "--resume", file.stem, "--fork-session")


def theirs(home: Home) -> tuple[int, int, float]:
    """Return tokens in, tokens out, and the cost, as ccusage adds them up."""
    found = json.loads(home.run("ccusage", "daily", "--offline", "--json"))["totals"]
    read = found["inputTokens"] + found["cacheReadTokens"] + found["cacheCreationTokens"]
    return read, found["outputTokens"], round(found["totalCost"], 6)


def ours(home: Home) -> tuple[int, int, float]:
    with hitherto.open("memory:") as store:
        home.rescue(store, "claude-code")
        total = count_usage(store).total
    return total.usage.input_tokens, total.usage.output_tokens, total.cost


@pytest.mark.parametrize("has_request_ids", [True, False])
def test_a_fork_counts_once_here_and_there_if_the_answers_have_request_ids(
    has_request_ids: bool, tmp_path: Path
) -> None:
    numbers = itertools.count()

    def answer_with_id(asked: Asked) -> Reply | Json:
        reply = answer(asked)
        if has_request_ids and isinstance(reply, Reply):
            reply.headers["request-id"] = f"req_{next(numbers)}"
        return reply

    with provider(answer_with_id) as server:
        home = test_claude_code.home_for(server, tmp_path / "home")
        sessions(server, home)
    assert ours(home)[:2] == (4 * OF_ONE["input"], 4 * OF_ONE["output"])
    copied = 0 if has_request_ids else 3
    assert theirs(home)[:2] == ((4 + copied) * OF_ONE["input"], (4 + copied) * OF_ONE["output"])


def test_of_the_lines_of_one_answer_the_last_counts_here_and_the_first_there(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    about = {"cwd": "/srv/app", "sessionId": SESSION, "version": "2.1.327", "timestamp": "2026-11-18T10:00:00.000Z"}
    lines: list[Json] = [{"type": "user", "uuid": f"{SESSION[:-1]}0", "parentUuid": None, **about}]
    lines[0]["message"] = {"role": "user", "content": "hi"}
    for number, output in enumerate([3, 172, 172], 2):
        usage = {"input_tokens": 1000, "output_tokens": output}
        usage |= {"cache_read_input_tokens": 20_000, "cache_creation_input_tokens": 3000}
        message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929"}
        message |= {"content": [{"type": "text", "text": f"part {number}"}], "usage": usage}
        ids = {"uuid": f"{SESSION[:-1]}{number}", "parentUuid": lines[-1]["uuid"], "requestId": "req_1"}
        lines.append({"type": "assistant", "message": message, **ids, **about})
    put_lines(home.path / ".claude" / "projects" / "-srv-app" / f"{SESSION}.jsonl", lines)
    assert ours(home)[:2] == (24_000, 172)
    assert theirs(home)[:2] == (24_000, 3)
    assert round(ours(home)[2] - theirs(home)[2], 6) == round(169 * 15 / 1e6, 6)  # the tokens between, at $15 a million
