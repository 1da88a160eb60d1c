"""The conversations of pydantic-ai against its own store in memory, and runs of real agents that are killed.

The framework publishes no suite for stores. Its own store is the reference: both are given the same calls, in an order
by chance, and have to answer the same.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pydantic_ai.conversation_store", reason="pydantic-ai is in .tools/adapters alone")

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

import hitherto
from hitherto import Key, Store
from hitherto.adapters.pydantic_ai import Conversations, EntryNotFound
from tests.adapters.plugins.stores import new_store

_AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store() -> Store:
    return new_store()


def run(work: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await work

    return asyncio.run(wait())


def said(text: str) -> list[ModelMessage]:
    return [
        ModelRequest([SystemPromptPart("Be terse.", timestamp=_AT), UserPromptPart(text, timestamp=_AT)]),
        ModelResponse([ThinkingPart("hm"), ToolCallPart("read", {"path": text}, "c")], timestamp=_AT),
        ModelRequest([ToolReturnPart("read", {"found": [1, None]}, "c", timestamp=_AT)]),
        ModelResponse([TextPart(f"answer to {text}")], timestamp=_AT),
    ]


class Both:
    """The same calls on both stores. Entries are told apart by their place, because each store draws ids of its own."""

    def __init__(self, store: Store) -> None:
        self.sides = (InMemoryConversationStore(), Conversations(store))

    async def __call__(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        found = [await self._one(call, side) for side in self.sides]
        assert found[0] == found[1]
        return found[0]

    async def _one(self, call: Callable[[Any], Awaitable[Any]], side: Any) -> Any:
        try:
            return _plain(await call(side))
        except (UserError, LookupError) as error:
            return type(error).__name__ if isinstance(error, UserError) else "LookupError"


def _plain(found: Any) -> Any:
    if isinstance(found, Conversation):
        return found.messages, found.conversation_id, found.usage, found.deferred_tool_requests, found.new_message_index
    if isinstance(found, ConversationRecord):
        return found.conversation_id, found.usage, found.scope, found.forked_from, len(found.branches)
    return [_plain(one) for one in found] if isinstance(found, list) else getattr(found, "message", found)


@pytest.mark.parametrize("seed", range(12))
def test_it_does_what_the_frameworks_own_store_does(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    both = Both(store)

    async def save(side: Any, name: str, how: int, text: str, scope: str | None) -> Any:
        conversation = await side.load(name, limit=how or None) or Conversation(conversation_id=name)
        if how == 3 and conversation.messages:
            conversation.messages[:] = conversation.messages[:-1]
        conversation.messages += said(text)
        conversation.usage.requests += 1
        return await side.save(conversation, scope=scope)

    async def branch(side: Any, name: str, at: int) -> Any:
        loaded = await side.load(name)
        return await side.branch(name, at=at, expected_revision=None if loaded is None else loaded.revision)

    async def back(side: Any, name: str, which: int) -> Any:
        record = await side.read_record(name)
        if record is None or not record.branches:
            return None
        tip = record.branches[which % len(record.branches)]
        return await side.branch(name, from_entry=tip, expected_revision=record.revision)

    async def work() -> None:
        for number in range(30):
            name, other = chance.choice("abc"), chance.choice("abcd/\0ü")
            how, at, scope = chance.randrange(4), chance.randrange(6), chance.choice([None, "ada", "bob"])
            what = chance.choice(["save"] * 4 + ["fork", "branch", "back", "delete", "load", "list", "entries"])
            calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
                "save": lambda side: save(side, name, how, f"question {number}", scope),  # noqa: B023  # called at once
                "fork": lambda side: side.fork(name, at=at, new_conversation_id=other, scope=scope),  # noqa: B023  # as above
                "branch": lambda side: branch(side, name, at),  # noqa: B023  # as above
                "back": lambda side: back(side, name, at),  # noqa: B023  # as above
                "delete": lambda side: side.delete(name, scope=scope),  # noqa: B023  # as above
                "load": lambda side: side.load(name, limit=at, scope=scope),  # noqa: B023  # as above
                "list": lambda side: side.list_conversations(scope=scope, limit=at),  # noqa: B023  # as above
                "entries": lambda side: side.load_entries(name),  # noqa: B023  # as above
            }
            await both(calls[what])
        for name in "abcd/\0ü":
            await both(lambda side: side.load(name))  # noqa: B023  # as above

    run(work())
    assert store.verify().ok


def test_every_part_comes_back_equal_and_reads_as_words(store: Store) -> None:
    image = BinaryContent(b"\x89PNG" * 50_000, media_type="image/png")
    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart(["Look:", image, ImageUrl("https://a.test/b.png")])], instructions="Be terse."),
        ModelResponse([ToolCallPart("read", '{"path": 1}', "c1"), ToolCallPart("read", {"a": "ü"}, "c2")]),
        ModelRequest(
            [ToolReturnPart("read", "no such file", "c1", outcome="retried"), ToolReturnPart("read", b"\xff", "c2")]
        ),
        ModelResponse([TextPart("A red square.")]),
    ]
    conversations = Conversations(store)
    run(conversations.save(Conversation(messages=list(messages), conversation_id="c")))
    found = run(conversations.load("c")).messages
    assert found == ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    talk = store.find("c")
    assert talk is not None
    assert [m.role for m in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
    assert talk.thread()[0].blocks[1].content == image.data
    assert store.search("red square")


def test_two_writers_of_one_revision_are_a_conflict(store: Store) -> None:
    conversations = Conversations(store)
    run(conversations.save(Conversation(messages=said("a"), conversation_id="c")))

    async def both() -> Any:
        one, two = await conversations.load("c"), await Conversations(store).load("c")
        one.messages += said("one")
        two.messages += said("two")
        return await asyncio.gather(conversations.save(one), conversations.save(two), return_exceptions=True)

    found = run(both())
    assert sum(isinstance(one, ConversationConflict) for one in found) == 1
    assert len(run(conversations.load("c")).messages) == 8


def test_a_deletion_and_a_fork_that_meet_lose_no_entry(store: Store) -> None:
    conversations = Conversations(store)

    async def meet(number: int) -> None:
        name, fork, other = f"c{number}", f"f{number}", f"o{number}"
        await conversations.save(Conversation(messages=said("a"), conversation_id=name))
        await conversations.fork(name, at=1, new_conversation_id=other)
        await asyncio.gather(
            conversations.delete(name), conversations.fork(name, new_conversation_id=fork), return_exceptions=True
        )
        for one in (fork, other):
            loaded = await conversations.load(one)
            assert loaded is None or len(loaded.messages) == (4 if one == fork else 1)

    async def work() -> None:
        for number in range(15):
            await meet(number)

    run(work())


def test_an_unknown_entry(store: Store) -> None:
    with pytest.raises(EntryNotFound):
        run(Conversations(store).read_entry("01a1"))


_AGENT = """
import asyncio, os, signal, sys
sys.path[:0] = sys.argv[3:]
import hitherto
from hitherto.adapters.pydantic_ai import Conversations
from pydantic_ai.conversation import Conversation
from tests.adapters.real.test_pydantic_ai import agent_of
conversations = Conversations(sys.argv[1])
agent = agent_of(conversations if sys.argv[2] == "keeping" else None)
asyncio.run(agent.run("Rome and Oslo?", conversation=Conversation(conversation_id="c")))
"""


def agent_of(conversations: Conversations | None, *, dies: bool = True) -> Agent[None, str]:
    """An agent whose model calls two tools. The second one kills the process."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = messages[-1].parts
        if any(part.part_kind == "tool-return" for part in parts):
            return ModelResponse([TextPart("Sunny in both.")])
        return ModelResponse(
            [ToolCallPart("weather", {"city": "Rome"}, "c1"), ToolCallPart("weather", {"city": "Oslo"}, "c2")]
        )

    agent = Agent(FunctionModel(model), capabilities=[] if conversations is None else [conversations.keeping])

    @agent.tool_plain(sequential=True)  # type: ignore[untyped-decorator]  # the framework is not here
    def weather(city: str) -> str:
        if dies and city == "Oslo":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"sunny in {city}"

    return agent


@pytest.mark.parametrize("how", ["keeping", "nothing"])
def test_a_kill_inside_a_tool_keeps_the_paid_answer(tmp_path: Any, how: str) -> None:
    """E3. Without the capability, as the control, the answer is lost."""
    path = str(tmp_path / "chats.db")
    places = [place for place in sys.path if place]
    done = subprocess.run([sys.executable, "-c", _AGENT, path, how, *places], check=False)
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(path) as store:
        conversations = Conversations(store)
        loaded = run(conversations.load("c"))
        if how == "nothing":
            assert loaded is None
            return
        assert [m.kind for m in loaded.messages] == ["request", "response", "request"]
        returns = [part.content for part in loaded.messages[2].parts]
        assert returns[0] == "sunny in Rome"
        assert "interrupted" in returns[1]
        again = run(conversations.resume("c"))
        result = run(agent_of(conversations, dies=False).run(conversation=again))
        assert result.output == "Sunny in both."
        run(conversations.save(result))
        assert run(conversations.load("c")).messages[-1].parts[0].content == "Sunny in both."
        assert not list(store.find("c").items.scan("pydantic-ai/run"))  # type: ignore[union-attr]  # it is there


def test_a_wrong_key_is_an_error_and_no_empty_history(tmp_path: Any) -> None:
    path = tmp_path / "sealed.db"
    with hitherto.open(path, key=Key(bytes(range(32)))) as store:
        run(Conversations(store).save(Conversation(messages=said("a"), conversation_id="c")))
    with pytest.raises(hitherto.HithertoError) as caught:
        Conversations(path)
    assert caught.value.hint


def test_a_record_of_the_framework_keeps_what_it_carries(store: Store) -> None:
    conversations = Conversations(store)
    run(conversations.save(Conversation(messages=said("a"), conversation_id="c"), scope="ada"))
    record = run(conversations.read_record("c"))
    assert (record.scope, record.format_version) == ("ada", 1)
    with pytest.raises(ConversationConflict):
        run(conversations.write_record(replace(record, head_id="nowhere"), expected_revision=record.revision))
    assert run(conversations.load("c", scope="bob")) is None
