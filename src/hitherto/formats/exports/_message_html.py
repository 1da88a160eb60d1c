"""Shows messages as HTML: the one home for how a conversation looks, in exported pages and in the viewer.

A message is an `article`. Markdown is rendered, a tool call stands in one card with its result, and what a person reads
last is folded: thoughts, results, and the context that programs put into a prompt. A `Look` says what differs between a
page that is one file and a page with a server behind it: where media are, and where the rest of a long text is.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from typing import NamedTuple

from ...model import Block, Message, Usage
from ._markup import EMPTY, Child, Markup, join, tag
from ._rendered_markdown import link_to, render_answer, render_prompt
from ._sections import call_in, text_in
from ._tool_html import Cut, long_text, result_text, view_of

__all__ = ["Entry", "Look", "Said", "article", "pair"]

READING = files(__package__).joinpath("reading.css").read_text(encoding="utf-8")
INLINE_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_CONTEXT = re.compile(
    r"\s*(?:<(system-reminder|environment_context|user_instructions|permissions instructions|ide_[a-z_]+|context|"
    r"command-(?:name|message|args|contents)|local-command-[a-z]+|task-notification|bash-(?:input|stdout|stderr))\b"
    r"|(# AGENTS\.md instructions)|(Caveat: The messages below were generated))",
)
_LONGEST_GIST = 200
_MARKS = re.compile(r"```[\w+-]*|`|\*\*")  # of Markdown, which a gist leaves out


class Said(NamedTuple):
    """A message and its id."""

    id: str
    message: Message
    at: datetime | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """A message with the results of its tool calls."""

    said: Said
    results: dict[str, list[tuple[Said, Block]]] = field(default_factory=dict)  # by the id of the call
    taken: list[Said] = field(default_factory=list)  # the messages that these results are of


@dataclass(frozen=True)
class Look:
    """How the parts of a message are shown that depend on the page."""

    anchor: Callable[[str], str]  # of a message, by its id
    media: Callable[[Said, int, Block], Markup]  # binary content
    rest: Callable[[Said, int], str] | None = None  # the address of a long text; None: all of it is on the page
    moment: Callable[[datetime], str] = lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC"
    answer: Callable[[str], str] = render_answer
    prompt: Callable[[str], str] = render_prompt
    head: Callable[[Said], Child] = field(default=lambda _: None)  # more in the head of a message
    foot: Callable[[Said], Child] = field(default=lambda _: None)  # and below it
    attributes: Callable[[Said], dict[str, str]] = field(default=lambda _: {})

    def cut(self, said: Said, index: int) -> Cut:
        rest = self.rest
        return Cut() if rest is None else Cut(rest=lambda: rest(said, index))


def pair(messages: Iterable[Said]) -> list[Entry]:
    """Put each tool result to its call. A result without a call before it stays a message of its own."""
    entries: list[Entry] = []
    calls: dict[str | None, Entry] = {}
    for said in messages:
        blocks = said.message.blocks
        if said.message.role == "tool_result" and blocks and all(block.id in calls for block in blocks):
            for block in blocks:
                calls[block.id].results.setdefault(block.id or "", []).append((said, block))
            calls[blocks[0].id].taken.append(said)
            continue
        entry = Entry(said)
        entries.append(entry)
        if said.message.role == "assistant":
            calls |= {block.id: entry for block in blocks if block.type == "tool_call" and block.id}
    return entries


def article(entry: Entry, look: Look) -> Markup:
    """Return a message as HTML."""
    said, message = entry.said, entry.said.message
    anchor = look.anchor(said.id)
    kind = message.role if message.role in ("user", "assistant", "tool_result", "event") else "other"
    body = [_block(entry, index, block, look) for index, block in enumerate(message.blocks)]
    if message.role == "user" and message.blocks and all(_is_context(block) for block in message.blocks):
        kind += " injected"
    words = [tag("b", _role(message.role))]
    if said.at is not None:
        words.append(tag("time", look.moment(said.at), datetime=said.at.isoformat()))
    words += [tag("span", message.label, class_="label")] if message.label else []
    words += [_usage(message.usage)] if message.usage is not None else []
    problem = getattr(message, "problem", None)
    return tag(
        "article",
        tag("header", *(join(word, " ") for word in words), look.head(said)),
        tag("p", f"This cannot be read as it was written: {problem}", class_="problem") if problem else None,
        tag("div", *body, class_="body"),
        look.foot(said),
        class_=f"message {kind}",
        id=anchor,
        tabindex="-1",
        aria_label=f"{_role(message.role)}, message {said.id}",
        **look.attributes(said),
    )


def _role(role: str) -> str:
    return role.replace("_", " ").capitalize()


def _usage(usage: Usage) -> Markup:
    counted = {name: getattr(usage, name) for name in usage.__struct_fields__}
    details = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counted.items() if count)
    return tag("span", f"{usage.output_tokens:,} tokens", class_="tokens", title=details)


def gist_of(blocks: Sequence[Block]) -> str:
    """Return the beginning of what a message says, on one line: of its text, else of its calls."""
    texts = [
        text for block in blocks if block.type == "content" and (text := text_in(block)) and not _is_context(block)
    ]
    text = " ".join(" ".join(texts)[: 4 * _LONGEST_GIST].split())
    if not text:
        text = ", ".join(block.tool_name or "a tool" for block in blocks if block.type == "tool_call")
    if not text:
        text = next(("thinking" for block in blocks if block.type == "thinking"), "")
    if not text:
        text = ", ".join(block.modality for block in blocks if block.modality != "text")
    if not text and blocks and not any(map(_is_context, blocks)):
        text = " ".join((text_in(blocks[0]) or "")[: 4 * _LONGEST_GIST].split())
    text = " ".join(_MARKS.sub("", text).split()).removeprefix("# ")
    return text if len(text) <= _LONGEST_GIST else f"{text[:_LONGEST_GIST]}…"


def _is_context(block: Block) -> bool:
    return block.type == "content" and isinstance(block.content, str) and _CONTEXT.match(block.content) is not None


def _block(entry: Entry, index: int, block: Block, look: Look) -> Markup:
    said = entry.said
    text = text_in(block)
    if block.type == "tool_call":
        return _tool(entry, index, block, look)
    if block.type == "thinking":
        return _thinking(block, text, look.cut(said, index))
    if text is None or (block.modality != "text" and text.startswith("data:")):
        return tag("div", look.media(said, index, block), class_="media")
    if block.modality != "text":
        words = f"{block.modality.capitalize()}, not loaded: {text}"
        return tag("p", Markup(link_to(text, words)), class_="note remote")
    if said.message.role == "tool_result":
        title = "The tool failed" if said.message.tool_result_error else "Result"
        shown = long_text(result_text(block) or "", look.cut(said, index))
        return _fold("tool", (tag("span", title, class_="name"),), shown)
    if block.type != "content":
        return _fold("extra", (block.type,), long_text(text, look.cut(said, index)))
    if said.message.role == "user" and _is_context(block):
        found = _CONTEXT.match(text)
        name = (found and (found[1] or "instructions")) or "context"
        size = f" · {len(text):,} characters"
        return _fold("context", (f"Added by the program: {name}{size}",), long_text(text, look.cut(said, index)))
    rendered = look.prompt(text) if said.message.role == "user" else look.answer(text)
    return tag("div", Markup(rendered), class_="text", dir="auto")


def _thinking(block: Block, text: str | None, cut: Cut) -> Markup:
    """Return a thought, folded; one that only its provider can read, as its size."""
    extra = block.extra or {}
    hidden = next(
        (
            value
            for name in ("data", "encrypted_content", "redacted", "signature")
            if isinstance(value := extra.get(name), str)
        ),
        "",
    )
    if text:
        return _fold("thinking", (f"Thinking · {len(text):,} characters",), long_text(text, cut))
    size = len(hidden) or (len(block.content) if isinstance(block.content, bytes) else 0)
    return tag("p", f"Thinking, sealed by the provider, {size:,} bytes", class_="note")


def _tool(entry: Entry, index: int, block: Block, look: Look) -> Markup:
    """Return a call with its results, folded into one card."""
    said = entry.said
    cut = look.cut(said, index)
    view = view_of(block, cut)
    results = entry.results.get(block.id or "", [])
    failed = any(one.message.tool_result_error for one, _ in results)
    state = tag("span", "failed" if failed else "no result", class_="state") if failed or not results else EMPTY
    summary = (
        tag("span", block.tool_name or "tool", class_="name"),
        tag("span", view.gist, class_="gist", dir="auto"),
        state,
    )
    shown: list[Child] = [view.body]
    seen: set[str] = set()
    for one, result in results:
        place = next((n for n, each in enumerate(one.message.blocks) if each is result), 0)
        found = result_text(result)
        body = look.media(one, place, result) if found is None else long_text(found, look.cut(one, place))
        anchor = None if one.id in seen else look.anchor(one.id)
        seen.add(one.id)
        more = look.attributes(one) if anchor else {}
        title = tag("div", "failed" if one.message.tool_result_error else "result", class_="note")
        shown.append(tag("div", title, body, class_="result", id=anchor, tabindex="-1" if anchor else None, **more))
    given = call_in(block)[1]
    if view.kind != "other":
        shown.append(tag("details", tag("summary", "JSON"), long_text(given, cut), class_="raw"))
    return _fold(f"tool {view.kind}{' failed' if failed else ''}", summary, *shown)


def _fold(kind: str, summary: Sequence[Child], *body: Child) -> Markup:
    return tag("details", tag("summary", *(join(one, " ") for one in summary)), tag("div", *body), class_=kind)
