"""llm's logs.db: responses in a line, messages in a tree, and both in one file.

The tables are those of llm 0.27 and 0.36. Requirements: F1.
"""

import json
import sqlite3
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

import hitherto
from hitherto import Store, formats
from hitherto.model import Usage

from ..support.imports import bring_in, conversations, native, only, path_of, threads, why_injected

PNG = b"\x89PNG\r\n\x1a\n" + bytes(9)
OLDER = """
CREATE TABLE _llm_migrations(name TEXT PRIMARY KEY, applied_at TEXT);
CREATE TABLE conversations(id TEXT PRIMARY KEY, name TEXT, model TEXT);
CREATE TABLE responses(id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT, options_json TEXT,
 response TEXT, response_json TEXT, conversation_id TEXT, duration_ms INTEGER, datetime_utc TEXT, input_tokens INTEGER,
 output_tokens INTEGER, token_details TEXT, schema_id TEXT, resolved_model TEXT);
CREATE TABLE attachments(id TEXT PRIMARY KEY, type TEXT, path TEXT, url TEXT, content BLOB);
CREATE TABLE prompt_attachments(response_id TEXT, attachment_id TEXT, "order" INTEGER);
CREATE TABLE fragments(id INTEGER PRIMARY KEY, hash TEXT, content TEXT);
CREATE TABLE prompt_fragments(response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE tool_calls(id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT, arguments TEXT,
 tool_call_id TEXT);
CREATE TABLE tool_results(id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT, output TEXT,
 tool_call_id TEXT, exception TEXT);
"""
NEWER = """
CREATE TABLE messages(hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT, provider_metadata TEXT);
CREATE TABLE parts(id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER, type TEXT, tool_name TEXT, text TEXT,
 payload TEXT);
CREATE TABLE part_attachments(part_id INTEGER, attachment_id TEXT, "order" INTEGER);
CREATE TABLE threads(id TEXT PRIMARY KEY, name TEXT, tip_message_hash TEXT, forked_from TEXT, datetime_utc TEXT);
CREATE TABLE turns(id TEXT PRIMARY KEY, thread_id TEXT, parent_message_hash TEXT, tip_message_hash TEXT, model TEXT,
 resolved_model TEXT, options_json TEXT, input_tokens INTEGER, output_tokens INTEGER, token_details TEXT,
 duration_ms INTEGER, datetime_utc TEXT, response_json TEXT);
"""


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


class Logs:
    """A logs.db, written row by row."""

    def __init__(self, path: Path, *schema: str) -> None:
        self.path = path
        self._file = sqlite3.connect(path)
        self._file.executescript("".join(schema))
        self._second = 0

    def add(self, table: str, **row: object) -> "Logs":
        names = ", ".join(f'"{name}"' for name in row)
        self._file.execute(f"INSERT INTO {table}({names}) VALUES({', '.join('?' * len(row))})", tuple(row.values()))
        self._file.commit()
        return self

    def now(self) -> str:
        self._second += 1
        return f"2026-08-19T03:54:{self._second:02}.000000+00:00"

    def response(self, id: str, prompt: str, response: str, talk: str | None = "c1", **more: object) -> "Logs":
        row = {"model": "gpt-5", "input_tokens": 10, "output_tokens": 2, "datetime_utc": self.now()} | more
        return self.add("responses", id=id, prompt=prompt, response=response, conversation_id=talk, **row)

    def message(self, hash: str, parent: str | None, role: str, *parts: tuple[str, str, object]) -> "Logs":
        self.add("messages", hash=hash, parent_hash=parent, role=role)
        for position, (kind, text, payload) in enumerate(parts):
            data = None if payload is None else json.dumps(payload)
            self.add("parts", message_hash=hash, position=position, type=kind, text=text, payload=data)
        return self

    def turn(self, id: str, thread: str | None, asked: str, tip: str, **more: object) -> "Logs":
        row = {"model": "gpt-5", "input_tokens": 10, "output_tokens": 2, "datetime_utc": self.now()} | more
        return self.add("turns", id=id, thread_id=thread, parent_message_hash=asked, tip_message_hash=tip, **row)


def text(said: str) -> tuple[str, str, None]:
    return ("text", said, None)


def older(path: Path) -> Logs:
    logs = Logs(path, OLDER).add("conversations", id="c1", name="Pixels", model="gpt-5")
    elsewhere = path.parent / "p.png"
    elsewhere.write_bytes(PNG)
    id = sha256(PNG).hexdigest()
    logs.add("attachments", id=id, type="image/png", path=str(elsewhere)).add(
        "attachments", id="x", path="/etc/hostname"
    )
    for number, attachment in enumerate((id, "x")):
        logs.add("prompt_attachments", response_id="r1", attachment_id=attachment, order=number)
    logs.add("fragments", id=1, content="# a file").add("prompt_fragments", response_id="r1", fragment_id=1, order=0)
    details = '{"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 1}}'
    logs.response("r1", "What is this?", "", system="Be terse", token_details=details, response_json='{"id": "c1"}')
    logs.add("tool_calls", response_id="r1", name="look", arguments='{"at": 1}', tool_call_id="t1")
    logs.add("tool_results", response_id="r2", name="look", output="a pixel", tool_call_id="t1")
    return logs.response("r2", "", "A pixel.").response("r3", "Sure?", "Yes.", resolved_model="gpt-5-2026")


OLD_PATH = ("U:# a file\nWhat is this?", "A:C:look", "R:a pixel", "A:A pixel.", "U:Sure?", "A:Yes.")


def test_responses_are_a_line(store: Store, tmp_path: Path) -> None:
    bring_in(older(tmp_path / "logs.db").path, store, "llm")
    found = only(store)
    assert (threads(found), found.title) == ({OLD_PATH}, "Pixels")
    thread = found.thread()
    assert [(b.modality, b.content) for b in thread[0].blocks][1] == ("image", PNG)
    assert thread[0].blocks[2].type == "metadata"  # a file that is not the one that was attached is not read
    assert thread[1].usage == Usage(10, 2, 4, 0, 1)
    assert native(thread[1])["response_json"] == {"id": "c1"}
    assert [c.setup.model for c in found.setups()] == ["gpt-5", "gpt-5-2026"]
    assert found.setups()[-1].setup.system_prompt == "Be terse"


def newer(path: Path) -> Logs:
    call = {"name": "look", "arguments": {"at": 1}, "tool_call_id": "t1"}
    logs = Logs(path, OLDER, NEWER).add(
        "threads", id="th1", name="Tree", tip_message_hash="a2", datetime_utc="2026-08-19"
    )
    logs.message("s", None, "system", text("Be terse")).message("u1", "s", "user", text("Why?"))
    logs.add("fragments", id=1, content="frag")
    logs.message("a1", "u1", "assistant", ("reasoning", "Hm.", None), ("tool_call", "", call))
    logs.message("t1", "a1", "tool", ("tool_result", "", {"name": "look", "output": "dark", "tool_call_id": "t1"}))
    logs.message(
        "a2", "t1", "assistant", ("text", "", {"text_ref": [{"fragment": 1}, {"literal": "!"}]}), ("odd", "", {"x": 1})
    )
    logs.turn("n1", "th1", "u1", "a1", response_json='{"id": "1"}').turn("n2", "th1", "t1", "a2", resolved_model="g")
    return logs


NEW_PATH = ("U:Why?", "A:(Hm.)C:look", "R:dark", "A:frag!")


def test_messages_are_a_tree(store: Store, tmp_path: Path) -> None:
    logs = newer(tmp_path / "logs.db")
    logs.add("threads", id="th2", name="Fork", tip_message_hash="b2", forked_from="th1")
    logs.message("u2", "a2", "user", text("And?")).message("b2", "u2", "assistant", text("So."))
    logs.message("b3", "u2", "assistant", text("Not so.")).turn("n3", "th2", "u2", "b2").turn("n4", "th2", "u2", "b3")
    bring_in(logs.path, store, "llm")
    found = only(store)
    assert (found.title, found.system_prompt) == ("Tree", "Be terse")
    assert threads(found) == {(*NEW_PATH, "U:And?", "A:So."), (*NEW_PATH, "U:And?", "A:Not so.")}
    thread = found.thread()
    assert thread[1].usage == Usage(10, 2)
    assert native(thread[1])["turns"][0]["response_json"] == {"id": "1"}
    assert [b.type for b in thread[3].blocks] == ["content", "odd"]


def test_threads_that_were_never_forked_stay_apart(store: Store, tmp_path: Path) -> None:
    logs = newer(tmp_path / "logs.db").add(
        "threads", id="th2", name="Other", tip_message_hash="o", datetime_utc="2026-08-20"
    )
    logs.message("o", "u1", "assistant", text("Because.")).turn("n9", "th2", "u1", "o")
    bring_in(logs.path, store, "llm")
    assert {path_of(talk) for talk in conversations(store)} == {NEW_PATH, ("U:Why?", "A:Because.")}


def test_a_conversation_that_went_on_with_the_newer_program_is_told_once(store: Store, tmp_path: Path) -> None:
    """The newer program writes the older messages again, without attachments. Whichever was imported first."""
    logs = older(tmp_path / "logs.db")
    bring_in(logs.path, store, "llm")
    logs._file.executescript(NEWER)
    call = {"name": "look", "arguments": {"at": 1}, "tool_call_id": "t1"}
    logs.message("s", None, "system", text("Be terse"))
    logs.message("1", "s", "user", text("# a file\nWhat is this?")).message(
        "2", "1", "assistant", ("tool_call", "", call)
    )
    logs.message("3", "2", "tool", ("tool_result", "", {"output": "a pixel", "tool_call_id": "t1"}))
    logs.message("4", "3", "assistant", text("A pixel.")).message("5", "4", "user", text("Sure?"))
    logs.message("6", "5", "assistant", text("Yes.")).message("7", "6", "user", text("Third"))
    logs.message("8", "7", "assistant", text("New."))
    logs.add("threads", id="c1", name="Third", tip_message_hash="8").turn("n", "c1", "7", "8")
    assert bring_in(logs.path, store, "llm").messages == 2
    assert threads(only(store)) == {(*OLD_PATH, "U:Third", "A:New.")}
    assert len(only(store).thread()[0].blocks) == 3
    with hitherto.open("memory:") as other:
        bring_in(logs.path, other, "llm")
        assert threads(only(other)) == {(*OLD_PATH, "U:Third", "A:New.")}


def test_nothing_is_lost_where_threads_and_parents_are_missing(store: Store, tmp_path: Path) -> None:
    logs = newer(tmp_path / "logs.db")
    logs.message("x", None, "user", text("no thread")).message("y", "gone", "user", text("no parent"))
    logs.message("p", "q", "user", text("circle 1")).message("q", "p", "assistant", text("circle 2"))
    logs.message("m", "a2", "system", text("Be long.")).turn("n7", None, "m", "m")
    logs.response("r", "alone", "yes", None)
    report = bring_in(logs.path, store, "llm")
    texts = {m.text for m in store.messages(newest_first=True)}
    assert {"no thread", "no parent", "circle 1", "circle 2", "alone", "Be long.", "frag!"} <= texts
    assert report.unknown == {"parents in a circle": 1}
    assert "context" in {why_injected(m) for m in store.messages()}


def test_a_file_in_use_and_one_in_a_zip_are_read(store: Store, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    logs = newer(tmp_path / "home" / "logs.db")
    logs._file.execute("PRAGMA journal_mode = WAL")
    logs.message("u9", "a2", "user", text("still open"))
    bring_in(tmp_path / "home", store, "llm")
    assert path_of(only(store))[-1] == "U:still open"
    logs._file.close()
    with zipfile.ZipFile(tmp_path / "backup.zip", "w") as backup:
        backup.write(logs.path, "llm/logs.db")
    assert formats.load(tmp_path / "backup.zip", store).messages == 0


def test_a_damaged_file_is_said(store: Store, tmp_path: Path) -> None:
    path = newer(tmp_path / "logs.db").path
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(hitherto.HithertoError):
        formats.load(path, store)
