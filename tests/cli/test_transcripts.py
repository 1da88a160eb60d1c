"""The documentation's transcripts of the command line are true.

The transcripts are in docs/commands.md, docs/data-protection.md and tests/transcripts; `support.transcripts` describes
the comparison.
"""

import os
from pathlib import Path

import pytest

from ..support.command import World
from ..support.transcripts import Names, Player, play, write

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    ROOT / "docs" / "commands.md",
    ROOT / "docs" / "data-protection.md",
    *sorted((ROOT / "tests" / "transcripts").glob("*.md")),
]
ANSWERS = {  # of the model, by what the question begins with
    "Why does the build fail": "An unused import breaks the lint step: `os` in **build.py**.",
    "And how do I find": "Run `ruff check`; it names the file and the line.",
    "Would a newer Python": "No. The linter would say the same.",
    "What is a monad": "A monoid in the category of endofunctors.",
}


@pytest.fixture
def player(world: World) -> Player:
    world.service.answers = ANSWERS
    return Player(world)


@pytest.mark.skipif(os.environ.get("HITHERTO_TRANSCRIPTS") != "write", reason="writes the files anew")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_write(path: Path, player: Player) -> None:
    write(path, player.in_terminal, player.ids)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_terminal_shows_what_the_transcript_shows(path: Path, player: Player) -> None:
    assert not (wrong := play(path, player.in_terminal, ordered=True)), wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pipes_carry_what_the_transcript_shows(path: Path, player: Player) -> None:
    assert not (wrong := play(path, player.in_pipes, ordered=False)), wrong


def test_another_word_or_another_id_does_not_fit() -> None:
    """The control: only variable parts may vary, and an id stands for one id."""
    names = Names()
    assert names.fits("k3f9ZQ (2024-01-15 10:30) [USER] Why?", "aaB2c3 (2026-11-16 08:05) [USER] Why?")
    assert names.translate("hitherto show k3f9ZQ") == "hitherto show aaB2c3"
    assert not names.fits("k3f9ZQ (2024-01-15 10:30) [USER] Why?", "aaB2c3 (2026-11-16 08:05) [USER] How?")
    assert not names.fits("k3f9ZQ: gone", "zzZ9z9: gone")
    assert not names.fits("other1: gone", "aaB2c3: gone")
    assert not names.fits("kept: 3 messages", "kept: messages")
    assert not names.fits("in ./x/chats.db", "in ./x/other.db")
