"""An answer on its way: what has come of it is kept while it comes.

The pieces are fed in one thread; another one, woken by a timer, keeps what has come so far at most `seconds` after the
piece that brought it. So the store is never waited for between two pieces, and a stream that stalls is kept as far as
it got.
"""

import threading
from collections.abc import Callable, Mapping

from ..dialects import Answer, Assembly
from ..dialects._lossless import keepable_answer
from ..errors import HithertoError
from ..events import warn


class Arriving:
    """An assembly that keeps what it has. Feed it, and close it."""

    def __init__(
        self, assembly: Assembly, keep: Callable[[Answer], None], seconds: float, last: dict[object, Callable[[], None]]
    ) -> None:
        """`last` is what the store calls before it is closed: what has come is kept then, too."""
        self._assembly = assembly
        self._keep = keep
        self._last = last
        self._last[self] = self._flush
        self._seconds = seconds
        self._lock = threading.Lock()  # of the assembly
        self._keeping = threading.Lock()  # so that nothing old is kept after something new
        self._timer: threading.Timer | None = None
        self._closed = False

    def feed(self, event: Mapping[str, object]) -> str:
        with self._lock:
            piece = self._assembly.feed(event)
            if self._timer is None and not self._closed:
                self._timer = threading.Timer(self._seconds, self._flush)
                self._timer.daemon = True
                self._timer.start()
        return piece

    def answer(self) -> Answer:
        with self._lock:
            return keepable_answer(self._assembly.answer())

    def _flush(self, *, last: bool = False) -> None:
        with self._keeping:
            with self._lock:
                self._timer = None
                if self._closed and not last:
                    return
                answer = keepable_answer(self._assembly.answer())
            if answer.messages:
                try:
                    self._keep(answer)
                except HithertoError as error:  # the answer itself is still on its way, and is what counts
                    warn(f"an answer on its way could not be kept: {type(error).__name__}")

    def close(self, *, keep: bool = False) -> None:
        """No more will come. What there is is kept, if it is all there will be."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._last.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
        if keep:
            self._flush(last=True)
        else:
            with self._keeping:  # one that is being kept now must not come after the answer
                pass
