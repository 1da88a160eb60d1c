"""OpenAI's responses: a history of items, each of which is one message here.

Where other providers put a whole answer into one entry, this one writes a list of items: a thought, a message, a call,
the result of a call. Each item is a message of its own, so that the raws of a thread, in order, are the `input` of the
next request, whatever the items are.

Two things need care. A thought (`reasoning`) is only accepted together with the item that came after it, so a broken
stream gives it back only if that item is there. And calls are of two sorts: those that wait for an answer of ours
(functions, custom tools, patches, shells, computers), and those that OpenAI runs itself (searches, code, images), which
are marked `server` and are complete as they are.

The text that stands before the conversation may be `instructions` or items with the role system or developer at the
head of the input; both are lifted into the `Setup`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from ..errors import InvalidMessage
from ..model import Block, Message, Setup, Usage, check_name
from ._canonical import Likeness, Saying
from ._json import deep_copy, entries, entry, from_base64, inner, is_entries, join_pieces, number, text
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
from ._types import NO_NAMES, Answer, Encoded, ParsedRequest, Raw

_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
# The calls that wait for an answer of ours, the name that each tool has, and where its arguments are.
_OURS = {
    "apply_patch_call": ("apply_patch", "operation"),
    "shell_call": ("shell", "action"),
    "local_shell_call": ("local_shell", "action"),
    "computer_call": ("computer", "action"),
    "tool_search_call": ("tool_search", "arguments"),
}
_THEIRS = {
    "web_search_call": ("web_search", "action"),
    "file_search_call": ("file_search", "queries"),
    "code_interpreter_call": ("code_interpreter", "code"),
    "image_generation_call": ("image_generation", "revised_prompt"),
    "mcp_call": ("", "arguments"),
}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_EMPTY_OUT = frozenset({"annotations", "logprobs", "summary", "content"})


class OpenAIResponses:
    name: ClassVar[str] = "openai-responses"
    joins: ClassVar[bool] = False

    # -- reading

    def parse(self, raw: Raw) -> Message:
        item = entry(raw, "an item")
        kind = _kind(item)
        role = _role(item, kind)
        check_name(role, "the role")
        blocks = tuple(_blocks(item, kind))
        failed = role == "tool_result" and item.get("status") == "failed"
        return Message(role, blocks, tool_result_error=failed, raw=item)

    def parse_request(self, body: Mapping[str, object]) -> ParsedRequest:
        request = entry(body, "a request")
        items = _input(request)
        lead = 0
        while lead < len(items) and _is_system(items[lead]):
            lead += 1
        prompt, form = self._lift_system(text(request, "instructions"), items[:lead])
        tools = tuple(_without_secrets(tool) for tool in entries(request, "tools"))
        setup = Setup(model=text(request, "model"), system_prompt=prompt, tools=tools, raw=form)
        messages = [self.parse(item) for item in items[lead:]]
        return ParsedRequest(messages, setup, text(request, "previous_response_id") or None, _conversation(request))

    def answer(self, body: Mapping[str, object]) -> Answer:
        response = entry(body, "a response")
        id, status = text(response, "id") or None, response.get("status")
        messages = [self.parse(item) for item in entries(response, "output")]
        for at, message in enumerate(messages):
            last = at == len(messages) - 1
            extra = _about(response, last=last)
            messages[at] = Message(
                message.role,
                message.blocks,
                tool_result_error=message.tool_result_error,
                extra=extra or None,
                raw=message.raw,
                usage=_usage(response) if last else None,
            )
        return Answer(messages, id, _conversation(response), status not in ("in_progress", "queued"))

    def assembly(self) -> "ResponsesAssembly":
        return ResponsesAssembly(self)

    def likeness(self, raw: Raw) -> Likeness:
        """Ignore the states and annotations that OpenAI adds to an item: a client that sends the text of an answer back
        may have neither. A thought has no content of its own."""
        item = entry(deep_copy(raw), "an item")
        kind = _kind(item)
        role = _role(item, kind)
        said = Saying(text(item, "role") or role)
        if kind == "message":
            _say_content(said, item.get("content"))
        elif _is_theirs(item, kind, role):
            said.doing(kind, item.get("id"), _bare(item, kind))
        elif kind == "reasoning":
            _mark_thought(said, item)
        else:
            said.mark("id", item.get("call_id"))
            said.mark("id", item.get("id"))
            said.mark("namespace", item.get("namespace"))
            said.thing(_bare(item, kind))
        return said.likeness()

    # -- writing

    def history(self, messages: Sequence[Message]) -> list[Raw]:
        return raws_of(messages, self.name, self.build)

    def build(self, message: Message, names: Mapping[str, str] = NO_NAMES) -> Encoded:  # noqa: ARG002  # ids are enough
        losses: list[str] = []
        blocks = [load_block(block) for block in message.blocks]
        if message.role == "tool_result":
            raws = list(_results(blocks, losses, failed=message.tool_result_error))
        elif message.role == "assistant":
            raws = list(_answer_items(blocks, losses))
        elif message.role == "event":
            raws = list(system_message(blocks))
        else:
            raws = list(_user(blocks, losses))
        return Encoded(raws, losses)

    def request(self, history: list[Raw], setup: Setup, options: Mapping[str, object]) -> dict[str, object]:
        """Ask the provider to store nothing (`store`), and to include the sealed content of thoughts (`include`)."""
        found: dict[str, object] = {"model": setup.model} if setup.model else {}
        instructions, lead = self._system(setup)
        found["input"] = lead + history
        if instructions:
            found["instructions"] = instructions
        if setup.tools:
            found["tools"] = [_tool(tool) for tool in setup.tools]
        found["store"] = False
        found["include"] = ["reasoning.encrypted_content"]
        found |= dict(options)
        if found["store"] is False and found["input"] == lead + history:
            found["input"] = _self_contained(lead + history)
        return found

    def schema_options(self, schema: Mapping[str, object]) -> dict[str, object]:
        form = {"type": "json_schema", "name": "answer", "schema": deep_copy(dict(schema))}
        return {"text": {"format": form | {"strict": accepts_strict(schema)}}}

    # -- the system prompt

    def _lift_system(self, instructions: str, lead: list[Raw]) -> tuple[str, object]:
        """Return the system prompt, and its original form if that is more than instructions."""
        said = [instructions] if instructions else []
        prompt = "\n\n".join(said + [self.parse(item).text for item in lead])
        if not lead:
            return prompt, None
        form: Raw = {"instructions": instructions} if instructions else {}
        return prompt, form | {"input": deep_copy(lead)}

    def _system(self, setup: Setup) -> tuple[str, list[Raw]]:
        """Return the system prompt in its original form, unless that is another provider's or its text has changed."""
        form = setup.raw
        if isinstance(form, dict) and is_entries(form.get("input")):
            instructions, lead = text(form, "instructions"), entries(form, "input")
            if (
                all(_is_system(item) for item in lead)
                and self._lift_system(instructions, lead)[0] == setup.system_prompt
            ):
                return instructions, [entry(deep_copy(item), "an item") for item in lead]
        return setup.system_prompt, []


# -- reading items


def _kind(item: Raw) -> str:
    """Return the type of an item. Messages and references to items may lack it."""
    kind = text(item, "type")
    if kind:
        return kind
    if item.get("role") is not None:
        return "message"
    if item.get("id") is not None:
        return "item_reference"
    raise InvalidMessage("an item with neither a type nor a role")


def _role(item: Raw, kind: str) -> str:
    role = text(item, "role")
    if role in SYSTEM:
        return "event"
    if role or kind == "message":
        return role or "user"
    if kind.endswith("_call_output") or (kind == "tool_search_output" and _is_clients(item)):
        return "tool_result"
    return "user" if kind == "mcp_approval_response" else "assistant"


def _is_system(item: Raw) -> bool:
    """Return True for a message at the head that is lifted. Other items of a developer, such as tools, have no text and
    stay."""
    return item.get("role") in SYSTEM and _kind(item) == "message"


def _is_clients(item: Raw) -> bool:
    return item.get("execution") == "client"


def _blocks(item: Raw, kind: str) -> Iterator[Block]:
    if kind == "message":
        yield from _content(item, "content")
    elif kind == "reasoning":
        yield _thought(item)
    elif kind == "function_call":
        yield Block.tool_call(_call_id(item), text(item, "name"), deep_copy(item.get("arguments")))
    elif kind == "custom_tool_call":
        yield Block.tool_call(_call_id(item), text(item, "name"), deep_copy(item.get("input")), kind=kind)
    elif kind in _OURS:
        yield _own_call(item, kind)
    elif kind in _THEIRS:
        yield from _their_call(item, kind)
    elif kind.endswith("_call_output") or (kind == "tool_search_output" and _is_clients(item)):
        yield from _output(item, kind)
    else:
        yield unknown(kind, item)


def _call_id(item: Raw) -> str:
    return text(item, "call_id") or text(item, "id")


def _own_call(item: Raw, kind: str) -> Block:
    """Parse a call. A shell or a search that runs at OpenAI is marked `server`; all others are ours to answer."""
    name, where = _OURS[kind]
    extra: dict[str, object] = {"kind": kind}
    place = item.get("environment")
    if kind == "shell_call" and isinstance(place, dict) and place.get("type") not in (None, "local"):
        extra["server"] = True
    if kind == "tool_search_call" and not _is_clients(item):
        extra["server"] = True
    if kind == "local_shell_call" and item.get("call_id") and item.get("id"):
        extra["item_id"] = item["id"]  # its result names the call by either
    arguments = item.get(where) if item.get(where) is not None else item.get("actions")
    return Block.tool_call(_call_id(item), name, deep_copy(arguments), **extra)


def _their_call(item: Raw, kind: str) -> Iterator[Block]:
    name, where = _THEIRS[kind]
    id = text(item, "id")
    yield Block.tool_call(id, name or text(item, "name"), deep_copy(item.get(where)), server=True)
    output = item.get("output") if kind == "mcp_call" else None
    if isinstance(output, str):
        yield Block("tool_result", output, id=id, extra={"server": True})
    image = from_base64(item.get("result")) if kind == "image_generation_call" else None
    if image:
        yield Block.image(image, f"image/{_word(item.get('output_format')) or 'png'}")


def _word(value: object) -> str:
    return value if isinstance(value, str) and value.isalnum() and len(value) <= 16 else ""


def _thought(item: Raw) -> Block:
    """Parse the readable part of a thought. The sealed part stays in the raw; only OpenAI can read it."""
    shown = [_summary_text(part) for part in entries(item, "summary")] or [
        _summary_text(part) for part in entries(item, "content")
    ]
    said = "\n\n".join(shown)
    return Block.thinking(said, encrypted=True) if item.get("encrypted_content") else Block.thinking(said)


def _summary_text(part: Raw) -> str:
    return text(part, "text")


def _content(item: Raw, name: str) -> Iterator[Block]:
    content = item.get(name)
    if is_entries(content):
        yield from (_part(part) for part in content)
    elif isinstance(content, list):
        raise InvalidMessage("the content of an item is neither text nor a list of parts")
    elif said := text(item, name):
        yield Block.text(said)


def _part(part: Raw) -> Block:
    kind = text(part, "type")
    if kind in _TEXTS:
        annotations = part.get("annotations")
        said = text(part, "text")
        return Block.text(said, annotations=deep_copy(annotations)) if annotations else Block.text(said)
    if kind == "refusal":
        return Block("refusal", text(part, "refusal"))
    found: Block | None = None
    if kind in ("input_image", "computer_screenshot"):
        found = link_block("image_url", part.get("image_url"))
    elif kind == "input_file":
        found = file_block(part.get("file_data"), part.get("filename"))
    elif kind == "input_audio":
        found = _audio(part.get("input_audio"))
    return found or unknown(kind, part)


def _audio(sound: object) -> Block | None:
    data = from_base64(sound.get("data")) if isinstance(sound, dict) else None
    if data is None or not isinstance(sound, dict):
        return None
    return Block.audio(data, "audio/mpeg" if sound.get("format") == "mp3" else "audio/wav")


def _output(item: Raw, kind: str) -> list[Block]:
    output = item.get("output")
    if kind == "shell_call_output" and is_entries(output):
        found = [Block.text(text(part, "stdout") + text(part, "stderr")) for part in output]
    elif isinstance(output, dict):
        found = [_part(output)]
    elif kind == "tool_search_output":
        found = [unknown(kind, item)]
    else:
        found = list(_content(item, "output"))
    return [with_id(block, _call_id(item)) for block in found or [Block.text("")]]


def _input(request: Raw) -> list[Raw]:
    given = request.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else entries(request, "input")


def _conversation(body: Raw) -> str | None:
    given = body.get("conversation")
    return text(given, "id") or None if isinstance(given, dict) else text(body, "conversation") or None


def _about(response: Raw, *, last: bool) -> Raw:
    """Return the fields of the response itself that are stored with its messages."""
    found: Raw = {"response_id": response.get("id")}
    if last:
        found["model"] = response.get("model")
    if last and response.get("status") != "completed":
        found |= {name: deep_copy(response.get(name)) for name in ("status", "incomplete_details", "error")}
    return {name: value for name, value in found.items() if value is not None}


def _usage(response: Raw) -> Usage | None:
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return None
    asked, said = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    read = asked if isinstance(asked, dict) else {}
    return Usage(
        input_tokens=number(usage, "input_tokens"),
        output_tokens=number(usage, "output_tokens"),
        cache_read_tokens=number(read, "cached_tokens"),
        cache_write_tokens=number(read, "cache_write_tokens"),
        reasoning_tokens=number(said, "reasoning_tokens") if isinstance(said, dict) else 0,
    )


# -- an answer in pieces


class ResponsesAssembly:
    """Collects an answer from its events. The last event holds the whole response. Until then, or if a server leaves it
    empty, the answer consists of the items that are marked as done and the text of unfinished messages."""

    def __init__(self, dialect: OpenAIResponses) -> None:
        self._dialect = dialect
        self._head: Raw = {}  # the response as it was announced
        self._final: Raw | None = None
        self._done: dict[int, Raw] = {}
        self._parts: dict[int, dict[int, tuple[str, list[str]]]] = {}  # of messages under way: kind and pieces
        self._ids: dict[int, str] = {}

    def feed(self, event: Mapping[str, object]) -> str:
        found = entry(event, "an event")
        kind = text(found, "type")
        if kind in _ENDS:
            self._final = entry(deep_copy(inner(found, "response")), "a response")
        elif kind in ("response.created", "response.queued", "response.in_progress"):
            self._head = entry(deep_copy(inner(found, "response")), "a response")
        elif kind == "response.output_item.done":
            self._done[self._index(found)] = entry(deep_copy(inner(found, "item")), "an item")
        elif kind in ("response.output_text.delta", "response.refusal.delta"):
            return self._grow(found, "refusal" if "refusal" in kind else "output_text")
        return ""

    def _index(self, event: Raw) -> int:
        index = event.get("output_index")
        return index if isinstance(index, int) else len(self._done)

    def _grow(self, event: Raw, kind: str) -> str:
        said = text(event, "delta")
        index = self._index(event)
        parts = self._parts.setdefault(index, {})
        if id := text(event, "item_id"):
            self._ids[index] = id
        parts.setdefault(number(event, "content_index"), (kind, []))[1].append(said)
        return said if kind == "output_text" else ""

    def answer(self) -> Answer:
        if self._final is None:
            found = self._dialect.answer(self._head | {"output": self._so_far(), "status": "in_progress"})
            return Answer(found.messages, found.id, found.within, complete=False)
        if self._final.get("output"):
            return self._dialect.answer(entry(deep_copy(self._final), "a response"))
        return self._dialect.answer(self._final | {"output": self._so_far()})

    def _so_far(self) -> list[object]:
        """Return the output items so far. A thought is returned only with the item after it: OpenAI refuses it
        otherwise. A thought refers to that item by its id, so an unfinished message has one too."""
        items: list[Raw] = []
        for index in sorted(self._done.keys() | self._parts.keys()):
            if index in self._done:
                items.append(entry(deep_copy(self._done[index]), "an item"))
            elif content := _join_parts(self._parts[index]):
                named: Raw = {"id": self._ids[index]} if index in self._ids else {}
                said = {"type": "message", "role": "assistant", "status": "incomplete", "content": content}
                items.append(named | said)
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        return list(items)


def _join_parts(parts: dict[int, tuple[str, list[str]]]) -> list[object]:
    found: list[object] = []
    for _, (kind, pieces) in sorted(parts.items()):
        said = join_pieces(pieces)
        if said and kind == "refusal":
            found.append({"type": "refusal", "refusal": said})
        elif said:
            found.append({"type": "output_text", "text": said, "annotations": []})
    return found


# -- what is the same


def _mark_thought(said: Saying, item: Raw) -> None:
    """Mark a thought by its id and its sealed content. One of them is enough to know it again.

    OpenAI seals a thought anew in every event of a stream, so the client may send back another form than the store
    keeps. A thought without an id is compared only with others that have none.
    """
    kind = "thought" if item.get("id") else "sealed"
    said.mark(kind, item.get("id"))
    said.mark(kind, item.get("encrypted_content"))


def _say_content(said: Saying, content: object) -> None:
    """Add content to a canonical form. Plain text and text in one or several parts are the same, and so are the input
    and the output form."""
    for part in content if is_entries(content) else [{"type": "text", "text": content}]:
        if text(part, "type") in _TEXTS and isinstance(part.get("text") or "", str):
            said.text(text(part, "text"))
        else:
            said.thing(_part_likeness(part))


def _is_theirs(item: Raw, kind: str, role: str) -> bool:
    """Return True for an action that OpenAI ran itself."""
    if kind in _OURS:
        return bool((_own_call(item, kind).extra or {}).get("server"))
    return role == "assistant" and kind not in ("function_call", "custom_tool_call", "reasoning")


def _bare(item: Raw, kind: str) -> Raw:
    """Return an item other than a message without the fields that OpenAI or a client adds to it."""
    found = entry(without_nulls(item), "an item") | {"type": kind}
    if kind == "function_call":
        return {"type": kind, "name": found.get("name"), "arguments": normal_arguments(found.get("arguments"))}
    for name in ("id", "status", "phase", "call_id", "role"):
        found.pop(name, None)
    if "output" in found and kind.endswith("_call_output"):
        output = Saying(kind)
        _say_content(output, found["output"])
        found["output"] = list(output.likeness().said)
    if "arguments" in found:
        found["arguments"] = normal_arguments(found["arguments"])
    return {name: value for name, value in found.items() if not (name in _EMPTY_OUT and value == [])}


def _part_likeness(part: Raw) -> Raw:
    found = entry(without_nulls(part), "a part")
    return {name: value for name, value in found.items() if (name, value) != ("detail", "auto")}


# -- writing items


def _user(blocks: Sequence[Block], losses: list[str]) -> Iterator[Raw]:
    """Encode a user's message. Tool results among the user's words (some providers have them there) come first."""
    yield from _results([block for block in blocks if block.type == "tool_result"], losses, failed=False)
    rest = [block for block in blocks if block.type != "tool_result"]
    parts = [part for block in rest if (part := _written(block, losses)) is not None]
    if len(parts) == 1 and parts[0]["type"] == "input_text":
        yield {"role": "user", "content": parts[0]["text"]}
    elif parts:
        yield {"role": "user", "content": parts}


def _written(block: Block, losses: list[str]) -> Raw | None:
    content = content_of(block)
    if block.type == "image_url" and isinstance(content, str):
        return {"type": "input_image", "image_url": content, "detail": "auto"}
    if block.type in ("content", "tool_result"):
        if isinstance(content, str) or block.mime_type.startswith("text/"):
            return {"type": "input_text", "text": as_text(block)}
        if block.modality == "image":
            return {"type": "input_image", "image_url": data_url(content, block.mime_type), "detail": "auto"}
        if block.modality == "text":
            url = data_url(content, block.mime_type)
            return {"type": "input_file", "filename": filename(block), "file_data": url}
    losses.append(loss(block))
    return None


def _answer_items(blocks: Sequence[Block], losses: list[str]) -> Iterator[Raw]:
    """Yield the items of an answer, in the order of its blocks; adjacent text becomes one message."""
    said: list[str] = []
    for block in blocks:
        if block.type == "content" and block.modality == "text" and is_said(block):
            said.append(as_text(block))
            continue
        if block.type == "refusal":
            said.append(as_text(block))
            continue
        if block.type != "tool_call" or (block.extra or {}).get("server"):
            losses.append(loss(block))
            continue
        if said:
            yield {"role": "assistant", "content": "".join(said)}
            said = []
        yield _written_call(block)
    if said:
        yield {"role": "assistant", "content": "".join(said)}


def _written_call(block: Block) -> Raw:
    name = block.tool_name or ""
    if (block.extra or {}).get("kind") in ("custom", "custom_tool_call"):
        return {"type": "custom_tool_call", "call_id": block.id or name, "name": name, "input": arguments_text(block)}
    return {"type": "function_call", "call_id": block.id or name, "name": name, "arguments": arguments_text(block)}


def _results(blocks: Sequence[Block], losses: list[str], *, failed: bool) -> Iterator[Raw]:
    for id, group in by_call(blocks):
        kind = (group[0].extra or {}).get("kind")
        raw = _result(id, kind if isinstance(kind, str) else "", group, losses, failed=failed)
        if raw is not None:
            yield raw


def _result(id: str, kind: str, blocks: list[Block], losses: list[str], *, failed: bool) -> Raw | None:
    """Encode the result of a call in the form that its kind of call requires."""
    said = "\n".join(as_text(block) for block in blocks if is_said(block))
    if kind == "apply_patch_call":
        status = "failed" if failed else "completed"
        return {"type": "apply_patch_call_output", "call_id": id, "status": status, "output": said}
    if kind == "shell_call":
        ended = {"type": "exit", "exit_code": int(failed)}
        output = [{"stdout": "" if failed else said, "stderr": said if failed else "", "outcome": ended}]
        return {"type": "shell_call_output", "call_id": id, "output": output}
    if kind == "local_shell_call":
        return {"type": "local_shell_call_output", "call_id": id, "output": said}
    if kind == "tool_search_call":
        return {"type": "tool_search_output", "call_id": id, "execution": "client", "tools": []}
    if kind == "computer_call":
        return _screenshot(id, blocks, losses)
    parts = [part for block in blocks if (part := _written(block, losses)) is not None]
    plain = all(part["type"] == "input_text" for part in parts)
    custom = kind in ("custom", "custom_tool_call")
    wanted = "custom_tool_call_output" if custom else "function_call_output"
    return {"type": wanted, "call_id": id, "output": said if plain else parts}


def _screenshot(id: str, blocks: list[Block], losses: list[str]) -> Raw | None:
    """Encode the result of a computer call. It must be a screenshot; without one there is no result."""
    for block in blocks:
        part = _written(block, losses)
        if part is not None and part["type"] == "input_image":
            screen = {"type": "computer_screenshot", "image_url": part["image_url"]}
            return {"type": "computer_call_output", "call_id": id, "output": screen}
    losses.append("the result of a computer call without a screenshot is left out")
    return None


def _without_secrets(tool: Raw) -> Raw:
    """Return a tool without its credentials, which must not be stored: MCP servers elsewhere are called with them."""
    if tool.get("type") != "mcp":
        return tool
    return {name: value for name, value in tool.items() if name not in ("authorization", "headers")}


def _self_contained(items: list[Raw]) -> list[Raw]:
    """Remove thoughts whose content only the provider holds: it was asked to store them once, and is not any more.
    Items after such a thought are sent without their id, because the provider would look for the thought by it."""
    found: list[Raw] = []
    alone = False
    for item in items:
        thought = item.get("type") == "reasoning"
        if thought and not item.get("encrypted_content"):
            alone = True
            continue
        alone = alone and not thought and item.get("role") != "user" and not str(item.get("type")).endswith("_output")
        found.append({name: value for name, value in item.items() if name != "id"} if alone else item)
    return found


def _tool(tool: Raw) -> Raw:
    """Encode a tool. A tool in this provider's form is copied, any other is flattened."""
    kind = tool.get("type")
    if kind is not None and "function" not in tool and "input_schema" not in tool:
        return entry(deep_copy(tool), "a tool")
    return {"type": "function", **plain_tool(tool)}
