"""Automatic checkpoints: a snapshot of a conversation after every so many answers, or every so many seconds.

The store has everything already; a checkpoint is a copy that can leave it. A thread of its own makes it from the stored
rows, so that no chat waits for it. If answers come faster than copies can be made, only the newest is made. Closing the
store makes the checkpoints that are still due. Of each conversation the last few are kept. Only checkpoints that were
made here are deleted, and no other snapshot: they are marked as checkpoints.

A forked child has neither the thread nor a lock that it can trust, so it starts empty. The parent makes the checkpoints
that were due before the fork.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from .._engine.services import Prunes
from .._erasure.checkpoint_copies import AUTOMATIC, copying, finish, is_there, location_of, register, remember
from ..errors import InvalidArgument, NotExportable
from ..events import warn
from ..snapshots import Snapshot

if TYPE_CHECKING:
    from ..store import Store

KEEP = 10  # checkpoints of one conversation, unless another number is given
_REMEMBERED = 1000  # conversations whose answers are counted


class _Since(Struct):
    """The answers in a conversation since its last checkpoint."""

    answers: int
    began: float


class _Due(Struct, frozen=True):
    store: "Store"
    message: str
    at: float


class Checkpoints:
    """The schedule of checkpoints, and the thread that makes them."""

    def __init__(self, save: object, turns: int | None, seconds: float | None, keep: int | None) -> None:
        """`save` takes a snapshot: a function, or an object with a method of that name."""
        found = getattr(save, "save", save)
        if not callable(found):
            hint = "checkpoint=hitherto.snapshots.FileStore(path)"
            raise InvalidArgument("a checkpoint goes to a function, or to something with a method `save`", hint=hint)
        if turns is not None and (type(turns) is not int or turns < 1):
            raise InvalidArgument("checkpoint_turns is a number from 1 up")
        if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
            raise InvalidArgument("checkpoint_seconds is a number of seconds, more than 0")
        if keep is not None and (type(keep) is not int or keep < 1):
            raise InvalidArgument("checkpoint_keep is a number from 1 up")
        if keep is not None and not isinstance(save, Prunes):
            raise InvalidArgument("checkpoint_keep is for a snapshot store", hint="pass a FileStore or an ObjectStore")
        self._save: Callable[[Snapshot], object] = found
        self._prunes = save if isinstance(save, Prunes) else None
        self._location = location_of(save)
        self._keep = KEEP if keep is None else keep
        self._turns = 1 if turns is None and seconds is None else turns
        self._seconds = seconds
        self._purged_stores: weakref.WeakSet[Store] = weakref.WeakSet()
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """Start without due checkpoints and without a thread: at first, and in a child after os.fork."""
        self._since: dict[str, _Since] = {}
        self._due: dict[str, _Due] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._staying: set[str] = set()  # conversations that must not leave the store, and of which a warning said so
        self.failure: Exception | None = None  # of the last one, if it could not be made

    def count_answer(self, store: "Store", conversation: str, message: str) -> None:
        """Count an answer that was kept, and schedule the next checkpoint."""
        now = time.monotonic()
        with self._changed:
            since = self._since.pop(conversation, None) or _Since(0, now)
            since.answers += 1
            at = self._when(since, now)
            if at is not None:
                self._due[conversation] = _Due(store, message, at)
                store.engine.waits_at_close[self] = self._finish
                self._wake()
            if at is None or at > now:
                self._since[conversation] = since
            if len(self._since) > _REMEMBERED:
                del self._since[next(iter(self._since))]

    def _when(self, since: _Since, now: float) -> float | None:
        """The time of the next checkpoint; None if it needs another answer first."""
        if self._turns is not None and since.answers >= self._turns:
            return now
        return None if self._seconds is None else since.began + self._seconds

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="hitherto-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no threads are left, or the process ends: the next answer tries again
                self._thread, self.failure = None, error
                warn("a checkpoint could not be made: no thread could be started")
                return
            self._thread = thread

    def _work(self) -> None:
        while True:
            with self._changed:
                due = self._next()
                if due is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
            try:
                self._make(due)
                self.failure = None
            except NotExportable as error:  # it stays where it is, however often it is count_answer
                self.failure = error
                if error.conversation not in self._staying:
                    self._staying.add(error.conversation)
                    warn(f"no checkpoints are made: {error}")
            except Exception as error:  # noqa: BLE001  # a failed copy must not stop the chat; the warning says it
                self.failure = error
                warn(f"a checkpoint could not be made: {type(error).__name__}: {error}"[:300])

    def _next(self) -> _Due | None:
        """Wait until the next checkpoint is due, and return it. None if no checkpoint is due."""
        while self._due:
            conversation, due = min(self._due.items(), key=lambda item: item[1].at)
            wait = due.at - time.monotonic()
            if wait <= 0:
                self._since.pop(conversation, None)
                return self._due.pop(conversation)
            self._changed.wait(wait)
        return None

    def _make(self, due: _Due) -> None:
        store = due.store
        talk = store.conversation(due.message)
        snapshot = talk.snapshot(metadata=AUTOMATIC)
        remember(talk.state, self._location)
        with copying(talk.state, self._location):
            self._save(snapshot)
        if not is_there(talk.state):  # it was purged meanwhile: the copy must not stay
            self.register_store(store)
            self._finish_purges(store)
        elif self._prunes is not None:
            self._prunes.prune(keep=self._keep, metadata={**AUTOMATIC, "conversation": talk.id})
            if store not in self._purged_stores:  # the snapshot store can be reached
                self._finish_purges(store)

    def _finish_purges(self, store: "Store") -> None:
        """Delete the copies that earlier purges could not delete."""
        self._purged_stores.add(store)
        for conversation, problem in finish(store.engine).items():
            warn(f"after the purge of {conversation}: {problem}")

    def register_store(self, store: "Store") -> None:
        """Note that a recorder of this store makes checkpoints here, so that purges delete them too."""
        if self._prunes is not None:
            register(store.engine, self._prunes)

    def _finish(self, seconds: float) -> bool:
        made = self.wait(seconds)
        if not made:
            warn("the store is closed before the last checkpoint was made")
        return made

    def wait(self, timeout_seconds: float) -> bool:
        """Make the due checkpoints now, and wait for them. False if some are still missing after that time."""
        with self._changed:
            for conversation, due in self._due.items():
                self._due[conversation] = _Due(due.store, due.message, 0.0)
            if self._due:
                self._wake()
            return self._changed.wait_for(lambda: self._thread is None, timeout_seconds)


_all: weakref.WeakSet[Checkpoints] = weakref.WeakSet()


def _begin_anew() -> None:
    """Reset all checkpoints in a forked child: the thread that may have held a lock is not in the child."""
    for checkpoints in _all:
        checkpoints.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
