"""A purge reports what went, by id, and what did not, by id and error.

Requirements: D9.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import hitherto
from hitherto import Key, Message, Store
from hitherto.cli._purge_verify import _destroy
from hitherto.errors import Damaged, Held
from hitherto.events import Event, PurgeCompleted, PurgeFailure
from hitherto.records import Records

from ..support.command import World
from ..support.databases import new_database


@pytest.fixture(params=["memory", "sqlite", "sealed", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    key = Key(b"k" * 32) if request.param == "sealed" else None
    place = {"memory": "memory:", "postgres": ""}.get(request.param, str(tmp_path / "store.db"))
    with hitherto.open(place or new_database().url(), key=key, maintenance=False) as opened:
        yield opened


def test_a_purge_names_what_it_destroyed(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("hello"))
    report = store.purge(talk, reason="user-requested")
    assert (report.purged, report.purged_count, report.failures) == ((talk.id,), 1, ())


def test_a_purge_of_everything_names_what_went_and_what_stayed(store: Store) -> None:
    heard: list[Event] = []
    store.subscribe(heard.append)
    talks = [store.start() for _ in range(5)]
    talks[2].hold()
    report = Records(store).purge_all(reason="workspace-reset")
    assert set(report.purged) == {talk.id for n, talk in enumerate(talks) if n != 2}
    assert len(report.purged) == report.purged_count == 4
    (failure,) = report.failures
    assert isinstance(failure, PurgeFailure)
    assert (failure.id, "hold" in failure.error) == (talks[2].id, True)
    assert tuple(failure) == (failure.id, failure.error)
    if store.scrub():
        store.wait_for_listeners()
        assert [event.failures for event in heard if isinstance(event, PurgeCompleted)] == [(failure,)]


def damage(path: Path) -> None:
    """Turn a bit of the first message of each conversation."""
    connection = apsw.Connection(str(path))
    query = "SELECT min(number), body FROM message GROUP BY conversation"
    for number, body in connection.execute(query).fetchall():
        assert isinstance(body, bytes)
        turned = bytearray(body)
        turned[-5] ^= 1
        connection.execute("UPDATE message SET body = ? WHERE number = ?", (bytes(turned), number))
    connection.close()


def test_a_purge_of_the_quarantine_names_each_message(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with hitherto.open(path, maintenance=False) as store:
        talks = [store.start() for _ in range(3)]
        said = [talk.append(Message.user("hello")) for talk in talks]
        damage(path)
        for message in said:
            with pytest.raises(Damaged):
                store.message(message)
        talks[1].hold()
        report = store.purge_quarantine()
        assert set(report.purged) == {said[0].id, said[2].id}
        assert [failure.id for failure in report.failures] == [said[1].id]


def test_the_command_line_names_what_it_destroyed(world: World) -> None:
    with world.store() as store:
        ids = [store.start(title=f"talk {n}").id for n in range(3)]
    done = world.command("purge", *ids[:2], "--yes", "--json")
    assert done.returncode == 0
    assert [json.loads(line)["ids"] for line in done.stdout.splitlines()] == [[ids[0]], [ids[1]]]


def test_the_command_line_goes_on_past_one_that_others_put_on_hold_meanwhile(store: Store) -> None:
    talk = store.start()
    talk.hold()  # after it was looked at
    report = _destroy(store, talk, "user-requested", alone=False)
    assert (report.purged, [failure.id for failure in report.failures]) == ((), [talk.id])
    with pytest.raises(Held):
        _destroy(store, talk, "user-requested", alone=True)
