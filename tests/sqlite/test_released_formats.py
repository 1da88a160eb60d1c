"""Files of every released format open, read as they were, and can be written to (A11: format migration)."""

import gzip
import itertools
import json
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Block, Message, Store
from hitherto._sealing.sealed import read_box
from hitherto.backend import Where
from hitherto.backends.postgres.schema import MIGRATIONS as STEPS
from hitherto.backends.sqlite import opening
from hitherto.backends.sqlite.schema import MIGRATIONS
from hitherto.errors import CannotOpen, Held, ReadOnly, StorageError
from hitherto.listing import conversations
from hitherto.model import to_datetime

from ..support.databases import new_database
from ..support.frozen_stores import DUMP, Frozen, Kept, described, frozen, restored, unpacked

KEPT = sorted((Path(__file__).parents[1] / "data").glob("format-*.db.gz"))
LARGE = Block.image(bytes(range(256)) * 400, "image/png")


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "store.db"
    file.write_bytes(gzip.decompress(request.param.read_bytes()))
    return file


def test_there_is_a_kept_file_of_every_format() -> None:
    """Of those before whole stores were frozen; see below for the others."""
    assert [file.name for file in KEPT] == [f"format-{n + 1}.db.gz" for n in range(FROZEN[0].sqlite)]


def test_a_kept_file_reads_as_it_was(path: Path) -> None:
    with hitherto.open(path) as store:
        assert store.verify().problems == ()
        titles = {info.title for info in store.conversations()}
        assert titles - {"Large"} == {"Kept", "By key"}
        talk = store.ensure("user-42")
        assert (talk.title, talk.metadata, [m.text for m in talk.thread()]) == ("By key", {"a": "b"}, ["hello"])
        kept = store.latest(project="/p")
        assert kept is not None
        assert (kept.system_prompt, kept.model) == ("Be verbose.", "gpt-5")
        assert [m.text for m in kept.thread()] == ["The gist.", "and now?"]
        (tool_result,) = [m for m in store.messages() if m.key == "result-1"]
        assert tool_result.tool_result_error
        branch = store.thread(tool_result.id)
        assert [m.text for m in branch[:2]] == ["question 0 \0 🎉", "answer 0"]
        assert branch[3].raw == {"id": "msg_1"}
        assert branch[10].blocks[1].content == bytes(range(256))
        assert branch[11].blocks[0].arguments == {"path": "a.py"}
        assert store.conversation(branch[3]).system_prompt == "Be terse."
        assert len(list(store.messages(subagent="review"))) == 1
        assert len(list(store.messages(label="picture"))) == 1
        assert branch[0].created_at.year == 2023


def test_what_a_kept_file_has_in_packs_and_attachments_reads_as_it_was(path: Path) -> None:
    """From format 2 on. Packed or not, searching and packing work in files that began before there was either."""
    with hitherto.open(path) as store:
        if any(info.title == "Large" for info in store.conversations()):
            seen, answer, after = store.conversation("00000000-0000-4000-8000-000000000002").thread()
            assert seen.blocks[1].content == bytes(range(256)) * 1200
            assert seen.raw == {"data": ["ä" * 70_000]}
            assert (answer.text, after.text) == ("I see.", "after packing")
            assert store.backend.packs(range(0, 320, 32))
        assert [hit.snippet for hit in store.search("gist")] == ["The gist."]
        assert store.maintain().complete
        assert store.verify().problems == ()


def test_a_kept_file_can_be_written_to(path: Path) -> None:
    with hitherto.open(path) as store:
        talk = store.ensure("user-42")
        talk.append(Message.assistant("again"))
        assert store.verify().ok
    with hitherto.open(path) as store:
        assert [m.text for m in store.ensure("user-42").thread()] == ["hello", "again"]


# -- stores that were frozen whole: sealed, half rotated, in quarantine, on PostgreSQL


FROZEN = frozen()
STORES = [(one, kept) for one in FROZEN for kept in one.stores]


class Thawed:
    """A copy of a frozen workspace."""

    def __init__(self, frozen: Frozen, kept: Kept, location: str) -> None:
        self.frozen, self.kept = frozen, kept
        self.location = location

    def open(self, *, after: bool = False, **options: Any) -> Store:
        """With the key of now, or with that of `after` its rotation; at a time right after it was frozen."""
        key = self.kept.after_bytes if after else self.kept.key_bytes
        ticks = itertools.count(self.kept.now, 1_000_000)
        options = {"maintenance": False, "clock": lambda: next(ticks), **options}
        return hitherto.open(self.location, workspace=self.kept.workspace, key=key, **options)

    def bytes(self) -> bytes:
        """Of all files, but for the one that SQLite makes anew."""
        folder = Path(self.location).parent
        return b"\0".join(path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.endswith("-shm"))


def chosen(is_wanted: Callable[[Kept], bool] = lambda _: True) -> pytest.MarkDecorator:
    found = [pair for pair in STORES if is_wanted(pair[1])]
    assert found
    return pytest.mark.parametrize("thawed", found, ids=lambda pair: pair[1].name, indirect=True)


@pytest.fixture
def thawed(request: pytest.FixtureRequest, tmp_path: Path) -> Thawed:
    one, kept = request.param
    if kept.place == "postgresql":
        return Thawed(one, kept, restored(one.folder / DUMP, new_database()))
    return Thawed(one, kept, str(unpacked(one.folder / f"{kept.place}.tar.xz", tmp_path / "thawed")))


def seen(store: Store, kept: Kept, *, search: bool = True) -> dict[str, Any]:
    """As JSON gives it back; without searching, what was found then."""
    found: dict[str, Any] = json.loads(json.dumps(described(store, kept.words if search else ())))
    return found if search else {**found, "found": kept.seen["found"]}


def sound(store: Store, kept: Kept) -> bool:
    """Is nothing wrong but what was damaged then?"""
    found = store.verify().problems
    homes = {kept.seen["messages"][id]["conversation"] for id in kept.damaged}
    named = {problem.message for problem in found if problem.message is not None}
    return named == set(kept.damaged) and {problem.conversation for problem in found} <= homes


def wrapped_with(store: Store) -> set[tuple[bytes, ...]]:
    """With which keys the keys of conversations are wrapped: in a store that is no rotation's, all with the same."""
    backend = store.backend
    rows = [row for kind in backend.kinds() for row in conversations(backend, Where(kind), oldest_first=True)]
    return {tuple(slot.key_id for slot in read_box(row.data_key)) for row in rows}


def test_the_format_of_a_release_is_frozen() -> None:
    """Until its release a format may change; then `scripts/freeze_stores.py` keeps it for ever."""
    assert FROZEN
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    if f"## [{hitherto.__version__}]" in changes:
        assert (len(MIGRATIONS), len(STEPS)) in [(one.sqlite, one.postgresql) for one in FROZEN]


def test_each_frozen_format_has_every_kind_of_store() -> None:
    for one in FROZEN:
        for places in ([kept for kept in one.stores if kept.place == "postgresql"],
                       [kept for kept in one.stores if kept.place != "postgresql"]):  # fmt: skip
            assert {kept.job for kept in places} == {None, "rewrap", "reencrypt", "seal", "unseal"}
            assert {None, "11" * 32} <= {kept.key for kept in places}
        assert any(kept.damaged for kept in one.stores)
        assert any(kept.purged for kept in one.stores)
        assert any(kept.seen["retention_days"] for kept in one.stores)
        talks = [talk for kept in one.stores for talk in kept.seen["conversations"].values()]
        for field in ("metadata", "partials", "state", "held", "summaries", "tools", "key", "expires_at"):
            assert any(talk.get(field) for talk in talks), field


@chosen()
def test_a_frozen_store_reads_as_it_was(thawed: Thawed) -> None:
    kept = thawed.kept
    with thawed.open() as store:
        assert seen(store, kept) == kept.seen
        assert sound(store, kept)
        assert {one.message for one in store.quarantine()} == set(kept.damaged)
        assert store.maintain().complete
        assert seen(store, kept) == kept.seen
        assert sound(store, kept)


@chosen()
def test_a_frozen_store_is_read_without_being_changed(thawed: Thawed) -> None:
    kept = thawed.kept
    on_disk = kept.place != "postgresql"
    if on_disk and Path(f"{thawed.location}-wal").exists():
        with pytest.raises(CannotOpen, match="without writing"):
            thawed.open(read_only=True)
        with closing(apsw.Connection(thawed.location)) as database:  # which knows of no format
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if not on_disk and thawed.frozen.postgresql < len(STEPS):
        with pytest.raises(ReadOnly, match="an older one"):  # a server is brought up to date by whoever may write
            thawed.open(read_only=True)
        return
    before = thawed.bytes() if on_disk else b""
    with thawed.open(read_only=True) as store:
        assert seen(store, kept, search=False) == kept.seen
        assert sound(store, kept)
        with pytest.raises(ReadOnly):
            store.start()
    assert not on_disk or thawed.bytes() == before


MORE = (
    "what comes next",
    (
        "ALTER TABLE workspace ADD COLUMN owner BLOB",
        "ALTER TABLE conversation ADD COLUMN colour INTEGER NOT NULL DEFAULT 7",
        "CREATE TABLE extra (number INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
        "CREATE INDEX conversation_by_colour ON conversation (workspace, colour)",
    ),
)


@chosen(lambda kept: kept.place in ("plain", "sealed", "retention", "workspaces"))
def test_a_later_version_reads_an_older_format_without_changing_it(
    thawed: Thawed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS, MORE))
    kept, before = thawed.kept, thawed.bytes()
    with thawed.open(read_only=True) as store:
        assert seen(store, kept, search=False) == kept.seen
        assert store.verify().ok
        with store.backend._connection() as connection:  # type: ignore[attr-defined]
            assert set(connection.execute("SELECT colour FROM conversation")) == {(7,)}
            assert set(connection.execute("SELECT owner FROM workspace")) == {(None,)}
            assert connection.execute("SELECT count(*) FROM extra").fetchall() == [(0,)]
    assert thawed.bytes() == before
    with monkeypatch.context() as patch:  # the control: without what completes it, it cannot be read
        patch.setattr(opening, "complete", lambda *_: None)
        with thawed.open(read_only=True) as store, pytest.raises(StorageError), store.backend._connection() as other:  # type: ignore[attr-defined]
            other.execute("SELECT colour FROM conversation").fetchall()
    with thawed.open() as store:
        assert seen(store, kept) == kept.seen


@pytest.mark.parametrize("path", KEPT[:2], ids=lambda path: path.name, indirect=True)
def test_a_format_that_cannot_be_read_without_being_changed_is_refused(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ReadOnly, match="an older one"):
        hitherto.open(path, read_only=True)
    assert path.read_bytes() == before


@chosen(lambda kept: kept.job is not None)
def test_a_frozen_rotation_is_half_done_and_is_finished(thawed: Thawed) -> None:
    kept = thawed.kept
    with thawed.open() as store:
        assert len(wrapped_with(store)) > 1
    with thawed.open() as store:
        assert store.maintain().complete
        assert store.key_id == (None if kept.after_bytes is None else hitherto.Key(kept.after_bytes).id)
    with thawed.open(after=True) as store:
        assert len(wrapped_with(store)) == 1
        assert seen(store, kept) == kept.seen
        assert store.verify().ok


@chosen()
def test_a_frozen_store_is_written_on(thawed: Thawed) -> None:
    kept = thawed.kept
    with thawed.open() as store:
        ids = {}
        for id, talk in kept.seen["conversations"].items():
            if talk.get("thread") != "damaged":
                ids[id] = store.conversation(id).append(Message.user([Block.text("written on"), LARGE])).id
        new = store.start(title="New", metadata={"a": "b"})
        new.append(Message.user("written on"))
    with thawed.open() as store:
        for id, said in ids.items():
            talk = kept.seen["conversations"][id]
            thread = store.conversation(id).thread(full=True)
            assert [message.id for message in thread] == [*talk.get("thread", []), said]
            assert thread[-1].blocks[1].content == LARGE.content
        assert {hit.message_id for hit in store.search("written", limit=1000)} >= set(ids.values())
        assert len(store.search("written", limit=1000)) == len(ids) + 1
        store.maintain()
        assert sound(store, kept)


@chosen()
def test_conversations_of_a_frozen_store_are_purged(thawed: Thawed) -> None:
    kept = thawed.kept
    with thawed.open() as store:
        store.purge_quarantine()
        for id, talk in kept.seen["conversations"].items():
            if talk.get("held"):
                with pytest.raises(Held):
                    store.purge(id, reason="user-requested")
                store.conversation(id).release()
            assert store.purge(id, reason="user-requested").purged_count == 1
        assert store.scrub()
        assert list(store.messages()) == []
        assert store.stats().conversations == 0
        assert store.verify().ok
        for word in kept.words:
            assert store.search(word) == []


@chosen(lambda kept: bool(kept.purged))
def test_what_a_frozen_purge_left_in_the_files_is_scrubbed(thawed: Thawed) -> None:
    texts = [text.encode() for text in thawed.kept.purged]
    assert any(text in thawed.bytes() for text in texts)  # the control
    with thawed.open() as store:
        assert store.scrub()
    assert not any(text in thawed.bytes() for text in texts)


@chosen(lambda kept: bool(kept.damaged))
def test_the_quarantine_of_a_frozen_store_is_purged(thawed: Thawed) -> None:
    with thawed.open() as store:
        assert store.purge_quarantine().purged_count == len(thawed.kept.damaged)
        assert store.quarantine() == []
        assert store.verify().ok


@chosen(lambda kept: kept.seen["retention_days"] is not None)
def test_the_retention_of_a_frozen_store_is_gone_by(thawed: Thawed) -> None:
    titles = {"Old 1": False, "Old 2": True, "New": True, "Its own": True}  # which stay: the second is on hold
    with thawed.open() as store:
        assert {info.title for info in store.conversations(include_expired=True)} == set(titles)
        report = store.sweep(now=to_datetime(thawed.kept.now) + timedelta(days=2))
        assert report.purged_count == 1
        left = {info.title for info in store.conversations(include_expired=True)}
        assert left == {title for title, stays in titles.items() if stays}


@pytest.mark.parametrize("one", FROZEN, ids=lambda one: one.folder.name)
def test_a_frozen_sqlite_store_gets_the_tables_of_a_new_one(one: Frozen, tmp_path: Path) -> None:
    old, new = unpacked(one.folder / "plain.tar.xz", tmp_path / "thawed"), tmp_path / "new.db"
    found = []
    for path in (old, new):
        hitherto.open(path).close()
        with closing(apsw.Connection(str(path))) as database:
            rows = database.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
            steps = database.execute("SELECT version, name FROM migration ORDER BY version").fetchall()
            found.append((rows, steps))
    assert found[0] == found[1]


@pytest.mark.parametrize("one", FROZEN, ids=lambda one: one.folder.name)
def test_a_frozen_postgresql_store_gets_the_tables_of_a_new_one(one: Frozen) -> None:
    columns = "table_name, column_name, data_type, is_nullable, column_default"
    settings = "relname, relrowsecurity, relforcerowsecurity, reloptions"
    catalogue = (
        f"SELECT {columns} FROM information_schema.columns WHERE table_schema = 'hitherto' ORDER BY 1, 2",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'hitherto' ORDER BY 1",
        "SELECT tablename, policyname, qual, with_check FROM pg_policies WHERE schemaname = 'hitherto' ORDER BY 1, 2",
        f"SELECT {settings} FROM pg_class WHERE relnamespace = to_regnamespace('hitherto') ORDER BY 1",
        "SELECT version, name FROM hitherto.migration ORDER BY 1",
    )
    old, new = new_database(), new_database()
    restored(one.folder / DUMP, old)
    found = []
    for database in (old, new):
        hitherto.open(database.url(), workspace="plain").close()
        with database.admin() as connection:
            found.append([connection.execute(query).fetchall() for query in catalogue])
    assert found[0] == found[1]
