"""A message whose attachment is lost comes back with the hole named, and can be copied, exported and gone on with.

"Lost" and "deleted" are two things: `MissingAttachment` is `Damaged`, and is raised only while a message still refers
to the attachment; `NotFound` means that no message does.

Each test takes an attachment away behind the store's back, in memory, in SQLite (plain and sealed) and in PostgreSQL.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Saved, Store, formats
from hitherto._engine.state import ConversationState
from hitherto.attachment import LARGE, Attachment
from hitherto.backends.memory import MemoryBackend
from hitherto.copying import copy_store
from hitherto.dialects._missing_attachments import has_hole, holes_in, tell_holes
from hitherto.errors import Busy, Damaged, MissingAttachment, NotFound
from hitherto.records import Records
from hitherto.testing.conformance import noise, pack_all

from ..recorder.test_resume import KINDS, Script, client, closed, entries  # noqa: F401  # a fixture
from ..support.command import World
from ..support.databases import Database, new_database
from ..support.provider import provider

SIZE = 3 * LARGE
KEY = Key(bytes(range(32)))
Lose = Callable[[], None]


class Lossy:
    """A store, and how to lose its attachments."""

    def __init__(self, store: Store, lose: Lose) -> None:
        self.store = store
        self.lose = lose


def _lose_sqlite(path: Path) -> None:
    connection = apsw.Connection(str(path))
    for statement in ("PRAGMA foreign_keys = OFF", *(f"DELETE FROM {t}" for t in ("chunk", "reference", "attachment"))):
        connection.execute(statement)
    connection.close()


def _lose_postgres(database: Database) -> None:
    with database.admin() as connection:
        connection.execute("SET session_replication_role = replica")
        for table in ("chunk", "reference", "attachment"):
            connection.execute(f"DELETE FROM hitherto.{table}")


@pytest.fixture(params=["memory", "sqlite", "sealed", "postgres", "sealed postgres"])
def lossy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lossy]:
    with ExitStack() as stack:
        key = KEY if request.param.startswith("sealed") else None
        if request.param == "memory":
            backend = MemoryBackend()
            store = stack.enter_context(Store(backend, maintenance=False))
            yield Lossy(store, backend._attachments.clear)
        elif "postgres" in request.param:
            database = new_database()
            store = stack.enter_context(hitherto.open(database.url(), key=key, maintenance=False))
            yield Lossy(store, lambda: _lose_postgres(database))
        else:
            path = tmp_path / "store.db"
            store = stack.enter_context(hitherto.open(path, key=key, maintenance=False))
            yield Lossy(store, lambda: _lose_sqlite(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plain.db"


def image(size: int = SIZE) -> Message:
    return Message.user([Block.text("look"), Block.image(noise(size), "image/png")])


def talk_of(store: Store) -> tuple[Conversation, Saved]:
    """A conversation of three messages; the one in the middle has an image."""
    talk = store.start(title="talk")
    talk.append(Message.user("before"))
    shown = talk.append(image())
    talk.append(Message.assistant("after"))
    return talk, shown


def content_of(message: Message) -> Attachment:
    content = message.blocks[1].content
    assert isinstance(content, Attachment)
    return content


# -- reading


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
@pytest.mark.parametrize("attachments", ["load", "lazy"])
def test_the_message_comes_back_with_the_hole_named(lossy: Lossy, attachments: Any, packed: bool) -> None:
    store = lossy.store
    talk, shown = talk_of(store)
    if packed:
        pack_all(store)
    lossy.lose()
    reads = [
        talk.thread(attachments=attachments)[1],
        store.thread(shown, attachments=attachments)[1],
        store.message(shown, attachments=attachments),
        store.get([shown], attachments=attachments)[0],
        next(m for m in store.messages(attachments=attachments) if m.id == shown.id),
    ]
    for message in reads:
        assert message.text == "look"
        assert message.problem == f"an attachment is missing ({SIZE:,} bytes)"
        hole = content_of(message)
        assert (hole.is_missing, hole.size, hole.text) == (True, SIZE, False)
        assert "missing" in repr(hole)
        for read in (hole.read, hole.load, lambda hole=hole: list(hole)):
            with pytest.raises(MissingAttachment) as caught:
                read()
            assert caught.value.size == SIZE
            assert isinstance(caught.value, Damaged)
            assert not isinstance(caught.value, NotFound)
    assert len(list(store.messages())) == 3
    assert [m.problem is None for m in talk.thread()] == [True, False, True]
    assert store.quarantine() == []  # the message is not damaged, and nothing purges it
    assert store.read_only is None


def test_control_an_attachment_that_is_there_is_read_and_nothing_is_reported(lossy: Lossy) -> None:
    talk, shown = talk_of(lossy.store)
    (message,) = (m for m in talk.thread() if m.id == shown.id)
    assert (message.blocks[1].content, message.problem) == (noise(SIZE), None)
    assert not content_of(talk.thread(attachments="lazy")[1]).is_missing
    assert lossy.store.verify().problems == ()


def test_control_without_holes_such_a_message_cannot_be_read(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    talk, shown = talk_of(lossy.store)
    lossy.lose()
    made = ConversationState.__init__

    def shared(self: ConversationState, *given: Any, own: bool = False, **more: Any) -> None:  # no desk is one's own
        made(self, *given, own=False, **more)

    monkeypatch.setattr(ConversationState, "__init__", shared)
    for read in (talk.thread, lambda: lossy.store.message(shown)):
        with pytest.raises(MissingAttachment):
            read()


def test_a_hole_is_not_saved_to_a_file(lossy: Lossy, tmp_path: Path) -> None:
    talk, _ = talk_of(lossy.store)
    lossy.lose()
    with pytest.raises(MissingAttachment):
        content_of(talk.thread()[1]).save(tmp_path / "image.png")
    assert list(tmp_path.glob("image*")) == []


def test_a_long_string_in_the_json_beside_the_blocks_has_its_hole_too(lossy: Lossy) -> None:
    talk = lossy.store.start()
    talk.append(Message.user("short", raw={"long": ["ü" * LARGE], "short": 1}))
    lossy.lose()
    (message,) = talk.thread()
    raw: Any = message.raw
    assert (message.text, raw["short"], message.problem) == (
        "short",
        1,
        f"an attachment is missing ({2 * LARGE:,} bytes)",
    )
    assert (raw["long"][0].is_missing, raw["long"][0].text) == (True, True)
    assert has_hole(raw)
    assert not has_hole({"short": [1, "x"]})


def test_verify_names_every_message_with_a_hole(lossy: Lossy) -> None:
    store = lossy.store
    talk, shown = talk_of(store)
    again = talk.append(image())  # the same bytes, kept once
    lossy.lose()
    report = store.verify()
    named = {p.message: p.what for p in report.problems if p.message is not None}
    assert named.keys() == {shown.id, again.id}
    assert all("missing" in what and f"{SIZE:,}" in what for what in named.values())
    assert {p.conversation for p in report.problems if p.message is not None} == {talk.id}
    assert (report.conversations, report.messages) == (1, 4)


def test_a_lazy_attachment_that_is_lost_later_is_missing_and_one_that_is_deleted_is_not_found(lossy: Lossy) -> None:
    store = lossy.store
    talk, shown = talk_of(store)
    other = talk.append(image(SIZE + 1))
    lazy = {m.id: m for m in talk.thread(attachments="lazy")}
    lost, deleted = content_of(lazy[shown.id]), content_of(lazy[other.id])
    store.delete([other.id])
    with pytest.raises(NotFound):
        deleted.read()
    lossy.lose()
    with pytest.raises(MissingAttachment) as caught:
        lost.read()
    assert caught.value.message == shown.id
    with pytest.raises(NotFound):
        deleted.read()
    store.purge(talk, reason="user-requested")
    with pytest.raises(NotFound):
        lost.read()


def test_a_lazy_attachment_that_was_encrypted_anew_says_so(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "s.db", key=KEY, maintenance=False) as store:
        talk, _ = talk_of(store)
        stale = content_of(talk.thread(attachments="lazy")[1])
        assert store.rotate(KEY, reencrypt=True).complete
        with pytest.raises(Busy, match="encrypted anew"):
            stale.read()
        assert content_of(talk.thread(attachments="lazy")[1]).read() == noise(SIZE)


def test_going_on_in_such_a_conversation_works(lossy: Lossy) -> None:
    store = lossy.store
    talk, shown = talk_of(store)
    lossy.lose()
    talk.append(Message.user("and now?"))
    talk.append(image())  # the same image, given again: it is kept, and fills the hole
    assert [m.problem for m in talk.thread()] == [None] * 5
    assert store.message(shown).blocks[1].content == noise(SIZE)


def test_a_message_with_a_hole_that_is_said_again_has_a_hole_there(lossy: Lossy) -> None:
    store = lossy.store
    talk, _ = talk_of(store)
    lossy.lose()
    hole = talk.thread()[1]
    for other in (store.start(), talk):
        said = other.append(Message.user(hole.blocks))
        assert content_of(said).is_missing
        assert other.thread()[-1].problem == hole.problem
    assert {p.what for p in store.verify().problems if p.message} == {
        f"an attachment is missing: its {SIZE:,} bytes are not in the store"
    }


def test_the_record_of_such_a_conversation_says_which_attachment_is_missing(lossy: Lossy) -> None:
    talk, shown = talk_of(lossy.store)
    whole = Records(lossy.store).get(talk.id)
    assert [ref.missing for ref in whole.attachments] == [False]
    lossy.lose()
    found = Records(lossy.store).get(talk.id)
    assert [frame.content for frame in found.messages] == ["before", "look", "after"]
    (ref,) = found.attachments
    assert (ref.missing, ref.byte_length, ref.checksum, ref.attachment_id) == (True, SIZE, "", f"{shown.id}/1")


def test_search_finds_the_words_beside_a_hole(lossy: Lossy) -> None:
    _, shown = talk_of(lossy.store)
    lossy.lose()
    assert [hit.message_id for hit in lossy.store.search("look")] == [shown.id]


# -- copies


def test_a_copy_has_every_message_and_reports_the_hole(lossy: Lossy, tmp_path: Path) -> None:
    store = lossy.store
    talk, shown = talk_of(store)
    sound = store.start(title="sound")
    sound.append(Message.user("sound"))
    lossy.lose()
    for key in (None, KEY):
        with hitherto.open(tmp_path / f"{bool(key)}.db", key=key, maintenance=False) as target:
            report = formats.copy(store, target)
            assert (report.new, report.messages, report.unreadable) == (2, 4, ())
            assert any(shown.id in note and "missing" in note for note in report.notes)
            copy = target.conversation(talk.id).thread()
            assert [m.text for m in copy] == ["before", "look", "after"]
            assert content_of(copy[1]).is_missing
            assert [p.message for p in target.verify().problems] == [copy[1].id]
            again = formats.copy(store, target)
            assert (again.messages, again.unchanged) == (0, 2)


def test_a_copy_made_before_the_loss_is_not_given_the_message_twice(lossy: Lossy, tmp_path: Path) -> None:
    talk, _ = talk_of(lossy.store)
    with hitherto.open(tmp_path / "t.db", maintenance=False) as target:
        formats.copy(lossy.store, target)
        lossy.lose()
        again = formats.copy(lossy.store, target)
        assert (again.messages, again.unchanged) == (0, 1)
        assert target.conversation(talk.id).thread()[1].blocks[1].content == noise(SIZE)


def test_a_file_of_lines_marks_the_hole_and_brings_it_back(lossy: Lossy, tmp_path: Path) -> None:
    store = lossy.store
    talk = store.start()
    shown = talk.append(Message.user(Block.image(noise(SIZE), "image/png"), raw={"same": "x" * (LARGE + 1)}))
    lossy.lose()
    path, second = tmp_path / "all.jsonl", tmp_path / "again.jsonl"
    assert formats.save(store, path) == 1
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    marked = [line["attachment"] for line in lines if "attachment" in line]
    assert sorted((m["size"], m["missing"]) for m in marked) == sorted([(SIZE, True), (LARGE + 1, True)])
    assert all("data" not in m and "sha256" not in m for m in marked)
    with hitherto.open("memory:") as target:
        report = formats.load(path, target)
        assert (report.messages, report.unreadable) == (1, ())
        assert sum(shown.id in note and "missing" in note for note in report.notes) == 2
        (came,) = target.conversation(talk.id).thread()
        assert len(holes_in(came)) == 2
        formats.save(target, second)
    assert second.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("format", ["markdown", "html", "openai", "cpeconvo"])
def test_every_other_format_says_that_it_is_missing(lossy: Lossy, tmp_path: Path, format: str) -> None:
    talk_of(lossy.store)
    path = tmp_path / "out"
    lossy.lose()
    assert formats.save(lossy.store, path, format=format) == 1
    if format == "cpeconvo":
        found = list(apsw.Connection(str(path)).execute("SELECT content FROM blocks"))
        written = " ".join(str(content) for (content,) in found)
    else:
        written = path.read_text()
    assert "missing from the store" in written
    assert f"{SIZE:,} bytes" in written
    assert "base64," not in written


def test_detach_and_snapshot_go_on(lossy: Lossy, caplog: pytest.LogCaptureFixture) -> None:
    talk, shown = talk_of(lossy.store)
    lossy.lose()
    apart = talk.detach()
    assert [m.problem is None for m in apart.thread()] == [True, False, True]
    snapshot = talk.snapshot()
    assert "missing from the store" in json.dumps(snapshot.messages)
    assert shown.id in caplog.text
    back = lossy.store.restore(snapshot)
    assert next(m.text for m in back.thread()) == "before"


def test_backup_and_copied_rows_have_the_message_and_name_the_hole(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with hitherto.open(path, maintenance=False) as store:
        talk, shown = talk_of(store)
        _lose_sqlite(path)
        store.backup(tmp_path / "backup.db")
    copied = copy_store(path, tmp_path / "copy.db")
    assert (copied.messages, copied.different) == (3, ())
    assert any(shown.id in problem and "missing" in problem for problem in copied.problems)
    for name in ("backup.db", "copy.db"):
        with hitherto.open(tmp_path / name, maintenance=False) as other:
            assert [m.problem is None for m in other.conversation(talk.id).thread()] == [True, False, True]
            assert shown.id in {p.message for p in other.verify().problems}


@pytest.mark.parametrize("step", ["seal", "unseal", "rotate", "reencrypt"])
def test_another_key_leaves_the_message_where_it_is(tmp_path: Path, step: str) -> None:
    path = tmp_path / "s.db"
    with hitherto.open(path, key=None if step == "seal" else KEY, maintenance=False) as store:
        talk, shown = talk_of(store)
        _lose_sqlite(path)
        if step == "seal":
            assert store.seal(KEY).complete
        elif step == "unseal":
            assert store.unseal().complete
        elif step == "rotate":
            assert store.rotate(Key(bytes(range(1, 33)))).complete
        else:
            assert store.rotate(KEY, reencrypt=True).complete
        assert [m.problem is None for m in talk.thread()] == [True, False, True]
        assert {p.message for p in store.verify().problems} == {shown.id}


# -- providers


@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_is_told_that_the_image_is_missing_and_is_sent_no_garbage(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with hitherto.open(path, maintenance=False) as store, provider(Script(kind, "a house", "indeed")) as server:
        first = hitherto.record(client(kind, server), store)
        first.chat([Block.text("look"), Block.image(noise(SIZE), "image/png")])
        _lose_sqlite(path)
        talk = store.latest()
        assert talk is not None
        second = hitherto.resume(client(kind, server), store, talk)
        found = hitherto.recording(second)
        assert found is not None
        assert [repair.kind for repair in found.resumed.repairs] == ["missing-attachment"]  # type: ignore[union-attr]
        second.chat("sure?")
        sent = json.dumps(entries(server.asked[-1].body))
        assert "missing from the store" in sent
        assert "look" in sent
        assert len(sent) < 5000
        found.flush()
        assert [m.role for m in store.latest().thread()] == ["user", "assistant"] * 2  # type: ignore[union-attr]
        assert len(store.conversations().items) == 1


def test_a_message_without_holes_is_told_as_it_is() -> None:
    message = image()
    assert tell_holes(message) is message
    assert holes_in(message) == []


# -- the command line


def test_the_command_line_exports_and_copies_and_names_the_hole(world: World) -> None:
    with world.store() as store:
        talk, shown = talk_of(store)
    _lose_sqlite(world.place)
    exported = world.command("export", "--all", "-o", "all.jsonl")
    assert exported.returncode == 0
    assert shown.id in exported.stderr
    assert "missing" in exported.stderr
    assert "try again" not in exported.stderr
    listed = world.command("log", talk.id)
    assert "look" in listed.stdout
    assert "missing" in listed.stdout + listed.stderr
    checked = world.command("verify")
    assert checked.returncode != 0
    assert shown.id in checked.stdout + checked.stderr
