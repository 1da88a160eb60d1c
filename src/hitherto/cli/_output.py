"""Output for people and programs: lines with colours and a pager on a terminal, lines of JSON, a confirmation before an
irreversible step, and a progress meter.

Callers escape control characters before they print. JSON output escapes them itself.

The pager is not click's, which knows `PAGER` alone: it cannot open at the end, shows short output in the pager, too,
and says nothing if the pager cannot be run.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import TextIO

import click

from .._system.terminal_text import SIGNS
from ._terminal import colours, is_terminal, line, say, width, write_stderr

_PLAIN = "\x1b[0m"
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m",
           "blue": "\x1b[34m", "magenta": "\x1b[35m", "cyan": "\x1b[36m", "mark": "\x1b[1;33m"}  # fmt: skip


def paint(text: str, style: str) -> str:
    """Return the text in a colour, bold or dim, if standard output shows such styles. The caller has escaped control
    characters already."""
    return f"{_STYLES[style]}{text}{_PLAIN}" if text and colours(sys.stdout) else text


def print_lines(lines: Iterable[str], *, at_end: bool = False) -> None:
    """Print lines; on a terminal in a pager, if they do not fit on the screen. With `at_end` the pager opens at the
    end."""
    command = _pager()
    if command is not None and at_end and os.path.basename(command[0]) == "less":
        command.append("+G")
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
    """Return the pager's command; None if there is no terminal, or if the user wants no pager."""
    if not (is_terminal(sys.stdout) and is_terminal(sys.stdin)):
        return None
    import shlex  # noqa: PLC0415  # a pipe needs no pager

    from .._system import config_file  # noqa: PLC0415  # as above

    for setting in (os.environ.get("HITHERTO_PAGER"), config_file.load().get("pager"), os.environ.get("PAGER")):
        if setting is not None:
            try:
                words = shlex.split(setting)
            except ValueError as error:
                say(f"warning: the pager cannot be run: {error}")
                return None
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
        pass  # the user has left the pager
    finally:
        with suppress(BrokenPipeError):
            pager.stdin.close()
        while pager.poll() is None:
            with suppress(KeyboardInterrupt):  # Ctrl+C is for the pager
                pager.wait()


_SPELLED = {code: f"\\u{code:04x}" for code in SIGNS if code > 0x1F}  # JSON escapes the lower ones itself


def print_json(value: object) -> None:
    """Print one line of JSON. Characters that affect a terminal are escaped, which does not change the value."""
    import msgspec  # noqa: PLC0415  # only JSON output needs it

    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a file name need not be valid text
        text = msgspec.json.encode(_text(msgspec.to_builtins(value))).decode()
    sys.stdout.write(f"{text.translate(_SPELLED)}\n")


def _text(value: object) -> object:
    """Return the value with a replacement character for each surrogate in its texts."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_text(key): _text(inner) for key, inner in value.items()}
    return [_text(inner) for inner in value] if isinstance(value, list | tuple) else value


def count_of(count: int, what: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "message"), count_of(1200, "branch")
    ('1 message', '1,200 branches')
    """
    return f"{count:,} {what}{'' if count == 1 else 'es' if what.endswith('ch') else 's'}"


# -- confirmation and progress


def confirm(question: str, *, yes: bool) -> None:
    """Ask before an irreversible step; abort unless the answer is yes. Without a terminal --yes is required."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError("this cannot be undone, and there is no terminal to ask on: --yes says that it is meant")
    say(f"{question} [y/N] ", end="")
    answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise click.Abort


class Meter:
    """Shows progress on one line of a terminal, which it overwrites. Off a terminal it shows nothing."""

    _EVERY_SECONDS = 0.1
    _PATIENCE_SECONDS = 0.5  # shorter work shows no progress

    def __init__(self, what: str, unit: str, total: int = 0) -> None:
        """`unit` is the noun to count; `total` is the approximate number, if it is known."""
        self._what, self._unit, self._total, self._shown = what, unit, total, False
        self._next = time.monotonic() + self._PATIENCE_SECONDS

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            write_stderr("\r\x1b[K")

    def __call__(self, done: int, total: int | None = None) -> None:
        now = time.monotonic()
        if now < self._next or not _moves(sys.stderr):
            return
        self._next, self._shown = now + self._EVERY_SECONDS, True
        share = min(1.0, done / most) if (most := total or self._total) else None
        bar = "" if share is None else f" [{'#' * round(20 * share):.<20}] {share:4.0%}"
        write_stderr("\r\x1b[K" + line(f"{self._what}:{bar} {count_of(done, self._unit)}", width() - 1))


def _moves(stream: TextIO) -> bool:
    return is_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"
