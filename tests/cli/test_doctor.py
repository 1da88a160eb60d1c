"""`hitherto doctor`: each test makes a real trouble, which is found, explained and not touched.

Requirements: C16, and STYLE on the command line.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest

import hitherto
from hitherto import Key, Message
from hitherto._sealing import rotation
from hitherto.cli import _doctor_checks, _open_files
from hitherto.cli._doctor_checks import Case, Finding, run_check
from hitherto.cli._main import run
from hitherto.cli._store_options import Place

from ..support.command import COMMAND, Open, World

KILLED = """
import hitherto, os, signal, sys
store = hitherto.open(sys.argv[1])
store.start(title="unfinished").append(hitherto.Message.user("kept"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def world(world: World) -> World:
    """A world without a keyring, even if this machine has one."""
    world.env["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"
    return world


@pytest.fixture
def healthy(world: World) -> World:
    """A world with a sound store."""
    with world.store() as store:
        store.start(title="one").append(Message.user("Why?"))
    return world


def look(world: World, *given: str, process: bool = False, **env: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the findings that are not fine. Most runs are in this process, which is faster but must not
    have the store open; some are real commands."""
    arguments = ("doctor", "--json", *given)
    if process:
        done = world.command(*arguments, **env)
        code, said = done.returncode, json.loads(done.stdout)
    else:
        with (
            patch.dict(os.environ, world.env | env, clear=True),
            redirect_stdout(TextIOWrapper(BytesIO(), "utf-8")) as output,
        ):
            code = run(arguments)
            output.seek(0)
            said = json.loads(output.read())
    assert said["ok"] == (code == 0)
    checks = said["checks"]
    assert all(sorted(check) == ["hint", "level", "name", "what"] for check in checks)
    assert len(checks) > 5  # whatever is wrong, the rest is looked at
    return code, [check for check in checks if check["level"] != "ok" and check["name"] != "local model"]


def one(world: World, *given: str, process: bool = False, **env: str) -> tuple[int, str, str, str]:
    """The only finding: exit code, level, check, and its text with the hint."""
    code, wrong = look(world, *given, process=process, **env)
    assert len(wrong) == 1, wrong
    return code, wrong[0]["level"], wrong[0]["name"], f"{wrong[0]['what']} / {wrong[0]['hint']}"


def test_a_healthy_store_has_no_trouble_and_looking_changes_nothing(healthy: World) -> None:
    before = healthy.traces()
    assert look(healthy) == look(healthy, process=True) == (0, [])
    shown = healthy.command("doctor")
    assert shown.returncode == 0
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert all(text.startswith(("ok ", "warning ", "        ")) for text in lines)
    assert f"ok       store: {healthy.place}, named by HITHERTO_STORE; workspace default" in lines
    assert any(text.startswith(f"ok       versions: hitherto {hitherto.__version__}, Python 3.") for text in lines)
    assert "ok       locks: no process has the store open" in lines
    assert any(text.startswith("ok       keyring: installed") for text in lines) == (find_spec("keyring") is not None)
    assert healthy.traces() == before


def test_a_store_that_is_not_there_is_said_and_not_made(world: World) -> None:
    before = world.traces()
    code, level, name, said = one(world)
    assert (code, level, name) == (1, "problem", "store")
    assert str(world.place) in said
    assert "hitherto init" in said
    assert world.traces() == before


def test_a_location_that_means_nothing_is_said_once(world: World) -> None:
    code, level, name, said = one(world, "--store", "redis://here")
    assert (code, level, name) == (1, "problem", "store")
    assert "redis" in said


def test_a_store_in_memory_keeps_nothing(world: World) -> None:
    assert one(world, "--store", "memory:")[:3] == (0, "warning", "store")


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", "-search", "-search-wal", "-ballast"])
def test_a_file_beside_the_store_that_is_not_its_own_is_named(healthy: World, suffix: str) -> None:
    planted = Path(f"{healthy.place}{suffix}")
    planted.write_bytes(b"mine " * 2000)
    code, found = look(healthy)
    assert code != 0
    assert [one for one in found if one["name"] == "files" and str(planted) in one["what"] and one["hint"]]
    assert planted.read_bytes() == b"mine " * 2000
    planted.unlink()
    assert [one for one in look(healthy)[1] if one["name"] == "files"] == []


@pytest.mark.parametrize(("suffix", "mode"), [("", 0o644), ("", 0o660), ("-search", 0o604)])
def test_files_that_others_can_read_or_write_are_a_problem_and_chmod_mends_it(
    healthy: World, suffix: str, mode: int
) -> None:
    with healthy.store() as store:
        store.search("why")
    path = Path(f"{healthy.place}{suffix}")
    path.chmod(mode)
    code, level, name, said = one(healthy)
    assert (code, level, name) == (1, "problem", "permissions")
    subprocess.run(said.partition(" / ")[2].split(), check=True)
    assert look(healthy) == (0, [])


def test_a_folder_in_which_others_can_replace_the_store_is_a_problem(healthy: World) -> None:
    healthy.place.parent.chmod(0o777)
    assert one(healthy)[:3] == (1, "problem", "permissions")
    healthy.place.parent.chmod(0o1777)  # there, only the owner of a file can
    assert look(healthy) == (0, [])
    healthy.place.parent.chmod(0o775)
    assert one(healthy)[:3] == (0, "warning", "permissions")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_store_of_another_user_is_a_problem(healthy: World) -> None:
    os.chown(healthy.place, 12345, 12345)
    code, level, name, said = one(healthy)
    assert (code, level, name) == (1, "problem", "permissions")
    assert "belongs to user 12345" in said


def test_a_store_that_may_not_be_written_is_a_warning(healthy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, and root may run the tests: so the system's answer is replaced."""
    case = Case(Place(str(healthy.place), "--store", "default", None), {})
    assert list(run_check(_doctor_checks.writing, case)) == []
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    (finding,) = run_check(_doctor_checks.writing, case)
    assert finding.level == "warning"
    assert "only be read" in finding.what


def test_a_link_is_said(healthy: World) -> None:
    link = healthy.root / "link.db"
    link.symlink_to(healthy.place)
    done = healthy.command("doctor", "--json", "--store", str(link))
    links = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "links"]
    assert [check["level"] for check in links] == ["ok"]
    assert str(healthy.place) in links[0]["what"]
    healthy.place.unlink()
    assert [check["name"] for check in look(healthy, "--store", str(link))[1]] == ["store"]


def test_what_a_killed_process_left_is_a_warning_and_stays_until_the_next_write(healthy: World) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, healthy.place], check=False, env=healthy.env)
    assert done.returncode == -signal.SIGKILL
    before = healthy.traces()
    code, level, name, said = one(healthy, process=True)
    assert (code, level, name) == (0, "warning", "locks")
    assert f"{healthy.place}-wal" in said
    assert "killed" in said
    assert healthy.traces() == before
    Path(f"{healthy.place}-shm").unlink()
    assert {check["name"]: check["level"] for check in look(healthy)[1]} == {
        "locks": "warning",
        "content": "warning",
    }
    with healthy.store() as store:  # the control
        assert store.stats().conversations == 2
    assert look(healthy) == (0, [])


def test_who_is_writing_is_named_and_nobody_waits(healthy: World) -> None:
    with healthy.store():
        assert look(healthy, process=True) == (0, [])  # open, and not writing
        writer = apsw.Connection(str(healthy.place))
        writer.execute("BEGIN IMMEDIATE")
        try:
            started = time.monotonic()
            code, level, name, said = one(healthy, process=True)
            assert time.monotonic() - started < 20  # the store itself would wait for 30
        finally:
            writer.execute("ROLLBACK")
            writer.close()
    assert (code, level, name) == (0, "warning", "locks")
    assert f"process {os.getpid()} (" in said
    assert "is writing" in said


def test_a_file_that_is_no_store_is_a_problem(world: World) -> None:
    world.place.write_bytes(b"not a database at all " * 100)
    world.place.chmod(0o600)
    before = world.traces()
    code, level, name, said = one(world)
    assert (code, level, name) == (1, "problem", "content")
    assert "is not a database" in said
    assert world.traces() == before


def test_a_folder_is_no_store(world: World) -> None:
    assert one(world, "--store", str(world.here))[:3] == (1, "problem", "store")


def test_a_newer_store_is_a_problem_that_an_upgrade_solves(healthy: World) -> None:
    connection = apsw.Connection(str(healthy.place))
    connection.pragma("user_version", 1000)
    connection.close()
    code, level, name, said = one(healthy)
    assert (code, level, name) == (1, "problem", "content")
    assert "upgrade" in said


def test_a_damaged_store_is_a_problem_with_an_exit_code_of_its_own(healthy: World) -> None:
    with healthy.place.open("r+b") as file:
        file.truncate(9000)
    code, wrong = look(healthy, process=True)
    assert code == 7
    assert [check["name"] for check in wrong] == ["content"]
    assert "hitherto restore" in wrong[0]["hint"]


def test_records_in_quarantine_are_a_problem(world: World) -> None:
    with world.store(key=Key(b"k" * 32)) as store:
        saved = store.start().append(Message.user("x"))
    connection = apsw.Connection(str(world.place))
    connection.execute("UPDATE message SET body = zeroblob(length(body))")
    connection.close()
    with world.store(key=Key(b"k" * 32)) as store, pytest.raises(hitherto.Damaged):
        store.message(saved.id)
    source = key_file(world, b"k" * 32)
    code, level, name, said = one(world, "--key", source)
    assert (code, level, name) == (7, "problem", "quarantine")
    assert "quarantine: 1," in said


def key_file(world: World, secret: bytes, mode: int = 0o600) -> str:
    path = world.home / f"key-{secret[:1].hex()}"
    path.write_bytes(secret)
    path.chmod(mode)
    return f"file:{path}"


def test_a_sealed_store_is_looked_at_without_its_key_and_the_key_is_asked_for(world: World) -> None:
    with world.store(key=Key(b"k" * 32)):
        pass
    code, level, name, said = one(world, process=True)
    assert (code, level, name) == (6, "problem", "content")
    assert "HITHERTO_KEY" in said
    assert look(world, HITHERTO_KEY=key_file(world, b"k" * 32)) == (0, [])
    code, level, name, said = one(world, "--key", key_file(world, b"o" * 32))
    assert (code, level, name) == (6, "problem", "content")
    assert "not with" in said


def test_a_key_that_others_can_read_is_a_problem(world: World) -> None:
    with world.store(key=Key(b"k" * 32)):
        pass
    code, wrong = look(world, "--key", key_file(world, b"k" * 32, 0o644))
    assert code == 6
    assert [check["name"] for check in wrong] == ["key", "content"]
    assert "chmod 600" in wrong[0]["hint"]
    code, wrong = look(world, HITHERTO_KEY="what")
    assert code == 6
    assert [check["name"] for check in wrong] == ["key", "content"]


def test_a_keyring_that_cannot_be_used_is_a_problem_if_it_is_to_be_used(healthy: World) -> None:
    pytest.importorskip("keyring")
    code, level, name, said = one(healthy, "--key", "keyring:chats")
    assert (code, level, name) == (6, "problem", "key")
    assert "keyring.backends.fail" in said


def test_a_key_for_a_plain_store_is_a_problem(healthy: World) -> None:
    assert one(healthy, "--key", key_file(healthy, b"k" * 32))[:3] == (6, "problem", "content")


def test_a_rotation_that_was_not_finished_is_a_warning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with world.store(key=Key(b"k" * 32), maintenance=False) as store:
        store.start().append(Message.user("x"))
        monkeypatch.setattr(rotation, "go_on", stop)
        with pytest.raises(KeyboardInterrupt):
            store.rotate(Key(b"n" * 32))
    assert one(world, "--key", key_file(world, b"n" * 32))[:3] == (0, "warning", "rotation")


def test_a_conversation_in_the_future_is_a_warning(healthy: World) -> None:
    with healthy.store(clock=lambda: time.time_ns() // 1000 + 86_400_000_000) as store:
        store.start().append(Message.user("tomorrow"))
    assert one(healthy)[:3] == (0, "warning", "clock")


def test_a_workspace_that_is_not_there_is_a_warning_and_is_not_made(healthy: World) -> None:
    before = healthy.traces()
    assert one(healthy, "--workspace", "other")[:3] == (0, "warning", "content")
    assert healthy.traces() == before


@pytest.mark.parametrize("suffix", [".bak.unfinished-0123abcd", ".replaced-20260102T030405Z"])
def test_what_was_left_half_written_or_put_aside_is_named(healthy: World, suffix: str) -> None:
    left = Path(f"{healthy.place}{suffix}")
    left.touch(0o600)
    code, level, name, said = one(healthy)
    assert (code, level, name) == (0, "warning", "left over")
    assert f"rm {left}" in said


def test_a_configuration_that_cannot_be_used_is_a_problem_and_the_rest_is_looked_at(healthy: World) -> None:
    config = healthy.home / "config.toml"
    config.write_text("stor = 1")
    config.chmod(0o600)
    code, level, name, said = one(healthy, HITHERTO_CONFIG=str(config))
    assert (code, level, name) == (1, "problem", "configuration")
    assert "'stor'" in said
    config.write_text("")
    assert look(healthy, HITHERTO_CONFIG=str(config)) == (0, [])
    config.chmod(0o666)
    assert one(healthy, HITHERTO_CONFIG=str(config))[:3] == (1, "problem", "configuration")


def test_a_model_that_is_not_where_the_configuration_says_is_a_problem(healthy: World) -> None:
    config = healthy.home / "config.toml"
    config.write_text('model_path = "/nowhere/model.gguf"')
    config.chmod(0o600)
    assert look(healthy, HITHERTO_CONFIG=str(config))[0] == 1


def test_little_room_on_the_disk_is_a_warning_and_none_a_problem(
    healthy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(Place(str(healthy.place), "--store", "default", None), {})
    for free, level in ((10**12, "ok"), (99_000_000, "warning"), (0, "problem")):
        usage = shutil._ntuple_diskusage(10**13, 0, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert [finding.level for finding in run_check(_doctor_checks.disk, case)] == [level]


def test_a_file_system_without_locks_is_a_problem(healthy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Place(str(healthy.place), "--store", "default", None), {})
    for kind, level in (("nfs4", "problem"), ("cifs", "problem"), ("9p", "warning"), ("ext4", "ok"), ("fuseblk", "ok")):
        monkeypatch.setattr(_open_files, "file_system", lambda _, kind=kind: kind)
        assert [finding.level for finding in run_check(_doctor_checks.file_system, case)] == [level], kind


def test_the_innermost_mount_is_the_one_a_path_is_on(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw\nb /home nfs4 rw\nc /home/my\\040disk xfs rw\nd /home/my\\040disk btrfs rw\n")
    places = {"/home/x": "nfs4", "/homes/x": "ext4", "/home/my disk/x": "btrfs", "/": "ext4"}
    assert {path: _open_files.file_system(path, str(mounts)) for path in places} == places
    assert _open_files.file_system("/x", str(tmp_path / "none")) == ""


def test_a_folder_that_is_synced_elsewhere_is_a_warning(healthy: World) -> None:
    synced = healthy.root / "Dropbox"
    synced.mkdir()
    shutil.copy(healthy.place, synced / "chats.db")
    assert one(healthy, "--store", str(synced / "chats.db"))[:3] == (0, "warning", "sync folder")


def test_an_encoding_that_cannot_say_everything_is_a_warning(healthy: World) -> None:
    done = healthy.plain(*COMMAND, "doctor", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "warning  encoding: the terminal's encoding is ascii" in done.stdout


def test_a_check_that_fails_is_a_finding(healthy: World) -> None:
    def broken(_: Case) -> Iterator[Finding]:
        yield Finding("broken", "ok", str(1 // len("")))

    case = Case(Place(str(healthy.place), "--store", "default", None), {})
    assert list(run_check(broken, case)) == [Finding("broken", "problem", "cannot be checked: ZeroDivisionError")]


def test_it_can_be_read_on_a_narrow_terminal(healthy: World, terminal: Open) -> None:
    healthy.place.chmod(0o644)
    shown = terminal(command=[*COMMAND, "doctor"], size=(40, 200))
    assert shown.end() == 1
    assert "\x1b[31mproblem" in shown.shown
    assert "(mode 0644)" in shown.shown
    words = [text for text in shown.shown.replace("\x1b[0m", "").splitlines() if "/" not in text and "\x1b" not in text]
    assert max(map(len, words)) <= 40
