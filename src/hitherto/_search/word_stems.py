"""The beginnings that stand for a word in all its forms, and the words that say nothing about a subject.

The index keeps words as they are written, so a stem here is always a beginning of the word: `linting`, `linter` and
`lints` are found by `lint*`. A stem is cut by rules and may be shorter than a dictionary's. That costs little, because
words that share only the beginning weigh less than those with the same stem (`nearest`).

English loses its endings; Cyrillic and Greek lose their last letters, Korean the particles behind a noun. Other words
stand for themselves and for what begins with them.
"""

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

LEAST: Final = 3  # letters of a stem, and of a beginning that is searched for

# Longer ones first. An ending is not cut where fewer than three letters with a vowel would be left.
_ENDINGS = ("ings", "ing", "ers", "ies", "ied", "ed", "er", "es", "ly", "s", "e", "y")
_DOUBLED = frozenset(("ings", "ing", "ers", "ed", "er"))
_VOWELS = frozenset("aeiouy")
_INFLECTED = re.compile("[\u0370-\u03ff\u0400-\u04ff]{5,}")  # Greek and Cyrillic
_KOREAN = re.compile("[\uac00-\ud7a3]{3,}")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the beginning that all forms of a folded word share.

    >>> [stem(word) for word in ("linting", "linter", "stopped", "cities", "status", "ошибками", "7zip")]
    ['lint', 'lint', 'stop', 'cit', 'status', 'ошибка', '7zip']
    """
    if word.isascii():
        return _cut_english(word) if word.isalpha() else word
    if _INFLECTED.fullmatch(word):
        return word[: max(4, len(word) - 2)]
    if _KOREAN.fullmatch(word):
        return word[: max(2, len(word) - 2)]
    return word


def _cut_english(word: str) -> str:
    for ending in _ENDINGS:
        left = word.removesuffix(ending)
        if left == word or len(left) < LEAST or _VOWELS.isdisjoint(left):
            continue
        if ending == "s" and left[-1] in "su":  # class, status
            return word
        if ending in _DOUBLED and len(left) > LEAST and left[-1] == left[-2] and left[-1] not in "aeioulsz":
            return left[:-1]
        return left[:-1] if len(left) > LEAST and left[-1] in "eiy" else left
    return word


@cache
def stop_words() -> frozenset[str]:
    """Return the words that stand in most questions and answer none."""
    lines = (Path(__file__).parent / "stop_words.txt").read_text("utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
