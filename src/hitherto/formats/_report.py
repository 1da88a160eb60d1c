"""The report of an import, and how it is put together.

`Summary` collects the results of the conversations, however they were imported, and makes the `Loaded` that callers
get.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..conversation import Conversation
from ..dialects._missing_attachments import holes_in
from ..model import Usage, trace_of
from ..snapshots import Unreadable
from ._by_identity import Merged
from ._importing import Admitted, Plan
from ._types import PortableConversation, PortableMessage, Waiting


class Loaded(Struct, frozen=True):
    """The report of an import. Iterating over it yields the conversations that got new messages."""

    format: str
    found: str  # what in the file shows its format
    added: tuple[Conversation, ...] = ()  # new ones, and those that have grown
    new: int = 0  # conversations that were not there
    unchanged: int = 0  # conversations in which everything was there already
    messages: int = 0  # that were added
    ids: dict[str, str] = {}  # conversation/message as the file names it: its id here, added now or there already
    renamed: dict[str, str] = {}  # conversations that have another id here than in the file
    notes: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    dry: bool = False  # nothing was written: this is what would be
    known: int = 0  # messages that the store had already
    amended: int = 0  # messages that had grown since they were imported
    purged: int = 0  # conversations that were purged or deleted here, and stay away
    unknown: dict[str, int] = {}  # records of types that the importer does not know, kept beside the conversations
    bookkeeping: dict[str, int] = {}  # the same of types that it knows, and that are no messages
    waiting: tuple[Waiting, ...] = ()  # ends of files that are being written, for the next import
    leaves: int = 0  # ends of branches among what was added
    subagents: int = 0  # traces of sub-agents among what was added
    usage: Usage = Usage()  # the tokens of the answers that were added
    skipped: int = 0  # files of no format that is known

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self.added)

    def __len__(self) -> int:
        return len(self.added)

    def __bool__(self) -> bool:
        """Return True: a report is true even if nothing was added."""
        return True


class Summary:
    """Builds the report of an import."""

    def __init__(self, format: str, found: str, dry: bool, *, skipped: int = 0) -> None:
        self._start = Loaded(format, found, dry=dry, skipped=skipped)
        self.dry = dry
        self.unreadable: list[Unreadable] = []
        self.waiting: list[Waiting] = []
        self.seen = 0
        self._added: list[Conversation] = []
        self._new = self._unchanged = self._purged = self._messages = 0
        self._ids: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        self._notes: list[str] = []
        self._merged: dict[str, _MergedParts] = {}
        self._known = self._amended = 0
        self._usage = Usage()
        self._unknown, self._bookkeeping = Counter[str](), Counter[str]()

    def take_merged(self, portable: PortableConversation, done: Merged) -> None:
        """Add a conversation that was imported by identity, or a part of it."""
        self.seen += len(portable.messages)
        whole = self._merged.setdefault(done.id or portable.id, _MergedParts())
        whole.add(portable, done)
        self._messages += done.added
        self._usage += done.usage
        self._known += done.known
        self._amended += done.amended
        self._unknown += done.records
        self._bookkeeping += done.bookkeeping
        self.unreadable += done.unreadable
        self._notes += [f"conversation {done.id or portable.id:.40}: {note}" for note in done.notes]
        if done.id not in ("", portable.id) and done.is_new:
            self._renamed[portable.id] = done.id

    def take(self, portable: PortableConversation, done: Admitted | Plan) -> None:
        plan = done.plan if isinstance(done, Admitted) else done
        self.seen += len(portable.messages)
        self._messages += len(plan.new)
        self._new += plan.there is None and not plan.is_purged
        self._purged += plan.is_purged
        self._unchanged += plan.is_done
        if plan.id != portable.id:
            self._renamed[portable.id] = plan.id
        if plan.renamed:
            self._notes.append(f"conversation {portable.id:.40} has the id of another one, and is {plan.id} here")
        self._notes += [f"conversation {plan.id}: {note}" for note in plan.notes]
        self._notes += [f"conversation {plan.id}: {note}" for note in holes(plan.new)]
        if isinstance(done, Admitted):
            names = done.conversation.engine.message_ids
            known = {id: names.id(number) for id, number in plan.known.items()}
            self._ids |= {f"{portable.id}/{id}": own for id, own in (known | done.ids).items()}
            if not plan.is_done:
                self._added.append(done.conversation)

    def report(self) -> Loaded:
        """Return the report."""
        merged = self._merged.values()
        return replace(
            self._start,
            added=(*self._added, *(one.conversation for one in merged if one.conversation is not None)),
            new=self._new + sum(one.is_new for one in merged),
            unchanged=self._unchanged + sum(one.is_unchanged for one in merged),
            known=self._known,
            amended=self._amended,
            usage=self._usage,
            purged=self._purged + sum(one.is_purged for one in merged),
            unknown=dict(self._unknown),
            bookkeeping=dict(self._bookkeeping),
            waiting=tuple(self.waiting),
            leaves=sum(len(one.leaves) for one in merged),
            subagents=sum(len(one.traces) for one in merged),
            messages=self._messages,
            ids=self._ids,
            renamed=self._renamed,
            notes=tuple(self._notes),
            unreadable=tuple(self.unreadable),
        )


class _MergedParts:
    """The parts of one conversation, as far as they were imported."""

    def __init__(self) -> None:
        self.conversation: Conversation | None = None
        self.is_new = self.is_purged = self.is_changed = False
        self.leaves: set[str] = set()
        self.traces: set[str] = set()

    def add(self, portable: PortableConversation, done: Merged) -> None:
        """Add a part."""
        self.conversation = done.conversation or self.conversation
        self.is_new = self.is_new or done.is_new
        self.is_purged = self.is_purged or done.is_purged
        self.is_changed = self.is_changed or bool(done.added or done.amended or done.conversation)
        also = {id: said.id for said in portable.messages for id in said.also}
        for said in portable.messages:
            if said.id not in done.fresh:
                continue
            if said.parent is not None:
                self.leaves.discard(also.get(said.parent, said.parent))
            trace = trace_of(said.message.label)
            if trace is not None:
                self.traces.add(trace)
            else:
                self.leaves.add(said.id)

    @property
    def is_unchanged(self) -> bool:
        return not (self.is_new or self.is_purged or self.is_changed)


def holes(messages: Iterable[PortableMessage]) -> Iterator[str]:
    """Describe, for the report, the attachments that the source store has lost."""
    for said in messages:
        for hole in holes_in(said.message):
            yield f"message {said.id:.40}: an attachment of {hole.size:,} bytes is missing, and stays so"
