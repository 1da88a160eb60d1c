"""What an append costs, counted and not timed: frames in the WAL, checkpoints, calls and statements."""

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import apsw
import pytest

import hitherto
from hitherto import Conversation, Key, Message, Sanitiser
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


def count_calls(talk: Conversation) -> int:
    """How many functions of hitherto one short append calls, at best."""
    inside = os.path.dirname(hitherto.__file__)
    counts = []
    for _ in range(4):  # now and then a run of messages is full, and another one begins
        called: list[CodeType] = []

        def note(frame: FrameType, event: str, _: object, called: list[CodeType] = called) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(inside):
                called.append(frame.f_code)

        message = Message.user("short")
        sys.setprofile(note)
        try:
            talk.append(message, on_conflict="follow")
        finally:
            sys.setprofile(None)
        counts.append(len(called))
    return min(counts)


@pytest.mark.parametrize(("key", "most"), [(None, 80), (Key(bytes(range(32))), 88)], ids=["plain", "sealed"])
def test_an_append_calls_few_functions_and_no_more_in_a_long_conversation(
    tmp_path: Path, key: Key | None, most: int
) -> None:
    with hitherto.open(tmp_path / "chats.db", key=key, maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("first"))
        short = count_calls(talk)
        talk.extend([Message.user("more")] * 500)
        assert count_calls(talk) <= short <= most


def test_an_append_that_has_more_to_do_calls_more_functions(tmp_path: Path) -> None:
    """The control: the calls are seen."""
    with hitherto.open(tmp_path / "chats.db", sanitiser=Sanitiser.secrets(), maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("first"))
        assert count_calls(talk) > 80


def test_an_append_is_five_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []

    class Counting(apsw.Connection):
        def execute(self, statement: str, *given: object, **options: object) -> apsw.Cursor:  # type: ignore[override]
            statements.append(statement.split(maxsplit=1)[0])
            return super().execute(statement, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("hitherto.backends.sqlite.connections.apsw.Connection", Counting)
    with hitherto.open(tmp_path / "chats.db", maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("first"))
        statements.clear()
        talk.extend([Message.user("question"), Message.assistant("answer")])
    assert statements[:5] == ["BEGIN", "SELECT", "UPDATE", "INSERT", "COMMIT"]
