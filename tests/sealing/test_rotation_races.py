"""Two and three processes at one rotation: nothing is forgotten that anything needs, and one of them does the work.

The first part has two owners at once, as if clocks had jumped, so that no lease keeps them apart: what each commit
requires has to protect the data alone. Beside it stand the controls, in which that protection is off. The second part
is about the lease itself. The third lets processes take turns at random, and kills some.

Requirements: D20.
"""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Block, HithertoError, Key, Message, Store
from hitherto._engine import attachments, lease, packing
from hitherto._engine.bodies import close_pack, pack_message
from hitherto._engine.workspace import KeyState
from hitherto._sealing import reencryption, rotation
from hitherto._sealing.codec import next_row
from hitherto.backend import Change, ConversationRow, KeyShape, PackRow
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.sqlite.writing import Writer
from hitherto.errors import Busy, InvalidArgument, KeyUnavailable, NotSealed
from hitherto.ids import parse_conversation_id
from hitherto.reports import RotationProgress, RotationReport

from ..support import interleaved
from .test_rotation import (
    NEW,
    OLD,
    REENCRYPT,
    SEAL,
    UNSEAL,
    Child,
    Job,
    Stop,
    check,
    made,
    opened,
    place_of,
    problems,
    shown,
    stop_at,
)

PICTURE = bytes(range(256)) * 800
each_job = pytest.mark.parametrize("job", [REENCRYPT, SEAL, UNSEAL], ids=lambda job: job.name)


@pytest.fixture
def path(place: Path) -> Path:
    (place / "store").mkdir()
    return place / "store" / "store.db"


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that even a small store takes many, and all of it is told."""
    monkeypatch.setattr(reencryption, "_STEP", 24)
    monkeypatch.setattr(rotation, "_AT_ONCE", 4)
    monkeypatch.setattr(reencryption, "_AT_ONCE", 4)
    monkeypatch.setattr(rotation, "_TELL_SECONDS", -1.0)


@pytest.fixture
def two_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease keeps anybody from working on a job that others work on."""
    monkeypatch.setattr(lease.Lease, "_others", lambda *_: None)


def talk_of(path: Path, key: Key | None, *, pictures: int = 1, messages: int = 30) -> tuple[str, list[str], list[str]]:
    """A conversation with pictures in the middle; its id, the ids of all messages, and of those with pictures."""
    with opened(path, key) as store:
        talk = store.start(title="precious")
        ids = [talk.append(Message.user(f"before {n}")).id for n in range(5)]
        shown = [
            talk.append(Message.user([Block.text("look"), Block.image(PICTURE + bytes([n]), "image/png")])).id
            for n in range(pictures)
        ]
        ids += shown + [talk.append(Message.user(f"after {n}")).id for n in range(messages)]
    return talk.id, ids, shown


def unreadable(store: Store, ids: list[str]) -> list[str]:
    found = []
    for id in ids:
        try:
            store.message(id)
        except HithertoError as error:
            found.append(f"{id}: {error}")
    return found


# 1. With two owners


@each_job
@pytest.mark.parametrize("what", ["renamed", "deleted"])
def test_an_attachment_that_others_take_away_meanwhile_loses_no_conversation(
    path: Path, job: Job, what: str, monkeypatch: pytest.MonkeyPatch, two_owners: None
) -> None:
    """At the moment in which one process is about to bring an attachment under the new key, another one has done so,
    or has deleted its message; and is killed before it can finish the conversation."""
    talk, ids, pictures = talk_of(path, job.before)
    inner, once = attachments.rename_attachments, [True]
    with opened(path, job.before) as store:

        def late(desk: Any, body: Any) -> Any:
            if once and desk.engine is store.engine:
                once.clear()
                with opened(path, job.before if job is UNSEAL else job.after) as other:
                    if what == "deleted":
                        assert other.delete(pictures, recursive=True)
                    else:
                        codec = other.engine.workspace.sealed_codec
                        assert codec is not None
                        numbers = [other.engine.message_ids.number(pictures[0])]
                        reencryption._Step(other.engine, codec, desk.id, numbers).run()
            return inner(desk, body)

        monkeypatch.setattr(reencryption, "rename_attachments", late)
        assert job(store) == RotationReport(1, True)
        assert not once
    with opened(path, job.after) as store:
        left = [m.id for m in store.conversation(talk).thread()]
        assert left == (ids if what == "renamed" else ids[:5])
        assert unreadable(store, left) == []
        assert problems(store) == []
        assert store.quarantine() == []


@each_job
@pytest.mark.parametrize("proven", [True, False], ids=["proven", "control"])
def test_a_conversation_that_a_pass_overlooks_keeps_its_key(
    path: Path, job: Job, proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: the backend finds it, in the transaction that would forget the key."""
    talk, ids, _ = talk_of(path, job.before)
    inner = rotation._Job._reencrypt
    overlooked = parse_conversation_id(talk)

    def overlooks(self: rotation._Job, row: ConversationRow) -> bool:
        return False if row.id == overlooked else inner(self, row)

    if not proven:
        monkeypatch.setattr(Writer, "_find_other_key", lambda *_: None)
    with opened(path, job.before) as store:
        store.start(title="other").append(Message.user("something"))
        with monkeypatch.context() as patched:
            patched.setattr(rotation._Job, "_reencrypt", overlooks)
            done = job(store)
        assert done.complete is not proven
        if proven:
            assert [id for id, _ in done.failures] == [talk]
            assert rotation.pending(store.engine)
            assert unreadable(store, ids) == []
            assert job(store).complete
    with opened(path, job.after) as store:
        assert (unreadable(store, ids) == []) is proven
        assert (problems(store) == []) is proven


@each_job
@pytest.mark.parametrize("what", ["message", "pack", "attachment"])
@pytest.mark.parametrize("proven", [True, False], ids=["proven", "control"])
def test_what_a_pass_overlooks_in_a_conversation_keeps_its_key(
    path: Path, job: Job, what: str, proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that says that it is done, and is not: the old data key stays, the conversation is named."""
    talk, ids, pictures = talk_of(path, job.before, messages=60)
    with opened(path, job.before) as store:
        if what == "pack":
            store.maintain()
        number = store.engine.message_ids.number(pictures[0] if what == "attachment" else ids[8])
    step = reencryption._Step.run

    def overlooks(self: reencryption._Step) -> bool:
        if what == "attachment":
            with monkeypatch.context() as patched:
                patched.setattr(reencryption, "rename_attachments", lambda _, body: (body, {}))
                return step(self)
        self._numbers = [one for one in self._numbers if one // 32 != number // 32]
        return step(self)

    if not proven:
        monkeypatch.setattr(reencryption._Proof, "over", lambda *_: 0)
        monkeypatch.setattr(reencryption._Proof, "find_abandoned", lambda *_: ())
    with opened(path, job.before) as store:
        with monkeypatch.context() as patched:
            patched.setattr(reencryption._Step, "run", overlooks)
            done = job(store)
        assert done.complete is not proven
        if proven:
            assert [id for id, _ in done.failures] == [talk]
            assert unreadable(store, ids) == []
            assert job(store).complete
    with opened(path, job.after) as store:
        assert (unreadable(store, ids) == []) is proven


@each_job
@pytest.mark.parametrize("moment", ["before it begins", "after it began", "before its last step"])
def test_the_slower_of_two_that_do_the_same_gets_no_error(
    path: Path, job: Job, moment: str, monkeypatch: pytest.MonkeyPatch, two_owners: None
) -> None:
    talk, ids, _ = talk_of(path, job.before)
    once = [True]
    with opened(path, job.before) as slow:

        def overtaken() -> None:
            if once:
                once.clear()
                with opened(path, job.before if job is UNSEAL else job.after) as fast:
                    done = fast.maintain() if job is REENCRYPT else job(fast)
                    assert done.complete
                    assert not rotation.pending(fast.engine)

        def hooked(owner: type, name: str, *, after: bool = False) -> None:
            inner = getattr(owner, name)

            def call(self: Any, *args: Any, **named: Any) -> Any:
                if self._engine is slow.engine and not after:
                    overtaken()
                result = inner(self, *args, **named)
                if self._engine is slow.engine and after:
                    overtaken()
                return result

            monkeypatch.setattr(owner, name, call)

        if moment == "before its last step":
            hooked(reencryption.Steps, "_last_step")
        else:
            hooked(reencryption.Begin, "run", after=moment == "after it began")
        done = job(slow)
        assert not once
        assert (done.complete, done.failures) == (True, ())
        assert unreadable(slow, ids) == []
    with opened(path, job.after) as store:
        assert unreadable(store, ids) == []
        assert problems(store) == []
        assert len(store.conversation(talk).thread()) == len(ids)


@pytest.mark.parametrize("second", ["reencrypt", "unseal", "seal"])
def test_a_conversation_that_is_half_sealed_when_the_next_job_begins_is_no_damage(
    path: Path, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plain conversation proves is summed up when it is sealed, and not before."""
    _, ids, _ = talk_of(path, None)
    with opened(path, None) as store:
        with monkeypatch.context() as patched:
            patched.setattr(reencryption.Steps, "_last_step", _stop)
            with pytest.raises(Stop):
                store.seal(NEW)
        store.conversation(store.message(ids[0]).conversation).append(Message.user("amid"))
        with monkeypatch.context() as patched:  # what is pending cannot be finished
            patched.setattr(rotation, "go_on", lambda *_, **__: RotationReport(0, False))
            if second != "seal":
                _run(store, second, NEW)
        done = _run(store, second, NEW)
        assert (done.complete, done.failures) == (True, ())
        assert unreadable(store, ids) == []
        assert problems(store) == []


def _run(store: Store, job: str, key: Key) -> RotationReport:
    if job == "unseal":
        return store.unseal()
    return store.seal(key) if job == "seal" else store.rotate(key, reencrypt=True)


def _stop(*_: object) -> None:
    raise Stop


@pytest.mark.parametrize("counted", [True, False], ids=["noticed", "control"])
def test_a_pack_that_was_made_before_a_conversation_was_sealed_and_unsealed_is_not_kept(
    path: Path, counted: bool, monkeypatch: pytest.MonkeyPatch, two_owners: None
) -> None:
    """It is plain again, as it was when the pack was begun; but the pack was closed in between, with a key that is gone
    by now. (Our process knows both states, because it takes part in the jobs.)"""
    with opened(path, None) as store:
        talk = store.start()
        talk.extend([Message.user(f"{n}") for n in range(40)])
        meant = [message.text for message in talk.thread()]
        inner, once = packing._build, [True]

        def late(engine: Any, once_: Any, run: int) -> Any:
            desk = engine.states[parse_conversation_id(talk.id)]
            if once:
                once.clear()
                with opened(path, None) as other:
                    assert other.seal(NEW).complete
                    engine.workspace.expect(NEW)
                    engine.workspace.refresh()
                    desk.refresh()
                    built = _built_with(desk.envelope, engine, once_, run)
                    assert other.unseal().complete
                engine.workspace.expect(NEW, None)
                engine.workspace.refresh()
                desk.refresh()
                return built
            return inner(engine, once_, run)

        if not counted:
            monkeypatch.setattr(packing, "_shape_of", lambda row: (row.data_key, row.rewrites))
        monkeypatch.setattr(packing, "_build", late)
        store.maintain()
        assert not once
    with opened(path, None) as store:
        assert (problems(store) == []) is counted
        if counted:
            assert [message.text for message in store.conversation(talk.id).thread()] == meant


def _built_with(envelope: Any, engine: Any, once: Any, run: int) -> Any:
    rows = sorted(engine.backend.messages(numbers=range(run, run + 32)), key=lambda m: m.number)
    messages = [pack_message(m, data) for m, data in zip(rows, envelope.open_messages(rows), strict=True)]
    like = PackRow(run, once.row.id, rows[0].parent, 0, b"")
    return packing._Built(close_pack(envelope, like, messages), (), tuple(rows))


@each_job
def test_a_message_whose_attachment_is_lost_is_brought_up_to_date_without_it(path: Path, job: Job) -> None:
    """It must not keep the old key for ever, nor be dropped."""
    talk, ids, pictures = talk_of(path, job.before, pictures=2)
    lose_attachment(path, pictures[0], job.before)
    with opened(path, job.before) as store:
        assert job(store) == RotationReport(1, True)
        found = {
            m.number: m for m in store.backend.messages(numbers=[store.engine.message_ids.number(id) for id in ids])
        }
        assert len(found) == len(ids)
        assert unreadable(store, [id for id in ids if id != pictures[0]]) == []
        assert store.message(pictures[1]).blocks[1].content == PICTURE + b"\1"
    boxes = place_of(path)
    assert [len(box) for box in boxes.values()] == [0 if job is UNSEAL else 1] * len(boxes)
    assert talk in boxes


def lose_attachment(path: Path, message: str, key: Key | None) -> None:
    """Remove the attachment of a message from the file, with its chunks and what refers to it."""
    with opened(path, key) as store:
        number = store.engine.message_ids.number(message)
    connection = apsw.Connection(str(path))
    query = "SELECT attachment FROM reference WHERE message = ?"
    ((place,),) = connection.execute(query, (number,)).fetchall()
    connection.execute("DELETE FROM reference WHERE attachment = ?", (place,))
    connection.execute("DELETE FROM chunk WHERE number >> 24 = ?", (place,))
    connection.execute("DELETE FROM attachment WHERE place = ?", (place,))
    connection.close()


@each_job
def test_a_conversation_whose_attachment_is_torn_is_named_and_finished_when_it_is_restored(
    path: Path, job: Job
) -> None:
    talk, ids, _ = talk_of(path, job.before)
    connection = apsw.Connection(str(path))
    found: Any = connection.execute("SELECT number, body FROM chunk").fetchall()[0]
    number, body = found
    connection.execute("UPDATE chunk SET body = ? WHERE number = ?", (body[:-1], number))
    with opened(path, job.before) as store:
        for _ in range(2):
            done = job(store)
            assert not done.complete
            assert [id for id, _ in done.failures] == [talk]
            assert rotation.pending(store.engine)
    connection.execute("UPDATE chunk SET body = ? WHERE number = ?", (body, number))
    connection.close()
    with opened(path, job.before if job is UNSEAL else job.after) as store:
        assert store.maintain().complete if job is REENCRYPT else job(store).complete
        assert unreadable(store, ids) == []
        assert problems(store) == []


@each_job
def test_an_attachment_that_its_message_does_not_name_any_more_goes_with_the_old_key(path: Path, job: Job) -> None:
    """It counts as referred to, and nobody can get at it."""
    talk, ids, pictures = talk_of(path, job.before)
    with opened(path, job.before) as store:
        desk = store.engine.state_of(store.engine.read_row(parse_conversation_id(talk)))
        (kept,) = store.backend.attachments(desk.id)
        stray = bytes(len(kept.name)) if desk.row.data_key == b"" else kept.name[:4] + bytes(32)
        store.backend.stage(desk.id, stray, 0, [b"stray"], last=True, at=1)
        number = store.engine.message_ids.number(pictures[0])
        after = next_row(desk.envelope, desk.row)
        assert store.engine.commit_once(Change(desk.id, desk.row.token, after, attach=((number, stray),)))
        assert len(store.backend.attachments(desk.id)) == 2
        assert job(store) == RotationReport(1, True)
        assert len(store.backend.attachments(desk.id)) == 1
        assert unreadable(store, ids) == []
        assert problems(store) == []


# 2. The lease


def test_a_second_caller_waits_and_finishes_behind_the_first(path: Path) -> None:
    """And hears how far it is."""
    meant = made(path, OLD, small=True)
    heard: list[RotationProgress] = []
    began, go = threading.Event(), threading.Event()
    with opened(path, OLD) as one, opened(path, OLD) as two:

        def held(_: RotationProgress) -> None:
            began.set()
            assert go.wait(60)

        def watch(progress: RotationProgress) -> None:
            heard.append(progress)
            if len(heard) == 3:
                go.set()

        first = threading.Thread(target=lambda: one.rotate(OLD, reencrypt=True, progress=held))
        first.start()
        assert began.wait(60)
        before = two.engine.workspace.row.generation
        done = two.rotate(OLD, reencrypt=True, progress=watch)
        first.join(60)
        assert done.complete
        assert two.engine.workspace.row.generation == before + 2  # both jobs were done, one after the other
        assert all(one.done < one.total for one in heard[:2])
        assert one.engine.workspace.meta.rotator is two.engine.workspace.meta.rotator is None
    check(path, OLD, meant)


@pytest.mark.parametrize("leased", [True, False], ids=["one owner", "control"])
def test_a_second_caller_whose_patience_is_over_is_told_who_is_at_it(
    path: Path, leased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "_PATIENCE_SECONDS", 0.2)
    if not leased:
        monkeypatch.setattr(lease.Lease, "_others", lambda *_: None)
    made(path, OLD, small=True)
    seen: list[object] = []
    with opened(path, OLD) as one, opened(path, OLD) as two:

        def meanwhile(_: RotationProgress) -> None:
            if not seen:
                assert one.engine.workspace.meta.rotator is not None
                try:
                    seen.append(two.rotate(OLD, reencrypt=True).complete)
                except Busy as error:
                    seen.extend((str(error), "call again" in error.hint))
                seen.append(two.maintain().complete)

        assert one.rotate(OLD, reencrypt=True, progress=meanwhile).complete
        assert one.engine.workspace.meta.rotator is None
        assert two.maintain().complete
    told: list[object] = ["another process rotates the keys of this workspace", True, False]
    assert seen == (told if leased else [True, True])


@each_job
def test_after_kill_9_of_the_owner_the_next_one_takes_over_at_once(path: Path, job: Job) -> None:
    """A real process, killed in the middle: nobody waits until its lease runs out."""
    talk, ids, _ = talk_of(path, job.before, messages=300)
    child = Child("rotating", path, shown(job.before), job.name, shown(job.after))
    try:
        assert child.line() == ["begun"]
        with opened(path, job.before if job is UNSEAL else job.after) as store:
            assert rotation.pending(store.engine)
            assert not store.maintain().complete  # the control: it is there, and its lease counts
            os.kill(child.process.pid, signal.SIGKILL)  # its parent, we, does not ask for it before the end
            began = time.monotonic()
            if job is REENCRYPT:
                until_complete(store)
            else:
                assert job(store).complete
            assert time.monotonic() - began < lease.LEASE / 2_000_000
            assert not rotation.pending(store.engine)
            assert unreadable(store, ids) == []
            assert problems(store) == []
    finally:
        child.end()
    assert len(place_of(path)[talk]) == (0 if job is UNSEAL else 1)


def until_complete(store: Store) -> None:
    """It takes a moment until a process that was killed is gone."""
    deadline = time.monotonic() + 20
    while not store.maintain().complete:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_lease_of_a_machine_that_is_gone_runs_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can ask for its processes from here. A clock that was set back does not make it last longer."""
    monkeypatch.setattr(rotation, "_PATIENCE_SECONDS", 0.0)
    made(path, OLD, small=True)
    now = [1_900_000_000_000_000]
    with opened(path, OLD) as one:
        one.engine.rotation_lease.clock = lambda: now[0]
        with pytest.raises(Stop):
            one.rotate(NEW, reencrypt=True, progress=lambda _: _elsewhere(one))
    for seconds, free in ((1, False), (59, False), (61, True), (-10, True)):
        with opened(path, NEW) as two:
            two.engine.rotation_lease.clock = lambda seconds=seconds: now[0] + seconds * 1_000_000  # type: ignore[misc]
            assert two.engine.rotation_lease.is_free(two.engine.workspace.meta) is free, seconds
    with opened(path, NEW) as two:
        two.engine.rotation_lease.clock = lambda: now[0] + 59_000_000
        with pytest.raises(rotation.Elsewhere):
            two.rotate(NEW)
        two.engine.rotation_lease.clock = lambda: now[0] + 61_000_000
        assert two.rotate(NEW).complete
        assert problems(two) == []


def _elsewhere(store: Store) -> None:
    """The process stops here, for good; and nobody knows it, because its machine is another one."""
    meta = store.engine.workspace.meta
    assert meta.rotator is not None
    somewhere = b"a name that nobody can judge"
    until = meta.rotator[1]

    def make(meta: Any) -> Any:
        return replace(meta, rotator=(somewhere, until))

    store.engine.workspace.describe(make)
    raise Stop


def test_an_owner_that_slept_for_too_long_leaves_it_to_the_one_that_took_over(path: Path) -> None:
    """And comes to an end behind it."""
    meant = made(path, OLD, small=True)
    now = [1_900_000_000_000_000]
    asleep, go = threading.Event(), threading.Event()
    done: list[RotationReport] = []
    with opened(path, OLD) as one, opened(path, OLD) as two:
        one.engine.rotation_lease.clock = two.engine.rotation_lease.clock = lambda: now[0]

        def sleeps(_: RotationProgress) -> None:
            if not asleep.is_set():
                asleep.set()
                assert go.wait(60)

        first = threading.Thread(target=lambda: done.append(one.rotate(OLD, reencrypt=True, progress=sleeps)))
        first.start()
        assert asleep.wait(60)
        now[0] += 61_000_000

        def wakes(_: RotationProgress) -> None:
            go.set()

        done.append(two.rotate(OLD, progress=wakes))
        first.join(60)
        assert [one.complete for one in done] == [True, True]
    check(path, OLD, meant)


def test_ctrl_c_gives_the_lease_back(path: Path) -> None:
    made(path, OLD, small=True)
    with opened(path, OLD) as one:
        with pytest.raises(Stop):
            one.rotate(NEW, reencrypt=True, progress=stop_at(1))
        assert one.engine.workspace.meta.rotator is None
        with opened(path, NEW) as two:
            assert two.maintain().complete


def test_whoever_seals_what_is_sealed_already_writes_nothing(path: Path) -> None:
    """Programs say so each time they begin."""
    with opened(path, OLD) as store:
        before = store.engine.workspace.row
        assert store.seal(OLD) == RotationReport(0, True)
        store.engine.workspace.refresh()
        assert store.engine.workspace.row == before


# 3. Turns


class Crowd:
    """Processes that rotate and processes that write, over one backend, in turns that a seed decides."""

    KEY = Key(bytes([7]) * 32)

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, *, leased: bool) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.backend = MemoryBackend()
        self.scheduler = interleaved.Scheduler(seed, self.random.choice([0.0, 0.0005, 0.003]))
        self.saved: dict[str, tuple[str, str]] = {}  # message: conversation, text
        self.touched: set[str] = set()  # conversations from which something went
        monkeypatch.setattr(reencryption, "_STEP", self.random.choice([2, 5, 128]))
        monkeypatch.setattr(rotation, "_AT_ONCE", self.random.choice([2, 256]))
        monkeypatch.setattr(reencryption, "_AT_ONCE", self.random.choice([2, 4, 256]))
        monkeypatch.setattr(rotation, "_LOOK_SECONDS", 0.0)
        monkeypatch.setattr(attachments, "_AT_ONCE", 2)
        if not leased:
            monkeypatch.setattr(lease.Lease, "_others", lambda *_: None)
        store = Store(self.backend, key=self.random.choice([None, self.KEY]), maintenance=False)
        for n in range(2):
            talk = store.start(title=f"{n}")
            for m in range(self.random.choice([3, 36])):
                self.say(talk, f"{n}-{m}", self.random)
        if self.random.random() < 0.7:
            store.maintain()
        self.talks = sorted({talk for talk, _ in self.saved.values()})

    def say(self, talk: hitherto.Conversation, text: str, chance: random.Random) -> None:
        picture = Block.image(f"{text} ".encode() * 9000, "image/png")
        content: Any = [Block.text(text), picture] if chance.random() < 0.4 else text
        label = text if chance.random() < 0.2 else None
        saved = talk.append(Message.user(content, label=label), on_conflict="follow")
        self.saved[saved.id] = talk.id, text

    def opened(self, backend: Any) -> Store:
        for _ in range(100):
            for key in (None, self.KEY):
                try:
                    return Store(backend, key=key, maintenance=False)
                except (KeyUnavailable, NotSealed):
                    continue
        raise AssertionError("no key opens it")

    def rotator(self, me: int) -> None:
        chance = random.Random(f"{self.seed} {me}")
        backend = interleaved.Turns(self.backend, self.scheduler, me)
        store = self.opened(backend)
        for _ in range(5):
            job = chance.choice(["seal", "unseal", "reencrypt", "seal", "unseal", "maintain"])
            try:
                if job == "maintain":
                    store.maintain()
                else:
                    done = _run(store, job, self.KEY)
                    assert done.failures == ()
            except (KeyUnavailable, NotSealed):
                store = self.opened(backend)
            except InvalidArgument:
                pass  # others have sealed or unsealed it meanwhile

    def writer(self, me: int) -> None:
        chance = random.Random(f"{self.seed} {me}")
        backend = interleaved.Turns(self.backend, self.scheduler, me)
        store, mine = self.opened(backend), list(self.talks)
        for n in range(24):
            what = chance.choice(["append"] * 4 + ["start", "delete", "maintain", "label", "purge", "read"])
            try:
                talk = store.start(title=f"{me}") if what == "start" else store.conversation(chance.choice(mine))
                if what == "start":
                    mine.append(talk.id)
                if what in ("append", "start"):
                    self.say(talk, f"{me}-{n}", chance)
                elif what == "delete" and (thread := talk.thread()):
                    self.touched.add(talk.id)
                    store.delete([thread[-1].id], recursive=True, missing_ok=True)
                elif what == "maintain":
                    store.maintain()
                elif what == "label" and (thread := talk.thread()):
                    talk.label(f"{me}-{n}", message=thread[0])
                elif what == "purge" and len(mine) > 3:
                    self.touched.add(talk.id)
                    mine.remove(talk.id)
                    store.purge(talk.id, reason="user-requested")
                elif what == "read":
                    assert [m.problem for m in store.messages() if m.problem] == []
            except (KeyUnavailable, NotSealed):
                store = self.opened(backend)
            except hitherto.NotFound:
                pass  # others have deleted it

    def run(self, rotators: int, writers: int) -> list[str]:
        """What went wrong."""
        self.scheduler.run([self.rotator] * rotators + [self.writer] * writers)
        wrong = [*dict.fromkeys(self.scheduler.wrong), *(repr(error) for error in self.scheduler.errors)]
        if wrong:
            return wrong
        store = self.opened(self.backend)
        for finished in (False, True):
            if finished:
                store.maintain()
                done = _run(store, "reencrypt" if store.key_id else "seal", self.KEY)
                wrong += [] if done.complete else [str(done)]
            meant = {id: text for id, (talk, text) in self.saved.items() if talk not in self.touched}
            wrong += unreadable(store, list(meant)) + problems(store)
            if not wrong:
                wrong += [id for id, text in meant.items() if not store.message(id).text.startswith(text)]
        return wrong


SEEDS = range(400 if os.environ.get("HITHERTO_THOROUGH") else 5)


@pytest.mark.parametrize("leased", [False, True], ids=["two owners", "leased"])
@pytest.mark.parametrize("rotators", [2, 3])
def test_in_any_order_of_turns_nothing_is_lost(rotators: int, leased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = kills = 0
    for seed in SEEDS:
        crowd = Crowd(seed, monkeypatch, leased=leased)
        wrong = crowd.run(rotators, 2)
        calls, kills = calls + crowd.scheduler.calls, kills + crowd.scheduler.killed
        assert wrong == [], f"seed {seed}"
    assert calls > 500 * len(SEEDS)
    assert kills > 0


def test_without_what_each_commit_requires_turns_lose_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control for the test above: the same processes, and nothing is proven or required."""
    monkeypatch.setattr(KeyState, "require", property(lambda _: ()))
    monkeypatch.setattr(reencryption._Proof, "over", lambda *_: 0)
    monkeypatch.setattr(reencryption._Proof, "find_abandoned", lambda *_: ())
    monkeypatch.setattr(reencryption, "_newest", lambda _: ("the same",))
    monkeypatch.setattr(KeyShape, "fits", lambda *_: True)
    wrong = (one for seed in range(200) for one in Crowd(seed, monkeypatch, leased=False).run(3, 2))
    assert any("under a key that is gone" in one for one in wrong)  # keys are random, so the first seed varies
