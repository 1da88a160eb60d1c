"""A thread as a snapshot, and back: a client, a store and a checkpoint mean the same by it.

Requirements: A3, A4, A10, A11, and "Snapshot as a value" of the snapshots.
"""

import asyncio
from typing import Any

import pytest

import hitherto
from hitherto import Block, Message, Store
from hitherto.chat import Client, Config, new_client
from hitherto.model import Setup
from hitherto.snapshots import Snapshot
from hitherto.snapshots._thread import snapshot_of

LOOK: dict[str, object] = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
CLAUDE: list[dict[str, object]] = [
    {"role": "user", "content": "look"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1.0}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen", "is_error": False}]},
    {"role": "assistant", "content": [{"type": "text", "text": "I see."}]},
]
CHAT: list[dict[str, object]] = [
    {"role": "user", "content": [{"type": "text", "text": "look"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{ "at" : 1 }'}}],
    },
    {"role": "tool", "tool_call_id": "t1", "content": "seen"},
    {"role": "assistant", "content": "I see.", "refusal": None},
]
RESPONSES: list[dict[str, object]] = [
    {"role": "user", "content": "look"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
    {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "t1", "output": "seen"},
    {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "I see."}]},
]
GEMINI: list[dict[str, object]] = [
    {"role": "user", "parts": [{"text": "look"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2ln"}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "seen"}}}]},
    {"role": "model", "parts": [{"text": "I see."}]},
]
SAID = [
    pytest.param("claude", {}, CLAUDE, id="claude"),
    pytest.param("openai", {"api": "chat"}, CHAT, id="openai"),
    pytest.param("openai", {"api": "responses"}, RESPONSES, id="responses"),
    pytest.param("gemini", {}, GEMINI, id="gemini"),
]


def client(provider: str, how: dict[str, Any]) -> Client:
    made = new_client(Config(provider, "a-model", api_key="k", **how))
    assert isinstance(made, Client)
    return made


@pytest.mark.parametrize(("provider", "how", "said"), SAID)
def test_a_client_a_store_and_a_thread_agree_on_a_snapshot(
    provider: str, how: dict[str, Any], said: list[dict[str, object]], store: Store
) -> None:
    with client(provider, how) as first, client(provider, how) as second, client(provider, how) as third:
        spoken = first.save().metadata["dialect"]
        given = Snapshot.new(provider, "a-model", "Be brief.", said, [LOOK], {"dialect": spoken, "mine": "yes"})
        talk = store.restore(given)
        taken = talk.snapshot()
        for field in ("provider", "model", "system_prompt", "messages", "tools"):
            assert getattr(taken, field) == getattr(given, field), field
        assert (taken.metadata["mine"], taken.metadata["snapshot"]) == ("yes", given.id)
        assert (taken.metadata["conversation"], taken.metadata["head"]) == (talk.id, talk.head)
        assert taken.id != given.id
        assert first.restore(given) == second.restore(taken)
        hitherto.resume(third, store, talk)
        for one in (first, second, third):
            assert one.export_history() == said
            assert one.system_prompt == "Be brief."
        assert first.save().messages == taken.messages
        assert store.restore(first.save()).snapshot().messages == said


def test_the_system_prompt_that_another_program_put_first_is_lifted_by_all(store: Store) -> None:
    """A10."""
    said: list[dict[str, object]] = [{"role": "system", "content": "Be brief."}, *CHAT]
    given = Snapshot.new("openai", "m", "", said, [LOOK])
    talk = store.restore(given)
    assert (talk.system_prompt, talk.snapshot().system_prompt) == ("Be brief.", "Be brief.")
    assert talk.snapshot().messages == CHAT
    with client("openai", {"api": "chat"}) as chat:
        chat.restore(given)
        assert (chat.system_prompt, chat.export_history()) == ("Be brief.", CHAT)


def test_a_snapshot_is_of_the_thread_where_the_handle_stands(store: Store) -> None:
    talk = store.start(title="T", provider="claude", model="m")
    first = talk.append(Message.user("one"))
    talk.append(Message.assistant("two"))
    branch = talk.fork(at=first)
    branch.append(Message.assistant("another two"))
    assert [m["content"] for m in talk.snapshot().messages] == ["one", "two"]
    assert branch.snapshot().messages[1]["content"] == "another two"
    assert talk.fork(at=first).snapshot().metadata["head"] == first.id
    assert talk.fork(before=first).snapshot().messages == []
    assert talk.snapshot(metadata={"why": "before lunch"}).metadata["why"] == "before lunch"
    with pytest.raises(hitherto.InvalidMessage):
        talk.snapshot(metadata={"n": 1})  # type: ignore[dict-item]


def test_a_thread_that_was_configured_on_the_way_is_told_with_what_is_in_force(store: Store) -> None:
    talk = store.start(provider="openai", model="one", system_prompt="First.")
    first = talk.append(Message.user("x"))
    talk.configure(model="two", system_prompt="")
    talk.append(Message.assistant("y"))
    assert (talk.snapshot().model, talk.snapshot().system_prompt) == ("two", "")
    assert talk.fork(at=first).snapshot().model == "one"


def test_a_call_that_was_interrupted_is_mended_in_the_snapshot_and_stays_as_it_is_in_the_store(store: Store) -> None:
    talk = store.start(provider="claude", model="m")
    talk.append(Message.user("look"))
    talk.append(Message.assistant([Block.tool_call("t1", "look", {})]))
    assert len(talk.snapshot().messages) == 3
    assert len(talk.thread()) == 2
    with client("claude", {}) as other:
        assert other.restore(talk.snapshot()).repairs == ()


def test_a_conversation_of_a_provider_that_is_not_known_here_is_kept_all_the_same(store: Store) -> None:
    said: list[dict[str, object]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi", "x": 1},
    ]
    talk = store.restore(Snapshot.new("somebody", "m", "", said))
    assert (talk.provider, [m.text for m in talk.thread()]) == ("somebody", ["hello", "hi"])
    assert talk.snapshot().messages == said
    assert talk.snapshot().provider == "somebody"


def test_what_cannot_be_a_conversation_is_refused_and_nothing_is_made(store: Store) -> None:
    for wrong in (5, None, "x", {"id": "x"}):
        with pytest.raises(hitherto.InvalidArgument):
            store.restore(wrong)  # type: ignore[arg-type]
    with pytest.raises(hitherto.InvalidMessage):
        store.restore(Snapshot.new("openai", "m", "", [{"role": "assistant", "content": 2**70}]))
    assert store.conversations().items == []


@pytest.mark.parametrize(("provider", "said"), [("openai", CHAT), ("claude", CLAUDE), ("somebody", CHAT)])
def test_a_dialect_that_is_not_known_here_is_as_good_as_not_said(
    provider: str, said: list[dict[str, object]], store: Store
) -> None:
    """Other programs may mean something else by the word."""
    for word in ("klingon", "british", ""):
        talk = store.restore(Snapshot.new(provider, "m", "", said, [LOOK], {"dialect": word}))
        assert talk.snapshot().messages == said
        assert talk.thread()[-1].text == "I see."


OWN = {"title": "mine", "head": "h", "conversation": "c", "checkpoint": "x", "dialect": "british", "own.title": "too"}


def test_metadata_of_a_conversation_that_has_our_names_goes_into_a_snapshot_and_out_again(store: Store) -> None:
    own = {**OWN, "own.own.head": "deep", "own.thing": "as it is", "plain": "p", "snapshot": "not an id"}
    said = [Message.user("hello")]
    for given in ({}, {"checkpoint": "automatic", "title": "Given"}):
        taken = snapshot_of(
            said, Setup("claude", "m"), conversation="id", head="abc", title="T", metadata=given, own=own
        )
        ours = {name: taken.metadata[name] for name in ("title", "head", "conversation", "dialect")}
        assert ours == {"title": given.get("title", "T"), "head": "abc", "conversation": "id", "dialect": "anthropic"}
        assert taken.metadata.get("checkpoint") == given.get("checkpoint")
        assert (taken.metadata["own.thing"], taken.metadata["plain"]) == ("as it is", "p")
        talk = store.restore(taken)
        assert (talk.title, talk.metadata) == (ours["title"], own)


def test_a_conversation_remembers_the_last_snapshot_it_came_from(store: Store) -> None:
    first = Snapshot.new("claude", "m", "", CLAUDE)
    again = store.restore(first).snapshot()
    assert again.metadata["snapshot"] == first.id
    assert store.restore(again).metadata == {"snapshot": again.id}


def test_a_message_that_no_append_would_take_is_refused(store: Store) -> None:
    said: list[dict[str, object]] = [{"role": "user", "content": f"{n}" * 6_000_000} for n in range(3)]
    assert store.restore(Snapshot.new("openai", "m", "", said)).count == 3
    with pytest.raises(hitherto.PayloadTooLarge):
        store.restore(Snapshot.new("openai", "m", "", [{"role": "user", "content": "x" * 11_000_000}]))
    assert len(store.conversations().items) == 1


@pytest.mark.parametrize("provider", ["claude", "openai", "gemini", "somebody"])
def test_an_entry_that_is_none_of_the_providers_leaves_the_store_as_it_came(provider: str, store: Store) -> None:
    said: list[dict[str, object]] = [{"n": 12345678901234567890, "f": 1.0}, {"role": 5}, {"empty": {}}, {}]
    talk = store.restore(Snapshot.new(provider, "m", "", said))
    assert talk.snapshot().messages == said
    assert store.verify().ok


def test_a_title_that_is_given_to_a_snapshot_is_its_title(store: Store) -> None:
    talk = store.start(title="Mine", provider="openai")
    assert talk.snapshot(metadata={"title": "Yours"}).metadata["title"] == "Yours"
    assert talk.snapshot(metadata={"head": "x"}).metadata["head"] == ""


def test_a_snapshot_without_messages_becomes_a_conversation_that_can_begin(store: Store) -> None:
    talk = store.restore(Snapshot.new("claude", "m", "Be brief.", []), title="Mine", project="/some/where")
    assert (talk.title, talk.project, talk.system_prompt, talk.count) == ("Mine", "/some/where", "Be brief.", 0)
    talk.append(Message.user("hello"))
    assert store.verify().ok


def test_the_same_is_awaited() -> None:
    async def run() -> None:
        async with hitherto.open_async("memory:") as store:
            talk = await store.restore(Snapshot.new("openai", "m", "S", CHAT, [LOOK]), title="T")
            taken = await talk.snapshot(metadata={"a": "b"})
            assert (taken.messages, taken.metadata["a"], talk.title) == (CHAT, "b", "T")

    asyncio.run(run())
