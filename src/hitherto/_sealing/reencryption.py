"""Re-encryption of one conversation: moves its content to a new data key while other threads read and write.

First the conversation gets a second data key, in one commit. From then on all writers seal with it: a commit prepared
with the old key is answered `Stale`. Then the existing content follows in small steps: messages, packs, attachments,
and the names made with the old key. Each step is a commit that leaves everything readable. The last commit re-encrypts
the items beside the messages, and drops the old key. `rotation` starts these jobs.

**Before the old key is dropped, all rows are read once more**, after the conversation's row and before the commit that
requires its token. Every message, pack and attachment must be under the new key, whichever process moved it (`_Proof`).
So two processes may work at the same time, and a late or wrong one loses nothing.

Every commit requires that the keys of the workspace are the ones that the job began with (`KeyState`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from .._engine import items
from .._engine.attachments import rename_attachments
from .._engine.bodies import close_pack as closed_pack
from .._engine.bodies import decode_body, encode, meta_place, open_meta, open_pack_raw, pack_message
from .._engine.filters import description_fields
from .._engine.packs import Reader, run_of
from .._engine.recovery import MARK_KEY, mark
from .._engine.retry import retry
from .._engine.revisions import KEY as LEDGER
from .._engine.revisions import NOTHING
from .._engine.revisions import place as ledger_place
from .._engine.signals import KeyChanged, RowChanged
from .._engine.state import label_fields
from .._engine.typed_items import item_place
from .._engine.workspace import KeyState
from .._search.sealed_index_store import PREFIX as WORDS
from ..backend import Batch, Change, ConversationRow, Done, ItemRow, MessageRow, PackRow, Tag
from ..errors import Damaged, HithertoError
from ..ids import show_conversation_id
from .codec import MODULUS, Envelope, Plain, next_row
from .sealed import NO_KEY, Sealed, SealedEnvelope, Slot, read_box, write_box

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from .._engine.state import ConversationState

_FEW = 3  # attempts before other writers have to wait
_PASSES = 8  # passes over all messages that find no work and prove nothing
_AT_ONCE = 256  # messages read at a time
_STEP = 128  # messages re-encrypted in one commit
_STEP_BYTES = 4 << 20

T = TypeVar("T")


class Begin:
    """Gives a conversation a second data key, which seals all later writes.

    The proof is computed with the new key, too, so all messages are weighed again. They are also weighed with the old
    key, and that sum is compared with the old proof: this detects a tampered conversation. Other threads may write in
    the meantime. Appended messages are weighed on top. If the sums then disagree, there was another kind of write, and
    all messages are weighed again.
    """

    def __init__(self, engine: "Engine", state: KeyState, conversation: bytes) -> None:
        self._engine, self._state, self._id = engine, state, conversation
        self._codec = codec_of(state)
        self._seen: ConversationRow | None = None  # the row up to which messages are weighed
        self._before = self._after = 0  # the sums by the old key and by the new one, of messages and packs
        self._items = 0  # the sum by the new one, of items
        self._fresh: Slot | None = None

    def run(self, *, anew: bool = False) -> None:
        """Commit the second data key. `anew`: even if the current key is of this epoch."""

        def attempt(row: ConversationRow) -> None:
            if not self._is_begun(row, anew=anew):
                raise RowChanged

        _retry_with_row(self._engine, self._id, attempt)

    def _is_begun(self, row: ConversationRow, *, anew: bool) -> bool:
        slots = read_box(row.data_key) or (Slot(NO_KEY, row.generation, 0),)
        if not anew and (slots[0].epoch == self._codec.epoch or self._codec.need(row) is None):
            return True  # begun before, in any process, or complete
        old = self._codec.envelope(row)
        generation = row.generation + 1
        if self._codec.slots[0].kind == NO_KEY:
            self._fresh = Slot(NO_KEY, generation, self._codec.epoch)
        elif self._fresh is None or self._fresh.generation != generation:
            self._fresh, self._seen = self._codec.new_slot(self._id, generation), None
        box = (self._fresh, *self._codec.rewrap(self._id, slots))
        new = self._codec.draft(self._id, box)
        # A plain or half sealed conversation proves nothing: its sum is computed when it is sealed.
        if old.proves and not self._weigh(row, old, new):
            return False
        changed = next_row(Plain(), row, data_key=write_box(box), generation=generation)
        changed = replace(changed, proof=new.prove(changed, self._after + self._items))
        batch = Batch((Change(self._id, row.token, changed),), self._state.require)
        if not isinstance(self._engine.committer.write(batch), Done):
            self._state.confirm()
            return False
        self._engine.adopt_row(self._id, changed)
        return True

    def _weigh(self, row: ConversationRow, old: Envelope, new: Envelope) -> bool:
        """Sum the weights. Returns False if another writer did more than append: all must be weighed again then."""
        start = 0 if self._seen is None else self._seen.next_seq
        if self._seen is None:
            self._before = self._after = 0
        for rows in _read_stored(self._engine, row, start, with_packs=self._seen is None):
            self._before, self._after = self._before + old.weigh(rows), self._after + new.weigh(rows)
        own = list(items.stored(self._engine, self._id))
        self._items = new.weigh(own)
        if (self._before + old.weigh(own) - old.total(row)) % MODULUS:
            if self._seen is None and self._engine.read_row(self._id).token == row.token:
                raise Damaged("the proof over its messages does not match")
            self._seen = None
            return False
        self._seen = row
        return True


def _retry_with_row(engine: "Engine", conversation: bytes, work: Callable[[ConversationRow], T]) -> T:
    """Retry `work` with the conversation's current row. After a few attempts, hold its lock, so that writers in this
    process wait: they would always be faster, because they have less to read."""
    attempts = count()

    def attempt() -> T:
        row = engine.read_row(conversation)
        if next(attempts) < _FEW:
            return work(row)
        with engine.state_of(row).lock:
            return work(engine.read_row(conversation))

    return retry(attempt, _busy(conversation))


def _busy(conversation: bytes) -> str:
    return f"conversation {show_conversation_id(conversation)} changes all the time"


def codec_of(state: KeyState) -> Sealed:
    """Return the codec of a workspace that is sealed or being unsealed. Raises `KeyChanged` if it is plain by now."""
    if state.codec is None:
        raise KeyChanged
    return state.codec


def renew(engine: "Engine", conversation: bytes) -> None:
    """Give a conversation a new data key for later writes. Existing content stays under the old one."""
    Begin(engine, KeyState(engine.workspace), conversation).run(anew=True)


def _read_stored(
    engine: "Engine", row: ConversationRow, start: int, *, with_packs: bool
) -> Iterator[Sequence[MessageRow | PackRow]]:
    """Yield the stored rows that have a weight: messages from sequence `start` up to the row's end, and packs."""
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
    """Identify the newest data key, which seals all new writes."""
    return tuple((slot.kind, slot.generation, slot.commitment) for slot in read_box(row.data_key)[:1])


class Steps:
    """Moves a conversation's content to its new key, and finally drops the old one."""

    def __init__(self, engine: "Engine", state: KeyState, conversation: bytes, goes_on: Callable[[], bool]) -> None:
        """`goes_on` is called before each step; False ends the work for now."""
        self._engine, self._state, self._id, self._goes_on = engine, state, conversation, goes_on
        self._codec = codec_of(state)

    def run(self) -> bool:
        """Move all content. Returns False if there was not enough time. All writes after the new key are sealed with
        it, so one pass over all messages is enough. But the pass must start after *that* key: another process may add
        yet another one meanwhile, and the messages of the earlier pass are then under the key that would be dropped."""
        in_vain = 0

        def attempt() -> bool:
            nonlocal in_vain
            key = _newest(self._engine.read_row(self._id))
            if not key:
                return True  # another process has made it plain
            if not self._bodies(key):
                return False
            finished = self._finish(key)
            if finished:
                return True
            in_vain += finished is False
            if in_vain >= _PASSES:
                raise Damaged("not all of its messages and attachments can be brought under the new key")
            raise RowChanged

        return retry(attempt, _busy(self._id))

    def _finish(self, key: tuple[object, ...]) -> bool | None:
        """Drop the old key. Returns None if there is a newer key by now, and False if some content is not under the new
        one although no writer is active."""
        proof = _Proof(self._engine, self._id)

        def attempt(row: ConversationRow) -> bool | None:
            if _newest(row) != key:
                return None
            try:
                if self._last_step(row, proof):
                    return True
            except _NotProven:
                self._engine.ensure_unchanged(row)
                return False
            except Damaged:
                self._engine.ensure_unchanged(row)
                raise
            raise RowChanged

        return _retry_with_row(self._engine, self._id, attempt)

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
        old = codec.open_row(row)
        plain = not slots[0].kind
        new: Envelope = Plain() if plain else codec.draft(self._id, slots[:1])
        weight, detach = proof.over(row, old, new), proof.find_abandoned(old)
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
        own = [item for item in put if item.key.startswith(items.PREFIX)]
        if any(not slot.kind for slot in slots[1:]):  # it was plain: only now is there something to prove
            total = weight + new.weigh(own)
        else:
            total = old.total(row) + new.weigh(own) - old.weigh(items.stored(engine, self._id))
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
            for rows in _read_stored(self._engine, row, 0, with_packs=True):
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
        for rows in _read_stored(self._engine, row, self._seen.next_seq, with_packs=False):
            if any(one.body is None for one in rows):
                return False
            self._weigh(rows, old, new)
        return True

    def _weigh(self, rows: Sequence[MessageRow | PackRow], old: SealedEnvelope, new: Envelope) -> None:
        if not all(one.body is None or old.is_current(one.body) for one in rows):
            raise _NotProven
        self._weight += new.weigh(rows)

    def find_abandoned(self, envelope: SealedEnvelope) -> tuple[tuple[int, bytes], ...]:
        """Find references to attachments with old names that no message content names any more: they are dropped with
        the old key. Returns pairs of message and name. Raises `_NotProven` if a message still names one."""
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
    """Moves a few messages, or the packs that contain them, to the new key, in one commit."""

    def __init__(
        self,
        engine: "Engine",
        codec: Sealed,
        conversation: bytes,
        numbers: Sequence[int],
        state: KeyState | None = None,
        key: tuple[object, ...] | None = None,
    ) -> None:
        """`key` is the required newest key, if any."""
        self._engine, self._codec, self._id, self._numbers = engine, codec, conversation, numbers
        self._state = state or KeyState(engine.workspace)
        self._key = key

    def run(self) -> bool:
        """Commit the step. Returns False if the newest key is not the required one by now."""
        return retry(self._run_once, _busy(self._id))

    def _run_once(self) -> bool:
        conversation = self._engine.state_of(self._engine.read_row(self._id))
        conversation.refresh()
        with conversation.rewrite_lock:
            once = _Once(self._engine, conversation, self._numbers)
            if self._key is not None and _newest(once.row) != self._key:
                return False
            if not isinstance(once.envelope, SealedEnvelope):
                return True  # another process has made it plain
            try:
                change = self._built(once.envelope, conversation, once.rows, once.packs)
                if change is None or once.commit(change, self._state):
                    return True
            except Damaged:
                self._engine.ensure_unchanged(once.row)
                raise
            except RowChanged:
                self._state.confirm()
            raise RowChanged  # it changed during the read or the write

    def _built(
        self,
        envelope: SealedEnvelope,
        conversation: "ConversationState",
        rows: Sequence[MessageRow],
        packs: Sequence[PackRow],
    ) -> "_Change | None":
        """Build the change, or None if there is none. Every message is checked: one that was packed or labelled in the
        meantime is under the new key already, but its names may still be old."""
        built = _Change()
        headers = {m.number: m for m in rows}
        for m in rows:
            if m.body is not None:
                content = envelope.open_messages([m])[0]
                after, data = self._anew(envelope, conversation, m, content, built)
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
                after, data = self._anew(envelope, conversation, headers[number], content, built)
                stays = stays and data is content
                if after != headers[number]:
                    built.amend(headers[number], after)
                messages.append(pack_message(after, data))
            if not stays:
                built.pack(pack, closed_pack(envelope, pack, messages))
        return built if built.any() else None

    def _anew(
        self,
        envelope: SealedEnvelope,
        conversation: "ConversationState",
        m: MessageRow,
        content: bytes,
        built: "_Change",
    ) -> tuple[MessageRow, bytes]:
        """Return the message's row and content with new names. The content is the same object if nothing changed."""
        body, data = decode_body(content), content
        if not all(envelope.is_current_name(attached.name) for attached in body.attached):
            body, names = rename_attachments(conversation, body)
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
    """Collects the changes to some messages and packs."""

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
    """Commits a change made from messages and packs read earlier, if these are still the same. Appends in the meantime
    do not matter."""

    def __init__(self, engine: "Engine", conversation: "ConversationState", numbers: Sequence[int]) -> None:
        self._engine, self._conversation = engine, conversation
        with conversation.lock:  # of one moment
            self.row, self.envelope = conversation.row, conversation.envelope
            self._seen = conversation.row.rewrites, conversation.packings
        self._used = False
        self._numbers = numbers
        self.rows, self.packs = self._read()

    def _read(self) -> tuple[list[MessageRow], list[PackRow]]:
        """Read the messages, and the packs that contain them, with all messages of these packs."""
        backend = self._engine.backend
        rows = {m.number: m for m in backend.messages(numbers=self._numbers) if m.conversation == self._conversation.id}
        runs = sorted({run_of(m.number) for m in rows.values() if m.body is None})
        packs = backend.packs(runs)
        inside = [n for pack in packs for n in range(pack.first, pack.first + pack.count) if n not in rows]
        if inside:
            rows.update({m.number: m for m in backend.messages(numbers=inside)})
        return [rows[number] for number in sorted(rows)], packs

    def commit(self, built: _Change, state: KeyState) -> bool:
        def prepare(row: ConversationRow) -> tuple[Change | None, bool]:
            if (
                self._used
                or row.data_key != self.row.data_key
                or (row.rewrites, self._conversation.packings) != self._seen
            ):
                return None, False
            if row.token != self.row.token and self._read() != (self.rows, self.packs):
                return None, False
            self._used = True
            self._conversation.packings += 1  # a packing that read earlier starts again
            return built.change(self.envelope, row), True

        try:
            return self._conversation.commit(prepare, keys=state)
        except HithertoError:
            self._used = True
            raise


def _slices(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _items_anew(engine: "Engine", row: ConversationRow, old: Envelope, new: Envelope) -> tuple[ItemRow, ...]:
    """Return the items beside the messages under the new key: without the words for searching, which are rebuilt, and
    without the revisions of a conversation whose proofs prove nothing."""
    anew = []
    for item in engine.backend.items(row.id):
        if not item.key.startswith(WORDS) and (item.key != LEDGER or (old.proves and new.proves)):
            place = (
                ledger_place(row.id, row.rewrites)
                if item.key == LEDGER
                else item_place(row.id, item.key, item.revision)
            )
            try:
                anew.append(replace(item, body=new.close(place, old.open(place, item.body))))
            except Damaged:
                if item.key != MARK_KEY:
                    raise
                anew.append(mark(engine, new, row.id))  # a torn mark is restored from the tree
    return tuple(anew)
