"""All rows of a conversation, one piece at a time, so that a conversation of any size can be copied.

A piece has few rows and few bytes. The sizes of messages and packs are known beforehand, from the headers. The size of
an item is unknown until it is read, so items are read one by one after a large one.

On a server, where a round trip takes longer than the query, several conversations are read at once (`ahead`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..backend import AttachmentRow, Backend, ConversationRow, ItemRow, MessageRow, PackRow, Tag, Where
from ..ids import RUN

PIECE = 4 << 20  # bytes of content in memory at once, about
PAGE = 256  # the most rows that are read at once
_ROW = 200  # bytes that a row counts beside its body
_THREADS = 8  # threads that read from a server at once

T = TypeVar("T")
U = TypeVar("U")


def ahead(work: Callable[[T], U], things: Iterable[T], *backends: Backend) -> Iterator[tuple[T, U]]:
    """Yield each thing, in order, with the result of the work on it. The work only reads from these backends."""
    if not any(map(_is_far, backends)):
        for thing in things:
            yield thing, work(thing)
        return
    waiting: deque[tuple[T, Future[U]]] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hitherto-ahead") as threads:
        try:
            for thing in things:
                waiting.append((thing, threads.submit(work, thing)))
                if len(waiting) >= 2 * _THREADS:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _is_far(backend: Backend) -> bool:
    return backend.info.distant


def pages(backend: Backend, kind: str) -> Iterator[list[ConversationRow]]:
    after = None
    while True:
        places = backend.page(Where(kind), after, PAGE, oldest_first=True)
        if places:
            yield backend.lookup(ids=[place.id for place in places])
        if len(places) < PAGE:
            return
        after = places[-1]


def _messages(backend: Backend, row: ConversationRow) -> Iterator[list[MessageRow]]:
    after, limit = None, PAGE
    while True:
        if row.size > PIECE:
            limit = _fitting([m.size for m in backend.scan(row.id, after=after, limit=PAGE, bodies=False)])
        rows = backend.scan(row.id, after=after, limit=limit)
        if rows:
            yield [m if type(m.main) is bool else replace(m, main=bool(m.main)) for m in rows]  # SQLite has numbers
        if len(rows) < limit:
            return
        after = rows[-1].seq


def _fitting(sizes: Sequence[int]) -> int:
    """Return how many of these fit into one piece, at least one."""
    total = 0
    for number, size in enumerate(sizes):
        total += size + _ROW
        if total > PIECE:
            return max(number, 1)
    return PAGE


def _packs(backend: Backend, runs: dict[int, int]) -> Iterator[list[PackRow]]:
    """Yield the packs of these runs. The values are the bytes of their messages."""
    left = list(runs.items())
    while left:
        count = _fitting([size for _, size in left[:PAGE]])
        yield sorted(backend.packs([first for first, _ in left[:count]]), key=lambda pack: pack.first)
        del left[:count]


def items_of(backend: Backend, id: bytes) -> Iterator[list[ItemRow]]:
    """Yield the items of a conversation. The number per read grows while they are small: sizes are unknown before."""
    after, limit = None, 8
    while True:
        items = backend.items(id, after=after, limit=limit)
        if items:
            yield items
        if len(items) < limit:
            return
        after = items[-1].key
        limit = min(2 * limit, PAGE) if sum(len(item.body) for item in items) * 8 < PIECE else 1


def _tags(backend: Backend, id: bytes) -> Iterator[list[Tag]]:
    after = None
    while True:
        tags = backend.tags(id, after=after, limit=PAGE)
        if tags:
            yield tags
        if len(tags) < PAGE:
            return
        after = tags[-1]


def pieces(backend: Backend, row: ConversationRow) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield all rows of a conversation except attachments, each list with the name of its field in a change."""
    packed: dict[int, int] = {}
    for messages in _messages(backend, row):
        for m in messages:
            if m.body is None:
                packed[m.number - m.number % RUN] = packed.get(m.number - m.number % RUN, 0) + m.size
        yield "add", messages
    for packs in _packs(backend, packed):
        yield "pack", packs
    for items in items_of(backend, row.id):
        yield "put", items
    for tags in _tags(backend, row.id):
        yield "tag", tags


class Content(Struct, frozen=True):
    """All rows of a conversation."""

    pieces: Iterable[tuple[str, Sequence[Any]]]
    attachments: Sequence[AttachmentRow]


def content(backend: Backend, row: ConversationRow) -> Content:
    """Return the rows of a conversation of any size. They are read during the iteration."""
    return Content(pieces(backend, row), attachments(backend, row.id))


def small(backend: Backend, row: ConversationRow) -> Content | None:
    """Read at once, if it is small enough to be read ahead."""
    if row.size + row.count * _ROW > PIECE // 8:
        return None
    found, weight = [], 0
    for what, rows in pieces(backend, row):
        found.append((what, rows))
        weight += weight_of(rows)
        if weight > PIECE // 4:  # of what is not counted in its row
            return None
    return Content(found, attachments(backend, row.id))


def attachments(backend: Backend, id: bytes) -> list[AttachmentRow]:
    """Chunks that were staged and never adopted do not belong to the conversation."""
    return [one for one in backend.attachments(id) if one.messages]


def everything(backend: Backend, row: ConversationRow) -> Iterator[object]:
    yield row
    for _, rows in pieces(backend, row):
        yield from rows
    for attachment in attachments(backend, row.id):
        yield attachment
        yield from backend.chunks(row.id, attachment.name)


def weight_of(rows: Iterable[Any]) -> int:
    return sum(len(getattr(row, "body", None) or b"") + _ROW for row in rows)
