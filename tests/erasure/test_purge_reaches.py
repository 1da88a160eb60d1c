"""What a purge must reach: checkpoints in snapshot stores, and every byte in every file of the store.

Requirements: D9, D4.
"""

import base64
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Block, Conversation, Message, RetentionPolicy, Store
from hitherto._engine import recovery
from hitherto._erasure import checkpoint_copies
from hitherto.backend import Batch, Change
from hitherto.errors import InvalidArgument, NotFound
from hitherto.events import PurgeCompleted
from hitherto.recorder._checkpoints import Checkpoints
from hitherto.records import Records
from hitherto.snapshots import FileStore, MemoryFiles, ObjectStore, Snapshot

KEY = b"\x17" * 32


@pytest.fixture(params=[None, KEY], ids=["plain", "sealed"])
def key(request: pytest.FixtureRequest) -> bytes | None:
    found: bytes | None = request.param
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "c.db"


@pytest.fixture
def store(path: Path, key: bytes | None) -> Iterator[Store]:
    with hitherto.open(path, key=key) as store:
        yield store


def checkpointed(store: Store, place: object, *, text: str = "x", count: int = 2, known: bool = True) -> Conversation:
    """A conversation of which so many checkpoints were made, as a recorder makes them."""
    talk = store.start(title=text)
    made = Checkpoints(place, 1, None, None)
    if known:
        made.register_store(store)
    for _ in range(count):
        said = talk.append(Message.user(text))
        made.count_answer(store, talk.id, said.id)
        assert made.wait(20)
    assert made.failure is None
    return talk


def purged(store: Store, talk: Conversation) -> tuple[tuple[str, str], ...]:
    """The failures of a purge, by which the conversation itself is gone in any case."""
    report = store.purge(talk, reason="user-requested")
    assert report.purged_count == 1
    with pytest.raises(NotFound):
        store.conversation(talk.id)
    return report.failures


def notes(store: Store) -> int:
    return len(store.backend.items(store.engine.workspace.row.id, b"copies/"))


# -- checkpoints


PLACES: dict[str, Callable[[Path], Any]] = {
    "a folder": lambda path: FileStore(path / "copies"),
    "a sealed folder": lambda path: FileStore(path / "copies", KEY),
    "in another layout": lambda path: FileStore(path / "copies", KEY, layout="gtb"),
    "a bucket": lambda _: ObjectStore("memory://"),
    "a folder by its address": lambda path: ObjectStore(f"file://{path}/copies"),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_purge_deletes_the_checkpoints_of_the_conversation_and_nothing_else(
    place: Callable[[Path], Any], store: Store, tmp_path: Path
) -> None:
    """D9: "auto-checkpoints included"."""
    files = place(tmp_path)
    other = checkpointed(store, files)
    talk = checkpointed(store, files)
    by_hand = talk.snapshot()
    files.save(by_hand)
    assert len(files.list()) == 5
    assert talk.refresh().state.meta.checkpoints == (checkpoint_copies.location_of(files),)
    assert purged(store, talk) == ()
    left = {summary.id: dict(summary.metadata_items) for summary in files.list()}
    assert left.pop(by_hand.id)["conversation"] == talk.id
    assert [said["conversation"] for said in left.values()] == [other.id] * 2
    assert notes(store) == 0


def test_a_conversation_without_checkpoints_asks_no_snapshot_store(store: Store) -> None:
    asked: list[object] = []

    class Watched(FileStore):
        def list(self) -> Any:
            asked.append("")
            return super().list()

    store.register_checkpoint_store(Watched("copies", fs=MemoryFiles()))
    talk = store.start()
    assert purged(store, talk) == ()
    assert asked == []


def test_a_place_that_this_process_does_not_know_is_a_failure_until_somebody_tells_of_it(
    store: Store, path: Path, key: bytes | None, tmp_path: Path
) -> None:
    files = FileStore(tmp_path / "copies")
    talk = checkpointed(store, files, known=False)
    heard: list[object] = []
    store.subscribe(heard.append)
    ((failed, why),) = purged(store, talk)
    assert failed == talk.id
    assert why.startswith(f"checkpoints in {tmp_path}/copies were not reached: ")
    assert store.engine.listeners.wait(10)
    (told,) = [event for event in heard if isinstance(event, PurgeCompleted)]
    assert told.failures == ((failed, why),)
    assert len(files.list()) == 2  # the control: they are there
    store.close()
    with hitherto.open(path, key=key) as later:  # it is remembered, whoever comes next
        assert later.register_checkpoint_store(FileStore(tmp_path / "elsewhere")) == ((failed, why),)
        assert later.register_checkpoint_store(files) == ()
        assert len(files.list()) == 0
        assert notes(later) == 0
        assert later.verify().ok


def test_the_next_recorder_that_makes_checkpoints_there_deletes_what_was_left(store: Store, tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies")
    assert purged(store, checkpointed(store, files, known=False)) != ()
    other = checkpointed(store, files)
    assert {dict(summary.metadata_items)["conversation"] for summary in files.list()} == {other.id}
    assert notes(store) == 0


def test_a_function_cannot_be_asked_to_delete_and_that_is_said(store: Store) -> None:
    made: list[Snapshot] = []
    ((_, why),) = purged(store, checkpointed(store, made.append))
    assert why == "checkpoints in a function were not reached: it cannot be asked to delete; whoever has them has to"
    assert notes(store) == 0  # nobody could ever work it off

    class Sink:
        save = staticmethod(made.append)

    ((_, why),) = purged(store, checkpointed(store, Sink()))
    assert why.startswith("checkpoints in a Sink that cannot delete were not reached: ")
    assert notes(store) == 0


class Broken:
    """A place of somebody else's, which takes checkpoints and cannot delete them."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def save(self, snapshot: Snapshot) -> None:
        pass

    def prune(self, *, keep: int, metadata: Mapping[str, str]) -> None:
        if keep == 0:
            raise self._error


def test_what_fails_far_away_is_said_without_its_words_and_the_purge_goes_on(store: Store) -> None:
    place = Broken(RuntimeError("https://user:password@host"))
    ((_, why),) = purged(store, checkpointed(store, place))
    assert why == "checkpoints in a Broken were not reached: RuntimeError"
    assert notes(store) == 1


def test_a_folder_that_cannot_be_read_is_a_failure(store: Store, tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies", KEY)
    talk = checkpointed(store, files)
    store.engine.checkpoint_stores.clear()
    store.register_checkpoint_store(FileStore(tmp_path / "copies", b"\x18" * 32))
    ((_, why),) = purged(store, talk)
    assert "were not reached" in why
    assert len(files.list()) == 2
    assert store.register_checkpoint_store(files) == ()
    assert len(files.list()) == 0


def test_two_keys_in_one_folder_are_both_reached(store: Store, tmp_path: Path) -> None:
    ours, theirs = (FileStore(tmp_path / "copies", bytes([n]) * 32) for n in (1, 2))
    others = checkpointed(store, theirs)
    talk = checkpointed(store, ours)
    assert purged(store, talk) == ()
    assert len(theirs.list()) == 2
    assert purged(store, others) == ()
    assert len(theirs.list()) == 0


def test_what_a_killed_save_has_left_in_the_folder_goes_too(store: Store, tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies")
    talk = checkpointed(store, files)
    for folder in (tmp_path / "copies", tmp_path / "copies" / "inner"):
        folder.mkdir(exist_ok=True)
        (folder / ".unfinished").write_bytes(b"half of a copy")
    assert purged(store, talk) == ()
    assert not list(tmp_path.rglob(".unfinished"))


def test_a_checkpoint_that_is_made_while_the_conversation_is_purged_does_not_stay(store: Store, tmp_path: Path) -> None:
    class Slow(FileStore):
        def save(self, snapshot: Snapshot, **how: Any) -> str:
            if during:
                during.pop()()
            return super().save(snapshot, **how)

    during: list[Callable[[], object]] = []
    files = Slow(tmp_path / "copies")
    talk = checkpointed(store, files)
    said = talk.append(Message.user("once more"))
    during.append(lambda: purged(store, talk))
    made = Checkpoints(files, 1, None, None)
    made.count_answer(store, talk.id, said.id)
    assert made.wait(20)
    assert len(files.list()) == 0


@pytest.mark.parametrize("noting", ["yes", "no"])
def test_a_copy_that_came_after_the_purge_and_could_not_be_deleted_is_not_forgotten(
    noting: str, path: Path, tmp_path: Path
) -> None:
    """Killed between the copy and its deletion. Without the note, the control, it would stay for good."""
    folder = tmp_path / "copies"
    with hitherto.open(path) as store:
        id = store.start().append(Message.user("x")).conversation
    done = subprocess.run([sys.executable, "-c", DIES_COPYING, path, folder, id, noting], check=False)
    assert done.returncode == -signal.SIGKILL
    files = FileStore(folder)
    assert len(files.list()) == 1
    with hitherto.open(path) as store:
        assert store.register_checkpoint_store(files) == ()
        assert (len(files.list()), notes(store)) == ((0, 0) if noting == "yes" else (1, 0))


DIES_COPYING = """
import os, signal, sys
import hitherto
from hitherto.recorder._checkpoints import Checkpoints
from hitherto.snapshots import FileStore

class Dying(FileStore):
    def save(self, snapshot):
        assert store.purge(talk, reason="user-requested").failures == ()
        super().save(snapshot)
        os.kill(os.getpid(), signal.SIGKILL)

path, copies, talk, noting = sys.argv[1:]
store = hitherto.open(path)
if noting == "no":
    store.engine.workspace.note = lambda *_, **__: None
made = Checkpoints(Dying(copies), 1, None, None)
made.register_store(store)
made.count_answer(store, talk, store.conversation(talk).head)
made.wait(20)
"""


def test_a_conversation_that_cannot_be_read_may_have_copies_wherever_any_has(
    store: Store, path: Path, key: bytes | None, tmp_path: Path
) -> None:
    files = FileStore(tmp_path / "copies")
    talk = checkpointed(store, files, known=False)
    store.close()
    with closing(apsw.Connection(str(path))) as file:
        file.execute("UPDATE conversation SET meta = zeroblob(50) WHERE id = ?", (uuid.UUID(talk.id).bytes,))
    with hitherto.open(path, key=key) as later:
        ((failed, why),) = later.purge(talk.id, reason="corruption-detected").failures
        assert (failed, "copies were not reached" in why) == (talk.id, True)
        assert later.register_checkpoint_store(files) == ()
        assert (len(files.list()), notes(later)) == (0, 0)


def test_a_note_outlives_that_its_id_is_used_again(store: Store, tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies")
    talk = checkpointed(store, files, known=False)
    assert purged(store, talk) != ()
    again = Records(store).create(talk.id, title="another")
    checkpoint_copies.remember(store.conversation(again.conversation_id).state, "elsewhere")
    ((_, why),) = store.purge(talk.id, reason="user-requested").failures
    assert "elsewhere" in why
    Records(store).create(talk.id, title="a third")
    ((_, why),) = store.register_checkpoint_store(files)
    assert "elsewhere" in why
    assert (len(files.list()), notes(store)) == (0, 1)


def test_no_reader_is_told_of_the_first_checkpoint_by_another_revision(store: Store, tmp_path: Path) -> None:
    records = Records(store)
    talk = checkpointed(store, FileStore(tmp_path / "one"), count=1)
    revision = records.get(talk.id).revision
    checkpoint_copies.remember(talk.state, "elsewhere")
    assert talk.refresh().state.meta.checkpoints == (f"{tmp_path}/one", "elsewhere")
    assert records.update(talk.id, title="x", expect_revision=revision).title == "x"


def test_where_a_copy_is_is_known_before_it_is_made(store: Store, tmp_path: Path) -> None:
    """Or a copy that was made by a process that died then would never be found."""

    class Dying(FileStore):
        def save(self, snapshot: Snapshot, **how: Any) -> str:
            known.append(talk.refresh().state.meta.checkpoints)
            return super().save(snapshot, **how)

    known: list[tuple[str, ...]] = []
    files = Dying(tmp_path / "copies")
    talk = store.start()
    said = talk.append(Message.user("x"))
    made = Checkpoints(files, 1, None, None)
    made.count_answer(store, talk.id, said.id)
    assert made.wait(20)
    assert known == [(f"{tmp_path}/copies",)]


def test_a_sweep_reaches_them_as_well_and_says_what_it_could_not(store: Store, tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies")
    talks = [checkpointed(store, files) for _ in range(3)]
    lost = checkpointed(store, lambda _: None)
    later = datetime.now(UTC) + timedelta(days=40)
    report = store.sweep(RetentionPolicy(days=30), now=later)
    assert sorted(report.swept) == sorted([*(talk.id for talk in talks), lost.id])
    assert len(files.list()) == 0
    ((failed, why),) = report.failures
    assert (failed, why.split(":")[0]) == (lost.id, "checkpoints in a function were not reached")


def test_a_copy_of_a_conversation_has_checkpoints_of_its_own_only(store: Store, tmp_path: Path) -> None:
    talk = checkpointed(store, FileStore(tmp_path / "copies"))
    assert talk.refresh().detach().state.meta.checkpoints == ()


@pytest.mark.parametrize("place", [7, print, object()], ids=["a number", "a function", "anything"])
def test_what_is_no_place_for_checkpoints_is_refused(place: Any, store: Store) -> None:
    with pytest.raises(InvalidArgument) as caught:
        store.register_checkpoint_store(place)
    assert caught.value.hint


DIES = """
import os, signal, sys
import hitherto
from hitherto.snapshots import FileStore

class Dying(FileStore):
    def _forget(self, unwanted):
        os.kill(os.getpid(), signal.SIGKILL)

path, copies, talk, noting = sys.argv[1:]
store = hitherto.open(path)
if noting == "no":
    store.engine.workspace.note = lambda *_, **__: None
store.register_checkpoint_store(Dying(copies))
store.purge(talk, reason="user-requested")
"""


@pytest.mark.parametrize("noting", ["yes", "no"])
def test_killed_between_the_conversation_and_its_copies_the_copies_are_not_forgotten(
    noting: str, path: Path, tmp_path: Path
) -> None:
    """Without the note, the control, nobody would ever look for them."""
    files = FileStore(tmp_path / "copies")
    with hitherto.open(path) as store:
        talk = checkpointed(store, files)
    done = subprocess.run([sys.executable, "-c", DIES, path, tmp_path / "copies", talk.id, noting], check=False)
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(path) as store:
        with pytest.raises(NotFound):
            store.conversation(talk.id)
        assert len(files.list()) == 2
        assert store.register_checkpoint_store(files) == ()
        assert len(files.list()) == (0 if noting == "yes" else 2)


def test_a_note_of_a_purge_that_never_happened_deletes_nothing(store: Store, tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies")
    talk = checkpointed(store, files)
    checkpoint_copies.note(store.engine, [store.engine.read_row(talk.state.id)])  # and then the process is killed
    assert store.register_checkpoint_store(files) == ()
    assert (len(files.list()), notes(store)) == (2, 0)


# -- nothing is left in any file


WORD = "Zanzibarquux"  # one word, so that the search index has it as it is
NOISE = random.Random(7).randbytes(300_000)  # what cannot be squeezed
KINDS = ("text", "title", "label", "metadata", "attachment", "partial", "state", "prompt", "tool", "raw", "renamed")


def filled(store: Store, copies: FileStore) -> Conversation:
    """A conversation that says the word, with each kind's name, everywhere it can be said."""
    said = {kind: f"{WORD}{kind}" for kind in KINDS}
    talk = checkpointed(store, copies, text=said["text"])
    talk.configure(system_prompt=said["prompt"], tools=[{"name": said["tool"]}])
    talk.describe({"a": said["metadata"]})
    talk.rename(said["renamed"])
    talk.rename(said["title"])
    large = Message("user", (Block("file", NOISE, "binary"),), raw={"data": base64.b64encode(NOISE).decode()})
    raw = {"role": "assistant", "content": said["raw"]}
    talk.extend([large, Message.assistant(said["text"], raw=raw, label=said["label"])])
    key = recovery.new_key(store.engine.message_ids.number(str(talk.head)))
    recovery.keep(talk.state, key, [Message.assistant(said["partial"])], recording=True)
    recovery.keep_snapshot(store.engine, talk.id, {"state": said["state"]})
    store.search(said["text"])
    return talk


def residue(folder: Path) -> set[str]:
    """What is said of the word in the files of a folder."""
    signs = {kind: [word.encode(), word.lower().encode()] for kind in KINDS if (word := f"{WORD}{kind}")}
    signs["attachment"] = [NOISE[3000:3030], base64.b64encode(NOISE)[4000:4040]]
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return {kind for kind, some in signs.items() if any(sign in data for sign in some for data in files)}


def test_after_a_purge_nothing_of_a_conversation_is_left_in_any_file(store: Store, path: Path, tmp_path: Path) -> None:
    """D9: text, titles, labels, metadata, setups, attachments, partials, the recovery snapshot, words, checkpoints."""
    stays = store.start(title="stays").append(Message.user("stays"))
    talk = filled(store, FileStore(path.parent / "copies"))
    assert residue(path.parent) == ({"text"} if store.key_id else set(KINDS))  # the control; these copies are plain
    report = store.purge(talk, reason="user-requested")
    assert (report.failures, report.scrub_pending) == ((), False)
    assert residue(path.parent) == set()
    assert store.message(stays.id).text == "stays"
    assert store.verify().ok
    store.close()
    assert residue(path.parent) == set()


def keys_of(store: Store, talk: Conversation) -> list[bytes]:
    """What of a sealed conversation could be found in files: its wrapped key, and the beginnings of what is sealed."""
    id, row = talk.state.id, store.engine.read_row(talk.state.id)
    bodies = [m.body for m in store.backend.scan(id, limit=1000) if m.body]
    bodies += [item.body for item in store.backend.items(id)]
    bodies += [chunk for a in store.backend.attachments(id) for chunk in store.backend.chunks(id, a.name)]
    return [row.data_key, row.meta, *bodies]


def test_after_a_purge_of_a_sealed_store_neither_keys_nor_sealed_bytes_are_left(path: Path) -> None:
    with hitherto.open(path, key=KEY, maintenance=False) as store:
        talk = filled(store, FileStore(path.parent / "copies", KEY))
        assert residue(path.parent) == set()  # nothing can be read in the first place
        sealed = [data[8:40] for data in keys_of(store, talk)]
        assert len(sealed) > 8

        def left() -> int:
            files = [file.read_bytes() for file in path.parent.rglob("*") if file.is_file()]
            return sum(any(one in data for data in files) for one in sealed)

        assert left() == len(sealed)  # the control: they are found
        copies = sum(1 for _ in (path.parent / "copies").iterdir())
        assert store.purge(talk, reason="user-requested").failures == ()
        assert left() == 0
        assert sum(1 for _ in (path.parent / "copies").iterdir()) <= copies - 2


def test_a_plain_delete_in_the_database_leaves_what_a_purge_does_not(path: Path) -> None:
    """The negative control: rows that are gone are not bytes that are gone."""
    with hitherto.open(path, maintenance=False) as store:
        filled(store, FileStore(path.parent / "copies"))
    with closing(apsw.Connection(str(path))) as file:
        file.execute("PRAGMA secure_delete = OFF; PRAGMA foreign_keys = OFF")
        for table in ("message", "item", "conversation"):
            file.execute(f"DELETE FROM {table}")
    assert {"text", "title", "partial", "state", "prompt"} <= residue(path.parent)


def test_a_conversation_that_is_purged_from_quarantine_takes_its_checkpoints_along(tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies")
    with hitherto.open(tmp_path / "c.db", key=bytes(range(32))) as store:
        store.register_checkpoint_store(files)
        talk = store.start()
        talk.append(Message.user("x"))
        checkpoint_copies.remember(talk.state, checkpoint_copies.location_of(files))
        files.save(talk.snapshot(metadata={"checkpoint": "automatic"}))
        row = store.engine.read_row(talk.state.id)
        store.engine.quarantine.add(row.id, None, "for the test")
        torn = replace(row, token=os.urandom(16), proof=b"torn")
        store.backend.commit([Batch((Change(row.id, row.token, torn),))])
        report = store.purge_quarantine()
        assert (report.purged_count, report.failures) == (1, ())
        assert len(files.list()) == 0
