"""Runs a tool: from the model's call to a result that the model can read.

The model always gets a result: the handler's return value, or an error in words, so that the model can try another way.
Only exceptions for the whole program (Ctrl+C, exit) pass through. A handler that exceeds its timeout is abandoned, not
stopped: Python cannot stop a thread.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context

import msgspec

from ..dialects._json import decode
from ..errors import InvalidMessage
from ..model import Block, Message, check
from ._config import Tool


def run(tool: Tool | None, call: Block, timeout_seconds: float | None) -> Message:
    """Run a call and return its result as a message."""

    def work(handler: Callable[..., object], arguments: dict[str, object]) -> object:
        if timeout_seconds is None:
            return handler(**arguments)
        return _within(timeout_seconds, handler, arguments)

    try:
        handler, arguments = _check_call(tool, call)
        returned = work(handler, arguments)
        if inspect.isawaitable(returned):
            _close(returned)
            return _failure(call, "its handler is async, and this client is not")
        return _result(call, returned)
    except Exception as error:  # noqa: BLE001  # whatever a handler raises, the model is told
        return _error_result(call, error, timeout_seconds)


async def run_async(tool: Tool | None, call: Block, timeout_seconds: float | None) -> Message:
    """Run a call and return its result, awaited. A handler that is not a coroutine function runs in a thread."""

    async def work(handler: Callable[..., object], arguments: dict[str, object]) -> object:
        if inspect.iscoroutinefunction(handler):
            return await handler(**arguments)
        returned = await _aside(handler, arguments)
        return await returned if inspect.isawaitable(returned) else returned

    limit = asyncio.timeout(timeout_seconds)
    try:
        handler, arguments = _check_call(tool, call)
        async with limit:
            returned = await work(handler, arguments)
        return _result(call, returned)
    except Exception as error:  # noqa: BLE001  # whatever a handler raises, the model is told
        return _error_result(call, _TooLong() if limit.expired() else error, timeout_seconds)


class _CannotRun(Exception):
    """The call cannot be run. The message is for the model."""


class _TooLong(Exception):
    """The handler exceeded its timeout. A `TimeoutError` that a handler raises itself is a different error."""


def _check_call(tool: Tool | None, call: Block) -> tuple[Callable[..., object], dict[str, object]]:
    if tool is None:
        raise _CannotRun("there is no such tool")
    if tool.handler is None:
        raise _CannotRun("this tool is not available now")
    given = call.arguments
    if isinstance(given, str):
        try:
            given = decode(given or "{}")
        except ValueError:
            raise _CannotRun("the arguments are not valid JSON") from None
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise _CannotRun("the arguments are not a JSON object")
    return tool.handler, given


def _within(seconds: float, handler: Callable[..., object], arguments: dict[str, object]) -> object:
    """Run the handler in a thread, and return or raise its outcome. Raises `_TooLong` after `seconds`."""
    outcome, thread = _start_thread(handler, arguments, lambda: None)
    thread.join(seconds)
    if not outcome:
        raise _TooLong
    return _unwrap(outcome[0])


async def _aside(handler: Callable[..., object], arguments: dict[str, object]) -> object:
    """Run the handler in a thread, and await its outcome. The loop's own executor is not used: the loop waits for its
    threads when it ends, and a handler may hang."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed: the result is not awaited any more
            loop.call_soon_threadsafe(done.set)

    outcome, _ = _start_thread(handler, arguments, tell)
    await done.wait()
    return _unwrap(outcome[0])


_Outcome = tuple[object, BaseException | None]


def _start_thread(
    handler: Callable[..., object], arguments: dict[str, object], tell: Callable[[], None]
) -> tuple[list[_Outcome], threading.Thread]:
    """Start the handler in a daemon thread. Returns the list that will hold its outcome, and the thread."""
    outcome: list[_Outcome] = []
    context = copy_context()

    def work() -> None:
        try:
            outcome.append((context.run(handler, **arguments), None))
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            outcome.append((None, error))
        tell()

    thread = threading.Thread(target=work, name="hitherto-tool", daemon=True)
    thread.start()
    return outcome, thread


def _unwrap(outcome: _Outcome) -> object:
    returned, error = outcome
    if isinstance(error, StopIteration):  # no coroutine may raise it
        raise RuntimeError("StopIteration") from error
    if error is not None:
        raise error
    return returned


def _result(call: Block, returned: object) -> Message:
    content = _content(returned)
    if content is None:
        return _failure(call, f"its handler returned a {type(returned).__name__}, which is neither text nor JSON")
    message = _make_result(call, content)
    try:
        check(message)
        msgspec.msgpack.encode([block.content for block in message.blocks if isinstance(block.content, str)])
    except (InvalidMessage, ValueError) as error:
        return _failure(call, f"its handler returned something that cannot be kept: {error}")
    return message


def _content(returned: object) -> "str | list[Block] | None":
    """Return a handler's return value as text or blocks, or None if it is neither, nor JSON."""
    if returned is None:
        return "done"
    if isinstance(returned, str):
        return returned
    if isinstance(returned, Block):
        return [returned]
    if isinstance(returned, (list, tuple)) and returned and all(isinstance(item, Block) for item in returned):
        return list(returned)
    if isinstance(returned, (bytes, bytearray, memoryview)):
        return None  # as JSON it would be base64, which is never intended
    try:
        return msgspec.json.encode(returned).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None


def _error_result(call: Block, error: Exception, timeout_seconds: float | None) -> Message:
    if isinstance(error, _CannotRun):
        return _failure(call, str(error))
    if isinstance(error, _TooLong):
        return _failure(call, f"it did not finish within {timeout_seconds:g} seconds")
    said = _words(error)
    return _failure(call, f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _words(error: Exception) -> str:
    try:
        return str(error).encode("utf-8", "replace").decode()[:2000]
    except Exception:  # noqa: BLE001  # an error of the error's own
        return ""


def _failure(call: Block, why: str) -> Message:
    return _make_result(call, f"The tool call failed: {why}", error=True)


def _make_result(call: Block, content: "str | list[Block]", *, error: bool = False) -> Message:
    """Build a result with the name of its tool, which some providers want in the next request."""
    message = Message.tool_result(call.id or "", content, error=error)
    name = call.tool_name or ""
    blocks = tuple(msgspec.structs.replace(b, extra={**(b.extra or {}), "name": name}) for b in message.blocks)
    return msgspec.structs.replace(message, blocks=blocks)


def _close(awaitable: object) -> None:
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
