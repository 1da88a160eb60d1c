"""The nearest messages: a question in plain words finds something, on every index, at a bounded cost.

Requirements: G3.
"""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto._search.nearest import CANDIDATES, READ, Candidates, parse_question
from hitherto._search.query import Query
from hitherto._search.word_stems import stem, stop_words
from hitherto.errors import InvalidArgument, InvalidQuery
from hitherto.textindex import Found

from ..support.databases import Database, new_database

LINT = "An unused import in setup.py breaks the linter."


@pytest.fixture(scope="module")
def database() -> Database:
    return new_database()


@pytest.fixture(params=["sqlite", "sealed", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    where = request.getfixturevalue("database").url() if request.param == "postgres" else tmp_path / "a.db"
    key = Key.generate() if request.param == "sealed" else None
    with hitherto.open(where, key=key, workspace=uuid4().hex, maintenance=False) as opened:
        yield opened


def nearest(store: Store, question: str, **given: object) -> list[str]:
    return [hit.snippet for hit in store.search(question, mode="nearest", **given)]  # type: ignore[arg-type]


def keep(store: Store, *texts: str, title: str = "") -> list[str]:
    talk = store.start(title=title)
    return [talk.append(Message.user(text)).id for text in texts]


def test_a_question_that_matches_nothing_finds_the_nearest_and_says_so(store: Store) -> None:
    keep(store, "Why does the lint step break on CI?", LINT, title="Build")
    keep(store, "Bread needs flour, water and salt.")
    question = "how did we fix the broken linting last week"
    assert store.search(question) == []
    hits = store.search(question, mode="auto")
    assert [hit.tier for hit in hits] == ["nearest"] * 2
    assert all("lint" in hit.snippet for hit in hits)
    assert hits[0].score >= hits[1].score > 0
    assert all(hit.snippet[start:end].lower().startswith("lint") for hit in hits for start, end in hit.spans)


def test_a_match_is_preferred_to_the_nearest_and_its_pages_end(store: Store) -> None:
    keep(store, "red apples", "green apples", "red pears")
    hits = store.search("red apples", mode="auto")
    assert [(hit.snippet, hit.tier) for hit in hits] == [("red apples", "match")]
    assert store.search("red apples", mode="auto", offset=1) == []
    assert nearest(store, "red apples")[0] == "red apples"
    assert len(nearest(store, "red apples")) == 3
    assert nearest(store, "red apples", limit=1, offset=1) == nearest(store, "red apples")[1:2]


def test_all_forms_of_a_word_are_found_and_those_of_another_weigh_less(store: Store) -> None:
    keep(store, "the important part", "we imported it", "imports are sorted")
    assert nearest(store, "importing")[-1] == "the important part"
    assert len(nearest(store, "importing")) == 3


def test_stop_words_weigh_nothing_unless_there_is_nothing_else(store: Store) -> None:
    keep(store, "what was it that you did for them", "the zebra")
    assert nearest(store, "what was the zebra?") == ["the zebra"]
    assert nearest(store, "what was that") == ["what was it that you did for them"]


def test_rare_words_weigh_more_than_common_ones(store: Store) -> None:
    keep(store, *(f"the build number {n}" for n in range(30)), "a quokka appeared")
    assert nearest(store, "which build had the quokka")[0] == "a quokka appeared"


def test_what_stands_around_a_message_counts(store: Store) -> None:
    keep(store, "deploy failed", "nothing more")
    keep(store, "about the harbour crane", "deploy failed", "the crane driver waited")
    first = store.search("deploy crane harbour", mode="nearest", limit=10)
    failed = [hit for hit in first if hit.snippet == "deploy failed"]
    assert failed[0].score > failed[1].score
    around = store.conversation(failed[0].conversation).thread()
    assert "about the harbour crane" in [message.text for message in around]


def test_the_title_of_the_conversation_counts(store: Store) -> None:
    keep(store, "it works now", title="Harbour crane")
    keep(store, "it works now", title="Bakery")
    hits = store.search("does the harbour thing work", mode="nearest")
    assert [store.conversation(hit.conversation).title for hit in hits] == ["Harbour crane", "Bakery"]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("ビルドを直しました", "どうやってビルドを直したの"),
        ("Ошибка при сборке проекта", "как исправить ошибки сборки"),
        ("학교에서 만났어요", "학교는 어디"),
        ("การสร้างล้มเหลว", "ทำไมการสร้าง"),
        ("Das Programm stürzt ab", "Warum stürzten Programme"),
    ],
)
def test_questions_in_other_languages_find_something(store: Store, text: str, question: str) -> None:
    keep(store, "nothing of interest", text)
    assert nearest(store, question) == [text]


def test_filters_hold_for_the_nearest_too(store: Store) -> None:
    talk = store.start(project="/here")
    talk.append(Message.user("the zebra sleeps"))
    talk.append(Message.assistant("zebras sleep standing"))
    keep(store, "a zebra elsewhere")
    assert len(nearest(store, "zebras sleeping where")) == 3
    assert nearest(store, "zebras sleeping where", role="assistant") == ["zebras sleep standing"]
    assert len(nearest(store, "zebras sleeping where", project="/here")) == 2
    assert len(nearest(store, "zebras sleeping where", conversation=talk)) == 2
    assert nearest(store, "zebras -sleep*") == ["a zebra elsewhere"]


def test_what_was_deleted_is_not_among_the_nearest(store: Store) -> None:
    ids = keep(store, "a zebra and a crane", "the zebra alone")
    assert len(nearest(store, "zebra cranes")) == 2
    store.delete(ids[1:])
    assert nearest(store, "zebra cranes") == ["a zebra and a crane"]


@pytest.mark.parametrize(
    "question", ['what about "the zebra', "(zebra", "zebra)", "AND zebra", "-crane zebra (", "z?! zebra"]
)
def test_a_question_that_is_no_query_is_taken_for_its_words(store: Store, question: str) -> None:
    keep(store, "the zebra sleeps")
    assert nearest(store, question) == ["the zebra sleeps"]
    assert [hit.tier for hit in store.search(question, mode="auto")] in (["nearest"], ["match"])


@pytest.mark.parametrize("question", ["", "?!", '"', "\ud800", "x" * 2_001])
def test_a_question_without_a_word_is_refused_in_every_mode(store: Store, question: str) -> None:
    for mode in ("match", "nearest", "auto"):
        with pytest.raises(InvalidQuery):
            store.search(question, mode=mode)


def test_another_mode_or_order_is_refused(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="match, nearest, auto"):
        store.search("x", mode="fuzzy")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="newest, best"):
        store.search("x", order="oldest")  # type: ignore[arg-type]


def test_huge_and_odd_texts_are_ranked_as_well(store: Store) -> None:
    keep(
        store,
        "zebra " + "padding " * 100_000,
        "padding " * 100_000 + " zebra",
        "zebra\0\x1b[31m zebra",
        "zebra" * 5_000,
    )
    found = nearest(store, "zebras?")
    assert len(found) == 4
    assert "zebra\0" in found[0] or found[0].startswith("zebra")


def test_the_cost_depends_on_the_question_and_not_on_the_store() -> None:
    """The index is asked a bounded number of times, for a bounded number of messages. Without the limits, a common word
    would bring in every message that has it."""
    asked: list[int] = []

    def find(query: Query, limit: int) -> list[Found]:
        asked.append(limit)
        return [Found(number, b"c", 0.0) for number in range(min(limit, 1_000_000))]

    question = parse_question(" ".join(f"word{n}" for n in range(64)) + " " + "more " * 50)
    candidates = Candidates(question, find)
    assert len(asked) < 40
    assert sum(asked) < 40_000
    assert len(candidates.best()) == CANDIDATES
    assert READ <= 100


def test_common_words_that_stand_together_are_found_behind_many_that_do_not() -> None:
    together = Found(7, b"old", 0.0)

    def find(query: Query, limit: int) -> list[Found]:
        if len(query.terms) > 1:
            return [together]
        start = 1_000_000 if query.terms[0].words == ("red",) else 2_000_000
        return [Found(start + number, b"new", 0.0) for number in range(limit)]

    candidates = Candidates(parse_question("red dogs"), find)
    assert next(iter(candidates.best())) == 7


def test_a_stem_is_always_a_beginning_of_its_word() -> None:
    for word in (
        "running",
        "studies",
        "study",
        "classes",
        "boxes",
        "status",
        "the",
        "ошибками",
        "학교에서",
        "x",
        "été",
    ):
        assert word.startswith(stem(word)), word
    assert stem("studies") == stem("study") == stem("studied")
    assert stem("makes") == stem("making") == stem("make")
    assert stem("class") == "class"
    assert {"the", "wie", "как"} <= stop_words()
    assert not {"ci", "io", "mit", "bin", "eu"} & stop_words()
