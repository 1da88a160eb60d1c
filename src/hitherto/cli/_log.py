"""`hitherto log`, `branches` and `compare`: overviews of a conversation.

A line for each message, a drawing of the branches, a list of their ends, and the difference of two threads.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import click

from ._completion import complete_ids
from ._exit_codes import UNSOUND
from ._graph import Row, draw_graph
from ._ids import find_conversation, find_or_newest
from ._message_text import as_json, fit_encoding, format_brief, message_lines, room
from ._output import count_of, paint, print_json, print_lines
from ._store_options import Place, with_place
from ._terminal import columns, line, moment, say
from ._tree import Brief, brief_line, make_brief

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..model import Saved
    from ..reports import Branch
    from ..store import Store
    from ..threads import Comparison

_SIDE_BY_SIDE = 100  # columns that two threads need to stand side by side
_ID = 6


# -- log


@click.command(short_help="The messages of a conversation, a line each; --graph draws its branches.")
@click.argument("id", required=False, shell_complete=complete_ids)
@click.option("--graph", is_flag=True, help="Draw the branches of the whole conversation, straight runs folded.")
@click.option("--all", "everything", is_flag=True, help="The messages of all branches; in a graph, fold nothing.")
@click.option("-n", "limit", type=click.IntRange(1), metavar="N", help="At most N messages.")
@click.option("--json", "as_lines", is_flag=True, help="One JSON object per message; with --graph, of all branches.")
@with_place
def log(place: Place, id: str | None, graph: bool, everything: bool, limit: int | None, as_lines: bool) -> int:
    """Show the messages that lead to the one of that ID, the newest first, a line each; of a conversation, to its head,
    across compactions. Without an ID, the conversation of this folder that was active last is meant.

    With --graph the whole conversation is drawn: the thread that leads to its head on the left, the others beside it,
    each above the message where it parts.
    """
    with place.read() as store:
        talk = find_or_newest(store, id)
        messages = _all(store, talk) if graph or everything else talk.thread(full=True, attachments="lazy")[::-1]
        if not messages:
            say("the conversation has no messages yet")
        if as_lines:
            for message in messages[:limit]:
                print_json(as_json(message) | {"head": message.id == talk.head, "problem": message.problem})
        elif graph:
            rows = draw_graph([make_brief(m) for m in reversed(messages)], talk.head, fold=not everything)
            print_lines(fit_encoding(_graph_line(row)) for row in _limit_rows(rows, limit))
        else:
            print_lines(fit_encoding(_log_line(make_brief(m), talk.head)) for m in messages[:limit])
        return _unsound(messages)


def _all(store: "Store", talk: "Conversation") -> "list[Saved]":
    """Return the messages of all branches, the newest first."""
    return list(store.messages(conversation=talk, attachments="lazy"))


def _unsound(messages: "Iterable[Saved]") -> int:
    problems = [message for message in messages if message.problem is not None]
    for message in problems:
        say(f"warning: message {message.id}: {message.problem}")
    return UNSOUND if problems else 0


def _limit_rows(rows: Iterator[Row], limit: int | None) -> Iterator[Row]:
    left = limit
    for row in rows:
        yield row
        if left is not None and row.message is not None:
            left -= 1
            if not left:
                return


def _log_line(message: Brief, head: str | None) -> str:
    words = ("HEAD" if message.id == head else "", message.label or "")
    return format_brief(message, _annotate(message, [word for word in words if word]))


def _graph_line(row: Row) -> str:
    """Return a line of the drawing. If the rails leave no room for an id, those on the left are cut."""
    width = room()
    most = max(2, width - _ID - 3)
    rails = row.rails if len(row.rails) <= most else "…" + row.rails[1 - most :]
    left = width - len(rails) - 1
    rails = paint(rails, "green" if "●" in rails else "dim")
    if row.message is not None:
        return f"{rails} {format_brief(row.message, _annotate(row.message, row.words), left)}"
    return f"{rails} {line(count_of(row.folded, 'message'), left)}" if row.folded else rails


def _annotate(message: Brief, words: Sequence[str]) -> str:
    """Return a message on one line, with notes behind its id."""
    return brief_line(message) if not words else f"{message.id} ({', '.join(words)}){brief_line(message)[_ID:]}"


# -- branches


@click.command(short_help="List the branches of a conversation.")
@click.argument("id", required=False, shell_complete=complete_ids)
@click.option("--json", "as_lines", is_flag=True, help="One JSON object per branch.")
@with_place
def branches(place: Place, id: str | None, as_lines: bool) -> int:
    """List every end of a conversation's tree, the most recently active first: its id, how many messages lead to it,
    when it was active, its label, and how its last message begins.

    hitherto chat -c ID goes on there; hitherto show ID shows the thread.
    """
    with place.read() as store:
        talk = find_or_newest(store, id)
        found = talk.branches()
        wanted = {branch.id for branch in found}
        last = {message.id: message for message in _all(store, talk) if message.id in wanted}
        ends = [branch for branch in found if branch.id in last]
        if as_lines:
            for branch in ends:
                print_json(_branch_fields(branch, last[branch.id], talk.head))
        else:
            print_lines(map(fit_encoding, _table(ends, last, talk.head)))
        return _unsound(last.values())


def _branch_fields(branch: "Branch", message: "Saved", head: str | None) -> dict[str, object]:
    fields = {"text": message.text, "problem": message.problem}
    return {"id": branch.id, "depth": branch.depth, "active_at": branch.active_at, "label": branch.label,
            "main": branch.main, "head": branch.id == head, **fields}  # fmt: skip


def _table(ends: "Collection[Branch]", last: "dict[str, Saved]", head: str | None) -> Iterator[str]:
    digits = max((len(f"{branch.depth:,}") for branch in ends), default=1)
    for branch in ends:
        words = ("HEAD" if branch.id == head else "", "" if branch.main else "aside", branch.label or "")
        noted = ", ".join(word for word in words if word)
        message = make_brief(last[branch.id])
        start = f"{branch.id} {branch.depth:>{digits},} {moment(branch.active_at)}"
        yield format_brief(message, f"{start} {f'({noted}) ' if noted else ''}{message.summary}")


# -- compare


@click.command(short_help="Compare two threads: the shared part, and the rest of each.")
@click.argument("left", metavar="A", shell_complete=complete_ids)
@click.argument("right", metavar="B", shell_complete=complete_ids)
@click.option("--full", is_flag=True, help="All that each side says after that, in place of a line for each message.")
@click.option("--json", "as_object", is_flag=True, help="One JSON object.")
@with_place
def compare(place: Place, left: str, right: str, full: bool, as_object: bool) -> None:
    """Show what two threads share, the message where they part, and what each has after that.

    A and B are messages or conversations. Beside each other if there are 100 columns, else one below the other.
    """
    from ..threads import compare as compared  # noqa: PLC0415  # help needs none

    with place.read() as store:
        sides = find_conversation(store, left), find_conversation(store, right)
        found = compared(_Lazy(sides[0]), _Lazy(sides[1]))
        if as_object:
            fields = {"shared": len(found.shared), "fork": found.fork}
            pairs = zip(("left", "right"), sides, (found.left, found.right), strict=True)
            print_json(fields | {name: _side(talk, messages) for name, talk, messages in pairs})
            return
        rest = (left, found.left), (right, found.right)
        names = [f"{name}: {count_of(len(more), 'message')} more" for name, more in rest]
        print_lines(fit_encoding(text) for text in _comparison_lines(found, names, full=full))


class _Lazy(NamedTuple):
    """A thread whose attachments are not loaded."""

    talk: "Conversation"

    def thread(self) -> "list[Saved]":
        return self.talk.thread(attachments="lazy")


def _side(talk: "Conversation", messages: "list[Saved]") -> dict[str, object]:
    return {"conversation": talk.id, "at": talk.at, "messages": [as_json(message) for message in messages]}


def _comparison_lines(found: "Comparison", names: list[str], *, full: bool) -> Iterator[str]:
    width = room()
    if found.shared:
        yield line(f"{count_of(len(found.shared), 'message')} shared, the last of them:", width)
        yield format_brief(make_brief(found.shared[-1]))
    else:
        yield "they share nothing"
    yield ""
    if width >= _SIDE_BY_SIDE and not full:
        yield from _beside(names, found, width)
        return
    for number, (name, messages) in enumerate(zip(names, (found.left, found.right), strict=True)):
        if number:
            yield ""
        yield paint(line(name, width), "bold")
        for message in messages:
            yield from message_lines(message, "", full=True) if full else [format_brief(make_brief(message))]


def _beside(names: list[str], found: "Comparison", width: int) -> Iterator[str]:
    half = (width - 3) // 2
    left = [names[0], *(brief_line(make_brief(message)) for message in found.left)]
    right = [names[1], *(brief_line(make_brief(message)) for message in found.right)]
    for number, (mine, theirs) in enumerate(zip_longest(left, right, fillvalue="")):
        cut = line(mine, half)
        row = f"{cut}{' ' * (half - columns(cut))} │ {line(theirs, half)}".rstrip()
        yield row if number else paint(row, "bold")
