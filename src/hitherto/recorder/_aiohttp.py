"""Observe aiohttp, which Google's SDK uses where it is installed.

aiohttp has no hooks that see a body while it is read. So we wrap the one method of the SDK that sends a request. It
takes the request, and returns the whole text or, for a stream, aiohttp's response. The content of that response is
replaced by one that also feeds each piece to the exchange.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from .._http_hooks import Exchange, Listener, Sent
from .._system.task_threads import shared_threads


async def listen_to_aiohttp(request: Any, send: Callable[[], Awaitable[Any]], listener: Listener) -> Any:
    """Send a request of Google's SDK, and observe it and its response."""
    data = request.data or {}
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    headers = {name.lower(): value for name, value in request.headers.items()}
    sent = Sent(request.method.upper(), urlsplit(request.url).path, body, headers)
    exchange = await shared_threads().run(listener, sent)
    response = await send()
    if exchange is not None:
        types = [value for name, value in response.headers.items() if name.lower() == "content-type"]
        exchange.head(types[0] if types else "")
        if isinstance(response.response_stream, list):
            await shared_threads().run(_feed_whole, exchange, response.response_stream)
        else:
            _Content.put_into(response.response_stream, exchange)
    return response


def _feed_whole(exchange: Exchange, texts: list[str]) -> None:
    for text in texts:
        exchange.feed(text.encode())
    exchange.end()


class _Content:
    """The content of a response of aiohttp, which feeds each piece that is read to an exchange."""

    def __init__(self, inner: Any, exchange: Exchange) -> None:
        self._inner = inner
        self._exchange = exchange
        self._has_ended = False

    @classmethod
    def put_into(cls, response: Any, exchange: Exchange) -> None:
        content = cls(response.content, exchange)
        response.content = content
        release = response.release

        def release_and_end() -> Any:
            """A reader who stops releases the response. This waits for a write: aiohttp does not await the method."""
            content.end()
            return release()

        response.release = release_and_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def readline(self, **options: Any) -> bytes:
        return await self._pass_on(self._inner.readline(**options))

    async def read(self, n: int = -1) -> bytes:
        return await self._pass_on(self._inner.read(n))

    async def readany(self) -> bytes:
        return await self._pass_on(self._inner.readany())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line

    async def _pass_on(self, reading: Awaitable[bytes]) -> bytes:
        try:
            data = await reading
        except BaseException:
            await shared_threads().run(self.end)
            raise
        if data:
            self._exchange.feed(data)
        else:
            await shared_threads().run(self.end)
        return data

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._exchange.end()
