"""The body of a request, as bytes: where its history stands in it, and what a later body adds to it.

Clients send the whole history with every request, so a body mostly begins with the bytes of an earlier one, up to the
end of its last entry. Then only the rest has to be read: the new entries, and the fields behind them. Comparing bytes
costs next to nothing; reading JSON does not.

Everything here is pure. A body of which anything is in doubt is `None`: it has to be read as a whole.
"""

from secrets import token_hex

import msgspec
from msgspec import Raw, Struct

_BLANKS = b" \t\r\n"
_SAMPLE = 32  # bytes at the end of a prefix that are compared first: they differ where histories do
_SEARCH = 256  # bytes at the beginning of an array by which it is looked for
_TWINS = 4  # places where the same bytes are looked at
# An entry that nobody sends. It stands for those that are not read again.
_STAND_IN = f'"{token_hex(16)}"'.encode()

_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.decode


class Body(Struct, frozen=True):
    """A request body that holds a history."""

    data: bytes
    name: str  # of the field that has the history
    start: int  # of the first entry
    end: int  # of the last entry: where it is over
    close: int  # where the list of entries is closed

    @property
    def foot(self) -> bytes:
        """What stands behind the entries."""
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


class Grown(Struct, frozen=True):
    """A body that goes on where an earlier one ended."""

    body: Body
    entries: list[dict[str, object]]  # those that the earlier one does not have


def located(data: bytes, name: str) -> Body | None:
    """A body that is read for the first time; None if its field `name` is no list of entries."""
    try:
        fields = _fields(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    entries = bytes(fields.get(name, b""))
    if entries[:1] != b"[":
        return None
    at = _position(data, entries, fields, name)
    return None if at is None else _body(data, name, at + 1, at + len(entries) - 1)


def grown(earlier: Body, data: bytes) -> Grown | None:
    """A body that `earlier` begins, and what is new in it."""
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
    return None if body is None else Grown(body, entries)


def _position(data: bytes, entries: bytes, fields: dict[str, Raw], name: str) -> int | None:
    """Where the list of entries stands. The same bytes may stand elsewhere, too: without the right ones, the request
    has another value in this field and the same ones in all others."""
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
