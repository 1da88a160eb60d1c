"""The tests of the Claude Agent SDK, with the adapter in the place of `InMemorySessionStore`."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import claude_agent_sdk
from claude_agent_sdk._internal import session_store

from hitherto.adapters.claude_agent import SessionStore

from .stores import new_store

_aside = ThreadPoolExecutor(1)  # these tests look into a store from within a running loop


class TestedStore(SessionStore):
    """What the tests ask of the SDK's own store beside its protocol."""

    def __init__(self) -> None:
        super().__init__(new_store())
        self._mtimes: dict[str, int] = {}  # what tests put there is told

    async def list_sessions(self, project_key: str) -> list[dict[str, object]]:
        return [self._timed(project_key, one) for one in await super().list_sessions(project_key)]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, object]]:
        return [self._timed(project_key, one) for one in await super().list_session_summaries(project_key)]

    def _timed(self, project_key: str, one: dict[str, object]) -> dict[str, object]:
        return {**one, "mtime": self._mtimes.get(f"{project_key}/{one['session_id']}", one["mtime"])}

    def get_entries(self, key: Mapping[str, str]) -> list[Any]:
        return _aside.submit(lambda: asyncio.run(self.load(key))).result() or []

    @property
    def size(self) -> int:
        return sum(info.head is not None for info in self.store.conversations(limit=1000).items)

    def clear(self) -> None:
        for info in self.store.conversations(limit=1000).items:
            self.store.purge(info, reason="user-requested")


claude_agent_sdk.InMemorySessionStore = TestedStore
session_store.InMemorySessionStore = TestedStore
