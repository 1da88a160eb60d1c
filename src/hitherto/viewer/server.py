"""Runs the page on a port of this machine, until it is told to stop.

It listens on 127.0.0.1 alone. The socket is bound before anything is printed, so the address that is printed works.
"""

import signal
import socket
from typing import NamedTuple

import uvicorn

from ..errors import InvalidArgument
from .door import Door

__all__ = ["Listening", "configure", "listen", "serve"]

_MOST_AT_ONCE = 200  # requests; more are answered 503 at once
_WAITING = 512  # connections that are not accepted yet
_CLOSING_SECONDS = 1  # for requests that are on their way; streams of events end then


class Listening(NamedTuple):
    """A bound socket."""

    socket: socket.socket
    port: int


def listen(port: int) -> Listening:
    """Bind a port of 127.0.0.1; 0 takes a free one."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.listen(_WAITING)
    except OSError as error:
        bound.close()
        what = f"port {port} of this machine cannot be used: {error.strerror}"
        raise InvalidArgument(what, hint="--port 0 takes a free one") from None
    return Listening(bound, bound.getsockname()[1])


def configure(door: Door) -> uvicorn.Config:
    """Return how the server runs: on one thread, quietly, with few requests at once."""
    return uvicorn.Config(
        door,
        log_level="critical",
        access_log=False,
        limit_concurrency=_MOST_AT_ONCE,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        loop="asyncio",
        http="h11",
    )


def serve(door: Door, listening: Listening) -> None:
    """Answer requests until Ctrl+C or a signal to stop, and raise `KeyboardInterrupt` then.

    The server raises the signal again when it has closed its connections. SIGTERM would end the process there, before
    the store is closed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        uvicorn.Server(configure(door)).run(sockets=[listening.socket])
    finally:
        signal.signal(signal.SIGTERM, before)
