"""Recording what goes through the SDK of a provider: the same object, the same calls, now kept.

Nothing of the SDK is replaced. We listen to its HTTP client, know from the path in which dialect a request is written,
keep what is new in its history before it is sent, and the answer as it comes. Requests that are no chat (embeddings,
files, token counts) pass unheard.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import msgspec
from msgspec.structs import replace

from .._tap import Exchange, tap
from ..dialects import Answer, Dialect
from ..dialects._sse import Events
from ..errors import HithertoError, InvalidArgument, InvalidMessage, Unsupported
from ..events import warn
from ..model import Block, Message
from ._arriving import Arriving
from ._recorder import Place, Recorder

_PATHS = {
    "openai": (("/chat/completions", "openai-chat"), ("/responses", "openai-responses")),
    "claude": (("/v1/messages", "anthropic"),),
    "gemini": ((":generateContent", "gemini"), (":streamGenerateContent", "gemini")),
}
_REFUSED = ("Bedrock", "Vertex", "Foundry", "AWS")  # Anthropic's clients that speak another protocol

Make = Callable[[str, str], Recorder]  # by dialect and provider


def dialects_of(provider: str) -> list[str]:
    """The dialects that the SDK of a provider speaks."""
    return list(dict.fromkeys(name for _, name in _PATHS[provider]))


class Listening:
    """The recorders behind one SDK client: one for each dialect that it speaks."""

    def __init__(self, provider: str, make: Make) -> None:
        self.provider = provider
        self.make = make
        self._lock = threading.Lock()
        self._recorders: dict[str, Recorder] = {}
        self.latest: Recorder | None = None

    def recorder(self, name: str) -> Recorder:
        with self._lock:
            if name not in self._recorders:
                self._recorders[name] = self.make(name, self.provider)
            self.latest = self._recorders[name]
            return self.latest

    def recorders(self) -> list[Recorder]:
        with self._lock:
            return list(self._recorders.values())

    def hear(self, method: str, path: str, body: bytes) -> Exchange | None:
        """A request that is about to be sent. What it says is kept before it goes."""
        name = next((name for end, name in _PATHS[self.provider] if path.endswith(end)), None)
        if method != "POST" or name is None:
            return None
        recorder = self.recorder(name)
        heard = recorder.dialect.heard(_json_object(body))
        setup = heard.setup
        if name == "gemini":
            setup = replace(setup, model=path.rpartition("/")[2].rpartition(":")[0])
        return _Heard(recorder, recorder.ask(heard.messages, setup, after=heard.after, within=heard.within))


def _json_object(body: bytes) -> dict[str, object]:
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise InvalidMessage(f"the body of a request is no JSON object: {error}") from None


class _Heard:
    """One request that was sent, and its response."""

    def __init__(self, recorder: Recorder, place: Place) -> None:
        self._recorder = recorder
        self._place = place
        self._arriving: Arriving | None = None
        self._events = Events()
        self._body: list[bytes] = []
        self._lost = False

    def head(self, content_type: str) -> None:
        if content_type.startswith("text/event-stream"):
            self._arriving = self._recorder.arriving(self._place, self._recorder.dialect.assembly())

    def feed(self, data: bytes) -> None:
        if self._arriving is None:
            self._body.append(data)
            return
        try:
            for event in self._events.feed(data):
                self._arriving.feed(event)
        except HithertoError as error:  # whoever reads the answer does not suffer for it
            if not self._lost:
                warn(f"a stream could not be understood from here on: {error}")
            self._lost = True

    def end(self) -> None:
        """The response is there, or as much of it as will come. Nothing that goes wrong here disturbs the caller, who
        has paid for the answer: it is said, and what can be kept is."""
        try:
            if self._arriving is not None:
                self._end_stream(self._arriving)
            else:
                self._end_body(b"".join(self._body))
        except HithertoError as error:
            warn(f"an answer could not be understood: {error}")

    def _end_stream(self, arriving: Arriving) -> None:
        for event in self._events.finish():
            arriving.feed(event)
        answer = arriving.answer()
        complete = answer.complete and not self._lost
        arriving.close(keep=not complete)
        if complete:
            self._recorder.answer(self._place, answer)

    def _end_body(self, data: bytes) -> None:
        try:
            body = _json_object(data)
        except InvalidMessage:
            warn("a response was cut off, or is no JSON; its question stands without an answer")
            return
        answer = understood(self._recorder.dialect, body)
        if answer.complete:  # the provider may only have begun, and be asked again later
            self._recorder.answer(self._place, answer)


def understood(dialect: Dialect, body: Mapping[str, object]) -> Answer:
    """What a response says. One that the dialect cannot read was paid for too: it is kept as it is, as an event."""
    try:
        return dialect.answer(body)
    except InvalidMessage as error:
        warn(f"a response could not be understood, and is kept as it is: {error}")
        text = msgspec.json.encode(body).decode()
        return Answer([Message("event", (Block("response", text, "text", "application/json"),), raw=dict(body))])


_listening: WeakKeyDictionary[Any, Listening] = WeakKeyDictionary()  # by HTTP client
_tapped: WeakSet[Any] = WeakSet()  # HTTP clients that have our hook, whether anybody listens or not


def listening_to(sdk: object) -> Listening | None:
    """Who listens to this client, if anybody does."""
    found = http_clients(sdk)
    return None if found is None else _listening.get(found[1][0])


def listen(sdk: object, make: Make) -> Listening:
    """Listen to a client from now on. If somebody does already, it is us from now on."""
    found = http_clients(sdk)
    if found is None:
        raise InvalidArgument(
            f"a {type(sdk).__name__} cannot be recorded",
            hint="give a client of ours, or one of openai, anthropic or google-genai",
        )
    provider, clients = found
    listening = Listening(provider, make)
    for http in clients:
        if http not in _tapped:
            tap(http, partial(_hear, ref(http)))
            _tapped.add(http)
        _listening[http] = listening
    if provider == "claude":
        _let_our_errors_through(sdk)
    return listening


def unlisten(sdk: object, listening: Listening) -> None:
    """Do not listen any more, if it is us who do. Requests that were sent are heard to their end."""
    found = http_clients(sdk)
    for http in () if found is None else found[1]:
        if _listening.get(http) is listening:
            del _listening[http]


def _hear(http: "ref[Any]", method: str, path: str, body: bytes) -> Exchange | None:
    """Whoever listens now. The hook must not keep its own client alive."""
    listening = _listening.get(http())
    if listening is None:
        return None
    try:
        return listening.hear(method, path, body)
    except HithertoError as error:
        if listening.provider == "claude":  # see `_let_our_errors_through`
            raise import_module("anthropic").AnthropicError(str(error)) from error
        raise


def http_clients(sdk: object) -> tuple[str, list[Any]] | None:
    """The provider of an SDK client and the HTTP clients that it speaks through; None if it is no such thing."""
    kinds = {kind.__module__.split(".")[0]: kind.__name__ for kind in type(sdk).__mro__}
    full = {kind.__module__ for kind in type(sdk).__mro__}
    inner: Any = sdk
    if "openai" in kinds and hasattr(sdk, "chat"):
        return "openai", [inner._client]
    if "anthropic" in kinds and hasattr(sdk, "messages"):
        if any(word in type(sdk).__name__ for word in _REFUSED):
            raise Unsupported(f"{type(sdk).__name__} speaks a protocol that cannot be listened to", hint=None)
        return "claude", [inner._client]
    if any(name.startswith("google.genai") for name in full) and hasattr(sdk, "models"):
        api = inner._api_client
        if api._use_aiohttp():
            hint = "pass http_options=HttpOptions(httpx_async_client=httpx2.AsyncClient()) to the client"
            raise Unsupported("this client speaks through aiohttp, which cannot be listened to", hint=hint)
        return "gemini", [http for http in (api._httpx_client, api._async_httpx_client) if http is not None]
    return None


def _let_our_errors_through(sdk: Any) -> None:
    """Anthropic's SDK takes every error while sending for one of the connection, and tries again, unless it is one of
    its own. Ours is the store's: it goes through as one of the SDK's, and who calls sees it as it is."""
    if "request" in vars(sdk):
        return
    request = sdk.request

    def raised(error: BaseException) -> BaseException:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, HithertoError):
            cause = cause.__cause__
        return cause or error

    if hasattr(sdk._client, "aclose"):

        async def request_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return await request(*args, **kwargs)
            except Exception as error:
                found = raised(error)
                if found is error:
                    raise
                raise found from None

        sdk.request = request_async
        return

    def request_sync(*args: Any, **kwargs: Any) -> Any:
        try:
            return request(*args, **kwargs)
        except Exception as error:
            found = raised(error)
            if found is error:
                raise
            raise found from None

    sdk.request = request_sync
