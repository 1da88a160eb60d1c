"""One conversation that is being recorded: its tree of fingerprints, the answers it waits for, and its writes.

The first write of a recorder to a conversation leaves a mark there, and the end of the recording removes it. A mark
that is found later was left by a recorder that died (`_engine.recovery`).

An answer that cannot be written now is held here and written before anything else.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4
from weakref import ref

from msgspec import Struct, field

from .._engine.appending import HandlePosition, extend_steps
from .._engine.recovery import marks
from .._engine.state import ItemChanges
from .._engine.steps import finish
from .._sealing.codec import Envelope
from ..backend import ItemRow
from ..conversation import Conversation
from ..dialects import Dialect
from ..errors import Closed, HithertoError, StorageError
from ..events import warn
from ..listing import MessageListing, scan
from ..model import Message, Saved, Setup, trace_of
from ._closing import open_recordings
from ._history_match import History, Position, Tree, fingerprint_of_one

_HANDLES = 64  # handles of one conversation that are kept ready for the next request
_MARK_TRUST_SECONDS = 1.0  # how long our mark counts as present: another process may end a recording that both share
SIDE_CALL = "side-call"  # the label of requests that do not continue a conversation
_SIDE_CALL_PREFIX = f"subagent:{SIDE_CALL}:"
TRANSIENT = (StorageError, Closed)  # errors that may pass: a full disk, a busy lock


class Place(Struct, eq=False, weakref=True):
    """The place in a conversation where a chat stands: its next message goes below."""

    recorded: "RecordedConversation"
    handle: Conversation
    follower: Conversation | None = None  # the handle of the caller, which moves along
    partials: tuple[bytes, ...] = ()  # the keys under which the answer on its way is kept
    asked: float = field(default_factory=time.perf_counter)  # when the message at this place was kept
    position: Position | None = None  # where the history of its request ends, if that is certain

    def lead(self) -> None:
        """Move the handle of the caller to this place."""
        if self.follower is not None:
            self.follower.position.move_to(self.handle.position)


class CleanRequest(Struct, frozen=True):
    """The messages of a request without secrets, its setup, and the fingerprints by which it is compared."""

    messages: Sequence[Message]
    setup: Setup
    history: History


class Claim(Struct, eq=False, frozen=True):
    """A conversation that a request is about to continue, and the message that it continues from."""

    recorded: "RecordedConversation"
    at: str | None

    def release(self) -> None:
        self.recorded.claims.remove(self)


def _drop(waiting: "dict[int, ref[Place]]", name: int, gone: "ref[Place]") -> None:
    if waiting.get(name) is gone:  # another place may have its number by now
        del waiting[name]


class RecordedConversation:
    """One conversation that is being recorded."""

    def __init__(self, talk: Conversation, dialect: Dialect) -> None:
        self.talk = talk.fork()  # a handle that does not move
        self.opening: Setup | None = None  # the setup that it began with, if it was begun here
        self.claims: list[Claim] = []  # of requests that are about to continue it
        self._waiting: dict[int, ref[Place]] = {}  # questions that were sent and may still be answered
        self.lock = threading.RLock()
        self.tree = Tree(dialect)
        # The roots of a sub-agent's run that begins here: another run may have its label, and begin with its question.
        self._roots: set[str] | None = set() if talk.position.label is not None and talk.at is None else None
        self._handles: dict[str | None, Conversation] = {}
        self._responses: dict[str, str] = {}  # the last message of each answer, by the provider's name of the answer
        self._pending: list[tuple[Place, list[Message]]] = []
        self._mark_trusted_until = 0.0
        self.is_counted = False  # the store counts this recorder among those of the conversation
        self.is_ended = False  # later writes leave no mark

    def catch_up(self) -> None:
        """Read the messages that other writers added, and drop those that they deleted."""
        self.talk.refresh()
        row = self.talk.state.row
        seq, rewrites = self.tree.seen
        if rewrites != row.rewrites:
            self.tree, seq = Tree(self.tree.dialect), 0
        if seq != row.next_seq:
            new: list[Saved] = []
            engine = self.talk.engine
            newest_first = scan(engine.backend, self.talk.state.id, newest_first=True)
            for message in MessageListing(engine, newest_first, ""):
                if message.seq < seq:
                    break
                new.append(message)
            self._index(new[::-1])
        self.tree.seen = (row.next_seq, row.rewrites)

    def _is_ours(self, message: Saved) -> bool:
        """Is the message on the flow that is recorded: this run of a sub-agent, or the main flow?"""
        own = self.talk.position.label
        if own is None:
            return (message.label or "").startswith(_SIDE_CALL_PREFIX) or trace_of(message.label) is None
        began_here = self._roots is None or message.id in self._roots or self.tree.has(message.parent)
        return message.label == own and began_here

    def expect_answer(self, place: Place) -> None:
        """Note that the question at this place is sent.

        An answer may come until `settle`, or until no caller holds the place any more: a plain HTTP client does not
        report a request that failed.
        """
        self._waiting[id(place)] = ref(place, partial(_drop, self._waiting, id(place)))

    def settle(self, place: Place) -> None:
        """Note that the question was answered, or never will be."""
        self._waiting.pop(id(place), None)

    def _unanswered_places(self) -> list[Place]:
        """The places that wait for an answer. The dictionary is copied at once: other threads send and settle
        meanwhile, and none of them takes the lock for it."""
        found = (reference() for reference in list(self._waiting.values()))
        return [place for place in found if place is not None]

    def is_waiting(self, at: str | None) -> bool:
        """Was this question sent, and may its answer still come?"""
        return any(place.handle.at == at for place in self._unanswered_places())

    def is_free(self, at: str | None) -> bool:
        """Does no message, no claim and no expected answer continue this message?"""
        is_claimed = any(claim.at == at for claim in list(self.claims))
        return not is_claimed and not self.tree.has_below(at) and not self.is_waiting(at)

    @property
    def has_main_flow(self) -> bool:
        """Was a question on the main flow answered, or may one still be?"""
        return self.tree.has_main_answer or any(place.handle.position.main for place in self._unanswered_places())

    def open_side_call(self) -> Conversation:
        """A handle for a request that does not continue the conversation: a root of its own, off the main flow, linked
        to the newest message of the main flow."""
        return self.talk.subagent(SIDE_CALL, uuid4().hex[:12], call=self.newest)

    def open_root(self) -> Conversation:
        """A handle for a history that the client has begun anew: a new root on the main flow, linked to the newest
        message, as a compaction is."""
        link = None if self.newest is None else self.talk.engine.message_ids.number(self.newest)
        return Conversation(HandlePosition(self.talk.state, None, link=link))

    def _index(self, messages: Sequence[Saved], history: History = ()) -> None:
        for i, message in enumerate(messages):
            if not self._is_ours(message):
                continue
            is_new = message.key is None  # with a key it may be a message that was there already
            self.tree.add(message, fingerprint_of_one(history[i]) if history and is_new else None)
            for name in ("response_id", "within"):
                value = (message.extra or {}).get(name)
                if isinstance(value, str):
                    self._responses[value] = message.id

    def note_written(self, messages: Sequence[Saved], history: History = ()) -> None:
        """Index the messages that this recorder wrote. If no other writer came in between, the tree is still
        complete. `history` has the fingerprints of the messages, if they were made already."""
        if self._roots is not None:
            self._roots.update(message.id for message in messages if message.parent is None)
        self._index(messages, history)
        seq, rewrites = self.tree.seen
        if messages and seq == messages[0].seq:
            self.tree.seen = (messages[-1].seq + 1, rewrites)

    @property
    def newest(self) -> str | None:
        """The newest message of the flow that is recorded."""
        return self.talk.head if self.talk.position.label is None else self.tree.newest

    def find_response(self, name: str | None) -> str | None:
        """The last message of the answer that the provider calls by this name."""
        return None if name is None else self._responses.get(name)

    def handle(self, at: str | None) -> Conversation:
        """A handle of our own that stands at this message."""
        found = self._handles.pop(at, None)
        if found is not None and found.at == at:
            return found
        if at == self.talk.at:
            return self.talk.fork()
        found = Conversation(HandlePosition(self.talk.state, None)) if at is None else self.talk.fork(at=at)
        if self.talk.position.label is None and found.position.label is None:
            found.position.main = True  # a request that continues another choice makes that choice the main flow
        return found

    def put_back(self, handle: Conversation) -> None:
        if len(self._handles) >= _HANDLES:
            self._handles.pop(next(iter(self._handles)))
        self._handles[handle.at] = handle

    def write(
        self, place: Place, messages: Sequence[Message], history: History = (), *, is_answer: bool = False
    ) -> list[Saved]:
        """Add messages below a place, and move the place to them. The caller holds the lock. `history` has their
        fingerprints, if they were made already.

        The messages are clean already. An answer replaces its partials. It is kept however large the conversation gets:
        it was paid for.
        """
        self.flush()
        return self._write(place, messages, history, is_answer=is_answer)

    def _write(
        self, place: Place, messages: Sequence[Message], history: History = (), *, is_answer: bool
    ) -> list[Saved]:
        changes = ItemChanges(unput=place.partials, put=self._missing_mark())
        steps = extend_steps(place.handle.position, messages, changes=changes, is_bounded=not is_answer, is_clean=True)
        saved = finish(self.talk.engine.committer, steps)
        place.partials = ()
        place.lead()
        self.note_written(saved, history)
        if not self.is_ended:
            self.confirm_mark()
        return saved

    def _missing_mark(self) -> Callable[[Envelope], tuple[ItemRow, ...]] | None:
        """A function that adds our mark to a write, if the mark may be missing."""
        if self.is_ended or time.monotonic() < self._mark_trusted_until:
            return None
        return marks(self.talk.state)

    def confirm_mark(self) -> None:
        """Note that our mark was just written, or read."""
        now = time.monotonic()
        if now >= self._mark_trusted_until:
            self._mark_trusted_until = now + _MARK_TRUST_SECONDS
            open_recordings(self.talk.engine).note_written(self.talk.state.id)

    def hold(self, place: Place, messages: list[Message]) -> None:
        """Hold an answer that could not be written, and write it before the next write or when the store is closed."""
        self.talk.engine.at_close[self] = self.flush
        self._pending.append((place, messages))

    def flush(self) -> None:
        """Write the answers that are held. Raises the current error if that still fails.

        An answer that never can be written, for example because its question was deleted, is dropped with a warning.
        """
        while self._pending:
            try:
                self._write(*self._pending[0], is_answer=True)
            except TRANSIENT:
                raise
            except HithertoError as error:
                warn(f"an answer that was held cannot be kept, and is lost: {error}")
            self._pending.pop(0)
        self.talk.engine.at_close.pop(self, None)

    @property
    def pending(self) -> int:
        """How many messages are held."""
        return sum(len(messages) for _, messages in self._pending)
