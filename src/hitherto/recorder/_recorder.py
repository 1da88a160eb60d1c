"""The recorder: it keeps a chat while it goes on.

Each message is a commit of its own. A question is kept before the model is asked, so that a crash loses no question. An
answer is kept as soon as it is complete, so that no answer that was paid for is lost. A tool result is kept as soon as
the tool has returned. While an answer streams in, its partial is kept beside the tree.

If the question cannot be kept, the model is not asked. If an answer cannot be kept, it is held in memory and tried
again before the next write: the caller has the answer, and gets the error with the next question.

The recorder knows messages, not where they come from: `_sdk` listens to the SDKs of providers, and our own chat clients
report their messages themselves (`_own_clients`). Which conversation a request belongs to is decided in
`_known_conversations`.
"""

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from msgspec.structs import replace

from .._engine.appending import HandlePosition
from .._engine.bodies import Meta
from .._engine.creating import More, create
from .._engine.describing import configure
from .._engine.recovery import drop, keep, new_key, new_mark
from .._engine.setups import check_setup
from .._engine.state import ConversationState, EncodedMessage, check_size, encode_message
from ..conversation import Conversation, handle_on
from ..dialects import Answer, Assembly, Dialect
from ..dialects._lossless import as_bytes
from ..errors import Busy, HithertoError, InvalidArgument, NotFound, PayloadTooLarge
from ..events import warn
from ..ids import new_conversation_id
from ..model import Message, Saved, Setup, check, without_place
from ._checkpoints import Checkpoints
from ._closing import END_SECONDS, open_recordings
from ._history_match import FROM_REQUEST, History, HistoryMatch, last_answer, steps
from ._into import current_conversation
from ._known_conversations import KnownConversations, session_name
from ._otel import observe_answer
from ._partial_answer import PartialAnswer
from ._recorded_conversation import TRANSIENT, Claim, CleanRequest, Place, RecordedConversation
from ._sent_requests import SentRequest, SentRequests

if TYPE_CHECKING:
    from ..sanitiser import Sanitiser
    from ..store import Store

_MAX_SEARCHES = 10  # how often the conversation of a request is searched anew because it was purged meanwhile
PARTIAL_SECONDS = 1.0


class Recorder:
    """Keeps the messages of one client, in one dialect."""

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
        scope: str = "",
    ) -> None:
        """`scope` keeps recorders apart that share a store: a history is found only among the conversations that were
        begun in the same one."""
        self.store = store
        self.dialect = dialect
        self.provider = provider
        self._about = about
        self._partial_seconds = partial_seconds
        self._checkpoints = checkpoints
        own = None if sanitiser is None else store.engine.make_redactor(sanitiser)
        self._redactors = [redactor for redactor in (own, store.engine.redactor) if redactor is not None]
        self._lock = threading.Lock()  # of the partial answers
        self._partial_answers: WeakSet[PartialAnswer] = WeakSet()
        if checkpoints is not None:
            checkpoints.register_store(store)
        self.sent = SentRequests()
        self._open_recordings = open_recordings(store.engine)
        self._conversations = KnownConversations(store, dialect, self.sent, self._open_recordings, conversation, scope)
        self.latest_answer: tuple[RecordedConversation, str] | None = None
        self._open_recordings.watch(self)

    @property
    def latest(self) -> Conversation | None:
        """The conversation that was written to last; None before the first message."""
        return self._conversations.latest

    @property
    def open_conversations(self) -> set[RecordedConversation]:
        """The conversations whose recording has to be ended."""
        return self._conversations.open_conversations

    @property
    def pending(self) -> int:
        """How many messages are held here because they could not be written yet."""
        return self._conversations.pending

    @property
    def checkpoint_error(self) -> Exception | None:
        return None if self._checkpoints is None else self._checkpoints.failure

    def flush(self, timeout_seconds: float) -> None:
        """Write the messages that are held, and wait for a checkpoint that is being made. Raises the current error if a
        message still cannot be written."""
        self._conversations.write_pending()
        if self._checkpoints is not None and not self._checkpoints.wait(timeout_seconds):
            raise Busy("a checkpoint is still being made")

    def close(self, timeout_seconds: float = END_SECONDS) -> None:
        """End the recording, then wait for a checkpoint that is being made: it may take long, and no answer depends on
        it."""
        deadline = time.monotonic() + timeout_seconds
        try:
            self.end(timeout_seconds)
        finally:
            remaining = max(0.0, deadline - time.monotonic())
            is_done = self._checkpoints is None or self._checkpoints.wait(remaining)
        if not is_done:
            raise Busy("a checkpoint is still being made")

    def end(self, timeout_seconds: float = END_SECONDS) -> None:
        """Write the answers that are held, keep partial answers as far as they came, and commit every conversation.

        Everything is tried, then the first error is raised. Another call ends the conversations that failed.
        """
        self.sent.forget()
        with self._lock:
            all_partial = list(self._partial_answers)
        failure: Exception | None = None
        deadline = time.monotonic() + timeout_seconds
        all_open = self._conversations.list_open()
        for arriving in all_partial:
            try:
                arriving.close(keep=True)
            except Exception as error:  # noqa: BLE001  # an answer that cannot be assembled must not cost another one
                failure = failure or error
        for recorded in all_open:
            try:
                self._open_recordings.end(recorded, deadline - time.monotonic())
                self._conversations.remove_ended(recorded)
            except Exception as error:  # noqa: BLE001  # as above
                failure = failure or error
        self._open_recordings.end_abandoned(None)  # conversations that this recorder has forgotten are among them
        if failure is not None:
            raise failure

    # -- a request

    def prepare(self, messages: Sequence[Message], setup: Setup) -> CleanRequest:
        """The messages of a request, cleaned, with the fingerprints by which they are compared. The setup is clean
        already."""
        self.store.engine.ensure_open()
        self._open_recordings.end_abandoned()
        self._conversations.write_pending()  # a history is recognised by the answers that were kept
        messages = [self._mark_request(m) for m in self._clean(messages)]
        return CleanRequest(messages, setup, steps(self.dialect, messages))

    def ask(
        self,
        request: CleanRequest,
        *,
        after: str | None = None,
        within: str | None = None,
        session: str | None = None,
        inherits: bool = False,
        is_alone: bool = False,
        is_main: bool = False,
        found: RecordedConversation | None = None,
    ) -> Place:
        """Keep the new part of a history before it is sent. Returns the place where its answer goes.

        `session` is the caller's own name for requests that belong together. `inherits`: the system prompt and the
        tools are those of the answer that the request continues. `is_alone`: the client holds one conversation, and
        sends no request beside it. `is_main`: the request belongs to the main flow of the conversation that is named,
        also where it does not continue it, because the client has replaced its history by a summary. `found`: the
        conversation that the request continues, if `go_on` has found it.
        """
        for _ in range(_MAX_SEARCHES):
            named, follower = self._conversations.find_named(session)
            chosen, found = named or found, None
            if chosen is not None:
                claim: Claim | None = self._conversations.claim(chosen, None)
            else:
                claim = self._conversations.find(request.history, request.setup, after, within)
            if claim is None:
                return self._begin(request, session)
            try:
                go_on = partial(self._go_on, claim.recorded, request, after or within)
                place = go_on(
                    is_named=named is not None, inherits=inherits, is_alone=is_alone or is_main, is_main=is_main
                )
                place.recorded.expect_answer(place)
            except NotFound:
                if self._conversations.is_pinned(claim.recorded) or follower is not None:
                    raise
                self._conversations.forget(claim.recorded)  # it was purged: search again
                continue
            finally:
                claim.release()
            self._take_along(place, session, follower)
            return place
        raise Busy("the conversation is removed by another process as fast as it is found")

    def go_on(
        self, earlier: SentRequest, rest: CleanRequest, session: str | None
    ) -> Place | RecordedConversation | None:
        """Keep the messages that a request adds to an earlier one, at the place where `ask` would keep them.

        If that place is not certain, return the conversation that was found, or None. The caller then passes the whole
        history to `ask`.
        """
        named, follower = self._conversations.find_named(session)
        claim = self._conversations.claim_after(earlier, rest.history, named)
        if claim is None:
            return None
        try:
            place = self._go_on_after(earlier, rest)
            if place is None:
                return earlier.recorded
            place.recorded.expect_answer(place)
        except NotFound:
            return earlier.recorded  # it was purged: `ask` decides what follows from that
        finally:
            claim.release()
        self._take_along(place, session, follower)
        return place

    def _go_on_after(self, earlier: SentRequest, rest: CleanRequest) -> Place | None:
        recorded = self._conversations.use(earlier.recorded)
        with recorded.lock:
            recorded.flush()
            recorded.catch_up()
            if recorded is not earlier.recorded or not recorded.tree.is_current(earlier.position):
                return None
            found = recorded.tree.follow_on(earlier.position, rest.history)
            if found.proven == 0 or found.proven < last_answer(rest.history):
                return None
            return self._add_rest(recorded, found, rest)

    def _add_rest(self, recorded: RecordedConversation, found: HistoryMatch, request: CleanRequest) -> Place:
        """Add the new messages of a history below the last message that was found."""
        place = Place(recorded, recorded.handle(found.at))
        history = request.history[found.count :]
        saved = self._add(place, request.messages[found.count :], request.setup, history)
        if found.is_whole:
            place.position = recorded.tree.position([message.id for message in saved], history)
        return place

    def _take_along(self, place: Place, session: str | None, follower: Conversation | None) -> None:
        """Move the session and the handle of the caller to the place of a request."""
        if session is not None:
            self._conversations.remember_session(session, place.recorded)
        if (
            place.handle.position.label == place.recorded.talk.position.label
        ):  # a side call leaves the caller's handle where it is
            place.follower = follower
            place.lead()

    def _mark_request(self, message: Message) -> Message:
        """Mark an answer that stands in a request: it was not given to that request."""
        if message.role != "assistant":
            return message
        return replace(message, extra={**(message.extra or {}), FROM_REQUEST: True})

    def _go_on(
        self,
        recorded: RecordedConversation,
        request: CleanRequest,
        after: str | None,
        *,
        is_named: bool,
        inherits: bool,
        is_alone: bool,
        is_main: bool,
    ) -> Place:
        recorded = self._conversations.use(recorded)
        with recorded.lock:
            recorded.flush()
            recorded.catch_up()
            if after is not None:  # only new messages were sent; the answer that they continue may be unknown here
                at = recorded.find_response(after) or recorded.newest
                return self._go_on_from(recorded, at, request, inherits=inherits)
            found = recorded.tree.follow(request.history, is_bound=is_named)
            if is_named and not self._continues(recorded, found, request, is_alone=is_alone):
                place = Place(recorded, recorded.open_root() if is_main else recorded.open_side_call())
                self._add(place, request.messages, request.setup)
                return place
            return self._add_rest(recorded, found, request)

    def _go_on_from(
        self, recorded: RecordedConversation, at: str | None, request: CleanRequest, *, inherits: bool
    ) -> Place:
        place, setup = Place(recorded, recorded.handle(at)), request.setup
        if inherits:
            setup = self._clean_setup(replace(place.handle.setup, provider=setup.provider, model=setup.model))
        self._add(place, request.messages, setup)
        return place

    def _continues(
        self, recorded: RecordedConversation, found: HistoryMatch, request: CleanRequest, *, is_alone: bool
    ) -> bool:
        """Does a history continue the conversation that it is sent in?

        It does in three cases: it holds an answer that was given there; no question was answered there yet, and it may
        be the opening; or it begins as the conversation did, with the same system prompt, because the question is asked
        again. The trace of a sub-agent takes every request of the sub-agent.
        """
        history, setup = request.history, request.setup
        if recorded.talk.position.label is not None:
            return True
        if found.proven or recorded.tree.last_answer(history, is_bound=True):
            return True
        if not recorded.has_main_flow:
            return is_alone or self._may_open(recorded, setup)
        if not found.main and not recorded.is_free(found.at):  # it repeats a side call that was answered
            return False
        return found.at is not None and self._read_prompt(recorded, found.at) == setup.system_prompt

    def _may_open(self, recorded: RecordedConversation, setup: Setup) -> bool:
        """May a conversation begin with this setup?

        A conversation that was started with a system prompt does not begin with another one: that is, for example, a
        check of the question, which some programs make before they ask it. But frameworks add words of their own to a
        prompt, and a request without a prompt says nothing about it.
        """
        wanted = self._read_prompt(recorded, recorded.newest)
        return not setup.system_prompt or wanted in setup.system_prompt

    def _read_prompt(self, recorded: RecordedConversation, at: str | None) -> str:
        """The system prompt in force at a message, cleaned, so that it can be compared with that of a request."""
        place = Conversation(HandlePosition(recorded.talk.state, None)) if at is None else recorded.talk.fork(at=at)
        return self._clean_setup(place.setup).system_prompt

    def _begin(self, request: CleanRequest, session: str | None) -> Place:
        """Start a conversation with its first messages, in one commit."""
        store, limit = self.store, self.store.engine.max_write_bytes
        setup, history = request.setup, request.history
        setup = check_setup(setup.provider, setup.model, setup.system_prompt, setup.tools, limit, setup.raw)
        complete = [self._complete(m) for m in request.messages]

        def make(state: ConversationState) -> list[EncodedMessage]:
            drafts = [encode_message(state, m, 1) for m in complete]
            check_size(drafts, limit)
            return drafts

        opening = self._conversations.opening_of(history[0][0]) if history and history[0] else None
        opening = opening if session is None else session_name(session)
        with_mark = More(items=lambda state, _: (new_mark(state),))
        about = replace(self._about, opening=opening)
        created = create(store.engine, new_conversation_id(), about, [setup], make, with_mark)
        if created is None:
            raise Busy("the conversation could not be started")
        state, saved = created
        talk = handle_on(state)
        recorded = self._conversations.look_up(talk)
        place = Place(recorded, recorded.handle(talk.at))
        recorded.expect_answer(place)
        recorded.note_written(saved)
        place.position = recorded.tree.position([message.id for message in saved], history)
        recorded.confirm_mark()
        recorded.opening = setup  # from here on another request may find it as a question that was never answered
        if session is not None:
            self._conversations.remember_session(session, recorded)
        return place

    def check_into(self, place: Place) -> None:
        """Refuse an `into` that names another conversation: a client of ours has exactly one."""
        into = current_conversation()
        if into is not None and into.id != place.recorded.talk.id:
            hint = "give each conversation a client of its own, and resume it"
            raise InvalidArgument("`into` names another conversation than the one that this client is in", hint=hint)

    def start(self, talk: Conversation) -> Place:
        """The place where a handle stands."""
        return Place(self._conversations.look_up(talk), talk.fork(), talk)

    def add(self, place: Place, messages: Sequence[Message], setup: Setup | None = None) -> list[Saved]:
        """Add messages below a place, and move the place to them. A setup that differs from here on is kept too."""
        return self._add(place, self._clean(messages), None if setup is None else self._clean_setup(setup))

    def _add(
        self, place: Place, messages: Sequence[Message], setup: Setup | None, history: History = ()
    ) -> list[Saved]:
        recorded = place.recorded
        with recorded.lock:
            if messages:
                place.partials = ()  # a partial of an answer that broke off stays where it belongs
            if setup is not None:
                named = replace(setup, provider=setup.provider or self.provider)
                configure(place.handle.position, named, is_clean=True)
            saved = recorded.write(place, [self._complete(m) for m in messages], history) if messages else []
            place.asked = time.perf_counter()
            return saved

    # -- an answer

    def answer(self, place: Place, answer: Answer) -> list[Saved]:
        """Keep an answer. If it cannot be written now, it is held, and tried again before the next write."""
        recorded = place.recorded
        with recorded.lock:
            for other in answer.others:
                self._write(Place(recorded, place.handle.fork(main=False)), other, answer)
            if not answer.messages:
                self.drop_partials(place)
                return []
            if self.store.engine.telemetry.is_on:
                observe_answer(place, self.provider, answer)
            saved = self._write(place, answer.messages, answer)
            if saved:
                self.latest_answer = recorded, saved[-1].id
                recorded.put_back(place.handle)
        if saved and self._checkpoints is not None:
            self._checkpoints.count_answer(self.store, saved[-1].conversation, saved[-1].id)
        return saved

    def _write(self, place: Place, messages: Sequence[Message], answer: Answer) -> list[Saved]:
        """Write an answer, or hold it if that is not possible now."""
        recorded = place.recorded
        try:
            complete = list(self._clean([self._complete(m, answer) for m in messages]))
        except HithertoError as error:
            warn(f"an answer cannot be kept, and is lost: {error}")
            return []
        try:
            return self._write_all(place, complete)
        except TRANSIENT as error:
            warn(f"an answer could not be kept yet, and is held: {type(error).__name__}")
            recorded.hold(place, complete)
            self._conversations.keep(recorded)
        except HithertoError as error:
            warn(f"an answer cannot be kept, and is lost: {error}")
        return []

    def _write_all(self, place: Place, messages: Sequence[Message]) -> list[Saved]:
        """Write an answer of any size. One that exceeds the limit for text is kept as bytes."""
        try:
            return place.recorded.write(place, messages, is_answer=True)
        except PayloadTooLarge:
            return place.recorded.write(place, [as_bytes(message) for message in messages], is_answer=True)

    def open_partial(self, place: Place, assembly: Assembly) -> PartialAnswer:
        """Keep an answer while it streams in."""

        at = place.handle.at
        key = None if at is None else new_key(self.store.engine.message_ids.number(at))

        def keep_so_far(answer: Answer) -> None:
            with place.recorded.lock:
                if key is not None:
                    so_far = self._clean(answer.messages, complete=False)
                    recording = not place.recorded.is_ended
                    keep(place.handle.state, key, [self._complete(m) for m in so_far], recording=recording)
                    if place.handle.at == at and key not in place.partials:
                        place.partials += (key,)

        opened = PartialAnswer(assembly, keep_so_far, self._partial_seconds, self.store.engine.at_close)
        with self._lock:
            self._partial_answers.add(opened)
        return opened

    def drop_partials(self, place: Place) -> None:
        """Delete the partials of an answer that turned out to be none."""
        for key in place.partials:
            drop(place.handle.state, key)
        place.partials = ()

    # -- cleaning

    def _clean(self, messages: Sequence[Message], *, complete: bool = True) -> Sequence[Message]:
        """The messages without secrets."""
        for redactor in self._redactors:
            for message in messages:
                check(message)
            messages = redactor.messages(messages, complete=complete)
        return messages

    def clean_setup(self, setup: Setup) -> Setup:
        """The setup of a request without secrets, with our name of the provider."""
        return self._clean_setup(replace(setup, provider=self.provider))

    def _clean_setup(self, setup: Setup) -> Setup:
        for redactor in self._redactors:
            setup = redactor.setup(setup)
        return setup

    def _complete(self, message: Message, answer: Answer | None = None) -> Message:
        """The message as a value, with the dialect of its raw and the response that it came in."""
        extra = dict(message.extra or {})
        if message.raw is not None:
            extra.setdefault("dialect", self.dialect.name)
        if answer is not None:
            given = {"response_id": answer.id, "within": answer.within}
            extra.update({name: value for name, value in given.items() if value is not None})
        return without_place(message, extra or None)
