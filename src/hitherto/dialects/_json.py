"""Reading JSON that somebody else wrote.

What a provider sends, and what a user hands back, may be anything: a null where a list is due, a number where text is
due, nesting without end. The functions here take what is there if it is of the right kind, and say `InvalidMessage` if
it is not, so that no dialect has to guard every step. Absent and null are the same: providers and SDKs write both.

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

_DEEPEST = 200  # levels of nesting that are taken apart; our functions need about two stack frames for each
_LEAVES = frozenset({str, int, float, bool, bytes, type(None), Attachment})
_URL_SAFE = str.maketrans("-_", "+/")
_MALFORMED = (ValueError, RecursionError, OverflowError)  # of either decoder


def decode(data: bytes | str) -> object:
    """The value of a JSON text. Half of a surrogate pair is read too: a stream may cut a pair in two. ValueError if it
    is no JSON, or nested without end."""
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
    """The same for a JSON object."""
    found = decode(data)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # as for anything else that is not what it should be
    return found


def written(value: object, *, sort: bool = False) -> bytes:
    """The JSON text of any JSON value, in ASCII, so that half of a surrogate pair can be written too."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, sort_keys=sort).encode()
    except (TypeError, *_MALFORMED) as error:
        raise InvalidMessage(f"not JSON: {type(error).__name__}") from None


def join_pieces(pieces: Iterable[str]) -> str:
    """The text that came in these pieces. A surrogate pair that was cut in two is whole again."""
    found = "".join(pieces)
    if encodable(found):
        return found
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class Pieces:
    """Text that is passed on as it comes. The first half of a surrogate pair waits for the second one."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        if not self._half and encodable(piece):
            return piece
        text = self._half + piece
        self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return str(replaced_surrogates(text[: len(text) - len(self._half)]))

    def rest(self) -> str:
        """All has come: what stands for a half whose second half did not."""
        return str(replaced_surrogates(self._half))


def replaced_surrogates(value: object) -> object:
    """A copy in which each half of a surrogate pair is the replacement character U+FFFD."""
    if isinstance(value, str):
        if encodable(value):
            return value
        return join_pieces((value,)).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {replaced_surrogates(name): replaced_surrogates(item) for name, item in value.items()}
    return [replaced_surrogates(item) for item in value] if isinstance(value, (list, tuple)) else value


def entry(value: object, what: str) -> dict[str, object]:
    """A JSON object, all of which can be taken apart."""
    found = as_object(value, what)
    _check(found, what)
    return found


def _check(value: object, what: str, depth: int = 0) -> None:
    """Refuse what is no JSON, and nesting without end."""
    kind = type(value)
    if kind in _LEAVES:
        return
    if depth == _DEEPEST:
        raise InvalidMessage(f"{what} is nested more than {_DEEPEST} deep", hint="flatten it, or pass it as JSON text")
    if kind is list:
        for item in value:  # type: ignore[attr-defined]  # kind is list
            _check(item, what, depth + 1)
    elif kind is dict:
        for name, item in value.items():  # type: ignore[attr-defined]  # kind is dict
            if type(name) is not str:
                raise InvalidMessage(f"{what} has a key that is a {type(name).__name__}", hint="keys are strings")
            _check(item, what, depth + 1)
    else:
        raise InvalidMessage(f"{what} holds a {kind.__name__}, which is no JSON", hint="pass plain JSON")


def as_object(value: object, what: str) -> dict[str, object]:
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
        raise InvalidMessage(f"{_field_label(name)} is a {type(value).__name__}, not text")
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
        raise InvalidMessage(f"{_field_label(name)} is a {type(value).__name__}, not a JSON object")
    return value


def entries(raw: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """A list of JSON objects; empty if there is none."""
    value = raw.get(name)
    if value is None:
        return []
    if not is_entries(value):
        raise InvalidMessage(f"{_field_label(name)} is not a list of JSON objects")
    return value


def is_entries(value: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def encode(value: object) -> str:
    """Any JSON as text, for a block."""
    plain = deep_copy(value)
    try:
        return msgspec.json.encode(plain).decode()
    except (TypeError, *_MALFORMED):
        return written(plain).decode()


def parse_json(content: object) -> object:
    """The JSON that a text holds, or None if it holds none. A text `null` is taken for none too."""
    if not isinstance(content, (str, bytes)):
        return None
    try:
        found = decode(content)
        _check(found, "JSON")
    except ValueError:  # InvalidMessage is one
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


def deep_copy(value: object, depth: int = 0) -> object:
    """A deep copy. A long text that was left in the store is read."""
    if depth > _DEEPEST:
        raise InvalidMessage(f"JSON is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return {name: deep_copy(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [deep_copy(item, depth + 1) for item in value]
    return value.load() if isinstance(value, Attachment) else value


def copy_entry(raw: Mapping[str, object]) -> dict[str, object]:
    return {name: deep_copy(item, 1) for name, item in raw.items()}


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Both, those above winning; objects that both have are merged themselves, one level deep."""
    found = dict(below)
    for name, value in above.items():
        old = found.get(name)
        found[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return found


def some(raw: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    """The fields of these names that say something, copied."""
    return {name: deep_copy(raw[name]) for name in names if raw.get(name) is not None}


def _field_label(name: str) -> str:
    return f"the field {name}"
