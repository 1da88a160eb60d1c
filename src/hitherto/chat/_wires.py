"""Sends requests to a provider through its official SDK, without letting the SDK change the JSON.

A wire takes a request as the dialect wrote it and returns the body of the response, or the JSON of each event of a
stream. The SDK does authentication, connections, timeouts and retries. Its conversion of JSON (fields that it fills in,
drops or converts) is bypassed: requests are sent as they are, and responses are read as they came.

The address of a request is checked before any credential is read, and again for every redirect.
"""

import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from .._http_hooks import Exchange, add_hooks
from ..dialects._sse import DONE, Events
from ..errors import ChatError, Hint, HithertoError, InvalidBaseURL, MissingExtra, ProviderError
from ._config import Config
from ._urls import effective_base_url, validate_base_url

Request = Mapping[str, object]
Event = dict[str, object]
_log = logging.getLogger("hitherto")


class Wire(Protocol):
    """The connection to one provider, both blocking and awaited."""

    def check_ready(self) -> None: ...
    def send(self, request: Request) -> bytes: ...
    def stream(self, request: Request) -> Iterator[Event]: ...
    async def send_async(self, request: Request) -> bytes: ...
    def stream_async(self, request: Request) -> AsyncGenerator[Event, None]: ...
    def close(self) -> None: ...
    async def close_async(self) -> None: ...


def checked_url(config: Config, variable: str, default: str | None, *, loopback: bool = False) -> str:
    """Return the address that a client will use: the argument, else the SDK's environment variable, else its default.
    The address is validated; only its host is logged."""
    url = effective_base_url(config.base_url, (variable,), default, os.environ)
    if url is None:
        hint = Hint("no-base-url", "give Config(base_url=…)")
        raise InvalidBaseURL("an OpenAI-compatible service has no default address", rule="missing", hint=hint)
    validate_base_url(url, allow_insecure=config.allow_insecure_base_url or loopback)
    _log.info("provider %s at %s", config.provider, urlsplit(url).hostname)
    return url


def _guards(url: str) -> tuple[Callable[[Any], None], Callable[[Any], Any]]:
    """Return the request hooks, blocking and awaited, that refuse a redirect to another host."""
    meant = urlsplit(url)
    place = ((meant.hostname or "").lower().rstrip("."), meant.scheme.lower(), meant.port)

    def check(request: Any) -> None:
        found = (request.url.host.lower().rstrip("."), request.url.scheme, request.url.port)
        if found != place and found != (place[0], place[1], place[2] if place[2] not in (80, 443) else None):
            raise InvalidBaseURL("the provider redirects to another host, which is refused", rule="redirect")

    async def check_async(request: Any) -> None:
        check(request)

    return check, check_async


@contextmanager
def mapping_errors(provider: str, secret: str | None = None) -> Iterator[None]:
    """Turn exceptions of an SDK into our errors. The API key is masked in them."""
    try:
        yield
    except HithertoError:
        raise
    except Exception as error:  # the SDKs raise errors of their own, of their HTTP library, and of their parsers
        raise _as_ours(error, provider, secret) from error


@contextmanager
def _making(provider: str, secret: str | None) -> Iterator[None]:
    """Turn an exception of an SDK's constructor into `ChatError`: mostly the key is missing."""
    try:
        yield
    except Exception as error:  # SDKs raise errors of their own here, and plain ones
        said = mask_key(str(error), secret)
        keyless = "api_key" in said.lower() or "api key" in said.lower()  # each SDK has its own words for it
        raise _missing_key(provider, "there is no key" if keyless else said) from error


def _missing_key(provider: str, said: str) -> ChatError:
    names = {"claude": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
    variable = names.get(provider, "OPENAI_API_KEY")
    text = "set {variable} in the environment, or give Config(api_key=…)"
    hint = Hint("no-api-key", text, variable=variable, provider=provider)
    return ChatError(f"{provider} cannot be asked: {said[:300]}", hint=hint)


def mask_key(text: str, secret: str | None) -> str:
    """Replace the key in a text. A key that is too short to be one is ignored: it would match ordinary words."""
    return text.replace(secret, "***") if secret and len(secret) >= _SHORTEST_KEY else text


_SHORTEST_KEY = 8
_WRONG = "required|missing|not found|not exist|invalid|unknown|provide"
# Some servers answer a wrong or missing name of a model with 400, where others say 404.
_ABOUT_MODEL = re.compile(rf"\bmodel\b.{{0,40}}\b({_WRONG})\b|\b({_WRONG})\b.{{0,20}}\bmodel\b", re.IGNORECASE)


def _as_ours(error: Exception, provider: str, secret: str | None) -> HithertoError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HithertoError):
            return cause
        cause = cause.__cause__
    status = next((s for s in (getattr(error, n, None) for n in ("status_code", "code")) if isinstance(s, int)), None)
    said = str(getattr(error, "message", "") or error)
    said = mask_key(said, secret)[:300]
    hint = _hint(404 if status in (400, 422) and _ABOUT_MODEL.search(said) else status, provider)
    if status is None and "authentication method" in said:  # Anthropic's SDK looks for a key only when it sends
        return _missing_key(provider, "there is no key")
    if status is not None and status < 400:
        status = None  # the response began well: the error came in the middle of the answer
        what = f"{provider} broke off with an error"
    elif status is not None:
        what = f"{provider} answered with status {status}"
    elif _is_about_the_network(error):
        hint = Hint(
            "provider-unreachable", "check the network, and that the server is running; client.retry() asks again"
        )
        what = f"{provider} could not be reached"
    else:
        what = f"the answer of {provider} could not be read"
    return ProviderError(f"{what}: {said or type(error).__name__}", provider=provider, status=status, hint=hint)


def _is_about_the_network(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"APIConnectionError", "TransportError", "OSError", "APITimeoutError"})


def _hint(status: int | None, provider: str) -> str | None:
    if status in (401, 403):
        if provider == "openai-compatible":
            return Hint("server-refused-key", "check the API key: Config(api_key=…)")
        return Hint("provider-refused-key", "check the API key, and that it may use this model", provider=provider)
    if status == 429:
        return Hint("rate-limited", "too many requests, or no credit left: wait, then client.retry()")
    if status == 404:
        text = "check the model's name, and the base URL (often it ends in /v1); client.undo() takes the question back"
        return Hint("not-at-provider", text)
    if status in (400, 413, 422):
        text = "the request itself was refused: client.undo() takes the question back, to say it differently"
        return Hint("request-refused", text)
    return Hint("provider-failed", "nothing is lost: client.retry() asks again")


def load_sdk(package: str, extra: str) -> Any:
    """Import an SDK. Raises `MissingExtra` if it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtra(package, extra) from None


class Posting:
    """The wire through OpenAI's and Anthropic's SDKs, which share one design: a path to post to, and a stream of
    events."""

    def __init__(
        self,
        config: Config,
        sdk: Any,
        names: tuple[str, str],
        path: str,
        url: str,
        key: str | None,
        *,
        stranger: bool = False,
    ) -> None:
        self._config = config
        self._sdk = sdk
        self._names = names
        self._path = path
        self._url = url
        self._key = key
        self._stranger = stranger

    def _make(self, name: str, http: Any, guard: object) -> Any:
        given: dict[str, object] = {"base_url": self._url}
        if self._key is not None:
            given["api_key"] = self._key
        if self._config.max_retries is not None:
            given["max_retries"] = self._config.max_retries
        if self._config.timeout_seconds is not None:
            given["timeout"] = self._config.timeout_seconds
        with _making(self._config.provider, self._key):
            client = http(event_hooks={"request": [guard]})
            add_hooks(client, lambda *_: _capture.get())
            sdk = getattr(self._sdk, name)(http_client=client, **given)
        self._key = self._key or getattr(sdk, "api_key", None)
        if self._stranger:  # settings for OpenAI in the environment must not reach another service
            sdk.organization = sdk.project = None
            sdk._custom_headers = {}
        return sdk

    @cached_property
    def _sync(self) -> Any:
        return self._make(self._names[0], self._sdk.DefaultHttpxClient, _guards(self._url)[0])

    @cached_property
    def _async(self) -> Any:
        return self._make(self._names[1], self._sdk.DefaultAsyncHttpxClient, _guards(self._url)[1])

    def _errors(self) -> Any:
        return mapping_errors(self._config.provider, self._key)

    def check_ready(self) -> None:
        """Raise `ChatError` if there is no key. Anthropic's SDK would look for one only when it sends."""
        sdk = self._sync
        given = {name.lower() for name, value in sdk.default_headers.items() if isinstance(value, str) and value}
        keyless = not given & {"authorization", "x-api-key"} and getattr(sdk, "_token_cache", None) is None
        if keyless and self._config.provider == "claude":
            raise _missing_key("claude", "there is no key")

    def send(self, request: Request) -> bytes:
        sdk = self._sync
        with self._errors():
            return bytes(sdk.post(self._path, body=dict(request), cast_to=_response(sdk._client)).content)

    def stream(self, request: Request) -> Iterator[Event]:
        sdk = self._sync
        with self._errors():
            kind = self._sdk.Stream[object]
            body = {**request, "stream": True}
            given = {"body": body, "cast_to": object, "stream": True, "stream_cls": kind}
            tail = _Tail()
            with _within(tail, lambda: sdk.post(self._path, **given)) as stream:
                yield from stream
            if tail.is_done:
                yield dict(DONE)

    async def send_async(self, request: Request) -> bytes:
        sdk = self._async
        with self._errors():
            response = await sdk.post(self._path, body=dict(request), cast_to=_response(sdk._client))
            return bytes(response.content)

    async def stream_async(self, request: Request) -> AsyncGenerator[Event, None]:
        sdk = self._async
        with self._errors():
            kind = self._sdk.AsyncStream[object]
            body = {**request, "stream": True}
            with _capturing(tail := _Tail()):
                sent = await sdk.post(self._path, body=body, cast_to=object, stream=True, stream_cls=kind)
            async with sent as stream:
                async for event in stream:
                    yield event
            if tail.is_done:
                yield dict(DONE)

    def close(self) -> None:
        if "_sync" in vars(self):
            self._sync.close()

    async def close_async(self) -> None:
        if "_async" in vars(self):
            await self._async.close()


def _response(http: Any) -> type:
    """Return the response class of the HTTP library that an SDK uses."""
    library = next(k.__module__.split(".")[0] for k in type(http).__mro__ if k.__module__.startswith("httpx"))
    kind: type = import_module(library).Response
    return kind


def openai(config: Config) -> Posting:
    variable = "OPENAI_BASE_URL"
    compatible = config.provider != "openai"
    url = checked_url(config, variable, None if compatible else "https://api.openai.com/v1")
    sdk = load_sdk("openai", "openai")
    # A key from the environment is sent only to the address from the environment, or the SDK's default. Other services
    # mostly need no key, but the SDK wants one.
    stranger = compatible and config.base_url is not None
    is_keyless = stranger or (compatible and not os.environ.get("OPENAI_API_KEY"))
    key = config.api_key or ("none" if is_keyless else None)
    path = "/responses" if config.api == "responses" else "/chat/completions"
    return Posting(config, sdk, ("OpenAI", "AsyncOpenAI"), path, url, key, stranger=stranger)


def anthropic(config: Config) -> Posting:
    url = checked_url(config, "ANTHROPIC_BASE_URL", "https://api.anthropic.com")
    sdk = load_sdk("anthropic", "anthropic")
    return Posting(config, sdk, ("Anthropic", "AsyncAnthropic"), "/v1/messages", url, config.api_key)


class _Capture:
    """Collects the response to one request as it arrives."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._body: list[bytes] = []
        self._stream: Events | None = None

    def head(self, content_type: str) -> None:
        self._body = []  # of an attempt that failed on its way, if the SDK tries again
        self._stream = Events() if content_type.startswith("text/event-stream") else None

    def feed(self, data: bytes) -> None:
        if self._stream is None:
            self._body.append(data)
        else:
            self.events += self._stream.feed(data)

    def end(self) -> None:
        if self._stream is not None:
            self.events += self._stream.finish()

    def fail(self) -> None:
        """Do nothing: the SDK raises the error."""

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def whole(self) -> bytes:
        return b"".join(self._body)


class _Tail:
    """Watches the end of a stream for `[DONE]`. The SDKs pass on every event but this last one."""

    def __init__(self) -> None:
        self._last = b""

    def head(self, content_type: str) -> None:  # noqa: ARG002  # used for streams only
        self._last = b""

    def feed(self, data: bytes) -> None:
        self._last = (self._last + data)[-_TAIL_BYTES:]

    def end(self) -> None:
        """Do nothing: `is_done` reads the last bytes."""

    def fail(self) -> None:
        """Do nothing: the SDK raises the error, or retries."""

    @property
    def is_done(self) -> bool:
        return _DONE_LINE.search(self._last) is not None


_TAIL_BYTES = 64
_DONE_LINE = re.compile(rb"[\r\n]data: ?\[DONE\]\s*\Z")
_capture: ContextVar[Exchange | None] = ContextVar("hitherto_capture", default=None)


class Gemini:
    """The wire through google-genai. Its types drop unknown fields and rewrite signatures. So requests are passed as
    raw JSON, and responses are captured from the HTTP connection."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._url = checked_url(config, "GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com")
        self._key = config.api_key
        self._genai = load_sdk("google.genai", "gemini")
        self._types = import_module("google.genai.types")

    @cached_property
    def _clients(self) -> tuple[Any, Any, Any]:
        """The SDK's client, and its two HTTP clients."""
        httpx = _http_library()
        guard, guard_async = _guards(self._url)
        timeout = httpx.Timeout(self._config.timeout_seconds or 600.0)
        http = httpx.Client(event_hooks={"request": [guard]}, timeout=timeout, follow_redirects=True)
        awaited = httpx.AsyncClient(event_hooks={"request": [guard_async]}, timeout=timeout, follow_redirects=True)
        for client in (http, awaited):
            add_hooks(client, lambda *_: _capture.get())
        options: dict[str, object] = {"base_url": self._url, "httpx_client": http, "httpx_async_client": awaited}
        if self._config.max_retries is not None:
            options["retry_options"] = self._types.HttpRetryOptions(attempts=self._config.max_retries + 1)
        if self._config.timeout_seconds is not None:
            options["timeout"] = int(self._config.timeout_seconds * 1000)
        with _making("gemini", self._key):
            sdk = self._genai.Client(vertexai=False, api_key=self._key, http_options=self._types.HttpOptions(**options))
        self._key = self._key or getattr(sdk._api_client, "api_key", None)
        return sdk, http, awaited

    def _errors(self) -> Any:
        return mapping_errors("gemini", self._key)

    def check_ready(self) -> None:
        """Raise `ChatError` if the client cannot be made, mostly for lack of a key."""
        _ = self._clients

    def _arguments(self, request: Request) -> dict[str, Any]:
        body = {name: value for name, value in request.items() if name != "model"}
        options = self._types.HttpOptions(extra_body=body)
        config = self._types.GenerateContentConfig(http_options=options)
        return {"model": request["model"], "contents": "-", "config": config}

    def send(self, request: Request) -> bytes:
        sdk = self._clients[0]
        with _capturing(_Capture()) as capture, self._errors(), _heard_anyway(capture):
            sdk.models.generate_content(**self._arguments(request))
        return capture.whole()

    def stream(self, request: Request) -> Iterator[Event]:
        sdk, capture = self._clients[0], _Capture()
        with self._errors():
            chunks = _within(capture, lambda: sdk.models.generate_content_stream(**self._arguments(request)))
            while _within(capture, lambda: next(chunks, None)) is not None:
                yield from capture.take_events()
            yield from capture.take_events()

    async def send_async(self, request: Request) -> bytes:
        sdk = self._clients[0]
        with _capturing(_Capture()) as capture, self._errors(), _heard_anyway(capture):
            await sdk.aio.models.generate_content(**self._arguments(request))
        return capture.whole()

    async def stream_async(self, request: Request) -> AsyncGenerator[Event, None]:
        sdk = self._clients[0]
        with self._errors():
            with _capturing(_Capture()) as capture:
                chunks = await sdk.aio.models.generate_content_stream(**self._arguments(request))
                first = await anext(chunks, None)
            while first is not None:
                for event in capture.take_events():
                    yield event
                first = await anext(chunks, None)
            for event in capture.take_events():
                yield event

    def close(self) -> None:
        if "_clients" in vars(self):
            self._clients[1].close()

    async def close_async(self) -> None:
        if "_clients" in vars(self):
            await self._clients[2].aclose()


def _http_library() -> Any:
    """Import the HTTP library of google-genai: httpx2, or httpx in older versions."""
    try:
        return import_module("httpx2")
    except ImportError:
        return import_module("httpx")


C = TypeVar("C", bound=Exchange)


@contextmanager
def _capturing(capture: C) -> Iterator[C]:
    token = _capture.set(capture)
    try:
        yield capture
    finally:
        _capture.reset(token)


@contextmanager
def _heard_anyway(capture: _Capture) -> Iterator[None]:
    """Suppress errors of the SDK's own types if the response was captured: the caller parses it instead."""
    try:
        yield
    except (ValueError, RecursionError):
        if not capture.whole():
            raise


def _within(capture: Exchange, call: Callable[[], Any]) -> Any:
    """Call a function with its response captured. The context variable is reset at once: a generator must not leave it
    set while other code runs."""
    token = _capture.set(capture)
    try:
        return call()
    finally:
        _capture.reset(token)


def local(config: Config) -> Posting:
    """Return the wire to a model on this machine, served by a process of ours on the loopback address."""
    from ._llama import serve  # noqa: PLC0415  # loads a model

    sdk = load_sdk("openai", "local")
    served = serve(config.model_path)
    validate_base_url(served.base_url, allow_insecure=True)
    _log.info("provider local at 127.0.0.1")
    path = "/responses" if config.api == "responses" else "/chat/completions"
    key = getattr(served, "api_key", "") or "none"
    return Posting(config, sdk, ("OpenAI", "AsyncOpenAI"), path, served.base_url, key, stranger=True)


def wire(config: Config) -> Wire:
    makers: dict[str, Callable[[Config], Wire]] = {
        "claude": anthropic,
        "openai": openai,
        "openai-compatible": openai,
        "gemini": Gemini,
        "local": local,
    }
    if config.provider not in makers:
        raise ChatError(f"there is no wire to {config.provider}")
    return makers[config.provider](config)
