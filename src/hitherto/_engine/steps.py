"""A write as steps: a generator that prepares a batch, yields it, and goes on with its outcome.

So the caller decides how to wait. `finish` waits in the calling thread. The append queue of an event loop begins many
writes before it waits for the first of them, and they share one commit.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from ..backend import Outcome
from .committer import Committer, PendingCommit

T = TypeVar("T")

Steps: TypeAlias = Generator[PendingCommit, Outcome, T]  # it yields batches that are in line already


def finish(committer: Committer, steps: Steps[T]) -> T:
    """Run a write to its end, and return its result."""
    try:
        entry = next(steps)
        while True:
            try:
                outcome = committer.wait(entry)
            except BaseException as error:  # noqa: BLE001  # the write cleans up, and raises it again
                entry = steps.throw(error)
            else:
                entry = steps.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result
