"""Items in a sealed store (E2): bound to their place, kept by every change of keys, missed by `verify` if they go."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import hitherto
from hitherto import Key, Message
from hitherto._engine.items import PREFIX
from hitherto.errors import Damaged
from hitherto.store import Store

OLD, NEW = Key(bytes(range(1, 33))), Key(bytes(range(32)))


def tamper(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def fill(path: Path) -> None:
    with hitherto.open(path, key=OLD) as store:
        talk = store.ensure("t")
        talk.append(Message.user("hi"))
        talk.items["a"], talk.items["b"] = b"value of a", b"value of b"


def key_of(name: str) -> str:
    return f"x'{(PREFIX + name.encode()).hex()}'"


SWAP = (
    f"UPDATE item SET key = x'00' WHERE key = {key_of('a')}",
    f"UPDATE item SET key = {key_of('a')} WHERE key = {key_of('b')}",
    f"UPDATE item SET key = {key_of('b')} WHERE key = x'00'",
)
AGE = (f"UPDATE item SET revision = revision + 1 WHERE key = {key_of('a')}",)
BELOW_ZERO = (f"UPDATE item SET revision = -1 WHERE key = {key_of('a')}",)
FLIP = (f"UPDATE item SET body = zeroblob(length(body)) WHERE key = {key_of('a')}",)


@pytest.mark.parametrize(
    "statements", [SWAP, AGE, BELOW_ZERO, FLIP], ids=["swapped", "aged", "below zero", "overwritten"]
)
def test_a_value_opens_in_its_own_place_only(tmp_path: Path, statements: tuple[str, ...]) -> None:
    path = tmp_path / "s.db"
    fill(path)
    tamper(path, *statements)
    with hitherto.open(path, key=OLD) as store:
        talk = store.ensure("t")
        with pytest.raises(Damaged):
            talk.items.get("a")
        with pytest.raises(Damaged):
            list(talk.items.scan())
        assert [m.text for m in talk.thread()] == ["hi"]  # one damaged item takes nothing else along
        assert not store.verify().ok


def test_verify_misses_an_item_that_was_removed_or_put_back(tmp_path: Path) -> None:
    path, before = tmp_path / "s.db", tmp_path / "before.db"
    fill(path)
    with hitherto.open(path, key=OLD) as store:
        store.backup(before)
        store.ensure("t").items["a"] = b"newer of a"  # of the same size
        assert store.verify().ok
    back = f"INSERT OR REPLACE INTO item SELECT * FROM before.item WHERE key = {key_of('a')}"
    tamper(path, f"ATTACH '{before}' AS before", back)
    with hitherto.open(path, key=OLD) as store:
        assert not store.verify().ok
    tamper(path, f"DELETE FROM item WHERE key = {key_of('a')}")
    with hitherto.open(path, key=OLD) as store:
        assert not store.verify().ok


def rotate(store: Store) -> None:
    store.rotate(NEW)


def reencrypt(store: Store) -> None:
    store.rotate(NEW, reencrypt=True)


def unseal_and_seal(store: Store) -> None:
    store.unseal()
    assert store.verify().ok
    assert store.ensure("t").items["a"] == b"value of a"
    store.seal(NEW)


@pytest.mark.parametrize("change", [rotate, reencrypt, unseal_and_seal])
def test_items_come_through_every_change_of_keys(tmp_path: Path, change: Callable[[Store], None]) -> None:
    path = tmp_path / "s.db"
    fill(path)
    with hitherto.open(path, key=OLD) as store:
        store.items["theme"] = b"dark"
        held = store.ensure("t")
        seen = held.items.get("a")
        change(store)
        assert seen is not None
        assert held.items.get("a") == seen
        held.items.put("a", b"newer", expect=seen.revision)
        assert store.verify().ok
    with hitherto.open(path, key=NEW) as store:
        items = store.ensure("t").items
        assert [(item.name, item.value) for item in items.scan()] == [("a", b"newer"), ("b", b"value of b")]
        assert store.items["theme"] == b"dark"
        assert store.verify().ok


def test_no_value_is_readable_in_the_files(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    assert not any(b"value of" in file.read_bytes() for file in tmp_path.iterdir())
