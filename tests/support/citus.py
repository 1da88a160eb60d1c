"""A database of its own on a Citus cluster, whose coordinator `HITHERTO_CITUS_URL` names as a superuser."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from hitherto.backends.postgres import distribution, schema

from .databases import Connection

VARIABLE = "HITHERTO_CITUS_URL"


class CitusDatabase(NamedTuple):
    """One on all nodes."""

    coordinator: str  # the address, without a database
    workers: tuple[str, ...]
    name: str
    role: str  # the owner of the tables, bound by row-level security as everybody is

    def url(self, user: str = "", **parameters: object) -> str:
        parts = urlsplit(f"{self.coordinator}/{self.name}")
        given = "&".join(f"{name}={value}" for name, value in parameters.items())
        return parts._replace(netloc=f"{user or self.role}@{parts.netloc.rpartition('@')[2]}", query=given).geturl()

    @contextmanager
    def admin(self) -> Iterator[Connection]:
        with psycopg.connect(f"{self.coordinator}/{self.name}", autocommit=True) as connection:
            yield connection

    @contextmanager
    def on_worker(self, number: int = 0) -> Iterator[Connection]:
        with psycopg.connect(f"{self.workers[number]}/{self.name}", autocommit=True) as connection:
            yield connection


@contextmanager
def new_citus_database(*, distributed: bool = True) -> Iterator[CitusDatabase]:
    """Make one on every node, with our tables, which an ordinary role owns, and remove it at the end."""
    database = _make()
    try:
        with database.admin() as admin:
            admin.execute(f"CREATE ROLE {database.role} LOGIN")
            admin.execute(f"GRANT CREATE ON DATABASE {database.name} TO {database.role}")
            with psycopg.connect(database.url(), autocommit=True) as owner:
                schema.migrate(owner, lambda: psycopg.connect(database.url()), create=True)
            if distributed:
                distribute(admin)
        yield database
    finally:
        _drop(database)


def distribute(admin: Connection) -> None:
    admin.execute("SET citus.shard_count = 4")
    for statement in distribution.statements():
        admin.execute(statement)


def _make() -> CitusDatabase:
    given = os.environ.get(VARIABLE)
    if not given:
        pytest.skip(f"{VARIABLE} names no Citus cluster")
    parts = urlsplit(given)
    coordinator = parts._replace(path="", query="").geturl()
    with psycopg.connect(given, autocommit=True) as connection:
        query = "SELECT nodename, nodeport, groupid FROM pg_dist_node ORDER BY groupid"
        nodes = connection.execute(query).fetchall()
    user = f"{parts.username}@" if parts.username else ""
    addresses = {group: f"postgresql://{user}{host}:{port}" for host, port, group in nodes}
    name = f"h{os.urandom(4).hex()}"
    workers = tuple(address for group, address in addresses.items() if group)
    database = CitusDatabase(coordinator, workers, name, f"r{name}")
    for address in (coordinator, *workers):
        with psycopg.connect(f"{address}/{parts.path[1:]}", autocommit=True) as connection:
            connection.execute("SET citus.enable_create_database_propagation = off")
            connection.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(f"{address}/{name}", autocommit=True) as connection:
            connection.execute("CREATE EXTENSION citus")
    with database.admin() as admin:
        for host, port, group in nodes:
            which = "citus_set_coordinator_host" if group == 0 else "citus_add_node"
            admin.execute(f"SELECT {which}(%s::text, %s::int)", (host, port))
    return database


def _drop(database: CitusDatabase) -> None:
    with database.admin() as admin:
        admin.execute("DROP SCHEMA hitherto CASCADE")
        admin.execute(f"DROP OWNED BY {database.role}")
        admin.execute(f"DROP ROLE {database.role}")
    for address in (database.coordinator, *database.workers):
        with psycopg.connect(f"{address}/postgres", autocommit=True) as connection:
            connection.execute("SET citus.enable_create_database_propagation = off")
            connection.execute(f"DROP DATABASE {database.name} WITH (FORCE)")
