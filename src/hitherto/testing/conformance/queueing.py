"""The contract of `commit_queued`.

Backends on which writers queue (`info.can_queue`) join it. Each test checks which batches are made anew, from which
row, and in which order.
"""

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from ...backend import (
    DONE,
    Backend,
    Batch,
    ConversationRow,
    Outcome,
    QueueingBackend,
    Stale,
)
from .rows import (
    A,
    B,
    conversation_row,
    create,
    never,
    rebase_from,
    update,
)


class QueueContract:
    """The tests for a backend that lets writers queue (`info.can_queue`)."""

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
            return rebase_from(7)(row, places)

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
            return rebase_from(7)(row, places)

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
            return rebase_from(5)(row, places)

        assert queueing.commit_queued([update(1)], rebase) == [DONE]
        other.join()
        assert theirs == [Stale(A, conversation_row(A, 5))]

    def test_an_error_of_who_makes_it_anew_keeps_nothing_and_holds_nothing(self, queueing: QueueingBackend) -> None:
        queueing.commit([create(), update(1)])

        with pytest.raises(ZeroDivisionError):
            queueing.commit_queued([update(1)], lambda _, places: [None][: 1 // (len(places) - 1)])
        assert queueing.commit([update(2)]) == [DONE]
