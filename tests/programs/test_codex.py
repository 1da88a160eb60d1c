"""Codex: its rollouts are kept as its provider saw them, and it goes on with ours.

Requirements: F1, F2, F4.
"""

from pathlib import Path

import hitherto
from hitherto import Block, Message
from hitherto.rescue import continue_in

from ..support.provider import Provider, provider
from .running import Home, needs
from .scripted import ACKNOWLEDGED, ERRAND, Entry, answer, kept, read_responses, read_thread

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


def test_a_fork_a_rewind_and_a_compaction_are_branches_of_one_tree(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "first")
        (path,) = (home.path / ".codex" / "sessions").rglob("rollout-*.jsonl")
        thread = path.stem[-36:]
        ask(home, "resume", thread, "second")
        ask(home, "fork", thread, "this is a fork")
        ends = [[*last_seen(server), Entry("assistant", "I heard: this is a fork")]]
        with home.app_server() as codex:
            turns = codex.call("thread/resume", threadId=thread)["thread"]["turns"]
            codex.call("thread/revert", threadId=thread, beforeTurnId=turns[1]["id"])
            codex.call("turn/start", threadId=thread, input=[{"type": "text", "text": "instead"}])
            codex.wait_for("turn/completed")
        ends.append([*last_seen(server), Entry("assistant", "I heard: instead")])
        assert [entry.text for entry in ends[-1]] == ["first", "I heard: first", "instead", "I heard: instead"]
        assert home.rescue(store, "codex") > 0
        assert sorted(kept(store)) == sorted(ends)
        ask(home, "-c", "model_auto_compact_token_limit=10", "resume", thread, "this is compacted")
        assert last_seen(server)[-1] == Entry("user", "this is compacted")
        assert home.rescue(store, "codex") > 0
        (summary,) = (m for m in store.messages() if (m.extra or {}).get("injected") == "summary")
        talk = store.conversation(summary.conversation)
        on = [*last_seen(server)[-1:], Entry("assistant", "I heard: this is compacted")]
        assert read_thread(talk.thread()) == on
        assert read_thread(talk.thread(full=True))[: len(ends[-1])] == ends[-1]
        assert store.stats().conversations == 1
        assert home.rescue(store, "codex") == 0
        assert store.verify().ok


def test_a_sub_agent_is_linked_to_the_call_that_started_it(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "send an agent please")
        assert home.rescue(store, "codex") > 0
        assert store.stats().conversations == 1
        trace = [m for m in store.messages(newest_first=False) if m.label]
        seen = [read_responses(body) for body in server.bodies if "input" in body]
        assert [Entry("user", ERRAND)] in seen
        assert read_thread(trace)[:2] == [Entry("user", ERRAND), Entry("assistant", f"I heard: {ERRAND}")]
        (call,) = (m for m in store.messages() if any(block.tool_name == "spawn_agent" for block in m.blocks))
        assert [m.link for m in trace if m.parent is None] == [call.id]


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
