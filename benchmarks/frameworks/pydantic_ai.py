"""pydantic-ai: a conversation that is loaded, gets the messages of one run, and is saved.

The framework has no store of its own that survives the process. Its documentation keeps the new messages of each run as
a row of JSON in SQLite; that is the first side here.
"""

import os
from typing import Any

from . import Turn


def _messages(turn: Turn) -> list[Any]:
    from pydantic_ai import messages as m

    return [
        m.ModelRequest([m.UserPromptPart(turn.question)]),
        m.ModelResponse([m.ToolCallPart("search", {"query": turn.arguments}, turn.call_id)]),
        m.ModelRequest([m.ToolReturnPart("search", turn.result, turn.call_id)]),
        m.ModelResponse([m.TextPart(turn.answer)]),
    ]


class Rows:
    """A row for the messages of each run, as the framework's example of a chat program has it."""

    def __init__(self, folder: str) -> None:
        import sqlite3

        from pydantic_ai.messages import ModelMessagesTypeAdapter

        self._json = ModelMessagesTypeAdapter
        self._connection = sqlite3.connect(os.path.join(folder, "messages.db"))
        table = "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, name TEXT, message_list TEXT)"
        self._connection.execute(table)
        self._connection.execute("CREATE INDEX IF NOT EXISTS by_name ON messages (name)")

    async def keep(self, name: str, turn: Turn) -> None:
        data = self._json.dump_json(_messages(turn))
        self._connection.execute("INSERT INTO messages (name, message_list) VALUES (?, ?)", (name, data))
        self._connection.commit()

    async def read(self, name: str) -> int:
        rows = self._connection.execute("SELECT message_list FROM messages WHERE name = ? ORDER BY id", (name,))
        found: list[Any] = []
        for (data,) in rows:
            found += self._json.validate_json(data)
        return len(found) // 4

    async def close(self) -> None:
        self._connection.close()


class Ours:
    """A conversation of the last messages is loaded and saved, as the framework advises for long ones."""

    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        from pydantic_ai.conversation import Conversation

        import hitherto
        from hitherto.adapters.pydantic_ai import Conversations

        self._new = Conversation
        self._store = hitherto.open(os.path.join(folder, "chats.db"), key=self.key)
        self._conversations = Conversations(self._store)

    async def keep(self, name: str, turn: Turn) -> None:
        conversation = await self._conversations.load(name, limit=4) or self._new(conversation_id=name)
        conversation.messages += _messages(turn)
        await self._conversations.save(conversation)

    async def read(self, name: str) -> int:
        conversation = await self._conversations.load(name)
        return 0 if conversation is None else len(conversation.messages) // 4

    def maintain(self) -> None:
        self._store.maintain()

    async def close(self) -> None:
        self._store.close()


class Sealed(Ours):
    key = bytes(range(32))


SIDES = {"rows of JSON": Rows, "hitherto": Ours, "hitherto, sealed": Sealed}
GOALS: dict[str, float] = {}
MOST_TURNS: dict[str, int] = {}
