"""Our tools, offered to another program over the Model Context Protocol.

The other program runs the conversation and calls tools over HTTP; the handlers are Python functions in this process.
The server listens on the loopback address only, on a port that the system chooses, and answers nobody who does not
know its token, which is made anew for each server.

A call is not run in the server's thread. It is put into an inbox, and whoever waits for the answer of the conversation
runs it there: handlers run in the thread that called `chat`, as with every other client.
"""

import contextlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ._config import Tool

_LARGEST = 64 * 1024 * 1024  # bytes of one request
LARGEST_RESULT = 500_000  # characters; what is more, the claude program puts into a file and not before the model
_PROTOCOL = "2025-06-18"


class ToolCall:
    """A call that waits for its result."""

    def __init__(self, id: str, name: str, arguments: object) -> None:
        self.id = id
        self.name = name
        self.arguments = arguments
        self._done = threading.Event()
        self._result: dict[str, object] = {}

    def answer(self, content: Sequence[dict[str, object]], *, error: bool = False) -> None:
        """The first answer counts."""
        if not self._done.is_set():
            self._result = {"content": list(content), "isError": error}
            self._done.set()

    def result(self) -> dict[str, object]:
        self._done.wait()
        return self._result


class ToolServer:
    """Serves tools until it is closed. `put` gets each call."""

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
        """What the other program has to know. It holds the token: for a file that nobody else reads."""
        url = f"http://127.0.0.1:{self._http.server_port}/mcp"
        return {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {self._token}"}}

    def close(self) -> None:
        """Calls that still wait get an error."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        for call in list(self._waiting):
            call.answer([{"type": "text", "text": "The tool call failed: the conversation has ended"}], error=True)

    def knows(self, authorization: str) -> bool:
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())

    def respond(self, request: object) -> dict[str, object] | None:
        """The answer to a request of the protocol; None for a notification."""
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
            return {"result": {"tools": [_described(tool) for tool in list(self._tools.values())]}}
        if method == "tools/call":
            return {"result": self._called(params)}
        if method == "ping":
            return {"result": {}}
        return {"error": {"code": -32601, "message": "no such method"}}

    def _called(self, params: dict[str, object]) -> dict[str, object]:
        meta = params.get("_meta")
        id = meta.get("claudecode/toolUseId") if isinstance(meta, dict) else None
        call = ToolCall(str(id or ""), str(params.get("name", "")), params.get("arguments", {}))
        self._waiting.add(call)
        try:
            self._put(call)
            return call.result()
        finally:
            self._waiting.discard(call)


def _described(tool: Tool) -> dict[str, object]:
    size = {"anthropic/maxResultSizeChars": LARGEST_RESULT}
    return {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.parameters), "_meta": size}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    tools: ToolServer

    def handle_error(self, request: object, client_address: object) -> None:
        """The other program went away in the middle: that is seen elsewhere."""


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def do_POST(self) -> None:
        if not self.server.tools.knows(self.headers.get("Authorization", "")):
            return self._send(401)
        with contextlib.suppress(ValueError):
            size = int(self.headers.get("Content-Length", ""))
            if self.path == "/mcp" and 0 <= size <= _LARGEST:
                answer = self.server.tools.respond(json.loads(self.rfile.read(size)))
                return self._send(202) if answer is None else self._send(200, json.dumps(answer).encode())
        return self._send(400)

    def do_GET(self) -> None:
        """Nothing is ever sent without having been asked for."""
        self._send(405)

    def do_DELETE(self) -> None:
        """There is no session to be ended."""
        self._send(405)

    def _send(self, status: int, body: bytes = b"") -> None:
        if status in (400, 401):
            self.close_connection = True  # its body may not have been read
        self.send_response(status)
        if body:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not to the error output of a library's user."""
