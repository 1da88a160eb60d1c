"""Time in tests, on a machine that does other things as well.

No test asserts how fast something is: absolute times are the benchmark's (`make bench`). A test may assert:

- **That no call waits.** The excluded wait takes minutes, or has no end, and `SOON` is far from that and far from a
  moment.
- **That something takes no more than its size says.** That is counted (commits, reads), or measured in time of the
  processor (`cpu_seconds`), which other programs do not affect.
"""

import time
from collections.abc import Callable

SOON = 40.0  # seconds: for what takes less than one, beside something that would take at least a hundred
AGES = 200.0  # such a something


def cpu_seconds(work: Callable[[], object], times: int = 3) -> float:
    """How long the processor is at it in this thread, at best."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return min(took)
