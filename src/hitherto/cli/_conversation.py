"""`hitherto conversation` and `hitherto show`.

They list all conversations as a tree, print a thread, and delete messages.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from .. import errors
from ._completion import complete_ids
from ._conversation_pages import iterate_conversations
from ._exit_codes import UNSOUND
from ._ids import find_conversation, find_or_newest, here, is_message
from ._message_text import as_json, fit_encoding, room, thread_lines
from ._options import without_asking
from ._output import confirm, count_of, print_json, print_lines
from ._store_options import Place, with_place
from ._terminal import say
from ._tree import draw_tree, make_brief

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..events import Event
    from ..listing import ConversationInfo
    from ..model import Saved
    from ..store import Store

_PAGE = 200  # conversations in a page
_ALIASES = {"ls": "list", "show": "print", "view": "print", "rm": "delete", "remove": "delete"}
DESCRIPTION = ("title", "project", "metadata", "created_at")  # the fields that may be unreadable
ROW = ("active_at", "expires_at", "count", "head", "held", "problem")
_MESSAGE = ("id", "parent", "seq", "role", "created_at", "label", "main", "text", "problem")


KIND = click.option(
    "--kind", default="chat", show_default=True, help="Conversations of this kind: langgraph has LangGraph's threads."
)


class _Group(click.Group):
    """A group whose commands have more than one name."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))


@click.group(cls=_Group, short_help="Their messages as a tree; print and delete them (convo, conv).")
def conversation() -> None:
    """List, print and delete conversations.

    The commands have other names, too: ls for list; show and view for print; rm and remove for delete.
    """


# -- list


@conversation.command("list", short_help="List all messages, as a tree (ls).")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the N conversations that were active last.")
@click.option("--project", type=click.Path(), metavar="PATH", help="Only conversations of this folder.")
@click.option("--here", "is_here", is_flag=True, help="Only conversations of the folder you are in.")
@click.option(
    "--metadata",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only conversations whose metadata has this pair. Repeatable: all of them.",
)
@KIND
@click.option("--json", "as_lines", is_flag=True, help="One JSON object per conversation, the newest first.")
@with_place
def list_(
    place: Place,
    limit: int | None,
    project: str | None,
    is_here: bool,
    pairs: tuple[str, ...],
    kind: str,
    as_lines: bool,
) -> int:
    """Show every message that is kept, a line each, as a tree; what was active last stands last.

    A line is an id, a time, who speaks, and the beginning of the text. Where a message has several answers, they
    are moved to the right; a dashed line ends each branch. Lines are cut to the width of the terminal, in a pipe to
    COLUMNS, else to 120 columns.
    """
    folder, metadata = choose_folder(project, is_here=is_here), parse_metadata(pairs)
    with place.read() as store:
        listing = Listing(store)
        infos = listing.conversations(folder, metadata, limit, kind)
        if as_lines:
            for info in infos:
                print_json(_fields(info, listing))
        else:
            lines = map(fit_encoding, listing.lines(folder, metadata, limit, room(), kind))
            first = next(lines, None)
            if first is None:
                say("there are no conversations here yet")
            else:
                print_lines(chain([first], lines), at_end=True)
        return listing.finish()


def choose_folder(project: str | None, *, is_here: bool) -> str | None:
    """Return the folder that --here or --project names."""
    if is_here and project is not None:
        raise click.UsageError("--here and --project name a folder each: give one of them")
    folder = here() if is_here else project
    if is_here and folder is None:
        raise click.UsageError("the folder you are in is gone")
    return folder


def parse_metadata(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse the pairs of --metadata."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError("--metadata takes KEY=VALUE, such as --metadata owner=ada")
        if found.setdefault(key, value) != value:
            raise click.UsageError("--metadata names two values for one key: no conversation has both")
    return found


class Listing:
    """Lists conversations with their messages. An unreadable one is reported, and the listing continues."""

    def __init__(self, store: "Store") -> None:
        self._store, self._problems = store, 0
        store.subscribe(self._on_event)

    def _on_event(self, event: "Event") -> None:
        """Report a conversation that was tampered with. No page contains it; on a read-only store this event is its
        only trace."""
        from ..events import Quarantined  # noqa: PLC0415  # help needs none

        if isinstance(event, Quarantined) and event.message is None:
            self._note(f"conversation {event.conversation}", event.problem)

    def conversations(
        self, project: str | None, metadata: dict[str, str], limit: int | None, kind: str
    ) -> "Iterator[ConversationInfo]":
        """Yield the conversations, the newest first."""
        for info in self._newest(project, metadata, limit, kind):
            with suppress(errors.NotFound):  # purged meanwhile
                self._note(f"conversation {info.id}", info.problem)
                yield info

    def lines(
        self, project: str | None, metadata: dict[str, str], limit: int | None, width: int, kind: str = "chat"
    ) -> Iterator[str]:
        """Yield the trees of the conversations, the newest last. Each conversation is read when its turn comes."""
        from .._engine.selection import newest_last  # noqa: PLC0415  # help needs none

        infos = (
            newest_last(self._store.engine, project, metadata, kind)
            if limit is None
            else reversed([*self._newest(project, metadata, limit, kind)])
        )
        for info in infos:
            with suppress(errors.NotFound):  # as above
                self._note(f"conversation {info.id}", info.problem)
                yield from draw_tree(map(make_brief, self.messages(info)), width)

    def _newest(
        self, project: str | None, metadata: dict[str, str], limit: int | None, kind: str
    ) -> "Iterator[ConversationInfo]":
        size = min(limit or _PAGE, _PAGE)
        infos = iterate_conversations(self._store, project=project, metadata=metadata, kind=kind, page_size=size)
        return islice(infos, limit)

    def messages(self, info: "ConversationInfo") -> "Iterator[Saved]":
        """Yield the messages of a conversation by sequence."""
        try:
            for message in self._store.messages(conversation=info, newest_first=False, attachments="lazy"):
                self._note(f"message {message.id}", message.problem)
                yield message
        except errors.NotFound:  # as above
            return
        except errors.Damaged as error:
            self._note(f"conversation {info.id}", str(error))

    def _note(self, what: str, problem: str | None) -> None:
        if problem is not None:
            self._problems += 1
            say(f"warning: {what}: {problem}")

    def finish(self) -> int:
        """Return the exit code."""
        self._store.wait_for_listeners()
        if not self._problems and not self._store.quarantine():
            return 0
        say("some records cannot be read: hitherto quarantine and hitherto verify name them")
        return UNSOUND


def _fields(info: "ConversationInfo", listing: Listing) -> dict[str, object]:
    fields = {name: None if info.problem else getattr(info, name) for name in DESCRIPTION}
    found = {"id": info.id} | fields | {name: getattr(info, name) for name in ROW}
    return found | {"messages": [{name: getattr(m, name) for name in _MESSAGE} for m in listing.messages(info)]}


# -- print


@click.command(short_help="Print a conversation, tool calls folded.")
@click.argument("id", required=False, shell_complete=complete_ids)
@click.option("--full", is_flag=True, help="Unfold tool calls, their results, thoughts and system prompts.")
@click.option("--json", "as_lines", is_flag=True, help="One JSON object per message.")
@with_place
def show(place: Place, id: str | None, full: bool, as_lines: bool) -> int:
    """Print a thread as it was said: from its first message to the one of that ID; of a conversation, to its head.

    An ID is that of a message or a conversation, or as much of one as is unique; @ is the conversation of this folder
    that was active last, @~1 the one before; without one, @ is meant, or the newest of all. Tool calls and their
    results are folded to a line each.
    """
    with place.read() as store:
        return _print(find_or_newest(store, id), full=full, as_lines=as_lines)


conversation.add_command(show, "print")


def _print(talk: "Conversation", *, full: bool, as_lines: bool) -> int:
    code = 0
    messages = talk.thread(attachments="lazy")
    try:
        held_with = {change.message_id: change.setup for change in talk.setups()}
    except errors.Damaged as error:  # the messages matter more than their setup
        say(f"warning: {error}")
        held_with, code = {}, UNSOUND
    if as_lines:
        model = ""
        for message in messages:
            model = held_with[message.id].model if message.id in held_with else model
            print_json(as_json(message, model if message.role == "assistant" else None))
    else:
        print_lines(map(fit_encoding, thread_lines(messages, held_with, full=full)))
    _say_rest(talk, messages)
    return code


def _say_rest(talk: "Conversation", messages: "list[Saved]") -> None:
    """Print the conversation that this thread continues, and the interrupted answers in it."""
    if not messages:
        say("the conversation has no messages yet")
        return
    if messages[0].link is not None:
        what = "sums up what was said up to" if messages[0].main else "was started by"
        say(f"this thread {what} {messages[0].link}: hitherto show {messages[0].link}")
    ids = {message.id for message in messages}
    for partial in talk.partials():
        if partial.parent in ids:
            say(f"an answer to {partial.parent} was interrupted: hitherto chat -c {partial.parent} offers what came")


# -- delete


@conversation.command("delete", short_help="Delete messages; with --cascade what stands below them (rm, remove).")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_ids)
@click.option("--cascade", is_flag=True, help="Delete all that stands below, too, and the traces of sub-agents.")
@without_asking
@with_place
def delete(place: Place, ids: tuple[str, ...], cascade: bool, yes: bool) -> None:
    """Delete messages, all of them or none.

    A message that others stand below goes only with --cascade, and takes them along. The ID of a conversation means all
    that was said in it; its title stays. To destroy a conversation for good, without a trace in the files: hitherto
    purge.
    """
    with place.open() as store:
        roots, doomed = _plan(store, ids, cascade=cascade)
        if not doomed:
            say("the conversation has no messages yet")
            return
        say(f"to be deleted: {count_of(len(doomed), 'message')}")
        confirm("Delete this?", yes=yes)
        say(f"deleted: {count_of(len(store.delete(roots, recursive=cascade)), 'message')}")


def _plan(store: "Store", ids: Iterable[str], *, cascade: bool) -> tuple[list[str], set[str]]:
    """Return the messages to delete, and all messages that go with them. Raise here, before the user is asked."""
    roots: dict[str, None] = {}
    doomed: set[str] = set()
    answered: set[str | None] = set()
    for id in ids:
        talk = find_conversation(store, id)
        if talk.held:
            raise errors.Held(f"conversation {talk.id} is on hold")
        messages = list(store.messages(conversation=talk, newest_first=False, attachments="lazy"))
        alone = is_message(id, talk)
        own = dict.fromkeys(m.id for m in messages if (m.id == talk.at if alone else m.parent is None))
        roots |= own
        doomed |= own.keys()
        for m in messages:  # by sequence, so parents come first
            # A sub-agent's trace goes with the call that started it.
            above = m.link if m.parent is None and not m.main else m.parent
            answered.add(above)
            if above in doomed:
                doomed.add(m.id)
    if not cascade and doomed != roots.keys():
        raise errors.HasChildren([id for id in roots if id in answered])
    return list(roots), doomed
