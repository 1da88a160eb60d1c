"""Gemini CLI: its sessions are kept as its provider saw them.

Requirements: F1, F2.
"""

from pathlib import Path

import hitherto

from ..support.provider import Provider, provider
from .running import Home, needs
from .scripted import ACKNOWLEDGED, Entry, answer, read_gemini, read_thread

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
