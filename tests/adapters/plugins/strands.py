"""The tests of Strands, with the adapter in the place of its mocked repository and of `InMemoryStorage`."""

from importlib import import_module
from typing import Any

import strands.storage
import strands.storage.in_memory_storage

from hitherto.adapters.strands import Repository, Storage

from .stores import new_store


class TestedRepository(Repository):
    def __init__(self) -> None:
        super().__init__(new_store())


class TestedStorage(Storage):
    def __init__(self, **more: Any) -> None:
        super().__init__(new_store(), **more)

    def clear(self) -> None:
        talk = self.store.ensure(self._key, kind="strands")
        for item in list(talk.items.scan(self.prefix)):
            talk.items.delete(item.name)

    @property
    def _store(self) -> dict[str, bytes]:
        """The bytes by their keys, as the framework's own storage has them."""
        talk = self.store.find(self._key, kind="strands")
        return {} if talk is None else {item.name: item.value for item in talk.items.scan()}


for module in (strands.storage, strands.storage.in_memory_storage):
    module.InMemoryStorage = TestedStorage
mock_session_repository: Any = import_module("tests.fixtures.mock_session_repository")  # of their source distribution
mock_session_repository.MockedSessionRepository = TestedRepository
