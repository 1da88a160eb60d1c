"""A proxy before a PostgreSQL server that cuts the line where it hurts: at a write.

It reads the messages of a client one by one. The message that decides about a write (a COMMIT, or a statement that
writes by itself) is forwarded, or the line is cut: `before` the server gets it, `after` the server has answered and
before the client gets the answer, or `meanwhile`, while the server works on it.
"""

import re
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

_WRITES = re.compile(rb"UPDATE|INSERT")
_GOES_ON = b"PBDEC"  # types of messages after which a client has not said all yet
_NAME = ".s.PGSQL.5432"


class Line:
    """Yield the bytes of a client, in pieces that the server answers as one."""

    def __init__(self) -> None:
        self._data, self._begun, self._piece = b"", False, b""
        self._decides, self._inside = False, False  # a transaction that was begun
        self._statements: dict[bytes, bytes] = {}  # what was prepared, by name

    def hear(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Whole pieces, and whether each decides about a write."""
        self._data += data
        while True:
            at = 1 if self._begun else 0  # the first message has no type
            if len(self._data) < at + 4:
                return
            end = at + int.from_bytes(self._data[at : at + 4])
            if len(self._data) < end:
                return
            message, self._data = self._data[:end], self._data[end:]
            self._look(message[:at], message[at + 4 :])
            self._piece, self._begun = self._piece + message, True
            if message[:at] not in _GOES_ON or not at:
                piece, self._piece = self._piece, b""
                decides, self._decides = self._decides, False
                yield piece, decides

    def _look(self, kind: bytes, body: bytes) -> None:
        if kind == b"Q":
            self._run(body)
        elif kind == b"P":
            name, text = body.split(b"\0")[:2]
            self._statements[name] = text
        elif kind == b"B":
            self._run(self._statements.get(body.split(b"\0")[1], b""))

    def _run(self, text: bytes) -> None:
        """Inside a transaction only its end decides, otherwise each statement for itself."""
        if text.startswith(b"COMMIT") or (not self._inside and _WRITES.search(text)):
            self._decides = True
        if text.startswith((b"BEGIN", b"COMMIT", b"ROLLBACK")):
            self._inside = text.startswith(b"BEGIN")


class Cutter:
    """Stands before a server, in a folder of its own, and cuts where the plan says so: one word for each write."""

    def __init__(self, folder: Path, server: Path, plan: Iterable[str]) -> None:
        self.folder, self._server, self._plan = folder, server / _NAME, iter(plan)
        self.cuts: list[str] = []
        self._lock, self._open = threading.Lock(), True
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _NAME))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._listener.shutdown(socket.SHUT_RDWR)  # which wakes who waits for the next
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(str(self._server))
                self._talk(client, server)
            except OSError:  # one side has gone: so do we
                return

    def _talk(self, client: socket.socket, server: socket.socket) -> None:
        line = Line()
        while True:
            ready = select.select([client, server], [], [])[0]
            if server in ready:
                if not (data := server.recv(1 << 16)):
                    return
                client.sendall(data)
            if client in ready:
                if not (data := client.recv(1 << 16)):
                    return
                for piece, decides in line.hear(data):
                    if self._pass(piece, decides, server):
                        return

    def _pass(self, piece: bytes, decides: bool, server: socket.socket) -> bool:
        """Pass it on to the server, unless the line is to be cut first. Is it cut?"""
        with self._lock:
            how = next(self._plan, "") if decides else ""
            self.cuts += [how] if how else []
        if how != "before":
            server.sendall(piece)
        if how == "after":
            _hear_out(server)
        return bool(how)


def _hear_out(server: socket.socket) -> None:
    """Until it is ready for what comes next."""
    data = b""
    while True:
        while len(data) >= 5 and len(data) >= (end := 1 + int.from_bytes(data[1:5])):
            if data[:1] == b"Z":
                return
            data = data[end:]
        if not (more := server.recv(1 << 16)):
            return
        data += more
