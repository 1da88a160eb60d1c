"""Streaming Markdown: the painted text is the given text, however it was cut into pieces, and no style stays behind.

Requirements: STYLE on the command line.
"""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitherto._system.terminal_text import escape_control_characters
from hitherto.cli._markdown import Painter

from ..support.command import Open, World

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_MARKS = ["*", "**", "***", "_", "`", "```", "~~~", "# ", "#", "- ", "-", "+ ", "1. ", "12) ", "> ", "---", "\\", "="]
_WORDS = ["\n", "\r", "\r\n", " ", "\t", "word", "a", "é", "漢", "\x1b[31m", "\u202e", "\x00", "```py", "* * *", "|"]
_PARTS = st.sampled_from([*_MARKS, *_WORDS])
_TEXTS = st.lists(_PARTS | st.text(max_size=3), max_size=40).map("".join)


def paint(*pieces: str) -> str:
    painter = Painter()
    return "".join(painter.feed(piece) for piece in pieces) + painter.finish()


@given(_TEXTS, st.lists(st.integers(0, 120), max_size=8))
def test_how_the_text_is_cut_makes_no_difference(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert paint(*pieces) == paint(text) == paint(*text)


@given(_TEXTS)
def test_nothing_is_left_out_and_nothing_does_anything_to_the_terminal(text: str) -> None:
    assert _STYLE.sub("", paint(text)) == escape_control_characters(text)


@given(_TEXTS)
def test_no_style_goes_beyond_its_line_or_the_answer(text: str) -> None:
    """This holds if the answer ends anywhere."""
    for end in range(len(text) + 1):
        for line in paint(text[:end]).split("\n"):
            assert (_STYLE.findall(line) or ["\x1b[0m"])[-1] == "\x1b[0m"


@given(_TEXTS)
def test_only_the_beginning_of_a_line_or_a_marker_is_held_back(text: str) -> None:
    painter, given_out = Painter(), ""
    for end, character in enumerate(text, 1):
        given_out += _STYLE.sub("", painter.feed(character))
        held = (
            text[:end].replace("\r\n", "\n")[len(given_out) :] if "<U+" not in escape_control_characters(text) else ""
        )
        assert re.fullmatch(r"(#{1,6}|\d{1,9}[.)]?|[-+*_`~ \t]{0,81})\r?", held), held


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 2 ** 3, a*b, snake_case_name, \\*no\\*", "plain text, 2 ** 3, a*b, snake_case_name, \\*no\\*"),
        ("## Title\nx", "<1>## Title<0>\nx"),
        ("#hash", "#hash"),
        ("####### seven", "####### seven"),
        ("a **b** c", "a <2>**<0><1>b<0><2>**<0> c"),
        ("an *e* or _e_", "an <2>*<0><3>e<0><2>*<0> or <2>_<0><3>e<0><2>_<0>"),
        ("***both***", "<2>***<0><1;3>both<0><2>***<0>"),
        ("**open\nnext", "<2>**<0><1>open<0>\nnext"),
        ("use `a **b**` now", "use <36>`a **b**`<0> now"),
        ("``a ` b``", "<36>``a ` b``<0>"),
        ("- one\n* two\n+ three\n1. four\n", "<33>- <0>one\n<33>* <0>two\n<33>+ <0>three\n<33>1. <0>four\n"),
        ("  - inner", "  <33>- <0>inner"),
        ("-no list", "-no list"),
        ("> said *so*", "<2>><0> <2>said *<0><2;3>so<0><2>*<0>"),
        ("---\n***\n* * *\n", "<2>---<0>\n<2>***<0>\n<2>* * *<0>\n"),
        ("```py\n# *x*\n  y\n```\n*z*", "<2>```py<0>\n<36># *x*<0>\n  <36>y<0>\n<2>```<0>\n<2>*<0><3>z<0><2>*<0>"),
        ("~~~~\n```\n~~~\n~~~~\nx", "<2>~~~~<0>\n<36>```<0>\n<36>~~~<0>\n<2>~~~~<0>\nx"),
        ("```\nx\n```", "<2>```<0>\n<36>x<0>\n<2>```<0>"),
        ("```inline``` text", "<2>```inline<0><36>```<0> text"),
    ],
    ids=lambda value: value[:20],
)
def test_markdown_is_painted(text: str, shown: str) -> None:
    assert paint(text) == re.sub(r"<([0-9;]+)>", "\x1b[\\1m", shown)


def test_a_long_line_of_one_sign_takes_no_time() -> None:
    for sign in "-*_`~#>1 \\":
        assert _STYLE.sub("", paint(*[sign * 1000] * 50)) == sign * 50_000


MARKED = ["# Ti", "tle\nsome **bo", "ld** text\n", "```\ncode\n```\n", "end"]


def test_an_answer_is_painted_on_a_terminal_with_colours(world: World, terminal: Open) -> None:
    world.service.pieces = list(MARKED)
    shell = terminal("x")
    assert shell.end() == 0
    assert "\x1b[1m# Title\x1b[0m\r\n" in shell.shown
    assert "\x1b[1mbold\x1b[0m" in shell.shown
    assert "".join(MARKED).replace("\n", "\r\n") + "\r\n" in shell.plain


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_without_colours_the_text_is_as_it_is(world: World, terminal: Open, env: dict[str, str]) -> None:
    world.service.pieces = list(MARKED)
    shell = terminal("x", **env)
    assert shell.end() == 0
    assert shell.shown.endswith("".join(MARKED).replace("\n", "\r\n") + "\r\n")


def test_in_a_pipe_the_text_is_as_it_is(world: World) -> None:
    world.service.pieces = list(MARKED)
    assert world.run("x").stdout == "".join(MARKED) + "\n"


def test_an_answer_that_is_stopped_leaves_no_style(world: World, terminal: Open) -> None:
    world.service.pieces = ["some **bold", None]
    shell = terminal()
    at = shell.read("> ")
    shell.press("x\r")
    at = shell.read("bold", at)
    shell.stop(at)
    assert shell.shown[at:].removeprefix("^C").startswith("\x1b[0m\r\n")
    shell.press("\x04")
    assert shell.end() == 0


@pytest.mark.parametrize("sign", ["*", "_", "`"])
def test_a_run_without_an_end_is_text_and_is_given_out_as_it_comes(sign: str) -> None:
    painter = Painter()
    assert painter.feed("x" + sign * 1000).count(sign) == 1000
    assert painter.feed("\n**b**") == paint("\n**b**").removesuffix(painter.finish())
