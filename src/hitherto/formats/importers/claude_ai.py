"""Claude.ai's data export: `conversations.json`, in both of its shapes.

Until 2024 a message was a text; since then it is a list of blocks. The tree is that of `parent_message_uuid`; an export
without it is a line. A message of the assistant holds its calls and their results together: it is taken apart into
answers and results, as the API has them. Attachments are in the export as extracted text; of images it has the names.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...dialects._json import encode
from ...model import Block, Message
from ...snapshots import Unreadable
from .._importer import clean_text, parts, storable, time_us
from .._types import Found, PortableConversation, Source, SourceRecord
from ._fields import Fields, Setups, first_text, objects, text, without
from ._foreign_tree import circle_records, order_tree
from ._json_export import JsonExport, place_turns
from ._turns import Result, split_turn, with_extra

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_NO_PARENT = "00000000-0000-4000-8000-000000000000"
_READ = ("uuid", "name", "created_at", "chat_messages", "current_leaf_message_uuid", "model")
_PLAIN = ("text", "content", "sender", "uuid", "parent_message_uuid", "attachments")


class ClaudeAI(JsonExport):
    name = "claude.ai"

    def recognises(self, source: Source) -> str | None:
        if _BEGINNING.match(source.head) and b'"chat_messages"' in source.head and b'"uuid"' in source.head:
            return "it is JSON with conversations that have chat_messages"
        return None

    def read_object(self, body: Fields, place: str) -> Iterator[Found]:
        if isinstance(body.get("chat_messages"), list):
            yield from _conversation(body, place)
        else:
            yield Unreadable(place, "it is no conversation: it has no chat_messages")


FORMAT = ClaudeAI()


def _conversation(body: Fields, place: str) -> Iterator[Found]:
    found = _by_id(objects(body["chat_messages"]))
    parents = _parents(found)
    times = {id: time_us(message.get("created_at")) for id, message in found.items()}
    head = text(body.get("current_leaf_message_uuid"))
    tree = order_tree(parents, times, last=head)
    setups = Setups()
    setup = setups.number("claude", text(body.get("model")))
    messages, ends = place_turns(tree, times, lambda id: _turn(clean_text(id), found[id], setup))
    conversation = PortableConversation(
        by_id=True,
        id=clean_text(text(body.get("uuid"))) or (messages[0].id if messages else place),
        title=clean_text(body.get("name")),
        metadata={"source": FORMAT.name},
        setups=setups.all,
        created_us=time_us(body.get("created_at")),
        head=ends.get(head),
    )
    yield from parts(conversation, (*messages, *_description(body), *circle_records(tree, parents)))


def _by_id(listed: Sequence[Fields]) -> dict[str, Fields]:
    """Return the messages by their ids. One without an id gets one from its place."""
    if not any(message.get("parent_message_uuid") for message in listed):
        times = [time_us(message.get("created_at")) for message in listed]
        if all(times):
            listed = [listed[place] for place in sorted(range(len(listed)), key=times.__getitem__)]
    return {text(message.get("uuid")) or f"message {number}": message for number, message in enumerate(listed, 1)}


def _parents(found: dict[str, Fields]) -> dict[str, str | None]:
    if any(message.get("parent_message_uuid") for message in found.values()):
        named = {id: text(message.get("parent_message_uuid")) for id, message in found.items()}
        return {id: None if parent in ("", _NO_PARENT) else parent for id, parent in named.items()}
    return dict(zip(found, [None, *found], strict=False))


def _description(body: Fields) -> Iterator[SourceRecord]:
    if rest := without(body, _READ):
        yield SourceRecord(type="conversation", data=storable(rest), known=True)


def _turn(id: str, found: Fields, setup: int) -> Iterator[tuple[str, Message, int]]:
    native = storable(_native(found))
    if found.get("sender") == "assistant":
        turn = list(split_turn(id, _said(id, found)))
    else:
        turn = [(id, Message.user([*_texts(found), *_attached(found)]))]
    for own, message in turn:
        whole = with_extra(message, native=native) if own == id else message
        yield own, whole, setup if message.role == "assistant" else 0


def _native(found: Fields) -> Fields:
    """Return the record without what the blocks say as well."""
    rich = [block for block in objects(found.get("content")) if block.get("type") != "text" or _is_rich(block)]
    rest = without(found, _PLAIN)
    return rest | ({"content": rich} if rich else {})


def _is_rich(block: Fields) -> bool:
    return bool(without(block, ("type", "text", "start_timestamp", "stop_timestamp", "flags")))


def _texts(found: Fields) -> Iterator[Block]:
    listed = [one for block in objects(found.get("content")) for one in _block("", block) if isinstance(one, Block)]
    said = text(found.get("text"))
    yield from listed or ([Block.text(clean_text(said))] if said else [])


def _said(id: str, found: Fields) -> Iterator[Block | Result]:
    listed = objects(found.get("content"))
    some = False
    for number, block in enumerate(listed, 1):
        for one in _block(f"{id}/{number}", block):
            some = True
            yield one
    if not some and text(found.get("text")):
        yield Block.text(clean_text(found["text"]))
    yield from _attached(found)


def _block(place: str, block: Fields) -> Iterator[Block | Result]:
    match text(block.get("type")):
        case "text":
            if said := text(block.get("text")):
                citations = block.get("citations")
                yield Block.text(clean_text(said), **({"citations": storable(citations)} if citations else {}))
        case "thinking":
            signature = block.get("signature")
            said = clean_text(block.get("thinking"))
            yield Block.thinking(said, **({"signature": clean_text(signature)} if signature else {}))
        case "tool_use":
            id = clean_text(block.get("id")) or f"call {place}"
            yield Block.tool_call(id, clean_text(block.get("name")), storable(block.get("input")))
        case "tool_result":
            call = clean_text(block.get("tool_use_id"))
            yield Result(call, tuple(_result(block.get("content"))), block.get("is_error") is True)
        case kind:
            yield Block(clean_text(kind)[:64] or "unknown", encode(storable(block)), mime_type="application/json")


def _result(content: object) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block.text(clean_text(content))
    for part in objects(content):
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            yield Block.text(clean_text(part["text"]))
        else:
            kind = clean_text(part.get("type"))[:64] or "unknown"
            yield Block(kind, encode(storable(part)), mime_type="application/json")


def _attached(found: Fields) -> Iterator[Block]:
    """Yield the documents of a message. The export has their text, and of other files only the names."""
    for one in objects(found.get("attachments")):
        name = clean_text(one.get("file_name"))
        if extracted := clean_text(one.get("extracted_content")):
            yield replace(Block.text(extracted), extra={"filename": name})
        else:
            yield Block("metadata", encode(storable(one)), mime_type="application/json")
    for one in objects(found.get("files")):
        if first_text(one, "file_name", "file_uuid"):
            yield Block("metadata", encode(storable(one)), mime_type="application/json")
