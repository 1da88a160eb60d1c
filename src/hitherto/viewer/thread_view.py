"""The messages of a path as HTML, with what a page with a server behind it adds.

That is: links, the switch at a fork, sub-agents, addresses of media, and the rest of long texts. Rendered Markdown goes
through a second wall: `nh3` lets only the tags through that the renderer writes, so a mistake there does not become a
script here. What was rendered is remembered in memory, by its text.
"""

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote

import nh3

from ..formats.exports._markup import Child, Markup, join, tag
from ..formats.exports._message_html import INLINE_IMAGES, Look, Said, article, gist_of, pair
from ..formats.exports._rendered_markdown import render_answer, render_prompt
from ..formats.exports._sections import placeholder
from ..model import Block, Saved
from .frame import Links, moment
from .queries import View, Window, media_of
from .values import MessageRecord

__all__ = ["chunk", "forget_rendered", "rendered", "warm_up"]

_REMEMBERED, _LONGEST_REMEMBERED = 2_000, 20_000  # texts, and the characters of the longest of them
_TAGS = {
    "p",
    "h3",
    "h4",
    "h5",
    "h6",
    "ul",
    "ol",
    "li",
    "blockquote",
    "pre",
    "code",
    "em",
    "strong",
    "s",
    "a",
    "br",
    "hr",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "div",
    "figure",
    "figcaption",
    "span",
}
_ATTRIBUTES = {"a": {"href", "title", "rel"}, "ol": {"start"}, "pre": {"dir", "tabindex"}, "*": {"class"}}
_BACK, _ON = "\u2039", "\u203a"
_PLAYED = {"audio": "audio", "video": "video"}


def _clean(html: str) -> str:
    return nh3.clean(
        html,
        tags=_TAGS,
        attributes={name: set(values) for name, values in _ATTRIBUTES.items()},
        url_schemes={"http", "https", "mailto"},
        link_rel=None,
    )


@lru_cache(_REMEMBERED)
def _remembered(text: str, is_prompt: bool) -> str:
    return _clean(render_prompt(text) if is_prompt else render_answer(text))


def _render(text: str, *, is_prompt: bool) -> str:
    """Return a text as HTML. Long ones are not remembered, so that what is remembered stays small."""
    render = _remembered if len(text) <= _LONGEST_REMEMBERED else _remembered.__wrapped__
    return render(text, is_prompt)


def warm_up() -> None:
    """Load what renders, so that the first page need not wait for it."""
    _clean(render_answer("**x**\n\n```python\nx = 1\n```\n\n| a |\n|---|\n| b |"))


def forget_rendered() -> None:
    """Drop the texts that were rendered."""
    _remembered.cache_clear()


def chunk(links: Links, window: Window) -> Markup:
    """Return a part of the path as HTML."""
    value = window.value
    shown = rendered(links, window.view, window.messages, value.messages, target=value.target)
    return tag("section", *shown, class_="chunk", data_start=value.start, data_stop=value.start + len(value.messages))


def rendered(
    links: Links, view: View, messages: Sequence[Saved], of: Sequence[MessageRecord], *, target: str | None = None
) -> list[Markup]:
    """Return messages as HTML. The records say where each stands."""
    records = {record.id: record for record in of}
    previews = _previews(view, of)

    def media(said: Said, index: int, block: Block) -> Markup:
        return _media(links, view.id, said, index, block)

    def head(said: Said) -> Child:
        record = records.get(said.id)
        address = links.message(view.id, said.id)
        link = tag("a", "#", href=address, class_="permalink", aria_label=f"Link to message {said.id}", title=said.id)
        words = f"hitherto chat -c {said.id}"
        go_on = tag("button", "continue", type="button", class_="permalink", data_copy=words, title=f"Copy: {words}")
        changes = [
            tag("a", name, href=links.message(view.id, said.id, f"/{name}"), class_="permalink")
            for name in ("label", "delete")
        ]
        return join(
            _switch(links, view.id, record, previews) if record else None,
            go_on,
            changes if links.may_write else None,
            link,
        )

    def foot(said: Said) -> Child:
        record = records.get(said.id)
        return None if record is None else _agents(links, view.id, record, previews)

    def attributes(said: Said) -> dict[str, str]:
        record = records.get(said.id)
        found = {"data_id": said.id}
        if record is not None:
            found["data_position"] = str(record.position)
        if said.id == target:
            found["data_target"] = "1"
        return found

    look = Look(
        anchor=lambda id: f"m-{id}",
        media=media,
        rest=lambda said, index: links.message(view.id, said.id, "/text", block=index),
        moment=moment,
        answer=lambda text: _render(text, is_prompt=False),
        prompt=lambda text: _render(text, is_prompt=True),
        head=head,
        foot=foot,
        attributes=attributes,
    )
    entries = pair(Said(m.id, m, m.created_at) for m in messages)
    shown: list[Markup] = []
    for entry in entries:
        record = records[entry.said.id]
        if record.sums_up is not None:
            words = tag("span", "Summed up here; the messages above stay")
            shown.append(tag("div", words, class_="compaction", role="separator"))
        shown.append(article(entry, look))
        for taken in entry.taken:  # a fork at a result, or what it started, is shown below its card
            other = records[taken.id]
            shown.append(join(_agents(links, view.id, other, previews)))
    return shown


def _previews(view: View, records: Sequence[MessageRecord]) -> dict[str, str]:
    """Return the beginning of what is said elsewhere: at forks, and by sub-agents."""
    here = {record.id for record in records}
    wanted: dict[str, None] = {}
    for record in records:
        if record.siblings:
            at = record.siblings.position - 1
            wanted |= dict.fromkeys(record.siblings.ids[max(0, at - 1) : at + 2])
        wanted |= dict.fromkeys(record.agents)
    numbers = [view.number(id) for id in wanted if id not in here]
    return {
        m.id: f"{m.label.split(':')[1]}: {gist_of(m.blocks)}"
        if (m.label or "").count(":") >= 2 and m.label
        else gist_of(m.blocks)
        for m in view.messages(numbers)
    }


def _switch(links: Links, id: str, record: MessageRecord, previews: dict[str, str]) -> Markup | None:
    """Return the switch between the continuations at a fork: back, 2/3, on."""
    if record.siblings is None:
        return None
    ids, at = record.siblings.ids, record.siblings.position - 1

    def step(to: int, sign: str, name: str) -> Markup:
        if not 0 <= to < len(ids):
            return tag("span", sign, class_="off", aria_hidden="true")
        preview = previews.get(ids[to], "")
        return tag(
            "a", sign, href=links.message(id, ids[to]), rel=name, title=preview, aria_label=f"{name} branch: {preview}"
        )

    place = f"{at + 1}/{len(ids)}"
    other = ids[at - 1] if at else ids[at + 1]
    compared = links.conversation(id, "/compare", left=other, right=record.id)
    words = tag("a", place, href=compared, title="Compare with the branch beside it", class_="place")
    return tag(
        "span",
        step(at - 1, _BACK, "prev"),
        words,
        step(at + 1, _ON, "next"),
        class_="switch",
        role="group",
        aria_label=f"Branch {at + 1} of {len(ids)}",
    )


def _agents(links: Links, id: str, record: MessageRecord, previews: dict[str, str]) -> Child:
    return [
        tag(
            "p",
            tag("span", "⤷ ", aria_hidden="true"),
            tag("a", f"Sub-agent {previews.get(one, one)}", href=links.message(id, one)),
            class_="agent",
        )
        for one in record.agents
    ]


def _media(links: Links, id: str, said: Said, index: int, block: Block) -> Markup:
    """Return binary content: images and sound from the store inline, all else as a link to keep it."""
    words = placeholder(block)
    found = media_of(block)
    if found is None:
        return tag("p", f"[{words}]", class_="note")
    mime, _ = found
    address = f"{links.base}/c/{id}/m/{quote(said.id)}/media/{index}"
    if mime in INLINE_IMAGES:
        image = tag("img", src=address, alt=words, loading="lazy", decoding="async")
        return tag("a", image, href=address, class_="image")
    kind = _PLAYED.get(mime.partition("/")[0])
    link = tag("a", f"Keep this file: {words}", href=f"{address}?keep=1", download=True)
    if kind is not None:
        return join(tag(kind, controls=True, preload="none", src=address, aria_label=words), link)
    return tag("p", link, class_="note")
