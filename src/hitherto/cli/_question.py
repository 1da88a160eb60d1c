"""The files of `-f`: they are put before the question.

A text stands under its name, in a fence that is longer than any fence in it. An image or a sound is recognised by its
first bytes, never by its name, and is sent as an attachment. All files are checked before the model is asked. A file
that cannot be sent is an error that names it, and nothing is recorded.
"""

import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from .._system.terminal_text import escape_control_characters
from ..errors import InvalidArgument
from ._terminal import is_terminal

if TYPE_CHECKING:
    from ..model import Block

LONGEST_TEXT = 4_000_000  # bytes of one text: more than any model reads
LARGEST = 20_000_000  # bytes of one image or sound: providers take less
_STDIN = "-"
_DIALECTS = {"claude": "anthropic", "claude-local": "anthropic", "gemini": "gemini"}  # all others use OpenAI's
_KINDS = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"RIFF.{4}WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"ID3|\xff[\xf2\xf3\xfa\xfb]"), "audio/mpeg"),
)


class Question(NamedTuple):
    """A question: its whole content, and the words that make its title."""

    content: "str | list[str | Block]"
    words: str


def build_question(asked: str, words: str, files: "Sequence[str | Block]" = ()) -> Question:
    """Return a question with its files before it. Adjacent texts are joined into one."""
    joined: list[str | Block] = []
    for part in (*files, asked):
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] = f"{joined[-1]}\n\n{part}"
        else:
            joined.append(part)
    only = joined[0]
    return Question(only if len(joined) == 1 and isinstance(only, str) else joined, words)


def read_files(names: Iterable[str]) -> "list[str | Block]":
    """Return the content of these files as parts of a message."""
    given = list(names)
    if given.count(_STDIN) > 1:
        raise click.UsageError("standard input can be read once: -f - is given twice")
    return [_make_part(name, _read_stdin() if name == _STDIN else _read_file(name)) for name in given]


def check_accepted(provider: str, names: Sequence[str], files: "Sequence[str | Block]") -> None:
    """Raise InvalidArgument for the first file that the provider does not accept. Each later question would fail with
    it."""
    from ..dialects import dialect  # noqa: PLC0415  # help needs none
    from ..model import Message  # noqa: PLC0415  # as above

    spoken = dialect(_DIALECTS.get(provider, "openai-chat"))
    for name, part in zip(names, files, strict=True):
        losses = [] if isinstance(part, str) else spoken.build(Message.user([part])).losses
        if losses:
            raise _refusal(name, f"cannot be sent to {provider}: {'; '.join(losses)}")
        if provider == "local" and not isinstance(part, str):
            raise _refusal(name, "is not text, and the local model takes only text")


def _make_part(name: str, data: bytes) -> "str | Block":
    from ..model import Block  # noqa: PLC0415  # help needs none

    kind = next((kind for beginning, kind in _KINDS if beginning.match(data)), None)
    if kind is not None and not _is_text(data):
        made = Block.image if kind.startswith("image/") else Block.audio
        return made(data, kind)
    if len(data) > LONGEST_TEXT:
        raise _refusal(name, f"is longer than {LONGEST_TEXT // 1_000_000} MB, which is more than any model reads")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        hint = "if it is text in another encoding: iconv -f latin1 -t utf-8 FILE | hitherto chat -f - PROMPT"
        raise _refusal(name, "is neither UTF-8 text nor a known kind of image or sound", hint) from None
    if "\0" in text:
        raise _refusal(name, "is not text: it holds zero characters")
    return fence_text("standard input" if name == _STDIN else name, text)


def _is_text(data: bytes) -> bool:
    """Return True for text that happens to begin like an image or a sound. Those hold zeros, or are not UTF-8."""
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def fence_text(name: str, text: str) -> str:
    """Return a text under its name, in a fence that is longer than any fence in it.

    >>> print(fence_text("a.txt", "hello"))
    a.txt:
    ```
    hello
    ```
    """
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    end = "" if text.endswith("\n") else "\n"
    return f"{escape_control_characters(' '.join(name.split()))}:\n{fence}\n{text}{end}{fence}"


def _read_file(name: str) -> bytes:
    """Return the bytes of a file. Refuse pipes, which may block, and devices, which may not end."""
    try:
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with open(descriptor, "rb") as file:
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(kind):
                raise IsADirectoryError
            if not stat.S_ISREG(kind):
                raise _refusal(name, "is a pipe or a device, not a file; -f - reads standard input")
            data = file.read(LARGEST + 1)
    except InvalidArgument:
        raise
    except IsADirectoryError:
        raise _refusal(name, "is a folder") from None
    except (OSError, ValueError) as error:  # ValueError: the name holds a zero character
        reason = error.strerror if isinstance(error, OSError) else "this is not a file name"
        raise _refusal(name, f"cannot be read: {reason}", "look at the path; ls -l shows who may read it") from None
    return _check_size(name, data)


def _read_stdin() -> bytes:
    if sys.stdin is None or is_terminal(sys.stdin):
        raise click.UsageError("-f - reads standard input, which is the terminal")
    return _check_size(_STDIN, sys.stdin.buffer.read(LARGEST + 1))


def _check_size(name: str, data: bytes) -> bytes:
    if len(data) > LARGEST:
        raise _refusal(name, f"is larger than {LARGEST // 1_000_000} MB")
    if not data:
        raise _refusal(name, "is empty")
    return data


def _refusal(name: str, why: str, hint: str = "leave it out, or bring another file") -> InvalidArgument:
    return InvalidArgument(f"-f {escape_control_characters(name)} {why}", hint=hint)
