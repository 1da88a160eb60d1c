"""The contract of state beside the messages, and of changing what was said.

Items are compared and swapped, batches are written whole or not at all, and conversations of other kinds stay apart.
Messages are amended, popped, cleared and copied.
"""

import threading

import pytest

from ..._engine.items import MAX_NAME_BYTES
from ...conversation import Conversation
from ...errors import (
    AlreadyExists,
    Conflict,
    HasChildren,
    HithertoError,
    InvalidArgument,
    NotFound,
    PayloadTooLarge,
)
from ...model import Block, Message
from ...store import Store
from .stores import fill, pack_all


def _said(talk: Conversation) -> list[str]:
    """The texts of a thread."""
    return [message.text for message in talk.thread()]


class StateContract:
    """Items, batches, kinds; amending, popping, clearing, copying (E2)."""

    def test_an_item_is_what_was_put_last(self, store: Store) -> None:
        items = store.ensure("t").items
        assert items.get("a") is None
        assert "a" not in items
        first = items.put("a", b"one\x00")
        assert items["a"] == b"one\x00"
        second = items.put("a", b"")
        assert (items["a"], items.get("a")) == (b"", second)
        assert second.revision > first.revision
        del items["a"]
        assert items.get("a") is None
        with pytest.raises(NotFound):
            items["a"]
        with pytest.raises(NotFound):
            del items["a"]
        items.delete("a", missing_ok=True)

    def test_an_old_revision_is_a_conflict_also_after_a_removal(self, store: Store) -> None:
        items = store.ensure("t").items
        first = items.put("a", b"1", expect=None)
        with pytest.raises(Conflict) as caught:
            items.put("a", b"2", expect=None)
        assert (caught.value.expected, caught.value.head) == (None, first.revision)
        second = items.put("a", b"2", expect=first.revision)
        items.delete("a", expect=second.revision)
        third = items.put("a", b"3")
        assert third.revision > second.revision  # or somebody who still has an old one would be believed
        for old in (first.revision, second.revision):
            with pytest.raises(Conflict):
                items.put("a", b"4", expect=old)
            with pytest.raises(Conflict):
                items.delete("a", expect=old)
        assert items["a"] == b"3"

    def test_items_are_scanned_by_name_in_both_directions(self, store: Store) -> None:
        items = store.ensure("t").items
        names = ["a", "a/", "a/1", "a/1\x00", "a/10", "a/2", "a/\U0001f600", "a/ÿ", "b"]
        for name in reversed(names):
            items[name] = name.encode()
        by_bytes = sorted(names, key=str.encode)
        assert [item.name for item in items.scan()] == by_bytes
        below = [name for name in by_bytes if name.startswith("a/")]
        assert [item.value.decode() for item in items.scan("a/")] == below
        assert [item.name for item in items.scan("a/", reverse=True)] == below[::-1]
        assert [item.name for item in items.scan("a/", reverse=True, limit=2)] == below[::-1][:2]
        assert [item.name for item in items.scan("a/", after=below[1])] == below[2:]
        assert [item.name for item in items.scan("a/", after=below[1], reverse=True)] == [below[0]]
        assert list(items.scan("c")) == list(items.scan(limit=0)) == []
        assert items.get("a/1") == next(items.scan("a/1"))

    def test_a_scan_reads_beyond_one_page(self, store: Store) -> None:
        talk = store.ensure("t")
        with talk.batch() as batch:
            for n in range(150):
                batch.items[f"n/{n:03d}"] = b"%d" % n
        assert [int(item.value) for item in talk.items.scan("n/")] == list(range(150))
        assert [int(item.value) for item in talk.items.scan("n/", reverse=True)] == list(range(150))[::-1]

    def test_names_and_values_that_cannot_be_kept_are_refused(self, store: Store) -> None:
        items = store.ensure("t").items
        longest = "n" * MAX_NAME_BYTES
        items[longest] = b"1"
        assert items[longest] == b"1"
        for name in ("", "\ud800", longest + "n", 3):
            with pytest.raises(InvalidArgument):
                items.put(name, b"")  # type: ignore[arg-type]
        for value in ("text", None, {"a": 1}):
            with pytest.raises(InvalidArgument):
                items.put("a", value)  # type: ignore[arg-type]
        for expect in (-2, "1", 1.0, True):
            with pytest.raises(InvalidArgument):
                items.put("a", b"", expect=expect)  # type: ignore[arg-type]
        with pytest.raises(PayloadTooLarge):
            items.put("a", b"x" * (store.engine.max_write_bytes + 1))
        assert [item.name for item in items.scan()] == [longest]

    def test_threads_that_compare_and_swap_lose_no_count(self, store: Store) -> None:
        talk = store.ensure("t")
        talk.items["count"] = b"0"
        errors: list[BaseException] = []

        def count() -> None:
            items = store.find("t").items  # type: ignore[union-attr]
            try:
                for _ in range(5):
                    while True:
                        seen = items.get("count")
                        assert seen is not None
                        try:
                            items.put("count", b"%d" % (int(seen.value) + 1), expect=seen.revision)
                            break
                        except Conflict:
                            continue
            except BaseException as error:  # noqa: BLE001  # looked at below
                errors.append(error)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert talk.items["count"] == b"20"

    def test_the_workspace_has_items_of_its_own(self, store: Store) -> None:
        assert store.items.get("app:theme") is None
        assert list(store.items.scan()) == []
        store.items.delete("app:theme", missing_ok=True)
        assert store.stats().conversations == 0
        store.items.put("app:theme", b"dark", expect=None)
        assert store.items["app:theme"] == b"dark"
        assert store.ensure("t").items.get("app:theme") is None
        assert [talk.key for talk in store.conversations()] == ["t"]
        assert store.stats().conversations == 1

    def test_a_batch_is_written_whole_or_not_at_all(self, store: Store) -> None:
        talk = store.ensure("t")
        with talk.batch() as batch:
            batch.append(Message.user("hi"))
            batch.extend([Message.assistant("hello")])
            batch.items["state"] = b"1"
            assert not talk.thread()
            assert talk.items.get("state") is None
        assert [m.text for m in batch.saved] == _said(talk) == ["hi", "hello"]
        conflicting, broken, missing = talk.batch(), talk.batch(), talk.batch()
        for lost in (conflicting, broken, missing):
            lost.append(Message.user("lost"))
            lost.items["other"] = b"2"
        conflicting.items.put("state", b"2", expect=None)
        del missing.items["none"]
        with pytest.raises(Conflict):
            conflicting.write()
        with pytest.raises(NotFound):
            missing.write()
        with pytest.raises(KeyError), broken:
            raise KeyError
        assert _said(talk) == _said(store.conversation(talk.id)) == ["hi", "hello"]
        assert [(item.name, item.value) for item in talk.items.scan()] == [("state", b"1")]
        talk.append(Message.user("and on"))
        assert _said(talk) == ["hi", "hello", "and on"]

    def test_a_batch_of_known_messages_still_writes_its_items(self, store: Store) -> None:
        talk = store.ensure("t")
        for value in (b"1", b"2"):
            with talk.batch() as batch:
                batch.append(Message.user("hi", key="k"))
                batch.items["state"] = value
        assert _said(talk) == ["hi"]
        assert talk.items["state"] == b"2"
        with pytest.raises(InvalidArgument):
            batch.append(Message.user("late"))
        with talk.batch():
            pass

    def test_a_batch_follows_the_head_if_it_is_asked_to(self, store: Store) -> None:
        mine, other = store.ensure("t"), store.ensure("t")
        other.append(Message.user("first"))
        with mine.batch(on_conflict="follow") as batch:
            batch.append(Message.user("second"))
            batch.items["state"] = b"1"
        assert _said(mine) == ["first", "second"]
        late = other.batch(on_conflict="raise")
        late.append(Message.user("third"))
        late.items["state"] = b"2"
        with pytest.raises(Conflict):
            late.write()
        assert mine.items["state"] == b"1"

    def test_items_count_for_the_size_of_a_conversation(self, store: Store) -> None:
        talk = store.ensure("t")
        fill(talk, 3)
        before = store.stats().content_bytes
        talk.items["a"] = b"x" * 1000
        assert store.stats().content_bytes == before + 1000
        talk.items["a"] = b"x" * 10
        assert store.stats().content_bytes == before + 10
        del talk.items["a"]
        assert store.stats().content_bytes == before

    def test_a_conversation_is_found_by_its_key_and_not_made(self, store: Store) -> None:
        assert store.find("t") is None
        assert store.stats().conversations == 0
        made = store.ensure("t")
        found = store.find("t")
        assert found is not None
        assert found.id == made.id
        assert store.find("t", kind="langgraph") is None

    def test_conversations_of_other_kinds_are_listed_when_they_are_asked_for(self, store: Store) -> None:
        chat, thread = store.ensure("t"), store.ensure("t", kind="langgraph", metadata={"owner": "ada"})
        thread.append(Message.user("hello there"))
        assert chat.id != thread.id
        assert [talk.id for talk in store.conversations(total=True)] == [chat.id]
        page = store.conversations(kind="langgraph", metadata={"owner": "ada"}, total=True)
        assert ([talk.id for talk in page], [talk.kind for talk in page], page.total) == ([thread.id], ["langgraph"], 1)
        latest = store.latest()
        assert latest is not None
        assert latest.id == chat.id
        assert store.conversation(thread.id[:8]).id == thread.id
        assert store.search("there")[0].conversation == thread.id
        for kind in ("workspace", "items", "", "Chat", "a b", 3):
            with pytest.raises(InvalidArgument):
                store.ensure("t", kind=kind)  # type: ignore[arg-type]

    def test_conversations_are_listed_by_the_beginning_of_their_key(self, store: Store) -> None:
        keys = ["user-1", "user-10", "user-2", "use", "User-1", "user-\xff"]
        made = {key: store.ensure(key).id for key in keys}
        store.start(title="without a key")
        for prefix in ("user-", "user-1", "u", "user-\xff", "x"):
            wanted = {made[key] for key in keys if key.startswith(prefix)}
            page = store.conversations(key_prefix=prefix, total=True)
            assert ({talk.id for talk in page}, page.total) == (wanted, len(wanted))
        first = store.conversations(key_prefix="user-", limit=3)
        rest = store.conversations(key_prefix="user-", limit=3, cursor=first.next_cursor)
        assert [talk.key for talk in [*first, *rest]] == ["user-\xff", "user-2", "user-10", "user-1"]

    def test_messages_are_found_by_their_keys_in_order(self, store: Store) -> None:
        talk = store.ensure("t")
        talk.extend([Message.user(str(n), key=f"k{n}") for n in range(40)])
        pack_all(store)
        assert [m.text for m in talk.get(keys=["k39", "k2", "k2", "k17"])] == ["39", "2", "2", "17"]
        assert [m.text for m in talk.get(keys=["none", "k1"], missing_ok=True)] == ["1"]
        assert talk.get(keys=[]) == []
        with pytest.raises(NotFound) as caught:
            talk.get(keys=["k1", "none", "nobody"])
        assert caught.value.ids == ("none", "nobody")

    def test_the_last_messages_of_a_thread_are_read_alone(self, store: Store) -> None:
        talk = store.ensure("t")
        said = [Message("event" if n % 5 == 0 else "user", [Block.text(str(n))]) for n in range(100)]
        talk.extend(said)
        spoken = [m.text for m in said if m.role != "event"]
        for packed in (False, True):
            if packed:
                pack_all(store)
            for last in (0, 1, 3, 32, 33, 80, 1000):
                assert [m.text for m in talk.thread(last=last)] == (spoken[-last:] if last else [])
                both = talk.thread(last=last, events=True)
                assert [m.text for m in both] == ([m.text for m in said][-last:] if last else [])
        assert talk.thread(events=True) == talk.thread(last=100, events=True)
        with pytest.raises(InvalidArgument):
            talk.thread(last=-1)

    def test_an_amended_message_keeps_its_place(self, store: Store) -> None:
        talk = store.ensure("t")
        a, b = talk.extend([Message.user("needle", key="k", label="old"), Message.assistant("b")])
        for pack, word in ((False, "second"), (True, "third")):
            if pack:
                pack_all(store)
            amended = talk.amend(a.id, Message.user(word, label="new"))
            assert (amended.id, amended.seq, amended.created_at, amended.key) == (a.id, a.seq, a.created_at, "k")
            assert _said(talk) == [word, "b"]
            assert [m.id for m in talk.get(keys=["k"])] == [a.id]
            assert [m.text for m in store.messages(label="new")] == [word]
            assert list(store.messages(label="old")) == []
            assert [hit.message_id for hit in store.search(word)] == [a.id]
            assert not store.search("needle")
            assert store.verify().ok
        assert talk.amend(b, Message(role="user", blocks=[Block.text("c")])).role == "user"
        talk.append(Message.user("d"))
        assert _said(talk) == ["third", "c", "d"]
        with pytest.raises(InvalidArgument):
            talk.amend(a.id, Message.user("x", key="another"))
        with pytest.raises(InvalidArgument):
            talk.amend(store.ensure("other").append(Message.user("x")), Message.user("y"))
        with pytest.raises(HithertoError):
            talk.amend(a.id, "text")  # type: ignore[arg-type]

    def test_an_amended_message_lets_go_of_its_attachments(self, store: Store) -> None:
        talk = store.ensure("t")
        large, other = bytes(range(256)) * 400, bytes(range(256)) * 500
        a = talk.append(Message("user", [Block.image(large, "image/png")]))
        amended = talk.amend(a, Message("user", [Block.image(other, "image/png")]))
        assert amended.blocks[0].content == other
        assert talk.thread()[0].blocks[0].content == other
        talk.amend(a, Message.user("nothing large"))
        assert store.backend.attached(talk.state.id) == 0

    def test_pop_takes_the_leaf_and_stands_at_its_parent(self, store: Store) -> None:
        talk = store.ensure("t")
        a, b, c = talk.extend([Message.user("a"), Message.assistant("b"), Message.user("c")])
        assert talk.pop().id == c.id
        assert (_said(talk), talk.at, store.conversation(talk.id).at) == (["a", "b"], b.id, b.id)
        with pytest.raises(HasChildren):
            talk.fork(at=a.id).pop()
        talk.pop(), talk.pop()
        assert (talk.at, talk.head, _said(talk)) == (None, None, [])
        with pytest.raises(InvalidArgument):
            talk.pop()
        talk.append(Message.user("again"))
        assert _said(store.conversation(talk.id)) == ["again"]

    def test_clear_leaves_an_empty_conversation_of_the_same_key(self, store: Store) -> None:
        talk = store.ensure("t", title="Title", system_prompt="Be terse.", metadata={"owner": "ada"})
        a, _ = talk.extend([Message.user("a", key="k"), Message.assistant("b")])
        talk.fork(at=a.id).append(Message.assistant("another"))
        talk.items["state"] = b"1"
        talk.clear()
        assert (_said(talk), talk.at, talk.head, list(talk.items.scan())) == ([], None, None, [])
        found = store.find("t")
        assert found is not None
        assert (found.id, found.title, found.system_prompt) == (talk.id, "Title", "Be terse.")
        assert store.stats().content_bytes == 0
        talk.clear()
        talk.append(Message.user("a", key="k"))
        assert _said(store.conversation(talk.id)) == ["a"]

    def test_a_copy_has_every_branch_and_every_item(self, store: Store) -> None:
        talk = store.ensure("t", title="Title", system_prompt="Be terse.")
        a, _ = talk.extend([Message.user("a", key="k"), Message.assistant("b")])
        talk.fork(at=a.id).append(Message.assistant("another"))
        talk.items["state"] = b"1"
        copy = talk.copy_to("copy", kind="langgraph")
        assert (copy.key, copy.title, copy.system_prompt, copy.count) == ("copy", "Title", "Be terse.", 3)
        assert sorted(_said(copy.fork(at=leaf.id))[-1] for leaf in copy.branches()) == ["another", "b"]
        assert _said(copy) == ["a", "another"]
        assert [m.text for m in copy.get(keys=["k"])] == ["a"]
        state = copy.items.get("state")
        assert state is not None
        assert copy.items.put("state", b"2", expect=state.revision).revision > state.revision
        assert talk.items["state"] == b"1"
        with pytest.raises(AlreadyExists):
            talk.copy_to("copy", kind="langgraph")

    def test_a_purge_takes_items_and_kinds_along(self, store: Store) -> None:
        talk = store.ensure("t", kind="langgraph")
        talk.items["state"] = b"1"
        store.purge(talk, reason="user-requested")
        assert store.find("t", kind="langgraph") is None
        again = store.ensure("t", kind="langgraph")
        assert again.items.get("state") is None
        with pytest.raises(NotFound):
            talk.items.put("state", b"2")
