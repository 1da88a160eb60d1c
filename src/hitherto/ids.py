"""Names: message ids and the numbers behind them, tokens, conversation ids.

A message has a **number**, the integer under which backends keep it, and an **id**, the six characters people see and
type. The id is a permutation of the number, keyed by the workspace's seed, so looking a message up by its id costs no
index. Neighbours land a golden section apart: the ids of one conversation have little in common, and a few characters
are enough to tell them.

Numbers are dealt in **runs** of 32. Along one branch, a message's number is its parent's plus one until the run is
full; a fork, or a full run, starts a new run above all that were ever used. So a path through the tree is a few dozen
messages per range read, wherever the branch came from; what is written last lies together at the end; and no number,
hence no id, is ever given twice. The rule every backend may rely on: *a message whose number is not the first of its
run has the number before it as its parent.*

Ids are drawn from 57 characters that are hard to confuse (no 0 O 1 l I). Where six characters are crowded (past about
a billion runs) two more are put in front.
"""

import os
import re
from functools import cache, cached_property

from .errors import Damaged, InvalidID, NotFound

RUN = 32  # messages in a run; a power of two, part of the file format

ALPHABET = "23456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
_PAIR = len(ALPHABET) ** 2
_SHORT = _PAIR**3  # how many ids have six characters
LIMIT = _SHORT * (1 + _PAIR)  # numbers stay below this (46 bits)

_SHAPE = re.compile(r"(?:[0-9A-Za-z]{2})?[0-9A-Za-z]{6}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@cache
def _pairs() -> list[str]:
    return [a + b for a in ALPHABET for b in ALPHABET]


def _digits(place: int) -> tuple[int, int, int]:
    """A place below `_SHORT` as its three pairs of characters."""
    high, z = divmod(place, _PAIR)
    return high // _PAIR, high % _PAIR, z


class Names:
    """The ids of one workspace: `id(number)` and back with `number(id)`."""

    def __init__(self, seed: bytes) -> None:
        """`seed` is 16 random bytes, made once with the workspace and never changed."""
        word = int.from_bytes(seed[:16], "little")
        step = _SHORT * 618_034 // 1_000_000 + word % (_SHORT // 1000)
        while step % 3 == 0 or step % 19 == 0:  # 57 = 3 * 19: no common factor, so every number has its own id
            step += 1
        self._step, self._back, self._start = step, pow(step, -1, _SHORT), (word >> 64) % _SHORT

    @cached_property
    def _index(self) -> dict[str, int]:
        return {pair: n for n, pair in enumerate(_pairs())}

    def id(self, number: int) -> str:
        """The id of a message number."""
        if not 0 <= number < _SHORT:
            more, number = divmod(number, _SHORT)
            if not 0 < more <= len(_pairs()):
                raise Damaged("a stored message has a number that cannot be")
            return _pairs()[more - 1] + self.id(number)
        rest = (number * self._step + self._start) % _SHORT
        high = rest // _PAIR
        pairs = _pairs()
        return pairs[high // _PAIR] + pairs[high % _PAIR] + pairs[rest % _PAIR]

    def number(self, id: str) -> int:
        """The number behind an id. `InvalidID` if it has not the shape of one, `NotFound` if no message can have it."""
        check_message_id(id)
        index, front, six = self._index, id[:-6], id[-6:]
        try:
            more = index[front] + 1 if front else 0
            x, y, z = index[six[:2]], index[six[2:4]], index[six[4:]]
        except KeyError:
            raise NotFound("message", [id]) from None
        place = (x * _PAIR + y) * _PAIR + z
        return more * _SHORT + (place - self._start) * self._back % _SHORT

    def ids(self, first: int, count: int) -> list[str]:
        """The ids of numbers that follow each other: the same as `id` for each, with less to do."""
        if first + count > _SHORT:
            return [self.id(first + n) for n in range(count)]
        pairs, found = _pairs(), []
        dx, dy, dz = _digits(self._step)
        x, y, z = _digits((first * self._step + self._start) % _SHORT)
        for _ in range(count):
            found.append(pairs[x] + pairs[y] + pairs[z])
            z += dz  # one step further, digit by digit: resuming waits for this loop
            if z >= _PAIR:
                z -= _PAIR
                y += 1
            y += dy
            if y >= _PAIR:
                y -= _PAIR
                x += 1
            x += dx
            if x >= _PAIR:
                x -= _PAIR
        return found

    def with_prefix(self, prefix: str) -> list[int]:
        """Every number whose six-character id begins with `prefix`. For prefixes of 4 and more: a few thousand at
        most."""
        if any(c not in ALPHABET for c in prefix):
            return []
        tails = [""]
        for _ in range(6 - len(prefix)):
            tails = [tail + c for tail in tails for c in ALPHABET]
        return [self.number(prefix + tail) for tail in tails]


def check_message_id(id: str) -> str:
    """The id itself, or `InvalidID`."""
    if not isinstance(id, str) or not _SHAPE.fullmatch(id):
        raise InvalidID(id)
    return id


def new_token() -> bytes:
    """16 random bytes that mark one write, so that "was it kept?" has an answer."""
    return os.urandom(16)


def new_conversation_id() -> bytes:
    """A random UUID (version 4)."""
    id = bytearray(os.urandom(16))
    id[6], id[8] = id[6] & 0x0F | 0x40, id[8] & 0x3F | 0x80
    return bytes(id)


def show_conversation_id(id: bytes) -> str:
    """The canonical text of a conversation id."""
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parse_conversation_id(text: str) -> bytes:
    """The bytes of a canonical lowercase UUID, or `InvalidID`."""
    if not isinstance(text, str) or not _UUID.fullmatch(text):
        raise InvalidID(text, hint="a conversation id is a UUID such as 6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10")
    return bytes.fromhex(text.replace("-", ""))


def is_conversation_prefix(text: str) -> bool:
    """Could this be the beginning of a canonical UUID?"""
    return 0 < len(text) <= 36 and all(
        c == "-" if i in (8, 13, 18, 23) else c in "0123456789abcdef" for i, c in enumerate(text)
    )
