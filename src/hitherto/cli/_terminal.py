"""Writing to a terminal.

Stored text and a model's answers may hold anything: sequences that clear the screen or set the clipboard, and
characters that reorder a line. On a terminal each such character is replaced by a visible sign. In a pipe the text
stays as it is, because the reader wants it whole. Messages go to standard error and are always escaped: they contain
titles and names, which are stored text.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from .._system.terminal_text import escape_control_characters
from ..errors import shorten

if TYPE_CHECKING:
    from datetime import datetime

_LINE = "\n"
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def line(text: str, width: int) -> str:
    """Return the text as one escaped line, cut to a number of columns.

    >>> line("one\\ntwo  three", 9)
    'one two …'
    """
    return cut(escape_control_characters(" ".join(text.split())), width)


def cut(text: str, width: int) -> str:
    """Cut an escaped line to a number of columns."""
    if columns(text) <= width:
        return text
    end = max(0, width - 1)
    if columns(text[:end]) != end:  # some characters take two columns, or none
        used = end = 0
        while (used := used + columns(text[end])) < width:
            end += 1
    return text[:end] + "…"


def columns(text: str) -> int:
    """Return the number of columns that a line takes on a terminal."""
    if text.isascii() or max(text) < "\u0300":
        return len(text)
    import unicodedata  # noqa: PLC0415  # most text needs none

    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def width() -> int:
    """Return the columns of the terminal, or those of COLUMNS."""
    return max(20, shutil.get_terminal_size().columns)


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # the stream is closed
        return False


def colours(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def say(text: str, *, end: str = "\n") -> None:
    """Print a message to standard error."""
    shown = escape_control_characters(text)
    write_stderr(f"{_DIM}{shown}{_PLAIN}{end}" if colours(sys.stderr) else shown + end)


def print_error(what: str, hint: str | None = None) -> None:
    """Print an error and its hint to standard error."""
    for word, text in (("error:", what), ("hint:", hint)):
        if text:
            shown = f"{_BOLD}{word}{_PLAIN}" if colours(sys.stderr) else word
            one_line = escape_control_characters(shorten(text)).replace(
                _LINE, "␊"
            )  # a quoted text may hold line breaks
            write_stderr(f"{shown} {one_line}\n")


def write_stderr(text: str) -> None:
    with suppress(OSError, ValueError):  # a closed stream is no reason to stop
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
    """Return a time for people, in their own zone: 2024-01-15 10:30."""
    return f"{in_zone(at):%Y-%m-%d %H:%M}"


def in_zone(at: "datetime") -> "datetime":
    """Return the time in the user's zone, or in UTC after `use_utc`."""
    from datetime import UTC  # noqa: PLC0415  # help needs none

    return at.astimezone(UTC if _in_utc else None)


_in_utc = False


def use_utc() -> None:
    """Show and read all times of this process in UTC."""
    global _in_utc  # noqa: PLW0603  # one process runs one command
    _in_utc = True


@contextmanager
def typing_unseen() -> Iterator[None]:
    """Do not show what is typed meanwhile: it would stand in the middle of the answer. The next prompt shows it."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        yield
        return
    import termios  # noqa: PLC0415  # only a terminal has it

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


# -- streams


class Output:
    """Standard output for text in pieces."""

    def __init__(self) -> None:
        self._guarded = is_terminal(sys.stdout)
        self._held = ""  # a carriage return that ended a piece: its line feed may begin the next
        self._last = "\n"

    def write(self, piece: str) -> None:
        if not piece:
            return
        self._last = piece[-1]
        if self._guarded:
            piece = self._held + piece
            self._held = "\r" if piece.endswith("\r") else ""
            piece = escape_control_characters(piece.removesuffix(self._held))
        sys.stdout.write(piece)
        sys.stdout.flush()

    def finish(self) -> None:
        """End the text: flush, and begin a new line if necessary."""
        held, self._held = escape_control_characters(self._held), ""
        if self._last != "\n":
            held += "\n"
            self._last = "\n"
        sys.stdout.write(held)
        sys.stdout.flush()
