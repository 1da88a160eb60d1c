"""Reading JSON that somebody else wrote.

What a provider sends, and what a user hands back, may be anything: a null where a list is due, a number where text is
due, nesting without end. The functions here take what is there if it is of the right kind, and say `InvalidMessage` if
it is not, so that no dialect has to guard every step. Absent and null are the same: providers and SDKs write both.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import msgspec

from ..attachment import Attachment
from ..errors import InvalidMessage
from ..model import check_json

_DEEPEST = 100  # as for what a message may hold
_URL_SAFE = str.maketrans("-_", "+/")


def entry(value: object, what: str) -> dict[str, object]:
    """A JSON object that can be kept as it is."""
    found = opened(value, what)
    check_json(found, what)
    return found


def opened(value: object, what: str) -> dict[str, object]:
    """A JSON object; what is in it is still to be looked at."""
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"{what} is a {type(value).__name__}, not a JSON object")
    return value if type(value) is dict else dict(value)


def text(raw: Mapping[str, object], name: str) -> str:
    """A text; empty if there is none."""
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, Attachment) and value.text:
        return value.read().decode()
    if not isinstance(value, str):
        raise InvalidMessage(f"{_named(name)} is a {type(value).__name__}, not text")
    return value


def identity(raw: Mapping[str, object], name: str) -> str | None:
    """An id, if there is one. A wrong one is no reason to lose an answer."""
    value = raw.get(name)
    return value if isinstance(value, str) and value else None


def number(raw: Mapping[str, object], name: str) -> int:
    """A count; 0 if there is none that makes sense. A wrong count is no reason to lose an answer."""
    value = raw.get(name)
    return value if type(value) is int and 0 <= value < 2**63 else 0


def inner(raw: Mapping[str, object], name: str) -> dict[str, object]:
    """A JSON object within; empty if there is none."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidMessage(f"{_named(name)} is a {type(value).__name__}, not a JSON object")
    return value


def entries(raw: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """A list of JSON objects; empty if there is none."""
    value = raw.get(name)
    if value is None:
        return []
    if not is_entries(value):
        raise InvalidMessage(f"{_named(name)} is not a list of JSON objects")
    return value


def is_entries(value: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def encoded(value: object) -> str:
    """Any JSON as text, for a block."""
    try:
        return msgspec.json.encode(copied(value)).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"not JSON: {type(error).__name__}") from None


def parsed(content: object) -> object:
    """The JSON that a text holds, or None if it holds none. A text `null` is taken for none too."""
    if not isinstance(content, (str, bytes)):
        return None
    try:
        found: object = msgspec.json.decode(content)
        check_json(found, "JSON")
    except (ValueError, RecursionError, OverflowError):
        return None
    return found


def from_base64(data: object) -> bytes | None:
    """The bytes that base64 stands for, in either alphabet, padded or not; None if it is no base64."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, Attachment) and data.text:
        data = data.read().decode()
    if not isinstance(data, str):
        return None
    plain = data.translate(_URL_SAFE).rstrip("=")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def to_base64(data: bytes) -> str:
    return b64encode(data).decode()


def copied(value: object, depth: int = 0) -> object:
    """A deep copy. A long text that was left in the store is read."""
    if depth > _DEEPEST:
        raise InvalidMessage(f"JSON is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return {name: copied(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item, depth + 1) for item in value]
    return value.load() if isinstance(value, Attachment) else value


def copied_entry(raw: Mapping[str, object]) -> dict[str, object]:
    return {name: copied(item, 1) for name, item in raw.items()}


def merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Both, those above winning; objects that both have are merged themselves, one level deep."""
    found = dict(below)
    for name, value in above.items():
        old = found.get(name)
        found[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return found


def some(raw: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    """The fields of these names that say something, copied."""
    return {name: copied(raw[name]) for name in names if raw.get(name) is not None}


def _named(name: str) -> str:
    return f"the field {name}"
