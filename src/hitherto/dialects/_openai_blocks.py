"""Content as both of OpenAI's APIs write it: links, data URLs, files, tool results and strict schemas.

The chat completions and the responses have different entries, but the same parts inside them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..attachment import Attachment
from ..model import Block, Message
from ._json import deep_copy, encode, entry, from_base64, parse_json, to_base64
from ._lossless import own_raw
from ._types import Encoded, Raw

SYSTEM = ("system", "developer")


def raws_of(messages: Sequence[Message], dialect: str, build: Callable[[Message], Encoded]) -> list[Raw]:
    """Return the entries of a history: a message's own raw if it is of this dialect, else one that is built. An event
    without a raw is for our readers alone, and left out."""
    found: list[Raw] = []
    for message in messages:
        own = own_raw(message, dialect)
        if own is not None:
            found.append(entry(deep_copy(own), "an entry"))
        elif message.role != "event" or message.raw is not None:
            found.extend(build(message).raws)
    return found


def unknown(kind: str, value: object) -> Block:
    """Return a block for content of an unknown kind. Its type is the provider's own name for it."""
    return Block(kind or "unknown", encode(value), mime_type="application/json")


def with_id(block: Block, id: str) -> Block:
    return Block(block.type, block.content, block.modality, block.mime_type, id, block.extra)


def link_block(kind: str, url: object) -> Block | None:
    """Parse an image or a film: its bytes from a data URL, else the URL itself."""
    if not isinstance(url, str):
        return None
    found = from_data_url(url)
    if found is None:
        return Block(kind, url)
    data, mime_type = found
    return Block.video(data, mime_type) if kind == "video_url" else Block.image(data, mime_type)


def file_block(data: object, name: object) -> Block | None:
    """Parse a file inside a message. Returns None for one that is only referred to: it is not fetched."""
    found = from_data_url(data) if isinstance(data, str) else None
    if found is None:
        return None
    extra: dict[str, object] | None = {"filename": name} if isinstance(name, str) else None
    return Block("content", found[0], "text", found[1], None, extra)


def from_data_url(url: str) -> tuple[bytes, str] | None:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    found = from_base64(data)
    mime_type = head[5:-7].partition(";")[0]
    return None if found is None else (found, mime_type or "application/octet-stream")


def data_url(data: bytes, mime_type: str) -> str:
    return f"data:{mime_type};base64,{to_base64(data)}"


def filename(block: Block) -> str:
    name = (block.extra or {}).get("filename")
    if isinstance(name, str) and name:
        return name
    return "document.pdf" if block.mime_type == "application/pdf" else "document"


def by_call(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Group the blocks of tool results by the call they answer. Calls without an id are grouped by their name."""
    found: dict[str, list[Block]] = {}
    for block in blocks:
        found.setdefault(block.id or str((block.extra or {}).get("name") or ""), []).append(block)
    return list(found.items())


def is_said(block: Block) -> bool:
    """Return True if the block is text that a tool's result can hold."""
    readable = isinstance(block.content, str) or block.mime_type.startswith("text/")
    return block.type in ("content", "tool_result") and block.modality == "text" and readable


def load_block(block: Block) -> Block:
    """Return the block with its content loaded: large content may still be in the store."""
    if not isinstance(block.content, Attachment):
        return block
    return Block(block.type, block.content.load(), block.modality, block.mime_type, block.id, block.extra)


def content_of(block: Block) -> str | bytes:
    return block.content.load() if isinstance(block.content, Attachment) else block.content


def as_text(block: Block) -> str:
    content = content_of(block)
    return content if isinstance(content, str) else content.decode(errors="replace")


def system_message(blocks: Sequence[Block]) -> Iterator[Raw]:
    """Yield a system message in the middle of a conversation, if the blocks hold text."""
    said = "".join(as_text(block) for block in blocks if block.type == "content" and is_said(block))
    if said:
        yield {"role": "system", "content": said}


def loss(block: Block) -> str:
    """Describe a block that cannot be expressed in this dialect, in words for people."""
    what = {"thinking": "a thought", "tool_call": "a call that the provider ran itself"}.get(block.type)
    if block.type == "content":
        what = f"a file of type {block.mime_type}" if block.modality == "text" else f"{block.modality} content"
    return f"{what or f'content of type {block.type}'} is left out"


_UNSTRICT = frozenset({"allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "dependentRequired"})


def accepts_strict(schema: object, depth: int = 0) -> bool:
    """Return True if OpenAI accepts the schema with `strict`: every object in it is closed, and all properties are
    required."""
    if isinstance(schema, list):
        return all(accepts_strict(item, depth + 1) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if depth > 50 or not _UNSTRICT.isdisjoint(schema) or (depth == 0 and schema.get("type") != "object"):
        return False
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, Mapping):
        names = set(properties) if isinstance(properties, Mapping) else set()
        required = schema.get("required")
        if schema.get("additionalProperties") is not False or not names <= set(_texts(required)):
            return False
    return all(_accept_strict(schema.get(name), depth) for name in ("properties", "$defs", "definitions")) and all(
        accepts_strict(schema.get(name), depth + 1) for name in ("items", "anyOf", "prefixItems")
    )


def _accept_strict(schemas: object, depth: int) -> bool:
    return not isinstance(schemas, Mapping) or all(accepts_strict(item, depth + 1) for item in schemas.values())


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def arguments_text(block: Block) -> str:
    """Return the arguments as text, as this provider wants them; other providers have objects."""
    arguments = block.arguments
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else encode(arguments)


def normal_arguments(arguments: object) -> object:
    """Return arguments in a form to compare: the parsed JSON, or the text itself if it is not JSON."""
    value = parse_json(arguments)
    return arguments if value is None else value


def without_nulls(value: object) -> object:
    """Return a copy without fields that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else deep_copy(value)


def plain_tool(tool: Raw) -> Raw:
    """Return name, description and parameters of a tool in any provider's form."""
    inside = tool.get("function")
    found = entry(deep_copy(inside if isinstance(inside, dict) else tool), "a tool")
    if "input_schema" in found:
        found["parameters"] = found.pop("input_schema")
    return {name: value for name, value in found.items() if name != "type" and value is not None}
