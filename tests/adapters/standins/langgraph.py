"""The names of LangGraph that its adapter takes. `install` puts them in the place of a package that is missing."""

import copy
import pickle
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple
from uuid import uuid4

import pytest


class Message:
    """A message of LangChain: its fields are its attributes."""

    def __init__(self, type: str, content: object, id: str | None = None, **fields: object) -> None:
        vars(self).update(content=content, type=type, id=id or uuid4().hex, additional_kwargs={}, **fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"{vars(self)['type']}: {vars(self)['content']}"


class Serializer:
    """Values as bytes. It refuses what it does not know, in both directions."""

    def dumps_typed(self, value: object) -> tuple[str, bytes]:
        if callable(value):
            raise TypeError("a function cannot be serialised")
        return ("bytes", value) if isinstance(value, bytes) else ("pickle", pickle.dumps(value, 5))

    def loads_typed(self, typed: tuple[str, bytes]) -> Any:
        kind, data = typed
        if kind not in ("bytes", "pickle"):
            raise NotImplementedError(f"Unknown serialization type: {kind}")
        return data if kind == "bytes" else pickle.loads(data)


class EncryptedSerializer(Serializer):
    def dumps_typed(self, value: object) -> tuple[str, bytes]:
        return "bytes", bytes(byte ^ 7 for byte in pickle.dumps(value))

    def loads_typed(self, typed: tuple[str, bytes]) -> Any:
        return pickle.loads(bytes(byte ^ 7 for byte in typed[1]))


class CheckpointTuple(NamedTuple):
    config: Any
    checkpoint: Any
    metadata: Any
    parent_config: Any = None
    pending_writes: Any = None


class DeltaSnapshot(NamedTuple):
    value: Any


class BaseCheckpointSaver:
    def __init__(self, *, serde: Any = None) -> None:
        self.serde = serde or Serializer()

    def with_allowlist(self, extra: object) -> "BaseCheckpointSaver":
        return copy.copy(self)


def install(patch: pytest.MonkeyPatch) -> None:
    if find_spec("langgraph") is not None:
        return
    base, messages = ModuleType("langgraph.checkpoint.base"), ModuleType("langchain_core.messages")
    encrypted, types = (
        ModuleType("langgraph.checkpoint.serde.encrypted"),
        ModuleType("langgraph.checkpoint.serde.types"),
    )
    vars(base).update(
        BaseCheckpointSaver=BaseCheckpointSaver,
        CheckpointTuple=CheckpointTuple,
        WRITES_IDX_MAP={"__error__": -1, "__interrupt__": -3},
        get_checkpoint_id=lambda config: config["configurable"].get("checkpoint_id"),
        get_checkpoint_metadata=lambda config, metadata: {**config.get("metadata", {}), **metadata},
        writes_sort_key=lambda path, task="", index=0: (path, task, index),
    )
    vars(messages).update(BaseMessage=Message)
    vars(encrypted).update(EncryptedSerializer=EncryptedSerializer)
    vars(types).update(_DeltaSnapshot=DeltaSnapshot)
    parents = [ModuleType(name) for name in ("langgraph", "langgraph.checkpoint", "langgraph.checkpoint.serde")]
    for module in (*parents, ModuleType("langchain_core"), base, messages, encrypted, types):
        patch.setitem(sys.modules, module.__name__, module)
