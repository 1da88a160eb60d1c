"""JSON as text that is kept as it was written.

A provider's message is read back by the provider, which may see a difference where Python sees none: 1.0 and 1, 1E5
and 100000.0, an escaped letter and the letter. So a snapshot keeps the text, and values are read from it when they are
asked for. Only the space between the tokens is not kept: files are indented, and what is held in memory is not.

The form of the files is the one that Go's encoder gives: two spaces, and `<`, `>`, `&` and two line separators
escaped wherever they stand.

A text may come from anybody. Before anything is made of it, what it would become is counted: a few bytes can be a value
of a few hundred, and a decoder goes as deep as the text does.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

import msgspec

from ..errors import InvalidMessage

DEEPEST = 128  # as deep as a message may be, and what is around it
MOST_VALUES = 2_000_000  # in one text
_QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'  # a text; the last one may have no end
_STRING = re.compile(_QUOTED, re.DOTALL)
_VALUE = re.compile(rf'(?:[^"{{\[,]++|{_QUOTED})*+(?:[{{\[,]|\Z)', re.DOTALL)  # all up to the next value
_NO_BRACKETS = re.compile(r"[^{}\[\]]++")
_ESCAPED = {c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def read(text: str) -> object:
    """Parse strict JSON that every reader understands alike. Raises `InvalidMessage` otherwise."""
    check_bounds(text)
    try:
        value = _DECODER.decode(text)
        if not text.isascii():
            text.encode()
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise InvalidMessage("JSON holds half a surrogate pair", hint="it stands for no character") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidMessage):
            raise
        where = f" at character {error.pos:,}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidMessage(f"not JSON{where}", hint="it was cut off, or is something else") from None


def again(text: str) -> object:
    """Parse a text that `read` has accepted before, without checking it again. Any other text is parsed as by
    `read`."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return read(text)
    return found


def written(value: object, what: str) -> str:
    """Return a value as compact text. Raises `InvalidMessage` if it would not be read back equal."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"{what} cannot be written as JSON: {type(error).__name__}", hint=_PLAIN) from None
    if type(value) is not str and read(text) != value:  # a text always does
        raise InvalidMessage(f"{what} would not come back equal from JSON", hint=_PLAIN)
    return _escape(text)


def compact(text: str) -> str:
    """Remove the space between the tokens of JSON that was read before."""
    return _escape(msgspec.json.format(text, indent=-1))


def _escape(text: str) -> str:
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text


def indent(text: str) -> str:
    """Indent compact JSON by two spaces for each level. Empty objects and arrays stay on one line."""
    return msgspec.json.format(text, indent=2)


def object_of(fields: Iterable[tuple[str, str]]) -> str:
    """Compact JSON of an object from its names and their compact JSON, in this order."""
    return "{" + ",".join(f"{written(name, 'a name')}:{text}" for name, text in fields) + "}"


def parts(text: str) -> Iterator[tuple[str, str]]:
    """The names in a JSON object that was read before, each with the text of its value; for an array, the names are
    empty."""
    if text.lstrip().startswith("{"):
        named = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return ((name, _text_of(value)) for name, value in named.items())
    return (("", _text_of(value)) for value in msgspec.json.decode(text, type=list[msgspec.Raw]))


def _text_of(value: msgspec.Raw) -> str:
    return str(memoryview(value), "utf-8")


def check_bounds(text: str) -> None:
    """Raise `InvalidMessage` for a text with too many values or too deep nesting, before it is parsed."""
    if len(text) <= DEEPEST:
        return
    # Each value but the first has a mark before it, and at most a name and a text, of two quotes each. What stands in a
    # text costs nothing, so that it is looked at more closely where it matters.
    marks = text.count("{") + text.count("[") + text.count(",")
    quotes = text.count('"') - text.count('\\"')
    if quotes > 4 * MOST_VALUES or (marks > MOST_VALUES and _values(text) > MOST_VALUES):
        raise InvalidMessage(f"JSON holds more than {MOST_VALUES:,} values")
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise InvalidMessage(f"JSON is nested more than {DEEPEST} deep")


def _values(text: str) -> int:
    """Count the values, up to the limit."""
    return sum(1 for _ in islice(_VALUE.finditer(text), MOST_VALUES + 2)) - 1


def _depth(text: str) -> int:
    brackets = _NO_BRACKETS.sub("", _STRING.sub("", text))
    if len(brackets) > 2 * MOST_VALUES:
        return len(brackets)  # they do not even match
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse duplicate names: readers differ in which of the two they use."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidMessage("a JSON object has the same name twice")
    return found


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidMessage("JSON holds a number that is too large")
    return value


def _constant(name: str) -> object:
    raise InvalidMessage(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_constant)
_PLAIN = "pass plain JSON: dict with text for keys, list, str, int, finite float, bool, None"
