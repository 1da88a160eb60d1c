"""Items of openai-agents as messages, and back.

An item is an entry of the Responses API, so it becomes a message that people can read, with the item as its `raw`. An
item that is none (of another API, or of nobody's) is kept as an event, and comes back all the same.
"""

import json
from collections.abc import Mapping
from typing import TypeAlias

from msgspec.structs import replace

from ..errors import InvalidMessage
from ..model import Block, Message, Saved, Usage

Item: TypeAlias = dict[str, object]

DIALECT = "openai-responses"
_ROLES = {"event": "system", "assistant": "assistant", "user": "user"}
# The calls that run in this process.
_CALLS = frozenset(
    {"function_call", "custom_tool_call", "shell_call", "local_shell_call", "apply_patch_call", "computer_call"}
)


def message_of(item: object, *, usage: Usage | None = None) -> Message:
    """Return an item as a message. `InvalidMessage` if it is not JSON."""
    if not isinstance(item, Mapping):
        hint = "an item of a session is a dict, as the Responses API has it"
        raise InvalidMessage(f"a {type(item).__name__} where an item of a session is wanted", hint=hint)
    try:
        message = Message.from_openai_responses(item)
    except InvalidMessage:
        text = item.get("content")
        blocks = (Block.text(text),) if isinstance(text, str) else ()
        message = Message("event", blocks, extra={"dialect": DIALECT}, raw=dict(item))
    return message if usage is None else replace(message, usage=usage)


def item_of(message: Saved) -> Item:
    """Return the item that a message was made of. Of a message of another program it says what was said."""
    extra = message.extra or {}
    raw = message.raw if extra.get("dialect") == DIALECT else None
    if isinstance(raw, bytes) and extra.get("raw_format") == "json":
        raw = json.loads(raw)
    return raw if isinstance(raw, dict) else {"role": _ROLES.get(message.role, "user"), "content": message.text}


def call_of(item: Mapping[str, object]) -> str | None:
    """Return the id of a call that waits for a tool of this process; None if the item is something else."""
    call = item.get("call_id") or item.get("id")
    return call if item.get("type") in _CALLS and isinstance(call, str) else None


def pair(kept: list[Item], given: list[Item]) -> list[int | None]:
    """Return for each item that was kept the place of the same one among those that are given, or None.

    They are the same answer if one of its calls is in both. Then items of one type follow each other in both, also if
    the framework has taken away the ids of thoughts."""
    if not {call_of(item) for item in kept} & {call_of(item) for item in given} - {None}:
        return [None] * len(kept)
    places: list[int | None] = []
    at = 0
    for item in kept:
        found = next((place for place in range(at, len(given)) if _is_same(item, given[place])), None)
        places.append(found)
        at = at if found is None else found + 1
    return places


def _is_same(item: Item, other: Item) -> bool:
    return item.get("type") == other.get("type") and call_of(item) == call_of(other)
