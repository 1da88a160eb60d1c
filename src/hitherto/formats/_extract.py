"""Reads a conversation from a store as a value: the whole tree, as it was at one moment.

Imported messages have ids of this store. Their original id is kept in `extra["imported"]`, and is restored on export.
So a conversation that passes through several stores stays the same.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from .._engine.attachments import fill_holes
from .._engine.bodies import build_message
from .._engine.items import scan
from .._engine.packs import Reader
from .._engine.record_items import read_about
from .._engine.recovery import find_partials as found_partials
from .._engine.retry import MAX_READ_ATTEMPTS, retry
from .._engine.setups import SETUP
from .._engine.state import ConversationState
from ..backend import ConversationRow, MessageRow
from ..errors import Damaged
from ..ids import show_conversation_id
from ..model import Saved, from_datetime, without_place
from ._types import PortableConversation, PortableItem, PortableMessage, PortablePartial

if TYPE_CHECKING:
    from .._engine.engine import Engine

_AT_ONCE = 1000
IMPORTED = "imported"  # in a message's extra: where it came from
_OURS = {"id", "format", "at", "continues", "extra", IMPORTED}  # our fields in it
_LATEST = 253_402_300_800_000_000  # microseconds: the year 10000


class Extracted(Struct, frozen=True):
    """A conversation as a value, and the data to find its messages in the store again."""

    portable: PortableConversation
    numbers: dict[str, int]  # of the messages, by their exported ids
    rewrites: int
    next_seq: int
    kept_in: bool = False  # it must not leave its store


def extract(engine: "Engine", conversation: bytes) -> Extracted:
    """Read a conversation as it is now. Large content is loaded on demand. Raises `Busy` if it changes all the time."""

    def attempt() -> Extracted:
        row = engine.read_row(conversation)
        state = engine.read_consistently(row, lambda found: ConversationState(engine, found, own=True))
        try:
            found = _extract(engine, state)
        except Damaged:
            engine.ensure_unchanged(state.row)
            raise
        engine.ensure_not_rewritten(state.row)
        return found  # without messages added since the read began, which is consistent

    busy = f"conversation {show_conversation_id(conversation)} changes faster than it can be read"
    return retry(attempt, busy, most=MAX_READ_ATTEMPTS)


def _extract(engine: "Engine", state: ConversationState) -> Extracted:
    row, meta, names = state.row, state.meta, engine.message_ids
    setups = engine.backend.items(state.id, b"setup/")
    ids: dict[int, str] = {}  # the exported id of each message, by its number
    used: set[str] = set()
    messages: list[PortableMessage] = []
    before = 0
    for message, setup, number in _read(engine, state):
        said = _portable_message(message, setup, used)
        messages.append(
            replace(
                said,
                parent=None if message.parent is None else ids[names.number(message.parent)],
                link=None if message.link is None else ids.get(names.number(message.link)),
            )
        )
        ids[number] = said.id
        used.add(said.id)
        before += message.seq < meta.setup_seq
    if len(messages) != row.count:
        raise Damaged(f"{len(messages)} messages are stored, {row.count} are meant to be")
    portable = PortableConversation(
        id=state.name,
        messages=tuple(messages),
        title=meta.title,
        key=meta.key,
        project=meta.project,
        metadata=meta.metadata,
        setups=tuple(SETUP.open(state.envelope, item) for item in setups),
        setup=meta.setup,
        setup_at=before,
        opening=meta.opening,
        head=ids[row.head] if row.head is not None else "" if any(said.main for said in messages) else None,
        held=row.held,
        created_us=meta.created or row.created_at,
        partials=tuple(_halves(state, {names.id(number): id for number, id in ids.items()})),
        record=read_about(engine, state.envelope, row).portable,
        expires_us=row.expires_at,
        kind=row.kind,
        items=tuple(PortableItem(item.name, item.value) for item in scan(state)),
    )
    return Extracted(portable, {id: number for number, id in ids.items()}, row.rewrites, row.next_seq, meta.kept_in)


def _halves(state: ConversationState, ids: dict[str, str]) -> Iterator[PortablePartial]:
    """Yield the incomplete answers, oldest first. Unreadable ones are left out: they have no value."""
    for partial in reversed(found_partials(state)):
        if partial.problem is None and partial.parent in ids and partial.at is not None:
            at = from_datetime(partial.at, "its time")
            yield PortablePartial(parent=ids[partial.parent], messages=partial.messages, at_us=at)


def _read(engine: "Engine", state: ConversationState) -> Iterator[tuple[Saved, int, int]]:
    """Yield every message with the number of its setup and its own number, parents first."""
    reader, after = Reader(engine), None
    while rows := _next(engine, state.row, after):
        for header in rows:
            row, body = engine.read_body(header, state, reader)
            whole, problem = fill_holes(state, body, lazy=True) if body.attached else (body, None)
            yield build_message(row, whole, engine.message_ids, state.name, problem), body.setup, row.number
        after = rows[-1].seq


def _next(engine: "Engine", row: ConversationRow, after: int | None) -> list[MessageRow]:
    found = engine.backend.scan(row.id, after=after, limit=_AT_ONCE)
    return [m for m in found if m.seq < row.next_seq]


def _came(message: Saved) -> dict[str, object] | None:
    """Return the valid note of a message's origin in `extra["imported"]`, or None."""
    found = (message.extra or {}).get(IMPORTED)
    if not isinstance(found, dict) or not found.keys() <= _OURS:
        return None  # not written by us
    texts = all(isinstance(found.get(name), str) and found[name] for name in ("id", "format"))
    at = found.get("at")
    return found if texts and (at is None or (type(at) is int and 0 < at < _LATEST)) else None


def continued(message: Saved) -> tuple[str, int] | None:
    """Return the place in a file that a root goes on from, by the note that its import left."""
    came = (message.extra or {}).get(IMPORTED)
    match came:
        case {"continues": [str(file), int(line)]}:
            return file, line
    return None


def _portable_message(message: Saved, setup: int, used: set[str]) -> PortableMessage:
    """Convert a message for export. It gets its original id back, unless another copy of it has that id already."""
    came = _came(message)
    id, extra, at, format = message.id, message.extra, message.created_us, None
    if came is not None and came["id"] not in used:
        id, format, extra = str(came["id"]), came.get("format"), _before(message.extra or {}, came)
        then = came.get("at")
        at = then if type(then) is int else at
    elif id in used:  # an original id is equal to this one
        id = f"{id}~{message.seq}"
    named = format if isinstance(format, str) and format != "jsonl" else None
    return PortableMessage(
        id=id,
        message=without_place(message, extra),
        main=message.main,
        created_us=at,
        setup=setup,
        origin=message.origin,
        format=named,
    )


def _before(extra: dict[str, object], came: dict[str, object]) -> dict[str, object] | None:
    """Return the extra as it was before the import."""
    rest = {name: value for name, value in extra.items() if name != IMPORTED}
    if IMPORTED in came:
        rest[IMPORTED] = came[IMPORTED]
    return rest or (None if came.get("extra") is None else {})
