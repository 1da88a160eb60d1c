"""Files that the programs themselves wrote, against a scripted provider: Codex 0.169.0 and Gemini CLI 0.61.0.

`make test-programs` lets the programs write such files anew, and compares with what the provider saw. Requirements: F1.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Store
from hitherto.model import Saved

from ..support.imports import bring_in, conversations, only, why_injected

PROGRAMS = Path(__file__).parents[1] / "data" / "programs"
CODEX, GEMINI = PROGRAMS / "codex" / "sessions", PROGRAMS / "gemini-cli"
FIRST, SECOND = ("first", "I heard: first"), ("second", "I heard: second")
SUMMARY = "I heard: cused on helping the next LLM seamlessly continue the work.\n"  # said when it was asked for one


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def is_said(message: Saved) -> bool:
    return bool(message.text) and message.role in ("user", "assistant") and not why_injected(message)


def ends(store: Store) -> set[tuple[str, ...]]:
    """What people and models said up to each end, without what programs add."""
    return {
        tuple(m.text for m in talk.fork(at=leaf.id).thread() if is_said(m))
        for talk in conversations(store)
        for leaf in talk.branches()
        if leaf.main
    }


def test_forks_rewinds_compactions_and_sub_agents_of_codex(store: Store) -> None:
    report = bring_in(CODEX, store, "codex")
    assert (report.new, report.unknown, report.waiting, report.subagents) == (2, {}, (), 1)
    assert ends(store) == {
        (*FIRST, *SECOND, "this is a fork", "I heard: this is a fork"),
        (*FIRST, "instead", "I heard: instead", SUMMARY),
        ("this is compacted", "I heard: this is compacted"),
        ("send an agent please", "The tool has answered."),
    }
    (summary,) = (m for m in store.messages() if why_injected(m) == "summary")
    assert {m.id: m.text for m in store.messages()}[summary.link or ""] == SUMMARY
    (call,) = (m for m in store.messages() if any(block.tool_name == "spawn_agent" for block in m.blocks))
    assert [m.link for m in store.messages() if m.label and m.parent is None] == [call.id]


def test_rollouts_of_codex_come_one_by_one_in_any_order(store: Store, tmp_path: Path) -> None:
    """The fork and the rewind go on from the first file, which comes last."""
    files = sorted(CODEX.rglob("*.jsonl"))[:3]
    for number, file in enumerate(reversed(files)):
        alone = tmp_path / str(number) / file.name
        alone.parent.mkdir()
        alone.write_bytes(file.read_bytes())
        bring_in(alone, store, "codex")
    assert only(store).title == "first"
    with hitherto.open("memory:") as other:
        bring_in(CODEX, other, "codex")
        assert ends(store) == {end for end in ends(other) if end[0] != "send an agent please"}


def test_a_rewind_and_a_sub_agent_of_gemini(store: Store) -> None:
    report = bring_in(GEMINI, store, "gemini-cli")
    assert (report.new, report.unknown, report.waiting, report.subagents) == (1, {}, (), 1)
    assert ends(store) == {
        (*FIRST, "second\n\nsecond", "I heard: second\n\nsecond"),  # the terminal sent it twice
        (*FIRST, *["instead", "I heard: instead"] * 2, "send an agent please", "The tool has answered."),
    }
    (call,) = (m for m in store.messages() if any(block.tool_name == "invoke_agent" for block in m.blocks))
    assert [m.link for m in store.messages() if m.label and m.parent is None] == [call.id]
