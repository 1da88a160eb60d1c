"""The names of Strands that its adapter takes. `install` puts them in the place of a package that is missing."""

import sys
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

import pytest


class SessionException(Exception):
    pass


class StorageError(Exception):
    pass


class SessionRepository:
    pass


class _Stored:
    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Any:
        return cls(**stored)

    def to_dict(self) -> dict[str, Any]:
        return asdict(cast(Any, self))


@dataclass
class Session(_Stored):
    session_id: str
    session_type: str = "AGENT"


@dataclass
class SessionAgent(_Stored):
    agent_id: str
    state: dict[str, Any]
    conversation_manager_state: dict[str, Any] = field(default_factory=dict)
    created_at: str = "2026-11-19T00:00:00+00:00"


@dataclass
class SessionMessage(_Stored):
    message: dict[str, Any]
    message_id: int
    redact_message: dict[str, Any] | None = None
    created_at: str = "2026-11-19T00:00:00+00:00"


class KeywordSearchStrategy:
    async def search(self, storage: Any, query: str) -> list[str]:
        return [key for key in await storage.list() if query.encode() in await storage.read(key)]


_NAMES: dict[str, list[type]] = {
    "session": [],
    "session.session_repository": [SessionRepository],
    "types": [],
    "types.session": [Session, SessionAgent, SessionMessage],
    "types.exceptions": [SessionException, StorageError],
    "storage": [],
    "storage.storage": [],
    "storage.search": [],
    "storage.search.keyword": [KeywordSearchStrategy],
}


def install(patch: pytest.MonkeyPatch) -> None:
    if find_spec("strands") is not None:
        return
    patch.setitem(sys.modules, "strands", ModuleType("strands"))
    for name, classes in _NAMES.items():
        module = ModuleType(f"strands.{name}")
        vars(module).update({one.__name__: one for one in classes})
        patch.setitem(sys.modules, module.__name__, module)
