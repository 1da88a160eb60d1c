"""A provider that answers with the bytes that it is given, and the chats of every dialect."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hitherto import Store

from ..support.provider import (
    Json,
    anthropic_answer,
    anthropic_events,
    chat_answer,
    chat_events,
    gemini_answer,
    gemini_events,
    responses_answer,
    responses_events,
    responses_text,
)
from .running import Running, gateway

SECRET = "sk-ant-very-secret-0123456789"


class Raw:
    """What reached the provider: every byte above the connection."""

    def __init__(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.method, self.path, self.body = method, path, body
        self.headers = headers

    def named(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class Scripted:
    """A provider that answers with the bytes that it is given."""

    def __init__(self) -> None:
        self.seen: list[Raw] = []
        self.status = 200
        self.headers: dict[str, str] = {"content-type": "application/json"}
        self.pieces: list[bytes | Callable[[], object]] = [b"{}"]
        self.has_length = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do(self) -> None:
                outer.seen.append(Raw(self.command, self.path, list(self.headers.items()), self._body()))
                self.send_response_only(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                whole = [piece for piece in outer.pieces if isinstance(piece, bytes)]
                chunked = not outer.has_length
                self.send_header(*(("transfer-encoding", "chunked") if chunked
                                   else ("content-length", str(sum(map(len, whole))))))  # fmt: skip
                self.end_headers()
                if self.command == "HEAD":
                    return
                for piece in outer.pieces:
                    if not isinstance(piece, bytes):
                        piece()
                        continue
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                    self.wfile.flush()
                if chunked:
                    self.wfile.write(b"0\r\n\r\n")

            def _body(self) -> bytes:
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                found = b""
                while size := int(self.rfile.readline(), 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do  # noqa: N815  # names of the base class

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stream(self, *pieces: bytes | Callable[[], object]) -> None:
        self.headers, self.pieces, self.has_length = {"content-type": "text/event-stream"}, list(pieces), False

    def say(self, body: Json) -> None:
        self.headers, self.has_length = {"content-type": "application/json"}, True
        self.pieces = [json.dumps(body).encode()]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def as_events(events: list[Json]) -> list[bytes]:
    """The bytes of a stream, in pieces that end anywhere."""
    text = "".join(
        (f"event: {one['type']}\n" if isinstance(one, dict) and "type" in one else "")
        + f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n"
        for one in events
    ).encode()
    return [text[at : at + 97] for at in range(0, len(text), 97)]


def thread(store: Store) -> list[tuple[str, str]]:
    talk = store.latest()
    assert talk is not None
    return [(message.role, message.text) for message in talk.thread()]


HI: Json = [{"role": "user", "content": "hi"}]
CHATS: dict[str, tuple[str, Json, Json, list[Json]]] = {
    "anthropic": (
        "/anthropic/v1/messages",
        {"model": "m", "max_tokens": 5, "messages": HI, "unknown": {"x": [1, 2]}},
        anthropic_answer("hello there"),
        anthropic_events("hello there"),
    ),
    "openai-chat": (
        "/openai/v1/chat/completions",
        {"model": "m", "messages": HI},
        chat_answer("hello there"),
        chat_events("hello there"),
    ),
    "openai-responses": (
        "/openai/v1/responses",
        {"model": "m", "input": "hi"},
        responses_answer([responses_text("hello there")]),
        responses_events("hello there"),
    ),
    "gemini": (
        "/gemini/v1beta/models/m:generateContent?key=" + SECRET,
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        gemini_answer("hello there"),
        gemini_events("hello there"),
    ),
}


@contextmanager
def running(store: Store, upstream: Scripted, **how: Any) -> Iterator[Running]:
    with gateway(store, anthropic=upstream.url, openai=upstream.url, gemini=upstream.url, **how) as one:
        yield one
