"""Finding one conversation or message: by its id, by the beginning of one, or by its key.

Lists of many are in `selection`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..backend import INTERNAL_KINDS, ConversationRow, MessageRow
from ..errors import Ambiguous, Damaged, InvalidArgument, InvalidID, NotFound
from ..ids import is_conversation_prefix, new_conversation_id, parse_conversation_id, show_conversation_id
from ..model import Saved, Setup, as_list
from .bodies import Meta
from .creating import create
from .packs import Reader
from .retry import retry
from .signals import RowChanged
from .state import ConversationState

if TYPE_CHECKING:
    from .engine import Engine


def find_by_id(engine: "Engine", id: str) -> tuple[ConversationRow, MessageRow | None]:
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


def find_by_keys(state: ConversationState, keys: Iterable[str], *, missing_ok: bool) -> list[Saved]:
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


def find_or_create(
    engine: "Engine", kind: str, key: str, describe: Callable[[], tuple[Meta, Sequence[Setup]]]
) -> tuple[ConversationState, ConversationRow]:
    """Return the conversation of this kind and key, with its row. If there is none, it is created with this description
    and these setups."""

    def attempt() -> tuple[ConversationState, ConversationRow]:
        row = find_by_key(engine, kind, key)
        if row is not None:
            return engine.state_of(row), row
        meta, setups = describe()
        made = create(engine, new_conversation_id(), meta, setups, kind=kind)
        if made is None:
            raise RowChanged
        return made[0], made[0].row

    return retry(attempt, "the conversation is made and removed by others at the same time")
