"""Google ADK: a session service as the runner uses it, which reads a session when a run begins and appends events."""

import os
from typing import Any

from . import Turn

_WHO = {"app_name": "bench", "user_id": "ada"}


class _Service:
    """The calls of the runner on a service, whichever it is."""

    service: Any

    def __init__(self) -> None:
        from google.adk.events.event import Event
        from google.adk.events.event_actions import EventActions
        from google.genai import types

        self._event, self._actions, self._types = Event, EventActions, types
        self._sessions: dict[str, Any] = {}

    async def keep(self, name: str, turn: Turn) -> None:
        session = self._sessions.get(name)
        if session is None:
            session = await self.service.get_session(**_WHO, session_id=name)
            session = session or await self.service.create_session(**_WHO, session_id=name)
            self._sessions[name] = session
        t = self._types
        call = t.Part(function_call=t.FunctionCall(id=turn.call_id, name="search", args={"query": turn.arguments}))
        back = t.FunctionResponse(id=turn.call_id, name="search", response={"result": turn.result})
        said = [
            ("user", "user", t.Part(text=turn.question)),
            ("agent", "model", call),
            ("agent", "user", t.Part(function_response=back)),
            ("agent", "model", t.Part(text=turn.answer)),
        ]
        for number, (author, role, part) in enumerate(said):
            actions = self._actions(state_delta={"turn": turn.number} if number == 3 else {})
            content = t.Content(role=role, parts=[part])
            event = self._event(author=author, invocation_id=f"i{turn.number}", content=content, actions=actions)
            await self.service.append_event(session, event)

    async def read(self, name: str) -> int:
        session = await self.service.get_session(**_WHO, session_id=name)
        return 0 if session is None else len(session.events) // 4

    async def close(self) -> None:
        pass


class SqliteSessionService(_Service):
    """The framework's own."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        self.service = SqliteSessionService(os.path.join(folder, "adk.db"))


class DatabaseSessionService(_Service):
    """The framework's own by way of SQLAlchemy."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from google.adk.sessions.database_session_service import DatabaseSessionService

        self.service = DatabaseSessionService(f"sqlite+aiosqlite:///{os.path.join(folder, 'adk.db')}")

    async def close(self) -> None:
        await self.service.close()


class Ours(_Service):
    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        super().__init__()
        import hitherto
        from hitherto.adapters.adk import SessionService

        self.service = SessionService(hitherto.open(os.path.join(folder, "chats.db"), key=self.key))

    async def close(self) -> None:
        self.service.store.close()


class Sealed(Ours):
    key = bytes(range(32))


SIDES = {
    "SqliteSessionService": SqliteSessionService,
    "DatabaseSessionService": DatabaseSessionService,
    "hitherto": Ours,
    "hitherto, sealed": Sealed,
}
GOALS = {"hitherto": 1.0}
MOST_TURNS: dict[str, int] = {}
