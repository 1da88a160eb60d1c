"""`hitherto backup` and `restore`: whole stores, in files.

Neither overwrites anything: `restore` keeps the previous store under another name. A backup is only ever read.
"""

import os
from glob import escape, glob
from typing import TYPE_CHECKING

import click

from .. import errors
from ._exit_codes import UNSOUND
from ._export_import import open_for_long_read
from ._options import accountable, without_asking
from ._output import Meter, confirm, count_of, print_json
from ._store_options import Place, with_place
from ._terminal import print_error, say

if TYPE_CHECKING:
    from ..store import Store


@click.command(short_help="Copy the store to a file, while other processes write.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def backup(place: Place, file: str, as_json: bool) -> None:
    """Write a copy of the whole store, all workspaces, to a new file, while other processes read and write.

    The copy is as the store was at one moment, and is a store itself: sealed if this one is, with the same key.
    Nothing is overwritten.
    """
    with open_for_long_read(place) as store:
        store.backup(file)
    size = os.path.getsize(os.path.expanduser(file))
    if as_json:
        print_json({"file": os.path.abspath(os.path.expanduser(file)), "size": size})
    else:
        say(f"{file}: {count_of(size, 'byte')}")


@click.command(short_help="Replace the store by a backup.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--replace", is_flag=True, help="Replace an existing store; it is kept beside it, under another name.")
@without_asking
@click.option("--no-verify", is_flag=True, help="Do not check first that the backup is sound.")
@click.option("--erasures", metavar="FILE", help="The erasure ledger: what is in it is purged from the restored store.")
@click.option("--even-purged", is_flag=True, help="Also what was purged since the backup, which goes again otherwise.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@accountable
@with_place
def restore(
    place: Place,
    file: str,
    replace: bool,
    yes: bool,
    no_verify: bool,
    erasures: str | None,
    even_purged: bool,
    as_json: bool,
) -> int:
    """Make the store again from a backup. The backup itself is not touched, and stays.

    The backup is checked first, with its key if it is sealed; if it is not sound, nothing is done, and the exit code is
    7. A store that is there is left alone, unless --replace is given; no process may have it open then.

    The erasure ledger of the store that is replaced, and that of --erasures FILE (by hitherto erasures keep), say what
    was purged since the backup. It is purged again before the store takes its place.
    """
    from ..backends.sqlite.file_swap import put_in_place  # noqa: PLC0415  # help needs none
    from ._restored import erase_again  # noqa: PLC0415  # help needs none

    path = _restore_path(place, file, replace=replace)
    there = os.path.lexists(path)
    with _open_backup(file, place) as store:
        if not no_verify and not _is_sound(store, file):
            return UNSOUND
        if there:
            say(f"{path} is put aside, and {file} takes its place")
            confirm("Go on?", yes=yes)
        new = f"{path}.restored-{os.urandom(4).hex()}"
        try:
            store.backup(new)
            again = erase_again(new, place, path if there else None, erasures, even_purged=even_purged)
            kept = put_in_place(new, path, replace=replace)
        finally:  # remove the rest after any failure
            for left in glob(f"{escape(new)}*"):
                os.unlink(left)
    if kept is not None:
        say(f"the store that was there is now {kept}")
    if as_json:
        print_json(
            {"store": path, "file": os.path.abspath(os.path.expanduser(file)), "kept": kept, "erased_again": again}
        )
    return 0


def _restore_path(place: Place, file: str, *, replace: bool) -> str:
    """Return the path that the backup is restored to. Raise if it must not be."""
    if place.is_server:
        hint = "hitherto copy brings a file into a workspace; pg_restore brings back what pg_dump has written"
        raise errors.InvalidArgument("a database server is restored by its own tools", hint=hint)
    if place.path is None:
        raise click.UsageError("a store in memory is gone when it is closed, and cannot be restored")
    path = os.path.realpath(place.path)
    if os.path.realpath(os.path.expanduser(file)) == path:
        raise click.UsageError("the backup is the store itself")
    if os.path.lexists(path) and not replace:
        raise errors.AlreadyExists("a store", path, hint="--replace puts it aside, under another name")
    return path


def _open_backup(file: str, place: Place) -> "Store":
    """Open the backup read-only. Unlike `Place.read`, never for repair."""
    from ..opening import open as open_store  # noqa: PLC0415  # help needs none

    return open_store(file, key=place.secret(), workspace=place.workspace, read_only=True)


def _is_sound(store: "Store", file: str) -> bool:
    with Meter("checking", "conversation") as meter:
        report = store.verify(meter)
    for problem in report.problems[:20]:
        print_error(f"{file}: {problem}")
    if not report.ok:
        print_error(
            f"{file} is not sound: {count_of(len(report.problems), 'problem')}", "--no-verify restores it all the same"
        )
    return report.ok
