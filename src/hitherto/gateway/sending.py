"""Send a request to a provider, and read its answer as it comes.

Nothing is added to a request and nothing is followed: no redirect, no cookie, no retry. The target is the very bytes of
the path that was asked for. Connections are kept for the next request, and go through the proxy that the environment
names.
"""

import asyncio
import base64
import ssl
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import cast
from urllib.parse import SplitResult, unquote, urlsplit

from .connecting import Answer, Connection, Header, UpstreamFailed
from .upstreams import Upstream

__all__ = ["Sender", "forwardable"]

_CONNECT_SECONDS = 30.0
_IDLE_SECONDS = 30.0  # a connection that is idle for longer is closed
_ATTEMPT_SECONDS = 0.25  # after which another address of the same name is tried beside
# Headers of one connection, which a proxy does not pass on. The length, or that it comes in chunks, is passed on: it is
# how the next connection knows where the body ends.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"upgrade")
)  # fmt: skip


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
        self._idle: dict[Upstream, list[tuple[Connection, asyncio.TimerHandle]]] = {}
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
        """Send a request, and give its answer. Raises `UpstreamFailed`, also while the answer is read."""
        connection = self._take(upstream) or await self._connect(upstream)
        lines = [method.encode() + b" " + target + b" HTTP/1.1", b"host: " + upstream.authority.encode()]
        lines += [name + b": " + value for name, value in headers]
        head = b"\r\n".join((*lines, b"", b""))
        is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
        try:
            yield await connection.ask(method, head, body, is_chunked=is_chunked)
        finally:
            if connection.finish():
                self._put_back(upstream, connection)

    async def close(self) -> None:
        for connections in self._idle.values():
            for connection, timer in connections:
                timer.cancel()
                connection.close()
        self._idle.clear()

    def _take(self, upstream: Upstream) -> Connection | None:
        """A connection that is open and idle, the last one that was used."""
        idle = self._idle.get(upstream, [])
        while idle:
            connection, timer = idle.pop()
            timer.cancel()
            if connection.is_open:
                return connection
        return None

    def _put_back(self, upstream: Upstream, connection: Connection) -> None:
        timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, connection.close)
        self._idle.setdefault(upstream, []).append((connection, timer))

    async def _connect(self, upstream: Upstream) -> Connection:
        proxy = self._find_proxy(upstream)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await (_connect(upstream) if proxy is None else _connect_through(proxy, upstream))
        except (OSError, ssl.SSLError, TimeoutError) as error:
            raise UpstreamFailed(type(error).__name__) from error

    def _find_proxy(self, upstream: Upstream) -> str | None:
        """The proxy that the environment names for this provider. A server on this machine needs none."""
        proxy = self._proxies.get(upstream.scheme) or self._proxies.get("all")
        if proxy is None or upstream.is_local or urllib.request.proxy_bypass(upstream.authority):
            return None
        return proxy


async def _connect(upstream: Upstream) -> Connection:
    is_secure = upstream.scheme == "https"
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, upstream.host, upstream.port, happy_eyeballs_delay=_ATTEMPT_SECONDS,
        ssl=_tls() if is_secure else None, server_hostname=upstream.host if is_secure else None,
    )  # fmt: skip
    return connection


async def _connect_through(proxy: str, upstream: Upstream) -> Connection:
    """Connect through a proxy, which sees the name of the provider and nothing else. Only a provider with TLS is ever
    behind one: any other is on this machine."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UpstreamFailed("the proxy that the environment names is none of HTTP")
    loop = asyncio.get_running_loop()
    plain, tunnel = await loop.create_connection(
        lambda: _Tunnel(loop.create_future()), parts.hostname, parts.port or (443 if parts.scheme == "https" else 80),
        ssl=_tls() if parts.scheme == "https" else None,
    )  # fmt: skip
    try:
        plain.write(_open_tunnel(parts, f"{upstream.host}:{upstream.port}"))
        await tunnel.opened
        connection = Connection()
        secured = await loop.start_tls(
            cast("asyncio.WriteTransport", plain), connection, _tls(), server_hostname=upstream.host
        )
    except BaseException:
        plain.abort()
        raise
    if secured is None:
        raise UpstreamFailed("it closed the connection")
    connection.connection_made(secured)
    return connection


def _open_tunnel(proxy: SplitResult, place: str) -> bytes:
    words = f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n"
    if proxy.username is not None:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        words += f"proxy-authorization: Basic {base64.b64encode(credentials).decode()}\r\n"
    return f"{words}\r\n".encode()


class _Tunnel(asyncio.Protocol):
    """The answer of a proxy to the request for a tunnel."""

    def __init__(self, opened: "asyncio.Future[None]") -> None:
        self.opened = opened
        self._seen = b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, end, _ = self._seen.partition(b"\r\n\r\n")
        if not end and len(head) < 1 << 16:
            return
        status = head.split(b" ", 2)[1:2]
        if status and status[0][:1] == b"2":
            self._settle(None)
        else:
            self._settle(f"the proxy answered with the status {b''.join(status).decode('latin-1')!r:.10}")

    def connection_lost(self, _exc: Exception | None) -> None:
        self._settle("the proxy closed the connection")

    def _settle(self, failure: str | None) -> None:
        if self.opened.done():
            return
        if failure is None:
            self.opened.set_result(None)
        else:
            self.opened.set_exception(UpstreamFailed(failure))


@cache
def _tls() -> ssl.SSLContext:
    """The authorities that this machine trusts: OpenSSL's files, or the system's own store where there are none."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        context = ssl.create_default_context()
    else:
        import truststore  # noqa: PLC0415  # where it is needed

        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    return context
