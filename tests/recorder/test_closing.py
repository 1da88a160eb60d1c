"""The end of a recording: what is committed then, by whom, and what is left when there was none.

Every chat here speaks real HTTP to a provider on loopback. Requirements: D1, D4, D10, D11.
"""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Store
from hitherto._engine import process, record_items, recovery
from hitherto.chat import AsyncClient, Client, Config, Tool, new_async_client, new_client
from hitherto.errors import StorageFull
from hitherto.ids import parse_conversation_id as store_id
from hitherto.recorder import Recording, _known_conversations, _recorded_conversation
from hitherto.recorder._closing import finish
from hitherto.records import Records
from hitherto.reports import RecoverySnapshot
from hitherto.snapshots import FileStore

from ..cli.test_chat import ask_and_kill
from ..support.command import World
from ..support.patience import AGES, SOON
from ..support.provider import Asked, Json, Provider, Reply, chat_answer, chat_events, provider

BASE: Any = {"allow_insecure_base_url": True}
OPEN: list[Callable[[], object]] = []


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop()()


@pytest.fixture
def parrot() -> Iterator[Provider]:
    def answer(asked: Asked) -> Reply | Json:
        text = f"a{len(server.asked)}"
        return Reply(events=chat_events(text)) if asked.body.get("stream") else chat_answer(text)

    with provider(answer) as server:
        yield server


def own(server: Provider) -> Client:
    made = new_client(Config("openai-compatible", "m", api_key="k", base_url=server.url + "/v1", **BASE))
    assert isinstance(made, Client)
    OPEN.append(made.close)
    return made


def sdk(server: Provider) -> Any:
    made = openai.OpenAI(base_url=server.url + "/v1", api_key="k")
    OPEN.append(made.close)
    return made


def say(client: Any, text: str) -> str:
    if isinstance(client, Client):
        return client.chat(text)
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return str(answer.choices[0].message.content)


KINDS = pytest.mark.parametrize("kind", [own, sdk])


def recording(client: object) -> Recording:
    found = hitherto.recording(client)
    assert found is not None
    return found


def ids(store: Store) -> list[str]:
    return [info.id for info in store.conversations().items]


def snapshots(store: Store) -> list[RecoverySnapshot]:
    """Those of all conversations."""
    found = (Records(store).get_snapshot(id) for id in ids(store))
    return [snapshot for snapshot in found if snapshot is not None]


# -- closing


@KINDS
def test_at_the_end_of_the_block_the_conversation_is_committed_and_its_snapshot_is_gone(
    kind: Any, parrot: Provider, store: Store
) -> None:
    """D1."""
    client = hitherto.record(kind(parrot), store)
    with recording(client):
        say(client, "one")
        assert len(snapshots(store)) == 1  # the control: before, it is there
        assert list(store.engine.recorded.values()) == [1]
    assert snapshots(store) == []
    assert store.engine.recorded == {}
    record = Records(store).get(ids(store)[0])
    assert (record.metrics.user_utterances, record.metrics.assistant_utterances) == (1, 1)


@KINDS
def test_an_exception_in_the_block_goes_on_and_closes_the_recording_too(
    kind: Any, parrot: Provider, store: Store
) -> None:
    """D1."""
    client = hitherto.record(kind(parrot), store)

    def fails() -> None:
        with recording(client):
            say(client, "one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert snapshots(store) == []
    assert not hitherto.recorder.is_recorded(client)


@KINDS
def test_after_that_the_client_goes_on_and_nothing_is_kept_until_it_is_recorded_again(
    kind: Any, parrot: Provider, store: Store
) -> None:
    client = hitherto.record(kind(parrot), store)
    say(client, "one")
    recording(client).close()
    assert say(client, "two") == "a2"
    assert not hitherto.recorder.is_recorded(client)
    assert [m.text for m in store.messages()] == ["a1", "one"]
    hitherto.record(client, store)
    assert say(client, "three") == "a3"
    heard = [m.text for m in store.messages()]
    assert heard.count("three") == heard.count("a3") == 1  # and it is heard once


@KINDS
def test_closing_again_changes_nothing_and_an_older_one_does_not_end_a_newer(
    kind: Any, parrot: Provider, store: Store
) -> None:
    client = hitherto.record(kind(parrot), store)
    older = recording(client)
    say(client, "one")
    older.close()
    hitherto.record(client, store)
    older.close()
    say(client, "two")
    assert len(snapshots(store)) == 1
    recording(client).close()
    assert snapshots(store) == []


def test_an_async_client_is_closed_in_an_async_block(parrot: Provider, store: Store) -> None:
    async def talk() -> None:
        made = new_async_client(Config("openai-compatible", "m", api_key="k", base_url=parrot.url + "/v1", **BASE))
        assert isinstance(made, AsyncClient)
        async with made:
            hitherto.record(made, store)
            async with recording(made):
                await made.chat("one")
                assert len(snapshots(store)) == 1
            assert snapshots(store) == []
            with pytest.raises(ZeroDivisionError):
                await fails(made)
            assert snapshots(store) == []

    async def fails(client: AsyncClient) -> None:
        async with recording(hitherto.record(client, store)):
            await client.chat("two")
            raise ZeroDivisionError

    asyncio.run(talk())


def test_what_had_come_of_an_answer_when_it_was_closed_is_kept_as_a_partial(store: Store) -> None:
    gate = threading.Event()

    def answer(asked: Asked) -> Reply:
        return Reply(events=[*chat_events("one two three")[:3], lambda: gate.wait(20) and None])

    with provider(answer) as server:
        client = hitherto.record(own(server), store)
        with recording(client):
            stream = client.stream("tell me")
            assert [next(stream), next(stream)] == ["one ", "two "]
        gate.set()
    assert snapshots(store) == []
    talk = store.latest()
    assert talk is not None
    assert [p.text for p in talk.partials()] == ["one two "]


def test_an_answer_that_was_on_its_way_through_an_sdk_is_kept_although_it_comes_after_the_end(store: Store) -> None:
    closed = threading.Event()

    def answer(asked: Asked) -> Reply:
        return Reply(events=[*(pieces := chat_events("one two"))[:2], lambda: closed.wait(20) and None, *pieces[2:]])

    with provider(answer) as server:
        client = hitherto.record(sdk(server), store)
        told = [{"role": "user", "content": "tell me"}]
        stream = client.chat.completions.create(model="m", messages=told, stream=True)
        next(stream)
        recording(client).close()
        closed.set()
        list(stream)
    assert [m.text for m in store.messages()] == ["one two", "tell me"]
    assert snapshots(store) == []
    talk = store.latest()
    assert talk is not None
    assert talk.partials() == []


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "in pieces"])
def test_a_turn_of_our_own_client_is_kept_to_its_end_although_its_recording_was_closed(
    store: Store, streaming: bool
) -> None:
    closed = threading.Event()

    def answer(asked: Asked) -> Reply | Json:
        assert closed.wait(20)
        return Reply(events=chat_events("one two")) if asked.body.get("stream") else chat_answer("one two")

    with provider(answer) as server:
        client = hitherto.record(own(server), store)
        here = recording(client)
        got: list[str] = []
        turn = threading.Thread(target=lambda: got.extend(client.stream("q") if streaming else [client.chat("q")]))
        turn.start()
        while here.conversation is None:
            assert turn.is_alive()
        here.close()
        assert not hitherto.recorder.is_recorded(client)
        closed.set()
        turn.join()
        assert "".join(got) == "one two"
        assert [m.text for m in store.messages()] == ["one two", "q"]
        assert snapshots(store) == []
        client.chat("not kept")
    assert len(list(store.messages())) == 2


def test_a_turn_goes_on_although_its_recording_was_closed_and_its_store_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def leave() -> str:
        recording(client).close()
        store.close()
        return "left"

    def answer(asked: Asked) -> Json:
        asked_again = asked.body["messages"][-1]["role"] == "tool"
        return chat_answer("done") if asked_again else chat_answer(None, calls=[("c1", "leave", {})])

    store = hitherto.open(tmp_path / "c.db")
    with provider(answer) as server:
        client = own(server)
        client.set_tools([Tool("leave", handler=leave)])
        assert hitherto.record(client, store).chat("q") == "done"
    assert "the rest of a turn is not kept" in caplog.text


class Full:
    """A backend whose disk is full as long as one says so."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        commit = store.backend.commit

        def checked(batches: Any) -> Any:
            if self.full:
                raise StorageFull("no space is left")
            return commit(batches)

        monkeypatch.setattr(store.backend, "commit", checked)


def test_what_is_held_is_written_at_the_end_or_its_error_raised_and_it_is_held_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14: the recorder holds its pending message."""
    disk = Full(store, monkeypatch)

    def answer(asked: Asked) -> Json:
        disk.full = True
        return chat_answer("paid for")

    with provider(answer) as server:
        client = hitherto.record(own(server), store)
        kept = recording(client)
        client.chat("one")
        with pytest.raises(StorageFull):
            kept.close()
        assert kept.pending == 1
        assert len(snapshots(store)) == 1  # it has not come to its end
        disk.full = False
        kept.close()
    assert kept.pending == 0
    assert [m.text for m in store.messages()] == ["paid for", "one"]
    assert snapshots(store) == []


def test_an_end_that_cannot_be_kept_does_not_hide_the_exception_of_the_block(
    store: Store, monkeypatch: pytest.MonkeyPatch, parrot: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Full(store, monkeypatch)
    client = hitherto.record(own(parrot), store)

    def fails() -> None:
        with recording(client):
            client.chat("one")
            disk.full = True
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "could not be closed" in caplog.text
    disk.full = False


def test_a_conversation_that_was_purged_meanwhile_is_no_error_at_the_end(parrot: Provider, store: Store) -> None:
    client = hitherto.record(own(parrot), store)
    with recording(client):
        client.chat("one")
        store.purge(ids(store)[0], reason="user-requested")
    assert store.engine.recorded == {}


def test_closing_waits_for_the_checkpoint_that_is_due(parrot: Provider, store: Store, tmp_path: Path) -> None:
    files = FileStore(tmp_path / "copies")
    client = hitherto.record(own(parrot), store, checkpoint=files, checkpoint_seconds=3600)
    with recording(client):
        client.chat("one")
        assert len(files.list()) == 0
    assert len(files.list()) == 1


# -- several


def test_the_end_of_one_process_leaves_the_mark_and_the_state_of_another(
    parrot: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores, as two processes have them; that of one that died is gone on with, and goes."""
    monkeypatch.setattr(_recorded_conversation, "_MARK_TRUST_SECONDS", 0.0)
    with hitherto.open(tmp_path / "c.db") as mine, hitherto.open(tmp_path / "c.db") as other:
        client = hitherto.record(own(parrot), mine)
        client.chat("one")
        (id,) = ids(mine)
        Records(mine).commit_snapshot(id, {"step": 7})

        def go_on() -> None:
            with recording(hitherto.resume(own(parrot), other, id)) as theirs:
                theirs._client.chat("two")  # type: ignore[attr-defined]

        go_on()
        (left,) = snapshots(mine)
        assert left.state == {"step": 7}
        revision = Records(other).get(id).revision
        finish(other.engine, store_id(id), 1.0)
        assert Records(other).get(id).revision == revision  # the end of what has ended changes nothing
        with monkeypatch.context() as dead:
            dead.setattr(recovery, "is_gone", lambda _: True)
            go_on()
        assert snapshots(mine) == []
        client.chat("three")
        assert len(snapshots(mine)) == 1  # the first is there, and says so again
        recording(client).close()
        assert snapshots(mine) == []


def test_the_first_of_two_processes_to_end_leaves_the_mark_to_the_second(parrot: Provider, tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as mine, hitherto.open(tmp_path / "c.db") as other:
        first = hitherto.record(own(parrot), mine)
        first.chat("one")
        second = hitherto.resume(own(parrot), other, ids(mine)[0])
        second.chat("two")
        recording(first).close()
        assert len(snapshots(mine)) == 1
        recording(second).close()
        assert snapshots(mine) == []


def test_whoever_commits_a_conversation_takes_everybodys_mark(parrot: Provider, tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as mine, hitherto.open(tmp_path / "c.db") as other:
        hitherto.record(own(parrot), mine).chat("one")
        (id,) = ids(mine)
        Records(other).commit_conversation(id)
        assert snapshots(other) == []


def test_a_process_is_gone_when_it_is_not_there_or_another_has_its_number(store: Store) -> None:
    me = process.this(store.engine.opened)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = replace(me, process=child.pid, began=process._began(child.pid))
    assert not process.is_gone(theirs)
    assert process.is_gone(replace(theirs, began="0"))
    child.communicate(b"\n")
    assert process.is_gone(theirs)
    assert not process.is_gone(replace(theirs, machine=b"elsewhere"))
    assert not process.is_gone(me)
    assert process.is_gone(replace(me, store=b"closed and forgotten"))


def test_a_recording_is_closed_in_time_while_others_write_without_end(parrot: Provider, store: Store) -> None:
    client = hitherto.record(own(parrot), store)
    client.chat("one")
    talk = store.latest()
    assert talk is not None
    talk.extend([hitherto.Message.user("x")] * 3000)
    stop = threading.Event()

    def write() -> None:
        handle = store.conversation(talk.id)
        while not stop.is_set():
            handle.append(hitherto.Message.user("noise"), on_conflict="follow")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    began = time.monotonic()
    recording(client).close(timeout_seconds=AGES)
    took = time.monotonic() - began
    stop.set()
    for writer in writers:
        writer.join()
    assert took < SOON
    assert snapshots(store) == []
    record = Records(store).get(talk.id)
    assert record.metrics.user_utterances == sum(frame.role == "user" for frame in record.messages)


def test_a_conversation_that_changes_whenever_it_is_counted_is_counted_by_whoever_reads_it(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = hitherto.record(own(parrot), store)
    client.chat("one")
    talk, count, counted = store.latest(), record_items.measure_row, []
    assert talk is not None

    def meanwhile(*given: Any) -> Any:
        counted.append(given)
        talk.append(hitherto.Message.user("noise"), on_conflict="follow")
        return count(*given)

    monkeypatch.setattr(record_items, "measure_row", meanwhile)
    recording(client).close()
    assert len(counted) == 3
    assert snapshots(store) == []
    assert Records(store).get(talk.id).metrics.user_utterances == 4


def test_an_end_that_cannot_be_kept_in_time_is_said_and_comes_later(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = hitherto.record(own(parrot), store)
    client.chat("one")
    here, commit = recording(client), store.engine.commit_once
    monkeypatch.setattr(store.engine, "commit_once", lambda *_, **__: time.sleep(0.2))
    began = time.monotonic()
    with pytest.raises(hitherto.Busy):
        here.close(timeout_seconds=0.05)
    assert time.monotonic() - began < SOON  # and not as long as a thousand tries take
    monkeypatch.setattr(store.engine, "commit_once", commit)
    assert len(snapshots(store)) == 1
    here.close()
    assert snapshots(store) == []


def test_of_two_that_record_one_conversation_the_last_ends_it(parrot: Provider, store: Store) -> None:
    first = hitherto.record(own(parrot), store)
    first.chat("one")
    second = hitherto.resume(own(parrot), store, ids(store)[0])
    assert list(store.engine.recorded.values()) == [2]
    recording(first).close()
    assert len(snapshots(store)) == 1
    recording(second).close()
    assert snapshots(store) == []


def test_who_only_looked_at_what_somebody_left_by_dying_leaves_it_as_it_is(parrot: Provider, store: Store) -> None:
    talk = store.start()
    talk.append(hitherto.Message.user("one"))
    Records(store).commit_snapshot(talk.id, {"step": 7})
    client = own(parrot)
    with recording(hitherto.resume(client, store, talk)):
        pass
    (left,) = snapshots(store)
    assert left.state == {"step": 7}
    with recording(hitherto.resume(client, store, talk)):
        client.chat("go on")
    assert snapshots(store) == []  # the control: whoever goes on with it ends it


def test_what_a_recorder_has_forgotten_is_ended_while_it_goes_on(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a service that talks to thousands through one client would leave a snapshot of each."""
    monkeypatch.setattr(_known_conversations, "_MAX_CONVERSATIONS", 2)
    client = hitherto.record(sdk(parrot), store)
    for n in range(6):
        say(client, f"q{n}")
    left = {snapshot.messages[0].text for snapshot in snapshots(store)}
    assert left == {"q3", "q4", "q5"}  # two that it knows, and one that the next question ends
    history = [{"role": "user", "content": "q5"}, {"role": "assistant", "content": "a6"}]
    client.chat.completions.create(model="m", messages=[*history, {"role": "user", "content": "more"}])
    assert len(store.engine.recorded) == 2


def test_closing_ends_what_the_recorder_has_forgotten_too(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_known_conversations, "_MAX_CONVERSATIONS", 2)
    client = hitherto.record(sdk(parrot), store)
    for n in range(6):
        say(client, f"q{n}")
    assert len(snapshots(store)) == 3  # the control: one that is forgotten, and not ended yet
    recording(client).close()
    assert (snapshots(store), store.engine.recorded) == ([], {})


def test_the_conversation_that_a_recorder_was_given_is_never_forgotten(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_known_conversations, "_MAX_CONVERSATIONS", 2)
    monkeypatch.setattr(_recorded_conversation, "_MARK_TRUST_SECONDS", 0.0)
    given = store.start()
    client = hitherto.record(sdk(parrot), store, conversation=given)
    for n in range(5):
        with hitherto.into(store.ensure(f"user-{n}")):
            say(client, f"q{n}")
    say(client, "one")
    assert given.id in {snapshot.conversation_id for snapshot in snapshots(store)}
    recording(client).close()
    assert snapshots(store) == []


def test_a_client_whose_conversation_was_purged_is_told_what_to_do(parrot: Provider, store: Store) -> None:
    client = hitherto.record(own(parrot), store)
    client.chat("one")
    store.purge(ids(store)[0], reason="user-requested")
    for _ in range(2):
        with pytest.raises(hitherto.NotFound) as caught:
            client.chat("two")
        assert "it was purged" in str(caught.value.hint)
    assert ids(store) == []  # nothing of it is kept again, unless somebody says so
    hitherto.record(client, store).chat("three")
    assert len(ids(store)) == 1


def test_what_nobody_closed_is_ended_by_those_who_come_after(parrot: Provider, store: Store) -> None:
    for n in range(3):
        client = hitherto.record(own(parrot), store)
        client.chat(f"q{n}")
        client.listen(None)
    gc.collect()
    last = hitherto.record(own(parrot), store)
    last.chat("last")
    assert [snapshot.messages[0].text for snapshot in snapshots(store)] == ["last"]
    assert len(store.engine.recorded) == 1


# -- the store's end


@KINDS
def test_closing_the_store_closes_all_that_is_recorded_to_it(kind: Any, parrot: Provider, tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as store:
        clients = [hitherto.record(kind(parrot), store) for _ in range(3)]
        for n, client in enumerate(clients):
            say(client, f"q{n}")
        assert len(snapshots(store)) == 3
    with hitherto.open(tmp_path / "c.db") as store:
        assert len(ids(store)) == 3
        assert snapshots(store) == []
        assert store.verify().ok


def test_closing_the_store_while_an_answer_streams_keeps_its_part_and_leaves_no_snapshot(tmp_path: Path) -> None:
    gate = threading.Event()

    def answer(asked: Asked) -> Reply:
        return Reply(events=[*chat_events("one two three")[:3], lambda: gate.wait(20) and None])

    with provider(answer) as server:
        store = hitherto.open(tmp_path / "c.db")
        stream = hitherto.record(own(server), store).stream("tell me")
        assert [next(stream), next(stream)] == ["one ", "two "]
        store.close()
        gate.set()
        stream.close()
    with hitherto.open(tmp_path / "c.db") as store:
        assert snapshots(store) == []
        talk = store.latest()
        assert talk is not None
        assert [p.text for p in talk.partials()] == ["one two "]


def test_a_forked_child_that_closes_the_store_ends_nothing_of_the_parents(parrot: Provider, tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as store:
        client = hitherto.record(own(parrot), store)
        client.chat("one")
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            store.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert len(snapshots(store)) == 1
        client.chat("two")
    with hitherto.open(tmp_path / "c.db") as store:
        assert snapshots(store) == []


# -- the command line


def test_a_chat_in_the_terminal_leaves_a_snapshot_if_it_is_killed_and_none_otherwise(world: World) -> None:
    """D1, and its control."""
    ask_and_kill(world, "The beginning", None)
    with world.store() as store:
        (left,) = snapshots(store)
        assert [p.text for p in left.partials] == ["The beginning"]
    assert world.run("go on").returncode == 0
    with world.store() as store:
        assert snapshots(store) == []
