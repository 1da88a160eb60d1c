"""`hitherto erasures`, and the replay by `restore` and `copy`, in real processes.

Requirements: K2.
"""

import json

import pytest

from hitherto import Message

from ..support.command import World


@pytest.fixture
def gone(world: World) -> str:
    """A store of two conversations with a backup, and a file of the ledger after the purge of one of them."""
    with world.store(maintenance=False) as store:
        talk, stays = store.start(title="gone"), store.start(title="stays")
        for one in (talk, stays):
            one.append(Message.user("zanzibarquux"))
        store.backup(world.here / "b.db")
    assert world.command("purge", talk.id, "--yes").returncode == 0
    assert world.command("erasures", "keep", "led").stderr == "led: 1 entry\n"
    return talk.id


def titles(world: World, *more: str) -> set[str]:
    done = world.command("list", "--json", *more)
    return {json.loads(line)["title"] for line in done.stdout.splitlines()}


def test_a_restore_asks_the_ledger_of_the_store_that_it_replaces(world: World, gone: str) -> None:
    """K2."""
    done = world.command("restore", "b.db", "--replace", "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["erased_again"]) == (0, [gone])
    assert "purged again: 1 conversation" in done.stderr
    assert titles(world) == {"stays"}
    assert world.command("verify").returncode == 0


def test_even_purged_brings_it_back_and_says_so(world: World, gone: str) -> None:
    done = world.command("restore", "b.db", "--replace", "--yes", "--even-purged")
    assert "warning: no erasure ledger was asked, and what was purged since the backup is back" in done.stderr
    assert titles(world) == {"gone", "stays"}
    done = world.command("erasures", "replay", "led", "--yes")
    assert (done.returncode, done.stdout) == (0, f"{gone}\n")
    assert titles(world) == {"stays"}


def test_a_store_whose_ledger_cannot_be_read_is_not_replaced_without_a_file(world: World, gone: str) -> None:
    for name in world.place.parent.glob(f"{world.place.name}*"):
        name.write_bytes(b"")
    world.place.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    before = world.place.read_bytes()
    done = world.command("restore", "b.db", "--replace", "--yes")
    assert done.returncode != 0
    assert "the erasure ledger" in done.stderr
    assert "--erasures FILE, or --even-purged" in done.stderr
    assert world.place.read_bytes() == before
    assert world.command("restore", "b.db", "--replace", "--yes", "--erasures", "led").returncode == 0
    assert titles(world) == {"stays"}


def test_a_new_store_from_a_backup_asks_a_file_or_says_that_it_asked_nobody(world: World, gone: str) -> None:
    done = world.command("restore", "b.db", "--store", "c.db")
    assert "what was purged after the backup is back" in done.stderr
    assert titles(world, "--store", "c.db") == {"gone", "stays"}  # the control
    assert world.command("restore", "b.db", "--store", "d.db", "--erasures", "led").returncode == 0
    assert titles(world, "--store", "d.db") == {"stays"}


def test_a_ledger_that_was_edited_restores_and_copies_nothing(world: World, gone: str) -> None:
    file = world.here / "led"
    file.write_text(file.read_text().replace("user-requested", "workspace-reset"))
    for words in (("restore", "b.db", "--store", "e.db"), ("copy", "b.db", "e.db")):
        done = world.command(*words, "--erasures", "led")
        assert (done.returncode, "led was cut short or edited" in done.stderr) == (7, True)
        assert not [name for name in world.here.iterdir() if name.name == "e.db" and titles(world, "--store", "e.db")]


def test_a_copy_of_a_backup_leaves_out_what_was_purged_since(world: World, gone: str) -> None:
    done = world.command("copy", "b.db", "f.db", "--erasures", "led", "--json")
    assert (done.returncode, json.loads(done.stdout)["erased_again"]) == (0, [gone])
    assert titles(world, "--store", "f.db") == {"stays"}


def test_a_copy_by_messages_leaves_out_what_was_purged_in_the_target(world: World, gone: str) -> None:
    done = world.command("copy", "b.db", str(world.place))
    assert (done.returncode, "1 conversation purged in DST stay away" in done.stderr) == (0, True)
    assert titles(world) == {"stays"}
    assert world.command("copy", "b.db", str(world.place), "--even-purged").returncode == 0
    assert titles(world) == {"gone", "stays"}
