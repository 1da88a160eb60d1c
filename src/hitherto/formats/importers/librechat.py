"""LibreChat: exported conversations, flat or nested.

A flat export has `parentMessageId` in each message; a recursive one has `children`. An answer is a text, or a list of
parts: text, thoughts, and calls with their results inside, which are taken apart.
"""

import re
from collections.abc import Iterator, Sequence

from ...dialects._json import encode
from ...model import Block, Message
from ...snapshots import Unreadable
from .._importer import clean_text, parts, storable, time_us
from .._types import Found, PortableConversation, Source, SourceRecord
from ._fields import Fields, Setups, fields, first_text, objects, text, without
from ._foreign_tree import circle_records, order_tree
from ._json_export import JsonExport, place_turns
from ._turns import Result, split_turn, with_extra

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_NO_PARENT = "00000000-0000-0000-0000-000000000000"
_PROVIDERS = {"openAI": "openai", "azureOpenAI": "openai", "anthropic": "claude", "google": "gemini"}
_IN_MESSAGE = ("messageId", "parentMessageId", "text", "content", "isCreatedByUser", "createdAt", "children")
_IN_BODY = ("conversationId", "title", "messages", "messagesTree")


class LibreChat(JsonExport):
    name = "librechat"

    def recognises(self, source: Source) -> str | None:
        head = source.head
        named = b'"conversationId"' in head and (b'"messages"' in head or b'"messagesTree"' in head)
        if _BEGINNING.match(head) and named and (b'"isCreatedByUser"' in head or b'"parentMessageId"' in head):
            return "it is JSON with the messages of a conversationId"
        return None

    def read_object(self, body: Fields, place: str) -> Iterator[Found]:
        if listed := body.get("messages") or body.get("messagesTree"):
            yield from _conversation(body, objects(listed), place)
        else:
            yield Unreadable(place, "it is no conversation: it has no messages")


FORMAT = LibreChat()


def _flat(listed: Sequence[Fields]) -> Iterator[tuple[str, str | None, Fields]]:
    """Yield the messages with their ids and parents, also those that are nested in others."""
    waiting: list[tuple[str | None, Fields]] = [(None, one) for one in reversed(listed)]
    number = 0
    while waiting:
        outer, found = waiting.pop()
        number += 1
        id = text(found.get("messageId")) or f"message {number}"
        named = text(found.get("parentMessageId"))
        parent = outer or (named if named != _NO_PARENT else "") or None
        yield id, parent, found
        waiting += [(id, child) for child in reversed(objects(found.get("children")))]


def _conversation(body: Fields, listed: Sequence[Fields], place: str) -> Iterator[Found]:
    found: dict[str, Fields] = {}
    parents: dict[str, str | None] = {}
    for id, parent, one in _flat(listed):
        if id not in found:
            found[id], parents[id] = one, parent
    times = {id: time_us(one.get("createdAt")) for id, one in found.items()}
    tree = order_tree(parents, times)
    options = fields(body.get("options"))
    prompt = first_text(options, "promptPrefix", "system", "instructions")
    setups = Setups()

    def turn(id: str) -> Iterator[tuple[str, Message, int]]:
        one = found[id]
        endpoint = first_text(one, "endpoint") or first_text(body, "endpoint")
        model = first_text(one, "model") or first_text(options, "model")
        for own, message in _turn(clean_text(id), one):
            answers = message.role == "assistant" and bool(model)
            setup = setups.number(_PROVIDERS.get(endpoint, "openai-compatible"), model, prompt) if answers else 0
            yield own, message, setup

    messages, _ = place_turns(tree, times, turn)
    conversation = PortableConversation(
        by_id=True,
        id=clean_text(text(body.get("conversationId"))) or (messages[0].id if messages else place),
        title=clean_text(body.get("title")),
        metadata={"source": FORMAT.name},
        setups=setups.all,
    )
    yield from parts(conversation, (*messages, *_description(body), *circle_records(tree, parents)))


def _description(body: Fields) -> Iterator[SourceRecord]:
    if rest := without(body, _IN_BODY):
        yield SourceRecord(type="conversation", data=storable(rest), known=True)


def _turn(id: str, found: Fields) -> Iterator[tuple[str, Message]]:
    native = storable(without(found, _IN_MESSAGE))
    said = list(_said(id, found))
    by_user = found.get("isCreatedByUser")
    if by_user is True or (by_user is None and text(found.get("sender")).lower() == "user"):
        blocks = [one for one in said if isinstance(one, Block)]
        yield id, with_extra(Message.user(blocks), native=native)
        return
    for own, message in split_turn(id, said):
        yield own, with_extra(message, native=native) if own == id else message


def _said(id: str, found: Fields) -> Iterator[Block | Result]:
    some = False
    for number, part in enumerate(objects(found.get("content")), 1):
        some = True
        yield from _part(f"{id}/call {number}", part)
    if not some and text(found.get("text")):
        yield Block.text(clean_text(found["text"]))
    for one in (*objects(found.get("files")), *objects(found.get("attachments"))):
        yield Block("metadata", encode(storable(one)), mime_type="application/json")


def _part(place: str, part: Fields) -> Iterator[Block | Result]:
    match text(part.get("type")):
        case "text":
            said = part.get("text")
            if words := clean_text(said) or clean_text(fields(said).get("value")):
                yield Block.text(words)
        case "think":
            said = part.get("think")
            yield Block.thinking(clean_text(said) or clean_text(fields(said).get("value")))
        case "error":
            yield Block("error", clean_text(part.get("error")) or encode(storable(part)))
        case "tool_call":
            call = fields(part.get("tool_call"))
            inner = fields(call.get("function")) or call
            id = clean_text(call.get("id")) or place
            yield Block.tool_call(id, clean_text(inner.get("name")), _arguments(inner))
            if inner.get("output") is not None:
                output = inner["output"]
                words = clean_text(output) if isinstance(output, str) else encode(storable(output))
                yield Result(id, (Block.text(words),))
        case kind:
            yield Block(clean_text(kind)[:64] or "unknown", encode(storable(part)), mime_type="application/json")


def _arguments(call: Fields) -> object:
    given = call.get("args") if "args" in call else call.get("arguments")
    if not isinstance(given, str):
        return storable(given)
    return clean_text(given)
