"""openai-agents: a session as the runner uses it, which reads it when a run begins and adds to it three times."""

import json
import os
from typing import Any

from . import Turn


class _Session:
    """The calls of the runner on a session, whichever it is. One for each conversation is kept."""

    _sessions: dict[str, Any]

    def make(self, name: str) -> Any:
        raise NotImplementedError

    def open(self, name: str) -> Any:
        if name not in self._sessions:
            self._sessions[name] = self.make(name)
        return self._sessions[name]

    async def keep(self, name: str, turn: Turn) -> None:
        session = self.open(name)
        await session.add_items([{"role": "user", "content": turn.question}])
        call = _call(turn)
        await self.answered(session, call)
        output = {"type": "function_call_output", "call_id": turn.call_id, "output": turn.result}
        await session.add_items([call, output])
        text = {"type": "output_text", "text": turn.answer, "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        await session.add_items([{**message, "id": f"msg_{turn.number}"}])

    async def answered(self, session: Any, call: dict[str, str]) -> None:
        """The model has answered with a call of a tool, which has not run yet."""

    async def read(self, name: str) -> int:
        return len(await self.open(name).get_items()) // 4

    async def close(self) -> None:
        for session in self._sessions.values():
            session.close()


class SQLiteSession(_Session):
    """The framework's own."""

    def __init__(self, folder: str) -> None:
        import agents

        self._sessions = {}
        self._agents, self._path = agents, os.path.join(folder, "agents.db")

    def make(self, name: str) -> Any:
        return self._agents.SQLiteSession(name, self._path)


class Ours(_Session):
    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        import agents  # noqa: F401  # loaded before the clock starts

        import hitherto
        from hitherto.adapters.openai_agents import Session

        self._sessions = {}
        self._session = Session
        self.store = hitherto.open(os.path.join(folder, "chats.db"), key=self.key)

    def make(self, name: str) -> Any:
        return self._session(name, self.store)

    def maintain(self) -> None:
        self.store.maintain()

    async def close(self) -> None:
        await super().close()
        self.store.close()


class Hooked(Ours):
    """With the hooks, which keep the answer before the tool runs: a commit more in each turn."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        from agents import ModelResponse, Usage
        from openai.types.responses import ResponseFunctionToolCall

        self._response = lambda call: ModelResponse(
            output=[ResponseFunctionToolCall(**call)], usage=Usage(), response_id=None
        )

    async def answered(self, session: Any, call: dict[str, str]) -> None:
        await session.hooks.on_llm_end(None, None, self._response(call))


class Sealed(Ours):
    key = bytes(range(32))


def _call(turn: Turn) -> dict[str, str]:
    call = {"type": "function_call", "id": f"fc_{turn.number}", "call_id": turn.call_id, "name": "search"}
    return {**call, "arguments": json.dumps({"query": turn.arguments}), "status": "completed"}


SIDES = {"SQLiteSession": SQLiteSession, "hitherto": Ours, "hitherto, hooks": Hooked, "hitherto, sealed": Sealed}
GOALS = {"hitherto": 1.3}
MOST_TURNS: dict[str, int] = {}
