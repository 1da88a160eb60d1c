"""Messages of Strands as messages that everybody reads, and the names of what is kept beside them.

Strands writes messages as Bedrock's Converse API does: blocks are objects with one field, which says what they are.
Bytes in them are base64 in an object of their own once they are to be stored.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from ..model import Block, Message, Usage
from ._framework_names import escape, key_of
from ._kept_objects import Keeper, Whole

KIND: Final = "strands"  # of the conversations that hold sessions and storages, and no messages
SESSION_ITEM: Final = "strands/session"
AGENT_ITEM: Final = "strands/agent"
MULTI_AGENT_ITEM: Final = "strands/multi-agent/"  # and its id

_MEDIA: Final = {"image": "image", "video": "video", "audio": "audio", "document": "application"}


def session_key(session_id: str) -> str:
    """Return the key of the conversation, of the kind `strands`, that holds a session."""
    return key_of("session", session_id)


def agent_key(session_id: str, agent_id: str) -> str:
    """Return the key of the conversation of an agent."""
    return key_of("strands", session_id, agent_id)


def metadata_of(session_id: str, agent_id: str | None = None) -> dict[str, str]:
    """Return the metadata of an agent's conversation; without an agent, those by which all of a session are found."""
    found = {"framework": "strands-agents", "session_id": escape(session_id)}
    return found if agent_id is None else {**found, "agent_id": escape(agent_id)}


def _said(whole: Whole) -> Message | None:
    """Return what a stored message of a session says: if it was redacted, what was put in its place."""
    said = whole.get("redact_message") or whole.get("message")
    if not isinstance(said, Mapping):
        return None
    content = said.get("content")
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    extra: dict[str, object] = {"dialect": "bedrock"}
    if said.get("role") == "assistant":
        return Message("assistant", list(_blocks(parts)), extra=extra, raw=dict(said), usage=_usage(said))
    results = [part["toolResult"] for part in parts if isinstance(part.get("toolResult"), Mapping)]
    if parts and len(results) == len(parts):
        failed = any(result.get("status") == "error" for result in results)
        blocks = [block for result in results for block in _result(result)]
        return Message("tool_result", blocks, tool_result_error=failed, extra=extra, raw=dict(said))
    return Message("user", list(_blocks(parts)), extra=extra, raw=dict(said))


def _blocks(parts: Iterable[Whole]) -> Iterator[Block]:
    for part in parts:
        for kind, value in part.items():
            yield from _READERS.get(kind, _other)(kind, value)


def _text(kind: str, value: object) -> Iterator[Block]:
    if isinstance(value, str):
        yield Block.text(value)
    else:
        yield from _other(kind, value)


def _call(kind: str, value: object) -> Iterator[Block]:
    if isinstance(value, Mapping):
        given = value.get("input")
        arguments = given if isinstance(given, dict) else {"input": given}
        yield Block.tool_call(str(value.get("toolUseId", "")), str(value.get("name", "")), arguments)
    else:
        yield from _other(kind, value)


def _tool_result(kind: str, value: object) -> Iterator[Block]:
    for block in _result(value) if isinstance(value, Mapping) else _other(kind, value):
        yield msgspec.structs.replace(block, type="tool_result")


def _result(result: Whole) -> Iterator[Block]:
    content = result.get("content")
    for part in content if isinstance(content, list) else []:
        for block in _blocks([part] if isinstance(part, Mapping) else []):
            yield msgspec.structs.replace(block, id=str(result.get("toolUseId", "")))


def _thought(kind: str, value: object) -> Iterator[Block]:
    thought = value.get("reasoningText") if isinstance(value, Mapping) else None
    if isinstance(thought, Mapping) and isinstance(thought.get("text"), str):
        signature = thought.get("signature")
        yield Block.thinking(thought["text"], **({"signature": signature} if isinstance(signature, str) else {}))
    else:
        yield from _other(kind, value)


def _cited(kind: str, value: object) -> Iterator[Block]:
    content = value.get("content") if isinstance(value, Mapping) else None
    if isinstance(content, list):
        yield from _blocks(part for part in content if isinstance(part, Mapping))
    else:
        yield from _other(kind, value)


def _media(kind: str, value: object) -> Iterator[Block]:
    source = value.get("source") if isinstance(value, Mapping) else None
    stored = source.get("bytes") if isinstance(source, Mapping) else None
    data = stored.get("data") if isinstance(stored, Mapping) else None
    try:
        content = base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        content = None
    if content is None or not isinstance(value, Mapping):
        yield from _other(kind, value)
        return
    form = str(value.get("format") or "octet-stream")
    mime = f"{_MEDIA[kind]}/{form[:40]}"
    yield Block("content", content, modality=kind if kind != "document" else "text", mime_type=mime)


def _json(kind: str, value: object) -> Iterator[Block]:  # noqa: ARG001  # all readers take the kind
    yield Block("content", msgspec.json.encode(value).decode(), mime_type="application/json")


def _other(kind: str, value: object) -> Iterator[Block]:
    yield Block(kind[:64] or "unknown", msgspec.json.encode(value).decode(), mime_type="application/json")


def _usage(said: Whole) -> Usage | None:
    metadata = said.get("metadata")
    used = metadata.get("usage") if isinstance(metadata, Mapping) else None
    if not isinstance(used, Mapping):
        return None

    def count(name: str) -> int:
        value = used.get(name)
        return value if isinstance(value, int) else 0

    return Usage(
        input_tokens=count("inputTokens"),
        output_tokens=count("outputTokens"),
        cache_read_tokens=count("cacheReadInputTokens"),
        cache_write_tokens=count("cacheWriteInputTokens"),
    )


_READERS: Final[Mapping[str, Callable[[str, object], Iterator[Block]]]] = {
    "text": _text,
    "json": _json,
    "toolUse": _call,
    "toolResult": _tool_result,
    "reasoningContent": _thought,
    "citationsContent": _cited,
    **dict.fromkeys(_MEDIA, _media),
}

MESSAGES: Final = Keeper("strands", _said, inside=("message",))
