"""Gemini's contents: `{"role": "user" | "model", "parts": [parts]}`, the system instruction beside them.

The API itself speaks camelCase (`functionCall`, `thoughtSignature`); Python code, and some SDK routes on the wire,
write snake_case. Both are read, and what came is kept as it came. Names that are the user's own, in the arguments of a
call or in its result, are never rewritten.

**Calls and their ids.** Calls often have no id. Then one is made of the name and of how many calls of that name came
before it in the same content: `read_file#0`, `read_file#1`. Results refer to a call by its id or, without one, by its
name alone; they get ids by the same convention, so that results of the same name belong to the calls in order. The
count of results goes on over the contents that follow each other in a request until the model speaks again. So made-up
ids are unique within a turn, not within a conversation.

**Signatures** are the model's memory of its thoughts. They stand beside text, calls or nothing at all, and must come
back where they were: a part with a signature is never merged with another one, however empty its text is. From its
third generation on Gemini refuses a call of the present turn without one; for calls that another provider's model made,
`request` writes the word that the API has for that case.

**Tokens.** `output_tokens` includes the thoughts (`reasoning_tokens`), and `input_tokens` what the provider's own tools
brought in; the cached part of the input is in `cache_read_tokens` too.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import msgspec

from ..attachment import Attachment
from ..errors import InvalidMessage
from ..model import Block, BlockType, Message, Setup, Usage, check_name
from . import _json
from ._canonical import Likeness, Saying
from ._lossless import own_raw
from ._types import NO_NAMES, Answer, Encoded, ParsedRequest, Raw, joins_entry, with_names

_ROLES = {"model": "assistant"}
_OURS = frozenset({*BlockType, "tool_result"})  # block types with a meaning of ours; an unknown block may not use them
_MADE_UP = re.compile(r"(.+)#\d+", re.DOTALL)
_UNDERSCORE = re.compile("_([a-z0-9])")
# Beside the one field that says what a part is:
_ASIDE = frozenset(
    {
        "thought",
        "thoughtSignature",
        "videoMetadata",
        "partMetadata",
        "mediaResolution",
        "mediaProcessing",
        "speechMetadata",
    }
)
_USERS = frozenset({"args", "response", "partMetadata", "parametersJsonSchema"})  # hold names that are not the API's
_GENERATION = re.compile(r"gemini-(\d{1,3})")
_SIGNING = 3  # the first generation that wants calls to be signed
_EXCUSE = "skip_thought_signature_validator"
_THEIRS = frozenset({"executableCode", "codeExecutionResult", "toolCall", "toolResponse"})  # Gemini's own doings
_BASE64 = frozenset({"data", "thoughtSignature"})


class Gemini:
    """The dialect of `generateContent`."""

    name: ClassVar[str] = "gemini"
    joins: ClassVar[bool] = True

    # -- reading

    def parse(self, raw: Raw) -> Message:
        return _parse_content(raw, Counter())

    def parse_request(self, body: Mapping[str, object]) -> ParsedRequest:
        body = _camel(_json.as_object(body, "a request"))
        about = _json.entry(_json.some(body, ("systemInstruction", "tools")), "a request")
        prompt, instruction = _system(about.get("systemInstruction"))
        if isinstance(about.get("tools"), dict):  # the API takes a single tool for a list of one
            about["tools"] = [about["tools"]]
        setup = Setup(system_prompt=prompt, tools=tuple(_json.entries(about, "tools")), raw=instruction)
        messages, answered = [], Counter[str]()
        for content in _contents(body):
            messages.append(_parse_content(content, answered))
            if messages[-1].role == "assistant":
                answered.clear()
        return ParsedRequest(messages, setup)

    def answer(self, body: Mapping[str, object]) -> Answer:
        body = _camel(_json.entry(body, "a response"))
        candidates = [_camel(candidate) for candidate in _json.entries(body, "candidates")]
        if not candidates and not body.keys() & {"candidates", "promptFeedback", "usageMetadata"}:
            raise InvalidMessage("a response has no candidates", hint="pass an answer, not an error")
        said = [_candidate_messages(candidate, body) for candidate in candidates]
        others = tuple(messages for messages in said[1:] if messages and messages[0].blocks)
        return Answer(said[0] if said else [], id=_json.identity(body, "responseId"), others=others)

    def assembly(self) -> "GeminiAssembly":
        return GeminiAssembly()

    def likeness(self, raw: Raw) -> Likeness:
        raw = _json.entry(_json.deep_copy(raw), "a content")
        role = _json.text(raw, "role") or "user"
        said = Saying(_ROLES.get(role, role))
        for part in _json.entries(_camel(raw), "parts"):
            _say(said, _bare(part))
        return said.likeness()

    # -- writing

    def history(self, messages: Sequence[Message]) -> list[Raw]:
        found: list[Raw] = []
        first = 0  # where the entries of the message before begin
        before, was_built = None, False
        for message, names in with_names(messages):
            own = own_raw(message, self.name)
            raws = self.build(message, names).raws if own is None else [_json.copy_entry(own)]
            joined = joins_entry(message, before, is_built=own is None, was_built=was_built)
            if raws:
                before, was_built = message, own is None
            if raws and joined and found and found[first].get("role") == raws[0].get("role"):
                found[first]["parts"] = [*_json.entries(found[first], "parts"), *_json.entries(raws.pop(0), "parts")]
            elif raws:
                first = len(found)
            found += raws
        return found

    def build(self, message: Message, names: Mapping[str, str] = NO_NAMES) -> Encoded:
        return _built(message, names)

    def request(self, history: list[Raw], setup: Setup, options: Mapping[str, object]) -> dict[str, object]:
        body: dict[str, object] = {"model": setup.model, "contents": _excuse_unsigned(history, setup.model)}
        system = _system_argument(setup)
        if system:
            body["systemInstruction"] = system
        if setup.tools:
            body["tools"] = _tools(setup.tools)
        return _json.merge(body, options)

    def schema_options(self, schema: Mapping[str, object]) -> dict[str, object]:
        asked = {"responseMimeType": "application/json", "responseJsonSchema": _json.deep_copy(dict(schema))}
        return {"generationConfig": asked}


# -- names


def _camel(raw: Mapping[str, object]) -> dict[str, object]:
    """Return the fields under the API's own names (camelCase). Nested fields are not changed."""
    return {_camel_name(name): value for name, value in raw.items()}


def _camel_name(name: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name) if "_" in name else name


def _inner(raw: Mapping[str, object], name: str) -> dict[str, object]:
    return _camel(_json.inner(raw, name))


# -- reading


def _parse_content(raw: Raw, answered: Counter[str]) -> Message:
    """Parse a content into a message. `answered` counts the results before it, by name."""
    raw = _json.entry(raw, "a content")
    if not raw.keys() & {"role", "parts"}:
        raise InvalidMessage("a content has neither a role nor parts")
    role = _json.text(raw, "role") or "user"
    check_name(role, "the role")
    parts = [_camel(part) for part in _json.entries(raw, "parts")]
    if parts and all(map(_is_result, parts)):
        blocks = tuple(block for part in parts for block in _answers(_inner(part, "functionResponse"), answered))
        return Message("tool_result", blocks, tool_result_error=any(map(_is_error, parts)), raw=raw)
    called = Counter[str]()
    return Message(_ROLES.get(role, role), tuple(_block(part, called, answered) for part in parts), raw=raw)


def _block(part: dict[str, object], called: Counter[str], answered: Counter[str]) -> Block:
    """Parse a part. A malformed one is kept as an unknown block."""
    try:
        return _read(part, called, answered) or _stranger(part)
    except InvalidMessage:
        return _stranger(part)


def _read(part: dict[str, object], called: Counter[str], answered: Counter[str]) -> Block | None:
    match _kind(part):
        case "text":
            return _text(part)
        case "inlineData":
            return _inline(part)
        case "fileData":
            return _file(part)
        case "functionCall":
            return _call(part, called)
        case "executableCode" | "toolCall":
            return _server_call(part, called)
        case "functionResponse" if _is_result(part):
            return _result(part, answered)
        case "":
            return _text(part) if part.get("thoughtSignature") is not None else None
        case _:
            return None


def _kind(part: Mapping[str, object]) -> str:
    """Return the name of the field that gives the kind of a part, or an empty text."""
    return next((name for name, value in part.items() if name not in _ASIDE and value is not None), "")


def _stranger(part: dict[str, object]) -> Block:
    kind = _kind(part) or "unknown"
    return Block("unknown" if kind in _OURS else kind, _json.encode(part), mime_type="application/json")


def _signature_extra(part: Mapping[str, object]) -> dict[str, object]:
    """Return the part of a block's extra that holds the signature."""
    signature = part.get("thoughtSignature")
    if isinstance(signature, bytes):
        signature = _json.to_base64(signature)
    if isinstance(signature, Attachment):
        signature = signature.load()
    return {"signature": signature} if signature else {}


def _text(part: dict[str, object]) -> Block:
    words = _json.text(part, "text")
    thought = part.get("thought") is True or part.get("text") is None
    return Block.thinking(words, **_signature_extra(part)) if thought else Block.text(words, **_signature_extra(part))


def _inline(part: dict[str, object]) -> Block:
    blob = _inner(part, "inlineData")
    data = _json.from_base64(blob.get("data"))
    if data is None:
        raise InvalidMessage("not base64")
    mime_type = _json.text(blob, "mimeType") or "application/octet-stream"
    kind = "thinking" if part.get("thought") is True else "content"
    extra = _signature_extra(part) | _json.some(blob, ("displayName",)) | _json.some(part, ("videoMetadata",))
    return Block(kind, data, _modality(mime_type), mime_type, extra=extra or None)


def _file(part: dict[str, object]) -> Block:
    """Parse a part that only refers to its data. Its type is not `content`: an address is not text of the message."""
    file = _inner(part, "fileData")
    mime_type = _json.text(file, "mimeType") or "application/octet-stream"
    extra = {"source": "url"} | _signature_extra(part) | _json.some(part, ("videoMetadata",))
    return Block("fileData", _json.text(file, "fileUri"), _modality(mime_type), mime_type, extra=extra)


def _modality(mime_type: str) -> str:
    kind = mime_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "text"


def _call(part: dict[str, object], called: Counter[str]) -> Block:
    call = _inner(part, "functionCall")
    name = _json.text(call, "name")
    if not name:
        raise InvalidMessage("a call has no name")
    return Block.tool_call(_id(call, name, called), name, _json.inner(call, "args"), **_signature_extra(part))


def _server_call(part: dict[str, object], called: Counter[str]) -> Block:
    """Parse a call that Gemini runs itself: code that it wrote, or one of its tools."""
    kind = _kind(part)
    call = _inner(part, kind)
    name = _json.text(call, "toolType") or kind
    arguments = _json.inner(call, "args") if kind == "toolCall" else _json.some(call, ("language", "code"))
    return Block.tool_call(_id(call, name, called), name, arguments, server=True, **_signature_extra(part))


def _id(raw: Mapping[str, object], name: str, count: Counter[str]) -> str:
    """Return the id of a call, or one made of its name. Calls with an id are counted too, so that the order alone
    decides."""
    count[name] += 1
    return _json.text(raw, "id") or f"{name}#{count[name] - 1}"


def _is_result(part: Mapping[str, object]) -> bool:
    result = part.get("functionResponse")
    return isinstance(result, dict) and bool(isinstance(result.get("name"), str) and result["name"])


def _is_error(part: Mapping[str, object]) -> bool:
    response = _inner(part, "functionResponse").get("response")
    return isinstance(response, dict) and response.keys() == {"error"}


def _answers(result: dict[str, object], answered: Counter[str]) -> Iterator[Block]:
    """Yield the blocks of a result: its content, then its media, each with the id of the call."""
    name = _json.text(result, "name")
    try:
        id, media = _id(result, name, answered), [_camel(part) for part in _json.entries(result, "parts")]
    except InvalidMessage:
        id, media = f"{name}#{answered[name] - 1}", []
    extra: dict[str, object] = {"name": name}
    if _is_error({"functionResponse": result}):
        extra["error"] = True
    words, mime_type = _outcome(result.get("response"))
    yield Block("content", words, "text", mime_type, id, extra)
    for block in (_block(part, Counter(), Counter()) for part in media):
        yield msgspec.structs.replace(block, id=id, extra={**(block.extra or {}), **extra})


def _outcome(response: object) -> tuple[str, str]:
    """Return the content of a result and its MIME type: plain text if it holds nothing else, else JSON."""
    if isinstance(response, dict) and len(response) == 1 and response.keys() <= {"result", "output", "error"}:
        (response,) = response.values()
    if response is None:
        return "", "text/plain"
    if isinstance(response, Attachment):
        response = response.load()
    return (response, "text/plain") if isinstance(response, str) else (_json.encode(response), "application/json")


def _result(part: dict[str, object], answered: Counter[str]) -> Block:
    """Parse a result among other parts into one block."""
    result = _inner(part, "functionResponse")
    block = next(_answers(result, answered))
    whole = (_json.encode(result), "application/json") if result.get("parts") else (block.content, block.mime_type)
    return msgspec.structs.replace(block, type="tool_result", content=whole[0], mime_type=whole[1])


def _system(value: object) -> tuple[str, object]:
    """Return the system instruction as text, and its original form if that holds more."""
    if value is None:
        return "", None
    if isinstance(value, str):
        return value, None
    instruction = _json.entry(value, "the system instruction")
    parts = _json.entries(instruction, "parts")
    prompt = "\n\n".join(_json.text(part, "text") for part in parts)
    return prompt, None if instruction == {"parts": [{"text": prompt}]} else instruction


def _system_argument(setup: Setup) -> object:
    """Return the system instruction for a request: in its original form, if that is Gemini's and still has the same
    text."""
    parts = setup.raw.get("parts") if isinstance(setup.raw, dict) else None
    is_ours = _json.is_entries(parts) and all(isinstance(part.get("text", ""), str) for part in parts)
    if is_ours and _system(setup.raw)[0] == setup.system_prompt:
        return _json.deep_copy(setup.raw)
    return {"parts": [{"text": setup.system_prompt}]} if setup.system_prompt else None


def _contents(body: Mapping[str, object]) -> list[dict[str, object]]:
    contents = body.get("contents")
    if isinstance(contents, str):
        return [{"role": "user", "parts": [{"text": contents}]}]
    return [contents] if isinstance(contents, dict) else _json.entries(body, "contents")


def _candidate_messages(candidate: dict[str, object], body: Mapping[str, object]) -> list[Message]:
    """Return the message of a candidate, with the raw that the next request sends. A candidate may end without content,
    because its thoughts took all tokens. It is a message too, because it was paid for, but has no raw: the API would
    refuse it."""
    content = _json.inner(candidate, "content")
    is_empty = not _json.entries(content, "parts")
    if is_empty and candidate.get("finishReason") is None:
        return []
    raw = content if content.get("role") is not None else {**content, "role": "model"}
    about = _json.some(candidate, [name for name in candidate if name not in ("content", "index")])
    if body.get("modelVersion") is not None:
        about["model"] = body["modelVersion"]
    usage = body.get("usageMetadata")
    counted = _usage(_camel(usage)) if isinstance(usage, dict) else None
    said = Message("assistant") if is_empty else _parse_content(raw, Counter())
    return [msgspec.structs.replace(said, extra=about or None, usage=counted)]


def _usage(raw: dict[str, object]) -> Usage:
    thoughts = _json.number(raw, "thoughtsTokenCount")
    return Usage(
        input_tokens=_json.number(raw, "promptTokenCount") + _json.number(raw, "toolUsePromptTokenCount"),
        output_tokens=_json.number(raw, "candidatesTokenCount") + thoughts,
        cache_read_tokens=_json.number(raw, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )


# -- likeness


def _say(said: Saying, part: dict[str, object]) -> None:
    """Add a part to a canonical form. Thoughts do not count, because clients leave them out; their signatures do."""
    kind = _kind(part)
    said.mark("signature", part.pop("thoughtSignature", None))
    if part.pop("thought", None) is True or not kind:
        return
    if kind == "text" and isinstance(part["text"], str) and part.keys() == {"text"}:
        said.text(part["text"])
        return
    inside = part[kind]
    if kind in _THEIRS:
        said.doing(kind, inside.get("id") if isinstance(inside, dict) else None, inside)
        return
    if isinstance(inside, dict):
        said.mark("id", inside.get("id"))
        part[kind] = {name: value for name, value in inside.items() if name != "id"}
    said.thing(part)


def _bare(raw: Mapping[str, object]) -> dict[str, object]:
    """Return the fields under the API's own names, without nulls, and with base64 in one form."""
    found: dict[str, object] = {}
    for given, value in raw.items():
        name = _camel_name(given)
        if value is None or (name, value) in (("args", {}), ("thought", False)):
            continue
        if name in _BASE64:
            data = _json.from_base64(value)
            found[name] = value if data is None else _json.to_base64(data)
        else:
            found[name] = value if name in _USERS else _bare_value(value)
    return found


def _bare_value(value: object) -> object:
    if isinstance(value, dict):
        return _bare(value)
    return [_bare_value(item) for item in value] if isinstance(value, list) else value


def _is_plain(part: Mapping[str, object]) -> bool:
    """Return True if the part is text and nothing else, so that it may be joined with its neighbours."""
    return isinstance(part.get("text"), str) and part.keys() <= {"text", "thought"}


def _join_texts(parts: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Join adjacent plain texts, and leave empty ones out."""
    runs: list[tuple[dict[str, object], list[str]]] = []
    for part in parts:
        plain = _is_plain(part)
        if plain and runs and runs[-1][1] and _bool(runs[-1][0]) == _bool(part):
            runs[-1][1].append(_json.text(part, "text"))
        elif not plain or part["text"]:
            runs.append((part, [_json.text(part, "text")] if plain else []))
    return [{**part, "text": _json.join_pieces(words)} if words else part for part, words in runs]


def _bool(part: Mapping[str, object]) -> bool:
    return part.get("thought") is True


# -- writing


def _built(message: Message, names: Mapping[str, str]) -> Encoded:
    """Encode a message. `names` are those of the calls before, by their ids: a result needs the name of its call."""
    losses: list[str] = []
    if message.role == "tool_result":
        entries = _results(message, names, losses)
    elif message.role in ("user", "assistant"):
        blocks = [block for block in message.blocks if not _is_theirs(block, losses)]
        parts = [part for block in blocks for part in _written(block, names, losses)]
        entries = [parts]
    else:
        return Encoded([], [f"a message of the role {message.role} is left out"])
    role = "model" if message.role == "assistant" else "user"
    return Encoded([{"role": role, "parts": parts} for parts in entries if parts], losses)


def _is_theirs(block: Block, losses: list[str]) -> bool:
    """Return True for the result of a call that the provider ran itself. Both the call and its result are left out."""
    is_theirs = block.type == "tool_result" and bool((block.extra or {}).get("server"))
    if is_theirs:
        losses.append("the result of a call that the provider ran itself is left out")
    return is_theirs


def _written(block: Block, names: Mapping[str, str], losses: list[str]) -> Iterator[dict[str, object]]:
    content = block.content.load() if isinstance(block.content, Attachment) else block.content
    if block.type == "tool_call":
        yield from _written_call(block, losses)
    elif block.type == "tool_result":
        yield _written_result(block.id or "", [block], names, bool((block.extra or {}).get("error")), losses)
    elif block.type == "content" and isinstance(content, bytes):
        yield {"inlineData": {"mimeType": block.mime_type, "data": _json.to_base64(content)}}
    elif block.type == "content":
        if content:
            yield {"text": content}
    elif block.type == "fileData":
        yield {"fileData": {"mimeType": block.mime_type, "fileUri": content}}
    else:
        losses.append("a thought is left out" if block.type == "thinking" else f"{block.type} is left out")


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
    yield {"functionCall": _id_field(block.id) | {"name": name, "args": known}}


def _id_field(id: str | None) -> dict[str, object]:
    return {"id": id} if id and not _MADE_UP.fullmatch(id) else {}


def _results(message: Message, names: Mapping[str, str], losses: list[str]) -> list[list[dict[str, object]]]:
    """Return one response for each answered call, and a separate content with their media. In one content with the
    responses, Gemini would take the media for the model's own."""
    groups: dict[str, list[Block]] = {}
    for block in message.blocks:
        groups.setdefault(block.id or "", []).append(block)
    told = any((block.extra or {}).get("error") for block in message.blocks)
    responses, media = [], []
    for id, blocks in groups.items():
        failed = any((block.extra or {}).get("error") for block in blocks) if told else message.tool_result_error
        texts = [block for block in blocks if _is_textual(block)]
        responses.append(_written_result(id, texts, names, failed, losses))
        media += [part for b in blocks if not _is_textual(b) for part in _written(b, names, losses)]
    return [responses, media]


def _is_textual(block: Block) -> bool:
    content = block.content
    return block.type == "content" and (content.text if isinstance(content, Attachment) else isinstance(content, str))


def _written_result(
    id: str, blocks: list[Block], names: Mapping[str, str], failed: bool, losses: list[str]
) -> dict[str, object]:
    values = [_value(block) for block in blocks]
    outcome = values[0] if len(values) == 1 else "\n".join(map(str, values))
    response = {"error" if failed else "result": outcome}
    return {"functionResponse": _id_field(id) | {"name": _name(id, blocks, names, losses), "response": response}}


def _value(block: Block) -> object:
    content = block.content.load() if isinstance(block.content, Attachment) else block.content
    known = _json.parse_json(content) if block.mime_type == "application/json" else None
    return content if known is None else known


def _name(id: str, blocks: list[Block], names: Mapping[str, str], losses: list[str]) -> str:
    """Return the name of the call that a result answers."""
    given = [name for block in blocks if isinstance(name := (block.extra or {}).get("name"), str)]
    if given or id in names:
        return given[0] if given else names[id]
    if made_up := _MADE_UP.fullmatch(id):
        return made_up[1]
    losses.append("the name of the call that a tool result answers is not known")
    return "unknown"


def _excuse_unsigned(history: list[Raw], model: str) -> list[Raw]:
    """Return the history with the API's excuse in place of missing signatures, if the model wants signatures. Only
    calls of the present turn need them; it begins after the last message of a user."""
    generation = _GENERATION.search(model)
    if not generation or int(generation[1]) < _SIGNING:
        return history
    begin = next((n for n in range(len(history), 0, -1) if _is_said(history[n - 1])), 0)
    return [*history[:begin], *map(_with_excuse, history[begin:])]


def _is_said(raw: Raw) -> bool:
    parts = _json.entries(raw, "parts")
    return raw.get("role") != "model" and not all(_is_result(_camel(part)) for part in parts)


def _with_excuse(raw: Raw) -> Raw:
    """Return the entry with an excuse for its first call if that has no signature: Gemini signs only the first of
    several. The entry itself is not changed."""
    parts = _json.entries(raw, "parts")
    first = next((n for n, part in enumerate(parts) if "functionCall" in _camel(part)), None)
    if first is None or _camel(parts[first]).get("thoughtSignature"):
        return raw
    return {**raw, "parts": [*parts[:first], {**parts[first], "thoughtSignature": _EXCUSE}, *parts[first + 1 :]]}


def _tools(tools: Sequence[dict[str, object]]) -> list[object]:
    """Encode the tools. Ours are put into one declaration; tools in Gemini's own form stay as they are."""
    ours = [_declaration(tool) for tool in tools if "name" in tool]
    rest = [_json.deep_copy(tool) for tool in tools if "name" not in tool]
    return [{"functionDeclarations": ours}, *rest] if ours else rest


def _declaration(tool: dict[str, object]) -> dict[str, object]:
    """Declare a function. The schema goes into `parametersJsonSchema`: `parameters` takes Gemini's own kind of schema,
    which refuses much of JSON Schema."""
    declared = _json.some(tool, ("name", "description"))
    if tool.get("parameters"):
        declared["parametersJsonSchema"] = _json.deep_copy(tool["parameters"])
    return declared


# -- streams


class _Candidate:
    """One of the answers while it arrives: its parts, and the fields that describe it."""

    def __init__(self) -> None:
        self.parts: list[dict[str, object]] = []
        self.about: dict[str, object] = {}
        self.role = "model"

    def take(self, chunk: dict[str, object]) -> str:
        """Add a chunk. Returns the text it brought."""
        content = _json.inner(chunk, "content")
        role, parts = _json.text(content, "role"), _json.entries(content, "parts")
        words = [_json.text(part, "text") for part in parts if not _bool(part)]
        self.role = role or self.role
        self.parts += parts
        for name, value in chunk.items():
            if name not in ("content", "index") and value not in (None, {}, []):
                self.about[name] = value
        return "".join(words)

    def whole(self) -> dict[str, object]:
        parts = _json.deep_copy(_join_texts(self.parts))
        return self.about | {"content": {"parts": parts, "role": self.role}}


class GeminiAssembly:
    """Collects an answer of `streamGenerateContent` from its chunks. Each chunk is a small response."""

    def __init__(self) -> None:
        self._about: dict[str, object] = {}
        self._candidates: dict[int, _Candidate] = {0: _Candidate()}
        self._refused = False

    def feed(self, event: Mapping[str, object]) -> str:
        event = _camel(_json.entry(event, "a chunk"))
        candidates = [_camel(candidate) for candidate in _json.entries(event, "candidates")]
        words = [self._take(candidate) for candidate in candidates]
        self._about |= _json.some(event, ("modelVersion", "responseId", "usageMetadata"))
        self._refused |= bool(_inner(event, "promptFeedback").get("blockReason"))
        return "".join(words)

    def answer(self) -> Answer:
        said = [
            _candidate_messages(candidate.whole(), self._about) for _, candidate in sorted(self._candidates.items())
        ]
        complete = self._refused or all("finishReason" in c.about for c in self._candidates.values())
        others = tuple(messages for messages in said[1:] if messages and messages[0].blocks)
        return Answer(said[0], id=_json.identity(self._about, "responseId"), complete=complete, others=others)

    def _take(self, chunk: dict[str, object]) -> str:
        """Add a chunk and return the text of the first candidate; the text of the others is not returned while it
        arrives."""
        index = _json.number(chunk, "index")
        words = self._candidates.setdefault(index, _Candidate()).take(chunk)
        return words if index == 0 else ""
