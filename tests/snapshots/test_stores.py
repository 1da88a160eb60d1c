"""One contract for all snapshot stores: in memory, on a disk, on objects, on S3 and Azure as they are played on this
machine; plain, sealed as others do it, sealed by us.

Requirements: A5, A6, A8, A11, D6.
"""

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
import obstore.store
import pytest

from hitherto import Key
from hitherto.errors import (
    Conflict,
    Damaged,
    Denied,
    HithertoError,
    InvalidArgument,
    InvalidKey,
    InvalidSnapshotID,
    KeyUnavailable,
    NewerFormat,
    NotFound,
    NotSealed,
    PayloadTooLarge,
    StorageFull,
    Unavailable,
)
from hitherto.snapshots import FileStore, Listing, MemoryFiles, ObjectStore, Snapshot, SnapshotStore, Summary
from hitherto.snapshots._bucket import WHATEVER, Bucket, Content, Thing, Whatever
from hitherto.snapshots._catalog import NAME, Catalog, Entry

from ..support.cloud import Azurite, Moto
from ..support.thorough import THOROUGH

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
Kind = Literal["memory", "disk", "objects", "s3", "azure"]
Way = Literal["plain", "gtb", "hitherto"]


class Place:
    """Somewhere to keep snapshots, and how they are kept there."""

    def __init__(self, kind: Kind, way: Way, path: Path) -> None:
        self._path = path / "above" / "snapshots"
        self._kind = kind
        self._way = way
        self._memory = MemoryFiles()
        self._objects: obstore.store.ObjectStore | str = obstore.store.MemoryStore()

    def at(self, url: str) -> "Place":
        self._objects = url
        return self

    def open(self, *, way: Way | None = None, key: bytes = KEY, max_bytes: int = 1 << 28) -> SnapshotStore:
        way = way or self._way
        layout: Literal["gtb", "hitherto"] = "gtb" if way == "gtb" else "hitherto"
        given = None if way == "plain" else key
        if self._kind not in ("memory", "disk"):
            return ObjectStore(self._objects, given, layout=layout, max_bytes=max_bytes)
        fs = self._memory if self._kind == "memory" else None
        return FileStore(self._path, given, layout=layout, fs=fs, max_bytes=max_bytes)

    @property
    def bucket(self) -> Bucket:
        return self.open()._bucket

    def names(self) -> set[str]:
        return {thing.name for thing in self.bucket.things()} - {NAME}


def ways(*chosen: Way) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("way", chosen)


# Azure's own behaviour is tried by test_buckets and test_object_servers; here it takes a minute.
@pytest.fixture(params=["memory", "disk", "objects", "s3", *(["azure"] if THOROUGH else [])])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(params=["plain", "gtb", "hitherto"])
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture
def place(
    kind: Kind, way: Way, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Place:
    found = Place(kind, way, tmp_path)
    if kind not in ("s3", "azure"):
        return found
    server: Moto | Azurite = request.getfixturevalue("moto" if kind == "s3" else "azurite")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return found.at(server.make() + "/some/prefix")


def some(text: str = "Hello", created_at: str = "", **metadata: str) -> Snapshot:
    messages: list[dict[str, object]] = [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes?"}]
    tools = [{"name": "clock", "description": "tells the time", "parameters": {"type": "object", "maximum": 1.5}}]
    made = Snapshot.new("claude", "a-model", "Be brief.", messages, tools, metadata)
    return msgspec.structs.replace(made, created_at=created_at) if created_at else made


# -- one snapshot


def test_what_is_saved_is_loaded(place: Place) -> None:
    store = place.open()
    snapshot = some("<b>&\u2028 é 🌻 \x00 \x1f", a="1", é="2")
    assert store.save(snapshot) == snapshot.revision
    for reader in (store, place.open()):
        found = reader.load(snapshot.id)
        assert (found, found.to_json(), found.revision) == (snapshot, snapshot.to_json(), snapshot.revision)


def test_the_same_id_overwrites(place: Place) -> None:
    store = place.open()
    first = some("one")
    second = msgspec.structs.replace(some("two", a="b"), id=first.id)
    assert store.save(first) != store.save(second)
    assert store.load(first.id) == second
    assert [summary.revision for summary in store.list()] == [second.revision]
    assert len(place.names()) == 1


def test_what_is_deleted_is_gone(place: Place) -> None:
    store = place.open()
    gone, stays = some(), some()
    store.save(gone)
    store.save(stays)
    store.delete(gone.id)
    for act in (store.load, store.delete):
        with pytest.raises(NotFound) as caught:
            act(gone.id)
        assert caught.value.hint
        assert caught.value.ids == (gone.id,)
    assert [summary.id for summary in store.list()] == [stays.id]
    assert len(place.names()) == 1


def test_a_fresh_store_is_empty_and_nothing_is_made_by_looking(place: Place, kind: Kind, tmp_path: Path) -> None:
    store = place.open()
    assert list(store.list()) == []
    assert store.list().unreadable == ()
    with pytest.raises(NotFound):
        store.load(str(uuid.uuid4()))
    with pytest.raises(NotFound):
        store.delete(str(uuid.uuid4()))
    assert store.prune(keep=0, metadata={}) == []
    if kind == "disk":
        assert list(tmp_path.iterdir()) == []


HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "media/" + "a" * 64,
    ".summaries",
    "A" * 36,
    str(uuid.uuid4()).upper(),
    str(uuid.uuid4()) + "\n",
    str(uuid.uuid4())[:-1] + "\0",
    "а" * 36,
    "０" * 36,
    "../" + str(uuid.uuid4()),
    str(uuid.uuid4()) + "/..",
    "x" * 10_000_000,
    "\ud800",
    None,
    7,
    b"x",
]


def test_hostile_ids_are_refused_at_once_and_touch_nothing(place: Place, kind: Kind, tmp_path: Path) -> None:
    store = place.open()
    before = time.thread_time()
    for id in HOSTILE:
        for act in (store.load, store.delete):
            with pytest.raises(InvalidSnapshotID) as caught:
                act(id)  # type: ignore[arg-type]
            assert len(str(caught.value)) < 400
        with pytest.raises(InvalidSnapshotID):
            store.save(msgspec.structs.replace(some(), id=id))
    assert time.thread_time() - before < 5
    assert place.names() == set()
    if kind == "disk":
        assert list(tmp_path.iterdir()) == []


def test_a_snapshot_is_named_by_its_id_or_by_what_has_it(place: Place) -> None:
    store, snapshot = place.open(), some()
    store.save(snapshot)
    (summary,) = store.list()
    for name in (snapshot.id, uuid.UUID(snapshot.id), summary, snapshot):
        assert store.load(name) == snapshot
        store.delete(name)
        with pytest.raises(NotFound):
            store.load(name)
        store.save(snapshot)
    with pytest.raises(InvalidSnapshotID):
        store.save(msgspec.structs.replace(snapshot, id=uuid.UUID(snapshot.id)))


@pytest.mark.parametrize("thing", [None, {}, "x", b"{}", 7])
def test_only_snapshots_are_saved(thing: object) -> None:
    with pytest.raises(InvalidArgument):
        FileStore("x", fs=MemoryFiles()).save(thing)  # type: ignore[arg-type]


# -- lost updates


def test_a_save_that_expects_something_else_is_refused(place: Place) -> None:
    store = place.open()
    first = some("one")
    second = msgspec.structs.replace(some("two"), id=first.id)
    third = msgspec.structs.replace(some("three"), id=first.id)
    with pytest.raises(Conflict):
        store.save(first, expect=first)
    store.save(first, expect=None)
    store.save(second, expect=first)
    for stale in (None, first, first.revision, "", "x" * 10_000):
        with pytest.raises(Conflict) as caught:
            store.save(third, expect=stale)
        assert caught.value.head == second.revision
        assert caught.value.hint
        assert len(str(caught.value)) < 300
        assert store.load(first.id) == second
    assert store.save(third, expect=store.load(first.id).revision) == third.revision
    store.delete(first.id)
    with pytest.raises(Conflict):
        store.save(third, expect=third)
    store.save(third, expect=None)


@pytest.mark.parametrize("expect", [7, b"x", {}, True])
def test_what_is_expected_is_a_snapshot_or_a_revision(expect: object) -> None:
    with pytest.raises(InvalidArgument):
        FileStore("x", fs=MemoryFiles()).save(some(), expect=expect)  # type: ignore[arg-type]


def test_of_many_who_expect_the_same_one_wins(place: Place) -> None:
    first = some("one")
    place.open().save(first)
    for expect in (first, None):
        if expect is None:
            place.open().delete(first.id)
        others = [msgspec.structs.replace(some(f"of {n}"), id=first.id) for n in range(8)]
        start = threading.Barrier(8)

        def attempt(mine: Snapshot, expect: Snapshot | None = expect, start: threading.Barrier = start) -> str | None:
            store = place.open()
            start.wait()
            try:
                return store.save(mine, expect=expect)
            except Conflict:
                return None

        with ThreadPoolExecutor(8) as threads:
            won = [revision for revision in threads.map(attempt, others) if revision]
        assert len(won) == 1
        assert place.open().load(first.id).revision == won[0]


def test_without_expecting_the_last_one_wins_silently() -> None:
    """The control of the two tests above: it is `expect` that protects."""
    store = FileStore("x", fs=MemoryFiles())
    first = some("one")
    second = msgspec.structs.replace(some("two"), id=first.id)
    store.save(first)
    store.save(second)
    store.save(first)
    assert store.load(first.id) == first


# -- listing


def test_a_summary_says_what_a_snapshot_is(place: Place) -> None:
    store = place.open()
    snapshot = some("a" * 400, a="1", b="2")
    store.save(snapshot)
    (summary,) = store.list()
    assert isinstance(summary, Summary)
    assert (summary.id, summary.provider, summary.model) == (snapshot.id, "claude", "a-model")
    assert (summary.created_at, summary.created) == (snapshot.created_at, snapshot.created)
    assert (summary.message_count, summary.metadata) == (2, {"a": "1", "b": "2"})
    assert 100 <= summary.approximate_tokens < 120
    assert summary.revision == snapshot.revision
    summary.metadata["a"] = "changed"
    assert store.list()[0].metadata == {"a": "1", "b": "2"}
    content = place.bucket.get(next(iter(place.names())), 1 << 20)
    assert content is not None
    assert summary.size == content.size == len(content.data)


def test_a_listing_is_a_sequence_newest_first_to_the_nanosecond(place: Place) -> None:
    store = place.open()
    times = [
        "2026-01-01T00:00:00.000000002Z",
        "2026-01-01T01:00:00.000000001+01:00",
        "2025-12-31T23:00:00-01:00",  # the same moment, but for a nanosecond
        "2025-12-31T23:59:59.9Z",
        "2025-12-31T23:59:59.123456789Z",
        "0001-01-01T00:00:00Z",
    ]
    for created_at in sorted(times):
        store.save(some(created_at=created_at))
    listing = store.list()
    assert isinstance(listing, Listing)
    assert [summary.created_at for summary in listing] == times
    assert (len(listing), listing[0], listing[-1]) == (6, listing[:1][0], list(listing)[-1])
    assert listing[0] in listing
    assert "6" in repr(listing)


def test_of_one_moment_they_are_listed_by_id() -> None:
    store = FileStore("x", fs=MemoryFiles())
    for _ in range(20):
        store.save(some(created_at="2026-01-01T00:00:00Z"))
    found = [summary.id for summary in store.list()]
    assert found == sorted(found)


def test_no_messages_are_none() -> None:
    store = FileStore("x", fs=MemoryFiles())
    store.save(msgspec.structs.replace(some(), messages_json="null", system_prompt=""))
    assert [(one.message_count, one.approximate_tokens) for one in store.list()] == [(0, 0)]


@pytest.mark.parametrize(
    ("content", "least", "most"),
    [
        ("word " * 800, 1000, 1010),
        ("é" * 2000, 1000, 1010),
        ('"\n' * 2000, 1000, 1010),
        ("<" * 4000, 1000, 2010),
        ("QUJD" * 1000, 0, 10),
        ("data:image/png;base64," + "QUJD" * 1000 + "==", 0, 20),
        ('{"data": "' + "QUJD" * 1000 + '"}', 0, 20),
        ("QUJD" * 127, 127, 140),  # too short to be taken for a picture
        (("QUJD" * 127 + " ") * 10, 1270, 1290),
    ],
)
def test_tokens_are_guessed_from_what_was_said_and_not_from_pictures(content: str, least: int, most: int) -> None:
    store = FileStore("x", fs=MemoryFiles())
    store.save(Snapshot.new("claude", "m", "", [{"role": "user", "content": content}]))
    assert least <= store.list()[0].approximate_tokens <= most


def test_files_of_others_are_skipped_with_a_word(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    store = place.open()
    store.save(some())
    foreign = ["README.txt", ".DS_Store", "x.json", "conversation.json.bak", "a.sealed", f"{uuid.uuid4()}.json.tmp"]
    for name in foreign:
        place.bucket.put(name, b"not ours")
    with caplog.at_level(logging.DEBUG, logger="hitherto"):
        listing = store.list()
    assert (len(listing), listing.unreadable) == (1, ())
    assert all(any(name in record.getMessage() for record in caplog.records) for name in foreign)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


@pytest.mark.parametrize("data", [b"", b"garbage", b"{", b'{"id":', b"\x00" * 200, b"[]", b"null"])
@ways("plain")
def test_what_cannot_be_read_is_counted_with_the_reason(place: Place, data: bytes) -> None:
    store = place.open()
    store.save(some())
    id = str(uuid.uuid4())
    place.bucket.put(f"{id}.json", data)
    listing = store.list()
    assert len(listing) == 1
    (bad,) = listing.unreadable
    assert bad.name == f"{id}.json"
    assert 5 < len(bad.reason) < 300
    with pytest.raises(Damaged) as caught:
        store.load(id)
    assert caught.value.hint
    store.delete(id)
    assert store.list().unreadable == ()


@ways("plain", "gtb")
def test_a_newer_version_and_another_id_inside_are_counted(place: Place) -> None:
    store = place.open()
    good = some()
    store.save(good)
    newer, other = str(uuid.uuid4()), str(uuid.uuid4())
    fields = json.loads(good.to_json())
    closed = store._layouts[0]._seal  # type: ignore[attr-defined]
    place.bucket.put(f"{newer}.json", closed(json.dumps(fields | {"id": newer, "version": 99}).encode()))
    place.bucket.put(f"{other}.json", closed(good.to_json()))
    listing = store.list()
    assert [summary.id for summary in listing] == [good.id]
    reasons = {bad.name[:-5]: bad.reason for bad in listing.unreadable}
    assert "99" in reasons[newer]
    assert "another id" in reasons[other]
    with pytest.raises(NewerFormat):
        store.load(newer)
    with pytest.raises(Damaged, match="another id"):
        store.load(other)


def test_what_is_cut_off_is_counted_and_refused(place: Place, way: Way) -> None:
    store = place.open()
    good, bad = some(), some("x" * 3000)
    store.save(good)
    before = place.names()
    store.save(bad)
    (name,) = place.names() - before
    content = place.bucket.get(name, 1 << 20)
    assert content is not None
    for size in (0, 10, 27, 50, 200, len(content.data) - 1):
        place.bucket.put(name, content.data[:size])
        listing = store.list()
        assert ([one.id for one in listing], [one.name for one in listing.unreadable]) == ([good.id], [name])
        with pytest.raises((Damaged, KeyUnavailable)) as caught:
            store.load(bad.id)
        assert isinstance(caught.value, Damaged) or way == "gtb"
    place.bucket.put(name, content.data)
    assert len(store.list()) == 2


@pytest.mark.skipif(os.name != "posix", reason="links and modes")
def test_links_and_directories_are_counted_and_not_followed(tmp_path: Path) -> None:
    outside = some("outside")
    target = tmp_path / "outside.json"
    target.write_bytes(outside.to_json())
    store = FileStore(tmp_path / "store")
    store.save(some())
    (tmp_path / "store" / f"{outside.id}.json").symlink_to(target)
    folder = str(uuid.uuid4())
    (tmp_path / "store" / f"{folder}.json").mkdir()
    (tmp_path / "store" / "elsewhere").symlink_to(tmp_path)
    listing = store.list()
    assert len(listing) == 1
    assert {bad.name for bad in listing.unreadable} == {f"{outside.id}.json", f"{folder}.json"}
    with pytest.raises(HithertoError):
        store.load(outside.id)
    assert target.read_bytes() == outside.to_json()


# -- keys


@pytest.mark.parametrize("key", [b"", b"x" * 31, b"x" * 33, "x" * 32, 7, False, bytearray()])
def test_what_is_no_key_is_refused_and_never_taken_for_none(key: object, tmp_path: Path) -> None:
    for make in (
        lambda: FileStore(tmp_path / "x", key),  # type: ignore[arg-type]
        lambda: ObjectStore("memory://", key),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidKey) as caught:
            make()
        assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_key_object_is_the_same_as_its_bytes() -> None:
    fs = MemoryFiles()
    snapshot = some()
    FileStore("x", Key(KEY), fs=fs).save(snapshot)
    assert FileStore("x", KEY, fs=fs).load(snapshot.id) == snapshot


def test_with_zeros_nothing_is_sealed() -> None:
    store = FileStore("x", bytes(32), fs=MemoryFiles())
    with pytest.raises(InvalidKey):
        store.save(some())
    assert list(store._bucket.things()) == []


def test_a_wiped_key_opens_nothing() -> None:
    key = Key(KEY)
    store = FileStore("x", key, fs=MemoryFiles())
    snapshot = some()
    store.save(snapshot)
    key.wipe()
    for act in (lambda: store.load(snapshot.id), store.list, lambda: store.save(snapshot)):
        with pytest.raises(KeyUnavailable):
            act()


@pytest.mark.parametrize("layout", ["", "GTB", "plain", None, 7])
def test_an_unknown_layout_is_refused(layout: str) -> None:
    with pytest.raises(InvalidArgument):
        FileStore("x", KEY, layout=layout, fs=MemoryFiles())  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, 7, b"x", "", "\0"])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(InvalidArgument):
        FileStore(path)  # type: ignore[arg-type]


@ways("gtb", "hitherto")
def test_a_wrong_key_is_never_an_empty_list_nor_a_missing_snapshot(place: Place) -> None:
    snapshot = some()
    place.open().save(snapshot)
    for stranger in (place.open(key=OTHER), place.open(way="gtb", key=OTHER), place.open(key=bytes(32))):
        with pytest.raises(KeyUnavailable) as caught:
            stranger.load(snapshot.id)
        assert caught.value.hint
        with pytest.raises(KeyUnavailable):
            stranger.list()
    assert place.open().load(snapshot.id) == snapshot


@ways("gtb", "hitherto")
def test_where_some_open_the_others_are_counted(place: Place) -> None:
    ours, theirs = some(), some()
    place.open().save(ours)
    place.open(key=OTHER).save(theirs)
    for key, mine in ((KEY, ours), (OTHER, theirs)):
        listing = place.open(key=key).list()
        assert ([one.id for one in listing], len(listing.unreadable)) == ([mine.id], 1)
        assert "key" in listing.unreadable[0].reason
    with pytest.raises(KeyUnavailable):
        place.open().load(theirs.id)


@ways("gtb")
def test_without_a_key_what_others_sealed_is_not_opened(place: Place) -> None:
    snapshot = some()
    place.open().save(snapshot)
    plain = place.open(way="plain")
    with pytest.raises(KeyUnavailable):
        plain.load(snapshot.id)
    with pytest.raises(KeyUnavailable):
        plain.list()
    plain.save(some())
    assert (len(plain.list()), len(plain.list().unreadable)) == (1, 1)


@ways("hitherto")
def test_without_a_key_sealed_names_are_pointed_at(place: Place) -> None:
    snapshot = some()
    place.open().save(snapshot)
    plain = place.open(way="plain")
    with pytest.raises(NotFound) as caught:
        plain.load(snapshot.id)
    assert "sealed" in str(caught.value.hint)
    with pytest.raises(KeyUnavailable):
        plain.list()
    with pytest.raises(NotFound) as caught:
        Place("memory", "plain", Path("elsewhere")).open().load(snapshot.id)
    assert "sealed" not in str(caught.value.hint)


@ways("gtb", "hitherto")
def test_a_plain_file_in_a_sealed_store_is_not_believed(place: Place) -> None:
    store = place.open()
    mine, planted = some(), some("planted")
    store.save(mine)
    place.bucket.put(f"{planted.id}.json", planted.to_json())
    with pytest.raises(NotSealed) as caught:
        store.load(planted.id)
    assert caught.value.hint
    listing = store.list()
    assert ([one.id for one in listing], len(listing.unreadable)) == ([mine.id], 1)
    assert "plain" in listing.unreadable[0].reason
    with pytest.raises(Conflict):
        store.save(planted, expect=None)
    with pytest.raises(NotSealed):
        store.save(planted, expect=planted)
    store.save(planted)
    assert store.load(planted.id) == planted
    assert store.list().unreadable == ()
    assert not any(b"planted" in content.data for content in everything(place.bucket))


def everything(bucket: Bucket) -> Iterator[Content]:
    for prefix in ("", "media/"):
        for thing in bucket.things(prefix):
            content = bucket.get(thing.name, 1 << 28)
            assert content is not None
            yield content


# -- both layouts in one place


@ways("gtb", "hitherto")
def test_both_sealed_layouts_are_read_whatever_is_written(place: Place, way: Way) -> None:
    other: Way = "gtb" if way == "hitherto" else "hitherto"
    one, two = some("one"), some("two")
    place.open(way=way).save(one)
    place.open(way=other).save(two)
    for store in (place.open(way=way), place.open(way=other)):
        assert (store.load(one.id), store.load(two.id)) == (one, two)
        assert {summary.id for summary in store.list()} == {one.id, two.id}
    changed = msgspec.structs.replace(one, model="another")
    place.open(way=other).save(changed, expect=one)
    assert len(place.names()) == 2
    for store in (place.open(way=way), place.open(way=other)):
        assert store.load(one.id) == changed
        assert len(store.list()) == 2
    place.open(way=way).delete(two.id)
    place.open(way=way).delete(one.id)
    assert place.names() == set()


@ways("gtb", "hitherto")
def test_where_both_lie_the_own_one_counts_and_both_are_deleted(place: Place, way: Way) -> None:
    """As after a crash between writing the one and removing the other."""
    other: Way = "gtb" if way == "hitherto" else "hitherto"
    old = some("old")
    new = msgspec.structs.replace(some("new"), id=old.id)
    place.open(way=other).save(old)
    place.open(way=way)._layouts[0].write(new)
    assert len(place.names()) == 2
    store = place.open(way=way)
    assert store.load(old.id) == new
    assert [summary.revision for summary in store.list()] == [new.revision]
    with pytest.raises(Conflict):
        store.save(old, expect=old)
    store.delete(old.id)
    assert place.names() == set()


@ways("gtb", "hitherto")
def test_two_who_save_in_both_layouts_at_once_do_not_take_each_others_away(way: Way, tmp_path: Path) -> None:
    place = Place("memory", way, tmp_path)
    bucket = Watched(place.bucket)
    store = SnapshotStore(bucket, KEY, layout="gtb" if way == "gtb" else "hitherto")
    mine = some("mine")
    theirs = msgspec.structs.replace(some("theirs"), id=mine.id)
    other = place.open(way="gtb" if way == "hitherto" else "hitherto")
    bucket.after_put.append(lambda: other.save(theirs))
    store.save(mine)
    assert bucket.after_put == []
    assert place.open().load(mine.id) == theirs
    assert len(place.names()) == 1


@ways("hitherto")
def test_nothing_in_clear_is_in_names_or_files(place: Place) -> None:
    store = place.open()
    snapshot = some("sesame " * 200, sesame="open")
    store.save(snapshot)
    for _ in range(40):
        store.save(some("sesame", sesame="open"))
    store.list()
    assert NAME in {thing.name for thing in place.bucket.things()}
    for thing in place.bucket.things():
        assert snapshot.id not in thing.name
        assert snapshot.id.replace("-", "") not in thing.name
    for content in everything(place.bucket):
        for secret in (b"sesame", b"claude", b"a-model", snapshot.id.encode(), snapshot.revision.encode(), b"2026-"):
            assert secret not in content.data
    assert store._layouts[0].name_of(snapshot.id) == place.open()._layouts[0].name_of(snapshot.id)
    assert store._layouts[0].name_of(snapshot.id) != place.open(key=OTHER)._layouts[0].name_of(snapshot.id)


def test_a_store_says_where_it_is_and_not_its_key() -> None:
    store = FileStore("some/where", b"0123456789abcdef" * 2, fs=MemoryFiles())
    assert "some/where" in repr(store)
    for shown in (repr(store), repr(vars(store)), repr(store._lock)):
        assert "0123456789abcdef" not in shown


# -- size


def test_what_is_too_large_is_neither_saved_nor_loaded(place: Place, kind: Kind, tmp_path: Path) -> None:
    small = place.open(max_bytes=5000)
    large = some("x" * 6000)
    with pytest.raises(PayloadTooLarge) as caught:
        small.save(large)
    assert (caught.value.limit, "max_bytes" in str(caught.value.hint)) == (5000, True)
    if kind == "disk":
        assert list(tmp_path.iterdir()) == []
    place.open().save(large)
    with pytest.raises(PayloadTooLarge) as caught:
        small.load(large.id)
    assert "max_bytes" in str(caught.value.hint)
    assert place.open().load(large.id) == large
    fits = some("x" * 4000)
    small.save(fits)
    assert small.load(fits.id) == fits
    assert fits.id in {summary.id for summary in small.list()}


@pytest.mark.parametrize("size", [0, -1, 1.5, "7", True, None])
def test_a_size_is_a_number(size: object) -> None:
    with pytest.raises(InvalidArgument):
        FileStore("x", fs=MemoryFiles(), max_bytes=size)  # type: ignore[arg-type]


def test_metadata_that_is_larger_than_what_is_read_at_once_is_listed(place: Place) -> None:
    store = place.open()
    snapshot = some(a=os.urandom(20_000).hex())
    store.save(snapshot)
    assert store.list()[0].metadata == snapshot.metadata


# -- pruning


def test_pruning_keeps_the_newest_of_those_that_match(place: Place) -> None:
    store = place.open()
    made = [some(created_at=f"2026-01-0{n}T00:00:00Z", conversation="c", checkpoint="auto") for n in range(1, 7)]
    others = [some(conversation="c"), some(conversation="d", checkpoint="auto")]
    for snapshot in (*made, *others):
        store.save(snapshot)
    pairs = {"conversation": "c", "checkpoint": "auto"}
    assert store.prune(keep=2, metadata=pairs) == [snapshot.id for snapshot in made[3::-1]]
    assert {summary.id for summary in store.list()} == {snapshot.id for snapshot in (*made[4:], *others)}
    assert store.prune(keep=2, metadata=pairs) == []
    assert len(store.prune(keep=0, metadata=pairs)) == 2
    assert len(store.list()) == 2


def test_pruning_by_several_at_once_is_no_error(place: Place, kind: Kind) -> None:
    """An object store does not say whether what it deleted was still there."""
    for _ in range(20):
        place.open().save(some(checkpoint="auto"))
    with ThreadPoolExecutor(4) as threads:
        runs = list(threads.map(lambda _: place.open().prune(keep=3, metadata={"checkpoint": "auto"}), range(4)))
    deleted = [id for run in runs for id in run]
    assert len(set(deleted)) == 17
    assert len(deleted) == 17 or kind not in ("memory", "disk")
    assert len(place.open().list()) == 3


@pytest.mark.parametrize(
    ("keep", "metadata"), [(-1, {}), (True, {}), ("1", {}), (1, None), (1, [("a", "b")]), (1, {"a": 1})]
)
def test_pruning_wants_a_number_and_pairs(keep: int, metadata: dict[str, str]) -> None:
    store = FileStore("x", fs=MemoryFiles())
    store.save(some())
    with pytest.raises(InvalidArgument):
        store.prune(keep=keep, metadata=metadata)
    assert len(store.list()) == 1


# -- many at once


def test_readers_see_one_whole_snapshot_or_the_other_while_writers_write(place: Place) -> None:
    first = some("0" * 5000)
    place.open().save(first)
    stop = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        store = place.open()
        while not stop.is_set():
            found = store.load(first.id).messages[0]["content"]
            assert isinstance(found, str)
            assert len(set(found)) == 1
            seen.add(found[0])
            assert len(store.list()) == 1

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read) for _ in range(3)]
        try:
            for n in range(1, 10):
                place.open().save(msgspec.structs.replace(some(str(n) * 5000), id=first.id))
        finally:
            stop.set()
        for reader in readers:
            reader.result(30)
    assert seen <= set("0123456789")


# -- the catalog


class Watched:
    """A bucket that notes what is asked of it, and fails as it is told."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.read: list[str] = []
        self.written: list[str] = []
        self.refuse: dict[str, HithertoError] = {}
        self.before_put: list[Callable[[], object]] = []  # before the catalog is written
        self.after_put: list[Callable[[], object]] = []

    @property
    def where(self) -> str:
        return self._bucket.where

    def get(self, name: str, most: int, *, whole: bool = True) -> Content | None:
        self.read.append(name)
        if name in self.refuse:
            raise self.refuse[name]
        return self._bucket.get(name, most, whole=whole)

    def put(self, name: str, data: bytes, expect: str | Whatever | None = WHATEVER) -> str:
        while self.before_put and name == NAME:
            self.before_put.pop()()
        if "put" in self.refuse:
            raise self.refuse["put"]
        self.written.append(name)
        tag = self._bucket.put(name, data, expect)
        while self.after_put:
            self.after_put.pop()()
        return tag

    def remove(self, name: str) -> bool:
        return self._bucket.remove(name)

    def things(self, prefix: str = "") -> Iterator[Thing]:
        return self._bucket.things(prefix)

    def tidy(self) -> None:
        self._bucket.tidy()

    def stray(self) -> Iterator[tuple[str, str]]:
        return self._bucket.stray()


class Many:
    """A store of 50 snapshots, and what is asked of its bucket."""

    def __init__(self, place: Place, way: Way) -> None:
        self.bucket = Watched(place.bucket)
        self.key = None if way == "plain" else KEY
        self.layout: Literal["gtb", "hitherto"] = "gtb" if way == "gtb" else "hitherto"
        self.store = SnapshotStore(self.bucket, self.key, layout=self.layout)
        self.made = [some(metadata=f"of {n}") for n in range(50)]
        for snapshot in self.made:
            self.store.save(snapshot)
        self.bucket.written.clear()

    def listed(self) -> dict[str, str]:
        self.bucket.read.clear()
        return {summary.id: summary.revision for summary in self.store.list()}

    @property
    def expected(self) -> dict[str, str]:
        return {snapshot.id: snapshot.revision for snapshot in self.made}


@pytest.fixture
def many(way: Way, tmp_path: Path) -> Many:
    return Many(Place("memory", way, tmp_path), way)


def test_a_second_listing_reads_the_catalog_alone(many: Many) -> None:
    assert many.listed() == many.expected
    assert len(many.bucket.read) == 51
    assert many.bucket.written == [NAME]
    assert many.listed() == many.expected
    assert many.bucket.read == [NAME]
    assert many.bucket.written == [NAME]


def test_what_changed_since_is_read_again(many: Many) -> None:
    many.listed()
    changed = many.made[7] = msgspec.structs.replace(many.made[7], model="another")
    added = some()
    many.made.append(added)
    many.store.save(changed)
    many.store.save(added)
    name = many.store._layouts[0].name_of(many.made[0].id)
    many.bucket.remove(name)  # by another program, which knows no catalog
    del many.made[0]
    many.bucket.written.clear()
    assert many.listed() == many.expected
    assert len(many.bucket.read) == 3
    assert many.bucket.written == []  # three are too few to write it again


def test_a_catalog_that_believed_without_tags_would_lie(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    many.listed()
    many.made[7] = msgspec.structs.replace(many.made[7], model="another")
    many.store.save(many.made[7])
    read = Catalog.read

    def trusting(catalog: Catalog) -> tuple[dict[str, Entry], str | None]:
        tags = {thing.name: thing.tag for thing in many.bucket.things()}
        entries, tag = read(catalog)
        return {name: msgspec.structs.replace(entry, tag=tags[name]) for name, entry in entries.items()}, tag

    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "read", trusting)
        assert many.listed() != many.expected
    assert many.listed() == many.expected


def test_a_catalog_that_cannot_be_used_is_made_again(many: Many, way: Way) -> None:
    many.listed()
    content = many.bucket.get(NAME, 1 << 20)
    assert content is not None
    good = content.data
    elsewhere = FileStore("y", OTHER, fs=MemoryFiles())
    for n in range(40):
        elsewhere.save(some(n=str(n)))
    elsewhere.list()
    foreign = elsewhere._bucket.get(NAME, 1 << 20)
    assert foreign is not None
    flipped = bytes((*good[:-1], good[-1] ^ 1))
    newer = good.replace(b"summaries 1", b"summaries 2") if way == "plain" else good[:8] + b"\x02" + good[9:]
    said = b"\x01" + (1 << 60).to_bytes(8, "big")  # more than there is memory
    bombs = b"hitherto summaries 1\n" + hashlib.sha256(said).digest() + said
    for bad in (b"", b"garbage", good[:100], good + b"x", foreign.data, flipped, newer, bombs, b"\x00" * 5000):
        many.bucket.put(NAME, bad)
        many.bucket.written.clear()
        assert many.listed() == many.expected
        assert len(many.bucket.read) == 51, bad[:20]
        assert many.bucket.written == [NAME]
        assert many.listed() == many.expected
        assert many.bucket.read == [NAME]


@ways("gtb", "hitherto")
def test_a_plain_catalog_in_a_sealed_store_is_not_believed(many: Many) -> None:
    many.listed()
    lies = [
        msgspec.structs.replace(entry, summary=msgspec.structs.replace(entry.summary, provider="lies"))
        for entry in many.store.catalog.read()[0].values()
    ]
    Catalog(many.bucket, None)._write(lies, next(t.tag for t in many.bucket.things() if t.name == NAME))
    assert Catalog(many.bucket, None).read()[0]  # the control: it is one
    assert {summary.provider for summary in many.store.list()} == {"claude"}


def test_a_place_that_cannot_be_written_to_is_listed_all_the_same(many: Many, caplog: pytest.LogCaptureFixture) -> None:
    many.bucket.refuse["put"] = Denied("no")
    with caplog.at_level(logging.DEBUG, logger="hitherto"):
        assert many.listed() == many.expected
    assert any("catalog" in record.getMessage() for record in caplog.records)
    assert not many.bucket.written
    many.bucket.refuse[NAME] = Denied("no")
    assert many.listed() == many.expected


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_only_be_read_is_listed(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "x")
    for _ in range(40):
        store.save(some())
    (tmp_path / "x").chmod(0o500)
    try:
        assert len(store.list()) == 40
    finally:
        (tmp_path / "x").chmod(0o700)


def summaries_kept(many: Many) -> set[str]:
    return {entry.summary.id for entry in many.store.catalog.read()[0].values()}


def test_a_deleted_snapshot_leaves_the_catalog_at_once(many: Many) -> None:
    many.listed()
    gone = many.made.pop()
    assert gone.id in summaries_kept(many)
    many.store.delete(gone.id)
    assert summaries_kept(many) == many.expected.keys()
    assert many.listed() == many.expected
    assert many.bucket.read == [NAME]
    assert set(many.store.prune(keep=0, metadata={"metadata": "of 3"})) == {many.made.pop(3).id}
    assert summaries_kept(many) == many.expected.keys()


def test_a_catalog_that_cannot_be_read_goes_with_what_it_may_name(many: Many) -> None:
    many.listed()
    many.bucket.put(NAME, b"damaged, and it may name anything")
    many.store.delete(many.made.pop().id)
    assert NAME not in {thing.name for thing in many.bucket.things()}


def test_a_listing_that_is_under_way_does_not_put_back_what_is_deleted(many: Many) -> None:
    """It has seen the snapshot, and writes the catalog after it is gone."""
    gone = many.made.pop()
    many.bucket.before_put.append(lambda: many.store.delete(gone.id))
    many.listed()
    assert many.bucket.written
    assert gone.id not in summaries_kept(many)
    assert summaries_kept(many) == many.expected.keys()


def test_a_summary_left_by_a_killed_delete_goes_when_it_is_deleted_again(many: Many) -> None:
    many.listed()
    gone = many.made.pop()
    many.bucket.remove(many.store._layouts[0].name_of(gone.id))
    assert gone.id in summaries_kept(many)
    with pytest.raises(NotFound):
        many.store.delete(gone.id)
    assert gone.id not in summaries_kept(many)


def test_a_delete_that_cannot_reach_the_catalog_says_so(many: Many) -> None:
    many.listed()
    gone = many.made.pop()
    many.bucket.refuse[NAME] = Unavailable("no answer")
    with pytest.raises(Unavailable):
        many.store.delete(gone.id)
    assert many.listed() == many.expected  # a listing does without
    del many.bucket.refuse[NAME]
    assert gone.id in summaries_kept(many)
    with pytest.raises(NotFound):
        many.store.delete(gone.id)
    assert gone.id not in summaries_kept(many)


def test_a_link_in_the_place_of_the_catalog_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    store = FileStore(tmp_path / "x")
    made = [some() for _ in range(40)]
    for snapshot in made:
        store.save(snapshot)
    (tmp_path / "x" / NAME).symlink_to(target)
    assert len(store.list()) == 40
    store.delete(made[0].id)
    assert len(store.list()) == 39
    assert target.read_text() == "mine"


def test_catalogs_are_written_by_many_at_once(place: Place) -> None:
    for _ in range(40):
        place.open().save(some())
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: len(place.open().list()), range(12)))
    assert found == [40] * 12


@ways("gtb", "hitherto")
def test_a_plain_catalog_does_not_outlive_the_sealing_of_its_snapshots(place: Place) -> None:
    plain = place.open(way="plain")
    made = [some(note="sesame") for _ in range(40)]
    for snapshot in made:
        plain.save(snapshot)
    plain.list()
    content = place.bucket.get(NAME, 1 << 20)
    assert content is not None  # the control: there is one, and it can be read by anybody
    assert Catalog(place.bucket, None).read()[0]
    sealed = place.open()
    for snapshot in made[:3]:
        sealed.save(plain.load(snapshot.id))
    for snapshot in made[3:]:
        plain._bucket.remove(f"{snapshot.id}.json")
    assert len(sealed.list()) == 3
    assert not Catalog(place.bucket, None).read()[0]
    assert len(sealed.catalog.read()[0]) == 3


# -- what is loaded with it


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = "{'cryptography', 'zstandard', 'obstore'}"
    program = f"import sys, hitherto.snapshots; sys.exit(', '.join({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.stderr.strip() == ""


# -- places that fail


def test_a_place_that_does_not_answer_is_an_error_and_not_an_unreadable_snapshot(many: Many) -> None:
    many.bucket.refuse[many.store._layouts[0].name_of(many.made[3].id)] = Unavailable("no answer")
    with pytest.raises(Unavailable):
        many.store.list()


def test_a_snapshot_that_is_denied_is_counted(many: Many) -> None:
    denied = many.made.pop()
    many.bucket.refuse[many.store._layouts[0].name_of(denied.id)] = Denied("permission denied")
    listing = many.store.list()
    assert (len(listing), len(listing.unreadable)) == (49, 1)
    assert "denied" in listing.unreadable[0].reason
    with pytest.raises(Denied):
        many.store.load(denied.id)


def test_a_full_disk_leaves_what_was_there(many: Many) -> None:
    first = many.made[0]
    many.bucket.refuse["put"] = StorageFull("no space")
    with pytest.raises(StorageFull):
        many.store.save(msgspec.structs.replace(first, model="another"))
    del many.bucket.refuse["put"]
    assert many.store.load(first.id) == first


# -- lists are quick


def test_ten_thousand_are_listed_without_reading_them(tmp_path: Path) -> None:
    """One small thing is read; the figure in the benchmarks is for machines that do nothing else."""
    bucket = Watched(MemoryFiles().folder(str(tmp_path)))
    store = SnapshotStore(bucket, KEY)
    made = some(conversation="c" * 36)
    summary = store._layouts[0]
    summary.write(made)
    (listed,) = store.list()
    content = bucket.get(summary.name_of(made.id), 1 << 20)
    assert content is not None
    entries = []
    for _ in range(10_000):
        one = msgspec.structs.replace(listed, id=str(uuid.uuid4()))
        name = summary.name_of(one.id)
        entries.append(Entry(name, bucket.put(name, content.data), 1, one))
    store.catalog._write(entries, None)
    bucket.read.clear()
    assert len(store.list()) == 10_001
    assert bucket.read == [NAME, summary.name_of(made.id)]
