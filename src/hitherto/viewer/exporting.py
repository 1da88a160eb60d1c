"""What leaves the store as a file: one branch or all, as a page, Markdown or lines of JSON, redacted if asked.

The page is one self-contained file to hand to somebody. It is made in memory, and sent as a file to keep. A
conversation that must not leave its store does not: neither whole nor in part.
"""

import io
import re

from msgspec import Struct

from ..errors import NotExportable
from ..formats import save, thread_to
from ..formats._extract import extract
from ..formats.exports._markup import Markup, join, tag
from ..formats.exports._redaction import redact
from ..sanitiser import Sanitiser
from .frame import Links, count_of, page
from .queries import StoreView, View
from .values import Header

__all__ = ["FORMATS", "Exported", "export", "export_page"]

FORMATS = {
    "html": ("A page", "html", "text/html"),
    "markdown": ("Markdown", "md", "text/markdown"),
    "jsonl": ("Lines of JSON, which import takes back", "jsonl", "application/x-ndjson"),
}


class Exported(Struct, frozen=True):
    """A file."""

    name: str
    mime_type: str
    data: bytes


def export(
    store: StoreView, view: View, *, format: str = "html", through: str | None = None, is_redacted: bool = True
) -> Exported:
    """Return a conversation as a file; with `through`, the path through that message alone."""
    engine = store.store.engine
    if not view.talk.refresh().exportable:
        raise NotExportable(view.id)
    if through is None:
        portable = extract(engine, view.talk.state.id).portable
    else:
        leaf = view.name(view.outline.path(view.number(through))[-1])
        portable = thread_to(view.talk.fork(at=leaf))
    if is_redacted:
        portable = redact(portable, engine.make_redactor(Sanitiser.everything()))
    file = io.BytesIO()
    save([portable], file, format=format)
    _, ending, mime_type = FORMATS[format]
    title = re.sub(r"[^a-z0-9]+", "-", portable.title.lower()).strip("-")[:60] or "conversation"
    return Exported(f"{title}.{ending}", mime_type, file.getvalue())


def export_page(links: Links, header: Header, at: str | None) -> str:
    """Return the form that asks what to export."""
    id = header.id
    title = tag(
        "header",
        tag("h1", "Export and share"),
        tag("p", tag("a", header.title or id[:8], href=links.conversation(id)), class_="facts"),
        class_="title",
    )
    if not header.exportable:
        words = "This conversation must not leave its store: it was marked so when it was recorded."
        return page(links, "Export", title, tag("p", words, class_="banner"), body_class="list", page="export")
    choices = [
        tag("legend", "What"),
        _radio("at", at or "", "This branch", is_chosen=True) if at else None,
        _radio("at", "", f"All of it, {count_of(header.branches, 'branch', 'branches')}", is_chosen=not at),
    ]
    formats = [_radio("format", name, words, is_chosen=name == "html") for name, (words, *_) in FORMATS.items()]
    box = tag("input", type="checkbox", name="redact", value="1", checked=True, id="redact")
    redacted = tag("label", box, " Take secrets and personal data out", for_="redact")
    note = "Keys, passwords, addresses and the like become markers. Nothing looks into images and sound: look yourself."
    form = tag(
        "form",
        tag("fieldset", *choices),
        tag("fieldset", tag("legend", "As"), *formats),
        tag("fieldset", tag("legend", "Redaction"), redacted, tag("p", note, class_="note")),
        tag("button", "Make the file", class_="primary"),
        action=links.conversation(id, "/export/file"),
        method="get",
        class_="form",
    )
    return page(links, "Export", title, form, body_class="list", page="export", conversation=id)


def _radio(name: str, value: str, words: str, *, is_chosen: bool) -> Markup:
    id = f"{name}-{value or 'all'}"
    box = tag("input", type="radio", name=name, value=value, id=id, checked=is_chosen)
    return tag("p", tag("label", join(box, " ", words), for_=id))
