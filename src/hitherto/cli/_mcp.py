"""`hitherto mcp`: earlier conversations as tools of an agent, over standard input and output.

Standard output belongs to the protocol. Messages go to standard error. The store is opened by the
first call of a tool, so that a store which is missing or locked is an answer that says so.
"""

from typing import TYPE_CHECKING

import click

from .. import errors
from ._ids import here
from ._serve import open_to_look
from ._store_options import Place, with_place

if TYPE_CHECKING:
    from ..recall.looking_up import Recall


@click.command(short_help="Let an agent search and read earlier conversations (MCP).")
@click.option("--all", "everything", is_flag=True, help="Conversations of all folders, not of this one alone.")
@click.option("--project", metavar="PATH", help="Conversations of that folder.")
@with_place
def mcp(place: Place, everything: bool, project: str | None) -> None:
    """Serve earlier conversations as tools over MCP, on standard input and output.

    A client starts it: hitherto install claude, codex or gemini says so in their configuration. The tools search, read,
    list, branches and usage look at the conversations of this folder, and change nothing.
    """
    if everything and project is not None:
        raise click.UsageError("--all and --project exclude each other")
    folder = None if everything else project or here()
    if folder is None and not everything:
        raise click.UsageError("the folder you are in is gone")
    try:
        from ..recall.server import serve  # noqa: PLC0415  # only this command needs it
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        raise errors.MissingExtra("mcp", "mcp") from None

    recall = _recall(place, folder)
    try:
        serve(recall)
    finally:
        recall.close()


def _recall(place: Place, folder: str | None) -> "Recall":
    from .._engine.filters import folder as absolute  # noqa: PLC0415  # help needs none
    from ..recall.looking_up import Recall, Scope  # noqa: PLC0415  # as above

    return Recall(lambda: open_to_look(place), Scope(absolute(folder)))
