"""Line breaks between words: what a terminal shows of an answer that is longer than its lines.

The screen below is a small terminal: it knows the two movements that the breaker makes, and breaks full lines itself.
"""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitherto.cli._line_breaks import LineBreaker
from hitherto.cli._markdown import Painter

from ..support.command import Open, World

_TOKEN = re.compile(r"\x1b\[(\d*(?:;\d+)*)([A-Za-z])|(.|\n)", re.DOTALL)
_WORDS = st.text("abcdefgh.,*_`", min_size=1, max_size=14)
_LINES = st.lists(_WORDS, min_size=1, max_size=12).map(" ".join)


class Screen:
    """The lines of a terminal of some columns, and the style of each character."""

    def __init__(self, columns: int) -> None:
        self.columns, self.column, self.style = columns, 0, "0"
        self.lines: list[list[tuple[str, str]]] = [[]]

    def show(self, text: str) -> "Screen":
        for found in _TOKEN.finditer(text):
            if found[2] == "m":
                self.style = found[1]
            elif found[2] == "D":
                assert self.column < self.columns, "where the cursor is in a full line differs between terminals"
                self.column -= int(found[1])
                assert self.column >= 0
            elif found[2] == "K":
                del self.lines[-1][self.column :]
            elif found[3] == "\n":
                self.column = 0
                self.lines.append([])
            else:
                self._put(found[3])
        return self

    def _put(self, character: str) -> None:
        size = 2 if "\u3000" < character < "\uffe0" else 1
        if self.column + size > self.columns:
            self.column = 0
            self.lines.append([])
        self.lines[-1][self.column :] = [(character, self.style), *[("", "")] * (size - 1)]
        self.column += size

    @property
    def texts(self) -> list[str]:
        return ["".join(character for character, _ in line).rstrip() for line in self.lines]


def show(text: str, columns: int, cuts: list[int] | None = None) -> Screen:
    painter = Painter(LineBreaker(lambda: columns))
    places = sorted({0, len(text), *(cut for cut in cuts or [] if cut < len(text))})
    pieces = [painter.feed(text[a:b]) for a, b in pairwise(places)]
    return Screen(columns).show("".join([*pieces, painter.finish()]))


@given(st.lists(_LINES, max_size=5), st.integers(20, 60), st.lists(st.integers(0, 400), max_size=5))
def test_no_word_is_cut_and_none_is_lost(lines: list[str], columns: int, cuts: list[int]) -> None:
    text = "\n".join(f"x{line}" for line in lines)  # no line begins as code or as a rule
    screen = show(text, columns, cuts)
    assert " ".join(screen.texts).split() == text.split()
    assert all(len(line) < columns for line in screen.texts)
    control = Screen(columns).show(text)
    if any(len(line) > columns for line in text.split("\n")):
        assert len(control.lines) > len(lines)


@given(st.lists(_LINES, max_size=5), st.integers(20, 60))
def test_styles_stay_with_their_characters(lines: list[str], columns: int) -> None:
    text = "\n".join(f"x{line}" for line in lines)
    broken, whole = show(text, columns), show(text, 10_000)

    def characters(screen: Screen) -> list[tuple[str, str]]:
        return [one for line in screen.lines for one in line if one[0] != " "]

    assert characters(broken) == characters(whole)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("an unused **import** breaks the step", ["an unused", "**import** breaks", "the step"]),
        ("# a heading of a few words", ["# a heading of a", "few words"]),
        ("```\na line of code that is long\n```", ["```", "a line of code that", "is long", "```"]),
        ("| a table | of two columns |\nand text after it", ["| a table | of two c", "olumns |", "and text after it"]),
        ("see https://example.test/a/very/long/path now", ["see", "https://example.test", "/a/very/long/path", "now"]),
        ("漢字漢字漢字漢字漢字漢字", ["漢字漢字漢字漢字漢", "字漢字"]),
        ("nineteen characters", ["nineteen characters"]),
        ("twenty characters ok and", ["twenty characters", "ok and"]),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_lines_of_twenty_columns(text: str, lines: list[str]) -> None:
    assert show(text, 20).texts == lines


def test_a_word_of_uncertain_width_is_left_to_the_terminal() -> None:
    """A combining accent may take a column or none, so nothing is taken back."""
    shown = Painter(LineBreaker(lambda: 20)).feed("fourteen words e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301")
    assert "\x1b" not in shown


def test_an_answer_is_broken_between_words_in_a_narrow_terminal(world: World, terminal: Open) -> None:
    world.service.pieces = ["An unused imp", "ort breaks the li", "nt step."]
    one = terminal("x", size=(20, 24))
    assert one.end() == 0
    answer = one.shown[one.shown.rindex("An unused") :].replace("\r\n", "\n")
    assert Screen(20).show(answer).texts == ["An unused import", "breaks the lint", "step.", ""]
    assert world.thread()[-1] == ("assistant", "An unused import breaks the lint step.")
