"""Putting conversations into a store: once, whatever file they come from, and however often.

A conversation keeps its id if that is a UUID; any other becomes one, always the same. If the store has a conversation
of that id already, the two are laid over each other from the root: a message that is there is not added again, and
what is new goes below what it answers. So loading a file twice adds nothing the second time, and loading one that has
grown adds what has come. Two that do not even begin alike only happen to have the same id: the one that comes gets
another, always the same again, and the report says so.

Messages get ids of the store's own, as all do; the ones they came with are kept with them, in `extra["imported"]`.
"""

import hashlib
import uuid
from typing import TYPE_CHECKING

from msgspec import Struct, msgpack
from msgspec.structs import replace

from .._content import Meta
from .._desk import Desk, Draft, Spot, check_size, draft
from .._recovery import keep, new_key
from ..attachment import Attachment
from ..conversation import Conversation, checked_setup, checked_text
from ..errors import Busy, InvalidArgument
from ..ids import parse_conversation_id, show_conversation_id
from ..model import Message, check, check_strings, encodable
from ._shape import Portable, Said
from ._taking import IMPORTED, taken

if TYPE_CHECKING:
    from ..backend import ConversationRow
    from ..store import Store

_NAMESPACE = uuid.UUID("6f0e4cf4-9c1f-5c3c-9d43-0a4c3f0f6d5e")  # of the UUIDs that other ids become; never changed
_EARLIEST = 1 << 41  # microseconds: some weeks into 1970, so that there is a time before it
_TRIES = 100
_PROVENANCE = ("imported_id", "snapshot")  # metadata that says where a conversation came from


class Plan(Struct, frozen=True):
    """What is to be done with a conversation that comes."""

    id: str  # of the conversation here
    there: bool  # is it in the store already?
    new: tuple[Said, ...]  # the messages to be added
    known: dict[str, int]  # the numbers of messages that are there, by the ids they come with
    renamed: bool = False  # its own id is that of another conversation
    rewrites: int = 0  # of the conversation that is there, when we looked


class Admitted(Struct, frozen=True):
    """What was done."""

    conversation: Conversation
    plan: Plan
    ids: dict[str, str]  # of the messages that were added: the id they came with, and ours
    key_taken: bool = False  # its key belongs to another conversation, and it went without
    differs: str = ""  # what is said otherwise of it here, and stays so


def planned(store: "Store", portable: Portable, format: str) -> Plan:
    """What would be done. Nothing is written."""
    check_tree(portable)
    wanted = conversation_id(portable.id, format)
    roots = [said for said in portable.messages if said.parent is None]
    other = str(uuid.uuid5(_NAMESPACE, f"{wanted}/{_digest(roots[0]) if roots else ''}"))
    for id in (wanted, other):
        if not store.backend.lookup(ids=[parse_conversation_id(id)]):
            return Plan(id, False, portable.messages, {}, id != wanted)
        there = taken(store, parse_conversation_id(id))
        same = _laid_over(there.portable, portable)
        if same is not None:
            known = {own: there.numbers[other.id] for own, other in same.items()}
            return Plan(id, True, _new(portable, same), known, id != wanted, there.rewrites)
    raise InvalidArgument(f"conversation {wanted} is in the store with another beginning, twice")


def admit(store: "Store", portable: Portable, format: str) -> Admitted:
    """Put it into the store, in one transaction."""
    key_taken = False
    for _ in range(_TRIES):
        plan = planned(store, portable, format)
        if plan.there:
            return _grown(store, portable, plan, format)
        made = _made(store, portable, plan, format)
        if made is not None:
            return replace(made, key_taken=key_taken)
        if portable.key is not None and not store.backend.lookup(ids=[parse_conversation_id(plan.id)]):
            portable, key_taken = replace(portable, key=None), True
    raise Busy(f"conversation {plan.id} is made and removed by others at the same time")


def conversation_id(id: str, format: str) -> str:
    """The UUID of a conversation that is called so in a file of this format."""
    try:
        return show_conversation_id(parse_conversation_id(id))
    except InvalidArgument:
        return str(uuid.uuid5(_NAMESPACE, f"{format}:{id}"))


# -- what is there already


def _laid_over(there: Portable, portable: Portable) -> dict[str, Said] | None:
    """The messages that are there already, by the ids they come with; None if the two begin differently."""
    below: dict[tuple[str | None, str], list[Said]] = {}  # what stands below a message, by what it is like
    for said in there.messages:
        below.setdefault((said.parent, _digest(said)), []).append(said)
    found: dict[str, Said] = {}
    for said in portable.messages:
        if said.parent is not None and said.parent not in found:
            continue
        above = None if said.parent is None else found[said.parent].id
        alike = below.get((above, _digest(said)))
        if alike:
            chosen = next((one for one in alike if one.id == said.id), alike[0])
            alike.remove(chosen)
            found[said.id] = chosen
    return None if portable.messages and there.messages and not found else found


def _new(portable: Portable, same: dict[str, Said]) -> tuple[Said, ...]:
    """What is not there yet. Below what is off the main flow there, it is off the main flow as well."""
    flows = {id: said.main for id, said in same.items()}
    new: list[Said] = []
    for said in portable.messages:
        if said.id not in same:
            flows[said.id] = said.main and (said.parent is None or flows[said.parent])
            new.append(replace(said, main=flows[said.id]))
    return tuple(new)


def _likeness(said: Said) -> object:
    """What has to be equal for two messages in the same place to be one."""
    m = said.message
    return m.role, [(b.type, b.id, _likeness_of(b.content)) for b in m.blocks]


def _likeness_of(content: str | bytes | Attachment) -> object:
    if isinstance(content, str):
        return content
    return content.size if isinstance(content, Attachment) else len(content)


def _digest(said: Said) -> str:
    return hashlib.sha256(msgpack.encode(_likeness(said))).hexdigest()


# -- writing


def _made(store: "Store", portable: Portable, plan: Plan, format: str) -> Admitted | None:
    limit = store._max_write_bytes
    setups = [checked_setup(s.provider, s.model, s.system_prompt, s.tools, limit, s.raw) for s in portable.setups]
    metadata = dict(portable.metadata)
    if plan.id != portable.id:
        metadata.setdefault("imported_id", portable.id)
    created = portable.created_us or next((said.created_us for said in portable.messages), 0)
    meta = Meta(
        checked_text(portable.title, "the title", limit),
        portable.key,
        portable.project,
        check_strings(metadata, "metadata"),
        len(setups),
        portable.setup,
        portable.setup_at,
        portable.opening,
        min(max(created, _EARLIEST), store._clock()) if created else 0,
    )
    head = next((n for n, said in enumerate(portable.messages) if said.id == portable.head), None)
    made = store._create(
        parse_conversation_id(plan.id),
        meta,
        setups,
        lambda desk: _drafts(desk, plan, format, meta.created),
        head,
    )
    if made is None:
        return None
    talk, messages = made
    ids = {said.id: m.id for said, m in zip(plan.new, messages, strict=True)}
    for half in portable.partials:
        number = store._names.number(ids[half.parent])
        keep(talk._desk, new_key(number), half.messages, min(half.at_us or store._clock(), store._clock()))
    if portable.held:
        talk.hold()
    return Admitted(talk, plan, ids)


def _grown(store: "Store", portable: Portable, plan: Plan, format: str) -> Admitted:
    """Add what is new to a conversation that is there. It keeps its description; but a hold is never lost."""
    talk = store.conversation(plan.id)
    if portable.held and not talk.held:
        talk.hold()
    differs = _differences(talk, portable)
    if not plan.new:
        return Admitted(talk, plan, {}, differs=differs)
    setup = talk._setup_number()  # those that it comes with are not those that are here
    new = tuple(replace(said, setup=setup) for said in plan.new)
    drafts = _drafts(talk._desk, replace(plan, new=new), format, 0)

    def choose(row: "ConversationRow") -> Spot:
        if row.rewrites != plan.rewrites:
            store.get([store._names.id(n) for n in plan.known.values()], attachments="lazy")  # is any one deleted?
        return Spot(row.head)

    messages = talk._desk.add(drafts, choose)
    ids = {said.id: m.id for said, m in zip(plan.new, messages, strict=True)}
    return Admitted(store.conversation(plan.id), plan, ids, differs=differs)


def _differences(talk: Conversation, portable: Portable) -> str:
    """What the file says of a conversation and the store does not, in words."""
    ours = {name: value for name, value in talk.metadata.items() if name not in _PROVENANCE}
    theirs = {name: value for name, value in portable.metadata.items() if name not in _PROVENANCE}
    found = [("title", talk.title, portable.title), ("project", talk.project, portable.project)]
    different = [name for name, here, there in found if there and here != there]
    return ", ".join(different + (["metadata"] if any(ours.get(k) != v for k, v in theirs.items()) else []))


def _drafts(desk: Desk, plan: Plan, format: str, earliest: int) -> list[Draft]:
    """The new messages as they are to be written: each below what it answers, which may be there or come with it."""
    places = dict(plan.known)
    drafts: list[Draft] = []
    at, now, limit = earliest or desk.row.active_at, desk.store._clock(), desk.store._max_write_bytes
    for number, said in enumerate(plan.new):
        then, at = said.created_us, min(max(said.created_us, at), now)
        message = _marked(said, format, at if then in (0, at) else None)
        spot = Spot(
            None if said.parent is None else places[said.parent],
            said.main,
            None if said.link is None else places.get(said.link),
        )
        drafts.append(draft(desk, message, said.setup, spot, said.origin, at))
        check_size(drafts[-1:], limit)
        places[said.id] = ~number
    return drafts


def _marked(said: Said, format: str, at: int | None) -> Message:
    """The message with a note of where it comes from: its id there, and its time where it could not be kept."""
    extra = said.message.extra
    came: dict[str, object] = {"id": said.id, "format": said.format or format}
    if at is None:
        came["at"] = said.created_us
    if extra == {}:
        came["extra"] = "empty"
    if extra and IMPORTED in extra:
        came[IMPORTED] = extra[IMPORTED]
    return replace(said.message, extra={**(extra or {}), IMPORTED: came}, parent=None)


# -- what comes may be anything


def check_tree(portable: Portable) -> None:
    """Refuse what is no tree of ours: `InvalidArgument` says what is wrong with it."""
    seen: dict[str, Said] = {}
    keys: set[str] = set()
    for said in portable.messages:
        _check_place(said, seen)
        if not 0 <= said.setup <= len(portable.setups):
            raise InvalidArgument(f"message {said.id:.40} was made with a setup that is missing")
        if said.message.key is not None and said.message.key in keys:
            raise InvalidArgument(f"message {said.id:.40} has the key of another")
        keys |= {said.message.key} if said.message.key is not None else set()
        seen[said.id] = said
    if portable.head is not None and not (portable.head in seen and seen[portable.head].main):
        raise InvalidArgument("the head is not a message of the main flow")
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


def _check_place(said: Said, seen: dict[str, Said]) -> None:
    name = f"{said.id:.40}"
    if not said.id or said.id in seen:
        raise InvalidArgument(f"message {name} is there twice" if said.id else "a message has no id")
    above = None if said.parent is None else seen.get(said.parent)
    if said.parent is not None and above is None:
        raise InvalidArgument(f"message {name} answers one that does not stand before it")
    if said.link is not None and (said.parent is not None or said.link not in seen):
        raise InvalidArgument(f"message {name} is linked to one that does not stand before it, or is no root")
    if said.main and above is not None and not above.main:
        raise InvalidArgument(f"message {name} is on the main flow below one that is not")
