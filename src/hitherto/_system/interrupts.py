"""Code that Ctrl+C must not interrupt.

A question is written before the model is asked, and the client's history and the store grow together. The code that
does this enters `uninterruptible()`. By itself that changes nothing: Ctrl+C raises `KeyboardInterrupt` at once, as in
every Python program. A program whose signal handler asks `defer_interrupt()` first (the command line, while an answer
arrives) gets the `KeyboardInterrupt` at the end of that code instead.

Python runs signal handlers in the main thread, between two steps of the code that they interrupt. So the state belongs
to the thread, and needs no lock.
"""

import threading


class _State(threading.local):
    depth = 0  # how many `with uninterruptible()` this thread is in
    is_deferred = False  # Ctrl+C was pressed meanwhile


_state = _State()


class uninterruptible:  # noqa: N801  # it is used like a function, as contextlib.suppress is
    """A context that Ctrl+C does not interrupt, if the signal handler defers it. Contexts may be nested.

    At the end of the outermost one a deferred Ctrl+C raises `KeyboardInterrupt`. An error that ends the context goes
    first: what Ctrl+C was meant to stop has ended with it.
    """

    def __enter__(self) -> None:
        if not _state.depth:
            _state.is_deferred = False
        _state.depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _state.depth -= 1
        if not _state.depth and _state.is_deferred and kind is None:
            raise KeyboardInterrupt


def defer_interrupt() -> bool:
    """Defer a Ctrl+C to the end of the code that must not be interrupted.

    Returns False if this thread is not in such code, or if one press was deferred already: the handler then raises
    `KeyboardInterrupt` itself."""
    if not _state.depth or _state.is_deferred:
        return False
    _state.is_deferred = True
    return True


def forget_interrupts() -> None:
    """Begin anew in this thread. A second Ctrl+C is not deferred, so it may have interrupted the end of a context."""
    _state.depth, _state.is_deferred = 0, False
