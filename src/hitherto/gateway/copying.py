"""The copy of one exchange that is given to a recorder, while its bytes pass through.

The copy never delays a byte: pieces are decoded and fed as they pass, writing happens in threads, and pieces that come
before the request is kept wait in memory. One moment matters: a program may send its next request as soon as it has
seen the end of an answer, and that request is understood by the answer in its history. So the copy notes the end of an
answer in the turn of the loop in which its bytes are passed on, and the next request is kept after it.
"""

import asyncio
from collections.abc import Sequence

from .._http_hooks import Sent
from .._system.task_threads import shared_threads
from ..recorder._sdk import RecordedExchange
from .decoding import CannotDecode, Decoder, open_decoder
from .keeping import Keeper
from .sending import Header

__all__ = ["Copy", "Endings"]

_ENDINGS = (b"message_stop", b"[DONE]", b"response.completed", b"response.incomplete", b"response.failed")
_LONGEST_ENDING = max(map(len, _ENDINGS))
_MAX_WAITING_BYTES = 256 << 20  # pieces that wait for their request to be kept
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
        self._waiting: list[bytes] = []  # pieces that came before the request was kept
        self._waiting_bytes = 0
        self._tail = b""  # the last bytes of the piece before, in which an ending may begin
        self._left: int | None = None  # bytes of the answer that are to come, if its length is known
        self._ending: asyncio.Task[None] | None = None
        self._is_over = False  # nothing more is kept of this exchange

    # -- the request

    async def keep(self, sent: Sent) -> None:
        """Keep the request. Raises the error if that fails."""
        await self._endings.wait()
        try:
            self._exchange = await shared_threads().run(self._keeper.begin, sent)
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
            self._take(decoded)
        except Exception as error:  # noqa: BLE001  # as above
            self._lose(error)
            return
        if self._left is not None:
            self._left -= len(data)
        if self._left == 0 or self._has_ending(decoded):
            self._begin_ending()

    def _take(self, data: bytes) -> None:
        if self._keeping is not None and not self._keeping.done():
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes > _MAX_WAITING_BYTES:
                raise MemoryError
        else:
            self._feed_waiting()
            if self._exchange is not None:
                self._exchange.feed(data)

    def _feed_waiting(self) -> None:
        """Give the recorder what came before the request was kept."""
        if self._exchange is not None and self._head is not None:
            self._exchange.head(self._head)
            self._head = None
            for piece in self._waiting:
                self._exchange.feed(piece)
        self._waiting.clear()

    def _has_ending(self, data: bytes) -> bool:
        if not self._is_stream:
            return False
        seen = self._tail + data
        self._tail = seen[-_LONGEST_ENDING:]
        return any(ending in seen for ending in _ENDINGS)

    def _begin_ending(self) -> None:
        if self._ending is None or self._ending.done():
            self._ending = asyncio.create_task(self._end_if_complete())
            self._endings.add(self._ending)

    async def _end_if_complete(self) -> None:
        if await self._is_ready() and self._exchange is not None:
            is_complete = self._left == 0 or await shared_threads().run(self._exchange.is_complete)
            if is_complete and not self._is_over:
                await self._write_end()

    async def _is_ready(self) -> bool:
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
        if not self._is_over:
            try:
                self._feed_waiting()
            except Exception as error:  # noqa: BLE001  # as above
                self._lose(error)
        return not self._is_over

    async def _write_end(self) -> None:
        assert self._exchange is not None
        self._is_over = True
        try:
            await shared_threads().run(self._exchange.end)
        except Exception as error:  # noqa: BLE001  # as above
            self._lose(error)

    def fail(self) -> None:
        """No answer will come."""
        if not self._is_over:
            task = asyncio.create_task(self._fail())
            self._endings.add(task)

    async def _fail(self) -> None:
        if await self._is_ready() and self._exchange is not None:
            self._is_over = True
            self._exchange.fail()

    def end(self) -> "asyncio.Task[None]":
        """The answer is over, complete or not: keep what has come. Returns the task that writes it."""
        task = asyncio.create_task(self._end())
        self._endings.add(task)
        return task

    async def _end(self) -> None:
        if self._ending is not None:
            await asyncio.wait([self._ending])
        if not self._is_over and await self._is_ready() and self._exchange is not None:
            await self._write_end()
