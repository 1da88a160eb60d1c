"""A conversation that must not leave its store: every way out is shut, and says so.

Each way is tried twice: it raises `NotExportable` and leaves nothing behind, and, the control, it works for the same
conversation as soon as it may leave.

Requirements: D5.
"""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Key, Message, Store, formats
from hitherto.chat import Client, Config, new_client
from hitherto.errors import NotExportable, PartialImport
from hitherto.recorder._checkpoints import Checkpoints
from hitherto.records import Records
from hitherto.snapshots import FileStore, MemoryFiles

from ..support.command import World

WORDS = "strictly between us"


@pytest.fixture(params=["plain", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    key = Key(b"k" * 32) if request.param == "sealed" else None
    with hitherto.open(tmp_path / "chats.db", key=key, maintenance=False) as opened:
        yield opened


@pytest.fixture
def inside(store: Store) -> str:
    """The id of a conversation that stays, beside one that may go."""
    records = Records(store)
    records.create(title="public", messages=[{"role": "user", "content": "for everybody"}])
    said = [{"role": "user", "content": WORDS}, {"role": "assistant", "content": "of course"}]
    return records.create(title="inside", messages=said, privacy={"exportable": False}).conversation_id


def release(store: Store, id: str) -> None:
    Records(store).update(id, privacy={"exportable": True})


def page(store: Store) -> object:
    return store.conversations(limit=10)


WHAT: dict[str, Callable[[Store, str], object]] = {
    "the store": lambda store, _: store,
    "the conversation": lambda store, id: store.conversation(id),
    "a list of it": lambda store, id: [store.conversation(id)],
    "a page": lambda store, _: page(store),
}
MANY = (
    "jsonl",
    "cpeconvo",
    "cpeconvo_first",
    "gtb",
    "markdown",
    "html",
    "openai",
    "sharegpt",
    "chatml",
)  # take more than one conversation


def shut(store: Store, id: str, leave: Callable[[], object]) -> None:
    """It raises, naming the conversation, and once it may leave it does not."""
    with pytest.raises(NotExportable) as caught:
        leave()
    assert (caught.value.conversation, caught.value.conversations) == (id, (id,))
    assert id in str(caught.value)
    assert caught.value.hint
    release(store, id)
    leave()


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("format", MANY)
def test_no_format_writes_it(store: Store, inside: str, tmp_path: Path, format: str, what: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    def leave() -> None:
        assert os.listdir(folder) == []
        formats.save(WHAT[what](store, inside), folder / "file", format=format)  # type: ignore[arg-type]
        assert os.listdir(folder) != []

    shut(store, inside, leave)


def test_every_format_that_is_written_is_tried() -> None:
    assert set(formats.names(writable=True)) == {*MANY, "snapshot"}


def test_no_snapshot_file_is_written(store: Store, inside: str, tmp_path: Path) -> None:
    shut(store, inside, lambda: formats.save(store.conversation(inside), tmp_path / "one.json"))


@pytest.mark.parametrize("format", ["jsonl", "markdown", "html", "openai"])
def test_not_a_byte_of_anything_is_written_to_a_stream(store: Store, inside: str, format: str) -> None:
    """Also not of those that stand before it."""
    stream = io.BytesIO()

    def leave() -> None:
        assert stream.getvalue() == b""
        formats.save(store, stream, format=format)
        assert WORDS.encode() in stream.getvalue()

    shut(store, inside, leave)


def test_all_that_stand_in_the_way_are_named(store: Store, inside: str) -> None:
    other = Records(store).create(privacy={"exportable": False}).conversation_id
    with pytest.raises(NotExportable) as caught:
        formats.save(store, io.BytesIO(), format="jsonl")
    assert set(caught.value.conversations) == {inside, other}
    assert inside in str(caught.value)
    assert other in str(caught.value)
    others = [c for info in store.conversations() if (c := store.conversation(info)).exportable]
    assert formats.save(others, io.BytesIO(), format="jsonl") == 1


def test_it_is_not_copied_to_another_store(store: Store, inside: str) -> None:
    with hitherto.open("memory:") as other:

        def leave() -> None:
            assert other.stats().conversations == 0
            assert formats.copy(store, other).new == 2

        shut(store, inside, leave)


def test_no_snapshot_is_taken_of_it(store: Store, inside: str) -> None:
    talk = store.conversation(inside)
    shut(store, inside, talk.snapshot)
    assert WORDS in talk.snapshot().to_json().decode()


def test_a_client_that_is_recorded_into_it_gives_out_no_snapshot(store: Store, inside: str) -> None:
    client = new_client(Config("openai-compatible", "m", api_key="k", base_url="https://nobody.invalid/v1"))
    assert isinstance(client, Client)
    with client:
        hitherto.resume(client, store, inside, convert=True)
        shut(store, inside, client.save)
        Records(store).update(inside, privacy={"exportable": False})
        recording = hitherto.recording(client)
        assert recording is not None
        recording.close()
        client.save()  # what a program holds in memory is its own


def test_a_thread_of_it_does_not_leave_either(store: Store, inside: str) -> None:
    shut(store, inside, lambda: formats.thread_to(store.conversation(inside)))


def test_a_handle_of_before_hears_of_it(tmp_path: Path) -> None:
    """Somebody else has said that it stays: another store, as in another process."""
    with hitherto.open(tmp_path / "chats.db") as ours, hitherto.open(tmp_path / "chats.db") as theirs:
        talk = ours.start(title="T")
        talk.append(Message.user(WORDS))
        talk.snapshot()
        Records(theirs).update(talk.id, privacy={"exportable": False})
        assert talk.exportable  # as it believes: it has not looked
        with pytest.raises(NotExportable):
            talk.snapshot()
        Records(theirs).update(talk.id, privacy={"exportable": True})
        talk.refresh()
        Records(theirs).update(talk.id, privacy={"exportable": False})
        assert not talk.detach().exportable


def test_what_is_said_meanwhile_stops_an_export_that_has_begun(store: Store, inside: str) -> None:
    release(store, inside)

    class Stream(io.BytesIO):
        def write(self, data: object) -> int:
            if not self.getvalue():
                Records(store).update(inside, privacy={"exportable": False})
            return super().write(data)  # type: ignore[arg-type]

    stream = Stream()
    with pytest.raises(NotExportable):
        formats.save(store, stream, format="jsonl")
    assert WORDS.encode() not in stream.getvalue()


def test_what_is_said_while_a_copy_goes_on_is_minded_and_reported(store: Store, inside: str) -> None:
    release(store, inside)

    def progress(_: int) -> None:
        Records(store).update(inside, privacy={"exportable": False})

    with hitherto.open("memory:") as other:
        with pytest.raises(PartialImport) as caught:
            formats.copy(store, other, progress=progress)
        assert inside in str(caught.value)
        assert [info.title for info in other.conversations()] == ["public"]


def test_a_detached_thread_stays_as_well_and_so_does_one_whose_key_is_another(store: Store, inside: str) -> None:
    talk = store.conversation(inside)
    copy = talk.detach(title="copy")
    assert (talk.exportable, copy.exportable) == (False, False)
    with pytest.raises(NotExportable):
        copy.snapshot()
    if store.key_id is None:
        store.seal(b"s" * 32)
    else:
        store.rotate(b"s" * 32, reencrypt=True)
    store.maintain()
    assert not store.conversation(inside).exportable


def test_it_can_be_read_searched_gone_on_with_and_imported_into(store: Store, inside: str, tmp_path: Path) -> None:
    release(store, inside)
    formats.save(store, tmp_path / "before.jsonl")
    Records(store).update(inside, privacy={"exportable": False})
    assert formats.load(tmp_path / "before.jsonl", store).unchanged == 2
    talk = store.conversation(inside)
    talk.append(Message.user("go on"))
    assert len(talk.thread()) == 3
    assert store.search(WORDS.split(maxsplit=1)[0])
    assert not talk.exportable


def test_a_backup_is_the_store_itself_and_the_conversation_stays_in_that(
    store: Store, inside: str, tmp_path: Path
) -> None:
    store.backup(tmp_path / "backup.db")
    key = None if store.key_id is None else Key(b"k" * 32)
    with hitherto.open(tmp_path / "backup.db", key=key) as there:
        assert there.conversation(inside).thread()[0].text == WORDS
        with pytest.raises(NotExportable):
            formats.save(there, io.BytesIO(), format="jsonl")


def test_automatic_checkpoints_are_left_out_and_that_is_said_once(
    store: Store, inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    copies = FileStore("copies", fs=MemoryFiles())
    checkpoints = Checkpoints(copies, None, None, None)
    talk = store.conversation(inside)
    for _ in range(3):
        checkpoints.count_answer(store, talk.id, str(talk.at))
        assert checkpoints.wait(30)
    assert isinstance(checkpoints.failure, NotExportable)
    assert sum(talk.id in line for line in caplog.text.splitlines()) == 1
    assert len(list(copies.list())) == 0
    release(store, inside)
    checkpoints.count_answer(store, talk.id, str(talk.at))
    assert checkpoints.wait(30)
    failure: Exception | None = checkpoints.failure
    assert failure is None
    assert len(list(copies.list())) == 1


def test_the_command_line_says_what_stays_and_leaves_nothing_behind(world: World) -> None:
    with hitherto.open(world.place) as store:
        id = (
            Records(store)
            .create(messages=[{"role": "user", "content": WORDS}], privacy={"exportable": False})
            .conversation_id
        )
    target = world.here / "copy.db"
    ways = (
        ("export", "--all"),
        ("export", id),
        ("export", id, "--format", "markdown"),
        ("export", "--all", "-o", str(world.here / "out.jsonl")),
        ("copy", str(world.place), str(target)),
    )
    for way in ways:
        done = world.command(*way)
        assert (done.returncode, done.stdout) == (5, ""), way
        assert id in done.stderr
        assert "hint: " in done.stderr
    assert not target.exists()
    assert not (world.here / "out.jsonl").exists()
    with hitherto.open(world.place) as store:
        release(store, id)
    for way in ways[-2:]:
        assert world.command(*way).returncode == 0, way
    assert target.exists()
