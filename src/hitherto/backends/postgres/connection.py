"""A connection that knows its workspace, and the watch that ends a commit after the timeout.

A commit may wait for replicas that do not answer, and nothing in a server ends that: its own timeouts end with the
statement. So a thread of this process does, after the timeout. It asks the server to cancel the commit. If the server
does not react, the thread shuts the socket down.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]

_WATCH_SECONDS = 0.25
_LEAST_SECONDS = 1.0  # the least time for a commit, whatever the timeout: it may just be large
_ANSWER_SECONDS = 2.0  # for a server to react to a cancel request


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection that knows its workspace. `makes` replaces `connect`, so the pool only gets verified connections."""

    bound: tuple[UUID, int] | None = None  # the workspace, and the lock timeout in milliseconds
    made = 0.0
    gave_up = False  # a commit took too long, and the watch cancelled it
    hung_up = False  # and the server did not report the outcome
    timeline: int | None = None  # None: a standby, whose timeline is not known for certain

    @classmethod
    def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, makes: "Callable[[], Link] | None" = None, **given: Any
    ) -> "Link":
        if makes is not None:
            return makes()
        connection = super().connect(conninfo, **given)
        connection.made = time.monotonic()
        return connection


class Watch:
    """Ends the wait of a commit for replicas that do not answer.

    The server then warns that the commit may be durable on itself alone. Its own timeouts end with the statement, and
    do not cover the commit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[_Watched] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, connection: Connection, seconds: float) -> Iterator[None]:
        watched = _Watched(connection, time.monotonic() + max(seconds, _LEAST_SECONDS))
        with self._lock:
            self._under_way.add(watched)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, daemon=True, name="hitherto-watch")
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(watched)
            watched.leave()

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_WATCH_SECONDS)
            with self._lock:
                now = time.monotonic()
                late = [watched for watched in self._under_way if watched.until < now]
                idle = 0 if self._under_way else idle + 1
                if idle > 20:  # no commit for a while: the next one starts a new thread
                    self._thread = None
                    return
            for watched in late:
                watched.end()


class _Watched:
    """A commit in progress on a connection.

    `leave` waits for a running `end`. Otherwise the cancel request could hit the next user of the connection."""

    def __init__(self, connection: Connection, until: float) -> None:
        self.connection, self.until = connection, until
        self._lock, self._left, self._asked = threading.Lock(), False, False
        if isinstance(connection, Link):
            connection.gave_up = connection.hung_up = False

    def leave(self) -> None:
        with self._lock:
            self._left = True

    def end(self) -> None:
        """Ask the server to cancel the commit. If the request fails or has no effect, shut the socket down."""
        with self._lock:
            if self._left:
                return
            if isinstance(self.connection, Link):
                self.connection.gave_up = True
            if not self._asked:
                self._asked, self.until = True, time.monotonic() + _ANSWER_SECONDS
                try:
                    self.connection.cancel_safe(timeout=5.0)
                except psycopg.Error:  # the network hangs, not the commit
                    pass
                else:
                    return
            if isinstance(self.connection, Link):
                self.connection.hung_up = True
            _hang_up(self.connection)


def _hang_up(connection: Connection) -> None:
    """Shut the socket down instead of closing it: another thread waits on it, and gets an error."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
    except (psycopg.Error, OSError):  # it is lost already
        return


def roll_back(connection: Connection) -> None:
    """Roll back after an error, so that the connection can be used again. A lost connection needs no rollback.

    A plain ROLLBACK statement is not enough: psycopg believes that the statements after the error in a pipeline were
    prepared. `connection.rollback()` clears that."""
    if not connection.closed and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()
