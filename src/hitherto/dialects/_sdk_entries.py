"""Makes a message of what a caller has from a provider's SDK: a dict, or an object of the SDK.

`Message.from_openai` and its like come here. They take one entry of a request history, or a response that holds one
message. The entry stays the message's `raw`, so it is sent again exactly as it was given.

Four providers write similar JSON. An entry that only another provider writes is refused, with the name of the method
that reads it: read with the wrong one, it would lose its content in silence.
"""

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from ..errors import InvalidMessage
from ..model import Message
from . import Dialect, dialect
from ._json import copy_entry, entry
from ._lossless import keepable


class _Shape(NamedTuple):
    """How to tell that an entry is a provider's."""

    method: str
    packages: tuple[str, ...]  # the modules of its SDK
    roles: frozenset[str]  # that no other provider has, like the fields and the kinds of parts
    fields: frozenset[str]
    parts: frozenset[str]


_SHAPES = {
    "openai-chat": _Shape(
        "from_openai",
        ("openai.types.chat",),
        frozenset({"tool", "function"}),
        frozenset({"tool_calls", "tool_call_id", "function_call", "choices"}),
        frozenset({"image_url", "video_url"}),
    ),
    "openai-responses": _Shape(
        "from_openai_responses",
        ("openai.types.responses",),
        frozenset(),
        frozenset({"call_id", "output", "encrypted_content"}),
        frozenset({"input_text", "output_text", "input_image", "input_file"}),
    ),
    "anthropic": _Shape(
        "from_anthropic",
        ("anthropic.types",),
        frozenset(),
        frozenset({"stop_reason", "stop_sequence"}),
        frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "image", "document"}),
    ),
    "gemini": _Shape(
        "from_gemini",
        ("google.genai.types",),
        frozenset({"model"}),
        frozenset({"parts", "candidates"}),
        frozenset(),
    ),
}


_CONTENT = ("content", "parts", "tool_calls", "function_call", "refusal", "audio")


def read_given(name: str, given: object) -> Message:
    """Return what a caller has from the SDK of this dialect as a message. Raises `InvalidMessage`."""
    if isinstance(given, str):
        raise InvalidMessage("a text is not yet a message", hint='Message.user("…") or Message.assistant("…")')
    found = copy_entry(entry(_as_json(given), "a message"))
    meant = _dialect_of(found)
    if meant is not None and meant != name:
        raise InvalidMessage("this is a message of another API", hint=f"Message.{_SHAPES[meant].method}({{…}})")
    message = _one_of(dialect(name), found) if _is_response(found) else dialect(name).parse(found)
    if name == "gemini" and "content" in found and not _is_response(found) and "parts" not in found:
        raise InvalidMessage("a message without parts", hint='Gemini\'s API has "parts": [{"text": "…"}]')
    if not _is_response(found) and "role" in found and not any(field in found for field in _CONTENT):
        raise InvalidMessage("a message without content", hint='it has a "content", or in Gemini\'s API "parts"')
    # A recorder marks a question that was sent with the dialect alone. This one is yet to be sent.
    return keepable(replace(message, extra={**(message.extra or {}), "dialect": name, "sent": False}))


def method_for(given: object) -> str | None:
    """Return the name of the method of `Message` that reads this value, or None if it is no provider's message."""
    if not isinstance(given, Mapping):
        home = type(given).__module__
        return next((shape.method for shape in _SHAPES.values() if home.startswith(shape.packages)), None)
    meant = _dialect_of(given)
    if meant is not None:
        return _SHAPES[meant].method
    return "from_openai" if "role" in given else None


def _as_json(given: object) -> object:
    """Return an object of an SDK as the JSON that it stands for."""
    dump = getattr(given, "model_dump", None)
    if isinstance(given, Mapping) or not callable(dump):
        return given
    found: object = dump(mode="json", by_alias=True, exclude_unset=True)
    return _without_nulls(found) if type(given).__module__.startswith("google.") else found


def _without_nulls(value: object) -> object:
    """Return a copy without fields that are null: Google's objects name all of theirs."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _is_response(found: Mapping[str, object]) -> bool:
    """Return True for the body of a response, as opposed to an entry of a history."""
    return any(field in found for field in ("choices", "candidates", "stop_reason")) or _holds_items(found)


def _holds_items(found: Mapping[str, object]) -> bool:
    return found.get("object") == "response" and isinstance(found.get("output"), list)


def _one_of(spoken: Dialect, body: Mapping[str, object]) -> Message:
    """Return the message of a response."""
    answer = spoken.answer(body)
    messages = [*answer.messages, *chain.from_iterable(answer.others)]
    if len(messages) == 1:
        return messages[0]
    hint = "pass one of response.choices"
    if _holds_items(body):
        hint = "[Message.from_openai_responses(item) for item in response.output]"
    raise InvalidMessage(f"a response with {len(messages)} messages, where one is wanted", hint=hint)


def _dialect_of(found: Mapping[str, object]) -> str | None:
    """Return the dialect that alone has such entries, or None if several have or none."""
    if found.get("object") == "response":
        return "openai-responses"
    role, content = found.get("role"), found.get("content")
    kinds = {part.get("type") for part in content if isinstance(part, Mapping)} if isinstance(content, list) else set()
    for name, shape in _SHAPES.items():
        if role in shape.roles or not shape.fields.isdisjoint(found) or not shape.parts.isdisjoint(kinds):
            return name
    return "openai-responses" if role is None and isinstance(found.get("type"), str) else None
