"""The names of pydantic-ai that its adapter takes: the values, a store without the logic above its primitives, and
messages that are plain JSON. `install` puts them in the place of a package that is missing."""

import json
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest


class Part(dict[str, Any]):
    """A part of a message, and a message: JSON whose fields are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class Messages:
    def dump_json(self, messages: list[Any]) -> bytes:
        return json.dumps(messages).encode()

    def validate_json(self, data: bytes) -> list[Part]:
        found: list[Part] = json.loads(data, object_hook=Part)
        return found


@dataclass(frozen=True, kw_only=True)
class ConversationEntry:
    parent_id: str | None
    message: Any
    id: str = field(default_factory=lambda: uuid4().hex)


@dataclass(kw_only=True)
class ConversationRecord:
    conversation_id: str
    head_id: str | None
    scope: str | None = None
    forked_from: str | None = None
    branches: list[str] = field(default_factory=list)
    revision: str = field(default_factory=lambda: uuid4().hex)
    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def next(self, **changes: Any) -> "ConversationRecord":
        return replace(self, revision=uuid4().hex, updated_at=datetime.now(UTC), **changes)


@dataclass(kw_only=True)
class Conversation:
    conversation_id: str
    messages: list[Any] = field(default_factory=list)
    revision: str | None = None


class ConversationConflict(Exception):
    """A conversation has changed since it was read."""


class ConversationStore:
    """Their base class, with `load` as the primitives make it."""

    async def load(self, conversation_id: str, *, limit: int | None = None, scope: str | None = None) -> Any:
        found: Any = self
        record = await found.read_record(conversation_id)
        if record is None or scope not in (None, record.scope):
            return None
        entries = await found.read_history(record.head_id, limit=limit)
        return Conversation(
            conversation_id=conversation_id, messages=[entry.message for entry in entries], revision=record.revision
        )


class AbstractCapability:
    """Their base class, which has a method for each event."""


class ToolReturn:
    """A result of a tool with more than its value."""


def ToolReturnPart(tool_name: str, content: object, tool_call_id: str) -> Part:  # noqa: N802  # a class there
    return Part(part_kind="tool-return", tool_name=tool_name, content=content, tool_call_id=tool_call_id)


def ModelRequest(parts: list[Part], **about: object) -> Part:  # noqa: N802  # as above
    return Part(kind="request", parts=parts, **about)


def repair_messages(messages: list[Part]) -> list[Part]:
    return [*messages, ModelRequest([ToolReturnPart("read", "interrupted", "c1")])]


_NAMES: dict[str, dict[str, object]] = {
    "pydantic_ai": {},
    "pydantic_ai.conversation_store": {
        one.__name__: one
        for one in (ConversationStore, ConversationRecord, ConversationEntry, ConversationConflict, Conversation)
    },
    "pydantic_ai.messages": {
        "ModelMessagesTypeAdapter": Messages(),
        **{one.__name__: one for one in (repair_messages, ModelRequest, ToolReturnPart, ToolReturn)},
    },
    "pydantic_ai.capabilities": {"AbstractCapability": AbstractCapability},
}


def install(patch: pytest.MonkeyPatch) -> None:
    """The adapter is imported anew, because its classes are made of theirs."""
    if find_spec("pydantic_ai") is not None:
        pytest.skip("pydantic-ai is here: tests/adapters/real has its tests")
    for name, values in _NAMES.items():
        module = ModuleType(name)
        vars(module).update(values)
        patch.setitem(sys.modules, name, module)
    for name in [
        name for name in sys.modules if name.startswith(("hitherto.adapters.pydantic", "hitherto.adapters._pyd"))
    ]:
        patch.delitem(sys.modules, name)
