"""The part of a text that shows why it was found.

The index keeps no text, so the place is looked for again, in the text itself and by the same rules: it is folded as the
index folds it, a piece at a time, until a place is found where all terms meet, or for some way after the best one; the
first place with most of them is taken. Folding moves characters (`ﬁ` becomes two, an accent none), so where something
was found the piece is folded again letter by letter, and it is noted where each came from.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator
from functools import lru_cache

from .query import WORD_CHARACTERS, Query, Term, fold

_PIECE = 16_384  # characters that are looked at in one go
_OVERLAP = 4_096  # and beyond its end, for what begins in it
_FURTHER = 262_144  # for so long a better place is looked for when there is one
_SPACE = re.compile(r"\s+")
_PLAIN = re.compile(r"[\x00-\x7f]+")
_SMALLEST = 16

_Span = tuple[int, int]


def snippet(text: str, query: Query, width: int = 160) -> tuple[str, tuple[_Span, ...]]:
    """The part of the text around the best place, of at most `width` characters, and the spans in it that fit.

    >>> from hitherto._search.query import parse
    >>> snippet("It was a café\\n  in Paris.", parse("cafe"))
    ('It was a café in Paris.', ((9, 13),))
    """
    width = max(width, _SMALLEST)
    pattern = _pattern(query.terms)
    start, end = _best_place(text, pattern, len(query.terms), width - 2)
    first = max(0, start - 4 * width)
    last = min(len(text), end + 4 * width)
    shown, origins = _without_runs_of_space(text[first:last])
    # From here on, places are in `shown`.
    begin, stop = bisect_right(origins, start - first - 1), bisect_right(origins, end - first - 1)
    more_before, more_after = text[:first].strip() != "", text[last:].strip() != ""
    begin, stop = _around(shown, begin, stop, width, more_before, more_after)
    more_before, more_after = more_before or begin > 0, more_after or stop < len(shown)
    before = "…" if more_before else ""
    spans: list[_Span] = []
    if begin < stop:
        shift = len(before) - begin
        lowest, highest = first + origins[begin], first + origins[stop - 1] + 1
        for found, found_end, _ in _matches(text, pattern, lowest, highest):
            left = max(begin, bisect_right(origins, found - first - 1))
            right = min(stop, bisect_right(origins, found_end - first - 1))
            if left < right:
                spans.append((left + shift, right + shift))
    return before + shown[begin:stop] + ("…" if more_after else ""), tuple(spans)


def _around(shown: str, begin: int, stop: int, width: int, more_before: bool, more_after: bool) -> _Span:
    """Widen the place to `width`, two thirds of the rest behind it, and step back to the edges of words."""
    if len(shown) + more_before + more_after <= width:
        return 0, len(shown)
    room = width - 2  # for what stands for the rest, on both sides
    stop = min(stop, begin + room)
    left = max(0, begin - (room - (stop - begin)) // 3)
    right = min(len(shown), left + room)
    left = max(0, right - room)
    if left > 0 or more_before:
        left = _next_word(shown, left, begin)
    if right < len(shown) or more_after:
        right = _last_word(shown, right, stop)
    return left, right


def _next_word(shown: str, left: int, limit: int) -> int:
    if left > 0 and shown[left - 1] == " ":
        return left
    space = shown.find(" ", left, limit)
    if space >= 0:
        return space + 1
    while left < limit and unicodedata.category(shown[left])[0] == "M":  # not without the letter it belongs to
        left += 1
    return left


def _last_word(shown: str, right: int, limit: int) -> int:
    if right < len(shown) and shown[right] == " ":
        return right
    space = shown.rfind(" ", limit, right)
    if space > 0:
        return space
    while limit < right < len(shown) and unicodedata.category(shown[right])[0] == "M":
        right -= 1
    return right


def _without_runs_of_space(text: str) -> tuple[str, list[int]]:
    """The text with each run of white space as one space and none at its ends, and where each character came from."""
    kept: list[str] = []
    origins: list[int] = []
    at = 0
    for gap in _SPACE.finditer(text):
        kept.append(text[at : gap.start()])
        origins.extend(range(at, gap.start()))
        at = gap.end()
        if origins and at < len(text):
            kept.append(" ")
            origins.append(gap.start())
    kept.append(text[at:])
    origins.extend(range(at, len(text)))
    return "".join(kept), origins


@lru_cache(maxsize=32)
def _pattern(terms: tuple[Term, ...]) -> re.Pattern[str]:
    """Finds any term in a folded text, as the group of its number. Longer ones first: `foo` does not hide `foo bar`."""
    groups = [(len(" ".join(term.words)), number, term) for number, term in enumerate(terms)]
    groups.sort(key=lambda group: -group[0])
    between = f"[^{WORD_CHARACTERS}]++"
    parts = [
        f"(?P<t{number}>{between.join(term.words)}"
        + (f"[{WORD_CHARACTERS}]*+" if term.prefix else "")
        + f"(?![{WORD_CHARACTERS}]))"
        for _, number, term in groups
    ]
    return re.compile(f"(?<![{WORD_CHARACTERS}])(?:{'|'.join(parts) if parts else '(?!)'})")


def _best_place(text: str, pattern: re.Pattern[str], terms: int, room: int) -> _Span:
    """Where most different terms meet within `room`; the beginning of the text if there are none."""
    best, place = 0, (0, 0)
    window: deque[tuple[int, int, str]] = deque()
    there: Counter[str] = Counter()
    for begin in range(0, len(text), _PIECE):
        if best and begin > place[1] + _FURTHER:
            break
        for match in _matches(text, pattern, begin, begin + _PIECE):
            window.append(match)
            there[match[2]] += 1
            while window[0][0] < match[1] - room and len(window) > 1:
                gone = window.popleft()[2]
                there[gone] -= 1
                if not there[gone]:
                    del there[gone]
            if len(there) > best:
                best, place = len(there), (window[0][0], match[1])
                if best == terms:
                    return place
    return place


def _matches(text: str, pattern: re.Pattern[str], begin: int, end: int) -> Iterator[tuple[int, int, str]]:
    """The terms that begin between `begin` and `end`: where, until where, and which."""
    first = max(0, begin - 1)  # one more, to see whether a word begins here or goes on
    last = min(len(text), end + _OVERLAP)
    piece = text[first:last]
    folded = fold(piece)
    if pattern.search(folded) is None:
        return
    origins: range | list[int] = range(len(piece))
    if not piece.isascii():
        folded, origins = _trace(piece)
    for match in pattern.finditer(folded):
        start = first + origins[match.start()]
        if start >= end:
            return
        stop = first + _letter_end(piece, origins[match.end() - 1] + 1)  # with the accents of its last letter
        if start >= begin and (stop < last or last == len(text)):
            yield start, stop, match.lastgroup or ""


def _letter_end(piece: str, at: int) -> int:
    while at < len(piece) and _clings(piece[at]):
        at += 1
    return at


@lru_cache(maxsize=4096)
def _clings(character: str) -> bool:
    """Does it belong to the letter before it? A mark, or a vowel or final of Korean written by its parts."""
    return unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff"


def _plain_end(piece: str, at: int) -> int:
    """How far the ASCII goes from here, without a last letter that has an accent of its own."""
    plain = _PLAIN.match(piece, at)
    end = at if plain is None else plain.end()
    return end - 1 if at < end < len(piece) and _clings(piece[end]) else end


_fold_letter = lru_cache(maxsize=4096)(fold)


def _trace(piece: str) -> tuple[str, list[int]]:
    """The piece folded letter by letter, and where each character of it came from."""
    folded: list[str] = []
    origins: list[int] = []
    at = 0
    while at < len(piece):
        end = _plain_end(piece, at)
        if end > at:  # most texts are plain for the most part
            folded.append(piece[at:end].lower())
            origins.extend(range(at, end))
            at = end
            continue
        end = _letter_end(piece, at + 1)
        letter = _fold_letter(piece[at:end])
        folded.append(letter)
        origins.extend([at] * len(letter))
        at = end
    return "".join(folded), origins
