"""Conversations out of a store and into another: our own lines of JSON, and what loading makes of any file.

Requirements: C17, A11, and "Formats" of the snapshots.
"""

import base64
import hashlib
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

import hitherto
from hitherto import Block, Key, Message, Store, formats
from hitherto._engine import recovery
from hitherto._engine.engine import Engine
from hitherto.backends.memory import MemoryBackend
from hitherto.formats import PortableConversation, PortableMessage, Source, _extract, _importing
from hitherto.formats.own import _jsonl_reading, jsonl
from hitherto.ids import parse_conversation_id
from hitherto.model import Usage
from hitherto.snapshots import FileStore, Snapshot, Unreadable

IMAGE = random.Random(1).randbytes(90_000)
FILM = random.Random(2).randbytes(600_000)
EVERYTHING = {"nan": 1, "text": "\0 é \u2028 🎉 \u202e", "list": [1, 2.0, -0.0, 1e300, None, True, 2**63, -(2**63)]}


@pytest.fixture
def other() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def rich(store: Store) -> str:
    """A conversation with one of everything. Returns its id."""
    tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    talk = store.start(
        title="A tïtle", provider="openai", model="one", system_prompt="Be brief.", metadata={"a": "b"},
        project="/some/where", tools=[tool],
    )  # fmt: skip
    first = talk.append(Message.user("hello", key="k1"))
    raw = {**EVERYTHING, "bytes": b"\x00\xff", "long": "x" * 70_000, "$bytes": "looks like a mark"}
    marks = {"marked": {"$attachment": 0}, "twice": {"$object": {"$float": "nan"}}, "inf": float("inf")}
    talk.append(Message.assistant("hi", usage=Usage(3, 4, 1), raw=raw, extra=marks))
    talk.append(Message("tool_result", (Block.text("x"),), tool_result_error=True, privacy={"secrets": False}))
    branch = talk.fork(at=first)
    branch.append(Message.assistant([Block.video(FILM, "video/mp4"), Block.thinking("hm", signature="s")], label="l"))
    talk.configure(model="two", system_prompt="")
    talk.append(Message.user("again", extra={}))
    trace = talk.subagent("review", "r1")
    trace.append(Message.user("do it"))
    trace.append(Message.assistant("done"))
    talk.compact("the sum of it")
    said = "data:image/png;base64," + base64.b64encode(IMAGE).decode()
    talk.append(Message.user([Block.image(IMAGE, "image/png"), Block.image(b"tiny", "image/gif")], raw={"u": said}))
    gone = talk.append(Message.assistant("never mind"))
    side = talk.fork(at=first, main=False)
    side.append(Message.assistant("aside"))
    store.delete([gone.id])
    end = store.conversation(talk.id)
    assert end.position.at is not None
    recovery.keep(end.state, recovery.new_key(end.position.at), [Message.assistant("half an ans")])
    return talk.id


def whole(store: Store) -> list[object]:
    """All that a reader can see, without the ids that the store deals."""
    found: list[object] = []
    for info in store.conversations(limit=100).items:
        messages = list(store.messages(conversation=info.id, newest_first=False))
        places = {m.id: n for n, m in enumerate(messages)}
        talk = store.conversation(info.id)
        about = (info.id, info.title, info.key, info.project, info.metadata, info.held, info.created_at, info.active_at)
        halves = [(places[p.parent], p.messages, p.at) for p in talk.partials()]
        found.append((*about, halves, places.get(info.head or ""), talk.setup, len(talk.setups())))
        for m in messages:
            extra = {name: value for name, value in (m.extra or {}).items() if name != "imported"}
            place = (places.get(m.parent or ""), places.get(m.link or ""), m.main, m.created_us, m.role)
            found.append((*place, m.blocks, m.label, m.key, m.tool_result_error, extra, m.raw, m.usage, m.privacy))
    return found


def written(store: Store, path: Path) -> bytes:
    formats.save(store, path)
    return path.read_bytes()


# -- our own lines


@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_exported_imported_and_exported_again_is_equal_to_the_byte(sealed: bool, tmp_path: Path) -> None:
    key = Key.generate() if sealed else None
    with (
        hitherto.open(tmp_path / "a.db", key=key) as store,
        hitherto.open(tmp_path / "b.db", key=None if key is None else Key.generate()) as other,
        hitherto.open("memory:") as third,
    ):
        rich(store)
        store.ensure("my key", title="with a key").hold()
        store.start(title="empty")
        talk = store.conversation(store.save([Message.user("bare")])[0])
        talk.detach(title="a copy")
        first = written(store, tmp_path / "1.jsonl")
        report = formats.load(tmp_path / "1.jsonl", other)
        assert (report.format, report.new, report.unreadable, report.renamed) == ("jsonl", 5, (), {})
        assert written(other, tmp_path / "2.jsonl") == first
        formats.load(tmp_path / "2.jsonl", third)
        assert written(third, tmp_path / "3.jsonl") == first
        assert whole(other) == whole(store)
        assert all(s.verify().ok for s in (store, other, third))


def test_what_was_loaded_can_be_searched_resumed_forked_and_deleted(store: Store, other: Store, tmp_path: Path) -> None:
    id = rich(store)
    formats.save(store, tmp_path / "x.jsonl")
    formats.load(tmp_path / "x.jsonl", other)
    talk = other.conversation(id)
    assert [m.text for m in talk.thread()] == [m.text for m in store.conversation(id).thread()]
    assert talk.setup == store.conversation(id).setup
    assert [hit.conversation for hit in other.search("hello")] == [id]
    assert [m.text for m in other.messages(label="l")] == [""]
    assert [m.text for m in other.messages(subagent="review", newest_first=False)] == ["do it", "done"]
    talk.append(Message.user("and on it goes"))
    talk.fork(at=talk.thread()[0]).append(Message.user("or so"))
    other.delete([talk.thread()[0].id], recursive=True)
    assert other.verify().ok


@pytest.mark.parametrize("name", ["x.jsonl", "x.cpeconvo"])
@pytest.mark.parametrize("undone", [1, 2])
def test_what_was_undone_is_undone_in_the_copy_as_well(
    name: str, undone: int, store: Store, other: Store, tmp_path: Path
) -> None:
    """The head is not the newest message, and after the second undo there is none."""
    talk = store.start(title="t")
    talk.extend([Message.user("q0"), Message.assistant("a0"), Message.user("q1"), Message.assistant("a1")])
    for _ in range(undone):
        talk.undo()
    formats.save(store, tmp_path / name)
    formats.load(tmp_path / name, other)
    (info,) = other.conversations()
    copy = other.conversation(info)
    assert [m.text for m in copy.thread()] == ["q0", "a0"][: 4 - 2 * undone]
    assert copy.count == 4
    assert other.verify().ok
    formats.save(other, tmp_path / f"again.{name}")
    assert not formats.load(tmp_path / f"again.{name}", other).added


def test_a_message_keeps_its_key_so_that_saying_it_again_adds_nothing(
    store: Store, other: Store, tmp_path: Path
) -> None:
    id = rich(store)
    formats.save(store, tmp_path / "x.jsonl")
    formats.load(tmp_path / "x.jsonl", other)
    talk = other.conversation(id)
    before = talk.count
    talk.append(Message.user("hello", key="k1"))
    assert talk.refresh().count == before


def test_each_attachment_is_written_once_for_a_conversation(store: Store, tmp_path: Path) -> None:
    talk = store.start()
    for _ in range(3):
        talk.append(Message.user([Block.video(FILM, "video/mp4")]))
    assert len(written(store, tmp_path / "x.jsonl")) < 1.5 * len(FILM)


def test_a_name_that_ends_in_zst_is_compressed_and_read_all_the_same(
    store: Store, other: Store, tmp_path: Path
) -> None:
    for _ in range(20):
        store.save([Message.user("the same words again and again " * 50)])
    plain = written(store, tmp_path / "x.jsonl")
    small = written(store, tmp_path / "x.jsonl.zst")
    assert len(small) < len(plain) / 5
    assert formats.load(tmp_path / "x.jsonl.zst", other).new == 20
    assert "compressed" in formats.sniff(tmp_path / "x.jsonl.zst")[1]
    assert written(other, tmp_path / "y.jsonl") == plain


def test_only_the_conversations_that_are_asked_for_are_written(store: Store, other: Store, tmp_path: Path) -> None:
    for title in ("one", "two", "three"):
        store.start(title=title).append(Message.user(title))
    chosen = [info for info in store.conversations().items if info.title != "two"]
    assert formats.save(chosen, tmp_path / "x.jsonl") == 2
    assert formats.save(store.conversation(chosen[0].id), tmp_path / "y.jsonl") == 1
    assert sorted(talk.title for talk in formats.load(tmp_path / "x.jsonl", other)) == ["one", "three"]


def test_a_file_is_for_its_owner_alone_appears_when_it_is_complete_and_replaces_nothing(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("something else")
    with pytest.raises(hitherto.AlreadyExists):
        formats.save(store, path)
    assert path.read_text() == "something else"
    path.unlink()
    formats.save(store, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["x.jsonl"]


def test_an_export_that_fails_leaves_nothing_behind(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rich(store)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(hitherto.StorageFull):
            formats.save(store, tmp_path / "x.jsonl")
    with pytest.raises(hitherto.CannotOpen):
        formats.save(store, tmp_path / "missing" / "x.jsonl")
    assert os.listdir(tmp_path) == []


def test_what_is_said_while_the_export_reads_does_not_harm_it(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "a.db") as store, hitherto.open("memory:") as other:
        talk = store.start()
        talk.extend([Message.user(f"m{n}") for n in range(200)])
        stop = threading.Event()

        def speak() -> None:
            own = store.conversation(talk.id)
            while not stop.wait(0.001):  # one who reads needs a moment between two deletions
                message = own.append(Message.user("meanwhile"))
                if random.random() < 0.3:
                    store.delete([message.id])
                    own = store.conversation(talk.id)

        thread = threading.Thread(target=speak)
        thread.start()
        try:
            for n in range(5):
                formats.save(store, tmp_path / f"{n}.jsonl")
        finally:
            stop.set()
            thread.join()
        for n in range(5):
            formats.load(tmp_path / f"{n}.jsonl", other)
        assert other.verify().ok
        assert [m.text for m in other.conversation(talk.id).thread()][:200] == [f"m{n}" for n in range(200)]


# -- loading again


def test_loading_a_file_twice_adds_nothing_the_second_time(store: Store, other: Store, tmp_path: Path) -> None:
    rich(store)
    formats.save(store, tmp_path / "x.jsonl")
    for own in (other, store):  # also where it came from, in which the messages have other ids than after a load
        formats.load(tmp_path / "x.jsonl", own)
        before = whole(own)
        report = formats.load(tmp_path / "x.jsonl", own)
        assert (report.new, report.messages, report.unchanged, list(report)) == (0, 0, 1, [])
        assert whole(own) == before


def test_a_file_that_has_grown_adds_what_is_new_below_what_it_answers(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start()
    first = talk.append(Message.user("one"))
    talk.append(Message.assistant("two"))
    formats.save(store, tmp_path / "1.jsonl")
    formats.load(tmp_path / "1.jsonl", other)
    talk.append(Message.user("three"))
    talk.fork(at=first).append(Message.assistant("another two"))
    formats.save(store, tmp_path / "2.jsonl")
    report = formats.load(tmp_path / "2.jsonl", other)
    assert (report.new, report.messages, len(report)) == (0, 2, 1)
    there = other.conversation(talk.id)
    assert sorted(branch.depth for branch in there.branches()) == [2, 3]
    assert [m.text for m in there.thread()] == ["one", "another two"]
    assert other.verify().ok


def test_what_was_said_here_after_loading_stays(store: Store, other: Store, tmp_path: Path) -> None:
    talk = store.start()
    talk.append(Message.user("one"))
    formats.save(store, tmp_path / "1.jsonl")
    formats.load(tmp_path / "1.jsonl", other)
    here = other.conversation(talk.id)
    here.append(Message.assistant("said here"))
    here.label("mine", message=here.thread()[0])
    talk.append(Message.assistant("said there"))
    formats.save(store, tmp_path / "2.jsonl")
    assert formats.load(tmp_path / "2.jsonl", other).messages == 1
    found = {m.text: m.label for m in other.messages(conversation=talk.id)}
    assert found == {"one": "mine", "said here": None, "said there": None}


def test_two_messages_alike_below_the_same_one_are_two(store: Store, other: Store, tmp_path: Path) -> None:
    talk = store.start()
    first = talk.append(Message.user("one"))
    for _ in range(2):
        talk.fork(at=first).append(Message.assistant("the same"))
    formats.save(store, tmp_path / "x.jsonl")
    formats.load(tmp_path / "x.jsonl", other)
    assert formats.load(tmp_path / "x.jsonl", other).messages == 0
    assert other.conversation(talk.id).count == 3


def test_another_conversation_of_the_same_id_gets_an_id_of_its_own_and_the_report_says_so(
    store: Store, other: Store, tmp_path: Path
) -> None:
    id = "0f8fad5b-d9cb-469f-a165-70867728950e"
    store.start(id=id, title="theirs").append(Message.user("theirs"))
    formats.save(store, tmp_path / "x.jsonl")
    other.start(id=id, title="ours").append(Message.user("ours"))
    report = formats.load(tmp_path / "x.jsonl", other)
    assert list(report.renamed) == [id]
    assert report.notes
    assert id in report.notes[0]
    new = other.conversation(report.renamed[id])
    assert (new.title, new.metadata["imported_id"]) == ("theirs", id)
    assert other.conversation(id).title == "ours"
    assert formats.load(tmp_path / "x.jsonl", other).unchanged == 1  # and it is found there the next time
    assert len(other.conversations().items) == 2


def test_a_key_that_another_conversation_has_is_left_out_and_said(store: Store, other: Store, tmp_path: Path) -> None:
    store.ensure("inbox", title="theirs").append(Message.user("a"))
    other.ensure("inbox", title="ours")
    formats.save(store, tmp_path / "x.jsonl")
    report = formats.load(tmp_path / "x.jsonl", other)
    assert report.notes
    assert "key" in report.notes[0]
    assert {(i.title, i.key) for i in other.conversations().items} == {("theirs", None), ("ours", "inbox")}


def test_ids_of_messages_are_the_stores_own_and_the_report_tells_which_is_which(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start()
    there = talk.append(Message.user("hello"))
    formats.save(store, tmp_path / "x.jsonl")
    report = formats.load(tmp_path / "x.jsonl", other)
    here = other.message(report.ids[f"{talk.id}/{there.id}"])
    assert here.text == "hello"
    assert (here.extra or {})["imported"] == {"id": there.id, "format": "jsonl"}


def test_a_purged_conversation_comes_back_only_when_asked_for_and_old_handles_do_not_write_to_it(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start()
    talk.append(Message.user("hello"))
    formats.save(store, tmp_path / "x.jsonl")
    formats.load(tmp_path / "x.jsonl", other)
    old = other.conversation(talk.id)
    other.purge(talk.id, reason="user-requested")
    assert formats.load(tmp_path / "x.jsonl", other).purged == 1
    assert other.stats().conversations == 0
    formats.load(tmp_path / "x.jsonl", other, even_purged=True)
    with pytest.raises(hitherto.NotFound):
        old.append(Message.user("to whom?"))
    assert other.conversation(talk.id).count == 1
    assert other.verify().ok


def test_a_dry_run_says_what_would_be_and_writes_nothing(store: Store, other: Store, tmp_path: Path) -> None:
    rich(store)
    formats.save(store, tmp_path / "x.jsonl")
    report = formats.load(tmp_path / "x.jsonl", other, dry_run=True)
    assert (report.dry, report.new, report.messages > 5, list(report)) == (True, 1, True, [])
    assert other.conversations().items == []
    assert formats.load(tmp_path / "x.jsonl", other).messages == report.messages


def test_progress_hears_how_much_was_written_and_looked_at(store: Store, other: Store, tmp_path: Path) -> None:
    for n in range(3):
        store.save([Message.user(f"{n}"), Message.assistant("x")])
    written: list[int] = []
    formats.save(store, tmp_path / "x.jsonl", progress=written.append)
    assert written == [2, 4, 6]
    heard: list[int] = []
    formats.load(tmp_path / "x.jsonl", other, progress=heard.append)
    assert heard == [2, 4, 6]


# -- what is the same, and what only looks like it


def out(store: Store, tmp_path: Path) -> Path:
    """Everything in a store, as lines."""
    path = tmp_path / f"{len(os.listdir(tmp_path))}.jsonl"
    formats.save(store, path)
    return path


FRAMES = [Block.image(bytes([n]) * 1000, "image/bmp") for n in (1, 2)]
LARGE = [Block.video(bytes([n]) * 100_000, "video/mp4") for n in (1, 2)]


@pytest.mark.parametrize(
    ("one", "another"),
    [
        pytest.param(*(Message.user([frame]) for frame in FRAMES), id="bytes"),
        pytest.param(*(Message.user([film]) for film in LARGE), id="attachments"),
        pytest.param(*(Message("assistant", raw={"result": n}) for n in (1, 2)), id="raw"),
        pytest.param(*(Message("assistant", raw={"long": f"{n}" * 70_000}) for n in (1, 2)), id="long raw"),
        pytest.param(
            *(Message("tool_result", (Block.text("x"),), tool_result_error=n) for n in (True, False)), id="an error"
        ),
        pytest.param(*(Message.user([Block("content", "x", mime_type=n)]) for n in ("a/b", "text/x")), id="mime"),
    ],
)
def test_messages_that_differ_in_anything_that_was_said_are_both_kept(
    one: Message, another: Message, store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start()
    talk.append(Message.user("look"))
    formats.load(out(store, tmp_path), other)
    talk.append(one)
    other.conversation(talk.id).append(another)
    path = out(store, tmp_path)
    assert formats.load(path, other).messages == 1
    assert other.conversation(talk.id).count == 3
    assert formats.load(path, other).messages == 0


def test_a_key_that_is_another_messages_here_swallows_nothing(store: Store, other: Store, tmp_path: Path) -> None:
    talk = store.start()
    talk.append(Message.user("start"))
    formats.load(out(store, tmp_path), other)
    talk.append(Message.user("said there", key="turn-2"))
    talk.append(Message.assistant("its answer"))
    other.conversation(talk.id).append(Message.user("said here", key="turn-2"))
    path = out(store, tmp_path)
    report = formats.load(path, other)
    assert (report.messages, "keys of messages" in report.notes[0]) == (2, True)
    assert [m.text for m in other.conversation(talk.id).thread()] == ["start", "said there", "its answer"]
    assert formats.load(path, other).messages == 0


def test_two_who_load_the_same_file_at_once_add_it_once(store: Store, tmp_path: Path) -> None:
    talk = store.start(model="one")
    talk.append(Message.user("start"))
    first = out(store, tmp_path)
    talk.configure(model="two")
    talk.extend([Message.user(f"m{n}") for n in range(100)])
    recovery.keep(talk.state, recovery.new_key(talk.position.at or 0), [Message.assistant("half")])
    grown = out(store, tmp_path)
    database = tmp_path / "s.db"
    failed: list[Exception] = []
    with hitherto.open(database) as here:
        formats.load(first, here)
        barrier = threading.Barrier(3)

        def load() -> None:
            with hitherto.open(database) as own:
                barrier.wait()
                try:
                    formats.load(grown, own)
                except hitherto.HithertoError as error:
                    failed.append(error)

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        there = here.conversation(talk.id)
        assert (failed, there.count, there.model, len(there.partials())) == ([], 101, "two", 1)
        assert len(there.setups()) == 2
        assert here.verify().ok


def test_what_grows_brings_its_setups_its_hold_and_what_had_come_of_answers(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start(provider="openai", model="one")
    talk.append(Message.user("start"))
    formats.load(out(store, tmp_path), other)
    talk.configure(model="two", system_prompt="Be terse.")
    talk.append(Message.assistant("by two"))
    talk.hold()
    recovery.keep(talk.state, recovery.new_key(talk.position.at or 0), [Message.assistant("half")])
    path = out(store, tmp_path)
    for added in (1, 0):
        assert formats.load(path, other).messages == added
        there = other.conversation(talk.id)
        assert (there.model, there.system_prompt, there.held) == ("two", "Be terse.", True)
        assert [change.setup.model for change in there.setups()] == ["one", "two"]
        assert [partial.text for partial in there.partials()] == ["half"]
    assert written(other, tmp_path / "again.jsonl") == path.read_bytes()
    assert other.verify().ok


def test_a_new_conversation_comes_with_its_hold_and_its_partials_or_not_at_all(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = store.start()
    talk.append(Message.user("start"))
    talk.hold()
    recovery.keep(talk.state, recovery.new_key(talk.position.at or 0), [Message.assistant("half")])
    path = out(store, tmp_path)
    commits: list[object] = []
    commit = other.backend.commit

    def counted(batches: Any) -> Any:
        commits.append(batches)
        return commit(batches)

    monkeypatch.setattr(other.backend, "commit", counted)
    formats.load(path, other)
    there = other.conversation(talk.id)
    assert (len(commits), there.held, [partial.text for partial in there.partials()]) == (1, True, ["half"])


def test_of_two_alike_each_finds_its_own(store: Store, other: Store, tmp_path: Path) -> None:
    """One of them was deleted here: what stood below it goes below it again, and not below the other."""
    talk = store.start()
    first = talk.append(Message.user("q"))
    same = []
    for words in ("below X", "below Y"):
        branch = talk.fork(at=first)
        same.append(branch.append(Message.assistant("same")))
        branch.append(Message.user(words))
    for run in ("r1", "r2"):
        trace = talk.subagent("review", run, call=same[0] if run == "r1" else same[1])
        trace.append(Message.user("Review the diff."))
        trace.append(Message.assistant(f"result of {run}"))
    path = out(store, tmp_path)
    report = formats.load(path, other)
    before = whole(other)
    other.delete([report.ids[f"{talk.id}/{same[0].id}"]], recursive=True)
    assert formats.load(path, other).messages == 4
    assert sorted(map(str, _below(other))) == sorted(map(str, _below(store)))
    assert formats.load(path, other).messages == 0
    assert len(before) == len(whole(other))


def _below(store: Store) -> list[tuple[str, str, str | None]]:
    found = {m.id: m for m in store.messages()}
    return [(m.text, found[m.parent or m.link or m.id].text, m.label) for m in found.values()]


def test_two_that_only_share_a_sub_agents_task_are_two(store: Store) -> None:
    id = "5f0c0000-0000-4000-8000-000000000000"

    def about(what: str) -> PortableConversation:
        task = PortableMessage(id="2", message=Message.user("Review the diff."), link="1", main=False)
        return PortableConversation(id=id, messages=(PortableMessage(id="1", message=Message.user(what)), task))

    load_values([about("cats")], store)
    assert list(load_values([about("dogs")], store).renamed) == [id]
    assert sorted(m.text for m in store.messages() if m.main) == ["cats", "dogs"]


def test_a_setup_of_a_side_branch_that_comes_leaves_the_one_in_force(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start(model="one")
    talk.append(Message.user("start"))
    formats.load(out(store, tmp_path), other)
    side = talk.fork(main=False)
    side.configure(model="two")
    side.append(Message.assistant("aside"))
    path = out(store, tmp_path)
    for added in (1, 0):
        assert formats.load(path, other).messages == added
        assert other.conversation(talk.id).model == "one"
    aside = next(m for m in other.messages() if m.text == "aside")
    assert other.conversation(aside.id).model == "two"
    assert written(other, tmp_path / "again.jsonl") == path.read_bytes()


def test_a_setup_that_is_not_equal_to_itself_is_known_again(store: Store, other: Store, tmp_path: Path) -> None:
    talk = store.start()
    talk.append(Message.user("start"))
    formats.load(out(store, tmp_path), other)
    talk.configure(tools=[{"name": "x", "limit": float("nan")}])
    talk.append(Message.user("on"))
    path = out(store, tmp_path)
    assert [formats.load(path, other).messages for _ in range(2)] == [1, 0]
    assert len(formats.load(path, other).notes) == 0
    assert len(list(other.backend.items(parse_conversation_id(talk.id), b"setup/"))) == 1


def test_a_conversation_with_nothing_on_the_main_flow_is_known_again(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start()
    talk.subagent("scout", "1").append(Message.user("look around"))
    path = out(store, tmp_path)
    assert [formats.load(path, other).new for _ in range(3)] == [1, 0, 0]
    assert len(other.conversations().items) == 1


def test_what_others_delete_while_we_look_is_looked_at_again(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = store.start()
    talk.append(Message.user([Block.video(FILM, "video/mp4")]))
    formats.load(out(store, tmp_path), other)
    talk.append(Message.user("more"))
    path = out(store, tmp_path)
    look, looks = _extract.extract, []

    def meanwhile(own: Engine, id: bytes) -> Any:
        found = look(own, id)
        looks.append(id)
        if len(looks) == 1:
            other.purge(talk.id, reason="user-requested")
        return found

    monkeypatch.setattr(_importing, "extract", meanwhile)
    assert formats.load(path, other, even_purged=True).messages == 2
    assert other.verify().ok


def test_what_had_come_of_an_answer_is_not_brought_back_beside_the_answer(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start()
    talk.append(Message.user("q"))
    recovery.keep(talk.state, recovery.new_key(talk.position.at or 0), [Message.assistant("half")])
    path = out(store, tmp_path)
    formats.load(path, other)
    there = other.conversation(talk.id)
    there.accept(there.partials()[0])
    assert formats.load(path, other).unchanged == 1
    assert other.conversation(talk.id).partials() == []


def test_a_newer_setup_alone_is_said(store: Store, other: Store, tmp_path: Path) -> None:
    talk = store.start(model="one")
    talk.append(Message.user("q"))
    formats.load(out(store, tmp_path), other)
    talk.configure(model="two")
    (note,) = formats.load(out(store, tmp_path), other).notes
    assert note.endswith("setup")


def test_a_snapshot_of_a_conversation_that_changed_its_provider_is_known(store: Store, tmp_path: Path) -> None:
    talk = store.start(provider="claude", model="m")
    talk.append(Message.user("q"))
    talk.append(Message.assistant([Block.tool_call("t", "look", {})]))
    talk.append(Message.tool_result("t", "seen"))
    talk.append(Message.assistant("done"))
    talk.configure(provider="openai", model="n")
    formats.save(store, tmp_path / "out", format="gtb")
    assert formats.load(tmp_path / "out", store).messages == 0


def test_a_store_that_is_closed_meanwhile_is_not_taken_for_a_bad_file(store: Store, tmp_path: Path) -> None:
    some_lines(store, tmp_path)
    other = hitherto.open("memory:")

    def close(_: int) -> None:
        other.close()

    with pytest.raises(hitherto.Closed):
        formats.load(tmp_path / "whole.jsonl", other, progress=close)


@pytest.mark.parametrize(
    "said",
    [
        PortableConversation(id="a", messages=(PortableMessage(id="1", message=Message("")),)),
        PortableConversation(id="a", messages=(PortableMessage(id="1", message=Message.user("x" * 11_000_000)),)),
        PortableConversation(id="a", title="\ud800"),
        PortableConversation(id="a", metadata={"a": 5}),  # type: ignore[dict-item]
        PortableConversation(id="a", setups=(hitherto.model.Setup(system_prompt="x" * 11_000_000),)),
    ],
)
def test_a_dry_run_refuses_what_would_be_refused(said: PortableConversation, store: Store) -> None:
    formats.register(Values([said]))
    try:
        for dry in (True, False):
            with pytest.raises(hitherto.PartialImport):
                formats.load(os.devnull, store, format="values", dry_run=dry)
    finally:
        formats._registry._added.clear()


def test_a_dry_run_says_what_would_be_left_out(store: Store, other: Store, tmp_path: Path) -> None:
    store.ensure("inbox").append(Message.user("a"))
    other.ensure("inbox")
    path = out(store, tmp_path)
    dry = formats.load(path, other, dry_run=True).notes
    assert dry == formats.load(path, other).notes
    assert dry


def test_words_of_others_in_extra_are_theirs(store: Store, other: Store, tmp_path: Path) -> None:
    for own in ({"id": "42", "note": "mine"}, {"id": ""}, {"id": "x", "format": "y", "at": 10**18}, "text", 5):
        store.save([Message.user("x", extra={"imported": own})])
    path = out(store, tmp_path)
    formats.load(path, other)
    assert written(other, tmp_path / "again.jsonl") == path.read_bytes()


def test_empty_kinds_of_blocks_stay_empty(store: Store, other: Store, tmp_path: Path) -> None:
    store.save([Message.user([Block("content", "x", mime_type=""), Block("content", "y", modality="")])])
    formats.load(out(store, tmp_path), other)
    assert whole(other) == whole(store)


def test_a_setup_that_says_nothing_is_a_setup(store: Store) -> None:
    said = PortableMessage(id="1", message=Message.user("x"), setup=1)
    talk = load_values(
        [PortableConversation(id="a", messages=(said,), setups=(hitherto.model.Setup(),), setup=1)], store
    ).added[0]
    assert talk.setup == hitherto.model.Setup()
    assert store.verify().ok


# -- times


def test_what_was_begun_when_our_clock_is_not_yet_keeps_its_time(store: Store, tmp_path: Path) -> None:
    rich(store)
    path = out(store, tmp_path)
    behind = Store(MemoryBackend(), clock=lambda: 1_600_000_000_000_000)
    with behind:
        formats.load(path, behind)
        assert written(behind, tmp_path / "again.jsonl") == path.read_bytes()
        assert behind.verify().ok


def test_a_time_in_the_future_does_not_make_the_conversation_stand_still(store: Store) -> None:
    year_3000 = 32_503_680_000_000_000
    said = PortableMessage(id="a", message=Message.user("from the future"), created_us=year_3000)
    report = load_values([PortableConversation(id="x", messages=(said,), created_us=year_3000)], store)
    talk = report.added[0]
    later = talk.append(Message.user("now"))
    assert later.created_us < year_3000
    assert store.verify().ok


def test_times_never_fall_along_a_conversation_and_what_was_said_of_them_is_kept(store: Store, tmp_path: Path) -> None:
    at = 1_700_000_000_000_000
    first = PortableMessage(id="a", message=Message.user("one"), created_us=at)
    second = PortableMessage(
        id="b", message=Message.assistant("earlier than its question"), parent="a", created_us=at - 5
    )
    talk = load_values([PortableConversation(id="x", messages=(first, second))], store).added[0]
    assert [m.created_us for m in talk.thread()] == [at, at]
    assert store.verify().ok
    lines = [json.loads(line) for line in written(store, tmp_path / "x.jsonl").splitlines()]
    assert lines[3]["message"]["at"].endswith("19.999995Z")


# -- files that are not as they should be


def some_lines(store: Store, tmp_path: Path) -> list[bytes]:
    for words in ("red", "green", "blue"):
        store.save([Message.user(words), Message.assistant(f"{words} it is")])
    return written(store, tmp_path / "whole.jsonl").splitlines(keepends=True)


def test_a_file_that_is_cut_off_anywhere_gives_whole_conversations_and_says_that_it_is(
    store: Store, tmp_path: Path
) -> None:
    data = b"".join(some_lines(store, tmp_path))
    for end in (*range(0, len(data), 97), len(data) - 2):
        (tmp_path / "cut.jsonl").write_bytes(data[:end])
        with hitherto.open("memory:") as other:
            with pytest.raises((hitherto.PartialImport, hitherto.InvalidArgument, hitherto.Damaged)) as caught:
                formats.load(tmp_path / "cut.jsonl", other, format="jsonl")
            assert {info.count for info in other.conversations().items} <= {2}
            if isinstance(caught.value, hitherto.PartialImport):
                report = caught.value.report
                assert isinstance(report, formats.Loaded)
                assert report.unreadable
                assert report.new == len(other.conversations().items)


def test_a_line_that_was_changed_is_noticed_by_the_checksum(store: Store, other: Store, tmp_path: Path) -> None:
    lines = some_lines(store, tmp_path)
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines).replace(b"green it is", b"green it ix"))
    with pytest.raises(hitherto.PartialImport, match="checksum"):
        formats.load(tmp_path / "x.jsonl", other)


def test_a_conversation_that_lost_a_line_is_left_out_and_the_others_come(
    store: Store, other: Store, tmp_path: Path
) -> None:
    lines = some_lines(store, tmp_path)
    (tmp_path / "x.jsonl").write_bytes(b"".join(line for line in lines if b"green it is" not in line))
    with pytest.raises(hitherto.PartialImport) as caught:
        formats.load(tmp_path / "x.jsonl", other)
    assert sorted(m.text for m in other.messages() if m.role == "user") == ["blue", "red"]
    assert "1 messages are there, 2 are meant to be" in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "left"),
    [
        pytest.param(b'"red it is"', ["blue", "green"], id="in the first"),
        pytest.param(b'"green it is"', ["blue", "red"], id="in the middle"),
        pytest.param(b'"blue it is"', ["green", "red"], id="in the last"),
        pytest.param(b'{"conversation"', ["blue", "red"], id="the beginning of one"),
    ],
)
def test_a_line_that_is_broken_takes_its_own_conversation_along_and_no_other(
    bad: bytes, left: list[str], store: Store, other: Store, tmp_path: Path
) -> None:
    lines = some_lines(store, tmp_path)
    number = [n for n, one in enumerate(lines) if bad in one][1 if bad.startswith(b"{") else 0]
    lines[number] = lines[number][:-4] + b"\n"
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(hitherto.PartialImport) as caught:
        formats.load(tmp_path / "x.jsonl", other)
    assert sorted(m.text for m in other.messages() if m.role == "user") == left
    assert f"line {number + 1}" in str(caught.value)


def test_a_hold_in_the_file_is_never_lost_and_what_else_differs_is_said(
    store: Store, other: Store, tmp_path: Path
) -> None:
    talk = store.start(title="before")
    talk.append(Message.user("x"))
    formats.save(store, tmp_path / "1.jsonl")
    formats.load(tmp_path / "1.jsonl", other)
    talk.rename("after")
    talk.describe({"new": "yes"})
    talk.hold()
    formats.save(store, tmp_path / "2.jsonl")
    report = formats.load(tmp_path / "2.jsonl", other)
    assert report.unchanged == 1
    assert [note.split(": ")[2] for note in report.notes] == ["title, metadata"]
    there = other.conversation(talk.id)
    assert (there.title, there.held) == ("before", True)
    assert formats.load(tmp_path / "1.jsonl", other).unchanged == 1
    assert other.conversation(talk.id).held


def test_a_key_for_a_file_that_is_in_clear_is_not_ignored(store: Store, other: Store, tmp_path: Path) -> None:
    store.save([Message.user("x")])
    formats.save(store, tmp_path / "x.jsonl")
    formats.save(store, tmp_path / "x.json")
    for name in ("x.jsonl", "x.json"):
        with pytest.raises(hitherto.NotSealed):
            formats.load(tmp_path / name, other, key=bytes(range(32)))


def line(**fields: object) -> bytes:
    message = {"id": "a", "role": "user", "at": "2026-01-02T03:04:05Z", "blocks": []} | fields
    return json.dumps({"message": {k: v for k, v in message.items() if v is not ...}}).encode()


HEADER = b'{"hitherto":"jsonl","version":1}'
ABOUT = b'{"conversation":{"id":"c","messages":1}}'
A_BOMB = b'{"message":{"id":"a","role":"user","at":"","blocks":[],"raw":' + b"[" * 200_000 + b"}}"


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"message":null}',
        b'{"message":{}}',
        b'{"message":{"id":"a"},"end":{"conversations":1,"sha256":""}}',
        b'{"unknown":1}',
        A_BOMB,
        line(role=5),
        line(role=""),
        line(role="x" * 65),
        line(at="yesterday"),
        line(at="2026-01-02T03:04:05"),
        line(at="0001-01-01T00:00:00+23:00"),
        line(parent="nobody"),
        line(parent="a"),
        line(link="nobody"),
        line(setup=7),
        line(setup=-1),
        line(blocks=[{"type": "content", "content": 5}]),
        line(blocks=[{"type": "content", "content": {"$bytes": "?"}}]),
        line(blocks=[{"type": "content", "content": {"$bytes": 5}}]),
        line(blocks=[{"type": "content", "content": {"$attachment": 0}}]),
        line(blocks=[{"type": "content", "content": {"$attachment": "0"}}]),
        line(blocks=[{"type": "content", "content": {"$base64": [0, 9, ""]}}]),
        line(blocks=[{"type": "content", "content": {"$base64": []}}]),
        line(raw={"$float": "1e400"}),
        line(raw={"$object": 5}),
        line(raw=2**70),
        line(raw="\ud800"),
        line(extra=[]),
        line(extra="x"),
        line(usage={"input_tokens": "many"}),
        line(id=""),
        line(id=5),
        line(role=...),
        line(surprise=1),
        b'{"message":{"id":"a","role":"user","at":"","blocks":[],"raw":NaN}}',
        b'{"message":{"id":"a","role":"user","at":"","blocks":[],"raw":1e400}}',
        b'{"attachment":{"number":0,"data":"?"}}',
        b'{"attachment":{"number":-1,"data":"AAAA"}}',
        b'{"attachment":{"number":0,"size":5,"sha256":"x"}}',
        b'{"conversation":{"id":"d","messages":-1}}',
        b'{"conversation":{"id":"d","messages":0,"setup":3}}',
        b'{"conversation":{"id":"d","messages":0,"head":"nobody"}}',
        b'{"conversation":{"id":"d","messages":0,"created_at":"never"}}',
        b'{"setup":{"tools":[5]}}',
        b'{"setup":{"tools":{}}}',
        b'{"conversation":{"id":"d","messages":0,"setups":[{}]}}',
        line(extra={"$bytes": "AAAA"}),
        line(blocks=[{"type": "content", "content": "x", "extra": {"$bytes": "AAAA"}}]),
        b'{"message":{"id":"a","role":"user","at":"","blocks":[],"raw":[' + b"[]," * 2_100_000 + b"0]}}",
        b'{"conversation":{"id":"d","messages":0,"metadata":{"a":1}}}',
    ],
)
def test_a_line_that_is_wrong_is_refused_with_its_reason_and_the_store_stays_sound(
    bad: bytes, store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([HEADER, ABOUT, bad, b""]))
    with pytest.raises((hitherto.PartialImport, hitherto.Damaged)) as caught:
        formats.load(path, store)
    assert len(str(caught.value)) < 600
    assert store.verify().ok


def test_a_file_of_a_newer_version_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"hitherto":"jsonl","version":7}\n{"surprise":1}\n')
    with pytest.raises(hitherto.NewerFormat, match=r"7.*1"):
        formats.load(tmp_path / "x.jsonl", store)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jsonl_reading, "LONGEST_LINE", 1 << 20)
    bomb = zstandard.ZstdCompressor().compress(HEADER + b"\n" + ABOUT + b"\n" + b" " * (1 << 28))
    assert len(bomb) < 100_000  # a quarter of a gigabyte
    (tmp_path / "x.jsonl.zst").write_bytes(bomb)
    with pytest.raises((hitherto.PayloadTooLarge, hitherto.PartialImport)):
        formats.load(tmp_path / "x.jsonl.zst", store)


def test_a_small_file_that_swells_is_refused_before_it_fills_the_disk(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attachments are put down on the way: thousands of lines, each of them harmless."""
    monkeypatch.setattr(_jsonl_reading, "LONGEST_LINE", 1 << 20)
    piece = b'{"attachment":{"number":0,"data":"' + b"AAAA" * 10_000 + b'"}}\n'
    bomb = zstandard.ZstdCompressor().compress(HEADER + b"\n" + ABOUT + b"\n" + piece * 2000)
    most = len(bomb) * _jsonl_reading._SWELLS + (1 << 20)
    assert most < 2000 * len(piece)  # the control: it would become more
    (tmp_path / "x.jsonl.zst").write_bytes(bomb)
    with pytest.raises(hitherto.PartialImport) as caught:
        formats.load(tmp_path / "x.jsonl.zst", store)
    report = caught.value.report
    assert isinstance(report, formats.Loaded)
    assert any("so small a file" in one.reason for one in report.unreadable)


def test_what_no_reader_would_take_is_not_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save([Message.user("x" * 10_000)])
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 5_000)
    with pytest.raises(hitherto.PayloadTooLarge):
        formats.save(store, tmp_path / "x.jsonl")
    assert os.listdir(tmp_path) == []


def test_what_is_deleted_while_it_is_written_ends_the_export_with_nothing_left(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = store.message(store.save([Message.user([Block.video(FILM, "video/mp4")])])[0])
    look = _extract.extract

    def meanwhile(own: Engine, id: bytes) -> Any:
        found = look(own, id)
        store.delete([message.id])
        store.scrub()
        return found

    monkeypatch.setattr(formats, "extract", meanwhile)
    with pytest.raises(hitherto.Busy, match="changed while it was written"):
        formats.save(store, tmp_path / "x.jsonl")
    assert os.listdir(tmp_path) == []


def test_a_conversation_without_end_is_refused_before_it_fills_the_memory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jsonl_reading, "_MOST", 1 << 16)
    lines = [line(id=str(n), raw="x" * 100) for n in range(1000)]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([HEADER, ABOUT, *lines, b""]))
    with pytest.raises(hitherto.PartialImport, match="65,536"):
        formats.load(tmp_path / "x.jsonl", store)


def test_a_disk_that_fills_up_in_the_middle_keeps_the_conversations_before_and_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_lines(store, tmp_path)
    with hitherto.open("memory:") as other:
        commit, calls = other.backend.commit, []

        def full(batches: Any) -> Any:
            calls.append(batches)
            if len(calls) > 2:
                raise hitherto.StorageFull("no space")
            return commit(batches)

        with monkeypatch.context() as patch:
            patch.setattr(other.backend, "commit", full)
            with pytest.raises(hitherto.StorageFull):
                formats.load(tmp_path / "whole.jsonl", other)
        assert [info.count for info in other.conversations().items] == [2, 2]
        assert formats.load(tmp_path / "whole.jsonl", other).new == 1
        assert other.verify().ok


# -- which format


def test_the_format_is_seen_from_the_content_and_not_from_the_name(store: Store, other: Store, tmp_path: Path) -> None:
    store.save([Message.user("x")])
    formats.save(store, tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").rename(tmp_path / "photo.png")
    assert formats.sniff(tmp_path / "photo.png")[0] == "jsonl"
    assert formats.load(tmp_path / "photo.png", other).new == 1


@pytest.mark.parametrize("data", [b"", b"\0" * 5000, b"{}", b"hello", b"[]\n[]"])
def test_what_is_in_no_format_is_said_to_be_in_none(data: bytes, store: Store, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(hitherto.InvalidArgument, match="no format") as caught:
        formats.load(tmp_path / "x", store)
    assert "formats.names()" in (caught.value.hint or "")


def test_a_store_is_no_file_to_load(tmp_path: Path, store: Store) -> None:
    with hitherto.open(tmp_path / "a.db") as own:
        own.save([Message.user("x")])
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" + b"\0" * 200)
    for name in ("a.db", "broken.db"):
        with pytest.raises(hitherto.InvalidArgument, match="no format") as caught:
            formats.load(tmp_path / name, store)
        assert "hitherto.open" in (caught.value.hint or "")


def test_a_pipe_is_refused_and_not_waited_for(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for where in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(hitherto.InvalidArgument, match="neither a file nor a directory"):
            formats.load(where, store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(hitherto.InvalidArgument, match="it is empty"):
        formats.load(tmp_path / "empty", store)


def test_one_page_of_a_listing_is_not_taken_for_everything(store: Store, tmp_path: Path) -> None:
    for _ in range(3):
        store.save([Message.user("x")])
    with pytest.raises(hitherto.InvalidArgument, match="there are more") as caught:
        formats.save(store.conversations(limit=2), tmp_path / "x.jsonl")
    assert "store itself" in (caught.value.hint or "")
    assert os.listdir(tmp_path) == []
    assert formats.save(store.conversations(limit=3), tmp_path / "x.jsonl") == 3


def test_arguments_the_wrong_way_round_and_addresses_are_refused_with_a_hint(store: Store, tmp_path: Path) -> None:
    with pytest.raises(hitherto.InvalidArgument) as caught:
        formats.save(tmp_path / "x.jsonl", store)  # type: ignore[arg-type]
    assert "save(store, path)" in (caught.value.hint or "")
    with pytest.raises(hitherto.InvalidArgument) as caught:
        formats.save(store, "s3://bucket/x.jsonl")
    assert "ObjectStore" in (caught.value.hint or "")
    with pytest.raises(hitherto.InvalidArgument) as caught:
        FileStore("s3://bucket/prefix")
    assert "ObjectStore" in (caught.value.hint or "")


def test_what_is_not_there_or_names_nothing_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(hitherto.CannotOpen):
        formats.load(tmp_path / "missing.jsonl", store)
    with pytest.raises(hitherto.InvalidArgument, match="no such format"):
        formats.load(tmp_path, store, format="docx")
    with pytest.raises(hitherto.InvalidArgument, match="names no format"):
        formats.save(store, tmp_path / "x.docx")
    with pytest.raises(hitherto.InvalidArgument, match="not written"):
        formats.save(store, tmp_path / "x.vpconv", format="vpconv")
    with pytest.raises(hitherto.InvalidArgument, match="in clear"):
        formats.save(store, tmp_path / "x.jsonl", key=bytes(range(32)))
    for wrong in (5, "x", [5]):
        with pytest.raises(hitherto.InvalidArgument):
            formats.save(wrong, tmp_path / "x.jsonl")  # type: ignore[arg-type]
    with pytest.raises(hitherto.InvalidArgument, match="store"):
        formats.load(tmp_path, "chats.db")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


class Values:
    """A format whose file is in memory."""

    name = "values"
    suffixes = (".values",)
    writes = False

    def __init__(self, values: list[PortableConversation | Unreadable]) -> None:
        self.values = values

    def recognises(self, source: Source) -> str | None:
        return "it is" if source.head == b"values" else None

    def read(self, path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
        return iter(self.values)

    def write(self, talks: object, path: Path, key: Key | None) -> int:
        raise AssertionError


def load_values(values: list[Any], store: Store) -> formats.Loaded:
    formats.register(Values(values))
    try:
        return formats.load(os.devnull, store, format="values")
    finally:
        formats._registry._added.clear()


def test_a_format_of_somebody_elses_is_recognised_and_loaded_like_ours(store: Store, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"values")
    formats.register(Values([PortableConversation(id="abc", title="theirs")]))
    try:
        assert "values" in formats.names()
        assert "values" not in formats.names(writable=True)
        assert formats.load(tmp_path / "x", store).format == "values"
    finally:
        formats._registry._added.clear()
    assert [info.title for info in store.conversations().items] == ["theirs"]
    nameless: Any = Values([])
    nameless.suffixes = None
    for wrong in (5, "jsonl", object(), nameless):
        with pytest.raises(hitherto.InvalidArgument):
            formats.register(wrong)  # type: ignore[arg-type]


def test_an_id_that_is_no_uuid_becomes_one_and_always_the_same(store: Store, other: Store) -> None:
    for own in (store, other):
        report = load_values([PortableConversation(id="conv-1")], own)
        assert list(report.renamed) == ["conv-1"]
        assert own.conversation(report.renamed["conv-1"]).metadata == {"imported_id": "conv-1"}
    assert store.conversations().items[0].id == other.conversations().items[0].id
    assert load_values([PortableConversation(id="conv-1")], store).unchanged == 1


@pytest.mark.parametrize(
    "messages",
    [
        [PortableMessage(id="a", message=Message.user("x")), PortableMessage(id="a", message=Message.user("y"))],
        [
            PortableMessage(id="a", message=Message.user("x"), parent="b"),
            PortableMessage(id="b", message=Message.user("y"), parent="a"),
        ],
        [
            PortableMessage(id="a", message=Message.user("x"), main=False),
            PortableMessage(id="b", message=Message.user("y"), parent="a"),
        ],
        [
            PortableMessage(id="a", message=Message.user("x", key="k")),
            PortableMessage(id="b", message=Message.user("y", key="k")),
        ],
        [PortableMessage(id="a", message=Message.user("x"), link="a")],
        [
            PortableMessage(id="a", message=Message.user("x")),
            PortableMessage(id="b", message=Message.user("y"), parent="a", link="a"),
        ],
        [PortableMessage(id="a", message=Message.user("x"), setup=1)],
        [PortableMessage(id="a", message=Message(""))],
        [PortableMessage(id="a", message=Message.user("x", extra={"a": object()}))],
        [PortableMessage(id="a", message=Message.user("x" * 11_000_000))],
    ],
)
def test_what_is_no_tree_is_left_out_whole_and_the_others_come(messages: list[PortableMessage], store: Store) -> None:
    good = PortableConversation(id="good", messages=(PortableMessage(id="a", message=Message.user("fine")),))
    with pytest.raises(hitherto.PartialImport) as caught:
        load_values([PortableConversation(id="bad", messages=tuple(messages)), good], store)
    report = caught.value.report
    assert isinstance(report, formats.Loaded)
    assert [problem.name for problem in report.unreadable] == ["conversation bad"]
    assert [m.text for m in store.messages()] == ["fine"]
    assert store.verify().ok


def test_the_head_is_where_the_file_says_it_is(store: Store) -> None:
    first, second = (
        PortableMessage(id="a", message=Message.user("one")),
        PortableMessage(id="b", message=Message.user("two"), parent="a"),
    )
    talk = load_values([PortableConversation(id="x", messages=(first, second), head="a")], store).added[0]
    assert [m.text for m in talk.thread()] == ["one"]
    assert store.verify().ok


# -- snapshots as files


def test_a_thread_goes_out_as_a_snapshot_and_comes_back(store: Store, other: Store, tmp_path: Path) -> None:
    talk = store.start(title="T", provider="claude", model="m", system_prompt="Be brief.")
    talk.extend([Message.user("hello"), Message.assistant("hi")])
    formats.save(talk, tmp_path / "x.json")
    report = formats.load(tmp_path / "x.json", other)
    assert report.format == "snapshot"
    back = report.added[0]
    assert (back.title, back.system_prompt, [m.text for m in back.thread()]) == ("T", "Be brief.", ["hello", "hi"])
    assert back.snapshot().messages == talk.snapshot().messages
    assert formats.load(tmp_path / "x.json", other).unchanged == 1
    with pytest.raises(hitherto.InvalidArgument, match="2 conversations"):
        formats.save([talk, store.start()], tmp_path / "y.json")


@pytest.mark.parametrize("key", [None, bytes(range(32))])
def test_a_directory_of_snapshots_goes_out_and_comes_back(
    key: bytes | None, store: Store, other: Store, tmp_path: Path
) -> None:
    for n in range(3):
        talk = store.start(title=f"T{n}", provider="openai", model="m")
        talk.extend([Message.user(f"q{n}"), Message.assistant(f"a{n}")])
    assert formats.save(store, tmp_path / "out", format="gtb", key=key) == 3
    assert all(name.endswith(".json") for name in os.listdir(tmp_path / "out") if not name.startswith("."))
    report = formats.load(tmp_path / "out", other, key=key)
    assert (report.format, report.new) == ("gtb", 3)
    assert sorted(talk.title for talk in report) == ["T0", "T1", "T2"]
    assert formats.load(tmp_path / "out", other, key=key).unchanged == 3
    assert formats.load(tmp_path / "out", store, key=key).unchanged == 3  # they came from here
    with pytest.raises(hitherto.AlreadyExists):
        formats.save(store, tmp_path / "out", format="gtb", key=key)


def test_a_snapshot_in_a_directory_that_cannot_be_read_is_a_problem_of_its_own(
    store: Store, other: Store, tmp_path: Path
) -> None:
    store.save([Message.user("fine")])
    formats.save(store, tmp_path / "out", format="gtb")
    bad = tmp_path / "out" / "0f8fad5b-d9cb-469f-a165-70867728950e.json"
    bad.write_bytes(b"garbage")
    with pytest.raises(hitherto.PartialImport) as caught:
        formats.load(tmp_path / "out", other)
    assert bad.name.removesuffix(".json") in str(caught.value)
    assert [m.text for m in other.messages()] == ["fine"]


def test_many_snapshots_of_one_conversation_are_one_conversation(store: Store, other: Store, tmp_path: Path) -> None:
    """Checkpoints, for one."""
    files = FileStore(tmp_path / "out")
    talk = store.start(title="T", provider="openai", model="m")
    first = talk.append(Message.user("one"))
    for n in range(3):
        talk.append(Message.assistant(f"a{n}"))
        talk.append(Message.user(f"q{n}"))
        files.save(talk.snapshot())
    branch = talk.fork(at=first)
    branch.append(Message.assistant("otherwise"))
    files.save(branch.snapshot())
    report = formats.load(tmp_path / "out", other)
    assert (report.new, len(other.conversations().items)) == (1, 1)
    there = other.conversation(talk.id)
    assert sorted(leaf.depth for leaf in there.branches()) == [2, 7]
    assert formats.load(tmp_path / "out", store).messages == 0  # and where they came from, they are known


def test_a_snapshot_that_others_went_on_with_adds_what_they_added(store: Store, tmp_path: Path) -> None:
    talk = store.start(provider="claude", model="m")
    talk.append(Message.user("look"))
    talk.append(Message.assistant([Block.thinking("hm"), Block.tool_call("t", "look", {})]))  # mended on the way out
    taken = talk.snapshot()
    said = [*taken.messages, {"role": "assistant", "content": "I see."}]
    longer = msgspec.structs.replace(taken, messages_json=json.dumps(said))
    (tmp_path / "x.json").write_bytes(longer.to_json())
    assert formats.load(tmp_path / "x.json", store).messages == 1
    new = next(m for m in store.messages() if m.text == "I see.")
    assert new.parent == talk.at
    assert formats.load(tmp_path / "x.json", store).messages == 0
    assert store.verify().ok


def test_a_snapshot_alone_is_read_with_its_media_and_its_key_where_it_lies_as_it_should(
    other: Store, tmp_path: Path
) -> None:
    picture = base64.b64encode(random.Random(3).randbytes(2000)).decode()
    name = hashlib.sha256(picture.encode()).hexdigest()
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / name).write_text(picture)
    said: list[dict[str, object]] = [{"role": "user", "parts": [{"inlineData": {"data": f"chatmedia+sha256:{name}"}}]}]
    snapshot = Snapshot.new("gemini", "m", "", said)
    path = tmp_path / f"{snapshot.id}.json"
    path.write_bytes(snapshot.to_json())
    talk = formats.load(path, other).added[0]
    assert picture in str(talk.snapshot().messages)
    path.rename(tmp_path / "alone.json")
    with pytest.raises(hitherto.Damaged, match="media"):
        formats.load(tmp_path / "alone.json", other)
    key = bytes(range(32))
    FileStore(tmp_path / "sealed", key, layout="gtb").save(snapshot)
    sealed = tmp_path / "sealed" / f"{snapshot.id}.json"
    assert formats.sniff(sealed)[0] == "snapshot"
    assert formats.load(sealed, other, key=key).format == "snapshot"
    with pytest.raises(hitherto.KeyUnavailable):
        formats.load(sealed, other)


# -- every message as it was, whatever it is


def test_any_message_that_a_store_takes_comes_through_the_file(tmp_path: Path) -> None:
    rng = random.Random(7)

    def value(depth: int) -> Any:
        kinds: list[Any] = [None, True, 0, -1, 2**64 - 1, 0.1, float("inf"), "", "\0\n\u2029", b"", b"\xff"]
        if depth == 0 or rng.random() < 0.5:
            return rng.choice(kinds)
        if rng.random() < 0.5:
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        names = ["$bytes", "$object", "$float", "$attachment", "a", "", "\u2028"]
        return {rng.choice(names): value(depth - 1) for _ in range(rng.randrange(3))}

    with hitherto.open("memory:") as store, hitherto.open("memory:") as other:
        for _ in range(300):
            extra = {"e": value(3)}
            content: str | bytes = b"y" if rng.random() < 0.5 else "x"
            store.save([Message.user([Block("content", content, extra=extra)], raw=value(5), extra=extra)])
        first = written(store, tmp_path / "1.jsonl")
        formats.load(tmp_path / "1.jsonl", other)
        assert written(other, tmp_path / "2.jsonl") == first
        assert [repr((m.raw, m.blocks)) for m in other.messages()] == [
            repr((m.raw, m.blocks)) for m in store.messages()
        ]
