"""Appends of many tasks, in rounds: one thread prepares all that wait, they share commits, one callback wakes the loop.

A thread for each append would cost two switches of thread for each, and the threads would fight for the interpreter.
Instead an event loop has a queue. A round takes what is in it: a thread begins each append in turn, in the context of
its task, then waits for the outcomes, and hands all of them to the loop at once. Later appends are the next
round.

Two kinds of appends do not hold up the others. One that may take long, because it has attachments or much text, gets a
thread of its own. One that has to be prepared again, because another process was faster, stays with the thread of its
round, and the next round begins in another thread. The appends of one handle keep the order of the calls all the same:
a handle with such an append is busy, and its later appends stay in the queue until it is not.

All of the queue belongs to the loop's thread. The thread of a round has its calls to itself until it hands them back.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from .._engine.appending import OnConflict, extend_steps
from .._engine.committer import PendingCommit
from .._system.task_threads import MOST_THREADS, Threads
from ..attachment import LARGE, Attachment
from ..conversation import Conversation
from ..errors import Closed
from ..model import Block, Message, Saved

_LARGEST_ROUND = 512  # appends; as many as fit into one commit
_LARGEST_WALK = 1_000  # values that are looked at to find out whether messages are small


class Outcome(asyncio.Future[list[Saved]]):
    """The result of an append. A task that is cancelled while it awaits this is cancelled when the result is there."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  # the name is asyncio's
        return False


class PendingAppend:
    """One call of `extend`, from the moment in which a task awaits it."""

    __slots__ = ("_context", "_entry", "_error", "_result", "_steps", "handle", "is_long", "outcome")

    def __init__(
        self,
        handle: Conversation,
        messages: Iterable[Message],
        on_conflict: OnConflict,
        expect_head: str | Saved | None,
        outcome: Outcome,
    ) -> None:
        self.handle = handle
        self.outcome = outcome
        self.is_long = not are_small(messages)
        self._context = copy_context()
        self._steps = extend_steps(handle.position, messages, on_conflict, expect_head)
        self._entry: PendingCommit | None = None  # the batch whose outcome it needs
        self._result: list[Saved] | None = None
        self._error: BaseException | None = None

    @property
    def is_waiting(self) -> bool:
        """Tell whether a batch is on its way."""
        return self._entry is not None

    def begin(self) -> None:
        """Prepare a batch and put it in line, unless that is done."""
        if self._entry is None:
            self._step(next, self._steps)

    def take_outcome(self) -> None:
        """Wait for the batch and go on with its outcome. Afterwards the append is done, or another batch is in line."""
        entry, self._entry = self._entry, None
        if entry is not None:
            try:
                outcome = self.handle.engine.committer.wait(entry)
            except BaseException as error:  # noqa: BLE001  # the append cleans up, and raises it again
                self._step(self._steps.throw, error)
            else:
                self._step(self._steps.send, outcome)

    def _step(self, advance: Callable[..., PendingCommit], *given: object) -> None:
        try:
            self._entry = self._context.run(advance, *given)
        except StopIteration as end:
            self._result = end.value
        except BaseException as error:  # noqa: BLE001  # it belongs to this call, and reaches the task that made it
            self._error = error

    def resolve(self) -> None:
        """Give the task its result or its error, once the append is done."""
        if self._error is not None:
            self.fail(self._error)
        elif self._result is not None and not self.outcome.done():
            self.outcome.set_result(self._result)

    def fail(self, error: BaseException) -> None:
        outcome = self.outcome
        del self.outcome, self._error  # or the error, its traceback and this call would refer to each other
        if not outcome.done():
            outcome.set_exception(error)


class AppendQueue:
    """The appends of one event loop to one store."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: "StoreThreads") -> None:
        self._loop, self._threads = loop, threads
        self._queue: deque[PendingAppend] = deque()
        self._calls: set[PendingAppend] = set()  # all that are not done
        self._busy: set[Conversation] = set()  # handles with an append that goes on beside the rounds
        self._has_round = False  # one is on its way, or about to begin

    def put(self, call: PendingAppend) -> None:
        self._queue.append(call)
        self._calls.add(call)
        self._plan_round()

    @property
    def pending(self) -> list[Outcome]:
        """The results that are not there yet."""
        return [call.outcome for call in self._calls]

    def _plan_round(self) -> None:
        """Begin a round soon. Tasks that append in the same turn of the loop come along."""
        if self._queue and not self._has_round:
            self._has_round = True
            self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        calls = self._take()
        self._has_round = bool(calls) and self._submit(self._threads.submit_round, self._run_round, calls)

    def _take(self) -> list[PendingAppend]:
        """Take the calls of the next round out of the queue, and begin those that may take long. One of these begins
        when all calls of its handle before it are done; the calls behind it stay in the queue until it is."""
        calls: list[PendingAppend] = []
        left: deque[PendingAppend] = deque()
        taken: set[Conversation] = set()
        held = set(self._busy)
        for call in self._queue:
            handle = call.handle
            if handle in held or len(calls) == _LARGEST_ROUND or (call.is_long and handle in taken):
                left.append(call)
                held.add(handle)
            elif call.is_long:
                held.add(handle)
                self._begin_alone(call)
            else:
                calls.append(call)
                taken.add(handle)
        self._queue = left
        return calls

    def _begin_alone(self, call: PendingAppend) -> None:
        if self._submit(self._threads.submit, self._run_alone, [call]):
            self._busy.add(call.handle)

    def _submit(
        self,
        submit: "Callable[[_Work, list[PendingAppend]], Future[None]]",
        work: "_Work",
        calls: list[PendingAppend],
    ) -> bool:
        try:
            submit(work, calls)
        except RuntimeError as error:  # the threads have ended, or none can be started
            for call in calls:
                call.fail(Closed("the store is closed") if self._threads.closed else error)
            self._calls.difference_update(calls)
            return False
        return True

    # -- in another thread

    def _run_round(self, calls: list[PendingAppend]) -> None:
        for call in calls:
            call.begin()
        again = self._take_outcomes(calls, is_round=True)
        while again:
            again = self._take_outcomes(again)

    def _run_alone(self, calls: list[PendingAppend]) -> None:
        for call in calls:
            call.begin()
        while calls:
            calls = self._take_outcomes(calls)

    def _take_outcomes(self, calls: list[PendingAppend], *, is_round: bool = False) -> list[PendingAppend]:
        """Wait for the batches of these calls, and hand those back that are done. Return the others."""
        for call in calls:
            call.take_outcome()
        done = [call for call in calls if not call.is_waiting]
        again = [call for call in calls if call.is_waiting]
        try:
            self._loop.call_soon_threadsafe(self._end, done, [call.handle for call in again], is_round)
        except RuntimeError:
            if not self._loop.is_closed():  # if it is, no task waits any more
                raise
        return again

    # -- in the loop again

    def _end(self, done: list[PendingAppend], busy: list[Conversation], is_round: bool) -> None:
        """Wake the tasks whose appends are done. The handles `busy` have others that go on."""
        if is_round:
            self._has_round = False
        for call in done:
            self._busy.discard(call.handle)
            call.resolve()
        self._busy.update(busy)
        self._calls.difference_update(done)
        self._plan_round()


_Work = Callable[[list[PendingAppend]], None]


class StoreThreads(Threads):
    """The threads of one store, and the append queues of the loops that use it."""

    def __init__(self) -> None:
        super().__init__()
        self._rounds = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="hitherto-append")  # reads never fill it
        self._queues: dict[asyncio.AbstractEventLoop, AppendQueue] = {}

    def submit_round(self, work: _Work, calls: list[PendingAppend]) -> Future[None]:
        return self._rounds.submit(work, calls)

    async def extend(
        self,
        handle: Conversation,
        messages: Iterable[Message],
        on_conflict: OnConflict,
        expect_head: str | Saved | None,
    ) -> list[Saved]:
        """Append to a conversation. If this task is cancelled, the outcome is waited for first."""
        if self.closed:
            raise Closed("the store is closed")
        loop = asyncio.get_running_loop()
        outcome = Outcome(loop=loop)
        self._queue(loop).put(PendingAppend(handle, messages, on_conflict, expect_head, outcome))
        try:
            return await outcome
        finally:
            del outcome  # an error refers to this frame, and is to be freed at once

    def _queue(self, loop: asyncio.AbstractEventLoop) -> AppendQueue:
        found = self._queues.get(loop)
        if found is None:
            for other in [other for other in list(self._queues) if other.is_closed()]:
                self._queues.pop(other, None)
            found = self._queues[loop] = AppendQueue(loop, self)
        return found

    async def finish_appends(self, timeout_seconds: float) -> float:
        """Wait for the appends that tasks of the running loop have called so far. Return the seconds that are left."""
        pending = self._queue(asyncio.get_running_loop()).pending
        if not pending:
            return timeout_seconds
        deadline = time.monotonic() + timeout_seconds
        await asyncio.wait(pending, timeout=timeout_seconds)
        return max(0.0, deadline - time.monotonic())

    def close(self) -> None:
        super().close()
        self._rounds.shutdown(wait=False)


def are_small(messages: Iterable[Message]) -> bool:
    """Tell whether these messages have a few kilobytes: then they are prepared without I/O, in no time to speak of. A
    value that is no list is not small, because going through it may run any code."""
    if type(messages) is not list and type(messages) is not tuple:
        return False
    room = LARGE
    rest: list[Any] = []  # all but the texts of blocks, which are the most
    for message in messages:
        if not isinstance(message, Message) or type(message.blocks) not in (list, tuple):
            continue  # it is refused later
        for block in message.blocks:
            if type(block) is Block and type(block.content) is str and block.extra is None:
                room -= len(block.content)
            else:
                rest.append(block)
        if message.extra is not None or message.raw is not None or message.privacy is not None:
            rest += (message.extra, message.raw, message.privacy)
    return room > 0 and (not rest or _fit(rest, room))


def _fit(values: list[Any], room: int) -> bool:
    """Tell whether blocks and JSON have fewer characters than `room`, few values, and no attachment."""
    for _ in range(_LARGEST_WALK):
        if room <= 0 or not values:
            break
        value = values.pop()
        kind = type(value)
        if kind is str or kind is bytes:
            room -= len(value)
        elif kind is list or kind is tuple:
            values += value
        elif kind is dict:
            values += (*value.keys(), *value.values())
        elif kind is Block:
            values += (value.content, value.extra)
        elif kind is Attachment:
            return False
    return room > 0 and not values
