"""`hitherto rescue`: what programs on this machine keep, brought into the user's own store.

Programs delete conversations by age. This command says what there is, what will be deleted soon, asks, and brings it
in; again, it brings in only what is new. With `--watch` it goes on until Ctrl+C.

A folder's own store is never used unless it is named: sessions of all projects come in.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING

import click

from .. import errors
from .._system.terminal_text import escape_control_characters
from ._exit_codes import PARTIAL
from ._export_import import details, print_unreadable
from ._options import without_asking
from ._output import Meter, count_of, print_json
from ._stats import size
from ._store_options import Place, with_place
from ._terminal import is_terminal, moment, say

if TYPE_CHECKING:
    from pathlib import Path

    from ..formats import Loaded
    from ..rescue import Rescue, RescuePlace
    from ..store import Store


@click.command(short_help="Bring in what programs on this machine keep, before they delete it.")
@click.option("--explain", is_flag=True, help="Only say what is there, and what would be brought in.")
@click.option("--dry-run", is_flag=True, help="The same.")
@click.option("--watch", is_flag=True, help="Go on: bring in what is new, until Ctrl+C.")
@click.option("--from", "programs", metavar="NAMES", help="Only these programs, such as claude-code,codex.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="Only files changed since that day.")
@click.option("--even-purged", is_flag=True, help="Also what was purged or deleted here, which stays away otherwise.")
@without_asking
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each place.")
@with_place
def rescue(
    place: Place,
    explain: bool,
    dry_run: bool,
    watch: bool,
    programs: str | None,
    since: datetime | None,
    even_purged: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Find the conversations that other programs keep on this machine, say what would be brought in and what is about
    to be deleted, and bring it into your own store. Again, only what is new comes. What a program deletes stays here.

    The store is that of --store or HITHERTO_STORE, else your own, never that of a folder. If something cannot be read,
    the rest comes in, and the exit code is 8. One process at a time watches for a store: a second one ends with 9.
    """
    from ..rescue import Rescue  # noqa: PLC0415  # help needs none

    names = [name.strip() for name in (programs or "").split(",") if name.strip()]
    dry = explain or dry_run
    with ExitStack() as stack:
        store = stack.enter_context(_open(_own(place), dry=dry))
        work = Rescue(store, programs=names, since=since.astimezone() if since else None)
        job = _Job(work, even_purged=even_purged, as_json=as_json)
        if dry or not (yes or watch):
            planned = job.plan()
            if dry or not planned:
                return 0
            _ask()
        if watch:
            stack.enter_context(work.watch_alone())
        code = job.bring_in()
        if watch:
            job.follow()
        return code


def _ask() -> None:
    """Ask whether to bring it in; abort unless the answer is yes. Without a terminal --yes is required."""
    if not is_terminal(sys.stdin):
        raise click.UsageError("there is no terminal to ask on: --yes brings it in, --explain only says what there is")
    say("Bring this in? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


def _own(place: Place) -> Place:
    """Return the user's own store, if the place is only that of a folder."""
    if place.named_by != "a .hitherto folder":
        return place
    from .._system import config_file  # noqa: PLC0415  # help needs none
    from .._system.locations import own_location  # noqa: PLC0415  # as above

    location = own_location(config_file.load())
    return Place(location, "the user's data directory", place.workspace, place.key, place.sanitise)


def _open(place: Place, *, dry: bool) -> "Store":
    """Open the store, which is made if need be. A dry run writes nothing, not even a store."""
    if not dry:
        return place.open(create=True)
    try:
        return place.read()
    except errors.CannotOpen as error:
        if place.is_server and not error.missing:
            raise
        return Place("memory:", "", "default", None).open(create=True)


class _Job:
    """One command: plans, brings in, and tells."""

    def __init__(self, work: "Rescue", *, even_purged: bool, as_json: bool) -> None:
        self._work, self._even_purged, self._as_json = work, even_purged, as_json

    def plan(self) -> bool:
        """Say what there is. Returns False if there is nothing to bring in."""
        some = False
        for place in self._work.places():
            with Meter(place.title, "message") as meter:
                report = self._work.bring_in(place, dry_run=True, even_purged=self._even_purged, progress=meter)
            some = some or bool(report.messages or report.amended or report.new)
            self._tell(place, report, dry=True)
        if not some and not self._as_json:
            say("nothing new to bring in")
        return some

    def bring_in(self) -> int:
        """Bring in what has changed, and return the exit code."""
        code, some = 0, False
        for place in self._work.places():
            some = True
            report = self._bring_in(place)
            if report.unreadable:
                code = PARTIAL
            self._tell(place, report, dry=False)
        if not some and not self._as_json:
            say("none of the programs has files here")
        return code

    def follow(self) -> None:
        """Bring in what changes, and tell of news alone, until Ctrl+C."""
        named: dict[Path, Sequence[object]] = {}  # what could not be read, which is read again and named once
        for place in self._work.follow():
            report = self._bring_in(place)
            if report.messages or report.amended or named.get(place.folder, ()) != report.unreadable:
                self._tell(place, report, dry=False)
            named[place.folder] = report.unreadable

    def _bring_in(self, place: "RescuePlace") -> "Loaded":
        with Meter(place.title, "message") as meter:
            return self._work.bring_in(place, even_purged=self._even_purged, progress=meter)

    def _tell(self, place: "RescuePlace", report: "Loaded", *, dry: bool) -> None:
        if self._as_json:
            print_json(_record(place, report, dry=dry))
        else:
            for text in _lines(place, report, dry=dry):
                click.echo(escape_control_characters(text))
        where = f"{place.title}: "
        print_unreadable(report, where)
        for said in details(report, branches=False):
            say(where + said)


def _lines(place: "RescuePlace", report: "Loaded", *, dry: bool) -> Iterator[str]:
    yield f"{place.title}, {place.folder}"
    counts = [
        count_of(report.new, "new conversation"),
        count_of(report.messages, "message"),
        count_of(report.leaves, "end") + " of branches",
        count_of(report.subagents, "sub-agent"),
        f"{report.usage.total_tokens:,} tokens",
    ]
    known = f"; {count_of(report.known, 'message')} known" if report.known else ""
    yield f"  {'to bring in' if dry else 'brought in'}: {', '.join(counts)}{known}"
    yield f"  {count_of(place.files, 'file')}, {size(place.size)}"
    if place.going and place.first_going is not None:
        when = moment(place.first_going)
        yield f"  {count_of(place.going, 'file')} will be deleted by {place.title} within 7 days, from {when} on"


def _record(place: "RescuePlace", report: "Loaded", *, dry: bool) -> dict[str, object]:
    return {
        "program": place.program,
        "title": place.title,
        "folder": str(place.folder),
        "files": place.files,
        "size": place.size,
        "changed": len(place.changed),
        "going": place.going,
        "first_going": place.first_going,
        "new": report.new,
        "messages": report.messages,
        "known": report.known,
        "amended": report.amended,
        "leaves": report.leaves,
        "subagents": report.subagents,
        "tokens": report.usage.total_tokens,
        "purged": report.purged,
        "unknown": report.unknown,
        "bookkeeping": report.bookkeeping,
        "waiting": _names(report.waiting),
        "unreadable": _names(report.unreadable),
        "notes": report.notes,
        "dry_run": dry,
    }


def _names(some: Sequence[object]) -> list[dict[str, object]]:
    return [{"name": getattr(one, "name", ""), "reason": getattr(one, "reason", "")} for one in some]
