"""The chat store of LlamaIndex, beside its own SQLAlchemy store, and in a real `Memory`."""

import asyncio
import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="LlamaIndex is in .tools/adapters alone")

from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

import hitherto
from hitherto import Key, Store
from hitherto.adapters.llama_index import ChatStore
from tests.adapters.plugins.stores import new_store

STATUSES = [MessageStatus.ACTIVE, MessageStatus.ARCHIVED, None]


@pytest.fixture
def store() -> Store:
    return new_store()


def run(work: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await work

    return asyncio.run(wait())


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


@pytest.mark.parametrize("seed", range(8))
def test_it_does_what_the_frameworks_own_store_does(store: Store, seed: int) -> None:
    chance = random.Random(seed)

    async def work() -> None:
        theirs, ours = SQLAlchemyChatStore(table_name="t"), ChatStore(store)
        for number in range(40):
            key, n, some = chance.choice("ab"), chance.randrange(4), chance.randrange(3)
            status = chance.choice(STATUSES[:2])
            messages = [user(f"{number}.{i}") for i in range(some)]
            what = chance.choice(["add", "add", "add", "set", "delete", "oldest", "archive", "all", "one"])
            for side in (theirs, ours):
                if what == "add" and messages:
                    await side.add_messages(key, messages, status)
                elif what == "set" and number % 3 == 0:
                    await side.set_messages(key, messages, status)
                elif what == "delete":
                    await side.delete_messages(key, status)
                elif what == "all" and number % 5 == 0:
                    await side.delete_messages(key)
            if what == "oldest":
                assert await ours.delete_oldest_messages(key, n) == await theirs.delete_oldest_messages(key, n)
            elif what == "archive":
                assert await ours.archive_oldest_messages(key, n) == await theirs.archive_oldest_messages(key, n)
            elif what == "one" and (ids := await ours.ids(key, None)):
                place = chance.randrange(len(ids))
                async with theirs._async_session_factory() as session:
                    query = theirs._table.select().where(theirs._table.c.key == key)
                    rows = (await session.execute(query.order_by("timestamp", "id"))).fetchall()
                assert await ours.delete_message(key, ids[place]) == await theirs.delete_message(key, rows[place].id)
            for key in "ab":
                for status in STATUSES:
                    assert await ours.get_messages(key, status) == await theirs.get_messages(key, status)
                    assert await ours.count_messages(key, status) == await theirs.count_messages(key, status)
            assert sorted(await ours.get_keys()) == sorted(await theirs.get_keys())

    run(work())
    assert store.verify().ok


def test_what_is_deleted_is_gone_from_the_store(store: Store) -> None:
    ours = ChatStore(store)
    run(ours.add_messages("k", [user("secret words"), user("other words")]))
    assert run(ours.delete_oldest_messages("k", 1)) == [user("secret words")]
    assert not list(store.search("secret"))
    assert "secret" not in "".join(str(message.extra) for message in store.messages())
    assert run(ours.get_messages("k")) == [user("other words")]


def test_messages_of_all_kinds_come_back_equal_and_read_as_words(store: Store) -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="read", tool_kwargs={"path": "ü"})
    image = ImageBlock(image=b"\x89PNG" * 5, image_mimetype="image/png")
    messages = [
        ChatMessage(role="system", content="Be terse."),
        ChatMessage(role="user", blocks=[TextBlock(text="Look:"), image]),
        ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm"), call]),
        ChatMessage(role=MessageRole.TOOL, content="red", additional_kwargs={"tool_call_id": "c1"}),
        ChatMessage(role="assistant", content="A red square."),
    ]
    ours = ChatStore(store)
    run(ours.add_messages("k", messages))
    assert run(ours.get_messages("k")) == [ChatMessage.model_validate(m.model_dump(mode="json")) for m in messages]
    talk = store.find("k")
    assert talk is not None
    assert [m.role for m in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
    assert hitherto.history(talk, "openai")[1]["tool_calls"][0]["id"] == "c1"


def test_a_memory_archives_what_its_limit_pushes_out(store: Store) -> None:
    memory = Memory.from_defaults(
        session_id="k", chat_store=ChatStore(store), token_limit=60, chat_history_token_ratio=0.5, token_flush_size=20
    )
    for number in range(30):
        memory.put(user(f"question {number} about the build"))
    kept = memory.get()
    assert 0 < len(kept) < 30
    ours = ChatStore(store)
    archived = run(ours.get_messages("k", MessageStatus.ARCHIVED))
    assert [m.content for m in archived + kept] == [f"question {number} about the build" for number in range(30)]


def test_a_store_of_a_location_is_saved_and_loaded_by_the_framework(tmp_path: Path) -> None:
    ours = ChatStore(tmp_path / "chats.db")
    run(ours.add_message("k", user("kept")))
    again = ChatStore.model_validate(ours.model_dump())
    assert run(again.get_messages("k")) == [user("kept")]


def test_a_wrong_key_is_an_error_and_no_empty_history(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "s.db", key=Key(bytes(range(32)))) as store:
        run(ChatStore(store).add_message("k", user("kept")))
    with pytest.raises(hitherto.HithertoError) as caught:
        ChatStore(tmp_path / "s.db")
    assert caught.value.hint


def test_two_writers_who_archive_at_once_take_each_message_once(store: Store) -> None:
    async def work() -> list[list[ChatMessage]]:
        await ChatStore(store).add_messages("k", [user(str(n)) for n in range(40)])
        return await asyncio.gather(*(ChatStore(store).archive_oldest_messages("k", 5) for _ in range(6)))

    taken = [message.content for some in run(work()) for message in some]
    assert sorted(taken, key=int) == [str(n) for n in range(30)]
