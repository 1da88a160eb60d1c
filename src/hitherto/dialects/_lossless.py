"""Makes messages storable without losing any of the JSON they came in.

A provider's JSON may hold values that a store cannot: an integer of more than 64 bits, nesting over 100 levels, half of
a surrogate pair. The answer was paid for all the same, and must be sent again as it was. So its `raw` is then the text
of that JSON, as bytes, and `extra["raw_format"]` says so. Bytes can always be stored, as an attachment if there are
many.

The blocks beside it are for reading. There, half of a surrogate pair is the replacement character U+FFFD, which also
goes out when the message is sent again: no SDK can encode the half itself.

A response that no dialect can parse was paid for as well. It becomes an event that holds the body as it came, in a
block of the type `response`.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ..attachment import LARGE, Attachment
from ..errors import InvalidMessage
from ..model import Block, Message, check, check_json, encodable
from ._json import decode_object, deep_copy, replaced_surrogates, written
from ._types import Answer

RAW_FORMAT = "raw_format"  # in the extras of a message: "json" if its raw is the text of a JSON value, as bytes
_UNREADABLE = (ValueError, RecursionError)
_JSON = "application/json"

M = TypeVar("M", bound=Message)


def keepable(message: M) -> M:
    """Return the message in a form that can be stored; the same object if it can be stored as it is."""
    if _is_storable(message):  # nearly all of them
        return message
    changed: dict[str, object] = {}
    blocks = tuple(_block(block) for block in message.blocks)
    if any(new is not old for new, old in zip(blocks, message.blocks, strict=True)):
        changed["blocks"] = blocks
    extra = _mapping(message.extra)
    if not _can_be_kept(message.raw):
        changed["raw"] = written(deep_copy(message.raw))
        extra = {**(extra or {}), RAW_FORMAT: "json"}
    if extra is not message.extra:
        changed["extra"] = extra
    return replace(message, **changed) if changed else message


def checked(message: M) -> M:
    """Return the message in a form that can be stored, checked. Raises `InvalidMessage` if it has none."""
    if _is_storable(message):
        return message
    message = keepable(message)
    check(message)
    return message


def _is_storable(message: Message) -> bool:
    """Return True if a message is valid, and can be encoded as it is."""
    try:
        check(message)
        msgspec.msgpack.encode(message, enc_hook=_unknown)
    except (InvalidMessage, UnicodeEncodeError, OverflowError):
        return False
    return True


def keepable_answer(answer: Answer) -> Answer:
    """Return the answer with all its messages in a form that can be stored."""
    others = tuple([keepable(message) for message in other] for other in answer.others)
    return replace(answer, messages=[keepable(message) for message in answer.messages], others=others)


def answer_as_it_is(data: bytes, problem: str) -> Answer | None:
    """Return a response that could not be parsed as an answer with `problem`. The body is a text, which can be read and
    searched, or bytes if it is not UTF-8. Returns None if the body was cut off or is not a JSON object: then it is not
    an answer."""
    text = data.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):  # as every JSON object does, and what broke off does not
        return None
    try:
        content: str | bytes = data.decode()
    except UnicodeDecodeError:
        content = data
    return Answer([Message("event", (Block("response", content, "text", _JSON),))], problem=problem)


def as_bytes(message: M) -> M:
    """Return the message with its long texts and its raw as bytes, for a message that is too large to be stored as
    text."""
    blocks = tuple(_block_as_bytes(block) for block in message.blocks)
    if message.raw is None or isinstance(message.raw, bytes | Attachment):
        return replace(message, blocks=blocks)
    extra = {**(message.extra or {}), RAW_FORMAT: "json"}
    return replace(message, blocks=blocks, raw=written(deep_copy(message.raw)), extra=extra)


def own_raw(message: Message, dialect: str) -> dict[str, object] | None:
    """Return the provider's own JSON of a message, or None if the message is of another dialect or has none."""
    extra = message.extra or {}
    if extra.get("dialect", dialect) != dialect:
        return None
    raw = message.raw
    if isinstance(raw, dict) or extra.get(RAW_FORMAT) != "json":
        return raw if isinstance(raw, dict) else None
    if isinstance(raw, Attachment):
        raw = raw.read()
    try:
        found = decode_object(raw) if isinstance(raw, bytes | str) else None
    except _UNREADABLE:  # a sanitiser has removed a part of it: only the blocks are usable
        return None
    cleaned = replaced_surrogates(found)
    return cleaned if isinstance(cleaned, dict) else None


def _can_be_kept(value: object) -> bool:
    if value is None:
        return True
    try:
        check_json(value, "JSON")
        msgspec.msgpack.encode(value, enc_hook=_unknown)
    except (InvalidMessage, UnicodeEncodeError, OverflowError):
        return False
    return True


def _unknown(_: object) -> None:
    """Accept an attachment: it is stored elsewhere."""


def _block(block: Block) -> Block:
    content = block.content
    is_plain = not isinstance(content, str) or encodable(content)
    id = block.id if block.id is None or encodable(block.id) else str(replaced_surrogates(block.id))
    extra = _mapping(block.extra)
    if is_plain and id is block.id and extra is block.extra and encodable(block.mime_type) and encodable(block.type):
        return block
    kind, mime_type = (str(replaced_surrogates(word)) for word in (block.type, block.mime_type))
    said = content if is_plain else str(replaced_surrogates(content))
    return Block(kind, said, block.modality, mime_type, id, extra)


def _block_as_bytes(block: Block) -> Block:
    if not isinstance(block.content, str) or len(block.content) < LARGE:
        return block
    return replace(block, content=block.content.encode())


def _mapping(extra: Mapping[str, object] | None) -> dict[str, object] | None:
    """Return extras that can be stored. A value that cannot be stored becomes the text of its JSON."""
    if extra is None or _can_be_kept(extra):
        return extra  # type: ignore[return-value]  # extras are dicts
    return {str(replaced_surrogates(name)): _value(value) for name, value in extra.items()}


def _value(value: object) -> object:
    replaced = replaced_surrogates(value)
    return replaced if _can_be_kept(replaced) else written(deep_copy(value)).decode()
