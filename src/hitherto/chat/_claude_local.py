"""A chat through the `claude` program that is installed on this machine.

The program has its own login, and runs the conversation itself: it is started with the first prompt, in print mode with
JSON in and out, and kept running, so that it remembers what was said for as long as it lives. It gets no tools of its
own, no settings, no project files, and an empty folder to run in. Our tools are offered to it over HTTP on the loopback
address (see `_toolserver`); their handlers run here, in the thread that waits for the answer.

**Nothing can be saved or restored.** The program keeps the conversation to itself: it shows its answers, not its
requests, and there is no way to give it another history. So this client has no `save` and no `restore`, and
`isinstance(client, PersistentChatClient)` is False. For the same reason the client cannot be used any more once the
program has ended: a new program would not know the conversation.

`claude-agent-sdk` speaks the same protocol, and is not used. It starts the program in the terminal's process group, so
Ctrl+C would reach the program as well, which then ends, and its conversation with it. It only awaits: tools would run
in a thread with an event loop, not in the one that called `chat`. Output of the program outside its protocol
is skipped there, and an error here. And it brings a whole copy of the program, and a web server.

Our errors do not repeat the program's own error texts: they may hold a part of the conversation, or of a key.
"""

import base64
import contextlib
import json
import logging
import os
import queue
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar, overload
from urllib.parse import urlsplit

from ..dialects import dialect
from ..errors import (
    ChatError,
    Hint,
    InvalidAnswer,
    InvalidArgument,
    InvalidMessage,
    ProviderError,
    ToolLoopLimit,
    Unsupported,
)
from ..model import Block, Message, Setup, as_list, check, check_strings, encodable
from . import _handlers
from ._config import Config, Tool
from ._program import Ended, Program
from ._schemas import Schema, read, schema_of
from ._toolserver import LARGEST_RESULT, ToolCall, ToolServer
from ._turn import Listener, Prompt
from ._urls import validate_base_url

T = TypeVar("T")
_log = logging.getLogger("hitherto")

_ARGUMENTS = (
    *("--print", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"),
    *("--include-partial-messages", "--no-session-persistence", "--disable-slash-commands"),
    *("--tools", "", "--setting-sources", "", "--strict-mcp-config", "--permission-mode", "dontAsk"),
)
# Only the provider is contacted, and our own timeout for tools applies: the program's is one minute.
_DEFAULTS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "MCP_TOOL_TIMEOUT": "86400000",
}
_FORCED = {
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1"
}  # else it reads every file that a prompt names as @path, and sends it
_ADDRESSES = ("ANTHROPIC_BASE_URL", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL")
_STOP_SECONDS = 10.0  # timeout for the program to stop an interrupted answer
_INSTALL = Hint(
    "no-claude-program",
    "npm install -g @anthropic-ai/claude-code, then run claude once to log in; or give Config(command=…)",
)
_LOOK = "run claude -p hello in a terminal to see what it says"


class ClaudeLocal:
    """A chat with the `claude` program. It has no `save` and no `restore`: the program keeps its own state, and there
    is no way to put one back.

    Of the configuration it takes `model`, `system_prompt`, `command`, `env` (added to the environment), `base_url`,
    `api_key`, `max_tokens`, `max_retries` and the limits. `timeout_seconds` is how long the program may be silent.
    """

    provider = "claude-local"

    def __init__(self, config: Config) -> None:
        if config.options:
            raise Unsupported("claude-local takes no options for its requests", hint="the program decides on them")
        self.config = config
        self._env = _environment(config)
        self._tools: dict[str, Tool] = {}
        self._served: list[dict[str, object]] = []  # the tools that the running program knows
        self._added: list[object] = []  # content that was added and not sent yet
        self._program: Program | None = None
        self._over: str | None = None  # why no more turns are possible
        self._turn_lock = threading.Lock()
        self.dialect = dialect("anthropic")
        self.listener: Listener | None = None
        self._hearing: Listener | None = None  # the listener of the current turn, or of the last one
        self._told: list[Message] = []  # the messages that it was given
        self._end: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        return f"<ClaudeLocal {self.config.model!r}>"

    def __enter__(self) -> "ClaudeLocal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def model(self) -> str:
        return self.config.model

    def chat(self, prompt: Prompt) -> str:
        """Send a prompt and return the answer's text. Tools are run on the way."""
        return _last(self._turn(_prompt_content(prompt)))

    def stream(self, prompt: Prompt) -> Generator[str, None, str]:
        """Send a prompt and yield the answer's text in pieces. Closing the generator stops the answer."""
        return self._turn(_prompt_content(prompt))

    @overload
    def ask(self, prompt: Prompt, schema: type[T]) -> T: ...
    @overload
    def ask(self, prompt: Prompt, schema: Mapping[str, object]) -> object: ...
    def ask(self, prompt: Prompt, schema: Schema) -> object:
        """Send a prompt and return an answer that fits a JSON schema, or a type that has one.

        The program can enforce a schema only from its start on, for every answer. So the schema is part of the prompt,
        and the program is asked once more if its answer does not fit.
        """
        wanted = json.dumps(schema_of(schema))
        words = f"Answer with nothing but JSON that fits this JSON schema, without a code fence:\n{wanted}"
        text = _last(self._turn([*_prompt_content(prompt), {"type": "text", "text": words}]))
        try:
            return read(text, schema)
        except InvalidAnswer:
            again = "That is not JSON that fits the schema. Answer again with nothing but JSON that does."
            return read(self.chat(again), schema)

    def add(self, message: Prompt) -> None:
        """Add a message that is sent with the next prompt."""
        self._added.extend(_prompt_content(message))

    def set_tools(self, tools: Iterable[Tool]) -> None:
        """Set the tools that the model may call. The program gets them when it starts; afterwards only their handlers
        can be changed."""
        found = _by_name(tools)
        if self._program and [tool.definition() for tool in found.values()] != self._served:
            hint = "set the tools before the first prompt, or make a new client"
            raise Unsupported("the claude program cannot be told of other tools while it runs", hint=hint)
        self._tools.clear()
        self._tools.update(found)

    def close(self) -> None:
        """End the program, and with it the conversation. May be called again."""
        self._over = self._over or "this client was closed"
        self._end()

    # -- a turn

    def _turn(self, said: list[object]) -> Generator[str, None, str]:
        """Run one turn: yield the pieces of the answer's text, and return the whole."""
        if not self._turn_lock.acquire(blocking=False):
            hint = "wait for it, or give the other one its own client"
            raise ChatError("a turn is running in this client", hint=hint)
        try:
            if self._hearing is not self.listener:
                self._hearing, self._told = self.listener, []
            content = [*self._added, *said]
            self._tell(self.dialect.parse({"role": "user", "content": content}))
            program, self._added = self._ensure_program(), []
            result: Mapping[str, object] | None = None
            try:  # begins before the prompt is sent: after an interrupt at any later point an answer may still come
                program.write({"type": "user", "message": {"role": "user", "content": content}})
                result = yield from self._read_turn(program)
            finally:
                if result is None and not self._over:
                    self._stop(program)
            return _answer(result)
        finally:
            self._turn_lock.release()

    def _read_turn(self, program: Program) -> Generator[str, None, Mapping[str, object]]:
        """Read the program's events until the turn is over: yield pieces of text, and return the final event. Runs the
        tools that the program calls."""
        rounds = _Rounds(self.config.max_tool_rounds)
        in_pieces = False
        while (event := self._next(program, rounds, self.config.timeout_seconds)).get("type") != "result":
            if event.get("parent_tool_use_id") is not None:
                continue
            if piece := _piece(event):
                in_pieces = True
                yield piece
            elif event.get("type") == "assistant":
                rounds.see(event)
                self._tell(*self._spoken(event), answered=True)
                if not in_pieces and (text := _text(event)):
                    yield text
                in_pieces = False
        return event

    def _next(self, program: Program, rounds: "_Rounds | None", patience: float | None) -> dict[str, object]:
        """Return the next event of the program, and run the tools that it calls meanwhile."""
        while True:
            try:
                found = program.inbox.get(timeout=patience)
            except queue.Empty:
                raise self._lost(f"the claude program said nothing for {patience:g} seconds") from None
            if isinstance(found, ToolCall):
                self._run(found, rounds)
            elif isinstance(found, Ended):
                raise self._lost(_ending(program.status()), hint=_LOOK)
            elif isinstance(found, bytes) and found.strip():
                event = _event(found)
                if event is None:
                    raise self._lost("the claude program printed something that is not its protocol", hint=_LOOK)
                return event

    def _run(self, call: ToolCall, rounds: "_Rounds | None") -> None:
        """Run a tool and set the result of the call. Without `rounds`, the answer was stopped, and the call gets an
        error."""
        why = "The tool call failed: the answer was stopped"
        try:
            if rounds is None:
                return
            if rounds.beyond(call):
                why = "The tool call failed: there were too many"
                raise ToolLoopLimit(rounds.most)
            block = Block.tool_call(call.id, call.name, call.arguments)
            result = _handlers.run(self._tools.get(call.name), block, self.config.tool_timeout_seconds)
            self._tell(result)
            content = _as_content(result)
            if _size(content) <= LARGEST_RESULT:
                call.answer(content, error=result.tool_result_error)
            why = f"The tool call failed: its result has more than {LARGEST_RESULT:,} characters"
        finally:
            call.answer([{"type": "text", "text": why}], error=True)

    def _stop(self, program: Program) -> None:
        """Make the program stop its answer, and read its events to the end of the turn. The program keeps the part that
        it has sent."""
        self._over = "its last answer was stopped, and the stopping too"
        program.write({"type": "control_request", "request_id": "stop", "request": {"subtype": "interrupt"}})
        with contextlib.suppress(ProviderError):
            while self._next(program, None, _STOP_SECONDS).get("type") != "result":
                pass
            self._over = None

    def _lost(self, what: str, *, hint: str | None = None) -> ProviderError:
        """End the program, and return the error to raise."""
        self._over = what
        self._end()
        return ProviderError(what, provider=self.provider, hint=hint)

    # -- being recorded

    def listen(self, listener: Listener | None) -> None:
        """Pass the messages to this listener from the next turn on. They can be stored, but not restored into the
        program."""
        self.listener = listener

    @property
    def setup(self) -> Setup:
        """The provider, the model, the system prompt and the tools."""
        tools = tuple(tool.definition() for tool in self._tools.values())
        return Setup(self.provider, self.model, self.config.system_prompt, tools)

    def _tell(self, *messages: Message, answered: bool = False) -> None:
        if self._hearing is not None and messages:
            self._told = [*self._told, *messages]
            self._hearing.keep(self._told, self.setup, answered=answered)

    def _spoken(self, event: Mapping[str, object]) -> list[Message]:
        """Return the model's answer as messages. Text that the program itself wrote, about an error, is left out."""
        message = event.get("message")
        if not isinstance(message, dict) or message.get("model") == "<synthetic>":
            return []
        return self.dialect.answer({**message, "content": _content_of(event)}).messages

    # -- the program

    def check_ready(self) -> None:
        """Raise `ProviderError` if the program is not installed, before a prompt is sent or stored."""
        name = _command(self.config)[0]
        if shutil.which(name, path=self._env.get("PATH")) is None:
            raise ProviderError(f"there is no program {name}", provider=self.provider, hint=_INSTALL)

    def _ensure_program(self) -> Program:
        if self._over:
            hint = Hint("claude-has-ended", "make a new client; what was said is not kept")
            raise ProviderError(f"the conversation has ended: {self._over}", provider=self.provider, hint=hint)
        if self._program is None:
            self._program = self._start()
        return self._program

    def _start(self) -> Program:
        inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        server = ToolServer(self._tools, inbox.put) if self._tools else None
        folder = Path(tempfile.mkdtemp(prefix="hitherto-"))
        try:
            command = [*_command(self.config), *self._arguments(folder, server)]
            program = Program(command, folder, self._env | {"XDG_CACHE_HOME": str(folder)}, inbox)
        except BaseException as error:
            _close(None, server, folder)
            if isinstance(error, OSError):
                what = f"the claude program cannot be started: {type(error).__name__}"
                raise ProviderError(what, provider=self.provider, hint=_INSTALL) from error
            if type(error) is ValueError or isinstance(error, UnicodeError):
                hint = "look for a zero character, or half a surrogate pair"
                raise InvalidArgument("the claude program cannot be given such a text", hint=hint) from None
            raise
        self._served = [tool.definition() for tool in self._tools.values()]
        self._end = weakref.finalize(self, _close, program, server, None, os.getpid())
        return program

    def _arguments(self, folder: Path, server: ToolServer | None) -> list[str]:
        """Return the arguments of the program. Long and secret values go into files in a private folder: other users
        can see a program's arguments."""
        prompt = folder / "system-prompt.txt"
        prompt.write_text(self.config.system_prompt, encoding="utf-8")
        found = [*_ARGUMENTS, "--system-prompt-file", str(prompt)]
        if self.config.model:
            found += ["--model", self.config.model]
        if server:
            servers = folder / "tools.json"
            servers.write_text(json.dumps({"mcpServers": {"hitherto": server.config}}), encoding="utf-8")
            found += ["--mcp-config", str(servers), "--allowedTools", "mcp__hitherto"]
        return found


def _close(program: Program | None, server: ToolServer | None, folder: Path | None, owner: int | None = None) -> None:
    """Close the program and the server, and remove the folder. Does nothing in a fork of the owner."""
    if owner not in (None, os.getpid()):
        return
    if program:
        program.close()
    if server:
        server.close()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


class _Rounds:
    """Counts the rounds of tool calls in a turn. Calls of one message are one round."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._seen = 0
        self._message: object = None
        self._round: dict[object, int] = {}  # of each call

    def see(self, event: Mapping[str, object]) -> None:
        message = event.get("message")
        calls = [block for block in _content_of(event) if block.get("type") == "tool_use"]
        if not isinstance(message, dict) or not calls:
            return
        if message.get("id") != self._message:
            self._message = message.get("id")
            self._seen += 1
        self._round |= {block.get("id"): self._seen for block in calls}

    def beyond(self, call: ToolCall) -> bool:
        """Return True if the call exceeds the limit. A call may arrive before its message: then it counts for the next
        round."""
        return self._round.get(call.id, self._seen + 1) > self.most


# -- what we say


def _prompt_content(prompt: Prompt) -> list[object]:
    """Encode a prompt as content in Anthropic's form, which the program takes."""
    if isinstance(prompt, str):
        prompt = Message.user(prompt)
    elif isinstance(prompt, Block):
        prompt = Message.user([prompt])
    elif not isinstance(prompt, Message):
        prompt = Message.user([Block.text(p) if isinstance(p, str) else p for p in as_list(prompt, "blocks")])  # type: ignore[misc]
    check(prompt)
    if prompt.role != "user":
        hint = "the claude program takes what the user says, and nothing else"
        raise Unsupported(f"claude-local cannot be told a message of the role {prompt.role!r:.40}", hint=hint)
    if not any(block.content for block in prompt.blocks):
        raise InvalidArgument("there is nothing in this message")
    if not all(encodable(block.content) for block in prompt.blocks if isinstance(block.content, str)):
        raise InvalidMessage("the prompt holds half a surrogate pair", hint="it stands for no character")
    built = dialect("anthropic").build(prompt)
    if built.losses:
        raise InvalidMessage(f"claude cannot be told this: {'; '.join(built.losses)}")
    content = [raw.get("content") for raw in built.raws]
    parts = [part for found in content for part in (found if isinstance(found, list) else [_as_text(found)])]
    return [_as_text(_no_command(str(part["text"]))) if part.get("type") == "text" else part for part in parts]


def _as_text(content: object) -> dict[str, object]:
    return {"type": "text", "text": content}


def _no_command(text: str) -> str:
    """Put a space before a leading slash: the program would take the text for a command to itself, and not send it."""
    return " " + text if text.startswith("/") else text


def _by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in as_list(tools, "tools"):
        if not isinstance(tool, Tool):
            raise InvalidArgument(f"a {type(tool).__name__} where a Tool is wanted")
        if tool.name in found:
            raise InvalidArgument(f"two tools are called {tool.name!r:.40}")
        found[tool.name] = tool
    return found


def _as_content(result: Message) -> list[dict[str, object]]:
    """Encode a tool's result as the Model Context Protocol has it."""
    found: list[dict[str, object]] = []
    for block in result.blocks:
        if isinstance(block.content, str):
            found.append(_as_text(block.content))
        else:
            data = block.content if isinstance(block.content, bytes) else block.content.read()
            kind = str(block.modality) if block.modality in ("image", "audio") else None
            encoded = base64.b64encode(data).decode()
            said: dict[str, object] = {"type": kind, "data": encoded, "mimeType": block.mime_type}
            found.append(said if kind else _as_text(f"[{block.mime_type}, {len(data):,} bytes]"))
    return found


def _size(content: list[dict[str, object]]) -> int:
    """Return the size as the program counts it: without pictures, and with the escapes of JSON."""
    return len(json.dumps([part for part in content if part["type"] == "text"], ensure_ascii=False, indent=2))


# -- what the program says


def _event(line: bytes) -> dict[str, object] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("type"), str) else None


def _piece(event: Mapping[str, object]) -> str:
    """Return the text in a stream event, mostly a few characters."""
    inner = event.get("event")
    delta = inner.get("delta") if event.get("type") == "stream_event" and isinstance(inner, dict) else None
    text = delta.get("text") if isinstance(delta, dict) and delta.get("type") == "text_delta" else None
    return text if isinstance(text, str) else ""


def _content_of(event: Mapping[str, object]) -> list[dict[str, object]]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text(event: Mapping[str, object]) -> str:
    """Return the text of a whole message. A message that the program itself wrote, about an error, has none."""
    message = event.get("message")
    if isinstance(message, dict) and message.get("model") == "<synthetic>":
        return ""
    return "".join(str(block.get("text", "")) for block in _content_of(event) if block.get("type") == "text")


def _answer(result: Mapping[str, object]) -> str:
    """Return the answer in the final event of a turn. Raises `ProviderError` if the event reports an error."""
    text = result.get("result")
    if not result.get("is_error") and isinstance(text, str):
        return text
    status = result.get("api_error_status")
    code = status if type(status) is int else None
    what = "the claude program reports an error" + (f" of the provider, status {code}" if code else "")
    hint = "run claude once to log in, or set ANTHROPIC_API_KEY" if code in (401, 403) else _LOOK
    raise ProviderError(what, provider=ClaudeLocal.provider, status=code, hint=hint)


def _ending(status: int | None) -> str:
    if status is None:
        return "the claude program closed its output"
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"the claude program {how} in the middle of the conversation"


def _last(turn: Generator[str, None, str]) -> str:
    while True:
        try:
            next(turn)
        except StopIteration as stop:
            return str(stop.value)


# -- how it is started


def _command(config: Config) -> list[str]:
    found = [config.command] if isinstance(config.command, str) else list(config.command)
    if not found or not found[0] or not all(isinstance(part, str) for part in found):
        raise InvalidArgument("the command is the name of a program, or a list with its arguments")
    return found


def _environment(config: Config) -> dict[str, str]:
    """Return the program's environment. It decides the address that the program sends its key to, so the address is
    checked here."""
    own = {
        "ANTHROPIC_BASE_URL": config.base_url,
        "ANTHROPIC_API_KEY": config.api_key,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": config.max_tokens,
        "CLAUDE_CODE_MAX_RETRIES": config.max_retries,
    }
    found = _DEFAULTS | dict(os.environ) | {name: str(value) for name, value in own.items() if value is not None}
    found |= check_strings(config.env, "env") | _FORCED
    addresses = [found[name] for name in _ADDRESSES if found.get(name) or (config.base_url == "" and name in own)]
    for url in addresses:
        validate_base_url(url, config.allow_insecure_base_url)
    for name in ("NO_PROXY", "no_proxy"):  # the loopback address must not go through a proxy
        found[name] = ",".join(filter(None, [found.get(name, ""), "127.0.0.1"]))
    hosts = ", ".join(urlsplit(url).hostname or "" for url in addresses)
    _log.info("provider claude-local at %s", hosts or "the program's own address")
    return found
