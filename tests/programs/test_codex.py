"""Codex: its rollouts are kept as its provider saw them, and it goes on with ours.

Requirements: F1, F2, F4.
"""

from pathlib import Path

import hitherto
from hitherto import Block, Message
from hitherto.rescue import continue_in

from ..support.provider import Provider, provider
from .running import Home, needs
from .scripted import ACKNOWLEDGED, Entry, answer, read_responses, read_thread

pytestmark = needs("codex")

_CONFIG = """
model = "gpt-5"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
requires_openai_auth = false
"""


def home_for(server: Provider, path: Path) -> Home:
    home = Home(path)
    (path / ".codex").mkdir()
    (path / ".codex" / "config.toml").write_text(_CONFIG.format(url=server.url))
    return home


def ask(home: Home, *words: str) -> None:
    home.run("codex", "exec", "--skip-git-repo-check", *words)


def last_seen(server: Provider) -> list[Entry]:
    return read_responses([body for body in server.bodies if "input" in body][-1])


def test_a_session_with_a_tool_and_a_resume_is_kept_as_the_provider_saw_it(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "use a tool please")
        seen = last_seen(server)
        assert [entry.role for entry in seen] == ["user", "assistant", "tool"]
        assert "forty-two" in seen[2].text
        assert home.rescue(store, "codex") > 0
        (info,) = store.conversations().items
        assert read_thread(store.conversation(info).thread()) == [*seen, Entry("assistant", ACKNOWLEDGED)]
        ask(home, "resume", "--last", "this goes on")
        seen = last_seen(server)
        assert home.rescue(store, "codex") > 0
        assert store.stats().conversations == 1
        said = read_thread(store.conversation(info.id).thread())
        assert said == [*seen, Entry("assistant", "I heard: this goes on")]
        assert home.rescue(store, "codex") == 0
        assert store.verify().ok


def test_it_goes_on_with_ours_and_what_it_adds_comes_back(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        talk = store.start(title="ours", provider="anthropic", model="claude-sonnet-4-5")
        talk.append(Message.user("What is in a.txt?"))
        call = Block.tool_call("c1", "read", {"path": "a.txt"})
        talk.append(Message.assistant([Block.text("I look."), call]))
        talk.append(Message.tool_result("c1", "forty-two"))
        talk.append(Message.assistant("It says forty-two."))
        before = read_thread(talk.thread())
        made = continue_in(store, talk, "codex", env=home.env, home=home.path, folder=home.work)
        ask(home, *made.command[1:], "and then?")
        assert last_seen(server) == [*before, Entry("user", "and then?")]
        assert home.rescue(store, "codex") > 0
        assert store.stats().conversations == 1
        said = read_thread(store.conversation(talk.id).thread())
        assert said == [*before, Entry("user", "and then?"), Entry("assistant", "I heard: and then?")]
        assert store.verify().ok
