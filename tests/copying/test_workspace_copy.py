"""Moving house: a store copied row by row into another one, whatever it lies on.

The copy is the same store: every row is compared here once more, by other means than the copy's own. Copies are stopped
for real, in processes that are killed; sources change while they are read. Beside a protection stands the same test
without it.

Requirements: C15, D17.
"""

import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

import hitherto
from hitherto import Block, Key, Message, Store
from hitherto import copying as moving
from hitherto._copying import row_pages, workspace_copy
from hitherto._copying.workspace_copy import WorkspaceCopier
from hitherto.backend import Backend, Where
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.sqlite import SqliteBackend
from hitherto.copying import StoreCopy, copy_store
from hitherto.errors import (
    Busy,
    CannotOpen,
    CommitUnknown,
    Damaged,
    InvalidArgument,
    KeyUnavailable,
    NotExportable,
    NotFound,
)
from hitherto.ids import new_conversation_id
from hitherto.records import Records
from hitherto.testing.conformance import id_bytes, noise, pack_all
from hitherto.testing.toys import Contrary

from ..support.server import Server, find_binaries

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
PATIENCE = 60  # seconds: never waited for unless something is wrong


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here")
    try:
        server = Server(binaries)
    except PermissionError:
        pytest.skip(f"PostgreSQL does not run as root, and others may not run {binaries}")
    yield server
    server.stop()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes at once: everything takes many commits."""
    for module in (workspace_copy, row_pages):
        monkeypatch.setattr(module, "PIECE", 2000)
        monkeypatch.setattr(module, "PAGE", 3)


@pytest.fixture(params=["near", "far"])
def reading_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a server, and as from a file."""
    if request.param == "far":
        monkeypatch.setattr(row_pages, "_is_far", lambda _: True)


def filled(store: Store) -> None:
    """One of everything that is kept."""
    long = store.start(title="Long", project="/work", metadata={"a": "b"}, provider="p", model="m")
    for n in range(40):
        long.extend([Message.user(f"question {n}"), Message.assistant(f"answer {n}", label="good" if n % 3 else None)])
    early = long.thread()[3].id
    other = long.fork(at=early)
    other.append(Message.user("another way"))
    pack_all(store)
    films = store.start(title="Films")
    film = noise(300_000)
    films.append(Message.user([Block.video(film, "video/mp4"), Block.text("look")]))
    films.append(Message.user([Block.video(film, "video/mp4"), Block.video(noise(70_001), "video/mp4")]))
    named = store.ensure("by-name", title="Named")
    named.append(Message.user("nul\0 and more", key="message-key"))
    for n in range(20):
        named.configure(model=f"m{n}")
    named.hold()
    store.start(title="Empty")
    store.backend.stage(id_bytes(named), b"never adopted", 0, [b"x"], last=True, at=1)
    gone = store.start(title="Gone")
    gone.append(Message.user("forgotten"))
    store.purge(gone.id, reason="user-requested")
    store.conversation(long.id).rename("Longer")
    Records(store).create(messages=[{"role": "user", "content": "a record"}])


def everything(backend: Backend) -> dict[str, object]:
    """All rows there are, by reading them plainly."""
    found: dict[str, object] = {"edge": backend.edge(), "kinds": backend.kinds()}
    for kind in backend.kinds():
        for place in backend.page(Where(kind), None, 10_000):
            row = backend.lookup(ids=[place.id])[0]
            messages = backend.scan(row.id, limit=100_000)
            kept = [one for one in backend.attachments(row.id) if one.messages]
            found[row.id.hex()] = (
                row,
                messages,
                sorted(backend.packs([m.number for m in messages]), key=lambda pack: pack.first),
                backend.items(row.id),
                backend.tags(row.id, limit=100_000),
                [(one, b"".join(backend.chunks(row.id, one.name))) for one in kept],
            )
    return found


class Ends:
    """Sources and targets of a kind, made where there is nothing."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest, stack: ExitStack) -> None:
        self._folder, self._request, self._stack = folder, request, stack

    def __call__(self, kind: str, identity: bytes | None = None, workspace: str = "default") -> Backend:
        made = self._make(kind, identity, workspace)
        self._stack.callback(made.close)
        return made

    def _make(self, kind: str, identity: bytes | None, workspace: str) -> Backend:
        if kind == "memory":
            return MemoryBackend(identity=identity)
        if kind == "sqlite":
            path = self._folder / f"{new_conversation_id().hex()}.db"
            return SqliteBackend(path, workspace=workspace, identity=identity)
        from hitherto.backends.postgres import PostgresBackend

        url = self._request.getfixturevalue("server").url
        own = f"{workspace}-{new_conversation_id().hex()}" if workspace == "default" else workspace
        return PostgresBackend(url, workspace=own, identity=identity)


@pytest.fixture
def ends(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(tmp_path, request, stack)


PAIRS = [
    ("sqlite", "sqlite"),
    ("sqlite", "memory"),
    ("memory", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
def test_the_copy_is_the_same_store_on_any_backend(
    ends: Ends, pair: tuple[str, str], key: bytes | None, small: None
) -> None:
    source = Store(ends(pair[0]), key=None if key is None else Key(key), maintenance=False)
    filled(source)
    target = ends(pair[1], source.backend.info.workspace)
    done = copy_store(source, target)
    assert (done.conversations, done.compared, done.unchanged) == (5, 5, 0)
    assert (done.ok, done.finished, done.opened) == (True, True, True)
    ours, theirs = everything(source.backend), everything(target)
    if key is not None and source.backend.info.workspace_name != target.info.workspace_name:  # which is sealed, too
        for found in (ours, theirs):
            del found[source.engine.workspace.row.id.hex()]
    assert theirs == ours
    assert target.attachments(id_bytes(source.ensure("by-name"))) == []  # nobody refers to what was staged there
    copy = Store(target, key=None if key is None else Key(key), maintenance=False)
    assert [m.id for m in copy.messages()] == [m.id for m in source.messages()]
    hits = [{hit.message_id for hit in store.search("answer 17")} for store in (source, copy)]
    assert hits[0] == hits[1] != set()
    added = copy.conversation(source.conversations(limit=1).items[0].id).append(Message.user("and on"))
    assert added.id not in {m.id for m in source.messages()}
    assert copy.verify().ok


# -- sealed


def test_what_is_sealed_is_copied_by_who_has_no_key_and_opens_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hitherto.open(tmp_path / "source.db", key=KEY) as store:
        filled(store)
        texts = [m.text for m in store.messages()]

    def used(*_: object, **__: object) -> None:
        raise AssertionError("something was opened")

    with monkeypatch.context() as patched:
        patched.setattr("hitherto._sealing.primitives.derive", used)  # without which no key opens anything
        done = copy_store(tmp_path / "source.db", tmp_path / "copy.db")
        assert (done.finished, done.opened, done.ok, done.compared) == (True, False, True, 5)
        with pytest.raises(AssertionError):  # and with the key it is
            copy_store(tmp_path / "source.db", tmp_path / "other.db", key=KEY)
    with hitherto.open(tmp_path / "copy.db", key=KEY) as copy:
        assert copy.verify().ok
        assert [m.text for m in copy.messages()] == texts
    for wrong in (None, OTHER):
        with pytest.raises(KeyUnavailable):
            hitherto.open(tmp_path / "copy.db", key=wrong)


def test_a_sealed_workspace_gets_another_name_only_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hitherto.open(tmp_path / "source.db", key=KEY) as store:
        store.start(title="T").append(Message.user("x"))
    with pytest.raises(InvalidArgument, match="the name of the workspace is sealed"):
        copy_store(tmp_path / "source.db", tmp_path / "copy.db", to_workspace="w")
    assert not (tmp_path / "copy.db").exists()
    assert copy_store(tmp_path / "source.db", tmp_path / "copy.db", to_workspace="w", key=KEY).ok
    with hitherto.open(tmp_path / "copy.db", key=KEY, workspace="w") as copy:
        assert copy.verify().ok
    monkeypatch.setattr(WorkspaceCopier, "_set_name", lambda _, row: row)
    with pytest.raises(Damaged, match="under another name"):
        copy_store(tmp_path / "source.db", tmp_path / "control.db", to_workspace="v", key=KEY)


def test_a_workspace_in_the_same_file_has_an_identity_of_its_own(tmp_path: Path) -> None:
    for key in (None, KEY):
        file = tmp_path / f"{key is None}.db"
        with hitherto.open(file, key=key) as store:
            store.start(title="T").append(Message.user("words in one"))
        if key is None:
            assert copy_store(file, file, to_workspace="w").ok
        else:
            with pytest.raises(InvalidArgument, match="bound to its workspace"):
                copy_store(file, file, key=key, to_workspace="w")
            continue
        with hitherto.open(file) as one, hitherto.open(file, workspace="w") as two:
            assert one.backend.info.workspace != two.backend.info.workspace
            two.latest().append(Message.user("only here"))  # type: ignore[union-attr]  # it is there
            assert [len(list(store.search("only"))) for store in (one, two)] == [0, 1]


def test_what_must_not_leave_stays_and_nothing_is_made(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "source.db") as store:
        kept = Records(store).create(messages=[{"role": "user", "content": "x"}], privacy={"exportable": False})
    with pytest.raises(NotExportable, match=kept.conversation_id):
        copy_store(tmp_path / "source.db", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    with pytest.raises(NotExportable), hitherto.open(tmp_path / "source.db") as store:
        copy_store(store, MemoryBackend())


# -- stopped


class StopError(Exception):
    pass


def stopping(after: int) -> Callable[[int], None]:
    def progress(done: int) -> None:
        if done >= after:
            raise StopError

    return progress


def many(path: Path, count: int = 12, key: bytes | None = None, text: str = "") -> None:
    with hitherto.open(path, key=key) as store:
        for n in range(count):
            store.start(title=f"t{n}").extend([Message.user(f"u{n}{text}"), Message.assistant(f"a{n}{text}")])


def is_open(backend: Backend) -> bool:
    rows = backend.lookup(key=("workspace", b"workspace"))
    return bool(rows and rows[0].meta)


def same(one: Path, other: Path, *, workspace: str = "default") -> bool:
    backends = [SqliteBackend(path, workspace=workspace) for path in (one, other)]
    try:
        ours, theirs = (everything(backend) for backend in backends)
        return ours == theirs
    finally:
        for backend in backends:
            backend.close()


def test_half_a_copy_is_closed_to_all_until_it_is_whole(tmp_path: Path, small: None) -> None:
    source, target = tmp_path / "source.db", tmp_path / "copy.db"
    many(source)
    with pytest.raises(StopError):
        copy_store(source, target, progress=stopping(6))
    for how in ({}, {"read_only": True}, {"create": False}):
        with pytest.raises(CannotOpen, match="a copy into this workspace is not finished"):
            hitherto.open(target, **how)  # type: ignore[arg-type]  # one by one
    with pytest.raises(NotFound):
        copy_store(target, tmp_path / "third.db")
    done = copy_store(source, target)
    assert (done.conversations, done.unchanged, done.compared, done.finished) == (9, 3, 12, True)
    assert same(source, target)


KILLED = """
import sys, time, hitherto
from hitherto._copying import workspace_copy, row_pages
workspace_copy.PAGE = row_pages.PAGE = 2
workspace_copy.PIECE = row_pages.PIECE = int(sys.argv[3])
def progress(done):
    if done >= 8:
        print("now", flush=True)
        time.sleep(1000)
commit = workspace_copy.WorkspaceCopier._commit
def counted(self, *changes):
    commit(self, *changes)
    if any(len(change.add) for change in changes):
        progress(8)
if int(sys.argv[3]) < 1000:
    workspace_copy.WorkspaceCopier._commit = counted
hitherto.copying.copy_store(sys.argv[1], sys.argv[2], progress=progress)
"""


@pytest.mark.parametrize("piece", [1 << 20, 500], ids=["between conversations", "inside of one"])
def test_a_copy_that_is_killed_goes_on_and_ends_the_same(tmp_path: Path, piece: int) -> None:
    source, target = tmp_path / "source.db", tmp_path / "copy.db"
    many(source, text="x" * 600)
    started = [sys.executable, "-c", KILLED, str(source), str(target), str(piece)]
    with subprocess.Popen(started, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGKILL)
    half = SqliteBackend(target)
    there = half.count(Where())
    half.close()
    assert 0 < there < 12
    done = copy_store(source, target)
    assert (done.finished, done.ok) == (True, True)
    assert done.conversations == (8 if piece > 1000 else 12)  # one that was half there was not taken for whole
    assert same(source, target)


def test_half_a_conversation_would_be_taken_for_whole_if_it_had_the_token_of_the_whole(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source.db", tmp_path / "copy.db"
    with hitherto.open(source) as store:
        store.start().extend([Message.user("x" * 900) for _ in range(9)])

    def early(self: Any) -> None:
        self._commit(self.change(self._row))
        raise StopError

    for control in (False, True):
        with monkeypatch.context() as patched:
            if control:
                patched.setattr(workspace_copy._Growing, "_write", early)
            else:
                patched.setattr(WorkspaceCopier, "_count", lambda *_: stopping(0)(1))
            with pytest.raises(StopError):
                copy_store(source, target, progress=stopping(1))
            patched.setattr(WorkspaceCopier, "_compare", lambda _: True)
            patched.undo()
            patched.setattr(WorkspaceCopier, "_compare", lambda _: True)
            done = copy_store(source, target)
        assert done.ok is not control
        target.unlink()


def test_a_target_that_misbehaves_within_its_contract_ends_the_same(tmp_path: Path, small: None) -> None:
    many(tmp_path / "source.db")
    inner = SqliteBackend(tmp_path / "copy.db")
    target = cast("Backend", Contrary(inner, seed=7, trouble=0.15))
    done = None
    while done is None:
        try:
            done = copy_store(tmp_path / "source.db", target)
        except (Busy, CommitUnknown):
            if is_open(inner):  # the last commit was kept, and we were not told
                break
    inner.close()
    assert same(tmp_path / "source.db", tmp_path / "copy.db")


# -- a source that changes


class Watched:
    """A backend that does something before it answers."""

    def __init__(self, inner: Backend, verb: str, before: Callable[[], object]) -> None:
        self._inner, self._verb, self._before = inner, verb, before

    def __getattr__(self, name: str) -> object:
        if name == self._verb:
            self._before()
        return getattr(self._inner, name)


class Trusting:
    """Says of every conversation that it stands as it was read."""

    def get(self, _: object) -> object:
        return self

    def __getitem__(self, _: object) -> object:
        return self

    def __contains__(self, _: object) -> bool:
        return True

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = object.__hash__


@pytest.mark.usefixtures("reading_ahead")
@pytest.mark.parametrize("trusting", [False, True], ids=["looked after", "trusting"])
@pytest.mark.parametrize("piece", [2000, 1 << 22], ids=["in several commits", "in one"])
def test_a_conversation_is_copied_as_it_was_at_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusting: bool, piece: int
) -> None:
    for module in (workspace_copy, row_pages):
        monkeypatch.setattr(module, "PIECE", piece)
    monkeypatch.setattr(WorkspaceCopier, "_compare", lambda _: True)  # which would find it
    source = hitherto.open(tmp_path / "source.db", maintenance=False)
    talk = source.start(title="T")
    talk.extend([Message.user("first" + "x" * 1500) for _ in range(3)])
    left = [3]

    def grow() -> None:
        if left[0]:
            left[0] -= 1
            talk.append(Message.user("more"))

    watched = cast("Backend", Watched(source.backend, "scan", grow))
    target = MemoryBackend(identity=source.backend.info.workspace)
    if trusting:
        monkeypatch.setattr(WorkspaceCopier, "_tokens", lambda *_: Trusting())
    done = moving.copy_rows(watched, target, source)
    assert done.ok is not trusting
    if not trusting:
        assert everything(target) == everything(source.backend)
    source.close()


@pytest.mark.usefixtures("reading_ahead")
def test_a_source_that_never_stands_still_is_said_and_can_be_copied_most_of_before(tmp_path: Path) -> None:
    source = hitherto.open(tmp_path / "source.db", maintenance=False)
    quiet, loud = source.start(title="quiet"), source.start(title="loud")
    quiet.append(Message.user("x"))
    watched = cast("Backend", Watched(source.backend, "scan", lambda: loud.append(Message.user("more"))))
    target = MemoryBackend(identity=source.backend.info.workspace)
    with pytest.raises(Busy, match="faster than it can be copied"):
        moving.copy_rows(watched, target, source)
    done = moving.copy_rows(watched, target, source, more=True)
    assert (done.finished, done.compared) == (False, 0)
    done = moving.copy_rows(source.backend, target, source)
    assert (done.finished, done.unchanged) == (True, 1)
    assert everything(target) == everything(source.backend)
    source.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_another_run_brings_what_has_changed_since_and_takes_away_what_is_gone(
    ends: Ends, kind: str, small: None
) -> None:
    source = Store(ends("sqlite"), maintenance=False)
    filled(source)
    target = ends(kind, source.backend.info.workspace)
    assert not copy_store(source, target, more=True).finished
    found = {info.title: info.id for info in source.conversations(limit=9).items}
    source.purge(found["Films"], reason="user-requested")
    talk = source.conversation(found["Longer"])
    source.delete([talk.thread()[-1].id])
    talk = source.conversation(found["Longer"])
    talk.append(Message.user("and something else"))
    source.start(title="New").append(Message.user("new"))
    done = copy_store(source, target)
    assert (done.conversations, done.unchanged, done.finished) == (2, 3, True)
    assert everything(target) == everything(source.backend)


def test_a_name_that_another_conversation_has_got_since_is_that_ones_in_the_copy(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "source.db") as source:
        first = source.ensure("name")
        copy_store(source, tmp_path / "copy.db", more=True)
        source.purge(first.id, reason="user-requested")
        second = source.ensure("name")
        assert copy_store(source, tmp_path / "copy.db").ok
    with hitherto.open(tmp_path / "copy.db") as copy:
        assert copy.ensure("name").id == second.id


def test_what_is_purged_while_the_copy_is_compared_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(tmp_path / "source.db", 3)
    compare = WorkspaceCopier._compare
    with hitherto.open(tmp_path / "source.db") as source:
        gone = source.conversations(limit=1).items[0].id

        def purge(self: WorkspaceCopier) -> bool:
            found = compare(self)
            source.purge(gone, reason="user-requested")
            return found

        monkeypatch.setattr(WorkspaceCopier, "_compare", purge)
        assert copy_store(source, tmp_path / "copy.db").ok
    with hitherto.open(tmp_path / "copy.db") as copy:
        assert gone not in {info.id for info in copy.conversations(limit=9).items}
        assert copy.stats().conversations == 2


def test_a_record_that_is_told_to_stay_while_others_are_copied_stays(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "source.db") as source:
        Records(source).create(messages=[{"role": "user", "content": "x"}], privacy={"exportable": False})
        target = MemoryBackend(identity=source.backend.info.workspace)
        with pytest.raises(NotExportable):  # although nobody has looked before
            moving.copy_rows(source.backend, target, source)
        assert target.count(Where()) == 0


def test_another_key_for_the_source_while_it_is_copied_is_another_key_for_the_copy(tmp_path: Path) -> None:
    many(tmp_path / "source.db", key=KEY)
    source = hitherto.open(tmp_path / "source.db", key=KEY, maintenance=False)
    rotated: list[bool] = []

    def rotate() -> None:
        if not rotated:
            rotated.append(True)
            source.rotate(Key(OTHER))

    target = MemoryBackend(identity=source.backend.info.workspace)
    watched = cast("Backend", Watched(source.backend, "edge", rotate))
    late = cast("Backend", Watched(watched, "attachments", rotate))
    assert moving.copy_rows(late, target, source).ok
    assert Store(target, key=Key(OTHER), maintenance=False).verify().ok
    source.close()


def test_of_two_copies_at_once_the_later_one_goes_on(tmp_path: Path, small: None) -> None:
    source, target = tmp_path / "source.db", tmp_path / "copy.db"
    many(source)
    done: list[StoreCopy] = []

    def another(count: int) -> None:
        if not done and count >= 4:
            done.append(copy_store(source, target))
            with hitherto.open(target) as copy:
                for info in copy.conversations(limit=99).items:
                    copy.conversation(info.id).append(Message.user("and on"))

    with pytest.raises(Busy, match="another copy into the target has begun"):
        copy_store(source, target, progress=another)
    assert (done[0].finished, done[0].ok) == (True, True)
    with hitherto.open(target) as copy:
        assert [m.text for m in copy.messages()].count("and on") == 12  # the first one has touched nothing since


def test_numbers_that_were_used_in_the_source_are_not_used_again_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids(target: Path) -> set[str]:
        with hitherto.open(target) as copy:
            return {copy.start().append(Message.user("new")).id for _ in range(3)}

    with hitherto.open(tmp_path / "source.db") as store:
        gone = store.start()
        used = {gone.append(Message.user("gone")).id}
        store.purge(gone.id, reason="user-requested")
    copy_store(tmp_path / "source.db", tmp_path / "copy.db")
    assert not used & ids(tmp_path / "copy.db")
    monkeypatch.setattr(SqliteBackend, "edge", lambda _: 0)
    copy_store(tmp_path / "source.db", tmp_path / "control.db")
    monkeypatch.undo()
    assert used & ids(tmp_path / "control.db")


# -- compared

CHANGES = {
    "a body": "UPDATE message SET body = x'00' WHERE rowid = (SELECT max(number) FROM message WHERE body IS NOT NULL)",
    "a header": "UPDATE message SET role = 'x' WHERE rowid = (SELECT max(number) FROM message)",
    "a message": "DELETE FROM message WHERE number = (SELECT max(number) FROM message)",
    "a pack": "UPDATE pack SET body = x'00'",
    "an item": "UPDATE item SET body = x'00' WHERE conversation = (SELECT max(conversation) FROM item)",
    "a tag": "DELETE FROM tag WHERE message >= 0",
    "a chunk": "UPDATE chunk SET body = x'00' WHERE number = (SELECT max(number) FROM chunk)",
    "a reference": "DELETE FROM reference WHERE message = (SELECT max(message) FROM reference)",
    "a row": "UPDATE conversation SET held = 1 - held "
    "WHERE place = (SELECT max(place) FROM conversation WHERE kind = 'chat')",
}


@pytest.mark.usefixtures("reading_ahead")
@pytest.mark.parametrize("what", list(CHANGES))
@pytest.mark.parametrize("compared", [True, False], ids=["compared", "not compared"])
def test_what_is_changed_in_the_copy_behind_its_back_is_found(
    sealed_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, compared: bool
) -> None:
    target, compare = tmp_path / "copy.db", WorkspaceCopier._compare

    def after_a_change(self: WorkspaceCopier) -> bool:
        connection = apsw.Connection(str(target))
        connection.execute(CHANGES[what])
        assert connection.changes() > 0
        connection.close()
        return compare(self) if compared else True

    with monkeypatch.context() as patched:
        patched.setattr(WorkspaceCopier, "_compare", after_a_change)
        done = copy_store(sealed_source, target)
    assert done.ok is not compared
    assert done.finished is not compared
    if compared:
        assert len(done.different) > 0
        with pytest.raises(CannotOpen):
            hitherto.open(target, key=KEY)
        again = copy_store(sealed_source, target)
        assert (again.ok, again.finished, again.conversations) == (True, True, len(done.different))
        assert same(sealed_source, target)


@pytest.fixture(scope="module")
def sealed_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("source") / "source.db"
    with hitherto.open(file, key=KEY, maintenance=False) as store:
        filled(store)
    return file


def test_what_is_damaged_in_the_source_is_copied_as_it_is_and_said(tmp_path: Path) -> None:
    many(tmp_path / "source.db", 3)
    connection = apsw.Connection(str(tmp_path / "source.db"))
    connection.execute("UPDATE message SET body = x'00' WHERE number = (SELECT min(number) FROM message)")
    connection.close()
    done = copy_store(tmp_path / "source.db", tmp_path / "copy.db")
    assert (done.finished, done.ok) == (True, False)
    assert len(done.problems) > 0
    assert same(tmp_path / "source.db", tmp_path / "copy.db")


def test_an_attachment_with_a_hole_stops_the_copy(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "source.db") as store:
        store.start().append(Message.user([Block.video(noise(3_000_000), "video/mp4")]))
    connection = apsw.Connection(str(tmp_path / "source.db"))
    connection.execute("DELETE FROM chunk WHERE number = (SELECT max(number) FROM chunk)")
    connection.close()
    with pytest.raises(Damaged, match="is not whole"):
        copy_store(tmp_path / "source.db", tmp_path / "copy.db")
    with pytest.raises(CannotOpen):
        hitherto.open(tmp_path / "copy.db")


# -- how much at once


@pytest.mark.usefixtures("reading_ahead")
@pytest.mark.parametrize("bounded", [True, False], ids=["in pieces", "at once"])
def test_however_large_a_conversation_is_little_of_it_is_in_memory(
    large_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    if not bounded:
        for module in (workspace_copy, row_pages):
            monkeypatch.setattr(module, "PIECE", 1 << 40)
            monkeypatch.setattr(module, "PAGE", 1 << 20)
    source = SqliteBackend(large_source, create=False)
    target = SqliteBackend(tmp_path / "copy.db", identity=source.info.workspace)
    tracemalloc.start()
    try:
        done = moving.copy_rows(source, target, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        source.close()
        target.close()
    assert (done.finished, done.ok) == (True, True)
    assert (peak < 30 << 20) is bounded


@pytest.fixture(scope="module")
def large_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One conversation of 60 MB: messages, an item, and an attachment."""
    file = tmp_path_factory.mktemp("large") / "source.db"
    with hitherto.open(file, key=KEY, maintenance=False) as store:
        talk = store.start(title="Large")
        text = noise(300_000).hex()
        for n in range(50):
            talk.append(Message.user(f"{n}{text}"))
        talk.append(Message.user([Block.video(noise(30_000_000), "video/mp4")]))
    return file


# -- where it cannot go


def test_where_rows_cannot_go_is_said_and_nothing_is_changed(tmp_path: Path) -> None:
    many(tmp_path / "plain.db", 2)
    many(tmp_path / "sealed.db", 2, key=KEY)
    many(tmp_path / "full.db", 2)
    for name, key in (("empty.db", None), ("empty-sealed.db", KEY), ("empty-other.db", OTHER)):
        hitherto.open(tmp_path / name, key=key).close()
    with pytest.raises(StopError):
        copy_store(tmp_path / "full.db", tmp_path / "half.db", progress=stopping(0))
    os.link(tmp_path / "empty.db", tmp_path / "same.db")
    refused = [
        ("plain.db", "full.db", "there are conversations in the target"),
        ("plain.db", "plain.db", "the source itself"),
        ("empty.db", "same.db", "the source itself"),
        ("plain.db", "empty-sealed.db", "sealed with another key"),
        ("sealed.db", "empty.db", "the target is plain"),
        ("sealed.db", "empty-other.db", "sealed with another key"),
        ("sealed.db", "empty-sealed.db", "bound to its workspace"),
        ("plain.db", "half.db", "a copy of another store is on its way"),
    ]
    for source, target, why in refused:
        before = (tmp_path / target).read_bytes()
        with pytest.raises(InvalidArgument, match=why):
            copy_store(tmp_path / source, tmp_path / target)
        assert (tmp_path / target).read_bytes() == before, target
    assert copy_store(tmp_path / "plain.db", tmp_path / "empty.db").ok  # and into an empty one it can
    assert same(tmp_path / "plain.db", tmp_path / "empty.db")


def test_a_finished_copy_takes_more_by_messages(tmp_path: Path) -> None:
    many(tmp_path / "source.db", 2)
    assert copy_store(tmp_path / "source.db", tmp_path / "copy.db").ok
    many(tmp_path / "source.db", 1)
    with pytest.raises(InvalidArgument, match="already"):
        copy_store(tmp_path / "source.db", tmp_path / "copy.db")
    with hitherto.open(tmp_path / "source.db") as ours, hitherto.open(tmp_path / "copy.db") as theirs:
        loaded = hitherto.formats.copy(ours, theirs)
        assert (loaded.new, loaded.unchanged, loaded.messages) == (1, 2, 2)


def test_what_is_no_end_of_a_copy_is_refused(tmp_path: Path) -> None:
    many(tmp_path / "source.db", 1)
    with hitherto.open(tmp_path / "other.db") as store:
        for target in (store, 5, None):
            with pytest.raises(InvalidArgument):
                copy_store(tmp_path / "source.db", target)  # type: ignore[arg-type]  # that is what is tested
    for source in (5, None, MemoryBackend()):
        with pytest.raises(InvalidArgument):
            copy_store(source, tmp_path / "copy.db")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(InvalidArgument, match="gone at once"):
        copy_store(tmp_path / "source.db", "memory:")
    with pytest.raises(CannotOpen):
        copy_store(tmp_path / "missing.db", tmp_path / "copy.db")
    with pytest.raises(NotFound):
        copy_store(tmp_path / "source.db", tmp_path / "copy.db", workspace="misspelt")
    assert not (tmp_path / "copy.db").exists()
    assert not (tmp_path / "missing.db").exists()


def test_somebody_who_begins_a_conversation_in_an_empty_target_keeps_it(tmp_path: Path) -> None:
    many(tmp_path / "source.db", 1)
    with hitherto.open(tmp_path / "copy.db") as other, hitherto.open(tmp_path / "source.db") as source:
        inner, titles = SqliteBackend(tmp_path / "copy.db"), ["mine"]

        def begin() -> None:
            if titles:
                other.start(title=titles.pop())

        target = cast("Backend", Watched(inner, "commit", begin))  # at the last moment
        with pytest.raises(Busy, match="somebody else uses the target"):
            moving.copy_rows(source.backend, target, source)
        inner.close()
        assert other.verify().ok
        other.start(title="and mine")
    with hitherto.open(tmp_path / "copy.db") as again:
        assert {info.title for info in again.conversations(limit=9).items} == {"mine", "and mine"}


def test_who_has_an_empty_target_open_cannot_write_into_the_copy(tmp_path: Path, small: None) -> None:
    many(tmp_path / "source.db", 3)
    with hitherto.open(tmp_path / "copy.db") as other:
        copy_store(tmp_path / "source.db", tmp_path / "copy.db", more=True)
        with pytest.raises(CannotOpen, match="not finished"):
            other.start(title="mine")
    assert copy_store(tmp_path / "source.db", tmp_path / "copy.db").ok
    assert same(tmp_path / "source.db", tmp_path / "copy.db")


def test_a_copy_stopped_at_the_last_moment_goes_on_when_the_source_has_gone_on(tmp_path: Path) -> None:
    """The number that is held until the end may be in use in the source by then."""
    with hitherto.open(tmp_path / "source.db") as store:
        store.start(title="old").append(Message.user("x"))
        inner = SqliteBackend(tmp_path / "copy.db", identity=store.backend.info.workspace)
        calls = iter(range(100))

        def late() -> None:
            if next(calls) == 0:
                store.start(title="new").append(Message.user("y"))  # after all was looked through
                inner.commit = stopped  # type: ignore[method-assign]  # the last commit

        commit, left = inner.commit, [1]

        def stopped(batches: Any) -> Any:
            if not left[0]:
                raise StopError
            left[0] -= 1
            return commit(batches)

        watched = cast("Backend", Watched(store.backend, "edge", late))
        with pytest.raises(StopError):
            moving.copy_rows(watched, inner, store)
        inner.commit = commit  # type: ignore[method-assign]  # as before
        assert moving.copy_rows(store.backend, inner, store).ok
        assert everything(inner) == everything(store.backend)
        inner.close()
