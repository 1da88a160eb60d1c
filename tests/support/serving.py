"""The viewer on a port, in a thread of the test: for a real browser, and for streams."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from hitherto import Store
from hitherto.viewer import app, server
from hitherto.viewer.access import Access

PATIENCE = 60.0


class Served:
    """A running viewer."""

    def __init__(self, address: str, token: str) -> None:
        self.address, self.token = address, token

    @property
    def door(self) -> str:
        """The address that lets a browser in, once."""
        return f"{self.address}/?token={self.token}"


@contextmanager
def served(store: Store, **how: Any) -> Iterator[Served]:
    """Serve a store until the end of the block."""
    listening = server.listen(0)
    door = app.build(Access(lambda: store), **how)
    running = uvicorn.Server(server.configure(door))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening.socket]})
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not running.started:
            assert time.monotonic() < deadline, "the viewer did not start"
            time.sleep(0.01)
        yield Served(f"http://127.0.0.1:{listening.port}", door.token or "")
    finally:
        running.should_exit = running.force_exit = True
        thread.join(PATIENCE)
        listening.socket.close()
        assert not thread.is_alive()
