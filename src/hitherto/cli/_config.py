"""`hitherto config`: look at the settings and change them, without an editor.

A value is checked before it is written. Keys of providers are no settings: `hitherto login` keeps them.
"""

import os

import click

from .._system import config_file
from .._system.config_file import NAMES, BadConfig, change, check_name, load
from .._system.locations import hide_credentials, is_server
from .._system.terminal_text import escape_control_characters
from ._exit_codes import NOTHING
from ._output import print_json
from ._providers import PROVIDERS, say_known, say_providers
from ._store_options import SANITISED, check_key_source
from ._terminal import say

_HIDDEN = "(not shown: it is no source of a key)"


@click.group(short_help="Look at the settings, and change them.")
def config() -> None:
    """Look at the settings in the configuration file, and change them.

    Options and environment variables go before them.
    """


@config.command("path", short_help="Print where the file is.")
def path_() -> None:
    """Print where the configuration file is, or would be."""
    where = config_file.path()
    click.echo(escape_control_characters(where))
    if not os.path.lexists(where):
        say("there is nothing yet: hitherto config set NAME VALUE makes it")


@config.command("get", short_help="Print a setting, or all of them.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all settings; null for none.")
def get(name: str | None, as_json: bool) -> int:
    """Print the setting NAME, or without a name all that are set. Nothing set is exit code 3."""
    if name is not None:
        check_name(name)
    found = {one: _shown(one, value) for one, value in load().items()}
    if as_json:
        print_json({one: found.get(one) for one in NAMES if name in (None, one)})
        return 0
    if name is None:
        for one, value in found.items():
            click.echo(escape_control_characters(f"{one} = {value}"))
        return 0
    if name not in found:
        say(f"{name} is not set; it is {NAMES[name]}")
        return NOTHING
    click.echo(escape_control_characters(found[name]))
    return 0


def _shown(name: str, value: str) -> str:
    """Return a value without secrets that may have got into it."""
    if name == "store" and is_server(value):
        return hide_credentials(value)
    if name == "key":
        try:
            check_key_source(value)
        except click.UsageError:
            return _HIDDEN
    return value


@config.command("set", short_help="Set a value.")
@click.argument("name")
@click.argument("value")
def set_(name: str, value: str) -> None:
    """Set NAME to VALUE. The other lines of the file stay as they are, comments included."""
    check_name(name)
    _check_value(name, value)
    change(name, value)
    say(f"{name} is set in {config_file.path()}")


@config.command("unset", short_help="Remove a value.")
@click.argument("name")
def unset(name: str) -> None:
    """Remove the setting NAME."""
    check_name(name)
    change(name, None)
    say(f"{name} is not set any more")


def _check_value(name: str, value: str) -> None:
    if name == "provider" and value not in PROVIDERS:
        raise BadConfig(f"there is no provider {value!r:.40}", hint=say_providers(value))
    if name == "sanitise" and value not in SANITISED:
        raise BadConfig(f"not a sanitiser: {value!r:.40}", hint=say_known(value, SANITISED))
    if name == "key":
        check_key_source(value)
    if name == "base_url":
        from ..chat._urls import is_loopback, validate_base_url  # noqa: PLC0415  # only this setting needs them

        validate_base_url(value, is_loopback(value))
    if not value.strip() and name not in ("pager", "system"):
        raise BadConfig(f"{name} is not empty", hint=f"hitherto config unset {name} removes it")
