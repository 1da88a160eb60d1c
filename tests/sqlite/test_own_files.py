"""A foreign file beside a store, under a name of its own files, is neither followed, changed nor removed.

A project that is cloned can bring a `.hitherto` folder along, with links in it. So at every place where the library
opens, replaces or removes a file by a name that can be guessed, each kind of thing is planted: links, hard links,
pipes, directories, and files of another owner. Afterwards all of it is unchanged, no acknowledged message is
lost, and the library works again as soon as the thing is moved away. Beside that stands the control: with the checks
taken away, the same steps destroy files.

Requirements: D9, and SECURITY on files.
"""

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import hitherto
from hitherto import HithertoError, Key, Message, formats
from hitherto._system import own_files
from hitherto.backends.sqlite import ballast as _ballast
from hitherto.backends.sqlite import foreign_files, fts, fts_file

PRECIOUS = b"the only copy of something\n" * 300  # longer than a header, and no multiple of a page
WORD = "remember"

BESIDE = [
    *("-wal", "-shm", "-journal", "-ballast"),
    *("-search", "-search-wal", "-search-shm", "-search-journal"),
]
KINDS = ["link", "dangling link", "hard link", "pipe", "directory", "foreign file", "short file"]


class Planted:
    """A thing at a path, and whether it is still as it was."""

    def __init__(self, kind: str, path: Path) -> None:
        self.path = path
        self.precious = path.parent.parent / "precious"
        self.precious.write_bytes(PRECIOUS)
        path.unlink(missing_ok=True)
        if kind == "link":
            path.symlink_to(self.precious)
        elif kind == "dangling link":
            path.symlink_to(path.parent.parent / "nothing")
        elif kind == "hard link":
            os.link(self.precious, path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.write_bytes(PRECIOUS if kind == "foreign file" else b"short")
        self._before = self._state()

    def _state(self) -> tuple[object, ...]:
        found = os.lstat(self.path)
        content = self.path.read_bytes() if stat.S_ISREG(found.st_mode) else None
        return found.st_ino, stat.S_IFMT(found.st_mode), found.st_nlink, content

    @property
    def is_untouched(self) -> bool:
        same = os.path.lexists(self.path) and self._state() == self._before
        return same and self.precious.read_bytes() == PRECIOUS and not (self.precious.parent / "nothing").exists()

    def move_away(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            self.path.rmdir()
        else:
            self.path.unlink()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The path of a store, in a folder of its own, with three conversations in it."""
    folder = tmp_path / "project"
    folder.mkdir()
    path = folder / "chats.db"
    with hitherto.open(path) as store:
        for number in range(3):
            store.start(title=f"talk {number}").append(Message.user(f"{WORD} {number}"))
    return path


USE = """
import hitherto, sys
from hitherto import HithertoError, Message

def use(path):
    '''Do everything with a store that touches a file beside it; return the errors, and what was acknowledged.'''
    errors, kept = [], []
    def attempt(step):
        try:
            step()
        except HithertoError as error:
            errors.append(error)
    def write():
        with hitherto.open(path, timeout_seconds=2) as store:
            kept.append(store.start(title="new").append(Message.user("remember more")).conversation)
    def search():
        with hitherto.open(path, timeout_seconds=2) as store:
            store.search("remember")
    def purge():
        with hitherto.open(path, timeout_seconds=2) as store:
            gone = next(info.id for info in store.conversations().items if info.title == "talk 2")
            store.purge(gone, reason="user-requested")
            store.scrub()
            store.maintain(1)
    def look():
        with hitherto.open(path, read_only=True, timeout_seconds=2) as store:
            len(list(store.conversations()))
    for step in (write, search, purge, look):
        attempt(step)
    return errors, kept
"""
_use: dict[str, Callable[[Path], tuple[list[HithertoError], list[str]]]] = {}
exec(USE, _use)
use = _use["use"]


def use_elsewhere(path: Path) -> str:
    """The same in a process of its own, which a pipe may stop for ever."""
    script = USE + textwrap.dedent(
        """
        errors, kept = use(sys.argv[1])
        for error in errors:
            assert error.hint, error
            print(type(error).__name__, error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def titles(path: Path) -> set[str]:
    with hitherto.open(path) as store:
        found = {info.title for info in store.conversations().items}
        assert store.verify().ok
        assert len(store.search(WORD, limit=100)) == len(found)
        return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", BESIDE)
def test_what_was_planted_beside_a_store_is_untouched_and_nothing_is_lost(place: Path, suffix: str, kind: str) -> None:
    planted = Planted(kind, Path(f"{place}{suffix}"))
    if kind == "pipe":
        said, purged = use_elsewhere(place), None
    else:
        errors, kept = use(place)
        assert all(error.hint for error in errors)
        said, purged = "\n".join(map(str, errors)), kept
    assert planted.is_untouched
    if suffix != "-ballast":  # without which a store works, except on a full disk
        assert str(planted.path) in said
    foreign = [what for what, _ in foreign_files.find_foreign(str(place))]
    if not (suffix == "-ballast" and kind in ("pipe", "directory", "dangling link")):  # which doctor has words for
        assert [what for what in foreign if str(planted.path) in what]
    planted.move_away()
    found = titles(place)
    assert {"talk 0", "talk 1"} <= found
    assert purged is None or ("new" in found) == bool(purged)


def without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "find_problem", lambda *_: None)
    monkeypatch.setattr(own_files, "_is_shm", lambda *_: True)
    monkeypatch.setattr(own_files, "_starts_as_own", lambda *_: True)
    monkeypatch.setattr(fts_file, "is_own", lambda *_: True)
    monkeypatch.setattr(fts.FtsIndex, "_check_own", _truncate_short)
    monkeypatch.setattr(_ballast.Ballast, "_is_proven", lambda *_: True)


def _truncate_short(_: object, path: str) -> None:
    if os.path.isfile(path) and 0 < os.path.getsize(path) < 512:
        os.truncate(path, 0)


DESTROYED = [
    *[(suffix, "foreign file") for suffix in ("-wal", "-shm", "-journal", "-ballast", "-search", "-search-wal")],
    *[("-search", kind) for kind in ("link", "hard link", "short file")],
    *[("-wal", "hard link"), ("-ballast", "hard link")],
]


@pytest.mark.parametrize(("suffix", "kind"), DESTROYED)
def test_without_the_checks_it_is_destroyed(
    place: Path, suffix: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    without_checks(monkeypatch)
    planted = Planted(kind, Path(f"{place}{suffix}"))
    use(place)
    assert not planted.is_untouched


@pytest.mark.parametrize("kind", ["link", "hard link", "foreign file", "directory"])
def test_a_sealed_store_leaves_alone_what_lies_where_a_plain_one_has_its_index(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "project" / "chats.db"
    with hitherto.open(path, key=Key(bytes(range(32)))) as store:
        talk = store.start(title="sealed")
        talk.append(Message.user(WORD))
        planted = Planted(kind, Path(f"{path}-search"))
        assert len(store.search(WORD)) == 1
        store.purge(talk, reason="user-requested")
    assert planted.is_untouched


def test_a_link_to_the_store_itself_and_to_its_folder_is_followed(tmp_path: Path) -> None:
    """People move a store to another disk, and leave a link behind."""
    real = tmp_path / "large disk"
    real.mkdir()
    (tmp_path / "linked").symlink_to(real)
    (tmp_path / "chats.db").symlink_to(real / "chats.db")
    with hitherto.open(tmp_path / "linked" / "chats.db") as store:
        store.start(title="one").append(Message.user(WORD))
    for path in (tmp_path / "chats.db", tmp_path / "linked" / "chats.db", real / "chats.db"):
        with hitherto.open(path) as store:
            store.start(title=str(path)).append(Message.user(WORD))
            assert store.search(WORD)
            store.backup(str(tmp_path / "linked" / f"{os.urandom(4).hex()}.db"))
    assert len(titles(tmp_path / "chats.db")) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chats.db", "large disk", "linked"]


# -- what SQLite leaves is recognised


def test_what_a_killed_process_leaves_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    script = """
import hitherto, os, sys
store = hitherto.open(sys.argv[1])
talk = store.start(title="killed")
for n in range(200):
    talk.append(hitherto.Message.user(f"remember {n} " * 50))
store.search("remember")
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    assert Path(f"{path}-wal").stat().st_size > 0
    assert Path(f"{path}-search-wal").exists()
    assert list(foreign_files.find_foreign(str(path))) == []
    with hitherto.open(path) as store:
        assert len(store.search(WORD, limit=1000)) == 200


@pytest.mark.parametrize("mode", ["DELETE", "TRUNCATE", "PERSIST"])
def test_a_rollback_journal_is_recognised_in_every_state(tmp_path: Path, mode: str) -> None:
    """A process is killed in the middle of a transaction of another program that uses a journal."""
    path, seen = tmp_path / "a.db", set()
    script = """
import apsw, os, sys
c = apsw.Connection(sys.argv[1])
c.execute(f"PRAGMA journal_mode = {sys.argv[2]}").fetchall()
c.execute("PRAGMA cache_size = 2").fetchall()
c.execute("CREATE TABLE IF NOT EXISTS t (x)")
c.execute("INSERT INTO t VALUES (randomblob(50000))")
c.execute("BEGIN")
for _ in range(int(sys.argv[3])):
    c.execute("UPDATE t SET x = randomblob(50000)")
os._exit(0)
"""
    for count in (0, 1, 5):
        subprocess.run([sys.executable, "-c", script, str(path), mode, str(count)], check=True, timeout=60)
        journal = Path(f"{path}-journal")
        seen.add(journal.exists())
        own_files.check_sidecars(str(path))
    assert True in seen


def test_a_journal_that_was_not_synced_has_zeros_for_its_magic() -> None:
    header = bytes(20) + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    assert own_files._is_unsynced_journal(header)
    assert not own_files._is_unsynced_journal(bytes(20) + b"\0\0\2\1" + b"\0\0\x10\0")  # no power of two
    assert not own_files._is_unsynced_journal(b"x" + header[1:])
    assert not own_files._is_unsynced_journal(header[:20])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused_unless_they_own_the_store_or_may_write_to_it(place: Path) -> None:
    index = Path(f"{place}-search")
    with hitherto.open(place) as store:
        store.search(WORD)
    os.chown(index, 1234, 1234)
    with hitherto.open(place) as store, pytest.raises(hitherto.CannotOpen, match="another user"):
        store.search(WORD)
    os.chown(place, 1234, 1234)
    with hitherto.open(place) as store:
        assert store.search(WORD)
    os.chown(place, 0, 0)
    place.chmod(0o660)
    with hitherto.open(place) as store:
        assert store.search(WORD)


def test_a_ballast_is_read_once_and_not_with_every_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ballast = _ballast.Ballast(str(place))
    assert ballast.size
    reads: list[str] = []
    real = own_files.read_start

    def counted(path: str, size: int) -> bytes:
        reads.append(path)
        return real(path, size)

    monkeypatch.setattr(own_files, "read_start", counted)
    for _ in range(10):
        assert ballast.size
    assert reads == []
    Path(ballast.path).write_bytes(PRECIOUS)
    assert ballast.size == 0
    assert len(reads) == 1


# -- restoring


@pytest.mark.parametrize("kind", ["link", "hard link", "foreign file", "directory"])
def test_restoring_removes_no_file_that_is_not_an_index(place: Path, kind: str) -> None:
    from hitherto.backends.sqlite.file_swap import put_in_place

    backup = place.parent / "new.db"
    with hitherto.open(place) as store:
        store.backup(str(backup))
    planted = Planted(kind, Path(f"{place}-search"))
    kept = put_in_place(str(backup), str(place), replace=True)
    assert kept is not None
    assert planted.is_untouched
    planted.move_away()
    assert titles(place) == {"talk 0", "talk 1", "talk 2"}


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_restoring_stops_at_a_file_that_sqlite_has_not_written(place: Path, suffix: str) -> None:
    from hitherto.backends.sqlite.file_swap import put_in_place

    backup = place.parent / "new.db"
    with hitherto.open(place) as store:
        store.backup(str(backup))
    planted = Planted("foreign file", Path(f"{place}{suffix}"))
    with pytest.raises(hitherto.CannotOpen, match="not a file that SQLite has written"):
        put_in_place(str(backup), str(place), replace=True)
    assert planted.is_untouched
    planted.move_away()
    assert titles(place) == {"talk 0", "talk 1", "talk 2"}


# -- files that appear when they are complete

Write = Callable[[hitherto.Store, Path], object]


WRITERS: dict[str, Write] = {
    "backup": lambda store, path: store.backup(str(path)),
    "jsonl": lambda store, path: formats.save(store, path, format="jsonl"),
    "markdown": lambda store, path: formats.save(store, path, format="markdown"),
    "cpeconvo": lambda store, path: formats.save(store, path, format="cpeconvo"),
    "attachment": lambda _, path: hitherto.attachment.Attachment.from_file(__file__).save(path),
    "key": lambda _, path: Key.generate().to_file(path),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_new_file_never_takes_the_place_of_anything(place: Path, writer: str, kind: str) -> None:
    target = place.parent / "out.file"
    planted = Planted(kind, target)
    with hitherto.open(place) as store:
        with pytest.raises(HithertoError) as refused:
            WRITERS[writer](store, target)
        assert refused.value.hint
        assert planted.is_untouched
        assert [name for name in os.listdir(place.parent) if "unfinished" in name] == []
        planted.move_away()
        WRITERS[writer](store, target)  # the control: it is the thing that was in the way
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


# -- snapshots


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "directory"])
@pytest.mark.parametrize("name", [".lock", ".unfinished"])
def test_the_files_of_a_folder_of_snapshots_are_not_followed(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    planted = Planted(kind, folder / name)
    script = """
import sys
from hitherto import HithertoError
from hitherto.snapshots import FileStore, Snapshot
try:
    FileStore(sys.argv[1]).save(Snapshot.new("claude", "m", "", [{"role": "user", "content": "Hello"}]))
    print("saved")
except HithertoError as error:
    assert error.hint
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert planted.precious.read_bytes() == PRECIOUS


def test_the_module_says_what_each_kind_is(tmp_path: Path) -> None:
    for kind, phrase in (("link", "a link"), ("pipe", "a pipe"), ("directory", "a directory"), ("hard link", "second")):
        path = tmp_path / "x" / "thing"
        path.parent.mkdir()
        Planted(kind, path)
        with pytest.raises(hitherto.CannotOpen, match=phrase):
            own_files.examine(str(path), None)
        shutil.rmtree(path.parent)
    assert own_files.examine(str(tmp_path / "nothing"), None) is None
    assert "socket" in own_files.describe_kind(stat.S_IFSOCK)
    assert "device" in own_files.describe_kind(stat.S_IFBLK)
