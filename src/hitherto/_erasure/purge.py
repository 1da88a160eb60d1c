"""One purge: why it was asked for, when it began, and what has become of it.

`purging` carries it out, and `shutdown.Purges` remembers it until its last byte is out of the files.
"""

from msgspec import Struct, field

from ..accountability import Actor, current
from ..events import PurgeFailure


class Purge(Struct, eq=False):
    """One purge, which may be under way."""

    reason: str
    began: int  # microseconds
    actor: Actor | None = field(default_factory=current)
    count: int = 0
    failures: tuple[PurgeFailure, ...] = ()
    completed: bool = False
