"""Waiting in async code: calls that wait run in threads of our own.

The loop's default executor has a handful, and others wait in it too. A task that is cancelled while a call is on its
way waits for its outcome and is cancelled then: nothing is left between done and not done. The price is that cancelling
waits for at most one commit.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from .errors import Closed

MOST_THREADS = 64  # of one store; they are made when they are needed

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Our threads, and the rule for cancelled calls."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="hitherto")
        self.closed = False

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result. If this task is cancelled, the function is waited for first."""
        if self.closed:
            raise Closed("the store is closed")
        submitted = self.submit(copy_context().run, partial(function, *args, **kwargs))
        return await outlast(asyncio.wrap_future(submitted))

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(function, *args, **kwargs)

    def close(self) -> None:
        self.closed = True
        self._pool.shutdown(wait=False)  # what still runs ends by itself; the loop does not wait for it


async def outlast(future: "asyncio.Future[T]") -> T:
    """The result of a future that is not cancelled with this task: it is waited for first."""
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
            future.exception()  # it is not lost: the caller did not wait for it
        raise cancelled
    finally:
        del future, cancelled  # an error refers to this frame: it is to be freed at once


_shared: list[Threads] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.clear)  # a child has none of the threads


def shared() -> Threads:
    """Threads for whoever has none of his own, made when they are first needed."""
    if not _shared:
        _shared.append(Threads())
    return _shared[0]
