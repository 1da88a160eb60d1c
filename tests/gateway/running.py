"""A gateway on a port, in a thread of the test, and plain requests to it."""

import asyncio
import atexit
import http.client
import json
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from hitherto import Store
from hitherto._system import local_server
from hitherto.errors import Closed
from hitherto.gateway.app import Gateway
from hitherto.gateway.keeping import Keeper
from hitherto.gateway.passing import Passing, Receive, Scope, Send
from hitherto.gateway.server import configure
from hitherto.gateway.upstreams import parse_upstreams

PATIENCE = 60.0


class Answer:
    """A whole answer."""

    def __init__(self, got: http.client.HTTPResponse) -> None:
        self.status = got.status
        self.headers = [(name.lower(), value) for name, value in got.getheaders()]
        self.body = got.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A running gateway."""

    def __init__(self, port: int, keeper: Keeper) -> None:
        self.port, self.keeper = port, keeper
        self.address = f"http://127.0.0.1:{port}"
        self.said: list[str] = []

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> Answer:
        return ask(self.address + path, body, headers, method)


def ask(address: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "POST") -> Answer:
    parts = urlsplit(address)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    with closing(http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)) as connection:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, data, {"content-type": "application/json", **(headers or {})})
        return Answer(connection.getresponse())


class _Server:
    """One server for all tests of this process, in front of the gateway of the test that runs: starting and stopping a
    server takes longer than most tests."""

    def __init__(self) -> None:
        self.app: Gateway | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.listening = local_server.listen(0)
        self._serving = local_server.serve_in_thread(configure(self), self.listening)
        self._serving.__enter__()
        atexit.register(self._serving.__exit__, None, None, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.loop = asyncio.get_running_loop()
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif self.app is not None:
            await self.app(scope, receive, send)

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the server's loop."""
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)


_server = cache(_Server)


@contextmanager
def gateway(store: Store, *, token: str | None = None, must_keep: bool = False, **upstreams: str) -> Iterator[Running]:
    """Run a gateway over a store until the end of the block; then everything is written."""
    said: list[str] = []
    keeper = Keeper(store, report=said.append)
    passing = Passing(keeper, must_keep=must_keep)
    found = parse_upstreams(f"{name}={url}" for name, url in upstreams.items())
    server = _server()
    server.app = Gateway(found, passing, token=token)
    running = Running(server.listening.port, keeper)
    running.said = said
    try:
        yield running
    finally:
        server.call(passing.close())
        with suppress(Closed):
            keeper.close()
