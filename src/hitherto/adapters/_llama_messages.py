"""Messages of LlamaIndex, in their JSON, as messages that people can read.

The JSON itself stays in `extra`. The framework gets it back.
"""

import json
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ..model import Block, Message, Saved

Json: TypeAlias = Mapping[str, object]

_FIELD = "llama_index"  # of the extras of a message
_ROLES = {"user": "user", "assistant": "assistant", "model": "assistant", "chatbot": "assistant"}
_RESULTS = frozenset({"tool", "function"})
_MEDIA = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4", "document": "application/octet-stream"}


def message_of(found: Json, status: str) -> Message:
    """Return a message, with the JSON and the status in its extras."""
    about = _object(found.get("additional_kwargs"))
    blocks = [block for one in _list(found, "blocks") for block in _blocks(one)]
    role = "tool_result" if found.get("role") in _RESULTS else _ROLES.get(str(found.get("role")), "event")
    if role == "tool_result":
        call = about.get("tool_call_id")
        name = call if isinstance(call, str) else None
        blocks = [Block(b.type, b.content, b.modality, b.mime_type, name, b.extra) for b in blocks]
    elif role == "assistant" and not any(block.type == "tool_call" for block in blocks):
        blocks += [_call(_object(one)) for one in _list(about, "tool_calls")]
    return Message(role, blocks, extra={_FIELD: {"status": status, "message": dict(found)}})


def json_of(message: Saved) -> tuple[dict[str, object], str] | None:
    """Return the JSON that a message was made of, and the status it began with; None of any other message."""
    found = (message.extra or {}).get(_FIELD)
    if not isinstance(found, dict) or not isinstance(found.get("message"), dict):
        return None
    return found["message"], str(found.get("status"))


def _blocks(one: object) -> Iterator[Block]:
    found = _object(one)
    kind = found.get("block_type")
    if kind == "text":
        yield Block.text(_text(found.get("text")))
    elif kind == "thinking":
        yield Block.thinking(_text(found.get("content") or ""))
    elif kind == "tool_call":
        name, call = found.get("tool_name"), found.get("tool_call_id")
        yield Block.tool_call(_text(call or ""), _text(name or ""), found.get("tool_kwargs"))
    elif isinstance(kind, str) and kind in _MEDIA:
        yield _medium(found, kind)
    else:
        yield Block("metadata", _text(found), mime_type="application/json", extra={"part": _text(kind or "")})


def _medium(found: Json, kind: str) -> Block:
    """Return binary content, or the address of it."""
    data, url = found.get(kind if kind != "document" else "data"), found.get("url")
    mime_type = found.get(f"{kind}_mimetype")
    try:
        content = b64decode(data, validate=True) if isinstance(data, str) else b""
    except (Error, ValueError):
        content = b""
    if content:
        modality = "text" if kind == "document" else kind
        return Block("content", content, modality, mime_type if isinstance(mime_type, str) else _MEDIA[kind])
    if isinstance(url, str):
        return Block(f"{kind}_url", url)
    return Block("metadata", _text(found), mime_type="application/json", extra={"part": kind})


def _call(found: Json) -> Block:
    """Return a call as OpenAI's client has it, or as older versions of the framework do."""
    function = _object(found.get("function")) or found
    arguments = function.get("arguments", found.get("tool_kwargs"))
    name = function.get("name") or found.get("tool_name")
    return Block.tool_call(_text(found.get("id") or found.get("tool_id") or ""), _text(name or ""), arguments)


def _object(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _list(found: Json, name: str) -> list[object]:
    value = found.get(name)
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
