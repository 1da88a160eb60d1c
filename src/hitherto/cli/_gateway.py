"""`hitherto gateway`: a local address that programs talk to in place of their provider; what they say is kept.

The address goes to standard output, so that a program can read it; everything else goes to standard error.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from .. import errors
from ._store_options import Place, with_place
from ._terminal import say

if TYPE_CHECKING:
    from ..gateway.upstreams import Upstream

_TOKEN = "HITHERTO_GATEWAY_TOKEN"


_Command = TypeVar("_Command", bound=Callable[..., object])


def gateway_options(command: _Command) -> _Command:
    """Add the options of every gateway."""
    for option in (
        click.option("--must-keep", is_flag=True, help="Refuse a request that cannot be kept."),
        click.option("--upstream", "upstreams", multiple=True, metavar="NAME=URL", help="A provider. Repeatable."),
    ):
        command = option(command)
    return command


@click.command(short_help="Keep what any program says to its model, through a local address.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port; 0, the default, takes a free one.")
@gateway_options
@click.option("--listen", "host", metavar="ADDRESS", help=f"Answer other machines too; {_TOKEN} holds the token.")
@with_place
def gateway(place: Place, port: int, upstreams: tuple[str, ...], must_keep: bool, host: str | None) -> None:
    """Answer on 127.0.0.1 in the place of model providers, and keep what passes through.

    Point a program's base URL at the address that is printed, with /anthropic, /openai/v1 or /gemini behind it. The
    program keeps its key; none is stored. If the store cannot be written to, the program goes on, unless --must-keep
    is given. Ctrl+C ends it.
    """
    check_extra()
    from .._system import local_server  # noqa: PLC0415  # only this command needs a server
    from ..gateway.app import Gateway  # noqa: PLC0415  # as above
    from ..gateway.keeping import Keeper  # noqa: PLC0415  # as above
    from ..gateway.passing import Passing  # noqa: PLC0415  # as above
    from ..gateway.server import configure, prefer_passing  # noqa: PLC0415  # as above
    from ..gateway.upstreams import parse_upstreams  # noqa: PLC0415  # as above

    found = parse_upstreams(upstreams)
    token = _token(host)
    prefer_passing()
    listening = local_server.listen(port, host or local_server.LOOPBACK)
    with listening.socket, place.open(create=True) as store:
        keeper = Keeper(store, report=say)
        try:
            click.echo(f"http://{host or local_server.LOOPBACK}:{listening.port}")
            _explain(place, found)
            local_server.serve(configure(Gateway(found, Passing(keeper, must_keep=must_keep), token=token)), listening)
        finally:
            keeper.close()
            report_losses(keeper.lost)


def check_extra() -> None:
    """Raise `MissingExtra` if the packages of the gateway are not installed."""
    try:
        import httptools  # noqa: F401, PLC0415  # only looked for
        import uvicorn  # noqa: F401, PLC0415  # as above
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "httptools"):
            raise
        raise errors.MissingExtra(error.name or "uvicorn", "gateway") from None


def report_losses(lost: int) -> None:
    if lost:
        say(f"{lost} {'exchange was' if lost == 1 else 'exchanges were'} not kept")


def _token(host: str | None) -> str | None:
    token = os.environ.get(_TOKEN) or None
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isalnum()):
        raise click.UsageError(f"{_TOKEN} is at least 16 letters and digits")
    if host is not None and token is None:
        raise click.UsageError(f"--listen needs a token in {_TOKEN}: others could use the address")
    return token


def _explain(place: Place, upstreams: "dict[str, Upstream]") -> None:
    leads = ", ".join(f"/{name} to {upstream.host}" for name, upstream in upstreams.items())
    say(f"{leads}; kept in {place.display_name}. Ctrl+C ends it")
