"""The tree of a conversation, without its content.

It is read from the headers of the messages, so ten thousand messages take a moment and no body is opened. A message is
known by its number here; the store turns numbers into ids.

A **path** is what a person reads: from the root to a leaf. It goes across a compaction, from the messages that were
summed up to the summary. Traces of sub-agents have paths of their own, and stand beside the message that started them.
"""

from collections.abc import Iterable
from functools import cached_property

from ..backend import MessageRow

__all__ = ["Outline"]


class Outline:
    """Messages by number, with their order as a tree. Damaged links are ignored, so every walk ends: a parent always
    comes before its child."""

    def __init__(self, rows: Iterable[MessageRow], head: int | None) -> None:
        self.rows = {row.number: row for row in rows}
        self.above: dict[int, int | None] = {}
        self.below: dict[int | None, list[int]] = {None: []}
        self.agents: dict[int, list[int]] = {}  # first messages of sub-agents, by the message that started them
        seen: set[int] = set()
        for number, row in self.rows.items():
            linked = row.link if row.parent is None and row.main else None
            parent = row.parent if row.parent in seen else linked if linked in seen else None
            self.above[number] = parent
            self.below.setdefault(parent, []).append(number)
            if row.parent is None and not row.main and row.link in seen:
                self.agents.setdefault(row.link, []).append(number)
            seen.add(number)
        self.head = head if head in self.rows else None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def newest(self) -> dict[int, int]:
        """The highest sequence at or below each message: how recently its branch was active."""
        found = {number: row.seq for number, row in self.rows.items()}
        for number in reversed(self.rows):
            above = self.above[number]
            if above is not None and found[above] < found[number]:
                found[above] = found[number]
        return found

    @cached_property
    def trunk(self) -> list[int]:
        """The path to the head; if there is none, to the newest message."""
        if self.head is not None:
            return self.upto(self.head)
        return self.upto(next(reversed(self.rows))) if self.rows else []

    @cached_property
    def leaves(self) -> list[int]:
        """The ends of all branches, the most recently active first."""
        return sorted((n for n in self.rows if n not in self.below), key=lambda n: -self.rows[n].seq)

    @cached_property
    def forks(self) -> list[int]:
        """Messages with more than one continuation, in order."""
        return [n for n in self.rows if len(self.below.get(n, ())) > 1]

    def upto(self, number: int) -> list[int]:
        """Return the messages from the root to this one."""
        path: list[int] = []
        at: int | None = number
        while at is not None:
            path.append(at)
            at = self.above[at]
        return path[::-1]

    def path(self, through: int | None = None) -> list[int]:
        """Return the path through a message, down to a leaf: along the trunk where it leads there, else along the
        branch that was active last."""
        path = self.trunk if through is None else self.upto(through)
        if path and through is None and path[-1] in self.below:
            return path  # the conversation stands above its newest message: that is where it goes on
        trunk = set(self.trunk)
        if through in trunk:
            return self.trunk
        path = list(path)
        while path and (below := self.below.get(path[-1])):
            path.append(max(below, key=lambda n: self.newest[n]))
        return path

    def siblings(self, number: int) -> list[int]:
        """Return the continuations that a message is one of, oldest first. Traces of sub-agents are not such."""
        above = self.above[number]
        if above is None:
            return [n for n in self.below[None] if self.rows[n].main] if self.rows[number].main else [number]
        return self.below[above]
