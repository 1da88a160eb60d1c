"""`hitherto key`: keys are made, looked at and changed, and never printed.

Requirements: C16, and STYLE on the command line.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import hitherto
from hitherto import Key, Message
from hitherto.cli._key import _change_keys
from hitherto.opening import key_id_of

from ..support.command import COMMAND, Open, World

# Begins a rotation (or a sealing, or an unsealing) and is killed before the first conversation is brought up to date.
KILLED = """
import os, signal, sys
import hitherto
from hitherto import Key
from hitherto._sealing import rotation
path, how, old, new = sys.argv[1:]
rotation.go_on = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
store = hitherto.open(path, key=Key.from_file(old) if old else None, maintenance=False)
store.unseal() if how == "unseal" else getattr(store, how)(Key.from_file(new))
"""


class Keys:
    """Two keys in files, and their secrets, which must never be printed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.paths = [world.home / "old", world.home / "new"]
        for path in self.paths:
            Key.generate().to_file(path)
        self.ids = [Key.from_file(path).id for path in self.paths]
        self.old, self.new = (f"file:{path}" for path in self.paths)

    def run(self, *given: str, code: int = 0, **env: str) -> tuple[str, str]:
        """`hitherto key …`: what it writes and says, which has nothing of a key in it."""
        done = self.world.command("key", *given, **env)
        assert done.returncode == code, done.stderr
        for path in self.paths:
            assert path.read_text().strip().partition(":")[2] not in done.stdout + done.stderr
        return done.stdout, done.stderr

    def kill(self, how: str, old: Path | None = None, new: Path | None = None) -> None:
        given = [how, str(old or ""), str(new or "")]
        killed = subprocess.run([sys.executable, "-c", KILLED, self.world.place, *given], check=False)
        assert killed.returncode == -signal.SIGKILL


@pytest.fixture
def keys(world: World) -> Keys:
    return Keys(world)


def fill(world: World, path: Path | None) -> None:
    """A store with two conversations, sealed or plain."""
    with world.store(key=None if path is None else Key.from_file(path)) as store:
        for title in ("one", "two"):
            store.start(title=title).append(Message.user("What was said."))


def opens(world: World, path: Path | None) -> bool:
    """Does this key open the store, with all messages?"""
    try:
        with world.store(key=None if path is None else Key.from_file(path)) as store:
            texts = [message.text for message in store.messages()]
            assert texts == ["What was said."] * 2
            return store.verify().ok
    except (hitherto.KeyUnavailable, hitherto.NotSealed):
        return False


# -- new


def test_a_new_key_is_kept_in_a_file_for_us_alone_and_only_its_id_is_shown(world: World) -> None:
    path = world.home / "key"
    done = world.command("key", "new", "file:~/key")
    assert done.returncode == 0
    assert done.stdout == f"{Key.from_file(path).id}\n"
    assert "keep a copy" in done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().strip().partition(":")[2] not in done.stdout + done.stderr


def test_a_key_is_never_written_over_something(world: World) -> None:
    path = world.home / "key"
    path.write_text("precious")
    done = world.command("key", "new", f"file:{path}")
    assert done.returncode == 1
    assert "already exists" in done.stderr
    assert path.read_text() == "precious"


@pytest.mark.parametrize("source", ["command:pass show x", "credential:x", "file:", "keyring", "hitherto-key-1:AbC"])
def test_what_cannot_keep_a_key_is_a_usage_error_that_does_not_repeat_it(world: World, source: str) -> None:
    done = world.command("key", "new", source)
    assert done.returncode == 2
    assert "file:PATH" in done.stderr
    assert "AbC" not in done.stderr


def test_a_keyring_that_cannot_be_trusted_gets_no_key(world: World) -> None:
    pytest.importorskip("keyring")
    done = world.command("key", "new", "keyring:chats", PYTHON_KEYRING_BACKEND="keyring.backends.null.Keyring")
    assert done.returncode == 6
    assert "keyring.backends.null" in done.stderr
    assert done.stdout == ""


# -- status


def test_the_status_of_a_plain_store(keys: Keys) -> None:
    fill(keys.world, None)
    assert keys.run("status")[0].startswith("plain:")
    before = keys.world.traces()
    said = json.loads(keys.run("status", "--json")[0])
    assert said == {
        "sealed": False, "key_id": None, "source": None, "opens": True, "unfinished": False, "problem": None,
    }  # fmt: skip
    assert json.loads(keys.run("status", "--json", "--key", keys.old, code=6)[0])["opens"] is False
    assert keys.world.traces() == before


def test_the_status_of_a_sealed_store_says_which_key_and_whether_it_opens(keys: Keys) -> None:
    fill(keys.world, keys.paths[0])
    before = keys.world.traces()
    said, _ = keys.run("status", HITHERTO_KEY=keys.old)
    assert said.splitlines() == [
        f"sealed with key {keys.ids[0]}",
        f"the key comes from {keys.old}",
        "it opens the store",
    ]
    missing = json.loads(keys.run("status", "--json", code=6)[0])
    assert (missing["sealed"], missing["key_id"], missing["opens"]) == (True, keys.ids[0], False)
    other = json.loads(keys.run("status", "--json", "--key", keys.new, code=6)[0])
    assert keys.ids[1] in other["problem"]
    gone = json.loads(keys.run("status", "--json", "--key", "file:/nowhere", code=6)[0])
    assert (gone["key_id"], gone["opens"]) == (keys.ids[0], False)
    assert keys.world.traces() == before


def test_the_status_of_nothing_is_an_error_and_makes_nothing(keys: Keys) -> None:
    assert "there is no store" in keys.run("status", code=1)[1]
    assert not keys.world.place.exists()


# -- rotate, seal, unseal


@pytest.mark.parametrize("more", [(), ("--reencrypt",)])
def test_after_a_rotation_only_the_new_key_opens_the_store(keys: Keys, more: tuple[str, ...]) -> None:
    fill(keys.world, keys.paths[0])
    said, talk = keys.run("rotate", "--to", keys.new, "--yes", *more, HITHERTO_KEY=keys.old)
    assert said == ""
    assert f"only key {keys.ids[1]} opens the store" in talk
    assert f"HITHERTO_KEY says {keys.old}: change that to {keys.new}" in talk
    assert opens(keys.world, keys.paths[1])
    assert not opens(keys.world, keys.paths[0])


def test_a_rotation_needs_the_old_key_a_new_one_that_is_there_and_a_yes(keys: Keys) -> None:
    fill(keys.world, keys.paths[0])
    before = keys.world.place.read_bytes()
    keys.run("rotate", "--to", keys.new, "--yes", code=6)
    keys.run("rotate", "--to", "file:/nowhere", "--key", keys.old, "--yes", code=6)
    assert "--yes" in keys.run("rotate", "--to", keys.new, "--key", keys.old, code=2)[1]
    keys.run("rotate", "--key", keys.old, "--yes", code=2)
    assert keys.world.place.read_bytes() == before
    assert opens(keys.world, keys.paths[0])


def test_what_was_killed_is_said_and_the_same_command_finishes_it(keys: Keys) -> None:
    fill(keys.world, keys.paths[0])
    keys.kill("rotate", *keys.paths)
    status = json.loads(keys.run("status", "--json", "--key", keys.new)[0])
    assert status["unfinished"] is True
    assert "unfinished" in keys.run("status", "--key", keys.new)[0]
    keys.run("rotate", "--to", keys.new, "--yes", "--key", keys.old)
    assert json.loads(keys.run("status", "--json", "--key", keys.new)[0])["unfinished"] is False
    assert opens(keys.world, keys.paths[1])


def test_a_sealing_that_was_killed_is_finished_by_the_same_command(keys: Keys) -> None:
    fill(keys.world, None)
    keys.kill("seal", None, keys.paths[1])
    keys.run("seal", "--to", keys.new, "--yes")
    assert opens(keys.world, keys.paths[1])
    assert b"What was said." not in keys.world.place.read_bytes()


def test_a_plain_store_is_sealed_and_unsealed(keys: Keys) -> None:
    fill(keys.world, None)
    assert b"What was said." in keys.world.place.read_bytes()  # the control
    assert f"sealed with key {keys.ids[0]}: 2" in keys.run("seal", "--to", keys.old, code=2)[1]
    _, talk = keys.run("seal", "--to", keys.old, "--yes", HITHERTO_KEY=keys.old)
    assert "says" not in talk  # the configuration is right already
    assert opens(keys.world, keys.paths[0])
    assert b"What was said." not in keys.world.place.read_bytes()
    assert "not with" in keys.run("seal", "--to", keys.new, "--yes", code=6)[1]
    keys.run("unseal", "--key", keys.old, code=2)
    _, talk = keys.run("unseal", "--yes", HITHERTO_KEY=keys.old)
    assert f"HITHERTO_KEY says {keys.old}: remove that" in talk
    assert opens(keys.world, None)
    keys.run("unseal", "--yes", code=6)
    keys.run("rotate", "--to", keys.new, "--yes", code=6)


def test_ctrl_c_says_what_to_do_and_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    def stop(_: object) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _change_keys("rotating", stop)
    assert "the same command again finishes it" in capsys.readouterr().err


def test_bytes_that_a_reader_keeps_are_said(keys: Keys) -> None:
    fill(keys.world, None)
    with keys.world.store() as store:
        reader = store.backend._pool.take()  # type: ignore[attr-defined]  # a reader that stays
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        assert "old bytes are still in the file" in keys.run("seal", "--to", keys.new, "--yes")[1]
        reader.execute("ROLLBACK")
        store.backend._pool.give_back(reader)  # type: ignore[attr-defined]


def test_what_is_damaged_still_needs_the_old_key_and_the_exit_code_says_so(keys: Keys) -> None:
    import apsw  # only here

    fill(keys.world, keys.paths[0])
    connection = apsw.Connection(str(keys.world.place))
    connection.execute("UPDATE conversation SET proof = zeroblob(length(proof)) WHERE kind = 'chat'")
    connection.close()
    _, talk = keys.run("rotate", "--to", keys.new, "--reencrypt", "--yes", "--key", keys.old, code=7)
    assert "not complete" in talk
    assert "hitherto verify" in talk


def test_on_a_terminal_somebody_is_asked_and_no_is_no(keys: Keys, terminal: Open) -> None:
    fill(keys.world, None)
    for answer, code in (("n\n", 130), ("y\n", 0)):
        shown = terminal(command=[*COMMAND, "key", "seal", "--to", keys.new])
        shown.read("[y/N]")
        shown.press(answer)
        assert shown.end() == code
        assert (key_id_of(keys.world.place, "default") == keys.ids[1]) == (code == 0)
    assert opens(keys.world, keys.paths[1])
