"""A picture of a conversation's branches, the newest first.

    ● pqr678 (HEAD) (2024-01-15 10:36) [ASSISTANT] It does.
    ┊ 14 messages
    │ ○ jkl012 (2024-01-15 10:33) [ASSISTANT] No.
    │ ○ ghi789 (2024-01-15 10:32) [USER] Is it?
    ●─┘ def456 (2024-01-15 10:31) [ASSISTANT] It is.
    ● abc123 (2024-01-15 10:30) [USER] What is?

The thread that leads to the head stands on the left, with filled marks; every other branch stands to the right of the
one it left, above the message where it did. A branch is drawn whole before the next one begins, so rails never cross
and end as early as they can; and of the branches that go on from a message, the one that needs most rails goes straight
on. So there are never more rails than the number of branches has binary digits, and one for the head's: 30 forks need
six at most, a thousand eleven.

Straight runs are folded to one line: what is drawn are ends, forks, beginnings of branches, the head, and what has a
label or a link. Nothing here reads or writes.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ._tree import Brief, children_of

_SHORT = 3  # so many messages in a row take hardly more room than a line that counts them


class Row(NamedTuple):
    """A line of the picture: rails, and a message, or a number of messages in its place, or nothing."""

    rails: str
    message: Brief | None = None
    words: tuple[str, ...] = ()  # what there is to say about the message
    folded: int = 0


def draw_graph(messages: Iterable[Brief], head: str | None, *, fold: bool = True) -> Iterator[Row]:
    """The lines for a conversation's messages, which come by sequence."""
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
        """The messages that lead to the head, the newest first, across compactions. A root sums up what came before
        it, so this comes to an end, also where what is stored does not make sense."""
        message = self._known.get(self._head or "")
        while message is not None:
            yield message.id
            above = message.parent or (message.link if message.main else None)
            found = self._known.get(above or "")
            message = found if found is not None and found.seq < message.seq else None

    def _straighten(self) -> None:
        """The children of each message in the order in which they are drawn: the one that goes straight on, which is
        the head's or else the one that needs most rails, then the others, the most recently active first."""
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
        """The beginnings: the head's, what that sums up, then the others, the most recently active first."""
        roots = {root.id: root for root in reversed(self._below[None])}
        first = {id: roots[id] for id in self._trunk if id in roots}
        return list((first | roots).values())

    def branch(self, first: Brief, left: str) -> Iterator[Row]:
        """A branch, from its end down to its first message, and right of it those that leave it. It calls itself for
        these only, so never deeper than there are rails."""
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
        """The head, labels that are not those of the message before, and links, from both their ends."""
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
