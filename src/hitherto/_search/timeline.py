"""The new messages of many conversations by time, with few of them in memory.

A text index takes in messages by time, because newest first is then its natural order. After a large import that is a
million messages. Times never decrease along a conversation, so a conversation is opened only when the time reaches its
beginning. A heap holds the next header of each open conversation, and each has a page of headers behind it. The more
are open, the shorter the pages are.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

from ..backend import Backend, MessageRow
from ..textindex import Known

HELD = 16_384  # headers in memory, roughly
_SHORTEST, _LONGEST = 8, 1024  # headers read at a time

Limit = Callable[[], int]  # how many headers may be read now
Open = Callable[[Known, Limit], Iterator[MessageRow]]


def by_time(conversations: Iterable[Known], open_one: Open) -> Iterator[MessageRow]:
    """Yield the messages that `open_one` returns for each conversation, merged by time.

    `conversations` have to be sorted by `created_at`."""
    heap: list[tuple[tuple[int, bytes, int], MessageRow, Iterator[MessageRow]]] = []

    def limit() -> int:
        return max(_SHORTEST, min(_LONGEST, HELD // (len(heap) + 1)))

    def push(headers: Iterator[MessageRow]) -> None:
        for header in headers:
            heapq.heappush(heap, ((header.created_at, header.conversation, header.seq), header, headers))
            return

    for one in conversations:
        while heap and heap[0][0][0] < one.created_at:
            yield (popped := heapq.heappop(heap))[1]
            push(popped[2])
        push(open_one(one, limit))
    while heap:
        yield (popped := heapq.heappop(heap))[1]
        push(popped[2])


def headers(backend: Backend, conversation: bytes, after: int, limit: Limit) -> Iterator[MessageRow]:
    """Yield the messages of a conversation by sequence, without their content, one page at a time."""
    while True:
        most = limit()
        rows = backend.scan(conversation, after=after, limit=most, bodies=False)
        yield from rows
        if len(rows) < most:
            return
        after = rows[-1].seq
