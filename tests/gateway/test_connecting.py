"""The connection to a provider, byte by byte: what a provider may say, and what none should."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import IncompleteRead

import pytest

from hitherto import Store

from ..support.waiting import until
from .running import PATIENCE, Running, gateway

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"


class Bare:
    """A provider that reads a request and answers with these very bytes. `None` closes the connection."""

    def __init__(self) -> None:
        self.answers: list[bytes | Callable[[], object] | None] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.left = threading.Event()  # a connection was closed
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while self._read_request(connection):
                for one in self.answers:
                    if one is None:
                        return
                    if isinstance(one, bytes):
                        connection.sendall(one)
                    else:
                        one()
        self.left.set()

    def _read_request(self, connection: socket.socket) -> bool:
        seen = b""
        while b"\r\n\r\n" not in seen:
            got = connection.recv(65536)
            if not got:
                return False
            seen += got
        self.heads.append(seen)
        return True

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes who accepts, and would keep it open
        self._accepting.join()
        self._listening.close()


@pytest.fixture
def provider() -> Iterator[Bare]:
    bare = Bare()
    yield bare
    bare.close()


@pytest.fixture
def one(store: Store, provider: Bare) -> Iterator[Running]:
    with gateway(store, anthropic=provider.url) as running:
        yield running


def test_an_interim_answer_is_not_the_answer(provider: Bare, one: Running) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    provider.answers = [early, b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"content-length: 2\r\n\r\nhi"]
    got = one.ask("/anthropic/x", method="GET")
    assert (got.status, got.body) == (200, b"hi")
    assert "link" not in dict(got.headers)


def test_an_answer_without_a_length_ends_with_its_connection(provider: Bare, one: Running) -> None:
    provider.answers = [OK + b"\r\nall of ", b"it", None]
    assert one.ask("/anthropic/x", method="GET").body == b"all of it"


def test_answers_without_a_body_leave_the_connection_open(provider: Bare, one: Running) -> None:
    for status in (b"204 No Content", b"304 Not Modified"):
        provider.answers = [b"HTTP/1.1 " + status + b"\r\netag: x\r\n\r\n"]
        assert one.ask("/anthropic/x", method="GET").body == b""
    assert provider.connections == 1


def test_the_answer_to_head_has_a_length_and_no_body(provider: Bare, one: Running) -> None:
    provider.answers = [OK + b"content-length: 5\r\n\r\n"]
    got = one.ask("/anthropic/x", method="HEAD")
    assert dict(got.headers)["content-length"] == "5"
    provider.answers = [OK + b"content-length: 5\r\n\r\nhello"]
    assert one.ask("/anthropic/x", method="GET").body == b"hello"


@pytest.mark.parametrize("extra", [b"more than it said", OK + b"content-length: 4\r\n\r\nevil"])
def test_bytes_after_an_answer_are_not_the_next_answer(provider: Bare, one: Running, extra: bytes) -> None:
    provider.answers = [OK + b"content-length: 2\r\n\r\nhi" + extra]
    assert one.ask("/anthropic/x", method="GET").body == b"hi"
    provider.answers = [OK + b"content-length: 4\r\n\r\ngood"]
    assert one.ask("/anthropic/x", method="GET").body == b"good"
    assert provider.connections == 2


def test_bytes_that_come_unasked_are_not_the_next_answer(provider: Bare, one: Running) -> None:
    asked = threading.Event()
    provider.answers = [
        OK + b"content-length: 2\r\n\r\nhi",
        lambda: asked.wait(PATIENCE),
        OK + b"content-length: 4\r\n\r\nevil",
    ]
    assert one.ask("/anthropic/x", method="GET").body == b"hi"
    asked.set()
    assert provider.left.wait(PATIENCE)
    provider.answers = [OK + b"content-length: 4\r\n\r\ngood"]
    assert one.ask("/anthropic/x", method="GET").body == b"good"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"220 ready to send mail\r\n",
        b"\x16\x03\x01\x02\x00" * 20,
        OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
        OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000,
        None,
    ],
)
def test_a_provider_that_does_not_speak_http_is_an_error(provider: Bare, one: Running, nonsense: bytes | None) -> None:
    provider.answers = [nonsense]
    got = one.ask("/anthropic/x", method="GET")
    assert got.status == 502
    assert "the provider" in got.json["error"]["message"]


def test_a_provider_that_refuses_a_long_body_early_is_heard(provider: Bare, one: Running) -> None:
    hold = threading.Event()
    provider.answers = [
        b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig",
        lambda: hold.wait(PATIENCE),
        None,
    ]
    try:
        got = one.ask("/anthropic/x", b"x" * (32 << 20))
        assert (got.status, got.body) == (413, b"big")
    finally:
        hold.set()


def test_a_connection_is_kept_for_the_next_request_and_no_longer(provider: Bare, one: Running) -> None:
    provider.answers = [OK + b"content-length: 2\r\n\r\nhi"]
    for _ in range(3):
        assert one.ask("/anthropic/x", method="GET").body == b"hi"
    assert provider.connections == 1
    provider.answers = [OK + b"content-length: 2\r\nconnection: close\r\n\r\nhi", None]
    for _ in range(2):
        assert one.ask("/anthropic/x", method="GET").body == b"hi"
    assert provider.connections == 2


@pytest.mark.parametrize(
    "broken",
    [
        OK + b"content-length: 100\r\n\r\nthe beginning",
        OK + b"transfer-encoding: chunked\r\n\r\nd\r\nthe beginning\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nd\r\nthe beginning\r\nno size\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_not_passed_on_as_a_whole_one(provider: Bare, one: Running, broken: bytes) -> None:
    provider.answers = [broken, None]
    with closing(one.connect()) as connection:
        connection.request("GET", "/anthropic/x")
        got = connection.getresponse()
        with pytest.raises(IncompleteRead) as error:
            got.read()
    assert b"the beginning".startswith(error.value.partial)
    provider.answers = [OK + b"content-length: 4\r\n\r\ngood"]
    assert one.ask("/anthropic/x", method="GET").body == b"good"


def test_an_answer_that_nobody_read_leaves_no_connection_behind(provider: Bare, one: Running) -> None:
    """It may be complete, and wait in memory with the connection stopped."""
    large = b"x" * (3 << 20)
    for _ in range(3):
        provider.left.clear()
        provider.answers = [OK + b"content-length: %d\r\n\r\n" % len(large), large]
        with closing(one.connect()) as connection:
            connection.request("GET", "/anthropic/x")
            connection.getresponse().read(1)
        assert provider.left.wait(PATIENCE)
        provider.answers = [OK + b"content-length: 4\r\n\r\ngood"]
        assert one.ask("/anthropic/x", method="GET").body == b"good"


def test_a_provider_that_hangs_waits_as_long_as_its_program_does(provider: Bare, one: Running) -> None:
    gone = threading.Event()
    provider.answers = [lambda: gone.wait(PATIENCE)]
    with closing(one.connect()) as connection:
        connection.request("GET", "/anthropic/x")
        until(lambda: provider.heads)
    gone.set()  # the program has gone away, and the gateway closes its connection to the provider
    assert provider.left.wait(PATIENCE)
    provider.answers = [OK + b"content-length: 4\r\n\r\ngood"]
    assert one.ask("/anthropic/x", method="GET").body == b"good"
    assert provider.connections == 2
