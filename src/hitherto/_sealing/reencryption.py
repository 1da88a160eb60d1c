"""Re-encrypting one conversation: another data key for all that it holds, while others read and write.

First the conversation gets a second data key, in one commit. From then on everything that is written is sealed with it,
by everybody: who has not heard of it is answered `Stale`. Then what lies there already follows in small steps, each a
commit of its own that leaves everything readable: messages, packs, attachments, and the names that were made with the
old key. The last commit takes over what lies beside the messages, and drops the old key. `rotation` says when.

**Before the old key goes, all rows are read once more**, after the conversation's row and before the commit that
requires its token: every message, pack and attachment has to be under the new key, whatever was done before and by whom
(`_Proof`). So two processes may do this at the same time, and one that is late or was wrong loses nothing.

Every commit requires the keys of the workspace to be those that the job began with (`KeyState`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.attachments import rename_attachments
from .._engine.bodies import close_pack as closed_pack
from .._engine.bodies import decode_body, encode, item_place, meta_place, open_meta, open_pack_raw, pack_message
from .._engine.filters import description_fields
from .._engine.packs import Reader, run_of
from .._engine.recovery import MARK, mark
from .._engine.revisions import KEY as LEDGER
from .._engine.revisions import NOTHING
from .._engine.revisions import place as ledger_place
from .._engine.signals import RowChanged
from .._engine.state import label_fields
from .._engine.workspace import KeyState
from .._search.sealed_index_store import PREFIX as WORDS
from ..backend import Batch, Change, ConversationRow, Done, ItemRow, MessageRow, PackRow, Tag
from ..errors import Busy, Damaged, HithertoError
from ..ids import show_conversation_id
from .codec import MODULUS, Envelope, Plain, next_row
from .sealed import NO_KEY, Sealed, SealedEnvelope, Slot, read_box, write_box

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from .._engine.state import ConversationState

_TRIES = 1000
_FEW = 3  # of them, before others wait for us
_PASSES = 8  # through all messages, that find nothing to do and prove nothing
_AT_ONCE = 256  # messages read at a time
_STEP = 128  # messages re-encrypted in one commit
_STEP_BYTES = 4 << 20


class Begin:
    """Gives a conversation a second data key: everything from now on is sealed with it.

    The proof is made with the new key, too, so all messages are weighed again; with the old key as well, and compared
    with the proof as it was: this is where a conversation that was tampered with is noticed. Others may write
    meanwhile. What they append is weighed on top; if the sums then disagree, they did something else, and all
    is weighed again.
    """

    def __init__(self, engine: "Engine", state: KeyState, conversation: bytes) -> None:
        self._engine, self._state, self._id = engine, state, conversation
        self._codec = codec_of(state)
        self._seen: ConversationRow | None = None  # up to where it is weighed
        self._before = self._after = 0  # what it weighs, by the old key and by the new one
        self._fresh: Slot | None = None

    def run(self, *, anew: bool = False) -> None:
        """`anew`: even if its key is of this time."""
        for number in range(_TRIES):
            with _attempt(self._engine, self._id, number) as row:
                if self._is_begun(row, anew=anew):
                    return
        raise Busy(f"conversation {show_conversation_id(self._id)} changes all the time")

    def _is_begun(self, row: ConversationRow, *, anew: bool) -> bool:
        slots = read_box(row.data_key) or (Slot(NO_KEY, row.generation, 0),)
        if not anew and (slots[0].epoch == self._codec.epoch or self._codec.need(row) is None):
            return True  # before, by us or by others; or it is done altogether
        old = self._codec.envelope(row)
        generation = row.generation + 1
        if self._codec.slots[0].kind == NO_KEY:
            self._fresh = Slot(NO_KEY, generation, self._codec.epoch)
        elif self._fresh is None or self._fresh.generation != generation:
            self._fresh, self._seen = self._codec.new_slot(self._id, generation), None
        box = (self._fresh, *self._codec.rewrapped(self._id, slots))
        new = self._codec.draft(self._id, box)
        # A plain one proves nothing, nor does one that is half sealed or half unsealed: it is summed up when sealed.
        if old.proves and not self._weigh(row, old, new):
            return False
        changed = next_row(Plain(), row, data_key=write_box(box), generation=generation)
        changed = replace(changed, proof=new.prove(changed, self._after))
        batch = Batch((Change(self._id, row.token, changed),), self._state.require)
        if not isinstance(self._engine.committer.write(batch), Done):
            self._state.confirm()
            return False
        self._engine.adopt_row(self._id, changed)
        return True

    def _weigh(self, row: ConversationRow, old: Envelope, new: Envelope) -> bool:
        """False if somebody did something else than append, so that all has to be weighed again."""
        start = 0 if self._seen is None else self._seen.next_seq
        if self._seen is None:
            self._before = self._after = 0
        for rows in _stored(self._engine, row, start, with_packs=self._seen is None):
            self._before, self._after = self._before + old.weigh(rows), self._after + new.weigh(rows)
        if (self._before - old.total(row)) % MODULUS:
            if self._seen is None and self._engine.read_row(self._id).token == row.token:
                raise Damaged("the proof over its messages does not match")
            self._seen = None
            return False
        self._seen = row
        return True


@contextmanager
def _attempt(engine: "Engine", conversation: bytes, number: int) -> Iterator[ConversationRow]:
    """The conversation as it is. After a few attempts, whoever writes to it in this process waits for this one: they
    are always faster, because they have less to read."""
    row = engine.read_row(conversation)
    if number < _FEW:
        yield row
        return
    with engine.state_of(row).lock:
        yield engine.read_row(conversation)


def codec_of(state: KeyState) -> Sealed:
    """The codec of a workspace that is sealed, or being unsealed; `RowChanged` if it is plain by now."""
    if state.codec is None:
        raise RowChanged
    return state.codec


def renew(engine: "Engine", conversation: bytes) -> None:
    """Another data key for what comes; what is there stays under the old one."""
    Begin(engine, KeyState(engine.workspace), conversation).run(anew=True)


def _stored(
    engine: "Engine", row: ConversationRow, start: int, *, with_packs: bool
) -> Iterator[Sequence[MessageRow | PackRow]]:
    """What weighs something in a conversation: messages from a sequence on up to where the row stands, and packs."""
    runs: set[int] = set()
    after = start - 1
    while True:
        rows = engine.backend.scan(row.id, after=after, limit=_AT_ONCE)
        yield [m for m in rows if m.seq < row.next_seq]
        runs |= {run_of(m.number) for m in rows if m.body is None}
        if len(rows) < _AT_ONCE:
            break
        after = rows[-1].seq
    if with_packs:
        for some in _slices(sorted(runs), 16):
            yield engine.backend.packs(some)


def _newest(row: ConversationRow) -> tuple[object, ...]:
    """The data key that everything is sealed with from now on."""
    return tuple((slot.kind, slot.generation, slot.commitment) for slot in read_box(row.data_key)[:1])


class Steps:
    """Brings what a conversation holds under its new key, and at last drops the old one."""

    def __init__(self, engine: "Engine", state: KeyState, conversation: bytes, goes_on: Callable[[], bool]) -> None:
        """`goes_on` is asked before each step; if it says no, that was all for now."""
        self._engine, self._state, self._id, self._goes_on = engine, state, conversation, goes_on
        self._codec = codec_of(state)

    def run(self) -> bool:
        """False if there was not enough time. Everything that came after the new key is sealed with it, so it is
        enough to go through all messages once; but after *that* key: another process may give it yet another one
        meanwhile, and what we went through before is then under the one that would go."""
        in_vain = 0
        for _ in range(_TRIES):
            key = _newest(self._engine.read_row(self._id))
            if not key:
                return True  # others have made it plain
            if not self._bodies(key):
                return False
            finished = self._finished(key)
            if finished:
                return True
            in_vain += finished is False
            if in_vain >= _PASSES:
                raise Damaged("not all of its messages and attachments can be brought under the new key")
        raise Busy(f"conversation {show_conversation_id(self._id)} changes all the time")

    def _finished(self, key: tuple[object, ...]) -> bool | None:
        """None if this is not the newest key any more; False if something is not under it, though nobody writes."""
        proof = _Proof(self._engine, self._id)
        for number in range(_TRIES):
            with _attempt(self._engine, self._id, number) as row:
                if _newest(row) != key:
                    return None
                try:
                    if self._last_step(row, proof):
                        return True
                except _NotProven:
                    if self._engine.read_row(self._id).token == row.token:
                        return False
                except Damaged:
                    if self._engine.read_row(self._id).token == row.token:
                        raise
        raise Busy(f"conversation {show_conversation_id(self._id)} changes all the time")

    def _bodies(self, key: tuple[object, ...]) -> bool:
        after = -1
        while True:
            if not self._goes_on():
                return False
            headers = self._engine.backend.scan(self._id, after=after, limit=_AT_ONCE, bodies=False)
            for some in _slices([m.number for m in headers], _STEP):
                for numbers in self._small(some):
                    if not self._goes_on():
                        return False
                    if not _Step(self._engine, self._codec, self._id, numbers, self._state, key).run():
                        return True  # there is yet another key: what was done counts for nothing
            if len(headers) < _AT_ONCE:
                return True
            after = headers[-1].seq

    def _small(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Not too many bytes at once."""
        sizes = {m.number: m.size for m in self._engine.backend.messages(numbers=numbers, bodies=False)}
        some: list[int] = []
        size = 0
        for number in numbers:
            some.append(number)
            size += sizes.get(number, 0)
            if size > _STEP_BYTES:
                yield some
                some, size = [], 0
        if some:
            yield some

    def _last_step(self, row: ConversationRow, proof: "_Proof") -> bool:
        """Description, items and names; and the old key goes, if nothing needs it any more."""
        engine, codec = self._engine, self._codec
        slots = read_box(row.data_key)
        if len(slots) < 2:
            return True
        old = codec.opened(row)
        plain = not slots[0].kind
        new: Envelope = Plain() if plain else codec.draft(self._id, slots[:1])
        weight, detach = proof.over(row, old, new), proof.abandoned(old)
        meta = open_meta(old, row)
        put = _items_anew(engine, row, old, new)
        if not old.proves and new.proves and row.rewrites:  # it was plain: from now on nobody puts back what was
            ledger = NOTHING.after([m for m in engine.read_headers(self._id) if m.revision], ())
            put += (ledger.item(new, self._id, row.rewrites),)
        changed = next_row(
            Plain(),
            row,
            data_key=b"" if plain else write_box(slots[:1]),
            meta=new.close(meta_place(self._id), encode(meta)),
            key=None if meta.key is None else codec.tag("conversation", meta.key),
        )
        # If it was plain, only now is there something to prove.
        total = weight if any(not slot.kind for slot in slots[1:]) else old.total(row)
        changed = replace(changed, proof=new.prove(changed, total))
        found_by = [codec.tags(field, value) for field, value in description_fields(meta)]
        tags = [Tag(names[0]) for names in found_by]
        untags = [Tag(name) for names in found_by for name in names[1:]]
        change = Change(
            self._id,
            row.token,
            changed,
            detach=detach,
            put=put,
            unput=(*(item.key for item in engine.backend.items(self._id, WORDS)), *(() if new.proves else (LEDGER,))),
            tag=tuple(tags),
            untag=tuple(untags),
            rekey=changed.key != row.key,
        )
        if engine.commit_once(change, self._state.require):
            return True
        self._state.confirm()
        return False


class _NotProven(Exception):
    """Something is not under the newest key."""


class _Proof:
    """That all that a conversation holds is under its newest key, by reading it; and what its messages and packs weigh.

    It is read after the conversation's row, and the commit that relies on it requires that row's token, so nothing can
    have changed in between. If somebody was faster, it is enough to read what came since, unless messages were dropped
    or changed: whoever writes to a row seals with the newest key that this row has, and the row has the same one.
    """

    def __init__(self, engine: "Engine", conversation: bytes) -> None:
        self._engine, self._id = engine, conversation
        self._seen: ConversationRow | None = None
        self._weight = 0

    def over(self, row: ConversationRow, old: SealedEnvelope, new: Envelope) -> int:
        """The weight of messages and packs, by `new`. `_NotProven` if one is not under the key that `old` seals with
        now."""
        if self._seen is None or self._seen.rewrites != row.rewrites or not self._grows(row, old, new):
            self._weight = 0
            packs: list[PackRow] = []
            packed: list[int] = []
            for rows in _stored(self._engine, row, 0, with_packs=True):
                self._weigh(rows, old, new)
                packs += [replace(one, body=b"") for one in rows if isinstance(one, PackRow)]
                packed += [one.number for one in rows if isinstance(one, MessageRow) and one.body is None]
            held = {number for pack in packs for number in range(pack.first, pack.first + pack.count)}
            if not held.issuperset(packed):
                raise _NotProven
        self._seen = row
        return self._weight

    def _grows(self, row: ConversationRow, old: SealedEnvelope, new: Envelope) -> bool:
        """Take what was appended since. False if some of it was packed already."""
        if self._seen is None:
            return False
        for rows in _stored(self._engine, row, self._seen.next_seq, with_packs=False):
            if any(one.body is None for one in rows):
                return False
            self._weigh(rows, old, new)
        return True

    def _weigh(self, rows: Sequence[MessageRow | PackRow], old: SealedEnvelope, new: Envelope) -> None:
        if not all(one.body is None or old.is_current(one.body) for one in rows):
            raise _NotProven
        self._weight += new.weigh(rows)

    def abandoned(self, envelope: SealedEnvelope) -> tuple[tuple[int, bytes], ...]:
        """Messages, and attachments of old names that they count as referring to, and do not: what they hold names
        none of them. These go with the old key. `_NotProven` if one is named."""
        backend, found = self._engine.backend, []
        for one in backend.attachments(self._id):
            if one.messages and not envelope.is_current_name(one.name):
                for m in backend.messages(numbers=one.messages):
                    body = decode_body(Reader(self._engine).content(envelope, m)[1])
                    if any(attached.name == one.name for attached in body.attached):
                        raise _NotProven
                found += [(number, one.name) for number in one.messages]
        return tuple(found)


class _Step:
    """A few messages, or the pack they are in, under the new key, in one commit."""

    def __init__(
        self,
        engine: "Engine",
        codec: Sealed,
        conversation: bytes,
        numbers: Sequence[int],
        state: KeyState | None = None,
        key: tuple[object, ...] | None = None,
    ) -> None:
        """`key` is the newest one, if it has to be this."""
        self._engine, self._codec, self._id, self._numbers = engine, codec, conversation, numbers
        self._state = state or KeyState(engine.workspace)
        self._key = key

    def run(self) -> bool:
        """False if the newest key is another one by now."""
        for _ in range(_TRIES):
            desk = self._engine.state_of(self._engine.read_row(self._id))
            desk.refresh()
            with desk.rewrite_lock:
                once = _Once(self._engine, desk, self._numbers)
                if self._key is not None and _newest(once.row) != self._key:
                    return False
                if not isinstance(once.envelope, SealedEnvelope):
                    return True  # others have made it plain
                try:
                    change = self._built(once.envelope, desk, once.rows, once.packs)
                    if change is None or once.commit(change, self._state):
                        return True
                except Damaged:
                    if self._engine.read_row(self._id).token == once.row.token:
                        raise
                except RowChanged:
                    self._state.confirm()
                # It changed while we read it, or while we wrote: once more.
        raise Busy(f"conversation {show_conversation_id(self._id)} changes all the time")

    def _built(
        self, envelope: SealedEnvelope, desk: "ConversationState", rows: Sequence[MessageRow], packs: Sequence[PackRow]
    ) -> "_Change | None":
        """Every message is looked at: one that was packed or labelled meanwhile is under the new key already, but the
        names that it goes by may still be old."""
        built = _Change()
        headers = {m.number: m for m in rows}
        for m in rows:
            if m.body is not None:
                content = envelope.open_messages([m])[0]
                after, data = self._anew(envelope, desk, m, content, built)
                if data is not content or not envelope.is_current(m.body):
                    after = replace(after, body=envelope.close_message(after, data))
                if after != m:
                    built.amend(m, after)
        for pack in packs:
            messages = []
            stays = envelope.is_current(pack.body)
            for number, one in enumerate(open_pack_raw(envelope, pack), pack.first):
                if number not in headers:
                    raise Damaged("a message in a pack has no row")
                content = bytes(one.body)
                after, data = self._anew(envelope, desk, headers[number], content, built)
                stays = stays and data is content
                if after != headers[number]:
                    built.amend(headers[number], after)
                messages.append(pack_message(after, data))
            if not stays:
                built.pack(pack, closed_pack(envelope, pack, messages))
        return built if built.any() else None

    def _anew(
        self, envelope: SealedEnvelope, desk: "ConversationState", m: MessageRow, content: bytes, built: "_Change"
    ) -> tuple[MessageRow, bytes]:
        """The message with its names made anew: its row and its content, the same object if nothing changed."""
        body, data = decode_body(content), content
        if not all(envelope.is_current_name(attached.name) for attached in body.attached):
            body, names = rename_attachments(desk, body)
            data = encode(body)
            built.attach += [(m.number, new) for new in names.values()]
            built.detach += [(m.number, old) for old, new in names.items() if old != new]
        if body.label is not None:
            for field, value in label_fields(body.label):
                now, *before = self._codec.tags(field, value)
                built.tag.append(Tag(now, m.number))
                built.untag += [Tag(name, m.number) for name in before]
        key = None if body.key is None else envelope.tags("key", body.key)[0]
        return replace(m, size=len(data), key=key), data


class _Change:
    """What becomes of some messages."""

    def __init__(self) -> None:
        self.came: list[MessageRow | PackRow] = []
        self.went: list[MessageRow | PackRow] = []
        self.amended: list[MessageRow] = []
        self.packs: list[PackRow] = []
        self.attach: list[tuple[int, bytes]] = []
        self.detach: list[tuple[int, bytes]] = []
        self.tag: list[Tag] = []
        self.untag: list[Tag] = []
        self.grown = 0

    def any(self) -> bool:
        return bool(self.amended or self.packs or self.untag)

    def amend(self, old: MessageRow, new: MessageRow) -> None:
        self.came.append(new)
        self.went.append(old)
        self.amended.append(new)
        self.grown += new.size - old.size

    def pack(self, old: PackRow, new: PackRow) -> None:
        self.came.append(new)
        self.went.append(old)
        self.packs.append(new)

    def change(self, envelope: Envelope, row: ConversationRow) -> Change:
        after = next_row(envelope, row, self.came, self.went, size=row.size + self.grown)
        return Change(
            row.id,
            row.token,
            after,
            amend=tuple(self.amended),
            pack=tuple(self.packs),
            attach=tuple(self.attach),
            detach=tuple(self.detach),
            tag=tuple(self.tag),
            untag=tuple(self.untag),
        )


class _Once:
    """Commits what was made from messages and packs that were read before, if they are still the same: whoever appends
    meanwhile is no hindrance."""

    def __init__(self, engine: "Engine", desk: "ConversationState", numbers: Sequence[int]) -> None:
        self._engine, self._desk = engine, desk
        with desk.lock:  # of one moment
            self.row, self.envelope = desk.row, desk.envelope
            self._seen = desk.row.rewrites, desk.packings
        self._used = False
        self._numbers = numbers
        self.rows, self.packs = self._read()

    def _read(self) -> tuple[list[MessageRow], list[PackRow]]:
        """The messages, and the packs that they are in, with all messages of these."""
        backend = self._engine.backend
        rows = {m.number: m for m in backend.messages(numbers=self._numbers) if m.conversation == self._desk.id}
        runs = sorted({run_of(m.number) for m in rows.values() if m.body is None})
        packs = backend.packs(runs)
        inside = [n for pack in packs for n in range(pack.first, pack.first + pack.count) if n not in rows]
        if inside:
            rows.update({m.number: m for m in backend.messages(numbers=inside)})
        return [rows[number] for number in sorted(rows)], packs

    def commit(self, built: _Change, state: KeyState) -> bool:
        def prepare(row: ConversationRow) -> tuple[Change | None, bool]:
            if self._used or row.data_key != self.row.data_key or (row.rewrites, self._desk.packings) != self._seen:
                return None, False
            if row.token != self.row.token and self._read() != (self.rows, self.packs):
                return None, False
            self._used = True
            self._desk.packings += 1  # whoever packs from what it read before starts over
            return built.change(self.envelope, row), True

        try:
            return self._desk.commit(prepare, state=state)
        except HithertoError:
            self._used = True
            raise


def _slices(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _items_anew(engine: "Engine", row: ConversationRow, old: Envelope, new: Envelope) -> tuple[ItemRow, ...]:
    """What a conversation has beside its messages, under the new key: not the words for searching, which are made
    again, nor a ledger where there can be none."""
    anew = []
    for item in engine.backend.items(row.id):
        if not item.key.startswith(WORDS) and (item.key != LEDGER or (old.proves and new.proves)):
            place = ledger_place(row.id, row.rewrites) if item.key == LEDGER else item_place(row.id, item.key)
            try:
                anew.append(replace(item, body=new.close(place, old.open(place, item.body))))
            except Damaged:
                if item.key != MARK:
                    raise
                anew.append(mark(engine, new, row.id))  # the tree has all that a torn one said
    return tuple(anew)
