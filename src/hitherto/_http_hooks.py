"""Listening to an HTTP client: what goes out before it goes, what comes in as it comes.

The SDKs of the providers all speak through httpx, or httpx2, its successor under another name. Both call hooks before a
request is sent and when the head of a response is there. So one place sees what every call of every SDK really says,
streamed or not, awaited or not, retries included, and the SDK's objects stay what they are. The bytes are passed on as
they came.

A `Listener` is given each request; for one that concerns it, it returns an `Exchange`, which is given the response.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct

from ._task_threads import shared

_NAME = "hitherto"  # among the extensions of a request


class Exchange(Protocol):
    """One request that is listened to."""

    def head(self, content_type: str) -> None:
        """The response has begun, with success."""

    def feed(self, data: bytes) -> None:
        """A piece of it. Must not wait for anything."""

    def end(self) -> None:
        """There will be no more, because that was all, because of an error, or because nobody reads on. May wait."""

    def fail(self) -> None:
        """The provider has refused the request. Must not wait for anything."""


class Sent(Struct, frozen=True):
    """A request that is about to be sent."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


Listener = Callable[[Sent], Exchange | None]  # may raise, and then nothing is sent


def tap(http: Any, listener: Listener) -> None:
    """Listen to this client, sync or async, from now on."""
    awaited = hasattr(http, "aclose")
    hooks = {name: list(given) for name, given in http.event_hooks.items()}
    before, after = (_before_async, _after_async) if awaited else (_before, _after)
    hooks["request"].append(before(listener))
    hooks["response"].append(after)
    http.event_hooks = hooks


def _before(listener: Listener) -> Callable[[Any], None]:
    def hook(request: Any) -> None:
        if _NAME not in request.extensions:  # a redirect carries what its first request got
            _note(request, listener(_sent(request, request.read())))

    return hook


def _before_async(listener: Listener) -> Callable[[Any], Any]:
    async def hook(request: Any) -> None:
        if _NAME not in request.extensions:
            body = await request.aread()
            _note(request, await shared().run(listener, _sent(request, body)))

    return hook


def _sent(request: Any, body: bytes) -> Sent:
    return Sent(request.method, request.url.path, body, request.headers)


def _note(request: Any, exchange: Exchange | None) -> None:
    if exchange is not None:
        request.extensions[_NAME] = exchange
        request.headers["accept-encoding"] = "identity"  # so that the response can be read while it comes


def _exchange(response: Any) -> Exchange | None:
    """The exchange that wants the body of this response, once its head was told."""
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
        _tell_whole(response, exchange)
    elif exchange is not None:
        response.stream = _streams(response)[0](response.stream, exchange, _unpacker(response))


async def _after_async(response: Any) -> None:
    exchange = _exchange(response)
    if exchange is not None and response.is_stream_consumed:
        await shared().run(_tell_whole, response, exchange)
    elif exchange is not None:
        response.stream = _streams(response)[1](response.stream, exchange, _unpacker(response))


def _tell_whole(response: Any, exchange: Exchange) -> None:
    """Tell a body that was there from the beginning: of a transport that makes up its responses, or has a cache. Nobody
    reads the stream of such a response."""
    exchange.feed(response.content)
    exchange.end()


def _unpacker(response: Any) -> Callable[[bytes], bytes] | None:
    """A function that decompresses the whole body, for a server that compresses although it was asked not to."""
    if response.headers.get("content-encoding", "identity") == "identity":
        return None
    kind, headers = type(response), response.headers
    return lambda data: bytes(kind(200, headers=headers, content=data).content)


class _Ears:
    """What both kinds of stream share."""

    def __init__(self, inner: Any, exchange: Exchange, unpack: Callable[[bytes], bytes] | None) -> None:
        self.inner = inner
        self.exchange = exchange
        self.unpack = unpack
        self.packed: list[bytes] = []
        self.ended = False

    def hear(self, piece: bytes) -> None:
        if self.unpack is None:
            self.exchange.feed(piece)
        else:
            self.packed.append(piece)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            if self.unpack is not None:
                self.exchange.feed(self.unpack(b"".join(self.packed)))
            self.exchange.end()


def _streams(response: Any) -> tuple[type, type]:
    """The classes of streams that pass on and listen, for the library that this response comes from: it wants streams
    of its own kinds."""
    library = type(response).__module__.split(".")[0]
    if library not in _made:
        module = import_module(library)
        _made[library] = (_sync_stream(module.SyncByteStream), _async_stream(module.AsyncByteStream))
    return _made[library]


_made: dict[str, tuple[type, type]] = {}


def _sync_stream(kind: type) -> type:
    class Heard(_Ears, kind):  # type: ignore[misc]  # one of two libraries' classes
        def __iter__(self) -> Iterator[bytes]:
            try:
                for piece in self.inner:
                    self.hear(piece)
                    yield piece
            finally:
                self.end()

        def close(self) -> None:
            try:
                self.inner.close()
            finally:
                self.end()

    return Heard


def _async_stream(kind: type) -> type:
    class Heard(_Ears, kind):  # type: ignore[misc]  # one of two libraries' classes
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in self.inner:
                    self.hear(piece)
                    yield piece
            finally:
                await self._end()

        async def aclose(self) -> None:
            try:
                await self.inner.aclose()
            finally:
                await self._end()

        async def _end(self) -> None:
            if not self.ended:
                await shared().run(self.end)

    return Heard
