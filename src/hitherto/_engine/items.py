"""Items of users: named values beside the messages of a conversation.

An item has a name, bytes and a revision. Names are stored in clear, because a scan by prefix needs their order; values
are closed like the content of messages. The revision of an item is the version that its conversation got with the
write. So it rises with every write, also when an item was removed and made again: a writer that names an old revision
is always told.

A write is prepared from the stored row of the conversation and committed against its token. So the items that were
compared are still the same when the commit is done, and messages of the same commit come with them or not at all. The
values count for the size of their conversation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from .._sealing.codec import Envelope, next_row
from ..backend import Change, ConversationRow, ItemRow
from ..errors import Conflict, Damaged, InvalidArgument, NotFound, PayloadTooLarge
from .committer import report_stored
from .typed_items import close_item, open_item

if TYPE_CHECKING:
    from .context import StoreContext
    from .engine import Engine
    from .state import ConversationState

PREFIX: Final = b"item/"  # of the keys of these items; others are the engine's own
ANY: Final = -1  # as the expected revision: any, or none
MAX_NAME_BYTES: Final = 1024
_PAGE: Final = 64  # items that are read at a time

_HINT: Final = "get the item again, decide, and put it with its revision as expect="


T = TypeVar("T")


class Item(Struct, frozen=True):
    """A named value of a conversation or of the workspace."""

    value: bytes
    revision: int  # rises with every write
    name: str = ""

    def __repr__(self) -> str:
        return f"<Item {self.name} of {len(self.value):,} bytes, revision {self.revision}>"


class ItemWrite(Struct, frozen=True):
    """One item to put, or to remove (`data` is None), if it has the expected revision."""

    name: str
    data: bytes | None
    expect: int | None = ANY  # None: there must be none
    missing_ok: bool = True  # for a removal

    @property
    def key(self) -> bytes:
        return key_of(self.name)


def key_of(name: str) -> bytes:
    """Return the key of the item with this name; `InvalidArgument` if it cannot be a name."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument("the name of an item is text, and not empty")
    return PREFIX + encode_name(name)


def encode_name(name: str) -> bytes:
    """Return a name, or the beginning of names, as bytes."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of an item is text, not a {type(name).__name__}")
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("the name of an item holds half of a surrogate pair, which is not a character") from None
    if len(data) > MAX_NAME_BYTES:
        raise InvalidArgument(f"the name of an item has {len(data):,} bytes, and may have {MAX_NAME_BYTES:,}")
    return data


def prepare_put(engine: "Engine", name: str, value: object, expect: int | None, *, text: bool) -> ItemWrite:
    """Return the write that puts a value, checked; if it is `text`, cleaned by the sanitiser of the store."""
    key_of(name)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        hint = "value.encode() for text, json.dumps(value).encode() for JSON"
        raise InvalidArgument(f"the value of an item is bytes, not a {type(value).__name__}", hint=hint)
    if engine.redactor is not None:
        engine.redactor.name(name, "the name of an item")
    data = bytes(value)
    return ItemWrite(name, _clean(engine, data) if text else data, _check_expected(expect))


def prepare_removal(name: str, expect: int | None, *, missing_ok: bool) -> ItemWrite:
    """Return the write that removes an item, checked."""
    key_of(name)
    return ItemWrite(name, None, _check_expected(expect), missing_ok)


def _check_expected(expect: int | None) -> int | None:
    if expect is not None and (type(expect) is not int or expect < ANY):
        raise InvalidArgument("expect is the revision of an item, or None if there must be none", hint="item.revision")
    return expect


def _clean(engine: "Engine", data: bytes) -> bytes:
    try:
        said = data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("the value of an item is said to be text, and is not UTF-8") from None
    return data if engine.redactor is None else engine.redactor.text(said).encode()


# -- reading


def read(state: "ConversationState", name: str) -> Item | None:
    """Return an item; None if there is none."""
    key, engine = key_of(name), state.engine

    def look(envelope: Envelope) -> Item | None:
        row = _find(engine, state.id, key)
        return None if row is None else _open(envelope, row)

    return _read(state, look)


def _read(state: "ConversationState", look: Callable[[Envelope], T]) -> T:
    """Return what `look` finds. An item that does not open is read again with the current row: the conversation may
    have another key by now. One damaged item does not put its conversation into quarantine."""
    engine = state.engine
    engine.ensure_open()
    try:
        return look(state.envelope)
    except Damaged:
        pass
    while True:
        row = engine.read_row(state.id)
        try:
            return look(engine.codec.envelope(row))
        except Damaged:
            if engine.read_row(state.id).token == row.token:
                raise


def scan(
    state: "ConversationState",
    prefix: str = "",
    *,
    after: str | None = None,
    reverse: bool = False,
    limit: int | None = None,
) -> Iterator[Item]:
    """Yield the items whose names begin so, by name, some read at a time."""
    engine, start = state.engine, PREFIX + encode_name(prefix)
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument("the limit is a number from 0 up, or None")
    return _scan(engine, state, start, None if after is None else PREFIX + encode_name(after), reverse, limit)


def _scan(
    engine: "Engine", state: "ConversationState", prefix: bytes, after: bytes | None, reverse: bool, limit: int | None
) -> Iterator[Item]:
    left = limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(left, _PAGE)
        place = after

        def look(envelope: Envelope, place: bytes | None = place, size: int = size) -> list[Item]:
            rows = engine.backend.items(state.id, prefix, after=place, reverse=reverse, limit=size)
            return [_open(envelope, row) for row in rows]

        found = _read(state, look)
        yield from found
        if len(found) < size:
            return
        after = PREFIX + found[-1].name.encode()
        left = None if left is None else left - len(found)


def _find(engine: "Engine", conversation: bytes, key: bytes) -> ItemRow | None:
    """Return the row with exactly this key: of all keys that begin with it, it is the first."""
    rows = engine.backend.items(conversation, key, limit=1)
    return rows[0] if rows and rows[0].key == key else None


def _open(envelope: Envelope, row: ItemRow) -> Item:
    return Item(open_item(envelope, row, row.revision), row.revision, row.key[len(PREFIX) :].decode("utf-8", "replace"))


def measure(envelope: Envelope, rows: Iterable[ItemRow]) -> int:
    """Return the bytes of these items; `Damaged` if one cannot be read."""
    return sum(len(_open(envelope, row).value) for row in rows)


# -- writing


def write(state: "ConversationState", writes: Sequence[ItemWrite]) -> list[Item | None]:
    """Commit these writes; return the items as they are then."""
    engine = state.engine
    check_room(state, writes)
    found: list[Item | None] = []

    def make(row: ConversationRow) -> Change | None:
        change, found[:] = join(state, row, None, writes)
        return change

    engine.change(state.id, make, tell=report_stored)
    note_removals(engine, writes)
    return found


def check_room(state: "ConversationState", writes: Sequence[ItemWrite], beside: int = 0) -> None:
    """Raise an error if these writes, and `beside` bytes of messages, are too large for one write, for their
    conversation, or for the quota."""
    engine = state.engine
    size = sum(len(one.data) for one in writes if one.data is not None)
    if size + beside > engine.max_write_bytes:
        raise PayloadTooLarge(size + beside, engine.max_write_bytes)
    if size:
        engine.quota.admit(lambda: size)
        state.check_room(state.row.size + size)


def note_removals(engine: "Engine", writes: Sequence[ItemWrite]) -> None:
    """Let the quota be counted again if one of these writes has removed an item."""
    if any(one.data is None for one in writes):
        engine.quota.count_again()


def join(
    state: "ConversationState", row: ConversationRow, base: Change | None, writes: Sequence[ItemWrite]
) -> tuple[Change | None, list[Item | None]]:
    """Return the change that makes these writes together with the change `base`, which was prepared from the same
    stored row; and the items as they are then. None: there is nothing to do."""
    engine, envelope = state.engine, state.check(row)
    before = row if base is None or base.row is None else base.row
    revision = row.version + 1
    put: list[ItemRow] = []
    unput: list[bytes] = []
    went: list[ItemRow] = []
    items: list[Item | None] = []
    grown = 0
    for one in writes:
        there = _find(engine, row.id, one.key)
        at = None if there is None else there.revision
        if one.expect not in (ANY, at):
            raise Conflict(
                expected=one.expect, head=at, what="the revision of an item", nothing="that of no item", hint=_HINT
            )
        if one.data is None and there is None and not one.missing_ok:
            raise NotFound("item", [one.name], hint="list the items with talk.items.scan()")
        if there is not None:
            went.append(there)
            grown -= len(_open(envelope, there).value)
        if one.data is not None:
            grown += len(one.data)
            put.append(close_item(envelope, row.id, one.key, one.data, revision))
            items.append(Item(one.data, revision, one.name))
        else:
            items.append(None)
            if there is not None:
                unput.append(one.key)
    if not put and not unput:
        return base, items
    if base is None:
        base = Change(row.id, row.token, next_row(envelope, row))
        before = base.row or row
    after = exchange(envelope, before, put, went, grown, engine.clock())
    return replace(base, row=after, put=(*base.put, *put), unput=(*base.unput, *unput)), items


def exchange(
    envelope: Envelope,
    row: ConversationRow,
    came: Sequence[ItemRow],
    went: Sequence[ItemRow],
    grown: int,
    active_at: int = 0,
) -> ConversationRow:
    """Return the row of a change that also exchanges these items, proven anew. It is still the row after one write."""
    total = envelope.total(row) + envelope.weigh(came) - envelope.weigh(went)
    after = replace(row, size=row.size + grown, active_at=max(row.active_at, active_at), proof=b"")
    return replace(after, proof=envelope.prove(after, total))


def stored(engine: "StoreContext", conversation: bytes) -> Iterator[ItemRow]:
    """Yield the items of users in a conversation, as they are stored."""
    after = None
    while found := engine.backend.items(conversation, PREFIX, after=after, limit=_PAGE):
        yield from found
        after = found[-1].key


def rows(envelope: Envelope, row: ConversationRow, items: Iterable[Item]) -> Iterator[ItemRow]:
    """Yield items as they are stored in a new conversation."""
    for item in items:
        yield close_item(envelope, row.id, key_of(item.name), item.value, row.version)
