"""What a store tells those who listen: things that happened, as typed values.

    store.subscribe(print)

An event is told after the commit that made it true, in the order of the commits, at most once. Whoever writes only
puts it into a queue: each listener has a queue and a thread of its own, so that one that is slow, hangs or raises
delays neither those who write nor the other listeners. What does not fit into a queue any more is dropped, counted and
said. What should reach people who listen to nothing goes to the logger `hitherto`, by `warn`: but never by somebody who
holds what others need, because a handler of the log may itself write to the store.
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

from . import _forks
from .errors import Closed, HithertoError, InvalidArgument

_MOST = 10_000  # events that wait for one listener
MOST_LISTENERS = 100  # of one store: each is woken by every event, while others wait to write


class Event(Struct, frozen=True):
    """Something that happened."""

    at: datetime


class Quarantined(Event, frozen=True):
    """A record that was tampered with or damaged was put into quarantine. `message` is None if it is the conversation
    itself that cannot be trusted."""

    conversation: str
    message: str | None
    problem: str


class SnapshotRebuilt(Event, frozen=True):
    """A recovery snapshot was torn, and was made anew from the tree."""

    conversation: str
    problem: str


class TurnedReadOnly(Event, frozen=True):
    """The store does not take writes any more."""

    reason: str


class ConversationStored(Event, frozen=True):
    """A conversation was begun, added to or changed."""

    conversation: str
    messages: int  # that were added by it


class ConversationDeleted(Event, frozen=True):
    """A conversation is gone, with all its branches."""

    conversation: str
    reason: str


class PurgeFailure(NamedTuple):
    """What a purge or a sweep could not do: for which conversation or message, and why."""

    id: str
    error: str


def as_failures(found: Mapping[str, str]) -> tuple[PurgeFailure, ...]:
    """Errors by id, as a report has them."""
    return tuple(PurgeFailure(id, error) for id, error in found.items())


class PurgeCompleted(Event, frozen=True):
    """What was purged is out of the files, too: `privacy.purge.completed`."""

    reason: str
    purged_count: int
    failures: tuple[PurgeFailure, ...] = ()
    seconds: float = 0.0  # from the call until the last byte was gone


class SweepFinished(Event, frozen=True):
    """Retention was carried out."""

    days: int | None  # of the policy; None: there is none
    purged_count: int
    skipped: int
    failures: int
    seconds: float


class CapacityWarning(Event, frozen=True):
    """Space runs out, or has run out: of the `quota`, or of the `disk`."""

    what: str
    used_bytes: int
    limit_bytes: int


class SlowCommit(Event, frozen=True):
    """Of the last commits, one in twenty took longer than this."""

    p95_seconds: float
    limit_seconds: float


class BreakerChanged(Event, frozen=True):
    """Writing is suspended (`open`), tried once (`half-open`), or goes on (`closed`)."""

    state: str
    failures: int


class KeyRotated(Event, frozen=True):
    """The workspace has another key; `key_id` says which, None that it is plain now."""

    key_id: str | None
    conversations: int


_silent: set[int] = set()  # threads that hold what others wait for
_unsaid: dict[int, list[str]] = {}  # what they will have to say
os.register_at_fork(after_in_child=_silent.clear)  # a thread of the child may get the number of one that it lacks


def hush() -> None:
    """From now on this thread holds what others need, and warns of nothing. It has to `speak` in the end."""
    _silent.add(get_ident())


def speak() -> None:
    """It holds nothing any more: what it was to warn of is said. A handler of the log may write to the store."""
    me = get_ident()
    _silent.discard(me)
    if _unsaid:
        for what in _unsaid.pop(me, ()):
            warn(what)


def warn(what: str) -> None:
    """Say what somebody should look at, as soon as we may `speak`. No message text, key or secret stands in it."""
    if get_ident() in _silent:
        _unsaid.setdefault(get_ident(), []).append(what)
        return
    import logging  # noqa: PLC0415  # rarely needed

    logging.getLogger("hitherto").warning(what)


Listener = Callable[[Event], object]


class _Queue:
    """What waits for one listener. It knows neither the listener nor the store, so that the thread that waits at it
    keeps nobody alive."""

    __slots__ = ("dropped", "events", "thread")

    def __init__(self) -> None:
        from queue import SimpleQueue  # noqa: PLC0415  # nobody may ever listen

        self.events: SimpleQueue[Event | threading.Event | None] = SimpleQueue()  # a mark to be set; None: it is over
        self.dropped = 0
        self.thread: threading.Thread | None = None

    def put(self, event: Event) -> None:
        if self.events.qsize() < _MOST:
            self.events.put(event)
            return
        self.dropped += 1
        if self.dropped == 1:
            warn(f"a listener is too slow: {_MOST:,} events wait for it, and what comes now is dropped")

    def end(self, _: object = None) -> None:
        """May be called anywhere, by the collector of garbage, too: `put` of this queue allows for it."""
        self.events.put(None)


class _Subscription:
    """One who listens."""

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
            raise HithertoError(f"nobody can listen: {error}", hint="end some threads first") from None
        self.queue.thread = thread

    def hear(self, event: Event) -> None:
        try:
            self.listener(event)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is not ours, and is said, once of a kind
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
            subscription.hear(event)
        del subscription, event  # what was heard, and by whom, is not kept while we wait


class Listeners:
    """Those who listen to one store."""

    def __init__(self, watch: Listener = lambda _: None) -> None:
        """`watch` hears all that is told, at once: it measures, and neither waits nor fails."""
        self._watch = watch
        self.some: tuple[_Subscription, ...] = ()  # empty: nobody listens, and nothing need be told
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._closed = False
        self._lock = threading.RLock()  # a signal may find us in it, and its handler may close the store
        self._forks = _forks.count()
        self._dropped = 0  # of those who have stopped

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        if not callable(listener):
            raise InvalidArgument(f"a {type(listener).__name__} where a function that takes an event is wanted")
        with self._lock:
            if self._closed:
                raise Closed("the store is closed")
            if len(self.some) >= MOST_LISTENERS:
                hint = "subscribe once, and pass what is heard on; whoever has heard enough ends its subscription"
                raise InvalidArgument(f"{MOST_LISTENERS} listen to this store already", hint=hint)
            subscription = _Subscription(listener)
            self.some = (*self.some, subscription)
            if subscription.queue.thread is not None:
                self._threads.add(subscription.queue.thread)
        return partial(self._unsubscribe, weakref.ref(subscription))

    @property
    def are_here(self) -> bool:
        """Is it a listener of this store that asks?"""
        return threading.current_thread() in self._threads

    def _unsubscribe(self, subscription: "weakref.ref[_Subscription]") -> None:
        found = subscription()
        with self._lock:
            if found is not None and not found.over:
                found.over = True
                found.queue.end()
                self.some = tuple(one for one in self.some if one is not found)
                self._dropped += found.queue.dropped

    def tell(self, event: Event) -> None:
        """Put it into every queue. Never waits for a listener."""
        self._watch(event)
        for subscription in self.some:
            subscription.queue.put(event)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until all that was told so far was heard. False if the time ran out. Who waits in a listener does not
        wait for itself."""
        return all(self._heard(self.some, timeout_seconds))

    def _heard(self, some: tuple[_Subscription, ...], timeout_seconds: float) -> list[bool]:
        """Which of these have heard all that was told so far: each is sent a mark, and all have the same time."""
        if self._forks != _forks.count():  # the threads are the parent's
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
        """Wait until all was heard, then end the threads; how many events were not heard, or not to their end."""
        with self._lock:
            some, self.some, self._closed = self.some, (), True
        lost = self._dropped
        for subscription, heard in zip(some, self._heard(some, timeout_seconds), strict=True):
            subscription.over = True
            lost += subscription.queue.dropped
            lost += 0 if heard else subscription.queue.events.qsize()  # the mark stands for what is being heard now
            subscription.queue.end()
        return lost
