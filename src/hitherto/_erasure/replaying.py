"""Replaying the erasure ledger: purge again what is in it and came back, with a backup for example.

First the entries of a file are put into the ledger of the store, and the workspace notes that a replay is under way.
Then every conversation is compared with the ledger by its mark, so one that was brought back on purpose stays. The note
goes when all were compared: if the process is killed, maintenance of the next one that opens the store goes on.

A hold does not keep what comes back. It was released before the conversation was erased, and the backup is older.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.bodies import Erasure
from .._engine.retry import retry
from .._engine.signals import RowChanged
from ..backend import ERASED, Batch, ConversationRow, Done, Where, conversation_kinds
from ..listing import conversations, pages
from ..reports import PurgeReport, Replay
from . import ledger
from .purging_many import purge_many

if TYPE_CHECKING:
    from .._engine.engine import Engine

REASON = "erased-before"
_AT_ONCE = 64  # conversations compared together, and entries written in one commit

Progress = Callable[[int, int], None]


def all_entries(engine: "Engine") -> Iterator[tuple[bytes, Erasure]]:
    """Yield the entries of the ledger by their ids. `Damaged` if one cannot be read."""
    for row in conversations(engine.backend, Where(ERASED), oldest_first=True):
        yield row.id, ledger.read(engine, row)


def replay(engine: "Engine", entries: Mapping[bytes, Erasure], progress: Progress | None) -> Replay:
    """Take these entries into the ledger, and purge what is in it."""
    engine.ensure_removable()
    engine.workspace.describe(lambda meta: replace(meta, replaying=True))
    ids, added = list(entries), 0
    for start in range(0, len(ids), _AT_ONCE):
        added += _take_in(engine, {id: entries[id] for id in ids[start : start + _AT_ONCE]})
    return Replay(go_on(engine, progress), len(ids), added)


def go_on(engine: "Engine", progress: Progress | None = None) -> PurgeReport:
    """Purge what is in the ledger of the store and is there all the same, and end the replay."""
    report = purge_many(engine, REASON, _came_back(engine, progress or (lambda _, __: None)), _is_erased)
    if not report.failures or next(find_erased(engine), None) is None:
        engine.workspace.describe(lambda meta: replace(meta, replaying=False), always=True)
    return report


def find_erased(engine: "Engine") -> Iterator[ConversationRow]:
    """Yield the conversations that are in the ledger and are there all the same."""
    for ids in _came_back(engine, lambda _, __: None):
        yield from engine.backend.lookup(ids=ids)


def _take_in(engine: "Engine", entries: dict[bytes, Erasure]) -> int:
    """Put these entries into the ledger, in one commit, as far as it lacks them. Return how many it lacked."""

    def attempt() -> int:
        require = engine.workspace.require
        changes = ledger.put(engine, entries)
        if changes and not isinstance(engine.committer.write(Batch(changes, require), always=True), Done):
            engine.workspace.refresh()
            raise RowChanged
        return len(changes)

    return retry(attempt, "the erasure ledger changes faster than a file can be taken in")


def _came_back(engine: "Engine", tell: Progress) -> Iterator[list[bytes]]:
    wheres = [Where(kind) for kind in conversation_kinds(engine.backend)]
    total, seen = sum(map(engine.backend.count, wheres)), 0
    for where in wheres:
        for places in pages(engine.backend, [where], size=_AT_ONCE, oldest_first=True):
            tell(seen, max(total, seen))
            rows = engine.backend.lookup(ids=[place.id for place in places])
            found = ledger.find(engine, [row.id for row in rows])
            yield [row.id for row in rows if row.id in found and ledger.mark_of(engine, row) in found[row.id].marks]
            seen += len(places)
    tell(seen, seen)


def _is_erased(engine: "Engine", row: ConversationRow) -> bool:
    found = ledger.find(engine, [row.id])
    return row.id in found and ledger.mark_of(engine, row) in found[row.id].marks
