"""Claude.ai's data export, in both shapes: texts and blocks, a line and a tree, calls inside of answers.

Requirements: F1.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Store, formats

from ..support.imports import bring_in, bring_in_part, conversations, native, only, path_of, put_json, threads

ROOT = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def message(id: str, sender: str, text: str = "", *blocks: dict[str, object], second: int = 0, **more: object) -> Any:
    at = f"2025-03-01T10:00:{second:02}.000000+00:00"
    found = {
        "uuid": id,
        "text": text,
        "sender": sender,
        "created_at": at,
        "updated_at": at,
        "attachments": [],
        "files": [],
    }
    return found | ({"content": list(blocks)} if blocks else {}) | more


def talk(*messages: object, **more: object) -> dict[str, Any]:
    return {
        "uuid": "6f0e4cf4-9c1f-4c3c-9d43-0a4c3f0f6d5e", "name": "Tides", "created_at": "2025-03-01T10:00:00+00:00",
        "account": {"uuid": "acc"}, "chat_messages": list(messages), **more,
    }  # fmt: skip


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said, "start_timestamp": "x", "citations": []}


def test_the_early_shape_is_a_line_of_texts(store: Store, tmp_path: Path) -> None:
    body = talk(message("m2", "assistant", "The moon.", second=2), message("m1", "human", "Why tides?", second=1))
    report = bring_in(put_json(tmp_path / "conversations.json", [body]), store, "claude.ai")
    assert (report.messages, threads(only(store))) == (2, {("U:Why tides?", "A:The moon.")})
    assert (only(store).title, only(store).metadata["source"]) == ("Tides", "claude.ai")


def test_calls_and_their_results_are_taken_apart(store: Store, tmp_path: Path) -> None:
    """A record that holds a whole turn becomes an answer, its results, and the next answer; ids may be missing."""
    turn = message(
        "a", "assistant", "This block is not supported on your current device yet",
        {"type": "thinking", "thinking": "Look.", "signature": "sig"}, text("I search."),
        {"type": "tool_use", "id": None, "name": "web_search", "input": {"q": "tides"}},
        {"type": "tool_result", "name": "web_search", "content": [text("moon"), {"type": "knowledge"}]},
        {"type": "tool_use", "id": "t2", "name": "artifacts", "input": {"content": "# Tides"}},
        {"type": "tool_result", "tool_use_id": "t2", "content": "failed", "is_error": True}, text("Done."),
        second=2,
    )  # fmt: skip
    body = talk(message("u", "human", "", text("Why?"), second=1), turn, message("u2", "human", "Thanks", second=3))
    bring_in(put_json(tmp_path / "f", [body]), store, "claude.ai")
    expected = (
        "U:Why?",
        "A:(Look.)I search.C:web_search",
        "R:moon",
        "A:C:artifacts",
        "R:failed",
        "A:Done.",
        "U:Thanks",
    )
    assert threads(only(store)) == {expected}
    thread = only(store).thread()
    assert thread[2].blocks[0].id == thread[1].blocks[2].id
    assert (thread[4].blocks[0].id, thread[4].tool_result_error) == ("t2", True)
    assert thread[1].blocks[0].extra == {"signature": "sig"}
    assert len(native(thread[1])["content"]) == 5  # all but the texts


def test_branches_by_parents_survive(store: Store, tmp_path: Path) -> None:
    def below(id: str, parent: str, sender: str, second: int, *blocks: dict[str, object]) -> Any:
        return message(id, sender, "", *(blocks or (text(id),)), second=second, parent_message_uuid=parent)

    call: dict[str, object] = {"type": "tool_use", "id": "t", "name": "x", "input": {}}
    result: dict[str, object] = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    body = talk(
        below("u", ROOT, "human", 1),
        below("a", "u", "assistant", 2, call, result),
        below("b", "u", "assistant", 3),
        below("v", "a", "human", 4),
        below("w", "a", "human", 5),
        current_leaf_message_uuid="v",
        model="claude-sonnet-4-5",
    )
    bring_in(put_json(tmp_path / "f", [body]), store, "claude.ai")
    start = ("U:u", "A:C:x", "R:r")
    assert threads(only(store)) == {(*start, "U:v"), (*start, "U:w"), ("U:u", "A:b")}
    assert path_of(only(store)) == (*start, "U:v")
    assert {change.setup.model for change in only(store).setups()} == {"claude-sonnet-4-5"}


def test_documents_are_text_and_files_are_names(store: Store, tmp_path: Path) -> None:
    listed = [{"file_name": "a.txt", "file_size": 4, "file_type": "txt", "extracted_content": "tide"}]
    body = talk(message("u", "human", "See", attachments=listed, files=[{"file_name": "b.png"}]))
    bring_in(put_json(tmp_path / "f", [body]), store, "claude.ai")
    [words, document, picture] = only(store).thread()[0].blocks
    assert (document.content, document.extra) == ("tide", {"filename": "a.txt"})
    assert (words.content, picture.type, picture.content) == ("See", "metadata", '{"file_name":"b.png"}')


def test_a_later_export_adds_what_is_new(store: Store, tmp_path: Path) -> None:
    first = talk(message("m1", "human", "Why?", second=1))
    bring_in(put_json(tmp_path / "1", [first]), store, "claude.ai")
    later = talk(*first["chat_messages"], message("m2", "assistant", "So.", second=2))
    assert bring_in(put_json(tmp_path / "2", [later]), store, "claude.ai").messages == 1
    assert len(list(conversations(store))) == 1


def test_entries_that_are_no_conversations_are_said(store: Store, tmp_path: Path) -> None:
    report = bring_in_part(put_json(tmp_path / "f", [talk(message("m", "human", "Hi")), {"uuid": "x"}, 7]), store)
    assert [one.name for one in report.unreadable] == ["f, entry 2", "f, entry 3"]


PARENTS = st.lists(st.tuples(st.integers(-1, 9), st.booleans(), st.integers(0, 3)), min_size=1, max_size=9)


@settings(max_examples=20, deadline=None)
@given(PARENTS)
def test_every_message_of_any_tree_comes_in_once(shape: list[tuple[int, bool, int]]) -> None:
    call: dict[str, object] = {"type": "tool_use", "id": "t", "name": "x", "input": {}}
    result: dict[str, object] = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    messages = [
        message(f"m{n}", "assistant" if calls else "human", "", *([call, result] if calls else []), text(f"t{n}"),
                second=at, parent_message_uuid=f"m{parent}")
        for n, (parent, calls, at) in enumerate(shape)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        path = put_json(Path(folder, "f"), [talk(*messages)])
        formats.load(path, store)
        assert formats.load(path, store).messages == 0
        found = {m.text: m for m in store.messages() if m.text.startswith("t")}
        assert len(found) == len(shape)
        by_id = {m.id: m for m in store.messages()}
        for n, (parent, calls, _) in enumerate(shape):
            at = found[f"t{n}"]
            for _ in range(2 if calls else 0):  # up over the result to the call
                at = by_id[at.parent or ""]
            if at.parent is not None:
                assert at.parent == found[f"t{parent}"].id
