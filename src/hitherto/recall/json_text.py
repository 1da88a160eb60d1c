"""Changing one member of a JSON file that a person may have written, and leaving every other character as it is.

Some programs take comments and trailing commas in their JSON, so that the file cannot be read and written anew without
losing these. The text is scanned for the places of the members of an object, and changed there alone. A file that is no
JSON, even so, raises `ValueError`, and so does an object that has a name twice: which of the two counts depends on the
reader.
"""

import json
import re
from typing import Any, NamedTuple

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_NOTE = re.compile(r"[ \t]*(?://[^\r\n]*|/\*.*?\*/)", re.DOTALL)
_SCALAR = re.compile(r"[-+.\w]+")
_DEEPEST = 200


class Member(NamedTuple):
    """A member of an object: its name, and where it begins, where its value begins, and where it ends."""

    name: str
    start: int
    value: int
    end: int


class Object(NamedTuple):
    """An object in a text: where it begins and ends, and its members."""

    start: int
    end: int
    members: list[Member]

    def find(self, name: str) -> Member | None:
        """Return the member of this name."""
        return next((member for member in self.members if member.name == name), None)


def put(text: str, path: tuple[str, str], value: Any) -> str:
    """Return the text with a value at this path, below the whole."""
    outer, name = path
    whole = _whole(text or "{}\n")
    text = text or "{}\n"
    step = _step(text)
    there = whole.find(outer)
    if there is None:
        return _insert(text, whole, outer, {name: value}, step, 1)
    inner = _object(text, there.value)
    old = inner.find(name)
    if old is None:
        return _insert(text, inner, name, value, step, 2)
    if _equals(text[old.value : old.end], value):
        return text
    return text[: old.value] + _written(text, value, step, 2) + text[old.end :]


def _equals(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except ValueError:  # with comments
        return False


def take(text: str, path: tuple[str, str]) -> str:
    """Return the text without the value at this path, and without the object around it if nothing else is in it."""
    outer, name = path
    if not text.strip():
        return text
    whole = _whole(text)
    there = whole.find(outer)
    inner = None if there is None else _object(text, there.value)
    if inner is None or inner.find(name) is None:
        return text
    left = _remove(text[inner.start : inner.end], _object(text[inner.start : inner.end], 0), name)
    return _remove(text, whole, outer) if left == "{}" else text[: inner.start] + left + text[inner.end :]


def check(text: str) -> None:
    """Raise `ValueError` if the text is not one object."""
    _whole(text)


def _whole(text: str) -> Object:
    """Return the object that the whole text is."""
    found = _object(text, _skip(text, 0))
    if _skip(text, found.end) != len(text):
        raise ValueError("there is something behind the end")
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _object(text: str, at: int) -> Object:
    if text[at : at + 1] != "{":
        raise ValueError("an object is expected")
    end, members = _members(text, at, 0)
    names = [member.name for member in members]
    if len({*names}) < len(names):
        raise ValueError("a name occurs twice")
    return Object(at, end, members)


def _members(text: str, at: int, depth: int) -> tuple[int, list[Member]]:
    """Return the end of the object that begins here, and its members."""
    members: list[Member] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        name = _STRING.match(text, at)
        if name is None:
            raise ValueError("a name is expected")
        colon = _skip(text, name.end())
        if text[colon : colon + 1] != ":":
            raise ValueError("a colon is expected")
        value = _skip(text, colon + 1)
        end = _value(text, value, depth + 1)
        members.append(Member(json.loads(name[0]), name.start(), value, end))
        at = _comma(text, end, "}")
    return at + 1, members


def _comma(text: str, at: int, closing: str) -> int:
    """Return where the next member or the end is."""
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != closing:
        raise ValueError("a comma or an end is expected")
    return at


def _value(text: str, at: int, depth: int) -> int:
    """Return the end of the value that begins here."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    first = text[at : at + 1]
    if first == "{":
        return _members(text, at, depth)[0]
    if first == "[":
        at = _skip(text, at + 1)
        while text[at : at + 1] != "]":
            at = _comma(text, _value(text, at, depth + 1), "]")
        return at + 1
    found = (_STRING if first == '"' else _SCALAR).match(text, at)
    if found is None:
        raise ValueError("a value is expected")
    json.loads(found[0])
    return found.end()


def _step(text: str) -> str:
    """Return the indentation of one level: that of the first line that has one, else two spaces."""
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _written(text: str, value: Any, step: str, depth: int) -> str:
    lines = json.dumps(value, indent=step, ensure_ascii=False).split("\n")
    return (_newline(text) + step * depth).join(lines)


def _insert(text: str, into: Object, name: str, value: Any, step: str, depth: int) -> str:
    """Add a member behind the last one."""
    member = f"{json.dumps(name)}: {_written(text, value, step, depth)}"
    line = _newline(text) + step * depth
    if not into.members:
        close = _newline(text) + step * (depth - 1)
        inside = text[into.start + 1 : into.end - 1]
        kept = inside.rstrip() if inside.strip() else ""
        return f"{text[: into.start + 1]}{kept}{line}{member}{close}{text[into.end - 1 :]}"
    last = into.members[-1].end
    comma = _skip(text, last)
    if text[comma : comma + 1] == ",":  # it stays a trailing comma
        return f"{text[: comma + 1]}{line}{member},{text[comma + 1 :]}"
    note = _NOTE.match(text, last)  # a comment on the line of the last member stays there
    end = last if note is None else note.end()
    return f"{text[:last]},{text[last:end]}{line}{member}{text[end:]}"


def _remove(text: str, of: Object, name: str) -> str:
    """Remove a member, with one comma and the white space before it."""
    place = next(n for n, member in enumerate(of.members) if member.name == name)
    member = of.members[place]
    start = len(text[: member.start].rstrip())
    following = _skip(text, member.end)
    if text[following : following + 1] == ",":
        end = following + 1
    elif place > 0:  # the last one: the comma before it goes
        comma = _skip(text, of.members[place - 1].end)
        return text[:comma] + text[comma + 1 : start] + text[member.end :]
    else:
        end = member.end
    if len(of.members) == 1 and not (text[of.start + 1 : start] + text[end : of.end - 1]).strip():
        return text[: of.start + 1] + text[of.end - 1 :]
    return text[:start] + text[end:]
