"""Draw a conversation's branches, the newest first.

    ● pqr678 (HEAD) (2024-01-15 10:36) [ASSISTANT] It does.
    ┊ 14 messages
    │ ○ jkl012 (2024-01-15 10:33) [ASSISTANT] No.
    │ ○ ghi789 (2024-01-15 10:32) [USER] Is it?
    ●─┘ def456 (2024-01-15 10:31) [ASSISTANT] It is.
    ● abc123 (2024-01-15 10:30) [USER] What is?

The thread that leads to the head stands on the left, with filled marks. Every other branch stands to the right of its
parent branch, above the message where it leaves. A branch is drawn whole before the next one begins, so rails never
cross and end as early as they can. Of the branches that continue a message, the one that needs most rails goes straight
on. So the number of rails never exceeds the number of binary digits of the branch count, plus one for the head's
thread: 30 forks need six at most, a thousand need eleven.

Straight runs are folded to one line. Ends, forks, beginnings of branches, the head, and messages with a label or a link
are always drawn. This module does no input or output.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ._tree import Brief, children_of

_SHORT = 3  # runs up to this length are not folded


class Row(NamedTuple):
    """A line of the drawing: rails, and a message, a number of folded messages, or nothing."""

    rails: str
    message: Brief | None = None
    words: tuple[str, ...] = ()  # notes on the message
    folded: int = 0


def draw_graph(messages: Iterable[Brief], head: str | None, *, fold: bool = True) -> Iterator[Row]:
    """Yield the lines for a conversation's messages, which are given by sequence."""
    drawing = _Drawing({message.id: message for message in messages}, head, fold=fold)
    for number, root in enumerate(drawing.roots()):
        if number:
            yield Row("")
        yield from drawing.branch(root, "")


class _Drawing:
    def __init__(self, known: dict[str, Brief], head: str | None, *, fold: bool) -> None:
        self._known, self._head, self._fold = known, head, fold
        self._below = children_of(known)
        self._trunk = dict.fromkeys(self._to_head())
        self._served: dict[str, list[Brief]] = {}  # roots that are linked to a message
        for root in self._below[None]:
            if root.link is not None:
                self._served.setdefault(root.link, []).append(root)
        self._straighten()

    def _to_head(self) -> Iterator[str]:
        """Yield the messages that lead to the head, the newest first, across compactions.

        A compaction's root must come after the messages that it sums up. Any other link is ignored, so this ends on
        damaged data, too."""
        message = self._known.get(self._head or "")
        while message is not None:
            yield message.id
            above = message.parent or (message.link if message.main else None)
            found = self._known.get(above or "")
            message = found if found is not None and found.seq < message.seq else None

    def _straighten(self) -> None:
        """Sort the children of each message into drawing order.

        First the child that goes straight on: the one on the head's thread, or else the one that needs most rails. Then
        the others, the most recently active first."""
        need: dict[str, int] = {}
        for message in reversed(self._known.values()):
            children = self._below.get(message.id, [])
            children.reverse()
            on = max(children, key=lambda child: (child.id in self._trunk, need[child.id]), default=None)
            if on is not None:
                children.remove(on)
                aside = max((need[child.id] + 1 for child in children), default=1)
                children.insert(0, on)
            need[message.id] = 1 if on is None else max(need[on.id], aside)

    def roots(self) -> list[Brief]:
        """Return the roots: the head's, the roots that it sums up, then the others, the most recently active first."""
        roots = {root.id: root for root in reversed(self._below[None])}
        first = {id: roots[id] for id in self._trunk if id in roots}
        return list((first | roots).values())

    def branch(self, first: Brief, left: str) -> Iterator[Row]:
        """Yield a branch from its end down to its first message, with the branches that leave it on its right.

        It calls itself for those branches only, so the recursion is never deeper than the number of rails."""
        run: list[Brief] = []
        for message in reversed(self._straight(first)):
            words = self._words(message)
            if self._fold and message is not first and not words and len(self._below.get(message.id, [])) == 1:
                run.append(message)
                continue
            yield from self._run(run, left)
            run = []
            aside = self._below.get(message.id, [])[1:]
            for number, other in enumerate(aside):
                if number:
                    yield Row(f"{left}├─┘")
                yield from self.branch(other, f"{left}│ ")
            yield Row(f"{left}{self._mark(message)}{'─┘' if aside else ''}", message, words)

    def _straight(self, first: Brief) -> list[Brief]:
        found = [first]
        while children := self._below.get(found[-1].id):
            found.append(children[0])
        return found

    def _run(self, run: list[Brief], left: str) -> Iterator[Row]:
        if len(run) > _SHORT:
            yield Row(f"{left}┊", folded=len(run))
        else:
            yield from (Row(f"{left}{self._mark(message)}", message) for message in run)

    def _mark(self, message: Brief) -> str:
        return "●" if message.id in self._trunk else "○"

    def _words(self, message: Brief) -> tuple[str, ...]:
        """Return the notes on a message: HEAD, its label unless the message before has the same, and links from both
        ends."""
        parent = self._known.get(message.parent or "")
        words = ["HEAD"] if message.id == self._head else []
        if message.label and (parent is None or parent.label != message.label):
            words.append(message.label)
        if parent is not None and parent.main and not message.main:
            words.append("aside")
        if message.link is not None:
            words.append(f"{'sums up' if message.main else 'started by'} {message.link}")
        served = self._served.get(message.id, [])
        return (*words, *(f"{'summed up by' if root.main else 'started'} {root.id}" for root in served))
