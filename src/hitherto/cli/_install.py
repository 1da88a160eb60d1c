"""`hitherto install`: hitherto as an MCP server of Claude Code, Codex or Gemini CLI, and a skill that says when to ask.

The difference is shown before anything is written, and asked for. `--uninstall` takes out what was put in.
"""

import os
import shutil
import sys
from pathlib import Path

import click

from .. import errors
from .._system.terminal_text import escape_control_characters
from ._options import without_asking
from ._output import confirm, print_lines
from ._store_options import Place, with_place
from ._terminal import is_terminal, say

_CLIENTS = ("claude", "codex", "gemini")


@click.command(short_help="Let Claude Code, Codex or Gemini CLI ask what was said before.")
@click.argument("client", type=click.Choice(_CLIENTS))
@click.option("--uninstall", is_flag=True, help="Take out what was put in.")
@click.option("--all", "everything", is_flag=True, help="Let it ask about the conversations of all folders.")
@click.option("--dry-run", is_flag=True, help="Show the difference alone.")
@without_asking
@with_place
def install(place: Place, client: str, uninstall: bool, everything: bool, dry_run: bool, yes: bool) -> None:
    """Write hitherto mcp into the configuration of a client, and a skill that says when to ask.

    The difference is shown first, and asked for; without a terminal --yes is needed. What else stands in the files
    stays, comments too. A file that cannot be parsed is not touched.
    """
    from ..recall import clients  # noqa: PLC0415  # help needs none

    changes = clients.plan(
        client, _command(place, everything), remove=uninstall, home=Path.home(), environment=os.environ
    )
    if not changes:
        say("nothing is there to take out" if uninstall else "it is installed already")
        return
    for change in changes:
        print_lines(escape_control_characters(change.difference()).splitlines())
    if dry_run:
        return
    if not yes and not is_terminal(sys.stdin):
        raise click.UsageError("there is no terminal to ask on: --yes writes without asking")
    confirm("Write this?", yes=yes)
    clients.apply(changes)
    say(f"{client} begins anew {'without' if uninstall else 'with'} it: start it again")


def _command(place: Place, everything: bool) -> list[str]:
    """Return the command that the client has to start: this program, with the store that was named here."""
    program = shutil.which("hitherto")
    found = [os.path.abspath(program)] if program else [sys.executable, "-m", "hitherto"]
    if place.named_by in ("--store", "HITHERTO_STORE"):
        if place.is_server and place.location != place.display_name:
            raise errors.InvalidArgument(
                "the address of the store has a user or a password in it, which would stand in the client's file",
                hint="name the store in the configuration file of hitherto: hitherto config set store …",
            )
        found += ["--store", place.location if place.is_server else os.path.abspath(place.path or place.location)]
    if place.workspace != "default":
        found += ["--workspace", place.workspace]
    return [*found, "mcp", *(["--all"] if everything else [])]
