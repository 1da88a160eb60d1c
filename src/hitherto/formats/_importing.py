"""Imports conversations into a store, from any format, without duplicates.

A conversation keeps its id if that is a UUID; any other becomes one, always the same. If the store has a conversation
of that id already, the two are matched (`_history_match`): known messages are not added again, and new ones go below
the message that they answer. So loading a file twice adds nothing the second time, and loading a file that has grown
adds the new messages. Two conversations with different beginnings only share the id by accident: the imported one gets
another id, always the same one, and the report says so. A conversation that was purged here stays away
(`_erasure.ledger`).

Messages get ids of the store. Their original ids are kept in `extra["imported"]`.
"""

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from .._engine.bodies import Meta, encode, open_meta
from .._engine.creating import More, create
from .._engine.filters import check_kind
from .._engine.finding import find_by_key
from .._engine.items import Item, key_of
from .._engine.record_items import About
from .._engine.record_items import items as record_items
from .._engine.recovery import encode_partial, keep, new_key
from .._engine.setups import check_setup, check_text, setup_item
from .._engine.state import (
    ConversationState,
    EncodedMessage,
    Placement,
    build_description_change,
    check_size,
    encode_message,
)
from .._engine.typed_items import close_item
from .._erasure import ledger
from ..backend import Change, ConversationRow, ItemRow
from ..conversation import Conversation, handle_on
from ..errors import Busy, HithertoError, InvalidArgument, NotFound, PayloadTooLarge
from ..ids import parse_conversation_id, show_conversation_id
from ..model import Message, Saved, Setup, check, check_strings, encodable
from ._extract import IMPORTED, Extracted, extract
from ._history_match import digest, laid_over, told_again
from ._types import PortableConversation, PortableMessage, PortablePartial

if TYPE_CHECKING:
    from ..store import Store

_NAMESPACE = uuid.UUID("6f0e4cf4-9c1f-5c3c-9d43-0a4c3f0f6d5e")  # of the UUIDs that other ids become; never changed
_EARLIEST = 1 << 41  # microseconds: some weeks into 1970, so that there is a time before it
_TRIES = 100
OWN = "jsonl"  # the format of our own files
_PROVENANCE = ("imported_id", "snapshot")  # metadata that says where a conversation came from


class Again(Exception):
    """The conversation has changed since it was read, by another writer or by the import itself. Plan again."""


class Plan(Struct, frozen=True):
    """The changes that an import of one conversation will make."""

    id: str  # of the conversation here
    there: Extracted | None  # as it is in the store already
    new: tuple[PortableMessage, ...]  # the messages to add
    known: dict[str, int] = {}  # the numbers of messages that the store has, by their ids in the file
    renamed: bool = False  # its own id is that of another conversation
    notes: tuple[str, ...] = ()  # what cannot be taken over, in words
    is_purged: bool = False  # it was purged here, and stays away

    @property
    def is_done(self) -> bool:
        return self.there is not None and not self.new


class Admitted(Struct, frozen=True):
    """The result of importing one conversation."""

    conversation: Conversation
    plan: Plan
    ids: dict[str, str] = {}  # of the messages that were added: the id they came with, and ours


def make_plan(store: "Store", portable: PortableConversation, format: str, *, even_purged: bool = False) -> Plan:
    """Return the plan of an import without writing. Raises the errors that the import would raise."""
    return _plan(store, _clean(store, portable), format, even_purged)


def _clean(store: "Store", portable: PortableConversation) -> PortableConversation:
    """Apply the store's redactor, so that the messages can be compared with stored ones."""
    redactor = store.engine.redactor
    if redactor is None:
        return portable
    for said in portable.messages:
        check(said.message)
    messages = tuple(
        replace(said, message=redactor.message(said.message), origin=redactor.id(said.origin))
        for said in portable.messages
    )
    return replace(
        portable,
        messages=messages,
        opening=redactor.id(portable.opening),
        title=redactor.text(portable.title),
        metadata=redactor.strings(check_strings(portable.metadata, "metadata")),
        setups=tuple(redactor.setup(setup) for setup in portable.setups),
        record=portable.record.clean_with(redactor.value),
    )


def _plan(store: "Store", portable: PortableConversation, format: str, even_purged: bool) -> Plan:
    for _ in range(_TRIES):
        try:
            return _plan_once(store, portable, format, even_purged)
        except NotFound:  # deleted since it was read
            continue
    raise Busy("a conversation changes faster than it can be looked at")


def _plan_once(store: "Store", portable: PortableConversation, format: str, even_purged: bool) -> Plan:
    check_tree(portable)
    describe(store, portable)
    for said in portable.messages:
        _check_message(store, said.message)
    wanted = conversation_id(portable.id, format)
    roots = [said for said in portable.messages if said.parent is None]
    other = str(uuid.uuid5(_NAMESPACE, f"{wanted}/{digest(roots[0]) if roots else ''}"))
    for id in (wanted, other):
        if not store.backend.lookup(ids=[parse_conversation_id(id)]):
            if not even_purged and ledger.find(store.engine, [parse_conversation_id(id)]):
                return Plan(id, None, (), is_purged=True)
            notes = [WITHOUT_KEY] if is_key_taken(store, portable) else []
            return Plan(id, None, portable.messages, renamed=id != wanted, notes=tuple(notes))
        plan = _over(store, portable, id, extract(store.engine, parse_conversation_id(id)))
        if plan is not None:
            return replace(plan, renamed=id != wanted)
    raise InvalidArgument(f"conversation {wanted} is in the store with another beginning, twice")


WITHOUT_KEY = "its key belongs to another conversation, and it goes without"


def _over(store: "Store", portable: PortableConversation, id: str, there: Extracted) -> Plan | None:
    """Return the plan for an existing conversation, or None if it is a different one."""
    notes = _differences(there.portable, portable)
    same = laid_over(there.portable, portable, _retold(store, portable, there))
    if same is None:
        return None
    keys = {said.message.key for said in there.portable.messages} - {None}
    new = tuple(_new(portable, same, keys))
    if any(said.message.key in keys for said in portable.messages if said.id not in same):
        notes = (*notes, "keys of messages that are others' here were left out")
    return Plan(id, there, new, {own: there.numbers[one.id] for own, one in same.items()}, notes=notes)


def _retold(store: "Store", portable: PortableConversation, there: Extracted) -> dict[str, PortableMessage]:
    """Match a snapshot of a thread that the store has. Returns its messages up to the end of that thread, all mapped to
    the thread's last message. Returns an empty dict for any other conversation."""
    if portable.upto is None or not portable.setups:
        return {}
    ours = {id: id for id in there.numbers} | {
        store.engine.message_ids.id(number): id for id, number in there.numbers.items()
    }
    at = ours.get(portable.upto)
    if at is None:
        return {}
    try:
        told = [message.raw for message in told_again(there.portable, at, portable.setups[0])]
    except HithertoError:  # the thread cannot be converted to that provider, so the snapshot is not of it
        return {}
    coming = portable.messages[: len(told)]
    if [said.message.raw for said in coming] != told:
        return {}
    last = next(said for said in there.portable.messages if said.id == at)
    return {said.id: last for said in coming}


def _new(
    portable: PortableConversation, same: dict[str, PortableMessage], keys: set[str | None]
) -> Iterator[PortableMessage]:
    """Yield the messages that the store lacks. Below a message off the main flow they are off the main flow as well."""
    flows = {id: said.main for id, said in same.items()}
    for said in portable.messages:
        if said.id not in same:
            flows[said.id] = said.main and (said.parent is None or flows[said.parent])
            message = replace(said.message, key=None) if said.message.key in keys else said.message
            yield replace(said, main=flows[said.id], message=message)


def _differences(there: PortableConversation, coming: PortableConversation) -> tuple[str, ...]:
    """Describe the fields that differ in the file. The conversation in the store keeps its own values."""
    fields = [("title", there.title, coming.title), ("project", there.project, coming.project)]
    different = [name for name, here, others in fields if others and here != others]
    ours = {item.name: item.value for item in there.items}
    if any(ours.get(item.name, item.value) != item.value for item in coming.items):
        different.append("items")
    if coming.setup and _held_with(coming) != _held_with(there):
        different.append("setup")
    if coming.record not in (About(), there.record):
        different.append("what a record has more")
    theirs = {name: value for name, value in coming.metadata.items() if name not in _PROVENANCE}
    if any(there.metadata.get(name) != value for name, value in theirs.items()):
        different.append("metadata")
    return (f"it keeps what it has here: {', '.join(different)}",) if different else ()


def _held_with(portable: PortableConversation) -> tuple[str, str, str]:
    setup = portable.setups[portable.setup - 1] if portable.setup else Setup()
    return setup.provider, setup.model, setup.system_prompt


def admit(store: "Store", portable: PortableConversation, format: str, *, even_purged: bool = False) -> Admitted | Plan:
    """Import a conversation. A new one is written in one transaction; so are the messages added to an existing one. If
    it was purged here, the plan is returned, and nothing is written, unless `even_purged`."""
    portable = _clean(store, portable)
    for _ in range(_TRIES):
        plan = _plan(store, portable, format, even_purged)
        if plan.is_purged:
            return plan
        try:
            if plan.there is None:
                return _create(store, portable, plan, format)
            return _grown(store, portable, plan, plan.there, format)
        except (NotFound, Again):  # NotFound: deleted since it was read
            continue
    raise Busy(f"conversation {plan.id} changes faster than it can be loaded")


def conversation_id(id: str, format: str) -> str:
    """Return the UUID for a conversation's id in a file of this format."""
    try:
        return show_conversation_id(parse_conversation_id(id))
    except InvalidArgument:
        return str(uuid.uuid5(_NAMESPACE, f"{format}:{id}"))


# -- a new conversation


def _create(store: "Store", portable: PortableConversation, plan: Plan, format: str) -> Admitted:
    meta, setups = describe(store, portable)
    if plan.id != portable.id:
        meta.metadata.setdefault("imported_id", portable.id)
    if WITHOUT_KEY in plan.notes:
        meta = replace(meta, key=None)
    if format != OWN:  # a conversation in our own lines, or from another store, is as old as it was there
        meta = replace(meta, imported=store.engine.clock())
    head = next((n for n, said in enumerate(portable.messages) if said.id == portable.head), None)
    head = -1 if portable.head == "" else head

    def items(state: ConversationState, messages: list[Saved]) -> Iterable[ItemRow]:
        places = {said.id: store.engine.message_ids.number(m.id) for said, m in zip(plan.new, messages, strict=True)}
        for half in portable.partials:
            data = encode_partial(store.engine, half.messages, half.at_us or store.engine.clock(), complete=True)
            yield close_item(state.envelope, state.id, _half_key(store, places[half.parent], half), data)
        yield from record_items(state.envelope, state.id, portable.record)

    own = [Item(item.value, 0, item.name) for item in portable.items]
    if portable.expires_us is not None:
        store.engine.schedule.expect_expiry()
    made = create(
        store.engine,
        parse_conversation_id(plan.id),
        meta,
        setups,
        lambda state: _drafts(state, plan, format, min(meta.created, store.engine.clock())),
        More(head, portable.held, items, portable.expires_us, own),
        kind=portable.kind,
    )
    if made is None:
        raise Again
    state = made[0]
    return Admitted(handle_on(state), plan, {said.id: m.id for said, m in zip(plan.new, made[1], strict=True)})


def describe(store: "Store", portable: PortableConversation) -> tuple[Meta, list[Setup]]:
    """Return a conversation's metadata and setups. Raises an error if they cannot be stored."""
    limit = store.engine.max_write_bytes
    created = portable.created_us or next((said.created_us for said in portable.messages), 0)
    setups = [check_setup(s.provider, s.model, s.system_prompt, s.tools, limit, s.raw) for s in portable.setups]
    meta = Meta(
        check_text(portable.title, "the title", limit),
        portable.key,
        portable.project,
        check_strings(portable.metadata, "metadata"),
        len(setups),
        portable.setup,
        portable.setup_at,
        portable.opening,
        max(created, _EARLIEST) if created else 0,
        record=portable.record.details.number,
    )
    if (size := len(encode(meta))) > limit:
        raise PayloadTooLarge(size, limit)
    return meta, setups


def is_key_taken(store: "Store", portable: PortableConversation) -> bool:
    key = portable.key
    return key is not None and find_by_key(store.engine, portable.kind, key) is not None


# -- one that is there


def _grown(store: "Store", portable: PortableConversation, plan: Plan, there: Extracted, format: str) -> Admitted:
    """Add the new messages to an existing conversation. A missing hold or setup is written first, and then raises
    `Again`."""
    talk = store.conversation(plan.id)
    if portable.held and not talk.held:
        talk.hold()
        raise Again
    equip(store, portable, plan.new, there.portable, talk)
    ids = _add_messages(talk.state, portable, plan, there, format) if plan.new else {}
    _keep_halves(store, portable, plan, there, ids)
    _put_missing_items(talk, portable, there.portable)
    return Admitted(store.conversation(plan.id), plan, ids)


def _add_messages(
    state: ConversationState, portable: PortableConversation, plan: Plan, there: Extracted, format: str
) -> dict[str, str]:
    numbers = setup_numbers(portable, there.portable)
    new = tuple(replace(said, setup=numbers.get(said.setup, 0)) for said in plan.new)
    drafts = _drafts(state, replace(plan, new=new), format, 0)

    def choose(row: ConversationRow) -> Placement:
        if (row.next_seq, row.rewrites) != (there.next_seq, there.rewrites):
            raise Again
        return Placement(row.head)

    return {said.id: m.id for said, m in zip(plan.new, state.add(drafts, choose), strict=True)}


def setup_numbers(portable: PortableConversation, there: PortableConversation) -> dict[int, int]:
    """Map the file's setup numbers to the store's. Setups that the store lacks are left out."""
    ours = [encode(setup) for setup in there.setups]  # as bytes: NaN is not equal to itself, and 1 is equal to True
    theirs = [encode(setup) for setup in portable.setups]
    return {n: ours.index(setup) + 1 for n, setup in enumerate(theirs, 1) if setup in ours}


def equip(
    store: "Store",
    portable: PortableConversation,
    new: Sequence[PortableMessage],
    there: PortableConversation,
    talk: Conversation,
) -> None:
    """Add the setups of the new messages to a conversation, and set the one that is current after them. Raises `Again`
    if something was written."""
    numbers, count = setup_numbers(portable, there), len(there.setups)
    missing = [n for n in dict.fromkeys(said.setup for said in new if said.setup) if n not in numbers]
    numbers |= {n: count + place for place, n in enumerate(missing, 1)}
    last = next((numbers[said.setup] for said in reversed(new) if said.main and said.setup), there.setup)
    if not missing and last == there.setup:
        return
    state = talk.state

    def make(row: ConversationRow) -> Change:
        envelope = state.check(row)
        if open_meta(envelope, row).setups != count:
            raise Again
        force = {} if last == there.setup else {"setup": last, "setup_seq": row.next_seq}
        change = build_description_change(state, row, setups=count + len(missing), **force)
        items = [setup_item(envelope, state.id, numbers[n], portable.setups[n - 1]) for n in missing]
        return replace(change, put=(*change.put, *items))

    store.engine.change(state.id, make)
    raise Again


def _keep_halves(
    store: "Store", portable: PortableConversation, plan: Plan, there: Extracted, ids: dict[str, str]
) -> None:
    """Store incomplete answers, unless the store has them, or has an answer to the same message."""
    state = store.conversation(plan.id).state
    answered = {said.parent for said in (*there.portable.messages, *portable.messages)}
    ours = {number: id for id, number in there.numbers.items()}
    kept = {(half.parent, _digest(store, half.messages)) for half in there.portable.partials}
    for half in portable.partials:
        number = store.engine.message_ids.number(ids[half.parent]) if half.parent in ids else plan.known[half.parent]
        here = ours.get(number, half.parent)
        if not {half.parent, here} & answered and (here, _digest(store, half.messages)) not in kept:
            with suppress(NotFound):  # the message that it answers was deleted meanwhile
                keep(state, _half_key(store, number, half), half.messages, half.at_us or None, complete=True)


def _put_missing_items(talk: Conversation, portable: PortableConversation, there: PortableConversation) -> None:
    """Put the items that the conversation lacks. Those that it has stay as they are."""
    ours = {item.name for item in there.items}
    with talk.batch() as batch:
        for item in portable.items:
            if item.name not in ours:
                batch.items[item.name] = item.value


def _half_key(store: "Store", parent: int, half: PortablePartial) -> bytes:
    """Return the key of an item, derived from its content: two simultaneous imports of a file store it once."""
    return new_key(parent, _digest(store, half.messages))


def _digest(store: "Store", messages: Sequence[Message]) -> bytes:
    return hashlib.sha256(encode_partial(store.engine, messages, 0, complete=True)).digest()[:16]


# -- messages


def _drafts(state: ConversationState, plan: Plan, format: str, earliest: int) -> list[EncodedMessage]:
    """Encode the new messages. The parent of each is in the store or among them."""
    places = dict(plan.known)
    drafts: list[EncodedMessage] = []
    at, now, limit = earliest or state.row.active_at, state.engine.clock(), state.engine.max_write_bytes
    for number, said in enumerate(plan.new):
        at = min(max(said.created_us, at), now)
        spot = Placement(
            None if said.parent is None else places[said.parent],
            said.main,
            None if said.link is None else places.get(said.link),
        )
        drafts.append(encode_message(state, mark_origin(said, format, at), said.setup, spot, said.origin, at))
        check_size(drafts[-1:], limit)
        places[said.id] = ~number
    return drafts


def mark_origin(said: PortableMessage, format: str, at: int) -> Message:
    """Return the message with a note of its origin: its id in the file, and its time if the store could not keep it."""
    extra = said.message.extra
    came: dict[str, object] = {"id": said.id, "format": said.format or format}
    if said.created_us not in (0, at):
        came["at"] = said.created_us
    if said.continues is not None:
        came["continues"] = list(said.continues)
    if extra == {}:
        came["extra"] = "empty"
    if extra and IMPORTED in extra:
        came[IMPORTED] = extra[IMPORTED]
    return replace(said.message, extra={**(extra or {}), IMPORTED: came}, parent=None)


# -- what comes may be anything


def check_tree(portable: PortableConversation) -> None:
    """Raise `InvalidArgument` if the messages do not form a valid tree. The error says why."""
    seen: dict[str, PortableMessage] = {}
    keys: set[str] = set()
    for number, said in enumerate(portable.messages, 1):  # errors name messages by position, without content
        _check_place(said, seen, f"message {number}")
        if not 0 <= said.setup <= len(portable.setups):
            raise InvalidArgument(f"message {number} was made with a setup that is missing")
        if said.message.key is not None and said.message.key in keys:
            raise InvalidArgument(f"message {number} has the key of another")
        keys |= {said.message.key} if said.message.key is not None else set()
        seen[said.id] = said
    if portable.head and not (portable.head in seen and seen[portable.head].main):
        raise InvalidArgument("the head is not a message of the main flow")
    check_kind(portable.kind)
    for item in portable.items:
        key_of(item.name)
    if len({item.name for item in portable.items}) < len(portable.items):
        raise InvalidArgument("two items have the same name")
    for half in portable.partials:
        if half.parent not in seen:
            raise InvalidArgument("what had come of an answer is to a message that is missing")
        for message in half.messages:
            check(message)
    if not 0 <= portable.setup <= len(portable.setups) or not 0 <= portable.setup_at <= len(portable.messages):
        raise InvalidArgument("the setup in force is missing")
    for what, text in (("key", portable.key), ("project", portable.project), ("opening", portable.opening)):
        if text is not None and not (isinstance(text, str) and encodable(text)):
            raise InvalidArgument(f"the {what} of a conversation is text")


def _check_place(said: PortableMessage, seen: dict[str, PortableMessage], name: str) -> None:
    if not said.id or said.id in seen:
        raise InvalidArgument(f"{name} has the id of another" if said.id else f"{name} has no id")
    above = None if said.parent is None else seen.get(said.parent)
    if said.parent is not None and above is None:
        raise InvalidArgument(f"{name} answers one that does not stand before it")
    if said.link is not None and (said.parent is not None or said.link not in seen):
        raise InvalidArgument(f"{name} is linked to one that does not stand before it, or is no root")
    if said.main and above is not None and not above.main:
        raise InvalidArgument(f"{name} is on the main flow below one that is not")


def _check_message(store: "Store", message: Message) -> None:
    """Check a message as far as that is possible before it is written."""
    check(message)
    size = sum(len(block.content) for block in message.blocks if isinstance(block.content, str))
    if size > store.engine.max_write_bytes:
        raise PayloadTooLarge(size, store.engine.max_write_bytes)
