"""A cache of the requests that were sent last: a later request may continue one of them.

Each entry knows where the body holds its history, and where that history ends in the tree of its conversation. As long
as the tree has only grown below that position, or beside it, a request that begins with the same bytes continues from
there: `Recorder.go_on` compares only the messages after it.

The cache holds whole bodies, so their number and their bytes are bounded. When the recorder forgets a conversation, the
cache drops its requests.
"""

import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from ..model import Setup
from ._body import Body
from ._history_match import Position

if TYPE_CHECKING:
    from ._recorded_conversation import RecordedConversation

_MAX_REQUESTS = 256  # as many as the conversations that a recorder knows
_MAX_BYTES = 32 << 20


class SentRequest(Struct, frozen=True, eq=False):
    """A request that was sent, and whose whole history is kept."""

    body: Body
    lead: list[dict[str, object]]  # the entries at its head that are no messages: system prompts
    setup: Setup  # as it is kept
    model: str | None  # if the path of the request names it
    recorded: "RecordedConversation"
    position: Position


class SentRequests:
    """The cache of one recorder. The latest request is at the end."""

    def __init__(self, max_requests: int = _MAX_REQUESTS, max_bytes: int = _MAX_BYTES) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._requests: dict[SentRequest, None] = {}
        self._bytes = 0

    def find(self, data: bytes) -> SentRequest | None:
        """The longest of the requests whose history this body begins with."""
        with self._lock:
            requests = list(self._requests)
        found = [request for request in requests if request.body.begins(data)]
        return max(found, key=lambda request: request.body.end, default=None)

    def add(self, request: SentRequest) -> None:
        with self._lock:
            self._requests[request] = None
            self._bytes += len(request.body.data)
            while len(self._requests) > self._max_requests or self._bytes > self._max_bytes:
                self._drop(next(iter(self._requests)))

    def remove(self, request: SentRequest) -> None:
        with self._lock:
            self._drop(request)

    def forget(self, recorded: "RecordedConversation | None" = None) -> None:
        """Forget the requests of a conversation; without one, all of them."""
        with self._lock:
            for request in [one for one in self._requests if recorded is None or one.recorded is recorded]:
                self._drop(request)

    def _drop(self, request: SentRequest) -> None:
        if self._requests.pop(request, request) is None:
            self._bytes -= len(request.body.data)
