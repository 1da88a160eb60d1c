"""Questions in plain words about our own documentation find the page that answers them.

Requirements: G3.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Message, Store

DOCS = Path(__file__).parents[2] / "docs"

# As somebody may ask who does not know our words. The pages of which one has the answer.
QUESTIONS = {
    "what happens when the disk runs full?": {"full-disk"},
    "how do I get a conversation out into a markdown or html file?": {"cli", "commands", "formats"},
    "can two programs write at the same time without losing anything?": {"how-to", "guarantees", "data-model"},
    "where does my encryption key live and how do I change it?": {"keys"},
    "how can I get rid of passwords before they are stored?": {"sanitiser"},
    "how long are old chats kept before they get deleted?": {"retention"},
    "I killed the program during an answer, is the half answer lost?": {"recovery", "recording", "guarantees"},
    "which environment variables does the command line read?": {"cli"},
    "how do I bring my ChatGPT export in?": {"importers", "formats"},
    "using a model that runs on my own computer with Ollama": {"local-servers", "chat"},
    "how do branches and forks of the tree work?": {"data-model", "how-to", "tutorial"},
    "can I keep LangGraph checkpoints in it?": {"frameworks"},
    "how to copy everything over to a postgres server": {"postgres", "moving", "commands"},
    "is there a web page on which I can read my conversations?": {"viewer"},
    "putting snapshots into an S3 bucket": {"snapshots"},
    "metrics and spans for OpenTelemetry": {"telemetry"},
    "how many tokens did I use and what did they cost?": {"rescue", "commands"},
    "which errors are raised when someone else was faster?": {"errors", "data-model", "how-to"},
}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as opened:
        for page in sorted(DOCS.glob("*.md")):
            parts = [part for part in page.read_text(encoding="utf-8").split("\n\n") if part.strip()]
            opened.start(title=page.stem).extend([Message.user(part) for part in parts])
        yield opened


def pages(store: Store, question: str, mode: str) -> list[str]:
    hits = store.search(question, mode=mode, order="best", limit=50)  # type: ignore[arg-type]
    return list(dict.fromkeys(store.conversation(hit.conversation).title for hit in hits))


def test_many_questions_find_their_page_first_and_most_among_the_first_five(store: Store) -> None:
    found = {question: pages(store, question, "auto") for question in QUESTIONS}
    first = [question for question, right in QUESTIONS.items() if right & {*found[question][:1]}]
    early = [question for question, right in QUESTIONS.items() if right & {*found[question][:5]}]
    missed = {question: found[question][:5] for question in QUESTIONS if question not in first}
    assert len(first) >= len(QUESTIONS) * 0.4, missed
    assert len(early) >= len(QUESTIONS) * 0.75, missed


def test_without_the_nearest_hardly_a_question_finds_anything(store: Store) -> None:
    """The control: a match needs all of the words."""
    assert sum(bool(pages(store, question, "match")) for question in QUESTIONS) <= len(QUESTIONS) * 0.2
