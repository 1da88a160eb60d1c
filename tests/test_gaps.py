"""What SQLite leaves behind on pages that are in use is overwritten when something was removed.

Requirements: D9.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import hitherto
from hitherto import Message, Store
from hitherto.backends import _gaps
from hitherto.backends._connections import Pool
from hitherto.backends.sqlite import SqliteBackend

WORD = b"unmistakable"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with hitherto.open(path, maintenance=False) as store:
        yield store


def by_turns(store: Store, size: int = 25) -> hitherto.Conversation:
    """Two conversations whose rows lie between each other's, so that pages are split and rows moved."""
    stays, goes = store.start(), store.start()
    for n in range(200):
        goes.append(Message.user(" ".join(f"{WORD.decode()}{n}x{i}" for i in range(size))))
        stays.append(Message.user(f"fine {n}"))
    return goes


def left(path: Path) -> list[str]:
    return [file.name for file in sorted(path.parent.iterdir()) if WORD in file.read_bytes()]


@pytest.mark.parametrize("size", [20, 25, 30, 40])
def test_what_was_moved_about_before_it_was_purged_is_gone_too(store: Store, path: Path, size: int) -> None:
    goes = by_turns(store, size)
    assert left(path)
    report = store.purge(goes, reason="user-requested")
    assert not report.scrub_pending
    assert left(path) == []
    assert store.verify().ok


def test_without_it_the_text_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteBackend, "_tidied", lambda *_: True)
    found = []
    for size in (20, 25, 30, 35, 40, 45):
        folder = path.parent / str(size)
        folder.mkdir()
        with hitherto.open(folder / "store.db", maintenance=False) as store:
            store.purge(by_turns(store, size), reason="user-requested")
            found += left(folder / "store.db")
    assert found


def test_whoever_is_killed_before_it_leaves_a_mark_and_the_next_open_finishes_it(path: Path) -> None:
    code = (
        "import os, sys, hitherto\n"
        "store = hitherto.open(sys.argv[1], maintenance=False)\n"
        "store.backend.scrub = lambda: os._exit(9)\n"
        "store.purge(sys.argv[2], reason='user-requested')\n"
    )
    with hitherto.open(path, maintenance=False) as other:  # and somebody else has it open all the time
        goes = by_turns(other)
        done = subprocess.run([sys.executable, "-c", code, str(path), goes.id], check=False, timeout=60)
        assert done.returncode == 9
        assert left(path)
        assert not other.backend.is_scrubbed()
        with hitherto.open(path) as store:
            deadline = time.monotonic() + 20
            while not store.backend.is_scrubbed() and time.monotonic() < deadline:
                time.sleep(0.01)
        assert left(path) == []
        assert other.verify().ok


def test_it_is_done_in_pieces_if_there_is_little_time(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes = by_turns(store)
    monkeypatch.setattr(_gaps, "_READ", 4)
    backend = store.backend
    assert isinstance(backend, SqliteBackend)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteBackend, "_tidied", lambda *_: True)
        store.purge(goes, reason="user-requested")
    calls = 0
    while not backend._tidied(deadline=0.0):
        calls += 1
        assert calls < 1000
    assert calls > 3
    assert backend.is_scrubbed()
    assert left(path) == []


def test_what_is_removed_during_a_pass_needs_another(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = by_turns(store), store.start()
    second.append(Message.user("x"))
    backend = store.backend
    assert isinstance(backend, SqliteBackend)
    monkeypatch.setattr(_gaps, "_READ", 4)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteBackend, "_tidied", lambda *_: True)
        store.purge(first, reason="user-requested")
    assert not backend._tidied(deadline=0.0)  # the beginning of a pass
    with monkeypatch.context() as patch:
        patch.setattr(SqliteBackend, "_tidied", lambda *_: True)
        store.purge(second, reason="user-requested")
    while backend._gaps._next:
        backend._tidied(deadline=0.0)
    assert not backend.is_scrubbed()
    assert backend._tidied()
    assert backend.is_scrubbed()


def test_others_who_remember_a_page_do_not_bring_it_back(path: Path) -> None:
    """A connection that has read a page before writes it as it remembers it, unless it hears of a commit."""
    with hitherto.open(path, maintenance=False) as one, hitherto.open(path, maintenance=False) as other:
        goes = by_turns(one)
        stays = other.conversation(next(c.id for c in other.conversations() if c.id != goes.id))
        assert len(stays.thread()) == 200  # all of its pages are remembered there
        assert not one.purge(goes, reason="user-requested").scrub_pending
        assert left(path) == []
        for n in range(50):
            stays.append(Message.user(f"more {n}"))
        assert left(path) == []
        assert other.verify().ok


WRITER = """
import sys, time, hitherto
from hitherto import Message
store = hitherto.open(sys.argv[1], maintenance=False)
talk = store.start()
print("ready", flush=True)
n, end = 0, time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    talk.append(Message.user(f"{n} " + "word " * (n % 300)))
    n += 1
print(talk.id, n, flush=True)
store.close()
"""


def test_writers_beside_it_lose_nothing(path: Path) -> None:
    with hitherto.open(path, maintenance=False) as store:
        store.start()
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), "3"], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        while any(writer.poll() is None for writer in writers):
            talk = store.start()
            talk.extend([Message.user(f"{WORD.decode()} {n}") for n in range(20)])
            store.purge(talk, reason="user-requested")
        said: dict[str, int] = {}
        for writer in writers:
            assert writer.stdout is not None
            id, count = writer.stdout.read().split()
            writer.stdout.close()
            said[id] = int(count)
        for id, many in said.items():
            texts = [message.text.split()[0] for message in store.conversation(id).thread()]
            assert texts == [str(n) for n in range(many)]
        assert store.scrub()
        assert store.verify().ok
        assert store.backend.check() == []
    assert left(path) == []


def test_no_page_that_is_something_else_is_touched(tmp_path: Path) -> None:
    """Rows that look like pages, in a file with every kind of page: all is as it was, and SQLite finds it sound."""
    path = tmp_path / "all.db"
    raw = apsw.Connection(str(path))
    for statement in (
        "PRAGMA auto_vacuum = INCREMENTAL",
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)",
        "CREATE INDEX i ON t (b)",
        "CREATE TABLE w (a TEXT PRIMARY KEY, b BLOB) WITHOUT ROWID",
    ):
        raw.execute(statement).fetchall()
    false = bytes([13, 0, 0, 0, 1, 15, 255, 0]) + b"x" * 5000  # begins like a leaf
    for n in range(3000):
        raw.execute("INSERT INTO t VALUES (?, ?)", (n * 7919 % 100_003, false[: n % 6000] + str(n).encode()))
        raw.execute("INSERT INTO w VALUES (?, ?)", (f"{n * 7919 % 100_003:06} {'k' * (n % 700)}", false[: n % 900]))
    raw.execute("DELETE FROM t WHERE a % 3 = 0")
    before = [list(raw.execute(f"SELECT * FROM {table}")) for table in ("t", "w")]
    raw.execute("CREATE TABLE touched (a)")
    pool = Pool(path, lambda _: None)

    def touch(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO touched VALUES (1)")

    assert _gaps.Gaps(pool).close(touch, lambda: touch)
    pool.close()
    assert [list(raw.execute(f"SELECT * FROM {table}")) for table in ("t", "w")] == before
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    raw.close()
