"""Lists of LangChain messages as paths in the tree of a conversation: reading them, and finding what is stored.

The key of a message is a digest of the path to it (`formats.importers._langgraph_records`). So the longest beginning
of a list that is stored is found by keys, and a writer that repeats itself, or two that say the same, store it once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..conversation import Conversation
from ..errors import Damaged, NotFound
from ..formats.importers._langgraph_records import MAIN, ROOT, SIDE, Listed, Typed, key_of
from ..model import Message, Saved


class Draft(NamedTuple):
    """The messages of a list that are not stored yet."""

    flow: str
    new: list[Message]
    above: str | None  # the key of the message that the first one goes below


def read(talk: Conversation, listed: Listed) -> list[Saved]:
    """Return the messages of a list."""
    found = talk.get(keys=[listed.key], missing_ok=True)
    path = talk.fork(at=found[0].id).thread(last=listed.count, events=True) if found else []
    if len(path) != listed.count:
        raise Damaged(f"{listed.count - len(path)} of {listed.count} messages of a list are missing")
    return path


def typed_of(message: Saved) -> Typed:
    """Return the element that a message of a list stands for."""
    raw = message.raw
    if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[0], str) or not isinstance(raw[1], bytes):
        raise Damaged(f"message {message.id} does not hold a message of LangChain")
    return raw[0], raw[1]


class Beginning(NamedTuple):
    """What is stored of a list."""

    before: bytes  # the digest of the path before it
    digests: list[bytes]  # of its elements
    stored: int  # how many of them are stored, from the first one on
    key: str | None  # of the last one of these


def find_beginning(
    talk: Conversation,
    elements: Sequence[Typed],
    flow: str,
    earlier: Listed | None,
    path: Callable[[bytes], list[bytes]],
) -> Beginning:
    """Return what is stored of a list. `earlier` is the list of the checkpoint before, and `path` gives the digests of
    the elements, from the one before them."""
    before = ROOT if earlier is None else earlier.before
    found = path(before)
    if earlier is not None:
        fits = earlier.count <= len(found) and found[earlier.count - 1].hex() == earlier.key[1:]
        if fits and (flow != MAIN or earlier.key.startswith(MAIN)):
            return Beginning(before, found, earlier.count, earlier.key)
        cut = _find_cut(talk, earlier, elements, flow)
        if cut is not None:
            before, count, key = cut
            return Beginning(before, path(before), count, key)
        if before != ROOT:
            before, found = ROOT, path(ROOT)
    return Beginning(before, found, *_count_stored(talk, found, flow))


def _count_stored(talk: Conversation, found: Sequence[bytes], flow: str) -> tuple[int, str | None]:
    """Return how many elements are stored as the beginning of a list, and the key of the last one. Whoever stores a
    message has stored those above it, so halving finds the number."""
    low, high = 0, len(found)
    key: str | None = None
    middle = high  # most often all of it is there, or nothing
    while low < high:
        flows = (MAIN,) if flow == MAIN else (MAIN, SIDE)
        there = talk.get(keys=[key_of(one, found[middle - 1]) for one in flows], missing_ok=True)
        if there:
            low, key = middle, there[0].key
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low, key


def _find_cut(
    talk: Conversation, earlier: Listed, elements: Sequence[Typed], flow: str
) -> tuple[bytes, int, str] | None:
    """Return where in an earlier list this one begins, if that list has lost its first messages alone: the digest
    before, how many of the elements are there, and the key of the last one."""
    if flow == MAIN and not earlier.key.startswith(MAIN):
        return None
    try:
        path = read(talk, earlier)
    except (Damaged, NotFound):
        return None
    had = [typed_of(message) for message in path]
    for start in range(1, len(had)):
        count = len(had) - start
        if had[start] == elements[0] and had[start:] == list(elements[:count]):
            return bytes.fromhex((path[start - 1].key or "m")[1:]), count, path[-1].key or ""
    return None
