"""What an append costs the disk, counted and not timed: frames in the WAL, and checkpoints."""

import os
from pathlib import Path

import pytest

import hitherto
from hitherto import Conversation, Message
from hitherto.backends.sqlite import writing
from hitherto.backends.sqlite.ballast import LEAST, Ballast

_FRAME = 4096 + 24  # bytes of a page in the WAL, with its header


def frames(path: Path, talk: Conversation) -> int:
    """How many pages one short append writes, at best."""
    assert talk.engine.scrub()  # or the WAL begins anew, and does not grow
    found = []
    for _ in range(8):  # now and then a page is full, and another one begins
        before = os.path.getsize(f"{path}-wal")
        talk.append(Message.user("short"))
        found.append((os.path.getsize(f"{path}-wal") - before) // _FRAME)
    return min(found)


def test_an_append_writes_the_pages_of_its_row_its_message_and_one_index(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with hitherto.open(path, maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("first"))
        assert frames(path, talk) == 3


def test_setting_a_column_that_is_in_an_index_writes_that_index_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: SQLite does not look whether the value is another."""
    same = writing._UPDATE_CONVERSATION.replace(" SET ", " SET expires_at = expires_at, ")
    monkeypatch.setattr(writing, "_UPDATE_CONVERSATION", same)
    path = tmp_path / "chats.db"
    with hitherto.open(path, maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("first"))
        assert frames(path, talk) == 5


def moved(path: Path) -> int:
    """How many bytes checkpoints have moved into the database while half a megabyte was said."""
    with hitherto.open(path, maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("first"))
        assert store.scrub()
        before = path.stat().st_size
        for _ in range(100):
            talk.append(Message.user("word " * 1000))
        return path.stat().st_size - before


def test_no_checkpoint_comes_early_in_a_small_store(tmp_path: Path) -> None:
    assert moved(tmp_path / "chats.db") == 0


def test_beside_a_small_ballast_checkpoints_come_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: more must not gather in the WAL than the ballast can make room for."""
    monkeypatch.setattr(Ballast, "wanted_size", LEAST)
    assert moved(tmp_path / "chats.db") > 300_000
