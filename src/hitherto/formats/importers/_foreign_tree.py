"""Puts the messages of a foreign tree in order: parents first, then by time, then as they stand in the file.

A file may say anything of parents: one that is missing, one that is itself, a circle. A message whose parent is missing
stands with the roots, and keeps the name of its parent: another file may have it. A circle is cut at its first message
in the file, which becomes a root. Nothing is lost, and nothing here is recursive: a chain may be as long as memory
allows.
"""

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
    places = {id: place for place, id in enumerate(parents)}
    above = {id: parent if parent in places else None for id, parent in parents.items()}
    cut = _cut_circles(above, places)
    below: dict[str | None, list[str]] = {}
    for id, parent in above.items():
        below.setdefault(parent, []).append(id)
    found: dict[str, str | None] = {}
    ready: list[tuple[bool, int, int, str]] = []
    for root in below.get(None, ()):
        heappush(ready, (root == last, times.get(root, 0), places[root], root))
    while ready:
        is_last, at, _, id = heappop(ready)
        found[id] = None if id in cut else parents[id]
        for child in below.get(id, ()):
            heappush(ready, (is_last or child == last, max(at, times.get(child, 0)), places[child], child))
    return Ordered(found, tuple(cut))


def _cut_circles(above: dict[str, str | None], places: Mapping[str, int]) -> dict[str, None]:
    """Make a root of the first message of each circle. Returns these messages."""
    done: set[str] = set()
    cut: dict[str, None] = {}
    for start in above:
        path: set[str] = set()
        at: str | None = start
        while at is not None and at not in done and at not in path:
            path.add(at)
            at = above[at]
        if at is not None and at in path:
            first = min(_circle(at, above), key=places.__getitem__)
            above[first] = cut[first] = None
        done |= path
    return cut


def _circle(at: str, above: Mapping[str, str | None]) -> list[str]:
    members, here = [at], above[at]
    while here is not None and here != at:
        members.append(here)
        here = above[here]
    return members


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
