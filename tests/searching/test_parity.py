"""One corpus on all three indexes: FTS5, the sealed index, PostgreSQL. Each search has the same hits and tiers.

Requirements: G3.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto.formats import copy

from ..support.databases import new_database
from .test_questions import DOCS, QUESTIONS

PAGES = ("cli.md", "data-model.md", "formats.md", "keys.md", "recovery.md", "retention.md", "sanitiser.md", "viewer.md")
WORDS = (
    "key",
    "a message",
    '"the store"',
    "conver*",
    "export OR import",
    "key -sealed",
    "(full OR disk) write",
    "zebra",
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Store]]:
    """The same messages, with the same times."""
    folder = tmp_path_factory.mktemp("parity")
    with (
        hitherto.open(folder / "plain.db", maintenance=False) as plain,
        hitherto.open(folder / "sealed.db", key=Key.generate(), maintenance=False) as sealed,
        hitherto.open(new_database().url(), workspace="parity", maintenance=False) as postgres,
    ):
        for page in PAGES:
            parts = [part for part in (DOCS / page).read_text(encoding="utf-8").split("\n\n") if part.strip()]
            plain.start(title=Path(page).stem).extend([Message.user(part) for part in parts])
        for other in (sealed, postgres):
            copy(plain, other)
        yield {"plain": plain, "sealed": sealed, "postgres": postgres}


def ask(store: Store, words: str, mode: str, order: str = "newest") -> list[tuple[str, str]]:
    """The text of each hit, and its tier. No text stands twice in the corpus."""
    hits = store.search(words, mode=mode, order=order, limit=30)  # type: ignore[arg-type]
    return [(store.conversation(hit.conversation).fork(at=hit.message_id).thread()[-1].text, hit.tier) for hit in hits]


@pytest.mark.parametrize("mode", ["match", "nearest", "auto"])
def test_every_index_gives_the_same_hits_in_the_same_order(stores: dict[str, Store], mode: str) -> None:
    asked = (*WORDS, *QUESTIONS)
    found = {name: [ask(store, words, mode) for words in asked] for name, store in stores.items()}
    assert any(found["plain"])
    for name in ("sealed", "postgres"):
        differing = [words for words, ours, its in zip(asked, found["plain"], found[name], strict=True) if ours != its]
        assert not differing, name


def test_every_index_scores_the_nearest_alike(stores: dict[str, Store]) -> None:
    for question in QUESTIONS:
        scores = [[round(hit.score, 6) for hit in one.search(question, mode="nearest")] for one in stores.values()]
        assert scores[0] == scores[1] == scores[2], question


def test_the_best_matches_are_the_same_and_their_order_is_the_engines(stores: dict[str, Store]) -> None:
    """FTS5 and the sealed index rank by bm25; PostgreSQL ranks by its own measure, which knows no rare words."""
    for words in WORDS:
        all_of = [{text for text, _ in ask(one, words, "match", "best")} for one in stores.values()]
        if len(all_of[0]) < 30:
            assert all_of[0] == all_of[1] == all_of[2], words
