"""Reads JSON from providers and callers without trusting its shape.

JSON from a provider or from a user may have any shape: a null in place of a list, a number in place of text, endless
nesting. The functions here return a value of the expected type or raise `InvalidMessage`, so that the dialects need no
check at every step. An absent field and a null one are the same: providers and SDKs write both.

JSON may hold more than a store can: integers of any length, deep nesting, halves of surrogate pairs. All of that is
read here; `_lossless` makes messages of it that can be kept.
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

import msgspec

from ..attachment import Attachment
from ..errors import InvalidMessage
from ..model import encodable

_DEEPEST = 200  # levels of nesting that are parsed; our functions need about two stack frames for each
_VALUES = frozenset({str, int, float, bool, bytes, type(None)})  # nothing is inside them, and nothing to load
_LEAVES = _VALUES | {Attachment}
_URL_SAFE = str.maketrans("-_", "+/")
_MALFORMED = (ValueError, RecursionError, OverflowError)  # of either decoder


def decode(data: bytes | str) -> object:
    """Decode a JSON text. Half of a surrogate pair is accepted: a stream may cut a pair in two. Raises ValueError if
    the text is not JSON, or is nested too deeply."""
    try:
        found: object = msgspec.json.decode(data)
    except _MALFORMED:
        try:
            found = json.loads(data, parse_constant=_refuse)
        except _MALFORMED as error:
            raise ValueError(f"no JSON: {type(error).__name__}") from None
    return found


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def decode_object(data: bytes | str) -> dict[str, object]:
    """Decode a JSON text that holds an object."""
    found = decode(data)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # as for anything else that is not what it should be
    return found


def written(value: object, *, sort: bool = False) -> bytes:
    """Return the JSON text of a value in ASCII, so that half of a surrogate pair can be written too."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, sort_keys=sort).encode()
    except (TypeError, *_MALFORMED) as error:
        raise InvalidMessage(f"not JSON: {type(error).__name__}") from None


def join_pieces(pieces: Iterable[str]) -> str:
    """Join the pieces of a text, and the halves of a surrogate pair that was cut in two."""
    found = "".join(pieces)
    if encodable(found):
        return found
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class Pieces:
    """Passes text on as it arrives. Holds the first half of a surrogate pair back until the second one comes."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        if not self._half and encodable(piece):
            return piece
        text = self._half + piece
        self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return str(replaced_surrogates(text[: len(text) - len(self._half)]))

    def rest(self) -> str:
        """Return the replacement character for a half pair that was never completed, else an empty text."""
        return str(replaced_surrogates(self._half))


def replaced_surrogates(value: object) -> object:
    """Return a copy in which U+FFFD replaces each half of a surrogate pair."""
    if isinstance(value, str):
        if encodable(value):
            return value
        return join_pieces((value,)).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {replaced_surrogates(name): replaced_surrogates(item) for name, item in value.items()}
    return [replaced_surrogates(item) for item in value] if isinstance(value, (list, tuple)) else value


def entry(value: object, what: str) -> dict[str, object]:
    """Check that a value is a JSON object with nothing but JSON in it, and return it."""
    found = as_object(value, what)
    _check(found, what)
    return found


def _check(value: object, what: str, depth: int = 0) -> None:
    """Raise `InvalidMessage` for a value that is not JSON, or is nested too deeply."""
    kind = type(value)
    if kind not in (list, dict):
        if kind not in _LEAVES:
            raise InvalidMessage(f"{what} holds a {kind.__name__}, which is no JSON", hint="pass plain JSON")
        return
    if depth == _DEEPEST:
        raise InvalidMessage(f"{what} is nested more than {_DEEPEST} deep", hint="flatten it, or pass it as JSON text")
    if kind is dict:
        for name in value:  # type: ignore[attr-defined]  # kind is dict
            if type(name) is not str:
                raise InvalidMessage(f"{what} has a key that is a {type(name).__name__}", hint="keys are strings")
    items: Iterable[object] = value if kind is list else value.values()  # type: ignore[assignment,attr-defined]  # as above
    for item in items:
        if type(item) not in _LEAVES:  # here too: most items are leaves, and a call takes longer than this
            _check(item, what, depth + 1)


def as_object(value: object, what: str) -> dict[str, object]:
    """Return a value as a JSON object. Its fields are not checked."""
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"{what} is a {type(value).__name__}, not a JSON object")
    return value if type(value) is dict else dict(value)


def text(raw: Mapping[str, object], name: str) -> str:
    """Return a field that holds text, or an empty text if the field is absent."""
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, Attachment) and value.text:
        return value.read().decode()
    if not isinstance(value, str):
        raise InvalidMessage(f"{_field_label(name)} is a {type(value).__name__}, not text")
    return value


def identity(raw: Mapping[str, object], name: str) -> str | None:
    """Return an id, or None if it is absent or not text: a wrong id is no reason to lose an answer."""
    value = raw.get(name)
    return value if isinstance(value, str) and value else None


def number(raw: Mapping[str, object], name: str) -> int:
    """Return a count, or 0 if it is absent or makes no sense: a wrong count is no reason to lose an answer."""
    value = raw.get(name)
    return value if type(value) is int and 0 <= value < 2**63 else 0


def inner(raw: Mapping[str, object], name: str) -> dict[str, object]:
    """Return a field that holds a JSON object, or an empty one if the field is absent."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidMessage(f"{_field_label(name)} is a {type(value).__name__}, not a JSON object")
    return value


def entries(raw: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """Return a field that holds a list of JSON objects, or an empty list if the field is absent."""
    value = raw.get(name)
    if value is None:
        return []
    if not is_entries(value):
        raise InvalidMessage(f"{_field_label(name)} is not a list of JSON objects")
    return value


def is_entries(value: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def encode(value: object) -> str:
    """Encode any JSON value as the text of a block."""
    plain = deep_copy(value)
    try:
        return msgspec.json.encode(plain).decode()
    except (TypeError, *_MALFORMED):
        return written(plain).decode()


def parse_json(content: object) -> object:
    """Parse a text as JSON. Returns None if it is not JSON, and also for the text `null`."""
    if not isinstance(content, (str, bytes)):
        return None
    try:
        found = decode(content)
        _check(found, "JSON")
    except ValueError:  # InvalidMessage is one
        return None
    return found


def from_base64(data: object) -> bytes | None:
    """Decode base64 in either alphabet, padded or not. Returns None if it is not base64."""
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


def deep_copy(value: object, depth: int = 0) -> object:
    """Return a deep copy of a JSON value. Long texts that are still in the store are loaded."""
    if depth > _DEEPEST:
        raise InvalidMessage(f"JSON is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return {name: item if type(item) in _VALUES else deep_copy(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [item if type(item) in _VALUES else deep_copy(item, depth + 1) for item in value]
    return value.load() if isinstance(value, Attachment) else value


def copy_entry(raw: Mapping[str, object]) -> dict[str, object]:
    return {name: deep_copy(item, 1) for name, item in raw.items()}


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merge two objects; the values of `above` win. Objects that both have are merged one level deep."""
    found = dict(below)
    for name, value in above.items():
        old = found.get(name)
        found[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return found


def some(raw: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    """Return copies of the named fields that are present and not null."""
    return {name: deep_copy(raw[name]) for name in names if raw.get(name) is not None}


def _field_label(name: str) -> str:
    return f"the field {name}"
