"""Usage: the tokens of all answers, each once, and what they cost.

Requirements: F3.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import hitherto
from hitherto import Key, Message, formats
from hitherto.errors import CannotOpen, InvalidArgument
from hitherto.model import Usage
from hitherto.usage import Price, Prices, count_usage

from ..formats.test_claude_code import PROGRAM
from ..support.command import World

PRICES = Prices("2026-01-01", {"a": Price(1.0, 10.0, 0.1, 2.0), "b": Price(3.0, 30.0)})


def answer(text: str, **usage: int) -> Message:
    return Message.assistant(text, usage=Usage(**usage))


@pytest.mark.parametrize("key", [None, Key(b"k" * 32)])
def test_an_answer_counts_once_whatever_shares_or_copies_it(key: Key | None, tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "a.db", key=key) as store:
        talk = store.start(provider="openai", model="a", project="/p", title="t")
        talk.append(Message.user("q"))
        first = talk.append(answer("one", input_tokens=1000, output_tokens=100))
        branch = talk.fork(at=first)
        branch.append(Message.user("else"))
        branch.append(answer("two", input_tokens=2000, output_tokens=200))
        copy = branch.detach()
        copy.append(answer("three", output_tokens=7))
        copy.configure(model="unheard-of")
        copy.append(answer("four", output_tokens=9))
        found = count_usage(store, by="model", prices=PRICES)
        assert [(row.name, row.answers, row.usage.output_tokens) for row in found.rows] == [
            ("a", 3, 307), ("unheard-of", 1, 9),
        ]  # fmt: skip
        assert found.total.cost == round((3000 * 1.0 + 307 * 10.0) / 1e6, 6)
        assert (found.unpriced, found.total.unpriced, found.prices_of) == (("unheard-of",), 1, "2026-01-01")
        by_project = count_usage(store, by="project", prices=PRICES)
        assert [row.name for row in by_project.rows] == ["/p"]
        store.purge(talk, reason="user-requested")
        assert count_usage(store, by="all", prices=PRICES).total.answers == 4  # now the copies are all there is


def test_cached_tokens_have_prices_of_their_own() -> None:
    used = Usage(input_tokens=1000, output_tokens=10, cache_read_tokens=600, cache_write_tokens=300)
    assert PRICES.cost("a", used) == pytest.approx((100 * 1 + 600 * 0.1 + 300 * 2 + 10 * 10) / 1e6)
    assert PRICES.cost("b", used) == pytest.approx((1000 * 3 + 10 * 30) / 1e6)
    assert PRICES.cost("c", used) is None


@pytest.mark.parametrize("name", ["a", "a-20260101", "vendor/a", "vendor/a-2026-01-01", "a[1m]", "a-latest"])
def test_versions_of_a_model_have_its_price(name: str) -> None:
    assert PRICES.price_of(name) == PRICES.models["a"]
    assert PRICES.price_of(f"{name}-mini") is None


def test_days_are_those_on_which_it_was_said(tmp_path: Path) -> None:
    with hitherto.open("memory:") as store:
        formats.load(PROGRAM, store)
        found = count_usage(store, by="day", prices=PRICES)
        assert [row.name for row in found.rows] == ["2026-11-19"]
        assert found.total.answers == 8
        assert count_usage(store, since=datetime.now(UTC) + timedelta(days=999)).total.answers == 0
        assert count_usage(store, by="source").rows[0].name == "claude-code"
        with pytest.raises(InvalidArgument):
            count_usage(store, by="moon")  # type: ignore[arg-type]  # a wrong word


def test_our_prices_are_complete_and_dated() -> None:
    ours = Prices.ours()
    assert datetime.fromisoformat(ours.date).year >= 2026
    assert len(ours.models) > 50
    assert all(price.input > 0 and price.output > 0 for price in ours.models.values())
    assert ours.price_of("claude-sonnet-4-5-20250929") == Price(3.0, 15.0, 0.3, 3.75)


def test_a_file_of_prices_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"date": 3}')
    with pytest.raises(InvalidArgument, match="no file of prices"):
        Prices.from_file(tmp_path / "p.json")
    with pytest.raises(CannotOpen):
        Prices.from_file(tmp_path / "missing")


@pytest.fixture
def filled(world: World) -> World:
    with hitherto.open(world.place) as store:
        talk = store.start(provider="openai", model="a")
        talk.append(Message.user("q"))
        talk.append(answer("one", input_tokens=1000, output_tokens=2000))
    return world


def test_the_command_tells_rows_a_line_and_json(filled: World) -> None:
    (filled.here / "p.json").write_text('{"date": "2026-02-02", "models": {"a": {"input": 1000, "output": 2000}}}')
    done = filled.command("usage", "--by", "model", "--prices", "p.json")
    assert done.returncode == 0, done.stderr
    assert "$5.00" in done.stdout
    assert "prices of 2026-02-02" in done.stderr
    found = json.loads(filled.command("usage", "--json").stdout)
    assert found["total"]["output_tokens"] == 2000
    assert found["unpriced_models"] == ["a"]
    assert "+ today, 3.0k tokens" in filled.command("usage", "--line").stdout
    assert "without a price" in filled.command("usage", "--days", "3").stderr
