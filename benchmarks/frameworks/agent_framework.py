"""Microsoft's Agent Framework: a history provider, which is read before a run and added to after each model call."""

import os
from typing import Any

from . import Turn


class _Provider:
    provider: Any

    def __init__(self) -> None:
        import agent_framework

        self._message, self._content = agent_framework.Message, agent_framework.Content

    async def keep(self, name: str, turn: Turn) -> None:
        message, content = self._message, self._content
        call = content.from_function_call(call_id=turn.call_id, name="search", arguments={"query": turn.arguments})
        back = content.from_function_result(call_id=turn.call_id, result=turn.result)
        asked = message(role="user", contents=[turn.question], message_id=f"q{turn.number}")
        called = message(role="assistant", contents=[call], message_id=f"c{turn.number}")
        await self.provider.save_messages(name, [asked, called])
        said = message(role="assistant", contents=[turn.answer], message_id=f"a{turn.number}")
        result = message(role="tool", contents=[back], message_id=f"r{turn.number}")
        await self.provider.save_messages(name, [result, said])

    async def read(self, name: str) -> int:
        return len(await self.provider.get_messages(name)) // 4

    async def close(self) -> None:
        pass


class FileHistoryProvider(_Provider):
    """The framework's own."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        import agent_framework

        self.provider = agent_framework.FileHistoryProvider(folder)


class Ours(_Provider):
    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        super().__init__()
        import hitherto
        from hitherto.adapters.agent_framework import History

        self.provider = History(hitherto.open(os.path.join(folder, "chats.db"), key=self.key))

    async def close(self) -> None:
        self.provider.store.close()


class Sealed(Ours):
    key = bytes(range(32))


SIDES = {"FileHistoryProvider": FileHistoryProvider, "hitherto": Ours, "hitherto, sealed": Sealed}
GOALS: dict[str, float] = {}
MOST_TURNS: dict[str, int] = {}
