"""Find the client that makes a request.

Many SDK clients may share one HTTP client: copies of a client do, and frameworks hand one to all their models. So the
hooks of an HTTP client see the requests of several clients. The call decides whose a request is: the method of a
recorded SDK client that makes its requests is wrapped, and the wrapper sets a context variable while the method runs,
retries included. A request within such a call belongs to that client. Every other request is ignored, unless the HTTP
client itself was given to `record`.

The wrappers stay on a client when its recording ends, and do nothing then. They hold the client weakly.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from inspect import getattr_static
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from msgspec import Struct

from .._http_hooks import Exchange, Sent, add_hooks
from ..errors import HithertoError, InvalidArgument, Unsupported
from ._aiohttp import listen_to_aiohttp
from ._sdk import Listening, Make, RecordedExchange

_UNSUPPORTED = ("Bedrock", "Vertex", "Foundry", "AWS")  # Anthropic's clients that speak another protocol
_COPYING = ("copy", "with_options")  # methods of an SDK client that give another one
# The attributes in which frameworks keep the client of an SDK, or an HTTP client.
_ATTRIBUTES = ("root_client", "root_async_client", "client", "_client", "async_client", "_async_client", "aclient")


class Found(Struct, frozen=True):
    """A client that can be recorded."""

    provider: str | None  # None: a plain HTTP client
    caller: Any  # the object that makes the requests
    http: list[Any]  # the HTTP clients that they go through
    methods: tuple[str, ...] = ()  # of the caller, that make one request with its retries
    awaited: tuple[str, ...] = ()  # the same, for methods that are awaited
    copying: tuple[str, ...] = ()  # methods of the caller that return another such client


class Call:
    """One call of a recorded SDK client, with its retries."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._sent: Sent | None = None
        self._exchange: RecordedExchange | None = None
        self.has_request = False
        self.error: HithertoError | None = None  # of the store, because of which no request was sent

    def on_request(self, sent: Sent) -> Exchange | None:
        self.has_request = True
        try:
            if self._exchange is not None and self._is_same(sent):
                self._exchange = self._exchange.repeat()
            else:
                self._exchange = self._listening.on_request(sent)
                self._sent = sent
        except HithertoError as error:
            self.error = error
            if self._listening.provider == "claude":  # its SDK tries again for every error but its own
                raise import_module("anthropic").AnthropicError(str(error)) from error
            raise
        return self._exchange

    def _is_same(self, sent: Sent) -> bool:
        return self._sent is not None and (sent.path, sent.body) == (self._sent.path, self._sent.body)

    def fail(self) -> None:
        """The call has ended with an error."""
        if self._exchange is not None:
            self._exchange.fail()

    def end(self) -> None:
        """The call has returned."""
        if not self.has_request:
            self._listening.warn_unheard()


_call: ContextVar[Call | None] = ContextVar("hitherto_call", default=None)
_recorded: WeakKeyDictionary[Any, Listening] = WeakKeyDictionary()  # by the object that makes the requests
_hooked: WeakSet[Any] = WeakSet()  # HTTP clients that have our hook, whether anything is recorded or not
_wrapped: WeakSet[Any] = WeakSet()  # callers that have our wrappers


def listening_to(client: object) -> Listening | None:
    """The recording of this client; None if it is not recorded."""
    found = find(client)
    return None if found is None else _recorded.get(found.caller)


def listen(client: object, make: Make, dialect: str | None = None) -> Listening:
    """Start to listen to a client. An earlier recording of it ends."""
    found = find(client)
    if found is None:
        raise InvalidArgument(f"a {type(client).__name__} cannot be recorded", hint=_hint(client))
    if dialect is not None and found.provider is not None:
        raise InvalidArgument("the dialect of an SDK client is known", hint="leave `dialect` out")
    listening = Listening(found.provider, make, dialect, type(client).__name__)
    _attach(found, listening)
    return listening


def unlisten(listening: Listening) -> None:
    """Stop listening. Requests that were sent before are still recorded to their end."""
    for caller, other in list(_recorded.items()):
        if other is listening:
            _recorded.pop(caller, None)


def _attach(found: Found, listening: Listening) -> None:
    for http in found.http:
        if http not in _hooked:
            add_hooks(http, partial(_on_request, ref(http)))
            _hooked.add(http)
    if found.caller not in _wrapped:
        for name in found.methods:
            _wrap(found.caller, name, _wrap_call)
        for name in found.awaited:
            _wrap(found.caller, name, _wrap_awaited)
        for name in found.copying:
            _wrap(found.caller, name, _wrap_copy)
        if found.provider == "gemini":
            _wrap(found.caller, "_async_request_once", _wrap_aiohttp)
        _wrapped.add(found.caller)
    _recorded[found.caller] = listening


def _on_request(http: "ref[Any]", sent: Sent) -> Exchange | None:
    """Pass a request that is about to be sent to the recording that it belongs to. The hook must not keep its client
    alive."""
    call = _call.get()
    if call is not None:
        return call.on_request(sent)
    listening = _recorded.get(http())
    return None if listening is None else listening.on_request(sent)


# -- wrapping the methods of a client

Method = Callable[..., Any]


def _wrap(caller: Any, name: str, wrapper: "Callable[[ref[Any], Method], Method]") -> None:
    """Put a wrapper before a method of this one object."""
    own, here = vars(caller).get(name), ref(caller)
    function = getattr(type(caller), name)
    setattr(caller, name, wrapper(here, own or (lambda *args, **kwargs: function(here(), *args, **kwargs))))


def _wrap_call(caller: "ref[Any]", method: Method) -> Method:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _calling(caller):
            return method(*args, **kwargs)

    return wrapper


def _wrap_awaited(caller: "ref[Any]", method: Method) -> Method:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _calling(caller):
            return await method(*args, **kwargs)

    return wrapper


@contextmanager
def _calling(caller: "ref[Any]") -> Iterator[None]:
    """Attribute the requests within this block to this client."""
    listening = _recorded.get(caller())
    call = None if listening is None else Call(listening)
    token = _call.set(call)
    try:
        yield
    except BaseException as error:
        if call is not None:
            call.fail()
            if call.error is not None and isinstance(error, Exception):
                raise call.error from None  # the SDK may have made an error of the connection of it
        raise
    finally:
        _call.reset(token)
    if call is not None:
        call.end()


def _wrap_copy(caller: "ref[Any]", method: Method) -> Method:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        made = method(*args, **kwargs)
        listening, found = _recorded.get(caller()), find(made)
        if listening is not None and found is not None:
            _attach(found, listening)
        return made

    return wrapper


def _wrap_aiohttp(caller: "ref[Any]", method: Method) -> Method:
    """Observe aiohttp, which Google's SDK uses where it is installed and no other transport was chosen."""

    async def wrapper(request: Any, *args: Any, **kwargs: Any) -> Any:
        call, api = _call.get(), caller()
        if call is None or api is None or not api._use_aiohttp():
            return await method(request, *args, **kwargs)
        make: Callable[[], Awaitable[Any]] = partial(method, request, *args, **kwargs)
        return await listen_to_aiohttp(request, make, call.on_request)

    return wrapper


# -- finding the parts of a client


def find(client: object) -> Found | None:
    """The parts of a client that can be recorded; None if there are none. Raises `Unsupported` for clients that are
    known not to work."""
    modules = {kind.__module__ for kind in type(client).__mro__}
    roots = {name.partition(".")[0] for name in modules}
    inner: Any = client
    if "openai" in roots and hasattr(client, "chat") and hasattr(client, "_client"):
        return _of_stainless("openai", inner)
    if "anthropic" in roots and hasattr(client, "messages") and hasattr(client, "_client"):
        if any(word in type(client).__name__ for word in _UNSUPPORTED):
            raise Unsupported(f"{type(client).__name__} speaks a protocol that cannot be listened to", hint=None)
        return _of_stainless("claude", inner)
    if any(name.startswith("google.genai") for name in modules) and hasattr(client, "models"):
        api = inner._api_client
        http = [one for one in (api._httpx_client, api._async_httpx_client) if one is not None]
        return Found("gemini", api, http, ("_request",), ("_async_request",))
    if roots & {"httpx", "httpx2"} and hasattr(client, "event_hooks"):
        return Found(None, client, [client])
    return None


def _of_stainless(provider: str, client: Any) -> Found | None:
    """The parts of a client of OpenAI's or Anthropic's SDK, which have the same structure."""
    http = client._client
    if not hasattr(http, "event_hooks"):  # a part of a client, such as `client.chat`
        return None
    if hasattr(http, "aclose"):
        return Found(provider, client, [http], awaited=("request",), copying=_COPYING)
    return Found(provider, client, [http], ("request",), copying=_COPYING)


def _hint(client: object) -> str:
    """A hint for an object that is no client: the attribute that holds one."""
    names = [name for name in _ATTRIBUTES if _has_client(client, name)]
    if names:
        return f"give the client that it has: its attribute {' or '.join(f'`{name}`' for name in names)}"
    return "give a client of ours, one of openai, anthropic or google-genai, or an httpx.Client"


def _has_client(thing: object, name: str) -> bool:
    try:
        getattr_static(thing, name)
    except AttributeError:
        if not hasattr(type(thing), "__pydantic_private__"):  # only its __getattr__ finds private attributes
            return False
    with suppress(Exception):  # a foreign property may raise anything; that must not replace our error
        return find(getattr(thing, name)) is not None
    return False
