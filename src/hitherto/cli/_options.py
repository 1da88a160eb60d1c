"""The options of every command that uses a store, and of the group of all commands.

They are separate from `_store_options`, so that the list of commands is shown without loading that.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import click

SOURCES = "file:PATH, command:WORDS, keyring:SERVICE or credential:NAME"  # the sources of a key
NAMES = ("store", "workspace", "key")
_Command = TypeVar("_Command", bound=Callable[..., object])


def _use_utc(_ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        from ._terminal import use_utc  # noqa: PLC0415  # rarely given

        use_utc()


def options(command: _Command) -> _Command:
    """Add the three options to a command, and --utc, which no command has to know."""
    for option in (
        click.option("--utc", is_flag=True, expose_value=False, callback=_use_utc, help="Show times in UTC."),
        click.option("--key", metavar="SOURCE", help=f"Where the key of a sealed store comes from: {SOURCES}."),
        click.option("--workspace", metavar="NAME", help="The workspace in the store.  [default: default]"),
        click.option("--store", metavar="PATH", help="The store, in place of the usual one."),
    ):
        command = option(command)
    return command


def without_asking(command: _Command) -> _Command:
    """Add the option --yes, for every command that asks before it destroys or replaces something."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def accountable(command: _Command) -> _Command:
    """Add the options --actor and --why, for every command that destroys something or changes keys or rules. A command
    that has --override-floor gets it as a part of these."""

    @wraps(command)
    def run(*args: object, actor: str | None, why: str, override_floor: bool = False, **given: object) -> object:
        if actor is None:
            if why or override_floor:
                raise click.UsageError("--actor says who does this, and --why for which reason")
            return command(*args, **given)
        if override_floor and not why:
            raise click.UsageError("--override-floor takes --why")
        from ..accountability import acting  # noqa: PLC0415  # help needs none

        with acting(actor, why=why, override_floor=override_floor):
            return command(*args, **given)

    click.option("--why", metavar="TEXT", default="", help="Why, beside --actor.")(run)
    return click.option(
        "--actor", metavar="NAME", envvar="HITHERTO_ACTOR", help="On whose behalf, for reports and the erasure ledger."
    )(run)  # type: ignore[return-value]  # it is called as the command is
