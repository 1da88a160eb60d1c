"""The tests of ADK's session services, with the adapter in the place of `SqliteSessionService` and of
`DatabaseSessionService`."""

from google.adk.sessions import database_session_service, sqlite_session_service

from hitherto.adapters.adk import SessionService

from .stores import new_store


class TestedService(SessionService):
    def __init__(self, url: str) -> None:
        super().__init__(new_store())

    async def close(self) -> None:
        self.store.close()

    async def __aenter__(self) -> "TestedService":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


sqlite_session_service.SqliteSessionService = TestedService
database_session_service.DatabaseSessionService = TestedService
