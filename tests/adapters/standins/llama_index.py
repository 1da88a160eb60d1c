"""The names of LlamaIndex that its adapter takes. `install` puts them in the place of a package that is missing."""

import sys
from enum import StrEnum
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr


class MessageStatus(StrEnum):
    ACTIVE = "active"
    ARCHIVED = "archived"


class AsyncDBChatStore(BaseModel):
    """Their base class."""


class ChatMessage(BaseModel):
    role: str = "user"
    blocks: list[dict[str, Any]] = []
    additional_kwargs: dict[str, Any] = {}

    @property
    def content(self) -> str:
        return "".join(block.get("text", "") for block in self.blocks)


_NAMES: dict[str, dict[str, object]] = {
    "llama_index.core.storage.chat_store.base_db": {
        "AsyncDBChatStore": AsyncDBChatStore,
        "MessageStatus": MessageStatus,
    },
    "llama_index.core.base.llms.types": {"ChatMessage": ChatMessage},
    "llama_index.core.bridge.pydantic": {"PrivateAttr": PrivateAttr},
}


def install(patch: pytest.MonkeyPatch) -> None:
    """The adapter is imported anew, because its class is made of theirs."""
    if find_spec("llama_index") is not None:
        pytest.skip("LlamaIndex is here: tests/adapters/real has its tests")
    for name, values in _NAMES.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            patch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        module = ModuleType(name)
        vars(module).update(values)
        patch.setitem(sys.modules, name, module)
    patch.delitem(sys.modules, "hitherto.adapters.llama_index", raising=False)
