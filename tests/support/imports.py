"""What an import is looked at with: the threads that a store has after it, and that a second import adds nothing."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hitherto import Conversation, Store, formats
from hitherto.errors import PartialImport
from hitherto.formats import Loaded
from hitherto.model import Saved


def put_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def put_lines(path: Path, records: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def bring_in(path: Path, store: Store, format: str) -> Loaded:
    """Import a file twice. The format is found by the content, and the second import adds nothing."""
    report = formats.load(path, store)
    assert report.format == format
    again = formats.load(path, store)
    assert (again.messages, again.new, len(again)) == (0, 0, 0)
    assert store.verify().ok
    return report


def bring_in_part(path: Path, store: Store) -> Loaded:
    """Import a file of which a part cannot be read."""
    with pytest.raises(PartialImport) as caught:
        formats.load(path, store)
    assert isinstance(caught.value.report, Loaded)
    return caught.value.report


def conversations(store: Store) -> Iterator[Conversation]:
    for info in store.conversations(limit=100):
        yield store.conversation(info.id)


def only(store: Store) -> Conversation:
    [talk] = conversations(store)
    return talk


def said(message: Saved) -> str:
    """A message in a few words: `U:` and its text, `A:`, `C:` and the tool that is called, `R:`, `E:`."""
    calls = "".join(f"C:{block.tool_name}" for block in message.blocks if block.type == "tool_call")
    thoughts = "".join(f"({block.content!s})" for block in message.blocks if block.type == "thinking")
    letter = {"user": "U", "assistant": "A", "tool_result": "R", "event": "E"}[message.role]
    return f"{letter}:{thoughts}{message.text}{calls}"


def threads(talk: Conversation) -> set[tuple[str, ...]]:
    """Every thread of a conversation, from its root to its leaf."""
    return {tuple(said(m) for m in talk.fork(at=leaf.id).thread(events=True)) for leaf in talk.branches()}


def path_of(talk: Conversation) -> tuple[str, ...]:
    """The thread that leads to the head."""
    return tuple(said(message) for message in talk.thread(events=True))


def native(message: Saved) -> Any:
    return (message.extra or {}).get("native")


def why_injected(message: Saved) -> object:
    return (message.extra or {}).get("injected")
