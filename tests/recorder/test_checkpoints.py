"""Automatic checkpoints: when they are made, where they go, and which of them stay.

Every chat here speaks real HTTP to a provider on loopback. Requirements: A11, and "Auto-checkpoint" of the snapshots.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Message, Store
from hitherto.chat import Client, Config, new_client
from hitherto.recorder._checkpoints import Checkpoints
from hitherto.snapshots import FileStore, MemoryFiles, Snapshot

from ..support.provider import Provider, chat_answer, provider


@pytest.fixture
def parrot() -> Iterator[Provider]:
    with provider(lambda _: chat_answer(f"a{len(server.asked)}")) as server:
        yield server


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


OPEN: list[Any] = []  # clients of the test that runs


def recorded(parrot: Provider, store: Store, checkpoint: object, **how: Any) -> Client:
    made = new_client(Config("openai-compatible", "m", api_key="k", base_url=parrot.url + "/v1", **INSECURE))
    assert isinstance(made, Client)
    OPEN.append(made)
    return hitherto.record(made, store, checkpoint=checkpoint, **how)


INSECURE: Any = {"allow_insecure_base_url": True}


def flushed(client: Client) -> None:
    recording = hitherto.recording(client)
    assert recording is not None
    recording.flush()


def test_checkpoints_go_to_a_snapshot_store_and_only_the_last_few_stay(
    parrot: Provider, store: Store, tmp_path: Path
) -> None:
    files = FileStore(tmp_path / "checkpoints")
    client = recorded(parrot, store, files, checkpoint_turns=1, checkpoint_keep=2)
    for n in range(4):
        client.chat(f"q{n}")
        flushed(client)
    assert sorted(summary.message_count for summary in files.list()) == [6, 8]
    newest = files.load(files.list()[0].id)
    talk = store.latest()
    assert talk is not None
    assert newest.messages == talk.snapshot().messages
    assert newest.metadata["conversation"] == talk.id
    assert newest.metadata["head"] == talk.head


def test_pruning_takes_no_snapshot_that_is_not_a_checkpoint_of_the_same_conversation(
    parrot: Provider, store: Store
) -> None:
    files = FileStore("checkpoints", fs=MemoryFiles())
    others = recorded(parrot, store, files, checkpoint_keep=1)
    others.chat("of another conversation")
    flushed(others)
    client = recorded(parrot, store, files, checkpoint_keep=1)
    client.chat("one")
    flushed(client)
    own = client.save()
    files.save(own)
    talk = store.latest()
    assert talk is not None
    by_hand = talk.snapshot()
    files.save(by_hand)
    client.chat("two")
    client.chat("three")
    flushed(client)
    left = {summary.id: summary.message_count for summary in files.list()}
    assert left.pop(own.id) == left.pop(by_hand.id) == 2
    assert sorted(left.values()) == [2, 6]  # the other conversation's, and the newest of ours


def test_without_a_number_ten_stay(parrot: Provider, store: Store) -> None:
    files = FileStore("checkpoints", fs=MemoryFiles())
    client = recorded(parrot, store, files)
    for n in range(12):
        client.chat(f"q{n}")
        flushed(client)
    assert [summary.message_count for summary in files.list()] == [2 * n for n in range(12, 2, -1)]


def test_an_answer_is_in_a_checkpoint_at_the_latest_after_the_interval_though_nobody_speaks(
    parrot: Provider, store: Store
) -> None:
    made: list[Snapshot] = []
    arrived = threading.Event()

    def save(snapshot: Snapshot) -> None:
        made.append(snapshot)
        arrived.set()

    client = recorded(parrot, store, save, checkpoint_seconds=0.2)
    client.chat("one")
    client.chat("two")
    assert arrived.wait(20)
    assert [len(snapshot.messages) for snapshot in made] in ([4], [2])  # one for both, if the machine is not too slow
    flushed(client)
    assert len(made[-1].messages) == 4


def test_what_is_not_due_yet_is_made_before_the_store_is_closed(parrot: Provider) -> None:
    made: list[Snapshot] = []
    with hitherto.open("memory:") as store:
        client = recorded(parrot, store, made.append, checkpoint_seconds=3600)
        client.chat("one")
        assert made == []
    assert [len(snapshot.messages) for snapshot in made] == [2]


def test_conversations_that_go_on_at_the_same_time_each_have_their_checkpoint(parrot: Provider, store: Store) -> None:
    """With one slot for all of them, the last to speak would have the only one."""
    made: list[Snapshot] = []
    going, gate = threading.Event(), threading.Event()

    def save(snapshot: Snapshot) -> None:
        going.set()
        assert gate.wait(20)
        made.append(snapshot)

    sdk: Any = pytest.importorskip("openai").OpenAI(base_url=parrot.url + "/v1", api_key="k")
    OPEN.append(hitherto.record(sdk, store, checkpoint=save))
    for words in ("red", "green", "blue"):
        sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": words}])
        assert going.wait(20)
    gate.set()
    recording = hitherto.recording(sdk)
    assert recording is not None
    recording.flush()
    assert sorted(str(snapshot.messages[0]["content"]) for snapshot in made) == ["blue", "green", "red"]


def test_nobody_who_talks_waits_for_a_checkpoint(parrot: Provider, store: Store) -> None:
    gate = threading.Event()
    client = recorded(parrot, store, lambda _: gate.wait(20))
    assert [client.chat(f"q{n}") for n in range(3)] == ["a1", "a2", "a3"]  # it would stand still here
    recording = hitherto.recording(client)
    assert recording is not None
    with pytest.raises(hitherto.Busy):
        recording.flush(timeout_seconds=0.05)
    gate.set()
    recording.flush()


def test_when_and_how_many_without_where_to_is_refused(parrot: Provider, store: Store) -> None:
    for how in ({"checkpoint_turns": 2}, {"checkpoint_seconds": 2}, {"checkpoint_keep": 2}):
        with pytest.raises(hitherto.InvalidArgument, match="nowhere"):
            recorded(parrot, store, None, **how)
    with pytest.raises(hitherto.InvalidArgument) as caught:
        recorded(parrot, store, "a folder")
    assert "FileStore" in (caught.value.hint or "")


def _in_child(function: Callable[[], bool]) -> int:
    """The exit status of a forked child: 0 if the function is true. A signal ends a child that hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os._exit(0 if function() else 1)
        except BaseException:  # noqa: BLE001  # nothing of the child may come to the test that runs
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # newer Pythons warn of what is tried here
@pytest.mark.parametrize("at_work", ["the lock", "the thread", "nothing"])
def test_a_forked_child_makes_its_own_checkpoints_and_the_parent_what_was_due_before(
    at_work: str, tmp_path: Path
) -> None:
    """In any state of the lock and the thread at the moment of the fork."""
    made: list[Snapshot] = []
    going, gate = threading.Event(), threading.Event()

    def save(snapshot: Snapshot) -> None:
        going.set()
        gate.wait(20)
        made.append(snapshot)

    with hitherto.open(tmp_path / "store.db") as store:
        checkpoints = Checkpoints(save, None if at_work == "nothing" else 1, 3600.0, None)
        talk = store.start(title="before", provider="claude", model="m")
        talk.append(Message.user("q"))
        checkpoints.count_answer(store, talk.id, talk.append(Message.assistant("a")).id)
        if at_work != "nothing":
            assert going.wait(20)

        def child() -> bool:
            gate.set()
            with hitherto.open(tmp_path / "store.db") as own:
                other = own.start(title="after", provider="claude", model="m")
                checkpoints.count_answer(own, other.id, other.append(Message.assistant("b")).id)
            return [snapshot.metadata["title"] for snapshot in made] == ["after"]

        with held(checkpoints._changed) if at_work == "the lock" else nullcontext():
            assert _in_child(child) == 0
        assert made == []
        gate.set()
    assert [snapshot.metadata["title"] for snapshot in made] == ["before"]


@contextmanager
def held(condition: threading.Condition) -> Iterator[None]:
    """Another thread has it."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with condition:
            taken.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_machine_without_a_thread_to_spare_keeps_the_chat_and_tries_again(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Snapshot] = []
    client = recorded(parrot, store, made.append)
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "hitherto-checkpoint":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        assert client.chat("one") == "a1"
    recording = hitherto.recording(client)
    assert recording is not None
    assert isinstance(recording.checkpoint_error, RuntimeError)
    client.chat("two")
    recording.flush()
    assert len(made[-1].messages) == 4


def test_a_program_can_ask_why_its_checkpoint_failed(parrot: Provider, store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    client = recorded(parrot, store, FileStore(tmp_path / "file" / "folder"))
    recording = hitherto.recording(client)
    assert recording is not None
    errors = [recording.checkpoint_error]
    for words in ("one", "two"):
        client.chat(words)
        recording.flush()
        errors.append(recording.checkpoint_error)
        (tmp_path / "file").rename(tmp_path / f"{words} is out of the way")
    assert [type(error) for error in errors] == [type(None), hitherto.CannotOpen, type(None)]


@pytest.mark.parametrize("keep", [0, -1, True, "2", 1.5])
def test_a_number_to_keep_that_is_none_is_refused(keep: Any, parrot: Provider, store: Store) -> None:
    with pytest.raises(hitherto.InvalidArgument, match="checkpoint_keep"):
        recorded(parrot, store, FileStore("x", fs=MemoryFiles()), checkpoint_keep=keep)


def test_a_function_cannot_let_go_of_old_ones_and_says_so(parrot: Provider, store: Store) -> None:
    with pytest.raises(hitherto.InvalidArgument, match="snapshot store"):
        recorded(parrot, store, print, checkpoint_keep=2)


def test_pruning_that_fails_loses_nothing_and_is_said(
    parrot: Provider, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(FileStore):
        def prune(self, **_: object) -> list[str]:
            raise hitherto.Denied("nothing may be deleted here")

    files = Stubborn("x", fs=MemoryFiles())
    client = recorded(parrot, store, files)
    client.chat("one")
    flushed(client)
    assert [summary.message_count for summary in files.list()] == [2]
    assert "nothing may be deleted" in caplog.text
