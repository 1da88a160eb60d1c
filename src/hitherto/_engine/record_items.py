"""The parts of a record beside its tree: participants, summaries, metrics, consent, an expiry of its own.

A record is a conversation, seen by a product that keeps histories. Its messages are those of the main flow. The
participants lie beside them, in one item of the conversation, and each summary in an item of its own, so that a new one
does not write the old ones again. The fields that decide about the conversation (its hold, its expiry, whether it may
leave the store) are in its row and its description, which every reader reads.

The item is numbered, and the description, which is proven, has the number that counts: an older item that was put back
is noticed.

Two writers compare the **revision**. It counts messages, and commits that changed anything else; so it moves with every
change that a reader could see, and stands still while a store is packed, or gets another key.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType, convert, to_builtins
from msgspec import Meta as Limits
from msgspec.structs import replace

from .._sealing.codec import Envelope, next_row
from ..backend import Change, ConversationRow, ItemRow
from ..errors import Busy, Damaged, HithertoError, InvalidMessage
from ..model import Saved
from .bodies import Meta, open_meta
from .recovery import MARK_KEY, Unmarked, remove_own_name
from .revisions import read as read_ledger
from .state import ConversationState, close_meta
from .typed_items import ItemType

if TYPE_CHECKING:
    from .engine import Engine

RECORD, SUMMARIES = b"record", b"summary/"
_COUNTS = 3  # how often a conversation that changes meanwhile is counted

Time = Annotated[datetime, Limits(tz=True)]
Measure = Literal["user_utterances", "assistant_utterances", "duration_ms", "average_latency_ms"]
T = TypeVar("T")


class Participant(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One participant of a conversation."""

    id: str
    role: str  # user, assistant or system
    display_name: str | None = None


class ConversationSummary(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A summary of a conversation, as of some time."""

    synopsis: str
    last_updated_at: Time
    keywords: tuple[str, ...] = ()
    action_items: tuple[str, ...] = ()


class Metrics(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much was said, and how quickly it was answered."""

    user_utterances: int = 0
    assistant_utterances: int = 0
    duration_ms: int = 0  # from the first message to the last
    average_latency_ms: int = 0  # from a message of the user to its answer


class Details(Struct, frozen=True, omit_defaults=True):
    """The item of a record."""

    participants: tuple[Participant, ...] = ()
    consent: str | None = None
    metrics: dict[Measure, int] = {}  # that were given; the others are counted
    summaries: int = 0  # how many there are
    number: int = 0  # of this state of the item
    final: Metrics | None = None  # all of them, when the conversation was committed
    final_at: int = -1  # the revision that they are of


class About(Struct, frozen=True, omit_defaults=True):
    """All that lies beside the messages of a record. On its way to another store, too."""

    details: Details = Details()
    summaries: tuple[ConversationSummary, ...] = ()

    @property
    def portable(self) -> "About":
        """The same without the fields that hold for this conversation in this store alone."""
        details = replace(self.details, final=None, final_at=-1, summaries=len(self.summaries), number=1)
        return About() if not self.summaries and details == _NOTHING else replace(self, details=details)

    def clean_with(self, clean: Callable[[object], object]) -> "About":
        """Return the same, redacted."""
        return convert(clean(to_builtins(self, builtin_types=(datetime,))), About)


class Amendment(Struct, frozen=True):
    """Changes of a record, beside new messages. A field without a value stays as it is."""

    title: str | None = None
    exportable: bool | None = None
    held: bool | None = None
    expires_at: int | UnsetType | None = UNSET  # None: as the workspace says
    participants: tuple[Participant, ...] | None = None
    consent: str | UnsetType | None = UNSET
    metrics: Mapping[Measure, int] = {}
    summary: ConversationSummary | None = None
    final: Metrics | None = None  # the conversation is committed with these
    ended: "Literal['here', 'for all'] | None" = None  # it is not recorded any more: its mark goes


_NOTHING = Details(number=1)
_DETAILS: Final = ItemType(Details, "what is kept beside a record")
_SUMMARY: Final = ItemType(ConversationSummary, "what is kept beside a record")


def revision_of(row: ConversationRow) -> int:
    """Return the revision for optimistic locking: 1 for an empty conversation, more with every visible write."""
    return 1 + row.next_seq + row.rewrites


# -- reading


def read_about(engine: "Engine", envelope: Envelope, row: ConversationRow) -> About:
    """Return the parts beside the messages; `Damaged` if they cannot be read, or are not the newest."""
    details, _ = read_newest(engine, envelope, row)
    return About(details, read_summaries(engine, envelope, row.id, details))


def read_newest(
    engine: "Engine", envelope: Envelope, row: ConversationRow
) -> tuple[Details, ConversationSummary | None]:
    """Return the details and the newest summary."""
    items = engine.backend.items(row.id, RECORD)
    details = _DETAILS.open(envelope, items[0]) if items else Details()
    last = engine.backend.items(row.id, SUMMARIES, reverse=True, limit=1)
    count = _number(last[0]) if last else 0
    if (details.number, details.summaries) != (open_meta(envelope, row).record, count):
        raise Damaged("what is kept beside a record is not of the time that it should be of: it was put back")
    return details, _SUMMARY.open(envelope, last[0]) if last else None


def read_summaries(
    engine: "Engine", envelope: Envelope, conversation: bytes, details: Details
) -> tuple[ConversationSummary, ...]:
    """Return as many summaries as the details count: more may have come since."""
    items = engine.backend.items(conversation, SUMMARIES)[: details.summaries]
    if [_number(item) for item in items] != list(range(1, details.summaries + 1)):
        raise Damaged("a summary of a record is missing")
    return tuple(_SUMMARY.open(envelope, item) for item in items)


def _number(summary: ItemRow) -> int:
    """Return the number of a summary."""
    said = summary.key[len(SUMMARIES) :]
    if not said.isdigit():
        raise Damaged("a summary of a record has no place among them")
    return int(said)


def check_items(engine: "Engine", envelope: Envelope, row: ConversationRow) -> Iterator[HithertoError]:
    """Yield the error of reading the items of a record, if there is one."""
    try:
        read_about(engine, envelope, row)
    except HithertoError as error:
        yield error


def measure(path: Sequence[tuple[str, int]]) -> Metrics:
    """Return the metrics of a thread, counted from its roles and times."""
    latencies: list[int] = []
    asked: int | None = None
    for role, at in path:
        if role == "user":
            asked = at
        elif role == "assistant" and asked is not None:
            latencies.append(at - asked)
            asked = None
    return Metrics(
        sum(role == "user" for role, _ in path),
        sum(role == "assistant" for role, _ in path),
        (path[-1][1] - path[0][1]) // 1000 if path else 0,
        sum(latencies) // len(latencies) // 1000 if latencies else 0,
    )


def measure_row(engine: "Engine", row: ConversationRow) -> Metrics:
    """Return the metrics of the main flow, from the columns of its messages: no content is read."""
    rows = {one.number: one for one in engine.read_headers(row.id)}
    path: list[tuple[str, int]] = []
    at = row.head
    while at is not None and len(path) <= len(rows):
        if at not in rows:
            raise Damaged(f"message {engine.message_ids.id(at)} is missing")
        one = rows[at]
        path.append((one.role, one.created_at))
        at = one.parent if one.parent is not None else one.link if one.main else None
    return measure(path[::-1])


def metrics_of(details: Details, row: ConversationRow, path: Sequence[Saved]) -> Metrics:
    """Return the metrics: the given ones, and the others as they were when the conversation was committed, if it has
    not changed since, or else counted."""
    final = details.final if details.final_at == revision_of(row) else None
    return replace(final or measure([(m.role, m.created_us) for m in path]), **details.metrics)


def read_thread(engine: "Engine", state: ConversationState, row: ConversationRow) -> list[Saved]:
    """Return the messages of the main flow up to the head, across compactions. Large content is read lazily."""
    path: list[Saved] = []
    at = row.head
    while at is not None:
        path = engine.read_path(at, state, lazy=True) + path
        at = engine.message_ids.number(path[0].link) if path[0].main and path[0].link is not None else None
    return path


# -- writing


def items(envelope: Envelope, conversation: bytes, beside: About) -> Iterator[ItemRow]:
    """Yield all items of a record, for a new conversation, whose description has the number of its details."""
    if beside.details.number:
        yield _close_item(_DETAILS, envelope, conversation, RECORD, beside.details)
    for number, summary in enumerate(beside.summaries, 1):
        yield _close_item(_SUMMARY, envelope, conversation, SUMMARIES + b"%06d" % number, summary)


def _close_item(kind: ItemType[T], envelope: Envelope, conversation: bytes, key: bytes, value: T) -> ItemRow:
    try:
        return kind.close(envelope, conversation, key, value)
    except (UnicodeEncodeError, TypeError, OverflowError) as error:
        raise InvalidMessage(f"this cannot be kept beside a record: {type(error).__name__}") from None


def build_amendment(
    state: ConversationState, row: ConversationRow, change: Amendment, added: Change | None = None
) -> Change | None:
    """Return the change that amends a conversation, joined with the change `added`; None if there is nothing to do."""
    if change == Amendment():
        return added
    envelope, engine = state.check(row), state.engine
    kept, unput = _remove_mark(engine, envelope, row, change)
    fields = _amend_columns(row, change)
    before = open_meta(envelope, row)
    meta = _amend_description(before, change)
    was, last = read_newest(engine, envelope, row)
    details = _amend_details(was, last, row, change, moves=bool(fields or kept or unput or meta != before))
    put = list(kept)
    if details != was:
        details = replace(details, number=was.number + 1)
        put.append(_close_item(_DETAILS, envelope, row.id, RECORD, details))
        meta = replace(meta, record=details.number)
    if change.summary is not None and details.summaries > was.summaries:
        put.append(_close_item(_SUMMARY, envelope, row.id, SUMMARIES + b"%06d" % details.summaries, change.summary))
    if meta != before:
        fields["meta"] = close_meta(envelope, row.id, meta, engine.max_write_bytes)
    return _join_changes(state, row, fields, added, put, unput) if fields or put or unput else added


def _remove_mark(engine: "Engine", envelope: Envelope, row: ConversationRow, change: Amendment) -> Unmarked:
    """Return the items to put and the keys to remove, so that the mark is gone if recording has `ended`."""
    if change.ended == "here":
        return remove_own_name(engine, envelope, row.id)
    gone = change.ended is not None and engine.backend.items(row.id, MARK_KEY)
    return (), (MARK_KEY,) if gone else ()


def _join_changes(
    state: ConversationState,
    row: ConversationRow,
    fields: dict[str, object],
    added: Change | None,
    put: Sequence[ItemRow],
    unput: tuple[bytes, ...],
) -> Change:
    """Join everything into one change. It counts as a rewrite, like every change of the row: see
    `state.build_row_change`."""
    envelope = state.check(row)
    after = next_row(envelope, row) if added is None or added.row is None else added.row
    base = added or Change(row.id, row.token, after)
    ledger = read_ledger(state.engine, envelope, row)
    rewrites = row.rewrites + 1
    kept = () if ledger is None else (ledger.item(envelope, row.id, rewrites),)
    fields = {**fields, "version": after.version, "token": after.token, "rewrites": rewrites}
    after = next_row(envelope, after, (), (), **fields)
    return replace(base, row=after, put=(*base.put, *kept, *put), unput=(*base.unput, *unput))


def _amend_description(meta: Meta, change: Amendment) -> Meta:
    if change.title is not None:
        meta = replace(meta, title=change.title)
    return meta if change.exportable is None else replace(meta, kept_in=not change.exportable)


def _amend_columns(row: ConversationRow, change: Amendment) -> dict[str, object]:
    """Return the columns to set: the hold and the expiry, if they change."""
    fields: dict[str, object] = {}
    if change.held is not None and change.held != row.held:
        fields["held"] = change.held
    if change.expires_at is not UNSET and change.expires_at != row.expires_at:
        fields["expires_at"] = change.expires_at
    return fields


def _amend_details(
    was: Details, last: ConversationSummary | None, row: ConversationRow, change: Amendment, *, moves: bool
) -> Details:
    """Return the amended details. `moves`: there will be another revision anyway."""
    details = was
    if change.participants is not None:
        details = replace(details, participants=change.participants)
    if change.consent is not UNSET:
        details = replace(details, consent=change.consent)
    if change.summary is not None and change.summary != last:
        details = replace(details, summaries=details.summaries + 1)
    details = replace(details, metrics={**details.metrics, **change.metrics})
    stands = details.final_at == revision_of(row) and details == was and not moves
    if change.final is not None and not stands:
        details = replace(details, final=change.final, final_at=revision_of(row) + 1)  # this commit is one itself
    return details


def commit(
    engine: "Engine",
    conversation: bytes,
    *,
    summary: ConversationSummary | None = None,
    metrics: Mapping[Measure, int] | None = None,
    ended: Literal["here", "for all"] = "for all",
    timeout_seconds: float = math.inf,
) -> None:
    """Store the final metrics of a conversation and remove its mark, in one commit. Nothing is written if that was done
    before and nothing happened since.

    The metrics are counted before the commit. If other processes write faster than that, the final metrics are left
    out, and a reader of the record counts again."""
    counted: dict[int, Metrics] = {}
    deadline = time.monotonic() + timeout_seconds

    def make(row: ConversationRow) -> Change | None:
        if counted and time.monotonic() > deadline:
            raise Busy("the conversation changes faster than its end can be kept", hint="close again, later")
        revision = revision_of(row)
        if revision not in counted and len(counted) < _COUNTS:
            counted[revision] = measure_row(engine, row)
        amendment = Amendment(metrics=metrics or {}, summary=summary, final=counted.get(revision), ended=ended)
        return build_amendment(ConversationState(engine, row), row, amendment)

    engine.change(conversation, make)
