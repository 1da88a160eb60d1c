"""Another key, for the workspace or for everything in it, while others read and write; and sealing, and unsealing.

Every job is done to the same store, which has a bit of everything: packs and loose messages, attachments, labels, keys,
projects, branches, setups. What people see of it (`view`) is the same before, after, in between, and after the process
that did it was killed at any write. What is on the disk is searched for what must not be there any more.

Requirements: D20.
"""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import apsw
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import hitherto
from hitherto import Block, Conversation, HithertoError, Key, Message, Saved, Store
from hitherto._engine import compression, lease, packing
from hitherto._engine.workspace import KeyState, Workspace
from hitherto._erasure import maintenance
from hitherto._sealing import reencryption, rotation, sealed
from hitherto.attachment import Attachment
from hitherto.backend import DONE, WORKSPACE, Backend, Batch, ConversationRow, Outcome, Where
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.sqlite import SqliteBackend
from hitherto.backends.sqlite.writing import Writer
from hitherto.errors import Damaged, InvalidArgument, InvalidKey, KeyUnavailable, NotSealed, StorageFull
from hitherto.ids import parse_conversation_id, show_conversation_id
from hitherto.listing import conversations
from hitherto.reports import RotationProgress, RotationReport
from hitherto.testing.faultdisk import FaultDisk, Mode
from hitherto.testing.toys import Contrary

from ..support import rotation_processes
from ..support.patience import AGES, SOON
from ..support.thorough import THOROUGH
from ..support.waiting import until

PATIENCE = 60.0  # seconds after which something that should happen counts as stuck
WORD = "xylograph"  # in everything that is said
TRACE = b"lograph"  # what is left of it in an index that shares the beginnings of words
OLD, NEW, THIRD = (Key(bytes([n]) * 32) for n in (1, 2, 3))
KEY_BYTES = {OLD.id: bytes([1]) * 32, NEW.id: bytes([2]) * 32, THIRD.id: bytes([3]) * 32}


@dataclass(frozen=True)
class Job:
    """What is done to a store, and which key opens it before and after."""

    name: str
    before: Key | None
    after: Key | None

    def __call__(self, store: Store, progress: Callable[[RotationProgress], None] | None = None) -> RotationReport:
        return rotation_processes.run(store, self.name, self.after, progress)


ROTATE, REENCRYPT = Job("rotate", OLD, NEW), Job("reencrypt", OLD, NEW)
SEAL, UNSEAL = Job("seal", None, NEW), Job("unseal", OLD, None)
JOBS = (ROTATE, REENCRYPT, SEAL, UNSEAL)
each_job = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)


@pytest.fixture
def path(place: Path) -> Path:
    (place / "store").mkdir()
    return place / "store" / "store.db"


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that even a small store takes many; and nothing is squeezed, so that a test can look for it."""
    monkeypatch.setattr(reencryption, "_STEP", 24)
    monkeypatch.setattr(rotation, "_AT_ONCE", 4)
    monkeypatch.setattr(reencryption, "_AT_ONCE", 4)
    monkeypatch.setattr(rotation, "_TELL_SECONDS", -1.0)
    monkeypatch.setattr(compression, "_MIN_BYTES", 1 << 40)


@pytest.fixture
def two_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease keeps anybody from working on a job that others work on: as if clocks had jumped."""
    monkeypatch.setattr(lease.Lease, "_others", lambda *_: None)


def opened(path: Path, key: Key | None, **options: Any) -> Store:
    return hitherto.open(path, key=key, **{"maintenance": False, **options})


# What a store holds, and what people see of it


def picture(what: str) -> Block:
    """An attachment of a few chunks."""
    content = f"{WORD} {what} ".encode() * 30
    return Block.image(Attachment(len(content), lambda: iter((content,))), "image/png")


def fill(store: Store, *, small: bool = False) -> None:
    """A bit of everything."""
    one = store.ensure(
        f"{WORD} key",
        title=f"{WORD} title",
        system_prompt=f"{WORD} prompt",
        provider="p",
        metadata={"about": WORD},
        project=f"/{WORD}",
    )
    for n in range(3 if small else 18):
        one.extend([Message.user(f"{WORD} {n}", key=f"{WORD}-{n}"), Message.assistant(f"{WORD} answer {n}")])
    pictured = one.append(Message.user([Block.text(f"{WORD} look"), picture("a")], label=f"{WORD} label"))
    two = store.start(title=f"{WORD} two", project=f"/{WORD}")
    two.extend([Message.user(f"{WORD} asked"), Message.user([Block.text(WORD), picture("b")])])
    store.start(title=f"{WORD} empty")
    store.maintain()
    one.configure(system_prompt=f"{WORD} another prompt")
    one.label(f"{WORD} packed", message=one.thread()[1])
    one.append(Message.user([Block.text(f"{WORD} again"), picture("a"), picture("c")]))
    one.subagent("scout", "r1").append(Message.assistant(f"{WORD} scouted"))
    fork = one.fork(pictured)
    fork.append(Message.user(f"{WORD} otherwise"))
    fork.compact(f"{WORD} summed up")
    fork.append(Message.user(f"{WORD} went on", key="last"))
    if not small:
        for n in range(5):
            store.start(title=f"{WORD} {n}").append(Message.user(f"{WORD} only {n}", label="x"))


def view(store: Store, *, search: bool = True) -> dict[str, object]:
    """All that people see of a store."""
    seen: dict[str, object] = {}
    page = store.conversations(limit=10_000, include_expired=True, total=True)
    messages = list(store.messages())
    seen["order"] = [info.id for info in page], page.total
    seen["problems"] = [message.problem for message in messages if message.problem]
    seen["messages"] = messages
    seen["oldest first"] = list(store.messages(newest_first=False)) == messages[::-1]
    for info in page:
        talk = store.conversation(info.id)
        said = (info.title, info.key, info.project, info.metadata, info.head, info.count, info.held)
        when = (info.created_at, info.active_at)
        seen[info.id] = said, when, talk.setup, talk.thread(full=True), talk.branches()
        if info.project is not None:
            seen[info.project] = [found.id for found in store.conversations(project=info.project, limit=1000)]
        if info.metadata:
            alike = store.conversations(metadata=info.metadata, limit=1000, total=True)
            seen[f"metadata {info.metadata}"] = [found.id for found in alike], alike.total
        if info.key is not None:
            seen[f"key {info.key}"] = store.ensure(info.key).id
    for message in messages:
        if message.label is not None:
            seen[f"label {message.label}"] = [found.id for found in store.messages(label=message.label)]
        if message.key is not None:
            again = store.conversation(message.conversation).append(Message.user("again", key=message.key))
            seen[f"message key {message.conversation} {message.key}"] = again.id
    if search:
        seen["found"] = sorted(hit.message_id for hit in store.search(WORD, limit=1000))
    return seen


def is_as(store: Store, meant: dict[str, object], *, search: bool) -> bool:
    """Does a store look like this? Searching takes time, and changes what is stored."""
    seen = view(store, search=search)
    return all(seen.get(name) == meant[name] for name in meant if search or name != "found")


def made(path: Path, key: Key | None, *, small: bool = False, search: bool = True) -> dict[str, object]:
    """Make a store; its view."""
    with opened(path, key) as store:
        fill(store, small=small)
        return {"found": sorted(message.id for message in store.messages()), **view(store, search=search)}


def opens(path: Path, key: Key | None) -> bool:
    try:
        opened(path, key).close()
    except (KeyUnavailable, NotSealed):
        return False
    return True


def who_opens(path: Path) -> list[Key | None]:
    return [key for key in (None, OLD, NEW, THIRD) if opens(path, key)]


def check(path: Path, key: Key | None, meant: dict[str, object]) -> None:
    """This key and no other opens the store, and it is as it was."""
    assert who_opens(path) == [key]
    with opened(path, key) as store:
        assert problems(store) == []
        assert view(store) == meant


def problems(store: Store) -> list[str]:
    return [str(problem) for problem in store.verify().problems]


# What lies in the files


def rows(backend: Backend) -> list[ConversationRow]:
    return [row for kind in backend.kinds() for row in conversations(backend, Where(kind), oldest_first=True)]


def pieces(path: Path) -> list[bytes]:
    """Everything opaque that the rows hold, and what stands for names: enough of each to find it in the raw files."""
    backend = SqliteBackend(path)
    found: list[bytes] = []
    try:
        for row in rows(backend):
            found += [row.meta, row.proof, row.key if row.kind != WORKSPACE and row.key else b""]
            messages = backend.scan(row.id, limit=10_000)
            found += [m.body or b"" for m in messages] + [m.key or b"" for m in messages]
            found += [pack.body for pack in backend.packs(sorted({m.number - m.number % 32 for m in messages}))]
            found += [item.body for item in backend.items(row.id)]
            for attachment in backend.attachments(row.id):
                found += [attachment.name, *backend.chunks(row.id, attachment.name)]
    finally:
        backend.close()
    found += [value for (value,) in apsw.Connection(str(path)).execute("SELECT value FROM tag")]
    return [piece[-16:] for piece in found if len(piece) >= 16]


def boxes(path: Path) -> list[tuple[sealed.Slot, ...]]:
    backend = SqliteBackend(path)
    try:
        return [sealed.read_box(row.data_key) for row in rows(backend)]
    finally:
        backend.close()


def files(path: Path) -> bytes:
    """All bytes of all files of the store."""
    return b"\0".join(file.read_bytes() for file in sorted(path.parent.iterdir()) if file.is_file())


def left_in_files(path: Path, needles: Sequence[bytes]) -> int:
    content = files(path)
    return sum(needle in content for needle in needles)


def check_files(path: Path, job: Job, before: Sequence[bytes], wrapped: Sequence[bytes]) -> None:
    """Nothing is left of what the job was to remove; the store may be open."""
    slots = boxes(path)
    if job.after is None:
        assert all(not box for box in slots)
    else:
        assert {slot.key_id.hex() for box in slots for slot in box} == {job.after.id}
        assert all(len(box) == 1 for box in slots)
    assert left_in_files(path, wrapped) == 0
    if job.before is not None:
        assert bytes.fromhex(job.before.id) not in files(path)
    if job.name in ("reencrypt", "unseal"):
        assert left_in_files(path, before) == 0
    if job.name == "seal":
        assert TRACE not in files(path)


def wrapped_keys(path: Path) -> list[bytes]:
    return [slot.wrapped[-32:] for box in boxes(path) for slot in box if slot.wrapped]


# 1, 2. Everything survives, and what must go is gone


@each_job
def test_all_is_as_it_was_and_only_the_new_key_opens_it(path: Path, job: Job) -> None:
    meant = made(path, job.before)
    before, wrapped = pieces(path), wrapped_keys(path)
    with opened(path, job.before) as store:
        done = job(store)
        assert done.complete
        assert done.conversations == len(store.conversations(limit=100))
        assert not done.scrub_pending
        assert store.key_id == (None if job.after is None else job.after.id)
        check_files(path, job, before, wrapped)
        assert view(store) == meant
        assert problems(store) == []
    check_files(path, job, before, wrapped)
    check(path, job.after, meant)


def test_rewrapping_leaves_the_content_alone(path: Path) -> None:
    """The control for the files: it is re-encryption that removes the old ciphertext."""
    made(path, OLD)
    before = pieces(path)
    with opened(path, OLD) as store:
        assert store.rotate(NEW).complete
    assert left_in_files(path, before) > len(before) // 2


def test_a_plain_store_has_its_words_in_its_files(path: Path) -> None:
    """The control for sealing: the word that is looked for afterwards is there before, also in the search index."""
    made(path, None)
    for name in ("store.db", "store.db-search"):
        assert TRACE in (path.parent / name).read_bytes()


@pytest.mark.parametrize("job", [ROTATE, REENCRYPT], ids=lambda job: job.name)
def test_a_backup_of_before_dies_with_the_old_key(path: Path, place: Path, job: Job) -> None:
    """It opens with the old key and with no other; whoever destroys that key destroys the backup."""
    meant = made(path, OLD)
    with opened(path, OLD) as store:
        store.backup(place / "backup.db")
        job(store)
        store.start(title="later")
        store.backup(place / "later.db")
    assert who_opens(place / "backup.db") == [OLD]
    assert who_opens(place / "later.db") == [NEW]
    check(place / "backup.db", OLD, meant)


def test_a_data_key_from_a_backup_opens_the_live_store_unless_it_was_re_encrypted(path: Path, place: Path) -> None:
    """Why there are both: whoever had the old key and a backup has the data keys, which rewrapping keeps."""
    made(path, OLD)
    outcomes = []
    for job in (ROTATE, REENCRYPT):
        live = place / job.name / "store.db"
        live.parent.mkdir()
        shutil.copy(path, live)
        with opened(live, OLD) as store:
            secrets = {row.id: store.engine.codec.envelope(row) for row in rows(store.backend) if row.kind != WORKSPACE}
            job(store)
            readable = 0
            for id, envelope in secrets.items():
                for m in store.backend.scan(id, limit=1000):
                    with suppress(Damaged):
                        readable += m.body is not None and len(envelope.open_messages([m])) == 1
            outcomes.append(readable > 0)
    assert outcomes == [True, False]


def test_a_store_can_be_sealed_rotated_and_unsealed_over_and_over(path: Path) -> None:
    meant = made(path, None)
    with opened(path, None) as store:
        for _ in range(2):
            for done in (
                store.seal(OLD),
                store.rotate(NEW),
                store.rotate(THIRD, reencrypt=True),
                store.rotate(THIRD, reencrypt=True),
                store.rotate(OLD),
                store.unseal(),
            ):
                assert done.complete
                assert problems(store) == []
                assert view(store) == meant
    check(path, None, meant)


def test_progress_counts_up_to_all_conversations(path: Path) -> None:
    made(path, OLD)
    told: list[RotationProgress] = []
    with opened(path, OLD) as store:
        store.rotate(NEW, reencrypt=True, progress=told.append)
        count = len(store.conversations(limit=100))
    assert [progress.done for progress in told[:count]] == list(range(1, count + 1))
    assert {progress.total for progress in told} == {count}
    assert told[-1] == RotationProgress(count, count)
    assert str(told[0]) == f"1 of {count} conversations"


class Stop(BaseException):
    """Raised in the middle of a job: it stops there. Not an error, so that nobody handles it, like Ctrl+C."""


class Stopping(Contrary):
    """A backend that can be stopped before a commit."""

    def __init__(self, inner: Backend, *, seed: int = 0, trouble: float = 0.0) -> None:
        super().__init__(inner, seed=seed, trouble=trouble)
        self.left: int | None = None  # commits until it stops; None: it does not

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        if self.left is not None and batches:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Stop
        return super().commit(batches)


class RotationMachine(RuleBasedStateMachine):
    """Any sequence of writes and jobs, of which some are interrupted and gone on with later. No job changes the view,
    and the old key opens nothing."""

    def make(self, seed: int) -> Stopping:
        return Stopping(MemoryBackend())

    @initialize(key=st.sampled_from([None, OLD, NEW]), seed=st.integers(0, 999))
    def begin(self, key: Key | None, seed: int) -> None:
        self.backend = self.make(seed)
        self.now = 1_700_000_000_000_000
        self.key = key
        self.pending: tuple[Callable[[], RotationReport], Key | None] | None = None
        self.store = self._open(key)
        self.ids: list[str] = []
        self.count = 0

    def _open(self, key: Key | None) -> Store:
        return Store(self.backend, key=key, maintenance=False, clock=self.clock)

    def clock(self) -> int:
        self.now += 1
        return self.now

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close(timeout_seconds=0.1)

    def _talk(self, pick: int) -> Conversation:
        if not self.ids:
            self.ids.append(self.store.start(title=WORD).id)
        return self.store.conversation(self.ids[pick % len(self.ids)])

    def _word(self) -> str:
        self.count += 1
        return f"{WORD} {self.count}"

    @rule(pick=st.integers(0, 9), count=st.integers(1, 40), key=st.sampled_from([None, None, "k", "l"]))
    def append(self, pick: int, count: int, key: str | None) -> None:
        talk = self._talk(pick)
        talk.extend([Message.user(self._word()) for _ in range(count)])
        if key is not None:
            talk.append(Message.user(self._word(), key=key))

    @rule(pick=st.integers(0, 9), what=st.sampled_from(["a", "b"]))
    def attach(self, pick: int, what: str) -> None:
        self._talk(pick).append(Message.user([Block.text(self._word()), picture(what)]))

    @rule(key=st.sampled_from([None, "one", "two"]), project=st.sampled_from([None, "/p", "/q"]))
    def start(self, key: str | None, project: str | None) -> None:
        talk = self.store.start(project=project) if key is None else self.store.ensure(key, project=project)
        self.ids = [*dict.fromkeys([*self.ids, talk.id])]

    @rule(pick=st.integers(0, 9), at=st.integers(0, 99), label=st.sampled_from([None, "x", "y", "subagent:a:1"]))
    def label(self, pick: int, at: int, label: str | None) -> None:
        talk = self._talk(pick)
        thread = talk.thread()
        if thread:
            talk.label(label, message=thread[at % len(thread)])

    @rule(pick=st.integers(0, 9), at=st.integers(0, 99), how=st.sampled_from(["fork", "compact", "subagent", "set"]))
    def branch(self, pick: int, at: int, how: str) -> None:
        talk = self._talk(pick)
        thread = talk.thread()
        if how == "set":
            talk.configure(system_prompt=self._word())
        elif thread and how == "compact":
            talk.compact(self._word())
        elif thread and how == "subagent":
            talk.subagent("a", str(at)).append(Message.assistant(self._word()))
        elif thread:
            talk.fork(thread[at % len(thread)]).append(Message.user(self._word()))

    @rule(pick=st.integers(0, 9), at=st.integers(0, 99))
    def delete(self, pick: int, at: int) -> None:
        thread = self._talk(pick).thread()
        if thread:
            self.store.delete([thread[at % len(thread)]], recursive=True)

    @rule(pick=st.integers(0, 9))
    def purge(self, pick: int) -> None:
        talk = self._talk(pick)
        self.store.purge(talk.id, reason="user-requested")
        self.ids.remove(talk.id)

    @rule()
    def pack(self) -> None:
        """What maintenance does first; all of it would finish the job."""
        maintenance._pack_all(self.store.engine, time.monotonic() + PATIENCE, None)

    @rule()
    def look(self) -> None:
        """The labels that are found are those that there are."""
        labels: dict[str, set[str]] = {name: set() for name in ("x", "y", "subagent:a:1")}
        for message in self.store.messages():
            assert message.problem is None
            if message.label in labels:
                labels[message.label].add(message.id)
        for name, ids in labels.items():
            assert {message.id for message in self.store.messages(label=name)} == ids

    @precondition(lambda self: self.key is not None and self.pending is None)
    @rule(key=st.sampled_from([OLD, NEW, THIRD]), reencrypt=st.booleans(), stop=st.none() | st.integers(0, 12))
    def rotate(self, key: Key, reencrypt: bool, stop: int | None) -> None:
        self._job(lambda: self.store.rotate(key, reencrypt=reencrypt), key, stop)

    @precondition(lambda self: self.key is None and self.pending is None)
    @rule(key=st.sampled_from([OLD, NEW]), stop=st.none() | st.integers(0, 12))
    def seal(self, key: Key, stop: int | None) -> None:
        self._job(lambda: self.store.seal(key), key, stop)

    @precondition(lambda self: self.key is not None and self.pending is None)
    @rule(stop=st.none() | st.integers(0, 12))
    def unseal(self, stop: int | None) -> None:
        self._job(self.store.unseal, None, stop)

    def _job(self, job: Callable[[], RotationReport], key: Key | None, stop: int | None) -> None:
        meant = view(self.store)
        self.backend.left = stop
        try:
            done = job()
        except Stop:
            self.pending = job, key
            assert view(self.store) == meant
            assert problems(self.store) == []
            return
        finally:
            self.backend.left = None
        self._done(done, key, meant)

    @precondition(lambda self: self.pending is not None)
    @rule(stop=st.none() | st.integers(0, 12))
    def resume(self, stop: int | None) -> None:
        assert self.pending is not None
        self._job(*self.pending, stop)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def resume_elsewhere(self) -> None:
        """The process is gone; another one opens the store with whatever key opens it, and maintenance goes on."""
        assert self.pending is not None
        meant = view(self.store)
        for key in dict.fromkeys([self.pending[1], self.key]):
            with suppress(KeyUnavailable, NotSealed):
                self.store = self._open(key)
                break
        assert view(self.store) == meant
        assert any(self.store.maintain().complete for _ in range(20))  # a contrary backend makes it try again
        assert not rotation.pending(self.store.engine)
        assert problems(self.store) == []
        assert view(self.store) == meant
        self.pending, self.key = None, next((key for key in (OLD, NEW, THIRD) if key.id == self.store.key_id), None)

    def _done(self, done: RotationReport, key: Key | None, meant: dict[str, object]) -> None:
        assert done.complete, done
        assert problems(self.store) == []
        assert view(self.store) == meant
        self.key, self.pending = key, None
        for other in (None, OLD, NEW, THIRD):
            if other is key:
                assert view(self._open(other)) == meant
            else:
                with pytest.raises((KeyUnavailable, NotSealed)):
                    self._open(other)


class SqliteRotationMachine(RotationMachine):
    def make(self, seed: int) -> Stopping:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(dir=memory)
        return Stopping(SqliteBackend(Path(self.folder.name) / "store.db"))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


class ContraryRotationMachine(RotationMachine):
    def make(self, seed: int) -> Stopping:
        return Stopping(MemoryBackend(), seed=seed, trouble=0.1)


@pytest.mark.parametrize(
    ("machine", "examples"),
    [(RotationMachine, 20), (SqliteRotationMachine, 8), (ContraryRotationMachine, 15)],
    ids=["memory", "sqlite", "contrary"],
)
def test_any_sequence_of_writes_and_jobs_keeps_everything(machine: type[RotationMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # what fails may fail in time only: a shorter example is not worth the wait
        ),
    )


# 3. Kill -9, and power cuts


class Child:
    """One of the programs in `support.rotation_processes`, and the lines that it says."""

    def __init__(self, *arguments: object) -> None:
        program = [sys.executable, "-m", "tests.support.rotation_processes", *(str(argument) for argument in arguments)]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
        self._lines: SimpleQueue[list[str] | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode().split())
        self._lines.put(None)

    def line(self) -> list[str]:
        """The words of the next line."""
        try:
            words = self._lines.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError("the process is stuck") from None
        assert words is not None, "the process is gone"
        return words

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((" ".join(str(word) for word in words) + "\n").encode())
        self.process.stdin.flush()

    def ask(self, *words: object) -> list[str]:
        self.tell(*words)
        return self.line()

    def end(self) -> None:
        """Leave nothing behind."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self.process.stdout.close()


@pytest.fixture
def launch() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(*arguments: object) -> Child:
        children.append(Child(*arguments))
        return children[-1]

    yield start
    for child in children:
        child.end()


def shown(key: Key | None) -> str:
    """A key as the programs read one."""
    return "-" if key is None else KEY_BYTES[key.id].hex()


def copied(path: Path, place: Path, name: object) -> Path:
    """A copy of a store that nobody has open."""
    target = place / str(name)
    shutil.copytree(path.parent, target)
    return target / path.name


def killed_everywhere(path: Path, place: Path, job: Job, child: Child) -> Iterator[tuple[int, bool, Path]]:
    """For each write that the job makes, a copy of the store whose process was killed right before it; and at last one
    whose process was killed when it was done, and before it closed: whether it was done, too."""
    moment, finished = 0, False
    while not finished:
        moment += 1
        copy = copied(path, place, f"{job.name}-{moment}")
        how = child.ask(copy, shown(job.before), job.name, shown(job.after), moment)[0]
        assert how in ("killed", "done")
        finished = how == "done"
        yield moment, finished, copy
        shutil.rmtree(copy.parent)


@each_job
def test_a_process_killed_before_any_write_leaves_a_store_that_one_key_opens_and_that_is_finished_later(
    path: Path, place: Path, launch: Callable[..., Child], job: Job
) -> None:
    meant = made(path, job.before, small=True, search=False)
    before, wrapped = pieces(path), wrapped_keys(path)
    moments = 0
    for moment, finished, copy in killed_everywhere(path, place, job, launch("killed")):
        moments = moment
        key = job.before if moment == 1 or (job is UNSEAL and not opens(copy, None)) else job.after
        assert [one for one in (job.before, job.after) if opens(copy, one)] == [key]
        with opened(copy, key) as store:
            assert problems(store) == []
            assert is_as(store, meant, search=moment % 5 == 0)
            if moment % 2 and moment > 1:
                assert store.maintain().complete
                assert not rotation.pending(store.engine)
            elif not finished:
                assert job(store).complete
            assert problems(store) == []
            assert is_as(store, meant, search=moment % 5 == 1)
            assert store.scrub()
            check_files(copy, job, before, wrapped)
        assert not opens(copy, job.before)
    assert moments > (3 if job is ROTATE else 12)


def test_a_process_killed_while_it_seals_leaves_no_words_in_the_search_index(
    path: Path, place: Path, launch: Callable[..., Child]
) -> None:
    with opened(path, None) as store:
        store.start(title=WORD).append(Message.user(WORD))
        assert store.search(WORD)
    left = []
    for moment, _, copy in killed_everywhere(path, place, SEAL, launch("killed")):
        if moment > 1:
            with opened(copy, NEW) as store:
                assert store.maintain().complete
                assert store.seal(NEW).complete
                assert store.scrub()
            if TRACE in files(copy):
                left.append(moment)
    assert left == []


@dataclass
class Cut:
    """A life of a store on a simulated disk, up to the end of a job."""

    meant: dict[str, object]
    first: int  # the operation before the job
    last: int


def lived(disk: FaultDisk, job: Job) -> Cut:
    where = disk.directory / "store.db"
    with opened(where, job.before, vfs=disk.name) as store:
        fill(store, small=True)
        meant = view(store, search=False)
        store.scrub()
        first = disk.operations
        assert job(store).complete
        last = disk.operations
        disk.mark("done")
    return Cut(meant, first, last)


@pytest.fixture
def disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultDisk]:
    (place / "live").mkdir()
    with FaultDisk(place / "live") as disk:

        def fsync(descriptor: int) -> None:
            try:
                disk.fsync(descriptor)
            except apsw.Error as error:
                raise OSError(errno.EIO, str(error)) from error

        monkeypatch.setattr(os, "fsync", fsync)
        yield disk


@pytest.mark.parametrize(
    ("job", "mode"),
    [(ROTATE, "none"), (ROTATE, "torn"), (REENCRYPT, "none"), (REENCRYPT, "torn"), (SEAL, "none"), (UNSEAL, "none")],
    ids=lambda value: value.name if isinstance(value, Job) else value,
)
def test_a_power_cut_around_any_sync_loses_nothing(disk: FaultDisk, place: Path, job: Job, mode: Mode) -> None:
    cut = lived(disk, job)
    syncs = [n for n in range(cut.first, cut.last + 1) if disk.log[n - 1].kind == "sync"]
    wanted = sorted({*syncs, *(n - 1 for n in syncs), cut.last})
    if not THOROUGH:
        wanted = [*wanted[:6], *wanted[6:-6:6], *wanted[-6:]]
    images = disk.images(mode, place / "images", first=cut.first, last=cut.last)
    openers = set()
    for number, image in images:
        if number not in wanted:
            continue
        copy = image / "store.db"
        keys = [key for key in {job.before, job.after} if opens(copy, key)]
        assert len(keys) == 1
        openers.add(keys[0])
        with opened(copy, keys[0]) as store:
            if number % 3 == 0:
                assert problems(store) == []
                assert view(store, search=False) == cut.meant
            assert (job is UNSEAL and keys == [None]) or job(store).complete
            assert problems(store) == []
            assert view(store, search=False) == cut.meant
    assert openers == {job.before, job.after}
    assert len(wanted) > 10


# 4. Others go on: in this process


def in_threads(works: Sequence[Callable[[threading.Event], None]], meanwhile: Callable[[], None]) -> None:
    """Let all of these run until something else is done; the first error is raised."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def begin(work: Callable[[threading.Event], None]) -> None:
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is raised below
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=begin, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "stuck"
    if errors:
        raise errors[0]


class Crowd:
    """Threads that do all that people do, and remember what was acknowledged."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.shared = store.start(title="shared").id
        store.conversation(self.shared).append(Message.user("first"))
        self.saved: list[Saved] = []
        self.started: list[str] = []

    def works(self) -> list[Callable[[threading.Event], None]]:
        return [self.append, self.append, self.attach, self.start, self.label, self.read, self.list, self.pack]

    def append(self, stop: threading.Event) -> None:
        talk = self.store.conversation(self.shared)
        while not stop.is_set():
            self.saved.append(talk.append(Message.user(f"{WORD} {len(self.saved)}"), on_conflict="follow"))
            stop.wait(0.003)  # a job catches up without, but that takes a while

    def attach(self, stop: threading.Event) -> None:
        talk = self.store.start(title="own")
        while not stop.wait(0.003):
            block = picture(str(len(self.saved) % 3))
            self.saved.append(talk.append(Message.user([Block.text(WORD), block])))
            found = self.store.message(self.saved[-1]).blocks[1].content
            assert isinstance(block.content, Attachment)
            assert found == block.content.load()

    def start(self, stop: threading.Event) -> None:
        """Not too many: all of them have to get other keys, again and again."""
        while not stop.wait(0.003 if len(self.started) < 40 else 0.2):
            talk = self.store.start(title=f"{WORD} new", project="/p")
            self.started.append(talk.id)
            self.saved.append(talk.append(Message.user("hello", label="x")))
            assert self.store.ensure(f"key {len(self.started) % 5}").key is not None

    def label(self, stop: threading.Event) -> None:
        talk = self.store.start(title="labelled")
        number = 0
        while not stop.wait(0.003):
            number += 1
            message = talk.append(Message.user(f"{number}"))
            self.saved.append(message)
            talk.label("x", message=message)
            talk.label(f"label {number}", message=message)
            talk.rename(f"title {number}")
            assert [found.id for found in self.store.messages(label=f"label {number}")] == [message.id]
            if number % 5 == 0:
                self.store.delete([talk.fork().append(Message.user("away"))])

    def read(self, stop: threading.Event) -> None:
        talk = self.store.conversation(self.shared)
        while not stop.wait(0.003):
            with suppress(hitherto.NotFound):
                assert talk.follow().thread()
            for info in self.store.conversations(limit=50):
                assert info.problem is None
                with suppress(hitherto.NotFound):  # its head was deleted this moment
                    for message in self.store.conversation(info.id).thread():
                        assert message.problem is None

    def list(self, stop: threading.Event) -> None:
        while not stop.wait(0.003):
            assert [message.problem for message in self.store.messages() if message.problem] == []
            self.store.conversations(project="/p")

    def search(self, stop: threading.Event) -> None:
        while not stop.wait(0.003):
            self.store.search(WORD, limit=5)

    def pack(self, stop: threading.Event) -> None:
        while not stop.wait(0.003):
            maintenance._pack_all(self.store.engine, time.monotonic() + PATIENCE, None)

    def check(self, store: Store) -> None:
        assert problems(store) == []
        there = {message.id: message for message in store.messages()}
        assert [message.id for message in self.saved if message.id not in there] == []
        assert [message.problem for message in there.values() if message.problem] == []
        assert set(self.started) <= {info.id for info in store.conversations(limit=10_000)}


def rounds(store: Store, key: Key | None) -> None:
    """All jobs, one after the other."""
    jobs: list[Callable[[], RotationReport]] = [
        lambda: store.rotate(NEW),
        lambda: store.rotate(OLD, reencrypt=True),
        lambda: store.rotate(THIRD, reencrypt=True),
        lambda: store.rotate(OLD),
    ]
    if key is None:
        jobs = [lambda: store.seal(OLD), *jobs, store.unseal]
    for job in jobs:
        assert job().complete
        assert store.quarantine() == []


@pytest.fixture
def usual_steps(_small_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as they are: with small ones a job would not catch up with those who append all the time."""
    monkeypatch.setattr(reencryption, "_STEP", 128)
    monkeypatch.setattr(rotation, "_AT_ONCE", 256)
    monkeypatch.setattr(reencryption, "_AT_ONCE", 256)


@pytest.mark.usefixtures("usual_steps")
@pytest.mark.parametrize("key", [OLD, None], ids=["rotate", "seal and unseal"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_threads_go_on_while_keys_change(path: Path, kind: str, key: Key | None) -> None:
    """Nobody sees an error, nothing is lost, and what is read is never called damaged."""
    backend: Backend = MemoryBackend() if kind == "memory" else SqliteBackend(path)
    store = Store(backend, key=key, maintenance=False)
    fill(store, small=True)
    crowd = Crowd(store)

    def jobs() -> None:
        rounds(store, key)
        while len(crowd.saved) <= 20:  # the others have hardly begun
            rounds(store, key)

    in_threads(crowd.works(), jobs)
    crowd.check(store)
    crowd.check(Store(backend, key=key, maintenance=False))
    store.close()


@pytest.mark.parametrize("job", [ROTATE, REENCRYPT, SEAL], ids=lambda job: job.name)
def test_no_thread_sees_a_codec_that_cannot_name_anything_yet(
    path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads take the codec without a lock. Each codec adopts the row of the workspace before they can see it."""
    adopt, seen = sealed.Sealed.adopt, []
    with opened(path, job.before) as store:
        store.start(title="one")

        def look(self: sealed.Sealed, row: ConversationRow) -> Any:
            seen.append(store.engine.codec.tags("label", "x"))  # as an append of another thread does
            return adopt(self, row)

        monkeypatch.setattr(sealed.Sealed, "adopt", look)
        assert job(store).complete
    assert seen


@pytest.mark.usefixtures("usual_steps")
@pytest.mark.parametrize("key", [OLD, None], ids=["rotate", "seal and unseal"])
def test_searches_go_on_while_keys_change(path: Path, key: Key | None) -> None:
    store = opened(path, key)
    fill(store, small=True)
    crowd = Crowd(store)
    in_threads([crowd.search, crowd.search, crowd.append], lambda: rounds(store, key))
    crowd.check(store)
    store.close()


@each_job
def test_a_search_that_began_before_a_job_finds_everything(path: Path, job: Job) -> None:
    """The index is made anew when the job is done, and the search is in the middle of it."""
    meant = made(path, job.before, small=True)
    with opened(path, job.before) as store:
        store.search(WORD)
        store.start().append(Message.user("new"))
        changes = store.backend.changes

        def late(since: bytes | None) -> Any:
            store.backend.changes = changes  # type: ignore[method-assign]
            found = changes(since)
            assert job(store).complete
            return found

        store.backend.changes = late  # type: ignore[method-assign]
        assert sorted(hit.message_id for hit in store.search(WORD, limit=1000)) == meant["found"]


def after_write(store: Store, then: Callable[[], None], times: int) -> None:
    """Do something once, right after the workspace's row was changed for this time, and before its thread goes on."""
    write = store.engine.committer.write

    def write_and_more(batch: Batch, **named: Any) -> Outcome:
        nonlocal times
        outcome = write(batch, **named)
        if outcome == DONE and batch.changes[0].conversation == store.engine.workspace.row.id:
            times -= 1
            if times == 0:
                store.engine.committer.write = write  # type: ignore[method-assign]
                then()
        return outcome

    store.engine.committer.write = write_and_more  # type: ignore[method-assign]


@each_job
def test_a_thread_that_comes_right_after_the_commit_that_changes_the_key_finds_it(path: Path, job: Job) -> None:
    """Its conversation was refused because the workspace changed, and it looks again before the other thread has told
    the store of the new key."""
    made(path, job.before, small=True)
    errors: list[BaseException] = []
    with opened(path, job.before) as store:

        def start() -> None:
            try:
                store.start(title="now").append(Message.user("now"))
            except BaseException as error:  # noqa: BLE001  # raised below
                errors.append(error)

        thread = threading.Thread(target=start)

        def other_thread() -> None:
            """The row changed under it: the other thread prepares with what it knows, and looks again."""
            thread.start()
            thread.join(0.3)

        after_write(store, other_thread, 2 if job is UNSEAL else 1)  # that is when the key changes
        assert job(store).complete
        thread.join(PATIENCE)
        assert errors == []
        assert problems(store) == []


def test_a_reader_that_began_before_its_conversation_was_re_encrypted_reads_it(path: Path) -> None:
    """It has the keys as they were, and then meets what is sealed with the new one."""
    made(path, OLD)
    with opened(path, OLD) as store:
        talk = store.ensure(f"{WORD} key")
        meant = talk.thread()
        lines = list(store.messages())
        lazy = talk.thread(attachments="lazy")
        listing = store.messages()
        first = next(listing)
        read = store.backend.path

        def late(number: int) -> Iterator[Any]:
            store.backend.path = read  # type: ignore[method-assign]
            assert store.rotate(NEW, reencrypt=True).complete
            return read(number)

        store.backend.path = late  # type: ignore[method-assign]
        assert talk.thread() == meant
        assert [first, *listing] == lines
        assert store.quarantine() == []
        for before, now in zip(lazy, meant, strict=True):
            for block, other in zip(before.blocks, now.blocks, strict=True):
                if isinstance(block.content, Attachment):
                    with pytest.raises(hitherto.NotFound, match="attachment"):  # to be read again, as the hint says
                        block.content.load()
                else:
                    assert block == other


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(ROTATE, id="rotate"),
        pytest.param(REENCRYPT, id="reencrypt"),
        pytest.param(SEAL, id="seal"),
        pytest.param(UNSEAL, id="unseal"),
    ],
)
def test_a_page_that_was_listed_before_a_job_can_be_looked_at_after_it(path: Path, job: Job) -> None:
    """Its rows were read, and its titles were not opened yet."""
    made(path, job.before)
    with opened(path, job.before) as store:
        meant = [info.title for info in store.conversations()]
    with opened(path, job.before) as store:
        page = store.conversations()
        assert all(info.count >= 0 for info in page)
        assert job(store).complete
        assert [info.problem for info in page if info.problem] == []
        assert [info.title for info in page] == meant
        assert store.quarantine() == []


@pytest.mark.parametrize("job", [REENCRYPT, SEAL, UNSEAL], ids=lambda job: job.name)
@pytest.mark.parametrize("moment", ["named", "staged"])
def test_an_attachment_that_was_staged_under_the_old_key_is_not_lost(path: Path, job: Job, moment: str) -> None:
    """It is named and staged before its message is committed, and meanwhile the conversation gets another key."""
    made(path, job.before, small=True)
    with opened(path, job.before) as store:
        talk = store.ensure(f"{WORD} key")
        block = picture("late")
        assert isinstance(block.content, Attachment)
        content = saved_content("late")
        reads = 0

        def pieces() -> Iterator[bytes]:
            nonlocal reads
            reads += 1
            yield content[:50]
            if reads == (1 if moment == "named" else 2):
                assert job(store).complete
            yield content[50:]

        late = Block.image(Attachment(len(content), pieces), "image/png")
        saved = talk.append(Message.user([Block.text("late"), late]))
        assert reads >= 2
        assert store.message(saved).blocks[1].content == content
        assert problems(store) == []
    with opened(path, job.after) as store:
        assert store.message(saved).blocks[1].content == content
        assert problems(store) == []


@pytest.mark.parametrize("job", [REENCRYPT, SEAL, UNSEAL], ids=lambda job: job.name)
def test_an_attachment_that_was_staged_completely_under_the_old_key_is_not_lost(
    path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, when everything is staged and the commit is about to be prepared."""
    made(path, job.before, small=True)
    with opened(path, job.before) as store:
        talk = store.ensure(f"{WORD} key")
        stage = store.backend.stage

        def stage_and_more(*args: Any, **named: Any) -> None:
            stage(*args, **named)
            if named["last"]:
                store.backend.stage = stage  # type: ignore[method-assign]
                assert job(store).complete

        store.backend.stage = stage_and_more  # type: ignore[method-assign]
        saved = talk.append(Message.user([Block.text("late"), picture("late")]))
        assert store.message(saved).blocks[1].content == saved_content("late")
        assert problems(store) == []
    with opened(path, job.after) as store:
        assert store.message(saved).blocks[1].content == saved_content("late")
        assert problems(store) == []


def saved_content(what: str) -> bytes:
    content = picture(what).content
    assert isinstance(content, Attachment)
    loaded = content.load()
    assert isinstance(loaded, bytes)
    return loaded


def test_attachments_that_nobody_adopted_are_not_left_in_clear(path: Path) -> None:
    """A process was killed between staging an attachment and its message. When the store is sealed, it goes."""
    with opened(path, None) as store:
        talk = store.start()
        talk.append(Message.user("hello"))
        id = parse_conversation_id(talk.id)
        store.backend.stage(id, b"name", 0, [b"\0\0\0\0" + TRACE], last=True, at=store.engine.clock())
        store.backend.stage(b"\x01" * 16, b"name", 0, [b"\0\0\0\0" + TRACE], last=True, at=store.engine.clock())
        assert TRACE in files(path)
        assert store.seal(NEW).complete
        assert store.scrub()
        assert TRACE not in files(path)


@pytest.mark.parametrize("job", [REENCRYPT, SEAL], ids=lambda job: job.name)
def test_a_label_that_is_changed_amid_a_job_leaves_no_trace(path: Path, job: Job) -> None:
    """It stands in the index under its old name, and the job has not come to it yet."""
    with opened(path, job.before) as store:
        store.start().append(Message.user("first"))
        talk = store.start()
        message = talk.append(Message.user("hello", label=f"{WORD} label"))
        with pytest.raises(Stop):
            job(store, stop_at(1))
        talk.label("another", message=message)
        assert [found.id for found in store.messages(label=f"{WORD} label")] == []
        assert [found.id for found in store.messages(label="another")] == [message.id]
        assert job(store).complete
        assert [found.id for found in store.messages(label="another")] == [message.id]
        assert store.scrub()
        values = apsw.Connection(str(path)).execute("SELECT count(*) FROM tag").fetchall()
        assert values == [(1,)]
        assert TRACE not in files(path)


def begun(store: Store, job: Job, id: str) -> None:
    """Do a job until this conversation has got its second key, and no further."""
    commit = store.backend.commit

    def commit_or_not(batches: Sequence[Batch]) -> list[Outcome]:
        rows = store.backend.lookup(ids=[parse_conversation_id(id)])
        if rows and len(sealed.read_box(rows[0].data_key)) > 1:
            raise Stop
        return commit(batches)

    store.backend.commit = commit_or_not  # type: ignore[method-assign]
    with pytest.raises(Stop):
        job(store)
    store.backend.commit = commit  # type: ignore[method-assign]


@pytest.mark.parametrize("what", ["label", "label another in its pack", "delete another in its pack", "pack"])
@pytest.mark.parametrize("job", [REENCRYPT, SEAL, UNSEAL], ids=lambda job: job.name)
def test_what_is_written_anew_amid_a_job_keeps_its_attachments_key_and_label(path: Path, job: Job, what: str) -> None:
    """The conversation has its new key, and the message was not brought under it yet, when something else seals it with
    the new key: it looks as if it were done."""
    with opened(path, job.before) as store:
        talk = store.start()
        message = talk.append(Message.user([Block.text("look"), picture("a")], key="mine", label="seen"))
        last = talk.append(Message.user("last"))
        if "pack" in what and what != "pack":
            store.maintain()
        begun(store, job, talk.id)
        if what == "label":
            talk.label("seen", message=message)
        elif what == "label another in its pack":
            talk.label("other", message=last)
        elif what == "delete another in its pack":
            store.delete([last])
        else:
            maintenance._pack_all(store.engine, time.monotonic() + PATIENCE, None)  # or it is left for another time
        assert job(store).complete
        assert problems(store) == []
    with opened(path, job.after) as store:
        assert problems(store) == []
        assert store.message(message).blocks[1].content == saved_content("a")
        assert [found.id for found in store.messages(label="seen")] == [message.id]
        assert store.conversation(talk.id).append(Message.user("again", key="mine")).id == message.id


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(REENCRYPT, id="reencrypt"),
        pytest.param(SEAL, id="seal"),
        pytest.param(UNSEAL, id="unseal"),
    ],
)
def test_a_label_between_two_looks_of_a_job_is_no_damage(path: Path, job: Job) -> None:
    """The job has read the row, and reads what lies beside the messages a moment later."""
    with opened(path, job.before) as store:
        talk = store.start(system_prompt=WORD)
        message = talk.append(Message.user("hello", label="x"))
        talk.label("y", message=message)
        items, looks = store.backend.items, 0

        def items_after(conversation: bytes, *args: Any, **named: Any) -> Any:
            nonlocal looks
            if conversation == parse_conversation_id(talk.id):
                looks += 1
                if looks <= 3:
                    store.backend.items = items  # type: ignore[method-assign]
                    talk.label(f"label {looks}", message=message)
                    store.backend.items = items_after  # type: ignore[method-assign]
            return items(conversation, *args, **named)

        store.backend.items = items_after  # type: ignore[method-assign]
        done = job(store)
        store.backend.items = items  # type: ignore[method-assign]
        assert done.failures == ()
        assert done.complete
        assert problems(store) == []
        assert store.quarantine() == []


def stop_at(count: int) -> Callable[[RotationProgress], None]:
    """RotationProgress that stops the job when it hears of it for this time."""
    told: list[RotationProgress] = []

    def stop(progress: RotationProgress) -> None:
        told.append(progress)
        if len(told) == count:
            raise Stop

    return stop


def test_a_half_sealed_conversation_is_verified(path: Path) -> None:
    """Killed in the middle of sealing a conversation, it is no damage."""
    with opened(path, None) as store:
        talk = store.start()
        talk.extend([Message.user(f"{n}") for n in range(100)])
        backend = store.backend
        left = 4
        commit = backend.commit

        def failing(batches: Sequence[Batch]) -> list[Outcome]:
            nonlocal left
            left -= 1
            if left == 0:
                raise Stop
            return commit(batches)

        backend.commit = failing  # type: ignore[method-assign]
        with pytest.raises(Stop):
            store.seal(NEW)
        backend.commit = commit  # type: ignore[method-assign]
        assert any(len(box) == 2 for box in boxes(path))
        assert problems(store) == []


class Gate:
    """Holds up a store's commits until it is opened."""

    def __init__(self, store: Store) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        self._backend, self._commit = store.backend, store.backend.commit
        store.backend.commit = self.commit  # type: ignore[method-assign]

    def open(self) -> None:
        self._backend.commit = self._commit  # type: ignore[method-assign]
        self._open.set()

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.reached.set()
        assert self._open.wait(PATIENCE)
        return self._commit(batches)


@pytest.mark.parametrize("job", [REENCRYPT, SEAL], ids=lambda job: job.name)
@pytest.mark.parametrize("first", ["pack", "job"])
def test_packing_and_re_encrypting_the_same_messages_at_the_same_time_disturb_nothing(
    path: Path, job: Job, first: str
) -> None:
    """The one is on its way to the disk, and believed, when the other reads what is still there as it was."""
    with opened(path, job.before) as store:
        talk = store.start()
        talk.extend([Message.user(f"{WORD} {n}") for n in range(40)])
        meant = [message.text for message in talk.thread()]
        if first == "job":
            begun(store, job, talk.id)
        gate = Gate(store)
        works: list[Callable[[], object]] = [
            lambda: maintenance._pack_all(store.engine, time.monotonic() + PATIENCE, None),
            lambda: job(store),
        ]
        threads = [threading.Thread(target=work) for work in (works if first == "pack" else works[::-1])]
        threads[0].start()
        assert gate.reached.wait(PATIENCE)
        threads[1].start()
        wait = time.monotonic() + 0.5  # it may wait for the other, or leave the conversation alone, which is as well
        until(lambda: bool(store.engine.committer._queue) or not threads[1].is_alive() or time.monotonic() > wait)
        gate.open()
        for thread in threads:
            thread.join(PATIENCE)
        assert job(store).complete
        assert problems(store) == []
        assert [message.text for message in store.conversation(talk.id).thread()] == meant


# 4, 5. Others go on: in other processes. Two stores on one file know as much of each other as two processes do.


@pytest.fixture
def key_file(place: Path) -> Path:
    OLD.to_file(place / "key")
    return place / "key"


def put_key(file: Path, key: Key) -> None:
    """Replace the key in a file, as an operator does."""
    new = file.with_name("new")
    key.to_file(new)
    new.rename(file)


@pytest.mark.parametrize("reencrypt", [False, True], ids=["rotate", "reencrypt"])
def test_a_process_whose_key_file_was_replaced_goes_on(
    path: Path, key_file: Path, launch: Callable[..., Child], reencrypt: bool
) -> None:
    """It appends, starts, labels, reads and lists, before, during and after, and everything is there."""
    with opened(path, OLD) as store:
        fill(store, small=True)
        talk = store.start(title="shared")
        talk.append(Message.user("first"))
        other = launch("writer", path, key_file, talk.id, "other")
        assert other.line() == ["ready"]
        doing = ("append", "label", "start", "ensure", "read", "list")
        answers = [other.ask(what) for what in doing]
        told: list[RotationProgress] = []

        def progress(now: RotationProgress) -> None:
            told.append(now)
            if len(told) <= 5:  # each starts conversations, which are looked at in their turn
                answers.extend(other.ask(what) for what in doing)

        put_key(key_file, NEW)
        assert store.rotate(NEW, reencrypt=reencrypt, progress=progress).complete
        answers += [other.ask(what) for what in doing]
        assert [answer for answer in answers if answer[0] != "ok"] == []
        other.end()
        assert told
    with opened(path, NEW) as store:
        assert problems(store) == []
        there = {message.id for message in store.messages()}
        assert {answer[2] for answer in answers if answer[1] in ("append", "start", "ensure")} <= there


@pytest.mark.parametrize("reencrypt", [False, True], ids=["rotate", "reencrypt"])
def test_a_process_with_the_old_key_writes_nothing_that_cannot_be_opened(
    path: Path, launch: Callable[..., Child], reencrypt: bool
) -> None:
    """It may go on with what it has open; what it starts is refused. With the new key all can be read."""
    saved: set[str] = set()
    with opened(path, OLD) as store:
        fill(store, small=True)
        talk = store.start(title="shared")
        talk.append(Message.user("first"))
        other = launch("writer", path, shown(OLD), talk.id, "other")
        assert other.line() == ["ready"]
        assert other.ask("append")[0] == "ok"
        assert other.ask("start")[0] == "ok"

        def progress(_: RotationProgress) -> None:
            for what in ("append", "label", "append"):
                answer = other.ask(what)
                assert answer[0] == "ok" or answer[2] == "KeyUnavailable"
                if answer[0] == "ok" and what == "append":
                    saved.add(answer[2])
            assert other.ask("start") == ["error", "start", "KeyUnavailable"]
            assert other.ask("ensure") == ["error", "ensure", "KeyUnavailable"]

        assert store.rotate(NEW, reencrypt=reencrypt, progress=progress).complete
        progress(RotationProgress(0, 0))
        answer = other.ask("read")
        assert answer[0] == "ok" or answer[2] == "KeyUnavailable"
        other.end()
    with opened(path, NEW) as store:
        assert problems(store) == []
        assert saved <= {message.id for message in store.messages()}
    assert {slot.key_id.hex() for box in boxes(path) for slot in box} == {NEW.id}


def stale_start(path: Path) -> list[str]:
    """A store that has not heard of a rotation starts a conversation; what `verify` says of it afterwards."""
    with opened(path, OLD) as stale, opened(path, OLD) as store:
        store.start().append(Message.user("first"))
        assert store.rotate(NEW, reencrypt=True).complete
        with suppress(KeyUnavailable):
            stale.start(title="stale").append(Message.user("stale"))
    with opened(path, NEW) as store:
        return problems(store)


def test_what_a_stale_process_starts_is_refused(path: Path) -> None:
    assert stale_start(path) == []


def test_without_the_condition_on_the_workspaces_row_a_stale_process_starts_what_nobody_can_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for the ones above."""
    monkeypatch.setattr(Workspace, "require", property(lambda _: ()))
    assert stale_start(path) != []


@pytest.mark.parametrize("first", ["start", "append", "read", "list"])
def test_a_plain_process_notices_that_the_store_was_sealed(
    path: Path, launch: Callable[..., Child], first: str
) -> None:
    """It goes on until its conversation is sealed, and leaves nothing plain behind."""
    with opened(path, None) as store:
        fill(store, small=True)
        store.search(WORD)
        talk = store.start(title="shared")
        talk.append(Message.user("first"))
        other = launch("writer", path, "-", talk.id, f"{WORD}-other")
        assert other.line() == ["ready"]
        for what in ("append", "start", "read", "list", "label"):
            assert other.ask(what)[0] == "ok"

        def progress(now: RotationProgress) -> None:
            for what in ("append", "label", "read", "list", "start", "ensure") if now.done < 5 else ():
                answer = other.ask(what)
                assert answer[0] == "ok" or answer[2] == "KeyUnavailable"

        assert store.seal(NEW, progress=progress).complete
        assert other.ask(first) == ["error", first, "KeyUnavailable"]
        for what in ("start", "append", "label", "ensure", "read", "list"):
            assert other.ask(what) == ["error", what, "KeyUnavailable"]
        other.end()
        assert store.scrub()
        assert TRACE not in files(path)
    with opened(path, NEW) as store:
        assert problems(store) == []


@pytest.mark.parametrize(
    ("known", "proven"),
    [(True, False), (False, True), (False, False)],
    ids=["by what it began with", "by what it proves", "control"],
)
def test_who_finishes_a_job_does_not_finish_one_that_another_process_has_begun_since(
    path: Path, key_file: Path, known: bool, proven: bool, monkeypatch: pytest.MonkeyPatch, two_owners: None
) -> None:
    """All conversations are done, and another process begins the next job; a thread of ours looks at the workspace, as
    they do, just before we forget the old keys. These are not the ones of the job that we did."""
    finish, overtakes = rotation._Job.finish, [True]
    if not proven:
        monkeypatch.setattr(Writer, "_find_other_key", lambda *_: None)
    with opened(path, Key.from_file(key_file)) as store, opened(path, Key.from_file(key_file)) as other:
        fill(store, small=True)

        def overtaken(job: rotation._Job) -> ConversationRow | None:
            if overtakes:
                overtakes.clear()
                other.engine.workspace.refresh()
                put_key(key_file, THIRD)
                with monkeypatch.context() as patched:
                    patched.setattr(rotation, "go_on", lambda *_, **__: RotationReport(0, True))  # it is only begun
                    other.rotate(Key.from_file(key_file), reencrypt=True)
                store.engine.workspace.refresh()
                if not known:
                    job._state = KeyState(store.engine.workspace)
                    job._codec = reencryption.codec_of(job._state)
            return finish(job)

        monkeypatch.setattr(rotation._Job, "finish", overtaken)
        put_key(key_file, NEW)
        assert store.rotate(Key.from_file(key_file)).complete
    with opened(path, THIRD) as store:
        assert (problems(store) == []) is (known or proven)


@pytest.mark.parametrize(
    ("watched", "proven"), [(True, False), (False, True), (False, False)], ids=["noticed", "proven", "control"]
)
def test_a_key_that_came_while_another_job_went_through_the_messages_takes_none_along(
    path: Path, watched: bool, proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes are at it. One has been through the messages, when the other gives the conversation one more key.
    The first may not drop the key before that: it is the one that the messages are under."""
    passes: list[int] = []
    bodies, newest = reencryption.Steps._bodies, reencryption._newest
    with opened(path, OLD) as store:
        talk = store.start(title="T")
        talk.extend([Message.user(f"{n}") for n in range(5)])

        def overtaken(steps: reencryption.Steps, key: tuple[object, ...]) -> bool:
            done = bodies(steps, key)
            if not passes:
                reencryption.renew(store.engine, steps._id)
            passes.append(1)
            return done

        monkeypatch.setattr(reencryption.Steps, "_bodies", overtaken)
        if not watched:
            monkeypatch.setattr(reencryption, "_newest", lambda _: ("the same",))
        if not proven:
            monkeypatch.setattr(reencryption._Proof, "over", lambda *_: 0)
        state = KeyState(store.engine.workspace)
        steps = reencryption.Steps(store.engine, state, parse_conversation_id(talk.id), lambda: True)
        assert steps.run()
        row = store.engine.read_row(parse_conversation_id(talk.id))
        assert len(newest(row)) == len(sealed.read_box(row.data_key)) == 1
    with opened(path, OLD) as store:
        assert (problems(store) == []) is (watched or proven)
        if watched or proven:
            assert [message.text for message in store.conversation(talk.id).thread()] == list("01234")


def test_a_busy_process_with_a_key_file_loses_nothing(
    path: Path, key_file: Path, launch: Callable[..., Child], usual_steps: None
) -> None:
    """The same as above with no one waiting for the other."""
    with opened(path, OLD) as store:
        fill(store, small=True)
        talk = store.start(title="shared")
        talk.append(Message.user("first"))
        other = launch("busy", path, key_file, talk.id, "other")
        assert other.line() == ["ready"]
        saved, errors = set(), []
        for key in (NEW, OLD, NEW):
            put_key(key_file, key)
            assert store.rotate(key, reencrypt=key is not OLD).complete
            for _ in range(5):  # it goes on, after each of them
                words = other.line()
                assert words[0] == "saved", words
                saved.add(words[1])
        other.tell("stop")
        while (words := other.line()) != ["end"]:
            if words[0] == "saved":
                saved.add(words[1])
            else:
                errors.append(words)
        assert errors == []
    with opened(path, NEW) as store:
        assert problems(store) == []
        assert saved <= {message.id for message in store.messages()}


@pytest.mark.parametrize("jobs", [("rotate", "rotate"), ("reencrypt", "reencrypt"), ("rotate", "reencrypt")])
def test_of_two_processes_that_rotate_at_the_same_time_one_wins(
    path: Path, launch: Callable[..., Child], jobs: tuple[str, str]
) -> None:
    meant = made(path, OLD)
    rivals = [launch("rotator", path, shown(OLD), job, shown(key)) for job, key in zip(jobs, (NEW, THIRD), strict=True)]
    assert [rival.line() for rival in rivals] == [["ready"], ["ready"]]
    for rival in rivals:
        rival.tell("go")
    answers = [rival.line() for rival in rivals]
    assert sorted(answers) in ([["done", "True"], ["error", "KeyUnavailable"]], [["done", "True"], ["done", "True"]])
    (key,) = who_opens(path)
    assert key in (NEW, THIRD)
    check(path, key, meant)


def test_a_process_that_noticed_a_rotation_rotates_from_the_key_that_it_noticed(path: Path, key_file: Path) -> None:
    """Its key came from a file, and the file has another one by now: that is the one to retire."""
    meant = made(path, OLD)
    with opened(path, OLD) as one, opened(path, Key.from_file(key_file)) as two:
        put_key(key_file, NEW)
        assert one.rotate(NEW).complete
        two.start(title="noticed")
        two.purge(two.conversations(limit=1).items[0].id, reason="user-requested")
        done = two.rotate(THIRD)
        assert done.failures == ()
        assert done.complete
    check(path, THIRD, meant)


@pytest.mark.parametrize("second", ["rotate", "reencrypt", "unseal"])
def test_a_job_that_meets_another_one_half_done_finishes_it_first(path: Path, key_file: Path, second: str) -> None:
    """It had not heard of the other when it began. What the other one left behind still needs the oldest key."""
    meant = made(path, OLD)
    with opened(path, OLD) as one, opened(path, Key.from_file(key_file)) as two:
        with pytest.raises(Stop):
            one.rotate(NEW, progress=stop_at(1))  # a page of conversations is rewrapped, the others are not
        put_key(key_file, NEW)
        assert rotation_processes.run(two, second, THIRD).complete
    check(path, None if second == "unseal" else THIRD, meant)


@pytest.mark.parametrize("reencrypt", [False, True], ids=["rotate", "reencrypt"])
def test_a_job_that_is_overtaken_by_another_one_does_not_undo_it(path: Path, reencrypt: bool, two_owners: None) -> None:
    """While one process rotates to a key, another one rotates on to the next; the first must not wrap anything with its
    key again."""
    meant = made(path, OLD)
    calls = 0
    with opened(path, OLD) as one:

        def overtake(_: RotationProgress) -> None:
            nonlocal calls
            calls += 1
            if calls == 6:
                with opened(path, NEW) as two:
                    assert two.rotate(THIRD, reencrypt=reencrypt).complete
            if calls > 300:
                raise Stop  # it goes round and round

        try:
            one.rotate(NEW, reencrypt=reencrypt, progress=overtake)
        except KeyUnavailable:
            pass
        except Stop:
            pytest.fail("it never ends")
    assert calls >= 6
    check(path, THIRD, meant)


def test_two_processes_that_finish_the_same_job_both_come_to_an_end(path: Path, two_owners: None) -> None:
    meant = made(path, OLD)
    with opened(path, OLD) as store, pytest.raises(Stop):
        store.rotate(NEW, reencrypt=True, progress=stop_at(2))
    calls = 0
    with opened(path, NEW) as one, opened(path, NEW) as two:

        def overtake(now: RotationProgress) -> None:
            nonlocal calls
            calls += 1
            if now.done == now.total and calls < 300 and rotation.pending(two.engine):
                assert two.rotate(NEW).complete
            if calls > 300:
                raise Stop

        try:
            assert one.rotate(NEW, progress=overtake).complete
        except Stop:
            pytest.fail("it never ends")
    check(path, NEW, meant)


def test_two_processes_that_re_encrypt_the_same_conversation_find_no_damage(path: Path, two_owners: None) -> None:
    """Both give it a second key at the same time, and one of them is late."""
    meant = made(path, OLD, small=True)
    with opened(path, OLD) as store, pytest.raises(Stop):
        store.rotate(NEW, reencrypt=True, progress=stop_at(1))
    with opened(path, NEW) as one, opened(path, NEW) as two:
        commit_now = one.engine.commit_once
        once = True

        def late(*args: Any, **named: Any) -> Any:
            nonlocal once
            if once:
                once = False
                assert two.rotate(NEW).complete
            return commit_now(*args, **named)

        one.engine.commit_once = late  # type: ignore[method-assign]
        done = one.rotate(NEW)
        assert not once
        assert done.failures == ()
    check(path, NEW, meant)


@pytest.mark.parametrize("job", [REENCRYPT, SEAL], ids=lambda job: job.name)
def test_what_is_packed_while_others_re_encrypt_it_is_not_lost(
    path: Path, job: Job, monkeypatch: pytest.MonkeyPatch, key_file: Path
) -> None:
    """The pack was made with the old key; then another process re-encrypted the conversation; then a message of ours
    told us of it; then the pack is committed."""
    with opened(path, job.before) as store:
        talk = store.start()
        talk.extend([Message.user(f"{WORD} {n}") for n in range(40)])
        meant = [message.text for message in talk.thread()]
    attempt = packing._attempt
    ours: Key | None = None if job.before is None else Key.from_file(key_file)
    with opened(path, ours) as packer, opened(path, job.before) as other:
        once = True

        def late(*args: Any) -> Any:
            nonlocal once
            built = attempt(*args)
            if once:
                once = False
                put_key(key_file, NEW)
                assert job(other).complete
                with suppress(KeyUnavailable):
                    packer.conversation(talk.id).append(Message.user("last"))
                    meant.append("last")
            return built

        monkeypatch.setattr(packing, "_attempt", late)
        with suppress(KeyUnavailable):
            packer.maintain()
        assert not once
    with opened(path, NEW) as store:
        assert [message.text for message in store.conversation(talk.id).thread()] == meant
        assert problems(store) == []


# 6. Bad input, and bad luck


def test_what_makes_no_sense_is_refused(path: Path) -> None:
    with opened(path, None) as store:
        with pytest.raises(InvalidArgument, match="not sealed"):
            store.rotate(NEW)
        assert store.unseal() == RotationReport(0, True)
        with pytest.raises(InvalidKey):
            store.seal(bytes(31))
        assert [store.key_id] == [None]
        assert store.seal(OLD).complete
        with pytest.raises(InvalidArgument, match="sealed already"):
            store.seal(NEW)
        assert store.seal(OLD) == RotationReport(0, True)
        assert store.rotate(OLD) == RotationReport(0, True)
        for bad in (b"", b"\1" * 31, b"\1" * 33, bytes(32)):
            with pytest.raises(InvalidKey):
                store.rotate(bad)
        assert store.key_id == OLD.id
        assert store.rotate(KEY_BYTES[NEW.id]).complete
        assert store.key_id == NEW.id
    assert who_opens(path) == [NEW]


def test_a_process_that_was_left_behind_does_not_call_the_old_key_up_to_date(path: Path) -> None:
    """It rotates to the key that it believes to be in force, and it is not any more."""
    with opened(path, OLD) as stale, opened(path, OLD) as store:
        assert store.rotate(NEW).complete
        with pytest.raises(KeyUnavailable):
            stale.rotate(OLD)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@each_job
def test_a_callback_that_raises_leaves_a_job_that_can_be_resumed(
    path: Path, job: Job, error: type[BaseException]
) -> None:
    meant = made(path, job.before)

    def raising(_: RotationProgress) -> None:
        raise error

    with opened(path, job.before) as store:
        with pytest.raises(error):
            job(store, raising)
        assert view(store) == meant
        assert rotation.pending(store.engine)
        store.start(title="amid").append(Message.user("amid"))
        with pytest.raises(error):
            job(store, raising)
        assert job(store).complete
        store.purge(store.conversations(limit=1).items[0].id, reason="user-requested")
        assert view(store) == meant
    check(path, job.after, meant)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@each_job
def test_ctrl_c_around_any_commit_leaves_a_job_that_can_be_resumed_at_once(
    path: Path, place: Path, job: Job, after: bool
) -> None:
    """In the same store, by the same call; and closing waits for nobody."""
    meant = made(path, job.before, small=True, search=False)
    number, hit, wrong = 0, True, []
    while hit:
        number += 1
        copy = copied(path, place, number)
        store = opened(copy, job.before)
        hit = interrupted(store, job, number, after=after)
        began = time.monotonic()
        try:
            assert job(store, stop_at(100)).complete
            assert is_as(store, meant, search=False)
            store.close(timeout_seconds=AGES)
        except (HithertoError, Stop) as error:
            wrong.append((number, repr(error)))
            store.close(timeout_seconds=0)
        if time.monotonic() - began > SOON:
            wrong.append((number, "close waits for a write that nobody makes"))
        assert wrong or who_opens(copy) == [job.after]
        shutil.rmtree(copy.parent)
    assert wrong == []
    assert number > (2 if job is ROTATE else 8)


def interrupted(store: Store, job: Job, number: int, *, after: bool) -> bool:
    """Do a job, and press Ctrl+C at this commit; was there one?"""
    commit, left = store.backend.commit, number

    def commit_or_not(batches: Sequence[Batch]) -> list[Outcome]:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            raise KeyboardInterrupt
        outcomes = commit(batches)
        if left == 0:
            raise KeyboardInterrupt
        return outcomes

    store.backend.commit = commit_or_not  # type: ignore[method-assign]
    try:
        job(store)
    except KeyboardInterrupt:
        return True
    finally:
        store.backend.commit = commit  # type: ignore[method-assign]
    return False


@each_job
def test_a_full_disk_stops_a_job_and_it_is_resumed_when_there_is_room(disk: FaultDisk, job: Job) -> None:
    where = disk.directory / "store.db"
    with opened(where, job.before, vfs=disk.name) as store:
        fill(store)
        meant = view(store, search=False)
        store.scrub()
        full = 0
        for room in range(0, 400_000, 24_000):
            disk.capacity = disk.used + room
            try:
                done = job(store)
            except StorageFull:
                full += 1
                assert is_as(store, meant, search=False)
                assert problems(store) == []
            else:
                assert done.complete
                break
        assert full > 0
        disk.heal()
        assert job(store).complete
        assert is_as(store, meant, search=False)
        assert problems(store) == []
    assert who_opens(where) == [job.after]


def damaged(path: Path, what: str) -> str:
    """Damage one conversation in the middle; its id."""
    query = "SELECT id FROM conversation WHERE kind = 'chat' AND count = 1 LIMIT 1 OFFSET 2"
    connection = apsw.Connection(str(path))
    id: Any = connection.execute(query).fetchall()[0][0]
    connection.close()
    flip(path, id, what)
    return show_conversation_id(id)


@pytest.mark.parametrize(
    ("job", "what"),
    [(ROTATE, "box"), (REENCRYPT, "box"), (REENCRYPT, "body"), (SEAL, "body"), (UNSEAL, "body")],
    ids=lambda value: value.name if isinstance(value, Job) else value,
)
def test_a_damaged_conversation_does_not_keep_the_others_from_being_rotated(path: Path, job: Job, what: str) -> None:
    """It is named, the job is not complete, and the old key stays, sealed, for the day on which it is restored."""
    made(path, job.before)
    good = place_of(path)
    id = damaged(path, what)
    with opened(path, job.before) as store:
        for _ in range(2):
            done = job(store)
            assert not done.complete
            assert [name for name, _ in done.failures] == [id]
            assert done.failures[0][1]
        others = [info.id for info in store.conversations(limit=100) if info.id != id]
        assert all(store.conversation(other).thread() for other in others if store.conversation(other).count)
    key = job.before if job is UNSEAL else job.after
    assert who_opens(path) == [key]
    done_boxes = [box for row_id, box in place_of(path).items() if row_id != id]
    wanted = 0 if job is UNSEAL else 1
    assert sum(len(box) == wanted for box in done_boxes) >= len(done_boxes) - 1  # but the workspace's own
    flip(path, parse_conversation_id(id), what)
    with opened(path, key) as store:
        assert job(store).complete
        assert problems(store) == []
    assert good.keys() == place_of(path).keys()
    assert who_opens(path) == [job.after]


@pytest.mark.parametrize("what", ["box", "body"])
def test_maintenance_goes_on_though_a_conversation_is_damaged(path: Path, what: str) -> None:
    """And finishes the job as far as it can be."""
    made(path, OLD)
    with opened(path, OLD) as store:
        store.start().extend([Message.user(f"{n}") for n in range(40)])
    damaged(path, what)
    with opened(path, OLD) as store:
        assert store.maintain().packed > 0
        with pytest.raises(Stop):
            store.rotate(NEW, reencrypt=True, progress=stop_at(1))
        store.maintain()
        assert sum(len(box) > 1 or box[0].key_id.hex() != NEW.id for box in place_of(path).values()) <= 2


def place_of(path: Path) -> dict[str, tuple[sealed.Slot, ...]]:
    backend = SqliteBackend(path)
    try:
        return {show_conversation_id(row.id): sealed.read_box(row.data_key) for row in rows(backend)}
    finally:
        backend.close()


def flip(path: Path, id: bytes, what: str) -> None:
    """Flip a bit in the keys or in the message of a conversation; flip it back."""
    connection = apsw.Connection(str(path))
    table, column, which = {
        "box": ("conversation", "data_key", "id = ?"),
        "body": ("message", "body", "conversation = (SELECT place FROM conversation WHERE id = ?)"),
    }[what]
    value: Any = connection.execute(f"SELECT {column} FROM {table} WHERE {which}", (id,)).fetchall()[0][0]
    flipped = value[:-1] + bytes([value[-1] ^ 1])
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {which}", (flipped, id))
    connection.close()


def test_a_job_that_cannot_be_finished_is_not_taken_for_the_next_one(path: Path) -> None:
    """A conversation is damaged, so the rotation to one key cannot be finished. Whoever asks for yet another key must
    not be told that it is in force."""
    made(path, OLD)
    damaged(path, "box")
    with opened(path, OLD) as store:
        assert not store.rotate(NEW).complete
        with suppress(HithertoError):
            store.rotate(THIRD)
            assert store.key_id == THIRD.id


@pytest.mark.parametrize("job", [REENCRYPT, SEAL, UNSEAL], ids=lambda job: job.name)
def test_a_conversation_that_grows_all_the_time_is_brought_to_an_end(path: Path, job: Job) -> None:
    """Somebody appends a message in the time in which a hundred can be read. The job must not begin from the start each
    time: what it has seen before it need not see again."""
    with opened(path, job.before) as store:
        talk = store.start()
        talk.extend([Message.user(f"{WORD} {n}") for n in range(300)])
        scan, seen, appended = store.backend.scan, 0, 0

        def scan_and_append(*args: Any, bodies: bool = True, **named: Any) -> Any:
            nonlocal seen, appended
            rows = scan(*args, bodies=bodies, **named)
            seen += len(rows) if bodies else 0
            while seen >= 100:
                seen -= 100
                appended += 1
                if appended > 100:
                    raise Stop  # it goes round and round
                talk.append(Message.user("more"))
            return rows

        store.backend.scan = scan_and_append  # type: ignore[method-assign]
        try:
            assert job(store).complete
        except Stop:
            pytest.fail("it never ends")
        finally:
            store.backend.scan = scan  # type: ignore[method-assign]
        assert appended < 30


# 7. Rates


def test_thousands_of_conversations_are_rewrapped_in_a_few_commits(
    path: Path, usual_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, commits = SqliteBackend.commit, list[int]()

    def counted(self: SqliteBackend, batches: Sequence[Batch]) -> list[Outcome]:
        commits.append(len(batches))
        return commit(self, batches)

    with opened(path, OLD) as store:
        for n in range(2000):
            store.start(title=f"{n}")
        monkeypatch.setattr(SqliteBackend, "commit", counted)
        assert store.rotate(NEW) == RotationReport(2000, True)
    assert len(commits) < 20
