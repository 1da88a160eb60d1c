"""The store behind the pages, which may be locked.

A sealed store that nobody has looked at for a while is closed: its key, what was read and what was rendered are
forgotten. Opening it again asks the key's source again; no key ever goes through the page. A plain store needs no lock.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import KeyUnavailable
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
        self._view: StoreView | None = StoreView(open_store())
        is_sealed = self._view.store.key_id is not None
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
        """Return the store, and note that it is in use. `KeyUnavailable` while it is locked."""
        with self._changed:
            self._used_at = time.monotonic()
            if self._view is None:
                raise KeyUnavailable(_LOCKED, hint="unlock it: its key is fetched from its source again")
            return self._view

    def peek(self) -> StoreView | None:
        """Return the store without counting as use; None while it is locked."""
        with self._changed:
            return self._view

    def unlock(self) -> None:
        """Open the store again; its key is fetched from its source."""
        with self._changed:
            self._used_at = time.monotonic()
            if self._view is None and not self._is_over:
                self._view = StoreView(self._open())
                self._changed.notify_all()

    def lock(self) -> None:
        """Close the store and forget all of it."""
        with self._changed:
            view, self._view = self._view, None
        if view is not None:
            view.forget()
            forget_rendered()
            view.store.close()

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
