"""A message of LangChain as a message of ours: what people and models said, in blocks that lists and search can read.

The message itself, as LangGraph's serialiser made it, is in `raw`, and is what LangGraph gets back. Blocks are for
readers. The fields are those that every class of LangChain's messages writes, so this module needs none of them.
"""

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Final

from ...errors import InvalidMessage
from ...model import Block, Message, Usage

_ROLES: Final = {"human": "user", "ai": "assistant", "tool": "tool_result", "function": "tool_result"}
_MODALITIES: Final = {"image": "image", "audio": "audio", "video": "video"}


def to_message(fields: Mapping[str, object], key: str, raw: object) -> Message:
    """Return the message that has these fields in LangChain. What is not said by people, models and tools is an
    event."""
    kind = _text(fields.get("type")).removesuffix("MessageChunk").lower()
    role = _ROLES.get(kind, "event")
    if kind == "chat":
        role = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}.get(
            _text(fields.get("role")).lower(), "event"
        )
    blocks = list(_blocks(fields.get("content")))
    if role == "assistant":
        blocks += _calls(fields.get("tool_calls"))
    call = fields.get("tool_call_id")
    if role == "tool_result" and isinstance(call, str):
        blocks = [Block(b.type, b.content, b.modality, b.mime_type, id=call) for b in blocks or [Block.text("")]]
    return Message(
        role,
        tuple(blocks),
        key=key,
        raw=raw,
        tool_result_error=fields.get("status") == "error",
        usage=_usage(fields.get("usage_metadata")),
    )


def _text(value: object) -> str:
    """Return a text that can be stored: half of a surrogate pair becomes a question mark. `raw` has it as it was."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _blocks(content: object) -> Iterator[Block]:
    if isinstance(content, str):
        if content:
            yield Block.text(_text(content))
        return
    for part in content if isinstance(content, (list, tuple)) else ():
        if isinstance(part, str):
            yield Block.text(_text(part))
        elif isinstance(part, Mapping):
            yield from _block(part)


def _block(part: Mapping[str, object]) -> Iterator[Block]:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        yield Block.text(_text(part.get("text")))
    elif kind in ("thinking", "reasoning"):
        thought = part.get("thinking", part.get("reasoning", part.get("text")))
        yield Block("thinking", _text(thought))
    elif kind in ("tool_use", "tool_call", "function_call"):
        return  # it is among the message's tool calls
    else:
        yield _medium(part) or Block("metadata", _text(str(kind)))


def _medium(part: Mapping[str, object]) -> Block | None:
    """Return an image, a sound or a film that lies in the message; None if it lies elsewhere."""
    kind, url = part.get("type"), part.get("image_url")
    data: object = part.get("base64", part.get("data"))
    mime: object = part.get("mime_type")
    source = part.get("source")
    if isinstance(source, Mapping):
        data, mime = source.get("data", data), source.get("media_type", mime)
    if isinstance(url, Mapping):
        url = url.get("url")
    if isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        mime, data = url[5:].split(";base64,", 1)
    modality = _MODALITIES.get(_text(mime).split("/")[0]) or _MODALITIES.get(_text(kind).split("_")[0])
    if modality is None or not isinstance(mime, str) or not isinstance(data, (str, bytes)):
        return None
    try:
        content = data if isinstance(data, bytes) else b64decode(data, validate=True)
    except (ValueError, binascii.Error):
        return None
    return Block("content", content, modality, _text(mime))


def _calls(calls: object) -> Iterator[Block]:
    for call in calls if isinstance(calls, (list, tuple)) else ():
        if isinstance(call, Mapping):
            id, name, arguments = _text(call.get("id")), _text(call.get("name")), call.get("args")
            try:
                yield Block.tool_call(id, name, arguments)
            except InvalidMessage:  # no JSON; `raw` has it as it was
                yield Block.tool_call(id, name, repr(arguments).encode("utf-8", "replace").decode())


def _usage(counted: object) -> Usage | None:
    if not isinstance(counted, Mapping):
        return None
    numbers = [counted.get(name) for name in ("input_tokens", "output_tokens")]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        return None
    return Usage(*numbers)  # type: ignore[arg-type]  # numbers, as was just found
