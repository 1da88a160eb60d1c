"""Watching how commits go: when writing is not tried for a while, and when it has become slow.

A disk that fails every write is not helped by more of them, and whoever writes waits each time for the failure. So
after a few failures in a row the breaker **opens**: writes are refused at once. When a while has passed one write is
let through, alone (the breaker is **half-open**): if it succeeds, writing goes on; if it fails, the next while is twice
as long. Only the infrastructure counts. A full disk, a lock that others hold and a conflict are answers, not failures.

The pace is that of the last commits: too slow is when one in twenty takes longer than it should.

Both know nothing of commits, and have the clock from whoever asks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

FAILURES = 5  # in a row
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0  # for which writing is not tried
PROBE_SECONDS = 60.0  # after which a probe that nobody has heard of is given up
SLOW_SECONDS = 0.15
_WINDOW = 100  # commits
_FEWEST = 20  # of which one in twenty can be told
_AGAIN_SECONDS = 60.0  # after which it is said again

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


class Breaker:
    """Says whether a write may be tried; is told how it went. Used by many threads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[str, int], None] = lambda _, __: None,
    ) -> None:
        """`changed` hears of every other state, and of how many failures there were, in the order of the states."""
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._pause = FIRST_SECONDS
        self._until = 0.0  # when the next write may be tried, unless it is closed
        self.state = CLOSED
        self.failures = 0  # in a row

    def refusal(self, *, look: bool = False) -> float | None:
        """For how many seconds writes are not tried; None: this one may be, and if others are not, it is the probe.
        Who only wants to `look` is none."""
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
        """A write was kept, or refused for a reason that is not the place where it goes."""
        with self._lock:
            self.failures, self._pause = 0, FIRST_SECONDS
            if self.state != CLOSED:
                self._turn(CLOSED)

    def record_failure(self) -> None:
        """A write failed because of the place where it goes."""
        with self._lock:
            if self.state == OPEN:  # one that asks nobody was tried all the same
                return
            self.failures += 1
            if self.state == HALF_OPEN:
                self._pause = min(2 * self._pause, LONGEST_SECONDS)
            if self.state == HALF_OPEN or self.failures >= FAILURES:
                self._turn(OPEN, self._pause)

    def withdraw_probe(self) -> None:
        """The probe was never tried: another write may be."""
        with self._lock:
            if self.state == HALF_OPEN:
                self._turn(OPEN)


class Pace:
    """How quick the last commits were. Used by whoever has the pen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: deque[float] = deque(maxlen=_WINDOW)
        self._slow = 0  # of them
        self._said: float | None = None

    def record_duration(self, seconds: float) -> float | None:
        """A commit took so long. The p95 of the last ones if that is too long, and it was not said within a minute."""
        last = self._last
        if len(last) == _WINDOW and last[0] > SLOW_SECONDS:
            self._slow -= 1
        last.append(seconds)
        if seconds > SLOW_SECONDS:
            self._slow += 1
        if 20 * self._slow <= len(last) or len(last) < _FEWEST:
            return None
        now = self._clock()
        if self._said is not None and now - self._said < _AGAIN_SECONDS:
            return None
        self._said = now
        return sorted(last)[-1 - len(last) // 20]
