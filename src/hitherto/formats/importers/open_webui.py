"""Open WebUI: exported chats, and chats copied from its database.

A chat is a tree of messages by `parentId`; several models that answer one question are branches. Reasoning, calls of
tools and their results stand inside the text of an answer, as HTML: `<details type="reasoning">`. They are taken out
of it. Newer versions write them as items beside the text (`output`), and then those are read.
"""

import html
import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...dialects import dialect
from ...dialects._json import encode
from ...dialects._openai_blocks import link_block
from ...errors import InvalidMessage
from ...model import Block, Message, Usage
from ...snapshots import Unreadable
from .._importer import clean_text, decode_json, parts, storable, time_us
from .._types import Found, PortableConversation, Source, SourceRecord
from ._fields import Fields, Setups, count, fields, first_text, objects, text, without
from ._foreign_tree import circle_records, order_tree
from ._json_export import JsonExport, place_turns
from ._turns import Result, split_turn, with_extra

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_DETAILS = re.compile(r"<details\s+([^>]*)>(.*?)</details>\n?", re.DOTALL)
_ATTRIBUTE = re.compile(r'([a-z_]+)="([^"]*)"')
_SUMMARY = re.compile(r"\s*<summary>.*?</summary>\s*", re.DOTALL)
_TAKEN = ("reasoning", "tool_calls", "code_interpreter")
_IN_MESSAGE = ("id", "parentId", "childrenIds", "role", "content", "timestamp", "output")
_IN_BODY = ("id", "title", "chat", "created_at", "updated_at")


class OpenWebUI(JsonExport):
    name = "open-webui"

    def recognises(self, source: Source) -> str | None:
        head = source.head
        if _BEGINNING.match(head) and b'"parentId"' in head and b'"childrenIds"' in head and b'"history"' in head:
            return "it is JSON with a history of messages that have parents and children"
        return None

    def read_object(self, body: Fields, place: str) -> Iterator[Found]:
        chat = fields(body.get("chat")) or body
        if isinstance(fields(chat.get("history")).get("messages"), dict):
            yield from _conversation(body, chat, place)
        else:
            yield Unreadable(place, "it is no chat: it has no history of messages")


FORMAT = OpenWebUI()


def _conversation(body: Fields, chat: Fields, place: str) -> Iterator[Found]:
    history = fields(chat.get("history"))
    found = {id: one for id, one in fields(history.get("messages")).items() if isinstance(one, dict)}
    parents = {id: text(one.get("parentId")) or None for id, one in found.items()}
    times = {id: time_us(one.get("timestamp")) for id, one in found.items()}
    head = text(history.get("currentId"))
    tree = order_tree(parents, times, last=head)
    setups = Setups()
    prompt = first_text(chat, "system") or text(fields(chat.get("params")).get("system"))

    def turn(id: str) -> Iterator[tuple[str, Message, int]]:
        for own, message in _turn(clean_text(id), found[id]):
            model = text(found[id].get("model")) if message.role == "assistant" else ""
            yield own, message, setups.number("openai-compatible", model, prompt) if model else 0

    messages, ends = place_turns(tree, times, turn)
    conversation = PortableConversation(
        by_id=True,
        id=clean_text(text(body.get("id"))) or (messages[0].id if messages else place),
        title=clean_text(first_text(body, "title") or chat.get("title")),
        metadata={"source": FORMAT.name},
        setups=setups.all,
        created_us=time_us(body.get("created_at")) or time_us(chat.get("timestamp")),
        head=ends.get(head),
    )
    yield from parts(conversation, (*messages, *_description(body, chat), *circle_records(tree, parents)))


def _description(body: Fields, chat: Fields) -> Iterator[SourceRecord]:
    rest = without(body, _IN_BODY) | without(chat, ("history", "messages", "title", "id", "chat", "timestamp"))
    if rest:
        yield SourceRecord(type="chat", data=storable(rest), known=True)


def _turn(id: str, found: Fields) -> Iterator[tuple[str, Message]]:
    role = text(found.get("role"))
    native = storable(_native(found))
    if role != "assistant":
        message = Message("user" if role == "user" else "event", (*_files(found), *_plain(found)))
        yield id, with_extra(message, native=native)
        return
    said = list(_said(id, found))
    if problem := _problem(found):
        said.append(Block("error", problem))
    said += _files(found)
    for own, message in split_turn(id, said):
        whole = with_extra(message, native=native) if own == id else message
        yield own, replace(whole, usage=_usage(fields(found.get("usage")))) if own == id else whole


def _native(found: Fields) -> Fields:
    """Return the record without what the blocks say as well; pictures are in the blocks."""
    rest = without(found, _IN_MESSAGE)
    listed = objects(rest.get("files"))
    if any(text(one.get("url")).startswith("data:") for one in listed):
        rest["files"] = [
            one if not text(one.get("url")).startswith("data:") else without(one, ("url",)) for one in listed
        ]
    return rest


def _plain(found: Fields) -> Iterator[Block]:
    content = found.get("content")
    if isinstance(content, str) and content:
        yield Block.text(clean_text(content))
    elif content not in (None, ""):
        yield Block("content", encode(storable(content)), mime_type="application/json")


def _files(found: Fields) -> Iterator[Block]:
    for one in objects(found.get("files")):
        url = text(one.get("url"))
        block = link_block("image_url", url) if url.startswith("data:") else None
        yield block or Block("metadata", encode(storable(one)), mime_type="application/json")


def _problem(found: Fields) -> str:
    error = found.get("error")
    return clean_text(error) or clean_text(fields(error).get("content")) or clean_text(fields(error).get("detail"))


def _said(id: str, found: Fields) -> Iterator[Block | Result]:
    items = objects(found.get("output"))
    if items:
        yield from _items(items)
    else:
        yield from _from_html(id, text(found.get("content")))


def _items(items: Sequence[Fields]) -> Iterator[Block | Result]:
    spoken = dialect("openai-responses")
    for item in items:
        try:
            message = spoken.parse(fields(storable(item)))
        except InvalidMessage:
            yield Block("unknown", encode(storable(item)), mime_type="application/json")
            continue
        if message.role == "tool_result":
            yield Result(next((b.id for b in message.blocks if b.id), ""), message.blocks, message.tool_result_error)
        else:
            yield from message.blocks


def _from_html(id: str, content: str) -> Iterator[Block | Result]:
    """Yield the text of an answer, and what stands in it as HTML, in order."""
    at = 0
    for number, part in enumerate(_DETAILS.finditer(content), 1):
        about = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(part[1])}
        if about.get("type") not in _TAKEN:
            continue
        yield from _text(content[at : part.start()])
        at = part.end()
        inside = html.unescape(_SUMMARY.sub("", part[2], count=1)).strip()
        if about["type"] == "reasoning":
            yield Block.thinking(
                clean_text("\n".join(line.removeprefix(">").removeprefix(" ") for line in inside.split("\n")))
            )
        elif about["type"] == "tool_calls":
            call = clean_text(about.get("id")) or f"{id}/call {number}"
            yield Block.tool_call(call, clean_text(about.get("name")), _value(about.get("arguments", "")))
            if about.get("done") == "true" or about.get("result"):
                yield Result(call, (Block.text(_words(about.get("result", ""))),))
        else:
            call = f"{id}/call {number}"
            yield Block.tool_call(call, "code_interpreter", clean_text(inside))
            if about.get("output"):
                yield Result(call, (Block.text(_words(about["output"])),))
    yield from _text(content[at:])


def _text(said: str) -> Iterator[Block]:
    if said.strip():
        yield Block.text(clean_text(said.strip("\n")))


def _value(value: str) -> object:
    """Return a value that was written as JSON, and that JSON possibly as JSON again."""
    found: object = value
    for _ in range(2):
        try:
            found = decode_json(found) if isinstance(found, str) and found else found
        except InvalidMessage:
            break
    return storable(found)


def _words(value: str) -> str:
    found = _value(value)
    return clean_text(found) if isinstance(found, str) else encode(found)


def _usage(found: Fields) -> Usage | None:
    """Return the tokens, by the names of OpenAI, of its responses, or of Ollama."""

    def first(*names: str) -> int:
        return next((number for name in names if (number := count(found.get(name)))), 0)

    usage = Usage(
        input_tokens=first("prompt_tokens", "input_tokens", "prompt_eval_count"),
        output_tokens=first("completion_tokens", "output_tokens", "eval_count"),
        cache_read_tokens=count(fields(found.get("prompt_tokens_details")).get("cached_tokens")),
        reasoning_tokens=count(fields(found.get("completion_tokens_details")).get("reasoning_tokens")),
    )
    return usage if usage != Usage() else None
