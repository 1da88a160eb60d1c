"""What is written to a terminal, and what must not be.

Stored text, and what a model answers, may hold anything: sequences that clear the screen or set the clipboard, and
characters that make a line read otherwise than it is. On a terminal these are shown as what they are, each by a sign
of its own; in a pipe the text is as it is, since whoever reads it there wants it whole. What we say ourselves goes to
standard error, and is always made harmless: titles and names are stored text, too.
"""

import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from .._terminal_text import harmless
from ..errors import shorten

if TYPE_CHECKING:
    from datetime import datetime

_LINE = "\n"
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def line(text: str, width: int) -> str:
    """The text as one harmless line, cut to so many columns.

    >>> line("one\\ntwo  three", 9)
    'one two …'
    """
    return cut(harmless(" ".join(text.split())), width)


def cut(text: str, width: int) -> str:
    """Harmless text without line breaks, cut to so many columns."""
    if columns(text) <= width:
        return text
    end = max(0, width - 1)
    if columns(text[:end]) != end:  # some characters take two columns, or none
        used = end = 0
        while (used := used + columns(text[end])) < width:
            end += 1
    return text[:end] + "…"


def columns(text: str) -> int:
    """How many columns a line takes on a terminal."""
    if text.isascii() or max(text) < "\u0300":
        return len(text)
    import unicodedata  # noqa: PLC0415  # most text does without

    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def width() -> int:
    """The columns of the terminal, or of what COLUMNS says it is."""
    return max(20, shutil.get_terminal_size().columns)


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def colours(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def say(text: str, *, end: str = "\n") -> None:
    """Tell the user something, beside what was asked for."""
    shown = harmless(text)
    write_stderr(f"{_DIM}{shown}{_PLAIN}{end}" if colours(sys.stderr) else shown + end)


def print_error(what: str, hint: str | None = None) -> None:
    """Tell what went wrong, and what to do now."""
    for word, text in (("error:", what), ("hint:", hint)):
        if text:
            shown = f"{_BOLD}{word}{_PLAIN}" if colours(sys.stderr) else word
            one_line = harmless(shorten(text)).replace(_LINE, "␊")  # a quoted text may hold line breaks
            write_stderr(f"{shown} {one_line}\n")


def write_stderr(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody listens: that is no reason to stop
        sys.stderr.write(text)
        sys.stderr.flush()


def print_warnings() -> None:
    """Print the library's warnings as the command line prints its own messages."""
    import logging  # noqa: PLC0415  # help needs none

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(f"warning: {record.getMessage()}")

    log = logging.getLogger("hitherto")
    log.addHandler(Printer(logging.WARNING))
    log.propagate = False


def moment(at: "datetime") -> str:
    """A time as people read it, in UTC as everything else that is kept: 2024-01-15 10:30."""
    return f"{at:%Y-%m-%d %H:%M}"


# -- streams


class Output:
    """Standard output, for text that comes in pieces."""

    def __init__(self) -> None:
        self._guarded = is_terminal(sys.stdout)
        self._held = ""  # a carriage return that ended a piece: the next may begin with its line feed
        self._last = "\n"

    def write(self, piece: str) -> None:
        if not piece:
            return
        self._last = piece[-1]
        if self._guarded:
            piece = self._held + piece
            self._held = "\r" if piece.endswith("\r") else ""
            piece = harmless(piece.removesuffix(self._held))
        sys.stdout.write(piece)
        sys.stdout.flush()

    def finish(self) -> None:
        """The text is all there, or all that will come: the next thing begins on a line of its own."""
        held, self._held = harmless(self._held), ""
        if self._last != "\n":
            held += "\n"
            self._last = "\n"
        sys.stdout.write(held)
        sys.stdout.flush()
