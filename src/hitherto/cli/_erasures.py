"""`hitherto erasures`: the ledger of what was purged, and a file of it beside backups.

`keep` writes the file, and `replay` purges again what is in it and came back. `_restored` does the same within
`hitherto restore`.
"""

from typing import TYPE_CHECKING

import click

from ._options import accountable, without_asking
from ._output import Meter, confirm, print_json, print_lines
from ._purge_person import purge_fields, report_purges
from ._store_options import Place, with_place
from ._terminal import line, moment, say, width

if TYPE_CHECKING:
    from ..erasures import Entry


@click.group(short_help="What was purged, so that no backup brings it back.")
def erasures() -> None:
    """The ledger of what was purged: keyed hashes, times, reasons and actors, no content. No import brings back what is
    in it."""


@erasures.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_place
def list_entries(place: Place, as_json: bool) -> None:
    """Print the entries: when something was purged, why, and by whom, if that was said."""
    from ..erasures import entries  # noqa: PLC0415  # help needs none

    with place.read() as store:
        found = list(entries(store))
    if as_json:
        for one in found:
            print_json(one)
        return
    print_lines(line(_describe(one), width()) for one in found)
    if not found:
        say("nothing was purged")


def _describe(one: "Entry") -> str:
    return f"{moment(one.at)} {one.id[:8]} {one.reason}{f', by {one.actor}' if one.actor else ''}"


@erasures.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def keep(place: Place, file: str, as_json: bool) -> None:
    """Write the ledger to FILE, or bring FILE up to date: an entry that is in it stays. Keep it beside the backups, and
    run this after each purge."""
    from ..erasures import keep as keep_entries  # noqa: PLC0415  # help needs none

    with place.read() as store:
        count = keep_entries(store, file)
    if as_json:
        print_json({"file": file, "entries": count})
    else:
        say(f"{file}: {'1 entry' if count == 1 else f'{count:,} entries'}")


@erasures.command()
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@without_asking
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
@accountable
@with_place
def replay(place: Place, file: str, yes: bool, as_json: bool) -> int:
    """Purge again what is in FILE and came back: with a backup that was copied by hand, for example.

    FILE is refused as a whole if it was cut short or edited, or is of another workspace. A conversation that was
    brought back on purpose (--even-purged) stays; one on hold goes, because the hold is older than its purge.
    """
    from ..erasures import replay as replay_entries  # noqa: PLC0415  # help needs none

    with place.open(maintenance=False) as store:
        confirm(f"Destroy for good what is in {file}, and is back?", yes=yes)
        with Meter("comparing", "conversation") as meter:
            report = replay_entries(store, file, progress=meter)
        pending = report.purge.scrub_pending and not store.scrub()
    if as_json:
        print_json({**purge_fields(None, report.purge, pending), "entries": report.entries, "added": report.added})
    else:
        print_lines(report.purge.purged)
    say(f"entries: {report.entries:,}, of which the store did not have {report.added:,}")
    return report_purges([report.purge], pending, place)
