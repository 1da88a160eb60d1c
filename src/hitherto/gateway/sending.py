"""Send a request to a provider, and read its answer as it comes.

Nothing is added to a request and nothing is followed: no redirect, no cookie, no retry. The target is the very bytes of
the path that was asked for.
"""

import ssl
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit, urlunsplit

import httpcore2

from .upstreams import Upstream

__all__ = ["Answer", "Header", "Sender", "UpstreamFailed", "forwardable"]

Header = tuple[bytes, bytes]
Answer = httpcore2.Response

_CONNECT_SECONDS = 30.0
_IDLE_SECONDS = 30.0  # a connection that is idle for longer is closed
# Headers of one connection, which a proxy does not pass on. The length, or that it comes in chunks, is passed on: it is
# how the next connection knows where the body ends.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"upgrade")
)  # fmt: skip
_FAILURES = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
    ssl.SSLError,
)


class UpstreamFailed(Exception):
    """The provider cannot be reached, or does not speak HTTP."""


def forwardable(headers: Iterable[Header], *, without: Sequence[bytes] = ()) -> list[Header]:
    """Return the headers that are passed on, with names in small letters, in their order."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = {word.strip().lower() for name, value in lowered if name == b"connection" for word in value.split(b",")} - {
        b"close"
    }
    dropped = _HOP_BY_HOP | named | set(without)
    return [(name, value) for name, value in lowered if name not in dropped]


class Sender:
    """The connections to all providers."""

    def __init__(self) -> None:
        self._pools: dict[str | None, httpcore2.AsyncConnectionPool] = {}
        self._proxies = urllib.request.getproxies()

    @asynccontextmanager
    async def send(
        self,
        upstream: Upstream,
        method: str,
        target: bytes,
        headers: Sequence[Header],
        body: bytes | AsyncIterable[bytes],
    ) -> AsyncIterator[Answer]:
        """Send a request, and give its answer, whose body is read with `aiter_stream`."""
        url = httpcore2.URL(
            scheme=upstream.scheme.encode(), host=upstream.host.encode(), port=upstream.port, target=target
        )
        timeouts = {"timeout": {"connect": _CONNECT_SECONDS}}  # a model may think for as long as its client waits
        sent = [(b"host", upstream.authority.encode()), *headers]
        request = httpcore2.Request(method.encode(), url, headers=sent, content=body, extensions=timeouts)
        try:
            answer = await self._pool(upstream).handle_async_request(request)
        except _FAILURES as error:
            raise UpstreamFailed(type(error).__name__) from error
        try:
            yield answer
        except _FAILURES as error:
            raise UpstreamFailed(type(error).__name__) from error
        finally:
            await answer.aclose()

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    def _pool(self, upstream: Upstream) -> httpcore2.AsyncConnectionPool:
        proxy = self._find_proxy(upstream)
        if proxy not in self._pools:
            self._pools[proxy] = httpcore2.AsyncConnectionPool(
                proxy=None if proxy is None else _open_proxy(proxy),
                max_connections=None,
                keepalive_expiry=_IDLE_SECONDS,
            )
        return self._pools[proxy]

    def _find_proxy(self, upstream: Upstream) -> str | None:
        """The proxy that the environment names for this provider. What stays on this machine needs none."""
        proxy = self._proxies.get(upstream.scheme) or self._proxies.get("all")
        if proxy is None or upstream.is_local or urllib.request.proxy_bypass(upstream.authority):
            return None
        return proxy


def _open_proxy(url: str) -> httpcore2.Proxy:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
    if parts.username is None:
        return httpcore2.Proxy(bare)
    return httpcore2.Proxy(bare, auth=(unquote(parts.username), unquote(parts.password or "")))
