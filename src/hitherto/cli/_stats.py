"""`hitherto stats`: the size of the store, and its activity over time.

Totals come from the rows of conversations, the chart from the headers of the messages of its days. No message is read,
so it is quick on a large store. Charts are drawn with blocks of an eighth of a line each, or with ASCII signs if the
encoding has no blocks.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING

import click

from ._conversation_pages import iterate_conversations
from ._output import count_of, paint, print_json, print_lines
from ._store_options import Place, with_place
from ._terminal import line, moment, width

if TYPE_CHECKING:
    from datetime import date

    from ..listing import ConversationInfo
    from ..reports import Stats

_BLOCKS, _SIGNS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_LARGEST = 5  # conversations to list
_NAMES = 11  # columns for a role: the longest built-in one

Days = dict["date", dict[str, int]]


@click.command(short_help="Show the size of the store, and its activity.")
@click.option("--days", type=click.IntRange(1, 3660), default=30, show_default=True, help="The days of the chart.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def stats(place: Place, days: int, as_json: bool) -> None:
    """Print how much the store holds, how many messages were said on each of the last days and by whom, and which
    conversations are the largest. Days are those of UTC.

    With --json it is one object: totals, "days" with their messages by role, and the "largest" conversations.
    """
    with place.read() as store:
        found = store.stats()
        activity = store.activity(days=days)
        largest = nlargest(_LARGEST, iterate_conversations(store, include_expired=True), key=lambda info: info.size)
        if as_json:
            print_json(_object(found, activity, largest))
        else:
            print_lines(_lines(found, activity, largest))


def _title(info: "ConversationInfo") -> str | None:
    return None if info.problem is not None else info.title


def _object(found: "Stats", activity: Days, largest: Sequence["ConversationInfo"]) -> dict[str, object]:
    return {
        "conversations": found.conversations,
        "messages": found.messages,
        "content_bytes": found.content_bytes,
        "stored_bytes": found.stored_bytes,
        "approximate_tokens": found.approximate_tokens,
        "oldest": found.oldest,
        "newest": found.newest,
        "days": [{"date": day, "messages": sum(roles.values()), "roles": roles} for day, roles in activity.items()],
        "largest": [
            {"id": i.id, "title": _title(i), "size": i.size, "messages": i.count, "active_at": i.active_at}
            for i in largest
        ],
    }


def _lines(found: "Stats", activity: Days, largest: Sequence["ConversationInfo"]) -> Iterator[str]:
    yield from _totals(found)
    if found.messages:
        yield ""
        yield from _chart(activity)
        yield from _roles(activity)
        yield ""
        yield from _sizes(largest)


def _totals(found: "Stats") -> Iterator[str]:
    yield from _wrap(f"{count_of(found.conversations, 'conversation')}, {count_of(found.messages, 'message')}")
    content = f"{size(found.content_bytes)} of content, about {found.approximate_tokens:,} tokens"
    yield from _wrap(f"{content}; {size(found.stored_bytes)} stored")
    if found.oldest is not None and found.newest is not None:
        yield from _wrap(f"from {moment(found.oldest)} to {moment(found.newest)}")


def _wrap(text: str) -> list[str]:
    from textwrap import wrap  # noqa: PLC0415  # JSON output needs none

    return wrap(text, width())


def _chart(activity: Days) -> Iterator[str]:
    """Yield a column for each day, or for several days if there are more days than columns."""
    counts = [sum(roles.values()) for roles in activity.values()]
    each = -(-len(counts) // width())  # days in a column
    columns = [sum(counts[max(0, at - each) : at]) for at in range(len(counts), 0, -each)][::-1]
    most, days = max(columns), list(activity)
    named = f"{count_of(sum(counts), 'message')} from {days[0]} to {days[-1]}"
    period = "a day" if each == 1 else f"{each} days"
    yield from _wrap(f"{named}, at most {most:,} in {period}" if most else named)
    yield paint("".join(_column(count, most) for count in columns), "cyan")


def _column(count: int, most: int) -> str:
    """Return a bar in one character: eighths, rounded up, so that only zero is empty."""
    return _blocks()[-(-count * 8 // most) if count else 0]


def _blocks() -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        _BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _SIGNS
    return _BLOCKS


def _roles(activity: Days) -> Iterator[str]:
    counts = sum((Counter(roles) for roles in activity.values()), Counter[str]())
    names = {role: line(role, _NAMES) for role in counts}
    room = max(map(len, names.values()), default=0)
    figures = max((len(f"{count:,}") for count in counts.values()), default=0)
    rest = width() - room - figures - 2
    for role, count in counts.most_common():
        bar = _blocks()[-1] * -(-rest * count // max(counts.values())) if rest > 0 else ""
        yield f"{names[role]:<{room}} {count:>{figures},} {paint(bar, 'cyan')}".rstrip()


def _sizes(largest: Sequence["ConversationInfo"]) -> Iterator[str]:
    yield "largest"
    for info in largest:
        title = _title(info)
        told = "its description cannot be read" if title is None else title or "without a title"
        head = f"{info.id[:8]} {size(info.size):>8} "
        yield line(head + told, width())


def size(count: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> size(999), size(48_350_000)
    ('999 B', '48.4 MB')
    """
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
