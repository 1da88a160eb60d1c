"""ChatGPT's data export: `conversations.json`, or its shards, with the pictures beside it.

A conversation is a `mapping` of nodes. The tree is built from `parent` alone: `children` disagrees with it in real
files. Nodes without a message are left out, and their children go to the node above. An edited question and an answer
that was asked for again are branches, and all of them are kept.

A call of a tool is a message of the assistant to a recipient; the tool's messages below it are its results. Messages
that ChatGPT does not show (the system's, custom instructions, context that tools inserted) are kept and marked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ...dialects._json import encode
from ...errors import InvalidMessage
from ...model import Block, Message
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, clean_text, injected, parts, storable, time_us
from .._types import Found, PortableConversation, PortableMessage, Source, SourceRecord
from ._fields import Fields, Setups, fields, first_text, objects, text, without
from ._foreign_tree import circle_records, order_tree, skip_empty
from ._json_elements import LazyObjects, decode_lazily, texts_in
from ._media import FileIndex

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_NODE = re.compile(rb'"mapping"\s*:\s*\{')
_ROLES = {"user": "user", "assistant": "assistant", "tool": "tool_result"}
_READ = ("mapping", "title", "create_time", "update_time", "conversation_id", "id", "current_node")
_FILE_ID = re.compile(r"file[-_][A-Za-z0-9]+")
_POINTER = re.compile(r"://[^?]*?(file[-_][A-Za-z0-9]+)")  # file-service://file-…, sediment://file_…


class ChatGPT(Importer):
    name = "chatgpt"

    def recognises(self, source: Source) -> str | None:
        head = source.head
        if _BEGINNING.match(head) and _NODE.search(head) and b'"children"' in head and b'"parent"' in head:
            return "it is JSON with a mapping of nodes that have parents and children"
        return None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        media = FileIndex(files, _FILE_ID)
        for name in names:
            for place, found in texts_in(files, name):
                try:
                    yield from _entry(found, media, place)
                except InvalidMessage as error:
                    yield Unreadable(place, str(error))


FORMAT = ChatGPT()


def _entry(found: bytes | bytearray | Unreadable, media: FileIndex, place: str) -> Iterator[Found]:
    if isinstance(found, Unreadable):
        yield found
        return
    body, nodes = decode_lazily(found, "mapping")
    if nodes is not None:
        yield from _conversation(body, nodes, media, place)
    elif body:
        yield _without_messages(body, place)
    else:
        yield Unreadable(place, "it is no object")


def _conversation(body: Fields, nodes: LazyObjects, media: FileIndex, place: str) -> Iterator[Found]:
    parents: dict[str, str | None] = {}
    times: dict[str, int] = {}  # of the nodes with a message
    for id in nodes:
        node = nodes[id]
        parents[id] = text(node.get("parent")) or None
        if message := fields(node.get("message")):
            times[id] = time_us(message.get("create_time"))
    head = _head(text(body.get("current_node")), parents, times)
    tree = order_tree(skip_empty(parents, times), times, last=head)
    reader = _Reader(media)

    def read() -> Iterator[PortableMessage | SourceRecord]:
        for id, parent in tree.parents.items():
            yield reader.read(id, fields(nodes[id].get("message")), parent, times[id])
        yield from _description(body)
        yield from circle_records(tree, parents)

    conversation = PortableConversation(
        by_id=True,
        id=_id(body, place),
        title=clean_text(text(body.get("title"))),
        metadata={"source": FORMAT.name},
        created_us=time_us(body.get("create_time")),
        head=clean_text(head) or None,
    )
    for part in parts(conversation, read()):
        yield replace(part, setups=reader.setups.all)


def _id(body: Fields, place: str) -> str:
    return clean_text(first_text(body, "conversation_id", "id") or place)


def _head(at: str, parents: Mapping[str, str | None], said: Mapping[str, int]) -> str:
    """Return the message that the conversation stands at. A node without a message stands for the one above it."""
    walked: set[str] = set()
    while at in parents and at not in said and at not in walked:
        walked.add(at)
        at = parents[at] or ""
    return at if at in said else ""


def _description(body: Fields) -> Iterator[SourceRecord]:
    if rest := without(body, _READ):
        yield SourceRecord(type="conversation", data=storable(rest), known=True)


def _without_messages(body: Fields, place: str) -> PortableConversation:
    """Return an entry that is no conversation: of a project, or of a folder."""
    kept = SourceRecord(type="entry without messages", data=storable(body))
    title = clean_text(first_text(body, "title", "name"))
    return PortableConversation(
        by_id=True, id=_id(body, place), title=title, metadata={"source": FORMAT.name}, records=(kept,)
    )


class _Reader:
    """Reads the messages of one conversation, parents first."""

    def __init__(self, media: FileIndex) -> None:
        self._media = media
        self.setups = Setups()
        self._calls: dict[str | None, str] = {}  # the call that a message, or the nearest one above it, makes

    def read(self, id: str, found: Fields, parent: str | None, at: int) -> PortableMessage:
        about, author = fields(found.get("metadata")), fields(found.get("author"))
        role = _ROLES.get(text(author.get("role")), "event")
        content = fields(found.get("content"))
        kind = text(content.get("content_type"))
        recipient = text(found.get("recipient"))
        blocks = tuple(self._blocks(content, kind, about))
        call = self._calls.get(parent, "") if role != "user" else ""
        if role == "assistant" and recipient not in ("", "all"):
            blocks = (_call(id, recipient, content, blocks),)
            call = id
        if call:
            self._calls[id] = call
        model = text(about.get("model_slug")) if role == "assistant" else ""
        extra = {"native": storable(_native(found, content, kind))}
        if role == "tool_result":
            message = Message.tool_result(call or text(author.get("name")) or id, blocks, error=kind == "system_error")
            message = replace(message, extra=extra)
        else:
            message = Message(role, blocks, extra=extra)
        return PortableMessage(
            id=clean_text(id),
            parent=None if parent is None else clean_text(parent),
            message=_mark(message, found, about, kind),
            created_us=at,
            setup=self.setups.number("openai", model),
        )

    def _blocks(self, content: Fields, kind: str, about: Fields) -> Iterator[Block]:
        listed = content.get("parts")
        pieces = listed if isinstance(listed, list) else []
        match kind:
            case "text" | "multimodal_text" | "":
                for part in pieces:
                    yield from self._part(part, about)
            case "code" | "execution_output" | "system_error" | "tether_quote" | "sonic_webpage":
                yield from _texts(content, "title", "url", "text")
            case "tether_browsing_display":
                yield from _texts(content, "summary", "result")
            case "thoughts":
                yield from (Block.thinking(_thought(one)) for one in _thoughts(content, pieces))
            case "reasoning_recap":
                yield Block.thinking(clean_text(text(content.get("content"))), recap=True)
            case "user_editable_context":
                yield from _texts(content, "user_profile", "user_instructions")
            case "model_editable_context":
                yield from _texts(content, "model_set_context")
            case _:
                yield _unknown(kind, content)

    def _part(self, part: object, about: Fields) -> Iterator[Block]:
        if isinstance(part, str):
            if part:
                yield Block.text(clean_text(part))
            return
        found = fields(part)
        kind = text(found.get("content_type")) or "unknown"
        if kind == "audio_transcription" and isinstance(found.get("text"), str):
            yield Block.text(clean_text(text(found["text"])), transcript=True)
            return
        ids = [file[1] for pointer in _pointers(found) if (file := _POINTER.search(pointer))]
        for id in ids:
            yield self._media.block(id, _mime_type(id, about)) or _unknown("metadata", found)
        if not ids:
            yield _unknown(kind, found)


def _pointers(part: Fields) -> list[str]:
    """Return the files that a part refers to. A film with sound refers to several."""
    inner = [fields(part.get(name)) for name in ("audio_asset_pointer", "video_container_asset_pointer")]
    frames = objects(part.get("frames_asset_pointers"))
    return [pointer for one in (part, *inner, *frames) if (pointer := text(one.get("asset_pointer")))]


def _mime_type(id: str, about: Fields) -> str:
    """Return the type of a file, where the message lists it among its attachments."""
    return next((first_text(one, "mime_type") for one in objects(about.get("attachments")) if one.get("id") == id), "")


def _texts(content: Fields, *names: str) -> Iterator[Block]:
    found = [said for name in names if (said := text(content.get(name)))]
    if found:
        yield Block.text(clean_text("\n\n".join(found)))


def _thoughts(content: Fields, pieces: Sequence[object]) -> list[object]:
    listed = content.get("thoughts")
    return listed if isinstance(listed, list) else list(pieces)


def _thought(found: object) -> str:
    said = [found] if isinstance(found, str) else [text(fields(found).get(name)) for name in ("summary", "content")]
    return clean_text("\n\n".join(part for part in said if isinstance(part, str) and part))


def _call(id: str, recipient: str, content: Fields, blocks: Sequence[Block]) -> Block:
    """Return the call of a tool. Its arguments are a text: code, or JSON."""
    said = text(content.get("text")) or "".join(block.content for block in blocks if isinstance(block.content, str))
    return Block.tool_call(clean_text(id), clean_text(recipient), clean_text(said))


def _unknown(kind: str, content: Fields) -> Block:
    return Block(clean_text(kind)[:64], clean_text(encode(content)), mime_type="application/json")


def _native(found: Fields, content: Fields, kind: str) -> Fields:
    """Return the record without what the blocks say as well: the parts of a plain text."""
    listed = content.get("parts")
    if kind == "text" and isinstance(listed, list) and all(isinstance(part, str) for part in listed):
        return without(found, ("content",)) | {"content": without(content, ("parts",))}
    return without(found, ())


def _mark(message: Message, found: Fields, about: Fields, kind: str) -> Message:
    """Mark what ChatGPT does not show, or did not hear from the person."""
    if kind in ("user_editable_context", "model_editable_context") or about.get("is_user_system_message") is True:
        return injected(message, "context")
    hidden = about.get("is_visually_hidden_from_conversation") is True or found.get("weight") == 0
    return injected(message, "hidden") if hidden or message.role == "event" else message
