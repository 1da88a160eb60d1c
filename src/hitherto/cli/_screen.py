"""What is written to a terminal, and what must not be.

Stored text, and what a model answers, may hold anything: sequences that clear the screen or set the clipboard, and
characters that make a line read otherwise than it is. On a terminal these are shown as what they are, each by a sign
of its own; in a pipe the text is as it is, since whoever reads it there wants it whole. What we say ourselves goes to
standard error, and is always made harmless: titles and names are stored text, too.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from datetime import datetime

_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def _signs() -> dict[int, str]:
    """Every character that does something to a terminal, and what is shown for it."""
    signs = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
    turning = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # left to right, or back
    others = [*range(0x80, 0xA0), 0x2028, 0x2029, 0xFEFF, *range(0xFFF9, 0xFFFC)]
    signs |= {code: f"<U+{code:04X}>" for code in [*turning, *others]}
    return signs | dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


_SIGNS = _signs()
_SPELLED = {code: f"\\u{code:04x}" for code in _SIGNS if code > 0x1F}  # below that, JSON spells by itself


def harmless(text: str) -> str:
    """The text with a sign in place of each character that would do something.

    >>> harmless("red: \\x1b[31m")
    'red: ␛[31m'
    """
    return text.replace("\r\n", "\n").translate(_SIGNS)


def line(text: str, width: int) -> str:
    """The text as one harmless line, cut to so many columns.

    >>> line("one\\ntwo  three", 9)
    'one two …'
    """
    whole = harmless(" ".join(text.split()))
    if columns(whole) <= width:
        return whole
    end = width - 1
    if columns(whole[:end]) != end:  # some characters take two columns, or none
        used = end = 0
        while (used := used + columns(whole[end])) < width:
            end += 1
    return whole[:end] + "…"


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


def _colours(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def say(text: str, *, end: str = "\n") -> None:
    """Tell the user something, beside what was asked for."""
    shown = harmless(text)
    _tell(f"{_DIM}{shown}{_PLAIN}{end}" if _colours(sys.stderr) else shown + end)


def complain(what: str, hint: str | None = None) -> None:
    """Tell what went wrong, and what to do now."""
    for word, text in (("error:", what), ("hint:", hint)):
        if text:
            shown = f"{_BOLD}{word}{_PLAIN}" if _colours(sys.stderr) else word
            _tell(f"{shown} {harmless(text)}\n")


def _tell(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody listens: that is no reason to stop
        sys.stderr.write(text)
        sys.stderr.flush()


# -- what was asked for, to be read by people

_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m",
           "blue": "\x1b[34m", "magenta": "\x1b[35m", "cyan": "\x1b[36m", "mark": "\x1b[1;33m"}  # fmt: skip


def paint(text: str, style: str) -> str:
    """The text in a colour, or in bold or dim letters, if standard output shows such things. It is made harmless before
    by whoever has it: what comes in here goes out as it is."""
    return f"{_STYLES[style]}{text}{_PLAIN}" if text and _colours(sys.stdout) else text


def show(lines: Iterable[str]) -> None:
    """Lines on standard output; on a terminal in a pager, if they are more than fit on it."""
    command = _pager()
    if command is None:
        for text in lines:
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        return
    ahead: list[str] = []
    rest = iter(lines)
    room = shutil.get_terminal_size().lines - 1
    for text in rest:
        ahead.append(text)
        if len(ahead) >= room:
            break
    if len(ahead) < room:
        sys.stdout.write("".join(f"{text}\n" for text in ahead))
        sys.stdout.flush()
        return
    _page(command, chain(ahead, rest))


def _pager() -> list[str] | None:
    """The program that shows what is longer than the screen; None where nobody looks, or nobody wants it."""
    if not (is_terminal(sys.stdout) and is_terminal(sys.stdin)):
        return None
    import shlex  # noqa: PLC0415  # a pipe needs none of this

    from . import _config  # noqa: PLC0415  # as above

    for said in (os.environ.get("HITHERTO_PAGER"), _config.load().get("pager"), os.environ.get("PAGER")):
        if said is not None:
            words = shlex.split(said)
            return words if words and words != ["cat"] else None
    return ["less"] if shutil.which("less") else None


def _page(command: list[str], lines: Iterable[str]) -> None:
    import subprocess  # noqa: PLC0415  # as above

    environment = {"LESS": "FRX", "LESSCHARSET": "utf-8"} | dict(os.environ)
    try:
        pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    except OSError as error:
        say(f"warning: the pager cannot be run: {error.strerror}")
        for text in lines:
            sys.stdout.write(f"{text}\n")
        return
    assert pager.stdin is not None
    try:
        for text in lines:
            pager.stdin.write(f"{text}\n".encode(errors="backslashreplace"))
    except BrokenPipeError:
        pass  # whoever reads has seen enough
    finally:
        with suppress(BrokenPipeError):
            pager.stdin.close()
        while pager.poll() is None:
            with suppress(KeyboardInterrupt):  # it is the pager's
                pager.wait()


def emit(value: object) -> None:
    """One line of JSON on standard output. Characters that do something to a terminal are spelled out, which JSON
    reads as the same."""
    import msgspec  # noqa: PLC0415  # whoever wants no JSON needs none

    text = msgspec.json.encode(value).decode()
    sys.stdout.write(f"{text.translate(_SPELLED)}\n")


def moment(at: "datetime") -> str:
    """A time as people read it, in UTC as everything else that is kept: 2024-01-15 10:30."""
    return f"{at:%Y-%m-%d %H:%M}"


# -- asking, and long work


def sure(question: str, *, yes: bool) -> None:
    """Go on only if somebody says yes: by the option, or now. Where nobody can be asked, it takes the option."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError("this cannot be undone, and there is no terminal to ask on: --yes says that it is meant")
    say(f"{question} [y/N] ", end="")
    answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise click.Abort


class Meter:
    """How far long work has come, on one line of a terminal that is written over; elsewhere nothing is said."""

    _EVERY_SECONDS = 0.1
    _PATIENCE_SECONDS = 0.5  # what is done before that needs no words

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, False
        self._next = time.monotonic() + self._PATIENCE_SECONDS

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            _tell("\r\x1b[K")

    def __call__(self, done: object, total: int | None = None) -> None:
        now = time.monotonic()
        if now < self._next or not _moves(sys.stderr):
            return
        self._next, self._shown = now + self._EVERY_SECONDS, True
        bar = ""
        if total and isinstance(done, int):
            filled = min(20, 20 * done // total)
            bar = f" [{'#' * filled}{'.' * (20 - filled)}] {100 * done // total:3d}%"
            done = f"{done} of {total}"
        _tell("\r\x1b[K" + line(f"{self._what}: {done}{bar}", width() - 1))


def _moves(stream: TextIO) -> bool:
    return is_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"


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


@contextmanager
def streams() -> Iterator[None]:
    """What cannot be written in the terminal's own encoding is spelled out, and never an error. A stream that is closed
    (`>&-`) is one that nobody reads."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    yield


def abandon_output() -> None:
    """Nobody reads any more: what is left to be written goes nowhere, and makes no noise at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
