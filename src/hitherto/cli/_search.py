"""`hitherto search`: find messages by their words, and mark the words.

A hit takes two lines: the message's place, and a snippet. An empty result has an exit code of its own, so that a script
can test for it.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from .. import errors
from .._search.answering import MODES, ORDERS
from .._system.terminal_text import escape_control_characters
from ._completion import complete_ids
from ._exit_codes import NOTHING
from ._ids import find_conversation, here
from ._output import Meter, paint, print_json, print_lines
from ._store_options import Place, with_place
from ._terminal import columns, cut, in_zone, line, moment, say, width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .._search.answering import Mode, Order
    from ..reports import Hit
    from ..store import Store

_ROLES = ("user", "assistant", "tool_result", "event")
NEAREST = "no message has all of these words; these are the nearest"
_PATIENCE_SECONDS = 2.0  # to wait for other writers, before it searches read-only
_AGO = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A time: a day, a day and an hour, or a distance from now."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return _moment(str(value).strip().lower(), in_zone(datetime.now(UTC)))
        except (ValueError, OverflowError):
            self.fail("a time is 2026-01-31, 2026-01-31T10:30, 3h, 7d, 2w, today or yesterday", param, ctx)


def _moment(text: str, now: datetime) -> datetime:
    """Parse a time, seen from `now`. Without a zone it is in the zone of `now`.

    >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> _moment("yesterday", noon).isoformat(), _moment("3h", noon).isoformat()
    ('2026-01-30T00:00:00+00:00', '2026-01-31T09:00:00+00:00')
    """
    if text in ("today", "yesterday"):
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return day if text == "today" else day - timedelta(days=1)
    if text[-1:] in _AGO and text[:-1].isdecimal() and text.isascii():
        return now - int(text[:-1]) * _AGO[text[-1]]
    found = datetime.fromisoformat(text)
    if found.tzinfo is None and now.tzinfo is UTC:
        return found.replace(tzinfo=UTC)
    return found.astimezone()


@click.command(short_help="Find messages by their words.", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many at most.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    help="match: all words. nearest: a question in plain words. auto: the nearest if there is no match.",
)
@click.option("--order", type=click.Choice(ORDERS), default="newest", show_default=True, help="Of matches.")
@click.option("--role", type=click.Choice(_ROLES), help="Only messages of this role.")
@click.option("--conversation", "within", metavar="ID", shell_complete=complete_ids, help="Only in this conversation.")
@click.option("--here", "only_here", is_flag=True, help="Only in conversations of this folder.")
@click.option("--project", metavar="PATH", help="Only in conversations of that folder.")
@click.option("--since", type=Moment(), help="Only messages from then on: 2026-01-31, 3h, 7d, 2w, yesterday.")
@click.option("--until", type=Moment(), help="Only messages before then.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_place
def search(
    place: Place, words: tuple[str, ...], within: str | None, only_here: bool, project: str | None, as_json: bool,
    limit: int, mode: "Mode", order: "Order", role: str | None, since: datetime | None, until: datetime | None,
) -> int:  # fmt: skip
    """Find messages that have all of these WORDS, newest first; if there are none, the nearest ones.

    "several words" in quotes stand next to each other, OR between two finds either, -word leaves out what has it,
    and wor* finds every word that begins so. The nearest messages have some of the words, in any form, best first.
    Nothing found is exit code 3.
    """
    for word in words:
        if word.startswith("--"):  # one dash excludes a word, so click must not parse it
            raise click.NoSuchOption(word)
    if only_here and project is not None:
        raise click.UsageError("--here and --project exclude each other")
    folder = here() if only_here else project
    if only_here and folder is None:
        raise click.UsageError("the folder you are in is gone")

    def find(store: "Store") -> "list[Hit]":
        with Meter("indexing", "message") as meter:
            return store.search(
                " ".join(words), limit=limit, mode=mode, order=order, role=role, project=folder, progress=meter,
                conversation=None if within is None else find_conversation(store, within), since=since, until=until,
            )  # fmt: skip

    store, hits = _search_store(place, find)
    with store:
        if as_json:
            for hit in hits:
                print_json(hit)
        else:
            if hits and hits[0].tier == "nearest":
                say(NEAREST)
            titles: dict[str, str] = {}
            print_lines(text for hit in hits for text in _lines(store, hit, titles))
    if not hits:
        say("nothing was found")
    return 0 if hits else NOTHING


def describe_hits(store: "Store", hits: "list[Hit]") -> "Iterator[str]":
    """Yield the lines that show these hits, and their tier."""
    if not hits:
        yield "nothing was found"
    elif hits[0].tier == "nearest":
        yield NEAREST
    titles: dict[str, str] = {}
    for hit in hits:
        yield from _lines(store, hit, titles)


def _search_store(place: Place, find: "Callable[[Store], list[Hit]]") -> "tuple[Store, list[Hit]]":
    """Search, and keep the updated index. If other writers, a full disk or permissions prevent writing, search
    read-only."""
    store: Store | None = None
    try:
        store = place.open(timeout_seconds=_PATIENCE_SECONDS)
        return store, find(store)
    except (errors.Busy, errors.Denied, errors.ReadOnly, errors.StorageFull):
        if store is not None:
            store.close()
        store = place.read()
        return store, find(store)


def _lines(store: "Store", hit: "Hit", titles: dict[str, str]) -> list[str]:
    """Return the place of a message, and its snippet."""
    if hit.conversation not in titles:
        titles[hit.conversation] = _title(store, hit.conversation)
    role = hit.role.upper().replace("_", " ")
    head = line(f"{hit.message_id} ({moment(hit.created_at)}) [{role}] {titles[hit.conversation]}", width())
    return [paint(head, "dim"), f"    {_mark_snippet(hit, width() - 4)}"]


def _title(store: "Store", id: str) -> str:
    try:
        return store.conversation(id).title or id[:8]
    except errors.NotFound:  # deleted meanwhile
        return id[:8]


def _mark_snippet(hit: "Hit", room: int) -> str:
    """Return the snippet with the matches in colour. A long one begins shortly before its first match."""
    first = hit.spans[0] if hit.spans else (0, 0)
    start = 0
    if (
        columns(escape_control_characters(hit.snippet)) > room
        and columns(escape_control_characters(hit.snippet[: first[1]])) > room - 1
    ):
        start = first[0]
        while start and columns(escape_control_characters(hit.snippet[start - 1 : first[0]])) <= room // 4:
            start -= 1
    shown, left, after = "…" if start else "", room - bool(start), start
    for begin, end in (*hit.spans, (len(hit.snippet), len(hit.snippet))):
        for text, style in ((hit.snippet[after:begin], None), (hit.snippet[max(begin, start) : end], "mark")):
            part = cut(escape_control_characters(text), left)
            shown, left = shown + (paint(part, style) if style else part), left - columns(part)
            if left <= 0:
                return shown
        after = end
    return shown
