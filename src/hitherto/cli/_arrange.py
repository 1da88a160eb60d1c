"""Commands that arrange conversations: title, label, hold, fork.

A fork on the command line is recorded, so that the next `hitherto chat` continues there: as one small message of the
role `event`, which no model ever sees. Nothing is copied, and later messages stay on their branch.
"""

from typing import TYPE_CHECKING

import click

from ._completion import complete_ids
from ._ids import find_conversation
from ._output import print_json
from ._store_options import Place, with_place
from ._terminal import line, say, width

if TYPE_CHECKING:
    from ..conversation import Conversation

_id = click.argument("id", shell_complete=complete_ids)


@click.command(short_help="Go on from an earlier message; nothing is lost or copied.")
@_id
@click.option("--label", metavar="NAME", help="A name for the new branch.")
@click.option("--detach", is_flag=True, help="Make a separate conversation: a copy of the thread up to there.")
@click.option("--title", metavar="TEXT", help="The title of that conversation.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def fork(place: Place, id: str, label: str | None, detach: bool, title: str | None, as_json: bool) -> None:
    """Begin a branch at the message ID: the next `hitherto chat` goes on from there.

    The messages after it stay where they are, on a branch of their own, and nothing is copied. Prints the id at which
    the branch begins; with --detach, the id of the new conversation.
    """
    if title is not None and not detach:
        raise click.UsageError("--title is for the conversation that --detach makes")
    if label is not None and detach:
        raise click.UsageError("--label names a branch, and --detach makes none")
    with place.open() as store:
        talk = find_conversation(store, id)
        if detach:
            alone = talk.detach(title=title)
            conversation, message = alone.id, alone.at
        else:
            conversation, message = talk.id, _begin(talk, label)
    if as_json:
        print_json({"conversation": conversation, "message": message, "from": talk.at})
        return
    click.echo(conversation if detach else message)
    say(f"hitherto chat -c {conversation[:8] if detach else message} goes on from there")


def _begin(talk: "Conversation", label: str | None) -> str:
    """Append the event that begins a branch at the handle's position, and return its id."""
    from ..model import Block, Message, Role  # noqa: PLC0415  # help needs none

    if talk.at is None:
        raise click.UsageError("nothing has been said in this conversation: there is no message to fork at")
    event = Message(Role.EVENT, (Block.text("forked here"),), label=label, extra={"fork": talk.at})
    return talk.fork(talk.at).append(event).id


@click.command(short_help="Give a conversation another title.")
@_id
@click.argument("title")
@with_place
def rename(place: Place, id: str, title: str) -> None:
    """Give the conversation ID, or the one that the message ID is in, another TITLE."""
    with place.open() as store:
        talk = find_conversation(store, id)
        before = talk.title
        talk.rename(title)
    say(line(f"renamed {talk.id[:8]}, which was called {before}" if before else f"named {talk.id[:8]}", width()))


@click.command(short_help="Give a message a name of your own.")
@_id
@click.argument("label", required=False)
@click.option("--remove", is_flag=True, help="Take the label away.")
@with_place
def label(place: Place, id: str, label: str | None, remove: bool) -> None:
    """Give the message ID a LABEL, which lists and pictures show; for a conversation, its newest message."""
    if (label is None) != remove:
        raise click.UsageError("give a label, or --remove")
    with place.open() as store:
        talk = find_conversation(store, id)
        talk.label(label)
    say(f"{'took the label from' if remove else 'labelled'} {talk.at}")


@click.command(short_help="Protect a conversation from deletion.")
@_id
@with_place
def hold(place: Place, id: str) -> None:
    """Put the conversation ID on hold: until it is released, nothing of it can be deleted, purged or expire."""
    with place.open() as store:
        talk = find_conversation(store, id)
        talk.hold()
    say(f"on hold: {talk.id}")


@click.command(short_help="Release a conversation from its hold.")
@_id
@with_place
def release(place: Place, id: str) -> None:
    """Take the hold from the conversation ID."""
    with place.open() as store:
        talk = find_conversation(store, id)
        talk.release()
    say(f"released: {talk.id}")
