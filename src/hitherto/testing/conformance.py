"""The contract as a suite: what every backend passes, bare and under the store.

To join, give a fixture that makes a fresh backend and subclass both classes:

    class TestMine(BackendContract, StoreContract):
        @pytest.fixture
        def backend(self, tmp_path):
            backend = MyBackend(tmp_path)
            yield backend
            backend.close()

`BackendContract` speaks the protocol: rows in, rows out, compare and swap. A backend that lets writers queue
(`info.can_queue`) joins `QueueContract` as well. `StoreContract` speaks the public API,
and runs over each backend four times: plain and with a codec that checks places, calm and through a wrapper that
says `Stale` and `CommitUnknown` at will.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from .. import threads
from .._engine import packs as _packs
from .._engine import recovery
from .._sealing import rotation
from .._sealing.codec import next_row
from ..attachment import CHUNK, LARGE, Attachment
from ..backend import (
    DONE,
    WORKSPACE,
    AttachmentRow,
    Backend,
    Batch,
    Change,
    ConversationRow,
    ItemRow,
    KeyShape,
    Lifetime,
    Loose,
    MessageRow,
    Missing,
    Outcome,
    PackRow,
    Position,
    QueueingBackend,
    Stale,
    Tag,
    Taken,
    Totals,
    Where,
)
from ..conversation import Conversation
from ..errors import (
    AlreadyExists,
    Ambiguous,
    Conflict,
    Damaged,
    HasChildren,
    Held,
    InvalidArgument,
    InvalidCursor,
    InvalidID,
    InvalidMessage,
    NotFound,
    PayloadTooLarge,
)
from ..ids import RUN
from ..keys import Key
from ..model import Block, Message, Saved, Usage
from ..store import Store
from .toys import Contrary, ToyCodec

A, B, C = (bytes([n]) * 16 for n in (0xA0, 0xB0, 0xC0))


def token(version: int) -> bytes:
    return version.to_bytes(16, "big")


def _turned(body: bytes) -> bytes:
    """With one bit of it another."""
    return body[:-1] + bytes([body[-1] ^ 1])


def conversation_row(id: bytes = A, version: int = 1, **fields: object) -> ConversationRow:
    """A row with something in every column."""
    row = ConversationRow(
        id=id,
        kind="chat",
        key=None,
        version=version,
        token=token(version),
        generation=1,
        head=None,
        tips=(),
        next_seq=0,
        count=0,
        size=0,
        rewrites=0,
        created_at=1000,
        active_at=1000,
        expires_at=None,
        held=False,
        data_key=b"\x00key",
        meta=b"meta\xff",
        proof=b"",
    )
    return replace(row, **fields)


def message_row(number: int, conversation: bytes = A, **fields: object) -> MessageRow:
    """A message whose parent is the number before it, unless it begins a run."""
    row = MessageRow(
        number=number,
        conversation=conversation,
        seq=number,
        parent=None if number % RUN == 0 else number - 1,
        link=None,
        main=True,
        role="user",
        revision=0,
        created_at=2000 + number,
        key=None,
        token=b"m" * 16,
        size=4,
        body=b"body%d\x00" % number,
    )
    return replace(row, **fields)


def pack_row(first: int, count: int, conversation: bytes = A, **fields: object) -> PackRow:
    """A pack of the first so many messages of a run, which is a root's unless a parent is given."""
    return replace(PackRow(first, conversation, None, count, b"pack%d" % first), **fields)


def create(*messages: MessageRow, id: bytes = A, version: int = 1, **fields: object) -> Batch:
    return Batch((Change(id, None, conversation_row(id, version, **fields), add=messages),))


def update(version: int, id: bytes = A, **change: object) -> Batch:
    row = conversation_row(id, version + 1)
    return Batch((replace(Change(id, token(version), row), **change),))


def way(backend: Backend, number: int) -> list[list[MessageRow]]:
    """The pieces of a path none of which is packed."""
    return [piece for piece in backend.path(number) if not isinstance(piece, PackRow)]


def rebased(version: int, id: bytes = A) -> Callable[[ConversationRow, Sequence[int]], list[Batch | None]]:
    """Makes batches anew, one after the other: their versions begin with this one."""

    def rebase(row: ConversationRow, places: Sequence[int]) -> list[Batch | None]:
        made: list[Batch | None] = []
        for n, _ in enumerate(places):
            after = conversation_row(id, version + n)
            made.append(Batch((Change(id, row.token, after),)))
            row = after
        return made

    return rebase


def never(row: ConversationRow, places: Sequence[int]) -> list[Batch | None]:
    raise AssertionError(f"{len(places)} batches are not late, but were to be made anew from version {row.version}")


class QueueContract:
    """What a backend passes that lets writers queue (`info.can_queue`)."""

    @pytest.fixture
    def queueing(self, backend: Backend) -> QueueingBackend:
        assert backend.info.can_queue
        return cast("QueueingBackend", backend)

    def test_what_nobody_stands_in_the_way_of_is_kept_as_it_is(self, queueing: QueueingBackend) -> None:
        queueing.commit([create(id=A), create(id=B)])
        some = [update(1, A), update(2, A), update(1, B)]
        assert queueing.commit_queued(some, never) == [DONE, DONE, DONE]
        assert queueing.commit_queued([], never) == []
        assert [row.version for row in queueing.lookup(ids=[A, B])] == [3, 2]

    def test_what_is_late_is_made_anew_from_the_row_as_it_is(self, queueing: QueueingBackend) -> None:
        queueing.commit([create(id=A), create(id=B)])
        queueing.commit([update(1, A)])
        asked: list[tuple[ConversationRow, list[int]]] = []

        def rebase(row: ConversationRow, places: Sequence[int]) -> list[Batch | None]:
            asked.append((row, list(places)))
            assert queueing.lookup(ids=[A]) == [row]  # it can be read, and is not another one
            return rebased(7)(row, places)

        for _ in range(3):  # the first time nobody knows that others write to it
            asked.clear()
            version = queueing.lookup(ids=[A])[0].version
            some = [update(1, A), update(queueing.lookup(ids=[B])[0].version, B), update(1, A)]
            assert queueing.commit_queued(some, rebase) == [DONE, DONE, DONE]
            assert asked == [(conversation_row(A, version), [0, 2])]
            assert queueing.lookup(ids=[A]) == [conversation_row(A, 8)]

    def test_batches_of_one_conversation_are_kept_in_their_order(self, queueing: QueueingBackend) -> None:
        """The second would do as it is, but not before the first."""
        queueing.commit([create()])
        asked: list[int] = []

        def rebase(row: ConversationRow, places: Sequence[int]) -> list[Batch | None]:
            asked.extend(places)
            return rebased(7)(row, places)

        assert queueing.commit_queued([update(5), update(1)], rebase) == [DONE, DONE]
        assert asked == [0, 1]
        assert queueing.lookup(ids=[A]) == [conversation_row(A, 8)]

    def test_what_cannot_be_made_anew_is_stale_and_disturbs_no_other(self, queueing: QueueingBackend) -> None:
        queueing.commit([create(id=A), create(id=B), update(1, B)])
        some = [update(1, A), update(1, B), update(2, A)]
        outcomes = queueing.commit_queued(some, lambda _, places: [None] * len(places))
        assert outcomes == [DONE, Stale(B, conversation_row(B, 2)), DONE]

    def test_a_batch_that_does_not_follow_from_the_row_is_stale(self, queueing: QueueingBackend) -> None:
        queueing.commit([create(), update(1)])
        wrong = update(9)
        assert queueing.commit_queued([update(1)], lambda _, __: [wrong]) == [Stale(A, conversation_row(A, 2))]
        assert queueing.lookup(ids=[A]) == [conversation_row(A, 2)]

    def test_what_is_gone_is_not_made_anew(self, queueing: QueueingBackend) -> None:
        assert queueing.commit_queued([update(1)], never) == [Stale(A, None)]

    def test_nobody_comes_between_the_row_and_the_commit(self, queueing: QueueingBackend) -> None:
        queueing.commit([create(), update(1)])
        theirs: list[Outcome] = []
        other = threading.Thread(target=lambda: theirs.extend(queueing.commit([update(2)])))

        def rebase(row: ConversationRow, places: Sequence[int]) -> list[Batch | None]:
            other.start()
            other.join(0.2)
            assert other.is_alive()
            return rebased(5)(row, places)

        assert queueing.commit_queued([update(1)], rebase) == [DONE]
        other.join()
        assert theirs == [Stale(A, conversation_row(A, 5))]

    def test_an_error_of_who_makes_it_anew_keeps_nothing_and_holds_nothing(self, queueing: QueueingBackend) -> None:
        queueing.commit([create(), update(1)])

        with pytest.raises(ZeroDivisionError):
            queueing.commit_queued([update(1)], lambda _, places: [None][: 1 // (len(places) - 1)])
        assert queueing.commit([update(2)]) == [DONE]


class BackendContract:
    """Rows in, rows out. See `hitherto.backend` for the words."""

    def test_it_says_whether_writers_queue(self, backend: Backend) -> None:
        """Who does joins `QueueContract` as well."""
        assert hasattr(backend, "commit_queued") == backend.info.can_queue == isinstance(self, QueueContract)

    def test_rows_come_back_as_they_were(self, backend: Backend) -> None:
        row = conversation_row(
            A, 7, key=b"k\x00", head=64, tips=(64, 3), next_seq=9, count=2, size=99, rewrites=1, expires_at=5, held=True
        )
        messages = (
            message_row(64, seq=7, link=None, key=b"\xff\x00", body=b"\x00" * 100_000, size=3),
            message_row(96, seq=8, parent=64, link=None, main=False, role="tool_result", revision=4, created_at=-5),
        )
        assert backend.commit([Batch((Change(A, None, row, add=messages),))]) == [DONE]
        assert backend.lookup(ids=[A]) == [row]
        assert backend.lookup(key=("chat", b"k\x00")) == [row]
        assert sorted(backend.messages(numbers=[64, 96]), key=lambda m: m.number) == list(messages)
        assert backend.messages(keys=(A, [b"\xff\x00"])) == [messages[0]]
        assert backend.messages(numbers=[96], bodies=False) == [replace(messages[1], body=None)]

    def test_what_is_missing_is_left_out(self, backend: Backend) -> None:
        backend.commit([create(message_row(0))])
        assert backend.lookup(ids=[B, A, C]) == backend.lookup(ids=[A])
        assert backend.lookup(key=("chat", b"nothing")) == []
        assert [m.number for m in backend.messages(numbers=[5, 0, 7, -1])] == [0]
        assert backend.messages(keys=(B, [b"x"])) == []
        assert list(backend.path(5)) == []
        assert backend.scan(B, limit=5) == []
        assert backend.items(B) == []
        assert backend.tagged(b"nothing") == []

    def test_a_conversation_is_made_once(self, backend: Backend) -> None:
        assert backend.commit([create(), create(version=5)]) == [DONE, Taken("id", A)]
        assert backend.lookup(ids=[A])[0].version == 1

    def test_a_key_is_unique_in_its_kind(self, backend: Backend) -> None:
        same = [create(id=A, key=b"k"), create(id=B, key=b"k"), create(id=C, key=b"k", kind="state")]
        assert backend.commit(same) == [DONE, Taken("key", A), DONE]
        assert backend.lookup(ids=[A, B, C]) == backend.lookup(ids=[A, C])
        assert backend.kinds() == ["chat", "state"]

    def test_the_version_alone_does_not_let_a_change_in(self, backend: Backend) -> None:
        """Two processes may reach the same version with different rows."""
        backend.commit([create()])
        mine, theirs = (replace(conversation_row(A, 2), token=letter * 16) for letter in (b"m", b"t"))
        assert backend.commit([Batch((Change(A, token(1), theirs),))]) == [DONE]
        assert backend.commit([Batch((Change(A, mine.token, conversation_row(A, 3)),))]) == [Stale(A, theirs)]

    def test_only_the_expected_row_is_replaced(self, backend: Backend) -> None:
        backend.commit([create()])
        now = backend.lookup(ids=[A])[0]
        assert backend.commit([update(2)]) == [Stale(A, now)]
        assert backend.commit([update(1)]) == [DONE]
        assert backend.commit([update(1)]) == [Stale(A, conversation_row(A, 2))]
        assert backend.commit([update(1, B)]) == [Stale(B, None)]

    def test_batches_of_one_commit_see_each_other_and_fail_alone(self, backend: Backend) -> None:
        outcomes = backend.commit(
            [create(message_row(0)), update(1, add=(message_row(1),)), update(1, add=(message_row(2),)), create(id=B)]
        )
        assert outcomes == [DONE, DONE, Stale(A, conversation_row(A, 2)), DONE]
        assert [m.number for m in backend.scan(A, limit=9)] == [0, 1]

    def test_a_batch_is_all_or_nothing(self, backend: Backend) -> None:
        backend.commit([create(id=A), create(id=B)])
        two = Batch(
            (
                Change(A, token(1), conversation_row(A, 2), add=(message_row(0),), put=(ItemRow(A, b"i", 0, b""),)),
                Change(B, token(9), conversation_row(B, 10), add=(message_row(32, B),)),
            )
        )
        assert backend.commit([two]) == [Stale(B, conversation_row(B, 1))]
        assert backend.lookup(ids=[A])[0].version == 1
        assert backend.messages(numbers=[0, 32]) == []
        assert backend.items(A) == []

    def test_what_is_complete_is_not_staged_over(self, backend: Backend) -> None:
        """Somebody who stages the same, and finds too late that it has changed, must not spoil what others refer to."""
        backend.commit([create(message_row(0))])
        backend.stage(A, b"n", 0, [b"good", b"also"], last=True, at=1)
        backend.commit([update(1, attach=((0, b"n"),))])
        backend.stage(A, b"n", 0, [b"bad", b"worse", b"worst"], last=False, at=2)
        assert list(backend.chunks(A, b"n")) == [b"good", b"also"]
        assert [(row.chunks, row.messages) for row in backend.attachments(A)] == [(2, (0,))]

    def test_only_what_nobody_refers_to_is_unstaged(self, backend: Backend) -> None:
        backend.commit([create(message_row(0))])
        for name in (b"m", b"n"):
            backend.stage(A, name, 0, [name], last=True, at=1)
        backend.commit([update(1, attach=((0, b"n"),))])
        backend.unstage(A, [b"m", b"n", b"none"])
        assert [row.name for row in backend.attachments(A)] == [b"n"]
        assert [row.name for row in backend.attachments(A, [b"n", b"m"])] == [b"n"]
        assert list(backend.chunks(A, b"m")) == []

    def test_asking_again_when_nothing_was_written_does_not_use_positions_up(self, backend: Backend) -> None:
        backend.commit([create(message_row(0))])
        start = backend.changes(None).position
        backend.commit([update(1)])
        for _ in range(200):
            found = backend.changes(start)
            assert (found.everything, found.moved) == (False, [A])

    def test_requirements_are_checked_and_nothing_else_is_touched(self, backend: Backend) -> None:
        backend.commit([create(id=B)])
        wanted = replace(create(message_row(0)), require=((B, token(2)),))
        assert backend.commit([wanted]) == [Stale(B, conversation_row(B))]
        assert backend.lookup(ids=[A]) == []
        assert backend.commit([replace(wanted, require=((B, token(1)),))]) == [DONE]
        assert backend.commit([replace(create(id=C), require=((b"?" * 16, token(1)),))]) == [Stale(b"?" * 16, None)]

    def test_a_batch_may_require_something_of_the_keys_of_all_conversations(self, backend: Backend) -> None:
        """So that a key is forgotten only if nothing needs it, by the rows as they are in that transaction."""
        shape = KeyShape(6, ((0, b"\x00n"), (4, b"\xffy")))
        fits, none = b"\x00nAB\xffy", KeyShape(0)
        own = [conversation_row(B, n, kind=WORKSPACE, key=b"w", data_key=b"of another kind") for n in range(1, 4)]
        backend.commit([Batch((Change(B, None, own[0]),))])
        forget = Batch((Change(B, token(1), own[1]),), every_key=shape)
        for n, data_key in enumerate((b"", fits[:5], fits + b"\x00", b"\x00mAB\xffy", b"\x00nAB\xffx")):
            id = bytes([n]) * 16
            backend.commit([create(id=id, data_key=data_key), create(id=A, data_key=fits)])
            assert backend.commit([forget]) == [Stale(id, conversation_row(id, data_key=data_key))]
            assert backend.lookup(ids=[B])[0].token == token(1)
            assert backend.commit([Batch((Change(id, token(1), None),))]) == [DONE]
        assert backend.commit([replace(forget, every_key=none)]) == [Stale(A, conversation_row(A, data_key=fits))]
        # What came in the same commit counts as well; what the batch itself does comes after.
        late = create(id=C, kind="state", data_key=b"late")
        outcomes = backend.commit([late, forget, Batch((Change(C, token(1), None),)), forget])
        assert outcomes == [DONE, Stale(C, conversation_row(C, kind="state", data_key=b"late")), DONE, DONE]
        again = Batch((Change(B, token(2), own[2]),), every_key=none)
        assert backend.commit([Batch((Change(A, token(1), None),)), again]) == [DONE, DONE]

    def test_a_run_in_use_is_taken(self, backend: Backend) -> None:
        backend.commit([create(message_row(0), message_row(1))])
        assert backend.commit([update(1, add=(message_row(0, seq=5),))]) == [Taken("number", A)]
        backend.commit([update(1, drop=(0,))])
        assert backend.commit([create(message_row(0, B), id=B)]) == [Taken("number", B)]
        assert backend.lookup(ids=[B]) == []

    def test_a_message_key_is_unique_in_its_conversation(self, backend: Backend) -> None:
        backend.commit([create(message_row(0, key=b"k")), create(message_row(32, B, key=b"k"), id=B)])
        assert backend.commit([update(1, add=(message_row(1, key=b"k"),))]) == [Taken("message key", A)]
        assert [m.number for m in backend.messages(keys=(A, [b"k", b"other"]))] == [0]

    def test_amended_messages_replace_the_old(self, backend: Backend) -> None:
        backend.commit([create(message_row(0), message_row(1))])
        new = message_row(1, revision=1, body=b"new", size=3, link=None)
        assert backend.commit([update(1, amend=(new,))]) == [DONE]
        assert backend.messages(numbers=[1]) == [new]

    def test_dropped_messages_take_their_tags_along(self, backend: Backend) -> None:
        tags = (Tag(b"x", 0), Tag(b"x", 1), Tag(b"x"))
        backend.commit([create(message_row(0), message_row(1)), update(1, tag=tags)])
        backend.commit([update(2, drop=(1,))])
        assert backend.tagged(b"x") == [(A, None), (A, 0)]
        assert [m.number for m in backend.scan(A, limit=9)] == [0]

    def test_removing_a_conversation_takes_all_it_owns(self, backend: Backend) -> None:
        backend.commit([create(message_row(0)), create(message_row(32, B), id=B)])
        backend.commit([update(1, put=(ItemRow(A, b"i", 0, b""),), tag=(Tag(b"x"), Tag(b"x", 0)))])
        assert backend.commit([Batch((Change(A, token(2), None),))]) == [DONE]
        assert backend.lookup(ids=[A]) == []
        assert backend.messages(numbers=[0]) == []
        assert backend.items(A) == []
        assert backend.tagged(b"x") == []
        assert [m.number for m in backend.messages(numbers=[0, 32])] == [32]
        assert backend.commit([Batch((Change(A, token(2), None),))]) == [Stale(A, None)]

    def test_a_path_leads_from_the_message_to_its_root(self, backend: Backend) -> None:
        """C7: through full runs, forks and runs of one, each list is nearer to the root than the one before."""
        main = [message_row(n) for n in range(RUN)]
        second = [message_row(n, parent=RUN - 1 if n == 320 else n - 1) for n in range(320, 330)]
        fork = [message_row(640, parent=5, seq=900), message_row(641, seq=901)]
        alone = [message_row(960, parent=641, seq=902)]
        backend.commit([create(*main, *second, *fork, *alone)])
        for tip, wanted in (
            (329, [*range(RUN), *range(320, 330)]),
            (641, [*range(6), 640, 641]),
            (960, [*range(6), 640, 641, 960]),
            (0, [0]),
        ):
            lists = way(backend, tip)
            assert [m.number for rows in reversed(lists) for m in rows] == wanted
            assert all(rows for rows in lists)
            assert {(m.key, m.token, m.size) for rows in lists for m in rows} == {(None, b"", 0)}

    def test_the_root_of_a_message_is_where_its_path_ends(self, backend: Backend) -> None:
        first, other = [message_row(n) for n in range(RUN)], message_row(992, seq=903)
        fork = [message_row(640, parent=5, seq=900), message_row(641, seq=901), message_row(960, parent=641, seq=902)]
        backend.commit([create(*first, *fork, other)])
        assert [backend.root(tip) for tip in (0, 5, RUN - 1, 641, 960, 992)] == [0, 0, 0, 0, 0, 992]
        assert backend.root(1024) is None
        backend.commit([update(1, drop=(640,))])
        assert backend.root(960) is None

    def test_a_broken_path_stops_where_it_breaks(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(10)), message_row(64, parent=9))])
        backend.commit([update(1, drop=(4,))])
        lists = way(backend, 64)
        assert [m.number for rows in reversed(lists) for m in rows] == [5, 6, 7, 8, 9, 64]

    def test_scan_pages_by_sequence_both_ways(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n, seq=2 * n) for n in range(10))), create(message_row(64, B), id=B)])
        assert [m.seq for m in backend.scan(A, limit=3)] == [0, 2, 4]
        assert [m.seq for m in backend.scan(A, after=4, limit=99)] == [6, 8, 10, 12, 14, 16, 18]
        assert [m.seq for m in backend.scan(A, newest_first=True, limit=2)] == [18, 16]
        assert [m.seq for m in backend.scan(A, newest_first=True, after=3, limit=9)] == [2, 0]
        assert [m.body for m in backend.scan(A, limit=1, bodies=False)] == [None]

    def test_pages_are_in_order_and_survive_their_anchor(self, backend: Backend) -> None:
        """D2: newest activity first, ties by id; a position needs no row to stand on."""
        ids = [bytes([n]) * 16 for n in range(1, 8)]
        times = [50, 40, 40, 40, 30, 20, 10]
        for id, at in zip(ids, times, strict=True):
            backend.commit([create(id=id, active_at=at, created_at=100 - at)])
        newest = [ids[0], ids[3], ids[2], ids[1], ids[4], ids[5], ids[6]]
        assert [r.id for r in backend.page(Where(), None, 99)] == newest
        after = Position(40, ids[2])
        backend.commit([Batch((Change(ids[2], token(1), None),))])
        assert [r.id for r in backend.page(Where(), after, 2)] == [ids[1], ids[4]]
        oldest = backend.page(Where(), Position(60, ids[1]), 3, oldest_first=True)
        assert [r.id for r in oldest] == [ids[3], ids[4], ids[5]]
        assert backend.count(Where()) == 6

    def test_totals_are_those_of_all_conversations_of_a_kind(self, backend: Backend) -> None:
        assert backend.totals("chat") == Totals()
        backend.commit([create(id=bytes([n]) * 16, created_at=10 * n, active_at=100 - n) for n in range(1, 4)])
        backend.commit([create(id=b"o" * 16, kind="other", created_at=1, active_at=999)])
        rows = backend.lookup(ids=[bytes([n]) * 16 for n in range(1, 4)])
        summed = (3, sum(row.count for row in rows), sum(row.size for row in rows), 10, 99)
        assert backend.totals("chat") == Totals(*summed)
        assert backend.totals("nobody's") == Totals()

    def test_lifetimes_are_those_of_all_conversations_of_a_kind(self, backend: Backend) -> None:
        assert [one for some in backend.lifetimes("chat") for one in some] == []
        backend.commit([create(id=bytes([n]) * 16, active_at=100 - n) for n in range(1, 4)])
        backend.commit([create(id=b"h" * 16, active_at=7, expires_at=9, held=True), create(id=b"o" * 16, kind="other")])
        found = sorted((one for some in backend.lifetimes("chat") for one in some), key=lambda one: one.id)
        assert found == [
            *(Lifetime(bytes([n]) * 16, 100 - n, None, False) for n in range(1, 4)),
            Lifetime(b"h" * 16, 7, 9, True),
        ]

    def test_what_was_said_is_counted_by_day_and_role(self, backend: Backend) -> None:
        for n, (began, days) in enumerate([(50, (50, 59, 60)), (40, (40, 49, 50)), (70, (70, 85)), (10, (10, 49))]):
            id = bytes([n + 1]) * 16
            said = [message_row(1024 * n + 32 * i, id, seq=i, created_at=at) for i, at in enumerate(days)]
            backend.commit([create(*said, id=id, created_at=began, active_at=max(days))])
        role = said[0].role
        found = {(one.day, one.role): one.count for one in backend.said("chat", 50, 10)}
        assert found == {(5, role): 3, (6, role): 1, (7, role): 1, (8, role): 1}
        assert backend.said("other", 50, 10) == []

    def test_a_page_can_begin_at_a_time(self, backend: Backend) -> None:
        """D10: what has been quiet since then, without a look at the others."""
        for id, at in ((A, 50), (B, 40), (C, 30)):
            backend.commit([create(id=id, active_at=at)])
        for at, found in ((51, [A, B, C]), (50, [B, C]), (41, [B, C]), (40, [C]), (30, [])):
            assert [r.id for r in backend.page(Where(), Position(at, b""), 9)] == found

    def test_pages_show_what_was_asked_for(self, backend: Backend) -> None:
        backend.commit([create(id=A), create(id=B, expires_at=100), create(id=C, kind="state")])
        backend.commit([update(1, tag=(Tag(b"p"), Tag(b"q", 0)))])
        assert [r.id for r in backend.page(Where(), None, 9)] == [B, A]
        assert [r.id for r in backend.page(Where(kind="state"), None, 9)] == [C]
        assert [r.id for r in backend.page(Where(tags=(b"p",)), None, 9)] == [A]
        assert backend.page(Where(tags=(b"q",)), None, 9) == []
        assert [r.id for r in backend.page(Where(alive_at=100), None, 9)] == [A]
        assert [r.id for r in backend.page(Where(alive_at=99), None, 9)] == [B, A]
        other = b"\xd0" * 16
        backend.commit([create(id=other, expires_at=100, held=True)])
        assert other in [r.id for r in backend.page(Where(alive_at=100), None, 9)]
        backend.commit([Batch((Change(other, backend.lookup(ids=[other])[0].token, None),))])
        assert (backend.count(Where(alive_at=100)), backend.count(Where(tags=(b"p",)))) == (1, 1)
        assert [r.id for r in backend.page(Where(expired_at=100), None, 9)] == [B]
        assert backend.page(Where(expired_at=99), None, 9) == []
        assert backend.count(Where(expired_at=100)) == 1

    def test_several_tags_are_met_by_what_has_all_of_them(self, backend: Backend) -> None:
        """D6: pages go on after any place, in both orders, and are counted, however common a tag is."""
        ids = [bytes([n]) * 16 for n in range(1, 13)]
        tags = {2: Tag(b"even"), 3: Tag(b"third"), 5: Tag(b"fifth")}
        for n, id in enumerate(ids, 1):
            row = conversation_row(id, 1, active_at=n, expires_at=50 if n == 6 else None)
            own = tuple(tag for by, tag in tags.items() if n % by == 0)
            backend.commit([Batch((Change(id, None, row, tag=own),))])
        backend.commit([create(message_row(0), id=A), update(1, tag=(Tag(b"even"), Tag(b"third", 0)))])
        for asked, meant in (
            ((b"even",), [2, 4, 6, 8, 10, 12]),
            ((b"even", b"third"), [6, 12]),
            ((b"third", b"even"), [6, 12]),
            ((b"even", b"even"), [2, 4, 6, 8, 10, 12]),
            ((b"even", b"third", b"fifth"), []),
            ((b"even", b"no such"), []),
        ):
            wanted = [ids[n - 1] for n in meant] + ([A] if set(asked) == {b"even"} else [])
            for oldest_first in (False, True):
                order = backend.page(Where(tags=asked), None, 99, oldest_first=oldest_first)
                assert {place.id for place in order} == set(wanted)
                for n, place in enumerate(order):
                    assert backend.page(Where(tags=asked), place, 2, oldest_first=oldest_first) == order[n + 1 : n + 3]
            assert backend.count(Where(tags=asked)) == len(wanted)
        alive = Where(tags=(b"even", b"third"), alive_at=60)
        assert [place.id for place in backend.page(alive, None, 9)] == [ids[11]]
        assert backend.count(alive) == 1

    def test_prefixes_find_conversations(self, backend: Backend) -> None:
        backend.commit([create(id=A), create(id=B)])
        assert [r.id for r in backend.lookup(prefix="a0a")] == [A]
        assert [r.id for r in backend.lookup(prefix="a" + A.hex()[1:])] == [A]
        assert [r.id for r in backend.lookup(prefix="")] == [A, B]
        assert [r.id for r in backend.lookup(prefix="", limit=1)] == [A]
        assert backend.lookup(prefix="c") == []

    def test_items_are_ordered_and_replaced(self, backend: Backend) -> None:
        keys = [b"a", b"b/1", b"b/2", b"b0", b"\xff\x00"]
        items = tuple(ItemRow(A, key, 0, key) for key in keys)
        backend.commit([create(), update(1, put=items[::-1])])
        assert [i.key for i in backend.items(A)] == keys
        assert [i.key for i in backend.items(A, b"b/", reverse=True, limit=1)] == [b"b/2"]
        backend.commit([update(2, put=(ItemRow(A, b"a", 1, b"new"),), unput=(b"b0", b"never there"))])
        assert backend.items(A, b"a") == [ItemRow(A, b"a", 1, b"new")]
        assert [i.key for i in backend.items(A, b"b")] == [b"b/1", b"b/2"]

    def test_items_are_read_on_after_a_key(self, backend: Backend) -> None:
        keys = [b"", b"a", b"b/1", b"b/2", b"b0", b"\xff"]
        backend.commit([create(), update(1, put=tuple(ItemRow(A, key, 0, key) for key in keys))])
        assert [i.key for i in backend.items(A, after=b"")] == keys[1:]
        assert [i.key for i in backend.items(A, after=b"b/1", limit=2)] == [b"b/2", b"b0"]
        assert [i.key for i in backend.items(A, b"b", after=b"b/1")] == [b"b/2", b"b0"]
        assert [i.key for i in backend.items(A, after=b"b/2", reverse=True)] == [b"b/1", b"a", b""]
        assert backend.items(A, after=b"\xff") == []

    def test_the_tags_of_a_conversation_are_listed_and_read_on(self, backend: Backend) -> None:
        tags = [Tag(b"", None), Tag(b"x", None), Tag(b"x", 0), Tag(b"y", 0), Tag(b"a", 1)]
        backend.commit([create(id=B), create(message_row(0), message_row(1))])
        backend.commit([update(1, B, tag=(Tag(b"x"),)), update(1, tag=tuple(reversed(tags)))])
        assert backend.tags(A, limit=99) == tags
        assert backend.tags(A, limit=2) == tags[:2]
        assert [backend.tags(A, after=tag, limit=9) for tag in tags] == [tags[n:] for n in range(1, 6)]
        assert backend.tags(B, limit=9) == [Tag(b"x")]
        assert backend.tags(bytes(16), limit=9) == []

    def test_what_arrives_may_have_numbers_that_were_dropped_but_none_in_use(self, backend: Backend) -> None:
        backend.commit([create(message_row(0), message_row(64)), create(message_row(32, B), id=B)])
        backend.commit([Batch((Change(A, token(1), None),))])
        assert backend.commit([create(message_row(0))]) == [Taken("number", A)]
        again = create(message_row(0), message_row(64))
        taken = create(message_row(32, bytes(16)), id=bytes(16))
        assert backend.commit([replace(again, arriving=True), replace(taken, arriving=True)]) == [
            DONE,
            Taken("number", bytes(16)),
        ]
        assert [m.number for m in backend.scan(A, limit=9)] == [0, 64]
        assert backend.edge() == 96

    def test_what_arrives_packed_has_no_bodies_and_the_pack_may_come_later(self, backend: Backend) -> None:
        rows = [message_row(n, body=None) for n in range(3)]
        pack = pack_row(0, 3)
        assert backend.commit([create(*rows)]) == [DONE]
        assert backend.commit([update(1, pack=(pack,))]) == [DONE]
        assert (backend.scan(A, limit=9), backend.packs([0])) == (rows, [pack])
        assert backend.check() == []

    def test_tags_come_and_go(self, backend: Backend) -> None:
        backend.commit([create(id=B), create(message_row(0))])
        backend.commit([update(1, B, tag=(Tag(b"x"),)), update(1, tag=(Tag(b"x", 0), Tag(b"x", 0), Tag(b"y")))])
        assert backend.tagged(b"x") == [(A, 0), (B, None)]
        backend.commit([update(2, untag=(Tag(b"x", 0), Tag(b"never")))])
        assert backend.tagged(b"x") == [(B, None)]

    # -- packs

    def test_packing_takes_the_bodies_out_and_leaves_the_headers(self, backend: Backend) -> None:
        rows = [message_row(n, key=b"k%d" % n) for n in range(RUN)]
        backend.commit([create(*rows), update(1, tag=(Tag(b"x", 3),))])
        assert backend.packs([0, 32, 64]) == []
        pack = pack_row(0, RUN, body=b"\x00pack\xff")
        assert backend.commit([update(2, pack=(pack,))]) == [DONE]
        bare = [replace(row, body=None) for row in rows]
        assert sorted(backend.messages(numbers=range(RUN)), key=lambda m: m.number) == bare
        assert backend.scan(A, limit=99) == bare
        assert backend.messages(keys=(A, [b"k7"])) == [bare[7]]
        assert backend.packs([64, 0, 32]) == [pack]
        assert backend.tagged(b"x") == [(A, 3)]
        assert (backend.edge(), backend.check()) == (RUN, [])
        assert sorted(n for numbers in backend.numbers() for n in numbers) == list(range(RUN))

    def test_a_pack_belongs_to_its_run_and_others_keep_their_bodies(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(5))), create(message_row(32, B), id=B)])
        backend.commit([update(1, pack=(pack_row(0, 3),))])
        assert [m.body is None for m in backend.scan(A, limit=9)] == [True, True, True, False, False]
        assert [m.body for m in backend.scan(B, limit=9)] == [b"body32\x00"]
        assert backend.packs([32]) == []

    def test_a_pack_is_put_over_an_older_one(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(5)))])
        backend.commit([update(1, pack=(pack_row(0, 2, body=b"old"),))])
        longer, shorter = pack_row(0, 4, body=b"longer"), pack_row(0, 1, body=b"shorter")
        backend.commit([update(2, pack=(longer,))])
        assert backend.packs([0]) == [longer]
        assert [m.body is None for m in backend.scan(A, limit=9)] == [True, True, True, True, False]
        backend.commit([update(3, drop=(1, 2, 3, 4), pack=(shorter,))])
        assert backend.packs([0]) == [shorter]
        assert [m.number for m in backend.scan(A, limit=9)] == [0]

    def test_a_packed_message_is_amended_where_it_is(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(3))), update(1, pack=(pack_row(0, 3),))])
        new = message_row(1, body=None, revision=1, main=False, size=9)
        pack = pack_row(0, 3, body=b"anew")
        assert backend.commit([update(2, amend=(new,), pack=(pack,))]) == [DONE]
        assert backend.messages(numbers=[1]) == [new]
        assert backend.packs([0]) == [pack]

    def test_unpacking_removes_the_pack_and_messages_may_have_bodies_again(self, backend: Backend) -> None:
        rows = [message_row(n) for n in range(3)]
        backend.commit([create(*rows), update(1, pack=(pack_row(0, 3),))])
        assert backend.commit([update(2, unpack=(0,), amend=tuple(rows))]) == [DONE]
        assert (backend.packs([0]), backend.scan(A, limit=9)) == ([], rows)
        assert backend.commit([update(3, pack=(pack_row(0, 3),)), update(4, drop=(0, 1, 2), unpack=(0,))]) == [DONE] * 2
        assert (backend.packs([0]), backend.scan(A, limit=9)) == ([], [])

    def test_a_stale_change_packs_nothing(self, backend: Backend) -> None:
        backend.commit([create(message_row(0)), update(1)])
        assert backend.commit([update(1, pack=(pack_row(0, 1),))]) == [Stale(A, conversation_row(A, 2))]
        assert backend.packs([0]) == []
        assert backend.messages(numbers=[0]) == [message_row(0)]

    def test_a_path_leads_through_packs(self, backend: Backend) -> None:
        """Packs come whole, also where the way ends inside one; rows after a pack come by themselves."""
        first = [message_row(n) for n in range(RUN)]
        second = [message_row(n, parent=RUN - 1 if n == 64 else n - 1) for n in range(64, 74)]
        fork = [message_row(320, parent=5, seq=900), message_row(321, seq=901)]
        below = [message_row(352, parent=70, seq=902)]
        backend.commit([create(*first, *second, *fork, *below)])
        packs = pack_row(0, RUN, body=b"one"), pack_row(64, 6, parent=RUN - 1, body=b"two")
        backend.commit([update(1, pack=packs)])
        one, two = packs
        rest = [replace(m, key=None, token=b"", size=0) for m in (*second, *fork, *below)]
        assert list(backend.path(RUN - 1)) == [one]
        assert list(backend.path(3)) == [one]
        assert list(backend.path(66)) == [two, one]
        assert list(backend.path(73)) == [rest[6:10], two, one]
        assert list(backend.path(70)) == [rest[6:7], two, one]
        assert list(backend.path(321)) == [rest[10:12], one]
        assert list(backend.path(352)) == [rest[12:], rest[6:7], two, one]
        assert list(backend.path(74)) == []

    def test_a_path_below_a_missing_pack_stops_there(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(RUN)), message_row(64, parent=RUN - 1))])
        backend.commit([update(1, pack=(pack_row(0, RUN),)), update(2, drop=tuple(range(RUN)), unpack=(0,))])
        assert [[m.number for m in piece] for piece in way(backend, 64)] == [[64]]

    def test_loose_runs_are_listed_in_order(self, backend: Backend) -> None:
        whole = [message_row(n) for n in (*range(RUN), *range(64, 64 + RUN))]
        backend.commit([create(*whole, message_row(320)), create(message_row(352, B), message_row(353, B), id=B)])
        assert backend.loose(full=True, limit=9) == [Loose(0, A), Loose(64, A)]
        assert backend.loose(full=True, after=0, limit=9) == [Loose(64, A)]
        assert backend.loose(full=True, after=64, limit=9) == []
        assert backend.loose(full=False, limit=9) == [Loose(0, A), Loose(64, A), Loose(320, A), Loose(352, B)]
        assert backend.loose(full=False, after=64, limit=1) == [Loose(320, A)]
        backend.commit([update(1, pack=(pack_row(0, RUN), pack_row(64, 3)))])
        assert backend.loose(full=True, limit=9) == [Loose(64, A)]
        assert backend.loose(full=False, limit=9) == [Loose(320, A), Loose(352, B)]

    def test_a_run_that_grows_beyond_its_pack_is_loose_when_it_is_full(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(9))), update(1, pack=(pack_row(0, 9),))])
        assert backend.loose(full=False, limit=9) == backend.loose(full=True, limit=9) == []
        backend.commit([update(2, add=tuple(message_row(n) for n in range(9, RUN)))])
        assert backend.loose(full=True, limit=9) == [Loose(0, A)]

    # -- attachments

    def test_attachments_are_staged_and_adopted(self, backend: Backend) -> None:
        """The conversation need not exist when the first chunk comes."""
        backend.stage(A, b"n1", 0, [b"a", b""], last=False, at=50)
        assert backend.attachments(A) == [AttachmentRow(b"n1", 0, 50, ())]
        backend.stage(A, b"n1", 2, [b"c\x00"], last=True, at=60)
        assert backend.attachments(A) == [AttachmentRow(b"n1", 3, 60, ())]
        assert list(backend.chunks(A, b"n1")) == [b"a", b"", b"c\x00"]
        assert list(backend.chunks(A, b"n1", 2)) == [b"c\x00"]
        adopted = Change(A, None, conversation_row(), add=(message_row(0), message_row(1)), attach=((1, b"n1"),))
        assert backend.commit([Batch((adopted,))]) == [DONE]
        assert backend.commit([update(1, attach=((0, b"n1"), (1, b"n1")))]) == [DONE]
        assert backend.attachments(A) == [AttachmentRow(b"n1", 3, 60, (0, 1))]
        assert backend.attachments(B) == []
        assert list(backend.chunks(B, b"n1")) == list(backend.chunks(A, b"n2")) == []

    def test_what_is_not_complete_is_missing_and_nothing_is_written(self, backend: Backend) -> None:
        backend.commit([create(message_row(0))])
        backend.stage(A, b"begun", 0, [b"a"], last=False, at=1)
        backend.stage(A, b"holed", 1, [b"b"], last=True, at=1)
        backend.stage(B, b"elsewhere", 0, [b"b"], last=True, at=1)
        for name in (b"begun", b"holed", b"elsewhere", b"never"):
            asked = update(1, add=(message_row(1),), attach=((1, name),))
            assert backend.commit([asked]) == [Missing(A, name)]
        assert (backend.lookup(ids=[A])[0].version, backend.messages(numbers=[1])) == (1, [])
        backend.stage(A, b"begun", 1, [b"b"], last=True, at=2)
        assert backend.commit([update(1, add=(message_row(1),), attach=((1, b"begun"),))]) == [DONE]

    def test_a_chunk_that_is_staged_again_replaces_the_old(self, backend: Backend) -> None:
        backend.stage(A, b"n", 0, [b"old", b"two"], last=False, at=1)
        backend.stage(A, b"n", 0, [b"new"], last=False, at=2)
        backend.stage(A, b"n", 2, [b"three"], last=True, at=3)
        assert list(backend.chunks(A, b"n")) == [b"new", b"two", b"three"]
        backend.stage(A, b"n", 0, [b"new", b"two", b"three"], last=True, at=4)
        assert backend.attachments(A) == [AttachmentRow(b"n", 3, 4, ())]

    def test_a_message_lets_go_of_an_attachment_and_the_last_one_takes_it_along(self, backend: Backend) -> None:
        for name in (b"new", b"old"):
            backend.stage(A, name, 0, [b"chunk"], last=True, at=1)
        attach = ((0, b"old"), (1, b"old"))
        backend.commit([create(message_row(0), message_row(1)), update(1, attach=attach)])
        assert backend.commit([update(2, detach=((0, b"old"),), attach=((0, b"new"),))]) == [DONE]
        assert [(row.name, row.messages) for row in backend.attachments(A)] == [(b"new", (0,)), (b"old", (1,))]
        assert backend.commit([update(3, detach=((1, b"old"),))]) == [DONE]
        assert [row.name for row in backend.attachments(A)] == [b"new"]
        assert list(backend.chunks(A, b"old")) == []

    def test_the_key_of_a_conversation_changes_where_a_change_says_so(self, backend: Backend) -> None:
        backend.commit([Batch((Change(A, None, conversation_row(key=b"old")),))])
        renamed = update(1)
        change = replace(renamed.changes[0], row=conversation_row(version=2, key=b"new"), rekey=True)
        assert backend.commit([Batch((change,))]) == [DONE]
        assert backend.lookup(key=("chat", b"old")) == []
        assert [row.id for row in backend.lookup(key=("chat", b"new"))] == [A]

    def test_the_last_reference_takes_the_attachment_along(self, backend: Backend) -> None:
        for name in (b"both", b"second"):
            backend.stage(A, name, 0, [name], last=True, at=1)
        attach = ((0, b"both"), (1, b"both"), (1, b"second"))
        backend.commit([create(message_row(0), message_row(1)), update(1, attach=attach)])
        backend.commit([update(2, drop=(1,))])
        assert backend.attachments(A) == [AttachmentRow(b"both", 1, 1, (0,))]
        assert list(backend.chunks(A, b"second")) == []
        assert list(backend.chunks(A, b"both")) == [b"both"]
        backend.commit([update(3, drop=(0,))])
        assert backend.attachments(A) == []

    def test_packing_and_amending_keep_references(self, backend: Backend) -> None:
        backend.stage(A, b"n", 0, [b"x"], last=True, at=1)
        backend.commit([create(message_row(0), message_row(1)), update(1, attach=((1, b"n"),))])
        backend.commit([update(2, pack=(pack_row(0, 2),))])
        backend.commit([update(3, amend=(message_row(1, body=None, revision=1),), pack=(pack_row(0, 2),))])
        assert backend.attachments(A) == [AttachmentRow(b"n", 1, 1, (1,))]

    def test_only_what_nobody_adopted_is_collected(self, backend: Backend) -> None:
        backend.commit([create(message_row(0))])
        for name, at in ((b"adopted", 10), (b"old", 10), (b"new", 20)):
            backend.stage(A, name, 0, [b"x", b"y"], last=True, at=at)
        backend.stage(C, b"begun", 0, [b"x"], last=False, at=10)
        backend.commit([update(1, attach=((0, b"adopted"),))])
        assert backend.collect(10) == 0
        assert backend.collect(20) == 2
        assert [row.name for row in backend.attachments(A)] == [b"adopted", b"new"]
        assert list(backend.chunks(A, b"old")) == list(backend.chunks(C, b"begun")) == []
        assert backend.commit([update(2, attach=((0, b"old"),))]) == [Missing(A, b"old")]
        assert backend.collect(10**9) == 1
        assert list(backend.chunks(A, b"adopted")) == [b"x", b"y"]

    def test_removing_a_conversation_takes_packs_and_attachments(self, backend: Backend) -> None:
        backend.commit([create(message_row(0)), create(message_row(32, B), id=B)])
        for id, name in ((A, b"adopted"), (A, b"staged"), (B, b"adopted")):
            backend.stage(id, name, 0, [b"x"], last=True, at=1)
        packed = [pack_row(0, 1), pack_row(32, 1, B)]
        backend.commit(
            [update(1, id, pack=(p,), attach=((p.first, b"adopted"),)) for id, p in zip((A, B), packed, strict=True)]
        )
        assert backend.commit([Batch((Change(A, token(2), None),))]) == [DONE]
        assert backend.packs([0, 32]) == packed[1:]
        assert backend.attachments(A) == []
        assert list(backend.chunks(A, b"adopted")) == list(backend.chunks(A, b"staged")) == []
        assert backend.attachments(B) == [AttachmentRow(b"adopted", 1, 1, (32,))]
        assert backend.check() == []

    # -- the feed

    def test_the_feed_tells_what_moved_and_what_is_gone(self, backend: Backend) -> None:
        backend.commit([create(id=A), create(id=B)])
        first = backend.changes(None)
        assert first.everything
        assert not backend.changes(first.position).everything
        backend.commit([update(1), create(id=C)])
        second = backend.changes(first.position)
        assert (second.everything, set(second.moved), second.gone) == (False, {A, C}, [])
        backend.commit([Batch((Change(B, token(1), None),))])
        backend.commit([update(1, C, add=(message_row(0, C),))])
        third = backend.changes(second.position)
        assert (third.everything, third.moved, third.gone) == (False, [C], [B])
        backend.commit([update(2, C, pack=(pack_row(0, 1, C),))])
        assert backend.changes(third.position).moved == [C]
        again = backend.changes(first.position)  # an older position tells at least as much
        assert {A, C} <= set(again.moved)
        assert again.gone == [B]

    def test_the_feed_says_nothing_where_nothing_moved(self, backend: Backend) -> None:
        backend.commit([create()])
        position = backend.changes(None).position
        for _ in range(3):
            quiet = backend.changes(position)
            assert (quiet.everything, quiet.moved, quiet.gone) == (False, [], [])
            position = quiet.position
        assert backend.commit([update(9)]) == [Stale(A, conversation_row())]
        assert backend.changes(position).moved == []

    def test_a_position_of_elsewhere_is_unknown(self, backend: Backend) -> None:
        backend.commit([create()])
        backend.changes(None)
        for position in (b"", b"?" * 16, b"?" * 24, b"\x00" * 24):
            assert backend.changes(position).everything

    def test_readers_of_the_feed_do_not_disturb_each_other(self, backend: Backend) -> None:
        backend.commit([create(id=A), create(id=B)])
        slow = backend.changes(None).position
        fast = backend.changes(None).position
        for version in range(1, 6):
            backend.commit([update(version, A if version % 2 else B)])  # every other one is stale
            fast = backend.changes(fast).position
        assert backend.changes(slow).moved == [A]
        assert backend.changes(fast).moved == []

    def test_who_is_made_anew_under_the_same_id_has_moved_and_is_not_gone(self, backend: Backend) -> None:
        backend.commit([create()])
        position = backend.changes(None).position
        backend.commit([Batch((Change(A, token(1), None),)), create(version=7)])
        found = backend.changes(position)
        assert (found.moved, found.gone) == ([A], [])

    # -- care

    def test_maintenance_changes_no_row(self, backend: Backend) -> None:
        rows = [message_row(n, body=b"x" * 3000) for n in range(RUN)]
        backend.commit([create(*rows, id=A), create(message_row(64, B), id=B)])
        backend.stage(B, b"n", 0, [b"x" * 5000], last=True, at=1)
        backend.commit([Batch((Change(A, token(1), None),))])
        assert backend.scrub()
        full = backend.size()
        for _ in range(100):
            if backend.maintain(1.0):
                break
        else:
            raise AssertionError("maintenance has no end")
        assert backend.maintain(0.0)
        assert backend.scrub()
        assert backend.size() <= full
        assert backend.messages(numbers=[64]) == [message_row(64, B)]
        assert list(backend.chunks(B, b"n")) == [b"x" * 5000]
        assert backend.check() == []

    def test_the_size_counts_packs_and_chunks(self, backend: Backend) -> None:
        backend.commit([create(message_row(0)), update(1, pack=(pack_row(0, 1, body=b"p" * 70_000),))])
        backend.stage(A, b"n", 0, [b"x" * 60_000], last=True, at=1)
        assert backend.size() >= 130_000

    def test_what_is_used_is_the_messages_and_the_attachments_of_this_workspace(self, backend: Backend) -> None:
        assert backend.used() == 0
        backend.commit([create(message_row(0), id=A), create(message_row(64, B), id=B)])
        empty = backend.used()
        assert empty == sum(row.size for row in backend.lookup(ids=[A, B]))
        backend.stage(A, b"n", 0, [b"x" * 600, b"y" * 60], last=True, at=1)
        backend.stage(B, b"n", 0, [b"z" * 6], last=False, at=1)
        assert backend.used() == empty + 666
        backend.unstage(A, [b"n"])
        backend.commit([Batch((Change(B, token(1), None),))])
        assert backend.used() == sum(row.size for row in backend.lookup(ids=[A]))

    def test_the_disk_has_no_more_free_than_there_is(self, backend: Backend) -> None:
        disk = backend.disk()
        assert disk is None or 0 <= disk.free <= disk.total

    # -- numbers

    def test_the_attachments_of_a_conversation_are_counted_as_they_are_kept(self, backend: Backend) -> None:
        assert backend.attached(A) == 0
        backend.commit([create(message_row(0)), create(id=B)])
        backend.stage(A, b"n", 0, [b"x" * 600, b"y" * 60], last=True, at=1)
        backend.stage(A, b"m", 0, [b"z" * 6], last=False, at=1)
        backend.stage(B, b"n", 0, [b"z" * 5], last=True, at=1)
        assert (backend.attached(A), backend.attached(B), backend.attached(C)) == (666, 5, 0)
        backend.commit([update(1, attach=((0, b"n"),))])
        backend.unstage(A, [b"m", b"n"])
        assert (backend.attached(A), backend.attached(B)) == (660, 5)
        backend.commit([Batch((Change(A, token(2), None),))])
        assert backend.attached(A) == 0

    def test_a_run_that_was_used_is_taken_for_ever(self, backend: Backend) -> None:
        backend.commit([create(message_row(0)), create(message_row(320, B), id=B)])
        backend.commit([Batch((Change(B, token(1), None),))])
        for number in (320, 32):
            assert backend.commit([update(1, add=(message_row(number, seq=9),))]) == [Taken("number", A)]
        assert backend.commit([update(1, add=(message_row(352, parent=0, seq=9),))]) == [DONE]

    def test_the_edge_is_above_every_number_that_ever_was(self, backend: Backend) -> None:
        assert backend.edge() == 0
        backend.commit([create(message_row(0), message_row(320, seq=400)), create(message_row(640, B), id=B)])
        assert backend.edge() == 640 + RUN
        backend.commit([Batch((Change(B, token(1), None),))])
        assert backend.edge() == 640 + RUN
        backend.commit([update(1, add=(message_row(960, seq=500),)), update(2, drop=(960,))])
        assert backend.edge() == 960 + RUN

    def test_numbers_lists_every_message(self, backend: Backend) -> None:
        backend.commit([create(message_row(0), message_row(1)), create(message_row(320, B), id=B)])
        assert sorted(n for numbers in backend.numbers() for n in numbers) == [0, 1, 320]

    def test_an_abandoned_iterator_holds_nobody_up(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(RUN)), message_row(320, parent=RUN - 1))])
        path = backend.path(320)
        next(path)
        assert backend.commit([update(1, add=(message_row(321),))]) == [DONE]
        assert backend.scrub()

    def test_threads_may_use_it_at_once(self, backend: Backend) -> None:
        """Compare and swap lets exactly one of many win each version."""
        backend.commit([create()])
        won: list[int] = []

        def work() -> None:
            for version in range(1, 21):
                won.extend([version] * backend.commit([update(version)]).count(DONE))

        workers = [threading.Thread(target=work) for _ in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(won) == sorted(set(won))
        assert backend.lookup(ids=[A])[0].version == len(won) + 1

    def test_it_is_healthy_and_says_what_it_is(self, backend: Backend) -> None:
        backend.commit([create(message_row(0, body=b"x" * 5000))])
        assert backend.check() == []
        assert backend.scrub()
        assert backend.size() >= 5000
        assert len(backend.info.workspace) == 16
        assert backend.info.name


def texts(messages: list[Saved]) -> list[str]:
    return [message.text for message in messages]


def fill(talk: Conversation, turns: int) -> list[Saved]:
    """So many turns: a question and an answer each."""
    return [m for n in range(turns) for m in talk.extend([Message.user(f"q{n}"), Message.assistant(f"a{n}")])]


def id_bytes(talk: Conversation) -> bytes:
    return bytes.fromhex(talk.id.replace("-", ""))


def row_of(backend: Backend, talk: Conversation) -> ConversationRow:
    return backend.lookup(ids=[id_bytes(talk)])[0]


def noise(size: int) -> bytes:
    """Bytes that do not get smaller, the same ones for the same size."""
    return random.Random(size).randbytes(size)


def pack_all(store: Store) -> None:
    """Pack all there is, however contrary the backend."""
    for _ in range(100):
        store.maintain()
        if not any(store.backend.loose(full=full, limit=1) for full in (True, False)):
            return
    raise AssertionError("a store that cannot be packed")


def grown(store: Store) -> Conversation:
    """A conversation with a bit of everything, over several runs."""
    talk = store.start(title="T", system_prompt="one", metadata={"a": "b"})
    path = fill(talk, 25)
    talk.configure(system_prompt="two", model="m")
    talk.extend([Message.user(f"k{n}", key=f"k{n}", label="keyed") for n in range(30)])
    talk.append(Message(role="event", blocks=[Block.text("something happened")]))
    talk.append(Message.assistant("x" * 3000, usage=Usage(10, 20), raw={"a": [1, None]}, extra={"e": 0.5}))
    fork = talk.fork(at=path[20])
    fill(fork, 18)
    fork.label("here")
    fill(talk.subagent("review", "r1", call=path[3]), 17)
    talk.compact("gist")
    fill(talk, 17)
    return talk


def visible(store: Store, talk: Conversation) -> list[object]:
    """All that anybody can see of a conversation."""
    talk = store.conversation(talk.id)
    info = store.conversations().items[0]
    found: list[object] = [talk.thread(), talk.thread(full=True), talk.branches(), talk.usage(), talk.setup]
    found += [talk.at, talk.head, talk.count, talk.title, talk.metadata, talk.active_at, talk.created_at]
    found += [info.id, info.count, info.size, info.head, info.active_at, info.approximate_tokens]
    everything = list(store.messages(newest_first=False))
    found += [everything, list(store.messages()), list(store.messages(conversation=talk)), store.get(everything)]
    found += [list(store.messages(label=label)) for label in ("keyed", "here", "subagent:review:r1", "compaction")]
    found += [list(store.messages(subagent="review"))]
    for message in everything[::9]:
        at = store.conversation(message.id)
        found += [store.message(message), at.at, at.thread(full=True), at.setup, store.thread(message)]
    stats = store.stats()
    return [*found, stats.messages, stats.content_bytes, stats.newest, store.verify()]


def interrupted(
    call: Callable[..., Any], meanwhile: Callable[[], object], *, before: bool = False
) -> Callable[..., Any]:
    """The same call, and the first time something else happens right after it, or right before."""
    rest = [meanwhile]

    def run(*args: Any, **keywords: Any) -> Any:
        other = rest.pop() if rest else None
        if other is not None and before:
            other()
        result = call(*args, **keywords)
        if other is not None and not before:
            other()
        return result

    return run


def interrupt_commit(patch: pytest.MonkeyPatch, backend: Backend, meanwhile: Callable[[], object]) -> None:
    """Let something happen right before the next commit, by whichever verb it comes."""
    rest = [meanwhile]

    def first(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if rest:
                rest.pop()()
            return call(*args)

        return run

    for verb in ("commit", "commit_queued") if backend.info.can_queue else ("commit",):
        patch.setattr(backend, verb, first(getattr(backend, verb)))


class Changing:
    """Content that is another one when it is read for the second time."""

    def __init__(self, first: bytes, second: bytes) -> None:
        self._contents = first, second
        self.reads = 0

    def __call__(self) -> Iterator[bytes]:
        self.reads += 1
        content = self._contents[min(self.reads, 2) - 1]
        return iter([content[start : start + CHUNK] for start in range(0, len(content), CHUNK)])


class StoreContract:
    """The public API over a backend, plain and sealed, calm and contrary."""

    @pytest.fixture(params=["plain", "sealed", "plain-contrary", "sealed-contrary"])
    def open_store(self, backend: Backend, request: pytest.FixtureRequest) -> Callable[[], Store]:
        """Opens the store again and again over the same backend, with a clock that ticks."""
        key = Key.generate() if "sealed" in request.param else None
        used: Backend = Contrary(backend, seed=7) if "contrary" in request.param else backend
        ticks = count(1_700_000_000_000_000, 1000)
        return lambda: Store(used, key=key, clock=lambda: next(ticks))

    @pytest.fixture
    def store(self, open_store: Callable[[], Store]) -> Iterator[Store]:
        store = open_store()
        yield store
        if not getattr(store, "damaged_on_purpose", False):
            assert store.verify().problems == ()

    # -- keeping and resuming

    def test_a_conversation_is_resumed_as_it_was(self, open_store: Callable[[], Store]) -> None:
        """C1, C7: another handle, another store object, the same thread."""
        first = open_store()
        talk = first.start(
            title="Build", system_prompt="Be terse.", provider="openai", model="gpt-5", metadata={"k": "v"}
        )
        written = [talk.append(Message.user("Why?")), talk.append(Message.assistant("Because."))]
        second = open_store()
        again = second.conversation(talk.id)
        assert again.thread() == written
        assert (again.title, again.system_prompt, again.provider, again.model) == (
            "Build",
            "Be terse.",
            "openai",
            "gpt-5",
        )
        assert again.metadata == {"k": "v"}
        latest = second.latest()
        assert latest is not None
        assert (latest.id, latest.at, latest.head) == (talk.id, written[1].id, written[1].id)

    def test_everything_in_a_message_comes_back(self, store: Store) -> None:
        """C2, C3: text of any kind, bytes, extras, raw JSON, usage."""
        message = Message(
            role="assistant",
            blocks=(
                Block.text("nul\0 🎉 \u202eabc\u202c e\u0301 \ufeff \x1b[31m"),
                Block.text("x" * 100_000, cited=[1, {"a": None}]),
                Block.image(bytes(range(256)), "image/png"),
                Block.audio(b"", "audio/wav"),
                Block.video(b"\0", "video/mp4"),
                Block.thinking("hm", signature="abc=="),
                Block.tool_call("call_1", "read", {"path": "ü", "n": 2**63}),
                Block("metadata", "", extra={"deep": [[[]]], "f": 0.1, "t": True}),
            ),
            label="a label",
            extra={"id": "msg_1", "big": -(2**63)},
            raw={"type": "message", "content": [{"x": 1.5e300}], "bytes": b"\xff"},
            usage=Usage(input_tokens=3, output_tokens=4),
            privacy={"contains_secrets": False},
        )
        talk = store.start()
        saved = talk.append(message)
        (read,) = talk.thread()
        assert read == saved
        for name in message.__struct_fields__:
            assert getattr(read, name) == getattr(message, name), name
        assert read.blocks[6].tool_name == "read"
        assert read.blocks[6].arguments == {"path": "ü", "n": 2**63}
        assert read.created_at.tzinfo is not None

    def test_a_megabyte_line_and_an_empty_one_survive(self, store: Store) -> None:
        talk = store.start(title="\0 🎉")
        wanted = ["y" * 1_000_000, "", "\r\n\t"]
        for text in wanted:
            talk.append(Message.user(text))
        assert texts(talk.thread()) == wanted
        assert talk.title == "\0 🎉"

    def test_the_same_value_appended_twice_is_two_messages(self, store: Store) -> None:
        """C4: nothing is taken for a retry that is not one."""
        talk = store.start()
        message = Message.user("again")
        first, second = talk.append(message), talk.append(message)
        third = talk.append(second)
        assert len({first.id, second.id, third.id}) == 3
        assert texts(talk.thread()) == ["again"] * 3

    def test_the_same_key_in_one_conversation_is_the_same_message(self, store: Store) -> None:
        """C4: a caller that may repeat itself gives a key."""
        talk = store.start()
        first = talk.append(Message.user("one", key="k1"))
        assert talk.append(Message.user("one", key="k1")) == first
        assert talk.count == 1
        again = talk.extend(
            [Message.user("one", key="k1"), Message.user("two", key="k2"), Message.user("two", key="k2")]
        )
        assert [m.id for m in again[:1]] == [first.id]
        assert again[1].id == again[2].id
        assert texts(talk.thread()) == ["one", "two"]
        other = store.start()
        assert other.append(Message.user("one", key="k1")).id != first.id

    def test_ids_are_six_easy_characters_and_unique(self, store: Store) -> None:
        """C4."""
        talk = store.start()
        ids = [m.id for m in fill(talk, 60)]
        assert len(set(ids)) == 120
        assert all(len(id) == 6 and id.isascii() and id.isalnum() and not set(id) & set("0O1lI") for id in ids)

    def test_several_messages_are_one_transaction(self, store: Store) -> None:
        """C6: all or none, in order."""
        talk = store.start()
        saved = talk.extend([Message.user("a"), Message.assistant("b"), Message.user("c")])
        assert [m.parent for m in saved] == [None, saved[0].id, saved[1].id]
        assert [m.seq for m in saved] == [0, 1, 2]
        with pytest.raises(InvalidArgument):
            talk.extend([Message.user("fine"), Message(role="user", extra={"bad": {1}})])
        assert talk.refresh().count == 3
        assert talk.thread() == saved

    def test_the_clock_may_jump_and_the_order_stays(self, backend: Backend) -> None:
        times = iter([10**15, 10**15, 10**15 + 50, 10**15 - 10**12, 10**15 + 99] + [10**15 + 100] * 50)
        store = Store(backend, clock=lambda: next(times))
        talk = store.start()
        for n in range(3):
            talk.append(Message.user(str(n)))
        assert texts(talk.thread()) == ["0", "1", "2"]
        assert texts(list(store.messages(newest_first=False))) == ["0", "1", "2"]
        assert store.verify().ok

    # -- forks, heads and conflicts

    def test_a_fork_shares_the_path_and_copies_nothing(self, store: Store) -> None:
        """A11 branching: no write until it appends."""
        talk = store.start()
        path = fill(talk, 40)
        other = talk.fork(at=path[50].id)
        assert talk.refresh().count == 80
        other.append(Message.user("another way"))
        assert other.thread()[:-1] == path[:51]
        assert talk.thread() == path
        assert talk.refresh().count == 81
        assert {b.id: b.depth for b in talk.branches()} == {path[-1].id: 80, other.at: 52}

    def test_forks_of_forks_find_their_way(self, store: Store) -> None:
        talk = store.start()
        fill(talk, 20)
        wanted = texts(talk.thread())
        for n in range(6):
            at = talk.thread()[len(wanted) // 2]
            wanted = [*wanted[: len(wanted) // 2 + 1], f"fork {n}"]
            talk = talk.fork(at=at.id)
            talk.append(Message.user(f"fork {n}"))
            assert texts(talk.thread()) == wanted
        assert len(talk.branches()) == 7

    def test_alternating_branches_grow_without_disturbing_each_other(self, store: Store) -> None:
        talk = store.start()
        root = talk.append(Message.user("root"))
        handles = [talk.fork(at=root.id) for _ in range(10)]
        for n in range(8):
            for i, handle in enumerate(handles):
                handle.append(Message.user(f"{i}.{n}"))
        for i, handle in enumerate(handles):
            assert texts(handle.thread()) == ["root", *(f"{i}.{n}" for n in range(8))]

    def test_the_head_is_the_newest_message_of_the_main_flow(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        fork = talk.fork(at=path[1].id)
        newest = fork.append(Message.user("newer"))
        assert store.conversation(talk.id).at == newest.id
        aside = talk.fork(at=path[1].id, main=False)
        side = aside.append(Message.user("aside"))
        assert not side.main
        assert store.conversation(talk.id).at == newest.id
        assert not aside.fork(at=side.id).append(Message.user("more")).main
        assert store.conversation(talk.id).head == newest.id

    def test_two_handles_branch_by_default(self, store: Store) -> None:
        """D19: no message of either side is lost."""
        talk = store.start()
        talk.append(Message.user("1"))
        a, b = store.conversation(talk.id), store.conversation(talk.id)
        a.append(Message.assistant("from a"))
        b.append(Message.assistant("from b"))
        assert texts(a.thread()) == ["1", "from a"]
        assert texts(b.thread()) == ["1", "from b"]
        assert len(talk.branches()) == 2

    def test_follow_goes_below_the_current_head(self, store: Store) -> None:
        """D19."""
        talk = store.start()
        a, b = store.conversation(talk.id), store.conversation(talk.id)
        for n in range(6):
            (a, b)[n % 2].append(Message.user(str(n)), on_conflict="follow")
        assert texts(store.conversation(talk.id).thread()) == list("012345")
        assert len(talk.branches()) == 1

    def test_a_stale_head_is_a_conflict_that_names_the_head(self, store: Store) -> None:
        """D19: and nothing is lost."""
        talk = store.start()
        first = talk.append(Message.user("1"))
        a, b = store.conversation(talk.id), store.conversation(talk.id)
        second = a.append(Message.assistant("from a"), expect_head=first.id)
        with pytest.raises(Conflict) as caught:
            b.append(Message.assistant("from b"), expect_head=first.id)
        assert (caught.value.head, caught.value.expected) == (second.id, first.id)
        with pytest.raises(Conflict):
            b.append(Message.assistant("from b"), on_conflict="raise")
        assert texts(list(store.messages())) == ["from a", "1"]
        assert texts(b.thread()) == ["1"]
        b.append(Message.assistant("from b"), expect_head=second.id)
        assert texts(b.thread()) == ["1", "from a", "from b"]

    def test_a_handle_stands_at_no_message_that_is_still_on_its_way(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another thread looks while an append is being committed: it sees the message or it does not, and no error."""
        store = Store(backend)
        talk = store.start()
        talk.append(Message.user("there"))
        seen: list[list[str]] = []

        def look() -> None:
            seen.append(texts(store.conversation(talk.id).thread()))

        interrupt_commit(monkeypatch, backend, look)
        talk.append(Message.user("on its way"))
        assert seen == [["there"]]
        assert texts(talk.thread()) == ["there", "on its way"]

    def test_an_empty_conversation_can_be_expected_to_be_empty(self, store: Store) -> None:
        talk = store.start()
        other = store.conversation(talk.id)
        talk.append(Message.user("first"), on_conflict="raise")
        with pytest.raises(Conflict):
            other.append(Message.user("also first"), on_conflict="raise")

    def test_a_fork_elsewhere_is_not_found(self, store: Store) -> None:
        one, two = store.start(), store.start()
        there = two.append(Message.user("x"))
        for id in (there.id, "zzzzzz"):
            with pytest.raises(NotFound):
                one.fork(at=id)
        with pytest.raises(InvalidID):
            one.fork(at="../..")

    def test_a_message_can_be_said_differently(self, store: Store) -> None:
        """A fork before a message stands where it was said, even if it was the first."""
        talk = store.start()
        path = fill(talk, 2)
        again = talk.fork(before=path[0])
        assert again.at is None
        assert again.append(Message.user("q0, better")).parent is None
        later = talk.fork(before=path[2].id)
        assert later.at == path[1].id
        here = talk.fork()
        assert here.at == talk.at == path[3].id
        assert talk.fork(at=path[1]).at == path[1].id
        with pytest.raises(InvalidArgument):
            talk.fork(at=path[1], before=path[2])
        assert talk.follow().at == store.conversation(talk.id).at

    def test_undo_steps_back_one_turn_and_deletes_nothing(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 3)
        talk.append(Message.tool_result("c", "tool says"))
        stepped = talk.undo()
        assert texts(stepped) == ["q2", "a2", "tool says"]
        assert talk.at == path[3].id
        talk.append(Message.user("instead"))
        assert texts(talk.thread()) == ["q0", "a0", "q1", "a1", "instead"]
        assert talk.count == 8
        for _ in range(3):
            talk.undo()
        assert talk.thread() == []
        with pytest.raises(InvalidArgument):
            talk.undo()

    def test_threads_on_one_handle_make_one_chain(self, store: Store) -> None:
        talk = store.start()

        def work(name: int) -> None:
            for n in range(5):
                talk.append(Message.user(f"{name}.{n}"))

        workers = [threading.Thread(target=work, args=(name,)) for name in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found = texts(store.conversation(talk.id).thread())
        assert sorted(found) == sorted(f"{name}.{n}" for name in range(5) for n in range(5))
        for name in range(5):
            assert [t for t in found if t.startswith(f"{name}.")] == [f"{name}.{n}" for n in range(5)]

    # -- compaction, comparing, detaching

    def test_a_compaction_is_a_new_root_that_remembers_what_it_sums_up(self, store: Store) -> None:
        """C18: the old branch stays, thread(full=True) crosses the link, and everything goes on from the summary."""
        talk = store.start(system_prompt="s")
        path = fill(talk, 5)
        root = talk.compact("the gist")
        assert (root.parent, root.link, root.main, root.label) == (None, path[-1].id, True, "compaction")
        talk.append(Message.user("and now?"))
        assert texts(talk.thread()) == ["the gist", "and now?"]
        assert texts(talk.thread(full=True)) == [*texts(path), "the gist", "and now?"]
        again = store.conversation(talk.id)
        assert (again.thread(), again.system_prompt) == (talk.thread(), "s")
        second = talk.compact(lambda thread: Message.user(f"{len(thread)} messages, summed up"))
        assert second.text == "2 messages, summed up"
        assert len(talk.thread(full=True)) == 13
        assert {b.id for b in talk.branches()} == {path[-1].id, again.at, second.id}

    def test_undo_goes_back_over_a_compaction(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        talk.compact("gist")
        assert texts(talk.undo()) == ["gist"]
        assert talk.thread() == path

    def test_what_was_deleted_cannot_be_detached(self, store: Store) -> None:
        talk = store.start()
        talk.append(Message.user("stays"))
        other = store.conversation(talk.id)
        gone = other.append(Message.user("goes"))
        store.delete([gone])
        with pytest.raises(NotFound):
            other.detach()
        assert store.stats().conversations == 1
        assert texts(talk.detach().thread()) == ["stays"]

    def test_a_compaction_that_fails_leaves_everything_as_it_was(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)

        def fails(_: list[Saved]) -> str:
            raise RuntimeError("the model is out")

        with pytest.raises(RuntimeError):
            talk.compact(fails)
        assert (talk.thread(), talk.refresh().count) == (path, 4)
        with pytest.raises(InvalidArgument):
            store.start().compact("nothing yet")

    def test_a_compaction_survives_what_it_summed_up(self, store: Store) -> None:
        """Recursive delete clears compaction links."""
        talk = store.start()
        path = fill(talk, 3)
        root = talk.compact("gist")
        store.delete([path[2].id], recursive=True)
        assert store.message(root.id).link is None
        assert texts(talk.thread(full=True)) == ["gist"]

    def test_threads_are_compared_from_the_root_on(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 4)
        other = talk.fork(at=path[3].id)
        own = other.append(Message.user("differently"))
        found = threads.compare(talk, other)
        assert (found.shared, found.left, found.right) == (path[:4], path[4:], [own])
        assert found.fork == path[3].id
        assert threads.compare(talk, talk).left == []
        assert threads.compare(talk, store.start()).fork is None
        alone = other.detach()
        assert len(threads.compare(talk, alone).shared) == 4

    def test_a_detached_thread_has_a_life_of_its_own(self, store: Store, backend: Backend) -> None:
        talk = store.start(title="T", system_prompt="one", metadata={"a": "b"}, project="/p")
        path = fill(talk, 20)
        talk.configure(system_prompt="two")
        fork = talk.fork(at=path[30].id)
        fork.append(Message.assistant("fork", label="good", usage=Usage(1, 2)))
        alone = fork.detach(title="alone")
        assert alone.id != talk.id
        assert texts(alone.thread()) == texts(fork.thread())
        assert not {m.id for m in alone.thread()} & {m.id for m in fork.thread()}
        assert (alone.title, alone.metadata, alone.project, alone.count) == ("alone", {"a": "b"}, "/p", 32)
        assert alone.thread()[-1].usage == Usage(1, 2)
        assert alone.thread()[0].origin == f"{talk.id}/{path[0].id}"
        assert alone.system_prompt == "one"
        rows = backend.lookup(ids=[bytes.fromhex(c.id.replace("-", "")) for c in (talk, alone)])
        assert rows[0].data_key != rows[1].data_key or not rows[0].data_key
        store.purge(talk, reason="user-requested")
        assert texts(alone.thread()) == [*texts(path[:31]), "fork"]
        assert texts(store.conversation(alone.id).detach().thread()) == texts(alone.thread())

    def test_detaching_takes_along_what_a_compaction_sums_up(self, store: Store) -> None:
        talk = store.start()
        fill(talk, 2)
        talk.compact("gist")
        fill(talk, 1)
        alone = talk.detach()
        assert texts(alone.thread()) == texts(talk.thread())
        assert texts(alone.thread(full=True)) == texts(talk.thread(full=True))

    def test_an_empty_or_deleted_thread_cannot_be_mistaken(self, store: Store) -> None:
        talk = store.start(title="empty")
        assert (talk.detach().thread(), talk.detach().title) == ([], "empty")
        saved = talk.append(Message.user("x"))
        handle = store.conversation(talk.id)
        store.delete([saved.id])
        for attempt in (handle.detach, lambda: handle.compact("gist")):
            with pytest.raises(NotFound):
                attempt()

    # -- setup, sub-agents, labels

    def test_each_message_keeps_the_setup_it_was_made_with(self, store: Store) -> None:
        talk = store.start(system_prompt="one", provider="openai", model="m1")
        first = talk.append(Message.user("x"))
        talk.configure(system_prompt="two", tools=[{"name": "read", "parameters": {}}])
        assert store.conversation(talk.id).system_prompt == "two"
        second = talk.append(Message.user("y"))
        assert (talk.system_prompt, talk.provider) == ("two", "openai")
        assert talk.fork(at=first.id).system_prompt == "one"
        assert talk.fork(at=second.id).tools == [{"name": "read", "parameters": {}}]
        older = talk.fork(at=first.id)
        older.append(Message.user("z"))
        again = store.conversation(talk.id)
        assert (again.at, again.system_prompt) == (older.at, "one")
        again.configure(model="m3")
        assert (again.system_prompt, again.model) == ("one", "m3")

    def test_the_only_setup_is_told_at_the_root_of_each_thread(self, store: Store) -> None:
        talk = store.start(model="small")
        talk.extend([Message.user(str(n)) for n in range(RUN + 3)])
        first = talk.thread()[0].id
        fork = talk.fork(talk.thread()[RUN].id)
        fork.append(Message.user("elsewhere"))
        summary = talk.compact(Message.user("in short"))
        found = [(change.message_id, change.setup.model) for one in (fork, talk) for change in one.setups()]
        assert found == [(first, "small"), (summary.id, "small")]

    def test_a_first_setup_does_not_reach_back(self, store: Store) -> None:
        talk = store.start()
        first = talk.append(Message.user("x"))
        talk.configure(model="m")
        assert (talk.fork(at=first).model, talk.model, talk.fork().model) == ("", "m", "m")
        assert store.conversation(talk.id).model == "m"
        assert (talk.detach().model, talk.fork(before=first).model) == ("m", "")
        second = talk.append(Message.user("y"))
        assert (talk.fork(before=second).model, talk.fork(before=second).at) == ("m", first.id)

    def test_a_side_flow_is_configured_by_itself(self, store: Store) -> None:
        talk = store.start(system_prompt="main")
        talk.append(Message.user("x"))
        side = talk.subagent("critic", "1")
        side.configure(system_prompt="critic")
        said = side.append(Message.user("y"))
        assert (side.system_prompt, talk.system_prompt) == ("critic", "main")
        assert store.conversation(talk.id).system_prompt == "main"
        assert store.conversation(said.id).system_prompt == "critic"
        keywords: list[dict[str, Any]] = [{"on_conflict": "follow"}, {"on_conflict": "raise"}, {"expect_head": said}]
        for wrong in keywords:
            with pytest.raises(InvalidArgument):
                side.append(Message.user("z"), **wrong)
        assert texts(side.detach().thread()) == ["y"]

    def test_saving_keeps_the_setup_in_force(self, store: Store) -> None:
        talk = store.start(system_prompt="one")
        first = talk.append(Message.user("x"))
        talk.configure(system_prompt="two")
        (second,) = store.save([Message.user("y")], conversation=talk)
        assert store.conversation(second).system_prompt == "two"
        (third,) = store.save([Message.user("z")], parent=first)
        assert store.conversation(third).system_prompt == "one"

    def test_a_subagent_has_a_root_of_its_own(self, store: Store) -> None:
        """C12: labelled, linked to its call, out of the main flow, found by name and by run."""
        talk = store.start()
        call = fill(talk, 1)[-1]
        traces = [talk.subagent("review", run) for run in ("r1", "r2")]
        for trace in traces:
            trace.append(Message.user("look at this"))
            trace.append(Message.assistant("looks fine"))
        head = talk.append(Message.user("go on"))
        assert texts(traces[0].thread()) == ["look at this", "looks fine"]
        root = traces[0].thread()[0]
        assert (root.parent, root.link, root.label, root.main) == (None, call.id, "subagent:review:r1", False)
        assert store.conversation(talk.id).at == head.id
        assert texts(store.conversation(talk.id).thread()) == ["q0", "a0", "go on"]
        by_run = list(store.messages(label="subagent:review:r2", newest_first=False))
        assert [m.id for m in by_run] == [m.id for m in traces[1].thread()]
        assert len(list(store.messages(subagent="review"))) == 4
        assert list(store.messages(subagent="other")) == []
        assert talk.fork(before=root).append(Message.user("asked differently")).label == "subagent:review:r1"
        again = store.conversation(traces[0].at or "")
        assert not again.append(Message.user("more")).main
        with pytest.raises(InvalidArgument):
            talk.subagent("a:b", "r")

    def test_a_trace_that_is_saved_stays_off_the_main_flow(self, store: Store) -> None:
        """C11, C12: by its label alone. One without a conversation gets one, which is not what anybody goes on with."""
        talk = store.start(title="main")
        call = fill(talk, 1)[-1]
        run = "subagent:review:r1"
        ids = store.save([Message.user("look", label=run), Message.assistant("fine", label=run)])
        assert [m.text for m in store.thread(ids[1])] == ["look", "fine"]
        assert [(m.main, m.link, m.label) for m in store.thread(ids[1])] == [(False, None, run)] * 2
        apart = store.conversation(store.message(ids[0]).conversation)
        assert (apart.head, apart.thread()) == (None, [])
        latest = store.latest()
        assert latest is not None
        assert latest.id == talk.id
        assert latest.append(Message.user("go on")).parent == call.id
        (more,) = store.save([Message.user("and this", label=run)], parent=ids[1])
        assert store.message(more).parent == ids[1]
        assert len(list(store.messages(subagent="review"))) == 3
        latest = store.latest()
        assert latest is not None
        assert latest.id == talk.id

    def test_a_trace_saved_into_a_conversation_is_linked_to_what_it_would_have_gone_below(self, store: Store) -> None:
        """C12: to the head, or to the message that is given as its parent."""
        talk = store.start()
        first, call = fill(talk, 1)
        (a,) = store.save([Message.user("one", label="subagent:a:1")], conversation=talk)
        (b,) = store.save([Message.user("two", label="subagent:b:1")], parent=first)
        (c,) = store.save([Message("user", (Block.text("three"),), label="subagent:c:1", parent=call.id)])
        (nested,) = store.save([Message.user("four", label="subagent:d:1")], parent=a)
        saved = {m.id: m for m in store.get([a, b, c, nested])}
        assert [saved[id].link for id in (a, b, c, nested)] == [call.id, first.id, call.id, a]
        assert all(m.parent is None and not m.main for m in saved.values())
        assert store.conversation(talk.id).head == call.id
        (below,) = store.save([Message.user("no label")], parent=a)
        assert (store.message(below).parent, store.message(below).main) == (a, False)
        assert store.conversation(talk.id).head == call.id

    def test_traces_and_the_main_flow_are_saved_together(self, store: Store) -> None:
        """C6, C12: each message goes below the one before it in its flow."""
        one, two = "subagent:a:1", "subagent:b:1"

        def said(text: str, label: str | None = None) -> Message:
            return Message.user(text, label=label)

        asked = [said("q"), said("a1", one), said("b1", two), said("a2", one), said("r"), said("b2", two), said("s")]
        for conversation in (None, store.start()):
            before = None
            if conversation is not None:
                before = conversation.append(Message.user("before")).id
            q, a1, b1, a2, r, b2, s = store.get(store.save(asked, conversation=conversation))
            assert [m.parent for m in (q, a1, b1, a2, r, b2, s)] == [before, None, None, a1.id, q.id, b1.id, r.id]
            assert [m.link for m in (q, a1, b1, a2, r, b2, s)] == [None, q.id, a1.id, None, None, None, None]
            assert [m.main for m in (q, a1, b1, a2, r, b2, s)] == [True, False, False, False, True, False, True]
            assert store.conversation(q.conversation).head == s.id
        ahead = store.start()
        head = ahead.append(Message.user("head"))
        a1, q = store.get(store.save([said("a1", one), said("q")], conversation=ahead))
        assert (a1.link, q.parent) == (head.id, head.id)

    def test_labels_are_set_changed_and_removed(self, store: Store) -> None:
        talk = store.start()
        first, second = talk.extend([Message.user("a", label="start"), Message.user("b")])
        assert [m.id for m in store.messages(label="start")] == [first.id]
        talk.label("good", message=first.id)
        talk.label("here")
        assert list(store.messages(label="start")) == []
        assert store.message(first.id).label == "good"
        assert store.message(first.id).revision == 1
        assert [m.id for m in store.messages(label="here")] == [second.id]
        talk.label(None, message=first.id)
        assert list(store.messages(label="good")) == []
        assert {b.label for b in talk.branches()} == {"here"}

    def test_events_are_kept_but_not_part_of_the_thread(self, store: Store) -> None:
        talk = store.start()
        talk.extend([Message.user("a"), Message(role="event", blocks=[Block.text("model changed")]), Message.user("b")])
        assert texts(talk.thread()) == ["a", "b"]
        assert texts(list(store.messages(newest_first=False))) == ["a", "model changed", "b"]

    def test_usage_adds_up_along_the_thread(self, store: Store) -> None:
        """A11: token counts."""
        talk = store.start()
        talk.append(Message.user("four"))
        talk.append(Message.assistant("x" * 400, usage=Usage(input_tokens=10, output_tokens=100, cache_read_tokens=5)))
        talk.append(Message.assistant("y", usage=Usage(input_tokens=7)))
        usage = talk.usage()
        assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (17, 100, 5)
        assert (usage.messages, usage.total_tokens) == (3, 117)
        assert usage.approximate_tokens == 102
        assert store.conversations().items[0].approximate_tokens > 100

    def test_a_thread_tells_what_it_was_held_with(self, store: Store) -> None:
        talk = store.start(system_prompt="A", provider="openai", model="m")
        first = talk.append(Message.user("1"))
        talk.append(Message.assistant("2"))
        talk.configure(system_prompt="B", tools=[{"name": "look"}])
        third = talk.append(Message.user("3"))
        found = [(change.message_id, change.setup.system_prompt, len(change.setup.tools)) for change in talk.setups()]
        assert found == [(first.id, "A", 0), (third.id, "B", 1)]
        assert [change.message_id for change in talk.fork(at=first).setups()] == [first.id]
        assert store.start().setups() == []

    # -- answers on their way

    def test_what_came_of_an_answer_is_kept_beside_the_tree_and_offered(
        self, store: Store, open_store: Callable[[], Store]
    ) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        key = recovery.new_key(store._names.number(asked.id))
        for text in ("Bec", "Because \x00 of"):
            raw = {"role": "assistant", "content": text}
            recovery.keep(talk._desk, key, [Message.assistant(text, raw=raw, extra={"a": 1})])
        assert (talk.count, [m.text for m in talk.thread()]) == (1, ["Why?"])
        other = open_store().conversation(talk.id)
        (partial,) = other.partials()
        assert (partial.text, partial.parent) == ("Because \x00 of", asked.id)
        assert partial.messages[0].raw == {"role": "assistant", "content": "Because \x00 of"}
        (accepted,) = other.accept(partial)
        assert accepted.extra == {"a": 1, "interrupted": True}
        assert accepted.parent == asked.id
        assert (other.partials(), talk.partials()) == ([], [])
        assert store.verify().ok

    def test_what_came_of_an_answer_can_be_let_go_of(self, store: Store) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        keys = [recovery.new_key(store._names.number(asked.id)) for _ in range(2)]
        for key in keys:
            recovery.keep(talk._desk, key, [Message.assistant("Because")])
        partials = talk.partials()
        assert len(partials) == 2
        talk.discard(partials[0])
        talk.discard(partials[0])  # gone is gone
        assert talk.partials() == [partials[1]]
        store.delete([asked])
        assert talk.partials() == []
        with pytest.raises(NotFound):  # and nothing comes back
            recovery.keep(talk._desk, keys[0], [Message.assistant("Because")])
        assert store.verify().ok

    def test_what_cannot_be_read_of_an_answer_is_offered_to_be_let_go_of_and_hides_nothing(self, store: Store) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        good, torn = [recovery.new_key(store._names.number(asked.id)) for _ in range(2)]
        recovery.keep(talk._desk, good, [Message.assistant("Because")])

        def tear(row: ConversationRow) -> Change:
            item = ItemRow(row.id, torn, 0, b"half of it")
            return Change(row.id, row.token, next_row(talk._desk.check(row), row, (), ()), put=(item,))

        store._change(talk._desk.id, tear)
        readable, unreadable = store.conversation(talk.id).partials()
        assert (readable.text, readable.problem) == ("Because", None)
        assert unreadable.messages == ()
        assert unreadable.problem
        assert [m.text for m in talk.thread()] == ["Why?"]  # the tree is what there is
        assert not store.verify().ok
        talk.discard(unreadable)
        assert talk.partials() == [readable]
        assert store.verify().ok

    def test_an_offer_is_taken_where_it_belongs_and_takes_nothing_else(self, store: Store) -> None:
        talk = store.start(system_prompt="A")
        asked = talk.append(Message.user("Why?"))
        recovery.keep(talk._desk, recovery.new_key(store._names.number(asked.id)), [Message.assistant("Because")])
        (partial,) = talk.partials()
        talk.append(Message.assistant("Another answer"))
        with pytest.raises(InvalidArgument):
            talk.accept(partial)
        for wrong in (replace(partial, id="setup/000001"), "partial", None, replace(partial, id=5)):
            with pytest.raises(InvalidArgument):
                talk.discard(wrong)  # type: ignore[arg-type]
        assert talk.setup.system_prompt == "A"
        assert talk.fork(at=partial.parent).accept(partial)[0].text == "Because"

    def test_what_came_of_an_answer_survives_other_writers_and_is_purged_with_its_conversation(
        self, store: Store, open_store: Callable[[], Store], backend: Backend
    ) -> None:
        talk = store.start()
        asked = talk.append(Message.user("Why?"))
        key = recovery.new_key(store._names.number(asked.id))
        other = open_store().conversation(talk.id)
        for n in range(5):
            other.append(Message.user(f"{n}"))
            recovery.keep(talk._desk, key, [Message.assistant(f"Because {n}")])
            talk.append(Message.user(f"more {n}"))
        assert [partial.text for partial in other.partials()] == ["Because 4"]
        id = talk._desk.id
        assert backend.items(id, b"partial/")
        store.purge(talk, reason="user-requested")
        assert backend.items(id, b"partial/") == []

    # -- finding

    def test_ensure_gets_or_starts(self, store: Store) -> None:
        one = store.ensure("user-42", title="first", metadata={"a": "b"})
        one.append(Message.user("x"))
        two = store.ensure("user-42", title="ignored")
        assert (two.id, two.title, two.key, two.at) == (one.id, "first", "user-42", one.at)
        assert store.ensure("user-43").id != one.id
        assert store.conversations(total=True).total == 2

    def test_an_id_of_the_callers_choice_is_taken_once(self, store: Store) -> None:
        id = "6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10"
        talk = store.start(id=id)
        talk.append(Message.user("mine"))
        assert talk.id == id
        with pytest.raises(AlreadyExists):
            store.start(id=id)
        assert texts(store.conversation(id).thread()) == ["mine"]
        store.purge(id, reason="user-requested")
        again = store.start(id=id)
        assert again.thread() == []
        with pytest.raises(NotFound):
            talk.append(Message.user("below a message that is gone"))

    def test_unique_beginnings_are_enough(self, store: Store) -> None:
        """C4: exact message id, then a unique prefix over messages and conversations."""
        one = store.start(id="6f1c0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10")
        two = store.start(id="6f1d0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10")
        message = one.append(Message.user("x"))
        assert store.conversation("6f1c0d8e").id == one.id
        assert store.conversation("6f1d0d8e-2b5a-4").id == two.id
        assert store.conversation(message.id).at == message.id
        assert store.conversation(message.id[:5]).at == message.id
        assert store.conversation(message.id[:4]).id == one.id
        with pytest.raises(Ambiguous) as caught:
            store.conversation("6f1")
        assert one.id in caught.value.candidates
        with pytest.raises(NotFound):
            store.conversation("0000")
        with pytest.raises(NotFound):
            store.conversation("6f1e0d8e-2b5a-4c8e-9a55-0f3c8f1f7a10")

    def test_short_beginnings_of_messages_are_found_or_ambiguous(self, store: Store) -> None:
        talk = store.start(id="00000000-0000-4000-8000-000000000000")
        ids = [m.id for m in fill(talk, 30)]
        for length in (1, 2, 3):
            for id in ids[:10]:
                same = [i for i in ids if i.startswith(id[:length])]
                if len(same) == 1:
                    assert store.conversation(id[:length]).at == id
                else:
                    with pytest.raises(Ambiguous):
                        store.conversation(id[:length])

    def test_listings_page_by_last_activity(self, store: Store) -> None:
        """D2: and a cursor outlives the conversation it was taken at."""
        talks = [store.start(title=f"t{n}") for n in range(9)]
        talks[2].append(Message.user("makes it the newest"))
        wanted = [talks[2].id, *(talks[n].id for n in (8, 7, 6, 5, 4, 3, 1, 0))]
        first = store.conversations(limit=4, total=True)
        assert [c.id for c in first] == wanted[:4]
        assert len(first) == 4
        assert first.total == 9
        assert first.items[1].title == "t8"
        store.purge(store.conversation(first.items[-1].id), reason="user-requested")
        second = store.conversations(limit=4, cursor=first.next_cursor)
        third = store.conversations(limit=4, cursor=second.next_cursor)
        assert [c.id for c in second.items + third.items] == wanted[4:]
        assert third.next_cursor is None
        with pytest.raises(InvalidCursor):
            store.conversations(cursor="garbage!")

    def test_projects_have_their_own_listing(self, store: Store) -> None:
        mine = store.start(project="/projects/mine")
        store.start(project="/projects/other")
        store.start()
        assert [c.id for c in store.conversations(project="/projects/mine/").items] == [mine.id]
        latest = store.latest(project="/projects/mine")
        assert latest is not None
        assert (latest.id, latest.project) == (mine.id, "/projects/mine")
        assert store.latest(project="/nowhere") is None

    def test_conversations_are_found_by_their_metadata(self, store: Store) -> None:
        """D6: all pairs that are given must be there."""
        ada = store.start(title="one", metadata={"owner": "ada", "team": "red"})
        store.ensure("two", title="two", metadata={"owner": "ada", "team": "blue"}, project="/p")
        store.start(title="three", metadata={"owner": "bob", "team": "red"})
        store.start(title="four")

        def found(project: str | None = None, **metadata: str) -> list[str]:
            page = store.conversations(metadata=metadata, project=project, total=True)
            assert page.total == len(page)
            return [info.title for info in page]

        assert found(owner="ada") == ["two", "one"]
        assert found(owner="ada", team="red") == ["one"]
        assert found(owner="ada", team="green") == found(owner="Ada") == found(ada="owner") == []
        assert found("/p", owner="ada") == ["two"]
        assert found("/p", owner="bob") == []
        assert found() == ["four", "three", "two", "one"]
        ada.append(Message.user("makes it the newest"))
        assert found(owner="ada") == ["one", "two"]
        ada.describe({"owner": "bob", "team": "red"})
        assert (found(owner="ada"), found(owner="bob", team="red")) == (["two"], ["one", "three"])
        ada.rename("renamed")
        assert found(owner="bob", team="red") == ["renamed", "three"]
        alone = ada.detach()
        assert found(owner="bob") == ["renamed", "renamed", "three"]
        store.purge(alone, reason="user-requested")
        ada.describe({})
        assert (found(owner="bob"), found(team="red")) == (["three"], ["three"])

    def test_pairs_of_metadata_are_not_taken_for_one_another(self, store: Store) -> None:
        """Whatever is in them: other pairs, what our own tags look like, nothing, much."""
        pairs = [
            ("a", "b=c"), ("a=b", "c"), ("", ""), ("", "x"), ("x", ""), ("a", '","'), ('a","', ""), ("ü", "\0\n"),
            ("project", "/p"), ("a", "y" * 100_000), ("a", "y" * 99_999 + "z"), ("a", "y" * 300), ("a", "b"),
        ]  # fmt: skip
        talks = [store.start(metadata={key: value}, project="/p") for key, value in pairs]
        for talk, (key, value) in zip(talks, pairs, strict=True):
            assert [info.id for info in store.conversations(metadata={key: value})] == [talk.id]
        every = store.start(metadata={"a": "b", "x": "", "ü": "\0\n"})
        assert [info.id for info in store.conversations(metadata={"ü": "\0\n", "a": "b", "x": ""})] == [every.id]

    def test_a_listing_by_metadata_goes_on_from_its_cursor(self, store: Store) -> None:
        talks = [store.start(metadata={"n": str(n % 2), "all": "yes"}) for n in range(9)]
        wanted = [talk.id for talk in reversed(talks[::2])]
        cursor, seen = None, []
        while True:
            page = store.conversations(metadata={"n": "0", "all": "yes"}, limit=2, cursor=cursor, total=True)
            assert page.total == 5
            seen += [info.id for info in page]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == wanted

    def test_a_wrong_filter_is_refused(self, store: Store) -> None:
        store.start(metadata={"a": "b"})
        for wrong in ("a=b", ["a"], {"a": 1}, {1: "a"}, {"a": None}):
            with pytest.raises(InvalidMessage):
                store.conversations(metadata=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            store.conversations(metadata={"a": "\ud800"})
        with pytest.raises(InvalidArgument):
            store.conversations(metadata={str(n): "" for n in range(33)})

    def test_messages_are_listed_across_conversations(self, store: Store) -> None:
        """C8: newest first by default, lazily, with offset and cursor."""
        talks = [store.start() for _ in range(4)]
        for n in range(60):
            talks[(n * n + n // 7) % 4].append(Message.user(f"m{n}"))
        wanted = [f"m{n}" for n in range(60)]
        assert texts(list(store.messages(newest_first=False))) == wanted
        assert texts(list(store.messages())) == wanted[::-1]
        assert texts(list(store.messages(offset=57))) == wanted[:3][::-1]
        assert list(store.messages(offset=1000)) == []
        for newest_first in (True, False):
            listing = store.messages(newest_first=newest_first)
            begun = [next(listing).text for _ in range(10)]
            rest = texts(list(store.messages(newest_first=newest_first, cursor=listing.cursor)))
            assert begun + rest == (wanted[::-1] if newest_first else wanted)
        own = texts(list(store.messages(conversation=talks[1].id, newest_first=False)))
        assert own == texts(talks[1].thread())

    def test_get_gives_messages_in_the_order_asked_for(self, store: Store) -> None:
        """C5, C7."""
        talk = store.start()
        ids = [m.id for m in fill(talk, 3)]
        assert [m.id for m in store.get([ids[3], ids[0], ids[3]])] == [ids[3], ids[0], ids[3]]
        assert store.get([]) == []
        with pytest.raises(NotFound) as caught:
            store.get([ids[0], "zzzzzz", "yyyyyy"])
        assert caught.value.ids == ("zzzzzz", "yyyyyy")
        with pytest.raises(InvalidArgument):
            store.get(ids[0])

    def test_a_store_is_each_narrow_protocol(self, store: Store) -> None:
        """C5."""
        for protocol in (
            threads.MessageSaver,
            threads.MessageGetter,
            threads.MessageLister,
            threads.MessageDeleter,
        ):
            assert isinstance(store, protocol)

    def test_thread_works_over_anything_that_gets_messages(self, store: Store) -> None:
        """C7: the short way through a store and the long way through a getter agree."""
        talk = store.start()
        path = fill(talk, 20)

        class Getter:
            def get(self, ids: list[str]) -> list[Saved]:
                return store.get(ids)

        assert threads.thread(store, path[-1].id) == path
        assert threads.thread(Getter(), path[-1].id) == path  # type: ignore[arg-type]  # list instead of Iterable

    # -- saving and deleting through the store

    def test_save_chains_messages_and_starts_conversations(self, store: Store) -> None:
        """C6."""
        ids = store.save([Message.user("a"), Message.assistant("b")])
        assert [m.parent for m in store.get(ids)] == [None, ids[0]]
        (third,) = store.save([Message.user("c")], parent=ids[0])
        (fourth,) = store.save([Message.user("d")], conversation=store.get(ids)[0].conversation)
        assert [m.parent for m in store.get([third, fourth])] == [ids[0], third]
        mixed = store.save([Message.user("e"), Message(role="user", parent=ids[1]), Message.user("f")], parent=ids[0])
        assert [m.parent for m in store.get(mixed)] == [ids[0], ids[1], mixed[1]]
        assert store.stats().conversations == 1

    def test_save_refuses_parents_elsewhere(self, store: Store) -> None:
        (one,) = store.save([Message.user("a")])
        (two,) = store.save([Message.user("b")])
        before = store.stats().messages
        with pytest.raises(NotFound):
            store.save([Message.user("c"), Message(role="user", parent=two)], parent=one)
        with pytest.raises(NotFound):
            store.save([Message.user("c")], parent="zzzzzz")
        with pytest.raises(NotFound):
            store.save([Message.user("c")], parent=one, conversation=store.message(two).conversation)
        assert store.stats().messages == before

    def test_delete_refuses_to_orphan(self, store: Store) -> None:
        """C9."""
        talk = store.start()
        path = fill(talk, 2)
        with pytest.raises(HasChildren):
            store.delete([path[1].id])
        with pytest.raises(HasChildren):
            store.delete([path[3].id, path[1].id])
        assert talk.thread() == path
        assert store.delete([path[3].id, path[2].id]) == [path[2].id, path[3].id]
        assert store.conversation(talk.id).thread() == path[:2]

    def test_a_message_that_two_delete_at_the_same_time_counts_once(
        self, store: Store, open_store: Callable[[], Store]
    ) -> None:
        talk = store.start()
        talk.extend([Message.user("first"), Message.user("second")])
        last = talk.append(Message.user("last"))
        other, fresh_row = open_store(), store._fresh_row

        def late(conversation: bytes) -> ConversationRow:
            """Between the look whether it is there and the delete."""
            store._fresh_row = fresh_row  # type: ignore[method-assign]
            assert other.delete([last]) == [last.id]
            return fresh_row(conversation)

        store._fresh_row = late  # type: ignore[method-assign]
        with pytest.raises(NotFound):
            store.delete([last])
        again = open_store().conversation(talk.id)
        assert (again.count, texts(again.thread())) == (2, ["first", "second"])
        assert store.verify().problems == ()

    def test_a_rotation_that_overlooks_a_conversation_forgets_no_key(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is named, everything can be read, and the same call finishes it later."""
        talks = [store.start(title=f"{n}") for n in range(3)]
        for talk in talks:
            talk.append(Message.user(talk.title))
        key, inner = Key.generate(), rotation._Job._reencrypt

        def job() -> rotation.Rotation:
            return store.seal(key) if store.key_id in (None, key.id) else store.rotate(key, reencrypt=True)

        def overlooks(self: rotation._Job, row: ConversationRow) -> bool:
            return False if row.id == talks[1]._desk.id else inner(self, row)

        with monkeypatch.context() as patched:
            patched.setattr(rotation._Job, "_reencrypt", overlooks)
            done = job()
        assert (done.complete, [id for id, _ in done.failures]) == (False, [talks[1].id])
        assert [texts(store.conversation(talk.id).thread()) for talk in talks] == [["0"], ["1"], ["2"]]
        assert job().complete
        assert [texts(store.conversation(talk.id).thread()) for talk in talks] == [["0"], ["1"], ["2"]]
        assert store.unseal().complete
        assert [texts(store.conversation(talk.id).thread()) for talk in talks] == [["0"], ["1"], ["2"]]

    def test_delete_takes_the_subtree_and_moves_the_head(self, store: Store) -> None:
        """C9, and PROTOCOL's rules for the head."""
        talk = store.start()
        path = fill(talk, 20)
        fork = talk.fork(at=path[30].id)
        fork.append(Message.user("fork"))
        gone = store.delete([path[10].id], recursive=True)
        assert len(gone) == 31
        again = store.conversation(talk.id)
        assert (again.at, again.count) == (path[9].id, 10)
        assert again.thread() == path[:10]
        with pytest.raises(NotFound):
            store.delete([path[10].id])
        assert store.delete([path[10].id], missing_ok=True) == []
        again.append(Message.user("goes on"))
        assert texts(again.thread())[-1] == "goes on"

    def test_a_head_without_a_parent_moves_to_the_newest_that_is_left(self, store: Store) -> None:
        ids = store.save([Message.user("root 1"), Message.user("child 1")])
        talk = store.conversation(store.message(ids[0]).conversation)
        for _ in range(2):
            talk.undo()
        second = talk.append(Message.user("root 2"))
        store.delete([second.id])
        assert store.conversation(talk.id).at == ids[1]
        store.delete([ids[0]], recursive=True)
        emptied = store.conversation(talk.id)
        assert (emptied.at, emptied.count) == (None, 0)
        assert emptied.append(Message.user("anew")).parent is None

    def test_an_id_is_never_given_to_another_message(self, store: Store) -> None:
        talk = store.start()
        seen: set[str] = set()
        for _ in range(40):
            saved = talk.append(Message.user("x"))
            assert saved.id not in seen
            seen.add(saved.id)
            store.delete([saved.id])
            talk = store.conversation(talk.id)

    def test_a_handle_on_a_deleted_message_says_so(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        other = store.conversation(talk.id)
        store.delete([path[3].id])
        for _ in range(2):
            with pytest.raises(NotFound):
                other.append(Message.user("below a ghost"))
        with pytest.raises(NotFound):
            other.thread()
        assert texts(list(store.messages(newest_first=False))) == ["q0", "a0", "q1"]
        assert other.append(Message.user("found again"), on_conflict="follow").parent == path[2].id

    def test_delete_takes_the_traces_of_subagents_along(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 2)
        trace = talk.subagent("review", "r", call=path[2].id)
        fill(trace, 1)
        with pytest.raises(HasChildren):
            store.delete([path[3].id, path[2].id])
        assert len(store.delete([path[2].id], recursive=True)) == 4
        assert list(store.messages(subagent="review")) == []
        assert store.conversation(talk.id).thread() == path[:2]

    def test_several_conversations_lose_messages_together_or_not_at_all(self, store: Store) -> None:
        one, two = store.start(), store.start()
        a, b = fill(one, 1), fill(two, 1)
        with pytest.raises(HasChildren):
            store.delete([a[1].id, b[0].id])
        assert store.stats().messages == 4
        store.delete([a[1].id, b[1].id])
        assert store.stats().messages == 2

    # -- describing and caring

    def test_titles_and_metadata_change(self, store: Store) -> None:
        talk = store.start(title="old")
        talk.rename("new")
        talk.describe({"a": "1"})
        again = store.conversation(talk.id)
        assert (again.title, again.metadata) == ("new", {"a": "1"})
        assert store.conversations().items[0].title == "new"

    def test_renaming_does_not_count_as_activity(self, store: Store) -> None:
        one = store.start()
        two = store.start()
        one.rename("renamed")
        assert [c.id for c in store.conversations().items] == [two.id, one.id]

    def test_a_hold_forbids_deleting(self, store: Store) -> None:
        talk = store.start()
        saved = talk.append(Message.user("evidence"))
        talk.hold()
        assert store.conversation(talk.id).held
        with pytest.raises(Held):
            store.delete([saved.id])
        with pytest.raises(Held):
            store.purge(talk, reason="user-requested")
        talk.append(Message.user("may go on"))
        talk.release()
        store.purge(talk, reason="user-requested")

    def test_a_purge_takes_everything_and_reports(self, store: Store, backend: Backend) -> None:
        talk, other = store.start(title="goes", project="/p"), store.start(title="stays")
        fill(talk, 20)
        kept = fill(other, 1)
        report = store.purge(talk, reason="user-requested")
        assert (report.reason, report.purged_count, report.failures, report.scrub_pending) == (
            "user-requested",
            1,
            (),
            False,
        )
        assert report.completed_at >= report.started_at
        with pytest.raises(NotFound):
            store.conversation(talk.id)
        with pytest.raises(NotFound):
            talk.append(Message.user("too late"))
        with pytest.raises(NotFound):
            store.purge(talk.id, reason="user-requested")
        assert other.thread() == kept
        assert [c.id for c in store.conversations().items] == [other.id]
        assert backend.items(bytes.fromhex(talk.id.replace("-", ""))) == []

    def test_stats_count_what_is_there(self, store: Store) -> None:
        assert store.stats().messages == 0
        fill(store.start(), 3)
        fill(store.start(), 2)
        stats = store.stats()
        assert (stats.conversations, stats.messages) == (2, 10)
        assert stats.stored_bytes > 0
        assert stats.newest is not None
        assert stats.oldest is not None
        assert stats.newest > stats.oldest

    def test_verify_is_content_with_a_busy_tree(self, store: Store) -> None:
        talk = store.start(system_prompt="s")
        path = fill(talk, 40)
        talk.fork(at=path[20].id).append(Message.user("fork", label="l"))
        talk.subagent("a", "b").append(Message.user("trace"))
        store.delete([path[60].id], recursive=True)
        talk.fork(at=path[59].id).extend([Message.user(str(n), key=str(n)) for n in range(40)])
        report = store.verify()
        assert report.problems == ()
        assert report.messages == talk.refresh().count

    def test_verify_names_what_is_wrong(self, store: Store, backend: Backend) -> None:
        """Each claim of the rows, made false on purpose, is noticed; and the rest is still listed."""
        talk = store.start(title="T")
        path = fill(talk, 3)
        sound = store.start(title="sound")
        fill(sound, 1)
        row = backend.lookup(ids=[bytes.fromhex(talk.id.replace("-", ""))])[0]
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # the fixture verifies every other store
        third = backend.messages(numbers=[store._names.number(path[2].id)])[0]
        broken = [
            Change(row.id, None, replace(row, count=row.count + 1)),
            Change(row.id, None, replace(row, size=row.size + 1)),
            Change(row.id, None, replace(row, head=12345)),
            Change(row.id, None, row, amend=(replace(third, body=_turned(third.body or b"")),)),
            Change(row.id, None, row, amend=(replace(third, size=third.size + 1),)),
            Change(row.id, None, row, amend=(replace(third, parent=None),)),
            Change(row.id, None, row, amend=(replace(third, parent=99),)),
            Change(row.id, None, row, amend=(replace(third, key=b"x"),)),
            Change(row.id, None, row, amend=(replace(third, link=77),)),
            Change(row.id, None, row, drop=(third.number,)),
        ]
        for change in broken:
            wrong = change.row or row
            assert backend.commit([Batch((replace(change, expect=row.token, row=wrong),))]) == [DONE]
            report = store.verify()
            assert not report.ok
            assert {problem.conversation for problem in report.problems} == {talk.id}
            add = (third,) if change.drop else ()
            fixed = Change(row.id, row.token, row, add=add, amend=() if add else (third,))
            assert backend.commit([Batch((fixed,))]) == [DONE]
        assert store.verify().ok

    def test_a_cycle_is_damage_and_not_a_loop(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 40)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        row = backend.lookup(ids=[bytes.fromhex(talk.id.replace("-", ""))])[0]
        root = backend.messages(numbers=[store._names.number(path[0].id)])[0]
        for ancestor in (path[-1], path[40], path[0]):
            bare = replace(root, parent=store._names.number(ancestor.id), revision=root.revision + 1, body=None)
            body = store._codec.envelope(row).close_message(bare, store._codec.envelope(row).open_messages([root])[0])
            changed = Change(row.id, row.token, row, amend=(replace(bare, body=body),))
            assert backend.commit([Batch((changed,))]) == [DONE]
            with pytest.raises(Damaged):
                talk.thread()
            assert not store.verify().ok

    def test_a_damaged_message_is_listed_as_such_and_hides_no_other(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 2)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        row = backend.lookup(ids=[bytes.fromhex(talk.id.replace("-", ""))])[0]
        bad = backend.messages(numbers=[store._names.number(path[1].id)])[0]
        amend = (replace(bad, body=b"\x00" + (bad.body or b"")),)
        backend.commit([Batch((Change(row.id, row.token, row, amend=amend),))])
        listed = list(store.messages(newest_first=False))
        assert [m.id for m in listed] == [m.id for m in path]
        assert [m.problem is not None for m in listed] == [False, True, False, False]
        for read in (talk.thread, lambda: store.get([path[1].id]), lambda: store.message(path[1].id)):
            with pytest.raises(Damaged):
                read()
        assert store.get([path[0].id]) == [path[0]]
        assert {p.message for p in store.verify().problems} >= {path[1].id}

    # -- packs

    def test_packing_changes_nothing_that_anybody_can_see(
        self, store: Store, open_store: Callable[[], Store], backend: Backend
    ) -> None:
        talk = grown(store)
        before, row = visible(store, talk), row_of(backend, talk)
        pack_all(store)
        assert backend.packs(range(0, backend.edge(), RUN)) != []  # the control: something is packed
        assert visible(store, talk) == before
        assert visible(open_store(), talk) == before
        after = row_of(backend, talk)
        assert after == replace(row, token=after.token, proof=after.proof, rewrites=after.rewrites)
        assert store.maintain().packed == 0
        assert visible(store, talk) == before

    def test_handles_that_were_there_before_go_on_after_packing(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 20)
        other = talk.fork(at=path[10])
        side = talk.subagent("critic", "1")
        side.append(Message.user("hm"))
        pack_all(store)
        assert talk.append(Message.user("on"), on_conflict="raise").parent == path[-1].id
        assert other.append(Message.user("fork")).parent == path[10].id
        assert side.append(Message.user("hm, hm")).label == "subagent:critic:1"
        assert texts(talk.thread()) == [*texts(path), "on"]
        assert texts(other.thread()) == [*texts(path[:11]), "fork"]
        assert texts(side.thread()) == ["hm", "hm, hm"]

    def test_a_fork_into_the_middle_of_a_pack_grows_and_is_packed_too(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 40)
        pack_all(store)
        forks = [talk.fork(at=path[at]) for at in (0, 17, 31, 32, 63, 79)]
        for n in range(33):
            for fork in forks:
                fork.append(Message.user(f"f{n}"))
        wanted = [texts(fork.thread()) for fork in forks]
        assert [len(thread) for thread in wanted] == [34, 51, 65, 66, 97, 113]
        pack_all(store)
        assert [texts(fork.thread()) for fork in forks] == wanted
        assert talk.thread() == path
        assert len(talk.branches()) == 6

    def test_undo_compact_detach_compare_and_usage_see_through_packs(self, store: Store) -> None:
        talk = store.start(system_prompt="s")
        path = fill(talk, 19)
        talk.append(Message.assistant("counted", usage=Usage(3, 4)))
        pack_all(store)
        assert (talk.usage().total_tokens, talk.usage().messages) == (7, 39)
        assert texts(talk.undo()) == ["q18", "a18", "counted"]
        talk.append(Message.user("q18, better"))
        pack_all(store)
        other = talk.fork(at=path[20])
        other.append(Message.user("another"))
        compared = threads.compare(talk, other)
        assert (compared.shared, compared.left[0]) == (path[:21], path[21])
        alone = talk.detach()
        pack_all(store)
        assert texts(alone.thread()) == [*texts(path[:36]), "q18, better"]
        assert alone.thread()[0].origin == f"{talk.id}/{path[0].id}"
        root = talk.compact(lambda thread: f"{len(thread)} summed up")
        assert root.text == "37 summed up"
        pack_all(store)
        assert texts(talk.thread()) == ["37 summed up"]
        assert texts(talk.thread(full=True)) == [*texts(path[:36]), "q18, better", "37 summed up"]
        assert texts(talk.undo()) == ["37 summed up"]
        assert texts(talk.thread())[-1] == "q18, better"

    def test_what_is_deleted_from_a_packed_run_is_gone_and_the_rest_stays(
        self, store: Store, open_store: Callable[[], Store], backend: Backend
    ) -> None:
        """A suffix, then a whole run, then everything."""
        talk = store.start()
        path = fill(talk, 40)
        pack_all(store)
        size = talk.refresh()._desk.row.size
        for left in (70, 64, 63, 33, 1):
            store.delete([path[left].id], recursive=True)
            fresh = open_store().conversation(talk.id)
            assert (fresh.thread(), fresh.count, fresh.at) == (path[:left], left, path[left - 1].id)
            assert list(store.messages(newest_first=False)) == path[:left]
            with pytest.raises(NotFound):
                store.get([path[left].id])
            assert row_of(backend, talk).size < size
            assert store.verify().problems == ()
        assert store.delete([path[0].id]) == [path[0].id]
        assert backend.packs(range(0, 200, RUN)) == []
        assert store.conversation(talk.id).append(Message.user("anew")).parent is None

    def test_after_a_delete_a_packed_run_goes_on_elsewhere_and_is_packed_again(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 16)
        pack_all(store)
        store.delete([path[20].id], recursive=True)
        again = store.conversation(talk.id)
        more = fill(again, 20)
        pack_all(store)
        assert again.thread() == [*path[:20], *more]

    def test_a_delete_in_packs_takes_subagents_along_and_clears_compaction_links(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 20)
        trace = talk.subagent("review", "r", call=path[33])
        traced = fill(trace, 17)
        root = talk.compact("gist")
        fill(talk, 16)
        summed = talk.thread()
        pack_all(store)
        with pytest.raises(HasChildren):
            store.delete([path[33].id])
        gone = store.delete([path[33].id], recursive=True)
        assert set(gone) == {m.id for m in (*path[33:], *traced)}
        assert list(store.messages(subagent="review")) == []
        assert store.message(root.id).link is None
        assert texts(talk.thread(full=True)) == texts(summed)
        assert talk.thread()[1:] == summed[1:]
        assert store.thread(path[32]) == path[:33]

    def test_a_packed_message_can_be_labelled(self, store: Store, open_store: Callable[[], Store]) -> None:
        talk = store.start()
        path = fill(talk, 20)
        pack_all(store)
        for message in (path[0], path[13], path[31], path[39]):
            talk.label("good", message=message)
        talk.label("better", message=path[13])
        talk.label(None, message=path[31])
        found = open_store()
        assert [m.id for m in found.messages(label="good", newest_first=False)] == [path[0].id, path[39].id]
        assert [m.id for m in found.messages(label="better")] == [path[13].id]
        labels = {message.id: message.label for message in found.conversation(talk.id).thread() if message.label}
        assert labels == {path[0].id: "good", path[13].id: "better", path[39].id: "good"}
        assert (found.message(path[13]).revision, found.message(path[31]).label) == (2, None)
        assert texts(found.conversation(talk.id).thread()) == texts(path)
        pack_all(store)
        assert [m.id for m in store.messages(label="better")] == [path[13].id]

    def test_a_partial_pack_grows_message_by_message(self, store: Store, open_store: Callable[[], Store]) -> None:
        """Whatever is packed when, each message is there once."""
        talk = store.start()
        path: list[Saved] = []
        for n in range(70):
            path.append(talk.append(Message.user(f"m{n}")))
            if n % 5 == 0 or n in (30, 31, 32):
                pack_all(store)
            if n % 7 == 0:
                assert open_store().conversation(talk.id).thread() == path
        pack_all(store)
        assert talk.thread() == path
        assert list(store.messages(newest_first=False)) == path

    def test_rows_beyond_a_pack_are_labelled_and_deleted_like_others(self, store: Store) -> None:
        talk = store.start()
        path = fill(talk, 3)
        pack_all(store)
        path += fill(talk, 3)
        talk.label("loose", message=path[8])
        talk.label("packed", message=path[2])
        store.delete([path[10].id], recursive=True)
        assert [m.label for m in store.conversation(talk.id).thread()] == [
            None, None, "packed", None, None, None, None, None, "loose", None,
        ]  # fmt: skip
        store.delete([path[4].id], recursive=True)
        assert texts(store.conversation(talk.id).thread()) == texts(path[:4])

    def test_a_key_is_known_although_its_message_is_packed(self, store: Store) -> None:
        talk = store.start()
        first = talk.append(Message.user("one", key="k1"))
        fill(talk, 20)
        pack_all(store)
        count = talk.refresh().count
        again = store.conversation(talk.id)
        assert again.append(Message.user("one", key="k1")) == first
        assert (talk.refresh().count, again.at) == (count, first.id)

    def test_a_packed_conversation_is_purged_whole(self, store: Store, backend: Backend) -> None:
        talk, other = store.start(), store.start()
        path, kept = fill(talk, 40), fill(other, 40)
        pack_all(store)
        store.purge(talk, reason="user-requested")
        assert [pack.conversation for pack in backend.packs(range(0, 400, RUN))].count(id_bytes(talk)) == 0
        with pytest.raises(NotFound):
            store.get([path[0].id])
        assert other.thread() == kept

    def test_large_messages_share_no_pack(self, store: Store, backend: Backend) -> None:
        """Reading one message of a pack takes a few milliseconds at most, so a pack has an end."""
        talk = store.start()
        path = talk.extend([Message.user(letter * 600_000) for letter in "abc"])
        more = fill(talk, 20)
        store.maintain()
        assert talk.thread() == [*path, *more]
        assert list(store.messages(newest_first=False)) == [*path, *more]
        assert all(pack.count < RUN for pack in backend.packs([store._names.number(path[0].id)]))

    def test_one_packs_while_another_writes(self, open_store: Callable[[], Store]) -> None:
        """Two stores with beliefs of their own: no message is lost, doubled or left without its body."""
        mine, theirs = open_store(), open_store()
        talk = mine.start()
        path = fill(talk, 20)
        away = theirs.conversation(talk.id)
        pack_all(theirs)
        path.append(talk.append(Message.user("mine"), on_conflict="raise"))
        talk.label("l", message=path[3])
        pack_all(theirs)
        path.append(away.append(Message.user("theirs"), on_conflict="follow"))
        mine.delete([path.pop().id])
        pack_all(mine)
        theirs.delete([path.pop().id])
        away.label("m", message=path[5])
        path += fill(away.follow(), 20)
        pack_all(mine)
        for store in (mine, theirs):
            assert texts(store.conversation(talk.id).thread()) == texts(path)
            assert [m.label for m in store.get([path[3].id, path[5].id])] == ["l", "m"]
            assert store.verify().problems == ()

    def test_threads_pack_and_write_at_once(self, open_store: Callable[[], Store]) -> None:
        """Appending, labelling, deleting, listing and packing, each in a thread and store of its own."""
        stores = [open_store() for _ in range(4)]
        talk = stores[0].start()
        first = fill(talk, 20)
        doomed = stores[0].start()
        goners = fill(doomed, 20)
        problems: list[BaseException] = []

        def attempt(work: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except BaseException as error:  # noqa: BLE001  # shown below
                    problems.append(error)

            return run

        def append() -> None:
            for n in range(40):
                talk.append(Message.user(f"n{n}"))

        def label() -> None:
            handle = stores[1].conversation(talk.id)
            for n in range(20):
                handle.label(f"label {n}", message=first[n])

        def delete() -> None:
            for message in reversed(goners[8:]):
                stores[2].delete([message.id])

        def pack() -> None:
            for _ in range(12):
                stores[3].maintain()
                assert texts(stores[3].thread(first[-1])) == texts(first)

        workers = [threading.Thread(target=attempt(work)) for work in (append, label, delete, pack)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for problem in problems:
            raise problem
        last = open_store()
        thread = last.conversation(talk.id).thread()
        assert texts(thread) == [*texts(first), *(f"n{n}" for n in range(40))]
        assert [m.label for m in thread[:20]] == [f"label {n}" for n in range(20)]
        assert last.conversation(doomed.id).thread() == goners[:8]
        assert last.verify().problems == ()

    def test_a_pack_that_was_built_too_early_is_not_put_over_a_longer_one(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two threads of one store maintain it, and a third one appends: what the slower one has built is too short by
        the time it is written."""
        store = Store(backend, ToyCodec())
        talk = store.start()
        path = fill(talk, 2)

        def meanwhile() -> None:
            path.append(talk.append(Message.user("meanwhile")))
            store.maintain()

        monkeypatch.setattr(_packs, "_build", interrupted(_packs._build, meanwhile))
        store.maintain()
        assert store.conversation(talk.id).thread() == path
        assert store.verify().problems == ()

    @pytest.mark.parametrize("how", ["append", "look"])
    def test_a_pack_that_was_built_too_early_is_not_put_over_that_of_another_store(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """As above, in two processes. The one with the shorter pack has heard of the row that the other has written, by
        an append that was stale or because somebody looked."""
        mine, theirs = Store(backend, ToyCodec()), Store(backend, ToyCodec())
        talk = mine.start()
        path = fill(talk, 2)

        def meanwhile() -> None:
            path.append(theirs.conversation(talk.id).append(Message.user("theirs")))
            theirs.maintain()
            if how == "append":
                path.append(talk.append(Message.user("mine"), on_conflict="follow"))
            else:
                talk.refresh()

        monkeypatch.setattr(_packs, "_build", interrupted(_packs._build, meanwhile))
        mine.maintain()
        assert texts(mine.conversation(talk.id).thread()) == texts(path)
        assert mine.verify().problems == ()

    def test_a_pack_that_was_built_too_early_is_given_up_if_messages_changed(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for change in ("label", "delete", "purge", "append"):
            store = Store(backend, ToyCodec())
            talk = store.start()
            path = fill(talk, 2)

            def meanwhile(change: str = change, store: Store = store, talk: Conversation = talk) -> None:
                if change == "label":
                    talk.label("new", message=talk.thread()[1])
                elif change == "delete":
                    store.delete([talk.thread()[3].id])
                elif change == "purge":
                    store.purge(talk, reason="user-requested")
                else:
                    talk.append(Message.user("more"))

            with monkeypatch.context() as patch:
                patch.setattr(_packs, "_build", interrupted(_packs._build, meanwhile))
                store.maintain()
            assert store.verify().problems == ()
            if change == "purge":
                continue
            wanted = texts(path[:3] if change == "delete" else path) + ["more"] * (change == "append")
            assert texts(store.conversation(talk.id).thread()) == wanted
            assert (store.message(path[1]).label == "new") == (change == "label")

    def test_verify_is_content_while_others_pack(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store(backend, ToyCodec())
        talk = store.start()
        fill(talk, 150)  # more than verify reads at a time
        scan = backend.scan
        monkeypatch.setattr(backend, "scan", interrupted(scan, store.maintain))
        report = store.verify()
        assert report.problems == ()

    def test_a_listing_goes_on_when_a_packed_message_is_deleted_meanwhile(self, store: Store) -> None:
        """What was in a row that had been read was listed; what is in a pack is looked for when it is its turn."""
        talk = store.start()
        path = talk.extend([Message.user(str(n), label="l") for n in range(40)])
        pack_all(store)
        listing = store.messages(label="l", newest_first=False)
        begun = [next(listing)]
        store.delete([path[35].id], recursive=True)
        assert begun + list(listing) == path[:35]

    def test_verify_sees_through_packs(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 20)
        sound = store.start()
        fill(sound, 20)
        pack_all(store)
        assert (store.verify().problems, store.verify().messages) == ((), 80)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # the fixture verifies every other store
        row = row_of(backend, talk)
        first = store._names.number(path[0].id)
        pack = backend.packs([first])[0]
        header = backend.messages(numbers=[first + 3])[0]
        swapped = replace(backend.packs([_packs.run_of(store._names.number(path[39].id))])[0], first=first)
        broken = [
            Change(row.id, None, row, pack=(replace(pack, body=pack.body[:-1] + bytes([pack.body[-1] ^ 1])),)),
            Change(row.id, None, row, pack=(replace(pack, body=b""),)),
            Change(row.id, None, row, pack=(replace(pack, count=pack.count - 1),)),
            Change(row.id, None, row, pack=(replace(pack, parent=12345),)),
            Change(row.id, None, row, pack=(swapped,)),
            Change(row.id, None, row, unpack=(first,)),
            Change(row.id, None, row, amend=(replace(header, seq=header.seq + 1000),)),
            Change(row.id, None, row, amend=(replace(header, revision=5),)),
            Change(row.id, None, row, amend=(replace(header, role="system"),)),
            Change(row.id, None, row, amend=(replace(header, size=header.size + 1),)),
            Change(row.id, None, row, drop=(header.number,)),
        ]
        for change in broken:
            assert backend.commit([Batch((replace(change, expect=row.token),))]) == [DONE]
            report = store.verify()
            assert not report.ok, change
            assert {problem.conversation for problem in report.problems} == {talk.id}
            add = (header,) if change.drop else ()
            fixed = Change(row.id, row.token, row, add=add, amend=() if add else (header,), pack=(pack,))
            assert backend.commit([Batch((fixed,))]) == [DONE]
            assert store.verify().ok, change

    def test_a_damaged_pack_hides_no_other(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        path = fill(talk, 40)
        pack_all(store)
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        row = row_of(backend, talk)
        pack = backend.packs([store._names.number(path[32].id)])[0]
        broken = replace(pack, body=b"\x00" + pack.body)
        backend.commit([Batch((Change(row.id, row.token, row, pack=(broken,)),))])
        listed = list(store.messages(newest_first=False))
        assert [m.id for m in listed] == [m.id for m in path]
        assert [m.problem is not None for m in listed] == [False] * 32 + [True] * 32 + [False] * 16
        assert listed[:32] == path[:32]
        for read in (talk.thread, lambda: store.message(path[40])):
            with pytest.raises(Damaged):
                read()
        assert store.thread(path[31]) == path[:32]
        assert {p.message for p in store.verify().problems} >= {m.id for m in path[32:64]}

    # -- attachments

    def test_binary_of_any_size_comes_back_equal(self, store: Store, open_store: Callable[[], Store]) -> None:
        sizes = (0, LARGE - 1, LARGE, LARGE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 1_000_000)
        talk = store.start()
        for size in sizes:
            message = Message.user([Block.image(noise(size), "image/png"), Block.text("and?")])
            assert talk.append(message).blocks == tuple(message.blocks)
        for found in (talk.thread(), open_store().conversation(talk.id).thread(), list(store.messages())[::-1]):
            assert [m.blocks[0].content for m in found] == [noise(size) for size in sizes]
        pack_all(store)
        assert [m.blocks[0].content for m in open_store().conversation(talk.id).thread()] == [noise(s) for s in sizes]

    def test_what_compresses_well_comes_back_equal_too(self, store: Store) -> None:
        """Chunks that are squeezed, chunks that are not, and content that looks like a squeezed chunk."""
        magic = b"\x28\xb5\x2f\xfd"
        contents = [bytes(CHUNK * 3), b"ab" * CHUNK + noise(CHUNK), magic * LARGE, b"\x01" * LARGE, b"\x00" * LARGE]
        talk = store.start()
        talk.append(Message.user([Block.image(content, "image/png") for content in contents]))
        assert [block.content for block in talk.thread()[0].blocks] == contents

    def test_the_same_image_twice_is_kept_once(self, store: Store, backend: Backend) -> None:
        """In one message, in several, and from a handle of another; but not across conversations."""
        talk, other = store.start(), store.start()
        image = Block.image(noise(LARGE), "image/png")
        talk.append(Message.user([image, Block.image(noise(LARGE), "image/jpeg")]))
        talk.append(Message.user(image))
        store.conversation(talk.id).append(Message.user(image))
        (row,) = backend.attachments(id_bytes(talk))
        assert (len(row.messages), row.chunks) == (3, 1)
        other.append(Message.user(image))
        assert len(backend.attachments(id_bytes(other))) == 1
        store.purge(talk, reason="user-requested")
        assert backend.attachments(id_bytes(talk)) == []
        assert other.thread()[0].blocks[0].content == noise(LARGE)

    def test_long_strings_in_the_providers_json_come_back_equal(self, store: Store, backend: Backend) -> None:
        long = "ä🎉" * LARGE
        assert len(long.encode()) > 4 * LARGE
        raw = {
            "data": [{"image": {"b64": "A" * (LARGE + 1)}}, "x" * LARGE, ["B" * (LARGE + 1), long, "", None, 1.5]],
            "again": long,
            "\0": {"bytes": noise(LARGE), "few": b"\xff"},
            "nul": "\0" * (LARGE + 1),
        }
        message = Message(
            role="assistant",
            blocks=[Block.text("y" * 300_000, cited=["C" * (LARGE + 1)]), Block.image(noise(LARGE), "image/png")],
            raw=raw,
            extra={"long": long, "deep": [[[["D" * (2 * LARGE)]]]]},
            privacy={"why": "E" * (LARGE + 1)},
        )
        talk = store.start()
        saved = talk.append(message)
        pack_all(store)
        (read,) = talk.thread()
        assert read == saved == store.message(saved.id) == next(iter(store.messages()))
        for name in ("raw", "extra", "privacy"):
            assert getattr(read, name) == getattr(message, name), name
        assert read.blocks == tuple(message.blocks)
        assert len(backend.attachments(id_bytes(talk))) == 8

    def test_text_and_bytes_that_are_the_same_do_not_get_in_each_others_way(self, store: Store) -> None:
        talk = store.start()
        same = "z" * (LARGE + 1)
        talk.append(Message.user(Block.image(same.encode(), "image/png")))
        talk.append(Message.user("x", raw={"z": same}))
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # verified here, as long as it is expected to fail
        first, second = talk.thread()
        assert (first.blocks[0].content, second.raw) == (same.encode(), {"z": same})
        assert store.verify().problems == ()

    def test_a_file_and_a_string_that_are_the_same_are_given_back_as_they_are(
        self, store: Store, tmp_path: Path
    ) -> None:
        same = "z" * (LARGE + 1)
        file = tmp_path / "same"
        file.write_text(same)
        talk = store.start()
        saved = talk.append(Message.user(Block.image(Attachment.from_file(file), "image/png"), raw={"z": same}))
        file.unlink()
        assert saved.raw == {"z": same}
        assert isinstance(saved.blocks[0].content, Attachment)
        assert saved.blocks[0].content.read() == same.encode()

    def test_attachments_can_be_read_when_they_are_wanted(self, store: Store, tmp_path: Path) -> None:
        content = noise(CHUNK * 2 + 5)
        text = "ü" * LARGE
        talk = store.start()
        saved = talk.append(Message.user(Block.video(content, "video/mp4"), raw={"t": [text]}))
        found = [
            talk.thread(attachments="lazy")[0],
            store.thread(saved, attachments="lazy")[0],
            store.message(saved, attachments="lazy"),
            store.get([saved], attachments="lazy")[0],
            next(store.messages(attachments="lazy")),
        ]
        for n, message in enumerate(found):
            video, words = message.blocks[0].content, message.raw["t"][0]  # type: ignore[index]  # as above
            assert isinstance(video, Attachment)
            assert isinstance(words, Attachment)
            assert (video.size, video.text, words.size, words.text) == (len(content), False, 2 * LARGE, True)
            assert [len(piece) for piece in video] == [CHUNK, CHUNK, 5]
            assert (video.read(), video.load(), words.load(), words.read()) == (content, content, text, text.encode())
            video.save(tmp_path / f"{n}.mp4")
            assert (tmp_path / f"{n}.mp4").read_bytes() == content
            with pytest.raises(AlreadyExists):
                words.save(tmp_path / f"{n}.mp4")
            assert (tmp_path / f"{n}.mp4").read_bytes() == content
        assert len(list(tmp_path.glob("*.mp4*"))) == len(found)  # nothing unfinished is left
        with pytest.raises(InvalidArgument):
            talk.thread(attachments="eager")  # type: ignore[arg-type]  # on purpose
        assert found[0].text == ""
        assert "97" not in repr(found[0].blocks[0].content)

    def test_a_file_is_attached_by_its_path(self, store: Store, tmp_path: Path) -> None:
        for size in (0, 1, LARGE, CHUNK + 1):
            file = tmp_path / f"{size}.png"
            file.write_bytes(noise(size))
            talk = store.start()
            saved = talk.append(Message.user(Block.image(Attachment.from_file(file), "image/png")))
            given = saved.blocks[0].content
            file.unlink()
            assert isinstance(given, Attachment)  # of the store: the file is not needed any more
            assert given.read() == noise(size)
            assert talk.thread()[0].blocks[0].content == noise(size)
        for nothing in (tmp_path, tmp_path / "never", ""):
            with pytest.raises(InvalidArgument):
                Attachment.from_file(nothing)

    def test_what_was_read_lazily_can_be_said_again_elsewhere(self, store: Store) -> None:
        talk, other = store.start(), store.start()
        talk.append(Message.user(Block.image(noise(CHUNK + 1), "image/png"), raw={"t": "x" * (LARGE + 1)}))
        (lazy,) = talk.thread(attachments="lazy")
        other.append(lazy)
        talk.append(lazy)
        store.purge(talk, reason="user-requested")
        (read,) = other.thread()
        assert (read.blocks[0].content, read.raw) == (noise(CHUNK + 1), {"t": "x" * (LARGE + 1)})
        with pytest.raises(NotFound):
            lazy.blocks[0].content.read()  # type: ignore[union-attr]  # an attachment

    def test_a_message_with_attachments_can_be_labelled(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        saved = talk.append(Message.user(Block.image(noise(LARGE), "image/png"), raw={"t": "x" * (LARGE + 1)}))
        talk.label("loose")
        pack_all(store)
        talk.label("packed")
        (read,) = talk.thread()
        assert (read.label, read.blocks, read.raw) == ("packed", saved.blocks, saved.raw)
        assert [row.messages for row in backend.attachments(id_bytes(talk))] == [(store._names.number(saved.id),)] * 2

    def test_the_last_message_that_refers_takes_the_attachment_along(self, store: Store, backend: Backend) -> None:
        for packed in (False, True):
            talk = store.start()
            image = Block.image(noise(LARGE), "image/png")
            first, second = talk.append(Message.user(image)), talk.append(Message.user(image))
            if packed:
                pack_all(store)
            store.delete([second.id])
            assert len(backend.attachments(id_bytes(talk))) == 1
            assert store.message(first).blocks[0].content == noise(LARGE)
            store.delete([first.id])
            assert backend.attachments(id_bytes(talk)) == []

    def test_a_detached_thread_has_attachments_of_its_own(self, store: Store, backend: Backend) -> None:
        talk = store.start()
        for n in range(3):
            talk.append(Message.user(Block.image(noise(LARGE + n), "image/png"), raw={"t": "x" * (LARGE + 1)}))
        pack_all(store)
        alone = talk.detach()
        assert len(backend.attachments(id_bytes(alone))) == 4
        store.purge(talk, reason="user-requested")
        assert [m.blocks[0].content for m in alone.thread()] == [noise(LARGE + n) for n in range(3)]
        assert alone.thread()[2].raw == {"t": "x" * (LARGE + 1)}

    def test_too_large_is_refused_and_nothing_is_staged(self, backend: Backend, tmp_path: Path) -> None:
        """One attachment has a limit; text and JSON have another, wherever they end up. (Points: letters alone are the
        base64 of something, which is no text.)"""
        store = Store(backend, max_attachment=CHUNK, max_write_bytes=300_000)
        talk = store.start()
        file = tmp_path / "file"
        file.write_bytes(bytes(CHUNK + 1))
        large = [
            Message.user(Block.image(bytes(CHUNK + 1), "image/png")),
            Message.user(Block.image(Attachment.from_file(file), "image/png")),
            Message.user("x", raw={"t": "x" * (CHUNK + 1)}),
            Message.user("x", raw=["x." * 100_000, "y." * 50_000]),
            Message.user("x" * 100_001, raw={"t": "x." * 100_000}),
            Message.user("x", extra={"t": "é" * 75_000, "u": "è" * 75_000}),
        ]
        for message in large:
            for write in (talk.append, lambda m: store.save([m]), lambda m: talk.extend([Message.user("fine"), m])):
                with pytest.raises(PayloadTooLarge):
                    write(message)
        with pytest.raises(PayloadTooLarge):
            talk.extend([Message.user("x", raw="x." * 75_000), Message.user("x", raw="y." * 75_000)])
        assert backend.attachments(id_bytes(talk)) == []
        assert (store.stats().messages, store.stats().conversations) == (0, 1)
        assert backend.collect(1 << 60) == 0
        talk.append(Message.user(Block.image(bytes(CHUNK), "image/png"), raw=["x." * 100_000]))  # the control
        assert store.verify().problems == ()

    def test_a_file_that_changes_while_it_is_read_is_refused(self, store: Store, tmp_path: Path) -> None:
        talk = store.start()
        content = noise(CHUNK * 2)
        for other in (content[:-1], content + b"x", noise(CHUNK * 2 + 7)[7:], b"", content + bytes(CHUNK * 40)):
            changing = Changing(content, other)
            attachment = Attachment(len(content), changing)
            with pytest.raises(InvalidArgument):
                talk.append(Message.user(Block.image(attachment, "image/png")))
            assert changing.reads == 2  # once for its name, once for its bytes
        shrunk = tmp_path / "shrunk"
        shrunk.write_bytes(content)
        attachment = Attachment.from_file(shrunk)
        shrunk.write_bytes(content[:-1])
        with pytest.raises(InvalidArgument):
            talk.append(Message.user(Block.image(attachment, "image/png")))
        assert talk.refresh().count == 0

    def test_after_a_file_that_changed_the_real_content_is_kept(self, store: Store) -> None:
        """What was staged of the other content, under the name of this one, is in nobody's way."""
        talk = store.start()
        content = noise(CHUNK + 1)
        for other in (noise(CHUNK * 40), b"", noise(CHUNK)):
            attachment = Attachment(len(content), Changing(content, other))
            with pytest.raises(InvalidArgument):
                talk.append(Message.user(Block.image(attachment, "image/png")))
        talk.append(Message.user(Block.image(content, "image/png")))
        assert talk.thread()[0].blocks[0].content == content

    def test_a_file_that_vanishes_is_refused(self, store: Store, tmp_path: Path) -> None:
        talk = store.start()
        file = tmp_path / "file"
        file.write_bytes(noise(LARGE))
        attachment = Attachment.from_file(file)
        file.unlink()
        with pytest.raises(InvalidArgument):
            talk.append(Message.user(Block.image(attachment, "image/png")))
        assert talk.refresh().count == 0
        talk.append(Message.user("goes on"))

    def test_abandoned_chunks_are_collected_after_a_day_and_not_before(self, backend: Backend) -> None:
        now = [1_700_000_000_000_000]
        store = Store(backend, clock=lambda: now[0])
        talk = store.start()
        kept = talk.append(Message.user(Block.image(noise(LARGE), "image/png")))
        backend.stage(id_bytes(talk), b"abandoned", 0, [b"by a process that was killed"], last=True, at=now[0])
        assert len(backend.attachments(id_bytes(talk))) == 2  # the control: something was abandoned
        day = 24 * 3600 * 1_000_000
        now[0] += day
        assert store.maintain().collected == 0
        now[0] += 1
        assert store.maintain().collected == 1
        assert len(backend.attachments(id_bytes(talk))) == 1
        now[0] += 100 * day
        assert store.maintain().collected == 0
        assert store.message(kept).blocks[0].content == noise(LARGE)
        assert store.verify().problems == ()

    def test_what_the_collector_took_is_staged_again(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """The collector, or the delete of the last message that refers, comes between staging and adopting."""
        store = Store(backend)

        def meanwhile() -> None:
            assert backend.collect(1 << 60) == 1

        def append(talk: Conversation, message: Message) -> Saved:
            with monkeypatch.context() as patch:
                interrupt_commit(patch, backend, meanwhile)
                return talk.append(message)

        talk = store.start()
        message = Message.user(Block.image(noise(CHUNK + 1), "image/png"), raw={"n": 1})
        saved = append(talk, message)
        assert store.message(saved).blocks[0].content == noise(CHUNK + 1)
        with monkeypatch.context() as patch:
            interrupt_commit(patch, backend, meanwhile)
            (id,) = store.save([message])
        assert store.message(id).blocks[0].content == noise(CHUNK + 1)

        def delete() -> None:
            Store(backend).delete([saved.id])

        before = talk.fork(before=saved)
        with monkeypatch.context() as patch:
            interrupt_commit(patch, backend, delete)
            again = before.append(message)
        assert store.message(again).blocks[0].content == noise(CHUNK + 1)
        assert store.verify().problems == ()

    def test_what_a_lazy_attachment_was_is_not_found_when_its_message_is_gone(self, store: Store) -> None:
        talk = store.start()
        saved = talk.append(Message.user(Block.image(noise(CHUNK * 3), "image/png")))
        (lazy,) = talk.thread(attachments="lazy")
        content = lazy.blocks[0].content
        assert isinstance(content, Attachment)
        pieces = iter(content)
        next(pieces)
        store.delete([saved.id])
        with pytest.raises(NotFound):
            list(pieces)
        with pytest.raises(NotFound):
            content.read()

    def test_damaged_attachments_are_noticed_and_named(
        self, store: Store, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        talk = store.start()
        saved = talk.append(Message.user(Block.image(noise(CHUNK * 2), "image/png")))
        sound = talk.append(Message.user(Block.image(noise(LARGE), "image/png")))
        store.damaged_on_purpose = True  # type: ignore[attr-defined]  # see above
        id = id_bytes(talk)
        (row,) = (row for row in backend.attachments(id) if row.chunks == 2)
        chunks, whole = backend.chunks, list(backend.chunks(id, row.name))

        def instead(name: bytes, broken: list[bytes]) -> Callable[..., Iterator[bytes]]:
            return lambda id, wanted, start=0: iter(broken[start:]) if wanted == name else chunks(id, wanted, start)

        for broken in (
            [whole[0][:-1], whole[1]],
            [whole[0], whole[1][:-1]],
            [whole[1], whole[0]],
            [whole[0], whole[0]],
            [whole[0], bytes([whole[1][0] ^ 1]) + whole[1][1:]],
            [whole[0], whole[1][:40] + b"?" + whole[1][41:]],
            [b"", whole[1]],
        ):
            monkeypatch.setattr(backend, "chunks", instead(row.name, broken))
            with pytest.raises(Damaged):
                talk.thread()
            assert [m.problem is None for m in store.messages()] == [True, False]
            assert {problem.message for problem in store.verify().problems} == {saved.id}
            assert store.message(sound).blocks[0].content == noise(LARGE)
        monkeypatch.setattr(backend, "chunks", chunks)
        assert store.verify().problems == ()
        assert talk.thread()[0].blocks[0].content == noise(CHUNK * 2)
