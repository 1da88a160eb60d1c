"""Writing messages: from values to rows, and the loop that gets them committed.

A conversation in use in this process has one **state**: an optimistic row, and a lock. The row is optimistic because it
counts writes that are queued and not committed yet. To append, a thread takes the lock just long enough to prepare its
rows from that row, put them in the committer's queue, and replace the row by the one that follows; the sync happens
outside. So many threads on one conversation share one sync, each message below the one before. If the optimistic row
was wrong (another process was faster), the backend answers `Stale` with the stored row, and every write that was built
on it is prepared again. A write is acknowledged only after its commit. On a server, the backend locks the row instead
and lets the messages be prepared again from it at once (`_make_rebaser`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from .._sealing.codec import Codec, Envelope, next_row
from ..attachment import LARGE, Attachment
from ..backend import Batch, Change, ConversationRow, Done, ItemRow, MessageRow, Missing, PackRow, Stale, Tag
from ..errors import Busy, Conflict, ConversationFull, Damaged, NotFound, PayloadTooLarge, StorageFull
from ..ids import RUN, new_token, show_conversation_id
from ..model import Message, Saved, check, text_size, trace_of
from . import items
from .attachments import Sources, hole, open_attachment, spill, stage, unstage
from .bodies import (
    Attached,
    Body,
    HasAttachment,
    Meta,
    body_of,
    close_bodies,
    encode,
    meta_place,
    open_meta,
    without_holes,
)
from .committer import PendingCommit, Tell, report_stored
from .filters import description_fields, description_tags
from .items import ItemWrite
from .retry import MAX_COMMIT_ATTEMPTS
from .revisions import Ledger, read
from .signals import KeyChanged, RowChanged
from .steps import Steps, finish

if TYPE_CHECKING:
    from .engine import Engine
    from .rebase import WriteRebaser
    from .workspace import KeyState

_TIPS = 8  # runs of one conversation that may grow at the same time: parallel branches and sub-agents

T = TypeVar("T")
Prepared = tuple[Change | None, T]


class Placement(Struct, frozen=True, gc=False):
    """Where a message goes: below which message, in which flow. Messages of the same write have no numbers yet: `~n`
    is the n-th of them."""

    parent: int | None
    main: bool = True
    link: int | None = None  # for a root


class EncodedMessage(Struct, frozen=True, gc=False):
    """A message that was checked and encoded, ready to get its place."""

    message: Message
    data: bytes
    spot: Placement | None  # its own place, or None: below the one before
    at: int | None = None  # when it was said, if that was not now
    weight: int = 0  # text that it has in attachments
    sources: Sources = {}  # what has to be staged for it
    generation: int = 0  # of the key that named them
    again: "Callable[[], EncodedMessage] | None" = None  # makes it anew, with the key as it then is


class ItemChanges(Struct, frozen=True):
    """The changes of items that go with new messages, in the same commit."""

    unput: tuple[bytes, ...] = ()  # keys of items to remove
    put: Callable[[Envelope], tuple[ItemRow, ...]] | None = None  # returns items to add, closed as the row then is
    writes: Sequence[ItemWrite] = ()  # of users, which are compared with the stored items


NO_CHANGES = ItemChanges()


class ConversationState:
    """One conversation in use: its optimistic row, and the lock that writes are prepared under."""

    def __init__(self, engine: "Engine", row: ConversationRow, *, new: bool = False, own: bool = False) -> None:
        self.engine = engine
        self.own = own  # of one reader, which checks in the end that its row is still the stored one
        self.has_holes = False  # a message was read whose attachment is missing
        self.lock = threading.RLock()
        self.id = row.id
        self.name = show_conversation_id(row.id)
        self.row = row
        self.is_row_locked = False  # by the backend, until what is prepared from it is committed: it is the newest
        self.epoch = 0  # raised whenever the optimistic row turned out wrong
        self.packings = 0  # begun in this store: threads that share the row cannot tell by the token
        self.rewrite_lock = threading.RLock()  # held while bodies are moved, from reading them until the commit
        self.envelope = engine.codec.first_envelope(row) if new else engine.codec.envelope(row)
        self._meta: tuple[bytes, Meta] | None = None
        self._ledger: tuple[int, bytes, Ledger | None] = (-1, b"", None)
        self._last: tuple[int | None, str | None] = (-1, None)  # the last number given to a message, and its id

    @property
    def meta(self) -> Meta:
        with self.lock:  # row and envelope belong together
            raw = self.row.meta
            if self._meta is None or self._meta[0] is not raw:
                self._meta = (raw, open_meta(self.envelope, self.row))
            return self._meta[1]

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of changed and deleted messages, if the conversation is sealed."""
        with self.lock:
            row = self.row
            if self._ledger[:2] != (row.rewrites, row.data_key):
                self._ledger = row.rewrites, row.data_key, read(self.engine, self.envelope, row)
            return self._ledger[2]

    def is_same_conversation(self, row: ConversationRow) -> bool:
        """Return True if the row is of this conversation. After a purge, the same id may be that of another one."""
        return (row.id, row.created_at) == (self.id, self.row.created_at)

    def adopt_row(self, row: ConversationRow | None, epoch: int | None = None) -> None:
        """Take a row that was read from the backend. With `epoch`: unless another thread did since."""
        if row is None or not self.is_same_conversation(row):
            raise NotFound("conversation", [self.name])
        with self.lock:
            if row.version > self.row.version if epoch is None else epoch == self.epoch:
                self._take(row)
                self.epoch += 1  # writes on their way, built on the old row, are prepared again

    def check(self, row: ConversationRow) -> Envelope:
        """Return the envelope of this row, which may be newer than ours; `Damaged` if it fails its integrity proof."""
        with self.lock:
            if row.data_key != self.row.data_key:
                return self.engine.codec.envelope(row)
            self.envelope.total(row)
            return self.envelope

    def _take(self, row: ConversationRow) -> None:
        """Replace our row, after a check: a row that was tampered with is not taken."""
        self.envelope = self.check(row)
        self.row = row

    @contextmanager
    def adopt_locked(self, row: ConversationRow) -> Iterator[bool]:
        """Take a row that the backend has locked, and know meanwhile that it is the newest. False if it is not for us
        to take: another conversation of this id, another key, or not as it was proven."""
        if not self.is_same_conversation(row) or row.data_key != self.row.data_key:
            yield False
            return
        if row.token != self.row.token:
            try:
                self._take(row)
            except Damaged:  # the owner of the write gets the error when it takes the row
                yield False
                return
            self.epoch += 1
        self.is_row_locked = True
        try:
            yield True
        finally:
            self.is_row_locked = False

    def read_stored_row(self) -> ConversationRow:
        """Read the stored row, and adopt it. Writes of this process that are on their way are prepared again."""
        row = self.engine.read_row(self.id)
        if row.token != self.row.token:
            self.adopt_row(row, self.epoch)
        return row

    def refresh(self) -> None:
        rows = self.engine.backend.lookup(ids=[self.id])
        with self.lock:
            rekeyed = bool(rows) and rows[0].data_key != self.row.data_key
            self.adopt_row(rows[0] if rows else None, self.epoch if rekeyed else None)  # what is on its way turns stale

    def commit(
        self,
        make_change: Callable[[ConversationRow], "Prepared[T]"],
        enqueued: Callable[[PendingCommit, Change], None] = lambda _, __: None,
        restage: Callable[[], None] = lambda: None,
        tell: Tell | None = None,
        keys: "KeyState | None" = None,
    ) -> T:
        """Run `commit_steps`, and wait."""
        return finish(self.engine.committer, self.commit_steps(make_change, enqueued, restage, tell, keys))

    def commit_steps(
        self,
        make_change: Callable[[ConversationRow], "Prepared[T]"],
        enqueued: Callable[[PendingCommit, Change], None] = lambda _, __: None,
        restage: Callable[[], None] = lambda: None,
        tell: Tell | None = None,
        keys: "KeyState | None" = None,
        *,
        may_queue: bool = False,
    ) -> Steps[T]:
        """Commit the change that `make_change` derives from the current row; again if another writer was faster.

        `make_change` may raise: then nothing is written. `enqueued` is called with each queued batch. Both are called
        under the lock. `restage` is called if attachments have vanished. With `keys`, nothing is written under other
        keys of the workspace than these: then it is `RowChanged`. With `may_queue`, the backend may have
        it prepared again while it holds the row; `enqueued` is then called once more.
        """
        for _ in range(MAX_COMMIT_ATTEMPTS):
            rebaser = (
                self._make_rebaser(make_change, enqueued) if may_queue and self.engine.committer.can_queue else None
            )
            with self.lock:
                change, result = make_change(self.row)
                row, epoch = self.row, self.epoch  # `make_change` may have looked again
                if change is None:
                    return result
                batch = Batch((change,), () if keys is None else keys.require)
                entry = self.engine.committer.enqueue(batch, tell=tell, rebaser=rebaser)
                enqueued(entry, change)
                if change.row is not None:
                    self.row = change.row
            try:
                outcome = yield entry
            except BaseException:
                self._go_back(*((row, epoch) if rebaser is None or rebaser.made is None else rebaser.made[:2]))
                raise
            if rebaser is not None and rebaser.made is not None:
                row, epoch, result = rebaser.made
            if isinstance(outcome, Done):
                self.engine.background.wrote()
                return result
            if isinstance(outcome, Stale):
                if outcome.conversation != self.id:
                    self._go_back(row, epoch)
                    raise RowChanged
                self.adopt_row(outcome.row, epoch)
            else:  # Taken: another message has this number or key. Missing: an attachment is gone.
                if isinstance(outcome, Missing):
                    restage()
                rows = self.engine.backend.lookup(ids=[self.id])
                self.adopt_row(rows[0] if rows else None, epoch)
        raise Busy(f"conversation {self.name} changes faster than this write can be prepared")

    def _make_rebaser(
        self,
        make_change: Callable[[ConversationRow], "Prepared[T]"],
        enqueued: Callable[[PendingCommit, Change], None],
    ) -> "WriteRebaser[T]":
        from .rebase import WriteRebaser  # noqa: PLC0415  # only stores on a server have queues

        return WriteRebaser(self, make_change, enqueued)

    def _go_back(self, row: ConversationRow, epoch: int) -> None:
        """Restore the row from before a write that failed, or whose outcome is unknown. If that row is stale by now,
        the backend will say so."""
        with self.lock:
            if epoch == self.epoch:
                self.row, self.epoch = row, epoch + 1

    def add(
        self,
        drafts: Sequence[EncodedMessage],
        choose: Callable[[ConversationRow], Placement],
        enqueued: Callable[[PendingCommit, Change], None] = lambda _, __: None,
    ) -> list[Saved]:
        """Run `add_steps`, and wait."""
        return finish(self.engine.committer, self.add_steps(drafts, choose, enqueued))

    def add_steps(
        self,
        drafts: Sequence[EncodedMessage],
        choose: Callable[[ConversationRow], Placement],
        enqueued: Callable[[PendingCommit, Change], None] = lambda _, __: None,
        changes: ItemChanges = NO_CHANGES,
        *,
        is_bounded: bool = True,
    ) -> Steps[list[Saved]]:
        """Save the drafts in one transaction, with these `changes` of items. `choose` decides from the current row
        where the first one goes. Without `is_bounded`, the conversation may exceed its limit of bytes."""
        unput, put, writes = changes.unput, changes.put, changes.writes

        def make_change(drafts: Sequence[EncodedMessage], row: ConversationRow) -> "Prepared[list[Saved]]":
            spot = choose(self.read_stored_row() if writes else row)  # items are compared with the stored ones
            change, messages = self.prepare(self.row, drafts, spot, is_bounded=is_bounded)  # it may have looked again
            if change is not None and (unput or put is not None):
                change = replace(change, unput=unput, put=() if put is None else put(self.envelope))
            if writes:
                change = items.join(self, self.row, change, writes)[0]
            return change, messages

        steps = self.write_steps(drafts, make_change, enqueued, is_bounded=is_bounded, may_queue=not writes)
        return self._measure(steps) if self.engine.telemetry.is_on else steps

    def _measure(self, steps: Steps[T]) -> Steps[T]:
        with self.engine.telemetry.span("append"):
            return (yield from steps)

    def write(
        self,
        drafts: Sequence[EncodedMessage],
        make_change: Callable[[Sequence[EncodedMessage], ConversationRow], "Prepared[T]"],
        enqueued: Callable[[PendingCommit, Change], None] = lambda _, __: None,
        *,
        is_bounded: bool = True,
    ) -> T:
        """Run `write_steps`, and wait."""
        return finish(self.engine.committer, self.write_steps(drafts, make_change, enqueued, is_bounded=is_bounded))

    def write_steps(
        self,
        drafts: Sequence[EncodedMessage],
        make_change: Callable[[Sequence[EncodedMessage], ConversationRow], "Prepared[T]"],
        enqueued: Callable[[PendingCommit, Change], None] = lambda _, __: None,
        *,
        is_bounded: bool = True,
        may_queue: bool = True,
    ) -> Steps[T]:
        """Commit the change that `make_change` makes of the drafts, with large content; repeat as `commit` does."""
        while True:
            stage_again = partial(self.stage, drafts, is_bounded=is_bounded)
            try:
                stage_again()
                again = partial(make_change, drafts)
                return (yield from self.commit_steps(again, enqueued, stage_again, report_stored, may_queue=may_queue))
            except KeyChanged:
                for one in drafts:
                    unstage(self, one.sources)
                drafts = [one if one.again is None else one.again() for one in drafts]
            except Exception as error:
                for one in drafts:
                    unstage(self, one.sources)  # no message refers to it, and it might be secret
                if isinstance(error, StorageFull):
                    self.engine.quota.report_full(error)
                if isinstance(error, Conflict):
                    self.engine.telemetry.conflict("head")
                raise

    def stage(self, drafts: Sequence[EncodedMessage], *, is_bounded: bool = True) -> None:
        """Stage the large content of these drafts, if the workspace and the conversation may hold them."""
        self.engine.quota.admit(lambda: _count_bytes(self._select_new(drafts)))
        if is_bounded and self.engine.max_conversation_bytes is not None:
            new = self._select_new(drafts)
            self.check_room(self.row.size + sum(len(one.data) for one in new), self._count_new_bytes(new))
        for one in drafts:
            if one.sources:
                self.engine.committer.check()
                stage(self, one.sources, one.generation)

    def check_room(self, size: int, coming: int = 0) -> None:
        """Raise `ConversationFull` if the conversation would be too large: with messages of `size` bytes, and `coming`
        bytes of attachments beside those that are stored."""
        limit = self.engine.max_conversation_bytes
        if limit is not None:
            whole = size + coming + self.engine.backend.attached(self.id)
            if whole > limit:
                raise ConversationFull(self.name, whole, limit)

    def _count_new_bytes(self, drafts: Sequence[EncodedMessage]) -> int:
        """Return how many bytes of attachments are not stored yet."""
        sizes = {attached.name: attached.size for one in drafts for attached in one.sources}
        there = self.engine.backend.attachments(self.id, list(sizes)) if sizes else []
        return sum(sizes.values()) - sum(sizes[row.name] for row in there if row.chunks)

    def find_existing(self, drafts: Sequence[EncodedMessage]) -> dict[str, MessageRow]:
        """Return the messages that are stored already, by the caller's own key."""
        for draft in drafts:
            if draft.message.key is not None:
                break
        else:
            return {}  # most messages have no key, and each append comes by here
        wanted = [draft.message.key for draft in drafts if draft.message.key is not None]
        keys = {tag: key for key in wanted for tag in self.envelope.tags("key", key)}
        rows = self.engine.backend.messages(keys=(self.id, list(keys)))
        return {keys[row.key]: row for row in rows if row.key is not None}

    def _select_new(self, drafts: Sequence[EncodedMessage]) -> list[EncodedMessage]:
        """Return the drafts that are not stored already."""
        known = self.find_existing(drafts)
        return [one for one in drafts if one.message.key is None or one.message.key not in known]

    def prepare(
        self,
        row: ConversationRow,
        drafts: Sequence[EncodedMessage],
        spot: Placement,
        *,
        head_at: int | None = None,
        is_bounded: bool = True,
        is_packed: bool = False,
    ) -> tuple[Change | None, list[Saved]]:
        """The change that adds the drafts to this row, and the messages as they will be. The last one on the main flow
        becomes the head, or the one of this place among the drafts. `is_packed`: full runs are packed at once."""
        engine, envelope = self.engine, self.envelope
        close, name_of = envelope.close_message, engine.message_ids.id
        known = self.find_existing(drafts)
        if known and self.is_row_locked:
            raise RowChanged  # reading the stored message may take more than a row: the owner does it
        for d in drafts:
            if d.sources and d.generation != envelope.generation:
                raise KeyChanged
        token, now = new_token(), max(engine.clock(), row.active_at)
        at = row.active_at
        placed: list[int] = []
        tips, seq, head, size = row.tips, row.next_seq, row.head, row.size
        rows: list[MessageRow] = []
        contents: list[bytes] = []
        packs: tuple[PackRow, ...] = ()
        tags: list[Tag] = []
        attach: list[tuple[int, bytes]] = []
        messages: list[Saved] = []
        last, above = self._last  # the message numbered last, whose child comes next as a rule
        parent, main, link = spot.parent, spot.main, spot.link
        for d in drafts:
            m, data, own, key = d.message, d.data, d.spot, d.message.key
            if key is not None and key in known:
                there = known[key]
                messages.append(engine.read_message(there, self))
                if messages[-1].key != key:
                    raise Damaged(f"message {messages[-1].id} is found by a key that is not its own")
                parent, main, link = there.number, bool(there.main), None
                placed.append(parent)
                continue
            if own is not None:
                parent, main, link = _resolve_number(own.parent, placed), own.main, _resolve_number(own.link, placed)
            at = now if d.at is None else min(max(d.at, at), now)
            if parent is not None and parent in tips:
                number = parent + 1
                others = tips[1:] if parent == tips[0] else tuple(tip for tip in tips if tip != parent)
                tips = (number, *others) if (number + 1) % RUN else others
            else:
                number = engine.new_run()
                tips = (number, *tips[: _TIPS - 1])
            tag = None if key is None else envelope.tags("key", key)[0]
            new = MessageRow(number, self.id, seq, parent, link, main, m.role, 0, at, None, tag, token, len(data))
            if is_packed:
                contents.append(data)
            else:
                force_setattr(new, "body", close(new, data))  # no other code has seen it yet
            rows.append(new)
            if d.sources:
                attach += [(number, attached.name) for attached in d.sources]
            if parent != last:
                above = None if parent is None else name_of(parent)
            last = number
            id = name_of(number)
            saved = Saved(
                m.role, tuple(m.blocks), m.label, key, m.tool_result_error, m.extra, m.raw, m.usage, m.privacy,
                above, id, self.name, seq, at, None if link is None else name_of(link), main,
            )  # fmt: skip
            messages.append(saved)
            above = id
            if m.label is not None:
                tags += label_tags(engine.codec, m.label, number)
            if key is not None:
                known[key] = new
            if main:
                head = number
            seq += 1
            size += len(data)
            placed.append(number)
            parent, link = number, None
        if not rows:
            return None, messages
        if is_bounded and engine.max_conversation_bytes is not None:
            self.check_room(size)  # again: another process may have written since, and this row is the one that counts
        self._last = last, above
        if head_at is not None:
            head = None if head_at < 0 else placed[head_at]
        after = ConversationRow(
            row.id, row.kind, row.key, row.version + 1, token, row.generation, head, tips, seq,
            row.count + len(rows), size, row.rewrites, row.created_at, at, row.expires_at, row.held,
            row.data_key, row.meta, b"",
        )  # fmt: skip
        add = tuple(rows)
        if is_packed:
            add, packs = close_bodies(envelope, rows, contents)
        total = envelope.total(row) + envelope.weigh((*add, *packs))
        force_setattr(after, "proof", envelope.prove(after, total))
        return Change(self.id, row.token, after, add=add, pack=packs, tag=tuple(tags), attach=tuple(attach)), messages


def _count_bytes(drafts: Sequence[EncodedMessage]) -> int:
    """Return how many bytes the drafts take, with their attachments."""
    return sum(len(one.data) + sum(attached.size for attached in one.sources) for one in drafts)


def _resolve_number(number: int | None, placed: Sequence[int]) -> int | None:
    """Return the number of a message that a placement names, which may be one of the same write."""
    return number if number is None or number >= 0 else placed[~number]


def clean_together(engine: "Engine", messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of one write, redacted together."""
    if engine.redactor is None:
        return messages
    for message in messages:
        check(message)
    return engine.redactor.together(messages)


def encode_message(
    state: ConversationState,
    message: Message,
    setup: int,
    spot: Placement | None = None,
    origin: str | None = None,
    at: int | None = None,
    *,
    is_checked: bool = False,
    is_clean: bool = False,
) -> EncodedMessage:
    """Check, redact and encode a message, as far as that was not done."""
    if not is_checked:
        check(message)
    if state.engine.redactor is not None and not is_clean:
        message = state.engine.redactor.message(message)
    body = body_of(message, setup, origin)
    try:
        data = encode(body)
        if len(data) <= LARGE:
            return EncodedMessage(message, data, spot, at)
    except HasAttachment:
        pass
    envelope = state.envelope
    body, sources = spill(state, envelope, body)
    if not body.attached:
        return EncodedMessage(message, data, spot, at)
    data = encode(body)
    text = sum(attached.size for attached in body.attached if attached.text)
    again = partial(encode_message, state, message, setup, spot, origin, at, is_clean=True)
    return EncodedMessage(
        _replace_sources(state, message, body, sources), data, spot, at, text, sources, envelope.generation, again
    )


def _replace_sources(state: ConversationState, message: Message, body: Body, sources: Sources) -> Message:
    """Return the message for the caller: attachments from outside are replaced by those of the store."""
    if all(source.in_memory for source in sources.values()):
        return message

    def fill(attached: Attached) -> str | bytes | Attachment:
        source = sources.get(attached)
        if source is None:
            return hole(attached)
        return source.load() if source.in_memory else open_attachment(state, attached)

    named = without_holes(body, fill)
    return replace(message, blocks=named.blocks, extra=named.extra, raw=named.raw, privacy=named.privacy)


def check_size(drafts: Sequence[EncodedMessage], limit: int) -> None:
    """One write carries at most so much text and JSON."""
    size = 0
    for d in drafts:
        size += len(d.data) + d.weight
    if size > limit:
        size = sum(text_size(d.message, len(d.data)) + d.weight for d in drafts)
        if size > limit:
            raise PayloadTooLarge(size, limit)


def label_tags(codec: Codec, label: str, number: int) -> list[Tag]:
    """The tags that find a label again: the label itself and, for a sub-agent's, its name."""
    return [Tag(codec.tag(field, value), number) for field, value in label_fields(label)]


def label_fields(label: str) -> list[tuple[str, str]]:
    fields = [("label", label)]
    if trace_of(label) is not None:
        fields.append(("subagent", label.split(":")[1]))
    return fields


def close_meta(envelope: Envelope, conversation: bytes, meta: Meta, limit: int) -> bytes:
    """The description as it is stored. It counts as a write: so much text and no more."""
    data = encode(meta)
    if len(data) > limit:
        raise PayloadTooLarge(len(data), limit)
    return envelope.close(meta_place(conversation), data)


def build_description_change(state: ConversationState, row: ConversationRow, **fields: object) -> Change:
    """The change that sets these fields of a conversation's description, and the tags that find it."""
    envelope, codec = state.check(row), state.engine.codec
    before = open_meta(envelope, row)
    meta = replace(before, **fields)
    change = build_row_change(state, row, meta=close_meta(envelope, row.id, meta, state.engine.max_write_bytes))
    if description_fields(meta) == description_fields(before):
        return change
    tags = description_tags(codec, meta)
    gone = {Tag(name) for field in description_fields(before) for name in codec.tags(*field)}.difference(tags)
    return replace(change, tag=tags, untag=tuple(gone))


def build_row_change(state: ConversationState, row: ConversationRow, **fields: object) -> Change:
    """The change that sets these fields of a conversation's row. It counts as one that rewrites something, so that a
    reader that compares revisions notices. In a sealed one the ledger is written along, or the old row could be put
    back."""
    envelope = state.check(row)
    found = read(state.engine, envelope, row)
    rewrites = row.rewrites + 1
    after = next_row(envelope, row, (), (), rewrites=rewrites, **fields)
    put = () if found is None else (found.item(envelope, row.id, rewrites),)
    return Change(row.id, row.token, after, put=put)
