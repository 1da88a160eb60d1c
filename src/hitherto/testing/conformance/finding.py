"""The contract of getting, listing and filtering conversations and messages.

Ids, short beginnings of ids, names, pages and metadata find the same things on every backend.
"""

import pytest

from ... import threads
from ...errors import (
    AlreadyExists,
    Ambiguous,
    InvalidArgument,
    InvalidCursor,
    InvalidMessage,
    NotFound,
)
from ...model import Message, Saved
from ...store import Store
from .stores import (
    fill,
    texts,
)


class FindContract:
    """Conversations and messages by id, name, page and metadata."""

    def test_ensure_gets_or_starts(self, store: Store) -> None:
        one = store.ensure("user-42", title="first", metadata={"a": "b"})
        one.append(Message.user("x"))
        two = store.ensure("user-42", title="ignored")
        assert (two.id, two.title, two.key, two.at) == (one.id, "first", "user-42", one.at)
        assert store.ensure("user-43").id != one.id
        assert store.conversations(total=True).total == 2

    def test_an_id_of_the_callers_choice_is_taken_once(self, store: Store) -> None:
        id = "6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10"
        talk = store.start(id=id)
        talk.append(Message.user("mine"))
        assert talk.id == id
        with pytest.raises(AlreadyExists):
            store.start(id=id)
        assert texts(store.conversation(id).thread()) == ["mine"]
        store.purge(id, reason="user-requested")
        again = store.start(id=id)
        assert again.thread() == []
        with pytest.raises(NotFound):
            talk.append(Message.user("below a message that is gone"))

    def test_unique_beginnings_are_enough(self, store: Store) -> None:
        """C4: exact message id, then a unique prefix over messages and conversations."""
        one = store.start(id="6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10")
        two = store.start(id="6f1d0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10")
        message = one.append(Message.user("x"))
        assert store.conversation("6f1c0d8e").id == one.id
        assert store.conversation("6f1d0d8e-2b5a-4").id == two.id
        assert store.conversation(message.id).at == message.id
        assert store.conversation(message.id[:5]).at == message.id
        assert store.conversation(message.id[:4]).id == one.id
        with pytest.raises(Ambiguous) as caught:
            store.conversation("6f1")
        assert one.id in caught.value.candidates
        with pytest.raises(NotFound):
            store.conversation("0000")
        with pytest.raises(NotFound):
            store.conversation("6f1e0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10")

    def test_short_beginnings_of_messages_are_found_or_ambiguous(self, store: Store) -> None:
        talk = store.start(id="00000000-0000-4000-8000-000000000000")
        ids = [m.id for m in fill(talk, 30)]
        for length in (1, 2, 3):
            for id in ids[:10]:
                same = [i for i in ids if i.startswith(id[:length])]
                if len(same) == 1:
                    assert store.conversation(id[:length]).at == id
                else:
                    with pytest.raises(Ambiguous):
                        store.conversation(id[:length])

    def test_listings_page_by_last_activity(self, store: Store) -> None:
        """D2: and a cursor outlives the conversation it was taken at."""
        talks = [store.start(title=f"t{n}") for n in range(9)]
        talks[2].append(Message.user("makes it the newest"))
        wanted = [talks[2].id, *(talks[n].id for n in (8, 7, 6, 5, 4, 3, 1, 0))]
        first = store.conversations(limit=4, total=True)
        assert [c.id for c in first] == wanted[:4]
        assert len(first) == 4
        assert first.total == 9
        assert first.items[1].title == "t8"
        store.purge(store.conversation(first.items[-1].id), reason="user-requested")
        second = store.conversations(limit=4, cursor=first.next_cursor)
        third = store.conversations(limit=4, cursor=second.next_cursor)
        assert [c.id for c in second.items + third.items] == wanted[4:]
        assert third.next_cursor is None
        with pytest.raises(InvalidCursor):
            store.conversations(cursor="garbage!")

    def test_projects_have_their_own_listing(self, store: Store) -> None:
        mine = store.start(project="/projects/mine")
        store.start(project="/projects/other")
        store.start()
        assert [c.id for c in store.conversations(project="/projects/mine/").items] == [mine.id]
        latest = store.latest(project="/projects/mine")
        assert latest is not None
        assert (latest.id, latest.project) == (mine.id, "/projects/mine")
        assert store.latest(project="/nowhere") is None

    def test_conversations_are_found_by_their_metadata(self, store: Store) -> None:
        """D6: all pairs that are given must be there."""
        ada = store.start(title="one", metadata={"owner": "ada", "team": "red"})
        store.ensure("two", title="two", metadata={"owner": "ada", "team": "blue"}, project="/p")
        store.start(title="three", metadata={"owner": "bob", "team": "red"})
        store.start(title="four")

        def found(project: str | None = None, **metadata: str) -> list[str]:
            page = store.conversations(metadata=metadata, project=project, total=True)
            assert page.total == len(page)
            return [info.title for info in page]

        assert found(owner="ada") == ["two", "one"]
        assert found(owner="ada", team="red") == ["one"]
        assert found(owner="ada", team="green") == found(owner="Ada") == found(ada="owner") == []
        assert found("/p", owner="ada") == ["two"]
        assert found("/p", owner="bob") == []
        assert found() == ["four", "three", "two", "one"]
        ada.append(Message.user("makes it the newest"))
        assert found(owner="ada") == ["one", "two"]
        ada.describe({"owner": "bob", "team": "red"})
        assert (found(owner="ada"), found(owner="bob", team="red")) == (["two"], ["one", "three"])
        ada.rename("renamed")
        assert found(owner="bob", team="red") == ["renamed", "three"]
        alone = ada.detach()
        assert found(owner="bob") == ["renamed", "renamed", "three"]
        store.purge(alone, reason="user-requested")
        ada.describe({})
        assert (found(owner="bob"), found(team="red")) == (["three"], ["three"])

    def test_pairs_of_metadata_are_not_taken_for_one_another(self, store: Store) -> None:
        """The pairs contain other pairs, text that looks like our own tags, nothing, or much text."""
        pairs = [
            ("a", "b=c"), ("a=b", "c"), ("", ""), ("", "x"), ("x", ""), ("a", '","'), ('a","', ""), ("ü", "\0\n"),
            ("project", "/p"), ("a", "y" * 100_000), ("a", "y" * 99_999 + "z"), ("a", "y" * 300), ("a", "b"),
        ]  # fmt: skip
        talks = [store.start(metadata={key: value}, project="/p") for key, value in pairs]
        for talk, (key, value) in zip(talks, pairs, strict=True):
            assert [info.id for info in store.conversations(metadata={key: value})] == [talk.id]
        every = store.start(metadata={"a": "b", "x": "", "ü": "\0\n"})
        assert [info.id for info in store.conversations(metadata={"ü": "\0\n", "a": "b", "x": ""})] == [every.id]

    def test_a_listing_by_metadata_goes_on_from_its_cursor(self, store: Store) -> None:
        talks = [store.start(metadata={"n": str(n % 2), "all": "yes"}) for n in range(9)]
        wanted = [talk.id for talk in reversed(talks[::2])]
        cursor, seen = None, []
        while True:
            page = store.conversations(metadata={"n": "0", "all": "yes"}, limit=2, cursor=cursor, total=True)
            assert page.total == 5
            seen += [info.id for info in page]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == wanted

    def test_a_wrong_filter_is_refused(self, store: Store) -> None:
        store.start(metadata={"a": "b"})
        for wrong in ("a=b", ["a"], {"a": 1}, {1: "a"}, {"a": None}):
            with pytest.raises(InvalidMessage):
                store.conversations(metadata=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            store.conversations(metadata={"a": "\ud800"})
        with pytest.raises(InvalidArgument):
            store.conversations(metadata={str(n): "" for n in range(33)})

    def test_messages_are_listed_across_conversations(self, store: Store) -> None:
        """C8: newest first by default, lazily, with offset and cursor."""
        talks = [store.start() for _ in range(4)]
        for n in range(60):
            talks[(n * n + n // 7) % 4].append(Message.user(f"m{n}"))
        wanted = [f"m{n}" for n in range(60)]
        assert texts(list(store.messages(newest_first=False))) == wanted
        assert texts(list(store.messages())) == wanted[::-1]
        assert texts(list(store.messages(offset=57))) == wanted[:3][::-1]
        assert list(store.messages(offset=1000)) == []
        for newest_first in (True, False):
            listing = store.messages(newest_first=newest_first)
            begun = [next(listing).text for _ in range(10)]
            rest = texts(list(store.messages(newest_first=newest_first, cursor=listing.cursor)))
            assert begun + rest == (wanted[::-1] if newest_first else wanted)
        own = texts(list(store.messages(conversation=talks[1].id, newest_first=False)))
        assert own == texts(talks[1].thread())

    def test_get_gives_messages_in_the_order_asked_for(self, store: Store) -> None:
        """C5, C7."""
        talk = store.start()
        ids = [m.id for m in fill(talk, 3)]
        assert [m.id for m in store.get([ids[3], ids[0], ids[3]])] == [ids[3], ids[0], ids[3]]
        assert store.get([]) == []
        with pytest.raises(NotFound) as caught:
            store.get([ids[0], "zzzzzz", "yyyyyy"])
        assert caught.value.ids == ("zzzzzz", "yyyyyy")
        with pytest.raises(InvalidArgument):
            store.get(ids[0])

    def test_a_store_is_each_narrow_protocol(self, store: Store) -> None:
        """C5."""
        for protocol in (
            threads.MessageSaver,
            threads.MessageGetter,
            threads.MessageLister,
            threads.MessageDeleter,
        ):
            assert isinstance(store, protocol)

    def test_thread_works_over_anything_that_gets_messages(self, store: Store) -> None:
        """C7: the short way through a store and the long way through a getter agree."""
        talk = store.start()
        path = fill(talk, 20)

        class Getter:
            def get(self, ids: list[str]) -> list[Saved]:
                return store.get(ids)

        assert threads.thread(store, path[-1].id) == path
        assert threads.thread(Getter(), path[-1].id) == path  # type: ignore[arg-type]  # list instead of Iterable
