"""Anthropic's messages: `{"role": "user", "content": [blocks]}`, the system prompt beside them.

An entry of the history is one turn. A turn of the user that holds nothing but `tool_result` blocks is a message of the
role `tool_result`, whose blocks carry the ids of the calls they answer; one that mixes results and words stays the
user's, with blocks of the type `tool_result`. Calls that Anthropic runs itself (`server_tool_use`, `mcp_tool_use`) are
tool calls marked `server`, so that no result of ours is awaited.

Two things are worth knowing about the numbers and the streams.

`input_tokens` of the API leaves out what was read from the cache and what was written to it. Ours counts all that the
model read: the three together, with `cache_read_tokens` and `cache_write_tokens` as parts of it.

A stream that breaks leaves pieces that the API would refuse to get back: half a tool call, a thought without its
signature, a search of Anthropic's own without its result. They stay out of `raw`; a thought's text stays readable among
the blocks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import msgspec

from ..attachment import Attachment
from ..errors import InvalidMessage
from ..model import Block, BlockType, Message, Setup, Usage, check_name
from . import _json
from ._canonical import Likeness, Saying
from ._lossless import own_raw
from ._types import NO_NAMES, Answer, Encoded, ParsedRequest, Raw, joins_entry

_MAX_TOKENS = 4096  # the API wants a limit in every request
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_OURS = frozenset({*BlockType, "tool_result"})  # block types with a meaning of ours; an unknown block may not use them
_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})  # those that the API reads
_NOT_IN_AN_ID = re.compile("[^a-zA-Z0-9_-]")
_ABOUT = ("stop_reason", "stop_sequence", "stop_details", "model")
_LITERAL = frozenset({"const", "default", "enum", "examples"})  # in a schema: values, not schemas


class Anthropic:
    """The dialect of the Messages API."""

    name: ClassVar[str] = "anthropic"
    joins: ClassVar[bool] = True

    # -- reading

    def parse(self, raw: Raw) -> Message:
        raw = _json.entry(raw, "a message")
        role = _json.text(raw, "role")
        check_name(role, "the role")
        content = _content(raw)
        if role == "user" and content and all(map(_is_result, content)):
            blocks = tuple(block for result in content for block in _answers(result))
            return Message("tool_result", blocks, tool_result_error=any(map(_is_error, content)), raw=raw)
        return Message(role, tuple(map(_block, content)), raw=raw)

    def parse_request(self, body: Mapping[str, object]) -> ParsedRequest:
        body = _json.as_object(body, "a request")
        about = _json.entry(_json.some(body, ("model", "system", "tools")), "a request")
        prompt, system = _system(about.get("system"))
        tools = tuple(_json.entries(about, "tools"))
        setup = Setup(model=_json.text(about, "model"), system_prompt=prompt, tools=tools, raw=system)
        after = _previous_message_id(body)
        messages = [self.parse(raw) for raw in _json.entries(body, "messages")]
        return ParsedRequest(messages, setup, after, inherits=after is not None)

    def answer(self, body: Mapping[str, object]) -> Answer:
        body = _json.entry(body, "a response")
        if not _json.is_entries(body.get("content")):
            raise InvalidMessage("a response has no list of content", hint="pass an answer, not an error")
        content = _json.entries(body, "content")
        return Answer(
            [_answer_message(content, [_block(item) for item in content], body)], id=_json.identity(body, "id")
        )

    def assembly(self) -> "AnthropicAssembly":
        return AnthropicAssembly()

    def likeness(self, raw: Raw) -> Likeness:
        raw = _json.entry(_json.deep_copy(raw), "a message")
        said = Saying(_json.text(raw, "role"))
        _say(said, _content(raw))
        return said.likeness()

    # -- writing

    def history(self, messages: Sequence[Message]) -> list[Raw]:
        found: list[Raw] = []
        ids = _Ids()
        before, was_built = None, False
        for message in messages:
            own = own_raw(message, self.name)
            raws = self.build(message).raws if own is None else [_json.copy_entry(own)]
            joined = joins_entry(message, before, is_built=own is None, was_built=was_built)
            for raw in raws:
                ids.note(raw, own is not None)
                if joined and found and found[-1].get("role") == raw.get("role"):
                    found[-1]["content"] = [*_content(found[-1]), *_content(raw)]
                else:
                    found.append(raw)
                before, was_built = message, own is None
        return found

    def build(self, message: Message, names: Mapping[str, str] = NO_NAMES) -> Encoded:  # noqa: ARG002  # ids are enough
        losses: list[str] = []
        if message.role == "tool_result":
            content = list(_results(message, losses))
        elif message.role in ("user", "assistant"):
            content = [item for block in message.blocks for item in _written(block, message.role, losses)]
        else:
            return Encoded([], [f"a message of the role {message.role} is left out"])
        if not content:
            return Encoded([], losses)
        role = "assistant" if message.role == "assistant" else "user"
        return Encoded([{"role": role, "content": _shortest(content)}], losses)

    def request(self, history: list[Raw], setup: Setup, options: Mapping[str, object]) -> dict[str, object]:
        body: dict[str, object] = {"model": setup.model, "max_tokens": _MAX_TOKENS, "messages": history}
        system = _system_argument(setup)
        if system:
            body["system"] = system
        if setup.tools:
            body["tools"] = [_tool(tool) for tool in setup.tools]
        return body | dict(options)

    def schema_options(self, schema: Mapping[str, object]) -> dict[str, object]:
        return {
            "output_config": {"format": {"type": "json_schema", "schema": _close_schema(_json.deep_copy(dict(schema)))}}
        }


# -- reading


def _previous_message_id(body: Mapping[str, object]) -> str | None:
    """Return the id of the answer that a request continues, if Anthropic holds the history (a thread). Then it also
    holds the system prompt and the tools, and refuses them in the request."""
    thread = body.get("thread")
    if not isinstance(thread, dict) or thread.get("type") != "continue":
        return None
    return _json.identity(thread, "previous_message_id")


def _content(raw: Raw) -> list[dict[str, object]]:
    """Return the content as a list of blocks; plain text becomes one text block."""
    content = raw.get("content")
    if isinstance(content, (str, Attachment)):
        return [{"type": "text", "text": _json.text(raw, "content")}]
    if not _json.is_entries(content):
        raise InvalidMessage("the content of a message is neither text nor a list of blocks")
    return content


def _block(raw: dict[str, object]) -> Block:
    """Parse a block. A malformed one is kept as an unknown block."""
    read = _READERS.get(_kind(raw))
    try:
        return read(raw) if read else _stranger(raw)
    except InvalidMessage:
        return _stranger(raw)


def _kind(raw: Mapping[str, object]) -> str:
    kind = raw.get("type")
    return kind if isinstance(kind, str) and kind else "unknown"


def _stranger(raw: dict[str, object]) -> Block:
    kind = _kind(raw)
    return Block("unknown" if kind in _OURS else kind, _json.encode(raw), mime_type="application/json")


def _text(raw: dict[str, object]) -> Block:
    if raw.get("text") is None:
        raise InvalidMessage("a text block has no text")
    citations = _json.entries(raw, "citations")
    extra: dict[str, object] = {"citations": citations} if citations else {}
    return Block.text(_json.text(raw, "text"), **extra)


def _thinking(raw: dict[str, object]) -> Block:
    signature = _json.text(raw, "signature")
    extra: dict[str, object] = {"signature": signature} if signature else {}
    return Block.thinking(_json.text(raw, "thinking"), **extra)


def _redacted_thinking(raw: dict[str, object]) -> Block:
    return Block("thinking", "", extra={"redacted": _json.text(raw, "data")})


def _call(raw: dict[str, object]) -> Block:
    id, name = _json.text(raw, "id"), _json.text(raw, "name")
    if not id or not name:
        raise InvalidMessage("a call has no id, or no name")
    extra = _json.some(raw, ("server_name", "caller"))
    if raw.get("type") != "tool_use":
        extra["server"] = True
    return Block.tool_call(id, name, raw.get("input"), **extra)


def _image(raw: dict[str, object]) -> Block:
    source = _json.inner(raw, "source")
    if source.get("type") == "base64":
        return Block.image(_bytes(source), _json.text(source, "media_type") or "image/*")
    return _elsewhere(raw, source, "image", "image/*")


def _document(raw: dict[str, object]) -> Block:
    """A PDF as its bytes. Plain text is of the type `document`, for it is not what the user says."""
    source = _json.inner(raw, "source")
    about = _json.some(raw, ("title", "context"))
    if source.get("type") == "base64":
        mime_type = _json.text(source, "media_type") or "application/pdf"
        return Block("content", _bytes(source), "text", mime_type, extra=about or None)
    if source.get("type") == "text":
        mime_type = _json.text(source, "media_type") or "text/plain"
        return Block("document", _json.text(source, "data"), "text", mime_type, extra={"source": "text", **about})
    return _elsewhere(raw, source, "text", "application/pdf")


def _bytes(source: dict[str, object]) -> bytes:
    data = _json.from_base64(source.get("data"))
    if data is None:
        raise InvalidMessage("not base64")
    return data


def _elsewhere(raw: dict[str, object], source: dict[str, object], modality: str, mime_type: str) -> Block:
    """Parse a block that only refers to its data. Its type is not `content`: an address is not text of the message."""
    place = {"url": "url", "file": "file_id"}.get(_json.text(source, "type"))
    if place is None or not _json.text(source, place):
        raise InvalidMessage("an unknown source")
    about = {"source": source["type"], **_json.some(raw, ("title", "context"))}
    return Block(_kind(raw), _json.text(source, place), modality, mime_type, extra=about)


def _is_result(raw: Mapping[str, object]) -> bool:
    id = raw.get("tool_use_id")
    return raw.get("type") == "tool_result" and isinstance(id, str) and bool(id)


def _is_error(raw: Mapping[str, object]) -> bool:
    return raw.get("is_error") is True


def _result(raw: dict[str, object]) -> Block:
    """Parse a result among other blocks into one block: text as text, everything else as JSON."""
    if not _is_result(raw):
        raise InvalidMessage("a result has no id of a call")
    blocks = _inside(raw)
    plain = all(b.type == "content" and isinstance(b.content, str) for b in blocks)
    content = Message("tool_result", blocks).text if plain else _json.encode(raw.get("content"))
    mime_type = "text/plain" if plain else "application/json"
    extra: dict[str, object] | None = {"error": True} if _is_error(raw) else None
    return Block("tool_result", content, "text", mime_type, _json.text(raw, "tool_use_id"), extra)


def _answers(raw: dict[str, object]) -> Iterator[Block]:
    """Yield the blocks of a result, each with the id of its call. An empty result yields an empty text, so that the id
    is kept."""
    id = _json.text(raw, "tool_use_id")
    for block in _inside(raw) or [Block.text("")]:
        extra = {**(block.extra or {}), "error": True} if _is_error(raw) else block.extra
        yield msgspec.structs.replace(block, id=id, extra=extra)


def _inside(raw: dict[str, object]) -> list[Block]:
    content = raw.get("content")
    if content is None:
        return []
    try:
        return [_block(item) for item in _content(raw)]
    except InvalidMessage:
        return [Block("unknown", _json.encode(content), mime_type="application/json")]


_READERS = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _redacted_thinking,
    "image": _image,
    "document": _document,
    "tool_result": _result,
    **dict.fromkeys(_CALLS, _call),
}


def _system(value: object) -> tuple[str, object]:
    """Return the system prompt as text, and its original form if that was not plain text."""
    if value is None:
        return "", None
    if isinstance(value, str):
        return value, None
    if not _json.is_entries(value):
        raise InvalidMessage("the system prompt is neither text nor a list of blocks")
    return "\n\n".join(_json.text(block, "text") for block in value), value or None


def _system_argument(setup: Setup) -> object:
    """Return the system prompt for a request: in its original form, if that is Anthropic's and still has the same
    text."""
    is_ours = _json.is_entries(setup.raw) and all(isinstance(block.get("text", ""), str) for block in setup.raw)
    if is_ours and _system(setup.raw)[0] == setup.system_prompt:
        return _json.deep_copy(setup.raw)
    return setup.system_prompt


def _answer_message(content: list[dict[str, object]], blocks: list[Block], body: Mapping[str, object]) -> Message:
    """Return the message of an answer, with the raw that the next request sends. An answer without content is a message
    too, because it was paid for, but has no raw: the API would refuse it."""
    about = _json.some(body, _ABOUT)
    container = body.get("container")
    if isinstance(container, dict) and container.get("id") is not None:
        about["container"] = container["id"]
    usage = body.get("usage")
    counted = _usage(usage) if isinstance(usage, dict) else None
    raw = {"role": "assistant", "content": content} if content else None
    return Message.assistant(blocks, extra=about or None, raw=raw, usage=counted)


def _usage(raw: dict[str, object]) -> Usage:
    read, written = _json.number(raw, "cache_read_input_tokens"), _json.number(raw, "cache_creation_input_tokens")
    details = raw.get("output_tokens_details")
    return Usage(
        input_tokens=_json.number(raw, "input_tokens") + read + written,
        output_tokens=_json.number(raw, "output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=_json.number(details, "thinking_tokens") if isinstance(details, dict) else 0,
    )


# -- likeness


def _say(said: Saying, content: list[dict[str, object]]) -> None:
    """Add the content of blocks to a canonical form. Thoughts do not count: the API lets clients leave them out. Nor do
    citations: a client that sends the text of an answer back may not have them."""
    for block in content:
        kind = _kind(block)
        if kind in ("thinking", "redacted_thinking"):
            said.mark("thought", block.get("signature") or block.get("data"))
        elif kind == "text" and isinstance(block.get("text") or "", str):
            said.text(_json.text(block, "text"))
        elif kind in _CALLS[1:] or (kind != "tool_result" and block.get("tool_use_id")):
            said.doing(kind, block.get("id") or block.get("tool_use_id"), _bare(block))
        else:
            said.mark("id", block.get("tool_use_id" if kind == "tool_result" else "id"))
            said.thing(_bare(block))


def _bare(block: Mapping[str, object]) -> dict[str, object]:
    """Return a block without nulls, cache markers and default values. The input of a call is the model's own and is
    left as it is."""
    found: dict[str, object] = {}
    kind = _kind(block)
    for name, value in block.items():
        if name == "input":
            found[name] = value
        elif not _says_nothing(name, value) and not (name == "id" and kind in _CALLS):
            found[name] = _bare_value(value)
    if kind == "tool_result":
        found.pop("tool_use_id", None)
        found["content"] = _result_likeness(block.get("content"))
    return found


def _result_likeness(content: object) -> object:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not _json.is_entries(content):
        return _bare_value(content or [])
    said = Saying("tool_result")
    _say(said, content)
    return list(said.likeness().said)


def _says_nothing(name: str, value: object) -> bool:
    if value is None or name == "cache_control":
        return True
    return (name, value) in (("citations", []), ("is_error", False), ("caller", {"type": "direct"}))


def _bare_value(value: object) -> object:
    if isinstance(value, dict):
        return _bare(value)
    return [_bare_value(item) for item in value] if isinstance(value, list) else value


# -- writing


class _Ids:
    """Makes the ids of calls unique in a history. The API requires it, and other providers count anew in every turn: a
    repeated id gets a number. Ids that Anthropic wrote itself are not changed."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._now: dict[str, str] = {}  # what an id stands for at this point of the history

    def note(self, raw: Raw, own: bool) -> None:
        content = raw.get("content")
        for block in content if _json.is_entries(content) else []:
            name = {"tool_use": "id", "tool_result": "tool_use_id"}.get(_kind(block))
            id = block.get(name) if name else None
            if not name or not isinstance(id, str):
                continue
            if name == "id":
                self._now[id] = id if own else self._fresh(id)
                self._used.add(self._now[id])
            if not own:
                block[name] = self._now.get(id, id)

    def _fresh(self, id: str) -> str:
        name, count = id, 1
        while name in self._used:
            count += 1
            name = f"{id}-{count}"
        return name


def _shortest(content: list[dict[str, object]]) -> object:
    """Return the content in its shortest form: a single text block becomes plain text."""
    return content[0]["text"] if len(content) == 1 and content[0].keys() == {"type", "text"} else content


def _written(block: Block, role: str, losses: list[str]) -> Iterator[dict[str, object]]:
    """Encode a block for a user's or an assistant's entry. Blank text is left out, because the API refuses it."""
    content = block.content.load() if isinstance(block.content, Attachment) else block.content
    if block.type == "tool_call":
        yield from _written_call(block, losses)
    elif block.type == "tool_result" and role == "user":
        yield _written_result(block.id or "", [Block.text(str(content))], bool((block.extra or {}).get("error")))
    elif block.type == "content" and isinstance(content, str):
        if content.strip():
            yield {"type": "text", "text": content}
    elif role == "assistant" or not (written := _media(block, content)):
        losses.append(_lost(block))
    else:
        yield written


def _written_call(block: Block, losses: list[str]) -> Iterator[dict[str, object]]:
    name = block.tool_name
    if not name or (block.extra or {}).get("server"):
        losses.append(
            "a call that the provider ran itself is left out" if name else "a call without a name is left out"
        )
        return
    arguments = block.arguments
    known = _json.parse_json(arguments) if isinstance(arguments, str) and arguments.strip() else arguments or {}
    if not isinstance(known, dict):
        losses.append(f"the arguments of a call of {name} are not a JSON object")
        known = {"arguments": arguments}
    yield {"type": "tool_use", "id": _id(block.id or name), "name": name, "input": known}


def _media(block: Block, content: str | bytes) -> dict[str, object] | None:
    """Encode an image or a document. Returns None if it is neither."""
    source: dict[str, object]
    if isinstance(content, bytes):
        source = {"type": "base64", "media_type": block.mime_type, "data": _json.to_base64(content)}
    elif (place := (block.extra or {}).get("source")) == "url":
        source = {"type": "url", "url": content}
    elif place == "text" and block.type == "document":
        source = {"type": "text", "media_type": block.mime_type, "data": content}
    else:
        return None
    if block.modality == "image":
        fits = source["type"] == "url" or block.mime_type in _IMAGES
        return {"type": "image", "source": source} if fits else None
    pdf = block.modality == "text" and block.mime_type == "application/pdf"
    return {"type": "document", "source": source} if pdf or source["type"] == "text" else None


def _results(message: Message, losses: list[str]) -> Iterator[dict[str, object]]:
    """Yield one `tool_result` for each answered call, in the order of their first blocks."""
    groups: dict[str, list[Block]] = {}
    for block in message.blocks:
        if block.id:
            groups.setdefault(block.id, []).append(block)
        else:
            losses.append("a tool result without the id of its call is left out")
    told = any((block.extra or {}).get("error") for block in message.blocks)
    for id, blocks in groups.items():
        failed = any((block.extra or {}).get("error") for block in blocks) if told else message.tool_result_error
        yield _written_result(id, blocks, failed, losses)


def _written_result(id: str, blocks: list[Block], failed: bool, losses: list[str] | None = None) -> dict[str, object]:
    lost: list[str] = [] if losses is None else losses
    inside = [item for block in blocks for item in _written(block, "user", lost) if item["type"] not in _CALLS]
    result: dict[str, object] = {"type": "tool_result", "tool_use_id": _id(id), "content": _shortest(inside or [_NONE])}
    return result | {"is_error": True} if failed else result


_NONE: dict[str, object] = {"type": "text", "text": ""}  # written as an empty string, which a result may be


def _id(id: str) -> str:
    """Return the id of a call in the characters that the API accepts. The same id always gives the same result."""
    return _NOT_IN_AN_ID.sub("_", id)


def _lost(block: Block) -> str:
    if block.type == "thinking":
        return "a thought is left out"
    what = block.modality if block.type == "content" else block.type
    return f"{what} ({block.mime_type}) is left out"


def _tool(tool: dict[str, object]) -> object:
    if "input_schema" in tool or "type" in tool:
        return _json.deep_copy(tool)
    schema = _json.deep_copy(tool.get("parameters")) or {"type": "object", "properties": {}}
    return _json.some(tool, ("name", "description")) | {"input_schema": schema}


def _close_schema(schema: object) -> object:
    """Return the schema with `additionalProperties: false` in every object: the API refuses open ones."""
    if isinstance(schema, list):
        return [_close_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value if name in _LITERAL else _close_schema(value) for name, value in schema.items()}
    return {"additionalProperties": False, **found} if found.get("type") == "object" else found


# -- streams


class _Growing:
    """A block of an answer while it arrives. Text is kept in pieces and joined on demand: appending each piece to a
    long text would take quadratic time."""

    def __init__(self, start: dict[str, object]) -> None:
        self.start = start
        self.kind = _kind(start)
        self.finished = False
        self._texts: dict[str, list[str]] = {}
        self._input: list[str] = []

    def take(self, delta: dict[str, object]) -> str:
        """Add a delta. Returns the text it brought."""
        match delta.get("type"):
            case "input_json_delta":
                self._input.append(_json.text(delta, "partial_json"))
            case "signature_delta":
                self.start["signature"] = _json.text(delta, "signature")
            case "citations_delta":
                self._extend("citations", [delta.get("citation")])
            case _:
                self._take_any(delta)
        return _json.text(delta, "text") if self.kind == "text" and delta.get("type") == "text_delta" else ""

    def _take_any(self, delta: dict[str, object]) -> None:
        """Add a delta of an unknown kind: texts and lists are extended, all other values replaced."""
        for name, value in delta.items():
            if name == "type" or value is None:
                continue
            if isinstance(value, str) and isinstance(self.start.get(name) or "", str):
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):
                self._extend(name, value)
            else:
                self.start[name] = value

    def _extend(self, name: str, more: list[object]) -> None:
        old = self.start.get(name)
        self.start[name] = [*old, *more] if isinstance(old, list) else more

    def whole(self) -> dict[str, object]:
        """Return the block as the API gives it without streaming. An input that is not a JSON object stays text."""
        found = _json.copy_entry(self.start)
        for name, pieces in self._texts.items():
            before = found.get(name)
            found[name] = _json.join_pieces((before if isinstance(before, str) else "", *pieces))
        written = "".join(self._input)
        if written:
            known = _json.parse_json(written)
            found["input"] = known if isinstance(known, dict) else written
        return found


class AnthropicAssembly:
    """Collects an answer of the Messages API from its events."""

    def __init__(self) -> None:
        self._about: dict[str, object] = {}
        self._usage: dict[str, object] = {}
        self._blocks: dict[int, _Growing] = {}
        self._ended = False

    def feed(self, event: Mapping[str, object]) -> str:
        event = _json.entry(event, "an event")
        match event.get("type"):
            case "message_start":
                self._note(_json.inner(event, "message"))
            case "message_delta":
                self._note(_json.inner(event, "delta") | _json.some(event, ("usage",)))
            case "content_block_start":
                return self._start(event)
            case "content_block_delta":
                return self._growing(event).take(_json.inner(event, "delta"))
            case "content_block_stop":
                self._growing(event).finished = True
            case "message_stop":
                self._ended = True
        return ""

    def answer(self) -> Answer:
        blocks = [(growing, growing.whole()) for _, growing in sorted(self._blocks.items())]
        shown = [_readable_block(growing, raw) for growing, raw in blocks]
        content = [raw for growing, raw in blocks if _is_usable(growing, raw)]
        complete = self._ended and all(growing.finished and _is_parsed(raw) for growing, raw in blocks)
        if not complete:
            content = _sendable(content)
        if not content and not complete:
            return Answer([], id=_json.identity(self._about, "id"), complete=False)
        about = self._about | ({"usage": self._usage} if self._usage else {})
        message = _answer_message(content, [block for block in shown if block], about)
        return Answer([message], id=_json.identity(self._about, "id"), complete=complete)

    def _note(self, about: dict[str, object]) -> None:
        """Take over fields that describe the whole answer. Counts are running totals; a null means no change."""
        self._usage |= {name: value for name, value in _json.inner(about, "usage").items() if value is not None}
        self._about |= _json.some(about, ("id", "container", *_ABOUT))

    def _start(self, event: dict[str, object]) -> str:
        index = event.get("index")
        if type(index) is not int:
            raise InvalidMessage("a block of a stream has no number")
        block = _json.entry(_json.deep_copy(event.get("content_block")), "a block")
        words = _json.text(block, "text") if _kind(block) == "text" else ""
        self._blocks[index] = _Growing(block)
        return words

    def _growing(self, event: dict[str, object]) -> _Growing:
        index = event.get("index")
        growing = self._blocks.get(index) if type(index) is int else None
        if growing is None:
            raise InvalidMessage("an event of a stream is about a block that has not begun")
        return growing


def _is_parsed(raw: dict[str, object]) -> bool:
    return raw.get("type") not in _CALLS or isinstance(raw.get("input"), dict)


def _is_usable(growing: _Growing, raw: dict[str, object]) -> bool:
    return _is_parsed(raw) if growing.finished else growing.kind == "text" and bool(raw.get("text"))


def _readable_block(growing: _Growing, raw: dict[str, object]) -> Block | None:
    """Return a block for reading, or None. An unfinished thought can be read; an unfinished call cannot. A finished
    call with broken JSON keeps its text."""
    if growing.finished and not _is_parsed(raw):
        return _stranger(raw)
    return _block(raw) if growing.finished or growing.kind in ("text", "thinking") else None


def _sendable(content: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the part of a broken answer that the API would accept: its own calls only with their results, and no
    thought at the end."""
    answered = [raw.get("tool_use_id") for raw in content]
    kept = [raw for raw in content if raw.get("type") not in _CALLS[1:] or raw.get("id") in answered]
    while kept and kept[-1].get("type") in ("thinking", "redacted_thinking"):
        kept.pop()
    return kept
