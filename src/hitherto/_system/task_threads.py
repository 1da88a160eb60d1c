"""Threads for async code: blocking calls run in threads of our own.

The loop's default executor has few threads, and the program uses them too. A task that is cancelled during a call waits
for the result of the call and is cancelled then, so no call stays half done. The price: cancelling waits for at most
one commit.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from ..errors import Closed

MOST_THREADS = 64  # of one store; they are started on demand

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of threads, with the rule for cancelled calls."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="hitherto")
        self.closed = False

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread. If this task is cancelled, wait for the function first."""
        if self.closed:
            raise Closed("the store is closed")
        submitted = self.submit(copy_context().run, partial(function, *args, **kwargs))
        return await outlast(asyncio.wrap_future(submitted))

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(function, *args, **kwargs)

    def close(self) -> None:
        self.closed = True
        self._pool.shutdown(wait=False)  # running calls end by themselves; the loop does not wait for them


async def outlast(future: "asyncio.Future[T]") -> T:
    """Wait for a future, even if this task is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        if cancelled is None:
            return future.result()
        if not future.cancelled():
            future.exception()  # mark it as retrieved: the task raises the cancellation
        raise cancelled
    finally:
        del future, cancelled  # an error refers to this frame, which has to be freed at once


_shared: list[Threads] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.clear)  # a child has none of the threads


def shared_threads() -> Threads:
    """The threads of this process for code without a store, made on first use."""
    if not _shared:
        _shared.append(Threads())
    return _shared[0]
