"""A fake PostgreSQL server for problems that a real one cannot produce here: it is too old, encrypts or does not, or is
starting. Accepted connections are forwarded to a real server."""

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_TLS, _GSS = 80877103, 80877104  # what asks for it


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def fatal(code: str, text: str) -> bytes:
    """A server that lets nobody in, and says why."""
    fields = (("S", "FATAL"), ("V", "FATAL"), ("C", code), ("M", text))
    return _message(b"E", b"".join(f"{name}{value}\0".encode() for name, value in fields) + b"\0")


def greeting(version: str) -> bytes:
    """A server that lets everybody in, and says which version it is."""
    said = {"server_version": version, "server_encoding": "UTF8", "client_encoding": "UTF8"}
    words = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in said.items())
    return _message(b"R", struct.pack(">i", 0)) + words + _message(b"K", bytes(8)) + _message(b"Z", b"I")


class Doorman:
    """Says one of the answers to each who comes, and leads all others to the server. `heard` is what they said after
    an answer."""

    def __init__(
        self,
        answers: Sequence[bytes] = (),
        server: Path | None = None,
        folder: Path | None = None,
        certificate: Path | None = None,
    ) -> None:
        """It stands in a folder, or at a port of this machine; with a certificate, it encrypts. Without a server, the
        first answer is for everybody."""
        self._answers, self._server = list(answers), server
        self._context = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.came, self.heard = 0, b""
        self._inside: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_INET if folder is None else socket.AF_UNIX)
        self._listener.bind(("127.0.0.1", 0) if folder is None else str(folder / ".s.PGSQL.5432"))
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1] if folder is None else 5432
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def cut(self) -> int:
        """Silence all forwarded connections, and return their number."""
        inside, self._inside = self._inside, []
        for one in inside:
            with contextlib.suppress(OSError):  # it has left by itself
                socket.socket.shutdown(one, socket.SHUT_RDWR)
        return len(inside)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.ExitStack() as ends:
            try:
                client, begun = self._startup(client, ends)
                self.came += 1
                self._inside.append(client)
                if self._answers and (answer := self._answers.pop(0) if self._server else self._answers[0]):
                    client.sendall(answer)
                    self.heard += client.recv(1 << 16)
                elif self._server is not None:
                    _lead(client, self._server, begun)
            except OSError:  # one of both has gone
                return

    def _startup(self, client: socket.socket, ends: contextlib.ExitStack) -> tuple[socket.socket, bytes]:
        """Return the first message of a client after the negotiation. `ends` closes the sockets that it used."""
        while True:
            ends.enter_context(client)
            head = _exactly(client, 8)
            length, code = struct.unpack(">ii", head)
            if code == _TLS and self._context is not None:
                client.sendall(b"S")
                client = self._context.wrap_socket(client, server_side=True)
            elif code in (_TLS, _GSS):
                client.sendall(b"N")
            else:
                return client, head + _exactly(client, length - 8)


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := client.recv(count - len(data))):
            raise ConnectionResetError
        data += more
    return data


def _lead(client: socket.socket, server: Path, begun: bytes) -> None:
    """Until one of both has gone; the other hears nothing of it but that."""
    with client, socket.socket(socket.AF_UNIX) as other:
        other.connect(str(server / ".s.PGSQL.5432"))
        other.sendall(begun)
        while True:
            waiting = isinstance(client, ssl.SSLSocket) and client.pending()
            for one in [client] if waiting else select.select([client, other], [], [])[0]:
                if not (data := one.recv(1 << 16)):
                    return
                (other if one is client else client).sendall(data)
