"""Threads as values, and narrow protocols for functions that need only a part of a store.

A function that only reads takes a `MessageGetter`: any object with such a `get`. `thread` is such a function.
"""

from collections.abc import Coroutine, Iterable, Iterator
from typing import Protocol, runtime_checkable

from msgspec import Struct

from .errors import Damaged, InvalidArgument
from .model import Message, Saved
from .store import Store

__all__ = ["Comparison", "MessageDeleter", "MessageGetter", "MessageLister", "MessageSaver", "compare", "thread"]


@runtime_checkable
class MessageSaver(Protocol):
    """Saves messages."""

    def save(self, messages: Iterable[Message]) -> list[str]:
        """Save messages in one transaction; their ids, in order."""


@runtime_checkable
class MessageGetter(Protocol):
    """Gets messages by id."""

    def get(self, ids: Iterable[str]) -> list[Saved]:
        """Messages by id, in the order asked for."""


@runtime_checkable
class MessageLister(Protocol):
    """Lists messages."""

    def messages(self, *, newest_first: bool = True, offset: int = 0) -> Iterator[Saved]:
        """Messages, lazily."""


@runtime_checkable
class MessageDeleter(Protocol):
    """Deletes messages."""

    def delete(self, ids: Iterable[str], *, recursive: bool = False, missing_ok: bool = False) -> list[str]:
        """Delete messages in one transaction."""


def thread(getter: MessageGetter, message_id: str) -> list[Saved]:
    """The messages from the root to this one, read from any `MessageGetter`. For a store it uses the faster way."""
    if isinstance(getter, Store):
        return getter.thread(message_id)
    path: list[Saved] = []
    seen: set[str] = set()
    next: str | None = message_id
    while next is not None:
        if next in seen:
            raise Damaged(f"message {next} is its own ancestor")
        seen.add(next)
        (message,) = getter.get([next])
        path.append(message)
        next = message.parent
    return [message for message in reversed(path) if message.role != "event"]


class Comparison(Struct, frozen=True):
    """Two threads side by side: the messages that they share from the root on, and the rest of each."""

    shared: list[Saved]
    left: list[Saved]
    right: list[Saved]

    @property
    def fork(self) -> str | None:
        """The id of the last message both have; None if they share nothing."""
        return self.shared[-1].id if self.shared else None


class _HasThread(Protocol):
    def thread(self) -> list[Saved]: ...


def compare(left: _HasThread, right: _HasThread) -> Comparison:
    """Compare two threads. Messages are the same if they are one, or copies of the same one."""
    mine, theirs = _thread_of(left), _thread_of(right)
    same = 0
    while same < min(len(mine), len(theirs)) and _origin(mine[same]) == _origin(theirs[same]):
        same += 1
    return Comparison(mine[:same], mine[same:], theirs[same:])


def _thread_of(given: object) -> list[Saved]:
    thread = getattr(given, "thread", None)
    found = thread() if callable(thread) else None
    if isinstance(found, list):
        return found
    if isinstance(found, Coroutine):  # of an async conversation: it will not be awaited
        found.close()
    hint = "compare(talk, other), with conversations of a store; those of an async one have .sync"
    raise InvalidArgument(f"a {type(given).__name__} where a conversation is wanted", hint=hint)


def _origin(message: Saved) -> str:
    return message.origin or f"{message.conversation}/{message.id}"
