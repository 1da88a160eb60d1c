"""Appending: where a handle stands, where its next message goes, and the steps of the write.

`HandlePosition.choose_placement` decides whether an append continues the main flow, becomes a branch, follows the head
or is a `Conflict`. It is called under the lock of the conversation's state, each time the write is prepared.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

from msgspec.structs import replace

from ..backend import Change, ConversationRow, Done, MessageRow
from ..errors import Conflict, Hint, InvalidArgument, NotFound
from ..model import Message, Saved, as_messages, id_of, require_message
from . import items
from .committer import PendingCommit
from .setups import setup_in_force
from .state import NO_CHANGES, ConversationState, ItemChanges, Placement, check_size, clean_together, encode_message
from .steps import Steps

OnConflict = Literal["branch", "raise", "follow", "replace"]


class HandlePosition:
    """The message that a handle stands at, and what it gives to the messages below it."""

    __slots__ = (
        *("_flying", "at", "below", "compared_setup", "engine", "epoch", "label", "link", "main", "rewrites"),
        *("setup", "state"),
    )

    def __init__(
        self,
        state: ConversationState,
        at: int | None,
        *,
        main: bool = True,
        link: int | None = None,
        label: str | None = None,
        setup: int | None = None,
        rewrites: int | None = None,
    ) -> None:
        self.state = state
        self.engine = state.engine
        self.at = at  # the last message that is committed
        self.below = at  # the next message goes below this one, which may not be committed yet
        self._flying: deque[PendingCommit] = deque()  # messages of ours on their way
        self.epoch = state.epoch
        self.rewrites = state.row.rewrites if rewrites is None else rewrites  # as of when `at` was seen
        self.main = main  # the next message goes on the main flow, and becomes the head
        self.link = link  # of the next message, if it is a root
        self.label = label  # of every message of this handle that has none: the trace of a sub-agent
        self.setup = setup  # the number of the setup in force here; None: read it when it is needed
        # The number and the content of the setup that `configure` compared last. Bytes, because tools may be changed.
        self.compared_setup: tuple[int, bytes] | None = None

    def copy(self, *, main: bool) -> "HandlePosition":
        """Return the position of another handle that stands here; with `main`, on the main flow if this one is."""
        return HandlePosition(
            self.state,
            self.at,
            main=main and self.main,
            link=self.link,
            label=self.label,
            setup=self.setup_number(),
            rewrites=self.rewrites,
        )

    def setup_number(self) -> int:
        """Return the number of the setup that is in force here."""
        if self.setup is None:
            self.setup = setup_in_force(self.state, self.at)
        return self.setup

    def own_row(self, id: str) -> MessageRow:
        """Return the row of a message of this conversation."""
        rows = self.engine.backend.messages(numbers=[self.engine.message_ids.number(id)])
        if not rows or rows[0].conversation != self.state.id:
            raise NotFound("message in this conversation", [id])
        return rows[0]

    # -- moving

    def move(self, number: int | None) -> None:
        """Stand at this message, or before the first. The setup in force there is read when it is needed."""
        self.at = self.below = number
        self.setup = None

    def move_to_beginning(self) -> None:
        """Stand before the first message, on the main flow. The setup in force stays."""
        self.at = self.below = self.link = None
        self.main, self.label = True, None
        self.epoch, self.rewrites = self.state.epoch, self.state.row.rewrites

    def move_to_head(self) -> None:
        """Stand at the head of the optimistic row, on the main flow."""
        with self.state.lock:
            self.settle()
            self.move(self.state.row.head)
            self.main, self.link, self.label = True, None, None
            self.epoch, self.rewrites = self.state.epoch, self.state.row.rewrites

    def move_to(self, other: "HandlePosition") -> None:
        """Stand where another handle on the same conversation stands, with the setup that is in force there."""
        with self.state.lock:
            self.settle()
            self.at = self.below = other.at
            self.main, self.link, self.label, self.setup = other.main, other.link, other.label, other.setup
            self.epoch, self.rewrites = self.state.epoch, other.rewrites

    def number_above(self, message: Saved) -> int | None:
        """Return the number of the parent of a message, or of what a compaction sums up; None above a root."""
        above = message.parent or (message.link if message.main else None)
        return None if above is None else self.engine.message_ids.number(above)

    # -- the place of the next message

    def expected_head(self, on_conflict: OnConflict, expect_head: "str | Saved | None") -> tuple[int | None] | None:
        """Return the head that must be there, in a tuple; None if any will do."""
        if expect_head is not None:
            return (self.engine.message_ids.number(id_of(expect_head)),)
        return (self.at,) if on_conflict == "raise" else None

    def choose_placement(
        self, on_conflict: OnConflict, expected: tuple[int | None] | None, row: ConversationRow
    ) -> Placement:
        """Return where the next message goes, given the current row. Called under the lock of the state."""
        if expected is not None:
            if row.head != expected[0] and not self.state.is_row_locked:
                row = self.engine.read_row(self.state.id)  # before we refuse, be sure that the row is not an old one
                self.state.adopt_row(row, self.state.epoch)  # even if ours are on their way: then this one turns stale
            if row.head != expected[0]:
                names = self.engine.message_ids
                shown = [None if n is None else names.id(n) for n in (expected[0], row.head)]
                raise Conflict(expected=shown[0], head=shown[1])
        if on_conflict == "follow" or (expected is not None and on_conflict != "replace"):
            return Placement(row.head)
        if self.epoch != self.state.epoch:  # a write of ours may have failed
            self.settle()
            self.below, self.epoch = self.at, self.state.epoch
        if self.rewrites != row.rewrites:
            self.check_alive(row)
        # A branch, if another message stands below this one already.
        return Placement(self.below, self.main, self.link if self.below is None else None)

    def check_alive(self, row: ConversationRow) -> None:
        """Raise `NotFound` if the message at which the handle stands was deleted."""
        needed = [n for n in (self.below, self.link) if n is not None]
        found = {m.number for m in self.engine.backend.messages(numbers=needed, bodies=False)}
        missing = [self.engine.message_ids.id(n) for n in needed if n not in found]
        if missing:
            text = "it was deleted; get a new handle with store.conversation(id) or fork(at=…)"
            raise NotFound("message", missing, hint=Hint("message-deleted", text))
        self.rewrites = row.rewrites

    def note_enqueued(self, entry: PendingCommit, change: Change) -> None:
        """Note that a message of ours is on its way, or was prepared again; the next one goes below it."""
        if not change.add:  # the messages were there already, and only items are written
            return
        self.below, self.epoch = change.add[-1].number, self.state.epoch
        if entry not in self._flying:
            self._flying.append(entry)

    def settle(self) -> None:
        """Note which of our messages are committed. They are committed in order."""
        while self._flying and self._flying[0].result is not None:
            entry = self._flying.popleft()
            if isinstance(entry.result, Done):
                self.at = entry.batch.changes[0].add[-1].number


def extend_steps(
    position: HandlePosition,
    messages: Iterable[Message],
    on_conflict: OnConflict = "branch",
    expect_head: "str | Saved | None" = None,
    changes: ItemChanges = NO_CHANGES,
    *,
    is_bounded: bool = True,
    is_clean: bool = False,
) -> Steps[list[Saved]]:
    """Save several messages below a position, and move it. The `changes` of items are made in the same transaction.
    `is_clean`: the caller has cleaned the messages with the redactor of the store."""
    state, engine = position.state, position.engine
    engine.ensure_open()
    if on_conflict not in ("branch", "raise", "follow", "replace"):
        raise InvalidArgument(f"on_conflict is 'branch', 'raise', 'follow' or 'replace', not {on_conflict!r:.40}")
    if on_conflict == "replace" and expect_head is None:
        raise InvalidArgument("nothing is replaced without the head that was seen", hint="pass expect_head=…")
    if not position.main and (on_conflict != "branch" or expect_head is not None):
        raise InvalidArgument(
            "this handle is off the main flow, and the head is on it", hint="append without conditions"
        )
    setup = position.setup_number()
    given = messages if type(messages) in (list, tuple) else as_messages(messages)
    clean: Sequence[Message] = [_without_place(message, position.label) for message in given]
    # A label that was just put on them is not checked yet.
    if engine.redactor is not None and (not is_clean or position.label is not None):
        clean = clean_together(engine, clean)
    drafts = [encode_message(state, message, setup, is_clean=True) for message in clean]
    if not drafts:
        raise InvalidArgument("there is no message to save", hint="give at least one message")
    check_size(drafts, engine.max_write_bytes)
    if changes.writes:
        items.check_room(state, changes.writes, sum(len(draft.data) for draft in drafts))
    expected = position.expected_head(on_conflict, expect_head)

    choose = partial(position.choose_placement, on_conflict, expected)
    written = yield from state.add_steps(drafts, choose, position.note_enqueued, changes, is_bounded=is_bounded)
    with state.lock:
        position.settle()
        if written[-1].key is not None:  # it may have been there already, and nothing was written
            position.at = position.below = engine.message_ids.number(written[-1].id)
    if changes.writes:
        items.note_removals(engine, changes.writes)
    return written


def add_summary(position: HandlePosition, message: Message) -> Saved:
    """Save a message as a new root that is linked to the message at which the handle stands, and move it there."""
    state, link = position.state, position.at
    drafts = [encode_message(state, _without_place(message, position.label), position.setup_number())]
    check_size(drafts, position.engine.max_write_bytes)

    def choose(row: ConversationRow) -> Placement:
        if row.rewrites != position.rewrites:
            position.check_alive(row)
        return Placement(None, link=link)

    (saved,) = state.add(drafts, choose, position.note_enqueued)
    with state.lock:
        position.settle()
    return saved


def _without_place(message: object, label: str | None) -> Message:
    """Check that a message asks for no parent of its own: that is for `save`. A saved message is taken as a value, and
    gets a new place. The label is put on it, unless it has one."""
    if type(message) is Message and message.parent is None and label is None:
        return message
    message = require_message(message)
    if not isinstance(message, Saved) and message.parent is not None:
        hint = "fork(at=parent) first, or use store.save([...])"
        raise InvalidArgument("append puts a message below where the handle stands", hint=hint)
    return message if label is None or message.label is not None else replace(message, label=label)
