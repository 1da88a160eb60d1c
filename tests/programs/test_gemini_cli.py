"""Gemini CLI: its sessions are kept as its provider saw them.

Requirements: F1, F2.
"""

import shutil
from pathlib import Path

import pytest

import hitherto

from ..support.provider import Provider, provider
from .running import Home, needs
from .scripted import ACKNOWLEDGED, ERRAND, Entry, answer, kept, read_gemini, read_thread

pytestmark = needs("gemini")

_SETTINGS = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'


def home_for(server: Provider, path: Path) -> Home:
    home = Home(
        path,
        GEMINI_API_KEY="no-key-at-all",
        GOOGLE_GEMINI_BASE_URL=server.url,
        GEMINI_CLI_TRUST_WORKSPACE="true",
    )
    (path / ".gemini").mkdir()
    (path / ".gemini" / "settings.json").write_text(_SETTINGS)
    return home


def ask(home: Home, prompt: str, *words: str) -> None:
    home.run("gemini", *words, "--model", "gemini-2.5-flash", "--yolo", "-p", prompt)


def last_seen(server: Provider) -> list[Entry]:
    return read_gemini([asked.body for asked in server.asked if "streamGenerateContent" in asked.path][-1])


def with_answer(seen: list[Entry]) -> list[Entry]:
    """Return the request with its answer. A program in a terminal may take a line twice."""
    return [*seen, Entry("assistant", f"I heard: {seen[-1].text[-60:]}")]


def test_a_session_with_a_tool_and_a_resume_is_kept_as_the_provider_saw_it(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "use a tool please")
        seen = last_seen(server)
        assert [entry.role for entry in seen] == ["user", "assistant", "tool"]
        assert home.rescue(store, "gemini-cli") > 0
        (info,) = store.conversations().items
        assert read_thread(store.conversation(info).thread()) == [*seen, Entry("assistant", ACKNOWLEDGED)]
        ask(home, "this goes on", "--resume", "latest")
        seen = last_seen(server)
        assert home.rescue(store, "gemini-cli") > 0
        assert store.stats().conversations == 1
        said = read_thread(store.conversation(info.id).thread())
        assert said == [*seen, Entry("assistant", "I heard: this goes on")]
        assert home.rescue(store, "gemini-cli") == 0
        assert store.verify().ok


def test_a_sub_agent_is_linked_to_the_call_that_started_it(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "send an agent please")
        assert home.rescue(store, "gemini-cli") > 0
        assert store.stats().conversations == 1
        trace = [m for m in store.messages(newest_first=False) if m.label]
        (asked,) = (a.body for a in server.asked if "complete_task" in str(a.body.get("tools")))
        assert read_thread(trace)[0] == read_gemini(asked)[0]
        assert ERRAND in trace[0].text
        (call,) = (m for m in store.messages() if any(block.tool_name == "invoke_agent" for block in m.blocks))
        assert [m.link for m in trace if m.parent is None] == [call.id]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="it rewinds in a terminal only: needs tmux")
def test_a_rewind_is_a_branch(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "first")
        before = last_seen(server)
        with home.terminal("gemini", "--model", "gemini-2.5-flash", "--yolo", "--resume", "latest") as terminal:
            terminal.wait_for("Type your message")
            terminal.say("second", "I heard: second")
            ends = [with_answer(last_seen(server))]
            assert ends[0][: len(before)] == before
            terminal.say("/rewind", "Stay at current position")
            terminal.press("Up", "Enter")
            terminal.wait_for("Rewind conversation")
            terminal.press("Enter")
            terminal.wait_for("* second")
            terminal.press_until("Type your message", "BSpace", "DC")
            terminal.say("instead", "I heard: instead")
            ends.append(with_answer(last_seen(server)))
            assert home.rescue(store, "gemini-cli") > 0
            assert sorted(kept(store)) == sorted(ends)
        assert store.stats().conversations == 1
        assert home.rescue(store, "gemini-cli") == 0
        assert store.verify().ok
