"""`hitherto completion`, and the completion of ids.

The shell script is click's own: at each Tab it runs `hitherto` with `_HITHERTO_COMPLETE` set and shows the output. Ids
are looked up in the store that the command would use, which is opened read-only.

A shell cannot show an error during completion. So any failure means that nothing is offered; the command itself reports
the error when it runs.
"""

import os
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from ._options import NAMES
from ._store_options import place_of
from ._terminal import line, moment, say

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..listing import ConversationInfo
    from ..store import Store

_SHELLS = ("bash", "zsh", "fish")
_INSTALLED = {
    "bash": 'put this into ~/.bashrc:  eval "$(hitherto completion bash)"',
    "zsh": 'put this into ~/.zshrc, after compinit:  eval "$(hitherto completion zsh)"',
    "fish": "hitherto completion fish > ~/.config/fish/completions/hitherto.fish",
}
_MOST = 20  # conversations, and messages of the newest one
_SHORT = 8  # characters of a conversation's id: enough to be unique
_HELP = 60  # columns
_ANSWER_SECONDS = 2.0  # for a server's answer: the user has pressed Tab and waits


@click.command(short_help="Completion of commands for bash, zsh and fish.")
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
def completion(shell: str | None) -> None:
    """Print the script that lets a shell complete commands, options and ids. SHELL is the one of $SHELL if left out.

    How to install it is said on standard error.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415  # ids need it later

    shell = shell or os.path.basename(os.environ.get("SHELL", ""))
    kind = get_completion_class(shell) if shell in _SHELLS else None
    if kind is None:
        raise click.UsageError(f"which shell? Give one of {', '.join(_SHELLS)}")
    click.echo(kind(click.get_current_context().find_root().command, {}, "hitherto", "_HITHERTO_COMPLETE").source())
    say(_INSTALLED[shell])


def complete_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Return the newest conversations and the newest one's messages: for `@click.argument("id", shell_complete=…)`."""
    import logging  # noqa: PLC0415  # only completion needs it

    from click.shell_completion import CompletionItem  # noqa: PLC0415  # as above

    logging.getLogger("hitherto").addHandler(logging.NullHandler())  # or a warning would overwrite the typed line
    try:
        with _open_store(ctx) as store:
            found = [(id, line(told[: 4 * _HELP], _HELP)) for id, told in _candidates(store, incomplete)]
            return [CompletionItem(id, help=told) for id, told in found]
    except Exception:  # noqa: BLE001  # missing, sealed, busy, damaged, or a bug: see above
        return []


def _open_store(ctx: click.Context) -> "Store":
    """Open the store that the command would use. A key is fetched from a file only: other sources may ask the user."""
    from ..opening import open as open_store  # noqa: PLC0415  # as above

    above, given = ctx.find_root().params, ctx.params
    store, workspace, key = (given.get(name) or above.get(name) for name in NAMES)
    place = place_of(store, workspace, key)
    secret = place.secret() if place.key is not None and place.key.startswith("file:") else None
    seconds = _ANSWER_SECONDS if place.is_server else 0
    return open_store(place.location, key=secret, workspace=place.workspace, read_only=True, timeout_seconds=seconds)


def _candidates(store: "Store", incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield ids, each with its description."""
    recent = [info for info in store.conversations(limit=_MOST) if info.problem is None]
    for info in recent:
        if info.id.startswith(incomplete):
            yield info.id if len(incomplete) > _SHORT else info.id[:_SHORT], _describe(info)
    if recent and len(incomplete) <= _SHORT:
        messages = store.messages(conversation=recent[0], attachments="lazy")
        for message in islice(messages, _MOST):
            if message.id.startswith(incomplete) and message.problem is None:
                yield message.id, f"[{message.role}] {message.text}"


def _describe(info: "ConversationInfo") -> str:
    return f"{moment(info.active_at)} {info.title or 'without a title'}"
