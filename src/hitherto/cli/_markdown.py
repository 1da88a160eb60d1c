"""Markdown in colours, while it arrives.

An answer arrives in pieces, and written text cannot be taken back. So this is a small state machine that reads one
character at a time and holds back as little as possible: the beginning of a line that may become a heading or a rule,
and a marker that may become longer. The boundaries of the pieces make no difference.

No character is left out: an unclosed marker would have been text, and text copied from the terminal must be the model's
own. Styles end with their line, and with the answer. On a terminal lines are broken between words (`_line_breaks`),
except those of code and of tables.
"""

import re
import sys
from collections.abc import Callable

from .._system.terminal_text import escape_control_characters
from ._line_breaks import LineBreaker
from ._terminal import Output, colours, width

_PLAIN = "\x1b[0m"
_BOLD, _DIM, _ITALIC, _CODE, _MARK = "1", "2", "3", "36", "33"
_RUNS = "*_`"  # characters that may form longer markers
_BULLET = re.compile(r"[-+*] |\d{1,9}[.)] ")
_HEADING = re.compile(r"#{1,6} ")
_FENCE = re.compile(r"(`{3,}|~{3,})(?![`~])")
_RULE = re.compile(r"([-*_])[ \t]*(?:\1[ \t]*){2,}\n")
_LONGEST_BEGINNING = 80  # characters: a longer rule or run of markers is text
# The prefixes of a heading, bullet, fence or rule.
_BEGINNING = re.compile(r"#{1,6}|\d{1,9}[.)]?|`+|~+|[-+*_]|([-*_])[ \t]*(?:\1[ \t]*)+|([-*_])[ \t]+")


def answer_output() -> "Output | Painted":
    """Return the output for answers: coloured if standard output is a terminal with colours."""
    return Painted() if colours(sys.stdout) else Output()


class Painted:
    """Standard output for Markdown in pieces."""

    def __init__(self) -> None:
        self._painter = Painter(LineBreaker(width))

    def write(self, piece: str) -> None:
        sys.stdout.write(self._painter.feed(piece))
        sys.stdout.flush()

    def finish(self) -> None:
        """End the answer: flush, and begin a new line if necessary."""
        painter, self._painter = self._painter, Painter(LineBreaker(width))
        sys.stdout.write(painter.finish() + ("" if painter.at_line_start else "\n"))
        sys.stdout.flush()


class Painter:
    """Takes text in pieces and returns it painted. It only inserts styles between the characters, and with a breaker
    line breaks."""

    def __init__(self, breaker: LineBreaker | None = None) -> None:
        self.at_line_start = True  # of the output
        self._breaker = breaker
        self._given: list[str] = []
        self._style = ""  # the style that the terminal shows now
        self._return = ""  # a carriage return that ended a piece: its line feed may begin the next
        self._held = ""  # the beginning of a line, or a marker
        self._do: Callable[[str], None] = self._begin
        self._fence = ""  # the fence of the current block of code
        self._line: frozenset[str] = frozenset()  # styles of the whole line
        self._open: set[str] = set()  # open styles in this line: bold, italic
        self._span = 0  # backticks that close the current inline code
        self._before = " "  # the character before
        self._escaped = False
        self._endless = ""  # the character of a run that is too long for a marker

    def feed(self, piece: str) -> str:
        text = self._return + piece
        self._return = "\r" if text.endswith("\r") else ""
        for character in text.removesuffix(self._return).replace("\r\n", "\n"):
            self._do(character)
        return self._take_painted()

    def finish(self) -> str:
        """Return the text that was held back, and end all styles."""
        if self._return:
            self._do(self._return)
        if self._held:  # a line end decides its kind, and is removed again
            self._do("\n")
            self._given.pop()
            self.at_line_start = False
        self._wear("")
        return self._take_painted()

    def _take_painted(self) -> str:
        given, self._given = "".join(self._given), []
        return given

    # -- output

    def _give(self, text: str, style: str) -> None:
        for part in re.split("(\n)", text):
            if part:
                self._wear("" if part == "\n" else style)
                self._put(escape_control_characters(part))
                self.at_line_start = part == "\n"

    def _put(self, text: str) -> None:
        if self._breaker is not None:
            text = self._breaker.feed(text, self._style, breaks=not self._fence)
        self._given.append(text)

    def _wear(self, style: str) -> None:
        if style != self._style:
            self._given.append((_PLAIN if self._style else "") + (f"\x1b[{style}m" if style else ""))
            self._style = style

    def _styles(self) -> str:
        if self._fence:
            return _CODE
        return ";".join(sorted(self._line | self._open | ({_CODE} if self._span else set())))

    # -- the beginning of a line

    def _begin(self, character: str) -> None:
        """Collect the beginning of a line until its kind is clear."""
        if not self._held and character in " \t":
            self._give(character, "")
            return
        self._held += character
        if self._fence:
            self._begin_in_code()
        elif _RULE.fullmatch(self._held):
            self._release(_DIM)
            self._end_line()
        elif (found := _FENCE.match(self._held)) and len(found[0]) < len(self._held):
            self._begin_fence(found[1])
        elif _HEADING.fullmatch(self._held):
            self._begin_text(_BOLD, _BOLD)
        elif _BULLET.fullmatch(self._held) and self._held[0] not in "-*":
            self._begin_text(_MARK)
        elif self._held == ">":
            self._line = frozenset({_DIM})
            self._release(_DIM)
        elif not _BEGINNING.fullmatch(self._held) or len(self._held) > _LONGEST_BEGINNING:
            self._begin_text(_MARK if _BULLET.match(self._held) else None)

    def _begin_text(self, marker: str | None, line: str | None = None) -> None:
        """Begin a line of text, after its marker if it has one."""
        self._do = self._text
        if line is not None:
            self._line |= {line}
        held, self._held = self._held, ""
        found = _BULLET.match(held) or _HEADING.match(held)
        if marker is not None and found is not None:
            self._give(found[0], ";".join(sorted({marker} | self._line)))
            held, self._before = held[found.end() :], " "
        for character in held:
            self._do(character)

    def _begin_fence(self, fence: str) -> None:
        rest, self._held = self._held[len(fence) :], ""
        self._fence = fence
        self._give(fence, _DIM)
        self._do = self._fence_line
        for character in rest:
            self._do(character)

    def _begin_in_code(self) -> None:
        """Begin a line of code, or the fence that ends the block."""
        run = self._held.rstrip(" \t\n")
        if self._held.endswith("\n") and len(run) >= len(self._fence) and set(run) == {self._fence[0]}:
            self._fence = ""
            self._release(_DIM)
        elif set(run) - {self._fence[0]} or self._held.endswith("\n") or len(self._held) > _LONGEST_BEGINNING:
            self._do = self._code
            ended = self._held.endswith("\n")
            self._release(_CODE)
            if ended:
                self._end_line()

    def _release(self, style: str) -> None:
        held, self._held = self._held, ""
        self._give(held, style)

    def _end_line(self) -> None:
        self._do = self._begin
        self._line, self._open, self._span = frozenset(), set(), 0
        self._before, self._escaped, self._endless = " ", False, ""

    # -- within a line

    def _fence_line(self, character: str) -> None:
        """Read the rest of a fence's line. A backtick there means that it was inline code, not a fence."""
        if character == "`" and self._fence[0] == "`":
            self._span, self._fence, self._do = len(self._fence), "", self._text
            self._do(character)
        else:
            self._give(character, _DIM)
            if character == "\n":
                self._end_line()

    def _code(self, character: str) -> None:
        self._give(character, _CODE)
        if character == "\n":
            self._end_line()

    def _text(self, character: str) -> None:
        """Read text in a line. A run of markers is held until the next character is known."""
        if self._held and character != self._held[0]:
            self._marker(character)
        self._endless = self._endless if character == self._endless else ""
        if character == "\n":
            self._give(character, "")
            self._end_line()
        elif self._endless:
            self._plain(character)
        elif self._escaped:
            self._plain(character)
            self._escaped = False
        elif character in _RUNS and (character == "`" or not self._span):
            self._held += character
            if len(self._held) > _LONGEST_BEGINNING:
                self._endless, self._before = character, character
                self._release(self._styles())
        else:
            self._escaped = character == "\\" and not self._span
            self._plain(character)

    def _plain(self, character: str) -> None:
        self._give(character, self._styles())
        self._before = character

    def _marker(self, after: str) -> None:
        """End a run of markers: it opens a style, closes one, or is text."""
        run, self._held = self._held, ""
        if run[0] == "`":
            self._code_marker(len(run))
        elif len(run) <= 3:
            self._emphasis(run, after)
        else:
            self._give(run, self._styles())
        self._before = run[-1]

    def _code_marker(self, length: int) -> None:
        closes = self._span == length
        self._span = self._span or length
        self._give("`" * length, self._styles())
        if closes:
            self._span = 0

    def _emphasis(self, run: str, after: str) -> None:
        wanted = {1: {_ITALIC}, 2: {_BOLD}, 3: {_BOLD, _ITALIC}}[len(run)]
        closes = not self._before.isspace() and wanted <= self._open and not (run[0] == "_" and after.isalnum())
        opens = not after.isspace() and not self._before.isalnum() and not wanted & self._open
        if closes:
            self._open -= wanted
        self._give(run, ";".join(sorted({_DIM} | self._line)) if opens or closes else self._styles())
        if opens and not closes:
            self._open |= wanted
