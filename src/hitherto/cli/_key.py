"""`hitherto key`: make a key, look at it, change it; seal a store and unseal it.

A key is never on the command line and never printed. A command takes the key's source, and prints its id, which
identifies the key without revealing it. No command makes a key as a side effect: `key new` makes one and keeps it,
before anything depends on it.

A change of keys can be stopped anywhere; the same command finishes it. From the beginning of a rotation on, only the
new key opens the store, so the new key is tried where the old one fails.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from .. import errors
from .._system import config_file
from .._system.terminal_text import escape_control_characters
from ._exit_codes import LOCKED, UNSOUND
from ._options import accountable, without_asking
from ._output import Meter, confirm, print_json
from ._store_options import Place, key_from, with_place
from ._terminal import say

if TYPE_CHECKING:
    from ..keys import Key
    from ..reports import RotationProgress, RotationReport
    from ..store import Store

_to = click.option("--to", metavar="SOURCE", required=True, help="Where the new key is: file:PATH, keyring:SERVICE, …")


@click.group()
def key() -> None:
    """Make, look at and change the key of a sealed store.

    A key is named by where it is: file:PATH, command:WORDS, keyring:SERVICE or credential:NAME. It is never shown.
    """


@key.command(short_help="Make a key, and keep it.")
@click.argument("source")
def new(source: str) -> None:
    """Make a key and keep it in SOURCE: file:PATH, or keyring:SERVICE. Prints its id, never the key.

    Nothing is written over. A new store is sealed with it by `hitherto init --key SOURCE`, one that is there by
    `hitherto key seal --to SOURCE`.
    """
    from ..keys import Key  # noqa: PLC0415  # help needs none

    kind, _, rest = source.partition(":")
    if kind not in ("file", "keyring") or not rest:
        raise click.UsageError("a new key is kept in file:PATH or in keyring:SERVICE")
    made = Key.generate()
    if kind == "file":
        made.to_file(os.path.expanduser(rest))
    else:
        made.to_keyring(rest)
    click.echo(made.id)
    say("keep a copy of it away from the store: without it a sealed store cannot be read")


@key.command(short_help="Is the store sealed, and does the key open it?")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def status(place: Place, as_json: bool) -> int:
    """Print whether the store is sealed, with which key, where the key comes from and whether it opens the store.

    Nothing is written. The exit code is 6 if the key is missing, or another one.
    """
    from ..opening import key_id_of  # noqa: PLC0415  # help needs none

    place.require()
    lasts = place.path is not None or place.is_server
    wanted = key_id_of(place.location, place.workspace) if lasts else None
    unfinished, problem = _try_opening(place)
    if as_json:
        fields = {"sealed": wanted is not None, "key_id": wanted, "source": place.key, "opens": problem is None}
        print_json(fields | {"unfinished": unfinished, "problem": problem})
    else:
        what = "database" if place.is_server else "file"
        click.echo(f"plain: the {what} can be read without a key" if wanted is None else f"sealed with key {wanted}")
        if place.key is not None:
            click.echo(escape_control_characters(f"the key comes from {place.key}"))
        if wanted is not None or problem is not None:
            click.echo(
                "it opens the store" if problem is None else escape_control_characters(f"it does not open: {problem}")
            )
        if unfinished:
            click.echo("a change of keys is unfinished: the same command again finishes it")
    return 0 if problem is None else LOCKED


def _try_opening(place: Place) -> tuple[bool | None, str | None]:
    """Open the store read-only. Return whether a change of keys is unfinished, and the error that prevents opening."""
    from .._sealing.rotation import pending  # noqa: PLC0415  # help needs none
    from ..opening import open as open_store  # noqa: PLC0415  # as above

    try:
        with open_store(place.location, key=place.secret(), workspace=place.workspace, read_only=True) as store:
            return pending(store.engine), None
    except (errors.KeyUnavailable, errors.InvalidKey, errors.NotSealed) as error:
        return None, str(error)


# -- changing keys


@key.command(short_help="Give the store another key.")
@_to
@click.option("--reencrypt", is_flag=True, help="Encrypt everything anew: for a key that may have leaked.")
@without_asking
@accountable
@with_place
def rotate(place: Place, to: str, reencrypt: bool, yes: bool) -> int:
    """Give a sealed store the key that is in --to. From the first moment on, only that one opens it.

    `hitherto key new` makes it before. Other processes go on reading and writing. If it is stopped, the same command
    goes on.
    """
    from .._sealing.rotation import pending  # noqa: PLC0415  # help needs none

    made = key_from(to)
    with _open_store(place, made) as store:
        if store.key_id is None:
            raise errors.NotSealed("the store is plain", hint="hitherto key seal --to SOURCE seals it")
        if store.key_id == made.id and (pending(store.engine) or not reencrypt):
            reencrypt = False  # finish the rotation in the way it began
        else:
            how = "everything is encrypted anew" if reencrypt else "the keys of all conversations are wrapped anew"
            say(f"key {store.key_id} is replaced by {made.id}, and {how}")
            confirm("From then on the old key does not open the store. Go on?", yes=yes)
        done = _change_keys("rotating", lambda tell: store.rotate(made, reencrypt=reencrypt, progress=tell))
    return _report(done, f"only key {made.id} opens the store", to)


@key.command(short_help="Seal a store that is plain.")
@_to
@without_asking
@accountable
@with_place
def seal(place: Place, to: str, yes: bool) -> int:
    """Encrypt everything in a plain store with the key that is in --to. `hitherto key new` makes it before.

    Other processes go on until they open the store again: then they need the key. Backups that were made before stay
    plain.
    """
    made = key_from(to)
    with _open_store(replace(place, key=None), made) as store:
        if store.key_id is None:
            say(f"conversations to be sealed with key {made.id}: {store.stats().conversations:,}")
            confirm("Without that key the store cannot be read. Go on?", yes=yes)
        done = _change_keys("sealing", lambda tell: store.seal(made, progress=tell))
    return _report(done, f"only key {made.id} opens the store", to)


@key.command(short_help="Make a sealed store plain.")
@without_asking
@accountable
@with_place
def unseal(place: Place, yes: bool) -> int:
    """Decrypt everything in a sealed store: then the file, or the database, can be read without a key."""
    with place.open() as store:
        if store.key_id is None:
            raise errors.NotSealed("the store is plain already", hint="there is nothing to do")
        say(f"conversations to be decrypted: {store.stats().conversations:,}")
        what = "database" if place.is_server else "file"
        confirm(f"From then on the {what} can be read without a key. Go on?", yes=yes)
        done = _change_keys("unsealing", lambda tell: store.unseal(progress=tell))
    return _report(done, "the store is plain, and opens without a key", None)


def _open_store(place: Place, made: "Key") -> "Store":
    """Open the store by its key, or by the new key if the store has that already."""
    from ..opening import open as open_store  # noqa: PLC0415  # help needs none

    try:
        return place.open()
    except errors.KeyUnavailable as error:
        try:
            return open_store(place.location, key=made, workspace=place.workspace)
        except errors.KeyUnavailable as other:
            raise (other if place.key is None else error) from None


def _change_keys(
    what: str, change: "Callable[[Callable[[RotationProgress], None]], RotationReport]"
) -> "RotationReport":
    """Run a change of keys and show its progress."""
    with Meter(what, "conversation") as meter:
        try:
            return change(lambda progress: meter(progress.done, progress.total))
        except KeyboardInterrupt:
            say("stopped: nothing is lost, and the same command again finishes it; hitherto key status tells")
            raise


def _report(done: "RotationReport", after: str, to: str | None) -> int:
    """Print the result, and the steps that are left to the user. Return the exit code."""
    say(f"conversations brought up to date: {done.conversations:,}")
    for id, problem in done.failures:
        say(f"{id}: {problem}")
    if done.complete:
        say(f"{after}; backups made before are as they were")
    else:
        say("not complete: what is damaged still needs the old key, so keep it; hitherto verify names it")
    if done.scrub_pending:
        say("old bytes are still in the file, because a reader has it open; they go when the reader has ended")
    named = {"HITHERTO_KEY": os.environ.get("HITHERTO_KEY"), config_file.path(): config_file.load().get("key")}
    for where, source in named.items():
        if source and source != to:
            say(f"{where} says {source}: {'remove that' if to is None else f'change that to {to}'}")
    return 0 if done.complete else UNSOUND
