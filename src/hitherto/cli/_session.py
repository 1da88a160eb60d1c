"""A chat session: a client, the store it records into, and the conversation that it continues.

The session's position is a message. After each answer it is the conversation's head, unless another process appends to
the conversation at the same time. `/undo` and `/fork` move the position; the next question then begins a branch.
Nothing is ever deleted here. The dialogue with the user is in `_dialogue`.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import errors
from ._ctrl_c import Stoppable
from ._ids import here
from ._markdown import answer_output
from ._providers import ADDRESS
from ._question import Question
from ._terminal import line, say, typing_unseen

if TYPE_CHECKING:
    from ..chat import ClaudeLocal, Client
    from ..conversation import Conversation
    from ..model import Message
    from ..recorder import Recording, Resumed
    from ..reports import Partial
    from ..store import Store

TITLE_LENGTH = 60  # characters of a title that is made from a question
_CUT_OFF = {"length", "max_tokens", "MAX_TOKENS"}  # the providers' reasons for an answer that reached its limit
_SPEAKERS = {"anthropic": "claude", "gemini": "gemini", "openai-chat": "openai"}  # dialect: provider that speaks it


@dataclass(frozen=True)
class Terms:
    """The settings of a session: whether to convert another provider's conversation, the system prompt to set now, and
    the system prompt of new conversations, and the address that a new conversation remembers."""

    convert: bool = False
    system: str | None = None
    beginning: str = ""
    base_url: str | None = None


class Session:
    """Asks questions and shows answers. With a store, both are recorded."""

    def __init__(
        self, client: "Client | ClaudeLocal", store: "Store | None", talk: "Conversation | None", terms: Terms
    ) -> None:
        self.client = client
        self.store = store
        self.terms = terms
        self._output = answer_output()
        self.title = ""  # of the conversation that the next question begins
        self.undone = ""  # a title made from a question that was undone: the next question may replace it
        self._last_head: str | None = None  # the conversation's head, as this session read it last
        self._unrecorded: Resumed | None = None  # of a conversation that is only read
        if talk is not None:
            self.resume(talk)
            if terms.system is not None:
                self.own().set_system_prompt(terms.system)

    def own(self) -> "Client":
        """Return the client. Raise `Unsupported` for claude-local, whose history is in another program."""
        from ..chat import Client  # noqa: PLC0415  # help needs none

        if not isinstance(self.client, Client):
            hint = "leave -c out; hitherto chat -n begins another conversation"
            what = "claude-local cannot continue or change a conversation: the program keeps its own"
            raise errors.Unsupported(what, hint=hint)
        return self.client

    @property
    def messages(self) -> "list[Message]":
        """The messages that the model sees; empty if the client does not hold them."""
        return list(getattr(self.client, "messages", ()))

    @property
    def _recording(self) -> "Recording | None":
        from ..recorder import is_recorded, recording  # noqa: PLC0415  # help needs none

        return recording(self.client) if is_recorded(self.client) else None

    @property
    def resume_report(self) -> "Resumed | None":
        """The report on how the conversation was resumed: repairs, losses, missing tools."""
        found = self._recording
        return self._unrecorded if found is None else found.resumed

    def talk(self) -> "Conversation | None":
        """Return a handle at the session's position; None while nothing is recorded."""
        found = self._recording
        return None if found is None else found.position

    @property
    def at(self) -> str | None:
        """The id of the message at the session's position."""
        talk = self.talk()
        return None if talk is None else talk.at

    # -- resuming

    def resume(self, talk: "Conversation", *, same_system: bool = False) -> None:
        """Continue from the position of this handle.

        The system prompt becomes the one that was in force there. With `same_system` the present one stays."""
        client = self.own()
        self.flush()
        tools, system = client.tools, client.system_prompt
        client.set_tools(())  # the conversation brings its own
        try:
            self._resume(client, talk)
        except errors.HithertoError:
            client.set_tools(tools)
            raise
        if same_system and client.system_prompt != system:
            client.set_system_prompt(system)
        self.undone, self._last_head = "", talk.head

    def _resume(self, client: "Client", talk: "Conversation") -> None:
        try:
            self._load(client, talk, convert=self.terms.convert)
        except errors.ProviderMismatch as error:
            if any(message.role == "assistant" for message in talk.thread(attachments="lazy")):
                raise self._mismatch(talk, error.found) from None
            self._load(client, talk, convert=True)  # there is no answer yet, so any provider may give it

    def _load(self, client: "Client", talk: "Conversation", *, convert: bool) -> None:
        from ..recorder import Resumed, resume  # noqa: PLC0415  # help needs none

        if self.store is None:
            done = client.resume(talk.thread(), talk.setup, convert=convert)
            self._unrecorded = Resumed(talk.id, talk.at, done.missing_handlers, done.repairs, done.losses)
        else:
            resume(client, self.store, talk, convert=convert)

    def _mismatch(self, talk: "Conversation", dialect: str) -> errors.ProviderMismatch:
        """Return the error with a hint that names the command line's options."""
        provider, found = self.client.provider, talk.provider or dialect
        family = dialect == "openai-chat" and found in ("openai-compatible", "local")
        fitting = found if family else _SPEAKERS.get(dialect)
        hint = "" if fitting in (None, provider) else f"--provider {fitting} goes on as it is; "
        hint += f"--convert tells {provider} what it can be told; -n begins a new conversation"
        found = dialect if found == provider else found
        return errors.ProviderMismatch(expected=provider, found=found, what="conversation", hint=hint)

    def go_to(self, talk: "Conversation") -> None:
        """Continue another conversation, with its own model. Nothing of the present one is taken along."""
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

    # -- asking

    def ask(self, asked: Question) -> None:
        """Ask a question and show the answer while it arrives."""
        if self.store is not None:
            self._prepare_recording(self.store, line(asked.words, TITLE_LENGTH))
        self._show(lambda: self.client.stream(asked.content))

    def _prepare_recording(self, store: "Store", title: str) -> None:
        """Choose where the next question is recorded: in a new conversation, or at the session's position."""
        from ..recorder import record  # noqa: PLC0415  # help needs none

        talk = self.talk()
        if talk is None:
            remembered = None if self.terms.base_url is None else {ADDRESS: self.terms.base_url}
            record(self.client, store, title=self.title or title, project=here(), metadata=remembered)
            return
        talk.refresh()
        if self.undone and talk.title == self.undone:
            talk.rename(title)
        self.undone = ""
        if talk.head != self._last_head:
            say("this conversation went on elsewhere meanwhile: your question begins a branch of its own")

    def retry(self) -> None:
        """Ask the last question again. The new answer replaces the partial answers that were kept before."""
        client = self.own()
        if not find_unanswered(client.messages):
            say("there is nothing to ask again: the last question was answered. /undo takes it back, and the Up key "
                "brings it to the prompt again")  # fmt: skip
            return
        talk = self.talk()
        before = find_partials(talk)
        self._show(client.stream_retry)
        for partial in before:
            if talk is not None:
                talk.discard(partial)

    def _show(self, begin: Callable[[], Iterator[str]]) -> None:
        """Write an answer to standard output while it arrives."""
        with Stoppable(), typing_unseen():
            pieces = begin()
            try:
                with closing(pieces):  # type: ignore[type-var]  # a generator
                    for piece in pieces:
                        self._output.write(piece)
            finally:
                with suppress(errors.HithertoError):  # a purge, say: the error that ended the answer matters more
                    talk = self.talk()
                    self._last_head = None if talk is None else talk.head
                with suppress(BrokenPipeError):  # if it ended the answer, it is on its way up already
                    self._output.finish()
        self._warn_if_cut_off()

    def _warn_if_cut_off(self) -> None:
        """Say so if the answer reached the token limit: it ends in the middle of a sentence."""
        last = next(iter(self.messages[-1:]), None)
        extra = {} if last is None else last.extra or {}
        if _CUT_OFF & {str(extra.get(name)) for name in ("finish_reason", "stop_reason", "finishReason")}:
            count = 0 if last is None or last.usage is None else last.usage.output_tokens
            say(f"the answer was cut off at {count or 'its limit of'} tokens")

    def flush(self) -> None:
        """Write the messages that could not be written before. Raise the error if they still cannot be."""
        found = self._recording
        if found is None:
            return
        found.catch_up()
        if found.pending:
            found.flush()

    def report_resumed(self) -> None:
        """Print the repairs, the losses and the missing tools of a resumed conversation."""
        resumed = self.resume_report
        if resumed is None:
            return
        for repair in resumed.repairs:
            say(f"repaired: {repair}")
        for loss in resumed.losses:
            say(f"lost in conversion: {loss}")
        if resumed.missing_handlers:
            say(f"tools without a handler here: {', '.join(resumed.missing_handlers)}")


def find_unanswered(messages: "list[Message]") -> "Message | None":
    """Return the last message if it is a question without an answer. Events do not count."""
    last = next((message for message in reversed(messages) if message.role != "event"), None)
    return last if last is not None and last.role in ("user", "tool_result") else None


def find_partials(talk: "Conversation | None") -> "list[Partial]":
    """Return the partial answers to the last question."""
    if talk is None:
        return []
    asked = find_unanswered([*talk.thread(attachments="lazy")])
    places = {talk.at, getattr(asked, "id", talk.at)}
    return [partial for partial in talk.partials() if partial.parent in places]
