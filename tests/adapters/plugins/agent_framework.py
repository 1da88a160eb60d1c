"""The tests of the Agent Framework's sessions, with the adapter in the place of its providers."""

from pathlib import Path
from typing import Any

import agent_framework

from hitherto import Store
from hitherto.adapters.agent_framework import History

from .stores import new_store

_stores: dict[object, Store] = {}


class InMemory(History):
    """Each provider has a history of its own."""

    def __init__(self, source_id: str = "in_memory", **more: Any) -> None:
        super().__init__(new_store(), source_id=source_id, **more)


class Files(History):
    """Providers of one folder share their histories."""

    def __init__(self, storage_path: str | Path, **more: Any) -> None:
        super().__init__(_stores.setdefault(str(storage_path), new_store()), source_id="file_history", **more)


agent_framework.InMemoryHistoryProvider = InMemory
agent_framework.FileHistoryProvider = Files
