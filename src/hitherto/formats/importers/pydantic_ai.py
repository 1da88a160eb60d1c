"""pydantic-ai: the JSON of its `ModelMessagesTypeAdapter`, which is what `all_messages_json` writes.

A request holds several things in one record: system prompts, what the person said, results of tools, demands to try
again. Each becomes a message of its own; system prompts and instructions are the setup of the answers. Binary content
is base64 of the alphabet for URLs.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from ...dialects._json import encode, from_base64
from ...model import Block, Message, Usage
from .._importer import clean_text, injected, storable, time_us
from .._types import Source
from ._fields import Fields, Setups, count, fields, objects, text, without
from ._media import modality_of
from ._message_lists import Entry, ListImporter
from ._turns import with_extra

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_KIND = re.compile(rb'"kind"\s*:\s*"(?:request|response)"')
_PROVIDERS = {"anthropic": "claude", "openai": "openai", "google-gla": "gemini", "google-vertex": "gemini"}
_IN_USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "output_reasoning_tokens")


class PydanticAI(ListImporter):
    name = "pydantic-ai"

    def recognises(self, source: Source) -> str | None:
        head = source.head
        if _BEGINNING.match(head) and b'"part_kind"' in head and (_KIND.search(head) or b'"parts"' in head):
            return "it is JSON with requests and responses whose parts have a part_kind"
        return None

    def is_message(self, found: Fields) -> bool:
        return isinstance(found.get("parts"), list)

    def conversation_of(self, first: Fields) -> str:
        return clean_text(first.get("conversation_id"))

    def entries(self, listed: Iterable[Fields], setups: Setups) -> Iterator[Entry]:
        prompts: dict[str, None] = {}
        instructions = ""
        for one in listed:
            at = time_us(one.get("timestamp"))
            found = objects(one.get("parts"))
            if one.get("kind") == "response":
                prompt = "\n\n".join([*prompts, *([instructions] if instructions else [])])
                provider = text(one.get("provider_name"))
                name = _PROVIDERS.get(provider, "openai-compatible" if provider else "")
                yield Entry(_response(one, found), at, setups.number(name, text(one.get("model_name")), prompt))
                continue
            instructions = text(one.get("instructions")) or instructions
            for part in found:
                if part.get("part_kind") == "system-prompt":
                    prompts[text(part.get("content"))] = None
            for number, message in enumerate(_request(found)):
                native = without(one, ("parts", "kind")) if number == 0 else {}
                own = with_extra(message, native=storable({**fields((message.extra or {}).get("native")), **native}))
                yield Entry(own, at)


FORMAT = PydanticAI()


def _request(found: Sequence[Fields]) -> Iterator[Message]:
    """Yield what a request says: the results of tools first, as the API wants them after the calls."""
    said: list[Block] = []
    for part in found:
        kind, name = text(part.get("part_kind")), clean_text(part.get("tool_name"))
        if kind == "tool-return" or (kind == "retry-prompt" and name):
            failed = kind == "retry-prompt" or part.get("outcome") in ("failed", "retried", "denied")
            id = clean_text(part.get("tool_call_id")) or name
            blocks = list(_content(part.get("content"))) or [Block.text("")]
            native = without(part, ("content", "tool_call_id", "timestamp"))
            yield with_extra(Message.tool_result(id, blocks, error=failed), native=storable(native))
        elif kind == "retry-prompt":
            yield injected(Message.user(list(_content(part.get("content")))), "reminder")
        elif kind == "user-prompt":
            said += _content(part.get("content"))
        elif kind != "system-prompt":
            said.append(_unknown(kind, part))
    if said:
        yield Message.user(said)


def _response(one: Fields, found: Sequence[Fields]) -> Message:
    blocks = tuple(block for part in found for block in _answer(part))
    rest = without(one, ("parts", "kind", "usage"))
    tokens = fields(one.get("usage"))
    used = without(tokens, _IN_USAGE)
    message = Message("assistant", blocks, usage=_usage(tokens))
    return with_extra(message, native=storable(rest | ({"usage": used} if used else {})))


def _answer(part: Fields) -> Iterator[Block]:
    kind = text(part.get("part_kind"))
    rest = fields(storable(without(part, ("part_kind", "content", "tool_name", "args", "tool_call_id"))))
    extra: dict[str, object] = {"part": rest} if rest else {}
    match kind:
        case "text":
            if said := text(part.get("content")):
                yield Block.text(clean_text(said), **extra)
        case "thinking":
            yield Block.thinking(clean_text(part.get("content")), **extra)
        case "tool-call" | "builtin-tool-call":
            given = part.get("args")
            call = clean_text(given) if isinstance(given, str) else storable(given)
            server = {"server": True} if kind == "builtin-tool-call" else {}
            yield Block.tool_call(
                clean_text(part.get("tool_call_id")), clean_text(part.get("tool_name")), call, **server, **extra
            )
        case "builtin-tool-return":
            words = encode(storable(part.get("content")))
            yield Block("tool_result", words, id=clean_text(part.get("tool_call_id")), extra={"server": True, **extra})
        case "file":
            yield from _content([part.get("content")])
        case _:
            yield _unknown(kind, part)


def _content(content: object) -> Iterator[Block]:
    """Yield what a part says: a text, a list of texts and files, or any JSON, which is what a tool may return."""
    if isinstance(content, str):
        yield Block.text(clean_text(content))
    elif isinstance(content, list) and any(isinstance(one, str) or "kind" in fields(one) for one in content):
        for one in content:
            yield Block.text(clean_text(one)) if isinstance(one, str) else _file(fields(one))
    elif fields(content).get("kind") == "binary":
        yield _file(fields(content))
    elif content is not None:
        yield Block("content", encode(storable(content)), mime_type="application/json")


def _file(found: Fields) -> Block:
    data = from_base64(found.get("data")) if found.get("kind") == "binary" else None
    mime_type = clean_text(found.get("media_type")) or "application/octet-stream"
    if data is None:
        return _unknown(text(found.get("kind")), found)
    rest = storable(without(found, ("data", "kind", "media_type")))
    return Block("content", data, modality_of(mime_type), mime_type, extra={"file": rest} if rest else None)


def _unknown(kind: str, found: Fields) -> Block:
    return Block(clean_text(kind)[:64] or "unknown", encode(storable(found)), mime_type="application/json")


def _usage(found: Fields) -> Usage | None:
    """Return the tokens, by the names of today or of before version 1."""
    details = fields(found.get("details"))
    usage = Usage(
        input_tokens=count(found.get("input_tokens")) or count(found.get("request_tokens")),
        output_tokens=count(found.get("output_tokens")) or count(found.get("response_tokens")),
        cache_read_tokens=count(found.get("cache_read_tokens")),
        cache_write_tokens=count(found.get("cache_write_tokens")),
        reasoning_tokens=count(found.get("output_reasoning_tokens")) or count(details.get("reasoning_tokens")),
    )
    return usage if usage != Usage() else None
