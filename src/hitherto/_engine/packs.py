"""Packs: reading through them, making them, and changing what they hold.

Behind the append path the messages of a run are packed: one body in the place of 32, squeezed together. Nothing else
changes. Headers stay per message, so trees, listings and deletes work as before; what was said is read through the
pack. Whatever changes a packed message writes its pack anew, in the same commit.

Rows and packs are read one after the other, and others write meanwhile: a row that says "packed" may find its pack
gone on, or gone. Then both are read again; only what disagrees and stands still is damage.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from .._sealing.codec import Envelope, next_row
from ..backend import Change, ConversationRow, ItemRow, MessageRow, PackRow
from ..errors import Damaged, NotFound
from ..events import warn
from ..ids import RUN
from . import revisions
from .bodies import PackedRaw, close_pack, open_pack_raw, packed

if TYPE_CHECKING:
    from ..store import Store
    from .state import Desk

_LARGEST = 1 << 20  # bytes of content in a pack: reading one message of it takes a few milliseconds at most
_KEPT = 8  # opened packs that a reader remembers
_LOOKS = 8  # how often we look again at what changes while we read


def run_of(number: int) -> int:
    """The first number of the run that a message is in."""
    return number - number % RUN


class Reader:
    """Reads the content of messages, packed or not. Remembers the packs it opened last: make one for each call."""

    def __init__(self, store: "Store") -> None:
        self._backend = store.backend
        self._names = store._names
        self._opened: dict[int, tuple[PackRow, tuple[PackedRaw, ...]]] = {}
        self.desk: Desk | None = None  # of the conversation that was read last, so that it stays

    def content(self, envelope: Envelope, row: MessageRow) -> tuple[MessageRow, bytes]:
        """The content of a message; and its row, read again if it had changed."""
        for _ in range(_LOOKS):
            if row.body is not None:
                return row, envelope.open_messages((row,))[0]
            found = self._packed(envelope, row)
            if found is not None:
                return row, bytes(found.body)
            self._opened.pop(run_of(row.number), None)
            again = self._backend.messages(numbers=[row.number])
            if not again:
                raise NotFound("message", [self._names.id(row.number)])
            if again[0].seq != row.seq:  # an index led to another one
                break
            row = again[0]
        raise Damaged(f"message {self._names.id(row.number)} and the pack that holds it do not agree")

    def _packed(self, envelope: Envelope, row: MessageRow) -> PackedRaw | None:
        """The message in its pack, if row and pack agree."""
        first = run_of(row.number)
        if first not in self._opened:
            packs = self._backend.packs([first])
            if not packs:
                return None
            if len(self._opened) >= _KEPT:
                del self._opened[next(iter(self._opened))]
            self._opened[first] = packs[0], open_pack_raw(envelope, packs[0])
        pack, messages = self._opened[first]
        place = row.number - first
        if pack.conversation != row.conversation or place >= len(messages):
            return None
        parent = pack.parent if place == 0 else row.number - 1
        found = messages[place]
        same = _header(packed(row, b"")) == _header(found) and row.parent == parent and row.main in (0, 1)
        return found if same else None


def _header(message: PackedRaw) -> PackedRaw:
    return replace(message, body=b"")


# -- making packs


class _Built(Struct, frozen=True):
    """A pack that is ready, and what it replaces."""

    pack: PackRow
    old: tuple[PackRow, ...]
    rows: tuple[MessageRow, ...]  # that had bodies of their own


def pack(store: "Store", conversation: bytes, runs: Sequence[int]) -> int:
    """Pack these runs of a conversation; how many were."""
    with suppress(NotFound, Damaged):  # purged meanwhile; or it is in quarantine now
        for _ in range(_LOOKS):
            desk = store._desk(store._fresh_row(conversation))
            with desk.shaping:
                once = _Once(store, desk)  # before we read: what is changed or packed later will show in it
                if not once.envelope.settled:  # whoever re-encrypts it goes through its messages as they are
                    return 0
                built = [found for run in runs if (found := _attempt(store, once, run)) is not None]
                if not built:
                    return 0
                once.built = built
                if desk.commit(once):
                    return len(built)
    return 0  # or others write without a pause: another time


class _Once:
    """Prepares the change that packs. If it comes to be prepared again, somebody was faster, or it is not known whether
    it was kept: then what was read proves nothing any more, and nothing is written."""

    def __init__(self, store: "Store", desk: "Desk") -> None:
        self._store, self._desk = store, desk
        with desk.lock:  # of one moment
            self.row, self.envelope = desk.row, desk.envelope
            self._seen = _shaped(desk.row), desk.packings
        self._used = False
        self.built: Sequence[_Built] = ()

    def __call__(self, row: ConversationRow) -> tuple[Change | None, bool]:
        if self._used or (_shaped(row), self._desk.packings) != self._seen:
            return None, False
        if row.token != self.row.token and self._packed_by_others():
            return None, False
        self._used = True
        self._desk.packings += 1
        came: list[MessageRow | PackRow] = []
        went: list[MessageRow | PackRow] = []
        for built in self.built:
            came += [built.pack, *(replace(m, body=None) for m in built.rows)]
            went += [*built.old, *built.rows]
        # The version stays: nobody who reads can tell that anything happened.
        after = next_row(self.envelope, row, came, went, version=row.version)
        return Change(row.id, row.token, after, pack=tuple(built.pack for built in self.built)), True

    def _packed_by_others(self) -> bool:
        """Are the packs of these runs other ones than when we read them?"""
        now = {pack.first: pack for pack in self._store.backend.packs([built.pack.first for built in self.built])}
        return now != {pack.first: pack for built in self.built for pack in built.old}


def _shaped(row: ConversationRow) -> tuple[object, ...]:
    """While this stands still, the messages are the same, and under the same key. The generation has to be looked at as
    well as the keys: a conversation that was sealed and is plain again has no keys, as before."""
    return row.data_key, row.generation, row.rewrites


def _attempt(store: "Store", once: _Once, run: int) -> _Built | None:
    """The pack of a run, or None if there is nothing to do: a full or damaged one need not be looked at again."""
    try:
        built = _build(store, once, run)
    except Damaged as error:
        if store._fresh_row(once.row.id).token != once.row.token:
            return None  # its key is another one by now, say: another time
        warn(f"a run cannot be packed, verify() tells more: {error}")
        store._settled.add(run)
        return None
    if built is None and store.backend.messages(numbers=[run + RUN - 1], bodies=False):  # full: nothing more can come
        store._settled.add(run)
    return built


def _build(store: "Store", once: _Once, run: int) -> _Built | None:
    """The pack of a run as it is now: its messages from the first on, as far as they are not too large together."""
    rows = sorted(store.backend.messages(numbers=range(run, run + RUN)), key=lambda m: m.number)
    if not rows or rows[0].number != run or rows[0].conversation != once.row.id:
        return None
    old = tuple(store.backend.packs([run]))  # before their content: a later one shows when it is committed
    reader = Reader(store)
    messages: list[PackedRaw] = []
    loose: list[MessageRow] = []
    total = 0
    for n, m in enumerate(rows):
        total += m.size
        if m.number != run + n or (total > _LARGEST and messages):
            break
        row, data = reader.content(once.envelope, m)
        if row.body is not None:
            loose.append(row)
        messages.append(packed(row, data))
    if not loose:
        return None
    like = PackRow(run, once.row.id, rows[0].parent, 0, b"")
    return _Built(close_pack(once.envelope, like, messages), old, tuple(loose))


# -- changing what is packed


class Rewrite:
    """Collects what happens to messages in one commit, and writes the packs they are in anew."""

    def __init__(self, store: "Store", row: ConversationRow) -> None:
        self._store = store
        self._row = row
        self._envelope = store._codec.envelope(row)
        self._dropped: list[MessageRow] = []
        self._amended: dict[int, tuple[MessageRow, MessageRow, bytes]] = {}

    def drop(self, rows: Iterable[MessageRow]) -> None:
        self._dropped += rows

    def amend(self, old: MessageRow, data: bytes, **fields: object) -> None:
        """Replace a message: `data` is its content now, and these fields of its row are set."""
        new = replace(old, revision=old.revision + 1, size=len(data), body=None, **fields)
        if old.body is not None:
            new = replace(new, body=self._envelope.close_message(new, data))
        self._amended[old.number] = (old, new, data)

    def change(self, **fields: object) -> Change:
        """The change. `fields` of the conversation's row are set along with its proof."""
        came: list[MessageRow | PackRow] = [new for _, new, _ in self._amended.values()]
        went: list[MessageRow | PackRow] = [*self._dropped, *(old for old, _, _ in self._amended.values())]
        packs, gone = [], []
        for run in self._runs():
            old = self._pack(run)
            went.append(old)
            new = self._written_anew(old)
            if new is None:
                gone.append(run)
            else:
                packs.append(new)
        came += packs
        row = self._row
        amended = [new for _, new, _ in self._amended.values()]
        rewrites = row.rewrites + 1
        put: tuple[ItemRow, ...] = ()
        ledger = revisions.read(self._store, self._envelope, row)
        if ledger is not None:
            put = (ledger.after(amended, self._dropped).item(self._envelope, row.id, rewrites),)
        grown = sum(m.size for m in came if isinstance(m, MessageRow))
        shrunk = sum(m.size for m in went if isinstance(m, MessageRow))
        fields = {"rewrites": rewrites, "size": row.size + grown - shrunk, **fields}
        after = next_row(self._envelope, row, came, went, **fields)
        return Change(
            row.id,
            row.token,
            after,
            amend=tuple(amended),
            drop=tuple(m.number for m in self._dropped),
            pack=tuple(packs),
            unpack=tuple(gone),
            put=put,
        )

    def _runs(self) -> list[int]:
        """The runs whose packs are touched."""
        touched = [*self._dropped, *(old for old, _, _ in self._amended.values())]
        return sorted({run_of(m.number) for m in touched if m.body is None})

    def _pack(self, run: int) -> PackRow:
        packs = self._store.backend.packs([run])
        if not packs:
            if self._store._fresh_row(self._row.id).token != self._row.token:
                raise Moved
            raise Damaged(f"the pack that holds message {self._store._names.id(run)} is missing")
        return packs[0]

    def _written_anew(self, old: PackRow) -> PackRow | None:
        """What is left of a run begins with its first message; nothing may be left."""
        dropped = {m.number for m in self._dropped}
        if old.first in dropped:
            return None
        messages = []
        for number, message in enumerate(open_pack_raw(self._envelope, old), old.first):
            if number in dropped:
                break
            amended = self._amended.get(number)
            messages.append(message if amended is None else packed(amended[1], amended[2]))
        return close_pack(self._envelope, old, messages)


class Moved(Exception):
    """Somebody wrote while we prepared: prepare again."""
