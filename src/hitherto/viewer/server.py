"""Runs the page on a port of this machine, until it is told to stop.

It listens on 127.0.0.1 alone. `_system.local_server` has the socket, and the way to the end.
"""

import uvicorn

from .._system import local_server
from .._system.local_server import Listening, listen
from .door import Door

__all__ = ["Listening", "configure", "listen", "serve"]

_MOST_AT_ONCE = 200  # requests; more are answered 503 at once
_CLOSING_SECONDS = 1  # for requests that are on their way; streams of events end then


def configure(door: Door) -> uvicorn.Config:
    """Return how the server runs, with few requests at once."""
    return local_server.configure(
        door,
        limit_concurrency=_MOST_AT_ONCE,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
        lifespan="off",
        http="h11",
    )


def serve(door: Door, listening: Listening) -> None:
    """Answer requests until Ctrl+C or a signal to stop, and raise `KeyboardInterrupt` then."""
    local_server.serve(configure(door), listening)
