"""The contract of packs and attachments in a backend.

Both hold bytes that a message row does not hold itself. They live and go with the messages that refer to them.
"""

from msgspec.structs import replace

from ...backend import (
    DONE,
    AttachmentRow,
    Backend,
    Batch,
    Change,
    Missing,
    Stale,
    Tag,
    UnpackedRun,
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
    way,
)


class PackContract:
    """Packs: where bodies lie, and how paths lead through them."""

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
        assert backend.loose(full=True, limit=9) == [UnpackedRun(0, A), UnpackedRun(64, A)]
        assert backend.loose(full=True, after=0, limit=9) == [UnpackedRun(64, A)]
        assert backend.loose(full=True, after=64, limit=9) == []
        assert backend.loose(full=False, limit=9) == [
            UnpackedRun(0, A),
            UnpackedRun(64, A),
            UnpackedRun(320, A),
            UnpackedRun(352, B),
        ]
        assert backend.loose(full=False, after=64, limit=1) == [UnpackedRun(320, A)]
        backend.commit([update(1, pack=(pack_row(0, RUN), pack_row(64, 3)))])
        assert backend.loose(full=True, limit=9) == [UnpackedRun(64, A)]
        assert backend.loose(full=False, limit=9) == [UnpackedRun(320, A), UnpackedRun(352, B)]

    def test_a_run_that_grows_beyond_its_pack_is_loose_when_it_is_full(self, backend: Backend) -> None:
        backend.commit([create(*(message_row(n) for n in range(9))), update(1, pack=(pack_row(0, 9),))])
        assert backend.loose(full=False, limit=9) == backend.loose(full=True, limit=9) == []
        backend.commit([update(2, add=tuple(message_row(n) for n in range(9, RUN)))])
        assert backend.loose(full=True, limit=9) == [UnpackedRun(0, A)]


class AttachmentContract:
    """Attachments: staged, adopted, released and collected."""

    def test_what_is_complete_is_not_staged_over(self, backend: Backend) -> None:
        """A second writer that stages the same attachment must not spoil it if its file changes meanwhile."""
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
