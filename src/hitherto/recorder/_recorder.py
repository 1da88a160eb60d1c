"""The recorder: it keeps a chat as it goes.

Each thing that is said is a commit of its own. What the user said is kept before the model is asked, so that a crash
loses no question; the answer is kept the moment it is there, so that none that was paid for is lost; each tool result
is kept as soon as the tool has returned. While an answer streams in, what has come of it is kept beside the tree.

If the question cannot be kept, the model is not asked. If an answer cannot be kept, it is held here and tried again
before anything else is written: the caller has the answer, and gets the error with the next question.

With the first thing that it writes to a conversation a recorder leaves a mark there, which goes when it is closed: a
mark that is found later is that of a recorder which died (`_recovery`).

The recorder knows messages, not who says them: `_sdk` listens to the SDKs of others, our own chat clients tell it
themselves.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4
from weakref import WeakSet, ref

from msgspec import Struct, field
from msgspec.structs import replace

from .._engine.bodies import Meta
from .._engine.recovery import drop, keep, marks, new_key, new_mark
from .._engine.state import Desk, Draft, check_size, draft
from .._sealing.codec import Envelope
from ..backend import CHAT, ItemRow, Where
from ..conversation import Conversation, checked_setup
from ..dialects import Answer, Assembly, Dialect
from ..dialects._lossless import as_bytes
from ..errors import Busy, Closed, Damaged, HithertoError, InvalidArgument, NotFound, PayloadTooLarge, StorageError
from ..events import warn
from ..ids import new_conversation_id, show_conversation_id
from ..model import Message, Saved, Setup, check, trace_of
from ..store import More
from ._checkpoints import Checkpoints
from ._closing import END_SECONDS, ending
from ._history_match import FROM_REQUEST, Followed, History, Position, Step, Tree, last_answer, last_exchanges, steps
from ._otel import watch
from ._partial_answer import Arriving
from ._sent_requests import SentRequest, SentRequests

if TYPE_CHECKING:
    from ..aio import AsyncConversation
    from ..sanitiser import Sanitiser
    from ..store import Store

_HANDLES = 64  # places of one conversation that can be gone on from without looking them up
_CONVERSATIONS = 256  # of one recorder, that can be gone on from without looking them up
_CANDIDATES = 20  # conversations that began alike, of which one may be meant
_LOOKS = 10  # how often a conversation is looked for that others remove
_SURE_SECONDS = 1.0  # for which our mark is believed to be there: another process may end what both record
PARTIAL_SECONDS = 1.0
SIDE_CALL = "side-call"  # the name under which requests are kept that do not go on with a conversation
_ASIDE = f"subagent:{SIDE_CALL}:"

Talk = TypeVar("Talk", bound="Conversation | AsyncConversation")


class Place(Struct, eq=False, weakref=True):
    """Where a chat stands: the next message goes below."""

    kept: "Kept"
    handle: Conversation
    follower: Conversation | None = None  # the handle of the caller, which moves along
    partials: tuple[bytes, ...] = ()  # the keys under which the answer on its way is kept
    asked: float = field(default_factory=time.perf_counter)  # when what stands there was kept
    position: Position | None = None  # where the history of its request ends, if that is certain

    def lead(self) -> None:
        """The handle of the caller comes to where we stand."""
        if self.follower is not None:
            self.follower._move_to(self.handle)


class Said(Struct, frozen=True):
    """What a request says, cleaned, and what its messages are like."""

    messages: Sequence[Message]
    setup: Setup
    history: History


class Claim(Struct, eq=False, frozen=True):
    """A conversation that a request is about to go on with, and the message from which on."""

    kept: "Kept"
    at: str | None

    def release(self) -> None:
        self.kept.claims.remove(self)


def _drop(waiting: "dict[int, ref[Place]]", name: int, gone: "ref[Place]") -> None:
    if waiting.get(name) is gone:  # another place may have its number by now
        del waiting[name]


class Kept:
    """One conversation that is being recorded."""

    def __init__(self, talk: Conversation, dialect: Dialect) -> None:
        self.talk = talk.fork()  # one that stays where it is
        self.opening: Setup | None = None  # what it was begun with, if it was begun here
        self.claims: list[Claim] = []  # by requests that are about to go on with it
        self._waiting: dict[int, ref[Place]] = {}  # questions that were sent, and that may still be answered
        self.lock = threading.RLock()
        self.tree = Tree(dialect)
        # The roots of a sub-agent's run that begins here: another run may have its label, and begin with its question.
        self._roots: set[str] | None = set() if talk._label is not None and talk.at is None else None
        self._handles: dict[str | None, Conversation] = {}
        self._responses: dict[str, str] = {}  # the provider's name of an answer, and its last message
        self._pending: list[tuple[Place, list[Message]]] = []
        self._sure_until = 0.0  # that our mark is there
        self.begun = False  # the store knows that it is being recorded
        self.ended = False  # what comes after that leaves no mark

    def catch_up(self) -> None:
        """See what others have written, and what they have deleted."""
        self.talk.refresh()
        row = self.talk._desk.row
        seq, rewrites = self.tree.seen
        if rewrites != row.rewrites:
            self.tree, seq = Tree(self.tree.dialect), 0
        if seq != row.next_seq:
            new: list[Saved] = []
            for message in self.talk._store.messages(conversation=self.talk):
                if message.seq < seq:
                    break
                new.append(message)
            self._note(new[::-1])
        self.tree.seen = (row.next_seq, row.rewrites)

    def _is_ours(self, message: Saved) -> bool:
        """Is it on the flow that is recorded: of this run of a sub-agent, or of none?"""
        own = self.talk._label
        if own is None:
            return (message.label or "").startswith(_ASIDE) or trace_of(message.label) is None
        begun_here = self._roots is None or message.id in self._roots or self.tree.has(message.parent)
        return message.label == own and begun_here

    def expect(self, place: Place) -> None:
        """The question at this place is sent. It may be answered until `settle`, or until nobody has the place any
        more: of a request over a plain HTTP client that fails, nobody hears."""
        self._waiting[id(place)] = ref(place, partial(_drop, self._waiting, id(place)))

    def settle(self, place: Place) -> None:
        """The question was answered, or will not be."""
        self._waiting.pop(id(place), None)

    def _expected(self) -> list[Place]:
        """Copied at once: other threads send and settle meanwhile, and none of them takes the lock for it."""
        found = (reference() for reference in list(self._waiting.values()))
        return [place for place in found if place is not None]

    def is_waiting(self, at: str | None) -> bool:
        """Was this question sent, and may its answer still come?"""
        return any(place.handle.at == at for place in self._expected())

    def is_free(self, at: str | None) -> bool:
        """Has nobody gone on from this message, and is nobody about to?"""
        is_claimed = any(claim.at == at for claim in list(self.claims))
        return not is_claimed and not self.tree.has_below(at) and not self.is_waiting(at)

    @property
    def has_main_flow(self) -> bool:
        """Has anything on the main flow been answered, or may it still be?"""
        return self.tree.has_main_answer or any(place.handle._main for place in self._expected())

    def aside(self) -> Conversation:
        """A handle for a request that does not go on with the conversation: a root of its own, off the main flow,
        linked to where that stands."""
        return self.talk.subagent(SIDE_CALL, uuid4().hex[:12], call=self.newest)

    def _note(self, messages: Sequence[Saved]) -> None:
        for message in filter(self._is_ours, messages):
            self.tree.add(message)
            for name in ("response_id", "within"):
                value = (message.extra or {}).get(name)
                if isinstance(value, str):
                    self._responses[value] = message.id

    def wrote(self, messages: Sequence[Saved]) -> None:
        """Note what we wrote ourselves. If nobody else wrote in between, the tree still has everything."""
        if self._roots is not None:
            self._roots.update(message.id for message in messages if message.parent is None)
        self._note(messages)
        seq, rewrites = self.tree.seen
        if messages and seq == messages[0].seq:
            self.tree.seen = (messages[-1].seq + 1, rewrites)

    @property
    def newest(self) -> str | None:
        """Where the flow that is recorded stands."""
        return self.talk.head if self.talk._label is None else self.tree.newest

    def response(self, name: str | None) -> str | None:
        return None if name is None else self._responses.get(name)

    def handle(self, at: str | None) -> Conversation:
        """A handle of our own that stands there."""
        found = self._handles.pop(at, None)
        if found is not None and found.at == at:
            return found
        if at == self.talk.at:
            return self.talk.fork()
        found = Conversation(self.talk._desk, None) if at is None else self.talk.fork(at=at)
        if self.talk._label is None and found._label is None:
            found._main = True  # who goes on from another choice makes it the one that counts
        return found

    def put_back(self, handle: Conversation) -> None:
        if len(self._handles) >= _HANDLES:
            self._handles.pop(next(iter(self._handles)))
        self._handles[handle.at] = handle

    def write(self, place: Place, messages: Sequence[Message], *, is_answer: bool = False) -> list[Saved]:
        """Add messages below a place, which moves there. What was kept of an answer on its way goes, if this is the
        answer. An answer is kept however large the conversation gets: it was paid for. Called under the lock."""
        self.flush()
        return self._write(place, messages, is_answer=is_answer)

    def _write(self, place: Place, messages: Sequence[Message], *, is_answer: bool) -> list[Saved]:
        saved = place.handle._extend(messages, unput=place.partials, put=self._mark(), is_bounded=not is_answer)
        place.partials = ()
        place.lead()
        self.wrote(saved)
        if not self.ended:
            self.is_marked()
        return saved

    def _mark(self) -> Callable[[Envelope], tuple[ItemRow, ...]] | None:
        """What leaves our mark with a write, if it may be missing."""
        return None if self.ended or time.monotonic() < self._sure_until else marks(self.talk._desk)

    def is_marked(self) -> None:
        """Our mark is there: it was just written, or seen to be."""
        now = time.monotonic()
        if now >= self._sure_until:
            self._sure_until = now + _SURE_SECONDS
            ending(self.talk._store).wrote(self.talk._desk.id)

    def hold(self, place: Place, messages: list[Message]) -> None:
        self.talk._store._last[self] = self.flush
        self._pending.append((place, messages))

    def flush(self) -> None:
        """Write what could not be written before; the error of now, if it still cannot be. What never can be, because
        what it answers was deleted, say, is let go of, and said."""
        while self._pending:
            try:
                self._write(*self._pending[0], is_answer=True)
            except _FOR_NOW:
                raise
            except HithertoError as error:
                warn(f"an answer that was held cannot be kept, and is lost: {error}")
            self._pending.pop(0)
        self.talk._store._last.pop(self, None)

    @property
    def pending(self) -> int:
        return sum(len(messages) for _, messages in self._pending)


_FOR_NOW = (StorageError, Closed)  # errors that may pass: the disk is full, others write


_into: ContextVar[Conversation | None] = ContextVar("hitherto_into", default=None)


@contextmanager
def into(conversation: Talk) -> Iterator[Talk]:
    """Within this block, and in whatever is started in it, what is recorded goes into this conversation, and its handle
    moves along.

        with hitherto.into(store.ensure(f"user-{user.id}")) as talk:
            sdk.chat.completions.create(model=…, messages=[*hitherto.history(talk), …])

    For programs that talk for many people through one SDK client. A request that does not go on with the conversation
    (a title, a check of what was said) is kept beside it, as `record` says.
    """
    found: object = getattr(conversation, "sync", conversation)
    if not isinstance(found, Conversation):
        raise InvalidArgument(f"a {type(conversation).__name__} where a conversation is wanted")
    token = _into.set(found)
    try:
        yield conversation
    finally:
        _into.reset(token)


def _session_name(session: str) -> str:
    """The name under which the conversation of a session is found again."""
    return blake2b(session.encode(), digest_size=16, person=b"session").hexdigest()


class Recorder:
    """Keeps what is said."""

    def __init__(
        self,
        store: "Store",
        dialect: Dialect,
        provider: str,
        about: Meta,
        conversation: Conversation | None = None,
        partial_seconds: float = PARTIAL_SECONDS,
        checkpoints: Checkpoints | None = None,
        sanitiser: "Sanitiser | None" = None,
    ) -> None:
        self.store = store
        self.dialect = dialect
        self.provider = provider
        self._about = about
        self._partial_seconds = partial_seconds
        self._checkpoints = checkpoints
        own = None if sanitiser is None else store._redactor_for(sanitiser)
        self._redactors = [redactor for redactor in (own, store._redactor) if redactor is not None]
        self._choosing = threading.Lock()  # of which conversation a request goes on with; taken before the other
        self._lock = threading.Lock()  # of what follows
        self._kept: dict[tuple[str, str | None], Kept] = {}  # by conversation and flow, the one used last at the end
        self._latest: Kept | None = None
        self.begun: set[Kept] = set()  # what is to be ended
        self._arriving: WeakSet[Arriving] = WeakSet()
        if checkpoints is not None:
            checkpoints.known_to(store)
        self._ending = ending(store)
        self._ending.watch(self)
        self._candidates: dict[str, Kept] = {}  # conversations of others that were looked at, the last at the end
        self._sessions: dict[str, Kept] = {}  # by the name that the caller has for them
        self.answered: tuple[Kept, str] | None = None  # the answer that was kept last
        self.sent = SentRequests()
        self._pinned: Kept | None = None
        self._follower = conversation
        if conversation is not None:
            self._pinned = self._known(conversation)

    @property
    def latest(self) -> Conversation | None:
        """The conversation that was written to last; None before the first message."""
        return None if self._latest is None else self._latest.talk

    @property
    def pending(self) -> int:
        """Messages that could not be written so far, and are held here."""
        with self._lock:
            return sum(kept.pending for kept in self._kept.values())

    @property
    def checkpoint_error(self) -> Exception | None:
        return None if self._checkpoints is None else self._checkpoints.failure

    def flush(self, timeout_seconds: float) -> None:
        """Write what could not be written so far; the error, if it still cannot be. Wait for a checkpoint that is being
        made."""
        self._write_pending()
        if self._checkpoints is not None and not self._checkpoints.wait(timeout_seconds):
            raise Busy("a checkpoint is still being made")

    def _write_pending(self) -> None:
        with self._lock:
            all_pending = [kept for kept in self._kept.values() if kept.pending]
        for kept in all_pending:
            with kept.lock:
                kept.flush()

    def close(self, timeout_seconds: float = END_SECONDS) -> None:
        """The end; then wait for a checkpoint that is being made, which may take long and costs nobody an answer."""
        deadline = time.monotonic() + timeout_seconds
        try:
            self.end(timeout_seconds)
        finally:
            left = max(0.0, deadline - time.monotonic())
            made = self._checkpoints is None or self._checkpoints.wait(left)
        if not made:
            raise Busy("a checkpoint is still being made")

    def end(self, timeout_seconds: float = END_SECONDS) -> None:
        """What is held is written, what is on its way is kept as far as it came, and every conversation is committed.
        Of several errors the first, when all was tried; what could not be ended is by another call."""
        self.sent.forget()
        with self._lock:
            all_arriving, all_kept = list(self._arriving), list(self.begun)
        failure: Exception | None = None
        deadline = time.monotonic() + timeout_seconds
        for arriving in all_arriving:
            try:
                arriving.close(keep=True)
            except Exception as error:  # noqa: BLE001  # an answer that cannot be put together costs no other
                failure = failure or error
        for kept in all_kept:
            try:
                self._ending.end(kept, deadline - time.monotonic())
                with self._lock:
                    self.begun.discard(kept)
            except Exception as error:  # noqa: BLE001  # as above
                failure = failure or error
        self._ending.tidy(None)  # what this recorder has forgotten is among it
        if failure is not None:
            raise failure

    # -- finding the place

    def _known(self, talk: Conversation) -> Kept:
        """What we know of a conversation."""
        with self._lock:
            known = self._kept.get((talk.id, talk._label))
        return self._use(known or Kept(talk, self.dialect))

    def _use(self, kept: Kept) -> Kept:
        """Remember a conversation as the one that was used last. Another thread may have found it, too: then it is what
        that one found."""
        with self._lock:
            name = (kept.talk.id, kept.talk._label)
            kept = self._kept.pop(name, kept)
            self._kept[name] = kept
            self._candidates.pop(kept.talk.id, None)
            self._latest = kept
            if not kept.ended:
                self.begun.add(kept)
                self._ending.begin(kept)
            wanted = (kept, self._pinned)
            idle = [name for name, other in self._kept.items() if not other.pending and other not in wanted]
            for old in idle[: max(0, len(self._kept) - _CONVERSATIONS)]:
                self._let_go(self._kept.pop(old))
            return kept

    def _let_go(self, kept: Kept) -> None:
        """It is ended by whoever passes by next: we may be in the middle of something."""
        self.sent.forget(kept)
        if kept in self.begun:
            self.begun.discard(kept)
            self._ending.leave(kept)

    def _forget(self, kept: Kept) -> None:
        with self._lock:
            self._kept = {name: other for name, other in self._kept.items() if other is not kept}
            self._sessions = {name: other for name, other in self._sessions.items() if other is not kept}
            self._candidates.pop(kept.talk.id, None)
            self._let_go(kept)

    def _find(self, history: History, setup: Setup, after: str | None, within: str | None) -> Claim | None:
        """The conversation that a history belongs to, where nobody says which one it is. None: it begins one."""
        with self._lock:
            ours = list(reversed(self._kept.values()))
        for kept in ours:
            if kept.response(after) or kept.response(within):
                return self._claim(kept, kept.response(after or within))
        if after is not None or within is not None or not history:
            return None
        with self._choosing:
            best = self._best(ours, history)
            if not last_answer(history) or (best is not None and self._is_certain(best[0].tree, history)):
                return self._claim(*(best or self._asked_again(ours, history, setup)))
        others = self._stored(history[0])  # others may have gone on with it, or begun it
        with self._choosing:
            best = self._best(others if best is None else [best[0], *others], history)
            return self._claim(*(best or self._asked_again(ours, history, setup)))

    def _is_certain(self, tree: Tree, history: History) -> bool:
        """Has this conversation given all the answers, and has nobody gone on from the last one? If not, another
        recorder may keep the one that is meant."""
        return tree.last_answer(history) >= last_answer(history) and tree.is_last_answer_free(history)

    def _claim(self, kept: Kept | None, at: str | None) -> Claim | None:
        """Until the request has its place, nobody else who got the same answers takes this one."""
        if kept is None:
            return None
        claim = Claim(kept, at)
        kept.claims.append(claim)
        return claim

    def _asked_again(self, ours: Sequence[Kept], history: History, setup: Setup) -> tuple[Kept | None, str | None]:
        """The conversation of ours that was begun with just this, and never answered."""
        for kept in ours:
            if kept.opening is not None and kept.opening.system_prompt == setup.system_prompt:
                found = kept.tree.follow(history)
                if found.count == len(history) and kept.is_free(found.at):
                    return kept, found.at
        return None, None

    def _best(self, candidates: Sequence[Kept], history: History) -> tuple[Kept, str | None] | None:
        """The conversation that a history goes on with: one that has given its answers. Of several that have given the
        same ones, one that nobody has gone on with from there: two people may have got the same answers so far."""
        given = [(last, kept) for kept in candidates if (last := kept.tree.last_answer(history))]
        furthest = max((last for last, _ in given), default=0)
        equal = [kept for last, kept in given if last == furthest]
        best: tuple[tuple[bool, int], tuple[Kept, str | None]] | None = None
        for kept in equal:
            found = kept.tree.follow(history)
            rank = (kept.is_free(found.at), found.count)
            best = (rank, (kept, found.at)) if best is None or rank > best[0] else best
        return None if best is None else best[1]

    def _stored(self, ways: Sequence[Step]) -> list[Kept]:
        """Conversations that were recorded by others, or before, and that began with this message."""
        return self._named([step.digest.hex() for step in ways])

    def _named(self, openings: Sequence[str]) -> list[Kept]:
        """Conversations in the store whose opening has one of these names."""
        found: list[Kept] = []
        for name in [name for opening in openings for name in self.store._codec.tags("opening", opening)]:
            for place in self.store.backend.page(Where(CHAT, (name,)), None, _CANDIDATES):
                try:
                    found.append(self._candidate(show_conversation_id(place.id)))
                except (Damaged, NotFound):
                    continue
        return found

    def _candidate(self, id: str) -> Kept:
        """A conversation that may be meant, as it is now. It is remembered, so that the next look reads only what is
        new in it."""
        with self._lock:
            used = self._kept.get((id, None))
            kept = used or self._candidates.pop(id, None)
        kept = kept or Kept(self.store.conversation(id), self.dialect)
        with kept.lock:
            kept.catch_up()
        with self._lock:
            if used is None:
                self._candidates[id] = kept
            if len(self._candidates) > 2 * _CANDIDATES:
                del self._candidates[next(iter(self._candidates))]
        return kept

    def _bound(self, session: str | None) -> tuple[Kept | None, Conversation | None]:
        """The conversation that a request was said to be part of, and the handle that moves along."""
        into = _into.get()
        if into is not None and into._store is not self.store:
            raise InvalidArgument("the conversation of `into` is in another store than the one that is recorded to")
        if into is not None:
            return self._known(into), into
        if self._pinned is not None:
            return self._pinned, self._follower
        if session is None:
            return None, None
        known = self._sessions.get(session)
        if known is None:
            known = next(iter(self._named([_session_name(session)])), None)
        return known, None

    # -- keeping

    def prepare(self, messages: Sequence[Message], setup: Setup) -> Said:
        """What is about to be asked, as it is compared with what is kept. The setup is clean already."""
        self.store._ensure_open()
        self._ending.tidy()
        self._write_pending()  # a history is known again by the answers that were kept
        messages = [self._heard(m) for m in self._clean(messages)]
        return Said(messages, setup, steps(self.dialect, messages))

    def ask(
        self,
        said: Said,
        *,
        after: str | None = None,
        within: str | None = None,
        session: str | None = None,
        inherits: bool = False,
        is_alone: bool = False,
        found: Kept | None = None,
    ) -> Place:
        """Keep a history as far as it is new, before it is sent. The place is where its answer goes. `session` is the
        caller's own name for what belongs together. `inherits`: the system prompt and the tools are those of the answer
        that the request goes on from. `is_alone`: the client holds one conversation, and asks nothing beside it.
        `found`: the conversation that it goes on with, where `go_on` has found it."""
        for _ in range(_LOOKS):
            bound, follower = self._bound(session)
            if bound is not None or found is not None:
                claim, found = self._claim(bound or found, None), None
            else:
                claim = self._find(said.history, said.setup, after, within)
            if claim is None:
                return self._begin(said, session)
            try:
                go_on = partial(self._go_on, claim.kept, said, after or within)
                place = go_on(is_bound=bound is not None, inherits=inherits, is_alone=is_alone)
                place.kept.expect(place)
            except NotFound:
                if claim.kept is self._pinned or follower is not None:
                    raise
                self._forget(claim.kept)  # it was purged: look again
                continue
            finally:
                claim.release()
            self._take_along(place, session, follower)
            return place
        raise Busy("the conversation is removed by others as fast as it is found")

    def go_on(self, earlier: SentRequest, rest: Said, session: str | None) -> Place | Kept | None:
        """Keep what a request adds to an earlier one, where `ask` would. If that is not certain, its whole history has
        to be asked: with the conversation that was found, if one was."""
        bound, follower = self._bound(session)
        claim = self._claim_after(earlier, rest.history, bound)
        if claim is None:
            return None
        try:
            place = self._go_on_after(earlier, rest)
            if place is None:
                return earlier.kept
            place.kept.expect(place)
        except NotFound:
            return earlier.kept  # it was purged: `ask` says what that means
        finally:
            claim.release()
        self._take_along(place, session, follower)
        return place

    def _claim_after(self, earlier: SentRequest, rest: History, bound: Kept | None) -> Claim | None:
        """Claim the conversation of an earlier request, if it is the one that `ask` would find."""
        kept = earlier.kept
        if bound is not None:
            return self._claim(kept, None) if bound is kept else None
        with self._choosing:
            at = self._free_answer(earlier, rest)
            return None if at is None else self._claim(kept, at)

    def _free_answer(self, earlier: SentRequest, rest: History) -> str | None:
        """The answer that a history goes on from, if that is certain: it was given right after the earlier request, and
        in no other conversation of ours, and nobody has gone on from it."""
        tree, position = earlier.kept.tree, earlier.position
        with self._lock:
            others = set(self._kept.values())
        if earlier.kept not in others or not tree.holds(position):
            return None
        exchanges = last_exchanges([position.question, *rest])
        if any(kept.tree.has_exchange(exchanges) for kept in others - {earlier.kept}):
            return None
        found = tree.follow_on(position, rest)
        return found.at if tree.is_free_after(position, rest, found) else None

    def _go_on_after(self, earlier: SentRequest, rest: Said) -> Place | None:
        kept = self._use(earlier.kept)
        with kept.lock:
            kept.flush()
            kept.catch_up()
            if kept is not earlier.kept or not kept.tree.holds(earlier.position):
                return None
            found = kept.tree.follow_on(earlier.position, rest.history)
            if found.proven == 0 or found.proven < last_answer(rest.history):
                return None
            return self._add_rest(kept, found, rest)

    def _add_rest(self, kept: Kept, found: Followed, said: Said) -> Place:
        """Add what is new in a history, below the message up to which it was found."""
        place = Place(kept, kept.handle(found.at))
        saved = self._add(place, said.messages[found.count :], said.setup)
        if found.is_whole:
            place.position = kept.tree.position([message.id for message in saved], said.history[found.count :])
        return place

    def _take_along(self, place: Place, session: str | None, follower: Conversation | None) -> None:
        """A request has its place: its session and the handle of the caller go there."""
        if session is not None:
            self._remember(session, place.kept)
        if place.handle._label == place.kept.talk._label:  # what is said aside leaves the handle where it is
            place.follower = follower
            place.lead()

    def _remember(self, session: str, kept: Kept) -> None:
        with self._lock:
            self._sessions.pop(session, None)
            self._sessions[session] = kept
            if len(self._sessions) > _CONVERSATIONS:
                del self._sessions[next(iter(self._sessions))]

    def _heard(self, message: Message) -> Message:
        """A message of a request. An answer in it was not given to that request."""
        if message.role != "assistant":
            return message
        return replace(message, extra={**(message.extra or {}), FROM_REQUEST: True})

    def _go_on(
        self, kept: Kept, said: Said, after: str | None, *, is_bound: bool, inherits: bool, is_alone: bool
    ) -> Place:
        kept = self._use(kept)
        with kept.lock:
            kept.flush()
            kept.catch_up()
            if after is not None:  # only what is new was sent; what it goes on from may not be known here
                return self._go_on_from(kept, kept.response(after) or kept.newest, said, inherits=inherits)
            found = kept.tree.follow(said.history, is_bound=is_bound)
            if is_bound and not self._continues(kept, found, said.history, said.setup, is_alone=is_alone):
                place = Place(kept, kept.aside())
                self._add(place, said.messages, said.setup)
                return place
            return self._add_rest(kept, found, said)

    def _go_on_from(self, kept: Kept, at: str | None, said: Said, *, inherits: bool) -> Place:
        place, setup = Place(kept, kept.handle(at)), said.setup
        if inherits:
            setup = replace(place.handle.setup, provider=setup.provider, model=setup.model)
        self._add(place, said.messages, setup)
        return place

    def _continues(self, kept: Kept, found: Followed, history: History, setup: Setup, *, is_alone: bool) -> bool:
        """Does a history go on with the conversation that it is sent in? It does if it holds an answer that was given
        there; if nothing was answered there yet, and it may be the opening; and if it begins as the conversation did,
        with the same system prompt: the question is asked once more. A trace of a sub-agent takes all that the
        sub-agent says."""
        if kept.talk._label is not None:
            return True
        if found.proven or kept.tree.last_answer(history, is_bound=True):
            return True
        if not kept.has_main_flow:
            return is_alone or self._may_open(kept, setup)
        if not found.main and not kept.is_free(found.at):  # a request beside it, which was answered: this is another
            return False
        return found.at is not None and self._prompt_at(kept, found.at) == setup.system_prompt

    def _may_open(self, kept: Kept, setup: Setup) -> bool:
        """May a conversation begin with this setup? One that was started with a system prompt does not begin with
        another one: that is a check of the question, say, which programs make before they ask it. Frameworks add words
        of their own to a prompt, and a request without one says nothing about it."""
        wanted = self._prompt_at(kept, kept.newest)
        return not setup.system_prompt or wanted in setup.system_prompt

    def _prompt_at(self, kept: Kept, at: str | None) -> str:
        """The system prompt in force at a message, as it is when it is compared with that of a request: cleaned."""
        place = Conversation(kept.talk._desk, None) if at is None else kept.talk.fork(at=at)
        return self._clean_setup(place.setup).system_prompt

    def _begin(self, said: Said, session: str | None) -> Place:
        """A new conversation with its first messages, in one commit."""
        store, limit = self.store, self.store._max_write_bytes
        setup, history = said.setup, said.history
        setup = checked_setup(setup.provider, setup.model, setup.system_prompt, setup.tools, limit, setup.raw)
        marked = [self._marked(m) for m in said.messages]

        def make(desk: Desk) -> list[Draft]:
            drafts = [draft(desk, m, 1) for m in marked]
            check_size(drafts, limit)
            return drafts

        opening = history[0][0].digest.hex() if history and history[0] else None
        opening = opening if session is None else _session_name(session)
        marked_as_ours = More(items=lambda desk, _: (new_mark(desk),))
        about = replace(self._about, opening=opening)
        made = store._create(new_conversation_id(), about, [setup], make, marked_as_ours)
        if made is None:
            raise Busy("the conversation could not be started")
        talk, saved = made
        kept = self._known(talk)
        place = Place(kept, kept.handle(talk.at))
        kept.expect(place)
        kept.wrote(saved)
        place.position = kept.tree.position([message.id for message in saved], history)
        kept.is_marked()
        kept.opening = setup  # from here on it may be found as a question that nobody has answered
        if session is not None:
            self._remember(session, kept)
        return place

    def check_into(self, place: Place) -> None:
        """A client of ours has one conversation. Whoever says that it is another is not to be ignored."""
        into = _into.get()
        if into is not None and into.id != place.kept.talk.id:
            hint = "give each conversation a client of its own, and resume it"
            raise InvalidArgument("`into` names another conversation than the one that this client is in", hint=hint)

    def start(self, talk: Conversation) -> Place:
        """The place where a handle stands."""
        return Place(self._known(talk), talk.fork(), talk)

    def add(self, place: Place, messages: Sequence[Message], setup: Setup | None = None) -> list[Saved]:
        """Add messages below a place, which moves there. A setup that is another from here on is kept too."""
        return self._add(place, self._clean(messages), None if setup is None else self._clean_setup(setup))

    def _add(self, place: Place, messages: Sequence[Message], setup: Setup | None) -> list[Saved]:
        kept = place.kept
        with kept.lock:
            if messages:
                place.partials = ()  # an answer that broke off is still offered, where it belongs
            if setup is not None:
                place.handle._configure(replace(setup, provider=setup.provider or self.provider))
            saved = kept.write(place, [self._marked(m) for m in messages]) if messages else []
            place.asked = time.perf_counter()
            return saved

    def answer(self, place: Place, answer: Answer) -> list[Saved]:
        """Keep an answer. If it cannot be kept now, it is held, and tried again before the next write."""
        kept = place.kept
        with kept.lock:
            for other in answer.others:
                self._write(Place(kept, place.handle.fork(main=False)), other, answer)
            if not answer.messages:
                self.forget(place)
                return []
            if self.store._telemetry.is_on:
                watch(place, self.provider, answer)
            saved = self._write(place, answer.messages, answer)
            if saved:
                self.answered = kept, saved[-1].id
                kept.put_back(place.handle)
        if saved and self._checkpoints is not None:
            self._checkpoints.answered(self.store, saved[-1].conversation, saved[-1].id)
        return saved

    def _write(self, place: Place, messages: Sequence[Message], answer: Answer) -> list[Saved]:
        """Keep what was answered, or hold it if that cannot be done now."""
        kept = place.kept
        try:
            marked = [self._marked(m, answer) for m in self._clean(messages)]
        except HithertoError as error:
            warn(f"an answer cannot be kept, and is lost: {error}")
            return []
        try:
            return self._write_all(place, marked)
        except _FOR_NOW as error:
            warn(f"an answer could not be kept yet, and is held: {type(error).__name__}")
            kept.hold(place, marked)
            with self._lock:
                self._kept.setdefault((kept.talk.id, kept.talk._label), kept)
        except HithertoError as error:
            warn(f"an answer cannot be kept, and is lost: {error}")
        return []

    def _write_all(self, place: Place, messages: Sequence[Message]) -> list[Saved]:
        """Keep an answer of any size: one that is too large for the text of a write is kept as bytes."""
        try:
            return place.kept.write(place, messages, is_answer=True)
        except PayloadTooLarge:
            return place.kept.write(place, [as_bytes(message) for message in messages], is_answer=True)

    def arriving(self, place: Place, assembly: Assembly) -> Arriving:
        """Keep an answer while it comes in."""

        at = place.handle.at
        key = None if at is None else new_key(self.store._names.number(at))

        def keep_so_far(answer: Answer) -> None:
            with place.kept.lock:
                if key is not None:
                    so_far = self._clean(answer.messages, complete=False)
                    recording = not place.kept.ended
                    keep(place.handle._desk, key, [self._marked(m) for m in so_far], recording=recording)
                    if place.handle.at == at and key not in place.partials:
                        place.partials += (key,)

        made = Arriving(assembly, keep_so_far, self._partial_seconds, self.store._last)
        with self._lock:
            self._arriving.add(made)
        return made

    def forget(self, place: Place) -> None:
        """Let go of what was kept of an answer that turned out to be none."""
        for key in place.partials:
            drop(place.handle._desk, key)
        place.partials = ()

    def _clean(self, messages: Sequence[Message], *, complete: bool = True) -> Sequence[Message]:
        """The messages without what is not to be kept."""
        for redactor in self._redactors:
            for message in messages:
                check(message)
            messages = redactor.messages(messages, complete=complete)
        return messages

    def clean_setup(self, setup: Setup) -> Setup:
        """The setup of a request without what is not to be kept."""
        return self._clean_setup(replace(setup, provider=self.provider))

    def _clean_setup(self, setup: Setup) -> Setup:
        for redactor in self._redactors:
            setup = redactor.setup(setup)
        return setup

    def _marked(self, message: Message, answer: Answer | None = None) -> Message:
        """The message as a value, with a note in which dialect its raw is, and which response it came in."""
        m, extra = message, dict(message.extra or {})
        if m.raw is not None:
            extra.setdefault("dialect", self.dialect.name)
        if answer is not None:
            given = {"response_id": answer.id, "within": answer.within}
            extra.update({name: value for name, value in given.items() if value is not None})
        return Message(m.role, m.blocks, m.label, m.key, m.tool_result_error, extra or None, m.raw, m.usage, m.privacy)
