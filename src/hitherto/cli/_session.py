"""One run of `hitherto chat`: a client, the conversation it goes on with, and what can be done about it meanwhile.

Where we stand is a message. It is the conversation's head after each answer, unless others go on with the conversation
at the same time; `/undo` and `/fork` stand elsewhere, and what is said there begins a branch. Nothing is ever deleted
here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import errors
from ._ctrl_c import Stoppable
from ._files import Question, question
from ._hints import advice
from ._ids import here
from ._markdown import answers
from ._prompt import asking
from ._slash import COMMANDS, SLASH, TITLE, act
from ._terminal import complain, line, say
from ._unanswered import offer, partials, say_left, say_stopped, unanswered

if TYPE_CHECKING:
    from ..chat import ClaudeLocal, Client
    from ..conversation import Conversation
    from ..model import Block, Message
    from ..recorder import Recording, Resumed
    from ..store import Store

INTERRUPTED = 130  # the exit code
_REMEMBERED = 200  # questions that the arrow keys bring back
_CUT = {"length", "max_tokens", "MAX_TOKENS"}  # why an answer has ended, in the words of the providers
_SPEAKERS = {"anthropic": "claude", "gemini": "gemini", "openai-chat": "openai"}  # who goes on with a dialect as it is


@dataclass(frozen=True)
class Terms:
    """How conversations are held: whether another provider's may be converted, the system prompt from here on, and the
    one that new ones begin with."""

    convert: bool = False
    system: str | None = None
    beginning: str = ""


class Session:
    """Questions and answers, kept in a store if there is one."""

    def __init__(
        self, client: "Client | ClaudeLocal", store: "Store | None", talk: "Conversation | None", terms: Terms
    ) -> None:
        self.client = client
        self.store = store
        self.terms = terms
        self._output = answers()
        self.title = ""  # of the conversation that the next question begins
        self.undone = ""  # a title that the question gave which was taken back: the next one may give another
        self._head: str | None = None  # of the conversation, as we have seen it last
        self._files: Sequence[str | Block] = ()  # that go before the next question
        self._unkept: Resumed | None = None  # of a conversation that is only read
        if talk is not None:
            self.resume(talk)
            if terms.system is not None:
                self.own().set_system_prompt(terms.system)

    def own(self) -> "Client":
        """The client, where it must be one whose history is ours."""
        from ..chat import Client  # noqa: PLC0415  # help needs none

        if not isinstance(self.client, Client):
            hint = "leave -c out; hitherto chat -n begins another conversation"
            what = "claude-local cannot go on with a conversation, or be changed: the program keeps its own"
            raise errors.Unsupported(what, hint=hint)
        return self.client

    @property
    def messages(self) -> "list[Message]":
        """What the model sees, as far as the client has it."""
        return list(getattr(self.client, "messages", ()))

    @property
    def _recording(self) -> "Recording | None":
        from ..recorder import is_recorded, recording  # noqa: PLC0415  # help needs none

        return recording(self.client) if is_recorded(self.client) else None

    @property
    def resumed(self) -> "Resumed | None":
        """What had to be done to go on with the conversation."""
        found = self._recording
        return self._unkept if found is None else found.resumed

    def talk(self) -> "Conversation | None":
        """The conversation where we stand in it; None while nothing is kept."""
        found = self._recording
        return None if found is None else found._place

    # -- going on

    def resume(self, talk: "Conversation", *, same_system: bool = False) -> None:
        """Go on from where this handle stands, with the system prompt that was in force there, or with the same as up
        to now."""
        client = self.own()
        self.flush()
        tools, system = client.tools, client.system_prompt
        client.set_tools(())  # those that were known here come from the conversation
        try:
            self._resume(client, talk)
        except errors.HithertoError:
            client.set_tools(tools)
            raise
        if same_system and client.system_prompt != system:
            client.set_system_prompt(system)
        self.undone, self._head = "", talk.head

    def _resume(self, client: "Client", talk: "Conversation") -> None:
        try:
            self._put_in(client, talk, convert=self.terms.convert)
        except errors.ProviderMismatch as error:
            if any(message.role == "assistant" for message in talk.thread(attachments="lazy")):
                raise self._mismatch(talk, error.found) from None
            self._put_in(client, talk, convert=True)  # nobody has answered yet: anybody may

    def _put_in(self, client: "Client", talk: "Conversation", *, convert: bool) -> None:
        from ..recorder import Resumed, resume  # noqa: PLC0415  # help needs none

        if self.store is None:
            done = client.resume(talk.thread(), talk.setup, convert=convert)
            self._unkept = Resumed(talk.id, talk.at, done.missing_handlers, done.repairs, done.losses)
        else:
            resume(client, self.store, talk, convert=convert)

    def _mismatch(self, talk: "Conversation", dialect: str) -> errors.ProviderMismatch:
        """The error, with what can be done about it here."""
        provider, found = self.client.provider, talk.provider or dialect
        family = dialect == "openai-chat" and found in ("openai-compatible", "local")
        fitting = found if family else _SPEAKERS.get(dialect)
        hint = "" if fitting in (None, provider) else f"--provider {fitting} goes on as it is; "
        hint += f"--convert tells {provider} what it can be told; -n begins a new conversation"
        found = dialect if found == provider else found
        return errors.ProviderMismatch(expected=provider, found=found, what="conversation", hint=hint)

    def go_to(self, talk: "Conversation") -> None:
        """Go on with another conversation: nothing of this one goes along, and the model is that one's."""
        client = self.own()
        system = client.system_prompt
        client.set_system_prompt("")
        try:
            self.resume(talk)
        except errors.HithertoError:
            client.set_system_prompt(system)
            raise
        if talk.model and talk.provider == client.provider:
            client.config = replace(client.config, model=talk.model)
        self.title = ""

    # -- one question, or many

    def once(self, asked: Question) -> int:
        """One question, and its answer."""
        self.say_resumed()
        say_left(self.resumed)
        before = self._at()
        try:
            self._answer(asked)
        except KeyboardInterrupt:
            self._say_interrupted(before)
            return INTERRUPTED
        except errors.HithertoError as error:
            error.hint = advice(error, prompting=False, kept=self._at() != before)
            raise
        finally:
            self.flush()
        return 0

    def _say_interrupted(self, before: str | None) -> None:
        at = self._at()
        if self.store is None:
            say("stopped")
        else:
            kept = f"hitherto chat -c {at} shows what is kept"
            say(f"stopped; {'the question was not kept' if at == before else kept}")

    def converse(self, files: "Sequence[str | Block]" = (), names: Sequence[str] = ()) -> int:
        """Question after question, until somebody leaves."""
        self._files = files
        self.say_resumed()
        asker = asking(tuple(COMMANDS), self._asked_before())
        try:
            offer(self, asker)
            self._greet(names)
            while True:
                self.turn(asker.read())
        except EOFError:
            say("")
            code = 0
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            self.flush()
        with suppress(errors.NotFound):  # it was purged meanwhile
            self._say_kept()
        return code

    def _greet(self, names: Sequence[str]) -> None:
        kept = "" if self.store is not None else "; nothing is kept"
        say(f"/help shows the commands, Ctrl+D leaves{kept}")
        if names:
            say(f"with your first question: {', '.join(names)}")

    def _say_kept(self) -> None:
        """How to come back to where we stand."""
        talk = self.talk()
        if talk is None:
            return
        talk.refresh()
        name = talk.id[:8] if talk.at in (None, talk.head) else talk.at
        end = " goes on with it" if talk.at is None and talk.head is not None else " goes on from here"
        say(f"kept: hitherto chat -c {name}{end}")

    def _asked_before(self) -> list[str]:
        """What the arrow keys bring back: the questions of this thread, or of the last conversation in this folder."""
        messages: Sequence[Message] = self.messages
        project = here()
        if not messages and self.store is not None and project is not None:
            last = self.store.latest(project=project)
            messages = [] if last is None else last.thread(attachments="lazy")
        texts = [message.text for message in messages if message.role == "user"]
        return [text for text in texts[-_REMEMBERED:] if text.strip()]

    def turn(self, text: str) -> None:
        """What was typed, done. What goes wrong is said, and the prompt comes back."""
        command = SLASH.fullmatch(text.rstrip())
        before = None
        try:
            before = self._at()
            if command is not None:
                act(self, command[1], command[2] or "")
            elif text.strip():
                self._ask(text)
        except KeyboardInterrupt:
            say_stopped(self, before, asking=command is None)
        except errors.HithertoError as error:
            complain(str(error), advice(error, prompting=True, kept=True))

    def _at(self) -> str | None:
        """The message that we stand at."""
        talk = self.talk()
        return None if talk is None else talk.at

    # -- answers

    def _ask(self, text: str) -> None:
        """A question that was typed, with the files that go before the first one."""
        files, self._files = self._files, ()
        before = self._at(), len(self.messages)
        try:
            self._answer(question(text, text, files))
        except BaseException:
            if (self._at(), len(self.messages)) == before:  # it could not be said
                self._files = files
            raise

    def _answer(self, asked: Question) -> None:
        if self.store is not None:
            self._find_place(self.store, line(asked.words, TITLE))
        self._show(lambda: self.client.stream(asked.content))

    def _find_place(self, store: "Store", title: str) -> None:
        """Where the next question goes: into a conversation that begins with it, or below where we stand."""
        from ..recorder import record  # noqa: PLC0415  # help needs none

        talk = self.talk()
        if talk is None:
            record(self.client, store, title=self.title or title, project=here())
            return
        talk.refresh()
        if self.undone and talk.title == self.undone:
            talk.rename(title)
        self.undone = ""
        if talk.head != self._head:
            say("this conversation went on elsewhere meanwhile: what you say here is a branch of its own")

    def retry(self) -> None:
        """Ask again what stands there. What had come of the answer before is gone when there is another."""
        client = self.own()
        if not unanswered(client.messages):
            say("there is nothing to ask again: the last question was answered. /undo takes it back, and the Up key "
                "brings it to the prompt again")  # fmt: skip
            return
        talk = self.talk()
        before = partials(talk)
        self._show(client.stream_retry)
        for partial in before:
            if talk is not None:
                talk.discard(partial)

    def _show(self, begin: Callable[[], Iterator[str]]) -> None:
        """An answer, as it comes."""
        with Stoppable() as stoppable:
            pieces = begin()
            try:
                with closing(pieces):  # type: ignore[type-var]  # a generator
                    for piece in pieces:
                        self._output.write(piece)
                        stoppable.check()
            finally:
                with suppress(errors.HithertoError):  # it was purged, say: what ended the answer is what counts
                    talk = self.talk()
                    self._head = None if talk is None else talk.head
                with suppress(BrokenPipeError):  # if that is what ended it, it is known
                    self._output.finish()
        self._say_cut()

    def _say_cut(self) -> None:
        """An answer that has come to a limit ends in the middle of a sentence."""
        last = next(iter(self.messages[-1:]), None)
        extra = {} if last is None else last.extra or {}
        if _CUT & {str(extra.get(name)) for name in ("finish_reason", "stop_reason", "finishReason")}:
            count = 0 if last is None or last.usage is None else last.usage.output_tokens
            say(f"the answer was cut off at {count or 'its limit of'} tokens")

    def flush(self) -> None:
        """What could not be written so far is tried once more; the error, if it still cannot be."""
        found = self._recording
        if found is not None and found._listener is not None and self.messages:
            found._listener.catch_up(self.messages, self.own().setup)
        if found is not None and found.pending:
            found.flush()

    def say_resumed(self) -> None:
        """What had to be done to go on with a conversation."""
        resumed = self.resumed
        if resumed is None:
            return
        for repair in resumed.repairs:
            say(f"mended: {repair}")
        for loss in resumed.losses:
            say(f"lost in conversion: {loss}")
        if resumed.missing_handlers:
            say(f"tools that nobody can run here: {', '.join(resumed.missing_handlers)}")


def say_warnings() -> None:
    """What the library warns of is said as everything else is."""
    import logging  # noqa: PLC0415  # help needs none

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(f"warning: {record.getMessage()}")

    log = logging.getLogger("hitherto")
    log.addHandler(Said(logging.WARNING))
    log.propagate = False
