"""Upkeep: when a store looks after itself, and what others notice of it (nothing). D15."""

import gc
import logging
import os
import random
import threading
import time
import weakref
from pathlib import Path

import pytest

import hitherto
from hitherto import Message, Store
from hitherto._erasure import maintenance
from hitherto.backends.sqlite import SqliteBackend
from hitherto.errors import StorageError
from hitherto.ids import RUN
from tests.support.parts import background_of

from ..support.patience import SOON
from ..support.waiting import until


def loose(store: Store) -> int:
    """Full runs that are not packed."""
    return len(store.backend.loose(full=True, limit=10_000))


def fill(store: Store, messages: int) -> hitherto.Conversation:
    talk = store.start()
    talk.extend([Message.user(f"message {n} of many") for n in range(messages)])
    return talk


def file_size(path: Path) -> int:
    """Of the store, without the space that is set aside beside it."""
    files = (file for file in path.parent.iterdir() if file.name.startswith(path.name))
    return sum(file.stat().st_size for file in files if not file.name.endswith("-ballast"))


def test_maintenance_tells_how_far_it_is(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "a.db", maintenance=False) as store:
        store.search("nothing")
        talk = store.start()
        for _ in range(7):  # not at once: full runs would be packed as they are written
            talk.extend([Message.user("a word")] * 10)
        heard: list[tuple[str, int]] = []
        did = store.maintain(progress=lambda what, done: heard.append((what, done)))
    assert [("packing", did.packed), ("indexing", did.indexed)] == list(dict(heard).items())
    assert (did.packed, did.indexed) == (3, 70)


def test_a_store_that_has_written_much_packs_by_itself(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        talk = fill(store, 20 * RUN)
        assert loose(store) == 20  # the control: it has not been done while writing
        for n in range(maintenance._WRITES):
            talk.append(Message.user(str(n)))
        until(lambda: loose(store) == 0)
        assert len(talk.thread()) == 20 * RUN + maintenance._WRITES
        assert store.verify().ok


def test_without_a_pause_it_is_done_when_much_has_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_WRITES", 16)
    monkeypatch.setattr(maintenance, "_BACKLOG", 32)
    with hitherto.open(tmp_path / "store.db") as store:
        talk = fill(store, 10 * RUN)
        deadline = time.monotonic() + SOON
        n = 0
        while n % 50 or loose(store) >= 5:
            assert time.monotonic() < deadline
            n += 1
            talk.append(Message.user(str(n)))
        assert store.verify().ok


def test_closing_packs_what_was_written(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        fill(store, 5 * RUN + 3)
        assert loose(store) == 5
    with hitherto.open(tmp_path / "store.db") as store:
        assert loose(store) == 0
        assert len(store.backend.loose(full=False, limit=10)) == 1  # the last run still grows


def test_a_store_that_is_told_to_leave_it_does_nothing_by_itself(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        talk = fill(store, 5 * RUN)
        for n in range(maintenance._WRITES):
            talk.append(Message.user(str(n)))
        assert background_of(store)._thread is None
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        assert loose(store) == 5 + maintenance._WRITES // RUN
        assert store.maintain().complete
        assert loose(store) == 0


def test_closing_a_store_that_was_only_read_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    backend = SqliteBackend(path)
    other = Store(backend)
    fill(other, 2 * RUN)
    background_of(other).writes = 0  # as if its process had been killed
    other.close()
    before = path.read_bytes()
    with hitherto.open(path) as store:
        assert len(list(store.messages())) == 2 * RUN
    assert path.read_bytes() == before


def test_a_last_run_is_packed_when_its_conversation_has_been_quiet(tmp_path: Path) -> None:
    now = [1_700_000_000_000_000]
    with hitherto.open(tmp_path / "store.db", clock=lambda: now[0]) as store:
        talk = fill(store, RUN + 5)
        maintenance.maintain(store.engine, quiet_only=True)
        assert len(store.backend.loose(full=False, limit=10)) == 1
        now[0] += maintenance._QUIET + 1
        maintenance.maintain(store.engine, quiet_only=True)
        assert store.backend.loose(full=False, limit=10) == []
        talk.append(Message.user("again"))
        assert [m.text for m in talk.thread()][-2:] == [f"message {RUN + 4} of many", "again"]
        talk.extend([Message.user(str(n)) for n in range(RUN)])
        maintenance.maintain(store.engine, quiet_only=True)
        assert loose(store) == 0
        assert store.verify().ok


def test_what_goes_wrong_in_the_background_is_said_and_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StorageError("the disk fails")

    with hitherto.open(tmp_path / "store.db") as store:
        monkeypatch.setattr(maintenance, "pack", fails)
        with caplog.at_level(logging.WARNING, logger="hitherto"):
            talk = fill(store, RUN)
            for n in range(maintenance._WRITES):
                talk.append(Message.user(str(n)))
            until(lambda: any("maintenance" in record.getMessage() for record in caplog.records))
        talk.append(Message.user("still here"))
        with pytest.raises(StorageError):
            store.maintain()


def test_a_store_that_is_forgotten_is_not_kept_alive_by_its_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_LOOK_SECONDS", 0.05)
    store = hitherto.open(tmp_path / "store.db")
    talk = store.start()
    for n in range(maintenance._WRITES):
        talk.append(Message.user(str(n)))
    thread = background_of(store)._thread
    assert thread is not None
    gone = weakref.ref(store)
    del store, talk
    gc.collect()
    until(lambda: gc.collect() >= 0 and gone() is None)
    thread.join(10)
    assert not thread.is_alive()


def test_a_process_forks_while_upkeep_works_and_the_child_opens_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with hitherto.open(path) as store:
        fill(store, 40 * RUN)
        stopped = threading.Event()

        def work() -> None:
            while not stopped.is_set():
                background_of(store)._attempt(0.01)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    try:
                        with hitherto.open(path) as mine:
                            mine.start().append(Message.user("from the child"))
                        os._exit(0)
                    except BaseException:  # noqa: BLE001  # whatever it is, the parent hears of it
                        os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stopped.set()
            thread.join()
        assert len(list(store.messages())) == 40 * RUN + 10


def test_readers_do_not_wait_and_see_one_thing_while_it_is_packed(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store, hitherto.open(tmp_path / "store.db") as other:
        talk = fill(store, 60 * RUN)
        wanted = talk.thread()
        reader = other.conversation(talk.id)
        done = threading.Event()

        def work() -> None:
            while store.maintain(seconds=0.01).complete is False:
                pass
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        looks = 0
        while not done.is_set() or looks == 0:
            assert reader.thread() == wanted
            looks += 1
        thread.join()
        assert reader.thread() == wanted


def test_after_many_updates_and_deletes_the_file_is_not_much_larger_than_a_fresh_copy(tmp_path: Path) -> None:
    """D15; `make bench` does it with 10,000."""
    path, rng = tmp_path / "here" / "store.db", random.Random(5)
    vocabulary = [f"{a}{b}" for a in ("ba", "de", "fi", "go", "lu") for b in ("n", "r", "st", "ll", "mp", "")]

    def text() -> str:
        return " ".join(rng.choices(vocabulary, k=rng.randint(5, 150)))

    with hitherto.open(path) as store:
        talks = [store.start(title=str(n)) for n in range(12)]
        for talk in talks:
            talk.extend([Message.user(text()) for _ in range(rng.randint(20, 150))])
        for n in range(1_200):
            talk = store.conversation(rng.choice(talks).id)
            head = talk.head
            if n % 4 == 0 and head is not None:
                store.delete([head])
            elif n % 4 == 1 and head is not None:
                talk.label(text()[:200], message=head)
            elif n % 100 == 2:
                store.purge(talk, reason="user-requested")
                talks = [t for t in talks if t.id != talk.id] + [store.start()]
            else:
                talk.append(Message.user(text()))
            if n % 400 == 0:
                store.maintain()
        before = file_size(path)
        assert store.maintain().complete
        assert store.scrub()
        store.backup(tmp_path / "copy.db")
        after, copy = file_size(path), (tmp_path / "copy.db").stat().st_size
        assert after <= before
        assert after <= 1.3 * copy, f"{after} bytes, {copy} in a fresh copy"
        assert store.verify().ok


# -- backup


def test_a_backup_is_a_store_of_its_own_and_private(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        talk = fill(store, 3 * RUN)
        image = os.urandom(300_000)
        talk.append(Message.user(hitherto.Block.image(image, "image/png")))
        store.backup(tmp_path / "copy.db")
        talk.append(Message.user("later"))
        wanted = talk.thread()[:-1]
    with hitherto.open(tmp_path / "copy.db") as copy:
        assert copy.conversation(talk.id).thread() == wanted
        assert copy.verify().ok
        copy.conversation(talk.id).append(Message.user("on its own"))
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *("copy.db", "copy.db-ballast", "store.db", "store.db-ballast")
    ]


def test_a_backup_never_overwrites_and_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    taken = tmp_path / "taken.db"
    taken.write_text("precious")
    with hitherto.open(tmp_path / "store.db") as store:
        fill(store, 3)
        with pytest.raises(hitherto.AlreadyExists):
            store.backup(taken)
        with pytest.raises(hitherto.AlreadyExists):
            store.backup(tmp_path / "store.db")
        with pytest.raises(hitherto.InvalidArgument):
            store.backup("")
        blocked = tmp_path / "file"
        blocked.write_text("")
        with pytest.raises(hitherto.StorageError):
            store.backup(blocked / "below.db")
    assert taken.read_text() == "precious"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "store.db", "store.db-ballast", "taken.db"]


def test_backups_while_others_write_are_whole(tmp_path: Path) -> None:
    """Each turn is two messages in one commit: no backup has half of one."""
    with hitherto.open(tmp_path / "store.db") as store, hitherto.open(tmp_path / "store.db") as other:
        talk = store.start()
        stopped = threading.Event()

        def write() -> None:
            n = 0
            while not stopped.is_set():
                talk.extend([Message.user(f"{n}"), Message.assistant(f"{n}")])
                n += 1

        thread = threading.Thread(target=write)
        thread.start()
        counts = []
        try:
            for n in range(6):
                acknowledged = len(other.conversation(talk.id).thread())
                other.backup(tmp_path / f"copy{n}.db")
                with hitherto.open(tmp_path / f"copy{n}.db") as copy:
                    texts = [m.text for m in copy.conversation(talk.id).thread()]
                    assert copy.verify().ok
                assert len(texts) >= acknowledged
                assert texts == [str(k // 2) for k in range(len(texts))]
                assert len(texts) % 2 == 0
                counts.append(len(texts))
        finally:
            stopped.set()
            thread.join()
        assert counts == sorted(counts)


def test_a_store_in_memory_says_that_it_cannot_be_backed_up(tmp_path: Path) -> None:
    with hitherto.open("memory:") as store:
        assert not store.backend.info.can_backup
        with pytest.raises(hitherto.InvalidArgument) as caught:
            store.backup(tmp_path / "copy.db")
        assert caught.value.hint


# -- what must not stop it, and what it must not do


def test_a_file_that_cannot_give_space_back_is_maintained_all_the_same(tmp_path: Path) -> None:
    """Another program has written it anew, and dropped the setting that only an empty file can choose."""
    import apsw

    path = tmp_path / "store.db"
    with hitherto.open(path) as store:
        talk = fill(store, 5 * RUN)
    other = apsw.Connection(str(path))
    for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA auto_vacuum = NONE", "VACUUM"):
        other.execute(statement).fetchall()
    other.close()
    with hitherto.open(path) as store:
        store.purge(talk.id, reason="user-requested")
        assert store.maintain().complete


def test_runs_that_are_too_large_to_pack_whole_are_not_looked_at_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hitherto._engine import packing

    monkeypatch.setattr(packing, "LARGEST_PACK", 1000)
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        talk = fill(store, 4 * RUN)
        assert store.maintain().packed == 4
        assert loose(store) == 4  # their last messages did not fit
        store.maintain()
        built: list[int] = []
        monkeypatch.setattr(packing, "_build", lambda _, __, run: built.append(run))
        assert store.maintain().complete
        assert built == []
        assert len(talk.thread()) == 4 * RUN


def test_one_damaged_message_does_not_stop_the_upkeep_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import apsw

    path = tmp_path / "store.db"
    with hitherto.open(path, maintenance=False) as store:
        fill(store, 4 * RUN)
        other = apsw.Connection(str(path))
        other.execute("UPDATE message SET body = x'00' WHERE number = ?", (RUN + 3,))
        other.close()
        with caplog.at_level(logging.WARNING, logger="hitherto"):
            assert store.maintain().packed == 3
        assert any("verify" in record.getMessage() for record in caplog.records)
        assert not store.verify().ok


def test_a_reader_in_the_way_is_not_a_reason_to_spin(tmp_path: Path) -> None:
    import apsw

    path = tmp_path / "store.db"
    with hitherto.open(path) as store:
        saved = store.start().append(Message.user("word"))
        store.search("word")
        reader = apsw.Connection(f"{path}-search")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM hitherto_search").fetchall()
        store.delete([saved])
        attempts: list[float] = []
        attempt = background_of(store)._attempt

        def counted(seconds: float) -> object:
            attempts.append(seconds)
            return attempt(seconds)

        background_of(store)._attempt = counted  # type: ignore[method-assign,assignment]
        time.sleep(1.0)
        assert len(attempts) < 10
        reader.close()


def test_where_no_thread_can_be_started_writing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with hitherto.open(tmp_path / "store.db") as store:
        talk = store.start()
        for n in range(maintenance._WRITES + 10):
            talk.append(Message.user(str(n)))
        assert len(talk.thread()) == maintenance._WRITES + 10


def test_a_store_closes_whatever_goes_wrong_in_its_last_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    store = hitherto.open(tmp_path / "store.db")
    fill(store, 3)
    monkeypatch.setattr(maintenance, "maintain", fails)
    with caplog.at_level(logging.WARNING, logger="hitherto"):
        store.close()
    assert any("a bug" in record.getMessage() for record in caplog.records)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.db", "store.db-ballast"]
