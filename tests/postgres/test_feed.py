"""The feed counts for itself. A process of the first format, which compared ids of transactions, may write beside it.

Its statements stand here as it sends them.
"""

import os
from collections.abc import Iterator

import pytest

from hitherto.backend import DONE, Batch, Change
from hitherto.backends.postgres import PostgresBackend, feed, workspace_id
from hitherto.testing.conformance import A, B, create, token, update

from ..support.databases import Connection, Database, new_database

WRITE = (
    "UPDATE hitherto.conversation SET version = version + 1, moved = pg_current_xact_id()::text::bigint >> 16, "
    "stamp = pg_current_xact_id() WHERE workspace_id = %s AND id = %s"
)
REMOVE = (
    "DELETE FROM hitherto.conversation WHERE workspace_id = %s AND id = %s",
    (
        "INSERT INTO hitherto.gone VALUES (%s, %s, pg_current_xact_id()) "
        "ON CONFLICT (workspace_id, conversation) DO UPDATE SET moved = excluded.moved"
    ),
)
MAKE = (
    "INSERT INTO hitherto.workspace (workspace_id, name, identity, retired, forgotten) "
    "VALUES (%s, 'w', '0123456789abcdef', -1, '0')"
)
IS_REMEMBERED = "SELECT forgotten < pg_snapshot_xmin(%s::pg_snapshot) FROM hitherto.workspace WHERE workspace_id = %s"
W = workspace_id("w")


@pytest.fixture
def database() -> Database:
    return new_database()


@pytest.fixture
def backend(database: Database) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(database.url(), workspace="w")
    yield backend
    backend.close()


@pytest.fixture
def admin(database: Database) -> Iterator[Connection]:
    with database.admin() as connection:
        yield connection


def test_what_the_first_format_writes_and_removes_is_told(backend: PostgresBackend, admin: Connection) -> None:
    backend.commit([create(id=A), create(id=B)])
    position = backend.changes(None).position
    admin.execute(WRITE, (W, A))
    for statement in REMOVE:
        admin.execute(statement, (W, B))
    found = backend.changes(position)
    assert (found.everything, found.moved, found.gone) == (False, [A], [B])
    quiet = backend.changes(found.position)
    assert (quiet.everything, quiet.moved, quiet.gone) == (False, [], [])


def test_what_is_written_now_the_first_format_learns_by_looking_at_everything(
    backend: PostgresBackend, admin: Connection
) -> None:
    """It reads no row otherwise that has no stamp of its own. The control is a workspace as it made them."""
    snapshot = admin.execute("SELECT pg_current_snapshot()::text").fetchall()[0][0]
    assert admin.execute(IS_REMEMBERED, (snapshot, W)).fetchall() == [(False,)]
    admin.execute(MAKE, (workspace_id("old"),))
    snapshot = admin.execute("SELECT pg_current_snapshot()::text").fetchall()[0][0]
    assert admin.execute(IS_REMEMBERED, (snapshot, workspace_id("old"))).fetchall() == [(True,)]


def test_a_workspace_of_the_first_format_is_taken_over_at_opening(database: Database, admin: Connection) -> None:
    PostgresBackend(database.url(), workspace="other").close()  # the tables are there
    admin.execute(MAKE, (W,))
    backend = PostgresBackend(database.url(), workspace="w")
    try:
        backend.commit([create(id=A)])
        position = backend.changes(None).position
        assert not backend.changes(position).everything
        snapshot = admin.execute("SELECT pg_current_snapshot()::text").fetchall()[0][0]
        assert admin.execute(IS_REMEMBERED, (snapshot, W)).fetchall() == [(False,)]
    finally:
        backend.close()


def test_after_the_first_format_has_forgotten_something_no_position_is_known(
    backend: PostgresBackend, admin: Connection
) -> None:
    """On a full disk a removal records nothing, and says so in the workspace's row."""
    backend.commit([create(id=A)])
    position = backend.changes(None).position
    admin.execute(REMOVE[0], (W, A))
    admin.execute("UPDATE hitherto.workspace SET forgotten = pg_current_xact_id() WHERE workspace_id = %s", (W,))
    assert backend.changes(position).everything
    backend.commit([create(id=B)])
    assert backend.changes(position).everything
    assert not backend.changes(backend.changes(None).position).everything


def test_many_changes_are_numbered_a_part_at_a_time(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_BATCH", 2)
    monkeypatch.setattr(feed, "_TAKE", feed._TAKE.replace("LIMIT 1000", "LIMIT 2"))
    position = backend.changes(None).position
    ids = [bytes([n]) * 16 for n in range(5)]
    backend.commit([create(id=id) for id in ids])
    found = backend.changes(position)
    assert (sorted(found.moved), backend.changes(found.position).moved) == (ids, [])


def test_a_position_that_was_taken_back_is_unknown(backend: PostgresBackend, admin: Connection) -> None:
    """As after a backup was restored over the database: the same numbers will mean other changes."""
    backend.commit([create(id=A)])
    position = backend.changes(None).position
    admin.execute("UPDATE hitherto.workspace SET feed = feed - 1")
    assert backend.changes(position).everything
    assert backend.changes(feed.without_place(position)).everything


def test_a_workspace_that_was_made_anew_knows_no_older_position(backend: PostgresBackend, admin: Connection) -> None:
    position = backend.changes(None).position
    admin.execute("UPDATE hitherto.workspace SET identity = %s WHERE workspace_id = %s", (os.urandom(16), W))
    assert backend.changes(position).everything


def test_removed_and_made_again_between_two_readers(backend: PostgresBackend) -> None:
    backend.commit([create(id=A)])
    first = backend.changes(None).position
    backend.commit([Batch((Change(A, token(1), None),))])
    second = backend.changes(first)
    assert (second.moved, second.gone) == ([], [A])
    assert backend.commit([create(id=A)]) == [DONE]
    assert backend.commit([update(1)]) == [DONE]
    for position in (first, second.position):
        found = backend.changes(position)
        assert (found.moved, found.gone) == ([A], [])
