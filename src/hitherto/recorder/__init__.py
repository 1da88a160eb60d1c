"""Record a chat while it goes on, and resume it from the store.

    recorded = hitherto.record(client, store, title="Build")
    recorded.chat("What fails?")

    recorded = hitherto.resume(client, store, conversation_or_message_id)

`record` takes a client of `hitherto.chat`, one of the SDKs of OpenAI, Anthropic or Google, or a plain HTTP client, sync
or async. It returns the same object, with the same calls, and from then on every message is kept. `_recorder` explains
how; `_known_conversations` explains how the conversation of a request is found.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from .._engine.bodies import Meta
from .._engine.creating import build_meta, clean_meta
from .._engine.filters import Path
from .._engine.reading import read_thread
from .._system.task_threads import shared_threads
from ..chat._claude_local import ClaudeLocal
from ..chat._clients import AsyncClaudeLocal, AsyncClient, Client
from ..chat._turn import Restored
from ..conversation import Conversation
from ..dialects import dialect as find_dialect
from ..dialects._repair import repair
from ..errors import HithertoError, InvalidArgument, ProviderMismatch, Unsupported
from ..events import warn
from ..model import Saved, as_list
from ..snapshots._thread import dialect_name, spoken_in
from ..store import Store
from ._calls import find, listen, listening_to, unlisten
from ._checkpoints import Checkpoints
from ._closing import open_recordings
from ._into import into
from ._own_clients import OwnListener, Resumed, trace
from ._recorder import PARTIAL_SECONDS, Recorder
from ._sdk import Listening, dialects_of

if TYPE_CHECKING:
    from ..aio import AsyncConversation, AsyncStore
    from ..listing import ConversationInfo
    from ..sanitiser import Sanitiser

__all__ = ["Recording", "Resumed", "history", "into", "is_recorded", "record", "recording", "resume"]

C = TypeVar("C")
Entry: TypeAlias = Any  # a provider's own message: no type of ours would satisfy the types of its SDK
_OURS = (Client, AsyncClient, ClaudeLocal, AsyncClaudeLocal)


class Recording:
    """The recording of one client. Get it with `hitherto.recording(client)`.

        with hitherto.recording(client):
            client.chat("What fails?")

    The end of the block closes the recording, also after an exception. The client stays open.
    """

    def __init__(self, client: object, recorders: "Recorder | Listening", listener: OwnListener | None = None) -> None:
        self._client = client
        self._recorders = recorders
        self._listener = listener
        self.resumed = (
            None if listener is None else listener.resumed
        )  # the result of resuming, if the client was resumed

    def __enter__(self) -> "Recording":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HithertoError as failure:
            if error is None:
                raise
            warn(
                f"the recording could not be closed: {type(failure).__name__}"
            )  # the error of the block must reach the caller

    async def __aenter__(self) -> "Recording":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await shared_threads().run(self.__exit__, kind, error, trace)

    def _all(self) -> list[Recorder]:
        return self._recorders.recorders() if isinstance(self._recorders, Listening) else [self._recorders]

    @property
    def _latest(self) -> Recorder | None:
        return self._recorders.latest if isinstance(self._recorders, Listening) else self._recorders

    @property
    def conversation(self) -> Conversation | None:
        """The conversation that was written to last, at its head; None before the first message."""
        recorder = self._latest
        talk = None if recorder is None else recorder.latest
        return None if talk is None or recorder is None else recorder.store.conversation(talk.id)

    @property
    def position(self) -> Conversation | None:
        """The conversation at the message where a client of ours stands, even if another writer has moved its head."""
        place = None if self._listener is None else self._listener.place
        return self.conversation if place is None else place.handle.fork()

    @property
    def pending(self) -> int:
        """How many messages could not be written yet, for example because the disk is full. They are tried again with
        the next question; `flush` tries now."""
        return sum(recorder.pending for recorder in self._all())

    @property
    def checkpoint_error(self) -> Exception | None:
        """The error of the last checkpoint; None if it succeeded."""
        found = (recorder.checkpoint_error for recorder in self._all())
        return next((error for error in found if error is not None), None)

    def catch_up(self) -> None:
        """Record the answers in the history of a client of `hitherto.chat` that are not recorded yet, because Ctrl+C
        came first."""
        client = self._client
        if self._listener is not None and isinstance(client, Client | AsyncClient) and client.messages:
            self._listener.catch_up(client.messages, client.setup)

    def flush(self, *, timeout_seconds: float = 10.0) -> None:
        """Write the messages that are pending, and wait for checkpoints. Raises the error if a message still cannot be
        written."""
        for recorder in self._all():
            recorder.flush(timeout_seconds)

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Stop recording; the client works on as before.

        Pending messages are written. If that fails, the error is raised, the messages are still held, and `close` may
        be called again. An answer that is still streaming is kept as a partial. Every conversation is committed with
        its metrics, and its recovery snapshot is removed.
        """
        if isinstance(self._recorders, Listening):
            unlisten(self._recorders)
            self._recorders.warn_if_silent()
        elif isinstance(self._client, _OURS) and self._client.listener is self._listener:
            self._client.listen(None)
        failure: HithertoError | None = None
        for recorder in self._all():
            try:
                recorder.close(timeout_seconds)
            except HithertoError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def record(
    client: C,
    store: "Store | AsyncStore",
    *,
    title: str = "",
    project: Path | None = None,
    metadata: Mapping[str, str] | None = None,
    conversation: "str | Conversation | AsyncConversation | ConversationInfo | None" = None,
    subagent: str | None = None,
    run_id: str | None = None,
    within: object = None,
    partial_seconds: float = PARTIAL_SECONDS,
    checkpoint: object = None,
    checkpoint_turns: int | None = None,
    checkpoint_seconds: float | None = None,
    checkpoint_keep: int | None = None,
    sanitiser: "Sanitiser | None" = None,
    dialect: str | None = None,
) -> C:
    """Keep every message of this client from now on. Returns the client.

    The first message starts a conversation with this `title`, `project` and `metadata`. A request of an SDK client
    continues a conversation if its history holds an answer that was given there; any other request starts a new
    conversation. If a `conversation` is given, every request goes into it, and the handle moves along. A request that
    does not continue it is kept beside its main flow, under the label `subagent:side-call:…`.

    `subagent` records the trace of a sub-agent instead, linked to the tool call in whose handler this is called, or to
    the last answer of `within`, a recorded client. While an answer streams in, it is kept every `partial_seconds`.

    The client may be an `httpx.Client` or `AsyncClient`: then every request is kept whose path says that it is a chat.
    With `dialect` (`"openai-chat"`, `"openai-responses"`, `"anthropic"`, `"gemini"`) the path does not matter.

    `checkpoint` gets a `Snapshot` of the conversation after every `checkpoint_turns` answers, or at the latest
    `checkpoint_seconds` after one. It is a snapshot store, another object with a method `save`, or a function, and is
    called in a thread of its own. A snapshot store keeps the newest `checkpoint_keep` of each conversation, by default
    10.

    A `sanitiser` removes secrets before a message is kept. The provider gets the message with them.
    """
    kept = _store(store)
    _check_seconds(partial_seconds)
    about = build_meta(kept.engine, title, None, metadata, project)
    talk = None if conversation is None else _find_conversation(kept, conversation)
    if subagent is not None:
        talk = trace(subagent, run_id, None if within is None else _recorder_of(within))
    if dialect is not None:
        find_dialect(dialect_name(dialect))  # it raises now if there is no dialect of that name
    if checkpoint is None and (checkpoint_turns, checkpoint_seconds, checkpoint_keep) != (None, None, None):
        raise InvalidArgument("checkpoints are to go nowhere", hint="checkpoint=FileStore(…), or a function")
    due = None if checkpoint is None else Checkpoints(checkpoint, checkpoint_turns, checkpoint_seconds, checkpoint_keep)
    if sanitiser is not None:
        about = clean_meta(about, kept.engine.make_redactor(sanitiser))
    return _attach(client, kept, about, talk, float(partial_seconds), due, sanitiser, dialect)


def _attach(
    client: C,
    store: Store,
    about: Meta,
    talk: Conversation | None,
    seconds: float,
    due: Checkpoints | None = None,
    sanitiser: "Sanitiser | None" = None,
    dialect: str | None = None,
) -> C:
    if isinstance(client, _OURS):
        if dialect is not None:
            raise InvalidArgument("the dialect of a client of ours is known", hint="leave `dialect` out")
        recorder = Recorder(store, client.dialect, client.provider, about, talk, seconds, due, sanitiser)
        client.listen(OwnListener(recorder))
        return client

    def make(name: str, provider: str) -> Recorder:
        return Recorder(store, find_dialect(name), provider, about, talk, seconds, due, sanitiser)

    listening = listen(client, make, None if dialect is None else dialect_name(dialect))
    open_recordings(store.engine).expect_requests(listening)
    if talk is not None and listening.provider is not None:
        _spoken[talk] = dialects_of(listening.provider)[0]
    return client


# The dialect of empty conversations, whose messages do not name one yet.
_spoken: WeakKeyDictionary[Conversation, str] = WeakKeyDictionary()


def recording(client: object) -> Recording:
    """The recording of a client. As a context manager, sync or async, it ends the recording with the block; the client
    stays open, and works on as before.

        with hitherto.recording(client):
            client.chat("What fails?")
    """
    found = _recording(client)
    if found is None:
        raise InvalidArgument("this client is not recorded", hint="hitherto.record(client, store) first")
    return found


def is_recorded(client: object) -> bool:
    """Is this client being recorded?"""
    return _recording(client) is not None


def _recording(client: object) -> Recording | None:
    listener = _own_listener(client)
    if listener is not None:
        return Recording(client, listener.recorder, listener)
    found = listening_to(client)
    return None if found is None else Recording(client, found)


def _own_listener(client: object) -> OwnListener | None:
    """The listener of a recorded client of ours; None for other clients."""
    listener = client.listener if isinstance(client, _OURS) else None
    return listener if isinstance(listener, OwnListener) else None


def resume(
    client: C,
    store: "Store | AsyncStore",
    id: "str | Conversation | AsyncConversation | ConversationInfo | Saved",
    *,
    convert: bool = False,
    partial_seconds: float = PARTIAL_SECONDS,
    sanitiser: "Sanitiser | None" = None,
) -> C:
    """Continue a conversation from its head or from one of its messages, and record the client from now on.

    A client of ours gets the history and the system prompt that were in force there. A history that the provider would
    refuse is repaired: a tool call that was interrupted gets a result that says so. `recording(client).resumed` reports
    the repairs. A conversation with another provider is refused with `ProviderMismatch`, unless `convert` is true; then
    `resumed` reports the losses. An SDK client keeps no history: send `hitherto.history(talk)`. A handle that is given
    moves along.
    """
    kept = _store(store)
    _check_seconds(partial_seconds)
    talk = _find_conversation(kept, id)
    if isinstance(client, (ClaudeLocal, AsyncClaudeLocal)):
        raise Unsupported("claude-local cannot be given a history", hint="resume with another provider: convert=True")
    if isinstance(client, (Client, AsyncClient)):
        path = read_thread(talk.state, talk.position.at)
        restored = client.resume(path, talk.setup, convert=convert)
        _attach(client, kept, Meta(), talk, partial_seconds, None, sanitiser)
        if isinstance(client.listener, OwnListener):
            client.listener.stand(talk, path, _report_resumed(talk, path, restored))
        return client
    _check_spoken(client, talk, convert=convert)
    return _attach(client, kept, Meta(), talk, partial_seconds, None, sanitiser)


def _check_spoken(client: object, talk: Conversation, *, convert: bool) -> None:
    """Raise `ProviderMismatch` if a message is written in a dialect that this SDK does not speak."""
    found = find(client)
    if found is None or convert:
        return
    spoken = dialects_of(found.provider)
    for message in read_thread(talk.state, talk.position.at, lazy=True):
        written = (message.extra or {}).get("dialect")
        if isinstance(written, str) and written not in spoken:
            hint = f"resume(…, convert=True), and send history(talk, {spoken[0]!r})"
            raise ProviderMismatch(expected=" or ".join(spoken), found=written, what="conversation", hint=hint)


def _report_resumed(talk: Conversation, path: Sequence[Saved], restored: Restored) -> Resumed:
    said = [message for message in path if message.role != "event"]
    asked = said[-1] if said and said[-1].role in ("user", "tool_result") else None
    unanswered = None if asked is None or _is_answered(talk, asked.id) else asked
    places = {talk.at} if not said else {talk.at, said[-1].id}  # an event may stand between
    partials = tuple(partial for partial in talk.partials() if partial.parent in places)
    found = restored.missing_handlers, restored.repairs, restored.losses
    return Resumed(talk.id, talk.at, *found, unanswered, partials)


def _is_answered(talk: Conversation, id: str) -> bool:
    """Does an answer stand below this message, on any branch, with only events in between?"""
    below = {talk.engine.message_ids.number(id)}
    for row in talk.engine.read_headers(talk.state.id):
        if row.parent in below and row.role == "assistant":
            return True
        if row.parent in below and row.role == "event":
            below.add(row.number)
    return False


def history(
    talk: "Conversation | AsyncConversation",
    provider: str | None = None,
    *,
    system_prompt: bool = True,
    unanswered: bool = False,
) -> list[Entry]:
    """The messages to send in order to continue a conversation. Add the next question.

    They are the provider's own messages from the beginning to the message where the handle stands, repaired where a
    provider would refuse them.

    For chat completions the system prompt stands first, unless `system_prompt` is false. In other requests it has a
    field of its own, and is left out: pass `talk.system_prompt` there.

    `provider` is one of ours (`"openai"` is chat completions) or a dialect (`"openai-responses"`); by default the one
    that the conversation is held with. A question at the end that was sent and got no answer is left out, so that it is
    not sent twice when it is asked again; `unanswered` keeps it.
    """
    handle = _talk(talk)
    if handle is None:
        raise InvalidArgument(f"a {type(talk).__name__} where a conversation is wanted")
    path, setup = read_thread(handle.state, handle.position.at), handle.setup
    while path and not unanswered and _was_sent(path[-1]) and not _is_answered(handle, path[-1].id):
        path.pop()
    known = _spoken.get(handle, setup.provider) if not path and not setup.provider else setup.provider
    spoken = find_dialect(dialect_name(provider) if provider else spoken_in(path, known))
    entries = spoken.history(repair(path, spoken).messages)
    if spoken.name != "openai-chat" or not system_prompt:
        return entries
    return list(as_list(spoken.request(entries, setup, {})["messages"], "messages"))


def _was_sent(message: Saved) -> bool:
    """Did a recorder keep this message as a question? One that the caller appended is yet to be sent."""
    extra = message.extra or {}
    return message.role == "user" and "dialect" in extra and extra.get("sent") is not False


def _store(store: object) -> Store:
    found = getattr(store, "sync", store)  # an async store's own
    if not isinstance(found, Store):
        raise InvalidArgument(f"a {type(store).__name__} where a store is wanted", hint="hitherto.open(…)")
    return found


def _check_seconds(seconds: float) -> None:
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= 60:
        raise InvalidArgument("partial_seconds is a number of seconds, more than 0 and at most 60")


def _find_conversation(store: Store, conversation: object) -> Conversation:
    """A conversation of this store, from a handle or an id."""
    talk = _talk(conversation)
    if talk is None:
        return store.conversation(conversation)  # type: ignore[arg-type]  # it refuses other types
    if talk.engine is not store.engine:
        raise InvalidArgument("the conversation is in another store")
    return talk


def _talk(conversation: object) -> Conversation | None:
    found = getattr(conversation, "sync", conversation)
    return found if isinstance(found, Conversation) else None


def _recorder_of(client: object) -> "OwnListener | Recorder":
    """The listener or the recorder of a recorded client."""
    listener = _own_listener(client)
    if listener is not None:
        return listener
    listening = listening_to(client)
    if listening is None or listening.latest is None:
        raise InvalidArgument("`within` is a client that is recorded, and that was answered")
    return listening.latest
