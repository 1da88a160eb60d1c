"""Pass one request to a provider, and its answer back.

The bytes of a request pass unchanged, up to the host: the path as it was written, the query, the body, and all headers
but those that belong to one connection or to us. The bytes of an answer come back as they arrive; an answer that breaks
off breaks off here too. A redirect is passed on, and never followed.

A request of a chat is kept while it is sent, and its answer is not passed on before that (but for a store that takes
too long), so that a program never has an answer to a question that is not kept. The answer is written while its end
is passed on, and before the next request is kept. `--must-keep` keeps the question first, and passes the end of an
answer on when the answer is kept.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from .._http_hooks import Sent
from ..errors import HithertoError
from ..recorder._sdk import dialect_of_path
from .belonging import CONVERSATION, USER
from .connecting import Answer, UpstreamFailed
from .copying import Copy, Endings
from .decoding import CannotDecode
from .keeping import Keeper
from .sending import Sender, forwardable
from .upstreams import Upstream

__all__ = ["Passing", "Receive", "Scope", "Send", "refuse"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_OURS = (CONVERSATION.encode(), USER.encode(), b"x-hitherto-token")
_KEPT_SECONDS = 2.0  # an answer waits so long for its question to be kept
_ENDING_SECONDS = 5.0  # and the end of an answer for the answer


class _ClientGone(Exception):
    """The program has closed its connection."""


class Passing:
    """Passes requests on, and keeps a copy of those that are chats."""

    def __init__(self, keeper: Keeper, *, must_keep: bool = False) -> None:
        self.keeper = keeper
        self.must_keep = must_keep
        self.sender = Sender()
        self.endings = Endings()

    async def close(self) -> None:
        """Wait for what is being written, and close the connections to the providers."""
        await self.endings.wait()
        await self.sender.close()

    async def run(
        self, upstream: Upstream, path: bytes, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass one request on. Returns when its answer has been passed back, or its program has gone away."""
        query: bytes = scope["query_string"]
        target = upstream.path.encode() + path + (b"?" + query if query else b"")
        exchange = _Exchange(self, upstream, target, scope, receive, send)
        if scope["method"] == "POST" and dialect_of_path(path.decode("latin-1")) is not None:
            exchange.sent = Sent("POST", path.decode("latin-1"), b"", headers)
        await exchange.run()


class _Exchange:
    def __init__(
        self, passing: Passing, upstream: Upstream, target: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._passing = passing
        self._upstream = upstream
        self._target = target
        self._scope = scope
        self._receive = receive
        self._send = send
        self._copy = Copy(passing.keeper, passing.endings)
        self._watching: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._is_gone = False  # the program
        self._has_begun = False  # the answer
        self.sent: Sent | None = None  # the request, if it is a chat; its body is yet to come

    async def run(self) -> None:
        self._work = asyncio.create_task(self._pass())
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
        except _ClientGone:
            pass
        finally:
            if not self._work.done():
                self._work.cancel()
                with suppress(asyncio.CancelledError, _ClientGone):
                    await self._work
            if self._watching is not None:
                self._watching.cancel()

    async def _pass(self) -> None:
        if self.sent is not None and self._passing.must_keep:
            whole = b"".join([piece async for piece in self._read()])
            body: bytes | AsyncIterator[bytes] = whole
            try:
                await self._copy.keep(replace(self.sent, body=whole))
            except (HithertoError, CannotDecode) as error:
                await refuse(self._send, 503, f"not sent, because it cannot be kept: {error}")
                return
            self._watch()
        else:
            body = await self._open_body()
        method, dropped = self._scope["method"], (*_OURS, b"host", b"expect")
        headers = forwardable(self._scope["headers"], without=dropped)
        try:
            async with self._passing.sender.send(self._upstream, method, self._target, headers, body) as answer:
                await self._pass_back(answer)
        except UpstreamFailed as error:
            if not self._has_begun:
                self._copy.fail()
                await refuse(self._send, 502, f"the provider cannot be reached: {error}")
            # else: the server closes the connection, so that the program sees that the answer has broken off

    # -- the request

    async def _open_body(self) -> bytes | AsyncIterator[bytes]:
        """Return the body, or a stream of it if it is long. A chat is kept as soon as all of it has come."""
        pieces = self._read()
        first = await anext(pieces, None)
        if self._watching is not None:
            self._keep(first or b"")
            return first or b""
        return self._stream(first or b"", pieces)

    async def _stream(self, first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        copied = [first]
        yield first
        async for piece in pieces:
            if self.sent is not None:
                copied.append(piece)
            yield piece
        self._keep(b"".join(copied))

    async def _read(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientGone
            if not message.get("more_body", False):
                self._watch()
            if body := message.get("body", b""):
                yield body
            if self._watching is not None:
                return

    def _watch(self) -> None:
        """Stop as soon as the program goes away. All of its request has come."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._wait_until_gone())

    async def _wait_until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        if self._work is not None:
            self._work.cancel()

    def _keep(self, body: bytes) -> None:
        if self.sent is not None:
            self._copy.keep_beside(replace(self.sent, body=body))

    # -- the answer

    async def _pass_back(self, answer: Answer) -> None:
        if not 200 <= answer.status < 600:
            raise UpstreamFailed(f"it answered with the status {answer.status}")
        headers = forwardable(answer.headers, without=(b"transfer-encoding",))
        try:
            await self._copy.wait_until_kept(_KEPT_SECONDS)
            self._copy.head(answer.status, headers)
            self._has_begun = True
            await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for piece in answer.pieces():
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
                self._copy.feed(piece)  # before the loop reads what the program says next
        finally:
            ending = self._copy.end()
            if self._passing.must_keep:
                await asyncio.wait([ending], timeout=_ENDING_SECONDS)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse(send: Send, status: int, message: str) -> None:
    """Answer in the place of a provider. The form is one that the SDKs of all of them read."""
    error = {"type": "hitherto_gateway", "code": status, "message": f"hitherto: {message}"}
    body = json.dumps({"type": "error", "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 426:
        headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade, close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
