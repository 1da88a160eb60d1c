"""One self-contained page of HTML, for people. It is written, not read.

Messages look as they do in the viewer: `_message_html` draws them, and lets no HTML and no dangerous link of theirs
through. The page has no script and fetches nothing; its content security policy forbids both. Images are embedded, if
their type cannot hold a script. A tool call and its result are one card; results and thoughts are folded.
"""

import base64
from collections.abc import Iterable
from typing import IO

from ...attachment import Attachment
from ...dialects._missing_attachments import has_hole
from ...model import Block, Setup
from .._atomic_file import OnlyWritten
from .._types import PortableConversation
from ._markup import EMPTY, Child, Markup, join, tag
from ._message_html import INLINE_IMAGES, READING, Look, Said, article, pair
from ._sections import Section, moment, opening_setup, placeholder, sections, setup_after, setup_changes

_AT_ONCE = 3 << 16  # bytes of an image: a multiple of three, so that the pieces in base64 are one
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """\
body { max-width: 46rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
main + main { margin-top: 5rem; }
h2 { font-size: .95rem; font-weight: 600; margin: 3rem 0 1.5rem; padding-top: 1rem; border-top: 1px solid var(--line);
  color: var(--faint); }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1rem; color: var(--faint); font-size: .84rem; }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { max-width: none; padding: 0; } }
"""
_IMAGE = "\0"  # stands for an image until it is written: a text has no such character, it becomes a visible sign


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
        self._images: list[Block] = []  # of the message that is written, in order
        self._look = Look(
            anchor=lambda id: self._anchors[id], media=self._media, head=lambda said: tag("span", said.id, class_="id")
        )

    def add(self, talk: PortableConversation) -> None:
        title = talk.title.strip() or "Conversation"
        if not self._count:
            self._begin(title)
        self._count += 1
        self._anchors = {said.id: f"m{self._count}-{place}" for place, said in enumerate(talk.messages, 1)}
        head = tag("header", tag("h1", title, dir="auto"), _about(talk), class_="title")
        self._out(Markup(f"<main>\n{head}\n"))
        for section in sections(talk):
            self._section(talk, section)
        self._out(Markup("</main>\n"))

    def _section(self, talk: PortableConversation, section: Section) -> None:
        self._out(self._heading(section))
        changes = setup_changes(talk, section)
        for entry in pair(Said(said.id, said.message, moment(said)) for said in section.messages):
            for said in (entry.said, *entry.taken):
                if said.id in changes:
                    self._out(_setup(changes[said.id]))
            self._out(join(article(entry, self._look), Markup("\n")))
        after = setup_after(talk) if section.is_thread else None
        if after is not None:
            self._out(_setup(after))

    def finish(self) -> int:
        if not self._count:
            self._begin("No conversations")
        self._out(Markup("</body>\n</html>\n"))
        return self._count

    def _begin(self, title: str) -> None:
        head = join(
            tag("meta", charset="utf-8"),
            Markup("\n"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            Markup("\n"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", title),
        )
        style = f"<style>\n{READING}{_STYLE}</style>"
        self._out(Markup(f'<!DOCTYPE html>\n<html lang="und">\n<head>\n{head}\n{style}\n</head>\n<body>\n'))

    def _heading(self, section: Section) -> Markup:
        if not section.title:
            return EMPTY
        return join(tag("h2", section.title, self._link(section.after)), Markup("\n"))

    def _link(self, message: str | None) -> Child:
        if message is None:
            return None
        anchor = self._anchors.get(message)
        return [" ", tag("a", f"message {message}", href=f"#{anchor}") if anchor else f"message {message}"]

    def _media(self, _: Said, __: int, block: Block) -> Markup:
        if block.modality == "image" and block.mime_type in INLINE_IMAGES and not has_hole(block.content):
            self._images.append(block)
            return Markup(_IMAGE)
        return tag("p", f"[{placeholder(block)}]", class_="note")

    def _out(self, markup: Markup) -> None:
        """Write markup, with its images in their places. An image is read and written in pieces."""
        images, self._images = self._images, []
        texts = markup.split(_IMAGE)
        for text, image in zip(texts, [*images, None], strict=True):
            self._file.write(text.encode(errors="replace"))
            if image is not None:
                self._image(image)

    def _image(self, block: Block) -> None:
        alt = tag("i", title=placeholder(block)).removeprefix("<i title=").removesuffix("></i>")
        self._file.write(f'<img alt={alt} src="data:{block.mime_type};base64,'.encode())
        rest = b""
        for piece in block.content if isinstance(block.content, Attachment) else (_bytes(block),):
            rest += piece
            whole = len(rest) - len(rest) % 3
            for start in range(0, whole, _AT_ONCE):
                self._file.write(base64.b64encode(rest[start : min(whole, start + _AT_ONCE)]))
            rest = rest[whole:]
        self._file.write(base64.b64encode(rest))
        self._file.write(b'">')


def _about(talk: PortableConversation) -> Markup:
    return _describe([("id", talk.id), ("project", talk.project)], opening_setup(talk))


def _setup(setup: Setup) -> Markup:
    """Return the setup that is used from here on."""
    none = None if setup.system_prompt else tag("p", "No system prompt.", class_="note")
    return join(tag("h2", "Setup from here on"), _describe([], setup), none, Markup("\n"))


def _describe(rows: list[tuple[str, str | None]], setup: Setup) -> Markup:
    rows = [*rows, ("provider", setup.provider), ("model", setup.model)]
    listed = [[tag("dt", what), tag("dd", value)] for what, value in rows if value]
    prompt = tag(
        "details", tag("summary", "System prompt"), tag("pre", setup.system_prompt, dir="auto"), class_="context"
    )
    return join(tag("dl", *listed), prompt if setup.system_prompt else None)


def _bytes(block: Block) -> bytes:
    return block.content if isinstance(block.content, bytes) else b""
