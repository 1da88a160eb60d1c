"""`hitherto login` and `hitherto logout`: keep the key of a provider, and forget it.

The key is typed without being shown, or comes on standard input. It is never an argument, which other users could see.
"""

import os
import sys
from importlib.util import find_spec

import click

from .. import errors
from ..keys import Problem
from . import _credentials
from ._exit_codes import NOTHING
from ._options import without_asking
from ._providers import PROVIDERS, ProviderName, find_keys
from ._terminal import is_terminal, say

_LONGEST = 4096  # characters of a key
_NO_KEYRING = "keyring.backends.fail."  # the library's, where there is nothing


@click.command(short_help="Keep the key of a provider.")
@click.argument("name", type=ProviderName())
@without_asking
def login(name: str, yes: bool) -> None:
    """Keep the key of the provider NAME, so that no variable has to be set.

    The key goes into the keyring of the operating system. Where there is none, it goes into a file that only you can
    read, after a question. It is typed without being shown, or comes on standard input.
    """
    if not PROVIDERS[name].models:
        hint = "claude-local has its own login: run claude once" if name == "claude-local" else "just use it"
        if name == "openai-compatible":
            hint = "for a server that wants one, set OPENAI_API_KEY and OPENAI_BASE_URL together"
        raise errors.InvalidArgument(f"hitherto keeps no key for {name}", hint=hint)
    ring = _credentials.find_keyring()
    if isinstance(ring, Problem):
        what = "the operating system has none here" if _NO_KEYRING in ring.what else ring.what
        say(f"the key cannot go into a keyring: {what}")
        if find_spec("keyring") is None:
            say(f"to use the one of the operating system, where there is one: {ring.hint}, and log in again")
        say(f"so the key goes into a file that only you can read: {_credentials.path()}")
        _ask_for_file(yes=yes)
    key = _read_key(name)
    _credentials.keep(name, key, None if isinstance(ring, Problem) else ring)
    where = f"in {_credentials.path()}" if isinstance(ring, Problem) else "in the keyring"
    say(f"the key of {name} is kept {where}; hitherto logout {name} removes it")
    variable = find_keys().get(name)
    if variable is not None:
        say(f"{variable} is set as well, and goes before it")


def _ask_for_file(*, yes: bool) -> None:
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError("there is no keyring, and no terminal to ask on: --yes says that a file will do")
    say("keep it there? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


def _read_key(name: str) -> str:
    """Read the key. An error says nothing about its content."""
    if is_terminal(sys.stdin):
        from getpass import getpass  # noqa: PLC0415  # only a terminal needs it

        key = getpass(f"key of {name} (it is not shown): ", stream=sys.stderr).strip()
    else:
        key = sys.stdin.readline(_LONGEST + 2).strip()
    if not key:
        raise click.UsageError("no key was given: type it, or bring it on standard input")
    if len(key) > _LONGEST or not key.isascii() or not key.isprintable() or " " in key:
        raise click.UsageError("that is no key: a key is one word of ASCII letters, digits and signs")
    return key


@click.command(short_help="Forget the key of a provider.")
@click.argument("name", type=ProviderName())
def logout(name: str) -> int:
    """Forget the key of the provider NAME that login has kept."""
    if not _credentials.forget(name):
        say(f"no key of {name} is kept")
        return NOTHING
    say(f"the key of {name} is forgotten here; only the provider can make it invalid")
    variable = find_keys(os.environ).get(name)
    if variable is not None:
        say(f"{variable} is set, and is used all the same")
    return 0
