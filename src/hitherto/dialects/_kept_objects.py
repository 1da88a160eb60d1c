"""A framework's own objects, kept beside the messages that show them, and given back equal.

Words of a person, a model or a tool in an object are a message, in blocks that everybody reads. The object is in
`extra`, under the name of the framework; the part of it that is the message's `raw` is not kept twice. An object that a
message cannot hold as it is (half a surrogate pair, an integer of more than 64 bits), or that is very large, is kept as
the bytes of its JSON, beside what can be shown of it. An object that says nothing is an event, which no thread shows.
"""

import json
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ..errors import Damaged, InvalidArgument, InvalidMessage
from ..model import Block, Message, Saved, check_json

Whole = Mapping[str, object]

_LARGEST = 1_000_000  # bytes of JSON; a larger object is an attachment
_LONGEST_TEXT = 100_000  # characters that are shown of a block of such an object
_LONGEST_TITLE = 60


class Keeper(msgspec.Struct, frozen=True):
    """How the objects of a framework are kept."""

    name: str  # in `extra`
    read: Callable[[Whole], Message | None]  # the message that shows an object; None if it says nothing
    inside: tuple[str, ...]  # where the object has what is in the message's `raw`,
    of_raw: tuple[str, ...] = ()  # at this place there

    def keep(self, whole: Whole) -> tuple[Message, int]:
        """Return a message that shows an object and holds it, and about how many bytes it takes in a commit."""
        size = _size(whole)
        if size is None or size > _LARGEST:
            return self._as_bytes(whole), min(size or 0, _LARGEST)
        message = self.read(whole)
        if message is None:
            return Message("event", extra={self.name: dict(whole)}), size
        kept = whole
        if _found(message.raw, self.of_raw) == _found(whole, self.inside) is not None:
            kept = _without(whole, self.inside)
        return replace(message, extra={**(message.extra or {}), self.name: kept}), size

    def whole(self, message: Saved) -> dict[str, object] | None:
        """Return the object that a message holds; None if the message comes from elsewhere. `Damaged` if it cannot be
        read."""
        if message.problem is not None:
            raise Damaged(f"message {message.id} cannot be read: {message.problem}")
        kept = (message.extra or {}).get(self.name)
        if isinstance(kept, bytes):
            found: dict[str, object] = json.loads(kept)
            return found
        if not isinstance(kept, dict):
            return None
        part = _found(message.raw, self.of_raw)
        return kept if part is None or _found(kept, self.inside) is not None else _with(kept, self.inside, part)

    def _as_bytes(self, whole: Whole) -> Message:
        try:
            text = json.dumps(whole)
            shown = json.loads(json.dumps(whole, ensure_ascii=False).encode("utf-8", "replace"))
        except (TypeError, ValueError, RecursionError) as error:
            hint = "objects, lists, texts, numbers, booleans and null can be kept"
            raise InvalidArgument(f"this is no JSON, and cannot be kept: {error}", hint=hint) from error
        message = self.read(shown) or Message("event")
        blocks = [_shorten(block) for block in message.blocks]
        extra: dict[str, object] = {self.name: text.encode()}
        return Message(message.role, blocks, tool_result_error=message.tool_result_error, extra=extra)


def first_words(text: str) -> str | None:
    """Return a title for a conversation that begins with this text."""
    line = " ".join(text.split())
    return None if not line else line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"


def _size(whole: Whole) -> int | None:
    """Return the bytes of an object as JSON; None if a message cannot hold it as it is."""
    try:
        check_json(dict(whole), "an object")
        return len(msgspec.json.encode(whole))
    except (InvalidMessage, UnicodeEncodeError, OverflowError):
        return None


def _shorten(block: Block) -> Block:
    content = block.content
    return replace(block, content=content[:_LONGEST_TEXT], extra=None) if isinstance(content, str) else block


def _found(value: object, path: Sequence[str]) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _without(whole: Whole, path: Sequence[str]) -> dict[str, object]:
    first, *rest = path
    below = whole[first]
    if not rest:
        return {name: value for name, value in whole.items() if name != first}
    return {**whole, first: _without(below, rest) if isinstance(below, Mapping) else below}


def _with(whole: Whole, path: Sequence[str], part: object) -> dict[str, object]:
    """Return the object with a part at its place again. Where the object has nothing on the way there, it had no such
    part, and stays as it is."""
    first, *rest = path
    if not rest:
        return {**whole, first: part}
    below = whole.get(first)
    return {**whole, first: _with(below, rest, part)} if isinstance(below, Mapping) else dict(whole)
