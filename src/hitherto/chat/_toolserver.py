"""Serves our tools to another program over the Model Context Protocol.

The other program runs the conversation and calls tools over HTTP; the handlers are Python functions in this process.
The server listens on the loopback address only, on a port that the system chooses. It answers only requests with its
token, which is generated for each server.

**Connections are bounded.** Any user of the machine can connect to a loopback port. A connection is a stranger until it
has sent a request with the token. There are at most `MAX_STRANGERS` strangers, and a new one closes the oldest. So
silent connections hold no more than that many threads, and a program that sends the token at once is always served.
Reading has a timeout, and a request's head and body have a largest size.

A call is not run in the server's thread. It is put into an inbox, and the thread that called `chat` runs it while it
waits for the answer, as with every other client.
"""

import contextlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase

from ._config import Tool

_LARGEST = 64 * 1024 * 1024  # bytes of one request's body
_LARGEST_HEAD = 64 * 1024  # bytes of its first line and its headers
_SILENCE_SECONDS = 10.0  # read timeout of a stranger
_IDLE_SECONDS = 600.0  # read timeout of a connection that has sent the token
MAX_STRANGERS = 32  # connections that have not sent the token
MAX_CONNECTIONS = 128  # strangers and trusted connections together
LARGEST_RESULT = 500_000  # characters; the claude program writes a longer result into a file, unseen by the model
_PROTOCOL = "2025-06-18"


class ToolCall:
    """A call of a tool, whose result the server's thread waits for."""

    def __init__(self, id: str, name: str, arguments: object) -> None:
        self.id = id
        self.name = name
        self.arguments = arguments
        self._done = threading.Event()
        self._result: dict[str, object] = {}

    def answer(self, content: Sequence[dict[str, object]], *, error: bool = False) -> None:
        """Set the result. Later calls are ignored."""
        if not self._done.is_set():
            self._result = {"content": list(content), "isError": error}
            self._done.set()

    def result(self) -> dict[str, object]:
        self._done.wait()
        return self._result


class ToolServer:
    """Serves tools until it is closed. Passes each call to `put`."""

    def __init__(self, tools: Mapping[str, Tool], put: Callable[[ToolCall], None]) -> None:
        self._tools = tools
        self._put = put
        self._token = secrets.token_urlsafe(32)
        self._waiting: set[ToolCall] = set()
        self._http = _Http(("127.0.0.1", 0), _Requests)
        self._http.tools = self
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="hitherto-tools", daemon=True
        )
        self._thread.start()

    @property
    def config(self) -> dict[str, object]:
        """The configuration for the other program. It holds the token, so it must go into a private file."""
        url = f"http://127.0.0.1:{self._http.server_port}/mcp"
        return {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {self._token}"}}

    def close(self) -> None:
        """Stop the server. Pending calls get an error result."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._http.connections.stop_reading()
        for call in list(self._waiting):
            call.answer([{"type": "text", "text": "The tool call failed: the conversation has ended"}], error=True)

    def knows(self, authorization: str) -> bool:
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())

    def respond(self, request: object) -> dict[str, object] | None:
        """Answer a request of the protocol. Returns None for a notification."""
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "not a request"}}
        if "id" not in request:
            return None
        params = request.get("params")
        outcome = self._outcome(request["method"], params if isinstance(params, dict) else {})
        return {"jsonrpc": "2.0", "id": request["id"], **outcome}

    def _outcome(self, method: str, params: dict[str, object]) -> dict[str, object]:
        if method == "initialize":
            wanted = params.get("protocolVersion")
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "hitherto", "version": "1"}}
            return {"result": {"protocolVersion": wanted if isinstance(wanted, str) else _PROTOCOL, **about}}
        if method == "tools/list":
            return {"result": {"tools": [_describe_tool(tool) for tool in list(self._tools.values())]}}
        if method == "tools/call":
            return {"result": self._run_call(params)}
        if method == "ping":
            return {"result": {}}
        return {"error": {"code": -32601, "message": "no such method"}}

    def _run_call(self, params: dict[str, object]) -> dict[str, object]:
        meta = params.get("_meta")
        id = meta.get("claudecode/toolUseId") if isinstance(meta, dict) else None
        call = ToolCall(str(id or ""), str(params.get("name", "")), params.get("arguments", {}))
        self._waiting.add(call)
        try:
            self._put(call)
            return call.result()
        finally:
            self._waiting.discard(call)


def _describe_tool(tool: Tool) -> dict[str, object]:
    size = {"anthropic/maxResultSizeChars": LARGEST_RESULT}
    return {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.parameters), "_meta": size}


class _Connections:
    """The open connections, and which of them have sent the token. Enforces the limits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._trusted: set[socket.socket] = set()

    def add(self, connection: socket.socket) -> bool:
        """Add a connection, and close the oldest stranger if the limit is reached. Returns False if all are trusted."""
        with self._lock:
            full = len(self._strangers) >= MAX_STRANGERS
            full = full or len(self._strangers) + len(self._trusted) >= MAX_CONNECTIONS
            if full and not self._strangers:
                return False
            if full:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _shut(oldest, socket.SHUT_RDWR)  # its thread reads the end of the stream, and closes it
            self._strangers[connection] = None
            return True

    def trust(self, connection: socket.socket) -> None:
        """Mark a connection that has sent the token. A new connection cannot close it any more."""
        with self._lock:
            if connection in self._strangers:
                del self._strangers[connection]
                self._trusted.add(connection)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(connection, None)
            self._trusted.discard(connection)

    def stop_reading(self) -> None:
        """Shut the input of all connections down, so that threads that wait for a request end. Answers can still be
        sent."""
        with self._lock:
            for connection in (*self._strangers, *self._trusted):
                _shut(connection, socket.SHUT_RD)


def _shut(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(how)


class _Head:
    """A connection's input with a size limit for a request's head. Reading a longer head returns the end of the
    input."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self.left = _LARGEST_HEAD

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(min(size, self.left) if size >= 0 else self.left)
        self.left -= len(line)
        return line

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS
    tools: ToolServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.connections = _Connections()
        super().__init__(address, handler)

    def verify_request(self, request: object, client_address: object) -> bool:  # noqa: ARG002  # as it is called
        assert isinstance(request, socket.socket)
        return self.connections.add(request)

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        self.connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a connection: the other program has gone, which the reader of its output notices."""


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_SECONDS
    server: _Http

    def setup(self) -> None:
        super().setup()
        self._input = self.rfile
        self._head = _Head(self._input)

    def handle_one_request(self) -> None:
        self._head = _Head(self._input)
        self.rfile = self._head  # type: ignore[assignment]  # of which the base class reads lines
        super().handle_one_request()

    def do_POST(self) -> None:
        if not self.server.tools.knows(self.headers.get("Authorization", "")):
            return self._send(401)
        if self._head.left <= 0:
            return self._send(431)
        self.server.connections.trust(self.connection)
        self.connection.settimeout(_IDLE_SECONDS)
        with contextlib.suppress(ValueError, RecursionError):  # no JSON, or brackets without end
            size = int(self.headers.get("Content-Length", ""))
            if self.path == "/mcp" and 0 <= size <= _LARGEST:
                answer = self.server.tools.respond(json.loads(self.rfile.read(size)))
                return self._send(202) if answer is None else self._send(200, json.dumps(answer).encode())
        return self._send(400)

    def do_GET(self) -> None:
        """Refuse: the server sends no events of its own."""
        self._send(405)

    def do_DELETE(self) -> None:
        """Refuse: there are no sessions."""
        self._send(405)

    def _send(self, status: int, body: bytes = b"") -> None:
        if status in (400, 401, 431):
            self.close_connection = True  # its body may not have been read
        self.send_response(status)
        if body:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a library must not write to standard error."""
