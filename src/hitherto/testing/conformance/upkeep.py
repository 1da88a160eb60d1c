"""The contract of a backend beside its rows.

The feed of changes, maintenance, sizes, numbers that are never used twice, and use by several threads.
"""

import threading

from ...backend import (
    DONE,
    Backend,
    Batch,
    Change,
    Stale,
    Taken,
)
from ...ids import RUN
from .rows import (
    A,
    B,
    C,
    conversation_row,
    create,
    message_row,
    pack_row,
    token,
    update,
)


class FeedContract:
    """`changes`: the feed that indexes follow."""

    def test_asking_again_when_nothing_was_written_does_not_use_positions_up(self, backend: Backend) -> None:
        backend.commit([create(message_row(0))])
        start = backend.changes(None).position
        backend.commit([update(1)])
        for _ in range(200):
            found = backend.changes(start)
            assert (found.everything, found.moved) == (False, [A])

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


class UpkeepContract:
    """Maintenance, sizes, numbers, threads and health."""

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
