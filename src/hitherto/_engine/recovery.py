"""Answers that have not arrived whole: stored beside the tree, and offered when the conversation is resumed.

While an answer streams in, the part so far is stored every second or so, as an item of the conversation. It is no
message: nothing can stand below it, no thread shows it, no search finds it. The commit that adds the whole answer
removes the item. If that commit never comes, because of a power cut or Ctrl+C, the item stays, and
is offered as a `Partial`: accepted, it becomes a message that is marked as interrupted; discarded, it is gone.

An item's key names the message that it answers, so that deleting the message takes the item along.

A recorder leaves a **mark** in its conversation, with its first write, and removes it at the end. A mark that is found
later says that the end never came. Then a `RecoverySnapshot` can be restored: the thread, the parts of answers, and the
state that the caller has given for this case. The tree has all but the last already, so a mark is small, and a snapshot
is as new as the last commit. A mark that is torn is read once more, and then made anew from the tree: the tree does not
depend on it.

Several processes may record one conversation, and the mark names them. A process that
ends removes its own name, and the names of dead processes; the mark goes when no name is left in it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from .._sealing.codec import Envelope, next_row
from ..backend import Change, ConversationRow, ItemRow
from ..errors import Damaged, HithertoError, InvalidArgument, InvalidMessage, NotFound, PayloadTooLarge
from ..events import SnapshotRebuilt, warn
from ..ids import new_token, parse_conversation_id
from ..model import Message, check, check_json, id_of, to_datetime
from ..reports import Partial, RecoverySnapshot
from .bodies import Body, body_of
from .process import Who, is_gone, this
from .retry import MAX_LONG_ATTEMPTS, retry
from .signals import RowChanged
from .state import ConversationState
from .typed_items import ItemType, close_item

if TYPE_CHECKING:
    from .engine import Engine

PARTIAL_PREFIX = b"partial/"
MARK_KEY = b"recovery"


class _PartialMessage(Struct, frozen=True, array_like=True):
    role: str
    body: Body


class _PartialContent(Struct, frozen=True, array_like=True):
    at: int
    messages: tuple[_PartialMessage, ...]


_PARTIAL: Final = ItemType(_PartialContent, "an unfinished answer")


def new_key(parent: int, token: bytes | None = None) -> bytes:
    """The key of an item for an answer to this message: several may be on their way at once."""
    return PARTIAL_PREFIX + b"%016x/" % parent + (token or new_token()).hex().encode()


def keep(
    state: ConversationState,
    key: bytes,
    messages: Sequence[Message],
    at: int | None = None,
    *,
    recording: bool = False,
    complete: bool = False,
) -> None:
    """Store the part of an answer so far, in place of the part before. `recording` leaves a mark, too."""
    engine = state.engine
    data = encode_partial(engine, messages, engine.clock() if at is None else at, complete=complete)

    def make(row: ConversationRow) -> Change:
        envelope, parent = state.check(row), _parent(key)
        if not engine.backend.messages(numbers=[parent], bodies=False):
            raise NotFound("message", [engine.message_ids.id(parent)])
        put = (close_item(envelope, state.id, key, data), *(marks(state)(envelope) if recording else ()))
        return Change(row.id, row.token, next_row(envelope, row, (), ()), put=put)

    engine.change(state.id, make, tell=None)


def encode_partial(engine: "Engine", messages: Sequence[Message], at: int, *, complete: bool = False) -> bytes:
    """Return the part of an answer as bytes. `complete`: no more of it will come."""
    for message in messages:
        check(message)
    if engine.redactor is not None:  # where more may come, not even the beginning of a secret is kept
        messages = engine.redactor.messages(messages, complete=complete)
    try:
        data = _PARTIAL.encode(_PartialContent(at, tuple(_PartialMessage(m.role, body_of(m, 0)) for m in messages)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"this cannot be kept as it is: {error}") from None
    if len(data) > engine.max_write_bytes:
        raise PayloadTooLarge(len(data), engine.max_write_bytes)
    return data


def drop(state: ConversationState, key: bytes) -> None:
    """Remove the item with this key, if there is one."""

    def make(row: ConversationRow) -> Change | None:
        if not state.engine.backend.items(state.id, key):
            return None
        return Change(row.id, row.token, next_row(state.check(row), row, (), ()), unput=(key,))

    state.engine.change(state.id, make, tell=None)


def find_partials(state: ConversationState) -> list[Partial]:
    """Return the partial answers, the newest first. An item that cannot be read is read again, by the current row; if
    that fails too, it is returned with its `problem`, so that it can be discarded."""
    partials = []
    for item in state.engine.backend.items(state.id, PARTIAL_PREFIX):
        try:
            partials.append(_read_partial(state.engine, state.envelope, item))
        except Damaged:
            partials += _reread_partial(state, item.key)
    return sorted(partials, key=lambda p: (p.at is not None, p.at), reverse=True)


def _reread_partial(state: ConversationState, key: bytes) -> list[Partial]:
    """Read an item again: the conversation may have another key by now."""
    engine = state.engine
    envelope = engine.codec.envelope(engine.read_row(state.id))
    for item in engine.backend.items(state.id, key):
        try:
            return [_read_partial(engine, envelope, item)]
        except Damaged as error:
            return [Partial(key.decode(), engine.message_ids.id(_parent(key)), (), None, str(error))]
    return []


def _read_partial(engine: "Engine", envelope: Envelope, item: ItemRow) -> Partial:
    kept = open_partial(envelope, item)
    messages = tuple(_message(said) for said in kept.messages)
    return Partial(item.key.decode(), engine.message_ids.id(_parent(item.key)), messages, to_datetime(kept.at))


def open_partial(envelope: Envelope, item: ItemRow) -> _PartialContent:
    """Return the content of an item; `Damaged` if it cannot be read."""
    kept = _PARTIAL.open(envelope, item)
    try:
        _parent(item.key)
    except ValueError as error:
        raise Damaged(f"{_PARTIAL.name} cannot be read: {error}") from None
    return kept


def _message(said: _PartialMessage) -> Message:
    b = said.body
    return Message(said.role, b.blocks, b.label, b.key, b.tool_result_error, b.extra, b.raw, b.usage, b.privacy)


def key_of(partial: object) -> bytes:
    """Return the key of a partial answer. Keys of other items are refused."""
    if not isinstance(partial, Partial):
        raise InvalidArgument(f"a {type(partial).__name__} where a Partial is wanted", hint="talk.partials()")
    key = partial.id.encode(errors="replace") if isinstance(partial.id, str) else b""
    if not key.startswith(PARTIAL_PREFIX):
        raise InvalidArgument("this is nothing that was kept of an answer", hint="talk.partials()")
    return key


def mark_interrupted(message: Message) -> Message:
    """The message, marked as one that was cut off."""
    return replace(message, extra={**(message.extra or {}), "interrupted": True})


def keys_below(engine: "Engine", conversation: bytes, doomed: Collection[int]) -> tuple[bytes, ...]:
    """Return the keys of the partial answers to these messages."""
    keys = [item.key for item in engine.backend.items(conversation, PARTIAL_PREFIX)]
    return tuple(key for key in keys if _parent(key) in doomed)


def _parent(key: bytes) -> int:
    try:
        return int(key[len(PARTIAL_PREFIX) : len(PARTIAL_PREFIX) + 16], 16)
    except ValueError:
        raise Damaged("an unfinished answer answers nothing") from None


# -- the whole of it


class _Mark(Struct, frozen=True, array_like=True):
    """The part of a snapshot that is not in the tree."""

    conversation: bytes  # so that the mark of another is none
    at: int
    state: dict[str, object] = {}
    makers: tuple[Who, ...] = ()  # the recorders of the conversation


_MARK: Final = ItemType(_Mark, "a recovery snapshot")


def marks(state: ConversationState) -> Callable[[Envelope], tuple[ItemRow, ...]]:
    """Return a function that makes the mark of a conversation that is recorded here, as items of the next write; none
    if the mark is there already. The state that the caller has given stays in it, and so do the names of other
    recorders."""

    def missing(envelope: Envelope) -> tuple[ItemRow, ...]:
        engine = state.engine
        try:
            found = _find_mark(engine, envelope, state.id)
        except Damaged:  # `load_snapshot` notices, and makes it anew
            return ()
        if found is None:
            return (mark(engine, envelope, state.id, by=[this(engine.opened)]),)
        if this(engine.opened) in found.makers:
            return ()
        return (mark(engine, envelope, state.id, found.state, [*found.makers, this(engine.opened)]),)

    return missing


def new_mark(state: ConversationState) -> ItemRow:
    """The mark of a conversation that is begun here."""
    return mark(state.engine, state.envelope, state.id, by=[this(state.engine.opened)])


def mark(
    engine: "Engine",
    envelope: Envelope,
    conversation: bytes,
    state: Mapping[str, object] | None = None,
    by: Sequence[Who] = (),
) -> ItemRow:
    data = _MARK.encode(_Mark(conversation, engine.clock(), dict(state or {}), tuple(by)))
    if len(data) > engine.max_write_bytes:
        raise PayloadTooLarge(len(data), engine.max_write_bytes)
    return close_item(envelope, conversation, MARK_KEY, data)


def _find_mark(engine: "Engine", envelope: Envelope, conversation: bytes) -> _Mark | None:
    items = engine.backend.items(conversation, MARK_KEY)
    return open_mark(envelope, items[0]) if items else None


Unmarked = tuple[tuple[ItemRow, ...], tuple[bytes, ...]]  # items to put, and keys of those to take away


def remove_own_name(engine: "Engine", envelope: Envelope, conversation: bytes) -> Unmarked:
    """Return the mark without the name of this store, as items to put and keys to remove."""
    try:
        found = _find_mark(engine, envelope, conversation)
    except Damaged:  # whose it was cannot be told
        return (), (MARK_KEY,)
    if found is None:
        return (), ()
    others = [who for who in found.makers if who != this(engine.opened) and not is_gone(who)]
    if not others:
        return (), (MARK_KEY,)
    same = len(others) == len(found.makers)
    return () if same else (mark(engine, envelope, conversation, found.state, others),), ()


def leave(engine: "Engine", conversation: bytes) -> None:
    """Remove the name of this store from the mark of a conversation, and nothing else."""
    state = engine.state_of(engine.read_row(conversation))

    def make(row: ConversationRow) -> Change | None:
        envelope = state.check(row)
        put, unput = remove_own_name(engine, envelope, row.id)
        after = next_row(envelope, row, (), ())
        return Change(row.id, row.token, after, put=put, unput=unput) if put or unput else None

    engine.change(conversation, make, tell=None)


def check_state(value: object) -> None:
    """Raise `InvalidMessage` unless the state is plain JSON: any program may have to read it after a crash."""
    import json  # noqa: PLC0415  # most programs need none

    check_json(value, "the state")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError) as error:  # NaN, half a character, bytes, an attachment
        hint = "text, whole or finite numbers, true, false, None, and lists and dicts of these"
        raise InvalidMessage(f"the state is not plain JSON: {type(error).__name__}", hint=hint) from None


def keep_snapshot(engine: "Engine", conversation: object, given: "RecoverySnapshot | Mapping[str, object]") -> None:
    """Store a state of the caller's, as plain JSON, to be restored if the end never comes. The messages and partials of
    a snapshot are read from the tree when it is loaded."""
    snapshot = given if isinstance(given, RecoverySnapshot) else None
    found: object = given if snapshot is None else snapshot.state
    if not isinstance(found, Mapping):
        raise InvalidArgument(f"a {type(given).__name__} where a snapshot is wanted", hint="a dict, or what was loaded")
    state: dict[str, object] = dict(found)
    check_state(state)
    if engine.redactor is not None:
        cleaned = engine.redactor.value(state)
        state = cleaned if isinstance(cleaned, dict) else {}
    conversation_state = engine.state_of(engine.read_row(parse_conversation_id(id_of(conversation))))
    if snapshot is not None and snapshot.conversation_id != conversation_state.name:
        hint = "keep it in its own, or give its state alone"
        raise InvalidArgument("the snapshot is that of another conversation", hint=hint)

    def make(row: ConversationRow) -> Change:
        envelope = conversation_state.check(row)
        try:
            there = _find_mark(engine, envelope, conversation_state.id)
        except Damaged:  # it is being replaced
            there = None
        put = (mark(engine, envelope, conversation_state.id, state, () if there is None else there.makers),)
        return Change(row.id, row.token, next_row(envelope, row, (), ()), put=put)

    engine.change(conversation_state.id, make, tell=None)


def load_snapshot(engine: "Engine", conversation: object) -> RecoverySnapshot | None:
    """Return the snapshot of a conversation; None if it was not recorded, or its recording
    was ended properly."""
    engine.ensure_open()
    try:
        state = engine.state_of(engine.read_row(parse_conversation_id(id_of(conversation))))
        kept, problem = _read_mark(state)
        if kept is None and problem is None:
            return None
        if problem is not None:
            _rebuild(state, problem)
        return _build_snapshot(state, kept or _Mark(state.id, 0), rebuilt=problem is not None)
    except NotFound:
        return None


def _read_mark(state: ConversationState) -> tuple[_Mark | None, str | None]:
    """The mark, or why it cannot be read; neither if there is none. It is read twice before it counts as torn: the
    conversation may have been given another key meanwhile."""
    engine, problem = state.engine, None
    for _ in range(2):
        envelope = engine.codec.envelope(engine.read_row(state.id))
        items = engine.backend.items(state.id, MARK_KEY)
        if not items:
            return None, None
        try:
            return open_mark(envelope, items[0]), None
        except Damaged as error:
            problem = str(error)
    return None, problem


def open_mark(envelope: Envelope, item: ItemRow) -> _Mark:
    """Return the content of a mark; `Damaged` if it cannot be read."""
    found = _MARK.open(envelope, item)
    if found.conversation != item.conversation:
        raise Damaged("a recovery snapshot is that of another conversation")
    return found


def _rebuild(state: ConversationState, problem: str) -> None:
    """Put a new mark in the place of a torn one, and say so."""
    engine = state.engine
    try:
        keep_snapshot(engine, state.name, {})
    except HithertoError as error:  # the disk is full, say: what is given out is made from the tree all the same
        warn(f"a torn recovery snapshot could not be replaced: {type(error).__name__}")
    warn(f"a recovery snapshot was torn, and is made anew from the tree: {state.name}: {problem}")
    engine.listeners.emit(SnapshotRebuilt(to_datetime(engine.clock()), state.name, problem))


def _build_snapshot(state: ConversationState, kept: _Mark, *, rebuilt: bool) -> RecoverySnapshot:
    engine = state.engine

    def attempt() -> RecoverySnapshot:
        row = engine.read_row(state.id)
        try:
            path = [] if row.head is None else engine.read_path(row.head, state, lazy=True)
        except NotFound:  # deleted meanwhile
            raise RowChanged from None
        partials = find_partials(state)
        times = [to_datetime(max(kept.at, row.active_at)), *(p.at for p in partials if p.at is not None)]
        return RecoverySnapshot(
            state.name,
            max(times),
            None if row.head is None else engine.message_ids.id(row.head),
            tuple(message for message in path if message.role != "event"),
            tuple(partials),
            kept.state,
            rebuilt,
        )

    try:
        return retry(attempt, most=MAX_LONG_ATTEMPTS)
    except RowChanged:
        raise NotFound("conversation", [state.name]) from None
