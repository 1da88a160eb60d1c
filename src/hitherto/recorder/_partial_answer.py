"""Keep a partial of an answer while it streams in.

One thread feeds the pieces. A timer thread keeps the answer so far, at most `seconds` after the first piece that is not
kept yet. So no piece waits for the store, and a stream that stalls is kept as far as it came.
"""

import threading
from collections.abc import Callable, Mapping

from .._system.interrupts import uninterruptible
from ..dialects import Answer, Assembly
from ..dialects._lossless import keepable_answer
from ..errors import HithertoError
from ..events import warn


class PartialAnswer:
    """An assembly that is kept while it grows. Feed it, and close it."""

    def __init__(
        self, assembly: Assembly, keep: Callable[[Answer], None], seconds: float, last: dict[object, Callable[[], None]]
    ) -> None:
        """The store calls the functions in `last` before it is closed: the answer so far is kept then, too."""
        self._assembly = assembly
        self._keep = keep
        self._last = last
        self._last[self] = self._flush
        self._seconds = seconds
        self._lock = threading.Lock()  # of the assembly
        self._keep_lock = threading.Lock()  # so that no older state is kept after a newer one
        self._timer: threading.Timer | None = None
        self._is_closed = False

    def feed(self, event: Mapping[str, object]) -> str:
        with uninterruptible(), self._lock:
            piece = self._assembly.feed(event)
            if self._timer is None and not self._is_closed:
                self._timer = threading.Timer(self._seconds, self._flush)
                self._timer.daemon = True
                self._timer.start()
        return piece

    def answer(self) -> Answer:
        with self._lock:
            return keepable_answer(self._assembly.answer())

    def _flush(self, *, last: bool = False) -> None:
        with self._keep_lock:
            with self._lock:
                self._timer = None
                if self._is_closed and not last:
                    return
                answer = keepable_answer(self._assembly.answer())
            if answer.messages:
                try:
                    self._keep(answer)
                except HithertoError as error:  # the answer itself is still on its way, and matters more
                    warn(f"an answer on its way could not be kept: {type(error).__name__}")

    def close(self, *, keep: bool = False) -> None:
        """End the assembly. `keep` writes the partial once more, because no complete answer will replace it."""
        with uninterruptible():
            self._close(keep=keep)

    def _close(self, *, keep: bool) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._last.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
        if keep:
            self._flush(last=True)
        else:
            with self._keep_lock:  # a partial that is being kept now must not come after the answer
                pass
