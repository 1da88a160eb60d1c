"""Records: conversations with the fields that a product needs, over the same tree and the same store.

A record is not stored beside a conversation: every conversation of the store is a record. All values that are written
here are cleaned first, and each call is one commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec import UNSET, msgpack
from msgspec.structs import replace

from .._engine.bodies import Meta, open_meta
from .._engine.creating import More, create
from .._engine.record_items import (
    About,
    Amendment,
    ConversationSummary,
    Details,
    Metrics,
    Participant,
    build_amendment,
    commit,
    items,
    metrics_of,
    read_newest,
    read_summaries,
    read_thread,
    revision_of,
)
from .._engine.recovery import check_state, keep_snapshot, load_snapshot
from .._engine.state import ConversationState, EncodedMessage, Placement, Prepared, check_size, encode_message
from ..backend import Change, ConversationRow, ItemRow
from ..conversation import Conversation, handle_on
from ..errors import AlreadyExists, Conflict, Damaged, InvalidArgument, NotFound, PayloadTooLarge
from ..ids import new_conversation_id, parse_conversation_id, show_conversation_id
from ..model import Message, Saved, Setup, id_of, to_datetime
from ..reports import PurgeReport, RecoverySnapshot
from ..retention import RetentionPolicy
from ..store import Store
from ._inputs import Inputs, NewMessage, check_kind, check_places
from ._listing import expiry, page
from ._purging import purge_all
from ._types import (
    Contents,
    Frame,
    Privacy,
    Record,
    RecordPage,
    Retention,
    Storage,
    Sums,
    checksum,
    deferred_record,
    frames,
    record_messages,
)

if TYPE_CHECKING:
    from uuid import UUID

    from ..aio import AsyncConversation
    from ..listing import ConversationInfo
    from ..sanitiser import Sanitiser

    Id: TypeAlias = str | UUID | Conversation | AsyncConversation | ConversationInfo

_EARLIEST = 1 << 41  # microseconds: some weeks into 1970, so that there is a time before it

T = TypeVar("T")
Fields = Mapping[str, object]


class Records:
    """Conversations as records. `retention` is stored for the whole workspace. The sanitiser cleans all values that are
    written here; by default it removes all secrets and personal data that it knows."""

    def __init__(
        self,
        store: Store,
        *,
        retention: RetentionPolicy | None = None,
        sanitiser: "Sanitiser | None" = None,
    ) -> None:
        check_kind(store, Store, "AsyncRecords takes what open_async gives")
        store.engine.ensure_open()
        if sanitiser is None:
            from ..sanitiser import Sanitiser  # noqa: PLC0415  # its rules are compiled when they are first needed

            sanitiser = Sanitiser.everything()
        own = store.engine.make_redactor(sanitiser)
        self._store = store
        self._inputs = Inputs(store, [own] if store.engine.redactor is None else [own, store.engine.redactor])
        self._redactor = own
        self._sums: Sums = {}
        if retention is not None and retention != store.retention:
            store.set_retention(retention)

    def create(
        self,
        conversation_id: "str | UUID | None" = None,
        *,
        title: str = "",
        participants: Iterable[Participant | Fields] = (),
        messages: Iterable[Frame | Message | Fields] = (),
        created_at: datetime | str | None = None,
        summary: ConversationSummary | Fields | None = None,
        metrics: Metrics | Fields | None = None,
        retention: Retention | Fields | None = None,
        privacy: Privacy | Fields | None = None,
    ) -> Record:
        """Create a record. Raises `AlreadyExists` if its id is taken. `created_at` is a datetime with a time zone, or
        the same as text: "2026-01-02T03:04:05Z"."""
        store = self._store
        store.engine.ensure_open()
        id = new_conversation_id() if conversation_id is None else parse_conversation_id(id_of(conversation_id))
        new = self._inputs.messages(messages)
        check_places(new, 1)
        amendment = self._inputs.amendment(
            title=title,
            participants=participants,
            summary=summary,
            metrics=metrics,
            retention=retention,
            privacy=privacy,
        )
        beside = _new_details(amendment)
        times = [one.at for one in new if one.at is not None]
        begun = min(times, default=0) if created_at is None else self._inputs.time(created_at, "created_at")
        begun = max(begun, _EARLIEST) if begun else 0
        meta = Meta(
            amendment.title or "", created=begun, kept_in=amendment.exportable is False, record=beside.details.number
        )
        if isinstance(amendment.expires_at, int):
            self._store.engine.schedule.expect_expiry()

        def make(state: ConversationState) -> list[EncodedMessage]:
            return _drafts(state, new, 0, amendment)

        def put(state: ConversationState, _: list[Saved]) -> Iterable[ItemRow]:
            return items(state.envelope, id, beside)

        expires = amendment.expires_at if isinstance(amendment.expires_at, int) else None
        made = create(store.engine, id, meta, [Setup()], make, More(None, amendment.held is True, put, expires))
        if made is None:
            hint = "records.get(id) gives it, records.update(id, …) adds to it"
            raise AlreadyExists("a record", show_conversation_id(id), hint=hint)
        return self._read_later(id)

    def update(
        self,
        id: "Id",
        *,
        append_messages: Iterable[Frame | Message | Fields] | None = None,
        title: str | None = None,
        summary: ConversationSummary | Fields | None = None,
        retention: Retention | Fields | None = None,
        metrics: Metrics | Fields | None = None,
        participants: Iterable[Participant | Fields] | None = None,
        privacy: Privacy | Fields | None = None,
        expect_revision: int | None = None,
        expect_version: int | None = None,
    ) -> Record:
        """Add messages at the end of a record, and change the given fields. Returns the changed record.

        With `expect_revision`, a record with another revision raises `Conflict`: then nothing is written, and the error
        has the current revision in `head`. Without it, the changes apply to the current revision. `expect_version` is
        another name for the same.
        """
        self._store.engine.ensure_open()
        expected = _check_expected(expect_revision, expect_version)
        new = self._inputs.messages(() if append_messages is None else append_messages)
        amendment = self._inputs.amendment(
            title=title,
            summary=summary,
            retention=retention,
            metrics=metrics,
            participants=participants,
            privacy=privacy,
        )
        state = self._open_state(id)
        talk = handle_on(state)
        drafts = _drafts(state, new, talk.position.setup_number(), amendment)
        if isinstance(amendment.expires_at, int):
            self._store.engine.schedule.expect_expiry()
        _Writing(state, new, amendment, expected).run(drafts)
        return self._read_later(state.id)

    def get(self, id: "Id") -> Record:
        """Read a record. Raises `NotFound` if there is none. If it is due, `retention.expired` is true until a sweep
        deletes it."""
        self._store.engine.ensure_open()
        return self._read(parse_conversation_id(id_of(id)))

    def list(
        self, *, limit: int = 20, cursor: str | None = None, include_expired: bool = False, total: bool = True
    ) -> RecordPage:
        """List records by last interaction, newest first, with their total number unless `total` is false. Records that
        are due are left out, unless `include_expired` is true."""
        self._store.engine.ensure_open()
        return page(self._store, limit, cursor, include_expired=include_expired, total=total)

    def delete(self, id: "Id", *, reason: str) -> PurgeReport:
        """Destroy a record, and remove its bytes from the files, as `store.purge` does."""
        return self._store.purge(id_of(id), reason=reason)

    def purge_all(self, *, reason: str, progress: Callable[[int, int], None] | None = None) -> PurgeReport:
        """Destroy all conversations of the workspace, of every kind, some in each commit.

        The report lists those that could not be destroyed, for example because of a hold, with their errors.
        `progress` is called with the number of those that were checked, and with the total. After an interruption the
        same call finishes the purge.
        """
        self._store.engine.ensure_open()
        return purge_all(self._store, reason, progress)

    def commit_conversation(
        self, id: "Id", *, summary: ConversationSummary | Fields | None = None, metrics: Metrics | Fields | None = None
    ) -> Record:
        """End a conversation for now: store its metrics and remove its recovery snapshot, in one commit. Metrics that
        are not given are counted. Idempotent."""
        self._store.engine.ensure_open()
        state = self._open_state(id)
        commit(
            self._store.engine, state.id, summary=self._inputs.summary(summary), metrics=self._inputs.metrics(metrics)
        )
        return self._read_later(state.id)

    def commit_snapshot(self, id: "Id", snapshot: RecoverySnapshot | Fields) -> None:
        """Store a recovery snapshot, in case that the conversation is never ended: a state of the caller as a dict, or
        a changed snapshot. The messages are in the tree already."""
        self._store.engine.ensure_open()
        state = snapshot.state if isinstance(snapshot, RecoverySnapshot) else snapshot
        if not isinstance(state, Mapping):
            raise InvalidArgument(f"a {type(snapshot).__name__} where a snapshot is wanted", hint="a dict")
        check_state(dict(state))
        clean = self._redactor.value(dict(state))
        if not isinstance(clean, dict):
            raise InvalidArgument("the state of a snapshot is a dict")
        cleaned = replace(snapshot, state=clean) if isinstance(snapshot, RecoverySnapshot) else clean
        keep_snapshot(self._store.engine, self._open_state(id).name, cleaned)

    def get_snapshot(self, id: "Id") -> RecoverySnapshot | None:
        """The recovery snapshot of a conversation that was never ended; None if there is none."""
        self._store.engine.ensure_open()
        return load_snapshot(self._store.engine, id_of(id))

    # -- inside

    def _open_state(self, id: "Id") -> ConversationState:
        return self._store.engine.state_of(self._store.engine.read_row(parse_conversation_id(id_of(id))))

    def _read(self, id: bytes) -> Record:
        """Read a record with its contents, as of one moment."""

        def look(state: ConversationState) -> tuple[Fields, Contents]:
            known, details = self._read_fields(state)
            return known, self._contents(state, state.row, known["title"], details)

        known, contents = self._read_consistently(id, look)
        return deferred_record(known, lambda: contents)

    def _read_later(self, id: bytes) -> Record:
        """The record as it was written. Its contents are read on access, up to the current end of the record."""

        def read() -> Contents:
            return self._read_consistently(id, lambda state: self._contents(state, row, known["title"], details))

        row, (known, details) = self._read_consistently(id, lambda state: (state.row, self._read_fields(state)))
        return deferred_record(known, read)

    def _read_consistently(self, id: bytes, look: Callable[[ConversationState], T]) -> T:
        """Read a conversation as of one moment, and try again if it changed meanwhile."""
        engine = self._store.engine
        engine.ensure_open()

        def read(row: ConversationRow) -> T:
            found = look(ConversationState(engine, row, own=True))
            engine.ensure_not_rewritten(row)  # messages that were added meanwhile are not part of it
            return found

        return engine.read_consistently(engine.read_row(id), read)

    def _read_fields(self, state: ConversationState) -> tuple[Fields, Details]:
        """The fields of a record except its contents."""
        store, row = self._store, state.row
        meta, (details, summary) = open_meta(state.envelope, row), read_newest(store.engine, state.envelope, row)
        known: Fields = {
            "conversation_id": state.name,
            "revision": revision_of(row),
            "title": meta.title,
            "created_at": to_datetime(meta.created or row.created_at),
            "last_interaction_at": to_datetime(row.active_at),
            "summary": summary,
            "participants": details.participants,
            "retention": expiry(row, store.retention, to_datetime(store.engine.clock())),
            "privacy": Privacy(not meta.kept_in, details.consent),
        }
        return known, details

    def _contents(self, state: ConversationState, row: ConversationRow, title: object, details: Details) -> Contents:
        """The contents up to the end of this row, which may be older than the state."""
        store = self._store
        if not state.is_same_conversation(row):
            raise NotFound("conversation", [state.name])
        path, all_ = (
            read_thread(store.engine, state, row),
            read_summaries(store.engine, state.envelope, row.id, details),
        )
        new = frames(path, self._sums)
        sum_ = checksum(title, details.participants, new, all_)
        return Contents(
            all_,
            new,
            tuple(ref for frame in new for ref in frame.attachments),
            metrics_of(details, row, path),
            Storage(store.backend.info.location, revision_of(row), row.size, sum_),
        )


def _check_expected(revision: int | None, version: int | None) -> int | None:
    for one in (revision, version):
        if one is not None and type(one) is not int:
            raise InvalidArgument("a revision is a number", hint="record.revision")
    if None not in (revision, version) and revision != version:
        raise InvalidArgument("expect_revision and expect_version are two names of one thing", hint="give one")
    return version if revision is None else revision


def _new_details(amendment: Amendment) -> About:
    """The items beside the messages of a new record."""
    consent = None if amendment.consent is UNSET else amendment.consent
    details = Details(amendment.participants or (), consent, dict(amendment.metrics))
    return About(details, () if amendment.summary is None else (amendment.summary,)).portable


def _drafts(
    state: ConversationState, new: Sequence[NewMessage], setup: int, amendment: Amendment
) -> list[EncodedMessage]:
    """Prepare the messages. They count together with the other fields for the limit of one write."""
    drafts = [encode_message(state, one.message, setup, at=one.at) for one in new]
    texts = [
        amendment.title,
        amendment.participants,
        amendment.summary,
        *([amendment.consent] if amendment.consent else ()),
    ]
    limit, beside = state.engine.max_write_bytes, len(msgpack.encode(texts))
    try:
        check_size(drafts, limit - beside)
    except PayloadTooLarge as error:
        raise PayloadTooLarge(error.size + beside, limit) from None
    return drafts


class _Writing:
    """Adds messages at the end of a record and changes its fields, in one commit."""

    def __init__(
        self, state: ConversationState, new: Sequence[NewMessage], amendment: Amendment, expected: int | None
    ) -> None:
        self._state, self._new, self._amendment, self._expected = state, new, amendment, expected

    def run(self, drafts: Sequence[EncodedMessage]) -> None:
        self._state.write(drafts, self._prepare)

    def _prepare(self, drafts: Sequence[EncodedMessage], _: ConversationRow) -> "Prepared[None]":
        """Prepare the change from the stored row. The items beside it are read now too, and must belong to the same
        row."""
        while True:
            row = self._state.read_stored_row()
            if self._expected not in (None, revision_of(row)):
                hint = "get the record again, and decide"
                raise Conflict(expected=self._expected, head=revision_of(row), what="the revision", hint=hint)
            try:
                return build_amendment(self._state, row, self._amendment, self._prepare_messages(row, drafts)), None
            except Damaged:
                if self._state.read_stored_row().token == row.token:
                    raise

    def _prepare_messages(self, row: ConversationRow, drafts: Sequence[EncodedMessage]) -> Change | None:
        """The change that adds the messages whose keys are not in the record yet."""
        known = self._state.find_existing(drafts)
        missing = [n for n, d in enumerate(drafts) if d.message.key is None or d.message.key not in known]
        if any(self._new[n].sequence is not None for n in missing):
            path = read_thread(self._state.engine, self._state, row)
            check_places([self._new[n] for n in missing], len(record_messages(path)) + 1)
        return self._state.prepare(row, [drafts[n] for n in missing], Placement(row.head))[0]
