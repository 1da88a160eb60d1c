"""Ctrl+C while an answer comes: it stops the answer, but not what is being written.

What was said is kept before the model is asked, and what had come of the answer is kept beside it. So that this is true
whenever the key is pressed, a press works at once only where the model or the terminal is waited for. Anywhere else it
waits: for what is being written in that moment, and for an answer that is complete, until it is kept.
"""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

# Where the innermost code of ours is, when it waits for the model, or shows what has come.
_WAITING = ("hitherto.cli", "hitherto.chat._wires", "hitherto.chat._claude_local", "hitherto._http_hooks")
_WRITING = "hitherto.recorder"


class Stoppable:
    """As long as an answer comes. A press that has to wait is repeated a little later; a second one is meant, and does
    not wait."""

    _PAUSE_SECONDS = 0.02

    def __init__(self) -> None:
        self._pressed = False
        self._repeated = False
        self._starting = False
        self._insisted = False  # somebody pressed again while the timer was being started
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "Stoppable":
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        try:  # a press that waits was meant for the answer, and must not reach what comes after it
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()
        except KeyboardInterrupt:
            self._pressed = True
        finally:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Stop now, if that was wanted before."""
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
    """Was nothing interrupted but waiting?"""
    ours = list(_ours(frame))
    if any(name.startswith(_WRITING) for name in ours):
        return False
    return not ours or ours[0].startswith(_WAITING)


def _ours(frame: FrameType | None) -> Iterator[str]:
    """The modules of ours in what was interrupted, the innermost first."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("hitherto."):
            yield name
        frame = frame.f_back
