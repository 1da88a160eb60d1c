"""How the gateway's server runs.

It answers as long as a model thinks: nothing here has a time limit but the end, when what has come is kept.
"""

import re
import sys
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .._system import local_server

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["configure", "prefer_passing"]

_SWITCH_SECONDS = 0.0003
_CLOSING_SECONDS = 1  # for answers that are on their way when it ends; what has come of them is kept
_MAX_HEAD_BYTES = 256 << 10  # of the headers of a request: some programs send long tokens
_HTTP_2 = re.compile(rb"\r\nupgrade: *h2c(?=\r\n|$)", re.IGNORECASE)
_IDLE_SECONDS = 60  # after which a connection is closed; longer than programs keep theirs for reuse


def prefer_passing() -> None:
    """Let the thread that passes bytes on wait less for those that write to the store, in this process. Python's own
    interval, 5 ms, would be added to answers."""
    sys.setswitchinterval(_SWITCH_SECONDS)


class _Connection(HttpToolsProtocol):
    """A connection of a program. The heads of its requests have a limited size, and an offer of HTTP/2 in them is not
    taken up: the parser would take it for the end of the request."""

    _is_idle = True  # no request is under way
    _is_in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_idle, self._is_in_head, self._head_bytes = False, True, 0

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_idle = True
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _HTTP_2.sub(b"", head) + end + rest
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.transport.abort()


def configure(app: "Callable[..., Any]") -> uvicorn.Config:
    """Return how the server runs, with no limit but the machine's."""
    return local_server.configure(
        app,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
        timeout_keep_alive=_IDLE_SECONDS,
        lifespan="on",
        http=_Connection,
    )
