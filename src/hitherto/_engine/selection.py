"""Selecting conversations and messages for a listing: by kind, project, metadata, key and label.

A tag finds candidates. In a sealed store nothing proves that a tag is where it belongs, so there the descriptions
decide.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..backend import CHAT, ConversationRow, MessageRow, Position, Where
from ..errors import Damaged
from ..ids import parse_conversation_id
from ..listing import (
    ConversationInfo,
    MessageListing,
    Page,
    conversations,
    count_all,
    infos,
    merge,
    order,
    pages,
    read_cursor,
    scan,
    write_cursor,
)
from ..model import Saved
from .bodies import VerifiedRow
from .filters import Filter, Path, check_kind, check_pairs, folder

if TYPE_CHECKING:
    from .engine import Engine
    from .state import ConversationState

_DESCRIPTIONS = 200  # read at a time
_PLACES = 5000  # the same


def list_conversations(
    engine: "Engine", wanted: Filter, *, limit: int, cursor: str | None, include_expired: bool, total: bool
) -> Page:
    """Return a page of the conversations that match a filter, the newest first."""
    after = None
    if cursor is not None:
        at, id, _ = read_cursor(engine.backend, "conversations", cursor)
        after = Position(at, id)
    alive_at = None if include_expired else engine.clock()
    if wanted.metadata and not engine.workspace.meta.has_metadata_tags:
        engine.background.ask()  # it makes them; until then every description is read
    places = list(islice(select(engine, wanted, after, alive_at, limit + 1), limit + 1))
    last = places[limit - 1] if len(places) > limit else None
    more = None if last is None else write_cursor(engine.backend, "conversations", (last.at, last.id, 0))
    counted = count(engine, questions(engine, wanted, alive_at)[0], wanted) if total else None
    return Page(infos(engine, [place.id for place in places[:limit]], wanted), more, counted)


def select(
    engine: "Engine", wanted: Filter, after: Position | None, alive_at: int | None, size: int
) -> Iterator[Position]:
    """Yield the places of the conversations that match a filter, the newest first; `size` is how many are read at a
    time."""
    where, is_certain = questions(engine, wanted, alive_at)
    if not is_certain:
        return find_fitting(engine, where, after, wanted)
    return chain.from_iterable(pages(engine.backend, where, after, size))


def questions(engine: "Engine", wanted: Filter, alive_at: int | None) -> tuple[list[Where], bool]:
    """Return the questions to the backend, and whether they decide. Otherwise the descriptions of all that they select
    are read: pairs of metadata may have no tags yet, and in a sealed store no index has the beginnings of keys."""
    if wanted.metadata and not engine.workspace.meta.has_metadata_tags:
        return replace(wanted, metadata=()).where(engine.codec, alive_at), False
    return wanted.where(engine.codec, alive_at), wanted.key_prefix is None or engine.codec.in_clear


def find_latest(engine: "Engine", project: Path | None) -> "tuple[ConversationState, ConversationRow] | None":
    """Return the conversation that was active last, with its row, or None. One that has nothing but traces of
    sub-agents does not count."""
    place = folder(project)
    for places in pages(engine.backend, where(engine, project, include_expired=False), size=1):
        for row in engine.backend.lookup(ids=[places[0].id]):
            if engine.quarantine.has(row.id) or _has_traces_only(engine, row):
                continue
            try:
                state = engine.state_of(row)
                if engine.codec.in_clear or place in (None, state.meta.project):
                    return state, row
            except Damaged:
                continue
    return None


def _has_traces_only(engine: "Engine", row: ConversationRow) -> bool:
    """Return True if there are messages, and none on the main flow. There is no head either where all turns were
    undone."""
    return row.head is None and row.count > 0 and not any(m.main for m in engine.read_headers(row.id))


def list_messages(
    engine: "Engine",
    conversation: bytes | None,
    *,
    label: str | None,
    subagent: str | None,
    newest_first: bool,
    offset: int,
    cursor: str | None,
    lazy: bool,
) -> MessageListing:
    """Return the messages of a conversation, or of all of them, as a lazy iterator."""
    listing = f"messages, {'newest' if newest_first else 'oldest'} first"
    after = None if cursor is None else read_cursor(engine.backend, listing, cursor)
    if label is not None or subagent is not None:
        rows = find_tagged(engine, label, subagent, newest_first=newest_first)
        if conversation is not None:
            rows = (row for row in rows if row.conversation == conversation)
    elif conversation is not None:
        rows = scan(engine.backend, conversation, newest_first=newest_first)
    else:
        rows = merge(engine.backend, newest_first=newest_first)
    if after is not None:
        rows = (row for row in rows if (order(row) < after if newest_first else order(row) > after))
    for _ in range(offset):
        if next(rows, None) is None:
            break
    return MessageListing(engine, rows, listing, lazy=lazy, fits=tag_check(label, subagent))


def where(engine: "Engine", project: Path | None, *, include_expired: bool) -> list[Where]:
    """Return the queries for a listing. There is more than one only while the store is re-encrypted."""
    return Filter(folder(project)).where(engine.codec, None if include_expired else engine.clock())


def count(engine: "Engine", where: Sequence[Where], wanted: Filter) -> int:
    """How many of them are shown in all. Without a filter no row is opened. Nothing proves where a tag of a sealed
    store belongs, so with one the descriptions are asked."""
    if wanted.is_kind_alone:
        return count_all(engine, where[0])
    if engine.codec.in_clear and (not wanted.metadata or engine.workspace.meta.has_metadata_tags):
        return sum(engine.backend.count(one) for one in where)
    rows = {row.id: row for one in where for row in conversations(engine.backend, one, oldest_first=True)}
    return sum(_is_wanted(engine, row, wanted) for row in rows.values())


def _is_wanted(engine: "Engine", row: ConversationRow, wanted: Filter) -> bool:
    """Return True if the description of this conversation matches. One that cannot be read matches only no filter."""
    sound = VerifiedRow(row, engine.codec.envelope(row)) if engine.codec.in_clear else engine.verified_row(row)
    try:
        return sound is not None and (wanted.is_kind_alone or wanted.fits(sound.meta))
    except Damaged:
        return False


def find_fitting(
    engine: "Engine", where: Sequence[Where], after: Position | None, wanted: Filter
) -> Iterator[Position]:
    """The places of those that are wanted, found by reading the descriptions of all these."""
    for places in pages(engine.backend, where, after, _DESCRIPTIONS):
        rows = {row.id: row for row in engine.backend.lookup(ids=[place.id for place in places])}
        yield from (place for place in places if place.id in rows and _is_wanted(engine, rows[place.id], wanted))


def newest_last(
    engine: "Engine", project: Path | None = None, metadata: Mapping[str, str] | None = None, kind: str = CHAT
) -> Iterator[ConversationInfo]:
    """Yield the conversations by last activity, the newest last. Only their ids are read before the first one; each is
    opened, and in a sealed store proven, when its turn comes."""
    wanted = Filter(folder(project), check_pairs(metadata), check_kind(kind))
    ids = [place.id for place in select(engine, wanted, None, engine.clock(), _PLACES)]
    while ids:
        some = ids[-_DESCRIPTIONS:]
        del ids[-_DESCRIPTIONS:]
        yield from reversed(infos(engine, some, wanted))


def find_tagged(
    engine: "Engine", label: str | None, subagent: str | None, *, newest_first: bool
) -> Iterator[MessageRow]:
    wanted = [(field, value) for field, value in (("label", label), ("subagent", subagent)) if value is not None]
    found = [
        {n for tag in engine.codec.tags(field, value) for _, n in engine.backend.tagged(tag) if n is not None}
        for field, value in wanted
    ]
    rows = engine.backend.messages(numbers=sorted(set.intersection(*found)))
    return iter(sorted(rows, key=order, reverse=newest_first))


def filter_by_project(engine: "Engine", project: Path | None, chosen: list[bytes] | None) -> list[bytes] | None:
    """Return those of the chosen conversations (None: of all) that are of this project; None for all."""
    place = folder(project)
    if place is None:
        return chosen
    tags = engine.codec.tags("project", place)
    found = list({id: None for tag in tags for id, message in engine.backend.tagged(tag) if message is None})
    if not engine.codec.in_clear:  # a tag may have been written by another program
        found = [parse_conversation_id(info.id) for info in infos(engine, found, Filter(place))]
    return found if chosen is None else [id for id in found if id in chosen]


def tag_check(label: str | None, subagent: str | None) -> Callable[[Saved], bool] | None:
    """Return the check for messages found by a tag: a tag may have been written by another program."""
    if label is None and subagent is None:
        return None
    begins = None if subagent is None else f"subagent:{subagent}:"

    def fits(message: Saved) -> bool:
        own = message.label or ""
        return label in (None, own) and (begins is None or f"{own}:".startswith(begins))

    return fits
