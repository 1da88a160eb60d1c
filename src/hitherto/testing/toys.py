"""Stand-ins that make trouble on purpose.

`ToyCodec` is no encryption, but it binds content to its place as sealing does: a body that was moved, swapped,
re-parented or rolled back does not open, and its proof notices rows that were dropped. Code that works with
it works sealed.

`Contrary` wraps a backend and misbehaves within the contract: it returns `Stale` for no reason, and raises
`CommitUnknown` before it has applied a commit, or after, or when it is still under way. Code that works with it
works on a network.

`Queueing` is the backend in memory with the verb of a server: a batch whose row has moved is prepared again.
"""

import hashlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from msgspec.structs import replace

from .._sealing.codec import MODULUS, Envelope, Fingerprint, Place, StoredRow
from ..backend import (
    AttachmentRow,
    Backend,
    Batch,
    Changes,
    ConversationRow,
    DayCount,
    Disk,
    Info,
    ItemRow,
    Lifetime,
    MessageRow,
    Outcome,
    PackRow,
    Position,
    QueueingBackend,
    Rebase,
    Stale,
    Tag,
    Totals,
    UnpackedRun,
    Where,
)
from ..backends.memory import MemoryBackend
from ..errors import CommitUnknown, Damaged
from ..textindex import TextIndex

_FLIP = bytes(255 - n for n in range(256))


def _digest(key: bytes, *parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), key=key, digest_size=16).digest()


class ToyCodec:
    """Binds content to its place and hides it from `strings`; do not use it for anything else."""

    name = "toy"
    in_clear = False

    def __init__(self, secret: bytes = b"toy") -> None:
        self._secret = secret

    def new_data_key(self, conversation: bytes) -> bytes:
        return _digest(self._secret, "key", conversation)

    def envelope(self, row: ConversationRow) -> Envelope:
        if row.data_key != self.new_data_key(row.id):
            raise Damaged("the key of a conversation is not its own")
        envelope = ToyEnvelope(row.data_key)
        envelope.total(row)
        return envelope

    def first_envelope(self, row: ConversationRow) -> Envelope:
        return ToyEnvelope(row.data_key)

    def tag(self, field: str, value: str) -> bytes:
        return _digest(self._secret, field, value)

    def tags(self, field: str, value: str) -> list[bytes]:
        return [self.tag(field, value)]


class ToyEnvelope:
    """The toy codec's envelope of one conversation."""

    generation = 1
    proves = True
    settled = True

    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, place: Place, data: bytes) -> bytes:
        return _digest(self._key, place, data) + data.translate(_FLIP)

    def open(self, place: Place, data: bytes) -> bytes:
        content = data[16:].translate(_FLIP)
        if _digest(self._key, place, content) != data[:16]:
            raise Damaged(f"a stored {place[0]} does not belong where it lies")
        return content

    def close_message(self, row: MessageRow, data: bytes) -> bytes:
        return self.close(_place(row), data)

    def open_messages(self, rows: Sequence[MessageRow]) -> list[bytes]:
        return [self.open(_place(row), row.body or b"") for row in rows]

    def fingerprint(self, name: bytes | None = None) -> Fingerprint:  # noqa: ARG002  # there is one key
        return hashlib.blake2b(key=self._key, digest_size=16)

    def is_current_name(self, name: bytes) -> bool:
        return len(name) == 16

    def tags(self, field: str, value: str) -> list[bytes]:
        return [_digest(self._key, field, value)]

    def weigh(self, rows: Iterable[StoredRow]) -> int:
        return sum(self._weight(row) for row in rows)

    def total(self, row: ConversationRow) -> int:
        return int.from_bytes(self.open(("row", _columns(row)), row.proof), "big")

    def prove(self, row: ConversationRow, total: int) -> bytes:
        return self.close(("row", _columns(row)), (total % MODULUS).to_bytes(16, "big"))

    def _weight(self, row: StoredRow) -> int:
        if not isinstance(row, MessageRow):
            return int.from_bytes(_digest(self._key, row), "big")
        return int.from_bytes(_digest(self._key, _place(row), row.body), "big")


def _columns(row: ConversationRow) -> ConversationRow:
    return replace(row, proof=b"", held=bool(row.held))


def _place(row: MessageRow) -> Place:
    return (
        "message",
        row.conversation,
        row.number,
        row.parent,
        row.link,
        bool(row.main),
        row.seq,
        row.role,
        row.revision,
        row.created_at,
    )


class Contrary:
    """A wrapper that is as difficult as the contract allows."""

    def __init__(self, inner: Backend, *, seed: int = 0, trouble: float = 0.15) -> None:
        self.inner = inner
        self.troubles = 0
        self._random = random.Random(seed)
        self._trouble = trouble
        self._late: list[Batch] = []
        self._lock = threading.Lock()

    def _strikes(self) -> bool:
        struck = self._random.random() < self._trouble
        self.troubles += struck
        return struck

    @property
    def info(self) -> Info:
        return self.inner.info

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        return self._commit(batches, lambda some, _: self.inner.commit(some))

    def commit_queued(self, batches: Sequence[Batch], rebase: Rebase) -> list[Outcome]:
        def commit(some: Sequence[Batch], places: Sequence[int]) -> list[Outcome]:
            inner = cast("QueueingBackend", self.inner)
            return inner.commit_queued(some, lambda row, stale: rebase(row, [places[n] for n in stale]))

        return self._commit(batches, commit)

    def _commit(
        self, batches: Sequence[Batch], commit: Callable[[Sequence[Batch], Sequence[int]], list[Outcome]]
    ) -> list[Outcome]:
        """`commit` gets the batches without an invented outcome, and their places."""
        with self._lock:  # whoever commits next waits for what is under way
            late, self._late = self._late, []
            self.inner.commit(late)
        if not batches:
            return []
        cut = self._random.choice(("before", "during", "after")) if self._strikes() else None
        if cut == "before":
            raise CommitUnknown("the connection was lost before the commit")
        if cut == "during":
            self._late = list(batches)
            raise CommitUnknown("the connection was lost, and the commit is still under way")
        places = [n for n in range(len(batches)) if not self._strikes()]
        done = dict(zip(places, commit([batches[n] for n in places], places), strict=True))
        outcomes = [done[n] if n in done else self._stale(batch) for n, batch in enumerate(batches)]
        if cut == "after":
            raise CommitUnknown("the connection was lost after the commit")
        return outcomes

    def _stale(self, batch: Batch) -> Stale:
        conversation = batch.changes[0].conversation
        rows = self.inner.lookup(ids=[conversation])
        return Stale(conversation, rows[0] if rows else None)

    def lookup(
        self,
        *,
        ids: Sequence[bytes] = (),
        prefix: str | None = None,
        key: tuple[str, bytes] | None = None,
        limit: int = 10,
    ) -> list[ConversationRow]:
        return self.inner.lookup(ids=ids, prefix=prefix, key=key, limit=limit)

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        return self.inner.page(where, after, limit, oldest_first=oldest_first)

    def count(self, where: Where) -> int:
        return self.inner.count(where)

    def totals(self, kind: str) -> Totals:
        return self.inner.totals(kind)

    def lifetimes(self, kind: str) -> Iterator[list[Lifetime]]:
        return self.inner.lifetimes(kind)

    def said(self, kind: str, since: int, day: int) -> list[DayCount]:
        return self.inner.said(kind, since, day)

    def kinds(self) -> list[str]:
        return self.inner.kinds()

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        return self.inner.messages(numbers=numbers, keys=keys, bodies=bodies)

    def packs(self, runs: Sequence[int]) -> list[PackRow]:
        return self.inner.packs(runs)

    def loose(self, *, full: bool, after: int = -1, limit: int) -> list[UnpackedRun]:
        return self.inner.loose(full=full, after=after, limit=limit)

    def path(self, number: int) -> Iterator[list[MessageRow] | PackRow]:
        return self.inner.path(number)

    def root(self, number: int) -> int | None:
        return self.inner.root(number)

    def scan(
        self,
        conversation: bytes,
        *,
        after: int | None = None,
        newest_first: bool = False,
        limit: int,
        bodies: bool = True,
    ) -> list[MessageRow]:
        return self.inner.scan(conversation, after=after, newest_first=newest_first, limit=limit, bodies=bodies)

    def edge(self) -> int:
        return self.inner.edge()

    def numbers(self) -> Iterator[list[int]]:
        return self.inner.numbers()

    def tagged(self, value: bytes) -> list[tuple[bytes, int | None]]:
        return self.inner.tagged(value)

    def tags(self, conversation: bytes, *, after: Tag | None = None, limit: int) -> list[Tag]:
        return self.inner.tags(conversation, after=after, limit=limit)

    def items(
        self,
        conversation: bytes,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[ItemRow]:
        return self.inner.items(conversation, prefix, after=after, reverse=reverse, limit=limit)

    def stage(
        self, conversation: bytes, attachment: bytes, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        self.inner.stage(conversation, attachment, start, chunks, last=last, at=at)

    def chunks(self, conversation: bytes, attachment: bytes, start: int = 0) -> Iterator[bytes]:
        return self.inner.chunks(conversation, attachment, start)

    def attachments(self, conversation: bytes, names: Sequence[bytes] | None = None) -> list[AttachmentRow]:
        return self.inner.attachments(conversation, names)

    def attached(self, conversation: bytes) -> int:
        return self.inner.attached(conversation)

    def unstage(self, conversation: bytes, names: Sequence[bytes]) -> None:
        self.inner.unstage(conversation, names)

    def collect(self, before: int) -> int:
        return self.inner.collect(before)

    def changes(self, since: bytes | None) -> Changes:
        return self.inner.changes(since)

    def text_index(self, *, create: bool) -> TextIndex | None:
        return self.inner.text_index(create=create)

    def maintain(self, seconds: float) -> bool:
        return self.inner.maintain(seconds)

    def backup(self, path: str) -> None:
        self.inner.backup(path)

    def check(self) -> list[str]:
        return self.inner.check()

    def scrub(self) -> bool:
        return self.inner.scrub()

    def is_scrubbed(self) -> bool:
        return self.inner.is_scrubbed()

    def size(self) -> int:
        return self.inner.size()

    def used(self) -> int:
        return self.inner.used()

    def disk(self) -> Disk | None:
        return self.inner.disk()

    def close(self, *, untouched: bool = False) -> None:
        self.inner.close(untouched=untouched)


class Queueing(MemoryBackend):
    """The backend in memory with `commit_queued`. Its lock is the queue: no other writer commits meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, can_queue=True)

    def commit_queued(self, batches: Sequence[Batch], rebase: Rebase) -> list[Outcome]:
        made = list(batches)
        with self._lock:
            for row in self.lookup(ids=sorted({change.conversation for one in batches for change in one.changes})):
                stale = _late(row, made)
                for place, batch in zip(stale, rebase(row, stale) if stale else (), strict=True):
                    made[place] = batch or made[place]
            return self.commit(made)


def _late(row: ConversationRow, batches: Sequence[Batch]) -> list[int]:
    """Return the places of the batches of this conversation, from the first one that expects another token."""
    places = [n for n, batch in enumerate(batches) if [change.conversation for change in batch.changes] == [row.id]]
    expected: bytes | None = row.token
    for at, place in enumerate(places):
        (change,) = batches[place].changes
        if change.expect != expected or change.row is None:
            return [] if change.expect is None or change.row is None else places[at:]
        expected = change.row.token
    return []
