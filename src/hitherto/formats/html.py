"""One self-contained page of HTML, for people. It is written, not read.

Messages may hold any content. What models say is rendered as Markdown by `_rendered_markdown`, which lets no HTML and
no dangerous link through; everything else is shown as text. The page has no script and fetches nothing; its content
security policy forbids both. Images are embedded, if their type cannot hold a script. Tool calls, their results and
thoughts are folded.
"""

import base64
from collections.abc import Iterable
from html import escape
from typing import IO

from .._system.terminal_text import escape_control_characters
from ..attachment import Attachment
from ..dialects._missing_attachments import has_hole
from ..model import Block, Setup
from ._atomic_file import OnlyWritten
from ._rendered_markdown import render_answer, render_prompt
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
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """\
:root { color-scheme: light dark; --text: #1f2328; --page: #fff; --faint: #656d76; --line: #d8dee4; --soft: #f6f8fa;
  --asked: #eef4fd; --accent: #0a5bc4; }
@media (prefers-color-scheme: dark) { :root { --text: #e2e6eb; --page: #15181c; --faint: #98a1ab; --line: #343a41;
  --soft: #1e2227; --asked: #1c2940; --accent: #7db3ff; } }
* { box-sizing: border-box; }
body { font: 1rem/1.6 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1.5rem 1rem 4rem;
  color: var(--text); background: var(--page); }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 3rem 0 1.5rem; padding-top: 1rem; border-top: 1px solid var(--line);
  color: var(--faint); }
h3, h4, h5, h6 { font-size: 1.05rem; line-height: 1.3; margin: 1.4em 0 .5em; } h3 { font-size: 1.2rem; }
main + main { margin-top: 4rem; }
article { margin: 1.75rem 0; overflow-wrap: anywhere; }
article.user { background: var(--asked); border-radius: .75rem; padding: .8rem 1.1rem; }
article:target { outline: 2px solid var(--accent); outline-offset: .5rem; border-radius: .4rem; }
header, dl, .note { color: var(--faint); font-size: .8rem; }
header b { color: var(--text); text-transform: capitalize; }
header { margin-bottom: .3rem; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1rem; } dd { margin: 0; overflow-wrap: anywhere; }
.text > :first-child { margin-top: 0; } .text > :last-child { margin-bottom: 0; }
.text p, .text ul, .text ol, .text blockquote { margin: .8em 0; } .user .text p { white-space: pre-wrap; }
.text p, .text li, .text h3, .text h4 { unicode-bidi: plaintext; }
.text li { margin: .25em 0; } .text ul, .text ol { padding-inline-start: 1.6rem; }
blockquote { margin-inline: 0; padding-inline-start: 1rem; border-inline-start: 3px solid var(--line);
  color: var(--faint); }
a { color: var(--accent); text-underline-offset: .15em; } hr { border: 0; border-top: 1px solid var(--line); }
code, pre { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
:not(pre) > code { background: var(--soft); border: 1px solid var(--line); border-radius: .3em; padding: .1em .3em; }
.code { margin: 1em 0; border: 1px solid var(--line); border-radius: .5rem; background: var(--soft); overflow: hidden; }
.code figcaption { font-size: .75rem; color: var(--faint); padding: .35rem .9rem;
  border-bottom: 1px solid var(--line); }
.code pre { margin: 0; padding: .75rem .9rem; overflow-x: auto; white-space: pre; overflow-wrap: normal; }
.table { overflow-x: auto; margin: 1em 0; } table { border-collapse: collapse; font-size: .93em; }
th, td { border: 1px solid var(--line); padding: .35em .7em; text-align: start; overflow-wrap: normal; }
th { background: var(--soft); }
img { max-width: 100%; height: auto; border-radius: .5rem; }
details { margin: .6rem 0; border: 1px solid var(--line); border-radius: .5rem; }
summary { cursor: pointer; color: var(--faint); font-size: .85rem; padding: .3rem .8rem; overflow-wrap: anywhere; }
details pre { margin: 0; padding: .6rem .8rem; border-top: 1px solid var(--line); white-space: pre-wrap;
  overflow-wrap: anywhere; }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } article.user { border: 1px solid var(--line); }
  .code, .code pre, .table { overflow: visible; } .code pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  h1, h2, h3, header { break-after: avoid; } tr, img { break-inside: avoid; }
  .text a[href]::after { content: " (" attr(href) ")"; color: var(--faint); font-size: .85em; }
  details::details-content { content-visibility: visible; display: block; } }
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
            rendered = render_prompt(text) if said.message.role == "user" else render_answer(text)
            self._out(f'<div class="text" dir="auto">\n{rendered}</div>\n')

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
