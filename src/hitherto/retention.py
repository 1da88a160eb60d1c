"""Retention: decide how long conversations are kept.

A policy says after how many inactive days a conversation is purged. A **plan** follows from the conversations, the
policy and the time alone: it says of each conversation whether it is purged or kept, and why. This module reads nothing
and destroys nothing. A sweep calls `decide` once more for the current state of each conversation before it purges it.

Age is counted from the last interaction, so a conversation from the future is young. An expiry of its own outranks the
policy: it is a promise for this conversation, which is purged then even if no policy is set. A hold and the
retention floor outrank both, and a conversation that is being recorded is never purged. A plan names the reason that
decides: a conversation on hold that is not due is kept because it is not due.

The age of an imported conversation counts from its import: otherwise a sweep would destroy on the same day what was
rescued.

A last interaction from before the first models was written by a clock with a wrong time. The true age of such a
conversation is unknown; it is counted from the first sweep that saw it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal

from msgspec import Struct

from .accountability import Actor
from .errors import InvalidArgument
from .events import PurgeFailure
from .model import from_datetime

__all__ = ["RetentionPolicy", "SweepItem", "SweepPlan", "SweepReport"]

SHORTEST_DAYS, LONGEST_DAYS = 1, 3650
RECOMMENDED_DAYS = range(7, 180 + 1)
DATED = datetime(2020, 1, 1, tzinfo=UTC)  # there were no chats with models before
_NEVER = datetime.max.replace(tzinfo=UTC)

Action = Literal["keep", "purge"]
Reason = Literal[
    "expired", "own-expiry", "recent", "imported", "undated", "held", "floor", "being-recorded", "damaged", "off"
]  # fmt: skip


class RetentionPolicy(Struct, frozen=True):
    """The number of days that a conversation is kept after its last interaction: 1 to 3,650. 7 to 180 are
    recommended."""

    days: int = 30

    def __post_init__(self) -> None:
        if type(self.days) is not int or not SHORTEST_DAYS <= self.days <= LONGEST_DAYS:
            what = f"conversations are kept for {SHORTEST_DAYS} to {LONGEST_DAYS:,} days, a whole number"
            raise InvalidArgument(what, hint=_RECOMMENDED)

    @property
    def warning(self) -> str | None:
        """A warning if the number of days is not a recommended one; None if it is."""
        if self.days in RECOMMENDED_DAYS:
            return None
        if self.days < RECOMMENDED_DAYS.start:
            return f"conversations go after {_days(self.days)} without a word: {_RECOMMENDED}"
        return f"conversations stay for {_days(self.days)} after the last word: {_RECOMMENDED}"


_RECOMMENDED = f"{RECOMMENDED_DAYS.start} to {RECOMMENDED_DAYS.stop - 1} days are recommended"


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count:,} days"


class Candidate(Struct, frozen=True, gc=False):
    """The facts about a conversation that a plan needs."""

    conversation: str
    active_at: datetime | None  # None: unknown, because it is damaged
    expires_at: datetime | None = None  # of its own
    held: bool = False
    recorded: bool = False  # an answer is being recorded into it
    seen_at: datetime | None = None  # by the first sweep; only if its last interaction cannot be right
    imported_at: datetime | None = None  # when it was last brought in from a file of another program
    protected: bool = False  # it is younger than the retention floor


class SweepItem(Struct, frozen=True, gc=False):
    """The decision about one conversation, with its reason."""

    conversation: str
    active_at: datetime | None  # None: unknown, because it is damaged
    expires_at: datetime | None  # when it is due: by its own expiry, or else by the policy; None: never
    action: Action
    reason: Reason

    def __str__(self) -> str:
        return f"{self.action} {self.conversation}: {_why(self)}"


class SweepPlan(Struct, frozen=True):
    """The plan of a sweep: first the conversations to purge, then those to keep, each by the time when they are due."""

    policy: RetentionPolicy | None
    now: datetime
    items: tuple[SweepItem, ...]

    @property
    def purges(self) -> tuple[SweepItem, ...]:
        """The conversations to purge."""
        return tuple(item for item in self.items if item.action == "purge")

    @property
    def held(self) -> tuple[SweepItem, ...]:
        """The conversations that are due, but on hold."""
        return tuple(item for item in self.items if item.reason == "held")

    def explain(self) -> str:
        """The plan as text: one summary line, then one line for each conversation."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The lines of `explain`."""
        counted = Counter(item.reason for item in self.items)
        if self.policy is None and not counted.keys() & {"own-expiry", "held", "floor", "being-recorded"}:
            yield f"Retention is off: no policy is set, and everything is kept ({_many(len(self.items))})."
            return
        rule = "an expiry of their own, no policy is set"
        if self.policy is not None:
            rule = f"{self.policy.days} days without a word"
        said = f"{len(self.purges)} of {_many(len(self.items))} to purge: {rule}"
        for reason, words in _ASIDE.items():
            if counted[reason]:
                said += f"; {counted[reason]} {words}"
        yield f"{said}. It is {_moment(self.now)} UTC."
        yield from map(str, self.items)


class SweepReport(Struct, frozen=True):
    """The result of a sweep."""

    policy: RetentionPolicy | None
    started_at: datetime
    completed_at: datetime
    swept: tuple[str, ...]  # ids of the conversations that were purged
    skipped: tuple[tuple[str, str], ...] = ()  # id and reason: due by the plan, but kept, or deleted by another process
    failures: tuple[PurgeFailure, ...] = ()
    scrub_pending: bool = False  # a reader delays the removal of bytes from the files; `scrub` finishes it
    reason: str = "retention-expired"
    actor: Actor | None = None  # on whose behalf; None: the store did it by itself, or nobody was named
    behind_seconds: float = 0.0  # how far the clock was ahead of the time that the sweep trusted

    @property
    def purged_count(self) -> int:
        return len(self.swept)


def plan(candidates: Iterable[Candidate], policy: RetentionPolicy | None, now: datetime) -> SweepPlan:
    """Decide about these conversations under this policy.

    >>> old, new = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
    >>> found = plan([Candidate("a", old), Candidate("b", old, held=True), Candidate("c", new)], RetentionPolicy(), new)
    >>> [(item.conversation, item.action, item.reason) for item in found.items]
    [('a', 'purge', 'expired'), ('b', 'keep', 'held'), ('c', 'keep', 'recent')]
    """
    from_datetime(now, "now")
    items = [decide(one, policy, now) for one in candidates]
    items.sort(key=lambda item: (item.action != "purge", item.expires_at or _NEVER, item.conversation))
    return SweepPlan(policy, now, tuple(items))


def decide(one: Candidate, policy: RetentionPolicy | None, now: datetime) -> SweepItem:
    """Decide about one conversation."""
    id, active = one.conversation, one.active_at
    young: Reason = "recent"
    old: Reason = "expired"
    if active is None:
        return SweepItem(id, None, one.expires_at, "keep", "damaged")
    if one.expires_at is not None:
        due, young, old = one.expires_at, "own-expiry", "own-expiry"
    elif policy is None:
        return SweepItem(id, active, None, "keep", "off")
    elif one.imported_at is not None and one.imported_at > active:
        active, young = one.imported_at, "imported"
        due = _later(active, policy.days)
    elif active < DATED <= now:
        due, young = _later(one.seen_at or now, policy.days), "undated"
    else:
        due = _later(active, policy.days)
    if due > now:
        return SweepItem(id, active, due, "keep", young)
    if one.held or one.recorded:
        return SweepItem(id, active, due, "keep", "held" if one.held else "being-recorded")
    if one.protected:
        return SweepItem(id, active, due, "keep", "floor")
    return SweepItem(id, active, due, "purge", old)


_ASIDE: dict[Reason, str] = {  # the words of the summary line for other reasons
    "held": "due, but on hold",
    "floor": "due, but younger than the retention floor",
    "being-recorded": "due, but being recorded",
    "damaged": "damaged, and kept",
}


def _later(time: datetime, days: int) -> datetime:
    try:
        return time + timedelta(days=days)
    except OverflowError:
        return _NEVER


def _why(item: SweepItem) -> str:
    active = "" if item.active_at is None else _moment(item.active_at)
    due = "" if item.expires_at is None else _moment(item.expires_at)
    if item.reason == "own-expiry":
        return f"an expiry of its own, {'since' if item.action == 'purge' else 'not before'} {due}"
    return {
        "expired": f"last active {active}, due since {due}",
        "recent": f"last active {active}, due {due}",
        "imported": f"imported {active}, due {due}",
        "undated": f"last active {active}, which cannot be; counted from when a sweep saw it first, due {due}",
        "held": f"on hold, due since {due}",
        "floor": f"younger than the retention floor, due since {due}",
        "being-recorded": f"an answer is being recorded, due since {due}",
        "damaged": "damaged, nobody knows how old it is",
        "off": "retention is off",
    }[item.reason]


def _many(count: int) -> str:
    return f"{count:,} conversation{'' if count == 1 else 's'}"


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"
