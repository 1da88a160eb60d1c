"""A connection that is listened to: every byte passes both ways, and is read as HTTP afterwards."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

_SECONDS = 30
_OF_ONE_CONNECTION = ("connection", "keep-alive", "transfer-encoding")


class Message(NamedTuple):
    """A request or an answer. An answer has no target."""

    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def without(self, prefix: str = "") -> "Message":
        """This message without what belongs to one connection, and without the beginning of its path."""
        dropped = (*_OF_ONE_CONNECTION, "host")
        headers = tuple(sorted((name, value) for name, value in self.headers if name not in dropped))
        return Message(self.target.removeprefix(prefix), headers, self.body)


class Tee:
    """A server that passes everything on to another one."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._heard: list[tuple[bytearray, bytearray]] = []  # of each connection: what was asked and answered
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                heard = (bytearray(), bytearray())
                self._heard.append(heard)
                thread = threading.Thread(target=_pass_both_ways, args=(client, server, heard), daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        self._listening.close()
        for thread in self._threads:
            thread.join(_SECONDS)

    @property
    def requests(self) -> list[Message]:
        return [one for asked, _ in self._heard for one in _parse(httptools.HttpRequestParser, asked)]

    @property
    def answers(self) -> list[Message]:
        return [one for _, answered in self._heard for one in _parse(httptools.HttpResponseParser, answered)]


def _pass_both_ways(client: socket.socket, server: socket.socket, heard: tuple[bytearray, bytearray]) -> None:
    with client, server:
        back = threading.Thread(target=_pass_on, args=(server, client, heard[1]))
        back.start()
        _pass_on(client, server, heard[0])
        back.join()


def _pass_on(source: socket.socket, target: socket.socket, heard: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            heard += data
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class _Reader:
    """The callbacks of a parser."""

    def __init__(self) -> None:
        self.found: list[Message] = []

    def on_message_begin(self) -> None:
        self._target, self._body = b"", b""
        self._headers: list[tuple[str, str]] = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.found.append(Message(self._target.decode("latin-1"), tuple(self._headers), self._body))


def _parse(parser: Any, data: bytearray) -> list[Message]:
    reader = _Reader()
    parser(reader).feed_data(bytes(data))
    return reader.found


@contextmanager
def tee(url: str) -> Iterator[Tee]:
    one = Tee(url)
    try:
        yield one
    finally:
        one.close()
