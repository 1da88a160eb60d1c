"""The fault disk, tried on bare SQLite: it must let FULL pass and must catch NORMAL and OFF."""

import os
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hitherto.testing.faultdisk import FaultDisk, Mode

COMMITS = 60


def connect(disk: FaultDisk, synchronous: str = "FULL") -> apsw.Connection:
    connection = apsw.Connection(str(disk.directory / "db"), vfs=disk.name)
    connection.set_busy_timeout(10_000)
    connection.pragma("journal_mode", "WAL")
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", 20)
    return connection


def work(disk: FaultDisk, synchronous: str = "FULL", commits: int = COMMITS) -> None:
    with closing(connect(disk, synchronous)) as connection:
        connection.execute("create table if not exists turn(id integer primary key, body text)")
        for number in range(commits):
            connection.execute("insert into turn values(?, ?)", (number, f"turn {number} " + "x" * 700))
            disk.mark(str(number))
    # The second life of the database comes after a close, which deletes the WAL without a directory sync.
    with closing(connect(disk, synchronous)) as connection:
        for number in range(commits, commits + 5):
            connection.execute("insert into turn values(?, ?)", (number, f"turn {number}"))
            disk.mark(str(number))


def found(directory: Path) -> set[str]:
    """The rows that an image holds, after SQLite's own recovery; an image without a table holds none."""
    with closing(apsw.Connection(str(directory / "db"))) as connection:
        assert connection.pragma("integrity_check") == "ok"
        if not connection.table_exists("main", "turn"):
            return set()
        return {str(row[0]) for row in connection.execute("select id from turn")}


def lost(disk: FaultDisk, mode: Mode, into: Path, seed: int = 0) -> tuple[int, int]:
    """How many crash points lost an acknowledged row, and how many were corrupt."""
    losing = corrupt = 0
    for number, directory in disk.images(mode, into, seed=seed):
        try:
            losing += not found(directory).issuperset(disk.acknowledged_at(number))
        except (apsw.Error, AssertionError):
            corrupt += 1
    return losing, corrupt


@pytest.fixture
def disk(place: Path) -> FaultDisk:
    (place / "live").mkdir()
    return FaultDisk(place / "live")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("mode", ["none", "all", "random", "torn"])
def test_full_keeps_every_acknowledged_row_at_every_crash_point(
    disk: FaultDisk, place: Path, mode: Mode, seed: int
) -> None:
    with disk:
        work(disk)
    assert disk.operations > 300
    assert lost(disk, mode, place / "images", seed) == (0, 0)


@pytest.mark.parametrize("mode", ["none", "random", "torn"])
def test_normal_loses_acknowledged_rows_but_is_never_corrupt(disk: FaultDisk, place: Path, mode: Mode) -> None:
    with disk:
        work(disk, "NORMAL")
    losing, corrupt = lost(disk, mode, place / "images")
    assert losing > 50
    assert corrupt == 0


@pytest.mark.parametrize("mode", ["none", "random", "torn"])
def test_off_loses_acknowledged_rows(disk: FaultDisk, place: Path, mode: Mode) -> None:
    with disk:
        work(disk, "OFF")
    losing, corrupt = lost(disk, mode, place / "images")
    assert losing > 50
    assert (corrupt > 0) == (mode != "none")


def test_a_killed_process_loses_nothing_even_when_off(disk: FaultDisk, place: Path) -> None:
    with disk:
        work(disk, "OFF")
    assert lost(disk, "all", place / "images") == (0, 0)


def test_the_last_image_with_everything_kept_is_the_live_directory(disk: FaultDisk, place: Path) -> None:
    with disk:
        work(disk)
        image = disk.image(disk.operations, "all", place / "images")
        assert sorted(os.listdir(image)) == sorted(os.listdir(disk.directory)) == ["db"]
        assert (image / "db").read_bytes() == (disk.directory / "db").read_bytes()


def test_images_are_the_same_for_the_same_seed_and_differ_for_others(disk: FaultDisk, place: Path) -> None:
    def content(into: str, seed: int) -> dict[str, bytes]:
        image = disk.image(at, "torn", place / into, seed=seed)
        return {path.name: path.read_bytes() for path in image.iterdir()}

    with disk:
        work(disk, "OFF")
    at = disk.operations // 2
    assert content("one", 7) == content("two", 7) != content("three", 8)
    with pytest.raises(ValueError, match="no operation"):
        disk.image(disk.operations + 1, "none", place)


def test_a_disk_that_saw_nothing_proves_nothing(disk: FaultDisk, place: Path) -> None:
    with disk:
        apsw.Connection(str(disk.directory / "db")).close()
    with pytest.raises(ValueError, match="nothing was done"):
        next(disk.images("none", place / "images"))
    with pytest.raises(ValueError, match="nothing was done"):
        disk.traces(b"needle")


def test_a_file_that_was_there_before_is_durable(disk: FaultDisk, place: Path) -> None:
    with closing(apsw.Connection(str(disk.directory / "db"))) as connection:
        connection.execute("create table turn(id, body)")
        connection.execute("insert into turn values('before', null)")
    with disk:
        connect(disk, "OFF").close()
    assert disk.log[0].kind == "adopt"
    for number, directory in disk.images("none", place / "images", first=1):
        assert found(directory) == {"before"}, number


def test_a_deletion_without_directory_sync_may_be_undone(disk: FaultDisk, place: Path) -> None:
    with disk:
        work(disk, commits=5)
        assert disk.log[-1].kind == "delete"
        assert not (disk.directory / "db-wal").exists()
        assert (disk.image(disk.operations, "none", place / "before") / "db-wal").exists()
        descriptor = os.open(disk.directory, os.O_RDONLY)
        disk.fsync(descriptor)
        os.close(descriptor)
        assert not (disk.image(disk.operations, "none", place / "after") / "db-wal").exists()


def test_a_purge_is_only_done_when_the_truncated_wal_is_synced(
    disk: FaultDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", disk.fsync)
    with disk, closing(connect(disk)) as connection:
        connection.pragma("secure_delete", "ON")
        connection.execute("create table turn(id integer primary key, body text)")
        connection.execute("insert into turn values(1, 'the secret word')")
        connection.execute("delete from turn")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        assert (disk.directory / "db-wal").stat().st_size == 0
        # The checkpoint has cut the live WAL to nothing, but has not synced it: the word may come back.
        assert disk.traces(b"secret word")[-1] == disk.operations
        descriptor = os.open(disk.directory / "db-wal", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        assert disk.traces(b"secret word")[-1] < disk.operations


def test_a_full_disk_refuses_the_commit_and_keeps_the_rest(disk: FaultDisk, place: Path) -> None:
    def fill(connection: apsw.Connection) -> None:
        for number in range(1000):
            connection.execute("insert into turn values(?, ?)", (number, "x" * 700))
            disk.mark(str(number))

    with disk, closing(connect(disk)) as connection:
        connection.execute("create table turn(id integer primary key, body text)")
        disk.capacity = disk.used + 20_000
        with pytest.raises(apsw.FullError):
            fill(connection)
        assert disk.used <= disk.capacity
        assert 0 < len(disk.marks) < 1000
        disk.heal()
        connection.execute("insert into turn values(1000, '')")
        disk.mark("1000")
    modes: tuple[Mode, ...] = ("none", "random", "torn")
    for mode in modes:
        assert lost(disk, mode, place / "images") == (0, 0)


def test_a_purge_is_also_done_when_the_next_commit_syncs_the_wal(disk: FaultDisk) -> None:
    with disk, closing(connect(disk)) as connection:
        connection.pragma("secure_delete", "ON")
        connection.execute("create table turn(id integer primary key, body text)")
        connection.execute("insert into turn values(1, 'the secret word')")
        connection.execute("delete from turn")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.execute("insert into turn values(2, 'purged')")
        disk.mark("purged")
    assert disk.traces(b"secret word")[-1] < disk.marks[0][0]


def test_one_io_error_anywhere_loses_nothing_acknowledged(place: Path) -> None:
    operation = 0
    while True:
        operation += 1
        (place / f"live{operation}").mkdir()
        with FaultDisk(place / f"live{operation}") as disk:
            disk.fail(operation)
            try:
                work(disk, commits=12)
            except apsw.IOError:
                pass
            else:
                if disk.operations < operation:
                    return
        assert disk.log[operation - 1].kind == "failed"
        image = disk.image(disk.operations, "none", place / f"image{operation}")
        assert found(image).issuperset(disk.acknowledged_at(disk.operations)), operation


def test_a_machine_that_is_off_stays_off(disk: FaultDisk) -> None:
    with disk:
        connection = connect(disk)
        connection.execute("create table turn(id integer primary key, body text)")
        disk.fail(disk.operations + 3, lasting=True)
        for number in range(3):
            with pytest.raises(apsw.IOError):
                connection.execute("insert into turn values(?, 'x')", (number,))
        with pytest.raises(apsw.IOError):
            connection.close()
        disk.heal()


def test_threads_share_one_disk(disk: FaultDisk, place: Path) -> None:
    def insert(worker: int) -> None:
        with closing(connect(disk)) as connection:
            for number in range(15):
                connection.execute("insert into turn values(?, ?)", (worker * 100 + number, "x" * 700))
                disk.mark(str(worker * 100 + number))

    with disk:
        with closing(connect(disk)) as connection:
            connection.execute("create table turn(id integer primary key, body text)")
        threads = [threading.Thread(target=insert, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(disk.marks) == 60
    assert lost(disk, "torn", place / "images") == (0, 0)
