"""The events of a store, as typed values for its listeners.

    store.subscribe(print)

An event is emitted after the commit that made it true, in the order of the commits, at most once. The writing thread
only puts it into queues: each listener has a queue and a thread of its own, so that a listener that is slow, hangs or
raises delays neither writers nor other listeners. If a queue is full, the event is dropped and counted, and a warning
says so.

`warn` sends warnings to the logger `hitherto`, for programs without listeners. A thread that holds a lock defers them:
a log handler may itself write to the store.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from threading import get_ident
from typing import NamedTuple

from msgspec import Struct

from ._system import forks
from .accountability import Actor
from .errors import Closed, HithertoError, InvalidArgument

__all__ = [
    "BreakerChanged",
    "CapacityWarning",
    "ConversationDeleted",
    "ConversationStored",
    "Event",
    "FloorChanged",
    "KeyRotated",
    "PurgeCompleted",
    "PurgeFailure",
    "Quarantined",
    "SlowCommit",
    "SnapshotRebuilt",
    "SweepFinished",
    "TurnedReadOnly",
]

_MAX_QUEUE = 10_000  # events that wait for one listener
MOST_LISTENERS = 100  # of one store: every event wakes each of them, while writers wait


class Event(Struct, frozen=True):
    """The base of all events."""

    at: datetime


class Quarantined(Event, frozen=True):
    """A record that was tampered with or damaged was put into quarantine. `message` is None if the whole conversation
    cannot be trusted."""

    conversation: str
    message: str | None
    problem: str


class SnapshotRebuilt(Event, frozen=True):
    """A recovery snapshot was damaged, and was rebuilt from the tree."""

    conversation: str
    problem: str


class TurnedReadOnly(Event, frozen=True):
    """The store refuses writes from now on."""

    reason: str


class ConversationStored(Event, frozen=True):
    """A conversation was begun, added to or changed."""

    conversation: str
    messages: int  # that were added by it


class ConversationDeleted(Event, frozen=True):
    """A conversation is gone, with all its branches."""

    conversation: str
    reason: str
    actor: Actor | None = None


class PurgeFailure(NamedTuple):
    """An error of a purge or a sweep: the conversation or message, and the reason."""

    id: str
    error: str


def as_failures(found: Mapping[str, str]) -> tuple[PurgeFailure, ...]:
    """Convert errors by id into the entries of a report."""
    return tuple(PurgeFailure(id, error) for id, error in found.items())


class PurgeCompleted(Event, frozen=True):
    """The purged bytes are removed from the files, too: `privacy.purge.completed`."""

    reason: str
    purged_count: int
    failures: tuple[PurgeFailure, ...] = ()
    seconds: float = 0.0  # from the call to the removal of the last byte
    actor: Actor | None = None  # on whose behalf; None: nobody was named


class SweepFinished(Event, frozen=True):
    """A sweep of retention is complete."""

    days: int | None  # of the policy; None: no policy is set
    purged_count: int
    skipped: int
    failures: int
    seconds: float
    actor: Actor | None = None


class FloorChanged(Event, frozen=True):
    """The retention floor of the workspace was set, or removed."""

    days: int | None  # None: there is none any more
    before: int | None
    actor: Actor | None = None


class CapacityWarning(Event, frozen=True):
    """The `quota` or the `disk` is nearly or completely full."""

    what: str
    used_bytes: int
    limit_bytes: int


class SlowCommit(Event, frozen=True):
    """One in twenty of the last commits took longer than the limit."""

    p95_seconds: float
    limit_seconds: float


class BreakerChanged(Event, frozen=True):
    """Writing is suspended (`open`), tried once (`half-open`), or goes on (`closed`)."""

    state: str
    failures: int


class KeyRotated(Event, frozen=True):
    """The workspace has another key, `key_id`; None if it is plain now."""

    key_id: str | None
    conversations: int
    actor: Actor | None = None


_deferring: set[int] = set()  # threads that hold a lock
_deferred: dict[int, list[str]] = {}  # the warnings of these threads
os.register_at_fork(after_in_child=_deferring.clear)  # a thread of the child may get the number of a missing one


def defer_warnings() -> None:
    """Defer this thread's warnings until `resume_warnings`: it holds the commit lock, and a log handler may write to
    the store."""
    _deferring.add(get_ident())


def resume_warnings() -> None:
    """Log the deferred warnings of this thread, which holds no lock any more."""
    me = get_ident()
    _deferring.discard(me)
    if _deferred:
        for message in _deferred.pop(me, ()):
            warn(message)


def warn(message: str) -> None:
    """Log a warning, or defer it until `resume_warnings`. It must hold no text of messages, no key and no secret."""
    if get_ident() in _deferring:
        _deferred.setdefault(get_ident(), []).append(message)
        return
    import logging  # noqa: PLC0415  # rarely needed

    logging.getLogger("hitherto").warning(message)


Listener = Callable[[Event], object]


class _Queue:
    """The queue of one listener. It refers neither to the listener nor to the store, so that the thread that waits for
    it keeps neither alive."""

    __slots__ = ("dropped", "events", "thread")

    def __init__(self) -> None:
        from queue import SimpleQueue  # noqa: PLC0415  # most programs have no listeners

        self.events: SimpleQueue[Event | threading.Event | None] = SimpleQueue()  # a mark to be set; None: the end
        self.dropped = 0
        self.thread: threading.Thread | None = None

    def put(self, event: Event) -> None:
        if self.events.qsize() < _MAX_QUEUE:
            self.events.put(event)
            return
        self.dropped += 1
        if self.dropped == 1:
            warn(f"a listener is too slow: {_MAX_QUEUE:,} events wait for it, and what comes now is dropped")

    def end(self, _: object = None) -> None:
        """End the queue. The garbage collector may call this anywhere: `put` of this queue is reentrant."""
        self.events.put(None)


class _Subscription:
    """A listener with its queue and its thread."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.over = False
        self.queue = _Queue()
        self._failures: set[str] = set()
        own = weakref.ref(self, self.queue.end)
        thread = threading.Thread(target=_deliver, args=(self.queue, own), name="hitherto events", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise HithertoError(
                f"no thread for a listener can be started: {error}", hint="end some threads first"
            ) from None
        self.queue.thread = thread

    def deliver(self, event: Event) -> None:
        try:
            self.listener(event)
        except BaseException as error:  # noqa: BLE001  # a listener may raise anything: one warning for each type
            if type(error).__name__ not in self._failures:
                self._failures.add(type(error).__name__)
                warn(f"a listener failed: {type(error).__name__}")


def _deliver(queue: _Queue, own: "weakref.ref[_Subscription]") -> None:
    """The thread of one listener."""
    while (event := queue.events.get()) is not None:
        if isinstance(event, threading.Event):
            event.set()
            continue
        subscription = own()
        if subscription is None:
            return
        if not subscription.over:
            subscription.deliver(event)
        del subscription, event  # neither must be kept alive while the thread waits


class Listeners:
    """The listeners of one store."""

    def __init__(self, watch: Listener = lambda _: None) -> None:
        """`watch` is called with each event at once, for telemetry. It neither waits nor fails."""
        self._watch = watch
        self.some: tuple[_Subscription, ...] = ()  # empty: no event has to be made
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._closed = False
        self._lock = threading.RLock()  # reentrant: a signal handler may close the store
        self._forks = forks.count()
        self._dropped = 0  # of listeners that have ended

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        if not callable(listener):
            raise InvalidArgument(f"a {type(listener).__name__} where a function that takes an event is wanted")
        with self._lock:
            if self._closed:
                raise Closed("the store is closed")
            if len(self.some) >= MOST_LISTENERS:
                hint = "subscribe once, and pass the events on; end subscriptions that are not needed any more"
                raise InvalidArgument(f"{MOST_LISTENERS} listen to this store already", hint=hint)
            subscription = _Subscription(listener)
            self.some = (*self.some, subscription)
            if subscription.queue.thread is not None:
                self._threads.add(subscription.queue.thread)
        return partial(self._unsubscribe, weakref.ref(subscription))

    @property
    def are_here(self) -> bool:
        """Does a listener of this store call this?"""
        return threading.current_thread() in self._threads

    def _unsubscribe(self, subscription: "weakref.ref[_Subscription]") -> None:
        found = subscription()
        with self._lock:
            if found is not None and not found.over:
                found.over = True
                found.queue.end()
                self.some = tuple(one for one in self.some if one is not found)
                self._dropped += found.queue.dropped

    def emit(self, event: Event) -> None:
        """Put an event into every queue. Never waits for a listener."""
        self._watch(event)
        for subscription in self.some:
            subscription.queue.put(event)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until all listeners have got all events so far. False if the time ran out. A listener that calls this
        does not wait for itself."""
        return all(self._wait_for_each(self.some, timeout_seconds))

    def _wait_for_each(self, some: tuple[_Subscription, ...], timeout_seconds: float) -> list[bool]:
        """For each listener: has it got all events so far? Each queue gets a mark, and all have the same deadline."""
        if self._forks != forks.count():  # the threads belong to the parent process
            return [True for _ in some]
        deadline = time.monotonic() + timeout_seconds
        marks = [threading.Event() for _ in some]
        for subscription, mark in zip(some, marks, strict=True):
            if subscription.queue.thread is threading.current_thread():
                mark.set()
            else:
                subscription.queue.events.put(mark)
        return [mark.wait(max(0.0, deadline - time.monotonic())) for mark in marks]

    def close(self, timeout_seconds: float) -> int:
        """Wait until all events are delivered, then end the threads. Returns how many events were not delivered, or not
        completely."""
        with self._lock:
            some, self.some, self._closed = self.some, (), True
        lost = self._dropped
        for subscription, is_done in zip(some, self._wait_for_each(some, timeout_seconds), strict=True):
            subscription.over = True
            lost += subscription.queue.dropped
            lost += 0 if is_done else subscription.queue.events.qsize()  # the mark counts for the current event
            subscription.queue.end()
        return lost
