"""OpenAI's chat messages, as many servers use them: OpenAI itself, llama.cpp, vLLM, Ollama, OpenRouter, DeepSeek.

A history is a list of messages with the roles system (or developer), user, assistant and tool. System messages at its
head are not part of the conversation: they are lifted into the `Setup`, and put back in front when a request is made. A
system message further down keeps its place, as an event.

A tool call has its arguments as JSON text, kept as the model wrote it, even where that is not JSON. An answer in pieces
is put together as OpenAI's own SDK does it, and a little more patiently: servers that repeat the role in every chunk,
give two calls the same index, or leave the index out, are understood.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from ..errors import InvalidMessage
from ..model import Block, Message, Setup, Usage, check_name
from ._canonical import Likeness, Saying
from ._json import (
    deep_copy,
    entries,
    entry,
    from_base64,
    inner,
    is_entries,
    join_pieces,
    number,
    parse_json,
    text,
    to_base64,
)
from ._openai_blocks import (
    SYSTEM,
    accepts_strict,
    arguments_text,
    as_text,
    by_call,
    content_of,
    data_url,
    file_block,
    filename,
    is_said,
    link_block,
    load_block,
    loss,
    normal_arguments,
    plain_tool,
    raws_of,
    system_message,
    unknown,
    with_id,
    without_nulls,
)
from ._sse import DONE
from ._types import NO_NAMES, Answer, Encoded, ParsedRequest, Raw

_ROLES = {"system": "event", "developer": "event", "tool": "tool_result", "function": "tool_result"}
_SOUNDS = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_THOUGHTS = ("reasoning_content", "reasoning")
_ONCE = frozenset({"role", "id", "type", "index"})  # of a delta: said, possibly again, but never in pieces


class OpenAIChat:
    name: ClassVar[str] = "openai-chat"
    joins: ClassVar[bool] = False

    # -- reading

    def parse(self, raw: Raw) -> Message:
        found = entry(raw, "a chat message")
        role = text(found, "role")
        if not role:
            raise InvalidMessage("a chat message without a role")
        return _message(found, role)

    def parse_request(self, body: Mapping[str, object]) -> ParsedRequest:
        messages = entries(entry(body, "a request"), "messages")
        lead = 0
        while lead < len(messages) and messages[lead].get("role") in SYSTEM:
            lead += 1
        prompt, form = _lift_system(messages[:lead])
        tools = tuple(entries(body, "tools") or entries(body, "functions"))
        setup = Setup(model=text(body, "model"), system_prompt=prompt, tools=tools, raw=form)
        return ParsedRequest([self.parse(message) for message in messages[lead:]], setup)

    def answer(self, body: Mapping[str, object]) -> Answer:
        choices = entries(entry(body, "a response"), "choices")
        found = [message for choice in choices if (message := _choice(choice, body)) is not None]
        return Answer(found[:1], others=tuple([message] for message in found[1:]))

    def assembly(self) -> "ChatAssembly":
        return ChatAssembly(self)

    def likeness(self, raw: Raw) -> Likeness:
        """Ignore thoughts and annotations: servers add them, and clients do not send them back."""
        raw = entry(deep_copy(raw), "a chat message")
        role = text(raw, "role") or "assistant"
        said = Saying(role)
        if role == "assistant":
            said.mark("name", raw.get("name"))
        elif role == "function":
            said.mark("id", raw.get("name"))
        elif role != "tool" and raw.get("name") is not None:
            said.thing({"name": raw["name"]})
        said.mark("id", raw.get("tool_call_id"))
        _say_content(said, raw)
        for call in entries(raw, "tool_calls"):
            _say_call(said, call)
        if (legacy := inner(raw, "function_call")).get("name"):
            _say_call(said, {"function": legacy})
        return said.likeness()

    # -- writing

    def history(self, messages: Sequence[Message]) -> list[Raw]:
        return raws_of(messages, self.name, self.build)

    def build(self, message: Message, names: Mapping[str, str] = NO_NAMES) -> Encoded:  # noqa: ARG002  # ids are enough
        losses: list[str] = []
        blocks = [load_block(block) for block in message.blocks]
        if message.role == "tool_result":
            raws = [_result(*group, losses) for group in by_call(blocks)]
        elif message.role == "assistant":
            raws = list(_assistant(blocks, losses))
        elif message.role == "event":
            raws = list(system_message(blocks))
        else:
            raws = list(_user(blocks, losses))
        return Encoded(raws, losses)

    def request(self, history: list[Raw], setup: Setup, options: Mapping[str, object]) -> dict[str, object]:
        found: dict[str, object] = {"model": setup.model} if setup.model else {}
        found["messages"] = _system(setup) + history
        if setup.tools:
            found["tools"] = [_tool(tool) for tool in setup.tools]
        return found | dict(options)

    def schema_options(self, schema: Mapping[str, object]) -> dict[str, object]:
        shape = {"name": "answer", "schema": deep_copy(dict(schema)), "strict": accepts_strict(schema)}
        return {"response_format": {"type": "json_schema", "json_schema": shape}}


# -- reading messages


def _message(raw: Raw, role: str, extra: dict[str, object] | None = None, usage: Usage | None = None) -> Message:
    ours = _ROLES.get(role, role)
    check_name(ours, "the role")
    blocks = list(_blocks(raw))
    if ours == "tool_result":
        id = text(raw, "tool_call_id") or text(raw, "name")
        blocks = [with_id(block, id) for block in blocks or [Block.text("")]]
    return Message(ours, tuple(blocks), extra=extra or None, raw=raw, usage=usage)


def _blocks(raw: Raw) -> Iterator[Block]:
    yield from _thoughts(raw)
    yield from _content(raw)
    if refusal := text(raw, "refusal"):
        yield Block("refusal", refusal)
    if raw.get("audio") is not None:
        yield from _audio(inner(raw, "audio"))
    for call in entries(raw, "tool_calls"):
        yield _call(call)
    if raw.get("function_call") is not None:
        call = inner(raw, "function_call")
        name = text(call, "name")
        yield Block.tool_call(name, name, call.get("arguments"), kind="function_call")


def _thoughts(raw: Raw) -> Iterator[Block]:
    """Yield the thoughts. Servers have two field names for them; some send both, with the same text."""
    for name in _THOUGHTS:
        value = raw.get(name)
        if value is not None and not isinstance(value, str):
            yield unknown(name, value)
        elif value:
            yield Block.thinking(value)
            return


def _content(raw: Raw) -> Iterator[Block]:
    content = raw.get("content")
    if is_entries(content):
        yield from (_part(part) for part in content)
    elif content is not None and not isinstance(content, list):
        annotations = raw.get("annotations")
        if said := text(raw, "content"):
            yield Block.text(said, annotations=deep_copy(annotations)) if annotations else Block.text(said)
    elif content is not None:
        raise InvalidMessage("the content of a chat message is neither text nor a list of parts")


def _part(part: Raw) -> Block:
    kind = text(part, "type")
    if kind == "text":
        return Block.text(text(part, "text"))
    if kind == "refusal":
        return Block("refusal", text(part, "refusal"))
    return _media_block(kind, part) or unknown(kind, part)


def _media_block(kind: str, part: Raw) -> Block | None:
    """Parse an image, a sound, a film or a file. Returns None if its data is not in the message."""
    value = part.get(kind)
    if kind in ("image_url", "video_url"):
        return link_block(kind, value.get("url") if isinstance(value, dict) else value)
    if not isinstance(value, dict):
        return None
    if kind == "input_audio":
        data = from_base64(value.get("data"))
        return Block.audio(data, _SOUNDS.get(str(value.get("format")), "audio/wav")) if data is not None else None
    if kind == "file":
        return file_block(value.get("file_data"), value.get("filename"))
    return None


def _audio(audio: Raw) -> Iterator[Block]:
    """Yield the transcript of spoken output, and the sound itself unless it is only referred to."""
    if said := text(audio, "transcript"):
        yield Block.text(said, transcript=True)
    data = from_base64(audio.get("data"))
    if data:
        yield Block.audio(data, _sound(data))
    elif not said:
        yield unknown("audio", audio)


def _sound(data: bytes) -> str:
    for start, mime_type in ((b"RIFF", "audio/wav"), (b"ID3", "audio/mpeg"), (b"fLaC", "audio/flac")):
        if data.startswith(start):
            return mime_type
    return "audio/ogg" if data.startswith(b"OggS") else "audio/pcm"


def _call(call: Raw) -> Block:
    id = text(call, "id")
    if "custom" in call:
        custom = inner(call, "custom")
        return Block.tool_call(id, text(custom, "name"), custom.get("input"), kind="custom")
    if "function" in call:
        function = inner(call, "function")
        return Block.tool_call(id, text(function, "name"), deep_copy(function.get("arguments")))
    return unknown(text(call, "type"), call)


def _lift_system(messages: list[Raw]) -> tuple[str, object]:
    """Return the system prompt of the messages at the head, and their original form if they hold more than that
    text."""
    prompt = "\n\n".join(_message(message, "system").text for message in messages)
    plain = len(messages) == 1 and prompt and messages[0] == {"role": "system", "content": prompt}
    return prompt, None if plain or not messages else deep_copy(messages)


def _choice(choice: Raw, body: Mapping[str, object]) -> Message | None:
    raw = choice.get("message")
    if not isinstance(raw, dict):
        return None
    extra = {"finish_reason": choice.get("finish_reason"), "model": body.get("model"), "response_id": body.get("id")}
    said: dict[str, object] = {name: value for name, value in extra.items() if isinstance(value, str)}
    return _message(entry(raw, "a chat message"), text(raw, "role") or "assistant", said, _usage(body))


def _usage(body: Mapping[str, object]) -> Usage | None:
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    asked, said = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    read = asked if isinstance(asked, dict) else {"cached_tokens": usage.get("prompt_cache_hit_tokens")}
    return Usage(
        input_tokens=number(usage, "prompt_tokens"),
        output_tokens=number(usage, "completion_tokens"),
        cache_read_tokens=number(read, "cached_tokens"),
        cache_write_tokens=number(read, "cache_write_tokens"),
        reasoning_tokens=number(said, "reasoning_tokens") if isinstance(said, dict) else 0,
    )


# -- an answer in pieces


class ChatAssembly:
    """Collects an answer from its chunks, each with a `delta` of one or more choices."""

    def __init__(self, dialect: OpenAIChat) -> None:
        self._dialect = dialect
        self._head: Raw = {}  # id, model and usage, as far as they are known
        self._choices: dict[int, Raw] = {}
        self._reasons: dict[int, object] = {}
        self._done = False  # the server said that this was all: some give no reason why an answer ends
        self._failed = False  # it said that something went wrong, after which "all" is not the answer

    def feed(self, event: Mapping[str, object]) -> str:
        chunk = entry(event, "a chunk")
        if chunk.get("error") is not None:
            self._failed = True
            return ""
        if chunk == DONE:
            self._done = not self._failed
        for name in ("id", "model", "usage"):
            if chunk.get(name):
                self._head[name] = deep_copy(chunk[name])
        return "".join(self._take(choice) for choice in entries(chunk, "choices"))

    def _take(self, choice: Raw) -> str:
        index = number(choice, "index")
        delta = inner(choice, "delta")
        _merge(self._choices.setdefault(index, {}), delta)
        if choice.get("finish_reason") is not None:
            self._reasons[index] = choice["finish_reason"]
        content = delta.get("content")
        return content if index == 0 and isinstance(content, str) else ""

    def answer(self) -> Answer:
        found: dict[int, Message] = {}
        for index in sorted(self._choices):
            reason = self._reasons.get(index)
            raw = _whole(self._choices[index], done=self._done or reason is not None)
            message = _choice({"message": raw, "finish_reason": reason}, self._head)
            if message is not None:
                found[index] = message
        first = [found.pop(0)] if 0 in found else []
        others = tuple([message] for message in found.values())
        return Answer(first, complete=self._done or self._reasons.get(0) is not None, others=others)


class _Grows:
    """A text that arrives in pieces. They are joined on demand: a long answer has tens of thousands."""

    __slots__ = ("pieces",)

    def __init__(self, first: str) -> None:
        self.pieces = [first]

    def __str__(self) -> str:
        self.pieces = [join_pieces(self.pieces)]
        return self.pieces[0]


def _merge(whole: Raw, delta: Raw) -> None:
    """Merge a delta into the message: texts are appended, objects merged, lists merged by the `index` of their
    items."""
    for name, value in delta.items():
        old = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif isinstance(value, str):
            whole[name] = _grown(name, old, value)
        elif isinstance(value, dict):
            inside = old if isinstance(old, dict) else {}
            _merge(inside, value)
            whole[name] = inside
        elif is_entries(value) and any("index" in item or name == "tool_calls" for item in value):
            found = old if is_entries(old) else []
            for item in value:
                _merge(_place(found, item), item)
            whole[name] = found
        elif isinstance(value, list):
            whole[name] = [*_parts(old), *_list(deep_copy(value))]
        else:
            whole[name] = value


def _grown(name: str, old: object, value: str) -> object:
    if name in _ONCE:
        return old or value
    if isinstance(old, list):
        return [*old, {"type": "text", "text": value}]
    if not isinstance(old, _Grows):
        return _Grows(value)
    if name != "name" or str(old) != value:  # some servers say the name of a tool again in every chunk
        old.pieces.append(value)
    return old


def _place(found: list[Raw], item: Raw) -> Raw:
    """Return the entry that a piece belongs to. Its index decides, unless a new id shows that the server counts
    wrong."""
    index, id = item.get("index"), item.get("id")
    for candidate in reversed(found):
        if index is None or candidate.get("index") == index:
            if id and candidate.get("id") and candidate["id"] != id:
                break
            return candidate
    found.append({})
    return found[-1]


def _parts(old: object) -> list[object]:
    if isinstance(old, _Grows):
        return [{"type": "text", "text": str(old)}] if str(old) else []
    return old if isinstance(old, list) else []


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _whole(grown: Raw, *, done: bool) -> Raw | None:
    """Return the message as far as it has arrived. An unfinished call is left out: it could not be sent again."""
    found = entry(_plain(grown), "a message")
    raw: Raw = {"role": found.pop("role", None) or "assistant", "content": found.pop("content", None), **found}
    calls = entries(raw, "tool_calls")
    for call in calls:
        call.pop("index", None)
    if not done:
        calls = [call for call in calls if _is_whole(call, last=call is calls[-1])]
    raw.pop("tool_calls", None)
    if calls:
        raw["tool_calls"] = calls
    if done:
        return raw
    if not calls and not raw["content"]:
        raw["content"] = ""  # an answer with neither content nor calls would be refused when it is sent again
    return raw if calls or any(value for name, value in raw.items() if name != "role") else None


def _is_whole(call: Raw, *, last: bool) -> bool:
    if "custom" in call:
        return not last
    return isinstance(parse_json(inner(call, "function").get("arguments")), dict)


def _plain(value: object) -> object:
    if isinstance(value, _Grows):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# -- what is the same


def _say_content(said: Saying, raw: Raw) -> None:
    """Add content to a canonical form. Plain text and text in parts are the same; a refusal may stand among the parts
    or beside them."""
    refusal = text(raw, "refusal")
    content = raw.get("content")
    for part in content if is_entries(content) else [{"type": "text", "text": content}]:
        if part.get("type") == "refusal":
            refusal += text(part, "refusal")
        elif part.get("type") == "text" and isinstance(part.get("text") or "", str):
            said.text(text(part, "text"))
        else:
            said.thing(_part_likeness(part))
    if refusal:
        said.thing({"refusal": refusal})
    if audio := inner(raw, "audio").get("id"):
        said.thing({"audio": audio})


def _part_likeness(part: Raw) -> Raw:
    found = entry(without_nulls(part), "a part")
    image = found.get("image_url")
    if isinstance(image, dict) and image.get("detail") == "auto":
        del image["detail"]
    return found


def _say_call(said: Saying, call: Raw) -> None:
    """Add a call to a canonical form. Some servers write the fields of every kind of call, and leave all but one
    empty."""
    said.mark("id", call.get("id"))
    custom, function = inner(call, "custom"), inner(call, "function")
    if custom.get("name"):
        said.thing({"call": custom["name"], "input": custom.get("input")})
    elif function:
        said.thing({"call": function.get("name"), "arguments": normal_arguments(function.get("arguments"))})
    else:
        said.thing({name: value for name, value in call.items() if name not in ("id", "index") and value is not None})


# -- writing messages


def _user(blocks: Sequence[Block], losses: list[str]) -> Iterator[Raw]:
    """Encode a user's message. Tool results among the user's words (some providers have them there) come first."""
    results = [block for block in blocks if block.type == "tool_result"]
    yield from (_result(*group, losses) for group in by_call(results))
    rest = [block for block in blocks if block.type != "tool_result"]
    parts = [part for block in rest if (part := _written(block, losses)) is not None]
    if len(parts) == 1 and parts[0]["type"] == "text":
        yield {"role": "user", "content": parts[0]["text"]}
    elif parts:
        yield {"role": "user", "content": parts}


def _written(block: Block, losses: list[str]) -> Raw | None:
    content = content_of(block)
    if block.type in ("image_url", "video_url") and isinstance(content, str):
        return {"type": block.type, block.type: {"url": content}}
    if block.type != "content":
        losses.append(loss(block))
        return None
    if isinstance(content, str) or block.mime_type.startswith("text/"):
        return {"type": "text", "text": as_text(block)}
    if block.modality == "image":
        return {"type": "image_url", "image_url": {"url": data_url(content, block.mime_type)}}
    if block.modality == "audio" and block.mime_type in _SOUNDS.values():
        form = "wav" if block.mime_type == "audio/wav" else "mp3"
        return {"type": "input_audio", "input_audio": {"data": to_base64(content), "format": form}}
    if block.modality == "text":
        named = {"filename": filename(block), "file_data": data_url(content, block.mime_type)}
        return {"type": "file", "file": named}
    losses.append(loss(block))
    return None


def _assistant(blocks: Sequence[Block], losses: list[str]) -> Iterator[Raw]:
    raw: Raw = {"role": "assistant", "content": None}
    calls: list[Raw] = []
    for block in blocks:
        content = block.content
        if block.type == "tool_call" and not (block.extra or {}).get("server"):
            calls.append(_written_call(block))
        elif block.type == "content" and isinstance(content, str):
            raw["content"] = f"{raw['content'] or ''}{content}"
        elif block.type == "refusal" and isinstance(content, str):
            raw["refusal"] = f"{raw.get('refusal') or ''}{content}"
        else:
            losses.append(loss(block))
    if calls:
        raw["tool_calls"] = calls
    if calls or raw["content"] is not None or "refusal" in raw:
        yield raw


def _written_call(block: Block) -> Raw:
    name = block.tool_name or ""
    if (block.extra or {}).get("kind") in ("custom", "custom_tool_call"):
        return {"id": block.id or name, "type": "custom", "custom": {"name": name, "input": arguments_text(block)}}
    return {"id": block.id or name, "type": "function", "function": {"name": name, "arguments": arguments_text(block)}}


def _result(id: str, blocks: list[Block], losses: list[str]) -> Raw:
    """Encode the result of a call. There is an entry even if none of its content can be expressed, because every call
    must be answered."""
    said = [as_text(block) for block in blocks if is_said(block)]
    losses.extend(loss(block) for block in blocks if not is_said(block))
    extra = blocks[0].extra or {}
    if extra.get("kind") == "function_call":
        return {"role": "function", "name": id, "content": "\n".join(said)}
    return {"role": "tool", "tool_call_id": id, "content": "\n".join(said)}


def _system(setup: Setup) -> list[Raw]:
    """Return the system prompt in its original form, unless that is another provider's or its text has changed."""
    form = setup.raw
    if is_entries(form) and form and all(message.get("role") in SYSTEM for message in form):
        prompt, _ = _lift_system(form)
        if prompt == setup.system_prompt:
            return [dict(entry(deep_copy(message), "a system message")) for message in form]
    return [{"role": "system", "content": setup.system_prompt}] if setup.system_prompt else []


def _tool(tool: Raw) -> Raw:
    """Encode a tool. A tool in this provider's form is copied, any other is wrapped."""
    kind = tool.get("type")
    if kind is not None and not (kind == "function" and "function" not in tool):
        return dict(entry(deep_copy(tool), "a tool"))
    return {"type": "function", "function": plain_tool(tool)}
