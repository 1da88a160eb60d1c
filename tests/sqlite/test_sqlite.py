"""The SQLite backend: its file, its settings, its migrations, and what it does when the disk or others are in the way.

Nothing in this process opens the database file itself: closing a descriptor would drop the locks that SQLite holds on
it. Bytes are read by `cat`.

Requirements: C1, C15, C16, D9, D11, D14, D17.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Block, Key, Message, Saved, Store
from hitherto.backends.sqlite import SqliteBackend, opening
from hitherto.backends.sqlite.files import map_error
from hitherto.backends.sqlite.rows import check_headers
from hitherto.backends.sqlite.schema import APPLICATION_ID, MIGRATIONS
from hitherto.errors import (
    Busy,
    CannotOpen,
    Conflict,
    Damaged,
    HithertoError,
    NewerFormat,
    NotAStore,
    NotFound,
    ReadOnly,
    StorageError,
    StorageFull,
)
from hitherto.ids import RUN
from hitherto.testing.conformance import message_row

from ..support.patience import AGES, SOON

MARKER = "Xylophon-7391"
PRAGMAS = {
    "application_id": APPLICATION_ID,
    "user_version": len(MIGRATIONS),
    "journal_mode": "wal",
    "synchronous": 2,  # FULL
    "foreign_keys": 1,
    "secure_delete": 1,
    "auto_vacuum": 2,  # INCREMENTAL
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with hitherto.open(path, timeout_seconds=0.3) as opened:
        yield opened


def backend_of(store: Store) -> SqliteBackend:
    assert isinstance(store.backend, SqliteBackend)
    return store.backend


def bytes_of(*paths: Path) -> bytes:
    there = [str(path) for path in paths if path.exists()]
    return subprocess.run(["cat", *there], check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout


def files_of(path: Path) -> list[Path]:
    """The database and what SQLite puts beside it."""
    return sorted(path.parent.glob(path.name + "*"))


def fingerprint(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(bytes_of(file)).hexdigest() for file in files_of(path)}


def raw(path: Path, **arguments: Any) -> apsw.Connection:
    return apsw.Connection(str(path), **arguments)


def rows(path: Path, query: str) -> list[Any]:
    connection = raw(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


# -- settings


def test_the_only_setup_of_a_long_thread_is_told_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hitherto.open(tmp_path / "a.db", maintenance=False) as store:
        talk = store.start(model="small")
        talk.extend([Message.user("a word")] * 100)
        read: list[int] = []
        path = store.backend.path

        def counted(number: int) -> Any:
            read.append(number)
            return path(number)

        monkeypatch.setattr(store.backend, "path", counted)
        assert len(talk.setups()) == 1
        assert read == []
        talk.configure(model="large")  # the control: with a second one, every message is asked
        assert len(talk.setups()) == 1
        assert read


def test_every_setting_reads_back_on_the_first_connection(store: Store) -> None:
    assert backend_of(store).pragmas(list(PRAGMAS)) == PRAGMAS


def test_every_setting_reads_back_on_every_connection_that_threads_make(store: Store) -> None:
    """Most settings belong to a connection, not to the file: one that is forgotten loses messages, or keeps them."""
    backend, together = backend_of(store), threading.Barrier(4)
    seen: dict[int, dict[str, object]] = {}

    def look() -> None:
        with backend._connection() as connection:
            together.wait(30)  # so that nobody gets a connection that another has given back
            seen[id(connection)] = {name: connection.pragma(name) for name in PRAGMAS}
            together.wait(30)

    looking = [threading.Thread(target=look) for _ in range(4)]
    for thread in looking:
        thread.start()
    for thread in looking:
        thread.join()
    assert list(seen.values()) == [PRAGMAS] * 4


def test_the_settings_are_not_what_sqlite_does_by_itself(store: Store, path: Path) -> None:
    """The negative control: a connection made without ours lacks them."""
    connection = raw(path)
    assert connection.pragma("foreign_keys") == 0
    assert connection.pragma("secure_delete") == 0
    connection.close()
    other = raw(path.with_name("other.db"))
    other.execute("CREATE TABLE t (x)")
    assert (other.pragma("journal_mode"), other.pragma("auto_vacuum")) == ("delete", 0)
    other.close()


def test_the_settings_hold_after_the_store_is_opened_again(path: Path) -> None:
    for _ in range(2):
        with hitherto.open(path) as store:
            assert backend_of(store).pragmas(list(PRAGMAS)) == PRAGMAS


def test_a_row_that_refers_to_nothing_cannot_be_written(store: Store) -> None:
    """The purpose of `foreign_keys`."""
    query = "INSERT INTO item (conversation, key, revision, body) VALUES (12345, x'00', 0, x'00')"
    with pytest.raises(StorageError), backend_of(store)._connection() as connection:
        connection.execute(query)


# -- files


@pytest.fixture
def careless() -> Iterator[None]:
    """A process that would make everything readable for all."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_and_new_folders_are_private_whatever_the_umask(tmp_path: Path, careless: None) -> None:
    path = tmp_path / "a" / "b" / "chats.db"
    with hitherto.open(path) as store:
        store.start().append(Message.user("x"))
        modes = {file.name: mode(file) for file in files_of(path)}
    assert modes == {f"chats.db{suffix}": 0o600 for suffix in ("", "-ballast", "-shm", "-wal")}
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700


def test_files_that_sqlite_makes_by_itself_are_not_private(tmp_path: Path, careless: None) -> None:
    """The negative control."""
    connection = raw(tmp_path / "other.db")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert mode(tmp_path / "other.db") & 0o077


def test_folders_that_were_there_keep_their_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with hitherto.open(tmp_path / "chats.db"):
        pass
    assert mode(tmp_path) == 0o750


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c" / "chats.db"
    with hitherto.open(path) as store:
        store.start()
    assert path.is_file()


def test_after_the_last_close_one_file_is_left(path: Path) -> None:
    """C1; and the space that is set aside, which holds nothing."""
    with hitherto.open(path) as store:
        store.start().append(Message.user("x"))
        assert len(files_of(path)) == 4
    assert sorted(file.name for file in files_of(path)) == ["chats.db", "chats.db-ballast"]


def test_a_store_behind_a_link_is_the_store(path: Path, tmp_path: Path) -> None:
    with hitherto.open(path) as store:
        id = store.start(title="here").id
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with hitherto.open(link) as store:
        assert store.conversation(id).title == "here"


# -- files that are not ours


def foreign(path: Path, *statements: str) -> None:
    connection = raw(path)
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()


@pytest.mark.parametrize(
    "content",
    [
        b"Dear diary,\n" * 500,
        b"short",
        b"x",
        b"\n",
        b"SQLite format 3\0",
        b"SQLite format 3\0" + bytes(84),
        bytes(4096),
        b"\xa5" * 8192,
        b"{}",
        b"x" * 511,
        b"x" * 512,
    ],
    ids=lambda content: f"{len(content)} bytes {content[:6]!r}",
)
def test_a_file_that_is_no_database_is_refused_and_not_touched(path: Path, content: bytes) -> None:
    """C16."""
    path.write_bytes(content)
    before = fingerprint(path)
    with pytest.raises(NotAStore) as caught:
        hitherto.open(path)
    assert caught.value.hint
    assert fingerprint(path) == before


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE t (x)", "INSERT INTO t VALUES ('theirs')"),
        ("PRAGMA application_id = 12345",),
        ("PRAGMA user_version = 1",),
        ("PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"),
        ("PRAGMA journal_mode = PERSIST", "CREATE TABLE t (x)"),
        ("PRAGMA auto_vacuum = FULL", "CREATE TABLE t (x)"),
        ("CREATE TABLE message (x)", "CREATE TABLE conversation (x)"),
    ],
    ids=lambda statements: statements[0],
)
def test_a_database_of_another_program_is_refused_and_stays_byte_for_byte(
    path: Path, statements: tuple[str, ...]
) -> None:
    """C16."""
    foreign(path, *statements)
    before = fingerprint(path)
    with pytest.raises(NotAStore):
        hitherto.open(path)
    assert fingerprint(path) == before


def test_a_database_that_another_program_left_with_a_wal_stays_byte_for_byte(path: Path, tmp_path: Path) -> None:
    """C16: whoever closes a database last moves the WAL into it; we have no business doing that to theirs."""
    (tmp_path / "theirs").mkdir()
    theirs = raw(tmp_path / "theirs" / "app.db")
    theirs.execute("PRAGMA journal_mode = WAL").fetchall()
    theirs.execute("CREATE TABLE t (x)")
    for suffix in ("", "-wal"):  # as after a crash of their program
        shutil.copy(f"{tmp_path / 'theirs' / 'app.db'}{suffix}", f"{path}{suffix}")
    theirs.close()
    before = fingerprint(path)
    assert set(before) == {"chats.db", "chats.db-wal"}
    with pytest.raises(NotAStore):
        hitherto.open(path)
    after = fingerprint(path)
    after.pop("chats.db-shm", None)  # an index of the WAL, not data
    assert after == before


def test_a_database_that_another_program_uses_stays_usable_to_it(path: Path) -> None:
    theirs = raw(path)
    theirs.execute("PRAGMA journal_mode = WAL").fetchall()
    theirs.execute("CREATE TABLE t (x)")
    with pytest.raises(NotAStore):
        hitherto.open(path)
    theirs.execute("INSERT INTO t VALUES (1)")
    assert theirs.execute("SELECT x FROM t").fetchall() == [(1,)]
    theirs.close()


def test_a_store_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    with hitherto.open(path) as store:
        store.start().append(Message.user("x"))
    foreign(path, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = fingerprint(path)
    with pytest.raises(NewerFormat) as caught:
        hitherto.open(path)
    assert "upgrade" in str(caught.value.hint)
    assert fingerprint(path) == before


@pytest.mark.parametrize("version", [-1, -5, -(2**31)])
def test_a_store_of_a_version_that_never_was_is_refused(path: Path, version: int) -> None:
    foreign(path, f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {version}")
    before = fingerprint(path)
    with pytest.raises(HithertoError):
        hitherto.open(path)
    assert fingerprint(path) == before


@pytest.mark.parametrize("part", [0.03, 0.25, 0.5, 0.75, 0.97])
def test_a_truncated_store_is_never_taken_for_a_whole_one(path: Path, part: float) -> None:
    """Either it does not open, or it says what is damaged."""
    with hitherto.open(path) as store:
        talk = store.start()
        sent = [talk.append(Message.user(f"{n} {'x' * 3000}")) for n in range(50)]
    os.truncate(path, int(path.stat().st_size * part))
    try:
        store = hitherto.open(path)
    except HithertoError:
        return
    with store:
        assert not store.verify().ok
        with pytest.raises(HithertoError):
            store.thread(sent[-1].id)


def test_a_truncated_file_that_refuses_to_open_is_not_touched(path: Path) -> None:
    with hitherto.open(path) as store:
        store.start().append(Message.user("x" * 10_000))
    os.truncate(path, 1000)
    before = fingerprint(path)
    with pytest.raises(HithertoError):
        hitherto.open(path)
    assert fingerprint(path)["chats.db"] == before["chats.db"]


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen) as caught:
        hitherto.open(tmp_path)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_cannot_be_opened(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for below in (file / "chats.db", file / "a" / "b" / "chats.db"):
        with pytest.raises(CannotOpen):
            hitherto.open(below)
    assert file.read_text() == "x"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a\0b", id="NUL"),
        pytest.param("x" * 300, id="long"),
        pytest.param("\ud83d", id="surrogate"),
        pytest.param("\udc80", id="bytes"),
    ],
)
def test_a_name_that_no_file_can_have_cannot_be_opened(tmp_path: Path, name: str) -> None:
    """C16. (The last is how Python spells a file name that is not UTF-8; SQLite cannot.)"""
    with pytest.raises(CannotOpen):
        hitherto.open(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "device", "dangling link"])
def test_what_is_neither_file_nor_folder_cannot_be_opened(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "device":
        place = Path("/dev/null")
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(CannotOpen):
        hitherto.open(place)
    assert not (tmp_path / "nowhere").exists()


# -- permissions, which do not bind root: so as nobody


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that anybody can reach; pytest's are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


AS_NOBODY = """
import os, sys
import hitherto, hitherto.backends.memory, hitherto.backends.sqlite
for name in hitherto.__all__:  # whoever we become may not read the modules
    getattr(hitherto, name)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with hitherto.open(sys.argv[1]) as store:
        store.start()
    answer = "opened"
except BaseException as error:
    answer = type(error).__name__
sys.stdout.write(answer)
sys.stdout.flush()
os._exit(0)
"""


def as_nobody(path: Path) -> str:
    """Return what a process without rights gets: the name of the error, or `opened`."""
    command = [sys.executable, "-c", AS_NOBODY, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "answer"),
    [
        (0o777, 0o666, "opened"),  # the control
        (0o777, 0o444, ReadOnly.__name__),
        (0o555, 0o666, ReadOnly.__name__),
        (0o555, 0o444, ReadOnly.__name__),
        (0o777, 0o000, CannotOpen.__name__),
        (0o000, 0o666, CannotOpen.__name__),
    ],
    ids=lambda value: oct(value) if isinstance(value, int) else value,
)
def test_a_store_without_the_rights_for_it_is_refused_and_not_touched(
    public_folder: Path, folder_mode: int, file_mode: int, answer: str
) -> None:
    """C16."""
    folder = public_folder / "folder"
    folder.mkdir()
    path = folder / "chats.db"
    with hitherto.open(path) as store:
        store.start()
    before = fingerprint(path)
    path.chmod(file_mode)
    folder.chmod(folder_mode)
    assert as_nobody(path) == answer
    folder.chmod(0o755)
    path.chmod(0o644)
    if answer != "opened":
        assert fingerprint(path) == before


@pytest.mark.parametrize(("folder_mode", "answer"), [(0o777, "opened"), (0o555, "CannotOpen"), (0o000, "CannotOpen")])
def test_a_new_store_where_nothing_may_be_made_is_refused(public_folder: Path, folder_mode: int, answer: str) -> None:
    """C16: and no other place is used instead."""
    folder = public_folder / "folder"
    folder.mkdir()
    folder.chmod(folder_mode)
    assert as_nobody(folder / "chats.db") == answer
    assert as_nobody(folder / "more" / "chats.db") == answer
    folder.chmod(0o755)


# -- migrations

SECOND = ("a second step", ("CREATE TABLE second (x INTEGER) STRICT", "INSERT INTO second VALUES (1)"))
HALF = ("a step that breaks", ("CREATE TABLE half (x INTEGER) STRICT", "CREATE TABLE half (x INTEGER) STRICT"))


def test_every_migration_is_recorded_when_it_is_made(path: Path) -> None:
    with hitherto.open(path):
        pass
    found = rows(path, "SELECT version, name, applied_at FROM migration ORDER BY version")
    assert [row[:2] for row in found] == [(n + 1, name) for n, (name, _) in enumerate(MIGRATIONS)]
    assert all(abs(row[2] / 1e6 - time.time()) < 600 for row in found)


def test_opening_a_store_of_today_changes_nothing(path: Path) -> None:
    with hitherto.open(path) as store:
        store.start().append(Message.user("x"))
    before = fingerprint(path)
    for _ in range(2):
        with hitherto.open(path) as store:
            assert store.stats().messages == 1
            list(store.messages())
    assert fingerprint(path) == before


def test_an_older_store_is_migrated_with_all_it_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hitherto.open(path) as store:
        sent = store.start().append(Message.user("kept"))
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS, SECOND))
    for _ in range(2):  # the second time there is nothing to do
        with hitherto.open(path) as store:
            assert store.message(sent.id).text == "kept"
            assert store.verify().ok
    assert rows(path, "SELECT x FROM second") == [(1,)]
    assert rows(path, "SELECT count(*) FROM migration") == [(len(MIGRATIONS) + 1,)]


@pytest.mark.parametrize("fresh", [True, False], ids=["in a new file", "in an old file"])
def test_a_migration_that_breaks_half_way_leaves_the_version_before(
    path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    if not fresh:
        with hitherto.open(path) as store:
            store.start().append(Message.user("kept"))
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS, HALF))
    with pytest.raises(StorageError):
        hitherto.open(path)
    assert rows(path, "SELECT max(version) FROM migration") == [(len(MIGRATIONS),)]
    assert rows(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert rows(path, "SELECT name FROM sqlite_schema WHERE name = 'half'") == []
    monkeypatch.setattr(opening, "MIGRATIONS", MIGRATIONS)
    with hitherto.open(path) as store:
        assert store.stats().messages == (0 if fresh else 1)
        assert store.verify().ok


def test_a_first_migration_that_breaks_leaves_a_file_that_opens_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MIGRATIONS", (HALF,))
    with pytest.raises(StorageError):
        hitherto.open(path)
    monkeypatch.setattr(opening, "MIGRATIONS", MIGRATIONS)
    with hitherto.open(path) as store:
        assert backend_of(store).pragmas(list(PRAGMAS)) == PRAGMAS


RACER = """
import json, sys
import hitherto
from hitherto.backends.sqlite import opening
extra = json.loads(sys.argv[1])
if extra:
    opening.MIGRATIONS = (*opening.MIGRATIONS, (extra[0], tuple(extra[1])))
print("ready", flush=True)
for line in sys.stdin:
    try:
        with hitherto.open(line.strip()) as store:
            store.ensure("race").append(hitherto.Message.user("x"))
        print("opened", flush=True)
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
"""


def race(paths: Sequence[Path], *, racers: int = 8, extra: object = None) -> list[list[str]]:
    """Processes that open each path at the same moment; what each of them got, path by path."""
    command = [sys.executable, "-c", RACER, json.dumps(extra)]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(racers)]
    found = []
    try:
        assert [ask(racer) for racer in running] == ["ready"] * racers
        for path in paths:
            for racer in running:
                assert racer.stdin is not None
                racer.stdin.write(f"{path}\n")
            for racer in running:
                assert racer.stdin is not None
                racer.stdin.flush()
            found.append([ask(racer) for racer in running])
    finally:
        for racer in running:
            racer.communicate(timeout=60)
    return found


def ask(racer: "subprocess.Popen[str]") -> str:
    assert racer.stdout is not None
    return racer.stdout.readline().strip()


def test_eight_processes_that_open_a_new_path_at_once_all_succeed(tmp_path: Path) -> None:
    """C15. Changing to WAL does not always wait for others: SQLite answers "busy" at once when two try, about once in
    thirty rounds. So there are many rounds."""
    paths = [tmp_path / f"{n}.db" for n in range(25)]
    assert [answer for answers in race(paths) for answer in answers if answer != "opened"] == []
    for path in paths:
        assert rows(path, "SELECT count(*) FROM migration") == [(len(MIGRATIONS),)]
        assert rows(path, "SELECT count(*) FROM workspace") == [(1,)]
        with hitherto.open(path) as store:
            assert backend_of(store).pragmas(list(PRAGMAS)) == PRAGMAS
            assert (store.stats().conversations, store.stats().messages) == (1, 8)
            assert store.verify().ok


def test_a_migration_that_processes_race_for_happens_once(tmp_path: Path) -> None:
    """C15."""
    paths = [tmp_path / f"{n}.db" for n in range(6)]
    for path in paths:
        with hitherto.open(path) as store:
            store.ensure("race").append(Message.user("before"))
    assert race(paths, racers=3, extra=SECOND) == [["opened"] * 3] * len(paths)
    for path in paths:
        assert rows(path, "SELECT x FROM second") == [(1,)]
        assert rows(path, f"SELECT name FROM migration WHERE version = {len(MIGRATIONS) + 1}") == [(SECOND[0],)]
        assert rows(path, "SELECT count(*) FROM message") == [(4,)]


# -- workspaces and several stores on one file


def test_workspaces_in_one_file_know_nothing_of_each_other(path: Path) -> None:
    """C4: ids are unique in their workspace, and mean nothing in another."""
    with hitherto.open(path, workspace="a") as a, hitherto.open(path, workspace="b") as b:
        here, there = (store.ensure("same key", title="t", project="/p") for store in (a, b))
        assert here.id != there.id
        mine = here.append(Message.user("mine", label="L", key="k"))
        theirs = there.append(Message.user("theirs", label="L", key="k"))
        for store, own, other in ((a, mine, theirs), (b, theirs, mine)):
            assert [m.id for m in store.messages()] == [own.id]
            assert [m.id for m in store.messages(label="L")] == [own.id]
            assert [c.id for c in store.conversations(project="/p").items] == [own.conversation]
            assert store.conversations(total=True).total == 1
            latest = store.latest(project="/p")
            assert latest is not None
            assert latest.id == own.conversation
            assert store.stats().messages == store.verify().messages == 1
            assert_unknown(store, other)
            assert store.verify().ok


def assert_unknown(store: Store, other: Saved) -> None:
    """Neither the message nor its conversation can be reached from here."""
    calls: list[Callable[[], object]] = [
        lambda: store.get([other.id]),
        lambda: store.delete([other.id]),
        lambda: store.thread(other.id),
        lambda: store.save([Message.user("x")], parent=other.id),
        lambda: store.save([Message.user("x")], conversation=other.conversation),
        lambda: store.messages(conversation=other.conversation),
        lambda: store.purge(other.conversation, reason="user-requested"),
        lambda: store.conversation(other.id),
        lambda: store.conversation(other.id[:5]),
        lambda: store.conversation(other.conversation),
        lambda: store.conversation(other.conversation[:13]),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    assert store.delete([other.id], missing_ok=True) == []


def test_one_id_may_be_used_in_two_workspaces(path: Path) -> None:
    id = "6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10"
    with hitherto.open(path, workspace="a") as a, hitherto.open(path, workspace="b") as b:
        a.start(id=id, title="in a")
        b.start(id=id, title="in b").append(Message.user("x"))
        a.purge(id, reason="user-requested")
        assert b.conversation(id).title == "in b"
        assert b.stats().messages == 1


def test_damage_in_one_workspace_is_not_reported_in_another(path: Path) -> None:
    with hitherto.open(path, workspace="a") as a, hitherto.open(path, workspace="b") as b:
        a.start().append(Message.user("x"))
        b.start().append(Message.user("y"))
        foreign(path, "UPDATE message SET body = x'00' WHERE number = (SELECT min(number) FROM message)")
        assert not a.verify().ok
        assert b.verify().ok


@pytest.mark.parametrize("name", ["'; DROP TABLE message; --", "a\0b", "../..", "ß" * 10_000, " "], ids=ascii)
def test_a_workspace_may_have_any_name(path: Path, name: str) -> None:
    for _ in range(2):
        with hitherto.open(path, workspace=name) as store:
            store.ensure("k").append(Message.user("x"))
    with hitherto.open(path, workspace=name) as store:
        assert store.stats().messages == 2
    with hitherto.open(path) as store:
        assert store.stats().messages == 0


@pytest.mark.parametrize(("place", "fits"), [(65_535, True), (131_072, False)])
def test_a_workspace_past_the_last_that_fits_is_refused(path: Path, place: int, fits: bool) -> None:
    """A message's rowid has the workspace in its high bits, so there is a last one."""
    with hitherto.open(path, workspace="late"):
        pass
    foreign(path, f"UPDATE workspace SET place = {place}", f"UPDATE conversation SET workspace = {place}")
    if fits:
        with hitherto.open(path, workspace="late") as store:
            store.start().append(Message.user("x"))
            assert store.verify().ok
    else:
        with pytest.raises(HithertoError), hitherto.open(path, workspace="late") as store:
            store.start().append(Message.user("x"))


def test_two_stores_on_one_file_in_one_process_see_each_other_at_once(path: Path) -> None:
    """C15, D19."""
    with hitherto.open(path) as a, hitherto.open(path) as b:
        talk = a.start()
        for n in range(20):
            talk.append(Message.user(f"a {n}"))
            b.conversation(talk.id).append(Message.user(f"b {n}"), on_conflict="follow")
            talk = a.conversation(talk.id)
        assert [m.text for m in talk.thread()] == [f"{who} {n}" for n in range(20) for who in "ab"]
        stale = a.conversation(talk.id)
        newer = b.conversation(talk.id).append(Message.user("faster"))
        with pytest.raises(Conflict) as caught:
            stale.append(Message.user("slower"), on_conflict="raise")
        assert caught.value.head == newer.id
        b.close()
        talk.refresh().append(Message.user("on"))
        assert a.verify().ok


WRITER = """
import sys, hitherto
try:
    with hitherto.open(sys.argv[1], timeout_seconds=0.2) as store:
        store.start()
    sys.stdout.write("wrote")
except hitherto.HithertoError as error:
    sys.stdout.write(type(error).__name__)
"""


def other_process_writes(path: Path) -> str:
    command = [sys.executable, "-c", WRITER, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_opening_and_closing_a_second_store_leaves_the_locks_of_the_first(path: Path) -> None:
    """C15: POSIX locks belong to the process, and closing any descriptor of a file drops them all."""
    with hitherto.open(path) as first:
        first.start()
        with backend_of(first)._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with hitherto.open(path) as second:
                second.stats()
            assert other_process_writes(path) == "Busy"
            connection.execute("ROLLBACK")
        assert other_process_writes(path) == "wrote"


def test_opening_and_closing_the_file_itself_would_drop_the_locks(path: Path) -> None:
    """The negative control: why `_files` never opens a file that is there."""
    with hitherto.open(path) as first:
        first.start()
        with backend_of(first)._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with Path(f"{path}-shm").open("rb"):
                pass
            assert other_process_writes(path) == "wrote"
            connection.execute("ROLLBACK")


# -- errors of SQLite


def kinds_of(kind: type[apsw.Error]) -> Iterator[type[apsw.Error]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_of(below)


def test_every_error_of_sqlite_becomes_one_of_ours(store: Store, path: Path) -> None:
    """STYLE: foreign exceptions are mapped at the seam, and none is missing."""
    kinds = set(kinds_of(apsw.Error))
    named = {value for value in vars(apsw).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert named <= kinds
    assert len(kinds) > 30
    for kind in kinds:
        ours = map_error(kind("reason"), str(path))
        assert isinstance(ours, StorageError | Damaged)
        assert str(path) in str(ours)
        with pytest.raises(type(ours)) as caught, backend_of(store)._connection():
            raise kind("reason")
        assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (apsw.BusyError, Busy),
        (apsw.LockedError, Busy),
        (apsw.FullError, StorageFull),
        (apsw.NotADBError, NotAStore),
        (apsw.CorruptError, Damaged),
        (apsw.ReadOnlyError, ReadOnly),
        (apsw.CantOpenError, CannotOpen),
        (apsw.IOError, StorageError),
    ],
)
def test_errors_that_people_can_act_on_have_their_own_class(
    path: Path, theirs: type[apsw.Error], ours: type[HithertoError]
) -> None:
    assert type(map_error(theirs("reason"), str(path))) is ours


def test_an_error_of_sqlite_is_ours_on_every_way_in(store: Store, path: Path) -> None:
    """The table is gone: whatever is asked for, the answer is one of our errors."""
    talk = store.start(model="m")
    sent = talk.append(Message.user("x"))
    foreign(path, "PRAGMA foreign_keys = OFF", "DROP TABLE tag", "DROP TABLE item", "DROP TABLE message")
    calls: list[Callable[[], object]] = [
        lambda: store.message(sent.id),
        lambda: store.thread(sent.id),
        lambda: list(store.messages()),
        lambda: list(store.messages(label="x")),
        lambda: store.conversation("abc"),
        lambda: store.delete([sent.id]),
        lambda: store.purge(talk, reason="user-requested"),
        lambda: talk.append(Message.user("y")),
        lambda: store.start(project="/p"),
        talk.branches,
        lambda: talk.configure(model="n"),
    ]
    for call in calls:
        with pytest.raises(HithertoError):
            call()
    assert not store.verify().ok


# -- taking deleted bytes out of the files


def marked(store: Store) -> str:
    """A conversation with the marker wherever text can be; its id."""
    talk = store.start(
        title=MARKER,
        system_prompt=MARKER,
        metadata={MARKER: MARKER},
        tools=[{"name": MARKER}],
        project=f"/{MARKER}",
    )
    for n in range(40):
        blocks = (Block.text(MARKER * (1 + n * 40), note=MARKER), Block.image(MARKER.encode(), "image/png"))
        message = Message("user", blocks, label=MARKER, key=f"{MARKER} {n}", extra={MARKER: MARKER}, raw=[MARKER])
        talk.append(message)
    talk.rename(f"{MARKER}, again")
    talk.label(f"{MARKER}, again")
    talk.configure(system_prompt=f"{MARKER}, again")
    talk.subagent(MARKER, "1").append(Message.user(MARKER))
    return talk.id


def residue(path: Path) -> int:
    return bytes_of(*files_of(path)).count(MARKER.encode())


def test_a_purge_leaves_no_trace_in_any_file(store: Store, path: Path) -> None:
    """D9."""
    other = store.start(title="stays").append(Message.user("stays"))
    id = marked(store)
    assert residue(path) > 100  # the control: the search finds what is there
    report = store.purge(id, reason="user-requested")
    assert not report.scrub_pending
    assert residue(path) == 0
    assert store.message(other.id).text == "stays"
    assert store.verify().ok
    store.close()
    assert residue(path) == 0


def test_deleted_messages_leave_no_trace_after_scrub(store: Store, path: Path) -> None:
    """D9."""
    talk = store.start()
    root = talk.append(Message.user("root"))
    for n in range(40):
        talk.append(Message.user(MARKER * (1 + n * 40), label=MARKER, key=f"{MARKER} {n}"))
    first = talk.thread()[1]
    store.scrub()
    assert residue(path) > 40
    store.delete([first.id], recursive=True)
    assert store.scrub()
    assert residue(path) == 0
    assert [m.id for m in store.messages()] == [root.id]


def test_titles_and_labels_that_were_replaced_leave_no_trace_after_scrub(store: Store, path: Path) -> None:
    talk = store.start(title=MARKER, metadata={"a": MARKER})
    talk.append(Message.user("x", label=MARKER))
    talk.rename("new")
    talk.describe({})
    talk.label("new")
    assert residue(path) > 0  # still in the WAL
    assert store.scrub()
    assert residue(path) == 0


def test_without_secure_delete_deleted_messages_stay_in_the_file(store: Store, path: Path) -> None:
    """The negative control."""
    talk = store.start()
    for n in range(40):
        talk.append(Message.user(MARKER * (1 + n * 40)))
    foreign(path, "PRAGMA secure_delete = OFF", "DELETE FROM message")
    assert store.scrub()
    assert rows(path, "SELECT count(*) FROM message") == [(0,)]
    assert residue(path) > 0


def test_without_scrub_deleted_messages_stay_in_the_wal(store: Store, path: Path) -> None:
    """The negative control."""
    sent = store.start().append(Message.user(MARKER))
    store.delete([sent.id])
    assert residue(path) > 0


def test_a_reader_delays_the_last_step_of_a_purge_and_scrub_finishes_it(store: Store, path: Path) -> None:
    """D9."""
    id = marked(store)
    reader = raw(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM message").fetchall()
    report = store.purge(id, reason="user-requested")
    assert (report.purged_count, report.scrub_pending) == (1, True)
    with pytest.raises(NotFound):
        store.conversation(id)
    assert not store.scrub()
    assert residue(path) > 0
    reader.execute("ROLLBACK")
    assert store.scrub()
    assert residue(path) == 0
    reader.close()


def test_a_reader_does_not_make_a_purge_wait_nor_stop_other_writers(path: Path) -> None:
    """D9: a purge takes less than 500 ms; what a reader delays is reported, not waited for. `timeout_seconds` is how
    long *writes* wait for each other; while a checkpoint waits for a reader, nobody can write."""
    with hitherto.open(path, timeout_seconds=AGES) as store:
        talk = store.start()
        talk.append(Message.user("x"))
        reader = raw(path)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        began = time.monotonic()
        report = store.purge(talk, reason="user-requested")
        took = time.monotonic() - began
        reader.close()
        assert report.scrub_pending
        assert took < SOON


# -- no space


def noise(size: int) -> str:
    """Text that does not get smaller by squeezing, or not by much."""
    return os.urandom(size // 2).hex()


def limit_pages(store: Store, pages: int | None) -> None:
    """Make the disk as small as that: so many pages more than now; None for no limit."""
    backend = backend_of(store)
    assert backend._pool.idle  # a single thread uses one connection, or a second beside it
    for connection in backend._pool.idle:
        connection.pragma("max_page_count", 2**30 if pages is None else connection.pragma("page_count") + pages)


def test_on_a_full_disk_nothing_acknowledged_is_lost_and_reads_go_on(store: Store, path: Path) -> None:
    """D14."""
    talk = store.start(title="t")
    spare = store.start(title="spare")
    spare.append(Message.user(noise(200_000)))
    kept = [talk.append(Message.user(f"{n}")) for n in range(5)]
    limit_pages(store, 40)
    full: StorageFull | None = None
    while full is None and len(kept) < 1000:
        try:
            kept.append(talk.append(Message.user(f"{len(kept)} {noise(5000)}")))
        except StorageFull as error:
            full = error
    assert full is not None
    assert full.hint
    assert len(kept) > 5
    for _ in range(3):
        with pytest.raises(StorageFull):
            talk.append(Message.user(noise(50_000)))
    assert talk.thread() == kept
    assert [m.id for m in store.messages(conversation=talk, newest_first=False)] == [m.id for m in kept]
    assert store.verify().ok
    with hitherto.open(path) as other:  # what another process sees
        assert [m.id for m in other.conversation(talk.id).thread()] == [m.id for m in kept]

    store.purge(spare, reason="user-requested")  # purging works, and frees space
    kept.append(talk.append(Message.user(noise(50_000))))
    with pytest.raises(StorageFull):
        talk.append(Message.user(noise(1_000_000)))

    limit_pages(store, None)
    kept.append(talk.append(Message.user(noise(1_000_000))))
    assert talk.thread() == kept
    assert store.verify().ok


def test_a_save_that_finds_the_disk_full_leaves_nothing_behind(store: Store) -> None:
    """C6, D14: the conversation that a save starts is part of the save."""
    store.start()
    before = store.stats().conversations
    limit_pages(store, 8)
    with pytest.raises(StorageFull):
        store.save([Message.user(noise(200_000))])
    assert store.stats().conversations == before
    limit_pages(store, None)
    assert store.save([Message.user("x" * 200_000)])
    assert store.stats().conversations == before + 1


# -- others that hold the lock


def test_a_lock_that_is_held_for_too_long_is_busy_and_the_write_can_be_repeated(store: Store, path: Path) -> None:
    """C15."""
    talk = store.start()
    talk.append(Message.user("0"))
    other = raw(path)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(Busy) as caught:
        talk.append(Message.user("1"))
    assert 0.3 <= time.monotonic() - began < SOON
    assert "timeout_seconds" in str(caught.value.hint)
    assert [m.text for m in talk.thread()] == ["0"]  # readers do not wait
    other.execute("ROLLBACK")
    talk.append(Message.user("1"))
    assert [m.text for m in talk.thread()] == ["0", "1"]
    assert store.verify().ok
    other.close()


def test_a_lock_that_is_given_up_in_time_is_waited_for(path: Path) -> None:
    """C15."""
    with hitherto.open(path, timeout_seconds=30) as store:
        talk = store.start()
        other = raw(path)
        other.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=lambda: talk.append(Message.user("waited")))
        writer.start()
        deadline = time.monotonic() + 30
        while not store.engine.committer._is_writing and time.monotonic() < deadline:
            time.sleep(0.001)
        assert writer.is_alive()
        other.execute("ROLLBACK")
        writer.join(30)
        other.close()
        assert [m.text for m in talk.thread()] == ["waited"]


def test_opening_waits_for_a_lock_too(path: Path) -> None:
    with hitherto.open(path):
        pass
    other = raw(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Busy):
        hitherto.open(path, workspace="new", timeout_seconds=0.1)
    with hitherto.open(path, timeout_seconds=0.1) as store:  # the control: what is there needs no lock to open
        assert store.stats().conversations == 0
    other.execute("ROLLBACK")
    other.close()


# -- the shelf, and connections that nobody may go on with


def test_verify_notices_a_conversation_that_would_be_listed_out_of_order(path: Path) -> None:
    """D2: the index is over a copy of the time, so the copy is checked."""
    with hitherto.open(path) as store:
        talks = [store.start() for _ in range(3)]
        assert store.verify().ok
        for wrong in (
            "UPDATE conversation SET shelf = shelf + 1 WHERE shelf < 1 << 62",
            "UPDATE conversation SET shelf = active_at",
            "UPDATE conversation SET shelf = 1 << 62 WHERE place = (SELECT min(place) + 1 FROM conversation)",
        ):
            foreign(path, wrong)
            told = [str(problem) for problem in store.verify().problems]
            assert ("SET shelf = active_at" in wrong) == (not told)  # without a front, the order is still right
            assert all("listed out of order" in line for line in told)
            foreign(path, "UPDATE conversation SET shelf = active_at")
        talks[0].append(Message.user("the newest again"))
        assert store.verify().ok
        assert [info.id for info in store.conversations()] == [talks[n].id for n in (0, 2, 1)]


def test_a_connection_left_inside_a_transaction_is_not_used_again(path: Path) -> None:
    with hitherto.open(path) as store:
        backend = backend_of(store)
        with backend._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
        with backend._connection() as another:
            assert another is not connection
            assert not another.in_transaction
        store.start().append(Message.user("the lock is free"))


def test_a_child_may_not_open_a_file_that_was_in_use_when_it_was_forked(path: Path) -> None:
    """The control: with nothing in use, the same child may."""
    with hitherto.open(path) as store:
        talk = store.start()
        for in_use in (True, False):
            lease = backend_of(store)._connection()
            if in_use:
                lease.__enter__()
            child = os.fork()
            if child == 0:
                try:
                    with hitherto.open(path) as mine:
                        mine.start()
                    os._exit(10)
                except CannotOpen:
                    os._exit(20)
                finally:
                    os._exit(30)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == (20 if in_use else 10)
            if in_use:
                lease.__exit__(None, None, None)
            talk.append(Message.user("the parent goes on"))
        assert store.verify().ok


def test_messages_are_read_by_their_numbers_never_through_a_whole_conversation(store: Store) -> None:
    """SQLite chooses an index by what it believes about tables that it knows nothing of. These reads must not grow with
    the store."""
    talk = store.start()
    for start in range(0, 200, 50):
        talk.extend([Message.user(str(n)) for n in range(start, start + 50)])
    backend = backend_of(store)
    asked: list[tuple[str, Any]] = []

    def hear(_: object, sql: str, values: Any) -> bool:
        asked.append((sql, values or ()))
        return True

    with backend._connection() as connection:
        connection.exec_trace = hear
    assert len(list(backend.path(199))) > 1
    assert len(backend.messages(numbers=range(40))) == 40
    assert backend.packs(range(0, 40 * 32, 32)) == []
    with backend._connection() as connection:
        connection.exec_trace = None
        selects = [(sql, values) for sql, values in asked if "FROM message" in sql or "FROM pack" in sql]
        assert len(selects) > 5
        for sql, values in selects:
            plan = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
            assert all("INTEGER PRIMARY KEY" in step for step in plan if step.startswith("SEARCH")), (sql, plan)
            scans = [step for step in plan if step.startswith("SCAN")]
            assert set(scans) <= {"SCAN way"}, (sql, plan)  # of the packs that were found so far


def test_a_way_through_many_packs_is_read_in_parts(store: Store) -> None:
    talk = store.start()
    said = talk.extend([Message.user(str(n)) for n in range(20 * RUN + 5)])
    handles = [talk]
    for at in (3, RUN - 1, RUN, 7 * RUN + 9, 20 * RUN + 2):
        fork = talk.fork(at=said[at].id)
        fork.extend([Message.user(f"{at} {n}") for n in range(2 * RUN)])
        handles.append(fork)
    before = [handle.thread() for handle in handles]
    assert store.maintain().packed > 20
    asked: list[str] = []
    backend = backend_of(store)

    def hear(_: object, sql: str, __: object) -> bool:
        asked.append(sql)
        return True

    with backend._connection() as connection:
        connection.exec_trace = hear
    assert talk.thread() == before[0]
    with backend._connection() as connection:
        connection.exec_trace = None
    assert len(before[0]) == len(said)
    assert 2 <= sum("FROM pack" in sql for sql in asked) <= 4
    assert [handle.thread() for handle in handles] == before


@pytest.mark.parametrize("column", ["seq", "created_at", "revision", "number", "role"])
def test_a_header_that_holds_something_else_is_damage_and_not_compared(column: str) -> None:
    """One flipped bit in a record makes bytes of a number; no schema prevents that."""
    good = message_row(1)
    assert check_headers([good]) == [good]
    with pytest.raises(Damaged):
        check_headers([replace(good, **{column: b"\1"})])


@pytest.mark.parametrize("sealed", [False, True])
def test_a_conversation_that_grows_while_it_is_verified_is_sound(path: Path, sealed: bool) -> None:
    """A check during a write of another process reported damage, for as long as that process wrote."""
    key = Key.generate() if sealed else None
    with hitherto.open(path, key=key) as store, hitherto.open(path, key=key) as other:
        talk = store.start()
        talk.extend([Message.user(f"{n}", label="spoken") for n in range(10)])
        theirs, scan = other.conversation(talk.id), store.backend.scan

        def scan_while_others_speak(*given: Any, **how: Any) -> Any:
            attached = Block.image(os.urandom(70_000), "image/png")
            theirs.append(Message.user([Block.text("more"), attached], label="spoken"))
            return scan(*given, **how)

        store.backend.scan = scan_while_others_speak  # type: ignore[method-assign]
        report = store.verify()
        assert report.ok, report.problems
        assert report.messages == 10
        store.backend.scan = scan  # type: ignore[method-assign]
        assert store.verify().messages > 10


def test_a_message_that_nobody_added_is_noticed_though_it_comes_last(path: Path) -> None:
    """The control: what is later than the conversation says, and stays so, was put there."""
    with hitherto.open(path) as store:
        store.start().extend([Message.user("one"), Message.user("two")])
    foreign(path, "UPDATE message SET seq = seq + 100 WHERE seq = (SELECT max(seq) FROM message)")
    with hitherto.open(path) as store:
        assert any("out of order" in problem.what for problem in store.verify().problems)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("what", ["label", "purge", "delete"])
def test_what_others_do_to_conversations_that_are_still_to_be_verified_is_no_damage(
    path: Path, sealed: bool, what: str
) -> None:
    key = Key.generate() if sealed else None
    with hitherto.open(path, key=key) as store, hitherto.open(path, key=key) as other:
        talks = [store.start(project="/p") for _ in range(3)]
        last = [talk.extend([Message.user("a", label="L"), Message.user("b", label="L")])[-1] for talk in talks]

        def meddle(done: int) -> None:
            if done == 1 and what == "label":
                other.conversation(last[2].id).label("M")
            elif done == 1 and what == "purge":
                other.purge(talks[2].id, reason="user-requested")
            elif done == 1:
                other.delete([last[2].id])

        report = store.verify(progress=meddle)
        assert report.ok, report.problems
        assert store.verify().ok


def test_what_is_configured_on_a_branch_counts_there_and_nowhere_else(path: Path) -> None:
    """A handle that stands before the head says how it goes on from there; the head goes on as it was."""
    with hitherto.open(path) as store:
        firsts: list[dict[str, Any]] = [{}, {"system_prompt": "S0", "model": "m0"}]
        for first in firsts:
            talk = store.start(**first)
            one, _ = talk.extend([Message.user("one"), Message.assistant("two")])
            branch = talk.fork(at=one.id)
            branch.configure(system_prompt="S7", model="m7")
            assert store.conversation(talk.id).setup.system_prompt == first.get("system_prompt", "")
            said = branch.append(Message.assistant("another"))
            there, here = store.conversation(said.id), store.conversation(talk.id)
            assert [(h.system_prompt, h.model) for h in (there, here, branch)] == [("S7", "m7")] * 3  # it is the head
            back = store.conversation(one.id)
            assert (back.system_prompt, back.model) == (first.get("system_prompt", ""), first.get("model", ""))
            here.configure(system_prompt="S8")
            assert store.conversation(talk.id).system_prompt == "S8"
            assert store.conversation(one.id).system_prompt == first.get("system_prompt", "")
        assert store.verify().ok
