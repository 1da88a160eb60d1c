"""The retention floor: a minimum for which conversations are kept, whatever policies, expiries and callers say.

It is part of the description of the workspace, beside the policy, which is the maximum. The days count from the last
interaction, and of what was imported from the import, as those of a policy do. They go by the clock that sweeps trust
(`_erasure.schedule`), so a clock that jumps ahead frees nothing. A caller may destroy earlier, by name and with a
reason (`accountability`), which is then in the report and in the erasure ledger.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..accountability import current
from ..backend import ConversationRow
from ..errors import BelowFloor, Damaged, InvalidArgument
from ..events import FloorChanged, warn
from ..ids import show_conversation_id
from ..model import to_datetime
from .bodies import WorkspaceMeta, open_meta

if TYPE_CHECKING:
    from .engine import Engine

LONGEST_DAYS = 36_500
_DAY = 86_400 * 1_000_000  # microseconds
_DATED = 1_577_836_800_000_000  # an earlier clock has lost its time; as in `retention`


def floor_of(engine: "Engine") -> int | None:
    """Read the floor of the workspace, in days; None if there is none."""
    engine.workspace.refresh()
    return engine.workspace.meta.floor_days or None


def set_floor(engine: "Engine", days: int | None) -> None:
    """Set the floor, as `Store.set_retention_floor` documents."""
    if days is not None and (type(days) is not int or not 1 <= days <= LONGEST_DAYS):
        raise InvalidArgument(f"a retention floor is 1 to {LONGEST_DAYS:,} days, a whole number, or None")
    actor, before = current(), [0]

    def make(meta: WorkspaceMeta) -> WorkspaceMeta:
        before[0] = meta.floor_days
        if (days or 0) < meta.floor_days and (actor is None or not actor.why):
            hint = "with hitherto.acting(name, why=…): store.set_retention_floor(…)"
            raise InvalidArgument("a retention floor is lowered by name, and with a reason", hint=hint)
        check_order(meta.retention_days, days or 0)
        return replace(meta, floor_days=days or 0)

    engine.workspace.describe(make)
    if (days or 0) != before[0]:
        now = to_datetime(engine.clock())
        engine.listeners.emit(FloorChanged(now, days, before[0] or None, actor))
        if (days or 0) < before[0]:
            warn(f"the retention floor was lowered from {before[0]} days to {days or 'none'}")


def check_order(policy_days: int, floor_days: int) -> None:
    """Raise `InvalidArgument` if a policy would destroy what the floor keeps. 0: there is none."""
    if policy_days and policy_days < floor_days:
        what = f"a policy of {policy_days} days destroys what a floor of {floor_days} days keeps"
        raise InvalidArgument(what, hint="a policy has at least as many days as the floor")


def is_below_floor(engine: "Engine", row: ConversationRow) -> bool:
    """Return True if a conversation is younger than the floor."""
    meta = engine.workspace.meta
    if not meta.floor_days:
        return False
    now = engine.schedule.now()
    since = max(row.active_at, _imported_at(engine, row))
    if since < _DATED:  # that cannot be: as in `retention`
        since = meta.undated.get(row.id, now)
    return now < since + meta.floor_days * _DAY


def _imported_at(engine: "Engine", row: ConversationRow) -> int:
    try:
        return open_meta(engine.codec.envelope(row), row).imported
    except Damaged:
        return 0


def check_floor(engine: "Engine", row: ConversationRow) -> None:
    """Raise `BelowFloor` for a conversation that is younger than the floor, unless the caller overrides it."""
    if is_below_floor(engine, row) and not is_overridden():
        days = engine.workspace.meta.floor_days
        raise BelowFloor(f"conversation {show_conversation_id(row.id)} is younger than the floor of {days} days")


def is_overridden() -> bool:
    """Return True if the caller destroys below the floor, by name and with a reason."""
    actor = current()
    return actor is not None and actor.override_floor
