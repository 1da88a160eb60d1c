"""Snapshots as files of conversations: one in a file, many in a directory. Whole or not at all, and known again.

Requirements: C17, and "Formats" of the snapshots.
"""

import os
import random
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Store, formats
from hitherto.formats import PortableConversation
from hitherto.formats._atomic_file import new_file
from hitherto.formats.own import gtb, snapshot
from hitherto.snapshots import FileStore, Snapshot

SECRET = bytes(range(32))


def talking(store: Store, *words: str) -> None:
    for word in words:
        talk = store.start(provider="claude", model="m")
        talk.append(Message.user(word, extra={"dialect": "klingon"} if word == "untold" else None))


# -- a directory, whole or not at all


@pytest.mark.parametrize("key", [None, SECRET])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_directory_is_there_when_it_is_whole(key: bytes | None, prepared: bool, store: Store, tmp_path: Path) -> None:
    place = tmp_path / "out"
    if prepared:
        place.mkdir()
    talking(store, "one", "untold", "three")
    for _ in range(2):
        with pytest.raises(hitherto.InvalidArgument, match="words"):
            formats.save(store, place, format="gtb", key=key)
        assert [path.name for path in tmp_path.iterdir()] == (["out"] if prepared else [])
        assert not prepared or list(place.iterdir()) == []
    told = [talk for talk in store.conversations() if next(store.messages(conversation=talk.id)).text != "untold"]
    assert formats.save(told, place, format="gtb", key=key) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert len(FileStore(place, key, layout="gtb").list()) == 2


def test_what_is_unfinished_is_private_and_beside_the_place(store: Store, tmp_path: Path) -> None:
    talking(store, "one")
    seen: list[tuple[str, int]] = []

    def watched() -> Iterator[PortableConversation]:
        seen.extend((path.name, stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.iterdir())
        yield PortableConversation(id="a")

    before = os.umask(0)
    try:
        gtb.write(watched(), tmp_path / "out", None)
    finally:
        os.umask(before)
    ((name, mode),) = seen
    assert (name.startswith("out.unfinished-"), mode) == (True, 0o700)


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[PortableConversation]:
        yield PortableConversation(id="a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gtb.write(interrupted(), tmp_path / "out", None)
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_is_there_is_replaced_also_if_it_came_meanwhile(store: Store, tmp_path: Path) -> None:
    def slow(appears: Callable[[Path], object]) -> Iterator[PortableConversation]:
        yield PortableConversation(id="a")
        appears(tmp_path / "out")

    def filled(path: Path) -> None:
        path.mkdir()
        (path / "mine").write_text("mine")

    for appears in (filled, lambda path: path.write_text("mine"), lambda path: path.symlink_to("nowhere")):
        with pytest.raises(hitherto.AlreadyExists):
            gtb.write(slow(appears), tmp_path / "out", None)
        with pytest.raises(hitherto.AlreadyExists):
            formats.save(store, tmp_path / "out", format="gtb")
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        if (tmp_path / "out").is_dir():
            assert (tmp_path / "out" / "mine").read_text() == "mine"
        (tmp_path / "out").rename(tmp_path.parent / os.urandom(8).hex())


def test_a_link_to_an_empty_directory_leads_there(store: Store, tmp_path: Path) -> None:
    talking(store, "one")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert formats.save(store, tmp_path / "link", format="gtb") == 1
    assert (tmp_path / "link").is_symlink()
    assert len(FileStore(tmp_path / "real").list()) == 1


def test_the_directory_that_one_is_in_is_not_taken_away(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talking(store, "one")
    monkeypatch.chdir(tmp_path)
    for name in (".", str(tmp_path)):
        with pytest.raises(hitherto.CannotOpen, match="in use"):
            formats.save(store, name, format="gtb")
    assert formats.save(store, "below", format="gtb") == 1
    assert os.listdir() == ["below"]


# -- errors of files

DENIED = """
import os, sys
import hitherto
from hitherto import Message, formats
import hitherto.formats.own.gtb, hitherto.formats.own.jsonl, hitherto.formats.own.snapshot
with hitherto.open("memory:") as store:
    talk = store.start(provider="claude", model="m")
    talk.append(Message.user("x"))
    talk.snapshot().to_json()
    for warm in ("a.jsonl", "a.json"):
        formats.save(talk, os.path.join(sys.argv[2], warm))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for name, how in (("", "gtb"), ("/x", "gtb"), ("/x.jsonl", None), ("/x.json", None)):
        try:
            formats.save(talk, sys.argv[1] + name, format=how)
            print("done")
        except BaseException as error:
            print(type(error).__name__)
    sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("rights", [0o000, 0o444, 0o555])
def test_a_directory_without_permission_is_said_to_be(rights: int, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        place = Path(name) / "folder"
        place.mkdir()
        place.chmod(rights)
        command = [sys.executable, "-c", DENIED, str(place), str(tmp_path)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert ran.stdout.split() == ["Denied"] * 4
        place.chmod(0o755)
        assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a" * 300, "nowhere/x"])
def test_what_names_no_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(hitherto.CannotOpen):
        gtb.write([PortableConversation(id="a")], tmp_path / name, None)
    with pytest.raises(hitherto.CannotOpen), new_file(tmp_path / name):
        pass
    with pytest.raises(hitherto.CannotOpen):
        list(snapshot.read(tmp_path / name, None))
    assert list(tmp_path.iterdir()) == []


# -- known again where it came from


def _call(talk: Conversation) -> None:
    talk.append(Message.user("q"))
    talk.append(Message.assistant([Block.text("let me"), Block.tool_call("c1", "look", {})]))


def _answered(talk: Conversation) -> None:
    _call(talk)
    talk.append(Message("tool_result", (Block("content", "res", id="c1"),)))
    talk.append(Message.assistant("done"))


def _compacted(talk: Conversation) -> None:
    talk.extend([Message.user("q"), Message.assistant("a")])
    talk.compact("the sum")
    talk.append(Message.user("next"))


SAID: dict[str, Callable[[Conversation], object]] = {
    "a call without an answer": _call,
    "a call and its result": _answered,
    "a compaction": _compacted,
    "an event": lambda t: t.extend([Message.user("q"), Message("event", (Block.text("e"),)), Message.assistant("a")]),
    "a thought": lambda t: t.extend([Message.user("q"), Message.assistant([Block.thinking("hm"), Block.text("a")])]),
    "two of a user": lambda t: t.extend([Message.user("q"), Message.user("q2"), Message.assistant("a")]),
    "texts in pieces": lambda t: t.extend(
        [Message.user([Block.text("a"), Block.text("b")]), Message.assistant([Block.text("c"), Block.text("d")])]
    ),
    "a picture": lambda t: t.append(Message.user([Block.image(random.Random(1).randbytes(9000), "image/png")])),
    "empty texts": lambda t: t.extend([Message.user(""), Message.assistant("")]),
    "nothing": lambda talk: talk.count,
}


@pytest.mark.parametrize("provider", ["claude", "openai", "gemini"])
@pytest.mark.parametrize("what", SAID)
def test_what_was_saved_is_known_again_where_it_came_from_and_where_it_went(
    what: str, provider: str, store: Store, tmp_path: Path
) -> None:
    """It comes back in the words of a provider, in which some of it cannot be told as it is in the store."""
    tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    talk = store.start(title="T", provider=provider, model="m", system_prompt="S", metadata={"a": "b"}, tools=[tool])
    SAID[what](talk)
    before = list(store.messages(conversation=talk.id))
    formats.save(talk, tmp_path / "one.json")
    formats.save(talk, tmp_path / "many", format="gtb")
    FileStore(tmp_path / "taken").save(talk.snapshot())
    for name in ("one.json", "many", "taken"):
        report = formats.load(tmp_path / name, store)
        assert (report.messages, report.new, report.unchanged, report.renamed) == (0, 0, 1, {})
        assert list(store.messages(conversation=talk.id)) == before
    with hitherto.open("memory:") as other:
        assert formats.load(tmp_path / "one.json", other).new == 1
        formats.save(other.conversation(talk.id), tmp_path / "again.json")
        for name in ("one.json", "many", "taken", "again.json"):
            assert formats.load(tmp_path / name, other).messages == 0, name


def test_a_snapshot_says_up_to_where_it_goes() -> None:
    with hitherto.open("memory:") as store:
        talk = store.start(provider="claude", model="m")
        assert snapshot.portable_of(talk.snapshot()).upto is None
        last = talk.append(Message.user("q"))
        assert snapshot.portable_of(talk.snapshot()).upto == last.id
        assert snapshot.portable_of(Snapshot.new("claude", "m", "", [])).upto is None


def test_what_has_come_since_is_added_where_it_is_missing(store: Store, tmp_path: Path) -> None:
    """The control: a head that is not known here is not taken for one that is."""
    talk = store.start(provider="claude", model="m")
    talk.append(Message.user("q"))
    formats.save(talk, tmp_path / "first.json")
    talk.append(Message.assistant("a"))
    formats.save(talk, tmp_path / "second.json")
    with hitherto.open("memory:") as other:
        formats.load(tmp_path / "first.json", other)
        assert formats.load(tmp_path / "second.json", other).messages == 1
        assert [m.text for m in other.conversation(talk.id).thread()] == ["q", "a"]


# -- metadata


@pytest.mark.parametrize("key", [None, Key(SECRET)])
def test_metadata_that_has_our_names_comes_back(key: Key | None, store: Store, tmp_path: Path) -> None:
    own = {"title": "my", "head": "h", "conversation": "c", "checkpoint": "x", "dialect": "british", "snapshot": "mine"}
    talk = store.start(title="T", provider="claude", model="m", metadata=own)
    talk.append(Message.user("x"))
    formats.save(talk, tmp_path / "out", format="gtb", key=key)
    with hitherto.open("memory:") as other:
        (came,) = formats.load(tmp_path / "out", other, key=key)
        assert (came.id, came.title, came.metadata) == (talk.id, "T", own)


def test_a_snapshot_of_others_may_say_anything_by_our_words(store: Store, tmp_path: Path) -> None:
    said = {"dialect": "british", "conversation": "not an id", "head": "of something else", "checkpoint": "no"}
    given = Snapshot.new("claude", "m", "", [{"role": "user", "content": "hi"}], (), said)
    (tmp_path / "x.json").write_bytes(msgspec.structs.replace(given, created_at="2020-01-01T00:00:00Z").to_json())
    (talk,) = formats.load(tmp_path / "x.json", store)
    assert [m.text for m in talk.thread()] == ["hi"]
