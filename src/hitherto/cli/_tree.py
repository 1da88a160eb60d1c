"""Messages in brief, and the tree that they form: a line for each, parents above their children.

    abc123 (2024-01-15 10:30) [USER] Why does the build fail?
    def456 (2024-01-15 10:31) [ASSISTANT] Because a file is missing.
        ghi789 (2024-01-15 10:32) [USER] Which one?
        ------
        jkl012 (2024-01-15 10:35) [USER] Make it again.
        ------

A line moves to the right only where a message has more than one child: a conversation without forks stays at the
margin, however long it is. What was active last stands last, so that it is what a terminal shows at the end. Nothing
here reads or writes.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ._terminal import line, moment

if TYPE_CHECKING:
    from ..model import Block, Saved

_STEP, _END = 4, "------"
_LONGEST = 500  # characters of a text that are looked at for one line


class Brief(NamedTuple):
    """A message as listings show it: its place, and the beginning of what it says."""

    id: str
    parent: str | None
    link: str | None
    seq: int
    role: str
    at: datetime
    label: str | None
    main: bool
    said: str
    problem: str | None


def make_brief(message: "Saved") -> Brief:
    """A message in brief."""
    m = message
    said = summarise_blocks(m.blocks)
    if m.problem is not None:  # of a message with a missing attachment the rest can be read
        said = f"{said} ({m.problem})".strip() if m.blocks else f"(cannot be read: {m.problem})"
    return Brief(m.id, m.parent, m.link, m.seq, m.role, m.created_at, m.label, m.main, said, m.problem)


def summarise_blocks(blocks: "Sequence[Block]") -> str:
    """The beginning of what blocks say: their text, else a thought, else the tools they call, else what they are."""
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
    """A role as it is shown: `[TOOL RESULT]`."""
    return f"[{role.replace('_', ' ').upper()}]"


def brief_line(message: Brief) -> str:
    """A message on one line, not cut yet: `abc123 (2024-01-15 10:30) [USER] text`."""
    return f"{message.id} ({moment(message.at)}) {role_tag(message.role)} {message.said}"


def draw_tree(messages: Iterable[Brief], width: int) -> Iterator[str]:
    """The lines of the tree of all these messages, which come by sequence inside each conversation. However deep it
    goes, half of the width stays for the messages, and an id always fits."""
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
    """The messages below each, the most recently active last. A message whose parent does not come before it, because
    somebody deletes while we read, counts as a root: it is shown, and no damage leads us in a circle."""
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
