"""`hitherto run -- CMD`: run a program, and keep what it says to its model.

The gateway runs in this process, on a port of its own, for as long as the program does. Nothing is printed while the
program has the terminal; what was lost is said at the end.
"""

import os
from pathlib import Path

import click

from ._gateway import check_extra, gateway_options, report_losses
from ._store_options import Place, with_place
from ._terminal import say


@click.command(
    short_help="Run a program, and keep what it says to its model.", context_settings={"allow_interspersed_args": False}
)
@gateway_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_place
def run(place: Place, upstreams: tuple[str, ...], must_keep: bool, command: tuple[str, ...]) -> int:
    """Run a command whose requests to Anthropic, OpenAI and Gemini go through a gateway of its own.

    The command gets the addresses in its environment, and Codex as options. Its exit code is the exit code. An address
    that the environment names already stays the one that is asked.
    """
    check_extra()
    from .._system import local_server  # noqa: PLC0415  # only this command needs a server
    from ..gateway import child  # noqa: PLC0415  # as above
    from ..gateway.app import Gateway  # noqa: PLC0415  # as above
    from ..gateway.keeping import Keeper  # noqa: PLC0415  # as above
    from ..gateway.passing import Passing  # noqa: PLC0415  # as above
    from ..gateway.server import configure, prefer_passing  # noqa: PLC0415  # as above

    found = child.child_upstreams(upstreams, os.environ)
    listening = local_server.listen(0)
    prefer_passing()
    said: list[str] = []
    with listening.socket, place.open(create=True) as store:
        keeper = Keeper(store, report=said.append, project=Path.cwd())
        address = f"http://{local_server.LOOPBACK}:{listening.port}"
        arguments = child.child_arguments(command, address, found, os.environ)
        try:
            with local_server.serve_in_thread(
                configure(Gateway(found, Passing(keeper, must_keep=must_keep))), listening
            ):
                return child.run_child(arguments, child.child_environment(address, found, os.environ))
        finally:
            keeper.close()
            for text in said:
                say(text)
            report_losses(keeper.lost)
