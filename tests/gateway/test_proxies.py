"""Providers behind TLS, and behind the proxy that the environment names. Requirement: G1."""

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hitherto.gateway import sending
from hitherto.gateway.connecting import UpstreamFailed
from hitherto.gateway.sending import Sender
from hitherto.gateway.upstreams import Upstream

from ..support.certificates import certify
from .running import PATIENCE

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Proxy:
    """A proxy for tunnels. It writes down what it is asked for, and all that passes."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self.heads: list[bytes] = []
        self.passed = b""
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.target = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += client.recv(1)
            self.heads.append(head)
            client.sendall(self._answer)
            if b" 200 " not in self._answer:
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                back.start()
                self._pass_on(client, server)
                back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.passed += data
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A provider behind TLS on a port, whose certificate is for `provider.test`, and trusted."""
    certificate = certify(tmp_path, host="provider.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("no_proxy", "")
    sending._tls.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                with suppress(OSError), context.wrap_socket(client, server_side=True) as secured:
                    while secured.recv(65536):
                        secured.sendall(ANSWER)

    threading.Thread(target=serve, daemon=True).start()
    with closing(listening):
        yield listening.getsockname()[1]
    sending._tls.cache_clear()


def ask(host: str, port: int, times: int = 1) -> list[bytes]:
    async def send() -> list[bytes]:
        sender, found = Sender(), []
        upstream = Upstream("x", "https", host, port, "", is_local=False)
        async with asyncio.timeout(PATIENCE):
            for _ in range(times):
                async with sender.send(upstream, "GET", b"/v1/x", [(b"x-api-key", b"sk-secret")], b"") as answer:
                    found.append(b"".join([piece async for piece in answer.pieces()]))
            await sender.close()
        return found

    return asyncio.run(send())


@pytest.mark.parametrize("user", ["", "ada:s%40crets@"])
def test_a_proxy_sees_the_name_of_the_provider_and_nothing_else(
    provider: int, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    with closing(Proxy()) as proxy:
        proxy.target = provider
        monkeypatch.setenv("https_proxy", f"http://{user}127.0.0.1:{proxy.port}")
        assert ask("provider.test", 443, times=2) == [b"hi", b"hi"]
        (head,) = proxy.heads  # the connection is kept
        assert head.startswith(b"CONNECT provider.test:443 HTTP/1.1\r\nhost: provider.test:443\r\n")
        credentials = base64.b64encode(b"ada:s@crets")
        assert (b"proxy-authorization: Basic " + credentials in head) == bool(user)
        assert proxy.passed
        assert b"sk-secret" not in proxy.passed


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"), (b"nonsense\r\n\r\n", "proxy"), (b"", "proxy")],
)
def test_a_proxy_that_refuses_is_named(
    provider: int, monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str
) -> None:
    with closing(Proxy(answer)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(UpstreamFailed, match=said):
            ask("provider.test", 443)


def test_a_proxy_that_does_not_speak_http_is_named(provider: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(UpstreamFailed, match="none of HTTP"):
        ask("provider.test", 443)


def test_a_certificate_for_another_name_or_that_is_not_trusted_gets_no_request(
    provider: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The control is the test of the proxy: the same certificate is trusted there."""
    with pytest.raises(UpstreamFailed, match="SSLCertVerificationError"):
        ask("127.0.0.1", provider)
    monkeypatch.setenv("SSL_CERT_FILE", str(certify(tmp_path, "other", "provider.test")))
    sending._tls.cache_clear()
    with closing(Proxy()) as proxy:
        proxy.target = provider
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(UpstreamFailed, match="SSLCertVerificationError"):
            ask("provider.test", 443)
