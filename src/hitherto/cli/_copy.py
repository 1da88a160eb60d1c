"""`hitherto copy`: copy a store into another one, on any backend.

There are two ways. Into a new or empty workspace the rows are copied as they are, sealed or not: the copy is the same
store (`hitherto.copying`). That is impossible if the target has another key or conversations of its own, or
if the sanitiser is to change messages. Then messages are read from the source and appended to the target.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import click

from .. import errors
from ._conversation_pages import iterate_conversations
from ._exit_codes import PARTIAL, UNSOUND
from ._export_import import open_for_long_read, print_unreadable, summarise
from ._output import Meter, count_of, print_json
from ._store_options import Place, key_from, place_of, warn_of_password
from ._terminal import print_error, say

if TYPE_CHECKING:
    from ..backend import Backend
    from ..copying import StoreCopy
    from ..formats import Loaded
    from ..store import Store

_MOST = 20  # problems to print


@dataclass(frozen=True)
class _Way:
    """The source, the target, and the options of a copy."""

    source: Place
    target: Place  # its key is None without --to-key
    in_clear: bool
    more: bool
    erasures: str | None
    even_purged: bool


@click.command(short_help="Copy a store into another one.")
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@click.option("--workspace", metavar="NAME", help="The workspace in both; if SRC has only another, that one.")
@click.option("--from-workspace", metavar="NAME", help="The workspace in SRC, exactly.  [default: --workspace]")
@click.option("--to-workspace", metavar="NAME", help="The workspace in DST.  [default: --workspace, or as in SRC]")
@click.option("--all-workspaces", is_flag=True, help="Every workspace of SRC, which is a file, under its own name.")
@click.option("--key", metavar="SOURCE", help="Where the key of SRC comes from; without it, what is sealed stays so.")
@click.option("--to-key", metavar="SOURCE", help="Where the key of DST comes from.  [default: that of SRC]")
@click.option("--in-clear", is_flag=True, help="Allow that what is sealed in SRC is plain in DST.")
@click.option("--more", is_flag=True, help="Leave DST closed for another run, which copies later messages.")
@click.option("--erasures", metavar="FILE", help="The erasure ledger of SRC: what is in it is purged from the copy.")
@click.option("--even-purged", is_flag=True, help="Also what was purged in DST, which stays away otherwise.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each workspace.")
def copy(source: str, target: str, key: str | None, to_key: str | None, as_json: bool, **asked: Any) -> int:
    """Copy the store SRC into the store DST, which is made if it is missing: files, or postgresql://…

    A workspace that is new or empty in DST gets all rows as they are: the same ids, sealed with the same key, which
    need not be given. It cannot be opened until all is there and was compared. Then it is verified, unless it is
    sealed and there is no key. A copy that was stopped goes on.

    With another key, or --in-clear, or into a workspace that has conversations, messages are copied: what is there is
    not added again, and what was purged there stays away. In the end the messages of each conversation are counted in
    both.

    A copy of rows has the erasure ledger of SRC. If SRC is a backup, --erasures FILE has what was purged since.

    If something differs, is missing or damaged, the exit code is 7.
    """
    above = click.get_current_context().find_root().params
    here = place_of(source, asked["workspace"] or above["workspace"], key or above["key"])
    here.require()
    warn_of_password(target)
    code = 0
    for ours, theirs in _workspaces(here, asked, explicit=bool(asked["workspace"] or above["workspace"])):
        there = Place(target, "DST", theirs, to_key, here.sanitise)
        way = _Way(
            replace(here, workspace=ours),
            there,
            asked["in_clear"],
            asked["more"],
            asked["erasures"],
            asked["even_purged"],
        )
        code = max(code, _copy_workspace(way, as_json))
    return code


def _workspaces(here: Place, asked: dict[str, Any], *, explicit: bool) -> list[tuple[str, str]]:
    """Return the pairs of workspaces to copy: the name in SRC and the name in DST."""
    from ..opening import workspaces_of  # noqa: PLC0415  # help needs none

    if asked["all_workspaces"]:
        if explicit or asked["from_workspace"] or asked["to_workspace"]:
            raise click.UsageError("--all-workspaces names them all")
        names = workspaces_of(here.location)
        if names is None:
            raise click.UsageError("the workspaces of a server are not listed: copy them one by one, by their names")
        return [(name, name) for name in names]
    explicit = explicit or here.workspace != "default"  # the environment or the configuration may name one, too
    ours = asked["from_workspace"] or here.workspace
    if explicit and not asked["from_workspace"]:
        names = workspaces_of(here.location)
        if names is not None and len(names) == 1 and ours not in names:
            say(f"SRC has no workspace {ours}: its only one, {names[0]}, is copied")
            ours = names[0]
    theirs = asked["to_workspace"] or (here.workspace if explicit else ours)
    return [(ours, theirs)]


def _copy_workspace(way: _Way, as_json: bool) -> int:
    """Copy one workspace and return the exit code."""
    from ..copying import obstacle, open_source, open_target  # noqa: PLC0415  # help needs none

    with ExitStack() as stack:
        backend, store = open_source(way.source.location, way.source.workspace, way.source.secret(), stack)
        if _is_as_it_is(way, backend, store):
            target = open_target(way.target.location, way.target.workspace, backend, store, stack)
            why = obstacle(backend, target, opened=store is not None)
            if why is None:
                return _by_row(way, backend, target, store, as_json)
            if store is None or way.more or way.erasures:
                hint = "--key opens SRC, so that messages can be copied; or copy into a new workspace: --to-workspace"
                raise errors.InvalidArgument(f"the rows cannot be copied as they are: {why}", hint=hint)
        elif way.more or way.erasures:
            raise click.UsageError("--more and --erasures are for rows that are copied as they are")
    return _by_message(way, as_json)


def _is_as_it_is(way: _Way, backend: "Backend", store: "Store | None") -> bool:
    """Return True if the options allow that rows are copied as they are."""
    from ..copying import key_id  # noqa: PLC0415  # help needs none

    ours = key_id(backend)
    if way.target.sanitise is not None or (ours is not None and way.in_clear):
        kept = False
    else:
        kept = way.target.key is None or key_from(way.target.key).id == ours
    if not kept and store is None:
        hint = "--key says where the key of SRC comes from"
        raise errors.KeyUnavailable("SRC is sealed, and has to be opened for that", hint=hint)
    return kept


# -- by row


def _by_row(way: _Way, source: "Backend", target: "Backend", store: "Store | None", as_json: bool) -> int:
    from ..copying import copy_rows  # noqa: PLC0415  # help needs none

    if way.erasures:
        _check_ledger(way.erasures, store)
    try:
        with Meter("copying", "message") as meter:
            done = copy_rows(source, target, store, more=way.more, progress=meter)
    except KeyboardInterrupt:
        say("nothing is lost: DST stays closed until the copy is whole, and the same command goes on with it")
        raise
    again = _erase_again(way, target, store) if way.erasures and done.finished else []
    if as_json:
        erased = {"erased_again": again} if way.erasures else {}
        print_json({**_way_fields(way, "rows"), **_row_counts(done), **erased})
    say(_summary(done))
    for id in done.different[:_MOST]:
        print_error(f"conversation {id} is not the same in DST", "copy again: it was taken away there")
    for problem in done.problems[:_MOST]:
        print_error(f"DST: {problem}")
    return 0 if done.ok else UNSOUND


def _check_ledger(file: str, source: "Store | None") -> None:
    """Raise before anything is copied if the ledger cannot be replayed on the copy."""
    from .._erasure.ledger import ledger_key  # noqa: PLC0415  # help needs none
    from .._erasure.ledger_file import read  # noqa: PLC0415  # as above

    if source is None:
        raise errors.KeyUnavailable(
            "SRC is sealed, and the ledger needs its key", hint="--key says where it comes from"
        )
    read(os.path.expanduser(file), ledger_key(source.engine))


def _erase_again(way: _Way, target: "Backend", source: "Store | None") -> list[str]:
    """Purge from the copy what the ledger of SRC names. Return the ids of the conversations."""
    from .. import erasures  # noqa: PLC0415  # help needs none
    from ..store import Store  # noqa: PLC0415  # as above

    assert way.erasures is not None
    sealed = None if source is None else source.engine.workspace.sealed_codec
    copy = Store(target, key=None if sealed is None else sealed.key, maintenance=False)  # closed with its backend
    with Meter("comparing", "conversation") as meter:
        report = erasures.replay(copy, way.erasures, progress=meter).purge
    for failure in report.failures:
        print_error(f"DST: conversation {failure.id} was purged, and is back: {failure.error}")
    say(f"purged again: {count_of(report.purged_count, 'conversation')}")
    return list(report.purged)


def _summary(done: "StoreCopy") -> str:
    copied = f"{count_of(done.conversations, 'conversation')}, {count_of(done.messages, 'message')} copied"
    before = f", {done.unchanged} unchanged" if done.unchanged else ""
    if not done.finished:
        return f"{copied}{before}; DST stays closed until another run has finished it"
    how = "verified" if done.opened else "sealed, and not opened"
    return f"{copied}{before}; all rows compared, {how}"


def _row_counts(done: "StoreCopy") -> dict[str, object]:
    return {
        "conversations": done.conversations,
        "messages": done.messages,
        "unchanged": done.unchanged,
        "compared": done.compared,
        "different": list(done.different),
        "finished": done.finished,
        "opened": done.opened,
        "problems": list(done.problems),
    }


def _way_fields(way: _Way, how: str) -> dict[str, object]:
    from .._system.locations import hide_credentials  # noqa: PLC0415  # help needs none

    return {
        "source": hide_credentials(way.source.location),
        "workspace": way.source.workspace,
        "target": hide_credentials(way.target.location),
        "to_workspace": way.target.workspace,
        "way": how,
    }


# -- by message


def _by_message(way: _Way, as_json: bool) -> int:
    from .. import formats  # noqa: PLC0415  # help needs none

    with open_for_long_read(way.source) as ours:
        before = _counts(ours)
        formats.outgoing(ours)  # raises before DST is made
        key = way.target.key or (None if way.in_clear or ours.key_id is None else way.source.key)
        there = replace(way.target, key=key)
        with _target(there) as theirs, Meter("copying", "message", sum(before.values())) as meter:
            code = 0
            try:
                report = formats.copy(ours, theirs, even_purged=way.even_purged, progress=meter)
            except errors.PartialImport as error:
                report, code = cast("Loaded", error.report), PARTIAL
            missing = _missing(before, ours, theirs, report)
    if as_json:
        print_json({**_way_fields(way, "messages"), **_message_counts(report), "missing": missing})
    say(summarise(report))
    if report.purged:
        say(f"{count_of(report.purged, 'conversation')} purged in DST stay away; --even-purged brings them back")
    print_unreadable(report)
    for id in missing:
        print_error(f"conversation {id} is not all there")
    return UNSOUND if missing else code


def _message_counts(report: "Loaded") -> dict[str, object]:
    return {
        "conversations": len(report.added),
        "messages": report.messages,
        "unchanged": report.unchanged,
        "renamed": report.renamed,
        "notes": list(report.notes),
        "unreadable": [{"name": one.name, "reason": one.reason} for one in report.unreadable],
    }


def _target(place: Place) -> "Store":
    try:
        return place.open(create=True)
    except (errors.KeyUnavailable, errors.NotSealed) as error:
        error.replace_hint("--to-key says where the key of DST comes from; --in-clear, that it is to be plain")
        raise


def _counts(store: "Store") -> dict[str, int]:
    """Return the number of messages of each conversation."""
    return {info.id: info.count for info in iterate_conversations(store, include_expired=True)}


def _missing(before: dict[str, int], ours: "Store", theirs: "Store", report: "Loaded") -> list[str]:
    """Return the conversations with fewer messages in the target than the source had before and still has."""
    copied, now = _counts(theirs), _counts(ours)
    less = [
        id for id, count in before.items() if copied.get(report.renamed.get(id, id), 0) < min(count, now.get(id, 0))
    ]
    return [id for id in less if id in copied or not _was_purged(theirs, id)] if report.purged else less


def _was_purged(store: "Store", id: str) -> bool:
    from .._erasure.ledger import find  # noqa: PLC0415  # help needs none
    from ..ids import parse_conversation_id  # noqa: PLC0415  # as above

    return bool(find(store.engine, [parse_conversation_id(id)]))
