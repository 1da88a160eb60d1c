"""Activity: how many messages there were on each day, by role.

Times never fall along a conversation. So only conversations that were active in the period are looked at, each from its
end backwards until the period begins, and of each message only its header is read. Older messages
cost nothing. In a plain store the backend counts; the conversations of a sealed one have to be proven, one by one.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from ..backend import ConversationRow, Said, Where, conversation_kinds
from ..listing import pages
from ..model import to_datetime

if TYPE_CHECKING:
    from .engine import Engine

_HEADERS = 1000  # messages read at a time
_DAY = 86_400_000_000  # microseconds


def activity(engine: "Engine", days: int) -> dict[date, dict[str, int]]:
    """Messages by day and role, for the days that end with today."""
    today = engine.clock() // _DAY
    first = today - days + 1
    found: dict[int, Counter[str]] = {day: Counter() for day in range(first, today + 1)}
    for kind in conversation_kinds(engine.backend):
        count = engine.backend.said if engine.codec.in_clear else partial(_count_verified, engine)
        for said in count(kind, first * _DAY, _DAY):
            if said.day in found:  # and not of tomorrow, by another's clock
                found[said.day][said.role] += said.count
    return {_date(day): dict(roles) for day, roles in found.items()}


def _count_verified(engine: "Engine", kind: str, since: int, _day: int) -> Iterator[Said]:
    """Yield the counts since then of the conversations of a sealed store that pass their integrity proof."""
    for places in pages(engine.backend, [Where(kind)]):
        recent = [place.id for place in places if place.at >= since]
        for row in engine.backend.lookup(ids=recent):
            if engine.verified_row(row) is not None:
                yield from _count_messages(engine, row, since)
        if len(recent) < len(places):
            return


def _count_messages(engine: "Engine", row: ConversationRow, since: int) -> Iterator[Said]:
    after = None
    while True:
        headers = engine.backend.scan(row.id, after=after, newest_first=True, limit=_HEADERS, bodies=False)
        for header in headers:
            if header.created_at < since:
                return
            yield Said(header.created_at // _DAY, header.role, 1)
        if len(headers) < _HEADERS:
            return
        after = headers[-1].seq


def _date(day: int) -> date:
    return to_datetime(0).date() + timedelta(days=day)
