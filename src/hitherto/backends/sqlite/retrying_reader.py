"""A backend that only reads, and has patience with those who write.

It leaves no trace, so it cannot hold a place among the writers: when one of them opens the file, closes it or tidies
up, what was being read is not to be believed, or cannot be read on. That is no error of the file's. It is asked again,
until it stands still for long enough, until the time is up, or until there is no file any more.
"""

import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ...errors import Busy, CannotOpen, ReadOnly
from .connections import patience

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FOR_NOW = (Busy, CannotOpen, ReadOnly)  # nothing is written here, so that each of them is about what others do
_AT_ONCE = ("close", "commit", "stage", "unstage", "collect")  # what writes is refused, however long we wait
_OPENING_SECONDS = 0.5  # what a killed process left stays as it is, however long we wait
_READING_SECONDS = 5.0


class Patient:
    """Has all that the backend has which `make` gives, for a file of this path."""

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
                    if isinstance(found, Iterator):  # it has read nothing so far
                        return self._through(found, lambda: ask(*given, **how))  # type: ignore[return-value]
                    return found

        return again

    def _through(self, found: Iterator[_T], begin: Callable[[], object]) -> Iterator[_T]:
        """What it gives. Once something was given, it is too late to begin again."""
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
                found = begin()  # type: ignore[assignment]  # the same again
