"""`.cpeconvo`, both generations: what a file says is what we get, what we write reads back, and a file that lies, is
cut off or brings code along does no harm.

Requirements: C17; C1 to C3, C12 and C18 for what the fields mean.
"""

import logging
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import hitherto
from hitherto import Block, Key, Message
from hitherto.attachment import Attachment
from hitherto.errors import (
    AlreadyExists,
    Busy,
    CannotOpen,
    Damaged,
    HithertoError,
    InvalidArgument,
)
from hitherto.formats import _sqlite_file
from hitherto.formats._types import PortableConversation, PortableMessage, Source
from hitherto.formats.own import _cpe_file, cpeconvo, cpeconvo_first
from hitherto.formats.own._cpe_file import _BLOCKS, FIRST, LATER
from hitherto.model import Setup, Usage
from hitherto.snapshots import Unreadable

from ..support.foreign_files import write_cpe

WRITERS = [cpeconvo.write, cpeconvo.write_first]
NOON = 1_784_548_800_000_000  # 2026-07-20 12:00:00 UTC


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    return write_cpe(tmp_path / "cpe")


both_generations = pytest.mark.parametrize("write", WRITERS, ids=["later", "first"])


def talks(path: Path) -> list[PortableConversation]:
    """The conversations of a file in which everything can be read."""
    found = list(cpeconvo.read(path, None))
    assert [one for one in found if isinstance(one, Unreadable)] == []
    return [one for one in found if isinstance(one, PortableConversation)]


def parts(path: Path) -> tuple[list[PortableConversation], list[Unreadable]]:
    found = list(cpeconvo.read(path, None))
    return [x for x in found if isinstance(x, PortableConversation)], [x for x in found if isinstance(x, Unreadable)]


def source(path: Path) -> Source:
    return Source(path, path.is_dir(), b"" if path.is_dir() else path.read_bytes()[:4096])


def made(path: Path, *statements: str, schema: str = LATER) -> Path:
    """A file as CPE would have left it after these statements."""
    connection = apsw.Connection(str(path))
    for statement in (schema, *statements):
        connection.execute(statement)
    connection.close()
    return path


def message(id: str, parent: str | None = None, role: str = "user", **columns: object) -> str:
    """A row, and one block of text below it."""
    cells = {"id": id, "parent_id": parent, "role": role, "created_at": "2026-07-20 12:00:00", **columns}
    names, values = ", ".join(cells), ", ".join(sql(v) for v in cells.values())
    return f"INSERT INTO messages({names}) VALUES({values}); {block(id, f'text of {id}')}"


def block(message: str, content: object, *, order: int = 0, modality: object = 0, **columns: object) -> str:
    cells = {"message_id": message, "block_type": "content", "modality_type": modality, "mime_type": "text/plain"}
    cells |= {"content": content, "sequence_order": order, **columns}
    return f"INSERT INTO blocks({', '.join(cells)}) VALUES({', '.join(sql(v) for v in cells.values())})"


def sql(value: object) -> str:
    return apsw.format_sql_value(value)


def only(path: Path) -> PortableMessage:
    [talk] = talks(path)
    [said] = talk.messages
    return said


def beside(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file in the folder: its size, its time and what is in it."""
    return {
        p.name: (p.stat().st_size, p.stat().st_mtime_ns, p.read_bytes()) for p in path.parent.iterdir() if p.is_file()
    }


def test_a_trace_alone_is_a_conversation_without_a_main_flow(tmp_path: Path) -> None:
    """C11, C12: nobody goes on with it, and what is written back is read as it was."""
    run = "subagent:look:1"
    path = made(
        tmp_path / "a.cpeconvo",
        message("main", created_at="2026-07-20 12:00:00"),
        message("answer", "main", "assistant", created_at="2026-07-20 12:00:01"),
        message("trace", title=run, created_at="2026-07-20 12:00:02"),
        message("below", "trace", "assistant", title=run, created_at="2026-07-20 12:00:03"),
        schema=FIRST,
    )
    for again, next_one in ((path, tmp_path / "b.cpeconvo"), (tmp_path / "b.cpeconvo", tmp_path / "c.cpeconvo")):
        with hitherto.open("memory:") as store:
            hitherto.formats.load(again, store)
            latest = store.latest()
            assert latest is not None
            assert [m.text for m in latest.thread()] == ["text of main", "text of answer"]
            trace = list(store.messages(subagent="look", newest_first=False))
            assert [(m.text, m.main) for m in trace] == [("text of trace", False), ("text of below", False)]
            assert trace[1].parent == trace[0].id
            assert store.verify().ok
            hitherto.formats.save(store, next_one)


# -- the vectors


def test_the_first_generation_reads_as_two_conversations_of_which_one_is_a_trace(vectors: Path) -> None:
    main, trace = talks(vectors / "first.cpeconvo")
    assert [(said.id, said.parent) for said in main.messages] == [
        ("one001", None), ("two002", "one001"), ("thr003", "two002"),
        ("fou004", "thr003"), ("fiv005", "two002"), ("six006", "fiv005"),
    ]  # fmt: skip
    assert main.id == "one001"
    assert main.messages[0].message == Message.user("said in one001")
    assert main.messages[0].created_us == 1_706_947_200_000_000
    assert {said.message.label for said in trace.messages} == {"subagent:proofread:0a1b2c3d"}
    assert not any(said.main for said in trace.messages)


def test_the_later_generation_reads_as_one_conversation_with_its_sessions_models_and_compaction(
    vectors: Path,
) -> None:
    [talk] = talks(vectors / "later.cpeconvo")
    by_id = {said.id: said for said in talk.messages}
    assert (by_id["Sum006"].parent, by_id["Sum006"].link, by_id["Sum006"].main) == (None, "End004", True)
    answer = by_id["Ans002"]
    assert answer.message.usage == Usage(11, 22, 0, 3)
    assert answer.message.extra == {
        "phase": "last",
        "cpe": {"model_ref": "opus", "model_display_name": "Claude Y"},
    }
    assert answer.message.blocks[0] == Block.thinking("I have to look", thinking_generator="anthropic")
    assert answer.message.blocks[1].tool_name == "knock"
    assert answer.message.blocks[1].arguments == {"door": "front"}
    assert by_id["Res003"].message.tool_result_error
    assert by_id["Res003"].message.blocks[0].id == "call_9"
    assert by_id["Pic005"].message.blocks == (Block.image(b"\x89PNG", "image/png"),)
    assert talk.setups == (Setup(provider="anthropic", model="claude-y"),)
    assert (answer.setup, talk.setup, talk.setup_at, by_id["Ask001"].setup) == (1, 1, 1, 0)
    assert (talk.title, talk.project, talk.head) == ("sess02", "/srv/house", "Pic005")
    assert talk.metadata["cpe.session.1.id"] == "sess01"
    assert talk.metadata["cpe.session.1.cost_usd"] == "0.25"
    assert talk.metadata["cpe.session.2.last_message_id"] == "Pic005"


@both_generations
@pytest.mark.parametrize("vector", ["first", "later"])
def test_a_vector_that_is_read_written_and_read_again_is_the_same(
    vector: str, write: Callable[..., int], vectors: Path, tmp_path: Path
) -> None:
    before = talks(vectors / f"{vector}.cpeconvo")
    assert write(before, tmp_path / "out", None) == len(before)
    assert talks(tmp_path / "out") == before


@pytest.mark.parametrize(("vector", "write"), [("later", WRITERS[0]), ("first", WRITERS[1])])
def test_what_is_written_has_the_very_schema_of_the_program(
    vector: str, write: Callable[..., int], vectors: Path, tmp_path: Path
) -> None:
    path = vectors / f"{vector}.cpeconvo"
    write(talks(path), tmp_path / "out", None)
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
    theirs = apsw.Connection(f"file:{path}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    ours = apsw.Connection(str(tmp_path / "out"))
    assert ours.execute(query).fetchall() == theirs.execute(query).fetchall()
    assert ours.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert ours.execute("PRAGMA foreign_key_check").fetchall() == []
    columns = "id, parent_id, role, tool_result_error, created_at"
    for table in (f"SELECT {columns} FROM messages ORDER BY id", "SELECT * FROM acp_sessions ORDER BY id"):
        if vector == "later" or "acp" not in table:
            assert ours.execute(table).fetchall() == theirs.execute(table).fetchall()
    ours.close()
    theirs.close()


@pytest.mark.parametrize("vector", ["first", "later"])
def test_a_vector_is_recognised_by_what_it_holds_and_leaves_no_trace_in_its_folder(
    vector: str, vectors: Path, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    shutil.copyfile(vectors / f"{vector}.cpeconvo", path)
    before = beside(path)
    assert "CPE" in (cpeconvo.recognises(source(path)) or "")
    talks(path)
    assert beside(path) == before


def test_blocks_of_messages_that_are_gone_are_left_out_and_told_in_the_log(
    vectors: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "hitherto"):
        found = talks(vectors / "first.cpeconvo")
    assert not any("left over" in said.message.text for talk in found for said in talk.messages)
    assert "1 blocks of messages that are gone" in caplog.text


# -- trees


def test_a_trace_that_is_linked_is_off_the_main_flow_with_all_below_it(tmp_path: Path) -> None:
    intermediate = LATER.replace("role TEXT", "title TEXT, role TEXT")  # a time between the two
    path = made(
        tmp_path / "f",
        message("root"),
        message("trace", title="subagent:look:1", compaction_parent_id="root"),
        message("below", "trace", title="subagent:look:1"),
        schema=intermediate,
    )
    [talk] = talks(path)
    assert [(s.id, s.link, s.main) for s in talk.messages] == [
        ("root", None, True), ("trace", "root", False), ("below", None, False),
    ]  # fmt: skip
    assert talk.messages[2].message.label == "subagent:look:1"


def test_parents_stand_before_their_children_wherever_they_lie_in_the_file(tmp_path: Path) -> None:
    path = made(tmp_path / "f", message("c", "b"), message("new", compaction_parent_id="c"), message("b", "a"))
    made(path, message("a"), schema="")
    [talk] = talks(path)
    assert [said.id for said in talk.messages] == ["a", "b", "c", "new"]
    assert talk.id == "a"


def test_a_circle_of_parents_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    rows = (message("a", "b"), message("b", "a"), message("below", "a"), message("self", "self"), message("good"))
    found, problems = parts(made(tmp_path / "f", *rows))
    assert [talk.id for talk in found] == ["good"]
    assert [p.name for p in problems] == ["messages a, b, below, self"]
    assert "circle" in problems[0].reason


def test_a_message_whose_parent_is_gone_begins_a_conversation_and_is_told(tmp_path: Path) -> None:
    found, problems = parts(made(tmp_path / "f", message("a", "gone"), message("b", "a")))
    [talk] = found
    assert [said.id for said in talk.messages] == ["a", "b"]
    assert talk.messages[0].message.extra == {"cpe": {"parent_id": "gone"}}
    assert [(p.name, "parent is not there" in p.reason) for p in problems] == [("message a", True)]


def test_a_compaction_that_leads_nowhere_or_in_a_circle_is_kept_as_a_mark(tmp_path: Path) -> None:
    path = made(
        tmp_path / "f",
        message("deleted", compaction_parent_id="gone"),
        message("x", compaction_parent_id="y"),
        message("y", compaction_parent_id="x"),
        message("own", compaction_parent_id="own"),
        message("child", "own", compaction_parent_id="deleted"),
    )
    first, circle, own = talks(path)
    assert first.messages[0].message.extra == {"cpe": {"compaction_parent_id": "gone"}}
    assert [(s.id, s.link) for s in circle.messages] == [("x", None), ("y", "x")]
    assert circle.messages[0].message.extra == {"cpe": {"compaction_parent_id": "y"}}
    assert own.messages[0].link is None
    assert own.messages[1].message.extra == {"cpe": {"compaction_parent_id": "deleted"}}
    for write in WRITERS:  # and what is marked stays marked
        write([first, circle, own], tmp_path / write.__name__, None)
        assert talks(tmp_path / write.__name__) == [first, circle, own]


def test_a_session_without_a_message_is_left_out_and_several_on_one_tree_are_all_kept(tmp_path: Path) -> None:
    columns = "INSERT INTO acp_sessions(id, last_message_id, cwd, title, model_ref, created_at) VALUES"
    path = made(
        tmp_path / "f",
        message("a"),
        message("b", "a"),
        f"{columns}('empty', NULL, '/', 'nothing', 'm', '2026-01-01 00:00:00')",
        f"{columns}('new', 'a', '/new', 'the newer', 'm', '2026-01-03 00:00:00')",
        f"{columns}('old', 'b', '/old', 'the older', 'm', '2026-01-02 00:00:00')",
    )
    [talk] = talks(path)
    assert (talk.title, talk.project, talk.head) == ("the newer", "/new", "a")
    assert talk.metadata["cpe.session.1.id"] == "old"
    assert talk.metadata["cpe.session.2.id"] == "new"
    assert talk.setups == (Setup(model="m"),)
    assert talk.setup == 1


# -- cells


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("2026-07-20 12:00:00", NOON), ("2026-07-20T12:00:00Z", NOON), ("2026-07-20 14:00:00+02:00", NOON),
        ("2026-07-20 12:00:00.123456789", NOON + 123_456), ("2026-07-20 12:00:00 +0000 UTC", NOON),
        ("2026-07-20 14:00:00.5 +0200 CEST m=+0.123456", NOON + 500_000),
        ("2026-07-20 05:00:00 -0700 MST m=-1.5", NOON), (NOON // 1_000_000, NOON), (NOON // 1000, NOON),
        (1.5, 1_500_000), ("1969-12-31 23:59:59", -1_000_000),
    ],
)  # fmt: skip
def test_times_are_understood_in_every_way_the_program_wrote_them(
    text: object, microseconds: int, tmp_path: Path
) -> None:
    assert only(made(tmp_path / "f", message("a", created_at=text))).created_us == microseconds


@pytest.mark.parametrize("time", ["yesterday", "2026-13-40 99:99:99", "2026-07-20 12:00:00 +9999", "٢٠٢٦-07-20", 2**62])
@pytest.mark.parametrize(
    "text", ["not JSON", "[1]", '{"a":1,"a":2}', "[" * 5000, '{"n":1' + "0" * 30 + "}", '{"cpe":1}']
)
def test_what_does_not_fit_is_kept_as_it_is(time: object, text: str, tmp_path: Path) -> None:
    path = made(
        tmp_path / "f",
        "ALTER TABLE messages ADD COLUMN mood TEXT",
        message("a"),
        message("b", "a", created_at=time, message_extra_fields=text, mood="calm"),
        block("b", "not base64!", order=1, modality=1, extra_fields=text),
    )
    found = talks(path)
    said = found[0].messages[1]
    assert said.created_us == NOON  # its parent's
    assert said.message.extra == {"cpe": {"created_at": time, "message_extra_fields": text, "mood": "calm"}}
    assert said.message.blocks[1] == Block(
        "content", "not base64!", "image", extra={"cpe": {"extra_fields": text, "base64": False}}
    )
    for write in WRITERS:
        write(found, tmp_path / write.__name__, None)
        assert talks(tmp_path / write.__name__) == found


@pytest.mark.parametrize(
    "note", ["5", '{"id":7}', '{"setup":99}', '{"id":"b"}', '{"about":{"title":7}}', '{"about":{"head":"x"}}']
)
def test_a_note_that_is_none_of_ours_does_no_harm(note: str, tmp_path: Path) -> None:
    path = made(tmp_path / "f", message("a", message_extra_fields=f'{{"hitherto":{note}}}'), message("b", "a"))
    assert [(s.id, s.setup, s.main) for s in talks(path)[0].messages] == [("a", 0, True), ("b", 0, True)]
    with hitherto.open("memory:") as store:
        assert hitherto.formats.load(path, store).messages == 2


def test_a_message_that_cannot_be_read_is_told_and_what_was_said_below_keeps_its_place(tmp_path: Path) -> None:
    bad = block("b", "x").replace("'x'", "CAST(x'ff61' AS TEXT)").replace(", 0)", ", 1)")
    path = made(tmp_path / "f", message("a"), message("b", "a"), bad, message("c", "b"), message("d", role="a\nb"))
    found, problems = parts(path)
    assert {p.name for p in problems} == {"message b", "message d"}
    assert [(s.id, s.parent, s.message.role) for s in found[0].messages] == [
        ("a", None, "user"), ("b", "a", "event"), ("c", "b", "user"),
    ]  # fmt: skip


# -- files that are not what they seem


TABLE, ITS_BLOCKS = FIRST.split(";")[0], f"; {_BLOCKS}"
NOT_CPES = {
    "a view": "CREATE VIEW messages AS SELECT 'a' AS id, NULL AS parent_id, 'user' AS role" + ITS_BLOCKS,
    "a virtual table": "CREATE VIRTUAL TABLE messages USING fts5(id, parent_id, role)" + ITS_BLOCKS,
    "a computed column": TABLE.replace("role TEXT NOT NULL", "role TEXT AS (zeroblob(1e9))") + ITS_BLOCKS,
    "no blocks": TABLE,
    "no role": TABLE.replace("role TEXT NOT NULL", "rôle TEXT") + ITS_BLOCKS,
    "a hidden row number": TABLE.replace("title TEXT", "_rowid_ TEXT") + ITS_BLOCKS,
}


@pytest.mark.parametrize("name", NOT_CPES)
def test_a_database_with_other_tables_is_refused_and_not_recognised(name: str, tmp_path: Path) -> None:
    made(tmp_path / "f", schema=NOT_CPES[name])
    if name == "a view":  # the control: it works
        assert apsw.Connection(str(tmp_path / "f")).execute("SELECT id FROM messages").fetchall() == [("a",)]
    with pytest.raises(InvalidArgument) as error:
        list(cpeconvo.read(tmp_path / "f", None))
    assert error.value.hint
    assert cpeconvo.recognises(source(tmp_path / "f")) is None


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0", b'{"a": 1}' * 1000, b"SQLite format 3\0" * 300])
def test_what_is_no_database_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises((InvalidArgument, Damaged)):
        list(cpeconvo.read(tmp_path / "f", None))
    assert cpeconvo.recognises(source(tmp_path / "f")) is None
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_is_no_file_is_refused_and_a_store_of_ours_is_not_taken_for_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe", Path("a\0b")):
        with pytest.raises(CannotOpen):
            list(cpeconvo.read(path, None))
    planted = made(tmp_path / "planted", message("a"), "PRAGMA application_id = 0x48544854")
    assert cpeconvo.recognises(source(planted)) is None


def test_a_file_that_was_cut_off_or_changed_anywhere_is_an_error_of_ours_or_told(tmp_path: Path) -> None:
    said = [
        PortableMessage(
            id=f"m{n}", parent=f"m{n - 1}" if n else None, created_us=NOON + n, message=Message.user(f"{n} " * 700)
        )
        for n in range(40)
    ]
    cpeconvo.write([PortableConversation(id="t", messages=tuple(said))], tmp_path / "whole", None)
    whole, path = (tmp_path / "whole").read_bytes(), tmp_path / "f"
    for size in range(512, len(whole), 4096 * 3 + 100):
        path.write_bytes(whole[:size])
        with suppress(HithertoError):
            found, problems = parts(path)
            assert problems or sum(len(talk.messages) for talk in found) == 0, "never in silence"
    for at in range(16, len(whole), 1999):
        path.write_bytes(whole[:at] + bytes(b ^ 0xFF for b in whole[at : at + 8]) + whole[at + 8 :])
        with suppress(HithertoError):
            parts(path)


def test_rows_that_share_pages_cannot_claim_more_than_the_file_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "f", message("a"))
    connection, first = apsw.Connection(str(path)), []
    for n in range(1, 6):
        first.append(connection.pragma("page_count") + 1)
        connection.execute(block("a", "y" * 102_700, order=n))
    connection.close()
    data = bytearray(path.read_bytes())
    rows = data[4096 : (first[0] - 1) * 4096]  # the pages in which rows begin
    for page in first[1:]:  # each of the others now goes on where the first does, and the rest of the file is cut off
        assert rows.count(struct.pack(">I", page)) == 1
        rows = rows.replace(struct.pack(">I", page), struct.pack(">I", first[0]))
    data[4096 : (first[0] - 1) * 4096] = rows
    data[28:32] = struct.pack(">I", first[1] - 1)
    path.write_bytes(data[: (first[1] - 1) * 4096])
    with pytest.raises(Damaged, match="more than its own length"):
        parts(path)
    monkeypatch.setattr(_cpe_file, "_READINGS", 10**9)  # the control: who does not count takes in what is not there
    assert sum(len(said.message.text) for talk in talks(path) for said in talk.messages) > path.stat().st_size


def test_too_many_rows_and_too_large_a_cell_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "f", message("a"), message("b", "a"), message("c", "b"), block("c", "z" * 5000, order=1))
    assert len(talks(path)[0].messages) == 3
    monkeypatch.setattr(_sqlite_file, "LARGEST_CELL", 4000)
    [problem] = parts(path)[1]
    assert (problem.name, "larger" in problem.reason) == ("message c", True)
    monkeypatch.undo()
    for table in ("messages", "blocks"):
        monkeypatch.setitem(_cpe_file._MOST_ROWS, table, 2)
        with pytest.raises(Damaged, match="more than 2"):
            parts(path)
        monkeypatch.undo()


# -- files in use


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, apsw.Connection]]:
    """A file that a program has open, with something in its WAL."""
    folder = tmp_path / "live"
    folder.mkdir()
    path = folder / "f"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0")
    made(path, message("a"))
    connection.execute(message("b", "a"))
    yield path, connection
    connection.close()


def test_a_live_file_is_read_as_it_was_at_one_moment_and_nothing_is_written(
    live: tuple[Path, apsw.Connection],
) -> None:
    path, connection = live
    connection.execute(message("other"))
    before = beside(path)
    reading = cpeconvo.read(path, None)
    first = next(reading)
    assert beside(path).keys() == before.keys()
    assert all(beside(path)[n][2] == before[n][2] for n in ("f", "f-wal"))
    connection.execute(message("late", "other"))
    assert isinstance(first, PortableConversation)
    assert [said.id for said in first.messages] == ["a", "b"]
    [rest] = list(reading)
    assert isinstance(rest, PortableConversation)
    assert [said.id for said in rest.messages] == ["other"]
    assert [len(talk.messages) for talk in talks(path)] == [2, 2]  # the next one sees it


def test_changes_that_cannot_be_read_without_writing_are_said_not_passed_over(
    live: tuple[Path, apsw.Connection], tmp_path: Path
) -> None:
    for end in ("", "-wal"):
        shutil.copyfile(f"{live[0]}{end}", tmp_path / f"copy{end}")
    with pytest.raises(CannotOpen, match="cannot be read without writing") as error:
        talks(tmp_path / "copy")
    assert "open it once with CPE" in str(error.value.hint)
    shutil.copyfile(f"{live[0]}-shm", tmp_path / "copy-shm")  # as a program leaves it that was killed
    assert [said.id for said in talks(tmp_path / "copy")[0].messages] == ["a", "b"]


def test_a_file_that_is_set_to_wal_and_closed_is_read_and_nothing_appears_beside_it(tmp_path: Path) -> None:
    path = made(tmp_path / "f", message("a"), "PRAGMA journal_mode = WAL")
    assert {p.name for p in tmp_path.iterdir()} == {"f"}
    assert len(talks(path)) == 1
    assert {p.name for p in tmp_path.iterdir()} == {"f"}
    ordinary = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    ordinary.execute("SELECT 1 FROM messages").fetchall()
    assert {p.name for p in tmp_path.iterdir()} > {"f"}  # the control: this is what reading it does otherwise
    ordinary.close()


# -- writing


def full() -> PortableConversation:
    """A conversation with everything that one can have."""
    call = Message.assistant(
        [Block.thinking("hm", signature="s"), Block.tool_call("c1", "look", {"q": [1, 2.5, None]})],
        label="a label", key="k2", raw={"id": "msg_1", "content": [{"type": "text", "text": "x"}]},
        usage=Usage(1, 2, 3, 4, 5), extra={"a": {"b": [1.0, True, "ü"]}, "imported": {"id": "zz"}},
    )  # fmt: skip
    media = Message.user([
        Block.image(b"\0\xff", "image/png", width=3),
        Block("content", "https://example.org/a.png", "image", "image/png"),
        Block("content", "aGVsbG8=", "audio", "audio/wav"),
        Block("content", b"raw", "text", "application/octet-stream"),
        Block("document", b"%PDF", "document", "application/pdf", "", {}),
        Block.text("NUL \0 and \U0001f389 \u202e"),
        Block("content", "x", "7", "y/z", extra={"hitherto": 1, "cpe": {"base64": False}}),
        Block.video(Attachment(3, lambda: iter([b"ab", b"c"])), "video/mp4"),
    ])  # fmt: skip
    result = Message.tool_result("c1", "boom", error=True)
    setups = (
        Setup(provider="openai", model="gpt", system_prompt="one", tools=({"name": "look", "parameters": {}},)),
        Setup(provider="openai", model="gpt", system_prompt="two", raw=[{"type": "text", "text": "two"}]),
        Setup(system_prompt="only a prompt"),
    )
    secret = replace(media, privacy={"contains_secrets": False})
    event, odd = Message("event", (Block.text("e"),)), Message("odd role", (Block.text(""),), "l")
    return PortableConversation(
        id="6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10",
        messages=(
            PortableMessage(id="aaaaaa", message=secret, created_us=NOON, setup=1),
            PortableMessage(id="bbbbbb", parent="aaaaaa", message=call, created_us=NOON + 123_456, setup=2),
            PortableMessage(id="cccccc", parent="bbbbbb", message=result, created_us=NOON + 2, setup=3),
            PortableMessage(id="dddddd", parent="aaaaaa", message=event, origin="x/y", main=False),
            PortableMessage(id="eeeeee", link="bbbbbb", message=Message.user("t", label="subagent:l:1"), main=False),
            PortableMessage(id="ffffff", parent="eeeeee", message=Message.assistant(""), main=False),
            PortableMessage(id="gggggg", link="cccccc", message=Message.user("summary", extra={}), created_us=NOON + 3),
            PortableMessage(id="hhhhhh", message=odd, created_us=NOON + 4, format="jsonl"),
        ),
        title="A title", key="conv-key", project="/srv/app", metadata={"a": "b", "cpe.session.1.id": "half"},
        setups=setups, setup=2, setup_at=3, opening="op", head="gggggg", held=True, created_us=NOON - 5,
    )  # fmt: skip


def loaded(talk: PortableConversation) -> PortableConversation:
    """With what is read in pieces read."""
    said = tuple(
        replace(s, message=replace(s.message, blocks=tuple(
            replace(b, content=b.content.load()) if isinstance(b.content, Attachment) else b for b in s.message.blocks
        )))
        for s in talk.messages
    )  # fmt: skip
    return replace(talk, messages=said)


@both_generations
def test_a_conversation_with_everything_comes_back_equal(write: Callable[..., int], tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff?#%41.cpeconvo"))  # which is no text
    assert write([full()], path, None) == 1
    assert talks(path) == [loaded(full())]
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_the_format_can_say_is_written_without_a_trace_of_ours(tmp_path: Path) -> None:
    said = (
        PortableMessage(id="a", message=Message.user("hello"), created_us=NOON),
        PortableMessage(id="b", parent="a", message=Message.assistant("hi", usage=Usage(1, 2), extra={"k": 1}), setup=1,
             created_us=NOON + 5),
        PortableMessage(id="c", link="b", message=Message.user("the sum"), created_us=NOON + 6),
    )  # fmt: skip
    talk = PortableConversation(
        id="a", messages=said, setups=(Setup(provider="anthropic", model="m"),), setup=1, setup_at=1
    )
    cpeconvo.write([talk], tmp_path / "f", None)
    assert b"hitherto" not in (tmp_path / "f").read_bytes()
    assert talks(tmp_path / "f") == [talk]


def test_title_and_directory_are_a_session_that_the_program_shows(tmp_path: Path) -> None:
    cpeconvo.write([full()], tmp_path / "f", None)
    connection = apsw.Connection(str(tmp_path / "f"))
    query = "SELECT last_message_id, cwd, title, model_ref FROM acp_sessions"
    assert connection.execute(query).fetchall() == [("gggggg", "/srv/app", "A title", "gpt")]
    connection.execute("UPDATE acp_sessions SET title = 'renamed there', last_message_id = 'bbbbbb'")
    connection.close()
    [talk] = talks(tmp_path / "f")
    assert (talk.title, talk.head) == ("renamed there", "bbbbbb")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(leaves | texts, lambda x: st.lists(x, max_size=2) | st.dictionaries(texts, x, max_size=2))
extras = st.none() | st.dictionaries(texts | st.sampled_from(["cpe", "hitherto"]), values, max_size=2)
modalities = st.sampled_from(["text", "image", "audio", "video", "4", "other", ""])
contents = texts | st.binary(max_size=6) | st.just("aGVsbG8=")
blocks = st.builds(Block, st.just("content") | texts, contents, modalities, texts, st.none() | texts, extras)
counts = st.integers(0, 2**40)
messages = st.builds(
    Message, st.sampled_from(["user", "assistant", "tool_result", "event"]), st.lists(blocks, max_size=3).map(tuple),
    st.none() | texts, st.none(), st.booleans(), extras, values,
    st.none() | st.builds(Usage, counts, counts, counts, counts, counts), st.none() | st.dictionaries(texts, values),
)  # fmt: skip
setups = st.builds(Setup, texts, texts, texts, st.just(()) | st.just(({"name": "t"},)), st.none() | values)


@st.composite
def conversations(draw: st.DrawFn) -> PortableConversation:
    kept = tuple(draw(st.lists(setups, max_size=3)))
    said: list[PortableMessage] = []
    for n in range(draw(st.integers(1, 5))):
        parent = draw(st.sampled_from([None, *said])) if said else None
        link = draw(st.sampled_from([None, *said])) if said and parent is None else None
        said.append(PortableMessage(
            id=f"id{n}", message=draw(messages), parent=parent.id if parent else None, link=link.id if link else None,
            main=draw(st.booleans()) and (parent is None or parent.main),
            created_us=draw(st.integers(0, 2**52)), setup=draw(st.integers(0, len(kept))),
        ))  # fmt: skip
    mains = [s.id for s in said if s.main]
    return PortableConversation(
        id=draw(texts.filter(bool)), messages=tuple(said), title=draw(texts), key=draw(st.none() | texts),
        project=draw(st.none() | texts), metadata=draw(st.dictionaries(texts, texts, max_size=2)), setups=kept,
        setup=draw(st.integers(0, len(kept))), setup_at=draw(st.integers(0, len(said))), head=draw(
            st.sampled_from([None, *mains])), held=draw(st.booleans()), created_us=draw(counts),
    )  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(conversations(), max_size=3))
def test_whatever_is_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, some: list[PortableConversation]
) -> None:
    path = tmp_path_factory.mktemp("any") / "f"
    assert cpeconvo.write(some, path, None) == len(some)
    assert talks(path) == some


def test_an_id_that_is_taken_in_the_file_gets_another_there_and_comes_back_as_it_was(tmp_path: Path) -> None:
    one = PortableConversation(
        id="one",
        messages=(
            PortableMessage(id="a", message=Message.user("x")),
            PortableMessage(id="x" * 99, message=Message.user("y")),
        ),
    )
    two = replace(one, id="two")
    cpeconvo.write([one, two], tmp_path / "f", None)
    connection = apsw.Connection(str(tmp_path / "f"))
    ids = [id for (id,) in connection.execute("SELECT id FROM messages ORDER BY _rowid_")]
    connection.close()
    assert ids[0] == "a"
    assert all(re.fullmatch("[0-9A-Za-z]{6}", str(id)) for id in ids[1:])
    assert talks(tmp_path / "f") == [one, two]


def test_what_json_does_not_have_is_written_as_near_as_it_can_be(tmp_path: Path) -> None:
    said = PortableMessage(id="a", message=Message.user("x", extra={"b": b"\xff", "n": float("inf")}, raw=[b"a"]))
    cpeconvo.write(
        [PortableConversation(id="empty"), PortableConversation(id="a", messages=(said,))], tmp_path / "f", None
    )
    [talk] = talks(tmp_path / "f")  # nor can it say a conversation without messages
    assert talk.messages[0].message.extra == {"b": "/w==", "n": None}
    assert talk.messages[0].message.raw == ["YQ=="]


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in (tmp_path / "f", tmp_path / "link"):
        with pytest.raises(AlreadyExists):
            cpeconvo.write([full()], place, None)
    assert (tmp_path / "f").read_text() == "mine"

    def slow() -> Iterator[PortableConversation]:
        yield full()
        (tmp_path / "late").write_text("faster")

    with pytest.raises(AlreadyExists):
        cpeconvo.write(slow(), tmp_path / "late", None)
    assert {p.name for p in tmp_path.iterdir()} == {"f", "late", "link"}


def test_whatever_goes_wrong_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[PortableConversation]:
        yield full()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cpeconvo.write(failing(), tmp_path / "f", None)
    one = PortableMessage(id="a", message=Message.user("x"))
    half, large = Message.user("\ud800"), Message.assistant("x", usage=Usage(2**70))
    wrong = (
        replace(one, parent="elsewhere"),
        replace(one, setup=1),
        replace(one, message=half),
        replace(one, message=large),
    )
    for said in wrong:
        with pytest.raises(InvalidArgument):
            cpeconvo.write([PortableConversation(id="t", messages=(said,))], tmp_path / "f", None)
    with pytest.raises(InvalidArgument, match="sealed"):
        cpeconvo.write([full()], tmp_path / "f", Key.generate())
    for place in (tmp_path / "no" / "f", tmp_path / "a\0b"):
        with pytest.raises(CannotOpen):
            cpeconvo.write([full()], place, None)
    monkeypatch.setattr(_sqlite_file, "LARGEST_CELL", 1000)
    with pytest.raises(InvalidArgument):
        cpeconvo.write(
            [PortableConversation(id="t", messages=(replace(one, message=Message.user("x" * 2000)),))],
            tmp_path / "f",
            None,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_space_is_an_error_of_ours_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from hitherto import Message
from hitherto.errors import StorageError
from hitherto.formats.own import cpeconvo
from hitherto.formats._types import PortableConversation, PortableMessage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
said = (PortableMessage(id="a", message=Message.user("x" * 100_000)),)
try:
    cpeconvo.write([PortableConversation(id="t", messages=said)], Path(sys.argv[1]), None)
except StorageError as error:
    print(type(error).__name__)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "f")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip(), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_goes_out_and_comes_back_and_nothing_is_added_twice(tmp_path: Path) -> None:
    with hitherto.open("memory:") as store:
        talk = store.start(title="T", project="/p", metadata={"m": "1"})
        talk.append(Message.user("one"))
        talk.append(Message.assistant("two", raw={"id": 1}))
        hitherto.formats.save(store, tmp_path / "f.cpeconvo")
        assert hitherto.formats.load(tmp_path / "f.cpeconvo", store).messages == 0
        with hitherto.open("memory:") as other:
            report = hitherto.formats.load(tmp_path / "f.cpeconvo", other)
            [copy] = report.added
            assert (copy.id, copy.title, copy.project) == (talk.id, "T", "/p")
            assert [m.raw for m in copy.thread()] == [None, {"id": 1}]


def test_a_file_that_is_locked_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "f", message("a"))
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(_sqlite_file, "_TIMEOUT_SECONDS", 0.05)
    with pytest.raises(Busy):
        parts(path)
    holder.close()
    assert len(talks(path)) == 1


def test_the_first_generation_has_a_name_of_its_own_and_claims_no_file(tmp_path: Path) -> None:
    assert cpeconvo_first.write([full()], tmp_path / "f", None) == 1
    assert "first" in (cpeconvo.recognises(source(tmp_path / "f")) or "")
    assert cpeconvo_first.recognises(source(tmp_path / "f")) is None
