"""Watching how commits go: when writing is not tried for a while, and when it has become slow.

More writes do not help a disk that fails each of them, and each writer waits for the failure. So
after a few failures in a row the breaker **opens**: writes are refused at once. When a while has passed one write is
let through, alone (the breaker is **half-open**): if it succeeds, writing goes on; if it fails, the next while is twice
as long. Only failures of the infrastructure count. A full disk, a lock held by another process and a conflict do not.

The pace is that of the last commits: too slow is when one in twenty takes longer than it should.

Both know nothing of commits, and get their clock from the caller.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

FAILURES = 5  # in a row
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0  # for which writing is not tried
PROBE_SECONDS = 60.0  # after which a probe without a result is given up
SLOW_SECONDS = 0.15
_WINDOW = 100  # commits
_FEWEST = 20  # of which one in twenty can be told
_AGAIN_SECONDS = 60.0  # after which it is said again

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


class Breaker:
    """Decides whether a write may be tried, by the results of the last ones. Used by many threads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[str, int], None] = lambda _, __: None,
    ) -> None:
        """`changed` is called with each new state and the number of failures, in the order of the states."""
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._pause = FIRST_SECONDS
        self._until = 0.0  # when the next write may be tried, unless it is closed
        self.state = CLOSED
        self.failures = 0  # in a row

    def refusal(self, *, look: bool = False) -> float | None:
        """Return for how many seconds writes are refused; None if this one may be tried. While other writes are
        refused, it is the probe, unless the caller only wants to `look`."""
        if self.state == CLOSED:
            return None
        with self._lock:
            left = self._until - self._clock()
            if self.state == CLOSED:
                return None
            if left > 0:
                return left if self.state == OPEN else min(left, self._pause)
            if not look:
                self._turn(HALF_OPEN, PROBE_SECONDS)
            return None

    def _turn(self, state: str, seconds: float = 0.0) -> None:
        self.state, self._until = state, self._clock() + seconds
        self._changed(state, self.failures)

    def record_success(self) -> None:
        """Note that a write was committed, or refused for a reason other than the infrastructure."""
        with self._lock:
            self.failures, self._pause = 0, FIRST_SECONDS
            if self.state != CLOSED:
                self._turn(CLOSED)

    def record_failure(self) -> None:
        """Note that the infrastructure failed a write."""
        with self._lock:
            if self.state == OPEN:  # a write that ignores the breaker was tried all the same
                return
            self.failures += 1
            if self.state == HALF_OPEN:
                self._pause = min(2 * self._pause, LONGEST_SECONDS)
            if self.state == HALF_OPEN or self.failures >= FAILURES:
                self._turn(OPEN, self._pause)

    def withdraw_probe(self) -> None:
        """Let another write be the probe: this one was never tried."""
        with self._lock:
            if self.state == HALF_OPEN:
                self._turn(OPEN)


class Pace:
    """How quick the last commits were. Used by the thread that commits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: deque[float] = deque(maxlen=_WINDOW)
        self._slow = 0  # of them
        self._said: float | None = None

    def record_duration(self, seconds: float) -> float | None:
        """Note how long a commit took. Return the p95 of the last commits if it is too long and was not returned within
        the last minute."""
        last = self._last
        if len(last) == _WINDOW and last[0] > SLOW_SECONDS:
            self._slow -= 1
        last.append(seconds)
        if seconds > SLOW_SECONDS:
            self._slow += 1
        if not self._slow or 20 * self._slow <= len(last) or len(last) < _FEWEST:
            return None
        now = self._clock()
        if self._said is not None and now - self._said < _AGAIN_SECONDS:
            return None
        self._said = now
        return sorted(last)[-1 - len(last) // 20]
