"""Claude Code: its sessions are kept as its provider saw them, and it goes on with ours.

Requirements: F1, F2, F4.
"""

import json
from pathlib import Path

import hitherto
from hitherto import Block, Message
from hitherto.rescue import continue_in

from ..support.provider import Provider, provider
from .running import Home, needs
from .scripted import ACKNOWLEDGED, ERRAND, SHELL, Entry, answer, call_entry, kept, read_anthropic, read_thread

pytestmark = needs("claude")


def home_for(server: Provider, path: Path) -> Home:
    return Home(
        path,
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_API_KEY="no-key-at-all",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        IS_SANDBOX="1",
    )


def ask(home: Home, prompt: str, *words: str) -> str:
    return home.run("claude", *words, "--dangerously-skip-permissions", "-p", prompt)


def last_seen(server: Provider) -> list[Entry]:
    """Return the last request of the session itself; side calls have no tools."""
    return read_anthropic([body for body in server.bodies if "messages" in body and body.get("tools")][-1])


def test_a_session_with_a_tool_a_resume_and_a_fork_is_kept_as_the_provider_saw_it(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "use a tool please")
        (file,) = (home.path / ".claude" / "projects").rglob("*.jsonl")
        session = file.stem
        seen = [*last_seen(server), Entry("assistant", ACKNOWLEDGED)]
        assert seen[0].text == "use a tool please"
        assert (seen[1].text, seen[2]) == (
            call_entry("Bash", {"command": SHELL, "description": "say it"}).text,
            Entry("tool", "forty-two"),
        )
        assert home.rescue(store, "claude-code") > 0
        assert kept(store) == [seen]
        ask(home, "this is a fork", "--resume", session, "--fork-session")
        fork = [*last_seen(server), Entry("assistant", "I heard: this is a fork")]
        ask(home, "this goes on", "--resume", session)
        on = [*last_seen(server), Entry("assistant", "I heard: this goes on")]
        assert home.rescue(store, "claude-code") > 0
        assert store.stats().conversations == 1
        assert sorted(kept(store)) == sorted([on, fork])
        assert home.rescue(store, "claude-code") == 0
        assert store.verify().ok


def test_a_rewind_and_a_compaction_stay_in_the_tree(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "first")
        (file,) = (home.path / ".claude" / "projects").rglob("*.jsonl")
        lines = map(json.loads, file.read_text().splitlines())
        (answered,) = (line["uuid"] for line in lines if line["type"] == "assistant")
        ask(home, "second", "--resume", file.stem)
        ends = [[*last_seen(server), Entry("assistant", "I heard: second")]]
        ask(home, "instead", "--resume", file.stem, "--resume-session-at", answered)
        ends.append([*last_seen(server), Entry("assistant", "I heard: instead")])
        assert [entry.text for entry in ends[-1]] == ["first", "I heard: first", "instead", "I heard: instead"]
        assert home.rescue(store, "claude-code") > 0
        assert sorted(kept(store)) == sorted(ends)
        ask(home, "/compact", "--resume", file.stem)
        ask(home, "this goes on", "--resume", file.stem)
        on = [*last_seen(server)[-1:], Entry("assistant", "I heard: this goes on")]
        assert home.rescue(store, "claude-code") > 0
        (summary,) = (m for m in store.messages() if (m.extra or {}).get("injected") == "summary")
        assert summary.text in {entry.text for entry in last_seen(server)}
        talk = store.conversation(summary.conversation)
        assert read_thread(talk.thread()) == on
        assert read_thread(talk.thread(full=True)) == [*ends[-1], *on]
        assert home.rescue(store, "claude-code") == 0
        assert store.verify().ok


def test_a_sub_agent_is_linked_to_the_call_that_started_it(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "send an agent please")
        assert home.rescue(store, "claude-code") > 0
        assert store.stats().conversations == 1
        trace = [m for m in store.messages(newest_first=False) if m.label]
        assert [Entry("user", ERRAND)] in [read_anthropic(body) for body in server.bodies if "messages" in body]
        assert read_thread(trace) == [Entry("user", ERRAND), Entry("assistant", f"I heard: {ERRAND}")]
        (call,) = (m for m in store.messages() if any(block.tool_name == "Agent" for block in m.blocks))
        assert [m.link for m in trace if m.parent is None] == [call.id]


def test_it_goes_on_with_ours_and_what_it_adds_comes_back(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        talk = store.start(title="ours", provider="openai", model="gpt-5")
        talk.append(Message.user("What is in a.txt?"))
        call = Block.tool_call("c1", "read", {"path": "a.txt"})
        talk.append(Message.assistant([Block.text("I look."), call]))
        talk.append(Message.tool_result("c1", "forty-two"))
        talk.append(Message.assistant("It says forty-two."))
        before = read_thread(talk.thread())
        made = continue_in(store, talk, "claude", env=home.env, home=home.path, folder=home.work)
        ask(home, "and then?", *made.command[1:])
        assert last_seen(server) == [*before, Entry("user", "and then?")]
        assert home.rescue(store, "claude-code") > 0
        assert store.stats().conversations == 1
        said = read_thread(store.conversation(talk.id).thread())
        assert said == [*before, Entry("user", "and then?"), Entry("assistant", "I heard: and then?")]
        assert store.verify().ok


def test_its_own_session_goes_on_from_the_middle(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        ask(home, "use a tool please")
        (file,) = (home.path / ".claude" / "projects").rglob("*.jsonl")
        ask(home, "this goes on", "--resume", file.stem)
        home.rescue(store, "claude-code")
        (middle,) = (message for message in store.messages() if message.text == ACKNOWLEDGED)
        talk = store.conversation(middle.conversation).fork(at=middle.id)
        before = read_thread(talk.thread())
        made = continue_in(store, talk, "claude", env=home.env, home=home.path, folder=home.work)
        ask(home, "another way", *made.command[1:])
        assert last_seen(server) == [*before, Entry("user", "another way")]
        home.rescue(store, "claude-code")
        assert store.stats().conversations == 1
        assert {end[-1].text for end in kept(store)} == {"I heard: this goes on", "I heard: another way"}
