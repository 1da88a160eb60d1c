"""The chat clients, blocking and awaited.

Both execute the steps of a turn (see `_turn`): keep, call, run. All other code is shared.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Protocol, TypeVar, overload, runtime_checkable

from .._system.interrupts import uninterruptible
from .._system.task_threads import shared_threads
from ..dialects import Answer, Assembly, Dialect, dialect
from ..dialects._json import Pieces, as_object, decode_object
from ..dialects._lossless import answer_as_it_is, keepable_answer
from ..dialects._repair import repair
from ..errors import ChatError, Closed, Hint, InvalidArgument, InvalidMessage, ProviderError
from ..events import warn
from ..model import Message, Usage
from ..snapshots import Snapshot
from . import _handlers
from ._claude_local import ClaudeLocal
from ._config import Config, Tool
from ._schemas import Schema, read, schema_of
from ._turn import Arriving, Call, Keep, Listener, Prompt, Restored, Run, Turn, Turns
from ._wires import Wire, mask_key, wire

T = TypeVar("T")
SUMMARY_PROMPT = (
    "Sum up this conversation so that it can be continued from your summary alone: what was asked, what was found and "
    "decided, what is still open, with the names, numbers and quotations that matter. Answer with the summary only."
)


@runtime_checkable
class ChatClient(Protocol):
    """A client that can chat."""

    def chat(self, prompt: Prompt) -> str: ...
    def stream(self, prompt: Prompt) -> Iterator[str]: ...
    def ask(self, prompt: Prompt, schema: Mapping[str, object]) -> object: ...
    def add(self, message: Prompt) -> None: ...
    def set_tools(self, tools: Iterable[Tool]) -> None: ...


@runtime_checkable
class PersistentChatClient(ChatClient, Protocol):
    """A client whose conversation can be saved, and restored later."""

    def save(self, *, metadata: Mapping[str, str] | None = None) -> Snapshot: ...
    def restore(self, snapshot: Snapshot) -> Restored: ...


class _Plain:
    """An answer that arrives and is not recorded."""

    def __init__(self, assembly: Assembly) -> None:
        self.feed = assembly.feed
        self.answer = assembly.answer

    def close(self, *, keep: bool = False) -> None:
        """Do nothing."""


class _Wired(Turns):
    """The part that both clients share: the wire, and the conversion of requests and answers."""

    def __init__(self, config: Config) -> None:
        api = {"claude": "anthropic", "gemini": "gemini"}.get(config.provider, f"openai-{config.api}")
        super().__init__(config, dialect(api))
        self._wire: Wire = wire(config)

    @property
    def model(self) -> str:
        return self.config.model or ("local" if self.config.provider == "local" else "")

    def check_ready(self) -> None:
        """Raise an error now if every request would fail, mostly because there is no key."""
        self._wire.check_ready()

    def _arriving(self) -> Arriving:
        assembly = self.dialect.assembly()
        return _Plain(assembly) if self._hearing is None else self._hearing.arriving(assembly)

    def _read(self, data: bytes) -> Answer:
        try:
            body = decode_object(data)
            self._check_success(body)
            return keepable_answer(self.dialect.answer(body))
        except ValueError as error:  # InvalidMessage is one
            answer = answer_as_it_is(data, str(error))
            if answer is None:
                raise self._nonsense(error) from error
            return answer

    def _fed(self, arriving: Arriving, event: Mapping[str, object]) -> str:
        try:
            self._check_success(as_object(event, "an event"))
            return arriving.feed(event)
        except InvalidMessage as error:
            raise self._nonsense(error) from error

    def _check_success(self, body: Mapping[str, object]) -> None:
        """Raise `ProviderError` for an error in the body of a response whose status is a success."""
        response = body.get("response")
        told = (response if isinstance(response, dict) else body).get("error")
        error = body if told is None and body.get("type") == "error" else told
        if isinstance(error, dict) and error:
            said = mask_key(str(error.get("message") or "it does not say why"), self.config.api_key)
            hint = Hint("provider-failed", "nothing is lost: client.retry() asks again")
            raise ProviderError(f"{self.provider} failed: {said[:300]}", provider=self.provider, hint=hint)

    def _nonsense(self, error: ValueError) -> ProviderError:
        return ProviderError(f"the answer of {self.provider} makes no sense: {error}", provider=self.provider)

    def _streaming_request(self, step: Call) -> dict[str, object]:
        """Return the request for a streamed answer with its usage at the end."""
        if self.dialect.name == "openai-chat":
            return {"stream_options": {"include_usage": True}, **step.request}
        return step.request

    def _whole(self, arriving: Arriving) -> Answer:
        answer = arriving.answer()
        if not answer.complete:
            arriving.close(keep=True)
            text = "what came is kept, if the chat is recorded; client.retry() asks again"
            hint = Hint("answer-cut-off", text)
            raise ProviderError("the answer was cut off", provider=self.provider, status=None, hint=hint)
        arriving.close()
        return keepable_answer(answer)

    def _keep_now(self, step: Keep) -> None:
        if self._hearing is None:
            return
        try:
            self._hearing.keep(self.messages, self.setup, answered=step.answered)
        except Closed:
            if self._hearing is self.listener:
                raise
            self._hearing = None  # the recording has ended: the turn goes on without it
            warn("the rest of a turn is not kept: its recording was closed, and then its store")

    def _running_notice(self, step: Run) -> Callable[[], None]:
        return (lambda: None) if self._hearing is None else self._hearing.running(step.call)

    def _asked_aside(self) -> Call:
        """Return the request for a summary. It does not become part of the history."""
        aside = [*repair(self.messages, self.dialect).messages, *self._written(Message.user(SUMMARY_PROMPT))]
        return Call(self.dialect.request(self.dialect.history(aside), self.setup, self._options()))

    def _summary(self, answer: Answer) -> str:
        self._check_understood(answer)
        self._usage += sum((m.usage for m in answer.messages if m.usage is not None), Usage())
        text = "".join(message.text for message in answer.messages)
        if not text.strip():
            hint = "give a summary, or a function that makes one"
            raise ProviderError("the model gave no summary", provider=self.provider, hint=hint)
        return text

    def _summed_up(self, summary: Message) -> None:
        messages = self._written(summary)
        with self._alone():
            if self._hearing is not None:
                messages = [self._hearing.keep_summary(messages[0], self.setup), *messages[1:]]
            self.replace_history(messages)


class Client(_Wired):
    """A chat with one provider. Get one with `new_client`."""

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The history stays, and can be saved."""
        self._closed = True
        self._wire.close()

    def chat(self, prompt: Prompt) -> str:
        """Send a prompt and return the answer's text. Tools are run on the way."""
        return self._chat(self.turn(self._prompt_messages(prompt)))

    def retry(self) -> str:
        """Ask again for an answer to the history as it is: after an error, or in an interrupted conversation."""
        return self._chat(self.turn([]))

    def stream(self, prompt: Prompt) -> Generator[str, None, None]:
        """Send a prompt and yield the answer's text in pieces. Closing the generator stops the answer."""
        return self._do(self.turn(self._prompt_messages(prompt)), streaming=True)

    def stream_retry(self) -> Generator[str, None, None]:
        """Do the same as `retry`, and yield the text in pieces."""
        return self._do(self.turn([]), streaming=True)

    @overload
    def ask(self, prompt: Prompt, schema: type[T]) -> T: ...
    @overload
    def ask(self, prompt: Prompt, schema: Mapping[str, object]) -> object: ...
    def ask(self, prompt: Prompt, schema: Schema) -> object:
        """Send a prompt and return an answer that fits a JSON schema, or a type that has one."""
        options = self.dialect.schema_options(schema_of(schema))
        return read(self._chat(self.turn(self._prompt_messages(prompt), options)), schema)

    def compact(self, summary: "str | Message | Callable[[list[Message]], str | Message] | None" = None) -> str:
        """Replace the history by a summary: a given one, one that a function makes of the messages, or one that the
        model writes. In a recorded conversation the old messages stay, on the branch before."""
        if not self.messages:
            raise ChatError("there is nothing to sum up yet")
        if summary is None:
            found: str | Message = self._summary(self._call(self._asked_aside()))
        else:
            found = summary(self.messages) if callable(summary) else summary
        message = Message.user(found, label="compaction") if isinstance(found, str) else found
        self._summed_up(message)
        return message.text

    def _chat(self, turn: Turn) -> str:
        for _ in self._do(turn, streaming=False):
            pass
        return self.answer_text

    def _do(self, turn: Turn, *, streaming: bool) -> Generator[str, None, None]:
        try:
            step = self._advance(turn, None)
            while step is not None:
                if isinstance(step, Run):
                    done = self._running_notice(step)
                    try:
                        result = _handlers.run(step.tool, step.call, self.config.tool_timeout_seconds)
                    finally:
                        done()
                    step = self._advance(turn, result)
                elif streaming:
                    step = yield from self._pieces(turn, step)
                else:
                    step = self._advance(turn, self._call(step))
        finally:
            turn.close()

    def _advance(self, turn: Turn, reply: Answer | Message | None) -> Call | Run | None:
        """Take the turn to its next step that waits for the model or a tool; None at its end. The history and the store
        grow together, so Ctrl+C does not come between them."""
        with uninterruptible():
            try:
                while isinstance(step := turn.send(reply), Keep):
                    reply = None
                    self._keep_now(step)
            except StopIteration:
                return None
            return step

    def _call(self, step: Call) -> Answer:
        return self._read(self._wire.send(step.request))

    def _pieces(self, turn: Turn, step: Call) -> Generator[str, None, Call | Run | None]:
        """Ask the model, yield the pieces of its answer, and take the turn to its next step."""
        arriving, pieces = self._arriving(), Pieces()
        try:
            for event in self._wire.stream(self._streaming_request(step)):
                piece = pieces.feed(self._fed(arriving, event))
                if piece:
                    yield piece
            if rest := pieces.rest():
                yield rest
            with uninterruptible():  # a complete answer is kept first
                return self._advance(turn, self._whole(arriving))
        except BaseException:  # Ctrl+C, a broken connection, a closed generator: the part that arrived is kept
            arriving.close(keep=True)
            raise


class _Pieces(AsyncIterator[str]):
    """An awaited stream. Dropping it ends the turn at once: the event loop closes an abandoned generator only later,
    and until then no other turn could begin."""

    def __init__(self, pieces: AsyncGenerator[str, None], turn: Turn) -> None:
        self._pieces = pieces
        self._turn = turn

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        await self._pieces.aclose()

    def __del__(self) -> None:
        self._turn.close()


class AsyncClient(_Wired):
    """A chat with one provider, awaited. Get one with `new_async_client`."""

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        await self._wire.close_async()

    async def chat(self, prompt: Prompt) -> str:
        return await self._chat(self.turn(self._prompt_messages(prompt)))

    async def retry(self) -> str:
        return await self._chat(self.turn([]))

    def stream(self, prompt: Prompt) -> AsyncIterator[str]:
        return self._stream(self.turn(self._prompt_messages(prompt)))

    def stream_retry(self) -> AsyncIterator[str]:
        return self._stream(self.turn([]))

    def _stream(self, turn: Turn) -> AsyncIterator[str]:
        return _Pieces(self._do(turn, streaming=True), turn)

    @overload
    async def ask(self, prompt: Prompt, schema: type[T]) -> T: ...
    @overload
    async def ask(self, prompt: Prompt, schema: Mapping[str, object]) -> object: ...
    async def ask(self, prompt: Prompt, schema: Schema) -> object:
        options = self.dialect.schema_options(schema_of(schema))
        return read(await self._chat(self.turn(self._prompt_messages(prompt), options)), schema)

    async def compact(self, summary: "str | Message | Callable[[list[Message]], str | Message] | None" = None) -> str:
        if not self.messages:
            raise ChatError("there is nothing to sum up yet")
        if summary is None:
            found: str | Message = self._summary(await self._call(self._asked_aside()))
        else:
            found = summary(self.messages) if callable(summary) else summary
        message = Message.user(found, label="compaction") if isinstance(found, str) else found
        await shared_threads().run(self._summed_up, message)
        return message.text

    async def _chat(self, turn: Turn) -> str:
        async for _ in self._do(turn, streaming=False):
            pass
        return self.answer_text

    async def _do(self, turn: Turn, *, streaming: bool) -> AsyncGenerator[str, None]:
        reply: Answer | Message | None = None
        try:
            while True:
                try:
                    step = turn.send(reply)
                except StopIteration:
                    return
                reply = None
                if isinstance(step, Keep):
                    await shared_threads().run(self._keep_now, step)
                elif isinstance(step, Run):
                    done = self._running_notice(step)
                    try:
                        reply = await _handlers.run_async(step.tool, step.call, self.config.tool_timeout_seconds)
                    finally:
                        done()
                elif streaming:
                    arriving, pieces = self._arriving(), Pieces()
                    try:
                        async with aclosing(self._wire.stream_async(self._streaming_request(step))) as events:
                            async for event in events:
                                piece = pieces.feed(self._fed(arriving, event))
                                if piece:
                                    yield piece
                        if rest := pieces.rest():
                            yield rest
                    except BaseException:  # as in `Client`
                        await shared_threads().run(partial(arriving.close, keep=True))
                        raise
                    reply = self._whole(arriving)
                else:
                    reply = await self._call(step)
        finally:
            turn.close()

    async def _call(self, step: Call) -> Answer:
        return self._read(await self._wire.send_async(step.request))


class AsyncClaudeLocal:
    """`ClaudeLocal`, awaited: a thread waits for the program."""

    def __init__(self, config: Config) -> None:
        self._client = ClaudeLocal(config)
        self.add = self._client.add
        self.set_tools = self._client.set_tools
        self.listen = self._client.listen

    @property
    def listener(self) -> Listener | None:
        return self._client.listener

    @property
    def dialect(self) -> Dialect:
        return self._client.dialect

    @property
    def provider(self) -> str:
        return self._client.provider

    @property
    def model(self) -> str:
        return self._client.model

    async def __aenter__(self) -> "AsyncClaudeLocal":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await shared_threads().run(self._client.close)

    async def chat(self, prompt: Prompt) -> str:
        return await shared_threads().run(self._client.chat, prompt)

    async def stream(self, prompt: Prompt) -> AsyncIterator[str]:
        pieces = self._client.stream(prompt)
        try:
            while (piece := await shared_threads().run(next, pieces, None)) is not None:
                yield piece
        finally:
            await shared_threads().run(_close_pieces, pieces)

    async def ask(self, prompt: Prompt, schema: Schema) -> object:
        return await shared_threads().run(self._client.ask, prompt, schema)


def _close_pieces(pieces: Iterator[str]) -> None:
    if isinstance(pieces, Generator):
        pieces.close()


def new_client(config: Config) -> Client | ClaudeLocal:
    """Return a client for the provider in the configuration."""
    _check_config(config)
    return ClaudeLocal(config) if config.provider == "claude-local" else Client(config)


def new_async_client(config: Config) -> AsyncClient | AsyncClaudeLocal:
    """Return an awaited client for the provider in the configuration."""
    _check_config(config)
    return AsyncClaudeLocal(config) if config.provider == "claude-local" else AsyncClient(config)


def _check_config(config: object) -> None:
    if not isinstance(config, Config):
        raise InvalidArgument(f"a {type(config).__name__} where a Config is wanted", hint="Config(provider=…, model=…)")
