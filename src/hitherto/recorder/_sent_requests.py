"""The requests that were sent last, each of which a later one may go on from.

Of each is known where its body has its history, and where that history ends in the tree of its conversation. As long as
the tree has only grown below that place, or beside it, a request that begins with the same bytes stands there as well:
`Recorder.go_on` begins to compare from there on.

Bodies are held as they were sent, so their number and their bytes are bounded. A conversation that the recorder lets go
of takes its requests along.
"""

import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from ..model import Setup
from ._body import Body
from ._history_match import Position

if TYPE_CHECKING:
    from ._recorder import Kept

_REQUESTS = 256  # as many as there are conversations that a recorder has at hand
_BYTES = 32 << 20


class SentRequest(Struct, frozen=True, eq=False):
    """A request that was sent, all of whose history is kept."""

    body: Body
    lead: list[dict[str, object]]  # the entries at its head that are no messages: system prompts
    setup: Setup  # as it is kept
    model: str | None  # if the path of the request names it
    kept: "Kept"
    position: Position


class SentRequests:
    """The memory of one recorder, the latest request at the end."""

    def __init__(self, max_requests: int = _REQUESTS, max_bytes: int = _BYTES) -> None:
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

    def forget(self, kept: "Kept | None" = None) -> None:
        """Forget the requests of a conversation; without one, all of them."""
        with self._lock:
            for request in [one for one in self._requests if kept is None or one.kept is kept]:
                self._drop(request)

    def _drop(self, request: SentRequest) -> None:
        if self._requests.pop(request, request) is None:
            self._bytes -= len(request.body.data)
