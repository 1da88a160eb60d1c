"""Ctrl+C while an answer arrives: it stops the answer, but never interrupts a write.

The question is written before the model is asked, and the partial answer is written beside it. Code that must not be
interrupted enters `uninterruptible()`. Ctrl+C is deferred to the end of that code, and takes effect at once anywhere
else. So a complete answer is written first.
"""

import signal
import threading
from types import FrameType

from .._system.interrupts import defer_interrupt, forget_interrupts


class Stoppable:
    """Handles Ctrl+C while an answer arrives. A second press is not deferred: it is meant.

    Signals reach the main thread only. In another thread this does nothing.
    """

    def __init__(self) -> None:
        self._pressed = False
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._is_main:
            forget_interrupts()
            self._before = signal.signal(signal.SIGINT, self._press)

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        was_pressed, self._pressed = self._pressed, True
        if was_pressed or not defer_interrupt():
            raise KeyboardInterrupt
