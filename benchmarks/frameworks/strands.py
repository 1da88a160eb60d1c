"""Strands: a session repository as `RepositorySessionManager` uses it, which lists messages when an agent is made."""

import asyncio
import os
from typing import Any

from . import Turn


class _Repository:
    """The calls of the manager on a repository, whichever it is."""

    repository: Any

    def __init__(self) -> None:
        from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

        self._session, self._agent, self._message, self._type = Session, SessionAgent, SessionMessage, SessionType

    async def keep(self, name: str, turn: Turn) -> None:
        await asyncio.to_thread(self._keep, name, turn)

    def _keep(self, name: str, turn: Turn) -> None:
        if turn.number == 0:
            self.repository.create_session(self._session(name, self._type.AGENT))
            self.repository.create_agent(name, self._agent("agent", {}, {}))
        call = {"toolUseId": turn.call_id, "name": "search", "input": {"query": turn.arguments}}
        back = {"toolUseId": turn.call_id, "status": "success", "content": [{"text": turn.result}]}
        said: list[tuple[str, dict[str, Any]]] = [
            ("user", {"text": turn.question}),
            ("assistant", {"toolUse": call}),
            ("user", {"toolResult": back}),
            ("assistant", {"text": turn.answer}),
        ]
        for number, (role, part) in enumerate(said, 4 * turn.number):
            message: Any = {"role": role, "content": [part]}
            self.repository.create_message(name, "agent", self._message.from_message(message, number))
        self.repository.update_agent(name, self._agent("agent", {"turn": turn.number}, {}))

    async def read(self, name: str) -> int:
        if self.repository.read_session(name) is None:
            return 0
        return len(self.repository.list_messages(name, "agent")) // 4

    async def close(self) -> None:
        pass


class FileSessionManager(_Repository):
    """The framework's own: a file for each message."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from strands.session.file_session_manager import FileSessionManager

        self.repository = FileSessionManager("another", storage_dir=folder)


class Ours(_Repository):
    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        super().__init__()
        import hitherto
        from hitherto.adapters.strands import Repository

        self.repository = Repository(hitherto.open(os.path.join(folder, "chats.db"), key=self.key))

    async def close(self) -> None:
        self.repository.store.close()


class Sealed(Ours):
    key = bytes(range(32))


SIDES = {"FileSessionManager": FileSessionManager, "hitherto": Ours, "hitherto, sealed": Sealed}
GOALS: dict[str, float] = {}
MOST_TURNS: dict[str, int] = {}
