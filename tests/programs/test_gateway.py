"""Claude Code and Codex through the gateway, and answered from what was kept.

Requirement: G1.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import hitherto
from hitherto import Store

from ..gateway.running import gateway
from ..support.command import COMMAND
from ..support.provider import provider
from .running import SECONDS, Home, needs
from .scripted import ACKNOWLEDGED, answer
from .tee import tee

Start = Callable[[Path, str], Home]


def claude(path: Path, address: str) -> Home:
    return Home(
        path,
        ANTHROPIC_BASE_URL=f"{address}/anthropic",
        ANTHROPIC_API_KEY="no-key-at-all",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


def codex(path: Path, address: str) -> Home:
    home = Home(path, OPENAI_API_KEY="no-key-at-all")
    told = f'name="local",base_url="{address}/openai/v1",wire_api="responses",supports_websockets=false'
    (path / ".codex").mkdir()
    (path / ".codex" / "config.toml").write_text(f'model_provider="local"\n[model_providers]\nlocal={{{told}}}\n')
    return home


WORDS = {
    "claude": ["--allowedTools=Bash", "-p"],
    "codex": ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
}
PROGRAMS = [
    pytest.param("claude", claude, marks=needs("claude")),
    pytest.param("codex", codex, marks=needs("codex")),
]


@pytest.mark.parametrize(("program", "start"), PROGRAMS)
def test_every_byte_of_a_session_passes_and_the_session_is_kept(program: str, start: Start, tmp_path: Path) -> None:
    with (
        provider(answer) as server,
        hitherto.open(tmp_path / "a.db") as store,
        tee(server.url) as behind,
        gateway(store, anthropic=behind.url, openai=behind.url) as running,
        tee(running.address) as before,
    ):
        start(tmp_path / "home", before.url).run(program, *WORDS[program], "use a tool please")
        name = "/anthropic" if program == "claude" else "/openai"
        asked = sorted(one.without(name) for one in before.requests)
        assert len(asked) >= 2
        assert asked == sorted(one.without() for one in behind.requests)
        assert sorted(one.without() for one in before.answers) == sorted(one.without() for one in behind.answers)
        talk = store.latest()
        assert talk is not None
        assert talk.key is not None
        assert talk.key.startswith("claude-code/" if program == "claude" else "codex/")
        thread = talk.thread()
        (result,) = [message for message in thread if message.role == "tool_result"]
        assert "forty-two" in result.text
        assert thread[-1].text == ACKNOWLEDGED
        assert not running.keeper.lost


@pytest.mark.parametrize(("program", "start"), PROGRAMS)
def test_another_run_is_answered_from_what_was_kept(program: str, start: Start, tmp_path: Path) -> None:
    """In another home and another folder, with another session; the tool runs there."""
    place = tmp_path / "a.db"

    def run(home: str, mode: list[str], prompt: str) -> "subprocess.CompletedProcess[str]":
        there = start(tmp_path / home, "http://127.0.0.1:9")
        there.put_on_path(program)
        env = {**there.env, "HITHERTO_STORE": str(place)}
        env.pop("ANTHROPIC_BASE_URL", None)
        return subprocess.run(
            [*COMMAND, *mode, "--", program, *WORDS[program], prompt], cwd=there.work, env=env,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    with provider(answer) as server:
        upstreams = ["--upstream", f"anthropic={server.url}", "--upstream", f"openai={server.url}/v1"]
        done = run("one", ["run", *upstreams], "use a tool please")
        assert done.returncode == 0, done.stderr
        asked = len(server.asked)
    with hitherto.open(place) as store:
        id = _newest(store)
    done = run("two", ["replay", id], "use a tool please")
    assert done.returncode == 0, done.stderr
    assert ACKNOWLEDGED in done.stdout
    done = run("three", ["replay", id], "use the other tool please")
    assert done.returncode != 0
    assert "was not kept: kept" in done.stderr
    assert "other" in done.stderr
    assert len(server.asked) == asked


def _newest(store: Store) -> str:
    talk = store.latest()
    assert talk is not None
    return talk.id
