"""LlamaIndex: a chat store that is given the messages of a turn as the agents of the framework give them."""

import os
from typing import Any

from . import Turn


class _Store:
    """The calls on a chat store, whichever it is."""

    store: Any

    def _messages(self, turn: Turn) -> list[Any]:
        from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock

        call = ToolCallBlock(tool_call_id=turn.call_id, tool_name="search", tool_kwargs={"query": turn.arguments})
        return [
            ChatMessage(role="assistant", blocks=[call]),
            ChatMessage(role="tool", content=turn.result, additional_kwargs={"tool_call_id": turn.call_id}),
            ChatMessage(role="assistant", content=turn.answer),
        ]

    async def keep(self, name: str, turn: Turn) -> None:
        from llama_index.core.base.llms.types import ChatMessage

        await self.store.add_message(name, ChatMessage(role="user", content=turn.question))
        await self.store.add_messages(name, self._messages(turn))

    async def read(self, name: str) -> int:
        return len(await self.store.get_messages(name)) // 4

    async def close(self) -> None:
        pass


class SQLAlchemy(_Store):
    """The framework's own, over aiosqlite."""

    def __init__(self, folder: str) -> None:
        from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

        path = os.path.join(folder, "chats.db")
        self.store = SQLAlchemyChatStore(table_name="messages", async_database_uri=f"sqlite+aiosqlite:///{path}")

    async def close(self) -> None:
        if self.store._async_engine is not None:
            await self.store._async_engine.dispose()


class Ours(_Store):
    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        import hitherto
        from hitherto.adapters.llama_index import ChatStore

        self.store = ChatStore(hitherto.open(os.path.join(folder, "chats.db"), key=self.key))

    def maintain(self) -> None:
        self.store.store.maintain()

    async def close(self) -> None:
        self.store.store.close()


class Sealed(Ours):
    key = bytes(range(32))


SIDES = {"SQLAlchemyChatStore": SQLAlchemy, "hitherto": Ours, "hitherto, sealed": Sealed}
GOALS = {"hitherto": 1.3}
MOST_TURNS: dict[str, int] = {}
