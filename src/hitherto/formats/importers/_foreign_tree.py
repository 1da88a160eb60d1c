"""Puts the messages of a foreign tree in order: parents first, then by time, then as they stand in the file.

A file may say anything of parents: one that is missing, one that is itself, a circle. A message whose parent is missing
stands with the roots, and keeps the name of its parent: another file may have it. A circle is cut at its first message
in the file, which becomes a root. Nothing is lost, and nothing here is recursive: a chain may be as long as memory
allows.
"""

from array import array
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from msgspec import Struct

from .._importer import clean_text
from .._types import SourceRecord


class Ordered(Struct, frozen=True):
    """A tree in order."""

    parents: dict[str, str | None]  # of all messages, parents first
    cut: tuple[str, ...] = ()  # the messages that were in a circle of parents, and are roots now


def order_tree(parents: Mapping[str, str | None], times: Mapping[str, int], last: str = "") -> Ordered:
    """Return the messages in order. `parents` has them as they stand in the file; a time of 0, or none, is unknown, and
    then the message is as old as its parent. The message `last`, and what stands below it, comes after all others: a
    conversation stands where it was left."""
    names = list(parents)
    above, at_last = _places_above(parents, last)
    cut = _cut_circles(above)
    first, following = _children(above)
    found: dict[str, str | None] = {}
    ready: list[tuple[bool, int, int]] = []

    def add(place: int, at: int, *, is_last: bool) -> None:
        while place >= 0:
            heappush(ready, (is_last or place == at_last, max(at, times.get(names[place], 0)), place))
            place = following[place]

    add(first[-1], 0, is_last=False)
    while ready:
        is_last, at, place = heappop(ready)
        found[names[place]] = None if place in cut else parents[names[place]]
        add(first[place], at, is_last=is_last)
    return Ordered(found, tuple(names[place] for place in cut))


# Messages are named by their places in the file, in arrays: dicts of a million names take hundreds of megabytes.


def _places_above(parents: Mapping[str, str | None], last: str) -> tuple["array[int]", int]:
    """Return the place of each message's parent, and that of the message `last`; -1 for none that is there."""
    places = {id: place for place, id in enumerate(parents)}
    above = array("q", (-1 if parent is None else places.get(parent, -1) for parent in parents.values()))
    return above, places.get(last, -1)


def _children(above: "array[int]") -> tuple["array[int]", "array[int]"]:
    """Return the first child of each message, with the first root at the end, and the next child of the same parent,
    in the order of the file; -1 for none."""
    first, following = array("q", [-1]) * (len(above) + 1), array("q", [-1]) * len(above)
    for place in reversed(range(len(above))):
        following[place], first[above[place]] = first[above[place]], place
    return first, following


def _cut_circles(above: "array[int]") -> dict[int, None]:
    """Make a root of the first message of each circle. Returns these messages."""
    done = bytearray(len(above))
    cut: dict[int, None] = {}
    for start in range(len(above)):
        path: dict[int, None] = {}
        at = start
        while at >= 0 and not done[at] and at not in path:
            path[at] = None
            at = above[at]
        if at >= 0 and at in path:
            members = list(path)
            begins = min(members[members.index(at) :])
            above[begins] = -1
            cut[begins] = None
        for place in path:
            done[place] = 1
    return cut


def skip_empty(parents: Mapping[str, str | None], kept: Mapping[str, object]) -> dict[str, str | None]:
    """Return the parents of the kept messages, with those that are not kept taken out between them."""
    above: dict[str, str | None] = {}  # of messages that are not kept: the kept one above
    found: dict[str, str | None] = {}
    for id in kept:
        path: dict[str, None] = {}
        at = parents[id]
        while at is not None and at in parents and at not in kept and at not in above and at not in path:
            path[at] = None
            at = parents[at]
        end = None if at is None or at in path else above.get(at, at)
        above.update(dict.fromkeys(path, end))
        found[id] = end
    return found


def circle_records(tree: Ordered, parents: Mapping[str, str | None]) -> Iterator[SourceRecord]:
    """Yield a record for each message that was in a circle of parents: it says where it stood."""
    for id in tree.cut:
        place = {"id": clean_text(id), "parent": clean_text(parents[id] or "")}
        yield SourceRecord(type="parents in a circle", data=place)
