"""The results of calls, as values.

The store and its services fill them in, and decide nothing here. The pages of listings are in `listing`, the report of
a sweep in `retention`.
"""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from .accountability import Actor
from .events import PurgeFailure
from .model import Message, Saved, Setup, Usage

__all__ = [
    "Branch",
    "CloseReport",
    "Hit",
    "Maintenance",
    "Partial",
    "Problem",
    "PurgePlan",
    "PurgeReport",
    "PurgeTarget",
    "RecoverySnapshot",
    "Repair",
    "Replay",
    "RotationProgress",
    "RotationReport",
    "SetupChange",
    "Stats",
    "ThreadUsage",
    "VerifyReport",
]

_REPAIRS = {
    "missing-result": "a call had no result: one was put in that says that it is not known",
    "orphan-result": "a tool result answered no call: it is left out",
    "duplicate-result": "a call had a second result: it is left out",
    "late-result": "a tool result came later than it must: it is sent right after its call",
    "unanswerable-call": "a call had no result, and none can be made up: it is left out",
    "missing-attachment": "an attachment is missing from the store: a text that says so is sent in its place",
    "lone-thought": "a thought was not followed by what the model did next: it is left out",
}


class Stats(Struct, frozen=True):
    """How much a store holds."""

    conversations: int
    messages: int
    content_bytes: int
    approximate_tokens: int
    stored_bytes: int
    oldest: datetime | None
    newest: datetime | None


class Hit(Struct, frozen=True):
    """A message that a search found."""

    message_id: str
    conversation: str
    role: str
    created_at: datetime
    snippet: str
    spans: tuple[tuple[int, int], ...]  # the matching places in the snippet: from, to
    score: float  # higher is better; 0 for matches in the order of time
    tier: str = "match"  # or "nearest"


class Branch(Struct, frozen=True):
    """A leaf of the tree."""

    id: str
    depth: int  # messages from the root to here
    active_at: datetime
    label: str | None
    main: bool


class SetupChange(Struct, frozen=True):
    """The message of a thread from which on a setup was in force."""

    message_id: str
    setup: Setup


class ThreadUsage(Usage, frozen=True, array_like=False):
    """The tokens of one thread: as providers counted them, and an estimate from its size."""

    messages: int = 0
    approximate_tokens: int = 0


class Partial(Struct, frozen=True):
    """The part of an answer that had arrived when it stopped."""

    id: str
    parent: str  # the message that it answers
    messages: tuple[Message, ...]
    at: datetime | None  # when it was kept
    problem: str | None = None  # why it could not be read; then it has no messages, and the tree is what there is

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.messages)


class RecoverySnapshot(Struct, frozen=True):
    """A conversation whose recording never came to its end, as it stands."""

    conversation_id: str
    at: datetime  # as of when this is
    head: str | None = None  # the message that the conversation stood at
    messages: tuple[Saved, ...] = ()  # the thread that leads there
    partials: tuple[Partial, ...] = ()  # of answers, the newest first
    state: dict[str, object] = {}  # of the caller, given for this case
    rebuilt: bool = False  # the mark was torn, and is made anew from the tree; the caller's state is lost


class Repair(Struct, frozen=True):
    """One change that a repair made.

    >>> print(Repair("orphan-result", "call_1", "read", "k3b9xa"))
    a tool result answered no call: it is left out (read, call call_1, message k3b9xa)
    """

    kind: str
    call_id: str | None = None
    tool: str | None = None
    message_id: str | None = None

    def __str__(self) -> str:
        about = [self.tool or "", f"call {self.call_id}" if self.call_id else ""]
        about.append(f"message {self.message_id}" if self.message_id else "")
        named = ", ".join(ascii(word)[1:-1] for word in about if word)
        return _REPAIRS.get(self.kind, self.kind) + (f" ({named})" if named else "")


class Problem(Struct, frozen=True):
    """One thing that is wrong, and where."""

    what: str
    conversation: str | None = None
    message: str | None = None

    def __str__(self) -> str:
        where = self.message or self.conversation
        return f"{where}: {self.what}" if where else self.what


class VerifyReport(Struct, frozen=True):
    """The result of `verify`."""

    problems: tuple[Problem, ...]
    conversations: int
    messages: int
    unread: tuple[Problem, ...] = ()  # kept busy by other processes: not read, and sound or not

    @property
    def is_complete(self) -> bool:
        """True if everything was read."""
        return not self.unread

    @property
    def ok(self) -> bool:
        """True if everything was read, and there are no problems."""
        return self.is_complete and not self.problems


class Maintenance(Struct, frozen=True):
    """The result of `maintain`."""

    packed: int  # runs of messages
    indexed: int  # messages that the text index took in
    collected: int  # unreferenced attachments
    complete: bool  # nothing is left to do
    described: int = 0  # conversations of an older store that were looked at, so that their metadata finds them


class PurgeTarget(Struct, frozen=True):
    """A conversation that a purge by person selects."""

    conversation: str
    kind: str
    title: str
    messages: int
    active_at: datetime | None  # None: unknown, because it is damaged
    stays: Literal["held", "floor", "damaged"] | None = None  # why it stays; a damaged one may be of somebody else

    def __str__(self) -> str:
        what = f"{self.conversation}: {self.kind}, {self.messages:,} message{'' if self.messages == 1 else 's'}"
        if self.stays is None:
            return f"purge {what}"
        return f"keep {what}: {_STAYS[self.stays]}"


_STAYS = {
    "held": "on hold",
    "floor": "younger than the retention floor",
    "damaged": "damaged, nobody knows whether it matches",
}


class PurgePlan(Struct, frozen=True):
    """The plan of a purge by person."""

    targets: tuple[PurgeTarget, ...]

    @property
    def purges(self) -> tuple[PurgeTarget, ...]:
        """The conversations to purge."""
        return tuple(target for target in self.targets if target.stays is None)

    @property
    def stays(self) -> tuple[PurgeTarget, ...]:
        """The conversations that match and are on hold, and those that cannot be read."""
        return tuple(target for target in self.targets if target.stays is not None)

    def explain(self) -> str:
        """The plan as text: one summary line, then one line for each conversation. No title is in it."""
        first = f"{len(self.purges):,} to purge, {len(self.stays):,} to stay."
        return "\n".join([first, *map(str, self.targets)])


class PurgeReport(Struct, frozen=True):
    """The result of a purge."""

    reason: str
    started_at: datetime
    completed_at: datetime
    purged_count: int
    failures: tuple[PurgeFailure, ...] = ()
    scrub_pending: bool = False  # a reader delays the removal of the last bytes from the files; `scrub` finishes it
    purged: tuple[str, ...] = ()  # ids: of conversations, and of messages that were in quarantine
    actor: Actor | None = None  # on whose behalf; None: nobody was named


class Replay(Struct, frozen=True):
    """The result of replaying the erasure ledger."""

    purge: PurgeReport  # of the conversations that had come back
    entries: int = 0  # in the file
    added: int = 0  # of them, those that the ledger of the store did not have


class RotationProgress(Struct, frozen=True):
    """The progress of a rotation."""

    done: int
    total: int  # conversations

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} conversations"


class RotationReport(Struct, frozen=True):
    """The result of a rotation."""

    conversations: int  # that were brought up to date
    complete: bool  # nothing needs the old key any more
    failures: tuple[tuple[str, str], ...] = ()  # id and error: these still need it
    scrub_pending: bool = False  # a reader delays the removal of the old bytes from the files; `scrub` finishes it
    actor: Actor | None = None  # on whose behalf it was begun


class CloseReport(Struct, frozen=True):
    """The work that closing a store could not finish."""

    complete: bool = True  # nothing is left
    writes: int = 0  # still on their way: each may be kept, or not
    held: tuple[str, ...] = ()  # why what recorders held could not be written
    events: int = 0  # that listeners have not heard
    purges: int = 0  # whose last bytes are still in the files, until the next maintenance
    unfinished: tuple[str, ...] = ()  # what else could not be done, or not in time

    def __str__(self) -> str:
        counts = ((self.writes, "writes"), (len(self.held), "held"), (self.events, "events"), (self.purges, "purges"))
        left = [f"{count} {what}" for count, what in counts if count]
        return ", ".join([*left, *self.unfinished]) or "nothing is left"
