"""Messages of Microsoft's Agent Framework as messages that everybody reads.

A message has contents, and each content says by its type what it is: text, thought, data, a call of a function, the
result of one. System messages are events.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from ..model import Block, Message, Usage
from ._kept_objects import Keeper, Whole


def _said(whole: Whole) -> Message | None:
    contents = whole.get("contents")
    parts = [part for part in contents if isinstance(part, Mapping)] if isinstance(contents, list) else []
    role = str(whole.get("role"))
    if role == "tool" and parts:
        failed = any(part.get("exception") for part in parts)
        return Message("tool_result", list(_blocks(parts)), tool_result_error=failed)
    if role not in ("user", "assistant"):
        return None if role == "tool" else Message("event", list(_blocks(parts)))
    return Message(role, list(_blocks(parts)), usage=_usage(parts) if role == "assistant" else None)


def _blocks(parts: Iterable[Whole]) -> Iterator[Block]:
    for part in parts:
        yield from _READERS.get(str(part.get("type")), _other)(part)


def _text(part: Whole) -> Iterator[Block]:
    yield Block.text(str(part.get("text") or ""))


def _thought(part: Whole) -> Iterator[Block]:
    yield Block.thinking(str(part.get("text") or ""))


def _call(part: Whole) -> Iterator[Block]:
    given = part.get("arguments")
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        arguments = None
    arguments = arguments if isinstance(arguments, dict) else {} if given in (None, "") else {"arguments": given}
    yield Block.tool_call(str(part.get("call_id") or ""), str(part.get("name") or ""), arguments)


def _result(part: Whole) -> Iterator[Block]:
    result = part.get("result")
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    yield Block("content", text, id=str(part.get("call_id") or ""))


def _data(part: Whole) -> Iterator[Block]:
    """Data is base64 in a `data:` URI."""
    mime = str(part.get("media_type") or "application/octet-stream")
    _, comma, data = str(part.get("uri") or "").partition(";base64,")
    try:
        content = base64.b64decode(data, validate=True) if comma else None
    except (binascii.Error, ValueError):
        content = None
    if content is None:
        yield from _other(part)
        return
    kind = mime.partition("/")[0]
    yield Block("content", content, modality=kind if kind in ("image", "audio", "video") else "text", mime_type=mime)


def _nothing(part: Whole) -> Iterator[Block]:  # noqa: ARG001  # all readers take the part
    return iter(())


def _other(part: Whole) -> Iterator[Block]:
    kind = str(part.get("type") or "unknown")[:64]
    yield Block(kind, msgspec.json.encode(part).decode(), mime_type="application/json")


def _usage(parts: Iterable[Whole]) -> Usage | None:
    found = None
    for part in parts:
        used = part.get("usage_details") if part.get("type") == "usage" else None
        if isinstance(used, Mapping):
            counts = [used.get(name) for name in ("input_token_count", "output_token_count")]
            whole = [count if isinstance(count, int) else 0 for count in counts]
            found = (found or Usage()) + Usage(input_tokens=whole[0], output_tokens=whole[1])
    return found


_READERS: Final[Mapping[str, Callable[[Whole], Iterator[Block]]]] = {
    "text": _text,
    "text_reasoning": _thought,
    "function_call": _call,
    "function_result": _result,
    "data": _data,
    "usage": _nothing,
}

MESSAGES: Final = Keeper("agent_framework", _said, inside=("contents",))
