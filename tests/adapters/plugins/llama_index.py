"""The tests of LlamaIndex's chat stores, with the adapter in the place of `SQLAlchemyChatStore`."""

import llama_index.core.memory.memory
import llama_index.core.storage.chat_store.sql

from hitherto.adapters.llama_index import ChatStore

from .stores import new_store


class SQLAlchemyChatStore(ChatStore):
    """A chat store with the arguments of the framework's own."""

    def __init__(self, table_name: str = "", async_database_uri: str | None = None, **_: object) -> None:
        super().__init__(new_store())


for module in (llama_index.core.storage.chat_store.sql, llama_index.core.memory.memory):
    module.SQLAlchemyChatStore = SQLAlchemyChatStore
