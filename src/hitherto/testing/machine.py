"""A state machine that drives a backend beside the one in memory and compares every answer.

The rows it writes make no sense as conversations; what it checks is that two backends cannot be told apart through
the protocol. To use it, say how a fresh backend is made:

    class Machine(BackendMachine):
        def make(self): return MyBackend(...)

    TestMine = Machine.TestCase
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from ..backend import (
    Backend,
    Batch,
    Change,
    ConversationRow,
    ItemRow,
    MessageRow,
    Outcome,
    PackRow,
    Position,
    Tag,
    Where,
)
from ..backends.memory import MemoryBackend
from ..ids import RUN
from .conformance import conversation_row, message_row

IDS = tuple(bytes([n]) * 16 for n in (1, 0x10, 0x1F, 0xFF))
KEYS = st.sampled_from([None, None, b"k", b"\x00", b"\xff"])
VALUES = st.sampled_from([b"x", b"y\x00"])
BYTES = st.binary(max_size=40)
ATTACHMENTS = {b"n1": 1, b"n2": 2, b"n3": 3}  # how many chunks each has: a name stands for its content


class BackendMachine(RuleBasedStateMachine):
    """Subclass it and override `make`."""

    def make(self) -> Backend:
        """A fresh backend; `teardown` closes it."""
        return MemoryBackend()

    @initialize()
    def begin(self) -> None:
        self.model: Backend = MemoryBackend()
        self.real = self.make()
        self.tokens = 0
        self.runs = 0
        self.positions: list[tuple[bytes | None, bytes | None]] = [(None, None)]  # in the feeds of both

    def teardown(self) -> None:
        if hasattr(self, "real"):
            self.real.close()

    def both(self, batches: list[Batch]) -> list[Outcome]:
        wanted, got = self.model.commit(batches), self.real.commit(batches)
        assert got == wanted
        return got

    def _now(self, id: bytes) -> ConversationRow | None:
        return next(iter(self.model.lookup(ids=[id])), None)

    def _next(self, id: bytes, **fields: object) -> ConversationRow:
        self.tokens += 1
        row = self._now(id) or conversation_row(id)
        return replace(row, version=row.version + 1, token=b"%016d" % self.tokens, **fields)

    def _expect(self, id: bytes, honest: bool) -> bytes | None:
        row = self._now(id)
        if honest:
            return None if row is None else row.token
        return b"somebody else's!" if row is None else None

    def _numbers(self, id: bytes, count: int, go_on: bool) -> list[int]:
        """Return numbers that follow the newest message in its run, or else the numbers of another run, free or not."""
        last = self.model.scan(id, newest_first=True, limit=1, bodies=False)
        if go_on and last and (last[0].number + 1) % RUN and not self.model.messages(numbers=[last[0].number + 1]):
            start = last[0].number + 1
            return list(range(start, min(start + count, start - start % RUN + RUN)))
        self.runs += 1
        start = (self.runs if go_on else self.runs // 2) * RUN
        return list(range(start, start + count))

    # -- writing

    @rule(
        id=st.sampled_from(IDS),
        honest=st.sampled_from([True, True, True, False]),
        kind=st.sampled_from(["chat", "chat", "state"]),
        key=KEYS,
        times=st.tuples(st.integers(0, 5), st.integers(0, 5)),
        expires=st.none() | st.integers(0, 5),
        held=st.booleans(),
        blobs=st.tuples(BYTES, BYTES, BYTES),
    )
    def describe(
        self,
        id: bytes,
        honest: bool,
        kind: str,
        key: bytes | None,
        times: tuple[int, int],
        expires: int | None,
        held: bool,
        blobs: tuple[bytes, bytes, bytes],
    ) -> None:
        fields = dict(zip(("data_key", "meta", "proof"), blobs, strict=True))
        row = self._next(id, active_at=times[1], expires_at=expires, held=held, **fields)
        if self._now(id) is None:
            row = replace(row, kind=kind, key=key, created_at=times[0])
        self.both([Batch((Change(id, self._expect(id, honest), row),))])

    @rule(
        id=st.sampled_from(IDS),
        honest=st.sampled_from([True, True, True, False]),
        count=st.integers(1, 40),
        go_on=st.booleans(),
        key=KEYS,
        body=BYTES,
        tag=st.none() | VALUES,
    )
    def append(
        self, id: bytes, honest: bool, count: int, go_on: bool, key: bytes | None, body: bytes, tag: bytes | None
    ) -> None:
        row = self._next(id)
        last = self.model.scan(id, newest_first=True, limit=1, bodies=False)
        seq = last[0].seq + 1 if last else 0
        add: list[MessageRow] = []
        for number in self._numbers(id, count, go_on):
            parent = number - 1 if number % RUN else last[0].number if last else None
            add.append(message_row(number, id, seq=seq + len(add), parent=parent, body=body, key=None if add else key))
        tags = () if tag is None else (Tag(tag, add[0].number), Tag(tag))
        self.both([Batch((Change(id, self._expect(id, honest), row, add=tuple(add), tag=tags),))])

    @rule(id=st.sampled_from(IDS), pick=st.integers(0, 99), body=BYTES, main=st.booleans())
    def amend(self, id: bytes, pick: int, body: bytes, main: bool) -> None:
        rows = self.model.scan(id, limit=100)
        if rows:
            new = replace(rows[pick % len(rows)], body=body, main=main, revision=pick, size=len(body), role="event")
            self.both([Batch((Change(id, self._expect(id, True), self._next(id), amend=(new,)),))])

    @rule(id=st.sampled_from(IDS), picks=st.sets(st.integers(0, 99), max_size=5))
    def drop(self, id: bytes, picks: set[int]) -> None:
        rows = self.model.scan(id, limit=100, bodies=False)
        chosen = tuple(sorted({rows[pick % len(rows)].number for pick in picks})) if rows else ()
        if rows:
            packs, unpack = self._cut(chosen)
            change = Change(id, self._expect(id, True), self._next(id), drop=chosen, pack=packs, unpack=unpack)
            self.both([Batch((change,))])

    def _cut(self, dropped: tuple[int, ...]) -> tuple[tuple[PackRow, ...], tuple[int, ...]]:
        """Return the packs, cut before these messages, and the first numbers of packs that become empty."""
        packs: list[PackRow] = []
        gone: list[int] = []
        for pack in self.model.packs(sorted({number - number % RUN for number in dropped})):
            left = min(number for number in dropped if number - number % RUN == pack.first) - pack.first
            if left == 0:
                gone.append(pack.first)
            elif left < pack.count:
                packs.append(replace(pack, count=left, body=b"cut"))
        return tuple(packs), tuple(gone)

    @rule(id=st.sampled_from(IDS), picks=st.sets(st.integers(0, 9), min_size=1), count=st.integers(1, RUN), body=BYTES)
    def pack(self, id: bytes, picks: set[int], count: int, body: bytes) -> None:
        """Put packs over the beginnings of some runs: new ones, longer and shorter ones."""
        roots = [m for m in self.model.scan(id, limit=1000, bodies=False) if m.number % RUN == 0]
        packs = []
        for first in {roots[pick % len(roots)].number: None for pick in picks} if roots else ():
            there = {m.number: m for m in self.model.messages(numbers=range(first, first + RUN))}
            unbroken = next(n for n in range(RUN + 1) if first + n not in there)
            old = sum(pack.count for pack in self.model.packs([first]))
            # What has lost its body to a pack stays in it; one that lost its pack as well is packed all the same.
            packs.append(PackRow(first, id, there[first].parent, max(old, min(count, unbroken)), body))
        if packs:
            self.both([Batch((Change(id, self._expect(id, True), self._next(id), pack=tuple(packs)),))])

    @rule(id=st.sampled_from(IDS), pick=st.integers(0, 9), body=BYTES, honest=st.sampled_from([True, True, False]))
    def unpack(self, id: bytes, pick: int, body: bytes, honest: bool) -> None:
        """Give the messages of a pack bodies of their own again."""
        firsts = [m.number for m in self.model.scan(id, limit=1000, bodies=False) if m.number % RUN == 0]
        packs = self.model.packs(firsts)
        if packs:
            pack = packs[pick % len(packs)]
            rows = self.model.messages(numbers=range(pack.first, pack.first + pack.count))
            change = Change(
                id,
                self._expect(id, honest),
                self._next(id),
                amend=tuple(replace(row, body=body) for row in rows),
                unpack=(pack.first,),
            )
            self.both([Batch((change,))])

    # -- attachments

    @rule(
        id=st.sampled_from(IDS),
        name=st.sampled_from(sorted(ATTACHMENTS)),
        part=st.tuples(st.integers(0, 2), st.integers(0, 3)),
        at=st.integers(0, 5),
    )
    def stage(self, id: bytes, name: bytes, part: tuple[int, int], at: int) -> None:
        """Stage some of the chunks, in any order, again or for the first time."""
        end = ATTACHMENTS[name]
        start = min(part[0], end - 1)
        chunks = [b"%d of %b" % (n, name) for n in range(start, min(end, start + part[1]))]
        for backend in (self.model, self.real):
            backend.stage(id, name, start, chunks, last=start + len(chunks) == end, at=at)

    @rule(
        id=st.sampled_from(IDS),
        picks=st.lists(st.tuples(st.integers(0, 99), st.sampled_from(sorted(ATTACHMENTS))), min_size=1, max_size=4),
        honest=st.sampled_from([True, True, True, False]),
    )
    def attach(self, id: bytes, picks: list[tuple[int, bytes]], honest: bool) -> None:
        """Refer to attachments, complete ones and others."""
        rows = self.model.scan(id, limit=100, bodies=False)
        if rows:
            chosen = tuple((rows[pick % len(rows)].number, name) for pick, name in picks)
            self.both([Batch((Change(id, self._expect(id, honest), self._next(id), attach=chosen),))])

    @rule(before=st.integers(0, 6))
    def collect(self, before: int) -> None:
        assert self.model.collect(before) == self.real.collect(before)

    @rule(pick=st.integers(0, 9))
    def changes(self, pick: int) -> None:
        """Ask both feeds with a position: usually the last one, sometimes an older one."""
        ours, theirs = self.positions[-1 if pick else len(self.positions) // 2]
        wanted, got = self.model.changes(ours), self.real.changes(theirs)
        assert got.everything == wanted.everything
        if not wanted.everything:
            assert (set(got.moved), set(got.gone)) == (set(wanted.moved), set(wanted.gone))
        self.positions.append((wanted.position, got.position))

    @rule()
    def maintain(self) -> None:
        assert self.real.maintain(10.0)

    @rule(full=st.booleans(), after=st.integers(-1, 20), limit=st.integers(1, 5))
    def loose(self, full: bool, after: int, limit: int) -> None:
        first = -1 if after < 0 else after * RUN
        answers = [b.loose(full=full, after=first, limit=limit) for b in (self.model, self.real)]
        assert answers[0] == answers[1]

    @rule(id=st.sampled_from(IDS), keys=st.lists(BYTES, max_size=4), gone=st.lists(BYTES, max_size=2), value=VALUES)
    def items(self, id: bytes, keys: list[bytes], gone: list[bytes], value: bytes) -> None:
        put = tuple(ItemRow(id, key, n, value) for n, key in enumerate(dict.fromkeys(keys)))
        unput = tuple(key for key in dict.fromkeys(gone) if key not in keys)
        change = Change(id, self._expect(id, True), self._next(id), put=put, unput=unput, untag=(Tag(value),))
        self.both([Batch((change,))])

    @rule(id=st.sampled_from(IDS), honest=st.booleans())
    def remove(self, id: bytes, honest: bool) -> None:
        if self._now(id) is not None:
            expect = self._expect(id, True) if honest else b"somebody else's!"
            self.both([Batch((Change(id, expect, None),))])

    @rule(ids=st.permutations(IDS), honest=st.lists(st.booleans(), max_size=2))
    def several(self, ids: list[bytes], honest: list[bool]) -> None:
        """Commit batches over several conversations, some of them invalid, at once."""
        tokens = [
            self._expect(id, True) or b"nobody's" if sure else b"another's"
            for id, sure in zip(ids, honest, strict=False)
        ]
        require = tuple(zip(ids, tokens, strict=False))
        first = Batch(tuple(Change(id, self._expect(id, True), self._next(id)) for id in ids[:2]), require)
        second = Batch(tuple(Change(id, self._expect(id, id != ids[2]), self._next(id)) for id in ids[1:3]))
        self.both([first, second])

    # -- reading

    @rule(number=st.integers(0, 40 * RUN))
    def path(self, number: int) -> None:
        assert list(self.model.path(number)) == list(self.real.path(number))

    @rule(
        id=st.sampled_from(IDS), after=st.none() | st.integers(-1, 99), newest=st.booleans(), limit=st.integers(1, 50)
    )
    def scan(self, id: bytes, after: int | None, newest: bool, limit: int) -> None:
        answers = [b.scan(id, after=after, newest_first=newest, limit=limit) for b in (self.model, self.real)]
        assert answers[0] == answers[1]

    @rule(
        kind=st.sampled_from(["chat", "state", "none"]),
        tags=st.lists(VALUES, max_size=3).map(tuple),
        alive=st.none() | st.integers(0, 5),
        expired=st.none() | st.integers(0, 5),
        after=st.none() | st.builds(Position, st.integers(0, 5), st.sampled_from(IDS)),
        limit=st.integers(1, 4),
        oldest=st.booleans(),
    )
    def page(
        self,
        kind: str,
        tags: tuple[bytes, ...],
        alive: int | None,
        expired: int | None,
        after: Position | None,
        limit: int,
        oldest: bool,
    ) -> None:
        where = Where(kind, tags, alive, expired)
        answers = [b.page(where, after, limit, oldest_first=oldest) for b in (self.model, self.real)]
        assert answers[0] == answers[1]
        assert self.model.count(where) == self.real.count(where)

    @rule(prefix=st.sampled_from(["", "0", "1", "10", "1f", "ff" * 16, "2"]), limit=st.integers(1, 4), key=KEYS)
    def lookup(self, prefix: str, limit: int, key: bytes | None) -> None:
        assert self.model.lookup(prefix=prefix, limit=limit) == self.real.lookup(prefix=prefix, limit=limit)
        if key is not None:
            assert self.model.lookup(key=("chat", key)) == self.real.lookup(key=("chat", key))
            for id in IDS:
                assert self.model.messages(keys=(id, [key])) == self.real.messages(keys=(id, [key]))

    @invariant()
    def they_cannot_be_told_apart(self) -> None:
        if not hasattr(self, "real"):
            return
        assert self.model.lookup(ids=IDS) == self.real.lookup(ids=IDS)
        assert self.model.kinds() == self.real.kinds()
        numbers = sorted(n for some in self.model.numbers() for n in some)
        assert numbers == sorted(n for some in self.real.numbers() for n in some)
        runs = sorted({number - number % RUN for number in numbers})
        assert self.model.packs(runs) == sorted(self.real.packs(runs), key=lambda pack: pack.first)
        assert self.model.edge() == self.real.edge()
        for id in IDS:
            assert self.model.items(id) == self.real.items(id)
            assert self.model.tags(id, limit=1000) == self.real.tags(id, limit=1000)
            assert self.model.attachments(id) == self.real.attachments(id)
            assert self.model.attached(id) == self.real.attached(id)
            for name in ATTACHMENTS:
                assert list(self.model.chunks(id, name)) == list(self.real.chunks(id, name))
        for value in (b"x", b"y\x00"):
            assert self.model.tagged(value) == self.real.tagged(value)
