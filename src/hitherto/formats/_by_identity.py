"""Imports conversations whose messages have the same ids in every file: those of other programs.

Programs copy. A fork repeats the session that it came from, a resumed session repeats itself, an export repeats all
that earlier exports had. So a message is recognised by its id in the file, never by the file, and is stored once. A
conversation is found by any of its ids (`_marks`), and its messages by an index beside them (`_native_index`). A copied
prefix becomes the place where a branch begins, whichever file comes first.

A conversation may come in parts, each with the messages after the ones before. So a file of gigabytes needs no more
memory than a part and the index.

Deleted and purged messages stay away: the index, the marks and the erasure ledger outlive them. A message below a
deleted one goes below the nearest one that is left.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .._engine.bodies import Meta
from .._engine.compression import compress, decompress
from .._engine.creating import More, create
from .._engine.editing import amend
from .._engine.items import Item, exchange, rows, scan
from .._engine.setups import check_text, open_setups
from .._engine.state import (
    ConversationState,
    EncodedMessage,
    Placement,
    build_description_change,
    check_size,
    encode_message,
)
from .._engine.steps import finish
from .._erasure import ledger
from .._sealing.codec import next_row
from ..backend import Change, ConversationRow, ItemRow
from ..conversation import Conversation, handle_on
from ..dialects._lossless import as_bytes, checked, keepable
from ..errors import Busy, InvalidMessage, NotFound, PayloadTooLarge
from ..ids import parse_conversation_id, show_conversation_id
from ..model import Message, Saved, Usage
from ..snapshots import Unreadable
from ._extract import extract
from ._importing import (
    WITHOUT_KEY,
    Again,
    conversation_id,
    describe,
    equip,
    is_key_taken,
    mark_origin,
    setup_numbers,
)
from ._marks import Mark, Marks
from ._native_index import RECORD, NativeIndex, index_item, read_index
from ._places import find as find_place
from ._places import move_waiting, pairs_of
from ._types import PortableConversation, PortableMessage, SourceRecord

if TYPE_CHECKING:
    from ..store import Store

RECORDS = "native/"  # the items with records that are no messages
_TRIES = 100
_ITEM_BYTES = 1 << 20  # of records in one item, before they are compressed


class Merged(Struct, frozen=True, kw_only=True):
    """The result of importing one conversation, or a part of it."""

    id: str
    conversation: Conversation | None = None  # None: nothing was written
    is_new: bool = False
    added: int = 0  # messages
    fresh: frozenset[str] = frozenset()  # their ids in the file
    usage: Usage = Usage()  # of these messages
    known: int = 0  # messages that were there, or were deleted here
    amended: int = 0  # messages that had grown
    is_purged: bool = False  # it was purged or deleted here, and stays away
    records: Counter[str] = Counter()  # new ones of unknown types
    bookkeeping: Counter[str] = Counter()  # new ones of known types
    notes: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


class IdentityImport:
    """One import of conversations of one program into a store."""

    def __init__(self, store: "Store", format: str, *, dry: bool = False, even_purged: bool = False) -> None:
        self._store, self._engine, self._format = store, store.engine, format
        self._dry, self._even_purged = dry, even_purged
        self._marks = Marks(store, format)
        self._last: tuple[bytes, tuple[int, int], NativeIndex] | None = None  # of the conversation used last
        self._planned: dict[bytes, NativeIndex] = {}  # of a dry run: what would be stored
        self._planned_names: dict[str, bytes] = {}  # and under which ids

    def take(self, talk: PortableConversation) -> Merged:
        """Import a conversation, or the next part of it."""
        talk = _clean(self._store, talk)
        if self._dry:
            return self._plan(talk)
        for _ in range(_TRIES):
            names = list(dict.fromkeys((talk.id, *talk.aliases)))
            known = self._marks.find(names)
            id, is_there, is_purged, elsewhere = self._resolve(talk, names, known)
            if is_purged:
                return Merged(id=show_conversation_id(id), is_purged=True)
            if not self._marks.claim([name for name in names if name not in elsewhere], id, known, talk.absent):
                continue
            try:
                merged = self._grow(talk, id) if is_there else self._create(talk, id)
                return self._attach(merged, id) if talk.places else merged
            except (NotFound, Again):
                self._last = None
        raise Busy("a conversation changes faster than it can be imported")

    def adopt(self, talk: Conversation, names: Sequence[str], records: Sequence[tuple[str, int]]) -> None:
        """Note that a file repeats messages of a conversation: the ids of its records, and the numbers of the messages.
        What the file has more then comes in below them."""
        for _ in range(_TRIES):
            state = talk.state
            index = self._index(state)
            pairs = [(index.hash(id), number) for id, number in records if index.get(index.hash(id)) is None]
            self._add_to_index(state, pairs)
            self._last = None
            known = self._marks.find(names)
            free = [name for name in names if name not in known]  # others lead to where they came from
            if self._marks.claim(free, state.id, known):
                return
        raise Busy("the marks of imports change faster than they can be written")

    # -- which conversation

    def _resolve(
        self, talk: PortableConversation, names: Sequence[str], known: dict[str, Mark]
    ) -> tuple[bytes, bool, bool, frozenset[str]]:
        """Return the id of the conversation here, whether it is there, whether it was purged, and the names that lead
        to others that are there."""
        own = parse_conversation_id(conversation_id(talk.id, self._format))
        leads = {name: known[name].conversation if name in known else own for name in names}
        there = {row.id for row in self._engine.backend.lookup(ids=list(dict.fromkeys(leads.values())))}
        references = {name for name in names if name in known and known[name].is_reference}
        mine = own if talk.id in references else leads[talk.id]
        if mine not in there:
            purged = ledger.find(self._engine, [mine, *leads.values()])
            refused = {} if self._even_purged else purged
            if mine in refused:  # even if a file that it names came since
                return own, False, True, frozenset()
            mine = next((id for id in leads.values() if id in there), mine)
        if mine in there:
            return mine, True, False, frozenset(name for name, id in leads.items() if id != mine and id in there)
        if any(id in refused for name, id in leads.items() if name not in references):
            return own, False, True, frozenset()
        marked = (name for name in names if name in known and (name not in references or leads[name] not in purged))
        return next((leads[name] for name in marked), own), False, False, frozenset()

    # -- writing

    def _create(self, talk: PortableConversation, id: bytes) -> Merged:
        engine = self._engine
        index = NativeIndex(engine.workspace.meta.seed)
        batch = _Batch(self._store, talk, index, self._format)
        pairs: list[tuple[int, int]] = []

        def make(state: ConversationState) -> list[EncodedMessage]:
            return batch.drafts(state, {}, min(meta.created or engine.clock(), engine.clock()))

        def items(state: ConversationState, messages: list[Saved]) -> Iterator[ItemRow]:
            pairs[:] = batch.pairs([engine.message_ids.number(m.id) for m in messages])
            yield index_item(state.envelope, state.id, state.row.version, pairs)

        meta, setups = describe(self._store, talk)
        meta = replace(meta, imported=engine.clock(), imported_title=meta.title)
        if is_key_taken(self._store, talk):
            meta = replace(meta, key=None)
            batch.notes.append(WITHOUT_KEY)
        if show_conversation_id(id) != talk.id:
            meta.metadata.setdefault("imported_id", talk.id)
        more = More(items=items, user_items=[Item(data, 0, name) for name, data in batch.record_items(0)])
        made = create(engine, id, meta, setups, make, replace(more, head_at=batch.head_at()), kind=talk.kind)
        if made is None:
            raise Again
        index.add(pairs)
        self._remember(made[0], index)
        return batch.merged(handle_on(made[0]), is_new=True)

    def _grow(self, talk: PortableConversation, id: bytes) -> Merged:
        engine, handle = self._engine, self._store.conversation(show_conversation_id(id))
        state = handle.state
        index = self._index(state)
        batch = _Batch(self._store, talk, index, self._format)
        if batch.is_empty:
            return batch.merged(handle) if self._retitle(state, talk, touched=False) else batch.merged(None)
        setups = tuple(open_setups(state))
        light = PortableConversation(id="", setups=setups, setup=state.meta.setup)
        equip(self._store, talk, batch.new, light, handle)  # raises Again if something was written
        batch.amend_grown(state)
        if batch.amended:
            self._last = None
            index = self._index(state)
        stamp = _stamp(state.row)
        drafts = batch.drafts(state, setup_numbers(talk, light), 0)
        pairs: list[tuple[int, int]] = []

        def prepare(drafts: Sequence[EncodedMessage], row: ConversationRow) -> tuple[Change | None, list[Saved]]:
            row = state.read_stored_row()
            if _stamp(row) != stamp:
                raise Again
            change, messages = state.prepare(row, drafts, Placement(row.head), head_at=batch.head_at(), is_packed=True)
            change = change or Change(row.id, row.token, next_row(state.envelope, row))
            after = change.row or row
            version = after.version
            found = [Item(data, 0, name) for name, data in batch.record_items(version)]
            own = tuple(rows(state.envelope, after, found))
            if own:
                after = exchange(state.envelope, after, own, (), sum(len(item.value) for item in found))
            pairs[:] = batch.pairs([engine.message_ids.number(m.id) for m in messages])
            put = index_item(state.envelope, state.id, version, pairs)
            return replace(change, row=after, put=(*change.put, *own, put)), messages

        steps = state.write_steps(drafts, prepare, may_queue=False)  # it compares with the stored row
        finish(engine.committer, steps)
        index.add(pairs)
        self._remember(state, index)
        self._retitle(state, talk, touched=True)
        return batch.merged(self._store.conversation(show_conversation_id(id)))

    def _attach(self, merged: Merged, id: bytes) -> Merged:
        """Move trees that waited for a message which is there now."""
        state = self._store.conversation(show_conversation_id(id)).state
        for _ in range(_TRIES):
            index = self._index(state)
            try:
                moved, stuck = move_waiting(state, index)
            except NotFound:
                self._last = None
                continue
            if moved:
                self._last = None
            return replace(merged, notes=(*merged.notes, *_moving_notes(moved, stuck)))
        raise Busy("a conversation changes faster than its trees can be moved")

    def _retitle(self, state: ConversationState, talk: PortableConversation, *, touched: bool) -> bool:
        """Note the time of the import, and take over a newer title, unless the conversation got one of its own here.
        Returns True if the title changed."""
        title = check_text(talk.title, "the title", self._engine.max_write_bytes)
        now, changed = self._engine.clock(), False

        def fields(meta: Meta) -> dict[str, object]:
            found: dict[str, object] = {}
            if title and title != meta.imported_title:
                found["imported_title"] = title
                if meta.title in ("", meta.imported_title):
                    found["title"] = title
            if found or (touched and now - meta.imported > _DAY_US):
                found["imported"] = now
            return found

        def make(row: ConversationRow) -> Change | None:
            nonlocal changed
            state.adopt_row(row)
            found = fields(state.meta)
            changed = "title" in found
            return build_description_change(state, row, **found) if found else None

        if fields(state.meta):
            self._engine.change(state.id, make)
        return changed

    # -- the index

    def _index(self, state: ConversationState) -> NativeIndex:
        """Return the index of a conversation as it is stored now."""
        row = state.read_stored_row()
        if self._last is not None and self._last[:2] == (state.id, _stamp(row)):
            return self._last[2]
        index = read_index(self._engine, state)
        if index is None:
            index = NativeIndex(self._engine.workspace.meta.seed)
            found = extract(self._engine, state.id)
            pairs = [(index.hash(id), number) for id, number in found.numbers.items()]
            index.add(pairs)
            if not self._dry:
                self._add_to_index(state, pairs)
        self._last = (state.id, _stamp(row), index)
        return index

    def _add_to_index(self, state: ConversationState, pairs: list[tuple[int, int]]) -> None:
        """Add entries to the stored index of a conversation."""

        def make(row: ConversationRow) -> Change:
            envelope = state.check(row)
            after = next_row(envelope, row)
            item = index_item(envelope, state.id, after.version, pairs)
            return Change(row.id, row.token, after, put=(item,))

        if pairs:
            self._engine.change(state.id, make)

    def _remember(self, state: ConversationState, index: NativeIndex) -> None:
        self._last = (state.id, _stamp(state.row), index)

    # -- without writing

    def _plan(self, talk: PortableConversation) -> Merged:
        names = list(dict.fromkeys((talk.id, *talk.aliases)))
        id, is_there, is_purged, _ = self._resolve(talk, names, self._marks.find(names))
        if not is_there:
            id = next((self._planned_names[name] for name in names if name in self._planned_names), id)
        self._planned_names |= dict.fromkeys(names, id)
        name = show_conversation_id(id)
        if is_purged:
            return Merged(id=name, is_purged=True)
        is_new = not is_there and id not in self._planned
        index = self._planned.get(id)
        if index is None:
            index = NativeIndex(self._engine.workspace.meta.seed)
            if is_there:
                index = self._index(self._store.conversation(name).state)
            self._planned[id] = index
        batch = _Batch(self._store, talk, index, self._format)
        index.add(batch.pairs([0] * len(batch.new)))
        return batch.merged(None, id=name, is_new=is_new, amended=len(batch.grown))


_DAY_US = 86_400_000_000


def _moving_notes(moved: int, stuck: int) -> Iterator[str]:
    if moved:
        yield f"{moved:,} messages moved below the one that they continue, which came only now; their ids are new"
    if stuck:
        yield f"{stuck:,} trees could not be moved below the message that they continue, and stay beside it"


def _stamp(row: ConversationRow) -> tuple[int, int]:
    """Return the state that an index belongs to: it changes with every message that comes, changes or goes."""
    return row.next_seq, row.rewrites


class _Batch:
    """The new messages and records of one part."""

    def __init__(self, store: "Store", talk: PortableConversation, index: NativeIndex, format: str) -> None:
        self._store, self._engine, self._talk, self._index, self._format = store, store.engine, talk, index, format
        self._hashes = {id: index.hash(id) for said in talk.messages for id in (said.id, *said.also)}
        self.new: tuple[PortableMessage, ...] = ()
        self.grown: list[PortableMessage] = []
        self.known = self.amended = 0
        self.notes: list[str] = []
        self._orphans = 0
        self.unreadable: list[Unreadable] = []
        self._parents: dict[str, str | None] = {said.id: said.parent for said in talk.messages}
        self._parents |= {id: said.id for said in talk.messages for id in said.also}  # first look at the message
        self._sort()
        self._records = [(hash, one) for hash, one in self._hashed_records() if index.get(hash) is None]

    def _sort(self) -> None:
        new: list[PortableMessage] = []
        seen: set[str] = set()
        for said in self._talk.messages:
            if said.id in seen:
                self.notes.append(f"message {said.id:.40} is there twice, and was taken once")
                continue
            seen.add(said.id)
            number = self._index.get(self._hashes[said.id])
            if number is None or number == RECORD:
                try:
                    message = checked(said.message)
                    new.append(said if message is said.message else replace(said, message=message))
                except InvalidMessage as error:
                    self.unreadable.append(Unreadable(f"message {said.id:.40}", str(error)))
                continue
            self.known += 1
            if any(self._index.get(self._hashes[id]) is None for id in said.also):
                self.grown.append(said)
        self.new = tuple(_by_time(new))

    def _hashed_records(self) -> Iterator[tuple[int, SourceRecord]]:
        seen: set[int] = set()
        for one in self._talk.records:
            name = one.id if one.id is not None else msgspec.json.encode(one.data).decode()
            hash = self._index.hash(f"record {one.type} {name}")
            if hash not in seen:
                seen.add(hash)
                yield hash, one

    @property
    def is_empty(self) -> bool:
        return not self.new and not self._records and not self.grown

    def amend_grown(self, state: ConversationState) -> None:
        """Bring messages up to date that were imported while they were still being written."""
        for said in self.grown:
            number = self._index.get(self._hashes[said.id])
            if number is None or not self._engine.backend.messages(numbers=[number], bodies=False):
                continue  # deleted here
            amend(state, number, self._message(replace(said, message=keepable(said.message)), said.created_us))
            self.amended += 1

    def drafts(self, state: ConversationState, setups: dict[int, int], earliest: int) -> list[EncodedMessage]:
        """Encode the new messages, each at its place."""
        setups = setups or {n: n for n in range(1, len(self._talk.setups) + 1)}
        self._orphans = 0
        places: dict[str, tuple[int, bool]] = {}  # and whether it is on the main flow
        drafts: list[EncodedMessage] = []
        at, now = earliest or state.row.active_at, self._engine.clock()
        alive = self._living()
        for said in self.new:
            at = min(max(said.created_us, at), now)
            above = self._place(said.parent, places, alive) or self._continued(said, alive)
            linked = None if above is not None else self._place(said.link, places, alive)
            self._orphans += said.parent is not None and above is None
            main = said.main and (above is None or above[1])
            spot = Placement(None if above is None else above[0], main, None if linked is None else linked[0])
            message = self._message(said, at)
            drafts.append(self._encode(state, message, setups.get(said.setup, 0), spot, said.origin, at))
            for id in (said.id, *said.also):
                places[id] = ~(len(drafts) - 1), main
        return drafts

    def _message(self, said: PortableMessage, at: int) -> Message:
        return mark_origin(said, self._format, at)

    def _encode(
        self, state: ConversationState, message: Message, setup: int, spot: Placement, origin: str | None, at: int
    ) -> EncodedMessage:
        draft = encode_message(state, message, setup, spot, origin, at, is_checked=True)
        try:
            check_size([draft], self._engine.max_write_bytes)
        except PayloadTooLarge:  # as bytes it has an attachment's limit
            draft = encode_message(state, as_bytes(message), setup, spot, origin, at)
            check_size([draft], self._engine.max_write_bytes)
        return draft

    def _living(self) -> dict[int, bool]:
        """Return the stored messages that new ones refer to, as far as they were not deleted: their numbers, and
        whether they are on the main flow."""
        coming = {id for said in self.new for id in (said.id, *said.also)}
        wanted: set[int] = set()
        seen: set[str] = set()
        for said in self.new:
            if said.continues is not None and (number := find_place(self._index, *said.continues)) is not None:
                wanted.add(number)
            for start in (said.parent, said.link):
                at = start
                while at is not None and at not in coming and at not in seen:
                    seen.add(at)
                    number = self._index.get(self._index.hash(at))
                    if number is not None and number != RECORD:
                        wanted.add(number)
                    at = self._parents.get(at)
        found: dict[int, bool] = {}
        ordered = sorted(wanted)
        for first in range(0, len(ordered), 500):
            rows = self._engine.backend.messages(numbers=ordered[first : first + 500], bodies=False)
            found |= {row.number: bool(row.main) for row in rows}
        return found

    def _place(
        self, id: str | None, places: dict[str, tuple[int, bool]], alive: dict[int, bool]
    ) -> tuple[int, bool] | None:
        """Return the number of a message and its flow, or of the nearest one above it that is left; None if there is
        none."""
        seen: set[str] = set()
        while id is not None and id not in seen:
            seen.add(id)
            if id in places:
                return places[id]
            number = self._index.get(self._index.hash(id))
            if number is not None and number in alive:
                return number, alive[number]
            id = self._parents.get(id)
        return None

    def _continued(self, said: PortableMessage, alive: dict[int, bool]) -> tuple[int, bool] | None:
        """Return the message that a root goes on from, and its flow, if its file was imported before."""
        number = None if said.continues is None else find_place(self._index, *said.continues)
        return (number, alive[number]) if number in alive else None

    def head_at(self) -> int | None:
        """Return the place of the head among the new messages, if the file names one of them."""
        head = self._talk.head
        return next(
            (n for n, said in enumerate(self.new) if said.main and (said.id == head or head in said.also)), None
        )

    def pairs(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the entries of the index for what is new, whose messages got these numbers."""
        found = [
            (self._hashes[id], number)
            for said, number in zip(self.new, numbers, strict=True)
            for id in (said.id, *said.also)
        ]
        for said in self.grown:
            number = self._index.get(self._hashes[said.id])
            found += [(self._hashes[id], number) for id in said.also if number is not None]
        coming = dict(found)

        def number_of(id: str) -> int | None:
            hash = self._index.hash(id)
            return coming.get(hash, self._index.get(hash))

        places = () if self.is_empty else pairs_of(self._talk, self._index, number_of)
        return [*found, *((hash, RECORD) for hash, _ in self._records), *places]

    def record_items(self, version: int) -> Iterator[tuple[str, bytes]]:
        """Yield the new records as items: lines of JSON, compressed."""
        lines: list[bytes] = []
        size = count = 0
        for n, (_, one) in enumerate(self._records):
            line = msgspec.json.encode({"type": one.type, "data": one.data})
            lines.append(line)
            size += len(line)
            if size >= _ITEM_BYTES or n == len(self._records) - 1:
                yield f"{RECORDS}{version:016x}/{count:04d}", compress(b"\n".join(lines), level=3)
                lines, size, count = [], 0, count + 1

    def _orphan_notes(self) -> Iterator[str]:
        if self._orphans:
            yield f"{self._orphans:,} messages answer one that is missing, and begin trees of their own"

    def merged(
        self,
        conversation: Conversation | None,
        *,
        id: str | None = None,
        is_new: bool = False,
        amended: int | None = None,
    ) -> Merged:
        """Return the report."""
        records, bookkeeping = Counter[str](), Counter[str]()
        for _, one in self._records:
            (bookkeeping if one.known else records)[one.type] += 1
        return Merged(
            id=id or ("" if conversation is None else conversation.id),
            conversation=conversation,
            is_new=is_new,
            added=len(self.new),
            fresh=frozenset(said.id for said in self.new),
            usage=sum((said.message.usage for said in self.new if said.message.usage is not None), Usage()),
            known=self.known,
            amended=self.amended if amended is None else amended,
            records=records,
            bookkeeping=bookkeeping,
            notes=(*self.notes, *self._orphan_notes()),
            unreadable=tuple(self.unreadable),
        )


def _by_time(messages: Sequence[PortableMessage]) -> Iterator[PortableMessage]:
    """Yield messages by time, and parents before their children: along a conversation, stored times never fall."""
    ids = {said.id: n for n, said in enumerate(messages)} | {
        id: n for n, said in enumerate(messages) for id in said.also
    }
    waiting: dict[int, list[int]] = {}
    ready: list[tuple[int, int]] = []
    missing = [0] * len(messages)
    times = [0] * len(messages)
    last = 0
    for n, said in enumerate(messages):
        last = times[n] = said.created_us or last
        above = {ids[id] for id in (said.parent, said.link) if id in ids and ids[id] != n}
        missing[n] = len(above)
        for one in above:
            waiting.setdefault(one, []).append(n)
        if not above:
            heappush(ready, (times[n], n))
    done = [False] * len(messages)
    yield from _drain(messages, ready, waiting, missing, times, done)
    for n, said in enumerate(messages):
        if not done[n]:  # a circle of parents, which is cut here
            done[n] = True
            yield replace(said, parent=None, link=None)
            _release(n, times[n], ready, waiting, missing, times)
            yield from _drain(messages, ready, waiting, missing, times, done)


def _drain(
    messages: Sequence[PortableMessage],
    ready: list[tuple[int, int]],
    waiting: dict[int, list[int]],
    missing: list[int],
    times: list[int],
    done: list[bool],
) -> Iterator[PortableMessage]:
    """Yield what is ready, and what becomes ready by that."""
    while ready:
        at, n = heappop(ready)
        if not done[n]:
            done[n] = True
            yield messages[n]
            _release(n, at, ready, waiting, missing, times)


def _release(
    n: int,
    at: int,
    ready: list[tuple[int, int]],
    waiting: dict[int, list[int]],
    missing: list[int],
    times: list[int],
) -> None:
    for child in waiting.get(n, ()):
        missing[child] -= 1
        times[child] = max(times[child], at)
        if not missing[child]:
            heappush(ready, (times[child], child))


def _clean(store: "Store", talk: PortableConversation) -> PortableConversation:
    """Apply the store's redactor to what is not a message: messages are cleaned when they are encoded."""
    redactor = store.engine.redactor
    if redactor is None:
        return talk
    return replace(
        talk,
        title=redactor.text(talk.title),
        metadata=redactor.strings(dict(talk.metadata)),
        setups=tuple(redactor.setup(setup) for setup in talk.setups),
        records=tuple(replace(one, data=redactor.value(one.data)) for one in talk.records),
    )


def read_records(talk: Conversation) -> Iterator[tuple[str, object]]:
    """Yield what a conversation's files held beside its messages: the type of each record, and its JSON."""
    for item in scan(talk.state, RECORDS):
        for line in decompress(item.value).split(b"\n"):
            found = msgspec.json.decode(line)
            yield found["type"], found["data"]
