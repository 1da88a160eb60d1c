"""Reading a conversation: the thread of a message, its setups and its tokens, and the leaves of the tree.

A compaction begins a new root that is linked to the message it sums up. A full thread goes on there.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import Damaged, NotFound
from ..model import Saved, Setup, Usage, approximate_tokens, to_datetime
from ..reports import Branch, SetupChange, ThreadUsage
from .describing import read_setup
from .packs import Reader
from .setups import has_one_setup

if TYPE_CHECKING:
    from .state import ConversationState


def read_thread(
    state: "ConversationState",
    number: int | None,
    *,
    full: bool = False,
    lazy: bool = False,
    last: int | None = None,
    events: bool = True,
) -> list[Saved]:
    """Return all messages from the root to this one, events included; none for None. `full` goes on across compactions.
    With `last`, at least so many of the last ones are returned."""
    engine = state.engine
    engine.ensure_open()
    path: list[Saved] = []
    left = last
    while number is not None and (left is None or left > 0):
        path = engine.read_path(number, state, lazy=lazy, last=left, events=events) + path
        if last is not None:
            left = last - sum(events or message.role != "event" for message in path)
        goes_on = full and path and path[0].parent is None and path[0].main and path[0].link is not None
        number = engine.message_ids.number(path[0].link) if goes_on and path[0].link is not None else None
    return path


def thread_usage(path: list[Saved]) -> ThreadUsage:
    """Return the tokens of a thread."""
    total = sum((m.usage for m in path if m.usage is not None), Usage())
    size = sum(len(b.content.encode()) for m in path for b in m.blocks if isinstance(b.content, str))
    counted = {name: getattr(total, name) for name in total.__struct_fields__}
    return ThreadUsage(**counted, messages=len(path), approximate_tokens=approximate_tokens(size))


def list_setups(state: "ConversationState", at: int | None) -> list[SetupChange]:
    """Return the setups of a thread: that of its first message, and each message from which on it is another."""
    engine = state.engine
    if not engine.backend.items(state.id, b"setup/", limit=1):
        return []
    only = _only_setup(state, at)
    if only is not None:
        return [only]
    path = [(engine.message_ids.number(m.id), m.id) for m in read_thread(state, at, lazy=True)]
    found: list[SetupChange] = []
    known: dict[int, Setup] = {}
    rows = {row.number: row for row in engine.backend.messages(numbers=[number for number, _ in path])}
    reader, last = Reader(engine), 0
    for number, id in path:
        setup = engine.read_body(rows[number], state, reader)[1].setup
        if setup and setup != last:
            if setup not in known:
                known[setup] = read_setup(state, setup, number)
            found.append(SetupChange(id, known[setup]))
            last = setup
    return found


def _only_setup(state: "ConversationState", at: int | None) -> SetupChange | None:
    """Return the setup of all messages, at the root of a thread; None if there may be others, or if the way to the root
    has to be proven."""
    engine = state.engine
    if at is None or not has_one_setup(state.meta) or state.envelope.proves:
        return None
    root = engine.backend.root(at)
    for row in [] if root is None else engine.backend.messages(numbers=[root]):
        setup = engine.read_body(row, state)[1].setup
        if setup:
            return SetupChange(engine.message_ids.id(row.number), read_setup(state, setup, row.number))
    return None


def list_branches(state: "ConversationState") -> list[Branch]:
    """Return every leaf of the tree, the most recently active first."""
    engine = state.engine
    try:
        rows = engine.read_tree(state)
    except Damaged:
        rows = engine.reread(state, engine.read_tree)
    depths: dict[int | None, int] = {None: 0}
    for row in rows:
        depths[row.number] = depths.get(row.parent, 0) + 1
    inner = {row.parent for row in rows}
    leaves = [row for row in rows if row.number not in inner]
    bodies = engine.backend.messages(numbers=[row.number for row in leaves])
    reader = Reader(engine)
    labels: dict[int, str | None] = {}
    for row in bodies:
        with suppress(NotFound):  # deleted since we looked
            labels[row.number] = engine.read_for_listing(row, lazy=True, reader=reader).label
    found = []
    for row in sorted(leaves, key=lambda r: -r.seq):
        if row.number in labels:
            name, at = engine.message_ids.id(row.number), to_datetime(row.created_at)
            found.append(Branch(name, depths[row.number], at, labels[row.number], bool(row.main)))
    return found
