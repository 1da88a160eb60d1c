"""Messages in brief, and their tree: a line for each, parents above their children.

    abc123 (2024-01-15 10:30) [USER] Why does the build fail?
    def456 (2024-01-15 10:31) [ASSISTANT] Because a file is missing.
        ghi789 (2024-01-15 10:32) [USER] Which one?
        ------
        jkl012 (2024-01-15 10:35) [USER] Make it again.
        ------

A line is indented only below a message with more than one child. A conversation without forks stays at the margin,
however long it is. The most recently active branch stands last, at the end of the terminal. This module does no input
or output.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ._terminal import line, moment

if TYPE_CHECKING:
    from ..model import Block, Saved

_STEP, _END = 4, "------"
_LONGEST = 500  # characters of a text that one line may need


class Brief(NamedTuple):
    """A message as listings show it: its place, and the beginning of its text."""

    id: str
    parent: str | None
    link: str | None
    seq: int
    role: str
    at: datetime
    label: str | None
    main: bool
    summary: str
    problem: str | None


def make_brief(message: "Saved") -> Brief:
    """Return a message in brief."""
    m = message
    summary = summarise_blocks([b for b in m.blocks if not why_injected(b.extra)] or m.blocks)
    if why := why_injected(m.extra):
        summary = f"({why}) {summary}"
    if m.problem is not None:  # with a missing attachment the rest is readable
        summary = f"{summary} ({m.problem})".strip() if m.blocks else f"(cannot be read: {m.problem})"
    return Brief(m.id, m.parent, m.link, m.seq, m.role, m.created_at, m.label, m.main, summary, m.problem)


def why_injected(extra: dict[str, object] | None) -> str:
    """Return why a message or a block stands in a person's turn that no person wrote; "" if a person did."""
    why = (extra or {}).get("injected")
    return why if isinstance(why, str) else ""


def summarise_blocks(blocks: "Sequence[Block]") -> str:
    """Return the beginning of the blocks' text; else of a thought, else the tools' names, else the kinds of
    attachments."""
    for kind in ("content", "thinking"):
        texts = [b.content for b in blocks if b.type == kind and isinstance(b.content, str)]
        text = "".join((t if t[:1].strip() else f" {t.lstrip()}")[: _LONGEST + 1] for t in texts).strip()
        if text:
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    calls = [b.tool_name or "a tool" for b in blocks if b.type == "tool_call"]
    if calls:
        return "".join(f"{name}() " for name in calls)
    return ", ".join(b.modality.capitalize() for b in blocks if b.modality != "text")


def role_tag(role: str) -> str:
    """Return a role as it is printed: `[TOOL RESULT]`."""
    return f"[{role.replace('_', ' ').upper()}]"


def brief_line(message: Brief) -> str:
    """Return a message on one line, not cut yet: `abc123 (2024-01-15 10:30) [USER] text`."""
    return f"{message.id} ({moment(message.at)}) {role_tag(message.role)} {message.summary}"


def draw_tree(messages: Iterable[Brief], width: int) -> Iterator[str]:
    """Yield the lines of the tree of these messages, which come by sequence inside each conversation.

    Half of the width stays for the messages at any depth, and an id always fits."""
    known = {message.id: message for message in messages}
    below = children_of(known)
    most = max(width // 2, width - 10 * _STEP)
    waiting = [(root, 0) for root in reversed(below[None])]
    while waiting:
        message, depth = waiting.pop()
        inset = min(depth * _STEP, most)
        yield " " * inset + line(brief_line(message), width - inset)
        children = below.get(message.id, [])
        deeper = depth + (len(children) > 1)
        waiting += [(child, deeper) for child in reversed(children)]
        if not children and message.parent in known:
            yield " " * inset + _END


def children_of(known: dict[str, Brief]) -> dict[str | None, list[Brief]]:
    """Return the messages below each message, the most recently active last.

    A message whose parent does not come before it counts as a root: a concurrent delete may have removed the parent,
    and damaged data must not cause a loop."""
    below: dict[str | None, list[Brief]] = {None: []}
    active: dict[str, tuple[datetime, int]] = {}
    seen: set[str] = set()
    for message in known.values():
        below.setdefault(message.parent if message.parent in seen else None, []).append(message)
        seen.add(message.id)
        active[message.id] = message.at, message.seq
    for message in reversed(known.values()):
        if message.parent in seen:
            active[message.parent] = max(active[message.parent], active[message.id])
    for children in below.values():
        children.sort(key=lambda child: active[child.id])
    return below
