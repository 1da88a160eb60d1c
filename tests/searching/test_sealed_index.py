"""The text index of a sealed store: it finds what FTS5 finds, and what is kept of it is sealed, believed only as far as
it fits, and never outlives its messages.

Requirements: "Search" of the depth; sealing: no plaintext token on disk.
"""

import logging
import math
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto import Message, Store
from hitherto._engine.typed_items import item_place
from hitherto._search import sealed_index as wordindex
from hitherto._search import sealed_index_store as cache
from hitherto._search import segments
from hitherto._search.query import All, Either, Tree, parse
from hitherto._search.sealed_index import WordIndex
from hitherto._search.search import Search
from hitherto._search.segments import MOST_MESSAGES, Segment
from hitherto._search.segments import Message as Words
from hitherto.backend import Batch, Outcome, Where
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.sqlite import SqliteBackend
from hitherto.backends.sqlite.fts import FtsIndex
from hitherto.errors import Damaged, StorageError
from hitherto.testing.toys import Contrary, ToyCodec
from hitherto.textindex import Entry, Found, Known, TextIndex
from tests.support.parts import search_of

from ..support.thorough import examples

A, B = b"a" * 16, b"b" * 16


def update(index: TextIndex, **what: object) -> None:
    assert index.update(index.state()[0], **what) is not None  # type: ignore[arg-type]


# -- it finds what FTS5 finds

VOCABULARY = re.findall(
    r"\S+",
    "a a a b c apple app applepie pear straße STRASSE Ünïcode 東京 東京都 ม้า don't foo_bar x1 ﬁne 한국어를 привет й "
    "и́ ا\u064eب 😀 🫠 e\u0301 Ⅷ ½ ǅ Σίσυφος ς",
)
QUERIES = (
    "apple", "app*", "a b", '"a a"', '"a b"', '"a b c"', '"b app"*', "apple OR pear", "apple -pear", "a -(b OR c)",
    "東京", "東*", '"京都"', "straße", "foo_bar", "приве*", "e", "й", "fine", "Ⅷ", "σίσυφος", "a* b*", '"a a a"',
    "(a b) OR apple", "(a OR b) c", "d*", "b NOT (c OR apple)",
)  # fmt: skip
ENTRY = st.tuples(
    st.integers(0, 2),  # conversation
    st.integers(0, 2),  # how much later than the one before
    st.sampled_from(["user", "assistant"]),
    st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join),
)
FILTERS = st.fixed_dictionaries(
    {
        "role": st.sampled_from([None, "user"]),
        "conversations": st.sampled_from([None, [bytes([1]) * 16], []]),
        "since": st.sampled_from([None, 5]),
        "until": st.sampled_from([None, 12]),
    }
)


def fed(index: TextIndex, given: Sequence[tuple[int, int, str, str]], sizes: Sequence[int], dropped: set[int]) -> None:
    """In updates of these sizes, in the order of time; then some are dropped and some replaced."""
    time = 0
    entries: list[Entry] = []
    for number, (conversation, later, role, text) in enumerate(given):
        time += later
        entries.append(Entry(number, bytes([conversation]) * 16, 1, role, time, text))
    entries.sort(key=lambda e: (e.created_at, e.conversation, e.number))
    some = iter(entries)
    for size in [*sizes, len(entries)]:
        update(index, put=list(islice(some, size)))
    update(index, drop=sorted(dropped))
    again = [entry for entry in entries if entry.number % 5 == 3 and entry.number not in dropped]
    update(index, put=[Entry(e.number, e.conversation, 2, e.role, e.created_at, f"{e.text} a pear") for e in again])


def has_mixed_alternatives(tree: Tree) -> bool:
    """FTS5 may count a word of an alternative that does not fit, when it has come to its end there."""
    return isinstance(tree, Either) and any(isinstance(part, All) for part in tree.parts)


@settings(max_examples=examples(150))
@given(
    given=st.lists(ENTRY, max_size=40),
    sizes=st.lists(st.integers(1, 12), max_size=4),
    dropped=st.sets(st.integers(0, 39), max_size=5),
    filters=FILTERS,
    limit=st.sampled_from([1, 3, 1000]),
)
def test_it_finds_what_fts5_finds_in_the_same_order_and_with_the_same_scores(
    given: list[tuple[int, int, str, str]],
    sizes: list[int],
    dropped: set[int],
    filters: dict[str, object],
    limit: int,
) -> None:
    fts, words = FtsIndex(None, b"w" * 16), WordIndex()
    for index in (fts, words):
        fed(index, given, sizes, dropped)

    def find(index: TextIndex, query: str, limit: int, *, ranked: bool) -> list[Found]:
        return index.find(parse(query), limit=limit, ranked=ranked, **filters)  # type: ignore[arg-type]

    for query in QUERIES:
        assert find(words, query, limit, ranked=False) == find(fts, query, limit, ranked=False), query
        theirs = {found.number: found.score for found in find(fts, query, 1000, ranked=True)}
        ours = {found.number: found.score for found in find(words, query, 1000, ranked=True)}
        assert ours.keys() == theirs.keys(), query
        if not has_mixed_alternatives(parse(query).tree):
            assert all(math.isclose(ours[n], theirs[n], rel_tol=1e-9, abs_tol=1e-12) for n in ours), query
            best = [found.score for found in find(words, query, limit, ranked=True)]
            assert best == sorted(ours.values(), reverse=True)[:limit]
    for conversation in range(3):
        assert words.holds(bytes([conversation]) * 16) == fts.holds(bytes([conversation]) * 16)
    fts.close()


def test_an_update_that_fails_changes_nothing() -> None:
    index = WordIndex()
    update(index, put=[Entry(1, A, 1, "user", 1, "apple")], position=b"one")
    wrong = Entry(3, B, 1, "user", 1, None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        update(index, put=[Entry(2, A, 1, "user", 1, "pear"), wrong], drop=[1], known=[Known(B, 1, 1, 1)])
    assert [found.number for found in index.find(parse("apple OR pear"), limit=9)] == [1]
    assert (index.state()[1], index.known(B)) == (b"one", None)


def test_messages_that_come_one_by_one_do_not_make_many_segments() -> None:
    index = WordIndex()
    for n in range(1500):
        update(index, put=[Entry(n, A, 1, "user", n, f"word{n} everywhere")])
    _, parts = index.parts(A)
    assert len(parts) <= 2 + 2 * math.log2(MOST_MESSAGES)
    assert [len(part) for part in parts] != [1] * 1500  # the control: each began as one of its own
    assert [found.number for found in index.find(parse("everywhere"), limit=2000)] == list(range(1499, -1, -1))


def test_a_common_word_is_found_newest_first_without_looking_at_all_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    index = WordIndex()
    for n in range(100):
        update(index, put=[Entry(n * 32 + m, n.to_bytes(16, "big"), 1, "user", n, "common") for m in range(5)])
    looked: list[Segment] = []

    class Watched(wordindex._Question):
        def look(self, segment: Segment) -> set[int]:
            looked.append(segment)
            return super().look(segment)

    monkeypatch.setattr(wordindex, "_Question", Watched)
    assert len(index.find(parse("common"), limit=20)) == 20
    assert len(looked) == 4  # of five messages each
    looked.clear()
    assert index.find(parse("common"), limit=20, since=99)[-1].number == 99 * 32
    assert len(looked) == 1
    looked.clear()
    assert index.find(parse("absent"), limit=20) == []
    assert len(looked) == 100  # the control: nothing stops it there


# -- segments

TOKEN = st.text(st.sampled_from("abcz09é東й\U00020000"), min_size=1, max_size=6)
MESSAGE = st.builds(
    Words,
    number=st.integers(0, 2**62),
    revision=st.integers(0, 9),
    role=st.sampled_from(["user", "assistant", "tool_result"]),
    created_at=st.integers(0, 2**53),
    words=st.lists(TOKEN, max_size=9),
)


@given(st.lists(MESSAGE, min_size=1, max_size=9))
def test_a_segment_gives_back_what_it_was_made_of_and_so_does_its_copy(messages: list[Words]) -> None:
    made = Segment.of(messages)
    assert made.messages() == messages
    copy = Segment.load(made.name, made.dump())
    assert copy.messages() == messages
    assert all(getattr(copy, name) == getattr(made, name) for name in Segment.__slots__)


def test_a_damaged_segment_is_damaged_and_nothing_worse() -> None:
    chance = random.Random(7)
    good = Segment.of([Words(n, 0, "user", n, [f"w{k * n % 50}" for k in range(20)]) for n in range(60)]).dump()
    refused = 0
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(chance.choice([1, 5])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            Segment.load(b"name", bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])).messages()
        except Damaged:
            refused += 1
    assert refused > 1500


def test_more_words_than_there_are_small_characters_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    index = WordIndex()
    texts = [" ".join(f"w{m}x{n}" for n in range(20_000)) for m in range(3)]
    monkeypatch.setattr(wordindex, "MOST_WORDS", 1 << 20)  # all in one segment, beyond the surrogates
    update(index, put=[Entry(m, A, 1, "user", m, text) for m, text in enumerate(texts)])
    assert len(index.parts(A)[1]) == 1
    for m in range(3):
        for n in (0, 1, 9_999, 19_999):
            assert [found.number for found in index.find(parse(f"w{m}x{n}"), limit=9)] == [m]
    assert len(index.find(parse("w2*"), limit=9)) == 1
    assert [found.number for found in index.find(parse('"w1x0 w1x1"'), limit=9)] == [1]


def test_words_beyond_what_one_segment_can_tell_apart_are_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_DIFFERENT", 3)
    part = Segment.of([Words(1, 0, "user", 1, ["one", "two", "three", "four", "one"])])
    assert part.messages()[0].words == ["one", "two", "three", "", "one"]
    assert part.where(segments.Sought(parse("four").terms[0])) is None
    assert part.where(segments.Sought(parse("three").terms[0])) is not None


def test_a_very_long_word_is_found_by_its_beginning_and_hides_no_other() -> None:
    index = WordIndex()
    long = "m" * 100_000
    update(
        index,
        put=[Entry(1, A, 1, "user", 1, f"apple {long} pear zebra"), Entry(2, A, 1, "user", 2, "apple")],
    )
    assert [found.number for found in index.find(parse(long[:1900] + "*"), limit=9)] == [1]
    assert index.find(parse(long[:1900]), limit=9) == []
    for word in ("pear", "zebra", '"pear zebra"'):
        assert [found.number for found in index.find(parse(word), limit=9)] == [1]
    assert index.size() < 20_000


def test_a_very_long_word_at_the_end_of_all_words_hides_no_other() -> None:
    index = WordIndex()
    put = [Entry(1, A, 1, "user", 1, f"apple pear {'z' * 1_000}"), Entry(2, A, 1, "user", 2, "zebra")]
    update(index, put=put)
    for word, number in (("apple", 1), ("pear", 1), ("zebra", 2), ("ze*", 2)):
        assert [found.number for found in index.find(parse(word), limit=9)] == [number], word


# -- what is kept

Read = list[int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The numbers of the messages that were read to be taken in."""
    numbers: list[int] = []
    entry = Search._entry

    def counted(self: Search, row: object, reader: object) -> Entry:
        made = entry(self, row, reader)  # type: ignore[arg-type]
        numbers.append(made.number)
        return made

    monkeypatch.setattr(Search, "_entry", counted)
    return numbers


_ticks = count(1_700_000_000_000_000, 1_000_000)


def opened(path: Path, codec: ToyCodec | None = None) -> Store:
    return Store(SqliteBackend(path), codec or ToyCodec(), clock=lambda: next(_ticks), maintenance=False)


def filled(store: Store, conversations: int = 3, each: int = 150) -> list[str]:
    talks = [store.start() for _ in range(conversations)]
    for n, talk in enumerate(talks):
        talk.extend([Message.user(f"talk{n} message{m} shared") for m in range(each)])
    return [talk.id for talk in talks]


def rows_of(path: Path) -> list[tuple[int, bytes, int, bytes]]:
    """Return the saved items as they are in the file."""
    connection = apsw.Connection(str(path))
    try:
        found: list[Any] = connection.execute("SELECT * FROM item ORDER BY conversation, key").fetchall()
        return [row for row in found if row[1].startswith(cache.PREFIX)]
    finally:
        connection.close()


def put_back(path: Path, rows: Sequence[tuple[int, bytes, int, bytes]], *, only: bool = True) -> None:
    """As somebody does who has the file."""
    connection = apsw.Connection(str(path))
    try:
        if only:
            connection.execute("DELETE FROM item WHERE key >= x'776f7264732f' AND key < x'776f726473ff'")
        connection.executemany("INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?)", rows)
    finally:
        connection.close()


def kept_words(store: Store) -> bytes:
    """All words that are kept, opened."""
    found = b""
    for place in store.backend.page(Where(), None, 1000):
        (row,) = store.backend.lookup(ids=[place.id])
        envelope = store.engine.codec.envelope(row)
        for item in store.backend.items(row.id, cache.PREFIX):
            data = envelope.open(item_place(row.id, item.key), item.body)
            if item.key != cache._LIST:
                found += Segment.load(b"", data).words
    return found


def texts(store: Store, query: str, **options: object) -> list[str]:
    hits = store.search(query, limit=10_000, **options)  # type: ignore[arg-type]
    return [store.message(hit.message_id).text for hit in hits]


def test_a_new_process_reads_what_is_kept_and_no_message(path: Path, read: Read) -> None:
    with opened(path) as store:
        filled(store)
        before = texts(store, "shared")
        assert len(read) == len(before) == 450
    read.clear()
    with opened(path) as store:
        assert texts(store, "shared") == before
        assert texts(store, '"talk1 message7"') == ["talk1 message7 shared"]
        assert store.verify().ok
    assert read == []
    put_back(path, [])
    with opened(path) as store:  # the control: it was read from there
        assert texts(store, "shared") == before
    assert len(read) == 450


def test_only_what_came_since_is_read(path: Path, read: Read) -> None:
    with opened(path) as store:
        first, second, _ = filled(store)
        store.search("shared")
        store.conversation(first).append(Message.user("fresh one"))
        store.start().append(Message.user("fresh two"))
    read.clear()
    with opened(path) as store:
        assert texts(store, "fresh") == ["fresh two", "fresh one"]
        assert len(read) == 2
        store.conversation(second).append(Message.user("fresh three"))
        assert texts(store, "fresh")[0] == "fresh three"
        assert len(read) == 3


def test_maintenance_keeps_what_is_too_little_for_a_search_to_keep(path: Path, read: Read) -> None:
    with opened(path) as store:
        filled(store, conversations=1, each=50)
        store.search("shared")
        assert rows_of(path) == []
        assert store.maintain().complete
        assert rows_of(path) != []
    read.clear()
    with opened(path) as store:
        assert len(store.search("shared", limit=1000)) == 50
    assert read == []


def test_a_conversation_of_few_words_is_not_kept(path: Path) -> None:
    with opened(path) as store:
        (id,) = filled(store, conversations=1, each=10)
        store.search("shared")
        assert store.maintain().complete
        assert rows_of(path) == []
        store.conversation(id).extend([Message.user(f"more{n} shared") for n in range(100)])
        assert store.maintain().complete
        assert len(rows_of(path)) > 1  # the control: of many words it is


def test_no_word_stands_in_any_file(path: Path) -> None:
    with opened(path) as store:
        talk = store.start()
        talk.extend([Message.user(f"confidential matter{n}") for n in range(400)])
        store.maintain()
        assert len(store.search("confidential", limit=1000)) == 400
        assert b"\nconfidential\n" in kept_words(store)  # the control: it is kept
        names = {file.name for file in path.parent.iterdir()}
        assert names <= {"store.db", "store.db-wal", "store.db-shm", "store.db-ballast"}
        for file in path.parent.iterdir():
            assert not any(word in file.read_bytes() for word in (b"confidential", b"matter3"))


def test_a_plain_store_keeps_no_items_of_words(path: Path) -> None:
    with Store(SqliteBackend(path)) as store:
        filled(store)
        store.search("shared")
        store.maintain()
    assert rows_of(path) == []


def test_a_purge_takes_what_is_kept(path: Path) -> None:
    with opened(path) as store:
        first, *_ = filled(store)
        store.search("shared")
        assert b"\ntalk0\n" in kept_words(store)
        before = len(rows_of(path))
        store.purge(first, reason="user-requested")
        assert 0 < len(rows_of(path)) < before
        assert b"\ntalk0\n" not in kept_words(store)
        assert len(store.search("shared", limit=1000)) == 300


def test_saving_comes_to_an_end(path: Path) -> None:
    """Saving moves the conversation in the feed, which must not be a reason to save again."""
    with opened(path) as store:
        ids = filled(store)
        tokens = []
        for _ in range(4):
            store.search("shared")
            assert store.maintain().complete
            tokens.append([store.engine.read_row(store.conversation(id).state.id).token for id in ids])
    assert tokens[1] == tokens[2] == tokens[3]


def test_many_conversations_are_saved_in_few_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        filled(store, conversations=100, each=25)
        commits: list[int] = []
        commit = store.backend.commit

        def counted(batches: Sequence[Batch]) -> list[Outcome]:
            commits.append(len(batches))
            return commit(batches)

        monkeypatch.setattr(store.backend, "commit", counted)
        assert len(store.search("shared", limit=10_000)) == 2500
        assert commits == [64, 36]


def test_a_handle_that_is_in_use_does_not_notice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        talk = store.start()
        talk.extend([Message.user(f"message{n}") for n in range(300)])
        version = talk.state.row.version
        store.search("message7")
        assert rows_of(path) != []
        stale: list[object] = []
        monkeypatch.setattr(type(talk.state), "adopt_row", lambda *_: stale.append(_))
        talk.append(Message.user("next"))  # with the token of the save, or it would be told that its belief is stale
        assert stale == []
        assert talk.state.row.version == version + 1


# -- words do not outlive their message


def test_what_is_deleted_leaves_what_is_kept_at_once(path: Path) -> None:
    with opened(path) as store:
        talk = store.start()
        saved = talk.extend([Message.user(f"message{n}") for n in range(300)])
        secret = talk.append(Message.user("unmentionable"))
        store.search("message1")
        store.maintain()
        assert b"\nunmentionable\n" in kept_words(store)
        store.delete([secret])
        assert b"\nunmentionable\n" not in kept_words(store)
        assert b"\nmessage299\n" in kept_words(store)
        store.delete([saved[200]], recursive=True)
        assert b"\nmessage200\n" not in kept_words(store)
        assert store.search("message200 OR message250 OR unmentionable") == []
        assert len(store.search("message*", limit=1000)) == 200
        store.delete([saved[0]], recursive=True)
        assert rows_of(path) == []


def test_a_delete_by_a_process_that_never_searched_takes_what_is_kept(path: Path) -> None:
    with opened(path) as store:
        talk = store.start()
        talk.extend([Message.user(f"message{n}") for n in range(300)])
        secret = talk.append(Message.user("unmentionable"))
        filled(store, conversations=1)
        store.search("message1")
        assert b"\nunmentionable\n" in kept_words(store)
    with opened(path) as store:
        store.delete([secret.id])
        assert b"\nunmentionable\n" not in kept_words(store)
        assert b"\nshared\n" in kept_words(store)  # of another conversation
    with opened(path) as store:
        assert len(store.search("message*", limit=1000)) == 450


def test_a_delete_that_nobody_told_the_index_is_made_up_for_by_the_next_search(
    path: Path, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    with opened(path) as store:
        talk = store.start()
        talk.extend([Message.user(f"message{n}") for n in range(300)])
        secret = talk.append(Message.user("unmentionable"))
        store.search("message1")
    with opened(path) as store:
        monkeypatch.setattr(store.engine.search, "forget", lambda *_: True)
        store.delete([secret.id])
        assert b"\nunmentionable\n" in kept_words(store)  # the control: it is still there
    read.clear()
    with opened(path) as store:
        assert store.search("unmentionable") == []
        assert len(store.search("message*", limit=1000)) == 300
        assert b"\nunmentionable\n" not in kept_words(store)
    assert read == []  # what is left need not be read again


def test_a_label_does_not_make_everything_be_read_again(path: Path, read: Read) -> None:
    with opened(path) as store:
        talk = store.start()
        saved = talk.extend([Message.user(f"message{n}") for n in range(300)])
        store.search("message1")
    with opened(path) as store:
        store.conversation(talk.id).label("marked", message=saved[7])
    read.clear()
    with opened(path) as store:
        assert texts(store, "message*") == [f"message{n}" for n in reversed(range(300))]  # it kept its place
        assert len(read) == 1
    with opened(path) as store:
        assert len(store.search("message*", limit=1000)) == 300
    assert len(read) == 1  # and that was kept


def test_words_of_what_is_deleted_this_moment_are_not_saved(path: Path) -> None:
    with opened(path) as mine, opened(path) as theirs:
        talk = mine.start()
        talk.extend([Message.user(f"message{n}") for n in range(100)])
        secret = talk.append(Message.user("unmentionable"))
        mine.search("unmentionable")
        words = mine._search._words
        assert words is not None
        theirs.delete([secret.id])
        assert cache.save(mine.engine, words, words.list_unsaved()) is False
        assert rows_of(path) == []
        assert mine.maintain().complete
        assert rows_of(path) != []  # the control: it saves what is left
        assert b"\nunmentionable\n" not in kept_words(mine)


# -- what is not believed


def deleted_and_put_back(path: Path) -> tuple[bytes, int]:
    """A message is deleted, and somebody puts what was kept of it back: its conversation, and its number."""
    with opened(path) as store:
        talk = store.start()
        talk.extend([Message.user(f"message{n}") for n in range(300)])
        secret = talk.append(Message.user("unmentionable"))
        store.search("message1")
        number = store.engine.message_ids.number(secret.id)
    before = rows_of(path)
    with opened(path) as store:
        assert len(store.search("unmentionable")) == 1
        store.delete([secret.id])
        store.conversation(talk.id).append(Message.user("later"))
        store.maintain()
    put_back(path, before)
    return talk.state.id, number


def test_what_is_put_back_does_not_bring_back_what_was_deleted(path: Path) -> None:
    conversation, number = deleted_and_put_back(path)
    with opened(path) as store:
        assert store.search("unmentionable") == []
        assert len(store.search("message* OR later", limit=1000)) == 301
        words = search_of(store)._words
        assert words is not None
        assert number not in words.holds(conversation)
        assert b"\nunmentionable\n" not in kept_words(store)  # and it is taken out again


def test_the_control_of_the_test_above_without_a_look_at_rewrites_it_would(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, number = deleted_and_put_back(path)
    monkeypatch.setattr(cache._List, "coverage_of", lambda self, id: Known(id, self.created_at, 1, self.next_seq))
    with opened(path) as store:
        store.search("unmentionable")
        words = search_of(store)._words
        assert words is not None
        assert number in words.holds(conversation)
        assert b"\nunmentionable\n" in kept_words(store)


def test_what_is_put_back_beside_the_rest_is_removed(path: Path, read: Read) -> None:
    with opened(path) as store:
        ids = filled(store)
        store.search("shared")
    before = rows_of(path)
    with opened(path) as store:
        for id in ids:
            store.conversation(id).extend([Message.user(f"more{n} shared") for n in range(150)])
        store.search("shared")
    after = rows_of(path)
    strays = [row for row in before if row[:2] not in {found[:2] for found in after}]
    assert strays  # the control: the old ones have other names
    put_back(path, strays, only=False)
    read.clear()
    with opened(path) as store:
        assert len(store.search("shared", limit=1000)) == 900
    assert read == []
    assert rows_of(path) == after


def test_an_earlier_state_that_is_put_back_is_gone_on_with(path: Path, read: Read) -> None:
    with opened(path) as store:
        (id,) = filled(store, conversations=1, each=300)
        store.search("shared")
    before = rows_of(path)
    with opened(path) as store:
        store.conversation(id).extend([Message.user(f"more{n} shared") for n in range(300)])
        store.search("shared")
    put_back(path, before)
    read.clear()
    with opened(path) as store:
        assert len(store.search("shared", limit=1000)) == 600
    assert len(read) == 300


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "list flipped", "list missing", "part missing", "swapped"])
def test_what_does_not_open_is_made_again_and_kept_anew(path: Path, how: str, read: Read) -> None:
    with opened(path) as store:
        filled(store, conversations=2, each=600)
        before = texts(store, "shared")
    rows = rows_of(path)
    lists = [n for n, row in enumerate(rows) if row[1] == cache._LIST]
    parts = [n for n in range(len(rows)) if n not in lists]
    place, key, revision, body = rows[lists[0] if how.startswith("list") else parts[0]]
    changed: dict[str, Callable[[], list[bytes]]] = {
        "flipped": lambda: [body[:40] + bytes([body[40] ^ 1]) + body[41:]],
        "cut": lambda: [body[: len(body) // 2]],
        "empty": lambda: [b""],
        "list flipped": lambda: [body[:-1] + bytes([body[-1] ^ 1])],
        "list missing": list,
        "part missing": list,
        "swapped": lambda: [rows[parts[-1]][3]],
    }
    others = [row for row in rows if row[:2] != (place, key)]
    put_back(path, [*others, *((place, key, revision, new) for new in changed[how]())])
    read.clear()
    with opened(path) as store:
        assert texts(store, "shared") == before
        assert store.verify().ok
    assert len(read) == 600  # of the one conversation
    read.clear()
    with opened(path) as store:
        assert texts(store, "shared") == before
    assert read == []


def test_what_another_conversation_of_the_same_id_left_is_not_believed(path: Path, read: Read) -> None:
    id = "00000000-0000-4000-8000-000000000001"
    with opened(path) as store:
        store.start(id=id).extend([Message.user(f"former{n}") for n in range(300)])
        store.search("former1")
    before = rows_of(path)
    with opened(path) as store:
        store.purge(id, reason="user-requested")
        store.start(id=id).extend([Message.user(f"latter{n}") for n in range(300)])
    connection = apsw.Connection(str(path))
    found: list[Any] = connection.execute("SELECT place FROM conversation WHERE kind = 'chat'").fetchall()
    ((place,),) = found
    connection.close()
    put_back(path, [(place, *row[1:]) for row in before])
    read.clear()
    with opened(path) as store:
        assert store.search("former*") == []
        assert len(store.search("latter*", limit=1000)) == 300
        assert b"former" not in kept_words(store)
    assert len(read) == 300


def test_another_format_is_made_again(path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (segments, cache):
        with opened(path) as store:
            if not list(store.backend.numbers())[0:1] or not store.search("shared"):
                filled(store)
                store.search("shared")
        read.clear()
        monkeypatch.setattr(module, "FORMAT", 99)
        with opened(path) as store:
            assert len(store.search("shared", limit=1000)) == 450
        assert len(read) == 450


def test_a_conversation_whose_row_was_tampered_with_does_not_disturb_the_others(path: Path, read: Read) -> None:
    with opened(path) as store:
        filled(store)
    connection = apsw.Connection(str(path))
    last = "SELECT max(place) FROM conversation WHERE kind = 'chat'"
    connection.execute(f"UPDATE conversation SET size = size + 1 WHERE place = ({last})")
    connection.close()
    for _ in range(2):
        with opened(path) as store:
            assert len(store.search("shared", limit=1000)) == 300
            assert store.engine.search.keep_up(5.0)[1]
        assert len({row[0] for row in rows_of(path)}) == 2


def test_a_copy_of_the_store_finds_its_own(path: Path, tmp_path: Path, read: Read) -> None:
    copy = tmp_path / "copy.db"
    with opened(path) as store:
        (id,) = filled(store, conversations=1, each=300)
        store.search("shared")
        store.backup(copy)
        store.conversation(id).append(Message.user("afterwards"))
        assert len(store.search("afterwards")) == 1
        store.maintain()
    shutil.copyfile(copy, path)
    read.clear()
    with opened(path) as store:
        assert store.search("afterwards") == []
        assert len(store.search("shared", limit=1000)) == 300
    assert read == []


# -- trouble, and others


def test_trouble_with_saving_is_said_once_and_harms_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="hitherto"), opened(path) as store:
        filled(store)

        def refused(_: object) -> list[Outcome]:
            raise StorageError("it may only be read")

        monkeypatch.setattr(store.backend, "commit", refused)
        for _ in range(3):
            assert len(store.search("shared", limit=1000)) == 450
            assert store.engine.search.keep_up(1.0) == (0, False)
        monkeypatch.undo()
        assert store.maintain().complete
        assert len(rows_of(path)) == 6
    assert len([record for record in caplog.records if "could not be kept" in record.getMessage()]) == 1


def test_a_contrary_backend_keeps_it_in_the_end(path: Path) -> None:
    backend = Contrary(SqliteBackend(path), seed=3)
    with Store(backend, ToyCodec(), maintenance=False) as store:
        talks = [store.start() for _ in range(20)]
        for talk in talks:
            talk.extend([Message.user(f"message{n} shared") for n in range(40)])
        for _ in range(200):
            assert len(store.search("shared", limit=1000)) == 800
            if store.engine.search.keep_up(1.0)[1]:
                break
        talks[3].append(Message.user("after that"))
        assert store.verify().ok
    assert backend.troubles > 5
    with opened(path) as again:
        assert len(again.search("shared", limit=1000)) == 800
    assert len({row[0] for row in rows_of(path)}) == 20


def test_two_that_search_and_save_find_everything_and_leave_each_other_alone(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        talk = one.start()
        for turn in range(12):
            for store in (one, two):
                handle = store.conversation(talk.id)
                handle.extend([Message.user(f"turn{turn} shared") for _ in range(30)])
                assert len(store.search("shared", limit=1000)) == handle.count
                store.maintain()
        tokens = []
        for _ in range(3):
            for store in (one, two):
                store.search("shared")
                assert store.maintain().complete
                tokens.append(store.engine.read_row(talk.state.id).token)
        assert len(set(tokens[2:])) == 1
        gone = two.conversation(talk.id).append(Message.user("fleeting"))
        assert len(one.search("fleeting")) == 1
        one.maintain()
        two.delete([gone])
        assert one.search("fleeting") == []
        assert b"\nfleeting\n" not in kept_words(one)


def test_threads_that_search_write_and_delete_at_once_find_everything(path: Path) -> None:
    failures: list[BaseException] = []
    with opened(path) as store:

        def work(name: str) -> None:
            try:
                talk = store.start()
                for n in range(40):
                    talk.append(Message.user(f"{name}x{n} shared"))
                    assert len(store.search(f"{name}x{n}")) == 1
                    if n % 10 == 5:
                        gone = talk.fork().append(Message.user(f"fleeting {name}"))
                        assert len(store.search(f"fleeting {name}")) == 1
                        store.delete([gone])
                        assert store.search(f"fleeting {name}") == []
                    if n % 7 == 0:
                        store.engine.search.keep_up(0.01)
            except BaseException as error:  # noqa: BLE001  # told to the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in ("alpha", "beta", "gamma")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(store.search("shared", limit=1000)) == 120
        store.maintain()
        assert b"\nfleeting\n" not in kept_words(store)
        assert store.verify().ok
    with opened(path) as again:
        assert len(again.search("shared", limit=1000)) == 120


def test_an_interrupted_first_search_is_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    with opened(path) as store:
        filled(store, conversations=6, each=300)
        moved, met = Search._with_content, count(1)

        def interrupted(self: Search, headers: Iterator[object]) -> Iterator[object]:
            if next(met) == 4:
                raise KeyboardInterrupt
            yield from moved(self, headers)  # type: ignore[arg-type]

        monkeypatch.setattr(Search, "_with_content", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.search("shared")
        monkeypatch.setattr(Search, "_with_content", moved)
        assert len(store.search("shared", limit=10_000)) == 1800
        assert texts(store, "shared")[0] == "talk5 message299 shared"
    assert 1800 <= len(read) < 2 * 1800 - 512  # what had come was not read again, but for a part of a batch


def test_a_store_in_memory_that_is_sealed_is_searched(read: Read) -> None:
    with Store(MemoryBackend(), ToyCodec(), maintenance=False) as store:
        filled(store)
        assert len(store.search("shared", limit=1000)) == 450
        assert b"\nshared\n" in kept_words(store)
