"""`hitherto purge` without ids: destroy everything of one person, by participant, metadata or key; and the report of a
purge.

The conversations are listed, and asked for. Only listed ones are destroyed then: one that began to match after the list
was shown is named, and the command has to be run again. With --yes nobody was asked about a list, so it goes, too.
"""

from typing import TYPE_CHECKING

from ._output import Meter, confirm, count_of, print_json, print_lines
from ._store_options import Place
from ._terminal import line, moment, say, width

if TYPE_CHECKING:
    from .._erasure.by_person import Given
    from ..reports import PurgePlan, PurgeReport, PurgeTarget
    from ..store import Store

_FIRST = 10  # conversations to list before asking
_STAYS = {
    "held": "it is on hold",
    "floor": "it is younger than the retention floor",
    "damaged": "it cannot be read, so nobody knows whether it matches",
}
_NEW = "it began to match after the plan was shown: run the command again"


def purge_person(place: Place, given: "Given", reason: str, *, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Destroy the conversations that match, after asking. Return the exit code."""
    participant, metadata, key_prefix = given
    with place.read() if dry_run else place.open(maintenance=False) as store:
        plan = store.plan_purge(participant=participant, metadata=metadata, key_prefix=key_prefix)
        if dry_run:
            return _print_plan(plan, as_json=as_json)
        if not plan.targets:
            say("nothing matches")
        _list(plan)
        if plan.purges:
            many = len(plan.purges)
            confirm("Destroy this for good?" if many == 1 else f"Destroy these {many} for good?", yes=yes)
        report = _destroy(store, None if yes else plan, given, reason)
        pending = report.scrub_pending and not store.scrub()
    if as_json:
        print_json(purge_fields(None, report, pending))
    else:
        print_lines(report.purged)
    return report_purges([report], pending, place)


def _destroy(store: "Store", plan: "PurgePlan | None", given: "Given", reason: str) -> "PurgeReport":
    """Destroy the conversations of the plan, or all that match. Those that match by then and stay are failures."""
    from msgspec.structs import replace  # noqa: PLC0415  # help needs none

    from .._erasure.by_person import carry_out, plan_purge, purge_matching  # noqa: PLC0415  # as above
    from ..events import PurgeFailure  # noqa: PLC0415  # as above

    with Meter("destroying", "conversation") as meter:
        if plan is None:
            return purge_matching(store.engine, given, reason, meter)
        report = carry_out(store.engine, plan, given, reason, meter)
    for target in plan.purges:
        if target.conversation not in (*report.purged, *(failure.id for failure in report.failures)):
            say(f"left alone: {target.conversation}: it matches no more, or another process destroyed it")
    known = {target.conversation for target in plan.targets}
    later = [target.conversation for target in plan_purge(store.engine, given).purges]
    new = [PurgeFailure(id, _NEW) for id in later if id not in known]
    return replace(report, failures=(*report.failures, *new))


def _list(plan: "PurgePlan") -> None:
    for target in (*plan.purges[:_FIRST], *plan.stays):
        say(_describe(target))
    if len(plan.purges) > _FIRST:
        say(f"and {len(plan.purges) - _FIRST} more; --dry-run prints them all")


def _describe(target: "PurgeTarget") -> str:
    """Return one line that describes a conversation to be destroyed, or why it stays."""
    title = f" {target.title}" if target.title else ""
    kind = "" if target.kind == "chat" else f"{target.kind}, "
    active = "" if target.active_at is None else f", last active {moment(target.active_at)}"
    what = f"{target.conversation}{title}: {kind}{count_of(target.messages, 'message')}{active}"
    return line(what if target.stays is None else f"stays: {target.conversation}: {_STAYS[target.stays]}", width())


def _print_plan(plan: "PurgePlan", *, as_json: bool) -> int:
    if as_json:
        print_json({"would_purge": len(plan.purges), "conversations": plan.targets})
    else:
        print_lines(map(_describe, plan.targets))
        say(f"would be destroyed: {count_of(len(plan.purges), 'conversation')}" if plan.targets else "nothing matches")
    return 0


def purge_fields(id: str | None, report: "PurgeReport", pending: bool) -> dict[str, object]:
    """Return a report as JSON fields."""
    return {
        "conversation": id,
        "reason": report.reason,
        "started_at": report.started_at,
        "completed_at": report.completed_at,
        "purged": report.purged_count,
        "ids": report.purged,
        "actor": report.actor,
        "failures": [{"id": failure.id, "error": failure.error} for failure in report.failures],
        "scrub_pending": pending,
    }


def report_purges(reports: "list[PurgeReport]", pending: bool, place: Place) -> int:
    """Print what was destroyed and what stays. Return the exit code."""
    failures = [failure for report in reports for failure in report.failures]
    for id, why in failures:
        say(f"stays: {id}: {why}")
    say(f"destroyed: {count_of(sum(report.purged_count for report in reports), 'conversation')}")
    if pending and place.is_server:
        say("the server has not vacuumed its tables yet: until it does, the bytes are in its files, and in its log")
    elif pending:
        say("a reader still holds some of the bytes: they leave the files when it is done, or at the next opening")
    return 1 if failures else 0
