"""Erase by person: purge every conversation of one participant, of one metadata value, or whose key begins so.

The descriptions decide. In a sealed store all of them are read, because another program may have removed a tag.
Participants lie in an item of their own, which is read of every record. A conversation that cannot be read might be of
this person: it stays, and is a failure that the report names.

Conversations can begin to match while the purge runs, so it looks again until it finds no more of them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from .._engine.bodies import Meta, open_meta
from .._engine.deleting import check_destroyable
from .._engine.filters import Filter, check_key, check_pairs
from .._engine.floor import is_below_floor, is_overridden
from .._engine.record_items import read_newest
from .._engine.selection import questions
from ..backend import ConversationRow, Where, conversation_kinds
from ..errors import Damaged, InvalidArgument, NotFound
from ..ids import parse_conversation_id, show_conversation_id
from ..listing import pages
from ..model import encodable, to_datetime
from ..reports import PurgePlan, PurgeReport, PurgeTarget
from .purging import check_reason
from .purging_many import purge_many

if TYPE_CHECKING:
    from .._engine.engine import Engine

_BATCH_SIZE = 64  # conversations that are taken at once
_MAX_PASSES = 10  # a writer that goes on making conversations of this person does not keep a purge for ever

Progress = Callable[[int, int], None]
Given = tuple[str | None, Mapping[str, str] | None, str | None]  # a participant, metadata, the beginning of keys


class Selectors(Struct, frozen=True):
    """The conversations of a person: participants, of whom one has to be in the record (none: any), and a filter of the
    description. Both must fit."""

    participants: frozenset[str]
    filter: Filter


def check_selectors(engine: "Engine", given: Given) -> Selectors:
    """Return the selectors; `InvalidArgument` without any, because that would select everything."""
    participant, metadata, key_prefix = given
    pairs = check_pairs(metadata)
    if participant is None and not pairs and key_prefix is None:
        hint = "give a participant, metadata or a key_prefix; Records(store).purge_all purges everything"
        raise InvalidArgument("nothing says whose conversations are meant", hint=hint)
    people = frozenset[str]() if participant is None else frozenset([_check_participant(participant)])
    prefix = None if key_prefix is None else check_key(key_prefix)
    if not all(encodable(text) for text in (*people, prefix or "", *(text for pair in pairs for text in pair))):
        raise InvalidArgument("a selector holds half of a surrogate pair, which is not a character")
    if engine.redactor is not None:
        if engine.redactor.strings(dict(pairs)) != dict(pairs):
            hint = "select by participant or key, or open the store without a sanitiser for what is older than it"
            raise InvalidArgument("the sanitiser redacts this metadata: all people have the same then", hint=hint)
        people |= {engine.redactor.id(id) for id in people}  # other ids stay other ids
    return Selectors(people, Filter(metadata=pairs, key_prefix=prefix))


def _check_participant(id: object) -> str:
    if not isinstance(id, str) or not id:
        raise InvalidArgument("the id of a participant is text, and not empty")
    return id


# -- the plan


def plan_purge(engine: "Engine", given: Given) -> PurgePlan:
    """Plan a purge, as `Store.plan_purge` documents."""
    found: dict[bytes, PurgeTarget] = {}
    for row, meta in _matching(engine, check_selectors(engine, given), ()):
        found[row.id] = _target(engine, row, meta)
    return PurgePlan(tuple(found.values()))


def _target(engine: "Engine", row: ConversationRow, meta: Meta | Damaged) -> PurgeTarget:
    name = show_conversation_id(row.id)
    if isinstance(meta, Damaged):
        return PurgeTarget(name, row.kind, "", row.count, None, "damaged")
    try:
        active_at = to_datetime(row.active_at)
    except Damaged:  # a time that cannot be does not hide that it matches
        active_at = None
    stays: Literal["held", "floor"] | None = "held" if row.held else None
    if stays is None and is_below_floor(engine, row) and not is_overridden():
        stays = "floor"
    return PurgeTarget(name, row.kind, meta.title, row.count, active_at, stays)


def _matching(
    engine: "Engine", selectors: Selectors, known: Collection[bytes]
) -> Iterator[tuple[ConversationRow, Meta | Damaged]]:
    """Yield the rows of those that match, except the known ones, with their descriptions, and of those that cannot be
    read, with the error. The oldest come first: one that becomes active meanwhile is met again, and none is missed."""
    for kind in conversation_kinds(engine.backend):
        for places in pages(engine.backend, _where(engine, selectors, kind), oldest_first=True):
            for row in engine.backend.lookup(ids=[place.id for place in places if place.id not in known]):
                try:
                    meta: Meta | Damaged | None = _read_if_matching(engine, selectors, row)
                except NotFound:
                    continue
                except Damaged as error:
                    meta = error
                if meta is not None:
                    yield row, meta


def _where(engine: "Engine", selectors: Selectors, kind: str) -> Sequence[Where]:
    """Return the questions to the backend. They only narrow down what is read."""
    if not engine.codec.in_clear:
        return [Where(kind)]
    return questions(engine, replace(selectors.filter, kind=kind), None)[0]


def _read_if_matching(engine: "Engine", selectors: Selectors, row: ConversationRow) -> Meta | None:
    """Return the description of a conversation if it matches. `Damaged` if that cannot be told."""

    def read(row: ConversationRow) -> Meta | None:
        envelope = engine.check_row(row)
        meta = open_meta(envelope, row)
        if not selectors.filter.fits(meta):
            return None
        if selectors.participants:
            about = read_newest(engine, envelope, row)[0] if meta.record else None
            if about is None or not any(one.id in selectors.participants for one in about.participants):
                return None
        return meta

    return engine.read_consistently(row, read)


# -- the purge


def purge_matching(engine: "Engine", given: Given, reason: str, progress: Progress | None) -> PurgeReport:
    """Purge all that match, as `Store.purge_matching` documents."""
    check_reason(reason)
    selectors = check_selectors(engine, given)

    def batches() -> Iterator[list[bytes]]:
        seen: set[bytes] = set()
        for _ in range(_MAX_PASSES):
            ids = list({row.id: None for row, _ in _matching(engine, selectors, seen)})
            if not ids:
                return
            yield from _in_batches(ids, progress)
            seen.update(ids)

    return purge_many(engine, reason, batches(), _check(selectors))


def carry_out(engine: "Engine", found: PurgePlan, given: Given, reason: str, progress: Progress | None) -> PurgeReport:
    """Purge the conversations of a plan that still match, and no others."""
    check_reason(reason)
    selectors = check_selectors(engine, given)
    ids = [parse_conversation_id(target.conversation) for target in found.targets]
    return purge_many(engine, reason, _in_batches(ids, progress), _check(selectors))


def _in_batches(ids: Sequence[bytes], progress: Progress | None) -> Iterator[list[bytes]]:
    tell = progress or (lambda _, __: None)
    for start in range(0, len(ids), _BATCH_SIZE):
        tell(start, len(ids))
        yield list(ids[start : start + _BATCH_SIZE])
    tell(len(ids), len(ids))


def _check(selectors: Selectors) -> Callable[["Engine", ConversationRow], bool]:
    def check(engine: "Engine", row: ConversationRow) -> bool:
        try:
            meta = _read_if_matching(engine, selectors, row)
        except Damaged as error:
            said = f"it cannot be read, so nobody knows whether it matches: {error}"
            raise Damaged(said, hint='purge it by its id, reason="corruption-detected"') from None
        if meta is not None:
            check_destroyable(engine, row)
        return meta is not None

    return check
