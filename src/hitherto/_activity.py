"""Activity: how many messages were said on which day, and by whom.

Times never fall along a conversation. So only conversations that were active in the period are looked at, each from its
end backwards until the period begins, and of each message only its header is read. What an old store holds from before
costs nothing.
"""

from collections import Counter
from datetime import date, timedelta
from typing import TYPE_CHECKING

from .backend import ConversationRow, Position, Where
from .model import to_datetime

if TYPE_CHECKING:
    from .store import Store

_PAGE = 200  # conversations read at a time
_HEADERS = 1000  # messages read at a time
_DAY = 86_400_000_000  # microseconds


def activity(store: "Store", days: int) -> dict[date, dict[str, int]]:
    """Messages by day and role, for the days that end with today."""
    today = store._clock() // _DAY
    first = today - days + 1
    found: dict[int, Counter[str]] = {day: Counter() for day in range(first, today + 1)}
    after: Position | None = None
    while True:
        places = store.backend.page(Where(), after, _PAGE)
        recent = [place.id for place in places if place.at >= first * _DAY]
        for row in store.backend.lookup(ids=recent):
            if store._codec.in_clear or store._sound(row) is not None:
                _count(store, row, first, found)
        if len(recent) < _PAGE:
            return {_date(day): dict(roles) for day, roles in found.items()}
        after = places[-1]


def _count(store: "Store", row: ConversationRow, first: int, found: dict[int, Counter[str]]) -> None:
    after = None
    while True:
        headers = store.backend.scan(row.id, after=after, newest_first=True, limit=_HEADERS, bodies=False)
        for header in headers:
            day = header.created_at // _DAY
            if day < first:
                return
            if day in found:  # and not of tomorrow, by another's clock
                found[day][header.role] += 1
        if len(headers) < _HEADERS:
            return
        after = headers[-1].seq


def _date(day: int) -> date:
    return to_datetime(0).date() + timedelta(days=day)
