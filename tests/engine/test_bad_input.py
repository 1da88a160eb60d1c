"""Bad input gets a typed error, and nothing is stored.

Every refusal here is checked twice: the error is one of ours, and the store is row for row what it was before.
Beside the refusals stand the inputs that look bad and are not, so that "refuse everything" does not pass.

Requirements: C2, C3, C4, C6, C7, C8, C9, D2, D12, D19, and the rules for errors in STYLE.
"""

import base64
import datetime
import decimal
import functools
import inspect
import os
import re
import signal
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Block, Conversation, Message, Store, errors, threads
from hitherto.backend import Where
from hitherto.backends.memory import MemoryBackend
from hitherto.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Damaged,
    Held,
    HithertoError,
    InvalidArgument,
    InvalidCursor,
    InvalidID,
    InvalidMessage,
    NotFound,
    PayloadTooLarge,
    StorageError,
)
from hitherto.ids import RUN
from hitherto.listing import write_cursor
from hitherto.model import Role, Usage
from hitherto.reports import Partial
from hitherto.snapshots import FileStore, MemoryFiles, Snapshot

from ..support.waiting import until

Call = Callable[[Store, Conversation], object]

SURROGATE = "half \ud83d of a pair"
UUID = "6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with hitherto.open("memory:" if request.param == "memory" else tmp_path / "chats.db") as opened:
        yield opened


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[Store]:
    with hitherto.open(tmp_path / "chats.db") as opened:
        yield opened


@pytest.fixture
def talk(store: Store) -> Conversation:
    return filled(store)


def filled(store: Store) -> Conversation:
    """A conversation with a setup, a fork and a sub-agent."""
    talk = store.start(title="Build", system_prompt="Be brief.", provider="p", model="m", metadata={"a": "b"})
    root = talk.append(Message.user("Why?", label="first", key="k1"))
    talk.append(Message.assistant("Because."))
    talk.fork(root.id, main=False).append(Message.assistant("Or not."))
    talk.subagent("scout", "1").append(Message.user("Look."))
    return talk


def contents(store: Store) -> object:
    """Every row there is, and what the store says about itself."""
    backend = store.backend
    rows: list[object] = [store.stats(), backend.kinds()]
    for kind in backend.kinds():
        for place in backend.page(Where(kind), None, 10_000):
            rows += [place, backend.lookup(ids=[place.id])]
            rows += [backend.scan(place.id, limit=1_000_000), backend.items(place.id), backend.attachments(place.id)]
    rows += [backend.packs(range(0, backend.edge(), RUN))]
    tables = ("migration", "workspace", "conversation", "message", "item", "tag")
    if backend.info.name == "sqlite":
        look = apsw.Connection(backend.info.location, flags=apsw.SQLITE_OPEN_READONLY)
        rows += [look.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in tables]
        beside = ("pack", "attachment", "chunk", "reference")  # staged for nobody, too
        rows += [look.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in beside]
        look.close()
    return rows


@contextmanager
def refused(
    store: Store, error: type[HithertoError] | tuple[type[HithertoError], ...]
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises this error, which has a proper hint, and stores nothing."""
    before = contents(store)
    with pytest.raises(error) as caught:
        yield caught
    assert isinstance(caught.value, HithertoError)
    assert caught.value.hint is None or (isinstance(caught.value.hint, str) and caught.value.hint)
    assert str(caught.value)
    assert contents(store) == before


def test_the_check_for_nothing_stored_notices_what_is_stored(store: Store, talk: Conversation) -> None:
    """The negative control of every test below."""
    for change in (
        lambda: talk.append(Message.user("x")),
        lambda: talk.rename("new"),
        lambda: talk.label("new"),
        lambda: talk.configure(model="new"),
        lambda: store.backend.stage(talk.state.id, b"name", 0, [b"chunk"], last=False, at=0),
        store.maintain,
        store.start,
    ):
        before = contents(store)
        change()
        assert contents(store) != before


# -- ids

WRONG_IDS: list[Any] = [
    "",
    "x" * 1_000_000,
    "ab\0def",
    "abcdef\0",
    "аbcdef",  # the first letter is Cyrillic
    "ａbcdef",  # and here it is a wide one
    "abcde\u0301",
    "１２３４５６",
    "٢٣٤٥٦٧",
    "'; DROP TABLE message; --",
    "' OR '1'='1",
    'a" --',
    "../../etc/passwd",
    "..",
    "/abcde",
    "abcdef\n",
    "\nabcdef",
    "abcdef ",
    "%s%s%s",
    "\ud800bcdef",
    "\x1b[31mred",
    5,
    True,
    1.5,
    b"abcdef",
    ["abcdef"],
    {"id": "abcdef"},
    object(),
]

MESSAGE_ID_TAKERS: dict[str, Callable[[Store, Conversation, Any], object]] = {
    "message": lambda store, _, id: store.message(id),
    "get": lambda store, _, id: store.get([id]),
    "delete": lambda store, _, id: store.delete([id]),
    "delete missing_ok": lambda store, _, id: store.delete([id], missing_ok=True),
    "thread": lambda store, _, id: store.thread(id),
    "threads.thread": lambda store, _, id: threads.thread(store, id),
    "save parent": lambda store, _, id: store.save([Message.user("x")], parent=id),
    "save message.parent": lambda store, _, id: store.save([Message("user", parent=id)]),
    "fork": lambda _, talk, id: talk.fork(id),
    "subagent": lambda _, talk, id: talk.subagent("a", "1", call=id),
    "label": lambda _, talk, id: talk.label("x", message=id),
    "expect_head": lambda _, talk, id: talk.append(Message.user("x"), expect_head=id),
}
CONVERSATION_ID_TAKERS: dict[str, Callable[[Store, Conversation, Any], object]] = {
    "conversation": lambda store, _, id: store.conversation(id),
    "messages": lambda store, _, id: store.messages(conversation=id),
    "save": lambda store, _, id: store.save([Message.user("x")], conversation=id),
    "purge": lambda store, _, id: store.purge(id, reason="user-requested"),
    "start": lambda store, _, id: store.start(id=id),
}


@pytest.mark.parametrize("taker", MESSAGE_ID_TAKERS)
def test_what_has_not_the_shape_of_a_message_id_is_an_invalid_id(store: Store, talk: Conversation, taker: str) -> None:
    """C4, C7, C9."""
    for id in WRONG_IDS:
        with refused(store, InvalidID):
            MESSAGE_ID_TAKERS[taker](store, talk, id)


@pytest.mark.parametrize("taker", CONVERSATION_ID_TAKERS)
def test_what_has_not_the_shape_of_a_conversation_id_is_an_invalid_id(
    store: Store, talk: Conversation, taker: str
) -> None:
    """C4; `start(id=…)` takes the caller's own id, and only a canonical one."""
    for id in WRONG_IDS:
        with refused(store, InvalidID):
            CONVERSATION_ID_TAKERS[taker](store, talk, id)


@pytest.mark.parametrize("taker", [*MESSAGE_ID_TAKERS, *CONVERSATION_ID_TAKERS])
def test_an_id_of_the_right_shape_that_nobody_has_is_not_found(store: Store, talk: Conversation, taker: str) -> None:
    """C7, C9: the error names what is missing."""
    call = {**MESSAGE_ID_TAKERS, **CONVERSATION_ID_TAKERS}[taker]
    if taker in ("start", "delete missing_ok", "expect_head"):
        pytest.skip("an unknown id is good here, or a conflict")
    for id in ("000000", "OOIIll", "zzzzzzzz") if taker in MESSAGE_ID_TAKERS else (UUID,):
        with refused(store, NotFound) as caught:
            call(store, talk, id)
        assert id in caught.value.ids


@pytest.mark.parametrize(
    "id",
    [
        UUID.upper(),
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        f"urn:uuid:{UUID}",
        UUID + "\n",
        " " + UUID,
        UUID[:-1],
        UUID + "0",
        UUID.replace("0", "٠"),
        UUID.replace("-", "\u2010"),
        f"../{UUID}",
        uuid.UUID(UUID).bytes,
    ],
)
def test_only_a_canonical_uuid_starts_a_conversation(store: Store, talk: Conversation, id: Any) -> None:
    with refused(store, InvalidID):
        store.start(id=id)
    assert store.start(id=UUID).id == UUID  # the control


def test_an_id_that_is_taken_is_not_started_again(store: Store, talk: Conversation) -> None:
    with refused(store, AlreadyExists):
        store.start(id=talk.id, title="another")
    assert store.conversation(talk.id).title == "Build"


def test_the_row_of_the_workspace_is_no_conversation(store: Store, talk: Conversation) -> None:
    """Its id can be read in the file; it must not open, purge or list anything."""
    (row,) = store.backend.page(Where("workspace"), None, 10)
    id = str(uuid.UUID(bytes=row.id))
    for call in (
        lambda: store.conversation(id),
        lambda: store.purge(id, reason="user-requested"),
        lambda: store.messages(conversation=id),
        lambda: store.save([Message.user("x")], conversation=id),
        lambda: store.conversation(id[:13]),
    ):
        with refused(store, NotFound):
            call()


def test_a_bare_string_where_ids_are_wanted_is_refused(store: Store, talk: Conversation) -> None:
    """`get("abcdef")` would otherwise ask for six ids of one character."""
    id = str(talk.at)
    wanted: Any = id
    with refused(store, InvalidArgument):
        store.get(wanted)
    with refused(store, InvalidArgument):
        store.delete(wanted)
    assert store.get([id])[0].id == id


@pytest.mark.parametrize("given", [None, 5, object()], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("taker", ["get", "delete", "save", "extend"])
def test_what_cannot_be_iterated_is_refused_where_a_list_is_wanted(
    store: Store, talk: Conversation, taker: str, given: Any
) -> None:
    calls: dict[str, Callable[[Any], object]] = {
        "get": store.get,
        "delete": store.delete,
        "save": store.save,
        "extend": talk.extend,
    }
    with refused(store, InvalidArgument):
        calls[taker](given)


# -- parents and lists of messages


def test_an_unknown_parent_is_not_found(store: Store, talk: Conversation) -> None:
    """C6."""
    with refused(store, NotFound):
        store.save([Message.user("x")], parent="abcdef")
    with refused(store, NotFound):
        store.save([Message.user("x"), Message("user", parent="abcdef")])
    with refused(store, NotFound):
        store.save([Message.user("x")], parent="abcdef", conversation=talk)


def test_a_parent_of_another_conversation_is_not_found_in_this_one(store: Store, talk: Conversation) -> None:
    """C6: one save is one conversation."""
    other = store.start()
    theirs = other.append(Message.user("theirs"))
    for call in (
        lambda: store.save([Message.user("x")], parent=theirs.id, conversation=talk),
        lambda: store.save([Message.user("x")], parent=theirs.id, conversation=talk.id),
        lambda: store.save([Message("user", parent=talk.at), Message("user", parent=theirs.id)]),
        lambda: store.save([Message("user", parent=theirs.id)], parent=talk.at),
        lambda: talk.fork(theirs.id),
        lambda: talk.subagent("a", "1", call=theirs.id),
        lambda: talk.label("x", message=theirs.id),
    ):
        with refused(store, NotFound):
            call()
    with refused(store, Conflict):
        talk.append(Message.user("x"), expect_head=theirs.id)


def test_append_refuses_a_message_that_asks_for_a_parent_of_its_own(store: Store, talk: Conversation) -> None:
    with refused(store, InvalidArgument):
        talk.append(Message("user", parent=talk.at))
    saved = store.message(str(talk.at))
    assert talk.append(saved).parent == saved.id  # a saved message is taken as a value


def test_no_message_at_all_is_refused(store: Store, talk: Conversation) -> None:
    """C6."""
    for call in (
        lambda: store.save([]),
        lambda: store.save(iter(())),
        lambda: talk.extend(()),
        lambda: talk.extend([]),
    ):
        with refused(store, InvalidArgument):
            call()


def test_a_handle_of_another_store_is_refused(store: Store, talk: Conversation) -> None:
    """A save through one store must not end up in another."""
    with hitherto.open("memory:") as other:
        foreign = filled(other)
        before = contents(other)
        with refused(store, (NotFound, InvalidArgument)):
            store.save([Message.user("x")], conversation=foreign)
        assert contents(other) == before
        with refused(store, (NotFound, InvalidArgument)):
            store.purge(foreign, reason="user-requested")
        assert contents(other) == before


def test_one_bad_message_among_good_ones_refuses_them_all(store: Store, talk: Conversation) -> None:
    """C6: all or none, wherever the bad one stands."""
    good = [Message.user(str(n)) for n in range(4)]
    for place in range(5):
        bad: list[Any] = [*good[:place], Message("user", (Block.text(SURROGATE),)), *good[place:]]
        with refused(store, InvalidMessage):
            talk.extend(bad)
        with refused(store, InvalidMessage):
            store.save(bad)
    assert len(talk.extend(good)) == 4


def test_an_unknown_way_of_meeting_a_conflict_is_refused(store: Store, talk: Conversation) -> None:
    """D19."""
    ways: list[Any] = ["", "Branch", "merge", None, 1, [], b"raise"]
    for way in ways:
        with refused(store, InvalidArgument):
            talk.append(Message.user("x"), on_conflict=way)


def test_an_expected_head_that_is_not_the_head_is_a_conflict_with_the_head_in_it(
    store: Store, talk: Conversation
) -> None:
    """D19."""
    head, root = str(talk.head), talk.thread()[0].id
    with refused(store, Conflict) as caught:
        talk.append(Message.user("x"), expect_head=root)
    assert (caught.value.head, caught.value.expected) == (head, root)


# -- cursors


def conversation_cursor(store: Store) -> str:
    store.start()
    store.start()
    cursor = store.conversations(limit=1).next_cursor
    assert cursor is not None
    return cursor


def message_cursor(store: Store, *, newest_first: bool = True) -> str:
    listing = store.messages(newest_first=newest_first)
    next(listing)
    assert listing.cursor is not None
    return listing.cursor


GARBAGE: list[Any] = [
    "",
    "=",
    "A",
    "AAAA",
    "not a cursor",
    "../..",
    "é",
    "\0",
    SURROGATE,
    "A" * 1_000_000,
    "%00",
    base64.urlsafe_b64encode(os.urandom(64)).decode(),
    b"bytes",
    5,
    True,
    ("a",),
]


def test_garbage_is_not_a_cursor(store: Store, talk: Conversation) -> None:
    """C8, D2."""
    for cursor in GARBAGE:
        with refused(store, InvalidCursor):
            store.conversations(cursor=cursor)
        with refused(store, InvalidCursor):
            store.messages(cursor=cursor)


def test_a_truncated_cursor_is_not_a_cursor(store: Store, talk: Conversation) -> None:
    conversations, messages = conversation_cursor(store), message_cursor(store)
    for length in range(len(conversations)):
        with pytest.raises(InvalidCursor):
            store.conversations(cursor=conversations[:length])
    for length in range(len(messages)):
        with pytest.raises(InvalidCursor):
            store.messages(cursor=messages[:length])


def test_a_cursor_with_one_bit_flipped_is_not_a_cursor(store: Store, talk: Conversation) -> None:
    cursor = conversation_cursor(store)
    raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidCursor):
            store.conversations(cursor=base64.urlsafe_b64encode(flipped).decode().rstrip("="))
    same = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    assert store.conversations(cursor=same).items  # the control: unflipped, it is good


def test_a_cursor_of_another_listing_is_refused(store: Store, talk: Conversation) -> None:
    conversations, newest = conversation_cursor(store), message_cursor(store)
    oldest = message_cursor(store, newest_first=False)
    with refused(store, InvalidCursor):
        store.messages(cursor=conversations)
    with refused(store, InvalidCursor):
        store.conversations(cursor=newest)
    with refused(store, InvalidCursor):
        store.messages(cursor=newest, newest_first=False)
    with refused(store, InvalidCursor):
        store.messages(cursor=oldest)
    assert list(store.messages(cursor=newest))
    assert list(store.messages(cursor=oldest, newest_first=False))


def test_a_cursor_of_another_store_or_workspace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with hitherto.open(path) as mine, hitherto.open(path, workspace="b") as beside, hitherto.open("memory:") as other:
        filled(mine)
        cursor, messages = conversation_cursor(mine), message_cursor(mine)
        for elsewhere in (beside, other):
            with refused(elsewhere, InvalidCursor):
                elsewhere.conversations(cursor=cursor)
            with refused(elsewhere, InvalidCursor):
                elsewhere.messages(cursor=messages)


@pytest.mark.parametrize("at", [2**63, 2**64 - 1, -(2**63), -1, 0])
def test_a_forged_cursor_with_a_good_checksum_is_an_invalid_cursor_or_a_place(
    store: Store, talk: Conversation, at: int
) -> None:
    """A cursor comes from outside, and its checksum is no secret: what it says may be anything."""
    for id in (b"", b"\0" * 16, b"\xff" * 100):
        for listing, read in (
            ("conversations", lambda cursor: store.conversations(cursor=cursor).items),
            ("messages, newest first", lambda cursor: list(store.messages(cursor=cursor))),
        ):
            forged = write_cursor(store.backend, listing, (at, id, at))
            with suppress(InvalidCursor):
                read(forged)


def test_a_cursor_outlives_the_conversation_it_was_taken_from(store: Store) -> None:
    """D2: the control for all refusals above."""
    talks = [store.start(title=str(n)) for n in range(4)]
    first = store.conversations(limit=2)
    anchor = first.items[-1]
    store.purge(anchor.id, reason="user-requested")
    rest = store.conversations(limit=10, cursor=first.next_cursor)
    seen = [item.id for item in first.items] + [item.id for item in rest.items]
    assert sorted(seen) == sorted(talk.id for talk in talks)


# -- limits and offsets


@pytest.mark.parametrize(
    "limit", [0, -1, -(10**30), 10_001, 10**30, True, False, 2.0, float("nan"), "5", None, [1]], ids=repr
)
def test_a_limit_is_a_number_from_1_to_10000(store: Store, talk: Conversation, limit: Any) -> None:
    with refused(store, InvalidArgument):
        store.conversations(limit=limit)
    assert len(store.conversations(limit=1).items) == 1
    assert len(store.conversations(limit=10_000).items) == 1


@pytest.mark.parametrize(
    "offset", [-1, -(10**30), True, False, 1.0, float("inf"), "1", None, [1]], ids=lambda value: type(value).__name__
)
def test_an_offset_is_a_number_from_0_up(store: Store, talk: Conversation, offset: Any) -> None:
    with refused(store, InvalidArgument):
        store.messages(offset=offset)


def test_an_offset_beyond_the_end_leaves_nothing(store: Store, talk: Conversation) -> None:
    assert len(list(store.messages(offset=3))) == 1
    for offset in (4, 5, 10**30):
        assert list(store.messages(offset=offset)) == []


# -- size


def test_ten_megabytes_of_text_and_json_are_too_much_for_one_write(store: Store, talk: Conversation) -> None:
    """D12."""
    text = "xxx." * 2_500_000  # letters alone are the base64 of something, which is no text
    half = text[: len(text) // 2]
    for messages in (
        [Message.user(text)],
        [Message("user", extra={"a": text})],
        [Message("user", raw=[text])],
        [Message("user", privacy={"a": text})],
        [Message("user", label=text)],
        [Message("user", key=text)],
        [Message("user", (Block("content", "x", extra={"a": text}),))],
        [Message.user(half), Message.user(half)],
    ):
        for call in (functools.partial(talk.extend, messages), functools.partial(store.save, messages)):
            with refused(store, PayloadTooLarge) as caught:
                call()
            assert caught.value.size > caught.value.limit == 10_000_000
            assert "xxx" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store, _, text: store.start(title=text), id="start title"),
        pytest.param(lambda store, _, text: store.start(system_prompt=text), id="start system_prompt"),
        pytest.param(lambda store, _, text: store.start(metadata={"a": text}), id="start metadata"),
        pytest.param(lambda store, _, text: store.start(tools=[{"name": text}]), id="start tools"),
        pytest.param(lambda store, _, text: store.ensure(text), id="ensure"),
        pytest.param(lambda _, talk, text: talk.rename(text), id="rename"),
        pytest.param(lambda _, talk, text: talk.describe({"a": text}), id="describe"),
        pytest.param(lambda _, talk, text: talk.label(text), id="label"),
        pytest.param(lambda _, talk, text: talk.configure(system_prompt=text), id="configure"),
        pytest.param(lambda _, talk, text: talk.compact(text), id="compact"),
        pytest.param(lambda _, talk, text: talk.detach(title=text), id="detach"),
    ],
)
def test_the_limit_holds_for_every_kind_of_write(
    store: Store, talk: Conversation, call: Callable[[Store, Conversation, str], object]
) -> None:
    """D12: "the text and JSON of one write", whether they are a message or a description."""
    with refused(store, PayloadTooLarge):
        call(store, talk, "x" * 10_000_001)


def test_binary_content_does_not_count(store: Store, talk: Conversation) -> None:
    """D12."""
    data = os.urandom(11_000_000)
    saved = talk.append(Message.user([Block.text("look"), Block.image(data, "image/png")]))
    assert store.message(saved.id).blocks[1].content == data
    with refused(store, PayloadTooLarge):
        talk.append(Message.user([Block.text("x" * 10_000_001), Block.image(b"1", "image/png")]))


def test_the_limit_is_exact() -> None:
    with hitherto.open("memory:", max_write_bytes=1000) as store:
        talk = store.start()
        for size in range(900, 1000):
            before = store.stats().content_bytes
            talk.append(Message.user("x" * size))
            if store.stats().content_bytes - before == 1000:
                break
        with refused(store, PayloadTooLarge) as caught:
            talk.append(Message.user("x" * (size + 1)))
        assert (caught.value.size, caught.value.limit) == (1001, 1000)


# -- what cannot be kept as it is

SURROGATES: dict[str, Call] = {
    "text": lambda _, talk: talk.append(Message.user(SURROGATE)),
    "thinking": lambda _, talk: talk.append(Message.assistant(Block.thinking(SURROGATE))),
    "block type": lambda _, talk: talk.append(Message.user(Block(SURROGATE, "x"))),
    "modality": lambda _, talk: talk.append(Message.user(Block("content", "x", SURROGATE))),
    "mime type": lambda _, talk: talk.append(Message.user(Block("content", "x", mime_type=SURROGATE))),
    "block id": lambda _, talk: talk.append(Message.user(Block("content", "x", id=SURROGATE))),
    "block extra": lambda _, talk: talk.append(Message.user(Block("content", "x", extra={"a": SURROGATE}))),
    "role": lambda _, talk: talk.append(Message(SURROGATE, (Block.text("x"),))),
    "role in save": lambda store, _: store.save([Message(SURROGATE, (Block.text("x"),))]),
    "label": lambda _, talk: talk.append(Message.user("x", label=SURROGATE)),
    "key": lambda _, talk: talk.append(Message.user("x", key=SURROGATE)),
    "extra": lambda _, talk: talk.append(Message("user", extra={"a": SURROGATE})),
    "extra key": lambda _, talk: talk.append(Message("user", extra={SURROGATE: 1})),
    "raw": lambda _, talk: talk.append(Message("user", raw=[{"a": [SURROGATE]}])),
    "privacy": lambda _, talk: talk.append(Message("user", privacy={"a": SURROGATE})),
    "tool result": lambda _, talk: talk.append(Message.tool_result(SURROGATE, "x")),
    "subagent": lambda _, talk: talk.subagent(SURROGATE, "1").append(Message.user("x")),
    "title": lambda store, _: store.start(title=SURROGATE),
    "system prompt": lambda store, _: store.start(system_prompt=SURROGATE),
    "provider": lambda store, _: store.start(provider=SURROGATE),
    "model": lambda store, _: store.start(model=SURROGATE),
    "metadata": lambda store, _: store.start(metadata={"a": SURROGATE}),
    "metadata key": lambda store, _: store.start(metadata={SURROGATE: "a"}),
    "tools": lambda store, _: store.start(tools=[{"name": SURROGATE}]),
    "project": lambda store, _: store.start(project=SURROGATE),
    "ensure": lambda store, _: store.ensure(SURROGATE),
    "rename": lambda _, talk: talk.rename(SURROGATE),
    "describe": lambda _, talk: talk.describe({"a": SURROGATE}),
    "label later": lambda _, talk: talk.label(SURROGATE),
    "configure": lambda _, talk: talk.configure(system_prompt=SURROGATE),
    "compact": lambda _, talk: talk.compact(SURROGATE),
    "detach": lambda _, talk: talk.detach(title=SURROGATE),
    "list by label": lambda store, _: list(store.messages(label=SURROGATE)),
    "list by subagent": lambda store, _: list(store.messages(subagent=SURROGATE)),
    "list by project": lambda store, _: store.conversations(project=SURROGATE),
    "latest by project": lambda store, _: store.latest(project=SURROGATE),
}


@pytest.mark.parametrize("call", SURROGATES.values(), ids=SURROGATES.keys())
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(store: Store, talk: Conversation, call: Call) -> None:
    """C3: lone surrogates are refused."""
    with refused(store, InvalidArgument):
        call(store, talk)


def test_any_real_text_is_kept(store: Store, talk: Conversation) -> None:
    """C3: the control."""
    for text in ("", "\0", "a\0b", "\U0001f9ff", "שלום", "\u202e", "\r\n\u2028\x85", "\ufffe\uffff", "x" * 1_000_000):
        saved = talk.append(Message.user([Block.text(text, a=text)], label=text, key=f"k{text}"))
        found = store.message(saved.id)
        assert (found.text, found.label, found.blocks[0].extra) == (text, text, {"a": text})


class Text(str):
    __slots__ = ()


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def circular() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


NOT_JSON: dict[str, Any] = {
    "tuple": (1, 2),
    "set": {1},
    "frozenset": frozenset({1}),
    "date": datetime.date(2024, 1, 15),
    "datetime": datetime.datetime(2024, 1, 15, tzinfo=datetime.UTC),
    "timedelta": datetime.timedelta(1),
    "decimal": decimal.Decimal("1.5"),
    "complex": 1j,
    "uuid": uuid.UUID(UUID),
    "path": Path("/x"),
    "object": object(),
    "class": dict,
    "function": len,
    "range": range(3),
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "enum": Role.USER,
    "text of another class": Text("x"),
    "a block": Block.text("x"),
    "an integer key": {1: "x"},
    "a null key": {None: "x"},
    "a bytes key": {b"a": "x"},
    "a tuple key": {("a",): "x"},
    "65 bits": 2**64,
    "65 bits below": -(2**63) - 1,
    "a thousand bits": 2**1000,
}
JSON_PLACES: dict[str, Callable[[Store, Conversation, Any], object]] = {
    "extra": lambda _, talk, value: talk.append(Message("user", extra={"a": value})),
    "extra, deeper": lambda _, talk, value: talk.append(Message("user", extra={"a": [{"b": [value]}]})),
    "raw": lambda _, talk, value: talk.append(Message("user", raw=value)),
    "privacy": lambda _, talk, value: talk.append(Message("user", privacy={"a": value})),
    "block extra": lambda _, talk, value: talk.append(Message.user(Block("content", "x", extra={"a": value}))),
    "save": lambda store, _, value: store.save([Message("user", raw=[value])]),
    "tools of start": lambda store, _, value: store.start(tools=[{"a": value}]),
    "tools of configure": lambda _, talk, value: talk.configure(tools=[{"a": value}]),
}


@pytest.mark.parametrize("place", JSON_PLACES)
def test_what_would_not_come_back_equal_is_refused(store: Store, talk: Conversation, place: str) -> None:
    """C2, C3: a tuple would come back as a list, a date as text."""
    for value in NOT_JSON.values():
        with refused(store, InvalidMessage):
            JSON_PLACES[place](store, talk, value)


def test_what_json_can_say_comes_back_equal(store: Store, talk: Conversation) -> None:
    """C2: the control, up to the edges."""
    value: dict[str, Any] = {
        "a": [1, -(2**63), 2**64 - 1, 1.5, True, None, "x", {"": {}}, [], b"\0"],
        "inf": float("inf"),
    }
    saved = talk.append(Message("user", extra=value, raw=[value], privacy=value))
    found = store.message(saved.id)
    assert (found.extra, found.raw, found.privacy) == (value, [value], value)
    assert found.extra is not None
    assert repr(found.extra) == repr(value)  # 1 == True == 1.0, but not here


@pytest.mark.parametrize("place", JSON_PLACES)
@pytest.mark.parametrize("value", [nested(100_000), circular()], ids=["too deep", "circular"])
def test_json_without_end_is_refused(store: Store, talk: Conversation, place: str, value: Any) -> None:
    with refused(store, InvalidMessage):
        JSON_PLACES[place](store, talk, value)


@pytest.mark.parametrize(
    "given",
    [None, "text", 5, b"x", {"role": "user"}, Block.text("x"), Usage(), ["x"]],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_a_message_is_refused(store: Store, talk: Conversation, given: Any) -> None:
    for call in (lambda: talk.append(given), lambda: talk.extend([given]), lambda: store.save([given])):
        with refused(store, InvalidMessage):
            call()


def test_one_message_is_not_a_list_of_messages(store: Store, talk: Conversation) -> None:
    one: Any = Message.user("x")
    with refused(store, InvalidArgument):
        store.save(one)
    with refused(store, InvalidArgument):
        talk.extend(one)


@pytest.mark.parametrize(
    "blocks",
    [None, 5, "text", b"text", ["text"], [None], [{"type": "content"}], [Message.user("x")], [("content", "x")]],
    ids=repr,
)
def test_blocks_that_are_not_blocks_are_refused(store: Store, talk: Conversation, blocks: Any) -> None:
    with refused(store, InvalidMessage):
        talk.append(Message("user", blocks))


def test_blocks_that_can_be_read_once_are_kept_or_refused_but_never_lost(store: Store, talk: Conversation) -> None:
    once: Any = (Block.text(text) for text in ("a", "b"))
    try:
        saved = talk.append(Message("user", once))
    except InvalidMessage:
        return
    assert store.message(saved.id).text == "ab"


WRONG_FIELDS: dict[str, Any] = {
    "label": lambda: Message("user", label=5),  # type: ignore[arg-type]  # here and below the types are wrong on purpose
    "key": lambda: Message("user", key=5),  # type: ignore[arg-type]
    "key of bytes": lambda: Message("user", key=b"k"),  # type: ignore[arg-type]
    "tool_result_error as text": lambda: Message("user", tool_result_error="yes"),  # type: ignore[arg-type]
    "tool_result_error as number": lambda: Message("user", tool_result_error=1),  # type: ignore[arg-type]
    "extra": lambda: Message("user", extra=[1]),  # type: ignore[arg-type]
    "privacy": lambda: Message("user", privacy="x"),  # type: ignore[arg-type]
    "usage as text": lambda: Message("user", usage="x"),  # type: ignore[arg-type]
    "usage as dict": lambda: Message("user", usage={"input_tokens": 1}),  # type: ignore[arg-type]
    "usage of text": lambda: Message("user", usage=Usage("x")),  # type: ignore[arg-type]
    "usage of fractions": lambda: Message("user", usage=Usage(1.5)),  # type: ignore[arg-type]
    "usage of 70 bits": lambda: Message("user", usage=Usage(2**70)),
    "block type": lambda: Message.user(Block(5, "x")),  # type: ignore[arg-type]
    "block content": lambda: Message.user(Block("content", None)),  # type: ignore[arg-type]
    "block modality": lambda: Message.user(Block("content", "x", 5)),  # type: ignore[arg-type]
    "block mime type": lambda: Message.user(Block("content", "x", mime_type=5)),  # type: ignore[arg-type]
    "block id": lambda: Message.user(Block("content", "x", id=5)),  # type: ignore[arg-type]
    "block extra": lambda: Message.user(Block("content", "x", extra=[1])),  # type: ignore[arg-type]
    "tool result's call": lambda: Message.tool_result(5, "x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", WRONG_FIELDS.values(), ids=WRONG_FIELDS.keys())
def test_a_field_of_the_wrong_type_is_refused_before_it_is_stored_not_found_damaged_after(
    store: Store, talk: Conversation, make: Callable[[], Message]
) -> None:
    """C2: what is acknowledged can be read."""
    with refused(store, InvalidMessage):
        talk.append(make())
    assert store.verify().ok


def test_the_usage_of_a_thread_can_be_given_to_a_message(store: Store, talk: Conversation) -> None:
    """`talk.usage()` is a `Usage`, so it fits `Message.assistant(usage=…)`: kept, or refused, but readable."""
    talk.append(Message.assistant("x", usage=Usage(1, 2)))
    with suppress(InvalidMessage):
        talk.append(Message.assistant("x", usage=talk.usage()))
    assert len(talk.thread()) >= 3
    assert store.verify().ok


WRONG_DESCRIPTIONS: dict[str, Any] = {
    "title": {"title": 5},
    "no title": {"title": None},
    "title of bytes": {"title": b"x"},
    "provider": {"provider": 5},
    "model": {"model": ["m"]},
    "system prompt": {"system_prompt": {"text": "x"}},
    "metadata number": {"metadata": {"a": 1}},
    "metadata null": {"metadata": {"a": None}},
    "metadata key": {"metadata": {1: "a"}},
    "metadata list": {"metadata": {"a": ["b"]}},
    "metadata bytes": {"metadata": {"a": b"b"}},
    "metadata is a number": {"metadata": 5},
    "metadata is text": {"metadata": "ab"},
    "metadata is a list": {"metadata": ["abc"]},
    "tools is a number": {"tools": 5},
    "tools is text": {"tools": "abc"},
    "tools is null": {"tools": None},
    "tools of text": {"tools": ["read"]},
    "tools of null": {"tools": [None]},
    "tools with a number key": {"tools": [{1: 2}]},
    "project is a number": {"project": 5},
    "project of bytes": {"project": b"/x"},
}


@pytest.mark.parametrize("given", WRONG_DESCRIPTIONS.values(), ids=WRONG_DESCRIPTIONS.keys())
def test_a_description_of_the_wrong_type_is_refused(store: Store, talk: Conversation, given: dict[str, Any]) -> None:
    with refused(store, InvalidArgument):
        store.start(**given)
    with refused(store, InvalidArgument):
        store.ensure("new", **given)
    assert store.verify().ok


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda talk: talk.rename(None), id="rename null"),
        pytest.param(lambda talk: talk.rename(5), id="rename"),
        pytest.param(lambda talk: talk.describe({"a": 1}), id="describe"),
        pytest.param(lambda talk: talk.describe(5), id="describe a number"),
        pytest.param(lambda talk: talk.describe("ab"), id="describe text"),
        pytest.param(lambda talk: talk.label(5), id="label"),
        pytest.param(lambda talk: talk.configure(provider=5), id="provider"),
        pytest.param(lambda talk: talk.configure(model=b"m"), id="model"),
        pytest.param(lambda talk: talk.configure(system_prompt=["x"]), id="system prompt"),
        pytest.param(lambda talk: talk.configure(tools=["read"]), id="tools of text"),
        pytest.param(lambda talk: talk.configure(tools=5), id="tools is a number"),
        pytest.param(lambda talk: talk.compact(5), id="compact"),
        pytest.param(lambda talk: talk.compact(lambda _: None), id="compact to nothing"),
        pytest.param(lambda talk: talk.detach(title=5), id="detach"),
        pytest.param(lambda talk: talk.subagent("", "1"), id="subagent without a name"),
        pytest.param(lambda talk: talk.subagent("a:b", "1"), id="subagent with a colon"),
        pytest.param(lambda talk: talk.subagent("a", "1:2"), id="run with a colon"),
        pytest.param(lambda talk: talk.subagent(5, "1"), id="subagent is a number"),
        pytest.param(lambda talk: talk.subagent("a", None), id="run is null"),
    ],
)
def test_a_change_of_the_wrong_type_is_refused(
    store: Store, talk: Conversation, call: Callable[[Conversation], object]
) -> None:
    with refused(store, InvalidArgument):
        call(talk)
    assert talk.setup.provider == "p"
    assert store.verify().ok


@pytest.mark.parametrize("key", ["", None, 5, b"k", ["k"]], ids=lambda value: type(value).__name__)
def test_the_key_of_a_conversation_is_text(store: Store, talk: Conversation, key: Any) -> None:
    with refused(store, InvalidArgument):
        store.ensure(key)


@pytest.mark.parametrize(
    "given", [{"label": 5}, {"subagent": 5}, {"label": b"x"}, {"project": 5}], ids=lambda value: type(value).__name__
)
def test_a_filter_of_the_wrong_type_is_refused(store: Store, talk: Conversation, given: dict[str, Any]) -> None:
    list_: Callable[..., Any] = store.conversations if "project" in given else store.messages
    with refused(store, InvalidArgument):
        list_(**given)


@pytest.mark.parametrize("attachments", ["", "LAZY", "eager", None, True, 5, b"lazy"], ids=repr)
def test_attachments_are_loaded_or_lazy(store: Store, talk: Conversation, attachments: Any) -> None:
    at = str(talk.at)
    for call in (
        lambda: talk.thread(attachments=attachments),
        lambda: store.thread(at, attachments=attachments),
        lambda: store.message(at, attachments=attachments),
        lambda: store.get([at], attachments=attachments),
        lambda: store.get([], attachments=attachments),
        lambda: store.messages(attachments=attachments),
    ):
        with refused(store, InvalidArgument):
            call()


@pytest.mark.parametrize("seconds", [-1, -0.5, float("nan"), "1", [1]], ids=repr)
def test_the_seconds_of_maintenance_are_a_number_from_0_up(store: Store, talk: Conversation, seconds: Any) -> None:
    with refused(store, InvalidArgument):
        store.maintain(seconds)
    for fine in (0, 0.0, 1, float("inf"), None):
        store.maintain(fine)


@pytest.mark.parametrize("path", ["", None, 5, b"copy.db", ["copy.db"], "a\0b"], ids=repr)
def test_a_backup_goes_to_a_path(store: Store, talk: Conversation, path: Any) -> None:
    with refused(store, (InvalidArgument, StorageError)):
        store.backup(path)


def test_a_backup_goes_where_it_can_be_written_and_nothing_is(file_store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    with refused(file_store, StorageError):
        file_store.backup(tmp_path / "file" / "x.db")
    for path in (tmp_path / "file", tmp_path, tmp_path / "chats.db"):
        with refused(file_store, AlreadyExists):
            file_store.backup(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_in_memory_says_that_it_cannot_be_backed_up(tmp_path: Path) -> None:
    with hitherto.open("memory:") as store:
        assert not store.backend.info.can_backup
        with refused(store, InvalidArgument):
            store.backup(tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, "10", None, True], ids=repr)
def test_the_largest_attachment_is_a_number_from_1_up(limit: Any) -> None:
    with pytest.raises(InvalidArgument):
        hitherto.open("memory:", max_attachment=limit)


def test_an_attachment_that_is_too_large_stores_and_stages_nothing(store: Store, talk: Conversation) -> None:
    """D12: nor does one that stands beside it."""
    store.engine.max_attachment = 100_000
    fine, large = Block.image(bytes(100_000), "image/png"), Block.image(bytes(100_001), "image/png")
    for message in (Message.user([fine, large]), Message.user(fine, raw=["x" * 100_001])):
        for call in (
            functools.partial(talk.append, message),
            functools.partial(talk.compact, message),
            functools.partial(store.save, [message]),
            functools.partial(store.save, [Message.user(fine), message], conversation=talk),
        ):
            with refused(store, PayloadTooLarge) as caught:
                call()
            assert "attachment" in str(caught.value)
    before = contents(store)
    talk.append(Message.user(fine))
    assert contents(store) != before


def test_a_label_and_a_conversation_together_list_what_has_both(store: Store, talk: Conversation) -> None:
    """C8: a filter that is given is not dropped in silence."""
    store.start().append(Message.user("elsewhere", label="first"))
    assert [message.text for message in store.messages(label="first", conversation=talk)] == ["Why?"]


@pytest.mark.parametrize(
    "role", ["", None, 5, b"user", ["user"], "x" * 65, SURROGATE], ids=lambda role: repr(role)[:20]
)
def test_a_role_is_text_of_1_to_64_characters(store: Store, talk: Conversation, role: Any) -> None:
    """C2."""
    for call in (lambda: talk.append(Message(role)), lambda: store.save([Message(role)])):
        with refused(store, InvalidMessage):
            call()


def test_roles_are_open(store: Store, talk: Conversation) -> None:
    """C2: the control. A role nobody knows is kept as it is."""
    for role in ("critic", "x" * 64, "ñ", Role.USER, "' OR 1=1 --", "chat", "workspace"):
        saved = talk.append(Message(role, (Block.text("x"),)))
        assert store.message(saved.id).role == role
    for role in ("a\0b", "user\n", "\x7f"):  # it is kept as text, and not every database has such text
        with pytest.raises(InvalidMessage):
            talk.append(Message(role, (Block.text("x"),)))
    assert store.verify().ok


def test_the_bad_write_of_one_thread_does_not_fail_the_good_write_of_another(tmp_path: Path) -> None:
    """C10, D19: writes that ride one commit are refused one by one."""
    with hitherto.open(tmp_path / "chats.db") as store:
        first, good, bad = (store.start() for _ in range(3))
        others = apsw.Connection(str(tmp_path / "chats.db"))
        others.execute("BEGIN IMMEDIATE")  # so that writes gather
        outcomes: dict[str, object] = {}

        def write(name: str, talk: Conversation, message: Message) -> threading.Thread:
            def run() -> None:
                try:
                    outcomes[name] = talk.append(message).id
                except Exception as error:  # noqa: BLE001  # any at all is the finding
                    outcomes[name] = error

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        writers = [write("first", first, Message.user("x"))]
        until(lambda: store.engine.committer._is_writing and not store.engine.committer._queue)
        writers.append(write("good", good, Message.user("x")))
        until(lambda: len(store.engine.committer._queue) == 1)
        writers.append(write("bad", bad, Message(SURROGATE)))
        until(lambda: len(store.engine.committer._queue) == 2 or "bad" in outcomes)
        others.execute("ROLLBACK")
        for writer in writers:
            writer.join(30)
        others.close()
        assert isinstance(outcomes["bad"], InvalidMessage)
        assert isinstance(outcomes["good"], str), outcomes["good"]
        assert store.message(outcomes["good"]).text == "x"
        assert isinstance(outcomes["first"], str)


# -- tool calls as they come from models


@pytest.mark.parametrize(
    "content", ["", "not json", "[1]", "null", '{"name": 5}', b"\xff"], ids=lambda value: type(value).__name__
)
def test_a_tool_call_that_is_not_json_has_no_name(store: Store, talk: Conversation, content: Any) -> None:
    """C2: models write broken JSON. It is kept, and reading it back is no surprise."""
    saved = talk.append(Message.assistant(Block("tool_call", content)))
    block = store.message(saved.id).blocks[0]
    assert block.content == content
    with suppress(HithertoError):
        assert block.tool_name is None


# -- purge, hold, deleted messages


@pytest.mark.parametrize(
    "reason", ["", "because", "User-Requested", "user-requested\n", None, 5, ["user-requested"]], ids=repr
)
def test_a_purge_needs_one_of_the_reasons(store: Store, talk: Conversation, reason: Any) -> None:
    """D9."""
    with refused(store, InvalidArgument):
        store.purge(talk, reason=reason)
    assert store.purge(talk, reason="user-requested").purged_count == 1


def test_a_purge_takes_whole_ids_only(store: Store, talk: Conversation) -> None:
    """What destroys does not guess."""
    for id in (talk.id[:8], talk.id[:35], str(talk.at)):
        with refused(store, InvalidID):
            store.purge(id, reason="user-requested")


def test_a_held_conversation_is_neither_purged_nor_deleted_from(store: Store, talk: Conversation) -> None:
    """D10."""
    other = store.start()
    theirs = other.append(Message.user("x"))
    talk.hold()
    leaf, root = str(talk.at), talk.thread()[0].id
    for call in (
        lambda: store.purge(talk, reason="user-requested"),
        lambda: store.purge(talk.id, reason="retention-expired"),
        lambda: store.delete([root], recursive=True),
        lambda: store.delete([leaf], recursive=True),
        lambda: store.delete([theirs.id, leaf], recursive=True),
    ):
        with refused(store, Held):
            call()
    talk.release()
    assert store.delete([leaf], recursive=True)


def test_a_message_with_children_is_not_deleted_alone(store: Store, talk: Conversation) -> None:
    """C9: nothing partial, even if the other ids are fine."""
    other = store.start().append(Message.user("x"))
    root = talk.thread()[0].id
    with refused(store, errors.HasChildren):
        store.delete([root])
    with refused(store, errors.HasChildren):
        store.delete([other.id, root])
    with refused(store, NotFound):
        store.delete([other.id, "abcdef"])


def test_a_handle_on_a_deleted_message_says_so(store: Store, talk: Conversation) -> None:
    """C9, D19: never an orphan, never a silent move to another place."""
    leaf = str(talk.at)
    stands, forked, agent = talk, talk.fork(leaf), talk.subagent("late", "2")
    store.delete([leaf], recursive=True)
    for call in (
        lambda: stands.append(Message.user("x")),
        lambda: forked.append(Message.user("x")),
        lambda: agent.append(Message.user("x")),
        stands.thread,
        stands.usage,
        stands.undo,
        lambda: stands.label("x"),
        lambda: stands.fork(leaf),
        lambda: stands.subagent("a", "1", call=leaf),
        lambda: stands.compact("In short."),
        stands.detach,
        lambda: store.conversation(leaf),
        lambda: store.message(leaf),
        lambda: store.thread(leaf),
    ):
        with refused(store, NotFound):
            call()
    assert store.conversation(talk.id).append(Message.user("x")).id  # the control: a new handle goes on


def test_a_handle_on_a_purged_conversation_says_so(store: Store, talk: Conversation) -> None:
    store.purge(talk, reason="user-requested")
    for call in (
        lambda: talk.append(Message.user("x")),
        lambda: talk.append(Message.user("x"), on_conflict="follow"),
        lambda: talk.append(Message.user("x"), on_conflict="raise"),
        lambda: talk.rename("x"),
        lambda: talk.describe({}),
        talk.hold,
        lambda: talk.label("x"),
        lambda: talk.configure(model="x"),
        talk.refresh,
        talk.thread,
        lambda: store.purge(talk, reason="user-requested"),
    ):
        with refused(store, (NotFound, Damaged)):
            call()
    assert store.stats().conversations == 0


class Interposed:
    """A backend that lets somebody else act right after one read, where a race would put it."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self.then: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def messages(self, **arguments: Any) -> Any:
        found = self._backend.messages(**arguments)
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return found


@pytest.mark.parametrize("who", ["this store", "another process"])
@pytest.mark.parametrize("how", ["save", "save in conversation", "message.parent", "fork", "conversation", "subagent"])
def test_a_message_is_never_saved_below_one_that_is_deleted_meanwhile(how: str, who: str) -> None:
    """C9, D19: the delete comes between the look at the parent and the write."""
    backend = MemoryBackend()
    between: Any = Interposed(backend)
    store = Store(between)
    deleter = store if who == "this store" else Store(backend)
    talk = store.start()
    talk.append(Message.user("root"))
    leaf = talk.append(Message.user("leaf")).id
    message = Message.user("late")
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: store.save([message], parent=leaf),
        "save in conversation": lambda: store.save([message], parent=leaf, conversation=talk),
        "message.parent": lambda: store.save([Message("user", parent=leaf)]),
        "fork": lambda: talk.fork(leaf).append(message),
        "conversation": lambda: store.conversation(leaf).append(message),
        "subagent": lambda: talk.subagent("a", "1", call=leaf).append(message),
    }
    between.then = lambda: deleter.delete([leaf])
    with pytest.raises(NotFound):
        calls[how]()
    assert store.verify().ok
    assert [m.text for m in store.messages()] == ["root"]


# -- use after close


def backed_up(store: Store, _: Conversation) -> None:
    """Into a file of its own, where that can be."""
    with tempfile.TemporaryDirectory() as folder:
        if store.backend.info.can_backup or store.engine.is_closed:
            store.backup(os.path.join(folder, "copy.db"))


def batched(_: Store, talk: Conversation) -> None:
    with talk.batch() as batch:
        batch.append(Message.user("x"))


STORE_CALLS: dict[str, Call] = {
    "start": lambda store, _: store.start(),
    "ensure": lambda store, _: store.ensure("key"),
    "restore": lambda store, _: store.restore(Snapshot.new("openai", "m", "", [{"role": "user", "content": "x"}])),
    "find": lambda store, _: store.find("key"),
    "items": lambda store, _: store.items.put("name", b"value"),
    "conversation": lambda store, talk: store.conversation(talk.id),
    "latest": lambda store, _: store.latest(),
    "conversations": lambda store, _: store.conversations(),
    "save": lambda store, _: store.save([Message.user("x")]),
    "get": lambda store, talk: store.get([str(talk.at)]),
    "message": lambda store, talk: store.message(str(talk.at)),
    "thread": lambda store, talk: store.thread(str(talk.at)),
    "messages": lambda store, _: store.messages(attachments="lazy"),
    "search": lambda store, _: store.search("because"),
    "delete": lambda store, talk: store.delete([str(talk.at)], recursive=True),
    "purge": lambda store, talk: store.purge(talk, reason="user-requested"),
    "register_checkpoint_store": lambda store, _: store.register_checkpoint_store(
        FileStore("copies", fs=MemoryFiles())
    ),
    "scrub": lambda store, _: store.scrub(),
    "maintain": lambda store, _: store.maintain(0.1),
    "backup": backed_up,
    "stats": lambda store, _: store.stats(),
    "verify": lambda store, _: store.verify(),
    "seal": lambda store, _: store.seal(b"k" * 32),
    "rotate": lambda store, _: (store.seal(b"k" * 32), store.rotate(b"l" * 32)),
    "unseal": lambda store, _: store.unseal(),
    "quarantine": lambda store, _: store.quarantine(),
    "purge_quarantine": lambda store, _: store.purge_quarantine(),
    "retention": lambda store, _: store.retention,
    "set_retention": lambda store, _: store.set_retention(None),
    "set_retention_floor": lambda store, _: store.set_retention_floor(None),
    "retention_floor": lambda store, _: store.retention_floor,
    "quota": lambda store, _: store.quota,
    "set_quota": lambda store, _: store.set_quota(None),
    "used_bytes": lambda store, _: store.used_bytes,
    "plan_sweep": lambda store, _: store.plan_sweep(),
    "plan_purge": lambda store, _: store.plan_purge(participant="ada"),
    "purge_matching": lambda store, _: store.purge_matching(participant="ada", reason="user-requested"),
    "activity": lambda store, _: store.activity(),
    "sweep": lambda store, _: store.sweep(),
}
# What asks nobody. And `close`, which may be repeated.
STORE_INSIDE = {"close", "is_closed", "key_id", "read_only", "resume_writing", "subscribe", "wait_for_listeners"}
CONVERSATION_CALLS: dict[str, Call] = {
    "append": lambda _, talk: talk.append(Message.user("x")),
    "extend": lambda _, talk: talk.extend([Message.user("x")]),
    "configure": lambda _, talk: talk.configure(model="new"),
    "thread": lambda _, talk: talk.thread(attachments="lazy"),
    "usage": lambda _, talk: talk.usage(),
    "branches": lambda _, talk: talk.branches(),
    "compact": lambda _, talk: talk.compact("In short: because."),
    "snapshot": lambda _, talk: talk.snapshot(),
    "detach": lambda _, talk: talk.detach(),
    "fork": lambda _, talk: talk.fork(str(talk.at)),
    "undo": lambda _, talk: talk.undo(),
    "follow": lambda _, talk: talk.follow(),
    "get": lambda _, talk: (talk.append(Message.user("x", key="step-1")), talk.get(keys=["step-1"])),
    "amend": lambda _, talk: talk.amend(str(talk.at), Message.user("y")),
    "pop": lambda _, talk: (talk.append(Message.user("x")), talk.pop()),
    "clear": lambda _, talk: talk.clear(),
    "copy_to": lambda _, talk: talk.copy_to("another-key"),
    "items": lambda _, talk: talk.items.get("name"),
    "batch": batched,
    "subagent": lambda _, talk: talk.subagent("a", "1"),
    "rename": lambda _, talk: talk.rename("x"),
    "describe": lambda _, talk: talk.describe({}),
    "label": lambda _, talk: talk.label("x"),
    "hold": lambda _, talk: talk.hold(),
    "release": lambda _, talk: talk.release(),
    "refresh": lambda _, talk: talk.refresh(),
    "setup": lambda _, talk: talk.setup,
    "system_prompt": lambda _, talk: talk.system_prompt,
    "provider": lambda _, talk: talk.provider,
    "model": lambda _, talk: talk.model,
    "tools": lambda _, talk: talk.tools,
    "setups": lambda _, talk: talk.setups(),
    "partials": lambda _, talk: talk.partials(),
    "accept": lambda _, talk: talk.accept(Partial("partial/0", str(talk.at), (Message.assistant("x"),), None)),
    "discard": lambda _, talk: talk.discard(Partial("partial/0", str(talk.at), (), None)),
}
# What a handle knows without asking.
CONVERSATION_KNOWN = {
    "id", "at", "head", "title", "key", "project", "metadata", "count", "created_at", "active_at", "held",
    "exportable",
}  # fmt: skip
CALLS = {f"Store.{name}": call for name, call in STORE_CALLS.items()} | {
    f"Conversation.{name}": call for name, call in CONVERSATION_CALLS.items()
}


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_every_public_name_of_store_and_conversation_is_tried_after_close_below() -> None:
    assert public(Store) - STORE_INSIDE == set(STORE_CALLS)
    assert public(Conversation) - CONVERSATION_KNOWN == set(CONVERSATION_CALLS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_after_close_everything_raises_closed(store: Store, talk: Conversation, call: Call) -> None:
    call(store, talk)  # the control: before, it works
    talk = filled(store)
    store.close()
    with pytest.raises(Closed) as caught:
        call(store, talk)
    assert caught.value.hint


def test_a_listing_that_was_begun_before_close_raises_closed_after(store: Store, talk: Conversation) -> None:
    begun, fresh = store.messages(), store.messages(conversation=talk)
    next(begun)
    store.close()
    for listing in (begun, fresh):
        with pytest.raises(Closed):
            next(listing)


def test_close_may_be_repeated_and_the_data_stays(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = hitherto.open(path)
    talk = filled(store)
    with store:
        pass
    store.close()
    store.close()
    with hitherto.open(path) as again:
        assert [m.text for m in again.conversation(talk.id).thread()] == ["Why?", "Because."]


# -- use after fork


def in_child(body: Callable[[], object], *, seconds: int = 20) -> int:
    """Run this in a forked child that leaves no trace in this process; its exit status. It is killed if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 on: forking beside threads is what we are testing
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_that_fails_or_hangs_is_noticed() -> None:
    """The control of the tests below."""
    assert in_child(lambda: None) == 0
    assert in_child(lambda: os.close(-1)) == 1
    assert in_child(lambda: threading.Event().wait(), seconds=1) == -signal.SIGALRM


def test_after_fork_everything_raises_closed_in_the_child_and_the_parent_goes_on(file_store: Store) -> None:
    """C15: a SQLite connection must not be carried into a child."""
    talk = filled(file_store)
    listing = file_store.messages()
    next(listing)

    def child() -> None:
        for call in CALLS.values():
            with pytest.raises(Closed, match=r"fork"):
                call(file_store, talk)
        with pytest.raises(Closed):
            list(listing)
        file_store.close()
        file_store.close()

    assert in_child(child) == 0
    talk.append(Message.user("after"))
    assert [m.text for m in talk.thread()] == ["Why?", "Because.", "after"]
    assert len(list(listing)) == 3
    assert file_store.verify().ok


def test_after_fork_the_child_of_a_store_in_memory_gets_closed_too() -> None:
    """`errors.Closed`: "the store was closed, or opened before os.fork". A silent copy would lose what it takes."""
    with hitherto.open("memory:") as store:

        def child() -> None:
            with pytest.raises(Closed):
                store.start()

        assert in_child(child) == 0
        assert store.start().id


@pytest.mark.parametrize("what", ["append", "close"])
def test_a_child_forked_while_another_thread_writes_gets_closed_and_does_not_hang(tmp_path: Path, what: str) -> None:
    """The locks of the writing thread are copied locked, and nobody in the child will ever open them."""
    with hitherto.open(tmp_path / "chats.db") as store:
        talk = store.start()
        others = apsw.Connection(str(tmp_path / "chats.db"))
        others.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=lambda: talk.append(Message.user("slow")))
        writer.start()
        until(lambda: store.engine.committer._is_writing)

        def child() -> None:
            if what == "close":
                store.close()
            else:
                with pytest.raises(Closed):
                    talk.append(Message.user("x"))

        status = in_child(child, seconds=3)
        others.execute("ROLLBACK")
        others.close()
        writer.join(30)
        assert [m.text for m in talk.thread()] == ["slow"]
        assert status == 0


@pytest.mark.parametrize("opened", ["before the fork", "after the fork"])
def test_what_a_child_is_told_is_saved_stays_saved_when_the_parent_closes(tmp_path: Path, opened: str) -> None:
    """C15. The child does what `Closed` tells it: it opens the store again in its own process. SQLite keeps its locks
    per file in process memory, which the child inherits: as long as the parent's connections are open at the fork, the
    child takes locks to be held that are not, and the parent deletes the WAL under it.

    "after the fork" is the control: the same steps with a parent that has no connection open while it forks.
    """
    path = tmp_path / "chats.db"
    store = hitherto.open(path)
    id = filled(store).id
    if opened == "after the fork":
        store.close()
    ready, go = os.pipe(), os.pipe()

    def child() -> None:
        with hitherto.open(path, timeout_seconds=5) as mine:
            talk = mine.conversation(id)
            talk.append(Message.user("child 1"))
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            for n in range(2, 5):
                talk.append(Message.user(f"child {n}"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    if opened == "after the fork":
        store = hitherto.open(path)
    os.close(ready[1])
    os.read(ready[0], 1)
    store.close()
    os.write(go[1], b"x")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for end in (ready[0], *go):
        os.close(end)
    assert status == 0
    with hitherto.open(path) as again:
        texts = [m.text for m in again.conversation(id).thread()]
        assert again.verify().ok
    assert texts == ["Why?", "Because.", "child 1", "child 2", "child 3", "child 4"]


# -- the errors themselves

MARKER = "Xylophon-7391"
SPOIL = "UPDATE message SET body = CAST(substr(body, 1, 8) || '!' || substr(body, 10) AS BLOB)"


def provoked(store: Store) -> Iterator[Callable[[], object]]:
    """Calls that fail over and over on content that has the marker in it."""
    talk = store.start(title=MARKER, system_prompt=MARKER, metadata={MARKER: MARKER}, id=UUID)
    root = talk.append(Message("user", (Block.text(MARKER),), MARKER, MARKER, extra={MARKER: MARKER}, raw=MARKER))
    leaf = talk.append(Message.user(MARKER))
    bad = MARKER + "\ud800"
    marked: Any = {MARKER: (MARKER,)}
    anything: Any = MARKER
    yield lambda: talk.append(Message.user(bad))
    yield lambda: talk.append(Message("user", extra=marked))
    yield lambda: talk.append(Message("user", raw={MARKER: {MARKER}}))
    yield lambda: talk.append(Message("user", raw={MARKER: 2**64}))
    yield lambda: talk.append(Message("user", (Block.text(MARKER), anything)))
    yield lambda: talk.append(anything)
    yield lambda: talk.append(Message.user(MARKER * 1_000_000))
    yield lambda: talk.append(Message.user(MARKER), expect_head=root.id)
    yield lambda: talk.append(Message(MARKER * 10))
    yield lambda: talk.append(Message("user", (Block.text(MARKER),), parent=root.id))
    yield lambda: talk.rename(bad)
    yield lambda: talk.describe({MARKER: bad})
    yield lambda: talk.label(bad)
    yield lambda: talk.configure(system_prompt=bad)
    yield lambda: store.start(id=UUID, title=MARKER)
    yield lambda: store.start(title=bad)
    yield lambda: store.start(tools=[{MARKER: (MARKER,)}])
    yield lambda: store.start(metadata={MARKER: anything, "a": None})  # type: ignore[dict-item]
    yield lambda: store.delete([root.id])
    yield lambda: store.save([Message.user(MARKER)], parent="abcdef")
    yield lambda: store.message("abcdef")
    yield lambda: store.conversations(cursor=MARKER)
    talk.hold()
    yield lambda: store.purge(talk, reason="user-requested")
    yield lambda: store.delete([leaf.id])
    talk.release()
    if store.backend.info.name == "sqlite":
        spoil = apsw.Connection(store.backend.info.location)
        spoil.execute(SPOIL)
        spoil.close()
        yield lambda: store.message(leaf.id)
        yield talk.thread
    store.close()
    yield lambda: talk.append(Message.user(MARKER))


def test_no_error_contains_what_was_said(store: Store) -> None:
    """STYLE: message text, keys and secrets never appear in an error."""
    count = 0
    for call in provoked(store):
        with pytest.raises(HithertoError) as caught:
            call()
        error: BaseException | None = caught.value
        assert isinstance(caught.value.hint, str | None)
        while error is not None:  # what a traceback would show
            assert MARKER not in f"{error} {error!r} {getattr(error, 'hint', '')} {error.args}"
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        count += 1
    assert count >= 23


def test_a_listing_says_what_is_damaged_without_saying_what_was_said(file_store: Store) -> None:
    talk = file_store.start()
    talk.append(Message.user(MARKER))
    spoil = apsw.Connection(file_store.backend.info.location)
    spoil.execute(SPOIL)
    spoil.close()
    (message,) = file_store.messages()
    assert message.problem
    assert MARKER not in message.problem
    report = file_store.verify()
    assert not report.ok
    assert MARKER not in " ".join(map(str, report.problems))


def drawn_tree() -> dict[str, str | None]:
    """The error classes and their parents, as the docstring of `errors` draws them."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if found:
            depth = len(found[1]) // 4
            del above[depth:]
            parents[found[2]] = above[-1] if above else None
            above.append(found[2])
    return parents


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, BaseException) and not name.startswith("_")
    }
    actual = {
        name: next((base.__name__ for base in kind.__bases__ if issubclass(base, HithertoError)), None)
        for name, kind in classes.items()
    }
    assert drawn_tree() == actual
    assert len(actual) > 15
    assert set(actual) == set(errors.__all__)


def test_each_error_can_be_caught_where_the_call_is_made() -> None:
    for name in errors.__all__:
        assert getattr(hitherto, name) is getattr(errors, name)
    assert set(errors.__all__) & {*dir(hitherto), *hitherto.__all__} == {"HithertoError"}  # there, and not repeated


def test_every_error_has_one_root_a_docstring_and_a_hint_that_is_text_or_none() -> None:
    for name in drawn_tree():
        kind = getattr(errors, name)
        assert issubclass(kind, HithertoError)
        assert kind.__doc__
        assert kind.hint is None or isinstance(kind.hint, str)
    assert issubclass(InvalidArgument, ValueError)
    assert InvalidArgument("x", hint="y").hint == "y"
    assert InvalidArgument("x").hint is None


def test_hostile_ids_are_shown_short_and_harmless() -> None:
    """An error is printed on terminals and in logs."""
    for hostile in ("\x1b[2J\x1b[31m", "a\nb\rc", "\u202egnp.exe", "x" * 10_000, "\ud800", "\0"):
        for error in (InvalidID(hostile), NotFound("message", [hostile] * 100), errors.Ambiguous(hostile, [hostile])):
            assert str(error).isprintable()
            assert str(error).isascii()
            assert len(str(error)) < 600
