"""Bundles: the conversations of a period in a folder that proves itself.

Requirements: K2, issue 28 section 2.
"""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Message, Sanitiser, Store, bundles, formats
from hitherto.backend import Batch, Change
from hitherto.errors import AlreadyExists, Damaged, InvalidArgument, NotFound
from hitherto.records import Records

from ..support.command import World

START = 1_767_225_600_000_000  # the first of January 2026
DAY = 86_400 * 1_000_000


class Clock:
    now = START

    def __call__(self) -> int:
        self.now += 1
        return self.now


def day(count: float) -> datetime:
    return datetime.fromtimestamp(START / 1e6, UTC) + timedelta(days=count)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with hitherto.open(tmp_path / "c.db", clock=clock, maintenance=False) as store:
        yield store


def said(store: Store, clock: Clock, *days: float, text: str = "hi", kind: str = "chat") -> str:
    clock.now = START + int(days[0] * DAY)
    talk = store.ensure(f"{kind}/{clock.now}", kind=kind)
    for at in days:
        clock.now = max(clock.now, START + int(at * DAY))
        talk.append(Message.user(text))
    return talk.id


def ids_in(folder: Path) -> set[str]:
    with hitherto.open("memory:") as fresh:
        for path in sorted(folder.glob("*.jsonl")):
            formats.load(path, fresh)
        kinds = ("chat", "langgraph")
        return {info.id for kind in kinds for info in fresh.conversations(kind=kind, limit=5000, include_expired=True)}


def test_a_bundle_has_the_conversations_of_its_period_and_no_others(
    store: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2."""
    monkeypatch.setattr(bundles, "_IN_A_FILE", 2)
    said(store, clock, 1), said(store, clock, 40)  # before and after
    within = {said(store, clock, 11), said(store, clock, 12, kind="langgraph"), said(store, clock, 5, 15)}
    within.add(said(store, clock, 19, 30))  # begun before the end
    done = bundles.write(store, tmp_path / "b", since=day(10), until=day(20))
    assert ids_in(tmp_path / "b") == within
    assert (done.conversations, done.messages, done.kept_in, done.unreadable) == (4, 6, 0, ())
    assert [file.conversations for file in done.files] == [2, 2]
    assert bundles.check(tmp_path / "b", digest=done.digest).ok
    assert bundles.check(tmp_path / "b").manifest == done


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def replace_by_link(path: Path) -> None:
    path.rename(path.parent.parent / "away")
    path.symlink_to(path.parent.parent / "away")


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (
        lambda b: (b / "conversations-0001.jsonl").write_bytes(b"{}\n"),
        "conversations-0001.jsonl was changed",
    ),
    "a byte": (
        lambda b: (b / "conversations-0001.jsonl").write_bytes(
            (b / "conversations-0001.jsonl").read_bytes().replace(b"hi", b"ho", 1)
        ),
        "conversations-0001.jsonl was changed",
    ),
    "missing": (lambda b: (b / "conversations-0001.jsonl").unlink(), "conversations-0001.jsonl is missing"),
    "added": (lambda b: (b / "more.jsonl").write_text("{}"), "more.jsonl was added"),
    "a folder": (lambda b: (b / "more").mkdir(), "more was added"),
    "a link": (lambda b: replace_by_link(b / "conversations-0001.jsonl"), "conversations-0001.jsonl was changed"),
    "a count": (
        lambda b: rewrite(b / "manifest.json", '"messages": 1', '"messages": 2'),
        "manifest.json was changed",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_was_changed_is_missing_or_was_added_is_named(
    store: Store, clock: Clock, tmp_path: Path, harm: str
) -> None:
    said(store, clock, 11)
    bundles.write(store, tmp_path / "b", since=day(10), until=day(20))
    assert bundles.check(tmp_path / "b").ok  # the control
    do, expected = HARM[harm]
    do(tmp_path / "b")
    assert bundles.check(tmp_path / "b").problems == (expected,)


def test_a_manifest_that_was_made_anew_needs_the_digest_from_elsewhere(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    said(store, clock, 11)
    done = bundles.write(store, tmp_path / "b", since=day(10), until=day(20))
    said(store, clock, 12)
    bundles.write(store, tmp_path / "other", since=day(10), until=day(20))
    assert bundles.check(tmp_path / "other").ok
    assert not bundles.check(tmp_path / "other", digest=done.digest).ok


def test_what_must_not_leave_stays_and_what_cannot_be_read_is_named(store: Store, clock: Clock, tmp_path: Path) -> None:
    inside, bad, good = (said(store, clock, 11 + n) for n in range(3))
    Records(store).update(inside, privacy={"exportable": False})
    row = store.conversation(bad).state.row
    message = store.backend.messages(numbers=[row.head])[0] if row.head is not None else None
    assert message is not None
    after = replace(row, token=b"x" * 16, version=row.version + 1)
    store.backend.commit([Batch((Change(row.id, row.token, after, amend=(replace(message, body=b"bad!"),)),))])
    done = bundles.write(store, tmp_path / "b", since=day(10), until=day(20))
    assert (done.conversations, done.kept_in, done.unreadable) == (1, 1, (bad,))
    assert ids_in(tmp_path / "b") == {good}


def test_redacted_means_without_secrets(store: Store, clock: Clock, tmp_path: Path) -> None:
    said(store, clock, 11, text="write to ada@example.com")
    plain = bundles.write(store, tmp_path / "plain", since=day(10), until=day(20))
    clean = bundles.write(store, tmp_path / "clean", since=day(10), until=day(20), sanitiser=Sanitiser.everything())
    texts = [(tmp_path / name / "conversations-0001.jsonl").read_text() for name in ("plain", "clean")]
    assert ["ada@example.com" in text for text in texts] == [True, False]
    assert (plain.redacted, clean.redacted) == (False, True)


def test_memory_does_not_grow_with_the_number_of_conversations(store: Store, clock: Clock, tmp_path: Path) -> None:
    """Each is two hundred kilobytes: all together would take as many megabytes."""
    peaks = []
    for count in (10, 40):
        for n in range(count):
            said(store, clock, 11 + n / 100, text="x" * 200_000)
        tracemalloc.start()
        bundles.write(store, tmp_path / f"b{count}", since=day(10), until=day(20))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_arguments_that_are_none_and_folders_that_are_no_bundles(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="ends before it starts"):
        bundles.write(store, tmp_path / "b", since=day(2), until=day(1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(AlreadyExists):
        bundles.write(store, tmp_path / "full", since=day(1), until=day(2))
    with pytest.raises(NotFound):
        bundles.check(tmp_path / "full")
    (tmp_path / "full" / "manifest.json").write_text('{"hitherto": "bundle"')
    with pytest.raises(Damaged, match="cut short or edited"):
        bundles.check(tmp_path / "full")
    empty = bundles.write(store, tmp_path / "empty", since=day(1), until=day(2))
    assert (empty.conversations, empty.files, bundles.check(tmp_path / "empty").ok) == (0, (), True)


def test_the_command_line_writes_one_and_checks_it(world: World) -> None:
    with world.store(maintenance=False) as store:
        store.start().append(Message.user("hi"))
    period = ("--between", "1h", "2100-01-01")
    done = world.command("export", *period, "--manifest", "-o", "b")
    digest = done.stdout.strip()
    assert (done.returncode, len(digest)) == (0, 64)
    done = world.command("verify", "--bundle", "b", "--digest", digest, "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)
    (world.here / "b" / "conversations-0001.jsonl").unlink()
    done = world.command("verify", "--bundle", "b")
    assert (done.returncode, "conversations-0001.jsonl is missing" in done.stderr) == (7, True)
    assert world.command("export", *period, "-o", "c").returncode == 2
