"""Describing: what is said of a conversation beside its messages.

Its title and metadata, the labels of its messages, its hold, its head, and the setup that it goes on with. Each of
these is a change of the stored row, prepared again if another writer was faster.
"""

from msgspec.structs import replace

from ..backend import Change, ConversationRow, Tag
from ..errors import Damaged, PayloadTooLarge
from ..model import Setup, text_size
from .appending import HandlePosition
from .bodies import encode, open_meta
from .packs import Rewrite
from .setups import SETUP, setup_item, setup_key
from .state import ConversationState, build_description_change, build_row_change, label_fields, label_tags


def describe(state: ConversationState, **fields: object) -> None:
    """Set these fields of the description."""

    def make(row: ConversationRow) -> Change | None:
        meta = open_meta(state.check(row), row)
        same = all(getattr(meta, name) == value for name, value in fields.items())
        return None if same else build_description_change(state, row, **fields)

    state.engine.change(state.id, make)


def set_label(position: HandlePosition, number: int, label: str | None) -> None:
    """Label a message, or take its label away with None."""
    state, engine = position.state, position.engine

    def make(row: ConversationRow) -> Change | None:
        old, body = engine.read_body(position.own_row(engine.message_ids.id(number)), state)
        if body.label == label:
            return None
        data = encode(replace(body, label=label))
        if (
            len(data) > engine.max_write_bytes
            and text_size(engine.read_message(old, state, lazy=True), len(data)) > engine.max_write_bytes
        ):
            raise PayloadTooLarge(len(data), engine.max_write_bytes)
        rewrite = Rewrite(engine, row)
        rewrite.amend(old, data)
        tags = [] if label is None else label_tags(engine.codec, label, number)
        before = [] if body.label is None else label_fields(body.label)
        gone = [Tag(name, number) for field, value in before for name in engine.codec.tags(field, value)]
        return replace(rewrite.change(), tag=tuple(tags), untag=tuple(gone))

    engine.change(state.id, make)


def set_held(state: ConversationState, held: bool) -> None:
    """Hold a conversation, or release it."""

    def make(row: ConversationRow) -> Change | None:
        state.engine.check_row(row)
        return None if row.held == held else build_row_change(state, row, held=held)

    state.engine.change(state.id, make)


def move_head(position: HandlePosition, undone: set[int], target: int | None) -> None:
    """Let the head be the target, if it is one of the messages that are undone."""
    state, names = position.state, position.engine.message_ids

    def make(row: ConversationRow) -> Change | None:
        if row.head not in undone:
            return None
        if target is not None:
            position.own_row(names.id(target))  # NotFound if it was deleted meanwhile
        return build_row_change(state, row, head=target)

    position.engine.change(state.id, make)


def read_setup(state: ConversationState, number: int, message: int | None) -> Setup:
    """Return a setup by its number. One that cannot be read is noted in quarantine at the message that needed it."""
    try:
        return _read_setup_now(state, number)
    except Damaged:
        return state.engine.reread(state, lambda own: _read_setup_now(own, number), message)


def _read_setup_now(state: ConversationState, number: int) -> Setup:
    items = state.engine.backend.items(state.id, setup_key(number))
    if not items:
        raise Damaged(f"a setup of conversation {state.name} is missing")
    return SETUP.open(state.envelope, items[0])


def setup_at(position: HandlePosition) -> Setup:
    """Return the setup that is in force at a position."""
    number = position.setup_number()
    return Setup() if number == 0 else read_setup(position.state, number, position.at)


def configure(position: HandlePosition, new: Setup, *, is_clean: bool = False) -> None:
    """Let a setup be in force at a position, from the next message on. The setup was checked. `is_clean`: it was
    cleaned with the redactor of the store."""
    state, engine = position.state, position.engine
    if engine.redactor is not None and not is_clean:
        new = engine.redactor.setup(new)
    number, data = position.setup_number(), encode(new)
    if (number, data) == position.compared_setup:
        return
    if new == setup_at(position):
        position.compared_setup = number, data
        return
    numbers: list[int] = []

    def make(row: ConversationRow) -> Change:
        envelope = state.check(row)
        number = open_meta(envelope, row).setups + 1
        ahead = position.main and position.at == row.head  # elsewhere it counts for what is said below this handle
        fields = {"setup": number, "setup_seq": row.next_seq} if ahead else {}
        numbers.append(number)
        change = build_description_change(state, row, setups=number, **fields)
        return replace(change, put=(*change.put, setup_item(envelope, state.id, number, new)))

    engine.change(state.id, make)
    position.setup = numbers[-1]
    position.compared_setup = numbers[-1], data
