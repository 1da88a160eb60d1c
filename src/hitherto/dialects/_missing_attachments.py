"""Replaces attachments that the store has lost (holes) by a text that says so.

Providers and files of other programs have no way to express "this image is lost". They get a text in place of the
image, and never empty or made-up bytes. The provider's own JSON of such a message cannot be sent again, because a part
of it is lost: the message is encoded from its blocks instead.
"""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from ..attachment import Attachment
from ..model import Block, Message

M = TypeVar("M", bound=Message)


def holes_in(message: Message) -> list[Attachment]:
    """Return the missing attachments of a message, each once: those in its blocks, and in the JSON beside them."""
    found: dict[bytes | int, Attachment] = {}

    def look(value: object) -> None:
        if isinstance(value, Attachment):
            if value.is_missing:
                source = value if value.encodes is None else value.encodes[0]
                found.setdefault(source.stored_name or id(source), source)
        elif isinstance(value, dict):
            for item in value.values():
                look(item)
        elif isinstance(value, list):
            for item in value:
                look(item)

    for block in message.blocks:
        look(block.content)
        look(block.extra)
    for value in (message.extra, message.raw, message.privacy):
        look(value)
    return list(found.values())


def has_hole(value: object) -> bool:
    """Return True if a block's content, or something in JSON, is a missing attachment."""
    if isinstance(value, Attachment):
        return value.is_missing
    if isinstance(value, dict):
        return any(has_hole(item) for item in value.values())
    return isinstance(value, list) and any(has_hole(item) for item in value)


def tell_holes(message: M) -> M:
    """Return the message with a text in place of each missing attachment, and without `raw` if a part of that is lost.
    A message without holes is returned as it is."""
    blocks = tuple(_told_block(block) for block in message.blocks)
    extra, privacy = _describe_holes(message.extra), _describe_holes(message.privacy)
    raw = None if has_hole(message.raw) else message.raw
    same = all(ours is theirs for ours, theirs in zip(blocks, message.blocks, strict=True))
    if same and (extra, raw, privacy) == (message.extra, message.raw, message.privacy):
        return message
    return replace(message, blocks=blocks, extra=extra, raw=raw, privacy=privacy)


def describe_hole(content: Attachment, mime_type: str = "text/plain") -> str:
    """Return the text that replaces a missing attachment."""
    kind = " ".join(mime_type.split())[:100]
    return f"[{kind}, {content.size:,} bytes: this attachment is missing from the store]"


def _told_block(block: Block) -> Block:
    content, extra = block.content, _describe_holes(block.extra)
    if isinstance(content, Attachment) and content.is_missing:
        text = describe_hole(content, block.mime_type)
        return replace(block, content=text, modality="text", mime_type="text/plain", extra=extra)
    return block if extra is block.extra else replace(block, extra=extra)


T = TypeVar("T")


def _describe_holes(value: T) -> T:
    return _map_holes(value, describe_hole) if has_hole(value) else value


def _map_holes(value: T, tell: Callable[[Attachment], str]) -> T:
    if isinstance(value, Attachment):
        return tell(value) if value.is_missing else value  # type: ignore[return-value]  # JSON holds either
    if isinstance(value, dict):
        return {name: _map_holes(item, tell) for name, item in value.items()}  # type: ignore[return-value]  # as above
    if isinstance(value, list):
        return [_map_holes(item, tell) for item in value]  # type: ignore[return-value]  # as above
    return value
