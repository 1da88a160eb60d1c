"""Observe the requests of an HTTP client before they are sent, and the responses while they arrive.

The SDKs of the providers all use httpx, or httpx2, its successor under another name. Both call hooks before a request
is sent and when the head of a response has arrived. So one module sees the real bytes of every call of every SDK:
streamed or not, sync or async, retries included. The SDK's objects keep their types, and the bytes are passed on
unchanged.

A `Listener` is called with each request. It returns an `Exchange` for a request that it wants to observe; the exchange
gets the response.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct

from ._system.task_threads import shared_threads

_NAME = "hitherto"  # the key of our exchange in the extensions of a request


class Exchange(Protocol):
    """One request that is observed."""

    def head(self, content_type: str) -> None:
        """The head of a successful response has arrived."""

    def feed(self, data: bytes) -> None:
        """A piece of the body has arrived. Must not wait for anything."""

    def end(self) -> None:
        """No more pieces will come: the body is complete, an error occurred, or the reader stopped. May wait."""

    def fail(self) -> None:
        """The provider has refused the request. Must not wait for anything."""


class Sent(Struct, frozen=True):
    """A request that is about to be sent."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


Listener = Callable[[Sent], Exchange | None]  # if it raises, the request is not sent


def add_hooks(http: Any, listener: Listener) -> None:
    """Call the listener for each request of this client, sync or async, from now on."""
    is_async = hasattr(http, "aclose")
    hooks = {name: list(given) for name, given in http.event_hooks.items()}
    before, after = (_before_async, _after_async) if is_async else (_before, _after)
    hooks["request"].append(before(listener))
    hooks["response"].append(after)
    http.event_hooks = hooks


def _before(listener: Listener) -> Callable[[Any], None]:
    def hook(request: Any) -> None:
        if _NAME not in request.extensions:  # a redirect carries the exchange of its first request
            _attach(request, listener(_describe(request, request.read())))

    return hook


def _before_async(listener: Listener) -> Callable[[Any], Any]:
    async def hook(request: Any) -> None:
        if _NAME not in request.extensions:
            body = await request.aread()
            _attach(request, await shared_threads().run(listener, _describe(request, body)))

    return hook


def _describe(request: Any, body: bytes) -> Sent:
    return Sent(request.method, request.url.path, body, request.headers)


def _attach(request: Any, exchange: Exchange | None) -> None:
    if exchange is not None:
        request.extensions[_NAME] = exchange
        request.headers["accept-encoding"] = "identity"  # so that the response can be read while it comes


def _exchange(response: Any) -> Exchange | None:
    """The exchange that observes this response, after it was given the head. None if the body is not wanted."""
    exchange: Exchange | None = response.request.extensions.get(_NAME)
    if exchange is None:
        return None
    if not response.is_success:
        if not response.has_redirect_location:
            exchange.fail()
        return None
    exchange.head(response.headers.get("content-type", ""))
    return exchange


def _after(response: Any) -> None:
    exchange = _exchange(response)
    if exchange is not None and response.is_stream_consumed:
        _feed_whole(response, exchange)
    elif exchange is not None:
        response.stream = _streams(response)[0](response.stream, exchange, _decompressor(response))


async def _after_async(response: Any) -> None:
    exchange = _exchange(response)
    if exchange is not None and response.is_stream_consumed:
        await shared_threads().run(_feed_whole, response, exchange)
    elif exchange is not None:
        response.stream = _streams(response)[1](response.stream, exchange, _decompressor(response))


def _feed_whole(response: Any, exchange: Exchange) -> None:
    """Feed a body that was complete from the beginning, from a mock transport or a cache. The stream of such a response
    is never read."""
    exchange.feed(response.content)
    exchange.end()


def _decompressor(response: Any) -> Callable[[bytes], bytes] | None:
    """A function that decompresses the whole body, for a server that compresses although it was asked not to."""
    if response.headers.get("content-encoding", "identity") == "identity":
        return None
    kind, headers = type(response), response.headers
    return lambda data: bytes(kind(200, headers=headers, content=data).content)


class ObservedStream:
    """A stream that passes its chunks on and feeds them to an exchange: the common part of sync and async."""

    def __init__(self, inner: Any, exchange: Exchange, decompress: Callable[[bytes], bytes] | None) -> None:
        self.inner = inner
        self.exchange = exchange
        self.decompress = decompress
        self.compressed: list[bytes] = []
        self.has_ended = False

    def on_chunk(self, piece: bytes) -> None:
        if self.decompress is None:
            self.exchange.feed(piece)
        else:
            self.compressed.append(piece)

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            if self.decompress is not None:
                self.exchange.feed(self.decompress(b"".join(self.compressed)))
            self.exchange.end()


def _streams(response: Any) -> tuple[type, type]:
    """The sync and the async class of observed streams for the library of this response, which accepts only streams of
    its own classes."""
    library = type(response).__module__.split(".")[0]
    if library not in _classes:
        module = import_module(library)
        _classes[library] = (_sync_stream(module.SyncByteStream), _async_stream(module.AsyncByteStream))
    return _classes[library]


_classes: dict[str, tuple[type, type]] = {}


def _sync_stream(kind: type) -> type:
    class Observed(ObservedStream, kind):  # type: ignore[misc]  # the class of one of two libraries
        def __iter__(self) -> Iterator[bytes]:
            try:
                for piece in self.inner:
                    self.on_chunk(piece)
                    yield piece
            finally:
                self.end()

        def close(self) -> None:
            try:
                self.inner.close()
            finally:
                self.end()

    return Observed


def _async_stream(kind: type) -> type:
    class Observed(ObservedStream, kind):  # type: ignore[misc]  # the class of one of two libraries
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in self.inner:
                    self.on_chunk(piece)
                    yield piece
            finally:
                await self._end()

        async def aclose(self) -> None:
            try:
                await self.inner.aclose()
            finally:
                await self._end()

        async def _end(self) -> None:
            if not self.has_ended:
                await shared_threads().run(self.end)

    return Observed
