"""Events of Google's ADK as messages, in the words of Gemini's API, and the items of a session beside them.

An event without content changes the state, or hands over to another agent: it is an event here, too.
"""

import json
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import InvalidMessage
from ..model import Message, Usage
from ._framework_names import escape, key_of
from ._kept_objects import Keeper, Whole

SESSION_ITEM: Final = "adk/session"  # the item with the times and the revision of a session
STATE_ITEM: Final = "adk/state"  # the item with the state that is the session's own

T = TypeVar("T")


class SharedChange(Struct, omit_defaults=True):
    """A change of state that is not the session's own, until it is applied."""

    id: str
    app: dict[str, Any] = {}
    user: dict[str, Any] = {}
    is_default: bool = False  # it sets what is not set yet: the state came with an import


class SessionRecord(Struct, omit_defaults=True):
    """The times and the revision of a session."""

    marker: str  # another one after each event
    updated: float
    shared: SharedChange | None = None


def session_key(app: str, user: str, session: str) -> str:
    """Return the key of the conversation of a session."""
    return key_of("adk", app, user, session)


def metadata_of(app: str, user: str | None = None, session: str | None = None) -> dict[str, str]:
    """Return the metadata of a session; of fewer parts, those by which the sessions of a user or an app are found."""
    found = {"framework": "google-adk", "app_name": escape(app)}
    if user is not None:
        found["user_id"] = escape(user)
    return found if session is None else {**found, "session_id": escape(session)}


def encode_item(value: object) -> bytes:
    """Return a value as JSON in ASCII: so every text and every integer of a state can be kept."""
    return json.dumps(msgspec.to_builtins(value)).encode()


def decode_item(data: bytes, kind: type[T]) -> T:
    return msgspec.convert(json.loads(data), kind)


def _said(whole: Whole) -> Message | None:
    content = whole.get("content")
    if not isinstance(content, dict) or not content.get("parts"):
        return None
    try:
        message = Message.from_gemini(content)
    except InvalidMessage:  # nothing that Gemini's API says: it is kept all the same
        return None
    used = whole.get("usageMetadata")
    return message if not isinstance(used, dict) else replace(message, usage=_usage(used))


def _usage(used: dict[str, object]) -> Usage:
    def count(name: str) -> int:
        value = used.get(name)
        return value if isinstance(value, int) else 0

    return Usage(
        input_tokens=count("promptTokenCount"),
        output_tokens=count("candidatesTokenCount") + count("thoughtsTokenCount"),
        cache_read_tokens=count("cachedContentTokenCount"),
    )


EVENTS: Final = Keeper("adk", _said, inside=("content",))
