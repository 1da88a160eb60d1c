"""The store: the one object people hold.

`Store` builds the engine (`_engine.engine`) and its services, checks the arguments of each call, and delegates to the
modules of `_engine`, `_erasure`, `_sealing` and `_search`. These take the engine, and none of them knows `Store`. All
decisions are made above the backends, so each promise holds on every backend. docs/architecture.md shows where each is
made: the place of a message and conflicts in `_engine.appending`; ids, sequence and head in `_engine.state`.

The store is thread-safe. Conversation handles and listings come from it and are used with it; after `close` they raise
`Closed`.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from ._engine.appending import HandlePosition
from ._engine.bodies import Meta
from ._engine.context import MAX_ATTACHMENT, MAX_WRITE_BYTES
from ._engine.creating import build_meta, create, create_from_snapshot
from ._engine.engine import Engine
from ._engine.filters import Filter, Path, check_key, check_kind, check_pairs, folder
from ._engine.finding import find_by_id, find_by_key, find_or_create
from ._engine.lease import Lease
from ._engine.packs import Reader
from ._engine.quota import Quota
from ._engine.selection import filter_by_project, find_latest, list_conversations, list_messages
from ._engine.setups import Tools, check_setup, check_text, setup_in_force
from ._engine.state import ConversationState
from ._erasure.maintenance import MaintenanceThread, maintain
from ._erasure.schedule import Schedule
from ._erasure.shutdown import Purges, close, patience
from ._sealing.codec import Codec
from ._sealing.quarantine import Quarantine
from ._search.search import Search
from ._system import forks
from .backend import CHAT, ITEMS, Backend
from .conversation import Attachments, Conversation, handle_at_head, handle_on, is_lazy
from .errors import AlreadyExists, InvalidArgument, NotFound
from .events import Listener, Quarantined, warn
from .ids import check_message_id, new_conversation_id, parse_conversation_id
from .items import Items
from .listing import ConversationInfo, MessageListing, Page, check_limit
from .model import Message, Saved, Setup, as_list, from_datetime, id_of
from .reports import CloseReport, Hit, Maintenance, PurgePlan, PurgeReport, Stats
from .telemetry import with_span

if TYPE_CHECKING:
    from uuid import UUID

    from .keys import Key
    from .reports import RotationProgress, RotationReport, VerifyReport
    from .retention import RetentionPolicy, SweepPlan, SweepReport
    from .sanitiser import Sanitiser
    from .snapshots import Snapshot, SnapshotStore

__all__ = ["Store"]


class Store:
    """A store of conversations. Open one with `hitherto.open`."""

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
        is done only by `maintain`. Maintenance purges records that have been in quarantine for
        `quarantine_days`; without a number, only a command does. `sanitiser` cleans all that is written from now on."""
        self.backend = backend
        engine = Engine(
            backend,
            codec,
            key=key,
            clock=clock,
            max_write_bytes=max_write_bytes,
            max_attachment=max_attachment,
            max_conversation_bytes=max_conversation_bytes,
            quarantine_days=quarantine_days,
            sanitiser=sanitiser,
        )
        engine.background = MaintenanceThread(engine, stopped=not maintenance)
        engine.purges = Purges(engine)
        engine.rotation_lease = Lease(engine, "rotator")
        self._quarantine = engine.quarantine = Quarantine(engine)
        self._search = engine.search = Search(engine)
        engine.schedule = Schedule(engine, machine=clock is None, never=not maintenance)
        engine.quota = Quota(engine)
        engine.workspace.on_rules_changed = engine.background.rules_changed
        self._telemetry = engine.telemetry
        self.engine = engine  # what the store is made of, for the modules of this library
        self._close_report: CloseReport | None = None
        self._closing_lock = threading.RLock()
        engine.background.watch()
        if maintenance and (engine.workspace.meta.replaying or not backend.is_scrubbed()):  # a process was killed
            engine.background.ask()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.backend.info.location}>"

    def close(self, *, timeout_seconds: float = 10.0) -> CloseReport:
        """Wait for what is on its way, for about so long, then let go of everything; what could not be finished.
        Idempotent: another call gives the same report, or says that another thread is still closing it."""
        seconds = patience(timeout_seconds)
        if self.engine.forks != forks.count():
            return close(self.engine, 0.0)
        patient = 0.0 if self.engine.listeners.are_here else seconds  # the thread that closes waits for listeners
        if not self._closing_lock.acquire(timeout=patient):
            return CloseReport(complete=False, unfinished=("somebody else is closing it",))
        try:
            if self._close_report is None:
                self._close_report = close(self.engine, seconds)
            return self._close_report
        finally:
            self._closing_lock.release()

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
        self.engine.ensure_open()
        chosen = new_conversation_id() if id is None else parse_conversation_id(str(id))
        meta = build_meta(self.engine, title, None, metadata, project)
        setup = check_setup(provider, model, system_prompt, tools, self.engine.max_write_bytes)
        made = create(self.engine, chosen, meta, [setup])
        if made is None:
            raise AlreadyExists("a conversation with this id", str(id))
        return handle_on(made[0])

    def find(self, key: str, *, kind: str = CHAT) -> Conversation | None:
        """The conversation of that name, or None; makes nothing."""
        self.engine.ensure_open()
        row = find_by_key(self.engine, check_kind(kind), check_key(key))
        return None if row is None else handle_at_head(self.engine.state_of(row), row)

    def ensure(
        self,
        key: str,
        *,
        kind: str = CHAT,
        title: str = "",
        system_prompt: str = "",
        provider: str = "",
        model: str = "",
        tools: Tools = (),
        metadata: Mapping[str, str] | None = None,
        project: Path | None = None,
    ) -> Conversation:
        """The conversation of that name and kind: the one that is there, or a new one made from the other arguments.

        A kind of its own keeps conversations out of `latest` and of lists that do not ask for it."""
        self.engine.ensure_open()
        limit = self.engine.max_write_bytes

        def describe() -> tuple[Meta, list[Setup]]:
            meta = build_meta(self.engine, title, key, metadata, project)
            return meta, [check_setup(provider, model, system_prompt, tools, limit)]

        return handle_at_head(*find_or_create(self.engine, check_kind(kind), check_key(key), describe))

    def restore(self, snapshot: "Snapshot", *, title: str | None = None, project: Path | None = None) -> Conversation:
        """A new conversation that holds what a snapshot holds: its messages, its system prompt, its tools."""
        self.engine.ensure_open()
        state = create_from_snapshot(self.engine, snapshot, title, project)
        return handle_on(state)

    def conversation(self, id: "str | UUID | ConversationInfo | Saved") -> Conversation:
        """The conversation of an id, of a unique beginning of one, or of a message, at which the handle then stands."""
        self.engine.ensure_open()
        row, message = find_by_id(self.engine, id_of(id))
        state = self.engine.state_of(row)
        if message is None:
            return handle_at_head(state, row)
        message, body = self.engine.read_body(message, state)
        position = HandlePosition(
            state,
            message.number,
            main=bool(message.main),
            label=None if message.main else body.label,
            setup=None if message.number == row.head else body.setup,
            rewrites=row.rewrites,
        )
        return Conversation(position)

    def latest(self, *, project: Path | None = None) -> Conversation | None:
        """The conversation that was active last, or None if there is none. One that has nothing but traces of
        sub-agents does not count."""
        self.engine.ensure_open()
        found = find_latest(self.engine, project)
        return None if found is None else handle_at_head(*found)

    def conversations(
        self,
        *,
        limit: int = 20,
        cursor: str | None = None,
        project: Path | None = None,
        metadata: Mapping[str, str] | None = None,
        kind: str = CHAT,
        key_prefix: str | None = None,
        total: bool = False,
        include_expired: bool = False,
    ) -> Page:
        """Conversations by last activity, newest first: those of this kind and project, those whose key begins so, and
        those whose metadata has all of these pairs. `total=True` also counts them all, slow in large stores. A sealed
        store reads every description to compare the beginning of a key."""
        self.engine.ensure_open()
        check_limit(limit)
        wanted = Filter(
            folder(project),
            check_pairs(metadata),
            check_kind(kind),
            None if key_prefix is None else check_key(key_prefix),
        )
        return list_conversations(
            self.engine, wanted, limit=limit, cursor=cursor, include_expired=include_expired, total=total
        )

    @property
    def items(self) -> Items:
        """The items of the workspace: named values with revisions."""
        return Items(self.engine, self._find_items)

    def _find_items(self, make: bool) -> ConversationState | None:  # a callback of `Items`
        """Return the conversation that the workspace's items belong to; it is made with the first of them."""
        if make:
            return find_or_create(self.engine, ITEMS, ITEMS, lambda: (Meta(key=ITEMS), []))[0]
        row = find_by_key(self.engine, ITEMS, ITEMS)
        return None if row is None else self.engine.state_of(row)

    # -- messages: save, get, list, delete

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
        self.engine.ensure_open()
        from ._engine.saving import save  # noqa: PLC0415  # most programs append to a handle

        state = None if conversation is None else self._state_of(conversation)
        return save(
            self.engine,
            messages,
            parent,
            state,
            lambda conversation_state: setup_in_force(conversation_state, conversation_state.row.head),
        )

    def _state_of(self, conversation: str | Conversation | ConversationInfo) -> ConversationState:
        if isinstance(conversation, Conversation):
            if conversation.engine is not self.engine:
                raise InvalidArgument("this conversation is of another store", hint="pass its id")
            return conversation.state
        return self.engine.state_of(find_by_id(self.engine, id_of(conversation))[0])

    def get(self, ids: Iterable[str | Saved], *, attachments: Attachments = "load") -> list[Saved]:
        """Messages by id, in the order asked for. `NotFound` names every one that is missing."""
        self.engine.ensure_open()
        lazy, reader = is_lazy(attachments), Reader(self.engine)
        wanted = _check_ids(ids)
        found, missing = self.engine.message_rows(wanted, bodies=True)
        if missing:
            raise NotFound("message", missing)
        messages = {id: self.engine.read_message(row, lazy=lazy, reader=reader) for id, row in found.items()}
        return [messages[id] for id in wanted]

    def message(self, id: str | Saved, *, attachments: Attachments = "load") -> Saved:
        """One message, as it is now."""
        self.engine.ensure_open()
        return self.engine.read_message(self.engine.message_row(id_of(id)), lazy=is_lazy(attachments))

    def thread(self, id: str | Saved, *, attachments: Attachments = "load") -> list[Saved]:
        """The messages from the root to this one."""
        self.engine.ensure_open()
        row = self.engine.message_row(id_of(id))
        state = self.engine.state_of(self.engine.read_row(row.conversation))
        path = self.engine.read_path(row.number, state, lazy=is_lazy(attachments))
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
        self.engine.ensure_open()
        if type(offset) is not int or offset < 0:
            raise InvalidArgument("the offset is a number from 0 up")
        for what, value in (("label", label), ("subagent", subagent)):
            if value is not None:
                check_text(value, what, self.engine.max_write_bytes)
        return list_messages(
            self.engine,
            None if conversation is None else self._id_of(conversation),
            label=label,
            subagent=subagent,
            newest_first=newest_first,
            offset=offset,
            cursor=cursor,
            lazy=is_lazy(attachments),
        )

    def _id_of(self, conversation: str | Conversation | ConversationInfo) -> bytes:
        if isinstance(conversation, Conversation):
            return self._state_of(conversation).id
        return find_by_id(self.engine, id_of(conversation))[0].id

    def delete(self, ids: Iterable[str | Saved], *, recursive: bool = False, missing_ok: bool = False) -> list[str]:
        """Delete messages in one transaction; the ids of all that went.

        A message with others below it is refused (`HasChildren`) unless `recursive`, which takes the whole subtree and
        the traces of sub-agents started in it. A head that goes moves to the parent of what was deleted.
        """
        self.engine.ensure_open()
        from ._engine.deleting import delete  # noqa: PLC0415  # rare

        return delete(self.engine, _check_ids(ids), recursive=recursive, missing_ok=missing_ok)

    @with_span
    def search(
        self,
        query: str,
        *,
        limit: int = 20,
        offset: int = 0,
        mode: Literal["match", "nearest", "auto"] = "match",
        order: Literal["newest", "best"] = "newest",
        role: str | None = None,
        project: Path | None = None,
        conversation: str | Conversation | ConversationInfo | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        include_expired: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Hit]:
        """Messages by their words. Each hit says its `tier`.

        In mode "match" all words must occur; `"a phrase"` in this order; `begin*` at the beginning of a word; `a OR b`;
        `-without`. They come newest first; the best first with `order="best"`. "nearest" takes a question in plain
        words: any of them, in any of their forms, the best first, at most a hundred. "auto" is a match, and the nearest
        if there is none.
        `since` <= time < `until`; `offset` passes over the first hits. The first search of a store reads all of it;
        later ones what is new: `progress` hears how many messages are done.
        """
        self.engine.ensure_open()
        check_limit(limit)
        from ._search.answering import Asked, check_arguments, read_query  # noqa: PLC0415  # only searches need it

        check_arguments(offset, role, mode, order)
        return self._search.find(
            Asked(
                query,
                read_query(query, mode),
                mode,
                order,
                limit,
                offset,
                role,
                filter_by_project(self.engine, project, None if conversation is None else [self._id_of(conversation)]),
                None if since is None else from_datetime(since, "since"),
                None if until is None else from_datetime(until, "until"),
                None if include_expired else self.engine.clock(),
            ),
            progress,
        )

    # -- care

    def maintain(
        self, seconds: float | None = None, *, progress: Callable[[str, int], None] | None = None
    ) -> Maintenance:
        """Keep the store small and fast: pack what is old, let the search index catch up, remove unreferenced
        content, give free space back. For about so long, or until all is done. Stores do it by themselves, too.
        `progress` hears "packing" and how many runs are done, then "indexing" and how many messages are."""
        self.engine.ensure_open()
        if seconds is not None and (not isinstance(seconds, (int, float)) or not seconds >= 0):
            raise InvalidArgument("seconds is a number from 0 up")
        return maintain(self.engine, seconds, progress=progress)

    def backup(self, path: Path) -> None:
        """Write a copy of everything to a new file, while others go on writing: a store that can be opened. The search
        index is not in it; the first search makes one."""
        self.engine.ensure_open()
        name = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(name, str) or not name:
            raise InvalidArgument("a backup goes to a path")
        self.engine.backend.backup(name)

    @with_span
    def purge(self, conversation: "str | UUID | Conversation | ConversationInfo", *, reason: str) -> PurgeReport:
        """Destroy a conversation with all its branches, and take its bytes out of the files.

        A sealed conversation whose row was tampered with is `Damaged`, because its hold cannot be trusted;
        `reason="corruption-detected"` purges it all the same.
        `scrub_pending` in the report means that a reader delays the last step: `scrub` finishes it.
        """
        self.engine.ensure_open()
        from ._erasure.purging import purge  # noqa: PLC0415  # rare

        return purge(self.engine, id_of(conversation), reason)

    def plan_purge(
        self,
        *,
        participant: str | None = None,
        metadata: Mapping[str, str] | None = None,
        key_prefix: str | None = None,
    ) -> PurgePlan:
        """Return what `purge_matching` would purge, and what would stay, and why. Writes nothing."""
        self.engine.ensure_open()
        from ._erasure.by_person import plan_purge  # noqa: PLC0415  # rare

        return plan_purge(self.engine, (participant, metadata, key_prefix))

    @with_span
    def purge_matching(
        self,
        *,
        participant: str | None = None,
        metadata: Mapping[str, str] | None = None,
        key_prefix: str | None = None,
        reason: str,
        progress: Callable[[int, int], None] | None = None,
    ) -> PurgeReport:
        """Purge every conversation, of every kind, that fits all of these: a participant of its record, pairs of its
        metadata, the beginning of its key. Those on hold stay, and are in `failures`."""
        self.engine.ensure_open()
        from ._erasure.by_person import purge_matching  # noqa: PLC0415  # rare

        return purge_matching(self.engine, (participant, metadata, key_prefix), reason, progress)

    def register_checkpoint_store(self, place: "SnapshotStore") -> tuple[tuple[str, str], ...]:
        """Checkpoints of conversations of this store may lie in this snapshot store: a purge deletes them there, too.
        Copies that earlier purges could not reach are deleted now. Returns those that still cannot be, as id and
        error."""
        self.engine.ensure_open()
        from ._erasure.checkpoint_copies import finish, register  # noqa: PLC0415  # rare

        register(self.engine, place)
        return tuple(finish(self.engine).items())

    @property
    def quota(self) -> int | None:
        """How many bytes this workspace may hold, as it stands in the store now; None: as many as the disk."""
        self.engine.ensure_open()
        return self.engine.quota.look() or None

    def set_quota(self, limit: int | None) -> None:
        """Keep a limit in the store, for every process that opens this workspace; None: no limit.

        It is for the content of messages and for attachments. A write that does not fit is `StorageFull`; nothing that
        removes is refused. `CapacityWarning` is told at nine tenths of it, and when it is used up."""
        self.engine.ensure_open()
        self.engine.quota.set(limit)

    @property
    def used_bytes(self) -> int:
        """How many bytes of its quota this workspace uses. Reads every conversation's row."""
        self.engine.ensure_open()
        return self.engine.backend.used()

    @property
    def retention(self) -> "RetentionPolicy | None":
        """After how long conversations are due, as it stands in the store now; None: never."""
        self.engine.ensure_open()
        from ._erasure.sweep import policy_of  # noqa: PLC0415  # rare

        return policy_of(self.engine)

    def set_retention(self, policy: "RetentionPolicy | None") -> "SweepReport | None":
        """Keep this policy in the store, for every process that opens this workspace; None: everything is kept.

        Conversations that fewer days make due are purged before this returns, and the report names
        them; stores then purge what is due by themselves, as they are opened and every six hours. None: nothing more is
        due by it than before. A store without `maintenance` purges nothing until `sweep` is called. A number of
        days that is not recommended is taken, with a warning in the log."""
        self.engine.ensure_open()
        if warning := getattr(policy, "warning", None):  # `set_policy` refuses an argument that is no policy
            warn(warning)
        return self.engine.schedule.set_policy(policy)

    @property
    def retention_floor(self) -> int | None:
        """For how many days nothing is destroyed, as it stands in the store now; None: there is no floor."""
        self.engine.ensure_open()
        from ._engine.floor import floor_of  # noqa: PLC0415  # rare

        return floor_of(self.engine)

    def set_retention_floor(self, days: int | None) -> None:
        """Destroy nothing in the first days after the last interaction. To lower it takes a reason: `acting`."""
        self.engine.ensure_open()
        from ._engine.floor import set_floor  # noqa: PLC0415  # rare

        set_floor(self.engine, days)

    def plan_sweep(self, policy: "RetentionPolicy | None" = None, *, now: datetime | None = None) -> "SweepPlan":
        """Return what a sweep would purge, what it would keep, and why. Without a policy, by that of the store."""
        self.engine.ensure_open()
        from ._erasure.sweep import plan_sweep  # noqa: PLC0415

        return plan_sweep(self.engine, policy, now)

    @with_span
    def sweep(
        self,
        policy: "RetentionPolicy | None" = None,
        *,
        now: datetime | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "SweepReport":
        """Purge what is due by this policy, or by that of the store; without either, nothing.

        A conversation is kept if, before it is purged, it gets a message or a hold, or an answer is being recorded into
        it. If another policy is set meanwhile, a sweep by the store's policy stops there.
        `progress` hears how many are done, and of how many. The same call finishes a sweep that was interrupted.
        """
        self.engine.ensure_open()
        from ._erasure.sweep import carry_out, plan_sweep  # noqa: PLC0415

        found = plan_sweep(self.engine, policy, now, check_recordings=False)
        return carry_out(self.engine, found, progress, given=policy is not None)

    def rotate(
        self,
        key: "Key | bytes",
        *,
        reencrypt: bool = False,
        progress: "Callable[[RotationProgress], None] | None" = None,
    ) -> "RotationReport":
        """Give a sealed store another key; from then on the old one does not open it.

        Keep the new key in a safe place first: from the first moment on only it opens the store. Readers and writers go
        on. `maintain`, or the same call again, finishes a rotation that was killed. `reencrypt=True` encrypts
        everything anew, which is for keys that others may have seen.
        """
        self.engine.ensure_open()
        from ._sealing.rotation import rotate  # noqa: PLC0415  # rare

        with self.engine.rotation_lock:
            return rotate(self.engine, as_key(key), reencrypt=reencrypt, progress=progress)

    def seal(
        self, key: "Key | bytes", *, progress: "Callable[[RotationProgress], None] | None" = None
    ) -> "RotationReport":
        """Seal a plain store: everything in it is encrypted, while readers and writers go on. Resumed like `rotate`."""
        self.engine.ensure_open()
        from ._sealing.rotation import seal  # noqa: PLC0415

        with self.engine.rotation_lock:
            return seal(self.engine, as_key(key), progress=progress)

    def unseal(self, *, progress: "Callable[[RotationProgress], None] | None" = None) -> "RotationReport":
        """Make a sealed store plain again. Resumed like `rotate`; until it is complete, the key is needed."""
        self.engine.ensure_open()
        from ._sealing.rotation import unseal  # noqa: PLC0415

        with self.engine.rotation_lock:
            return unseal(self.engine, progress=progress)

    def quarantine(self) -> list[Quarantined]:
        """The records that could not be read back as what was written, in the order in which they were noticed. They
        are given out nowhere."""
        self.engine.ensure_open()
        return self._quarantine.list()

    def purge_quarantine(self, *, older_than_seconds: float = 0.0) -> PurgeReport:
        """Destroy what has been in quarantine for so long: a message with all that stands below it, or a conversation.
        Records that can be read again by now, because they were restored, are released instead."""
        self.engine.ensure_open()
        from ._erasure.purging import purge_quarantine  # noqa: PLC0415  # rare

        return purge_quarantine(self.engine, older_than_seconds)

    @property
    def read_only(self) -> str | None:
        """Why the store takes no writes, None if it does: many records were quarantined in a short time."""
        return self.engine.read_only

    @property
    def is_closed(self) -> bool:
        """Was `close` called?"""
        return self.engine.is_closed

    def resume_writing(self) -> None:
        """Accept writes again, after a look at the quarantine."""
        self._quarantine.forgive()
        self.engine.committer.refuse(None)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call this with every event from now on, in a thread of its own. Returns what ends it. At most 100 listen to
        a store: each is woken by every event."""
        self.engine.ensure_open()
        return self.engine.listeners.subscribe(listener)

    def wait_for_listeners(self, *, timeout_seconds: float = 10.0) -> bool:
        """Wait until all listeners have got all events so far. Return False if the time ran out."""
        return self.engine.listeners.wait(patience(timeout_seconds))

    @property
    def key_id(self) -> str | None:
        """Which key the store is sealed with; None if it is plain."""
        return self.engine.key_id

    def scrub(self) -> bool:
        """Take deleted bytes out of the files now: all tables of a large store are written anew, which takes a while.
        False if a reader delays it, or the disk has no room for that. Readers that are done within a second, such as
        this store's own maintenance thread, are waited for."""
        self.engine.ensure_open()
        from ._erasure.maintenance import scrub_patiently  # noqa: PLC0415  # rare

        return scrub_patiently(self.engine)

    def stats(self) -> Stats:
        """How much there is. A sealed store reads and proves every conversation's row."""
        self.engine.ensure_open()
        from ._engine.statistics import stats  # noqa: PLC0415  # rare

        return stats(self.engine)

    def activity(self, *, days: int = 30) -> dict[date, dict[str, int]]:
        """How many messages of which role were said on each of the last days, in UTC, today the last. Reads the headers
        of these messages, and nothing older."""
        self.engine.ensure_open()
        from ._engine.statistics import activity  # noqa: PLC0415  # rare

        return activity(self.engine, days)

    def verify(self, progress: Callable[[int], None] | None = None, *, note: bool = False) -> "VerifyReport":
        """Read everything and derive it again: the shape of every tree, sequence, sizes, checksums.

        The report names every problem; a damaged message does not hide the others. Conversations that other processes
        keep busy are named in `unread`, and then the report is not `ok`. With `note` a sound store keeps the time.
        """
        self.engine.ensure_open()
        from ._engine.verify import verify  # noqa: PLC0415  # reading everything is rare

        return verify(self.engine, progress, note=note)


def as_key(key: "Key | bytes") -> "Key":
    """A key, also from its 32 bytes; `InvalidKey` otherwise."""
    from .keys import Key  # noqa: PLC0415  # plain stores have none

    return key if isinstance(key, Key) else Key(key)


def _check_ids(ids: Iterable[str | Saved]) -> list[str]:
    return [check_message_id(id_of(id)) for id in as_list(ids, "ids")]
