"""The contract of appending and resuming, of forks, heads and conflicts.

Each test appends through one handle and reads through another.
"""

import threading
from collections.abc import Callable

import pytest

from ...backend import (
    Backend,
)
from ...errors import (
    Conflict,
    InvalidArgument,
    InvalidID,
    NotFound,
)
from ...model import Block, Message, Usage
from ...store import Store
from .stores import (
    fill,
    interrupt_commit,
    texts,
)


class AppendContract:
    """Appended messages come back, on every branch."""

    def test_a_conversation_is_resumed_as_it_was(self, open_store: Callable[[], Store]) -> None:
        """C1, C7: another handle, another store object, the same thread."""
        first = open_store()
        talk = first.start(
            title="Build", system_prompt="Be terse.", provider="openai", model="gpt-5", metadata={"k": "v"}
        )
        written = [talk.append(Message.user("Why?")), talk.append(Message.assistant("Because."))]
        second = open_store()
        again = second.conversation(talk.id)
        assert again.thread() == written
        assert (again.title, again.system_prompt, again.provider, again.model) == (
            "Build",
            "Be terse.",
            "openai",
            "gpt-5",
        )
        assert again.metadata == {"k": "v"}
        latest = second.latest()
        assert latest is not None
        assert (latest.id, latest.at, latest.head) == (talk.id, written[1].id, written[1].id)

    def test_everything_in_a_message_comes_back(self, store: Store) -> None:
        """C2, C3: text of any kind, bytes, extras, raw JSON, usage."""
        message = Message(
            role="assistant",
            blocks=(
                Block.text("nul\0 🎉 \u202eabc\u202c e\u0301 \ufeff \x1b[31m"),
                Block.text("x" * 100_000, cited=[1, {"a": None}]),
                Block.image(bytes(range(256)), "image/png"),
                Block.audio(b"", "audio/wav"),
                Block.video(b"\0", "video/mp4"),
                Block.thinking("hm", signature="abc=="),
                Block.tool_call("call_1", "read", {"path": "ü", "n": 2**63}),
                Block("metadata", "", extra={"deep": [[[]]], "f": 0.1, "t": True}),
            ),
            label="a label",
            extra={"id": "msg_1", "big": -(2**63)},
            raw={"type": "message", "content": [{"x": 1.5e300}], "bytes": b"\xff"},
            usage=Usage(input_tokens=3, output_tokens=4),
            privacy={"contains_secrets": False},
        )
        talk = store.start()
        saved = talk.append(message)
        (read,) = talk.thread()
        assert read == saved
        for name in message.__struct_fields__:
            assert getattr(read, name) == getattr(message, name), name
        assert read.blocks[6].tool_name == "read"
        assert read.blocks[6].arguments == {"path": "ü", "n": 2**63}
        assert read.created_at.tzinfo is not None

    def test_a_megabyte_line_and_an_empty_one_survive(self, store: Store) -> None:
        talk = store.start(title="\0 🎉")
        wanted = ["y" * 1_000_000, "", "\r\n\t"]
        for text in wanted:
            talk.append(Message.user(text))
        assert texts(talk.thread()) == wanted
        assert talk.title == "\0 🎉"

    def test_the_same_value_appended_twice_is_two_messages(self, store: Store) -> None:
        """C4: nothing is taken for a retry that is not one."""
        talk = store.start()
        message = Message.user("again")
        first, second = talk.append(message), talk.append(message)
        third = talk.append(second)
        assert len({first.id, second.id, third.id}) == 3
        assert texts(talk.thread()) == ["again"] * 3

    def test_the_same_key_in_one_conversation_is_the_same_message(self, store: Store) -> None:
        """C4: a caller that may repeat itself gives a key."""
        talk = store.start()
        first = talk.append(Message.user("one", key="k1"))
        assert talk.append(Message.user("one", key="k1")) == first
        assert talk.count == 1
        again = talk.extend(
            [Message.user("one", key="k1"), Message.user("two", key="k2"), Message.user("two", key="k2")]
        )
        assert [m.id for m in again[:1]] == [first.id]
        assert again[1].id == again[2].id
        assert texts(talk.thread()) == ["one", "two"]
        other = store.start()
        assert other.append(Message.user("one", key="k1")).id != first.id

    def test_ids_are_six_easy_characters_and_unique(self, store: Store) -> None:
        """C4."""
        talk = store.start()
        ids = [m.id for m in fill(talk, 60)]
        assert len(set(ids)) == 120
        assert all(len(id) == 6 and id.isascii() and id.isalnum() and not set(id) & set("0O1lI") for id in ids)

    def test_several_messages_are_one_transaction(self, store: Store) -> None:
        """C6: all or none, in order."""
        talk = store.start()
        saved = talk.extend([Message.user("a"), Message.assistant("b"), Message.user("c")])
        assert [m.parent for m in saved] == [None, saved[0].id, saved[1].id]
        assert [m.seq for m in saved] == [0, 1, 2]
        with pytest.raises(InvalidArgument):
            talk.extend([Message.user("fine"), Message(role="user", extra={"bad": {1}})])
        assert talk.refresh().count == 3
        assert talk.thread() == saved

    def test_the_clock_may_jump_and_the_order_stays(self, backend: Backend) -> None:
        times = iter([10**15, 10**15, 10**15 + 50, 10**15 - 10**12, 10**15 + 99] + [10**15 + 100] * 50)
        store = Store(backend, clock=lambda: next(times))
        talk = store.start()
        for n in range(3):
            talk.append(Message.user(str(n)))
        assert texts(talk.thread()) == ["0", "1", "2"]
        assert texts(list(store.messages(newest_first=False))) == ["0", "1", "2"]
        assert store.verify().ok

    def test_a_fork_shares_the_path_and_copies_nothing(self, store: Store) -> None:
        """A11 branching: no write until it appends."""
        talk = store.start()
        path = fill(talk, 40)
        other = talk.fork(at=path[50].id)
        assert talk.refresh().count == 80
        other.append(Message.user("another way"))
        assert other.thread()[:-1] == path[:51]
        assert talk.thread() == path
        assert talk.refresh().count == 81
        assert {b.id: b.depth for b in talk.branches()} == {path[-1].id: 80, other.at: 52}

    def test_forks_of_forks_find_their_way(self, store: Store) -> None:
        talk = store.start()
        fill(talk, 20)
        wanted = texts(talk.thread())
        for n in range(6):
            at = talk.thread()[len(wanted) // 2]
            wanted = [*wanted[: len(wanted) // 2 + 1], f"fork {n}"]
            talk = talk.fork(at=at.id)
            talk.append(Message.user(f"fork {n}"))
            assert texts(talk.thread()) == wanted
        assert len(talk.branches()) == 7

    def test_alternating_branches_grow_without_disturbing_each_other(self, store: Store) -> None:
        talk = store.start()
        root = talk.append(Message.user("root"))
        handles = [talk.fork(at=root.id) for _ in range(10)]
        for n in range(8):
            for i, handle in enumerate(handles):
                handle.append(Message.user(f"{i}.{n}"))
        for i, handle in enumerate(handles):
            assert texts(handle.thread()) == ["root", *(f"{i}.{n}" for n in range(8))]

    def test_the_head_is_the_newest_message_of_the_main_flow(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        fork = talk.fork(at=path[1].id)
        newest = fork.append(Message.user("newer"))
        assert store.conversation(talk.id).at == newest.id
        aside = talk.fork(at=path[1].id, main=False)
        side = aside.append(Message.user("aside"))
        assert not side.main
        assert store.conversation(talk.id).at == newest.id
        assert not aside.fork(at=side.id).append(Message.user("more")).main
        assert store.conversation(talk.id).head == newest.id

    def test_two_handles_branch_by_default(self, store: Store) -> None:
        """D19: no message of either side is lost."""
        talk = store.start()
        talk.append(Message.user("1"))
        a, b = store.conversation(talk.id), store.conversation(talk.id)
        a.append(Message.assistant("from a"))
        b.append(Message.assistant("from b"))
        assert texts(a.thread()) == ["1", "from a"]
        assert texts(b.thread()) == ["1", "from b"]
        assert len(talk.branches()) == 2

    def test_follow_goes_below_the_current_head(self, store: Store) -> None:
        """D19."""
        talk = store.start()
        a, b = store.conversation(talk.id), store.conversation(talk.id)
        for n in range(6):
            (a, b)[n % 2].append(Message.user(str(n)), on_conflict="follow")
        assert texts(store.conversation(talk.id).thread()) == list("012345")
        assert len(talk.branches()) == 1

    def test_a_stale_head_is_a_conflict_that_names_the_head(self, store: Store) -> None:
        """D19: and nothing is lost."""
        talk = store.start()
        first = talk.append(Message.user("1"))
        a, b = store.conversation(talk.id), store.conversation(talk.id)
        second = a.append(Message.assistant("from a"), expect_head=first.id)
        with pytest.raises(Conflict) as caught:
            b.append(Message.assistant("from b"), expect_head=first.id)
        assert (caught.value.head, caught.value.expected) == (second.id, first.id)
        with pytest.raises(Conflict):
            b.append(Message.assistant("from b"), on_conflict="raise")
        assert texts(list(store.messages())) == ["from a", "1"]
        assert texts(b.thread()) == ["1"]
        b.append(Message.assistant("from b"), expect_head=second.id)
        assert texts(b.thread()) == ["1", "from a", "from b"]

    def test_the_end_of_a_thread_is_replaced_if_nobody_added_to_it(self, store: Store) -> None:
        """D19: what was there becomes a branch, and a message that came meanwhile stays where people see it."""
        talk = store.start()
        said = talk.extend([Message.user("1"), Message.assistant("2"), Message.user("3")])
        mine = talk.fork(before=said[1])
        with pytest.raises(InvalidArgument):
            mine.append(Message.assistant("no head"), on_conflict="replace")
        with pytest.raises(Conflict) as caught:
            mine.append(Message.assistant("stale"), on_conflict="replace", expect_head=said[1])
        assert caught.value.head == said[2].id
        with mine.batch(on_conflict="replace", expect_head=said[2]) as batch:
            batch.extend([Message.assistant("2 otherwise"), Message.user("3 otherwise")])
            batch.items["state"] = b"1"
        assert texts(store.conversation(talk.id).thread()) == ["1", "2 otherwise", "3 otherwise"]
        assert texts(talk.thread()) == ["1", "2", "3"]
        assert len(talk.branches()) == 2
        first = talk.fork(before=said[0])
        first.append(Message.user("from the beginning"), on_conflict="replace", expect_head=mine.head)
        assert texts(store.conversation(talk.id).thread()) == ["from the beginning"]

    def test_a_handle_stands_at_no_message_that_is_still_on_its_way(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another thread looks while an append is being committed: it sees the message or it does not, and no error."""
        store = Store(backend)
        talk = store.start()
        talk.append(Message.user("there"))
        seen: list[list[str]] = []

        def look() -> None:
            seen.append(texts(store.conversation(talk.id).thread()))

        interrupt_commit(monkeypatch, backend, look)
        talk.append(Message.user("on its way"))
        assert seen == [["there"]]
        assert texts(talk.thread()) == ["there", "on its way"]

    def test_an_empty_conversation_can_be_expected_to_be_empty(self, store: Store) -> None:
        talk = store.start()
        other = store.conversation(talk.id)
        talk.append(Message.user("first"), on_conflict="raise")
        with pytest.raises(Conflict):
            other.append(Message.user("also first"), on_conflict="raise")

    def test_a_fork_elsewhere_is_not_found(self, store: Store) -> None:
        one, two = store.start(), store.start()
        there = two.append(Message.user("x"))
        for id in (there.id, "zzzzzz"):
            with pytest.raises(NotFound):
                one.fork(at=id)
        with pytest.raises(InvalidID):
            one.fork(at="../..")

    def test_a_message_can_be_said_differently(self, store: Store) -> None:
        """A fork before a message stands where it was said, even if it was the first."""
        talk = store.start()
        path = fill(talk, 2)
        again = talk.fork(before=path[0])
        assert again.at is None
        assert again.append(Message.user("q0, better")).parent is None
        later = talk.fork(before=path[2].id)
        assert later.at == path[1].id
        here = talk.fork()
        assert here.at == talk.at == path[3].id
        assert talk.fork(at=path[1]).at == path[1].id
        with pytest.raises(InvalidArgument):
            talk.fork(at=path[1], before=path[2])
        assert talk.follow().at == store.conversation(talk.id).at

    def test_undo_steps_back_one_turn_and_deletes_nothing(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 3)
        talk.append(Message.tool_result("c", "tool says"))
        stepped = talk.undo()
        assert texts(stepped) == ["q2", "a2", "tool says"]
        assert talk.at == path[3].id
        talk.append(Message.user("instead"))
        assert texts(talk.thread()) == ["q0", "a0", "q1", "a1", "instead"]
        assert talk.count == 8
        for _ in range(3):
            talk.undo()
        assert talk.thread() == []
        with pytest.raises(InvalidArgument):
            talk.undo()

    def test_what_was_undone_stays_undone_when_the_conversation_is_opened_again(
        self, open_store: Callable[[], Store]
    ) -> None:
        first = open_store()
        talk = first.start()
        path = fill(talk, 2)
        talk.undo()
        assert talk.head == talk.at == path[1].id
        again = open_store()
        found = again.conversation(talk.id)
        assert (found.at, found.head, texts(found.thread())) == (path[1].id, path[1].id, ["q0", "a0"])
        assert [(info.head, info.count) for info in again.conversations()] == [(path[1].id, 4)]
        found.append(Message.user("instead"))
        latest = open_store().latest()
        assert latest is not None
        assert texts(latest.thread()) == ["q0", "a0", "instead"]
        back = found.fork(at=path[3])  # nothing is deleted
        back.append(Message.user("after all"))
        assert texts(open_store().conversation(talk.id).thread()) == ["q0", "a0", "q1", "a1", "after all"]
        assert open_store().verify().ok

    def test_a_conversation_whose_turns_are_all_undone_begins_anew(self, open_store: Callable[[], Store]) -> None:
        first = open_store()
        talk = first.start(title="Build", system_prompt="Be terse.")
        fill(talk, 1)
        talk.undo()
        second = open_store()
        latest = second.latest()
        assert latest is not None
        assert (latest.id, latest.at, latest.thread(), latest.count) == (talk.id, None, [], 2)
        assert latest.system_prompt == "Be terse."
        assert second.verify().ok
        latest.append(Message.user("instead"))
        assert texts(open_store().conversation(talk.id).thread()) == ["instead"]

    def test_undo_moves_the_head_only_if_it_takes_it_back(self, open_store: Callable[[], Store]) -> None:
        """The head stays where others put it, and no handle beside the main flow moves it."""
        store = open_store()
        talk = store.start()
        path = fill(talk, 2)
        behind = store.conversation(talk.id)
        newest = talk.append(Message.user("more"))
        behind.undo()
        assert behind.at == path[1].id
        aside = talk.fork(main=False)
        aside.append(Message.user("aside"))
        aside.undo()
        assert talk.refresh().head == open_store().conversation(talk.id).head == newest.id
        trace = talk.subagent("reviewer", "run")
        trace.append(Message.user("Review"))
        trace.undo()
        assert talk.refresh().head == newest.id

    def test_of_two_that_undo_the_same_turn_one_moves_the_head(self, store: Store) -> None:
        """Two undo the same turn: the second one finds the head moved already, and leaves it."""
        talk = store.start()
        path = fill(talk, 2)
        other = store.conversation(talk.id)
        talk.undo()
        other.undo()
        assert other.at == talk.at == path[1].id
        talk.undo()
        assert [talk.at, talk.refresh().head] == [None, None]
        other.append(Message.user("from there"), on_conflict="branch")
        assert texts(store.conversation(talk.id).thread()) == ["q0", "a0", "from there"]

    def test_undo_works_on_hold(self, store: Store) -> None:
        talk = store.start()
        fill(talk, 1)
        talk.hold()
        talk.undo()
        assert store.conversation(talk.id).at is None

    def test_threads_on_one_handle_make_one_chain(self, store: Store) -> None:
        talk = store.start()

        def work(name: int) -> None:
            for n in range(5):
                talk.append(Message.user(f"{name}.{n}"))

        workers = [threading.Thread(target=work, args=(name,)) for name in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found = texts(store.conversation(talk.id).thread())
        assert sorted(found) == sorted(f"{name}.{n}" for name in range(5) for n in range(5))
        for name in range(5):
            assert [t for t in found if t.startswith(f"{name}.")] == [f"{name}.{n}" for n in range(5)]
