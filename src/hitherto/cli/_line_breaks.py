"""Line breaks between words, in text that a terminal shows while it arrives.

A character is shown at once. If its word does not fit into the line any more, the word is taken back and begins the
next line. The last column stays free: a terminal whose line is full moves the cursor in ways of its own.

Words of characters whose width is uncertain are left to the terminal, and so are words that are longer than a line.
"""

import unicodedata
from collections.abc import Callable

_PLAIN = "\x1b[0m"
_TAB = 8


class LineBreaker:
    """Follows the cursor, and returns text with the line breaks that it needs."""

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._columns = width()  # as they were when the line began: the terminal may change its size
        self._column = 0
        self._word: list[tuple[str, str]] = []  # the characters of the current word, each with its style
        self._start = 0  # the column of the word
        self._is_movable = True
        self._is_table = False

    def feed(self, text: str, style: str, *, breaks: bool) -> str:
        """Return the text with line breaks. It has one style, which the terminal shows now; without `breaks` it is
        only followed."""
        return "".join(self._take(character, style, breaks=breaks) for character in text)

    def _take(self, character: str, style: str, *, breaks: bool) -> str:
        if character == "\n":
            self._columns, self._is_table = self._width(), False
            self._begin_line()
            return character
        if self._column == 0 and character == "|":
            self._is_table = True
        size = _columns(character)
        before = ""
        if character in " \t":
            self._advance(1 if character == " " else _TAB - self._column % _TAB)
            self._begin_word()
            return character
        if size == 2:  # Chinese or Japanese: a line may be broken before each character
            self._begin_word()
        if breaks and not self._is_table and self._column + size >= self._columns:
            before = self._break(style)
        self._is_movable = self._is_movable and size > 0
        self._word.append((character, style))
        self._advance(size)
        return before + character

    def _advance(self, size: int) -> None:
        self._column += size
        if self._column > self._columns:  # the terminal has begun a line
            self._column, self._is_movable = size, False

    def _break(self, style: str) -> str:
        """Return a line break, and the current word anew below it."""
        if not self._is_movable or self._start == 0:
            return ""
        word, size = self._word, self._column - self._start
        back = f"\x1b[{size}D\x1b[K" if size else ""
        self._begin_line()
        shown, worn = back + "\n", style
        for character, wanted in word:
            if wanted != worn:
                shown += _PLAIN + (f"\x1b[{wanted}m" if wanted else "")
                worn = wanted
            shown += character
        if worn != style:
            shown += _PLAIN + (f"\x1b[{style}m" if style else "")
        self._word, self._column = word, size
        return shown

    def _begin_line(self) -> None:
        self._column = 0
        self._begin_word()

    def _begin_word(self) -> None:
        self._word, self._start, self._is_movable = [], self._column, True


def _columns(character: str) -> int:
    """Return the columns of a character: 0 if they are uncertain."""
    if character < "\u0300":
        return 1
    if unicodedata.category(character)[0] in "MC":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
