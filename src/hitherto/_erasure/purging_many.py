"""Purge many conversations: all records of a workspace, or all that match, in the same way as a sweep.

A commit takes some conversations. Each of them is checked again in the state in which it is destroyed. Those on hold
stay, and the report names them. If a purge is killed, the next one deletes the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from .._engine.deleting import check_destroyable
from ..backend import ConversationRow
from ..errors import Damaged, NotFound
from ..model import to_datetime
from ..reports import PurgeReport
from ..retention import SweepReport
from .sweep import Sweep

if TYPE_CHECKING:
    from .._engine.engine import Engine

Check = Callable[["Engine", ConversationRow], bool]


def purge_many(engine: "Engine", reason: str, batches: Iterable[Sequence[bytes]], check: Check) -> PurgeReport:
    """Purge these conversations, batch by batch. `check` says of a row whether it is meant, and reads it as it is
    destroyed; an error that it raises is a failure of this conversation."""
    engine.ensure_removable()
    job = _ManyPurges(engine, reason, check)
    with job.under_way():
        for ids in batches:
            job.take(ids)
        done = job.finish()
    parts = done.purged_count, done.failures, done.scrub_pending, done.swept, done.actor
    return PurgeReport(reason, done.started_at, done.completed_at, *parts)


def check_proof(engine: "Engine", row: ConversationRow, reason: str) -> bool:
    """Raise `Damaged` for a row that fails its integrity proof, unless the reason says so: it may have been on hold."""
    try:
        engine.read_consistently(row, engine.check_row)
    except Damaged:
        if reason == "corruption-detected":
            return True
        hint = 'reason="corruption-detected" purges it all the same'
        raise Damaged("it was tampered with, and may have been on hold", hint=hint) from None
    check_destroyable(engine, row)
    return True


class _ManyPurges(Sweep):
    """A sweep for which a conversation is due if `check` says so."""

    def __init__(self, engine: "Engine", reason: str, check: Check) -> None:
        self.reason, self._check = reason, check
        super().__init__(engine, None, to_datetime(engine.clock()), planned=True, given=True)

    def _still_due(self, row: ConversationRow) -> bool:
        try:
            return self._check(self._engine, row)
        except NotFound:
            return False

    def _tell(self, report: SweepReport) -> None:
        """Report no sweep: the caller reports a purge."""
