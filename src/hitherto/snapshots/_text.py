"""JSON as text that is kept as it was written.

A provider's message is read back by the provider, which may see a difference where Python sees none: 1.0 and 1, 1E5
and 100000.0, an escaped letter and the letter. So a snapshot keeps the text, and values are read from it when they are
asked for. Only the space between the tokens is not kept: files are indented, and what is held in memory is not.

The form of the files is the one that Go's encoder gives: two spaces, and `<`, `>`, `&` and two line separators
escaped wherever they stand.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator

from ..errors import InvalidMessage

DEEPEST = 128  # as deep as a message may be, and what is around it
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\n\r]*")
_ESCAPED = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def read(text: str) -> object:
    """The value, if the text is strict JSON that every reader understands alike; else `InvalidMessage`."""
    _check_depth(text)
    try:
        value = _DECODER.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise InvalidMessage("JSON holds half a surrogate pair", hint="it stands for no character") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidMessage):
            raise
        where = f" at character {error.pos:,}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidMessage(f"not JSON{where}", hint="it was cut off, or is something else") from None


def written(value: object, what: str) -> str:
    """The value as compact text; `InvalidMessage` for what would not come back equal."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"{what} cannot be written as JSON: {type(error).__name__}", hint=_PLAIN) from None
    if read(text) != value:
        raise InvalidMessage(f"{what} would not come back equal from JSON", hint=_PLAIN)
    return text.translate(_ESCAPED)


def compact(text: str) -> str:
    """JSON without the space between its tokens."""
    return "".join(_TOKEN.findall(text)).translate(_ESCAPED)


def indented(text: str) -> str:
    """Compact JSON, two spaces for each level; what is empty stays on its line."""
    out: list[str] = []
    depth = 0
    before = ""
    for token in _TOKEN.findall(text):
        depth -= token in "}]"
        if before and before in "{[,":
            out.append("" if before + token in ("{}", "[]") else "\n" + "  " * depth)
        elif token in "}]":
            out.append("\n" + "  " * depth)
        out.append(": " if token == ":" else token)
        depth += token in "{["
        before = token
    return "".join(out)


def object_of(fields: Iterable[tuple[str, str]]) -> str:
    """Compact JSON of an object from its names and their compact JSON, in this order."""
    return "{" + ",".join(f"{written(name, 'a name')}:{text}" for name, text in fields) + "}"


def parts(text: str) -> Iterator[tuple[str, str]]:
    """The names in a JSON object that was read before, each with the text of its value; for an array, the names are
    empty."""
    at = _past_space(text, 0) + 1
    named = text[at - 1] == "{"
    while text[at := _past_space(text, at)] not in "}]":
        name = ""
        if named:
            name, at = _DECODER.raw_decode(text, at)
            at = _past_space(text, _past_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield name, text[at:end]
        at = _past_space(text, end)
        at += text[at] == ","


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _check_depth(text: str) -> None:
    """Before anything is read: a decoder goes as deep as the text does."""
    depth = 0
    for token in _TOKEN.findall(text):
        depth += (token in "{[") - (token in "}]")
        if depth > DEEPEST:
            raise InvalidMessage(f"JSON is nested more than {DEEPEST} deep")


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Readers differ in which of two equal names they believe, so that neither is."""
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
