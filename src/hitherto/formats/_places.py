"""Places in files, and trees that wait for one.

A file may go on from another one: "after line 40 of that file". If that file is not there, what follows begins a tree
of its own (`PortableMessage.continues`). So the importer also says at which message a thread stands, line by line
(`Place`), and the index of the conversation keeps that. When both are stored, in whichever order they came, the tree is
moved below its message.

A place is kept as a pair of the index, like a message: the hash of the file's name and the line, and the number of the
message. Another pair has the last line that was read, so that no tree is moved below a message too early in a file that
is not there to its end.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.moving import move
from .._engine.state import ConversationState
from ..backend import ItemRow
from ..model import Message
from ._extract import IMPORTED, continued
from ._native_index import RECORD, NativeIndex, index_item
from ._types import PortableConversation

if TYPE_CHECKING:
    from .._engine.engine import Engine

_SOME_WAIT = "a tree waits"
_MOST_LINES = 100_000  # that a thread may stand at one message


def pairs_of(
    talk: PortableConversation, index: NativeIndex, number_of: Callable[[str], int | None]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a part: its places, and a note if one of its trees waits."""
    last: dict[str, int] = {}
    for place in talk.places:
        number = number_of(place.message)
        if number is not None and number != RECORD:
            yield _hash(index, place.file, place.line), number
        last[place.file] = max(place.line, last.get(place.file, 0))
    for file, line in last.items():
        yield index.hash(f"end {file}"), RECORD - 1 - max(line, _last_line(index, file))
    if any(said.continues for said in talk.messages):
        yield index.hash(_SOME_WAIT), RECORD


def find(index: NativeIndex, file: str, end: int) -> int | None:
    """Return the number of the message at which the thread of a file stands before a line, or None if so much of the
    file was not read yet."""
    if _last_line(index, file) < end - 1:
        return None
    for line in range(end - 1, max(-1, end - 1 - _MOST_LINES), -1):
        number = index.get(_hash(index, file, line))
        if number is not None:
            return number
    return None


def move_waiting(state: ConversationState, index: NativeIndex) -> tuple[int, int]:
    """Move the trees that wait for a place that is there by now. Returns how many messages were moved, and how many
    trees have their message and cannot be moved."""
    engine, moved, stuck = state.engine, 0, 0
    if index.get(index.hash(_SOME_WAIT)) is None:
        return 0, 0
    for root in _waiting(engine, state):
        number = find(index, *root[1])
        if number is None:
            continue

        def note(numbers: dict[int, int], version: int) -> Sequence[ItemRow]:
            pairs = list(index.renumbered(numbers))
            return (index_item(state.envelope, state.id, version, pairs),)

        numbers = move(state, root[0], number, note, _with_time)
        index.add(index.renumbered(numbers))
        moved += len(numbers)
        stuck += not numbers
    return moved, stuck


def _waiting(engine: "Engine", state: ConversationState) -> list[tuple[int, tuple[str, int]]]:
    """Return the roots that wait, oldest first, each with the place that it waits for."""
    found: list[tuple[int, tuple[str, int]]] = []
    for row in engine.read_headers(state.id):
        if row.parent is None and row.link is None and row.main:
            place = continued(engine.read_message(row, state, lazy=True))
            if place is not None:
                found.append((row.number, place))
    return found


def _with_time(message: Message, created_us: int) -> Message:
    """Return an imported message with a note of its time: where it is moved to, the store may have to give it another
    one."""
    came = (message.extra or {}).get(IMPORTED)
    if not isinstance(came, dict):
        return message
    return replace(message, extra={**(message.extra or {}), IMPORTED: {"at": created_us, **came}})


def _hash(index: NativeIndex, file: str, line: int) -> int:
    return index.hash(f"line {line} of {file}")


def _last_line(index: NativeIndex, file: str) -> int:
    found = index.get(index.hash(f"end {file}"))
    return -1 if found is None else RECORD - 1 - found
