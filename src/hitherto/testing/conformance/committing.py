"""The contract of `commit` and of the verbs that read rows back.

Batches are all or nothing, tokens are compared, and pages, paths, items and tags come back in order.
"""

from msgspec.structs import replace

from ...backend import (
    DONE,
    WORKSPACE,
    Backend,
    Batch,
    Change,
    ItemRow,
    KeyShape,
    Lifetime,
    Position,
    Stale,
    Tag,
    Taken,
    Totals,
    Where,
)
from ...ids import RUN
from .queueing import QueueContract
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


class CommitContract:
    """Batches, tokens, rows, listings, items and tags."""

    def test_it_says_whether_writers_queue(self, backend: Backend) -> None:
        """A backend that lets writers queue joins `QueueContract` as well."""
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
        assert backend.commit([replace(again, is_copy=True), replace(taken, is_copy=True)]) == [
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
