"""Messages of pydantic-ai, in their JSON, as messages that people can read.

A request may hold several things at once: what the user said, results of tools, a system prompt. It is the user's
message if the user said something in it, else a tool result. The JSON itself stays in `extra`. The framework gets it
back.
"""

import json
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ..model import Block, Message, Saved, Usage

Json: TypeAlias = Mapping[str, object]

_FIELD = "pydantic_ai"  # of the extras of a message
_RESULTS = frozenset({"tool-return", "retry-prompt"})
_CALLS = frozenset({"tool-call", "builtin-tool-call"})


def message_of(found: Json, key: str) -> Message:
    """Return a message, with the JSON in its extras."""
    parts = [part for part in _list(found, "parts") if isinstance(part, Mapping)]
    extra: dict[str, object] = {_FIELD: dict(found)}
    if found.get("kind") == "response":
        return Message("assistant", list(_answer(parts)), key=key, extra=extra, usage=_usage(found.get("usage")))
    if any(part.get("part_kind") == "user-prompt" for part in parts):
        return Message("user", [block for part in parts for block in _request(part, mixed=True)], key=key, extra=extra)
    if any(_is_result(part) for part in parts):
        blocks = [block for part in parts for block in _request(part, mixed=False)]
        failed = any(_is_failed(part) for part in parts)
        return Message("tool_result", blocks, key=key, tool_result_error=failed, extra=extra)
    return Message("event", [block for part in parts for block in _request(part, mixed=True)], key=key, extra=extra)


def json_of(message: Saved) -> dict[str, object] | None:
    """Return the JSON that a message was made of; None if it was made of something else."""
    found = (message.extra or {}).get(_FIELD)
    return found if isinstance(found, dict) else None


def _request(part: Json, *, mixed: bool) -> Iterator[Block]:
    kind = part.get("part_kind")
    if kind == "user-prompt":
        content = part.get("content")
        for said in content if isinstance(content, list) else [content]:
            yield _said(said)
    elif _is_result(part):
        extra: dict[str, object] | None = {"error": True} if _is_failed(part) else None
        block = "tool_result" if mixed else "content"
        yield Block(block, _text(part.get("content")), id=_word(part, "tool_call_id"), extra=extra)
    elif kind == "retry-prompt":
        yield Block.text(_text(part.get("content")))
    else:
        yield _other(part)


def _answer(parts: list[Json]) -> Iterator[Block]:
    for part in parts:
        kind = part.get("part_kind")
        if kind == "text":
            yield Block.text(_text(part.get("content")))
        elif kind == "thinking":
            yield Block.thinking(_text(part.get("content")))
        elif kind in _CALLS:
            extra = {"server": True} if kind == "builtin-tool-call" else {}
            name = _word(part, "tool_name") or ""
            yield Block.tool_call(_word(part, "tool_call_id") or "", name, part.get("args"), **extra)
        elif kind == "file":
            yield _said(part.get("content"))
        else:
            yield _other(part)


def _said(said: object) -> Block:
    """Return one piece of a prompt: a text, binary content, or an address."""
    if not isinstance(said, Mapping):
        return Block.text(_text(said))
    kind, mime_type = said.get("kind"), _word(said, "media_type") or "application/octet-stream"
    if kind == "text-content":
        return Block.text(_text(said.get("content")))
    if kind == "binary":
        modality = mime_type.partition("/")[0]
        try:
            data = b64decode(_text(said.get("data")), altchars=b"-_")
        except (Error, ValueError):
            return _other(said)
        return Block("content", data, modality if modality in ("image", "audio", "video") else "text", mime_type)
    url = _word(said, "url")
    return Block(str(kind).replace("-", "_"), url) if url else _other(said)


def _other(part: Json) -> Block:
    return Block("metadata", _text(part), mime_type="application/json", extra={"part": _word(part, "part_kind") or ""})


def _is_result(part: Json) -> bool:
    return part.get("part_kind") in _RESULTS and bool(part.get("tool_name"))


def _is_failed(part: Json) -> bool:
    return part.get("part_kind") == "retry-prompt" or part.get("outcome") in ("failed", "retried")


def _usage(found: object) -> Usage | None:
    if not isinstance(found, Mapping):
        return None
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    counted = {name: value for name in names if isinstance(value := found.get(name), int)}
    return Usage(**counted) if any(counted.values()) else None


def _list(found: Json, name: str) -> list[object]:
    value = found.get(name)
    return value if isinstance(value, list) else []


def _word(found: Json, name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
