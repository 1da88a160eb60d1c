"""`hitherto replay ID -- CMD`: run a program with the answers of a kept conversation in place of a provider's.

Nothing leaves the machine. A request that was not kept is an error for the program, and is said at the end.
"""

import os

import click

from ._exit_codes import FAILED
from ._gateway import check_extra
from ._ids import find_conversation
from ._store_options import Place, with_place
from ._terminal import print_error


@click.command(
    short_help="Run a program with kept answers in place of a provider's.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--ignore", multiple=True, metavar="REGEX", help="What may differ in a request. Repeatable.")
@click.argument("id")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_place
def replay(place: Place, ignore: tuple[str, ...], id: str, command: tuple[str, ...]) -> int:
    """Run a command whose requests are answered from the conversation ID.

    A request has to be one that was kept: its messages and its system prompt. Ids, dates, and the folder of the run may
    differ. Any other request is refused, and the first difference is printed at the end; then the exit code is not 0.
    """
    check_extra()
    from .._system import local_server  # noqa: PLC0415  # only this command needs a server
    from ..gateway import child  # noqa: PLC0415  # as above
    from ..gateway.replaying import Replay, Replaying  # noqa: PLC0415  # as above
    from ..gateway.server import configure  # noqa: PLC0415  # as above
    from ..gateway.upstreams import parse_upstreams  # noqa: PLC0415  # as above

    command = command[1:] if command[0] == "--" else command  # click leaves it, because ID stands before it
    if not command:
        raise click.UsageError("give the command as you would type it, behind --")
    with place.read() as store:
        kept = Replay(find_conversation(store, id), ignore=ignore)
        listening = local_server.listen(0)
        address, leads = f"http://{local_server.LOOPBACK}:{listening.port}", parse_upstreams(())
        with listening.socket, local_server.serve_in_thread(configure(Replaying(kept)), listening):
            arguments = child.child_arguments(command, address, leads, os.environ)
            code = child.run_child(arguments, child.child_environment(address, leads, os.environ))
    for miss in kept.misses:
        print_error(f"not kept: {miss}", "--ignore REGEX leaves out what may differ")
    return code or (FAILED if kept.misses else 0)
