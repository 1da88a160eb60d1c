"""Editing what was said: amending a message, clearing a conversation, copying a whole tree.

An amended message keeps its place, its time and its key. Its old content leaves the files as that of a deleted message
does, and its revision rises. A cleared conversation keeps its id, its key, its description and its setups. A copy has
all branches under ids of its own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..backend import Change, ConversationRow, MessageRow, Tag
from ..errors import AlreadyExists, Damaged, InvalidArgument, InvalidMessage
from ..ids import new_conversation_id
from ..model import Message, Saved
from . import items
from .bodies import Body
from .committer import report_stored
from .creating import More, create
from .deleting import FORGET_SECONDS, deletion
from .packs import Reader, Rewrite
from .recovery import PARTIAL_PREFIX
from .setups import open_setups
from .signals import RowChanged
from .state import ConversationState, EncodedMessage, Placement, check_size, encode_message, label_fields, label_tags

if TYPE_CHECKING:
    from .engine import Engine


def amend(state: ConversationState, number: int, message: Message) -> Saved:
    """Replace the content of a message, and return it as it is then."""
    engine = state.engine
    if not isinstance(message, Message):
        raise InvalidMessage(f"a {type(message).__name__} where a Message is wanted", hint="use Message.user(…)")
    _, before = engine.read_body(_own_row(engine, state, number), state)
    if message.key not in (None, before.key):
        raise InvalidArgument("an amended message keeps its key", hint="leave the key out")
    if engine.redactor is not None:
        message = engine.redactor.message(message)
    named = replace(message, key=before.key)
    drafts = [encode_message(state, named, before.setup, origin=before.origin, is_clean=True)]
    check_size(drafts, engine.max_write_bytes)
    state.write(drafts, lambda drafts, _: (_build_amendment(state, number, drafts[0]), None))
    engine.search.forget(FORGET_SECONDS, [state.id])
    return engine.read_message(_own_row(engine, state, number), state)


def _own_row(engine: "Engine", state: ConversationState, number: int) -> MessageRow:
    row = engine.message_row(engine.message_ids.id(number))
    if row.conversation != state.id:
        raise InvalidArgument("the message is in another conversation", hint="amend it there")
    return row


def _build_amendment(state: ConversationState, number: int, draft: EncodedMessage) -> Change:
    """Return the change that puts the draft in the place of a message, prepared from the stored row."""
    engine = state.engine
    while True:
        row = state.read_stored_row()
        try:
            old, body = engine.read_body(_own_row(engine, state, number), state)
            return _replace_content(state, row, old, body, draft)
        except RowChanged:
            continue
        except Damaged:
            if engine.read_row(state.id).token == row.token:
                raise


def _replace_content(
    state: ConversationState, row: ConversationRow, old: MessageRow, body: Body, draft: EncodedMessage
) -> Change:
    engine, message = state.engine, draft.message
    rewrite = Rewrite(engine, row)
    rewrite.amend(old, draft.data, role=message.role)
    kept = {attached.name for attached in draft.sources}
    gone = tuple({(old.number, attached.name) for attached in body.attached if attached.name not in kept})
    tags: Sequence[Tag] = ()
    untags: list[Tag] = []
    if message.label != body.label:
        tags = () if message.label is None else label_tags(engine.codec, message.label, old.number)
        fields = () if body.label is None else label_fields(body.label)
        untags = [Tag(name, old.number) for field in fields for name in engine.codec.tags(*field)]
    return replace(
        rewrite.change(),
        attach=tuple((old.number, name) for name in kept),
        detach=gone,
        tag=tuple(tags),
        untag=tuple(untags),
    )


def clear(state: ConversationState) -> None:
    """Delete all messages, partial answers and items of a conversation."""
    engine = state.engine

    def make(row: ConversationRow) -> Change | None:
        went = list(items.stored(engine, row.id))
        gone = (*(item.key for item in engine.backend.items(row.id, PARTIAL_PREFIX)), *(item.key for item in went))
        numbers = {m.number for m in engine.read_headers(row.id)}
        if not numbers and not gone:
            return None
        envelope = state.check(row)
        change = deletion(engine, row.id, numbers, recursive=True)
        if change.expect != row.token or change.row is None:
            raise RowChanged
        after = items.exchange(envelope, change.row, (), went, -items.measure(envelope, went))
        return replace(change, row=after, unput=tuple({*change.unput, *gone}))

    engine.change(state.id, make, tell=report_stored)
    engine.quota.count_again()
    engine.search.forget(FORGET_SECONDS, [state.id])


def copy_to(source: ConversationState, key: str, kind: str, title: str | None) -> ConversationState:
    """Create a conversation of this key with a copy of all messages, setups and items; `AlreadyExists` if there is one.

    The details of a record, a hold, an expiry and the marks of recorders stay with the source."""
    engine = source.engine
    source.refresh()
    rows = engine.read_headers(source.id)
    reader = Reader(engine)
    places = {row.number: n for n, row in enumerate(rows)}
    setups = open_setups(source)
    kept = list(items.scan(source))

    def make(state: ConversationState) -> list[EncodedMessage]:
        drafts = []
        for row in rows:
            message = engine.read_message(row, source, lazy=True, reader=reader)
            setup = engine.read_body(row, source, reader)[1].setup
            above = None if row.parent is None else ~places[row.parent]
            link = ~places[row.link] if row.link in places else None
            spot = Placement(above, bool(row.main), link)
            origin = message.origin or f"{message.conversation}/{message.id}"
            drafts.append(encode_message(state, message, setup, spot, origin))
        return drafts

    meta = replace(source.meta, key=key, opening=None, created=0, checkpoints=(), record=0)
    meta = replace(meta, setup_seq=sum(row.seq < meta.setup_seq for row in rows))
    if title is not None:
        meta = replace(meta, title=title)
    head_at = -1 if source.row.head is None else places.get(source.row.head)
    more = More(head_at=head_at, user_items=kept)
    made = create(engine, new_conversation_id(), meta, setups, make, more, kind=kind)
    if made is None:
        raise AlreadyExists("a conversation with this key", key)
    return made[0]
