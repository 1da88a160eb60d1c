"""Retention: how long conversations are kept, decided before anything is done.

A policy says after how many days without a word a conversation goes. What that means for each one follows from the
conversation, the policy and the time alone: a **plan**, which says whether it goes or stays, and why. Nothing is read
and nothing is destroyed here. Whoever sweeps asks `decide` once more, about the conversation as it is in the moment in
which it would go.

Age is counted from the last interaction, so a conversation from the future is young. An expiry of its own outranks the
policy, and is a promise that was made for this one: when it has come the conversation goes, even where no policy is
set. A hold outranks both, and what is being recorded is not touched. The reason that a plan names is the one that
decides: a conversation on hold that is not due anyway stays because it is not due.

A last interaction from before there was anybody to talk to is the work of a clock that had lost its time. How old such
a conversation is nobody knows; it is counted from when a sweep saw it first.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal

from msgspec import Struct

from .errors import InvalidArgument
from .events import PurgeFailure
from .model import from_datetime

SHORTEST_DAYS, LONGEST_DAYS = 1, 3650
RECOMMENDED_DAYS = range(7, 180 + 1)
DATED = datetime(2020, 1, 1, tzinfo=UTC)  # nobody talked to a model before
_NEVER = datetime.max.replace(tzinfo=UTC)

Action = Literal["keep", "purge"]
Reason = Literal["expired", "own-expiry", "recent", "undated", "held", "being-recorded", "damaged", "off"]


class RetentionPolicy(Struct, frozen=True):
    """How many days after the last interaction a conversation is kept: 1 to 3,650. 7 to 180 are recommended."""

    days: int = 30

    def __post_init__(self) -> None:
        if type(self.days) is not int or not SHORTEST_DAYS <= self.days <= LONGEST_DAYS:
            what = f"conversations are kept for {SHORTEST_DAYS} to {LONGEST_DAYS:,} days, a whole number"
            raise InvalidArgument(what, hint=_RECOMMENDED)

    @property
    def warning(self) -> str | None:
        """Why the number of days is not a recommended one; None if it is."""
        if self.days in RECOMMENDED_DAYS:
            return None
        if self.days < RECOMMENDED_DAYS.start:
            return f"conversations go after {_days(self.days)} without a word: {_RECOMMENDED}"
        return f"conversations stay for {_days(self.days)} after the last word: {_RECOMMENDED}"


_RECOMMENDED = f"{RECOMMENDED_DAYS.start} to {RECOMMENDED_DAYS.stop - 1} days are recommended"


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count:,} days"


class Candidate(Struct, frozen=True, gc=False):
    """What a plan has to know of a conversation."""

    conversation: str
    active_at: datetime | None  # None: it is damaged, and nobody knows
    expires_at: datetime | None = None  # of its own
    held: bool = False
    recorded: bool = False  # an answer is on its way into it
    seen_at: datetime | None = None  # by a sweep, for the first time; only of one whose time cannot be right


class SweepItem(Struct, frozen=True, gc=False):
    """What becomes of one conversation, and why."""

    conversation: str
    active_at: datetime | None  # None: it is damaged, and nobody knows
    expires_at: datetime | None  # when it is due: by its own expiry, or else by the policy; None: never
    action: Action
    reason: Reason

    def __str__(self) -> str:
        return f"{self.action} {self.conversation}: {_why(self)}"


class SweepPlan(Struct, frozen=True):
    """What a sweep would do: what goes comes first, then what stays, each by when it is due."""

    policy: RetentionPolicy | None
    now: datetime
    items: tuple[SweepItem, ...]

    @property
    def purges(self) -> tuple[SweepItem, ...]:
        """What goes."""
        return tuple(item for item in self.items if item.action == "purge")

    @property
    def held(self) -> tuple[SweepItem, ...]:
        """What would go, but is on hold."""
        return tuple(item for item in self.items if item.reason == "held")

    def explain(self) -> str:
        """The plan in words: one line in all, then one for each conversation."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The same, line by line."""
        counted = Counter(item.reason for item in self.items)
        if self.policy is None and not counted.keys() & {"own-expiry", "held", "being-recorded"}:
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
    """What a sweep did."""

    policy: RetentionPolicy | None
    started_at: datetime
    completed_at: datetime
    swept: tuple[str, ...]  # ids of what was purged
    skipped: tuple[tuple[str, str], ...] = ()  # id and reason: due by the plan, and there still, or gone without us
    failures: tuple[PurgeFailure, ...] = ()
    scrub_pending: bool = False  # a reader delays the removal of the last bytes from the files; `scrub` finishes it
    reason: str = "retention-expired"
    behind_seconds: float = 0.0  # the clock ran ahead, and was not believed: it went by a time so much earlier

    @property
    def purged_count(self) -> int:
        return len(self.swept)


def plan(candidates: Iterable[Candidate], policy: RetentionPolicy | None, now: datetime) -> SweepPlan:
    """What becomes of these conversations under this policy.

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
    """What becomes of one conversation."""
    id, active = one.conversation, one.active_at
    young: Reason = "recent"
    old: Reason = "expired"
    if active is None:
        return SweepItem(id, None, one.expires_at, "keep", "damaged")
    if one.expires_at is not None:
        due, young, old = one.expires_at, "own-expiry", "own-expiry"
    elif policy is None:
        return SweepItem(id, active, None, "keep", "off")
    elif active < DATED <= now:
        due, young = _later(one.seen_at or now, policy.days), "undated"
    else:
        due = _later(active, policy.days)
    if due > now:
        return SweepItem(id, active, due, "keep", young)
    if one.held or one.recorded:
        return SweepItem(id, active, due, "keep", "held" if one.held else "being-recorded")
    return SweepItem(id, active, due, "purge", old)


_ASIDE: dict[Reason, str] = {  # what the first line says beside what goes
    "held": "due, but on hold",
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
        "undated": f"last active {active}, which cannot be; counted from when a sweep saw it first, due {due}",
        "held": f"on hold, due since {due}",
        "being-recorded": f"an answer is being recorded, due since {due}",
        "damaged": "damaged, nobody knows how old it is",
        "off": "retention is off",
    }[item.reason]


def _many(count: int) -> str:
    return f"{count:,} conversation{'' if count == 1 else 's'}"


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"
