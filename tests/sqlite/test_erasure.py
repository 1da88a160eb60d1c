"""The bytes of removed rows leave the files, by SQLite's own means alone: the tables are rebuilt.

A small store is rebuilt by VACUUM, a larger one in steps. Most tests here do both. Beside each claim stands a
control. Requirements: D9.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import settings

import hitherto
from hitherto import Block, Message, Store
from hitherto.backend import Backend, Batch, Outcome
from hitherto.backends import sqlite
from hitherto.backends.sqlite import SqliteBackend, erasure, opening
from hitherto.backends.sqlite import rebuild as _rebuild
from hitherto.backends.sqlite.connections import Pool
from hitherto.backends.sqlite.erasure import Erasure
from hitherto.backends.sqlite.rebuild import NEXT, OLD, Rebuild
from hitherto.backends.sqlite.schema import MIGRATIONS
from hitherto.testing.conformance import BackendContract
from hitherto.testing.machine import BackendMachine

WORD = "unmistakable"
WAYS = ["at once", "in steps"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with hitherto.open(path, maintenance=False) as store:
        yield store


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "SMALL", 0)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in steps":
        monkeypatch.setattr(erasure, "SMALL", 0)
    return str(request.param)


def by_turns(store: Store, size: int = 25) -> hitherto.Conversation:
    """Two conversations whose rows lie between each other's, so that pages are split and rows moved."""
    stays, goes = store.start(title="stays"), store.start(title=WORD)
    for n in range(200):
        goes.append(Message.user(" ".join(f"{WORD}{n}x{i}" for i in range(size))))
        stays.append(Message.user(f"fine {n}"))
    return goes


def left(path: Path) -> list[str]:
    return [file.name for file in sorted(path.parent.iterdir()) if WORD.encode() in file.read_bytes()]


def tables(path: Path) -> list[str]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return _rebuild.tables(connection)
    finally:
        connection.close()


def step(store: Store) -> bool:
    """One step of the rebuild. True if it was the last."""
    assert isinstance(store.backend, SqliteBackend)
    return store.backend._erasure._steps.go_on(0.0)


def step_until(store: Store, path: Path, table: str) -> None:
    """Take steps until something is in this table. The last one to be copied is `chunk`."""
    while table not in tables(path) or not rows(path, table):
        assert not step(store)


def rows(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found: list[Any] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(found[0][0])
    finally:
        connection.close()


def attach(store: Store) -> None:
    """So many attachments that it takes some steps to copy them."""
    talk = store.start(title="attached")
    talk.extend([Message.user([Block.image(f"{n:5}".encode() * (16 << 10), "image/png")]) for n in range(100)])


# -- nothing is left


@pytest.mark.parametrize("size", [20, 25, 30, 40])
def test_what_was_moved_about_before_it_was_purged_is_gone_too(store: Store, path: Path, way: str, size: int) -> None:
    goes = by_turns(store, size)
    assert left(path)
    report = store.purge(goes, reason="user-requested")
    assert report.scrub_pending == (way == "in steps")  # a large store is left to maintenance
    assert store.scrub()
    assert left(path) == []
    assert store.verify().ok
    assert store.backend.check() == []


def test_without_it_the_text_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Erasure, "advance", lambda *_: True)
    found = []
    for size in (20, 25, 30, 35, 40, 45):
        folder = path.parent / str(size)
        folder.mkdir()
        with hitherto.open(folder / "store.db", maintenance=False) as store:
            store.purge(by_turns(store, size), reason="user-requested")
            found += left(folder / "store.db")
    assert found


@pytest.mark.parametrize("others", [1, 5, 40])
@pytest.mark.parametrize("size", [20, 300, 1500])
def test_nothing_is_left_on_inner_pages(path: Path, way: str, size: int, others: int) -> None:
    """Where another program's VACUUM, without `secure_delete`, leaves rows."""
    with hitherto.open(path, maintenance=False) as store:
        goes = store.start()
        goes.extend([Message.user(f"{WORD} {n} " + "x" * size) for n in range(12)])
        for _ in range(others):
            store.start().extend([Message.user("kept " + "y" * size) for _ in range(12)])
    foreign = apsw.Connection(str(path))
    foreign.execute("VACUUM")
    foreign.close()
    with hitherto.open(path, maintenance=False) as store:
        store.purge(goes.id, reason="user-requested")
        assert store.scrub()
    assert left(path) == []


def test_words_leave_the_file_of_the_search_index(store: Store, path: Path) -> None:
    goes = by_turns(store)
    assert store.search(f"{WORD}7x7")
    assert any("-search" in name for name in left(path))
    assert not store.purge(goes, reason="user-requested").scrub_pending
    assert left(path) == []


def test_a_reader_delays_it_and_the_tables_are_not_written_anew_again(
    store: Store, path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes = by_turns(store)
    reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM message").fetchall()
    assert store.purge(goes, reason="user-requested").scrub_pending
    assert not store.scrub()
    assert left(path)
    reader.close()
    if way == "at once":  # `disk_space` cannot truncate the WAL during a read
        assert store.scrub()
    monkeypatch.setattr(erasure, "vacuum", lambda _: pytest.fail("again"))
    assert store.scrub()
    assert left(path) == []


def test_nothing_writes_into_a_database_past_sqlite() -> None:
    for file in Path(sqlite.__file__).parent.glob("*.py"):
        found = re.findall(r"xWrite|pwrite|\.write\(", file.read_text())
        assert not found or file.name == "ballast.py", file.name


def test_a_store_of_more_than_128_gibibytes_keeps_its_attachments(path: Path) -> None:
    """The page numbers of such a store begin with a byte that stands for a kind of page."""
    with hitherto.open(path, maintenance=False) as store:
        goes = by_turns(store).id
    pages = 0x02000200
    with path.open("r+b") as file:
        file.seek(28)
        file.write(pages.to_bytes(4, "big"))
        file.truncate(pages * 4096)
    images = [os.urandom(2 << 20) for _ in range(4)]
    with hitherto.open(path, maintenance=False) as store:
        talk = store.start()
        sent = [talk.append(Message.user([Block.image(data, "image/png")])).id for data in images]
        assert store.purge(goes, reason="user-requested").scrub_pending
        store.maintain(1.0)
    with hitherto.open(path, maintenance=False) as store:
        for id, data in zip(sent, images, strict=True):
            (block,) = store.message(id).blocks
            assert data in [getattr(block, name) for name in block.__struct_fields__]


# -- several processes


def test_nobody_vouches_for_what_others_removed_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hitherto.open(path, maintenance=False) as one, hitherto.open(path, maintenance=False) as other:
        first, second = by_turns(one), by_turns(one)
        real = erasure.vacuum

        def vacuum(pool: Pool) -> bool:
            done = real(pool)
            with monkeypatch.context() as patch:
                patch.setattr(Erasure, "advance", lambda *_: False)
                other.purge(second.id, reason="user-requested")
            return done

        with monkeypatch.context() as patch:
            patch.setattr(erasure, "vacuum", vacuum)
            assert not one.purge(first, reason="user-requested").scrub_pending  # its own text is gone
        assert not one.backend.is_scrubbed()
        assert other.scrub()
        assert other.backend.is_scrubbed()
        assert left(path) == []


def test_a_count_that_is_read_too_late_vouches_for_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    with hitherto.open(path, maintenance=False) as store, hitherto.open(path, maintenance=False) as other:
        first = by_turns(store)
        real = erasure.vacuum

        def vacuum(pool: Pool) -> bool:
            done = real(pool)
            with monkeypatch.context() as patch:
                patch.setattr(Erasure, "advance", lambda *_: False)
                for size in (20, 25, 30, 35, 40, 45):
                    other.purge(by_turns(other, size), reason="user-requested")
            return done

        def note(self: Erasure, column: str, counts: object) -> bool:
            with self._pool.lease() as connection:
                connection.execute(f"UPDATE workspace SET {column} = removals")
            return True

        monkeypatch.setattr(erasure, "vacuum", vacuum)
        monkeypatch.setattr(Erasure, "_note", note)
        store.purge(first, reason="user-requested")
        assert store.backend.is_scrubbed()  # which is not so
        assert left(path)


PURGER = """
import os, pathlib, random, subprocess, sys, time, hitherto
from hitherto import Message
from hitherto.backends.sqlite import erasure
path, seconds, small = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
erasure.SMALL = small
rnd, done, pending, bad = random.Random(os.getpid()), 0, 0, 0
with hitherto.open(path, maintenance=False) as store:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        word = f"unmistakable-{os.getpid()}-{done}-"
        goes, stays = store.start(title=word), store.start(title="stays")
        for n in range(rnd.randrange(3, 20)):
            goes.append(Message.user(word + "x" * rnd.randrange(1200)))
            stays.append(Message.user("kept " + "y" * rnd.randrange(1200)))
        report = store.purge(goes, reason="user-requested")
        gone = not report.scrub_pending or (small == 0 and store.scrub())
        done, pending = done + 1, pending + (not gone)
        if gone:  # read by another process: closing the file in this one would drop the locks that SQLite has on it
            bad += not subprocess.run(["grep", "-rqsaF", word, path.parent]).returncode
print(done, pending, bad)
"""


@pytest.mark.parametrize(("processes", "small"), [(2, 16 << 20), (4, 16 << 20), (3, 0)])
def test_processes_that_purge_at_once_leave_nothing_that_they_say_is_gone(
    path: Path, processes: int, small: int
) -> None:
    with hitherto.open(path, maintenance=False) as store:
        store.start()
        commands = [[sys.executable, "-c", PURGER, str(path), "3", str(small)]] * processes
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        found = [tuple(map(int, child.communicate(timeout=120)[0].split())) for child in children]
        assert sum(done - pending for done, pending, _ in found) > 0
        assert sum(bad for _, _, bad in found) == 0
        assert store.scrub()
        assert left(path) == []
        assert store.verify().ok
        assert store.backend.check() == []


def test_whoever_is_killed_before_it_leaves_it_to_the_next_open(path: Path) -> None:
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


def test_writers_beside_it_lose_nothing(path: Path, way: str) -> None:
    with hitherto.open(path, maintenance=False) as store:
        store.start()
        command = [sys.executable, "-c", WRITER, str(path), "3"]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        while any(writer.poll() is None for writer in writers):
            talk = store.start()
            talk.extend([Message.user(f"{WORD} {n}") for n in range(20)])
            store.purge(talk, reason="user-requested")
            store.maintain(0.1)
        said: dict[str, int] = {}
        for writer in writers:
            assert writer.stdout is not None
            _, id, count = writer.stdout.read().split()
            writer.stdout.close()
            said[id] = int(count)
        for id, many in said.items():
            texts = [message.text.split()[0] for message in store.conversation(id).thread()]
            assert texts == [str(n) for n in range(many)]
        assert store.scrub()
        assert store.verify().ok
        assert store.backend.check() == []
    assert left(path) == []


# -- in steps


class Stepping(SqliteBackend):
    """With every commit some steps of a rebuild are taken."""

    steps = 1
    rebuilds = 0

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        rebuild: Rebuild = self._erasure._steps
        rebuild._rows = dict.fromkeys((*_rebuild._FIRST, *_rebuild._THEN), 1)
        for _ in range(self.steps):
            Stepping.rebuilds += rebuild.go_on(0.0)
        return super().commit(batches)

    def scrub(self) -> bool:
        return self.maintain(60) and super().scrub()


@pytest.mark.usefixtures("in_steps")
class TestContract(BackendContract):
    """A backend that is being rebuilt all the time cannot be told from another."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        backend = Stepping(tmp_path / "store.db")
        backend.steps = 7
        yield backend
        backend.close()

    def test_it_is_rebuilt_again_and_again(self, backend: Backend) -> None:
        before = Stepping.rebuilds
        with Store(backend, maintenance=False) as store:
            for n in range(40):
                store.start().append(Message.user(str(n)))
        assert Stepping.rebuilds > before + 3


class Machine(BackendMachine):
    folder: Path

    def make(self) -> Backend:
        folder = Path(os.environ.get("HITHERTO_TEST_FOLDER", "/tmp"))
        return Stepping(folder / f"hitherto-machine-{os.urandom(8).hex()}" / "store.db")

    def teardown(self) -> None:
        if hasattr(self, "real"):
            assert isinstance(self.real, SqliteBackend)
            assert self.real.check() == []
            place = Path(self.real.info.location).parent
            super().teardown()
            for file in place.iterdir():
                file.unlink()
            place.rmdir()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


def test_each_step_may_be_the_last_of_a_process(path: Path) -> None:
    """Between any two steps the store is opened anew, read, written to and checked."""
    with hitherto.open(path, maintenance=False) as store:
        goes = by_turns(store)
        stays = store.start(title="attached")
        stays.append(Message.user([Block.image(os.urandom(400_000), "image/png")]))
        store.maintain()
        goes.append(Message.user(WORD))
        store.purge(goes, reason="user-requested")
        store.purge(by_turns(store), reason="user-requested")
        assert store.scrub()
        again = by_turns(store)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(erasure, "SMALL", 0)
            store.purge(again, reason="user-requested")
    steps, done, phases = 0, False, set()
    while not done:
        with hitherto.open(path, maintenance=False) as store:
            done = step(store)
            store.conversation(stays.id).append(Message.user(f"said {steps}"))
            phases.add(frozenset(name[-5:] for name in tables(path) if name.endswith((NEXT, OLD))))
            if steps % 7 == 0:
                assert store.verify().ok
                assert store.backend.check() == []
            steps += 1
            assert steps < 1000
    assert len(phases) >= 3
    with hitherto.open(path, maintenance=False) as store:
        said = [message.text for message in store.conversation(stays.id).thread()][1:]
        assert said == [f"said {n}" for n in range(steps)]
        assert store.scrub()
        assert store.verify().ok
        assert sum(len(c.thread()) for c in map(store.conversation, store.conversations().items)) == 600 + 1 + steps
    assert left(path) == []
    assert not [name for name in tables(path) if name.endswith((NEXT, OLD))]


def test_without_copying_again_what_changed_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of all that is said about writing meanwhile."""
    monkeypatch.setattr(_rebuild, "_find_changed", lambda *_: [])
    with hitherto.open(path, maintenance=False) as store:
        store.purge(by_turns(store), reason="user-requested")
        talk = store.start()
        talk.extend([Message.user(f"before {n}") for n in range(20)])
        while not any(name.startswith("message_") for name in tables(path)):
            assert not step(store)
        talk.extend([Message.user(f"meanwhile {n}") for n in range(20)])
        while not step(store):
            pass
        assert not store.verify().ok or store.backend.check()


def test_what_is_purged_during_a_rebuild_needs_another(store: Store, path: Path, in_steps: None) -> None:
    first, second = by_turns(store), by_turns(store)
    store.purge(first, reason="user-requested")
    while not any(name.startswith("message_") for name in tables(path)):
        assert not step(store)
    for _ in range(5):
        step(store)
    store.purge(second, reason="user-requested")
    while not step(store):
        pass
    assert not store.backend.is_scrubbed()
    assert store.scrub()
    assert store.backend.is_scrubbed()
    assert left(path) == []
    assert store.verify().ok


def test_what_is_made_and_purged_during_a_rebuild_is_gone(store: Store, path: Path, in_steps: None) -> None:
    """Its conversation is in none of the sets of tables when it is looked for what has changed."""
    attach(store)
    store.purge(by_turns(store), reason="user-requested")
    step_until(store, path, "message_next")
    talk = store.start(title=WORD)
    first = talk.extend([Message.user(f"{WORD} {n}") for n in range(20)])[0]
    talk.label(WORD, message=first)
    step_until(store, path, "chunk_next")
    store.purge(talk, reason="user-requested")
    while not step(store):
        pass
    assert store.backend.check() == []
    assert store.scrub()
    assert left(path) == []
    assert store.verify().ok
    store.start().append(Message.user("in its place"))


def test_what_is_attached_and_purged_during_a_rebuild_is_gone(
    store: Store, path: Path, in_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rebuild, "_CHANGED", 1)
    attach(store)
    store.purge(by_turns(store), reason="user-requested")
    step_until(store, path, "chunk_next")
    for _ in range(5):
        store.start().append(Message.user([Block.image(os.urandom(70_000), "image/png")]))
    talk = store.start()
    talk.append(Message.user([Block.image(WORD.encode() + os.urandom(70_000), "image/png")]))
    while rows(path, "chunk_next") < 100:
        assert not step(store)
    store.purge(talk, reason="user-requested")
    while not step(store):
        pass
    assert store.backend.check() == []
    assert store.scrub()
    assert left(path) == []
    assert store.verify().ok


def test_names_that_pass_to_others_during_a_rebuild_leave_nothing_behind(
    store: Store, path: Path, in_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is in the way of another one goes as a whole."""
    monkeypatch.setattr(_rebuild, "_CHANGED", 1)
    image = Message.user([Block.image(WORD.encode() + os.urandom(70_000), "image/png")])
    named, pictured = store.ensure("name", title=WORD), store.start()
    named.extend([Message.user(f"{WORD} {n}") for n in range(20)])
    sent = pictured.append(image)
    attach(store)
    store.purge(by_turns(store), reason="user-requested")
    step_until(store, path, "chunk_next")
    store.purge(named, reason="user-requested")
    store.ensure("name").append(Message.user("another"))
    store.delete([sent.id])
    again = store.conversation(pictured.id).append(image)
    while not step(store):
        pass
    assert store.backend.check() == []
    assert store.message(again.id).blocks == sent.blocks
    assert [message.text for message in store.ensure("name").thread()] == ["another"]
    store.purge(pictured, reason="user-requested")
    assert store.scrub()
    assert left(path) == []
    assert store.verify().ok


def test_a_trigger_that_somebody_planted_does_not_stop_it(path: Path, way: str) -> None:
    with hitherto.open(path, maintenance=False) as store:
        goes = by_turns(store).id
    foreign = apsw.Connection(str(path))
    foreign.execute("CREATE TRIGGER planted AFTER DELETE ON message BEGIN SELECT 1; END")
    foreign.close()
    with hitherto.open(path, maintenance=False) as store:
        store.purge(goes, reason="user-requested")
        assert store.scrub()
        assert store.verify().ok
        assert store.backend.check() == []
    assert left(path) == []


def test_a_backup_has_nothing_of_a_rebuild(store: Store, path: Path, tmp_path: Path, in_steps: None) -> None:
    first, second = by_turns(store), by_turns(store)
    store.purge(first, reason="user-requested")
    while not any(name.endswith(OLD) for name in tables(path)):
        assert not step(store)
    store.purge(second, reason="user-requested")  # it is in the old tables still
    (tmp_path / "other").mkdir()
    copy = tmp_path / "other" / "copy.db"
    store.backup(copy)
    assert left(copy) == []
    assert not [name for name in tables(copy) if name.endswith((NEXT, OLD))]
    with hitherto.open(copy, maintenance=False) as other:
        assert other.backend.is_scrubbed()
        assert other.verify().ok


def test_without_room_nothing_is_begun_and_what_was_begun_is_given_up(
    store: Store, path: Path, in_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.purge(by_turns(store), reason="user-requested")
    with monkeypatch.context() as patch:
        patch.setattr(_rebuild, "free_bytes", lambda _: 0)
        assert not store.scrub()
        assert not [name for name in tables(path) if name.endswith(NEXT)]
    while not any(name.startswith("message_") for name in tables(path)):
        assert not step(store)
    assert [name for name in tables(path) if name.endswith(NEXT)]
    with monkeypatch.context() as patch:
        patch.setattr(_rebuild, "free_bytes", lambda _: 0)
        assert not store.scrub()
        assert not [name for name in tables(path) if name.endswith(NEXT)]
    assert not store.backend.is_scrubbed()
    assert store.scrub()
    assert left(path) == []
    assert store.verify().ok


@pytest.mark.parametrize("table", ["message_next", "chunk_next", "message_old"])
def test_a_migration_during_a_rebuild_lets_it_begin_again(
    path: Path, in_steps: None, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    with hitherto.open(path, maintenance=False) as store:
        attach(store)
        store.purge(by_turns(store), reason="user-requested")
        step_until(store, path, table)
    more = ("one more", ("ALTER TABLE message ADD COLUMN more INTEGER",))
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS, more))
    with hitherto.open(path, maintenance=False) as store:
        assert isinstance(store.backend, SqliteBackend)
        assert store.backend.pragmas(["foreign_keys"]) == {"foreign_keys": 1}
        assert store.scrub()
        assert store.verify().ok
        assert store.backend.check() == []
    assert left(path) == []


def test_maintenance_erases_a_large_store_by_and_by(path: Path, in_steps: None) -> None:
    with hitherto.open(path) as store:
        report = store.purge(by_turns(store), reason="user-requested")
        assert report.scrub_pending
        deadline = time.monotonic() + 60
        while not store.backend.is_scrubbed() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left(path) == []


def test_an_item_that_makes_way_for_a_message_calls_for_nothing(store: Store) -> None:
    """A recorder does that with every answer."""
    assert store.backend.is_scrubbed()
    talk = store.start()
    talk.append(Message.user("asked"))
    talk.append(Message.assistant("answered"))
    talk.rename("another title")
    assert store.backend.is_scrubbed()
    store.delete([talk.thread()[-1].id])
    assert not store.backend.is_scrubbed()
