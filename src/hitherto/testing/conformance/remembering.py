"""The contract of the erasure ledger: what was purged does not come back by itself.

Requirements: K2.
"""

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from ... import formats
from ..._engine.bodies import Erasure
from ..._erasure import ledger, replaying
from ...accountability import Actor, acting
from ...backend import ERASED, Where
from ...conversation import Conversation
from ...errors import BelowFloor
from ...ids import parse_conversation_id
from ...model import Message
from ...retention import RetentionPolicy
from ...store import Store


def said(store: Store, text: str = "hi") -> Conversation:
    talk = store.start(title="of ada")
    talk.append(Message.user(text))
    return talk


def lines(store: Store) -> bytes:
    """All conversations of a store as our own lines."""
    out = io.BytesIO()
    formats.save(store, out, format="jsonl")
    return out.getvalue()


def loaded(store: Store, data: bytes, *, even_purged: bool = False) -> "formats.Loaded":
    return formats.load(io.BytesIO(data), store, format="jsonl", even_purged=even_purged)


def entries(store: Store) -> int:
    return store.backend.count(Where(ERASED))


class LedgerContract:
    """Purges are remembered, as keyed hashes."""

    def test_what_was_purged_stays_away_from_every_import(self, store: Store) -> None:
        """K2."""
        gone, stays = said(store), said(store)
        data = lines(store)
        store.purge(gone.id, reason="user-requested")
        report = loaded(store, data)
        assert (report.purged, report.new, report.unchanged) == (1, 0, 1)
        assert [info.id for info in store.conversations()] == [stays.id]
        report = formats.load(io.BytesIO(data), store, format="jsonl", dry_run=True)
        assert (report.purged, report.new) == (1, 0)
        assert loaded(store, data, even_purged=True).new == 1
        assert {info.id for info in store.conversations()} == {gone.id, stays.id}
        assert store.verify().ok

    def test_every_way_of_destroying_a_conversation_is_remembered(self, store: Store) -> None:
        ids = [parse_conversation_id(said(store).id) for _ in range(70)]  # more than go in one commit
        data = lines(store)
        later = datetime.now(UTC) + timedelta(days=31)
        assert store.sweep(RetentionPolicy(days=30), now=later).purged_count == 70
        assert entries(store) == 70
        assert loaded(store, data).purged == 70
        assert {found.reason for found in ledger.find(store.engine, ids).values()} == {"retention-expired"}
        person = store.ensure("ada/1")
        store.purge_matching(key_prefix="ada/", reason="user-requested")
        assert ledger.find(store.engine, [parse_conversation_id(person.id)])

    def test_one_that_came_back_on_purpose_and_is_purged_again_has_both_marks(self, store: Store) -> None:
        talk = said(store)
        data, id = lines(store), parse_conversation_id(talk.id)
        store.purge(talk.id, reason="user-requested")
        loaded(store, data, even_purged=True)
        store.purge(talk.id, reason="privacy-policy-change")
        found = ledger.find(store.engine, [id])[id]
        assert (len(set(found.marks)), found.reason) == (2, "privacy-policy-change")
        assert loaded(store, data).purged == 1

    def test_an_entry_is_no_conversation(self, store: Store, open_store: Callable[[], Store]) -> None:
        talk = said(store)
        heard: list[object] = []
        store.subscribe(heard.append)
        store.purge(talk.id, reason="user-requested")
        assert store.wait_for_listeners()
        assert [type(event).__name__ for event in heard] == ["ConversationDeleted", "PurgeCompleted"]
        assert (store.stats().conversations, len(list(store.conversations())), entries(store)) == (0, 0, 1)
        assert store.verify().conversations == 0
        other = open_store()
        assert entries(other) == 1

    def test_what_is_in_the_ledger_and_came_back_is_purged_again(self, store: Store) -> None:
        """As after a restore: the ledger knows a conversation that is there."""
        back, stays = [said(store) for _ in range(70)], said(store)
        back[0].hold()
        known = {
            ledger.entry_id(store.engine, talk.state.id): Erasure(
                (ledger.mark_of(store.engine, talk.state.row),), 1, "user-requested", Actor("dpo")
            )
            for talk in back
        }
        report = replaying.replay(store.engine, known, None)
        assert (report.purge.purged_count, report.entries, report.added) == (70, 70, 70)
        assert [info.id for info in store.conversations()] == [stays.id]
        again = replaying.replay(store.engine, known, None)
        assert (again.purge.purged_count, again.added) == (0, 0)
        assert {entry.actor for _, entry in replaying.all_entries(store.engine)} == {Actor("dpo")}

    def test_nothing_is_destroyed_below_the_floor_unless_it_is_overridden(self, store: Store) -> None:
        talk = said(store)
        store.set_retention_floor(1)
        with pytest.raises(BelowFloor):
            store.purge(talk.id, reason="user-requested")
        later = datetime.now(UTC) + timedelta(days=31)
        assert dict(store.sweep(RetentionPolicy(days=30), now=later).skipped) == {talk.id: "floor"}
        with acting("dpo", why="request 4711", override_floor=True):
            report = store.purge(talk.id, reason="user-requested")
        assert report.actor == Actor("dpo", "request 4711", override_floor=True)
