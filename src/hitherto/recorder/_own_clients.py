"""Recording our own chat clients: they say themselves what happens.

A client's history only grows, or is replaced as a whole. So what of it is kept already is known by the messages
themselves: as long as the last one that was kept still stands in its place, everything after it is new. If not, the
history was replaced, and is found again in the tree as that of an SDK would be.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from .._engine.recovery import Partial
from .._erasure.checkpoint_copies import is_there
from ..conversation import Conversation
from ..dialects import Answer, Assembly
from ..dialects._repair import Repair
from ..errors import InvalidArgument, NotExportable, NotFound
from ..model import Block, Message, Saved, Setup
from ._partial_answer import Arriving
from ._recorder import Place, Recorder


class Resumed(Struct, frozen=True):
    """What became of a conversation that was resumed."""

    conversation: str
    at: str | None  # the message that it goes on from
    missing_handlers: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    losses: tuple[str, ...] = ()
    interrupted: Saved | None = None  # what was said, and nobody answered: client.retry() asks again
    partials: tuple[Partial, ...] = ()  # what had come of the answer: talk.accept(…) and talk.discard(…)


class Running(Struct, frozen=True):
    """A tool that runs now, and the message that asked for it."""

    listener: "OwnListener"
    message: str | None


_running: ContextVar[Running | None] = ContextVar("hitherto_running", default=None)


class OwnListener:
    """What a client of ours is listened to by."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.place: Place | None = None
        self._count = 0  # of the client's messages that are kept
        self._last: Message | None = None  # the last of them
        self._at: str | None = None  # the same in the store
        self._answered: str | None = None  # the answer that was kept last
        self.resumed: Resumed | None = None

    def stand(self, talk: Conversation, path: Sequence[Message], resumed: Resumed) -> None:
        """The client goes on from here: these messages of its history are kept already."""
        self.place, self.resumed = self.recorder.start(talk), resumed
        self._note(path, self.place.handle.at)

    def _note(self, path: Sequence[Message], at: str | None) -> None:
        """All of these are kept."""
        self._count, self._last, self._at = len(path), path[-1] if path else None, at

    def check_leaving(self) -> None:
        """What is said here is about to leave: is it of a conversation that may?"""
        if self.place is not None and not self.place.handle.refresh().exportable:
            raise NotExportable(self.place.handle.id)

    def keep(self, history: Sequence[Message], setup: Setup, *, answered: bool) -> None:
        try:
            self._keep(history, setup, answered=answered)
        except NotFound as error:
            place = self.place
            if place is None or is_there(place.handle._desk):
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
            self.place.kept.settle(self.place)  # it is ours alone: nobody else asks the same
        elif answered:
            saved = self.recorder.answer(self.place, Answer(list(history[count:])))
            self._answered = saved[-1].id if saved else None
        else:
            self.recorder.add(self.place, history[count:], setup)
        self._note(history, self.place.handle.at)

    def catch_up(self, history: Sequence[Message], setup: Setup) -> None:
        """Keep what was answered so far, if Ctrl+C has come before that."""
        if self.place is not None and len(history) > self._count:
            self.keep(history, setup, answered=True)

    def _is_in_step(self, history: Sequence[Message]) -> bool:
        """Is what we know to be kept the beginning of this history, and is nothing kept that we do not know of? Ctrl+C
        may come between a commit and our noting it."""
        count = self._count
        same = len(history) >= count and (not count or history[count - 1] is self._last)
        return same and self.place is not None and self.place.handle.at == self._at

    def arriving(self, assembly: Assembly) -> Arriving:
        assert self.place is not None  # a question is kept before it is asked
        return self.recorder.arriving(self.place, assembly)

    def compacted(self, summary: Message, setup: Setup) -> Message:
        if self.place is None:
            self._note([summary], None)
            return summary
        kept = self.place.kept
        with kept.lock:
            kept.flush()
            self.place.handle._configure(replace(setup, provider=setup.provider or self.recorder.provider))
            saved: Saved = self.place.handle.compact(summary)
            self.place.lead()
            kept.wrote([saved])
        self._note([saved], saved.id)
        return saved

    def running(self, call: Block) -> Callable[[], None]:  # noqa: ARG002  # the message is what traces are linked to
        token: Token[Running | None] = _running.set(Running(self, self._answered))
        return lambda: _running.reset(token)


def trace(name: str, run_id: str | None, within: "OwnListener | Recorder | None") -> Conversation:
    """The place for the trace of a sub-agent: a root of its own, linked to the call that started it. `within` is what
    records the client that started it; without it, that is the client whose tool runs now."""
    talk, call = _started_by(within)
    if talk is None:
        hint = "record it in a tool's handler, or give within=<the recorded client that started it>"
        raise InvalidArgument("a sub-agent is started by somebody", hint=hint)
    return talk.subagent(name, run_id or uuid4().hex[:12], call=call or talk.at)


def _started_by(within: "OwnListener | Recorder | None") -> tuple[Conversation | None, str | None]:
    """The conversation that a sub-agent is started in, and the message that calls it."""
    running = _running.get()
    if isinstance(within, Recorder):
        return (None, None) if within.answered is None else (within.answered[0].talk, within.answered[1])
    listener = within or (running.listener if running is not None else None)
    if listener is None or listener.place is None:
        return None, None
    is_running = running is not None and running.listener is listener
    return listener.place.handle, running.message if running is not None and is_running else listener._answered
