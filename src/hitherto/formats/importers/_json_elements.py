"""Reads a large JSON array one element at a time, with one element in memory.

An export of hundreds of megabytes is one array of conversations. A regular expression finds the brackets outside of
texts, and msgspec decodes each element. A file that is no array is one element: the whole value.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from typing import IO

import msgspec

from ...errors import Damaged, HithertoError, InvalidMessage
from ...snapshots import Unreadable
from .._files import Files
from .._importer import NO_UTF8, decode_json, is_utf8
from ._fields import Fields, fields

MAX_ELEMENT_BYTES = 1 << 27
_PIECE = 1 << 20
# Up to the next bracket outside of texts; or to a quotation mark, which begins a text without an end; or to the end.
_MARK = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+(["\[\]{}])?', re.DOTALL)
_TEXT_END = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_QUOTE = 0x22
_BLANK = b" \t\r\n,"


def texts_in(files: Files, name: str) -> Iterator[tuple[str, bytes | bytearray | Unreadable]]:
    """Yield the JSON text of each value in a file with one array, or of the one value of any other file, and where it
    stands. One that is too long is `Unreadable`."""
    label = files.label(name)
    try:
        with files.open(name) as file:
            for number, found in enumerate(elements(file), 1):
                place = f"{label}, entry {number}"
                too_long = Unreadable(place, f"it has more than {MAX_ELEMENT_BYTES:,} bytes")
                yield place, too_long if found is None else found
                if found is not None and not is_utf8(found):
                    yield place, Unreadable(place, NO_UTF8)
    except HithertoError as error:
        yield label, Unreadable(f"the rest of {label}", str(error))


def values_in(files: Files, name: str) -> Iterator[tuple[str, object]]:
    """Yield the same values, decoded. One that cannot be read is `Unreadable`."""
    for place, found in texts_in(files, name):
        yield place, found if isinstance(found, Unreadable) else _value(found, place)


def objects_in(files: Files, name: str) -> Iterator[tuple[str, Fields | Unreadable]]:
    """Yield the same values. One that is no object is `Unreadable`."""
    for place, value in values_in(files, name):
        if isinstance(value, dict | Unreadable):
            yield place, value
        else:
            yield place, Unreadable(place, "it is no object")


def _value(found: bytes | bytearray, place: str) -> object:
    try:
        return decode_json(found)
    except InvalidMessage as error:
        return Unreadable(place, str(error))


class LazyObjects:
    """The fields of a JSON object of objects, each decoded when it is asked for. A million of them need little more
    memory than their text."""

    def __init__(self, found: Mapping[str, object]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __getitem__(self, name: str) -> Fields:
        value = self._found[name]
        try:
            return fields(decode_json(bytes(value)) if isinstance(value, msgspec.Raw) else value)
        except InvalidMessage:
            return {}


def decode_lazily(found: bytes | bytearray, name: str) -> tuple[Fields, LazyObjects | None]:
    """Decode an object, and the objects in one of its fields lazily; None if that field holds no object. Raises
    `InvalidMessage`."""
    try:
        raw = msgspec.json.decode(found, type=dict[str, msgspec.Raw])
        body = {field: decode_json(bytes(value)) for field, value in raw.items() if field != name}
        inner: object = msgspec.json.decode(raw[name], type=dict[str, msgspec.Raw]) if name in raw else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidMessage):
        body = fields(decode_json(found))
        inner = body.pop(name, None)
    return body, LazyObjects(inner) if isinstance(inner, dict) else None


def elements(file: IO[bytes], most: int | None = None) -> Iterator[bytes | bytearray | None]:
    """Yield the JSON text of each element, and None in the place of one of more than `most` bytes, by default
    `MAX_ELEMENT_BYTES`. An array that follows the first one, as in files that were put together, is read as well.
    Raises `Damaged` at the end of a file that was cut off, after its complete elements, and for anything else behind an
    array."""
    most = MAX_ELEMENT_BYTES if most is None else most
    first = file.read(_PIECE).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not first.startswith(b"["):
        yield from _whole(file, first, most)
        return
    while first.startswith(b"["):
        first = _skip_blank(file, (yield from _elements(file, first[1:], most)))
    if first:
        raise Damaged("it goes on after the end of its list, with something else", hint="split the file, or mend it")


def _whole(file: IO[bytes], first: bytes, most: int) -> Iterator[bytes | bytearray | None]:
    found = bytearray(first)
    while len(found) <= most and (piece := file.read(_PIECE)):
        found += piece
    if len(found) > most:
        yield None
    elif found.strip():
        yield found


def _elements(file: IO[bytes], rest: bytes, most: int) -> Generator[bytes | bytearray | None, None, bytes]:
    """Yield the elements of an array, and return what was read behind it."""
    kept = bytearray()  # the beginning of the present element; it grows in its place, and is let go of when it is whole
    size = depth = 0
    while True:
        begin = at = 0
        for mark in _MARK.finditer(rest):
            at = mark.end()
            if mark.lastindex is None:
                break
            kind = rest[at - 1]
            if kind == _QUOTE:
                at -= 1
                break
            if kind in b"[{":
                if depth == 0:  # what stands before it are values that are no objects
                    if found := (kept + rest[begin : at - 1]).strip(_BLANK):
                        yield found
                    begin, size, kept = at - 1, 0, bytearray()
                depth += 1
            else:
                depth -= 1
                if depth <= 0:
                    end = at - 1 if depth < 0 else at
                    found, is_whole, kept = kept, size + end - begin <= most, bytearray()
                    found += rest[begin:end]
                    if depth == 0 or (found := found.strip(_BLANK)):  # an object begins and ends with its brackets
                        yield found if is_whole else None
                    begin, size = end, 0
                if depth < 0:
                    return rest[at:]
        size += at - begin
        if size <= most:
            kept += rest[begin:at]
        else:
            kept = bytearray(b"{")  # left out, but something was there
        rest = rest[at:]
        if len(rest) > most:
            rest = _skip_text(file, rest[1:])
            kept, size = bytearray(b"{"), most + 1
        piece = file.read(max(_PIECE, len(rest)))
        if not piece:
            raise Damaged("the file was cut off: its list has no end", hint="export it again")
        rest += piece


def _skip_blank(file: IO[bytes], rest: bytes) -> bytes:
    """Read on to something that is not blank. Returns what was read from there on; nothing at the end of the file."""
    while not (rest := rest.lstrip(b" \t\r\n\0")) and (rest := file.read(_PIECE)):  # a crash may leave NULs
        pass
    return rest


def _skip_text(file: IO[bytes], rest: bytes) -> bytes:
    """Read on to the end of a text. Returns what was read beyond it."""
    while (end := _TEXT_END.match(rest)) is None:
        escape = rest[-1:] if (len(rest) - len(rest.rstrip(b"\\"))) % 2 else b""
        piece = file.read(_PIECE)
        if not piece:
            return b""
        rest = escape + piece
    return rest[end.end() :]
