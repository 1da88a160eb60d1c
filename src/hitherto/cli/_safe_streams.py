"""Standard output and standard error that are closed, full, or in a limited encoding.

None of these is a reason for a traceback.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def streams() -> Iterator[None]:
    """Escape characters that the terminal's encoding lacks. Replace a closed stream (`>&-`) by the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    yield


def abandon_output() -> None:
    """Send the remaining output to the null device, so that a closed pipe causes no error at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
