"""`hitherto serve`: the conversations of a store as a page in the browser of this machine.

The address with its one-time token goes to standard output, so that a program can read it; everything else goes to
standard error. The store is opened to read; Ctrl+C ends it, and nothing is left behind.
"""

import json
from typing import TYPE_CHECKING

import click

from .. import errors
from .._system import running_pages
from ._completion import complete_ids
from ._ids import find_conversation, is_message
from ._store_options import Place, with_place
from ._terminal import say

if TYPE_CHECKING:
    from ..store import Store

_PATIENCE_SECONDS = 2.0  # to wait for other writers, before it is opened read-only


@click.command(short_help="Read the conversations in a browser, on this machine alone.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port; 0, the default, takes a free one.")
@click.option("--no-open", is_flag=True, help="Print the address alone, and open no browser.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Another name of the page. Repeatable.")
@click.option("--base-path", default="", metavar="PATH", help="The path below which a proxy shows the page.")
@click.option("--allow-write", is_flag=True, help="Rename, label, hold, release and delete on the page.")
@click.option(
    "--lock-after",
    type=click.FloatRange(0, 10_000),
    default=15.0,
    show_default=True,
    metavar="MINUTES",
    help="Forget the key of a sealed store when nobody has looked for so long; 0: never.",
)
@click.option("--openapi", is_flag=True, help="Print the description of the JSON of every page, and end.")
@with_place
def serve(
    place: Place,
    port: int,
    no_open: bool,
    hosts: tuple[str, ...],
    base_path: str,
    allow_write: bool,
    lock_after: float,
    openapi: bool,
) -> None:
    """Show the conversations of the store as a page: find, read, see the branches.

    It answers on 127.0.0.1 alone. The address that it prints opens the page once; the browser that opens it is let in
    until the command ends. Without --allow-write nothing can be changed on the page. Ctrl+C ends it.
    """
    base = _check_base(base_path)
    try:
        from ..viewer import access, app, server, thread_view  # noqa: PLC0415  # only this command needs a web server
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "nh3", "pygments"):
            raise
        raise errors.MissingExtra(error.name or "starlette", "viewer") from None

    if openapi:
        from ..viewer.openapi import describe  # noqa: PLC0415  # as above

        click.echo(json.dumps(describe(base), indent=2))
        return
    opened = access.Access(lambda: open_to_look(place, may_write=allow_write), idle_seconds=lock_after * 60 or None)
    try:
        listening = server.listen(port)
        with listening.socket:
            cookie = f"hitherto_{listening.port}"
            door = app.build(opened, hosts=hosts, cookie=cookie, base=base, may_write=allow_write)
            address = f"http://127.0.0.1:{listening.port}{base}/?token={door.token}"
            page = address.partition("/?")[0]
            with running_pages.announce(page, place.display_name, place.workspace):
                click.echo(address)
                say(f"{place.display_name}: Ctrl+C ends it")
                if not no_open:
                    click.launch(address)
                thread_view.warm_up()
                server.serve(door, listening)
    finally:
        opened.close()


@click.command(short_help="Print the link of a conversation or message in the page that runs.")
@click.argument("id", default="@", shell_complete=complete_ids)
@with_place
def link(place: Place, id: str) -> None:
    """Print the address of a conversation, or of a message on its branch, in the page that `hitherto serve` shows now.

    The link holds no token: it opens in the browser that was let in. It stays right as long as the page runs on its
    port; --port of `hitherto serve` keeps it right the next time.
    """
    with place.read() as store:
        talk = find_conversation(store, id)
        message = talk.at if is_message(id, talk) else None
    address = running_pages.find(place.display_name, place.workspace)
    if address is None:
        hint = "start it in another terminal, then try again"
        raise errors.HithertoError("hitherto serve shows no page of this store now", hint=hint)
    click.echo(f"{address}/c/{talk.id}{f'/m/{message}' if message else ''}")


def _check_base(path: str) -> str:
    """Return the path with a slash at its beginning and none at its end."""
    base = path.strip("/")
    if not all(
        part and part.replace("-", "").replace("_", "").isalnum() and part.isascii() for part in base.split("/")
    ):
        if base:
            raise click.UsageError("--base-path is a path of letters, digits, - and _")
        return ""
    return f"/{base}"


def open_to_look(place: Place, *, may_write: bool = False) -> "Store":
    """Open the store so that what a search reads stays indexed; if it cannot be written to, read-only. Nothing is
    purged: maintenance is off."""
    if may_write:
        return place.open(maintenance=False)
    try:
        return place.open(timeout_seconds=_PATIENCE_SECONDS, maintenance=False)
    except (errors.Busy, errors.Denied, errors.ReadOnly, errors.StorageFull, errors.CannotOpen):
        return place.read()
