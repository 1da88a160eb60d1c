"""The store: the one object people hold.

It joins a backend (rows), a codec (what rows contain) and the rules of the tree: who gets which number and sequence, where the head is,
what a conflict means, what may be deleted. Everything it promises holds on every backend, because every decision is made here.

The store is thread-safe. Conversation handles and listings come from it and are used with it; after `close` they raise `Closed`.
"""

import base64
import heapq
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType

import msgspec
from msgspec import Struct

from ._content import (
    Meta,
    WorkspaceMeta,
    encode,
    meta_place,
    open_body,
    open_meta,
    open_workspace,
    saved,
    saved_stretch,
)
from ._desk import Desk, Draft, Spot, check_size, close_meta, draft, next_row
from ._pen import Pen
from ._verify import Report, verify
from .backend import (
    CHAT,
    WORKSPACE,
    Backend,
    Batch,
    Change,
    ConversationRow,
    MessageRow,
    Position,
    Stale,
    Tag,
    Taken,
    Where,
)
from .conversation import Conversation, checked_tools, setup_item
from .errors import (
    AlreadyExists,
    Ambiguous,
    Busy,
    Closed,
    Damaged,
    HasChildren,
    Held,
    InvalidArgument,
    InvalidCursor,
    InvalidID,
    NotFound,
)
from .ids import (
    Names,
    check_message_id,
    is_conversation_prefix,
    new_conversation_id,
    new_token,
    parse_conversation_id,
    show_conversation_id,
)
from .model import Message, Saved, Setup, approximate_tokens, check_strings, to_datetime
from .vault import Codec, Plain

_WORKSPACE_KEY = b"workspace"
_TRIES = 1000
MAX_WRITE_BYTES = 10_000_000

PURGE_REASONS = (
    "user-requested",
    "retention-expired",
    "privacy-policy-change",
    "workspace-reset",
    "corruption-detected",
)


def _now() -> int:
    return time.time_ns() // 1000


class ConversationInfo:
    """A conversation in a listing. Its description is opened when it is looked at, so listing costs no decoding."""

    __slots__ = ("_meta", "_row", "_store")

    def __init__(self, store: "Store", row: ConversationRow) -> None:
        self._store = store
        self._row = row
        self._meta: Meta | None = None

    def __repr__(self) -> str:
        return f"<ConversationInfo {self.id}, {self.count} messages>"

    def _described(self) -> Meta:
        if self._meta is None:
            self._meta = open_meta(self._store.codec.envelope(self._row), self._row)
        return self._meta

    @property
    def id(self) -> str:
        return show_conversation_id(self._row.id)

    @property
    def title(self) -> str:
        return self._described().title

    @property
    def key(self) -> str | None:
        return self._described().key

    @property
    def project(self) -> str | None:
        return self._described().project

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._described().metadata)

    @property
    def head(self) -> str | None:
        return None if self._row.head is None else self._store.names.id(self._row.head)

    @property
    def count(self) -> int:
        """Messages on all branches."""
        return self._row.count

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self._row.size

    @property
    def approximate_tokens(self) -> int:
        return approximate_tokens(self._row.size)

    @property
    def created_at(self) -> datetime:
        return to_datetime(self._row.created_at)

    @property
    def active_at(self) -> datetime:
        return to_datetime(self._row.active_at)

    @property
    def expires_at(self) -> datetime | None:
        return None if self._row.expires_at is None else to_datetime(self._row.expires_at)

    @property
    def held(self) -> bool:
        return self._row.held

    @property
    def problem(self) -> str | None:
        """Why the description cannot be read; None if it can."""
        try:
            self._described()
        except Damaged as error:
            return str(error)
        return None


class Page(Struct, frozen=True):
    """A part of a listing."""

    items: list[ConversationInfo]
    next_cursor: str | None
    total: int | None = None


class PurgeReport(Struct, frozen=True):
    """What a purge did."""

    reason: str
    started_at: datetime
    completed_at: datetime
    purged_count: int
    failures: tuple[tuple[str, str], ...] = ()  # id and error
    scrub_pending: bool = False  # a reader delays the removal of the last bytes from the files; `scrub` finishes it


class Stats(Struct, frozen=True):
    """What a store holds."""

    conversations: int
    messages: int
    content_bytes: int
    approximate_tokens: int
    stored_bytes: int
    oldest: datetime | None
    newest: datetime | None


class MessageListing(Iterator[Saved]):
    """Messages, read as they are asked for. `cursor` marks the place after the last one given out."""

    def __init__(self, store: "Store", rows: Iterator[MessageRow], newest_first: bool) -> None:
        self._store = store
        self._rows = rows
        self._order = "newest" if newest_first else "oldest"
        self._last: MessageRow | None = None

    def __iter__(self) -> "MessageListing":
        return self

    def __next__(self) -> Saved:
        row = next(self._rows)
        self._last = row
        return self._store.shown(row)

    @property
    def cursor(self) -> str | None:
        """Pass it as `cursor=` to the same listing to go on from here."""
        if self._last is None:
            return None
        return self._store.cursor(
            f"messages {self._order}", self._last.created_at, self._last.conversation, self._last.seq
        )


class Store:
    """Conversations, kept. Open one with `hitherto.open`."""

    def __init__(
        self,
        backend: Backend,
        codec: Codec | None = None,
        *,
        clock: Callable[[], int] = _now,
        max_write_bytes: int = MAX_WRITE_BYTES,
    ) -> None:
        """`clock` gives microseconds since 1970; `max_write_bytes` limits the text and JSON of one write."""
        self.backend = backend
        self.codec: Codec = Plain() if codec is None else codec
        self.clock = clock
        self.max_write_bytes = max_write_bytes
        self.pen = Pen(backend)
        self._closed = False
        self._desks: weakref.WeakValueDictionary[bytes, Desk] = weakref.WeakValueDictionary()
        self.names = Names(self._ensure_workspace().seed)

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.backend.info.location}>"

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Wait for writes that are on their way, then let go of everything. Idempotent."""
        if not self._closed:
            self._closed = True
            self.pen.drain(timeout_seconds)
            self.backend.close()

    def ensure_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def _ensure_workspace(self) -> WorkspaceMeta:
        """The workspace's own row, made by whoever comes first."""
        for _ in range(3):
            rows = self.backend.lookup(key=(WORKSPACE, _WORKSPACE_KEY))
            if rows:
                return open_workspace(self.codec.envelope(rows[0]), rows[0])
            row = self._new_row(new_conversation_id(), WORKSPACE, _WORKSPACE_KEY)
            envelope = self.codec.envelope(row)
            meta = envelope.close(meta_place(row.id), encode(WorkspaceMeta(os.urandom(16))))
            self.pen.write(Batch((Change(row.id, 0, msgspec.structs.replace(row, meta=meta)),)))
        raise Busy("the workspace could not be set up")

    def _new_row(self, id: bytes, kind: str, key: bytes | None) -> ConversationRow:
        now = self.clock()
        return ConversationRow(
            id, kind, key, version=now, token=new_token(), generation=1, head=None, tips=(), next_seq=0, count=0, size=0, removals=0, created_at=now,
            active_at=now, expires_at=None, held=False, data_key=self.codec.new_data_key(id), meta=b"", proof=b"",
        )  # fmt: skip

    # -- conversations

    def start(
        self, *, title: str = "", system_prompt: str = "", provider: str = "", model: str = "", tools: Sequence[Mapping[str, object]] = (),
        metadata: Mapping[str, str] | None = None, project: str | os.PathLike[str] | None = None, id: str | None = None,
    ) -> Conversation:  # fmt: skip
        """Start a conversation. `id` is a UUID of the caller's choice; if it is taken, `AlreadyExists`."""
        setup = Setup(provider, model, system_prompt, checked_tools(tools))
        found = self._start(None, title, setup, metadata, project, id)
        if found is None:
            raise AlreadyExists("a conversation with this id", id or "")
        return found

    def ensure(
        self, key: str, *, title: str = "", system_prompt: str = "", provider: str = "", model: str = "", tools: Sequence[Mapping[str, object]] = (),
        metadata: Mapping[str, str] | None = None, project: str | os.PathLike[str] | None = None,
    ) -> Conversation:  # fmt: skip
        """The conversation of that name: the one that is there, or a new one made from the other arguments."""
        self.ensure_open()
        if not isinstance(key, str) or not key:
            raise InvalidArgument("the key of a conversation is text, and not empty")
        setup = Setup(provider, model, system_prompt, checked_tools(tools))
        for _ in range(3):
            rows = self.backend.lookup(key=(CHAT, self.codec.tag("conversation", key)))
            if rows:
                return self._handle(rows[0])
            made = self._start(key, title, setup, metadata, project, None)
            if made is not None:
                return made
        raise Busy("the conversation is made and removed by others at the same time")

    def _start(
        self,
        key: str | None,
        title: str,
        setup: Setup,
        metadata: Mapping[str, str] | None,
        project: str | os.PathLike[str] | None,
        id: str | None,
    ) -> Conversation | None:
        """A new conversation, or None if its id or key is taken."""
        self.ensure_open()
        if not all(isinstance(text, str) for text in (title, setup.provider, setup.model, setup.system_prompt)):
            raise InvalidArgument("title, provider, model and system_prompt are text")
        where = None if project is None else os.path.abspath(os.path.expanduser(os.fspath(project)))
        row = self._new_row(
            new_conversation_id() if id is None else parse_conversation_id(id),
            CHAT,
            None if key is None else self.codec.tag("conversation", key),
        )
        desk = Desk(self, row)
        configured = setup != Setup()
        meta = Meta(title, key, where, check_strings(metadata, "metadata"), 1 if configured else 0)
        row = desk.row = msgspec.structs.replace(row, meta=close_meta(desk.envelope, row.id, meta))
        items = (setup_item(desk, 0, setup),) if configured else ()
        tags = () if where is None else (Tag(self.codec.tag("project", where)),)
        outcome = self.pen.write(Batch((Change(row.id, 0, row, put=items, tag=tags),)))
        if isinstance(outcome, Taken):
            return None
        self._desks[row.id] = desk
        return Conversation(desk, None)

    def conversation(self, id: str) -> Conversation:
        """The conversation of an id, of a unique beginning of one, or of a message, at which the handle then stands."""
        self.ensure_open()
        row, at = self._find(id)
        return self._handle(row) if at is None else self._handle_at(row, at)

    def latest(self, *, project: str | os.PathLike[str] | None = None) -> Conversation | None:
        """The conversation that was active last, or None if there is none."""
        self.ensure_open()
        rows = self.backend.page(self._where(project, include_expired=False), None, 1)
        return self._handle(rows[0]) if rows else None

    def conversations(
        self,
        *,
        limit: int = 20,
        cursor: str | None = None,
        project: str | os.PathLike[str] | None = None,
        total: bool = False,
        include_expired: bool = False,
    ) -> Page:
        """Conversations by last activity, newest first. `total=True` also counts them all, which is slow in large stores."""
        self.ensure_open()
        _check_limit(limit)
        after = None
        if cursor is not None:
            at, id = self.position("conversations", cursor, (int, bytes))
            after = Position(at, id)
        where = self._where(project, include_expired=include_expired)
        rows = self.backend.page(where, after, limit + 1)
        items = [ConversationInfo(self, row) for row in rows[:limit]]
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(
            items,
            None if last is None else self.cursor("conversations", last.active_at, last.id),
            self.backend.count(where) if total else None,
        )

    def _where(self, project: str | os.PathLike[str] | None, *, include_expired: bool) -> Where:
        tag = (
            None
            if project is None
            else self.codec.tag("project", os.path.abspath(os.path.expanduser(os.fspath(project))))
        )
        return Where(CHAT, tag, None if include_expired else self.clock())

    def _handle(self, row: ConversationRow) -> Conversation:
        desk = self._desk(row)
        return Conversation(desk, desk.row.head)

    def _handle_at(self, row: ConversationRow, message: MessageRow) -> Conversation:
        desk = self._desk(row)
        body = open_body(desk.envelope, message)
        main = bool(message.main)
        return Conversation(
            desk,
            message.number,
            main=main,
            label=None if main else body.label,
            setup=None if row.head == message.number else body.setup,
        )

    def _desk(self, row: ConversationRow) -> Desk:
        desk = self._desks.get(row.id)
        if desk is None:
            desk = self._desks.setdefault(row.id, Desk(self, row))
        desk.believe(row)
        return desk

    def _find(self, id: str) -> tuple[ConversationRow, MessageRow | None]:
        """What an id argument means: an exact message id, then a unique beginning of a message or conversation id."""
        if not isinstance(id, str) or not id or len(id) > 36:
            raise InvalidID(id)
        if len(id) == 36:
            return self.fresh_row(parse_conversation_id(id)), None
        if not (id.isascii() and id.replace("-", "").isalnum()):
            raise InvalidID(id)
        if len(id) in (6, 8):
            message = self._maybe_message(id)
            if message is not None:
                return self.fresh_row(message.conversation), message
        rows = self.backend.lookup(prefix=id.replace("-", ""), limit=3) if is_conversation_prefix(id) else []
        messages = self._messages_beginning(id) if len(id) < 6 else []
        shown = [show_conversation_id(row.id) for row in rows if row.kind == CHAT] + [
            self.names.id(number) for number in messages
        ]
        if not shown:
            raise NotFound("message or conversation", [id])
        if len(shown) > 1:
            raise Ambiguous(id, shown)
        if messages:
            message = self.message_row(shown[0])
            return self.fresh_row(message.conversation), message
        return next(row for row in rows if row.kind == CHAT), None

    def _maybe_message(self, id: str) -> MessageRow | None:
        try:
            return self.message_row(id)
        except (NotFound, InvalidID):
            return None

    def _messages_beginning(self, prefix: str) -> list[int]:
        """Up to two messages whose id begins so. Long prefixes are turned into numbers; for short ones we look until two are found."""
        if "-" in prefix:
            return []
        if len(prefix) >= 4:
            rows = self.backend.messages(numbers=self.names.with_prefix(prefix), bodies=False)
            return [row.number for row in rows[:2]]
        found: list[int] = []
        for numbers in self.backend.numbers():
            found += [number for number in numbers if self.names.id(number).startswith(prefix)]
            if len(found) > 1:
                break
        return found[:2]

    # -- the narrow protocols: save, get, list, delete

    def save(
        self, messages: Iterable[Message], *, parent: str | None = None, conversation: str | Conversation | None = None
    ) -> list[str]:
        """Save messages in one transaction; their ids, in order.

        Each goes below its own `parent` if it has one, otherwise below the one before. The first goes below `parent`, or below the head of
        `conversation`, or starts a new conversation.
        """
        self.ensure_open()
        if isinstance(messages, Message):
            raise InvalidArgument("save takes a list of messages", hint="save([message])")
        given = list(messages)
        if not given:
            raise InvalidArgument("there is no message to save", hint="give at least one message")
        parents = {
            id: self.message_row(id) for id in dict.fromkeys([parent, *(_parent(m) for m in given)]) if id is not None
        }
        desk = self._desk_for(conversation, list(parents.values()))
        drafts = [draft(m, 0, None if _parent(m) is None else _below(parents[str(_parent(m))])) for m in given]
        check_size(drafts, self.max_write_bytes)
        if desk is None:
            desk = self.start()._desk
        return [
            message.id for message in self._save(desk, drafts, None if parent is None else parents[parent], parents)
        ]

    def _desk_for(self, conversation: str | Conversation | None, parents: Sequence[MessageRow]) -> Desk | None:
        """The desk of the conversation that is meant, None for a new one; parents elsewhere are refused."""
        if isinstance(conversation, Conversation):
            desk: Desk | None = conversation._desk
        elif conversation is not None:
            desk = self.conversation(conversation)._desk
        else:
            desk = self._desk(self.fresh_row(parents[0].conversation)) if parents else None
        foreign = [self.names.id(row.number) for row in parents if desk is None or row.conversation != desk.id]
        if foreign:
            raise NotFound("message in this conversation", foreign)
        return desk

    def _save(
        self, desk: Desk, drafts: list[Draft], parent: MessageRow | None, parents: Mapping[str, MessageRow]
    ) -> list[Saved]:
        seen = desk.row.removals

        def choose(row: ConversationRow) -> Spot:
            if row.removals != seen:
                for id in parents:
                    self.message_row(id)  # NotFound if it was deleted meanwhile
            return Spot(row.head) if parent is None else _below(parent)

        return desk.add(drafts, choose)

    def get(self, ids: Iterable[str]) -> list[Saved]:
        """Messages by id, in the order asked for. `NotFound` names every one that is missing."""
        self.ensure_open()
        wanted = _ids(ids)
        numbers: dict[str, int] = {}
        missing = []
        for id in wanted:
            check_message_id(id)
        for id in dict.fromkeys(wanted):
            try:
                numbers[id] = self.names.number(id)
            except NotFound:
                missing.append(id)
        rows = {row.number: row for row in self.backend.messages(numbers=list(numbers.values()))}
        missing += [id for id, number in numbers.items() if number not in rows]
        if missing:
            raise NotFound("message" if len(missing) == 1 else "messages", missing)
        found = {id: self.saved(rows[number]) for id, number in numbers.items()}
        return [found[id] for id in wanted]

    def message(self, id: str) -> Saved:
        """One message."""
        self.ensure_open()
        return self.saved(self.message_row(id))

    def thread(self, id: str) -> list[Saved]:
        """The messages from the root to this one."""
        self.ensure_open()
        row = self.message_row(id)
        return [m for m in self.path(row.number, self._desk(self.fresh_row(row.conversation))) if m.role != "event"]

    def messages(
        self, *, newest_first: bool = True, offset: int = 0, cursor: str | None = None, conversation: str | Conversation | None = None,
        label: str | None = None, subagent: str | None = None,
    ) -> MessageListing:  # fmt: skip
        """Messages as a lazy iterator, ordered by (time, conversation, sequence); of one conversation, by sequence.

        `label` lists those with exactly this label, `subagent` those of every run of that sub-agent. A message whose content cannot be
        read is listed with its `problem`, and the others go on.
        """
        self.ensure_open()
        if type(offset) is not int or offset < 0:
            raise InvalidArgument("the offset is a number from 0 up")
        key = (
            None
            if cursor is None
            else self.position(f"messages {'newest' if newest_first else 'oldest'}", cursor, (int, bytes, int))
        )
        if label is not None or subagent is not None:
            rows = self._tagged(label, subagent, newest_first)
        elif conversation is not None:
            id = conversation._desk.id if isinstance(conversation, Conversation) else self._find(conversation)[0].id
            rows = self._scan(id, newest_first)
        else:
            rows = self._merged(newest_first)
        if key is not None:
            rows = (row for row in rows if (_order(row) < key if newest_first else _order(row) > key))
        for _ in range(offset):
            next(rows, None)
        return MessageListing(self, rows, newest_first)

    def _scan(self, conversation: bytes, newest_first: bool) -> Iterator[MessageRow]:
        """All messages of a conversation by sequence, a few at first, then more at a time."""
        after, limit = None, 8
        while True:
            rows = self.backend.scan(conversation, after=after, newest_first=newest_first, limit=limit)
            yield from rows
            if len(rows) < limit:
                return
            after, limit = rows[-1].seq, min(2 * limit, 256)

    def _merged(self, newest_first: bool) -> Iterator[MessageRow]:
        """All messages of all conversations by time. Times never fall along a conversation, so its last activity (or its beginning) says
        from where on it has to be looked at: conversations are opened one by one as the listing reaches them."""
        heap: list[tuple[tuple[int, int, int], MessageRow, Iterator[MessageRow]]] = []
        sign = -1 if newest_first else 1

        def push(rows: Iterator[MessageRow]) -> None:
            row = next(rows, None)
            if row is not None:
                place = (sign * row.created_at, sign * int.from_bytes(row.conversation, "big"), sign * row.seq)
                heapq.heappush(heap, (place, row, rows))

        closed = (row for row in self.rows(Where(CHAT), oldest_first=not newest_first) if row.count)
        upcoming = next(closed, None)
        while heap or upcoming is not None:
            while upcoming is not None:
                bound = -upcoming.active_at if newest_first else upcoming.created_at
                if heap and bound > heap[0][0][0]:
                    break
                push(self._scan(upcoming.id, newest_first))
                upcoming = next(closed, None)
            if heap:
                _, row, rows = heapq.heappop(heap)
                yield row
                push(rows)

    def _tagged(self, label: str | None, subagent: str | None, newest_first: bool) -> Iterator[MessageRow]:
        wanted = [
            self.codec.tag(field, value)
            for field, value in (("label", label), ("subagent", subagent))
            if value is not None
        ]
        found = [
            {number for _, number in self.backend.tagged(tag, limit=1_000_000) if number is not None} for tag in wanted
        ]
        rows = self.backend.messages(numbers=sorted(set.intersection(*found)))
        return iter(sorted(rows, key=_order, reverse=newest_first))

    def delete(self, ids: Iterable[str], *, recursive: bool = False, missing_ok: bool = False) -> list[str]:
        """Delete messages in one transaction; the ids of all that went.

        A message with others below it is refused (`HasChildren`) unless `recursive`, which takes the whole subtree and the traces of
        sub-agents started in it. A head that goes moves to the parent of what was deleted.
        """
        self.ensure_open()
        wanted = [check_message_id(id) for id in _ids(ids)]
        for _ in range(_TRIES):
            numbers, missing = self._existing(wanted)
            if missing and not missing_ok:
                raise NotFound("message" if len(missing) == 1 else "messages", missing)
            if not numbers:
                return []
            changes = [self._deletion(conversation, chosen, recursive) for conversation, chosen in numbers.items()]
            outcome = self.pen.write(Batch(tuple(changes)))
            if not isinstance(outcome, (Stale, Taken)):
                for change in changes:
                    desk = self._desks.get(change.conversation)
                    if desk is not None:
                        desk.believe(change.row)
                return [self.names.id(number) for change in changes for number in change.drop]
        raise Busy("the conversation changes faster than this delete can be prepared")

    def _existing(self, ids: Sequence[str]) -> tuple[dict[bytes, set[int]], list[str]]:
        """The numbers of these messages by conversation, and the ids that are not there."""
        numbers: dict[str, int] = {}
        for id in dict.fromkeys(ids):
            try:
                numbers[id] = self.names.number(id)
            except NotFound:
                numbers[id] = -1
        rows = {row.number: row for row in self.backend.messages(numbers=list(numbers.values()), bodies=False)}
        found: dict[bytes, set[int]] = {}
        for row in rows.values():
            found.setdefault(row.conversation, set()).add(row.number)
        return found, [id for id, number in numbers.items() if number not in rows]

    def _deletion(self, conversation: bytes, chosen: set[int], recursive: bool) -> Change:
        """The change that deletes these messages, prepared from the conversation as it is now."""
        row = self.fresh_row(conversation)
        if row.held:
            raise Held(f"conversation {show_conversation_id(conversation)} is on hold")
        rows = self.headers(conversation)
        doomed = set(chosen)
        for m in rows:  # by sequence: parents before children, calls before the traces that serve them
            if m.parent in doomed or (m.parent is None and not m.main and m.link in doomed):
                doomed.add(m.number)
        if not recursive and doomed != chosen:
            raise HasChildren(
                [
                    self.names.id(m.parent if m.parent is not None else m.link)
                    for m in rows
                    if m.number in doomed - chosen and (m.parent if m.parent is not None else m.link) in chosen
                ]
            )  # type: ignore[arg-type]  # noqa: E501
        dropped = self.backend.messages(numbers=sorted(doomed))
        envelope = self.codec.envelope(row)
        # A compaction that loses what it continues stays, without the link.
        orphans = [m for m in rows if m.number not in doomed and m.link in doomed]
        amended, replaced = self._unlinked(orphans, row)
        after = next_row(
            row,
            head=_new_head(row.head, rows, doomed),
            tips=tuple(tip for tip in row.tips if tip not in doomed),
            count=row.count - len(doomed),
            size=row.size - sum(m.size for m in dropped),
            removals=row.removals + 1,
            proof=envelope.prove(row.proof, amended, [*dropped, *replaced]),
        )
        return Change(
            conversation,
            row.version,
            after,
            amend=tuple(amended),
            drop=tuple(m.number for m in rows if m.number in doomed),
        )

    def _unlinked(
        self, orphans: Sequence[MessageRow], row: ConversationRow
    ) -> tuple[list[MessageRow], list[MessageRow]]:
        old = self.backend.messages(numbers=[m.number for m in orphans]) if orphans else []
        envelope = self.codec.envelope(row)
        new = []
        for m in old:
            bare = msgspec.structs.replace(m, link=None, revision=m.revision + 1, body=None)
            new.append(msgspec.structs.replace(bare, body=envelope.close_message(bare, envelope.open_message(m))))
        return new, old

    # -- care

    def purge(self, conversation: str | Conversation, *, reason: str) -> PurgeReport:
        """Destroy a conversation with all its branches, and take its bytes out of the files.

        `scrub_pending` in the report means that a reader delays the last step: `scrub` finishes it.
        """
        self.ensure_open()
        if reason not in PURGE_REASONS:
            raise InvalidArgument(
                f"not a reason for a purge: {reason!r:.60}", hint="one of " + ", ".join(PURGE_REASONS)
            )
        started = self.clock()
        id = conversation._desk.id if isinstance(conversation, Conversation) else parse_conversation_id(conversation)

        def make(row: ConversationRow) -> Change:
            if row.held:
                raise Held(f"conversation {show_conversation_id(row.id)} is on hold")
            return Change(row.id, row.version, None)

        self.change(id, make)
        scrubbed = self.backend.scrub()
        return PurgeReport(reason, to_datetime(started), to_datetime(self.clock()), 1, (), not scrubbed)

    def scrub(self) -> bool:
        """Take deleted bytes out of the files now. False if a reader delays it."""
        self.ensure_open()
        return self.backend.scrub()

    def stats(self) -> Stats:
        """How much there is. Reads every conversation's row."""
        self.ensure_open()
        rows = list(self.rows(Where(CHAT)))
        size = sum(row.size for row in rows)
        return Stats(
            len(rows), sum(row.count for row in rows), size, approximate_tokens(size), self.backend.size(),
            min((to_datetime(row.created_at) for row in rows), default=None), max((to_datetime(row.active_at) for row in rows), default=None),
        )  # fmt: skip

    def verify(self, progress: Callable[[int], None] | None = None) -> Report:
        """Read everything and derive it again: the shape of every tree, sequence, sizes, checksums. Names every problem it finds."""
        self.ensure_open()
        return verify(self, progress)

    # -- for the modules beside this one

    def change(self, conversation: bytes, make: Callable[[ConversationRow], Change]) -> None:
        """Commit a change prepared from what the backend holds now, not from what we believe; again if somebody was faster."""
        for _ in range(_TRIES):
            outcome = self.pen.write(Batch((make(self.fresh_row(conversation)),)))
            if not isinstance(outcome, (Stale, Taken)):
                desk = self._desks.get(conversation)
                rows = self.backend.lookup(ids=[conversation])
                if desk is not None and rows:
                    desk.believe(rows[0])
                return
        raise Busy(f"conversation {show_conversation_id(conversation)} changes faster than this write can be prepared")

    def rows(self, where: Where, *, oldest_first: bool = True) -> Iterator[ConversationRow]:
        """All conversations, a page at a time."""
        after = None
        while True:
            rows = self.backend.page(where, after, 200, oldest_first=oldest_first)
            yield from rows
            if len(rows) < 200:
                return
            after = Position(rows[-1].created_at if oldest_first else rows[-1].active_at, rows[-1].id)

    def fresh_row(self, conversation: bytes) -> ConversationRow:
        rows = self.backend.lookup(ids=[conversation])
        if not rows or rows[0].kind == WORKSPACE:
            raise NotFound("conversation", [show_conversation_id(conversation)])
        return rows[0]

    def message_row(self, id: str) -> MessageRow:
        rows = self.backend.messages(numbers=[self.names.number(id)])
        if not rows:
            raise NotFound("message", [id])
        return rows[0]

    def saved(self, row: MessageRow, desk: Desk | None = None) -> Saved:
        """A row as a message; `Damaged` if its content cannot be read."""
        if desk is None:
            desk = self._desks.get(row.conversation) or self._desk(self.fresh_row(row.conversation))
        return saved(row, open_body(desk.envelope, row), self.names, desk.name)

    def shown(self, row: MessageRow) -> Saved:
        """A row for a listing: if its content cannot be read, a message that says so."""
        try:
            return self.saved(row)
        except Damaged as error:
            return Saved(
                role=row.role, id=self.names.id(row.number), parent=None if row.parent is None else self.names.id(row.parent),
                conversation=show_conversation_id(row.conversation), seq=row.seq, created_us=row.created_at, main=bool(row.main), problem=str(error),
            )  # fmt: skip

    def load(self, numbers: Sequence[int], desk: Desk) -> list[Saved]:
        return [self.saved(row, desk) for row in self.backend.messages(numbers=numbers)]

    def headers(self, conversation: bytes) -> list[MessageRow]:
        """All messages of a conversation by sequence, without their content."""
        return self.backend.scan(conversation, limit=1 << 40, bodies=False)

    def path(self, number: int, desk: Desk) -> list[Saved]:
        """The messages from the root to this one. An unbroken way, or an error."""
        stretches: list[list[Saved]] = []
        for rows in self.backend.path(number):
            stretches.append(saved_stretch(rows, desk.envelope, self.names, desk.name))
        if not stretches:
            raise NotFound("message", [self.names.id(number)])
        top = stretches[-1][0]
        if top.parent is not None:
            if not self.backend.messages(numbers=[number], bodies=False):
                raise NotFound("message", [self.names.id(number)])
            raise Damaged(f"message {top.parent}, which message {top.id} answers, is missing")
        stretches.reverse()
        return [message for stretch in stretches for message in stretch]

    def cursor(self, listing: str, *place: object) -> str:
        """A place in a listing, as opaque text that only this workspace takes back."""
        data = msgspec.msgpack.encode((listing, self.backend.info.workspace[:4], place))
        return base64.urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")

    def position(self, listing: str, cursor: str, types: tuple[type, ...]) -> tuple[int, bytes, int]:
        """The place behind a cursor of this listing, or `InvalidCursor`."""
        try:
            raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            name, workspace, place = msgspec.msgpack.decode(raw[4:], type=tuple[str, bytes, list[object]])
            good = zlib.crc32(raw[4:]) == int.from_bytes(raw[:4], "big")
        except (AttributeError, ValueError, msgspec.MsgspecError):
            raise InvalidCursor("not a cursor") from None
        if (
            not good
            or (name, workspace) != (listing, self.backend.info.workspace[:4])
            or tuple(map(type, place)) != types
        ):
            raise InvalidCursor("a cursor of another listing")
        return tuple(place)  # type: ignore[return-value]  # the types were compared


def _order(row: MessageRow) -> tuple[int, bytes, int]:
    return row.created_at, row.conversation, row.seq


def _parent(message: Message) -> str | None:
    """The parent a message asks for. A saved message is taken as a value: its old place does not count."""
    return None if isinstance(message, Saved) or not isinstance(message, Message) else message.parent


def _below(row: MessageRow) -> Spot:
    return Spot(row.number, bool(row.main))


def _ids(ids: Iterable[str]) -> list[str]:
    if isinstance(ids, str):
        raise InvalidArgument(
            "a list of ids is wanted, not one string", hint="store.message(id) takes one; or pass [id]"
        )
    return list(ids)


def _check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= 10_000:
        raise InvalidArgument("the limit is a number from 1 to 10,000")


def _new_head(head: int | None, rows: Sequence[MessageRow], doomed: set[int]) -> int | None:
    """Where the conversation stands after these went: a head among them moves to the parent of the subtree it was in, else to the newest
    message of the main flow that is left."""
    by_number = {row.number: row for row in rows}
    if head is None or head not in doomed:
        return head
    above: int | None = head
    while above is not None and above in doomed:
        above = by_number[above].parent
    if above is not None:
        return above
    return next((row.number for row in reversed(rows) if row.main and row.number not in doomed), None)
