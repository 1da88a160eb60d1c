"""Record the requests of a provider's SDK, or of a plain HTTP client.

The path of a request says in which dialect it is written. The new messages of its history are kept before it is sent,
and the answer while it arrives. Requests that are no chat (embeddings, files, token counts) are ignored. `_calls`
decides which client a request belongs to.
"""

import threading
from collections.abc import Callable

import msgspec

from .._http_hooks import Sent
from ..dialects._sse import Events
from ..errors import HithertoError
from ..events import warn
from ._partial_answer import PartialAnswer
from ._recorded_conversation import Place
from ._recorder import Recorder
from ._requests import FIELDS, keep_request
from ._responses import add_unread, parse_response

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


def dialect_of_path(path: str) -> str | None:
    """The dialect of the requests that are posted to a path; None if these are no chat."""
    return next((name for paths in _PATHS.values() for end, name in paths if path.endswith(end)), None)


class Listening:
    """The recorders of one client: one for each dialect that it speaks."""

    def __init__(self, provider: str | None, make: Make, dialect: str | None = None, kind: str = "client") -> None:
        """`provider` is None for a plain HTTP client, of which `dialect` may say what it speaks."""
        self.provider = provider
        self.kind = kind  # of client, for warnings
        self.make = make
        self._dialect = dialect
        self._lock = threading.Lock()
        self._recorders: dict[str, Recorder] = {}
        self._count = 0  # of requests, of any kind
        self._has_warned = False  # that calls are not recorded
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

    def on_request(self, sent: Sent, *, is_main: bool = False) -> "RecordedExchange | None":
        """Keep the messages of a request before it is sent. None if the request is no chat. `is_main` is that of
        `Recorder.ask`."""
        self._count += 1
        name = self._find_dialect(sent)
        if name is None:
            return None
        recorder = self.recorder(name)
        model = sent.path.rpartition("/")[2].rpartition(":")[0] if name == "gemini" else None
        session = next((sent.headers[header] for header in _SESSIONS if sent.headers.get(header)), None)
        return RecordedExchange(recorder, keep_request(recorder, sent.body, model, session, is_main=is_main))

    def _find_dialect(self, sent: Sent) -> str | None:
        """The dialect of a request; None if it is no chat."""
        if sent.method != "POST":
            return None
        found = dialect_of_path(sent.path)
        if found is not None:
            return found if self.provider in (None, _PROVIDERS[found]) and self._dialect in (None, found) else None
        if self._dialect is None or sent.path.replace(":", "/").rpartition("/")[2] in _OTHERS:
            return None
        return self._dialect if _has_field(sent.body, FIELDS[self._dialect]) else None

    def warn_unheard(self) -> None:
        """Warn that a call of the client was answered without a request through its HTTP client."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"calls of a recorded {self.kind} do not go through the HTTP client that is listened to: "
                 "they are not kept")  # fmt: skip

    def warn_if_silent(self) -> None:
        """Warn at the end of a recording without a single request: the program must have used another client."""
        if not self._count and not self._has_warned:
            self._has_warned = True
            warn(f"a recorded {self.kind} has made no request: if something was said, then through another client")


def _has_field(body: bytes, name: str) -> bool:
    try:
        return name in msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:  # it is no request of this dialect
        return False


class RecordedExchange:
    """One request that was sent, and its response, as an `Exchange`."""

    def __init__(self, recorder: Recorder, place: Place) -> None:
        self._recorder = recorder
        self._place = place
        place.recorded.expect_answer(place)
        self._partial: PartialAnswer | None = None
        self._events = Events()
        self._body: list[bytes] = []
        self._is_broken = False

    def repeat(self) -> "RecordedExchange":
        """The exchange of the same request, which the SDK sends again. Its question is kept already."""
        return RecordedExchange(self._recorder, self._place)

    def fail(self) -> None:
        """Note that no answer will come: the question may be asked again."""
        self._settle()

    def _settle(self) -> None:
        self._place.recorded.settle(self._place)

    def head(self, content_type: str) -> None:
        if content_type.startswith("text/event-stream"):
            self._partial = self._recorder.open_partial(self._place, self._recorder.dialect.assembly())

    def feed(self, data: bytes) -> None:
        if self._partial is None:
            self._body.append(data)
            return
        try:
            for event in self._events.feed(data):
                self._partial.feed(event)
        except HithertoError as error:  # the caller still gets the stream
            if not self._is_broken:
                warn(f"a stream could not be understood from here on: {error}")
            self._is_broken = True

    def is_complete(self) -> bool:
        """Has the provider marked the end of a stream? What follows in it says nothing more."""
        return self._partial is not None and not self._is_broken and self._partial.answer().complete

    def end(self) -> None:
        """Keep the response, or as much of it as has come. An error here becomes a warning: the caller has paid for the
        answer and must get it."""
        try:
            if self._partial is not None:
                self._end_stream(self._partial)
            else:
                self._end_body(b"".join(self._body))
        except HithertoError as error:
            warn(f"an answer could not be understood: {error}")
        finally:
            self._settle()

    def _end_stream(self, partial: PartialAnswer) -> None:
        for event in self._events.finish():
            partial.feed(event)
        answer = partial.answer()
        complete = answer.complete and not self._is_broken
        partial.close(keep=not complete)
        if complete:
            self._recorder.answer(self._place, add_unread(answer, self._events.unread))

    def _end_body(self, data: bytes) -> None:
        answer = parse_response(self._recorder.dialect, data)
        if answer is not None and answer.complete:  # an incomplete answer is asked for again later
            self._recorder.answer(self._place, answer)
