"""`hitherto export`, `import`, `backup`, `restore` and `copy`, at a terminal and in pipes.

Requirements: C16, C17, and STYLE on the command line.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Message, formats
from hitherto.backends.sqlite import file_swap
from hitherto.cli import _copy, _export_import
from hitherto.snapshots import Snapshot

from ..support.command import COMMAND, PATIENCE, Open, World

KEY = bytes(range(32))
ESCAPE = "red: \x1b[31m"


def fill(world: World, talks: int = 3, **how: Any) -> list[str]:
    """Make conversations of two messages; their ids, the oldest first."""
    ids = []
    with world.store(**how) as store:
        for n in range(talks):
            talk = store.start(title=f"Talk {n}", project=str(world.here))
            talk.extend([Message.user(f"question {n}"), Message.assistant(f"answer {n}")])
            ids.append(talk.id)
    return ids


def key_file(world: World, key: bytes = KEY) -> str:
    path = world.root / f"key-{key[0]}"
    path.write_text(key.hex())
    path.chmod(0o600)
    return f"file:{path}"


def counts(path: Path, **how: Any) -> list[int]:
    with hitherto.open(path, **how) as store:
        assert store.verify().ok
        return [info.count for info in store.conversations(limit=1000).items]


@contextlib.contextmanager
def another(world: World, code: str, *given: str) -> Iterator["subprocess.Popen[str]"]:
    """Run another process that has reported that it is ready; it ends when its input does."""
    command = [sys.executable, "-c", code, str(world.place), *given]
    process = subprocess.Popen(
        command, env=world.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=world.here
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate(timeout=PATIENCE)


HOLDS = "import hitherto, sys; store = hitherto.open(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
WRITES = """
import hitherto, select, sys
with hitherto.open(sys.argv[1]) as store:
    talk, n = store.start(), 0
    while True:
        talk.append(hitherto.Message.user(f"said {n}"))
        n += 1
        if n == 20:
            print("ready", flush=True)
        if select.select([sys.stdin], [], [], 0)[0]:
            break
"""
WAITS = """
import apsw, sys
print("ready", flush=True)
connection = apsw.Connection(sys.argv[1])
connection.set_busy_timeout(60_000)
open(sys.argv[2], "w").close()
try:
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("DELETE FROM message")
except apsw.Error as error:
    print(type(error).__name__)
"""


# -- export


def test_the_formats_that_help_names_are_those_that_are_written() -> None:
    assert list(_export_import.FORMATS) == formats.names(writable=True)
    assert set(_export_import._STREAMED) == {
        name for name in _export_import.FORMATS if hasattr(formats._registry.find_format(name), "write_to")
    }


def test_export_writes_the_newest_conversation_as_lines(world: World, tmp_path: Path) -> None:
    *_, newest = fill(world)
    done = world.command("export")
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "x").write_text(done.stdout)
    with hitherto.open("memory:") as store:
        assert [talk.id for talk in formats.load(tmp_path / "x", store)] == [newest]


def test_export_writes_those_that_are_named_once_each_or_all(world: World) -> None:
    ids = fill(world)
    written = world.command("export", ids[0], "@", ids[0][:12]).stdout
    assert re.findall(r'"conversation":\{"id":"([^"]+)"', written) == [ids[0], ids[2]]
    everything = world.command("export", "--all").stdout
    assert re.findall(r'"conversation":\{"id":"([^"]+)"', everything) == ids
    assert world.command("export", "--all", "-o", "-", "--format", "jsonl").stdout == everything
    assert world.command("export", ids[0], "--all").returncode == 2
    assert world.command("export", "nosuch").returncode == 4


def test_export_goes_by_the_name_of_the_file_and_overwrites_nothing(world: World) -> None:
    fill(world)
    for name, start in (("a.jsonl", b'{"hitherto'), ("a.md", b"# Talk"), ("a.html", b"<!DOCTYPE"),
                        ("a.openai.jsonl", b'{"messages'), ("a.json", b"{"), ("a.cpeconvo", b"SQLite")):  # fmt: skip
        done = world.command("export", "-o", name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), name
        assert (world.here / name).read_bytes().startswith(start)
        assert (world.here / name).stat().st_mode & 0o777 == 0o600
    again = world.command("export", "-o", "a.md")
    assert again.returncode == 1
    assert again.stderr.startswith("error: a file already exists: ")
    assert "\nhint: choose another name" in again.stderr
    assert world.command("export", "-o", "a.txt").returncode == 2
    assert world.command("export", "-o", "folder", "--format", "gtb", "--all").returncode == 0
    assert len(list((world.here / "folder").glob("*.json"))) == 3


@pytest.mark.parametrize("format", ["cpeconvo", "cpeconvo_first", "gtb"])
def test_what_is_no_stream_needs_a_file(format: str, world: World) -> None:
    fill(world, 1)
    done = world.command("export", "--format", format)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{format} cannot be written to standard output: -o names a file" in done.stderr


def test_the_id_of_a_message_is_the_thread_up_to_it_in_formats_of_threads(world: World) -> None:
    fill(world, 1)
    with world.store() as store:
        talk = store.latest()
        assert talk is not None
        first, last = talk.thread()
        talk.fork(first.id).append(Message.assistant("another answer"))
    for format in ("markdown", "html", "openai", "snapshot"):
        upto = world.command("export", first.id, "--format", format).stdout
        assert "question 0" in upto, format
        assert "answer" not in upto
        branch = world.command("export", last.id[:5], "--format", format).stdout
        assert "answer 0" in branch
        assert "another answer" not in branch
    assert "another answer" in world.command("export", first.id).stdout  # lines have all of it
    assert "answer 0" in world.command("export", talk.id, "--format", "markdown").stdout


def test_export_is_as_it_was_said_in_a_pipe_and_harmless_on_a_terminal(world: World, terminal: Open) -> None:
    with world.store() as store:
        store.start().append(Message.user(ESCAPE))
    assert ESCAPE in world.command("export", "--format", "markdown").stdout
    shown = terminal(command=[*COMMAND, "export", "--format", "markdown"])
    assert shown.end() == 0
    assert "red: ␛[31m" in shown.shown
    assert ESCAPE not in shown.shown


def export_to(world: World, out: int) -> tuple[int, str]:
    """Export to a stream that is closed early; the exit code and standard error."""
    said = world.root / "said"
    with open(said, "w+b") as errors, open(os.devnull, "rb") as nothing:
        streams = [nothing.fileno(), out, errors.fileno()]
        process = world.forker.start(["export"], cwd=world.here, env=world.env, streams=streams)
        os.close(out)
        return process.wait(PATIENCE), said.read_text()


def test_a_reader_that_leaves_ends_it_quietly(world: World) -> None:
    with world.store() as store:
        store.start().append(Message.user("x" * 1_000_000))
    reader, writer = os.pipe()
    os.close(reader)
    assert export_to(world, writer) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_full_disk_behind_standard_output_is_one_line(size: int, world: World) -> None:
    with world.store() as store:
        store.start().append(Message.user("x" * size))
    told = "error: the output cannot be written: No space left on device\n"
    assert export_to(world, os.open("/dev/full", os.O_WRONLY)) == (1, told)


def test_export_without_anything_to_write_says_so(world: World) -> None:
    done = world.command("export")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no store at" in done.stderr
    assert not world.place.exists()
    world.store().close()
    assert world.command("export").returncode == 4
    assert '"conversations":0' in world.command("export", "--all").stdout
    assert world.command("export", "--all", "--workspace", "misspelt").returncode == 4
    assert world.command("export", "--workspace", "misspelt").returncode == 4


# -- import


@pytest.fixture
def lines(world: World) -> tuple[Path, list[str]]:
    """A file of three conversations, and no store."""
    ids = fill(world)
    path = world.here / "all.jsonl"
    with world.store() as store:
        formats.save(store, path)
    world.place.unlink()
    return path, ids


def test_import_makes_the_store_and_prints_what_came(world: World, lines: tuple[Path, list[str]]) -> None:
    done = world.command("import", "all.jsonl")
    assert (done.returncode, done.stdout.split()) == (0, lines[1])
    assert done.stderr.startswith("all.jsonl: 3 conversations, 6 messages added, 0 unchanged\n")
    again = world.command("import", "all.jsonl")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "all.jsonl: nothing was added, 3 unchanged\n"
    assert counts(world.place) == [2, 2, 2]


@pytest.mark.parametrize("option", ["--dry-run", "--explain"])
def test_looking_makes_nothing(option: str, world: World, lines: tuple[Path, list[str]]) -> None:
    before = world.traces()
    done = world.command("import", "all.jsonl", option)
    assert done.returncode == 0
    assert world.traces() == before
    if option == "--explain":
        assert (
            done.stdout == 'all.jsonl: jsonl (its first line says "hitherto": "jsonl"): 3 conversations, 6 messages\n'
        )
    else:
        assert (done.stdout, done.stderr) == (
            "",
            "all.jsonl: 3 conversations, 6 messages would be added, 0 unchanged\n",
        )
    world.command("import", "all.jsonl")
    before = world.traces()
    assert "unchanged" in world.command("import", "all.jsonl", "--dry-run").stderr
    assert world.traces() == before


def test_explaining_needs_no_store_that_can_be_opened(world: World, lines: tuple[Path, list[str]]) -> None:
    world.place.write_text("not a store" * 100)
    assert world.command("import", "all.jsonl", "--explain").returncode == 0
    assert world.command("import", "all.jsonl", "--dry-run").returncode == 1


def test_import_tells_each_file_as_json(world: World, lines: tuple[Path, list[str]]) -> None:
    done = world.command("import", "missing", "all.jsonl", "--json")
    missing, found = map(json.loads, done.stdout.splitlines())
    assert list(found) == [
        "file", "format", "found", "new", "unchanged", "messages", "known", "amended", "purged", "unknown",
        "bookkeeping", "waiting", "leaves", "subagents", "skipped", "conversations", "renamed", "ids", "notes",
        "unreadable", "dry_run", "error",
    ]  # fmt: skip
    assert list(missing) == list(found)
    assert (found["file"], found["format"], found["new"], found["messages"]) == ("all.jsonl", "jsonl", 3, 6)
    assert (found["conversations"], found["dry_run"], found["error"]) == (lines[1], False, None)
    assert (missing["format"], missing["conversations"]) == (None, [])
    assert "No such file" in missing["error"]
    assert done.returncode == 1


def test_import_names_the_ids_that_are_others_here(world: World, lines: tuple[Path, list[str]]) -> None:
    """A few in words, all of them in JSON; and all of them again when everything is there already."""
    parts = list(map(json.loads, lines[0].read_text().splitlines()))
    theirs = {part["message"]["id"] for part in parts if "message" in part}
    done = world.command("import", "all.jsonl")
    found = re.findall(r"^all\.jsonl: message (\S+) of (\S+) is (\w{6}) here$", done.stderr, re.MULTILINE)
    told = {f"{talk}/{id}": ours for id, talk, ours in found}
    assert len(told) == 3
    assert "and 3 messages more; --json names all of them" in done.stderr
    again = json.loads(world.command("import", "all.jsonl", "--json").stdout)
    assert again["messages"] == 0
    assert len(again["ids"]) == 6
    assert told.items() <= again["ids"].items()
    assert {name.split("/")[1] for name in again["ids"]} == theirs
    with hitherto.open(world.place) as store:
        assert len(store.get(list(again["ids"].values()))) == 6


def test_import_names_the_conversation_that_has_another_id_here(world: World) -> None:
    """Two files have the same id, and begin differently."""
    snapshot = Snapshot.new("claude", "m", "", [{"role": "user", "content": "Why?"}])
    (world.here / "one.json").write_bytes(snapshot.to_json())
    (world.here / "two.json").write_bytes(snapshot.to_json().replace(b"Why?", b"How?"))
    assert world.command("import", "one.json").stdout.split() == [snapshot.id]
    done = world.command("import", "two.json")
    (ours,) = done.stdout.split()
    assert f"conversation {snapshot.id} is {ours} here" in done.stderr
    found = json.loads(world.command("import", "two.json", "--json").stdout)
    assert found["renamed"] == {snapshot.id: ours}
    assert [name.split("/")[0] for name in found["ids"]] == [snapshot.id]


def test_one_file_that_fails_does_not_stop_the_others(world: World, lines: tuple[Path, list[str]]) -> None:
    (world.here / "noise").write_bytes(b"noise")
    fill(world, 0)
    done = world.command("import", "noise", "missing", str(world.place), "all.jsonl")
    assert done.returncode == 2  # of the first
    assert len(done.stdout.split()) == 3
    assert "error: 'noise' is in no format that is known\nhint: hitherto import --help names " in done.stderr
    assert "--format takes one of them for granted" in done.stderr
    assert "error: 'missing': No such file or directory\nhint: look at the path\nerror:" in done.stderr
    assert "hint: hitherto copy takes the conversations of another store" in done.stderr


def test_what_can_be_read_of_a_broken_file_is_taken(world: World, lines: tuple[Path, list[str]]) -> None:
    text = lines[0].read_text().replace("answer 1", 'answer 1"')
    (world.here / "broken.jsonl").write_text(text)
    done = world.command("import", "broken.jsonl", "all.jsonl", "--json")
    assert done.returncode == 8
    broken, whole = map(json.loads, done.stdout.splitlines())
    assert (broken["new"], broken["messages"]) == (2, 4)
    assert "it is not JSON" in broken["unreadable"][0]["reason"]
    assert (whole["new"], whole["unchanged"]) == (1, 2)
    assert "broken.jsonl: 2 conversations, 4 messages added, 0 unchanged\n" in done.stderr
    assert "error: broken.jsonl: conversation" in done.stderr
    assert world.command("import", "broken.jsonl", "missing").returncode == 1  # what fails altogether counts more


def test_a_folder_of_sealed_snapshots_takes_its_own_key(world: World) -> None:
    fill(world)
    with world.store() as store:
        formats.save(store, world.here / "sealed", format="gtb", key=KEY)
    other = world.root / "other.db"
    locked = world.command("--store", str(other), "import", "sealed")
    assert locked.returncode in (6, 8)
    done = world.command("--store", str(other), "import", "sealed", "--key-of-file", key_file(world))
    assert (done.returncode, len(done.stdout.split())) == (0, 3)
    assert world.command("import", "sealed", "--key-of-file", "0" * 64).returncode == 2  # a key is never on the line


def test_a_sealed_file_without_its_key_says_which_option_names_it(world: World) -> None:
    envelope = {"conversationId": "c", "schemaVersion": 1, "cipherText": "AAAA", "createdAt": "2026-01-01T00:00:00Z"}
    envelope |= {"iv": "A" * 16, "authTag": "A" * 22 + "==", "checksum": "0" * 64}
    (world.here / "x.vpconv").write_text(json.dumps(envelope))
    done = world.command("import", "x.vpconv")
    assert done.returncode == 6
    assert "hint: --key-of-file says where the key of the file comes from" in done.stderr


def test_standard_input_is_a_file(world: World, lines: tuple[Path, list[str]]) -> None:
    done = world.command("import", "-", said="x")
    assert done.returncode == 2
    assert "is in no format that is known" in done.stderr
    assert not world.place.exists()
    done = world.command("import", "-", said=lines[0].read_text())
    assert done.stdout.split() == lines[1]


def test_names_that_are_no_text_do_no_harm(world: World, lines: tuple[Path, list[str]]) -> None:
    odd = os.fsencode(world.here) + b"/\xff\x1b.jsonl"
    os.rename(lines[0], odd)
    done = world.command("import", os.fsdecode(odd), "--json")
    assert (done.returncode, json.loads(done.stdout)["new"]) == (0, 3)
    assert "\x1b" not in done.stdout + done.stderr


FULL = """
import resource, signal, sys
from hitherto.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
main(["import", "large.jsonl"])
"""


def test_a_disk_that_fills_up_in_the_middle_leaves_whole_conversations_and_the_rest_comes_later(world: World) -> None:
    with hitherto.open("memory:") as store:
        for n in range(30):
            noise = os.urandom(20_000).hex()
            store.start(title=str(n)).extend([Message.user(noise), Message.assistant(noise[::-1])])
        formats.save(store, world.here / "large.jsonl")
    done = world.plain(sys.executable, "-c", FULL)
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    there = counts(world.place)
    assert 0 < len(there) < 30
    assert set(there) == {2}
    again = world.command("import", "large.jsonl")
    assert again.returncode == 0
    assert f"added, {len(there)} unchanged\n" in again.stderr
    assert counts(world.place) == [2] * 30


def test_progress_is_shown_on_a_terminal_only(world: World, terminal: Open, lines: tuple[Path, list[str]]) -> None:
    at_once = "from hitherto.cli import _output, _main; _output.Meter._PATIENCE_SECONDS = 0; _main.run()"
    command = [sys.executable, "-c", at_once, "import", "all.jsonl"]
    shown = terminal(command=command, size=(20, 10))
    assert shown.end() == 0
    assert "\r\x1b[Kall.jsonl: [####..…" in shown.shown
    wide = terminal(command=command, size=(80, 10))
    assert wide.end() == 0
    assert re.search(r"all\.jsonl: \[#+\.+\] +\d\d% 2 messages\r\x1b\[K", wide.shown)
    assert world.plain(*command).stderr == "all.jsonl: nothing was added, 3 unchanged\n"
    writes = [*command[:3], "export", "--all"]
    out = terminal(command=[*writes, "-o", "again.jsonl"], size=(80, 10))
    assert out.end() == 0
    assert "\r\x1b[Kwriting: 2 messages\r\x1b[K" in out.shown
    printed = terminal(command=writes, size=(80, 10))
    assert printed.end() == 0
    assert "writing:" not in printed.shown


# -- backup and restore


def test_a_backup_is_a_store_and_overwrites_nothing(world: World) -> None:
    fill(world)
    done = world.command("backup", "b.db")
    size = (world.here / "b.db").stat().st_size
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"b.db: {size:,} bytes\n")
    assert counts(world.here / "b.db") == [2, 2, 2]
    assert world.command("backup", "b.db").returncode == 1
    told = json.loads(world.command("backup", "c.db", "--json").stdout)
    assert told == {"file": str(world.here / "c.db"), "size": (world.here / "c.db").stat().st_size}
    assert world.command("--store", str(world.root / "none.db"), "backup", "d.db").returncode == 1
    assert not (world.here / "d.db").exists()


def test_a_backup_is_made_while_another_process_writes(world: World) -> None:
    world.store().close()
    with another(world, WRITES):
        for name in ("1.db", "2.db"):
            assert world.command("backup", name).returncode == 0
    for name in ("1.db", "2.db"):
        [count] = counts(world.here / name)
        assert count >= 20
        with hitherto.open(world.here / name) as store:
            talk = store.latest()
            assert talk is not None
            assert [m.text for m in talk.thread()] == [f"said {n}" for n in range(count)]


def test_restore_brings_a_store_back_and_leaves_the_backup_alone(world: World) -> None:
    fill(world)
    assert world.command("backup", "b.db").returncode == 0
    for path in world.place.parent.iterdir():
        path.unlink()
    world.place.parent.rmdir()
    before = (world.here / "b.db").read_bytes()
    done = world.command("restore", "b.db")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("what was purged after the backup is back: no erasure ledger was asked")
    assert world.place.stat().st_mode & 0o777 == 0o600
    assert os.listdir(world.place.parent) == ["chats.db"]
    assert counts(world.place) == [2, 2, 2]
    assert (world.here / "b.db").read_bytes() == before
    assert os.listdir(world.here) == ["b.db"]


def test_a_wal_without_its_store_does_not_get_into_the_one_that_is_restored(world: World) -> None:
    fill(world, 1)
    world.command("backup", "b.db")
    with another(world, WRITES) as writer:
        writer.kill()
    wal = Path(f"{world.place}-wal").read_bytes()
    assert wal
    for path in world.place.parent.iterdir():
        path.unlink()
    Path(f"{world.place}-wal").write_bytes(wal)
    assert world.command("restore", "b.db").returncode == 0
    assert counts(world.place) == [2]


def test_a_store_that_is_there_is_replaced_only_when_that_is_said(world: World, terminal: Open) -> None:
    fill(world, 1)
    world.command("backup", "b.db")
    fill(world, 2)
    refused = world.command("restore", "b.db")
    assert refused.returncode == 1
    assert "hint: --replace puts it aside, under another name" in refused.stderr
    unasked = world.command("restore", "b.db", "--replace")
    assert unasked.returncode == 2
    assert "is put aside, and b.db takes its place" in unasked.stderr
    asked = terminal(command=[*COMMAND, "restore", "b.db", "--replace"])
    asked.read("[y/N] ")
    asked.press("n\n")
    assert asked.end() == 130
    assert sorted(os.listdir(world.place.parent)) == ["chats.db", "chats.db-ballast"]
    assert counts(world.place) == [2, 2, 2]
    asked = terminal(command=[*COMMAND, "restore", "b.db", "--replace"])
    asked.read("[y/N] ")
    asked.press("y\n")
    assert asked.end() == 0
    assert counts(world.place) == [2]


def test_what_is_replaced_is_kept_whole_and_its_index_is_not(world: World) -> None:
    fill(world, 1)
    world.command("backup", "b.db")
    fill(world, 2)
    with world.store() as store:
        assert list(store.search("question"))
    assert Path(f"{world.place}-search").exists()
    done = world.command("restore", "b.db", "--replace", "--yes")
    assert done.returncode == 0
    found = re.search(r"the store that was there is now (.*)\n", done.stderr)
    assert found is not None
    kept = Path(found[1])
    assert re.fullmatch(r"chats\.db\.replaced-\d{8}T\d{6}Z", kept.name)
    assert sorted(os.listdir(world.place.parent)) == sorted(["chats.db", "chats.db-ballast", kept.name])
    assert world.place.stat().st_mode & 0o777 == 0o600
    assert counts(world.place) == [2]
    assert counts(kept) == [2, 2, 2]
    again = world.command("restore", "b.db", "--replace", "--yes")  # in the same second: under yet another name
    assert again.returncode == 0
    assert counts(kept) == [2, 2, 2]


def test_a_store_that_another_process_has_open_is_not_replaced(world: World) -> None:
    fill(world, 1)
    world.command("backup", "b.db")
    with another(world, HOLDS):
        done = world.command("restore", "b.db", "--replace", "--yes")
        assert done.returncode == 9
        assert "another process has" in done.stderr
        assert not [name for name in os.listdir(world.place.parent) if "replaced" in name or "restored" in name]
    assert world.command("restore", "b.db", "--replace", "--yes").returncode == 0


def test_what_a_killed_process_left_in_the_wal_is_in_the_store_that_is_kept(world: World) -> None:
    fill(world, 1)
    world.command("backup", "b.db")
    with another(world, WRITES) as writer:
        writer.kill()
    assert Path(f"{world.place}-wal").stat().st_size
    assert world.command("restore", "b.db", "--replace", "--yes").returncode == 0
    [kept] = world.place.parent.glob("*.replaced-*")
    assert counts(kept)[0] >= 20
    assert counts(world.place) == [2]


def test_who_waits_for_the_store_while_it_is_replaced_cannot_ruin_the_new_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that opens the old file at that moment would find the WAL of the new one by its name."""
    fill(world, 1)
    new = f"{world.place}.new"
    with world.store() as store:
        store.backup(new)
    replace = os.replace
    waiting = contextlib.ExitStack()
    late: list[subprocess.Popen[str]] = []

    def wait_first(source: Any, target: Any) -> None:
        opened = world.root / "opened"
        late.append(waiting.enter_context(another(world, WAITS, str(opened))))
        deadline = time.monotonic() + PATIENCE
        while not opened.exists():
            assert time.monotonic() < deadline
        replace(source, target)

    with monkeypatch.context() as patch, waiting:
        patch.setattr(os, "replace", wait_first)
        assert file_swap.put_in_place(new, str(world.place), replace=True)
        patch.undo()
        output, _ = late[0].communicate(timeout=PATIENCE)
        assert output == "ReadOnlyError\n"
    assert counts(world.place) == [2]


@pytest.mark.parametrize("step", ["link", "unlink", "replace", "sync"])
def test_a_restore_that_is_cut_off_anywhere_leaves_a_store(
    step: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the cut no further step happens, nor does any cleanup."""
    fill(world, 1)
    new = f"{world.place}.new"
    with world.store() as store:
        store.backup(new)
    fill(world, 1)

    class Cut(BaseException):
        pass

    def cut(*_: object, **__: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(file_swap if step == "sync" else os, step, cut)
        with pytest.raises(Cut):
            file_swap.put_in_place(new, str(world.place), replace=True)
    assert counts(world.place) == ([2] if step == "sync" else [2, 2])


def test_a_backup_that_is_not_sound_is_not_restored(world: World) -> None:
    fill(world)
    world.command("backup", "b.db")
    connection = apsw.Connection(str(world.here / "b.db"))
    connection.execute("UPDATE message SET body = x'00' WHERE number = (SELECT min(number) FROM message)")
    connection.close()
    world.place.unlink()
    done = world.command("restore", "b.db")
    assert done.returncode == 7
    assert "b.db is not sound: " in done.stderr
    assert not world.place.exists()
    assert world.command("restore", "b.db", "--no-verify").returncode == 0
    assert world.place.exists()


def test_what_is_no_backup_is_not_restored(world: World) -> None:
    fill(world, 1)
    (world.here / "noise").write_bytes(b"noise" * 1000)
    with open(world.here / "torn.db", "wb") as torn:
        torn.write(world.place.read_bytes()[:6000])
    for name in ("noise", "missing", "torn.db", str(world.place)):
        done = world.command("restore", name, "--replace", "--yes", "--no-verify")
        assert done.returncode in (1, 2, 7), name
        assert done.stderr.startswith("error: ")
    assert sorted(os.listdir(world.place.parent)) == ["chats.db", "chats.db-ballast"]
    assert counts(world.place) == [2]
    assert world.command("--store", "memory:", "restore", "noise").returncode == 2


def test_a_damaged_store_is_replaced_by_its_backup(world: World) -> None:
    fill(world, 1)
    world.command("backup", "b.db")
    world.place.write_bytes(b"damaged" * 1000)
    done = world.command("restore", "b.db", "--replace", "--yes")  # what was purged since cannot be told
    assert (done.returncode, "--even-purged" in done.stderr) == (1, True)
    assert world.place.read_bytes() == b"damaged" * 1000
    assert world.command("restore", "b.db", "--replace", "--yes", "--even-purged").returncode == 0
    assert counts(world.place) == [2]
    [kept] = world.place.parent.glob("*.replaced-*")
    assert kept.read_bytes() == b"damaged" * 1000


def test_a_sealed_backup_takes_its_key(world: World) -> None:
    fill(world, 1, key=KEY)
    source = key_file(world)
    assert world.command("backup", "b.db", "--key", source).returncode == 0
    world.place.unlink()
    for given in ([], ["--key", key_file(world, bytes(range(1, 33)))]):
        assert world.command("restore", "b.db", *given).returncode == 6
        assert not world.place.exists()
    assert world.command("restore", "b.db", "--key", source).returncode == 0
    assert counts(world.place, key=KEY) == [2]


# -- copy


def test_copy_puts_all_conversations_into_another_store_once(world: World) -> None:
    fill(world)
    source, target = str(world.place), str(world.here / "copy.db")
    done = world.command("copy", source, target)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "3 conversations, 6 messages copied; all rows compared, verified\n"
    assert world.command("copy", source, target).stderr == "nothing was added, 3 unchanged\n"
    fill(world, 1)
    assert world.command("copy", source, target).stderr == "1 conversation, 2 messages added, 3 unchanged\n"
    assert counts(Path(target)) == [2, 2, 2, 2]


def test_copy_between_workspaces_and_keys(world: World) -> None:
    fill(world, 2, key=KEY, workspace="work")
    source, other = key_file(world), key_file(world, bytes(range(1, 33)))
    copy = ["copy", str(world.place), "copy.db", "--workspace", "work", "--key", source]
    assert world.command(*copy, "--to-key", other, "--to-workspace", "home").returncode == 0
    assert counts(world.here / "copy.db", key=bytes(range(1, 33)), workspace="home") == [2, 2]
    copy[2] = "plain.db"
    assert world.command(*copy, "--in-clear").returncode == 0
    assert counts(world.here / "plain.db", workspace="work") == [2, 2]


def test_what_cannot_be_copied_is_said(world: World) -> None:
    fill(world)
    same = world.command("copy", str(world.place), f"{world.place.parent}/../store/chats.db")
    assert same.returncode == 2
    assert "a store cannot be copied into itself" in same.stderr
    missing = world.command("copy", "missing.db", "copy.db")
    assert missing.returncode == 1
    assert world.command("copy", str(world.place), "copy.db", "--from-workspace", "misspelt").returncode == 4
    assert os.listdir(world.here) == []
    connection = apsw.Connection(str(world.place))
    connection.execute("UPDATE message SET body = x'00' WHERE number = (SELECT min(number) FROM message)")
    connection.close()
    partial = world.command("copy", str(world.place), "copy.db", HITHERTO_SANITISE="secrets")  # message by message
    assert partial.returncode == 7
    assert "error: conversation " in partial.stderr
    assert "is not all there" in partial.stderr
    assert counts(world.here / "copy.db") == [2, 2]
    damaged = world.command("copy", str(world.place), "rows.db")
    assert damaged.returncode == 7
    assert "error: DST: " in damaged.stderr
    with hitherto.open(world.here / "rows.db") as copy:
        assert len(copy.verify().problems) == 1  # as in the source


def test_copy_is_compared_afterwards() -> None:
    with hitherto.open("memory:") as ours, hitherto.open("memory:") as theirs:
        ours.start().append(Message.user("x"))
        before = _copy._counts(ours)
        assert _copy._missing(before, ours, theirs, formats.Loaded("store", "")) == list(before)
        report = formats.copy(ours, theirs)
        assert _copy._missing(before, ours, theirs, report) == []
        ours.delete([m.id for m in ours.messages()])
        assert _copy._missing(dict.fromkeys(before, 9), ours, theirs, report) == []  # deleted meanwhile


def test_copy_that_is_killed_goes_on(world: World) -> None:
    fill(world, 40)
    target = world.here / "copy.db"
    with open(os.devnull, "r+b") as nothing:
        streams = [nothing.fileno()] * 3
        given = ["copy", str(world.place), str(target)]
        process = world.forker.start(given, cwd=world.here, env=world.env, streams=streams)
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not Path(f"{target}-wal").exists():
        assert time.monotonic() < deadline
    process.kill()
    process.wait(PATIENCE)
    done = world.command("copy", str(world.place), str(target))
    assert done.returncode == 0
    assert counts(target) == [2] * 40


def test_what_is_copied_is_cleaned_where_that_is_asked_for(world: World) -> None:
    secret = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
    with world.store() as store:
        store.start(title="T").append(Message.user(f"token={secret}"))
    done = world.command("copy", str(world.place), "clean.db", HITHERTO_SANITISE="secrets")
    assert done.returncode == 0
    files = [file for file in world.here.glob("clean.db*") if secret.encode() in file.read_bytes()]
    assert files == []
    dirty = world.command("copy", str(world.place), "dirty.db")
    assert dirty.returncode == 0
    assert [file for file in world.here.glob("dirty.db*") if secret.encode() in file.read_bytes()]


def test_a_pipe_is_refused_and_not_waited_for(world: World) -> None:
    os.mkfifo(world.here / "pipe")
    done = world.command("import", "pipe")
    assert done.returncode == 2
    assert "'pipe' is neither a file nor a directory" in done.stderr
    assert "hitherto import -" in done.stderr
