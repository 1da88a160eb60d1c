"""The conversation handle: a cursor that stands at one message.

`append` puts a message below the one the handle stands at and moves the handle there. `fork` gives another handle
that stands somewhere else; nothing is written or copied until it appends. The conversation's **head** is its newest
main-flow message, the one that a later `store.conversation(id)` continues; every append moves it, except those of
sub-agents and of `fork(at, main=False)`.

A handle belongs to one task. Sharing one between threads is safe, and their messages follow each other in some order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from ._engine import describing, items
from ._engine.appending import HandlePosition, OnConflict, add_summary, extend_steps
from ._engine.filters import check_key, check_kind
from ._engine.items import ItemWrite
from ._engine.reading import list_branches, list_setups, read_thread, thread_usage
from ._engine.setups import check_setup, check_text
from ._engine.state import ConversationState, ItemChanges
from ._engine.steps import finish
from .errors import InvalidArgument, NotExportable
from .items import Batch, Items
from .model import Message, Saved, Setup, check_strings, id_of, to_datetime

if TYPE_CHECKING:
    from .backend import ConversationRow
    from .reports import Branch, Partial, SetupChange, ThreadUsage
    from .snapshots import Snapshot

__all__ = ["Conversation"]

Attachments = Literal["load", "lazy"]


class Conversation:
    """A handle on one conversation. Get one from `store.start`, `store.conversation`, `store.latest` or `fork`."""

    def __init__(self, position: HandlePosition) -> None:
        self.position = position
        self.state = position.state
        self.engine = position.engine

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
        return None if self.position.at is None else self.engine.message_ids.id(self.position.at)

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
        return describing.setup_at(self.position)

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
        `Conflict` unless the head is that message, and goes below it; with `on_conflict="replace"` it goes below where
        the handle stands, and what was said from there to the head becomes a branch.
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
        return finish(self.engine.committer, extend_steps(self.position, messages, on_conflict, expect_head))

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
                changes = ItemChanges(writes=writes)
                steps = extend_steps(self.position, messages, on_conflict, expect_head, changes)
                return finish(self.engine.committer, steps)
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

        position = self.position
        if position.at is None:
            raise InvalidArgument("there is no message to pop here", hint="the handle stands at the beginning")
        number, rewrites = position.at, self.state.row.rewrites
        message = self.engine.read_message(position.own_row(self.engine.message_ids.id(number)), self.state)
        delete(self.engine, [message.id], recursive=False, missing_ok=False)
        with self.state.lock:
            if position.at == number:
                position.move(position.number_above(message))
                position.rewrites, position.epoch = rewrites, self.state.epoch
        return message

    def clear(self) -> None:
        """Delete all messages, partial answers and items. Id, key, title, metadata and setups stay."""
        self.engine.ensure_open()
        from ._engine.editing import clear  # noqa: PLC0415  # rare

        clear(self.state)
        with self.state.lock:
            self.position.move_to_beginning()

    def copy_to(self, key: str, *, kind: str | None = None, title: str | None = None) -> "Conversation":
        """Copy the whole tree, with setups and items, to a new conversation of this key; `AlreadyExists` if there is
        one. The copy has a key for sealing and message ids of its own. `kind` is that of the source."""
        self.engine.ensure_open()
        from ._engine.editing import copy_to  # noqa: PLC0415  # rare

        copy = copy_to(self.state, check_key(key), check_kind(kind or self.state.row.kind), title)
        return handle_on(copy)

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
        new = check_setup(
            old.provider if provider is None else provider,
            old.model if model is None else model,
            old.system_prompt if system_prompt is None else system_prompt,
            old.tools if tools is None else tools,
            self.engine.max_write_bytes,
            old.raw if system_prompt in (None, old.system_prompt) else None,
        )
        describing.configure(self.position, new)

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
        path = read_thread(self.state, self.position.at, full=full, lazy=lazy, last=last, events=events)
        found = [m for m in path if events or m.role != "event"]
        return found if last is None else found[len(found) - min(last, len(found)) :]

    def usage(self) -> "ThreadUsage":
        """The tokens on this thread."""
        return thread_usage(read_thread(self.state, self.position.at, lazy=True))

    def setups(self) -> "list[SetupChange]":
        """Return the setups of this thread: that of its first message, and each message from which on it is another."""
        return list_setups(self.state, self.position.at)

    def branches(self) -> "list[Branch]":
        """Every leaf of the tree, the most recently active first."""
        self.engine.ensure_open()
        return list_branches(self.state)

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
        answer = [mark_interrupted(m) for m in partial.messages]
        steps = extend_steps(self.position, answer, changes=ItemChanges(unput=(key,)), is_bounded=False)
        return finish(self.engine.committer, steps)

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
        if self.position.at is None or not self.position.main:
            raise InvalidArgument("there is nothing on the main flow to sum up", hint="append messages first")
        found = summary(self.thread()) if callable(summary) else summary
        message = Message.user(found, label="compaction") if isinstance(found, str) else found
        return add_summary(self.position, message)

    def snapshot(self, *, metadata: Mapping[str, str] | None = None) -> "Snapshot":
        """This thread as a value of its own, in the words of its provider: a file's worth of JSON that other programs
        read too. Its metadata is the conversation's, and what is given here, and names the conversation and the message
        it ends with."""
        from .snapshots._thread import snapshot_of  # noqa: PLC0415  # most never need it

        if not self.refresh().exportable:  # others may have said so
            raise NotExportable(self.id)
        path, setup = read_thread(self.state, self.position.at), self.setup
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

        path = read_thread(self.state, self.position.at, full=True, lazy=True)
        copy = copy_thread(self.engine, self.state, path, self.position.setup_number(), title)
        return handle_on(copy)

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
        here = self.position
        rewrites = self.state.row.rewrites  # before we look, so that a deletion meanwhile is noticed
        if at is None and before is None:
            return Conversation(here.copy(main=main))
        row, body = self.engine.read_body(here.own_row(id_of(at if before is None else before)), self.state)
        root = row.parent is None
        position = HandlePosition(
            self.state,
            row.number if before is None else row.parent,
            main=main and bool(row.main),
            link=row.link if before is not None and root else None,
            label=None if row.main else body.label,
            setup=body.setup,
            rewrites=rewrites,
        )
        return Conversation(position)

    def follow(self) -> "Conversation":
        """Stand at the conversation's head as it is now."""
        self.refresh()
        self.position.move_to_head()
        return self

    def undo(self) -> list[Saved]:
        """Take back one turn: stand before the last message of the user, and so does the conversation, also when it is
        opened again. Returns what was stepped over; nothing is deleted.

        The head moves with the handle if it is one of these messages. If others have said something elsewhere, it
        stays. A handle off the main flow never moves it.
        """
        path = read_thread(self.state, self.position.at)
        first = next((i for i in reversed(range(len(path))) if path[i].role == "user"), None)
        if first is None:
            raise InvalidArgument("there is no turn to undo here", hint="the handle stands at the beginning")
        target = self.position.number_above(path[first])  # back over a compaction
        if self.position.main:
            describing.move_head(self.position, {self.engine.message_ids.number(m.id) for m in path[first:]}, target)
        with self.state.lock:
            self.position.move(target)
        return path[first:]

    def subagent(self, name: str, run_id: str, *, call: "str | Saved | None" = None) -> "Conversation":
        """A handle for the trace of a sub-agent: a root of its own, labelled `subagent:<name>:<run_id>`, linked to
        the message that started it (`call`, by default the one this handle stands at), and kept out of the main
        flow."""
        self.engine.ensure_open()
        for what, value in (("name", name), ("run_id", run_id)):
            if not isinstance(value, str) or not value or ":" in value:
                raise InvalidArgument(f"the {what} of a sub-agent is text without a colon")
        here = self.position
        rewrites = here.rewrites if call is None else self.state.row.rewrites
        link = here.own_row(id_of(call)).number if call is not None else here.at
        position = HandlePosition(
            self.state,
            None,
            main=False,
            link=link,
            label=f"subagent:{name}:{run_id}",
            setup=here.setup_number(),
            rewrites=rewrites,
        )
        return Conversation(position)

    # -- describing

    def rename(self, title: str) -> None:
        self.engine.ensure_open()
        check_text(title, "the title", self.engine.max_write_bytes)
        redactor = self.engine.redactor
        describing.describe(self.state, title=title if redactor is None else redactor.text(title))

    def describe(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata."""
        self.engine.ensure_open()
        given, redactor = check_strings(metadata, "metadata"), self.engine.redactor
        describing.describe(self.state, metadata=given if redactor is None else redactor.strings(given))

    def label(self, label: str | None, *, message: "str | Saved | None" = None) -> None:
        """Label a message (by default the one this handle stands at), or take its label away with None."""
        self.engine.ensure_open()
        if label is not None:
            check_text(label, "the label", self.engine.max_write_bytes)
            if self.engine.redactor is not None:
                self.engine.redactor.name(label, "the label")
        number = self.position.at if message is None else self.engine.message_ids.number(id_of(message))
        if number is None:
            raise InvalidArgument("there is no message to label yet")
        describing.set_label(self.position, number, label)

    def hold(self) -> None:
        """Keep this conversation whatever happens, until `release`: deleting and purging raise `Held`."""
        self.engine.ensure_open()
        describing.set_held(self.state, True)

    def release(self) -> None:
        self.engine.ensure_open()
        describing.set_held(self.state, False)


def handle_on(state: ConversationState) -> Conversation:
    """Return a handle that stands at the head of the optimistic row."""
    return Conversation(HandlePosition(state, state.row.head))


def handle_at_head(state: ConversationState, row: "ConversationRow") -> Conversation:
    """Return a handle that stands at the head of a row: the stored one, not the optimistic one of the state."""
    return Conversation(HandlePosition(state, row.head, rewrites=row.rewrites))


def is_lazy(attachments: str) -> bool:
    """Are attachments to be read only when they are wanted?"""
    if attachments not in ("load", "lazy"):
        raise InvalidArgument(f"attachments is 'load' or 'lazy', not {attachments!r:.40}")
    return attachments == "lazy"
