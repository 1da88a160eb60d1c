"""Answers that have not arrived whole: kept beside the tree, offered when somebody comes back.

While an answer streams in, what has come of it is kept every second or so, as an item of the conversation. It is no
message: nothing can stand below it, no thread shows it, no search finds it. The commit that adds the whole answer
removes the item. If that commit never comes, because somebody pulled the plug or pressed Ctrl+C, the item stays, and
is offered as a `Partial`: accepted, it becomes a message that is marked as interrupted; discarded, it is gone.

An item's key names the message that it answers, so that deleting the message takes the item along.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, ValidationError, msgpack
from msgspec.structs import replace

from ._content import Body, body_of, item_place
from ._desk import Desk
from .backend import Change, ConversationRow, ItemRow
from .errors import Damaged, InvalidArgument, InvalidMessage, NotFound, PayloadTooLarge
from .ids import new_token
from .model import Message, check, to_datetime
from .vault import Envelope, next_row

if TYPE_CHECKING:
    from .store import Store

PARTIAL = b"partial/"


class Partial(Struct, frozen=True):
    """What had come of an answer when it stopped."""

    id: str
    parent: str  # the message that it answers
    messages: tuple[Message, ...]
    at: datetime | None  # when it was kept
    problem: str | None = None  # why it could not be read; then it has no messages, and the tree is what there is

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.messages)


class _Said(Struct, frozen=True, array_like=True):
    role: str
    body: Body


class _Kept(Struct, frozen=True, array_like=True):
    at: int
    messages: tuple[_Said, ...]


_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(_Kept).decode


def new_key(parent: int, token: bytes | None = None) -> bytes:
    """The key of an item for an answer to this message: several may be on their way at once."""
    return PARTIAL + b"%016x/" % parent + (token or new_token()).hex().encode()


def keep(desk: Desk, key: bytes, messages: Sequence[Message], at: int | None = None) -> None:
    """Keep what has come so far, in place of what was kept before."""
    store = desk.store
    data = encoded(store, messages, store._clock() if at is None else at)

    def make(row: ConversationRow) -> Change:
        envelope, parent = desk.check(row), _parent(key)
        if not store.backend.messages(numbers=[parent], bodies=False):
            raise NotFound("message", [store._names.id(parent)])
        return Change(row.id, row.token, next_row(envelope, row, (), ()), put=(closed(envelope, desk.id, key, data),))

    store._change(desk.id, make)


def encoded(store: "Store", messages: Sequence[Message], at: int) -> bytes:
    """What is kept of an answer, as bytes."""
    for message in messages:
        check(message)
    try:
        data = _encode(_Kept(at, tuple(_Said(m.role, body_of(m, 0)) for m in messages)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"this cannot be kept as it is: {error}") from None
    if len(data) > store._max_write_bytes:
        raise PayloadTooLarge(len(data), store._max_write_bytes)
    return data


def closed(envelope: Envelope, conversation: bytes, key: bytes, data: bytes) -> ItemRow:
    return ItemRow(conversation, key, 0, envelope.close(item_place(conversation, key), data))


def drop(desk: Desk, key: bytes) -> None:
    """Let go of what was kept under this key; nothing happens if there is nothing."""

    def make(row: ConversationRow) -> Change | None:
        if not desk.store.backend.items(desk.id, key):
            return None
        return Change(row.id, row.token, next_row(desk.check(row), row, (), ()), unput=(key,))

    desk.store._change(desk.id, make)


def found(desk: Desk) -> list[Partial]:
    """What is offered, the newest first. What cannot be read is read again, by the row as it then is, and if that fails
    too it is offered as something to let go of."""
    partials = []
    for item in desk.store.backend.items(desk.id, PARTIAL):
        try:
            partials.append(_opened(desk.store, desk.envelope, item))
        except Damaged:
            partials += _again(desk, item.key)
    return sorted(partials, key=lambda p: (p.at is not None, p.at), reverse=True)


def _again(desk: Desk, key: bytes) -> list[Partial]:
    """An item of a conversation that may have another key by now."""
    store = desk.store
    envelope = store._codec.envelope(store._fresh_row(desk.id))
    for item in store.backend.items(desk.id, key):
        try:
            return [_opened(store, envelope, item)]
        except Damaged as error:
            return [Partial(key.decode(), store._names.id(_parent(key)), (), None, str(error))]
    return []


def _opened(store: "Store", envelope: Envelope, item: ItemRow) -> Partial:
    kept = open_partial(envelope, item)
    messages = tuple(_message(said) for said in kept.messages)
    return Partial(item.key.decode(), store._names.id(_parent(item.key)), messages, to_datetime(kept.at))


def open_partial(envelope: Envelope, item: ItemRow) -> _Kept:
    """The content of an item, or `Damaged`."""
    data = envelope.open(item_place(item.conversation, item.key), item.body)
    try:
        _parent(item.key)
        return _decode(data)
    except (DecodeError, ValidationError, ValueError) as error:
        raise Damaged(f"an unfinished answer cannot be read: {error}") from None


def _message(said: _Said) -> Message:
    b = said.body
    return Message(said.role, b.blocks, b.label, b.key, b.tool_result_error, b.extra, b.raw, b.usage, b.privacy)


def key_of(partial: object) -> bytes:
    """The key of what is offered; nothing else can be taken away by it."""
    if not isinstance(partial, Partial):
        raise InvalidArgument(f"a {type(partial).__name__} where a Partial is wanted", hint="talk.partials()")
    key = partial.id.encode(errors="replace") if isinstance(partial.id, str) else b""
    if not key.startswith(PARTIAL):
        raise InvalidArgument("this is nothing that was kept of an answer", hint="talk.partials()")
    return key


def interrupted(message: Message) -> Message:
    """The message, marked as one that was cut off."""
    return replace(message, extra={**(message.extra or {}), "interrupted": True})


def below(store: "Store", conversation: bytes, doomed: Collection[int]) -> tuple[bytes, ...]:
    """The keys of what was kept of answers to these messages."""
    keys = [item.key for item in store.backend.items(conversation, PARTIAL)]
    return tuple(key for key in keys if _parent(key) in doomed)


def _parent(key: bytes) -> int:
    try:
        return int(key[len(PARTIAL) : len(PARTIAL) + 16], 16)
    except ValueError:
        raise Damaged("an unfinished answer answers nothing") from None
