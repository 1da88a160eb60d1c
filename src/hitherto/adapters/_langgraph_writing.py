"""What one call of a saver writes: messages, items, and the record that makes them count, in one commit.

More than one write can carry is written before, in parts. Nothing shows it until the record is there.
"""

from collections import OrderedDict
from collections.abc import Sequence
from secrets import token_urlsafe
from threading import Lock
from typing import Final

from msgspec.structs import replace

from ..conversation import Conversation
from ..formats.importers import _langgraph_records as records
from ..formats.importers._langchain_messages import to_message
from ..formats.importers._langgraph_records import Inline, Kept, Listed
from ..items import ANY
from ..model import Message
from ..store import Store
from . import _langgraph_lists as lists
from ._langgraph_known import Serialised

_MOST: Final = 256  # handles


class Handles:
    """Handles that were used last: of threads, and of the ends of lists. A saver that finds one of them stale forgets
    them and looks again."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, Conversation] = OrderedDict()
        self._ends: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self._lock = Lock()

    def thread(self, thread: str) -> Conversation | None:
        return self._threads.get(thread)

    def keep_thread(self, thread: str, talk: Conversation) -> None:
        with self._lock:
            self._threads[thread] = talk
            while len(self._threads) > _MOST:
                self._threads.popitem(last=False)

    def forget(self, thread: str) -> None:
        with self._lock:
            self._threads.pop(thread, None)
            self._ends.clear()

    def take_end(self, talk: Conversation, key: str) -> Conversation | None:
        """Return the handle that stands at the message with this key. No other thread has it then."""
        with self._lock:
            return self._ends.pop((talk.id, key), None)

    def keep_end(self, key: str, handle: Conversation) -> None:
        with self._lock:
            self._ends[handle.id, key] = handle
            while len(self._ends) > _MOST:
                self._ends.popitem(last=False)


class Write:
    """What one call writes."""

    def __init__(self, store: Store, talk: Conversation, namespace: str, handles: Handles) -> None:
        self._store = store
        self._talk = talk
        self._handles = handles
        self._trace = records.subagent_of(namespace) if namespace else None
        self._items: dict[str, bytes] = {}
        self._lists: list[lists.Draft] = []
        self.lists_seen: list[tuple[Serialised, bytes, list[bytes]]] = []

    def add_value(self, typed: records.Typed) -> Inline | Kept:
        return records.place_value(typed, token_urlsafe(9), self._items)

    def add_list(self, done: Serialised, flow: str, earlier: Listed | None) -> Listed:
        before, path, count, above = lists.find_beginning(self._talk, done.typed, flow, earlier, done.path)
        new = [
            to_message(vars(done.elements[n]), records.key_of(flow, path[n]), list(done.typed[n]))
            for n in range(count, len(path))
        ]
        if flow == records.SIDE and self._trace is not None:
            label = "subagent:{}:{}".format(*self._trace)
            new = [replace(message, label=label) for message in new]
        listed = Listed((new[-1].key if new else above) or "", len(path), before)
        if new:
            self._lists.append(lists.Draft(flow, new, above))
        self.lists_seen.append((done, before, path))
        return listed

    def commit(self, name: str, data: bytes, *, expect: int | None = ANY) -> None:
        """Write all of it, and the record of this name."""
        while sum(map(len, self._items.values())) > records.PART:
            first = next(iter(self._items))
            self._talk.items.put(first, self._items.pop(first))
        for draft in self._lists[:-1]:
            handle = self._stand(draft)
            for messages in _slices(draft.new):
                handle.extend(messages)
        handle, last = self._talk, list[Message]()
        if self._lists:
            handle = self._stand(self._lists[-1])
            *some, last = _slices(self._lists[-1].new)
            for messages in some:
                handle.extend(messages)
        with handle.batch() as batch:
            batch.extend(last)
            for item, value in self._items.items():
                batch.items.put(item, value)
            batch.items.put(name, data, expect=expect)
        if last and last[-1].key is not None:
            self._handles.keep_end(last[-1].key, handle)

    def _stand(self, draft: lists.Draft) -> Conversation:
        """Return a handle that stands where the new messages of a list go."""
        is_main = draft.flow == records.MAIN
        if draft.above is not None:
            handle = self._handles.take_end(self._talk, draft.above) if draft.above.startswith(draft.flow) else None
            if handle is not None:
                return handle
            (above,) = self._talk.get(keys=[draft.above])
            return self._talk.fork(at=above, main=is_main)
        if not is_main:
            return self._talk.subagent(*(self._trace or ("graph", "list")))
        for message in self._store.messages(conversation=self._talk, newest_first=False):
            if message.main:
                return self._talk.fork(before=message)
        return self._talk.fork()


def _slices(messages: Sequence[Message]) -> list[list[Message]]:
    """Return messages in as many parts as have to be written one by one, because one write carries at most so much."""
    found: list[list[Message]] = [[]]
    size = 0
    for message in messages:
        weight = len(message.raw[1]) if isinstance(message.raw, list) else 0
        if found[-1] and size + weight > records.PART:
            found.append([])
            size = 0
        found[-1].append(message)
        size += weight
    return found
