"""Statistics: how much a store holds, and how many messages there were on each day, by role.

Times never fall along a conversation. So only conversations that were active in the period are looked at, each from its
end backwards until the period begins, and of each message only its header is read. Older messages
cost nothing. In a plain store the backend counts; the conversations of a sealed one have to be proven, one by one.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from ..backend import ConversationRow, DayCount, Totals, Where, conversation_kinds
from ..errors import InvalidArgument
from ..listing import conversations, pages
from ..model import approximate_tokens, to_datetime
from ..reports import Stats

if TYPE_CHECKING:
    from .engine import Engine

_HEADERS = 1000  # messages read at a time
_DAY = 86_400_000_000  # microseconds
_MOST_DAYS = 10_000  # to count messages of


def stats(engine: "Engine") -> Stats:
    """Return how much a store holds."""
    found = _totals(engine) if engine.codec.in_clear else _proven_totals(engine)
    return Stats(
        conversations=found.conversations,
        messages=found.messages,
        content_bytes=found.size,
        approximate_tokens=approximate_tokens(found.size),
        stored_bytes=engine.backend.size() + engine.search.size(),
        oldest=None if found.oldest is None else to_datetime(found.oldest),
        newest=None if found.newest is None else to_datetime(found.newest),
    )


def _totals(engine: "Engine") -> Totals:
    """Return the sums over conversations of all kinds."""
    found = [engine.backend.totals(kind) for kind in conversation_kinds(engine.backend)]
    return Totals(
        sum(one.conversations for one in found),
        sum(one.messages for one in found),
        sum(one.size for one in found),
        min((one.oldest for one in found if one.oldest is not None), default=None),
        max((one.newest for one in found if one.newest is not None), default=None),
    )


def _proven_totals(engine: "Engine") -> Totals:
    """Return the same of a sealed store, without the conversations in quarantine: each row has to be proven."""
    count = messages = size = 0
    times: list[int] = []
    for kind in conversation_kinds(engine.backend):
        for row in conversations(engine.backend, Where(kind), oldest_first=True):
            sound = engine.verified_row(row)
            if sound is not None:
                count, messages, size = count + 1, messages + sound.row.count, size + sound.row.size
                times += [sound.row.created_at, sound.row.active_at]
    return Totals(count, messages, size, min(times, default=None), max(times, default=None))


def activity(engine: "Engine", days: int) -> dict[date, dict[str, int]]:
    """Messages by day and role, for the days that end with today."""
    if type(days) is not int or not 1 <= days <= _MOST_DAYS:
        raise InvalidArgument(f"days is a number from 1 to {_MOST_DAYS:,}")
    today = engine.clock() // _DAY
    first = today - days + 1
    found: dict[int, Counter[str]] = {day: Counter() for day in range(first, today + 1)}
    for kind in conversation_kinds(engine.backend):
        count = engine.backend.said if engine.codec.in_clear else partial(_count_verified, engine)
        for said in count(kind, first * _DAY, _DAY):
            if said.day in found:  # and not of tomorrow, by another's clock
                found[said.day][said.role] += said.count
    return {_date(day): dict(roles) for day, roles in found.items()}


def _count_verified(engine: "Engine", kind: str, since: int, _day: int) -> Iterator[DayCount]:
    """Yield the counts since then of the conversations of a sealed store that pass their integrity proof."""
    for places in pages(engine.backend, [Where(kind)]):
        recent = [place.id for place in places if place.at >= since]
        for row in engine.backend.lookup(ids=recent):
            if engine.verified_row(row) is not None:
                yield from _count_messages(engine, row, since)
        if len(recent) < len(places):
            return


def _count_messages(engine: "Engine", row: ConversationRow, since: int) -> Iterator[DayCount]:
    after = None
    while True:
        headers = engine.backend.scan(row.id, after=after, newest_first=True, limit=_HEADERS, bodies=False)
        for header in headers:
            if header.created_at < since:
                return
            yield DayCount(header.created_at // _DAY, header.role, 1)
        if len(headers) < _HEADERS:
            return
        after = headers[-1].seq


def _date(day: int) -> date:
    return to_datetime(0).date() + timedelta(days=day)
