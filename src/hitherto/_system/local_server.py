"""A local HTTP server of ours: its socket, and how it runs and ends.

The socket is bound before an address is printed, so the address that is printed works. uvicorn is imported when a
server runs, because it is part of an extra.
"""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidArgument

if TYPE_CHECKING:
    import uvicorn

__all__ = ["LOOPBACK", "Listening", "configure", "listen", "serve", "serve_in_thread"]

LOOPBACK = "127.0.0.1"
_WAITING = 512  # connections that are not accepted yet
_START_SECONDS = 30.0


class Listening(NamedTuple):
    """A bound socket."""

    socket: socket.socket
    port: int


def listen(port: int, host: str = LOOPBACK) -> Listening:
    """Bind a port of this machine, of 127.0.0.1 unless `host` is another of its addresses; 0 takes a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small pieces at once (TCP_NODELAY); otherwise each waits for 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_WAITING)
    except OSError as error:
        bound.close()
        what = f"port {port} of this machine cannot be used: {error.strerror}"
        raise InvalidArgument(what, hint="--port 0 takes a free one") from None
    return Listening(bound, bound.getsockname()[1])


def configure(app: "Callable[..., Any]", **more: Any) -> "uvicorn.Config":
    """Return how a server of ours runs: on one thread, and quietly. `more` is what differs between them."""
    import uvicorn  # noqa: PLC0415  # part of an extra

    return uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        loop="asyncio",
        **more,
    )


def serve(config: "uvicorn.Config", listening: Listening) -> None:
    """Answer requests until Ctrl+C or a signal to stop, and raise `KeyboardInterrupt` then.

    The server raises the signal again when it has closed its connections. SIGTERM would end the process there, before
    the store is closed."""
    import uvicorn  # noqa: PLC0415  # part of an extra

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        uvicorn.Server(config).run(sockets=[listening.socket])
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def serve_in_thread(config: "uvicorn.Config", listening: Listening) -> Iterator[None]:
    """Answer requests in a thread until the end of the block."""
    import uvicorn  # noqa: PLC0415  # as above

    server = uvicorn.Server(config)
    config.load()  # what is missing is an error here, not in the thread
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening.socket]}, name="hitherto-server", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_START_SECONDS)
