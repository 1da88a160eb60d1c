"""A sealed store as people use it: the key check, what stays hidden, quarantine, events, keys that wear out.

Tampering has a file of its own (test_tampering), and so have rotation, keys, the envelope, and purges that survive
power cuts (test_power_cut).

Requirements: D6, D7, D9, D16, A11.
"""

import logging
import sqlite3
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Store
from hitherto._sealing import quarantine, rotation, sealed
from hitherto._sealing.sealed import read_box
from hitherto.backend import Batch, Outcome
from hitherto.errors import Damaged, Held, InvalidArgument, InvalidKey, KeyUnavailable, NotFound, NotSealed, ReadOnly
from hitherto.events import Event, Quarantined, TurnedReadOnly
from hitherto.reports import RotationReport

MARKER = "marzipan-submarine"


@pytest.fixture
def key() -> Key:
    return Key.generate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def filled(path: Path, key: Key | None, count: int = 3) -> list[str]:
    """Conversations of five messages each, none of them packed."""
    with hitherto.open(path, key=key, maintenance=False) as store:
        ids = []
        for number in range(count):
            talk = store.start(title=f"{MARKER} {number}", system_prompt=MARKER, metadata={"who": MARKER})
            talk.extend([Message.user(f"{MARKER} {number} {n}", label="starred") for n in range(5)])
            ids.append(talk.id)
        return ids


def change(path: Path, statement: str, *, count: int = 1) -> None:
    """Behind the store's back."""
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement).rowcount == count
    connection.close()


def flip(path: Path, table: str, where: str, column: str = "body") -> None:
    connection = sqlite3.connect(path)
    with connection:
        for rowid, content in connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {where}").fetchall():
            spoilt = content[:-1] + bytes([content[-1] ^ 1])
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (spoilt, rowid))
    connection.close()


def nth(path: Path, n: int) -> str:
    """A condition for the n-th message that has a body of its own."""
    connection = sqlite3.connect(path)
    numbers = [number for (number,) in connection.execute("SELECT number FROM message ORDER BY number")]
    connection.close()
    return f"number = {numbers[n]}"


def heard(store: Store) -> Callable[[], list[Event]]:
    """What is told from now on, but that conversations were stored."""
    events: list[Event] = []
    store.subscribe(events.append)

    def so_far() -> list[Event]:
        assert store.wait_for_listeners()
        return [event for event in events if not isinstance(event, hitherto.events.ConversationStored)]

    return so_far


# -- the key check


def test_the_example_of_the_readme_works(path: Path) -> None:
    key = Key.generate()
    store = hitherto.open(path, key=key)
    talk = store.start(title="T")
    talk.append(Message.user("hi"))
    told: list[str] = []
    assert store.rotate(Key.generate(), progress=lambda progress: told.append(str(progress))).complete
    assert told[-1] == "1 of 1 conversations"
    assert store.verify().ok
    assert store.purge(talk, reason="user-requested").purged_count == 1
    store.close()


def test_a_sealed_store_opens_with_its_key_and_no_other(path: Path, key: Key) -> None:
    ids = filled(path, key)
    before = path.read_bytes()
    for wrong in (None, Key.generate(), b"x" * 32):
        with pytest.raises(KeyUnavailable) as caught:
            hitherto.open(path, key=wrong)
        assert caught.value.hint
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f"{path.name}-ballast"]
    with hitherto.open(path, key=key) as store:
        assert len(store.conversation(ids[0]).thread()) == 5
        assert store.key_id == key.id


@pytest.mark.parametrize("no_key", [b"", b"x" * 31, b"x" * 33, "x" * 32, 7, bytes(32)])
def test_what_is_no_key_is_refused_before_anything_is_made(path: Path, no_key: bytes) -> None:
    with pytest.raises(InvalidKey):
        hitherto.open(path, key=no_key)
    assert not path.exists()


def test_a_plain_store_does_not_take_a_key(path: Path, key: Key) -> None:
    filled(path, None)
    with pytest.raises(NotSealed):
        hitherto.open(path, key=key)
    with hitherto.open(path) as store:
        assert store.key_id is None


@pytest.mark.parametrize("with_key", [True, False])
def test_a_store_that_has_data_never_gets_a_fresh_key(path: Path, key: Key, with_key: bool) -> None:
    filled(path, key if with_key else None)
    change(path, "DELETE FROM conversation WHERE kind = 'workspace'")
    before = path.read_bytes()
    for given in (Key.generate(), key, None):
        with pytest.raises(Damaged, match="describes the workspace"):
            hitherto.open(path, key=given)
    assert path.read_bytes() == before


def test_workspaces_of_one_file_have_keys_of_their_own(path: Path, key: Key) -> None:
    other = Key.generate()
    for name, given in (("a", key), ("b", other), ("c", None)):
        with hitherto.open(path, workspace=name, key=given) as store:
            store.start(title=name)
    for name, given in (("a", other), ("b", key), ("b", None)):
        with pytest.raises(KeyUnavailable):
            hitherto.open(path, workspace=name, key=given)
    for name, given in (("a", key), ("b", other), ("c", None)):
        with hitherto.open(path, workspace=name, key=given) as store:
            assert [info.title for info in store.conversations()] == [name]


def test_sealed_metadata_stays_queryable(path: Path, key: Key, tmp_path: Path) -> None:
    """A11, D6: by equality, through keyed hashes."""
    with hitherto.open(path, key=key) as store:
        talk = store.ensure("my own name", project=tmp_path)
        talk.append(Message.user("one", label="starred", key="import/1"))
        talk.subagent("coder", "r1").append(Message.user("two"))
    with hitherto.open(path, key=key) as store:
        assert store.ensure("my own name").id == talk.id
        assert [m.text for m in store.messages(label="starred")] == ["one"]
        assert [m.text for m in store.messages(subagent="coder")] == ["two"]
        assert [info.id for info in store.conversations(project=tmp_path)] == [talk.id]
        assert store.conversation(talk.id).append(Message.user("one", key="import/1")).seq == 0
    content = path.read_bytes()
    for word in (b"my own name", b"starred", b"import/1", b"coder", str(tmp_path).encode()):
        assert word not in content


def test_the_same_names_and_attachments_have_other_tags_elsewhere(path: Path, key: Key) -> None:
    """What stands for a value tells nothing across workspaces, nor an attachment's name across conversations."""
    for workspace in ("a", "b"):
        with hitherto.open(path, workspace=workspace, key=key) as store:
            for _ in range(2):
                talk = store.start()
                talk.append(Message.user([Block.image(b"same" * 50_000, "image/png")], label="same", key="same"))
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM attachment")]
    tags = {value for (value,) in connection.execute("SELECT value FROM tag")}
    keys = [value for (value,) in connection.execute("SELECT key FROM message")]
    connection.close()
    assert len(set(names)) == len(names) == 4
    assert len(tags) == 2
    assert len(set(keys)) == 4


# -- silence


def test_no_key_and_no_text_stands_in_errors_logs_reprs_or_tracebacks(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where an error reporter sends the values of all local variables along."""
    secret = b"*SECRET*" * 4
    key = Key(secret)
    ids = filled(path, key, count=8)
    flip(path, "message", nth(path, 1))
    flip(path, "conversation", "count = 5 AND place % 2 = 0", "meta")
    said: list[str] = [repr(key)]

    def provoke(call: Callable[[], object]) -> None:
        with pytest.raises(hitherto.HithertoError) as caught:
            call()
        shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        frames = [line for line in shown.format() if "test_sealed.py" not in line.split("\n")[0]]
        said.extend([str(caught.value), repr(caught.value), str(caught.value.hint), *frames])

    caplog.set_level(logging.DEBUG)
    provoke(lambda: hitherto.open(path, key=Key.generate()))
    with hitherto.open(path, key=key, maintenance=False) as store:
        said += [
            repr(store),
            repr(store.engine.codec),
            repr(store.engine.workspace.envelope),
            repr(store.engine.workspace),
        ]
        for id in ids:
            if id not in [info.id for info in store.conversations()]:
                provoke(lambda id=id: store.conversation(id))  # type: ignore[misc]
        provoke(lambda: store.conversation(ids[0]).thread())
        store.verify()
    everything = "\n".join([*said, caplog.text])
    assert len(said) > 10
    assert "quarantined" in caplog.text
    for hidden in (MARKER, "*SECRET*", secret.hex(), repr(secret)):
        assert hidden not in everything


def test_a_closed_store_has_forgotten_its_keys(path: Path, key: Key) -> None:
    ids = filled(path, key)
    store = hitherto.open(path, key=key)
    store.conversation(ids[0]).thread()
    codec = store.engine.workspace.sealed_codec
    assert codec is not None
    secrets = list(codec._secrets.values())
    assert len(secrets) == 2
    store.close()
    assert not codec._secrets
    assert not codec._wraps
    assert {bytes(secret._secret) for secret in secrets} == {bytes(32)}


def test_a_purge_also_forgets_the_key_in_memory(path: Path, key: Key) -> None:
    ids = filled(path, key)
    with hitherto.open(path, key=key) as store:
        store.conversation(ids[0]).thread()
        codec = store.engine.workspace.sealed_codec
        assert codec is not None
        row = store.conversation(ids[0]).state.row
        (slot,) = read_box(row.data_key)
        assert slot.commitment in codec._secrets
        store.purge(ids[0], reason="user-requested")
        assert slot.commitment not in codec._secrets


def test_forks_go_with_their_conversation_and_what_was_detached_does_not(path: Path, key: Key) -> None:
    """A detached thread has a data key of its own."""
    with hitherto.open(path, key=key) as store:
        talk = store.start(title="T")
        first = talk.append(Message.user("first"))
        fork = talk.fork(first)
        said = fork.append(Message.user("on a fork"))
        parted = fork.detach()
        store.purge(talk, reason="user-requested")
        with pytest.raises(NotFound):
            store.message(said.id)
        assert [message.text for message in store.conversation(parted.id).thread()] == ["first", "on a fork"]
        assert store.verify().ok


# -- quarantine


def test_a_damaged_message_is_quarantined_once_and_the_rest_is_read(path: Path, key: Key) -> None:
    ids = filled(path, key)
    flip(path, "message", nth(path, 2))
    with hitherto.open(path, key=key) as store:
        events = heard(store)
        for _ in range(2):
            with pytest.raises(Damaged):
                store.conversation(ids[0]).thread()
        shown = list(store.messages(conversation=ids[0], newest_first=False))
        assert [message.problem is None for message in shown] == [True, True, False, True, True]
        assert len(store.conversation(ids[1]).thread()) == 5
        assert len(store.thread(shown[1].id)) == 2
        (record,) = store.quarantine()
        assert events() == [record]
        assert (record.conversation, record.message) == (ids[0], shown[2].id)
    with hitherto.open(path, key=key) as store:  # it is remembered, and not told again
        events = heard(store)
        assert store.quarantine() == [record]
        with pytest.raises(Damaged):
            store.message(shown[2].id)
        assert events() == []


def test_a_damaged_pack_is_one_record(path: Path, key: Key) -> None:
    with hitherto.open(path, key=key, maintenance=False) as store:
        talk = store.start()
        talk.extend([Message.user(f"m{n}") for n in range(70)])
        store.maintain()
    flip(path, "pack", "first = (SELECT max(first) FROM pack WHERE count = 32)")
    with hitherto.open(path, key=key) as store:
        assert sum(message.problem is not None for message in store.messages()) == 32
        with pytest.raises(Damaged):
            store.conversation(talk.id).thread()
        assert len({record.message for record in store.quarantine()}) == 1


@pytest.mark.parametrize("column", ["meta", "proof", "data_key"])
def test_a_conversation_that_cannot_be_trusted_leaves_the_live_set(path: Path, key: Key, column: str) -> None:
    ids = filled(path, key)
    flip(path, "conversation", "place = (SELECT max(place) FROM conversation)", column)
    with hitherto.open(path, key=key) as store:
        events = heard(store)
        assert [info.id for info in store.conversations()] == [ids[1], ids[0]]
        latest = store.latest()
        assert latest is not None
        assert latest.id == ids[1]
        assert store.stats().conversations == 2
        with pytest.raises(Damaged):
            store.conversation(ids[2])
        assert [(event.conversation, event.message) for event in events() if isinstance(event, Quarantined)] == [
            (ids[2], None)
        ]
        assert not store.verify().ok


def test_purging_the_quarantine_leaves_a_store_that_verifies(path: Path, key: Key) -> None:
    ids = filled(path, key)
    flip(path, "message", nth(path, 2))
    flip(path, "conversation", "place = (SELECT max(place) FROM conversation)", "meta")
    with hitherto.open(path, key=key) as store:
        with pytest.raises(Damaged):
            store.conversation(ids[0]).thread()
        list(store.conversations())
        assert len(store.quarantine()) == 2
        report = store.purge_quarantine()
        assert (report.reason, report.purged_count, report.failures) == ("corruption-detected", 2, ())
        assert store.quarantine() == []
        assert store.verify().problems == ()
        assert [m.text[-1] for m in store.conversation(ids[0]).thread()] == ["0", "1"]
        with pytest.raises(NotFound):
            store.conversation(ids[2])


def test_a_damaged_pack_is_purged_with_what_stands_below_it(path: Path, key: Key) -> None:
    with hitherto.open(path, key=key, maintenance=False) as store:
        talk = store.start()
        said = talk.extend([Message.user(f"m{n}") for n in range(70)])
        store.maintain()
        fork = talk.fork(said[10])
        fork.append(Message.user("from the first pack"))
        store.conversation(talk.id).follow().compact("so far")
    flip(path, "pack", "first = (SELECT min(first) + 32 FROM pack)")
    with hitherto.open(path, key=key) as store:
        assert [m.problem is None for m in store.messages(conversation=talk.id, newest_first=False)].count(False) == 32
        assert store.purge_quarantine().purged_count == 1
        assert store.verify().problems == ()
        assert [m.text for m in store.messages(conversation=talk.id, newest_first=False)][-2:] == [
            "from the first pack",
            "so far",
        ]
        talk = store.conversation(talk.id)
        talk.append(Message.user("it goes on"))
        store.maintain()
        assert store.verify().ok


def test_what_was_restored_is_released_and_not_purged(path: Path, key: Key) -> None:
    ids = filled(path, key)
    good = path.read_bytes()
    flip(path, "message", nth(path, 2))
    with hitherto.open(path, key=key) as store, pytest.raises(Damaged):
        store.conversation(ids[0]).thread()
    where = nth(path, 2)
    flip(path, "message", where)  # the same bit again
    assert good != b""
    with hitherto.open(path, key=key) as store:
        assert len(store.quarantine()) == 1
        assert store.purge_quarantine().purged_count == 0
        assert store.quarantine() == []
        assert len(store.conversation(ids[0]).thread()) == 5


def test_a_hold_keeps_even_what_is_in_quarantine(path: Path, key: Key) -> None:
    ids = filled(path, key)
    with hitherto.open(path, key=key, maintenance=False) as store:
        store.conversation(ids[0]).hold()
    flip(path, "message", nth(path, 2))
    with hitherto.open(path, key=key) as store:
        with pytest.raises(Damaged):
            store.conversation(ids[0]).thread()
        report = store.purge_quarantine()
        assert report.purged_count == 0
        assert [id for id, _ in report.failures] == [store.quarantine()[0].message]
        assert len(store.quarantine()) == 1
        with pytest.raises(Held):
            store.purge(ids[0], reason="corruption-detected")


@pytest.mark.parametrize("held", [True, False])
def test_what_a_row_that_was_tampered_with_says_of_a_hold_is_worth_nothing(path: Path, key: Key, held: bool) -> None:
    ids = filled(path, key)
    with hitherto.open(path, key=key, maintenance=False) as store:
        if held:
            store.conversation(ids[0]).hold()
    change(path, f"UPDATE conversation SET held = {1 - held} WHERE place = 2")
    with hitherto.open(path, key=key) as store:
        with pytest.raises(Damaged, match="on hold"):
            store.purge(ids[0], reason="user-requested")
        assert store.purge(ids[0], reason="corruption-detected").purged_count == 1


def test_a_trigger_that_somebody_planted_keeps_nothing(path: Path, key: Key) -> None:
    ids = filled(path, key)
    change(path, "CREATE TABLE stash (body)", count=-1)
    change(path, "CREATE TRIGGER t BEFORE DELETE ON message BEGIN INSERT INTO stash VALUES (old.body); END", count=-1)
    with hitherto.open(path, key=key) as store:
        store.purge(ids[0], reason="user-requested")
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM stash").fetchone() == (0,)
    connection.execute("DELETE FROM message")  # the control: SQLite would have run it
    assert connection.execute("SELECT count(*) FROM stash").fetchone() == (10,)
    connection.close()


def test_quarantine_is_purged_by_policy_after_a_time_of_grace(path: Path, key: Key) -> None:
    ids = filled(path, key)
    flip(path, "message", nth(path, 2))
    now = [1_900_000_000_000_000]
    with hitherto.open(path, key=key, quarantine_days=2, maintenance=False, clock=lambda: now[0]) as store:
        with pytest.raises(Damaged):
            store.conversation(ids[0]).thread()
        now[0] += int(1.9 * 86_400_000_000)
        store.maintain()
        assert len(store.quarantine()) == 1
        now[0] += int(0.2 * 86_400_000_000)
        store.maintain()
        assert store.quarantine() == []
        assert store.verify().ok
    with hitherto.open(path, key=key, maintenance=False, clock=lambda: now[0] + 10**15) as store:
        flip(path, "message", nth(path, 1))
        with pytest.raises(Damaged):
            store.conversation(ids[0]).thread()
        store.maintain()
        assert len(store.quarantine()) == 1  # without a policy, by command only


@pytest.mark.parametrize("days", [-1, float("nan"), float("inf"), "2"])
def test_a_time_of_grace_is_a_number_of_days(path: Path, days: float) -> None:
    with pytest.raises(InvalidArgument):
        hitherto.open(path, quarantine_days=days)
    with hitherto.open(path) as store, pytest.raises(InvalidArgument):
        store.purge_quarantine(older_than_seconds=days if days != float("inf") else -1)


def test_many_failures_in_a_short_time_turn_the_store_read_only(path: Path, key: Key) -> None:
    ids = filled(path, key, count=30)
    flip(path, "message", "seq = 3")
    with hitherto.open(path, key=key, maintenance=False) as store:
        events = heard(store)
        for number, id in enumerate(ids):
            assert (store.read_only is None) == (number < quarantine._MANY)
            with pytest.raises(Damaged):
                store.conversation(id).thread()
        assert len([event for event in events() if isinstance(event, TurnedReadOnly)]) == 1
        assert len(store.quarantine()) == 30  # noted all the same
        talk = store.conversation(ids[0])
        for write in (lambda: talk.append(Message.user("x")), store.start, lambda: talk.rename("x")):
            with pytest.raises(ReadOnly) as caught:
                write()
            assert "quarantine" in str(caught.value.hint)
        assert len(list(store.messages(conversation=ids[1]))) == 5  # reading goes on
        assert store.purge(ids[1], reason="corruption-detected").purged_count == 1  # and so does purging
        store.resume_writing()
        assert store.read_only is None
        assert store.start().append(Message.user("x")).text == "x"


def test_failures_over_a_long_time_do_not(path: Path, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is the short time that counts."""
    monkeypatch.setattr(quarantine, "_SHORT_SECONDS", 0.0)
    ids = filled(path, key, count=30)
    flip(path, "message", "seq = 3")
    with hitherto.open(path, key=key, maintenance=False) as store:
        for id in ids:
            with pytest.raises(Damaged):
                store.conversation(id).thread()
        assert store.read_only is None


def test_a_wrong_key_moves_nothing_into_quarantine(path: Path, key: Key) -> None:
    filled(path, key)
    with pytest.raises(KeyUnavailable):
        hitherto.open(path, key=Key.generate())
    with hitherto.open(path, key=key) as store:
        assert store.quarantine() == []


def test_plain_stores_have_a_quarantine_too(path: Path) -> None:
    ids = filled(path, None)
    flip(path, "message", nth(path, 2))
    with hitherto.open(path) as store:
        with pytest.raises(Damaged):
            store.conversation(ids[0]).thread()
        assert len(store.quarantine()) == 1
        assert store.purge_quarantine().purged_count == 1
        assert store.verify().ok


def test_a_listener_that_fails_harms_nobody_and_one_can_stop_listening(
    path: Path, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    ids = filled(path, key)
    for n in (1, 6):
        flip(path, "message", nth(path, n))

    def fails(event: Event) -> None:
        raise RuntimeError(MARKER)

    with hitherto.open(path, key=key) as store:
        store.subscribe(fails)
        events: list[Event] = []
        stop = store.subscribe(events.append)
        with pytest.raises(Damaged):
            store.conversation(ids[0]).thread()
        assert store.wait_for_listeners()
        stop()
        stop()
        with pytest.raises(Damaged):
            store.conversation(ids[1]).thread()
        assert len(events) == 1
    assert "a listener failed: RuntimeError" in caplog.text
    assert MARKER not in caplog.text


# -- keys that wear out


def test_a_key_that_has_sealed_very_much_is_renewed(path: Path, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_MOST_SEALS", 300)
    with hitherto.open(path, key=key, maintenance=False) as store:
        talk = store.start()

        def say(count: int) -> None:
            for n in range(count):
                talk.append(Message.user(f"m{n}", key=f"{talk.count}"))

        say(64)
        store.maintain()
        assert _generations(store, talk) == [1]
        say(96)
        store.maintain()
        assert _generations(store, talk) == [2, 1]
        say(32)
        store.maintain()
        assert len(talk.thread()) == 192
        talk = store.conversation(talk.id)
        assert (
            store.conversation(talk.id).append(Message.user("again", key="5")).seq == 5
        )  # keys of before are still known
        assert store.verify().ok
        assert store.rotate(Key.generate()).complete
        assert len(_generations(store, talk)) == 1
        assert len(talk.thread()) == 192
        assert store.verify().ok


def _generations(store: Store, talk: Conversation) -> list[int]:
    return [slot.generation for slot in read_box(store.engine.read_row(talk.state.id).data_key)]


# -- no false alarms: a belief is for preparing writes, never for judging reads


def test_reading_while_others_append_finds_no_damage(path: Path, key: Key) -> None:
    with hitherto.open(path, key=key, maintenance=False) as store:
        events = heard(store)
        talk = store.start()
        talk.append(Message.user("first"))
        done = threading.Event()

        def append() -> None:
            handle = store.conversation(talk.id)
            while not done.is_set():
                handle.append(Message.user("more"))

        threads = [threading.Thread(target=append) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                assert talk.branches()
                assert store.conversation(talk.id).thread()
                assert len(store.conversations()) == 1
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert events() == []
        assert store.quarantine() == []
        assert store.verify().ok


def test_a_label_of_another_process_is_no_damage_while_a_write_of_ours_is_on_its_way(path: Path, key: Key) -> None:
    with hitherto.open(path, key=key, maintenance=False) as ours, hitherto.open(path, key=key) as theirs:
        talk = ours.start()
        first = talk.append(Message.user("first"))
        commit, begun, gate = ours.backend.commit, threading.Event(), threading.Event()

        def slow(batches: Sequence[Batch]) -> list[Outcome]:
            begun.set()
            assert gate.wait(10)
            return commit(batches)

        ours.backend.commit = slow  # type: ignore[method-assign]
        writer = threading.Thread(target=lambda: talk.append(Message.user("second")))
        writer.start()
        assert begun.wait(10)
        theirs.conversation(talk.id).label("starred", message=first)
        threading.Timer(0.2, gate.set).start()
        try:
            assert ours.message(first).label == "starred"
        finally:
            gate.set()
            writer.join()
        assert ours.quarantine() == []
        assert [message.text for message in ours.conversation(talk.id).thread()] == ["first", "second"]


def test_what_was_noted_by_mistake_is_not_destroyed(path: Path, key: Key) -> None:
    with hitherto.open(path, key=key, maintenance=False) as store:
        talk = store.start()
        first, second = talk.extend([Message.user("precious"), Message.assistant("indeed")])
        store.engine.quarantine.add(talk.state.id, store.engine.message_ids.number(first.id), "noted by mistake")
        store.engine.quarantine.add(talk.state.id, None, "noted by mistake")
        assert store.purge_quarantine().purged_count == 0
        assert [message.id for message in store.conversation(talk.id).thread()] == [first.id, second.id]
        assert store.quarantine() == []


# -- handles of before a rotation


@pytest.mark.parametrize("was_plain", [True, False])
def test_a_setup_is_sealed_with_the_key_of_now_whatever_a_handle_knows(
    path: Path, key: Key, was_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = filled(path, None if was_plain else key, 1)
    if was_plain:
        with hitherto.open(path, maintenance=False) as store, monkeypatch.context() as patch:
            patch.setattr(rotation, "go_on", lambda *_, **__: None)  # as if it were killed
            store.seal(key)
    with hitherto.open(path, key=key, maintenance=False) as store, hitherto.open(path, key=key) as other:
        talk = store.conversation(id)
        other.rotate(key, reencrypt=not was_plain)
        talk.configure(system_prompt="unmentionable prompt")
        assert other.conversation(id).system_prompt == "unmentionable prompt"
        assert other.verify().ok
    assert not any(b"unmentionable" in file.read_bytes() for file in path.parent.iterdir())


def test_a_conversation_is_found_by_its_key_while_names_are_made_anew(
    path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it, and begins to re-encrypt, between our look and our attempt to make it."""
    with (
        hitherto.open(path, key=key, maintenance=False) as ours,
        hitherto.open(path, key=key, maintenance=False) as theirs,
    ):
        lookup = ours.backend.lookup
        made: list[Conversation] = []

        def meanwhile(**asked: Any) -> Any:
            found = lookup(**asked)
            if not made and "key" in asked and asked["key"][0] == "chat":
                made.append(theirs.ensure("user-7"))
                with monkeypatch.context() as patch:
                    patch.setattr(rotation, "go_on", lambda *_, **__: RotationReport(0, False))
                    theirs.rotate(key, reencrypt=True)
            return found

        ours.backend.lookup = meanwhile  # type: ignore[method-assign]
        assert ours.ensure("user-7").id == made[0].id
        assert theirs.maintain().complete
        assert theirs.verify().ok


def test_a_damaged_note_keeps_nobody_from_changing_the_key(path: Path, key: Key) -> None:
    ids = filled(path, key)
    flip(path, "message", nth(path, 2))
    with hitherto.open(path, key=key) as store, pytest.raises(Damaged):
        store.conversation(ids[0]).thread()
    change(path, "UPDATE item SET body = x'01' WHERE conversation = 1")
    change(path, "INSERT INTO item SELECT place, CAST('planted' AS BLOB), 0, x'00' FROM conversation WHERE place = 1")
    with hitherto.open(path, key=key) as store:
        assert not store.verify().ok
        assert store.rotate(Key.generate()).complete


def test_notes_go_with_their_conversation(path: Path, key: Key) -> None:
    ids = filled(path, key)
    flip(path, "message", nth(path, 2))
    with hitherto.open(path, key=key) as store:
        with pytest.raises(Damaged):
            store.conversation(ids[0]).thread()
        store.purge(ids[0], reason="user-requested")
        assert store.quarantine() == []
        store.start(id=ids[0])
        assert ids[0] in [info.id for info in store.conversations()]


def test_a_message_with_a_damaged_attachment_is_purged(path: Path, key: Key) -> None:
    with hitherto.open(path, key=key, maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("before"))
        bad = talk.append(Message.user([Block.image(bytes(range(256)) * 1000, "image/png")]))
    flip(path, "chunk", "1")
    with hitherto.open(path, key=key) as store:
        with pytest.raises(Damaged):
            store.message(bad.id)
        assert store.purge_quarantine().purged_count == 1
        assert [message.text for message in store.conversation(talk.id).thread()] == ["before"]
        assert store.verify().ok


@pytest.mark.parametrize("with_key", [True, False])
def test_a_damaged_setup_does_not_hide_its_conversation(path: Path, key: Key, with_key: bool) -> None:
    given = key if with_key else None
    ids = filled(path, given, 1)
    change(path, "UPDATE item SET body = x'01'")
    with hitherto.open(path, key=given) as store:
        with pytest.raises(Damaged):
            store.conversation(ids[0]).setup  # noqa: B018  # reading it is the point
        assert [info.id for info in store.conversations()] == ids
        assert len(store.conversation(ids[0]).thread()) == 5
