"""A gateway on a port, in a thread of the test, and plain requests to it."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from hitherto import Store
from hitherto._system import local_server
from hitherto.gateway.app import Gateway
from hitherto.gateway.keeping import Keeper
from hitherto.gateway.passing import Passing
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


@contextmanager
def gateway(store: Store, *, token: str | None = None, must_keep: bool = False, **upstreams: str) -> Iterator[Running]:
    """Run a gateway over a store until the end of the block; then everything is written."""
    listening = local_server.listen(0)
    said: list[str] = []
    keeper = Keeper(store, report=said.append)
    found = parse_upstreams(f"{name}={url}" for name, url in upstreams.items())
    config = configure(Gateway(found, Passing(keeper, must_keep=must_keep), token=token))
    running = Running(listening.port, keeper)
    running.said = said
    with listening.socket:
        try:
            with local_server.serve_in_thread(config, listening):
                yield running
        finally:
            keeper.close()
