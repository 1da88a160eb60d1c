"""The loop that tries again: prepare, commit, and prepare again if another writer was faster.

Nothing in a store waits for a lock that another process holds. A change is prepared from a row as it was read, and the
commit is refused if the row has changed since. A read that takes several steps looks at the row once more at its end.
Both raise `RowChanged` then, and `retry` makes another attempt. After many attempts in vain it raises `Busy`.
`ConversationState.commit_steps` is a generator, and has a loop of its own.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from ..errors import Busy
from .signals import RowChanged

MAX_COMMIT_ATTEMPTS: Final = 1000  # to prepare a write
MAX_READ_ATTEMPTS: Final = 100  # to read a conversation
MAX_LONG_ATTEMPTS: Final = 8  # for work that reads much in each attempt

T = TypeVar("T")


def retry(attempt: Callable[[], T], busy: str = "", *, most: int = MAX_COMMIT_ATTEMPTS) -> T:
    """Return the result of `attempt`. While it raises `RowChanged`, call it again. After `most` calls, raise `Busy`
    with the message `busy`; without one, the last `RowChanged`."""
    for left in reversed(range(most)):
        try:
            return attempt()
        except RowChanged:
            if not left and not busy:
                raise
    raise Busy(busy)
