"""The erasure ledger outside the store: files of it, and replays after backups and copies.

Requirements: K2.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Conversation, Key, Message, Store, erasures
from hitherto._erasure import ledger
from hitherto.backend import Batch, Change
from hitherto.copying import copy_store
from hitherto.errors import Damaged, InvalidArgument, NotFound, ReadOnly, StorageFull

from ..support.waiting import until

KEY = b"\x17" * 32


@pytest.fixture(params=[None, KEY], ids=["plain", "sealed"])
def key(request: pytest.FixtureRequest) -> bytes | None:
    found: bytes | None = request.param
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.db"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "c.erasures"


def said(store: Store, text: str = "zanzibarquux") -> Conversation:
    talk = store.start(title=text)
    talk.append(Message.user(text))
    return talk


def ids(store: Store) -> set[str]:
    return {info.id for info in store.conversations(limit=1000, include_expired=True)}


@pytest.fixture
def gone(path: Path, kept: Path, key: bytes | None) -> list[str]:
    """A store whose backup has ten conversations, five of which were purged since, and a file of its ledger."""
    with hitherto.open(path, key=key, maintenance=False) as store:
        talks = [said(store, f"zanzibarquux {n}") for n in range(10)]
        store.backup(path.with_suffix(".backup"))
        for talk in talks[:5]:
            store.purge(talk.id, reason="user-requested")
        assert erasures.keep(store, kept) == 5
    return [talk.id for talk in talks[:5]]


def restored(path: Path) -> Path:
    """An older backup, copied back by hand over the store."""
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()
    shutil.copy(path.with_suffix(".backup"), path)
    return path


def test_what_came_back_with_a_backup_goes_again_and_leaves_no_bytes(
    path: Path, kept: Path, gone: list[str], key: bytes | None
) -> None:
    """K2."""
    with hitherto.open(restored(path), key=key, maintenance=False) as store:
        assert set(gone) <= ids(store)  # the control: without a replay they are back
        report = erasures.replay(store, kept)
        assert (set(report.purge.purged), report.entries, report.added) == (set(gone), 5, 5)
        assert len(ids(store)) == 5
        assert store.verify().ok
        again = erasures.replay(store, kept)
        assert (again.purge.purged, again.added) == ((), 0)
        assert not store.engine.workspace.meta.replaying
    if key is None:
        assert b"zanzibarquux 3" not in path.read_bytes()
        assert b"zanzibarquux 7" in path.read_bytes()


def test_a_file_of_the_ledger_tells_nothing_of_what_was_purged(kept: Path, gone: list[str], path: Path) -> None:
    data = kept.read_text()
    for id in gone:
        assert id not in data
        assert id.replace("-", "") not in data
    assert "zanzibarquux" not in data
    assert os.stat(kept).st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"".join(data.splitlines(keepends=True)[:-1]),
        lambda data: b"".join(data.splitlines(keepends=True)[:2] + data.splitlines(keepends=True)[3:]),
        lambda data: data.replace(b"user-requested", b"workspace-reset", 1),
        lambda data: data.replace(b'"entries":5', b'"entries":4'),
        lambda data: data + b"{}\n",
        lambda data: data.splitlines(keepends=True)[0],
    ],
    ids=["cut in half", "no end", "a line less", "a reason", "a count", "a line more", "the header alone"],
)
def test_a_file_that_was_cut_short_or_edited_purges_nothing(
    path: Path, kept: Path, gone: list[str], key: bytes | None, harm: Callable[[bytes], bytes]
) -> None:
    kept.write_bytes(harm(kept.read_bytes()))
    with hitherto.open(restored(path), key=key, maintenance=False) as store:
        with pytest.raises(Damaged, match="cut short or edited"):
            erasures.replay(store, kept)
        with pytest.raises(Damaged):
            erasures.keep(store, kept)
        assert len(ids(store)) == 10
        assert list(erasures.entries(store)) == []


def test_a_file_of_another_workspace_purges_nothing(tmp_path: Path, kept: Path, gone: list[str]) -> None:
    with hitherto.open(tmp_path / "other.db") as other:
        said(other)
        with pytest.raises(InvalidArgument, match="another workspace"):
            erasures.replay(other, kept)
        with pytest.raises(InvalidArgument, match="another workspace"):
            erasures.keep(other, kept)
        (tmp_path / "note").write_text("milk\n")
        with pytest.raises(InvalidArgument, match="not a file of an erasure ledger"):
            erasures.keep(other, tmp_path / "note")
        with pytest.raises(NotFound):
            erasures.replay(other, tmp_path / "nothing")
        assert len(ids(other)) == 1
    assert (tmp_path / "note").read_text() == "milk\n"


def test_a_file_keeps_what_a_store_that_was_restored_without_it_lacks(
    path: Path, kept: Path, gone: list[str], key: bytes | None
) -> None:
    with hitherto.open(restored(path), key=key, maintenance=False) as store:
        store.purge(next(iter(ids(store) - set(gone))), reason="user-requested")
        assert erasures.keep(store, kept) == 6
        assert set(erasures.replay(store, kept).purge.purged) == set(gone)


def test_a_file_outlives_rotations_and_fits_backups_of_every_key(path: Path, kept: Path, tmp_path: Path) -> None:
    old, new = Key.generate(), Key.generate()
    with hitherto.open(path, key=old, maintenance=False) as store:
        talk = said(store)
        store.backup(tmp_path / "old.db")
        store.rotate(new, reencrypt=True)
        store.backup(tmp_path / "new.db")
        store.purge(talk.id, reason="user-requested")
        erasures.keep(store, kept)
        store.rotate(Key.generate(), reencrypt=True)
        assert [entry.reason for entry in erasures.entries(store)] == ["user-requested"]
        store.unseal()
        assert erasures.keep(store, kept) == 1
    for backup, key in (("old.db", old), ("new.db", new)):
        with hitherto.open(tmp_path / backup, key=key, maintenance=False) as store:
            assert erasures.replay(store, kept).purge.purged == (talk.id,)


def test_one_that_was_brought_back_on_purpose_stays_whatever_the_clock_said(
    path: Path, kept: Path, tmp_path: Path
) -> None:
    """A clock that jumps far ahead at the purge, and back after it, makes nothing of what came later look erased."""
    now = [1_800_000_000_000_000]

    def clock() -> int:
        now[0] += 1
        return now[0]

    with Store(hitherto.opening._backend(path, "default", 30.0), clock=clock, maintenance=False) as store:
        talk = said(store)
        hitherto.formats.save(store, tmp_path / "all.jsonl")
        store.backup(path.with_suffix(".backup"))
        now[0] += 10**15
        store.purge(talk.id, reason="user-requested")
        now[0] -= 10**15
        assert hitherto.formats.load(tmp_path / "all.jsonl", store, even_purged=True).new == 1
        erasures.keep(store, kept)
        assert erasures.replay(store, kept).purge.purged == ()
        assert ids(store) == {talk.id}
    with hitherto.open(path.with_suffix(".backup"), maintenance=False) as store:
        assert erasures.replay(store, kept).purge.purged == (talk.id,)  # and that one was the erased one


def test_a_hold_of_the_backup_does_not_keep_what_was_erased_after_its_release(path: Path, kept: Path) -> None:
    with hitherto.open(path, maintenance=False) as store:
        talk = said(store)
        talk.hold()
        store.backup(path.with_suffix(".backup"))
        talk.release()
        store.purge(talk.id, reason="user-requested")
        erasures.keep(store, kept)
    with hitherto.open(path.with_suffix(".backup"), maintenance=False) as store:
        assert erasures.replay(store, kept).purge.purged == (talk.id,)


def test_a_copy_by_rows_has_the_ledger(
    path: Path, kept: Path, gone: list[str], tmp_path: Path, key: bytes | None
) -> None:
    copy_store(path.with_suffix(".backup"), tmp_path / "copy.db", key=key)
    with hitherto.open(tmp_path / "copy.db", key=key, maintenance=False) as copy:
        assert set(erasures.replay(copy, kept).purge.purged) == set(gone)
    copy_store(path, tmp_path / "second.db", key=key)
    with hitherto.open(tmp_path / "second.db", key=key, maintenance=False) as copy:
        assert sum(1 for _ in erasures.entries(copy)) == 5


_REPLAY = """
import os, signal, sys
import hitherto
from hitherto import erasures
from hitherto._erasure import replaying, purging_many
path, kept, key, after = sys.argv[1:]
find, left = replaying._is_erased, [int(after)]
def counted(engine, row):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return find(engine, row)
replaying._is_erased = counted
replaying._AT_ONCE = 2
with hitherto.open(path, key=bytes.fromhex(key) or None, maintenance=False) as store:
    erasures.replay(store, kept)
"""


@pytest.mark.parametrize("after", [0, 2, 4])
def test_a_replay_that_was_killed_is_finished_by_the_next_that_opens_the_store(
    path: Path, kept: Path, gone: list[str], key: bytes | None, after: int
) -> None:
    restored(path)
    words = [sys.executable, "-c", _REPLAY, str(path), str(kept), (key or b"").hex(), str(after)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    with hitherto.open(path, key=key, maintenance=False) as store:
        assert set(gone) & ids(store)  # the control: the kill came in between
        store.maintain()
        assert not set(gone) & ids(store)
        assert not store.engine.workspace.meta.replaying
    kept.unlink()


def test_a_store_that_is_opened_goes_on_with_a_replay_by_itself(
    path: Path, kept: Path, gone: list[str], key: bytes | None
) -> None:
    restored(path)
    words = [sys.executable, "-c", _REPLAY, str(path), str(kept), (key or b"").hex(), "2"]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    with hitherto.open(path, key=key) as store:
        until(lambda: not set(gone) & ids(store))


def test_two_processes_replay_at_once(path: Path, kept: Path, gone: list[str], key: bytes | None) -> None:
    restored(path)
    words = [sys.executable, "-c", _REPLAY, str(path), str(kept), (key or b"").hex(), "1000"]
    both = [subprocess.Popen(words) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    with hitherto.open(path, key=key, maintenance=False) as store:
        assert len(ids(store)) == 5
        assert sum(1 for _ in erasures.entries(store)) == 5
        assert store.verify().ok


def test_a_damaged_entry_does_not_keep_its_conversation_from_being_purged_again(path: Path) -> None:
    with hitherto.open(path, maintenance=False) as store:
        talk = said(store)
        hitherto.formats.save(store, path.with_suffix(".jsonl"))
        store.purge(talk.id, reason="user-requested")
        hitherto.formats.load(path.with_suffix(".jsonl"), store, even_purged=True)
        id = ledger.entry_id(store.engine, talk.state.id)
        (row,) = store.backend.lookup(ids=[id])
        damaged = replace(row, meta=b"not this", token=b"x" * 16, version=row.version + 1)
        store.backend.commit([Batch((Change(id, row.token, damaged),))])
        with pytest.raises(Damaged):
            list(erasures.entries(store))
        store.purge(talk.id, reason="user-requested")
        assert sum(1 for _ in erasures.entries(store)) == 1


def test_a_full_disk_leaves_the_file_as_it_was(
    path: Path, kept: Path, gone: list[str], key: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    before = kept.read_bytes()
    with hitherto.open(path, key=key, maintenance=False) as store:
        store.purge(next(iter(ids(store))), reason="user-requested")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StorageFull):
                erasures.keep(store, kept)
        assert kept.read_bytes() == before
        assert [name for name in kept.parent.iterdir() if "unfinished" in name.name] == []
        assert erasures.keep(store, kept) == 6


def test_nothing_is_replayed_into_a_store_that_is_only_read(
    path: Path, kept: Path, gone: list[str], key: bytes | None
) -> None:
    with hitherto.open(path, key=key, read_only=True) as store:
        assert set(gone).isdisjoint(ids(store))
        with pytest.raises(ReadOnly):
            erasures.replay(store, kept)
        assert erasures.keep(store, kept) == 5
