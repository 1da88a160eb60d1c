"""The schedule of automatic sweeps: when a store is opened, every six hours after that, and at once when the policy is
tightened. An open store learns of a policy set by another process at its next write, because writes read the
workspace's row every few seconds.

One process at a time sweeps. A process that finds due conversations takes a lease in the workspace's row
(`_engine.lease`). The other processes wait until the lease ends and then check again, so a killed process does not stop
sweeps for good. A process that finds none writes nothing.

A purge caused by a wrong clock cannot be undone. So the wall clock is not trusted if it runs ahead of the clock that
counts since boot, which cannot be set. Both are compared with their values when the store was opened and, within one
boot, with their values when any process first compared them. A wall clock that was set back only keeps conversations
longer. The time for which a machine was switched off cannot be measured: after a boot the wall clock is trusted, unless
it is earlier than the newest message. Then it is plainly behind, and is not used for comparisons until it is corrected.
"""

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.bodies import WorkspaceMeta
from .._engine.lease import Lease
from .._system import forks
from ..backend import Where
from ..errors import Closed, StorageFull
from ..events import warn
from ..model import to_datetime

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from ..retention import RetentionPolicy, SweepReport

EVERY = 6 * 3600 * 1_000_000  # microseconds
_AGAIN = 300 * 1_000_000  # after something went wrong
_DATED = 1_577_836_800_000_000  # an earlier clock has lost its time; as in `retention`
_TOLERANCE = 60 * 1_000_000  # smaller differences between clocks are ignored
_FIRST_LOOK = 60 * 1_000_000  # after opening; later the newest message may be from a clock that jumped


class Ticks:
    """The clock that counts since boot, also during sleep where the platform has such a clock."""

    @cached_property
    def boot(self) -> str:
        """The id of this boot. Empty if unknown: values of other processes cannot be compared then."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:  # not Linux, or it is hidden here
            return ""

    def now(self) -> int:
        """The microseconds since boot."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        return time.monotonic_ns() // 1000


def ticks_beside(*, machine: bool) -> Ticks | None:
    """Return the clock to compare a store's clock with, or None if the store does not use the machine's clock."""
    return Ticks() if machine else None


class Schedule:
    """Decides when one store sweeps."""

    def __init__(self, engine: "Engine", *, machine: bool, never: bool) -> None:
        """`machine`: the store uses the machine's clock. `never`: no automatic sweeps."""
        self._ref = weakref.ref(engine)  # weak, or the store would be freed late, and anywhere
        self._ticks = ticks_beside(machine=machine)
        self._never = never
        self._lease = Lease(engine, "sweeper")
        self._first: tuple[int, int] | None = None  # the clocks (ticks, wall) when the store was opened
        self._least = _DATED  # an earlier wall clock is plainly behind
        self._looked = self._warned = False
        self._setting = False  # this thread sets a policy: no notification needed
        self._next = 0  # time of the next check, by the clock since boot
        self._news = 0  # policy changes so far: one that comes during a sweep requires another sweep
        self._clocks_at_start(engine.clock())

    @property
    def _engine(self) -> "Engine":
        engine = self._ref()
        if engine is None:
            raise Closed("the store is gone")
        return engine

    @property
    def is_wanted(self) -> bool:
        """True if conversations can be due at all, by the description of the workspace that was read last."""
        meta = self._engine.workspace.meta
        return not self._never and bool(meta.retention_days or meta.expiring)

    def is_due(self) -> bool:
        """Return True if it is time to check. This ignores `is_wanted`: another process may have set a policy."""
        return not self._never and self._ticks_now() >= self._next

    def check_soon(self) -> None:
        """Check again soon: the policy changed, or a conversation has an expiry of its own for the first time."""
        engine = self._ref()
        if engine is not None and not self._setting:
            self._news += 1
            self._next = 0
            engine.background.watch()

    def _ticks_now(self) -> int:
        return time.monotonic_ns() // 1000 if self._ticks is None else self._ticks.now()

    # -- the clock

    def now(self) -> int:
        """The wall clock, limited by the clock since boot."""
        wall = self._engine.clock()
        if self._ticks is None:
            return wall
        then, at = self._clocks_at_start(wall)
        ticks, seen = self._ticks.now(), self._engine.workspace.meta.clocks
        bound = wall if wall < self._least else min(wall, at + ticks - then)
        if seen is not None and seen[0] == self._ticks.boot:
            bound = min(bound, seen[2] + ticks - seen[1])
        return bound

    def _clocks_at_start(self, wall: int) -> tuple[int, int]:
        """Return both clocks as they were when the store was opened, or when the wall clock was first plausible."""
        if self._first is None and self._ticks is not None and wall >= self._least:
            self._first = self._ticks.now(), wall
        return self._first or (0, wall)

    @property
    def behind_seconds(self) -> float:
        """How far the time that sweeps use is behind the wall clock; 0 within the tolerance."""
        late = self._engine.clock() - self.now()
        return late / 1_000_000 if late > _TOLERANCE else 0.0

    def _look(self) -> None:
        """Compare the clock at opening with the newest message, once. An earlier clock is not trusted."""
        if self._looked or self._ticks is None or self._first is None:
            return
        self._looked = True
        then, at = self._first
        newest = self._engine.backend.page(Where(), None, 1)
        if newest and newest[0].at > at + _TOLERANCE and self._ticks.now() - then < _FIRST_LOOK:
            self._least, self._first = newest[0].at, None

    def add_clocks(self, meta: WorkspaceMeta) -> WorkspaceMeta:
        """Return the description with the current clocks added, for other processes of this boot, unless the stored
        clocks are good."""
        self._look()
        wall = self._engine.clock()
        if self._ticks is None or not self._ticks.boot or wall < self._least:
            return meta
        boot, ticks, seen = self._ticks.boot, self._ticks.now(), meta.clocks
        if seen is None or seen[0] != boot or seen[2] + ticks - seen[1] > wall + _TOLERANCE:
            return replace(meta, clocks=(boot, ticks, self.now()))
        return meta

    def _compare(self) -> None:
        meta = self._engine.workspace.meta
        if self.add_clocks(meta) is not meta:
            with suppress(StorageFull):  # no writes are possible then, and the sweep frees space
                self._engine.workspace.describe(self.add_clocks, always=True)
        if (late := self.behind_seconds) and not self._warned:
            self._warned = True
            hours = f"{late / 3600:,.1f} hours"
            warn(f"the clock was put forward by {hours} since the boot: sweeps go by the time of before")

    # -- sweeping

    def sweep(self, go_on: Callable[[], bool]) -> None:
        """Purge what is due, unless another process holds the lease. `go_on` returns False when the store is closed."""
        self._next = self._ticks_now() + _AGAIN
        with forks.still:
            self._engine.workspace.refresh()
        news = self._news
        outdated = self.is_wanted and self._sweep(go_on)
        self._next = self._ticks_now() + (0 if outdated or news != self._news else self._pause())

    def _sweep(self, go_on: Callable[[], bool]) -> bool:
        """Sweep once. Returns True if the policy changed before the sweep was complete."""
        from .sweep import Sweep, as_policy  # noqa: PLC0415  # stores without a policy need none

        self._engine.workspace.check_policy()
        policy = as_policy(self._engine.workspace.meta.retention_days)
        with forks.still:
            self._compare()
        now = to_datetime(self.now())
        job = Sweep(self._engine, policy, now, lambda: go_on() and self._lease.take(), lambda: forks.still)
        try:
            job.sweep(go_on)
        finally:
            with forks.still:
                self._lease.release()
        if job.met is not None:
            raise job.met
        return job.is_outdated

    def _pause(self) -> int:
        until = self._lease.others()
        return EVERY if until is None else until - self._engine.clock()

    def expect_expiry(self) -> None:
        """Make stores look for expiries: a conversation is about to get an expiry of its own."""
        if not self._engine.workspace.meta.expiring:
            self._engine.workspace.describe(lambda meta: replace(self.add_clocks(meta), expiring=True))

    def set_policy(self, policy: "RetentionPolicy | None") -> "SweepReport | None":
        """Store this policy, and sweep at once if it is stricter than the old one. Returns the report of the sweep."""
        from .sweep import set_policy, sweep_due  # noqa: PLC0415  # as above

        report = None
        self._setting = True  # or the thread would sweep first, and the report here would be empty
        try:
            if set_policy(self._engine, policy) and not self._never:
                report = sweep_due(self._engine, policy, self.now())
                self._next = self._ticks_now() + (_AGAIN if report.failures else EVERY)
        finally:
            self._setting = False
        self._engine.background.watch()
        return report
