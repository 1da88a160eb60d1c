"""Purges: destroy a conversation, or what is in quarantine, and take its bytes out of the files.

A purge is one commit that drops the rows, then a scrub of the files. If the scrub has to wait for a reader or for room
on the disk, the report says `scrub_pending`, and `shutdown.Purges` remembers the purge until the scrub has succeeded.
"""

from typing import TYPE_CHECKING

from .._engine.committer import report_deletion
from ..backend import Change, ConversationRow
from ..errors import Damaged, InvalidArgument
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
    from .._engine.deleting import check_not_held  # noqa: PLC0415  # rare
    from .checkpoint_copies import note  # noqa: PLC0415  # rare
    from .sweep import reach_copies  # noqa: PLC0415  # rare

    id = parse_conversation_id(conversation)
    engine.ensure_removable()
    started = engine.clock()
    doomed: list[ConversationRow] = []
    copies: dict[bytes, tuple[str, ...]] = {}

    def make(row: ConversationRow) -> Change:
        if engine.is_proven(row):
            check_not_held(row)
        elif reason != "corruption-detected":
            hint = 'reason="corruption-detected" purges it all the same'
            raise Damaged("the row of the conversation was tampered with: it may have been on hold", hint=hint)
        doomed.append(row)
        copies.update(note(engine, [row]))
        return Change(row.id, row.token, None)

    purge = Purge(reason, started)
    with engine.purges.under_way(purge):
        engine.change(id, make, always=True, tell=report_deletion(reason))
        purge.count = 1
        engine.forget(doomed[-1])
        forgotten = engine.search.forget(_PURGE_SECONDS)
        purge.failures = as_failures(reach_copies(engine, copies))
        scrubbed = engine.purges.finish(purge, lambda: engine.backend.scrub() and forgotten)
    times = to_datetime(started), to_datetime(engine.clock())
    return PurgeReport(reason, *times, 1, purge.failures, not scrubbed, (show_conversation_id(id),))


def purge_quarantine(engine: "Engine", older_than_seconds: float) -> PurgeReport:
    """Purge the quarantine, as `Store.purge_quarantine` documents."""
    purge = Purge("corruption-detected", started := engine.clock())
    with engine.purges.under_way(purge):
        purged, failures = engine.quarantine.purge(started - int(min(older_than_seconds, 1e10) * 1_000_000))
        purge.count, purge.failures = len(purged), as_failures(failures)
        scrubbed = engine.purges.finish(purge, engine.scrub)
    done = to_datetime(started), to_datetime(engine.clock()), purge.count, purge.failures, not scrubbed
    return PurgeReport(purge.reason, *done, tuple(purged))
