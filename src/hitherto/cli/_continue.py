"""`hitherto continue`: goes on with a conversation in another program.

It writes a session of that program, up to the message, names what the program does not get, and prints the command that
goes on. What is said there comes back with `hitherto rescue`, as a branch of the same conversation.
"""

import shlex
from pathlib import Path

import click

from ._completion import complete_ids
from ._ids import find_or_newest
from ._output import print_json
from ._store_options import Place, with_place
from ._terminal import say

_PROGRAMS = ("claude", "codex")


@click.command("continue", short_help="Go on with a conversation in Claude Code or Codex.")
@click.argument("id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.option("--in", "program", type=click.Choice(_PROGRAMS), required=True, help="The program to go on in.")
@click.option(
    "--folder", type=click.Path(file_okay=False), help="Where to go on.  [default: the conversation's project]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def continue_(place: Place, id: str | None, program: str, folder: str | None, as_json: bool) -> None:
    """Write a session of another program that ends with a message of ours: the newest of this folder, or the one that
    is named. Prints the command that goes on from there.

    What the program does not get is named. What is said there comes back with hitherto rescue, as a branch below that
    message.
    """
    from ..rescue import continue_in  # noqa: PLC0415  # help needs none

    with place.open() as store:
        talk = find_or_newest(store, id)
        made = continue_in(store, talk, program, folder=None if folder is None else Path(folder))
    command = f"cd {shlex.quote(str(made.folder))} && {shlex.join(made.command)}"
    if as_json:
        print_json(
            {
                "file": str(made.path),
                "session": made.session,
                "folder": str(made.folder),
                "command": command,
                "messages": made.messages,
                "losses": made.losses,
            }
        )
        return
    for loss in made.losses:
        say(f"left out: {loss}")
    say(f"wrote {made.path}")
    click.echo(command)
