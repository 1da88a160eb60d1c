"""Reading what somebody types.

On a terminal there is an editor: Enter sends, Alt+Enter, Ctrl+J or a backslash at the end make a new line, pasted text
stays one message, the arrow keys bring back what was asked before, and Tab completes commands. What was asked before
comes from the conversation itself and is never written to a file of its own: that would be plain text beside a store
that may be sealed, and would outlive what is purged.

Where there is no such terminal, lines are read as they come.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from ._terminal import is_terminal, say

_FIRST, _FURTHER = "> ", "  "  # before the first line of a message, and before each further one


class Prompt(Protocol):
    """Asks somebody."""

    def read(self) -> str:
        """What is said next. `EOFError` if somebody leaves, `KeyboardInterrupt` if in a hurry."""

    def answer(self, prompt: str) -> str:
        """A short answer to a question of ours."""


def open_prompt(commands: Sequence[str], said: Sequence[str]) -> Prompt:
    """An editor that knows these commands and what was said before, or what there can be instead."""
    screen = next((stream for stream in (sys.stdout, sys.stderr) if is_terminal(stream)), None)
    if screen is None or not is_terminal(sys.stdin) or os.environ.get("TERM", "dumb") == "dumb":
        return Lines()
    from ._editor import Editor  # noqa: PLC0415  # takes a while to load, and only people need it

    return Editor((_FIRST, _FURTHER), commands, said, screen)


def ask_choice(asking: Prompt, prompt: str, words: Sequence[str]) -> str:
    """One of these words, by itself or by its first letter. A sentence is no choice, whatever it begins with."""
    while True:
        answer = asking.answer(prompt).strip().lower().removeprefix("/")
        if answer in ("quit", "exit"):
            raise EOFError
        for word in words:
            if answer in (word, word[0]):
                return word
        say(f"one of {', '.join(words)}, or the first letter of it; Ctrl+D leaves")


class Lines:
    """Lines as they come. The prompt goes to the terminal, never into a file."""

    def __init__(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415  # editing for input(), where there is such a thing

    def read(self) -> str:
        text = self.answer(_FIRST)
        while text.endswith("\\"):
            text = f"{text[:-1]}\n{self.answer(_FURTHER)}"
        return text

    def answer(self, prompt: str) -> str:
        if is_terminal(sys.stdout):
            return input(prompt)
        say(prompt, end="")
        text = sys.stdin.readline()
        if not text:
            raise EOFError
        return text.rstrip("\n")
