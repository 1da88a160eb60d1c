"""`hitherto retention`: how long conversations are kept, and the purge of those that are due.

The policy is kept in the store. A process that has the store open for writing purges due conversations in the
background. These commands turn that off, so that they can list the due conversations with the reasons, ask, and then
destroy them. Only listed conversations are destroyed: the sweep carries out the very plan that was shown. A policy that
makes more conversations due is confirmed in the same way.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from .. import errors
from ._options import accountable, without_asking
from ._output import Meter, confirm, print_json, print_lines
from ._store_options import Place, with_place
from ._terminal import line, say

if TYPE_CHECKING:
    from ..retention import RetentionPolicy, SweepPlan, SweepReport
    from ..store import Store

_FIRST = 10  # conversations to list before asking
_TITLE = 40  # columns
_DAYS = click.IntRange(1, 3650)
_FLOOR = click.IntRange(1, 36_500)
_STAYS = {
    "held": "on hold",
    "floor": "younger than the retention floor",
    "being-recorded": "an answer is being recorded",
    "recent": "it became active meanwhile",
    "gone": "another process destroyed it",
    "policy-changed": "another policy was set meanwhile",
}


@click.group(short_help="How long conversations are kept.")
def retention() -> None:
    """How long conversations are kept after the last word in them. Without a policy, for ever."""


@retention.command("show", short_help="The policy, and how many conversations are due.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def show_policy(place: Place, as_json: bool) -> None:
    """Print the policy of the store, and how many conversations are due now."""
    with place.read() as store:
        plan, behind = store.plan_sweep(), store.engine.schedule.behind_seconds
        floor = store.retention_floor
    days = None if plan.policy is None else plan.policy.days
    due, held = len(plan.purges), len(plan.held)
    if as_json:
        print_json({"days": days, "conversations": len(plan.items), "due": due, "held": held, "floor_days": floor})
    elif days is None:
        also = f", but {due} with an expiry of their own that has passed" if due else ""
        click.echo(f"off: everything is kept{also}")
    else:
        also = f"; {held} more due, but on hold" if held else ""
        click.echo(f"{days} days after the last word\n{due} of {len(plan.items)} conversations are due now{also}")
    if floor is not None and not as_json:
        click.echo(f"nothing is destroyed in the first {floor} days after the last word")
    if behind and not as_json:
        what = f"the clock was put forward by {behind / 3600:,.1f} hours since the machine was booted"
        say(f"{what}: background sweeps use the old time; hitherto retention run uses the clock")


def _parse_floor(ctx: click.Context, param: click.Parameter, given: str) -> int | None:
    return None if given.lower() == "off" else _FLOOR.convert(given, param, ctx)  # type: ignore[arg-type]  # as below


@retention.command("floor", short_help="Set the minimum, or remove it.")
@click.argument("days", callback=_parse_floor, metavar="DAYS|off")
@accountable
@with_place
def set_floor(place: Place, days: int | None) -> None:
    """Destroy nothing in the first DAYS days after the last word: no sweep, no purge, no delete of messages. `off`
    removes it. To lower it takes --actor and --why.

    hitherto purge --override-floor destroys earlier, for a reason.
    """
    with place.open(maintenance=False) as store:
        store.set_retention_floor(days)


def _parse_days(ctx: click.Context, param: click.Parameter, given: str) -> int | None:
    return None if given.lower() == "off" else _DAYS.convert(given, param, ctx)  # type: ignore[arg-type]  # it takes text


@retention.command("set", short_help="Set the policy, or turn it off.")
@click.argument("days", default="30", callback=_parse_days, metavar="[DAYS|off]")
@without_asking
@accountable
@with_place
def set_(place: Place, days: int | None, yes: bool) -> int:
    """Keep conversations for DAYS days after the last word in them: 1 to 3,650, 30 without a number. `off` keeps all. 7
    to 180 days are recommended; other numbers are taken with a warning.

    The policy is part of the store: each process that has it open to write destroys what is due. The conversations that
    would go at once are shown, and asked for, before the policy is set.
    """
    from ..retention import RetentionPolicy  # noqa: PLC0415  # help needs none

    with place.open(maintenance=False) as store:
        policy = None if days is None else RetentionPolicy(days)
        _warn(policy)
        plan = store.plan_sweep(policy) if policy is not None else None
        if plan is None or not plan.purges:
            store.engine.schedule.set_policy(policy)  # the warning was printed already
            return 0
        _ask(store, plan, yes=yes, more=f"hitherto retention run --days {days} --dry-run")
        store.engine.schedule.set_policy(policy)
        return _carry_out(store, plan, given=False, as_json=False)


@retention.command("run", short_help="Destroy due conversations.")
@click.option("--days", type=_DAYS, help="By this many days, in place of the store's policy.")
@click.option("--dry-run", is_flag=True, help="Only print the plan, with reasons.")
@without_asking
@click.option("--json", "as_json", is_flag=True, help="One JSON object; with --dry-run one a conversation.")
@accountable
@with_place
def run(place: Place, days: int | None, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Destroy for good the conversations that are due, with their branches, attachments and search words.

    The plan is shown, and asked for; without a terminal --yes is needed. A conversation on hold stays, and so
    does one that becomes active meanwhile. An interrupted run goes on when it is run again.
    """
    from ..retention import RetentionPolicy  # noqa: PLC0415  # as above

    with place.read() if dry_run else place.open(maintenance=False) as store:
        policy = None if days is None else RetentionPolicy(days)
        _warn(policy)
        plan = store.plan_sweep(policy)
        if plan.policy is None and not plan.purges and not plan.held:
            hint = "hitherto retention set DAYS sets one for the store, --days DAYS is for this once"
            raise errors.InvalidArgument("no policy is set, and no conversation has expired", hint=hint)
        if not dry_run:
            return _confirm_and_sweep(store, plan, yes=yes, as_json=as_json, given=days is not None)
        if not as_json:
            print_lines(_lines(store, plan))
        for item in plan.items if as_json else ():
            print_json(item)
        return 0


def _warn(policy: "RetentionPolicy | None") -> None:
    """Print the policy's warning before the user is asked."""
    if policy is not None and (warning := policy.warning):
        say(f"warning: {warning}")


def _lines(store: "Store", plan: "SweepPlan") -> Iterator[str]:
    """Yield the plan in words, with the titles of the due conversations."""
    words = plan.lines()
    yield next(words)
    for item, text in zip(plan.items, words, strict=True):
        due = item.action == "purge" or item.reason == "held"
        yield f"{text}: {_title(store, item.conversation)}".removesuffix(": ") if due else text


def _title(store: "Store", id: str) -> str:
    try:
        return line(store.conversation(id).title, _TITLE)
    except errors.HithertoError:  # it was destroyed meanwhile, or cannot be read
        return ""


def _confirm_and_sweep(store: "Store", plan: "SweepPlan", *, yes: bool, as_json: bool, given: bool = True) -> int:
    """List the conversations to be destroyed, ask, and destroy them."""
    if plan.purges:
        _ask(store, plan, yes=yes, more="--dry-run")
    return _carry_out(store, plan, given=given, as_json=as_json)


def _ask(store: "Store", plan: "SweepPlan", *, yes: bool, more: str) -> None:
    """List the conversations to be destroyed, and ask."""
    many = len(plan.purges)
    for text in islice(_lines(store, plan), 1 + min(_FIRST, many)):
        say(text)
    if many > _FIRST:
        say(f"and {many - _FIRST} more; {more} prints them all")
    confirm("Destroy it for good?" if many == 1 else f"Destroy these {many} for good?", yes=yes)


def _carry_out(store: "Store", plan: "SweepPlan", *, given: bool, as_json: bool) -> int:
    from .._erasure.sweep import carry_out  # noqa: PLC0415  # as above

    with Meter("destroying", "conversation") as meter:
        report = carry_out(store.engine, plan, meter, given=given)
    if as_json:
        print_json(_sweep_fields(report))
    for id, why in (*report.skipped, *report.failures):
        say(f"left alone: {id}: {_STAYS.get(why, why)}")
    say(f"destroyed: {report.purged_count}" if plan.purges else "nothing to destroy")
    if report.scrub_pending:
        say("the last bytes leave the files when the present readers are done, or at the next opening")
    return 1 if report.failures else 0


def _sweep_fields(report: "SweepReport") -> dict[str, object]:
    from msgspec.structs import asdict  # noqa: PLC0415  # as above

    skipped = [{"id": id, "reason": why} for id, why in report.skipped]
    failures = [{"id": id, "error": why} for id, why in report.failures]
    fields = asdict(report) | {"skipped": skipped, "failures": failures}
    del fields["behind_seconds"]  # for background sweeps only
    return fields
