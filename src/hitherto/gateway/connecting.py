"""One connection to a provider: a request out, and its answer back as it comes.

A connection takes one request after the other. It is fit for the next one when the request has been sent to its last
byte, the answer has come to its last byte, and both sides leave the connection open.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import cast

import httptools

__all__ = ["Answer", "Connection", "Header", "UpstreamFailed"]

Header = tuple[bytes, bytes]

_MAX_WAITING_BYTES = 1 << 20  # of an answer that its program is slow to read
_MAX_HEAD_BYTES = 256 << 10  # of an answer
_BODILESS = (204, 304)


class UpstreamFailed(Exception):
    """The provider cannot be reached, or does not speak HTTP."""


class Answer:
    """An answer whose head has come. Its body is read with `pieces`, once."""

    def __init__(self, status: int, headers: list[Header], connection: "Connection") -> None:
        self.status = status
        self.headers = headers
        self._connection = connection

    def pieces(self) -> AsyncIterator[bytes]:
        """Give the body as it comes. Raises `UpstreamFailed` if it breaks off."""
        return self._connection.read()


class Connection(asyncio.Protocol):
    """A connection, from the moment it is made. The callbacks of the parser are named by it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None  # the one task that sends or reads
        self._is_full = False  # more is waiting to be written than should be
        self._failure: str | None = "no request was sent"
        self._is_asked = False
        self._begin("")

    def _begin(self, method: str) -> None:
        """Forget the request before."""
        self._parser = httptools.HttpResponseParser(self)
        self._method = method
        self._status = 0
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._is_paused = False
        self._has_head = False
        self._is_complete = False  # the answer
        self._is_sent = False  # the request
        self._ends_with_connection = False  # the body; nothing else says where it ends
        self._stays = False  # the provider leaves the connection open

    # -- a request and its answer

    async def ask(self, method: str, head: bytes, body: bytes | AsyncIterable[bytes], *, is_chunked: bool) -> Answer:
        """Send a request; return when the head of its answer has come. Raises `UpstreamFailed` if none comes."""
        self._begin(method)
        self._failure, self._is_asked = None, True
        if isinstance(body, bytes):
            self._write(head + _frame(body, is_chunked) + (b"0\r\n\r\n" if is_chunked else b""))
            self._is_sent = True
        else:
            self._write(head)
            await self._send(body, is_chunked)
        while not self._has_head:
            await self._wait()
        return Answer(self._status, self._headers, self)

    async def _send(self, body: AsyncIterable[bytes], is_chunked: bool) -> None:
        async for piece in body:
            while self._is_full and not self._has_head:
                await self._wait()
            if self._has_head:  # the provider has read enough
                return
            self._write(_frame(piece, is_chunked))
        if is_chunked:
            self._write(b"0\r\n\r\n")
        self._is_sent = True

    def _write(self, data: bytes) -> None:
        if self._failure is not None or self._transport is None:
            raise UpstreamFailed(self._failure or "no connection")
        self._transport.write(data)

    async def read(self) -> AsyncIterator[bytes]:
        """Give the body of the answer as it comes."""
        while True:
            if self._pieces:
                data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces, self._waiting_bytes = [], 0
                if self._is_paused and self._transport is not None:
                    self._is_paused = False
                    self._transport.resume_reading()
                yield data
            elif self._is_complete:
                return
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Wait until something happens. Raises `UpstreamFailed` if nothing will."""
        if self._failure is not None:
            raise UpstreamFailed(self._failure)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def finish(self) -> bool:
        """Return True if the connection is fit for another request; otherwise it is closed."""
        self._is_asked = False
        is_read = self._is_complete and not self._pieces  # what is unread may have stopped the transport
        if self._is_sent and is_read and self._stays and self._failure is None:
            return True
        self.close()
        return False

    @property
    def is_open(self) -> bool:
        return self._failure is None

    def close(self) -> None:
        self._fail("the connection is closed")

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = why
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._failure = None

    def data_received(self, data: bytes) -> None:
        if not self._is_asked:  # an answer without a question: it must not pass for that of the next one
            self.close()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._stays = False
            if not self._is_complete:
                self._fail("it does not speak HTTP")
        if not self._has_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail("the head of its answer has no end")
        self._wake()

    def eof_received(self) -> None:
        if self._has_head and self._ends_with_connection:
            self._is_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("it closed the connection" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    # -- the parser

    def on_message_begin(self) -> None:
        if self._is_complete:  # more than one answer
            self._stays = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._has_head:
            return
        if 100 <= status < 200 and status != 101:  # an interim answer; the real one follows
            self._headers = []
            return
        self._status, self._has_head = status, True
        self._stays = self._parser.should_keep_alive()
        names = {name for name, _ in self._headers}
        if self._method == "HEAD":  # the parser waits for a body that will not come
            self._is_complete, self._stays = True, False
        elif status not in _BODILESS:
            self._ends_with_connection = names.isdisjoint((b"content-length", b"transfer-encoding"))

    def on_body(self, data: bytes) -> None:
        if self._is_complete:
            return
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _MAX_WAITING_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True


def _frame(data: bytes, is_chunked: bool) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if is_chunked and data else data
