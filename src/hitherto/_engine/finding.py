"""Finding conversations and messages: by id, by the beginning of one, by project, metadata and label.

A tag finds candidates. In a sealed store nothing proves that a tag is where it belongs, so there the descriptions
decide.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..backend import INTERNAL_KINDS, ConversationRow, MessageRow, Position, Where
from ..errors import Ambiguous, Damaged, InvalidArgument, InvalidID, NotFound
from ..ids import is_conversation_prefix, parse_conversation_id, show_conversation_id
from ..listing import ConversationInfo, conversations, count_all, infos, order, pages
from ..model import Saved, as_list
from .bodies import VerifiedRow
from .filters import Filter, check_pairs
from .packs import Reader

if TYPE_CHECKING:
    from .engine import Engine
    from .state import ConversationState

_DESCRIPTIONS = 200  # read at a time
_PLACES = 5000  # the same

Path = str | os.PathLike[str]


def find(engine: "Engine", id: str) -> tuple[ConversationRow, MessageRow | None]:
    """Return the rows that an id argument names: an exact message id, else a unique beginning of a message or
    conversation id."""
    if not isinstance(id, str) or not 0 < len(id) <= 36:
        raise InvalidID(id)
    if len(id) == 36:
        row = engine.read_row(parse_conversation_id(id))
        if row.kind in INTERNAL_KINDS:
            raise NotFound("conversation", [id])
        return row, None
    if not (id.isascii() and id.replace("-", "").isalnum()):
        raise InvalidID(id)
    exact = engine.find_message_row(id)
    if exact is not None:
        return _with_row(engine, exact)
    rows = engine.backend.lookup(prefix=id.replace("-", ""), limit=3) if is_conversation_prefix(id) else []
    rows = [row for row in rows if row.kind not in INTERNAL_KINDS]
    numbers = _messages_beginning(engine, id)
    if not rows and not numbers:
        raise NotFound("message or conversation", [id])
    if len(rows) + len(numbers) > 1:
        raise Ambiguous(
            id, [show_conversation_id(row.id) for row in rows] + [engine.message_ids.id(n) for n in numbers]
        )
    if rows:
        return rows[0], None
    return _with_row(engine, engine.message_row(engine.message_ids.id(numbers[0])))


def _with_row(engine: "Engine", message: MessageRow) -> tuple[ConversationRow, MessageRow]:
    """Return the message with its conversation's row. The row is read first, so that a later deletion shows in it."""
    row = engine.read_row(message.conversation)
    return row, engine.message_row(engine.message_ids.id(message.number))


def _messages_beginning(engine: "Engine", prefix: str) -> list[int]:
    """Up to two messages whose id begins so. Long prefixes stand for few numbers, so we ask for these; for short
    ones we look until two are found."""
    if len(prefix) > 5 or not prefix.isalnum():
        return []
    if len(prefix) >= 4:
        rows = engine.backend.messages(numbers=engine.message_ids.with_prefix(prefix), bodies=False)
        return [row.number for row in rows[:2]]
    found: list[int] = []
    for numbers in engine.backend.numbers():
        found += [number for number in numbers if engine.message_ids.id(number).startswith(prefix)]
        if len(found) > 1:
            break
    return found[:2]


def find_by_key(engine: "Engine", kind: str, key: str) -> ConversationRow | None:
    """Return the row of the conversation of this kind and key; None if there is none."""
    for tag in reversed(engine.codec.tags("conversation", key)):  # what is re-encrypted moves from last to first
        rows = engine.backend.lookup(key=(kind, tag))
        if rows:
            return rows[0]
    return None


def _check_keys(keys: Iterable[str]) -> list[str]:
    found: list[str] = []
    for key in as_list(keys, "keys"):
        if not isinstance(key, str) or not key:
            raise InvalidArgument("the key of a message is text, and not empty")
        found.append(key)
    return found


def find_by_keys(state: "ConversationState", keys: Iterable[str], *, missing_ok: bool) -> list[Saved]:
    """Return the messages of a conversation that have these keys, in this order."""
    engine, wanted = state.engine, _check_keys(keys)
    for _ in range(2):  # the conversation may have another key for sealing by now, which names them anew
        tags = {tag: key for key in wanted for tag in state.envelope.tags("key", key)}
        rows = engine.backend.messages(keys=(state.id, list(tags))) if tags else []
        if len(rows) == len(set(wanted)):
            break
        state.refresh()
    reader = Reader(engine)
    found: dict[str, Saved] = {}
    for row in rows:
        message = engine.read_message(row, state, reader=reader)
        if row.key is None or message.key != tags[row.key]:
            raise Damaged(f"message {message.id} is found by a key that is not its own")
        found[message.key] = message
    missing = [key for key in wanted if key not in found]
    if missing and not missing_ok:
        raise NotFound("message with this key", missing, hint="missing_ok=True leaves out what is not there")
    return [found[key] for key in wanted if key in found]


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
    engine: "Engine", project: Path | None = None, metadata: Mapping[str, str] | None = None
) -> Iterator[ConversationInfo]:
    """Yield the conversations by last activity, the newest last. Only their ids are read before the first one; each is
    opened, and in a sealed store proven, when its turn comes."""
    wanted = Filter(folder(project), check_pairs(metadata))
    ids = [place.id for place in _places(engine, wanted)]
    while ids:
        some = ids[-_DESCRIPTIONS:]
        del ids[-_DESCRIPTIONS:]
        yield from reversed(infos(engine, some, wanted))


def _places(engine: "Engine", wanted: Filter) -> Iterator[Position]:
    """Yield the places of these conversations, the newest first."""
    if wanted.metadata and not engine.workspace.meta.has_metadata_tags:  # until maintenance has made the tags
        yield from find_fitting(engine, Filter(wanted.project).where(engine.codec, engine.clock()), None, wanted)
        return
    for places in pages(engine.backend, wanted.where(engine.codec, engine.clock()), size=_PLACES):
        yield from places


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
        found = [info._id for info in infos(engine, found, Filter(place))]
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


def folder(project: Path | None) -> str | None:
    """A project is a directory, by its absolute path."""
    if project is None:
        return None
    place = os.fspath(project) if isinstance(project, os.PathLike) else project
    if not isinstance(place, str):
        raise InvalidArgument(f"a project is a directory, not a {type(project).__name__}")
    return os.path.abspath(os.path.expanduser(place))
