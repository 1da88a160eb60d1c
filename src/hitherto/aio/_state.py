"""Items and batches, awaited: the twins of `hitherto.items`.

A batch collects without waiting; only writing it is awaited.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from .._system.task_threads import Threads
from ..items import ANY, Batch, BatchItems, Item, Items

if TYPE_CHECKING:
    from ..model import Message, Saved

_AHEAD = 32  # items of a scan fetched at a time


class AsyncItems:
    """The items of a conversation, or of the workspace, awaited. See `Items`."""

    def __init__(self, items: Items, threads: Threads) -> None:
        self._items = items
        self._threads = threads

    def __repr__(self) -> str:
        return f"<Async{repr(self._items)[1:]}"

    async def get(self, name: str) -> Item | None:
        return await self._threads.run(self._items.get, name)

    async def put(self, name: str, value: bytes, *, expect: int | None = ANY, text: bool = False) -> Item:
        return await self._threads.run(self._items.put, name, value, expect=expect, text=text)

    async def delete(self, name: str, *, expect: int | None = ANY, missing_ok: bool = False) -> None:
        await self._threads.run(self._items.delete, name, expect=expect, missing_ok=missing_ok)

    async def scan(
        self, prefix: str = "", *, after: str | None = None, reverse: bool = False, limit: int | None = None
    ) -> AsyncIterator[Item]:
        found: Iterator[Item] = await self._threads.run(
            self._items.scan, prefix, after=after, reverse=reverse, limit=limit
        )
        while ready := await self._threads.run(_take, found):
            for item in ready:
                yield item


def _take(items: Iterator[Item]) -> list[Item]:
    return [item for _, item in zip(range(_AHEAD), items, strict=False)]


class AsyncBatch:
    """Messages and items that are written together, awaited: `async with talk.batch() as batch`. See `Batch`."""

    def __init__(self, batch: Batch, threads: Threads) -> None:
        self._batch = batch
        self._threads = threads

    def __repr__(self) -> str:
        return f"<Async{repr(self._batch)[1:]}"

    @property
    def items(self) -> BatchItems:
        return self._batch.items

    @property
    def saved(self) -> "list[Saved]":
        return self._batch.saved

    def append(self, message: "Message") -> None:
        self._batch.append(message)

    def extend(self, messages: "Iterable[Message]") -> None:
        self._batch.extend(messages)

    async def write(self) -> "list[Saved]":
        return await self._threads.run(self._batch.write)

    async def __aenter__(self) -> "AsyncBatch":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._threads.run(self._batch.__exit__, kind, error, trace)
