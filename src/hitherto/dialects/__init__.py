"""The dialects: each provider's own JSON for a conversation, and its way to our messages and back.

`_types` defines a dialect. `dialect(name)` imports a dialect's module when it is first needed.
"""

from functools import cache
from importlib import import_module

from ..errors import InvalidArgument
from ._types import Answer, Assembly, Dialect, Encoded, ParsedRequest, Raw, calls

__all__ = ["Answer", "Assembly", "Dialect", "Encoded", "ParsedRequest", "Raw", "calls", "dialect"]

_NAMES = {
    "anthropic": ("anthropic", "Anthropic"),
    "gemini": ("gemini", "Gemini"),
    "openai-chat": ("openai_chat", "OpenAIChat"),
    "openai-responses": ("openai_responses", "OpenAIResponses"),
}


@cache
def dialect(name: str) -> Dialect:
    """Return the dialect of that name. Raises `InvalidArgument` if there is none."""
    if name not in _NAMES:
        raise InvalidArgument(f"no such dialect: {name!r:.40}", hint=f"one of {', '.join(_NAMES)}")
    module, kind = _NAMES[name]
    made: Dialect = getattr(import_module(f"{__name__}.{module}"), kind)()
    return made
