"""One run of `hitherto chat`: a client, the conversation it goes on with, and what can be done about it meanwhile.

Where we stand is a message. It is the conversation's head after each answer; `/undo` and `/fork` stand elsewhere, and
what is said there begins a branch. Nothing is ever deleted here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import errors
from ._advice import advice
from ._asking import Asking, asking, choice
from ._files import Question, question
from ._naming import here
from ._painting import answers
from ._screen import complain, line, moment, say, width
from ._slash import COMMANDS, SLASH, TITLE, act
from ._stopping import Stoppable

if TYPE_CHECKING:
    from .._recovery import Partial
    from ..chat import ClaudeLocal, Client
    from ..conversation import Conversation
    from ..model import Block, Message
    from ..recorder import Resumed
    from ..store import Store

INTERRUPTED = 130  # the exit code
_REMEMBERED = 200  # questions that the arrow keys bring back


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
        self.recorded = False
        self.title = ""  # of the conversation that the next question begins
        self.nameless = False  # the question that gave the conversation its title was taken back
        self.stand: Conversation | None = None  # where we stand, if that is not simply the head
        self._files: Sequence[str | Block] = ()  # that go before the next question
        self._asking: Asking | None = None
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

    def resume(self, talk: "Conversation") -> None:
        from ..recorder import resume  # noqa: PLC0415  # help needs none

        client, convert = self.own(), self.terms.convert
        try:
            if self.store is None:
                client.resume(talk.thread(), talk.setup, convert=convert)
            else:
                resume(client, self.store, talk, convert=convert)
                self.recorded, self.stand = True, talk
        except errors.ProviderMismatch as error:
            found = talk.provider or error.found
            hint = f"--provider {found} goes on as it is; --convert tells {client.provider} what it can be told; "
            hint += "-n begins a new conversation"
            what = "conversation"
            raise errors.ProviderMismatch(expected=client.provider, found=found, what=what, hint=hint) from None

    @property
    def _resumed(self) -> "Resumed | None":
        from ..recorder import recording  # noqa: PLC0415  # help needs none

        found = recording(self.client)
        return None if found is None else found.resumed

    def talk(self) -> "Conversation | None":
        """The conversation where it stands now."""
        from ..recorder import recording  # noqa: PLC0415  # help needs none

        if self.stand is not None:
            return self.stand
        found = recording(self.client)
        return None if found is None else found.conversation

    # -- one question, or many

    def once(self, asked: Question) -> int:
        """One question, and its answer."""
        self.say_resumed()
        self._say_interrupted()
        try:
            self._answer(asked)
        except KeyboardInterrupt:
            say("stopped; hitherto chat, without a prompt, shows what is kept" if self.recorded else "stopped")
            return INTERRUPTED
        except errors.HithertoError as error:
            error.hint = advice(error, prompting=False, kept=self.recorded)
            raise
        finally:
            self.flush()
        return 0

    def converse(self, files: "Sequence[str | Block]" = ()) -> int:
        """Question after question, until somebody leaves."""
        self._files = files
        self.say_resumed()
        self._asking = asking(tuple(COMMANDS), self._asked_before())
        try:
            self._offer()
            while True:
                self._turn(self._asking.read())
        except EOFError:
            say("")
        finally:
            self.flush()
        talk = self.talk()
        if talk is not None:
            say(f"kept: hitherto chat -c {talk.id[:8]} goes on from here")
        return 0

    def _asked_before(self) -> list[str]:
        """What the arrow keys bring back: the questions of this thread, or of the last conversation in this folder."""
        from ..chat import Client  # noqa: PLC0415  # help needs none

        messages: Sequence[Message] = self.client.messages if isinstance(self.client, Client) else ()
        project = here()
        if not messages and self.store is not None and project is not None:
            last = self.store.latest(project=project)
            messages = [] if last is None else last.thread(attachments="lazy")
        texts = [message.text for message in messages if message.role == "user"]
        return [text for text in texts[-_REMEMBERED:] if text.strip()]

    def _turn(self, text: str) -> None:
        """What was typed, done. What goes wrong is said, and the prompt comes back."""
        command = SLASH.fullmatch(text.rstrip())
        try:
            if command is not None:
                act(self, command[1], command[2] or "")
            elif text.strip():
                self._ask(text)
        except KeyboardInterrupt:
            self._say_stopped()
        except errors.HithertoError as error:
            complain(str(error), advice(error, prompting=True, kept=self.recorded))

    # -- answers

    def _ask(self, text: str) -> None:
        """A question that was typed, with the files that go before the first one."""
        files, self._files, before = self._files, (), self._length()
        try:
            self._answer(question(text, files))
        except errors.HithertoError:
            if self._length() == before:  # it could not be said
                self._files = files
            raise

    def _answer(self, asked: Question) -> None:
        if self.store is not None and not self.recorded:
            from ..recorder import record  # noqa: PLC0415  # help needs none

            record(self.client, self.store, title=self.title or line(asked.words, TITLE), project=here())
            self.recorded = True
        elif self.nameless and self.stand is not None:
            self.stand.rename(line(asked.words, TITLE))
            self.nameless = False
        self._show(lambda: self.client.stream(asked.content))

    def retry(self) -> None:
        """Ask again what stands there. What had come of the answer before is gone when there is another."""
        client = self.own()
        if not client.messages or client.messages[-1].role not in ("user", "tool_result"):
            say("there is nothing to ask again: the last question was answered")
            return
        talk = self.talk()
        before = [] if talk is None else talk.partials()
        at = None if talk is None else talk.at
        self._show(client.stream_retry)
        for partial in before:
            if talk is not None and partial.parent == at:
                talk.discard(partial)

    def _show(self, begin: Callable[[], Iterator[str]]) -> None:
        """An answer, as it comes."""
        before = self._length()
        with Stoppable() as stoppable:
            pieces = begin()
            try:
                with closing(pieces):  # type: ignore[type-var]  # a generator
                    for piece in pieces:
                        self._output.write(piece)
                        stoppable.check()
            finally:
                if self._length() != before:
                    self.stand = None  # what was said, or answered, is the head now
                with suppress(BrokenPipeError):  # if that is what ended it, it is known
                    self._output.finish()

    def _length(self) -> int:
        return len(getattr(self.client, "messages", ()))

    def flush(self) -> None:
        """What could not be written so far is tried once more; the error, if it still cannot be."""
        from ..recorder import recording  # noqa: PLC0415  # help needs none

        found = recording(self.client)
        if found is not None and found.pending:
            found.flush()

    # -- what was left of an interruption

    def say_resumed(self) -> None:
        resumed = self._resumed
        if resumed is None:
            return
        for repair in resumed.repairs:
            say(f"mended: {repair}")
        for loss in resumed.losses:
            say(f"lost in conversion: {loss}")
        if resumed.missing_handlers:
            say(f"tools that nobody can run here: {', '.join(resumed.missing_handlers)}")

    def _say_interrupted(self) -> None:
        """In a pipe nobody can be asked: what was recovered is said, and stays."""
        resumed = self._resumed
        if resumed is None or resumed.interrupted is None:
            return
        words = "the last question was not answered"
        for partial in resumed.partials[:1]:
            at = "" if partial.at is None else f" at {moment(partial.at)}"
            words += f"; {len(partial.text)} characters of an answer had come{at}, and were recovered"
        say(f"{words}: hitherto chat, without a prompt, offers to ask it again")

    def _say_stopped(self) -> None:
        if not self.recorded:
            say("stopped; /retry asks again")
        elif self._partials():
            say("stopped. The question and what came of the answer are kept: /accept takes it for the answer, "
                "/retry asks again, /discard lets go of it")  # fmt: skip
        else:
            say("stopped. The question is kept: /retry asks again")

    def _partials(self) -> "list[Partial]":
        talk = self.talk()
        return [] if talk is None else [partial for partial in talk.partials() if partial.parent == talk.at]

    def _offer(self) -> None:
        """Show what was interrupted, and ask what is to become of it."""
        resumed = self._resumed
        if resumed is None or resumed.interrupted is None or self._asking is None:
            return
        say(f"not answered: {line(resumed.interrupted.text, max(20, width() - 14))}")
        readable = [partial for partial in resumed.partials if partial.problem is None]
        if not readable:
            if choice(self._asking, "ask again? [y]es, [n]o: ", "yn") == "y":
                self._turn("/retry")
            return
        say(f"of the answer this had come:\n{readable[0].text}")
        chosen = choice(self._asking, "[a]ccept it as the answer, [r]etry, [d]iscard it, [l]eave it: ", "ardl")
        if chosen != "l":
            self._turn({"a": "/accept", "r": "/retry", "d": "/discard"}[chosen])

    def settle(self, *, accept: bool) -> None:
        """Take what came of an answer for the answer, or let go of it."""
        talk = self.talk()
        partials = self._partials()
        if talk is None or not partials:
            say("there is no interrupted answer")
            return
        if accept:
            talk.accept(partials[0])
        for partial in partials[1:] if accept else partials:
            talk.discard(partial)
        self.resume(talk)
        say("accepted" if accept else "discarded")


def say_warnings() -> None:
    """What the library warns of is said as everything else is."""
    import logging  # noqa: PLC0415  # help needs none

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(f"warning: {record.getMessage()}")

    log = logging.getLogger("hitherto")
    log.addHandler(Said(logging.WARNING))
    log.propagate = False
