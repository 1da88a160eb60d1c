"""Recording what goes through the SDK of a provider, or through a plain HTTP client: requests in, messages out.

The path of a request says in which dialect it is written. What is new in its history is kept before it is sent, and the
answer as it comes. Requests that are no chat (embeddings, files, token counts) pass unheard. Which client a request
belongs to is decided in `_calls`.
"""

import threading
from collections.abc import Callable

import msgspec

from .._http_hooks import Sent
from ..dialects._sse import Events
from ..errors import HithertoError
from ..events import warn
from ._partial_answer import Arriving
from ._recorder import Place, Recorder
from ._requests import FIELDS, keep_request
from ._responses import understood, with_unread

_PATHS = {
    "openai": (("/chat/completions", "openai-chat"), ("/responses", "openai-responses")),
    "claude": (("/v1/messages", "anthropic"),),
    "gemini": ((":generateContent", "gemini"), (":streamGenerateContent", "gemini")),
}
_PROVIDERS = {name: provider for provider, paths in _PATHS.items() for _, name in paths}
# Endpoints with such a field that are no chat.
_OTHERS = ("embeddings", "embedContent", "embedContents", "countTokens", "count_tokens", "input_tokens", "moderations",
           "rerank", "speech", "generations", "computeTokens", "compact")  # fmt: skip
# Headers by which coding agents name their session, so that its requests belong together.
_SESSIONS = ("x-claude-code-session-id", "session-id", "session_id", "thread-id")

Make = Callable[[str, str], Recorder]  # by dialect and provider


def dialects_of(provider: str | None) -> list[str]:
    """The dialects that the SDK of a provider speaks; a plain HTTP client may speak any."""
    return [name for name, known in _PROVIDERS.items() if provider in (None, known)]


class Listening:
    """The recorders behind one client: one for each dialect that it speaks."""

    def __init__(self, provider: str | None, make: Make, dialect: str | None = None, kind: str = "client") -> None:
        """`provider` is None for a plain HTTP client, of which `dialect` may say what it speaks."""
        self.provider = provider
        self.kind = kind  # of client, for people
        self.make = make
        self._dialect = dialect
        self._lock = threading.Lock()
        self._recorders: dict[str, Recorder] = {}
        self._heard = 0  # requests, of any kind
        self._is_said = False  # that calls pass unheard
        self.latest: Recorder | None = None

    def recorder(self, name: str) -> Recorder:
        with self._lock:
            if name not in self._recorders:
                self._recorders[name] = self.make(name, _PROVIDERS[name])
            self.latest = self._recorders[name]
            return self.latest

    def recorders(self) -> list[Recorder]:
        with self._lock:
            return list(self._recorders.values())

    def hear(self, sent: Sent) -> "Heard | None":
        """A request that is about to be sent. What it says is kept before it goes."""
        self._heard += 1
        name = self._spoken(sent)
        if name is None:
            return None
        recorder = self.recorder(name)
        model = sent.path.rpartition("/")[2].rpartition(":")[0] if name == "gemini" else None
        session = next((sent.headers[header] for header in _SESSIONS if sent.headers.get(header)), None)
        return Heard(recorder, keep_request(recorder, sent.body, model, session))

    def _spoken(self, sent: Sent) -> str | None:
        """The dialect of a request; None if it is no chat."""
        if sent.method != "POST":
            return None
        for provider, paths in _PATHS.items():
            for end, name in paths:
                if sent.path.endswith(end):
                    return name if self.provider in (None, provider) and self._dialect in (None, name) else None
        if self._dialect is None or sent.path.replace(":", "/").rpartition("/")[2] in _OTHERS:
            return None
        return self._dialect if _has_field(sent.body, FIELDS[self._dialect]) else None

    def say_unheard(self) -> None:
        """A call of the client was answered, and nothing of it was heard."""
        if not self._is_said:
            self._is_said = True
            warn(f"calls of a recorded {self.kind} do not go through the HTTP client that is listened to: "
                 "they are not kept")  # fmt: skip

    def say_if_silent(self) -> None:
        """The recording ends. If the client has made no request at all, then whoever was to use it has used another."""
        if not self._heard and not self._is_said:
            self._is_said = True
            warn(f"a recorded {self.kind} has made no request: if something was said, then through another client")


def _has_field(body: bytes, name: str) -> bool:
    try:
        return name in msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:  # it is no request of this dialect
        return False


class Heard:
    """One request that was sent, and its response."""

    def __init__(self, recorder: Recorder, place: Place) -> None:
        self._recorder = recorder
        self._place = place
        place.kept.expect(place)
        self._arriving: Arriving | None = None
        self._events = Events()
        self._body: list[bytes] = []
        self._lost = False

    def again(self) -> "Heard":
        """The same request, sent once more by the SDK. The question stands already."""
        return Heard(self._recorder, self._place)

    def fail(self) -> None:
        """There is no answer, and none will come: the question may be asked again."""
        self._settle()

    def _settle(self) -> None:
        self._place.kept.settle(self._place)

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
        finally:
            self._settle()

    def _end_stream(self, arriving: Arriving) -> None:
        for event in self._events.finish():
            arriving.feed(event)
        answer = arriving.answer()
        complete = answer.complete and not self._lost
        arriving.close(keep=not complete)
        if complete:
            self._recorder.answer(self._place, with_unread(answer, self._events.unread))

    def _end_body(self, data: bytes) -> None:
        answer = understood(self._recorder.dialect, data)
        if answer is not None and answer.complete:  # the provider may only have begun, and be asked again later
            self._recorder.answer(self._place, answer)
