"""Who asked for it, and why: in reports, events, the erasure ledger and on the command line.

Requirements: K2.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import hitherto
from hitherto import Key, Message, RetentionPolicy, Store, acting, erasures
from hitherto.accountability import Actor
from hitherto.errors import InvalidArgument
from hitherto.events import ConversationDeleted, Event, KeyRotated, PurgeCompleted, SweepFinished
from hitherto.records import Records

from ..support.command import World

DPO = Actor("dpo@acme.example", "request 4711")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "c.db", key=Key.generate(), maintenance=False) as store:
        yield store


def said(store: Store) -> str:
    talk = store.start(metadata={"owner": "ada"})
    talk.append(Message.user("hi"))
    return talk.id


def test_every_purge_carries_who_and_why_into_report_events_and_ledger(store: Store) -> None:
    """K2."""
    heard: list[Event] = []
    store.subscribe(heard.append)
    with acting(DPO.name, why=DPO.why):
        reports = [store.purge(said(store), reason="user-requested")]
        said(store)
        reports.append(store.purge_matching(metadata={"owner": "ada"}, reason="user-requested"))
        said(store)
        reports.append(Records(store).purge_all(reason="workspace-reset"))
        reports.append(Records(store).delete(said(store), reason="user-requested"))
        said(store)
        swept = store.sweep(RetentionPolicy(7), now=datetime.now(UTC) + timedelta(days=8))
    assert [*(report.actor for report in reports), swept.actor] == [DPO] * 5
    assert store.wait_for_listeners()
    told = [e for e in heard if isinstance(e, (ConversationDeleted, PurgeCompleted, SweepFinished))]
    assert [event.actor for event in told] == [DPO] * 11
    assert [entry.actor for entry in erasures.entries(store)] == [DPO] * 5
    assert store.purge(said(store), reason="user-requested").actor is None  # the control: outside of the block


def test_a_rotation_says_who_began_it_even_if_another_finishes_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    store.subscribe(heard.append)
    for _ in range(3):
        said(store)
    with acting(DPO.name, why=DPO.why):
        assert store.rotate(Key.generate()).actor == DPO
        assert store.rotate(Key.generate(), reencrypt=True).actor == DPO
    assert store.wait_for_listeners()
    assert [event.actor for event in heard if isinstance(event, KeyRotated)] == [DPO, DPO]
    assert store.rotate(Key.generate()).actor is None


def test_who_and_why_follow_a_task_into_the_threads_of_a_store(tmp_path: Path) -> None:
    async def purged(store: hitherto.AsyncStore, name: str) -> Actor | None:
        with acting(name):
            talk = await store.start()
            return (await store.purge(talk.id, reason="user-requested")).actor

    async def both() -> list[Actor | None]:
        async with hitherto.open_async(tmp_path / "a.db") as store:
            return [*await asyncio.gather(purged(store, "ada"), purged(store, "bob"))]

    assert asyncio.run(both()) == [Actor("ada"), Actor("bob")]


def test_a_replay_keeps_who_asked_for_the_purge(store: Store, tmp_path: Path) -> None:
    id = said(store)
    store.backup(tmp_path / "b.db")
    with acting(DPO.name, why=DPO.why):
        store.purge(id, reason="user-requested")
    erasures.keep(store, tmp_path / "led")
    sealed = store.engine.workspace.sealed_codec
    assert sealed is not None
    with hitherto.open(tmp_path / "b.db", key=sealed.key, maintenance=False) as restored:
        with acting("ops"):
            assert erasures.replay(restored, tmp_path / "led").purge.actor == Actor("ops")
        assert [entry.actor for entry in erasures.entries(restored)] == [DPO]


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 501, None, "\x1b[31m"])
def test_a_name_is_one_line_of_printable_text(name: str) -> None:
    with pytest.raises(InvalidArgument, match="printable"), acting(name):
        pass
    with pytest.raises(InvalidArgument, match="printable"), acting("ada", why=name or "\n"):
        pass


def test_the_command_line_says_it_in_json_and_in_the_ledger(world: World) -> None:
    with world.store(maintenance=False) as opened:
        ids = [said(opened), said(opened)]
    who = ("--actor", DPO.name, "--why", DPO.why)
    done = world.command("purge", ids[0], "--yes", "--json", *who)
    assert json.loads(done.stdout)["actor"] == {"name": DPO.name, "why": DPO.why}
    assert f"user-requested, by {DPO}" in world.command("erasures", "list").stdout
    done = world.command("purge", ids[1], "--yes", "--json", HITHERTO_ACTOR="ops")
    assert json.loads(done.stdout)["actor"]["name"] == "ops"
    done = world.command("purge", ids[1], "--yes", "--why", "x")
    assert (done.returncode, "--actor says who does this" in done.stderr) == (2, True)
