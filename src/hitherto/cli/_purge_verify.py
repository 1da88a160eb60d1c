"""`hitherto verify`, `purge` and `quarantine`: prove that the store is sound, and destroy conversations for good.

A command that destroys lists its targets first, and asks. `verify` and the lists change nothing, even if they find
damage.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from .. import errors
from .._system.terminal_text import escape_control_characters
from ._completion import complete_ids
from ._conversation import parse_metadata
from ._exit_codes import BUSY, UNSOUND
from ._ids import find_conversation, is_message
from ._options import accountable, without_asking
from ._output import Meter, confirm, count_of, paint, print_json, print_lines
from ._purge_person import purge_fields, purge_person, report_purges
from ._store_options import Place, with_place
from ._terminal import line, moment, say, width

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..reports import PurgeReport, VerifyReport
    from ..store import Store

_REASONS = ("user-requested", "retention-expired", "privacy-policy-change", "workspace-reset", "corruption-detected")


@click.command(short_help="Read everything, and check that it is sound.")
@click.option("--bundle", metavar="FOLDER", help="Check a folder that hitherto export --manifest wrote, and no store.")
@click.option("--digest", metavar="SHA256", help="With --bundle: what the export printed.")
@click.option("--note", is_flag=True, help="If it is sound, keep the time in the store, for the viewer to show.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def verify(place: Place, bundle: str | None, digest: str | None, note: bool, as_json: bool) -> int:
    """Read everything and derive it again: trees, sequence, sizes, checksums, attachments, and in a sealed store what
    proves that nothing was changed, moved or put back. Nothing is written without --note. Problems are exit code 7;
    without problems, conversations that other processes kept busy are exit code 9."""
    if bundle is not None:
        from ._bundle import verify_bundle  # noqa: PLC0415  # help needs none

        return verify_bundle(bundle, digest, as_json=as_json)
    opened = place.open(maintenance=False) if note else place.read()
    with opened as store, Meter("reading", "conversation") as meter:
        report = store.verify(progress=meter, note=note)
    if as_json:
        print_json(verify_fields(report))
    else:
        print_lines(
            f"{paint(word, 'red')} {escape_control_characters(str(problem))}"
            for word, some in (("problem", report.problems), ("unread", report.unread))
            for problem in some
        )
    word = f"{len(report.problems)} problems" if report.problems else "sound as far as it was read"
    word = "sound" if report.ok else word
    say(f"{word}: {count_of(report.conversations, 'conversation')}, {count_of(report.messages, 'message')}")
    if report.unread:
        say("other processes use the store: try again when they are done")
    return verify_code(report)


def verify_code(report: "VerifyReport") -> int:
    """Return the exit code for a report. Problems take precedence over busy conversations."""
    return UNSOUND if report.problems else BUSY if report.unread else 0


def verify_fields(report: "VerifyReport") -> dict[str, object]:
    """Return a report of `verify` as JSON fields."""
    problems, unread = (
        [{"what": p.what, "conversation": p.conversation, "message": p.message} for p in some]
        for some in (report.problems, report.unread)
    )
    counts = {"ok": report.ok, "conversations": report.conversations, "messages": report.messages}
    return counts | {"problems": problems, "unread": unread}


@click.command(short_help="Destroy a conversation for good.")
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_ids)
@click.option("--participant", metavar="ID", help="Every conversation whose record has this participant.")
@click.option(
    "--metadata",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Every conversation whose metadata has this pair. Repeatable: all of them.",
)
@click.option("--key-prefix", metavar="TEXT", help="Every conversation whose key begins so.")
@click.option(
    "--reason", type=click.Choice(_REASONS), default=_REASONS[0], show_default=True, help="The reason, for the report."
)
@without_asking
@click.option("--dry-run", is_flag=True, help="Only report what would be destroyed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a conversation; without ID one in all.")
@click.option("--override-floor", is_flag=True, help="Also what is younger than the retention floor: --why.")
@accountable
@with_place
def purge(
    place: Place,
    ids: tuple[str, ...],
    participant: str | None,
    pairs: tuple[str, ...],
    key_prefix: str | None,
    reason: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Destroy the conversation ID with all its branches, and take its bytes out of the files, search words included.
    The id of a message is refused: hitherto conversation delete is for messages.

    In place of ID, --participant, --metadata and --key-prefix select everything of one person, of every kind, expired
    or not: conversations that fit all of them.

    The plan is shown, and asked for; without a terminal --yes is needed. A conversation on hold stays: exit
    code 5, or 1 if it was selected. Copies that were made (backups, exports, snapshots) are files of their own, and
    stay.
    """
    metadata = parse_metadata(pairs)
    is_selected = participant is not None or bool(pairs) or key_prefix is not None
    if ids and is_selected:
        raise click.UsageError("ids name conversations, and --participant, --metadata and --key-prefix select them")
    if is_selected:
        return purge_person(
            place, (participant, metadata, key_prefix), reason, yes=yes, dry_run=dry_run, as_json=as_json
        )
    if not ids:
        raise click.UsageError("give an ID, or say whose: --participant, --metadata or --key-prefix")
    with place.read() if dry_run else place.open() as store:
        talks = list({talk.id: talk for talk in (_find_whole(store, id) for id in ids)}.values())
        for talk in talks:
            say(_plan(talk))
        held = [talk for talk in talks if talk.held]
        if held:
            raise errors.Held(f"conversation {held[0].id} is on hold")
        if dry_run:
            return 0
        confirm("Destroy this for good?" if len(talks) == 1 else f"Destroy these {len(talks)} for good?", yes=yes)
        reports = [_destroy(store, talk, reason, alone=len(talks) == 1) for talk in talks]
        pending = any(report.scrub_pending for report in reports) and not store.scrub()
    if as_json:
        for talk, report in zip(talks, reports, strict=True):
            print_json(purge_fields(talk.id, report, pending))
    return report_purges(reports, pending, place)


def _find_whole(store: "Store", id: str) -> "Conversation":
    """Return the conversation to destroy. Refuse the id of a message, because the user may mean that message alone."""
    talk = find_conversation(store, id)
    if is_message(id, talk):
        what = f"{talk.at} is a message of conversation {talk.id[:8]}, and a purge destroys conversations"
        raise click.UsageError(f"{what}; hitherto conversation delete deletes messages")
    return talk


def _destroy(store: "Store", talk: "Conversation", reason: str, *, alone: bool) -> "PurgeReport":
    """Purge one conversation.

    One of several may fail, because another process has put it on hold, for example. Then the report names the failure
    and the loop continues. Errors of the store itself end the command."""
    from ..events import PurgeFailure  # noqa: PLC0415  # help needs none
    from ..reports import PurgeReport  # noqa: PLC0415  # as above

    started = datetime.now(UTC)
    try:
        return store.purge(talk, reason=reason)
    except (errors.Held, errors.NotFound, errors.Damaged) as error:
        if alone:
            raise
        failed = (PurgeFailure(talk.id, str(error)),)
        return PurgeReport(reason, started, datetime.now(UTC), 0, failed)


def _plan(talk: "Conversation") -> str:
    """Return one line that describes a conversation to be destroyed."""
    ends = len(talk.branches())
    title = f" {talk.title}" if talk.title else ""
    what = f"{count_of(talk.count, 'message')}, {count_of(ends, 'branch')}"
    return line(f"{talk.id[:8]}{title}: {what}, last active {moment(talk.active_at)}", width())


@click.group(short_help="Records that were found damaged or tampered with.")
def quarantine() -> None:
    """Records that do not read back as what was written, though the key is right. They are given out nowhere."""


@quarantine.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_place
def list_quarantine(place: Place, as_json: bool) -> None:
    """The records that are in quarantine, in the order in which they were noticed."""
    with place.read() as store:
        found = store.quarantine()
    if as_json:
        for one in found:
            print_json({"at": one.at, "conversation": one.conversation, "message": one.message, "problem": one.problem})
        return
    print_lines(
        line(f"{moment(one.at)} {one.conversation}{f'/{one.message}' if one.message else ''}: {one.problem}", width())
        for one in found
    )
    if not found:
        say("nothing is in quarantine")


@quarantine.command("purge")
@click.option(
    "--older-than", "days", type=click.FloatRange(0, 100_000), default=0.0,
    help="Only records that have been there for this many days.",
)  # fmt: skip
@without_asking
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
@accountable
@with_place
def purge_quarantine(place: Place, days: float, yes: bool, as_json: bool) -> int:
    """Destroy what is in quarantine: a message with all that stands below it, or a conversation.

    A record that can be read again by now, because it was restored, is released instead.
    """
    with place.open() as store:
        found = _count_old(store, days)
        say(f"{count_of(found, 'record')} would be destroyed, with the messages below")
        if not found:
            return 0
        confirm("Destroy what is in quarantine?", yes=yes)
        report = store.purge_quarantine(older_than_seconds=days * 86_400)
    if as_json:
        print_json(purge_fields(None, report, report.scrub_pending))
    return report_purges([report], report.scrub_pending, place)


def _count_old(store: "Store", days: float) -> int:
    before = datetime.now(UTC) - timedelta(days=days)
    return sum(one.at <= before for one in store.quarantine())
