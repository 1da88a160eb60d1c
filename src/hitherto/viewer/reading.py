"""The page of a conversation: its head, and a window of its messages.

Rendered Markdown goes through a second wall: `nh3` lets only the tags through that the renderer writes, so a mistake
there does not become a script here. What was rendered is remembered in memory, by its text.
"""

from functools import lru_cache
from urllib.parse import quote

import nh3

from ..formats._markup import Child, Markup, join, tag
from ..formats._message_html import INLINE_IMAGES, Look, Said, article, gist_of, pair
from ..formats._rendered_markdown import render_answer, render_prompt
from ..formats._sections import placeholder
from ..model import Block
from .frame import Links, count_of, facts, moment, page, retention_badge, time_tag
from .queries import WINDOW, View, Window, media_of
from .values import Header, MessageRecord

__all__ = ["chunk", "conversation_page", "forget_rendered"]

_REMEMBERED = 2_000
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
def _answer(text: str) -> str:
    return _clean(render_answer(text))


@lru_cache(_REMEMBERED)
def _prompt(text: str) -> str:
    return _clean(render_prompt(text))


def forget_rendered() -> None:
    """Drop the texts that were rendered."""
    _answer.cache_clear()
    _prompt.cache_clear()


def conversation_page(links: Links, window: Window, *, query: str = "") -> str:
    """Return the page of a conversation."""
    value, header = window.value, window.value.conversation
    leaf = value.leaf or ""
    stop = value.start + len(value.messages)
    title = header.title or next((gist_of(m.blocks) for m in window.messages if m.role == "user"), "") or "Conversation"
    earlier = tag(
        "a",
        f"{count_of(value.start, 'earlier message')}",
        class_="more earlier",
        href=links.message(header.id, leaf, from_=max(0, value.start - WINDOW)),
    )
    later = tag(
        "a",
        f"{count_of(value.length - stop, 'later message')}",
        class_="more later",
        href=links.message(header.id, leaf, from_=stop),
    )
    empty = tag("p", "Nothing has been said in this conversation yet.", class_="empty")
    thread = tag(
        "div",
        earlier if value.start else None,
        chunk(links, window),
        later if stop < value.length else None,
        empty if not value.length else None,
        class_="thread",
        id="thread",
        data_window=links.message(header.id, leaf, "/window"),
        data_length=value.length,
        data_target=value.target,
    )
    return page(
        links,
        title,
        tag(
            "div",
            tag("div", _head(header, title), _aside_note(links, window), thread, class_="column"),
            class_="reader",
        ),
        body_class="conversation",
        page="conversation",
        conversation=header.id,
        query=query,
    )


def _head(header: Header, title: str) -> Markup:
    prompt = tag(
        "details", tag("summary", "System prompt"), tag("pre", header.system_prompt, dir="auto"), class_="context"
    )
    return tag(
        "header",
        tag("h1", title, dir="auto"),
        tag(
            "p",
            facts(
                header.model or None,
                count_of(header.messages, "message"),
                count_of(header.branches, "branch", "branches") if header.branches > 1 else None,
                header.project,
                time_tag(header.active_at),
                tag("span", header.id[:8], class_="id", title=header.id),
                None if header.exportable else "must not leave this store",
            ),
            " ",
            retention_badge(header.retention),
            class_="facts",
        ),
        prompt if header.system_prompt else None,
        class_="title",
    )


def _aside_note(links: Links, window: Window) -> Markup | None:
    """Return what the path is, if it is not the one that leads to the head."""
    value = window.value
    id = value.conversation.id
    if value.started_by is not None or value.subagent is not None:
        words: list[Child] = [
            "The trace of a sub-agent",
            f", {value.subagent.split(':')[1]}" if value.subagent and ":" in value.subagent else None,
            ". ",
        ]
        if value.started_by:
            words.append(tag("a", "Back to the message that started it", href=links.message(id, value.started_by)))
        return tag("p", *words, class_="banner")
    if value.on_trunk or not value.length:
        return None
    return tag(
        "p", "This is another branch. ", tag("a", "Go to the current one", href=links.conversation(id)), class_="banner"
    )


def chunk(links: Links, window: Window) -> Markup:
    """Return a part of the path as HTML."""
    view, value = window.view, window.value
    records = {record.id: record for record in value.messages}
    previews = _previews(view, value.messages)

    def media(said: Said, index: int, block: Block) -> Markup:
        return _media(links, view.id, said, index, block)

    def head(said: Said) -> Child:
        record = records.get(said.id)
        address = links.message(view.id, said.id)
        link = tag("a", "#", href=address, class_="permalink", aria_label=f"Link to message {said.id}", title=said.id)
        return join(_switch(links, view.id, record, previews) if record else None, link)

    def foot(said: Said) -> Child:
        record = records.get(said.id)
        return None if record is None else _agents(links, view.id, record, previews)

    def attributes(said: Said) -> dict[str, str]:
        record = records.get(said.id)
        found = {"data_id": said.id}
        if record is not None:
            found["data_position"] = str(record.position)
        if said.id == value.target:
            found["data_target"] = "1"
        return found

    look = Look(
        anchor=lambda id: f"m-{id}",
        media=media,
        rest=lambda said, index: links.message(view.id, said.id, "/text", block=index),
        moment=moment,
        answer=_answer,
        prompt=_prompt,
        head=head,
        foot=foot,
        attributes=attributes,
    )
    entries = pair(Said(m.id, m, m.created_at) for m in window.messages)
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
    return tag("section", *shown, class_="chunk", data_start=value.start, data_stop=value.start + len(value.messages))


def _previews(view: View, records: list[MessageRecord]) -> dict[str, str]:
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

    words = tag("span", f"{at + 1}/{len(ids)}", title=f"{len(ids)} ways to go on here")
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


def text_page(links: Links, window_title: str, id: str, message: str, text: str) -> str:
    """Return a long text in full."""
    return page(
        links,
        window_title,
        tag(
            "header",
            tag("h1", "The whole text"),
            tag("p", tag("a", "Back to the message", href=links.message(id, message))),
            class_="title",
        ),
        tag("div", tag("pre", text, dir="auto", tabindex="0"), class_="code whole"),
        body_class="list",
        page="text",
    )
