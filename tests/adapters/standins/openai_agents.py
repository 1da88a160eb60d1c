"""The names of openai-agents that its adapter takes. `install` puts them in the place of a package that is missing."""

import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RunHooks:
    """Their base class, which has a method for each event."""


@dataclass
class SessionSettings:
    limit: int | None = None


def coerce_session_settings(given: Any) -> SessionSettings:
    return SessionSettings(**given) if isinstance(given, dict) else given


class ItemHelpers:
    @staticmethod
    def tool_call_output_item(call: Any, output: object) -> dict[str, object]:
        return {"type": "function_call_output", "call_id": call.call_id, "output": str(output)}


@dataclass
class ModelResponse:
    """An answer, and what it cost."""

    items: list[dict[str, object]]
    usage: Any = field(default_factory=lambda: SimpleNamespace(input_tokens=12, output_tokens=3))

    def to_input_items(self) -> list[dict[str, object]]:
        return [dict(item) for item in self.items]


def install(patch: pytest.MonkeyPatch) -> None:
    if find_spec("agents") is not None:
        return
    agents = ModuleType("agents")
    settings = ModuleType("agents.memory.session_settings")
    vars(agents).update(RunHooks=RunHooks, ItemHelpers=ItemHelpers)
    vars(settings).update(coerce_session_settings=coerce_session_settings)
    for module in (agents, ModuleType("agents.memory"), settings):
        patch.setitem(sys.modules, module.__name__, module)
