"""The names of the Agent Framework that its adapter takes. `install` puts them in the place of a package that is
missing."""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class Message:
    """A message; its contents are texts, or objects as the framework writes them."""

    def __init__(self, role: str, contents: list[Any], **more: Any) -> None:
        self.role = role
        self.contents: list[dict[str, Any]] = [
            {"type": "text", "text": one, "additional_properties": {}} if isinstance(one, str) else one
            for one in contents
        ]
        self.additional_properties: dict[str, Any] = more.pop("additional_properties", {})
        self.more = more

    @property
    def text(self) -> str:
        return "".join(str(one.get("text", "")) for one in self.contents if one["type"] == "text")

    def to_dict(self) -> dict[str, Any]:
        about = {"additional_properties": self.additional_properties}
        return {"type": "message", "role": self.role, "contents": self.contents, **self.more, **about}

    @classmethod
    def from_dict(cls, whole: dict[str, Any]) -> "Message":
        return cls(**{name: value for name, value in whole.items() if name != "type"})


class HistoryProvider:
    def __init__(self, source_id: str, **options: Any) -> None:
        self.source_id = source_id
        vars(self).update(options)


def install(patch: pytest.MonkeyPatch) -> None:
    if find_spec("agent_framework") is None:
        module = ModuleType("agent_framework")
        vars(module).update(Message=Message, HistoryProvider=HistoryProvider)
        patch.setitem(sys.modules, "agent_framework", module)
