"""A quota for a workspace: what does not fit is refused, what removes never is, in every process that has it open."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Saved, Store, events, formats
from hitherto._engine import quota
from hitherto.errors import InvalidArgument, StorageFull
from hitherto.events import CapacityWarning, Event

KEY = Key(bytes(range(32)))
LARGE = 100_000


@pytest.fixture(params=["memory", "plain", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = "memory:" if request.param == "memory" else tmp_path / "chats.db"
    with hitherto.open(place, key=KEY if request.param == "sealed" else None) as store:
        yield store


def text(size: int) -> Message:
    return Message.user("x" * size)


def say_until_refused(talk: Conversation, size: int = 1000) -> tuple[int, StorageFull]:
    for count in range(10_000):
        try:
            talk.append(text(size))
        except StorageFull as error:
            return count, error
    raise AssertionError("nothing was refused")


def told(store: Store, heard: list[Event]) -> list[tuple[str, int]]:
    assert store.wait_for_listeners()
    return [(event.what, event.limit_bytes) for event in heard if isinstance(event, CapacityWarning)]


def test_without_a_quota_nothing_is_refused(store: Store) -> None:
    talk = store.start()
    assert store.quota is None
    talk.append(text(LARGE))
    assert LARGE <= store.used_bytes < LARGE + 1000


def test_a_write_that_does_not_fit_is_refused_and_says_what_to_do(store: Store) -> None:
    talk = store.start()
    store.set_quota(50_000)
    assert store.quota == 50_000
    count, refused = say_until_refused(talk)
    assert 45 <= count <= 50
    assert "50,000" in str(refused)
    assert "purge" in str(refused.hint)
    assert "set_quota" in str(refused.hint)
    assert len(talk.thread()) == count
    assert store.used_bytes <= 50_000
    with pytest.raises(StorageFull):
        store.save([text(10_000)])
    assert len(store.conversations().items) == 1
    talk.append(text(10))  # it is about what fits
    assert store.verify().ok


def test_attachments_count_and_leave_nothing_when_they_are_refused(store: Store) -> None:
    import random

    image = random.Random(1).randbytes(300_000)
    talk = store.start()
    store.set_quota(200_000)
    for _ in range(2):
        with pytest.raises(StorageFull):
            talk.append(Message.user([Block.image(image, "image/png")]))
    assert store.used_bytes == 0
    store.set_quota(400_000)
    talk.append(Message.user([Block.image(image, "image/png")]))
    assert 300_000 <= store.used_bytes < 310_000
    with pytest.raises(StorageFull):
        talk.append(text(LARGE))


def test_what_removes_is_never_refused_and_then_there_is_room(store: Store) -> None:
    kept, goes = store.start(), store.start()
    store.set_quota(100_000)
    goes.append(text(60_000))
    last = kept.append(text(30_000))
    say_until_refused(kept)
    kept.rename("what is small is not refused either")
    kept.hold()
    kept.release()
    store.purge(goes, reason="user-requested")
    kept.append(text(50_000))  # at once
    say_until_refused(kept)
    store.delete([last.id], recursive=True)
    store.conversation(kept.id).append(text(80_000))
    assert store.verify().ok


def test_the_quota_can_be_raised_lowered_and_taken_away(store: Store) -> None:
    talk = store.start()
    talk.append(text(LARGE))
    store.set_quota(10)  # less than there is
    say_until_refused(talk)
    assert len(talk.thread()) == 1
    store.set_quota(2 * LARGE)
    talk.append(text(1000))
    store.set_quota(None)
    assert store.quota is None
    talk.append(text(3 * LARGE))


def test_what_is_kept_already_takes_no_room_and_is_given_back(store: Store) -> None:
    """Whoever did not hear that a message was kept says it again, with the same key."""
    talk = store.start()
    store.set_quota(10_000)
    kept = talk.append(Message.user("x" * 6000, key="first"))
    assert talk.append(Message.user("x" * 6000, key="first")) == kept
    more = [Message.user("x" * 6000, key="first"), Message.user("x" * 3000, key="second")]
    assert talk.extend(more)[0] == kept
    for key in ("third", None):  # the control
        with pytest.raises(StorageFull):
            talk.append(Message.user("x" * 6000, key=key))
    assert len(talk.thread()) == 2


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "10", 1 << 63])
def test_a_quota_is_a_number_of_bytes(store: Store, wrong: object) -> None:
    with pytest.raises(InvalidArgument):
        store.set_quota(wrong)  # type: ignore[arg-type]
    assert store.quota is None


def test_imports_are_refused_too(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "from.db") as source:
        source.start().append(text(LARGE))
        formats.save(source, tmp_path / "all.jsonl")
    with hitherto.open(tmp_path / "to.db") as store:
        store.set_quota(1000)
        with pytest.raises(StorageFull):
            formats.load(tmp_path / "all.jsonl", store)
        assert store.used_bytes == 0


# -- others


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_others_who_have_it_open_go_by_it_and_by_what_others_used(
    tmp_path: Path, key: Key | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a few seconds, which are none here."""
    monkeypatch.setattr(quota, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(quota, "_COUNT_SECONDS", 0.0)
    monkeypatch.setattr(quota, "_PATIENCE", 0)
    with hitherto.open(tmp_path / "c.db", key=key) as one, hitherto.open(tmp_path / "c.db", key=key) as other:
        mine, theirs = one.start(), other.start()
        one.set_quota(100_000)
        theirs.append(text(60_000))
        mine.append(text(30_000))
        with pytest.raises(StorageFull):
            theirs.append(text(20_000))
        with pytest.raises(StorageFull):
            mine.append(text(20_000))
        one.purge(theirs.id, reason="user-requested")
        other.conversation(mine.id).append(text(60_000))
        other.set_quota(None)
        mine.append(text(90_000), on_conflict="follow")


def test_it_is_kept_in_the_store_for_its_workspace_alone(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db", workspace="a") as store:
        store.set_quota(1000)
    with hitherto.open(tmp_path / "c.db", workspace="a") as store:
        assert store.quota == 1000
        with pytest.raises(StorageFull):
            store.start().append(text(2000))
    with hitherto.open(tmp_path / "c.db", workspace="b") as store:
        assert store.quota is None
        store.start().append(text(2000))
        assert 2000 <= store.used_bytes < 2100


# -- who is told, and what it costs


def test_it_is_told_at_nine_tenths_and_when_it_is_used_up_once_each_until_it_has_fallen(store: Store) -> None:
    heard: list[Event] = []
    store.subscribe(heard.append)
    kept, goes = store.start(), store.start()
    store.set_quota(100_000)
    goes.append(text(80_000))
    assert told(store, heard) == []
    kept.append(text(12_000))
    assert told(store, heard) == [("quota", 100_000)]
    kept.append(text(1000))
    assert len(told(store, heard)) == 1
    for _ in range(3):
        with pytest.raises(StorageFull):
            kept.append(text(20_000))
    assert len(told(store, heard)) == 2
    store.purge(goes, reason="user-requested")
    kept.append(text(50_000))
    assert len(told(store, heard)) == 2
    with pytest.raises(StorageFull):
        kept.append(text(90_000))
    assert len(told(store, heard)) == 3


def test_what_is_used_is_not_counted_at_every_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    used = store.backend.used

    def counting() -> int:
        counted.append(1)
        return used()

    monkeypatch.setattr(store.backend, "used", counting)
    talk = store.start()
    talk.append(text(10))
    assert counted == []  # without a quota, never
    store.set_quota(10_000_000)
    for _ in range(50):
        talk.append(text(1000))
    assert len(counted) <= 2


def test_the_same_awaited(tmp_path: Path) -> None:
    async def run() -> None:
        async with hitherto.open_async(tmp_path / "c.db") as store:
            await store.set_quota(1000)
            assert await store.quota() == 1000
            talk = await store.start()
            with pytest.raises(StorageFull):
                await talk.append(text(2000))
            assert await store.used_bytes() == 0

    asyncio.run(run())


def test_a_log_handler_that_writes_to_the_store_may_hear_of_the_quota(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning of a full queue comes while the event of the quota is emitted, and the quota's lock is free by then."""
    talk, other = store.start(), store.start()
    store.set_quota(50_000)
    store.subscribe(lambda _: None)
    monkeypatch.setattr(events, "_MAX_QUEUE", -1)  # the next event is dropped, which is the first warning
    written: list[Saved] = []

    class Handler(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            if not written:
                written.append(other.append(text(10)))

    def write() -> None:
        talk.append(text(48_000))

    handler = Handler()
    logging.getLogger("hitherto").addHandler(handler)
    try:
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        logging.getLogger("hitherto").removeHandler(handler)
    assert len(written) == len(talk.thread()) == 1
    assert "a listener is too slow" in caplog.text
