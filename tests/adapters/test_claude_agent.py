"""The session store for the Claude Agent SDK, beneath a stand-in for the SDK where that is not installed.

`make test-frameworks ADAPTERS=claude-agent` runs the SDK's own tests, and a session of the real program.
"""

import asyncio
import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hitherto
from hitherto import Message, Store
from hitherto.adapters.claude_agent import SessionStore
from hitherto.errors import Closed, HithertoError, InvalidArgument, MissingExtra

KEY = {"project_key": "-home-ada-project", "session_id": "0b7a3c1e-5c0e-4b7b-9d0c-2f4a1d0e9a11"}
SUB = {**KEY, "subpath": "subagents/agent-7"}
Entry = dict[str, Any]


def fold(before: Mapping[str, Any] | None, key: Mapping[str, str], entries: list[Entry]) -> Entry:
    """What the SDK does, in small: a summary from the one before and the entries that are new."""
    count = before["data"]["count"] if before else 0
    return {"session_id": key["session_id"], "mtime": 0, "data": {"count": count + len(entries)}}


@pytest.fixture(autouse=True)
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("claude_agent_sdk")
    module.fold_session_summary = fold  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", module)


def user(uuid: str, parent: str | None, text: Any, **more: Any) -> Entry:
    message = {"role": "user", "content": text}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "message": message, "isSidechain": False, **more}


def assistant(uuid: str, parent: str, *blocks: Entry, id: str = "msg_1", tokens: int = 3) -> Entry:
    usage = {"input_tokens": 10, "output_tokens": tokens}
    message: Entry = {"id": id, "type": "message", "role": "assistant", "model": "claude", "content": list(blocks)}
    message |= {"stop_reason": None, "usage": usage}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "message": message, "requestId": "req_1"}


def text(words: str) -> Entry:
    return {"type": "text", "text": words}


def call(id: str) -> Entry:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}}


def result(id: str, words: str) -> list[Entry]:
    return [{"type": "tool_result", "tool_use_id": id, "content": words, "is_error": False}]


def session() -> list[Entry]:
    """Two turns, with two tools at once, and what is beside the messages."""
    return [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s"},
        user("u1", None, "Which files are here?"),
        {"type": "attachment", "uuid": "x1", "parentUuid": "u1", "attachment": {"type": "todo"}},
        assistant("a1", "x1", text("I look."), tokens=3),
        assistant("a2", "a1", call("t1"), tokens=9),
        assistant("a3", "a2", call("t2"), tokens=9),
        user("r1", "a2", result("t1", "setup.py"), toolUseResult={"stdout": "setup.py"}),
        user("r2", "a3", result("t2", "none"), toolUseResult={"stdout": ""}),
        assistant("a4", "r2", text("One file."), id="msg_2", tokens=4),
        {"type": "ai-title", "aiTitle": "Files here", "sessionId": "s"},
        user("u2", "a4", "Thank you."),
        assistant("a5", "u2", text("You are welcome."), id="msg_3", tokens=5),
    ]


def run(work: Any) -> Any:
    return asyncio.run(work)


def talk_of(any_store: Store) -> hitherto.Conversation:
    (info,) = any_store.conversations().items
    return any_store.conversation(info)


def test_what_is_appended_is_loaded_equal_and_in_order(any_store: Store) -> None:
    """E1"""
    kept, entries = SessionStore(any_store), session()
    given = copy.deepcopy(entries)
    for at in range(0, len(entries), 3):
        run(kept.append(KEY, entries[at : at + 3]))
    assert run(kept.load(KEY)) == given
    assert entries == given, "the entries of the caller are as they were"
    assert run(SessionStore(any_store).load({**KEY, "session_id": "another"})) is None


def test_a_session_reads_as_a_conversation(any_store: Store) -> None:
    """E1: people see words, in one thread, also if two tools ran at once; each token counts once."""
    run(SessionStore(any_store).append(KEY, session()))
    talk = talk_of(any_store)
    said = [(str(message.role), message.text) for message in talk.thread()]
    assert said == [
        ("user", "Which files are here?"),
        ("assistant", "I look."),
        ("assistant", ""),
        ("assistant", ""),
        ("tool_result", "setup.py"),
        ("tool_result", "none"),
        ("assistant", "One file."),
        ("user", "Thank you."),
        ("assistant", "You are welcome."),
    ]
    assert len(talk.branches()) == 1
    assert talk.title == "Files here"
    assert (talk.usage().input_tokens, talk.usage().output_tokens) == (30, 9 + 4 + 5)
    assert [hit.message_id for hit in any_store.search("welcome")] == [talk.at]
    assert talk.metadata["session_id"] == KEY["session_id"]


def test_a_turn_that_is_said_anew_is_a_branch(any_store: Store) -> None:
    kept = SessionStore(any_store)
    entries = [*session(), user("u3", "a4", "Delete it."), assistant("a6", "u3", text("Done."), id="msg_4")]
    entries += [user("u4", None, "Quite another thing"), {"type": "last-prompt", "leafUuid": "a6"}]
    run(kept.append(KEY, entries))
    assert run(kept.load(KEY)) == entries
    talk = talk_of(any_store)
    assert [message.text for message in talk.thread()] == ["Quite another thing"]
    threads = [[message.text for message in talk.fork(at=leaf.id).thread()] for leaf in talk.branches()]
    assert ["Thank you.", "You are welcome."] in [thread[-2:] for thread in threads]
    assert ["One file.", "Delete it.", "Done."] in [thread[-3:] for thread in threads]


def test_what_is_sent_twice_is_kept_once(any_store: Store) -> None:
    kept, entries = SessionStore(any_store), [entry for entry in session() if "uuid" in entry]
    run(kept.append(KEY, entries[:6]))
    run(kept.append(KEY, entries))
    run(kept.append(SUB, entries[:2]))
    run(kept.append(SUB, entries[:3]))
    assert run(kept.load(KEY)) == entries
    assert run(kept.load(SUB)) == entries[:3]


def test_a_sub_agent_is_a_trace_and_goes_with_its_session(any_store: Store) -> None:
    """E1, C12"""
    kept, entries = SessionStore(any_store), session()
    other = {**KEY, "subpath": "subagents/workflows/w/agent:8"}
    run(kept.append(KEY, entries[:6]))
    run(kept.append(SUB, [{"type": "agent_metadata", "name": "reviewer"}, user("s1", None, "Review.")]))
    run(kept.append(SUB, [assistant("s2", "s1", text("It is fine."))]))
    run(kept.append(other, [user("s1", None, "Test.")]))
    run(kept.append(KEY, entries[6:]))
    assert run(kept.load(KEY)) == entries
    assert [entry.get("uuid") for entry in run(kept.load(SUB))] == [None, "s1", "s2"]
    assert sorted(run(kept.list_subkeys(KEY))) == [SUB["subpath"], other["subpath"]]
    talk = talk_of(any_store)
    assert [m.text for m in any_store.messages(subagent="subagents", newest_first=False)] == [
        "",
        "Review.",
        "It is fine.",
    ]
    assert "Review." not in [message.text for message in talk.thread()]

    run(kept.delete(SUB))
    assert run(kept.load(SUB)) is None
    assert run(kept.list_subkeys(KEY)) == [other["subpath"]]
    assert run(kept.load(KEY)) == entries
    run(kept.delete(KEY))
    assert run(kept.load(KEY)) is None
    assert run(kept.load(other)) is None
    assert run(kept.list_sessions(KEY["project_key"])) == []
    assert not any_store.conversations().items


def test_sessions_are_listed_by_project_with_their_summaries(any_store: Store) -> None:
    kept = SessionStore(any_store)
    run(kept.append(KEY, session()[:5]))
    run(kept.append(KEY, session()[5:]))
    run(kept.append({**KEY, "project_key": "-another"}, session()))
    run(kept.append({**KEY, "session_id": "only-a-sub-agent", "subpath": "s"}, session()))
    (listed,) = run(kept.list_sessions(KEY["project_key"]))
    (summary,) = run(kept.list_session_summaries(KEY["project_key"]))
    assert listed["session_id"] == KEY["session_id"]
    assert listed["mtime"] > 1e12
    assert summary == {**listed, "data": {"count": 12}}
    assert run(kept.list_session_summaries("-none")) == []


def test_two_writers_lose_no_entry_and_no_part_of_the_summary(tmp_path: Path) -> None:
    """E2: each read the state before the other wrote."""
    path = tmp_path / "c.db"
    with hitherto.open(path) as one, hitherto.open(path) as two:
        stores = SessionStore(one), SessionStore(two)

        async def write() -> None:
            for turn in range(10):
                entries = [[user(f"{who}{turn}", None, f"{who} {turn}")] for who in "ab"]
                await asyncio.gather(*(s.append(KEY, e) for s, e in zip(stores, entries, strict=True)))

        run(write())
        assert len(run(stores[0].load(KEY))) == 20
        assert run(stores[1].list_session_summaries(KEY["project_key"]))[0]["data"] == {"count": 20}
        assert one.verify().ok


HOSTILE: list[dict[str, str]] = [
    {"project_key": "a/b", "session_id": "c"},
    {"project_key": "a", "session_id": "b/c"},
    {"project_key": "", "session_id": "nul\0 and \udc80"},
    {"project_key": "p" * 3000, "session_id": "q" * 3000},
    {"project_key": "p" * 3000, "session_id": "q" * 3001},
    {"project_key": "a%2Fb", "session_id": "c"},
]


def test_any_id_is_a_session_of_its_own(any_store: Store) -> None:
    kept = SessionStore(any_store)
    for number, key in enumerate(HOSTILE):
        run(kept.append(key, [{"type": "x", "n": number}]))
        run(kept.append({**key, "subpath": "sub\0path"}, [{"type": "x", "n": -number}]))
    for number, key in enumerate(HOSTILE):
        assert run(kept.load(key)) == [{"type": "x", "n": number}]
        assert run(kept.list_subkeys(key)) == ["sub\0path"]
        assert [one["session_id"] for one in run(kept.list_sessions(key["project_key"]))].count(key["session_id"]) == 1


@pytest.mark.parametrize(
    "value",
    ["half \ud83d of a pair", 2**70, float("inf"), "x" * 12_000_000, [[]] * 3, {"a": {"b": None}}, 1.0, True],
    ids=["surrogate", "large number", "infinity", "large", "lists", "objects", "float", "bool"],
)
def test_any_json_comes_back(tmp_path: Path, value: object) -> None:
    deep: Any = value
    for _ in range(150 if isinstance(value, dict) else 0):
        deep = [deep]
    entries = [user("u1", None, "See this"), user("u2", "u1", f"{value!s:.100} said", more=deep)]
    with hitherto.open(tmp_path / "c.db") as store:
        kept = SessionStore(store)
        run(kept.append(KEY, entries))
        assert run(kept.load(KEY)) == entries
        assert talk_of(store).thread()[-1].text.endswith("said")


def test_what_is_no_entry_is_refused_and_nothing_is_kept(any_store: Store) -> None:
    kept = SessionStore(any_store)
    wrong: Any
    key: Any
    for wrong in ("text", {"type": "x", "at": object()}, {"type": "x", "set": {1}}):
        with pytest.raises(InvalidArgument, match="JSON"):
            run(kept.append(KEY, [user("u1", None, "Hello"), wrong]))
    assert run(kept.load(KEY)) is None
    for key in (
        {},
        {"project_key": "p"},
        {"project_key": 1, "session_id": "s"},
        {"project_key": "p", "session_id": ""},
    ):
        with pytest.raises(InvalidArgument, match="project_key"):
            run(kept.append(key, session()))


def test_a_conversation_of_that_key_that_holds_other_messages_stays(any_store: Store) -> None:
    kept = SessionStore(any_store)
    run(kept.append(KEY, session()))
    talk_of(any_store).append(Message.user("from the command line"))
    run(kept.append(KEY, [user("u9", "a5", "Go on")]))
    assert run(kept.load(KEY)) == [*session(), user("u9", "a5", "Go on")]


@pytest.mark.parametrize("spoil", ["close", "full", "quota"])
def test_a_store_that_cannot_write_says_so_and_keeps_what_it_has(tmp_path: Path, spoil: str) -> None:
    with hitherto.open(tmp_path / "c.db", max_conversation_bytes=20_000) as store:
        kept = SessionStore(store)
        run(kept.append(KEY, session()[:4]))
        long = user("u5", "a1", "y" * 30_000)
        if spoil == "close":
            store.close()
        elif spoil == "quota":
            store.set_quota(1)
            long = user("u5", "a1", "short")
        with pytest.raises(HithertoError) as refused:
            run(kept.append(KEY, [long]))
        assert isinstance(refused.value, Closed) or str(refused.value.hint) in str(refused.value)
    with hitherto.open(tmp_path / "c.db") as again:
        assert run(SessionStore(again).load(KEY)) == session()[:4]


def test_a_missing_or_old_sdk_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    with pytest.raises(MissingExtra, match="claude-agent"):
        SessionStore("memory:")
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", ModuleType("claude_agent_sdk"))
    with pytest.raises(MissingExtra, match="claude-agent-sdk"):
        SessionStore("memory:")
