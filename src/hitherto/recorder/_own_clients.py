"""Record our own chat clients, which report their messages themselves.

The history of a client only grows, or is replaced as a whole. As long as the last message that was kept still stands at
its place in the history, all messages after it are new. If not, the history was replaced, and it is matched with the
tree as that of an SDK is.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from .._engine.describing import configure
from .._erasure.checkpoint_copies import is_there
from .._system.interrupts import uninterruptible
from ..conversation import Conversation
from ..dialects import Answer, Assembly
from ..errors import InvalidArgument, NotExportable, NotFound
from ..model import Block, Message, Saved, Setup
from ..reports import Partial, Repair
from ._partial_answer import PartialAnswer
from ._recorded_conversation import Place
from ._recorder import Recorder


class Resumed(Struct, frozen=True):
    """The result of resuming a conversation."""

    conversation: str
    at: str | None  # the message that it continues from
    missing_handlers: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    losses: tuple[str, ...] = ()
    interrupted: Saved | None = None  # a question without an answer: client.retry() asks again
    partials: tuple[Partial, ...] = ()  # of the answer to it: talk.accept(…) and talk.discard(…)


class Running(Struct, frozen=True):
    """A tool that runs now, and the message that called it."""

    listener: "OwnListener"
    message: str | None


_running: ContextVar[Running | None] = ContextVar("hitherto_running", default=None)


class OwnListener:
    """The listener of one of our clients."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.place: Place | None = None
        self._count = 0  # of the client's messages that are kept
        self._last: Message | None = None  # the last of them
        self._at: str | None = None  # the same in the store
        self.latest_answer: str | None = None  # the id of the answer that was kept last
        self.resumed: Resumed | None = None

    def stand(self, talk: Conversation, path: Sequence[Message], resumed: Resumed) -> None:
        """Note where the client continues, and that these messages of its history are kept already."""
        self.place, self.resumed = self.recorder.start(talk), resumed
        self._note_kept(path, self.place.handle.at)

    def _note_kept(self, path: Sequence[Message], at: str | None) -> None:
        """Note that all of these messages are kept."""
        self._count, self._last, self._at = len(path), path[-1] if path else None, at

    def check_leaving(self) -> None:
        """Raise `NotExportable` if the conversation must not leave its store."""
        if self.place is not None and not self.place.handle.refresh().exportable:
            raise NotExportable(self.place.handle.id)

    def keep(self, history: Sequence[Message], setup: Setup, *, answered: bool) -> None:
        try:
            with uninterruptible():
                self._keep(history, setup, answered=answered)
        except NotFound as error:
            place = self.place
            if place is None or is_there(place.handle.state):
                raise
            hint = "it was purged: go on with a new client; record(client, store) keeps all that this one has said anew"
            raise NotFound("conversation", [place.handle.id], hint=hint) from error

    def _keep(self, history: Sequence[Message], setup: Setup, *, answered: bool) -> None:
        count = self._count
        if self.place is not None:
            self.recorder.check_into(self.place)
        if self.place is None or not self._is_in_step(history):
            said = self.recorder.prepare(history, self.recorder.clean_setup(setup))
            self.place = self.recorder.ask(said, is_alone=True)
            self.place.recorded.settle(self.place)  # no other client asks the same question at this place
        elif answered:
            saved = self.recorder.answer(self.place, Answer(list(history[count:])))
            self.latest_answer = saved[-1].id if saved else None
        else:
            self.recorder.add(self.place, history[count:], setup)
        self._note_kept(history, self.place.handle.at)

    def catch_up(self, history: Sequence[Message], setup: Setup) -> None:
        """Keep the answers so far, if Ctrl+C came before they were kept."""
        if self.place is not None and len(history) > self._count:
            self.keep(history, setup, answered=True)

    def _is_in_step(self, history: Sequence[Message]) -> bool:
        """Does this history begin with the messages that we have noted as kept, and are these all that are kept? Ctrl+C
        may come between a commit and the note of it."""
        count = self._count
        same = len(history) >= count and (not count or history[count - 1] is self._last)
        return same and self.place is not None and self.place.handle.at == self._at

    def arriving(self, assembly: Assembly) -> PartialAnswer:
        assert self.place is not None  # a question is kept before it is asked
        return self.recorder.open_partial(self.place, assembly)

    def keep_summary(self, summary: Message, setup: Setup) -> Message:
        if self.place is None:
            self._note_kept([summary], None)
            return summary
        recorded = self.place.recorded
        with uninterruptible(), recorded.lock:
            recorded.flush()
            configure(self.place.handle.position, replace(setup, provider=setup.provider or self.recorder.provider))
            saved: Saved = self.place.handle.compact(summary)
            self.place.lead()
            recorded.note_written([saved])
            self._note_kept([saved], saved.id)
        return saved

    def running(self, call: Block) -> Callable[[], None]:  # noqa: ARG002  # traces are linked to the message, not to the call
        token: Token[Running | None] = _running.set(Running(self, self.latest_answer))
        return lambda: _running.reset(token)


def trace(name: str, run_id: str | None, within: "OwnListener | Recorder | None") -> Conversation:
    """The handle for the trace of a sub-agent: a root of its own, linked to the call that started it.

    `within` records the client that started the sub-agent. Without it, that is the client whose tool runs now.
    """
    talk, call = _find_starter(within)
    if talk is None:
        hint = "record it in a tool's handler, or give within=<the recorded client that started it>"
        raise InvalidArgument("it is unknown which conversation has started the sub-agent", hint=hint)
    return talk.subagent(name, run_id or uuid4().hex[:12], call=call or talk.at)


def _find_starter(within: "OwnListener | Recorder | None") -> tuple[Conversation | None, str | None]:
    """The conversation that a sub-agent is started in, and the message that called it."""
    running = _running.get()
    if isinstance(within, Recorder):
        return (None, None) if within.latest_answer is None else (within.latest_answer[0].talk, within.latest_answer[1])
    listener = within or (running.listener if running is not None else None)
    if listener is None or listener.place is None:
        return None, None
    is_running = running is not None and running.listener is listener
    return listener.place.handle, running.message if running is not None and is_running else listener.latest_answer
