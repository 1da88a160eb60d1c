"""The part of a text that shows why it was found."""

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitherto._search.query import Query, parse
from hitherto._search.snippets import snippet

from ..support.patience import cpu_seconds

BEFORE = "Lorem ipsum dolor sit amet. " * 40
AFTER = " consetetur sadipscing elitr" * 40


def marked(text: str, query: str, width: int = 160) -> list[str]:
    shown, spans = snippet(text, parse(query), width)
    return [shown[start:end] for start, end in spans]


def test_a_short_text_is_shown_whole() -> None:
    assert snippet("The quick brown fox.", parse("quick")) == ("The quick brown fox.", ((4, 9),))


def test_a_long_text_is_cut_at_words_and_says_so() -> None:
    shown, spans = snippet(BEFORE + "the quick brown fox" + AFTER, parse("quick"), 60)
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert len(shown) <= 60
    assert [shown[start:end] for start, end in spans] == ["quick"]
    assert set(shown.strip("…").split()) <= set(f"{BEFORE} the quick brown fox {AFTER}".split())


def test_nothing_is_said_to_be_cut_where_nothing_is() -> None:
    assert not snippet("quick" + AFTER, parse("quick"))[0].startswith("…")
    assert not snippet(BEFORE + "quick", parse("quick"))[0].endswith("…")
    assert not snippet("  \n quick \n ", parse("quick"))[0].endswith("…")


def test_white_space_is_one_space() -> None:
    assert snippet("  a\n\n\tbig\u3000dog\r\n", parse('"big dog"')) == ("a big dog", ((2, 9),))


def test_the_place_where_most_terms_meet_is_taken() -> None:
    text = "apple alone. " + BEFORE + "pear alone. " + BEFORE + "an apple and a pear" + AFTER
    assert marked(text, "apple pear") == ["apple", "pear"]
    assert "alone" not in snippet(text, parse("apple pear"))[0]


def test_the_first_place_is_taken_if_all_are_as_good() -> None:
    text = f"{BEFORE} first apple {BEFORE} second apple"
    assert "first apple" in snippet(text, parse("apple"))[0]
    assert "first apple" in snippet(text, parse("apple pear"))[0]


def test_everything_that_fits_in_the_part_that_is_shown_is_marked() -> None:
    assert marked("an apple, an APPLE, and pineapple, apples", "apple") == ["apple", "APPLE"]
    assert marked("an apple, an APPLE, and pineapple, apples", "apple*") == ["apple", "APPLE", "apples"]


def test_where_nothing_fits_the_beginning_is_shown() -> None:
    shown, spans = snippet(BEFORE, parse("nowhere"))
    assert spans == ()
    assert shown.startswith("Lorem ipsum")
    assert shown.endswith("…")
    assert snippet("", parse("nowhere")) == ("", ())
    assert snippet("text", Query("", ())) == ("text", ())


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("Le CAFÉ noir", "cafe", ["CAFÉ"]),
        ("le cafe\u0301 noir", "café", ["cafe\u0301"]),
        ("un ﬁn mot", "fin", ["ﬁn"]),
        ("die Hauptstraße", "hauptstrasse", ["Hauptstraße"]),
        ("昨日、東京タワーを見た", "東京タワー", ["東京タワー"]),
        ("ตัวอย่างภาษาไทยที่ดี", "ภาษาไทย", ["ภาษาไทย"]),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", "한글", ["\u1112\u1161\u11ab\u1100\u1173\u11af"]),
        ("see foo_bar.py now", "foo_bar.py", ["foo_bar.py"]),
        ("foo, bar! foo bar", '"foo bar"', ["foo, bar", "foo bar"]),
        ("a mouse and a cat", "cat -mouse", ["cat"]),
        ("barfoo foobar", "foo", []),
    ],
)
def test_it_sees_what_the_index_sees(text: str, query: str, expected: list[str]) -> None:
    assert marked(text, query) == expected


def test_a_text_without_spaces_is_cut_anywhere_but_inside_a_letter() -> None:
    shown, spans = snippet("日本語の文章。" * 100 + "東京" + "日本語の文章。" * 100, parse("東京"), 40)
    assert len(shown) == 40
    assert [shown[start:end] for start, end in spans] == ["東京"]
    for width in range(30, 42):
        shown, _ = snippet("ที่นี่" * 100 + "東京" + "ที่นี่" * 100, parse("東京"), width)
        assert unicodedata.category(shown[1])[0] != "M"


def test_a_match_longer_than_the_width_is_cut() -> None:
    shown, spans = snippet("x " + "-" * 500 + "y z", parse('"x y"'), 40)
    assert len(shown) <= 40
    assert all(0 <= start < end <= len(shown) for start, end in spans)


def test_places_near_the_edges_of_the_pieces_are_found() -> None:
    for offset in range(16_350, 16_420, 3):
        assert marked("é" + "x" * offset + " needle hay", "needle") == ["needle"]
        assert marked("é" + "x" * offset + "needle hay", "needle") == []
        assert marked("x" * offset + " needle hay", '"needle hay"') == ["needle hay"]


ODD = st.sampled_from(
    ["apple", "Pear", "é", "e\u0301", "ﬁ", "東京", "ม้า", " ", "\n\n", "   ", ".", "—", "🤖", "\u0301", "ß", "\0", "İ"]
)


@given(st.lists(ODD, max_size=120).map("".join) | st.text(max_size=300), st.sampled_from([16, 20, 40, 160, 3]))
def test_spans_lie_inside_and_the_snippet_within_its_width(text: str, width: int) -> None:
    for query in ("apple", 'pear OR "e東"', "a* OR e* OR 京 OR ss OR ม้า OR fi", "i*"):
        shown, spans = snippet(text, parse(query), width)
        assert len(shown) <= max(width, 16)
        assert all(0 <= start < end <= len(shown) for start, end in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert "".join(shown.strip("…").split()) in "".join(text.split()) or "…" in text


@given(st.lists(ODD, max_size=60).map("".join), st.lists(ODD, max_size=60).map("".join))
def test_a_word_that_stands_in_the_text_is_marked(before: str, after: str) -> None:
    assert "Needle" in marked(f"{before} Needle. {after}", "needle")


@pytest.mark.parametrize(
    ("filler", "query"),
    [
        ("x" * 1_000_000, "needle"),
        ("word " * 200_000, "needle OR other"),
        ("needle " * 150_000, "needle other"),
        ("é" * 1_000_000, "needle"),
        ("日本語" * 300_000, "日本 needle"),
        ("-" * 1_000_000, '"x y"'),
        ("a" + "\u0301\u0316" * 500_000, "needle"),
        ("word " * 200_000, " OR ".join(f"w{n}*" for n in range(64))),
    ],
    ids=["one word", "words", "needles", "accents", "han", "dashes", "marks", "many terms"],
)
def test_a_megabyte_takes_bounded_time(filler: str, query: str) -> None:
    asked = parse(query)
    assert cpu_seconds(lambda: snippet(filler, asked), 1) < 20  # the slowest takes a second; quadratic, hours


def test_what_comes_early_in_a_long_text_is_found_without_reading_it_all() -> None:
    text = "a needle " + "日本語" * 300_000

    def seconds(query: str) -> float:
        return cpu_seconds(lambda: snippet(text, parse(query)))

    assert seconds("needle") < seconds("nowhere") / 2
