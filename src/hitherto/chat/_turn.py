"""A turn, from a prompt to its answer, independent of blocking or awaiting.

A turn is a generator. It yields the next step (`Keep` the history, `Call` the model, `Run` a tool) and receives the
step's result. `Client` executes the steps by blocking, `AsyncClient` by awaiting; all decisions are made here, once.

The history is a list of messages that only grows, or is replaced as a whole. A message in it is never changed, so that
other threads may read it while a turn runs.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..dialects import Answer, Assembly, Dialect, Raw, calls
from ..dialects._json import copy_entry, merge
from ..dialects._missing_attachments import tell_holes
from ..dialects._repair import count_settled, is_silent, repair
from ..dialects._types import with_names
from ..errors import ChatError, Hint, InvalidArgument, InvalidMessage, ProviderError, ProviderMismatch, ToolLoopLimit
from ..model import Block, Message, Setup, Usage, as_list, check, encodable
from ..reports import Repair
from ..snapshots import Snapshot
from ..snapshots._thread import lift_prompt
from ._config import Config, Tool

Prompt = str | Block | Sequence[str | Block] | Message
_NEEDED = {"anthropic": "content", "gemini": "parts"}  # the field that every entry of a history has
_FAMILIES = ({"openai", "openai-compatible", "local"},)  # providers that take each other's histories


class Keep(Struct, frozen=True):
    """The history has grown: the listener stores it now, before the next step."""

    answered: bool = False  # by an answer, which was paid for


class Call(Struct, frozen=True):
    """Ask the model. The turn receives the `Answer`."""

    request: dict[str, object]


class Run(Struct, frozen=True):
    """Run a tool. The turn receives its result, a message."""

    tool: Tool | None
    call: Block


Step = Keep | Call | Run
Turn = Generator[Step, Answer | Message | None, None]


class Arriving(Protocol):
    """An answer that is recorded while it arrives."""

    def feed(self, event: Mapping[str, object]) -> str: ...
    def answer(self) -> Answer: ...
    def close(self, *, keep: bool = False) -> None: ...


class Listener(Protocol):
    """Records a client's conversation. Its methods may block."""

    def keep(self, history: Sequence[Message], setup: Setup, *, answered: bool) -> None:
        """Store the history as it is now. If this raises, the turn ends, and the model is not asked. The new messages
        are an answer, or messages that must be stored before there can be one."""

    def arriving(self, assembly: Assembly) -> Arriving: ...

    def keep_summary(self, summary: Message, setup: Setup) -> Message:
        """Store a summary that replaces the history. Returns the message as it was stored."""

    def check_leaving(self) -> None:
        """Raise if the history must not leave its store as a snapshot."""

    def running(self, call: Block) -> "Callable[[], None]":
        """Note that a tool starts to run. Returns a function to call when it is done."""


class Restored(Struct, frozen=True):
    """The result of loading a snapshot or a conversation into a client."""

    missing_handlers: tuple[str, ...] = ()  # tools in the history for which there is no handler
    repairs: tuple[Repair, ...] = ()  # repairs that the provider requires
    losses: tuple[str, ...] = ()  # content of another provider's messages that this one cannot express


class Turns:
    """The state of a chat with one provider, and all logic that does not block."""

    def __init__(self, config: Config, dialect: Dialect) -> None:
        self.config = config
        self.dialect = dialect
        self.system_prompt = config.system_prompt
        self._system_raw: object = None
        self._tools: dict[str, Tool] = {}
        self._history: list[Message] = []
        self._settled = 0  # how many messages at its beginning need no repair, for any continuation
        self._lock = threading.Lock()  # of the history
        self._turn_lock = threading.Lock()  # one turn at a time
        self.listener: Listener | None = None
        self._hearing: Listener | None = None  # the listener of the current turn
        self._answer: list[Message] = []
        self._usage = Usage()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.provider} {self.model!r}, {len(self._history)} messages>"

    @property
    def provider(self) -> str:
        return self.config.provider

    @property
    def model(self) -> str:
        return self.config.model

    @property
    def usage(self) -> Usage:
        """The tokens of all turns of this client so far."""
        return self._usage

    @property
    def tools(self) -> list[Tool]:
        return list(self._tools.values())

    @property
    def missing_handlers(self) -> tuple[str, ...]:
        """Tools without a handler that the model may call: such a call gets an error result."""
        return tuple(tool.name for tool in self._tools.values() if tool.handler is None)

    @property
    def messages(self) -> list[Message]:
        """The history that the model sees, as messages."""
        with self._lock:
            return list(self._history)

    def export_history(self) -> list[Raw]:
        """Return the history that the model sees in the provider's own JSON: a deep copy, without the system prompt."""
        return self.dialect.history(self.messages)

    @property
    def setup(self) -> Setup:
        """The provider, the model, the system prompt and the tools."""
        tools = tuple(tool.definition() for tool in self._tools.values())
        raw = None if self._system_raw is None else self._system_raw
        return Setup(self.provider, self.model, self.system_prompt, tools, raw)

    def set_system_prompt(self, text: str) -> None:
        """Replace the system prompt from the next turn on. An empty text removes it."""
        if not isinstance(text, str):
            raise InvalidArgument(f"the system prompt is text, not a {type(text).__name__}")
        if not encodable(text):
            raise InvalidArgument("the system prompt holds half a character, which cannot be sent")
        self.system_prompt, self._system_raw = text, None

    def set_tools(self, tools: Iterable[Tool]) -> None:
        """Set the tools that the model may call from the next turn on."""
        given = as_list(tools, "tools")
        found: dict[str, Tool] = {}
        for tool in given:
            if not isinstance(tool, Tool):
                raise InvalidArgument(f"a {type(tool).__name__} where a Tool is wanted")
            if tool.name in found:
                raise InvalidArgument(f"two tools are called {tool.name!r:.40}")
            found[tool.name] = tool
        self._tools = found

    def add(self, message: Prompt) -> None:
        """Add a message to the history without asking the model."""
        said = self._prompt_messages(message)
        with self._alone():
            self._extend(said)

    def undo(self) -> list[Message]:
        """Remove the last message of the user and all messages after it, and return them. In a recorded conversation
        they stay, on a branch of their own."""
        with self._alone():
            at = next((i for i in reversed(range(len(self._history))) if self._history[i].role == "user"), None)
            if at is None:
                raise InvalidArgument("there is no turn to undo here")
            gone = self._history[at:]
            self.replace_history(self._history[:at])
            return gone

    # -- a turn

    def turn(self, said: Sequence[Message], options: Mapping[str, object] | None = None) -> Turn:
        """Yield the steps to an answer to `said`. If that is empty, the answer is to the history as it is."""
        with self._alone():
            before, begun = self._history, False
            try:
                self._answer = []
                self._mend()
                asked = self._with(said)
                self.replace_history(asked, unchanged=len(asked) - len(said))
                if not self._history:
                    raise InvalidArgument("there is nothing to answer yet", hint="say something first")
                yield Keep()
                begun = True
                yield from self._rounds(options or {})
            finally:
                if not begun:  # the prompt could not be stored, so it is removed: the caller may send it again
                    self.replace_history(before)

    def _with(self, said: Sequence[Message]) -> list[Message]:
        """Return the history with `said` at its end. If the history ends with `said` already, that was not answered: it
        is not added again, so that it is sent once. A response to it that could not be parsed stays below it."""
        history, asked = list(self._history), [(message.role, message.blocks) for message in said]
        spoken = (message for message in reversed(history) if not is_silent(message, self.dialect))
        heard = list(islice(spoken, len(said)))[::-1]
        if said and history[-1:] != heard[-1:] and _ends_with(heard, asked):
            return history
        while said and _ends_with(history, asked):
            del history[-len(said) :]
        return [*history, *said]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the turn: no other call changes the history meanwhile. Raises `ChatError` if a turn is
        running."""
        if self._closed:
            raise ChatError("the client is closed", hint="make another one, and restore or resume into it")
        if not self._turn_lock.acquire(blocking=False):
            raise ChatError(
                "a turn is running in this client", hint="wait for it, or give the other one its own client"
            )
        self._hearing = self.listener
        try:
            yield
        finally:
            self._hearing = None
            self._turn_lock.release()

    def _rounds(self, options: Mapping[str, object]) -> Turn:
        for done in range(self.config.max_tool_rounds + 1):
            answer = yield Call(self._request(options))
            assert isinstance(answer, Answer)  # what a driver tells back to a Call
            self._take_answer(answer)
            yield Keep(answered=bool(answer.messages))
            self._check_said(answer)
            todo = [block for message in answer.messages for block in calls(message)]
            if not todo:
                return
            if done == self.config.max_tool_rounds:
                raise ToolLoopLimit(self.config.max_tool_rounds)
            for index, call in enumerate(todo):
                result = yield Run(self._tools.get(call.tool_name or ""), call)
                assert isinstance(result, Message)  # what a driver tells back to a Run
                self._extend(self._result_messages(result, joined=index > 0))
                yield Keep()

    def _request(self, options: Mapping[str, object]) -> dict[str, object]:
        return self.dialect.request(self.export_history(), self.setup, merge(self._options(), options))

    def _options(self) -> dict[str, object]:
        options = dict(self.config.options)
        if self.config.max_tokens is None:
            return options
        return merge(options, _max_tokens(self.dialect.name, self.provider, self.config.max_tokens))

    def _take_answer(self, answer: Answer) -> None:
        if not answer.messages and self._history[-1].role != "tool_result":
            raise ProviderError(
                "the model gave no answer: the question may have been refused", provider=self.provider, status=None
            )
        self._extend([self._tag(message) for message in answer.messages])
        self._answer = answer.messages
        self._usage += sum((m.usage for m in answer.messages if m.usage is not None), Usage())

    def _check_said(self, answer: Answer) -> None:
        """Raise `ProviderError` for an answer that is empty or could not be parsed. It was paid for and is stored, but
        it cannot be sent again."""
        self._check_understood(answer)
        asked = self._history[: len(self._history) - len(answer.messages)]
        if answer.messages and asked[-1].role != "tool_result" and not self.dialect.history(answer.messages):
            hint = Hint("answer-empty", "allow more tokens, then client.retry()")
            raise ProviderError(
                "the model gave no answer: it ended without a word", provider=self.provider, status=None, hint=hint
            )

    def _check_understood(self, answer: Answer) -> None:
        if answer.problem is not None:
            what = f"the answer of {self.provider} makes no sense: {answer.problem}"
            text = "it is kept as it came, if the chat is recorded; client.retry() asks again"
            hint = Hint("answer-unreadable", text)
            raise ProviderError(what, provider=self.provider, hint=hint)

    @property
    def answer_text(self) -> str:
        """The text of the last answer."""
        return "".join(message.text for message in self._answer)

    # -- the history

    def _extend(self, messages: Iterable[Message]) -> None:
        with self._lock:
            self._history.extend(messages)

    def replace_history(self, messages: Iterable[Message], *, unchanged: int = 0) -> None:
        """Replace the history. The first `unchanged` messages are the same as before."""
        with self._lock:
            self._history = list(messages)
            self._settled = min(self._settled, unchanged)

    def _mend(self) -> tuple[Repair, ...]:
        """Repair the history: calls without a result, left by an interrupted turn, get one that says so. Messages up to
        an answer without calls were checked before, and later messages cannot change that: see `count_settled`."""
        history, done = self._history, self._settled
        mended = repair(history[done:], self.dialect)
        if mended.notes and done:  # for example a late result, whose call stands further up
            mended = repair(history, self.dialect)
        if mended.notes:
            self.replace_history(mended.messages)
        else:
            self._settled = done + count_settled(history[done:], self.dialect)
        return tuple(mended.notes)

    def _prompt_messages(self, prompt: Prompt) -> list[Message]:
        """Return a prompt as messages with a raw in the provider's own form."""
        if isinstance(prompt, Message):
            message = prompt
        elif isinstance(prompt, (str, Block)):
            message = Message.user(prompt)
        elif isinstance(prompt, Sequence):
            message = Message.user([Block.text(part) if isinstance(part, str) else part for part in prompt])
        else:
            raise InvalidArgument(f"a prompt is text, blocks or a Message, not a {type(prompt).__name__}")
        check(message)
        if message.role in ("system", "developer"):
            raise InvalidArgument("the system prompt is no message", hint="client.set_system_prompt(…), or Config")
        if not all(encodable(block.content) for block in message.blocks if isinstance(block.content, str)):
            raise InvalidMessage("the text of this message holds half a character, which cannot be sent")
        blank = all(isinstance(block.content, str) and not block.content.strip() for block in message.blocks)
        written = [] if blank and message.raw is None else self._written(message)
        if not written:
            raise InvalidArgument("there is nothing in this message")
        return written

    def _written(self, message: Message, *, joined: bool = False) -> list[Message]:
        """Return a message with its raw. If the dialect writes it as several entries, it becomes several messages."""
        if message.raw is not None and (message.extra or {}).get("dialect") == self.dialect.name:
            return [message]
        built = self.dialect.build(message)
        if built.losses:
            raise InvalidMessage(f"{self.provider} cannot be told this: {'; '.join(built.losses)}")
        extra = dict(message.extra or {}) | ({"joined": True} if joined and self.dialect.joins else {})
        if len(built.raws) == 1:
            return [self._tag(replace(message, raw=built.raws[0], extra=extra))]
        if message.role == "tool_result" and self.dialect.joins:
            return [self._tag(replace(message, raw=None, extra=extra))]  # its other entries go after all results
        return [self._tag(self.dialect.parse(raw)) for raw in built.raws]

    def _result_messages(self, result: Message, *, joined: bool) -> list[Message]:
        """Return the result of a tool in the provider's form. A note replaces content that the provider cannot be sent:
        the tool has done its work, and the model has to go on."""
        lost = [block for block in result.blocks if self.dialect.build(replace(result, blocks=(block,))).losses]
        if not lost:
            return self._written(result, joined=joined)
        losses = "; ".join(self.dialect.build(result).losses)
        note = replace(Block.text(f"(Not shown to you: {losses}.)"), id=lost[0].id, extra=lost[0].extra)
        told = replace(result, blocks=(*(block for block in result.blocks if block not in lost), note))
        return [replace(message, blocks=(*result.blocks, note)) for message in self._written(told, joined=joined)]

    def _tag(self, message: Message) -> Message:
        return replace(message, extra={**(message.extra or {}), "dialect": self.dialect.name})

    def parse_history(self, history: object, *, mend: bool = False) -> list[Message]:
        """Parse a history in the provider's own JSON. Raises `InvalidMessage` for a system prompt, and for a call or a
        result without the other, unless `mend` repairs it."""
        messages = [self._tag(self._entry(raw)) for raw in as_list(history, "messages")]
        mended = repair(messages, self.dialect)
        if mended.notes and not mend:
            said = "; ".join(str(note) for note in mended.notes[:3])
            raise InvalidMessage(f"the history cannot be continued: {said}", hint="complete it, or let it be mended")
        return mended.messages

    def _entry(self, raw: object) -> Message:
        if not isinstance(raw, dict):
            raise InvalidMessage(f"a message of a history is a dict, not a {type(raw).__name__}")
        if raw.get("role") in ("system", "developer"):
            hint = "give it as Config(system_prompt=…), or client.set_system_prompt(…): it is sent with every request"
            raise InvalidMessage("the system prompt is no part of a history", hint=hint)
        message, needed = self.dialect.parse(copy_entry(raw)), _NEEDED.get(self.dialect.name)
        if message.role not in ("user", "assistant", "tool_result", "event") or (needed and needed not in raw):
            hint = "give what export_history() of the same provider gave"
            raise InvalidMessage(f"this is no message in the words of {self.provider}", hint=hint)
        return message

    # -- saving and restoring

    def save(self, *, metadata: Mapping[str, str] | None = None) -> Snapshot:
        """Return the chat as a snapshot: the history in the provider's own JSON, the system prompt, the tools without
        their handlers, and never an API key. Each snapshot has an id of its own. Raises `NotExportable` if the chat is
        recorded into a conversation that must not leave its store.

        `metadata` becomes a part of the snapshot's, beside `dialect`, which says in whose JSON the history is:
        `InvalidArgument` if another one is given.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidArgument(f"metadata is a mapping of texts, not a {type(metadata).__name__}")
        if metadata is not None and metadata.get("dialect", self.dialect.name) != self.dialect.name:
            hint = "leave it out: it says in whose JSON the history is"
            raise InvalidArgument(f"the dialect of this snapshot is {self.dialect.name}", hint=hint)
        if self.listener is not None:
            self.listener.check_leaving()
        tools = [tool.definition() for tool in self._tools.values()]
        described = {**(metadata or {}), "dialect": self.dialect.name}
        return Snapshot.new(
            self.provider, self.model, self.system_prompt, self.export_history(), tools, metadata=described
        )

    def restore(self, snapshot: Snapshot) -> Restored:
        """Continue from a snapshot: its history and its system prompt replace the client's own; the model stays."""
        if not isinstance(snapshot, Snapshot):
            raise InvalidArgument(f"a {type(snapshot).__name__} where a Snapshot is wanted")
        self._check_provider(snapshot)
        system_prompt, entries = lift_prompt(snapshot, self.dialect)
        history = [self._tag(self._entry(raw)) for raw in entries]
        with self._alone():
            self.set_system_prompt(system_prompt)
            self.replace_history(history)
            return Restored(self._declare(snapshot.tools or ()), self._mend())

    def _check_provider(self, snapshot: Snapshot) -> None:
        same = snapshot.provider == self.provider or any({snapshot.provider, self.provider} <= f for f in _FAMILIES)
        written = (snapshot.metadata or {}).get("dialect", self.dialect.name)
        if not same:
            raise ProviderMismatch(expected=self.provider, found=snapshot.provider)
        if written != self.dialect.name:
            raise ProviderMismatch(expected=self.dialect.name, found=str(written))

    def _declare(self, tools: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
        """Add the tools of a history to our own. Returns the names of tools without a handler."""
        found = dict(self._tools)
        for tool in tools:
            name, described, parameters = tool.get("name"), tool.get("description"), tool.get("parameters")
            if isinstance(name, str) and name and name not in found:
                schema = parameters if isinstance(parameters, Mapping) else {"type": "object", "properties": {}}
                found[name] = Tool(name, described if isinstance(described, str) else "", schema)
        self._tools = found
        return self.missing_handlers

    def resume(self, messages: Sequence[Message], setup: Setup, *, convert: bool) -> Restored:
        """Continue from stored messages, which a recorder returns. With `convert`, messages in another dialect are
        converted as far as possible."""
        foreign = [m for m in messages if self._is_foreign(m)]
        if foreign and not convert:
            raise ProviderMismatch(
                expected=self.dialect.name,
                found=str((foreign[0].extra or {})["dialect"]),
                what="conversation",
                hint="resume(…, convert=True) tells it what it can be told, and reports what is lost",
            )
        losses = tuple(
            f"message {getattr(m, 'id', '')}: {loss}"
            for m, names in with_names(messages)
            if self._is_foreign(m)
            for loss in self.dialect.build(tell_holes(m), names).losses
        )
        if setup.provider or setup.system_prompt or setup.tools:
            self.set_system_prompt(setup.system_prompt)
            self._system_raw = None if foreign else setup.raw
        self.replace_history(messages)
        return Restored(self._declare(setup.tools), self._mend(), losses)

    def _is_foreign(self, message: Message) -> bool:
        return (message.extra or {}).get("dialect", self.dialect.name) != self.dialect.name

    def listen(self, listener: Listener | None) -> None:
        """Set the listener; there is one at a time. A running turn keeps the listener that it began with."""
        self.listener = listener


def _ends_with(history: Sequence[Message], asked: Sequence[tuple[str, Sequence[Block]]]) -> bool:
    return [(message.role, message.blocks) for message in history[-len(asked) :]] == asked


Api = Literal["chat", "responses"]


def _max_tokens(dialect: str, provider: str, count: int) -> dict[str, object]:
    if dialect == "gemini":
        return {"generationConfig": {"maxOutputTokens": count}}
    if dialect == "openai-responses":
        return {"max_output_tokens": count}
    return {"max_completion_tokens" if provider == "openai" else "max_tokens": count}  # reasoning counts there, too
