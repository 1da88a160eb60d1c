"""List records by last interaction, newest first, without records that are due and not on hold.

The backend leaves out records whose own expiry has passed. Records that are due by the policy of the workspace have
been inactive for so many days, so they stand at the end of the list: only there each record is checked.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from .._engine.record_items import revision_of
from .._engine.selection import where as where_of
from ..backend import ConversationRow, Position, Where
from ..errors import Damaged, InvalidArgument
from ..listing import ConversationInfo, check_limit, count_all, infos, left_out, pages, read_cursor, write_cursor
from ..listing import page as page_of
from ..model import to_datetime
from ..retention import Candidate, RetentionPolicy, decide
from ._types import RecordPage, RecordSummary, Retention

if TYPE_CHECKING:
    from ..store import Store

_LISTING = "records"
_DAY = 86_400_000_000
_BATCH_SIZE = 500


def expiry(row: ConversationRow, policy: RetentionPolicy | None, now: datetime) -> Retention:
    """The retention of a conversation under this policy."""
    own = None if row.expires_at is None else to_datetime(row.expires_at)
    expires = decide(Candidate("", to_datetime(row.active_at), own), policy, now).expires_at
    is_due = expires is not None and expires <= now
    return Retention(expires, "workspace-default" if own is None else "custom", row.held, is_due)


def page(store: "Store", limit: int, cursor: str | None, *, include_expired: bool, total: bool) -> RecordPage:
    check_limit(limit)
    if type(total) is not bool:
        raise InvalidArgument("total is true or false")
    after = None if cursor is None else Position(*read_cursor(store.backend, _LISTING, cursor)[:2])
    policy, now = store.retention, store.engine.clock()
    due = None if include_expired or policy is None else _DueRecords(store, policy, now)
    found = list(islice(_places(store, after, due, limit + 1, include_expired=include_expired), limit + 1))
    last = found[limit - 1] if len(found) > limit else None
    shown = [
        _summary(info, policy, to_datetime(now)) for info in infos(store.engine, [place.id for place in found[:limit]])
    ]
    return RecordPage(
        tuple(shown),
        None if last is None else write_cursor(store.backend, _LISTING, (last.at, last.id, 0)),
        _total(store, due, include_expired=include_expired) if total else None,
    )


class _DueRecords:
    """The records that are due by the policy of the workspace and not swept yet."""

    def __init__(self, store: "Store", policy: RetentionPolicy, now: int) -> None:
        self._store, self._policy, self._now = store, policy, to_datetime(now)
        self.cut = now - policy.days * _DAY  # records that were active later are not due

    def has(self, row: ConversationRow) -> bool:
        return row.active_at <= self.cut and not row.held and expiry(row, self._policy, self._now).expired

    def among(self, places: Sequence[Position]) -> set[bytes]:
        quiet = [place.id for place in places if place.at <= self.cut]
        return {row.id for row in self._store.backend.lookup(ids=quiet) if self.has(row)} if quiet else set()

    def count(self, where: Sequence[Where]) -> int:
        out = left_out(self._store.engine)
        quiet = pages(self._store.backend, where, Position(self.cut + 1, b""), _BATCH_SIZE)
        return sum(len(self.among(places) - out) for places in quiet)


def _places(
    store: "Store", after: Position | None, due: _DueRecords | None, most: int, *, include_expired: bool
) -> Iterator[Position]:
    """The positions of the records of this list, newest first."""
    where = where_of(store.engine, None, include_expired=include_expired)
    while True:
        places = page_of(store.backend, where, after, most)
        without = set() if due is None else due.among(places)
        yield from (place for place in places if place.id not in without)
        if len(places) < most:
            return
        after, most = places[-1], _BATCH_SIZE


def _total(store: "Store", due: _DueRecords | None, *, include_expired: bool) -> int:
    where = where_of(store.engine, None, include_expired=include_expired)
    return count_all(store.engine, where[0]) - (0 if due is None else due.count(where))


def _summary(info: ConversationInfo, policy: RetentionPolicy | None, now: datetime) -> RecordSummary:
    row, problem = info._row, info.problem
    try:
        meta = info._read_meta()
        title, created, exportable = meta.title, meta.created or row.created_at, not meta.kept_in
    except Damaged:
        title, created, exportable = "", row.created_at, False
    return RecordSummary(
        info.id,
        revision_of(row),
        title,
        to_datetime(created),
        to_datetime(row.active_at),
        row.count,
        row.size,
        expiry(row, policy, now),
        exportable,
        problem,
    )
