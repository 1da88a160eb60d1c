"""Entries of Claude Code's transcripts as messages, in the words of Anthropic's API.

Other entries are events. Several entries may be parts of one answer, and are messages of their own.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import astuple, replace

from ..dialects._kept_objects import Keeper, Whole
from ..errors import InvalidMessage
from ..model import Message, Usage


def uuid_of(entry: Whole) -> str | None:
    """Return the entry's uuid, by which a repetition is recognised; None for titles, modes and the like."""
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


def parent_of(entry: Whole) -> str | None:
    parent = entry.get("parentUuid")
    return parent if isinstance(parent, str) and parent else None


def begins_turn(entry: Whole, message: Message) -> bool:
    """Return True if a human says this."""
    return (
        message.role == "user"
        and entry.get("isMeta") is not True
        and not any(block.type == "tool_result" for block in message.blocks)
    )


def title_of(entry: Whole) -> tuple[str, bool] | None:
    """Return the title that an entry gives the session, and whether a human chose it."""
    for kind, field, is_chosen in (("custom-title", "customTitle", True), ("ai-title", "aiTitle", False)):
        title = entry.get(field)
        if entry.get("type") == kind and isinstance(title, str):
            return title, is_chosen
    return None


def _said(entry: Whole) -> Message | None:
    """Return what is said in an entry; None if it says nothing."""
    said = entry.get("message")
    if entry.get("type") not in ("user", "assistant") or not isinstance(said, Mapping):
        return None
    try:
        return Message.from_anthropic(said)
    except InvalidMessage:  # nothing that Anthropic's API says: it is kept all the same
        return None


ENTRIES: Final = Keeper("claude_code", _said, inside=("message", "content"), of_raw=("content",))


class EntryReader:
    """Makes messages of entries, one after the other. Several entries may be parts of one answer of the model and each
    tells of its tokens: they are counted once."""

    def __init__(self, answer: str | None = None, counted: Usage | None = None) -> None:
        self.answer = answer
        self.counted = counted or Usage()

    def read(self, entry: Whole, key: str | None) -> tuple[Message, int]:
        """Return the message of an entry, and about how many bytes it takes in a commit."""
        message, size = ENTRIES.keep(entry)
        return replace(message, key=key, usage=self._count(entry, message)), size

    def _count(self, entry: Whole, message: Message) -> Usage | None:
        said = entry.get("message")
        answer = said.get("id") if isinstance(said, Mapping) else None
        if message.usage is None or not isinstance(answer, str):
            return message.usage
        before = self.counted if answer == self.answer else Usage()
        new = Usage(*(max(0, now - then) for now, then in zip(astuple(message.usage), astuple(before), strict=True)))
        self.answer, self.counted = answer, before + new
        return new if any(astuple(new)) else None
