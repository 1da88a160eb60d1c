"""The end of a recording: the conversation is committed with its metrics, and the mark in it is removed.

A recorder ends when it is closed. Many never are: a program drops a client, or talks through one client to more
conversations than a recorder remembers. The conversations of such recorders are queued here. Other recorders of the
same store end them, a few at a time, as they pass by; closing the store ends the rest. A process that dies ends
nothing: the marks are for that.

The store counts the recorders of each conversation (`_recorded`), so that no sweep takes the conversation away
meanwhile, and so that the first of two recorders that ends does not end it for the other.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Protocol

from .._engine.record_items import commit
from .._engine.recovery import leave
from ..conversation import Conversation
from ..errors import Damaged, HithertoError, NotFound
from ..events import warn
from ..ids import show_conversation_id

if TYPE_CHECKING:
    from .._engine.engine import Engine

END_SECONDS = 10.0  # the time within which the end of a recording has to be written
_BATCH_SIZE = 4  # abandoned conversations that a passing recorder ends at once

_lock = threading.Lock()  # of the counts in `_recorded`, and of the recorders; held for a moment only


def _begin_anew() -> None:
    """Replace the lock in a forked child, whose copy of it may be locked for ever."""
    global _lock  # noqa: PLW0603  # there is one for all stores of a process
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class Recorded(Protocol):
    """A conversation that is being recorded, as its end needs it."""

    talk: Conversation
    is_counted: bool
    is_ended: bool

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    def flush(self) -> None: ...


class Ends(Protocol):
    """A recorder, as its end needs it."""

    @property
    def open_conversations(self) -> Collection[Recorded]:
        """Always the same collection, so that it can be read when the recorder is gone."""

    def end(self) -> None: ...


class Listens(Protocol):
    """A client that is listened to."""

    def warn_if_silent(self) -> None: ...


class OpenRecordings:
    """The conversations of one store whose recording has not ended."""

    def __init__(self, engine: "Engine") -> None:
        self._recorders: weakref.WeakSet[Ends] = weakref.WeakSet()
        self._expected: weakref.WeakSet[Listens] = weakref.WeakSet()
        self._abandoned: deque[Recorded] = deque()
        self._written: set[bytes] = set()
        engine.at_close[self] = self.close

    def watch(self, recorder: Ends) -> None:
        """Queue the conversations of a recorder when it is garbage collected. The finalizer takes no lock: it may run
        anywhere, also in a thread that holds one."""
        with _lock:
            self._recorders.add(recorder)
        weakref.finalize(recorder, self._abandoned.extend, recorder.open_conversations).atexit = False

    def expect_requests(self, listening: Listens) -> None:
        """Warn when the store is closed if this client has made no request until then."""
        with _lock:
            self._expected.add(listening)

    def begin(self, recorded: Recorded) -> None:
        """Count one recorder more for this conversation."""
        engine, conversation = recorded.talk.engine, recorded.talk.state.id
        with _lock:
            if not recorded.is_counted:
                recorded.is_counted = True
                engine.recorded[conversation] = engine.recorded.get(conversation, 0) + 1

    def note_written(self, conversation: bytes) -> None:
        """Note that a recorder has written to the conversation, and left its mark."""
        self._written.add(conversation)

    def abandon(self, recorded: Recorded) -> None:
        """Queue a conversation that its recorder has forgotten."""
        self._abandoned.append(recorded)

    def end_abandoned(self, count: int | None = _BATCH_SIZE) -> None:
        """End some of the abandoned conversations, or all of them. Those that cannot be ended now are queued again."""
        for _ in range(len(self._abandoned) if count is None else min(count, len(self._abandoned))):
            try:
                recorded = self._abandoned.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self.end(recorded)
            except HithertoError as error:
                self._abandoned.append(recorded)
                warn(f"the end of a recording could not be kept yet: {type(error).__name__}")

    def end(self, recorded: Recorded, timeout_seconds: float = END_SECONDS) -> None:
        """Write the answers that are held, and count one recorder less. The last one commits the conversation.

        Raises the error if that cannot be done now; then it may be tried again.
        """
        with recorded.lock:
            recorded.flush()
            recorded.is_ended = True
        if self._release(recorded):
            try:
                finish(recorded.talk.engine, recorded.talk.state.id, timeout_seconds)
            except HithertoError:
                self.begin(recorded)
                raise
            self._written.discard(recorded.talk.state.id)

    def _release(self, recorded: Recorded) -> bool:
        """Count one recorder less. Return True if it was the last one, and any of them has written.

        A recorder that has written nothing has nothing to end: a mark that is there was left by a recorder that died.
        """
        counts, conversation = recorded.talk.engine.recorded, recorded.talk.state.id
        with _lock:
            if not recorded.is_counted:
                return False
            recorded.is_counted = False
            remaining = counts.pop(conversation, 1) - 1
            if remaining > 0:
                counts[conversation] = remaining
            return remaining <= 0 and conversation in self._written

    def close(self) -> None:
        """End every recording, because the store is about to be closed.

        If a recorder fails, the remaining ones are tried before its error is raised. Checkpoints are made afterwards.
        """
        failure: Exception | None = None
        with _lock:
            recorders, expected = list(self._recorders), list(self._expected)
        for listening in expected:
            listening.warn_if_silent()
        for recorder in recorders:
            try:
                recorder.end()
            except Exception as error:  # noqa: BLE001  # it is raised when all have ended
                failure = failure or error
        self.end_abandoned(None)
        if failure is not None:
            raise failure


_all: "weakref.WeakKeyDictionary[Engine, OpenRecordings]" = weakref.WeakKeyDictionary()


def open_recordings(engine: "Engine") -> OpenRecordings:
    """The open recordings of this store."""
    with _lock:
        if engine not in _all:
            _all[engine] = OpenRecordings(engine)
        return _all[engine]


def finish(engine: "Engine", conversation: bytes, timeout_seconds: float) -> None:
    """Commit a conversation whose recording is over."""
    with suppress(NotFound):  # it was purged meanwhile
        try:
            commit(engine, conversation, ended="here", timeout_seconds=timeout_seconds)
        except Damaged as error:  # rows that cannot be read cannot be counted, but the recording is over all the same
            warn(f"the metrics of {show_conversation_id(conversation)} could not be counted: {error}")
            leave(engine, conversation)
