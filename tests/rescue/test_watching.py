"""Watching: what changes on the disk is found, whatever way it changes, and half a line waits.

Requirements: F2.
"""

import os
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

import hitherto
from hitherto._system import folder_watch
from hitherto._system.folder_watch import FolderWatch
from hitherto.rescue import Rescue

from ..formats.test_claude_code import Session
from .test_rescue import SESSION, texts

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no inotify here")


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderWatch]:
    """A watch that looks everywhere after minutes only: what it says before, it was told."""
    monkeypatch.setattr(folder_watch, "_ANYHOW_SECONDS", 300.0)
    with FolderWatch() as watch:
        assert not watch.is_polling
        yield watch


def append(root: Path) -> None:
    with open(root / "a" / "old.jsonl", "a", encoding="utf-8") as file:
        file.write("more")


def replace(root: Path) -> None:
    other = root.parent / "other.jsonl"
    other.write_text("new", encoding="utf-8")
    os.replace(other, root / "a" / "old.jsonl")


def rotate(root: Path) -> None:
    os.rename(root / "a" / "old.jsonl", root / "a" / "old.1.jsonl")


def delete(root: Path) -> None:
    (root / "a" / "old.jsonl").unlink()


def make_folders(root: Path) -> None:
    (root / "b" / "c").mkdir(parents=True)


@on_linux
@pytest.mark.parametrize("change", [append, replace, rotate, delete, make_folders])
def test_a_change_is_seen_where_it_is(watch: FolderWatch, tmp_path: Path, change: Callable[[Path], None]) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    other.mkdir()
    (root / "a").mkdir(parents=True)
    (root / "a" / "old.jsonl").write_text("old", encoding="utf-8")
    watch.cover([root, other])
    change(root)
    assert watch.wait() == {root}


@on_linux
def test_a_new_folder_is_watched_from_the_next_look_on(watch: FolderWatch, tmp_path: Path) -> None:
    watch.cover([tmp_path])
    (tmp_path / "b" / "c").mkdir(parents=True)
    assert watch.wait() == {tmp_path}
    watch.cover([tmp_path])
    (tmp_path / "b" / "c" / "new.jsonl").touch()
    assert watch.wait() == {tmp_path}


@on_linux
def test_a_folder_that_is_made_later_or_anew_is_seen(watch: FolderWatch, tmp_path: Path) -> None:
    root = tmp_path / "program" / "sessions"
    for _ in range(2):
        watch.cover([root])
        (tmp_path / "program").mkdir()
        assert watch.wait() == {root}
        watch.cover([root])
        root.mkdir()
        assert watch.wait() == {root}
        watch.cover([root])
        (root / "new.jsonl").touch()
        assert watch.wait() == {root}
        (root / "new.jsonl").unlink()
        root.rmdir()
        (tmp_path / "program").rmdir()
        assert watch.wait() == {root}


@on_linux
def test_a_file_is_watched_also_when_it_is_replaced(watch: FolderWatch, tmp_path: Path) -> None:
    root = tmp_path / "logs.db"
    for _ in range(2):
        watch.cover([root])
        other = tmp_path / "other"
        other.touch()
        os.replace(other, root)
        assert watch.wait() == {root}


@on_linux
def test_after_an_overflow_everything_is_looked_at(watch: FolderWatch, tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text(encoding="ascii"))
    watch.cover([tmp_path])
    with open(tmp_path / "a", "wb", 0) as one, open(tmp_path / "b", "wb", 0) as other:  # the same twice is one event
        for file in islice(cycle((one, other)), most):
            file.write(b"x")
    assert watch.wait() is None
    (tmp_path / "a").unlink()
    assert watch.wait() == {tmp_path}


def test_without_inotify_it_looks_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(folder_watch, "_POLL_SECONDS", 0.01)
    with FolderWatch() as watch:
        assert watch.is_polling
        watch.cover([tmp_path, tmp_path / "not there"])
        assert watch.wait() is None


@on_linux
def test_more_folders_than_the_kernel_watches_are_polled(
    watch: FolderWatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(folder_watch, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(watch, "_add_watch", lambda *_: -28)  # ENOSPC, for which this machine has no low limit
    watch.cover([tmp_path])
    assert watch.is_polling
    assert watch.wait() is None


def test_half_a_last_line_waits_for_its_end(tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "projects"
    folder.mkdir(parents=True)
    whole = tmp_path / "whole"
    Session().user(1, None, "first").user(2, 1, "second").write(whole)
    first, second = whole.read_bytes().splitlines(keepends=True)
    with hitherto.open("memory:") as store:
        work = Rescue(store, env={}, home=tmp_path)
        places = work.follow()
        session = folder / "-new" / f"{SESSION}.jsonl"
        session.parent.mkdir()
        session.write_bytes(first + second[:50])
        report = work.bring_in(next(places))
        assert (report.messages, len(report.waiting), report.unreadable) == (1, 1, ())
        with open(session, "ab") as file:
            file.write(second[50:])
        report = work.bring_in(next(places))
        assert (report.messages, report.waiting) == (1, ())
        rotated = folder / "-new" / "other.jsonl"
        os.replace(session, rotated)
        Session().user(1, None, "first").user(3, 1, "instead").write(session)
        while "instead" not in texts(store):  # the event of the rename may come alone
            work.bring_in(next(places))
        assert texts(store) == {"first", "second", "instead"}
