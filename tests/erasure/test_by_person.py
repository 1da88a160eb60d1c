"""Erasing everything of one person: what it reaches, and what stops it.

Requirements: K1.
"""

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Conversation, Message, RetentionPolicy, Sanitiser, Store
from hitherto._erasure import by_person
from hitherto.backend import Batch, Outcome
from hitherto.backends.sqlite import SqliteBackend
from hitherto.errors import Held, InvalidArgument, ReadOnly
from hitherto.events import PurgeCompleted
from hitherto.records import Participant, Records

KEY = b"\x17" * 32
ADA = {"owner": "ada"}
SECRET = b"zanzibarquux"  # one word, so that the search index has it as it is


@pytest.fixture(params=[None, KEY], ids=["plain", "sealed"])
def key(request: pytest.FixtureRequest) -> bytes | None:
    found: bytes | None = request.param
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.db"


@pytest.fixture
def store(path: Path, key: bytes | None) -> Iterator[Store]:
    with hitherto.open(path, key=key, maintenance=False) as store:
        yield store


def started(store: Store, owner: str, *, text: str = "hi", participant: bool = False) -> Conversation:
    talk = store.start(title=f"of {owner}", metadata={"owner": owner})
    talk.append(Message.user(text))
    if participant:
        Records(store).update(talk.id, participants=[Participant(owner, "user")])
    return talk


def left(store: Store) -> set[str]:
    return {info.id for info in store.conversations(limit=10_000, include_expired=True)}


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


# -- what it reaches


@pytest.mark.parametrize("selectors", [{"participant": "ada"}, {"metadata": ADA}], ids=["participant", "metadata"])
def test_expired_conversations_of_a_person_go_too(store: Store, selectors: dict[str, Any]) -> None:
    talk = started(store, "ada", participant=True)
    past = datetime.now().astimezone() - timedelta(days=1)
    Records(store).update(talk.id, retention={"expires_at": past})
    assert store.conversations().items == []  # the control: a list leaves it out
    assert store.purge_matching(**selectors, reason="user-requested").purged == (talk.id,)
    assert left(store) == set()


def test_nothing_of_a_person_is_left_in_any_file(tmp_path: Path, path: Path, key: bytes | None) -> None:
    """The control is a plain store before the purge."""
    with hitherto.open(path, key=key) as store:
        for n in range(3):
            started(store, "ada", text=f"{SECRET.decode()} {n}", participant=True)
        stays = started(store, "bob", participant=True)
        store.search(SECRET.decode())
        assert (SECRET in files(tmp_path)) == (key is None)
        report = store.purge_matching(participant="ada", reason="user-requested")
        assert (report.purged_count, report.scrub_pending) == (3, False)
        assert SECRET not in files(tmp_path)
        assert b"of ada" not in files(tmp_path)
        assert left(store) == {stays.id}
        assert store.verify().ok
    assert SECRET not in files(tmp_path)


def test_a_hundred_go_in_a_few_commits_and_one_event(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {started(store, "ada").id for _ in range(100)}
    commit, commits = SqliteBackend.commit, list[int]()

    def counted(self: SqliteBackend, batches: Sequence[Batch]) -> list[Outcome]:
        commits.append(len(batches))
        return commit(self, batches)

    monkeypatch.setattr(SqliteBackend, "commit", counted)
    heard: list[object] = []
    store.subscribe(heard.append)
    told: list[tuple[int, int]] = []
    report = store.purge_matching(metadata=ADA, reason="user-requested", progress=lambda *how: told.append(how))
    assert set(report.purged) == ids
    assert len(commits) < 20
    assert (told[0], told[-1]) == ((0, 100), (100, 100))
    assert store.wait_for_listeners()
    assert [event.purged_count for event in heard if isinstance(event, PurgeCompleted)] == [100]
    heard.clear()
    assert store.purge_matching(metadata=ADA, reason="user-requested").purged_count == 0
    assert store.wait_for_listeners()
    assert heard == []


def test_a_participant_whose_id_was_redacted_is_found_by_the_id(path: Path, key: bytes | None) -> None:
    with hitherto.open(path, key=key, sanitiser=Sanitiser.everything(), maintenance=False) as store:
        ids = {}
        for name in ("ada@example.com", "bob@example.com"):
            talk = store.start()
            Records(store).update(talk.id, participants=[Participant(name, "user")])
            ids[name] = talk.id
        assert b"ada@example.com" not in files(path.parent)
        report = store.purge_matching(participant="ada@example.com", reason="user-requested")
        assert report.purged == (ids["ada@example.com"],)
        assert left(store) == {ids["bob@example.com"]}


def test_redacted_metadata_is_refused_because_it_names_everybody(path: Path) -> None:
    with hitherto.open(path, sanitiser=Sanitiser.everything(), maintenance=False) as store:
        talks = [store.start(metadata={"owner": f"{name}@example.com"}) for name in ("ada", "bob")]
        assert talks[0].metadata == talks[1].metadata  # why: these people cannot be told apart
        with pytest.raises(InvalidArgument, match="redacts"):
            store.purge_matching(metadata={"owner": "ada@example.com"}, reason="user-requested")
        assert len(left(store)) == 2


def test_a_tag_that_another_program_removed_from_a_sealed_store_hides_nothing(path: Path) -> None:
    with hitherto.open(path, key=KEY, maintenance=False) as store:
        talk = started(store, "ada")
    with closing(apsw.Connection(str(path))) as raw:
        raw.execute("DELETE FROM tag")
    with hitherto.open(path, key=KEY, maintenance=False) as store:
        assert store.conversations(metadata=ADA).items == []  # the control: a list goes by the tags
        assert store.purge_matching(metadata=ADA, reason="user-requested").purged == (talk.id,)


# -- what stays


def test_who_only_reads_sees_the_plan_and_destroys_nothing(path: Path, key: bytes | None) -> None:
    with hitherto.open(path, key=key) as store:
        talk = started(store, "ada", participant=True)
    with hitherto.open(path, key=key, read_only=True) as reader:
        plan = reader.plan_purge(participant="ada")
        assert [one.conversation for one in plan.purges] == [talk.id]
        assert plan.explain().splitlines() == ["1 to purge, 0 to stay.", f"purge {talk.id}: chat, 1 message"]
        with pytest.raises(ReadOnly):
            reader.purge_matching(participant="ada", reason="user-requested")
        assert left(reader) == {talk.id}


def test_a_conversation_that_cannot_be_read_stays_and_is_named_because_it_may_match(path: Path) -> None:
    with hitherto.open(path, key=KEY, maintenance=False) as store:
        bad, good = started(store, "bob"), started(store, "ada")
    with closing(apsw.Connection(str(path))) as raw:
        raw.execute("UPDATE conversation SET size = size + 1 WHERE id = ?", [uuid.UUID(bad.id).bytes])
    with hitherto.open(path, key=KEY, maintenance=False) as store:
        plan = store.plan_purge(metadata=ADA)
        assert [(one.conversation, one.stays) for one in plan.targets] == [(bad.id, "damaged"), (good.id, None)]
        for reason, purged in (("user-requested", (good.id,)), ("corruption-detected", ())):
            report = store.purge_matching(metadata=ADA, reason=reason)
            assert report.purged == purged
            ((id, why),) = report.failures
            assert id == bad.id
            assert "nobody knows whether it matches" in why
        assert store.purge(bad.id, reason="corruption-detected").purged_count == 1


def test_participants_that_cannot_be_read_are_a_failure_and_the_others_go(path: Path) -> None:
    with hitherto.open(path, maintenance=False) as store:
        bad, good = started(store, "ada", participant=True), started(store, "ada", participant=True)
    with closing(apsw.Connection(str(path))) as raw:
        raw.execute(
            "UPDATE item SET body = x'00' WHERE key = ? AND conversation ="
            " (SELECT place FROM conversation WHERE id = ?)",
            [b"record", uuid.UUID(bad.id).bytes],
        )
        assert raw.changes() == 1
    with hitherto.open(path, maintenance=False) as store:
        report = store.purge_matching(participant="ada", reason="user-requested")
        assert (report.purged, [one.id for one in report.failures]) == ((good.id,), [bad.id])


# -- what happens meanwhile


@pytest.mark.parametrize("protected", [True, False])
def test_a_hold_before_the_commit_keeps_a_conversation(
    store: Store, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """It is looked at again. The control purges by the list alone."""
    talk = started(store, "ada")
    if not protected:
        monkeypatch.setattr(by_person, "_check", lambda _: lambda *_: True)

    def hold(done: int, _: int) -> None:
        if done == 0:
            store.conversation(talk.id).hold()

    report = store.purge_matching(metadata=ADA, reason="user-requested", progress=hold)
    assert left(store) == ({talk.id} if protected else set())
    assert [one.id for one in report.failures] == ([talk.id] if protected else [])


@pytest.mark.parametrize("passes", [10, 1])
def test_a_conversation_that_is_given_to_a_person_meanwhile_goes_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    """Its activity does not move, so it stands where the purge has looked already. The control looks once."""
    monkeypatch.setattr(by_person, "_MAX_PASSES", passes)
    other, talk = started(store, "bob"), started(store, "ada")

    def give(done: int, _: int) -> None:
        if done == 0:
            Records(store).update(other.id, participants=[Participant("ada", "user")])

    Records(store).update(talk.id, participants=[Participant("ada", "user")])
    report = store.purge_matching(participant="ada", reason="user-requested", progress=give)
    assert report.purged == ((talk.id, other.id) if passes == 10 else (talk.id,))


def test_a_writer_that_never_stops_does_not_keep_a_purge_for_ever(store: Store) -> None:
    started(store, "ada")
    passes: list[int] = []

    def more(done: int, _: int) -> None:
        if done:
            passes.append(done)
            started(store, "ada")

    assert store.purge_matching(metadata=ADA, reason="user-requested", progress=more).purged_count == len(passes)
    assert len(left(store)) == 1


_KILLED = """
import os, signal, sys
import hitherto, hitherto._erasure.by_person
def die(done, total):
    if done >= 16:
        os.kill(os.getpid(), signal.SIGKILL)
hitherto._erasure.by_person._BATCH_SIZE = 16
key = bytes.fromhex(sys.argv[2]) or None
hitherto.open(sys.argv[1], key=key).purge_matching(metadata={"owner": "ada"}, reason="user-requested", progress=die)
"""


def test_a_purge_that_was_killed_is_finished_by_the_next(tmp_path: Path, path: Path, key: bytes | None) -> None:
    with hitherto.open(path, key=key) as store:
        ids = {started(store, "ada", text=SECRET.decode()).id for _ in range(40)}
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path), (key or b"").hex()], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(path, key=key) as store:
        rest = left(store)
        assert rest < ids
        assert len(rest) == 24
        report = store.purge_matching(metadata=ADA, reason="user-requested")
        assert set(report.purged) == rest
        assert store.scrub()  # the maintenance of this store may be at what the killed one left
        assert store.verify().ok
        assert SECRET not in files(tmp_path)


def test_a_purge_by_id_and_one_by_person_refuse_the_same(store: Store) -> None:
    """Both by the same check; the retention of the store plays no part."""
    talk = started(store, "ada")
    store.set_retention(RetentionPolicy(3650))
    talk.hold()
    with pytest.raises(Held):
        store.purge(talk, reason="user-requested")
    assert len(store.purge_matching(metadata=ADA, reason="user-requested").failures) == 1


def test_async_code_has_the_same(path: Path) -> None:
    async def main() -> None:
        async with hitherto.open_async(path, maintenance=False) as store:
            talk = await store.start(metadata=ADA)
            assert len((await store.plan_purge(metadata=ADA)).purges) == 1
            assert (await store.purge_matching(metadata=ADA, reason="user-requested")).purged == (talk.id,)

    asyncio.run(main())
