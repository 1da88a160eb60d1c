"""How often this process came out of os.fork.

What was opened before a fork must not be used after it: locks were copied in whatever state they were, and SQLite's
idea of which locks it holds is wrong in the child. A holder remembers the count and compares.

What works in the background holds `still` while it uses files, a moment at a time; a fork waits for it. So nobody finds
in a child that a file was in use when it was forked, by a thread that they did not start.
"""

import os
import threading

still = threading.RLock()
_count = 0


def count() -> int:
    return _count


def _raise() -> None:
    global _count  # noqa: PLW0603  # one number per process is what this module is
    _count += 1


os.register_at_fork(after_in_child=_raise)
