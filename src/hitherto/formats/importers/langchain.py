"""LangChain: histories as `messages_to_dict` and `dumpd` write them, also as rows of its message stores.

The content of a message is a text or a list of blocks: those of LangChain itself, of Anthropic's API, or of OpenAI's. A
call stands beside the content (`tool_calls`), in old files as OpenAI wrote it (`additional_kwargs`). There are no times
and no parents. A `remove` message is an instruction to a graph, and is kept as a record.
"""

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ...dialects._json import encode, from_base64
from ...dialects._openai_blocks import link_block
from ...model import Block, Message, Usage
from .._importer import clean_text, storable
from .._types import Source, SourceRecord
from ._fields import Fields, Setups, count, fields, first_text, objects, text, without
from ._media import modality_of
from ._message_lists import Entry, ListImporter
from ._turns import with_extra

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_OF_DICT = re.compile(rb'"type"\s*:\s*"(?:human|ai|system|tool|AIMessageChunk)"\s*,\s*"data"\s*:\s*\{')
_OF_DUMPD = re.compile(rb'"lc"\s*:\s*1\b')
_KINDS = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "tool": "tool_result",
          "function": "tool_result", "system": "event", "developer": "event"}  # fmt: skip
_MEDIA = ("image", "audio", "video", "file")
_IN_BLOCKS = ("content", "tool_calls", "usage_metadata", "type", "tool_call_id")


class LangChain(ListImporter):
    name = "langchain"

    def recognises(self, source: Source) -> str | None:
        head = source.head
        if _BEGINNING.match(head) and _OF_DICT.search(head):
            return "it is JSON with messages that have a type and data"
        if _BEGINNING.match(head) and _OF_DUMPD.search(head) and b'"constructor"' in head and b'Message"' in head:
            return "it is JSON with constructors of messages"
        return None

    def is_message(self, found: Fields) -> bool:
        return isinstance(found.get("data"), dict) or (found.get("lc") == 1 and isinstance(found.get("kwargs"), dict))

    def entries(self, listed: Iterable[Fields], setups: Setups) -> Iterator[Entry | SourceRecord]:
        prompt, provider, model, begun = "", "", "", False
        for one in listed:
            data = fields(one.get("data")) or fields(one.get("kwargs"))
            kind = _kind(one, data)
            if kind == "remove":
                yield SourceRecord(type="remove", data=storable(one), known=True)
            elif kind == "system" and not begun:
                prompt = "\n\n".join(part for part in (prompt, _words(data)) if part)
            else:
                begun = True
                message = _message(kind, data)
                about = fields(data.get("response_metadata"))
                if named := first_text(about, "model_name", "model"):
                    provider, model = _provider(text(about.get("model_provider"))), named
                yield Entry(message, setup=setups.number(provider, model, prompt) if message.role == "assistant" else 0)


FORMAT = LangChain()


def _provider(name: str) -> str:
    known = {"anthropic": "claude", "openai": "openai", "google_genai": "gemini"}
    return known.get(name, "openai-compatible" if name else "")


def _kind(one: Fields, data: Fields) -> str:
    """Return the kind of a message. A constructor may say it in the name of its class alone."""
    listed = one.get("id")
    last = text(listed[-1]) if isinstance(listed, list) and listed else ""
    named = text(one.get("type")) if "data" in one else text(data.get("type"))
    return named or last.removesuffix("Chunk").removesuffix("Message").lower()


def _words(data: Fields) -> str:
    return "".join(block.content for block in _content(data) if isinstance(block.content, str))


def _message(kind: str, data: Fields) -> Message:
    role = _KINDS.get(kind) or {"user": "user", "assistant": "assistant"}.get(text(data.get("role")).lower(), "event")
    blocks = [*_content(data), *_calls(data)]
    if role == "tool_result":
        id = clean_text(data.get("tool_call_id")) or clean_text(data.get("name"))
        message = Message.tool_result(id, blocks or [Block.text("")], error=data.get("status") == "error")
    else:
        message = Message(role, tuple(blocks))
    message = replace(message, usage=_usage(fields(data.get("usage_metadata"))))
    return with_extra(message, native=storable(_native(kind, data)))


def _native(kind: str, data: Fields) -> Fields:
    """Return the record without what the blocks say as well."""
    rest = without(data, _IN_BLOCKS)
    extra = without(fields(rest.get("additional_kwargs")), ("tool_calls",))
    rest = without(rest, ("additional_kwargs",)) | ({"additional_kwargs": extra} if extra else {})
    return {"type": kind, **rest}


def _content(data: Fields) -> Iterator[Block]:
    content = data.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            if part:
                yield Block.text(clean_text(part))
        elif isinstance(part, dict):
            yield from _block(part)


def _block(part: Fields) -> Iterator[Block]:
    kind = text(part.get("type"))
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        yield Block.text(clean_text(part["text"]))
    elif kind in ("reasoning", "thinking"):
        said = first_text(part, "reasoning", "thinking", "text")
        summary = "\n\n".join(text(one.get("text")) for one in objects(part.get("summary")))
        rest = storable(without(part, ("type", "reasoning", "thinking", "text")))
        yield Block.thinking(clean_text(said or summary), **({"block": rest} if rest else {}))
    elif kind in ("tool_use", "tool_call", "tool_call_chunk", "function_call"):
        return  # it stands beside the content as well
    else:
        found = _media(kind, part)
        yield found or Block(clean_text(kind)[:64] or "unknown", encode(storable(part)), mime_type="application/json")


def _media(kind: str, part: Fields) -> Block | None:
    """Return a picture, a sound or a file whose bytes are in the message."""
    if kind == "image_url":
        url = part.get("image_url")
        block = link_block(kind, url.get("url") if isinstance(url, dict) else url)
        return block if block is not None and isinstance(block.content, bytes) else None
    source = fields(part.get("source"))
    data = first_text(part, "base64", "data") or text(source.get("data"))
    found = from_base64(data) if kind in _MEDIA and data else None
    if not found:
        return None
    mime_type = clean_text(first_text(part, "mime_type", "mimeType") or source.get("media_type")) or f"{kind}/*"
    return Block("content", found, modality_of(mime_type), mime_type)


def _calls(data: Fields) -> Iterator[Block]:
    for number, call in enumerate((*objects(data.get("tool_calls")), *objects(data.get("invalid_tool_calls"))), 1):
        id = clean_text(call.get("id")) or f"{clean_text(data.get('id'))}/call {number}"
        yield Block.tool_call(id, clean_text(call.get("name")), storable(call.get("args")))
    if data.get("tool_calls"):
        return
    for call in objects(fields(data.get("additional_kwargs")).get("tool_calls")):
        function = fields(call.get("function"))
        yield Block.tool_call(clean_text(call.get("id")), clean_text(function.get("name")), _given(function))


def _given(function: Fields) -> object:
    return storable(function.get("arguments"))


def _usage(found: Fields) -> Usage | None:
    asked, said = fields(found.get("input_token_details")), fields(found.get("output_token_details"))
    usage = Usage(
        input_tokens=count(found.get("input_tokens")),
        output_tokens=count(found.get("output_tokens")),
        cache_read_tokens=count(asked.get("cache_read")),
        cache_write_tokens=count(asked.get("cache_creation")),
        reasoning_tokens=count(said.get("reasoning")),
    )
    return usage if usage != Usage() else None
