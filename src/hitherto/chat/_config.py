"""The configuration of a chat client, and tools with Python handlers.

Both are plain values. The API key is in the configuration and nowhere else: it is not printed, not saved, and not
needed where the environment has it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import InvalidArgument
from ..model import check_json, encodable

PROVIDERS = ("claude", "openai", "openai-compatible", "gemini", "claude-local", "local")

Handler = Callable[..., object] | Callable[..., Awaitable[object]]


@dataclass(frozen=True)
class Config:
    """The provider, the model, and the settings of a chat client.

    `api` chooses between OpenAI's two: `"chat"` (completions) or `"responses"`. `options` are added to every request as
    they are: temperature, thinking, any field that the provider accepts. `timeout_seconds` and `max_retries` are the
    SDK's own; None leaves its defaults. `max_tool_rounds` bounds how often the model may call tools in one turn, and
    `tool_timeout_seconds` how long one call may take. `model_path` is for `local`, `command` and `env` for
    `claude-local`.
    """

    provider: str
    model: str = ""
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    system_prompt: str = ""
    allow_insecure_base_url: bool = False
    api: Literal["chat", "responses"] = "chat"
    max_tokens: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    timeout_seconds: float | None = None
    max_retries: int | None = None
    max_tool_rounds: int = 25
    tool_timeout_seconds: float | None = None
    model_path: str | None = None
    command: str | Sequence[str] = "claude"
    env: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.provider not in PROVIDERS:
            raise InvalidArgument(f"no such provider: {self.provider!r:.40}", hint=f"one of {', '.join(PROVIDERS)}")
        for name in ("model", "system_prompt"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgument(f"{name} is text, not a {type(getattr(self, name)).__name__}")
            if not encodable(getattr(self, name)):
                raise InvalidArgument(f"{name} holds half a character, which cannot be sent")
        if self.api_key is not None and not isinstance(self.api_key, str):
            raise InvalidArgument(f"api_key is text, not a {type(self.api_key).__name__}")
        if not isinstance(self.options, Mapping):
            raise InvalidArgument("options are named values: a dict")
        if self.api not in ("chat", "responses"):
            raise InvalidArgument(f"api is 'chat' or 'responses', not {self.api!r:.40}")
        if type(self.max_tool_rounds) is not int or self.max_tool_rounds < 0:
            raise InvalidArgument("max_tool_rounds is a number from 0 up")
        for name, least in (("max_retries", 0), ("max_tokens", 1)):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < least):
                raise InvalidArgument(f"{name} is a number from {least} up")
        for name in ("timeout_seconds", "tool_timeout_seconds"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise InvalidArgument(f"{name} is a number of seconds, more than 0")


@dataclass(frozen=True)
class Tool:
    """A tool that the model may call. The handler gets the arguments by name, and returns text, a JSON value, or
    blocks. An exception becomes an error result that the model sees. Without a handler, a call gets an error result.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    handler: Handler | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgument("a tool has a name")
        if not isinstance(self.description, str) or not isinstance(self.parameters, Mapping):
            raise InvalidArgument("a tool's description is text, and its parameters are a JSON schema")
        if not encodable(self.name) or not encodable(self.description):
            raise InvalidArgument("a tool's name or description holds half a character, which cannot be sent")
        check_json(dict(self.parameters), "a tool's parameters")
        if self.handler is not None and not callable(self.handler):
            raise InvalidArgument(f"the handler of tool {self.name!r:.40} cannot be called")

    def definition(self) -> dict[str, object]:
        """Return the tool as it is stored and sent: without its handler."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
