"""`hitherto init` and `hitherto where`: make a store for this folder; show which store is used.

A folder's own store lies in `.hitherto`. Commands in the folders below find it, and git ignores it.
"""

import os

import click

from .. import errors
from .._system.config_file import path as config_path
from .._system.terminal_text import escape_control_characters
from ._output import print_json
from ._store_options import Place, with_place
from ._terminal import say

_IGNORED = "*\n"  # conversations do not belong into a repository around the folder


@click.command(short_help="Which store is used, and why.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def where(place: Place, as_json: bool) -> None:
    """Print which store the other commands use here, and on standard error the setting that names it."""
    path = place.path
    exists = path is None or os.path.exists(path)
    if as_json:
        fields = {"store": place.display_name, "found": place.named_by, "exists": None if place.is_server else exists}
        print_json(fields | {"workspace": place.workspace, "key": place.key, "config": config_path()})
        return
    click.echo(escape_control_characters(place.display_name))
    say(f"named by {place.named_by}{'' if exists else '; there is nothing yet'}; workspace {place.workspace}")


@click.command(short_help="Make a store for this folder.")
@with_place
def init(place: Place) -> None:
    """Make a .hitherto folder here, with a store in it, which is then used here and in the folders below.

    With --key the store is sealed. The folder tells git to leave it alone, and is open to you only. Where --store or
    HITHERTO_STORE names a database, its tables are made if need be, and the workspace in them.
    """
    from .._system.locations import FILE_NAME, FOLDER_NAME  # noqa: PLC0415  # help needs none

    if place.is_server and place.named_by in ("--store", "HITHERTO_STORE"):
        _make_workspace(place)
        return
    if place.named_by == "--store":
        location = place.path or ""
    else:
        folder = os.path.join(os.getcwd(), FOLDER_NAME)
        location = os.path.join(folder, FILE_NAME)
    if not location or (os.path.exists(location) and os.path.getsize(location)):  # an empty file is not a store yet
        raise errors.AlreadyExists(
            "the store", location or "in memory", hint="it is used as it is; hitherto where shows it"
        )
    try:
        if place.named_by != "--store":
            _make_folder(folder)
    except OSError as error:
        raise errors.CannotOpen(f"{folder} cannot be made: {error.strerror}", hint="check the permissions") from None
    with Place(location, "init", place.workspace, place.key).open(create=True) as store:
        sealed = store.key_id is not None
    click.echo(escape_control_characters(location))
    if place.named_by == "HITHERTO_STORE":
        say("HITHERTO_STORE names another store, and goes before it: unset it to use this one")
    elif place.named_by == "a .hitherto folder":
        say(f"from here on it is used in this folder, in place of {place.path}")
    say("sealed: without its key it cannot be read" if sealed else "plain: hitherto key seal seals it")


def _make_workspace(place: Place) -> None:
    """Make a workspace on a server, and the tables if they are missing."""
    from ..opening import key_id_of  # noqa: PLC0415  # help needs none

    try:
        key_id_of(place.location, place.workspace)
    except errors.NotFound:
        pass
    except errors.CannotOpen as error:
        if not error.missing:
            raise
    else:
        raise errors.AlreadyExists("the workspace", place.workspace, hint="it is used as it is; --workspace names one")
    with place.open(create=True, maintenance=False) as store:
        sealed = store.key_id is not None
    click.echo(escape_control_characters(place.display_name))
    say(f"a new workspace: {place.workspace}")
    say("sealed: without its key it cannot be read" if sealed else "plain: hitherto key seal seals it")


def _make_folder(folder: str) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    ignore = os.path.join(folder, ".gitignore")
    if not os.path.lexists(ignore):  # never replace an existing file or link
        with open(ignore, "x", encoding="utf-8") as file:
            file.write(_IGNORED)
