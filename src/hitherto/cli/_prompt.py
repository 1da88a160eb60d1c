"""Reading the user's input.

On a terminal there is an editor: Enter sends, Alt+Enter, Ctrl+J or a backslash at the end make a new line, pasted text
stays one message, the arrow keys bring back earlier questions, and Tab completes commands. Earlier questions come from
the conversation and are never written to a history file. That file would be plain text beside a store that may be
sealed, and would outlive a purge.

The editor needs prompt_toolkit, from the extra `cli`. Without it there is a plain prompt: the same but for new lines by
Alt+Enter and Ctrl+J, and for completion. A backslash at the end makes a new line there. Without a terminal, lines are
read as they come.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Protocol

from .._system.terminal_text import escape_control_characters
from ..errors import MissingExtra
from ._terminal import is_terminal, say

_FIRST, _FURTHER = "> ", "  "  # the prompts of a message's first and further lines


class Prompt(Protocol):
    """Reads the user's messages and answers."""

    def read(self) -> str:
        """Return the next message. Raise `EOFError` at the end of input, `KeyboardInterrupt` at Ctrl+C."""

    def answer(self, prompt: str) -> str:
        """Return a short answer to a question."""


def open_prompt(commands: Sequence[str], history: Sequence[str]) -> Prompt:
    """Return an editor with these commands and earlier questions, or a plain line reader if there is no terminal."""
    screen = next((stream for stream in (sys.stdout, sys.stderr) if is_terminal(stream)), None)
    if screen is None or not is_terminal(sys.stdin) or os.environ.get("TERM", "dumb") == "dumb":
        return Lines()
    if find_spec("prompt_toolkit") is None:
        say(f"this is a plain prompt; {MissingExtra('prompt_toolkit', 'cli').hint} installs one with an editor")
        return Lines(history)
    from ._line_editor import Editor  # noqa: PLC0415  # slow to load, and only a terminal needs it

    return Editor((_FIRST, _FURTHER), commands, history, screen)


def ask_choice(prompt: Prompt, question: str, words: Sequence[str]) -> str:
    """Ask until the answer is one of these words or its first letter, and return the word."""
    while True:
        answer = prompt.answer(question).strip().lower().removeprefix("/")
        if answer in ("quit", "exit"):
            raise EOFError
        for word in words:
            if answer in (word, word[0]):
                return word
        say(f"one of {', '.join(words)}, or the first letter of it; Ctrl+D leaves")


class Lines:
    """Reads plain lines. The prompt goes to the terminal, never into a file."""

    def __init__(self, history: Sequence[str] = ()) -> None:
        with suppress(ImportError):
            import readline  # noqa: PLC0415  # makes input() editable, where it exists

            readline.parse_and_bind("set enable-bracketed-paste on")  # text that is pasted stays one message
            for text in history:
                if escape_control_characters(text) == text:  # readline shows it as it is
                    readline.add_history(text)

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
