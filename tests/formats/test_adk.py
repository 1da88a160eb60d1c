"""Files of Google ADK's sessions, as `SqliteSessionService` and `DatabaseSessionService` write them."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Store, formats
from hitherto.errors import PartialImport

_TABLES = """
CREATE TABLE app_states (app_name TEXT PRIMARY KEY, state TEXT NOT NULL, update_time REAL NOT NULL);
CREATE TABLE user_states (app_name TEXT NOT NULL, user_id TEXT NOT NULL, state TEXT NOT NULL, update_time REAL NOT NULL,
    PRIMARY KEY (app_name, user_id));
CREATE TABLE sessions (app_name TEXT NOT NULL, user_id TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL,
    create_time REAL NOT NULL, update_time REAL NOT NULL, PRIMARY KEY (app_name, user_id, id));
CREATE TABLE events (id TEXT NOT NULL, app_name TEXT NOT NULL, user_id TEXT NOT NULL, session_id TEXT NOT NULL,
    invocation_id TEXT NOT NULL, timestamp REAL NOT NULL, event_data TEXT NOT NULL,
    PRIMARY KEY (app_name, user_id, session_id, id));
INSERT INTO app_states VALUES ('app', '{"theme": "dark"}', 1);
INSERT INTO user_states VALUES ('app', 'ada', '{"name": "Ada"}', 1);
"""
NAME = ("app", "ada", "s/1")


class File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.run(_TABLES)

    def run(self, script: str, values: tuple[object, ...] | None = None) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            if values is None:
                connection.executescript(script)
            else:
                connection.execute(script, values)

    def session(self, name: tuple[str, str, str] = NAME, state: str = '{"step": 2}') -> None:
        self.run("INSERT INTO sessions VALUES (?, ?, ?, ?, 1700000000.5, 1700000009.25)", (*name, state))

    def event(self, id: str, data: Any, name: tuple[str, str, str] = NAME, at: float = 1700000001.0) -> None:
        text = data if isinstance(data, str) else json.dumps({"id": id, "timestamp": at, **data})
        self.run("INSERT INTO events VALUES (?, ?, ?, ?, 'i', ?, ?)", (id, *name, at, text))


def said(role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"author": "user" if role == "user" else "bot", "content": {"role": role, "parts": list(parts)}, **more}


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


@pytest.fixture
def file(tmp_path: Path) -> File:
    file = File(tmp_path / "adk.db")
    file.session()
    file.event("e1", said("user", {"text": "Which files are here?"}), at=1700000009.0)
    call = {"function_call": {"id": "c1", "name": "look", "args": {"some_path": "a_b"}}}
    used = {"prompt_token_count": 7, "candidates_token_count": 3}
    file.event("e2", said("model", call, usage_metadata=used))
    back = {"function_response": {"id": "c1", "name": "look", "response": {"some_files": 2}}}
    file.event("e3", said("user", back, actions={"state_delta": {"step": 2}}))
    file.event("e4", {"author": "bot", "actions": {"transfer_to_agent": "other"}})
    file.event("e5", said("model", {"text": "Two files."}))
    return file


def test_a_session_is_the_conversation_that_the_adapter_goes_on_with(store: Store, file: File) -> None:
    """E4"""
    report = formats.load(file.path, store)
    assert (report.format, report.new, report.messages) == ("adk", 1, 5)
    talk = store.find("adk/app/ada/s%2F1")
    assert talk is not None
    assert [(str(message.role), message.text) for message in talk.thread()] == [
        ("user", "Which files are here?"),
        ("assistant", ""),
        ("tool_result", '{"some_files":2}'),
        ("assistant", "Two files."),
    ]
    assert talk.title == "Which files are here?"
    assert (talk.usage().input_tokens, talk.usage().output_tokens) == (7, 3)
    assert talk.metadata["user_id"] == "ada"
    assert json.loads(talk.items["adk/state"]) == {"step": 2}
    record = json.loads(talk.items["adk/session"])
    assert record["updated"] == 1700000009.25
    assert (record["shared"]["app"], record["shared"]["user"]) == ({"theme": "dark"}, {"name": "Ada"})
    call = talk.thread()[1].blocks[0].content
    assert isinstance(call, str)
    assert json.loads(call)["parameters"] == {"some_path": "a_b"}, "names of the program stay as they are"


def test_the_same_file_adds_nothing_and_a_grown_one_its_end(store: Store, file: File, tmp_path: Path) -> None:
    formats.load(file.path, store)
    shutil.copy(file.path, tmp_path / "copy.db")
    again = formats.load(tmp_path / "copy.db", store)
    assert (again.new, again.messages, again.unchanged) == (0, 0, 1)
    file.event("e6", said("user", {"text": "Thank you."}))
    file.session(("app", "bob", "s/1"))
    grown = formats.load(file.path, store)
    assert (grown.new, grown.messages) == (1, 1)
    talk = store.find("adk/app/ada/s%2F1")
    assert talk is not None
    assert talk.thread()[-1].text == "Thank you."


def test_broken_events_are_named_and_the_others_are_there(store: Store, file: File) -> None:
    file.event("bad", "{")
    file.event("list", "[1]")
    file.event("large", said("user", {"text": "half \ud83d"}, custom_metadata={"n": 2**80}))
    file.session(("app", "zoe", "s"), state="no JSON")
    with pytest.raises(PartialImport) as partial:
        formats.load(file.path, store)
    report: Any = partial.value.report
    assert [one.name for one in report.unreadable] == ["adk.db, event bad", "adk.db, event list"]
    assert (report.new, report.messages) == (2, 6)


def test_a_file_of_pickled_objects_is_refused_with_the_way_to_migrate(store: Store, tmp_path: Path) -> None:
    old = File(tmp_path / "old.db")
    old.run(
        "DROP TABLE events; CREATE TABLE events (id TEXT, app_name TEXT, user_id TEXT, session_id TEXT, actions BLOB)"
    )
    with pytest.raises(PartialImport) as partial:
        formats.load(old.path, store)
    report: Any = partial.value.report
    assert "migrate_from_sqlalchemy_sqlite" in report.unreadable[0].reason
    assert not store.conversations().items
