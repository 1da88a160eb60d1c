"""The store behind the pages, which may be locked, or replaced.

A sealed store that nobody has looked at for a while is closed: its key, what was read and what was rendered are
forgotten. Opening it again asks the key's source again; no key ever goes through the page. A plain store needs no lock.

A file that was deleted, or replaced by another (a backup, the same store sealed), can still be read by who has it open.
The page must not show it: what stands at its path now is opened in its place.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._system.own_files import identify
from ..errors import CannotOpen, KeyUnavailable
from .queries import StoreView
from .thread_view import forget_rendered

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["Access"]

Open = Callable[[], "Store"]
_LOCKED = "the store is locked: nobody has looked at it for a while"


class Access:
    """Opens the store, and closes it when it is idle."""

    def __init__(self, open_store: Open, *, idle_seconds: float | None = None) -> None:
        """`idle_seconds` is for sealed stores; None: never lock."""
        self._open = open_store
        self._view: StoreView | None = None
        self._path: str | None = None  # of the store, if it is a file
        self._file: tuple[int, int] | None = None  # which file that is
        self._is_gone = False  # it was closed because another file, or none, stood there
        is_sealed = self._open_view().store.key_id is not None
        self._idle_seconds = idle_seconds if is_sealed else None
        self._used_at = time.monotonic()
        self._changed = threading.Condition()
        self._is_over = False
        self._thread: threading.Thread | None = None
        if self._idle_seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="hitherto-idle-lock", daemon=True)
            self._thread.start()

    @property
    def view(self) -> StoreView:
        """Return the store, and note that it is in use. `KeyUnavailable` while it is locked; `CannotOpen` if its file
        is gone."""
        with self._changed:
            self._used_at = time.monotonic()
            if self._has_moved():
                self._is_gone = True
                self._close_view()
            if self._view is None and self._is_gone:
                return self._open_view()
            if self._view is None:
                raise KeyUnavailable(_LOCKED, hint="unlock it: its key is fetched from its source again")
            return self._view

    @property
    def is_locked(self) -> bool:
        with self._changed:
            return self._view is None and not self._is_gone

    def peek(self) -> StoreView | None:
        """Return the store without counting as use; None while it is locked. `CannotOpen` if its file is gone."""
        with self._changed:
            if self._is_gone or self._has_moved():
                raise CannotOpen("the file of the store is not there any more, or is another one")
            return self._view

    def unlock(self) -> None:
        """Open the store again; its key is fetched from its source."""
        with self._changed:
            self._used_at = time.monotonic()
            if self._view is None and not self._is_over:
                self._open_view()
                self._changed.notify_all()

    def lock(self) -> None:
        """Close the store and forget all of it."""
        with self._changed:
            self._close_view()

    def _open_view(self) -> StoreView:
        store = self._open()
        self._view = StoreView(store)
        info = store.engine.backend.info
        self._path = info.location if info.name == "sqlite" else None
        self._file = _identity(self._path)
        self._is_gone = False
        return self._view

    def _close_view(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.forget()
            forget_rendered()
            view.store.close()

    def _has_moved(self) -> bool:
        return self._view is not None and self._path is not None and _identity(self._path) != self._file

    def close(self) -> None:
        """Lock for good."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.lock()

    def _watch(self) -> None:
        assert self._idle_seconds is not None
        while True:
            with self._changed:
                left = self._used_at + self._idle_seconds - time.monotonic()
                if self._view is None:
                    self._changed.wait_for(lambda: self._is_over or self._view is not None)
                elif left > 0:
                    self._changed.wait(left)
                if self._is_over:
                    return
                if self._view is None or self._used_at + self._idle_seconds > time.monotonic():
                    continue
            self.lock()


def _identity(path: str | None) -> tuple[int, int] | None:
    """Return which file stands at a path; None if there is none."""
    if path is None:
        return None
    try:
        return identify(os.stat(path))
    except OSError:
        return None
