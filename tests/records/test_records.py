"""Records: conversations as a product keeps them, over the same tree and the same store.

Requirements: D1, D2, D5, D8 (always, in `Records`), D9, D10, D12, D13.
"""

import asyncio
import copy
import hashlib
import inspect
import pickle
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from msgspec.structs import replace

import hitherto
from hitherto import Block, Conversation, Key, Message, Sanitiser, Store, formats
from hitherto._erasure.sweep import sweep_due
from hitherto.backend import Batch, Outcome, Where
from hitherto.backends.sqlite import SqliteBackend
from hitherto.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Damaged,
    Held,
    InvalidArgument,
    InvalidCursor,
    InvalidMessage,
    NotClean,
    NotFound,
    PayloadTooLarge,
)
from hitherto.records import (
    AsyncRecords,
    AttachmentRef,
    AudioRef,
    ConversationSummary,
    FramePrivacy,
    Participant,
    Record,
    Records,
    Retention,
    RetentionPolicy,
)

DAY = 86_400_000_000
START = 1_800_000_000_000_000
ID = "6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10"
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"  # of nobody
WHY = {"role": "user", "content": "Why is the build failing?"}
LINT = {"role": "assistant", "content": "The lint step fails on unused imports."}


class Clock:
    """A clock that stands still until somebody moves it."""

    now = START

    def __call__(self) -> int:
        return self.now

    def later(self, **how: float) -> datetime:
        self.now += int(timedelta(**how).total_seconds() * 1_000_000)
        return datetime.fromtimestamp(self.now / 1_000_000, UTC)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["plain", "sealed"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    key = Key(b"k" * 32) if request.param == "sealed" else None
    with hitherto.open("memory:", key=key, clock=clock, maintenance=False) as opened:
        yield opened


@pytest.fixture
def records(store: Store) -> Records:
    return Records(store)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "chats.db", key=Key(b"k" * 32), maintenance=False) as opened:
        yield opened


def commits(store: Store) -> Callable[[], int]:
    """How many times something was written since."""
    counted = [0]
    inner = store.backend.commit

    def commit(batches: list[Batch]) -> list[Outcome]:
        counted[0] += bool(batches)
        return inner(batches)

    store.backend.commit = commit  # type: ignore[method-assign,assignment]  # counting is all it does
    return lambda: counted[0]


def texts(record: Record) -> list[str]:
    return [frame.content for frame in record.messages]


# -- what a record is


def test_everything_that_is_given_comes_back(records: Records, clock: Clock) -> None:
    begun = datetime.fromtimestamp(START / 1_000_000, UTC) - timedelta(hours=1)
    ref = AttachmentRef("a1", "code", "files/a1", "0" * 64, 12)
    made = records.create(
        uuid.UUID(ID),
        title="Debugging a failing test",
        created_at=begun,
        participants=[{"id": "user-default", "role": "user", "display_name": "You"}, Participant("bot", "assistant")],
        messages=[
            {
                **WHY,
                "frame_id": "f1",
                "sequence": 1,
                "created_at": begun.isoformat(),
                "attachments": [ref],
                "audio": {"uri": "audio/f1", "format": "opus", "duration_ms": 1200},
                "privacy": {"contains_secrets": True, "rules_applied": ["own"], "pii_tokens": ["own:ab12"]},
            },
            {**LINT, "frame_id": "f2", "sequence": 2, "created_at": begun + timedelta(seconds=3)},
        ],
        summary={"synopsis": "Lint", "keywords": ["lint", "imports"], "action_items": ["remove them"]},
        retention={"expires_at": begun + timedelta(days=90), "hold": True},
        privacy={"consent": "in the first call"},
    )
    assert made == records.get(ID)
    assert (made.conversation_id, made.schema_version, made.title) == (ID, 1, "Debugging a failing test")
    assert made.created_at == begun
    assert made.last_interaction_at == begun + timedelta(seconds=3)
    assert made.participants == (Participant("user-default", "user", "You"), Participant("bot", "assistant"))
    first, second = made.messages
    assert (first.frame_id, first.sequence, first.role, first.content) == ("f1", 1, "user", WHY["content"])
    assert (first.attachments, first.audio) == ((ref,), AudioRef("audio/f1", "opus", 1200))
    assert first.privacy == FramePrivacy(True, ("own",), ("own:ab12",))
    assert (second.sequence, second.created_at, second.privacy) == (2, begun + timedelta(seconds=3), FramePrivacy())
    assert made.attachments == (ref,)
    now = datetime.fromtimestamp(clock() / 1_000_000, UTC)
    assert made.summary == ConversationSummary("Lint", now, ("lint", "imports"), ("remove them",))
    assert made.summaries == (made.summary,)
    assert made.retention == Retention(begun + timedelta(days=90), "custom", True)
    assert (made.privacy.classification, made.privacy.exportable, made.privacy.consent) == (
        "Confidential", True, "in the first call",
    )  # fmt: skip
    assert (made.storage.location, made.storage.revision) == ("memory:", made.revision)
    assert made.storage.size_bytes > 0
    assert len(made.storage.checksum) == 64


def test_the_checksum_is_of_what_the_record_says(records: Records) -> None:
    one, same, other = (records.create(title=t, messages=[{**WHY, "frame_id": "f"}]) for t in ("a", "a", "b"))
    assert one.storage.checksum == same.storage.checksum != other.storage.checksum


def test_every_conversation_of_the_store_is_a_record(store: Store, records: Records) -> None:
    talk = store.start(title="By hand")
    talk.append(Message.user("one"))
    talk.append(Message("event", (Block.text("nobody said that"),)))
    talk.append(Message.assistant([Block.text("see "), Block.image(b"\x89PNG" * 20_000, "image/png")]))
    fork = talk.fork(at=talk.thread()[0])
    found = records.get(talk.id)
    assert [(f.sequence, f.role, f.content) for f in found.messages] == [(1, "user", "one"), (2, "assistant", "see ")]
    (image,) = found.attachments
    assert (image.type, image.byte_length) == ("image", 80_000)
    assert image.checksum == hashlib.sha256(b"\x89PNG" * 20_000).hexdigest()
    fork.append(Message.assistant("another answer"))
    assert texts(records.get(talk.id)) == ["one", "another answer"]  # the thread that ends at the head
    assert records.list().items[0].message_count == 4


def test_a_compaction_does_not_hide_what_was_said_before(store: Store, records: Records) -> None:
    made = records.create(messages=[WHY, LINT])
    talk = store.conversation(made.conversation_id)
    talk.compact("In short: lint.")
    grown = records.update(made.conversation_id, append_messages=[{"role": "user", "content": "thanks", "sequence": 4}])
    assert texts(grown) == [WHY["content"], LINT["content"], "In short: lint.", "thanks"]


def test_what_the_system_says_is_in_the_record_and_no_model_is_sent_it(store: Store, records: Records) -> None:
    made = records.create(messages=[{"role": "system", "content": "The microphone is on."}, WHY])
    assert [(f.sequence, f.role) for f in made.messages] == [(1, "system"), (2, "user")]
    assert [m.text for m in store.conversation(made.conversation_id).thread()] == [WHY["content"]]


def test_what_is_kept_here_can_be_resumed_searched_and_forked(store: Store, records: Records) -> None:
    made = records.create(messages=[WHY, LINT])
    talk = store.conversation(made.conversation_id)
    assert [hit.conversation for hit in store.search("lint")] == [talk.id]
    talk.append(Message.user("thanks"))
    assert texts(records.get(talk.id))[-1] == "thanks"


def test_large_content_is_kept_in_the_store_and_named_in_the_record(file: Store) -> None:
    records = Records(file)
    records.create(ID, messages=[WHY])
    video = b"\x00\x01" * 200_000
    grown = records.update(ID, append_messages=[Message.assistant([Block.video(video, "video/mp4")], key="v")])
    (ref,) = grown.attachments
    assert (ref.type, ref.byte_length, ref.checksum) == ("video", len(video), hashlib.sha256(video).hexdigest())
    assert ref.uri == f"{ID}/{ref.attachment_id}"
    file.rotate(b"l" * 32, reencrypt=True)
    assert records.get(ID) == grown


# -- one commit


def test_a_record_is_made_and_changed_in_one_commit_each(store: Store, records: Records) -> None:
    records.create()  # whatever a store does first
    counted = commits(store)
    made = records.create(ID, title="T", participants=[{"id": "u", "role": "user"}], messages=[WHY, LINT])
    assert counted() == 1
    changed = records.update(
        ID,
        append_messages=[{"role": "user", "content": "thanks"}],
        title="U",
        summary={"synopsis": "s"},
        retention={"hold": True},
        metrics={"duration_ms": 5},
        participants=[],
        privacy={"exportable": False},
        expect_revision=made.revision,
    )
    assert counted() == 2
    assert (changed.title, len(changed.messages), changed.retention.hold) == ("U", 3, True)
    assert (changed.participants, changed.privacy.exportable, changed.metrics.duration_ms) == ((), False, 5)
    assert changed.summary is not None


def test_what_changes_nothing_writes_nothing(store: Store, records: Records) -> None:
    made = records.create(
        ID, title="T", messages=[{**WHY, "frame_id": "f1"}], participants=[{"id": "u", "role": "user"}]
    )
    counted = commits(store)
    again = records.update(
        ID,
        title="T",
        append_messages=[{**WHY, "frame_id": "f1"}],
        participants=made.participants,
        retention=made.retention,
        privacy=made.privacy,
    )
    assert (counted(), again) == (0, made)


def test_an_id_that_is_taken_is_refused_and_nothing_changes(records: Records) -> None:
    made = records.create(ID, title="first")
    with pytest.raises(AlreadyExists) as caught:
        records.create(ID, title="second", messages=[WHY])
    assert caught.value.hint
    assert records.get(ID) == made


def test_a_frame_that_is_sent_again_is_one_message_and_the_first_wins(records: Records) -> None:
    records.create(ID, messages=[{**WHY, "frame_id": "f1"}, {"role": "user", "content": "other", "frame_id": "f1"}])
    again = {"role": "user", "content": "changed", "frame_id": "f1", "sequence": 1}
    records.update(ID, append_messages=[{**LINT, "frame_id": "f2"}])
    grown = records.update(ID, append_messages=[again, {"role": "user", "content": "thanks", "frame_id": "f3"}])
    assert [frame.frame_id for frame in grown.messages] == ["f1", "f2", "f3"]  # and nothing of it is on a branch
    assert texts(grown)[0] == WHY["content"]


def test_random_frame_ids_are_taken_even_if_they_look_like_a_card(records: Records) -> None:
    odd = ["69913186-5506-4511-a72c-5e8f1096ad53", "54306014-6518-4749-8200-fea981821225"]
    made = records.create(
        messages=[{**WHY, "frame_id": id} for id in odd], participants=[{"id": odd[0], "role": "user"}]
    )
    assert [frame.frame_id for frame in made.messages] == odd
    assert made.participants[0].id == odd[0]


def test_ids_that_hold_something_personal_become_others_that_stay_apart(records: Records) -> None:
    """Or all participants would be one, and one of ten random numbers be refused for a card's."""
    cards = ["4111111111111111", "5500005555555559", "4111111111111111"]
    people = ["ann@example.org", "bob@example.org", "ann@example.org"]
    made = records.create(
        messages=[{**WHY, "frame_id": id} for id in cards], participants=[{"id": id, "role": "user"} for id in people]
    )
    assert len(made.messages) == 2  # the third is the first, sent again
    first, second, third = [one.id for one in made.participants]
    assert first == third != second
    shown = [frame.frame_id for frame in made.messages] + [first, second]
    assert not set(shown) & {*cards, *people}
    assert all("[redacted:" in id for id in shown)
    with pytest.raises(NotClean):
        records.create(messages=[{**WHY, "frame_id": SECRET}])


# -- bad input


BAD: dict[str, dict[str, Any]] = {
    "an unknown field of a frame": {"messages": [{**WHY, "sequnce": 1}]},
    "no content": {"messages": [{"role": "user"}]},
    "a role that is none": {"messages": [{"role": "tool", "content": "x"}]},
    "content that is no text": {"messages": [{"role": "user", "content": 5}]},
    "a sequence that does not fit": {"messages": [{**WHY, "sequence": 2}]},
    "sequences out of order": {"messages": [{**WHY, "sequence": 2}, {**LINT, "sequence": 1}]},
    "a time without a zone": {"messages": [{**WHY, "created_at": datetime(2026, 1, 1)}]},  # noqa: DTZ001  # that is it
    "a text for messages": {"messages": "hello"},
    "text among messages": {"messages": ["hello"]},
    "half a pair": {"messages": [{"role": "user", "content": "half \ud83d"}]},
    "half a pair in the title": {"title": "half \ud83d"},
    "a title that is no text": {"title": 5},
    "an attachment of no kind": {"messages": [{**WHY, "attachments": [AttachmentRef("a", "zip", "u", "0" * 64, 1)]}]},
    "an attachment without checksum": {"messages": [{**WHY, "attachments": [AttachmentRef("a", "code", "u", "", 1)]}]},
    "audio of no format": {"messages": [{**WHY, "audio": {"uri": "u", "format": "mp3", "duration_ms": 1}}]},
    "audio before it began": {"messages": [{**WHY, "audio": {"uri": "u", "format": "opus", "duration_ms": -5}}]},
    "half a pair in a name of a field": {"messages": [{"\ud800": 1}]},
    "a participant of no role": {"participants": [{"id": "u", "role": "boss"}]},
    "a participant without id": {"participants": [{"role": "user"}]},
    "half a pair in a name": {"participants": [{"id": "u", "role": "user", "display_name": "\ud83d"}]},
    "a summary that is text": {"summary": "short"},
    "an unknown metric": {"metrics": {"jokes": 1}},
    "a negative metric": {"metrics": {"duration_ms": -1}},
    "an unknown retention": {"retention": {"expire_at": datetime.now(UTC)}},
    "a custom retention without a time": {"retention": {"policy": "custom"}},
    "two retentions": {"retention": {"policy": "workspace-default", "expires_at": datetime.now(UTC)}},
    "an expiry without a zone": {"retention": {"expires_at": datetime(2026, 1, 1)}},  # noqa: DTZ001  # that is it
    "another classification": {"privacy": {"classification": "Public"}},
    "exportable as text": {"privacy": {"exportable": "no"}},
    "an unknown privacy": {"privacy": {"exportble": False}},
    "a message with a parent": {"messages": [Message("user", (Block.text("x"),), parent="abcdef")]},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_and_nothing_is_stored(records: Records, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        records.create(**given)
    assert records.list(include_expired=True).total == 0
    assert "hello" not in str(caught.value)
    made = records.create(ID)
    changed = {"append_messages" if name == "messages" else name: value for name, value in given.items()}
    with pytest.raises(InvalidArgument):
        records.update(ID, **changed)
    assert records.get(ID) == made


@pytest.mark.parametrize("hours", [-5, 5], ids=["after the year 9999", "before the year 1"])
def test_a_time_that_could_not_be_given_back_is_refused(records: Records, hours: int) -> None:
    """In their own zone they are times, in UTC they are none; kept, they would make a sound record a damaged one."""
    zone = timezone(timedelta(hours=hours))
    never = datetime.max.replace(tzinfo=zone) if hours < 0 else datetime.min.replace(tzinfo=zone)
    id = records.create(messages=[WHY]).conversation_id
    attempts: list[Callable[[], object]] = [
        lambda: records.update(id, retention={"expires_at": never}),
        lambda: records.update(id, summary={"synopsis": "x", "last_updated_at": never}),
        lambda: records.create(created_at=never),
        lambda: records.create(messages=[{**WHY, "created_at": never}]),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidArgument, match="years"):
            attempt()
    assert records.list().total == 1
    assert records.get(id).retention.expires_at is None


DEEP: dict[str, object] = {}
DEEP["again"] = DEEP


@pytest.mark.parametrize(
    "state",
    [{"a": "\ud800"}, {"\ud800": 1}, DEEP, {"a": b"bytes"}, {"a": float("nan")}, {"a": [float("inf")]}],
    ids=["half a character", "in a name", "a circle", "bytes", "no number", "endless"],
)
def test_a_state_that_is_no_json_is_refused(records: Records, state: dict[str, object]) -> None:
    id = records.create(messages=[WHY]).conversation_id
    with pytest.raises(InvalidMessage, match="the state") as caught:
        records.commit_snapshot(id, state)
    assert caught.value.hint
    assert records.get_snapshot(id) is None


def test_calls_that_mean_nothing_are_refused(store: Store, records: Records) -> None:
    records.create(ID)
    for wrong in (
        lambda: records.update(ID, title="x", expect_revision="1"),  # type: ignore[arg-type]
        lambda: records.update(ID, title="x", expect_revision=1, expect_version=2),
        lambda: records.list(limit=0),
        lambda: records.delete(ID, reason="nonsense"),
        lambda: records.purge_all(reason="nonsense"),
        lambda: records.commit_snapshot(ID, "text"),  # type: ignore[arg-type]
        lambda: records.create("not an id"),
        lambda: Records("chats.db"),  # type: ignore[arg-type]
        lambda: Records(store, sanitiser="all"),  # type: ignore[arg-type]
        lambda: Records(store, retention=30),  # type: ignore[arg-type]
        lambda: AsyncRecords(store),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            wrong()
    with pytest.raises(InvalidCursor):
        records.list(cursor=store.conversations(limit=1).next_cursor or "x")
    assert records.get(ID).title == ""


def test_text_beside_messages_counts_to_the_write(clock: Clock) -> None:
    """D12: one write, one limit; nothing of it is stored."""
    with hitherto.open("memory:", clock=clock, max_write_bytes=2000) as store:
        records = Records(store)
        many: list[dict[str, Any]] = [
            {"title": "x" * 2001},
            {"summary": {"synopsis": "x" * 2001}},
            {"participants": [{"id": "u", "role": "user", "display_name": "x" * 2001}]},
            {"messages": [{"role": "user", "content": "x" * 1000}], "summary": {"synopsis": "x" * 1000}},
        ]
        for given in many:
            with pytest.raises(PayloadTooLarge):
                records.create(**given)
        assert records.list().total == 0
        records.create(messages=[{"role": "user", "content": "x" * 1000}], summary={"synopsis": "x" * 800})
        assert records.list().total == 1


def test_after_close_everything_raises_closed(store: Store, records: Records) -> None:
    records.create(ID)
    store.close()
    for call in (
        records.create,
        lambda: records.update(ID, title="x"),
        lambda: records.get(ID),
        records.list,
        lambda: records.delete(ID, reason="user-requested"),
        lambda: records.purge_all(reason="user-requested"),
        lambda: records.commit_conversation(ID),
        lambda: records.commit_snapshot(ID, {}),
        lambda: records.get_snapshot(ID),
    ):
        with pytest.raises(Closed):
            call()


# -- who was faster


def test_an_update_of_an_older_revision_is_a_conflict_that_carries_the_newer(records: Records) -> None:
    made = records.create(ID, messages=[WHY])
    grown = records.update(ID, append_messages=[LINT], expect_revision=made.revision)
    with pytest.raises(Conflict) as caught:
        records.update(ID, append_messages=[WHY], title="late", expect_version=made.revision)
    assert (caught.value.expected, caught.value.head) == (made.revision, grown.revision)
    assert records.get(ID) == grown
    records.update(ID, append_messages=[{"role": "user", "content": "thanks"}], expect_revision=grown.revision)


def test_whatever_a_reader_could_tell_moves_the_revision(store: Store, records: Records) -> None:
    made = records.create(ID, messages=[WHY, LINT])
    talk = store.conversation(ID)
    steps: list[Callable[[], object]] = [
        lambda: talk.append(Message.user("more")),
        lambda: talk.rename("other"),
        lambda: talk.label("good"),
        talk.hold,
        talk.release,
        lambda: store.delete([str(talk.at)]),
        lambda: records.update(ID, summary={"synopsis": "s"}),
        lambda: records.update(ID, participants=[{"id": "u", "role": "user"}]),
        lambda: records.update(ID, metrics={"duration_ms": 7}),
        lambda: records.update(ID, privacy={"exportable": False}),
        lambda: records.update(ID, retention={"expires_at": datetime.now(UTC) + timedelta(days=9)}),
    ]
    last = made.revision
    for step in steps:
        step()
        now = records.get(ID).revision
        assert now > last
        last = now


def test_the_revision_stands_still_while_a_store_is_packed_and_gets_another_key(file: Store) -> None:
    """The control: the row's own version moves by it, and would make a conflict of it."""
    records = Records(file)
    records.create(ID, messages=[{"role": "user", "content": f"{n}"} for n in range(80)], summary={"synopsis": "s"})
    made = records.update(ID, participants=[{"id": "u", "role": "user"}])
    version = file.backend.lookup(ids=[uuid.UUID(ID).bytes])[0].version
    file.maintain()
    file.rotate(b"l" * 32)
    file.rotate(b"m" * 32, reencrypt=True)
    file.maintain()
    file.unseal()
    file.seal(b"n" * 32)
    assert records.get(ID) == made
    assert file.verify().problems == ()
    assert file.backend.lookup(ids=[uuid.UUID(ID).bytes])[0].version > version
    records.update(ID, title="no conflict", expect_revision=made.revision)


HAMMER = """
import sys, hitherto
from hitherto.records import Records
path, name, id, many = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with hitherto.open(path, key=b"k" * 32) as store:
    records = Records(store)
    sys.stdin.readline()
    for n in range(many):
        while True:
            record = records.get(id)
            counted = record.metrics.duration_ms + 1
            said = {"role": "user", "content": f"{name} {n}", "sequence": len(record.messages) + 1}
            try:
                records.update(id, append_messages=[said], metrics={"duration_ms": counted},
                               expect_revision=record.revision)
                break
            except hitherto.Conflict:
                pass
"""


def test_two_processes_that_update_one_record_lose_nothing(tmp_path: Path) -> None:
    many, path = 15, tmp_path / "chats.db"
    with hitherto.open(path, key=Key(b"k" * 32)) as store:
        records = Records(store)
        records.create(ID, metrics={"duration_ms": 0})
        program = [sys.executable, "-c", HAMMER, str(path)]
        names = ("left", "right")
        running = [subprocess.Popen([*program, name, ID, str(many)], stdin=subprocess.PIPE) for name in names]
        for process in running:
            assert process.stdin is not None
            process.stdin.close()  # both go
        assert [process.wait(60) for process in running] == [0, 0]
        found = records.get(ID)
    assert found.metrics.duration_ms == 2 * many
    for name in names:
        assert [text for text in texts(found) if text.startswith(name)] == [f"{name} {n}" for n in range(many)]
    assert [frame.sequence for frame in found.messages] == list(range(1, 2 * many + 1))


def test_the_control_without_a_revision_the_later_of_two_wins(store: Store) -> None:
    one, other = Records(store), Records(store)
    one.create(ID, metrics={"duration_ms": 0})
    seen = one.get(ID), other.get(ID)
    for records, record in zip((one, other), seen, strict=True):
        records.update(ID, metrics={"duration_ms": record.metrics.duration_ms + 1}, append_messages=[WHY])
    assert one.get(ID).metrics.duration_ms == 1  # one of the two was lost
    assert len(one.get(ID).messages) == 2  # but no message ever is


# -- lists


def test_lists_go_by_the_last_interaction_and_their_cursor_outlives_its_anchor(
    store: Store, records: Records, clock: Clock
) -> None:
    """D2."""
    ids = []
    for n in range(7):
        ids.append(records.create(title=f"t{n}", messages=[WHY]).conversation_id)
        clock.later(minutes=1)
    records.update(ids[2], append_messages=[LINT])
    first = records.list(limit=3)
    assert [item.title for item in first] == ["t2", "t6", "t5"]
    assert (len(first), first.total) == (3, 7)
    records.delete(first.items[-1].conversation_id, reason="user-requested")
    rest = records.list(limit=10, cursor=first.next_cursor)
    assert [item.title for item in rest.items] == ["t4", "t3", "t1", "t0"]
    assert (rest.next_cursor, rest.total) == (None, 6)
    assert records.list(limit=6).next_cursor is None
    with pytest.raises(InvalidCursor):
        store.conversations(cursor=first.next_cursor)


def test_a_list_reads_the_rows_that_it_shows_and_counts_the_others_without_reading_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(store)
    for _ in range(300):
        store.start()
    read = rows_read(store, monkeypatch)
    found = records.list(limit=5)
    assert (len(found), found.total) == (5, 300)
    assert read() <= 10
    assert store.conversations(limit=5, total=True).total == 300
    assert read() <= 10


def rows_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many rows of conversations were read since the last call."""
    counted, inner = [0], store.backend.lookup

    def lookup(*given: Any, **more: Any) -> Any:
        found = inner(*given, **more)
        counted[0] += len(found)
        return found

    monkeypatch.setattr(store.backend, "lookup", lookup)

    def since() -> int:
        found, counted[0] = counted[0], 0
        return found

    return since


def test_the_total_is_left_out_if_it_is_not_wanted(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    records.create(title="one")
    monkeypatch.setattr(records._store.backend, "count", lambda _: pytest.fail("it was counted"))
    assert records.list(total=False).total is None
    with pytest.raises(InvalidArgument):
        records.list(total=1)  # type: ignore[arg-type]  # on purpose


def test_a_total_by_project_leaves_out_what_is_in_quarantine_if_it_is_sealed(store: Store) -> None:
    ids = [store.start(project=f"/p{n % 2}").id for n in range(6)]
    store.engine.quarantine.add(uuid.UUID(ids[0]).bytes, None, "it was tampered with")
    out = 0 if store.engine.codec.in_clear else 1
    assert store.conversations(total=True).total == 6 - out
    assert store.conversations(project="/p0", total=True).total == 3 - out
    assert store.conversations(project="/p1", total=True).total == 3
    assert Records(store).list().total == 6 - out


def test_a_time_is_taken_as_text_wherever_it_is_taken(records: Records) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for given in (when, "2026-01-02T03:04:05Z", "2026-01-02T05:04:05+02:00"):
        assert records.create(created_at=given).created_at == when
        framed = records.create(messages=[{**WHY, "created_at": given}])
        assert framed.messages[0].created_at == when
    for wrong in ("soon", "2026-01-02T03:04:05", "", "2026-13-02T03:04:05Z", "\ud800", 5, when.replace(tzinfo=None)):
        with pytest.raises(InvalidArgument, match="created_at"):
            records.create(created_at=wrong)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"messages": [{**WHY, "sequnce": 1}]}, "'sequnce'"),
        ({"messages": [{**WHY, "privacy": {"secrets": True}}]}, "'secrets' in privacy"),
        ({"metrics": {"jokes": 1}}, "'jokes'"),
        ({"retention": {"expire_at": None}}, "'expire_at'"),
        ({"privacy": {"exportble": False}}, "'exportble'"),
        ({"summary": {"synopsis": "x", "a`b\n": 1}}, r"'a`b\n'"),
        ({"participants": [{"id": "a", "role": "user", "nme": "x"}]}, "'nme'"),
        ({"metrics": {SECRET: 1}}, "[redacted:"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_an_unknown_field_is_named_and_no_secret_is(records: Records, given: Any, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        records.create(**given)
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        records.create(metrics={"x" * 100_000: 1})
    assert len(str(caught.value)) < 200


def test_what_was_tampered_with_is_not_counted_however_often_it_was_before(file: Store, tmp_path: Path) -> None:
    records = Records(file)
    ids = [records.create(messages=[WHY]).conversation_id for _ in range(3)]
    assert (records.list().total, records.list().total) == (3, 3)
    with closing(apsw.Connection(str(tmp_path / "chats.db"))) as raw, raw:
        raw.execute("UPDATE conversation SET held = 1 WHERE id = ?", [uuid.UUID(ids[0]).bytes])
    found = records.list()
    assert (found.total, {item.conversation_id for item in found}) == (2, set(ids[1:]))


def test_what_is_due_is_in_no_list_unless_it_is_asked_for_and_is_seen_to_be_due(store: Store, clock: Clock) -> None:
    records = Records(store, retention=RetentionPolicy(days=14))
    now = datetime.fromtimestamp(START / 1_000_000, UTC)
    quiet = records.create(title="quiet", messages=[WHY])
    records.create(title="kept longer", messages=[WHY], retention={"expires_at": now + timedelta(days=90)})
    records.create(title="own", messages=[WHY], retention={"expires_at": now + timedelta(days=1)})
    assert quiet.retention == Retention(now + timedelta(days=14))
    clock.later(days=15)
    fresh = records.create(title="fresh", messages=[WHY])
    found = records.list()
    assert [item.title for item in found] == ["fresh", "kept longer"]
    assert found.total == 2
    pages = [records.list(limit=1), records.list(limit=1, cursor=records.list(limit=1).next_cursor)]
    assert [page.items[0].title for page in pages] == ["fresh", "kept longer"]
    assert pages[1].next_cursor is None
    everything = records.list(include_expired=True)
    assert everything.total == 4
    assert {item.title for item in everything if item.retention.expired} == {"quiet", "own"}
    assert records.get(quiet.conversation_id).retention.expired
    assert not records.get(fresh.conversation_id).retention.expired
    store.sweep()
    assert records.list(include_expired=True).total == 2
    with pytest.raises(NotFound):
        records.get(quiet.conversation_id)


def test_the_retention_that_is_given_is_kept_in_the_store(store: Store) -> None:
    Records(store, retention=RetentionPolicy(days=14))
    assert store.retention == RetentionPolicy(days=14)
    counted = commits(store)
    Records(store, retention=RetentionPolicy(days=14))
    Records(store)
    assert (store.retention, counted()) == (RetentionPolicy(days=14), 0)


def test_an_expiry_of_its_own_is_set_and_taken_away(store: Store, clock: Clock) -> None:
    records = Records(store, retention=RetentionPolicy(days=30))
    made = records.create(ID, messages=[WHY])
    soon = made.last_interaction_at + timedelta(days=2)
    assert records.update(ID, retention={"expires_at": soon}).retention == Retention(soon, "custom")
    back = records.update(ID, retention={"policy": "workspace-default"})
    assert back.retention == made.retention
    records.update(ID, retention={"expires_at": soon, "policy": "custom", "hold": True})
    clock.later(days=3)
    assert store.sweep().purged_count == 0  # on hold
    records.update(ID, retention={"hold": False})
    assert store.sweep().purged_count == 1


def test_stores_that_sweep_by_themselves_hear_that_there_is_an_expiry_to_mind(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    """Without a policy there is nothing else to look for."""
    soon = datetime.fromtimestamp(START / 1_000_000, UTC) + timedelta(days=1)
    records = Records(store)
    records.create(title="made with it", retention={"expires_at": soon})
    formats.save(store, tmp_path / "a.jsonl")
    with (
        hitherto.open("memory:", clock=clock, maintenance=False) as updated,
        hitherto.open("memory:", clock=clock, maintenance=False) as loaded,
    ):
        Records(updated).create(ID)
        Records(updated).update(ID, retention={"expires_at": soon})
        formats.load(tmp_path / "a.jsonl", loaded)
        for one in (store, updated, loaded):
            assert sweep_due(one.engine, None, clock()).purged_count == 0
        clock.later(days=2)
        for one in (store, updated, loaded):
            assert sweep_due(one.engine, None, clock()).purged_count == 1


# -- the end


def test_delete_has_a_reason_and_minds_a_hold(records: Records) -> None:
    records.create(ID, retention={"hold": True})
    with pytest.raises(Held):
        records.delete(ID, reason="user-requested")
    records.update(ID, retention={"hold": False})
    report = records.delete(ID, reason="privacy-policy-change")
    assert (report.reason, report.purged_count, report.failures) == ("privacy-policy-change", 1, ())
    with pytest.raises(NotFound):
        records.get(ID)


def test_purge_all_takes_everything_but_what_is_on_hold_and_says_what_that_is(store: Store, records: Records) -> None:
    """D9, D10."""
    heard: list[hitherto.events.Event] = []
    store.subscribe(heard.append)
    for n in range(100):
        records.create(title=f"t{n}", messages=[{"role": "user", "content": f"needle {n}"}])
    held = [records.create(title="held", retention={"hold": True}).conversation_id for _ in range(2)]
    store.start(title="by hand")
    assert len(store.search("needle", limit=200)) == 100
    told: list[tuple[int, int]] = []
    counted = commits(store)
    report = records.purge_all(reason="workspace-reset", progress=lambda *how: told.append(how))
    assert (report.reason, report.purged_count, report.scrub_pending) == ("workspace-reset", 101, False)
    assert sorted(id for id, _ in report.failures) == sorted(held)
    assert all("hold" in error for _, error in report.failures)
    assert counted() < 40  # many in one commit
    assert (told[0], told[-1]) == ((0, 103), (103, 103))
    assert {item.conversation_id for item in records.list()} == set(held)
    assert store.search("needle") == []
    assert store.wait_for_listeners()
    assert sum(isinstance(event, hitherto.events.ConversationDeleted) for event in heard) == 101
    (done,) = [event for event in heard if isinstance(event, hitherto.events.PurgeCompleted)]
    assert (done.reason, done.purged_count) == ("workspace-reset", 101)


def test_purge_all_takes_conversations_of_every_kind(store: Store, records: Records) -> None:
    """K1: a reset that leaves the threads of a framework would not be one."""
    records.create(messages=[WHY])
    store.ensure("thread-1", kind="langgraph").append(Message.user("needle"))
    assert records.purge_all(reason="workspace-reset").purged_count == 2
    assert store.find("thread-1", kind="langgraph") is None
    assert store.stats().conversations == 0


def test_a_purge_of_all_that_was_stopped_is_finished_by_the_next(records: Records) -> None:
    for n in range(50):
        records.create(title=f"t{n}")

    def stop(done: int, _: int) -> None:
        if done > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        records.purge_all(reason="workspace-reset", progress=stop)
    left = records.list().total
    assert left is not None
    assert 0 < left < 50
    assert records.purge_all(reason="workspace-reset").purged_count == left
    assert records.list().total == 0
    assert records.purge_all(reason="workspace-reset").purged_count == 0


def test_what_was_tampered_with_is_purged_only_for_that_reason(file: Store, tmp_path: Path) -> None:
    """It may have been on hold."""
    records = Records(file)
    bad, good = records.create(messages=[WHY]).conversation_id, records.create(messages=[WHY]).conversation_id
    with closing(apsw.Connection(str(tmp_path / "chats.db"))) as raw, raw:
        raw.execute("UPDATE conversation SET size = size + 1 WHERE id = ?", [uuid.UUID(bad).bytes])
    report = records.purge_all(reason="workspace-reset")
    assert (report.purged_count, [id for id, _ in report.failures]) == (1, [bad])
    with pytest.raises(NotFound):
        records.get(good)
    assert records.purge_all(reason="corruption-detected").purged_count == 1


def test_purging_a_thousand_takes_a_few_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, commits = SqliteBackend.commit, list[int]()

    def counted(self: SqliteBackend, batches: Sequence[Batch]) -> list[Outcome]:
        commits.append(len(batches))
        return commit(self, batches)

    with hitherto.open(tmp_path / "chats.db", maintenance=False) as store:
        for _ in range(1000):
            store.save([Message.user("x")])
        monkeypatch.setattr(SqliteBackend, "commit", counted)
        assert Records(store).purge_all(reason="workspace-reset").purged_count == 1000
    assert len(commits) < 100


# -- metrics, summaries, snapshots


def test_a_commit_keeps_what_was_counted_and_clears_the_snapshot_at_once(
    store: Store, records: Records, clock: Clock
) -> None:
    """D1."""
    records.create(ID, messages=[WHY])
    clock.later(seconds=2)
    records.update(ID, append_messages=[LINT, {"role": "user", "content": "thanks"}])
    clock.later(seconds=4)
    records.update(ID, append_messages=[{"role": "assistant", "content": "my pleasure"}])
    records.commit_snapshot(ID, {"turn": 4})
    counted = commits(store)
    done = records.commit_conversation(ID, summary={"synopsis": "lint"}, metrics={"duration_ms": 6500})
    assert counted() == 1
    m = done.metrics
    assert (m.user_utterances, m.assistant_utterances, m.duration_ms, m.average_latency_ms) == (2, 2, 6500, 3000)
    assert records.get_snapshot(ID) is None
    assert done.summary is not None
    assert records.commit_conversation(ID, summary=done.summary) == done
    assert counted() == 1  # idempotent
    grown = records.update(ID, append_messages=[{"role": "user", "content": "one more"}])
    assert (grown.metrics.user_utterances, grown.metrics.duration_ms) == (3, 6500)  # counted anew; what was given stays


def test_each_summary_is_a_shard_of_its_own_and_the_newest_is_the_summary(records: Records, clock: Clock) -> None:
    records.create(ID, messages=[WHY], summary={"synopsis": "first"})
    clock.later(hours=1)
    records.update(ID, summary={"synopsis": "second"}, append_messages=[LINT])
    found = records.get(ID)
    assert [shard.synopsis for shard in found.summaries] == ["first", "second"]
    assert found.summary == found.summaries[-1]
    assert found.summary.last_updated_at - found.summaries[0].last_updated_at == timedelta(hours=1)


def test_a_snapshot_is_kept_for_the_case_that_the_end_never_comes(store: Store, records: Records) -> None:
    records.create(ID, messages=[WHY])
    assert records.get_snapshot(ID) is None
    assert records.get_snapshot(str(uuid.uuid4())) is None
    revision = records.get(ID).revision
    records.commit_snapshot(ID, {"cursor": 7, "draft": f"token={SECRET}"})
    found = records.get_snapshot(ID)
    assert found is not None
    assert (found.conversation_id, found.state["cursor"], [m.text for m in found.messages]) == (ID, 7, [WHY["content"]])
    assert SECRET not in str(found.state)
    records.commit_snapshot(ID, replace(found, state={"cursor": 8}))
    again = records.get_snapshot(ID)
    assert again is not None
    assert again.state == {"cursor": 8}
    assert records.get(ID).revision == revision  # it is nothing that a reader of the record could tell
    assert store.verify().problems == ()


# -- cleaned


def everywhere(**more: Any) -> dict[str, Any]:
    """A secret wherever there is text."""
    text = f"my {SECRET} here"
    return {
        "title": text,
        "participants": [{"id": SECRET, "role": "user", "display_name": text}],
        "messages": [
            {"role": "user", "content": text, "attachments": [AttachmentRef(SECRET, "code", text, "0" * 64, 1)]},
            {"role": "system", "content": text, "audio": {"uri": text, "format": "opus", "duration_ms": 1}},
            Message.assistant(text, raw={"content": text}, extra={"note": text}),
        ],
        "summary": {"synopsis": text, "keywords": [text], "action_items": [text]},
        "privacy": {"consent": text},
        **more,
    }


def kept(folder: Path, records: Records, store: Store) -> bool:
    """Did it reach a file, or a reader?"""
    made = records.create(**everywhere())
    changed = {**everywhere(), "append_messages": everywhere()["messages"]}
    del changed["messages"]
    record = records.update(made.conversation_id, **changed)
    records.commit_conversation(made.conversation_id, summary=everywhere()["summary"])
    records.commit_snapshot(made.conversation_id, {"text": everywhere()["title"]})
    store.search("here")
    found = any(SECRET.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return found or SECRET in str(record)


def test_no_secret_reaches_a_file_and_the_control_without_rules_they_do(tmp_path: Path) -> None:
    """D8: always, in `Records`."""
    for folder, sanitiser, reaches in (("clean", None, False), ("control", Sanitiser(()), True)):
        (tmp_path / folder).mkdir()
        with hitherto.open(tmp_path / folder / "chats.db") as store:
            assert kept(tmp_path / folder, Records(store, sanitiser=sanitiser), store) is reaches


def test_what_was_taken_out_of_a_frame_is_noted_in_it(records: Records) -> None:
    said = [{"role": "user", "content": f"token={SECRET}, joe@example.com"}, WHY]
    first, second = records.create(messages=said).messages
    assert first.privacy.contains_secrets
    assert len(first.privacy.rules_applied) == 2
    assert len(first.privacy.pii_tokens) == 2
    assert "joe@example.com" not in first.content
    assert second.privacy == FramePrivacy()


# -- what lies beside the messages goes where they go


def full(records: Records) -> Record:
    records.create(
        ID,
        title="T",
        messages=[WHY, LINT],
        participants=[{"id": "u", "role": "user", "display_name": "You"}],
        summary={"synopsis": "first"},
        metrics={"duration_ms": 5},
        privacy={"consent": "yes"},
    )
    return records.update(
        ID, summary={"synopsis": "second"}, retention={"expires_at": datetime(2060, 1, 1, tzinfo=UTC)}
    )


def told(record: Record) -> tuple[object, ...]:
    return record.participants, record.summaries, record.privacy, record.metrics, record.retention, texts(record)


def test_a_record_goes_through_a_file_of_lines_and_comes_out_the_same(store: Store, tmp_path: Path) -> None:
    made = full(Records(store))
    formats.save(store, tmp_path / "a.jsonl")
    with hitherto.open("memory:") as other:
        formats.load(tmp_path / "a.jsonl", other)
        there = Records(other)
        assert told(there.get(ID)) == told(made)
        assert other.verify().problems == ()
        formats.save(other, tmp_path / "b.jsonl")
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
        assert there.update(ID, summary={"synopsis": "third"}).summaries[2].synopsis == "third"
        assert other.plan_sweep(RetentionPolicy(), now=datetime(2060, 1, 2, tzinfo=UTC)).purges


def test_an_expiry_at_the_very_beginning_of_1970_goes_through_a_file_too(store: Store, tmp_path: Path) -> None:
    Records(store).create(ID, retention={"expires_at": datetime(1970, 1, 1, tzinfo=UTC)})
    formats.save(store, tmp_path / "a.jsonl")
    with hitherto.open("memory:", maintenance=False) as other:
        formats.load(tmp_path / "a.jsonl", other)
        assert Records(other).get(ID).retention.expires_at == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_file_with_a_record_that_is_none_is_refused(store: Store, tmp_path: Path) -> None:
    full(Records(store))
    formats.save(store, tmp_path / "a.jsonl")
    whole = (tmp_path / "a.jsonl").read_text()
    for n, (good, bad) in enumerate(
        [('"duration_ms":5', '"jokes":5'), ('"role":"user","display_name"', '"boss":"user","display_name"')]
    ):
        assert good in whole
        (tmp_path / f"{n}.jsonl").write_text(whole.replace(good, bad, 1))
        with hitherto.open("memory:") as other, pytest.raises(hitherto.HithertoError):
            formats.load(tmp_path / f"{n}.jsonl", other)


def test_a_copy_and_a_detached_thread_have_the_record_too(store: Store) -> None:
    made = full(Records(store))
    with hitherto.open("memory:", key=Key(b"o" * 32)) as other:
        formats.copy(store, other)
        assert told(Records(other).get(ID)) == told(made)
    talk = store.conversation(ID).detach()
    copied = Records(store).get(talk.id)
    assert (copied.participants, copied.summaries, copied.privacy) == (made.participants, made.summaries, made.privacy)
    assert store.verify().problems == ()


def test_an_older_state_of_a_record_that_is_put_back_is_noticed(file: Store, tmp_path: Path) -> None:
    """D7. The control: the newer state that is put back again is good."""
    records = Records(file)
    records.create(ID, messages=[WHY], participants=[{"id": "u", "role": "user"}], summary={"synopsis": "s"})
    take, put = "SELECT body FROM item WHERE key = ?", "UPDATE item SET body = ? WHERE key = ?"
    with closing(apsw.Connection(str(tmp_path / "chats.db"))) as raw:
        [(older,)] = raw.execute(take, [b"record"]).fetchall()
        made = records.update(ID, participants=[])
        [(newer,)] = raw.execute(take, [b"record"]).fetchall()
        raw.execute(put, [older, b"record"])
        assert [problem.what for problem in file.verify().problems] != []
        with pytest.raises(Damaged):
            records.get(ID)
        with pytest.raises(Damaged):
            records.update(ID, title="x", participants=[])
        raw.execute(put, [newer, b"record"])
        assert records.get(ID) == made
        raw.execute("DELETE FROM item WHERE key = ?", [b"summary/000001"])
        with pytest.raises(Damaged):
            records.get(ID)


def test_nothing_of_a_record_is_left_when_it_is_purged(file: Store, tmp_path: Path) -> None:
    records = Records(file)
    full(records)
    records.delete(ID, reason="user-requested")
    with closing(apsw.Connection(str(tmp_path / "chats.db"))) as raw, raw:
        left = [bytes(key) for (key,) in raw.execute("SELECT key FROM item")]
    assert not [key for key in left if key.startswith((b"record", b"summary"))]
    assert file.backend.count(Where()) == 0


# -- awaited


def test_both_colours_have_the_same_names_and_parameters() -> None:
    def public(kind: type) -> dict[str, Any]:
        return {name: value for name, value in vars(kind).items() if not name.startswith("_") or name == "__init__"}

    ours, theirs = public(AsyncRecords), public(Records)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        mine, plain = inspect.signature(ours[name]).parameters, inspect.signature(value).parameters
        assert {n: p.default for n, p in mine.items()} == {n: p.default for n, p in plain.items()}, name
        assert inspect.iscoroutinefunction(ours[name]) or name == "__init__"


def test_everything_works_awaited() -> None:
    async def main() -> None:
        async with hitherto.open_async("memory:") as store:
            records = AsyncRecords(store, retention=RetentionPolicy(days=14))
            made = await records.create(ID, title="T", messages=[WHY])
            assert await store.retention() == RetentionPolicy(days=14)
            grown = await records.update(ID, append_messages=[LINT], expect_revision=made.revision)
            assert {"messages", "storage"} <= vars(grown).keys()  # nobody waits for them in the event loop
            talk = await store.conversation(ID)
            assert await records.get(talk) == grown == await records.get(uuid.UUID(ID))
            await records.commit_snapshot(ID, {"a": 1})
            assert (await records.get_snapshot(ID)) is not None
            assert (await records.commit_conversation(ID)).metrics.user_utterances == 1
            assert (await records.list()).total == 1
            await records.delete(talk, reason="user-requested")
            await records.create()
            assert (await records.purge_all(reason="workspace-reset")).purged_count == 1

    asyncio.run(main())


# -- what is not looked at is not read


class Watched:
    """The reads of a backend."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        for name in ("path", "chunks", "packs"):
            monkeypatch.setattr(store.backend, name, self._watched(name, getattr(store.backend, name)))
        items = store.backend.items

        def items_seen(conversation: bytes, prefix: bytes = b"", **how: Any) -> Any:
            found = items(conversation, prefix, **how)
            self.seen += ["summary"] * sum(item.key.startswith(b"summary/") for item in found)
            return found

        monkeypatch.setattr(store.backend, "items", items_seen)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **how: Any) -> Any:
            self.seen.append(name)
            return call(*args, **how)

        return watched

    def new(self) -> list[str]:
        seen, self.seen = self.seen, []
        return seen


def test_who_writes_reads_nothing_of_what_was_said(
    store: Store, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A title takes as long for a record of ten thousand messages as for one of two."""
    id = records.create(messages=[WHY, LINT], summary={"synopsis": "one"}).conversation_id
    watched = Watched(store, monkeypatch)
    for n in range(3):
        record = records.update(id, title=f"t{n}", summary={"synopsis": f"{n}"})
        assert watched.new() == ["summary", "summary"]  # the newest, before and after
    assert [one.synopsis for one in record.summaries] == ["one", "0", "1", "2"]
    assert "path" in watched.new()
    assert (record.metrics.user_utterances, len(record.messages), record.storage.revision) == (1, 2, record.revision)
    assert watched.new() == []  # it was read once


def test_what_is_read_later_is_what_was_there_then(store: Store, records: Records) -> None:
    record = records.create(ID, title="first", messages=[WHY], summary={"synopsis": "one"})
    before = records.get(ID)
    records.update(ID, title="second", append_messages=[LINT], summary={"synopsis": "two"})
    assert record == before
    assert (texts(record), len(record.summaries)) == ([WHY["content"]], 1)
    made = records.update(ID, title="third")
    assert msgspec.json.encode(made) == msgspec.json.encode(records.get(ID))
    assert copy.copy(records.update(ID, title="third")) == made
    assert pickle.loads(pickle.dumps(records.update(ID, title="third"))) == made
    assert WHY["content"] not in repr(made)
    with pytest.raises(AttributeError, match="no content"):
        made.content  # type: ignore[attr-defined]  # noqa: B018
    late = records.update(ID, title="fourth")
    records.delete(ID, reason="user-requested")
    assert (late.title, made.title) == ("fourth", "third")
    with pytest.raises(NotFound):
        _ = late.messages


def test_attachments_are_read_for_their_checksum_once_and_in_a_plain_store_never(
    file: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(7).randbytes(200_000)
    seen = []
    with hitherto.open("memory:") as plain:
        for store in (plain, file):
            records, watched = Records(store), Watched(store, monkeypatch)
            id = store.start().append(Message("user", (Block("file", data, "binary"),))).conversation
            sums = [records.get(id).attachments[0].checksum for _ in range(2)]
            assert sums == [hashlib.sha256(data).hexdigest()] * 2
            seen.append(watched.new().count("chunks"))
    assert seen == [0, 1]


def test_a_handle_stands_where_it_stood_after_an_update(store: Store, records: Records) -> None:
    records.create(ID, messages=[WHY])
    talk: Conversation = store.conversation(ID)
    records.update(ID, append_messages=[LINT], title="U")
    talk.append(Message.user("a branch"), on_conflict="branch")
    assert [m.text for m in talk.thread()] == [WHY["content"], "a branch"]
    assert talk.refresh().title == "U"


def test_what_is_on_hold_stays_in_every_list_although_it_is_due(tmp_path: Path) -> None:
    now = [1_700_000_000_000_000]
    with hitherto.open(tmp_path / "h.db", clock=lambda: now[0], maintenance=False) as store:
        records = Records(store, retention=RetentionPolicy(days=7))
        kept, gone = records.create(title="kept"), records.create(title="gone")
        own = records.create(title="own", retention={"expires_at": datetime(2023, 11, 15, tzinfo=UTC)})
        for one in (kept, own):
            records.update(one.conversation_id, retention={"hold": True})
        now[0] += 30 * 86_400_000_000
        page = records.list()
        assert {item.title for item in page} == {"kept", "own"}
        assert page.total == 2
        assert {info.title for info in store.conversations()} == {"kept", "own", "gone"}
        records.update(own.conversation_id, retention={"hold": False})
        assert {item.title for item in records.list()} == {"kept"}
        assert records.get(gone.conversation_id).retention.expired
