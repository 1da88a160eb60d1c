"""Records: conversations as a product keeps them, over the same tree and the same store.

A record is not stored beside a conversation: it is one, and every conversation of the store is a record. What is
written here is cleaned first, always, and each call is one commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec import UNSET, msgpack
from msgspec.structs import replace

from .._engine.bodies import Meta, open_meta
from .._engine.record_items import (
    About,
    Amendment,
    ConversationSummary,
    Details,
    Metrics,
    Participant,
    amended,
    commit,
    items,
    metrics_of,
    newest,
    revision_of,
    summaries,
    thread,
)
from .._engine.recovery import RecoverySnapshot, check_state, keep_snapshot, load_snapshot
from .._engine.state import Desk, Draft, Prepared, Spot, check_size, draft
from ..backend import Change, ConversationRow, ItemRow
from ..conversation import Conversation
from ..errors import AlreadyExists, Busy, Conflict, Damaged, InvalidArgument, NotFound, PayloadTooLarge
from ..ids import new_conversation_id, parse_conversation_id, show_conversation_id
from ..model import Message, Saved, Setup, id_of, to_datetime
from ..retention import RetentionPolicy
from ..store import More, PurgeReport, Store
from ._inputs import Given, Said, check_kind, check_places
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
    frames,
    shown,
)

if TYPE_CHECKING:
    from uuid import UUID

    from ..aio import AsyncConversation
    from ..listing import ConversationInfo
    from ..sanitiser import Sanitiser

    Id: TypeAlias = str | UUID | Conversation | AsyncConversation | ConversationInfo

_LOOKS = 100
_EARLIEST = 1 << 41  # microseconds: some weeks into 1970, so that there is a time before it

T = TypeVar("T")
Fields = Mapping[str, object]


class Records:
    """Conversations as records. `retention` is kept in the store, for everybody; the sanitiser cleans what is written
    here, and takes out everything it knows of unless another is given."""

    def __init__(
        self,
        store: Store,
        *,
        retention: RetentionPolicy | None = None,
        sanitiser: "Sanitiser | None" = None,
    ) -> None:
        check_kind(store, Store, "AsyncRecords takes what open_async gives")
        store._ensure_open()
        if sanitiser is None:
            from ..sanitiser import Sanitiser  # noqa: PLC0415  # its rules are made when they are first needed

            sanitiser = Sanitiser.everything()
        own = store._redactor_for(sanitiser)
        self._store = store
        self._given = Given(store, [own] if store._redactor is None else [own, store._redactor])
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
        """A new record. `AlreadyExists` if its id is taken. `created_at` is a datetime with a time zone, or the same
        as text: "2026-01-02T03:04:05Z"."""
        store = self._store
        store._ensure_open()
        id = new_conversation_id() if conversation_id is None else parse_conversation_id(id_of(conversation_id))
        said = self._given.messages(messages)
        check_places(said, 1)
        given = self._given.amendment(
            title=title,
            participants=participants,
            summary=summary,
            metrics=metrics,
            retention=retention,
            privacy=privacy,
        )
        beside = _beside(given)
        times = [one.at for one in said if one.at is not None]
        begun = min(times, default=0) if created_at is None else self._given.time(created_at, "created_at")
        begun = max(begun, _EARLIEST) if begun else 0
        meta = Meta(given.title or "", created=begun, kept_in=given.exportable is False, record=beside.details.number)
        if isinstance(given.expires_at, int):
            self._store._schedule.expect_expiry()

        def make(desk: Desk) -> list[Draft]:
            return _drafts(desk, said, 0, given)

        def put(desk: Desk, _: list[Saved]) -> Iterable[ItemRow]:
            return items(desk.envelope, id, beside)

        expires = given.expires_at if isinstance(given.expires_at, int) else None
        made = store._create(id, meta, [Setup()], make, More(None, given.held is True, put, expires))
        if made is None:
            hint = "records.get(id) gives it, records.update(id, …) adds to it"
            raise AlreadyExists("a record", show_conversation_id(id), hint=hint)
        return self._written(id)

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
        """Add messages at the end of a record, and change what is given; the record as it is then.

        `Conflict` if its revision is not the expected one any more: then nothing is written, and the error has the
        revision in `head`. Without one, what is given goes on top of what is there. `expect_version` is the same.
        """
        self._store._ensure_open()
        expected = _expected(expect_revision, expect_version)
        said = self._given.messages(() if append_messages is None else append_messages)
        given = self._given.amendment(
            title=title,
            summary=summary,
            retention=retention,
            metrics=metrics,
            participants=participants,
            privacy=privacy,
        )
        desk = self._desk(id)
        talk = Conversation(desk, desk.row.head)
        drafts = _drafts(desk, said, talk._setup_number(), given)
        if isinstance(given.expires_at, int):
            self._store._schedule.expect_expiry()
        _Writing(desk, said, given, expected).run(drafts)
        return self._written(desk.id)

    def get(self, id: "Id") -> Record:
        """A record, `NotFound` if there is none. Of a record that is due `retention.expired` says so, until it is
        swept."""
        self._store._ensure_open()
        return self._read(parse_conversation_id(id_of(id)))

    def list(
        self, *, limit: int = 20, cursor: str | None = None, include_expired: bool = False, total: bool = True
    ) -> RecordPage:
        """Records by last interaction, newest first, with the number of all unless `total` is false. Those that are
        due are left out, unless they are asked for."""
        self._store._ensure_open()
        return page(self._store, limit, cursor, include_expired=include_expired, total=total)

    def delete(self, id: "Id", *, reason: str) -> PurgeReport:
        """Destroy a record, and take its bytes out of the files: `store.purge`."""
        return self._store.purge(id_of(id), reason=reason)

    def purge_all(self, *, reason: str, progress: Callable[[int, int], None] | None = None) -> PurgeReport:
        """Destroy all records of the workspace, some in one commit. What cannot be destroyed, because it is on hold, is
        in the report with its error. `progress` hears how many were looked at, and of how many. What was interrupted is
        finished by the same call again."""
        self._store._ensure_open()
        return purge_all(self._store, reason, progress)

    def commit_conversation(
        self, id: "Id", *, summary: ConversationSummary | Fields | None = None, metrics: Metrics | Fields | None = None
    ) -> Record:
        """The conversation is over, for now: keep its metrics, counted where they are not given, and let go of its
        recovery snapshot, in one commit. Idempotent."""
        self._store._ensure_open()
        desk = self._desk(id)
        commit(self._store, desk.id, summary=self._given.summary(summary), metrics=self._given.metrics(metrics))
        return self._written(desk.id)

    def commit_snapshot(self, id: "Id", snapshot: RecoverySnapshot | Fields) -> None:
        """Keep what is to be restored if the end never comes: a state of the caller's, as a dict, or a snapshot that
        was changed. The messages are in the tree already."""
        self._store._ensure_open()
        state = snapshot.state if isinstance(snapshot, RecoverySnapshot) else snapshot
        if not isinstance(state, Mapping):
            raise InvalidArgument(f"a {type(snapshot).__name__} where a snapshot is wanted", hint="a dict")
        check_state(dict(state))
        clean = self._redactor.value(dict(state))
        if not isinstance(clean, dict):
            raise InvalidArgument("the state of a snapshot is a dict")
        given = replace(snapshot, state=clean) if isinstance(snapshot, RecoverySnapshot) else clean
        keep_snapshot(self._store, self._desk(id).name, given)

    def get_snapshot(self, id: "Id") -> RecoverySnapshot | None:
        """What can be restored of a conversation whose end never came; None if there is nothing."""
        self._store._ensure_open()
        return load_snapshot(self._store, id_of(id))

    # -- inside

    def _desk(self, id: "Id") -> Desk:
        return self._store._desk(self._store._fresh_row(parse_conversation_id(id_of(id))))

    def _read(self, id: bytes) -> Record:
        """The record, with its contents, as of one moment."""

        def look(desk: Desk) -> tuple[Fields, Contents]:
            known, details = self._known(desk)
            return known, self._contents(desk, desk.row, known["title"], details)

        known, contents = self._steadily(id, look)
        return Record._later(known, lambda: contents)

    def _written(self, id: bytes) -> Record:
        """The record as it was written. Its contents are read when they are wanted: up to where it stands now."""

        def read() -> Contents:
            return self._steadily(id, lambda desk: self._contents(desk, row, known["title"], details))

        row, (known, details) = self._steadily(id, lambda desk: (desk.row, self._known(desk)))
        return Record._later(known, read)

    def _steadily(self, id: bytes, look: Callable[[Desk], T]) -> T:
        """What is seen of a conversation at one moment."""
        store = self._store
        store._ensure_open()
        for _ in range(_LOOKS):
            row = store._fresh_row(id)
            desk = store._steady(row, lambda found: Desk(store, found, own=True))
            try:
                found = look(desk)
            except Damaged as error:
                if store._fresh_row(id).token == desk.row.token:
                    store._quarantine.add(id, error.record, str(error))
                    raise
                continue
            after = store._fresh_row(id)
            if (after.rewrites, after.data_key) == (desk.row.rewrites, desk.row.data_key):
                return found  # without what was added since we looked, which does no harm
        raise Busy(f"record {show_conversation_id(id)} changes faster than it can be read")

    def _known(self, desk: Desk) -> tuple[Fields, Details]:
        """What is in a record but its contents."""
        store, row = self._store, desk.row
        meta, (details, summary) = open_meta(desk.envelope, row), newest(store, desk.envelope, row)
        known: Fields = {
            "conversation_id": desk.name,
            "revision": revision_of(row),
            "title": meta.title,
            "created_at": to_datetime(meta.created or row.created_at),
            "last_interaction_at": to_datetime(row.active_at),
            "summary": summary,
            "participants": details.participants,
            "retention": expiry(row, store.retention, to_datetime(store._clock())),
            "privacy": Privacy(not meta.kept_in, details.consent),
        }
        return known, details

    def _contents(self, desk: Desk, row: ConversationRow, title: object, details: Details) -> Contents:
        """The contents up to where the row stands, which may be older than the desk."""
        store = self._store
        if not desk.serves(row):
            raise NotFound("conversation", [desk.name])
        path, all_ = thread(store, desk, row), summaries(store, desk.envelope, row.id, details)
        said = frames(path, self._sums)
        sum_ = checksum(title, details.participants, said, all_)
        return Contents(
            all_,
            said,
            tuple(ref for frame in said for ref in frame.attachments),
            metrics_of(details, row, path),
            Storage(store.backend.info.location, revision_of(row), row.size, sum_),
        )


def _expected(revision: int | None, version: int | None) -> int | None:
    for one in (revision, version):
        if one is not None and type(one) is not int:
            raise InvalidArgument("a revision is a number", hint="record.revision")
    if None not in (revision, version) and revision != version:
        raise InvalidArgument("expect_revision and expect_version are two names of one thing", hint="give one")
    return version if revision is None else revision


def _beside(given: Amendment) -> About:
    """What lies beside the messages of a new record."""
    consent = None if given.consent is UNSET else given.consent
    details = Details(given.participants or (), consent, dict(given.metrics))
    return About(details, () if given.summary is None else (given.summary,)).portable


def _drafts(desk: Desk, said: Sequence[Said], setup: int, given: Amendment) -> list[Draft]:
    """The messages, ready to get their places. With what is said of the record they are one write."""
    drafts = [draft(desk, one.message, setup, at=one.at) for one in said]
    texts = [given.title, given.participants, given.summary, *([given.consent] if given.consent else ())]
    limit, beside = desk.store._max_write_bytes, len(msgpack.encode(texts))
    try:
        check_size(drafts, limit - beside)
    except PayloadTooLarge as error:
        raise PayloadTooLarge(error.size + beside, limit) from None
    return drafts


class _Writing:
    """Adds messages at the end of a record, and changes what is said of it, in one commit."""

    def __init__(self, desk: Desk, said: Sequence[Said], given: Amendment, expected: int | None) -> None:
        self._desk, self._said, self._given, self._expected = desk, said, given, expected

    def run(self, drafts: Sequence[Draft]) -> None:
        self._desk.write(drafts, self._prepare)

    def _prepare(self, drafts: Sequence[Draft], _: ConversationRow) -> "Prepared[None]":
        """From the row as it is stored: what lies beside it is read now, too, and has to be of the same time."""
        while True:
            row = self._fresh()
            if self._expected not in (None, revision_of(row)):
                hint = "get the record again, and decide"
                raise Conflict(expected=self._expected, head=revision_of(row), what="the revision", hint=hint)
            try:
                return amended(self._desk, row, self._given, self._added(row, drafts)), None
            except Damaged:
                if self._fresh().token == row.token:
                    raise

    def _added(self, row: ConversationRow, drafts: Sequence[Draft]) -> Change | None:
        """The change that adds what is not there yet, by its key."""
        known = self._desk._known(drafts)
        new = [n for n, d in enumerate(drafts) if d.message.key is None or d.message.key not in known]
        if any(self._said[n].sequence is not None for n in new):
            path = thread(self._desk.store, self._desk, row)
            check_places([self._said[n] for n in new], len(shown(path)) + 1)
        return self._desk.prepare(row, [drafts[n] for n in new], Spot(row.head))[0]

    def _fresh(self) -> ConversationRow:
        """The row as it is stored, and believed from now on."""
        row = self._desk.store._fresh_row(self._desk.id)
        if row.token != self._desk.row.token:
            self._desk.believe(row, self._desk.epoch)
        return row
