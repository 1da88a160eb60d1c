"""A part of the text index of a sealed store: some messages of one conversation, as a value.

A segment is the text written with one character per word. Its words are sorted in one byte string, and the number of a
word is a character. A message is the string of these characters, and the messages follow each other with a zero between
them. So `str.find` finds a word or a phrase, in C, and all words with one prefix are a range of characters. Reading a
segment builds nothing, and writing one builds little, which makes a cold start fast. The loss against an inverted index
is small, because a segment is short and most segments lack a rare word.

A segment never changes. It can be written as bytes and read again; `sealed_index_store` seals and stores them.
"""

import os
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain, islice
from typing import Final

from msgspec import MsgspecError, Struct, msgpack

from .._engine.compression import compress, decompress
from ..errors import Damaged
from .query import Term

FORMAT: Final = 1
MOST_MESSAGES: Final = 512  # in one segment
MOST_WORDS: Final = 1 << 16  # the same; but a message is never divided
LONGEST: Final = 4_096  # characters of a word; the rest of a longer word is ignored
_DIFFERENT = 1_000_000  # different words in one segment; further ones keep a position, and are never found

_NEAR = 512  # bytes: so close, the next word is searched for linearly
_SURROGATES = 0xD800  # from here on 2,048 numbers are no characters


def _character(number: int) -> str:
    """A word's number as a character. Zero stands between messages."""
    return chr(number + 1 if number + 1 < _SURROGATES else number + 0x801)


def _characters() -> Iterable[str]:
    """All of them, in order."""
    return chain(_most_characters(), map(_character, range(_SURROGATES - 1, _DIFFERENT)))


@cache
def _most_characters() -> str:
    return "".join(map(chr, range(1, _SURROGATES)))


class Message(Struct, frozen=True, gc=False):
    """A message, as it goes into a segment and comes out of it."""

    number: int
    revision: int
    role: str
    created_at: int
    words: list[str]


class _Written(Struct, frozen=True, array_like=True):
    """A segment as bytes. Numbers and times are differences: they compress better."""

    format: int
    numbers: list[int]
    revisions: list[int]
    roles: list[str]
    has_role: list[int]
    times: list[int]
    lengths: list[int]
    words: bytes
    text: bytes


_encode, _decode = msgpack.Encoder().encode, msgpack.Decoder(_Written).decode


class Segment:
    """Some messages of one conversation."""

    __slots__ = ("has_role", "name", "newest", "numbers", "oldest", "revisions", "roles", "starts", "text", "times",
                 "words")  # fmt: skip

    def __init__(
        self,
        name: bytes,
        numbers: "array[int]",
        revisions: "array[int]",
        roles: list[str],
        has_role: "array[int]",
        times: "array[int]",
        lengths: Iterable[int],
        words: bytes,
        text: str,
    ) -> None:
        self.name = name  # never given twice
        self.numbers, self.revisions, self.times = numbers, revisions, times
        self.roles, self.has_role = roles, has_role
        self.words, self.text = words, text
        self.starts = array("q", accumulate((length + 1 for length in lengths), initial=0))  # of messages in the text
        self.oldest, self.newest = min(times), max(times)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def length(self) -> int:
        """In words."""
        return self.starts[-1] - len(self.numbers)

    def size(self) -> int:
        return len(self.words) + 2 * len(self.text) + 40 * len(self.numbers)

    # -- made and unmade

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Segment":
        seen = dict.fromkeys(chain.from_iterable(m.words for m in messages))
        words = sorted(islice(seen, _DIFFERENT))
        characters = dict(zip(words, _characters(), strict=False))
        if len(words) < len(seen):
            other = _character(_DIFFERENT)
            characters = {word: characters.get(word, other) for word in seen}
        spelled = ["".join(map(characters.__getitem__, m.words)) for m in messages]
        roles = list(dict.fromkeys(m.role for m in messages))
        return cls(
            os.urandom(8),
            array("q", [m.number for m in messages]),
            array("q", [m.revision for m in messages]),
            roles,
            array("q", [roles.index(m.role) for m in messages]),
            array("q", [m.created_at for m in messages]),
            [len(text) for text in spelled],
            "\n".join(["", *words, ""]).encode() if words else b"\n",
            "\0".join(spelled),
        )

    def messages(self) -> list[Message]:
        """Return the messages that the segment was built from."""
        words = dict(zip(_characters(), self.words.decode(errors="replace")[1:-1].split("\n"), strict=False))
        find, text, starts = words.get, self.text, self.starts
        return [
            Message(
                self.numbers[n],
                self.revisions[n],
                self.roles[self.has_role[n]],
                self.times[n],
                [find(character, "") for character in text[starts[n] : starts[n + 1] - 1]],
            )
            for n in range(len(self))
        ]

    def dump(self) -> bytes:
        lengths = [self.starts[n + 1] - self.starts[n] - 1 for n in range(len(self))]
        written = _Written(
            FORMAT, _differences(self.numbers), self.revisions.tolist(), self.roles, self.has_role.tolist(),
            _differences(self.times), lengths, self.words, self.text.encode(),
        )  # fmt: skip
        return compress(_encode(written), level=3)

    @classmethod
    def load(cls, name: bytes, data: bytes) -> "Segment":
        """The segment that was dumped, or `Damaged`."""
        try:
            it = _decode(decompress(data))
            text = it.text.decode()
            sound = (
                it.format == FORMAT
                and len({len(it.numbers), len(it.revisions), len(it.has_role), len(it.times), len(it.lengths)}) == 1
                and sum(it.lengths) + len(it.lengths) - 1 == len(text)
                and text.count("\0") == len(it.lengths) - 1
                and min(it.lengths) >= 0
                and 0 <= min(it.has_role) <= max(it.has_role) < len(it.roles)
            )
            if not sound:
                raise Damaged("a part of the index does not fit together")
            return cls(
                name,
                array("q", accumulate(it.numbers)),
                array("q", it.revisions),
                it.roles,
                array("q", it.has_role),
                array("q", accumulate(it.times)),
                it.lengths,
                it.words,
                text,
            )
        except (MsgspecError, ValueError, OverflowError) as error:
            raise Damaged(f"a part of the index cannot be read: {error}") from None

    # -- looking

    def where(self, term: "Sought") -> "Place | None":
        """How a term is spelled here; None if one of its words does not occur."""
        words, spelled = self.words, ""
        for word in term.whole:
            at = _find(words, word)
            if at < 0:
                return None
            spelled += _character(words.count(b"\n", 0, at))
        if not term.beginning:
            return spelled, "", ""
        at = _find(words, term.beginning)
        if at < 0:
            return None
        first = words.count(b"\n", 0, at)
        last = first + words.count(b"\n", at, words.rfind(term.beginning))
        if first == last:
            return spelled + _character(first), "", ""
        return spelled, _character(first), _character(last)

    def having(self, place: "Place") -> set[int]:
        """The messages that have it."""
        spelled, first, _ = place
        if first:
            return set(self._owners(place))
        find, starts = self.text.find, self.starts
        found = set()
        at = find(spelled)
        while at >= 0:
            n = bisect_right(starts, at)
            found.add(n - 1)
            at = find(spelled, starts[n])
        return found

    def counts(self, place: "Place", among: Iterable[int]) -> dict[int, int]:
        """How often each of these messages has it."""
        spelled, first, _ = place
        if first or len(set(spelled)) < len(spelled):  # it may overlap with itself
            found = Counter(self._owners(place))
            return {n: found[n] for n in among}
        count, starts = self.text.count, self.starts
        return {n: count(spelled, starts[n], starts[n + 1] - 1) for n in among}

    def _owners(self, place: "Place") -> Iterator[int]:
        """The message of each occurrence."""
        starts = self.starts
        return (bisect_right(starts, at) - 1 for at in self._occurrences(*place))

    def _occurrences(self, spelled: str, first: str, last: str) -> Iterator[int]:
        text, length = self.text, len(spelled)
        if not spelled:
            yield from (match.start() for match in _between(first, last).finditer(text))
            return
        at = text.find(spelled)
        while at >= 0:
            if not first or first <= text[at + length : at + length + 1] <= last:
                yield at
            at = text.find(spelled, at + 1)


def _find(words: bytes, word: bytes) -> int:
    """Where the first word stands that begins so, with the line break before it; -1 if there is none."""
    low, high = 0, len(words)
    while high - low > _NEAR:
        middle = words.find(b"\n", (low + high) // 2)
        if middle >= high or middle == len(words) - 1:  # one very long word, or the end of the last one
            break
        if words[middle : middle + len(word)] < word:
            low = middle
        else:
            high = middle
    return words.find(word, low, high + len(word))


Place = tuple[str, str, str]  # some words in a row, and the range that the next one is in, if any


@lru_cache(maxsize=8192)
def _between(first: str, last: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(first)}-{re.escape(last)}]")


def _differences(numbers: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip(chain((0,), numbers), numbers, strict=False)]


class Sought:
    """A term, as it stands among the words of a segment."""

    def __init__(self, term: Term) -> None:
        words = [word[:LONGEST].encode() for word in term.words]
        self.beginning = b"\n" + words.pop() if term.prefix else b""
        self.whole = [b"\n" + word + b"\n" for word in words]
