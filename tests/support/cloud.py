"""Object stores on this machine: S3 as moto plays it, Azure as Azurite does, and a server that answers as it is told.

Each runs in a process of its own, listens on loopback on a port that the system chose, and keeps everything in memory.
A process ends when its standard input does, because we say so or because we were killed; so nothing is left behind.
"""

import atexit
import base64
import email.utils
import hashlib
import hmac
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

AZURITE = Path(__file__).resolve().parents[2] / ".tools/azurite/node_modules/azurite/dist/src/blob/main.js"
NO_AZURITE = "Azurite is not installed: `make test` does it where there is npm"

# The account that Azurite has for everybody. Its key stands in Microsoft's documentation.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

PAGE = 20  # things that S3 lists at once
# S3 looks at a condition and writes in one step; moto does so in two, and its threads may come in between.
_MOTO = """
import logging, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer
logging.disable()
answer, one_at_a_time = DomainDispatcherApplication.__call__, threading.Lock()
def alone(self, environ, start_response):
    with one_at_a_time:
        return answer(self, environ, start_response)
DomainDispatcherApplication.__call__ = alone
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("listens on", "http://127.0.0.1:%d" % server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""
_KEEPER = '"$@" & server=$!; read -r _; kill $server; wait $server'


class Server:
    """A process that says where it listens, and what a client has to know in its environment."""

    def __init__(self, command: list[str], *, keeper: bool, told: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hitherto-cloud-"))
        kept = ["/bin/sh", "-c", _KEEPER, "sh", *command] if keeper else command
        self._process = subprocess.Popen(
            kept,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env=os.environ | (told or {}),
        )
        assert self._process.stdout is not None
        self.address = _where_it_listens(self._process.stdout)
        self._made = 0
        if not self.address:
            self.stop()
            raise AssertionError("the server did not start")

    def new_name(self) -> str:
        self._made += 1
        return f"bucket-{self._made}"

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _where_it_listens(said: IO[bytes]) -> str:
    for line in said:
        found = re.search(rb"listens on (http://127\.0\.0\.1:\d+)", line)
        if found:
            return found[1].decode()
    return ""


class Moto(Server):
    """S3."""

    def __init__(self) -> None:
        super().__init__([sys.executable, "-c", _MOTO], keeper=False, told={"MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)})
        self.environment = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "AKIA-known-to-nobody",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-amazon",
            "AWS_REGION": "us-east-1",
        }

    def make(self) -> str:
        """A new bucket; its address."""
        name = self.new_name()
        with urllib.request.urlopen(urllib.request.Request(f"{self.address}/{name}", method="PUT"), timeout=20):
            return f"s3://{name}"


class Azurite(Server):
    """Azure's blobs."""

    def __init__(self) -> None:
        options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"]
        options += ["--disableTelemetry", "--skipApiVersionCheck"]
        super().__init__(["node", str(AZURITE), *options], keeper=True)
        self.environment = {
            "AZURE_STORAGE_ENDPOINT": f"{self.address}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        }

    def make(self) -> str:
        """A new container; its address."""
        name = self.new_name()
        sent = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = [
            *(f"{key}:{value}" for key, value in sent.items()),
            f"/{ACCOUNT}/{ACCOUNT}/{name}",
            "restype:container",
        ]
        signed = ("PUT" + "\n" * 12 + "\n".join(lines)).encode()
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed, hashlib.sha256).digest()
        sent["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.address}/{ACCOUNT}/{name}?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=sent), timeout=20):
            return f"az://{name}"


@cache
def started_moto() -> Moto:
    """One for all tests of this process, stopped at its end."""
    server = Moto()
    atexit.register(server.stop)
    return server


@cache
def started_azurite() -> Azurite | None:
    """The same; None where it is not installed."""
    if not AZURITE.exists() or shutil.which("node") is None:
        return None
    server = Azurite()
    atexit.register(server.stop)
    return server


# -- a server that answers as it is told

Answer = Callable[[bytes, socket.socket], bytes | None]  # of a request and the way back; None: say nothing at all


class Scripted:
    """Answers every request by asking a function, and notes what it was sent."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ended = threading.Event()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        threads = []
        while not self._ended.is_set():
            connection, _ = self._socket.accept()
            self._open.append(connection)
            threads.append(threading.Thread(target=self._one, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            request = _request(connection)
            if self._ended.is_set() or not request:
                return
            self.requests.append(request)
            said = self.answer(request, connection)
            if said is None:
                self._ended.wait(60)
                return
            with suppress(OSError):  # the client may have heard enough
                connection.sendall(said)

    def stop(self) -> None:
        self._ended.set()
        socket.create_connection(self._socket.getsockname()).close()  # wakes it up
        self._thread.join(20)
        self._socket.close()


def _request(connection: socket.socket) -> bytes:
    """One request, with as much of a body as it announces."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return b""
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        announced = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
        missing = (int(announced[1]) if announced else 0) - len(body)
        while missing > 0:
            more = connection.recv(65536)
            if not more:
                break
            data, missing = data + more, missing - len(more)
    except OSError:
        return b""
    return data


@contextmanager
def scripted(answer: Answer) -> Iterator[Scripted]:
    server = Scripted(answer)
    try:
        yield server
    finally:
        server.stop()


def said(status: str, body: bytes = b"", *, headers: str = "", length: int | None = None) -> bytes:
    """An answer in HTTP, whose announced length may be a lie."""
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body) if length is None else length}\r\n"
    return (head + headers + "\r\n").encode() + body
