"""Count the forks of this process.

Objects that were opened before a fork must not be used after it: locks are copied in any state, and SQLite in the child
is wrong about the locks that it holds. An object stores the count when it is opened, and compares.

Background threads hold `still` while they use files, for a moment at a time, and a fork waits for it. So a child never
finds a file that was in use during the fork by a thread that the caller did not start.
"""

import os
import threading

still = threading.RLock()
_count = 0


def count() -> int:
    return _count


def _raise() -> None:
    global _count  # noqa: PLW0603  # there is one count for each process
    _count += 1


os.register_at_fork(after_in_child=_raise)
