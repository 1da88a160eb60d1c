"""Entries of Claude Code's transcripts as messages, and back.

What is said becomes a message in the words of Anthropic's API, which every provider's dialect can read; what else the
entry has is in `extra["claude_code"]`. Everything that is no message is an event. An entry that cannot be kept as it
is (half a surrogate pair, an integer of more than 64 bits) or is very large is kept as the bytes of its JSON, beside
what can be read of it.
"""

import json
from collections.abc import Mapping

import msgspec
from msgspec.structs import astuple, replace

from ..errors import Damaged, InvalidArgument, InvalidMessage
from ..model import Block, Message, Saved, Usage, check_json

Entry = Mapping[str, object]

_EXTRA = "claude_code"
_LARGEST = 1_000_000  # bytes of JSON; a larger entry is an attachment
_LONGEST_TITLE = 60
_LONGEST_TEXT = 100_000  # characters that are shown of a block of such an entry


def uuid_of(entry: Entry) -> str | None:
    """Return what the entry is called, and known by when it comes again; None for titles, modes and the like."""
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


def parent_of(entry: Entry) -> str | None:
    parent = entry.get("parentUuid")
    return parent if isinstance(parent, str) and parent else None


def begins_turn(entry: Entry, message: Message) -> bool:
    """Return True if a human says this."""
    return (
        message.role == "user"
        and entry.get("isMeta") is not True
        and not any(block.type == "tool_result" for block in message.blocks)
    )


def title_of(entry: Entry) -> tuple[str, bool] | None:
    """Return the title that an entry gives the session, and whether a human chose it."""
    for kind, field, is_chosen in (("custom-title", "customTitle", True), ("ai-title", "aiTitle", False)):
        title = entry.get(field)
        if entry.get("type") == kind and isinstance(title, str):
            return title, is_chosen
    return None


def first_words(text: str) -> str | None:
    """Return a title for a session that begins with this text."""
    line = " ".join(text.split())
    return None if not line else line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"


class EntryReader:
    """Makes messages of entries, one after the other. Several entries may be parts of one answer of the model and each
    tells of its tokens: they are counted once."""

    def __init__(self, answer: str | None = None, counted: Usage | None = None) -> None:
        self.answer = answer
        self.counted = counted or Usage()

    def read(self, entry: Entry, key: str | None) -> tuple[Message, int]:
        """Return the message of an entry, and about how many bytes it takes in a commit."""
        size = _size(entry)
        message = _as_kept(entry) if size is not None and size <= _LARGEST else _as_bytes(entry)
        return replace(message, key=key, usage=self._count(entry, message)), min(size or 0, _LARGEST)

    def _count(self, entry: Entry, message: Message) -> Usage | None:
        said = entry.get("message")
        answer = said.get("id") if isinstance(said, Mapping) else None
        if message.usage is None or not isinstance(answer, str):
            return message.usage
        before = self.counted if answer == self.answer else Usage()
        new = Usage(*(max(0, now - then) for now, then in zip(astuple(message.usage), astuple(before), strict=True)))
        self.answer, self.counted = answer, before + new
        return new if any(astuple(new)) else None


def entry_of(message: Saved) -> Entry | None:
    """Return the entry that a message was made of; None if it comes from elsewhere. `Damaged` if it cannot be read."""
    if message.problem is not None:
        raise Damaged(f"message {message.id} of the session cannot be read: {message.problem}")
    kept = (message.extra or {}).get(_EXTRA)
    if isinstance(kept, bytes):
        found: Entry = json.loads(kept)
        return found
    if not isinstance(kept, dict):
        return None
    said, raw = kept.get("message"), message.raw
    if isinstance(said, dict) and "content" not in said and isinstance(raw, dict) and "content" in raw:
        return {**kept, "message": {**said, "content": raw["content"]}}
    return kept


def _size(entry: Entry) -> int | None:
    """Return the bytes of the entry as JSON; None if a message cannot hold it as it is."""
    try:
        check_json(dict(entry), "an entry")
        return len(msgspec.json.encode(entry))
    except (InvalidMessage, UnicodeEncodeError, OverflowError):
        return None


def _as_kept(entry: Entry) -> Message:
    message = _said(entry)
    kept: dict[str, object] = dict(entry)
    said = kept.get("message")
    if message is None:
        return Message("event", extra={_EXTRA: kept})
    if isinstance(said, Mapping) and isinstance(message.raw, dict) and message.raw.get("content") == said["content"]:
        kept["message"] = {name: value for name, value in said.items() if name != "content"}
    return replace(message, extra={**(message.extra or {}), _EXTRA: kept})


def _as_bytes(entry: Entry) -> Message:
    try:
        text = json.dumps(entry)
        shown = json.loads(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace"))
    except (TypeError, ValueError, RecursionError) as error:
        hint = "entries hold objects, lists, texts, numbers, booleans and null"
        raise InvalidArgument(f"an entry of a transcript is no JSON: {error}", hint=hint) from error
    message = _said(shown) or Message("event")
    blocks = [_shorten(block) for block in message.blocks]
    return Message(message.role, blocks, tool_result_error=message.tool_result_error, extra={_EXTRA: text.encode()})


def _shorten(block: Block) -> Block:
    content = block.content
    return replace(block, content=content[:_LONGEST_TEXT], extra=None) if isinstance(content, str) else block


def _said(entry: Entry) -> Message | None:
    """Return what is said in an entry; None if it says nothing."""
    said = entry.get("message")
    if entry.get("type") not in ("user", "assistant") or not isinstance(said, Mapping):
        return None
    try:
        return Message.from_anthropic(said)
    except InvalidMessage:  # nothing that Anthropic's API says: it is kept all the same
        return None
