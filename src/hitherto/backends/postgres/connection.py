"""A connection that knows whom it is bound to, and who watches over it while something is under way.

A commit may wait for replicas that do not answer, and nothing in a server ends that: its own limits end with the
statement. So a thread of ours does, when the time is up. The server is asked to put an end to it; who does not hear
that is hung up on.
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
_LEAST_SECONDS = 1.0  # that a commit is given, however little patience there is: it may only be large
_ANSWER_SECONDS = 2.0  # for a server that was asked to end something


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection that knows whom it is bound to. `makes` makes it instead: so the pool gets those it may use."""

    bound: tuple[UUID, int] | None = None  # to a workspace, with so much patience for locks
    made = 0.0
    gave_up = False  # what was under way took too long, and was ended by us
    hung_up = False  # and the server did not say how that ended
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
    """Ends the wait of a commit for replicas that do not answer: the server then says that it may be kept here alone.
    Nobody else would: the server's own limits end with the statement, and not with the commit."""

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
                if idle > 20:  # nobody writes: the next who does begins another
                    self._thread = None
                    return
            for watched in late:
                watched.end()


class _Watched:
    """What is under way on a connection. Whoever ends it is waited for before the connection goes to somebody else, or
    it would be theirs that is ended."""

    def __init__(self, connection: Connection, until: float) -> None:
        self.connection, self.until = connection, until
        self._lock, self._left, self._asked = threading.Lock(), False, False
        if isinstance(connection, Link):
            connection.gave_up = connection.hung_up = False

    def leave(self) -> None:
        with self._lock:
            self._left = True

    def end(self) -> None:
        """Ask the server to put an end to it; who does not hear that, or does not do it, is hung up on."""
        with self._lock:
            if self._left:
                return
            if isinstance(self.connection, Link):
                self.connection.gave_up = True
            if not self._asked:
                self._asked, self.until = True, time.monotonic() + _ANSWER_SECONDS
                try:
                    self.connection.cancel_safe(timeout=5.0)
                except psycopg.Error:  # it is not the commit that hangs, but the way there
                    pass
                else:
                    return
            if isinstance(self.connection, Link):
                self.connection.hung_up = True
            _hang_up(self.connection)


def _hang_up(connection: Connection) -> None:
    """Another thread waits on it, so that it is not closed but cut off: then that thread hears the end of it."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
    except (psycopg.Error, OSError):  # it is lost already
        return


def roll_back(connection: Connection) -> None:
    """After an error, so that the connection may be used again. What was lost is not there to be rolled back. A mere
    ROLLBACK would not do: psycopg believes that what came after the error in a pipeline was prepared, until it is made
    to forget."""
    if not connection.closed and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()
