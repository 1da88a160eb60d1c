"""The copy of one exchange that is given to a recorder, while its bytes pass through.

The copy never delays a byte. In the loop, pieces are decoded and put aside; a thread reads them for the recorder, a few
times a second and at the end of the answer. One moment matters: a program may send its next request as soon as it has
seen the end of an answer, and that request is understood by the answer in its history. So the copy notes the end of an
answer in the turn of the loop in which its bytes are passed on, and the next request is kept after it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from .._http_hooks import Sent
from ..recorder._sdk import RecordedExchange
from .connecting import Header
from .decoding import CannotDecode, Decoder, open_decoder
from .keeping import Keeper

__all__ = ["Copy", "Endings"]

_ENDINGS = (b"message_stop", b"[DONE]", b"response.completed", b"response.incomplete", b"response.failed")
_LONGEST_ENDING = max(map(len, _ENDINGS))
_MAX_WAITING_BYTES = 256 << 20  # pieces that wait for the recorder
_READ_SECONDS = 0.2  # from a piece to its reading; with `keeping`'s time for partials it stays below a second
_PASSING_SECONDS = 0.05  # for the last bytes after an ending: a thread that writes would hold them up
_ENDING_SECONDS = 5.0  # how long a request waits for the answers before it


class Endings:
    """Answers that are complete and are being written."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_ENDING_SECONDS)


class Copy:
    """The copy of one exchange."""

    def __init__(self, keeper: Keeper, endings: Endings) -> None:
        self._keeper = keeper
        self._endings = endings
        self._exchange: RecordedExchange | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._head: str | None = None  # the content type, until the recorder has it
        self._is_stream = False
        self._decoder: Decoder | None = None
        self._waiting: deque[bytes] = deque()  # pieces that the recorder has not read
        self._come_bytes = self._read_bytes = 0  # counted in the loop, and in the thread
        self._reading = threading.Lock()  # held by the thread that reads them
        self._timer: asyncio.TimerHandle | None = None  # until they are read
        self._tail = b""  # the last bytes of the piece before, in which an ending may begin
        self._left: int | None = None  # bytes of the answer that are to come, if its length is known
        self._ending: asyncio.Task[None] | None = None
        self._has_passed = asyncio.Event()  # all of the answer
        self._is_over = False  # nothing more is kept of this exchange

    # -- the request

    async def keep(self, sent: Sent) -> None:
        """Keep the request. Raises the error if that fails."""
        await self._endings.wait()
        try:
            self._exchange = await self._keeper.threads.run(self._keeper.begin, sent)
        except Exception:
            self._is_over = True
            raise
        if self._exchange is None:
            self._is_over = True

    def keep_beside(self, sent: Sent) -> None:
        """Keep the request while it is sent. An error is reported as a loss."""
        self._keeping = asyncio.create_task(self._keep_beside(sent))

    async def _keep_beside(self, sent: Sent) -> None:
        try:
            await self.keep(sent)
        except Exception as error:  # noqa: BLE001  # whatever goes wrong with the copy, the program goes on
            self._lose(error)

    async def wait_until_kept(self, seconds: float) -> None:
        """Wait for the request to be kept, but not for longer."""
        if self._keeping is not None and not self._keeping.done():
            await asyncio.wait([self._keeping], timeout=seconds)

    def _lose(self, error: Exception) -> None:
        self._is_over = True
        self._waiting.clear()
        self._keeper.lose(error)

    # -- the answer

    def head(self, status: int, headers: Sequence[Header]) -> None:
        """The head of the answer has come."""
        found = {name: value.decode("latin-1") for name, value in headers}
        if not 200 <= status < 300:
            self.fail()
            return
        length = found.get(b"content-length", "")
        self._left = int(length) if length.isdecimal() else None
        try:
            self._decoder = open_decoder(found.get(b"content-encoding", ""))
        except CannotDecode as error:
            self._lose(error)
        self._head = found.get(b"content-type", "").lower()
        self._is_stream = self._head.startswith("text/event-stream")

    def feed(self, data: bytes) -> None:
        """Feed the next piece. It was passed on in this turn of the loop, which has read nothing else since."""
        if self._is_over or self._decoder is None:
            return
        try:
            decoded = self._decoder.feed(data)
        except CannotDecode as error:
            self._lose(error)
            return
        self._waiting.append(decoded)
        self._come_bytes += len(decoded)
        if self._come_bytes - self._read_bytes > _MAX_WAITING_BYTES:
            self._lose(MemoryError())
            return
        if self._left is not None:
            self._left -= len(data)
        if self._left == 0 or self._has_ending(decoded):
            self._begin_ending()
        elif self._is_stream and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_READ_SECONDS, self._read_soon)

    def _has_ending(self, data: bytes) -> bool:
        if not self._is_stream:
            return False
        seen = self._tail + data
        self._tail = seen[-_LONGEST_ENDING:]
        return any(ending in seen for ending in _ENDINGS)

    # -- reading, in a thread

    def _read_soon(self) -> None:
        self._timer = None
        if not self._is_over and self._exchange is not None:
            self._keeper.threads.submit(self._in_thread, self._read)

    def _in_thread(self, work: Callable[[RecordedExchange], None]) -> None:
        """Do something with the exchange, one at a time. An error is a loss."""
        with self._reading:
            if self._is_over or self._exchange is None:
                return
            try:
                work(self._exchange)
            except Exception as error:  # noqa: BLE001  # whatever goes wrong with the copy, the program goes on
                self._lose(error)

    def _read(self, exchange: RecordedExchange) -> None:
        """Give the recorder all that waits."""
        if self._head is not None:
            exchange.head(self._head)
            self._head = None
        pieces = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if pieces:
            data = b"".join(pieces)
            self._read_bytes += len(data)
            exchange.feed(data)

    def _read_and_end(self, exchange: RecordedExchange) -> None:
        self._read(exchange)
        self._is_over = True
        exchange.end()

    def _end_if_complete(self, exchange: RecordedExchange) -> None:
        self._read(exchange)
        if self._left == 0 or exchange.is_complete():
            self._is_over = True
            exchange.end()

    def _give_up(self, exchange: RecordedExchange) -> None:
        self._is_over = True
        exchange.fail()

    # -- the end

    def _begin_ending(self) -> None:
        if self._ending is None or self._ending.done():
            self._ending = self._finish(self._end_if_complete, _PASSING_SECONDS)

    def fail(self) -> None:
        """No answer will come."""
        if not self._is_over:
            self._finish(self._give_up)

    def end(self) -> "asyncio.Task[None]":
        """The answer is over, complete or not: keep what has come. Returns the task that writes it."""
        self._has_passed.set()
        return self._finish(self._read_and_end)

    def _finish(self, work: Callable[[RecordedExchange], None], seconds: float = 0.0) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._finish_kept(work, seconds))
        self._endings.add(task)
        return task

    async def _finish_kept(self, work: Callable[[RecordedExchange], None], seconds: float) -> None:
        """Do the last work in a thread, when the request is kept. Wait for the rest of the answer before, but not for
        longer than so many seconds."""
        with suppress(TimeoutError):
            if seconds:
                await asyncio.wait_for(self._has_passed.wait(), seconds)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
        if not self._is_over:
            await self._keeper.threads.run(self._in_thread, work)
