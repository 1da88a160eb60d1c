"""Recovery snapshots: what is there after a process that recorded has died, and what becomes of a torn one.

Real processes, really killed while an answer streams from a real server. Requirements: D4, D1.
"""

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Message, Store
from hitherto._engine import recovery
from hitherto._sealing.codec import Plain, next_row
from hitherto.backend import Batch, Change, Done
from hitherto.errors import HithertoError, InvalidArgument, InvalidMessage, PayloadTooLarge
from hitherto.events import SnapshotRebuilt
from hitherto.records import Records
from hitherto.reports import RecoverySnapshot

from ..support.forked import Forked, Forker
from ..support.patience import SOON
from ..support.provider import Asked, Reply, chat_answer, chat_events, provider

KEY = b"\x17" * 32


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    made = Forker(os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    yield made
    made.close()


Child = Callable[..., AbstractContextManager[Forked]]


@pytest.fixture
def child(forker: Forker) -> Child:
    @contextmanager
    def child(how: str, url: str, database: Path, key: bytes | None, out: int = 2) -> Iterator[Forked]:
        arguments = [how, url, str(database), *([] if key is None else [key.hex()])]
        with open(os.devnull, "rb") as nothing:
            process = forker.start(
                arguments,
                module="tests.support.unfinished_recorder",
                cwd=Path(__file__).parents[2],
                env=os.environ,
                streams=[nothing.fileno(), out, 2],
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    return child


@pytest.fixture(params=[None, KEY], ids=["plain", "sealed"])
def key(request: pytest.FixtureRequest) -> bytes | None:
    found: bytes | None = request.param
    return found


@pytest.fixture
def store(tmp_path: Path, key: bytes | None) -> Iterator[Store]:
    with hitherto.open(tmp_path / "c.db", key=key, maintenance=False) as store:
        yield store


def begun(store: Store, **state: object) -> hitherto.Conversation:
    """A conversation that a recorder has begun, and not ended."""
    talk = store.start(title="Build")
    talk.extend([Message.user("What fails?"), Message.assistant("The linter."), Message.user("Why?")])
    recovery.keep_snapshot(store.engine, talk.id, state)
    return talk


# -- after a kill


@pytest.mark.parametrize(("how", "key"), [("own", KEY), ("sdk", None)], ids=["own, sealed", "sdk, plain"])
def test_after_a_kill_while_an_answer_streams_the_snapshot_has_what_came_at_most_two_seconds_before(
    how: str, key: bytes | None, child: Child, tmp_path: Path
) -> None:
    """D4, with the pauses that everybody has."""
    database = tmp_path / "c.db"
    age: list[float] = []

    def die() -> None:
        sent = time.monotonic()
        with hitherto.open(database, key=key) as store:
            talk = store.latest()
            assert talk is not None
            while not any("three" in partial.text for partial in talk.partials()):
                assert time.monotonic() - sent < SOON
        age.append(time.monotonic() - sent)
        process.kill()

    def answer(asked: Asked) -> Reply:
        return Reply(events=[*chat_events("one two three four five")[:4], die])

    with provider(answer) as server, child(how, server.url, database, key) as process:
        process.wait()
    assert age[0] < SOON  # the pauses are of a second; others on this machine may take the rest
    with hitherto.open(database, key=key) as store:
        talk = store.latest()
        assert talk is not None
        snapshot = Records(store).get_snapshot(talk.id)
        assert snapshot is not None
        assert not snapshot.rebuilt
        assert [m.text for m in snapshot.messages] == ["tell me"]
        assert [p.text for p in snapshot.partials] == ["one two three "]
        assert snapshot.head == talk.head == snapshot.partials[0].parent
        assert snapshot.at == snapshot.partials[0].at


@pytest.mark.parametrize(("how", "left"), [("open", True), ("closed", False)])
def test_a_kill_after_the_recording_was_closed_leaves_no_snapshot(
    how: str, left: bool, child: Child, tmp_path: Path
) -> None:
    """D1. With a recording that is open still, the control, there is one."""
    database = tmp_path / "c.db"
    read, write = os.pipe()
    with provider(lambda _: chat_answer("done")) as server, child(how, server.url, database, None, write) as process:
        os.close(write)
        with open(read) as said:
            assert said.readline() == "waiting\n"
        process.kill()
        process.wait()
    with hitherto.open(database) as store:
        talk = store.latest()
        assert talk is not None
        snapshot = Records(store).get_snapshot(talk.id)
        assert (snapshot is not None) == left
        if snapshot is not None:
            assert [m.text for m in snapshot.messages] == ["tell me", "done"]


def test_a_conversation_of_ten_thousand_messages_is_restored(store: Store, key: Any) -> None:
    """D4; how long it takes is the benchmark's."""
    talk = store.start()
    for start in range(0, 10_000, 1000):
        talk.extend([Message.user(f"message {n} " + "of some length " * 10) for n in range(start, start + 1000)])
    recovery.keep_snapshot(store.engine, talk.id, {"step": 7})
    location = store.backend.info.location
    store.close()
    with hitherto.open(location, key=key) as again:
        snapshot = Records(again).get_snapshot(talk.id)
    assert snapshot is not None
    assert len(snapshot.messages) == 10_000
    assert snapshot.messages[-1].text.startswith("message 9999 ")


# -- what it holds


def test_a_snapshot_has_the_thread_as_it_stands_and_what_the_caller_gave(store: Store) -> None:
    talk = begun(store, step="seven", seen=[1, 2, None], deep={"a": 1.5})
    said = talk.append(Message.assistant("An import."))
    snapshot = recovery.load_snapshot(store.engine, talk.id)
    assert snapshot is not None
    assert snapshot.conversation_id == talk.id
    assert snapshot.state == {"step": "seven", "seen": [1, 2, None], "deep": {"a": 1.5}}
    assert list(snapshot.messages) == talk.thread()
    assert (snapshot.head, snapshot.partials, snapshot.rebuilt) == (said.id, (), False)
    assert snapshot.at == said.created_at


def test_a_conversation_that_nobody_recorded_has_none_nor_has_one_that_is_not_there(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("x"))
    assert recovery.load_snapshot(store.engine, talk.id) is None
    assert recovery.load_snapshot(store.engine, str(uuid.uuid4())) is None
    begun(store)
    assert recovery.load_snapshot(store.engine, talk.id) is None


def test_what_was_loaded_can_be_kept_again_and_does_not_hold_the_thread_back(store: Store) -> None:
    talk = begun(store, step=1)
    snapshot = recovery.load_snapshot(store.engine, talk.id)
    assert snapshot is not None
    said = talk.append(Message.assistant("An import."))
    recovery.keep_snapshot(store.engine, talk.id, replace(snapshot, state={"step": 2}))
    again = recovery.load_snapshot(store.engine, talk.id)
    assert again is not None
    assert (again.head, again.state) == (said.id, {"step": 2})
    assert list(again.messages) == talk.thread()
    store.delete([said.id])
    rest = recovery.load_snapshot(store.engine, talk.id)
    assert rest is not None
    assert list(rest.messages) == list(snapshot.messages)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (7, InvalidArgument),
        ({"a": {1, 2}}, InvalidMessage),
        ({1: "a"}, InvalidMessage),
        ({"a": "x" * 11_000_000}, PayloadTooLarge),
    ],
    ids=["no dict", "a set", "a number for a name", "too much"],
)
def test_a_state_that_would_not_come_back_is_refused_and_the_one_before_stays(
    state: Any, error: type[HithertoError], store: Store
) -> None:
    talk = begun(store, step=1)
    with pytest.raises(error) as caught:
        recovery.keep_snapshot(store.engine, talk.id, state)
    assert caught.value.hint
    snapshot = recovery.load_snapshot(store.engine, talk.id)
    assert snapshot is not None
    assert snapshot.state == {"step": 1}


def test_a_snapshot_of_another_conversation_is_not_kept_in_this_one(store: Store) -> None:
    talk, other = begun(store), begun(store)
    snapshot = recovery.load_snapshot(store.engine, other.id)
    assert snapshot is not None
    with pytest.raises(InvalidArgument, match="another conversation"):
        recovery.keep_snapshot(store.engine, talk.id, snapshot)


def test_the_state_of_the_caller_outlives_what_is_recorded_after_it(store: Store) -> None:
    with provider(lambda _: chat_answer("because")) as server, client_at(server.url) as client:
        hitherto.record(client, store)
        client.chat("why")
        talk = store.latest()
        assert talk is not None
        recovery.keep_snapshot(store.engine, talk.id, {"step": 7})
        client.chat("and")
        key = recovery.new_key(store.engine.message_ids.number(str(talk.refresh().head)))
        recovery.keep(talk.state, key, [Message.assistant("be")], recording=True)
        snapshot = recovery.load_snapshot(store.engine, talk.id)
    assert snapshot is not None
    assert (snapshot.state, len(snapshot.messages)) == ({"step": 7}, 4)
    assert [p.text for p in snapshot.partials] == ["be"]


def test_a_mark_that_another_process_took_away_is_there_again_with_the_next_piece(store: Store) -> None:
    """Two processes may record one conversation, and one of them may end."""
    talk = begun(store)
    recovery.drop(talk.state, recovery.MARK_KEY)
    assert recovery.load_snapshot(store.engine, talk.id) is None
    key = recovery.new_key(store.engine.message_ids.number(str(talk.head)))
    recovery.keep(talk.state, key, [Message.assistant("be")], recording=True)
    assert recovery.load_snapshot(store.engine, talk.id) is not None


def test_secrets_in_the_state_are_taken_out_where_the_store_takes_them_out(tmp_path: Path) -> None:
    """D8."""
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
    with hitherto.open(tmp_path / "c.db", sanitiser=hitherto.Sanitiser.secrets()) as store:
        talk = begun(store, token=secret)
        snapshot = recovery.load_snapshot(store.engine, talk.id)
        assert snapshot is not None
        assert secret not in str(snapshot.state)
        assert not [path for path in tmp_path.iterdir() if secret.encode() in path.read_bytes()]


@contextmanager
def client_at(url: str) -> Iterator[Any]:
    base = {"base_url": url + "/v1", "allow_insecure_base_url": True}
    made = hitherto.chat.new_client(hitherto.chat.Config("openai-compatible", "m", api_key="k", **base))  # type: ignore[arg-type]
    with made as client:
        yield client


# -- torn ones


def body(store: Store, talk: hitherto.Conversation) -> bytes:
    (item,) = store.backend.items(talk.state.id, recovery.MARK_KEY)
    return item.body


def put(store: Store, talk: hitherto.Conversation, data: bytes) -> None:
    """Replace the bytes of the mark, and nothing else: the row is proven again, as it must be."""
    row = store.engine.read_row(talk.state.id)
    (item,) = store.backend.items(row.id, recovery.MARK_KEY)
    after = next_row(store.engine.codec.envelope(row), row)
    change = Change(row.id, row.token, after, put=(replace(item, body=data),))
    assert isinstance(store.backend.commit([Batch((change,))])[0], Done)


def rebuilt(store: Store, talk: hitherto.Conversation, events: list[object]) -> RecoverySnapshot:
    """The snapshot of a torn mark: made from the tree, said once, and the mark is whole again."""
    events.clear()
    snapshot = recovery.load_snapshot(store.engine, talk.id)
    assert snapshot is not None
    assert snapshot.rebuilt
    assert snapshot.state == {}
    assert list(snapshot.messages) == talk.thread()
    assert store.engine.listeners.wait(10)
    assert [type(event) for event in events if not isinstance(event, hitherto.events.ConversationStored)] == [
        SnapshotRebuilt
    ]
    again = recovery.load_snapshot(store.engine, talk.id)
    assert again is not None
    assert not again.rebuilt
    return snapshot


def test_a_snapshot_with_any_byte_changed_is_made_anew_from_the_tree(store: Store) -> None:
    """D4: never torn data, never an error."""
    talk = begun(store, step="seven")
    events: list[object] = []
    store.subscribe(events.append)
    whole = body(store, talk)
    for n in range(len(whole)):
        put(store, talk, whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :])
        rebuilt(store, talk, events)


def test_a_snapshot_that_was_cut_anywhere_is_made_anew_from_the_tree(store: Store) -> None:
    talk = begun(store, step="seven")
    events: list[object] = []
    store.subscribe(events.append)
    whole = body(store, talk)
    for n in range(len(whole)):
        put(store, talk, whole[:n])
        rebuilt(store, talk, events)


def test_the_snapshot_of_another_conversation_is_none_of_this_one(store: Store) -> None:
    talk, other = begun(store, step=1), begun(store, step=2)
    events: list[object] = []
    store.subscribe(events.append)
    put(store, talk, body(store, other))
    rebuilt(store, talk, events)


def test_bytes_changed_in_the_file_itself_are_noticed_and_said(
    store: Store, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    talk = begun(store, step="seven")
    path = Path(store.backend.info.location)
    store.close()
    with closing(apsw.Connection(str(path))) as file:
        file.execute("UPDATE item SET body = substr(body, 1, length(body) - 3) WHERE key = ?", (recovery.MARK_KEY,))
        assert file.changes() == 1
    events: list[object] = []
    with hitherto.open(path, key=key) as again:
        again.subscribe(events.append)
        rebuilt(again, again.conversation(talk.id), events)
        assert again.verify().ok
    (said,) = [event for event in events if isinstance(event, SnapshotRebuilt)]
    assert said.conversation == talk.id
    assert said.problem
    assert "torn" in caplog.text
    assert "seven" not in caplog.text


def test_without_the_check_torn_data_would_be_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the tests above."""
    with hitherto.open(tmp_path / "c.db", maintenance=False) as store:
        talk = begun(store, step="seven")
        put(store, talk, body(store, talk).replace(b"seven", b"never"))
        monkeypatch.setattr(Plain, "open", lambda _, __, data: data[4:])
        snapshot = recovery.load_snapshot(store.engine, talk.id)
        assert snapshot is not None
        assert snapshot.state == {"step": "never"}


def test_what_is_torn_for_one_look_only_is_read_again_and_nothing_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: "retried once"."""
    talk = begun(store, step="seven")
    events: list[object] = []
    store.subscribe(events.append)
    items, looks = store.backend.items, [0]

    def torn_once(conversation: bytes, prefix: bytes = b"", **how: Any) -> Any:
        found = items(conversation, prefix, **how)
        looks[0] += prefix == recovery.MARK_KEY
        return [replace(item, body=item.body[:-1]) for item in found] if looks[0] == 1 else found

    monkeypatch.setattr(store.backend, "items", torn_once)
    snapshot = recovery.load_snapshot(store.engine, talk.id)
    assert snapshot is not None
    assert (snapshot.state, snapshot.rebuilt, looks[0]) == ({"step": "seven"}, False, 2)
    assert store.engine.listeners.wait(10)
    assert events == []


def test_a_torn_one_is_made_anew_although_it_cannot_be_replaced(store: Store, key: bytes | None) -> None:
    """As where the disk is full: here the store is only read."""
    talk = begun(store, step="seven")
    put(store, talk, body(store, talk)[:-1])
    location = store.backend.info.location
    store.close()
    with hitherto.open(location, key=key, read_only=True) as reader:
        for _ in range(2):
            snapshot = recovery.load_snapshot(reader.engine, talk.id)
            assert snapshot is not None
            assert snapshot.rebuilt
            assert list(snapshot.messages) == reader.conversation(talk.id).thread()


def test_many_threads_find_the_same_while_it_is_recorded(store: Store) -> None:
    """A snapshot that is loaded while others write is of one moment, and never an error."""
    talk = begun(store, step=1)
    stop, wrong = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            snapshot = recovery.load_snapshot(store.engine, talk.id)
            if snapshot is None or snapshot.rebuilt or snapshot.messages[-1].id != snapshot.head:
                wrong.append(snapshot)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    for n in range(100):
        said = talk.append(Message.user(f"{n}"))
        if n % 10 == 9:
            store.delete([said.id])
            talk.follow()
    stop.set()
    for looker in lookers:
        looker.join()
    assert wrong == []
