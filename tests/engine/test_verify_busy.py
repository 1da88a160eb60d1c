"""`verify` of a store that others use reports what it could read, and names the rest.

The storage answers `Busy` for some conversations, as it does when others hold them: the errors are made here, the rest
is real.

Requirements: C14, D7.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Block, Key, Message, Store
from hitherto.attachment import LARGE
from hitherto.cli import _purge_verify
from hitherto.errors import Busy, Unavailable
from hitherto.testing.conformance import id_bytes, noise

from ..support.command import World
from ..support.databases import new_database


@pytest.fixture(params=["memory", "sqlite", "sealed", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    key = Key(b"k" * 32) if request.param == "sealed" else None
    place = {"memory": "memory:", "postgres": ""}.get(request.param, str(tmp_path / "store.db"))
    with hitherto.open(place or new_database().url(), key=key, maintenance=False) as opened:
        yield opened


def fill(store: Store, talks: int) -> list[str]:
    found = []
    for n in range(talks):
        talk = store.start(title=f"t{n}")
        talk.extend([Message.user("why?"), Message.assistant("because")])
        found.append(talk.id)
    return found


def make_busy(store: Store, monkeypatch: pytest.MonkeyPatch, is_busy: Callable[[bytes], bool]) -> None:
    scan = store.backend.scan

    def scanned(conversation: bytes, *given: Any, **more: Any) -> Any:
        if is_busy(conversation):
            raise Busy("others hold the lock")
        return scan(conversation, *given, **more)

    monkeypatch.setattr(store.backend, "scan", scanned)


def test_conversations_that_are_busy_are_named_and_the_others_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(store, 6)
    busy = {id_bytes(store.conversation(id)): id for id in (ids[1], ids[4])}
    make_busy(store, monkeypatch, busy.__contains__)
    seen: list[int] = []
    report = store.verify(seen.append)
    assert (report.conversations, report.messages, report.problems) == (4, 8, ())
    assert {problem.conversation for problem in report.unread} == set(busy.values())
    assert all("others hold the lock" in problem.what for problem in report.unread)
    assert (report.ok, report.is_complete) == (False, False)
    assert seen[-1] == 4


def test_control_a_store_that_nobody_uses_is_read_whole(store: Store) -> None:
    fill(store, 3)
    report = store.verify()
    assert (report.ok, report.is_complete, report.unread, report.conversations) == (True, True, (), 3)


def test_a_conversation_that_is_free_when_its_turn_comes_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(store, 3)
    asked: list[bytes] = []
    first = id_bytes(store.conversation(ids[0]))

    def is_busy(id: bytes) -> bool:
        asked.append(id)
        return id == first and asked.count(id) == 1

    make_busy(store, monkeypatch, is_busy)
    report = store.verify()
    assert asked.count(first) > 1
    assert (report.ok, report.messages) == (True, 6)


def test_problems_are_found_beside_what_is_busy(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(store, 2)
    talk = store.start()
    bad = talk.append(Message.user(Block.image(noise(LARGE), "image/png")))
    busy = id_bytes(store.conversation(ids[0]))
    make_busy(store, monkeypatch, busy.__eq__)
    chunks = store.backend.chunks
    monkeypatch.setattr(store.backend, "chunks", lambda *given: iter(list(chunks(*given))[:0]))
    report = store.verify()
    assert {problem.message for problem in report.problems} == {bad.id}
    assert {problem.conversation for problem in report.unread} == {ids[0]}


def test_a_store_that_is_busy_as_a_whole_is_not_asked_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 30)
    make_busy(store, monkeypatch, lambda _: True)
    monkeypatch.setattr(store.backend, "check", lambda: _raise(Busy("locked")))
    report = store.verify()
    assert (report.ok, report.conversations, report.problems) == (False, 0, ())
    told = [str(problem) for problem in report.unread]
    assert len(told) == 10
    assert "not checked" in told[0]
    assert "no more were tried" in told[-1]


def _raise(error: Exception) -> Any:
    raise error


def test_a_place_that_is_gone_is_still_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 2)
    monkeypatch.setattr(store.backend, "scan", lambda *_, **__: _raise(Unavailable("nobody answers")))
    with pytest.raises(Unavailable):
        store.verify()


def test_it_is_read_while_others_write_all_the_time(store: Store) -> None:
    talk = store.conversation(fill(store, 1)[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            talk.append(Message.user("on and on"))
            talk.label("a label")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            report = store.verify()
            assert report.problems == ()
            assert {problem.conversation for problem in report.unread} <= {talk.id, None}
    finally:
        stop.set()
        writer.join()
    assert store.verify().ok


def test_the_command_line_says_what_it_could_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.store() as store:
        ids = fill(store, 2)
        busy = id_bytes(store.conversation(ids[0]))
        make_busy(store, monkeypatch, busy.__eq__)
        report = store.verify()
    assert _purge_verify.verify_fields(report) == {
        "ok": False,
        "conversations": 1,
        "messages": 2,
        "problems": [],
        "unread": [{"what": "others hold the lock", "conversation": ids[0], "message": None}],
    }
    assert _purge_verify.verify_code(report) == 9
    sound = world.command("verify", "--json")
    assert (sound.returncode, json.loads(sound.stdout)["unread"]) == (0, [])
