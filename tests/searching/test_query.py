"""Words and queries: the form of texts in the index, and the language of queries.

Every expression is run by the real FTS5, which has to accept it.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitherto._search.query import DEEPEST, MOST_CHARACTERS, MOST_TERMS, WORD_CHARACTERS, Term, fold, parse, words
from hitherto.errors import InvalidQuery

from ..support.patience import cpu_seconds

WORD = re.compile(f"[{WORD_CHARACTERS}]+")
TOKENIZER = ("remove_diacritics", "2", "categories", "L* N* Co Mn Mc")


@pytest.fixture(scope="module")
def index() -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    connection.execute(
        "CREATE VIRTUAL TABLE words USING fts5(text, content = '', contentless_delete = 1, "
        "tokenize = \"unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'\")"
    )
    yield connection
    connection.close()


def fits(index: apsw.Connection, query: str, text: str) -> bool:
    """Does the query find the text?"""
    index.execute("BEGIN")
    try:
        index.execute("INSERT INTO words (rowid, text) VALUES (1, ?)", (words(text),))
        found = index.execute("SELECT rowid FROM words WHERE words MATCH ?", (parse(query).expression,)).fetchall()
    finally:
        index.execute("ROLLBACK")
    return bool(found)


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("big dog", '"big" AND "dog"'),
        ("big AND dog", '"big" AND "dog"'),
        ("Big DOG", '"big" AND "dog"'),
        ("and or not", '"and" AND "or" AND "not"'),
        ('"big dog"', '"big dog"'),
        ("begin*", '"begin" *'),
        ('"to begin"*', '"to begin" *'),
        ("a OR b c", '"a" OR ("b" AND "c")'),
        ("(a OR b) c", '("a" OR "b") AND "c"'),
        ("a OR(b c)", '"a" OR ("b" AND "c")'),
        ("a -b", '"a" NOT "b"'),
        ('a -"b c" -d', '"a" NOT ("b c" OR "d")'),
        ("a NOT b", '"a" NOT "b"'),
        ("a AND NOT b", '"a" NOT "b"'),
        ("-b a", '"a" NOT "b"'),
        ("a -(b OR c)", '"a" NOT ("b" OR "c")'),
        ("-OR a", '"a" NOT "or"'),
        ('"OR" "AND"', '"or" AND "and"'),
        ("foo_bar", '"foo bar"'),
        ("a/b.py", '"a b py"'),
        ("print(x)", '"print x"'),
        ("(print(x) OR y)", '"print x" OR "y"'),
        ("f(", '"f"'),
        ("don't", '"don t"'),
        ("C++", '"c"'),
        ("user@example.com", '"user example com"'),
        ("--verbose", '"verbose"'),
        ("a - b", '"a" AND "b"'),
        ("a ... b", '"a" AND "b"'),
        ("a -... b", '"a" AND "b"'),
        ("well-known", '"well known"'),
        ('text: a^2 {b} NEAR(c "d"', '"text" AND "a 2" AND "b" AND "near c" AND "d"'),
        ("東京tower", '"東 京 tower"'),
        ("（東京 OR 大阪）", '"東 京" OR "大 阪"'),
        ("École Straße ﬁn", '"ecole" AND "strasse" AND "fin"'),
        ("a\0b\x07c\nd", '"a" AND "b" AND "c" AND "d"'),
    ],
)
def test_a_query_is_understood_as_people_mean_it(query: str, expression: str) -> None:
    assert parse(query).expression == expression


def test_the_terms_are_what_is_wanted_not_what_is_left_out() -> None:
    query = parse('a "b c"* OR a -(d -e) -f')
    assert query.terms == (Term(("a",)), Term(("b", "c"), prefix=True))


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (None, "a str"),
        (b"bytes", "a str"),
        ("", "no word"),
        (" \t\n", "no word"),
        ("... !? 👍", "no word"),
        ('""', "no word"),
        ("*", "no word"),
        ('"abc', "not closed"),
        ('5" screen', "not closed"),
        ("(a", "not closed"),
        ("((a)", "not closed"),
        ("a)", "not opened"),
        ("()", "missing"),
        ("a OR", "missing"),
        ("OR a", "missing"),
        ("a OR OR b", "missing"),
        ("a AND", "missing"),
        ("AND a", "AND needs"),
        ("a AND AND b", "AND needs"),
        ("a NOT", "NOT needs"),
        ("NOT NOT a", "NOT needs"),
        ("-a", "leave out"),
        ("NOT a -b", "leave out"),
        ("a OR -b", "leave out"),
        ("a (-b)", "leave out"),
        ("x" * (MOST_CHARACTERS + 1), "limit"),
        ("a " * (MOST_TERMS + 1), "limit"),
        ("(" * (DEEPEST + 1) + "a" + ")" * (DEEPEST + 1), "deep"),
        ("a\ud800b", "surrogate"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_a_few_words(query: str, says: str) -> None:
    with pytest.raises(InvalidQuery, match=says) as caught:
        parse(query)
    assert len(str(caught.value)) < 100
    assert caught.value.hint


def test_the_limits_themselves_are_allowed(index: apsw.Connection) -> None:
    terms = " ".join(f"w{n}" for n in range(MOST_TERMS))
    nested = "(a -(b OR " * (DEEPEST // 2) + "c d" + "))" * (DEEPEST // 2)
    for query in ("x" * MOST_CHARACTERS, "東" * MOST_CHARACTERS, terms, " OR ".join(terms.split()), nested):
        assert fits(index, query, "nothing of it") is False


PIECES = st.sampled_from(
    ['"', "(", ")", "-", "*", " ", " AND ", " OR ", " NOT ", "a", "b*", '"a b"', "é", "東京", "ม้า", ".", "^", ":", "\0"]
)


@given(st.text(max_size=60) | st.lists(PIECES, max_size=25).map("".join))
def test_any_text_is_a_query_that_fts5_takes_or_an_invalid_query(index: apsw.Connection, text: str) -> None:
    try:
        query = parse(text)
    except InvalidQuery:
        return
    assert query.terms
    index.execute("SELECT rowid FROM words WHERE words MATCH ?", (query.expression,)).fetchall()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), st.data())
def test_every_word_of_a_text_finds_it(index: apsw.Connection, text: str, data: st.DataObject) -> None:
    there = [word for word in text.replace('"', " ").split() if any(c.isalnum() for c in fold(word))]
    if there:
        word = data.draw(st.sampled_from(there))
        assert fits(index, f'"{word}"', text)


@given(st.text(st.sampled_from("東京都大阪のはがガポー한ไทยม้าเด็กကမြန်မာខ្មែរབོད"), min_size=1, max_size=30), st.data())
def test_any_part_of_a_text_without_spaces_finds_it(index: apsw.Connection, text: str, data: st.DataObject) -> None:
    text = unicodedata.normalize("NFKC", text).replace("한", "")  # Korean words are found whole, or by their beginning
    if text:
        start = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(start + 1, len(text)))
        if not unicodedata.combining(text[start]):  # it might be composed with the quotation mark
            assert fits(index, f'"{text[start:end]}"', text)


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("cafe", "Le CAFÉ", True),
        ("cafe\u0301", "le café", True),
        ("strasse", "Hauptstraße STRASSE", True),
        ("αθηνα", "Αθήνα", True),
        ("мой", "Мои", False),  # another letter, not an accent
        ("كتاب", "كِتَاب", True),
        ("שלום", "שָׁלוֹם", True),
        ("हिन्दी", "यह हिन्दी है", True),
        ("हिन्दी", "यह हिन्दू है", False),  # SQLite alone would drop the vowels
        ("학교*", "학교에서 만나요", True),
        ("학교", "학교에서 만나요", False),
        ("ﾄｳｷｮｳ", "トウキョウ", True),
        ("thanks", "thanks🤖", True),  # SQLite alone takes this robot for a letter
        ("love", "love❤️", True),
        ("example", "exam\u00adple", True),
        ("x²", "x2", True),
        ("b", "a\0b", True),
        ("end", "half \ud83d end é", True),
        ("ab", "a b", False),
        ('"b a"', "a b", False),
        ("a -b", "a b", False),
    ],
)
def test_what_finds_what(index: apsw.Connection, query: str, text: str, expected: bool) -> None:
    assert fits(index, query, text) is expected


def test_plain_ascii_is_left_as_it_is() -> None:
    text = "Hello, World_1!\n"
    assert words(text) is text
    assert words("a\0b") == "a b"


def test_sqlite_agrees_about_every_character_there_is() -> None:
    """Each of our words is one token of SQLite, whatever its own tables say."""
    connection = apsw.Connection(":memory:")
    tokenize = connection.fts5_tokenizer("unicode61", list(TOKENIZER))
    wrong = []
    for start in (*range(0x80, 0x32000, 64), *range(0xE0000, 0xE0200, 64), 0xF0000, 0x10FFC0):
        text = " x ".join(words(chr(code)) for code in range(start, start + 64))
        tokens = list(tokenize(text.encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False))
        if len(tokens) != len(WORD.findall(text.lower())):
            wrong.append(hex(start))
    connection.close()
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000,
        "東京タワー" * 200_000,
        "it’s “fine” — " * 70_000,
        "e\u0301" * 500_000,
        "a" + "\u0301\u0316" * 500_000,  # a heap of marks, which takes NFKC quadratic time
        "\u0e4d\u0e38" * 500_000,
        "\ufdfa" * 50_000,  # becomes 18 characters
    ],
    ids=["ascii", "han", "quotes", "decomposed", "marks", "thai marks", "expanding"],
)
def test_a_megabyte_is_taken_in_quickly(text: str) -> None:
    assert cpu_seconds(lambda: words(text), 1) < 10  # it takes 0.1 s; quadratic time would be minutes


def test_normalising_a_heap_of_marks_as_it_is_takes_quadratic_time() -> None:
    """The negative control of the test above: why `words` shortens it."""

    def seconds(length: int) -> float:
        text = "a" + "\u0301\u0316" * length
        return cpu_seconds(lambda: unicodedata.normalize("NFKC", text))

    if seconds(8_000) < 6 * seconds(2_000):
        pytest.skip("this Python does it in linear time")


def test_no_mark_is_taken_for_a_letter_by_the_rule_that_shortens_heaps() -> None:
    assert [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(c) and c.isalnum()] == []
