"""The tests of openai-agents, with the adapter in the place of `SQLiteSession`."""

from pathlib import Path

import agents
import agents.memory
import agents.memory.sqlite_session

from hitherto import Store
from hitherto.adapters.openai_agents import Session

from .stores import new_store

_stores: dict[str, Store] = {}


class SQLiteSession(Session):
    """A session with the arguments of the framework's own: sessions of one file share a store."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", *, session_settings: object = None) -> None:
        path = str(db_path)
        store = new_store() if path == ":memory:" else _stores.get(path)
        if store is None or store.is_closed:
            store = _stores[path] = new_store()
        super().__init__(session_id, store, session_settings=session_settings)


for module in (agents, agents.memory, agents.memory.sqlite_session):
    module.SQLiteSession = SQLiteSession
