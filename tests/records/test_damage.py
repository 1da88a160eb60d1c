"""One damaged message is one entry in quarantine; its conversation stays listed, swept and written to.

Requirements: D2, D10, C14.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest

import hitherto
from hitherto import Key, Store
from hitherto.errors import Damaged, HithertoError
from hitherto.records import Records, RetentionPolicy

from ..support.databases import new_database

KEY = Key(bytes(range(32)))
Query = Callable[[str, Sequence[object]], list[tuple[object, ...]]]


class Place:
    """A store that can be opened again, and its rows."""

    def __init__(self, open_: Callable[[], Store], query: Query, table: str) -> None:
        self.open, self._query, self._table = open_, query, table

    def damage(self, *, each: bool = False) -> None:
        """Turn a bit of the first message, of one conversation or of each."""
        seen: set[object] = set()  # SQLite has a number for a conversation, PostgreSQL its id
        query = f"SELECT number, conversation, body FROM {self._table} ORDER BY number"
        for number, conversation, body in self._query(query, ()):
            assert isinstance(body, (bytes, memoryview))
            if conversation in seen:
                continue
            seen.add(conversation)
            turned = bytearray(body)
            turned[-5] ^= 1
            self._query(f"UPDATE {self._table} SET body = {{}} WHERE number = {{}}", (bytes(turned), number))
            if not each:
                return


@pytest.fixture(params=["plain", "sealed", "postgres", "sealed postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    key = KEY if request.param.startswith("sealed") else None
    if "postgres" in request.param:
        database = new_database()
        with database.admin() as admin:

            def ask(query: str, values: Sequence[object]) -> list[tuple[object, ...]]:
                found = admin.execute(query.replace("{}", "%s"), values)
                return found.fetchall() if found.description else []

            open_ = lambda: hitherto.open(database.url(), key=key, maintenance=False)  # noqa: E731  # as below
            yield Place(open_, ask, "hitherto.message")
    else:
        path = tmp_path / "store.db"

        def look(query: str, values: Sequence[object]) -> list[tuple[object, ...]]:
            connection = apsw.Connection(str(path))
            try:
                return connection.execute(query.replace("{}", "?"), tuple(values)).fetchall()
            finally:
                connection.close()

        yield Place(lambda: hitherto.open(path, key=key, maintenance=False), look, "message")


def fill(place: Place, talks: int) -> list[str]:
    with place.open() as store:
        records = Records(store)
        said = [{"role": "user", "content": f"a word, and {n} more of them"} for n in range(3)]
        return [records.create(title=f"t{n}", messages=said).conversation_id for n in range(talks)]


def test_a_damaged_message_is_one_entry_and_its_record_stays_in_every_list(place: Place) -> None:
    ids = fill(place, 3)
    place.damage()
    with place.open() as store:
        records = Records(store)
        for _ in range(3):
            with pytest.raises(Damaged):
                records.get(ids[0])
        assert [(one.conversation, one.message is None) for one in store.quarantine()] == [(ids[0], False)]
        assert [item.title for item in records.list().items] == ["t2", "t1", "t0"]
        assert records.list().total == 3
        assert [info.title for info in store.conversations()] == ["t2", "t1", "t0"]
        assert store.conversation(ids[0]).count == 3


def test_control_an_error_that_forgets_its_message_blames_the_conversation(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(place, 1)
    place.damage()
    monkeypatch.setattr(Damaged, "record", property(lambda _: None, lambda *_: None), raising=False)
    with place.open() as store:
        with pytest.raises(Damaged):
            Records(store).get(ids[0])
        assert (ids[0], None) in [(one.conversation, one.message) for one in store.quarantine()]


def test_many_reads_of_damaged_messages_leave_a_store_that_is_swept_and_written_to(place: Place) -> None:
    ids = fill(place, 12)
    place.damage(each=True)
    with place.open() as store:
        records = Records(store)
        for id in ids:
            with pytest.raises(HithertoError):
                records.get(id)
        assert len(store.quarantine()) == len(ids)
        assert store.read_only is None
        assert records.list().total == len(ids)
        latest = store.latest()
        assert latest is not None
        assert latest.title == "t11"
        plan = store.plan_sweep(RetentionPolicy(7), now=datetime.now(UTC) + timedelta(days=100))
        assert {(item.action, item.reason) for item in plan.items} == {("purge", "expired")}
        assert len(plan.items) == len(ids)
