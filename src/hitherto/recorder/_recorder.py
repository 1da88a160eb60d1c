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
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from msgspec import Struct, field
from msgspec.structs import replace

from .._content import Meta
from .._desk import Desk, Draft, check_size, draft
from .._recovery import drop, keep, marks, new_key, new_mark
from ..backend import CHAT, ItemRow, Where
from ..conversation import Conversation, checked_setup
from ..dialects import Answer, Assembly, Dialect
from ..errors import Busy, Closed, Damaged, HithertoError, InvalidArgument, NotFound, StorageError
from ..events import warn
from ..ids import new_conversation_id, show_conversation_id
from ..model import Message, Saved, Setup, check
from ..store import More
from ..vault import Envelope
from ._arriving import Arriving
from ._checkpoints import Checkpoints
from ._ending import END_SECONDS, ending
from ._known import History, Tree, steps
from ._watched import watch

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

Talk = TypeVar("Talk", bound="Conversation | AsyncConversation")


class Place(Struct):
    """Where a chat stands: the next message goes below."""

    kept: "Kept"
    handle: Conversation
    partials: tuple[bytes, ...] = ()  # the keys under which the answer on its way is kept
    asked: float = field(default_factory=time.perf_counter)  # when what stands there was kept


class Kept:
    """One conversation that is being recorded."""

    def __init__(self, talk: Conversation, dialect: Dialect) -> None:
        self.talk = talk
        self.lock = threading.RLock()
        self.tree = Tree(dialect)
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
        """Is it on the flow that is recorded: on this sub-agent's, or on none?"""
        own = self.talk._label
        return message.label == own if own is not None else not (message.label or "").startswith("subagent:")

    def _note(self, messages: Sequence[Saved]) -> None:
        for message in filter(self._is_ours, messages):
            self.tree.add(message)
            for name in ("response_id", "within"):
                value = (message.extra or {}).get(name)
                if isinstance(value, str):
                    self._responses[value] = message.id

    def wrote(self, messages: Sequence[Saved]) -> None:
        """Note what we wrote ourselves. If nobody else wrote in between, the tree still has everything."""
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
        if self.talk._label is None:
            found._main = True  # who goes on from another choice makes it the one that counts
        return found

    def put_back(self, handle: Conversation) -> None:
        if len(self._handles) >= _HANDLES:
            self._handles.pop(next(iter(self._handles)))
        self._handles[handle.at] = handle

    def write(self, place: Place, messages: Sequence[Message]) -> list[Saved]:
        """Add messages below a place, which moves there. What was kept of an answer on its way goes, if this is the
        answer. Called under the lock."""
        self.flush()
        return self._write(place, messages)

    def _write(self, place: Place, messages: Sequence[Message]) -> list[Saved]:
        saved = place.handle._extend(messages, unput=place.partials, put=self._mark())
        place.partials = ()
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
                self._write(*self._pending[0])
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
    """Within this block, and in whatever is started in it, what is recorded goes into this conversation.

        with hitherto.into(store.ensure(f"user-{user.id}")):
            sdk.chat.completions.create(model=…, messages=…)

    For programs that talk for many people through one SDK client.
    """
    found: object = getattr(conversation, "sync", conversation)
    if not isinstance(found, Conversation):
        raise InvalidArgument(f"a {type(conversation).__name__} where a conversation is wanted")
    token = _into.set(found)
    try:
        yield conversation
    finally:
        _into.reset(token)


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
        self._lock = threading.Lock()  # of what follows
        self._kept: dict[tuple[str, str | None], Kept] = {}  # by conversation and flow, the one used last at the end
        self._latest: Kept | None = None
        self.begun: set[Kept] = set()  # what is to be ended
        self._arriving: WeakSet[Arriving] = WeakSet()
        if checkpoints is not None:
            checkpoints.known_to(store)
        self._ending = ending(store)
        self._ending.watch(self)
        self._pinned: Kept | None = None
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
        with self._lock:
            all_kept = list(self._kept.values())
        for kept in all_kept:
            with kept.lock:
                kept.flush()
        if self._checkpoints is not None and not self._checkpoints.wait(timeout_seconds):
            raise Busy("a checkpoint is still being made")

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
            name = (talk.id, talk._label)
            kept = self._kept.pop(name, None) or Kept(talk, self.dialect)
            self._kept[name] = kept
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
        if kept in self.begun:
            self.begun.discard(kept)
            self._ending.leave(kept)

    def _forget(self, kept: Kept) -> None:
        with self._lock:
            self._kept = {name: other for name, other in self._kept.items() if other is not kept}
            self._let_go(kept)

    def _find(self, history: History, after: str | None, within: str | None) -> Kept | None:
        """The conversation that a history belongs to."""
        into = _into.get()
        if into is not None and into._store is not self.store:
            raise InvalidArgument("the conversation of `into` is in another store than the one that is recorded to")
        if into is not None:
            return self._known(into)
        if self._pinned is not None:
            return self._pinned
        with self._lock:
            ours = list(reversed(self._kept.values()))
        for kept in ours:
            if kept.response(after) or kept.response(within):
                return kept
        if after is not None or within is not None or not history:
            return None
        begun = [kept for kept in ours if kept.tree.begins_with(history[0])]
        best = max(begun, key=lambda kept: kept.tree.follow(history).count, default=None)
        if best is not None:
            return best
        stored = self._stored(history)
        if stored is not None:
            return stored
        alike = max(ours, key=lambda kept: kept.tree.resembles(history), default=None)
        return alike if alike is not None and alike.tree.resembles(history) else None

    def _stored(self, history: History) -> Kept | None:
        """A conversation that was recorded by somebody else, or before: one that began alike, and went on alike at
        least as far as its first answer."""
        best: tuple[int, Kept] | None = None
        names = [name for step in history[0] for name in self.store._codec.tags("opening", step.digest.hex())]
        for name in names:
            for place in self.store.backend.page(Where(CHAT, name), None, _CANDIDATES):
                try:
                    kept = Kept(self.store.conversation(show_conversation_id(place.id)), self.dialect)
                    kept.catch_up()
                except (Damaged, NotFound):
                    continue
                found = kept.tree.follow(history)
                if kept.tree.answered(found.at) and (best is None or found.count > best[0]):
                    best = found.count, kept
        if best is None:
            return None
        with self._lock:
            return self._kept.setdefault((best[1].talk.id, None), best[1])

    # -- keeping

    def ask(
        self, messages: Sequence[Message], setup: Setup, *, after: str | None = None, within: str | None = None
    ) -> Place:
        """Keep a history as far as it is new, before it is sent. The place is where its answer goes."""
        self.store._ensure_open()
        self._ending.tidy()
        setup = self._clean_setup(replace(setup, provider=self.provider))
        messages = self._clean(messages)  # before it is compared with what is kept
        history = steps(self.dialect, messages)
        for _ in range(_LOOKS):
            kept = self._find(history, after, within)
            if kept is None:
                return self._begin(messages, setup, history)
            try:
                return self._go_on(kept, messages, setup, history, after or within)
            except NotFound:
                if kept is self._pinned or _into.get() is not None:
                    raise
                self._forget(kept)  # it was purged: look again
        raise Busy("the conversation is removed by others as fast as it is found")

    def _go_on(
        self, kept: Kept, messages: Sequence[Message], setup: Setup, history: History, after: str | None
    ) -> Place:
        self._known(kept.talk)
        with kept.lock:
            kept.flush()
            kept.catch_up()
            at, count = kept.response(after), 0
            if at is None and after is not None:
                at = kept.newest  # only what is new was sent, and what it goes on from is not known here
            elif at is None:
                found = kept.tree.follow(history)
                count, at = found.count, found.at
            place = Place(kept, kept.handle(at))
            self._add(place, messages[count:], setup)
            return place

    def _begin(self, messages: Sequence[Message], setup: Setup, history: History) -> Place:
        """A new conversation with its first messages, in one commit."""
        store, limit = self.store, self.store._max_write_bytes
        setup = checked_setup(setup.provider, setup.model, setup.system_prompt, setup.tools, limit, setup.raw)
        marked = [self._marked(m) for m in messages]

        def make(desk: Desk) -> list[Draft]:
            drafts = [draft(desk, m, 1) for m in marked]
            check_size(drafts, limit)
            return drafts

        opening = history[0][0].digest.hex() if history and history[0] else None
        marked_as_ours = More(items=lambda desk, _: (new_mark(desk),))
        about = replace(self._about, opening=opening)
        made = store._create(new_conversation_id(), about, [setup], make, marked_as_ours)
        if made is None:
            raise Busy("the conversation could not be started")
        talk, saved = made
        kept = self._known(talk)
        kept.wrote(saved)
        kept.is_marked()
        return Place(kept, kept.handle(talk.at))

    def check_into(self, place: Place) -> None:
        """A client of ours has one conversation. Whoever says that it is another is not to be ignored."""
        into = _into.get()
        if into is not None and into.id != place.kept.talk.id:
            hint = "give each conversation a client of its own, and resume it"
            raise InvalidArgument("`into` names another conversation than the one that this client is in", hint=hint)

    def start(self, talk: Conversation) -> Place:
        """The place where a handle stands."""
        kept = self._known(talk)
        return Place(kept, talk.fork())

    def add(self, place: Place, messages: Sequence[Message], setup: Setup | None = None) -> list[Saved]:
        """Add messages below a place, which moves there. A setup that is another from here on is kept too."""
        return self._add(place, self._clean(messages), None if setup is None else self._clean_setup(setup))

    def _add(self, place: Place, messages: Sequence[Message], setup: Setup | None) -> list[Saved]:
        kept = place.kept
        with kept.lock:
            if messages:
                place.partials = ()  # an answer that broke off is still offered, where it belongs
            if messages and setup is not None:
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
            return kept.write(place, marked)
        except _FOR_NOW as error:
            warn(f"an answer could not be kept yet, and is held: {type(error).__name__}")
            kept.hold(place, marked)
            with self._lock:
                self._kept.setdefault((kept.talk.id, kept.talk._label), kept)
        except HithertoError as error:
            warn(f"an answer cannot be kept, and is lost: {error}")
        return []

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
