"""Moving a tree below a message that was stored after it.

A message never changes its place: parents have earlier numbers than their children, and every reader of a tree relies
on it. So the messages are written anew below their new parent, and the old ones are deleted, in one commit. Content,
roles, branches and attachments stay as they are; the ids are new.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ..backend import Change, ConversationRow, ItemRow, MessageRow
from ..model import Message, Saved
from .deleting import FORGET_SECONDS
from .packs import Reader, Rewrite
from .recovery import keys_below
from .retry import MAX_LONG_ATTEMPTS, retry
from .signals import RowChanged
from .state import ConversationState, EncodedMessage, Placement, encode_message

Note = Callable[[dict[int, int], int], Sequence[ItemRow]]


def move(
    state: ConversationState, root: int, below: int, note: Note, prepare_message: Callable[[Message, int], Message]
) -> dict[int, int]:
    """Move a root of the main flow, with all that belongs to it, below a message. Returns the new number of each
    message.

    `note` gives items that are written in the same commit: it gets the new numbers and the version of the row.
    `prepare_message` may change a message that is written anew; it gets its old time. Nothing is moved if the
    conversation is on hold, is a record, or has an unfinished answer there, if a message has a key, or if the message
    belongs to the tree itself: then the result is empty.
    """
    numbers: dict[int, int] = {}

    def attempt() -> None:
        numbers.clear()
        row = state.read_stored_row()
        tree = _tree(state.engine.read_headers(state.id), root, below)
        if not tree or not _is_movable(state, row, tree):
            return
        drafts = _drafts(state, tree, below, prepare_message)

        def make_change(drafts: Sequence[EncodedMessage], _: ConversationRow) -> tuple[Change, list[Saved]]:
            now = state.read_stored_row()
            if now.token != row.token:
                raise RowChanged
            return _change(state, row, tree, drafts, numbers, note)

        state.write(drafts, make_change)

    retry(attempt, "the conversation changes faster than its messages can be moved", most=MAX_LONG_ATTEMPTS)
    if numbers:
        state.engine.search.forget(FORGET_SECONDS, [state.id])
    return dict(numbers)


def _tree(rows: Sequence[MessageRow], root: int, below: int) -> list[MessageRow]:
    """Return the messages that belong to a root, in their order: its subtree, compactions of it, and traces of its
    sub-agents. Empty if the root, or its new parent on the main flow, is not there, or if that is one of them."""
    found: dict[int, MessageRow] = {}
    has_parent = False
    for m in rows:
        if m.number == root or m.parent in found or m.link in found:
            found[m.number] = m
        has_parent = has_parent or (m.number == below and bool(m.main))
    return list(found.values()) if root in found and has_parent and below not in found else []


def _is_movable(state: ConversationState, row: ConversationRow, tree: Sequence[MessageRow]) -> bool:
    if row.held or state.meta.record or any(m.key is not None for m in tree):
        return False
    return not keys_below(state.engine, state.id, {m.number for m in tree})


def _drafts(
    state: ConversationState,
    tree: Sequence[MessageRow],
    below: int,
    prepare_message: Callable[[Message, int], Message],
) -> list[EncodedMessage]:
    reader, places = Reader(state.engine), {m.number: n for n, m in enumerate(tree)}
    drafts = []
    for n, m in enumerate(tree):
        message = state.engine.read_message(m, state, lazy=True, reader=reader)
        setup = state.engine.read_body(m, state, reader)[1].setup
        parent = below if not n else None if m.parent is None else ~places[m.parent]
        link = None if m.link is None else ~places[m.link]
        spot = Placement(parent, bool(m.main), link)
        said = prepare_message(message, m.created_at)
        drafts.append(encode_message(state, said, setup, spot, message.origin, m.created_at, is_clean=True))
    return drafts


def _change(
    state: ConversationState,
    row: ConversationRow,
    tree: Sequence[MessageRow],
    drafts: Sequence[EncodedMessage],
    numbers: dict[int, int],
    note: Note,
) -> tuple[Change, list[Saved]]:
    """Return one change that deletes the messages and adds them again. A head among them stays at its message, and
    another one moves to the last of them: who goes on from an earlier message does so later."""
    engine, old = state.engine, [m.number for m in tree]
    rewrite = Rewrite(engine, row)
    rewrite.drop(sorted(engine.backend.messages(numbers=sorted(old)), key=lambda m: m.seq))
    gone = set(old)
    tips = tuple(tip for tip in row.tips if tip not in gone)
    without = rewrite.change(tips=tips, count=row.count - len(tree))
    if without.row is None:
        raise RowChanged
    head_at = old.index(row.head) if row.head in gone else None
    added, messages = state.prepare(without.row, drafts, Placement(None), head_at=head_at, is_bounded=False)
    if added is None or added.row is None:
        raise RowChanged
    numbers.update(zip(old, (m.number for m in added.add), strict=True))
    put = (*without.put, *note(numbers, added.row.version))
    change = replace(without, row=added.row, add=added.add, attach=added.attach, tag=added.tag, put=put)
    return change, messages
