"""Conversations by their metadata: equality lookups, in plain and in sealed stores, also in stores of a time when
metadata had no tags. What listings show on every backend is in the conformance suite.

Requirements: D6, D16.
"""

import asyncio
import gzip
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto._engine import filters
from hitherto._engine.engine import Engine
from hitherto._erasure import maintenance
from hitherto._sealing import reencryption
from hitherto._sealing.codec import next_row
from hitherto.backend import Change, Tag, Where
from hitherto.backends.sqlite import SqliteBackend, reading
from hitherto.copying import copy_store
from hitherto.ids import parse_conversation_id
from tests.support.parts import background_of

from ..support.command import World

KEY = bytes(range(32))  # of the sealed one
DATA = Path(__file__).parents[1] / "data"


def titles(store: Store, **metadata: str) -> list[str]:
    page = store.conversations(metadata=metadata, limit=100, total=True)
    assert page.total == len(page)
    return [info.title for info in page]


def backend_of(store: Store) -> SqliteBackend:
    assert isinstance(store.backend, SqliteBackend)
    return store.backend


# -- stores of before


@pytest.fixture(params=["plain", "sealed"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    """Opens a store that was made when metadata had no tags."""
    sealed = request.param == "sealed"
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((DATA / f"untagged{'-sealed' * sealed}.db.gz").read_bytes()))
    return lambda **how: hitherto.open(path, key=Key(KEY) if sealed else None, **how)


def look_at_all(store: Store) -> None:
    assert titles(store, owner="ada") == ["t5", "t3", "t1"]
    assert titles(store, owner="bob") == ["t6", "t4", "t2"]
    assert titles(store, owner="ada", team="red") == ["t3", "t1"]
    assert titles(store, owner="ada", team="green") == []
    assert [info.title for info in store.conversations(metadata={"owner": "ada"}, project="/p")] == ["t1"]
    first = store.conversations(metadata={"team": "red"}, limit=2)
    second = store.conversations(metadata={"team": "red"}, limit=2, cursor=first.next_cursor)
    assert [info.title for info in (*first, *second)] == ["t3", "t2", "t1"]
    assert second.next_cursor is None


def count_pairs(store: Store) -> int:
    """How many tags for metadata there are, as far as these pairs go."""
    pairs = [(name, value) for name, values in PAIRS.items() for value in values]
    fields = [filters._metadata_field(*pair) for pair in pairs]
    return sum(len(store.backend.tagged(tag)) for field in fields for tag in store.engine.codec.tags(*field))


PAIRS = {"owner": ("ada", "bob"), "team": ("red", "blue")}


def test_an_older_store_is_listed_by_metadata_before_it_has_tags_for_it(old: Callable[..., Store]) -> None:
    with old(maintenance=False) as store:
        look_at_all(store)
        assert count_pairs(store) == 0  # reading writes nothing
        assert store.verify().ok
        store.start(title="new", metadata={"owner": "ada"})
        store.conversation(store.conversations(metadata={"team": "blue"}).items[0].id).describe({"owner": "ada"})
        assert titles(store, owner="ada") == ["new", "t6", "t5", "t3", "t1"]
        assert store.verify().ok


def test_maintenance_tags_an_older_store_once(old: Callable[..., Store]) -> None:
    with old(maintenance=False) as store:
        before = {info.id: info._row for info in store.conversations(limit=100)}
        did = store.maintain()
        assert (did.described, did.complete) == (7, True)
        assert count_pairs(store) == 12
        look_at_all(store)
        assert store.verify().ok
        for info in store.conversations(limit=100):  # nobody who compares versions notices it
            row = before[info.id]
            assert (info._row.version, info._row.active_at, info._row.held) == (row.version, row.active_at, row.held)
        assert store.maintain().described == 0
    with old(maintenance=False) as store:
        assert store.engine.workspace.meta.has_metadata_tags
        look_at_all(store)


def test_the_tags_are_what_finds_them_then(old: Callable[..., Store]) -> None:
    """The control: without its tag a conversation is not found any more, and `verify` says so."""
    with old(maintenance=False) as store:
        store.maintain()
        (victim,) = [info for info in store.conversations(limit=100) if info.title == "t3"]
        tag = Tag(store.engine.codec.tag(*filters._metadata_field("owner", "ada")))
        store.engine.change(
            parse_conversation_id(victim.id),
            lambda row: Change(row.id, row.token, next_row(store.engine.codec.envelope(row), row), untag=(tag,)),
        )
        assert titles(store, owner="ada") == ["t5", "t1"]
        assert [problem.conversation for problem in store.verify().problems] == [victim.id]


def test_what_is_interrupted_is_gone_on_with(old: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_DESCRIBED", 2)
    with old(maintenance=False) as store:
        did = store.maintain(0)
        assert (did.described, did.complete) == (2, False)
        assert not store.engine.workspace.meta.has_metadata_tags
        look_at_all(store)
    with old(maintenance=False) as store:  # another process begins again, and what is there already is left alone
        seen = []
        for _ in range(4):
            assert not store.engine.workspace.meta.has_metadata_tags
            seen.append(store.maintain(0).described)
            look_at_all(store)
        assert seen == [2, 2, 2, 1]
        assert store.engine.workspace.meta.has_metadata_tags
        look_at_all(store)
        assert store.verify().ok


def is_tagged(store: Store) -> bool:
    return store.engine.workspace.meta.has_metadata_tags


def test_asking_for_metadata_has_the_tags_made(old: Callable[..., Store]) -> None:
    with old(maintenance=False) as store:
        assert store.scrub()  # so that maintenance has no other reason to begin
    with old() as store:
        assert not is_tagged(store)
        look_at_all(store)
        thread = background_of(store)._thread
        assert thread is not None
        for _ in range(100):
            if is_tagged(store):
                break
            thread.join(0.1)
        assert is_tagged(store)
        look_at_all(store)


def test_those_who_write_meanwhile_are_found(old: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """A description that changes between being read and being tagged: the tags of before would stay."""
    with old(maintenance=False) as store, old(maintenance=False) as other:
        tag_some = maintenance._tag_some

        def changed_meanwhile(engine: Engine, rows: Any) -> None:
            for info in other.conversations(limit=100):
                if info.title == "t3":
                    other.conversation(info.id).describe({"owner": "eve"})
                if info.title == "t1":
                    other.purge(info, reason="user-requested")
            tag_some(engine, rows)

        monkeypatch.setattr(maintenance, "_tag_some", changed_meanwhile)
        store.maintain()
        assert (titles(store, owner="ada"), titles(store, owner="eve")) == (["t5"], ["t3"])
        assert store.verify().ok


@pytest.mark.parametrize("job", ["seal", "unseal", "rotate", "reencrypt"])
def test_an_older_store_gets_other_keys(tmp_path: Path, job: str) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((DATA / f"untagged{'-sealed' * (job != 'seal')}.db.gz").read_bytes()))
    with hitherto.open(path, key=None if job == "seal" else Key(KEY), maintenance=False) as store:
        if job == "unseal":
            assert store.unseal().complete
        elif job == "seal":
            assert store.seal(Key.generate()).complete
        else:
            assert store.rotate(Key.generate(), reencrypt=job == "reencrypt").complete
        look_at_all(store)
        assert store.verify().ok
        store.maintain()
        look_at_all(store)
        assert store.verify().ok
        assert count_pairs(store) == 12


def test_a_copy_of_an_older_store_is_listed_by_metadata(old: Callable[..., Store], tmp_path: Path) -> None:
    with old(maintenance=False) as store:
        key = None if store.key_id is None else Key(KEY)
        copy_store(store, tmp_path / "copy.db")
    with hitherto.open(tmp_path / "copy.db", key=key, maintenance=False) as copy:
        assert not copy.engine.workspace.meta.has_metadata_tags
        look_at_all(copy)
        copy.maintain()
        look_at_all(copy)
        copy_store(copy, tmp_path / "again.db")
    with hitherto.open(tmp_path / "again.db", key=key, maintenance=False) as again:
        assert again.engine.workspace.meta.has_metadata_tags
        assert count_pairs(again) == 12
        look_at_all(again)


# -- how it is found


def asked_of(backend: SqliteBackend, ask: Callable[[], object]) -> list[tuple[str, Any]]:
    asked: list[tuple[str, Any]] = []

    def hear(_: object, sql: str, values: Any) -> bool:
        asked.append((sql, values or ()))
        return True

    with backend._connection() as connection:
        connection.exec_trace = hear
    ask()
    with backend._connection() as connection:
        connection.exec_trace = None
    return [(sql, values) for sql, values in asked if "FROM tag" in sql or "tag f" in sql]


def plans(backend: SqliteBackend, statements: list[tuple[str, Any]]) -> list[list[str]]:
    with backend._connection() as connection:
        return [
            [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)] for sql, values in statements
        ]


@pytest.mark.parametrize("oldest_first", [False, True])
def test_sqlite_goes_through_those_that_have_the_rarest_tag(tmp_path: Path, oldest_first: bool) -> None:
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        for n in range(40):
            store.start(metadata={"common": "yes", "rare": str(n)})
        backend = backend_of(store)
        where = filters.Filter(metadata=(("common", "yes"), ("rare", "7"))).where(store.engine.codec, 0)[0]
        place = backend.page(Where(), None, 1)[0]
        for ask in (
            lambda: backend.page(where, None, 5, oldest_first=oldest_first),
            lambda: backend.page(where, place, 5, oldest_first=oldest_first),
            lambda: backend.count(where),
        ):
            statements = asked_of(backend, ask)
            assert statements
            for plan in plans(backend, statements):
                reads = [step for step in plan if step.startswith(("SCAN", "SEARCH")) and "(subquery" not in step]
                assert reads
                assert all(step.startswith("SEARCH") for step in reads), plan
                assert "tag" not in reads[0] or "workspace=? AND value=?" in reads[0], plan
                assert "conversation_by" not in str(plan), plan
            assert any('"rare"' in str(values[1]) for sql, values in statements if "tag f" in sql)


def test_where_every_tag_is_common_sqlite_looks_at_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would sort all of them for every page."""
    monkeypatch.setattr(reading, "_COMMON", 10)
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        for n in range(40):
            store.start(title=f"t{n}", metadata={"all": "yes", "even": str(n % 2)})
        backend = backend_of(store)
        where = filters.Filter(metadata=(("all", "yes"), ("even", "0"))).where(store.engine.codec, 0)[0]
        pages = [sql for sql, _ in asked_of(backend, lambda: backend.page(where, None, 5)) if "LIMIT" in sql]
        ((plan),) = plans(backend, [(pages[-1], (1, "chat", 1, *where.tags[:1], 1, *where.tags[1:], 0, 5))])
        assert "conversation_by_activity" in plan[0]
        assert not any("TEMP B-TREE" in step for step in plan), plan
        assert titles(store, all="yes", even="0") == [f"t{n}" for n in range(38, -1, -2)]
        first = store.conversations(metadata={"all": "yes", "even": "0"}, limit=15)
        second = store.conversations(metadata={"all": "yes", "even": "0"}, limit=15, cursor=first.next_cursor)
        assert [info.title for info in (*first, *second)] == [f"t{n}" for n in range(38, -1, -2)]


# -- sealed


def test_a_sealed_store_keeps_no_metadata_in_clear(tmp_path: Path) -> None:
    """The control: a plain store does."""
    for key in (Key.generate(), None):
        path = tmp_path / f"{key is None}.db"
        with hitherto.open(path, key=key) as store:
            store.start(metadata={"ownername": "adalovelace"})
            assert len(store.conversations(metadata={"ownername": "adalovelace"})) == 1
        data = b"".join(file.read_bytes() for file in tmp_path.glob(f"{path.name}*"))
        assert (b"adalovelace" in data, b"ownername" in data) == ((key is None,) * 2)


def test_a_tag_that_was_moved_is_not_believed_in_a_sealed_store(tmp_path: Path) -> None:
    """Nothing proves where a tag belongs, so the description is asked."""
    path, key = tmp_path / "store.db", Key.generate()
    with hitherto.open(path, key=key) as store:
        store.start(title="of ada", metadata={"owner": "ada"})
        store.start(title="of bob", metadata={"owner": "bob"})
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT OR IGNORE INTO tag SELECT workspace, value, (SELECT max(place) FROM conversation), message FROM tag"
        )
    db.close()
    with hitherto.open(path, key=key) as store:
        assert len(store.backend.tagged(store.engine.codec.tag(*filters._metadata_field("owner", "ada")))) == 2
        assert titles(store, owner="ada") == ["of ada"]
        assert not store.verify().ok


def test_a_purge_takes_the_tags_along(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with hitherto.open(path) as store:
        talk = store.start(metadata={"owner": "adalovelace"})
        talk.describe({"owner": "charlesbabbage"})
        assert not store.purge(talk, reason="user-requested").scrub_pending
        assert titles(store, owner="charlesbabbage") == []
        data = b"".join(file.read_bytes() for file in tmp_path.glob("store.db*"))
        assert b"charlesbabbage" not in data
        assert b"adalovelace" not in data


def test_metadata_changes_while_the_store_is_re_encrypted(tmp_path: Path) -> None:
    """One store re-encrypts, the other changes what conversations are found by, all the time."""
    path, old, key = tmp_path / "store.db", Key.generate(), Key.generate()
    with hitherto.open(path, key=old, maintenance=False) as store, hitherto.open(path, key=old) as other:
        talks = [store.start(title=f"t{n}", metadata={"owner": "ada", "n": str(n)}, project="/p") for n in range(20)]
        other.engine.workspace.expect(key)
        theirs = [other.conversation(talk.id) for talk in talks]
        failed: list[BaseException] = []
        stop = threading.Event()

        def change() -> None:
            try:
                while not stop.is_set():
                    for n, talk in enumerate(theirs):
                        for owner in ("ada", "bob", "ada"):
                            talk.describe({"owner": owner, "n": str(n)})
                            stop.wait(0.001)
            except BaseException as error:  # noqa: BLE001  # whatever it is, the test fails with it
                failed.append(error)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            assert store.rotate(key, reencrypt=True).complete
        finally:
            stop.set()
            thread.join()
        assert not failed
    with hitherto.open(path, key=key) as store:
        assert store.verify().ok, store.verify().problems
        assert len(titles(store, owner="ada")) == 20
        for n in range(20):
            assert titles(store, owner="ada", n=str(n)) == [f"t{n}"]
        assert titles(store, owner="bob") == []


def test_who_has_not_heard_of_a_rotation_leaves_no_tag_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other store names things by the old key, and would take away the old name of a pair that has a new one."""
    path, old, new = tmp_path / "store.db", Key.generate(), Key.generate()
    with (
        hitherto.open(path, key=old, maintenance=False) as store,
        hitherto.open(path, key=old, maintenance=False) as other,
    ):
        talk = store.start(title="t", metadata={"owner": "ada"})
        theirs = other.conversation(talk.id)
        other.engine.workspace.expect(new)

        class Interrupted(Exception):
            pass

        def interrupt(*_: object, **__: object) -> None:
            raise Interrupted

        with monkeypatch.context() as patch:
            patch.setattr(reencryption.Begin, "run", interrupt)
            with pytest.raises(Interrupted):
                store.rotate(new, reencrypt=True)
        talk.describe({"owner": "eve"})
        theirs.describe({"owner": "carl"})
        assert store.rotate(new, reencrypt=True).complete
        carl = Tag(store.engine.codec.tag(*filters._metadata_field("owner", "carl")))
        assert store.backend.tags(talk.state.id, limit=9) == [carl]
        assert titles(store, owner="carl") == ["t"]
        assert store.verify().ok


# -- where else


def test_the_async_store_filters_too() -> None:
    async def main() -> list[str]:
        async with hitherto.open_async("memory:") as store:
            await store.start(title="of ada", metadata={"owner": "ada"})
            await store.start(title="of bob", metadata={"owner": "bob"})
            return [info.title for info in await store.conversations(metadata={"owner": "bob"})]

    assert asyncio.run(main()) == ["of bob"]


def test_what_is_restored_or_imported_is_found(tmp_path: Path) -> None:
    with hitherto.open("memory:") as store, hitherto.open("memory:") as target:
        talk = store.start(title="one", metadata={"owner": "ada"}, provider="openai", model="m")
        talk.append(Message.user("hi"))
        hitherto.formats.save([talk], tmp_path / "out.jsonl")
        hitherto.formats.load(tmp_path / "out.jsonl", target)
        assert titles(target, owner="ada") == ["one"]
        target.restore(talk.snapshot(metadata={"owner": "ada", "from": "snapshot"}))
        assert len(titles(target, owner="ada")) == 2
        assert target.verify().ok


def test_the_command_line_lists_by_metadata(world: World) -> None:
    with world.store() as store:
        for owner, team in (("ada", "red"), ("ada", "blue"), ("bob", "red")):
            store.start(title=f"{owner} {team}", metadata={"owner": owner, "team": team, "a": "b=c"})
    ran = world.command("list", "--metadata", "owner=ada")
    assert ran.returncode == 0, ran.stderr
    assert [line.split(None, 6)[-1] for line in ran.stdout.splitlines()] == ["ada blue", "ada red"]
    ran = world.command("list", "--metadata", "owner=ada", "--metadata", "team=red")
    assert [line.split(None, 6)[-1] for line in ran.stdout.splitlines()] == ["ada red"]
    assert len(world.command("list", "--metadata", "a=b=c").stdout.splitlines()) == 3
    for wrong in (["owner"], ["owner=ada", "--metadata", "owner=bob"]):
        ran = world.command("conversation", "list", "--metadata", *wrong)
        assert ran.returncode == 2
        assert "--metadata" in ran.stderr
