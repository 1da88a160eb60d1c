"""`hitherto list`: a line for each conversation, the newest first.

A line is printed as soon as its conversation is read, so that the first ones stand there at once however many there
are.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from .. import errors
from ..backend import CHAT
from ._conversation import DESCRIPTION, KIND, ROW, Listing, choose_folder, parse_metadata
from ._message_text import fit_encoding, room
from ._output import count_of, print_json, print_lines
from ._store_options import Place, with_place
from ._terminal import cut, line, moment, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..listing import ConversationInfo
    from ..store import Store

_AGES = ((365 * 86_400, "y"), (86_400, "d"), (3600, "h"), (60, "m"))


@click.command("list", short_help="List the conversations, a line each (ls).")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the N conversations that were active last.")
@click.option("--project", type=click.Path(), metavar="PATH", help="Only conversations of this folder.")
@click.option("--here", "is_here", is_flag=True, help="Only conversations of the folder you are in.")
@click.option("--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Only those with this pair. Repeatable.")
@KIND
@click.option("--json", "as_json", is_flag=True, help="One JSON object per conversation.")
@with_place
def list_(
    place: Place,
    limit: int | None,
    project: str | None,
    is_here: bool,
    pairs: tuple[str, ...],
    kind: str,
    as_json: bool,
) -> int:
    """List the conversations, the newest first: id, time, age, how many messages and branches, title.

    hitherto conversation list shows their messages.
    """
    folder, metadata = choose_folder(project, is_here=is_here), parse_metadata(pairs)
    with place.read() as store:
        listing = Listing(store)
        infos = listing.conversations(folder, metadata, limit, kind)
        if as_json:
            for info in infos:
                print_json(_fields(store, info))
        else:
            print_lines(_lines(store, infos, kind))
        return listing.finish()


def _lines(store: "Store", infos: "Iterator[ConversationInfo]", kind: str = "chat") -> "Iterator[str]":
    is_empty, now = True, datetime.now(UTC)
    for info in infos:
        is_empty = False
        branches = _count_branches(store, info)
        counts = count_of(info.count, "message") + (f", {count_of(branches, 'branch')}" if branches > 1 else "")
        title = "(cannot be read)" if info.problem else info.title or info.key or "(no title)"
        held = " (held)" if info.held else ""
        head = f"{info.id[:8]} {moment(info.active_at)} {_age(now, info.active_at):>4}  {counts:<12} "
        yield fit_encoding(cut(f"{head} {line(title, room())}{held}", room()))
    if is_empty:
        say(_why_empty(store, kind))


def _why_empty(store: "Store", kind: str) -> str:
    """Say why nothing was listed, and how to see what there is."""
    if kind != CHAT:
        return f"there are no conversations of the kind {kind} here"
    if store.conversations(limit=1).items:
        return "no conversation fits; hitherto list without a filter shows all"
    if others := store.stats().conversations:
        return f"there are no chats here, but {count_of(others, 'conversation')} of another kind: --kind langgraph?"
    return "there are no conversations here yet: hitherto chat begins one"


def _count_branches(store: "Store", info: "ConversationInfo") -> int:
    try:
        return len(store.conversation(info).branches()) if info.count else 0
    except (errors.Damaged, errors.NotFound):  # reported by the listing, or purged meanwhile
        return 0


def _age(now: datetime, at: datetime) -> str:
    """Return the time since then, in its largest unit.

    >>> now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> _age(now, datetime(2026, 1, 29, 11, tzinfo=UTC)), _age(now, now)
    ('2d', '0m')
    """
    seconds = max(0, (now - at).total_seconds())
    return next((f"{int(seconds // size)}{unit}" for size, unit in _AGES if seconds >= size), "0m")


def _fields(store: "Store", info: "ConversationInfo") -> dict[str, object]:
    fields = {name: None if info.problem else getattr(info, name) for name in DESCRIPTION}
    found = {"id": info.id} | fields | {name: getattr(info, name) for name in ROW}
    return found | {"branches": _count_branches(store, info)}
