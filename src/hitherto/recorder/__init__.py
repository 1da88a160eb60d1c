"""Where chat and store meet: recording a chat as it goes, and going on from what was kept.

    recorded = hitherto.record(client, store, title="Build")
    recorded.chat("What fails?")

    recorded = hitherto.resume(client, store, conversation_or_message_id)

`record` takes a client of `hitherto.chat`, one of the SDKs of OpenAI, Anthropic or Google, or a plain HTTP client, sync
or async. It gives back the same object, with the same calls, and from then on everything is kept: see `_recorder` for
how.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from .._engine.bodies import Meta
from .._task_threads import shared
from ..chat._claude_local import ClaudeLocal
from ..chat._clients import AsyncClaudeLocal, AsyncClient, Client
from ..chat._turn import Restored
from ..conversation import Conversation
from ..dialects import dialect as find_dialect
from ..dialects._repair import repair
from ..errors import HithertoError, InvalidArgument, ProviderMismatch, Unsupported
from ..events import warn
from ..model import Saved, listed
from ..snapshots._thread import named, spoken_in
from ..store import Path, Store
from ._calls import find, listen, listening_to, unlisten
from ._checkpoints import Checkpoints
from ._closing import ending
from ._own_clients import OwnListener, Resumed, trace
from ._recorder import PARTIAL_SECONDS, Recorder, into
from ._sdk import Listening, dialects_of

if TYPE_CHECKING:
    from ..aio import AsyncConversation, AsyncStore
    from ..listing import ConversationInfo
    from ..sanitiser import Sanitiser

__all__ = ["Recording", "Resumed", "history", "into", "is_recorded", "record", "recording", "resume"]

C = TypeVar("C")
Entry: TypeAlias = Any  # a provider's own message: what its SDK takes, whose types no type of ours would satisfy
_OURS = (Client, AsyncClient, ClaudeLocal, AsyncClaudeLocal)


class Recording:
    """What is being recorded of one client. Get it with `hitherto.recording(client)`.

        with hitherto.recording(client):
            client.chat("What fails?")

    At the end of the block, also by an exception, the recording is closed; the client is not.
    """

    def __init__(self, client: object, recorders: "Recorder | Listening", listener: OwnListener | None = None) -> None:
        self._client = client
        self._recorders = recorders
        self._listener = listener
        self.resumed = None if listener is None else listener.resumed  # what had to be done, if it was resumed

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
            warn(f"the recording could not be closed: {type(failure).__name__}")  # the other error is what counts

    async def __aenter__(self) -> "Recording":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await shared().run(self.__exit__, kind, error, trace)

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
    def _place(self) -> Conversation | None:
        """The conversation where a client of ours stands in it, wherever others have taken its head meanwhile."""
        place = None if self._listener is None else self._listener.place
        return self.conversation if place is None else place.handle.fork()

    @property
    def pending(self) -> int:
        """Messages that could not be written so far (the disk is full, say). They are tried again with the next
        question; `flush` tries now."""
        return sum(recorder.pending for recorder in self._all())

    @property
    def checkpoint_error(self) -> Exception | None:
        """Why the last checkpoint could not be made; None if it could."""
        found = (recorder.checkpoint_error for recorder in self._all())
        return next((error for error in found if error is not None), None)

    def flush(self, *, timeout_seconds: float = 10.0) -> None:
        """Write what could not be written so far; the error, if it still cannot be. Wait for checkpoints."""
        for recorder in self._all():
            recorder.flush(timeout_seconds)

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Stop recording; the client goes on as it was before. What could not be written so far is written, or its
        error raised: then it is still held, and `close` tries again. What has come of an answer on its way is kept as a
        partial. Every conversation is committed with its metrics, and its recovery snapshot goes."""
        if isinstance(self._recorders, Listening):
            unlisten(self._recorders)
            self._recorders.say_if_silent()
        elif isinstance(self._client, _OURS) and self._client._listener is self._listener:
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
    """Keep what is said through this client from now on; the client is given back.

    A new conversation is started with the first message; `title`, `project` and `metadata` are its own. A request of an
    SDK client goes on with a conversation if its history holds an answer that was given there; any other begins a new
    one. If a `conversation` is given, all goes into it, and the handle moves along: what does not go on with it is kept
    beside its main flow, under the label `subagent:side-call:…`.

    `subagent` records the trace of a sub-agent instead, linked to the tool call in whose handler this is called, or to
    the last answer of `within`, a recorded client. While an answer streams in, it is kept every `partial_seconds`.

    The client may be an `httpx.Client` or `AsyncClient`: then every request is kept whose path says that it is a chat.
    With `dialect` (`"openai-chat"`, `"openai-responses"`, `"anthropic"`, `"gemini"`) the path does not matter.

    `checkpoint` gets a `Snapshot` of the conversation after every `checkpoint_turns` answers, or at the latest
    `checkpoint_seconds` after one: a snapshot store, anything else with a method `save`, or a function. It is called in
    a thread of its own. Of each conversation a snapshot store keeps the newest `checkpoint_keep`, by default 10.

    With a `sanitiser`, secrets are taken out of what is kept, before it is; the provider gets what was said.
    """
    kept = _store(store)
    _check_seconds(partial_seconds)
    about = kept._described(title, None, metadata, project)
    talk = None if conversation is None else _found(kept, conversation)
    if subagent is not None:
        talk = trace(subagent, run_id, None if within is None else _recorder_of(within))
    if dialect is not None:
        find_dialect(named(dialect))  # it is refused now if there is none of that name
    if checkpoint is None and (checkpoint_turns, checkpoint_seconds, checkpoint_keep) != (None, None, None):
        raise InvalidArgument("checkpoints are to go nowhere", hint="checkpoint=FileStore(…), or a function")
    due = None if checkpoint is None else Checkpoints(checkpoint, checkpoint_turns, checkpoint_seconds, checkpoint_keep)
    if sanitiser is not None:
        redactor = kept._redactor_for(sanitiser)
        redactor.folder(about.project)
        about = replace(about, title=redactor.text(about.title), metadata=redactor.strings(about.metadata))
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

    listening = listen(client, make, None if dialect is None else named(dialect))
    ending(store).expect(listening)
    if talk is not None and listening.provider is not None:
        _spoken[talk] = dialects_of(listening.provider)[0]
    return client


# What is spoken in conversations that do not say it yet, because they are empty.
_spoken: WeakKeyDictionary[Conversation, str] = WeakKeyDictionary()


def recording(client: object) -> Recording:
    """What is being recorded of a client. As a context manager, sync or async, it ends the recording with the
    block; the client stays open, and goes on as before.

        with hitherto.recording(client):
            client.chat("What fails?")
    """
    found = _recording(client)
    if found is None:
        raise InvalidArgument("this client is not recorded", hint="hitherto.record(client, store) first")
    return found


def is_recorded(client: object) -> bool:
    """Is what is said through this client being kept?"""
    return _recording(client) is not None


def _recording(client: object) -> Recording | None:
    if isinstance(client, _OURS):
        listener = client._listener
        return Recording(client, listener.recorder, listener) if isinstance(listener, OwnListener) else None
    found = listening_to(client)
    return None if found is None else Recording(client, found)


def resume(
    client: C,
    store: "Store | AsyncStore",
    id: "str | Conversation | AsyncConversation | ConversationInfo | Saved",
    *,
    convert: bool = False,
    partial_seconds: float = PARTIAL_SECONDS,
    sanitiser: "Sanitiser | None" = None,
) -> C:
    """Go on with a conversation, from its head or from one of its messages, and keep what is said from now on.

    A client of ours gets the history and the system prompt that were in force there. What the provider would refuse is
    mended on the way: a tool call that was interrupted gets a result that says so. `recording(client).resumed` reports
    it. A conversation with another provider is refused with `ProviderMismatch` unless `convert` is true; then what
    cannot be told is reported. An SDK client keeps no history: `hitherto.history(talk)` is what to send. A handle that
    is given moves along with what is said.
    """
    kept = _store(store)
    _check_seconds(partial_seconds)
    talk = _found(kept, id)
    if isinstance(client, (ClaudeLocal, AsyncClaudeLocal)):
        raise Unsupported("claude-local cannot be given a history", hint="resume with another provider: convert=True")
    if isinstance(client, (Client, AsyncClient)):
        path = talk._path()
        restored = client.resume(path, talk.setup, convert=convert)
        _attach(client, kept, Meta(), talk, partial_seconds, None, sanitiser)
        if isinstance(client._listener, OwnListener):
            client._listener.stand(talk, path, _resumed(talk, path, restored))
        return client
    _check_spoken(client, talk, convert=convert)
    return _attach(client, kept, Meta(), talk, partial_seconds, None, sanitiser)


def _check_spoken(client: object, talk: Conversation, *, convert: bool) -> None:
    """Is the conversation written in words that the provider of this SDK understands?"""
    found = find(client)
    if found is None or convert:
        return
    spoken = dialects_of(found.provider)
    for message in talk._path(lazy=True):
        written = (message.extra or {}).get("dialect")
        if isinstance(written, str) and written not in spoken:
            hint = f"resume(…, convert=True), and send history(talk, {spoken[0]!r})"
            raise ProviderMismatch(expected=" or ".join(spoken), found=written, what="conversation", hint=hint)


def _resumed(talk: Conversation, path: Sequence[Saved], restored: Restored) -> Resumed:
    said = [message for message in path if message.role != "event"]
    asked = said[-1] if said and said[-1].role in ("user", "tool_result") else None
    unanswered = None if asked is None or _is_answered(talk, asked.id) else asked
    places = {talk.at} if not said else {talk.at, said[-1].id}  # an event may stand between
    partials = tuple(partial for partial in talk.partials() if partial.parent in places)
    found = restored.missing_handlers, restored.repairs, restored.losses
    return Resumed(talk.id, talk.at, *found, unanswered, partials)


def _is_answered(talk: Conversation, id: str) -> bool:
    """Does an answer stand below this message, on any branch, with nothing but events in between?"""
    below = {talk._store._names.number(id)}
    for row in talk._store._headers(talk._desk.id):
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
    """What to send to go on with a conversation: the provider's own messages from its beginning to where the handle
    stands, mended where a provider would refuse them. Add the next question.

    For chat completions the system prompt stands first, unless `system_prompt` is false. Elsewhere it has a place of
    its own in a request, and is left out: pass `talk.system_prompt` there.

    `provider` is one of ours (`"openai"` is chat completions) or a dialect (`"openai-responses"`); by default the one
    that the conversation is held with. A question at the end that was sent, and got no answer, is left out, so that it
    is not sent twice when it is asked again; `unanswered` keeps it.
    """
    handle = _talk(talk)
    if handle is None:
        raise InvalidArgument(f"a {type(talk).__name__} where a conversation is wanted")
    path, setup = handle._path(), handle.setup
    while path and not unanswered and _was_sent(path[-1]) and not _is_answered(handle, path[-1].id):
        path.pop()
    known = _spoken.get(handle, setup.provider) if not path and not setup.provider else setup.provider
    spoken = find_dialect(named(provider) if provider else spoken_in(path, known))
    entries = spoken.history(repair(path, spoken).messages)
    if spoken.name != "openai-chat" or not system_prompt:
        return entries
    return list(listed(spoken.request(entries, setup, {})["messages"], "messages"))


def _was_sent(message: Saved) -> bool:
    """Is it a question that a recorder has kept?"""
    return message.role == "user" and "dialect" in (message.extra or {})


def _store(store: object) -> Store:
    found = getattr(store, "sync", store)  # an async store's own
    if not isinstance(found, Store):
        raise InvalidArgument(f"a {type(store).__name__} where a store is wanted", hint="hitherto.open(…)")
    return found


def _check_seconds(seconds: float) -> None:
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= 60:
        raise InvalidArgument("partial_seconds is a number of seconds, more than 0 and at most 60")


def _found(store: Store, conversation: object) -> Conversation:
    """A conversation of this store, by a handle or by what names one."""
    talk = _talk(conversation)
    if talk is None:
        return store.conversation(conversation)  # type: ignore[arg-type]  # it refuses what is no id
    if talk._store is not store:
        raise InvalidArgument("the conversation is in another store")
    return talk


def _talk(conversation: object) -> Conversation | None:
    found = getattr(conversation, "sync", conversation)
    return found if isinstance(found, Conversation) else None


def _recorder_of(client: object) -> "OwnListener | Recorder":
    """What records a client."""
    found = _recording(client)
    if found is not None and found._listener is not None:
        return found._listener
    latest = None if found is None else found._latest
    if latest is None:
        raise InvalidArgument("`within` is a client that is recorded, and that was answered")
    return latest
