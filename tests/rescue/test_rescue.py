"""Rescue: what programs keep on this machine, brought into a store, again and again.

Requirements: F2.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Key, Store
from hitherto._engine.process import this
from hitherto.errors import Busy, InvalidArgument
from hitherto.rescue import Rescue

from ..formats.test_claude_code import PROGRAM, Session

SESSION = "5e551011-0000-4000-8000-000000000001"
DAY = 86_400


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    shutil.copytree(PROGRAM, home / ".claude" / "projects")
    return home


def texts(store: Store) -> set[str]:
    return {message.text for message in store.messages()}


def bring_in(store: Store, home: Path, **more: Any) -> int:
    """Bring in all there is; how many messages came."""
    work = Rescue(store, env={}, home=home, **more)
    return sum(work.bring_in(place).messages for place in work.places())


def test_again_only_what_is_new_comes_and_nothing_else_is_read(home: Path) -> None:
    with hitherto.open("memory:") as store:
        work = Rescue(store, env={}, home=home)
        (place,) = work.places()
        assert (place.program, place.title, place.files) == ("claude-code", "Claude Code", 4)
        assert work.bring_in(place).messages == 23
        (place,) = work.places()
        assert place.changed == ()
        new = home / ".claude" / "projects" / "-x" / f"{SESSION}.jsonl"
        Session().user(1, None, "new").write(new)
        (place,) = work.places()
        assert place.changed == (f"-x/{SESSION}.jsonl",)
        report = work.bring_in(place)
        assert (report.messages, report.known) == (1, 0)  # the others were not even read
        Session().user(1, None, "new").user(2, 1, "more").write(new)
        os.utime(new, (time.time() + 5, time.time() + 5))
        (place,) = work.places()
        assert (work.bring_in(place).messages, len(texts(store) & {"new", "more"})) == (1, 2)


def test_a_new_trace_of_a_sub_agent_brings_its_session_along(home: Path) -> None:
    with hitherto.open("memory:") as store:
        bring_in(store, home)
        session = next((home / ".claude" / "projects").rglob("e4c709a0*.jsonl")).with_suffix("")
        Session(session.name, isSidechain=True, agentId="zz").user(71, None, "aside").write(
            session / "subagents" / "agent-zz.jsonl"
        )
        assert bring_in(store, home) == 1
        (added,) = (message for message in store.messages() if message.text == "aside")
        assert (added.label, added.main) == ("subagent:agent:zz", False)
        assert store.stats().conversations == 1


def test_what_the_source_deletes_stays_and_a_disk_that_is_gone_is_no_deletion(home: Path) -> None:
    with hitherto.open("memory:") as store:
        bring_in(store, home)
        before = texts(store)
        os.rename(home / ".claude", home / "unmounted")
        assert list(Rescue(store, env={}, home=home).places()) == []
        assert texts(store) == before
        os.rename(home / "unmounted", home / ".claude")
        (place,) = Rescue(store, env={}, home=home).places()
        assert place.changed == ()  # it is back, and nothing is new
        for file in (home / ".claude").rglob("*.jsonl"):
            file.unlink()
        assert bring_in(store, home) == 0
        assert texts(store) == before


def test_what_was_purged_here_stays_away_and_comes_when_it_is_wanted(home: Path) -> None:
    with hitherto.open("memory:") as store:
        bring_in(store, home)
        talk = store.latest()
        assert talk is not None
        store.purge(talk, reason="user-requested")
        for file in (home / ".claude").rglob("*.jsonl"):
            os.utime(file, (time.time() + 5, time.time() + 5))
        assert bring_in(store, home) == 0
        work = Rescue(store, env={}, home=home)
        assert sum(work.bring_in(place, even_purged=True).messages for place in work.places()) == 23


def test_it_says_what_will_be_deleted_soon_unless_it_is_kept(home: Path) -> None:
    old = time.time() - 26 * DAY
    files = sorted((home / ".claude").rglob("*.jsonl"))
    os.utime(files[0], (old, old))
    with hitherto.open("memory:") as store:
        work = Rescue(store, env={}, home=home)
        (place,) = work.places()
        assert place.going == 1
        assert place.first_going is not None
        assert timedelta(days=3) < place.first_going - datetime.now(UTC) < timedelta(days=5)
        work.bring_in(place)
        (place,) = work.places()
        assert place.going == 0
        (home / ".claude" / "settings.json").write_text('{"cleanupPeriodDays": 365}')
    with hitherto.open("memory:") as store:
        (place,) = Rescue(store, env={}, home=home).places()
        assert place.going == 0


def test_variables_move_the_places_and_names_choose_programs(home: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    os.rename(home / ".claude", moved)
    with hitherto.open("memory:") as store:
        env = {"CLAUDE_CONFIG_DIR": str(moved)}
        assert [place.folder for place in Rescue(store, env=env, home=home).places()] == [moved / "projects"]
        assert len(list(Rescue(store, programs=["claude-code"], env=env, home=home).places())) == 1
        with pytest.raises(InvalidArgument, match="no such program"):
            Rescue(store, programs=["nonsense"], env=env, home=home)


def test_trouble_with_one_file_is_told_each_time_and_does_not_stop_the_others(home: Path) -> None:
    bad = home / ".claude" / "projects" / "-x" / f"{SESSION}.jsonl"
    session = Session().user(1, None, "good")
    session.lines.append("broken")
    session.user(2, 1, "after").write(bad)
    with hitherto.open("memory:") as store:
        work = Rescue(store, env={}, home=home)
        for expected in (25, 0):
            (place,) = work.places()
            report = work.bring_in(place)
            assert (report.messages, len(report.unreadable)) == (expected, 1)
        assert {"good", "after"} <= texts(store)


# -- the command


def run(home: Path, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "XDG_DATA_HOME": str(home / "data"), "NO_COLOR": "1"}
    env |= {"XDG_CONFIG_HOME": str(home / "config"), "PYTHONPATH": os.environ.get("PYTHONPATH", "")} | more
    command = [sys.executable, "-m", "hitherto", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=home, timeout=120, check=False)


def test_the_command_explains_asks_and_never_uses_the_store_of_a_folder(home: Path) -> None:
    (home / ".hitherto").mkdir()
    told = run(home, "rescue", "--explain")
    assert told.returncode == 0
    assert "Claude Code" in told.stdout
    assert "to bring in: 1 new conversation, 23 messages, 2 ends of branches, 1 sub-agent" in told.stdout
    assert not list(home.rglob("hitherto.db"))
    asked = run(home, "rescue")
    assert asked.returncode == 2
    assert "--yes brings it in" in asked.stderr
    done = run(home, "rescue", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["program"], found["new"], found["messages"], found["tokens"] > 0) == ("claude-code", 1, 23, True)
    assert [path.parent.name for path in home.rglob("hitherto.db")] == ["hitherto"]
    assert "0 new conversations, 0 messages" in run(home, "rescue", "--yes").stdout


def test_a_home_without_programs_is_told_so(tmp_path: Path) -> None:
    done = run(tmp_path, "rescue", "--yes", CLAUDE_CONFIG_DIR=str(tmp_path / "a disk that is not mounted"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "none of the programs has files here\n")


def test_a_partial_rescue_ends_with_8(home: Path) -> None:
    broken = home / ".claude" / "projects" / "-x" / f"{SESSION}.jsonl"
    Session().user(1, None, "good").write(broken, end="\nbroken\n")
    done = run(home, "rescue", "--yes")
    assert done.returncode == 8
    assert "line 2" in done.stderr


def test_watching_brings_in_what_comes(home: Path) -> None:
    place = home / "own.db"
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "hitherto", "rescue", "--watch", "--yes", "--store", str(place)]
    with subprocess.Popen(command, env=env, cwd=home, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Claude Code")
            new = home / ".claude" / "projects" / "-x" / f"{SESSION}.jsonl"
            Session().user(1, None, "while it watched").write(new)
            while "while it watched" not in watched(place):
                assert process.poll() is None
                time.sleep(0.1)
        finally:
            process.terminate()


def test_a_second_watcher_is_told_and_one_that_was_killed_keeps_nobody_out(home: Path) -> None:
    place = home / "own.db"
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    words = ["rescue", "--watch", "--yes", "--store", str(place)]
    for _ in range(2):  # the second one begins after the first was killed
        command = [sys.executable, "-m", "hitherto", *words]
        with subprocess.Popen(command, env=env, cwd=home, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("Claude Code")
                second = run(home, *words)
                assert second.returncode == 9
                assert f"process {process.pid} watches for this store already" in second.stderr
                assert "leave out --watch" in second.stderr
                assert run(home, "rescue", "--yes", "--store", str(place)).returncode == 0
            finally:
                process.kill()


@pytest.mark.parametrize("key", [None, Key(b"k" * 32)], ids=["plain", "sealed"])
def test_one_watches_at_a_time_for_each_home(home: Path, key: Key | None, tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "a.db", key=key) as store, hitherto.open(tmp_path / "a.db", key=key) as other:
        with Rescue(store, env={}, home=home).watch_alone():
            for one in (store, other):
                with pytest.raises(Busy, match=f"process {os.getpid()} watches"), _watch(one, home):
                    pass
            with _watch(other, tmp_path):  # another home
                pass
        with _watch(other, home), pytest.raises(Busy), _watch(store, home):
            pass
        other.items.put(Rescue(other, env={}, home=home)._watching(this(other.engine.opened)), b"nonsense")
        with _watch(store, home):
            pass
        left = hitherto.open(tmp_path / "a.db", key=key)
        unfinished = _watch(left, home)
        unfinished.__enter__()
        left.close()
        assert len(list(store.items.scan("imported/watching/"))) == 1
        with _watch(store, home):
            pass
        assert list(store.items.scan("imported/watching/")) == []
        unfinished.__exit__(None, None, None)


def _watch(store: Store, home: Path) -> AbstractContextManager[None]:
    return Rescue(store, env={}, home=home).watch_alone()


def watched(place: Path) -> set[str]:
    with hitherto.open(place, read_only=True) as store:
        return texts(store)


def test_the_doctor_says_what_is_about_to_go(home: Path) -> None:
    old = time.time() - 26 * DAY
    for file in (home / ".claude").rglob("*.jsonl"):
        os.utime(file, (old, old))
    with hitherto.open(home / "data" / "hitherto" / "hitherto.db") as store:
        store.start(title="one")
    told = run(home, "doctor")
    assert "Claude Code will delete 3 files within 7 days" in told.stdout
    run(home, "rescue", "--yes")
    assert "will delete" not in run(home, "doctor").stdout
