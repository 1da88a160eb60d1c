"""Purge all conversations of a workspace, due or not, in the same way as a sweep: some of them in each commit.

`_erasure.purging_many` does it. Every kind goes: threads of a framework or a gateway are of the same people, and
a reset that leaves them would not be one.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .._erasure.purging import check_reason
from .._erasure.purging_many import check_proof, purge_many
from ..backend import Where, conversation_kinds
from ..listing import pages
from ..reports import PurgeReport

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from ..backend import ConversationRow
    from ..store import Store

_BATCH_SIZE = 16  # conversations that are read at once


def purge_all(store: "Store", reason: str, progress: Callable[[int, int], None] | None) -> PurgeReport:
    check_reason(reason)

    def check(engine: "Engine", row: "ConversationRow") -> bool:
        return check_proof(engine, row, reason)

    return purge_many(store.engine, reason, _all(store, progress or (lambda _, __: None)), check)


def _all(store: "Store", tell: Callable[[int, int], None]) -> Iterator[list[bytes]]:
    kinds = [Where(kind) for kind in conversation_kinds(store.backend)]
    total, seen = sum(map(store.backend.count, kinds)), 0
    for kind in kinds:
        for places in pages(store.backend, [kind], size=_BATCH_SIZE, oldest_first=True):
            tell(seen, max(total, seen))
            yield [place.id for place in places]
            seen += len(places)
    tell(seen, seen)
