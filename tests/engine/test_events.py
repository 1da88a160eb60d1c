"""What a store tells those who listen (D3, D9): after the commit, in the order of the commits, at most once, whatever
listeners do."""

import asyncio
import gc
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import apsw
import pytest

import hitherto
import hitherto.formats
from hitherto import Key, Message, RetentionPolicy, Store, events
from hitherto._engine.committer import Committer, report_stored
from hitherto.backend import DONE, Batch, ConversationRow, Done, Outcome
from hitherto.backends.memory import MemoryBackend
from hitherto.errors import Closed, CommitUnknown, Held, InvalidArgument, StorageError
from hitherto.events import MOST_LISTENERS, ConversationDeleted, ConversationStored, Event, Listeners, PurgeCompleted
from hitherto.model import to_datetime
from hitherto.testing.conformance import A, B, create, update

from ..support.patience import SOON


class Heard:
    """One who listens, and has heard all that was told so far."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._events: list[Event] = []
        self.stop = store.subscribe(self._events.append)

    def all(self) -> list[Event]:
        assert self._store.wait_for_listeners()
        return self._events

    def taken(self) -> list[Event]:
        found = list(self.all())
        self._events.clear()
        return found

    def stored(self) -> list[tuple[str, int]]:
        """Takes what was heard, which was nothing but that."""
        found = self.taken()
        assert all(type(event) is ConversationStored for event in found), found
        return [(event.conversation, event.messages) for event in found if isinstance(event, ConversationStored)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "store.db", maintenance=False) as opened:
        yield opened


@pytest.fixture
def heard(store: Store) -> Heard:
    return Heard(store)


# -- what is told


def test_everything_that_changes_a_conversation_is_told_once(store: Store, heard: Heard) -> None:
    talk = store.start(title="T")
    assert heard.stored() == [(talk.id, 0)]
    first = talk.append(Message.user("a"))
    talk.extend([Message.assistant("b"), Message.user("c")])
    store.save([Message.assistant("d")], conversation=talk)
    assert heard.stored() == [(talk.id, 1), (talk.id, 2), (talk.id, 1)]
    changes: list[Callable[[], object]] = [
        lambda: talk.rename("U"),
        lambda: talk.describe({"a": "b"}),
        lambda: talk.label("l", message=first),
        talk.hold,
        talk.release,
        lambda: talk.configure(model="m"),
        lambda: store.delete([store.save([Message.user("x")], conversation=talk)[0]]),
    ]
    for change in changes:
        change()
        assert {conversation for conversation, _ in heard.stored()} == {talk.id}, change
    talk.follow().compact("In short.")
    assert heard.stored() == [(talk.id, 1)]
    other = talk.detach()
    assert heard.stored() == [(other.id, 1 + 4)]
    restored = store.restore(talk.snapshot())
    assert [name for name, _ in heard.stored()] == [restored.id]


def test_what_is_no_change_is_not_told(store: Store, heard: Heard) -> None:
    talk = store.ensure("k")
    talk.append(Message.user("a", key="once"))
    talk.hold()
    heard.taken()
    store.ensure("k")
    store.conversation(talk.id).append(Message.user("a", key="once"))
    talk.hold()
    talk.rename("")
    talk.describe({})
    talk.label(None)
    talk.configure(model="")
    talk.fork()
    store.set_retention(None)
    store.search("a")
    store.maintain()
    store.verify()
    store.sweep(RetentionPolicy(days=30))
    store.purge_quarantine()
    with pytest.raises(hitherto.Conflict):
        talk.append(Message.user("x"), expect_head="zzzzzz")
    with pytest.raises(Held):
        store.purge(talk, reason="user-requested")
    assert [
        type(event).__name__ for event in heard.taken() if not isinstance(event, hitherto.events.SweepFinished)
    ] == []


def test_an_answer_on_its_way_and_packing_are_not_told(store: Store, heard: Heard) -> None:
    from hitherto._engine.recovery import keep, new_key

    talk = store.start()
    for n in range(40):
        talk.append(Message.user(f"m{n}"))
    heard.taken()
    at = talk.at
    assert at is not None
    keep(talk.state, new_key(store.engine.message_ids.number(at)), [Message.assistant("half")])
    assert store.maintain().packed
    talk.discard(talk.partials()[0])
    assert heard.taken() == []


def test_what_an_import_brings_is_told(store: Store, heard: Heard) -> None:
    with hitherto.open("memory:") as other:
        talk = other.start(title="T")
        talk.extend([Message.user("a"), Message.assistant("b")])
        hitherto.formats.copy(other, store)
    assert [messages for _, messages in heard.stored()] == [2]


def test_a_purge_tells_what_is_gone_and_then_that_it_is_complete(store: Store, heard: Heard) -> None:
    talk = store.start()
    heard.taken()
    store.purge(talk, reason="privacy-policy-change")
    gone, completed = heard.taken()
    assert isinstance(gone, ConversationDeleted)
    assert (gone.conversation, gone.reason) == (talk.id, "privacy-policy-change")
    assert isinstance(completed, PurgeCompleted)
    assert (completed.reason, completed.purged_count, completed.failures) == ("privacy-policy-change", 1, ())
    assert 0 <= completed.seconds < SOON


def test_a_sweep_tells_every_conversation_and_one_end(store: Store, heard: Heard) -> None:
    talks = [store.start() for _ in range(3)]
    heard.taken()
    store.sweep(RetentionPolicy(days=7), now=to_datetime(store.engine.clock()) + timedelta(days=8))
    told = heard.taken()
    gone = [event for event in told if isinstance(event, ConversationDeleted)]
    assert {event.conversation for event in gone} == {talk.id for talk in talks}
    assert {event.reason for event in gone} == {"retention-expired"}
    (completed,) = [event for event in told if isinstance(event, PurgeCompleted)]
    assert (completed.reason, completed.purged_count) == ("retention-expired", 3)


def test_purging_all_records_tells_its_own_reason(store: Store, heard: Heard) -> None:
    from hitherto.records import Records

    talks = [store.start() for _ in range(3)]
    heard.taken()
    Records(store).purge_all(reason="workspace-reset")
    told = heard.taken()
    assert {(e.conversation, e.reason) for e in told if isinstance(e, ConversationDeleted)} == {
        (talk.id, "workspace-reset") for talk in talks
    }
    assert [(e.reason, e.purged_count) for e in told if isinstance(e, PurgeCompleted)] == [("workspace-reset", 3)]


def test_what_the_quarantine_destroys_is_told(tmp_path: Path) -> None:
    path, key = tmp_path / "sealed.db", Key.generate()
    with hitherto.open(path, key=key) as store:
        talk = store.start(title="T")
        talk.append(Message.user("a"))
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE conversation SET meta = zeroblob(40) WHERE kind = 'chat'")
    connection.close()
    with hitherto.open(path, key=key) as store:
        heard = Heard(store)
        assert store.conversations(limit=5).items == []
        store.purge_quarantine()
        names = [type(event).__name__ for event in heard.taken()]
        assert names == ["Quarantined", "ConversationDeleted", "PurgeCompleted"]


@pytest.mark.parametrize("by", ["scrub", "maintain", "purge", "close"])
def test_a_purge_that_a_reader_delays_is_complete_when_it_is(tmp_path: Path, by: str) -> None:
    """D9: only then."""
    path = tmp_path / "store.db"
    store = hitherto.open(path, maintenance=False)
    heard = Heard(store)
    talk, other = store.start(), store.start()
    talk.append(Message.user("here it stands: incunabulum"))
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM conversation").fetchall() != [(0,)]
    assert store.purge(talk, reason="user-requested").scrub_pending
    assert not store.scrub()
    assert [event for event in heard.taken() if isinstance(event, PurgeCompleted)] == []
    reader.close()
    actions: dict[str, Callable[[], object]] = {
        "scrub": store.scrub,
        "maintain": store.maintain,
        "purge": lambda: store.purge(other, reason="workspace-reset"),
        "close": store.close,
    }
    actions[by]()
    completed = [(event.reason, event.purged_count) for event in heard.all() if isinstance(event, PurgeCompleted)]
    assert completed == [("user-requested", 1), ("workspace-reset", 1)][: 2 if by == "purge" else 1]
    report = store.close()
    assert report.complete
    for file in tmp_path.iterdir():
        assert b"incunabulum" not in file.read_bytes()
    assert len([event for event in heard.all() if isinstance(event, PurgeCompleted)]) == len(completed)


# -- after the commit, in order, at most once


def test_an_event_is_told_after_its_commit_and_before_the_call_returns(store: Store) -> None:
    seen: list[bool] = []
    store.subscribe(lambda event: seen.append(store.conversation(event.conversation).count > 0))  # type: ignore[attr-defined]
    talk = store.start()
    assert store.wait_for_listeners()
    talk.append(Message.user("a"))
    assert store.wait_for_listeners()
    assert seen == [False, True]


def test_events_come_in_the_order_of_the_commits_however_many_write(store: Store, heard: Heard) -> None:
    shared = store.start()
    told: list[int] = []

    def count(event: Event) -> None:
        if isinstance(event, ConversationStored) and event.conversation == shared.id:
            told.append(event.messages)

    store.subscribe(count)
    order: list[tuple[int, int]] = []  # sequence and how many, as committed

    def write(n: int) -> None:
        handle = store.conversation(shared.id)
        for i in range(20):
            saved = handle.extend([Message.user(f"{n}.{i}")] * (1 + (n + i) % 3), on_conflict="follow")
            order.append((saved[0].seq, len(saved)))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert store.wait_for_listeners()
    assert told == [count for _, count in sorted(order)]
    assert len(told) == 160
    assert sum(told) == store.conversation(shared.id).count


class Cut(MemoryBackend):
    """Commits, and then does not know that it has; or fails."""

    error: BaseException | None = None
    kept = True

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        error, self.error = self.error, None
        if error is not None and not self.kept:
            raise error
        outcomes = super().commit(batches)
        if error is not None:
            raise error
        return outcomes


@pytest.mark.parametrize("kept", [True, False])
def test_what_turns_out_to_be_kept_is_told_once(kept: bool) -> None:
    backend = Cut()
    backend.kept = kept
    with Store(backend) as store:
        heard = Heard(store)
        talk = store.start()
        backend.error = CommitUnknown("the line was cut")
        talk.append(Message.user("a"))
        assert heard.stored() == [(talk.id, 0), (talk.id, 1)]


class Blinking(MemoryBackend):
    """Cannot be read for a moment, after so many looks."""

    looks = -1

    def lookup(self, **query: object) -> list[ConversationRow]:
        self.looks -= 1
        if self.looks == 0:
            raise StorageError("disk I/O error")
        return super().lookup(**query)  # type: ignore[arg-type]  # as it was given


def test_what_is_known_to_be_kept_is_neither_written_nor_told_again_when_another_cannot_be_looked_at() -> None:
    backend, listeners = Blinking(), Listeners()
    heard: list[Event] = []
    listeners.subscribe(heard.append)
    pen = Committer(backend, listeners)
    pen.write(create(id=B))
    first, second = pen.enqueue(create(id=A), tell=report_stored), pen.enqueue(create(id=B), tell=report_stored)
    second.unsure = True
    backend.commit([update(1, id=B)])  # so that it is not the one of before that is found
    backend.looks = 2  # not when it is asked whether it was kept, but when it is asked again
    assert pen.wait(first) == DONE
    assert not isinstance(second.result, Done)
    assert listeners.wait(5)
    assert len(heard) == 1


def test_what_was_not_kept_is_not_told() -> None:
    backend = Cut()
    backend.kept = False
    with Store(backend) as store:
        heard = Heard(store)
        talk = store.start()
        backend.error = StorageError("disk I/O error")
        with pytest.raises(StorageError):
            talk.append(Message.user("a"))
        assert heard.stored() == [(talk.id, 0)]


@pytest.mark.parametrize("kept", [True, False])
def test_whoever_is_interrupted_is_told_of_at_most_once(kept: bool) -> None:
    backend = Cut()
    backend.kept = kept
    with Store(backend) as store:
        heard = Heard(store)
        talk = store.start()
        backend.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            talk.append(Message.user("a"))
        handle = store.conversation(talk.id).refresh()
        handle.append(Message.user("b"))
        assert heard.stored() in ([(talk.id, 0), (talk.id, 1)], [(talk.id, 0), (talk.id, 1), (talk.id, 1)])


# -- whatever listeners do


def test_one_that_hangs_delays_neither_those_who_write_nor_the_others(store: Store) -> None:
    hanging, go_on = threading.Event(), threading.Event()

    def hang(_: Event) -> None:
        hanging.set()
        go_on.wait(30)

    heard: list[Event] = []
    store.subscribe(hang)
    done = threading.Event()

    def listen(event: Event) -> None:
        heard.append(event)
        if len(heard) == 11:
            done.set()

    store.subscribe(listen)
    talk = store.start()
    assert hanging.wait(10)
    for n in range(10):
        talk.append(Message.user(f"m{n}"))
    assert done.wait(10)
    assert not store.wait_for_listeners(timeout_seconds=0.01)
    go_on.set()
    assert store.wait_for_listeners()


def test_one_that_raises_anything_is_said_once_and_goes_on(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    raised: list[Event] = []

    def fails(event: Event) -> None:
        raised.append(event)
        raise (SystemExit, KeyboardInterrupt, ValueError)[len(raised) % 3]("a secret")

    store.subscribe(fails)
    heard = Heard(store)
    talk = store.start()
    for n in range(8):
        talk.append(Message.user(f"m{n}"))
    assert len(heard.all()) == len(raised) == 9
    assert caplog.text.count("a listener failed") == 3
    assert "secret" not in caplog.text


def test_what_does_not_fit_is_dropped_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "_MAX_QUEUE", 5)
    hanging, go_on = threading.Event(), threading.Event()
    heard: list[Event] = []

    def slow(event: Event) -> None:
        hanging.set()
        go_on.wait(30)
        heard.append(event)

    store = hitherto.open(tmp_path / "store.db")
    store.subscribe(slow)
    talk = store.start()
    assert hanging.wait(10)
    for n in range(12):
        talk.append(Message.user(f"m{n}"))
    go_on.set()
    report = store.close()
    assert len(heard) == 1 + 5
    assert (report.complete, report.events) == (False, 7)
    assert caplog.text.count("too slow") == 1
    assert "7 events" in caplog.text


def test_who_has_stopped_hears_nothing_more_not_even_what_waits(store: Store) -> None:
    hanging, go_on, done = threading.Event(), threading.Event(), threading.Event()
    heard: list[Event] = []

    def slow(event: Event) -> None:
        hanging.set()
        go_on.wait(30)
        heard.append(event)
        done.set()

    stop = store.subscribe(slow)
    talk = store.start()
    assert hanging.wait(10)
    talk.append(Message.user("a"))
    stop()
    stop()
    go_on.set()
    talk.append(Message.user("b"))
    other = Heard(store)
    talk.append(Message.user("c"))
    assert done.wait(10)
    assert len(other.all()) == 1
    assert len(heard) == 1


def test_a_listener_may_use_the_store_stop_and_close(tmp_path: Path) -> None:
    store = hitherto.open(tmp_path / "store.db")
    closed = threading.Event()
    reports: list[hitherto.reports.CloseReport] = []
    written: list[Event] = []

    def react(event: Event) -> None:
        written.append(event)
        if len(written) == 1:
            store.start(title="by a listener")
            assert store.wait_for_listeners(timeout_seconds=5)  # it does not wait for itself
            stop()
            reports.append(store.close())
            closed.set()

    stop = store.subscribe(react)
    store.start()
    assert closed.wait(10)
    assert len(written) == 1
    assert reports[0].complete
    with hitherto.open(tmp_path / "store.db") as store:
        assert len(store.conversations()) == 2


def _ignore(*_: object) -> None:
    pass


def test_a_listener_does_not_keep_a_store_alive_nor_its_thread() -> None:
    store = Store(MemoryBackend())
    gone = weakref.ref(store)
    store.subscribe(partial(_ignore, store))
    (subscription,) = store.engine.listeners.some
    thread = subscription.queue.thread
    assert thread is not None
    del subscription
    store.start()
    assert store.wait_for_listeners()
    del store
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_a_store_that_nobody_listens_to_has_no_thread_and_is_freed_at_once() -> None:
    store = Store(MemoryBackend(), maintenance=False)
    store.start().append(Message.user("a"))
    assert [thread.name for thread in threading.enumerate() if "events" in thread.name] == []
    gone = weakref.ref(store.engine.committer)
    gc.disable()
    try:
        del store
        assert gone() is None
    finally:
        gc.enable()


def test_a_forked_child_closes_without_waiting_for_threads_that_it_has_not(tmp_path: Path) -> None:
    store = hitherto.open(tmp_path / "store.db")
    go_on = threading.Event()
    store.subscribe(lambda _: go_on.wait(30))
    store.start()
    child = os.fork()
    if child == 0:
        try:
            report = store.close()
            os._exit(0 if report.complete and store.wait_for_listeners() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    assert store.close().complete


def test_if_there_are_no_more_threads_it_is_an_error_of_ours(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(hitherto.HithertoError, match="no thread for a listener can be started") as caught:
        store.subscribe(print)
    assert caught.value.hint


def test_async_listeners_are_waited_for_too(tmp_path: Path) -> None:
    async def main() -> list[str]:
        heard: list[Event] = []
        async with hitherto.open_async(tmp_path / "store.db") as store:
            store.subscribe(heard.append)
            await store.start()
            assert await store.wait_for_listeners(timeout_seconds=5)
            return [type(event).__name__ for event in heard]

    assert asyncio.run(main()) == ["ConversationStored"]


def test_control_a_listener_in_the_writers_thread_would_delay_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the queues are for: without them, whoever writes waits for whoever listens."""
    monkeypatch.setattr(Listeners, "emit", lambda self, event: [one.listener(event) for one in self.some])
    go_on, written = threading.Event(), threading.Event()
    store.subscribe(lambda _: go_on.wait(30))

    def write() -> None:
        store.start()
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.2)
    go_on.set()
    assert written.wait(10)
    thread.join(10)


# -- who may listen


@pytest.mark.parametrize("listener", [None, "print", 7])
def test_what_cannot_be_called_cannot_listen(store: Store, listener: object) -> None:
    with pytest.raises(InvalidArgument):
        store.subscribe(listener)  # type: ignore[arg-type]  # that is the point
    assert store.engine.listeners.some == ()


def test_nobody_listens_to_a_store_that_is_closed(tmp_path: Path) -> None:
    store = hitherto.open(tmp_path / "store.db")
    store.close()
    for subscribe in (store.subscribe, store.engine.listeners.subscribe):
        with pytest.raises(Closed):
            subscribe(lambda _: None)
    assert store.engine.listeners.some == ()


def test_only_so_many_listen_to_a_store(store: Store) -> None:
    """Each is woken by every event, while those who write wait."""
    stops = [store.subscribe(lambda _: None) for _ in range(MOST_LISTENERS)]
    with pytest.raises(InvalidArgument) as caught:
        store.subscribe(lambda _: None)
    assert caught.value.hint
    stops[0]()
    store.subscribe(lambda _: None)
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    assert f"at most {MOST_LISTENERS} listen" in " ".join(page.split()).lower()


# -- a disk that fails


def test_a_purge_whose_bytes_cannot_leave_the_files_now_is_no_failure_and_is_told_when_they_have(
    store: Store, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: the conversation is gone, and whoever asked for it must not be told that it is not."""

    def fails(_: object) -> bool:
        raise StorageError("disk I/O error")

    talk = store.start()
    with monkeypatch.context() as patched:
        patched.setattr(type(store.backend), "scrub", fails)
        report = store.purge(talk, reason="user-requested")
        with pytest.raises(StorageError):  # who asks for the bytes alone is told
            store.scrub()
    assert (report.purged_count, report.scrub_pending) == (1, True)
    assert "StorageError" in caplog.text
    assert not any(isinstance(event, PurgeCompleted) for event in heard.taken())
    assert store.scrub()
    assert [event.purged_count for event in heard.taken() if isinstance(event, PurgeCompleted)] == [1]
