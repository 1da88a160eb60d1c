"""The contract of saving and deleting through the store.

It includes holds, purges, statistics and `verify`, which names damage and hides nothing else because of it.
"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ..._sealing import rotation
from ...backend import (
    DONE,
    Backend,
    Batch,
    Change,
    ConversationRow,
)
from ...errors import (
    Damaged,
    HasChildren,
    Held,
    NotFound,
)
from ...keys import Key
from ...model import Message
from ...reports import RotationReport
from ...store import Store
from .rows import (
    flip_bit,
)
from .stores import (
    fill,
    texts,
)


class DeleteContract:
    """Saving and deleting through the store."""

    def test_save_chains_messages_and_starts_conversations(self, store: Store) -> None:
        """C6."""
        ids = store.save([Message.user("a"), Message.assistant("b")])
        assert [m.parent for m in store.get(ids)] == [None, ids[0]]
        (third,) = store.save([Message.user("c")], parent=ids[0])
        (fourth,) = store.save([Message.user("d")], conversation=store.get(ids)[0].conversation)
        assert [m.parent for m in store.get([third, fourth])] == [ids[0], third]
        mixed = store.save([Message.user("e"), Message(role="user", parent=ids[1]), Message.user("f")], parent=ids[0])
        assert [m.parent for m in store.get(mixed)] == [ids[0], ids[1], mixed[1]]
        assert store.stats().conversations == 1

    def test_save_refuses_parents_elsewhere(self, store: Store) -> None:
        (one,) = store.save([Message.user("a")])
        (two,) = store.save([Message.user("b")])
        before = store.stats().messages
        with pytest.raises(NotFound):
            store.save([Message.user("c"), Message(role="user", parent=two)], parent=one)
        with pytest.raises(NotFound):
            store.save([Message.user("c")], parent="zzzzzz")
        with pytest.raises(NotFound):
            store.save([Message.user("c")], parent=one, conversation=store.message(two).conversation)
        assert store.stats().messages == before

    def test_delete_refuses_to_orphan(self, store: Store) -> None:
        """C9."""
        talk = store.start()
        path = fill(talk, 2)
        with pytest.raises(HasChildren):
            store.delete([path[1].id])
        with pytest.raises(HasChildren):
            store.delete([path[3].id, path[1].id])
        assert talk.thread() == path
        assert store.delete([path[3].id, path[2].id]) == [path[2].id, path[3].id]
        assert store.conversation(talk.id).thread() == path[:2]

    def test_a_message_that_two_delete_at_the_same_time_counts_once(
        self, store: Store, open_store: Callable[[], Store]
    ) -> None:
        talk = store.start()
        talk.extend([Message.user("first"), Message.user("second")])
        last = talk.append(Message.user("last"))
        other, fresh_row = open_store(), store.engine.read_row

        def late(conversation: bytes) -> ConversationRow:
            """Between the look whether it is there and the delete."""
            store.engine.read_row = fresh_row  # type: ignore[method-assign]
            assert other.delete([last]) == [last.id]
            return fresh_row(conversation)

        store.engine.read_row = late  # type: ignore[method-assign]
        with pytest.raises(NotFound):
            store.delete([last])
        again = open_store().conversation(talk.id)
        assert (again.count, texts(again.thread())) == (2, ["first", "second"])
        assert store.verify().problems == ()

    def test_a_rotation_that_overlooks_a_conversation_forgets_no_key(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is named, everything can be read, and the same call finishes it later."""
        talks = [store.start(title=f"{n}") for n in range(3)]
        for talk in talks:
            talk.append(Message.user(talk.title))
        key, inner = Key.generate(), rotation._Job._reencrypt

        def job() -> RotationReport:
            return store.seal(key) if store.key_id in (None, key.id) else store.rotate(key, reencrypt=True)

        def overlooks(self: rotation._Job, row: ConversationRow) -> bool:
            return False if row.id == talks[1].state.id else inner(self, row)

        with monkeypatch.context() as patched:
            patched.setattr(rotation._Job, "_reencrypt", overlooks)
            done = job()
        assert (done.complete, [id for id, _ in done.failures]) == (False, [talks[1].id])
        assert [texts(store.conversation(talk.id).thread()) for talk in talks] == [["0"], ["1"], ["2"]]
        assert job().complete
        assert [texts(store.conversation(talk.id).thread()) for talk in talks] == [["0"], ["1"], ["2"]]
        assert store.unseal().complete
        assert [texts(store.conversation(talk.id).thread()) for talk in talks] == [["0"], ["1"], ["2"]]

    def test_delete_takes_the_subtree_and_moves_the_head(self, store: Store) -> None:
        """C9, and PROTOCOL's rules for the head."""
        talk = store.start()
        path = fill(talk, 20)
        fork = talk.fork(at=path[30].id)
        fork.append(Message.user("fork"))
        gone = store.delete([path[10].id], recursive=True)
        assert len(gone) == 31
        again = store.conversation(talk.id)
        assert (again.at, again.count) == (path[9].id, 10)
        assert again.thread() == path[:10]
        with pytest.raises(NotFound):
            store.delete([path[10].id])
        assert store.delete([path[10].id], missing_ok=True) == []
        again.append(Message.user("goes on"))
        assert texts(again.thread())[-1] == "goes on"

    def test_a_head_without_a_parent_moves_to_the_newest_that_is_left(self, store: Store) -> None:
        ids = store.save([Message.user("root 1"), Message.user("child 1")])
        talk = store.conversation(store.message(ids[0]).conversation)
        for _ in range(2):
            talk.undo()
        second = talk.append(Message.user("root 2"))
        store.delete([second.id])
        assert store.conversation(talk.id).at == ids[1]
        store.delete([ids[0]], recursive=True)
        emptied = store.conversation(talk.id)
        assert (emptied.at, emptied.count) == (None, 0)
        assert emptied.append(Message.user("anew")).parent is None

    def test_an_id_is_never_given_to_another_message(self, store: Store) -> None:
        talk = store.start()
        seen: set[str] = set()
        for _ in range(40):
            saved = talk.append(Message.user("x"))
            assert saved.id not in seen
            seen.add(saved.id)
            store.delete([saved.id])
            talk = store.conversation(talk.id)

    def test_a_handle_on_a_deleted_message_says_so(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        other = store.conversation(talk.id)
        store.delete([path[3].id])
        for _ in range(2):
            with pytest.raises(NotFound):
                other.append(Message.user("below a ghost"))
        with pytest.raises(NotFound):
            other.thread()
        assert texts(list(store.messages(newest_first=False))) == ["q0", "a0", "q1"]
        assert other.append(Message.user("found again"), on_conflict="follow").parent == path[2].id

    def test_delete_takes_the_traces_of_subagents_along(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        trace = talk.subagent("review", "r", call=path[2].id)
        fill(trace, 1)
        with pytest.raises(HasChildren):
            store.delete([path[3].id, path[2].id])
        assert len(store.delete([path[2].id], recursive=True)) == 4
        assert list(store.messages(subagent="review")) == []
        assert store.conversation(talk.id).thread() == path[:2]

    def test_several_conversations_lose_messages_together_or_not_at_all(self, store: Store) -> None:
        one, two = store.start(), store.start()
        a, b = fill(one, 1), fill(two, 1)
        with pytest.raises(HasChildren):
            store.delete([a[1].id, b[0].id])
        assert store.stats().messages == 4
        store.delete([a[1].id, b[1].id])
        assert store.stats().messages == 2


class DescribeContract:
    """Titles, metadata, holds, purges, statistics and verification."""

    def test_titles_and_metadata_change(self, store: Store) -> None:
        talk = store.start(title="old")
        talk.rename("new")
        talk.describe({"a": "1"})
        again = store.conversation(talk.id)
        assert (again.title, again.metadata) == ("new", {"a": "1"})
        assert store.conversations().items[0].title == "new"

    def test_renaming_does_not_count_as_activity(self, store: Store) -> None:
        one = store.start()
        two = store.start()
        one.rename("renamed")
        assert [c.id for c in store.conversations().items] == [two.id, one.id]

    def test_a_hold_forbids_deleting(self, store: Store) -> None:
        talk = store.start()
        saved = talk.append(Message.user("evidence"))
        talk.hold()
        assert store.conversation(talk.id).held
        with pytest.raises(Held):
            store.delete([saved.id])
        with pytest.raises(Held):
            store.purge(talk, reason="user-requested")
        talk.append(Message.user("may go on"))
        talk.release()
        store.purge(talk, reason="user-requested")

    def test_a_purge_takes_everything_and_reports(self, store: Store, backend: Backend) -> None:
        talk, other = store.start(title="goes", project="/p"), store.start(title="stays")
        fill(talk, 20)
        kept = fill(other, 1)
        report = store.purge(talk, reason="user-requested")
        assert (report.reason, report.purged_count, report.failures, report.scrub_pending) == (
            "user-requested",
            1,
            (),
            False,
        )
        assert report.completed_at >= report.started_at
        with pytest.raises(NotFound):
            store.conversation(talk.id)
        with pytest.raises(NotFound):
            talk.append(Message.user("too late"))
        with pytest.raises(NotFound):
            store.purge(talk.id, reason="user-requested")
        assert other.thread() == kept
        assert [c.id for c in store.conversations().items] == [other.id]
        assert backend.items(bytes.fromhex(talk.id.replace("-", ""))) == []

    def test_stats_count_what_is_there(self, store: Store) -> None:
        assert store.stats().messages == 0
        fill(store.start(), 3)
        fill(store.start(), 2)
        stats = store.stats()
        assert (stats.conversations, stats.messages) == (2, 10)
        assert stats.stored_bytes > 0
        assert stats.newest is not None
        assert stats.oldest is not None
        assert stats.newest > stats.oldest

    def test_verify_is_content_with_a_busy_tree(self, store: Store) -> None:
        talk = store.start(system_prompt="s")
        path = fill(talk, 40)
        talk.fork(at=path[20].id).append(Message.user("fork", label="l"))
        talk.subagent("a", "b").append(Message.user("trace"))
        store.delete([path[60].id], recursive=True)
        talk.fork(at=path[59].id).extend([Message.user(str(n), key=str(n)) for n in range(40)])
        report = store.verify()
        assert report.problems == ()
        assert report.messages == talk.refresh().count

    def test_verify_names_what_is_wrong(self, store: Store, backend: Backend) -> None:
        """Each claim of the rows, made false on purpose, is noticed; and the rest is still listed."""
        talk = store.start(title="T")
        path = fill(talk, 3)
        sound = store.start(title="sound")
        fill(sound, 1)
        row = backend.lookup(ids=[bytes.fromhex(talk.id.replace("-", ""))])[0]
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # the fixture verifies every other store
        third = backend.messages(numbers=[store.engine.message_ids.number(path[2].id)])[0]
        broken = [
            Change(row.id, None, replace(row, count=row.count + 1)),
            Change(row.id, None, replace(row, size=row.size + 1)),
            Change(row.id, None, replace(row, head=12345)),
            Change(row.id, None, row, amend=(replace(third, body=flip_bit(third.body or b"")),)),
            Change(row.id, None, row, amend=(replace(third, size=third.size + 1),)),
            Change(row.id, None, row, amend=(replace(third, parent=None),)),
            Change(row.id, None, row, amend=(replace(third, parent=99),)),
            Change(row.id, None, row, amend=(replace(third, key=b"x"),)),
            Change(row.id, None, row, amend=(replace(third, link=77),)),
            Change(row.id, None, row, drop=(third.number,)),
        ]
        for change in broken:
            wrong = change.row or row
            assert backend.commit([Batch((replace(change, expect=row.token, row=wrong),))]) == [DONE]
            report = store.verify()
            assert not report.ok
            assert {problem.conversation for problem in report.problems} == {talk.id}
            add = (third,) if change.drop else ()
            fixed = Change(row.id, row.token, row, add=add, amend=() if add else (third,))
            assert backend.commit([Batch((fixed,))]) == [DONE]
        assert store.verify().ok

    def test_a_cycle_is_damage_and_not_a_loop(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 40)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        row = backend.lookup(ids=[bytes.fromhex(talk.id.replace("-", ""))])[0]
        root = backend.messages(numbers=[store.engine.message_ids.number(path[0].id)])[0]
        for ancestor in (path[-1], path[40], path[0]):
            bare = replace(
                root, parent=store.engine.message_ids.number(ancestor.id), revision=root.revision + 1, body=None
            )
            body = store.engine.codec.envelope(row).close_message(
                bare, store.engine.codec.envelope(row).open_messages([root])[0]
            )
            changed = Change(row.id, row.token, row, amend=(replace(bare, body=body),))
            assert backend.commit([Batch((changed,))]) == [DONE]
            with pytest.raises(Damaged):
                talk.thread()
            assert not store.verify().ok

    def test_a_damaged_message_is_listed_as_such_and_hides_no_other(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 2)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        row = backend.lookup(ids=[bytes.fromhex(talk.id.replace("-", ""))])[0]
        bad = backend.messages(numbers=[store.engine.message_ids.number(path[1].id)])[0]
        amend = (replace(bad, body=b"\x00" + (bad.body or b"")),)
        backend.commit([Batch((Change(row.id, row.token, row, amend=amend),))])
        listed = list(store.messages(newest_first=False))
        assert [m.id for m in listed] == [m.id for m in path]
        assert [m.problem is not None for m in listed] == [False, True, False, False]
        for read in (talk.thread, lambda: store.get([path[1].id]), lambda: store.message(path[1].id)):
            with pytest.raises(Damaged):
                read()
        assert store.get([path[0].id]) == [path[0]]
        assert {p.message for p in store.verify().problems} >= {path[1].id}
