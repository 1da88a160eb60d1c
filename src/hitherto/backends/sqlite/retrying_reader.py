"""A read-only SQLite backend that retries.

It leaves no trace, so it takes no lock that writers respect. When a writer opens or closes the file or checkpoints, a
read in progress may be inconsistent, or fail. That is no error of the file. So each call is repeated until it succeeds,
until the timeout, or until the file is gone.
"""

import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ...errors import Busy, CannotOpen, ReadOnly
from .connections import patience

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FOR_NOW = (Busy, CannotOpen, ReadOnly)  # this backend writes nothing, so each of them is caused by another process
_AT_ONCE = ("close", "commit", "stage", "unstage", "collect")  # these verbs write, and are refused at once
_OPENING_SECONDS = 0.5  # files that a killed process left do not change by waiting
_READING_SECONDS = 5.0


class Patient:
    """A proxy that retries the verbs of the backend that `make` opens, for a file of this path."""

    def __init__(self, make: Callable[[], object], path: str, timeout_seconds: float) -> None:
        self._path, self._seconds = path, min(timeout_seconds, _READING_SECONDS)
        self._backend = self._patiently(make, min(timeout_seconds, _OPENING_SECONDS))()

    def __getattr__(self, name: str) -> object:
        found = getattr(self._backend, name)
        return self._patiently(found, self._seconds) if callable(found) and name not in _AT_ONCE else found

    def _patiently(self, ask: Callable[_P, _T], seconds: float) -> Callable[_P, _T]:
        def again(*given: _P.args, **how: _P.kwargs) -> _T:
            wait, attempt = patience(seconds), 0
            while True:
                try:
                    found = ask(*given, **how)
                except _FOR_NOW:
                    if not os.path.isfile(self._path) or not wait(attempt):
                        raise
                    attempt += 1
                else:
                    if isinstance(found, Iterator):  # it has read nothing yet
                        return self._through(found, lambda: ask(*given, **how))  # type: ignore[return-value]
                    return found

        return again

    def _through(self, found: Iterator[_T], begin: Callable[[], object]) -> Iterator[_T]:
        """Yield from an iterator, and start it again if it fails before its first value."""
        wait, attempt = patience(self._seconds), 0
        while True:
            begun = False
            try:
                for one in found:
                    begun = True
                    yield one
                return
            except _FOR_NOW:
                if begun or not os.path.isfile(self._path) or not wait(attempt):
                    raise
                attempt += 1
                found = begin()  # type: ignore[assignment]  # the same call again
