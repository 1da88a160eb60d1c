"""Files of openai-agents' sessions, as `SQLiteSession` and `AdvancedSQLiteSession` write them."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Message, Store, formats
from hitherto.errors import InvalidArgument, PartialImport

Item = dict[str, Any]

_PLAIN = """
CREATE TABLE {sessions} (session_id TEXT PRIMARY KEY, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE {items} (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES {sessions} (session_id) ON DELETE CASCADE);
"""
_BRANCHES = """
CREATE TABLE message_structure (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
    message_id INTEGER NOT NULL, branch_id TEXT NOT NULL DEFAULT 'main', message_type TEXT NOT NULL,
    sequence_number INTEGER NOT NULL, user_turn_number INTEGER, branch_turn_number INTEGER, tool_name TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE turn_usage (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main', user_turn_number INTEGER NOT NULL, requests INTEGER, input_tokens INTEGER,
    output_tokens INTEGER, total_tokens INTEGER);
"""

ASKED = {"role": "user", "content": "Why does the build fail?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "an import"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "An unused import."}]}


class File:
    """A file of sessions."""

    def __init__(self, path: Path, sessions: str = "agent_sessions", items: str = "agent_messages") -> None:
        self.path, self._sessions, self._items = path, sessions, items
        self.run(_PLAIN.format(sessions=sessions, items=items))

    def run(self, script: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(script)

    def add(self, session: str, *items: Item | str) -> list[int]:
        """Add items; a text is put there as it is. Returns their numbers."""
        found = []
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(f"INSERT OR IGNORE INTO {self._sessions} (session_id) VALUES (?)", (session,))
            for item in items:
                data = item if isinstance(item, str) else json.dumps(item)
                query = f"INSERT INTO {self._items} (session_id, message_data) VALUES (?, ?) RETURNING id"
                found += connection.execute(query, (session, data)).fetchone()
            connection.commit()
        return found

    def branch(self, session: str, name: str, rows: Sequence[int], *, per_turn: int = 2) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            for place, row in enumerate(rows, 1):
                values = (session, row, name, "user", place, (place - 1) // per_turn + 1)
                query = (
                    "INSERT INTO message_structure"
                    " (session_id, message_id, branch_id, message_type, sequence_number, user_turn_number)"
                    " VALUES (?, ?, ?, ?, ?, ?)"
                )
                connection.execute(query, values)
            connection.commit()


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "agents.db")


def texts(store: Store, key: str) -> list[str]:
    talk = store.find(key)
    assert talk is not None
    return [message.text for message in talk.thread()]


def test_a_session_is_a_conversation_of_the_same_name(store: Store, file: File) -> None:
    """E4."""
    file.add("user-42", ASKED, CALL, OUTPUT, ANSWER)
    file.add("other", ASKED)
    loaded = formats.load(file.path, store)
    assert (loaded.format, loaded.new, loaded.messages) == ("openai-agents", 2, 5)
    talk = store.find("user-42")
    assert talk is not None
    assert [m.role for m in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
    assert [m.raw for m in talk.thread()] == [ASKED, CALL, OUTPUT, ANSWER]


def test_the_adapter_goes_on_with_it(store: Store, file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.adapters.standins import openai_agents as standin

    standin.install(monkeypatch)
    from hitherto.adapters.openai_agents import Session

    file.add("user-42", ASKED, CALL, OUTPUT, ANSWER)
    formats.load(file.path, store)
    assert asyncio.run(Session("user-42", store).get_items()) == [ASKED, CALL, OUTPUT, ANSWER]


def test_a_second_import_and_a_copy_add_nothing_and_a_grown_file_its_tail(store: Store, file: File) -> None:
    same = {"role": "user", "content": "again"}
    file.add("s", same, same, same)
    assert formats.load(file.path, store).messages == 3
    copy = shutil.copy(file.path, file.path.with_name("copy.db"))
    for path in (file.path, Path(copy)):
        again = formats.load(path, store)
        assert (again.new, again.messages) == (0, 0)
    file.add("s", ANSWER)
    assert formats.load(file.path, store).messages == 1
    assert texts(store, "s") == ["again"] * 3 + ["An unused import."]


def test_tables_of_other_names_are_found_by_their_columns(store: Store, tmp_path: Path) -> None:
    file = File(tmp_path / "x.bin", "chat_users", "chat_items")
    file.add("s", ASKED)
    loaded = formats.load(file.path, store)
    assert "chat_items" in loaded.found
    assert texts(store, "s") == ["Why does the build fail?"]


def test_an_item_in_several_branches_is_their_common_beginning(store: Store, file: File) -> None:
    file.run(_BRANCHES)
    said = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"m{n}"} for n in range(8)]
    rows = file.add("s", *said)
    file.branch("s", "main", rows[:6])
    file.branch("s", "other", [*rows[:2], *rows[6:]])
    usage = "INSERT INTO turn_usage (session_id, branch_id, user_turn_number, input_tokens, output_tokens) VALUES "
    file.run(
        usage + "('s', 'main', 1, 10, 1), ('s', 'main', 2, 20, 2), ('s', 'other', 1, 10, 1), ('s', 'other', 2, 40, 4)"
    )
    loaded = formats.load(file.path, store)
    assert (loaded.messages, loaded.leaves) == (8, 2)
    talk = store.find("s")
    assert talk is not None
    threads = {tuple(m.text for m in talk.fork(at=branch.id).thread()) for branch in talk.branches()}
    assert threads == {("m0", "m1", "m2", "m3", "m4", "m5"), ("m0", "m1", "m6", "m7")}
    counted = {m.text: m.usage.input_tokens for m in store.messages() if m.usage}
    assert counted == {"m1": 10, "m3": 20, "m7": 40}
    assert formats.load(file.path, store).messages == 0


def test_items_of_an_encrypted_session_are_left_out_and_said(store: Store, file: File) -> None:
    file.add("s", {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": "gAAA"})
    file.add("t", ASKED)
    with pytest.raises(PartialImport, match="encrypted") as caught:
        formats.load(file.path, store)
    report = caught.value.report
    assert isinstance(report, formats.Loaded)
    assert report.messages == 1
    assert store.find("s") is None
    assert texts(store, "t") == ["Why does the build fail?"]


def test_broken_items_are_named_and_the_rest_is_read(store: Store, file: File) -> None:
    deep = "[" * 5000 + "]" * 5000
    file.add("s", ASKED, "{half", "7", '{"role": "user", "content": ' + deep + "}", '{"odd": "\\ud800"}', ANSWER)
    with pytest.raises(PartialImport) as caught:
        formats.load(file.path, store)
    report = caught.value.report
    assert isinstance(report, formats.Loaded)
    assert len(report.unreadable) == 3
    assert texts(store, "s")[-1] == "An unused import."


def test_a_key_that_is_taken_stays_where_it_is(store: Store, file: File) -> None:
    store.ensure("s").append(Message.user("of another program"))
    file.add("s", ASKED)
    loaded = formats.load(file.path, store)
    assert loaded.messages == 1
    assert texts(store, "s") == ["of another program"]
    assert any("key" in note for note in loaded.notes)


def test_a_foreign_file_is_not_taken_for_one(store: Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.executescript('CREATE TABLE "a;b" (id, session_id, message_data, created_at); CREATE TABLE t (x)')
    with pytest.raises(InvalidArgument):
        formats.load(tmp_path / "x.db", store)
