"""The behaviour of every text index; then the one in FTS5: what it deletes, and what it survives.

Nothing in this process opens an index file that is in use: closing a descriptor would drop the locks that SQLite holds.
Bytes are read by `cat` and written by `dd`.
"""

import contextlib
import multiprocessing
import os
import random
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto._search.query import Query, parse
from hitherto._search.sealed_index import WordIndex
from hitherto.backends.sqlite import fts
from hitherto.backends.sqlite.fts import FtsIndex
from hitherto.backends.sqlite.fts_file import APPLICATION_ID, FORMAT
from hitherto.errors import CannotOpen, Closed, InvalidQuery, NotAStore
from hitherto.textindex import Entry, IndexDamaged, Known, TextIndex

from ..support.patience import cpu_seconds

WORKSPACE = b"w" * 16
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db-search"


def made(kind: str, path: Path) -> TextIndex:
    if kind == "words":
        return WordIndex()
    return FtsIndex(path if kind == "file" else None, WORKSPACE, timeout_seconds=5)


@pytest.fixture(params=["file", "memory", "words"])
def index(request: pytest.FixtureRequest, path: Path) -> Iterator[TextIndex]:
    opened = made(request.param, path)
    yield opened
    opened.close()


@pytest.fixture(params=["file", "memory"])
def fts_index(request: pytest.FixtureRequest, path: Path) -> Iterator[TextIndex]:
    opened = made(request.param, path)
    yield opened
    opened.close()


def entry(
    number: int, text: str, conversation: bytes = A, role: str = "user", revision: int = 1, at: int | None = None
) -> Entry:
    return Entry(number, conversation, revision, role, number * 1000 if at is None else at, text)


def find(index: TextIndex, query: str, limit: int = 100) -> list[int]:
    return [found.number for found in index.find(parse(query), limit=limit)]


def position(index: TextIndex) -> bytes | None:
    return index.state()[1]


def update(
    index: TextIndex,
    *,
    put: Sequence[Entry] = (),
    drop: Sequence[int] = (),
    known: Sequence[Known] = (),
    forget: Sequence[bytes] = (),
    position: bytes | None = None,
) -> None:
    """From whatever state it is in."""
    while index.update(index.state()[0], put=put, drop=drop, known=known, forget=forget, position=position) is None:
        pass


def bytes_of(path: Path) -> bytes:
    there = [str(file) for file in path.parent.glob(path.name + "*")]
    return subprocess.run(["cat", *there], check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout


def overwrite(path: Path, data: bytes, at: int = 0) -> None:
    where = ["oflag=seek_bytes", f"seek={at}", "conv=notrunc", "status=none"]
    subprocess.run(["dd", f"of={path}", *where], input=data, check=True)


# -- the protocol


def test_it_keeps_the_protocol(index: TextIndex) -> None:
    kept: TextIndex = index
    assert position(kept) is None
    assert kept.known(A) is None
    assert kept.holds(A) == {}
    assert find(kept, "anything") == []
    update(kept, put=[entry(1, "something")])
    assert kept.size() > 0


def test_newest_first_is_the_order_of_put_not_of_numbers(index: TextIndex) -> None:
    update(index, put=[entry(30, "an apple", at=1), entry(10, "an apple", at=2)])
    update(index, put=[entry(20, "an apple", at=3)])
    assert find(index, "apple") == [20, 10, 30]
    assert find(index, "apple", limit=2) == [20, 10]


def test_a_replaced_entry_keeps_its_place_and_loses_its_words(index: TextIndex) -> None:
    update(index, put=[entry(n, f"apple old{n}") for n in (1, 2, 3)])
    update(index, put=[entry(2, "apple fresh", revision=2), entry(4, "apple")])
    assert find(index, "apple") == [4, 3, 2, 1]
    assert find(index, "old2") == []
    assert find(index, "fresh") == [2]
    assert index.holds(A) == {1: 1, 2: 2, 3: 1, 4: 1}


def test_the_last_of_two_entries_with_one_number_counts(index: TextIndex) -> None:
    update(index, put=[entry(1, "first"), entry(1, "second", B, revision=2)])
    assert (find(index, "first"), find(index, "second")) == ([], [1])
    assert (index.holds(A), index.holds(B)) == ({}, {1: 2})


def test_dropping_and_forgetting(index: TextIndex) -> None:
    update(index, put=[entry(1, "apple"), entry(2, "apple"), entry(3, "apple", B)], known=[Known(A, 5, 6, 7)])
    update(index, drop=[2, 999])
    assert find(index, "apple") == [3, 1]
    update(index, forget=[A, C])
    assert find(index, "apple") == [3]
    assert index.known(A) is None
    assert index.holds(A) == {}
    update(index, forget=[B], put=[entry(3, "apple again", B)])  # forgotten first, then put
    assert find(index, "again") == [3]


def test_what_is_known_and_the_position_are_kept(index: TextIndex) -> None:
    update(index, put=[entry(1, "apple")], known=[Known(A, 1, 2, 3)], position=b"one")
    update(index, known=[Known(A, 1, 5, 9), Known(B, 2, 0, 0)])
    assert position(index) == b"one"  # nobody said otherwise
    assert index.known(A) == Known(A, 1, 5, 9)
    assert index.known(B) == Known(B, 2, 0, 0)
    update(index, put=[entry(2, "pear", C)])
    assert index.known(C) is None  # it has an entry, but nobody noted anything


def test_an_update_is_all_or_nothing(fts_index: TextIndex) -> None:
    index = fts_index
    update(index, put=[entry(1, "apple")], position=b"one")
    wrong = Entry(3, B, 1, None, 1, "pear")  # type: ignore[arg-type]
    with pytest.raises(IndexDamaged):
        update(index, put=[entry(2, "pear"), wrong], drop=[1], known=[Known(B, 1, 1, 1)], position=b"two")
    assert (find(index, "apple"), find(index, "pear")) == ([1], [])
    assert position(index) == b"one"
    assert index.known(B) is None


def test_filters(index: TextIndex) -> None:
    update(index, put=[entry(n, "apple", A if n % 2 else B, "user" if n < 5 else "assistant") for n in range(10)])
    query = parse("apple")

    def numbers(**filters: object) -> list[int]:
        return [found.number for found in index.find(query, limit=100, **filters)]  # type: ignore[arg-type]

    assert numbers(role="user") == [4, 3, 2, 1, 0]
    assert numbers(conversations=[A]) == [9, 7, 5, 3, 1]
    assert numbers(conversations=[A, B, C]) == list(range(9, -1, -1))
    assert numbers(conversations=[]) == numbers(conversations=[C]) == numbers(role="nobody") == []
    assert numbers(since=3000, until=5000) == [4, 3]
    assert numbers(since=3000, until=8000, role="assistant", conversations=[B]) == [6]
    assert numbers(conversations=[n.to_bytes(16, "big") for n in range(10_000)]) == []
    assert numbers(conversations=[*(n.to_bytes(16, "big") for n in range(10_000)), B]) == [8, 6, 4, 2, 0]
    assert index.find(query, limit=1, conversations=[B])[0].conversation == B


def test_ranked_gives_the_best_first_and_a_score(index: TextIndex) -> None:
    update(index, put=[entry(1, "pear " * 5), entry(2, "apple " * 5 + "x"), entry(3, "apple " + "filler " * 200)])
    update(index, put=[entry(n, "something else") for n in range(10, 30)])
    found = index.find(parse("apple"), limit=10, ranked=True)
    assert [one.number for one in found] == [2, 3]
    assert found[0].score > found[1].score > 0
    assert [one.score for one in index.find(parse("apple"), limit=10)] == [0.0, 0.0]
    assert [one.number for one in index.find(parse("apple"), limit=10, ranked=True, since=3000)] == [3]


def test_an_expression_that_is_none_is_an_invalid_query(fts_index: TextIndex) -> None:
    index = fts_index
    update(index, put=[entry(1, "apple")])
    with pytest.raises(InvalidQuery):
        index.find(Query('"unclosed AND (', ()), limit=1)
    assert find(index, "apple") == [1]


WORDS = st.sampled_from(["apple", "pear", "plum", "fig", "straße", "東京", "don't", "foo_bar", "ม้า"])
TEXTS = st.lists(WORDS, max_size=6).map(" ".join)
STEP = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(st.integers(0, 12), st.sampled_from([A, B, C]), TEXTS), max_size=5)),
    st.tuples(st.just("drop"), st.lists(st.integers(0, 12), max_size=4)),
    st.tuples(st.just("forget"), st.sampled_from([A, B, C])),
    st.tuples(st.just("scrub"), st.none()),
    st.tuples(st.just("clear"), st.none()),
)


@pytest.mark.parametrize("by", ["memory", "words"])
@settings(max_examples=60)
@given(steps=st.lists(STEP, max_size=12))
def test_it_finds_what_a_plain_list_would(by: str, steps: list[tuple[str, object]]) -> None:
    index = made(by, Path())
    model: dict[int, tuple[bytes, str]] = {}  # in the order of coming
    for kind, what in steps:
        if kind == "put":
            assert isinstance(what, list)
            update(index, put=[entry(number, text, conversation) for number, conversation, text in what])
            model.update({number: (conversation, text) for number, conversation, text in what})
        elif kind == "drop":
            assert isinstance(what, list)
            update(index, drop=what)
            model = {number: value for number, value in model.items() if number not in what}
        elif kind == "forget":
            assert isinstance(what, bytes)
            update(index, forget=[what])
            model = {number: value for number, value in model.items() if value[0] != what}
        elif kind == "scrub":
            assert index.scrub()
        else:
            index.clear()
            model = {}
        newest_first = sorted(model, reverse=True) if by == "words" else list(reversed(model))
        for word in ("apple", "straße", "東京", "don't", "foo_bar", "ม้า"):
            assert find(index, word) == [number for number in newest_first if word in model[number][1].split()]
    for conversation in (A, B, C):
        assert set(index.holds(conversation)) == {n for n, value in model.items() if value[0] == conversation}
    index.close()


# -- the file


def test_the_file_is_private_and_set_up_as_it_should_be(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    update(index, put=[entry(1, "apple")])
    for file in path.parent.glob(path.name + "*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    expected = {
        "application_id": APPLICATION_ID,
        "user_version": FORMAT,
        "journal_mode": "wal",
        "synchronous": 1,
        "secure_delete": 1,
        "auto_vacuum": 2,
        "journal_size_limit": 4194304,
    }
    assert index._run(lambda connection: {name: connection.pragma(name) for name in expected}) == expected
    index.close()


def test_it_is_there_again_after_it_was_closed(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    update(index, put=[entry(1, "apple")], position=b"one")
    index.close()
    index.close()
    with pytest.raises(Closed):
        position(index)
    again = FtsIndex(path, WORKSPACE)
    assert again.was_reset is False
    assert position(again) == b"one"
    assert find(again, "apple") == [1]
    again.close()


@pytest.mark.parametrize("kind", ["memory", "words"])
def test_a_closed_index_in_memory_says_so(kind: str) -> None:
    index = made(kind, Path())
    index.close()
    index.close()
    with pytest.raises(Closed):
        position(index)


def test_workspaces_in_one_file_know_nothing_of_each_other(path: Path) -> None:
    one, two = FtsIndex(path, WORKSPACE), FtsIndex(path, b"v" * 16)
    update(one, put=[entry(1, "apple")], position=b"one")
    update(two, put=[entry(1, "pear"), entry(2, "plum")], position=b"two")
    assert (find(one, "pear"), find(two, "pear")) == ([], [1])
    one.clear()
    assert (position(one), position(two)) == (None, b"two")
    assert (find(one, "apple"), find(two, "plum")) == ([], [2])
    one.close()
    two.close()


def test_the_file_of_another_program_is_not_touched(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (x)")
    other.execute("INSERT INTO theirs VALUES ('kept')")
    other.close()
    before = path.read_bytes()
    with pytest.raises(NotAStore):
        FtsIndex(path, WORKSPACE)
    assert path.read_bytes() == before
    with pytest.raises(CannotOpen):
        FtsIndex(path.parent, WORKSPACE)


def test_another_format_is_begun_again(path: Path) -> None:
    FtsIndex(path, WORKSPACE).close()
    for pragma, value in (("user_version", FORMAT + 1), ("application_id", 5)):
        other = apsw.Connection(str(path))
        other.pragma(pragma, value)
        other.close()
        index = FtsIndex(path, WORKSPACE)
        assert index.was_reset
        assert position(index) is None
        update(index, put=[entry(1, "apple")], position=b"one")
        assert find(index, "apple") == [1]
        index.close()


# -- scrubbing


def secrets(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=14)) for _ in range(count)]


def left(path: Path, words: list[str]) -> list[str]:
    """FTS5 stores a word without what it has in common with the one before it, so it is the ends that are looked for;
    random words have at most four letters in common."""
    data = bytes_of(path)
    return [word for word in words if word[-9:].encode() in data]


def test_what_was_dropped_leaves_the_files_with_scrub_and_not_before(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    words = secrets(1500)
    conversations = [bytes([n % 50 + 100]) * 16 for n in range(1500)]
    for start in range(0, 1500, 30):
        some = range(start, start + 30)
        update(index, put=[entry(n, f"hello 4{n:08} {words[n]} common{n % 7}", conversations[n]) for n in some])
    gone = [n for n in range(1500) if n % 97 == 5]
    forgotten = [n for n in range(1500) if n % 50 == 3]
    replaced = [n for n in range(1500) if n % 89 == 7 and n not in gone and n not in forgotten]
    update(index, drop=gone, forget=[bytes([103]) * 16])
    update(index, put=[entry(n, "replaced", conversations[n], revision=2) for n in replaced])
    away = [words[n] for n in {*gone, *forgotten, *replaced}]
    kept = [word for word in words if word not in away]
    assert len(left(path, away)) > len(away) * 0.9  # the control: without scrub they are still there
    assert index.scrub() is True
    assert left(path, away) == []
    assert len(left(path, kept)) > len(kept) * 0.99
    assert all(find(index, words[n]) == ([n] if words[n] in kept else []) for n in range(0, 1500, 7))
    update(index, drop=range(1500))
    assert index.scrub() is True
    assert left(path, words) == []
    assert b"00000" not in bytes_of(path)  # the numbers are gone as well
    index.close()


def test_rounds_of_putting_dropping_and_scrubbing_leave_nothing(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    chance = random.Random(4)
    words = secrets(2400, seed=9)
    alive: list[int] = []
    for turn in range(6):
        fresh = list(range(turn * 400, turn * 400 + 400))
        size = chance.choice([1, 20, 400]) if turn else 400
        for start in range(0, 400, size):
            update(index, put=[entry(n, f"some text {words[n]} {words[n][:5]}") for n in fresh[start : start + size]])
        alive += fresh
        gone = set(chance.sample(alive, chance.choice([1, 10, 300])))
        alive = [n for n in alive if n not in gone]
        update(index, drop=sorted(gone))
        while not index.scrub(0):  # in the smallest steps
            pass
        dead = set(range(turn * 400 + 400)) - set(alive)
        assert left(path, [words[n] for n in dead]) == []
    assert find(index, words[alive[0]]) == [alive[0]]
    index.close()


def test_scrub_goes_on_in_steps_while_others_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fts, "_SLICE", 4)
    index = FtsIndex(path, WORKSPACE)
    words = secrets(2000, seed=3)
    update(index, put=[entry(n, f"text {words[n]} more{n} and{n * 7} this{n * 13}") for n in range(1000)])
    update(index, put=[entry(n, f"text {words[n]} more{n} and{n * 7} this{n * 13}") for n in range(1000, 1900)])
    update(index, drop=range(0, 100, 3))
    steps = 0
    while not index.scrub(0):
        steps += 1
        assert steps < 1000
        if steps <= 99:
            update(index, put=[entry(1900 + steps, f"text {words[1900 + steps]}")])
    assert steps > 5  # the control: one call was not enough
    assert left(path, words[0:100:3]) == []
    assert len(find(index, "text", limit=5000)) == 1900 - 34 + min(steps, 99)
    index.close()


def test_scrub_has_nothing_to_do_if_nothing_was_dropped(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    update(index, put=[entry(n, f"text {n}") for n in range(500)])
    update(index, drop=[1])
    assert index.scrub()
    update(index, put=[entry(n, f"text {n}") for n in range(500, 600)])
    index.close()
    index = FtsIndex(path, WORKSPACE)  # it is remembered in the file
    before = bytes_of(path)
    assert index.scrub(0)
    assert bytes_of(path)[: len(before)] == before
    index.close()


def test_a_reader_delays_the_scrub(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    update(index, put=[entry(n, f"text secret{n}") for n in range(50)])
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    update(index, drop=[7])
    assert index.scrub() is False
    reader.execute("ROLLBACK")
    reader.close()
    assert index.scrub() is True
    assert b"secret7" not in bytes_of(path)
    index.close()


def test_free_pages_are_given_back(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    for start in range(0, 3000, 500):
        update(index, put=[entry(n, " ".join(secrets(20, seed=n))) for n in range(start, start + 500)])
    full = index.size()
    update(index, drop=range(2900))
    assert index.scrub()
    assert index.size() < full / 4
    index.close()


# -- damage


def filled(path: Path) -> bytes:
    index = FtsIndex(path, WORKSPACE)
    for start in range(0, 300, 30):
        some = range(start, start + 30)
        put = [entry(n, f"apple {' '.join(secrets(15, seed=n))}", bytes([n % 9]) * 16) for n in some]
        update(index, put=put, known=[Known(bytes([n]) * 16, 1, 1, 1) for n in range(9)], position=b"%d" % start)
    index.close()
    return path.read_bytes()


def use(index: TextIndex) -> None:
    position(index)
    index.known(bytes([1]) * 16)
    index.holds(bytes([2]) * 16)
    index.find(parse("apple"), limit=5)
    index.find(parse("a* OR b* OR c*"), limit=50, ranked=True, role="user")
    put = [entry(5, "brand new", bytes([5]) * 16), entry(999, "brand new")]
    update(index, put=put, drop=[7], forget=[bytes([3]) * 16], known=[Known(B, 1, 1, 1)], position=b"x")
    index.scrub()


def damaged(data: bytes, kind: str, chance: random.Random) -> bytes:
    changed = bytearray(data)
    if kind == "flipped":
        for _ in range(chance.choice([1, 10, 300])):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    elif kind == "header":
        changed[chance.randrange(100)] = chance.randrange(256)
    elif kind == "page":
        at = chance.randrange(len(changed) // 4096) * 4096
        changed[at : at + 4096] = chance.randbytes(4096)
    elif kind == "truncated":
        del changed[chance.randrange(len(changed)) :]
    elif kind == "tiny":
        changed = bytearray(chance.randbytes(chance.randrange(1, 512)))
    elif kind == "zeros":
        changed = bytearray(chance.randrange(1, 20_000))
    else:
        changed = bytearray(chance.randbytes(chance.choice([512, 5_000, 100_000])))
    return bytes(changed)


RECOGNISABLE = ["flipped", "header", "page", "truncated", "zeros"]
KINDS = [*RECOGNISABLE, "tiny", "garbage"]


def begins_again(index: FtsIndex, path: Path) -> None:
    index.clear()
    assert index.was_reset
    assert position(index) is None
    assert find(index, "apple") == []
    update(index, put=[entry(n, "apple") for n in range(20)], position=b"one")
    update(index, drop=[3])
    assert index.scrub()
    index.close()
    again = FtsIndex(path, WORKSPACE)
    assert not again.was_reset
    assert position(again) == b"one"
    assert len(find(again, "apple")) == 19
    assert again._run(lambda c: c.execute("PRAGMA integrity_check").fetchall()) == [("ok",)]
    again.close()


@pytest.mark.parametrize("kind", RECOGNISABLE)
def test_a_damaged_file_is_opened_and_begun_again(path: Path, kind: str) -> None:
    good = filled(path)
    chance = random.Random(kind)
    for _ in range(6):
        bad = damaged(good, kind, chance)
        if bad[68:72] != good[68:72] and any(bad):  # too damaged to be recognised
            continue
        path.write_bytes(bad)
        index = FtsIndex(path, WORKSPACE)
        with contextlib.suppress(IndexDamaged):
            use(index)
        begins_again(index, path)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["tiny", "garbage"])
def test_a_file_that_cannot_be_recognised_is_left_as_it_is(path: Path, kind: str) -> None:
    """It may be what is left of an index, or the only copy of something else: only its owner knows."""
    good = filled(path)
    chance = random.Random(kind)
    for _ in range(4):
        bad = damaged(good, kind, chance)
        path.write_bytes(bad)
        with pytest.raises(NotAStore, match="not a search index") as refused:
            FtsIndex(path, WORKSPACE)
        assert "delete it" in str(refused.value.hint)
        assert path.read_bytes() == bad


@pytest.mark.parametrize("kind", KINDS)
def test_damage_while_it_is_open_is_reported_and_cleared_in_place(path: Path, kind: str) -> None:
    good = filled(path)
    chance = random.Random(kind)
    for _ in range(4):
        path.write_bytes(good)
        index = FtsIndex(path, WORKSPACE)
        position(index)
        inode = path.stat().st_ino
        bad = damaged(good, kind, chance)
        overwrite(path, bad)
        os.truncate(path, len(bad))
        with contextlib.suppress(IndexDamaged):
            use(index)
        begins_again(index, path)
        assert path.stat().st_ino == inode
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


def test_damage_is_noticed_at_all(path: Path) -> None:
    """The negative control: what the tests above allow to pass unnoticed does not always do so."""
    good = filled(path)
    index = FtsIndex(path, WORKSPACE)
    overwrite(path, random.Random(1).randbytes(len(good) - 4096), at=4096)
    with pytest.raises(IndexDamaged):
        use(index)
    index.close()


# -- several at once


def test_an_update_from_a_state_that_is_no_more_does_nothing(index: TextIndex) -> None:
    stamp, _ = index.state()
    after = index.update(stamp, put=[entry(1, "apple")], position=b"one")
    assert after is not None
    assert index.state() == (after, b"one")
    assert index.update(stamp, put=[entry(2, "apple")], drop=[1], position=b"two") is None
    assert (find(index, "apple"), position(index)) == ([1], b"one")
    assert index.update(after, position=b"two") is not None


def test_one_that_does_not_know_that_it_was_cleared_is_told(path: Path) -> None:
    mine, theirs = FtsIndex(path, WORKSPACE), FtsIndex(path, WORKSPACE)
    update(mine, put=[entry(1, "apple")], position=b"one")
    stamp, _ = mine.state()
    theirs.clear()
    assert mine.update(stamp, put=[entry(2, "pear")], position=b"two") is None  # or it would lack what came before
    assert find(mine, "apple") == []
    assert position(mine) is None
    update(mine, put=[entry(1, "apple"), entry(2, "pear")], position=b"two")
    assert find(theirs, "apple") == [1]
    mine.close()
    theirs.close()


@pytest.mark.parametrize("kind", ["memory", "words"])
def test_the_control_of_the_test_above_a_new_index_has_a_stamp_of_its_own(kind: str) -> None:
    first, second = made(kind, Path()), made(kind, Path())
    assert first.state()[0] != second.state()[0]
    before, _ = first.state()
    first.clear()
    assert first.state()[0] != before
    first.close()
    second.close()


def test_threads_share_an_index(index: TextIndex) -> None:
    failures: list[BaseException] = []

    def work(offset: int) -> None:
        try:
            for n in range(20):
                update(index, put=[entry(offset + n, f"apple t{offset}")], position=b"%d" % n)
                assert len(find(index, f"t{offset}")) == n + 1
                index.holds(A)
            index.scrub(0.01)
        except BaseException as error:  # noqa: BLE001  # told to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(find(index, "apple", limit=1000)) == 80


def _write_much(path: Path, offset: int) -> None:
    index = FtsIndex(path, WORKSPACE)
    for n in range(0, 50, 5):
        update(index, put=[entry(offset + n + k, f"apple p{offset}") for k in range(5)], position=b"x")
        update(index, drop=[offset + n])
        index.scrub(0.001)
        assert len(find(index, f"p{offset}")) == (n + 5) * 4 // 5
    index.close()


def test_processes_share_a_file(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_much, args=(path, 1000 * n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    index = FtsIndex(path, WORKSPACE)
    assert not index.was_reset
    assert len(find(index, "apple", limit=1000)) == 120
    assert index._run(lambda c: c.execute("PRAGMA integrity_check").fetchall()) == [("ok",)]
    index.close()


def test_a_forked_child_is_told_to_open_its_own(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    memory, words = FtsIndex(None, WORKSPACE), WordIndex()
    child = os.fork()
    if child == 0:
        answers = []
        for one in (index, memory, words):
            try:
                position(one)
            except Closed:
                answers.append(True)
            one.close()
        os._exit(0 if answers == [True, True, True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert position(index) is None
    index.close()
    memory.close()


def test_a_common_word_is_found_newest_first_without_reading_all(path: Path) -> None:
    index = FtsIndex(path, WORKSPACE)
    for start in range(0, 20_000, 1000):
        update(index, put=[entry(n, f"the apple number {n}") for n in range(start, start + 1000)])

    def seconds(limit: int) -> float:
        return cpu_seconds(lambda: index.find(parse("apple"), limit=limit), 9)

    assert seconds(20) < seconds(20_000) / 10
    index.close()
