"""The store: the one object people hold.

It joins a backend (rows), a codec (what rows contain) and the rules of the tree: who gets which number and
sequence, where the head is, what a conflict means, what may be deleted. Everything it promises holds on every
backend, because every decision is made above them: here, at the desk (appending) and in removal (deleting).

The store is thread-safe. Conversation handles and listings come from it and are used with it; after `close` they raise
`Closed`.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from . import _forks
from ._engine.attachments import filled, unstage
from ._engine.bodies import (
    Body,
    Meta,
    decode_body,
    open_pack_raw,
    open_setup,
    saved,
    saved_pack,
    saved_stretch,
)
from ._engine.committer import READS_ONLY, Pen, Tell, deleted, stored
from ._engine.filters import Filter, checked_pairs, description_tags
from ._engine.lease import Lease
from ._engine.packs import Moved, Reader, run_of
from ._engine.quota import Quota
from ._engine.revisions import read as read_ledger
from ._engine.state import Desk, Draft, Spot, check_size, clean_together, close_meta, draft
from ._engine.workspace import Workspace, described, new_row
from ._erasure.maintenance import Maintenance, Upkeep, maintain
from ._erasure.schedule import Schedule
from ._erasure.shutdown import Closing, Purge, Purges, close, patience
from ._sealing.codec import Codec, Envelope
from ._sealing.quarantine import Quarantine
from ._search.search import Asked, Hit, Search
from .backend import (
    CHAT,
    WORKSPACE,
    Backend,
    Batch,
    Change,
    ConversationRow,
    Done,
    ItemRow,
    MessageRow,
    Missing,
    PackRow,
    Position,
    Stale,
    Taken,
    Totals,
    Where,
)
from .conversation import Attachments, Conversation, checked_setup, checked_text, is_lazy, setup_item
from .errors import AlreadyExists, Ambiguous, Busy, Closed, Damaged, InvalidArgument, InvalidID, NotFound, StorageFull
from .events import Listener, Listeners, PurgeFailure, Quarantined, as_failures, warn
from .ids import (
    RUN,
    Names,
    check_message_id,
    is_conversation_prefix,
    new_conversation_id,
    parse_conversation_id,
    show_conversation_id,
)
from .listing import (
    ConversationInfo,
    MessageListing,
    Page,
    Sound,
    check_limit,
    conversations,
    count_all,
    infos,
    merged,
    order,
    read_cursor,
    scan,
    write_cursor,
)
from .model import (
    Message,
    Saved,
    Setup,
    approximate_tokens,
    check_strings,
    encodable,
    from_datetime,
    id_of,
    listed,
    to_datetime,
    trace_of,
)
from .telemetry import Telemetry, spanned

if TYPE_CHECKING:
    from uuid import UUID

    from ._engine.verify import Report
    from ._erasure.checkpoint_copies import Prunes
    from ._sealing.rotation import Progress, Rotation
    from .keys import Key
    from .retention import RetentionPolicy, SweepPlan, SweepReport
    from .sanitiser import Sanitiser
    from .sanitiser.redactor import Redactor
    from .snapshots import Snapshot, SnapshotStore

MAX_WRITE_BYTES = 10_000_000
MAX_ATTACHMENT = 4 << 30
PURGE_REASONS = (
    "user-requested",
    "retention-expired",
    "privacy-policy-change",
    "workspace-reset",
    "corruption-detected",
)
_EVER_SECONDS = 1e9
_SCRUB_PATIENCE_SECONDS, _SCRUB_PAUSE_SECONDS = 1.0, 0.01  # for readers that are done in a moment
_DELETE_SECONDS, _PURGE_SECONDS = 0.05, 0.2  # to wait for words to leave the search index; maintenance does the rest
_DEEPEST = 1_000_000  # hits that can be passed over
_DESCRIPTIONS = 200  # read at a time
_MOST_DAYS = 10_000  # to count messages of
_REMEMBERED = 1000  # conversations
_LOOKS = 100  # how often we look again at what changes while we read
_TRIES = 1000  # how often a write is prepared again before we say the conversation is busy

T = TypeVar("T")
Path = str | os.PathLike[str]
Tools = Sequence[Mapping[str, object]]


class PurgeReport(Struct, frozen=True):
    """What a purge did."""

    reason: str
    started_at: datetime
    completed_at: datetime
    purged_count: int
    failures: tuple[PurgeFailure, ...] = ()
    scrub_pending: bool = False  # a reader delays the removal of the last bytes from the files; `scrub` finishes it
    purged: tuple[str, ...] = ()  # ids: of conversations, and of messages that were in quarantine


class Stats(Struct, frozen=True):
    """What a store holds."""

    conversations: int
    messages: int
    content_bytes: int
    approximate_tokens: int
    stored_bytes: int
    oldest: datetime | None
    newest: datetime | None


class More(Struct, frozen=True):
    """What a conversation that comes from elsewhere begins with, beside its messages."""

    head_at: int | None = None  # the place of the head among the messages, if it is not the last
    held: bool = False
    items: Callable[[Desk, list[Saved]], Iterable[ItemRow]] = lambda _, __: ()
    expires_at: int | None = None  # of its own


def _now() -> int:
    return time.time_ns() // 1000


class Store:
    """Conversations, kept. Open one with `hitherto.open`."""

    def __init__(
        self,
        backend: Backend,
        codec: Codec | None = None,
        *,
        key: "Key | None" = None,
        clock: Callable[[], int] | None = None,
        max_write_bytes: int = MAX_WRITE_BYTES,
        max_attachment: int = MAX_ATTACHMENT,
        max_conversation_bytes: int | None = None,
        maintenance: bool = True,
        quarantine_days: float | None = None,
        sanitiser: "Sanitiser | None" = None,
    ) -> None:
        """`key` opens a sealed workspace, and seals a new one. `clock` gives microseconds since 1970; `max_write_bytes`
        limits the text and JSON of one write, `max_attachment` the bytes of one binary block,
        `max_conversation_bytes` a conversation, its attachments included. Without `maintenance` it
        is done only when somebody calls `maintain`. What has been in quarantine for `quarantine_days` is purged by
        maintenance; without a number, by command only. `sanitiser` cleans all that is written from now on."""
        self.backend = backend
        self._clock = clock or _now
        self._max_write_bytes = max_write_bytes
        self._max_attachment = max_attachment
        self._max_conversation_bytes = max_conversation_bytes
        self._telemetry = Telemetry(backend.info.name)
        self._listeners = Listeners(self._telemetry.heard)
        self._pen = Pen(backend, self._listeners, self._clock, self._telemetry)
        self._purges = Purges(self)
        self._last: dict[object, Callable[[], None]] = {}  # to be called before the store is closed, by whom
        self._last_waits: dict[object, Callable[[float], bool]] = {}  # and then, with the seconds that they may take
        self._places: dict[object, Prunes] = {}  # where checkpoints of this store may lie
        self._recorded: dict[bytes, int] = {}  # how many recorders keep a conversation now
        self._closed = False
        self._closing: Closing | None = None  # what became of it
        self._ending = threading.RLock()
        self._forks = _forks.count()
        self._runs = threading.Lock()
        self._settled: set[int] = set()  # runs that are packed as far as they can be
        self._next_run = 0
        self._described_to: Position | None = None  # how far maintenance has come with the tags for metadata
        self._listed: dict[bytes, Sound] = {}  # conversations of a sealed store that were listed lately
        self._desks: weakref.WeakValueDictionary[bytes, Desk] = weakref.WeakValueDictionary()
        self._workspace = Workspace(backend, self._pen, self._clock, codec, key)
        self._names = Names(self._workspace.meta.seed)
        self._redactor = None if sanitiser is None else self._redactor_for(sanitiser)
        self._rotating = threading.Lock()
        self._rotation_lease = Lease(self, "rotator")
        self._stuck = False  # a rotation cannot go on, because of damage
        self._quarantine_seconds = None if quarantine_days is None else quarantine_days * 86_400
        self._quarantine = Quarantine(self)
        self._search = Search(self)
        self._schedule = Schedule(self, machine=clock is None, never=not maintenance)
        self._quota = Quota(self)
        self._upkeep = Upkeep(self, stopped=not maintenance)
        self._workspace.heard = self._schedule.heard
        self._upkeep.watch()
        if maintenance and not backend.is_scrubbed():  # somebody was killed, or had to leave it to the next
            self._upkeep.ask()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.backend.info.location}>"

    def close(self, *, timeout_seconds: float = 10.0) -> Closing:
        """Wait for what is on its way, for about so long, then let go of everything; what could not be finished.
        Idempotent: another call gives the same report, or says that somebody else is still closing it."""
        seconds = patience(timeout_seconds)
        if self._forks != _forks.count():
            return close(self, 0.0)
        if not self._ending.acquire(timeout=0.0 if self._listeners.are_here else seconds):  # who closes waits for them
            return Closing(complete=False, unfinished=("somebody else is closing it",))
        try:
            if self._closing is None:
                self._closing = close(self, seconds)
            return self._closing
        finally:
            self._ending.release()

    def _ensure_removing(self) -> None:
        """What removes is written even if nothing else is, but for a store that was opened to be read only."""
        if self.read_only == READS_ONLY:
            self._pen.check()

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")
        if self._forks != _forks.count():
            raise Closed("the store was opened before os.fork, in another process")

    @property
    def _codec(self) -> Codec:
        return self._workspace.codec

    # -- conversations

    def start(
        self,
        *,
        title: str = "",
        system_prompt: str = "",
        provider: str = "",
        model: str = "",
        tools: Tools = (),
        metadata: Mapping[str, str] | None = None,
        project: Path | None = None,
        id: "str | UUID | None" = None,
    ) -> Conversation:
        """Start a conversation. `id` is a UUID of the caller's choice; if it is taken, `AlreadyExists`."""
        self._ensure_open()
        chosen = new_conversation_id() if id is None else parse_conversation_id(str(id))
        meta = self._described(title, None, metadata, project)
        made = self._create(chosen, meta, [self._setup(provider, model, system_prompt, tools)])
        if made is None:
            raise AlreadyExists("a conversation with this id", str(id))
        return made[0]

    def ensure(
        self,
        key: str,
        *,
        title: str = "",
        system_prompt: str = "",
        provider: str = "",
        model: str = "",
        tools: Tools = (),
        metadata: Mapping[str, str] | None = None,
        project: Path | None = None,
    ) -> Conversation:
        """The conversation of that name: the one that is there, or a new one made from the other arguments."""
        self._ensure_open()
        if not isinstance(key, str) or not key:
            raise InvalidArgument("the key of a conversation is text, and not empty")
        for _ in range(_TRIES):
            for tag in reversed(self._codec.tags("conversation", key)):  # what is re-encrypted moves from last to first
                rows = self.backend.lookup(key=(CHAT, tag))
                if rows:
                    return self._handle(rows[0])
            meta = self._described(title, key, metadata, project)
            made = self._create(new_conversation_id(), meta, [self._setup(provider, model, system_prompt, tools)])
            if made is not None:
                return made[0]
        raise Busy("the conversation is made and removed by others at the same time")

    def _described(self, title: str, key: str | None, metadata: Mapping[str, str] | None, project: Path | None) -> Meta:
        checked_text(title, "the title", self._max_write_bytes)
        return Meta(title, key, _folder(project), check_strings(metadata, "metadata"))

    def _setup(self, provider: str, model: str, system_prompt: str, tools: Tools) -> Setup:
        return checked_setup(provider, model, system_prompt, tools, self._max_write_bytes)

    def _redactor_for(self, sanitiser: "Sanitiser") -> "Redactor":
        """What cleans by these rules, and hashes what it finds with a key of this workspace."""
        from .sanitiser.redactor import Redactor  # noqa: PLC0415  # only those who clean need it

        if not hasattr(sanitiser, "keyed"):
            hint = "sanitiser=hitherto.Sanitiser.secrets()"
            raise InvalidArgument(f"a {type(sanitiser).__name__} where a sanitiser is wanted", hint=hint)
        return Redactor(sanitiser, self._workspace.meta.seed)

    def _create(
        self,
        id: bytes,
        meta: Meta,
        setups: Sequence[Setup],
        make: Callable[[Desk], list[Draft]] = lambda _: [],
        more: More | None = None,
    ) -> tuple[Conversation, list[Saved]] | None:
        """A new conversation with its first messages, in one transaction; None if its id or key is taken."""
        if self._redactor is not None:
            meta = _clean(meta, self._redactor)
            setups = [self._redactor.setup(setup) for setup in setups]
        for _ in range(_TRIES):
            try:
                return self._create_now(id, meta, setups, make, more or More())
            except Moved:  # keys were rotated meanwhile, or there is another policy
                self._workspace.refresh()
                if meta.key is not None:
                    return None  # and the conversation may be there under another name: look again
        raise Busy("the conversation could not be started")

    def _create_now(
        self,
        id: bytes,
        meta: Meta,
        setups: Sequence[Setup],
        make: Callable[[Desk], list[Draft]],
        more: More,
    ) -> tuple[Conversation, list[Saved]] | None:
        if more.expires_at is not None:
            self._schedule.expect_expiry()
        require = self._workspace.require
        key = None if meta.key is None else self._codec.tag("conversation", meta.key)
        now = self._clock()
        row = new_row(self._codec, id, CHAT, key, _born(meta, now))
        active = min(meta.created or now, now)
        desk = Desk(self, replace(row, active_at=active, held=more.held, expires_at=more.expires_at), new=True)
        kept = [] if list(setups) == [Setup()] and not meta.setups else setups
        meta = replace(meta, setups=len(kept), setup=meta.setup if meta.setups else len(kept))
        closed = close_meta(desk.envelope, id, meta, self._max_write_bytes)
        row = desk.row = described(desk.envelope, desk.row, closed)
        put = tuple(setup_item(desk.envelope, id, number, setup) for number, setup in enumerate(kept, 1))
        tags = description_tags(self._codec, meta)
        drafts = make(desk)
        try:
            desk.stage(drafts)
            for _ in range(_TRIES):
                first, messages = desk.prepare(row, drafts, Spot(None), head_at=more.head_at)
                change = first or Change(id, None, row)
                items = (*put, *more.items(desk, messages))
                change = replace(change, expect=None, put=items, tag=(*change.tag, *tags))
                outcome = self._pen.write(Batch((change,), require), tell=stored)
                if isinstance(outcome, Done):
                    desk.row = change.row or row
                    self._desks[id] = desk
                    return Conversation(desk, desk.row.head), messages
                if isinstance(outcome, Taken) and outcome.what in ("id", "key"):
                    self._unstage(desk, drafts)
                    return None
                if isinstance(outcome, Stale) and outcome.conversation == self._workspace.row.id:
                    raise Moved
                if isinstance(outcome, Missing):
                    desk.stage(drafts)
            raise Busy("the conversation could not be started")
        except Exception as error:
            self._unstage(desk, drafts)  # nobody refers to it, and on a full disk it would stay full
            if isinstance(error, StorageFull):
                self._quota.met(error)
            raise

    def _unstage(self, desk: Desk, drafts: Sequence[Draft]) -> None:
        for one in drafts:
            unstage(desk, one.sources)

    def _copy_thread(self, source: Desk, path: Sequence[Saved], setup: int, title: str | None) -> Conversation:
        """A new conversation that holds a copy of this path."""
        self._ensure_open()
        source.refresh()  # others may have said that it is not to leave the store, and the copy is not either
        from ._engine.record_items import about  # noqa: PLC0415  # rare
        from ._engine.record_items import items as record_items  # noqa: PLC0415  # rare

        beside = self._sure(source, lambda own: about(self, own.envelope, own.row)).portable
        if self._redactor is not None:  # it may be older than the sanitiser
            beside = beside.cleaned(self._redactor.value)
        reader = Reader(self)
        rows = sorted(
            self.backend.messages(numbers=[self._names.number(m.id) for m in path]), key=lambda row: row.number
        )
        made_with = {self._names.id(m.number): self._read(m, source, reader)[1].setup for m in rows}

        def make(desk: Desk) -> list[Draft]:
            drafts: list[Draft] = []
            for message in path:
                root = None
                if message.parent is None:  # a compaction goes on from the message before it
                    follows = drafts and message.main and message.link is not None
                    root = Spot(None, link=~(len(drafts) - 1) if follows else None)
                origin = message.origin or f"{message.conversation}/{message.id}"
                drafts.append(draft(desk, message, made_with[message.id], root, origin))
            return drafts

        items = self.backend.items(source.id, b"setup/")
        setups = [open_setup(source.envelope, source.id, item.key, item.body) for item in items]
        meta = replace(source.meta, key=None, opening=None, setup=setup, setup_seq=len(path), created=0, checkpoints=())
        if title is not None:
            meta = replace(meta, title=checked_text(title, "the title", self._max_write_bytes))
        meta = replace(meta, record=beside.details.number)
        more = More(items=lambda desk, _: record_items(desk.envelope, desk.id, beside))
        made = self._create(new_conversation_id(), meta, setups, make, more)
        if made is None:
            raise Busy("the conversation could not be copied")
        return made[0]

    def restore(self, snapshot: "Snapshot", *, title: str | None = None, project: Path | None = None) -> Conversation:
        """A new conversation that holds what a snapshot holds: its messages, its system prompt, its tools."""
        self._ensure_open()
        from .snapshots._thread import about, thread_of  # noqa: PLC0415  # most never need it

        messages, setup = thread_of(snapshot)
        named, metadata = about(snapshot)
        meta = self._described(named if title is None else title, None, metadata, project)
        checked = self._setup(setup.provider, setup.model, setup.system_prompt, setup.tools)

        def make(desk: Desk) -> list[Draft]:
            drafts = [draft(desk, message, 1) for message in messages]
            for one in drafts:  # as if they were appended one by one
                check_size([one], self._max_write_bytes)
            return drafts

        made = self._create(new_conversation_id(), meta, [checked], make)
        if made is None:
            raise Busy("the conversation could not be started")
        return made[0]

    def conversation(self, id: "str | UUID | ConversationInfo | Saved") -> Conversation:
        """The conversation of an id, of a unique beginning of one, or of a message, at which the handle then stands."""
        self._ensure_open()
        row, message = self._find(id_of(id))
        if message is None:
            return self._handle(row)
        desk = self._desk(row)
        message, body = self._read(message, desk)
        return Conversation(
            desk,
            message.number,
            main=bool(message.main),
            label=None if message.main else body.label,
            setup=None if message.number == row.head else body.setup,
            rewrites=row.rewrites,
        )

    def latest(self, *, project: Path | None = None) -> Conversation | None:
        """The conversation that was active last, or None if there is none. One that has nothing but traces of
        sub-agents does not count."""
        self._ensure_open()
        where = self._where(project, include_expired=False)
        after: Position | None = None
        while places := self._page(where, after, 1):
            rows = self.backend.lookup(ids=[places[0].id])
            if not rows:  # purged in between, or an index is damaged: do not ask for ever
                after = places[0] if after is None or places[0] != after else None
            if rows and not self._quarantine.has(rows[0].id) and not _has_traces_only(rows[0]):
                try:
                    talk = self._handle(rows[0])
                except Damaged:
                    talk = None
                if talk is not None and (self._codec.in_clear or talk.project == (_folder(project) or talk.project)):
                    return talk
                after = places[0]
            elif rows:
                after = places[0]
        return None

    def conversations(
        self,
        *,
        limit: int = 20,
        cursor: str | None = None,
        project: Path | None = None,
        metadata: Mapping[str, str] | None = None,
        total: bool = False,
        include_expired: bool = False,
    ) -> Page:
        """Conversations by last activity, newest first: those of this project, and those whose metadata has all of
        these pairs. `total=True` also counts them all, slow in large stores."""
        self._ensure_open()
        check_limit(limit)
        after = None
        if cursor is not None:
            at, id, _ = read_cursor(self.backend, "conversations", cursor)
            after = Position(at, id)
        wanted = Filter(_folder(project), checked_pairs(metadata))
        alive_at = None if include_expired else self._clock()
        if wanted.metadata and not self._workspace.meta.has_metadata_tags:
            self._upkeep.ask()  # it makes them; until then every description is read
            where = replace(wanted, metadata=()).where(self._codec, alive_at)
            places = list(islice(self._fitting(where, after, wanted), limit + 1))
        else:
            where = wanted.where(self._codec, alive_at)
            places = self._page(where, after, limit + 1)
        last = places[limit - 1] if len(places) > limit else None
        more = None if last is None else write_cursor(self.backend, "conversations", (last.at, last.id, 0))
        counted = self._count(where, wanted) if total else None
        return Page(infos(self, [place.id for place in places[:limit]], wanted), more, counted)

    def _where(self, project: Path | None, *, include_expired: bool) -> list[Where]:
        """What to list; more than one only while the store is re-encrypted."""
        return Filter(_folder(project)).where(self._codec, None if include_expired else self._clock())

    def _count(self, where: Sequence[Where], wanted: Filter) -> int:
        """How many of them are shown in all. Without a filter no row is opened. Nothing proves where a tag of a sealed
        store belongs, so with one the descriptions are asked."""
        if wanted == Filter():
            return count_all(self, where[0])
        if self._codec.in_clear and (not wanted.metadata or self._workspace.meta.has_metadata_tags):
            return sum(self.backend.count(one) for one in where)
        rows = {row.id: row for one in where for row in conversations(self.backend, one, oldest_first=True)}
        return sum(self._fits(row, wanted) for row in rows.values())

    def _fits(self, row: ConversationRow, wanted: Filter) -> bool:
        """Is this conversation wanted, by what its description says? One that cannot be read is not, unless all are."""
        sound = Sound(row, self._codec.envelope(row)) if self._codec.in_clear else self._sound(row)
        try:
            return sound is not None and (wanted == Filter() or wanted.fits(sound.meta))
        except Damaged:
            return False

    def _fitting(self, where: Sequence[Where], after: Position | None, wanted: Filter) -> Iterator[Position]:
        """The places of those that are wanted, found by reading the descriptions of all these."""
        while places := self._page(where, after, _DESCRIPTIONS):
            rows = {row.id: row for row in self.backend.lookup(ids=[place.id for place in places])}
            yield from (place for place in places if place.id in rows and self._fits(rows[place.id], wanted))
            after = places[-1]

    def _page(self, where: Sequence[Where], after: Position | None, limit: int) -> list[Position]:
        if len(where) == 1:
            return self.backend.page(where[0], after, limit)
        found = {(place.at, place.id) for one in where for place in self.backend.page(one, after, limit)}
        return [Position(*place) for place in sorted(found, reverse=True)[:limit]]

    def _handle(self, row: ConversationRow) -> Conversation:
        return Conversation(self._desk(row), row.head, rewrites=row.rewrites)  # not what the desk only believes so far

    def _desk(self, row: ConversationRow) -> Desk:
        return self._steady(row, self._desk_now)

    def _sound(self, row: ConversationRow) -> Sound | None:
        """The row, or as it is now, if it is as it was proven; None if it is not, and then it is in quarantine. What
        was proven before need not be proven again, as long as no column is another."""
        if self._quarantine.has(row.id):
            return None
        known = self._listed.get(row.id)
        if known is not None and known.row == row:
            return known
        try:
            sound = self._steady(row, lambda row: Sound(row, self._checked(row)))
        except (Damaged, NotFound):
            return None
        if len(self._listed) >= _REMEMBERED:
            self._listed.clear()
        self._listed[row.id] = sound
        return sound

    def _steady(self, row: ConversationRow, read: Callable[[ConversationRow], T]) -> T:
        """What is read of a conversation's row. A row that moved on meanwhile proves nothing: look again. One that
        stands still, and is not as it was proven, goes into quarantine."""
        for _ in range(_LOOKS):
            try:
                return read(row)
            except Damaged as error:
                again = self._fresh_row(row.id)
                if again.token == row.token:
                    self._quarantine.add(row.id, None, str(error))
                    raise
                row = again
        raise Busy(f"conversation {show_conversation_id(row.id)} changes faster than it can be read")

    def _desk_now(self, row: ConversationRow) -> Desk:
        desk = self._desks.get(row.id)
        if desk is None or not desk.serves(row):
            self._checked(row)
            desk = self._desks[row.id] = Desk(self, row)
        elif row is not desk.row:
            self._checked(row)
        desk.believe(row)
        return desk

    def _checked(self, row: ConversationRow) -> Envelope:
        """The envelope of a row that is as it was proven, and not an older one that was put back: then there would be
        messages that came after it, or the ledger would be of another time. `Damaged` otherwise."""
        envelope = self._codec.envelope(row)
        if envelope.proves:
            read_ledger(self, envelope, row)
            if self.backend.scan(row.id, after=row.next_seq - 1, limit=1, bodies=False):
                raise Damaged("the row of a conversation is older than its messages: it was put back")
        return envelope

    def _sure(self, desk: Desk, read: Callable[[Desk], T], message: int | None = None) -> T:
        """Something did not read back as what was written: read it again, from a desk of its own that stands by what is
        stored now. (A belief is for preparing writes, never for judging reads.) If that fails although nothing moved,
        it is damaged, and goes into quarantine."""
        for _ in range(_LOOKS):
            row = self._fresh_row(desk.id)
            own = self._steady(row, lambda row: Desk(self, row, own=True))
            try:
                found = read(own)
            except Damaged as error:
                if self._fresh_row(desk.id).token == own.row.token:
                    if error.record is None:
                        error.record = message  # callers that note it again note the same record
                    self._quarantine.add(desk.id, error.record, str(error))
                    raise
                continue
            if not own.has_holes or self._fresh_row(desk.id).token == own.row.token:
                return found
        raise Busy(f"conversation {desk.name} changes faster than it can be read")

    def _find(self, id: str) -> tuple[ConversationRow, MessageRow | None]:
        """What an id argument means: an exact message id, then a unique beginning of a message or conversation id."""
        if not isinstance(id, str) or not 0 < len(id) <= 36:
            raise InvalidID(id)
        if len(id) == 36:
            return self._fresh_row(parse_conversation_id(id)), None
        if not (id.isascii() and id.replace("-", "").isalnum()):
            raise InvalidID(id)
        exact = self._maybe_message(id)
        if exact is not None:
            return self._with_row(exact)
        rows = self.backend.lookup(prefix=id.replace("-", ""), limit=3) if is_conversation_prefix(id) else []
        rows = [row for row in rows if row.kind == CHAT]
        numbers = self._messages_beginning(id)
        if not rows and not numbers:
            raise NotFound("message or conversation", [id])
        if len(rows) + len(numbers) > 1:
            raise Ambiguous(id, [show_conversation_id(row.id) for row in rows] + [self._names.id(n) for n in numbers])
        if rows:
            return rows[0], None
        return self._with_row(self._message_row(self._names.id(numbers[0])))

    def _with_row(self, message: MessageRow) -> tuple[ConversationRow, MessageRow]:
        """The message with its conversation's row, the row read first: what is deleted later will show in it."""
        row = self._fresh_row(message.conversation)
        return row, self._message_row(self._names.id(message.number))

    def _maybe_message(self, id: str) -> MessageRow | None:
        try:
            return self._message_row(id)
        except (NotFound, InvalidID):
            return None

    def _messages_beginning(self, prefix: str) -> list[int]:
        """Up to two messages whose id begins so. Long prefixes stand for few numbers, so we ask for these; for short
        ones we look until two are found."""
        if len(prefix) > 5 or not prefix.isalnum():
            return []
        if len(prefix) >= 4:
            rows = self.backend.messages(numbers=self._names.with_prefix(prefix), bodies=False)
            return [row.number for row in rows[:2]]
        found: list[int] = []
        for numbers in self.backend.numbers():
            found += [number for number in numbers if self._names.id(number).startswith(prefix)]
            if len(found) > 1:
                break
        return found[:2]

    # -- the narrow protocols: save, get, list, delete

    def save(
        self,
        messages: Iterable[Message],
        *,
        parent: "str | Saved | None" = None,
        conversation: str | Conversation | ConversationInfo | None = None,
    ) -> list[str]:
        """Save messages in one transaction; their ids, in order.

        Each goes below its own `parent` if it has one, otherwise below the one before. The first goes below
        `parent`, or below the head of `conversation`, or starts a new conversation.
        """
        self._ensure_open()
        given: list[Any] = listed(messages, "messages")  # `draft` checks what they are
        if not given:
            raise InvalidArgument("there is no message to save", hint="give at least one message")
        wanted = [_id(parent), *(_parent(message) for message in given)]
        given = list(clean_together(self, given))
        parents = {id: self._message_row(id) for id in wanted if id is not None}
        desk = self._desk_of(conversation, list(parents.values()))
        if desk is None:

            def make(desk: Desk) -> list[Draft]:
                spots = _flows(given, [None] * len(given), head=Spot(None))
                drafts = [
                    draft(desk, message, 0, spot, is_clean=True) for message, spot in zip(given, spots, strict=True)
                ]
                check_size(drafts, self._max_write_bytes)
                return drafts

            made = self._create(new_conversation_id(), Meta(), [Setup()], make)
            if made is None:
                raise Busy("the conversation could not be started")
            return [message.id for message in made[1]]
        seen = desk.row.rewrites  # before we look at the parents again, so that a deletion meanwhile is noticed
        parents = {id: self._message_row(id) for id in parents}
        bodies = {id: self._read(row, desk)[1] for id, row in parents.items()}
        setup = bodies[wanted[0]].setup if wanted[0] is not None else Conversation(desk, desk.row.head)._setup_number()
        above, *below = [None if id is None else (bodies[id].label, _spot_below(parents[id])) for id in wanted]
        below[0] = below[0] or above
        drafts = []
        for message, id in zip(given, wanted[1:], strict=True):
            setup = setup if id is None else bodies[id].setup
            drafts.append(draft(desk, message, setup, is_clean=True))
        check_size(drafts, self._max_write_bytes)

        def prepare(drafts: Sequence[Draft], row: ConversationRow) -> tuple[Change | None, list[Saved]]:
            if row.rewrites != seen:
                for id in parents:
                    self._message_row(id)  # NotFound if it was deleted meanwhile
            spots = _flows(given, below, head=Spot(row.head))
            return desk.prepare(row, [replace(d, spot=s) for d, s in zip(drafts, spots, strict=True)], spots[0])

        with self._telemetry.span("append"):
            return [message.id for message in desk.write(drafts, prepare)]

    def _desk_of(
        self, conversation: str | Conversation | ConversationInfo | None, parents: Sequence[MessageRow]
    ) -> Desk | None:
        """The desk of the conversation that is meant, None for a new one. Parents elsewhere are refused."""
        if isinstance(conversation, Conversation):
            if conversation._store is not self:
                raise InvalidArgument("this conversation is of another store", hint="pass its id")
            desk: Desk | None = conversation._desk
        elif conversation is not None:
            desk = self._desk(self._find(id_of(conversation))[0])
        else:
            desk = self._desk(self._fresh_row(parents[0].conversation)) if parents else None
        foreign = [self._names.id(row.number) for row in parents if desk is None or row.conversation != desk.id]
        if foreign:
            raise NotFound("message in this conversation", foreign)
        return desk

    def get(self, ids: Iterable[str | Saved], *, attachments: Attachments = "load") -> list[Saved]:
        """Messages by id, in the order asked for. `NotFound` names every one that is missing."""
        self._ensure_open()
        lazy, reader = is_lazy(attachments), Reader(self)
        wanted = _ids(ids)
        found, missing = self._rows_of(wanted, bodies=True)
        if missing:
            raise NotFound("message", missing)
        messages = {id: self._saved(row, lazy=lazy, reader=reader) for id, row in found.items()}
        return [messages[id] for id in wanted]

    def _rows_of(self, ids: Sequence[str], *, bodies: bool) -> tuple[dict[str, MessageRow], list[str]]:
        """The rows of these messages, and the ids that are not there. `InvalidID` before anything is read."""
        numbers: dict[str, int] = {}
        for id in ids:
            check_message_id(id)
            try:
                numbers[id] = self._names.number(id)
            except NotFound:
                numbers[id] = -1
        rows = {row.number: row for row in self.backend.messages(numbers=list(numbers.values()), bodies=bodies)}
        found = {id: rows[number] for id, number in numbers.items() if number in rows}
        return found, [id for id in numbers if id not in found]

    def message(self, id: str | Saved, *, attachments: Attachments = "load") -> Saved:
        """One message, as it is now."""
        self._ensure_open()
        return self._saved(self._message_row(id_of(id)), lazy=is_lazy(attachments))

    def thread(self, id: str | Saved, *, attachments: Attachments = "load") -> list[Saved]:
        """The messages from the root to this one."""
        self._ensure_open()
        row = self._message_row(id_of(id))
        desk = self._desk(self._fresh_row(row.conversation))
        path = self._path(row.number, desk, lazy=is_lazy(attachments))
        return [message for message in path if message.role != "event"]

    def messages(
        self,
        *,
        newest_first: bool = True,
        offset: int = 0,
        cursor: str | None = None,
        conversation: str | Conversation | ConversationInfo | None = None,
        label: str | None = None,
        subagent: str | None = None,
        attachments: Attachments = "load",
    ) -> MessageListing:
        """Messages as a lazy iterator, ordered by (time, conversation, sequence); of one conversation, by sequence.

        `label` lists those with exactly this label, `subagent` those of every run of that sub-agent. A message whose
        content cannot be read is listed with its `problem`, and the others go on.
        """
        self._ensure_open()
        if type(offset) is not int or offset < 0:
            raise InvalidArgument("the offset is a number from 0 up")
        listing = f"messages, {'newest' if newest_first else 'oldest'} first"
        after = None if cursor is None else read_cursor(self.backend, listing, cursor)
        for what, value in (("label", label), ("subagent", subagent)):
            if value is not None:
                checked_text(value, what, self._max_write_bytes)
        if label is not None or subagent is not None:
            rows = self._tagged(label, subagent, newest_first=newest_first)
            if conversation is not None:
                mine = self._id_of(conversation)
                rows = (row for row in rows if row.conversation == mine)
        elif conversation is not None:
            rows = scan(self.backend, self._id_of(conversation), newest_first=newest_first)
        else:
            rows = merged(self.backend, newest_first=newest_first)
        if after is not None:
            rows = (row for row in rows if (order(row) < after if newest_first else order(row) > after))
        for _ in range(offset):
            if next(rows, None) is None:
                break
        return MessageListing(self, rows, listing, lazy=is_lazy(attachments), fits=_fits(label, subagent))

    def _id_of(self, conversation: str | Conversation | ConversationInfo) -> bytes:
        if isinstance(conversation, Conversation):
            if conversation._store is not self:
                raise InvalidArgument("this conversation is of another store", hint="pass its id")
            return conversation._desk.id
        return self._find(id_of(conversation))[0].id

    def _tagged(self, label: str | None, subagent: str | None, *, newest_first: bool) -> Iterator[MessageRow]:
        wanted = [(field, value) for field, value in (("label", label), ("subagent", subagent)) if value is not None]
        found = [
            {n for tag in self._codec.tags(field, value) for _, n in self.backend.tagged(tag) if n is not None}
            for field, value in wanted
        ]
        rows = self.backend.messages(numbers=sorted(set.intersection(*found)))
        return iter(sorted(rows, key=order, reverse=newest_first))

    def delete(self, ids: Iterable[str | Saved], *, recursive: bool = False, missing_ok: bool = False) -> list[str]:
        """Delete messages in one transaction; the ids of all that went.

        A message with others below it is refused (`HasChildren`) unless `recursive`, which takes the whole subtree and
        the traces of sub-agents started in it. A head that goes moves to the parent of what was deleted.
        """
        self._ensure_open()
        from ._engine.deleting import deletion  # noqa: PLC0415  # rare

        wanted = _ids(ids)
        for _ in range(_TRIES):
            found, missing = self._rows_of(wanted, bodies=False)
            if missing and not missing_ok:
                raise NotFound("message", missing)
            chosen: dict[bytes, set[int]] = {}
            for row in found.values():
                chosen.setdefault(row.conversation, set()).add(row.number)
            try:
                changes = [deletion(self, id, numbers, recursive=recursive) for id, numbers in chosen.items()]
            except Moved:
                continue
            if not changes or isinstance(self._pen.write(Batch(tuple(changes)), tell=stored), Done):
                for change in changes:
                    self._tell_desk(change.conversation, change.row)
                self._quota.freed()
                self._search.forget(_DELETE_SECONDS, [change.conversation for change in changes])
                return [self._names.id(number) for change in changes for number in change.drop]
        raise Busy("the conversation changes faster than this delete can be prepared")

    @spanned
    def search(
        self,
        query: str,
        *,
        limit: int = 20,
        offset: int = 0,
        ranked: bool = False,
        role: str | None = None,
        project: Path | None = None,
        conversation: str | Conversation | ConversationInfo | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        include_expired: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Hit]:
        """Messages that have these words, newest first; the best first if `ranked`.

        All words must occur; `"a phrase"` in this order; `begin*` at the beginning of a word; `a OR b`; `-without`.
        `since` <= time < `until`; `offset` passes over the first hits. The first search of a store reads all of it;
        later ones what is new: `progress` hears how many messages are done.
        """
        self._ensure_open()
        check_limit(limit)
        if type(offset) is not int or not 0 <= offset <= _DEEPEST:
            raise InvalidArgument(f"the offset is a number from 0 to {_DEEPEST:,}")
        if role is not None and not (isinstance(role, str) and encodable(role)):
            raise InvalidArgument("a role is text")
        from ._search.query import parse  # noqa: PLC0415  # only those who search need it

        return self._search.find(
            Asked(
                parse(query),
                limit,
                offset,
                ranked,
                role,
                self._among(project, conversation),
                None if since is None else from_datetime(since, "since"),
                None if until is None else from_datetime(until, "until"),
                None if include_expired else self._clock(),
            ),
            progress,
        )

    def _among(
        self, project: Path | None, conversation: str | Conversation | ConversationInfo | None
    ) -> list[bytes] | None:
        """The conversations that are meant; None for all."""
        chosen = None if conversation is None else [self._id_of(conversation)]
        folder = _folder(project)
        if folder is None:
            return chosen
        tags = self._codec.tags("project", folder)
        found = list({id: None for tag in tags for id, message in self.backend.tagged(tag) if message is None})
        if not self._codec.in_clear:  # others may have written tags
            found = [info._id for info in infos(self, found, Filter(folder))]
        return found if chosen is None else [id for id in found if id in chosen]

    # -- care

    def maintain(
        self, seconds: float | None = None, *, progress: Callable[[str, int], None] | None = None
    ) -> Maintenance:
        """Keep the store small and fast: pack what is old, let the search index catch up, remove what nobody refers to,
        give free space back. For about so long, or until all is done. Stores do it by themselves, too.
        `progress` hears "packing" and how many runs are done, then "indexing" and how many messages are."""
        self._ensure_open()
        if seconds is not None and (not isinstance(seconds, (int, float)) or not seconds >= 0):
            raise InvalidArgument("seconds is a number from 0 up")
        return maintain(self, seconds, progress=progress)

    def backup(self, path: Path) -> None:
        """Write a copy of everything to a new file, while others go on writing: a store that can be opened. The search
        index is not in it; the first search makes one."""
        self._ensure_open()
        name = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(name, str) or not name:
            raise InvalidArgument("a backup goes to a path")
        self.backend.backup(name)

    @spanned
    def purge(self, conversation: "str | UUID | Conversation | ConversationInfo", *, reason: str) -> PurgeReport:
        """Destroy a conversation with all its branches, and take its bytes out of the files.

        A sealed conversation whose row was tampered with is `Damaged`, because nobody knows whether it is on hold;
        `reason="corruption-detected"` purges it all the same.
        `scrub_pending` in the report means that a reader delays the last step: `scrub` finishes it.
        """
        self._ensure_open()
        check_reason(reason)
        from ._engine.deleting import check_not_held  # noqa: PLC0415  # rare
        from ._erasure.checkpoint_copies import note  # noqa: PLC0415  # rare
        from ._erasure.sweep import reached  # noqa: PLC0415  # rare

        id = parse_conversation_id(id_of(conversation))
        self._ensure_removing()
        started = self._clock()
        doomed: list[ConversationRow] = []
        copies: dict[bytes, tuple[str, ...]] = {}

        def make(row: ConversationRow) -> Change:
            if self._proven(row):
                check_not_held(row)
            elif reason != "corruption-detected":
                hint = 'reason="corruption-detected" purges it all the same'
                raise Damaged("the row of the conversation was tampered with: it may have been on hold", hint=hint)
            doomed.append(row)
            copies.update(note(self, [row]))
            return Change(row.id, row.token, None)

        purge = Purge(reason, started)
        with self._purges.under_way(purge):
            self._change(id, make, always=True, tell=deleted(reason))
            purge.count = 1
            self._gone(doomed[-1])
            forgotten = self._search.forget(_PURGE_SECONDS)
            purge.failures = as_failures(reached(self, copies))
            scrubbed = self._purges.finish(purge, lambda: self.backend.scrub() and forgotten)
        times = to_datetime(started), to_datetime(self._clock())
        return PurgeReport(reason, *times, 1, purge.failures, not scrubbed, (show_conversation_id(id),))

    def know_checkpoints(self, place: "SnapshotStore") -> tuple[tuple[str, str], ...]:
        """Checkpoints of conversations of this store may lie in this snapshot store: a purge deletes them there, too.
        What purges of before could not reach there is deleted now. Returns what still cannot be, as id and error."""
        self._ensure_open()
        from ._erasure.checkpoint_copies import finish, know  # noqa: PLC0415  # rare

        know(self, place)
        return tuple(finish(self).items())

    def _gone(self, row: ConversationRow) -> None:
        """The conversation is purged: so is what we know of it."""
        self._workspace.forget(row)
        self._listed.pop(row.id, None)
        self._quarantine.release(row.id)
        self._quota.freed()

    @property
    def quota(self) -> int | None:
        """How many bytes this workspace may hold, as it stands in the store now; None: as many as the disk."""
        self._ensure_open()
        return self._quota.look() or None

    def set_quota(self, limit: int | None) -> None:
        """Keep a limit in the store, for every process that opens this workspace; None: no limit.

        It is for the content of messages and for attachments. A write that does not fit is `StorageFull`; nothing that
        removes is refused. `CapacityWarning` is told at nine tenths of it, and when it is used up."""
        self._ensure_open()
        self._quota.set(limit)

    @property
    def used_bytes(self) -> int:
        """How many bytes of its quota this workspace uses. Reads every conversation's row."""
        self._ensure_open()
        return self.backend.used()

    @property
    def retention(self) -> "RetentionPolicy | None":
        """After how long conversations are due, as it stands in the store now; None: never."""
        self._ensure_open()
        from ._erasure.sweep import policy_of  # noqa: PLC0415  # rare

        return policy_of(self)

    def set_retention(self, policy: "RetentionPolicy | None") -> "SweepReport | None":
        """Keep this policy in the store, for every process that opens this workspace; None: everything is kept.

        What a policy of fewer days than before makes due is purged before this returns, and the report says what that
        was; stores then purge what is due by themselves, as they are opened and every six hours. None: nothing more is
        due by it than before. A store without `maintenance` purges nothing until somebody calls `sweep`. A number of
        days that is not recommended is taken, with a warning in the log."""
        self._ensure_open()
        warning = getattr(policy, "warning", None)  # of what is no policy, the schedule complains
        if warning:
            warn(warning)
        return self._schedule.set_policy(policy)

    def plan_sweep(self, policy: "RetentionPolicy | None" = None, *, now: datetime | None = None) -> "SweepPlan":
        """What a sweep would purge, what it would keep, and why. Without a policy, by that of the store."""
        self._ensure_open()
        from ._erasure.sweep import plan_sweep  # noqa: PLC0415

        return plan_sweep(self, policy, now)

    @spanned
    def sweep(
        self,
        policy: "RetentionPolicy | None" = None,
        *,
        now: datetime | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "SweepReport":
        """Purge what is due by this policy, or by that of the store; without either, nothing.

        Whoever says something in a conversation, or puts it on hold, until the moment in which it would go keeps it. If
        somebody sets another policy meanwhile, what is left of those that went by the store's stays.
        `progress` hears how many are done, and of how many. What was interrupted is finished by the same call again.
        """
        self._ensure_open()
        from ._erasure.sweep import carry_out, plan_sweep  # noqa: PLC0415

        return carry_out(self, plan_sweep(self, policy, now, recorded=False), progress, given=policy is not None)

    def rotate(
        self, key: "Key | bytes", *, reencrypt: bool = False, progress: "Callable[[Progress], None] | None" = None
    ) -> "Rotation":
        """Give a sealed store another key; from then on the old one does not open it.

        Keep the new key in a safe place first: from the first moment on only it opens the store. Readers and writers go
        on. What was killed half-way is finished by `maintain`, or by the same call again. `reencrypt=True` encrypts
        everything anew, which is for keys that others may have seen.
        """
        self._ensure_open()
        from ._sealing.rotation import rotate  # noqa: PLC0415  # rare

        with self._rotating:
            return rotate(self, as_key(key), reencrypt=reencrypt, progress=progress)

    def seal(self, key: "Key | bytes", *, progress: "Callable[[Progress], None] | None" = None) -> "Rotation":
        """Seal a plain store: everything in it is encrypted, while readers and writers go on. Resumed like `rotate`."""
        self._ensure_open()
        from ._sealing.rotation import seal  # noqa: PLC0415

        with self._rotating:
            return seal(self, as_key(key), progress=progress)

    def unseal(self, *, progress: "Callable[[Progress], None] | None" = None) -> "Rotation":
        """Make a sealed store plain again. Resumed like `rotate`; until it is complete, the key is needed."""
        self._ensure_open()
        from ._sealing.rotation import unseal  # noqa: PLC0415

        with self._rotating:
            return unseal(self, progress=progress)

    def quarantine(self) -> list[Quarantined]:
        """The records that could not be read back as what was written, in the order in which they were noticed. They
        are given out nowhere."""
        self._ensure_open()
        return self._quarantine.list()

    def purge_quarantine(self, *, older_than_seconds: float = 0.0) -> PurgeReport:
        """Destroy what has been in quarantine for so long: a message with all that stands below it, or a conversation.
        What can be read again by now, because it was restored, is released instead."""
        self._ensure_open()
        if not isinstance(older_than_seconds, (int, float)) or not older_than_seconds >= 0:
            raise InvalidArgument("older_than_seconds is a number from 0 up")
        purge = Purge("corruption-detected", started := self._clock())
        with self._purges.under_way(purge):
            purged, failures = self._quarantine.purge(started - int(min(older_than_seconds, 1e10) * 1_000_000))
            purge.count, purge.failures = len(purged), as_failures(failures)
            scrubbed = self._purges.finish(purge, self._scrub)
        done = to_datetime(started), to_datetime(self._clock()), purge.count, purge.failures, not scrubbed
        return PurgeReport(purge.reason, *done, tuple(purged))

    @property
    def read_only(self) -> str | None:
        """Why the store takes no writes, None if it does: many records were quarantined in a short time."""
        return self._pen.refused

    @property
    def is_closed(self) -> bool:
        """Was `close` called?"""
        return self._closed

    def resume_writing(self) -> None:
        """Take writes again: somebody looked at what is in quarantine."""
        self._quarantine.forgive()
        self._pen.refuse(None)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call this with every event from now on, in a thread of its own. Returns what ends it. At most 100 listen to
        a store: each is woken by every event."""
        self._ensure_open()
        return self._listeners.subscribe(listener)

    def wait_for_listeners(self, *, timeout_seconds: float = 10.0) -> bool:
        """Wait until those who listen have heard all that was told so far. False if the time ran out."""
        return self._listeners.wait(patience(timeout_seconds))

    @property
    def key_id(self) -> str | None:
        """Which key the store is sealed with; None if it is plain."""
        sealed = self._workspace.sealed
        return None if sealed is None else sealed.key_id.hex()

    def _proven(self, row: ConversationRow) -> bool:
        """Is the row as it was proven? What it says of a hold is worth nothing otherwise, and whoever purges it has to
        say that it is for that."""
        try:
            self._checked(row)
        except Damaged:
            return False
        return True

    def scrub(self) -> bool:
        """Take deleted bytes out of the files now: all tables of a large store are written anew, which takes a while.
        False if a reader delays it, or the disk has no room for that. Readers that are done within a second, such as
        this store's own maintenance thread, are waited for."""
        self._ensure_open()
        if not self.backend.is_scrubbed():
            self.backend.maintain(_EVER_SECONDS)
        deadline = time.monotonic() + _SCRUB_PATIENCE_SECONDS
        while not (self._purges.retry() if self._purges.pending else self._scrub()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_SCRUB_PAUSE_SECONDS)
        return True

    def _scrub(self) -> bool:
        scrubbed = self.backend.scrub()
        return self._search.scrub() and scrubbed

    def stats(self) -> Stats:
        """How much there is. A sealed store reads and proves every conversation's row."""
        self._ensure_open()
        found = self.backend.totals(CHAT) if self._codec.in_clear else self._proven_totals()
        return Stats(
            conversations=found.conversations,
            messages=found.messages,
            content_bytes=found.size,
            approximate_tokens=approximate_tokens(found.size),
            stored_bytes=self.backend.size() + self._search.size(),
            oldest=None if found.oldest is None else to_datetime(found.oldest),
            newest=None if found.newest is None else to_datetime(found.newest),
        )

    def _proven_totals(self) -> Totals:
        """The same of a sealed store, without what is in quarantine: each row has to be proven."""
        count = messages = size = 0
        times: list[int] = []
        for row in conversations(self.backend, Where(), oldest_first=True):
            sound = self._sound(row)
            if sound is not None:
                count, messages, size = count + 1, messages + sound.row.count, size + sound.row.size
                times += [sound.row.created_at, sound.row.active_at]
        return Totals(count, messages, size, min(times, default=None), max(times, default=None))

    def activity(self, *, days: int = 30) -> dict[date, dict[str, int]]:
        """How many messages of which role were said on each of the last days, in UTC, today the last. Reads the headers
        of these messages, and nothing older."""
        self._ensure_open()
        if type(days) is not int or not 1 <= days <= _MOST_DAYS:
            raise InvalidArgument(f"days is a number from 1 to {_MOST_DAYS:,}")
        from ._engine.statistics import activity  # noqa: PLC0415  # rare

        return activity(self, days)

    def verify(self, progress: Callable[[int], None] | None = None) -> "Report":
        """Read everything and derive it again: the shape of every tree, sequence, sizes, checksums.

        The report names every problem; a damaged message does not hide the others. What others keep busy while it is
        read is named in `unread`, and then the report is not `ok`.
        """
        self._ensure_open()
        from ._engine.verify import verify  # noqa: PLC0415  # reading everything is rare

        return verify(self, progress)

    # -- for the modules beside this one

    def _change(
        self,
        conversation: bytes,
        make: Callable[[ConversationRow], Change | None],
        *,
        always: bool = False,
        tell: Tell | None = stored,
    ) -> None:
        """Commit a change that is prepared from what the backend holds now, not from what we believe; again if
        somebody was faster. None: there is nothing to do. `tell` makes the events; None: nobody need hear of it."""
        for _ in range(_TRIES):
            require = self._workspace.require  # before the change is made, which may use the keys of the workspace
            row = self._fresh_row(conversation)
            try:
                change = make(row)
            except Moved:
                continue
            except Damaged:
                if self._fresh_row(conversation).token != row.token:
                    continue
                raise
            if change is None:
                return
            names = change.tag or change.untag
            if self._commit_now(change, require if names else (), always=always, tell=tell):
                return
        raise Busy(f"conversation {show_conversation_id(conversation)} changes faster than a write can be prepared")

    def _commit_now(
        self,
        change: Change,
        require: tuple[tuple[bytes, bytes], ...] = (),
        *,
        always: bool = False,
        tell: Tell | None = None,
    ) -> bool:
        """Commit a change if nobody was faster."""
        if change.row is not None and change.row.expires_at is not None:
            self._schedule.expect_expiry()
        outcome = self._pen.write(Batch((change,), require), always=always, tell=tell)
        if isinstance(outcome, Done):
            self._tell_desk(change.conversation, change.row)
        elif isinstance(outcome, Stale) and outcome.conversation == self._workspace.row.id:
            self._workspace.refresh()
        return isinstance(outcome, Done)

    def _new_run(self) -> int:
        """The first number of a run that nobody has used, as far as we can see. If another process sees the same one at
        the same time, the commit of one of us is answered with `Taken`, and it asks again."""
        edge = self.backend.edge()  # not under the lock: who waits for it may have the connection that this takes
        with self._runs:
            number = max(edge, self._next_run)
            self._next_run = number + RUN
            return number

    def _tell_desk(self, conversation: bytes, row: ConversationRow | None) -> None:
        desk = self._desks.get(conversation)
        if desk is not None and row is not None:
            desk.believe(row)

    def _fresh_row(self, conversation: bytes) -> ConversationRow:
        rows = self.backend.lookup(ids=[conversation])
        if not rows or rows[0].kind == WORKSPACE:
            raise NotFound("conversation", [show_conversation_id(conversation)])
        return rows[0]

    def _message_row(self, id: str) -> MessageRow:
        rows = self.backend.messages(numbers=[self._names.number(id)])
        if not rows:
            raise NotFound("message", [id])
        return rows[0]

    def _read(self, row: MessageRow, desk: Desk, reader: Reader | None = None) -> tuple[MessageRow, Body]:
        """The content of a message, with its row as it then is; `Damaged` if it cannot be read."""
        try:
            return self._read_now(row, desk, reader)
        except Damaged:
            return self._sure(desk, lambda own: self._read_now(self._again(row), own), self._record(row, desk))

    def _read_now(self, row: MessageRow, desk: Desk, reader: Reader | None = None) -> tuple[MessageRow, Body]:
        row, data = (reader or Reader(self)).content(desk.envelope, row)
        ledger = desk.ledger
        if ledger is not None:
            ledger.check(row.number, row.revision)
        return row, decode_body(data)

    def _again(self, row: MessageRow) -> MessageRow:
        found = self._message_row(self._names.id(row.number))
        if found.seq != row.seq:
            raise Damaged("an index led to another message than the one that was meant")
        return found

    def _saved(
        self, row: MessageRow, desk: Desk | None = None, *, lazy: bool = False, reader: Reader | None = None
    ) -> Saved:
        """A row as a message; `Damaged` if its content cannot be read."""
        if desk is None:
            desk = self._desk_for(row.conversation, reader)

        def read(desk: Desk, row: MessageRow, reader: Reader | None = None) -> Saved:
            row, body = self._read_now(row, desk, reader)
            problem = None
            if body.attached:
                body, problem = filled(desk, body, lazy=lazy)
            return saved(row, body, self._names, desk.name, problem)

        try:
            return read(desk, row, reader)
        except Damaged:
            return self._sure(desk, lambda own: read(own, self._again(row)), self._record(row, desk))

    def _desk_for(self, conversation: bytes, reader: Reader | None) -> Desk:
        """The desk of a conversation; who reads many messages keeps it."""
        desk = self._desks.get(conversation)
        if desk is None:
            desk = self._desk(self._fresh_row(conversation))
        if reader is not None:
            reader.desk = desk
        return desk

    def _shown(self, row: MessageRow, *, lazy: bool = False, reader: Reader | None = None) -> Saved:
        """A row for a listing: if its content cannot be read, a message that says so."""
        try:
            return self._saved(row, lazy=lazy, reader=reader)
        except Damaged as error:
            return Saved(
                role=row.role,
                parent=None if row.parent is None else self._names.id(row.parent),
                id=self._names.id(row.number),
                conversation=show_conversation_id(row.conversation),
                seq=row.seq,
                created_us=row.created_at,
                main=bool(row.main),
                problem=str(error),
            )

    def _tree(self, desk: Desk) -> list[MessageRow]:
        """All messages of a conversation by sequence; if it is sealed, each of them was opened."""
        headers = self._headers(desk.id)
        if desk.envelope.proves:
            reader = Reader(self)
            for row in self.backend.scan(desk.id, limit=1 << 40):
                try:
                    self._read_now(row, desk, reader)
                except Damaged as error:
                    error.record = self._record(row, desk)
                    raise
            if len({row.number for row in headers}) != desk.row.count:
                raise Damaged(f"{len(headers)} messages are stored, {desk.row.count} are meant to be")
        return headers

    def _headers(self, conversation: bytes) -> list[MessageRow]:
        """All messages of a conversation by sequence, without their content."""
        return self.backend.scan(conversation, limit=1 << 40, bodies=False)

    def _path(self, number: int, desk: Desk, *, lazy: bool = False) -> list[Saved]:
        """The messages from the root to this one. An unbroken way, or an error."""
        try:
            return self._path_now(number, desk, lazy=lazy)
        except Damaged:
            culprit = self._culprit(number, desk)
            return self._sure(desk, lambda own: self._path_now(number, own, lazy=lazy), culprit)

    def _record(self, row: MessageRow, desk: Desk) -> int:
        """The record that a message is in: itself, or the first message of its pack, if that is what cannot be read."""
        first = run_of(row.number)
        for pack in self.backend.packs([first]) if row.body is None else ():
            try:
                open_pack_raw(desk.envelope, pack)
            except Damaged:
                return first
        return row.number

    def _culprit(self, number: int, desk: Desk) -> int:
        """The message on the way to this one that cannot be read."""
        last = number
        seen: set[int] = set()
        for piece in self.backend.path(number):
            if last in seen:
                break  # a circle
            seen.add(last)
            for row in [piece] if isinstance(piece, PackRow) else reversed(piece):
                try:
                    if isinstance(row, PackRow):
                        last = row.first
                        open_pack_raw(desk.envelope, row)
                    else:
                        last = row.number
                        self._read_now(row, desk)
                except Damaged:
                    return last
        return last

    def _path_now(self, number: int, desk: Desk, *, lazy: bool) -> list[Saved]:
        stretches: list[list[Saved]] = []
        last: int | None = number
        place = desk.envelope, self._names, desk.name, partial(filled, desk, lazy=lazy)
        ledger = desk.ledger
        for piece in self.backend.path(number):
            if isinstance(piece, PackRow):
                stretch = saved_pack(piece, piece.first if last is None else last, *place)
                first, last = piece.first, piece.parent
            else:
                stretch = saved_stretch(piece, *place)
                first, last = piece[0].number, piece[0].parent
            if ledger is not None:
                for n, message in enumerate(stretch, first):
                    ledger.check(n, message.revision)
            if stretches and stretch[-1].seq >= stretches[-1][0].seq:  # the way leads back in time, or nowhere
                raise Damaged(f"message {stretch[-1].id} comes after one that answers it")
            stretches.append(stretch)
        if not stretches:
            raise NotFound("message", [self._names.id(number)])
        top = stretches[-1][0]
        if top.parent is not None:
            if not self.backend.messages(numbers=[number], bodies=False):
                raise NotFound("message", [self._names.id(number)])  # deleted while we read
            raise Damaged(f"message {top.parent}, which message {top.id} answers, is missing")
        stretches.reverse()
        return [message for stretch in stretches for message in stretch]


def _clean(meta: Meta, redactor: "Redactor") -> Meta:
    """The description of a conversation without what is not to be kept."""
    redactor.name(meta.key, "the key")
    redactor.folder(meta.project)
    return replace(meta, title=redactor.text(meta.title), metadata=redactor.strings(meta.metadata))


def check_reason(reason: str) -> None:
    """A purge has one of the reasons that are known."""
    if reason not in PURGE_REASONS:
        raise InvalidArgument(f"not a reason for a purge: {reason!r:.60}", hint="one of " + ", ".join(PURGE_REASONS))


def as_key(key: "Key | bytes") -> "Key":
    """A key, also from its 32 bytes; `InvalidKey` otherwise."""
    from .keys import Key  # noqa: PLC0415  # plain stores have none

    return key if isinstance(key, Key) else Key(key)


def _born(meta: Meta, now: int) -> int:
    """The `created_at` of a new row. If the conversation was begun elsewhere, it is a little earlier, by chance, than
    that was: the time is also what tells a conversation from an earlier one of the same id, and of what is brought here
    again after a purge it would be the same."""
    return min(meta.created, now) - int.from_bytes(os.urandom(4)) % 1_000_000 if meta.created else now


def _has_traces_only(row: ConversationRow) -> bool:
    """Was something said in this conversation, and nothing on the main flow?"""
    return row.count > 0 and row.head is None


def _parent(message: Message) -> str | None:
    """The parent a message asks for. A saved message is taken as a value: its old place does not count."""
    return None if isinstance(message, Saved) or not isinstance(message, Message) else message.parent


def _fits(label: str | None, subagent: str | None) -> Callable[[Saved], bool] | None:
    """What a message has to be that was found by a tag: others may have written tags."""
    if label is None and subagent is None:
        return None
    begins = None if subagent is None else f"subagent:{subagent}:"

    def fits(message: Saved) -> bool:
        own = message.label or ""
        return label in (None, own) and (begins is None or f"{own}:".startswith(begins))

    return fits


def _spot_below(parent: MessageRow) -> Spot:
    return Spot(parent.number, bool(parent.main))


def _flows(messages: Sequence[Message], below: Sequence[tuple[str | None, Spot] | None], *, head: Spot) -> list[Spot]:
    """Where messages of one write go. `below` has, for each, the label of the parent that it names, and the place below
    that; `head` is the place below the head.

    A message that names no parent goes below the one before it in its flow: the main one, or the trace of a run of a
    sub-agent. A trace begins with a root of its own, off the main flow, linked to what it would have gone below."""
    last: dict[str | None, Spot] = {None: head}
    at = head  # the place below what came last, in any flow
    spots: list[Spot] = []
    for n, (message, named) in enumerate(zip(messages, below, strict=True)):
        flow = trace_of(getattr(message, "label", None))  # what is no message is refused where it is checked
        if named is not None:
            at = named[1]
            last[trace_of(named[0])] = at
        if flow is not None and (flow not in last if named is None else trace_of(named[0]) != flow):
            spot = Spot(None, main=False, link=at.parent)
        else:
            spot = last[flow] if named is None else named[1]
        spots.append(spot)
        at = last[flow] = Spot(~n, spot.main)
    return spots


def _ids(ids: Iterable[str | Saved]) -> list[str]:
    return [check_message_id(id_of(id)) for id in listed(ids, "ids")]


def _id(message: "str | Saved | None") -> str | None:
    return None if message is None else id_of(message)


def _folder(project: Path | None) -> str | None:
    """A project is a directory, by its absolute path."""
    if project is None:
        return None
    folder = os.fspath(project) if isinstance(project, os.PathLike) else project
    if not isinstance(folder, str):
        raise InvalidArgument(f"a project is a directory, not a {type(project).__name__}")
    return os.path.abspath(os.path.expanduser(folder))
