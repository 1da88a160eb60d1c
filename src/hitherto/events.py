"""What a store tells those who listen: things that happened, as typed values.

    store.subscribe(print)

A listener is called in the thread in which it happened, after it was committed. One that raises is logged and disturbs
nobody. What should reach people who listen to nothing goes to the logger `hitherto`, by `warn`.
"""

from collections.abc import Callable
from datetime import datetime

from msgspec import Struct


class Event(Struct, frozen=True):
    """Something that happened."""

    at: datetime


class Quarantined(Event, frozen=True):
    """A record that was tampered with or damaged was put into quarantine. `message` is None if it is the conversation
    itself that cannot be trusted."""

    conversation: str
    message: str | None
    problem: str


class TurnedReadOnly(Event, frozen=True):
    """The store does not take writes any more."""

    reason: str


class KeyRotated(Event, frozen=True):
    """The workspace has another key; `key_id` says which, None that it is plain now."""

    key_id: str | None
    conversations: int


def warn(what: str) -> None:
    """Say what somebody should look at. No message text, key or secret stands in it."""
    import logging  # noqa: PLC0415  # rarely needed

    logging.getLogger("hitherto").warning(what)


Listener = Callable[[Event], None]


class Listeners:
    """Those who listen to one store."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def tell(self, event: Event) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is not ours, and is said
                warn(f"a listener failed: {type(error).__name__}")
