"""What recording adds to a turn does not grow with the history, and nothing is done twice. Counted, not timed.

Requirements: C10.
"""

import threading
from collections import Counter
from typing import Any

import pytest

import hitherto
from benchmarks._posting import DIALECTS, Posting, turns
from hitherto import Sanitiser
from hitherto._engine import describing
from hitherto._engine.appending import HandlePosition
from hitherto.backends.memory import MemoryBackend
from hitherto.dialects import _json
from hitherto.dialects import dialect as find_dialect
from hitherto.recorder import _body, _recorder
from hitherto.recorder._sent_requests import SentRequests
from hitherto.sanitiser import values
from hitherto.sanitiser.values import KnownTexts

_VERBS = ("commit", "items", "lookup", "messages", "page", "path", "root", "edge", "attachments")


def _count_calls(patch: pytest.MonkeyPatch, owner: object, name: str, count: Counter[str]) -> None:
    """Count the calls of a function in this thread, and the bytes or characters of its last argument. Maintenance has a
    thread of its own."""
    function: Any = getattr(owner, name)
    here = threading.get_ident()

    def counting(*args: Any, **kwargs: Any) -> Any:
        is_here = threading.get_ident() == here
        count[name] += is_here
        if is_here and isinstance(args[-1], (bytes, str)):
            count[f"{name}, size"] += len(args[-1])
        return function(*args, **kwargs)

    patch.setattr(owner, name, counting)


def _one_turn(dialect: str, size: int, sanitiser: Sanitiser | None = None) -> Counter[str]:
    """Record two turns over a history of so many messages, and count what a third one does."""
    with pytest.MonkeyPatch.context() as patch, hitherto.open("memory:", sanitiser=sanitiser) as store:
        given = turns(dialect, size, 2)
        with Posting(given, dialect, store) as posting:
            posting.turn(0)
            posting.turn(1)
            count: Counter[str] = Counter()
            for name in _VERBS:
                _count_calls(patch, MemoryBackend, name, count)
            for owner, name in ((_json, "decode"), (_body, "_fields"), (_body, "_decode")):
                _count_calls(patch, owner, name, count)
            _count_calls(patch, type(find_dialect(dialect)), "likeness", count)
            _count_calls(patch, Sanitiser, "clean", count)
            posting.turn(2)
        return Counter(count)  # closing the store counts as well


@pytest.mark.parametrize("is_cleaned", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_over_a_long_history_does_what_one_over_a_short_history_does(dialect: str, is_cleaned: bool) -> None:
    sanitiser = Sanitiser.secrets() if is_cleaned else None
    short, long = _one_turn(dialect, 10, sanitiser), _one_turn(dialect, 400, sanitiser)
    assert short == long
    assert min(long[name] for name in ("decode, size", "_fields, size", "_decode, size")) > 0


def test_without_the_requests_that_were_sent_a_turn_reads_the_whole_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control of the test above."""
    monkeypatch.setattr(SentRequests, "find", lambda *_: None)
    short, long = _one_turn("openai-chat", 10), _one_turn("openai-chat", 400)
    assert long["decode, size"] > 10 * short["decode, size"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_is_two_commits_and_reads_one_row(dialect: str) -> None:
    count = _one_turn(dialect, 10)
    assert {name: count[name] for name in _VERBS if count[name]} == {"commit": 2, "lookup": 1}


def test_without_a_note_of_the_setup_each_turn_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control of the test above."""

    def forgetful(position: HandlePosition, *args: Any, **kwargs: Any) -> None:
        position.compared_setup = None
        describing.configure(position, *args, **kwargs)

    monkeypatch.setattr(_recorder, "configure", forgetful)
    assert _one_turn("openai-chat", 10)["items"] == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_question_is_compared_in_one_form_and_an_answer_in_two(dialect: str) -> None:
    """An answer as it came, and as the client sends it back; a question as it was sent."""
    assert _one_turn(dialect, 10)["likeness"] == 3


def _cleaned(dialect: str) -> Counter[tuple[str, str]]:
    """The texts that rules have searched in four turns, with the names of their fields."""
    searched: Counter[tuple[str, str]] = Counter()
    clean = Sanitiser.clean

    def counting(self: Sanitiser, text: str, *, name: str = "", complete: bool = True) -> Any:
        searched[name, text] += 1
        return clean(self, text, name=name, complete=complete)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sanitiser, "clean", counting)
        with hitherto.open("memory:", sanitiser=Sanitiser.secrets()) as store:
            given = turns(dialect, 4, 3)
            with Posting(given, dialect, store) as posting:
                for n in range(4):
                    posting.turn(n)
    assert any("And 3?" in text for _, text in searched)
    assert any("Yes, 3." in text for _, text in searched)
    return searched


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_text_is_cleaned_twice(dialect: str) -> None:
    searched = _cleaned(dialect)
    assert [text for text, times in searched.items() if times > 1] == []


def test_without_a_memory_of_clean_texts_an_answer_is_cleaned_when_it_is_sent_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A control of the test above."""
    monkeypatch.setattr(KnownTexts, "has", lambda *_: False)
    searched = _cleaned("openai-chat")
    assert max(times for (_, text), times in searched.items() if "Yes, 1." in text) > 1


def test_a_secret_is_removed_each_time_it_comes() -> None:
    """Only texts without findings are remembered, and only for the name of the field that they stood under."""
    known, sanitiser = KnownTexts(), Sanitiser.secrets()
    for _ in range(2):
        job = values.Cleaning(sanitiser, known)
        assert job.text("correct horse 77 battery", "note") == "correct horse 77 battery"
        assert "horse" not in job.text("correct-horse-77-battery", "password")
        assert job.found
        assert job.text("correct-horse-77-battery", "") == "correct-horse-77-battery"
