"""Deleting messages: their subtrees, their packs, and the head.

A delete is prepared from the headers of the whole conversation and committed against the version they were read at.
The subtree of a message goes with it, and so do the traces of sub-agents that were started in it; a compaction that
continued a deleted message stays, without its link. A head that goes moves to the parent of the subtree it was in,
else to the newest message of the main flow that is left.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..backend import Batch, Change, ConversationRow, Done, MessageRow
from ..errors import Damaged, HasChildren, Held, NotFound
from ..ids import show_conversation_id
from .committer import report_stored
from .floor import check_floor
from .packs import Reader, Rewrite
from .recovery import keys_below
from .retry import retry
from .signals import RowChanged

if TYPE_CHECKING:
    from .engine import Engine

FORGET_SECONDS = 0.05  # to wait for words to leave the search index; maintenance does the rest


def delete(engine: "Engine", ids: Sequence[str], *, recursive: bool, missing_ok: bool) -> list[str]:
    """Delete messages in one transaction; return the ids of all that were deleted."""

    def attempt() -> list[str]:
        found, missing = engine.message_rows(ids, bodies=False)
        if missing and not missing_ok:
            raise NotFound("message", missing)
        chosen: dict[bytes, set[int]] = {}
        for row in found.values():
            chosen.setdefault(row.conversation, set()).add(row.number)
        changes = [deletion(engine, id, numbers, recursive=recursive) for id, numbers in chosen.items()]
        if changes and not isinstance(engine.committer.write(Batch(tuple(changes)), tell=report_stored), Done):
            raise RowChanged
        for change in changes:
            engine.adopt_row(change.conversation, change.row)
        engine.quota.count_again()
        engine.search.forget(FORGET_SECONDS, [change.conversation for change in changes])
        return [engine.message_ids.id(number) for change in changes for number in change.drop]

    return retry(attempt, "the conversation changes faster than this delete can be prepared")


def deletion(engine: "Engine", conversation: bytes, chosen: set[int], *, recursive: bool) -> Change:
    """The change that deletes these messages of a conversation, prepared from the conversation as it is now."""
    row = engine.read_row(conversation)
    try:
        return _deletion(engine, row, chosen, recursive=recursive)
    except Damaged:
        engine.ensure_unchanged(row)
        raise


def _deletion(engine: "Engine", row: ConversationRow, chosen: set[int], *, recursive: bool) -> Change:
    conversation = row.id
    check_destroyable(engine, row)
    rows = engine.read_headers(conversation)
    if not chosen <= {m.number for m in rows}:  # others have deleted some since they were looked for: they count once
        raise RowChanged
    doomed = set(chosen)
    with_others = set()
    for m in rows:  # by sequence: parents come before children, calls before the traces that serve them
        above = _owner(m)
        if above in doomed:
            with_others.add(above)
            doomed.add(m.number)
    if not recursive and doomed != chosen:
        raise HasChildren([engine.message_ids.id(number) for number in sorted(chosen & with_others)])
    rewrite = Rewrite(engine, row)
    rewrite.drop(sorted(engine.backend.messages(numbers=sorted(doomed)), key=lambda m: m.seq))
    orphans = [m.number for m in rows if m.link in doomed and m.number not in doomed]
    reader, envelope = Reader(engine), engine.codec.envelope(row)
    for m in engine.backend.messages(numbers=orphans) if orphans else ():
        linked, data = reader.content(envelope, m)
        rewrite.amend(linked, data, link=None)
    change = rewrite.change(
        head=_head(row.head, rows, doomed),
        tips=tuple(tip for tip in row.tips if tip not in doomed),
        count=row.count - len(doomed),
    )
    return replace(change, unput=(*change.unput, *keys_below(engine, conversation, doomed)))


def check_destroyable(engine: "Engine", row: ConversationRow) -> None:
    """Raise `Held` for a conversation on hold, or below the retention floor."""
    if row.held:
        raise Held(f"conversation {show_conversation_id(row.id)} is on hold")
    check_floor(engine, row)


def _owner(m: MessageRow) -> int | None:
    """The message that takes this one along when it goes: its parent, or the call that a sub-agent's root serves."""
    return m.link if m.parent is None and not m.main else m.parent


def _head(head: int | None, rows: Sequence[MessageRow], doomed: set[int]) -> int | None:
    if head is None or head not in doomed:
        return head
    parents = {m.number: m.parent for m in rows}
    above: int | None = head
    going = set(doomed)
    while above is not None and above in going:  # upwards; damage cannot lead us in a circle
        going.remove(above)
        above = parents.get(above)  # a head that came after the headers were read: the token will say so
    if above is not None and above not in doomed:
        return above
    return next((m.number for m in reversed(rows) if m.main and m.number not in doomed), None)
