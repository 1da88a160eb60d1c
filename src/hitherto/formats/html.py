"""One self-contained page of HTML, for people. It is written, not read.

Messages may hold any content, so all of it is shown as text: none of it becomes markup or a link. The page has no
script and fetches nothing; its content security policy forbids both. Images are embedded, if their type cannot hold a
script. Tool calls, their results and thoughts are folded.
"""

import base64
from collections.abc import Iterable
from html import escape
from typing import IO

from .._terminal_text import escape_control_characters
from ..attachment import Attachment
from ..dialects._missing_attachments import has_hole
from ..model import Block, Setup
from ._atomic_file import OnlyWritten
from ._sections import (
    Section,
    call_in,
    moment,
    opening_setup,
    placeholder,
    sections,
    setup_after,
    setup_changes,
    text_in,
)
from ._types import PortableConversation, PortableMessage

_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_AT_ONCE = 3 << 16  # bytes of an image: a multiple of three, so that the pieces in base64 are one
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """\
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --user: #2a6fdb; --other: #777; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff; }
@media (prefers-color-scheme: dark) { body { color: #e4e4e4; background: #16181c; } }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; margin-top: 2.5rem; border-top: 2px solid var(--line); padding-top: 1rem; }
article { margin: 1rem 0; padding: .2rem 1rem .6rem; border-left: 3px solid var(--other); background: var(--soft); }
article.user { border-color: var(--user); }
header, dl, .note { color: #888; font-size: .85rem; } header b { color: inherit; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1rem; } dd { margin: 0; }
.text, pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0; }
pre { font: .85rem/1.4 ui-monospace, monospace; } img { max-width: 100%; height: auto; }
details { margin: .5rem 0; } summary { cursor: pointer; color: #888; font-size: .9rem; }
@media print { details::details-content { content-visibility: visible; } }
"""


def write_to(talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
    page = _Page(file)
    for talk in talks:
        page.add(talk)
    return page.finish()


FORMAT = OnlyWritten("html", (".html", ".htm"), write_to)


class _Page:
    """Writes a page."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._count = 0
        self._anchors: dict[str, str] = {}  # the anchors of a conversation's messages in the page

    def add(self, talk: PortableConversation) -> None:
        title = talk.title.strip() or "Conversation"
        if not self._count:
            self._begin(title)
        self._count += 1
        self._anchors = {said.id: f"m{self._count}-{place}" for place, said in enumerate(talk.messages, 1)}
        self._out(f'<main>\n<h1 dir="auto">{_safe(title)}</h1>\n{_about(talk)}\n')
        for section in sections(talk):
            self._out(self._heading(section))
            changes = setup_changes(talk, section)
            for said in section.messages:
                if said.id in changes:
                    self._out(_setup(changes[said.id]))
                self._message(said)
            after = setup_after(talk) if section.is_thread else None
            if after is not None:
                self._out(_setup(after))
        self._out("</main>\n")

    def finish(self) -> int:
        if not self._count:
            self._begin("No conversations")
        self._out("</body>\n</html>\n")
        return self._count

    def _begin(self, title: str) -> None:
        self._out(
            '<!DOCTYPE html>\n<html lang="und">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_safe(_POLICY)}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="referrer" content="no-referrer">\n'
            f"<title>{_safe(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        )

    def _heading(self, section: Section) -> str:
        if not section.title:
            return ""
        return f"<h2>{_safe(section.title)}{self._link(section.after)}</h2>\n"

    def _link(self, message: str | None) -> str:
        if message is None:
            return ""
        shown = f"message {_safe(message)}"
        anchor = self._anchors.get(message)
        return f' <a href="#{anchor}">{shown}</a>' if anchor else f" {shown}"

    def _message(self, said: PortableMessage) -> None:
        m, at = said.message, moment(said)
        words = [f"<b>{_safe(m.role.replace('_', ' '))}</b>", _safe(said.id)]
        words += [f'<time datetime="{at.isoformat()}">{at:%Y-%m-%d %H:%M:%S} UTC</time>'] if at else []
        words += [_safe(m.label)] if m.label else []
        kind = ' class="user"' if m.role == "user" else ""
        self._out(f'<article id="{self._anchors[said.id]}"{kind}>\n<header>{" · ".join(words)}</header>\n')
        for block in m.blocks:
            self._block(block, said)
        self._out("</article>\n")

    def _block(self, block: Block, said: PortableMessage) -> None:
        text = text_in(block)
        if text is None:
            if block.modality == "image" and block.mime_type in _IMAGES and not has_hole(block.content):
                self._image(block)
            else:
                self._out(f'<p class="note">[{_safe(placeholder(block))}]</p>\n')
        elif block.modality != "text":
            self._out(f'<p class="note">[{_safe(block.modality)} at {_safe(text)}]</p>\n')
        elif block.type == "tool_call":
            tool, given = call_in(block)
            self._out(_fold(f"calls {tool}", given))
        elif said.message.role == "tool_result":
            self._out(_fold("the tool failed" if said.message.tool_result_error else "result", text))
        elif block.type != "content":
            self._out(_fold(block.type, text))
        else:
            self._out(f'<div class="text" dir="auto">{_safe(text)}</div>\n')

    def _image(self, block: Block) -> None:
        self._out(f'<img alt="{_safe(placeholder(block))}" src="data:{block.mime_type};base64,')
        rest = b""
        for piece in block.content if isinstance(block.content, Attachment) else (_bytes(block),):
            rest += piece
            whole = len(rest) - len(rest) % 3
            for start in range(0, whole, _AT_ONCE):
                self._file.write(base64.b64encode(rest[start : min(whole, start + _AT_ONCE)]))
            rest = rest[whole:]
        self._file.write(base64.b64encode(rest))
        self._out('">\n')

    def _out(self, text: str) -> None:
        self._file.write(text.encode(errors="replace"))


def _about(talk: PortableConversation) -> str:
    return _describe([("id", talk.id), ("project", talk.project)], opening_setup(talk))


def _setup(setup: Setup) -> str:
    """Return the setup that is used from here on."""
    none = "" if setup.system_prompt else '<p class="note">No system prompt.</p>\n'
    return f"<h2>Setup from here on</h2>\n{_describe([], setup)}{none}"


def _describe(rows: list[tuple[str, str | None]], setup: Setup) -> str:
    rows = [*rows, ("provider", setup.provider), ("model", setup.model)]
    listed = "".join(f"<dt>{what}</dt><dd>{_safe(value)}</dd>" for what, value in rows if value)
    prompt = _fold("system prompt", setup.system_prompt) if setup.system_prompt else ""
    return f"<dl>{listed}</dl>\n{prompt}"


def _fold(summary: str, text: str) -> str:
    inside = f'<pre dir="auto">{_safe(text)}</pre>'
    return f'<details>\n<summary dir="auto">{_safe(summary)}</summary>\n{inside}\n</details>\n'


def _bytes(block: Block) -> bytes:
    return block.content if isinstance(block.content, bytes) else b""


def _safe(text: str) -> str:
    """Escape text for content and for attribute values."""
    return escape(escape_control_characters(text), quote=True)
