"""A disk that is full (D14): reading goes on, writing says what to do, purging works, and then writing goes on.

The disk is a real one, a few megabytes in memory, filled to the last byte by a file of somebody else's. Where mounting
is not allowed, `test_power_cut` still asks most of this of the simulated disk.
"""

import contextlib
import os
import random
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import openai
import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Store
from hitherto._engine import compression
from hitherto.backends import sqlite
from hitherto.backends.sqlite import disk_space
from hitherto.backends.sqlite.ballast import LEAST, MOST, Ballast
from hitherto.errors import StorageFull
from hitherto.events import CapacityWarning, Event
from hitherto.testing.faultdisk import FaultDisk

from ..support.provider import Asked, Json, chat_answer, provider
from ..support.thorough import THOROUGH
from ..support.waiting import until

SECRET = "unspeakable"
KEY = Key(bytes(range(32)))


class Disk:
    """A small disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "chats.db"
        self.ballast = folder / "chats.db-ballast"

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bfree * found.f_frsize

    def fill(self) -> None:
        """Not a byte is free."""
        with open(self.folder / "of others", "ab", buffering=0) as file:
            for size in (1 << 16, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue
        assert self.free == 0

    def make_room(self) -> None:
        (self.folder / "of others").unlink()

    def holding(self, needle: str) -> list[str]:
        """The files that hold it."""
        return [file.name for file in self.folder.iterdir() if needle.encode() in file.read_bytes()]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.decode().strip()}")
    monkeypatch.setattr(compression, "_MIN_BYTES", 1 << 40)  # what is squeezed leaves no traces that a test could find
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # also if a test that failed has files open


def say(talk: Conversation, word: str, count: int, size: int = 30) -> None:
    for number in range(count):
        talk.append(Message.user(" ".join(f"{word}{number}" for _ in range(size))))


def say_until_full(talk: Conversation, size: int = 300) -> StorageFull:
    for number in range(1_000_000):
        try:
            talk.append(Message.user(" ".join(f"more{number}" for _ in range(size))))
        except StorageFull as error:
            return error
    raise AssertionError("it does not become full")


def texts(talk: Conversation) -> list[str]:
    return [message.text for message in talk.thread()]


def without_ballast(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.ballast.unlink(missing_ok=True)
    monkeypatch.setattr(Ballast, "lay", lambda *_: False)


# -- what goes on, and what does not


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_reading_goes_on_and_the_error_says_what_to_do(disk: Disk, key: Key | None) -> None:
    with hitherto.open(disk.store, key=key) as store:
        talk = store.start(title="kept")
        say(talk, "kept", 20)
        assert len(store.search("kept7")) == 1
        say(talk, "later", 20)
        disk.fill()
        refused = say_until_full(talk)
        assert str(disk.store) in str(refused)
        assert "0 bytes are free" in str(refused)
        assert "acknowledged is lost" in str(refused.hint)
        assert "purge" in str(refused.hint)
        with pytest.raises(StorageFull):
            store.start(title="another " * 1000)
        said = texts(talk)
        assert len(store.search("kept7")) == 1
        assert len(store.search("later7")) == 1  # which the index has not, and has no room for
        assert [info.title for info in store.conversations().items] == ["kept"]
        assert store.verify().ok
        with hitherto.open(disk.store, key=key) as other:
            assert texts(other.conversation(talk.id)) == said
        disk.make_room()
        talk.append(Message.user("on"))
        assert texts(talk) == [*said, "on"]


CASES = ["many messages", "long messages", "an attachment"]


def filled(disk: Disk, store: Store, case: str) -> tuple[Conversation, Conversation]:
    """A conversation that stays and one that goes, said by turns, and a disk that is full."""
    stays, goes = store.start(title="stays"), store.start(title=SECRET)
    size = 3000 if case == "long messages" else 30
    for talk, word in ((stays, "fine-"), (goes, SECRET), (stays, "well-")):
        say(talk, word, 60, size)
    if case == "an attachment":
        image = SECRET.encode() * (10_000_000 // len(SECRET))
        goes.append(Message.user([Block.image(image, "image/png")]))
    store.scrub()
    disk.fill()
    say_until_full(stays, size)
    return stays, goes


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("case", CASES)
def test_a_purge_on_a_full_disk_makes_room_and_writing_goes_on(disk: Disk, case: str, key: Key | None) -> None:
    # Without maintenance in the background, which would write into the last pages that are free at a moment of its own.
    with (
        hitherto.open(disk.store, key=key, maintenance=False) as store,
        hitherto.open(disk.store, key=key, maintenance=False) as other,
    ):
        stays, goes = filled(disk, store, case)
        said, elsewhere = texts(stays), other.conversation(stays.id)
        assert bool(disk.holding(SECRET)) == (key is None)
        report = store.purge(goes, reason="user-requested")
        assert report.purged_count == 1
        assert not report.scrub_pending or disk.free < disk.store.stat().st_size * 2  # no room to write it anew
        assert disk.free > 0
        assert disk.ballast.stat().st_size >= LEAST  # for the next time
        stays.append(Message.user("here"))
        elsewhere.append(Message.user("there"), on_conflict="follow")
        assert texts(store.conversation(stays.id)) == [*said, "here", "there"]
        assert store.verify().ok
        assert not report.scrub_pending or not store.backend.is_scrubbed()
        disk.make_room()
        assert store.scrub()
        assert disk.holding(SECRET) == []
        assert store.verify().ok
    with hitherto.open(disk.store, key=key) as store:
        assert store.verify().ok
        assert len(store.conversations().items) == 1


@pytest.mark.parametrize("seed", range(48) if THOROUGH else range(0, 48, 12))
def test_no_purge_is_refused_whenever_others_fill_the_disk(disk: Disk, seed: int) -> None:
    """Other programs fill the disk while the WAL holds between nothing and a megabyte that makes the store larger, and
    once more after each purge."""
    chosen = random.Random(seed)
    with hitherto.open(disk.store, maintenance=False) as store:
        talks = [store.start() for _ in range(3)]
        for _ in range(chosen.randint(1, 250)):
            size = chosen.choice((10, 300, 3000))
            chosen.choice(talks).append(Message.user(chosen.randbytes(size).hex()))
        for talk in talks:
            disk.fill()
            assert store.purge(talk, reason="user-requested").purged_count == 1
        assert store.verify().ok


def test_without_the_ballast_nothing_can_be_purged(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    with hitherto.open(disk.store) as store:
        without_ballast(disk, monkeypatch)
        _, goes = filled(disk, store, "many messages")
        with pytest.raises(StorageFull):
            store.purge(goes, reason="user-requested")
        assert store.verify().ok


def test_removing_that_overwrites_all_would_not_fit(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of `secure_delete = FAST`: ten megabytes that go would have to be written once more."""
    monkeypatch.setattr("hitherto.backends.sqlite.disk_space.sparing_writes", contextlib.nullcontext)
    with hitherto.open(disk.store) as store:
        _, goes = filled(disk, store, "an attachment")
        with pytest.raises(StorageFull):
            store.purge(goes, reason="user-requested")


def test_messages_can_be_deleted_on_a_full_disk(disk: Disk) -> None:
    with hitherto.open(disk.store) as store:
        stays, goes = filled(disk, store, "long messages")
        store.delete([message.id for message in goes.thread()][1:2], recursive=True)
        assert len(store.conversation(goes.id).thread()) == 1
        assert disk.free > 0
        stays.append(Message.user("on"))
        assert store.verify().ok


def test_purging_again_and_again_works_as_long_as_there_is_something(disk: Disk) -> None:
    """Each time the disk is filled to the brim; the ballast comes back each time."""
    with hitherto.open(disk.store) as store:
        talks = [store.start() for _ in range(6)]
        for talk in talks:
            say(talk, SECRET, 20, 400)
        for talk in talks[:-1]:
            disk.fill()
            store.purge(talk, reason="user-requested")
            assert disk.ballast.stat().st_size >= LEAST
            say_until_full(talks[-1], 100)
        assert store.verify().ok
        assert len(store.conversations().items) == 1
        disk.make_room()
        assert store.scrub()
        store.purge(talks[-1], reason="user-requested")
        assert disk.holding(SECRET) == []


def test_what_was_staged_in_vain_gives_its_room_back(disk: Disk) -> None:
    """An attachment that does not fit leaves nothing behind: in a conversation, and as the beginning of one."""
    image = Block.image(os.urandom(23_000_000), "image/png")
    with hitherto.open(disk.store) as store:
        talk = store.start()
        before = disk.free
        for write in (lambda: talk.append(Message.user([image])), lambda: store.save([Message.user([image])])):
            with pytest.raises(StorageFull):
                write()
            assert store.scrub()
            assert disk.free > before - 1_000_000
        talk.append(Message.user("on"))
        assert store.used_bytes < 1000
        assert store.verify().ok


def test_a_purge_among_writes_that_have_no_room_is_done(disk: Disk) -> None:
    """Threads that write together are committed together: those who append must not take the purge down with them."""
    with hitherto.open(disk.store) as store:
        stays, goes = filled(disk, store, "long messages")
        errors: list[Exception] = []
        begin = threading.Barrier(9)

        def append() -> None:
            begin.wait()
            for _ in range(5):
                try:
                    stays.append(Message.user("word " * 3000), on_conflict="follow")
                except StorageFull as error:
                    errors.append(error)

        threads = [threading.Thread(target=append) for _ in range(8)]
        for thread in threads:
            thread.start()
        begin.wait()
        assert store.purge(goes, reason="user-requested").purged_count == 1
        for thread in threads:
            thread.join()
        assert store.verify().ok


# -- opening


def test_a_store_can_be_opened_on_a_full_disk_and_purged(disk: Disk) -> None:
    with hitherto.open(disk.store) as store:
        stays, goes = filled(disk, store, "long messages")
        said = texts(stays)
        disk.make_room()
    assert not Path(f"{disk.store}-shm").exists()
    disk.fill()
    with hitherto.open(disk.store) as store:
        assert texts(store.conversation(stays.id)) == said
        store.purge(goes.id, reason="user-requested")
        store.conversation(stays.id).append(Message.user("on"))
        assert store.verify().ok
        assert disk.ballast.stat().st_size >= LEAST
    disk.make_room()
    with hitherto.open(disk.store, maintenance=False) as store:
        assert store.scrub()
    assert disk.holding(SECRET) == []


def test_without_the_ballast_a_store_cannot_even_be_opened(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control; and reading only needs no room at all."""
    with hitherto.open(disk.store) as store:
        stays, _ = filled(disk, store, "long messages")
        disk.make_room()
    without_ballast(disk, monkeypatch)
    disk.fill()
    with pytest.raises(StorageFull):
        hitherto.open(disk.store)
    with hitherto.open(disk.store, read_only=True) as store:
        assert store.conversation(stays.id).thread()


# -- the search index


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_words_leave_the_search_index_on_a_full_disk_too(disk: Disk, key: Key | None) -> None:
    with hitherto.open(disk.store, key=key) as store:
        stays, goes = store.start(), store.start()
        for number in range(200):
            goes.append(Message.user(" ".join(f"{SECRET}{number}x{n}" for n in range(40))))
        say(stays, "fine", 200)
        assert store.search("fine7")
        disk.fill()
        say_until_full(stays)
        store.purge(goes, reason="user-requested")
        disk.fill()  # nobody leaves us more than what is set aside
        store.scrub()  # the words need no room to go, the store needs some to be written anew
        until(lambda: not [name for name in disk.holding(SECRET) if "-search" in name])  # maintenance is at it too
        assert store.search(f"{SECRET}7x7") == []
        assert len(store.search("fine7")) == 1
        disk.make_room()
        assert len(store.search("fine7")) == 1
        deadline = time.monotonic() + 20
        while not store.scrub() and time.monotonic() < deadline:  # maintenance is at it as well
            time.sleep(0.01)
        assert store.scrub()
        assert disk.holding(SECRET) == []


def test_the_search_index_does_not_take_what_a_purge_has_given_back(disk: Disk) -> None:
    with hitherto.open(disk.store, maintenance=False) as store:
        stays, goes = store.start(), store.start()
        say(stays, "fine", 20)
        assert store.search("fine7")  # there is an index from now on, and the rest is not in it
        say(goes, "long", 300)
        disk.fill()
        say_until_full(stays)
    (disk.folder / "more of others").write_bytes(bytes(disk.free - 200_000))  # the ballast gave that back at the end
    with hitherto.open(disk.store) as store:
        store.purge(goes.id, reason="user-requested")
        store.maintain()
        until(lambda: disk.free)  # maintenance in the background may be at it
        free = disk.free
    index = sum(file.stat().st_size for file in disk.folder.glob("*-search*"))
    assert index < 200_000
    assert free > 0
    assert disk.free >= free


# -- what interrupts it


def test_a_reader_delays_the_last_step_and_maintenance_finishes_it(disk: Disk) -> None:
    with hitherto.open(disk.store, maintenance=False) as store:
        stays, goes = filled(disk, store, "many messages")
        reader = apsw.Connection(str(disk.store), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        assert store.purge(goes, reason="user-requested").scrub_pending
        assert disk.holding(SECRET)
        assert not disk.ballast.exists()  # the mark that there is something to do
        reader.execute("ROLLBACK")
        reader.close()
        with contextlib.suppress(StorageFull):  # there may be no room to pack what is there
            store.maintain()
        assert disk.holding(SECRET) == []
        assert disk.ballast.stat().st_size >= LEAST
        stays.append(Message.user("on"))
        assert store.verify().ok


STEPS = ("give_up", "removed", "emptied", "laid")


@pytest.mark.parametrize("step", STEPS)
def test_whoever_is_killed_in_the_middle_leaves_it_to_the_next(disk: Disk, step: str) -> None:
    with hitherto.open(disk.store, maintenance=False) as store:
        stays, goes = filled(disk, store, "long messages")
        said = texts(stays)
    disk.fill()
    child = os.fork()
    if child == 0:
        _purge_until(disk, goes.id, step)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with hitherto.open(disk.store) as store:
        assert texts(store.conversation(stays.id)) == said
        assert store.verify().ok
        there = [info.id for info in store.conversations().items]
        if goes.id in there:
            assert step in ("give_up", "emptied")  # both come before it, too
            store.purge(goes.id, reason="user-requested")
        store.scrub()
        until(lambda: disk.holding(SECRET) == [])  # maintenance is at it as well
        assert disk.ballast.stat().st_size >= LEAST
        store.conversation(stays.id).append(Message.user("on"))


def _purge_until(disk: Disk, id: str, step: str) -> None:
    """Purge, and be killed after this step."""
    places: dict[str, tuple[object, str]] = {
        "give_up": (Ballast, "give_up"),
        "removed": (sqlite.SqliteBackend, "_transact"),
        "emptied": (disk_space, "empty_wal"),
        "laid": (Ballast, "lay"),
    }
    try:
        store = hitherto.open(disk.store, maintenance=False)
        where, name = places[step]
        call = getattr(where, name)

        def dying(*given: object, **how: object) -> None:
            call(*given, **how)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(where, name, dying)
        store.purge(id, reason="user-requested")
    finally:
        os._exit(1)


def test_that_the_ballast_is_gone_is_durable_before_anything_is_removed_without_overwriting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power cut could bring the mark back, and free pages would keep what was on them."""
    (tmp_path / "disk").mkdir()
    with FaultDisk(tmp_path / "disk") as simulated:
        monkeypatch.setattr(os, "fsync", simulated.fsync)
        given: list[int] = []
        unlink = os.unlink

        def noticed(path: str) -> None:
            unlink(path)
            given.append(simulated.operations)

        with hitherto.open(tmp_path / "disk" / "chats.db", vfs=simulated.name) as store:
            goes = store.start()
            say(goes, SECRET, 20, 300)
            simulated.capacity = simulated.used
            say_until_full(goes, 3000)
            monkeypatch.setattr(os, "unlink", noticed)
            store.purge(goes, reason="user-requested")
        after = simulated.log[given[0]]
        assert (after.kind, after.directory) == ("sync", True)


def test_several_processes_purge_on_a_full_disk_at_the_same_time(disk: Disk) -> None:
    with hitherto.open(disk.store) as store:
        stays = store.start()
        talks = [store.start() for _ in range(4)]
        for number in range(30):
            for talk in talks:
                say(talk, f"{SECRET}-{number}-", 1, 500)
        ids = [talk.id for talk in talks]
    disk.fill()
    children = []
    for id in ids:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with hitherto.open(disk.store) as own:
                    own.purge(id, reason="user-requested")
                    own.conversation(stays.id).append(Message.user(id), on_conflict="follow")
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    with hitherto.open(disk.store) as store:
        assert sorted(texts(store.conversation(stays.id))) == sorted(ids)
        assert store.verify().ok
        assert store.scrub()
        assert disk.holding(SECRET) == []


# -- the ballast itself


def test_the_ballast_is_private_and_real(disk: Disk) -> None:
    with hitherto.open(disk.store):
        found = disk.ballast.stat()
        assert found.st_size == MOST
        assert found.st_blocks * 512 >= MOST  # no hole
        assert stat.S_IMODE(found.st_mode) == 0o600


def test_beside_a_store_that_nobody_has_open_the_ballast_is_an_eighth_of_it(disk: Disk) -> None:
    with hitherto.open(disk.store) as store:
        store.start().append(Message.user([Block.image(os.urandom(4_000_000), "image/png")]))
    assert LEAST < disk.ballast.stat().st_size == disk.store.stat().st_size // 8


def test_where_little_is_free_most_of_it_is_left_to_those_who_write(disk: Disk) -> None:
    (disk.folder / "of others").write_bytes(bytes(disk.free - 2_000_000))
    with hitherto.open(disk.store):
        assert LEAST < disk.ballast.stat().st_size < 500_000


def test_who_does_not_remove_gives_the_whole_ballast_back(disk: Disk) -> None:
    """The WAL can be moved with the help of the ballast. That is no reason to write on until there is none."""
    with hitherto.open(disk.store, maintenance=False) as store:
        talk = store.start()
        say(talk, "word", 30, 3000)
        disk.fill()
        say_until_full(talk)
        assert disk.ballast.stat().st_size == MOST


@pytest.mark.parametrize("what", ["a link", "a folder", "read-only"])
def test_what_lies_in_the_place_of_the_ballast_is_left_alone(disk: Disk, what: str) -> None:
    precious = disk.folder / "precious"
    precious.write_bytes(b"of somebody else")
    if what == "a link":
        disk.ballast.symlink_to(precious)
    elif what == "a folder":
        disk.ballast.mkdir()
    else:
        disk.ballast.write_bytes(bytes(LEAST))
        disk.ballast.chmod(0o400)
    with hitherto.open(disk.store) as store:
        _, goes = filled(disk, store, "long messages")
        if what == "read-only":
            store.purge(goes, reason="user-requested")
        else:
            with pytest.raises(StorageFull):
                store.purge(goes, reason="user-requested")
        assert store.verify().ok
    assert precious.read_bytes() == b"of somebody else"


def test_a_store_without_ballast_gets_one(disk: Disk) -> None:
    """One that was made by an earlier version, or whose owner tidied up."""
    with hitherto.open(disk.store) as store:
        goes = store.start()
        say(goes, "word", 50, 300)
        store.purge(goes, reason="user-requested")
    disk.ballast.unlink()
    with hitherto.open(disk.store):
        assert disk.ballast.stat().st_size == MOST


def test_beside_a_small_store_that_nobody_has_open_the_ballast_is_folded(disk: Disk) -> None:
    with hitherto.open(disk.store) as store:
        say(store.start(), "word", 5)
        assert disk.ballast.stat().st_size == MOST
        hitherto.open(disk.store).close()
        assert disk.ballast.stat().st_size == MOST  # somebody has it open still
    assert 0 < disk.ballast.stat().st_size < LEAST // 8
    with hitherto.open(disk.store) as store:
        say(store.start(), "word", 5)
        assert disk.ballast.stat().st_size == MOST  # whoever writes lays it down again
        store.start().append(Message.user(os.urandom(500_000).hex()))
    assert disk.ballast.stat().st_size == LEAST  # beside a larger one more of it stays


# -- who is told


def test_that_the_disk_is_full_is_told_once_until_it_passes(disk: Disk) -> None:
    with hitherto.open(disk.store, maintenance=False) as store:
        heard: list[Event] = []
        store.subscribe(heard.append)
        talk = store.start()
        for _ in range(2):
            disk.fill()
            for _ in range(3):
                with pytest.raises(StorageFull):
                    talk.append(Message.user("word " * 100_000))
            disk.make_room()
            talk.append(Message.user("on"))
        assert store.wait_for_listeners()
        told = [event for event in heard if isinstance(event, CapacityWarning)]
        assert [event.what for event in told] == ["disk", "disk"]
        assert all(0.9 * event.limit_bytes < event.used_bytes <= event.limit_bytes for event in told)


def test_that_nothing_is_set_aside_any_more_is_told(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    with hitherto.open(disk.store, maintenance=False) as store:
        heard: list[Event] = []
        store.subscribe(heard.append)
        say(store.start(), "word", 10)
        store.scrub()
        disk.ballast.unlink()
        disk.fill()
        for _ in range(2):
            store.engine.quota.look_at_disk()
        assert store.wait_for_listeners()
        assert [event.what for event in heard if isinstance(event, CapacityWarning)] == ["disk"]
        assert "set aside" in caplog.text
        disk.make_room()
        store.maintain()
        assert disk.ballast.stat().st_size == MOST


# -- the recorder


def test_an_answer_that_finds_no_room_is_held_and_kept_after_a_purge(disk: Disk) -> None:
    """C10: the disk fills while the model answers. The next question keeps both, by itself."""
    with hitherto.open(disk.store, maintenance=False) as store:  # which would make room meanwhile
        goes = store.start()
        say(goes, SECRET, 30, 3000)

        def answer(_: Asked) -> Json:
            if len(server.asked) == 1:
                disk.fill()
                say_until_full(goes, 1)
            return chat_answer(f"a{len(server.asked)} " * 2000)

        with provider(answer) as server:
            sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
            hitherto.record(sdk, store)
            said: list[Any] = [{"role": "user", "content": "one"}]
            given = sdk.chat.completions.create(model="m", messages=said).choices[0].message
            assert str(given.content).startswith("a1")
            recording = hitherto.recording(sdk)
            assert recording is not None
            assert recording.pending == 1
            talk = next(store.conversation(info) for info in store.conversations().items if info.id != goes.id)
            assert [message.text for message in talk.thread()] == ["one"]
            store.purge(goes, reason="user-requested")
            said += [{"role": "assistant", "content": given.content}, {"role": "user", "content": "two"}]
            sdk.chat.completions.create(model="m", messages=said)
        talk = store.conversation(talk.id)
        assert [message.text[:3] for message in talk.thread()] == ["one", "a1 ", "two", "a2 "]
        assert recording.pending == 0
        assert store.verify().ok
