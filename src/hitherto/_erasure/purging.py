"""Purges: destroy a conversation, or what is in quarantine, and take its bytes out of the files.

A purge is one commit that drops the rows, then a scrub of the files. If the scrub has to wait for a reader or for room
on the disk, the report says `scrub_pending`, and `shutdown.Purges` remembers the purge until the scrub has succeeded.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine import items
from .._engine.attachments import fill_holes
from .._engine.bodies import open_pack_raw
from .._engine.committer import report_deletion
from .._engine.packs import run_of
from .._engine.signals import RowChanged
from .._engine.state import ConversationState
from .._sealing.codec import Envelope
from ..backend import Change, ConversationRow, PackRow
from ..errors import Damaged, HithertoError, InvalidArgument, NotFound
from ..events import as_failures
from ..ids import parse_conversation_id, show_conversation_id
from ..model import to_datetime
from ..reports import PurgeReport
from .purge import Purge

if TYPE_CHECKING:
    from .._engine.engine import Engine

PURGE_REASONS = (
    "user-requested",
    "retention-expired",
    "privacy-policy-change",
    "workspace-reset",
    "corruption-detected",
)
_PURGE_SECONDS = 0.2  # to wait for words to leave the search index; maintenance does the rest


def check_reason(reason: str) -> None:
    """Raise `InvalidArgument` unless `reason` is one of `PURGE_REASONS`."""
    if reason not in PURGE_REASONS:
        raise InvalidArgument(f"not a reason for a purge: {reason!r:.60}", hint="one of " + ", ".join(PURGE_REASONS))


def purge(engine: "Engine", conversation: str, reason: str) -> PurgeReport:
    """Purge a conversation, as `Store.purge` documents."""
    check_reason(reason)
    from .._engine.deleting import check_destroyable  # noqa: PLC0415  # rare
    from .checkpoint_copies import note  # noqa: PLC0415  # rare
    from .ledger import entering  # noqa: PLC0415  # rare
    from .sweep import reach_copies  # noqa: PLC0415  # rare

    id = parse_conversation_id(conversation)
    engine.ensure_removable()
    started = engine.clock()
    doomed: list[ConversationRow] = []
    copies: dict[bytes, tuple[str, ...]] = {}

    def make(row: ConversationRow) -> Change:
        if engine.is_proven(row):
            check_destroyable(engine, row)
        elif reason != "corruption-detected":
            hint = 'reason="corruption-detected" purges it all the same'
            raise Damaged("the row of the conversation was tampered with: it may have been on hold", hint=hint)
        doomed.append(row)
        copies.update(note(engine, [row]))
        return Change(row.id, row.token, None)

    purge = Purge(reason, started)
    with engine.purges.under_way(purge):
        engine.change(id, make, always=True, tell=report_deletion(reason), beside=entering(engine, reason))
        purge.count = 1
        engine.forget(doomed[-1])
        forgotten = engine.search.forget(_PURGE_SECONDS)
        purge.failures = as_failures(reach_copies(engine, copies))
        scrubbed = engine.purges.finish(purge, lambda: engine.backend.scrub() and forgotten)
    times = to_datetime(started), to_datetime(engine.clock())
    purged = (show_conversation_id(id),)
    return PurgeReport(reason, *times, 1, purge.failures, not scrubbed, purged, purge.actor)


def purge_quarantine(engine: "Engine", older_than_seconds: float) -> PurgeReport:
    """Purge the quarantine, as `Store.purge_quarantine` documents."""
    if not isinstance(older_than_seconds, (int, float)) or not older_than_seconds >= 0:
        raise InvalidArgument("older_than_seconds is a number from 0 up")
    purge = Purge("corruption-detected", started := engine.clock())
    with engine.purges.under_way(purge):
        purged, failures = _destroy_quarantined(engine, started - int(min(older_than_seconds, 1e10) * 1_000_000))
        purge.count, purge.failures = len(purged), as_failures(failures)
        scrubbed = engine.purges.finish(purge, engine.scrub)
    done = to_datetime(started), to_datetime(engine.clock()), purge.count, purge.failures, not scrubbed
    return PurgeReport(purge.reason, *done, tuple(purged), purge.actor)


# -- what is in quarantine


def _destroy_quarantined(engine: "Engine", before: int) -> tuple[list[str], dict[str, str]]:
    """Destroy the records quarantined at or before this time that still cannot be read. Records that can be read again,
    because they were restored, are released. Returns the destroyed ids, and the errors of the others."""
    purged: list[str] = []
    failures: dict[str, str] = {}
    for conversation, message in engine.quarantine.due(before):
        id = show_conversation_id(conversation) if message is None else engine.message_ids.id(message)
        try:
            if _destroy(engine, conversation, message, failures):
                purged.append(id)
            engine.quarantine.settle((conversation, message))
        except HithertoError as error:
            failures[id] = str(error)
    return purged, failures


def _destroy(engine: "Engine", conversation: bytes, message: int | None, failures: dict[str, str]) -> bool:
    """Destroy a record, unless it can be read: it is checked in the state in which it is destroyed. Returns True if it
    could not be read. Checkpoint copies that cannot be deleted are added to `failures`."""
    from .._engine.deleting import check_destroyable  # noqa: PLC0415  # rare
    from . import checkpoint_copies  # noqa: PLC0415  # rare
    from .ledger import entering  # noqa: PLC0415  # rare

    readable = True
    copies: dict[bytes, tuple[str, ...]] = {}

    def make(row: ConversationRow) -> Change | None:
        nonlocal readable
        readable = _is_readable(engine, row, message)
        if readable:
            return None
        check_destroyable(engine, row)
        if message is not None:
            return _without(engine, row, message)
        copies.update(checkpoint_copies.note(engine, [row]))
        engine.workspace.forget(row)
        return Change(row.id, row.token, None)

    with suppress(NotFound):  # it is gone already
        tell = report_deletion("corruption-detected")
        beside = entering(engine, "corruption-detected")
        engine.change(conversation, make, always=True, tell=tell, beside=beside)
    failures.update(checkpoint_copies.reach(engine, copies))
    return not readable


def _is_readable(engine: "Engine", row: ConversationRow, message: int | None) -> bool:
    try:
        engine.check_row(row)
        state = ConversationState(engine, row, own=True)
        if message is None:
            state.meta  # noqa: B018  # to see whether it can be read
        for m in [] if message is None else engine.backend.messages(numbers=[message]):
            _, body = engine.read_body_now(m, state)
            fill_holes(state, body)
            engine.read_path_now(m.number, state, lazy=True)
    except Damaged:
        return False
    except NotFound:
        return True
    return True


def _without(engine: "Engine", row: ConversationRow, message: int) -> Change:
    """Return the change that removes a message that cannot be read, and all messages below it. The proof is computed
    anew from the remaining messages, because the weight of the unreadable one is unknown."""
    from .._engine.deleting import deletion  # noqa: PLC0415  # rare

    envelope = engine.codec.envelope(row)
    headers = {m.number: m for m in engine.read_headers(row.id)}
    if len(headers) != row.count:  # to prove what is left would be to call it complete
        raise Damaged("messages are missing as well", hint='purge the conversation, reason="corruption-detected"')
    bad = {message} & set(headers)
    for pack in engine.backend.packs([run_of(message)]):
        if message < pack.first + pack.count and not _opens(envelope, pack):  # a pack is lost as a whole
            bad |= {number for number in headers if pack.first <= number < pack.first + pack.count}
    change = deletion(engine, row.id, bad, recursive=True)
    if change.row is None or change.expect != row.token:
        raise RowChanged
    left = {m.number: m for m in engine.backend.messages(numbers=sorted(set(headers) - set(change.drop)))}
    left.update({m.number: m for m in change.amend})
    packs = {pack.first: pack for pack in engine.backend.packs(sorted({run_of(number) for number in left}))}
    packs.update({pack.first: pack for pack in change.pack})
    kept = [pack for pack in packs.values() if pack.first not in change.unpack]
    own = list(items.stored(engine, row.id))
    size = sum(m.size for m in left.values()) + items.measure(envelope, own)
    after = replace(change.row, count=len(left), size=size, proof=b"")
    total = envelope.weigh(left.values()) + envelope.weigh(kept) + envelope.weigh(own)
    return replace(change, row=replace(after, proof=envelope.prove(after, total)))


def _opens(envelope: Envelope, pack: PackRow) -> bool:
    try:
        open_pack_raw(envelope, pack)
    except Damaged:
        return False
    return True
