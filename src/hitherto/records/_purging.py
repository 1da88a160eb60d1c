"""Purge all records of a workspace, due or not, in the same way as a sweep: some records in each commit.

Records on hold stay, and the report names them. If a purge is killed, the next one deletes the rest.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .._engine.deleting import check_not_held
from .._erasure.purging import check_reason
from .._erasure.sweep import Sweep
from ..backend import ConversationRow, Where
from ..errors import Damaged, NotFound
from ..listing import pages
from ..model import to_datetime
from ..reports import PurgeReport
from ..retention import SweepReport

if TYPE_CHECKING:
    from ..store import Store

_BATCH_SIZE = 16  # conversations that are read at once


def purge_all(store: "Store", reason: str, progress: Callable[[int, int], None] | None) -> PurgeReport:
    check_reason(reason)
    store.engine.ensure_removable()
    job, report = _Everything(store, reason), progress or (lambda _, __: None)
    total, seen = store.backend.count(Where()), 0
    with job.under_way():
        for ids in _all(store):
            report(seen, max(total, seen))
            job.take(ids)
            seen += len(ids)
        report(seen, seen)
        done = job.finish()
    parts = done.purged_count, done.failures, done.scrub_pending, done.swept
    return PurgeReport(reason, done.started_at, done.completed_at, *parts)


def _all(store: "Store") -> Iterator[list[bytes]]:
    for places in pages(store.backend, [Where()], size=_BATCH_SIZE, oldest_first=True):
        yield [place.id for place in places]


class _Everything(Sweep):
    """A sweep for which every record is due."""

    def __init__(self, store: "Store", reason: str) -> None:
        self.reason = reason
        super().__init__(store.engine, None, to_datetime(store.engine.clock()), planned=True, given=True)

    def _still_due(self, row: ConversationRow) -> bool:
        """Raise `Damaged` for a row that fails its integrity proof, unless the reason says so: it may have been on
        hold."""
        try:
            self._engine.read_consistently(row, self._engine.check_row)
        except NotFound:
            return False
        except Damaged:
            if self.reason == "corruption-detected":
                return True
            hint = 'reason="corruption-detected" purges it all the same'
            raise Damaged("it was tampered with, and may have been on hold", hint=hint) from None
        check_not_held(row)
        return True

    def _tell(self, report: SweepReport) -> None:
        """Report no sweep: the caller reports a purge."""
