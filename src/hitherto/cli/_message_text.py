"""Messages for people: a header with role and time, then the content.

    abc123 (2024-01-15 10:30) [USER]
    Why does the build fail?

    def456 (2024-01-15 10:31) [ASSISTANT] some-model, 1,200 tokens in, 34 out
    I will look.
    → read(path="Makefile")

    ghi789 (2024-01-15 10:31) [TOOL RESULT] ← 1,234 bytes: all: build test

Tool calls and their results are folded to a line each, because they are long and meant for the model; so is what no
person wrote (`extra["injected"]`), and an answer that is a thought alone. Images and other attachments are named and
never loaded.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .._system.terminal_text import escape_control_characters
from ._output import paint
from ._terminal import is_terminal, line, moment, width
from ._tree import Brief, brief_line, role_tag, summarise_blocks, why_injected

if TYPE_CHECKING:
    from ..model import Block, Saved, Setup

_PIPE = 120  # columns in a pipe without COLUMNS
_STYLES = {"user": "cyan", "assistant": "green", "tool_result": "yellow"}
_ASCII = str.maketrans({"→": "->", "←": "<-", "…": "~", "●": "*", "○": "o", "│": "|", "├": "|", "┊": ":", "─": "-",
                        "┘": "'"})  # fmt: skip


def room() -> int:
    """Return the columns that a line may have: those of the terminal; in a pipe those of COLUMNS, else 120."""
    return width() if is_terminal(sys.stdout) or os.environ.get("COLUMNS") else _PIPE


def fit_encoding(text: str) -> str:
    """Return the line in characters that standard output can show."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-")
    return text if encoding.startswith("utf") else text.translate(_ASCII)


def format_brief(message: Brief, text: str | None = None, columns: int | None = None) -> str:
    """Return a message on one line, cut to the width, its id in the colour of its role."""
    cut = line(brief_line(message) if text is None else text, columns or room())
    end = len(message.id)
    return paint(cut[:end], _STYLES.get(message.role, "dim")) + cut[end:]


# -- for people


def thread_lines(messages: "Sequence[Saved]", held_with: "dict[str, Setup]", *, full: bool) -> Iterator[str]:
    """Yield the lines of a thread. `held_with` maps a message to the setup from there on; `full` unfolds everything."""
    setup: Setup | None = None
    for number, message in enumerate(messages):
        before, setup = setup, held_with.get(message.id, setup)
        if number:
            yield ""
        if full and setup and setup.system_prompt and (not before or before.system_prompt != setup.system_prompt):
            yield paint("[SYSTEM PROMPT]", "magenta")
            yield from (*_lines(setup.system_prompt), "")
        yield from message_lines(message, setup.model if setup else "", full=full)


def message_lines(message: "Saved", model: str, *, full: bool) -> Iterator[str]:
    """Yield the lines of one message: a header, and its content."""
    header = paint(message_header(message, model), _STYLES.get(message.role, "dim"))
    why = why_injected(message.extra)
    if message.role == "tool_result" and not full:
        yield f"{header} {_result(message)}"
    elif why and not full:
        yield f"{header} {_fold(message, f'({why})')}"
    elif not full and message.blocks and all(block.type == "thinking" for block in message.blocks):
        yield f"{header} {_fold(message, '(thinking)')}"
    else:
        yield header
        for block in message.blocks:
            yield from _block_lines(block, full=full)


def message_header(message: "Saved", model: str = "") -> str:
    """Return the header of a message: id, time and role; of an answer also its model and tokens."""
    words = [model] if model and message.role == "assistant" else []
    if message.usage is not None:
        words.append(f"{message.usage.input_tokens:,} tokens in, {message.usage.output_tokens:,} out")
    if message.tool_result_error:
        words.append("an error")
    if message.label:
        words.append(f"label {message.label}")
    if (message.extra or {}).get("interrupted") is True:
        words.append("interrupted")
    header = f"{message.id} ({moment(message.created_at)}) {role_tag(message.role)} {', '.join(words)}"
    return escape_control_characters(" ".join(header.split()))


def _block_lines(block: "Block", *, full: bool) -> Iterator[str]:
    why = why_injected(block.extra)
    if why and not full:
        yield paint(line(f"({why}) {summarise_blocks([block])}", room()), "dim")
    elif block.type == "tool_call":
        yield from (paint(text, "dim") for text in _call(block, full=full))
    elif not isinstance(block.content, str):
        yield line(f"[{block.mime_type}, {_size(block):,} bytes]", room())
    elif block.type == "content":
        yield from _lines(block.content)
    elif full:
        yield from (paint(text, "dim") for text in _lines(f"({block.type}) {block.content}"))


def _lines(text: str) -> list[str]:
    """Split a text into lines. A pager counts lines, so each must stand alone."""
    return escape_control_characters(text).rstrip("\n").split("\n") if text else []


def _call(block: "Block", *, full: bool) -> list[str]:
    """Return a tool call: `→ read(path="x")`."""
    import msgspec  # noqa: PLC0415  # most threads have no tool calls

    given = block.arguments if block.tool_name else block.content  # some providers' calls have no arguments
    if isinstance(given, dict):
        pairs = [f"{name}={msgspec.json.encode(value).decode()}" for name, value in given.items()]
    else:
        pairs = [given] if isinstance(given, str) else []
        pairs += [msgspec.json.encode(given).decode()] if isinstance(given, int | float | list) else []
    name = block.tool_name or "a tool"
    if not full:
        return [line(f"→ {name}({', '.join(pair[:1_000] for pair in pairs)})", room())]
    return _lines("\n".join([f"→ {name}(", *(f"    {pair}," for pair in pairs), ")"]))


def _result(message: "Saved") -> str:
    """Return a tool result: `← 1,234 bytes: the first words`."""
    size = sum(_size(block) for block in message.blocks)
    return _fold(message, f"← {size:,} bytes:")


def _fold(message: "Saved", words: str) -> str:
    """Return these words and the first ones of a message, on the rest of its header's line."""
    left = max(20, room() - len(message_header(message)) - 1)
    return paint(line(f"{words} {summarise_blocks(message.blocks)}", left), "dim")


def _size(block: "Block") -> int:
    content = block.content
    if isinstance(content, str):
        return len(content.encode(errors="surrogatepass"))
    return len(content) if isinstance(content, bytes) else content.size


# -- for programs


def as_json(message: "Saved", model: str | None = None) -> dict[str, object]:
    """Return a message as JSON fields, without the content of attachments."""
    from msgspec.structs import asdict  # noqa: PLC0415  # as above

    m = message
    return {
        "id": m.id, "parent": m.parent, "conversation": m.conversation, "seq": m.seq, "role": m.role,
        "created_at": m.created_at, "label": m.label, "text": m.text, "blocks": [_block(b) for b in m.blocks],
        "error": m.tool_result_error, "model": model or None, "usage": None if m.usage is None else asdict(m.usage),
        "link": m.link, "main": m.main, "extra": _plain(m.extra),
    }  # fmt: skip


def _block(block: "Block") -> dict[str, object]:
    text = block.content if isinstance(block.content, str) else None
    described = {"type": block.type, "modality": block.modality, "mime_type": block.mime_type, "id": block.id}
    return described | {"text": text, "size": _size(block)}


def _plain(value: object) -> object:
    """Return the value with the size of each attachment in place of its content."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    size = getattr(value, "size", None)
    return value if size is None else {"size": size}
