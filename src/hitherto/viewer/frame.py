"""What every page has: the head, the bar at the top, links, times and numbers.

All links go through `Links`, which knows the path below which a proxy shows the page. The file names of styles and
scripts hold a hash of their content, so a browser may keep them for ever: they are of the program, not of anybody.
"""

import hashlib
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import quote, urlencode

from ..formats.exports._markup import Child, Markup, join, tag
from ..formats.exports._message_html import READING
from .values import Place

__all__ = [
    "STATIC",
    "STATIC_TYPES",
    "Links",
    "age",
    "count_of",
    "moment",
    "page",
    "retention_badge",
    "static_file",
    "static_version",
]

STATIC = (
    "reading.css",
    "viewer.css",
    "viewer.js",
    "reader.js",
    "map.js",
    "find.js",
    "keys.js",
    "code.js",
    "live.js",
    "theme.js",
    "icon.svg",
)
STATIC_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


class Links(NamedTuple):
    """The addresses of pages."""

    base: str = ""
    may_write: bool = False  # pages that change something are there

    def home(self, **query: str | int | None) -> str:
        return self._to("/", query)

    def search(self, **query: str | int | None) -> str:
        return self._to("/search", query)

    def conversation(self, id: str, rest: str = "", **query: str | int | None) -> str:
        return self._to(f"/c/{id}{rest}", query)

    def message(self, conversation: str, message: str, rest: str = "", **query: str | int | None) -> str:
        return self._to(f"/c/{conversation}/m/{quote(message)}{rest}", query)

    def static(self, name: str) -> str:
        return f"{self.base}/static/{static_version()}/{name}"

    def to(self, path: str, **query: str | int | None) -> str:
        return self._to(path, query)

    def _to(self, path: str, query: dict[str, str | int | None]) -> str:
        given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
        return f"{self.base}{path}{'?' if given else ''}{urlencode(given)}"


@cache
def static_file(name: str) -> bytes:
    """Return the content of a file of ours."""
    if name == "reading.css":
        return READING.encode()
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def static_version() -> str:
    """Return the hash of all files of ours. Scripts import each other by relative names, so one hash stands for all."""
    return hashlib.sha256(b"".join(map(static_file, STATIC))).hexdigest()[:12]


def page(
    links: Links,
    title: str,
    *content: Child,
    query: str = "",
    script: bool = True,
    bar: Child = None,
    body_class: str | None = None,
    **data: str | None,
) -> str:
    """Return a whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", f"{title} · hitherto" if title else "hitherto"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href=links.static("icon.svg"), type="image/svg+xml"),
        tag("link", rel="stylesheet", href=links.static("reading.css")),
        tag("link", rel="stylesheet", href=links.static("viewer.css")),
        tag("script", src=links.static("theme.js")) if script else None,
        tag("script", src=links.static("viewer.js"), type="module") if script else None,
    )
    search = tag(
        "form",
        tag(
            "input",
            type="search",
            name="q",
            value=query,
            placeholder="Search all conversations",
            id="search",
            aria_label="Search all conversations",
            autocomplete="off",
            spellcheck="false",
        ),
        role="search",
        action=links.search(),
        method="get",
    )
    top = tag(
        "header",
        tag("a", "hitherto", href=links.home(), class_="brand"),
        search,
        tag(
            "nav",
            bar,
            tag("a", "Usage", href=links.to("/usage"), class_="wide"),
            tag("a", "Retention", href=links.to("/retention"), class_="wide"),
            tag("button", "?", type="button", data_action="keys", title="Keys (?)", aria_label="Keys", class_="wide"),
            tag("button", "◐", type="button", data_action="theme", title="Dark or light", aria_label="Dark or light"),
            aria_label="Pages",
        ),
        class_="bar",
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#main", class_="skip"),
        top,
        tag("main", *content, id="main", tabindex="-1"),
        tag("div", "", id="status", role="status", class_="sr"),
        data_base=links.base,
        class_=body_class,
        **{f"data_{name}": value for name, value in data.items()},
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def moment(at: datetime) -> str:
    """Return a time in the zone of this machine, short."""
    here = at.astimezone()
    now = datetime.now(UTC).astimezone()
    if here.date() == now.date():
        return f"{here:%H:%M}"
    return f"{here.day} {here:%b %H:%M}" if here.year == now.year else f"{here.day} {here:%b %Y, %H:%M}"


def full_moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def time_tag(at: datetime | None) -> Markup | None:
    return None if at is None else tag("time", moment(at), datetime=at.isoformat(), title=full_moment(at))


def age(seconds: float) -> str:
    """Return a duration in its largest unit.

    >>> age(59), age(90_000), age(12 * 86_400)
    ('a minute', 'a day', '12 days')
    """
    for size, name in ((365 * 86_400, "year"), (86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count:,} {name}s" if count > 1 else f"{'an' if name == 'hour' else 'a'} {name}"
    return "a minute"


def count_of(count: int, thing: str, things: str | None = None) -> str:
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def retention_badge(place: Place) -> Markup | None:
    """Return when a conversation is deleted, and why; nothing if it is kept."""
    if place.held:
        return tag("span", "on hold", class_="badge held", title="Nothing deletes it until it is released.")
    if place.due_at is None:
        return None
    left = (place.due_at - datetime.now(UTC)).total_seconds()
    text = f"deleted in {age(left)}" if left > 0 else "due for deletion"
    soon = " soon" if left < 7 * 86_400 else ""
    return tag("span", text, class_=f"badge due{soon}", title=f"{full_moment(place.due_at)}, {place.why}")


def facts(*parts: Child) -> Markup:
    """Return short facts in a row, with points between them."""
    shown = [part for part in parts if part]
    return join(
        *(
            join(tag("span", " · ", class_="dot", aria_hidden="true") if n else None, part)
            for n, part in enumerate(shown)
        )
    )
