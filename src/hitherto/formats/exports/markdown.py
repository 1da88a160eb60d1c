"""Markdown, for people: a conversation as a document. It is written, not read.

A heading of the first level is a conversation, one of the second a message or the beginning of another branch; there
are no others. Headings inside a message are moved two levels down. Text that would swallow the messages after it is
made safe: an open fence is closed, HTML is escaped. All other text is unchanged.
"""

import re
from collections.abc import Iterable, Iterator
from typing import IO

from ...model import Block, Setup
from .._atomic_file import OnlyWritten
from .._types import PortableConversation, PortableMessage
from ._sections import (
    call_in,
    moment,
    opening_setup,
    placeholder,
    sections,
    setup_after,
    setup_changes,
    text_in,
)

_HEADING = re.compile(r"( {0,3})(#{1,6})(?=\s|$)")
_FENCE = re.compile(r"( {0,3})(`{3,}(?!.*`)|~{3,})(.*)")
_HTML = re.compile(r" {0,3}<")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")
_ROLES = {"tool_result": "Tool result"}


def write_to(talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
    count = 0
    for talk in talks:
        for part in _document(talk):
            file.write(f"{part}\n\n".encode(errors="replace"))
        count += 1
    return count


FORMAT = OnlyWritten("markdown", (".md", ".markdown"), write_to)


def _document(talk: PortableConversation) -> Iterator[str]:
    yield f"# {_line(talk.title) or 'Conversation'}"
    setup = opening_setup(talk)
    about = [("id", talk.id), ("project", talk.project), ("provider", setup.provider), ("model", setup.model)]
    yield "\n".join(f"- {what}: {_code(value)}" for what, value in about if value)
    if setup.system_prompt:
        yield "## System prompt"
        yield _text(setup.system_prompt)
    for section in sections(talk):
        if section.title:
            yield f"## {section.title}{'' if section.after is None else f' message {_code(section.after)}'}"
        changes = setup_changes(talk, section)
        for said in section.messages:
            if said.id in changes:
                yield from _setup(changes[said.id])
            yield from _message(said)
        after = setup_after(talk) if section.is_thread else None
        if after is not None:
            yield from _setup(after)


def _setup(setup: Setup) -> Iterator[str]:
    """Yield the setup that is used from here on."""
    yield "## Setup from here on"
    about = [("provider", setup.provider), ("model", setup.model)]
    listed = [f"- {what}: {_code(value)}" for what, value in about if value]
    yield "\n".join([*listed, f"- system prompt: {'as follows' if setup.system_prompt else 'none'}"])
    if setup.system_prompt:
        yield _text(setup.system_prompt)


def _message(said: PortableMessage) -> Iterator[str]:
    m, at = said.message, moment(said)
    words = [_ROLES.get(m.role, m.role.capitalize()), _code(said.id)]
    words += [f"{at:%Y-%m-%d %H:%M:%S} UTC"] if at else []
    words += [_code(m.label)] if m.label else []
    why = (m.extra or {}).get("injected")
    words += [f"not by a person: {_code(why)}"] if isinstance(why, str) else []
    yield f"## {' · '.join(words)}"
    for block in m.blocks:
        yield _block(block, m.role, error=m.tool_result_error)


def _block(block: Block, role: str, *, error: bool) -> str:
    text = text_in(block)
    if text is None:
        return f"*[{placeholder(block)}]*"
    if block.type == "tool_call":
        tool, given = call_in(block)
        return f"**Calls {_code(tool)}**\n\n{_fence(given, 'json')}"
    if role == "tool_result":
        head = "**The tool failed**\n\n" if error else ""
        return head + _fence(text)
    if block.modality != "text":
        return f"*[{_line(block.modality)} at {_code(text)}]*"
    if block.type == "thinking":
        return "\n".join(f"> {line}" for line in ["**Thinking**", "", *_text(text).split("\n")])
    if block.type != "content":
        return f"**{_line(block.type).capitalize()}**\n\n{_fence(text)}"
    return _text(text)


def _text(text: str) -> str:
    """Return a text so that it cannot break out of its message: headings are moved down, open fences closed, HTML
    escaped."""
    lines: list[str] = []
    fence = ""  # the open fence
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        found = _FENCE.match(line)
        if fence:
            closes = found is not None and found[2].startswith(fence.strip()) and not found[3].strip()
            fence = "" if closes else fence
            lines.append(line)
        elif found is not None:
            fence = found[1] + found[2]
            lines.append(line)
        else:
            lines.append(_harmless(line, lines[-1] if lines else ""))
    return "\n".join([*lines, fence] if fence else lines)


def _harmless(line: str, before: str) -> str:
    heading = _HEADING.match(line)
    if heading is not None:
        return f"{heading[1]}{'#' * min(6, len(heading[2]) + 2)}{line[heading.end() :]}"
    start = len(line) - len(line.lstrip(" "))
    if _HTML.match(line) or (before.strip() and _UNDERLINE.match(line)):  # a line under another makes it a heading
        return f"{line[:start]}\\{line[start:]}"
    return line


def _fence(text: str, language: str = "") -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    """Return inline code on one line, in a fence longer than any inside it."""
    line = _line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if len(fence) > 1 else f"`{line}`"


def _line(text: str) -> str:
    return " ".join(text.split())
