"""Saving messages by the narrow protocol: each below its own parent, in one transaction.

A message that names no parent goes below the one before it in its flow, which is the main one or the trace of a
sub-agent's run.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..backend import Change, ConversationRow, MessageRow
from ..errors import Busy, InvalidArgument, NotFound
from ..ids import new_conversation_id
from ..model import Message, Saved, Setup, as_messages, id_of, trace_of
from .bodies import Meta
from .creating import create
from .state import ConversationState, EncodedMessage, Placement, check_size, clean_together, encode_message

if TYPE_CHECKING:
    from .engine import Engine


def save(
    engine: "Engine",
    messages: Iterable[Message],
    parent: str | Saved | None,
    state: ConversationState | None,
    setup_at_head: Callable[[ConversationState], int],
) -> list[str]:
    """Save messages in one transaction; return their ids, in order. Without a conversation they go to that of their
    parents, or start a new one. `setup_at_head` tells which setup is in force at the head of a conversation."""
    given: list[Any] = as_messages(messages)  # `encode_message` checks what they are
    if not given:
        raise InvalidArgument("there is no message to save", hint="give at least one message")
    wanted = [_id(parent), *(_parent(message) for message in given)]
    given = list(clean_together(engine, given))
    parents = {id: engine.message_row(id) for id in wanted if id is not None}
    state = _check_parents(engine, state, list(parents.values()))
    if state is None:

        def make(state: ConversationState) -> list[EncodedMessage]:
            spots = _place_in_flows(given, [None] * len(given), head=Placement(None))
            drafts = [
                encode_message(state, message, 0, spot, is_clean=True)
                for message, spot in zip(given, spots, strict=True)
            ]
            check_size(drafts, engine.max_write_bytes)
            return drafts

        made = create(engine, new_conversation_id(), Meta(), [Setup()], make)
        if made is None:
            raise Busy("the conversation could not be started")
        return [message.id for message in made[1]]
    seen = state.row.rewrites  # before we look at the parents again, so that a deletion meanwhile is noticed
    parents = {id: engine.message_row(id) for id in parents}
    bodies = {id: engine.read_body(row, state)[1] for id, row in parents.items()}
    setup = bodies[wanted[0]].setup if wanted[0] is not None else setup_at_head(state)
    above, *below = [None if id is None else (bodies[id].label, _placement_below(parents[id])) for id in wanted]
    below[0] = below[0] or above
    drafts = []
    for message, id in zip(given, wanted[1:], strict=True):
        setup = setup if id is None else bodies[id].setup
        drafts.append(encode_message(state, message, setup, is_clean=True))
    check_size(drafts, engine.max_write_bytes)

    def prepare(drafts: Sequence[EncodedMessage], row: ConversationRow) -> tuple[Change | None, list[Saved]]:
        if row.rewrites != seen:
            for id in parents:
                engine.message_row(id)  # NotFound if it was deleted meanwhile
        spots = _place_in_flows(given, below, head=Placement(row.head))
        return state.prepare(row, [replace(d, spot=s) for d, s in zip(drafts, spots, strict=True)], spots[0])

    with engine.telemetry.span("append"):
        return [message.id for message in state.write(drafts, prepare)]


def _check_parents(
    engine: "Engine", state: ConversationState | None, parents: Sequence[MessageRow]
) -> ConversationState | None:
    """Return the conversation to save to, None for a new one. Parents in another conversation are refused."""
    if state is None and parents:
        state = engine.state_of(engine.read_row(parents[0].conversation))
    foreign = [engine.message_ids.id(row.number) for row in parents if state is None or row.conversation != state.id]
    if foreign:
        raise NotFound("message in this conversation", foreign)
    return state


def _parent(message: Message) -> str | None:
    """The parent a message asks for. A saved message is taken as a value: its old place does not count."""
    return None if isinstance(message, Saved) or not isinstance(message, Message) else message.parent


def _placement_below(parent: MessageRow) -> Placement:
    return Placement(parent.number, bool(parent.main))


def _place_in_flows(
    messages: Sequence[Message], below: Sequence[tuple[str | None, Placement] | None], *, head: Placement
) -> list[Placement]:
    """Where messages of one write go. `below` has, for each, the label of the parent that it names, and the place below
    that; `head` is the place below the head.

    A message that names no parent goes below the one before it in its flow: the main one, or the trace of a run of a
    sub-agent. A trace begins with a root of its own, off the main flow, linked to what it would have gone below."""
    last: dict[str | None, Placement] = {None: head}
    at = head  # the place below what came last, in any flow
    spots: list[Placement] = []
    for n, (message, named) in enumerate(zip(messages, below, strict=True)):
        flow = trace_of(getattr(message, "label", None))  # `check` refuses other values later
        if named is not None:
            at = named[1]
            last[trace_of(named[0])] = at
        if flow is not None and (flow not in last if named is None else trace_of(named[0]) != flow):
            spot = Placement(None, main=False, link=at.parent)
        else:
            spot = last[flow] if named is None else named[1]
        spots.append(spot)
        at = last[flow] = Placement(~n, spot.main)
    return spots


def _id(message: "str | Saved | None") -> str | None:
    return None if message is None else id_of(message)
