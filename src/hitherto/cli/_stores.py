"""`hitherto backup`, `restore` and `copy`: whole stores.

None of them overwrites anything: what a restore replaces is kept under another name, and what a copy finds is left as
it is. A backup is only ever read.
"""

import os
from glob import escape, glob
from typing import TYPE_CHECKING, cast

import click

from .. import errors
from ._display import Meter, emit, many, sure
from ._moving import lasting, summary, unreadable
from ._outcomes import PARTIAL, UNSOUND
from ._place import Place, place_of, placed
from ._screen import complain, say

if TYPE_CHECKING:
    from ..formats import Loaded
    from ..store import Store


@click.command(short_help="A copy of the store, made while others write.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@placed
def backup(place: Place, file: str, as_json: bool) -> None:
    """Write a copy of the whole store, all workspaces, to a new file, while others go on reading and writing.

    The copy is as the store was at one moment, and is a store itself: sealed if this one is, with the same key.
    Nothing is overwritten.
    """
    with lasting(place) as store:
        store.backup(file)
    size = os.path.getsize(os.path.expanduser(file))
    if as_json:
        emit({"file": os.path.abspath(os.path.expanduser(file)), "size": size})
    else:
        say(f"{file}: {many(size, 'byte')}")


@click.command(short_help="Put a backup in the place of the store.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--replace", is_flag=True, help="Even if there is a store; it is kept, under another name beside it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--no-verify", is_flag=True, help="Do not read all of the backup first to prove that it is sound.")
@placed
def restore(place: Place, file: str, replace: bool, yes: bool, no_verify: bool) -> int:
    """Make the store again from a backup. The backup itself is not touched, and stays.

    The backup is checked first, with its key if it is sealed; if it is not sound, nothing is done, and the exit code is
    7. A store that is there is left alone, unless --replace is given; nobody may have it open then.
    """
    from ..backends._replacing import put_in_place  # noqa: PLC0415  # help needs none

    path = _to_restore(place, file, replace=replace)
    there = os.path.lexists(path)
    with _backed_up(file, place) as store:
        if not no_verify and not _is_sound(store, file):
            return UNSOUND
        if there:
            say(f"{path} is put aside, and {file} takes its place")
            sure("Go on?", yes=yes)
        new = f"{path}.restored-{os.urandom(4).hex()}"
        try:
            store.backup(new)
            kept = put_in_place(new, path, replace=replace)
        finally:  # whatever stopped us: nothing of it stays
            for left in glob(f"{escape(new)}*"):
                os.unlink(left)
    if kept is not None:
        say(f"the store that was there is now {kept}")
    return 0


def _to_restore(place: Place, file: str, *, replace: bool) -> str:
    """The file that the backup becomes."""
    if place.path is None:
        raise click.UsageError("a store in memory is gone when it is closed, and cannot be restored")
    path = os.path.realpath(place.path)
    if os.path.realpath(os.path.expanduser(file)) == path:
        raise click.UsageError("the backup is the store itself")
    if os.path.lexists(path) and not replace:
        raise errors.AlreadyExists("a store", path, hint="--replace puts it aside, under another name")
    return path


def _backed_up(file: str, place: Place) -> "Store":
    """The backup, opened to be read only, whatever happens."""
    from ..opening import open as open_store  # noqa: PLC0415  # help needs none

    return open_store(file, key=place.secret(), workspace=place.workspace, read_only=True)


def _is_sound(store: "Store", file: str) -> bool:
    with Meter("checking", "conversation") as meter:
        report = store.verify(meter)
    for problem in report.problems[:20]:
        complain(f"{file}: {problem}")
    if not report.ok:
        complain(
            f"{file} is not sound: {many(len(report.problems), 'problem')}", "--no-verify restores it all the same"
        )
    return report.ok


@click.command(short_help="Copy all conversations from one store into another.")
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@click.option("--workspace", metavar="NAME", help="The workspace in SRC.  [default: default]")
@click.option("--to-workspace", metavar="NAME", help="The workspace in DST.  [default: the same]")
@click.option("--key", metavar="SOURCE", help="Where the key of SRC comes from, if it is sealed.")
@click.option("--to-key", metavar="SOURCE", help="Where the key of DST comes from; a new store is sealed with it.")
@click.option("--in-clear", is_flag=True, help="Allow that what is sealed in SRC is plain in DST.")
def copy(
    source: str,
    target: str,
    workspace: str | None,
    to_workspace: str | None,
    key: str | None,
    to_key: str | None,
    in_clear: bool,
) -> int:
    """Copy all conversations of the store SRC into the store DST, which is made if it is missing.

    What is there already is not added again: a copy that was stopped goes on, and one that is repeated adds what has
    come. At the end the messages of each conversation are counted in both; if any are missing, the exit code is 7.
    """
    from .. import formats  # noqa: PLC0415  # help needs none

    above = click.get_current_context().find_root().params
    here = place_of(source, workspace or above["workspace"], key or above["key"])
    there = Place(target, "DST", to_workspace or here.workspace, to_key, here.sanitise)
    with lasting(here) as ours:
        if ours.key_id is not None and to_key is None and not in_clear:
            raise click.UsageError("SRC is sealed: --to-key seals DST as well, --in-clear says that it is to be plain")
        before = _counts(ours)
        formats.outgoing(ours)  # what is refused is refused before DST is made
        with _target(there) as theirs, Meter("copying", "message", sum(before.values())) as meter:
            code = 0
            try:
                report = formats.copy(ours, theirs, progress=meter)
            except errors.PartialImport as error:
                report, code = cast("Loaded", error.report), PARTIAL
            missing = _missing(before, ours, theirs, report)
    say(summary(report))
    unreadable(report)
    for id in missing:
        complain(f"conversation {id} is not all there")
    return UNSOUND if missing else code


def _target(place: Place) -> "Store":
    try:
        return place.open(create=True)
    except (errors.KeyUnavailable, errors.NotSealed) as error:
        error.hint = "--to-key says where the key of DST comes from"
        raise


def _counts(store: "Store") -> dict[str, int]:
    """How many messages each conversation has."""
    counts: dict[str, int] = {}
    cursor = None
    while True:
        page = store.conversations(limit=1000, cursor=cursor, include_expired=True)
        counts |= {info.id: info.count for info in page.items}
        if page.next_cursor is None:
            return counts
        cursor = page.next_cursor


def _missing(before: dict[str, int], ours: "Store", theirs: "Store", report: "Loaded") -> list[str]:
    """The conversations that have fewer messages than they had here before, and still have."""
    copied, now = _counts(theirs), _counts(ours)
    return [
        id for id, count in before.items() if copied.get(report.renamed.get(id, id), 0) < min(count, now.get(id, 0))
    ]
