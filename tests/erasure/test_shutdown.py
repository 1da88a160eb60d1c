"""Closing a store (D11): it waits for what is on its way, only for so long, and says what it could not finish."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Key, Message
from hitherto._engine.committer import Committer
from hitherto._erasure import shutdown
from hitherto.backend import CHAT
from hitherto.backends.memory import MemoryBackend
from hitherto.chat import Client, Config, new_client
from hitherto.errors import Closed, InvalidArgument, StorageError, Suspended
from hitherto.events import Event, PurgeCompleted
from hitherto.reports import CloseReport
from hitherto.testing.conformance import create
from hitherto.testing.faultdisk import FaultDisk
from tests.support.parts import background_of

from ..support.patience import AGES, SOON
from ..support.provider import Asked, Provider, chat_answer, provider

SHORT = 0.3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultDisk]:
    with FaultDisk(tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def _nobody_left_behind() -> Iterator[None]:
    """What closing leaves behind comes to its end when the test lets it: before the next one looks."""
    yield
    for thread in threading.enumerate():
        if thread.name == "hitherto closing":
            thread.join(10)


class Hanging:
    """A disk that hangs at its next sync, until it is let go."""

    def __init__(self, disk: FaultDisk) -> None:
        self.hangs, self.go_on = threading.Event(), threading.Event()
        disk.syncing = self._sync

    def _sync(self) -> None:
        self.hangs.set()
        self.go_on.wait(AGES)


def opened(disk: FaultDisk, **given: object) -> hitherto.Store:
    return hitherto.open(disk.directory / "store.db", vfs=disk.name, **given)  # type: ignore[arg-type]  # its options


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread, failed


def test_closing_says_that_all_is_done_and_says_it_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = hitherto.open(tmp_path / "store.db")
    store.start().append(Message.user("a"))
    with caplog.at_level(logging.WARNING, logger="hitherto"):
        report = store.close()
    assert report == CloseReport()
    assert report.complete
    assert str(report) == "nothing is left"
    assert store.close(timeout_seconds=0) is report
    assert caplog.text == ""
    with pytest.raises(Closed):
        store.start()
    assert [t.name for t in threading.enumerate() if t.name == "hitherto closing"] == []


def test_closing_waits_for_a_write_on_a_disk_that_is_slow(disk: FaultDisk) -> None:
    store = opened(disk)
    talk = store.start()
    hanging = Hanging(disk)
    writer, failed = in_thread(lambda: talk.append(Message.user("slow")))
    assert hanging.hangs.wait(10)
    reports: list[CloseReport] = []
    closer, _ = in_thread(lambda: reports.append(store.close()))
    closer.join(0.1)
    assert closer.is_alive()  # it waits
    hanging.go_on.set()
    closer.join(10)
    writer.join(10)
    assert (reports, failed) == ([CloseReport()], [])
    with opened(disk) as again:
        assert [m.text for m in again.conversation(talk.id).thread()] == ["slow"]


def test_a_disk_that_hangs_does_not_hold_it_up_for_ever(disk: FaultDisk, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(disk)
    talks = [store.start() for _ in range(3)]
    hanging = Hanging(disk)
    writers = [in_thread(lambda talk=talk: talk.append(Message.user("x"))) for talk in talks]  # type: ignore[misc]
    assert hanging.hangs.wait(10)
    while store.engine.committer.pending_count < 3:
        time.sleep(0.001)
    began = time.monotonic()
    report = store.close(timeout_seconds=SHORT)
    assert SHORT <= time.monotonic() - began < SOON
    assert (report.complete, report.writes) == (False, 3)
    assert "3 writes" in caplog.text
    assert store.close() is report
    hanging.go_on.set()
    for writer, _ in writers:
        writer.join(10)
        assert not writer.is_alive()


def test_a_disk_that_hangs_while_upkeep_is_at_it_does_not_either(disk: FaultDisk) -> None:
    store = opened(disk)
    talk = store.start()
    for n in range(40):
        talk.append(Message.user(f"m{n}"))
    hanging = Hanging(disk)
    began = time.monotonic()
    report = store.close(timeout_seconds=SHORT)  # which packs a little, and lets go of the files
    assert time.monotonic() - began < SOON
    assert hanging.hangs.is_set()
    assert not report.complete
    assert report.unfinished or report.writes
    hanging.go_on.set()


def test_maintenance_that_closing_leaves_behind_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It meets the closed store when it goes on, of which nobody needs a second warning."""
    monkeypatch.setattr(shutdown, "_MAINTENANCE_SECONDS", 0.05)
    go_on = threading.Event()

    class Slow(MemoryBackend):
        def maintain(self, seconds: float) -> bool:
            go_on.wait(AGES)
            self.totals(CHAT)  # raises `Closed`
            return super().maintain(seconds)

    store = hitherto.Store(Slow())
    store.start().append(Message.user("x"))
    report = store.close()
    closing = [thread for thread in threading.enumerate() if thread.name == "hitherto closing"]
    go_on.set()
    for thread in closing:
        thread.join(10)
    assert closing  # the control: something was left behind
    assert (report.complete, report.unfinished) == (False, ("maintenance",))
    assert [record.getMessage() for record in caplog.records] == [
        "the store was closed before all was done: maintenance"
    ]


def test_a_listener_that_hangs_does_not_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = hitherto.open(tmp_path / "store.db")
    hangs, go_on = threading.Event(), threading.Event()

    def hang(_: Event) -> None:
        hangs.set()
        go_on.wait(AGES)

    heard: list[Event] = []
    store.subscribe(hang)
    store.subscribe(heard.append)
    talk = store.start()
    talk.append(Message.user("a"))
    assert hangs.wait(10)
    began = time.monotonic()
    report = store.close(timeout_seconds=SHORT)
    assert time.monotonic() - began < SOON
    assert (report.complete, report.events, report.writes) == (False, 2, 0)
    assert "2 events" in caplog.text
    assert len(heard) == 2  # the other one has heard all
    go_on.set()
    with hitherto.open(tmp_path / "store.db") as again:
        assert again.conversation(talk.id).count == 1


def test_what_waits_for_listeners_is_delivered_before_it_returns(tmp_path: Path) -> None:
    heard: list[Event] = []
    with hitherto.open(tmp_path / "store.db") as store:

        def dawdle(event: Event) -> None:
            time.sleep(0.001)
            heard.append(event)

        store.subscribe(dawdle)
        talk = store.start()
        for n in range(30):
            talk.append(Message.user(f"m{n}"))
    assert len(heard) == 31


def test_an_answer_that_is_held_and_cannot_be_written_is_named(
    disk: FaultDisk, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(disk, maintenance=False)

    def answer(_: Asked) -> object:
        disk.fail(disk.operations + 1, lasting=True)
        return chat_answer("paid for")

    with provider(answer) as server:
        config = Config(
            "openai-compatible", "m", api_key="k", base_url=server.url + "/v1", allow_insecure_base_url=True
        )
        client = hitherto.record(new_client(config), store)
        assert client.chat("one") == "paid for"
        report = store.close(timeout_seconds=5)
        client.close()
    assert not report.complete
    assert report.held
    assert "StorageError" in report.held[0]
    assert "paid for" not in str(report.held) + caplog.text
    assert "held" in caplog.text


def test_a_recorder_holds_its_answer_while_writing_is_suspended(disk: FaultDisk) -> None:
    """D18: who was answered loses nothing."""
    store = opened(disk, maintenance=False)
    talk = store.start()

    def answer(asked: Asked) -> object:  # whatever it is
        disk.fail(disk.operations + 1, lasting=True)
        for _ in range(5):
            with pytest.raises(StorageError):
                talk.append(Message.user("lost"))
        with pytest.raises(Suspended):
            talk.append(Message.user("lost"))
        return chat_answer("paid for")

    with provider(answer) as server:
        config = Config(
            "openai-compatible", "m", api_key="k", base_url=server.url + "/v1", allow_insecure_base_url=True
        )
        client = hitherto.record(new_client(config), store)
        assert client.chat("one") == "paid for"
        recording = hitherto.recording(client)
        assert recording is not None
        assert recording.pending == 1
        with pytest.raises(Suspended):
            recording.flush()
        disk.heal()
        store.purge(talk, reason="user-requested")  # which shows that the disk works again
        recording.flush()
        assert recording.pending == 0
        client.close()
    assert store.close().complete


def test_a_write_that_was_put_in_line_and_forgotten_is_written_by_who_waits(tmp_path: Path) -> None:
    """Whoever was interrupted between the two left it there: closing does not wait in vain for nobody."""
    store = hitherto.open(tmp_path / "store.db", maintenance=False)
    batch = create(id=b"f" * 16)
    entry = store.engine.committer.enqueue(batch)
    began = time.monotonic()
    assert store.close(timeout_seconds=AGES).complete
    assert time.monotonic() - began < SOON
    assert entry.result is not None


def test_an_interrupted_rewrap_leaves_nothing_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hitherto.open(tmp_path / "store.db", key=Key.generate(), maintenance=False)
    for _ in range(5):
        store.start()
    outcome, waited = Committer.wait, [0]

    def interrupted(self: Committer, entry: object) -> object:
        if len(self._queue) > 1:
            waited[0] += 1
            raise KeyboardInterrupt
        return outcome(self, entry)  # type: ignore[arg-type]  # as it was given

    monkeypatch.setattr(Committer, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.rotate(Key.generate())
    monkeypatch.undo()
    assert waited == [1]
    assert store.engine.committer.pending_count == 0
    assert store.engine.committer._queue == []
    assert store.close().complete


def test_a_purge_that_is_still_delayed_is_said_and_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hitherto.open(tmp_path / "store.db", maintenance=False)
    heard: list[Event] = []
    store.subscribe(heard.append)
    talk = store.start()
    monkeypatch.setattr(type(store.backend), "scrub", lambda _: False)
    assert store.purge(talk, reason="user-requested").scrub_pending
    report = store.close()
    assert (report.complete, report.purges) == (False, 1)
    assert not any(isinstance(event, PurgeCompleted) for event in heard)


def test_two_who_close_get_the_same_report(tmp_path: Path) -> None:
    store = hitherto.open(tmp_path / "store.db")
    store.start()
    reports: list[CloseReport] = []
    threads = [threading.Thread(target=lambda: reports.append(store.close())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({id(report) for report in reports}) == 1


def test_closing_awaited_gives_the_report_too(tmp_path: Path) -> None:
    async def main() -> tuple[CloseReport, CloseReport]:
        store = await hitherto.open_async(tmp_path / "store.db")
        await store.start()
        return await store.close(timeout_seconds=5), await store.close()

    first, second = asyncio.run(main())
    assert first.complete
    assert first is second


def test_what_fails_while_it_lets_go_is_said_and_the_rest_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hitherto.open(tmp_path / "store.db")

    def fails(_: object) -> None:
        raise StorageError("disk I/O error")

    monkeypatch.setattr(type(store.engine.search), "close", fails)
    report = store.close()
    assert (report.complete, report.unfinished) == (False, ("letting go of the files: StorageError",))
    with pytest.raises(Closed):
        store.backend.kinds()


def test_without_another_thread_it_closes_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter, say."""
    store = hitherto.open(tmp_path / "store.db", maintenance=False)
    store.start()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert store.close().complete
    with pytest.raises(Closed):
        store.start()


def test_control_without_the_bound_a_disk_that_hangs_hangs_whoever_closes(
    disk: FaultDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the thread is for: done in the caller's own, closing waits as long as the disk does."""
    store = opened(disk)
    store.start()
    hanging = Hanging(disk)
    monkeypatch.setattr("hitherto._erasure.shutdown._in_time", lambda work, _: (work(), True)[1])
    closer, _ = in_thread(lambda: store.close(timeout_seconds=SHORT))
    closer.join(SHORT + 0.5)
    assert closer.is_alive()
    hanging.go_on.set()
    closer.join(10)


def test_a_report_names_all_that_is_left() -> None:
    report = CloseReport(False, writes=1, held=("x",), events=2, purges=1, unfinished=("maintenance",))
    assert str(report) == "1 writes, 1 held, 2 events, 1 purges, maintenance"


# -- what recorders hold


def recorded(store: hitherto.Store, server: Provider, **options: object) -> Client:
    config = Config("openai-compatible", "m", api_key="k", base_url=server.url + "/v1", allow_insecure_base_url=True)
    client = new_client(config)
    assert isinstance(client, Client)
    return hitherto.record(client, store, **options)  # type: ignore[arg-type]  # its options


def at_last(store: hitherto.Store, name: str, work: Callable[[], object]) -> None:
    """As a recorder does that holds something."""

    def write() -> None:
        work()

    store.engine.at_close[name] = write


def texts(disk: FaultDisk) -> list[str]:
    with opened(disk) as again:
        return [message.text for message in again.messages(newest_first=False)]


def test_what_is_held_is_tried_although_writing_is_suspended(disk: FaultDisk) -> None:
    """D11: the disk works again, and nobody knows it yet."""
    store = opened(disk, maintenance=False)
    talk = store.start()

    def answer(asked: Asked) -> object:
        disk.fail(disk.operations + 1, lasting=True)
        for _ in range(6):
            with pytest.raises(StorageError):
                talk.append(Message.user("lost"))
        return chat_answer("paid for")

    with provider(answer) as server:
        client = recorded(store, server)
        client.chat("one")
        disk.heal()
        with pytest.raises(Suspended):  # the control: before it is closed, it is not tried
            talk.append(Message.user("x"))
        assert store.close().complete
        client.close()
    assert texts(disk) == ["one", "paid for"]


def test_a_checkpoint_that_hangs_costs_no_answer(disk: FaultDisk) -> None:
    store = opened(disk, maintenance=False)
    hangs, go_on = threading.Event(), threading.Event()

    def save(_: object) -> None:
        hangs.set()
        go_on.wait(AGES)

    def answer(asked: Asked) -> object:
        if hangs.is_set():
            disk.fail(disk.operations + 1, lasting=True)
        return chat_answer("paid for")

    with provider(answer) as server:
        client = recorded(store, server, checkpoint=save)
        client.chat("one")
        assert hangs.wait(10)
        client.chat("two")
        disk.heal()
        report = store.close(timeout_seconds=SHORT)
        go_on.set()
        client.close()
    assert (report.held, report.unfinished) == ((), ("checkpoints",))
    assert texts(disk) == ["one", "paid for", "two", "paid for"]


def test_whatever_goes_wrong_with_one_the_others_are_written_and_it_closes(tmp_path: Path) -> None:
    """Also if it is no error of ours: then nobody knows what its text says."""
    store = hitherto.open(tmp_path / "store.db", maintenance=False)
    talk = store.start()
    meanwhile: list[str] = []

    def fail() -> None:
        at_last(store, "meanwhile", lambda: meanwhile.append("held while others were written"))
        raise RuntimeError("secret")

    at_last(store, "broken", fail)
    at_last(store, "held", lambda: talk.append(Message.user("held")))
    report = store.close()
    assert (report.complete, report.held) == (False, ("RuntimeError",))
    assert store.close() is report
    assert meanwhile
    with pytest.raises(Closed):
        store.backend.kinds()
    with hitherto.open(tmp_path / "store.db") as again:
        assert [m.text for m in again.conversation(talk.id).thread()] == ["held"]


def test_an_answer_that_is_held_when_the_store_is_closed_already_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hitherto.open(tmp_path / "store.db", maintenance=False)
    talk = store.start()

    def late() -> None:
        at_last(store, "late", lambda: talk.append(Message.user("late")))

    monkeypatch.setattr(store.engine.background, "do_last", late)
    assert store.close().held == ("Closed: the store is closed",)


def test_what_there_was_no_time_for_is_counted(tmp_path: Path) -> None:
    store = hitherto.open(tmp_path / "store.db", maintenance=False)
    go_on = threading.Event()
    for name in ("hangs", "one", "two"):
        at_last(store, name, lambda: go_on.wait(AGES))
    report = store.close(timeout_seconds=SHORT)
    go_on.set()
    assert (report.held, report.unfinished) == (("no time was left to try 2 of them",), ("writing",))


# -- what cannot be finished


def test_a_last_scrub_that_fails_is_said_and_all_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hitherto.open(tmp_path / "store.db", maintenance=False)
    heard: list[Event] = []
    store.subscribe(heard.append)

    def fails(_: object) -> bool:
        raise StorageError("disk I/O error")

    monkeypatch.setattr(type(store.backend), "scrub", fails)
    assert store.purge(store.start(), reason="user-requested").scrub_pending
    (thread,) = store.engine.listeners._threads
    report = store.close()
    assert (report.purges, report.unfinished) == (1, ("scrubbing: StorageError",))
    assert store.close() is report
    assert not any(isinstance(event, PurgeCompleted) for event in heard)
    with pytest.raises(Closed):
        store.backend.kinds()
    thread.join(10)
    assert not thread.is_alive()


def test_keys_that_are_forgotten_say_that_the_store_is_closed(tmp_path: Path) -> None:
    """A rotation beside it, say: nothing is damaged."""
    store = hitherto.open(tmp_path / "store.db", key=Key.generate(), maintenance=False)
    sealed = store.engine.workspace.sealed_codec
    assert sealed is not None
    slot = sealed.new_slot(b"c" * 16, 1)
    store.close()
    with pytest.raises(Closed):
        sealed.new_slot(b"c" * 16, 1)
    with pytest.raises(Closed):
        sealed.rewrap(b"c" * 16, [replace(slot, key_id=b"k" * len(slot.key_id))])


# -- who closes


@pytest.mark.parametrize("lock", ["pen", "listeners", "upkeep", "close"])
def test_a_signal_may_come_anywhere_and_its_handler_may_close(tmp_path: Path, lock: str) -> None:
    """A handler runs in the thread that it interrupts: whatever that one holds is not let go until it returns."""
    store = hitherto.open(tmp_path / "store.db")
    store.start()
    locks = {
        "pen": store.engine.committer._mutex,
        "listeners": store.engine.listeners._lock,
        "upkeep": background_of(store)._wake._cond,  # type: ignore[attr-defined]  # of the standard library's
        "close": store._closing_lock,
    }
    reports: list[CloseReport] = []

    def interrupted() -> None:
        with locks[lock]:
            reports.append(store.close(timeout_seconds=SHORT))

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(reports) == 1
    with pytest.raises(Closed):
        store.start()


def test_a_listener_that_closes_while_somebody_closes_does_not_wait_for_itself(tmp_path: Path) -> None:
    store = hitherto.open(tmp_path / "store.db")
    closing, reports = threading.Event(), list[CloseReport]()

    def close(_: Event) -> None:
        assert closing.wait(10)
        while store._closing_lock.acquire(blocking=False):  # until somebody else has it
            store._closing_lock.release()
        reports.append(store.close(timeout_seconds=AGES))

    store.subscribe(close)
    store.start()
    closing.set()
    began = time.monotonic()
    assert store.close(timeout_seconds=AGES).complete
    assert time.monotonic() - began < SOON
    assert [report.unfinished for report in reports] == [("somebody else is closing it",)]


def test_who_closes_second_waits_only_as_long_as_it_said(tmp_path: Path) -> None:
    store = hitherto.open(tmp_path / "store.db")
    hangs, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        go_on.wait(AGES)

    at_last(store, "hangs", hang)
    first, _ = in_thread(store.close)
    assert hangs.wait(10)
    began = time.monotonic()
    report = store.close(timeout_seconds=0.05)
    assert time.monotonic() - began < SOON
    assert (report.complete, report.unfinished) == (False, ("somebody else is closing it",))
    go_on.set()
    first.join(10)
    assert store.close().complete


@pytest.mark.parametrize("seconds", [float("nan"), -1, None, "x"])
def test_a_timeout_that_is_none_is_refused_and_nothing_is_closed(tmp_path: Path, seconds: float) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        for call in (store.close, store.wait_for_listeners):
            with pytest.raises(InvalidArgument):
                call(timeout_seconds=seconds)
        store.start()


@pytest.mark.parametrize("seconds", [float("inf"), 1e12, 10**400])
def test_a_timeout_may_be_as_long_as_one_likes(tmp_path: Path, seconds: float) -> None:
    store = hitherto.open(tmp_path / "store.db")
    store.subscribe(lambda _: None)
    store.start()
    assert store.wait_for_listeners(timeout_seconds=seconds)
    assert store.close(timeout_seconds=seconds).complete
