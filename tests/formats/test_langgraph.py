"""The file of LangGraph's SqliteSaver: every checkpoint, each message once. Requirement E4.

The files are written here as LangGraph 1.2 writes them. `tests/adapters/real` has one that LangGraph wrote itself, and
compares all checkpoints.
"""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

import hitherto
from hitherto import Store, formats
from hitherto.errors import InvalidArgument, PartialImport
from hitherto.formats.importers import _langgraph_records as records

SCHEMA = """
CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
    parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
CREATE TABLE writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
    task_id TEXT NOT NULL, idx INTEGER NOT NULL, channel TEXT NOT NULL, type TEXT, value BLOB{path},
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));
"""
CLASSES = {"human": "HumanMessage", "ai": "AIMessage"}


def said(kind: str, text: str, **more: object) -> msgpack.Ext:
    fields = {"content": text, "type": kind, "additional_kwargs": {}, **more}
    model = ("langchain_core.messages", CLASSES.get(kind, "Other"), fields, "model_validate_json")
    return msgpack.Ext(5, msgpack.encode(model))


class File:
    """A file of SqliteSaver."""

    def __init__(self, path: Path, *, has_path: bool = True) -> None:
        self.path = path
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.executescript(SCHEMA.format(path=", task_path TEXT NOT NULL DEFAULT ''" if has_path else ""))

    def put(self, id: str, values: dict[str, Any], parent: str | None = None, **row: Any) -> None:
        checkpoint = {"v": 4, "id": id, "ts": "2026-11-16T14:26:00+00:00", "channel_values": values}
        checkpoint |= {"channel_versions": dict.fromkeys(values, id), "versions_seen": {}}
        found = {"thread": "user-42", "namespace": "", "kind": "msgpack", "data": msgpack.encode(checkpoint), **row}
        metadata = row.get("metadata", json.dumps({"step": int(id)}).encode())
        self._file.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)",
            (found["thread"], found["namespace"], id, parent, found["kind"], found["data"], metadata),
        )

    def write(self, id: str, task: str, channel: str, value: object, *path: str) -> None:
        row = ("user-42", "", id, task, 0, channel, "msgpack", msgpack.encode(value), *path)
        self._file.execute(f"INSERT INTO writes VALUES ({', '.join('?' * len(row))})", row)

    def close(self) -> Path:
        self._file.close()
        return self.path


@pytest.fixture
def store() -> Store:
    return hitherto.open("memory:")


def record_of(store: Store, id: str, namespace: str = "") -> records.Record:
    talk = store.find("user-42", kind="langgraph")
    assert talk is not None
    name = records.record_name(namespace, id)
    return records.decode_record(talk.items[name], name)


def test_every_checkpoint_is_kept_and_each_message_once(tmp_path: Path, store: Store) -> None:
    file = File(tmp_path / "graph.sqlite")
    a, b, c = said("human", "Why?"), said("ai", "Because."), said("human", "And?")
    plan = "p" * 5_000
    file.put("1", {"messages": [a], "plan": plan})
    file.put("2", {"messages": [a, b], "plan": plan}, "1")
    file.put("3", {"messages": [a, b, c], "plan": plan, "n": 7}, "2")
    file.put("4", {"messages": [a, said("ai", "Otherwise.")]}, "1")
    file.put("5", {"messages": [a, b, said("ai", "Inner.")]}, namespace="reviewer:1")
    file.write("3", "task", "n", "w" * 5_000, "~path")
    report = formats.load(file.close(), store)
    assert (report.format, report.new, report.messages, report.notes) == ("langgraph", 1, 5, ())
    talk = store.find("user-42", kind="langgraph")
    assert talk is not None
    assert [message.text for message in talk.thread()] == ["Why?", "Otherwise."]
    assert [message.text for message in store.messages(subagent="reviewer")] == ["Inner."]
    third = record_of(store, "3")
    listed = third.places["messages"]
    assert isinstance(listed, records.Listed)
    (last,) = talk.get(keys=[listed.key])
    assert [message.text for message in talk.fork(at=last).thread()] == ["Why?", "Because.", "And?"]
    assert last.raw == ["msgpack", msgpack.encode(c)]
    assert (third.parent, third.places["n"]) == ("2", records.Inline("msgpack", msgpack.encode(7)))
    assert third.places["plan"] == record_of(store, "1").places["plan"]
    assert third.metadata == ("msgpack", msgpack.encode({"step": 3}))
    assert len(list(talk.items.scan("v/"))) == 2
    (written,) = talk.items.scan("w/")
    assert records.decode_writes(written.value, written.name).writes[0][0] == "~path"


def test_a_second_import_adds_nothing_and_one_that_has_grown_what_is_new(tmp_path: Path, store: Store) -> None:
    file = File(tmp_path / "graph.sqlite", has_path=False)
    a, b = said("human", "Why?"), said("ai", "Because.")
    file.put("1", {"messages": [a]})
    file.write("1", "task", "messages", b)
    formats.load(file.path, store)
    before = list(store.find("user-42", kind="langgraph").items.scan())  # type: ignore[union-attr]  # it is there
    again = formats.load(file.path, store)
    assert (again.new, again.unchanged, again.messages) == (0, 1, 0)
    assert list(store.find("user-42", kind="langgraph").items.scan()) == before  # type: ignore[union-attr]
    file.put("2", {"messages": [a, b]}, "1")
    grown = formats.load(file.close(), store)
    assert (grown.new, grown.messages) == (0, 1)
    assert record_of(store, "2").parent == "1"


def test_lists_that_are_not_of_messages_stay_values(tmp_path: Path, store: Store) -> None:
    file = File(tmp_path / "graph.sqlite")
    values = {"a": [], "b": [1, 2], "c": [said("human", "x"), 7], "d": [msgpack.Ext(5, b"\xc0")], "e": [{"type": "ai"}]}
    file.put("1", values)
    formats.load(file.close(), store)
    places = record_of(store, "1").places
    assert {name: place for name, place in places.items() if isinstance(place, records.Inline)} == places
    assert msgpack.decode(places["c"].data)[1] == 7  # type: ignore[union-attr]  # as was just seen
    talk = store.find("user-42", kind="langgraph")
    assert talk is not None
    assert talk.count == 0


def test_checkpoints_of_older_versions_are_json(tmp_path: Path, store: Store) -> None:
    file = File(tmp_path / "graph.sqlite")
    kwargs = {"content": "Why?", "type": "human"}
    message = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "HumanMessage"],
        "kwargs": kwargs,
    }
    data = {"v": 1, "id": "1", "ts": "2024-05-04T06:32:42+00:00", "channel_values": {"messages": [message]}}
    file.put("1", {}, kind="json", data=json.dumps(data).encode())
    formats.load(file.close(), store)
    talk = store.find("user-42", kind="langgraph")
    assert talk is not None
    (only,) = talk.thread()
    assert (only.text, only.created_at.year) == ("Why?", 2024)
    assert isinstance(only.raw, list)
    assert json.loads(only.raw[1]) == message


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "msgpack+aes", "data": b"sealed"},
        {"data": b"\xc1"},
        {"data": b"\x81\xa2ts"},
        {"data": msgpack.encode([1])},
        {"data": b"\x91" * 100_000},
        {"data": msgpack.encode({"channel_values": 7})},
        {"metadata": b"{"},
        {"kind": None},
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_is_taken(tmp_path: Path, store: Store, row: dict[str, Any]) -> None:
    file = File(tmp_path / "graph.sqlite")
    file.put("1", {"messages": [said("human", "Why?")]})
    file.put("2", {"n": 1}, "1", **row)
    with pytest.raises(PartialImport) as caught:
        formats.load(file.close(), store)
    report = caught.value.report
    assert isinstance(report, formats.Loaded)
    assert [one.name for one in report.unreadable] == ["thread user-42, checkpoint 2"]
    assert record_of(store, "1").parent is None


def test_odd_threads_have_the_keys_that_the_saver_gives_them(tmp_path: Path, store: Store) -> None:
    file = File(tmp_path / "graph.sqlite")
    for thread in ("a/b", "x" * 5_000, "nul\0"):
        file.put("1", {"n": 1}, thread=thread)
    assert formats.load(file.close(), store).new == 3
    assert store.find("a/b", kind="langgraph") is not None
    long = store.find(records.key_of_thread("x" * 5_000), kind="langgraph")
    assert long is not None
    assert long.metadata["thread_id"] == "x" * 5_000


def test_other_tables_are_not_taken_for_it(tmp_path: Path, store: Store) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE checkpoints (a)")
    with pytest.raises(InvalidArgument):
        formats.load(tmp_path / "other.db", store)
    with pytest.raises(PartialImport, match="no checkpoints"):
        formats.load(tmp_path / "other.db", store, format="langgraph")
