"""When a conversation stops being recorded: it is committed, with its metrics, and the mark in it goes.

A recorder ends when it is closed. Many never are: people let go of a client, or talk through one to more conversations
than a recorder remembers. What is left by these is noted here, and ended on the way of others who record to the same
store, a few at a time; what is left when the store is closed is ended then. Only of a process that dies nobody ends
anything, and that is what the marks are for.

The store knows how many recorders keep each conversation (`_recorded`), so that no sweep takes one away meanwhile, and
so that the first of two recorders that ends does not end it for the other.
"""

import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from .._engine.record_items import commit
from .._engine.recovery import leave
from ..errors import Damaged, HithertoError, NotFound
from ..events import warn
from ..ids import show_conversation_id

if TYPE_CHECKING:
    from ..store import Store
    from ._recorder import Kept, Recorder
    from ._sdk import Listening

END_SECONDS = 10.0  # within which the end of a recording is to be kept
_AT_ONCE = 4  # conversations that are ended on somebody else's way

_lock = threading.Lock()  # of the numbers in `_recorded`, and of who records; held for a moment only


def _begin_anew() -> None:
    """A forked child has a copy of the lock in whatever state it was."""
    global _lock  # noqa: PLW0603  # there is one for all stores of a process
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class Ending:
    """The conversations of one store whose recording has not come to its end."""

    def __init__(self, store: "Store") -> None:
        self._recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
        self._expected: weakref.WeakSet[Listening] = weakref.WeakSet()
        self._left: deque[Kept] = deque()
        self._written: set[bytes] = set()
        store._last[self] = self.close

    def watch(self, recorder: "Recorder") -> None:
        """A recorder that nobody has any more leaves what it kept to us. No lock is taken then: it may happen anywhere,
        also to somebody who holds one."""
        with _lock:
            self._recorders.add(recorder)
        weakref.finalize(recorder, self._left.extend, recorder.begun).atexit = False

    def expect(self, listening: "Listening") -> None:
        """A client is listened to. If it has said nothing when the store is closed, a warning says so."""
        with _lock:
            self._expected.add(listening)

    def begin(self, kept: "Kept") -> None:
        """A recorder keeps this conversation from now on."""
        store, conversation = kept.talk._store, kept.talk._desk.id
        with _lock:
            if not kept.begun:
                kept.begun = True
                store._recorded[conversation] = store._recorded.get(conversation, 0) + 1

    def wrote(self, conversation: bytes) -> None:
        """A recorder has written to it, and left its mark."""
        self._written.add(conversation)

    def leave(self, kept: "Kept") -> None:
        """A recorder has forgotten this conversation."""
        self._left.append(kept)

    def tidy(self, count: int | None = _AT_ONCE) -> None:
        """End some of what was left, or all of it. What cannot be ended now is tried again later."""
        for _ in range(len(self._left) if count is None else min(count, len(self._left))):
            try:
                kept = self._left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self.end(kept)
            except HithertoError as error:
                self._left.append(kept)
                warn(f"the end of a recording could not be kept yet: {type(error).__name__}")

    def end(self, kept: "Kept", timeout_seconds: float = END_SECONDS) -> None:
        """What is held is written, and there is one recorder less; if it was the last, the conversation is committed.
        The error, if that cannot be done now; then it may be tried again."""
        with kept.lock:
            kept.flush()
            kept.ended = True
        if self._is_last(kept):
            try:
                finish(kept.talk._store, kept.talk._desk.id, timeout_seconds)
            except HithertoError:
                self.begin(kept)
                raise
            self._written.discard(kept.talk._desk.id)

    def _is_last(self, kept: "Kept") -> bool:
        """One recorder less. Was it the last, and has any of them written to the conversation? Who only stood in it has
        nothing to end: a mark that is there is of somebody who died."""
        recorded, conversation = kept.talk._store._recorded, kept.talk._desk.id
        with _lock:
            if not kept.begun:
                return False
            kept.begun = False
            left = recorded.pop(conversation, 1) - 1
            if left > 0:
                recorded[conversation] = left
            return left <= 0 and conversation in self._written

    def close(self) -> None:
        """The store is about to be closed: what is still recorded ends. Whatever one recorder meets, the others are
        tried; checkpoints have their time afterwards."""
        failure: Exception | None = None
        with _lock:
            recorders, expected = list(self._recorders), list(self._expected)
        for listening in expected:
            listening.say_if_silent()
        for recorder in recorders:
            try:
                recorder.end()
            except Exception as error:  # noqa: BLE001  # it is raised when all have ended
                failure = failure or error
        self.tidy(None)
        if failure is not None:
            raise failure


_all: "weakref.WeakKeyDictionary[Store, Ending]" = weakref.WeakKeyDictionary()


def ending(store: "Store") -> Ending:
    """Who ends what is recorded to this store."""
    with _lock:
        if store not in _all:
            _all[store] = Ending(store)
        return _all[store]


def finish(store: "Store", conversation: bytes, timeout_seconds: float) -> None:
    """Commit a conversation whose recording is over."""
    with suppress(NotFound):  # it was purged meanwhile
        try:
            commit(store, conversation, ended="here", timeout_seconds=timeout_seconds)
        except Damaged as error:  # what cannot be read cannot be counted; that it is over holds all the same
            warn(f"the metrics of {show_conversation_id(conversation)} could not be counted: {error}")
            leave(store, conversation)
