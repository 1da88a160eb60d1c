"""The conversation handle: a cursor that stands at one message.

`append` puts a message below the one the handle stands at and moves the handle there. `fork` gives another handle
that stands somewhere else; nothing is written or copied until it appends. The conversation's **head** is its newest
main-flow message, the one that a later `store.conversation(id)` continues; every append moves it, except those of
sub-agents and of `fork(at, main=False)`.

A handle belongs to one task. Sharing one between threads is safe, and their messages follow each other in some order.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from ._engine import items
from ._engine.bodies import encode, open_meta, open_setup
from ._engine.committer import PendingCommit
from ._engine.filters import check_key, check_kind
from ._engine.items import ItemWrite
from ._engine.packs import Reader, Rewrite
from ._engine.setups import check_setup, check_text, has_one_setup, setup_in_force, setup_item, setup_key
from ._engine.state import (
    ConversationState,
    Placement,
    build_description_change,
    build_row_change,
    check_size,
    clean_together,
    encode_message,
    label_fields,
    label_tags,
)
from ._engine.steps import Steps, finish
from ._sealing.codec import Envelope
from .backend import Change, ConversationRow, Done, ItemRow, MessageRow, Tag
from .errors import Conflict, Damaged, Hint, InvalidArgument, NotExportable, NotFound, PayloadTooLarge
from .items import Batch, Items
from .model import (
    Message,
    Saved,
    Setup,
    Usage,
    approximate_tokens,
    as_messages,
    check_strings,
    id_of,
    require_message,
    text_size,
    to_datetime,
)

if TYPE_CHECKING:
    from ._engine.engine import Engine
    from .reports import Partial
    from .snapshots import Snapshot

__all__ = ["Branch", "Conversation", "SetupChange", "ThreadUsage"]

OnConflict = Literal["branch", "raise", "follow"]
Attachments = Literal["load", "lazy"]


class Branch(Struct, frozen=True):
    """A leaf of the tree."""

    id: str
    depth: int  # messages from the root to here
    active_at: datetime
    label: str | None
    main: bool


class SetupChange(Struct, frozen=True):
    """From which message on a thread was held with what."""

    message_id: str
    setup: Setup


class ThreadUsage(Usage, frozen=True, array_like=False):
    """The tokens of one thread: what providers counted, and an estimate from its size."""

    messages: int = 0
    approximate_tokens: int = 0


class Conversation:
    """A handle on one conversation. Get one from `store.start`, `store.conversation`, `store.latest` or `fork`."""

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
        self.engine: Engine = state.engine
        self._at = at  # the next message goes below this one, which may not be committed yet
        self._sure = at  # the last one that is committed
        self._flying: deque[PendingCommit] = deque()  # messages of ours on their way
        self._epoch = state.epoch
        self._rewrites = state.row.rewrites if rewrites is None else rewrites  # as of when `at` was seen
        self._main = main  # the next message goes on the main flow, and becomes the head
        self._link = link  # of the next message, if it is a root
        self._label = label  # of every message of this handle that has none: the trace of a sub-agent
        self._setup = setup  # the number of the setup in force here; None: read it when it is needed
        # The number and the content of the setup that `_configure` compared last. Bytes, because tools may be changed.
        self._compared: tuple[int, bytes] | None = None

    def __repr__(self) -> str:
        return f"<Conversation {self.id} at {self.at or 'its beginning'}>"

    # -- what it is

    @property
    def id(self) -> str:
        """The conversation's UUID."""
        return self.state.name

    @property
    def at(self) -> str | None:
        """The id of the message this handle stands at; None before the first."""
        return None if self._sure is None else self.engine.message_ids.id(self._sure)

    @property
    def head(self) -> str | None:
        """The id of the newest main-flow message, as last seen (`refresh` looks again)."""
        head = self.state.row.head
        return None if head is None else self.engine.message_ids.id(head)

    @property
    def title(self) -> str:
        return self.state.meta.title

    @property
    def key(self) -> str | None:
        """The caller's own name for the conversation, from `ensure`."""
        return self.state.meta.key

    @property
    def project(self) -> str | None:
        return self.state.meta.project

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.state.meta.metadata)

    @property
    def count(self) -> int:
        """How many messages there are, on all branches."""
        return self.state.row.count

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.state.meta.created or self.state.row.created_at)

    @property
    def active_at(self) -> datetime:
        return to_datetime(self.state.row.active_at)

    @property
    def held(self) -> bool:
        return self.state.row.held

    @property
    def exportable(self) -> bool:
        """May it leave its store? If not, `snapshot`, exports, copies and checkpoints raise `NotExportable`."""
        return not self.state.meta.kept_in

    @property
    def setup(self) -> Setup:
        """Provider, model, system prompt and tools in force where this handle stands."""
        number = self._setup_number()
        return Setup() if number == 0 else self._setup_of(number, self._sure)

    def _setup_of(self, number: int, message: int | None) -> Setup:
        """Return a setup by its number. One that cannot be read is noted in quarantine at the message that needed
        it."""
        try:
            return self._setup_now(self.state, number)
        except Damaged:
            return self.engine.reread(self.state, lambda own: self._setup_now(own, number), message)

    def _setup_now(self, state: ConversationState, number: int) -> Setup:
        key = setup_key(number)
        items = self.engine.backend.items(state.id, key)
        if not items:
            raise Damaged(f"a setup of conversation {self.id} is missing")
        return open_setup(state.envelope, state.id, key, items[0].body)

    @property
    def system_prompt(self) -> str:
        return self.setup.system_prompt

    @property
    def provider(self) -> str:
        return self.setup.provider

    @property
    def model(self) -> str:
        return self.setup.model

    @property
    def tools(self) -> list[dict[str, object]]:
        return list(self.setup.tools)

    def refresh(self) -> "Conversation":
        """See what others have done to the conversation meanwhile. The handle stays where it stands."""
        self.engine.ensure_open()
        self.state.refresh()
        return self

    # -- saying something

    def append(
        self, message: Message, *, on_conflict: OnConflict = "branch", expect_head: "str | Saved | None" = None
    ) -> Saved:
        """Save a message below the one this handle stands at, and stand there.

        If others were faster, `on_conflict` decides: `"branch"` (the default) goes below where this handle stands
        all the same, `"follow"` goes below the current head, `"raise"` raises `Conflict`. `expect_head` raises
        `Conflict` unless the head is that message, and goes below it.
        """
        return self.extend((message,), on_conflict=on_conflict, expect_head=expect_head)[0]

    def extend(
        self,
        messages: Iterable[Message],
        *,
        on_conflict: OnConflict = "branch",
        expect_head: "str | Saved | None" = None,
    ) -> list[Saved]:
        """Save several messages, each below the one before, in one transaction."""
        return finish(self.engine.committer, self._extend_steps(messages, on_conflict, expect_head))

    def _extend(
        self,
        messages: Iterable[Message],
        on_conflict: OnConflict = "branch",
        expect_head: "str | Saved | None" = None,
        unput: tuple[bytes, ...] = (),
        put: Callable[[Envelope], tuple[ItemRow, ...]] | None = None,
        writes: Sequence[ItemWrite] = (),
        *,
        is_bounded: bool = True,
        is_clean: bool = False,
    ) -> list[Saved]:
        steps = self._extend_steps(
            messages, on_conflict, expect_head, unput, put, writes, is_bounded=is_bounded, is_clean=is_clean
        )
        return finish(self.engine.committer, steps)

    def _extend_steps(
        self,
        messages: Iterable[Message],
        on_conflict: OnConflict = "branch",
        expect_head: "str | Saved | None" = None,
        unput: tuple[bytes, ...] = (),
        put: Callable[[Envelope], tuple[ItemRow, ...]] | None = None,
        writes: Sequence[ItemWrite] = (),
        *,
        is_bounded: bool = True,
        is_clean: bool = False,
    ) -> Steps[list[Saved]]:
        """Save several messages; with them go the items `unput`, come those that `put` gives, and the `writes` of items
        are made. `is_clean`: the caller has cleaned the messages with the redactor of the store."""
        engine = self.engine
        engine.ensure_open()
        if on_conflict not in ("branch", "raise", "follow"):
            raise InvalidArgument(f"on_conflict is 'branch', 'raise' or 'follow', not {on_conflict!r:.40}")
        if not self._main and (on_conflict != "branch" or expect_head is not None):
            raise InvalidArgument(
                "this handle is off the main flow, and the head is on it", hint="append without conditions"
            )
        setup = self._setup_number()
        given = messages if type(messages) in (list, tuple) else as_messages(messages)
        clean: Sequence[Message] = [self._placeless(message) for message in given]
        # A label that was just put on them is not checked yet.
        if engine.redactor is not None and (not is_clean or self._label is not None):
            clean = clean_together(engine, clean)
        drafts = [encode_message(self.state, message, setup, is_clean=True) for message in clean]
        if not drafts:
            raise InvalidArgument("there is no message to save", hint="give at least one message")
        check_size(drafts, engine.max_write_bytes)
        if writes:
            items.check_room(self.state, writes, sum(len(draft.data) for draft in drafts))
        expected = self._expected_head(on_conflict, expect_head)

        choose = partial(self._choose_placement, on_conflict, expected)
        written = yield from self.state.add_steps(
            drafts, choose, self._note_enqueued, unput, put, writes, is_bounded=is_bounded
        )
        with self.state.lock:
            self._settle()
            if written[-1].key is not None:  # it may have been there already, and nothing was written
                self._at = self._sure = engine.message_ids.number(written[-1].id)
        return written

    def _placeless(self, message: object) -> Message:
        """A saved message is taken as a value: it gets a new place. A message that asks for a parent of its own is
        for `save`."""
        if type(message) is Message and message.parent is None and self._label is None:
            return message
        message = require_message(message)
        if not isinstance(message, Saved) and message.parent is not None:
            hint = "fork(at=parent) first, or use store.save([...])"
            raise InvalidArgument("append puts a message below where the handle stands", hint=hint)
        return message if self._label is None or message.label is not None else replace(message, label=self._label)

    def _expected_head(self, on_conflict: OnConflict, expect_head: "str | Saved | None") -> tuple[int | None] | None:
        """The head that must be there, in a tuple; None if any will do."""
        if expect_head is not None:
            return (self.engine.message_ids.number(id_of(expect_head)),)
        return (self._sure,) if on_conflict == "raise" else None

    def _choose_placement(
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
            return Placement(row.head)
        if on_conflict == "follow":
            return Placement(row.head)
        if self._epoch != self.state.epoch:  # a write of ours may have failed
            self._settle()
            self._at, self._epoch = self._sure, self.state.epoch
        if self._rewrites != row.rewrites:
            self._check_alive(row)
        return Placement(self._at, self._main, self._link if self._at is None else None)

    def _check_alive(self, row: ConversationRow) -> None:
        """Messages were deleted since we looked: ours may be among them."""
        needed = [n for n in (self._at, self._link) if n is not None]
        found = {m.number for m in self.engine.backend.messages(numbers=needed, bodies=False)}
        missing = [self.engine.message_ids.id(n) for n in needed if n not in found]
        if missing:
            text = "it was deleted; get a new handle with store.conversation(id) or fork(at=…)"
            raise NotFound("message", missing, hint=Hint("message-deleted", text))
        self._rewrites = row.rewrites

    def _note_enqueued(self, entry: PendingCommit, change: Change) -> None:
        """A message of ours is on its way, or was made anew on it; another thread's goes below it."""
        if not change.add:  # the messages were there already, and only items are written
            return
        self._at, self._epoch = change.add[-1].number, self.state.epoch
        if entry not in self._flying:
            self._flying.append(entry)

    def _settle(self) -> None:
        """Note which of our messages have arrived. They arrive in order."""
        while self._flying and self._flying[0].result is not None:
            entry = self._flying.popleft()
            if isinstance(entry.result, Done):
                self._sure = entry.batch.changes[0].add[-1].number

    # -- state beside the messages

    @property
    def items(self) -> Items:
        """The items of the conversation: named values with revisions."""
        return Items(self.engine, lambda _: self.state)

    def batch(self, *, on_conflict: OnConflict = "branch", expect_head: "str | Saved | None" = None) -> Batch:
        """Write messages and items in one transaction: `with talk.batch() as batch`. An error in the block means that
        nothing is written. The conditions are those of `append`."""
        self.engine.ensure_open()

        def write(messages: Sequence[Message], writes: Sequence[ItemWrite]) -> list[Saved]:
            if messages:
                return self._extend(messages, on_conflict, expect_head, writes=writes)
            if expect_head is not None or on_conflict != "branch":
                raise InvalidArgument("a batch of items alone has no place among the messages", hint="leave out where")
            items.write(self.state, writes)
            return []

        return Batch(self.engine, write)

    def get(self, *, keys: Iterable[str], missing_ok: bool = False) -> list[Saved]:
        """Return messages by the keys that their authors gave them, in this order, in one query. `NotFound` names the
        keys that no message has, unless `missing_ok`: then they are left out."""
        self.engine.ensure_open()
        from ._engine.finding import find_by_keys  # noqa: PLC0415  # most messages have none

        return find_by_keys(self.state, keys, missing_ok=missing_ok)

    # -- changing what was said

    def amend(self, message: "str | Saved", new: Message) -> Saved:
        """Replace the content of a message. It keeps its place, its time and its key; the old content is erased."""
        self.engine.ensure_open()
        from ._engine.editing import amend  # noqa: PLC0415  # rare

        return amend(self.state, self.engine.message_ids.number(id_of(message)), new)

    def pop(self) -> Saved:
        """Delete the message at which this handle stands, and return it. The handle then stands at its parent.
        `HasChildren` if other messages answer it."""
        self.engine.ensure_open()
        from ._engine.deleting import delete  # noqa: PLC0415  # rare

        if self._sure is None:
            raise InvalidArgument("there is no message to pop here", hint="the handle stands at the beginning")
        number, rewrites = self._sure, self.state.row.rewrites
        message = self.engine.read_message(self._own(self.engine.message_ids.id(number)), self.state)
        delete(self.engine, [message.id], recursive=False, missing_ok=False)
        with self.state.lock:
            if self._sure == number:
                self._stand_above(message, rewrites)
        return message

    def _stand_above(self, message: Saved, rewrites: int) -> None:
        """Stand at the parent of a message, or at what a compaction sums up."""
        above = message.parent or (message.link if message.main else None)
        self._at = self._sure = None if above is None else self.engine.message_ids.number(above)
        self._setup, self._rewrites, self._epoch = None, rewrites, self.state.epoch

    def clear(self) -> None:
        """Delete all messages, partial answers and items. Id, key, title, metadata and setups stay."""
        self.engine.ensure_open()
        from ._engine.editing import clear  # noqa: PLC0415  # rare

        clear(self.state)
        with self.state.lock:
            self._at = self._sure = self._link = None
            self._main, self._label, self._epoch = True, None, self.state.epoch
            self._rewrites = self.state.row.rewrites

    def copy_to(self, key: str, *, kind: str | None = None, title: str | None = None) -> "Conversation":
        """Copy the whole tree, with setups and items, to a new conversation of this key; `AlreadyExists` if there is
        one. The copy has a key for sealing and message ids of its own. `kind` is that of the source."""
        self.engine.ensure_open()
        from ._engine.editing import copy_to  # noqa: PLC0415  # rare

        copy = copy_to(self.state, check_key(key), check_kind(kind or self.state.row.kind), title)
        return Conversation(copy, copy.row.head)

    def configure(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        system_prompt: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Change what the conversation is held with, from the next message on. Earlier messages keep the setup
        they were made with."""
        self.engine.ensure_open()
        old = self.setup
        self._configure(
            check_setup(
                old.provider if provider is None else provider,
                old.model if model is None else model,
                old.system_prompt if system_prompt is None else system_prompt,
                old.tools if tools is None else tools,
                self.engine.max_write_bytes,
                old.raw if system_prompt in (None, old.system_prompt) else None,
            )
        )

    def _configure(self, new: Setup, *, is_clean: bool = False) -> None:
        """Run `configure` with a setup that was checked. `is_clean`: it was cleaned with the redactor of the store."""
        if self.engine.redactor is not None and not is_clean:
            new = self.engine.redactor.setup(new)
        number, data = self._setup_number(), encode(new)
        if (number, data) == self._compared:
            return
        if new == self.setup:
            self._compared = number, data
            return
        state = self.state
        numbers: list[int] = []

        def make(row: ConversationRow) -> Change:
            envelope = state.check(row)
            number = open_meta(envelope, row).setups + 1
            ahead = self._main and self._sure == row.head  # elsewhere it counts for what is said below this handle
            fields = {"setup": number, "setup_seq": row.next_seq} if ahead else {}
            numbers.append(number)
            change = build_description_change(state, row, setups=number, **fields)
            return replace(change, put=(*change.put, setup_item(envelope, state.id, number, new)))

        self.engine.change(state.id, make)
        self._setup = numbers[-1]
        self._compared = numbers[-1], data

    def _setup_number(self) -> int:
        """The number of the setup that is in force here."""
        if self._setup is None:
            self._setup = setup_in_force(self.state, self._sure)
        return self._setup

    # -- reading

    def thread(
        self, *, full: bool = False, attachments: Attachments = "load", last: int | None = None, events: bool = False
    ) -> list[Saved]:
        """The messages from the root to where this handle stands: what the model sees.

        `full=True` goes on across compactions, to what the roots sum up. `attachments="lazy"` gives large content as
        `Attachment`s, to be read when it is wanted. `last` is how many messages to return, counted from the end; the
        others are not read. `events=True` returns events as well.
        """
        lazy = is_lazy(attachments)
        if last is not None and (type(last) is not int or last < 0):
            raise InvalidArgument("last is a number of messages from 0 up, or None for all")
        found = [m for m in self._path(full=full, lazy=lazy, last=last, events=events) if events or m.role != "event"]
        return found if last is None else found[len(found) - min(last, len(found)) :]

    def _path(
        self, *, full: bool = False, lazy: bool = False, last: int | None = None, events: bool = True
    ) -> list[Saved]:
        """All messages from the root to here, events included; with `last`, at least so many of the last ones."""
        self.engine.ensure_open()
        path: list[Saved] = []
        number, left = self._sure, last
        while number is not None and (left is None or left > 0):
            path = self.engine.read_path(number, self.state, lazy=lazy, last=left, events=events) + path
            if last is not None:
                left = last - sum(events or message.role != "event" for message in path)
            goes_on = full and path and path[0].parent is None and path[0].main and path[0].link is not None
            number = self.engine.message_ids.number(path[0].link) if goes_on and path[0].link is not None else None
        return path

    def usage(self) -> ThreadUsage:
        """The tokens on this thread."""
        path = self._path(lazy=True)
        total = sum((m.usage for m in path if m.usage is not None), Usage())
        size = sum(len(b.content.encode()) for m in path for b in m.blocks if isinstance(b.content, str))
        counted = {name: getattr(total, name) for name in total.__struct_fields__}
        return ThreadUsage(**counted, messages=len(path), approximate_tokens=approximate_tokens(size))

    def setups(self) -> list[SetupChange]:
        """Return the setups of this thread: that of its first message, and each message from which on it is another."""
        if not self.engine.backend.items(self.state.id, b"setup/", limit=1):
            return []
        only = self._only_setup()
        if only is not None:
            return [only]
        path = [(self.engine.message_ids.number(m.id), m.id) for m in self._path(lazy=True)]
        found: list[SetupChange] = []
        known: dict[int, Setup] = {}
        rows = {row.number: row for row in self.engine.backend.messages(numbers=[number for number, _ in path])}
        reader, last = Reader(self.engine), 0
        for number, id in path:
            setup = self.engine.read_body(rows[number], self.state, reader)[1].setup
            if setup and setup != last:
                if setup not in known:
                    known[setup] = self._setup_of(setup, number)
                found.append(SetupChange(id, known[setup]))
                last = setup
        return found

    def _only_setup(self) -> SetupChange | None:
        """The setup that all was said with, at the root of this thread; None if there may be others, or if the way to
        the root has to be proven."""
        if self._sure is None or not has_one_setup(self.state.meta) or self.state.envelope.proves:
            return None
        root = self.engine.backend.root(self._sure)
        for row in [] if root is None else self.engine.backend.messages(numbers=[root]):
            setup = self.engine.read_body(row, self.state)[1].setup
            if setup:
                return SetupChange(self.engine.message_ids.id(row.number), self._setup_of(setup, row.number))
        return None

    def branches(self) -> list[Branch]:
        """Every leaf of the tree, the most recently active first."""
        self.engine.ensure_open()
        try:
            rows = self.engine.read_tree(self.state)
        except Damaged:
            rows = self.engine.reread(self.state, self.engine.read_tree)
        depths: dict[int | None, int] = {None: 0}
        for row in rows:
            depths[row.number] = depths.get(row.parent, 0) + 1
        inner = {row.parent for row in rows}
        leaves = [row for row in rows if row.number not in inner]
        bodies = self.engine.backend.messages(numbers=[row.number for row in leaves])
        reader = Reader(self.engine)
        labels: dict[int, str | None] = {}
        for row in bodies:
            with suppress(NotFound):  # deleted since we looked
                labels[row.number] = self.engine.read_for_listing(row, lazy=True, reader=reader).label
        found = []
        for row in sorted(leaves, key=lambda r: -r.seq):
            if row.number in labels:
                name, at = self.engine.message_ids.id(row.number), to_datetime(row.created_at)
                found.append(Branch(name, depths[row.number], at, labels[row.number], bool(row.main)))
        return found

    # -- answers that did not arrive whole

    def partials(self) -> "list[Partial]":
        """Return the interrupted answers, as far as they had come, the newest first."""
        self.engine.ensure_open()
        from ._engine.recovery import find_partials  # noqa: PLC0415  # most answers arrive whole

        return find_partials(self.state)

    def accept(self, partial: "Partial") -> list[Saved]:
        """Take what had come of an answer for the answer: messages that are marked as interrupted in `extra`. The
        handle has to stand at the message that they answer."""
        from ._engine.recovery import key_of, mark_interrupted  # noqa: PLC0415  # as above

        key = key_of(partial)
        if partial.parent != self.at:
            hint = "stand there first: talk.fork(at=partial.parent)"
            raise InvalidArgument("this is no answer to the message that the handle stands at", hint=hint)
        return self._extend([mark_interrupted(m) for m in partial.messages], unput=(key,), is_bounded=False)

    def discard(self, partial: "Partial") -> None:
        """Let go of what had come of an answer."""
        self.engine.ensure_open()
        from ._engine.recovery import drop, key_of  # noqa: PLC0415  # as above

        drop(self.state, key_of(partial))

    # -- summing up and parting

    def compact(self, summary: "str | Message | Callable[[list[Saved]], str | Message]") -> Saved:
        """Go on from a summary: a new root, linked to the message this handle stands at, and the handle stands there.

        The old branch stays, and `thread(full=True)` shows it. A callable gets the thread and is called before anything
        is written, so an error in it leaves the conversation as it was.
        """
        if self._sure is None or not self._main:
            raise InvalidArgument("there is nothing on the main flow to sum up", hint="append messages first")
        link = self._sure
        found = summary(self.thread()) if callable(summary) else summary
        message = Message.user(found, label="compaction") if isinstance(found, str) else found
        drafts = [encode_message(self.state, self._placeless(message), self._setup_number())]
        check_size(drafts, self.engine.max_write_bytes)

        def choose(row: ConversationRow) -> Placement:
            if row.rewrites != self._rewrites:
                self._check_alive(row)
            return Placement(None, link=link)

        (saved,) = self.state.add(drafts, choose, self._note_enqueued)
        with self.state.lock:
            self._settle()
        return saved

    def snapshot(self, *, metadata: Mapping[str, str] | None = None) -> "Snapshot":
        """This thread as a value of its own, in the words of its provider: a file's worth of JSON that other programs
        read too. Its metadata is the conversation's, and what is given here, and names the conversation and the message
        it ends with."""
        from .snapshots._thread import snapshot_of  # noqa: PLC0415  # most never need it

        if not self.refresh().exportable:  # others may have said so
            raise NotExportable(self.id)
        path, setup = self._path(), self.setup
        head = path[-1].id if path else ""
        return snapshot_of(
            path,
            setup,
            conversation=self.id,
            head=head,
            title=self.title,
            metadata=check_strings(metadata, "metadata"),
            own=self.metadata,
        )

    def detach(self, *, title: str | None = None) -> "Conversation":
        """Give this thread a life of its own: a new conversation with its own key that holds a copy of it.

        Everything a compaction sums up comes along, and so do title, project, metadata and setups. Each message keeps
        its `origin`.
        """
        from ._engine.creating import copy_thread  # noqa: PLC0415  # rare

        copy = copy_thread(self.engine, self.state, self._path(full=True, lazy=True), self._setup_number(), title)
        return Conversation(copy, copy.row.head)

    # -- moving about

    def fork(
        self, at: "str | Saved | None" = None, *, before: "str | Saved | None" = None, main: bool = True
    ) -> "Conversation":
        """A handle that stands at another message of this conversation, or right before one: to say it differently.
        Nothing is written, nothing is copied.

        With `main=False` its messages stay off the main flow: they do not become what a later resume continues.
        """
        self.engine.ensure_open()
        if at is not None and before is not None:
            raise InvalidArgument("fork at a message or before one, not both")
        rewrites = self.state.row.rewrites  # before we look, so that a deletion meanwhile is noticed
        if at is None and before is None:
            return Conversation(
                self.state,
                self._sure,
                main=main and self._main,
                link=self._link,
                label=self._label,
                setup=self._setup_number(),
                rewrites=self._rewrites,
            )
        row, body = self.engine.read_body(self._own(id_of(at if before is None else before)), self.state)
        root = row.parent is None
        return Conversation(
            self.state,
            row.number if before is None else row.parent,
            main=main and bool(row.main),
            link=row.link if before is not None and root else None,
            label=None if row.main else body.label,
            setup=body.setup,
            rewrites=rewrites,
        )

    def follow(self) -> "Conversation":
        """Stand at the conversation's head as it is now."""
        self.refresh()
        with self.state.lock:
            self._settle()
            self._at = self._sure = self.state.row.head
            self._main, self._link, self._label, self._setup = True, None, None, None
            self._epoch, self._rewrites = self.state.epoch, self.state.row.rewrites
        return self

    def _move_to(self, other: "Conversation") -> None:
        """Stand where another handle on the same conversation stands, with the setup that is in force there."""
        with self.state.lock:
            self._settle()
            self._at = self._sure = other._sure
            self._main, self._link, self._label, self._setup = other._main, other._link, other._label, other._setup
            self._epoch, self._rewrites = self.state.epoch, other._rewrites

    def undo(self) -> list[Saved]:
        """Take back one turn: stand before the last message of the user, and so does the conversation, also when it is
        opened again. Returns what was stepped over; nothing is deleted.

        The head moves with the handle if it is one of these messages. If others have said something elsewhere, it
        stays. A handle off the main flow never moves it.
        """
        path = self._path()
        first = next((i for i in reversed(range(len(path))) if path[i].role == "user"), None)
        if first is None:
            raise InvalidArgument("there is no turn to undo here", hint="the handle stands at the beginning")
        above = path[first].parent or (path[first].link if path[first].main else None)  # back over a compaction
        target = None if above is None else self.engine.message_ids.number(above)
        if self._main:
            self._move_head({self.engine.message_ids.number(m.id) for m in path[first:]}, target)
        with self.state.lock:
            self._at = self._sure = target
            self._setup = None
        return path[first:]

    def _move_head(self, undone: set[int], target: int | None) -> None:
        """Let the head be the target, if it is one of the messages that are undone."""

        def make(row: ConversationRow) -> Change | None:
            if row.head not in undone:
                return None
            if target is not None:
                self._own(self.engine.message_ids.id(target))  # NotFound if it was deleted meanwhile
            return build_row_change(self.state, row, head=target)

        self.engine.change(self.state.id, make)

    def subagent(self, name: str, run_id: str, *, call: "str | Saved | None" = None) -> "Conversation":
        """A handle for the trace of a sub-agent: a root of its own, labelled `subagent:<name>:<run_id>`, linked to
        the message that started it (`call`, by default the one this handle stands at), and kept out of the main
        flow."""
        self.engine.ensure_open()
        for what, value in (("name", name), ("run_id", run_id)):
            if not isinstance(value, str) or not value or ":" in value:
                raise InvalidArgument(f"the {what} of a sub-agent is text without a colon")
        rewrites = self._rewrites if call is None else self.state.row.rewrites
        link = self._own(id_of(call)).number if call is not None else self._sure
        return Conversation(
            self.state,
            None,
            main=False,
            link=link,
            label=f"subagent:{name}:{run_id}",
            setup=self._setup_number(),
            rewrites=rewrites,
        )

    def _own(self, id: str) -> MessageRow:
        """The row of a message of this conversation."""
        rows = self.engine.backend.messages(numbers=[self.engine.message_ids.number(id)])
        if not rows or rows[0].conversation != self.state.id:
            raise NotFound("message in this conversation", [id])
        return rows[0]

    # -- describing

    def rename(self, title: str) -> None:
        self.engine.ensure_open()
        check_text(title, "the title", self.engine.max_write_bytes)
        redactor = self.engine.redactor
        self._describe(title=title if redactor is None else redactor.text(title))

    def describe(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata."""
        self.engine.ensure_open()
        given, redactor = check_strings(metadata, "metadata"), self.engine.redactor
        self._describe(metadata=given if redactor is None else redactor.strings(given))

    def _describe(self, **fields: object) -> None:
        def make(row: ConversationRow) -> Change | None:
            meta = open_meta(self.state.check(row), row)
            same = all(getattr(meta, name) == value for name, value in fields.items())
            return None if same else build_description_change(self.state, row, **fields)

        self.engine.change(self.state.id, make)

    def label(self, label: str | None, *, message: "str | Saved | None" = None) -> None:
        """Label a message (by default the one this handle stands at), or take its label away with None."""
        self.engine.ensure_open()
        if label is not None:
            check_text(label, "the label", self.engine.max_write_bytes)
            if self.engine.redactor is not None:
                self.engine.redactor.name(label, "the label")
        number = self._sure if message is None else self.engine.message_ids.number(id_of(message))
        if number is None:
            raise InvalidArgument("there is no message to label yet")
        state, engine = self.state, self.engine

        def make(row: ConversationRow) -> Change | None:
            old, body = engine.read_body(self._own(engine.message_ids.id(number)), state)
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

    def hold(self) -> None:
        """Keep this conversation whatever happens, until `release`: deleting and purging raise `Held`."""
        self._hold(True)

    def release(self) -> None:
        self._hold(False)

    def _hold(self, held: bool) -> None:
        self.engine.ensure_open()

        def make(row: ConversationRow) -> Change | None:
            self.engine.check_row(row)
            return None if row.held == held else build_row_change(self.state, row, held=held)

        self.engine.change(self.state.id, make)


def is_lazy(attachments: str) -> bool:
    """Are attachments to be read only when they are wanted?"""
    if attachments not in ("load", "lazy"):
        raise InvalidArgument(f"attachments is 'load' or 'lazy', not {attachments!r:.40}")
    return attachments == "lazy"
