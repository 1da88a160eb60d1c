"""When sweeps happen by themselves: as a store is opened, every six hours from then on, and at once when the policy is
tightened. A store that is open learns of a policy that others set when it writes next: it looks at the workspace's row
every few seconds then.

One process at a time does it. Whoever finds something that is due takes a lease in the workspace's row (`_lease`); the
others leave it alone until that ends, and look again afterwards, so one that was killed stops nobody. Who finds nothing
writes nothing.

What a wrong clock would purge is gone for good, so the clock is not believed when it runs ahead of another one that
nobody can set: the one that counts since the machine was booted. It is compared with how both stood when the store was
opened, and, within one boot, when any process first looked. A clock that was set back keeps things longer. What cannot
be told is how long a machine was switched off: after a boot the clock is believed, unless it stands before the last
thing that was said. Then it is plainly behind, and nothing is compared with it until it has been put right.
"""

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .. import _forks
from .._engine.bodies import WorkspaceMeta
from .._engine.lease import Lease
from ..backend import Where
from ..errors import Closed, StorageFull
from ..events import warn
from ..model import to_datetime

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from ..retention import RetentionPolicy, SweepReport

EVERY = 6 * 3600 * 1_000_000  # microseconds
_AGAIN = 300 * 1_000_000  # after something went wrong
_DATED = 1_577_836_800_000_000  # a clock that says less has lost its time; as in `retention`
_TOLERANCE = 60 * 1_000_000  # by so much clocks may differ, and nothing is written or said about it
_FIRST_LOOK = 60 * 1_000_000  # after the store was opened: later, what was said last may be of a clock that jumped


class Ticks:
    """The clock that counts since the machine was booted, also while it sleeps, where there is such a one."""

    @cached_property
    def boot(self) -> str:
        """Which boot; empty: unknown, and what other processes counted cannot be compared."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:  # not Linux, or it is hidden here
            return ""

    def now(self) -> int:
        """Microseconds."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        return time.monotonic_ns() // 1000


def ticks_beside(*, machine: bool) -> Ticks | None:
    """What to compare a store's clock with: nothing, if it is not that of the machine."""
    return Ticks() if machine else None


class Schedule:
    """When one store sweeps."""

    def __init__(self, engine: "Engine", *, machine: bool, never: bool) -> None:
        """`machine`: the store's clock is that of the machine. `never`: it does nothing by itself."""
        self._ref = weakref.ref(engine)  # weak, or the store would be freed late, and anywhere
        self._ticks = ticks_beside(machine=machine)
        self._never = never
        self._lease = Lease(engine, "sweeper")
        self._first: tuple[int, int] | None = None  # how the clocks stood when the store was opened
        self._least = _DATED  # a clock that says less is plainly behind
        self._looked = self._warned = False
        self._setting = False  # a policy, so that nobody need be told of it
        self._next = 0  # by the clock that nobody sets
        self._news = 0  # how often something was heard: a sweep that was at it meanwhile is not the last word
        self._stand(engine.clock())

    @property
    def _engine(self) -> "Engine":
        engine = self._ref()
        if engine is None:
            raise Closed("the store is gone")
        return engine

    @property
    def is_wanted(self) -> bool:
        """Can anything be due at all, as far as we know?"""
        meta = self._engine.workspace.meta
        return not self._never and bool(meta.retention_days or meta.expiring)

    def is_due(self) -> bool:
        """Is it time to look? Also where nothing can be due as far as we know: others may have set a policy."""
        return not self._never and self._counted() >= self._next

    def heard(self) -> None:
        """There is another policy, or a conversation has an expiry of its own for the first time."""
        engine = self._ref()
        if engine is not None and not self._setting:
            self._news += 1
            self._next = 0
            engine.background.watch()

    def _counted(self) -> int:
        return time.monotonic_ns() // 1000 if self._ticks is None else self._ticks.now()

    # -- the clock

    def now(self) -> int:
        """The time, as far as the clock can be believed."""
        wall = self._engine.clock()
        if self._ticks is None:
            return wall
        then, at = self._stand(wall)
        ticks, seen = self._ticks.now(), self._engine.workspace.meta.clocks
        bound = wall if wall < self._least else min(wall, at + ticks - then)
        if seen is not None and seen[0] == self._ticks.boot:
            bound = min(bound, seen[2] + ticks - seen[1])
        return bound

    def _stand(self, wall: int) -> tuple[int, int]:
        """How the clocks stood when the store was opened, or when the time could first be right."""
        if self._first is None and self._ticks is not None and wall >= self._least:
            self._first = self._ticks.now(), wall
        return self._first or (0, wall)

    @property
    def behind_seconds(self) -> float:
        """By how much the time that sweeps go by is earlier than the clock says, if that is worth a word."""
        late = self._engine.clock() - self.now()
        return late / 1_000_000 if late > _TOLERANCE else 0.0

    def _look(self) -> None:
        """Did the clock stand before what was said last, when the store was opened?"""
        if self._looked or self._ticks is None or self._first is None:
            return
        self._looked = True
        then, at = self._first
        newest = self._engine.backend.page(Where(), None, 1)
        if newest and newest[0].at > at + _TOLERANCE and self._ticks.now() - then < _FIRST_LOOK:
            self._least, self._first = newest[0].at, None

    def add_clocks(self, meta: WorkspaceMeta) -> WorkspaceMeta:
        """The same, and how the clocks stand, for other processes of this boot, unless they know already."""
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
            with suppress(StorageFull):  # then nobody can say anything, and what goes makes room
                self._engine.workspace.describe(self.add_clocks, always=True)
        if (late := self.behind_seconds) and not self._warned:
            self._warned = True
            hours = f"{late / 3600:,.1f} hours"
            warn(f"the clock was put forward by {hours} since the boot: sweeps go by the time of before")

    # -- sweeping

    def sweep(self, go_on: Callable[[], bool]) -> None:
        """Purge what is due, if nobody else is at it. `go_on` says no when the store is closed."""
        self._next = self._counted() + _AGAIN
        with _forks.still:
            self._engine.workspace.refresh()
        news = self._news
        outdated = self.is_wanted and self._sweep(go_on)
        self._next = self._counted() + (0 if outdated or news != self._news else self._pause())

    def _sweep(self, go_on: Callable[[], bool]) -> bool:
        """Was there another policy before it was done?"""
        from .sweep import Sweep, as_policy  # noqa: PLC0415  # stores without a policy need none

        self._engine.workspace.check_policy()
        policy = as_policy(self._engine.workspace.meta.retention_days)
        with _forks.still:
            self._compare()
        now = to_datetime(self.now())
        job = Sweep(self._engine, policy, now, lambda: go_on() and self._lease.take(), lambda: _forks.still)
        try:
            job.sweep(go_on)
        finally:
            with _forks.still:
                self._lease.release()
        if job.met is not None:
            raise job.met
        return job.outdated

    def _pause(self) -> int:
        until = self._lease.others()
        return EVERY if until is None else until - self._engine.clock()

    def expect_expiry(self) -> None:
        """A conversation is about to have an expiry of its own: from now on stores look for that, too."""
        if not self._engine.workspace.meta.expiring:
            self._engine.workspace.describe(lambda meta: replace(self.add_clocks(meta), expiring=True))

    def set_policy(self, policy: "RetentionPolicy | None") -> "SweepReport | None":
        """Keep this policy, and go by it at once if more is due by it than before."""
        from .sweep import set_policy, sweep_due  # noqa: PLC0415  # as above

        report = None
        self._setting = True  # or the thread would do what is done here, and the report would not name it
        try:
            if set_policy(self._engine, policy) and not self._never:
                report = sweep_due(self._engine, policy, self.now())
                self._next = self._counted() + (_AGAIN if report.failures else EVERY)
        finally:
            self._setting = False
        self._engine.background.watch()
        return report
