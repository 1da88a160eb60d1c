"""The contract of threads as a whole.

Threads are compacted, compared, detached, configured and labelled. Partial answers are kept beside them and offered.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from ... import threads
from ..._engine import recovery
from ..._sealing.codec import next_row
from ...backend import (
    Backend,
    Change,
    ConversationRow,
    ItemRow,
)
from ...errors import (
    InvalidArgument,
    NotFound,
)
from ...ids import RUN
from ...model import Block, Message, Saved, Usage
from ...store import Store
from .stores import (
    fill,
    texts,
)


class ThreadContract:
    """Threads as a whole: compacted, compared, detached, configured and labelled."""

    def test_a_compaction_is_a_new_root_that_remembers_what_it_sums_up(self, store: Store) -> None:
        """C18: the old branch stays, thread(full=True) crosses the link, and everything goes on from the summary."""
        talk = store.start(system_prompt="s")
        path = fill(talk, 5)
        root = talk.compact("the gist")
        assert (root.parent, root.link, root.main, root.label) == (None, path[-1].id, True, "compaction")
        talk.append(Message.user("and now?"))
        assert texts(talk.thread()) == ["the gist", "and now?"]
        assert texts(talk.thread(full=True)) == [*texts(path), "the gist", "and now?"]
        again = store.conversation(talk.id)
        assert (again.thread(), again.system_prompt) == (talk.thread(), "s")
        second = talk.compact(lambda thread: Message.user(f"{len(thread)} messages, summed up"))
        assert second.text == "2 messages, summed up"
        assert len(talk.thread(full=True)) == 13
        assert {b.id for b in talk.branches()} == {path[-1].id, again.at, second.id}

    def test_undo_goes_back_over_a_compaction(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        talk.compact("gist")
        assert texts(talk.undo()) == ["gist"]
        assert talk.thread() == path

    def test_what_was_deleted_cannot_be_detached(self, store: Store) -> None:
        talk = store.start()
        talk.append(Message.user("stays"))
        other = store.conversation(talk.id)
        gone = other.append(Message.user("goes"))
        store.delete([gone])
        with pytest.raises(NotFound):
            other.detach()
        assert store.stats().conversations == 1
        assert texts(talk.detach().thread()) == ["stays"]

    def test_a_compaction_that_fails_leaves_everything_as_it_was(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)

        def fails(_: list[Saved]) -> str:
            raise RuntimeError("the model is out")

        with pytest.raises(RuntimeError):
            talk.compact(fails)
        assert (talk.thread(), talk.refresh().count) == (path, 4)
        with pytest.raises(InvalidArgument):
            store.start().compact("nothing yet")

    def test_a_compaction_survives_what_it_summed_up(self, store: Store) -> None:
        """Recursive delete clears compaction links."""
        talk = store.start()
        path = fill(talk, 3)
        root = talk.compact("gist")
        store.delete([path[2].id], recursive=True)
        assert store.message(root.id).link is None
        assert texts(talk.thread(full=True)) == ["gist"]

    def test_threads_are_compared_from_the_root_on(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 4)
        other = talk.fork(at=path[3].id)
        own = other.append(Message.user("differently"))
        found = threads.compare(talk, other)
        assert (found.shared, found.left, found.right) == (path[:4], path[4:], [own])
        assert found.fork == path[3].id
        assert threads.compare(talk, talk).left == []
        assert threads.compare(talk, store.start()).fork is None
        alone = other.detach()
        assert len(threads.compare(talk, alone).shared) == 4

    def test_a_detached_thread_has_a_life_of_its_own(self, store: Store, backend: Backend) -> None:
        talk = store.start(title="T", system_prompt="one", metadata={"a": "b"}, project="/p")
        path = fill(talk, 20)
        talk.configure(system_prompt="two")
        fork = talk.fork(at=path[30].id)
        fork.append(Message.assistant("fork", label="good", usage=Usage(1, 2)))
        alone = fork.detach(title="alone")
        assert alone.id != talk.id
        assert texts(alone.thread()) == texts(fork.thread())
        assert not {m.id for m in alone.thread()} & {m.id for m in fork.thread()}
        assert (alone.title, alone.metadata, alone.project, alone.count) == ("alone", {"a": "b"}, "/p", 32)
        assert alone.thread()[-1].usage == Usage(1, 2)
        assert alone.thread()[0].origin == f"{talk.id}/{path[0].id}"
        assert alone.system_prompt == "one"
        rows = backend.lookup(ids=[bytes.fromhex(c.id.replace("-", "")) for c in (talk, alone)])
        assert rows[0].data_key != rows[1].data_key or not rows[0].data_key
        store.purge(talk, reason="user-requested")
        assert texts(alone.thread()) == [*texts(path[:31]), "fork"]
        assert texts(store.conversation(alone.id).detach().thread()) == texts(alone.thread())

    def test_detaching_takes_along_what_a_compaction_sums_up(self, store: Store) -> None:
        talk = store.start()
        fill(talk, 2)
        talk.compact("gist")
        fill(talk, 1)
        alone = talk.detach()
        assert texts(alone.thread()) == texts(talk.thread())
        assert texts(alone.thread(full=True)) == texts(talk.thread(full=True))

    def test_an_empty_or_deleted_thread_cannot_be_mistaken(self, store: Store) -> None:
        talk = store.start(title="empty")
        assert (talk.detach().thread(), talk.detach().title) == ([], "empty")
        saved = talk.append(Message.user("x"))
        handle = store.conversation(talk.id)
        store.delete([saved.id])
        for attempt in (handle.detach, lambda: handle.compact("gist")):
            with pytest.raises(NotFound):
                attempt()

    def test_each_message_keeps_the_setup_it_was_made_with(self, store: Store) -> None:
        talk = store.start(system_prompt="one", provider="openai", model="m1")
        first = talk.append(Message.user("x"))
        talk.configure(system_prompt="two", tools=[{"name": "read", "parameters": {}}])
        assert store.conversation(talk.id).system_prompt == "two"
        second = talk.append(Message.user("y"))
        assert (talk.system_prompt, talk.provider) == ("two", "openai")
        assert talk.fork(at=first.id).system_prompt == "one"
        assert talk.fork(at=second.id).tools == [{"name": "read", "parameters": {}}]
        older = talk.fork(at=first.id)
        older.append(Message.user("z"))
        again = store.conversation(talk.id)
        assert (again.at, again.system_prompt) == (older.at, "one")
        again.configure(model="m3")
        assert (again.system_prompt, again.model) == ("one", "m3")

    def test_the_only_setup_is_told_at_the_root_of_each_thread(self, store: Store) -> None:
        talk = store.start(model="small")
        talk.extend([Message.user(str(n)) for n in range(RUN + 3)])
        first = talk.thread()[0].id
        fork = talk.fork(talk.thread()[RUN].id)
        fork.append(Message.user("elsewhere"))
        summary = talk.compact(Message.user("in short"))
        found = [(change.message_id, change.setup.model) for one in (fork, talk) for change in one.setups()]
        assert found == [(first, "small"), (summary.id, "small")]

    def test_a_first_setup_does_not_reach_back(self, store: Store) -> None:
        talk = store.start()
        first = talk.append(Message.user("x"))
        talk.configure(model="m")
        assert (talk.fork(at=first).model, talk.model, talk.fork().model) == ("", "m", "m")
        assert store.conversation(talk.id).model == "m"
        assert (talk.detach().model, talk.fork(before=first).model) == ("m", "")
        second = talk.append(Message.user("y"))
        assert (talk.fork(before=second).model, talk.fork(before=second).at) == ("m", first.id)

    def test_a_side_flow_is_configured_by_itself(self, store: Store) -> None:
        talk = store.start(system_prompt="main")
        talk.append(Message.user("x"))
        side = talk.subagent("critic", "1")
        side.configure(system_prompt="critic")
        said = side.append(Message.user("y"))
        assert (side.system_prompt, talk.system_prompt) == ("critic", "main")
        assert store.conversation(talk.id).system_prompt == "main"
        assert store.conversation(said.id).system_prompt == "critic"
        keywords: list[dict[str, Any]] = [{"on_conflict": "follow"}, {"on_conflict": "raise"}, {"expect_head": said}]
        for wrong in keywords:
            with pytest.raises(InvalidArgument):
                side.append(Message.user("z"), **wrong)
        assert texts(side.detach().thread()) == ["y"]

    def test_saving_keeps_the_setup_in_force(self, store: Store) -> None:
        talk = store.start(system_prompt="one")
        first = talk.append(Message.user("x"))
        talk.configure(system_prompt="two")
        (second,) = store.save([Message.user("y")], conversation=talk)
        assert store.conversation(second).system_prompt == "two"
        (third,) = store.save([Message.user("z")], parent=first)
        assert store.conversation(third).system_prompt == "one"

    def test_a_subagent_has_a_root_of_its_own(self, store: Store) -> None:
        """C12: labelled, linked to its call, out of the main flow, found by name and by run."""
        talk = store.start()
        call = fill(talk, 1)[-1]
        traces = [talk.subagent("review", run) for run in ("r1", "r2")]
        for trace in traces:
            trace.append(Message.user("look at this"))
            trace.append(Message.assistant("looks fine"))
        head = talk.append(Message.user("go on"))
        assert texts(traces[0].thread()) == ["look at this", "looks fine"]
        root = traces[0].thread()[0]
        assert (root.parent, root.link, root.label, root.main) == (None, call.id, "subagent:review:r1", False)
        assert store.conversation(talk.id).at == head.id
        assert texts(store.conversation(talk.id).thread()) == ["q0", "a0", "go on"]
        by_run = list(store.messages(label="subagent:review:r2", newest_first=False))
        assert [m.id for m in by_run] == [m.id for m in traces[1].thread()]
        assert len(list(store.messages(subagent="review"))) == 4
        assert list(store.messages(subagent="other")) == []
        assert talk.fork(before=root).append(Message.user("asked differently")).label == "subagent:review:r1"
        again = store.conversation(traces[0].at or "")
        assert not again.append(Message.user("more")).main
        with pytest.raises(InvalidArgument):
            talk.subagent("a:b", "r")

    def test_a_trace_that_is_saved_stays_off_the_main_flow(self, store: Store) -> None:
        """C11, C12: by its label alone. One without a conversation gets one, which is not what anybody goes on with."""
        talk = store.start(title="main")
        call = fill(talk, 1)[-1]
        run = "subagent:review:r1"
        ids = store.save([Message.user("look", label=run), Message.assistant("fine", label=run)])
        assert [m.text for m in store.thread(ids[1])] == ["look", "fine"]
        assert [(m.main, m.link, m.label) for m in store.thread(ids[1])] == [(False, None, run)] * 2
        apart = store.conversation(store.message(ids[0]).conversation)
        assert (apart.head, apart.thread()) == (None, [])
        latest = store.latest()
        assert latest is not None
        assert latest.id == talk.id
        assert latest.append(Message.user("go on")).parent == call.id
        (more,) = store.save([Message.user("and this", label=run)], parent=ids[1])
        assert store.message(more).parent == ids[1]
        assert len(list(store.messages(subagent="review"))) == 3
        latest = store.latest()
        assert latest is not None
        assert latest.id == talk.id

    def test_a_trace_saved_into_a_conversation_is_linked_to_what_it_would_have_gone_below(self, store: Store) -> None:
        """C12: to the head, or to the message that is given as its parent."""
        talk = store.start()
        first, call = fill(talk, 1)
        (a,) = store.save([Message.user("one", label="subagent:a:1")], conversation=talk)
        (b,) = store.save([Message.user("two", label="subagent:b:1")], parent=first)
        (c,) = store.save([Message("user", (Block.text("three"),), label="subagent:c:1", parent=call.id)])
        (nested,) = store.save([Message.user("four", label="subagent:d:1")], parent=a)
        saved = {m.id: m for m in store.get([a, b, c, nested])}
        assert [saved[id].link for id in (a, b, c, nested)] == [call.id, first.id, call.id, a]
        assert all(m.parent is None and not m.main for m in saved.values())
        assert store.conversation(talk.id).head == call.id
        (below,) = store.save([Message.user("no label")], parent=a)
        assert (store.message(below).parent, store.message(below).main) == (a, False)
        assert store.conversation(talk.id).head == call.id

    def test_traces_and_the_main_flow_are_saved_together(self, store: Store) -> None:
        """C6, C12: each message goes below the one before it in its flow."""
        one, two = "subagent:a:1", "subagent:b:1"

        def said(text: str, label: str | None = None) -> Message:
            return Message.user(text, label=label)

        asked = [said("q"), said("a1", one), said("b1", two), said("a2", one), said("r"), said("b2", two), said("s")]
        for conversation in (None, store.start()):
            before = None
            if conversation is not None:
                before = conversation.append(Message.user("before")).id
            q, a1, b1, a2, r, b2, s = store.get(store.save(asked, conversation=conversation))
            assert [m.parent for m in (q, a1, b1, a2, r, b2, s)] == [before, None, None, a1.id, q.id, b1.id, r.id]
            assert [m.link for m in (q, a1, b1, a2, r, b2, s)] == [None, q.id, a1.id, None, None, None, None]
            assert [m.main for m in (q, a1, b1, a2, r, b2, s)] == [True, False, False, False, True, False, True]
            assert store.conversation(q.conversation).head == s.id
        ahead = store.start()
        head = ahead.append(Message.user("head"))
        a1, q = store.get(store.save([said("a1", one), said("q")], conversation=ahead))
        assert (a1.link, q.parent) == (head.id, head.id)

    def test_labels_are_set_changed_and_removed(self, store: Store) -> None:
        talk = store.start()
        first, second = talk.extend([Message.user("a", label="start"), Message.user("b")])
        assert [m.id for m in store.messages(label="start")] == [first.id]
        talk.label("good", message=first.id)
        talk.label("here")
        assert list(store.messages(label="start")) == []
        assert store.message(first.id).label == "good"
        assert store.message(first.id).revision == 1
        assert [m.id for m in store.messages(label="here")] == [second.id]
        talk.label(None, message=first.id)
        assert list(store.messages(label="good")) == []
        assert {b.label for b in talk.branches()} == {"here"}

    def test_events_are_kept_but_not_part_of_the_thread(self, store: Store) -> None:
        talk = store.start()
        talk.extend([Message.user("a"), Message(role="event", blocks=[Block.text("model changed")]), Message.user("b")])
        assert texts(talk.thread()) == ["a", "b"]
        assert texts(list(store.messages(newest_first=False))) == ["a", "model changed", "b"]

    def test_usage_adds_up_along_the_thread(self, store: Store) -> None:
        """A11: token counts."""
        talk = store.start()
        talk.append(Message.user("four"))
        talk.append(Message.assistant("x" * 400, usage=Usage(input_tokens=10, output_tokens=100, cache_read_tokens=5)))
        talk.append(Message.assistant("y", usage=Usage(input_tokens=7)))
        usage = talk.usage()
        assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (17, 100, 5)
        assert (usage.messages, usage.total_tokens) == (3, 117)
        assert usage.approximate_tokens == 102
        assert store.conversations().items[0].approximate_tokens > 100

    def test_a_thread_tells_what_it_was_held_with(self, store: Store) -> None:
        talk = store.start(system_prompt="A", provider="openai", model="m")
        first = talk.append(Message.user("1"))
        talk.append(Message.assistant("2"))
        talk.configure(system_prompt="B", tools=[{"name": "look"}])
        third = talk.append(Message.user("3"))
        found = [(change.message_id, change.setup.system_prompt, len(change.setup.tools)) for change in talk.setups()]
        assert found == [(first.id, "A", 0), (third.id, "B", 1)]
        assert [change.message_id for change in talk.fork(at=first).setups()] == [first.id]
        assert store.start().setups() == []


class PartialContract:
    """Partial answers: kept beside the tree, offered and discarded."""

    def test_what_came_of_an_answer_is_kept_beside_the_tree_and_offered(
        self, store: Store, open_store: Callable[[], Store]
    ) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        key = recovery.new_key(store.engine.message_ids.number(asked.id))
        for text in ("Bec", "Because \x00 of"):
            raw = {"role": "assistant", "content": text}
            recovery.keep(talk.state, key, [Message.assistant(text, raw=raw, extra={"a": 1})])
        assert (talk.count, [m.text for m in talk.thread()]) == (1, ["Why?"])
        other = open_store().conversation(talk.id)
        (partial,) = other.partials()
        assert (partial.text, partial.parent) == ("Because \x00 of", asked.id)
        assert partial.messages[0].raw == {"role": "assistant", "content": "Because \x00 of"}
        (accepted,) = other.accept(partial)
        assert accepted.extra == {"a": 1, "interrupted": True}
        assert accepted.parent == asked.id
        assert (other.partials(), talk.partials()) == ([], [])
        assert store.verify().ok

    def test_what_came_of_an_answer_can_be_let_go_of(self, store: Store) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        keys = [recovery.new_key(store.engine.message_ids.number(asked.id)) for _ in range(2)]
        for key in keys:
            recovery.keep(talk.state, key, [Message.assistant("Because")])
        partials = talk.partials()
        assert len(partials) == 2
        talk.discard(partials[0])
        talk.discard(partials[0])  # gone is gone
        assert talk.partials() == [partials[1]]
        store.delete([asked])
        assert talk.partials() == []
        with pytest.raises(NotFound):  # and nothing comes back
            recovery.keep(talk.state, keys[0], [Message.assistant("Because")])
        assert store.verify().ok

    def test_what_cannot_be_read_of_an_answer_is_offered_to_be_let_go_of_and_hides_nothing(self, store: Store) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        good, torn = [recovery.new_key(store.engine.message_ids.number(asked.id)) for _ in range(2)]
        recovery.keep(talk.state, good, [Message.assistant("Because")])

        def tear(row: ConversationRow) -> Change:
            item = ItemRow(row.id, torn, 0, b"half of it")
            return Change(row.id, row.token, next_row(talk.state.check(row), row, (), ()), put=(item,))

        store.engine.change(talk.state.id, tear)
        readable, unreadable = store.conversation(talk.id).partials()
        assert (readable.text, readable.problem) == ("Because", None)
        assert unreadable.messages == ()
        assert unreadable.problem
        assert [m.text for m in talk.thread()] == ["Why?"]  # the tree is what there is
        assert not store.verify().ok
        talk.discard(unreadable)
        assert talk.partials() == [readable]
        assert store.verify().ok

    def test_an_offer_is_taken_where_it_belongs_and_takes_nothing_else(self, store: Store) -> None:
        talk = store.start(system_prompt="A")
        asked = talk.append(Message.user("Why?"))
        recovery.keep(
            talk.state, recovery.new_key(store.engine.message_ids.number(asked.id)), [Message.assistant("Because")]
        )
        (partial,) = talk.partials()
        talk.append(Message.assistant("Another answer"))
        with pytest.raises(InvalidArgument):
            talk.accept(partial)
        for wrong in (replace(partial, id="setup/000001"), "partial", None, replace(partial, id=5)):
            with pytest.raises(InvalidArgument):
                talk.discard(wrong)  # type: ignore[arg-type]
        assert talk.setup.system_prompt == "A"
        assert talk.fork(at=partial.parent).accept(partial)[0].text == "Because"

    def test_what_came_of_an_answer_survives_other_writers_and_is_purged_with_its_conversation(
        self, store: Store, open_store: Callable[[], Store], backend: Backend
    ) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        key = recovery.new_key(store.engine.message_ids.number(asked.id))
        other = open_store().conversation(talk.id)
        for n in range(5):
            other.append(Message.user(f"{n}"))
            recovery.keep(talk.state, key, [Message.assistant(f"Because {n}")])
            talk.append(Message.user(f"more {n}"))
        assert [partial.text for partial in other.partials()] == ["Because 4"]
        id = talk.state.id
        assert backend.items(id, b"partial/")
        store.purge(talk, reason="user-requested")
        assert backend.items(id, b"partial/") == []
