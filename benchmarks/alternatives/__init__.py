"""hitherto beside three places that people keep chats in today: what is left after a bad moment.

A side is a module with a few functions, each of which does what the documentation of its program says to do. Nothing
here is a time. `python -m benchmarks.alternatives` runs all sides, each in the environment of its program.
"""

import os
import signal
from collections.abc import Callable

Model = Callable[[], str]  # called in the place of a model; returns the answer


def die() -> str:
    """End the process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")
