"""Ctrl+C while an answer arrives: it stops the answer, but never interrupts a write.

The question is written before the model is asked, and the partial answer is written beside it. To make this true at any
moment, Ctrl+C takes effect at once only while the code waits for the model or for the terminal. Anywhere else it is
delayed until the write has ended; a complete answer is written first.
"""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

# The modules that wait for the model, or write the answer to the terminal.
_WAITING = ("hitherto.cli", "hitherto.chat._wires", "hitherto.chat._claude_local", "hitherto._http_hooks")
_WRITING = "hitherto.recorder"


class Stoppable:
    """Handles Ctrl+C while an answer arrives. A delayed press is repeated by a timer. A second press is not delayed."""

    _PAUSE_SECONDS = 0.02

    def __init__(self) -> None:
        self._pressed = False
        self._repeated = False
        self._starting = False
        self._insisted = False  # pressed again while the timer was being started
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "Stoppable":
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        try:  # a delayed press was meant for the answer, and must not interrupt later code
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()
        except KeyboardInterrupt:
            self._pressed = True
        finally:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl+C was pressed before."""
        if self._pressed:
            raise KeyboardInterrupt

    def _press(self, _number: int, frame: FrameType | None) -> None:
        if self._starting:
            self._insisted = True
            return
        meant = self._insisted or (self._pressed and not self._repeated)
        self._pressed, self._repeated = True, False
        if meant or _is_waiting(frame):
            raise KeyboardInterrupt
        self._starting = True
        self._timer = threading.Timer(self._PAUSE_SECONDS, self._repeat)
        self._timer.daemon = True
        self._timer.start()
        self._starting = False

    def _repeat(self) -> None:
        self._repeated = True
        main = threading.main_thread().ident
        if main is not None and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main, signal.SIGINT)


def _is_waiting(frame: FrameType | None) -> bool:
    """Return True if the interrupted code only waits."""
    ours = list(_ours(frame))
    if any(name.startswith(_WRITING) for name in ours):
        return False
    return not ours or ours[0].startswith(_WAITING)


def _ours(frame: FrameType | None) -> Iterator[str]:
    """Yield the names of this package's modules on the stack, the innermost first."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("hitherto."):
            yield name
        frame = frame.f_back
