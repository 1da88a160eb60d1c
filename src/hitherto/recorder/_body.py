"""The body of a request as bytes: the position of its history, and the entries that a later body adds.

Clients send the whole history with every request, so a body mostly begins with the bytes of an earlier one, up to the
end of its last entry. Then only the rest has to be read: the new entries, and the fields behind them. Comparing bytes
costs next to nothing; reading JSON does not.

All functions here are pure. They return `None` for a body with anything in doubt: the caller then reads all of it.
"""

from secrets import token_hex

import msgspec
from msgspec import Raw, Struct

_BLANKS = b" \t\r\n"
_SAMPLE = 32  # bytes at the end of a prefix that are compared first: they differ where histories do
_SEARCH = 256  # bytes at the beginning of an array by which it is searched
_TWINS = 4  # how many places with the same bytes are tried
# A random entry, which stands for the entries that are not read again.
_STAND_IN = f'"{token_hex(16)}"'.encode()

_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.decode


class Body(Struct, frozen=True):
    """A request body with the position of its history."""

    data: bytes
    name: str  # of the field that holds the history
    start: int  # of the first entry
    end: int  # behind the last entry
    close: int  # the closing bracket of the list of entries

    @property
    def foot(self) -> bytes:
        """The bytes behind the entries."""
        return self.data[self.close :]

    def without_entries(self) -> dict[str, object]:
        """The fields of the request, with an empty history."""
        found: dict[str, object] = _decode(self.data[: self.start] + self.foot)
        return found

    def begins(self, data: bytes) -> bool:
        """Does a later body begin with the same bytes, up to the end of the last entry?"""
        end, sample = self.end, max(self.start, self.end - _SAMPLE)
        if len(data) <= end or data[sample:end] != self.data[sample:end]:
            return False
        return data.startswith(memoryview(self.data)[:end])


class Extension(Struct, frozen=True):
    """A body that extends an earlier one."""

    body: Body
    entries: list[dict[str, object]]  # that the earlier body does not have


def locate(data: bytes, name: str) -> Body | None:
    """Find the history in a body. None if its field `name` is no list of entries."""
    try:
        fields = _fields(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    entries = bytes(fields.get(name, b""))
    if entries[:1] != b"[":
        return None
    at = _position(data, entries, fields, name)
    return None if at is None else _body(data, name, at + 1, at + len(entries) - 1)


def read_extension(earlier: Body, data: bytes) -> Extension | None:
    """Read the entries that a body adds to an earlier one. None if it does not extend that one."""
    opening = b'{"%s":[%s' % (earlier.name.encode(), _STAND_IN)
    shift = earlier.end - len(opening)
    try:
        rest = bytes(_fields(opening + data[earlier.end :])[earlier.name])
        _, *entries = _decode(rest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    before = len(opening) - len(_STAND_IN) - 1  # the list begins there
    if not rest.startswith(b"[" + _STAND_IN) or not entries or not all(type(entry) is dict for entry in entries):
        return None  # another list of this name stands behind, for example
    body = _body(data, earlier.name, earlier.start, shift + before + len(rest) - 1)
    return None if body is None else Extension(body, entries)


def _position(data: bytes, entries: bytes, fields: dict[str, Raw], name: str) -> int | None:
    """The position of the list of entries.

    The same bytes may occur elsewhere too. So each candidate is tried: if the right bytes are replaced, the request has
    another value in this field, and the same values in all others.
    """
    at, wanted = -1, {**_as_bytes(fields), name: b"0"}
    for _ in range(_TWINS):
        at = data.find(entries[:_SEARCH], at + 1)
        while at >= 0 and not data.startswith(entries, at):
            at = data.find(entries[:_SEARCH], at + 1)
        if at < 0:
            return None
        without = _fields_without(data, at, at + len(entries))
        if without is not None and _as_bytes(without) == wanted:
            return at
    return None


def _fields_without(data: bytes, start: int, end: int) -> dict[str, Raw] | None:
    try:
        return _fields(data[:start] + b"0" + data[end:])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _as_bytes(fields: dict[str, Raw]) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in fields.items()}


def _body(data: bytes, name: str, start: int, close: int) -> Body | None:
    end = close
    while end > start and data[end - 1] in _BLANKS:
        end -= 1
    return Body(data, name, start, end, close) if data[end - 1 : end] == b"}" else None
