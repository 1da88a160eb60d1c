"""The pages of a conversation: reading it, its branches, two of them side by side, and a long text in full.

Each is a function from values to a page. The messages themselves are drawn by `thread_view`.
"""

from ..formats.exports._markup import Child, Markup, join, tag
from ..formats.exports._message_html import gist_of
from .branch_map import draw, legend
from .frame import Links, count_of, facts, page, retention_badge, time_tag
from .queries import MOST_PROMPTS, WINDOW, View, Window
from .thread_view import chunk, rendered
from .values import BranchMap, Comparison, Header, Prompts

__all__ = ["compare_page", "conversation_page", "map_page", "prompt_list", "text_page"]

_SIDE_FROM = 4  # messages, from which on the branches and prompts stand at the side


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
        data_skeleton=links.message(header.id, leaf, "/skeleton.json"),
        data_target=value.target,
    )
    bar = tag("a", "Map", href=links.conversation(header.id, "/map", at=leaf), data_action="map", class_="map-link")
    column = tag("div", _head(links, header, title, leaf), _aside_note(links, window), thread, class_="column")
    return page(
        links,
        title,
        tag("div", column, _side(links, header, leaf) if value.length >= _SIDE_FROM else None, class_="reader"),
        _find_bar(links, header, leaf) if value.length else None,
        bar=[
            tag("button", "Find", type="button", data_action="find", title="Find in this conversation (Ctrl F)"),
            bar if header.branches > 1 else None,
        ],
        body_class="conversation",
        page="conversation",
        conversation=header.id,
        query=query,
        hit=query or None,
    )


def _find_bar(links: Links, header: Header, leaf: str) -> Markup:
    """Return the bar that finds in the conversation; a script opens it."""
    return tag(
        "form",
        tag(
            "input",
            type="search",
            name="q",
            placeholder="Find in this conversation",
            autocomplete="off",
            spellcheck="false",
            aria_label="Find in this conversation",
        ),
        tag("output", aria_live="polite"),
        tag("button", "↑", type="button", data_step="-1", title="Before (Shift Enter)", aria_label="Before"),
        tag("button", "↓", type="button", data_step="1", title="Next (Enter)", aria_label="Next"),
        tag("a", "", class_="elsewhere", hidden=True, href="#"),
        tag("button", "✕", type="button", data_close="1", title="Close (Escape)", aria_label="Close"),
        id="find",
        hidden=True,
        role="search",
        aria_label="Find in this conversation",
        action=links.message(header.id, leaf, "/find.json"),
        data_conversation=links.conversation(header.id),
    )


def _side(links: Links, header: Header, leaf: str) -> Markup:
    """Return the branches and prompts beside the text. A script fetches them after the messages are there."""
    branches = [
        tag("h2", "Branches"),
        tag("div", class_="holder", data_from=links.conversation(header.id, "/map", at=leaf, part="1")),
    ]
    prompts = [
        tag("h2", "Prompts"),
        tag("div", class_="holder", data_from=links.message(header.id, leaf, "/prompts")),
    ]
    return tag(
        "aside",
        branches if header.branches > 1 else None,
        prompts,
        id="side",
        aria_label="Branches and prompts",
    )


def prompt_list(links: Links, id: str, found: Prompts) -> str:
    """Return the prompts of a path, for the side of the page."""
    items = []
    for one in found.prompts:
        address = links.message(id, one.id)
        shown = tag("a", one.text, href=address, data_id=one.id, data_position=one.position, dir="auto")
        items.append(tag("li", shown))
    left = found.total - MOST_PROMPTS
    more = tag("p", f"{count_of(left, 'more prompt')}: J goes through all of them", class_="note") if left > 0 else None
    return join(tag("ol", *items, class_="prompts"), more)


def compare_page(links: Links, view: View, found: Comparison) -> str:
    """Return two branches side by side, from where they part."""
    header = found.conversation
    sides = []
    for records, length in ((found.left, found.left_length), (found.right, found.right_length)):
        shown = rendered(links, view, view.messages([view.number(one.id) for one in records]), records)
        first = records[0].id if records else None
        more = tag("p", f"{count_of(length - len(records), 'message')} more", class_="note")
        sides.append(
            tag(
                "section",
                tag("h2", count_of(length, "message")),
                tag("p", tag("a", "Read this branch", href=links.message(header.id, first))) if first else None,
                *(shown or [tag("p", "Nothing: this branch ends where they part.", class_="empty")]),
                more if length > len(records) else None,
            )
        )
    shared = f"{count_of(found.shared, 'message')} shared" if found.shared else "They share nothing."
    if not found.left and not found.right:
        shared += ": both lead along the same branch"
    last = tag("a", "the last of them", href=links.message(header.id, found.fork)) if found.fork else None
    return page(
        links,
        f"Compare: {header.title or header.id[:8]}",
        tag(
            "header",
            tag("h1", header.title or "Two branches", dir="auto"),
            tag("p", shared, ", " if last else None, last, class_="facts"),
            class_="title",
        ),
        tag("div", *sides, class_="sides"),
        body_class="compare",
        page="compare",
        conversation=header.id,
    )


def map_page(links: Links, found: BranchMap, *, at: str | None) -> str:
    """Return the branches of a conversation on a page of their own."""
    header = found.conversation
    back = links.message(header.id, at) if at else links.conversation(header.id)
    about = facts(
        count_of(header.messages, "message"),
        count_of(header.branches, "branch", "branches"),
        count_of(header.forks, "fork"),
    )
    empty = tag("p", "Nothing has been said in this conversation yet.", class_="empty")
    return page(
        links,
        f"Branches of {header.title or header.id[:8]}",
        tag(
            "header",
            tag("h1", header.title or "Branches", dir="auto"),
            tag("p", about, " · ", tag("a", "Back to reading", href=back), class_="facts"),
            legend() if header.branches > 1 else None,
            class_="title",
        ),
        draw(links, found, at=at, wide=True) if found.rows else empty,
        body_class="list map-page",
        page="map",
        conversation=header.id,
    )


def _head(links: Links, header: Header, title: str, leaf: str) -> Markup:
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
                retention_badge(header.retention),
            ),
            class_="facts",
        ),
        tag(
            "p",
            facts(
                tag("a", "Rename, hold, delete", href=links.conversation(header.id, "/edit"))
                if links.may_write
                else None,
                tag("a", "Export and share", href=links.conversation(header.id, "/export", at=leaf)),
                tag("span", "", data_usage=links.conversation(header.id, "/usage.json", at=leaf), hidden=True),
            ),
            class_="facts actions",
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
