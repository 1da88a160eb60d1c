"""Runs the page on a port of this machine, until it is told to stop.

It listens on 127.0.0.1 alone. The socket is bound before anything is printed, so the address that is printed works.
"""

import socket
from typing import NamedTuple

import uvicorn

from ..errors import InvalidArgument
from .door import Door

__all__ = ["Listening", "listen", "serve"]

_MOST_AT_ONCE = 200  # requests; more are answered 503 at once
_WAITING = 512  # connections that are not accepted yet
_CLOSING_SECONDS = 3


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


def serve(door: Door, listening: Listening) -> None:
    """Answer requests until Ctrl+C or a signal to stop."""
    config = uvicorn.Config(
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
    uvicorn.Server(config).run(sockets=[listening.socket])
