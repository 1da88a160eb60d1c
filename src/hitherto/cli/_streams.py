"""Standard output and standard error, as they are found: closed, full, or in an encoding that cannot say everything.

None of that is a reason for a traceback.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def streams() -> Iterator[None]:
    """What cannot be written in the terminal's own encoding is spelled out, and never an error. A stream that is closed
    (`>&-`) is one that nobody reads."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    yield


def abandon_output() -> None:
    """Nobody reads any more: what is left to be written goes nowhere, and makes no noise at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
