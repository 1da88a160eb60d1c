"""The prompt without prompt_toolkit: plain, and it says how to get the editor. With it nothing is said.

Requirements: C9.
"""

import sys

import pytest

from ..support.command import Open, World

_HINT = "this is a plain prompt; pip install 'hitherto[cli]' installs one with an editor"
_WITHOUT = "import sys; sys.modules['prompt_toolkit'] = None; from hitherto.cli import main; main(sys.argv[1:])"


@pytest.fixture
def plain(world: World) -> list[str]:
    """`hitherto chat` where prompt_toolkit is not installed."""
    return [sys.executable, "-c", _WITHOUT, *world.chatting()[3:]]


def test_without_the_editor_there_is_a_plain_prompt_that_says_so_once(
    world: World, terminal: Open, plain: list[str]
) -> None:
    shell = terminal(command=plain)
    at = shell.read("> ", shell.read(_HINT))
    shell.press("one\r")
    at = shell.read("> ", shell.read("Good morning.", at))
    shell.press("two\\\rlines\r")
    shell.read("> ", shell.read("Good morning.", at))
    shell.press("\x04")
    assert shell.end() == 0
    assert shell.shown.count("hitherto[cli]") == 1
    assert [text for role, text in world.thread() if role == "user"] == ["one", "two\nlines"]


def test_the_plain_prompt_keeps_pasted_lines_together_and_brings_questions_back(
    world: World, terminal: Open, plain: list[str]
) -> None:
    import readline

    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit knows no bracketed paste")
    world.run("earlier")
    shell = terminal(command=plain)
    at = shell.read("> ", shell.read(_HINT))
    shell.press("\x1b[200~one\ntwo\x1b[201~\r")
    at = shell.read("> ", shell.read("Good morning.", at))
    shell.press("\x1b[A\x1b[A\r")
    shell.read("> ", shell.read("Good morning.", at))
    shell.press("\x04")
    assert shell.end() == 0
    assert [text for role, text in world.thread() if role == "user"] == ["earlier", "one\ntwo", "earlier"]


def test_with_the_editor_nothing_is_said_about_it(terminal: Open) -> None:
    shell = terminal()
    shell.read("> ")
    shell.press("\x04")
    assert shell.end() == 0
    assert "hitherto[cli]" not in shell.shown


def test_the_prompt_is_styled_where_there_are_colours(terminal: Open) -> None:
    for env, styled in (({}, True), ({"NO_COLOR": "1"}, False)):
        shell = terminal(**env)
        shell.read("> ")
        shell.press("\x04")
        assert shell.end() == 0
        assert ("\x1b[0;32;1m> " in shell.shown) == styled, repr(shell.shown)


def test_what_is_missing_for_a_conversation_is_one_command(world: World, terminal: Open) -> None:
    without = f"import sys; sys.modules['openai'] = None; {_WITHOUT.removeprefix('import sys; ')}"
    one = terminal(command=[sys.executable, "-c", without, "chat", "--provider", "openai"], OPENAI_API_KEY="sk-x")
    assert one.end() == 1
    assert "hint: pip install 'hitherto[cli,openai]'" in one.plain
    assert not world.place.exists()
