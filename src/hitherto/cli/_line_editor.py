"""The line editor of the prompt. It is loaded only on a terminal.

Text that was typed while an answer arrived is not lost. The terminal ended those lines itself, which looks like Ctrl+J
to an editor. A single line is sent, as the user meant it. Several lines may have been pasted, so they stay in the
editor.
"""

import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from .._system.terminal_text import SIGNS
from ._terminal import colours

_HARMLESS = {code: "\ufffd" for code in SIGNS if code >= 0xA0}  # the editor replaces the lower ones itself


class Editor:
    """A prompt with editing, history and completion."""

    def __init__(
        self, prompts: tuple[str, str], commands: Sequence[str], history: Sequence[str], screen: TextIO
    ) -> None:
        """`prompts` are shown before the first line of a message and before each further line."""
        first, further = prompts
        self._prompt: StyleAndTextTuples = [("bold ansigreen" if colours(screen) else "", first)]
        self._input, output = create_input(sys.stdin), create_output(screen)
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            history=InMemoryHistory(list(history)),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            prompt_continuation=further,
            key_bindings=_keys(),
            input_processors=[_Shown()],
            enable_suspend=True,
            input=self._input,
            output=output,
        )
        self._short: PromptSession[str] = PromptSession(key_bindings=_keys(), input=self._input, output=output)

    def read(self) -> str:
        return self._ask(self._session, self._prompt)

    def answer(self, prompt: str) -> str:
        return self._ask(self._short, prompt)

    def _ask(self, session: PromptSession[str], prompt: str | StyleAndTextTuples) -> str:
        typed = _read_typed()
        with self._input.raw_mode():  # Enter is no longer translated
            typed += _read_typed()
            pressed: list[KeyPress] = []
            parser = Vt100Parser(pressed.append)
            parser.feed(typed.replace("\n", "\r") if typed.count("\n") == 1 else typed)
            parser.flush()
            store_typeahead(self._input, _drop_interrupted([*get_typeahead(self._input), *pressed]))
            return session.prompt(prompt)


def _drop_interrupted(pressed: list[KeyPress]) -> list[KeyPress]:
    """Drop the keys that were typed before the last Ctrl+C.

    That Ctrl+C stopped the answer. So it clears the text before it, and does not leave the prompt."""
    last = max((i for i, press in enumerate(pressed) if press.key == Keys.ControlC), default=-1)
    return pressed[last + 1 :]


def _read_typed() -> str:
    """Return the input that the terminal holds already."""
    data = b""
    with suppress(OSError):  # the terminal is gone; the editor will notice
        while select.select([sys.stdin], [], [], 0)[0]:
            piece = os.read(sys.stdin.fileno(), 65536)
            data += piece or b"\x04"  # Ctrl+D: the end of input outside of an editor
            if not piece:
                break
    return data.decode(errors="replace")


class _Shown(Processor):
    """Shows the text with a replacement for each character that would reorder the line."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        return Transformation([(f[0], f[1].translate(_HARMLESS), *f[2:]) for f in transformation_input.fragments])


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)  # and not in a search through the history

    @keys.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    @keys.add("c-j", filter=typing)
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=typing)
    @keys.add("<sigint>", filter=typing)
    def clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return keys
